//! Uses every way of sending and receiving at random, in both directions at once, for a few seconds. Every byte and
//! every descriptor is checked, and at the end no descriptor and no mapping is left over.
//!
//! `STRAIT_SOAK_SEED` repeats a run; `STRAIT_SOAK_SECONDS` is the total length.

mod common;

use std::collections::VecDeque;
use std::io::{IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use common::{
    DEADLINE, descriptors, file_with, finish, mappings, parent_over_any, pattern, spawn_over_socket, spawn_with,
    wait_until,
};
use strait::view::InPlace;
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing, SendError, Wait};

#[test]
fn child() {
    common::play(&[("other side", other_side)]);
}

/// A small random number generator (splitmix64). The same seed gives the same numbers in every process.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The content of a message, computed on both sides from the number of the message and the seed of the direction.
struct Content {
    seed: u64,
    len: usize,
    handles: Vec<Inside>,
}

/// The file behind a handle, and the number in the file.
#[derive(Clone, Copy, Debug)]
enum Inside {
    Pipe(u64),
    File(u64),
}

impl Content {
    fn of(seed: u64, n: u64) -> Self {
        let mut random = Random(seed ^ n.wrapping_mul(0x2545_f491_4f6c_dd1d));
        // Each size class is half as frequent as the one before it; the largest holds a few messages of a megabyte.
        let bits = u64::from(random.next().trailing_zeros()).min(11) * 2;
        let len = match random.below(8) {
            0 => 0,
            1 => (random.below(1 << 20) >> random.below(16)) as usize,
            _ => random.below((16 << bits).min(1 << 20)) as usize,
        };
        let count = random.below(12).saturating_sub(8);
        let handles = (0..count)
            .map(|_| match random.below(2) {
                0 => Inside::Pipe(random.next()),
                _ => Inside::File(random.next()),
            })
            .collect();
        Self { seed: random.next(), len, handles }
    }

    fn bytes(&self) -> Vec<u8> {
        pattern(self.seed, self.len)
    }

    fn handles(&self) -> Vec<Handle> {
        let make = |inside: &Inside| match *inside {
            Inside::Pipe(secret) => {
                let (reader, mut writer) = std::io::pipe().unwrap();
                writer.write_all(&secret.to_le_bytes()).unwrap();
                OwnedFd::from(reader).into()
            }
            Inside::File(secret) => file_with(&secret.to_le_bytes()).into(),
        };
        self.handles.iter().map(make).collect()
    }

    fn check(&self, n: u64, bytes: &[u8], handles: Vec<Handle>) {
        assert!(
            bytes.len() == self.len && bytes == self.bytes(),
            "message {n}: {} bytes for {}",
            bytes.len(),
            self.len
        );
        assert_eq!(handles.len(), self.handles.len(), "handles of message {n}");
        for (handle, inside) in handles.into_iter().zip(&self.handles) {
            match *inside {
                Inside::Pipe(secret) => {
                    let mut content = Vec::new();
                    std::fs::File::from(handle.into_fd().unwrap()).read_to_end(&mut content).unwrap();
                    assert_eq!(content, secret.to_le_bytes(), "a pipe of message {n}");
                }
                Inside::File(secret) => {
                    assert_eq!(common::content_of(handle), secret.to_le_bytes(), "a file of message {n}");
                }
            }
        }
    }
}

/// Returns the content of the last message of a direction; no other message has this length.
fn end_after(n: u64) -> Vec<u8> {
    let mut bytes = format!("the end after {n} messages").into_bytes();
    bytes.resize(2 << 20, b' ');
    bytes
}

/// Calls `send` again and again as long as it finds no room; a failed call returns the handles for the next one.
fn insist(mut handles: Vec<Handle>, mut send: impl FnMut(Vec<Handle>) -> Result<(), SendError>) {
    let begin = Instant::now();
    loop {
        match send(handles) {
            Ok(()) => return,
            Err(SendError { error: Error::WouldBlock | Error::TimedOut, handles: back }) => handles = back,
            Err(failed) => panic!("{failed}"),
        }
        assert!(begin.elapsed() < DEADLINE, "there was no room before the deadline");
        std::thread::yield_now();
    }
}

/// Sends messages from number `n` on in a way chosen at random, and returns how many.
fn send_somehow(channel: &Channel, random: &mut Random, seed: u64, n: u64) -> u64 {
    let content = Content::of(seed, n);
    let bytes = content.bytes();
    match random.below(9) {
        0 => channel.send(Outgoing::new(&bytes).handles(content.handles())).unwrap(),
        1 => insist(content.handles(), |handles| channel.try_send(Outgoing::new(&bytes).handles(handles))),
        2 => insist(content.handles(), |handles| {
            channel.send_by(Outgoing::new(&bytes).handles(handles), Duration::from_micros(300))
        }),
        3 => {
            let cut = random.below(bytes.len() as u64 + 1) as usize;
            let parts = [IoSlice::new(&bytes[..cut]), IoSlice::new(&[]), IoSlice::new(&bytes[cut..])];
            channel.send_by(Outgoing::vectored(&parts).handles(content.handles()), DEADLINE).unwrap();
        }
        4 | 5 => {
            let row: Vec<Content> = (n..n + 1 + random.below(20)).map(|n| Content::of(seed, n)).collect();
            let bytes: Vec<Vec<u8>> = row.iter().map(Content::bytes).collect();
            let messages =
                row.iter().zip(&bytes).map(|(content, bytes)| Outgoing::new(bytes).handles(content.handles()));
            assert_eq!(channel.send_many(messages, DEADLINE).unwrap(), row.len());
            return row.len() as u64;
        }
        6 => {
            // The reservation is larger than the message.
            let mut room = channel.reserve(bytes.len() + random.below(500) as usize, DEADLINE).unwrap();
            room.write_at(&bytes, 0);
            content.handles().into_iter().for_each(|handle| room.handle(handle));
            room.commit_first(bytes.len()).unwrap();
        }
        7 => {
            let mut room = channel.reserve_sealed(bytes.len()).unwrap();
            room.bytes().copy_from_slice(&bytes);
            content.handles().into_iter().for_each(|handle| room.handle(handle));
            room.commit(DEADLINE).unwrap();
        }
        _ => {
            // The first reservation is dropped.
            drop(channel.reserve(random.below(1 << 18) as usize, DEADLINE).unwrap());
            let mut room = channel.reserve(bytes.len(), DEADLINE).unwrap();
            room.write_all(&bytes).unwrap();
            content.handles().into_iter().for_each(|handle| room.handle(handle));
            room.commit().unwrap();
        }
    }
    1
}

fn send_all(channel: &Channel, seed: u64, until: Instant) -> u64 {
    let mut random = Random(seed ^ 1);
    let mut n = 0;
    while Instant::now() < until {
        n += send_somehow(channel, &mut random, seed, n);
        if random.below(300) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
        }
    }
    channel.send_by(&end_after(n), DEADLINE).unwrap();
    n
}

/// Receives messages in ways chosen at random until the last message, and returns how many there were.
fn recv_all(channel: &Channel, seed: u64) -> u64 {
    let mut random = Random(seed ^ 2);
    let mut n = 0;
    let mut ended = false;
    let mut message = Message::new();
    let mut slots: Vec<Message> = (0..16).map(|_| Message::new()).collect();
    let mut buffer = Vec::new();
    // Views of large messages, read again later.
    let mut views: VecDeque<(u64, InPlace<'_>)> = VecDeque::new();
    let mut take = |bytes: &[u8], handles: Vec<Handle>| {
        assert!(!ended, "a message arrived after the last one");
        if bytes.len() > 1 << 20 {
            assert!(bytes == end_after(n), "the last message is wrong");
            ended = true;
        } else {
            Content::of(seed, n).check(n, bytes, handles);
            n += 1;
        }
        (n, ended)
    };
    let mut so_far = (0, false);
    while !so_far.1 {
        // The sender may wait for memory that a view holds.
        let patience = if views.is_empty() { DEADLINE } else { Duration::from_millis(20) };
        let outcome = match random.below(7) {
            0 => channel.recv_by(patience).map(|mut message| {
                let handles = message.take_handles().unwrap();
                so_far = take(message.bytes(), handles);
            }),
            1 => channel.recv_message(&mut message, patience).map(|()| {
                let handles = message.take_handles().unwrap();
                so_far = take(message.bytes(), handles);
            }),
            2 => match channel.try_recv() {
                Ok(mut message) => {
                    let handles = message.take_handles().unwrap();
                    so_far = take(message.bytes(), handles);
                    Ok(())
                }
                Err(Error::WouldBlock) => Ok(()),
                Err(error) => Err(error),
            },
            3 => {
                buffer.resize(random.below(300) as usize, 0);
                let mut received = channel.recv_into(&mut buffer, patience);
                if let Err(Error::BufferTooSmall { needed }) = received {
                    assert!(needed > buffer.len());
                    buffer.resize(needed, 0);
                    received = channel.recv_into(&mut buffer, Deadline::NOW);
                }
                received.map(|mut received| {
                    let handles = received.take_handles().unwrap();
                    so_far = take(&buffer[..received.len()], handles);
                })
            }
            4 => channel.recv_many(&mut slots, patience).map(|received| {
                for slot in &mut slots[..received] {
                    let handles = slot.take_handles().unwrap();
                    so_far = take(slot.bytes(), handles);
                }
            }),
            5 => match channel.recv_in_place(Duration::from_millis(random.below(3))) {
                Ok(mut view) => {
                    let mut bytes = vec![0; view.len()];
                    // A view may be read in any order: here in two pieces, the second one first.
                    let half = bytes.len() / 2;
                    view.read_at(&mut bytes[half..], half);
                    view.read_at(&mut bytes[..half], 0);
                    if let Some(sealed) = view.sealed() {
                        assert!(sealed == bytes);
                    }
                    let handles = view.take_handles().unwrap();
                    so_far = take(&bytes, handles);
                    // A view of a large message does not keep the sender waiting.
                    if !so_far.1 && (view.sealed().is_some() || view.len() > 1 << 17) {
                        views.push_back((so_far.0 - 1, view));
                    }
                    Ok(())
                }
                Err(Error::TimedOut) => Ok(()),
                Err(error) => Err(error),
            },
            _ => {
                let back = random.below(2) == 0;
                let old = if back { views.pop_back() } else { views.pop_front() };
                if let Some((number, mut view)) = old {
                    let mut bytes = vec![0; view.len()];
                    view.read_at(&mut bytes, 0);
                    // The message must not have been overwritten meanwhile.
                    assert!(bytes == Content::of(seed, number).bytes(), "view of message {number} changed");
                }
                Ok(())
            }
        };
        match outcome {
            Err(Error::TimedOut) if !views.is_empty() => drop(views.pop_front()),
            outcome => outcome.unwrap_or_else(|error| panic!("after {} messages: {error}", so_far.0)),
        }
        while views.len() > 3 {
            views.pop_front();
        }
        if random.below(300) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
        }
    }
    so_far.0
}

/// Sends and receives on one end at the same time, and checks the end's counters.
fn both(channel: &Channel, outward: u64, inward: u64, until: Instant) {
    let (sent, received) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_all(channel, outward, until));
        let received = recv_all(channel, inward);
        (sender.join().unwrap(), received)
    });
    let counters = channel.counters();
    assert_eq!((counters.messages_sent, counters.messages_received), (sent + 1, received + 1));
    println!("seed {outward}: {sent} messages sent, {received} received, {counters:?}");
}

/// Returns the options of an end, chosen by `seed`.
fn options(seed: u64) -> Options {
    let mut random = Random(seed);
    let options = Options::new().wait([Wait::Spin, Wait::Adaptive, Wait::Block][random.below(3) as usize]);
    // Small limits, reached in the run.
    let options = if random.below(2) == 0 { options.ring(512) } else { options };
    let options = if random.below(2) == 0 { options.ring_max(32 << 10) } else { options };
    let options = if random.below(2) == 0 { options.queue_bytes(2 << 20) } else { options };
    let options = if random.below(2) == 0 { options.queue_messages(1 + random.below(50)) } else { options };
    match random.below(3) {
        0 => options.pool(0),
        1 => options.pool(1 << 20),
        _ => options,
    }
}

fn other_side(argument: &str) {
    let (seed, millis) = argument.split_once(' ').unwrap();
    let seed: u64 = seed.parse().unwrap();
    // The socket is open at the start, and closed at the end.
    let start = (descriptors() - 1, mappings());
    let channel = parent_over_any(&options(!seed));
    both(&channel, !seed, seed, Instant::now() + Duration::from_millis(millis.parse().unwrap()));
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    drop(channel);
    assert_eq!((descriptors(), mappings()), start, "descriptors and mappings at the end");
}

#[test]
fn everything_at_once_arrives_whole_and_leaves_nothing() {
    if std::env::var_os("STRAIT_TEST_ROLE").is_some() {
        return;
    }
    let from_environment = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect("a number"));
    let seed = from_environment("STRAIT_SOAK_SEED").unwrap_or_else(|| {
        u64::from(std::process::id()) << 32 | u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos())
    });
    let seconds = from_environment("STRAIT_SOAK_SECONDS").unwrap_or(4);
    println!("STRAIT_SOAK_SEED={seed} STRAIT_SOAK_SECONDS={seconds}");
    let start = (descriptors(), mappings());

    // Several short runs with different options: between processes, over a socket that holds few packets, and within
    // one process.
    const ROUNDS: u64 = 8;
    let millis = seconds * 1000 / ROUNDS;
    let mut random = Random(seed);
    for round in 0..ROUNDS {
        let seed = random.next();
        let begin = Instant::now();
        let until = begin + Duration::from_millis(millis);
        let start_it = match round % 4 {
            0 | 2 => Some(spawn_with as fn(&str, &str, &Options) -> _),
            1 => Some(spawn_over_socket as _),
            _ => None,
        };
        if let Some(start_it) = start_it {
            let (actor, channel) = start_it("other side", &format!("{seed} {millis}"), &options(seed));
            both(&channel, seed, !seed, until);
            drop(channel);
            finish(actor);
        } else {
            let (a, b) = options(seed).pair().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| both(&b, !seed, seed, until));
                both(&a, seed, !seed, until);
            });
        }
        assert!(begin.elapsed() < DEADLINE);
    }
    wait_until("descriptors and mappings are what they were", || (descriptors(), mappings()) == start);
}
