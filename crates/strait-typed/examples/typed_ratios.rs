//! The cost of typed messages in comparison with raw messages of the same bytes: `cargo run --release -p strait-typed
//! --example typed_ratios`.
//!
//! First one thread sends a message and receives it, again and again, so that only the work is measured and no wake-up;
//! times are processor times. Then two processes send each message back and forth; times are elapsed times of a round
//! trip. The two ways take turns, and the figure is the median of the rounds' ratios.

use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strait::{Channel, CommandExt, Deadline, Message, Outgoing};
use strait_typed::codec::Pod;
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

/// 1 MiB as a list of numbers, the form of bytes in serde without `serde_bytes`.
#[derive(Serialize, Deserialize)]
struct Listed {
    bytes: Vec<u8>,
}

/// 1 MiB, borrowed from the message.
#[derive(Serialize, Deserialize)]
struct Borrowed<'a> {
    #[serde(borrow, with = "serde_bytes")]
    bytes: &'a [u8],
}

/// Returns the processor time of the current thread, nearly independent of other programs on the machine.
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
    compare_times(what, || time(times, &mut raw), || time(times, &mut typed));
}

fn compare_times(what: &str, mut raw: impl FnMut() -> Duration, mut typed: impl FnMut() -> Duration) {
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| (raw(), typed())).collect();
    rounds.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    let (raw, typed) = rounds[ROUNDS / 2];
    println!("{what}: raw {raw:?}, typed {typed:?}, ratio {:.2}", ratio(&rounds[ROUNDS / 2]));
}

fn ratio(times: &(Duration, Duration)) -> f64 {
    times.1.as_secs_f64() / times.0.as_secs_f64()
}

/// The bytes of an order.
const ENCODED: [u8; 64] = {
    let mut bytes = [1; 64];
    bytes[0] = 16;
    bytes
};

fn order() -> Order {
    Order {
        id: [7; 16],
        price: 1.5,
        amount: 2.5,
        buyer: 3.5,
        seller: 4.5,
        side: true,
        live: false,
        count: 9,
        flags: [1; 12],
    }
}

/// A struct of plain numbers: 64 bytes in Postcard too.
type Numbers = [f64; 8];

fn numbers() {
    let numbers: Numbers = [1.5; 8];
    let bytes = [7; 64];
    let (near, far) = Channel::pair().expect("memory");
    let (typed_near, typed_far) = Typed::<Numbers, Numbers>::pair().expect("memory");
    let mut message = Message::new();
    compare(
        "64 B, eight numbers",
        2_000,
        || {
            near.send(black_box(&bytes)).expect("room");
            far.recv_message(&mut message, Deadline::NEVER).expect("a message");
            black_box(message.bytes());
        },
        || {
            typed_near.send(black_box(&numbers)).expect("room");
            black_box(typed_far.recv().expect("a value"));
        },
    );
    let (pod_near, pod_far) = Typed::<Numbers, Numbers, Pod>::pair().expect("memory");
    compare(
        "64 B, eight numbers, codec Pod",
        2_000,
        || {
            near.send(black_box(&bytes)).expect("room");
            far.recv_message(&mut message, Deadline::NEVER).expect("a message");
            black_box(message.bytes());
        },
        || {
            pod_near.send(black_box(&numbers)).expect("room");
            black_box(pod_far.recv().expect("a value"));
        },
    );
}

fn orders() {
    let order = order();
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
    let listed = Listed { bytes: blob.bytes.clone() };
    let (listed_near, listed_far) = Typed::<Listed, Listed>::pair().expect("memory");
    compare(
        "1 MiB, owned by the receiver, without serde_bytes",
        5,
        || {
            near.send(black_box(&blob.bytes)).expect("room");
            black_box(far.recv().expect("a message").into_bytes());
        },
        || {
            listed_near.send(black_box(&listed)).expect("room");
            black_box(listed_far.recv().expect("a value"));
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

/// The channels to the other process: bytes, orders, and blobs.
struct Ends {
    raw: Channel,
    orders: Typed<Order, Order>,
    blobs: Typed<Blob, Blob>,
}

/// The kind and the number of messages that the other process echoes next.
#[derive(Serialize, Deserialize)]
enum Next {
    Raw(u32),
    Orders(u32),
    Blobs(u32),
}

/// Echoes the messages of the parent.
fn echo() {
    let parent = strait::from_parent().expect("a parent");
    let mut handles = parent.recv().expect("channels").take_handles().expect("channels").into_iter();
    let mut next_end = || handles.next().and_then(strait::Handle::into_channel).expect("a channel");
    let ends = Ends { raw: next_end(), orders: Typed::over(next_end()), blobs: Typed::over(next_end()) };
    let parent = Typed::<(), Next>::over(parent);
    let mut message = Message::new();
    while let Ok(next) = parent.recv() {
        match next {
            Next::Raw(times) => (0..times).for_each(|_| {
                ends.raw.recv_message(&mut message, Deadline::NEVER).expect("a message");
                ends.raw.send(message.bytes()).expect("room");
            }),
            Next::Orders(times) => {
                (0..times).for_each(|_| ends.orders.send(&ends.orders.recv().expect("a value")).expect("room"));
            }
            Next::Blobs(times) => {
                (0..times).for_each(|_| ends.blobs.send(&ends.blobs.recv().expect("a value")).expect("room"));
            }
        }
    }
}

/// Compares round trips to another process.
fn round_trips() {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let (mut child, parent) = command.arg("echo").spawn_with_channel().expect("a process");
    let pairs = [(); 3].map(|()| Channel::pair().expect("memory"));
    let [(raw, far_raw), (orders, far_orders), (blobs, far_blobs)] = pairs;
    let theirs = Outgoing::new(b"").handle(far_raw).handle(far_orders).handle(far_blobs);
    parent.send(theirs).expect("a process");
    let ends = Ends { raw, orders: Typed::over(orders), blobs: Typed::over(blobs) };
    let parent = Typed::<Next, ()>::over(parent);
    let round_trip = |next: Next, times: u32, work: &mut dyn FnMut()| {
        parent.send(&next).expect("a process");
        // The first round trip waits until the other process has begun.
        work();
        let begin = Instant::now();
        (1..times).for_each(|_| work());
        begin.elapsed() / (times - 1)
    };
    let (order, blob) = (order(), Blob { bytes: vec![7; 1 << 20] });
    let mut message = Message::new();
    let mut raw = |bytes: &[u8]| {
        ends.raw.send(black_box(bytes)).expect("room");
        ends.raw.recv_message(&mut message, Deadline::NEVER).expect("a message");
        black_box(message.bytes());
    };
    compare_times(
        "64 B struct, round trip between processes",
        || round_trip(Next::Raw(5_000), 5_000, &mut || raw(&[7; 64])),
        || {
            round_trip(Next::Orders(5_000), 5_000, &mut || {
                ends.orders.send(black_box(&order)).expect("room");
                black_box(ends.orders.recv().expect("a value"));
            })
        },
    );
    compare_times(
        "1 MiB, owned, round trip between processes",
        || round_trip(Next::Raw(50), 50, &mut || raw(&blob.bytes)),
        || {
            round_trip(Next::Blobs(50), 50, &mut || {
                ends.blobs.send(black_box(&blob)).expect("room");
                black_box(ends.blobs.recv().expect("a value"));
            })
        },
    );
    drop((parent, ends));
    child.wait().expect("a child");
}

/// Repeats one part of the work with the 64 B struct, so that a tool can count the instructions: `valgrind
/// --tool=callgrind target/release/examples/typed_ratios count typed 2000`.
fn count(part: &str, times: u32) {
    let order = order();
    let mut bytes = [7; 64];
    let (near, far) = Channel::pair().expect("memory");
    let (typed_near, typed_far) = Typed::<Order, Order>::pair().expect("memory");
    let (numbers_near, numbers_far) = Typed::<Numbers, Numbers>::pair().expect("memory");
    let (pod_near, pod_far) = Typed::<Numbers, Numbers, Pod>::pair().expect("memory");
    let numbers: Numbers = [1.5; 8];
    let mut message = Message::new();
    let mut work = || match part {
        "raw" => {
            near.send(black_box(&bytes)).expect("room");
            far.recv_message(&mut message, Deadline::NEVER).expect("a message");
            black_box(message.bytes());
        }
        "typed" => {
            typed_near.send(black_box(&order)).expect("room");
            black_box(typed_far.recv().expect("a value"));
        }
        "numbers" => {
            numbers_near.send(black_box(&numbers)).expect("room");
            black_box(numbers_far.recv().expect("a value"));
        }
        "pod" => {
            pod_near.send(black_box(&numbers)).expect("room");
            black_box(pod_far.recv().expect("a value"));
        }
        "encode" => {
            black_box(postcard::to_slice(black_box(&order), &mut bytes).expect("64 bytes"));
        }
        "decode" => {
            black_box(postcard::from_bytes::<Order>(black_box(&ENCODED)).expect("a value"));
        }
        _ => panic!("raw, typed, numbers, pod, encode or decode"),
    };
    (0..times).for_each(|_| work());
}

fn main() {
    let wanted = std::env::args().nth(1);
    if wanted.as_deref() == Some("count") {
        let arguments: Vec<_> = std::env::args().skip(2).collect();
        return count(&arguments[0], arguments[1].parse().expect("a number"));
    }
    if wanted.as_deref() == Some("echo") {
        return echo();
    }
    let is_wanted = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
    if is_wanted("orders") {
        orders();
    }
    if is_wanted("numbers") {
        numbers();
    }
    if is_wanted("blobs") {
        blobs();
    }
    if is_wanted("trips") {
        round_trips();
    }
}
