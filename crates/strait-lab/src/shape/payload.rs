//! The content of a measured message, written whole by the sender and checked by the receiver.
//!
//! Each message carries its number in its first and last bytes. The receiver copies the whole message out before it
//! checks, and the check does not depend on the mechanism. A message that is lost, doubled, reordered or torn ends
//! the run.

use std::arch::asm;

use crate::trouble::{Result, Trouble};

/// The number of the message that announces the measured part.
pub(crate) const STEADY: u64 = u64::MAX - 1;
/// The number of the message that announces the end.
pub(crate) const STOP: u64 = u64::MAX;

/// The size in bytes of the smallest message: it has room for a number.
pub const SMALLEST: usize = 8;

/// Writes `number` into both ends of `message`.
#[inline(always)]
pub fn stamp(message: &mut [u8], number: u64) {
    // The end is written first: in a message of fewer than 12 bytes the two overlap, and the beginning must be whole.
    if let Some(end) = message.last_chunk_mut::<4>() {
        *end = (number as u32).to_le_bytes();
    }
    if let Some(start) = message.first_chunk_mut::<8>() {
        *start = number.to_le_bytes();
    }
    used(message);
}

/// Makes the compiler assume that every byte of `message` is read here.
///
/// `black_box` does so too, but also stores the pointer, and a round trip has two of these calls.
#[inline(always)]
fn used(message: &[u8]) {
    // SAFETY: the assembly contains no instruction, so it does nothing, whatever the compiler must assume.
    unsafe { asm!("/* {0} */", in(reg) message.as_ptr(), options(nostack, preserves_flags)) };
}

/// Returns the number at the beginning of `message`.
#[inline(always)]
pub(crate) fn number(message: &[u8]) -> u64 {
    used(message);
    message.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Checks that `message` has the number `due` at both ends.
#[inline(always)]
pub(crate) fn check(message: &[u8], due: u64) -> Result<()> {
    let found = number(message);
    let end = match message.last_chunk::<4>() {
        Some(end) if message.len() >= 12 => u32::from_le_bytes(*end),
        _ => due as u32,
    };
    if found == due && end == due as u32 { Ok(()) } else { Err(wrong(found, end, due)) }
}

#[cold]
fn wrong(found: u64, end: u32, due: u64) -> Trouble {
    if found == due {
        Trouble::new(format!("message {due} is torn: it ends as message {end}"))
    } else {
        Trouble::new(format!("message {found} came where message {due} was due"))
    }
}

/// Mixes `bytes` into a running sum, eight at a time. The sum is cheap enough for a quarter of a gigabyte, and any
/// changed or misplaced word changes it.
pub fn sum(mut sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        sum = (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    for byte in rest {
        sum = (sum.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::{check, number, stamp, sum};

    #[test]
    fn what_was_stamped_checks() {
        for size in [8, 9, 12, 15, 16, 56, 64, 4096] {
            let mut message = vec![0; size];
            stamp(&mut message, 0x0123_4567_89AB);
            assert_eq!(number(&message), 0x0123_4567_89AB, "{size}");
            assert!(check(&message, 0x0123_4567_89AB).is_ok(), "{size}");
            assert!(check(&message, 0x0123_4567_89AC).is_err(), "{size}");
        }
    }

    #[test]
    fn a_torn_message_is_found() {
        let mut message = vec![0; 64];
        stamp(&mut message, 7);
        message[60] ^= 1;
        assert!(check(&message, 7).unwrap_err().to_string().contains("torn"));
    }

    #[test]
    fn the_sum_sees_order_and_place() {
        let one = sum(0, &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        let two = sum(0, &[2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_ne!(one, two);
    }
}
