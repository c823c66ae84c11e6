//! Queued signals, each with a message of eight bytes as its value.
//!
//! A real-time signal stays in a queue until it is received, with the value from `sigqueue`, in order. The receiver
//! blocks the signal, so no handler runs. The receiver uses `sigwaitinfo` (polled: `sigtimedwait` with a timeout of
//! 0), or reads from a `signalfd`, which allows a wait together with other descriptors. No connection is needed, but
//! only eight bytes fit, and the user's number of queued signals is limited (`ulimit -i`).
//!
//! All signals to a process are in one queue, with their senders. So waiting for several processes is no different from
//! waiting for one. For the same reason there is no end through which several processes could send.

use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, getppid};

use super::{Ability, End, Hub, Opened, Side};
use crate::sys::signal::{self, Blocked, Came};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// A way to receive signals.
pub(crate) trait Fetch: Sized + 'static {
    /// The mechanism's name on the command line and in results.
    const NAME: &'static str;
    /// The mechanism's name in a table.
    const TITLE: &'static str;

    /// Prepares to receive these blocked signals.
    fn over(signals: Blocked, polled: bool) -> Result<Self>;

    /// Returns the next signal; `EAGAIN` if there is none and the end is polled.
    fn next(&self) -> std::result::Result<Came, Errno>;
}

/// Receives signals by `sigwaitinfo` (polled: by `sigtimedwait`).
#[derive(Debug)]
pub(crate) struct Waited {
    signals: Blocked,
    polled: bool,
}

impl Fetch for Waited {
    const NAME: &'static str = "signal";
    const TITLE: &'static str = "signal";

    fn over(signals: Blocked, polled: bool) -> Result<Self> {
        Ok(Self { signals, polled })
    }

    #[inline]
    fn next(&self) -> std::result::Result<Came, Errno> {
        if self.polled { self.signals.try_wait() } else { self.signals.wait() }
    }
}

/// Receives signals by reading from a `signalfd`.
#[derive(Debug)]
pub(crate) struct Read(OwnedFd);

impl Fetch for Read {
    const NAME: &'static str = "signalfd";
    const TITLE: &'static str = "signalfd";

    fn over(signals: Blocked, polled: bool) -> Result<Self> {
        let descriptor = signals.descriptor().doing("signalfd")?;
        if polled {
            let flags = fcntl_getfl(&descriptor).doing("fcntl(F_GETFL)")?;
            fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK).doing("fcntl(F_SETFL)")?;
        }
        Ok(Self(descriptor))
    }

    #[inline]
    fn next(&self) -> std::result::Result<Came, Errno> {
        signal::read_one(&self.0)
    }
}

/// One process's end: the peer's process id, and the way to receive signals.
#[derive(Debug)]
pub(crate) struct Signal<F> {
    peer: Pid,
    number: i32,
    fetch: F,
}

/// The value of the second process's first signal, before any message.
const HERE: u64 = u64::MAX - 2;

impl<F: Fetch> End for Signal<F> {
    const NAME: &'static str = F::NAME;
    const TITLE: &'static str = F::TITLE;
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Hub];
    const MOST: usize = 8;

    fn open(_: &Work) -> Result<Opened> {
        // Blocked before any other process can send a signal: an unblocked signal would kill this process.
        block()?;
        Ok(Opened { first: Vec::new(), second: Vec::new() })
    }

    fn join(work: &Work, side: Side, _: Vec<OwnedFd>) -> Result<Self> {
        let fetch = F::over(block()?, work.wait == Wait::Spin)?;
        let number = signal::first_free();
        let peer = match side {
            Side::First => {
                let came = next(&fetch)?;
                let peer = Pid::from_raw(came.from).filter(|_| came.value == HERE);
                peer.ok_or_else(|| Trouble::new("a signal arrived from another process"))?
            }
            Side::Second => {
                let first = getppid().ok_or_else(|| Trouble::new("the first process has died"))?;
                signal::queue(first, number, HERE).doing("sigqueue")?;
                first
            }
        };
        Ok(Self { peer, number, fetch })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let value = u64::from_ne_bytes(message.try_into().doing("converting a signal's value")?);
        loop {
            match signal::queue(self.peer, self.number, value) {
                Ok(()) => return Ok(()),
                // The user's queue of signals is full. The receiver is taking signals out.
                Err(Errno::AGAIN) => std::thread::yield_now(),
                Err(error) => return Err(error).doing("sigqueue"),
            }
        }
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let came = next(&self.fetch)?;
        let room: &mut [u8; 8] = buffer.try_into().doing("converting a signal's value")?;
        *room = came.value.to_ne_bytes();
        Ok(())
    }

    fn hub(ends: Vec<Self>, _: &Work) -> Result<Box<dyn Hub>> {
        Ok(Box::new(Several { ends }))
    }
}

/// The ends to several processes. Each end receives the signals of all of them.
#[derive(Debug)]
struct Several<F> {
    ends: Vec<Signal<F>>,
}

impl<F: Fetch> Hub for Several<F> {
    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        self.ends[to].send(message)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        let one = self.ends.first().ok_or_else(|| Trouble::new("the mechanism has no end"))?;
        let came = next(&one.fetch)?;
        let from = self.ends.iter().position(|end| end.peer.as_raw_nonzero().get() == came.from);
        let room: &mut [u8; 8] = buffer.try_into().doing("converting a signal's value")?;
        *room = came.value.to_ne_bytes();
        from.map(Some).ok_or_else(|| Trouble::new("a signal arrived from another process"))
    }
}

fn block() -> Result<Blocked> {
    Blocked::these(&[signal::first_free()]).doing("pthread_sigmask")
}

#[inline]
fn next(fetch: &impl Fetch) -> Result<Came> {
    loop {
        match fetch.next() {
            Ok(came) => return Ok(came),
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("receiving a signal"),
        }
    }
}
