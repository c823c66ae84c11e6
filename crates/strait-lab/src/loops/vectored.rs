//! Messages in several pieces: sent by one vectored call, or assembled in new memory first, as a transport without a
//! vectored send requires.
//!
//! The second process acknowledges as in a [ping-pong](super::ping_pong).

use std::io::IoSlice;

use super::parts::{acknowledged, closed_loop};
use crate::mechanism::End;
use crate::shape::payload::SMALLEST;
use crate::trouble::Result;
use crate::work::{Report, Work};

/// Returns the pieces of a message, of about equal size, each in memory of its own.
fn pieces(size: usize, parts: usize) -> Vec<Vec<u8>> {
    (0..parts).map(|part| vec![part as u8; size * (part + 1) / parts - size * part / parts]).collect()
}

/// Writes `number` into the first 8 and the last 4 bytes of the message, across pieces.
fn stamp(pieces: &mut [Vec<u8>], number: u64) {
    let bytes = number.to_le_bytes();
    for (to, from) in pieces.iter_mut().rev().flat_map(|piece| piece.iter_mut().rev()).zip([3, 2, 1, 0]) {
        *to = bytes[from];
    }
    for (to, from) in pieces.iter_mut().flatten().zip(bytes) {
        *to = from;
    }
}

/// Runs the first process of the shape `vectored`: sends messages in `parts` pieces, and waits for each
/// acknowledgement. If `linear` is set, the pieces are assembled first.
pub(super) fn first(end: &mut impl End, work: &Work, parts: usize, linear: bool) -> Result<Report> {
    let mut pieces = pieces(work.size, parts);
    closed_loop(work, |number| {
        stamp(&mut pieces, number);
        let pieces = std::hint::black_box(&pieces);
        if linear {
            let mut message = Vec::with_capacity(work.size);
            pieces.iter().for_each(|piece| message.extend_from_slice(piece));
            end.send(&message)?;
        } else if parts <= 64 {
            // The list is on the stack, as a careful sender has it.
            let mut slices = [IoSlice::new(&[]); 64];
            for (slice, piece) in slices.iter_mut().zip(pieces) {
                *slice = IoSlice::new(piece);
            }
            end.send_gathered(&slices[..parts])?;
        } else {
            let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            end.send_gathered(&slices)?;
        }
        let mut answer = [0; SMALLEST];
        end.recv(&mut answer)?;
        acknowledged(&answer, number)
    })
}

#[cfg(test)]
mod tests {
    use super::{pieces, stamp};
    use crate::shape::payload;

    #[test]
    fn the_pieces_are_the_message() {
        for (size, parts) in [(256, 1), (256, 64), (4096, 7), (12, 12), (64, 64)] {
            let mut pieces = pieces(size, parts);
            stamp(&mut pieces, 0x0102_0304_0506_0708);
            let whole = pieces.concat();
            assert_eq!((whole.len(), pieces.len()), (size, parts));
            assert!(payload::check(&whole, 0x0102_0304_0506_0708).is_ok(), "{size} {parts}");
        }
    }
}
