//! Looking at the packet at the head of a socket's queue; the packet stays there.
//!
//! Control messages are read one by one, with `libc`. Descriptors in control messages are open in this process as soon
//! as the call returns, whatever the kind of the control message; and `rustix` skips unknown kinds.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::{Interest, wait};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::{call, failed};

/// Type number of the control message with a pidfd of the sender's process (Linux 6.5); older headers lack the number.
const SCM_PIDFD: libc::c_int = 4;

/// The result of a look at the packet at the head of a socket's queue.
pub(super) enum Looked {
    Packet(Head),
    /// No packet is in the socket's queue now.
    Nothing,
    /// The peer has closed the socket, and every packet of the peer has been received.
    HungUp,
}

/// The properties of the packet at the head of a socket's queue, as a look has shown them. The look leaves the packet
/// in the queue.
pub(super) struct Head {
    /// Number of the packet's bytes that were copied to the caller's buffer; 0 if the packet has no bytes.
    pub(in crate::os) len: usize,
    /// Whether the packet is larger than the buffer: not all of its bytes were copied.
    pub(in crate::os) truncated: bool,
    /// Whether some control messages of the packet, or descriptors in them, did not fit into the caller's buffer, or
    /// this process had too few free descriptors.
    pub(super) control_truncated: bool,
    /// The descriptors of the packet that the kernel has opened in this process.
    pub(in crate::os) descriptors: Vec<OwnedFd>,
    /// The place in `descriptors` of a pidfd of the packet's sender; `None` if the kernel has attached no pidfd.
    pub(super) pidfd: Option<usize>,
    /// The credentials of the packet's sender; `None` if the kernel has attached no credentials.
    pub(in crate::os) sender: Option<libc::ucred>,
    /// Whether the packet came with a control message for which this library never asks the kernel.
    pub(super) has_more: bool,
}

/// Looks at the packet at the head of a socket's queue without blocking, and leaves the packet in the queue. Copies its
/// bytes to `buffer`. `control` is the room for control messages, aligned like the kernel's headers. If `control` is
/// empty, no descriptor of the packet is opened in this process.
pub(super) fn head(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut [MaybeUninit<u8>],
) -> Result<Looked, Error> {
    unless_packets_came_late(|| look_once(socket, buffer, control))
}

/// Calls `look`, which looks for the next packet, and returns its result; if the peer has closed the socket, returns
/// the result of a second look. Linux first looks into the queue, and then checks whether the peer has closed the
/// socket. If the peer sends packets in between and closes the socket, the first look misses the packets. A look that
/// begins after the close sees all packets.
fn unless_packets_came_late(mut look: impl FnMut() -> Result<Looked, Error>) -> Result<Looked, Error> {
    match look()? {
        Looked::HungUp => look(),
        found => Ok(found),
    }
}

/// Looks at the packet at the head of a socket's queue, as [`head`] does. If the result is [`Looked::HungUp`], the peer
/// has closed the socket, but there may be packets that the peer sent right before the close.
fn look_once(socket: BorrowedFd<'_>, buffer: &mut [u8], control: &mut [MaybeUninit<u8>]) -> Result<Looked, Error> {
    let mut place = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero is a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &raw mut place;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    // The C libraries differ in the types of these lengths.
    header.msg_controllen = control.len() as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let mut reset = false;
    let len = loop {
        // SAFETY: `header` points to buffers that live until the call returns, of the sizes in `header`.
        let look = || crate::os::done(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) });
        match call("recvmsg(MSG_PEEK)", look) {
            Ok(len) => break len.cast_unsigned(),
            Err(Errno::AGAIN) => return Ok(Looked::Nothing),
            Err(Errno::INTR) => {}
            // The peer died with unread packets from this process. The socket reports the death once, before the
            // packets of the peer.
            Err(Errno::CONNRESET) if !reset => reset = true,
            Err(Errno::CONNRESET) => return Ok(Looked::HungUp),
            Err(errno) => return Err(failed("recvmsg", errno)),
        }
    };
    let mut head = Head {
        len,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        control_truncated: header.msg_flags & libc::MSG_CTRUNC != 0,
        descriptors: Vec::new(),
        pidfd: None,
        sender: None,
        has_more: false,
    };
    // SAFETY: the kernel has filled `header` and `control` just now.
    unsafe { head.read_control(&header) };
    // The end of a connection has no bytes either, but no descriptors. The descriptors of an empty packet are the
    // peer's: they go to the caller, because closing such a descriptor here could block.
    if len == 0 && head.descriptors.is_empty() && wait(socket, Interest::Readable, Deadline::NOW)?.hung_up {
        return Ok(Looked::HungUp);
    }
    Ok(Looked::Packet(head))
}

impl Head {
    /// Reads the control messages of a packet, and takes ownership of every descriptor in them.
    ///
    /// # Safety
    /// The kernel has filled `header` and the memory behind it, and no code has read them before. So the descriptors in
    /// the control messages are new and have no owner.
    unsafe fn read_control(&mut self, header: &libc::msghdr) {
        // SAFETY: the loop stays within `msg_controllen` bytes, which the kernel has written.
        unsafe {
            let mut part = libc::CMSG_FIRSTHDR(header);
            while !part.is_null() {
                let (level, kind) = ((*part).cmsg_level, (*part).cmsg_type);
                let data = libc::CMSG_DATA(part);
                let len: usize = (*part).cmsg_len as _;
                let len = len.saturating_sub(libc::CMSG_LEN(0) as usize);
                match (level, kind) {
                    (libc::SOL_SOCKET, libc::SCM_RIGHTS) => self.own_descriptors(data, len),
                    (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if len >= size_of::<libc::ucred>() => {
                        self.sender = Some(data.cast::<libc::ucred>().read_unaligned());
                    }
                    (libc::SOL_SOCKET, SCM_PIDFD) => {
                        let before = self.descriptors.len();
                        self.own_descriptors(data, len);
                        self.pidfd = (self.descriptors.len() > before).then_some(before);
                        self.has_more = true;
                    }
                    _ => self.has_more = true,
                }
                part = libc::CMSG_NXTHDR(header, part);
            }
        }
    }

    /// Takes ownership of the descriptors whose numbers are in the `len` bytes from `data` on, and appends them to the
    /// packet's descriptors.
    ///
    /// # Safety
    /// The kernel has written the numbers just now, and nothing else has read them.
    unsafe fn own_descriptors(&mut self, data: *const u8, len: usize) {
        for at in 0..len / size_of::<libc::c_int>() {
            // SAFETY: the caller promises that the kernel has written the `len` bytes. For a descriptor that the kernel
            // could not open, the kernel has written an error, which is below 0.
            let fd = unsafe { data.cast::<libc::c_int>().add(at).read_unaligned() };
            if fd >= 0 {
                // SAFETY: the kernel has opened the descriptor just now, and the descriptor has no other owner.
                self.descriptors.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::socket;
    use std::os::fd::AsFd;

    #[repr(C, align(8))]
    struct Room([MaybeUninit<u8>; 256]);

    fn look(socket: impl AsFd) -> Head {
        let mut room = Room([MaybeUninit::uninit(); 256]);
        match head(socket.as_fd(), &mut [0; 8], &mut room.0) {
            Ok(Looked::Packet(head)) => head,
            _ => panic!("no packet"),
        }
    }

    #[test]
    fn descriptors_of_every_kind_have_an_owner() {
        let (ours, theirs) = socket::pair().unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let send = || drop(socket::send(theirs.as_fd(), b"packet", &[reader.as_fd(); 6]));
        send();
        let plain = look(&ours);
        assert_eq!((plain.len, plain.descriptors.len(), plain.has_more), (6, 6, false));
        socket::take(ours.as_fd(), &mut []).unwrap();
        // The option SO_PASSPIDFD, for which the kernel may be too old.
        let (on, len): (libc::c_int, _) = (1, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the pointer is to a local of the size given.
        let set = unsafe { libc::setsockopt(ours.as_raw_fd(), libc::SOL_SOCKET, 76, (&raw const on).cast(), len) };
        if set == 0 {
            send();
            let more = look(&ours);
            assert_eq!((more.len, more.descriptors.len(), more.has_more), (6, 7, true));
        }
    }

    #[test]
    fn a_packet_that_was_sent_right_before_the_end_is_found() {
        let packet = || Head {
            len: 1,
            truncated: false,
            control_truncated: false,
            descriptors: Vec::new(),
            pidfd: None,
            sender: None,
            has_more: false,
        };
        let mut looks = [Looked::HungUp, Looked::Packet(packet())].into_iter();
        let found = unless_packets_came_late(|| Ok(looks.next().unwrap()));
        assert!(matches!(found, Ok(Looked::Packet(_))));
        assert!(unless_packets_came_late(|| Ok(Looked::HungUp)).is_ok_and(|found| matches!(found, Looked::HungUp)));
    }

    #[test]
    fn a_packet_without_bytes_is_not_the_end() {
        let (ours, theirs) = socket::pair().unwrap();
        socket::send(theirs.as_fd(), b"", &[]).unwrap();
        assert_eq!(look(&ours).len, 0);
        drop(theirs);
        socket::take(ours.as_fd(), &mut []).unwrap();
        assert!(matches!(head(ours.as_fd(), &mut [0; 8], &mut []), Ok(Looked::HungUp)));
    }

    #[test]
    fn descriptors_of_an_empty_packet_right_before_the_end_go_to_the_caller() {
        let (ours, theirs) = socket::pair().unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        socket::send(theirs.as_fd(), b"", &[reader.as_fd(); 2]).unwrap();
        drop(theirs);
        let found = look(&ours);
        assert_eq!((found.len, found.descriptors.len()), (0, 2));
    }
}
