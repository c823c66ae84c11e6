//! What is under way over a link, of which there may be only so much.
//!
//! The kernel counts descriptors that were sent and not received, for the user and not for the channel. So an end counts
//! the descriptors of its messages until the other end has taken those, and a link counts those of all its ends, and with
//! them the descriptors of memory that came of itself: blocks, and larger rings.
//!
//! An end learns what was taken when it sends, which it may never do again. Therefore each leaves [what it has under
//! way](UnderWay) with the link, where another that finds too much under way looks it through.

use std::collections::VecDeque;
use std::ops::{AddAssign, SubAssign};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::{Link, unpoisoned};
use crate::options::LINK_HANDLES_IN_FLIGHT;
use crate::ring::Memory;
use crate::shm::RingMemory;

/// What one end has under way in one lane.
#[derive(Debug)]
pub(crate) struct UnderWay {
    /// Where the consumer says how many messages it has taken.
    out: RingMemory,
    messages: Mutex<Messages>,
}

/// Those with something to count that the consumer has not taken, and rings.
#[derive(Debug, Default)]
struct Messages {
    row: VecDeque<(Until, Amount)>,
    all: Amount,
}

/// When something is no longer under way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// Once the message of this number was taken.
    Taken(u64),
    /// Once there is credit up to here.
    Credit(u64),
}

/// What there may be only so much of under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amount {
    /// Descriptors that count for the end and for the link.
    pub(crate) handles: usize,
    /// Descriptors that count for the link.
    pub(crate) memories: usize,
    /// Bytes of sealed memory.
    pub(crate) sealed: usize,
}

impl Amount {
    /// A message with so many handles.
    pub(crate) fn handles(handles: usize) -> Self {
        Self { handles, ..Self::default() }
    }

    fn descriptors(self) -> usize {
        self.handles + self.memories
    }

    pub(crate) fn is_nothing(self) -> bool {
        self.descriptors() + self.sealed == 0
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, more: Self) {
        self.handles += more.handles;
        self.memories += more.memories;
        self.sealed += more.sealed;
    }
}

impl SubAssign for Amount {
    fn sub_assign(&mut self, less: Self) {
        self.handles -= less.handles;
        self.memories -= less.memories;
        self.sealed -= less.sealed;
    }
}

impl UnderWay {
    /// Nothing yet, of what goes into this ring.
    pub(crate) fn new(out: RingMemory) -> Arc<Self> {
        Arc::new(Self { out, messages: Mutex::default() })
    }

    /// All of it.
    pub(crate) fn all(&self) -> Amount {
        unpoisoned(&self.messages).all
    }

    fn note(&self, until: Until, amount: Amount) {
        let mut messages = unpoisoned(&self.messages);
        messages.all += amount;
        messages.row.push_back((until, amount));
    }

    /// Takes off what the consumer says that it has, and tells how many descriptors that were. If it lies, that is found out
    /// when the end sends again; what it gains until then is that it gets more at once.
    fn take_off(&self) -> usize {
        let (taken, credit) = (self.out.taken().load(Ordering::Acquire), self.out.credit().load(Ordering::Acquire));
        self.take_while(|until| match until {
            Until::Taken(sequence) => sequence < taken,
            Until::Credit(position) => position <= credit,
        })
    }

    fn take_while(&self, is_over: impl Fn(Until) -> bool) -> usize {
        let mut messages = unpoisoned(&self.messages);
        let before = messages.all.descriptors();
        while let Some(&(until, amount)) = messages.row.front()
            && is_over(until)
        {
            messages.all -= amount;
            messages.row.pop_front();
        }
        before - messages.all.descriptors()
    }
}

/// What all ends of a link have under way.
#[derive(Default)]
pub(super) struct AllUnderWay {
    descriptors: AtomicUsize,
    ends: Mutex<Ends>,
}

#[derive(Default)]
struct Ends {
    all: Vec<Weak<UnderWay>>,
    /// How many were left when those that are gone were last thrown out.
    kept: usize,
}

impl Link {
    /// Has what an end has under way looked through for others.
    pub(crate) fn look_through(&self, end: &Arc<UnderWay>) {
        let mut ends = unpoisoned(&self.under_way.ends);
        if ends.all.len() >= 2 * ends.kept + 16 {
            ends.all.retain(|end| end.strong_count() > 0);
            ends.kept = ends.all.len();
        }
        ends.all.push(Arc::downgrade(end));
    }

    /// Whether so many descriptors more may be under way.
    pub(crate) fn may_send(&self, descriptors: usize) -> bool {
        self.has_room_for(descriptors) || {
            let ends: Vec<_> = unpoisoned(&self.under_way.ends).all.iter().filter_map(Weak::upgrade).collect();
            self.uncount(ends.iter().map(|end| end.take_off()).sum());
            self.has_room_for(descriptors)
        }
    }

    fn has_room_for(&self, descriptors: usize) -> bool {
        self.under_way.descriptors.load(Ordering::Relaxed) + descriptors <= LINK_HANDLES_IN_FLIGHT
    }

    /// Counts what an end has sent with a message.
    pub(crate) fn count_under_way(&self, end: &UnderWay, until: Until, amount: Amount) {
        self.under_way.descriptors.fetch_add(amount.descriptors(), Ordering::Relaxed);
        end.note(until, amount);
    }

    /// Counts no longer what the consumer has taken.
    pub(crate) fn count_taken(&self, end: &UnderWay) {
        self.uncount(end.take_off());
    }

    /// Nobody will tell of it.
    pub(crate) fn forget(&self, end: &UnderWay) {
        self.uncount(end.take_while(|_| true));
    }

    fn uncount(&self, descriptors: usize) {
        self.under_way.descriptors.fetch_sub(descriptors, Ordering::Relaxed);
    }
}
