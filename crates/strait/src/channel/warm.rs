//! The blocks kept by a pool for later messages, as warm memory of this process.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::quota::{closing, pools};
use crate::shm::{Mapping, PAYLOAD};
use crate::sync::unpoisoned;

/// A block kept by its pool. The block is warm or cooled.
#[derive(Debug)]
pub(in crate::channel) struct WarmBlock {
    mapping: Arc<Mapping>,
    /// The number of the account of the peer that gets the block's memory; `None` if no other process gets the memory.
    account: Option<usize>,
    /// Number of bytes of the block that count as warm: its length, or 0 if the block was cooled.
    counted: AtomicUsize,
    /// The time of the last use of the block, in nanoseconds, by the clock of [`pools::now`].
    used_at: AtomicU64,
    /// The lock is held for a moment only, and never while the kernel takes pages back.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number of the last use of each part of the block; an unshared block has one part.
    usages: Vec<u64>,
    /// Whether a thread is cooling the block now.
    is_being_cooled: bool,
    /// While the block waits for a thread of the reaper to cool it: how long the block must be unused for that.
    waits_for_thread: Option<Duration>,
}

impl WarmBlock {
    /// Keeps a block of `parts` parts that was made just now, if the cap of this process permits: otherwise `None`, and
    /// the block is to be used once. The block is lent from the beginning: its part 0 has its first use. `account` is
    /// the number of the account of the peer that gets the memory; `None` if no other process gets the memory.
    pub(super) fn keep(mapping: &Arc<Mapping>, parts: usize, account: Option<usize>) -> Option<Arc<Self>> {
        if !pools::count(mapping.len()) {
            return None;
        }
        // Another thread can cool the block as soon as it is listed, and would do so if no part were lent.
        let usages = std::iter::once(1).chain(std::iter::repeat_n(0, parts - 1)).collect();
        let block = Arc::new(Self {
            mapping: mapping.clone(),
            account,
            counted: AtomicUsize::new(mapping.len()),
            used_at: AtomicU64::new(nanos(pools::now())),
            state: Mutex::new(State { usages, is_being_cooled: false, waits_for_thread: None }),
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
        // The lock is not held while other blocks are cooled.
        if is_cool && !pools::count(self.mapping.len()) {
            return false;
        }
        let mut state = unpoisoned(&self.state);
        let was_cooled = !is_cool && self.counted() == 0;
        if state.is_being_cooled || was_cooled {
            if is_cool {
                pools::uncount(self.mapping.len());
            }
            return false;
        }
        if is_cool {
            self.counted.store(self.mapping.len(), Ordering::Relaxed);
        }
        state.usages[part] = usage;
        self.used_at.store(nanos(pools::now()), Ordering::Relaxed);
        true
    }

    /// Notes that part `part` was lent for an unsent message; `usage` is the number of the use before that.
    pub(super) fn take_back(&self, part: usize, usage: u64) {
        unpoisoned(&self.state).usages[part] = usage;
    }

    /// Returns the number of warm bytes of this block; 0 if the block was cooled.
    pub(super) fn counted(&self) -> usize {
        self.counted.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of this block while warm.
    pub(super) fn size(&self) -> usize {
        self.mapping.len()
    }

    /// Cools this block, or makes a thread do so, if no part is lent. Returns the number of bytes that were cooled, or
    /// that a thread is to cool.
    pub(super) fn cool_now(self: &Arc<Self>) -> usize {
        pools::Block::cool(self.clone(), Duration::ZERO)
    }

    /// Returns whether the block can be cooled: it is warm, no part is lent, and the block was not used for the time
    /// `unused`.
    fn is_idle(&self, state: &State, unused: Duration) -> bool {
        let came_back = |(part, usage): (usize, &u64)| self.mapping.word(8 * part).load(Ordering::Acquire) == *usage;
        let used_at = Duration::from_nanos(self.used_at.load(Ordering::Relaxed));
        self.counted() > 0
            && pools::now().saturating_sub(used_at) >= unused
            && state.usages.iter().enumerate().all(came_back)
    }

    /// Cools this block in the calling thread, if the block is idle. Blocks as long as a process that has the memory
    /// likes.
    fn cool_here(&self, unused: impl FnOnce(&mut State) -> Option<Duration>) {
        let mut state = unpoisoned(&self.state);
        let is_idle = unused(&mut state).is_some_and(|unused| self.is_idle(&state, unused));
        if !is_idle || state.is_being_cooled {
            return;
        }
        state.is_being_cooled = true;
        drop(state);
        // The first page stays: it has the words by which the receiver returns the block.
        let is_discarded = self.mapping.discard(PAYLOAD);
        let mut state = unpoisoned(&self.state);
        state.is_being_cooled = false;
        if is_discarded {
            pools::uncount(self.counted.swap(0, Ordering::Relaxed));
        }
    }

    /// Makes a thread of the reaper cool this block, at the account with the number `account`. The block can be lent
    /// until the thread begins.
    fn cool_elsewhere(self: Arc<Self>, account: usize) {
        // A block that its pool drops meanwhile needs no cooling.
        let block = Arc::downgrade(&self);
        drop(self);
        let cool = move || {
            if let Some(block) = block.upgrade() {
                block.cool_here(|state| state.waits_for_thread.take());
                drop(block);
                pools::note_thread(true);
            }
        };
        if !closing::run_elsewhere(account, Box::new(cool)) {
            pools::note_thread(false);
        }
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

    fn counted(&self) -> usize {
        Self::counted(self)
    }

    fn cool(self: Arc<Self>, unused: Duration) -> usize {
        let counted = self.counted();
        let Some(account) = self.account else {
            self.cool_here(|_| Some(unused));
            return counted - self.counted().min(counted);
        };
        let mut state = unpoisoned(&self.state);
        if let Some(asked) = &mut state.waits_for_thread {
            *asked = unused.min(*asked);
            return counted;
        }
        if state.is_being_cooled {
            return counted;
        }
        if !self.is_idle(&state, unused) {
            return 0;
        }
        state.waits_for_thread = Some(unused);
        drop(state);
        self.cool_elsewhere(account);
        counted
    }

    fn is_with_thread(&self) -> bool {
        let state = unpoisoned(&self.state);
        state.is_being_cooled || state.waits_for_thread.is_some()
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

    /// Shows that a look gives back only long unused blocks with received messages, in memory of this process alone and
    /// in memory that another process has.
    #[test]
    fn a_look_cools_what_was_not_used_for_long() {
        const LEN: usize = PAYLOAD + 8192;
        assert_a_look_cools_the_right_blocks(|| WarmBlock::keep(&Mapping::private(LEN).unwrap(), 2, None).unwrap());
        let shared = || Mapping::shared("test", LEN).unwrap().0;
        assert_a_look_cools_the_right_blocks(|| WarmBlock::keep(&shared(), 2, Some(0)).unwrap());
    }

    fn assert_a_look_cools_the_right_blocks(make: impl Fn() -> Arc<WarmBlock>) {
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
        let begin = std::time::Instant::now();
        while pools::Block::is_with_thread(&*quiet) {
            assert!(begin.elapsed() < Duration::from_secs(60), "no thread cools the block");
            std::thread::yield_now();
        }
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
