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

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Error;
use crate::fault;
use crate::link::Shareable;
use crate::shm::Mapping;
use crate::sys::memory;

/// Where the message begins: at a page, for the sake of those who read or write it in place.
pub(crate) const PAYLOAD: usize = 4096;

/// Most blocks of one direction.
pub(crate) const MAX_BLOCKS: usize = 64;

/// Bytes of the smallest block.
const SMALLEST: usize = 64 << 10;

/// Says in a record where its message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRecord {
    pub(crate) id: u64,
    /// Which use of the block this is; what the receiver gives back.
    pub(crate) usage: u64,
    pub(crate) len: u64,
    /// The block is not used again: the receiver unmaps it when it is done.
    pub(crate) once: bool,
}

impl BlockRecord {
    /// Bytes of it in a ring.
    pub(crate) const SIZE: usize = 32;

    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        for (field, place) in
            [self.id, self.usage, self.len, u64::from(self.once)].iter().zip(bytes.chunks_exact_mut(8))
        {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// `None` if no sender of ours writes this.
    pub(crate) fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let field = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().expect("eight bytes"));
        let once = match field(3) {
            0 => false,
            1 => true,
            _ => return None,
        };
        (field(0) < MAX_BLOCKS as u64).then_some(Self { id: field(0), usage: field(1), len: field(2), once })
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
    /// How many blocks the receiver has given back so far.
    returned: u64,
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
    }

    /// How many blocks the receiver has given back, as far as was looked.
    pub(crate) fn returned(&self) -> u64 {
        self.returned
    }

    /// Whether the receiver is done with something that was not taken back yet.
    pub(crate) fn has_news(&self) -> bool {
        self.blocks.iter().flatten().any(Block::came_back)
    }

    /// A block for a message of `len` bytes; `None` if the receiver has to give some back first. `keep` bytes stay
    /// warm, and `queue` bytes may be under way. The block is lent until [`Pool::take_back`] or the receiver is done.
    pub(crate) fn lend(
        &mut self,
        len: usize,
        keep: usize,
        queue: usize,
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
            let record = BlockRecord { id: id as u64, usage: block.usage, len: len as u64, once: false };
            return Ok(Some(Loan { record, mapping: block.mapping.clone(), fresh: None }));
        }
        let Some(id) = self.free_id(size, keep) else { return Ok(None) };
        let fresh = make(size)?;
        let stays = self.kept + size <= keep;
        if stays {
            self.kept += size;
        }
        let mapping = fresh.mapping.clone();
        self.blocks[id] = Some(Block { mapping: mapping.clone(), usage: 1, lent: Some(len), keep: stays });
        self.queued += len;
        let record = BlockRecord { id: id as u64, usage: 1, len: len as u64, once: !stays };
        Ok(Some(Loan { record, mapping, fresh: Some(fresh) }))
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
        let numbers_left = unused.is_some() || self.blocks.len() < MAX_BLOCKS;
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
            (self.blocks.len() < MAX_BLOCKS).then(|| {
                self.blocks.push(None);
                self.blocks.len() - 1
            })
        })
    }

    /// Takes back a loan that no record refers to. If the receiver never got its memory, it is forgotten. One of an
    /// earlier pool's is nobody's any more.
    pub(crate) fn take_back(&mut self, loan: &Loan) {
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
}

/// Fills a block: through its descriptor while it is cold, through the mapping once it is warm.
pub(crate) fn fill(loan: &Loan, offset: usize, bytes: &[u8]) -> Result<(), Error> {
    match loan.fresh.as_ref().and_then(|memory| memory.fd.as_ref()) {
        Some(fd) => memory::write_at(fd.as_fd(), bytes, (PAYLOAD + offset) as u64),
        None => {
            loan.mapping.copy_in(PAYLOAD + offset, bytes);
            Ok(())
        }
    }
}

/// Tells the sender that the receiver is done with a use of a block.
pub(crate) fn give_back(block: &Mapping, usage: u64) {
    fault::point("before a block is given back");
    // An exchange, so that it is in order with the look at the sender's waiting word that follows.
    block.word(0).swap(usage, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(size: usize) -> Result<Shareable, Error> {
        Ok(Shareable { mapping: Mapping::private(size)?, fd: None })
    }

    fn lend(pool: &mut Pool, len: usize, keep: usize, queue: usize) -> Option<Loan> {
        pool.lend(len, keep, queue, make).unwrap()
    }

    #[test]
    fn a_block_that_came_back_is_lent_again() {
        let mut pool = Pool::default();
        let first = lend(&mut pool, 100_000, 1 << 20, 1 << 20).unwrap();
        assert!(first.fresh.is_some() && !first.record.once);
        give_back(&first.mapping, first.record.usage);
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
        give_back(&large.mapping, large.record.usage);
        let next = lend(&mut pool, 1 << 20, 0, usize::MAX).unwrap();
        assert_eq!(next.record.id, large.record.id);
        assert!(next.fresh.is_some());
    }

    #[test]
    fn one_message_is_always_admitted_and_a_second_waits_its_turn() {
        let mut pool = Pool::default();
        let large = lend(&mut pool, 1 << 20, 0, 1000).unwrap();
        assert!(lend(&mut pool, 100_000, 0, 1000).is_none());
        give_back(&large.mapping, large.record.usage);
        assert!(lend(&mut pool, 100_000, 0, 1000).is_some());
    }

    #[test]
    fn a_small_free_block_makes_way_for_a_larger_one() {
        let mut pool = Pool::default();
        let keep = size_for(1 << 20);
        let small = lend(&mut pool, 1 << 19, keep, usize::MAX).unwrap();
        assert!(!small.record.once);
        give_back(&small.mapping, 1);
        let large = lend(&mut pool, 1 << 20, keep, usize::MAX).unwrap();
        assert!(large.fresh.is_some() && !large.record.once);
        assert_eq!((large.record.id, large.record.usage), (small.record.id, 1));
        assert_eq!(pool.kept, keep);
    }

    #[test]
    fn numbers_run_out() {
        let mut pool = Pool::default();
        for _ in 0..MAX_BLOCKS {
            assert!(lend(&mut pool, 1, 0, usize::MAX).is_some());
        }
        assert!(lend(&mut pool, 1, 0, usize::MAX).is_none());
    }
}
