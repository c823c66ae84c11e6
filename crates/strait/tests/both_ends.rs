//! Tests in which both ends of a channel travel, in a process with a socket to itself.

use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::time::{ClockId, clock_gettime};
use strait::{Channel, Error, Handle, Outgoing};

const DEADLINE: Duration = Duration::from_secs(60);

/// Returns both ends of a channel over a new socket: each end treats the other end as an end of another process.
fn over_a_socket() -> (Channel, Channel) {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (one, other) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
    talk(&one, &other);
    (one, other)
}

/// Sends a message in each direction.
fn talk(one: &Channel, other: &Channel) {
    for (from, to) in [(one, other), (other, one)] {
        from.send(b"hello").unwrap();
        assert_eq!(to.recv_by(DEADLINE).unwrap().bytes(), b"hello");
    }
}

/// Returns the processor time used by the current thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// Shows that a message with both ends waits for its deadline without using the processor and comes back whole, and
/// that the two ends can travel in two messages.
#[test]
fn both_ends_of_a_channel_of_a_process_to_itself_travel_one_after_the_other() {
    let patience = Duration::from_secs(1);
    for turned in [false, true] {
        let (carrier, receiver) = over_a_socket();
        let (one, other) = over_a_socket();
        let ends = if turned { [other, one] } else { [one, other] };
        let before = processor_time();
        let failed = carrier.send_by(Outgoing::new(b"ends").handles(ends.map(Into::into)), patience).unwrap_err();
        assert!(processor_time() - before < patience / 4, "the wait uses the processor");
        assert_eq!((failed.error, failed.handles.len()), (Error::TimedOut, 2));
        let there = failed.handles.into_iter().map(|end: Handle| {
            carrier.send_by(Outgoing::new(b"end").handle(end), DEADLINE).unwrap();
            receiver.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap()
        });
        let there: Vec<_> = there.collect();
        talk(&there[0], &there[1]);
    }
}
