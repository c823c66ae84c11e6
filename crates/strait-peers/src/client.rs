//! The client's side of a library.

use std::os::fd::BorrowedFd;

use crate::Result;

/// The bytes that both sides touch of a message without copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The first and the last eight bytes.
    Ends,
    /// One byte of each page.
    Pages,
}

impl Touch {
    /// Writes to the touched bytes of a new message, after the tag and the number in its first 16 bytes.
    pub fn write(self, message: &mut [u8], number: u8) {
        if self == Touch::Pages {
            message.iter_mut().skip(4096).step_by(4096).for_each(|byte| *byte = number);
        }
        if let Some(last) = message.len().checked_sub(8).filter(|last| *last >= 16) {
            message[last..].fill(number);
        }
    }

    /// Reads the touched bytes, and returns a sum that the caller must use.
    pub fn read(self, message: &[u8]) -> u64 {
        let ends = message.iter().take(8).chain(message.iter().rev().take(8)).map(|byte| u64::from(*byte));
        let pages = match self {
            Touch::Ends => 0,
            Touch::Pages => message.iter().step_by(4096).map(|byte| u64::from(*byte)).sum(),
        };
        std::hint::black_box(ends.sum::<u64>() + pages)
    }
}

/// A connected client.
pub trait Client {
    /// Sends `request`, waits for its reply, and copies the reply into `reply` (of any former length).
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()>;

    /// Sends a message without a reply.
    fn post(&mut self, _message: &[u8]) -> Result<()> {
        Err(NOT_OFFERED.into())
    }

    /// Writes a message of `len` bytes in place: `head` first, then the bytes chosen by `touch`. Sends it, and waits
    /// for the short reply.
    fn in_place(&mut self, _head: &[u8], _len: usize, _touch: Touch) -> Result<()> {
        Err(NOT_OFFERED.into())
    }

    /// Sends `request` with a descriptor. Waits for the reply, which comes once the server has the descriptor.
    fn pass(&mut self, _request: &[u8], _descriptor: BorrowedFd<'_>) -> Result<()> {
        Err(NOT_OFFERED.into())
    }
}

/// The error for a row that a library does not offer.
pub(crate) const NOT_OFFERED: &str = "not offered";
