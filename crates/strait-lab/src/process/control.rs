//! The control socket between a measuring process and its parent: standard input.
//!
//! The socket carries packets of JSON and, once, the descriptors that the second process needs. A process inherits
//! standard input, so no argument has to name the socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::trouble::{Result, Trouble, While};

/// The size of the buffer for a packet in bytes: larger than any packet here.
const MOST: usize = 64 << 10;
/// The most descriptors in a packet: more than any mechanism needs.
const MOST_DESCRIPTORS: usize = 8;

/// Returns a connected pair of control sockets.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).doing("socketpair")
}

/// Encodes `what` as the bytes of a packet.
pub(crate) fn encode(what: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(what).doing("encoding a report")
}

/// Sends a packet with `what` and `descriptors`.
pub(crate) fn send(socket: BorrowedFd<'_>, what: &impl Serialize, descriptors: &[OwnedFd]) -> Result<()> {
    let packet = encode(what)?;
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Trouble::new("too many descriptors for one packet"));
    }
    sendmsg(socket, &[IoSlice::new(&packet)], &mut control, SendFlags::NOSIGNAL)
        .doing("sending to the other process")?;
    Ok(())
}

/// The result of waiting for a packet.
#[derive(Debug)]
pub(crate) enum Heard<T> {
    /// A packet and its descriptors.
    Packet(T, Vec<OwnedFd>),
    /// The other process has closed its socket or died.
    Gone,
    /// No packet arrived within the time limit.
    Nothing,
}

/// Waits for a packet, at most for the time `limit`.
pub(crate) fn recv<T: DeserializeOwned>(socket: BorrowedFd<'_>, limit: Duration) -> Result<Heard<T>> {
    let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    loop {
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(Heard::Nothing),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("poll"),
        }
    }
    let mut packet = vec![0; MOST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut packet)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let got = match got {
        Ok(got) if got.bytes > 0 => got.bytes,
        Ok(_) | Err(Errno::CONNRESET) => return Ok(Heard::Gone),
        Err(error) => return Err(error).doing("receiving from the other process"),
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(these) = message {
            descriptors.extend(these);
        }
    }
    let what = serde_json::from_slice(&packet[..got]).doing("decoding a packet")?;
    Ok(Heard::Packet(what, descriptors))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::{Heard, pair, recv, send};

    #[test]
    fn packets_and_descriptors_cross() {
        let (here, there) = pair().unwrap();
        let (gift, _) = pair().unwrap();
        send(here.as_fd(), &"hello", &[gift]).unwrap();
        let Heard::Packet(words, gifts) = recv::<String>(there.as_fd(), Duration::from_secs(1)).unwrap() else {
            panic!("no packet");
        };
        assert_eq!((words.as_str(), gifts.len()), ("hello", 1));
    }

    #[test]
    fn silence_and_absence_are_told_apart() {
        let (here, there) = pair().unwrap();
        let heard = recv::<String>(there.as_fd(), Duration::from_millis(1)).unwrap();
        assert!(matches!(heard, Heard::Nothing));
        drop(here);
        // If another test starts a process at the same time, the process has a copy of the socket until it executes its
        // program.
        let heard = recv::<String>(there.as_fd(), Duration::from_secs(60)).unwrap();
        assert!(matches!(heard, Heard::Gone));
    }
}
