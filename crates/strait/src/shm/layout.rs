//! The layout of a control block: the places of its words, sent in the handshake by the process that makes the memory.
//!
//! In the handshake each side sends the places of the words in the memory that it makes. The other side reads that
//! memory by this layout. So a build may move its words, or add words behind them, and still talk to a build that does
//! not know the new words.
//!
//! The offsets are sent and kept as one word; a shift and a mask give each of them. Whatever number a peer sends, such
//! an offset is aligned and below [`Layout::REACH`], so its use needs no check.
//!
//! ```text
//! bits  0..5   waiting    offset / 4      bits 30..35  credit
//! bits  5..10  cpu                        bits 35..40  taken
//! bits 10..15  quota                      bits 40..45  sleeping
//! bits 15..20  transfer                   bits 45..50  forward
//! bits 20..25  done                       bits 50..53  size of the control block in units of 64 bytes, less 1
//! bits 25..30  moving                     bits 53..56  0; the bits above are other parts of the handshake
//! ```

/// Describes a word of a ring's control block: the word's size in bytes, and the lowest of the 5 bits in a [`Layout`]
/// that hold the word's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    shift: u32,
    bytes: u32,
}

const fn word(index: u32, bytes: u32) -> Word {
    Word { shift: index * 5, bytes }
}

pub(super) const WAITING: Word = word(0, 4);
pub(super) const CPU: Word = word(1, 4);
pub(super) const QUOTA: Word = word(2, 8);
pub(super) const TRANSFER: Word = word(3, 4);
pub(super) const DONE: Word = word(4, 4);
pub(super) const MOVING: Word = word(5, 4);
pub(super) const CREDIT: Word = word(6, 8);
pub(super) const TAKEN: Word = word(7, 8);
pub(super) const SLEEPING: Word = word(8, 4);
pub(super) const FORWARD: Word = word(9, 16);

const WORDS: [Word; 10] = [WAITING, CPU, QUOTA, TRANSFER, DONE, MOVING, CREDIT, TAKEN, SLEEPING, FORWARD];

/// Lowest of the bits of a [`Layout`] that hold the size of the control block.
const CONTROL: u32 = 50;

/// The layout of a ring's control block: the offsets of its words and its size, packed into one word of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout(u64);

impl Layout {
    /// All words of a ring's control block are within its first 128 bytes. The whole control block has at most 512
    /// bytes.
    pub(super) const REACH: usize = 128;

    /// The layout of a ring's control block in the first protocol version. It also holds for a peer that sends no
    /// layout in the handshake.
    pub(crate) const FIRST: Self = Self::of([0, 4, 8, 16, 20, 24, 64, 72, 80, 88], 128);

    const fn of(offsets: [u64; WORDS.len()], control: u64) -> Self {
        let mut packed = (control / 64 - 1) << CONTROL;
        let mut at = 0;
        while at < WORDS.len() {
            packed |= (offsets[at] / 4) << WORDS[at].shift;
            at += 1;
        }
        Self(packed)
    }

    /// Returns this layout as the number that this process sends in the handshake.
    pub(crate) fn said(self) -> u64 {
        self.0
    }

    /// Returns the layout that a peer sent in the handshake as the number `said`; [`Layout::FIRST`] if that is 0.
    /// Returns `None` if a word of the control block would not be aligned or not be inside the block, if words would
    /// overlap, or if unknown bits are set.
    pub(crate) fn heard(said: u64) -> Option<Self> {
        if said == 0 {
            return Some(Self::FIRST);
        }
        let layout = Self(said);
        let mut taken = 0u64;
        for word in WORDS {
            let (offset, units) = ((said >> word.shift & 31) as u32, word.bytes / 4);
            let place = ((1u64 << units) - 1) << offset;
            let aligned = word.bytes < 8 || offset.is_multiple_of(2);
            let inside = (offset + units) as usize * 4 <= layout.control().min(Self::REACH);
            if !aligned || !inside || taken & place != 0 {
                return None;
            }
            taken |= place;
        }
        let known = (1 << (CONTROL + 3)) - 1;
        (said & !known == 0).then_some(layout)
    }

    /// Returns the size of a ring's control block in bytes.
    #[inline]
    pub(super) fn control(self) -> usize {
        ((self.0 >> CONTROL & 7) as usize + 1) * 64
    }

    /// Returns the offset in bytes of the 4-byte word `word` in a control block. The whole word is inside the first
    /// [`Layout::REACH`] bytes, whatever the peer sent.
    #[inline]
    pub(super) fn offset32(self, word: Word) -> usize {
        (self.0 >> word.shift & 31) as usize * 4
    }

    /// Returns the offset in bytes of the 8-byte word `word` in a control block, a multiple of 8.
    #[inline]
    pub(super) fn offset64(self, word: Word) -> usize {
        (self.0 >> word.shift & 30) as usize * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    include!("../../tests/common/wire_page.rs");

    #[test]
    fn the_page_has_the_words_of_a_control_block() {
        let word = |name, word: Word| {
            let offset = (Layout::FIRST.said() >> word.shift & 31) * 4;
            (name, [offset, word.bytes.into(), u64::from(word.shift) / 5])
        };
        assert_page_has(
            "control",
            &[
                word("waiting", WAITING),
                word("cpu", CPU),
                word("quota", QUOTA),
                word("transfer", TRANSFER),
                word("done", DONE),
                word("moving", MOVING),
                word("credit", CREDIT),
                word("taken", TAKEN),
                word("sleeping", SLEEPING),
                word("forward", FORWARD),
            ],
        );
    }

    #[test]
    fn the_first_layout_is_what_was_recorded() {
        // Processes send this word to each other: it must never change.
        assert_eq!(Layout::FIRST.said(), 0x0006_d494_0c52_0820);
        assert_eq!(Layout::heard(Layout::FIRST.said()), Some(Layout::FIRST));
        assert_eq!(Layout::heard(0), Some(Layout::FIRST));
        assert_eq!((Layout::FIRST.control(), Layout::FIRST.offset64(TAKEN)), (128, 72));
        assert_eq!(Layout::FIRST.offset64(FORWARD), 88);
    }

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        let overlap = Layout::of([0, 0, 8, 16, 20, 24, 64, 72, 80, 88], 128);
        let unaligned = Layout::of([0, 4, 12, 20, 24, 28, 64, 72, 80, 88], 128);
        let outside = Layout::of([0, 4, 8, 16, 20, 24, 64, 72, 80, 88], 64);
        let behind = Layout::of([0, 4, 8, 16, 20, 24, 64, 72, 80, 120], 128);
        let unknown = Layout(Layout::FIRST.0 | 1 << 54);
        for layout in [overlap, unaligned, outside, behind, unknown] {
            assert_eq!(Layout::heard(layout.said()), None, "{layout:?}");
        }
    }

    #[test]
    fn words_may_be_elsewhere() {
        let moved = Layout::of([120, 4, 8, 116, 112, 108, 64, 72, 80, 88], 512);
        assert_eq!(Layout::heard(moved.said()), Some(moved));
        assert_eq!((moved.offset32(WAITING), moved.control()), (120, 512));
    }

    proptest! {
        #[test]
        fn no_word_that_was_said_leads_outside(said in any::<u64>()) {
            let said = said & ((1 << 56) - 1);
            let layout = Layout(said);
            for word in WORDS {
                prop_assert!(layout.offset32(word) + 4 <= Layout::REACH);
                prop_assert!(layout.offset64(word).is_multiple_of(8));
                prop_assert!(layout.offset64(word) + 8 <= Layout::REACH);
                if Layout::heard(said) == Some(layout) {
                    prop_assert!(layout.offset32(word) + word.bytes as usize <= layout.control());
                }
            }
        }
    }
}
