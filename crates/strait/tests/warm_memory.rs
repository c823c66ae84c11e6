//! Tests of the memory that a process keeps for large messages: how much stays warm, and how it is given back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::quota::{pool_held, pool_limit, set_pool_limit, trim};
use strait::{Channel, Deadline, Options};

/// Serializes the tests, because the limit and the counts are those of the whole process. Gives back what earlier tests
/// have left.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    trim();
    set_pool_limit(256 << 20);
    guard
}

/// Returns both ends of a channel over a socket, with memory that other processes could map.
fn over_socket(options: Options) -> (Channel, Channel) {
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("socketpair");
    (options.over(one).expect("one end"), options.over(other).expect("the other end"))
}

/// Sends a message of `len` bytes in place and receives it in place.
fn send_in_place(from: &Channel, to: &Channel, len: usize, mark: u8) {
    let mut reservation = from.reserve(len, Deadline::NEVER).expect("room");
    reservation.write_at(&[mark; 8], len - 8);
    reservation.commit().expect("sent");
    let mut seen = to.recv_in_place(Deadline::NEVER).expect("a message");
    let mut bytes = [0; 8];
    seen.read_at(&mut bytes, len - 8);
    assert_eq!((seen.len(), bytes), (len, [mark; 8]));
}

#[test]
fn messages_of_64_and_of_100_mib_are_warm_by_default() {
    let _alone = alone();
    let (near, far) = over_socket(Options::new());
    for len in [64 << 20, 100 << 20] {
        let before = near.counters();
        for mark in 0..4 {
            send_in_place(&near, &far, len, mark);
        }
        let counters = near.counters();
        assert_eq!(counters.pool_hits - before.pool_hits, 3, "{len}");
        assert_eq!(counters.used_once, 0, "{len}");
        assert!(pool_held() <= pool_limit());
    }
}

#[test]
fn two_messages_of_100_mib_in_flight_are_warm() {
    let _alone = alone();
    let (near, far) = over_socket(Options::new());
    for round in 0..3 {
        for _ in 0..2 {
            near.reserve(100 << 20, Deadline::NEVER).expect("room").commit().expect("sent");
        }
        for _ in 0..2 {
            far.recv_in_place(Deadline::NEVER).expect("a message");
        }
        assert_eq!(near.counters().pool_hits, 2 * round);
    }
    assert_eq!(near.counters().used_once, 0);
}

#[test]
fn memory_over_a_limit_is_used_once_and_counted() {
    let _alone = alone();
    let (near, far) = over_socket(Options::new().pool(1 << 20));
    for mark in 0..3 {
        send_in_place(&near, &far, 2 << 20, mark);
    }
    assert_eq!((near.counters().used_once, near.counters().pool_hits), (3, 0));
    let (near, far) = over_socket(Options::new());
    set_pool_limit(1 << 20);
    for mark in 0..3 {
        send_in_place(&near, &far, 2 << 20, mark);
    }
    assert_eq!((near.counters().used_once, near.counters().pool_hits), (3, 0));
}

#[test]
fn all_ends_together_keep_no_more_than_the_limit() {
    let _alone = alone();
    set_pool_limit(10 << 20);
    let channels: Vec<_> = (0..8).map(|_| over_socket(Options::new())).collect();
    for (near, far) in &channels {
        for mark in 0..2 {
            send_in_place(near, far, 3 << 20, mark);
            assert!(pool_held() <= 10 << 20, "{}", pool_held());
        }
    }
    set_pool_limit(4 << 20);
    assert!(pool_held() <= 4 << 20, "{}", pool_held());
    drop(channels);
    assert_eq!(pool_held(), 0);
}

#[test]
fn trim_gives_back_what_no_message_uses() {
    let _alone = alone();
    let (near, far) = over_socket(Options::new());
    near.send(&[7; 1 << 20]).expect("sent");
    let mut view = far.recv_in_place(Deadline::NEVER).expect("a message");
    send_in_place(&near, &far, 2 << 20, 1);
    let held = pool_held();
    // The memory of the message being read is kept; the other memory is not.
    let given_back = trim();
    assert!(given_back > 2 << 20, "{given_back}");
    assert_eq!(pool_held(), held - given_back);
    let mut bytes = vec![0; 1 << 20];
    view.read_at(&mut bytes, 0);
    assert!(bytes.iter().all(|byte| *byte == 7));
    drop(view);
    assert!(trim() > 1 << 20);
    assert_eq!((pool_held(), trim()), (0, 0));
    // The memory given back is used again, and the messages arrive.
    for mark in 0..3 {
        send_in_place(&near, &far, 2 << 20, mark);
    }
    assert_eq!(near.counters().pool_hits, 3);
    assert!(pool_held() > 2 << 20);
}

#[test]
fn the_kernel_gets_the_pages_back() {
    let _alone = alone();
    let shared = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
        let line = status.lines().find(|line| line.starts_with("RssShmem:")).expect("a line").to_owned();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number")
    };
    let (near, far) = over_socket(Options::new());
    near.send(&vec![1; 32 << 20]).expect("sent");
    assert_eq!(far.recv().expect("a message").bytes().len(), 32 << 20);
    let before = shared();
    trim();
    let after = shared();
    assert!(after + (30 << 10) < before, "{before} KiB before, {after} KiB after");
}

#[test]
fn a_draft_keeps_its_bytes_when_its_memory_makes_way_for_longer_memory() {
    let _alone = alone();
    let bytes: Vec<u8> = (0..1u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut number = 1u32;
    for limit in (100 << 10..2 << 20).step_by(100 << 10) {
        let (near, far) = over_socket(Options::new().pool(limit));
        for _ in 0..20 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let len = 60_000 + number as usize % 900_000;
            let mut draft = near.draft();
            for piece in bytes[..len].chunks(1000) {
                draft.append(piece).expect("room");
            }
            draft.send(Deadline::NEVER).expect("sent");
            assert!(far.recv().expect("a message").bytes() == &bytes[..len], "{limit} {len}");
        }
    }
}

/// Shows that no other thread can take the pages of a block away while a message is written there.
#[test]
fn bytes_of_messages_that_are_being_written_survive_a_thread_that_trims() {
    let _alone = alone();
    let (near, far) = over_socket(Options::new());
    std::thread::scope(|scope| {
        // Dropped at the end, even after a panic of this thread.
        let (_until, over) = mpsc::channel::<()>();
        scope.spawn(move || {
            while over.try_recv() == Err(TryRecvError::Empty) {
                trim();
            }
        });
        for mark in 0..=255 {
            let len = 70_000 + 3000 * usize::from(mark);
            let mut draft = near.draft();
            for _ in 0..len / 1000 {
                draft.append(&[mark; 1000]).expect("room");
            }
            draft.send(Deadline::NEVER).expect("sent");
            near.send(&vec![mark; len]).expect("sent");
            for _ in 0..2 {
                assert!(far.recv().expect("a message").bytes().iter().all(|byte| *byte == mark), "{mark}");
            }
        }
    });
}

/// Shows that memory can be given back while other threads use it. The order of the blocks by their last use changes
/// then while `trim` sorts the blocks.
#[test]
fn trim_gives_back_memory_while_other_threads_send() {
    let _alone = alone();
    let is_over = &AtomicBool::new(false);
    let sending = || {
        let channels: Vec<_> = (0..8).map(|_| over_socket(Options::new())).collect();
        let payload = vec![7; 100 << 10];
        while !is_over.load(Ordering::Relaxed) {
            for (near, far) in &channels {
                near.send(&payload).expect("sent");
                assert!(far.recv().expect("a message").bytes() == payload);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(sending)).collect();
        let end = Instant::now() + Duration::from_secs(3);
        let trims = std::panic::catch_unwind(|| {
            while Instant::now() < end {
                trim();
            }
        });
        is_over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("no panic while sending");
        }
        trims.expect("no panic while giving back");
    });
}
