//! The keeper: a process for removing names and System V objects, which the kernel does not remove.
//!
//! A System V queue stays after the death of both processes, and so do the name of a FIFO and its directory. So each
//! such object is first registered with the keeper, a third process that outlives the measurement. The keeper sleeps
//! until the first process closes the socket between them, or dies, and then removes everything.
//!
//! No name of a System V queue, semaphore or memory can be registered before the object exists, so the keeper creates
//! these objects itself. Other names are not needed once both processes have opened the object; the process with the
//! last use removes the name then.

use std::ffi::CString;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::Side;
use crate::process::control::{self, Heard};
use crate::process::start::start;
use crate::sys::shared::Shared;
use crate::sys::signal::Blocked;
use crate::sys::{posix, sysv};
use crate::trouble::{Result, Trouble, While};

/// The name of the keeper on the command line of the hidden subcommand, in place of a side.
pub(crate) const KEEPER: &str = "keeper";

/// The time limit for an answer of the keeper: longer than any keeper needs.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request to the keeper, or an answer of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Order {
    /// Request: create a System V queue.
    Queue,
    /// Request: create a set of so many System V semaphores.
    Semaphores(usize),
    /// Request: create so many bytes of System V memory.
    Memory(usize),
    /// Answer: the object was created, with this number.
    Made(i32),
    /// Request: in the end, remove this directory with its content.
    Directory(PathBuf),
    /// Request: remove the name of a POSIX queue in the end.
    PosixQueue(CString),
    /// Request: remove the name of POSIX memory in the end.
    PosixMemory(CString),
    /// Answer: the request was registered.
    Done,
    /// Answer: the request failed, with this error.
    Failed(String),
}

/// The first process's connection to its keeper. Dropping it waits until the keeper has removed everything.
#[derive(Debug)]
pub(crate) struct Keeper(Option<OwnedFd>);

impl Keeper {
    /// Starts a keeper, a process that removes names and System V objects when the measurement has ended.
    pub(super) fn start() -> Result<Self> {
        let (socket, theirs) = control::pair()?;
        // The keeper ends when its socket is closed. Until then no process waits for it.
        drop(start(KEEPER, &(), theirs)?);
        Ok(Self(Some(socket)))
    }

    /// Returns the keeper whose socket is the last of `descriptors`, on the first side; `None` on the second side,
    /// which has no keeper.
    pub(super) fn of(side: Side, descriptors: &mut Vec<OwnedFd>) -> Option<Self> {
        match side {
            Side::First => descriptors.pop().map(|socket| Self(Some(socket))),
            Side::Second => None,
        }
    }

    /// Returns the keeper's socket as a descriptor, which [`of`](Self::of) turns into a keeper again.
    pub(super) fn into_descriptor(mut self) -> OwnedFd {
        self.0.take().expect("only this and dropping takes it")
    }

    fn ask(&self, order: &Order) -> Result<Order> {
        let socket = self.0.as_ref().expect("only `into_descriptor` and dropping takes it").as_fd();
        control::send(socket, order, &[])?;
        match control::recv(socket, PATIENCE)? {
            Heard::Packet(Order::Failed(words), _) => Err(Trouble::new(words)),
            Heard::Packet(answer, _) => Ok(answer),
            Heard::Gone | Heard::Nothing => Err(Trouble::new("the keeper does not answer")),
        }
    }

    fn make(&self, order: &Order) -> Result<i32> {
        match self.ask(order)? {
            Order::Made(number) => Ok(number),
            other => Err(Trouble::new(format!("the keeper answered {other:?}"))),
        }
    }

    /// Has the keeper create a System V queue, and returns the queue's number.
    pub(super) fn queue(&self) -> Result<i32> {
        self.make(&Order::Queue)
    }

    /// Has the keeper create a set of `count` System V semaphores, and returns the set's number.
    pub(super) fn semaphores(&self, count: usize) -> Result<i32> {
        self.make(&Order::Semaphores(count))
    }

    /// Has the keeper create `len` bytes of System V memory, and returns the memory's number. The number is removed
    /// already; the memory stays as long as a process has it attached, as the keeper does.
    pub(super) fn memory(&self, len: usize) -> Result<i32> {
        self.make(&Order::Memory(len))
    }

    /// Creates a new directory, readable by this user only. The keeper removes the directory.
    pub(super) fn directory(&self) -> Result<PathBuf> {
        let directory = std::env::temp_dir().join(fresh());
        self.ask(&Order::Directory(directory.clone()))?;
        let words = || format!("making the directory {}", directory.display());
        DirBuilder::new().mode(0o700).create(&directory).doing(&words())?;
        Ok(directory)
    }

    /// Returns a new name for a POSIX queue, which the keeper removes.
    pub(super) fn queue_name(&self) -> Result<CString> {
        let name = posix_name();
        self.ask(&Order::PosixQueue(name.clone()))?;
        Ok(name)
    }

    /// Returns a new name for POSIX memory, which the keeper removes.
    pub(super) fn memory_name(&self) -> Result<CString> {
        let name = posix_name();
        self.ask(&Order::PosixMemory(name.clone()))?;
        Ok(name)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // These calls fail only if the keeper has died.
        if let Some(socket) = self.0.take()
            && shutdown(&socket, Shutdown::Write).is_ok()
        {
            let _ = control::recv::<Order>(socket.as_fd(), PATIENCE);
        }
    }
}

fn fresh() -> String {
    format!("strait-lab-{:032x}", fastrand::u128(..))
}

fn posix_name() -> CString {
    CString::new(format!("/{}", fresh())).expect("digits have no zero bytes")
}

/// The objects and names that the keeper has to remove.
#[derive(Debug, Default)]
struct Kept {
    queues: Vec<i32>,
    semaphores: Vec<i32>,
    memory: Vec<Shared>,
    names: Vec<Order>,
}

/// Runs the keeper until `socket`, its connection to the first process of the measurement, is closed.
pub(crate) fn keep(socket: BorrowedFd<'_>) -> Result<()> {
    // A command that ends all processes of this program ends the keeper last, since the keeper blocks these signals.
    let gentle = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT].map(Signal::as_raw);
    Blocked::these(&gentle).doing("pthread_sigmask")?;
    let mut kept = Kept::default();
    loop {
        match control::recv(socket, Duration::from_secs(3600))? {
            Heard::Packet(order, _) => {
                let answer = kept.take(order).unwrap_or_else(|trouble| Order::Failed(trouble.to_string()));
                // The first process may have died. The next receive returns `Gone` then.
                let _ = control::send(socket, &answer, &[]);
            }
            Heard::Nothing => {}
            Heard::Gone => return Ok(()),
        }
    }
}

impl Kept {
    fn take(&mut self, order: Order) -> Result<Order> {
        match order {
            Order::Queue => {
                let queue = sysv::make_queue().doing("msgget")?;
                self.queues.push(queue);
                Ok(Order::Made(queue))
            }
            Order::Semaphores(count) => {
                let set = sysv::make_semaphores(count).doing("semget")?;
                self.semaphores.push(set);
                Ok(Order::Made(set))
            }
            Order::Memory(len) => {
                let memory = sysv::make_memory(len).doing("shmget")?;
                let attached = Shared::attach(memory, len);
                sysv::remove_memory(memory).doing("shmctl(IPC_RMID)")?;
                self.memory.push(attached?);
                Ok(Order::Made(memory))
            }
            name => {
                self.names.push(name);
                Ok(Order::Done)
            }
        }
    }

    /// Removes all registered names that still exist.
    fn remove_names(&mut self) {
        for name in self.names.drain(..) {
            let done = match &name {
                Order::Directory(directory) => fs::remove_dir_all(directory),
                Order::PosixQueue(name) => posix::unlink_queue(name).map_err(Into::into),
                Order::PosixMemory(name) => rustix::shm::unlink(name).map_err(Into::into),
                _ => Ok(()),
            };
            // The name may never have been created, or be removed already.
            if let Err(error) = done
                && error.kind() != ErrorKind::NotFound
            {
                eprintln!("strait: removing {name:?}: {error}");
            }
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.remove_names();
        for queue in self.queues.drain(..) {
            if let Err(error) = sysv::remove_queue(queue) {
                eprintln!("strait: removing the System V queue {queue}: {error}");
            }
        }
        for set in self.semaphores.drain(..) {
            if let Err(error) = sysv::remove_semaphores(set) {
                eprintln!("strait: removing the System V semaphores {set}: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::io::Errno;
    use rustix::shm;

    use super::{Kept, Order, fresh, posix_name};
    use crate::sys::posix;
    use crate::sys::sysv::{self, Letter, Patience};

    #[test]
    fn everything_that_was_kept_is_removed_in_the_end() {
        let mut kept = Kept::default();
        let directory = std::env::temp_dir().join(fresh());
        let (queue_name, memory_name) = (posix_name(), posix_name());
        kept.take(Order::Directory(directory.clone())).unwrap();
        kept.take(Order::PosixQueue(queue_name.clone())).unwrap();
        kept.take(Order::PosixMemory(memory_name.clone())).unwrap();
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("socket"), "").unwrap();
        posix::make_queue(&queue_name, 1, 8, true).unwrap();
        let mode = shm::Mode::RUSR | shm::Mode::WUSR;
        shm::open(&*memory_name, shm::OFlags::CREATE | shm::OFlags::RDWR, mode).unwrap();
        let Ok(Order::Made(queue)) = kept.take(Order::Queue) else { panic!("no queue") };
        let Ok(Order::Made(set)) = kept.take(Order::Semaphores(1)) else { panic!("no semaphores") };
        let Ok(Order::Made(memory)) = kept.take(Order::Memory(4096)) else { panic!("no memory") };
        // All objects exist, and the memory can be attached although its number is removed already.
        sysv::change(set, 0, 1, Patience::Now).unwrap();
        assert_eq!(sysv::memory_len(memory), Ok(4096));
        assert!(posix::open_queue(&queue_name, true).is_ok());

        drop(kept);
        assert!(!directory.exists());
        assert_eq!(posix::open_queue(&queue_name, true).unwrap_err(), Errno::NOENT);
        assert_eq!(shm::open(&*memory_name, shm::OFlags::RDWR, mode).unwrap_err(), Errno::NOENT);
        assert_eq!(sysv::send(queue, &mut Letter::new(), b"", Patience::Now), Err(Errno::INVAL));
        assert_eq!(sysv::change(set, 0, 1, Patience::Now), Err(Errno::INVAL));
        assert_eq!(sysv::memory_len(memory), Err(Errno::INVAL));
    }

    #[test]
    fn what_was_never_made_is_no_trouble() {
        let mut kept = Kept::default();
        kept.take(Order::Directory(std::env::temp_dir().join(fresh()))).unwrap();
        kept.take(Order::PosixQueue(posix_name())).unwrap();
    }
}
