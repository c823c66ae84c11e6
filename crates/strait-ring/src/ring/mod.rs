//! A ring: one direction of a channel, in memory that both processes can write.
//!
//! The ring is an array of 64-byte cells. A **record** is an 8-byte [header](Header) and its payload, in whole adjacent
//! cells. If the record does not fit before the end of the array, a record of kind *pad* fills the rest, and the record
//! begins at the start of the array.
//!
//! The header is the commit point: 0 means *not written yet*. The [`Producer`] writes the payload, zeroes the header
//! behind the record, and then compare-and-swaps the record's own header from 0. This one operation publishes the
//! message. It also is the barrier before the producer's look at the consumer's *sleeping* word. If the consumer has
//! put a mark (*closed* or *frozen*) into this header, the operation fails, and nothing more can be published. The
//! [`Consumer`] polls the header at its position and finds a small message in the same cache line.
//!
//! A **batch** is published in the same way: the producer writes all later records first, then swaps in the first
//! header, and all records of the batch appear at once. Small messages of a batch share a **packed record**, and so its
//! cache lines.
//!
//! Positions are private to each side. The words that the other side writes (*credit* and the headers) are claims: each
//! is loaded once, checked against private state, and used from the local copy.
//!
//! The ring makes no system calls and does not interpret messages. It is generic over its [`Memory`], so that the model
//! checker drives the same code that ships.

mod consumer;
mod header;
mod memory;
mod producer;
pub mod ready_bitmap;
mod sleep;
pub mod stream;
#[cfg(any(test, strait_model))]
#[doc(hidden)]
#[allow(missing_docs, missing_debug_implementations, reason = "for tests of this workspace alone")]
pub mod tests;
pub mod transfer_word;

pub use consumer::{Consumer, Corrupt, NextRecord, Popped, Record, Survey};
pub use header::{Header, RecordKind};
pub use memory::{Memory, Word};
pub use producer::{Ended, NoRoom, Packing, Producer, Slot};
pub use sleep::{announce, take_sleeper, wake_for};

/// Number of bytes of the longest message that an end can send or receive: 256 MiB.
pub const MAX_MESSAGE: usize = 256 << 20;

/// Size of a cell in bytes: one cache line.
pub const CELL: usize = 64;

/// Size of a record's header in bytes.
pub const HEADER: usize = 8;

/// Number of bytes of the longest payload in a single cell.
pub const ONE_CELL: usize = CELL - HEADER;

/// Size in bytes of the word before each message of a packed record that says the message's length. Each message begins
/// at a multiple of this size.
pub const PACK_WORD: usize = 8;

/// Length in bytes of the longest message that still goes into a packed record. Longer messages lose little by having
/// cells of their own.
pub const PACKABLE: usize = 256;

/// Number of cells of the smallest ring made by this library.
pub const MIN_CELLS: usize = 4;

/// Number of cells of the largest ring that a peer may claim to have. No correct process has a larger ring.
pub const MAX_CELLS: usize = 1 << 24;

/// Returns the number of cells of a record with a payload of `len` bytes, including the header.
#[inline]
pub const fn cells_for(len: usize) -> usize {
    (HEADER + len).div_ceil(CELL)
}

/// Returns the number of bytes of the longest payload that a record may have in a ring of `cells` cells: three eighths
/// of the ring.
///
/// Because of this bound, a producer that waits for room never waits for owed credit. The consumer gives credit as soon
/// as it owes a quarter of the ring. So once the consumer has read everything, the producer has credit for at least
/// three quarters of the ring. The record needs no more, with the padding before it and the header behind it.
#[inline]
pub const fn longest_payload(cells: usize) -> usize {
    cells * 3 / 8 * CELL - HEADER
}

/// Returns the number of cells of the smallest ring in which a record may have a payload of `len` bytes.
#[inline]
pub const fn cells_to_carry(len: usize) -> usize {
    let mut cells = MIN_CELLS;
    while longest_payload(cells) < len {
        cells *= 2;
    }
    cells
}
