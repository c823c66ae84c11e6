//! Seals on memory that another process has, added by threads.
//!
//! A call that adds a seal needs the lock of the memory's file. A process with a descriptor of the memory can hold this
//! lock as long as the process likes: in a write of bytes from a page whose content never comes. So a thread makes the
//! call, and the caller waits for the thread for a limited time.
//!
//! The caller names the source of the memory by a number, for example the account of the peer that sent the memory. At
//! most one thread works for each source, and at most [`MOST_THREADS`] threads in all. So a peer can block one thread.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::os::fork::PerProcess;
use crate::os::process::background::{self, NoThread};
use crate::sync::unpoisoned;

/// The greatest number of threads that add seals at the same time.
const MOST_THREADS: usize = 64;

/// Stack size in bytes of each thread that adds seals.
const STACK: usize = 256 << 10;

/// How long [`seal_elsewhere`] waits, for its turn and for its thread together.
const PATIENCE: Duration = Duration::from_secs(1);

/// The sources whose thread runs now, and the condition variable of the threads that wait for their turn.
static BUSY: PerProcess<(Mutex<BTreeSet<usize>>, Condvar)> = PerProcess::new(Default::default);

/// The turn of a source: the source may have one thread. Dropping the value ends the turn.
struct Turn(usize);

impl Turn {
    /// Waits until `deadline` for the turn of `source`; `None` if the turn did not come.
    fn take(source: usize, deadline: Instant) -> Option<Self> {
        let (busy, turn) = BUSY.get();
        let limit = deadline.saturating_duration_since(Instant::now());
        let waits = |busy: &mut BTreeSet<usize>| busy.contains(&source) || busy.len() >= MOST_THREADS;
        let waited = turn.wait_timeout_while(unpoisoned(busy), limit, waits);
        let (mut busy, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        (!waited.timed_out()).then(|| {
            busy.insert(source);
            Self(source)
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (busy, turn) = BUSY.get();
        unpoisoned(busy).remove(&self.0);
        turn.notify_all();
    }
}

/// Makes a thread call `seal`, which adds seals to the memory `fd`, and waits for the thread for a limited time. `fd`
/// stays open until the thread is done. `source` is a number for the source of the memory. If a sandbox forbids this
/// process to start threads, calls `seal` in the calling thread, which may then block.
///
/// # Errors
/// The errors of `seal`. [`Error::WouldBlock`] if the thread, or an earlier thread for the source, takes too long: the
/// thread adds the seals as soon as it can. [`Error::System`] if no thread could be started.
pub(crate) fn seal_elsewhere(
    fd: impl AsFd + Send + Sync + 'static,
    source: usize,
    seal: fn(BorrowedFd<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    let turn = Turn::take(source, deadline).ok_or(Error::WouldBlock)?;
    let (done, result) = mpsc::sync_channel(1);
    let fd = Arc::new(fd);
    let run = {
        let fd = fd.clone();
        move || {
            let sealed = seal((*fd).as_fd());
            drop(fd);
            drop(turn);
            // The caller may have stopped waiting.
            let _ = done.send(sealed);
        }
    };
    match background::try_to_start(c"strait-seal", STACK, run) {
        Ok(()) => {}
        Err(NoThread::Forbidden) => return seal((*fd).as_fd()),
        Err(NoThread::Failed(code)) => return Err(Error::System { call: "clone", code }),
    }
    result.recv_timeout(deadline.saturating_duration_since(Instant::now())).unwrap_or(Err(Error::WouldBlock))
}
