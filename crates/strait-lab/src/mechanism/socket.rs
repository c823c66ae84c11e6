//! Sending and receiving on sockets, with descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::stats::bytes;
use crate::trouble::{Result, Trouble, While};

/// The most descriptors in a message: the kernel's limit (`SCM_MAX_FD`).
const MOST_RIGHTS: usize = 253;

/// Opens a descriptor for sending in messages.
pub(crate) fn traveller() -> Result<OwnedFd> {
    open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).doing("opening /dev/null")
}

/// Sends the bytes of `parts` and copies of `descriptors` in one call. Returns the number of bytes sent; `None` if
/// the call would block and `polled` is set.
pub(super) fn send_parts(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    descriptors: &[OwnedFd],
    polled: bool,
) -> Result<Option<usize>> {
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::DONTWAIT, polled);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_RIGHTS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Trouble::new("too many descriptors for one message"));
    }
    loop {
        match sendmsg(socket, parts, &mut control, flags) {
            Ok(sent) => return Ok(Some(sent)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(refused(error, parts.iter().map(|part| part.len()).sum(), "sendmsg")),
        }
    }
}

/// Receives bytes into `buffer`, and appends the message's descriptors to `descriptors`. Returns the number of bytes.
pub(super) fn recv_with(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    polled: bool,
) -> Result<usize> {
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    flags.set(RecvFlags::DONTWAIT, polled);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_RIGHTS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(got) => break got.bytes,
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("recvmsg"),
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(these) = message {
            descriptors.extend(these);
        }
    }
    Ok(got)
}

/// Explains why the kernel did not take a message of `len` bytes. The whole message has to fit into the socket's
/// buffer, and for a large message the kernel may lack contiguous memory. Both count as known limits.
#[cold]
pub(super) fn refused(error: Errno, len: usize, doing: &str) -> Trouble {
    match error {
        Errno::MSGSIZE => Trouble::limit(format!(
            "a message of {} is too large for the socket's send buffer (net.core.wmem_max)",
            bytes(len)
        )),
        Errno::NOBUFS | Errno::NOMEM => {
            Trouble::limit(format!("the kernel has no contiguous memory for a message of {} now", bytes(len)))
        }
        error => Trouble::new(format!("{doing}: {error}")),
    }
}
