//! Interrupting the waits of other threads on an end.
//!
//! A waiting thread looks only at the ring and the socket, to which the peer writes. To interrupt the wait, another
//! thread of the same process raises a flag. The waiting thread checks the flag each time between recording its sleep
//! and sleeping. The thread that raises the flag wakes the waiting thread from each of the three kinds of sleep:
//!
//! * Sleep on the sleep **word**: the word is set to *awake*. So a sleep that is about to begin does not begin, and a
//!   sleeping thread is woken.
//! * Sleep as **leader** in `poll`: the leader also polls the **wake fd** of the process. A wake fd is written to once
//!   and then replaced by a new wake fd. So the old wake fd stays readable for the leaders of all links, and no leader
//!   has to confirm.
//! * Sleep as **follower**: the followers are woken.
//!
//! Before a thread sleeps, the thread notes the place of its sleep under a lock, and takes the lock again after waking.
//! So no other thread touches a word on which the end does not sleep: a wait set may own such a word.
//!
//! An end has such state once it has an interrupter, or once a thread has waited for its other end within this process.
//! Other ends take no such lock.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::error::Error;
use crate::os::epoll;
use crate::os::fork::PerProcess;
use crate::os::futex::{self, Scope};
use crate::ring::{self, Memory};
use crate::shm::RingMemory;
use crate::signals;
use crate::sync::unpoisoned;
use crate::wake::{Direction, strict};

/// The state of one end by which other threads of the process interrupt the waits on the end.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    /// Whether the waits on this end are interrupted: 0 if not, any other value if so.
    raised: AtomicU32,
    /// Whether the next wait for a message is interrupted once: 0 if not, any other value if so.
    nudged: AtomicU32,
    /// Whether the waits on this end have ended for good, with the error in `error`: 0 if not, any other value if so.
    ended: AtomicU32,
    error: OnceLock<Error>,
    /// Where threads sleep that wait on the end: one entry for each [`Direction`], `None` if no thread sleeps for the
    /// direction.
    asleep: Mutex<[Option<Asleep>; 2]>,
}

/// The part of a link needed for interruptions: threads may sleep on the link's socket, as leader or as followers.
pub(crate) trait Sleepers: Send + Sync {
    /// Wakes the followers: the threads that wait while another thread, the leader, receives from the socket.
    fn wake_followers(&self);

    /// Returns a weak reference to the link, on whose socket a thread may sleep. Returns `None` for the local link,
    /// which has no socket.
    fn weak_if_socket(&self) -> Option<Weak<dyn Sleepers>>;
}

#[derive(Debug)]
struct Asleep {
    link: Option<Weak<dyn Sleepers>>,
    word: Option<(RingMemory, Scope)>,
}

/// Returns the sleep word of an end for waits in `direction`: for a message (receiving) or for room (sending). The word
/// is in `memory`, the memory of a ring of that end.
pub(crate) fn word_of(memory: &RingMemory, direction: Direction) -> &AtomicU32 {
    match direction {
        Direction::Receiving => memory.sleeping(),
        Direction::Sending => memory.waiting(),
    }
}

impl Interrupts {
    /// Interrupts all waits on the end, those in progress and all later ones, until [`Interrupts::lower`].
    pub(crate) fn raise(&self) {
        self.raised.store(1, Ordering::SeqCst);
        self.wake(Direction::Receiving, &self.raised);
        self.wake(Direction::Sending, &self.raised);
    }

    /// Interrupts the wait for a message on the end, the one in progress or else the next one, until
    /// [`Interrupts::take_nudge`]. Only a call end nudges, and only a wait with [`Interruption::and_nudges`] heeds it.
    pub(crate) fn nudge(&self) {
        self.nudged.store(1, Ordering::SeqCst);
        self.wake(Direction::Receiving, &self.nudged);
    }

    /// Ends all waits on the end with `error`, those in progress and all later ones. The error of the first call stays.
    pub(crate) fn end(&self, error: Error) {
        let _ = self.error.set(error);
        self.ended.store(1, Ordering::SeqCst);
        self.wake(Direction::Receiving, &self.ended);
        self.wake(Direction::Sending, &self.ended);
    }

    /// Returns whether [`Interrupts::end`] was called.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended().is_some()
    }

    /// Returns the error of [`Interrupts::end`]; `None` if that function was not called.
    fn ended(&self) -> Option<Error> {
        if self.ended.load(Ordering::SeqCst) == 0 { None } else { self.error.get().copied() }
    }

    /// Ends the interruption by [`Interrupts::nudge`]. Returns whether there was one.
    pub(crate) fn take_nudge(&self) -> bool {
        self.is_nudged() && self.nudged.swap(0, Ordering::SeqCst) != 0
    }

    fn is_nudged(&self) -> bool {
        self.nudged.load(Ordering::SeqCst) != 0
    }

    /// Wakes the thread that waits on the end in `direction`, if a thread sleeps. `reason` is the word that a waiting
    /// thread checks before it sleeps, and that says that the thread must not sleep.
    fn wake(&self, direction: Direction, reason: &AtomicU32) {
        let asleep = unpoisoned(&self.asleep);
        let Some(Asleep { link, word }) = &asleep[direction as usize] else { return };
        if let Some((memory, scope)) = word
            && ring::wake_for::<RingMemory>(reason, word_of(memory, direction)) != 0
        {
            strict::note_wake(word_of(memory, direction));
            // Wakes all threads that sleep on the word: another process that has the memory may sleep on the word
            // too, in order to be woken in place of the waiting thread.
            futex::wake_all(word_of(memory, direction), *scope);
        }
        if let Some(link) = link.as_ref().and_then(Weak::upgrade) {
            signal_wake_fd();
            link.wake_followers();
        }
    }

    /// Ends the interruption of waits on the end: later calls wait again.
    pub(crate) fn lower(&self) {
        self.raised.store(0, Ordering::SeqCst);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst) != 0
    }
}

/// The causes that can interrupt a wait: another thread of this process, if the end has an interrupter, and a signal,
/// if the waiting thread has a [guard](signals::Guard).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interruption<'a> {
    interrupts: Option<&'a Interrupts>,
    also: Also,
}

/// The causes that can interrupt a wait besides [`Interrupts::raise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Also {
    Nothing,
    Signals,
    /// A signal, or [`Interrupts::nudge`].
    SignalsAndNudges,
}

impl<'a> Interruption<'a> {
    /// The value for a wait that nothing can interrupt.
    pub(crate) const NONE: Self = Self { interrupts: None, also: Also::Nothing };

    /// The value for a wait that only a signal can interrupt.
    pub(crate) const SIGNALS: Self = Self { interrupts: None, also: Also::Signals };

    /// Returns the value for a wait that a signal can interrupt, and another thread through `interrupts`, if any: the
    /// interrupts of the end on which the thread waits.
    pub(crate) fn by(interrupts: Option<&'a Interrupts>) -> Self {
        Self { interrupts, also: Also::Signals }
    }

    /// Returns this value for a wait for a message, which [`Interrupts::nudge`] can interrupt, too.
    pub(crate) fn and_nudges(self) -> Self {
        Self { also: Also::SignalsAndNudges, ..self }
    }

    #[inline]
    pub(crate) fn has_come(self) -> bool {
        self.ended().is_some() || (self.also != Also::Nothing && signals::has_come())
    }

    /// Returns the error with which another thread of this process has ended the wait; `None` if none has.
    pub(crate) fn ended(self) -> Option<Error> {
        let interrupts = self.interrupts?;
        let heeds_nudges = self.also == Also::SignalsAndNudges;
        let is_raised = interrupts.is_raised() || (heeds_nudges && interrupts.is_nudged());
        interrupts.ended().or(is_raised.then_some(Error::Interrupted))
    }

    /// Checks whether the wait has been interrupted. Returns `Ok` if the wait was not interrupted.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if another thread has interrupted the wait; the error of [`Interrupts::end`] if another
    /// thread has ended all waits on the end; [`Error::Signalled`] if a signal has come, once for each signal.
    pub(crate) fn check(self) -> Result<(), Error> {
        if let Some(error) = self.ended() {
            return Err(error);
        }
        if self.also == Also::Nothing { Ok(()) } else { signals::check() }
    }

    /// Notes where a thread may sleep while it waits on the end in `direction`: on the socket of `link`, and on the
    /// sleep word in the memory of `word`. Dropping the returned value removes the note. The caller checks after this
    /// call, and not before, whether the wait has been interrupted. Returns `None` for a wait that no other thread can
    /// interrupt.
    pub(crate) fn note(
        self,
        direction: Direction,
        link: &dyn Sleepers,
        word: Option<(&RingMemory, Scope)>,
    ) -> Option<Noted<'a>> {
        let interrupts = self.interrupts?;
        let word = word.map(|(memory, scope)| (memory.clone(), scope));
        unpoisoned(&interrupts.asleep)[direction as usize] = Some(Asleep { link: link.weak_if_socket(), word });
        Some(Noted { interrupts, direction })
    }

    /// Returns the wake fd of this process, which becomes readable at the next interruption of any end. Returns `None`
    /// for a wait that no other thread can interrupt. The caller checks after this call, and not before, whether the
    /// wait has been interrupted.
    pub(crate) fn wake_fd(self) -> Option<Result<Arc<OwnedFd>, Error>> {
        self.interrupts.map(|_| wake_fd())
    }
}

/// The note where a thread that waits on an end may sleep. Dropping this `Noted` removes the note.
#[must_use]
pub(crate) struct Noted<'a> {
    interrupts: &'a Interrupts,
    direction: Direction,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        unpoisoned(&self.interrupts.asleep)[self.direction as usize] = None;
    }
}

/// The wake fd (an eventfd) to which the next interruption writes; all links share the wake fd. It is open as long as a
/// thread sleeps with it, and replaced after each interruption.
static WAKE_FD: PerProcess<Mutex<Weak<OwnedFd>>> = PerProcess::new(Mutex::default);

fn wake_fd() -> Result<Arc<OwnedFd>, Error> {
    let mut place = unpoisoned(WAKE_FD.get());
    if let Some(wake_fd) = place.upgrade() {
        return Ok(wake_fd);
    }
    let wake_fd = Arc::new(epoll::wake_fd()?);
    *place = Arc::downgrade(&wake_fd);
    Ok(wake_fd)
}

/// Writes to the wake fd. The write wakes the leaders (the threads that receive) of all links, if their waits can be
/// interrupted. A leader whose wait is not interrupted sleeps again.
fn signal_wake_fd() {
    let signalled = std::mem::take(&mut *unpoisoned(WAKE_FD.get()));
    if let Some(wake_fd) = signalled.upgrade() {
        epoll::signal(&wake_fd);
    }
}
