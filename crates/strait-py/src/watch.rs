//! Objects in wait sets: each in a set of its own, for a descriptor and for waits ended by a close in another thread,
//! or several in the set of a call of `strait.wait`.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use strait::wait::{Event, Fd, Interest, Mode, Source, WaitSet};
use strait::{Deadline, Error};

use crate::connection::Connection;
use crate::errors;
use crate::file;
use crate::streams::{Consumer, Producer};
use crate::sync::lock;
use crate::waiting::{self, Timeout};

/// The key of the event for ending all waits.
const END: u64 = u64::MAX;

/// The key of the descriptor that stands for the other objects of a call of `strait.wait`.
const OTHERS: u64 = u64::MAX - 1;

/// A wait set with one object of the program, or with all objects of a call of `strait.wait`.
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
        let made = Self::empty()?;
        made.join(source)?;
        Ok(made)
    }

    fn empty() -> Result<Self, Error> {
        Ok(Self { set: WaitSet::new()?, end: Mutex::new(End::Unused) })
    }

    /// Puts the object into the set.
    pub(crate) fn join(&self, source: &impl Source) -> Result<(), Error> {
        self.join_as(source, 0, Interest::Readable)
    }

    /// Puts an object into the set. Events of the object have `key`.
    pub(crate) fn join_as(&self, source: &impl Source, key: u64, interest: Interest) -> Result<(), Error> {
        self.set.add(source, key, interest, Mode::Level)
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

/// The wait set of a call of `strait.wait`, with the objects that have no wait set of their own. So the call needs
/// three descriptors for any number of objects.
///
/// An object is in one wait set at a time. If the program asks for a descriptor of the object meanwhile, closes the
/// object or sends it away, the object leaves this set, and the set ends: the call then makes another set.
#[pyclass(frozen, module = "strait")]
pub(crate) struct Group {
    watch: Arc<Watch>,
    /// The objects, each at the place of its key.
    members: Mutex<Vec<Py<PyAny>>>,
}

#[pymethods]
impl Group {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let made = Watch::empty().and_then(|watch| watch.prepare().map(|()| watch));
        let watch = Arc::new(made.map_err(|error| errors::raise(py, error))?);
        Ok(Self { watch, members: Mutex::default() })
    }

    /// Puts an object into the set. Returns `False` for an object that has a wait set of its own, or that can be in no
    /// set; such an object has a descriptor to wait for.
    fn add(&self, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = item.py();
        let key = lock(&self.members).len() as u64;
        let joined = if let Ok(connection) = item.cast::<Connection>() {
            connection.get().join(py, &self.watch, key)?
        } else if let Ok(consumer) = item.cast::<Consumer>() {
            consumer.get().join(py, &self.watch, key)?
        } else if let Ok(producer) = item.cast::<Producer>() {
            producer.get().join(py, &self.watch, key)?
        } else {
            false
        };
        if joined {
            lock(&self.members).push(item.clone().unbind());
        }
        Ok(joined)
    }

    /// Returns a descriptor that is readable whenever `ready` may have something.
    fn fileno(&self) -> i32 {
        self.watch.as_raw_fd()
    }

    /// Returns the objects that have something, without waiting; `None` once the set has ended.
    fn ready(&self, py: Python<'_>) -> PyResult<Option<Vec<Py<PyAny>>>> {
        let members = lock(&self.members);
        let mut keys = BTreeSet::new();
        let mut events = Vec::with_capacity(members.len() + 1);
        loop {
            match self.watch.set.wait(&mut events, Deadline::NOW) {
                Ok(_) | Err(Error::WouldBlock | Error::TimedOut) => {}
                Err(error) => return Err(errors::raise(py, error)),
            }
            keys.extend(events.iter().map(Event::key));
            if !events.is_empty() || !self.watch.set.has_more() {
                break;
            }
        }
        if keys.contains(&END) {
            return Ok(None);
        }
        let found = keys.iter().filter_map(|key| members.get(usize::try_from(*key).ok()?));
        Ok(Some(found.map(|item| item.clone_ref(py)).collect()))
    }

    /// Waits until `ready` may have something, until the descriptor `others` is readable, or until the timeout. Unlike
    /// a wait of Python for `fileno`, this wait ends for each signal, also for a signal right before the wait. Takes a
    /// duplicate of `others` for the time of the wait.
    #[pyo3(signature = (timeout, others=None))]
    fn sleep(&self, py: Python<'_>, timeout: Option<f64>, others: Option<i32>) -> PyResult<()> {
        let others = others.map(file::duplicate).transpose()?;
        let joined = others.map(Fd::new).transpose().and_then(|others| match &others {
            Some(fd) => self.watch.set.add(fd, OTHERS, Interest::Readable, Mode::Level).map(|()| others),
            None => Ok(None),
        });
        let _others = joined.map_err(|error| errors::raise(py, error))?;
        match self.watch.wait(py, Timeout::of(timeout)?)? {
            Ok(()) | Err(Error::WouldBlock | Error::TimedOut | Error::Interrupted) => Ok(()),
            Err(error) => Err(errors::raise(py, error)),
        }
    }

    /// Takes all objects out of the set.
    fn release(&self, py: Python<'_>) {
        for item in std::mem::take(&mut *lock(&self.members)) {
            let item = item.bind(py);
            if let Ok(connection) = item.cast::<Connection>() {
                connection.get().part(&self.watch);
            } else if let Ok(consumer) = item.cast::<Consumer>() {
                consumer.get().part(&self.watch);
            } else if let Ok(producer) = item.cast::<Producer>() {
                producer.get().part(&self.watch);
            }
        }
    }
}

fn new_eventfd() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| match errno {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => Error::NoDescriptors,
        errno => Error::System { call: "eventfd", code: errno.raw_os_error() },
    })
}
