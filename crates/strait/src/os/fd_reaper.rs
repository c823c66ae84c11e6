//! The fd reaper: threads that close descriptors which a peer sent and the program did not take.
//!
//! To close a descriptor can take as long as a file system, another process or the other side of a connection likes. So
//! a thread closes it, and only then drops the charge for it.
//!
//! Each account with waiting descriptors gets a thread of its own, as long as there are no more than [`MOST_THREADS`]. So
//! a peer whose descriptors block their thread for ever does not keep those of other peers open, unless as many peers do
//! this. A thread ends when no descriptor waits that it could close.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::Error;
use crate::os::fork::PerProcess;
use crate::os::process::background;
use crate::os::socket::SharedBytes;
use crate::sync::unpoisoned;

/// Most threads that close descriptors at the same time.
const MOST_THREADS: usize = 16;

/// Stack size in bytes of a thread that closes descriptors.
const STACK: usize = 64 << 10;

/// A descriptor that waits for a thread to close it.
struct Waiting {
    /// The descriptor. It is closed before its charge is released.
    _fd: OwnedFd,
    _charge: Box<dyn Send>,
}

/// The waiting descriptors of one account.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    has_thread: bool,
}

struct Closers {
    /// The queues, by number of the account. Accounts without waiting descriptors and without a thread have no entry.
    queues: BTreeMap<usize, Queue>,
    threads: usize,
}

static CLOSERS: PerProcess<Mutex<Closers>> =
    PerProcess::new(|| Mutex::new(Closers { queues: BTreeMap::new(), threads: 0 }));

impl Closers {
    /// Adds a descriptor to the queue of `account`. Returns whether the caller must start a thread for the queue.
    fn add(&mut self, account: usize, waiting: Waiting) -> bool {
        let queue = self.queues.entry(account).or_default();
        queue.waiting.push_back(waiting);
        let starts = !queue.has_thread && self.threads < MOST_THREADS;
        if starts {
            queue.has_thread = true;
            self.threads += 1;
        }
        starts
    }

    /// Returns an account with waiting descriptors and without a thread, and counts a thread for it. Returns `None` if
    /// there is no such account, or if there are [`MOST_THREADS`] already.
    fn without_thread(&mut self) -> Option<usize> {
        if self.threads >= MOST_THREADS {
            return None;
        }
        let (account, queue) = self.queues.iter_mut().find(|(_, queue)| !queue.has_thread)?;
        queue.has_thread = true;
        self.threads += 1;
        Some(*account)
    }

    /// Returns the descriptor that the thread of `account` closes next: of an account without a thread if there is one,
    /// which then becomes `account`; else of its own. If this returns `None`, the thread must end.
    fn next(&mut self, account: &mut usize) -> Option<Waiting> {
        let others = self.queues.range(*account + 1..).chain(self.queues.range(..*account));
        let waits = others.filter(|(_, queue)| !queue.has_thread).map(|(other, _)| *other).next();
        if let Some(other) = waits {
            self.leave(*account);
            *account = other;
        }
        let queue = self.queues.entry(*account).or_default();
        queue.has_thread = true;
        let next = queue.waiting.pop_front();
        if next.is_none() {
            self.leave(*account);
            self.threads -= 1;
        }
        next
    }

    /// Records that no thread is busy with `account` any more.
    fn leave(&mut self, account: usize) {
        if let Some(queue) = self.queues.get_mut(&account) {
            queue.has_thread = false;
            if queue.waiting.is_empty() {
                self.queues.remove(&account);
            }
        }
    }
}

/// Makes a thread close a descriptor and then drop the charge for it. Returns `false` if no thread could be started:
/// then [`start_again`] is to be called later.
#[must_use]
pub(crate) fn close(fd: OwnedFd, account: usize, charge: Box<dyn Send>) -> bool {
    let starts = unpoisoned(CLOSERS.get()).add(account, Waiting { _fd: fd, _charge: charge });
    !starts || start(account)
}

/// Starts the thread of an account. Returns `false` if no thread could be started.
fn start(account: usize) -> bool {
    let started = background::start(c"strait-close", STACK, move || run(account));
    if !started {
        let mut closers = unpoisoned(CLOSERS.get());
        closers.threads -= 1;
        closers.leave(account);
    }
    started
}

/// Starts threads for accounts with waiting descriptors that have none. Returns `false` if one could not be started.
#[must_use]
pub(crate) fn start_again() -> bool {
    let next = || unpoisoned(CLOSERS.get()).without_thread();
    while let Some(account) = next() {
        if !start(account) {
            return false;
        }
    }
    true
}

fn run(mut account: usize) {
    loop {
        let next = unpoisoned(CLOSERS.get()).next(&mut account);
        match next {
            Some(waiting) => drop(waiting),
            None => return,
        }
    }
}

/// How long [`PacketRemoval::comes_back`] waits for a thread that has almost nothing to do, on a loaded machine.
const TIMEOUT: Duration = Duration::from_millis(250);

/// A packet that a thread removes from a socket, whereby the kernel drops the packet's descriptors. The kernel copies
/// the bytes before it drops the descriptors. So the removal can be seen even while the thread waits until they are
/// dropped.
pub(crate) struct PacketRemoval {
    /// The bytes of the packet, once it is removed; before that, the complement of its first bytes as they were looked
    /// at.
    bytes: SharedBytes,
    /// Whether the packet was removed; `None` until the thread has come back.
    over: Mutex<Option<bool>>,
    turn: Condvar,
}

impl PacketRemoval {
    /// Makes a thread remove the packet at the head of a socket's queue. `shown` are the bytes of the packet as they were
    /// looked at.
    ///
    /// # Errors
    /// [`Error::System`] if no thread could be started.
    pub(crate) fn begin(socket: Arc<OwnedFd>, shown: &[u8]) -> Result<Arc<Self>, Error> {
        let bytes = SharedBytes::new(shown.iter().map(|byte| !byte));
        let taking = Arc::new(Self { bytes, over: Mutex::default(), turn: Condvar::new() });
        let run = {
            let taking = taking.clone();
            move || {
                taking.is_over(taking.bytes.receive(socket.as_fd()));
                drop(socket);
            }
        };
        if background::start(c"strait-close", STACK, run) {
            Ok(taking)
        } else {
            Err(Error::System { call: "clone", code: libc::EAGAIN })
        }
    }

    /// Waits until the packet is removed. `shown` are its bytes as they were looked at. Returns `false` if removing it
    /// failed.
    pub(crate) fn wait(&self, shown: &[u8]) -> bool {
        /// About the time that the removal takes if nothing blocks. After this time the copied bytes are looked at.
        const MOMENT: Duration = Duration::from_millis(1);
        let mut over = unpoisoned(&self.over);
        loop {
            match *over {
                Some(taken) => return taken,
                None if self.bytes.are(shown) => return true,
                None => over = self.turn.wait_timeout(over, MOMENT).unwrap_or_else(PoisonError::into_inner).0,
            }
        }
    }

    /// Returns whether the thread comes back within [`TIMEOUT`].
    pub(crate) fn comes_back(&self) -> bool {
        let over = self.turn.wait_timeout_while(unpoisoned(&self.over), TIMEOUT, |over| over.is_none());
        over.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    fn is_over(&self, taken: bool) {
        *unpoisoned(&self.over) = Some(taken);
        self.turn.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::mpsc;

    fn waiting() -> (std::io::PipeReader, Waiting) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader, Waiting { _fd: writer.into(), _charge: Box::new(()) })
    }

    fn none() -> Closers {
        Closers { queues: BTreeMap::new(), threads: 0 }
    }

    #[test]
    fn a_charge_ends_after_the_descriptor_is_closed() {
        struct Charge(std::io::PipeReader, mpsc::Sender<bool>);
        impl Drop for Charge {
            fn drop(&mut self) {
                // It does not wait: the only writer was closed before.
                rustix::io::ioctl_fionbio(&self.0, true).unwrap();
                let is_closed = self.0.read(&mut [0]).is_ok_and(|len| len == 0);
                self.1.send(is_closed).unwrap();
            }
        }
        let (reader, writer) = std::io::pipe().unwrap();
        let (closed, hears) = mpsc::channel();
        assert!(close(writer.into(), 7, Box::new(Charge(reader, closed))));
        assert_eq!(hears.recv_timeout(Duration::from_secs(60)), Ok(true));
    }

    #[test]
    fn each_account_has_a_thread_and_all_of_them_no_more_than_there_may_be() {
        let mut closers = none();
        assert!(closers.add(1, waiting().1));
        assert!(!closers.add(1, waiting().1));
        for account in 2..=MOST_THREADS {
            assert!(closers.add(account, waiting().1));
        }
        assert!(!closers.add(MOST_THREADS + 1, waiting().1));
        assert_eq!(closers.threads, MOST_THREADS);
    }

    #[test]
    fn a_thread_closes_for_accounts_without_one_before_its_own() {
        let mut closers = none();
        for _ in 0..2 {
            closers.add(1, waiting().1);
        }
        closers.threads = MOST_THREADS;
        let (mut reader, another) = waiting();
        assert!(!closers.add(2, another));
        closers.threads = 1;
        let mut account = 1;
        drop(closers.next(&mut account).unwrap());
        assert_eq!((account, reader.read(&mut [0]).unwrap()), (2, 0));
        for _ in 0..2 {
            drop(closers.next(&mut account).unwrap());
        }
        assert_eq!(account, 1);
        assert!(closers.next(&mut account).is_none());
        assert_eq!((closers.threads, closers.queues.len()), (0, 0));
    }

    #[test]
    fn what_waits_without_a_thread_is_found_again() {
        let mut closers = none();
        assert!(closers.add(3, waiting().1));
        // The thread could not be started.
        closers.threads -= 1;
        closers.leave(3);
        assert_eq!((closers.without_thread(), closers.threads), (Some(3), 1));
        assert_eq!(closers.without_thread(), None);
    }
}
