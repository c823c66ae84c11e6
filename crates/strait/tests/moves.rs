//! Ends that move, each behaviour by name: while the other end is in the middle of something, while it moves itself, and
//! while one of the processes dies.

mod common;

use std::collections::HashMap;
use std::time::Duration;

use common::travel::{Book, MIXED, NoLedger, Random, Sizes, TINY, Traveller, balance, travellers};
use common::{Actor, finish, parent, play, spawn_with};
use strait::{Channel, Error, Handle, Options, Outgoing, Wait};

/// Long enough for a slow machine; a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn child() {
    play(&[("dancer", dancer)]);
}

/// A seed of this run, or the one that is asked for.
fn seed() -> u64 {
    let seed = std::env::var("STRAIT_MOVES_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed = seed.unwrap_or_else(|| {
        u64::from(std::process::id()) << 32 | u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos())
    });
    eprintln!("STRAIT_MOVES_SEED={seed}");
    seed
}

/// A thread that panics takes its process along, so that nobody waits for it.
fn die_of_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::exit(101);
    }));
}

/// How often as many repetitions as by default.
fn times(count: u64) -> u64 {
    let factor = std::env::var("STRAIT_MOVES_TIMES").map_or(1, |times| times.parse().expect("a number"));
    count * factor
}

fn ends_of(message: &mut strait::Message) -> Vec<Channel> {
    message.take_handles().unwrap().into_iter().filter_map(Handle::into_channel).collect()
}

// Both ends dance through several processes at once.

/// Passes ends on at random, each after a few messages in both directions, until they have made all their journeys; then
/// they go back to the parent.
fn dancer(argument: &str) {
    die_of_panics();
    let parent = parent();
    let mut message = parent.recv_by(DEADLINE).unwrap();
    let seed: u64 = argument.parse().unwrap();
    let roads = ends_of(&mut message);
    std::thread::scope(|scope| {
        for (at, road) in roads.iter().enumerate() {
            let (roads, parent) = (&roads, &parent);
            scope.spawn(move || dance(road, roads, parent, Random(seed ^ (at as u64) << 32)));
        }
        dance(&parent, &roads, &parent, Random(seed));
        for road in &roads {
            road.send_by(b"over", DEADLINE).unwrap();
        }
    });
    parent.send(&(common::descriptors() as u64).to_le_bytes()).unwrap();
    assert_eq!(parent.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Until a message comes that has no end.
fn dance(road: &Channel, roads: &[Channel], parent: &Channel, mut random: Random) {
    loop {
        let mut message = road.recv().unwrap();
        let Some(channel) = ends_of(&mut message).pop() else { return };
        let mut end = Traveller { book: Book::decode(message.bytes()), channel };
        // Those of an odd number have small messages only.
        let sizes = if end.book.id % 2 == 1 { TINY } else { Sizes { large: 300_000, ..MIXED } };
        for _ in 0..random.below(4) {
            let patience = Duration::from_micros(random.below(300));
            match end.receive(&mut random, patience) {
                Ok(_) | Err(Error::TimedOut | Error::WouldBlock) => {}
                Err(error) => panic!("receiving: {error} {:?}", end.book),
            }
        }
        for _ in 0..random.below(4) {
            let patience = Duration::from_micros(random.below(300));
            match end.send(Vec::new(), &mut random, sizes, patience, &NoLedger) {
                Ok(()) | Err((Error::TimedOut | Error::WouldBlock, _)) => {}
                Err((error, _)) => panic!("sending: {error} {:?}", end.book),
            }
        }
        let next = if end.book.hops == 0 { parent } else { &roads[random.below(roads.len() as u64) as usize] };
        end.book.hops = end.book.hops.saturating_sub(1);
        if let Err(failed) = next.send_by(Outgoing::new(&end.book.encode()).handle(end.channel), DEADLINE) {
            panic!("moving: {} {:?}", failed.error, end.book);
        }
    }
}

/// So many processes, each with a road to each other.
fn mesh(role: &str, count: usize, seed: u64) -> Vec<(Actor, Channel)> {
    let actors: Vec<_> =
        (0..count).map(|n| spawn_with(role, &(seed ^ (n as u64) << 48).to_string(), &Options::new())).collect();
    let mut roads: Vec<Vec<Handle>> = (0..count).map(|_| Vec::new()).collect();
    for one in 0..count {
        for other in one + 1..count {
            let (a, b) = Channel::pair().unwrap();
            roads[one].push(a.into());
            roads[other].push(b.into());
        }
    }
    for ((_, channel), roads) in actors.iter().zip(roads) {
        channel.send_by(Outgoing::new(b"roads").handles(roads), DEADLINE).unwrap();
    }
    actors
}

fn both_ends_dance(processes: usize, channels: u64, hops: u64, options: &Options) {
    let seed = seed();
    let mut random = Random(seed);
    let actors = mesh("dancer", processes, seed);
    for id in 0..channels {
        for mut end in travellers(id, 0, Channel::pair_with(options).unwrap()) {
            end.book.hops = hops;
            let (_, to) = &actors[random.below(processes as u64) as usize];
            to.send_by(Outgoing::new(&end.book.encode()).handle(end.channel), DEADLINE).unwrap();
        }
    }
    // They come back to whoever they met last.
    let (queue, back) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for (_, channel) in &actors {
            let queue = queue.clone();
            scope.spawn(move || {
                loop {
                    let mut message = channel.recv_by(DEADLINE).expect("ends that come back");
                    match ends_of(&mut message).pop() {
                        Some(channel) => {
                            queue.send(Traveller { book: Book::decode(message.bytes()), channel }).unwrap();
                        }
                        None => {
                            let descriptors = u64::from_le_bytes(message.bytes().try_into().unwrap());
                            eprintln!("{descriptors} descriptors");
                            return;
                        }
                    }
                }
            });
        }
        let mut first: HashMap<u64, Traveller> = HashMap::new();
        for _ in 0..2 * channels {
            let end = back.recv_timeout(DEADLINE).expect("an end that comes back");
            match first.remove(&end.book.id) {
                Some(other) => balance(end, other, &mut random, DEADLINE),
                None => drop(first.insert(end.book.id, end)),
            }
        }
        for (_, channel) in &actors {
            channel.send(b"over").unwrap();
        }
    });
    for (actor, channel) in actors {
        drop(channel);
        finish(actor);
    }
}

#[test]
fn both_ends_move_between_two_processes() {
    both_ends_dance(2, 4, times(200), &Options::new());
}

#[test]
fn both_ends_move_between_three_processes() {
    both_ends_dance(3, 6, times(100), &Options::new());
}

#[test]
fn both_ends_move_between_five_processes_with_small_rings_that_sleep() {
    both_ends_dance(5, 10, times(50), &Options::new().ring(256).ring_max(1024).wait(Wait::Block));
}

#[test]
fn both_ends_move_with_few_messages_under_way() {
    both_ends_dance(3, 6, times(50), &Options::new().queue_messages(4));
}
