//! The notification area against a set, against a peer that writes anything, and with threads.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use crate::ring::Word;
use crate::ring::ready_bitmap::{
    BITS, Collector, FIRST_LEAF, FIRST_MIDDLE, FIRST_TOP, LEAVES, MEMBERS, MIDDLES, MemberId, Round, TOPS, WORDS,
    Words, notify,
};
use crate::ring::tests::harness::{Barrier, InOperations};

/// The words of a notification area in a test: only those that the given members need. Access to any other word fails
/// the test.
#[derive(Debug)]
pub(super) struct Table<W32, W64, B> {
    words: Vec<(usize, W64)>,
    sleeping: W32,
    posted: W32,
    known: W32,
    barrier: PhantomData<B>,
}

impl<W32, W64, B> Table<W32, W64, B> {
    pub(super) fn new(members: &[u32], word32: impl Fn() -> W32, word64: impl Fn() -> W64) -> Self {
        let above = |number: &u32| {
            let number = *number as usize;
            [FIRST_LEAF + number / BITS, FIRST_MIDDLE + number / BITS.pow(2)]
        };
        let tops = FIRST_TOP..FIRST_TOP + TOPS;
        let words: BTreeSet<usize> = members.iter().flat_map(above).chain(tops).collect();
        let words = words.into_iter().map(|index| (index, word64())).collect();
        Self { words, sleeping: word32(), posted: word32(), known: word32(), barrier: PhantomData }
    }
}

impl<W32: Word<u32>, W64: Word<u64>, B: Barrier> Words for Table<W32, W64, B> {
    type Word32 = W32;
    type Word64 = W64;

    fn word(&self, index: usize) -> &W64 {
        let at = self.words.binary_search_by_key(&index, |(of, _)| *of);
        &self.words[at.unwrap_or_else(|_| panic!("word {index} is nobody's"))].1
    }

    fn sleeping(&self) -> &W32 {
        &self.sleeping
    }

    fn posted(&self) -> &W32 {
        &self.posted
    }

    fn known(&self) -> &W32 {
        &self.known
    }

    fn full_barrier() {
        B::barrier();
    }

    fn sleep_barrier() {
        B::barrier();
    }
}

/// A ring in the ordinary memory of the test. Its barriers do nothing: the memory orders of its atomic operations are
/// enough.
type Ring = Arc<crate::ring::tests::harness::Table<AtomicU32, AtomicU64, InOperations>>;
type Plain = Arc<Table<AtomicU32, AtomicU64, InOperations>>;

fn plain(members: &[u32]) -> Plain {
    Arc::new(Table::new(members, || AtomicU32::new(0), || AtomicU64::new(0)))
}

/// All words of a notification area in a test, with a count of the accesses to the words of the ready bitmap.
struct Counted {
    words: Vec<AtomicU64>,
    sleeping: AtomicU32,
    posted: AtomicU32,
    known: AtomicU32,
    looks: Cell<usize>,
}

impl Counted {
    fn new() -> Self {
        Self {
            words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            sleeping: AtomicU32::new(0),
            posted: AtomicU32::new(0),
            known: AtomicU32::new(0),
            looks: Cell::new(0),
        }
    }
}

impl Words for &Counted {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    fn word(&self, index: usize) -> &AtomicU64 {
        self.looks.set(self.looks.get() + 1);
        &self.words[index]
    }

    fn sleeping(&self) -> &AtomicU32 {
        &self.sleeping
    }

    fn posted(&self) -> &AtomicU32 {
        &self.posted
    }

    fn known(&self) -> &AtomicU32 {
        &self.known
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A step of the test: a notifier notifies the member with this index among the members of the test.
    Notify(prop::sample::Index),
    Collect(usize),
    Announce(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<prop::sample::Index>().prop_map(Step::Notify),
        1 => prop_oneof![1usize..4, 0usize..100].prop_map(Step::Collect),
        1 => (1u32..8).prop_map(Step::Announce),
    ];
    prop::collection::vec(step, 1..300)
}

fn members() -> impl Strategy<Value = Vec<u32>> {
    let last = MEMBERS as u32 - 1;
    // Some members are close together and some far apart, so that all levels have words with one bit and with several.
    let number = prop_oneof![0u32..200, 4000u32..4200, 262_000u32..262_300, 0..=last, Just(0), Just(last)];
    prop::collection::vec(number, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_bitmap_is_a_set(members in members(), steps in steps()) {
        let bitmap = plain(&members);
        let mut collector = Collector::new(bitmap.clone());
        let mut set = BTreeSet::new();
        let mut asleep = 0;
        for step in steps {
            match step {
                Step::Notify(index) => {
                    let member = MemberId::new(*index.get(&members)).unwrap();
                    set.insert(member);
                    prop_assert_eq!(notify(&bitmap, member), std::mem::take(&mut asleep));
                }
                Step::Collect(limit) => {
                    let before = set.len();
                    let collected = collector.collect(limit, |member| {
                        // A member notified again while its word was already taken comes twice, the second time for
                        // nothing.
                        set.remove(&member);
                    });
                    prop_assert!(collected <= limit && before - set.len() <= collected);
                }
                Step::Announce(how) => {
                    asleep = how;
                    bitmap.sleeping().store(how, Ordering::Relaxed);
                }
            }
            prop_assert!(set.is_empty() || !collector.is_empty());
        }
        while !collector.is_empty() {
            collector.collect(3, |member| { set.remove(&member); });
        }
        prop_assert!(set.is_empty());
    }

    #[test]
    fn what_was_notified_is_collected_once_and_nothing_else(members in members(), limit in 1usize..100) {
        let bitmap = plain(&members);
        let mut collector = Collector::new(bitmap.clone());
        for number in &members {
            notify(&bitmap, MemberId::new(*number).unwrap());
        }
        let mut collected = Vec::new();
        while !collector.is_empty() {
            collector.collect(limit, |member| collected.push(member.number()));
        }
        prop_assert_eq!(collected, members.into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 128 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_words_give_members_with_bounded_work(
        tops in prop::array::uniform4(any::<u64>()),
        middles in prop::collection::vec((0..MIDDLES, prop_oneof![Just(u64::MAX), any::<u64>()]), 0..40),
        leaves in prop::collection::vec((0..LEAVES, any::<u64>()), 0..40),
        limit in 0usize..50,
    ) {
        let bitmap = Counted::new();
        let set = |first: usize, index: usize, bits: u64| bitmap.words[first + index].store(bits, Ordering::Relaxed);
        tops.iter().enumerate().for_each(|(index, bits)| set(FIRST_TOP, index, *bits));
        middles.iter().for_each(|(index, bits)| set(FIRST_MIDDLE, *index, *bits));
        leaves.iter().for_each(|(index, bits)| set(FIRST_LEAF, *index, *bits));
        let mut collector = Collector::new(&bitmap);
        for _ in 0..100 {
            bitmap.looks.set(0);
            let mut claimed = Vec::new();
            let collected = collector.collect(limit, |member| claimed.push(member));
            prop_assert_eq!(collected, claimed.len());
            prop_assert!(collected <= limit);
            prop_assert!(claimed.iter().all(|member| MemberId::new(member.number()).is_some()));
            // At most `limit` words of each lower level, and two looks at each top word.
            prop_assert!(bitmap.looks.get() <= 2 * limit + 2 * TOPS, "{} looks", bitmap.looks.get());
        }
    }
}

/// Notifies six members again before each collection of a single member. Shows that five other members, notified once,
/// are still collected within two circles through the bitmap.
#[test]
fn a_member_that_is_notified_all_the_time_comes_once_a_round() {
    let noisy = [0, 1, 2, 3, 64, 5000];
    let quiet = [40, 300, 5001, 600_000, MEMBERS as u32 - 1];
    let bitmap = plain(&[&noisy[..], &quiet].concat());
    let mut collector = Collector::new(bitmap.clone());
    let mut waiting: BTreeSet<u32> = quiet.into();
    for number in quiet {
        notify(&bitmap, MemberId::new(number).unwrap());
    }
    let mut calls = 0;
    while !waiting.is_empty() {
        for number in noisy {
            notify(&bitmap, MemberId::new(number).unwrap());
        }
        collector.collect(1, |member| {
            waiting.remove(&member.number());
        });
        calls += 1;
        // Each of the noisy members comes twice at most: a circle may have begun before it was notified.
        assert!(calls <= 2 * (noisy.len() + quiet.len()), "{waiting:?} still wait");
    }
}

#[test]
fn there_is_no_member_above_the_last() {
    assert!(MemberId::new(MEMBERS as u32 - 1).is_some());
    assert!(MemberId::new(MEMBERS as u32).is_none());
    assert!(MemberId::new(u32::MAX).is_none());
}

/// Three threads notify a reader that really sleeps (a parked thread) whenever it finds nothing. Shows that the reader
/// sees everything published by the notifiers.
#[test]
fn threads_notify_and_a_reader_sees_all_of_it() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 5_000 };
    const NOTIFIERS: usize = 3;
    let members = [0u32, 1, 63, 64, 4096, 300_000];
    let bitmap = plain(&members);
    let things: Vec<Vec<AtomicU64>> =
        (0..NOTIFIERS).map(|_| members.iter().map(|_| AtomicU64::new(0)).collect()).collect();
    let mut collector = Collector::new(bitmap.clone());
    let reader = std::thread::current();
    std::thread::scope(|scope| {
        for things in &things {
            let (bitmap, reader) = (bitmap.clone(), reader.clone());
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    for (number, thing) in members.iter().zip(things) {
                        thing.store(round, Ordering::Relaxed);
                        if notify(&bitmap, MemberId::new(*number).unwrap()) != 0 {
                            reader.unpark();
                        }
                    }
                }
            });
        }
        let mut seen = vec![[0u64; NOTIFIERS]; members.len()];
        while seen.iter().flatten().any(|seen| *seen < ROUNDS) {
            let collected = collector.collect(2, |member| {
                let at = members.iter().position(|number| *number == member.number()).unwrap();
                for (seen, things) in seen[at].iter_mut().zip(&things) {
                    let now = things[at].load(Ordering::Relaxed);
                    assert!(now >= *seen);
                    *seen = now;
                }
            });
            if collected > 0 {
                continue;
            }
            crate::ring::announce::<Ring>(bitmap.sleeping(), 1);
            std::sync::atomic::fence(Ordering::SeqCst);
            if !collector.is_empty() {
                bitmap.sleeping().swap(0, Ordering::SeqCst);
                continue;
            }
            let begin = std::time::Instant::now();
            while bitmap.sleeping().load(Ordering::SeqCst) != 0 {
                std::thread::park_timeout(Duration::from_secs(60));
                assert!(begin.elapsed() < Duration::from_secs(60), "a wake-up was lost");
            }
        }
    });
}

/// A round begins while another round is in progress, and members join meanwhile. Shows that the new round looks at
/// every member after it has begun.
#[test]
fn a_round_looks_at_every_member_after_it_has_begun() {
    let mut round = Round::default();
    let mut members = 5;
    assert!(round.next(members).is_none() && !round.begin(0, false));
    for (looks, joins) in [(0, 0), (3, 2), (6, 0), (1, 1), (8, 3)] {
        assert!(round.begin(members, false));
        (0..looks).for_each(|_| assert!(round.next(members).is_some_and(|at| at < members)));
        round.begin(members, false);
        let mut seen = BTreeSet::from([round.next(members).unwrap()]);
        for _ in 0..joins {
            members += 1;
            round.grow();
        }
        seen.extend(std::iter::from_fn(|| round.next(members)));
        assert!(seen.iter().copied().eq(0..members) && !round.is_in_progress(), "{seen:?}");
    }
    // The last round is complete, too, and no other follows.
    assert!(round.begin(members, true));
    round.next(members);
    assert!(round.begin(members, true) && round.begin(members, false));
    assert_eq!(std::iter::from_fn(|| round.next(members)).count(), members - 1);
    assert!(!round.begin(members, false));
}
