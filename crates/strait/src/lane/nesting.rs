//! Nesting: which channel ends lie in messages for which other ends, within this process.
//!
//! If ends lie in messages for each other, no variable holds any of them, and no end is left to receive them: they
//! would stay open for ever. So a send looks, before it [takes the places](Places::take) of its ends, whether it would
//! close such a cycle.

use std::collections::{HashMap, hash_map};
use std::hash::{BuildHasherDefault, Hasher};

use super::mailbox::mailbox;

/// The ends in messages within this process. An end is named by the token of the ring that the end reads.
#[derive(Debug, Default)]
pub(crate) struct Nesting {
    /// For each end in a message: the token of the ring of the message.
    places: HashMap<u128, u128, BuildHasherDefault<TokenHasher>>,
    /// For each end that will go on in another ring within this process, by the token of that ring: the token of the
    /// ring that the end reads before.
    earlier: HashMap<u128, u128, BuildHasherDefault<TokenHasher>>,
}

impl Nesting {
    /// Returns whether a message to the ring with this token would be, directly or through other messages, in a message
    /// for an end that reads one of `rings`.
    ///
    /// If such an end is sent in the message, no end is left to receive the message or the sent end: the two would hold
    /// each other for ever.
    pub(crate) fn lies_within(&self, token: u128, rings: &[u128]) -> bool {
        let outer = |ring: &u128| self.places.get(ring).or_else(|| self.earlier.get(ring)).copied();
        // The search is bounded, because a value may have closed a cycle of which a part is known here.
        let most = self.places.len() + self.earlier.len() + 1;
        std::iter::successors(Some(token), outer).take(most).any(|ring| rings.contains(&ring))
    }

    /// Notes that the ends that read `rings` lie in a message to the ring with this token.
    pub(super) fn place(&mut self, token: u128, rings: &[u128]) {
        for ring in rings {
            self.places.insert(*ring, token);
        }
    }

    /// Takes back what [`place`](Self::place) has noted.
    pub(super) fn give_up(&mut self, token: u128, rings: &[u128]) {
        for ring in rings {
            if let hash_map::Entry::Occupied(place) = self.places.entry(*ring)
                && *place.get() == token
            {
                place.remove();
            }
        }
    }

    /// Returns whether no end is noted.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.earlier.is_empty()
    }
}

/// A note that an end goes on in another ring. The note exists as long as this value. The value must be dropped without
/// the lock of the mailbox.
#[derive(Debug)]
pub(crate) struct GoesOn(u128);

impl GoesOn {
    /// Notes that the end that reads the ring with the token `from` goes on in the ring with the token `to`.
    pub(crate) fn note(from: u128, to: u128) -> Self {
        mailbox().nesting.earlier.insert(to, from);
        Self(to)
    }
}

impl Drop for GoesOn {
    fn drop(&mut self) {
        mailbox().nesting.earlier.remove(&self.0);
    }
}

/// The places of the ends in a message that is being sent within this process, taken before the message is staged. Drop
/// gives the places up, unless the message was left in the mailbox. This value must be dropped without the lock of the
/// mailbox.
#[derive(Debug)]
pub(crate) struct Places {
    token: u128,
    rings: Vec<u128>,
}

impl Places {
    /// Takes places for the ends that read `rings`, in a message to the ring with this token. Returns `None` if these
    /// ends and the message would form a cycle: the message would [lie within](Nesting::lies_within) one of the ends.
    pub(crate) fn take(token: u128, rings: Vec<u128>) -> Option<Self> {
        if !rings.is_empty() {
            let nesting = &mut mailbox().nesting;
            if nesting.lies_within(token, &rings) {
                return None;
            }
            nesting.place(token, &rings);
        }
        Some(Self { token, rings })
    }

    /// Takes places as [`take`](Self::take) does, without a look for cycles.
    pub(crate) fn take_unchecked(token: u128, rings: Vec<u128>) -> Self {
        mailbox().nesting.place(token, &rings);
        Self { token, rings }
    }

    /// Returns the rings, for a parcel that keeps the places: a message to the ring with this token.
    pub(crate) fn into_rings(mut self, token: u128) -> Vec<u128> {
        debug_assert_eq!(self.token, token, "the message is in the ring for which the places were taken");
        std::mem::take(&mut self.rings)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if !self.rings.is_empty() {
            mailbox().nesting.give_up(self.token, &self.rings);
        }
    }
}

/// A fast hasher for tokens of rings in this process, chosen by no other process.
#[derive(Debug, Default)]
struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u128(u128::from(*byte)));
    }

    fn write_u128(&mut self, token: u128) {
        // The product with an odd number spreads each bit of a token upwards; the rotation brings the upper half down.
        let mixed = (self.0 ^ token as u64 ^ (token >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_lies_within_the_rings_whose_ends_hold_the_end_that_would_receive_it() {
        let mut nesting = Nesting::default();
        // The end that reads ring 1 lies in a message to ring 2, and the end that reads ring 2 in a message to ring 3.
        nesting.place(2, &[1]);
        nesting.place(3, &[2, 9]);
        for within in [1, 2, 3] {
            assert!(nesting.lies_within(1, &[8, within]), "{within}");
        }
        assert!(!nesting.lies_within(1, &[9]) && !nesting.lies_within(3, &[1, 2]));
        // The end that reads ring 1 goes on in ring 4.
        nesting.earlier.insert(4, 1);
        assert!(nesting.lies_within(4, &[3]) && !nesting.lies_within(4, &[9]));
        // Ends that lie in each other do not make the search endless.
        nesting.place(1, &[3]);
        assert!(!nesting.lies_within(1, &[8]));
        // A place taken by another message stays.
        nesting.give_up(7, &[1]);
        assert!(nesting.lies_within(1, &[2]));
        nesting.give_up(2, &[1]);
        assert!(!nesting.lies_within(1, &[2]));
    }
}
