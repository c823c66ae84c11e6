//! A ring: one direction of a channel, in memory that both sides write.
//!
//! The ring is an array of 64-byte cells. A **record** is an 8-byte [header](Header) and its payload, in whole
//! cells that lie side by side; where the end of the array is too near, a record of kind *pad* skips to the start.
//!
//! The header is the commit point: 0 means *not written yet*. The [`Producer`] writes the payload, zeroes the
//! header after it, and then compare-and-swaps the header from 0. That one operation publishes the message; it
//! is the barrier that makes the following look at the consumer's *sleeping* word safe; and it fails if the
//! consumer has put a mark of its own there (*closed*, and later *frozen*), after which nothing more can be
//! published. The [`Consumer`] polls the header at its position and finds a small message in the very cache line
//! that it polled.
//!
//! A **batch** is the same: the later records are written whole, then the first header is swapped in and all of
//! them are there. Small messages of a batch share a record, a **pack**, and so its cache lines.
//!
//! Positions are private to each side. What the other side writes (*credit*, the headers) is a claim: loaded once,
//! checked against private state, and used from the local copy.
//!
//! The ring knows nothing of system calls or of what is in its messages. It is generic over its [`Memory`], so
//! that the model checker drives the same code that ships.

pub(crate) mod board;
mod consumer;
pub(crate) mod hand;
mod header;
mod memory;
mod producer;
mod sleep;
pub(crate) mod stream;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use consumer::{Consumer, Corrupt, Front, Record, Survey};
pub(crate) use header::{Header, Kind, Try};
pub(crate) use memory::{Memory, Word};
pub(crate) use producer::{Ended, NoRoom, Packing, Producer, Slot};
pub(crate) use sleep::{announce, rouse, take_sleeper};

/// The number of bytes of the largest message that any end can send or receive: 256 MiB.
pub const MAX_MESSAGE: usize = 256 << 20;

/// Bytes of a cell: a cache line.
pub(crate) const CELL: usize = 64;

/// Bytes of a record's header.
pub(crate) const HEADER: usize = 8;

/// Bytes of the word before each message of a pack, and what each is aligned to.
pub(crate) const PACK_WORD: usize = 8;

/// Bytes of the longest message that goes into a pack. Longer ones lose little by having cells of their own.
pub(crate) const PACKABLE: usize = 256;

/// Cells of the smallest ring.
pub(crate) const MIN_CELLS: usize = 4;

/// Cells that a record with a payload of `len` bytes takes.
#[inline]
pub(crate) const fn cells_for(len: usize) -> usize {
    (HEADER + len).div_ceil(CELL)
}

/// Longest payload of a ring with so many cells: three eighths of it.
///
/// So a producer that waits for room never waits for credit that the consumer is still keeping back (it gives it a
/// quarter of the ring at a time): of a ring that was read to the end, three quarters at least are free as far as the
/// producer knows, and a record with the padding before it and the header behind it needs no more.
#[inline]
pub(crate) const fn longest_payload(cells: usize) -> usize {
    cells * 3 / 8 * CELL - HEADER
}

/// Cells of the smallest ring that takes a payload of `len` bytes.
pub(crate) const fn cells_to_carry(len: usize) -> usize {
    let mut cells = MIN_CELLS;
    while longest_payload(cells) < len {
        cells *= 2;
    }
    cells
}
