//! Closing descriptors that a peer sent and that the program did not take.
//!
//! To close a descriptor can take as long as a file system, another process or the other side of a connection likes. What is
//! [known](close::is_harmless) to close at once is closed at once. Anything else waits for a thread, and is
//! charged to its peer until it is closed.
//!
//! Each peer process that has something waiting gets a thread of its own, as long as there are no more than
//! [`MOST_THREADS`]: so a peer whose descriptors block their thread for ever keeps nobody else's open, but with as many
//! processes. A thread ends when nothing waits that it could close. What the program has taken out of a
//! message the program closes.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::channel::handle::Handle;
use crate::error::Error;
use crate::os::close;
use crate::os::fork::{Born, PerProcess};
use crate::os::process::background;
use crate::os::socket::{self, Shared};
use crate::quota::{Payer, Unclosed, try_later};
use crate::sync::unpoisoned;

/// Threads that close, at most.
const MOST_THREADS: usize = 16;

/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;

/// A descriptor that waits to be closed.
struct Waiting {
    /// Closed first, and then given back.
    _fd: OwnedFd,
    _charge: Unclosed,
}

/// What waits of one peer process.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    has_thread: bool,
}

struct Closers {
    /// By the number of the account. Those of which nothing waits, and which no thread is busy with, are not there.
    queues: BTreeMap<usize, Queue>,
    threads: usize,
}

static CLOSERS: PerProcess<Mutex<Closers>> =
    PerProcess::new(|| Mutex::new(Closers { queues: BTreeMap::new(), threads: 0 }));

impl Closers {
    /// Adds a descriptor. Whether a thread is to be started for it.
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

    /// An account of which something waits and that is to get a thread now, if there is one.
    fn without_thread(&mut self) -> Option<usize> {
        if self.threads >= MOST_THREADS {
            return None;
        }
        let (account, queue) = self.queues.iter_mut().find(|(_, queue)| !queue.has_thread)?;
        queue.has_thread = true;
        self.threads += 1;
        Some(*account)
    }

    /// What the thread of this account closes next: of an account that has no thread, if there is one, else of its own. If nothing
    /// is left the thread ends.
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

    /// No thread is busy with this account from here on.
    fn leave(&mut self, account: usize) {
        if let Some(queue) = self.queues.get_mut(&account) {
            queue.has_thread = false;
            if queue.waiting.is_empty() {
                self.queues.remove(&account);
            }
        }
    }
}

/// Closes a descriptor that came from this peer, which is charged with it until it is closed. Does not block.
pub(crate) fn close(fd: OwnedFd, payer: &Payer) {
    if !close::is_harmless(fd.as_fd()) {
        close_elsewhere(fd, payer);
    }
}

/// Has a thread close a descriptor, whatever it is.
pub(crate) fn close_elsewhere(fd: OwnedFd, payer: &Payer) {
    let account = payer.number();
    let waiting = Waiting { _fd: fd, _charge: payer.charge_unclosed() };
    let starts = unpoisoned(CLOSERS.get()).add(account, waiting);
    if starts {
        start(account);
    }
}

/// Starts the thread of an account. If there is no room for one, a later call tries again.
fn start(account: usize) -> bool {
    let started = background::start(c"strait-close", STACK, move || run(account));
    if !started {
        let mut closers = unpoisoned(CLOSERS.get());
        closers.threads -= 1;
        closers.leave(account);
        drop(closers);
        try_later("closing", start_again);
    }
    started
}

/// Starts threads for what waits and has none.
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

/// Handles that nobody has taken yet, and the peer that sent them, if it was not this process. What is left when this is dropped is closed, and
/// ends of channels are dropped.
#[derive(Debug, Default)]
pub(crate) struct Untaken {
    handles: Vec<Handle>,
    payer: Payer,
}

impl Untaken {
    pub(crate) fn new(handles: Vec<Handle>, payer: Payer) -> Self {
        Self { handles, payer }
    }

    /// Takes all: they are the caller's from here on.
    pub(crate) fn take(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.handles)
    }

    /// Adds descriptors that came from a peer.
    pub(crate) fn add(&mut self, descriptors: Vec<OwnedFd>, payer: &Payer) {
        self.handles.extend(descriptors.into_iter().map(Handle::Fd));
        self.payer = payer.clone();
    }

    /// The peer that sent them.
    pub(crate) fn payer(&self) -> &Payer {
        &self.payer
    }

    /// The ends among them, and what has an end. All else is closed.
    pub(crate) fn into_ends(mut self) -> Vec<Handle> {
        let (descriptors, others) = self.take().into_iter().partition(Handle::has_own_descriptor);
        self.handles = descriptors;
        others
    }

    /// The descriptors, each by itself.
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
        // It may be large.
        Handle::Region(region) => region.into_only_fd().into_iter().for_each(|fd| close(fd, payer)),
        other => drop(other),
    }
}

thread_local! {
    /// What this thread is about to close of what was left for ends.
    static LEFT: RefCell<Option<Vec<(Handle, Payer)>>> = const { RefCell::new(None) };
}

/// Closes handles that were left for an end that never took them. With ends among them may go what was left for those, and so
/// on: that is closed after them, and not from within, however long the row is.
pub(crate) fn close_left(mut left: Untaken) {
    if left.is_empty() {
        return;
    }
    let mut handles = Some(left.take().into_iter().map(|handle| (handle, left.payer.clone())).collect::<Vec<_>>());
    let begins = LEFT.try_with(|left| match &mut *left.borrow_mut() {
        Some(left) => {
            left.extend(handles.take().into_iter().flatten());
            false
        }
        none => {
            *none = handles.take();
            true
        }
    });
    match begins {
        Ok(true) => {
            let next = |left: &RefCell<Option<Vec<_>>>| left.borrow_mut().as_mut().and_then(Vec::pop);
            while let Ok(Some((handle, payer))) = LEFT.try_with(next) {
                close_one(handle, &payer);
            }
            let _ = LEFT.try_with(RefCell::take);
        }
        Ok(false) => {}
        // The thread is ending.
        Err(_) => handles.into_iter().flatten().for_each(|(handle, payer)| close_one(handle, &payer)),
    }
}

/// How long a thread may take for what takes no time, on a machine that has much to do.
const PATIENCE: Duration = Duration::from_millis(250);

/// A socket of somebody who is not let in yet, in which something may be unread when it is closed.
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

/// A packet that a thread takes off a socket, since the kernel drops descriptors with it. The kernel copies the bytes before it drops
/// the descriptors: so the packet is seen to be taken even while the thread waits for those.
pub(crate) struct Taking {
    /// The opposite of what was shown of the packet, until it was taken.
    bytes: Shared,
    /// Whether it was taken, once the thread has come back.
    over: Mutex<Option<bool>>,
    turn: Condvar,
}

impl Taking {
    /// Waits until it is taken. False if it could not be.
    fn wait(&self, shown: &[u8]) -> bool {
        /// How long it takes where nothing blocks, about. If it takes longer, it is looked at what was copied.
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

    /// Whether its thread comes back soon.
    fn comes_back(&self) -> bool {
        let over = self.turn.wait_timeout_while(unpoisoned(&self.over), PATIENCE, |over| over.is_none());
        over.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    fn is_over(&self, taken: bool) {
        *unpoisoned(&self.over) = Some(taken);
        self.turn.notify_all();
    }
}

/// Takes the packet at the head of a socket, which was shown so, while there are descriptors beside it that have not become this
/// process's: to drop them can take long. A thread does it, one for each peer.
///
/// # Errors
/// [`Error::BadPeer`] if the last one has not come back; [`Error::PeerClosed`] if there is nothing to take; [`Error::System`].
pub(crate) fn take_elsewhere(socket: Arc<OwnedFd>, shown: &[u8], payer: &Payer) -> Result<(), Error> {
    // Nobody is the peer of a link.
    let Some(mut last) = payer.taking() else { return Err(Error::PeerClosed) };
    if last.as_ref().is_some_and(|last| !last.comes_back()) {
        return Err(Error::BadPeer("descriptors that take longer to close than to send"));
    }
    let bytes = Shared::new(shown.iter().map(|byte| !byte));
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

/// A descriptor that a peer sent and that is nobody's yet.
#[derive(Debug)]
pub(crate) struct Foreign {
    fd: Option<OwnedFd>,
    payer: Payer,
}

impl Foreign {
    pub(crate) fn new(fd: OwnedFd, payer: &Payer) -> Self {
        Self { fd: Some(fd), payer: payer.clone() }
    }

    /// It is somebody's now.
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
