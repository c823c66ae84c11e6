//! The blocks kept by a pool for later messages, as warm memory of this process.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::quota::pools;
use crate::shm::{Mapping, PAYLOAD};
use crate::sync::unpoisoned;

/// A block kept by its pool. The block is warm or cooled.
#[derive(Debug)]
pub(in crate::channel) struct WarmBlock {
    mapping: Arc<Mapping>,
    /// Number of bytes of the block that count as warm: its length, or 0 if the block was cooled.
    counted: AtomicUsize,
    /// The time of the last use of the block, in nanoseconds, by the clock of [`pools::now`]. Threads that order blocks
    /// by their last use read the time without the lock of `usages`, which another thread holds while it cools a block.
    used_at: AtomicU64,
    /// The number of the last use of each part of the block; an unshared block has one part.
    usages: Mutex<Vec<u64>>,
}

impl WarmBlock {
    /// Keeps a block of `parts` parts that was made just now, if the cap of this process permits: otherwise `None`, and
    /// the block is to be used once. The block is lent from the beginning: its part 0 has its first use.
    pub(super) fn keep(mapping: &Arc<Mapping>, parts: usize) -> Option<Arc<Self>> {
        if !pools::count(mapping.len()) {
            return None;
        }
        // Another thread can cool the block as soon as it is listed, and would do so if no part were lent.
        let usages = std::iter::once(1).chain(std::iter::repeat_n(0, parts - 1)).collect();
        let block = Arc::new(Self {
            mapping: mapping.clone(),
            counted: AtomicUsize::new(mapping.len()),
            used_at: AtomicU64::new(nanos(pools::now())),
            usages: Mutex::new(usages),
        });
        let listed: Arc<dyn pools::Block> = block.clone();
        pools::list(Arc::downgrade(&listed));
        Some(block)
    }

    /// Notes that part `part` of this block is lent for the use with the number `usage`; from now on the block is not
    /// cooled before the receiver has returned the part. Returns `false`, and the part must not be used, if a thread is
    /// cooling the block just now, or if the block was cooled and the cap does not permit to warm it again.
    pub(super) fn lend(&self, part: usize, usage: u64) -> bool {
        let is_cool = self.counted() == 0;
        if is_cool && !pools::count(self.mapping.len()) {
            return false;
        }
        // The lock is not held while other blocks are cooled, and no thread waits for one that cools it.
        let Ok(mut usages) = self.usages.try_lock() else {
            if is_cool {
                pools::uncount(self.mapping.len());
            }
            return false;
        };
        if is_cool {
            self.counted.store(self.mapping.len(), Ordering::Relaxed);
        } else if self.counted() == 0 {
            return false;
        }
        usages[part] = usage;
        self.used_at.store(nanos(pools::now()), Ordering::Relaxed);
        true
    }

    /// Notes that part `part` was lent for an unsent message; `usage` is the number of the use before that.
    pub(super) fn take_back(&self, part: usize, usage: u64) {
        unpoisoned(&self.usages)[part] = usage;
    }

    /// Returns the number of warm bytes of this block; 0 if the block was cooled.
    pub(super) fn counted(&self) -> usize {
        self.counted.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of this block while warm.
    pub(super) fn size(&self) -> usize {
        self.mapping.len()
    }

    /// Cools this block now, if no part is lent, and returns the number of bytes cooled.
    pub(super) fn cool_now(&self) -> usize {
        pools::Block::cool(self, Duration::ZERO)
    }
}

/// Returns a time in nanoseconds, as [`WarmBlock::used_at`] keeps it.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl pools::Block for WarmBlock {
    fn used_at(&self) -> Duration {
        Duration::from_nanos(self.used_at.load(Ordering::Relaxed))
    }

    fn cool(&self, unused: Duration) -> usize {
        let Ok(usages) = self.usages.try_lock() else { return 0 };
        let came_back = |(part, usage): (usize, &u64)| self.mapping.word(8 * part).load(Ordering::Acquire) == *usage;
        let is_idle = usages.iter().enumerate().all(came_back);
        if self.counted() == 0 || !is_idle || pools::now().saturating_sub(self.used_at()) < unused {
            return 0;
        }
        // The first page stays: it has the words by which the receiver returns the block.
        if !self.mapping.discard(PAYLOAD) {
            return 0;
        }
        let counted = self.counted.swap(0, Ordering::Relaxed);
        pools::uncount(counted);
        counted
    }
}

impl Drop for WarmBlock {
    fn drop(&mut self) {
        // A forked child has counted nothing for a block of its parent.
        if !self.mapping.is_elsewhere() {
            pools::uncount(self.counted());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a look gives back only long unused blocks with received messages.
    #[test]
    fn a_look_cools_what_was_not_used_for_long() {
        let make = || WarmBlock::keep(&Mapping::private(PAYLOAD + 8192).unwrap(), 2).unwrap();
        let (used, quiet, lent, new) = (make(), make(), make(), make());
        let set_long_unused = |block: &WarmBlock| block.used_at.store(nanos(pools::long_ago()), Ordering::Relaxed);
        set_long_unused(&new);
        for block in [&used, &quiet, &lent] {
            block.mapping.word(0).store(1, Ordering::Release);
            assert!(block.lend(1, 1));
            block.mapping.copy_in(PAYLOAD, b"payload");
            block.mapping.word(8).store(1, Ordering::Release);
        }
        assert!(lent.lend(0, 2));
        set_long_unused(&quiet);
        set_long_unused(&lent);
        pools::look_at_once();
        let is_warm = |block: &WarmBlock| {
            let mut bytes = [std::mem::MaybeUninit::uninit(); 7];
            let kept = block.mapping.copy_out(PAYLOAD, &mut bytes) == b"payload";
            assert_eq!(block.counted() > 0, kept);
            kept
        };
        assert_eq!([&used, &quiet, &lent].map(|block| is_warm(block)), [true, false, true]);
        assert_eq!(new.counted(), new.size());
        // The words with which the receiver returns parts are kept, and a cooled block is lent again.
        assert_eq!(quiet.mapping.word(8).load(Ordering::Acquire), 1);
        assert!(quiet.lend(0, 2) && quiet.counted() == quiet.size());
    }
}
