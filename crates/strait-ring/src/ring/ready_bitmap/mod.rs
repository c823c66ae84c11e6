//! The notification area, by which one process tells another process which members of a wait set have something. The
//! main part is the ready bitmap.
//!
//! A notification area is memory that two processes share: the notifier and the reader. The area has three levels: a
//! bit for each of 2^20 members, a bit above each 64 bits of the first level, and a bit above each 64 bits of the
//! second. So the reader finds the notified members without looking at the others. A notification takes the same few
//! operations however many members there are, and the area never overflows. If a member is notified twice before the
//! reader collects it, the reader collects the member once.
//!
//! ```text
//! offset  written by   what
//!      0  both         sleeping   u32     how the reader sleeps: 0 awake, 1 on this word, any other on the socket
//!      4  both         posted     u32     1 once the notifier has sent a packet since the reader last cleared it
//!      8  notifier     known      u32     1 once the notifier has the area, and wakes a sleeper on the word
//!    128  both         top        4×u64   bit b of word w: look at middle word 64 w + b
//!    160  both         middle   256×u64   bit b of word w: look at leaf 64 w + b
//!   2208  both         leaves 16384×u64   bit b of word w: member 64 w + b has something
//! 133280               unused, up to a whole page
//! ```
//!
//! The sleep word has a pair of cache lines of its own, since the reader polls the top words. Untouched pages cost
//! nothing: the first page holds all that the first 15,104 members need, and each other page serves 32,768 more. The
//! reader looks only at words that the word above names, because a look would make the kernel add the page.
//!
//! # Why no notification is lost
//!
//! Each operation below is an exchange or a load with at least release or acquire ordering; *before* refers to the
//! modification order of the word in question.
//!
//! The notifier goes up: it sets the bit in the leaf, and then on each level above sets the bit or sees the bit set.
//! The reader goes down: it takes a word (an exchange for 0), and then, now or in a later call, takes each word below
//! for which the taken word has a bit. Let the notifier set bit *L* in a leaf. If the reader takes the leaf afterwards,
//! the reader gets *L*. The reader does take the leaf if the bit above is still set when the reader takes the middle
//! word. So the notification could be lost only if the bit above was taken before, and the notifier *saw* the bit
//! without setting it. But a reader that takes the middle word takes the leaf next. If the reader took the leaf before
//! *L*, the notifier changed the leaf after the reader. By that change the notifier has acquired that the middle word
//! was taken, and cannot see the earlier bit. If the reader took the leaf after *L*, the reader has *L*. The argument
//! holds one level up as well. Between the top word and the leaf of *L*, the reader takes the middle word; and a
//! notifier that set the bit there afterwards has acquired, and passed on, that the top word was taken.
//!
//! A notifier must look at the words above even if the leaf's bit was set already: the thread that set it may not have
//! come to the top yet. The model finds this.
//!
//! # Sleeping on the word
//!
//! A wake-up by the word costs half of a wake-up by a packet, which has to be received. But a reader that sleeps on the
//! word does not notice the socket. So after sending any packet, a notifier sets *posted* and wakes that sleeper too.
//! After recording its sleep on the word, a thread of the reader checks whether a member was notified, and whether
//! *posted* is set.
//!
//! Only one thread of the reader sleeps on the word at a time, and only briefly. Then the thread **leaves**: it clears
//! the sleep word if the word still holds 1. After leaving, the thread acts as if it had received a packet, because
//! other threads may have begun to sleep in another way meanwhile. A thread that records another way to sleep wakes the
//! thread of the replaced record.
//!
//! # A notifier without the area
//!
//! The notifier's process may lack the resources to receive the area. The notifier then sends a packet for each
//! notification, and for each packet the reader looks at all members of the link, in a [`Round`]. The reader stops this
//! once a packet comes after *known* was set; that packet begins the last round.
//!
//! No notification is lost in between. A notifier publishes, and then finds that its process does not have the area. So
//! *known* is set later, because another thread sets *known* only once the process has the area ([`before_notifying`]
//! and [`acknowledge`] keep this order). The notifier's packet either begins a round, or comes after the last round has
//! begun. The last round began when *known* was seen to be set, and so looks at each member after the notifier has
//! published.
//!
//! # Trust
//!
//! The notifier's process can write any value to any word of the area. Any bits give numbers of members below 2^20; a
//! member that was notified without cause has nothing; and a call of [`Collector::collect`] takes at most as many words
//! of each level as its limit. The peer can lose only its own notifications. The reader's process can only cause
//! useless wake-ups of itself.

use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::ring::{Word, take_sleeper};

/// Number of bits in a word of the ready bitmap. Each member of a wait set has one bit.
const BITS: usize = 64;

/// Number of members with bits in a notification area. Member ids are the numbers below `MEMBERS`.
pub const MEMBERS: usize = 1 << 20;

const LEAVES: usize = MEMBERS / BITS;
const MIDDLES: usize = LEAVES / BITS;
const TOPS: usize = MIDDLES / BITS;

const FIRST_TOP: usize = 0;
const FIRST_MIDDLE: usize = FIRST_TOP + TOPS;
const FIRST_LEAF: usize = FIRST_MIDDLE + MIDDLES;

/// Number of words of the ready bitmap, all three levels together.
pub const WORDS: usize = FIRST_LEAF + LEAVES;

/// Offset in bytes of the reader's sleep word, *sleeping*, from the start of a notification area.
pub const SLEEPING: usize = 0;
/// Offset in bytes of the word *posted* from the start of a notification area.
pub const POSTED: usize = 4;
/// Offset in bytes of the word *known* from the start of a notification area.
pub const KNOWN: usize = 8;

/// `ON_WORD`: the value of the sleep word of a notification area while a thread of the reader sleeps on the sleep word
/// itself (a futex).
pub const ON_WORD: u32 = 1;

/// `ON_SOCKET`: the value of the sleep word of a notification area while the reader sleeps on the link's socket, so
/// that only a packet wakes it. Every value other than 0 and [`ON_WORD`] has this meaning too.
pub const ON_SOCKET: u32 = 2;

/// Offset in bytes of the ready bitmap from the start of a notification area.
pub const WORDS_AT: usize = 128;

/// Size in bytes of a notification area, in whole pages.
pub const BYTES: usize = (WORDS_AT + WORDS * 8).next_multiple_of(4096);

/// The words of a notification area, all of them 0 at first.
pub trait Words {
    /// Type of the shared words of 4 bytes.
    type Word32: Word<u32>;
    /// Type of the shared words of 8 bytes.
    type Word64: Word<u64>;

    /// Returns the word of the ready bitmap with the index `index`, below [`WORDS`]. The index counts the 64-bit words
    /// of all three levels: first the top level, then the middle, then the leaves.
    fn word(&self, index: usize) -> &Self::Word64;
    /// Returns the word *sleeping*, the reader's sleep word: 0 while the reader is awake, else how it sleeps.
    fn sleeping(&self) -> &Self::Word32;
    /// Returns the word *posted*: 1 once the notifier has sent a packet since the reader last cleared this word.
    fn posted(&self) -> &Self::Word32;
    /// Returns the word *known*: 1 once the notifier's process has received this notification area and can wake a
    /// thread that sleeps on the sleep word; else 0.
    fn known(&self) -> &Self::Word32;

    /// A barrier that keeps this order: a notifier sets bits, or sees the bits set, before loading the reader's sleep
    /// word. Has an effect in the model checker only; see [`Memory::full_barrier`](crate::ring::Memory::full_barrier).
    #[inline]
    fn full_barrier() {}

    /// A barrier that keeps this order: the reader records its sleep in the sleep word before looking at the ready
    /// bitmap once more; see [`Memory::sleep_barrier`](crate::ring::Memory::sleep_barrier).
    #[inline]
    fn sleep_barrier() {
        fence(SeqCst);
    }

    /// A fence that keeps two orders. A notifier publishes before checking whether its process has the notification
    /// area. The thread that receives the area makes the area known to its process before setting the word *known*.
    #[inline]
    fn known_barrier() {
        fence(SeqCst);
    }
}

impl<W: Words> Words for Arc<W> {
    type Word32 = W::Word32;
    type Word64 = W::Word64;

    #[inline]
    fn word(&self, index: usize) -> &Self::Word64 {
        (**self).word(index)
    }

    #[inline]
    fn sleeping(&self) -> &Self::Word32 {
        (**self).sleeping()
    }

    #[inline]
    fn posted(&self) -> &Self::Word32 {
        (**self).posted()
    }

    #[inline]
    fn known(&self) -> &Self::Word32 {
        (**self).known()
    }

    #[inline]
    fn full_barrier() {
        W::full_barrier();
    }

    #[inline]
    fn sleep_barrier() {
        W::sleep_barrier();
    }

    #[inline]
    fn known_barrier() {
        W::known_barrier();
    }
}

/// Member id: the number by which a peer notifies a member of a wait set, below [`MEMBERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u32);

impl MemberId {
    /// Returns the member id with this number; `None` if the number is not below [`MEMBERS`].
    #[inline]
    pub fn new(number: u32) -> Option<Self> {
        ((number as usize) < MEMBERS).then_some(Self(number))
    }

    /// Returns the member id as a number.
    #[inline]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Notifies the reader that the member `member` has something, which the caller must have published before. Returns how
/// the reader sleeps, and then the caller must wake it; returns 0 if the reader is awake.
///
/// Any number of threads may notify at the same time. Once this call has returned, the reader can collect the member,
/// even while other notifiers are in the middle of their calls.
#[inline]
pub fn notify<W: Words>(words: &W, member: MemberId) -> u32 {
    let number = member.0 as usize;
    let (leaf, middle, top) = (number / BITS, number / BITS.pow(2), number / BITS.pow(3));
    // Always an exchange, even if the bit is set: the proof above rests on the exchange, which also passes on to the
    // reader everything published for the member.
    words.word(FIRST_LEAF + leaf).fetch_or(1 << (number % BITS), SeqCst);
    make_sure_of(words.word(FIRST_MIDDLE + middle), 1 << (leaf % BITS));
    make_sure_of(words.word(FIRST_TOP + top), 1 << (middle % BITS));
    W::full_barrier();
    take_sleeper(words.sleeping())
}

/// Keeps the order of two steps of a notifier: first publishing, and then checking whether its process has the
/// notification area. The notifier must call this between publishing and the last such check.
pub fn before_notifying<W: Words>() {
    W::known_barrier();
}

/// Sets the word *known*: the notifier's process has the notification area, and from now on wakes a reader that sleeps
/// on the sleep word. Also sets the word *posted*: other threads of the notifier's process may have sent packets before
/// they could use the area. Does not wake a sleeping reader.
pub fn acknowledge<W: Words>(words: &W) {
    W::known_barrier();
    words.posted().swap(1, SeqCst);
    words.known().swap(1, SeqCst);
}

/// Sets the word *posted* of the notification area; the notifier calls this after it has sent a packet. Returns whether
/// a thread of the reader slept on the sleep word: if so, this call has cleared the sleep word, and the caller must
/// wake that thread.
#[inline]
pub fn post<W: Words>(words: &W) -> bool {
    words.posted().swap(1, SeqCst);
    W::full_barrier();
    let sleeping = words.sleeping();
    sleeping.load(SeqCst) == ON_WORD && sleeping.compare_exchange(ON_WORD, 0, SeqCst, SeqCst).is_ok()
}

/// Records in the sleep word of a notification area how a thread of the reader sleeps: `how` is [`ON_WORD`],
/// [`ON_SOCKET`], or 0 once the thread is awake again. The thread must look at the ready bitmap once more before it
/// sleeps. Returns `true` if the sleep word held [`ON_WORD`] before: another thread may sleep on the word, and the
/// caller must wake that thread.
#[inline]
pub fn announce<W: Words>(words: &W, how: u32) -> bool {
    let before = words.sleeping().swap(how, SeqCst);
    W::sleep_barrier();
    before == ON_WORD
}

/// Ends the recorded sleep of the calling thread on the sleep word: sets the word from [`ON_WORD`] to 0. Returns
/// `false`, and changes nothing, if the word holds another value: a waker has cleared it, or another thread has
/// recorded another way to sleep.
pub fn leave<W: Words>(words: &W) -> bool {
    words.sleeping().compare_exchange(ON_WORD, 0, SeqCst, SeqCst).is_ok()
}

/// Returns whether the word *posted* is set: the notifier has sent a packet since the reader last [cleared](take_post)
/// it.
#[inline]
pub fn has_post<W: Words>(words: &W) -> bool {
    words.posted().load(SeqCst) != 0
}

/// Clears the word *posted* of the notification area. Returns whether the word was set; if so, the caller must receive
/// the packets on the link's socket after this call.
pub fn take_post<W: Words>(words: &W) -> bool {
    has_post(words) && words.posted().swap(0, SeqCst) != 0
}

/// The progress of a round. In a round the reader looks at all members on a link, in steps, because the notifier cannot
/// name single members. See *A notifier without the area* at the head of this file.
///
/// Each step begins at the member where the step before has stopped. Allocates no memory.
#[derive(Debug, Default)]
pub struct Round {
    /// Index, among the members on the link, of the member at which the round's next step begins.
    next: usize,
    /// Number of members that the current round still has to look at; 0 if no round is in progress.
    left: usize,
    /// Whether the last round of this link has begun. No other round begins after it, because the notifier has the
    /// notification area and names the members from then on.
    last: bool,
}

impl Round {
    /// Begins a new round over all `members` members, because a packet has arrived; does not, if the last round has
    /// begun. `known` says whether the notifier's process has declared that it has the notification area; if so, this
    /// round is the last. Returns whether a member is left to look at.
    #[inline]
    pub fn begin(&mut self, members: usize, known: bool) -> bool {
        if !self.last {
            self.last = known;
            self.left = members;
        }
        self.is_in_progress()
    }

    /// Adds a member that has just joined to the current round; does nothing if no round is in progress.
    #[inline]
    pub fn grow(&mut self) {
        self.left += usize::from(self.left > 0);
    }

    /// Returns the index of the next member at which the round looks; `None` if the round is over. `members` is the
    /// number of members now, and the index is below it.
    #[inline]
    pub fn next(&mut self, members: usize) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let at = self.next % members;
        self.next = at + 1;
        Some(at)
    }

    /// Returns whether a round is in progress.
    #[inline]
    pub fn is_in_progress(&self) -> bool {
        self.left > 0
    }
}

/// Sets `bit` in `word`, a word of the ready bitmap, unless it is set already. While the reader is busy, the bit is
/// mostly set. Notifiers then only load the word, and its cache line stays shared between their cores.
#[inline]
fn make_sure_of(word: &impl Word<u64>, bit: u64) {
    if word.load(SeqCst) & bit == 0 {
        word.fetch_or(bit, SeqCst);
    }
}

/// A word taken from one level of the ready bitmap by the collector, with the bits not processed yet.
#[derive(Clone, Copy, Debug, Default)]
struct TakenWord {
    /// Index of the word within its level of the ready bitmap.
    index: usize,
    bits: u64,
}

impl TakenWord {
    /// Removes the lowest bit of the word, and returns the index of what the bit stands for: a word in the level below,
    /// or a member in the lowest level. Returns `None` if no bit is left.
    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.bits == 0 {
            return None;
        }
        let bit = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(self.index * BITS + bit)
    }
}

/// Collects the members of wait sets that were notified in a ready bitmap. Only one thread at a time may use a
/// collector.
///
/// The collector visits the bitmap in a circle: each call continues where the last one stopped. So a member that is
/// notified all the time is collected once in a circle and does not delay the others.
#[derive(Debug)]
pub struct Collector<W> {
    words: W,
    top: TakenWord,
    middle: TakenWord,
    leaf: TakenWord,
}

impl<W: Words> Collector<W> {
    /// Creates the collector of the notification area `words`, which has collected nothing yet.
    #[inline]
    pub fn new(words: W) -> Self {
        // The circle begins with the word after `top`.
        let top = TakenWord { index: TOPS - 1, bits: 0 };
        Self { words, top, middle: TakenWord::default(), leaf: TakenWord::default() }
    }

    /// Returns the words of the notification area.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// Calls `each` for notified members, at most `limit` of them, and returns the number of calls. Later calls collect
    /// the other members, and members notified meanwhile. A result below `limit`, even 0, does not mean that no
    /// notified member is left; use [`Collector::is_empty`] for that.
    ///
    /// Clears a member's notification before calling `each`. So if the member has something more later, the member is
    /// notified again.
    pub fn collect(&mut self, limit: usize, mut each: impl FnMut(MemberId)) -> usize {
        let mut collected = 0;
        // A named but empty word counts as well; otherwise a peer could make this process look at all words.
        let mut left = limit;
        let mut tops_left = TOPS;
        while left > 0 {
            if let Some(number) = self.leaf.next() {
                left -= 1;
                collected += 1;
                each(MemberId(number as u32));
            } else if let Some(index) = self.middle.next() {
                self.leaf = self.take(FIRST_LEAF, index);
                left -= usize::from(self.leaf.bits == 0);
            } else if let Some(index) = self.top.next() {
                self.middle = self.take(FIRST_MIDDLE, index);
                left -= usize::from(self.middle.bits == 0);
            } else if tops_left > 0 {
                tops_left -= 1;
                let index = (self.top.index + 1) % TOPS;
                // A load comes first, so that the line stays in the notifiers' caches.
                let some = self.words.word(FIRST_TOP + index).load(SeqCst) != 0;
                self.top = if some { self.take(FIRST_TOP, index) } else { TakenWord { index, bits: 0 } };
            } else {
                break;
            }
        }
        collected
    }

    /// Takes all bits of one word of the bitmap and clears the word: the word with index `index` in the level whose
    /// first word has index `first`.
    #[inline]
    fn take(&self, first: usize, index: usize) -> TakenWord {
        TakenWord { index, bits: self.words.word(first + index).swap(0, SeqCst) }
    }

    /// Returns whether no notification is left to collect; changes nothing. The cost of a few loads of one cache line
    /// suits a loop that spins. A reader also calls this function between recording its sleep
    /// ([`announce`](crate::ring::announce), with [`Words::sleeping`]) and sleeping.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.leaf.bits | self.middle.bits | self.top.bits == 0
            && (0..TOPS).all(|top| self.words.word(FIRST_TOP + top).load(SeqCst) == 0)
    }
}

const _: () = {
    assert!(TOPS * BITS * BITS * BITS == MEMBERS);
    assert!(BYTES == 33 * 4096);
    assert!(WORDS_AT + FIRST_MIDDLE * 8 == 160 && WORDS_AT + FIRST_LEAF * 8 == 2208);
};

#[cfg(test)]
mod tests;
