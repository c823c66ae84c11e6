//! The notification area under the model checker. See [`harness`](crate::ring::tests::harness) for how the checker
//! works.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::properties::Table;
use crate::ring::ready_bitmap::{Collector, FIRST_LEAF, MemberId, Words, notify};
use crate::ring::tests::harness::{
    Barrier, FEWER, Fence, Futex, InOperations, PREEMPTIONS, SharedTable, Tracked32, Tracked64, check, check_within,
    outcomes_within, word32, word64,
};
use crate::ring::{Word, announce};

type Bitmap<B> = Arc<Table<Tracked32, Tracked64, B>>;

/// Creates a notification area for a model, with only the words that the given members need.
fn bitmap<B>(members: &[u32]) -> Bitmap<B> {
    Arc::new(Table::new(members, word32, word64))
}

fn member(number: u32) -> MemberId {
    MemberId::new(number).unwrap()
}

/// The things of members in a model: one number for each notifier. A notifier raises its number before each of its
/// notifications.
type Things = Arc<Vec<AtomicU64>>;

fn things(count: usize) -> Things {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

/// Starts a notifier thread. For each of `members` in turn, the thread publishes something, calls `notify`, and then
/// calls `then` with the result of `notify`, which says how the reader sleeps.
fn notifier<B: Barrier + Send + Sync + 'static>(
    bitmap: &Bitmap<B>,
    things: &Things,
    number: usize,
    members: &'static [u32],
    notify: fn(&Bitmap<B>, MemberId) -> u32,
    then: impl Fn(u32) + 'static,
) -> thread::JoinHandle<()> {
    let (bitmap, things) = (bitmap.clone(), things.clone());
    thread::spawn(move || {
        for (n, number_of_member) in members.iter().enumerate() {
            // Only the notification makes this relaxed store visible.
            things[number].store(n as u64 + 1, Ordering::Relaxed);
            then(notify(&bitmap, member(*number_of_member)));
        }
    })
}

/// The reader of a model, with a record of the notifications seen. A notification is seen if the reader took the
/// member's bit out of the ready bitmap after the notifier had published something for the member.
struct Reader<B> {
    collector: Collector<Bitmap<B>>,
    things: Things,
    rings: Vec<&'static [u32]>,
    seen: Vec<Vec<bool>>,
}

impl<B: Barrier> Reader<B> {
    fn new(bitmap: &Bitmap<B>, things: &Things, rings: &[&'static [u32]]) -> Self {
        let seen = rings.iter().map(|rings| vec![false; rings.len()]).collect();
        Self { collector: Collector::new(bitmap.clone()), things: things.clone(), rings: rings.to_vec(), seen }
    }

    fn collect(&mut self, limit: usize) -> usize {
        let Self { collector, things, rings, seen } = self;
        collector.collect(limit, |member| {
            assert!(rings.concat().contains(&member.number()), "a member that nobody notified");
            for (number, rings) in rings.iter().enumerate().filter(|(_, rings)| rings.contains(&member.number())) {
                let there = things[number].load(Ordering::Relaxed) as usize;
                for n in (0..there).filter(|n| rings[*n] == member.number()) {
                    seen[number][n] = true;
                }
            }
        })
    }

    fn has_all(&self) -> bool {
        self.seen.iter().flatten().all(|seen| *seen)
    }
}

/// Runs two notifiers and a reader at the same time, under the model checker. `rings` are the members notified by each
/// notifier; one call of the reader collects at most `limit` members. Once both notifiers are done, the reader collects
/// the rest. Checks that the reader then has found every notification.
fn no_notification_is_lost(preemptions: usize, rings: [&'static [u32]; 2], limit: usize) {
    let collected_meanwhile = outcomes_within(preemptions, move || {
        let bitmap = bitmap::<Fence>(&rings.concat());
        let things = things(2);
        let mut reader = Reader::new(&bitmap, &things, &rings);
        let notifiers = [0, 1].map(|number| notifier(&bitmap, &things, number, rings[number], notify, |_| {}));
        let meanwhile = reader.collect(limit) + reader.collect(limit);
        for notifier in notifiers {
            notifier.join().unwrap();
        }
        while !reader.collector.is_empty() {
            assert!(reader.collect(limit) <= limit);
        }
        assert!(reader.has_all(), "{:?}", reader.seen);
        meanwhile
    });
    assert!((0..=2).all(|count| collected_meanwhile.contains(&count)), "the model saw {collected_meanwhile:?}");
}

#[test]
fn no_notification_of_one_member_is_lost() {
    no_notification_is_lost(PREEMPTIONS, [&[7], &[7]], 9);
}

#[test]
fn no_notification_in_one_leaf_is_lost() {
    no_notification_is_lost(FEWER, [&[7], &[8]], 9);
}

#[test]
fn no_notification_below_one_middle_word_is_lost() {
    no_notification_is_lost(FEWER, [&[7], &[70]], 9);
}

#[test]
fn no_notification_below_one_top_word_is_lost() {
    no_notification_is_lost(PREEMPTIONS, [&[7], &[7000]], 9);
}

#[test]
fn no_notification_below_different_top_words_is_lost() {
    no_notification_is_lost(PREEMPTIONS, [&[7], &[700_000]], 9);
}

/// One thread notifies three times, and one of the members twice, while another thread notifies too and the reader
/// collects. No notification is lost.
#[test]
fn no_notification_of_several_is_lost() {
    no_notification_is_lost(FEWER, [&[7, 70, 7], &[70]], 9);
}

/// The reader may collect only one member in each call. No notification is lost, because each call continues where the
/// last one stopped.
#[test]
fn no_notification_is_lost_at_the_limit() {
    no_notification_is_lost(FEWER, [&[7, 70], &[8]], 1);
}

/// Notifies the member `ours` with the function `notify`, while another notifier notifies `theirs` and is at any point
/// of its own call. Checks that the reader finds the member as soon as the call for `ours` has returned.
fn a_notification_stands_alone(
    notify: fn(&Bitmap<Fence>, MemberId) -> u32,
    ours: &'static [u32],
    theirs: &'static [u32],
) {
    check(move || {
        let bitmap = bitmap::<Fence>(&[ours, theirs].concat());
        let things = things(2);
        let mut reader = Reader::new(&bitmap, &things, &[ours, theirs]);
        let other = notifier(&bitmap, &things, 1, theirs, notify, |_| {});
        things[0].store(1, Ordering::Relaxed);
        notify(&bitmap, member(ours[0]));
        reader.collect(9);
        assert!(reader.seen[0][0], "a notify waits for another notifier");
        other.join().unwrap();
    });
}

#[test]
fn a_notification_does_not_wait_for_another_ringer() {
    a_notification_stands_alone(notify, &[7], &[7]);
    a_notification_stands_alone(notify, &[7], &[8]);
    a_notification_stands_alone(notify, &[7], &[70]);
}

/// Shows that the model finds a late notification if a notifier skips the two upper levels of the bitmap when the bit
/// in the leaf is set already (a deliberate error).
#[test]
#[should_panic(expected = "a notify waits for another notifier")]
fn skipping_the_words_above_a_notification_is_late() {
    let hasty: fn(&Bitmap<Fence>, MemberId) -> u32 = |bitmap, member| {
        let leaf = bitmap.word(FIRST_LEAF + member.number() as usize / 64);
        if leaf.load(Ordering::SeqCst) >> (member.number() % 64) & 1 == 1 { 0 } else { notify(bitmap, member) }
    };
    a_notification_stands_alone(hasty, &[7], &[7]);
}

/// Runs one notifier for each item of `rings`, and a reader that sleeps whenever it finds nothing and collects at most
/// `limit` members in a call. Checks that every notification wakes the reader, or is seen before the reader sleeps.
fn sleep_and_wake<B: Barrier + Send + Sync + 'static>(rings: &[&'static [u32]], limit: usize) {
    let bitmap = bitmap::<B>(&rings.concat());
    let things = things(rings.len());
    let mut reader = Reader::new(&bitmap, &things, rings);
    let futex = Arc::new(Futex::default());
    let notifiers: Vec<_> = (0..rings.len())
        .map(|number| {
            let futex = futex.clone();
            notifier(&bitmap, &things, number, rings[number], notify, move |how| {
                if how != 0 {
                    futex.wake();
                }
            })
        })
        .collect();
    let sleeping = bitmap.sleeping();
    loop {
        reader.collect(limit);
        if reader.has_all() {
            break;
        }
        announce::<SharedTable<B>>(sleeping, 1);
        if reader.collector.is_empty() {
            futex.wait(sleeping, 1);
        } else {
            announce::<SharedTable<B>>(sleeping, 0);
        }
    }
    for notifier in notifiers {
        notifier.join().unwrap();
    }
}

#[test]
fn no_wake_up_is_lost() {
    check(|| sleep_and_wake::<Fence>(&[&[7, 70]], 9));
}

#[test]
fn no_wake_up_of_two_notifiers_is_lost() {
    check_within(FEWER, || sleep_and_wake::<Fence>(&[&[7], &[7]], 9));
    check_within(FEWER, || sleep_and_wake::<Fence>(&[&[7], &[70]], 9));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_wake_up_is_lost() {
    check(|| sleep_and_wake::<InOperations>(&[&[7]], 9));
}
