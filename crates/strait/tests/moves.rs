//! Tests of ends that move: while the other end is in use, while the other end moves too, and while one of the
//! processes dies.

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::travel::{Book, MIXED, NoLedger, Random, Sizes, TINY, Traveller, balance, travellers};
use common::{Actor, finish, parent, play, spawn, spawn_with};
use rustix::process::{Pid, Signal};
use strait::{Channel, Error, Handle, Options, Outgoing, Wait};

/// The time after which a wait of a test fails; long enough for a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// The time to wait for an event that may not come.
const A_WHILE: Duration = Duration::from_millis(100);

#[test]
fn child() {
    play(&[
        ("dancer", dancer),
        ("bouncer", bouncer),
        ("wall", wall),
        ("hoarder", hoarder),
        ("returner", |_| returner()),
        ("introducer", |_| introducer()),
        ("partner", |_| partner()),
        ("late", |_| late()),
        ("never", |_| never()),
        ("keeper", |_| keeper()),
    ]);
}

/// Returns the seed of the run: `STRAIT_MOVES_SEED` if set, otherwise a new seed. Prints the seed.
fn seed() -> u64 {
    let seed = std::env::var("STRAIT_MOVES_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed = seed.unwrap_or_else(|| {
        u64::from(std::process::id()) << 32 | u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos())
    });
    eprintln!("STRAIT_MOVES_SEED={seed}");
    seed
}

/// Makes a panic of any thread end the process, so that no other process waits for the thread.
fn die_of_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::exit(101);
    }));
}

/// Returns `count` times the factor in `STRAIT_MOVES_TIMES`, by default 1.
fn times(count: u64) -> u64 {
    let factor = std::env::var("STRAIT_MOVES_TIMES").map_or(1, |times| times.parse().expect("a number"));
    count * factor
}

fn ends_of(message: &mut strait::Message) -> Vec<Channel> {
    message.take_handles().unwrap().into_iter().filter_map(Handle::into_channel).collect()
}

// Both ends of many channels move through several processes at once.

/// Sends each received end on to a random process, after a few messages in both directions. After its last move an end
/// goes to the parent.
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

/// Receives ends over `road`, uses each and sends it on, until a message without an end arrives.
fn dance(road: &Channel, roads: &[Channel], parent: &Channel, mut random: Random) {
    loop {
        let mut message = road.recv().unwrap();
        let Some(channel) = ends_of(&mut message).pop() else { return };
        let mut end = Traveller { book: Book::decode(message.bytes()), channel };
        // Channels of odd number have small messages only.
        let sizes = if end.book.id % 2 == 1 { TINY } else { Sizes { large: 300_000, ..MIXED } };
        // Mostly receives more messages than it sends, so that backlogs stay small.
        for _ in 0..random.below(20) {
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

/// Starts `count` processes with the role `role`, and a channel between each two.
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
        for mut end in travellers(id, 0, options.pair().unwrap()) {
            end.book.hops = hops;
            let (_, to) = &actors[random.below(processes as u64) as usize];
            to.send_by(Outgoing::new(&end.book.encode()).handle(end.channel), DEADLINE).unwrap();
        }
    }
    // An end comes back from the last process.
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

// One of the processes dies, or is stopped, in the middle of a move.

/// Sends an end over a channel and receives it back, again and again, until the parent sends a message.
fn bouncer(_: &str) {
    die_of_panics();
    let parent = parent();
    parent.send(b"ready").unwrap();
    let mut ends = ends_of(&mut parent.recv_by(DEADLINE).unwrap());
    let (road, mut end) = (ends.remove(0), ends.remove(0));
    loop {
        match parent.try_recv() {
            Err(Error::WouldBlock) => {}
            _ => break,
        }
        if let Err(failed) = road.send_by(Outgoing::new(b"").handle(end), DEADLINE) {
            end = failed.handles.into_iter().next().unwrap().into_channel().unwrap();
            break;
        }
        match road.recv_by(DEADLINE) {
            Ok(mut message) => end = ends_of(&mut message).remove(0),
            Err(error) => {
                assert_eq!(error, Error::PeerClosed);
                return;
            }
        }
    }
    let _ = parent.send_by(Outgoing::new(b"enough").handle(end), DEADLINE);
    let _ = parent.recv_by(DEADLINE);
}

/// For each received channel: sends back each end that arrives, as often as ordered, and then keeps the end. Then
/// reports "here" and echoes on the end, or "gone" if the channel was closed before.
fn wall(_: &str) {
    die_of_panics();
    let parent = parent();
    while let Ok(mut message) = parent.recv() {
        let road = ends_of(&mut message).remove(0);
        let mut throws = u64::from_le_bytes(message.bytes().try_into().unwrap());
        parent.send(b"ready").unwrap();
        let end = loop {
            let end = match road.recv_by(DEADLINE) {
                Ok(mut message) => ends_of(&mut message).remove(0),
                Err(Error::PeerClosed) => break None,
                Err(error) => panic!("{error}"),
            };
            if throws == 0 {
                break Some(end);
            }
            throws -= 1;
            if let Err(failed) = road.send_by(Outgoing::new(b"").handle(end), DEADLINE) {
                assert_eq!(failed.error, Error::PeerClosed);
                break Some(failed.handles.into_iter().next().unwrap().into_channel().unwrap());
            }
        };
        parent.send(if end.is_some() { b"here" } else { b"gone" }).unwrap();
        if let Some(end) = end {
            common::echo(&end);
        }
    }
}

/// Sends each end back to the sender.
fn returner() {
    die_of_panics();
    let parent = parent();
    parent.send(b"ready").unwrap();
    while let Ok(mut message) = parent.recv() {
        let handles = message.take_handles().unwrap();
        if let Err(failed) = parent.send_by(Outgoing::new(message.bytes()).handles(handles), DEADLINE) {
            // The assertion shows why the end is not sent back; the parent would only time out.
            assert_eq!(failed.error, Error::PeerClosed, "sending back");
        }
    }
}

fn expect(channel: &Channel, what: &[u8]) {
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), what);
}

/// Spins for `time`.
fn spend(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Returns a random time of up to three milliseconds, often much less.
fn moment(random: &mut Random) -> Duration {
    Duration::from_nanos(random.below(3_000_000) >> random.below(8))
}

/// Shows that after the death of a process that moves an end, at a random moment, the channel either works or is
/// closed.
#[test]
fn a_mover_that_is_killed_leaves_a_channel_that_works_or_is_closed() {
    let mut random = Random(seed());
    let (wall_actor, wall) = spawn("wall");
    let mut outcomes = [0; 2];
    for round in 0..times(60) {
        let throws = random.below(100).saturating_sub(50) * random.below(10);
        let (mut mover, to_mover) = spawn("bouncer");
        let (mine, theirs) = Channel::pair().unwrap();
        let (road, other) = Channel::pair().unwrap();
        let unread = random.below(30) as u32;
        for n in 0..unread {
            mine.send(&n.to_le_bytes()).unwrap();
        }
        wall.send(Outgoing::new(&throws.to_le_bytes()).handle(other)).unwrap();
        expect(&wall, b"ready");
        expect(&to_mover, b"ready");
        to_mover.send(Outgoing::new(b"go").handle(road).handle(theirs)).unwrap();
        spend(Duration::from_nanos(random.below(60_000 * (throws + 10))));
        mover.kill();
        let _ = mine.try_send(&unread.to_le_bytes());
        let here = wall.recv_by(DEADLINE).unwrap().into_bytes() == b"here";
        outcomes[usize::from(here)] += 1;
        let heard = (0..=unread).map(|n| {
            let heard = mine.recv_by(DEADLINE)?;
            assert_eq!(heard.bytes(), n.to_le_bytes());
            Ok(())
        });
        let heard: Result<Vec<()>, Error> = heard.collect();
        assert_eq!(heard.err(), (!here).then_some(Error::PeerClosed), "round {round}, the end is here: {here}");
        if !here {
            assert!(mine.is_peer_closed());
            assert_eq!(mine.send(b"").unwrap_err().error, Error::PeerClosed);
        }
    }
    eprintln!("gone {}, here {}", outcomes[0], outcomes[1]);
    drop(wall);
    finish(wall_actor);
}

/// Shows that an end sent to a dying process is returned unchanged or closed.
#[test]
fn an_end_sent_to_a_process_that_is_killed_comes_back_or_is_closed() {
    let mut random = Random(seed());
    let mut outcomes = [0; 3];
    for _ in 0..times(60) {
        let (mut actor, peer) = spawn("returner");
        expect(&peer, b"ready");
        let (mine, mut theirs) = Channel::pair().unwrap();
        let patience = moment(&mut random);
        let killer = std::thread::spawn(move || {
            spend(patience);
            actor.kill();
        });
        let mut sent = 0u64;
        let back = loop {
            mine.send(&sent.to_le_bytes()).unwrap();
            sent += 1;
            match peer.send_by(Outgoing::new(b"").handle(theirs), DEADLINE) {
                Ok(()) => match peer.recv_by(DEADLINE) {
                    Ok(mut message) => theirs = ends_of(&mut message).remove(0),
                    Err(error) => {
                        assert_eq!(error, Error::PeerClosed);
                        outcomes[0] += 1;
                        break None;
                    }
                },
                Err(failed) => {
                    assert_eq!(failed.error, Error::PeerClosed);
                    outcomes[1] += 1;
                    break Some(failed.handles.into_iter().next().unwrap().into_channel().unwrap());
                }
            }
        };
        killer.join().unwrap();
        match back {
            None => assert_eq!(mine.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed),
            Some(theirs) => {
                for n in 0..sent {
                    assert_eq!(theirs.recv_by(DEADLINE).unwrap().bytes(), n.to_le_bytes());
                }
                theirs.send(b"alive").unwrap();
                expect(&mine, b"alive");
            }
        }
    }
    eprintln!("{outcomes:?}");
}

/// Shows that no call on the other end blocks while the process that moves an end is stopped, and that the move
/// completes later.
#[test]
fn a_mover_that_is_stopped_blocks_nobody_and_goes_on() {
    let mut random = Random(seed());
    let (wall_actor, wall) = spawn("wall");
    let (mover, to_mover) = spawn("bouncer");
    let (server, to_server) = spawn("returner");
    expect(&to_server, b"ready");
    let (mine, theirs) = Channel::pair().unwrap();
    let (road, other) = Channel::pair().unwrap();
    wall.send(Outgoing::new(&u64::MAX.to_le_bytes()).handle(other)).unwrap();
    expect(&wall, b"ready");
    expect(&to_mover, b"ready");
    to_mover.send(Outgoing::new(b"go").handle(road).handle(theirs)).unwrap();
    let pid = Pid::from_raw(mover.pid() as i32).unwrap();
    let mut sent = 0u64;
    let mut mine = mine;
    let mut journeys = 0;
    for _ in 0..times(100) {
        spend(moment(&mut random));
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        for _ in 0..random.below(5) {
            // The call returns at once, whatever state the move is in.
            match mine.try_send(&sent.to_le_bytes()) {
                Ok(()) => sent += 1,
                Err(failed) => assert_eq!(failed.error, Error::WouldBlock),
            }
        }
        assert_eq!(mine.recv_by(Duration::from_millis(1)).unwrap_err(), Error::TimedOut);
        assert_eq!(mine.try_recv().unwrap_err(), Error::WouldBlock);
        assert!(!mine.is_peer_closed());
        // This end moves meanwhile, or is returned at the deadline.
        match to_server.send_by(Outgoing::new(b"").handle(mine), Duration::from_millis(1)) {
            Ok(()) => {
                // The process that sends this end back may find the other end in transit, and then waits for the
                // stopped process. That happens if the stop signal arrives later than the end, in the middle of the
                // next move.
                let back = match to_server.recv_by(A_WHILE) {
                    Err(Error::TimedOut) => {
                        rustix::process::kill_process(pid, Signal::CONT).unwrap();
                        to_server.recv_by(DEADLINE)
                    }
                    back => {
                        journeys += 1;
                        back
                    }
                };
                mine = ends_of(&mut back.unwrap()).remove(0);
            }
            Err(failed) => {
                assert_eq!(failed.error, Error::TimedOut);
                mine = failed.handles.into_iter().next().unwrap().into_channel().unwrap();
            }
        }
        rustix::process::kill_process(pid, Signal::CONT).unwrap();
    }
    eprintln!("{journeys} journeys beside one that is stopped");
    to_mover.send(b"enough").unwrap();
    let theirs = ends_of(&mut to_mover.recv_by(DEADLINE).unwrap()).remove(0);
    for n in 0..sent {
        assert_eq!(theirs.recv_by(DEADLINE).unwrap().bytes(), n.to_le_bytes());
    }
    theirs.send(b"alive").unwrap();
    expect(&mine, b"alive");
    drop((to_mover, to_server));
    finish(mover);
    finish(server);
    expect(&wall, b"gone");
    drop(wall);
    finish(wall_actor);
}

// The holder of the other end, for an end not used since the move.

/// Receives an end and reports the receipt; sends the end back on request.
fn keeper() {
    die_of_panics();
    let parent = parent();
    let mut message = parent.recv_by(DEADLINE).unwrap();
    parent.send(b"has it").unwrap();
    expect(&parent, b"back");
    let handles = message.take_handles().unwrap();
    parent.send_by(Outgoing::new(b"").handles(handles), DEADLINE).unwrap();
    let _ = parent.recv();
}

#[test]
fn an_idle_end_knows_at_once_which_process_has_the_other() {
    let (one, to_one) = spawn("keeper");
    let (other, to_other) = spawn("keeper");
    let peer_of = |end: &Channel| end.peer().unwrap().unwrap().pid.unwrap();
    let me = std::process::id();
    let (end, mut theirs) = Channel::pair().unwrap();
    // Unreceived messages come before the mark of the move in the ring.
    theirs.send(b"unread").unwrap();
    assert_eq!((peer_of(&end), end.peer_usage().unwrap()), (me, None));
    for (actor, to) in [(&one, &to_one), (&other, &to_other)] {
        common::wait_until("the process opened its side", || to.peer().unwrap().is_some());
        to.send(Outgoing::new(b"").handle(theirs)).unwrap();
        assert_eq!(peer_of(&end), actor.pid());
        assert!(end.peer_usage().unwrap().is_some());
        let pidfd = end.peer_pidfd().unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", std::os::fd::AsRawFd::as_raw_fd(&pidfd)));
        assert!(info.unwrap().contains(&format!("Pid:\t{}\n", actor.pid())));
        expect(to, b"has it");
        to.send(b"back").unwrap();
        theirs = ends_of(&mut to.recv_by(DEADLINE).unwrap()).remove(0);
        assert_eq!(peer_of(&end), me);
    }
    // Another thread receives on the end while the other end, in this process, sends.
    expect(&end, b"unread");
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| end.recv_by(DEADLINE).unwrap());
        theirs.send(b"unread").unwrap();
        receiving.join().unwrap();
    });
    // The report closes no link, because both ends of the channel are in this process.
    assert_eq!(end.report_bad("of no use"), strait::quota::Reported::Within);
    drop((to_one, to_other));
    finish(one);
    finish(other);
}

/// Shows that an idle end, whose other end was sent to a process, reports the user, the death and the bad behaviour of
/// that process, and not of this process, which had the other end before.
#[test]
fn an_idle_end_speaks_of_the_process_that_has_the_other() {
    let start = || {
        let mut command = common::command("keeper", "");
        if rustix::process::geteuid().is_root() {
            std::os::unix::process::CommandExt::gid(
                std::os::unix::process::CommandExt::uid(&mut command, 54_323),
                54_323,
            );
        }
        let (child, to) = strait::CommandExt::spawn_with_channel(&mut command).unwrap();
        (common::Actor(child), to)
    };
    let (mut actor, to) = start();
    let user = if rustix::process::geteuid().is_root() { 54_323 } else { rustix::process::getuid().as_raw() };
    common::wait_until("the process opened its side", || to.peer().unwrap().is_some());
    let (end, theirs) = Channel::pair().unwrap();
    to.send(Outgoing::new(b"").handle(theirs)).unwrap();
    let peer = end.peer().unwrap().unwrap();
    assert_eq!((peer.pid, peer.uid, peer.gid, peer.is_alive), (Some(actor.pid()), user, user, true));
    expect(&to, b"has it");
    let pidfd = end.peer_pidfd().unwrap();
    actor.kill();
    let mut dead = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut dead, None), Ok(1));
    // The end was not used since the other end was sent, and knows of the death without a receive.
    for _ in 0..2 {
        let peer = end.peer().unwrap().unwrap();
        assert_eq!((peer.pid, peer.uid, peer.gid, peer.is_alive), (Some(actor.pid()), user, user, false));
        assert_eq!(end.peer_pidfd().unwrap_err(), Error::PeerClosed);
        assert_eq!(end.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    }

    let (actor, to) = start();
    common::wait_until("the process opened its side", || to.peer().unwrap().is_some());
    let (end, theirs) = Channel::pair().unwrap();
    to.send(Outgoing::new(b"").handle(theirs)).unwrap();
    // The report ends the link to the process that has the other end, and with it every channel over the link.
    assert_eq!(end.report_bad("of no use"), strait::quota::Reported::Closed);
    for end in [end, to] {
        let ended = std::iter::repeat_with(|| end.recv_by(DEADLINE)).find_map(Result::err);
        assert_eq!(ended, Some(Error::BadPeer("of no use")));
    }
    drop(actor);
}

// The actions of an end while its other end moves.

/// Runs `other` on an end while its other end moves `journeys` times to another process and back. `at_home` runs with
/// the moving end whenever that end is in this process. Returns the result of `other`, and the moving end.
fn while_the_other_end_moves<T: Send>(
    options: &Options,
    journeys: u64,
    other: impl FnOnce(&Channel) -> T + Send,
    mut at_home: impl FnMut(&Channel),
) -> (T, Channel) {
    let (actor, peer) = spawn("returner");
    expect(&peer, b"ready");
    let (mine, mut theirs) = options.pair().unwrap();
    let outcome = std::thread::scope(|scope| {
        let other = scope.spawn(|| other(&mine));
        for _ in 0..journeys {
            let away = std::mem::replace(&mut theirs, Channel::pair().unwrap().0);
            peer.send_by(Outgoing::new(b"").handle(away), DEADLINE).unwrap();
            theirs = ends_of(&mut peer.recv_by(DEADLINE).unwrap()).remove(0);
            at_home(&theirs);
        }
        while !other.is_finished() {
            at_home(&theirs);
        }
        at_home(&theirs);
        other.join().unwrap()
    });
    drop(peer);
    finish(actor);
    (outcome, theirs)
}

const WAITS: [Wait; 3] = [Wait::Spin, Wait::Adaptive, Wait::Block];

/// Receives all queued messages, and asserts that they are numbered from `next` on.
fn take_numbered(end: &Channel, next: &mut u64) {
    loop {
        match end.try_recv() {
            Ok(message) => {
                assert_eq!(&message.bytes()[..8], next.to_le_bytes());
                *next += 1;
            }
            Err(error) => return assert_eq!(error, Error::WouldBlock),
        }
    }
}

#[test]
fn a_writer_at_full_speed_loses_nothing_while_the_other_end_moves() {
    for wait in WAITS {
        for options in [Options::new(), Options::new().ring(256).ring_max(512), Options::new().queue_messages(4)] {
            let count = times(2000);
            let mut next = 0;
            while_the_other_end_moves(
                &options.wait(wait),
                times(100),
                |mine| (0..count).for_each(|n| mine.send_by(&n.to_le_bytes(), DEADLINE).unwrap()),
                |theirs| take_numbered(theirs, &mut next),
            );
            assert_eq!(next, count);
        }
    }
}

/// Returns how many small messages an end can send while its other end receives none.
fn room_at(end: &Channel) -> u64 {
    let mut sent = 0u64;
    loop {
        match end.try_send(&sent.to_le_bytes()) {
            Ok(()) => sent += 1,
            Err(failed) => {
                assert_eq!(failed.error, Error::WouldBlock);
                return sent;
            }
        }
    }
}

/// Shows that an end whose other end has moved can send at least as many messages as an end whose other end never
/// moved.
#[test]
fn an_end_that_moved_often_takes_as_many_messages_as_one_that_never_did() {
    let (actor, peer) = spawn("returner");
    expect(&peer, b"ready");
    let journey = |end: Channel| {
        peer.send_by(Outgoing::new(b"").handle(end), DEADLINE).unwrap();
        ends_of(&mut peer.recv_by(DEADLINE).unwrap()).remove(0)
    };
    let rooms: Vec<_> = (0..5)
        .map(|journeys| {
            let (mine, theirs) = Channel::pair().unwrap();
            mine.send(b"first").unwrap();
            let theirs = (0..journeys).fold(theirs, |theirs, _| journey(theirs));
            let room = room_at(&mine);
            // Once the holder has received all of them, there is room for a ring of messages again.
            expect(&theirs, b"first");
            (0..room).for_each(|n| expect(&theirs, &n.to_le_bytes()));
            assert!(2 * room_at(&mine) >= room, "after {journeys} journeys");
            room
        })
        .collect();
    // If the end did not move, the first message occupies room in the ring.
    assert!(rooms[0] > 1000 && rooms.iter().all(|room| *room >= rooms[0]), "room by moves: {rooms:?}");
    drop(peer);
    finish(actor);
}

/// Shows that the unreceived messages of an end that moves again and again do not grow without bound.
#[test]
fn an_end_that_nobody_receives_from_takes_along_no_more_than_two_rings() {
    let (actor, peer) = spawn("returner");
    expect(&peer, b"ready");
    let options = Options::new().ring_max(4096);
    let (mine, mut theirs) = options.pair().unwrap();
    let mut rooms = Vec::new();
    for _ in 0..20 {
        rooms.push(room_at(&mine));
        peer.send_by(Outgoing::new(b"").handle(theirs), DEADLINE).unwrap();
        theirs = ends_of(&mut peer.recv_by(DEADLINE).unwrap()).remove(0);
    }
    let most = *rooms.iter().max().unwrap();
    assert!(rooms[10..].iter().all(|room| *room < most / 4), "{rooms:?}");
    assert_eq!(theirs.status().unwrap().messages, rooms.iter().sum::<u64>());
    drop(peer);
    finish(actor);
}

#[test]
fn rows_and_large_messages_lose_nothing_while_the_other_end_moves() {
    let mut next = 0;
    let count = times(1200);
    let send = |mine: &Channel| {
        let mut n = 0u64;
        while n < count {
            match n % 4 {
                0 => {
                    let row: Vec<_> = (n..n + 9).map(u64::to_le_bytes).collect();
                    assert_eq!(mine.send_many(&row, DEADLINE).unwrap(), 9);
                    n += 8;
                }
                1 => {
                    let mut room = mine.reserve(200_000, DEADLINE).unwrap();
                    room.write_at(&n.to_le_bytes(), 0);
                    room.commit().unwrap();
                }
                2 => {
                    let mut room = mine.reserve(100, DEADLINE).unwrap();
                    room.write_at(&n.to_le_bytes(), 0);
                    room.commit().unwrap();
                }
                _ => {
                    let mut room = mine.reserve_sealed(5000).unwrap();
                    room.bytes()[..8].copy_from_slice(&n.to_le_bytes());
                    room.commit(DEADLINE).unwrap();
                }
            }
            n += 1;
        }
        n
    };
    let options = Options::new().queue_bytes(1 << 20);
    let (sent, _) = while_the_other_end_moves(&options, times(200), send, |theirs| take_numbered(theirs, &mut next));
    assert_eq!(next, sent);
}

/// Shows that a receiver gets messages from each process to which the other end moves, asleep or spinning.
#[test]
fn a_receiver_that_sleeps_or_spins_hears_whoever_the_other_end_went_to() {
    for wait in WAITS {
        let mut n = 0u64;
        let mut asleep = 0;
        let options = Options::new().wait(wait);
        let count = times(40);
        while_the_other_end_moves(
            &options,
            count,
            |mine| {
                for n in 0..count {
                    assert_eq!(mine.recv_by(DEADLINE).unwrap().bytes(), n.to_le_bytes());
                }
            },
            |theirs| {
                // The pause is long enough, at times, for the other thread to sleep on its socket.
                asleep += 1;
                if asleep % 10 == 0 {
                    std::thread::sleep(Duration::from_millis(30));
                }
                if n < count {
                    theirs.send(&n.to_le_bytes()).unwrap();
                    n += 1;
                }
            },
        );
    }
}

#[test]
fn a_view_and_a_reservation_that_are_held_outlast_a_move_of_the_other_end() {
    for len in [40, 3000, 300_000] {
        let (actor, peer) = spawn("returner");
        expect(&peer, b"ready");
        let (mine, theirs) = Channel::pair().unwrap();
        let bytes = common::pattern(len as u64, len);
        theirs.send(&bytes).unwrap();
        let mut view = mine.recv_in_place(DEADLINE).unwrap();
        let mut room = mine.reserve(len, DEADLINE).unwrap();
        room.write_at(&bytes[..len / 2], 0);
        peer.send_by(Outgoing::new(b"").handle(theirs), DEADLINE).unwrap();
        room.write_at(&bytes[len / 2..], len / 2);
        let theirs = ends_of(&mut peer.recv_by(DEADLINE).unwrap()).remove(0);
        let mut seen = vec![0; len];
        view.read_at(&mut seen, 0);
        assert!(seen == bytes, "the view changed during the move");
        room.commit().unwrap();
        drop(view);
        assert!(theirs.recv_by(DEADLINE).unwrap().bytes() == bytes, "a reserved message changed");
        theirs.send(b"alive").unwrap();
        expect(&mine, b"alive");
        drop(peer);
        finish(actor);
    }
}

/// Shows that a message can carry 64 ends with large unreceived messages.
#[test]
fn sixty_four_ends_with_large_unread_messages_go_in_one() {
    let (actor, peer) = spawn("returner");
    expect(&peer, b"ready");
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for n in 0..64u64 {
        let (one, other) = Channel::pair().unwrap();
        one.send(Outgoing::new(&n.to_le_bytes()).handle(common::file_with(&n.to_le_bytes()))).unwrap();
        one.send(&common::pattern(n, 2000 * n as usize)).unwrap();
        mine.push(one);
        theirs.push(Handle::from(other));
    }
    for large in [0, 500_000] {
        let bytes = common::pattern(7, large);
        peer.send_by(Outgoing::new(&bytes).handles(theirs), DEADLINE).unwrap();
        // A receive into a buffer that is too small leaves the message and its ends in the channel.
        if large > 0 {
            let mut small = [0; 100];
            let refused = loop {
                match peer.recv_into(&mut small, DEADLINE) {
                    Err(Error::WouldBlock) => {}
                    other => break other.unwrap_err(),
                }
            };
            assert_eq!(refused, Error::BufferTooSmall { needed: large });
        }
        let mut message = peer.recv_by(DEADLINE).unwrap();
        assert!(message.bytes() == bytes);
        theirs = message.take_handles().unwrap();
        assert_eq!(theirs.len(), 64);
    }
    for (n, (one, other)) in mine.into_iter().zip(theirs).enumerate() {
        let other = other.into_channel().unwrap();
        let mut message = other.recv_by(DEADLINE).unwrap();
        assert_eq!(message.bytes(), (n as u64).to_le_bytes());
        let file = message.take_handles().unwrap().remove(0);
        assert_eq!(common::content_of(file), (n as u64).to_le_bytes());
        assert!(other.recv_by(DEADLINE).unwrap().bytes() == common::pattern(n as u64, 2000 * n));
        other.send(b"alive").unwrap();
        expect(&one, b"alive");
    }
    drop(peer);
    finish(actor);
}

/// Receives nothing before it is told to; then sends all ends back.
fn hoarder(_: &str) {
    die_of_panics();
    let parent = common::parent_over_any(&Options::new());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    while let Ok(mut message) = parent.recv() {
        let handles = message.take_handles().unwrap();
        if parent.send_by(Outgoing::new(message.bytes()).handles(handles), DEADLINE).is_err() {
            return;
        }
    }
}

/// Shows that an end which cannot be sent because the socket is full is returned unchanged, and can be sent later.
#[test]
fn an_end_for_which_the_socket_has_no_room_comes_back_whole_and_goes_later() {
    let (mut actor, peer) = common::spawn_over_socket("hoarder", "", &Options::new());
    common::wait_until("the peer opened its side", || peer.peer().unwrap().is_some());
    let mut others = Vec::new();
    let (its_other, theirs) = loop {
        let (mine, theirs) = Channel::pair().unwrap();
        mine.send(b"unread").unwrap();
        // Each end is sent with a descriptor, and the socket has room for only a few of these.
        match peer.try_send(Outgoing::new(b"one").handle(common::file_with(b"file")).handle(theirs)) {
            Ok(()) => others.push(mine),
            Err(failed) => {
                assert_eq!(failed.error, Error::WouldBlock);
                let mut handles = failed.handles.into_iter();
                assert_eq!(common::content_of(handles.next().unwrap()), b"file");
                break (mine, handles.next().unwrap().into_channel().unwrap());
            }
        }
        assert!(others.len() < 200, "the socket is never full");
    };
    expect(&theirs, b"unread");
    let begin = Instant::now();
    let timed_out =
        peer.send_by(Outgoing::new(b"").handle(common::file_with(b"")).handle(theirs), Duration::from_millis(50));
    let failed = timed_out.unwrap_err();
    assert_eq!(failed.error, Error::TimedOut);
    assert!(begin.elapsed() < DEADLINE);
    let theirs = failed.handles.into_iter().nth(1).unwrap().into_channel().unwrap();
    its_other.send(b"more").unwrap();
    expect(&theirs, b"more");
    // A blocking send succeeds once the peer receives.
    drop(actor.0.stdin.take());
    peer.send_by(Outgoing::new(b"last").handle(theirs), DEADLINE).unwrap();
    loop {
        let mut message = peer.recv_by(DEADLINE).unwrap();
        let ends = ends_of(&mut message);
        if message.bytes() == b"last" {
            its_other.send(b"through").unwrap();
            expect(&ends[0], b"through");
            break;
        }
    }
    drop(peer);
    finish(actor);
}

// A third process introduces two others to each other, and then receives one of the ends in transit between the two.

/// Gives each of two processes an end of a new channel. If the process then receives an end, it sends and receives on
/// the end after all other connections to the sender are closed.
fn introducer() {
    die_of_panics();
    let parent = parent();
    let [to_one, to_other]: [Channel; 2] =
        ends_of(&mut parent.recv_by(DEADLINE).unwrap()).try_into().expect("two channels");
    let (one, other) = Channel::pair().unwrap();
    to_one.send_by(Outgoing::new(b"").handle(one), DEADLINE).unwrap();
    to_other.send_by(Outgoing::new(b"").handle(other), DEADLINE).unwrap();
    let end = parent.recv_by(DEADLINE).map(|mut message| ends_of(&mut message).remove(0));
    drop((to_one, to_other));
    let Ok(end) = end else { return };
    assert_eq!(parent.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    drop(parent);
    for count in 0..20u8 {
        end.send_by(&[count], DEADLINE).unwrap();
    }
    expect(&end, b"the last");
}

/// Sends both ends of a channel to the introduced process.
fn partner() {
    die_of_panics();
    let parent = parent();
    let road = ends_of(&mut parent.recv_by(DEADLINE).unwrap()).remove(0);
    let channel = ends_of(&mut road.recv_by(DEADLINE).unwrap()).remove(0);
    // From here on the introducer has no part in this channel, at the other end either.
    channel.rehome(DEADLINE).unwrap();
    let (one, other) = Channel::pair().unwrap();
    channel.send_by(Outgoing::new(b"").handle(one), DEADLINE).unwrap();
    channel.send_by(Outgoing::new(b"").handle(other), DEADLINE).unwrap();
    parent.send(b"both are under way").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(parent.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Two other processes, with a channel to each.
struct Introduced {
    introducer: Actor,
    to_introducer: Channel,
    partner: Actor,
    to_partner: Channel,
    /// The channel to the partner, made by the introducer. Both ends of another channel arrive over it.
    channel: Channel,
}

impl Introduced {
    fn new() -> Self {
        let (introducer, to_introducer) = spawn("introducer");
        let (partner, to_partner) = spawn("partner");
        let roads = [Channel::pair().unwrap(), Channel::pair().unwrap()];
        let [(mine, for_me), (theirs, for_them)] = roads;
        to_introducer.send_by(Outgoing::new(b"").handle(for_me).handle(for_them), DEADLINE).unwrap();
        to_partner.send_by(Outgoing::new(b"").handle(theirs), DEADLINE).unwrap();
        let channel = ends_of(&mut mine.recv_by(DEADLINE).unwrap()).remove(0);
        expect(&to_partner, b"both are under way");
        Self { introducer, to_introducer, partner, to_partner, channel }
    }
}

/// Shows that a late received end reaches its other end, which moved to another process in the meantime.
#[test]
fn an_end_that_is_received_late_finds_the_other_where_it_went_meanwhile() {
    common::alone("late", "");
}

fn late() {
    die_of_panics();
    drop(Channel::pair().unwrap());
    let before = common::descriptors();
    let Introduced { introducer, to_introducer, partner, to_partner, channel } = Introduced::new();
    let one = ends_of(&mut channel.recv_by(DEADLINE).unwrap()).remove(0);
    one.send_by(b"on the way", DEADLINE).unwrap();
    to_introducer.send_by(Outgoing::new(b"").handle(one), DEADLINE).unwrap();
    // Drops the only channel to the introducer.
    drop(to_introducer);
    let other = ends_of(&mut channel.recv_by(DEADLINE).unwrap()).remove(0);
    expect(&other, b"on the way");
    for count in 0..20u8 {
        expect(&other, &[count]);
    }
    other.send_by(b"the last", DEADLINE).unwrap();
    finish(introducer);
    drop((other, channel, to_partner));
    finish(partner);
    // The socket of an introduction is closed by a thread.
    common::wait_until("everything is closed", || common::descriptors() == before);
}

/// Shows that an end that is never received is closed for its other end, with the ends in its messages, and leaves no
/// descriptors open.
#[test]
fn an_end_that_is_never_received_leaves_nothing_behind_and_is_closed_where_the_other_is() {
    common::alone("never", "");
}

fn never() {
    die_of_panics();
    drop(Channel::pair().unwrap());
    let before = common::descriptors();
    let Introduced { introducer, to_introducer, partner, to_partner, channel } = Introduced::new();
    let one = ends_of(&mut channel.recv_by(DEADLINE).unwrap()).remove(0);
    // The end in transit also has unreceived messages that carry an end.
    let (rider, its_other_end) = Channel::pair().unwrap();
    one.send_by(Outgoing::new(b"on the way").handle(rider), DEADLINE).unwrap();
    one.rehome(DEADLINE).unwrap();
    let (returner, to_returner) = spawn("returner");
    expect(&to_returner, b"ready");
    for end in [one, its_other_end] {
        to_returner.send_by(Outgoing::new(b"").handle(end), DEADLINE).unwrap();
    }
    let [one, its_other_end] = [(); 2].map(|()| ends_of(&mut to_returner.recv_by(DEADLINE).unwrap()).remove(0));
    drop((channel, to_introducer, to_partner));
    finish(partner);
    finish(introducer);
    assert_eq!(one.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(its_other_end.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    drop((one, its_other_end, to_returner));
    finish(returner);
    common::wait_until("everything is closed", || common::descriptors() == before);
}
