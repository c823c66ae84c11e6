//! The socket of a link: `SOCK_SEQPACKET`. Its calls never block, and never raise a signal.
//!
//! Each call asks for non-blocking operation itself (`MSG_DONTWAIT`). `O_NONBLOCK` belongs to the open file
//! description, so a peer with a copy of the socket could change the flag.

pub(crate) mod credentials;
mod peek;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, sockopt,
};

use super::{Named, call, done, failed};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::process::held::poll;
use crate::signals;
use peek::{Head, Looked};

/// The greatest number of descriptors that the kernel permits in one packet. The receive buffer has room for this
/// number. So a packet loses descriptors only because this process has no free descriptors, never for lack of room.
pub(crate) const SCM_MAX_FD: usize = 253;

/// The temporary error of a call that could not receive all packets which it has to receive.
pub(crate) const NOT_NOW: Error = Error::System { call: "recvmsg", code: Errno::AGAIN.raw_os_error() };

/// How often receiving a packet that is known to be there is tried again after an error that may be temporary.
const TAKE_TRIES: usize = 64;

/// Creates a connected pair of `SOCK_SEQPACKET` sockets, which are closed on `exec`.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    let pair = || net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    call("socketpair", pair).named("socketpair")
}

/// Returns whether `fd` is a connected Unix socket of type `SOCK_SEQPACKET`. An error comes from the kernel and says
/// nothing about the descriptor.
pub(crate) fn is_seqpacket(fd: impl AsFd) -> Result<bool, Error> {
    Ok(other_than_seqpacket(fd)?.is_none())
}

/// Returns `None` if `fd` is a connected Unix socket of type `SOCK_SEQPACKET`; otherwise says what `fd` is instead. An
/// error comes from the kernel and says nothing about the descriptor.
pub(crate) fn other_than_seqpacket(fd: impl AsFd) -> Result<Option<&'static str>, Error> {
    let fd = fd.as_fd();
    let found = |asked: Result<Option<&'static str>, Errno>, name| match asked {
        Err(Errno::NOTSOCK) => Ok(Some("no socket")),
        Err(Errno::BADF) => Ok(Some("not an open file")),
        Err(Errno::NOTCONN | Errno::OPNOTSUPP | Errno::INVAL) => Ok(Some("a socket that is not connected")),
        asked => asked.named(name),
    };
    let domain = || {
        let domain = sockopt::socket_domain(fd)?;
        Ok((domain != AddressFamily::UNIX).then_some("a socket of another family"))
    };
    let kind = || {
        let kind = sockopt::socket_type(fd)?;
        Ok(match kind {
            SocketType::SEQPACKET => None,
            SocketType::STREAM => Some("a stream socket"),
            SocketType::DGRAM => Some("a datagram socket"),
            _ => Some("a socket of another type"),
        })
    };
    let connected = || net::getpeername(fd).map(|_| None);
    if let Some(other) = found(call("getsockopt", domain), "getsockopt(SO_DOMAIN)")? {
        return Ok(Some(other));
    }
    if let Some(other) = found(call("getsockopt", kind), "getsockopt(SO_TYPE)")? {
        return Ok(Some(other));
    }
    found(call("getpeername", connected), "getpeername")
}

/// Sets the close-on-exec flag of `fd`, even if the process that made the descriptor chose otherwise.
pub(crate) fn close_on_exec(fd: impl AsFd) -> Result<(), Error> {
    call("fcntl(F_SETFD)", || rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)).named("fcntl(F_SETFD)")
}

/// The outcome of sending a packet.
pub(crate) enum Sent {
    /// The packet was sent: it is in the peer's queue.
    Done,
    /// The packet was not sent, because the peer's queue is full. The caller can send the packet later.
    Full,
    /// The packet was not sent: the kernel has no memory for the packet, or too many descriptors of this process's user
    /// are in flight. The packet can be sent later.
    Refused,
    /// The packet was not sent, because the peer has closed the socket.
    HungUp,
}

/// Sends one packet with the given bytes and descriptors, without blocking. The returned [`Sent`] says whether the
/// packet was sent, and if not, why.
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

/// The result of a look at the next packet in a socket's queue.
pub(crate) enum ReceivedPacket {
    /// A packet is there; `len` bytes of it were copied into the caller's buffer.
    Packet {
        len: usize,
        /// Whether the packet is larger than the buffer: not all of its bytes were copied.
        truncated: bool,
        /// Whether the kernel has left out descriptors of the packet: the caller gave no room for them, or this process
        /// had no free descriptors.
        descriptors_lost: bool,
        /// Whether the packet came with a control message other than descriptors and those in `beside`. If so, a
        /// process with a copy of the socket must have asked the kernel for the message.
        has_more: bool,
        /// Whether the packet came without the credentials of its sender, although the caller expects them
        /// ([`Beside::Credentials`]). If so, a process with a copy of the socket must have changed the socket. `false`
        /// if the caller gave no room for descriptors.
        lacks_credentials: bool,
    },
    /// No packet is in the socket's queue now.
    Empty,
    /// The peer has closed the socket, and every packet of the peer has been received.
    HungUp,
}

/// The control messages, beside descriptors, that come with each packet of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Nothing,
    /// The credentials of the packet's sender, which are not returned.
    Credentials,
}

/// Looks at the next packet without blocking, and leaves the packet in the socket. Copies its bytes to `buffer`, and
/// appends its descriptors to `descriptors`: at most `most` of them, up to [`SCM_MAX_FD`]. Further descriptors of the
/// packet do not become open in this process. If this process has too few free descriptors, the packet is not lost, but
/// stays in the socket. [`take`] removes the packet.
///
/// There is no other way to know that all descriptors fit: another thread may have used a free descriptor meanwhile.
pub(crate) fn look(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    most: usize,
    beside: Beside,
) -> Result<ReceivedPacket, Error> {
    /// Room for the credentials, which the kernel writes first.
    const CREDENTIALS: usize = cmsg_space!(ScmCredentials(1));
    const ROOM: usize = CREDENTIALS + cmsg_space!(ScmRights(SCM_MAX_FD));
    /// A buffer aligned like the kernel's headers of control messages, so that it has exactly the room intended.
    #[repr(align(8))]
    struct Space([MaybeUninit<u8>; ROOM]);
    let mut space = Space([MaybeUninit::uninit(); ROOM]);
    let room = match most {
        0 => 0,
        SCM_MAX_FD => ROOM - CREDENTIALS,
        // Room for a header and the numbers, not rounded up: rounded up, there could be room for one more number.
        most => size_of::<libc::cmsghdr>() + most * size_of::<libc::c_int>(),
    };
    let has_room_beside = beside == Beside::Credentials && most > 0;
    let room = if has_room_beside { CREDENTIALS + room } else { room };
    Ok(match peek::head(socket, buffer, &mut space.0[..room])? {
        Looked::Nothing => ReceivedPacket::Empty,
        Looked::HungUp => ReceivedPacket::HungUp,
        Looked::Packet(Head { len, truncated, control_truncated, descriptors: came, sender, has_more, .. }) => {
            descriptors.extend(came);
            let has_more = has_more || (sender.is_some() && beside == Beside::Nothing);
            let lacks_credentials = sender.is_none() && has_room_beside;
            ReceivedPacket::Packet { len, truncated, descriptors_lost: control_truncated, has_more, lacks_credentials }
        }
    })
}

/// Looks at the next packet of a socket whose packets come with credentials, without blocking, and leaves the packet in
/// the socket. Returns whether the packet fills `buffer` exactly and comes with credentials and nothing else. If so,
/// `buffer` then holds the bytes of the packet.
pub(crate) fn next_is_plain(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> bool {
    const ROOM: usize = cmsg_space!(ScmCredentials(1));
    #[repr(align(8))]
    struct Space([MaybeUninit<u8>; ROOM]);
    let mut space = Space([MaybeUninit::uninit(); ROOM]);
    let most = buffer.len();
    match peek::head(socket, buffer, &mut space.0) {
        Ok(Looked::Packet(head)) => {
            let fits = head.len == most && !head.truncated && !head.control_truncated;
            fits && head.descriptors.is_empty() && head.sender.is_some() && !head.has_more
        }
        _ => false,
    }
}

/// The result of [`receive_bare`], which receives a packet without its descriptors.
pub(crate) enum Bare {
    /// A packet was received. The number is the length of the whole packet in bytes. If the packet is longer than the
    /// buffer, the rest of its bytes is lost.
    Packet(usize),
    /// No packet could be received now: the socket's queue is empty, or the kernel has no memory for the packet. The
    /// packet then stays in the queue.
    Empty,
    /// The socket is of no use any more: the peer has closed it or sent an empty packet, or the socket has failed.
    HungUp,
}

/// Receives one packet from a process that was not accepted yet, without blocking, and copies its bytes to `buffer`, as
/// many as fit. The kernel drops descriptors of the packet: they never become open in this process.
pub(crate) fn receive_bare(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Bare {
    loop {
        let receive = || net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC);
        return match call("recvfrom", receive) {
            Ok((_, 0)) => Bare::HungUp,
            Ok((_, len)) => Bare::Packet(len),
            Err(Errno::INTR) => continue,
            // With ENOMEM and ENOBUFS the kernel has no memory for the packet now; the socket stays readable.
            Err(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS) => Bare::Empty,
            Err(_) => Bare::HungUp,
        };
    }
}

/// Removes the packet at the head of a socket's queue, without its descriptors, and copies its bytes into `buffer`.
/// Returns the length of the whole packet in bytes, which may exceed the length of `buffer`. The caller must have
/// looked at the packet before, so the packet must be there. Fails only with [`Error::PeerClosed`]: the socket has
/// ended.
pub(crate) fn take(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Error> {
    let mut tries = 0;
    loop {
        match call("recvfrom", || net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)) {
            Ok((_, len)) => return Ok(len),
            // The socket reports the peer's death before the packets that the peer had sent.
            Err(Errno::INTR | Errno::CONNRESET | Errno::NOMEM | Errno::NOBUFS) if tries < TAKE_TRIES => tries += 1,
            Err(_) => return Err(Error::PeerClosed),
        }
    }
}

/// Number of the socket option `SO_PASSPIDFD` (Linux 6.5), which older headers lack.
const SO_PASSPIDFD: libc::c_int = 76;

/// Numbers of the socket options that make the kernel add further control messages to a packet: a pidfd of the sender's
/// process, its security context, times. A link asks for the pidfd of the first packet's sender, and for nothing else.
const MORE_BESIDE: [libc::c_int; 4] = [SO_PASSPIDFD, libc::SO_PASSSEC, libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS];

/// Resets the socket options by which the process that made the socket may have changed what this process sees: the
/// control messages that come with a packet, and where in the queue a look begins. If an option is unknown to the
/// kernel or cannot be reset, an unexpected control message with a later packet reveals the option.
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

/// Returns whether a look at the next packet begins at the head of the socket's queue, and not further behind. (A
/// process with a copy of the socket can change where a look begins.)
pub(crate) fn looks_at_head(socket: BorrowedFd<'_>) -> bool {
    let mut offset: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let (place, socket) = ((&raw mut offset).cast(), socket.as_raw_fd());
    let ask = || {
        // SAFETY: the pointers are to locals of the sizes given.
        done(unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF, place, &raw mut len) } as isize)
    };
    // A kernel that does not answer has no such option.
    call("getsockopt(SO_PEEK_OFF)", ask).is_err() || offset < 0
}

/// Returns whether this process can open `count` more descriptors, by duplicating `any` as often and closing the
/// copies. A hint only: another thread may use the free descriptors at once.
pub(crate) fn are_descriptors_free(any: BorrowedFd<'_>, count: usize) -> bool {
    let copy = || call("fcntl(F_DUPFD_CLOEXEC)", || rustix::io::fcntl_dupfd_cloexec(any, 0));
    let copies: Result<Vec<OwnedFd>, Errno> = (0..count).map(|_| copy()).collect();
    copies.is_ok()
}

/// Makes the peer's sends fail from now on. Returns whether no packet is left in the socket's queue; `false` also if
/// the kernel does not tell.
pub(crate) fn ends_empty(socket: BorrowedFd<'_>) -> bool {
    stop_receiving(socket);
    // A packet without bytes would look like the end. With the option `SO_PASSCRED` such a packet has a control
    // message, for which there is no room.
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
            // The socket reports only once that the peer died with unreceived packets.
            Err(Errno::INTR | Errno::CONNRESET) if tries < TAKE_TRIES => tries += 1,
            Err(_) => return false,
        }
    }
}

/// A buffer into which the kernel copies a packet while another thread reads the buffer.
pub(crate) struct SharedBytes(Box<[AtomicU8]>);

impl SharedBytes {
    pub(crate) fn new(bytes: impl Iterator<Item = u8>) -> Self {
        Self(bytes.map(AtomicU8::new).collect())
    }

    /// Returns whether the buffer's bytes are equal to `bytes` now.
    pub(crate) fn are(&self, bytes: &[u8]) -> bool {
        self.0.iter().map(|byte| byte.load(Ordering::Relaxed)).eq(bytes.iter().copied())
    }

    /// Removes the packet at the head of a socket's queue, without its descriptors, and copies its bytes into the
    /// buffer. Returns `false` if the packet could not be removed.
    pub(crate) fn receive(&self, socket: BorrowedFd<'_>) -> bool {
        let place = self.0.as_ptr().cast_mut().cast::<libc::c_void>();
        let mut tries = 0;
        loop {
            // The call goes by number, because the thread sanitizer takes `libc::recv` for a write of this thread that
            // is not atomic, and reports a race with the other thread's reads. No read needs an order: the caller of
            // `are` learns only that the bytes have arrived, and the kernel orders the calls on the socket itself.
            let receive = || {
                let nobody = std::ptr::null_mut::<libc::c_void>();
                // SAFETY: the kernel writes no more bytes than the buffer has, and no address. All other access to the
                // bytes is atomic, and atomics may be written through a shared reference.
                let returned = unsafe {
                    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
                    libc::syscall(libc::SYS_recvfrom, fd, place, self.0.len(), flags, nobody, nobody)
                };
                done(returned as isize)
            };
            match call("recvfrom", receive) {
                Ok(_) => return true,
                Err(Errno::INTR | Errno::CONNRESET | Errno::NOMEM | Errno::NOBUFS) if tries < TAKE_TRIES => tries += 1,
                Err(_) => return false,
            }
        }
    }
}

/// Makes the peer's sends fail from now on. Packets that the peer had sent before can still be received.
pub(crate) fn stop_receiving(socket: BorrowedFd<'_>) {
    let _ = call("shutdown", || net::shutdown(socket, net::Shutdown::Read));
}

/// Ends the socket's connection in both directions, even if other processes have descriptors of the socket.
pub(crate) fn shut(socket: BorrowedFd<'_>) {
    let _ = call("shutdown", || net::shutdown(socket, net::Shutdown::Both));
}

/// The events that end a thread's wait on a socket. A hang-up of the peer ends every wait as well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// `Readable`: the wait ends when there is a packet to receive.
    Readable,
    /// `Any`: the wait ends when there is a packet to receive, or when there is room to send one.
    Any,
}

/// The state of a socket after a wait. All fields are `false` if the deadline has passed, or another watched descriptor
/// ended the wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) hung_up: bool,
}

/// Sleeps until the socket is ready for `interest`, the peer has hung up, or the deadline has passed. At the deadline
/// all fields of the result are `false`.
pub(crate) fn wait(socket: BorrowedFd<'_>, interest: Interest, deadline: Deadline) -> Result<Readiness, Error> {
    wait_also(socket, AlsoWatched::default(), interest, deadline)
}

/// Further descriptors that end a sleep on a socket when they become readable.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AlsoWatched<'a> {
    /// The pidfd of a process whose end also ends the sleep, and is reported as a hang-up of the socket; `None` if no
    /// process is watched.
    pub(crate) process: Option<BorrowedFd<'a>>,
    /// A wake fd or another descriptor, which ends the sleep when readable; `None` if there is none.
    pub(crate) wake_fd: Option<BorrowedFd<'a>>,
}

/// Sleeps until the socket is ready for `interest`, the peer has hung up, a descriptor in `also` is readable, or the
/// deadline has passed. At the deadline all fields of the result are `false`, and also if a signal has interrupted the
/// sleep of a thread with a [guard](signals::Guard).
pub(crate) fn wait_also(
    socket: BorrowedFd<'_>,
    also: AlsoWatched<'_>,
    interest: Interest,
    deadline: Deadline,
) -> Result<Readiness, Error> {
    let wanted = wanted(interest);
    loop {
        let timeout = deadline.remaining(Instant::now()).map(timespec);
        // The socket takes the place of a missing descriptor, with no events asked for.
        let other = |fd: Option<_>| match fd {
            Some(fd) => PollFd::from_borrowed_fd(fd, PollFlags::IN),
            None => PollFd::from_borrowed_fd(socket, PollFlags::empty()),
        };
        let mut fds = [PollFd::from_borrowed_fd(socket, wanted), other(also.process), other(also.wake_fd)];
        let count = if also.wake_fd.is_some() { 3 } else { 1 + usize::from(also.process.is_some()) };
        match call("ppoll", || poll(&mut fds[..count], timeout.as_ref())) {
            Ok(_) => {
                let found = readiness(fds[0].revents());
                let died = also.process.is_some() && !fds[1].revents().is_empty();
                return Ok(Readiness { hung_up: found.hung_up || died, ..found });
            }
            Err(Errno::INTR) if signals::interrupted() && !deadline.is_now() => return Ok(Readiness::default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("poll", errno)),
        }
    }
}

/// Sleeps until `one` or at least one of `others` is readable, for at most `limit` (`None`: without a limit). Returns
/// the indices in `others` of the readable descriptors. Returns no index if only `one` is readable, if the time has
/// passed, or if a signal ended the sleep.
pub(crate) fn wait_any(
    one: BorrowedFd<'_>,
    others: &[BorrowedFd<'_>],
    limit: Option<Duration>,
) -> Result<Vec<usize>, Error> {
    let mut fds: Vec<_> =
        [&one].into_iter().chain(others).map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match call("ppoll", || poll(&mut fds, limit.map(timespec).as_ref())) {
        Ok(_) => Ok((0..others.len()).filter(|index| !fds[index + 1].revents().is_empty()).collect()),
        // After a signal the caller looks at the descriptors itself.
        Err(Errno::INTR) => {
            signals::interrupted();
            Ok(Vec::new())
        }
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

/// Reads one line from `fd` and appends the line to `line` without its line feed; reads no byte behind the line. Blocks
/// at most until `deadline`. Fails with [`Error::NoInvitation`] if the input ends within the line, or if the line has
/// more than `most` bytes.
pub(crate) fn read_line(fd: BorrowedFd<'_>, line: &mut Vec<u8>, most: usize, deadline: Deadline) -> Result<(), Error> {
    let mut byte = [0];
    loop {
        let ready = wait(fd, Interest::Readable, deadline)?;
        if !ready.readable && !ready.hung_up {
            // After a byte was read, the line can only be read to its end.
            if line.is_empty() && !deadline.is_now() {
                signals::check()?;
            } else if !line.is_empty() && !deadline.has_passed() {
                continue;
            }
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
