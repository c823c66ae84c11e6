//! The header of a record: one word, written by the peer.

use std::num::NonZeroU64;

use super::MAX_MESSAGE;

/// The kind of a record in a ring, which the record's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A message whose bytes are in the ring, as the record's payload.
    Message = 1,
    /// A message whose bytes are in a block of shared memory from the sender's pool; the record's payload names the
    /// block.
    Block = 2,
    /// A message whose bytes are in sealed memory (a sealed memfd), which was sent over the socket of the link. The
    /// record's payload says how many bytes the message has.
    Sealed = 3,
    /// Padding up to the last cell of the ring: the next record is in the ring's first cell.
    Pad = 4,
    /// A mark: the producer goes on in a larger ring of the same lane. The mark is the last record of its ring.
    Next = 5,
    /// A mark: one of the lane's two ends was closed. If the producer's end was closed, the mark is the last record
    /// that the producer writes; if the consumer's end was closed, the consumer puts the mark into the first free
    /// header.
    Closed = 6,
    /// A mark: the producing end moved, to another process or another lane. The consumer goes on in the lane (shared
    /// memory with two rings) that the record's payload names. The mark is the last record of its ring.
    Moved = 7,
    /// A mark: the consuming end moved, to another process or another lane. The consumer puts the mark into the first
    /// free header. The producer goes on in the lane (shared memory with two rings) that the ring's control block
    /// names.
    Frozen = 8,
    /// A packed record: the payload is several small messages, each behind a word with its length.
    Pack = 9,
    /// A handle table: it describes the handles of the message in the next record, if not all of these are plain
    /// descriptors. If this record's header counts a handle, the table is in memory that was sent over the socket of
    /// the link; otherwise the table is the payload.
    Table = 10,
    /// A prepended backlog: messages to deliver before everything behind this record. The messages were sent to another
    /// end, and not received there before that end's channel was fused with this channel. The messages are encoded as a
    /// handle table. If the header counts a handle, the table is in memory sent over the socket of the link; otherwise
    /// the table is the payload.
    Prepended = 11,
}

impl RecordKind {
    #[inline]
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
            11 => Self::Prepended,
            _ => return None,
        })
    }

    /// Returns whether a record of this kind can have a payload of `len` bytes: up to and including [`MAX_MESSAGE`],
    /// and any number if the record is padding.
    #[inline]
    fn may_have(self, len: usize) -> bool {
        len <= MAX_MESSAGE || self == Self::Pad
    }

    /// Returns whether a producer stages records of this kind in batches. A producer writes records of the other kinds
    /// alone. If a staged batch holds a record of another kind, the other process has written it there without right.
    #[inline]
    pub fn comes_in_batches(self) -> bool {
        self.is_message() || matches!(self, Self::Pack | Self::Table)
    }

    /// Returns whether a record of this kind is a message of the program, and not a mark, padding, a packed record, a
    /// handle table or a prepended backlog.
    #[inline]
    pub fn is_message(self) -> bool {
        matches!(self, Self::Message | Self::Block | Self::Sealed)
    }
}

/// Lowest of the bits of the header word that are always 0.
const UNUSED_FROM: u32 = 49;

/// Number of bits that hold the length in bytes of a plain message (a message in the ring, without handles). So a
/// plain message is shorter than [`MAX_MESSAGE`].
const PLAIN_BITS: u32 = MAX_MESSAGE.ilog2();

/// The header of a record, in a single word, to stay in a register when passed on.
///
/// ```text
/// bits  0..32  bytes of payload
/// bits 32..40  kind, never 0, so that no header is 0
/// bits 40..48  number of handles that travel with the message; for a packed record, number of its messages
/// bit      48  a handle table before the message describes its handles
/// bits 49..64  0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(NonZeroU64);

#[allow(clippy::len_without_is_empty, reason = "the length is that of the payload, and a header is never empty")]
impl Header {
    /// Creates the header of a record of kind `kind` with a payload of `len` bytes. `handles` is the number of handles
    /// that travel with the message; for a packed record, the number of its messages.
    #[inline]
    pub fn new(kind: RecordKind, len: usize, handles: usize) -> Self {
        debug_assert!(len <= u32::MAX as usize && handles <= u8::MAX as usize);
        let word = u64::from(len as u32) | (kind as u64) << 32 | u64::from(handles as u8) << 40;
        Self(NonZeroU64::new(word).expect("no kind is 0"))
    }

    /// Returns this header as a word for the ring; never 0.
    #[inline]
    pub fn to_word(self) -> u64 {
        self.0.get()
    }

    /// Returns this header with the bit set that says: the record before the message is a handle table and describes
    /// the message's handles.
    #[inline]
    pub fn with_table(self) -> Self {
        Self(self.0 | 1 << 48)
    }

    /// Returns whether the record before the message is a handle table that describes the message's handles.
    #[inline]
    pub fn has_table(self) -> bool {
        self.0.get() >> 48 & 1 == 1
    }

    /// Returns the header in `word`; `None` if no correct producer writes this word into a header. The word 0 is no
    /// header.
    #[inline]
    pub fn from_word(word: u64) -> Option<Self> {
        let ours = word >> UNUSED_FROM == 0
            && RecordKind::from_bits((word >> 32) as u8).is_some_and(|kind| kind.may_have(word as u32 as usize));
        NonZeroU64::new(word).filter(|_| ours).map(Self)
    }

    /// Returns the number of bytes of the record's payload.
    #[inline]
    pub fn len(self) -> usize {
        self.0.get() as u32 as usize
    }

    /// Returns the kind of the record.
    #[inline]
    pub fn kind(self) -> RecordKind {
        RecordKind::from_bits((self.0.get() >> 32) as u8).expect("checked when it was made")
    }

    /// Returns the number of handles of the message; for a packed record, the number of messages in the record.
    #[inline]
    pub fn handles(self) -> usize {
        (self.0.get() >> 40) as u8 as usize
    }

    /// Returns the header that `word` holds if its record is a plain message: of kind [`RecordKind::Message`], without
    /// handles, and shorter than [`MAX_MESSAGE`]. Most records are. Returns `None` for any other word.
    #[inline]
    pub fn from_plain(word: u64) -> Option<Self> {
        let plain = (RecordKind::Message as u64) << (32 - PLAIN_BITS);
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
        assert_eq!(all(MAX_MESSAGE - 1, RecordKind::Message), (true, true));
        assert_eq!(all(MAX_MESSAGE, RecordKind::Message), (false, true));
        for len in [MAX_MESSAGE + 1, 2 * MAX_MESSAGE, u32::MAX as usize] {
            assert_eq!(all(len, RecordKind::Message), (false, false));
            assert_eq!(all(len, RecordKind::Table), (false, false));
            assert_eq!(all(len, RecordKind::Pad), (false, true));
        }
    }

    #[test]
    fn every_kind_survives_the_wire() {
        for bits in 0..=u8::MAX {
            if let Some(kind) = RecordKind::from_bits(bits) {
                assert_eq!(kind as u8, bits);
                let header = Header::new(kind, 12, 3);
                assert_eq!(Header::from_word(header.to_word()), Some(header));
                assert_eq!((header.handles(), header.has_table(), header.kind(), header.len()), (3, false, kind, 12));
                assert!(header.with_table().has_table());
                for bit in UNUSED_FROM..u64::BITS {
                    assert_eq!(Header::from_word(header.to_word() | 1 << bit), None);
                }
            }
        }
        assert_eq!(Header::from_word(0), None);
    }
}
