//! Tests of many threads on one end of a channel, between processes and within a process.

mod common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{
    DEADLINE, SOON, Watched, content_of, file_with, finish, parent_over_any, pattern, spawn_over_socket, spawn_with,
    wait_until,
};
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing, Wait};

const WAITS: [Wait; 3] = [Wait::Spin, Wait::Adaptive, Wait::Block];

#[test]
fn child() {
    common::play(&[("echo", echo), ("echo by many", echo_by_many), ("puppet", puppet), ("absent", absent)]);
}

fn echo(_: &str) {
    echo_until_closed(&parent_over_any(&Options::new()));
}

/// Sends back each message, from four threads.
fn echo_by_many(_: &str) {
    let channel = parent_over_any(&Options::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| echo_until_closed(&channel));
        }
    });
}

fn echo_until_closed(channel: &Channel) {
    loop {
        match channel.recv() {
            Ok(mut message) => {
                let handles = message.take_handles().unwrap();
                if let Err(failed) = channel.send(Outgoing::new(message.bytes()).handles(handles)) {
                    return assert_eq!(failed.error, Error::PeerClosed);
                }
            }
            Err(error) => return assert_eq!(error, Error::PeerClosed),
        }
    }
}

/// Runs without opening its side of the channel.
fn absent(_: &str) {
    std::thread::sleep(2 * DEADLINE);
}

/// Executes the orders on its standard input: `s` sends a message, `r` receives one, and `a` receives all until the
/// channel is closed.
fn puppet(_: &str) {
    let channel = parent_over_any(&Options::new());
    let mut receives = false;
    let mut order = [0];
    while std::io::stdin().read(&mut order).unwrap() == 1 {
        receives |= obey(&channel, order[0]);
    }
    if !receives {
        std::thread::sleep(2 * DEADLINE);
    }
}

fn obey(channel: &Channel, order: u8) -> bool {
    match order {
        b's' => channel.send(b"as ordered").unwrap(),
        // There may be more orders to receive than messages, and another thread may have received the last one.
        b'r' => assert!(matches!(channel.recv(), Ok(_) | Err(Error::PeerClosed))),
        _ => {
            while channel.recv().is_ok() {}
            return true;
        }
    }
    false
}

/// Runs `play` on an end whose other end echoes: in another process, over a full-sized and over a small socket, and in
/// this process.
fn with_echo(role: &str, options: &Options, mut play: impl FnMut(&Channel)) {
    for start in [spawn_with, spawn_over_socket] {
        let (actor, channel) = start(role, "", options);
        play(&channel);
        drop(channel);
        finish(actor);
    }

    let (a, b) = options.pair().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..if role == "echo" { 1 } else { 4 } {
            scope.spawn(|| echo_until_closed(&b));
        }
        play(&a);
        drop(a);
    });
}

/// Runs `play` on an end whose other end executes orders, in another process and in this process.
fn with_puppet(options: &Options, mut play: impl FnMut(&Channel, &mut dyn FnMut(u8))) {
    let (mut actor, channel) = spawn_over_socket("puppet", "", options);
    let mut stdin = actor.0.stdin.take().unwrap();
    play(&channel, &mut |order| stdin.write_all(&[order]).unwrap());
    drop((channel, actor));

    let (a, b) = options.pair().unwrap();
    let b = &b;
    std::thread::scope(|scope| {
        play(&a, &mut |order| {
            scope.spawn(move || obey(b, order));
        });
        drop(a);
    });
}

/// Returns message `n` of a thread.
fn numbered(thread: u64, n: u64, len: usize) -> Vec<u8> {
    let mut bytes = [thread.to_le_bytes(), n.to_le_bytes()].concat();
    bytes.extend(pattern(thread ^ n << 8, len));
    bytes
}

/// Returns the sending thread and the number of a message, and asserts that the message is complete.
fn number_of(bytes: &[u8]) -> (u64, u64) {
    let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (thread, n) = (field(0), field(8));
    assert!(bytes[16..] == pattern(thread ^ n << 8, bytes.len() - 16), "message {n} of thread {thread}");
    (thread, n)
}

fn len_of(n: u64) -> usize {
    match n % 100 {
        17 => 100_000,
        33 | 67 => 6000,
        other => (other * 11 % 300) as usize,
    }
}

fn file_of(thread: u64, n: u64) -> Option<Handle> {
    (n % 60 == 7).then(|| file_with(format!("{thread} {n}").as_bytes()).into())
}

#[test]
fn messages_of_several_senders_are_whole_and_in_the_order_of_each() {
    const EACH: u64 = 3000;
    for wait in WAITS {
        with_echo("echo", &Options::new().wait(wait), |channel| {
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        let mut n = 0;
                        while n < EACH {
                            // Batches of one to three messages, with an order to keep.
                            let row: Vec<Vec<u8>> =
                                (n..EACH.min(n + 1 + n % 3)).map(|n| numbered(thread, n, len_of(n))).collect();
                            let messages =
                                (n..).zip(&row).map(|(n, bytes)| Outgoing::new(bytes).handles(file_of(thread, n)));
                            n += channel.send_many(messages, DEADLINE).unwrap() as u64;
                        }
                    });
                }
                let mut next = [0; 4];
                while next != [EACH; 4] {
                    let mut message = channel.recv_by(DEADLINE).unwrap();
                    let (thread, n) = number_of(message.bytes());
                    assert_eq!(n, next[thread as usize], "of thread {thread}");
                    assert_files(message.take_handles().unwrap(), thread, n);
                    next[thread as usize] += 1;
                }
            });
        });
    }
}

fn assert_files(handles: Vec<Handle>, thread: u64, n: u64) {
    let contents: Vec<Vec<u8>> = handles.into_iter().map(content_of).collect();
    let expected = Vec::from_iter((n % 60 == 7).then(|| format!("{thread} {n}").into_bytes()));
    assert_eq!(contents, expected, "of thread {thread}, message {n}");
}

/// Receives one or several messages, in a way selected by `turn`.
fn recv_somehow(channel: &Channel, turn: u64, mut take: impl FnMut(&[u8], Vec<Handle>)) -> Result<(), Error> {
    match turn % 4 {
        0 => {
            let mut message = channel.recv_by(DEADLINE)?;
            let handles = message.take_handles().unwrap();
            take(message.bytes(), handles);
        }
        1 => {
            let mut view = channel.recv_in_place(DEADLINE)?;
            let mut bytes = vec![0; view.len()];
            view.read_at(&mut bytes, 0);
            let handles = view.take_handles().unwrap();
            drop(view);
            take(&bytes, handles);
        }
        2 => {
            let mut slots: [Message; 3] = Default::default();
            let n = channel.recv_many(&mut slots, DEADLINE)?;
            for slot in &mut slots[..n] {
                let handles = slot.take_handles().unwrap();
                take(slot.bytes(), handles);
            }
        }
        _ => {
            let mut buffer = vec![0; 10];
            loop {
                match channel.recv_into(&mut buffer, DEADLINE) {
                    Ok(mut received) => {
                        let handles = received.take_handles().unwrap();
                        take(&buffer[..received.len()], handles);
                        return Ok(());
                    }
                    // Another thread may have received the message before the next call, and the message after it may
                    // be longer still.
                    Err(Error::BufferTooSmall { needed }) => buffer.resize(needed, 0),
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

#[test]
fn each_message_goes_to_one_of_several_receivers() {
    const COUNT: u64 = 8000;
    for wait in WAITS {
        with_echo("echo", &Options::new().wait(wait), |channel| {
            let received = AtomicU64::new(0);
            let all = std::thread::scope(|scope| {
                let receivers: Vec<_> = (0..4u64)
                    .map(|turn| {
                        let received = &received;
                        scope.spawn(move || {
                            let mut mine = Vec::new();
                            let mut turn = turn;
                            loop {
                                let outcome = recv_somehow(channel, turn, |bytes, handles| {
                                    let (thread, n) = number_of(bytes);
                                    assert_files(handles, thread, n);
                                    if thread == 0 {
                                        mine.push(n);
                                        received.fetch_add(1, Ordering::Relaxed);
                                    }
                                });
                                outcome.unwrap();
                                turn += 1;
                                if received.load(Ordering::Relaxed) == COUNT {
                                    // Each waiting thread receives one of the messages, and then finds that all
                                    // messages were received.
                                    channel.send(&numbered(1, 0, 0)).unwrap();
                                    return mine;
                                }
                            }
                        })
                    })
                    .collect();
                for n in 0..COUNT {
                    channel
                        .send_by(Outgoing::new(&numbered(0, n, len_of(n))).handles(file_of(0, n)), DEADLINE)
                        .unwrap();
                }
                receivers.into_iter().map(|receiver| receiver.join().unwrap()).collect::<Vec<_>>()
            });
            for mine in &all {
                assert!(mine.is_sorted(), "one receiver got messages out of order");
            }
            let mut all = all.concat();
            all.sort_unstable();
            assert!(all == (0..COUNT).collect::<Vec<_>>());
            // Messages sent to wake threads are still in flight, or no thread received them.
            while channel.recv_by(Duration::from_millis(100)).is_ok() {}
        });
    }
}

#[test]
fn many_send_and_receive_on_both_ends_at_once() {
    const EACH: u64 = 2000;
    for wait in [Wait::Adaptive, Wait::Block] {
        let options = Options::new().wait(wait).ring_max(64 << 10).queue_bytes(1 << 20);
        with_echo("echo by many", &options, |channel| {
            let seen = Mutex::new(HashMap::new());
            let received = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        for n in 0..EACH {
                            let bytes = numbered(thread, n, len_of(n));
                            channel.send_by(Outgoing::new(&bytes).handles(file_of(thread, n)), DEADLINE).unwrap();
                        }
                    });
                    let (seen, received) = (&seen, &received);
                    scope.spawn(move || {
                        while received.load(Ordering::Relaxed) < 4 * EACH {
                            let mut message = match channel.recv_by(Duration::from_millis(100)) {
                                Ok(message) => message,
                                Err(error) => {
                                    assert_eq!(error, Error::TimedOut);
                                    continue;
                                }
                            };
                            let (thread, n) = number_of(message.bytes());
                            assert_files(message.take_handles().unwrap(), thread, n);
                            assert_eq!(seen.lock().unwrap().insert((thread, n), ()), None, "received twice");
                            received.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(seen.into_inner().unwrap().len() as u64, 4 * EACH);
        });
    }
}

#[test]
fn each_of_several_blocked_receivers_times_out_at_its_deadline() {
    for wait in WAITS {
        with_echo("echo", &Options::new().wait(wait), |channel| {
            channel.send(b"it is open").unwrap();
            channel.recv_by(DEADLINE).unwrap();
            std::thread::scope(|scope| {
                for n in [4, 1, 3, 2] {
                    scope.spawn(move || {
                        let deadline = Duration::from_millis(40) * n;
                        let begin = Instant::now();
                        assert_eq!(channel.recv_by(deadline).unwrap_err(), Error::TimedOut);
                        let took = begin.elapsed();
                        assert!(took >= deadline && took < SOON, "{wait:?}: {took:?} for {deadline:?}");
                    });
                }
            });
            channel.send(b"and works").unwrap();
            assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"and works");
        });
    }
}

/// Runs `block` in a thread until it blocks, and then `look` in another thread, which must return; `release` ends the
/// wait of the first thread. Returns the result of `block`.
fn while_another_blocks<T: Send>(
    block: impl FnOnce() -> T + Send,
    look: impl FnOnce() + Send,
    release: impl FnOnce(),
) -> T {
    let watched = Watched::new();
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            watched.enter();
            block()
        });
        watched.wait_until_blocked();
        assert!(!blocked.is_finished());
        let begin = Instant::now();
        let looking = scope.spawn(look);
        while !looking.is_finished() && begin.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(1));
        }
        let hung = !looking.is_finished();
        release();
        let result = blocked.join().unwrap();
        looking.join().unwrap();
        assert!(!hung, "a call blocked that must not block");
        result
    })
}

fn send_until_it_fails(channel: &Channel, len: usize, handles: bool) -> Error {
    let bytes = vec![7; len];
    loop {
        let handle = handles.then(|| Handle::from(file_with(b"x")));
        if let Err(failed) = channel.send(Outgoing::new(&bytes).handles(handle)) {
            return failed.error;
        }
    }
}

#[test]
fn a_try_while_another_thread_waits_for_messages_would_block() {
    for wait in WAITS {
        with_echo("echo", &Options::new().wait(wait), |channel| {
            channel.send(b"it is open").unwrap();
            channel.recv_by(DEADLINE).unwrap();
            let message = while_another_blocks(
                || channel.recv_by(DEADLINE),
                || {
                    for _ in 0..3 {
                        assert_eq!(channel.try_recv().unwrap_err(), Error::WouldBlock);
                        assert_eq!(channel.recv_in_place(Deadline::NOW).map(drop), Err(Error::WouldBlock));
                        assert!(!channel.is_readable() && channel.is_writable());
                    }
                    assert_eq!(channel.recv_by(Duration::from_millis(20)).unwrap_err(), Error::TimedOut);
                },
                // Sending is possible meanwhile.
                || channel.try_send(b"end").unwrap(),
            );
            assert_eq!(message.unwrap().bytes(), b"end");
        });
    }
}

#[test]
fn a_try_while_another_thread_waits_for_room_would_block() {
    // Room in the ring, and within the limit for large messages.
    for (len, wait) in [(1000, Wait::Spin), (1000, Wait::Block), (1 << 20, Wait::Adaptive)] {
        with_puppet(&Options::new().wait(wait).queue_bytes(3 << 20), |channel, order| {
            let stalled = AtomicBool::new(false);
            let error = std::thread::scope(|scope| {
                scope.spawn(|| {
                    wait_until("the sender waits", || channel.counters().stalls > 0);
                    stalled.store(true, Ordering::Relaxed);
                });
                while_another_blocks(
                    || {
                        // The last message is sent when there is room.
                        let bytes = vec![7; len];
                        while !stalled.load(Ordering::Relaxed) {
                            channel.send(&bytes)?;
                        }
                        Ok::<(), Error>(())
                    },
                    || {
                        wait_until("the sender waits", || stalled.load(Ordering::Relaxed));
                        for _ in 0..3 {
                            let bytes = vec![0; len];
                            assert_eq!(channel.try_send(&bytes).unwrap_err().error, Error::WouldBlock);
                            assert_eq!(channel.reserve(len, Deadline::NOW).map(drop), Err(Error::WouldBlock));
                            assert!(!channel.is_writable());
                            assert_eq!(channel.try_recv().unwrap_err(), Error::WouldBlock);
                        }
                        let failed = channel.send_by(b"x", Duration::from_millis(20)).unwrap_err();
                        assert_eq!(failed.error, Error::TimedOut);
                    },
                    || order(b'a'),
                )
            });
            assert_eq!(error, Ok(()));
        });
    }
}

#[test]
fn a_try_while_another_thread_waits_for_the_socket_would_block() {
    let (mut actor, channel) = spawn_over_socket("absent", "", &Options::new());
    let error = while_another_blocks(
        || send_until_it_fails(&channel, 8, true),
        || {
            assert_eq!(channel.try_send(b"x").unwrap_err().error, Error::WouldBlock);
            assert_eq!(channel.send_by(b"x", Duration::from_millis(20)).unwrap_err().error, Error::TimedOut);
            assert_eq!(channel.try_recv().unwrap_err(), Error::WouldBlock);
        },
        || actor.kill(),
    );
    assert_eq!(error, Error::PeerClosed);
}

#[test]
fn a_try_while_a_view_or_a_reservation_is_held_would_block() {
    with_echo("echo", &Options::new(), |channel| {
        channel.send(b"looked at").unwrap();
        channel.send(b"next").unwrap();
        let view = channel.recv_in_place(DEADLINE).unwrap();
        let room = channel.reserve(5, DEADLINE).unwrap();
        std::thread::scope(|scope| {
            let begin = Instant::now();
            let receiving = scope.spawn(|| channel.try_recv().map(drop));
            let sending = scope.spawn(|| channel.try_send(b"try").map_err(|failed| failed.error));
            let done = || receiving.is_finished() && sending.is_finished();
            while !done() && begin.elapsed() < SOON {
                std::thread::sleep(Duration::from_millis(1));
            }
            let hung = !done();
            drop((view, room));
            let outcomes = (receiving.join().unwrap(), sending.join().unwrap());
            assert!(!hung, "a call blocked that must not block");
            assert_eq!(outcomes, (Err(Error::WouldBlock), Err(Error::WouldBlock)));
        });
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"next");
    });
}

/// Shows that a sender and a receiver waiting on one end are each woken for their own event.
#[test]
fn a_sender_and_a_receiver_that_wait_on_one_end_both_get_on() {
    for (round, wait) in WAITS.into_iter().cycle().take(12).enumerate() {
        // The sender waits for room in the ring, within the limit for large messages, or in the socket.
        let (len, handles) = [(1000, false), (1 << 20, false), (8, true)][round / 3 % 3];
        // The thread that waits first is the leader and sleeps on the socket; the other thread is a follower. With
        // `later`, both have ended their first, short sleep.
        let (sender_first, later) = (round % 2 == 0, round % 4 < 2);
        let options = Options::new().wait(wait).queue_bytes(3 << 20);
        // Within a process descriptors fill no socket, so a limit on messages takes the socket's place.
        let options = if handles { options.queue_messages(300) } else { options };
        with_puppet(&options, |channel, order| {
            order(b's');
            assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"as ordered");
            let (sender, receiver) = (Watched::new(), Watched::new());
            let stop = AtomicBool::new(false);
            let sent = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let send = || {
                    sender.enter();
                    while !stop.load(Ordering::Relaxed) {
                        let handle = handles.then(|| Handle::from(file_with(b"x")));
                        channel.send_by(Outgoing::new(&vec![7; len]).handles(handle), DEADLINE).unwrap();
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                };
                let full = || {
                    // The sender sends nothing for a while.
                    let mut before = u64::MAX;
                    let mut same = 0;
                    wait_until("the sender waits for room", || {
                        let now = sent.load(Ordering::Relaxed);
                        same = if now == before && now > 0 { same + 1 } else { 0 };
                        before = now;
                        same >= 10
                    });
                    sender.wait_until_blocked();
                };
                if sender_first {
                    scope.spawn(send);
                    full();
                }
                let received = scope.spawn(|| {
                    receiver.enter();
                    let first = channel.recv_by(DEADLINE);
                    (first, channel.recv_by(DEADLINE))
                });
                receiver.wait_until_blocked();
                if !sender_first {
                    scope.spawn(send);
                    full();
                }
                if later {
                    std::thread::sleep(Duration::from_millis(50));
                }
                // The receiver receives although the sender still waits.
                let before = sent.load(Ordering::Relaxed);
                order(b's');
                wait_until("the first message was received", || channel.counters().messages_received == 2);
                assert!(sent.load(Ordering::Relaxed) - before <= 1);
                // The sender sends although the receiver still waits.
                receiver.wait_until_blocked();
                // The peer reports room for several messages at a time, so the sender may need more than one receive.
                let mut ordered = 0;
                wait_until("one more is sent", || {
                    if ordered < before {
                        order(b'r');
                        ordered += 1;
                    }
                    sent.load(Ordering::Relaxed) > before + 1
                });
                assert!(!received.is_finished());
                order(b's');
                let (first, second) = received.join().unwrap();
                assert_eq!(first.unwrap().bytes(), b"as ordered");
                assert_eq!(second.unwrap().bytes(), b"as ordered");
                stop.store(true, Ordering::Relaxed);
                order(b'a');
            });
        });
    }
}

#[test]
fn a_death_ends_the_wait_of_every_thread() {
    for wait in WAITS {
        let (mut actor, channel) = spawn_with("absent", "", &Options::new().wait(wait));
        let watched: [Watched; 6] = std::array::from_fn(|_| Watched::new());
        std::thread::scope(|scope| {
            let threads: Vec<_> = watched
                .iter()
                .enumerate()
                .map(|(n, watched)| {
                    let channel = &channel;
                    scope.spawn(move || {
                        watched.enter();
                        match n {
                            0..4 => channel.recv_by(DEADLINE).unwrap_err(),
                            _ => send_until_it_fails(channel, 1000, false),
                        }
                    })
                })
                .collect();
            wait_until("the senders wait", || channel.counters().stalls > 0);
            watched.iter().for_each(Watched::wait_until_blocked);
            let begin = Instant::now();
            actor.kill();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), Error::PeerClosed, "{wait:?}");
            }
            assert!(begin.elapsed() < SOON);
        });
    }
}

/// Shows that a thread that tries to send does not fail because another thread tries too. Making the ring larger takes
/// a while, but waits for no peer.
#[test]
fn threads_that_try_to_send_do_not_keep_each_other_from_it() {
    for _ in 0..300 {
        let (a, b) = Channel::pair().unwrap();
        let begin = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (a, begin) = (&a, &begin);
                scope.spawn(move || {
                    begin.wait();
                    for n in 0..10 {
                        a.try_send(&numbered(thread, n, 100)).expect("there was no room");
                    }
                });
            }
        });
        for _ in 0..80 {
            b.try_recv().expect("a message is missing");
        }
    }
}

/// Returns how often the scheduler has given the current thread a processor; 0 if the kernel keeps no count.
fn times_run() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    counts.split_whitespace().nth(2).and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// While other threads have all processors, a yielding thread gets a processor back only after milliseconds. So a wait
/// that spins by yielding must not yield often after its deadline.
#[test]
fn a_wait_that_spins_on_a_busy_machine_ends_soon_after_its_deadline() {
    let over = AtomicBool::new(false);
    let busy = 2 * std::thread::available_parallelism().map_or(2, usize::from);
    let (_one, other) = Options::new().wait(Wait::Spin).pair().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..busy {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let waits = (0..5).map(|_| {
            let before = times_run();
            let received = other.recv_by(Duration::from_micros(1)).map(drop);
            (received, times_run() - before)
        });
        let waits: Vec<_> = waits.collect();
        over.store(true, Ordering::Relaxed);
        for (received, times) in waits {
            assert_eq!(received, Err(Error::TimedOut));
            assert!(times < 32, "the thread ran {times} times");
        }
    });
}
