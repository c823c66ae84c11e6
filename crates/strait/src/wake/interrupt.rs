//! Ending the waits of other threads on an end.
//!
//! A thread that waits sees nothing but the ring and the socket, which are the peer's. What another thread of this process
//! wants of it is a flag, which it looks at whenever it has said how it sleeps and before it does; and whoever raises the
//! flag wakes it from each of the three sleeps that there are:
//!
//! * on the **word**: it is put to *awake*, so that a sleep which is about to begin does not, and who sleeps is woken;
//! * as **leader** in `poll`: it polls the process's **bell** as well. A bell is rung once and then thrown away. So it stays
//!   readable for all who poll it, which are the leaders of all links, and nobody has to say that he has heard it;
//! * as **follower**: it is notified.
//!
//! Where it sleeps it notes before, under a lock which it takes again when it is awake. So nobody touches a word on which
//! the end does not sleep, and which may say that it is in a wait set.
//!
//! All of this is done only for ends of which somebody has an interrupter.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::error::Error;
use crate::link::Link;
use crate::os::epoll;
use crate::os::fork::PerProcess;
use crate::os::futex::{self, Scope};
use crate::ring::{self, Memory};
use crate::shm::RingMemory;
use crate::sync::unpoisoned;
use crate::wake::Direction;

/// Of an end, for those who may be interrupted.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    /// Anything but 0: they are.
    raised: AtomicU32,
    /// Where the thread sleeps that waits to receive, and the one that waits to send.
    asleep: Mutex<[Option<Asleep>; 2]>,
}

#[derive(Debug)]
struct Asleep {
    link: Weak<Link>,
    word: Option<(RingMemory, Scope)>,
}

/// The word in which the end that waits in this direction says how it sleeps.
pub(crate) fn word_of(memory: &RingMemory, direction: Direction) -> &AtomicU32 {
    match direction {
        Direction::Receiving => memory.sleeping(),
        Direction::Sending => memory.waiting(),
    }
}

impl Interrupts {
    /// Ends the waits that are under way, and from now on all others.
    pub(crate) fn raise(&self) {
        self.raised.store(1, Ordering::SeqCst);
        let asleep = unpoisoned(&self.asleep);
        for (direction, asleep) in [Direction::Receiving, Direction::Sending].into_iter().zip(asleep.iter()) {
            let Some(Asleep { link, word }) = asleep else { continue };
            if let Some((memory, scope)) = word
                && ring::rouse::<RingMemory>(&self.raised, word_of(memory, direction)) != 0
            {
                // All of them: who else has the memory may sleep there in order to be woken in our place.
                futex::wake_all(word_of(memory, direction), *scope);
            }
            if let Some(link) = link.upgrade()
                && !link.is_local()
            {
                ring_bell();
                link.rouse_followers();
            }
        }
    }

    /// From now on calls wait as before.
    pub(crate) fn lower(&self) {
        self.raised.store(0, Ordering::SeqCst);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst) != 0
    }
}

/// What a wait can be ended by, besides what it is for; often nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interruption<'a>(Option<&'a Interrupts>);

impl<'a> Interruption<'a> {
    /// By nothing.
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn by(interrupts: Option<&'a Interrupts>) -> Self {
        Self(interrupts)
    }

    #[inline]
    pub(crate) fn has_come(self) -> bool {
        self.0.is_some_and(Interrupts::is_raised)
    }

    /// # Errors
    /// [`Error::Interrupted`] if it has come.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.has_come() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Notes that a thread may sleep on this link, and on this word, until the note is dropped. Whether the interruption has
    /// come is to be looked at after this.
    pub(crate) fn note(
        self,
        direction: Direction,
        link: &Link,
        word: Option<(&RingMemory, Scope)>,
    ) -> Option<Noted<'a>> {
        let interrupts = self.0?;
        let word = word.map(|(memory, scope)| (memory.clone(), scope));
        unpoisoned(&interrupts.asleep)[direction as usize] = Some(Asleep { link: link.weak(), word });
        Some(Noted { interrupts, direction })
    }

    /// A bell to poll, for who may be interrupted. Whether that has come is to be looked at after this.
    pub(crate) fn bell(self) -> Option<Result<Arc<OwnedFd>, Error>> {
        self.0.map(|_| bell())
    }
}

/// That a thread may be asleep.
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

/// The one that is to be rung next.
static BELL: PerProcess<Mutex<Option<Arc<OwnedFd>>>> = PerProcess::new(Mutex::default);

fn bell() -> Result<Arc<OwnedFd>, Error> {
    let mut place = unpoisoned(BELL.get());
    if let Some(bell) = &*place {
        return Ok(bell.clone());
    }
    let bell = Arc::new(epoll::bell()?);
    *place = Some(bell.clone());
    Ok(bell)
}

/// Wakes every leader that may be interrupted; those that are not meant look and sleep again.
fn ring_bell() {
    if let Some(bell) = unpoisoned(BELL.get()).take() {
        epoll::ring(&bell);
    }
}
