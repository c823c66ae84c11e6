//! Closing descriptors that a peer sent and that nobody asked to have.
//!
//! To close a descriptor can take as long as its file system, or the other side of a connection, likes; and a peer can
//! serve a file system itself. What is known to close at once is closed at once. For anything else one thread is started,
//! which closes it and ends when there is no more. It is not started for
//! descriptors that the user has taken out of a message.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use crate::fork::PerProcess;
use crate::handle::Handle;
use crate::link::unpoisoned;
use crate::sys::{background, close};

struct Closer {
    waiting: VecDeque<OwnedFd>,
    running: bool,
}

static CLOSER: PerProcess<Mutex<Closer>> =
    PerProcess::new(|| Mutex::new(Closer { waiting: VecDeque::new(), running: false }));

/// Bytes of the thread's stack.
const STACK: usize = 64 << 10;

/// Closes a descriptor that a peer sent. Does not block.
pub(crate) fn close(fd: OwnedFd) {
    if !close::may_block(fd.as_fd()) {
        return;
    }
    let mut closer = unpoisoned(CLOSER.get());
    closer.waiting.push_back(fd);
    if !closer.running {
        // If there is no room for a thread, the next one that is to be closed tries again.
        closer.running = background::start("strait-close", STACK, run);
    }
}

/// Closes handles that came from a peer. Ends of channels are dropped.
pub(crate) fn close_all(handles: Vec<Handle>) {
    handles.into_iter().for_each(close_one);
}

fn close_one(handle: Handle) {
    if let Handle::Fd(fd) = handle {
        close(fd);
    }
}

thread_local! {
    /// What this thread is about to close of what was left for ends.
    static LEFT: RefCell<Option<Vec<Handle>>> = const { RefCell::new(None) };
}

/// Closes handles that were left for an end that never took them. With ends among them may go what was left for those, and so
/// on: that is closed after them, and not from within, however long the row is.
pub(crate) fn close_left(handles: Vec<Handle>) {
    if handles.is_empty() {
        return;
    }
    let mut handles = Some(handles);
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
            let next = |left: &RefCell<Option<Vec<Handle>>>| left.borrow_mut().as_mut().and_then(Vec::pop);
            while let Ok(Some(handle)) = LEFT.try_with(next) {
                close_one(handle);
            }
            let _ = LEFT.try_with(RefCell::take);
        }
        Ok(false) => {}
        // The thread is ending.
        Err(_) => handles.into_iter().flatten().for_each(close_one),
    }
}

/// A descriptor that a peer sent and that is nobody's yet.
#[derive(Debug)]
pub(crate) struct Foreign(Option<OwnedFd>);

impl Foreign {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }

    /// It is somebody's now.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.0.take().expect("taken once")
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("not taken yet").as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            close(fd);
        }
    }
}

fn run() {
    loop {
        let mut closer = unpoisoned(CLOSER.get());
        let next = closer.waiting.pop_front();
        closer.running = next.is_some();
        drop(closer);
        match next {
            Some(fd) => drop(fd),
            None => return,
        }
    }
}
