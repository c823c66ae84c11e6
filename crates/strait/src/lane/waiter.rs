//! Waiting for the peer in three steps: spin while that pays, then sleep on a word for a short while, then sleep on the
//! link's socket for as long as it takes.
//!
//! * **Spin** only while the peer was last seen on another CPU: on the same CPU the peer cannot go on while this thread
//!   spins.
//! * **The word** is the cheapest sleep to wake from, but does not end when the peer dies. So a sleep on it is short.
//! * **The socket** ends the sleep when the peer dies, and costs nothing however long the sleep lasts.
//!
//! A sleeping thread writes into its sleep word how it sleeps, by an exchange, and looks once more. A waking thread
//! publishes by an atomic operation, looks at the word, and takes it by an exchange. Whatever the order, one of the two
//! sees the other. The peer can write anything into the word. That can wake the sleeping thread for nothing or not wake
//! it in time. But every wake-up looks at the ring again, and the peer's death ends the sleep in any case.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::Error;
use crate::link::Link;
use crate::os::futex::{self, Scope};
use crate::os::{self, fault};
use crate::ring::{self, transfer_word};
use crate::shm::RingMemory;
use crate::wake::interrupt::{Interruption, word_of};
use crate::wake::{Direction, Wait};

/// Value of a sleep word (the word in which a side says whether and how it sleeps): no thread sleeps, and publishing
/// needs no system call.
pub(crate) const AWAKE: u32 = 0;
/// Value of a sleep word: a thread sleeps on the word itself (a futex).
pub(crate) const ON_WORD: u32 = 1;
/// Value of a sleep word: a thread sleeps on the link's socket, so waking it takes a packet.
const ON_SOCKET: u32 = 2;

/// Value of a sleep word: no thread sleeps on this end, but the end is an armed member of a wait set. The upper bits
/// hold the member id. The side that publishes notifies this member.
const ON_SET: u32 = 3;
/// The mask of the bits of a sleep word that say how its side sleeps, besides [`transfer_word::RELAYED`].
const KIND: u32 = 3;
/// The bit at which the member id begins in a sleep word. The bits below leave room for more ways to sleep.
const NUMBER: u32 = 8;

/// Returns the value of the sleep word of a wait set's member with the id `number`. With `relayed` the other end is in
/// transit and the member is armed on the link to its source.
pub(crate) fn on_set(number: u32, relayed: bool) -> u32 {
    ON_SET | if relayed { transfer_word::RELAYED } else { 0 } | number << NUMBER
}

/// The longest sleep on a word. The peer's death is noticed only after it. A longer sleep goes on at the socket, and
/// then the next sleep begins at the socket.
pub(crate) const SLICE: Duration = Duration::from_millis(20);

/// The number of first looks of a wait, which take less than a microsecond. There is a pause after each look, although
/// an answer is seen later for that, by half a pause on average. A look at a cache line that the other side is about to
/// write takes the line away from there. The line then has to be fetched back before the message can be committed,
/// which costs more than leaving out the pause saves.
const EAGER: u32 = 32;

/// The number of looks between two reads of the clock while spinning, about a microsecond.
const LOOKS: u32 = 64;

/// Wakes the side whose sleep word `word` contained `how`, which the caller has taken from it. Returns `false` if no
/// thread slept there.
#[inline]
pub(crate) fn wake(link: &Link, scope: Scope, word: &AtomicU32, how: u32) -> bool {
    if how != AWAKE {
        fault::point("before a sleeper is woken");
    }
    match how & !transfer_word::RELAYED {
        AWAKE => return false,
        ON_SOCKET => {
            if !link.wake() {
                give_back(word, how);
            }
        }
        member if member & KIND == ON_SET => {
            if !link.notify(how >> NUMBER) {
                give_back(word, how);
            }
        }
        // Any other value is the peer's doing, and a thread may sleep on the word. If no thread does, the peer was just
        // about to sleep, or it died in its sleep.
        _ => {
            if !futex::wake_one(word, scope) {
                link.probe();
            }
        }
    }
    true
}

/// Puts `how` back into the sleep word, because not even a packet could be sent and the peer still sleeps. The next
/// call that publishes tries again. So does the link, before it sends anything else.
fn give_back(word: &AtomicU32, how: u32) {
    let _ = word.compare_exchange(AWAKE, how, Ordering::SeqCst, Ordering::Relaxed);
}

/// Writes into a sleep word how this side sleeps; [`AWAKE`] if it does not. The caller looks at the ring once more
/// after this.
pub(crate) fn announce(word: &AtomicU32, how: u32) {
    fault::point("before it is said how an end sleeps");
    ring::announce::<RingMemory>(word, how);
}

/// Returns whether the peer last ran on another CPU than this thread, so that both may run at once. `None` and 0 stand
/// for an unknown CPU and give `false`.
#[inline]
pub(crate) fn is_elsewhere(peer_cpu: Option<&AtomicU32>) -> bool {
    let theirs = peer_cpu.map_or(0, |cpu| cpu.load(Ordering::Relaxed));
    theirs != 0 && theirs != os::current_cpu() + 1
}

/// Calls `ready` up to `times` times, with a pause after each `false`. Returns whether `ready` returned `true`.
#[inline]
fn looks(times: u32, pause: impl Fn(), ready: &mut impl FnMut() -> bool) -> bool {
    (0..times).any(|_| {
        let is_ready = ready();
        if !is_ready {
            pause();
        }
        is_ready
    })
}

/// Makes the first looks of a wait, if the peer last ran on another CPU. Returns whether `ready` returned `true`.
#[inline]
pub(crate) fn look_eagerly(peer_cpu: &AtomicU32, mut ready: impl FnMut() -> bool) -> bool {
    is_elsewhere(Some(peer_cpu)) && looks(EAGER, std::hint::spin_loop, &mut ready)
}

/// Spins until `ready` returns `true`, for at most `budget` and no longer than the deadline. Returns `false` if it did
/// not, and at once if the peer last ran on this CPU. An interruption ends it too.
fn spin_for(
    peer_cpu: Option<&AtomicU32>,
    budget: Duration,
    deadline: Deadline,
    interruption: Interruption<'_>,
    ready: &mut impl FnMut() -> bool,
) -> bool {
    if !is_elsewhere(peer_cpu) {
        return false;
    }
    // The clock is read after the first looks, so that an answer that comes soon does not wait for it.
    let mut end = None;
    if looks(EAGER, std::hint::spin_loop, ready) {
        return true;
    }
    loop {
        if looks(LOOKS, std::hint::spin_loop, ready) {
            return true;
        }
        let now = Instant::now();
        let limit = || now.checked_add(deadline.remaining(now).map_or(budget, |left| left.min(budget)));
        let end = *end.get_or_insert_with(limit);
        if end.is_some_and(|end| now >= end) || !is_elsewhere(peer_cpu) || interruption.has_come() {
            return false;
        }
    }
}

/// Spins as the options of an end say, before a sleep for something else than a message. Returns whether `ready`
/// returned `true`.
pub(crate) fn spin(
    peer_cpu: &AtomicU32,
    wait: Wait,
    budget: Duration,
    deadline: Deadline,
    interruption: Interruption<'_>,
    ready: &mut impl FnMut() -> bool,
) -> bool {
    match wait {
        Wait::Block => ready(),
        Wait::Adaptive => spin_for(Some(peer_cpu), budget, deadline, interruption, ready) || ready(),
        // The sleep that follows, on the channel, spins for as long as it takes.
        Wait::Spin => spin_for(Some(peer_cpu), Duration::from_millis(1), deadline, interruption, ready) || ready(),
    }
}

/// The parameters of a wait of one side of a channel for its peer.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    pub(crate) link: &'a Link,
    /// Which threads use the sleep word: those of this process only, or of other processes too.
    pub(crate) scope: Scope,
    /// Whether the other end is in transit, so that `link` is the link to its source.
    pub(crate) relayed: bool,
    /// The ring whose memory contains the sleep word; `direction` selects the word for receiving or sending.
    pub(crate) memory: &'a RingMemory,
    pub(crate) direction: Direction,
    /// The state by which another thread can interrupt the wait.
    pub(crate) interruption: Interruption<'a>,
    /// The word that contains the CPU on which the peer runs, plus 1, or 0 if unknown. `None` if there is no such word
    /// yet.
    pub(crate) peer_cpu: Option<&'a AtomicU32>,
    pub(crate) wait: Wait,
    pub(crate) spin: Duration,
    /// Whether the last sleep of this side was longer than [`SLICE`]. If so, the next one begins at the socket.
    pub(crate) long: &'a AtomicBool,
}

impl Waiter<'_> {
    /// Waits until `ready` returns `true`. Calls `ready` at every step, and `before_sleep` once before the first sleep.
    /// Fails at the deadline, at an interruption, and if the link goes down.
    pub(crate) fn until(
        &self,
        deadline: Deadline,
        mut ready: impl FnMut() -> bool,
        before_sleep: impl FnOnce(),
    ) -> Result<(), Error> {
        if ready() {
            return Ok(());
        }
        if deadline.is_now() {
            self.link.probe_if_due();
            return self.gone_or(Error::WouldBlock, ready);
        }
        let spun = match self.wait {
            Wait::Spin => return self.spin_on(deadline, ready),
            Wait::Adaptive => spin_for(self.peer_cpu, self.spin, deadline, self.interruption, &mut ready),
            Wait::Block => false,
        };
        if spun {
            return Ok(());
        }
        before_sleep();
        self.sleep(deadline, ready)
    }

    /// Returns whether the peer last ran on another CPU than this thread, so that both may run at once.
    #[inline]
    fn peer_is_elsewhere(&self) -> bool {
        is_elsewhere(self.peer_cpu)
    }

    fn spin_on(&self, deadline: Deadline, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        let mut begin = None;
        if looks(EAGER, std::hint::spin_loop, &mut ready) {
            return Ok(());
        }
        loop {
            let pause = if self.peer_is_elsewhere() { std::hint::spin_loop } else { std::thread::yield_now };
            if looks(LOOKS, pause, &mut ready) {
                return Ok(());
            }
            if begin.get_or_insert_with(Instant::now).elapsed() >= SLICE {
                self.link.probe_if_due();
            }
            if self.link.is_down() {
                return self.gone_or(Error::PeerClosed, ready);
            }
            if deadline.has_passed() {
                return Err(Error::TimedOut);
            }
            self.interruption.check()?;
        }
    }

    /// Returns `Ok` if `ready` returns `true`; what was published before the link went down still counts. Otherwise
    /// returns the link's error if the link is down, and `otherwise` if it is up.
    fn gone_or(&self, otherwise: Error, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        let down = self.link.is_down();
        match (ready(), down) {
            (true, _) => Ok(()),
            (false, true) => Err(self.link.reason()),
            (false, false) => Err(otherwise),
        }
    }

    /// Returns the bit for the sleep word that says that the other end is in transit, or 0. With the bit, the source
    /// wakes this side when it hands the other end over; this side then uses the link to the new holder.
    fn relayed(&self) -> u32 {
        if self.relayed { transfer_word::RELAYED } else { 0 }
    }

    /// Returns the sleep word of this side, in shared memory.
    fn word(&self) -> &AtomicU32 {
        word_of(self.memory, self.direction)
    }

    /// Writes into the sleep word how this side sleeps. The exchange is ordered before the look at the ring that must
    /// follow it.
    fn announce(&self, how: u32) {
        announce(self.word(), how);
    }

    fn sleep(&self, deadline: Deadline, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        let noted = self.interruption.note(self.direction, self.link, Some((self.memory, self.scope)));
        let outcome = if self.link.is_local() {
            self.sleep_on_word(deadline, None, &mut ready).map(|_| ())
        } else if self.long.load(Ordering::Relaxed) {
            let begin = Instant::now();
            let outcome = self.sleep_on_socket(deadline, &mut ready);
            self.long.store(begin.elapsed() >= SLICE, Ordering::Relaxed);
            outcome
        } else {
            match self.sleep_on_word(deadline, Some(SLICE), &mut ready) {
                Ok(true) => Ok(()),
                Ok(false) => {
                    self.long.store(true, Ordering::Relaxed);
                    self.sleep_on_socket(deadline, &mut ready)
                }
                // A kernel that refuses futexes still has the socket.
                Err(Error::System { .. }) => {
                    self.long.store(true, Ordering::Relaxed);
                    self.sleep_on_socket(deadline, &mut ready)
                }
                Err(error) => Err(error),
            }
        };
        match outcome {
            Ok(()) => self.link.woken(),
            Err(_) => self.announce(AWAKE),
        }
        drop(noted);
        outcome
    }

    /// Sleeps on the sleep word until `ready` returns `true`, and then returns `true`. Returns `false` when the time
    /// `slice` is over.
    ///
    /// # Errors
    /// [`Error::TimedOut`] at the deadline, [`Error::Interrupted`], [`Error::System`].
    fn sleep_on_word(
        &self,
        deadline: Deadline,
        slice: Option<Duration>,
        ready: &mut impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        let slice = slice.map(Deadline::after);
        let how = ON_WORD | self.relayed();
        loop {
            self.announce(how);
            if ready() {
                self.announce(AWAKE);
                return Ok(true);
            }
            self.interruption.check()?;
            let now = Instant::now();
            let limit = match (deadline.remaining(now), slice.and_then(|slice| slice.remaining(now))) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
            futex::wait(self.word(), how, self.scope, limit)?;
            if ready() {
                if self.word().load(Ordering::Relaxed) != AWAKE {
                    self.announce(AWAKE);
                }
                return Ok(true);
            }
            if deadline.has_passed() {
                return Err(Error::TimedOut);
            }
            if slice.is_some_and(Deadline::has_passed) {
                return Ok(false);
            }
            self.link.throttle(deadline);
        }
    }

    fn sleep_on_socket(&self, deadline: Deadline, ready: &mut impl FnMut() -> bool) -> Result<(), Error> {
        let how = ON_SOCKET | self.relayed();
        loop {
            self.announce(how);
            if ready() {
                break;
            }
            self.interruption.check()?;
            // A packet that comes while the word still says that this side sleeps is that of a waker that could not
            // send it at once.
            self.link.park(deadline, self.interruption, || self.word().load(Ordering::SeqCst) != how || ready())?;
            let down = self.link.is_down();
            if ready() {
                break;
            }
            if down {
                return Err(self.link.reason());
            }
            if deadline.has_passed() {
                return Err(Error::TimedOut);
            }
            self.link.throttle(deadline);
        }
        self.announce(AWAKE);
        Ok(())
    }
}
