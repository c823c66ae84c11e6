//! Moves of ends under the model checker. See [`harness`](super::harness) for how the checker works.
//!
//! A consumer that moves away drains its ring and freezes the ring; a producer that moves away ends its ring with a
//! mark. Freezing and marking compare-and-swap the same header as a publication; the results below follow.

use std::collections::BTreeSet;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

use super::harness::{
    Barrier, FEWER, Fence, Futex, InOperations, SharedTable, Tracked32, check, check_within, ending_wakes_a_receiver,
    ending_wakes_a_sender, memory, outcomes, send, take, try_receive, word32,
};
use crate::ring::transfer_word::{self, RELAYED, TransferState, take_sleeper_if_relayed, take_sleeper_unless_relayed};
use crate::ring::{Consumer, Ended, Header, Memory, NextRecord, Producer, RecordKind, Word, announce, take_sleeper};

const FROZEN: Ended = Ended(Some(RecordKind::Frozen));

/// Receives from the ring until `consumer` has frozen the ring, or has reached a mark of the producer. Returns `None`
/// if the consumer froze the ring; otherwise returns the kind of the producer's mark. Adds the messages received to
/// `read`.
fn freeze<B: Barrier>(consumer: &mut Consumer<SharedTable<B>>, read: &mut Vec<u64>) -> Option<RecordKind> {
    loop {
        if consumer.end(RecordKind::Frozen) {
            return None;
        }
        match consumer.next_record().expect("never corrupt") {
            NextRecord::Empty => panic!("what kept the ring from being frozen is there"),
            NextRecord::Record(record) if record.header.kind() == RecordKind::Message => {
                read.push(take(consumer, record))
            }
            NextRecord::Record(record) => return Some(record.header.kind()),
        }
    }
}

/// Adds to `read` all messages of a ring to which no thread writes any more.
fn read_all<B: Barrier>(memory: SharedTable<B>, read: &mut Vec<u64>) {
    let mut consumer = Consumer::new(memory, u64::MAX);
    while let Some(value) = try_receive(&mut consumer) {
        read.push(value);
    }
}

/// Sends `batches` one after the other, each by a call of the function `send_one_batch`. Returns the index of the first
/// batch that failed because the ring was frozen; if none failed, returns the number of batches.
fn send_batches<M: Memory>(
    producer: &mut Producer<M>,
    batches: &[&[u64]],
    mut send_one_batch: impl FnMut(&mut Producer<M>, &[u64]) -> Result<bool, Ended>,
) -> usize {
    for (n, batch) in batches.iter().enumerate() {
        match send_one_batch(producer, batch) {
            Ok(sent) => assert!(sent, "there is room for all of them"),
            Err(ended) => {
                assert_eq!(ended, FROZEN);
                return n;
            }
        }
    }
    batches.len()
}

/// Stages the staged records of the frozen ring again in the next ring, and commits the records there.
fn carry_over<M: Memory>(frozen: &Producer<M>, next: &mut Producer<M>) {
    for (header, payload) in frozen.staged_records() {
        let slot = next.stage(header).expect("room");
        next.write(slot, 0, &payload);
    }
    next.commit().expect("nobody ended the next ring");
}

type SendBatch = fn(&mut Producer<SharedTable<Fence>>, &[u64]) -> Result<bool, Ended>;

/// Publishes batches while the consumer freezes the ring. The producer sends the batches that the frozen ring did not
/// take in the next ring; the consumer reads both rings. Shows that every message arrives once and in order. Returns,
/// over all interleavings, how many messages were read before the freeze.
fn publish_against_freeze(
    cells: usize,
    batches: &'static [&'static [u64]],
    send_one_batch: SendBatch,
) -> BTreeSet<usize> {
    outcomes(move || {
        let (old, new) = (memory::<Fence>(cells), memory::<Fence>(cells));
        // Where the producer goes on: the consumer says so before it freezes the ring.
        let forward = Arc::new(AtomicU32::new(0));
        let mut consumer = Consumer::new(old.clone(), u64::MAX);
        let (next, redirected) = (new.clone(), forward.clone());
        let writer = thread::spawn(move || {
            let mut producer = Producer::new(old);
            let sent = send_batches(&mut producer, batches, send_one_batch);
            if sent < batches.len() {
                assert_eq!(redirected.load(Ordering::Relaxed), 1, "who finds the ring frozen knows where to go on");
                assert_eq!(producer.ended(), Some(FROZEN), "what is frozen stays frozen");
                let mut next = Producer::new(new);
                carry_over(&producer, &mut next);
                let rest = &batches[sent + 1..];
                assert_eq!(send_batches(&mut next, rest, send_one_batch), rest.len());
            }
            sent
        });
        forward.store(1, Ordering::Relaxed);
        let mut read = Vec::new();
        assert_eq!(freeze(&mut consumer, &mut read), None);
        let drained = read.len();
        let sent = writer.join().unwrap();
        assert_eq!(drained, batches[..sent].concat().len(), "all that was accepted was read before the freeze");
        read_all(next, &mut read);
        assert_eq!(read, batches.concat(), "all arrive once and in order");
        drained
    })
}

#[test]
fn publishing_and_freezing_agree() {
    let drained = publish_against_freeze(4, &[&[1], &[2], &[3]], |producer, batch| send(producer, batch[0]));
    assert_eq!(drained, BTreeSet::from([0, 1, 2, 3]));
}

/// Sends a batch of at least two messages: the first and the last are records of their own, and the others are in one
/// packed record. Returns whether there was room for the batch; fails if the ring has ended.
fn send_batch<M: Memory>(producer: &mut Producer<M>, batch: &[u64]) -> Result<bool, Ended> {
    let [first, between @ .., last] = batch else { panic!("a batch of several") };
    let stage = |producer: &mut Producer<M>, value: &u64| {
        let slot = producer.stage(Header::new(RecordKind::Message, 8, 0)).expect("room");
        producer.write(slot, 0, &value.to_le_bytes());
    };
    stage(producer, first);
    let mut pack = producer.begin_pack().expect("room");
    for value in between {
        assert!(producer.pack(&mut pack, &value.to_le_bytes()));
    }
    producer.end_pack(pack);
    stage(producer, last);
    producer.commit().map(|()| true)
}

/// A producer publishes a batch while the consumer freezes the ring. Shows that either the frozen ring or the next one
/// has the whole batch, also if the freeze comes between two messages of a packed record.
#[test]
fn batches_and_freezing_agree() {
    let drained = publish_against_freeze(8, &[&[1, 2, 3, 4], &[5, 6, 7, 8]], send_batch);
    assert_eq!(drained, BTreeSet::from([0, 4, 8]));
}

/// The producer sends a message and ends its ring with the mark `kind`, while its consumer freezes the ring. Returns
/// the outcomes of all interleavings: whether the message was sent, and whether the producer's mark ended the ring.
fn end_against_freeze(kind: RecordKind) -> BTreeSet<(bool, bool)> {
    outcomes(move || {
        let memory = memory::<Fence>(4);
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let writer = thread::spawn(move || {
            let mut producer = Producer::new(memory);
            let sent = send_batches(&mut producer, &[&[1]], |producer, batch| send(producer, batch[0]));
            let ended = producer.end(kind, b"where to");
            assert!(ended.is_ok() || ended == Err(FROZEN));
            assert!(sent == 1 || ended.is_err(), "what is frozen stays frozen");
            (sent, ended.is_ok())
        });
        let mut read = Vec::new();
        let found = freeze(&mut consumer, &mut read);
        assert!(found.is_none() || found == Some(kind));
        let (sent, ended) = writer.join().unwrap();
        assert_eq!(read.len(), sent);
        assert_ne!(ended, found.is_none(), "one of them sealed it, and the other knows");
        // A second attempt changes nothing.
        assert!(!consumer.end(RecordKind::Frozen));
        (sent == 1, ended)
    })
}

#[test]
fn one_of_closing_and_freezing_seals_the_ring() {
    assert_eq!(end_against_freeze(RecordKind::Closed), BTreeSet::from([(false, false), (true, false), (true, true)]));
}

#[test]
fn one_of_moving_and_freezing_seals_the_ring() {
    assert_eq!(end_against_freeze(RecordKind::Moved), BTreeSet::from([(false, false), (true, false), (true, true)]));
}

/// The producer replaces its ring by a larger one, while the consumer freezes the ring. Shows that either the ring
/// grew, and the consumer follows and freezes the larger ring; or growing fails. The outcomes say whether the ring
/// grew, and how many messages were read before the freeze.
#[test]
fn growing_and_freezing_agree() {
    let outcomes = outcomes(|| {
        let (small, larger, new) = (memory::<Fence>(4), memory::<Fence>(8), memory::<Fence>(8));
        let mut consumer = Consumer::new(small.clone(), u64::MAX);
        let (grown, next) = (larger.clone(), new.clone());
        let writer = thread::spawn(move || {
            let batch = |producer: &mut Producer<_>, batch: &[u64]| send(producer, batch[0]);
            let mut producer = Producer::new(small);
            let mut sent = send_batches(&mut producer, &[&[1]], batch);
            let grew = sent == 1
                && match producer.end(RecordKind::Next, &7u64.to_le_bytes()) {
                    Ok(()) => {
                        producer.go_on_in(larger);
                        sent += send_batches(&mut producer, &[&[2], &[3]], batch);
                        true
                    }
                    Err(ended) => {
                        assert_eq!(ended, FROZEN);
                        false
                    }
                };
            let rest: [&[u64]; 3] = [&[1], &[2], &[3]];
            assert_eq!(send_batches(&mut Producer::new(new), &rest[sent..], batch), 3 - sent);
            grew
        });
        let mut read = Vec::new();
        let mut followed = false;
        while let Some(kind) = freeze(&mut consumer, &mut read) {
            assert_eq!((kind, followed), (RecordKind::Next, false));
            consumer.go_on_in(grown.clone());
            followed = true;
        }
        let drained = read.len();
        assert_eq!(writer.join().unwrap(), followed, "a ring that grew is frozen where the writer is");
        read_all(next, &mut read);
        assert_eq!(read, [1, 2, 3], "all arrive once and in order");
        (followed, drained)
    });
    assert_eq!(outcomes, BTreeSet::from([(false, 0), (false, 1), (true, 1), (true, 2), (true, 3)]));
}

/// The actions of one side of a lane that moved away from the lane, and the side's knowledge about the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Move {
    /// Whether this side put its mark into its outgoing ring. If `false`, the other side had frozen the ring before.
    marked: bool,
    /// Whether this side froze its incoming ring. If `false`, this side found the other side's mark in the ring.
    froze: bool,
    /// Whether this side learned of the other side's move before its own move was finished.
    knew: bool,
}

/// Moves one side away from its lane: puts a mark into the side's outgoing ring, and freezes its incoming ring. If
/// `mark_first` is set, the mark comes first; otherwise the freeze comes first (a deliberate error).
fn move_away(
    mark_first: bool,
    producer: &mut Producer<SharedTable<Fence>>,
    consumer: &mut Consumer<SharedTable<Fence>>,
    read: &mut Vec<u64>,
) -> Move {
    let mark = |producer: &mut Producer<_>| match producer.end(RecordKind::Moved, b"where to") {
        Ok(()) => true,
        Err(ended) => {
            assert_eq!(ended, FROZEN);
            false
        }
    };
    let found = |kind: Option<RecordKind>| {
        assert!(kind.is_none() || kind == Some(RecordKind::Moved));
        kind.is_none()
    };
    if mark_first {
        let marked = mark(producer);
        let froze = found(freeze(consumer, read));
        Move { marked, froze, knew: !marked || !froze }
    } else {
        let froze = found(freeze(consumer, read));
        let knew = !froze;
        Move { marked: mark(producer), froze, knew }
    }
}

/// Moves both sides of a lane away at the same time, each after it has sent a message; `mark_first` says in which order
/// each side takes its two steps. Returns the outcomes of all interleavings.
fn both_move(mark_first: bool) -> BTreeSet<(Move, Move)> {
    outcomes(move || {
        let (to, fro) = (memory::<Fence>(4), memory::<Fence>(4));
        let one_side = move |out: SharedTable<Fence>, inward: SharedTable<Fence>, value| {
            let mut producer = Producer::new(out);
            let mut consumer = Consumer::new(inward, u64::MAX);
            let sent = match send(&mut producer, value) {
                Ok(sent) => sent,
                Err(ended) => {
                    assert_eq!(ended, FROZEN);
                    producer.discard();
                    false
                }
            };
            let mut read = Vec::new();
            let moved = move_away(mark_first, &mut producer, &mut consumer, &mut read);
            assert!(sent || !moved.marked, "what is frozen stays frozen");
            (moved, sent, read)
        };
        let (inward, out) = (to.clone(), fro.clone());
        let other = thread::spawn(move || one_side(out, inward, 2));
        let (ours, we_sent, we_read) = one_side(to, fro, 1);
        let (theirs, they_sent, they_read) = other.join().unwrap();
        assert_eq!((we_read.len(), they_read.len()), (usize::from(they_sent), usize::from(we_sent)));
        assert_eq!((ours.froze, theirs.froze), (!theirs.marked, !ours.marked), "one of two sealed each ring");
        assert!(ours.knew || theirs.knew, "each froze the other and knew nothing of its moving");
        (ours, theirs)
    })
}

/// Both sides of a lane move away at the same time, and each puts its mark before freezing its incoming ring. Shows
/// that only two outcomes are possible. Either each side finds the other side's mark. Or one side freezes the other
/// side's outgoing ring; then the other side cannot put a mark any more, and finds the mark of the first side. So at
/// least one side learns that both move.
#[test]
fn of_two_that_move_at_once_one_sees_the_other() {
    let both = Move { marked: true, froze: false, knew: true };
    let freezer = Move { marked: true, froze: true, knew: false };
    let frozen = Move { marked: false, froze: false, knew: true };
    assert_eq!(both_move(true), BTreeSet::from([(both, both), (freezer, frozen), (frozen, freezer)]));
}

/// Both sides of a lane move away, and each freezes its incoming ring before putting its mark into the other ring (a
/// deliberate error). Shows that the model then finds a case in which neither side learns that the other side moves. So
/// the mark must come first.
#[test]
#[should_panic(expected = "knew nothing of its moving")]
fn freezing_before_marking_both_are_blind() {
    both_move(false);
}

#[test]
fn a_mark_wakes_a_receiver_that_waits() {
    check(|| ending_wakes_a_receiver(RecordKind::Moved, b"token and generation"));
}

#[test]
fn freezing_wakes_a_sender_that_waits() {
    check(|| ending_wakes_a_sender(RecordKind::Frozen, true));
}

/// The destination claims an end, while the source hands over the end and the consumer abandons the end. Shows which
/// states the three steps can find, and that either claiming or abandoning succeeds, never both or neither.
#[test]
fn one_of_claiming_and_abandoning_wins() {
    let outcomes = outcomes(|| {
        let word = Arc::new(word32());
        let steps: [fn(&Tracked32) -> Option<TransferState>; 2] =
            [|word| transfer_word::hand_over::<SharedTable<Fence>>(word), |word| transfer_word::claim(word)];
        let [source, destination] = steps.map(|step| {
            let word = word.clone();
            thread::spawn(move || step(&word).unwrap())
        });
        let abandoned = transfer_word::abandon(&*word).unwrap();
        let (handed, claimed) = (source.join().unwrap(), destination.join().unwrap());
        assert_eq!(
            abandoned == TransferState::Pending,
            claimed == TransferState::Abandoned,
            "one of them has it, and the other knows"
        );
        assert_eq!(abandoned == TransferState::Pending, handed == TransferState::Abandoned);
        assert_eq!(handed == TransferState::Claimed, claimed == TransferState::Pending);
        let last = if abandoned == TransferState::Pending { TransferState::Abandoned } else { TransferState::Claimed };
        assert_eq!(TransferState::of(&*word), Some(last));
        (handed, claimed, abandoned)
    });
    use TransferState::{Abandoned, Claimed, HandedOver, Pending};
    let expected = [
        (Abandoned, Abandoned, Pending),
        (Claimed, Pending, Claimed),
        (Pending, HandedOver, Claimed),
        (Pending, HandedOver, HandedOver),
    ];
    assert_eq!(outcomes, BTreeSet::from(expected));
}

/// Value of the consumer's sleep word in this model while the consumer sleeps on a socket. The bit [`RELAYED`] is added
/// while only the source of the transfer can wake the consumer.
const ON_SOCKET: u32 = 2;

/// The sockets of the consumer's two links, to the source and to the destination of a transfer. A packet on one of the
/// sockets wakes the consumer only if it sleeps on that socket.
#[derive(Default)]
struct Sockets {
    source: Futex,
    destination: Futex,
    /// Whether the source has died, as seen by a consumer that sleeps on the source's socket.
    dead: AtomicBool,
}

/// The functions with which the source and the destination of a transfer take the sleeper in a model: the shipped
/// functions, or functions with a deliberate error, which also take a sleeper that the caller cannot wake.
#[derive(Clone, Copy)]
struct Takers {
    destination: fn(&Tracked32) -> u32,
    source: fn(&Tracked32) -> u32,
}

const SHIPPED: Takers =
    Takers { destination: |word| take_sleeper_unless_relayed(word), source: |word| take_sleeper_if_relayed(word) };

/// Receives as a blocking consumer does while the writing end is in transit. Returns the number in the message; `None`
/// if the end is lost because the source died before it handed the end over.
fn receive_on_the_way<B: Barrier>(
    consumer: &mut Consumer<SharedTable<B>>,
    transfer: &Tracked32,
    sockets: &Sockets,
) -> Option<u64> {
    loop {
        if let Some(value) = try_receive(consumer) {
            return Some(value);
        }
        let sleeping = consumer.memory().sleeping();
        match TransferState::of(transfer).unwrap() {
            TransferState::Pending => {
                announce::<SharedTable<B>>(sleeping, RELAYED | ON_SOCKET);
                if consumer.is_empty() && TransferState::of(transfer) == Some(TransferState::Pending) {
                    sockets.source.wait_while(|| {
                        sleeping.load(Ordering::SeqCst) == RELAYED | ON_SOCKET && !sockets.dead.load(Ordering::SeqCst)
                    });
                    if sockets.dead.load(Ordering::SeqCst)
                        && transfer_word::abandon(transfer) == Some(TransferState::Pending)
                    {
                        // The ring is empty, since a destination claims before it publishes.
                        return None;
                    }
                }
            }
            TransferState::Cancelled => {
                announce::<SharedTable<B>>(sleeping, ON_SOCKET);
                if consumer.is_empty() {
                    sockets.source.wait(sleeping, ON_SOCKET);
                }
            }
            TransferState::HandedOver | TransferState::Claimed => {
                announce::<SharedTable<B>>(sleeping, ON_SOCKET);
                if consumer.is_empty() {
                    sockets.destination.wait(sleeping, ON_SOCKET);
                }
            }
            TransferState::Abandoned => return None,
        }
        announce::<SharedTable<B>>(sleeping, 0);
    }
}

/// Runs a transfer: the destination claims the end and publishes `messages` messages, the source hands the end over,
/// and the consumer sleeps whenever it finds no message. Shows that the consumer receives all messages.
fn sleep_on_the_way<B: Barrier + Send + Sync + 'static>(messages: u64, takers: Takers) {
    let memory = memory::<B>(4);
    let transfer = Arc::new(word32());
    let sockets = Arc::new(Sockets::default());
    let mut consumer = Consumer::new(memory.clone(), u64::MAX);
    let source = {
        let (memory, transfer, sockets) = (memory.clone(), transfer.clone(), sockets.clone());
        thread::spawn(move || {
            transfer_word::hand_over::<SharedTable<B>>(&transfer).unwrap();
            if (takers.source)(memory.sleeping()) != 0 {
                sockets.source.wake();
            }
        })
    };
    let destination = {
        let (transfer, sockets) = (transfer.clone(), sockets.clone());
        thread::spawn(move || {
            assert_ne!(transfer_word::claim(&*transfer), Some(TransferState::Abandoned));
            let mut producer = Producer::new(memory);
            for value in 1..=messages {
                assert_eq!(send(&mut producer, value), Ok(true));
                if (takers.destination)(producer.memory().sleeping()) != 0 {
                    sockets.destination.wake();
                }
            }
        })
    };
    for value in 1..=messages {
        assert_eq!(receive_on_the_way(&mut consumer, &transfer, &sockets), Some(value));
    }
    source.join().unwrap();
    destination.join().unwrap();
}

#[test]
fn no_wake_up_is_lost_on_the_way() {
    check_within(FEWER, || sleep_on_the_way::<Fence>(2, SHIPPED));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_wake_up_is_lost_on_the_way() {
    check_within(FEWER, || sleep_on_the_way::<InOperations>(2, SHIPPED));
}

/// The destination also takes a relayed sleeper, whom only the source can wake (a deliberate error). Shows that the
/// model then finds a consumer that sleeps for ever.
#[test]
#[should_panic(expected = "deadlock")]
fn a_destination_that_takes_every_sleeper_loses_one() {
    let takers = Takers { destination: |word| take_sleeper(word), ..SHIPPED };
    check_within(FEWER, move || sleep_on_the_way::<Fence>(2, takers));
}

/// The source also takes a sleeper that is not relayed (a deliberate error). Shows that the model then finds a consumer
/// that sleeps for ever: the consumer may already sleep on the destination's socket.
#[test]
#[should_panic(expected = "deadlock")]
fn a_source_that_takes_every_sleeper_loses_one() {
    let takers = Takers { source: |word| take_sleeper(word), ..SHIPPED };
    check_within(FEWER, move || sleep_on_the_way::<Fence>(2, takers));
}

/// The source could not send the end, and cancels the transfer while the consumer sleeps. Shows that the source wakes
/// the consumer, and that the consumer receives the source's next message.
#[test]
fn a_source_that_cancels_wakes_the_reader() {
    check(|| {
        let memory = memory::<Fence>(4);
        let transfer = Arc::new(word32());
        let sockets = Arc::new(Sockets::default());
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let source = {
            let (transfer, sockets) = (transfer.clone(), sockets.clone());
            thread::spawn(move || {
                assert_eq!(transfer_word::cancel::<SharedTable<Fence>>(&transfer), Some(TransferState::Pending));
                if take_sleeper_if_relayed(memory.sleeping()) != 0 {
                    sockets.source.wake();
                }
                let mut producer = Producer::new(memory);
                assert_eq!(send(&mut producer, 1), Ok(true));
                if take_sleeper_unless_relayed(producer.memory().sleeping()) != 0 {
                    sockets.source.wake();
                }
            })
        };
        assert_eq!(receive_on_the_way(&mut consumer, &transfer, &sockets), Some(1));
        source.join().unwrap();
    });
}

/// Runs a transfer whose source dies before waking the consumer: after handing over the end if `handed` is set, else
/// before. Shows that either the consumer receives the destination's message, or the destination learns that the end
/// was abandoned.
fn death_on_the_way(handed: bool) {
    check_within(FEWER, move || {
        let memory = memory::<Fence>(4);
        let transfer = Arc::new(word32());
        let sockets = Arc::new(Sockets::default());
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let source = {
            let (transfer, sockets) = (transfer.clone(), sockets.clone());
            thread::spawn(move || {
                if handed {
                    transfer_word::hand_over::<SharedTable<Fence>>(&transfer).unwrap();
                }
                sockets.dead.store(true, Ordering::SeqCst);
                sockets.source.wake();
            })
        };
        let destination = {
            let (transfer, sockets) = (transfer.clone(), sockets.clone());
            thread::spawn(move || {
                if transfer_word::claim(&*transfer) == Some(TransferState::Abandoned) {
                    return false;
                }
                let mut producer = Producer::new(memory);
                assert_eq!(send(&mut producer, 1), Ok(true));
                if take_sleeper_unless_relayed(producer.memory().sleeping()) != 0 {
                    sockets.destination.wake();
                }
                true
            })
        };
        let received = receive_on_the_way(&mut consumer, &transfer, &sockets);
        source.join().unwrap();
        assert_eq!(destination.join().unwrap(), received == Some(1));
        assert!(received.is_some() || !handed, "what was handed over is not lost");
    });
}

#[test]
fn a_source_that_dies_before_it_handed_over_wakes_the_reader() {
    death_on_the_way(false);
}

#[test]
fn a_source_that_dies_after_it_handed_over_wakes_the_reader() {
    death_on_the_way(true);
}
