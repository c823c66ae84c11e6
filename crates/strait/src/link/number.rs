//! To which message something belongs that was sent for it over the socket, and to which try to send that.
//!
//! What one message needs the socket for can be several packets. When there is no room for the last of them in time, the message
//! fails, and the next one has its sequence number: then what the receiver has of the first must not be taken for the
//! second's.

use std::ops::RangeInclusive;

use crate::ring::Try;

/// Bits for the try, above which the sequence number is, as far as it fits: of messages under way no two have the same.
const TRY_BITS: u32 = Try::BITS;
const SEQUENCE_BITS: u32 = 63 - TRY_BITS;

/// Says that it is of no message.
const APART: u64 = 1 << 63;

/// The messages of one direction in their order, the tries of each in theirs, and last what belongs to no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number(u64);

impl Number {
    pub(crate) const LOWEST: Self = Self(0);
    pub(crate) const HIGHEST: Self = Self(u64::MAX);

    /// Of this try to send the message of this sequence number.
    pub(crate) fn new(sequence: u64, attempt: Try) -> Self {
        Self((sequence << TRY_BITS | u64::from(attempt.to_bits())) & !APART)
    }

    /// The same for a message of which there was no other try.
    pub(crate) fn first(sequence: u64) -> Self {
        Self::new(sequence, Try::FIRST)
    }

    /// The `count`th of those that belong to no message.
    pub(crate) fn apart(count: u64) -> Self {
        Self(count | APART)
    }

    /// As it is sent: of a first try, the sequence number.
    pub(crate) fn to_word(self) -> u64 {
        if self.0 & APART != 0 {
            return self.0;
        }
        self.0 >> TRY_BITS | self.attempt() << SEQUENCE_BITS
    }

    pub(crate) fn from_word(word: u64) -> Self {
        if word & APART != 0 {
            return Self(word);
        }
        Self((word << TRY_BITS | word >> SEQUENCE_BITS) & !APART)
    }

    fn attempt(self) -> u64 {
        self.0 & ((1 << TRY_BITS) - 1)
    }

    /// Whether there was another try before it, of this message or of an earlier one.
    pub(crate) fn is_again(self) -> bool {
        self.0 & APART == 0 && self.attempt() != 0
    }

    /// All tries to send this message.
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
            prop_assert_eq!(Number::from_word(word).to_word(), word);
        }

        #[test]
        fn messages_and_their_tries_are_in_order(one in 0u64..1 << SEQUENCE_BITS, other in 0u64..1 << SEQUENCE_BITS) {
            let again = Try::FIRST.next();
            prop_assert_eq!(Number::first(one).to_word(), one);
            prop_assert_eq!(Number::first(one) < Number::first(other), one < other);
            prop_assert!(Number::first(one) < Number::new(one, again) && Number::new(one, again) < Number::apart(0));
            prop_assert_eq!(Number::new(one, again) < Number::first(other), one < other);
            prop_assert!(Number::new(one, again).all_tries().contains(&Number::first(one)));
            prop_assert_eq!(Number::new(one, again).all_tries().contains(&Number::first(other)), one == other);
        }
    }

    #[test]
    fn only_tries_after_another_are_again() {
        let again = Try::FIRST.next();
        assert!(
            !Number::first(7).is_again() && Number::new(7, again).is_again() && !Number::apart(u64::MAX).is_again()
        );
        // A number that has run through all begins after the first.
        let mut attempt = again;
        (0..1 << TRY_BITS).for_each(|_| {
            attempt = attempt.next();
            assert_ne!(attempt, Try::FIRST);
        });
    }
}
