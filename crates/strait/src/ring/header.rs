//! The header of a record: one word, written by the peer.

use std::num::NonZeroU64;

use super::MAX_MESSAGE;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A message whose bytes follow.
    Message = 1,
    /// A message whose bytes are in a block of the link's pool; the payload says which.
    Block = 2,
    /// A message whose bytes are a sealed memfd that was sent over the link.
    Sealed = 3,
    /// Nothing: skip to the start of the ring.
    Pad = 4,
    /// The producer goes on in another ring. The last record of this one.
    Next = 5,
    /// The end was closed: by the producer as its last record, or by the consumer in the first free header.
    Closed = 6,
    /// The producing end moved to another process: the consumer goes on in the lane that the payload names. The last
    /// record of this ring.
    Moved = 7,
    /// The consuming end moved to another process; put by the consumer in the first free header. The producer goes on in
    /// the lane that the control block names.
    Frozen = 8,
    /// Several small messages, one behind the other, each after a word with its length.
    Pack = 9,
    /// What the handles of the next message are, if not all of them are descriptors; with a handle, that is memory which
    /// was sent over the link.
    Table = 10,
    /// Messages that come before whatever stands behind: they were sent to an end with whose channel this one is being
    /// fused, and it had not received them. In a table, as [`Kind::Table`].
    Brought = 11,
}

impl Kind {
    fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Message,
            2 => Self::Block,
            3 => Self::Sealed,
            4 => Self::Pad,
            5 => Self::Next,
            6 => Self::Closed,
            7 => Self::Moved,
            8 => Self::Frozen,
            9 => Self::Pack,
            10 => Self::Table,
            11 => Self::Brought,
            _ => return None,
        })
    }

    /// Whether a record of this kind can have so many bytes: what pads the end of a ring can have any number.
    #[inline]
    fn may_have(self, len: usize) -> bool {
        len <= MAX_MESSAGE || self == Self::Pad
    }

    /// Whether records of this kind are staged with others. The rest are put by the ring's two ends alone, and what says so
    /// in a batch was scribbled there by the other side.
    pub(crate) fn comes_in_batches(self) -> bool {
        self.is_message() || matches!(self, Self::Pack | Self::Table)
    }

    /// Whether records of this kind are messages of the user.
    #[inline]
    pub(crate) fn is_message(self) -> bool {
        matches!(self, Self::Message | Self::Block | Self::Sealed)
    }
}

/// How often something had been sent over the socket for messages of a direction that then failed, before a message that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Try(u16);

/// Where in a header it stands.
const TRY_FROM: u32 = 49;

impl Try {
    pub(crate) const BITS: u32 = 63 - TRY_FROM;
    pub(crate) const FIRST: Self = Self(0);

    /// The next one. After the last comes the second: the receiver keeps nothing of so many.
    pub(crate) fn next(self) -> Self {
        Self(self.0 % ((1 << Self::BITS) - 1) + 1)
    }

    pub(crate) fn to_bits(self) -> u16 {
        self.0
    }
}

/// Of lengths below the longest that a message can have.
const PLAIN_BITS: u32 = MAX_MESSAGE.ilog2();

/// A record's header. One word, so that it stays in a register on its way.
///
/// ```text
/// bits  0..32  bytes of payload
/// bits 32..40  kind, never 0, so that no header is 0
/// bits 40..48  handles that travel with the message; of a pack, its messages
/// bit      48  a table before it says what its handles are
/// bits 49..63  which try to send the message it is, of those for which something was sent over the socket
/// bit      63  0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header(NonZeroU64);

impl Header {
    #[inline]
    pub(crate) fn new(kind: Kind, len: usize, handles: usize) -> Self {
        debug_assert!(len <= u32::MAX as usize && handles <= u8::MAX as usize);
        let word = u64::from(len as u32) | (kind as u64) << 32 | u64::from(handles as u8) << 40;
        Self(NonZeroU64::new(word).expect("no kind is 0"))
    }

    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        self.0.get()
    }

    /// The same, of a message whose handles stand in a table before it.
    pub(crate) fn with_table(self) -> Self {
        Self(self.0 | 1 << 48)
    }

    /// Whether its handles stand in a table before it.
    pub(crate) fn has_table(self) -> bool {
        self.0.get() >> 48 & 1 == 1
    }

    /// The same, of this try, if anything is sent for it by the message's number.
    pub(crate) fn with_try(self, attempt: Try) -> Self {
        if self.has_try() { Self(self.0 | u64::from(attempt.0) << TRY_FROM) } else { self }
    }

    fn has_try(self) -> bool {
        match self.kind() {
            Kind::Message | Kind::Block | Kind::Table => self.handles() > 0,
            kind => kind == Kind::Sealed,
        }
    }

    /// To which try belongs what was sent for it.
    pub(crate) fn attempt(self) -> Try {
        Try((self.0.get() >> TRY_FROM) as u16)
    }

    /// `None` if no header of ours looks like this.
    #[inline]
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let first = word >> TRY_FROM == 0 || Self::may_be_again(word);
        let ours = first && Kind::from_bits((word >> 32) as u8).is_some_and(|kind| kind.may_have(word as u32 as usize));
        NonZeroU64::new(word).filter(|_| ours).map(Self)
    }

    /// Whether this may be the header of a record that is not of a first try, as few are.
    #[cold]
    #[inline(never)]
    fn may_be_again(word: u64) -> bool {
        let known = NonZeroU64::new(word).filter(|_| Kind::from_bits((word >> 32) as u8).is_some());
        word >> 63 == 0 && known.is_some_and(|word| Self(word).has_try())
    }

    /// Bytes of payload.
    #[inline]
    pub(crate) fn len(self) -> usize {
        self.0.get() as u32 as usize
    }

    /// What the record is.
    #[inline]
    pub(crate) fn kind(self) -> Kind {
        Kind::from_bits((self.0.get() >> 32) as u8).expect("checked when it was made")
    }

    /// Handles that travel with the message; of a pack, its messages.
    #[inline]
    pub(crate) fn handles(self) -> usize {
        (self.0.get() >> 40) as u8 as usize
    }

    /// The header of a message in the ring without handles, of less than 2^[`PLAIN_BITS`] bytes, as most are; `None` if it is
    /// anything else.
    #[inline]
    pub(crate) fn from_plain(word: u64) -> Option<Self> {
        let plain = (Kind::Message as u64) << (32 - PLAIN_BITS);
        if word >> PLAIN_BITS == plain { NonZeroU64::new(word).map(Self) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_word_is_a_header_or_refused(word: u64) {
            if let Some(header) = Header::from_word(word) {
                prop_assert_eq!(header.to_word(), word);
                prop_assert_ne!(word, 0);
            }
        }
    }

    #[test]
    fn no_record_is_longer_than_the_longest_message() {
        let all = |len, kind| {
            let word = Header::new(kind, len, 0).to_word();
            (Header::from_plain(word).is_some(), Header::from_word(word).is_some())
        };
        assert_eq!(all(MAX_MESSAGE - 1, Kind::Message), (true, true));
        assert_eq!(all(MAX_MESSAGE, Kind::Message), (false, true));
        for len in [MAX_MESSAGE + 1, 2 * MAX_MESSAGE, u32::MAX as usize] {
            assert_eq!(all(len, Kind::Message), (false, false));
            assert_eq!(all(len, Kind::Table), (false, false));
            assert_eq!(all(len, Kind::Pad), (false, true));
        }
    }

    #[test]
    fn every_kind_survives_the_wire() {
        for bits in 0..=u8::MAX {
            if let Some(kind) = Kind::from_bits(bits) {
                assert_eq!(kind as u8, bits);
                let header = Header::new(kind, 12, 3);
                assert_eq!(Header::from_word(header.to_word()), Some(header));
                let again = header.with_try(Try::FIRST.next().next());
                let may_be = kind.is_message() || kind == Kind::Table;
                assert_eq!(again.attempt().to_bits(), if may_be { 2 } else { 0 });
                assert_eq!((again.handles(), again.has_table(), again.kind(), again.len()), (3, false, kind, 12));
                assert_eq!(Header::from_word(again.to_word()), Some(again));
                assert_eq!(Header::from_word(header.to_word() | 1 << 50).is_some(), may_be);
                assert_eq!(Header::from_word(again.to_word() | 1 << 63), None);
                let bare = Header::new(kind, 12, 0);
                assert_eq!(Header::from_word(bare.to_word() | 1 << 50).is_some(), kind == Kind::Sealed);
            }
        }
        assert_eq!(Header::from_word(0), None);
    }
}
