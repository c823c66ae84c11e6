//! Tests of waiting senders: each sleeps until the event for which the sender waits.

mod common;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{DEADLINE, Watched, alone};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use strait::wait::{Conditions, Sprung, Traps};
use strait::{Channel, Deadline, Error, Options, Outgoing};

/// The timeout of a send whose wait no event ends.
const WAIT: Duration = Duration::from_secs(2);

/// The most sleeps allowed in a wait that never looks: the sleep until the event or the deadline, and a reserve for
/// packets that arrive late.
const NO_LOOKS: u64 = 5;

/// The most sleeps allowed in a wait of [`WAIT`] for the room of a socket, which looks besides: ten looks each second.
const TEN_A_SECOND: u64 = 10 * WAIT.as_secs();

#[test]
fn child() {
    common::play(&[("full socket", full_socket)]);
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap()
}

fn over(socket: OwnedFd) -> Channel {
    Channel::over(socket).unwrap()
}

/// Returns a channel between two links of this process, with both sides open.
fn open_pair() -> (Channel, Channel) {
    let (one, other) = sockets();
    let (one, other) = (over(one), over(other));
    for (from, to) in [(&one, &other), (&other, &one)] {
        from.send(b"hello").unwrap();
        to.recv_by(DEADLINE).unwrap();
    }
    (one, other)
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// Returns how often the current thread has slept so far.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the time for which the current thread has run so far.
fn ran() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap()
}

/// Returns the result of `call`, and asserts that the call slept at most `most` times, and did not spin.
fn sleeping_little<T>(most: u64, call: impl FnOnce() -> T) -> T {
    let before = (sleeps(), ran());
    let returned = call();
    let (slept, ran) = (sleeps() - before.0, ran() - before.1);
    assert!(slept <= most, "the call slept {slept} times");
    assert!(ran <= WAIT / 10, "the call ran for {ran:?}");
    returned
}

/// Runs `call` in a new thread, then `event`, and returns the result of `call`. Asserts that `call` waits until
/// `event`, and sleeps at most `most` times; the thread has time to fall asleep.
fn until<T: Send + std::fmt::Debug>(most: u64, call: impl FnOnce() -> T + Send, event: impl FnOnce()) -> T {
    let (begins, begun) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            begins.send(()).unwrap();
            sleeping_little(most, call)
        });
        begun.recv().unwrap();
        // The result of the call does not depend on whether the thread sleeps by now.
        thread::sleep(Duration::from_millis(300));
        if waiting.is_finished() {
            panic!("the call returned without waiting: {:?}", waiting.join());
        }
        event();
        waiting.join().unwrap()
    })
}

#[test]
fn a_send_of_an_end_whose_peer_has_not_opened_its_side_sleeps_until_it_has() {
    let (ours, theirs) = sockets();
    let (c, d) = open_pair();
    let end = over(ours);
    let failed = sleeping_little(NO_LOOKS, || c.send_by(Outgoing::new(b"end").handle(end), WAIT)).unwrap_err();
    assert_eq!(failed.error, Error::TimedOut);
    let mut other = None;
    let message = Outgoing::new(b"end").handles(failed.handles);
    until(NO_LOOKS, || c.send_by(message, DEADLINE), || other = Some(over(theirs))).unwrap();
    let mut message = d.recv_by(DEADLINE).unwrap();
    let end = message.take_handles().unwrap().remove(0).into_channel().unwrap();
    end.send(b"through").unwrap();
    assert_eq!(other.unwrap().recv_by(DEADLINE).unwrap().bytes(), b"through");
}

/// Shows that `rehome` and `fuse` of an end sleep until the peer has opened its side.
#[test]
fn so_does_whoever_moves_or_joins_such_an_end() {
    let (ours, theirs) = sockets();
    let end = over(ours);
    assert_eq!(sleeping_little(NO_LOOKS, || end.rehome(WAIT)), Err(Error::TimedOut));
    let (a, b) = Channel::pair().unwrap();
    let failed = sleeping_little(NO_LOOKS, || end.fuse(b, WAIT)).unwrap_err();
    assert_eq!(failed.error, Error::TimedOut);
    let (end, b) = failed.channels;
    let mut other = None;
    until(NO_LOOKS, || end.fuse(b, DEADLINE), || other = Some(over(theirs))).unwrap();
    a.send(b"through").unwrap();
    assert_eq!(other.unwrap().recv_by(DEADLINE).unwrap().bytes(), b"through");
}

/// Shows that `rehome` sleeps while other threads block on the end, and moves the end as soon as they do not.
#[test]
fn so_does_a_move_of_an_end_on_which_others_wait() {
    let (a, b) = Options::new().ring_max(4096).pair().unwrap();
    let watched = [Watched::new(), Watched::new()];
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            watched[0].enter();
            b.recv_by(DEADLINE).unwrap()
        });
        watched[0].wait_until_blocked();
        assert_eq!(sleeping_little(NO_LOOKS, || b.rehome(WAIT)), Err(Error::TimedOut));
        until(NO_LOOKS, || b.rehome(DEADLINE), || a.send(b"hello").unwrap()).unwrap();
        assert_eq!(receiving.join().unwrap().bytes(), b"hello");
        while b.try_send(&[0; 1000]).is_ok() {}
        let sending = scope.spawn(|| {
            watched[1].enter();
            b.send_by(&[0; 1000], DEADLINE).unwrap();
        });
        watched[1].wait_until_blocked();
        assert_eq!(sleeping_little(NO_LOOKS, || b.rehome(WAIT)), Err(Error::TimedOut));
        until(NO_LOOKS, || b.rehome(DEADLINE), || while a.try_recv().is_ok() {}).unwrap();
        sending.join().unwrap();
    });
}

/// Shows that a send of a descriptor sleeps while the socket is full. Runs in a process of its own, because another
/// test of this process that looks for a lane would receive packets from the full socket.
#[test]
fn a_send_of_a_descriptor_sleeps_until_the_socket_has_room() {
    alone("full socket", "");
}

fn full_socket(_: &str) {
    let (ours, theirs) = sockets();
    // The kernel's minimum.
    sockopt::set_socket_send_buffer_size(&ours, 1).unwrap();
    let (a, b) = (over(ours), over(theirs));
    let mut sent = 0;
    while a.try_send(Outgoing::new(b"file").handle(null())).is_ok() {
        sent += 1;
    }
    let failed = sleeping_little(TEN_A_SECOND, || a.send_by(Outgoing::new(b"file").handle(null()), WAIT)).unwrap_err();
    assert_eq!(failed.error, Error::TimedOut);
    let receive_all = || (0..sent).for_each(|_| assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"file"));
    until(TEN_A_SECOND, || a.send_by(Outgoing::new(b"last").handle(null()), DEADLINE), receive_all).unwrap();
    assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"last");
}

/// A number of ends that is larger than the limit on descriptors in flight; ends may exceed that limit.
const MANY_ENDS: usize = 1000;

fn send_ends(to: &Channel, count: usize) {
    for _ in 0..count {
        to.send_by(Outgoing::new(b"end").handle(Channel::pair().unwrap().0), DEADLINE).unwrap();
    }
}

/// Shows that two threads can each send more ends than the limit on descriptors in flight before either receives.
#[test]
fn two_that_each_send_many_ends_before_they_receive_do_not_wait_for_each_other() {
    for (a, b) in [Channel::pair().unwrap(), open_pair()] {
        thread::scope(|scope| {
            for end in [&a, &b] {
                scope.spawn(|| {
                    send_ends(end, MANY_ENDS);
                    for _ in 0..MANY_ENDS {
                        assert_eq!(end.recv_by(DEADLINE).unwrap().take_handles().unwrap().len(), 1);
                    }
                });
            }
        });
    }
}

/// Shows that there is no limit on the handles in flight on a channel within a process.
#[test]
fn within_a_process_any_number_of_handles_is_under_way() {
    let (a, b) = Channel::pair().unwrap();
    for n in 0..MANY_ENDS {
        assert!(a.is_writable() && a.status().unwrap().has_room, "{n}");
        a.try_send(Outgoing::new(b"file").handle(Channel::pair().unwrap().0)).unwrap();
    }
    for _ in 0..MANY_ENDS {
        assert_eq!(b.recv_by(DEADLINE).unwrap().take_handles().unwrap().len(), 1);
    }
}

/// Shows that an end at its limit on descriptors in flight reports no room, and reports room once the peer has received
/// one; messages without descriptors can still be sent.
#[test]
fn who_has_as_many_descriptors_under_way_as_may_be_has_no_room_until_one_was_taken() {
    let (ours, theirs) = sockets();
    let a = Options::new().queue_handles(10).over(ours).unwrap();
    let b = over(theirs);
    let has_room = || a.is_writable() && a.status().unwrap().has_room;
    let traps = Traps::new().unwrap();
    for _ in 0..3 {
        for _ in 0..10 {
            assert!(has_room());
            a.try_send(Outgoing::new(b"file").handle(null())).unwrap();
        }
        assert!(!has_room() && !a.is_writable() && !a.status().unwrap().has_room);
        assert_eq!(a.try_send(Outgoing::new(b"file").handle(null())).unwrap_err().error, Error::WouldBlock);
        // A message without descriptors can still be sent.
        a.try_send(b"bytes").unwrap();
        let (sprung, springs) = mpsc::channel();
        traps.arm(&a, Conditions::new().room(), move |why| sprung.send(why).unwrap()).unwrap();
        assert_eq!(traps.dispatch(Deadline::NOW).unwrap(), 0);
        assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"file");
        assert_eq!(traps.dispatch(DEADLINE).unwrap(), 1);
        assert!(matches!(springs.recv().unwrap(), Sprung::Met(status) if status.has_room));
        (0..9).for_each(|_| assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"file"));
        assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"bytes");
    }
}

/// The size of a message that is stored outside the ring, in bytes.
const LARGE: usize = 100_000;

fn large(n: usize) -> Vec<u8> {
    (0..LARGE).map(|at| (at / 1000 + n) as u8).collect()
}

/// Shows that the limit on the bytes in flight permits as many large messages as fit.
#[test]
fn as_many_large_messages_are_under_way_as_may_be_by_their_bytes() {
    const MANY: usize = 200;
    let options = Options::new().queue_bytes(MANY * LARGE);
    let (ours, theirs) = sockets();
    let over = [ours, theirs].map(|socket| options.over(socket).unwrap());
    for [a, b] in [options.pair().unwrap().into(), over] {
        a.send(b"hello").unwrap();
        b.send(b"hello").unwrap();
        assert_eq!(
            (a.recv_by(DEADLINE).unwrap().bytes(), b.recv_by(DEADLINE).unwrap().bytes()),
            (&b"hello"[..], &b"hello"[..])
        );
        for round in 0..2 {
            for n in 0..MANY {
                a.try_send(&large(n + round)).unwrap_or_else(|failed| panic!("{n}: {}", failed.error));
            }
            assert_eq!(a.try_send(&large(0)).unwrap_err().error, Error::WouldBlock);
            // The receiver holds some messages, so that memory is not returned in the order of lending.
            let held: Vec<_> = (0..MANY / 2).map(|n| (n, b.recv_in_place(DEADLINE).unwrap())).collect();
            for n in MANY / 2..MANY {
                assert!(b.recv_by(DEADLINE).unwrap().bytes() == large(n + round), "{n}");
            }
            for (n, mut view) in held {
                let mut bytes = vec![0; LARGE];
                view.read_at(&mut bytes, 0);
                assert!(bytes == large(n + round), "{n}");
            }
        }
        // One more message fits within the limit again.
        let mut last = a.reserve(LARGE, DEADLINE).unwrap();
        last.write_at(&large(7), 0);
        last.commit().unwrap();
        assert!(b.recv_by(DEADLINE).unwrap().bytes() == large(7));
    }
}

/// Shows that an end moves with its unreceived large messages, several of them in one block.
#[test]
fn an_end_takes_along_large_messages_that_share_memory() {
    const MANY: usize = 120;
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = open_pair();
    for n in 0..MANY {
        a.try_send(&large(n)).unwrap();
    }
    c.send_by(Outgoing::new(b"end").handle(b), DEADLINE).unwrap();
    let b = d.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    for n in 0..MANY {
        assert!(b.recv_by(DEADLINE).unwrap().bytes() == large(n), "{n}");
    }
}
