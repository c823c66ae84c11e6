//! The number of an attachment: to which message it belongs, and to which attempt to send that message.
//!
//! One message can need several packets on the socket. If there is no room for the last of them in time, the message
//! fails, and the next message has the same sequence number. The receiver must then not take attachments of the failed
//! message for attachments of the next one.

use std::ops::RangeInclusive;

use crate::ring::Try;

/// The number of low bits of an [`AttachmentKey`] that hold the attempt to send the message. The bits above hold the
/// low bits of the message's sequence number; no two messages in flight share those.
const TRY_BITS: u32 = Try::BITS;
const SEQUENCE_BITS: u32 = 63 - TRY_BITS;

/// The bit of an [`AttachmentKey`] that marks an unnumbered attachment, which belongs to no single message.
const UNNUMBERED: u64 = 1 << 63;

/// The attachment key: the number by which the receiver finds the attachments (descriptors or memory beside packets) of
/// one attempt to send one message. Keys are ordered by message, then by attempt; those of unnumbered attachments come
/// last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AttachmentKey(u64);

impl AttachmentKey {
    pub(crate) const LOWEST: Self = Self(0);
    pub(crate) const HIGHEST: Self = Self(u64::MAX);

    /// Returns the attachment key for the attempt `attempt` to send the message with the sequence number
    /// `sequence`.
    pub(crate) fn new(sequence: u64, attempt: Try) -> Self {
        Self((sequence << TRY_BITS | u64::from(attempt.to_bits())) & !UNNUMBERED)
    }

    /// Returns the attachment key for the first attempt to send the message with the sequence number
    /// `sequence`.
    pub(crate) fn first(sequence: u64) -> Self {
        Self::new(sequence, Try::FIRST)
    }

    /// Returns the attachment key of an unnumbered attachment, which belongs to no single message. `count`
    /// distinguishes such attachments.
    pub(crate) fn unnumbered(count: u64) -> Self {
        Self(count | UNNUMBERED)
    }

    /// Encodes this attachment key for a packet. For a first attempt the result is the sequence number of the message.
    pub(crate) fn to_word(self) -> u64 {
        if self.0 & UNNUMBERED != 0 {
            return self.0;
        }
        self.0 >> TRY_BITS | self.attempt() << SEQUENCE_BITS
    }

    pub(crate) fn from_word(word: u64) -> Self {
        if word & UNNUMBERED != 0 {
            return Self(word);
        }
        Self((word << TRY_BITS | word >> SEQUENCE_BITS) & !UNNUMBERED)
    }

    fn attempt(self) -> u64 {
        self.0 & ((1 << TRY_BITS) - 1)
    }

    /// Returns whether this attachment key is of a repeated attempt: an earlier attempt to send this message, or
    /// another message with the same sequence number, failed. `false` for unnumbered attachments.
    pub(crate) fn is_again(self) -> bool {
        self.0 & UNNUMBERED == 0 && self.attempt() != 0
    }

    /// Returns the range of the attachment keys for all attempts to send the message to which this key belongs.
    pub(crate) fn all_tries(self) -> RangeInclusive<Self> {
        let first = self.0 & !((1 << TRY_BITS) - 1);
        Self(first)..=Self(first | ((1 << TRY_BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_word_is_a_number(word: u64) {
            prop_assert_eq!(AttachmentKey::from_word(word).to_word(), word);
        }

        #[test]
        fn messages_and_their_tries_are_in_order(one in 0u64..1 << SEQUENCE_BITS, other in 0u64..1 << SEQUENCE_BITS) {
            let again = Try::FIRST.next();
            prop_assert_eq!(AttachmentKey::first(one).to_word(), one);
            prop_assert_eq!(AttachmentKey::first(one) < AttachmentKey::first(other), one < other);
            prop_assert!(AttachmentKey::first(one) < AttachmentKey::new(one, again) && AttachmentKey::new(one, again) < AttachmentKey::unnumbered(0));
            prop_assert_eq!(AttachmentKey::new(one, again) < AttachmentKey::first(other), one < other);
            prop_assert!(AttachmentKey::new(one, again).all_tries().contains(&AttachmentKey::first(one)));
            prop_assert_eq!(AttachmentKey::new(one, again).all_tries().contains(&AttachmentKey::first(other)), one == other);
        }
    }

    #[test]
    fn only_tries_after_another_are_again() {
        let again = Try::FIRST.next();
        assert!(
            !AttachmentKey::first(7).is_again()
                && AttachmentKey::new(7, again).is_again()
                && !AttachmentKey::unnumbered(u64::MAX).is_again()
        );
        // A counter of attempts that overflows does not return to the first attempt.
        let mut attempt = again;
        (0..1 << TRY_BITS).for_each(|_| {
            attempt = attempt.next();
            assert_ne!(attempt, Try::FIRST);
        });
    }
}
