//! Memory for large messages: blocks that stay mapped on both sides, and so stay warm.
//!
//! Page faults, not copies, are what a large message costs. A block is a memfd that the sender makes, sends over
//! the link once, and then refers to by number. It holds one message at a time, and only its sender ever chooses
//! what goes where: there is no free list that both sides write. The receiver gives a block back by writing the
//! number of the use into the block's first word; the sender finds that when it next looks for room.
//!
//! ```text
//! offset    0   u64   the last use that the receiver is done with
//!        4096         the message
//! ```
//!
//! When all such blocks are lent, since the receiver does not keep up, further messages share blocks: one has several **parts** of
//! the same length, for a message each, so that their number is bounded by bytes and not by descriptors or mappings.
//!
//! ```text
//! offset  8·n         u64   the last use of part n that the receiver is done with
//!        4096 + n·s         the message in part n, of at most s bytes
//! ```

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Error;
use crate::os::{fault, memory};
use crate::shm::{Mapping, PAYLOAD, Shareable};

/// Most blocks of one direction that have one message each. Theirs are the numbers below this.
const MAX_SINGLE: usize = 64;

/// Most blocks of one direction, those with several parts included.
pub(crate) const MAX_BLOCKS: usize = 256;

/// Most parts of a block: their words fit the page before the first of them.
const MAX_PARTS: usize = PAYLOAD / 8;

/// Most bytes of the parts of a block.
const MOST_SHARED: usize = 64 << 20;

/// Parts are as long as so many pages.
const PAGE: usize = 4096;

/// Bytes of the smallest block.
const SMALLEST: usize = 64 << 10;

/// Says in a record where its message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRecord {
    pub(crate) id: u64,
    /// Which part of the block it is, and bytes of each; 0 bytes where the block has one message.
    part: usize,
    stride: usize,
    /// Which use of the part this is; what the receiver gives back.
    pub(crate) usage: u64,
    pub(crate) len: u64,
    /// The block is not used again: the receiver unmaps it when it is done.
    pub(crate) once: bool,
}

impl BlockRecord {
    /// Bytes of it in a ring.
    pub(crate) const SIZE: usize = 32;

    /// Where the number of the part is in the first field.
    const PART: u32 = 32;

    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let id = self.id | (self.part as u64) << Self::PART;
        // Strides are whole pages.
        let how = self.stride as u64 | u64::from(self.once);
        for (field, place) in [id, self.usage, self.len, how].iter().zip(bytes.chunks_exact_mut(8)) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// `None` if no sender of ours writes this.
    pub(crate) fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let field = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().expect("eight bytes"));
        let (id, part) = (field(0) & ((1 << Self::PART) - 1), (field(0) >> Self::PART) as usize);
        let stride = usize::try_from(field(3) & !1).ok()?;
        let is_shared = id >= MAX_SINGLE as u64;
        let is_part = part < MAX_PARTS && stride > 0 && stride.is_multiple_of(PAGE) && stride <= MOST_SHARED;
        let is_whole = part == 0 && stride == 0;
        (id < MAX_BLOCKS as u64 && if is_shared { is_part } else { is_whole }).then_some(Self {
            id,
            part,
            stride,
            usage: field(1),
            len: field(2),
            once: field(3) & 1 == 1,
        })
    }

    /// The record of a message of so many bytes in the same place.
    pub(crate) fn with_len(self, len: usize) -> Self {
        Self { len: len as u64, ..self }
    }

    /// Whether its memory was sent before it.
    pub(crate) fn brings_memory(&self) -> bool {
        self.usage == 1 && self.part == 0
    }

    /// Where the message is in memory of so many bytes; `None` if it is not in there.
    pub(crate) fn place_in(&self, memory: usize) -> Option<usize> {
        let at = self.at();
        let len = usize::try_from(self.len).ok()?;
        let longest = if self.stride > 0 { self.stride } else { memory };
        (len <= longest && memory.checked_sub(at)? >= len).then_some(at)
    }

    /// Where its message begins.
    pub(crate) fn at(&self) -> usize {
        PAYLOAD + self.part * self.stride
    }

    /// Where the receiver says that it is done with it.
    fn word(&self) -> usize {
        8 * self.part
    }
}

/// Bytes of memory for a block that holds a message of `len` bytes.
fn size_for(len: usize) -> usize {
    PAYLOAD + len.next_power_of_two().max(SMALLEST)
}

#[derive(Debug)]
struct Block {
    mapping: Arc<Mapping>,
    /// How often it was lent.
    usage: u64,
    /// Bytes of the message in it, if it is lent.
    lent: Option<usize>,
    /// Whether it is kept when it comes back.
    keep: bool,
}

impl Block {
    fn came_back(&self) -> bool {
        self.lent.is_some() && self.mapping.word(0).load(Ordering::Acquire) == self.usage
    }
}

/// The sender's blocks.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    blocks: Vec<Option<Block>>,
    /// Bytes in blocks that are kept.
    kept: usize,
    /// Bytes in messages under way.
    queued: usize,
    /// How many blocks and parts the receiver has given back so far.
    returned: u64,
    /// Blocks with parts, by their numbers from [`MAX_SINGLE`] on.
    shared: Vec<Option<SharedBlock>>,
}

/// A block that several messages share.
#[derive(Debug)]
struct SharedBlock {
    mapping: Arc<Mapping>,
    stride: usize,
    parts: Vec<Part>,
    /// Those that can be lent, the next one last.
    free: Vec<usize>,
    /// How many are lent.
    lent: usize,
    /// Whether it is kept, and its parts used again. Otherwise each is lent once, one after the other.
    keep: bool,
}

#[derive(Clone, Debug, Default)]
struct Part {
    usage: u64,
    lent: Option<usize>,
}

impl SharedBlock {
    fn came_back(&self, part: usize) -> bool {
        let Part { usage, lent } = &self.parts[part];
        lent.is_some() && self.mapping.word(8 * part).load(Ordering::Acquire) == *usage
    }

    fn has_news(&self) -> bool {
        self.lent > 0 && (0..self.parts.len()).any(|part| self.came_back(part))
    }

    /// Takes back parts that the receiver is done with: how many, and bytes of the messages in them.
    fn collect(&mut self) -> (u64, usize) {
        let (mut count, mut bytes) = (0, 0);
        if self.lent == 0 {
            return (count, bytes);
        }
        for part in 0..self.parts.len() {
            if self.came_back(part) {
                bytes += self.parts[part].lent.take().unwrap_or(0);
                count += 1;
                self.lent -= 1;
                if self.keep {
                    self.free.push(part);
                }
            }
        }
        (count, bytes)
    }

    /// Whether nothing more will come of it.
    fn is_over(&self) -> bool {
        !self.keep && self.lent == 0 && self.free.is_empty()
    }

    /// Lends a part for a message of `len` bytes.
    fn lend(&mut self, id: usize, len: usize) -> Option<BlockRecord> {
        let part = self.free.pop()?;
        let place = &mut self.parts[part];
        place.usage += 1;
        place.lent = Some(len);
        self.lent += 1;
        let once = !self.keep && self.free.is_empty();
        Some(BlockRecord { id: id as u64, part, stride: self.stride, usage: place.usage, len: len as u64, once })
    }

    /// Takes back a part that no record refers to.
    fn take_back(&mut self, part: usize) -> usize {
        let place = &mut self.parts[part];
        place.usage -= 1;
        self.lent -= 1;
        self.free.push(part);
        place.lent.take().unwrap_or(0)
    }
}

/// A block to fill.
#[derive(Debug)]
pub(crate) struct Loan {
    pub(crate) record: BlockRecord,
    pub(crate) mapping: Arc<Mapping>,
    /// Its memory, if the receiver does not know it yet.
    pub(crate) fresh: Option<Shareable>,
}

impl Pool {
    /// Takes back what the receiver is done with.
    fn collect(&mut self) {
        for place in &mut self.blocks {
            let Some(block) = place else { continue };
            if !block.came_back() {
                continue;
            }
            self.queued -= block.lent.take().unwrap_or(0);
            self.returned += 1;
            if !block.keep {
                *place = None;
            }
        }
        for place in &mut self.shared {
            let Some(block) = place else { continue };
            let (count, bytes) = block.collect();
            self.returned += count;
            self.queued -= bytes;
            if block.is_over() {
                *place = None;
            }
        }
    }

    /// How many blocks the receiver has given back, as far as was looked.
    pub(crate) fn returned(&self) -> u64 {
        self.returned
    }

    /// Whether the receiver is done with something that was not taken back yet.
    pub(crate) fn has_news(&self) -> bool {
        self.blocks.iter().flatten().any(Block::came_back) || self.shared.iter().flatten().any(SharedBlock::has_news)
    }

    /// A block for a message of `len` bytes; `None` if the receiver has to give some back first. `keep` bytes stay
    /// warm, and `queue` bytes may be under way. The block is lent until [`Pool::take_back`] or the receiver is done. Messages share
    /// blocks only if the receiver can have that (`may_share`).
    pub(crate) fn lend(
        &mut self,
        len: usize,
        keep: usize,
        queue: usize,
        may_share: impl FnOnce() -> bool,
        make: impl FnOnce(usize) -> Result<Shareable, Error>,
    ) -> Result<Option<Loan>, Error> {
        self.collect();
        // One may always be under way, or a message over the limit could never be sent.
        if self.queued > 0 && self.queued.saturating_add(len) > queue {
            return Ok(None);
        }
        let size = size_for(len);
        if let Some(id) = self.smallest_free(size) {
            let block = self.blocks[id].as_mut().expect("found just now");
            block.usage += 1;
            block.lent = Some(len);
            self.queued += len;
            let record = whole(id, block.usage, len, false);
            return Ok(Some(Loan { record, mapping: block.mapping.clone(), fresh: None }));
        }
        if let Some(loan) = self.lend_part(len) {
            return Ok(Some(loan));
        }
        let Some(id) = self.free_id(size, keep) else {
            return if may_share() { self.lend_first_part(len, keep, queue, make) } else { Ok(None) };
        };
        let fresh = make(size)?;
        let stays = self.kept + size <= keep;
        if stays {
            self.kept += size;
        }
        let mapping = fresh.mapping.clone();
        self.blocks[id] = Some(Block { mapping: mapping.clone(), usage: 1, lent: Some(len), keep: stays });
        self.queued += len;
        let record = whole(id, 1, len, !stays);
        Ok(Some(Loan { record, mapping, fresh: Some(fresh) }))
    }

    /// A part of a block that is shared already.
    fn lend_part(&mut self, len: usize) -> Option<Loan> {
        let stride = stride_for(len);
        let fits = |place: &Option<SharedBlock>| {
            place.as_ref().is_some_and(|block| block.stride == stride && !block.free.is_empty())
        };
        let index = self.shared.iter().position(fits)?;
        let block = self.shared[index].as_mut()?;
        let record = block.lend(MAX_SINGLE + index, len)?;
        self.queued += len;
        Some(Loan { record, mapping: block.mapping.clone(), fresh: None })
    }

    /// The first part of a fresh block to be shared, with the more parts the more is under way.
    fn lend_first_part(
        &mut self,
        len: usize,
        keep: usize,
        queue: usize,
        make: impl FnOnce(usize) -> Result<Shareable, Error>,
    ) -> Result<Option<Loan>, Error> {
        let stride = stride_for(len);
        let lent = self.blocks.len() + self.shared.iter().flatten().map(|block| block.lent).sum::<usize>();
        let wanted = queue.saturating_sub(self.queued) / len.max(1);
        let count = (lent / 4).min(wanted).min(MAX_PARTS).min(MOST_SHARED / stride).max(1);
        let Some(index) = self.free_shared() else { return Ok(None) };
        // A message longer than all parts of a block may be would be no part of one.
        if stride > MOST_SHARED {
            return Ok(None);
        }
        let size = PAYLOAD + count * stride;
        let fresh = make(size)?;
        let stays = self.kept + size <= keep;
        if stays {
            self.kept += size;
        }
        let mapping = fresh.mapping.clone();
        let mut block = SharedBlock {
            mapping: mapping.clone(),
            stride,
            parts: vec![Part::default(); count],
            free: (0..count).rev().collect(),
            lent: 0,
            keep: stays,
        };
        let Some(record) = block.lend(MAX_SINGLE + index, len) else { return Ok(None) };
        self.shared[index] = Some(block);
        self.queued += len;
        Ok(Some(Loan { record, mapping, fresh: Some(fresh) }))
    }

    /// A number, less [`MAX_SINGLE`], for a fresh block with parts: an unused one, or that of a block of which no part is lent.
    fn free_shared(&mut self) -> Option<usize> {
        if let Some(index) = self.shared.iter().position(Option::is_none) {
            return Some(index);
        }
        if self.shared.len() < MAX_BLOCKS - MAX_SINGLE {
            self.shared.push(None);
            return Some(self.shared.len() - 1);
        }
        let index = self.shared.iter().position(|place| place.as_ref().is_some_and(|block| block.lent == 0))?;
        let left = self.shared[index].take()?;
        if left.keep {
            self.kept -= left.mapping.len();
        }
        Some(index)
    }

    fn smallest_free(&self, size: usize) -> Option<usize> {
        let fits = |block: &Block| block.lent.is_none() && block.mapping.len() >= size;
        let free = self.blocks.iter().enumerate().filter_map(|(id, place)| Some((id, place.as_ref()?)));
        free.filter(|(_, block)| fits(block)).min_by_key(|(_, block)| block.mapping.len()).map(|(id, _)| id)
    }

    /// A number for a new block of this size: an unused one; or that of a free block which is too small, if its going
    /// makes room for the new one to stay, or if there is no other number.
    fn free_id(&mut self, size: usize, keep: usize) -> Option<usize> {
        let excess = (self.kept + size).saturating_sub(keep);
        let unused = self.blocks.iter().position(Option::is_none);
        let numbers_left = unused.is_some() || self.blocks.len() < MAX_SINGLE;
        let makes_room = |block: &Block| size <= keep && excess > 0 && block.mapping.len() >= excess;
        let victim = self.blocks.iter().position(|place| {
            place.as_ref().is_some_and(|block| block.lent.is_none() && (makes_room(block) || !numbers_left))
        });
        if let Some(id) = victim {
            let kept = self.blocks[id].take().filter(|block| block.keep);
            self.kept -= kept.map_or(0, |block| block.mapping.len());
            return Some(id);
        }
        unused.or_else(|| {
            (self.blocks.len() < MAX_SINGLE).then(|| {
                self.blocks.push(None);
                self.blocks.len() - 1
            })
        })
    }

    /// Takes back a loan that no record refers to. If the receiver never got its memory, it is forgotten. One of an
    /// earlier pool's is nobody's any more.
    pub(crate) fn take_back(&mut self, loan: &Loan) {
        if loan.record.id >= MAX_SINGLE as u64 {
            self.take_back_part(loan);
            return;
        }
        let Some(place) = self.blocks.get_mut(loan.record.id as usize) else { return };
        let Some(block) = place.as_mut().filter(|block| Arc::ptr_eq(&block.mapping, &loan.mapping)) else { return };
        self.queued -= block.lent.take().unwrap_or(0);
        // The next use is the one that this was to be.
        block.usage -= 1;
        if loan.fresh.is_some() {
            if block.keep {
                self.kept -= block.mapping.len();
            }
            *place = None;
        }
    }

    fn take_back_part(&mut self, loan: &Loan) {
        let Some(place) = self.shared.get_mut(loan.record.id as usize - MAX_SINGLE) else { return };
        let Some(block) = place.as_mut().filter(|block| Arc::ptr_eq(&block.mapping, &loan.mapping)) else { return };
        self.queued -= block.take_back(loan.record.part);
        if loan.fresh.is_some() {
            if block.keep {
                self.kept -= block.mapping.len();
            }
            *place = None;
        }
    }
}

/// Bytes of the parts of a block for messages like one of `len` bytes.
fn stride_for(len: usize) -> usize {
    len.next_power_of_two().max(PAGE)
}

/// The record of a message that has its block for itself.
fn whole(id: usize, usage: u64, len: usize, once: bool) -> BlockRecord {
    BlockRecord { id: id as u64, part: 0, stride: 0, usage, len: len as u64, once }
}

/// Fills a block: through its descriptor while it is cold, through the mapping once it is warm.
pub(crate) fn fill(loan: &Loan, offset: usize, bytes: &[u8]) -> Result<(), Error> {
    match loan.fresh.as_ref().and_then(|memory| memory.fd.as_ref()) {
        Some(fd) => memory::write_at(fd.as_fd(), bytes, (loan.record.at() + offset) as u64),
        None => {
            loan.mapping.copy_in(loan.record.at() + offset, bytes);
            Ok(())
        }
    }
}

/// Tells the sender that the receiver is done with a use of a block.
pub(crate) fn give_back(block: &Mapping, record: &BlockRecord) {
    fault::point("before a block is given back");
    // An exchange, so that it is in order with the look at the sender's waiting word that follows.
    block.word(record.word()).swap(record.usage, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(size: usize) -> Result<Shareable, Error> {
        Ok(Shareable { mapping: Mapping::private(size)?, fd: None })
    }

    fn lend(pool: &mut Pool, len: usize, keep: usize, queue: usize) -> Option<Loan> {
        pool.lend(len, keep, queue, || true, make).unwrap()
    }

    #[test]
    fn a_block_that_came_back_is_lent_again() {
        let mut pool = Pool::default();
        let first = lend(&mut pool, 100_000, 1 << 20, 1 << 20).unwrap();
        assert!(first.fresh.is_some() && !first.record.once);
        give_back(&first.mapping, &first.record);
        assert!(pool.has_news());
        let second = lend(&mut pool, 90_000, 1 << 20, 1 << 20).unwrap();
        assert!(second.fresh.is_none());
        assert_eq!((second.record.id, second.record.usage), (first.record.id, 2));
    }

    #[test]
    fn what_exceeds_the_pool_is_used_once_and_its_number_comes_back() {
        let mut pool = Pool::default();
        let large = lend(&mut pool, 1 << 20, 0, usize::MAX).unwrap();
        assert!(large.record.once);
        give_back(&large.mapping, &large.record);
        let next = lend(&mut pool, 1 << 20, 0, usize::MAX).unwrap();
        assert_eq!(next.record.id, large.record.id);
        assert!(next.fresh.is_some());
    }

    #[test]
    fn one_message_is_always_admitted_and_a_second_waits_its_turn() {
        let mut pool = Pool::default();
        let large = lend(&mut pool, 1 << 20, 0, 1000).unwrap();
        assert!(lend(&mut pool, 100_000, 0, 1000).is_none());
        give_back(&large.mapping, &large.record);
        assert!(lend(&mut pool, 100_000, 0, 1000).is_some());
    }

    #[test]
    fn a_small_free_block_makes_way_for_a_larger_one() {
        let mut pool = Pool::default();
        let keep = size_for(1 << 20);
        let small = lend(&mut pool, 1 << 19, keep, usize::MAX).unwrap();
        assert!(!small.record.once);
        give_back(&small.mapping, &small.record);
        let large = lend(&mut pool, 1 << 20, keep, usize::MAX).unwrap();
        assert!(large.fresh.is_some() && !large.record.once);
        assert_eq!((large.record.id, large.record.usage), (small.record.id, 1));
        assert_eq!(pool.kept, keep);
    }

    #[test]
    fn numbers_run_out() {
        let mut pool = Pool::default();
        let lend = |pool: &mut Pool| pool.lend(1, 0, usize::MAX, || false, make).unwrap();
        for _ in 0..MAX_SINGLE {
            assert!(lend(&mut pool).is_some());
        }
        assert!(lend(&mut pool).is_none());
    }

    /// When no number is left messages share blocks, each of which is forgotten once all of its messages were received.
    #[test]
    fn many_messages_share_few_blocks() {
        const MANY: usize = 5000;
        for keep in [0, 64 << 20] {
            let mut pool = Pool::default();
            let loans: Vec<_> = (0..MANY).map(|_| lend(&mut pool, 10_000, keep, usize::MAX).unwrap()).collect();
            assert_eq!(pool.queued, MANY * 10_000);
            let fresh = loans.iter().filter(|loan| loan.fresh.is_some()).count();
            assert!(fresh < MAX_SINGLE + 32, "{fresh}");
            for loan in &loans {
                let record = BlockRecord::decode(&loan.record.encode()).unwrap();
                assert_eq!(record, loan.record);
                assert_eq!(record.brings_memory(), loan.fresh.is_some());
                assert!(record.place_in(loan.mapping.len()).is_some());
                give_back(&loan.mapping, &record);
            }
            assert!(pool.has_news());
            pool.collect();
            assert_eq!((pool.queued, pool.returned, pool.has_news()), (0, MANY as u64, false));
            // What is not kept has gone, but for the block with parts that were never lent.
            if keep == 0 {
                let left = pool.blocks.iter().flatten().count() + pool.shared.iter().flatten().count();
                assert!(left <= 1, "{left}");
            } else {
                assert!(pool.kept <= keep);
                assert!(lend(&mut pool, 10_000, keep, usize::MAX).unwrap().fresh.is_none());
            }
        }
    }

    #[test]
    fn a_part_that_was_not_sent_is_lent_again() {
        let mut pool = Pool::default();
        let singles: Vec<_> = (0..MAX_SINGLE).map(|_| lend(&mut pool, 1000, 0, usize::MAX).unwrap()).collect();
        let first = lend(&mut pool, 1000, 0, usize::MAX).unwrap();
        let second = lend(&mut pool, 1000, 0, usize::MAX).unwrap();
        pool.take_back(&second);
        let again = lend(&mut pool, 1000, 0, usize::MAX).unwrap();
        assert_eq!(again.record, second.record);
        pool.take_back(&again);
        pool.take_back(&first);
        assert!(pool.shared.iter().all(Option::is_none));
        assert_eq!(pool.queued, singles.len() * 1000);
    }

    #[test]
    fn records_of_parts_that_cannot_be_are_none() {
        let with = |fields: [u64; 4]| {
            let mut bytes = [0; BlockRecord::SIZE];
            for (field, place) in fields.iter().zip(bytes.chunks_exact_mut(8)) {
                place.copy_from_slice(&field.to_le_bytes());
            }
            BlockRecord::decode(&bytes)
        };
        let (single, shared) = (MAX_SINGLE as u64 - 1, MAX_SINGLE as u64);
        assert!(with([single, 1, 5, 1]).is_some() && with([shared, 1, 5, 4096]).is_some());
        for fields in [
            [single, 1, 5, 4096],
            [single | 1 << 32, 1, 5, 0],
            [shared, 1, 5, 0],
            [shared, 1, 5, 2],
            [shared, 1, 5, 4096 + 8],
            [shared, 1, 5, 1 << 40],
            [shared | (MAX_PARTS as u64) << 32, 1, 5, 4096],
            [MAX_BLOCKS as u64, 1, 5, 4096],
        ] {
            assert_eq!(with(fields), None, "{fields:?}");
        }
        // Longer than a part, or behind the end.
        assert_eq!(with([shared, 1, 4097, 4096]).unwrap().place_in(1 << 20), None);
        assert_eq!(with([shared | 1 << 32, 1, 1, 4096]).unwrap().place_in(8192), None);
        assert_eq!(with([shared | 1 << 32, 1, 4096, 4096]).unwrap().place_in(3 * 4096), Some(8192));
    }
}
