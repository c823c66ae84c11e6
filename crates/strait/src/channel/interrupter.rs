//! Ending the waits of an end or a listener from another thread. [`crate::wake::interrupt`] says how a thread that
//! waits on an end is woken.

use std::fmt;
use std::sync::{Arc, Weak};

use super::{Channel, End};
use crate::error::Error;
use crate::link::Link;
use crate::wake::interrupt::{Interruption, Interrupts};

/// Ends the waits of other threads on an end of a channel or of a data pipe ([`Channel::interrupter`]), or on a
/// listener ([`Listener::interrupter`](crate::Listener::interrupter)).
///
/// Example: [a wait that is ended](crate::Channel::interrupter).
#[derive(Clone, Debug)]
pub struct Interrupter(Target);

/// The object whose waits an [`Interrupter`] ends.
#[derive(Clone, Debug)]
enum Target {
    End {
        end: Weak<End>,
        /// The data-pipe end to which the channel end belongs; `None` for a plain channel. Threads may also wait for
        /// the lock of a data-pipe end, and an interrupt wakes these threads too.
        pipe: Option<Weak<dyn WakeWaiters>>,
    },
    /// An object of a layer above the channels.
    Other(Weak<dyn Interruptible>),
}

/// An object of a layer above the channels, such as a listener, whose waits an [`Interrupter`] ends.
pub(crate) trait Interruptible: fmt::Debug + Send + Sync {
    /// Ends all waits on the object, until [`resume`](Self::resume): those in progress and all later ones. Does not
    /// block. Does nothing in a child of `fork`.
    fn interrupt(&self);

    /// Lets calls on the object wait again. Does nothing in a child of `fork`.
    fn resume(&self);
}

/// An object, such as a data-pipe end, with its own lock besides the two locks of its channel end.
pub(crate) trait WakeWaiters: fmt::Debug + Send + Sync {
    /// Wakes the threads waiting for the object's own lock; each thread then checks whether its wait was interrupted.
    fn wake_waiters(&self);
}

impl Channel {
    /// Returns an object for ending the waits on this end from another thread: to get rid of an end on which other
    /// threads block. The object does not keep the end open.
    ///
    /// An interrupter ends only waits that begin after the first call of this function on the end. Long sleeps on such
    /// an end need one more descriptor, shared by all such ends of the process, and open only as long as one of their
    /// threads sleeps.
    ///
    /// ```
    /// let (a, b) = strait::Channel::pair()?;
    /// let interrupter = b.interrupter();
    /// let receiver = std::thread::spawn(move || {
    ///     while b.recv()?.bytes() != b"done" {}
    ///     Ok(())
    /// });
    /// interrupter.interrupt();
    /// assert_eq!(receiver.join().unwrap(), Err(strait::Error::Interrupted));
    /// # drop(a);
    /// # Ok::<(), strait::Error>(())
    /// ```
    pub fn interrupter(&self) -> Interrupter {
        self.make_interruptible();
        Interrupter(Target::End { end: Arc::downgrade(&self.end), pipe: None })
    }
}

impl Channel {
    /// Makes the waits on this end that begin from now on interruptible by other threads.
    pub(crate) fn make_interruptible(&self) {
        self.end.make_interruptible();
    }

    /// Makes the receiving thread of this end return from its wait for a message with
    /// [`Error::Interrupted`](crate::Error::Interrupted): the wait in progress, or else the next one. The end must have
    /// been [made interruptible](Self::make_interruptible) before.
    pub(crate) fn nudge_receiver(&self) {
        if let Some(interrupts) = self.end.interrupts() {
            interrupts.nudge();
        }
    }

    /// Takes the nudge of [`nudge_receiver`](Self::nudge_receiver) back, so that the receiving thread can wait again.
    /// Returns whether there was a nudge.
    pub(crate) fn take_nudge(&self) -> bool {
        self.end.interrupts().is_some_and(Interrupts::take_nudge)
    }
}

impl Interrupter {
    /// Returns the interrupter of `object`.
    pub(crate) fn of(object: Weak<dyn Interruptible>) -> Self {
        Self(Target::Other(object))
    }

    /// Returns this interrupter, extended to also wake the threads waiting for the lock of the data-pipe end `pipe`.
    pub(crate) fn of_pipe(self, pipe: Weak<dyn WakeWaiters>) -> Self {
        match self.0 {
            Target::End { end, .. } => Self(Target::End { end, pipe: Some(pipe) }),
            other => Self(other),
        }
    }
}

impl Interrupter {
    /// Ends all waits on the end or listener of this interrupter, until [`Interrupter::resume`]. A waiting call fails
    /// at once with [`Error::Interrupted`](crate::Error::Interrupted), and so does each later call that would have to
    /// wait. Calls that need not wait work as before, and the other end notices nothing. The interruption also lasts
    /// when the end is sent within this process.
    ///
    /// Wait sets and tasks that wait for the end or listener are not interrupted. Does not block.
    pub fn interrupt(&self) {
        let (end, pipe) = match &self.0 {
            Target::Other(object) => return object.upgrade().iter().for_each(|object| object.interrupt()),
            Target::End { end, pipe } => (end, pipe),
        };
        if let Some(end) = end.upgrade()
            && !end.born.is_elsewhere()
            && let Some(interrupts) = end.interrupts()
        {
            interrupts.raise();
            end.tx.wake_waiters();
            end.rx.wake_waiters();
            if let Some(pipe) = pipe.as_ref().and_then(Weak::upgrade) {
                pipe.wake_waiters();
            }
        }
    }
}

impl Interrupter {
    /// Takes an interruption back: from now on calls on the end or listener wait again. If this call follows soon after
    /// [`Interrupter::interrupt`], a waiting call may not notice the interruption, and goes on waiting. If all waiting
    /// calls must return, resume only after their return.
    ///
    /// A program can interrupt the waits of other threads before an operation that needs the end alone. If the
    /// operation fails, this call lets the other threads wait again.
    pub fn resume(&self) {
        match &self.0 {
            Target::Other(object) => object.upgrade().iter().for_each(|object| object.resume()),
            Target::End { end, .. } => {
                if let Some(end) = end.upgrade()
                    && let Some(interrupts) = end.interrupts()
                {
                    interrupts.lower();
                }
            }
        }
    }
}

impl End {
    /// Returns the [`Interruption`] by which a wait that begins now can check whether [`Interrupter::interrupt`] was
    /// called for this end. If this end has no interrupter yet, an interrupter created later does not end the wait.
    pub(crate) fn interruption(&self) -> Interruption<'_> {
        Interruption::by(self.interrupts())
    }

    /// Returns the [`Interruption`] of a wait over `link` that begins now. If the other end is in this process, another
    /// thread can always end the wait by [`End::break_off`].
    pub(super) fn interruption_within(&self, link: &Link) -> Interruption<'_> {
        if link.is_local() {
            self.make_interruptible();
        }
        self.interruption()
    }

    /// Ends the waits on this end with `error`, as far as they are interruptible: those in progress and all later ones.
    pub(super) fn end_waits(&self, error: Error) {
        self.make_interruptible().end(error);
        self.tx.wake_waiters();
        self.rx.wake_waiters();
    }

    /// Makes the waits on this end that begin from now on interruptible by other threads.
    fn make_interruptible(&self) -> &Interrupts {
        self.counts.cold().interrupts.get_or_init(Box::default)
    }

    /// Returns the [`Interruption`] of a wait for a message, which [`Channel::nudge_receiver`] can end, too.
    pub(crate) fn recv_interruption(&self) -> Interruption<'_> {
        self.interruption().and_nudges()
    }

    pub(in crate::channel) fn interrupts(&self) -> Option<&Interrupts> {
        Some(self.counts.cold.get()?.interrupts.get()?)
    }
}
