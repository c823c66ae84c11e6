//! Ending the waits of an end from another thread. How a thread is woken is in [`crate::wake::interrupt`].

use std::fmt;
use std::sync::{Arc, Weak};

use super::{Channel, End};
use crate::wake::interrupt::{Interruption, Interrupts};

/// Ends the waits of other threads on an end of a channel or of a data pipe: see [`Channel::interrupter`].
#[derive(Clone, Debug)]
pub struct Interrupter {
    end: Weak<End>,
    /// What is locked beside it.
    pipe: Option<Weak<dyn Rouse>>,
}

/// Has a lock of its own, besides those of its end.
pub(crate) trait Rouse: fmt::Debug + Send + Sync {
    /// Has those that wait for the lock look whether they were interrupted.
    fn rouse(&self);
}

impl Channel {
    /// Something by which another thread can end the waits of this end: for who wants to be rid of an end on which others
    /// block. It does not keep the end open.
    ///
    /// It is about waits that begin after this was called for the first time. A long sleep of such an end uses a
    /// descriptor, of which the process has one for all of them.
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
        self.end.counts.rare().interrupts.get_or_init(Box::default);
        Interrupter { end: Arc::downgrade(&self.end), pipe: None }
    }
}

impl Interrupter {
    /// The same for an end of a pipe, beside which this channel is.
    pub(crate) fn of_pipe(self, pipe: Weak<dyn Rouse>) -> Self {
        Self { pipe: Some(pipe), ..self }
    }
}

impl Interrupter {
    /// From now on no call on the end waits: those that do fail at once with [`Error::Interrupted`](crate::Error::Interrupted),
    /// and so does each later one that would have to. What can be done without waiting is done as before, and the other end
    /// notices nothing. This is for good unless it is [taken back](Interrupter::resume), also where the end is sent to within this process.
    ///
    /// Waits of wait sets and tasks are no waits of the end. Does not block.
    pub fn interrupt(&self) {
        if let Some(end) = self.end.upgrade()
            && !end.born.is_elsewhere()
            && let Some(interrupts) = end.interrupts()
        {
            interrupts.raise();
            end.tx.rouse();
            end.rx.rouse();
            if let Some(pipe) = self.pipe.as_ref().and_then(Weak::upgrade) {
                pipe.rouse();
            }
        }
    }
}

impl Interrupter {
    /// Takes an interruption back: from now on calls on the end wait again. One that waited before may have noticed nothing, if
    /// this comes soon after [`Interrupter::interrupt`]; who needs to know that all have returned waits for that first.
    ///
    /// For who has others let go of an end for a moment, to do something with it that may fail.
    pub fn resume(&self) {
        if let Some(end) = self.end.upgrade()
            && let Some(interrupts) = end.interrupts()
        {
            interrupts.lower();
        }
    }
}

impl End {
    /// What may end a wait that begins now.
    pub(crate) fn interruption(&self) -> Interruption<'_> {
        Interruption::by(self.interrupts())
    }

    fn interrupts(&self) -> Option<&Interrupts> {
        Some(self.counts.rare.get()?.interrupts.get()?)
    }
}
