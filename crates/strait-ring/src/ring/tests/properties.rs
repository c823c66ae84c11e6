//! The ring against a queue: any sequence of operations has the same results on both.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use proptest::prelude::*;

use super::table::{InOperations, Table};
use crate::ring::{
    CELL, Consumer, Corrupt, HEADER, Header, Memory, NextRecord, NoRoom, ONE_CELL, PACK_WORD, Popped, Producer,
    RecordKind, Survey, Word, cells_for, cells_to_carry, longest_payload,
};

type Plain = Arc<Table<AtomicU32, AtomicU64, InOperations>>;

fn plain(cells: usize) -> Plain {
    Arc::new(Table::new(cells, || AtomicU32::new(0), || AtomicU64::new(0)))
}

/// One step of a test, by the producer or by the consumer of a ring. Lengths of messages are in bytes, and are taken
/// modulo the longest payload of the ring plus 1.
#[derive(Clone, Debug)]
enum Step {
    /// Sends a batch: for each message, its length in bytes and the number of pieces for writing the payload.
    Send(Vec<(usize, usize)>),
    /// Sends a message without staging. The first number is the length in bytes. The second is the number of slices
    /// that hold the message; 0 selects the call for a single slice.
    Push(usize, usize),
    /// Sends small messages of the given lengths in bytes in one packed record.
    Pack(Vec<usize>),
    /// Stages a message of the given length in bytes and discards the message.
    Discard(usize),
    /// Stages a message of the first length in bytes, shortens the message to the second length, which is not greater,
    /// and commits the message.
    Shorten(usize, usize),
    Receive(usize),
    GiveCredit,
    Grow,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = || prop_oneof![0usize..200, Just(55), Just(56), Just(57), Just(119), Just(120), Just(121), 0usize..5000];
    let step = prop_oneof![
        4 => prop::collection::vec((len(), 1usize..4), 1..4).prop_map(Step::Send),
        4 => (len(), 0usize..4).prop_map(|(len, pieces)| Step::Push(len, pieces)),
        2 => prop::collection::vec(0usize..260, 1..40).prop_map(Step::Pack),
        1 => len().prop_map(Step::Discard),
        1 => (len(), len()).prop_map(|(one, other)| Step::Shorten(one.max(other), one.min(other))),
        4 => (1usize..6).prop_map(Step::Receive),
        1 => Just(Step::GiveCredit),
        1 => Just(Step::Grow),
    ];
    prop::collection::vec(step, 1..120)
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed.wrapping_mul(31) + at as u64 * 7) as u8).collect()
}

/// The producer and the consumer of a ring under test, with an ordinary queue that must always hold the same messages
/// as the ring.
struct Pair {
    producer: Producer<Plain>,
    consumer: Consumer<Plain>,
    queue: VecDeque<Vec<u8>>,
    /// Rings already entered by the producer and not yet by the consumer.
    rings: VecDeque<Plain>,
    sent: u64,
    /// Number of messages received, and their bytes.
    received: (u64, u64),
    /// A survey (a count of queued messages), and the value of `received` when the survey began.
    survey: (Survey, (u64, u64)),
}

impl Pair {
    fn new(cells: usize) -> Self {
        let memory = plain(cells);
        let consumer = Consumer::new(memory.clone(), u64::MAX);
        Self {
            producer: Producer::new(memory),
            survey: (consumer.survey(), (0, 0)),
            received: (0, 0),
            consumer,
            queue: VecDeque::new(),
            rings: VecDeque::new(),
            sent: 0,
        }
    }

    fn stage(&mut self, len: usize, pieces: usize) -> Option<Vec<u8>> {
        let len = len % (self.producer.longest_payload() + 1);
        let slot = match self.producer.stage(Header::new(RecordKind::Message, len, 3)) {
            Ok(slot) => slot,
            Err(NoRoom::Full) => return None,
            Err(other) => panic!("{other:?}"),
        };
        self.sent += 1;
        let bytes = bytes(self.sent, len);
        let size = len.div_ceil(pieces).max(1);
        for (n, piece) in bytes.chunks(size).enumerate() {
            self.producer.write(slot, n * size, piece);
        }
        Some(bytes)
    }

    /// Receives the next message, if there is one, and checks the message. Receives every second message by the
    /// shortest path, if the message fits one cell.
    fn receive(&mut self) -> bool {
        let mut cell = [MaybeUninit::uninit(); ONE_CELL];
        if self.received.0.is_multiple_of(2) {
            match self.consumer.pop_one(|len| Some(&mut cell[..len])) {
                Popped::Message { len, producer_sleeps } => {
                    // SAFETY: the first `len` bytes were read just now.
                    let received = cell[..len].iter().map(|byte| unsafe { byte.assume_init() }).collect();
                    self.received.0 += 1;
                    self.received.1 += len as u64;
                    assert_eq!((Some(received), producer_sleeps), (self.queue.pop_front(), false));
                    assert!(!self.consumer.owes_credit());
                    return true;
                }
                Popped::Empty => {
                    assert!(self.queue.is_empty(), "a committed message is there");
                    return false;
                }
                Popped::Other => {}
            }
        }
        loop {
            let record = match self.consumer.next_record().expect("a ring of ours is never corrupt") {
                NextRecord::Empty => {
                    assert!(self.queue.is_empty(), "a committed message is there");
                    return false;
                }
                NextRecord::Record(record) => record,
            };
            if record.header.kind() == RecordKind::Next {
                self.consumer.go_on_in(self.rings.pop_front().expect("the ring it went to"));
                continue;
            }
            let mut out = vec![MaybeUninit::uninit(); record.header.len()];
            let received = self.consumer.read(record, 0, &mut out).to_vec();
            assert!([0, 3].contains(&record.header.handles()));
            self.received.0 += 1;
            self.received.1 += received.len() as u64;
            assert_eq!(Some(received), self.queue.pop_front());
            if self.consumer.advance(record) {
                self.consumer.give_credit();
            }
            return true;
        }
    }

    /// Checks that a survey counts exactly the queued messages, up to the end of the consumer's current ring.
    fn look_ahead(&mut self) {
        if !self.consumer.can_go_on(&self.survey.0) {
            self.survey = (self.consumer.survey(), self.received);
        }
        let (survey, began) = &mut self.survey;
        let end = self.consumer.look_ahead(survey).expect("a ring of ours is never corrupt");
        let queued = (survey.messages - (self.received.0 - began.0), survey.bytes - (self.received.1 - began.1));
        let is = (self.queue.len() as u64, self.queue.iter().map(|message| message.len() as u64).sum());
        if self.rings.is_empty() {
            assert_eq!((queued, end), (is, None));
        } else {
            assert!(queued <= is && end == Some(RecordKind::Next));
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(messages) => {
                let mut staged = Vec::new();
                for (len, pieces) in messages {
                    staged.extend(self.stage(len, pieces));
                }
                if self.producer.has_staged() {
                    self.producer.commit().expect("nobody ended the ring");
                }
                self.queue.extend(staged);
            }
            Step::Push(len, pieces) => {
                let bytes = bytes(self.sent + 1, len % (self.producer.longest_payload() + 1));
                let parts: Vec<_> =
                    bytes.chunks(bytes.len().div_ceil(pieces.max(1)).max(1)).map(IoSlice::new).collect();
                let pushed = match pieces {
                    0 => self.producer.push_one(&bytes) || self.producer.push(&bytes),
                    _ => self.producer.push_parts(&parts, bytes.len()),
                };
                if pushed {
                    self.sent += 1;
                    self.queue.push_back(bytes);
                }
            }
            Step::Pack(lens) => {
                if let Some(mut pack) = self.producer.begin_pack() {
                    for len in lens {
                        let bytes = bytes(self.sent + 1, len);
                        if self.producer.pack(&mut pack, &bytes) {
                            self.sent += 1;
                            self.queue.push_back(bytes);
                        }
                    }
                    self.producer.end_pack(pack);
                    if self.producer.has_staged() {
                        self.producer.commit().expect("nobody ended the ring");
                    }
                }
            }
            Step::Discard(len) => {
                self.stage(len, 1);
                self.producer.discard();
            }
            Step::Shorten(from, to) => {
                let from = from % (self.producer.longest_payload() + 1);
                let to = to.min(from);
                if let Ok(mut slot) = self.producer.stage(Header::new(RecordKind::Message, from, 3)) {
                    self.sent += 1;
                    self.producer.shorten(&mut slot, Header::new(RecordKind::Message, to, 3));
                    let bytes = bytes(self.sent, to);
                    self.producer.write(slot, 0, &bytes);
                    self.producer.commit().expect("nobody ended the ring");
                    self.queue.push_back(bytes);
                }
            }
            Step::Receive(n) => {
                for _ in 0..n {
                    self.receive();
                }
            }
            Step::GiveCredit => {
                self.consumer.give_credit();
            }
            Step::Grow => {
                let cells = self.producer.memory().cells();
                if cells < 1024 {
                    // A table holds control words as well as cells, so the values of the old control words are copied.
                    let larger = plain(2 * cells);
                    let control = self.producer.memory();
                    larger.credit().store(control.credit().load(RELAXED), RELAXED);
                    larger.taken().store(control.taken().load(RELAXED), RELAXED);
                    self.producer.end(RecordKind::Next, &[]).expect("nobody ended the ring");
                    self.producer.go_on_in(larger.clone());
                    self.rings.push_back(larger);
                }
            }
        }
    }
}

/// Each message is received before the next is pushed, 200 times, in rings and with lengths of several sizes. Shows
/// that the short ways of sending (`push_one`, `push`) then always succeed: they pass the end of the ring, and see the
/// credit given meanwhile.
#[test]
fn who_has_each_message_taken_stays_on_the_shortest_way() {
    for (cells, len) in [(4, 0), (4, 56), (4, 64), (4, 120), (8, 56), (8, 120), (64, 56), (64, 120), (64, 1000)] {
        let mut pair = Pair::new(cells);
        for round in 0..200 {
            let bytes = bytes(round, len);
            let pushed = if len <= ONE_CELL { pair.producer.push_one(&bytes) } else { pair.producer.push(&bytes) };
            assert!(pushed, "{cells} {len} {round}");
            pair.queue.push_back(bytes);
            assert!(pair.receive());
        }
    }
}

const RELAXED: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Relaxed;

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_is_a_queue(cells in prop::sample::select(vec![4usize, 8, 16, 64, 256]), steps in steps()) {
        let mut pair = Pair::new(cells);
        for step in steps {
            pair.step(step);
            pair.look_ahead();
        }
        while pair.receive() {}
        prop_assert!(pair.queue.is_empty());
        // An empty ring takes the longest record, wherever its position is.
        pair.consumer.give_credit();
        let longest = pair.producer.longest_payload();
        prop_assert!(pair.stage(longest, 1).is_some());
    }

    #[test]
    fn any_words_are_read_within_bounds(cells in prop::sample::select(vec![4usize, 8, 16]), words in prop::collection::vec(any::<u64>(), 16)) {
        let memory = plain(cells);
        for (cell, word) in words.iter().enumerate() {
            // Half of the words look like valid headers.
            let word = if cell % 2 == 0 { word & 0x0000_3f0f_0000_01ff } else { *word };
            memory.header(cell).store(word, RELAXED);
        }
        let mut consumer = Consumer::new(memory, u64::MAX);
        for _ in 0..100 {
            let _ = consumer.look_ahead(&mut consumer.survey());
            match consumer.next_record() {
                Ok(NextRecord::Record(record)) if record.header.kind().is_message() => {
                    let mut out = vec![MaybeUninit::uninit(); record.header.len()];
                    consumer.read(record, 0, &mut out);
                    consumer.advance(record);
                }
                _ => break,
            }
        }
    }

    #[test]
    fn any_credit_is_accepted_or_refused_and_never_overwrites(claims in prop::collection::vec(any::<u64>(), 1..20), small in any::<bool>()) {
        let memory = plain(16);
        let mut producer = Producer::new(memory.clone());
        let mut committed = 0u64;
        let mut accepted = 0u64;
        for claim in claims {
            let claim = if small { claim % 40 } else { claim };
            memory.credit().store(claim, RELAXED);
            match producer.stage(Header::new(RecordKind::Message, 0, 0)) {
                Ok(_) => {
                    producer.commit().expect("nobody ended the ring");
                    committed += 1;
                    accepted = if claim <= committed && claim >= accepted { accepted.max(claim) } else { accepted };
                    prop_assert!(committed - accepted <= 16);
                }
                Err(NoRoom::Corrupt) => prop_assert!(claim != committed, "what was committed may be taken"),
                Err(NoRoom::Full) => prop_assert!(committed + 2 - claim > 16),
                Err(NoRoom::TooLong) => prop_assert!(false),
            }
        }
    }

    #[test]
    fn what_is_staged_anew_is_never_a_mark_of_the_other_sides(words in prop::collection::vec(any::<u64>(), 15), len in 0usize..100) {
        let memory = plain(16);
        let mut producer = Producer::new(memory.clone());
        for _ in 0..3 {
            producer.stage(Header::new(RecordKind::Message, len, 0)).unwrap();
        }
        for (cell, word) in (1..).zip(words) {
            memory.header(cell).store(word & 0x0001_ff0f_0000_00ff, RELAXED);
        }
        let records = producer.staged_records();
        prop_assert!(!records.is_empty() && records.len() <= 6);
        for (header, payload) in records {
            prop_assert!(header.kind().is_message() || [RecordKind::Pack, RecordKind::Table].contains(&header.kind()));
            prop_assert_eq!(payload.len(), header.len());
        }
    }

    #[test]
    fn a_ring_made_for_a_length_takes_it(len in 0usize..1_000_000) {
        let cells = cells_to_carry(len);
        prop_assert!(longest_payload(cells) >= len);
        prop_assert!(cells == crate::ring::MIN_CELLS || longest_payload(cells / 2) < len);
        prop_assert!(cells_for(len) * crate::ring::CELL >= len + crate::ring::HEADER);
    }
}

#[test]
fn an_ended_ring_takes_nothing_more() {
    let mut pair = Pair::new(8);
    let bytes = pair.stage(10, 1).unwrap();
    pair.producer.commit().unwrap();
    pair.queue.push_back(bytes);
    assert!(!pair.consumer.end(RecordKind::Closed), "a message is there, which must be taken first");
    assert!(pair.receive());
    assert!(pair.consumer.end(RecordKind::Closed));
    assert_eq!(pair.producer.ended().unwrap().0, Some(RecordKind::Closed));
    pair.stage(10, 1).unwrap();
    assert_eq!(pair.producer.commit().unwrap_err().0, Some(RecordKind::Closed));
    assert_eq!(pair.producer.end(RecordKind::Next, &[]).unwrap_err().0, Some(RecordKind::Closed));
}

#[test]
fn the_last_record_may_fill_its_cell() {
    let mut pair = Pair::new(8);
    assert!(pair.producer.end(RecordKind::Moved, &[7; CELL - 8]).is_ok());
}

#[test]
fn there_is_always_room_for_the_last_record() {
    let mut pair = Pair::new(4);
    while let Some(bytes) = pair.stage(0, 1) {
        pair.producer.commit().unwrap();
        pair.queue.push_back(bytes);
    }
    assert_eq!(pair.queue.len(), 3);
    pair.step(Step::Grow);
    for _ in 0..3 {
        assert!(pair.receive());
    }
    assert!(!pair.receive());
    assert_eq!(pair.producer.memory().cells(), 8);
}

/// A word of a ring that fails the test if it is loaded more than [`MOST_LOADS`] times. So an endless loop fails at
/// once.
#[derive(Default)]
struct Worn {
    word: AtomicU64,
    loads: AtomicU32,
}

/// Limit of the number of loads of one word, far above that of any correct run.
const MOST_LOADS: u32 = 10_000;

impl Word<u64> for Worn {
    fn load(&self, order: Ordering) -> u64 {
        assert!(self.loads.fetch_add(1, RELAXED) < MOST_LOADS, "a word is looked at again and again");
        self.word.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.word.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.word.swap(value, order)
    }
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.word.fetch_or(bits, order)
    }
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.word.compare_exchange(current, new, success, failure)
    }
}

type Wearing = Arc<Table<AtomicU32, Worn, InOperations>>;

fn wearing(cells: usize) -> Wearing {
    Arc::new(Table::new(cells, || AtomicU32::new(0), Worn::default))
}

/// Receives up to `most` records. Returns how many were received, and the consumer's look at the next record after
/// them: what is there, or how the ring is corrupt.
fn take_all(consumer: &mut Consumer<Wearing>, most: usize) -> (usize, Result<NextRecord, Corrupt>) {
    for taken in 0..most {
        match consumer.next_record() {
            Ok(NextRecord::Record(record)) => _ = consumer.advance(record),
            ended => return (taken, ended),
        }
    }
    (most, consumer.next_record())
}

/// Returns the header of a plain message without bytes, as a word.
fn small() -> u64 {
    Header::new(RecordKind::Message, 0, 0).to_word()
}

#[test]
fn a_pad_at_the_start_of_a_ring_is_no_producers_of_ours() {
    for cells in [4, 16, 64] {
        let pad = |cells: usize| Header::new(RecordKind::Pad, cells * CELL - crate::ring::HEADER, 0).to_word();
        let memory = wearing(cells);
        // The padding fills the whole ring and ends where it begins.
        memory.header(0).store(pad(cells), RELAXED);
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        assert!(consumer.look_ahead(&mut consumer.survey()).is_err());
        assert_eq!(consumer.next_record(), Err(Corrupt("padding that does not reach the end of the ring")));
        // Anywhere else padding is valid only if it reaches to the end.
        for at in 1..cells {
            for len in 1..=cells {
                let memory = wearing(cells);
                (0..at).for_each(|cell| memory.header(cell).store(small(), RELAXED));
                memory.header(at).store(pad(len), RELAXED);
                let mut consumer = Consumer::new(memory, u64::MAX);
                let (taken, end) = take_all(&mut consumer, at);
                let ends = if at + len == cells {
                    Err(Corrupt("more records than fit its ring"))
                } else {
                    Err(Corrupt("padding that does not reach the end of the ring"))
                };
                assert_eq!((taken, end), (at, ends), "{cells} {at} {len}");
            }
        }
    }
}

#[test]
fn who_was_given_no_credit_has_written_no_more_than_a_ring() {
    for cells in [4, 16, 64] {
        let memory = wearing(cells);
        (0..cells).for_each(|cell| memory.header(cell).store(small(), RELAXED));
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let full = Err(Corrupt("more records than fit its ring"));
        assert_eq!(take_all(&mut consumer, 3 * cells), (cells, full));
        assert_eq!(
            consumer.look_ahead(&mut consumer.survey()).map(drop),
            Err(Corrupt("more records than fit its ring"))
        );
        // Cells for which credit is given may be overwritten, and no others.
        for _ in 0..3 {
            consumer.give_credit();
            assert_eq!(take_all(&mut consumer, 3 * cells), (cells, full));
        }
    }
}

#[test]
fn a_ring_takes_records_of_three_eighths_and_none_that_is_longer() {
    for cells in [4, 8, 16, 128] {
        let longest = longest_payload(cells);
        for longer in 1..=2 * CELL {
            let mut producer = Producer::new(plain(cells));
            let staged = producer.stage(Header::new(RecordKind::Message, longest + longer, 0)).map(drop);
            assert_eq!(staged, Err(NoRoom::TooLong), "{cells} cells, {longer} bytes too many");
        }
        // The longest record fits into a ring that was read to its end, at any position and with any credit still owed.
        for before in 0..2 * cells {
            let mut pair = Pair::new(cells);
            for _ in 0..before {
                pair.step(Step::Send(vec![(0, 1)]));
                while pair.receive() {}
            }
            assert!(pair.stage(longest, 1).is_some(), "{cells} cells, after {before}");
        }
    }
}

/// Shows that a consumer gives credit once a quarter of the ring or the quota of messages is owed, and not sooner.
#[test]
fn credit_is_given_for_a_quarter_of_a_ring_or_for_a_quota_of_messages() {
    const CELLS: usize = 64;
    for (cells, quota, expected) in [(CELLS, u64::MAX, CELLS / 4), (CELLS, 5, 5), (4, u64::MAX, 1), (8, u64::MAX, 2)] {
        let memory = plain(cells);
        let mut producer = Producer::new(memory.clone());
        let mut consumer = Consumer::new(memory, quota);
        for _ in 0..2 {
            for received in 1..=expected {
                producer.stage(Header::new(RecordKind::Message, 0, 0)).unwrap();
                producer.commit().unwrap();
                let Ok(NextRecord::Record(record)) = consumer.next_record() else { panic!("no record") };
                let is_due = received == expected;
                assert_eq!((consumer.advance(record), consumer.owes_credit()), (is_due, is_due), "{received}");
            }
            consumer.give_credit();
            assert!(!consumer.owes_credit());
        }
    }
}

#[test]
fn a_packed_record_is_filled_to_its_last_byte() {
    let mut producer = Producer::new(plain(64));
    let room = producer.longest_payload().min(32 * CELL - HEADER);
    let mut pack = producer.begin_pack().unwrap();
    let first = [7; 1000];
    let rest = vec![8; room - (PACK_WORD + first.len()) - PACK_WORD];
    assert!(producer.pack(&mut pack, &first));
    assert!(!producer.pack(&mut pack, &[&rest[..], &[8]].concat()), "one byte too long");
    assert!(producer.pack(&mut pack, &rest), "exactly the rest");
    assert!(!producer.pack(&mut pack, &[]), "no room for a length");
    producer.end_pack(pack);
    producer.commit().unwrap();
}
