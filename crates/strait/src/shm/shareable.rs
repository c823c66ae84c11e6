//! Memory that can be sent to another process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::Mapping;

/// Offset in bytes of the message in a block of a pool. A message begins at a page, for users that read or write in
/// place.
pub(crate) const PAYLOAD: usize = 4096;

/// Memory that can be handed to the other side of a channel, with its descriptor if that side is another process.
#[derive(Debug)]
pub(crate) struct Shareable {
    pub(crate) mapping: Arc<Mapping>,
    /// The descriptor, if the other side is another process and the mapping has not retained the descriptor.
    pub(crate) fd: Option<OwnedFd>,
}

impl Shareable {
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(OwnedFd::as_fd).or_else(|| self.mapping.descriptor())
    }
}
