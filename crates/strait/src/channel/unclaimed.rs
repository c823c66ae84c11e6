//! Unclaimed handles: received, and not taken by the program.

use std::ops::Deref;

use crate::channel::handle::Handle;
use crate::deferred::InTurn;
use crate::quota::Payer;
use crate::quota::closing::{self, ReceivedFd};

/// Received handles, not taken by the program yet, with the account of the sending peer. Dropping this value closes the
/// handles; channel ends among them are dropped.
#[derive(Debug, Default)]
pub(crate) struct UnclaimedHandles {
    handles: Vec<Handle>,
    payer: Payer,
}

impl UnclaimedHandles {
    pub(crate) fn new(handles: Vec<Handle>, payer: Payer) -> Self {
        Self { handles, payer }
    }

    /// Takes out and returns all handles of this `UnclaimedHandles`; the caller owns the returned handles.
    pub(crate) fn take(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.handles)
    }

    /// Takes the handle with this index; the caller then owns the handle. Returns `None` if there are fewer handles.
    pub(crate) fn take_one(&mut self, index: usize) -> Option<Handle> {
        (index < self.handles.len()).then(|| self.handles.remove(index))
    }

    /// Returns the file descriptors `received`, which arrived from the peer with the account `payer`, as handles.
    pub(crate) fn received(received: Vec<ReceivedFd>, payer: &Payer) -> Self {
        Self::new(received.into_iter().map(|fd| Handle::Fd(fd.into_fd())).collect(), payer.clone())
    }

    /// Returns the account of the peer process that sent the handles.
    pub(crate) fn payer(&self) -> &Payer {
        &self.payer
    }

    /// Returns the handles, each with the account of the peer.
    pub(crate) fn into_each(mut self) -> Vec<UnclaimedHandle> {
        let each = |handle| UnclaimedHandle { handle: Some(handle), payer: self.payer.clone() };
        std::mem::take(&mut self.handles).into_iter().map(each).collect()
    }

    /// Returns the channel ends and the data-pipe ends among the handles. Closes all other handles.
    pub(crate) fn into_ends(mut self) -> Vec<Handle> {
        let (descriptors, others) = self.take().into_iter().partition(Handle::has_own_descriptor);
        self.handles = descriptors;
        others
    }
}

impl Deref for UnclaimedHandles {
    type Target = [Handle];

    fn deref(&self) -> &[Handle] {
        &self.handles
    }
}

impl Drop for UnclaimedHandles {
    fn drop(&mut self) {
        if !self.handles.is_empty() {
            self.take().into_iter().for_each(|handle| close_one(handle, &self.payer));
        }
    }
}

/// A received handle that the program has not taken, outside of its message. Dropping this value closes the handle
/// without blocking, at the charge of the peer that sent the handle.
#[derive(Debug)]
pub struct UnclaimedHandle {
    /// `None` once claimed.
    handle: Option<Handle>,
    payer: Payer,
}

impl UnclaimedHandle {
    /// Returns the handle, which the program owns and closes from now on.
    pub fn claim(mut self) -> Handle {
        self.handle.take().expect("claimed once")
    }
}

impl Deref for UnclaimedHandle {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        self.handle.as_ref().expect("not claimed yet")
    }
}

impl Drop for UnclaimedHandle {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            close_one(handle, &self.payer);
        }
    }
}

fn close_one(handle: Handle, payer: &Payer) {
    match handle {
        Handle::Fd(fd) => closing::close(fd, payer),
        // The region may be large, and take long to free.
        Handle::Region(region) => region.into_only_fd().into_iter().for_each(|fd| closing::close(fd, payer)),
        other => drop(other),
    }
}

thread_local! {
    /// Handles about to be closed by this thread, because the receiving ends were closed before receiving them.
    static LEFT: InTurn<(Handle, Payer)> = const { InTurn::new() };
}

/// Closes unreceived handles of an end. A channel end among these handles may have such handles as well, and so on. The
/// inner handles are closed afterwards, in a loop without recursion, however long the chain is.
pub(crate) fn close_left(mut left: UnclaimedHandles) {
    if !left.is_empty() {
        let handles = left.take().into_iter().map(|handle| (handle, left.payer.clone())).collect();
        InTurn::let_go(&LEFT, handles, || {}, |(handle, payer)| close_one(handle, &payer));
    }
}
