//! Counts the descriptors and the sealed memory in flight over a link, which are limited.
//!
//! The kernel counts descriptors in flight per user, not per channel. So an end counts the descriptors of its messages
//! until the other end has received these messages. A link counts the descriptors of all its ends, and also the
//! descriptors of memory that travels without a message: blocks and larger rings.
//!
//! An end learns only at its next send how much the peer has received, and may never send again. Therefore each end
//! with descriptors in flight leaves a [record](InFlight) with the link. If another end finds too many descriptors in
//! flight, that end looks through all records. An empty record is not looked at again. So the cost of a look is limited
//! by the descriptors that may be in flight, not by the number of ends.
//!
//! If an end is closed or sent elsewhere, its messages stay with the peer. So these messages are counted until the peer
//! has received them. Until then the lane is not [done](Lingering), because the words of the lane tell how much the
//! peer has received.

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

/// The in-flight record of one end in one lane: the messages with descriptors or sealed memory that the end has sent
/// and the other end has not received yet.
#[derive(Debug)]
pub(crate) struct InFlight {
    born: Born,
    /// The outgoing ring of the end of this in-flight record. The consumer writes into the ring's control block how
    /// many messages it has received.
    out: RingMemory,
    messages: Mutex<Messages>,
    /// Set once the end of this record was closed or sent away with messages in flight: the state needed to go on
    /// counting. `None` before that.
    lingering: Mutex<Option<Lingering>>,
}

/// The state needed to count for an end that was closed or sent away with messages in flight.
#[derive(Debug)]
struct Lingering {
    /// The ring that the closed end has read; `None` if not known. When the other end is done with the lane, it writes
    /// so into the control block of this ring; from then on the other end receives nothing more.
    inward: Option<RingMemory>,
    /// Whether this process has to declare its end as done with the lane, once no descriptor sent by the end is in
    /// flight.
    is_ours: bool,
}

/// Everything in flight from one end: messages with handles or memory, blocks, and the cells of larger rings, which the
/// consumer has not received.
#[derive(Debug, Default)]
struct Messages {
    queue: VecDeque<(Until, Amount)>,
    all: Amount,
    /// Whether this in-flight record is in the link's list of records with descriptors in flight.
    listed: bool,
}

/// The event at which a message, a block or a larger ring stops counting as in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// In flight until the consumer reports the message with this sequence number as received.
    Taken(u64),
    /// In flight until the consumer has given credit up to this position: a number of cells counted since the lane was
    /// made.
    Credit(u64),
}

/// How much is in flight: numbers of descriptors, and bytes of sealed memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amount {
    /// The number of descriptors in flight that programs sent as handles. Handles count towards the limits of the end
    /// and of the link.
    pub(crate) handles: usize,
    /// The number of descriptors in flight that bring memory: blocks, larger rings or payloads. Such descriptors count
    /// towards the limit of the link, but not towards that of the end.
    pub(crate) memories: usize,
    /// The number of bytes of sealed memory in flight.
    pub(crate) sealed: usize,
}

impl Amount {
    /// Returns the amount in flight for a message: `handles` descriptors that the program sends as handles, no
    /// descriptor of memory (block, larger ring or payload), and no sealed memory.
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

impl InFlight {
    /// Creates the in-flight record of an end that writes the ring `out`. The record is empty at first.
    pub(crate) fn new(out: RingMemory) -> Arc<Self> {
        Arc::new(Self { born: Born::here(), out, messages: Mutex::default(), lingering: Mutex::default() })
    }

    /// Returns the descriptors and bytes in flight from the end of this record, as far as this process knows the
    /// progress of the consumer.
    pub(crate) fn all(&self) -> Amount {
        unpoisoned(&self.messages).all
    }

    /// Adds `amount` (descriptors and bytes) to this in-flight record, to be counted until the event `until`. Returns
    /// whether the caller must add the record to the link's list: `amount` has descriptors, and the record is not in
    /// the list yet.
    fn note(&self, until: Until, amount: Amount) -> bool {
        let mut messages = unpoisoned(&self.messages);
        messages.all += amount;
        messages.queue.push_back((until, amount));
        amount.descriptors() > 0 && !std::mem::replace(&mut messages.listed, true)
    }

    /// Returns whether this in-flight record still has descriptors in flight, and so stays in the link's list. Notes
    /// the answer in the record.
    fn stays_listed(&self) -> bool {
        let mut messages = unpoisoned(&self.messages);
        messages.listed = messages.all.descriptors() > 0;
        messages.listed
    }

    /// Removes the messages reported as received by the consumer from this in-flight record. Returns the number of
    /// descriptors removed. If the report is false, the end notices at its next send; until then this process only
    /// sends more to the consumer.
    fn take_off(&self) -> usize {
        let (taken, credit) = (self.out.taken().load(Ordering::Acquire), self.out.credit().load(Ordering::Acquire));
        self.take_while(|until| match until {
            Until::Taken(sequence) => sequence < taken,
            Until::Credit(position) => position <= credit,
        })
    }

    /// Removes everything received from this in-flight record, and returns the number of removed descriptors. Removes
    /// everything if the end of the record was closed or sent away and the other end is done with the lane.
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
        while let Some(&(until, amount)) = messages.queue.front()
            && is_over(until)
        {
            messages.all -= amount;
            messages.queue.pop_front();
        }
        before - messages.all.descriptors()
    }

    /// Returns whether this in-flight record has unreceived descriptors, as far as noticed by this process.
    fn has_descriptors(&self) -> bool {
        unpoisoned(&self.messages).all.descriptors() > 0
    }

    /// Stops counting for an end that was closed or sent away. If this process has not yet declared its end as done
    /// with the lane, declares the end as done now.
    fn linger_no_more(&self) {
        if unpoisoned(&self.lingering).take().is_some_and(|lingering| lingering.is_ours) {
            say_done(&self.out);
        }
    }
}

/// Declares in the lane's words that the writer of the ring `out` no longer uses the lane.
fn say_done(out: &RingMemory) {
    out.done().store(1, Ordering::SeqCst);
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.born.is_elsewhere() {
            self.linger_no_more();
        }
    }
}

/// The most descriptors for one message: its handles (at most [`MAX_HANDLES`]) and one piece of memory.
const MESSAGE: usize = MAX_HANDLES + 1;

/// Returns the most descriptors in flight over one link: a quarter of the kernel's limit for this user
/// (`RLIMIT_NOFILE`). The rest is left for other peers. The result is at least [`MESSAGE`] and at most
/// [`LINK_HANDLES_IN_FLIGHT`]. A changed kernel limit takes effect after at most 64 calls.
fn most_in_flight() -> usize {
    /// Of this many calls of `most_in_flight`, one reads the kernel's limit (`RLIMIT_NOFILE`) again.
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

/// Returns how many of the `most` descriptors in flight are reserved. The reserved part is for ends with nothing in
/// flight and with a receiving peer: a quarter of `most`, but at least [`MESSAGE`]. If that is more than half of
/// `most`, nothing is reserved: returns 0.
fn reserved(most: usize) -> usize {
    Some((most / 4).max(MESSAGE)).filter(|reserved| *reserved <= most / 2).unwrap_or(0)
}

/// The number of descriptors in flight from all ends of one link, and the in-flight records of these ends.
#[derive(Default)]
pub(super) struct LinkInFlight {
    descriptors: AtomicUsize,
    ends: Mutex<Ends>,
}

/// The in-flight records of the ends of a link with descriptors in flight, and of some ends whose descriptors have
/// arrived.
#[derive(Default)]
struct Ends {
    listed: Vec<Weak<InFlight>>,
    /// The in-flight records of ends that were closed or sent away with descriptors in flight. The list keeps these
    /// records alive, because their ends are gone.
    lingering: Vec<Arc<InFlight>>,
    /// The number of in-flight records left in `listed` by the last check.
    remaining: usize,
}

impl Link {
    /// Returns whether `descriptors` more descriptors may be sent over this link now; does not count them. Some
    /// descriptors of the limit are reserved. The sending end may use the reserved descriptors if `reserve` returns
    /// `true`: the end has nothing in flight and the peer receives its messages.
    pub(crate) fn may_send(&self, descriptors: usize, reserve: impl Fn() -> bool) -> bool {
        self.has_room_for(descriptors, false) || {
            self.look_through(&mut unpoisoned(&self.in_flight.ends));
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
        ends.remaining = ends.listed.len();
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
            false if reserve => most_in_flight(),
            false => most_in_flight() - reserved(most_in_flight()),
        };
        self.in_flight.descriptors.load(Ordering::Relaxed) + descriptors <= most
    }

    /// Counts `amount` (descriptors and bytes) as in flight over this link, and in the in-flight record `end`, until
    /// the event `until`.
    pub(crate) fn count_in_flight(&self, end: &Arc<InFlight>, until: Until, amount: Amount) {
        self.in_flight.descriptors.fetch_add(amount.descriptors(), Ordering::Relaxed);
        if end.note(until, amount) {
            let mut ends = unpoisoned(&self.in_flight.ends);
            if ends.listed.len() >= 2 * ends.remaining + 16 {
                self.look_through(&mut ends);
            }
            ends.listed.push(Arc::downgrade(end));
        }
    }

    /// Stops counting the messages in the in-flight record `end` that the consumer reports as received.
    pub(crate) fn count_taken(&self, end: &InFlight) {
        self.uncount(end.take_off());
    }

    /// Stops counting everything in the in-flight record `end`, for example because no consumer will ever report a
    /// receipt.
    pub(crate) fn forget(&self, end: &InFlight) {
        self.uncount(end.take_while(|_| true));
    }

    /// Keeps counting the descriptors in the in-flight record `end`, after this process closed its end or sent the end
    /// away. `inward` is the ring that the end has read. Returns `false`, and keeps nothing, if no descriptors are in
    /// flight. If `true`, this side is not done with the lane before the other end has received them.
    pub(crate) fn linger(&self, end: &Arc<InFlight>, inward: Option<RingMemory>) -> bool {
        self.uncount(end.take_off());
        if !end.has_descriptors() {
            return false;
        }
        *unpoisoned(&end.lingering) = Some(Lingering { inward, is_ours: false });
        let mut ends = unpoisoned(&self.in_flight.ends);
        // If no end sends any more, no other call may look through the records.
        if ends.lingering.len() >= 2 * ends.remaining + 16 {
            self.look_through(&mut ends);
        }
        ends.lingering.push(end.clone());
        true
    }

    /// Declares the writer of the ring `out` as done with the lane. If descriptors of the writing end are still in
    /// flight, only notes that the declaration is due once the descriptors have arrived.
    pub(crate) fn end_is_done(&self, out: &RingMemory) {
        let ends = unpoisoned(&self.in_flight.ends);
        let lingering = ends.lingering.iter().rfind(|end| end.out.is_same(out));
        match lingering.map(|end| unpoisoned(&end.lingering)).as_deref_mut() {
            Some(Some(lingering)) => lingering.is_ours = true,
            _ => say_done(out),
        }
    }

    fn uncount(&self, descriptors: usize) {
        self.in_flight.descriptors.fetch_sub(descriptors, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::directory::LaneDirectory;
    use crate::ring::MIN_CELLS;
    use crate::shm::{LaneMemory, Mapping, lane_size};

    fn ends(count: usize) -> Vec<Arc<InFlight>> {
        let size = lane_size(MIN_CELLS);
        let mapping = Mapping::private(count * size).unwrap();
        let lane = |at| LaneMemory::new(&mapping, at * size, MIN_CELLS).unwrap();
        (0..count).map(|at| InFlight::new(lane(at).ring(0))).collect()
    }

    /// Shows that a check reads only in-flight records with descriptors in flight, however many ends have ever sent
    /// descriptors.
    #[test]
    fn ends_that_have_nothing_in_flight_are_not_looked_through() {
        let link = Link::local(Arc::<LaneDirectory>::default());
        let listed = || unpoisoned(&link.in_flight.ends).listed.len();
        let ends = ends(2 * LINK_HANDLES_IN_FLIGHT);
        for end in &ends[..LINK_HANDLES_IN_FLIGHT] {
            assert!(link.may_send(1, || false));
            link.count_in_flight(end, Until::Taken(0), Amount::handles(1));
        }
        assert!(!link.may_send(1, || false));
        for end in &ends[1..] {
            end.out.taken().store(1, Ordering::Release);
        }
        assert!(link.may_send(LINK_HANDLES_IN_FLIGHT - 1, || false));
        assert_eq!((link.may_send(LINK_HANDLES_IN_FLIGHT, || false), listed()), (false, 1));
        // All ends send, one after the other; the peer receives each message at once.
        for end in &ends {
            link.count_in_flight(end, Until::Taken(0), Amount::handles(1));
        }
        assert!(listed() <= 2 + 16 + 2, "{}", listed());
        // An end that had nothing in flight for a while is found again.
        link.count_in_flight(&ends[7], Until::Taken(1), Amount::handles(LINK_HANDLES_IN_FLIGHT));
        assert!(!link.may_send(1, || false));
        for end in &ends {
            end.out.taken().store(2, Ordering::Release);
        }
        assert!(link.may_send(LINK_HANDLES_IN_FLIGHT, || false));
        assert_eq!((listed(), link.in_flight.descriptors.load(Ordering::Relaxed)), (0, 0));
    }

    /// Shows that descriptors of a closed end are counted as in flight until the consumer has received them or is done
    /// with the lane. Until then the closed end is not done with the lane.
    #[test]
    fn what_was_not_taken_outlives_its_end() {
        let link = Link::local(Arc::<LaneDirectory>::default());
        let size = lane_size(MIN_CELLS);
        let mapping = Mapping::private(4 * size).unwrap();
        let lanes: Vec<_> = (0..4).map(|at| LaneMemory::new(&mapping, at * size, MIN_CELLS).unwrap()).collect();
        let half = LINK_HANDLES_IN_FLIGHT / 2;
        let is_done = |at: usize| lanes[at].done(0).load(Ordering::Acquire) == 1;
        let go = |at: usize| {
            let end = InFlight::new(lanes[at].ring(0));
            link.count_in_flight(&end, Until::Taken(0), Amount::handles(half));
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
        // The other end of lane 1 takes nothing more.
        lanes[1].done(1).store(1, Ordering::Release);
        assert!(link.may_send(2 * half, || false) && is_done(1));
        // The other end of lane 2 has received everything before this end is closed.
        lanes[2].ring(0).taken().store(1, Ordering::Release);
        assert!(!go(2) && is_done(2));
        assert!(go(3) && !is_done(3));
        drop(link);
        assert!(is_done(3));
    }
}
