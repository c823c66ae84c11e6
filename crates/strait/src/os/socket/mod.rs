//! The one socket of a link: `SOCK_SEQPACKET`, never blocking, never raising a signal.
//!
//! Non-blocking is asked for per call (`MSG_DONTWAIT`): `O_NONBLOCK` belongs to the open file description, which a
//! peer that was given it can change.

pub(crate) mod credentials;
mod peek;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, sockopt,
};

use super::{Named, call, done, failed};
use crate::deadline::Deadline;
use crate::error::Error;
use peek::{Head, Looked};

/// Most descriptors in one packet that the kernel lets through (`SCM_MAX_FD`). The receive buffer has room for all
/// of them, so that a packet is never truncated for want of room, only for want of free descriptors.
pub(crate) const SCM_MAX_FD: usize = 253;

/// Tries of taking a packet that is there.
const TAKE_TRIES: usize = 64;

/// A connected pair, closed on `exec`.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    let pair = || net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    call("socketpair", pair).named("socketpair")
}

/// Whether this is a connected Unix socket that keeps packets whole.
pub(crate) fn is_seqpacket(fd: impl AsFd) -> Result<bool, Error> {
    let fd = fd.as_fd();
    let is = |asked: Result<bool, Errno>, name| match asked {
        Err(Errno::NOTSOCK | Errno::NOTCONN | Errno::OPNOTSUPP | Errno::INVAL | Errno::BADF) => Ok(false),
        asked => asked.named(name),
    };
    let domain = || sockopt::socket_domain(fd).map(|domain| domain == AddressFamily::UNIX);
    let kind = || sockopt::socket_type(fd).map(|kind| kind == SocketType::SEQPACKET);
    let connected = || net::getpeername(fd).map(|_| true);
    Ok(is(call("getsockopt", domain), "getsockopt(SO_DOMAIN)")?
        && is(call("getsockopt", kind), "getsockopt(SO_TYPE)")?
        && is(call("getpeername", connected), "getpeername")?)
}

/// Closes the descriptor on `exec`, whatever its maker chose.
pub(crate) fn close_on_exec(fd: impl AsFd) -> Result<(), Error> {
    call("fcntl(F_SETFD)", || rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)).named("fcntl(F_SETFD)")
}

/// How a packet went.
pub(crate) enum Sent {
    /// It is in the peer's queue.
    Done,
    /// The queue is full: later.
    Full,
    /// The kernel has no memory for it, or too many descriptors of this user are under way: later, too.
    Refused,
    /// The peer has hung up.
    HungUp,
}

/// Sends one packet with descriptors, without blocking.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<Sent, Error> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(failed("sendmsg", Errno::INVAL));
    }
    loop {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        return match call("sendmsg", || net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)) {
            Ok(_) => Ok(Sent::Done),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Ok(Sent::Full),
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => Ok(Sent::Refused),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Ok(Sent::HungUp),
            Err(Errno::BADF) => Err(Error::BadHandle),
            Err(errno) => Err(failed("sendmsg", errno)),
        };
    }
}

/// What is at the head of the socket.
pub(crate) enum Received {
    /// A packet of so many bytes in the caller's buffer.
    Packet {
        len: usize,
        /// The packet is larger than the buffer.
        truncated: bool,
        /// The kernel has dropped descriptors: there was no room for them, or this process had none free.
        descriptors_lost: bool,
        /// Something is beside the packet that this library has not asked the kernel for: whoever has a copy of the socket
        /// has asked for it.
        has_more: bool,
    },
    /// Nothing is there now.
    Empty,
    /// The peer has hung up, and everything it sent has been received.
    HungUp,
}

/// Looks at the next packet without blocking, and leaves it there; its descriptors, all of them if there
/// are no more than `most`, are appended to `descriptors`; others do not become this process's. So one whose descriptors find no room here is not lost. [`take`] then takes it.
///
/// There is no other way: a descriptor that was free a moment ago may be another thread's by now.
pub(crate) fn look(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    most: usize,
) -> Result<Received, Error> {
    /// Aligned as the kernel has it, so that there is just the room that is wanted.
    #[repr(align(8))]
    struct Space([MaybeUninit<u8>; cmsg_space!(ScmRights(SCM_MAX_FD))]);
    let mut space = Space([MaybeUninit::uninit(); cmsg_space!(ScmRights(SCM_MAX_FD))]);
    let room = match most {
        0 => 0,
        // A header, and that many numbers: rounded up there would be room for one more.
        1 => size_of::<libc::cmsghdr>() + size_of::<libc::c_int>(),
        _ => space.0.len(),
    };
    Ok(match peek::head(socket, buffer, &mut space.0[..room])? {
        Looked::Nothing => Received::Empty,
        Looked::HungUp => Received::HungUp,
        Looked::Packet(Head { len, truncated, control_truncated, descriptors: came, sender, has_more }) => {
            descriptors.extend(came);
            let has_more = has_more || sender.is_some();
            Received::Packet { len, truncated, descriptors_lost: control_truncated, has_more }
        }
    })
}

/// A packet without descriptors.
pub(crate) enum Bare {
    /// One of so many bytes, of which the buffer has those that fit.
    Packet(usize),
    /// Nothing is there now.
    Empty,
    /// The peer has hung up.
    HungUp,
}

/// Receives one packet from somebody who is not let in yet. What descriptors come with it the kernel drops: they never are
/// this process's.
pub(crate) fn receive_bare(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Bare {
    loop {
        let receive = || net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC);
        return match call("recvfrom", receive) {
            Ok((_, 0)) => Bare::HungUp,
            Ok((_, len)) => Bare::Packet(len),
            Err(Errno::INTR) => continue,
            // Or the kernel has no memory for it now: the socket stays readable.
            Err(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS) => Bare::Empty,
            Err(_) => Bare::HungUp,
        };
    }
}

/// Takes the packet at the head, without its descriptors, into `buffer`. Its length, which may be more than fits there. The
/// packet was looked at before: one that could not be taken would be there once more, so that an error is the socket's end.
pub(crate) fn take(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Error> {
    let mut tries = 0;
    loop {
        match call("recvfrom", || net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)) {
            Ok((_, len)) => return Ok(len),
            // What the peer's death has to say comes before what it sent.
            Err(Errno::INTR | Errno::CONNRESET | Errno::NOMEM | Errno::NOBUFS) if tries < TAKE_TRIES => tries += 1,
            Err(_) => return Err(Error::PeerClosed),
        }
    }
}

/// Options that have the kernel put something beside a packet that no link asks for: descriptors of the sender's process, its
/// security context, times. (`SO_PASSPIDFD` is of Linux 6.5.)
const MORE_BESIDE: [libc::c_int; 4] = [76, libc::SO_PASSSEC, libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS];

/// Has the kernel show packets as they were sent, from the head on, with nothing beside them but what was sent and what is
/// asked for elsewhere, whatever the maker of the socket has asked for. What this kernel does not know, or does not let be
/// changed, is found out when a packet comes that shows it.
pub(crate) fn receive_plainly(socket: BorrowedFd<'_>) {
    for option in MORE_BESIDE {
        let _ = set_option(socket, option, 0);
    }
    let _ = set_option(socket, libc::SO_PEEK_OFF, -1);
}

fn set_option(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> Result<(), Errno> {
    let (place, len) = ((&raw const value).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    let set = || {
        // SAFETY: the pointer is to a local of the size given.
        done(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, place, len) } as isize)
    };
    call("setsockopt", set).map(drop)
}

/// Whether looking at packets begins at the head of the socket. (Whoever has a copy of it can have it begin elsewhere.)
pub(crate) fn looks_at_head(socket: BorrowedFd<'_>) -> bool {
    let mut offset: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let (place, socket) = ((&raw mut offset).cast(), socket.as_raw_fd());
    let ask = || {
        // SAFETY: the pointers are to locals of the sizes given.
        done(unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF, place, &raw mut len) } as isize)
    };
    // A kernel that does not say has no such option.
    call("getsockopt(SO_PEEK_OFF)", ask).is_err() || offset < 0
}

/// Whether this process can have one more descriptor, as far as can be known: another thread may take it at once.
pub(crate) fn is_descriptor_free(any: BorrowedFd<'_>) -> bool {
    call("fcntl(F_DUPFD_CLOEXEC)", || rustix::io::fcntl_dupfd_cloexec(any, 0)).is_ok()
}

/// Makes the peer's sends fail from here on. Whether nothing that the peer had sent is unread; false if that cannot be told.
pub(crate) fn ends_empty(socket: BorrowedFd<'_>) -> bool {
    stop_receiving(socket);
    // So that a packet without bytes, which looks like the end otherwise, has something beside it that finds no room.
    if call("setsockopt(SO_PASSCRED)", || sockopt::set_socket_passcred(socket, true)).is_err() {
        return false;
    }
    let look = || {
        let (mut byte, mut nothing) = ([0], RecvAncillaryBuffer::default());
        let mut place = [IoSliceMut::new(&mut byte)];
        let found = net::recvmsg(socket, &mut place, &mut nothing, RecvFlags::DONTWAIT | RecvFlags::PEEK)?;
        Ok(found.bytes == 0 && !found.flags.contains(ReturnFlags::CTRUNC))
    };
    let mut tries = 0;
    loop {
        match call("recvmsg(MSG_PEEK)", look) {
            Ok(empty) => return empty,
            // That the peer died with packets of ours unread is said once.
            Err(Errno::INTR | Errno::CONNRESET) if tries < TAKE_TRIES => tries += 1,
            Err(_) => return false,
        }
    }
}

/// Bytes that the kernel copies a packet into while another thread looks at them.
pub(crate) struct Shared(Box<[AtomicU8]>);

impl Shared {
    pub(crate) fn new(bytes: impl Iterator<Item = u8>) -> Self {
        Self(bytes.map(AtomicU8::new).collect())
    }

    /// Whether they are these now.
    pub(crate) fn are(&self, bytes: &[u8]) -> bool {
        self.0.iter().map(|byte| byte.load(Ordering::Relaxed)).eq(bytes.iter().copied())
    }

    /// Takes the packet at the head, without its descriptors. False if it could not be taken.
    pub(crate) fn receive(&self, socket: BorrowedFd<'_>) -> bool {
        let place = self.0.as_ptr().cast_mut().cast();
        let mut tries = 0;
        loop {
            let receive = || {
                // SAFETY: the kernel writes no more bytes than there are; all other access to them is atomic, and they may be
                // written through a shared reference, as atomics are.
                done(unsafe { libc::recv(socket.as_raw_fd(), place, self.0.len(), libc::MSG_DONTWAIT) })
            };
            match call("recvfrom", receive) {
                Ok(_) => return true,
                Err(Errno::INTR | Errno::CONNRESET | Errno::NOMEM | Errno::NOBUFS) if tries < TAKE_TRIES => tries += 1,
                Err(_) => return false,
            }
        }
    }
}

/// Makes the peer's sends fail from here on. What it had sent can still be received.
pub(crate) fn stop_receiving(socket: BorrowedFd<'_>) {
    let _ = call("shutdown", || net::shutdown(socket, net::Shutdown::Read));
}

/// Ends a connection in both directions, whoever else has its descriptors.
pub(crate) fn shut(socket: BorrowedFd<'_>) {
    let _ = call("shutdown", || net::shutdown(socket, net::Shutdown::Both));
}

/// What a wait on the socket waits for, besides the peer's hang-up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// A packet to receive.
    Readable,
    /// Room to send, or a packet to receive.
    Any,
}

/// What a wait on the socket found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) hung_up: bool,
}

/// Sleeps until the socket is ready or the deadline has passed (then nothing is ready).
pub(crate) fn wait(socket: BorrowedFd<'_>, interest: Interest, deadline: Deadline) -> Result<Readiness, Error> {
    wait_beside(socket, Beside::default(), interest, deadline)
}

/// What else ends a sleep on a socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside<'a> {
    /// A pidfd, whose process ends; that is a hang-up.
    pub(crate) process: Option<BorrowedFd<'a>>,
    /// Something that can be read.
    pub(crate) bell: Option<BorrowedFd<'a>>,
}

/// The same with something beside it.
pub(crate) fn wait_beside(
    socket: BorrowedFd<'_>,
    beside: Beside<'_>,
    interest: Interest,
    deadline: Deadline,
) -> Result<Readiness, Error> {
    let wanted = wanted(interest);
    loop {
        let timeout = deadline.remaining(Instant::now()).map(timespec);
        // In the place of one that is not there stands the socket, about which nothing is asked.
        let other = |fd: Option<_>| match fd {
            Some(fd) => PollFd::from_borrowed_fd(fd, PollFlags::IN),
            None => PollFd::from_borrowed_fd(socket, PollFlags::empty()),
        };
        let mut fds = [PollFd::from_borrowed_fd(socket, wanted), other(beside.process), other(beside.bell)];
        let count = if beside.bell.is_some() { 3 } else { 1 + usize::from(beside.process.is_some()) };
        match call("ppoll", || poll(&mut fds[..count], timeout.as_ref())) {
            Ok(_) => {
                let found = readiness(fds[0].revents());
                let died = beside.process.is_some() && !fds[1].revents().is_empty();
                return Ok(Readiness { hung_up: found.hung_up || died, ..found });
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("poll", errno)),
        }
    }
}

/// Sleeps until one of these can be read, for at most `limit`: which of `others` can.
pub(crate) fn wait_any(
    one: BorrowedFd<'_>,
    others: &[BorrowedFd<'_>],
    limit: Option<Duration>,
) -> Result<Vec<usize>, Error> {
    let mut fds: Vec<_> =
        [&one].into_iter().chain(others).map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match call("ppoll", || poll(&mut fds, limit.map(timespec).as_ref())) {
        Ok(_) => Ok((0..others.len()).filter(|index| !fds[index + 1].revents().is_empty()).collect()),
        // Whoever sleeps looks what is there.
        Err(Errno::INTR) => Ok(Vec::new()),
        Err(errno) => Err(failed("poll", errno)),
    }
}

fn wanted(interest: Interest) -> PollFlags {
    PollFlags::RDHUP
        | match interest {
            Interest::Readable => PollFlags::IN,
            Interest::Any => PollFlags::IN | PollFlags::OUT,
        }
}

fn readiness(found: PollFlags) -> Readiness {
    Readiness {
        readable: found.contains(PollFlags::IN),
        writable: found.contains(PollFlags::OUT),
        hung_up: found.intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL),
    }
}

fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: d.subsec_nanos().into() }
}

/// Reads one line, without its end, and no byte more. What ends before it, or is longer than `most`, is
/// [`Error::NoInvitation`].
pub(crate) fn read_line(fd: BorrowedFd<'_>, line: &mut Vec<u8>, most: usize, deadline: Deadline) -> Result<(), Error> {
    let mut byte = [0];
    loop {
        let ready = wait(fd, Interest::Readable, deadline)?;
        if !ready.readable && !ready.hung_up {
            return Err(if deadline.is_now() { Error::WouldBlock } else { Error::TimedOut });
        }
        match call("read", || rustix::io::read(fd, &mut byte)) {
            Ok(1) if byte[0] == b'\n' => return Ok(()),
            Ok(1) if line.len() < most => line.push(byte[0]),
            Ok(_) => return Err(Error::NoInvitation),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(failed("read", errno)),
        }
    }
}
