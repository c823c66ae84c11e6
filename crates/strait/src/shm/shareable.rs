//! Memory that is handed on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::Mapping;

/// Where the message begins in a block of a pool: at a page, for the sake of those who read or write it in place.
pub(crate) const PAYLOAD: usize = 4096;

/// Memory that can be handed to the other side.
#[derive(Debug)]
pub(crate) struct Shareable {
    pub(crate) mapping: Arc<Mapping>,
    /// Its descriptor, if the other side is another process and the mapping has not kept it.
    pub(crate) fd: Option<OwnedFd>,
}

impl Shareable {
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(OwnedFd::as_fd).or_else(|| self.mapping.descriptor())
    }
}
