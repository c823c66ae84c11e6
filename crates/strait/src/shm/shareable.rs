//! Memory that can be sent to another process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::Mapping;

/// Offset in bytes of a message's payload from the start of a block of a pool. The payload begins at a page, for
/// programs that read or write the payload in place.
pub(crate) const PAYLOAD: usize = 4096;

/// Memory that this process can give to the other side of a channel: its mapping, and a descriptor if the other side is
/// in another process.
#[derive(Debug)]
pub(crate) struct Shareable {
    pub(crate) mapping: Arc<Mapping>,
    /// The descriptor of the memory. `None` if the other side is in this process, or if the mapping itself has retained
    /// the descriptor.
    pub(crate) fd: Option<OwnedFd>,
}

impl Shareable {
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(OwnedFd::as_fd).or_else(|| self.mapping.descriptor())
    }
}
