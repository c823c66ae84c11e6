//! The fd reaper: threads that close descriptors which a peer sent and the program did not take.
//!
//! To close a descriptor can take as long as a file system, another process or the other side of a connection likes. A
//! descriptor that is [known](close::is_harmless) to close at once is closed in place. Any other one waits for a
//! thread, and is charged to its peer until it is closed.
//!
//! Each peer process with waiting descriptors gets a thread of its own, as long as there are no more than
//! [`MOST_THREADS`]. So a peer whose descriptors block their thread for ever does not keep those of other peers open,
//! unless as many peers do this. A thread ends when no descriptor waits that it could close. If the program has taken a
//! descriptor out of a message, the program closes it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::channel::handle::Handle;
use crate::deferred::{self, InTurn};
use crate::error::Error;
use crate::os::close;
use crate::os::fork::{Born, PerProcess};
use crate::os::process::background;
use crate::os::socket::{self, SharedBytes};
use crate::quota::{Payer, Unclosed};
use crate::sync::unpoisoned;

/// Most threads that close descriptors at the same time.
const MOST_THREADS: usize = 16;

/// Stack size in bytes of a thread that closes descriptors.
const STACK: usize = 64 << 10;

/// A descriptor that waits for a thread to close it.
struct Waiting {
    /// The descriptor. It is closed before its charge is released.
    _fd: OwnedFd,
    _charge: Unclosed,
}

/// The waiting descriptors of one peer process.
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

/// Closes a descriptor that came from this peer. Does not block: if closing might, a thread closes the descriptor,
/// which is charged to the peer until then.
pub(crate) fn close(fd: OwnedFd, payer: &Payer) {
    if !close::is_harmless(fd.as_fd()) {
        close_elsewhere(fd, payer);
    }
}

/// Makes a thread close a descriptor, whether or not closing might block. It is charged to the peer until then.
pub(crate) fn close_elsewhere(fd: OwnedFd, payer: &Payer) {
    let account = payer.number();
    let waiting = Waiting { _fd: fd, _charge: payer.charge_unclosed() };
    let starts = unpoisoned(CLOSERS.get()).add(account, waiting);
    if starts {
        start(account);
    }
}

/// Starts the thread of an account. Returns `false` if no thread could be started; a later call then tries again.
fn start(account: usize) -> bool {
    let started = background::start(c"strait-close", STACK, move || run(account));
    if !started {
        let mut closers = unpoisoned(CLOSERS.get());
        closers.threads -= 1;
        closers.leave(account);
        drop(closers);
        deferred::try_later("closing", start_again);
    }
    started
}

/// Starts threads for accounts with waiting descriptors that have none.
fn start_again() {
    let next = || unpoisoned(CLOSERS.get()).without_thread();
    while let Some(account) = next()
        && start(account)
    {}
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

/// Handles that the program has not taken yet, with the peer that sent them unless this process did. Dropping this
/// value closes them; channel ends among them are dropped.
#[derive(Debug, Default)]
pub(crate) struct Untaken {
    handles: Vec<Handle>,
    payer: Payer,
}

impl Untaken {
    pub(crate) fn new(handles: Vec<Handle>, payer: Payer) -> Self {
        Self { handles, payer }
    }

    /// Takes all handles out of this value: from now on the caller owns them.
    pub(crate) fn take(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.handles)
    }

    /// Adds descriptors that came from `payer`.
    pub(crate) fn add(&mut self, descriptors: Vec<OwnedFd>, payer: &Payer) {
        self.handles.extend(descriptors.into_iter().map(Handle::Fd));
        self.payer = payer.clone();
    }

    /// Returns the peer process that sent the handles.
    pub(crate) fn payer(&self) -> &Payer {
        &self.payer
    }

    /// Returns the channel ends, and the handles that contain one. Closes all others.
    pub(crate) fn into_ends(mut self) -> Vec<Handle> {
        let (descriptors, others) = self.take().into_iter().partition(Handle::has_own_descriptor);
        self.handles = descriptors;
        others
    }

    /// Returns the descriptors, each of which is closed by itself if it is not taken. Drops the other handles.
    pub(crate) fn into_descriptors(mut self) -> Vec<Foreign> {
        let descriptors = self.take().into_iter().filter_map(Handle::into_fd);
        descriptors.map(|fd| Foreign::new(fd, &self.payer)).collect()
    }
}

impl Deref for Untaken {
    type Target = [Handle];

    fn deref(&self) -> &[Handle] {
        &self.handles
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        if !self.handles.is_empty() {
            self.take().into_iter().for_each(|handle| close_one(handle, &self.payer));
        }
    }
}

fn close_one(handle: Handle, payer: &Payer) {
    match handle {
        Handle::Fd(fd) => close(fd, payer),
        // The region may be large, and take long to free.
        Handle::Region(region) => region.into_only_fd().into_iter().for_each(|fd| close(fd, payer)),
        other => drop(other),
    }
}

thread_local! {
    /// Handles that this thread is about to close, which ends had not taken.
    static LEFT: InTurn<(Handle, Payer)> = const { InTurn::new() };
}

/// Closes handles that were sent to an end that never took them. A channel end among them may have untaken handles as
/// well, and so on. These are closed afterwards, in a loop and without recursion, however long the chain is.
pub(crate) fn close_left(mut left: Untaken) {
    if !left.is_empty() {
        let handles = left.take().into_iter().map(|handle| (handle, left.payer.clone())).collect();
        InTurn::let_go(&LEFT, handles, || {}, |(handle, payer)| close_one(handle, &payer));
    }
}

/// How long [`Taking::comes_back`] waits for a thread that has almost nothing to do, on a loaded machine.
const TIMEOUT: Duration = Duration::from_millis(250);

/// A socket of a process that was not accepted yet. If unread packets may be in it, dropping this value makes a thread
/// close the socket.
pub(crate) struct Unread {
    socket: Option<OwnedFd>,
    born: Born,
}

impl Unread {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket: Some(socket), born: Born::here() }
    }

    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.socket.take().expect("taken once")
    }
}

impl AsFd for Unread {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("not taken yet").as_fd()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take()
            && !self.born.is_elsewhere()
            && !socket::ends_empty(socket.as_fd())
        {
            close_elsewhere(socket, &Payer::default());
        }
    }
}

/// A packet that a thread removes from a socket, whereby the kernel drops the packet's descriptors. The kernel copies
/// the bytes before it drops the descriptors. So the removal can be seen even while the thread waits until they are
/// dropped.
pub(crate) struct Taking {
    /// The bytes of the packet, once it is removed; before that, the complement of its first bytes as they were looked
    /// at.
    bytes: SharedBytes,
    /// Whether the packet was removed; `None` until the thread has come back.
    over: Mutex<Option<bool>>,
    turn: Condvar,
}

impl Taking {
    /// Waits until the packet is removed. `shown` are its bytes as they were looked at. Returns `false` if removing it
    /// failed.
    fn wait(&self, shown: &[u8]) -> bool {
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
    fn comes_back(&self) -> bool {
        let over = self.turn.wait_timeout_while(unpoisoned(&self.over), TIMEOUT, |over| over.is_none());
        over.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    fn is_over(&self, taken: bool) {
        *unpoisoned(&self.over) = Some(taken);
        self.turn.notify_all();
    }
}

/// Removes the packet at the head of a socket's queue, with descriptors that were not opened in this process. `shown`
/// are its bytes as they were looked at. A thread does this, because dropping the descriptors can take long. Each peer
/// has one such thread at a time.
///
/// # Errors
/// [`Error::BadPeer`] if the thread for the peer's last such packet has not come back; [`Error::PeerClosed`] if the
/// packet could not be removed; [`Error::System`] if no thread could be started.
pub(crate) fn take_elsewhere(socket: Arc<OwnedFd>, shown: &[u8], payer: &Payer) -> Result<(), Error> {
    // A link has a peer that is charged; without one there is no such link.
    let Some(mut last) = payer.taking() else { return Err(Error::PeerClosed) };
    if last.as_ref().is_some_and(|last| !last.comes_back()) {
        return Err(Error::BadPeer("descriptors that take longer to close than to send"));
    }
    let bytes = SharedBytes::new(shown.iter().map(|byte| !byte));
    let taking = Arc::new(Taking { bytes, over: Mutex::default(), turn: Condvar::new() });
    let run = {
        let taking = taking.clone();
        move || {
            taking.is_over(taking.bytes.receive(socket.as_fd()));
            drop(socket);
        }
    };
    if !background::start(c"strait-close", STACK, run) {
        return Err(Error::System { call: "clone", code: libc::EAGAIN });
    }
    *last = Some(taking.clone());
    drop(last);
    if taking.wait(shown) { Ok(()) } else { Err(Error::PeerClosed) }
}

/// A descriptor that a peer sent and that has no owner yet. Dropping this value closes it, without blocking.
#[derive(Debug)]
pub(crate) struct Foreign {
    fd: Option<OwnedFd>,
    payer: Payer,
}

impl Foreign {
    pub(crate) fn new(fd: OwnedFd, payer: &Payer) -> Self {
        Self { fd: Some(fd), payer: payer.clone() }
    }

    /// Takes the descriptor: from now on the caller owns it.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.fd.take().expect("taken once")
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("not taken yet").as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            close(fd, &self.payer);
        }
    }
}
