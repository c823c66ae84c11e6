//! Ends that are in this process, but that the program cannot reach. Such an end lies in a message to an end that is
//! itself in transit, or in a message to another end of this kind.
//!
//! If the end in transit never arrives, links used by such ends are retained for nothing. So
//! [`crate::link::routes::retention`], which looks for links that can be closed, asks this module for these links.

use std::collections::HashSet;
use std::sync::Arc;

use crate::channel::handle::Handle;
use crate::channel::options::Options;
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::lane::Lane;
use crate::lane::arena::{Arena, LaneSlot};
use crate::link::Link;
use crate::link::routes::retention::InTransit;

/// The lane slots, ends, lanes and links that a search from the lane slots of ends in transit has found. This value
/// keeps them alive, so that none of them is dropped during the search.
#[derive(Default)]
pub(crate) struct EndsInTransit {
    /// The links that the ends and lanes found here use; a link is listed once for each use.
    pub(crate) links: Vec<Arc<Link>>,
    slots: Vec<LaneSlot>,
    ends: Vec<Arc<End>>,
    lanes: Vec<Arc<Lane>>,
}

/// The lane slots, ends and lanes that searches for ends in transit have found already, so that each is visited only
/// once.
#[derive(Default)]
pub(crate) struct Seen {
    slots: HashSet<(*const Arena, u32, usize)>,
    ends: HashSet<*const End>,
    lanes: HashSet<*const Lane>,
}

impl EndsInTransit {
    /// Finds the links and lanes held by ends in transit to the lane slots `slots`. Also follows the ends in messages
    /// that were left for those ends, and so on. Skips everything in `seen`, which holds what earlier calls have found,
    /// and adds there what is new.
    pub(crate) fn at(slots: impl IntoIterator<Item = LaneSlot>, seen: &mut Seen) -> Self {
        let mut found = Self::default();
        slots.into_iter().for_each(|lane_slot| found.add_slot(lane_slot, seen));
        found.follow(seen);
        found
    }

    /// Returns the number of lane slots, ends and lanes that this search has found.
    pub(crate) fn size(&self) -> usize {
        self.slots.len() + self.ends.len() + self.lanes.len()
    }

    fn of(ends: impl IntoIterator<Item = Arc<End>>) -> Self {
        let (mut found, mut seen) = (Self::default(), Seen::default());
        found.add_ends(ends, &mut seen);
        found.follow(&mut seen);
        found
    }

    /// Returns the links used by the lanes in which these ends send. Does not follow the ends in their messages. Leaves
    /// out an end whose sending lock another thread holds.
    fn used_by(ends: impl Iterator<Item = Arc<End>>) -> Vec<Arc<Link>> {
        let lane = |end: Arc<End>| Some(end.tx.lock(Deadline::NOW).ok()?.lane.clone());
        let lanes: Vec<_> = ends.filter_map(lane).collect();
        lanes.iter().flat_map(|lane| lane.links()).map(|link| Arc::clone(link)).collect()
    }

    fn add_slot(&mut self, lane_slot: LaneSlot, seen: &mut Seen) {
        if seen.slots.insert(lane_slot.key()) {
            self.slots.push(lane_slot);
        }
    }

    fn add_ends(&mut self, ends: impl IntoIterator<Item = Arc<End>>, seen: &mut Seen) {
        self.ends.extend(ends.into_iter().filter(|end| seen.ends.insert(Arc::as_ptr(end))));
    }

    fn follow(&mut self, seen: &mut Seen) {
        let (mut ends, mut lanes, mut slots) = (0, 0, 0);
        loop {
            if let Some(end) = self.ends.get(ends).cloned() {
                ends += 1;
                self.add_ends(end.ends_in_backlog(), seen);
                let directions = [
                    end.tx.lock(Deadline::NOW).map(|tx| tx.lane.clone()),
                    end.rx.lock(Deadline::NOW).map(|rx| rx.lane.clone()),
                ];
                let new = directions.into_iter().flatten().filter(|lane| seen.lanes.insert(Arc::as_ptr(lane)));
                self.lanes.extend(new);
            } else if let Some(lane) = self.lanes.get(lanes).cloned() {
                lanes += 1;
                self.links.extend(lane.links().filter(|link| !link.is_local()).map(|link| Arc::clone(link)));
                if let Some(lane_slot) = lane.local_slot() {
                    self.add_slot(lane_slot, seen);
                }
                self.lanes.extend(lane.found_next().filter(|next| seen.lanes.insert(Arc::as_ptr(next))).cloned());
            } else if let Some(lane_slot) = self.slots.get(slots) {
                slots += 1;
                let left = Link::own().inbox().ends_for(lane_slot.token_in());
                if let Some((next, link)) = lane_slot.successor() {
                    if !link.is_local() {
                        self.links.push(link);
                    }
                    // The next slot is followed also if another process was to receive the end: the transfer may have
                    // been cancelled, so that the end is still in this process.
                    self.add_slot(next, seen);
                }
                self.add_ends(left, seen);
            } else {
                return;
            }
        }
    }
}

/// Closes an end that was in transit to `lane` within this process and has not been received there.
pub(crate) fn close_in_transit(lane: Lane) {
    drop(Channel { end: Arc::new(End::new(Arc::new(lane), &Options::new().shared())) });
}

/// Collects the links used by ends among the handles of a message to an end in this process. Such links do not count as
/// in use while the receiving end is in transit. `here` says that the receiving end is certainly in this process.
/// Returns `None` if there are no ends among the handles, or if `here` is `true` and this process has no other
/// retention mark.
pub(in crate::channel) fn of_handles(handles: &[Handle], here: bool) -> Option<InTransit> {
    let ends = || handles.iter().filter_map(Handle::as_end).cloned();
    ends().next()?;
    // The count comes first: a thread that decides now where one of these ends goes on must find it.
    let in_transit = InTransit::counted(!here)?;
    // Ends in messages to these ends were counted when they were sent, if there was reason to. So a chain of ends
    // that lie in each other's messages is not followed again for each of them.
    let links =
        if here { EndsInTransit::used_by(ends()) } else { std::mem::take(&mut EndsInTransit::of(ends()).links) };
    Some(in_transit.with(links))
}
