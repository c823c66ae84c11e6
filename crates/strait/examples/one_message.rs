//! Sends one small message and receives it, each in a function of its own, so that `tools/structure rooms` can count
//! the files that a message enters on its way.

use std::hint::black_box;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::{Channel, Error, Message};

/// The number of messages before the measured one; after them both sides have finished their handshake.
const BEFORE: usize = 100;

#[inline(never)]
fn send_one(channel: &Channel) -> Result<(), Error> {
    Ok(channel.send(black_box(b"hello"))?)
}

#[inline(never)]
fn receive_one(channel: &Channel, message: &mut Message) -> Result<(), Error> {
    channel.recv_message(message, strait::Deadline::NEVER)
}

fn main() -> Result<(), Error> {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::System { call: "socketpair", code: errno.raw_os_error() })?;
    let (one, other) = (Channel::over(one)?, Channel::over(other)?);
    let mut message = Message::new();
    for _ in 0..BEFORE {
        one.send(b"hello")?;
        other.recv_message(&mut message, strait::Deadline::NEVER)?;
    }
    send_one(&one)?;
    receive_one(&other, &mut message)?;
    assert_eq!(message.bytes(), b"hello");
    Ok(())
}
