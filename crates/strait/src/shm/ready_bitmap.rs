//! The memory of a notification area. Its layout is defined in [`ready_bitmap`](crate::ring::ready_bitmap).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::{Mapping, accessed};
use crate::ring::ready_bitmap::{BYTES, KNOWN, POSTED, SLEEPING, WORDS, WORDS_AT, Words};

/// The memory of a notification area (the ready bitmap and its words), which this process shares with its peer.
#[derive(Clone, Debug)]
pub(crate) struct ReadyBitmapMemory(Arc<Mapping>);

impl ReadyBitmapMemory {
    /// Returns the notification area that fills the whole of `mapping`; `None` if the mapping does not have the size of
    /// a notification area or is read-only.
    pub(crate) fn new(mapping: Arc<Mapping>) -> Option<Self> {
        (mapping.len() == BYTES && mapping.writable).then_some(Self(mapping))
    }

    #[inline]
    fn word32<const AT: usize>(&self) -> &AtomicU32 {
        const { assert!(AT.is_multiple_of(4) && AT + 4 <= WORDS_AT) };
        accessed();
        // SAFETY: the word is before the bitmaps, which are inside the mapping, and aligned. Every process accesses the
        // word atomically.
        unsafe { AtomicU32::from_ptr(self.0.base().add(AT).cast()) }
    }
}

impl Words for ReadyBitmapMemory {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        accessed();
        assert!(index < WORDS);
        // SAFETY: the word is inside the mapping, whose size `new` checked, and aligned. Every process accesses the
        // bitmaps atomically.
        unsafe { AtomicU64::from_ptr(self.0.base().add(WORDS_AT + index * 8).cast()) }
    }

    #[inline]
    fn sleeping(&self) -> &AtomicU32 {
        self.word32::<SLEEPING>()
    }

    #[inline]
    fn posted(&self) -> &AtomicU32 {
        self.word32::<POSTED>()
    }

    #[inline]
    fn known(&self) -> &AtomicU32 {
        self.word32::<KNOWN>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::ready_bitmap::{Collector, MEMBERS, MemberId, notify};

    include!("../../tests/common/wire_page.rs");

    #[test]
    fn the_page_has_the_words_of_a_notification_area() {
        // The three levels of the bitmap, in words of 8 bytes: each level has a bit for each word of the level below.
        let [leaves, middle, top] = [MEMBERS / 64, MEMBERS / 64 / 64, MEMBERS / 64 / 64 / 64].map(|words| words * 8);
        assert_eq!(WORDS * 8, top + middle + leaves);
        let rows = [
            ("sleeping", [SLEEPING, 4]),
            ("posted", [POSTED, 4]),
            ("known", [KNOWN, 4]),
            ("top", [WORDS_AT, top]),
            ("middle", [WORDS_AT + top, middle]),
            ("leaves", [WORDS_AT + top + middle, leaves]),
            ("size", [BYTES, 0]),
        ];
        assert_page_has("area", &rows.map(|(name, numbers)| (name, numbers.map(|number| number as u64))));
    }

    #[test]
    fn only_memory_of_the_right_size_is_a_bitmap() {
        for len in [4096, BYTES - 4096, BYTES + 4096] {
            assert!(ReadyBitmapMemory::new(Mapping::private(len).unwrap()).is_none());
        }
    }

    #[test]
    fn the_first_and_the_last_member_ring_in_shared_memory() {
        let (mapping, _fd) = Mapping::shared("test", BYTES).unwrap();
        let memory = ReadyBitmapMemory::new(mapping).unwrap();
        let mut collector = Collector::new(memory.clone());
        assert_eq!(collector.words().sleeping().load(std::sync::atomic::Ordering::Relaxed), 0);
        for number in [0, MEMBERS as u32 - 1] {
            let member = MemberId::new(number).unwrap();
            assert_eq!(notify(&memory, member), 0);
            let mut collected = Vec::new();
            assert_eq!(collector.collect(8, |member| collected.push(member)), 1);
            assert_eq!(collected, [member]);
        }
        assert!(collector.is_empty());
    }
}
