//! Another process that writes anything to the memory of a ring.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use proptest::prelude::*;
use strait_ring::{Error, Peer, Receiver, RingMemory, Sender, Sleep};

/// A way to sleep that returns at once and reports the other side as gone.
struct Never;

impl Sleep for Never {
    fn wait(&self, _word: &AtomicU32, _asleep: u32, _deadline: Option<Instant>) -> Peer {
        Peer::Gone
    }

    fn wake(&self, _word: &AtomicU32) {}
}

const CELLS: usize = 8;
const CONTROL: usize = 128;
const LEN: usize = CONTROL + CELLS * 64;

/// Memory of a ring between two parts that are not accessible to the ring. The test finds out if they were written.
struct Fenced(*mut u8);

impl Fenced {
    const LAYOUT: Layout = match Layout::from_size_align(3 * LEN.next_multiple_of(64), 64) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    fn new() -> Self {
        // SAFETY: the layout has a size.
        let base = unsafe { alloc_zeroed(Self::LAYOUT) };
        assert!(!base.is_null());
        Self(base)
    }

    fn side(&self) -> RingMemory {
        // SAFETY: the memory outlives the two sides; one is a sender and the other a receiver, and the test writes only
        // between calls on the two.
        unsafe { RingMemory::from_raw(self.0.add(LEN), LEN) }.unwrap()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < 3 * LEN / 8);
        // SAFETY: the word is inside the memory and aligned, and nothing else accesses it at this time.
        unsafe { AtomicU64::from_ptr(self.0.cast::<u64>().add(index)) }
    }

    fn is_intact(&self) -> bool {
        let words = LEN / 8;
        (0..words).chain(2 * words..3 * words).all(|index| self.word(index).load(Ordering::Relaxed) == 0)
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: this is the memory that `new` allocated.
        unsafe { dealloc(self.0, Self::LAYOUT) }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Receive,
    Wait,
    /// Writes a word to the memory: its index, and the value.
    Write(usize, u64),
    /// Changes a bit of a word.
    Flip(usize, u32),
}

/// Words that mean something: headers of every kind with any length, and positions.
fn value() -> impl Strategy<Value = u64> {
    let header = (0u64..12, prop_oneof![0u64..600, any::<u32>().prop_map(u64::from)], 0u64..4);
    prop_oneof![header.prop_map(|(kind, len, handles)| kind << 32 | len | handles << 40), 0u64..40, any::<u64>(),]
}

fn step() -> impl Strategy<Value = Step> {
    // Half of the writes go to where headers and words are.
    let index = || prop_oneof![(0..CELLS).prop_map(|cell| (CONTROL + cell * 64) / 8), 0..LEN / 8];
    prop_oneof![
        4 => (0usize..400).prop_map(Step::Send),
        4 => Just(Step::Receive),
        1 => Just(Step::Wait),
        2 => (index(), value()).prop_map(|(index, value)| Step::Write(index, value)),
        1 => (index(), 0u32..64).prop_map(|(index, bit)| Step::Flip(index, bit)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 1024 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_another_process_writes_calls_return_and_stay_inside(steps in prop::collection::vec(step(), 1..80)) {
        let memory = Fenced::new();
        let (mut sender, mut receiver) = (Sender::new(memory.side(), Never), Receiver::new(memory.side(), Never));
        let mut message = Vec::new();
        for step in steps {
            match step {
                Step::Send(len) => {
                    let _ = sender.try_send(&vec![0xff; len]);
                }
                Step::Receive => {
                    let _ = receiver.try_recv(&mut message);
                }
                Step::Wait => {
                    let _ = (sender.send(b"waits"), receiver.recv(&mut message));
                }
                Step::Write(index, value) => memory.word(LEN / 8 + index).store(value, Ordering::Relaxed),
                Step::Flip(index, bit) => {
                    memory.word(LEN / 8 + index).fetch_xor(1 << bit, Ordering::Relaxed);
                }
            }
            prop_assert!(message.len() <= CELLS * 64);
        }
        drop((sender, receiver));
        prop_assert!(memory.is_intact());
    }
}

#[test]
fn what_no_correct_process_writes_is_an_error() {
    let tampered = |index: usize, value: u64| {
        let memory = Fenced::new();
        memory.word((LEN + index) / 8).store(value, Ordering::Relaxed);
        let mut message = Vec::new();
        let (mut sender, mut receiver) = (Sender::new(memory.side(), Never), Receiver::new(memory.side(), Never));
        let received = receiver.try_recv(&mut message);
        let sent = (0..CELLS).map(|_| sender.try_send(b"")).find(Result::is_err);
        (received, sent)
    };
    let first = CONTROL;
    assert!(matches!(tampered(first, 99 << 32), (Err(Error::Corrupt(_)), Some(Err(Error::Corrupt(_))))));
    // Longer than the ring, padding at the start of the ring, and a message with handles.
    for header in [1 << 32 | 1000, 4 << 32 | 56, 1 << 32 | 1 << 40 | 5] {
        assert!(matches!(tampered(first, header), (Err(Error::Corrupt(_)), _)), "{header:x}");
    }
    assert!(matches!(tampered(64, 77), (Err(Error::WouldBlock), Some(Err(Error::Corrupt(_))))), "credit");
}
