//! In steady flow, sending and receiving allocate nothing beyond what a decoded value owns.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::LIMIT;
use serde::{Deserialize, Serialize};
use strait_typed::codec::{Json, MsgPack, Pod};
use strait_typed::{Encoded, Postcard, Typed};

struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Sample {
    time: u64,
    values: [f32; 12],
    name: Option<(u16, char)>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Text<'a> {
    number: u32,
    #[serde(borrow)]
    text: &'a str,
}

/// Runs `work` a hundred times to warm up, then a thousand times without an allocation.
fn allocates_nothing(what: &str, work: impl Fn()) {
    (0..100).for_each(|_| work());
    let before = CALLS.get();
    (0..1000).for_each(|_| work());
    assert_eq!(CALLS.get() - before, 0, "{what}");
}

#[test]
fn values_up_to_4_kib_allocate_nothing() {
    let sample = Sample { time: 1, values: [0.25; 12], name: Some((1, 'x')) };
    macro_rules! samples {
        ($($codec:ty)*) => {$(
            let (near, far) = Typed::<Sample, Sample, $codec>::pair().unwrap();
            allocates_nothing(stringify!($codec), || {
                near.send(&sample).unwrap();
                assert_eq!(far.recv_by(LIMIT).unwrap(), sample);
            });
        )*};
    }
    samples!(Postcard MsgPack Json);

    let text = "x".repeat(4080);
    let (near, far) = Typed::<Text<'_>, Text<'_>>::pair().unwrap();
    let encoded = Cell::new(Encoded::new());
    allocates_nothing("4 KiB, borrowed", || {
        near.send(&Text { number: 1, text: &text }).unwrap();
        let mut message = encoded.take();
        far.recv_encoded(&mut message, LIMIT).unwrap();
        assert_eq!(message.get::<Text<'_>>().unwrap().text, text);
        encoded.set(message);
    });

    let (near, far) = Typed::<[u64; 512], [u64; 512], Pod>::pair().unwrap();
    allocates_nothing("4 KiB of plain memory", || {
        near.send(&[7; 512]).unwrap();
        assert_eq!(far.recv_by(LIMIT).unwrap(), [7; 512]);
    });
}
