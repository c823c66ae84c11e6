//! Waiting for the peer in three steps: spin while spinning pays, then sleep on a word for a short while, then sleep on
//! the link's socket without a limit.
//!
//! * **Spin** only while the peer was last seen on another CPU: on the same CPU the peer cannot go on while this thread
//!   spins. Then the thread yields once instead ([`before_sleep`]).
//! * **The word** is the cheapest sleep to wake from, but does not end when the peer dies. So a sleep on it is short.
//! * **The socket** ends the sleep when the peer dies, and costs nothing however long the sleep lasts.
//!
//! A sleeping thread writes into its sleep word how it sleeps, by an exchange, and looks once more. A waking thread
//! publishes by an atomic operation, looks at the word, and takes it by an exchange. Whatever the order, one of the two
//! sees the other. The peer can write anything into the word. A wrong value can wake the sleeping thread for nothing or
//! not wake it in time. But every wake-up looks at the ring again, and the peer's death ends the sleep in any case.

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
use crate::wake::{Direction, Wait, before_sleep, strict};

/// `AWAKE`: the value of a sleep word if no thread sleeps. A sleep word is the word in shared memory that shows whether
/// and how one side sleeps. Publishing a message then needs no system call.
pub(crate) const AWAKE: u32 = 0;
/// `ON_WORD`: the value of a sleep word if a thread sleeps on the word itself, as a futex.
pub(crate) const ON_WORD: u32 = 1;
/// `ON_SOCKET`: the value of a sleep word if a thread sleeps on the link's socket, so that waking the thread takes a
/// packet.
const ON_SOCKET: u32 = 2;

/// `ON_SET`: the low bits of a sleep word if no thread sleeps on this end, but the end is an armed member of a wait
/// set. The upper bits hold the member id, by which the other side notifies the member when it publishes.
const ON_SET: u32 = 3;
/// The mask of the bits of a sleep word for the kind of the sleep (one of the values `AWAKE` to `ON_SET`). The bit
/// [`transfer_word::RELAYED`] is not among them.
const KIND: u32 = 3;
/// The position of the lowest bit of the member id in a sleep word. The bits below leave room for more ways to sleep.
const NUMBER: u32 = 8;

/// The bit of a sleep word that a waking thread has taken and [given back](give_back). Only builds that [check for lost
/// wake-ups](strict) have the bit: the sleeping thread then knows that the word was taken.
const GIVEN_BACK: u32 = if strict::IS_ON { 8 } else { 0 };

/// Returns the value for the sleep word of an armed member of a wait set. `number` is the member id. `relayed` says
/// that the other end is in transit and that the member is armed on the link to the source.
pub(crate) fn on_set(number: u32, relayed: bool) -> u32 {
    ON_SET | if relayed { transfer_word::RELAYED } else { 0 } | number << NUMBER
}

/// The longest sleep on the sleep word. During the sleep this process does not notice the peer's death. A longer wait
/// goes on at the link's socket, and the next wait then begins at the socket.
pub(crate) const SLICE: Duration = Duration::from_millis(20);

/// The number of checks with which a wait begins, before the clock is read. Together they take less than a microsecond.
/// There is a pause after each check, although an answer is then seen half a pause later on average. A check of a cache
/// line that the other side is about to write takes the line away from the other side's CPU. The line then has to be
/// fetched back before the message can be committed, which costs more than leaving out the pause saves.
const EAGER: u32 = 32;

/// The number of checks between two reads of the clock while a thread spins. The checks take about a microsecond.
const LOOKS: u32 = 64;

/// Wakes the other side over `link`, after the caller has taken the value `how` from that side's sleep word `word`. If
/// the kernel refuses the packet, puts `how` back into the word. Returns `false` if `how` says that no thread sleeps,
/// and otherwise `true`.
#[inline]
pub(crate) fn wake(link: &Link, scope: Scope, word: &AtomicU32, how: u32) -> bool {
    how != AWAKE && wake_sleeper(link, scope, word, how)
}

/// Wakes the other side as [`wake`] does. The value `how` of the sleep word is not [`AWAKE`].
#[inline(never)]
fn wake_sleeper(link: &Link, scope: Scope, word: &AtomicU32, how: u32) -> bool {
    fault::point("before a sleeper is woken");
    match how & !(transfer_word::RELAYED | GIVEN_BACK) {
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
            strict::note_wake(word);
            if !futex::wake_one(word, scope) {
                link.probe();
            }
        }
    }
    true
}

/// Puts the taken value `how` back into the sleep word `word`, unless the word has changed since. The kernel refused
/// the packet, and the peer still sleeps. The next call that publishes tries again. The link also tries again, before
/// it sends anything else.
fn give_back(word: &AtomicU32, how: u32) {
    let _ = word.compare_exchange(AWAKE, how | GIVEN_BACK, Ordering::SeqCst, Ordering::Relaxed);
}

/// Records the kind of this side's sleep in `word`, a sleep word of this side: writes the value `how`, which is
/// [`AWAKE`] if no thread sleeps. The caller checks the ring once more after this.
pub(crate) fn announce(word: &AtomicU32, how: u32) {
    fault::point("before it is said how an end sleeps");
    ring::announce::<RingMemory>(word, how);
}

/// Returns whether the peer last ran on another CPU than this thread; if so, both may run at the same time. `peer_cpu`
/// holds the number of the peer's CPU plus 1. Returns `false` if the CPU is unknown (`None` or 0).
#[inline]
pub(crate) fn is_elsewhere(peer_cpu: Option<&AtomicU32>) -> bool {
    let theirs = peer_cpu.map_or(0, |cpu| cpu.load(Ordering::Relaxed));
    theirs != 0 && theirs != os::current_cpu() + 1
}

/// Calls `ready` until it returns `true`, at most `times` times, and calls `pause` after each `false`. Returns whether
/// `ready` returned `true`.
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

/// Makes the first checks of a wait: calls `ready` up to [`EAGER`] times, if the peer last ran on another CPU than this
/// thread. Returns whether `ready` returned `true`; `false` if it was not called.
#[inline]
pub(crate) fn look_eagerly(peer_cpu: &AtomicU32, mut ready: impl FnMut() -> bool) -> bool {
    is_elsewhere(Some(peer_cpu)) && looks(EAGER, std::hint::spin_loop, &mut ready)
}

/// Spins until `ready` returns `true`, and then returns `true`. Returns `false` once the time `budget` is over, at the
/// deadline, at an interruption, or as soon as the peer was last seen on this thread's CPU. `peer_cpu` is the word with
/// the number of the peer's CPU; with `None` the CPU is not checked.
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
    // The clock is read after the first looks, so that an early answer does not wait for the clock.
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

/// Spins as the wait strategy `wait` says, before a sleep for an event that is not a message. Returns whether `ready`
/// returned `true`. [`Wait::Block`] checks once; [`Wait::Adaptive`] spins for `budget`; [`Wait::Spin`] spins for at
/// most a millisecond.
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
        // The following sleep, on the channel, spins as long as needed.
        Wait::Spin => spin_for(Some(peer_cpu), Duration::from_millis(1), deadline, interruption, ready) || ready(),
    }
}

/// The parameters of a wait at one end of a channel, for a message or for room.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    pub(crate) link: &'a Link,
    /// The threads that use the sleep word: only threads of this process (`Private`), or also threads of other
    /// processes (`Shared`).
    pub(crate) scope: Scope,
    /// Whether the other end is in transit. If so, `link` is the link to the source of the transfer.
    pub(crate) relayed: bool,
    /// The ring with the sleep word of this wait in its control block. `direction` selects the word: there is one for
    /// receiving and one for sending.
    pub(crate) memory: &'a RingMemory,
    pub(crate) direction: Direction,
    /// The means by which another thread of this process can interrupt the wait.
    pub(crate) interruption: Interruption<'a>,
    /// The word in shared memory with the number of the CPU on which the peer runs, plus 1; 0 if unknown. `None` if the
    /// lane is not open.
    pub(crate) peer_cpu: Option<&'a AtomicU32>,
    pub(crate) wait: Wait,
    pub(crate) spin: Duration,
    /// Whether the last sleep of this end, in this direction, was longer than [`SLICE`]. If so, the next sleep begins
    /// at the socket.
    pub(crate) long: &'a AtomicBool,
}

impl Waiter<'_> {
    /// Waits until `ready` returns `true`: spins and sleeps as the wait strategy says. Calls `ready` at every step, and
    /// `before_sleep` once before the first sleep. Fails at the deadline (with [`Error::WouldBlock`] if it is
    /// [`Deadline::NOW`]), at an interruption, and if the link goes down.
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
            Wait::Spin => {
                let waited = self.spin_on(deadline, &mut ready);
                return self.look_at_the_end(waited, ready);
            }
            Wait::Adaptive => spin_for(self.peer_cpu, self.spin, deadline, self.interruption, &mut ready),
            Wait::Block => false,
        };
        if spun || (self.peer_may_be_here() && before_sleep::yield_once(deadline, &mut ready)) {
            return Ok(());
        }
        before_sleep();
        let waited = self.sleep(deadline, &mut ready);
        self.look_at_the_end(waited, ready)
    }

    /// Asks the kernel about the peer at the deadline of a wait, if that is due, and returns how the wait ends:
    /// `waited` unless the peer is dead. A program may make many short waits, in which no thread sleeps on the socket.
    fn look_at_the_end(&self, waited: Result<(), Error>, ready: impl FnMut() -> bool) -> Result<(), Error> {
        if waited != Err(Error::TimedOut) {
            return waited;
        }
        self.link.probe_if_due();
        self.gone_or(Error::TimedOut, ready)
    }

    /// Returns whether the peer last ran on another CPU than this thread; if so, both may run at once. Returns `false`
    /// if the peer's CPU is unknown.
    #[inline]
    fn peer_is_elsewhere(&self) -> bool {
        is_elsewhere(self.peer_cpu)
    }

    /// Returns whether the peer is another process, last seen on the CPU of this thread: if this thread yields, the
    /// peer may run, and answer.
    fn peer_may_be_here(&self) -> bool {
        !self.link.is_local() && !self.peer_is_elsewhere()
    }

    fn spin_on(&self, deadline: Deadline, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        let mut begin = None;
        if looks(EAGER, std::hint::spin_loop, &mut ready) {
            return Ok(());
        }
        loop {
            let found = if self.peer_is_elsewhere() {
                looks(LOOKS, std::hint::spin_loop, &mut ready)
            } else {
                // On a busy machine a thread that yields may run again only after many milliseconds. So everything that
                // ends the wait is checked after each yield.
                let is_over = || deadline.has_passed() || self.interruption.has_come() || self.link.is_down();
                looks(LOOKS, std::thread::yield_now, &mut || ready() || is_over()) && ready()
            };
            if found {
                return Ok(());
            }
            if begin.get_or_insert_with(Instant::now).elapsed() >= SLICE {
                self.link.probe_if_due();
                os::process::held::let_through();
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

    /// Decides how a wait ends. Returns `Ok` if `ready` returns `true`, because messages published before the link went
    /// down still count. Otherwise returns the link's error if the link is down, and the error `otherwise` if the link
    /// is up.
    fn gone_or(&self, otherwise: Error, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        let down = self.link.is_down();
        match (ready(), down) {
            (true, _) => Ok(()),
            (false, true) => Err(self.link.reason()),
            (false, false) => Err(otherwise),
        }
    }

    /// Returns the bit for the sleep word that says that the other end is in transit; 0 if the other end is not. With
    /// the bit, the source wakes this side when it hands the other end over. This side then uses the link to the
    /// destination.
    fn relayed(&self) -> u32 {
        if self.relayed { transfer_word::RELAYED } else { 0 }
    }

    /// Returns the sleep word of this wait, in shared memory: this end's word for the wait's direction.
    fn word(&self) -> &AtomicU32 {
        word_of(self.memory, self.direction)
    }

    /// Records in the sleep word of this wait how this side sleeps: writes the value `how`. The write is ordered before
    /// the check of the ring that must follow it.
    fn announce(&self, how: u32) {
        announce(self.word(), how);
    }

    /// Returns whether the event of the wait is there: the peer has published something, or a thread interrupts the
    /// wait. `ready` is the condition of the wait.
    fn has_event(&self, ready: &mut impl FnMut() -> bool) -> bool {
        ready() || self.interruption.ended().is_some()
    }

    /// Returns whether the event of the wait is there, but the thread that causes the event still has to take this
    /// thread from its sleep word. `how` is the value that this thread has written into the word.
    fn is_not_taken(&self, how: u32, ready: &mut impl FnMut() -> bool) -> bool {
        self.has_event(ready) && self.word().load(Ordering::SeqCst) == how && !self.link.may_be_silent()
    }

    /// Returns whether the event of the wait is there, and another thread has taken this thread from its sleep word,
    /// but does not wake this thread yet.
    fn is_not_woken(&self, ready: &mut impl FnMut() -> bool) -> bool {
        self.has_event(ready) && self.word().load(Ordering::SeqCst) == AWAKE && !self.link.may_be_silent()
    }

    /// Returns whether the event of the wait is there, and the peer has taken this thread from its sleep word, but no
    /// packet has come since this process had received `packets` packets.
    fn has_no_packet(&self, how: u32, packets: usize, ready: &mut impl FnMut() -> bool) -> bool {
        ready()
            && [AWAKE, how | GIVEN_BACK].contains(&self.word().load(Ordering::SeqCst))
            && self.link.owes_packet(packets)
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
            Err(_) => {
                fault::point("after a sleep has failed");
                self.announce(AWAKE);
            }
        }
        drop(noted);
        outcome
    }

    /// Sleeps on the sleep word until `ready` returns `true`, and then returns `true`. Returns `false` when the time
    /// `slice` is over; without a `slice` sleeps until the deadline.
    ///
    /// # Errors
    /// [`Error::TimedOut`] at the deadline, [`Error::Interrupted`] if another thread interrupts the wait,
    /// [`Error::System`] if the kernel refuses the futex.
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
            strict::expect_wake("on a sleep word", || self.is_not_taken(how, ready) || self.is_not_woken(ready));
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
            let packets = self.link.packets_received();
            self.announce(how);
            if ready() {
                break;
            }
            self.interruption.check()?;
            // If a packet arrives while the word still shows a sleep, it is a late wake packet: the waking thread could
            // not send it at once.
            self.link.park(deadline, self.interruption, || self.word().load(Ordering::SeqCst) != how || ready())?;
            strict::expect_wake("on a socket, and the sleep word is not taken", || self.is_not_taken(how, ready));
            strict::expect_wake("on a socket, and no packet comes", || self.has_no_packet(how, packets, ready));
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
