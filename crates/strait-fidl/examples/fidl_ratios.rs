//! The cost of encoding, and the gain by parts: `cargo run --release -p strait-fidl --example fidl_ratios`.
//!
//! Two ways take turns, in one thread; times are processor times, and a figure is the median of the rounds.

use std::hint::black_box;
use std::io::IoSlice;
use std::time::Duration;

use strait::{Channel, Deadline, Message};
use strait_fidl::{Elements, Encoder, Fidl, Gather, Header, decode};

const ROUNDS: usize = 41;

#[derive(Fidl)]
struct Bytes {
    bytes: Vec<u8>,
}

#[derive(Fidl)]
struct View<'m> {
    bytes: Elements<'m, u8>,
}

/// Returns the processor time of the current thread, nearly independent of other programs on the machine.
fn used() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the nanoseconds of one call.
fn time(times: u32, mut work: impl FnMut()) -> f64 {
    let begin = used();
    (0..times).for_each(|_| work());
    (used() - begin).as_secs_f64() * 1e9 / f64::from(times)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the median times of both ways, and the medians of the differences and of the ratios.
fn compare(what: &str, times: u32, mut one: impl FnMut(), mut other: impl FnMut()) {
    let rounds: Vec<_> = (0..ROUNDS).map(|_| (time(times, &mut one), time(times, &mut other))).collect();
    let figure = |of: fn(&(f64, f64)) -> f64| median(rounds.iter().map(of).collect());
    let (first, second) = (figure(|round| round.0), figure(|round| round.1));
    let (difference, ratio) = (figure(|round| round.1 - round.0), figure(|round| round.1 / round.0));
    println!("{what}: {first:.1} ns, {second:.1} ns: difference {difference:.1} ns, ratio {ratio:.2}");
}

/// Two pushes into a list of parts, and encoding a vector, which makes two parts.
fn encode(len: usize) {
    let value = Bytes { bytes: vec![7; len] };
    let header = [0_u8; 32];
    let mut encoder = Encoder::gathering(Gather::FUCHSIA);
    compare(
        &format!("two pushes, then encoding a vector of {len} B"),
        20_000,
        || {
            let mut parts = [IoSlice::new(&[]); 2];
            parts[0] = IoSlice::new(black_box(&header));
            parts[1] = IoSlice::new(black_box(&value.bytes));
            black_box(&parts);
        },
        || {
            black_box(encoder.encode(black_box(&value)).expect("a value").parts());
        },
    );
}

/// Encoding and sending, with everything copied into one piece first, and with parts. The receiver takes no part in it:
/// each round sends some messages, and receives them outside of the measured time.
fn send(len: usize) {
    const BATCH: u32 = 8;
    let value = Bytes { bytes: vec![7; len] };
    let (near, far) = Channel::pair().expect("memory");
    let mut message = Message::new();
    let mut rounds = Vec::new();
    let mut encoders = [Gather::LINEAR, Gather::default()].map(Encoder::gathering);
    for _ in 0..ROUNDS * 20 {
        let times = encoders.each_mut().map(|encoder| {
            let spent = time(BATCH, || {
                let encoded = encoder.message(Header::default(), black_box(&value)).expect("a value");
                encoded.send(&near).expect("room");
            });
            for _ in 0..BATCH {
                far.recv_message(&mut message, Deadline::NEVER).expect("a message");
            }
            spent
        });
        rounds.push(times);
    }
    let figure = |of: fn(&[f64; 2]) -> f64| median(rounds.iter().map(of).collect());
    let (linear, parts, ratio) = (figure(|r| r[0]), figure(|r| r[1]), figure(|r| r[1] / r[0]));
    println!("encode and send a vector of {len} B: linear {linear:.0} ns, in parts {parts:.0} ns: ratio {ratio:.2}");
}

fn whole(len: usize) {
    let value = Bytes { bytes: vec![7; len] };
    let (near, far) = Channel::pair().expect("memory");
    let mut message = Message::new();
    let mut received = Message::new();
    let mut encoder = Encoder::new();
    compare(
        &format!("a vector of {len} B sent raw and received, then as a value and checked"),
        2_000,
        || {
            near.send(black_box(&value.bytes)).expect("room");
            far.recv_message(&mut message, Deadline::NEVER).expect("a message");
            black_box(message.bytes());
        },
        || {
            encoder.encode(black_box(&value)).expect("a value").send(&near).expect("room");
            far.recv_message(&mut received, Deadline::NEVER).expect("a message");
            black_box(decode::<View<'_>>(received.bytes(), []).expect("a value").bytes.as_bytes());
        },
    );
}

fn main() {
    for len in [256, 4096] {
        encode(len);
    }
    for len in [256, 512, 1024, 4096, 16 << 10, 64 << 10] {
        send(len);
    }
    for len in [64, 256, 4096] {
        whole(len);
    }
}
