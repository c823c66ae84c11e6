//! Objects in a wait set of their own: for a descriptor, and for waits ended by a close in another thread.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use strait::wait::{Event, Fd, Interest, Mode, Source, WaitSet};
use strait::{Deadline, Error};

use crate::sync::lock;
use crate::waiting::{self, Timeout};

/// The key of the event for ending all waits.
const END: u64 = 1;

/// A wait set with one object of the program.
pub(crate) struct Watch {
    set: WaitSet,
    end: Mutex<End>,
}

enum End {
    /// No thread has waited yet.
    Unused,
    /// Waiting threads also wait for this descriptor.
    Used(Fd),
    Ended,
}

impl Watch {
    /// Makes a wait set with `source` as the only object.
    pub(crate) fn new(source: &impl Source) -> Result<Self, Error> {
        let made = Self { set: WaitSet::new()?, end: Mutex::new(End::Unused) };
        made.join(source)?;
        Ok(made)
    }

    /// Puts the object into the set.
    pub(crate) fn join(&self, source: &impl Source) -> Result<(), Error> {
        self.set.add(source, 0, Interest::Readable, Mode::Level)
    }

    /// Takes the object out of the set.
    pub(crate) fn leave(&self, source: &impl Source) -> Result<(), Error> {
        self.set.remove(source)
    }

    /// Waits until the object has something, or until the timeout, which fails with `WouldBlock` or `TimedOut`. Fails
    /// with `Interrupted` once `end` was called.
    ///
    /// The outer error is an exception raised by a signal handler.
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Timeout) -> PyResult<Result<(), Error>> {
        if let Err(error) = self.prepare() {
            return Ok(Err(error));
        }
        let mut events: Vec<Event> = Vec::with_capacity(2);
        waiting::wait(py, timeout, |deadline| match self.set.wait(&mut events, deadline)? {
            0 => Err(if deadline == Deadline::NOW { Error::WouldBlock } else { Error::TimedOut }),
            _ if events.iter().any(|event| event.key() == END) => Err(Error::Interrupted),
            _ => Ok(()),
        })
    }

    /// Puts the descriptor for ending waits into the set, if missing.
    fn prepare(&self) -> Result<(), Error> {
        let mut end = lock(&self.end);
        match &*end {
            End::Used(_) => Ok(()),
            End::Ended => Err(Error::Interrupted),
            End::Unused => {
                let fd = Fd::new(new_eventfd()?)?;
                self.set.add(&fd, END, Interest::Readable, Mode::Level)?;
                *end = End::Used(fd);
                Ok(())
            }
        }
    }

    /// Ends the waits of all threads, now and later.
    pub(crate) fn end(&self) {
        let mut end = lock(&self.end);
        match &*end {
            // The descriptor stays, and stays readable, for all waiting threads.
            End::Used(fd) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
            End::Unused => *end = End::Ended,
            End::Ended => {}
        }
    }

    /// Makes the descriptor readable if there is more, and otherwise not readable.
    pub(crate) fn settle(&self) {
        let _ = self.set.wait(&mut Vec::with_capacity(1), Deadline::NOW);
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> i32 {
        self.set.as_raw_fd()
    }
}

fn new_eventfd() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| match errno {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => Error::NoDescriptors,
        errno => Error::System { call: "eventfd", code: errno.raw_os_error() },
    })
}
