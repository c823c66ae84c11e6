//! Closing descriptors that a peer sent and that nobody asked to have.
//!
//! To close a descriptor can take as long as its file system, or the other side of a connection, likes; and a peer can
//! serve a file system itself. What is known to close at once is closed at once. For anything else one thread is started,
//! which closes it and ends when there is no more: the only one that this library ever starts. It is not started for
//! descriptors that the user has taken out of a message.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use crate::handle::Handle;
use crate::link::unpoisoned;
use crate::sys::close;

struct Closer {
    waiting: VecDeque<OwnedFd>,
    running: bool,
}

static CLOSER: Mutex<Closer> = Mutex::new(Closer { waiting: VecDeque::new(), running: false });

/// Bytes of the thread's stack.
const STACK: usize = 64 << 10;

/// Closes a descriptor that a peer sent. Does not block.
pub(crate) fn close(fd: OwnedFd) {
    if !close::may_block(fd.as_fd()) {
        return;
    }
    let mut closer = unpoisoned(&CLOSER);
    closer.waiting.push_back(fd);
    if !closer.running {
        let builder = std::thread::Builder::new().name("strait-close".into()).stack_size(STACK);
        // If there is no room for a thread, the next one that is to be closed tries again.
        closer.running = builder.spawn(run).is_ok();
    }
}

/// Closes handles that came from a peer. Ends of channels are dropped.
pub(crate) fn close_all(handles: Vec<Handle>) {
    for handle in handles {
        if let Handle::Fd(fd) = handle {
            close(fd);
        }
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
        let mut closer = unpoisoned(&CLOSER);
        let next = closer.waiting.pop_front();
        closer.running = next.is_some();
        drop(closer);
        match next {
            Some(fd) => drop(fd),
            None => return,
        }
    }
}
