//! Waiting for the peer, in three steps: spin while it pays, then sleep on a word for a short while, then sleep on
//! the link's socket for as long as it takes.
//!
//! * **Spin** only while the peer was last seen on another CPU: on the same one it cannot go on while we spin.
//! * **The word** is cheapest to wake from, but says nothing when the peer dies, so the sleep on it is short.
//! * **The socket** ends the sleep when the peer dies, and costs nothing however long it takes.
//!
//! A sleeper puts how it sleeps into its word by an exchange and looks once more; the waker publishes by an atomic
//! operation, looks at the word, and takes it by an exchange. Whatever the order, one of them sees the other.
//! The peer can write anything into the word: that can wake the sleeper for nothing or not wake it in time, but
//! every wake-up looks at the ring again, and the peer's death ends the sleep in any case.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::Error;
use crate::link::Link;
use crate::os::futex::{self, Scope};
use crate::os::{self, fault};
use crate::ring::{self, hand};
use crate::shm::RingMemory;
use crate::wake::interrupt::{Interruption, word_of};
use crate::wake::{Direction, Wait};

/// Awake: publishing needs no system call.
pub(crate) const AWAKE: u32 = 0;
/// Asleep on the word.
pub(crate) const ON_WORD: u32 = 1;
/// Asleep on the socket.
const ON_SOCKET: u32 = 2;

/// Not asleep itself, but a member of a wait set: its number is in the upper bits. Whoever publishes rings for it.
const ON_SET: u32 = 3;
/// The bits that say how it sleeps, [`hand::VIA`] aside.
const KIND: u32 = 3;
/// Where the number of a member begins; below it is room for more ways to sleep.
const NUMBER: u32 = 8;

/// What the word of a member of a wait set says. With `via_mover` it listens on the link to the mover of the other end.
pub(crate) fn on_set(number: u32, via_mover: bool) -> u32 {
    ON_SET | if via_mover { hand::VIA } else { 0 } | number << NUMBER
}

/// How long a sleep on the word lasts. A death in it is noticed at its end; a sleep that outlasts it goes on at the
/// socket, and so does the next one from the start.
pub(crate) const SLICE: Duration = Duration::from_millis(20);

/// First looks of a wait, under a microsecond. There is a pause behind each, although an answer is seen later for it, by half
/// of one on average: who looks at a line while the other side is about to write it takes it away from there, and it has to
/// be fetched back before the message can be committed. That costs more than the pause saves.
const EAGER: u32 = 32;

/// Looks between two looks at the clock while spinning, about a microsecond.
const LOOKS: u32 = 64;

/// Wakes the peer that slept in this way.
#[inline]
pub(crate) fn wake(link: &Link, scope: Scope, word: &AtomicU32, how: u32) -> bool {
    if how != AWAKE {
        fault::point("before a sleeper is woken");
    }
    match how & !hand::VIA {
        AWAKE => return false,
        ON_SOCKET => {
            if !link.wake() {
                give_back(word, how);
            }
        }
        member if member & KIND == ON_SET => {
            if !link.ring(how >> NUMBER) {
                give_back(word, how);
            }
        }
        // Whatever else stands there is the peer's doing, and the word is where a sleeper may be. If nobody is there, it
        // was just about to sleep, or it died in its sleep.
        _ => {
            if !futex::wake_one(word, scope) {
                link.probe();
            }
        }
    }
    true
}

/// Not even a packet could be sent, so that the peer still sleeps: the next to publish tries again. The link tries again, too,
/// before anything else is sent over it.
fn give_back(word: &AtomicU32, how: u32) {
    let _ = word.compare_exchange(AWAKE, how, Ordering::SeqCst, Ordering::Relaxed);
}

/// Says in a word how we sleep; 0 that we do not. The caller looks once more after this.
pub(crate) fn announce(word: &AtomicU32, how: u32) {
    fault::point("before it is said how an end sleeps");
    ring::announce::<RingMemory>(word, how);
}

/// Whether the side that runs there may be running while we are.
#[inline]
pub(crate) fn is_elsewhere(peer_cpu: Option<&AtomicU32>) -> bool {
    let theirs = peer_cpu.map_or(0, |cpu| cpu.load(Ordering::Relaxed));
    theirs != 0 && theirs != os::current_cpu() + 1
}

/// So many looks, and a pause behind each that finds nothing. True when `ready`.
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

/// The first looks of a wait, if the side that runs there may be running while we are. True when `ready`.
#[inline]
pub(crate) fn look_eagerly(peer_cpu: &AtomicU32, mut ready: impl FnMut() -> bool) -> bool {
    is_elsewhere(Some(peer_cpu)) && looks(EAGER, std::hint::spin_loop, &mut ready)
}

/// True when `ready`; false when it did not pay or the time was up.
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
    // The clock is read after the first looks: an answer that comes soon does not wait for it.
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

/// Spins as an end that waits so does before it sleeps, for something else than a message. True when `ready`.
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
        // The sleep that follows spins as long as it takes, on the channel.
        Wait::Spin => spin_for(Some(peer_cpu), Duration::from_millis(1), deadline, interruption, ready) || ready(),
    }
}

/// One side's way of waiting.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    pub(crate) link: &'a Link,
    /// Who else knows our word.
    pub(crate) scope: Scope,
    /// Whether the other end is still on its way, and the link is its mover's.
    pub(crate) via_mover: bool,
    /// Where our word is, and which of the two.
    pub(crate) memory: &'a RingMemory,
    pub(crate) direction: Direction,
    /// What ends the wait besides.
    pub(crate) interruption: Interruption<'a>,
    /// Where the peer says on which CPU it runs, plus 1.
    pub(crate) peer_cpu: Option<&'a AtomicU32>,
    pub(crate) wait: Wait,
    pub(crate) spin: Duration,
    /// Whether the last sleep was a long one.
    pub(crate) long: &'a AtomicBool,
}

impl Waiter<'_> {
    /// Waits until `ready`, which is called at every step; `before_sleep` is called once, before the first sleep.
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

    /// Whether the peer may be running while we are.
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

    /// The link may be down; what was published before that still counts.
    fn gone_or(&self, otherwise: Error, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        let down = self.link.is_down();
        match (ready(), down) {
            (true, _) => Ok(()),
            (false, true) => Err(self.link.reason()),
            (false, false) => Err(otherwise),
        }
    }

    /// How we sleep while the other end is on its way: so that its mover wakes us when it is handed over, and we look at
    /// the new holder's link from then on.
    fn via(&self) -> u32 {
        if self.via_mover { hand::VIA } else { 0 }
    }

    /// Our word, in shared memory.
    fn word(&self) -> &AtomicU32 {
        word_of(self.memory, self.direction)
    }

    /// Says how we sleep. The exchange is in order with the look at the ring that must follow it.
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

    /// True when ready; false when the slice is over.
    fn sleep_on_word(
        &self,
        deadline: Deadline,
        slice: Option<Duration>,
        ready: &mut impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        let slice = slice.map(Deadline::after);
        let how = ON_WORD | self.via();
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
            self.link.endure(deadline);
        }
    }

    fn sleep_on_socket(&self, deadline: Deadline, ready: &mut impl FnMut() -> bool) -> Result<(), Error> {
        let how = ON_SOCKET | self.via();
        loop {
            self.announce(how);
            if ready() {
                break;
            }
            self.interruption.check()?;
            // A packet that comes while the word still says that we sleep is that of a waker who could not send it at once.
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
            self.link.endure(deadline);
        }
        self.announce(AWAKE);
        Ok(())
    }
}
