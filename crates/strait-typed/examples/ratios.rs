//! What typed messages cost beside the same bytes sent raw: `cargo run --release -p strait-typed --example ratios`.
//!
//! One thread sends a message and receives it, again and again, so that only the work is measured and no wake-up. The
//! two ways take turns; times are processor times, and the figure is the median of the rounds' ratios.

use std::hint::black_box;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strait::{Channel, Deadline, Message};
use strait_typed::{Encoded, Typed};

const ROUNDS: usize = 41;

/// 64 bytes in Postcard.
#[derive(Serialize, Deserialize)]
struct Order {
    #[serde(with = "serde_bytes")]
    id: [u8; 16],
    price: f64,
    amount: f64,
    buyer: f64,
    seller: f64,
    side: bool,
    live: bool,
    count: u8,
    flags: [u8; 12],
}

/// 1 MiB, as bytes.
#[derive(Serialize, Deserialize)]
struct Blob {
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

/// 1 MiB, borrowed from the message.
#[derive(Serialize, Deserialize)]
struct Borrowed<'a> {
    #[serde(borrow, with = "serde_bytes")]
    bytes: &'a [u8],
}

/// Returns the processor time that this thread has used, which other programs on the machine hardly change.
fn used() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn time(times: u32, mut work: impl FnMut()) -> Duration {
    let begin = used();
    (0..times).for_each(|_| work());
    (used() - begin) / times
}

/// Prints the median times of both ways, and the median of their ratios.
fn compare(what: &str, times: u32, mut raw: impl FnMut(), mut typed: impl FnMut()) {
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| (time(times, &mut raw), time(times, &mut typed))).collect();
    rounds.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    let (raw, typed) = rounds[ROUNDS / 2];
    println!("{what}: raw {raw:?}, typed {typed:?}, ratio {:.2}", ratio(&rounds[ROUNDS / 2]));
}

fn ratio(times: &(Duration, Duration)) -> f64 {
    times.1.as_secs_f64() / times.0.as_secs_f64()
}

fn orders() {
    let order = Order {
        id: [7; 16],
        price: 1.5,
        amount: 2.5,
        buyer: 3.5,
        seller: 4.5,
        side: true,
        live: false,
        count: 9,
        flags: [1; 12],
    };
    let bytes = [7; 64];
    let (near, far) = Channel::pair().expect("memory");
    let (typed_near, typed_far) = Typed::<Order, Order>::pair().expect("memory");
    let mut message = Message::new();
    compare(
        "64 B struct",
        2_000,
        || {
            near.send(black_box(&bytes)).expect("room");
            far.recv_message(&mut message, Deadline::NEVER).expect("a message");
            black_box(message.bytes());
        },
        || {
            typed_near.send(black_box(&order)).expect("room");
            black_box(typed_far.recv().expect("a value"));
        },
    );
}

fn blobs() {
    let blob = Blob { bytes: vec![7; 1 << 20] };
    let (near, far) = Channel::pair().expect("memory");
    let (typed_near, typed_far) = Typed::<Blob, Blob>::pair().expect("memory");
    let mut message = Message::new();
    compare(
        "1 MiB, owned by the receiver",
        50,
        || {
            near.send(black_box(&blob.bytes)).expect("room");
            black_box(far.recv().expect("a message").into_bytes());
        },
        || {
            typed_near.send(black_box(&blob)).expect("room");
            black_box(typed_far.recv().expect("a value"));
        },
    );
    let mut encoded = Encoded::new();
    compare(
        "1 MiB, borrowed from the message",
        50,
        || {
            near.send(black_box(&blob.bytes)).expect("room");
            far.recv_message(&mut message, Deadline::NEVER).expect("a message");
            black_box(message.bytes());
        },
        || {
            typed_near.send(black_box(&blob)).expect("room");
            typed_far.recv_encoded(&mut encoded, Deadline::NEVER).expect("a message");
            black_box(encoded.get::<Borrowed<'_>>().expect("a value").bytes);
        },
    );
}

fn main() {
    let wanted = std::env::args().nth(1);
    let is_wanted = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
    if is_wanted("orders") {
        orders();
    }
    if is_wanted("blobs") {
        blobs();
    }
}
