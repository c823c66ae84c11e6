//! A board: how a process tells another which members of a wait set have something.
//!
//! A board is memory that a ringer's process and a reader's process share. It has a bit for each of 2^20 members, and a
//! bit above each 64 of them, and one above each 64 of those: so the reader finds those that rang without looking at the
//! others, ringing takes the same few operations however many members there are, and a board never overflows. A member
//! that rings twice before it is collected is collected once.
//!
//! ```text
//! offset  written by   what
//!      0  both         sleeping   u32     how the reader sleeps: 0 awake, 1 on this word, any other number on the socket
//!      4  both         posted     u32     1 once the ringer has sent a packet since the reader last took this back
//!      8  ringer       known      u32     1 once the ringer has the board, and wakes who sleeps on the word
//!    128  both         top        4×u64   bit b of word w: look at middle word 64 w + b
//!    160  both         middle   256×u64   bit b of word w: look at leaf 64 w + b
//!   2208  both         leaves 16384×u64   bit b of word w: member 64 w + b has something
//! 133280               unused, up to a whole page
//! ```
//!
//! The sleeping word has a pair of cache lines of its own, since the reader polls the top words. Pages that nobody
//! touched cost nothing: the first holds all that the first 15,104 members need, and each other one serves 32,768
//! more. The reader looks at no word that the one above does not name, for a look would make the kernel add the page.
//!
//! # Why no ring is lost
//!
//! Each operation below is an exchange or a load that is at least release and acquire; *before* means in the order of the
//! changes of that word.
//!
//! The ringer goes up: it sets the leaf's bit, and then each bit above, or sees it set. The reader goes down: it takes a
//! word (an exchange for 0), and then, now or in a later call, takes each word below that a bit of it names. Let the ringer
//! set bit *L* in a leaf. If the reader takes the leaf after that, it has *L*. It does take it, if the bit above, as the
//! ringer left or saw it, is there when the reader takes the middle word: so only a bit that is gone already could lose
//! the ring, one that the ringer *saw* without setting it. But whoever takes the middle word takes the leaf next. Where
//! that was before *L*, the ringer, which changed the leaf after that, has acquired that the middle word was taken, and
//! cannot see the bit from before; where it was after *L*, it has *L*. The same holds one level up: between taking the top
//! word and taking *L*'s leaf the reader takes the middle word, and whoever set the bit there afterwards has acquired, and
//! passed on, that the top word was taken.
//!
//! What must not be skipped is the look at the words above, even where the leaf's bit was set already: whoever set it may
//! not have come to the top yet. The model finds that.
//!
//! # Sleeping on the word
//!
//! To be woken by the word costs half of what a packet costs, which has to be received. But who sleeps there does not hear
//! the socket: so the ringer, when it has sent any packet, says so in *posted* and wakes that sleeper too. The reader, once it
//! has said that it sleeps on the word, looks whether anybody rang, and whether anything was posted.
//!
//! One thread of the reader's at a time sleeps there, and for a short while only. It **leaves** afterwards: it takes back what
//! it said, if that still stands there, and then does what whoever received a packet would have done, for other threads that
//! may have begun to sleep in another way meanwhile. Another thread that says that it sleeps, in its way, wakes the one whose
//! word it took.
//!
//! # A ringer without the board
//!
//! A ringer's process may lack what it takes to receive the board. It then sends a packet for each ring, and for each packet the
//! reader looks at all members of the link: it goes a [`Round`]. The reader stops to do so once a packet comes after *known* was
//! set; that packet begins the last round.
//!
//! No ring is lost in between. A ringer publishes and then finds that its process does not have the board. So *known* is set
//! later, since another thread sets it after the process has got the board ([`before_ringing`] and [`acknowledge`] keep that
//! order). The ringer's packet either begins a round, or comes after the last round has begun. That round began when *known* was
//! seen to be set, and so looks at each member after the ringer has published.
//!
//! # Trust
//!
//! The ringers' process can write anything anywhere. Any bits give numbers of members below 2^20, a member that did not
//! ring has nothing, and a call of [`Collector::collect`] takes at most so many words as it was given for a limit, of
//! each level. What the peer can lose are its own rings. The reader's process can make ringers wake it for nothing.

use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::ring::{Word, take_sleeper};

/// Bits of a word.
const BITS: usize = 64;

/// Members of a board.
pub(crate) const MEMBERS: usize = 1 << 20;

const LEAVES: usize = MEMBERS / BITS;
const MIDDLES: usize = LEAVES / BITS;
const TOPS: usize = MIDDLES / BITS;

const FIRST_TOP: usize = 0;
const FIRST_MIDDLE: usize = FIRST_TOP + TOPS;
const FIRST_LEAF: usize = FIRST_MIDDLE + MIDDLES;

/// Words of a board's bitmaps.
pub(crate) const WORDS: usize = FIRST_LEAF + LEAVES;

/// Where the words are that say who sleeps, and what else there is.
pub(crate) const SLEEPING: usize = 0;
pub(crate) const POSTED: usize = 4;
pub(crate) const KNOWN: usize = 8;

/// What the sleeping word says of a reader that sleeps on it.
pub(crate) const ON_WORD: u32 = 1;

/// The same of one that a packet wakes: any other number but 0 would do.
pub(crate) const ON_SOCKET: u32 = 2;

/// Where the bitmaps begin.
pub(crate) const WORDS_AT: usize = 128;

/// Bytes of a board, in whole pages.
pub(crate) const BYTES: usize = (WORDS_AT + WORDS * 8).next_multiple_of(4096);

/// The words of a board, all 0 at first.
pub(crate) trait Words {
    type Word32: Word<u32>;
    type Word64: Word<u64>;

    /// A word of the bitmaps; `index` is below [`WORDS`].
    fn word(&self, index: usize) -> &Self::Word64;
    /// Whether the reader sleeps, and how.
    fn sleeping(&self) -> &Self::Word32;
    /// Whether the ringer has sent a packet.
    fn posted(&self) -> &Self::Word32;
    /// Whether the ringer knows the board.
    fn known(&self) -> &Self::Word32;

    /// As [`Memory::full_barrier`](crate::ring::Memory::full_barrier): orders what a ringer set or saw before the load of
    /// the sleeper's word, and is there for the model checker alone.
    #[inline]
    fn full_barrier() {}

    /// As [`Memory::sleep_barrier`](crate::ring::Memory::sleep_barrier).
    #[inline]
    fn sleep_barrier() {
        fence(SeqCst);
    }

    /// Orders whether a ringer's process has the board against what was published before, and against what says that it has.
    #[inline]
    fn known_barrier() {
        fence(SeqCst);
    }
}

/// Number of a member of a wait set, below [`MEMBERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Member(u32);

impl Member {
    /// `None` if there is no such member.
    pub(crate) fn new(number: u32) -> Option<Self> {
        ((number as usize) < MEMBERS).then_some(Self(number))
    }

    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// Says that a member has something. To be called after that was published. Returns how the reader sleeps, if it does:
/// from now on it is the caller's to wake.
///
/// Any number of threads may ring at the same time. When this returns the ring will be collected, whatever other ringers
/// are in the middle of.
#[inline]
pub(crate) fn ring<W: Words>(words: &W, member: Member) -> u32 {
    let number = member.0 as usize;
    let (leaf, middle, top) = (number / BITS, number / BITS.pow(2), number / BITS.pow(3));
    // Always an exchange, even where the bit is set: it is what the proof above stands on, and what passes on to the reader
    // what the member has.
    words.word(FIRST_LEAF + leaf).fetch_or(1 << (number % BITS), SeqCst);
    make_sure_of(words.word(FIRST_MIDDLE + middle), 1 << (leaf % BITS));
    make_sure_of(words.word(FIRST_TOP + top), 1 << (middle % BITS));
    W::full_barrier();
    take_sleeper(words.sleeping())
}

/// Called by a ringer after it has published, and before it looks for the last time whether its process has the board.
pub(crate) fn before_ringing<W: Words>() {
    W::known_barrier();
}

/// For a ringer that has got the board: from now on it wakes who sleeps on the word. What other threads of its process have sent
/// before they could know the board was not posted, and so is now.
pub(crate) fn acknowledge<W: Words>(words: &W) {
    W::known_barrier();
    words.posted().swap(1, SeqCst);
    words.known().swap(1, SeqCst);
}

/// For a ringer that has sent a packet. Whether the reader sleeps on the word: then it is the caller's to wake.
#[inline]
pub(crate) fn post<W: Words>(words: &W) -> bool {
    words.posted().swap(1, SeqCst);
    W::full_barrier();
    let sleeping = words.sleeping();
    sleeping.load(SeqCst) == ON_WORD && sleeping.compare_exchange(ON_WORD, 0, SeqCst, SeqCst).is_ok()
}

/// Says how a thread of the reader's sleeps. It looks once more after this. True if another slept on the word, which is to be
/// woken: it no longer says so.
#[inline]
pub(crate) fn announce<W: Words>(words: &W, how: u32) -> bool {
    let before = words.sleeping().swap(how, SeqCst);
    W::sleep_barrier();
    before == ON_WORD
}

/// Takes back that the calling thread sleeps on the word. False if the word was taken from it.
pub(crate) fn leave<W: Words>(words: &W) -> bool {
    words.sleeping().compare_exchange(ON_WORD, 0, SeqCst, SeqCst).is_ok()
}

/// Whether a packet was sent since the last time that this was [taken back](take_post).
#[inline]
pub(crate) fn has_post<W: Words>(words: &W) -> bool {
    words.posted().load(SeqCst) != 0
}

/// Whether there was one; the caller receives it after this.
pub(crate) fn take_post<W: Words>(words: &W) -> bool {
    has_post(words) && words.posted().swap(0, SeqCst) != 0
}

/// How far the reader is with looking at all members of a link: see *A ringer without the board* at the head of this file.
///
/// It goes round, and each look goes on where the one before has stopped. Takes no memory.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// Where the next look begins.
    next: usize,
    /// Members that are still to be looked at.
    left: usize,
    /// Whether the last round has begun.
    last: bool,
}

impl Round {
    /// Begins anew, since a packet came, with so many members. `known` is whether the ringer's process has said by now that it has
    /// the board. Returns whether there is a member to look at.
    pub(crate) fn begin(&mut self, members: usize, known: bool) -> bool {
        if !self.last {
            self.last = known;
            self.left = members;
        }
        self.is_under_way()
    }

    /// There is one member more.
    pub(crate) fn grow(&mut self) {
        self.left += usize::from(self.left > 0);
    }

    /// The next to look at, of so many members.
    pub(crate) fn next(&mut self, members: usize) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let at = self.next % members;
        self.next = at + 1;
        Some(at)
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.left > 0
    }
}

/// Sets a bit, unless it is set. While the reader is busy it is, and then ringers leave each other and the reader the
/// line.
#[inline]
fn make_sure_of(word: &impl Word<u64>, bit: u64) {
    if word.load(SeqCst) & bit == 0 {
        word.fetch_or(bit, SeqCst);
    }
}

/// A word that was taken from a level, and the bits of it that were not gone through yet.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Which of its level it was.
    index: usize,
    bits: u64,
}

impl Taken {
    /// What the next bit stands for in the level below.
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

/// Collects the members that rang. One thread at a time.
///
/// It goes round, and from each call to the next goes on where it was: so a member that rings all the time comes once in a
/// round, and keeps no other waiting for longer.
#[derive(Debug)]
pub(crate) struct Collector<W> {
    words: W,
    top: Taken,
    middle: Taken,
    leaf: Taken,
}

impl<W: Words> Collector<W> {
    pub(crate) fn new(words: W) -> Self {
        // The round begins with the word after this one.
        let top = Taken { index: TOPS - 1, bits: 0 };
        Self { words, top, middle: Taken::default(), leaf: Taken::default() }
    }

    #[cfg_attr(not(test), allow(dead_code, reason = "whoever collects has the words anyway, so far"))]
    pub(crate) fn words(&self) -> &W {
        &self.words
    }

    /// Hands out members that rang, and says how many. At most `limit` at a time; the others, and those that ring
    /// meanwhile, come in the next call. Fewer than `limit`, or none, does not mean that there are no more: only
    /// [`Collector::is_empty`] does.
    ///
    /// A member's ring is over before it is handed out. So if it has something more later, it rings again.
    pub(crate) fn collect(&mut self, limit: usize, mut each: impl FnMut(Member)) -> usize {
        let mut collected = 0;
        // A word that was named and is empty counts as well, or a peer could have us look at all of them.
        let mut left = limit;
        let mut tops_left = TOPS;
        while left > 0 {
            if let Some(number) = self.leaf.next() {
                left -= 1;
                collected += 1;
                each(Member(number as u32));
            } else if let Some(index) = self.middle.next() {
                self.leaf = self.take(FIRST_LEAF, index);
                left -= usize::from(self.leaf.bits == 0);
            } else if let Some(index) = self.top.next() {
                self.middle = self.take(FIRST_MIDDLE, index);
                left -= usize::from(self.middle.bits == 0);
            } else if tops_left > 0 {
                tops_left -= 1;
                let index = (self.top.index + 1) % TOPS;
                // Looked at first, which leaves the ringers the line.
                let some = self.words.word(FIRST_TOP + index).load(SeqCst) != 0;
                self.top = if some { self.take(FIRST_TOP, index) } else { Taken { index, bits: 0 } };
            } else {
                break;
            }
        }
        collected
    }

    /// Takes all of a word of the level that begins at `first`.
    #[inline]
    fn take(&self, first: usize, index: usize) -> Taken {
        Taken { index, bits: self.words.word(first + index).swap(0, SeqCst) }
    }

    /// Whether nobody rang since. A few loads of one line, for a loop that spins; and the look between saying that we sleep
    /// ([`announce`](crate::ring::announce), with [`Words::sleeping`]) and sleeping.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
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
