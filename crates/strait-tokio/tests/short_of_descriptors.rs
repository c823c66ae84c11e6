//! A sink in a process that has no free descriptors for a while. The limit holds for the whole process, so the test has
//! a program of its own.

use std::time::Duration;

use futures_util::SinkExt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait::{Channel, Error, Message};
use strait_tokio::{AsyncChannel, Framed, Reactor};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

/// Shows that a message stays in the sink while the process lacks descriptors, and is sent later.
#[tokio::test]
async fn a_message_stays_in_the_sink_after_an_error_that_passes() {
    let reactor = Reactor::new().unwrap();
    // Only over a link between processes does the memory of a large message need a descriptor.
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (near, far) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
    for (from, to) in [(&near, &far), (&far, &near)] {
        from.send_by(b"hello", DEADLINE).unwrap();
        to.recv_by(DEADLINE).unwrap();
    }
    let mut near = Framed::new(AsyncChannel::new(near, &reactor).unwrap());
    let plenty = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..plenty }).unwrap();
    let fed = near.feed(Message::from_parts(vec![7; 1 << 20], Vec::new())).await;
    let flushed = timeout(DEADLINE, near.flush()).await.expect("in time");
    setrlimit(Resource::Nofile, plenty).unwrap();
    assert_eq!((fed, flushed), (Ok(()), Err(Error::NoDescriptors)));
    timeout(DEADLINE, near.flush()).await.expect("in time").unwrap();
    assert_eq!(far.recv_by(DEADLINE).unwrap().bytes(), [7; 1 << 20]);
}
