//! The record of ends in this process that the program cannot reach: ends in a message to an end in transit, or in a
//! message to another such end.
//!
//! If the end in transit never arrives, links used by such ends are retained for nothing. So
//! [`crate::lane::retention`], which looks for closable links, asks this module for these links.

use std::collections::HashSet;
use std::sync::Arc;

use super::Lane;
use super::arena::{Arena, LaneSlot};
use super::mailbox::mailbox;
use crate::link::Link;

/// An end of a channel, as the lanes see it: its references, for the search of this module.
pub(crate) trait LaneUser: Send + Sync {
    /// Returns the lanes in which the end sends and receives. Leaves out a direction whose lock another thread holds.
    fn lanes(&self) -> Vec<Arc<Lane>>;

    /// Returns the ends in the backlog of the end: messages taken out of its lanes and not received yet.
    fn held(&self) -> Vec<Arc<dyn LaneUser>>;
}

/// The lane slots, ends, lanes and links that a search from the lane slots of ends in transit has found. This value
/// keeps the ends alive during the search.
#[derive(Default)]
pub(crate) struct EndsInTransit {
    /// The links that the ends and lanes found here use; a link is listed once for each use.
    pub(crate) links: Vec<Arc<Link>>,
    slots: Vec<LaneSlot>,
    ends: Vec<Arc<dyn LaneUser>>,
    lanes: Vec<Arc<Lane>>,
}

/// The lane slots, ends and lanes already found by searches for ends in transit. Each is visited only once.
#[derive(Default)]
pub(crate) struct Seen {
    slots: HashSet<(*const Arena, u32, usize)>,
    /// The addresses of the ends.
    ends: HashSet<*const ()>,
    lanes: HashSet<*const Lane>,
}

impl EndsInTransit {
    /// Finds the links and lanes held by ends in transit to the lane slots `slots`. Also follows the ends in messages
    /// left for these ends, and so on. Skips everything found by earlier calls (in `seen`), and adds new findings to
    /// `seen`.
    pub(crate) fn at(slots: impl IntoIterator<Item = LaneSlot>, seen: &mut Seen) -> Self {
        let mut found = Self::default();
        slots.into_iter().for_each(|lane_slot| found.add_slot(lane_slot, seen));
        found.follow(seen);
        found
    }

    /// Returns the number of lane slots, ends and lanes found by this search.
    pub(crate) fn size(&self) -> usize {
        self.slots.len() + self.ends.len() + self.lanes.len()
    }

    /// Finds the links and lanes used by the given ends, by the ends in their messages, and so on.
    pub(crate) fn of(ends: impl IntoIterator<Item = Arc<dyn LaneUser>>) -> Self {
        let (mut found, mut seen) = (Self::default(), Seen::default());
        found.add_ends(ends, &mut seen);
        found.follow(&mut seen);
        found
    }

    fn add_slot(&mut self, lane_slot: LaneSlot, seen: &mut Seen) {
        if seen.slots.insert(lane_slot.key()) {
            self.slots.push(lane_slot);
        }
    }

    fn add_ends(&mut self, ends: impl IntoIterator<Item = Arc<dyn LaneUser>>, seen: &mut Seen) {
        self.ends.extend(ends.into_iter().filter(|end| seen.ends.insert(Arc::as_ptr(end).cast())));
    }

    fn follow(&mut self, seen: &mut Seen) {
        let (mut ends, mut lanes, mut slots) = (0, 0, 0);
        loop {
            if let Some(end) = self.ends.get(ends).cloned() {
                ends += 1;
                self.add_ends(end.held(), seen);
                let new = end.lanes().into_iter().filter(|lane| seen.lanes.insert(Arc::as_ptr(lane)));
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
                let left = mailbox().ends_for(lane_slot.token_in());
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
