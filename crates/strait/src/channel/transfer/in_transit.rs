//! Ends in transit: the interface of ends for the search by the [lanes](crate::lane::in_transit).

use std::sync::Arc;

use crate::channel::handle::Handle;
use crate::channel::options::Options;
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::lane::Lane;
use crate::lane::in_transit::{EndsInTransit, LaneUser};
use crate::link::InTransit;
use crate::link::Link;

impl LaneUser for End {
    fn lanes(&self) -> Vec<Arc<Lane>> {
        // The caller holds the lock of a search for links; a thread with these locks may wait for the search lock.
        let sends = self.tx.try_lock().map(|tx| tx.lane.clone());
        let receives = self.rx.try_lock().map(|rx| rx.lane.clone());
        [sends, receives].into_iter().flatten().collect()
    }

    fn held(&self) -> Vec<Arc<dyn LaneUser>> {
        let ends = self.rx.try_lock().map(|mut rx| rx.ends_in_backlog()).unwrap_or_default();
        ends.into_iter().map(|end| end as Arc<dyn LaneUser>).collect()
    }
}

/// Closes an unreceived end in transit to `lane` within this process.
pub(in crate::channel) fn close_in_transit(lane: Lane) {
    drop(Channel { end: Arc::new(End::new(Arc::new(lane), &Options::new().shared())) });
}

/// Returns the links used by the sending lanes of the given ends, without the ends in their messages. Leaves out an end
/// whose sending lock another thread holds.
fn used_by(ends: impl Iterator<Item = Arc<End>>) -> Vec<Arc<Link>> {
    let lane = |end: Arc<End>| Some(end.tx.lock(Deadline::NOW).ok()?.lane.clone());
    let lanes: Vec<_> = ends.filter_map(lane).collect();
    lanes.iter().flat_map(|lane| lane.links()).map(|link| Arc::clone(link)).collect()
}

/// Returns the tokens of the rings within this process that are read by the given ends, and by the ends in their
/// backlogs: the holder of an end also holds the ends in its backlog. Leaves out a ring written by another process,
/// which may have chosen the token. Leaves out an end whose receiving lock another thread holds.
pub(in crate::channel) fn rings_read_by<'a>(ends: impl Iterator<Item = &'a Arc<End>>) -> Vec<u128> {
    let mut rings = Vec::new();
    let mut held = Vec::new();
    let mut add = |end: &End, held: &mut Vec<Arc<End>>| {
        let Ok(mut rx) = end.rx.lock(Deadline::NOW) else { return };
        // The sending direction may have found lanes that the receiving direction has not come to yet.
        let lanes = std::iter::successors(Some(&rx.lane), |lane| lane.found_next());
        rings.extend(lanes.filter(|lane| lane.link().is_local()).map(|lane| lane.token_in()));
        held.extend(rx.ends_in_backlog());
    };
    ends.for_each(|end| add(end, &mut held));
    while let Some(end) = held.pop() {
        add(&end, &mut held);
    }
    rings
}

/// Collects the links used by ends among the handles of a message to an end in this process. Such links do not count as
/// in use while the receiving end is in transit. `here` says that the receiving end is certainly in this process.
/// Returns `None` if there are no ends among the handles, or if `here` is `true` and this process has no other
/// retention mark.
pub(in crate::channel) fn of_handles(handles: &[Handle], here: bool) -> Option<InTransit> {
    let ends = || handles.iter().filter_map(Handle::as_end).cloned();
    ends().next()?;
    // The count comes first, so that a thread that now decides the next lane of one of these ends finds the count.
    let in_transit = InTransit::counted(!here)?;
    // Ends in messages to these ends were counted when sent, if necessary. So a chain of ends in each other's messages
    // is not followed again for each end.
    let links = if here {
        used_by(ends())
    } else {
        std::mem::take(&mut EndsInTransit::of(ends().map(|end| end as Arc<dyn LaneUser>)).links)
    };
    Some(in_transit.with(links))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that the token of a ring written by another process is not taken for the token of a ring within this
    /// process: the other process could choose any such token.
    #[test]
    fn rings_of_other_processes_are_left_out() {
        let (one, other) = Channel::pair().unwrap();
        let (socket, _peer) = crate::os::socket::pair().unwrap();
        let over_a_socket = Channel::over(socket).unwrap();
        assert_eq!(rings_read_by([&one, &over_a_socket].map(Channel::end).into_iter()).len(), 1);
        assert_eq!(rings_read_by([&one, &other].map(Channel::end).into_iter()).len(), 2);
    }
}
