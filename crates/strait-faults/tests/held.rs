//! What one thread may do while another thread of its process is held at a step.

#![cfg(strait_fault_points)]

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::{Channel, Outgoing, fault};

const DEADLINE: Duration = Duration::from_secs(60);

/// Returns both ends of a channel over a socket of its own.
fn over_a_socket() -> (Channel, Channel) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let over = |socket| Channel::over(socket).unwrap();
    (over(pair.0), over(pair.1))
}

/// Sends `moved` over the channel from `from` to `to`, and returns the end as it was received.
fn move_over(from: &Channel, to: &Channel, moved: Channel) -> Channel {
    from.send(Outgoing::new(b"an end").handle(moved)).unwrap();
    let handle = to.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0);
    handle.into_channel().unwrap()
}

fn wait_until_held() {
    let begin = Instant::now();
    while !fault::is_past() {
        assert!(begin.elapsed() < DEADLINE, "no thread came to the step");
        thread::yield_now();
    }
}

/// Runs `action` in a thread, and returns a receiver that gets its result.
fn in_a_thread<T: Send + 'static>(action: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(action()));
    result
}

/// Shows that a search for links that nothing reaches holds no lock when it lets its links go. Meanwhile another thread
/// closes all other ends, so the searching thread drops their links.
#[test]
fn a_thread_that_searches_for_unused_links_drops_those_that_another_thread_has_stopped_using() {
    let (one, to_one) = over_a_socket();
    let (other, to_other) = over_a_socket();
    // The process passes the ends of a channel to two processes, which are itself, and introduces these to each other.
    let (a, b) = Channel::pair().unwrap();
    let a = move_over(&to_one, &one, a);
    let b = move_over(&to_other, &other, b);
    a.send(b"hello").unwrap();
    assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"hello");
    assert!(fault::follow("hold:before the links of a search are let go:1"));
    let search = in_a_thread(move || drop((one, a)));
    wait_until_held();
    let close = in_a_thread(move || drop((b, other, to_one, to_other)));
    close.recv_timeout(DEADLINE).expect("the thread that closes does not wait for the one that searches");
    fault::go_on();
    search.recv_timeout(DEADLINE).expect("the search ends");
}
