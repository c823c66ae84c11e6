//! The reaper: threads that close descriptors and give memory back, where another process can make the kernel wait.
//!
//! A file system, another process or the other side of a connection can make the close of a descriptor take any time.
//! Likewise, a process with a descriptor of shared memory can make it take any time to give pages of the memory back.
//! So threads do such jobs, and a closed descriptor is charged to its sender until a thread has closed it.
//!
//! Each account with waiting jobs gets a thread of its own, up to [`MOST_THREADS`] threads in all. So if the jobs of
//! one peer block their thread for ever, jobs of other peers are still done, unless [`MOST_THREADS`] peers do the same.
//! A thread exits when no job is left for it.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::Error;
use crate::os::fork::PerProcess;
use crate::os::process::background;
use crate::os::socket::SharedBytes;
use crate::sync::unpoisoned;

/// The greatest number of threads of the reaper at the same time.
const MOST_THREADS: usize = 16;

/// Stack size in bytes of each thread of the reaper.
const STACK: usize = 256 << 10;

/// A job of the reaper, which may block the thread that runs it.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The jobs that wait for a thread and belong to one account, and whether a thread of the reaper works on the queue.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    has_thread: bool,
}

struct Reaper {
    /// The queues of jobs, by the number of the account. An account has no entry while it has neither a waiting job nor
    /// a thread.
    queues: BTreeMap<usize, Queue>,
    threads: usize,
}

static REAPER: PerProcess<Mutex<Reaper>> =
    PerProcess::new(|| Mutex::new(Reaper { queues: BTreeMap::new(), threads: 0 }));

impl Reaper {
    /// Adds `job` to the queue of the account with number `account`. Returns whether the caller must start a thread for
    /// the queue; if so, the thread is already counted as running.
    fn add(&mut self, account: usize, job: Job) -> bool {
        let queue = self.queues.entry(account).or_default();
        queue.waiting.push_back(job);
        let starts = !queue.has_thread && self.threads < MOST_THREADS;
        if starts {
            queue.has_thread = true;
            self.threads += 1;
        }
        starts
    }

    /// Returns the number of an account with waiting jobs and without a thread. The caller must start a thread for the
    /// account; the thread is already counted as running. Returns `None` if there is no such account, or if
    /// [`MOST_THREADS`] threads run.
    fn without_thread(&mut self) -> Option<usize> {
        if self.threads >= MOST_THREADS {
            return None;
        }
        let (account, queue) = self.queues.iter_mut().find(|(_, queue)| !queue.has_thread)?;
        queue.has_thread = true;
        self.threads += 1;
        Some(*account)
    }

    /// Returns the job that the calling thread must run next; `account` is the number of the account for which the
    /// thread works. If another account has waiting jobs and no thread, the thread changes to the other account, and
    /// the call stores its number in `account`. Returns `None` if the account has no job left; the thread must then
    /// end, and is no longer counted.
    fn next(&mut self, account: &mut usize) -> Option<Job> {
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

    /// Records that no thread works on the queue of `account` any more.
    fn leave(&mut self, account: usize) {
        if let Some(queue) = self.queues.get_mut(&account) {
            queue.has_thread = false;
            if queue.waiting.is_empty() {
                self.queues.remove(&account);
            }
        }
    }
}

/// Makes a thread of the reaper close `fd` and then drop `charge`. `account` is the number of the account charged for
/// the descriptor. Returns `false` as [`run`] does.
#[must_use]
pub(crate) fn close(fd: OwnedFd, account: usize, charge: Box<dyn Send>) -> bool {
    let close = move || {
        drop(fd);
        drop(charge);
    };
    run(account, Box::new(close))
}

/// Makes a thread of the reaper run `job`, after the waiting jobs of the account with number `account`. Returns `false`
/// if a new thread was needed and could not be started: the job waits, and the caller must call [`start_again`] later.
#[must_use]
pub(crate) fn run(account: usize, job: Job) -> bool {
    let starts = unpoisoned(REAPER.get()).add(account, job);
    !starts || start(account)
}

/// Starts the thread for the queue of the account with number `account`. The caller has counted the thread as running
/// already. If the thread could not be started, returns `false` and no longer counts the thread.
fn start(account: usize) -> bool {
    let started = background::start(c"strait-close", STACK, move || work(account));
    if !started {
        let mut reaper = unpoisoned(REAPER.get());
        reaper.threads -= 1;
        reaper.leave(account);
    }
    started
}

/// Starts threads for all accounts with waiting jobs and without a thread, up to [`MOST_THREADS`] in all. Returns
/// `false` if a thread could not be started.
#[must_use]
pub(crate) fn start_again() -> bool {
    let next = || unpoisoned(REAPER.get()).without_thread();
    while let Some(account) = next() {
        if !start(account) {
            return false;
        }
    }
    true
}

/// Runs the jobs of the account with number `account`, until none is left.
fn work(mut account: usize) {
    loop {
        let next = unpoisoned(REAPER.get()).next(&mut account);
        match next {
            Some(job) => job(),
            None => return,
        }
    }
}

/// How long [`PacketRemoval::comes_back`] waits for the thread that removes a packet. A thread with almost nothing to
/// do needs less, even on a loaded machine.
const TIMEOUT: Duration = Duration::from_millis(250);

/// The progress of the thread that removes a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The thread has not run yet.
    Starting,
    /// The thread makes the system call that removes the packet.
    Removing,
    /// The system call has returned. The value says whether the call has removed a packet.
    Returned(bool),
}

/// The removal of one packet from a socket, by a thread of its own. The kernel drops the packet's descriptors together
/// with the packet, which may block the thread. But the kernel copies the packet's bytes first. So other threads can
/// see that the packet is removed while the thread still blocks.
pub(crate) struct PacketRemoval {
    /// The bytes of the packet after the removal. Before the removal, the complement of the bytes that the caller has
    /// seen in the packet, so that the two differ.
    bytes: SharedBytes,
    progress: Mutex<Progress>,
    turn: Condvar,
}

impl PacketRemoval {
    /// Starts a thread that removes the packet at the head of the socket's queue. `shown` holds the packet's bytes,
    /// which the caller has seen without removing the packet.
    ///
    /// # Errors
    /// [`Error::System`] if no thread could be started.
    pub(crate) fn begin(socket: Arc<OwnedFd>, shown: &[u8]) -> Result<Arc<Self>, Error> {
        let bytes = SharedBytes::new(shown.iter().map(|byte| !byte));
        let taking = Arc::new(Self { bytes, progress: Mutex::new(Progress::Starting), turn: Condvar::new() });
        let run = {
            let taking = taking.clone();
            move || {
                taking.advance(Progress::Removing);
                taking.advance(Progress::Returned(taking.bytes.receive(socket.as_fd())));
                drop(socket);
            }
        };
        if background::start(c"strait-close", STACK, run) {
            Ok(taking)
        } else {
            Err(Error::System { call: "clone", code: libc::EAGAIN })
        }
    }

    /// Waits until the packet is removed, and returns `true` even if the thread still blocks then. `shown` holds the
    /// packet's bytes, as given to [`PacketRemoval::begin`]. Returns `false` if the packet could not be removed, or if
    /// another packet was at the head of the queue: the process that made the socket can replace the packet.
    pub(crate) fn wait(&self, shown: &[u8]) -> bool {
        /// Time between two checks whether the kernel has copied the packet's bytes: 1 ms, about as long as the removal
        /// of a packet takes if nothing blocks. The copied bytes show that the packet is removed from the socket.
        const MOMENT: Duration = Duration::from_millis(1);
        /// How many checks follow after the thread has begun its system call. If the bytes are still not there, the
        /// thread has removed another packet, and blocks. Checks are counted instead of time, because a machine that
        /// stands still makes no checks.
        const CHECKS: u32 = 250;
        let mut progress = unpoisoned(&self.progress);
        let mut checks = 0;
        loop {
            let has_bytes = self.bytes.are(shown);
            match *progress {
                Progress::Returned(taken) => return taken && has_bytes,
                _ if has_bytes => return true,
                Progress::Removing if checks == CHECKS => return false,
                Progress::Removing => checks += 1,
                Progress::Starting => {}
            }
            progress = self.turn.wait_timeout(progress, MOMENT).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits up to [`TIMEOUT`] for the return of the system call that removes the packet. Returns whether the system
    /// call has returned.
    pub(crate) fn comes_back(&self) -> bool {
        let blocks = |progress: &mut Progress| !matches!(progress, Progress::Returned(_));
        let waited = self.turn.wait_timeout_while(unpoisoned(&self.progress), TIMEOUT, blocks);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn advance(&self, progress: Progress) {
        *unpoisoned(&self.progress) = progress;
        self.turn.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::socket;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    fn waiting() -> (std::io::PipeReader, Job) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader, Box::new(move || drop(writer)))
    }

    fn none() -> Reaper {
        Reaper { queues: BTreeMap::new(), threads: 0 }
    }

    #[test]
    fn a_charge_ends_after_the_descriptor_is_closed() {
        struct Charge(std::io::PipeReader, mpsc::Sender<bool>);
        impl Drop for Charge {
            fn drop(&mut self) {
                // The read does not block: the only writer was closed before.
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
        let mut reaper = none();
        assert!(reaper.add(1, waiting().1));
        assert!(!reaper.add(1, waiting().1));
        for account in 2..=MOST_THREADS {
            assert!(reaper.add(account, waiting().1));
        }
        assert!(!reaper.add(MOST_THREADS + 1, waiting().1));
        assert_eq!(reaper.threads, MOST_THREADS);
    }

    #[test]
    fn a_thread_closes_for_accounts_without_one_before_its_own() {
        let mut reaper = none();
        for _ in 0..2 {
            reaper.add(1, waiting().1);
        }
        reaper.threads = MOST_THREADS;
        let (mut reader, another) = waiting();
        assert!(!reaper.add(2, another));
        reaper.threads = 1;
        let mut account = 1;
        reaper.next(&mut account).unwrap()();
        assert_eq!((account, reader.read(&mut [0]).unwrap()), (2, 0));
        for _ in 0..2 {
            reaper.next(&mut account).unwrap()();
        }
        assert_eq!(account, 1);
        assert!(reaper.next(&mut account).is_none());
        assert_eq!((reaper.threads, reaper.queues.len()), (0, 0));
    }

    /// Returns a lingering connection with unsent bytes, whose last close takes minutes, and the other side of the
    /// connection. Dropping the other side ends the close.
    fn slow_to_close() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &client, &[0; 65_536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::from_secs(300))).unwrap();
        (client.into(), server)
    }

    /// Shows that a wait for the removal of a packet ends although another packet was removed, whose descriptors take
    /// long to close. The process that made the socket can put such a packet in the place of the packet seen.
    #[test]
    fn a_wait_for_a_removal_ends_although_another_packet_is_removed() {
        for other in [&b"other"[..], b"", &[!b's'; 5]] {
            let (ours, theirs) = socket::pair().unwrap();
            let (slow, server) = slow_to_close();
            socket::send(theirs.as_fd(), other, &[slow.as_fd()]).unwrap();
            drop(slow);
            let removal = PacketRemoval::begin(Arc::new(ours), b"sssss").unwrap();
            let (ended, ends) = mpsc::channel();
            let waits = removal.clone();
            std::thread::spawn(move || ended.send(waits.wait(b"sssss")));
            assert_eq!(ends.recv_timeout(Duration::from_secs(60)), Ok(false), "{other:?}");
            assert!(!removal.comes_back(), "the close takes long");
            drop(server);
        }
    }

    #[test]
    fn what_waits_without_a_thread_is_found_again() {
        let mut reaper = none();
        assert!(reaper.add(3, waiting().1));
        // The thread could not be started.
        reaper.threads -= 1;
        reaper.leave(3);
        assert_eq!((reaper.without_thread(), reaper.threads), (Some(3), 1));
        assert_eq!(reaper.without_thread(), None);
    }
}
