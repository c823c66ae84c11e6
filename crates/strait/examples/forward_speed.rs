//! Measures the cost for a process of forwarding a message that it received.
//!
//! ```sh
//! cargo run --release -p strait --example forward_speed
//! ```
//!
//! There are three processes: one sends, one forwards, and one receives and reads the first byte of every page. One
//! message is in flight at a time. The time measured is that of the forwarding process, which has a processor for
//! itself, from the arrival of the message until it was forwarded and released. Rounds of all variants are interleaved,
//! and medians are shown.

use std::process::Command;
use std::time::{Duration, Instant};

use strait::{Channel, CommandExt, Deadline, Error, Handle, Message, Outgoing};

const SIZES: [usize; 4] = [64, 64 << 10, 1 << 20, 16 << 20];
const ROUNDS: usize = 5;
const DEADLINE: Duration = Duration::from_secs(60);

/// How the message is received and forwarded, and whether it is sent as sealed memory.
const VARIANTS: [(&str, bool); 4] = [
    ("received, and sent", false),
    ("received, forwarded", false),
    ("view, forwarded", false),
    ("sealed: received, forwarded", true),
];

fn main() -> Result<(), Error> {
    match std::env::args().nth(1).as_deref() {
        None => measure(),
        Some("relay") => relay(),
        _ => sink(),
    }
}

/// Binds this process to a CPU, if there are that many.
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn start(role: &str) -> Result<(std::process::Child, Channel), Error> {
    let program = std::env::current_exe().expect("this program");
    Ok(Command::new(program).arg(role).spawn_with_channel()?)
}

fn measure() -> Result<(), Error> {
    pin(0);
    let (mut relay, to_relay) = start("relay")?;
    let (mut sink, to_sink) = start("sink")?;
    let (ours, theirs) = Channel::pair()?;
    to_relay.send(Outgoing::new(b"").handle(ours))?;
    to_sink.send(Outgoing::new(b"").handle(theirs))?;
    println!("{:>8}  {:<28} {:>10}", "bytes", "how", "µs");
    for size in SIZES {
        let bytes = vec![7; size];
        let count = (64 << 20 >> 3) / size.max(8 << 10);
        let count = count.clamp(8, 1000);
        let mut medians = [const { Vec::new() }; VARIANTS.len()];
        for _ in 0..ROUNDS {
            for (variant, (_, sealed)) in VARIANTS.into_iter().enumerate() {
                to_relay.send(&[variant as u8])?;
                for _ in 0..count {
                    if sealed {
                        let mut room = to_relay.reserve_sealed(size)?;
                        room.bytes().copy_from_slice(&bytes);
                        room.commit(DEADLINE)?;
                    } else {
                        to_relay.send(&bytes)?;
                    }
                    to_sink.recv_by(DEADLINE)?;
                }
                to_relay.send(b"")?;
                let answer = to_relay.recv_by(DEADLINE)?;
                medians[variant].push(u64::from_le_bytes(answer.bytes().try_into().expect("a time")));
            }
        }
        for ((how, _), times) in VARIANTS.iter().zip(&mut medians) {
            times.sort_unstable();
            println!("{size:>8}  {how:<28} {:>10.2}", times[ROUNDS / 2] as f64 / 1000.0);
        }
    }
    drop((to_relay, to_sink));
    relay.wait().expect("a child");
    sink.wait().expect("a child");
    Ok(())
}

/// Returns the end that a message carries.
fn end_of(mut message: Message) -> Result<Channel, Error> {
    Ok(message.take_handles()?.pop().and_then(Handle::into_channel).expect("an end"))
}

fn relay() -> Result<(), Error> {
    pin(1);
    let channel = strait::from_parent()?;
    let next = end_of(channel.recv_by(DEADLINE)?)?;
    let mut message = Message::new();
    let mut view = None;
    while let Ok(order) = channel.recv() {
        let variant = order.bytes()[0];
        let mut times = Vec::new();
        loop {
            while !channel.is_readable() {
                std::hint::spin_loop();
            }
            let begin = Instant::now();
            if variant == 2 {
                let view = view.insert(channel.recv_in_place(DEADLINE)?);
                if view.is_empty() {
                    break;
                }
                view.forward(&next, DEADLINE)?;
            } else {
                channel.recv_message(&mut message, DEADLINE)?;
                match message.bytes() {
                    [] => break,
                    bytes if variant == 0 => next.send_by(bytes, DEADLINE)?,
                    _ => next.forward(&mut message, DEADLINE)?,
                }
            }
            drop(view.take());
            times.push(begin.elapsed().as_nanos() as u64);
        }
        drop(view.take());
        times.sort_unstable();
        channel.send(&times[times.len() / 2].to_le_bytes())?;
    }
    Ok(())
}

fn sink() -> Result<(), Error> {
    let channel = strait::from_parent()?;
    let from = end_of(channel.recv_by(DEADLINE)?)?;
    let mut message = Message::new();
    while from.recv_message(&mut message, Deadline::NEVER).is_ok() {
        assert!(message.bytes().iter().step_by(4096).all(|byte| *byte == 7));
        channel.send(b"")?;
    }
    Ok(())
}
