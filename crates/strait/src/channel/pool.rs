//! Memory for large messages: blocks that stay mapped on both sides, with warm pages.
//!
//! Page faults, not copies, are the main cost of a large message. A block is a memfd that the sender creates, sends
//! over the link once, and then refers to by number. A block holds one message at a time, and only the sender assigns
//! messages to blocks: there is no free list that both sides write. The receiver returns a block by writing the number
//! of the use into the block's first word. The sender reads that word when a block is next needed.
//!
//! ```text
//! offset    0   u64   the last use that the receiver is done with
//!        4096         the message
//! ```
//!
//! If the receiver does not keep up, all such blocks are lent. Further messages then share blocks: a shared block has
//! several **parts** of the same length, one for each message. The number of messages is then bounded by bytes, not by
//! descriptors or mappings.
//!
//! ```text
//! offset  8·n         u64   the last use of part n that the receiver is done with
//!        4096 + n·s         the message in part n, of at most s bytes
//! ```

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::warm::WarmBlock;
use crate::error::Error;
use crate::os::{fault, memory};
use crate::quota::{pool_held, pool_limit};
use crate::shm::{Mapping, PAYLOAD, Shareable};

/// Largest number of unshared blocks, each for one message at a time, in the pool of an end. Their ids are 0 to
/// `MAX_SINGLE - 1`.
const MAX_SINGLE: usize = 64;

/// Largest number of blocks in the pool of an end, shared blocks included.
pub(crate) const MAX_BLOCKS: usize = 256;

/// Largest number of parts in a shared block (a block for several messages, one in each part). The page before the
/// first part has one 8-byte return word for each part.
const MAX_PARTS: usize = PAYLOAD / 8;

/// Largest number of bytes in all parts of one shared block together.
const MOST_SHARED: usize = 64 << 20;

/// Number of bytes in a page. The length of each part of a shared block is a multiple of it.
const PAGE: usize = 4096;

/// Smallest number of bytes that an unshared block has room for.
const SMALLEST: usize = 64 << 10;

/// The payload of a record in the ring whose message lies in a block. Names the block, the part of a shared block, and
/// the number of the use, and gives the length of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRecord {
    pub(crate) id: u64,
    /// The index of the part in a shared block. The field `stride` is the length of each part in bytes. Both fields are
    /// 0 for an unshared block.
    part: usize,
    stride: usize,
    /// The number of this use of the block or part, counted from 1. The receiver writes this number into the return
    /// word of the block or part after finishing with the message.
    pub(crate) usage: u64,
    pub(crate) len: u64,
    /// Whether the sender never uses the block again. If so, the receiver unmaps the block after this message.
    pub(crate) once: bool,
}

impl BlockRecord {
    /// Number of bytes of an encoded `BlockRecord` in a ring.
    pub(crate) const SIZE: usize = 32;

    /// Position of the lowest bit of the part's index in the first encoded word of a `BlockRecord`. The lower bits hold
    /// the block's id.
    const PART: u32 = 32;

    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let id = self.id | (self.part as u64) << Self::PART;
        // A stride is a multiple of the page size, so that bit 0 is free for `once`.
        let how = self.stride as u64 | u64::from(self.once);
        for (field, entry) in [id, self.usage, self.len, how].iter().zip(bytes.chunks_exact_mut(8)) {
            entry.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Decodes a record from its bytes in the ring; returns `None` if no correct sender could have written these bytes.
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

    /// Returns a record for a message of `len` bytes, with the block, the part and the number of the use of this
    /// record.
    pub(crate) fn with_len(self, len: usize) -> Self {
        Self { len: len as u64, ..self }
    }

    /// Returns whether the sender has sent the block's memory together with this record: true for the first use of a
    /// new block.
    pub(crate) fn brings_memory(&self) -> bool {
        self.usage == 1 && self.part == 0
    }

    /// Returns the byte offset of the message in a block of `memory` bytes; `None` if the message does not lie within
    /// the block, or is longer than its part.
    pub(crate) fn offset_in(&self, memory: usize) -> Option<usize> {
        let at = self.at();
        let len = usize::try_from(self.len).ok()?;
        let longest = if self.stride > 0 { self.stride } else { memory };
        (len <= longest && memory.checked_sub(at)? >= len).then_some(at)
    }

    /// Returns the byte offset of the message in its block.
    pub(crate) fn at(&self) -> usize {
        PAYLOAD + self.part * self.stride
    }

    /// Returns the byte offset, in the block, of the return word of this block or part. The receiver returns the block
    /// or part by writing the number of the use into that word.
    fn word(&self) -> usize {
        8 * self.part
    }
}

/// Returns the number of bytes of memory for an unshared block that holds a message of `len` bytes: the first page,
/// which has the return word, and room for at least `len` bytes and [`SMALLEST`]. The room is `len` rounded up by less
/// than a quarter, so that messages of similar lengths can use one block after the other.
fn size_for(len: usize) -> usize {
    let step = (len.next_power_of_two() / 8).max(PAGE);
    PAYLOAD + len.next_multiple_of(step).max(SMALLEST)
}

#[derive(Debug)]
struct Block {
    mapping: Arc<Mapping>,
    /// How often the block was lent for a message so far, without the loans that were taken back unused. Also the
    /// number of the block's present or last use.
    usage: u64,
    /// Number of bytes of the message for which the block is lent now; `None` while the block is free.
    lent: Option<usize>,
    /// The block as warm memory of this process, if the pool keeps the block for reuse after the receiver has returned
    /// it; `None` if the block is used once.
    warm: Option<Arc<WarmBlock>>,
}

impl Block {
    /// Returns the number of bytes of this block that count as warm memory.
    fn counted(&self) -> usize {
        self.warm.as_ref().map_or(0, |warm| warm.counted())
    }

    fn came_back(&self) -> bool {
        self.lent.is_some() && self.mapping.word(0).load(Ordering::Acquire) == self.usage
    }
}

/// The shared and unshared blocks of one end for sending large messages. The block at index *n* of `blocks` is unshared
/// and has the id *n*.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    blocks: Vec<Option<Block>>,
    /// Number of bytes of the messages that are in flight in blocks of the pool.
    queued: usize,
    /// Number of blocks and parts returned by the receiver that the pool has taken back so far.
    returned: u64,
    /// Shared blocks, each for several messages; the block at index *n* has the id [`MAX_SINGLE`] + *n*.
    shared: Vec<Option<SharedBlock>>,
}

/// A block shared by several messages, one in each part.
#[derive(Debug)]
struct SharedBlock {
    mapping: Arc<Mapping>,
    stride: usize,
    parts: Vec<Part>,
    /// Indices of the free parts of this block; the last one is lent next.
    free: Vec<usize>,
    /// Number of lent parts of this block.
    lent: usize,
    /// The block as warm memory of this process, if the pool keeps the block and lends its parts again; `None` if each
    /// part is lent only once.
    warm: Option<Arc<WarmBlock>>,
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

    /// Takes back the parts of this block returned by the receiver since the last call. Returns their number, and the
    /// bytes of their messages.
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
                if self.warm.is_some() {
                    self.free.push(part);
                }
            }
        }
        (count, bytes)
    }

    /// Returns whether this block can be dropped: the pool does not retain the block, no part is lent, and no part is
    /// left that was never lent.
    fn is_over(&self) -> bool {
        self.warm.is_none() && self.lent == 0 && self.free.is_empty()
    }

    /// Lends a free part of this block, whose id is `id`, for a message of `len` bytes; `None` if no part is free, or
    /// if a thread is cooling the block.
    fn lend(&mut self, id: usize, len: usize) -> Option<BlockRecord> {
        let part = self.free.pop()?;
        if self.warm.as_ref().is_some_and(|warm| !warm.lend(part, self.parts[part].usage + 1)) {
            self.free.push(part);
            return None;
        }
        Some(self.note_lent(id, part, len))
    }

    /// Notes that the part with the index `part`, which is not in the list of free parts, is lent for a message of
    /// `len` bytes. `id` is the id of this block.
    fn note_lent(&mut self, id: usize, part: usize, len: usize) -> BlockRecord {
        let entry = &mut self.parts[part];
        entry.usage += 1;
        entry.lent = Some(len);
        self.lent += 1;
        let once = self.warm.is_none() && self.free.is_empty();
        BlockRecord { id: id as u64, part, stride: self.stride, usage: entry.usage, len: len as u64, once }
    }

    /// Takes back the part with the index `part` of this block, which was lent for a message and is not used after all.
    /// Returns the length of that message in bytes.
    fn take_back(&mut self, part: usize) -> usize {
        let entry = &mut self.parts[part];
        entry.usage -= 1;
        if let Some(warm) = &self.warm {
            warm.take_back(part, entry.usage);
        }
        self.lent -= 1;
        self.free.push(part);
        entry.lent.take().unwrap_or(0)
    }
}

/// A block, or a part of one, that the pool has lent to be filled with a message.
#[derive(Debug)]
pub(crate) struct Loan {
    pub(crate) record: BlockRecord,
    pub(crate) mapping: Arc<Mapping>,
    /// The memory of the block, to be sent to the receiver; `None` if the receiver has that memory already.
    pub(crate) fresh: Option<Shareable>,
}

/// Memory for a new block.
pub(crate) struct NewMemory {
    pub(crate) memory: Shareable,
    /// The number of the account of the peer that gets the memory with its first message; `None` if no other process
    /// gets the memory.
    pub(crate) account: Option<usize>,
}

/// The result of [`Pool::grow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// The loan is one for the longer message.
    Done,
    /// The memory of the loan has room for the message, but too many bytes are in flight. Nothing has changed.
    Refused,
    /// The message needs a longer block or part. Nothing has changed.
    NeedsOther,
}

impl Pool {
    /// Takes back every block and part that the receiver has returned. Of the blocks that the pool does not retain,
    /// drops each unshared block that came back, and each shared block of which every part was lent and came back.
    fn collect(&mut self) {
        for entry in &mut self.blocks {
            let Some(block) = entry else { continue };
            if !block.came_back() {
                continue;
            }
            self.queued -= block.lent.take().unwrap_or(0);
            self.returned += 1;
            if block.warm.is_none() {
                *entry = None;
            }
        }
        for entry in &mut self.shared {
            let Some(block) = entry else { continue };
            let (count, bytes) = block.collect();
            self.returned += count;
            self.queued -= bytes;
            if block.is_over() {
                *entry = None;
            }
        }
    }

    /// Returns the number of blocks and parts returned by the receiver that the pool has taken back so far.
    pub(crate) fn returned(&self) -> u64 {
        self.returned
    }

    /// Returns whether the receiver has returned a block or part that the pool has not taken back yet.
    pub(crate) fn has_news(&self) -> bool {
        self.blocks.iter().flatten().any(Block::came_back) || self.shared.iter().flatten().any(SharedBlock::has_news)
    }

    /// Lends memory for a message of `len` bytes. Returns `None` if no memory can be lent before the receiver has
    /// returned some. The pool retains at most `retain_limit` bytes of blocks. At most `queue` bytes of messages may be
    /// in flight; if none are, a message of any size is allowed. The memory is lent until [`Pool::take_back`], or until
    /// the receiver returns it. Messages share blocks only if the receiver supports that (`may_share`). `make`
    /// allocates memory of the given number of bytes; this call fails only if `make` fails.
    pub(crate) fn lend(
        &mut self,
        len: usize,
        retain_limit: usize,
        queue: usize,
        may_share: impl FnOnce() -> bool,
        make: impl FnOnce(usize) -> Result<NewMemory, Error>,
    ) -> Result<Option<Loan>, Error> {
        self.collect();
        // If nothing is in flight, one message of any size is allowed. Otherwise a message over the limit could never
        // be sent.
        if self.queued > 0 && self.queued.saturating_add(len) > queue {
            return Ok(None);
        }
        let size = size_for(len);
        if let Some(loan) = self.lend_free(size, len, retain_limit) {
            return Ok(Some(loan));
        }
        if let Some(loan) = self.lend_part(len) {
            return Ok(Some(loan));
        }
        // Blocks that make way are cooled before the id is chosen, so that the new block replaces one of them.
        let is_kept = self.make_room(size, retain_limit);
        let Some(id) = self.free_id() else {
            return if may_share() { self.lend_first_part(len, retain_limit, queue, make) } else { Ok(None) };
        };
        let NewMemory { memory: fresh, account } = make(size)?;
        let mapping = fresh.mapping.clone();
        let warm = is_kept.then(|| WarmBlock::keep(&mapping, 1, account)).flatten();
        let record = whole(id, 1, len, warm.is_none());
        self.blocks[id] = Some(Block { mapping: mapping.clone(), usage: 1, lent: Some(len), warm });
        self.queued += len;
        Ok(Some(Loan { record, mapping, fresh: Some(fresh) }))
    }

    /// Lends the free unshared block of at least `size` bytes that suits a message of `len` bytes best: a warm one
    /// rather than one that was cooled, and a small one rather than a large one. Returns `None` if there is none.
    /// `retain_limit` is the most bytes of blocks that the pool keeps warm.
    fn lend_free(&mut self, size: usize, len: usize, retain_limit: usize) -> Option<Loan> {
        let free = self.blocks.iter().enumerate().filter_map(|(id, entry)| Some((id, entry.as_ref()?)));
        let fits = free.filter(|(_, block)| block.lent.is_none() && block.mapping.len() >= size);
        let (id, block) = fits.min_by_key(|(_, block)| (block.counted() == 0, block.mapping.len()))?;
        let (warm, usage) = (block.warm.clone()?, block.usage + 1);
        let makes_room = warm.counted() > 0 || self.make_room(warm.size(), retain_limit);
        if !makes_room || !warm.lend(0, usage) {
            return None;
        }
        let block = self.blocks[id].as_mut()?;
        block.usage = usage;
        block.lent = Some(len);
        self.queued += len;
        Some(Loan { record: whole(id, usage, len, false), mapping: block.mapping.clone(), fresh: None })
    }

    /// Returns the number of warm bytes of this pool's blocks, lent or free.
    fn retained(&self) -> usize {
        let single = self.blocks.iter().flatten().map(Block::counted);
        let shared = self.shared.iter().flatten().map(|block| block.warm.as_ref().map_or(0, |warm| warm.counted()));
        single.chain(shared).sum()
    }

    /// Cools free blocks of this pool, until `size` more bytes are within `retain_limit` and within the limit of this
    /// process. Returns whether they are within `retain_limit` now: a thread cools blocks that the receiver has, and
    /// their bytes count until then.
    fn make_room(&mut self, size: usize, retain_limit: usize) -> bool {
        let most = retain_limit.min(pool_limit());
        let excess_here = (self.retained() + size).saturating_sub(most);
        let mut excess = (pool_held() + size).saturating_sub(pool_limit()).max(excess_here);
        let singles = self.blocks.iter().flatten().map(|block| &block.warm);
        let all = singles.chain(self.shared.iter().flatten().map(|block| &block.warm)).flatten();
        // If a message alone exceeds the limits, no other block is cooled.
        if size <= most {
            for block in all {
                if excess == 0 {
                    break;
                }
                excess = excess.saturating_sub(block.cool_now());
            }
        }
        self.retained() + size <= retain_limit
    }

    /// Lends a free part of an existing shared block whose parts have the length `stride_for(len)`, for a message of
    /// `len` bytes. Returns `None` if there is no such part.
    fn lend_part(&mut self, len: usize) -> Option<Loan> {
        let stride = stride_for(len);
        let fits = |entry: &Option<SharedBlock>| {
            entry.as_ref().is_some_and(|block| block.stride == stride && !block.free.is_empty())
        };
        let index = self.shared.iter().position(fits)?;
        let block = self.shared[index].as_mut()?;
        let record = block.lend(MAX_SINGLE + index, len)?;
        self.queued += len;
        Some(Loan { record, mapping: block.mapping.clone(), fresh: None })
    }

    /// Creates a shared block whose parts have the length `stride_for(len)`, and lends its first part for a message of
    /// `len` bytes. The more unshared blocks the pool has and the more parts are lent, the more parts the new block
    /// has. Returns `None` if the message is too long for a shared block, or if there are too many blocks.
    /// `retain_limit`, `queue` and `make` are the parameters of [`Pool::lend`].
    fn lend_first_part(
        &mut self,
        len: usize,
        retain_limit: usize,
        queue: usize,
        make: impl FnOnce(usize) -> Result<NewMemory, Error>,
    ) -> Result<Option<Loan>, Error> {
        let stride = stride_for(len);
        let lent = self.blocks.len() + self.shared.iter().flatten().map(|block| block.lent).sum::<usize>();
        let wanted = queue.saturating_sub(self.queued) / len.max(1);
        let count = (lent / 4).min(wanted).min(MAX_PARTS).min(MOST_SHARED / stride).max(1);
        let Some(index) = self.free_shared() else { return Ok(None) };
        // The parts of a block may not be longer in total than [`MOST_SHARED`], so a longer message does not fit into a
        // shared block.
        if stride > MOST_SHARED {
            return Ok(None);
        }
        let size = PAYLOAD + count * stride;
        let NewMemory { memory: fresh, account } = make(size)?;
        let mapping = fresh.mapping.clone();
        let is_kept = self.make_room(mapping.len(), retain_limit);
        let warm = is_kept.then(|| WarmBlock::keep(&mapping, count, account)).flatten();
        let mut block = SharedBlock {
            mapping: mapping.clone(),
            stride,
            parts: vec![Part::default(); count],
            free: (1..count).rev().collect(),
            lent: 0,
            warm,
        };
        // Kept blocks have their first part lent from the beginning, so no other thread prevents this.
        let record = block.note_lent(MAX_SINGLE + index, 0, len);
        self.shared[index] = Some(block);
        self.queued += len;
        Ok(Some(Loan { record, mapping, fresh: Some(fresh) }))
    }

    /// Returns an index for a new shared block: an unused index, or that of a block without lent parts, which is
    /// dropped. `None` if all indices are in use.
    fn free_shared(&mut self) -> Option<usize> {
        if let Some(index) = self.shared.iter().position(Option::is_none) {
            return Some(index);
        }
        if self.shared.len() < MAX_BLOCKS - MAX_SINGLE {
            self.shared.push(None);
            return Some(self.shared.len() - 1);
        }
        let index = self.shared.iter().position(|entry| entry.as_ref().is_some_and(|block| block.lent == 0))?;
        self.shared[index] = None;
        Some(index)
    }

    /// Returns an id for a new unshared block: an unused id, or that of a free block, which is dropped; rather that of
    /// a cooled one. `None` if all blocks are lent.
    fn free_id(&mut self) -> Option<usize> {
        // A new block under the id of a cooled one ends the mapping of the cooled block on both sides.
        let is_cooled = |block: &Block| block.lent.is_none() && block.counted() == 0;
        let cooled = self.blocks.iter().position(|entry| entry.as_ref().is_some_and(is_cooled));
        if let Some(id) = cooled.or_else(|| self.blocks.iter().position(Option::is_none)) {
            self.blocks[id] = None;
            return Some(id);
        }
        if self.blocks.len() < MAX_SINGLE {
            self.blocks.push(None);
            return Some(self.blocks.len() - 1);
        }
        let is_free = |entry: &Option<Block>| entry.as_ref().is_some_and(|block| block.lent.is_none());
        let id = self.blocks.iter().position(is_free)?;
        self.blocks[id] = None;
        Some(id)
    }

    /// Makes the loan one for a message of `len` bytes, if its block or part has room for them, and if at most `queue`
    /// bytes of messages are in flight then.
    pub(crate) fn grow(&mut self, loan: &mut Loan, len: usize, queue: usize) -> Growth {
        let record = loan.record.with_len(len);
        if record.offset_in(loan.mapping.len()).is_none() {
            return Growth::NeedsOther;
        }
        self.collect();
        let others = self.queued.saturating_sub(loan.record.len as usize);
        if (others > 0 && others.saturating_add(len) > queue) || !self.set_lent(loan, len) {
            return Growth::Refused;
        }
        loan.record = record;
        Growth::Done
    }

    /// Counts the message of this loan as in flight no longer. The memory, with its bytes, stays lent until
    /// [`Pool::take_back`].
    pub(crate) fn uncount(&mut self, loan: &Loan) {
        self.set_lent(loan, 0);
    }

    /// Sets the length of the message in flight in the memory of this loan. Returns `false`, and changes nothing, for
    /// memory from the pool of an earlier lane, and for memory that a bad peer has returned too early.
    fn set_lent(&mut self, loan: &Loan, len: usize) -> bool {
        let is_same = |mapping: &Arc<Mapping>| Arc::ptr_eq(mapping, &loan.mapping);
        let id = loan.record.id as usize;
        let lent = match id.checked_sub(MAX_SINGLE) {
            None => {
                let block = self.blocks.get_mut(id).and_then(Option::as_mut).filter(|block| is_same(&block.mapping));
                block.filter(|block| block.usage == loan.record.usage).map(|block| &mut block.lent)
            }
            Some(index) => {
                let block = self.shared.get_mut(index).and_then(Option::as_mut);
                let part =
                    block.filter(|block| is_same(&block.mapping)).map(|block| &mut block.parts[loan.record.part]);
                part.filter(|part| part.usage == loan.record.usage).map(|part| &mut part.lent)
            }
        };
        let Some(Some(lent)) = lent.map(Option::as_mut) else { return false };
        self.queued = self.queued - *lent + len;
        *lent = len;
        true
    }

    /// Takes back the memory lent for an unsent message. The next loan of the memory gets the number of this use again.
    /// If the receiver never got the block's memory, the block is dropped. Does nothing for memory from the pool of an
    /// earlier lane.
    pub(crate) fn take_back(&mut self, loan: &Loan) {
        if loan.record.id >= MAX_SINGLE as u64 {
            self.take_back_part(loan);
            return;
        }
        let Some(entry) = self.blocks.get_mut(loan.record.id as usize) else { return };
        let Some(block) = entry.as_mut().filter(|block| Arc::ptr_eq(&block.mapping, &loan.mapping)) else { return };
        // A bad peer can write the number of a use that it has not seen yet. Then the block is free already, or lent
        // again.
        if block.usage != loan.record.usage || block.lent.is_none() {
            return;
        }
        self.queued -= block.lent.take().unwrap_or(0);
        // The receiver never saw this use, so the next loan gets the same number.
        block.usage -= 1;
        if let Some(warm) = &block.warm {
            warm.take_back(0, block.usage);
        }
        if loan.fresh.is_some() {
            *entry = None;
        }
    }

    fn take_back_part(&mut self, loan: &Loan) {
        let Some(entry) = self.shared.get_mut(loan.record.id as usize - MAX_SINGLE) else { return };
        let Some(block) = entry.as_mut().filter(|block| Arc::ptr_eq(&block.mapping, &loan.mapping)) else { return };
        // As for an unshared block, a bad peer can have returned the part.
        let part = &block.parts[loan.record.part];
        if part.usage != loan.record.usage || part.lent.is_none() {
            return;
        }
        self.queued -= block.take_back(loan.record.part);
        if loan.fresh.is_some() && block.lent == 0 {
            *entry = None;
        }
    }
}

/// Returns the length in bytes of each part in a shared block for messages of `len` bytes: a power of two, at least
/// [`PAGE`].
fn stride_for(len: usize) -> usize {
    len.next_power_of_two().max(PAGE)
}

/// Returns the record of a message of `len` bytes that lies in the unshared block with the id `id`. `usage` is the
/// number of this use of the block. `once` says that the sender does not use the block again.
fn whole(id: usize, usage: u64, len: usize, once: bool) -> BlockRecord {
    BlockRecord { id: id as u64, part: 0, stride: 0, usage, len: len as u64, once }
}

/// Writes `bytes` into the lent memory, from byte `offset` of the message on. Fails only if the kernel refuses the
/// write to a new block. A new block is written through its descriptor, which avoids page faults; a block that was used
/// before is written through the mapping.
pub(crate) fn fill(loan: &Loan, offset: usize, bytes: &[u8]) -> Result<(), Error> {
    match loan.fresh.as_ref().and_then(|memory| memory.fd.as_ref()) {
        Some(fd) => memory::write_at(fd.as_fd(), bytes, (loan.record.at() + offset) as u64),
        None => {
            loan.mapping.copy_in(loan.record.at() + offset, bytes);
            Ok(())
        }
    }
}

/// Returns a block or part to the sender: writes the number of the use that `record` names into the return word of that
/// block or part. The receiver has finished with the message.
pub(crate) fn give_back(block: &Mapping, record: &BlockRecord) {
    fault::point("before a block is given back");
    // A sequentially consistent exchange, ordered before the following read of the sender's sleep word.
    block.word(record.word()).swap(record.usage, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    include!("../../tests/common/wire_page.rs");

    #[test]
    fn the_page_has_the_numbers_of_blocks() {
        let numbers = [
            ("block payload", PAYLOAD),
            ("block record", BlockRecord::SIZE),
            ("single blocks", MAX_SINGLE),
            ("blocks", MAX_BLOCKS),
        ];
        assert_page_has("constants", &numbers.map(|(name, number)| (name, [number as u64])));
    }

    fn make(size: usize) -> Result<NewMemory, Error> {
        Ok(NewMemory { memory: Shareable { mapping: Mapping::private(size)?, fd: None }, account: None })
    }

    fn lend(pool: &mut Pool, len: usize, retain_limit: usize, queue: usize) -> Option<Loan> {
        pool.lend(len, retain_limit, queue, || true, make).unwrap()
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
        let retain_limit = size_for(1 << 20);
        let small = lend(&mut pool, 1 << 19, retain_limit, usize::MAX).unwrap();
        assert!(!small.record.once);
        give_back(&small.mapping, &small.record);
        let large = lend(&mut pool, 1 << 20, retain_limit, usize::MAX).unwrap();
        assert!(large.fresh.is_some() && !large.record.once);
        assert_eq!((large.record.id, large.record.usage), (small.record.id, 1));
        assert_eq!(pool.retained(), retain_limit);
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

    /// Shows that messages share blocks when no id is left, and that each shared block that the pool does not retain is
    /// dropped once all of its messages were received.
    #[test]
    fn many_messages_share_few_blocks() {
        const MANY: usize = 5000;
        for retain_limit in [0, 64 << 20] {
            let mut pool = Pool::default();
            let loans: Vec<_> = (0..MANY).map(|_| lend(&mut pool, 10_000, retain_limit, usize::MAX).unwrap()).collect();
            assert_eq!(pool.queued, MANY * 10_000);
            let fresh = loans.iter().filter(|loan| loan.fresh.is_some()).count();
            assert!(fresh < MAX_SINGLE + 32, "{fresh}");
            for loan in &loans {
                let record = BlockRecord::decode(&loan.record.encode()).unwrap();
                assert_eq!(record, loan.record);
                assert_eq!(record.brings_memory(), loan.fresh.is_some());
                assert!(record.offset_in(loan.mapping.len()).is_some());
                give_back(&loan.mapping, &record);
            }
            assert!(pool.has_news());
            pool.collect();
            assert_eq!((pool.queued, pool.returned, pool.has_news()), (0, MANY as u64, false));
            // Blocks that the pool does not retain were dropped, except for a shared block with parts that were never
            // lent.
            if retain_limit == 0 {
                let left = pool.blocks.iter().flatten().count() + pool.shared.iter().flatten().count();
                assert!(left <= 1, "{left}");
            } else {
                assert!(pool.retained() <= retain_limit);
                assert!(lend(&mut pool, 10_000, retain_limit, usize::MAX).unwrap().fresh.is_none());
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

    /// Shows that a shared block whose memory the receiver has stays in the pool when its only lent part is taken back:
    /// the next message needs no new memory.
    #[test]
    fn a_shared_block_that_the_receiver_has_outlives_a_message_that_was_not_sent() {
        let mut pool = Pool::default();
        let _singles: Vec<_> = (0..MAX_SINGLE).map(|_| lend(&mut pool, 1000, 0, usize::MAX).unwrap()).collect();
        let sent = lend(&mut pool, 1000, 0, usize::MAX).unwrap();
        give_back(&sent.mapping, &sent.record);
        let unsent = lend(&mut pool, 1000, 0, usize::MAX).unwrap();
        pool.take_back(&unsent);
        let next = lend(&mut pool, 1000, 0, usize::MAX).unwrap();
        assert!(next.fresh.is_none());
        assert_eq!(next.record, unsent.record);
    }

    /// Shows that a peer harms nothing by returning memory before it has got the message: the sender takes the memory
    /// back once, whether that memory was lent again meanwhile or not.
    #[test]
    fn memory_that_a_bad_peer_returns_too_early_is_taken_back_once() {
        for singles in [0, MAX_SINGLE] {
            let mut pool = Pool::default();
            let _singles: Vec<_> = (0..singles).map(|_| lend(&mut pool, 1000, 64 << 20, usize::MAX).unwrap()).collect();
            let first = lend(&mut pool, 10_000, 64 << 20, usize::MAX).unwrap();
            give_back(&first.mapping, &first.record);
            let again = lend(&mut pool, 10_000, 64 << 20, usize::MAX).unwrap();
            assert!(Arc::ptr_eq(&first.mapping, &again.mapping), "{singles}");
            pool.take_back(&first);
            assert_eq!(pool.queued, singles * 1000 + 10_000, "{singles}");
            give_back(&again.mapping, &again.record);
            let mut again = again;
            assert_eq!(pool.grow(&mut again, 12_000, usize::MAX), Growth::Refused, "{singles}");
            pool.uncount(&again);
            pool.take_back(&again);
            assert_eq!(pool.queued, singles * 1000, "{singles}");
            let loans: Vec<_> = (0..2).map(|_| lend(&mut pool, 10_000, 64 << 20, usize::MAX).unwrap()).collect();
            let places = loans.iter().map(|loan| (loan.record.id, loan.record.part)).collect::<Vec<_>>();
            assert_ne!(places[0], places[1], "{singles}");
        }
    }

    #[test]
    fn a_loan_grows_in_its_memory_if_the_queue_permits() {
        let mut pool = Pool::default();
        let mut loan = lend(&mut pool, 10_000, 64 << 20, 100_000).unwrap();
        assert_eq!(pool.grow(&mut loan, 60_000, 100_000), Growth::Done);
        assert_eq!((loan.record.len, pool.queued), (60_000, 60_000));
        let other = lend(&mut pool, 39_000, 64 << 20, 100_000).unwrap();
        assert_eq!(pool.grow(&mut loan, 62_000, 100_000), Growth::Refused);
        give_back(&other.mapping, &other.record);
        assert_eq!(pool.grow(&mut loan, 62_000, 100_000), Growth::Done);
        assert_eq!(pool.grow(&mut loan, 1 << 20, usize::MAX), Growth::NeedsOther);
        assert_eq!(pool.queued, 62_000);
    }

    #[test]
    fn records_of_parts_that_cannot_be_are_none() {
        let with = |fields: [u64; 4]| {
            let mut bytes = [0; BlockRecord::SIZE];
            for (field, entry) in fields.iter().zip(bytes.chunks_exact_mut(8)) {
                entry.copy_from_slice(&field.to_le_bytes());
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
        // The message is longer than its part, or lies behind the end of the memory.
        assert_eq!(with([shared, 1, 4097, 4096]).unwrap().offset_in(1 << 20), None);
        assert_eq!(with([shared | 1 << 32, 1, 1, 4096]).unwrap().offset_in(8192), None);
        assert_eq!(with([shared | 1 << 32, 1, 4096, 4096]).unwrap().offset_in(3 * 4096), Some(8192));
    }
}
