//! What is under way over a link, of which there may be only so much.
//!
//! The kernel counts descriptors that were sent and not received, for the user and not for the channel. So an end counts
//! the descriptors of its messages until the other end has taken those, and a link counts those of all its ends, and with
//! them the descriptors of memory that came of itself: blocks, and larger rings.
//!
//! An end learns what was taken when it sends, which it may never do again. Therefore each that has something under way
//! leaves [that](UnderWay) with the link, where another that finds too much under way looks it through. What turns out to be
//! nothing is not looked at again, so a look costs no more than there may be under way, however many ends there are.
//!
//! What an end had sent when it was closed, or sent elsewhere, lies with the peer as before. So that is counted until it was
//! taken, and as long the lane is not [done with](Lingering): its words are where the peer says so.

use std::collections::VecDeque;
use std::ops::{AddAssign, SubAssign};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::Link;
use crate::os::fork::Born;
use crate::quota::{LINK_HANDLES_IN_FLIGHT, MAX_HANDLES};
use crate::ring::Memory;
use crate::shm::RingMemory;
use crate::sync::unpoisoned;

/// What one end has under way in one lane.
#[derive(Debug)]
pub(crate) struct UnderWay {
    born: Born,
    /// Where the consumer says how many messages it has taken.
    out: RingMemory,
    messages: Mutex<Messages>,
    /// Once the end is gone.
    lingering: Mutex<Option<Lingering>>,
}

/// What is left to do for an end that is gone.
#[derive(Debug)]
struct Lingering {
    /// The ring across, whose producer says when it is done with the lane: then it asks for nothing more.
    inward: Option<RingMemory>,
    /// That this side is done with the lane is to be said.
    is_ours: bool,
}

/// Those with something to count that the consumer has not taken, and rings.
#[derive(Debug, Default)]
struct Messages {
    row: VecDeque<(Until, Amount)>,
    all: Amount,
    /// Whether the link looks them through.
    listed: bool,
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
        Arc::new(Self { born: Born::here(), out, messages: Mutex::default(), lingering: Mutex::default() })
    }

    /// All of it.
    pub(crate) fn all(&self) -> Amount {
        unpoisoned(&self.messages).all
    }

    /// Whether it has to be looked through for others from here on.
    fn note(&self, until: Until, amount: Amount) -> bool {
        let mut messages = unpoisoned(&self.messages);
        messages.all += amount;
        messages.row.push_back((until, amount));
        amount.descriptors() > 0 && !std::mem::replace(&mut messages.listed, true)
    }

    /// Whether there is still something to look through.
    fn stays_listed(&self) -> bool {
        let mut messages = unpoisoned(&self.messages);
        messages.listed = messages.all.descriptors() > 0;
        messages.listed
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

    /// The same for an end that may be gone: then all is over also once the other one is done with the lane.
    fn look(&self) -> usize {
        let is_done = |inward: &RingMemory| inward.done().load(Ordering::Acquire) != 0;
        let lingering = unpoisoned(&self.lingering);
        let is_over = lingering.as_ref().and_then(|lingering| lingering.inward.as_ref()).is_some_and(is_done);
        drop(lingering);
        if is_over { self.take_while(|_| true) } else { self.take_off() }
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

    /// Whether there are descriptors among it.
    fn has_descriptors(&self) -> bool {
        unpoisoned(&self.messages).all.descriptors() > 0
    }

    /// Nothing more is looked at.
    fn linger_no_more(&self) {
        if unpoisoned(&self.lingering).take().is_some_and(|lingering| lingering.is_ours) {
            say_done(&self.out);
        }
    }
}

/// Says that the end that wrote this ring uses the lane no more.
fn say_done(out: &RingMemory) {
    out.done().store(1, Ordering::SeqCst);
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.born.is_elsewhere() {
            self.linger_no_more();
        }
    }
}

/// Descriptors of the largest message: its handles, and memory.
const MESSAGE: usize = MAX_HANDLES + 1;

/// How many descriptors may be under way to a peer: a quarter of what the kernel lets this user have under way (`RLIMIT_NOFILE`), so
/// that others can be served. Who changes that limit is heard after some time.
fn most_under_way() -> usize {
    /// Looks for which what is known goes.
    const LASTS: usize = 64;
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    static LOOKS: AtomicUsize = AtomicUsize::new(0);
    let (known, looks) = (KNOWN.load(Ordering::Relaxed), LOOKS.fetch_add(1, Ordering::Relaxed));
    if known > 0 && !looks.is_multiple_of(LASTS) {
        return known;
    }
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let quarter = usize::try_from(files / 4).unwrap_or(usize::MAX);
    let most = quarter.clamp(MESSAGE, LINK_HANDLES_IN_FLIGHT);
    KNOWN.store(most, Ordering::Relaxed);
    most
}

/// How many of them are kept for ends that have nothing under way and are read: a quarter, or a message's, if half is left then.
fn reserved(most: usize) -> usize {
    Some((most / 4).max(MESSAGE)).filter(|reserved| *reserved <= most / 2).unwrap_or(0)
}

/// What all ends of a link have under way.
#[derive(Default)]
pub(super) struct AllUnderWay {
    descriptors: AtomicUsize,
    ends: Mutex<Ends>,
}

/// Those that have something under way, and such as had.
#[derive(Default)]
struct Ends {
    listed: Vec<Weak<UnderWay>>,
    /// Those among them that are gone.
    lingering: Vec<Arc<UnderWay>>,
    /// How many were left when they were last looked through.
    kept: usize,
}

impl Link {
    /// Whether so many descriptors more may be under way. A part of what may be is kept for ends with `reserve`: such as have
    /// nothing under way, and are read.
    pub(crate) fn may_send(&self, descriptors: usize, reserve: impl Fn() -> bool) -> bool {
        self.has_room_for(descriptors, false) || {
            self.look_through(&mut unpoisoned(&self.under_way.ends));
            self.has_room_for(descriptors, false) || (reserve() && self.has_room_for(descriptors, true))
        }
    }

    fn look_through(&self, ends: &mut Ends) {
        ends.listed.retain(|end| {
            end.upgrade().is_some_and(|end| {
                self.uncount(end.look());
                end.stays_listed()
            })
        });
        ends.kept = ends.listed.len();
        ends.lingering.retain(|end| {
            let stays = end.has_descriptors();
            if !stays {
                end.linger_no_more();
            }
            stays
        });
    }

    fn has_room_for(&self, descriptors: usize, reserve: bool) -> bool {
        let most = match self.is_local() {
            true => LINK_HANDLES_IN_FLIGHT,
            false if reserve => most_under_way(),
            false => most_under_way() - reserved(most_under_way()),
        };
        self.under_way.descriptors.load(Ordering::Relaxed) + descriptors <= most
    }

    /// Counts what an end has sent with a message.
    pub(crate) fn count_under_way(&self, end: &Arc<UnderWay>, until: Until, amount: Amount) {
        self.under_way.descriptors.fetch_add(amount.descriptors(), Ordering::Relaxed);
        if end.note(until, amount) {
            let mut ends = unpoisoned(&self.under_way.ends);
            if ends.listed.len() >= 2 * ends.kept + 16 {
                self.look_through(&mut ends);
            }
            ends.listed.push(Arc::downgrade(end));
        }
    }

    /// Counts no longer what the consumer has taken.
    pub(crate) fn count_taken(&self, end: &UnderWay) {
        self.uncount(end.take_off());
    }

    /// Nobody will tell of it.
    pub(crate) fn forget(&self, end: &UnderWay) {
        self.uncount(end.take_while(|_| true));
    }

    /// The end that sent it is gone, and the ring `inward` across was its other end's. Whether something is counted until that
    /// has taken it, so that the lane is not done with before.
    pub(crate) fn linger(&self, end: &Arc<UnderWay>, inward: Option<RingMemory>) -> bool {
        self.uncount(end.take_off());
        if !end.has_descriptors() {
            return false;
        }
        *unpoisoned(&end.lingering) = Some(Lingering { inward, is_ours: false });
        let mut ends = unpoisoned(&self.under_way.ends);
        // Where no end sends any more, nobody else may look.
        if ends.lingering.len() >= 2 * ends.kept + 16 {
            self.look_through(&mut ends);
        }
        ends.lingering.push(end.clone());
        true
    }

    /// The end that wrote this ring uses the lane no more. That is said now, or once nothing is left to look at there.
    pub(crate) fn end_is_done(&self, out: &RingMemory) {
        let ends = unpoisoned(&self.under_way.ends);
        let lingering = ends.lingering.iter().rfind(|end| end.out.is_same(out));
        match lingering.map(|end| unpoisoned(&end.lingering)).as_deref_mut() {
            Some(Some(lingering)) => lingering.is_ours = true,
            _ => say_done(out),
        }
    }

    fn uncount(&self, descriptors: usize) {
        self.under_way.descriptors.fetch_sub(descriptors, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::io::Local;
    use crate::quota::Ledger;
    use crate::ring::MIN_CELLS;
    use crate::shm::{LaneMemory, Layout, Mapping};

    fn ends(count: usize) -> Vec<Arc<UnderWay>> {
        let size = Layout::FIRST.lane_size(MIN_CELLS);
        let mapping = Mapping::private(count * size).unwrap();
        let lane = |at| LaneMemory::new(&mapping, at * size, MIN_CELLS, Layout::FIRST).unwrap();
        (0..count).map(|at| UnderWay::new(lane(at).ring(0))).collect()
    }

    /// However many ends have sent something once, only those are gone through of which something is still under way.
    #[test]
    fn ends_that_have_nothing_under_way_are_not_looked_through() {
        let link = Link::new(0, Box::new(Local::default()), Ledger::nobodys());
        let listed = || unpoisoned(&link.under_way.ends).listed.len();
        let ends = ends(2 * LINK_HANDLES_IN_FLIGHT);
        for end in &ends[..LINK_HANDLES_IN_FLIGHT] {
            assert!(link.may_send(1, || false));
            link.count_under_way(end, Until::Taken(0), Amount::handles(1));
        }
        assert!(!link.may_send(1, || false));
        for end in &ends[1..] {
            end.out.taken().store(1, Ordering::Release);
        }
        assert!(link.may_send(LINK_HANDLES_IN_FLIGHT - 1, || false));
        assert_eq!((link.may_send(LINK_HANDLES_IN_FLIGHT, || false), listed()), (false, 1));
        // All the others, one after the other; what each has sent is taken at once.
        for end in &ends {
            link.count_under_way(end, Until::Taken(0), Amount::handles(1));
        }
        assert!(listed() <= 2 + 16 + 2, "{}", listed());
        // One that had nothing for a while is found again.
        link.count_under_way(&ends[7], Until::Taken(1), Amount::handles(LINK_HANDLES_IN_FLIGHT));
        assert!(!link.may_send(1, || false));
        for end in &ends {
            end.out.taken().store(2, Ordering::Release);
        }
        assert!(link.may_send(LINK_HANDLES_IN_FLIGHT, || false));
        assert_eq!((listed(), link.under_way.descriptors.load(Ordering::Relaxed)), (0, 0));
    }

    /// What ends had sent is counted when they are gone, and as long their side is not done with the lane; or until the other is.
    #[test]
    fn what_was_not_taken_outlives_its_end() {
        let link = Link::new(0, Box::new(Local::default()), Ledger::nobodys());
        let size = Layout::FIRST.lane_size(MIN_CELLS);
        let mapping = Mapping::private(4 * size).unwrap();
        let lanes: Vec<_> =
            (0..4).map(|at| LaneMemory::new(&mapping, at * size, MIN_CELLS, Layout::FIRST).unwrap()).collect();
        let half = LINK_HANDLES_IN_FLIGHT / 2;
        let is_done = |at: usize| lanes[at].done(0).load(Ordering::Acquire) == 1;
        let go = |at: usize| {
            let end = UnderWay::new(lanes[at].ring(0));
            link.count_under_way(&end, Until::Taken(0), Amount::handles(half));
            let lingers = link.linger(&end, Some(lanes[at].ring(1)));
            if !lingers {
                link.forget(&end);
            }
            link.end_is_done(&lanes[at].ring(0));
            lingers
        };
        assert!(go(0) && go(1));
        assert!(!link.may_send(1, || false) && !is_done(0) && !is_done(1));
        lanes[0].ring(0).taken().store(1, Ordering::Release);
        assert!(link.may_send(half, || false) && !link.may_send(half + 1, || false) && is_done(0) && !is_done(1));
        // One that has asked for all it will.
        lanes[1].done(1).store(1, Ordering::Release);
        assert!(link.may_send(2 * half, || false) && is_done(1));
        // All was taken before it went.
        lanes[2].ring(0).taken().store(1, Ordering::Release);
        assert!(!go(2) && is_done(2));
        assert!(go(3) && !is_done(3));
        drop(link);
        assert!(is_done(3));
    }
}
