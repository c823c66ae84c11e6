//! Bells: the ways to wait for a message in shared memory, and to wake the waiting side.
//!
//! There are four bells: for each direction a word for "there is a message" and a word for "there is free room again".
//! A counting bell gets one notification for each message, or for each free quarter of the ring, and is waited for as
//! often.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use rustix::thread::futex;

use super::carrier::Carrier;
use super::{Shm, rung_for_nothing};
use crate::mechanism::keeper::Keeper;
use crate::mechanism::{End, Hub, Opened, exactly, hub, note};
use crate::sys::posix::Semaphore;
use crate::sys::shared::{APART, Shared};
use crate::sys::sysv::{self, Patience};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// The number of bells: for each direction a bell for messages and a bell for free slots.
pub(crate) const BELLS: usize = 4;

/// The kind of a bell, for the name of the mechanism.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// No bell: the waiting side polls.
    Spin,
    /// A futex.
    Futex,
    /// System V semaphores.
    Sysv,
    /// POSIX semaphores.
    Posix,
    /// Eventfds.
    Eventfd,
}

/// A kind of bell: a way to wait, and to wake the waiting side.
pub(crate) trait Bell: Sized + 'static {
    /// The bell's kind, for the name of the mechanism.
    const KIND: Kind;
    /// The ways of waiting that the bell supports.
    const WAITS: &'static [Wait];

    /// The ways of waiting for several rings at once that the bell supports.
    const HUB_WAITS: &'static [Wait] = &[];

    /// Combines several ends into a hub with one wait for all ends.
    fn hub<C: Carrier>(_: Vec<Shm<C, Self>>, _: &Work) -> Result<Box<dyn Hub>> {
        Err(Shm::<C, Self>::unable())
    }

    /// Creates, in the first process, the descriptors and words that both sides need.
    fn open(work: &Work, memory: &Shared, keeper: Option<&Keeper>) -> Result<Opened>;

    /// Joins the bells from a side's descriptors, in either process.
    fn join(work: &Work, descriptors: Vec<OwnedFd>) -> Result<Self>;

    /// Notifies the side that waits for bell number `bell`. The caller has already stored the awaited message or
    /// room.
    fn ring(&mut self, memory: &Shared, bell: usize) -> Result<()>;

    /// Waits until the bell with the number `bell` was notified and `there` returns `true`.
    fn wait(&mut self, memory: &Shared, bell: usize, there: impl FnMut() -> bool) -> Result<()>;
}

/// Returns the result of [`Bell::open`] for bells that need no descriptors.
fn nothing() -> Opened {
    Opened { first: Vec::new(), second: Vec::new() }
}

/// Polls until `there` returns `true`: at first without pauses, then with pauses. A pause leaves the processor to a
/// sibling thread, but delays a message that arrives just then by up to 25 ns.
#[inline(always)]
pub(in crate::mechanism) fn look(mut there: impl FnMut() -> bool) {
    const EAGER: u32 = 256;
    for _ in 0..EAGER {
        if there() {
            return;
        }
    }
    while !there() {
        std::hint::spin_loop();
    }
}

/// No bell: the notifying side does nothing, and the waiting side polls.
#[derive(Debug)]
pub(crate) struct Spin;

impl Bell for Spin {
    const KIND: Kind = Kind::Spin;
    const WAITS: &'static [Wait] = &[Wait::Spin];
    const HUB_WAITS: &'static [Wait] = Self::WAITS;

    fn hub<C: Carrier>(ends: Vec<Shm<C, Self>>, _: &Work) -> Result<Box<dyn Hub>> {
        Ok(hub::spinning(ends))
    }

    fn open(_: &Work, _: &Shared, _: Option<&Keeper>) -> Result<Opened> {
        Ok(nothing())
    }

    fn join(_: &Work, _: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self)
    }

    #[inline(always)]
    fn ring(&mut self, _: &Shared, _: usize) -> Result<()> {
        Ok(())
    }

    #[inline(always)]
    fn wait(&mut self, _: &Shared, _: usize, there: impl FnMut() -> bool) -> Result<()> {
        look(there);
        Ok(())
    }
}

/// A futex for each bell, whose word is set while the other side sleeps. The notifying side makes a system call only
/// then.
///
/// The waiting side sets the word and then checks once more before it sleeps. The notifying side has stored its message
/// and then checks the word. The fences between the two steps of each side make sure that at least one side sees the
/// other side's store.
#[derive(Debug)]
pub(crate) struct Futex;

/// The flags of a futex between processes: without `FUTEX_PRIVATE_FLAG`.
const SHARED: futex::Flags = futex::Flags::empty();

impl Bell for Futex {
    const KIND: Kind = Kind::Futex;
    const WAITS: &'static [Wait] = &[Wait::Block];

    fn open(_: &Work, _: &Shared, _: Option<&Keeper>) -> Result<Opened> {
        Ok(nothing())
    }

    fn join(_: &Work, _: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self)
    }

    #[inline]
    fn ring(&mut self, memory: &Shared, bell: usize) -> Result<()> {
        let asleep = memory.half_word(bell * APART);
        fence(SeqCst);
        if asleep.load(Relaxed) != 0 {
            asleep.store(0, Release);
            futex::wake(asleep, SHARED, 1).doing("futex(FUTEX_WAKE)")?;
        }
        Ok(())
    }

    #[inline]
    fn wait(&mut self, memory: &Shared, bell: usize, mut there: impl FnMut() -> bool) -> Result<()> {
        let asleep = memory.half_word(bell * APART);
        while !there() {
            asleep.store(1, Relaxed);
            fence(SeqCst);
            if there() {
                asleep.store(0, Relaxed);
                break;
            }
            match futex::wait(asleep, SHARED, 1, None) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error).doing("futex(FUTEX_WAIT)"),
            }
        }
        Ok(())
    }
}

/// A System V semaphore for each bell: each notification and each wait is a system call.
#[derive(Debug)]
pub(crate) struct SysvSemaphores {
    set: i32,
    patience: Patience,
}

impl Bell for SysvSemaphores {
    const KIND: Kind = Kind::Sysv;
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];

    fn open(_: &Work, _: &Shared, keeper: Option<&Keeper>) -> Result<Opened> {
        let keeper = keeper.ok_or_else(|| Trouble::new("System V semaphores need a keeper"))?;
        let set = keeper.semaphores(BELLS)?;
        Ok(Opened { first: vec![note::write(&set)?], second: vec![note::write(&set)?] })
    }

    fn join(work: &Work, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [set] = exactly(descriptors)?;
        let patience = if work.wait == Wait::Spin { Patience::Now } else { Patience::Wait };
        Ok(Self { set: note::read(set)?, patience })
    }

    #[inline]
    fn ring(&mut self, _: &Shared, bell: usize) -> Result<()> {
        sysv::change(self.set, bell, 1, Patience::Wait).doing("semop")
    }

    #[inline]
    fn wait(&mut self, _: &Shared, bell: usize, mut there: impl FnMut() -> bool) -> Result<()> {
        loop {
            match sysv::change(self.set, bell, -1, self.patience) {
                Ok(()) => return if there() { Ok(()) } else { Err(rung_for_nothing()) },
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("semop"),
            }
        }
    }
}

/// A POSIX semaphore for each bell, in the shared memory itself: a system call is made only if the other side sleeps.
#[derive(Debug)]
pub(crate) struct PosixSemaphores {
    polled: bool,
}

impl Bell for PosixSemaphores {
    const KIND: Kind = Kind::Posix;
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];

    fn open(_: &Work, memory: &Shared, _: Option<&Keeper>) -> Result<Opened> {
        for bell in 0..BELLS {
            Semaphore::make(memory, bell * APART).doing("sem_init")?;
        }
        Ok(nothing())
    }

    fn join(work: &Work, _: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self { polled: work.wait == Wait::Spin })
    }

    #[inline]
    fn ring(&mut self, memory: &Shared, bell: usize) -> Result<()> {
        Semaphore::at(memory, bell * APART).post().doing("sem_post")
    }

    #[inline]
    fn wait(&mut self, memory: &Shared, bell: usize, mut there: impl FnMut() -> bool) -> Result<()> {
        let semaphore = Semaphore::at(memory, bell * APART);
        loop {
            match if self.polled { semaphore.try_wait() } else { semaphore.wait() } {
                Ok(()) => return if there() { Ok(()) } else { Err(rung_for_nothing()) },
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("sem_wait"),
            }
        }
    }
}

/// An eventfd for each bell: a counter with a descriptor, which allows a wait together with other descriptors. A read
/// takes all notifications so far; `rung` has the notifications before their waits.
#[derive(Debug)]
pub(crate) struct Eventfds {
    bells: [OwnedFd; BELLS],
    rung: [u64; BELLS],
}

impl<C: Carrier> hub::Polls for Shm<C, Eventfds> {
    fn polled(&self) -> BorrowedFd<'_> {
        self.bell.bells[self.inward.full].as_fd()
    }

    fn holds(&self) -> bool {
        self.bell.rung[self.inward.full] > 0
    }
}

impl Bell for Eventfds {
    const KIND: Kind = Kind::Eventfd;
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const HUB_WAITS: &'static [Wait] = Self::WAITS;

    fn hub<C: Carrier>(ends: Vec<Shm<C, Self>>, work: &Work) -> Result<Box<dyn Hub>> {
        hub::polled(ends, work)
    }

    fn open(work: &Work, _: &Shared, _: Option<&Keeper>) -> Result<Opened> {
        let mut opened = nothing();
        let mut flags = EventfdFlags::CLOEXEC;
        flags.set(EventfdFlags::NONBLOCK, work.wait == Wait::Spin);
        for _ in 0..BELLS {
            let bell = eventfd(0, flags).doing("eventfd2")?;
            opened.second.push(bell.try_clone().doing("dup")?);
            opened.first.push(bell);
        }
        Ok(opened)
    }

    fn join(_: &Work, descriptors: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self { bells: exactly(descriptors)?, rung: [0; BELLS] })
    }

    #[inline]
    fn ring(&mut self, _: &Shared, bell: usize) -> Result<()> {
        write(&self.bells[bell], &1u64.to_ne_bytes()).doing("writing to the eventfd").map(drop)
    }

    #[inline]
    fn wait(&mut self, _: &Shared, bell: usize, mut there: impl FnMut() -> bool) -> Result<()> {
        while self.rung[bell] == 0 {
            let mut count = [0; 8];
            match read(&self.bells[bell], &mut count) {
                Ok(_) => self.rung[bell] = u64::from_ne_bytes(count),
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("reading from the eventfd"),
            }
        }
        self.rung[bell] -= 1;
        if there() { Ok(()) } else { Err(rung_for_nothing()) }
    }
}
