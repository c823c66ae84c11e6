//! What one thread may do while another thread of its process is held at a step.

#![cfg(strait_fault_points)]

use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::{Channel, Error, Outgoing, fault};

const DEADLINE: Duration = Duration::from_secs(60);

/// Returns a guard of which there is only one at a time: a process has one plan.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    let _alone = alone();
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

/// Returns both ends of a channel between two processes that were introduced to each other, and are both this process.
/// Each such channel has a link of its own.
fn introduced() -> (Channel, Channel) {
    let (one, to_one) = over_a_socket();
    let (other, to_other) = over_a_socket();
    let (a, b) = Channel::pair().unwrap();
    let a = move_over(&to_one, &one, a);
    let b = move_over(&to_other, &other, b);
    // Each side receives the other's handshake, which says that all these links lead to one process.
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.send(Outgoing::new(b"hello").handle(std::fs::File::open("/dev/null").unwrap())).unwrap();
        assert_eq!(to.recv_by(DEADLINE).unwrap().take_handles().unwrap().len(), 1);
    }
    (a, b)
}

/// Drops `unread`, holds the thread that does so at the step `point`, and receives from `staying` meanwhile. Returns what
/// was received.
fn received_while_dropping(unread: Channel, point: &str, staying: Channel) -> Result<Vec<u8>, Error> {
    assert!(fault::follow(&format!("hold:{point}:1")));
    let close = in_a_thread(move || drop(unread));
    wait_until_held();
    let receive = in_a_thread(move || (staying.recv_by(DEADLINE), staying));
    // If the receiving thread needs what the held one has, it waits for that.
    let early = receive.recv_timeout(Duration::from_millis(200)).ok();
    fault::go_on();
    close.recv_timeout(DEADLINE).expect("the thread goes on");
    let (received, _staying) = early.unwrap_or_else(|| receive.recv_timeout(DEADLINE).expect("a result"));
    received.map(|message| message.bytes().to_vec())
}

/// Shows that a lane is found although what was announced over a link is just being passed on to another link to the
/// same process. An end is sent over a link that its receiver stops using, and meanwhile the other end follows it.
#[test]
fn a_lane_is_found_while_announcements_are_passed_on() {
    let _alone = alone();
    let (carrier, unread) = introduced();
    let (staying, sent) = introduced();
    carrier.send(Outgoing::new(b"an end").handle(sent)).unwrap();
    let point = "before announcements are passed on to another link";
    assert_eq!(received_while_dropping(unread, point, staying), Err(Error::PeerClosed));
}

/// Shows that a lane is found although the link over which it was announced is just being dropped. A message with two
/// ends cannot be sent, because one of them is not open; the other one goes on in the lane that was made for it.
#[test]
fn a_lane_is_found_while_the_link_over_which_it_was_announced_is_dropped() {
    let _alone = alone();
    let (carrier, unread) = introduced();
    let (staying, stays) = introduced();
    let (not_open, _silent) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let not_open = Channel::over(not_open).unwrap();
    let failed = carrier.try_send(Outgoing::new(b"two ends").handle(stays).handle(not_open)).unwrap_err();
    assert_eq!((failed.error, failed.handles.len()), (Error::WouldBlock, 2));
    let stays = failed.handles.into_iter().next().unwrap().into_channel().unwrap();
    stays.send(b"after that").unwrap();
    let received = received_while_dropping(unread, "before the socket of a link is closed", staying);
    assert_eq!(received, Ok(b"after that".to_vec()));
}
