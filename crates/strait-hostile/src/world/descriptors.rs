//! Descriptors of every kind that any process can get from the kernel, and of some kinds that need privileges.

use std::ffi::{CStr, c_int, c_long};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use crate::memory::{NAME, SIZE_SEALS, file, immutable};
use crate::wire;
use crate::world::choices::Choices;
use crate::world::donors::Donors;

/// A kind of descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    Memory,
    SparseMemory,
    UnsealedMemory,
    ImmutableMemory,
    HalfSealedMemory,
    EmptyMemory,
    HugeMemory,
    SecretMemory,
    ReadOnlyMemory,
    Null,
    Zero,
    Terminal,
    FuseDevice,
    LoopControl,
    RegularFile,
    Directory,
    PathOnly,
    ProcFile,
    Namespace,
    PipeReader,
    FullPipe,
    Event,
    Epoll,
    EpollOfEpolls,
    Timer,
    Signals,
    Inotify,
    Fanotify,
    ProcessDead,
    ProcessOwn,
    IoUring,
    Userfault,
    StuckUserfault,
    FuseFile,
    UnixSocket,
    UnixWithDescriptors,
    UnixWithLinger,
    UnixInCircle,
    UnixListener,
    TcpListening,
    TcpLingers,
    Udp,
    Netlink,
    PacketRing,
    Crypto,
    MessageQueue,
    BpfMap,
    PerfEvent,
}

/// All kinds of descriptors without a helper process.
pub const KINDS: [Kind; 46] = {
    use Kind::*;
    [
        Memory,
        SparseMemory,
        UnsealedMemory,
        ImmutableMemory,
        HalfSealedMemory,
        EmptyMemory,
        HugeMemory,
        SecretMemory,
        ReadOnlyMemory,
        Null,
        Zero,
        Terminal,
        FuseDevice,
        LoopControl,
        RegularFile,
        Directory,
        PathOnly,
        ProcFile,
        Namespace,
        PipeReader,
        FullPipe,
        Event,
        Epoll,
        EpollOfEpolls,
        Timer,
        Signals,
        Inotify,
        Fanotify,
        ProcessDead,
        ProcessOwn,
        IoUring,
        Userfault,
        UnixSocket,
        UnixWithDescriptors,
        UnixInCircle,
        UnixListener,
        TcpListening,
        Udp,
        Netlink,
        Crypto,
        MessageQueue,
        BpfMap,
        PerfEvent,
        // The kinds with a long last close are at the end.
        PacketRing,
        TcpLingers,
        UnixWithLinger,
    ]
};

/// The kinds whose last close waits: for the attacker, for 10 ms, or, for a lingering connection, until its peer
/// closes or the linger time is over.
pub const SLOW: [Kind; 7] = {
    use Kind::*;
    [PacketRing, Inotify, Fanotify, TcpLingers, UnixWithLinger, StuckUserfault, FuseFile]
};

/// Returns whether attackers send descriptors of the [`SLOW`] kinds: the environment decides.
pub fn sends_slow() -> bool {
    std::env::var_os("STRAIT_HOSTILE_SLOW").is_some()
}

/// How long the close of a lingering connection waits for its peer.
const LINGER: Duration = Duration::from_secs(20);

/// Descriptors that must stay open because other descriptors depend on them.
#[derive(Debug, Default)]
pub struct Kept {
    descriptors: Vec<OwnedFd>,
    /// Whether the oldest descriptor is closed when there are too many. Otherwise the oldest descriptor leaks,
    /// because its close may take long.
    pub closes: bool,
}

/// The maximum number of descriptors in a [`Kept`].
const MOST_KEPT: usize = 400;

impl Kept {
    /// Stores the attacker's copy of the victim's end of an ended link, if there is a copy.
    pub fn keep_link(&mut self, copy: Option<OwnedFd>) {
        if let Some(copy) = copy {
            self.keep(copy);
        }
    }

    /// Stores a descriptor so that it stays open. If there are too many then, the oldest is closed or leaks.
    pub fn keep(&mut self, fd: impl Into<OwnedFd>) {
        self.descriptors.push(fd.into());
        if self.descriptors.len() > MOST_KEPT {
            let oldest = self.descriptors.remove(0);
            if !self.closes {
                // A close here may take as long as in the victim.
                std::mem::forget(oldest);
            }
        }
    }
}

fn owned(fd: c_long) -> Option<OwnedFd> {
    // SAFETY: the kernel has just made this descriptor for this process, since `fd` is not an error.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

fn opened(path: &CStr, flags: OFlags) -> Option<OwnedFd> {
    open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty()).ok()
}

fn pair(kind: SocketType) -> Option<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).ok()
}

/// Returns a connection whose last close waits for its linger time, because the other side reads nothing.
fn lingers(kept: &mut Kept) -> Option<OwnedFd> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    let client = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    let (server, _) = listener.accept().ok()?;
    client.set_nonblocking(true).ok()?;
    while std::io::Write::write(&mut &client, &[0; 65_536]).is_ok() {}
    sockopt::set_socket_linger(&client, Some(LINGER)).ok()?;
    client.set_nonblocking(false).ok()?;
    kept.keep(server);
    Some(client.into())
}

/// Returns a Unix socket with the descriptors `inner` in its queue. If `stays`, the socket's peer stays open.
fn wrapped(inner: &[BorrowedFd<'_>], kept: &mut Kept, stays: bool) -> Option<OwnedFd> {
    let (one, other) = pair(SocketType::SEQPACKET)?;
    wire::send(&one, b"x", inner).ok()?;
    if stays {
        kept.keep(one);
    }
    Some(other)
}

/// Returns an `AF_PACKET` socket with a ring, whose close waits for a grace period of the kernel.
fn packet_ring() -> Option<OwnedFd> {
    /// `struct tpacket_req`.
    #[repr(C)]
    struct Request {
        block_size: u32,
        blocks: u32,
        frame_size: u32,
        frames: u32,
    }
    const PACKET_RX_RING: c_int = 5;
    // SAFETY: the arguments are plain numbers.
    let socket = owned(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) }.into())?;
    let request = Request { block_size: 4096, blocks: 4, frame_size: 2048, frames: 8 };
    let (place, len) = ((&raw const request).cast(), size_of::<Request>() as u32);
    // SAFETY: the pointer is to a local of the given size.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, PACKET_RX_RING, place, len) };
    Some(socket)
}

fn io_uring() -> Option<OwnedFd> {
    let mut parameters = [0u32; 30];
    // SAFETY: the parameters are 120 bytes, zeroed.
    owned(unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr()) })
}

fn bpf_map() -> Option<OwnedFd> {
    // An array of one word: the type, the sizes of key and value, the number of entries; the rest is zero.
    let attributes = [2u32, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the attributes are valid during the call, and as long as the last argument.
    owned(unsafe { libc::syscall(libc::SYS_bpf, 0, attributes.as_ptr(), size_of_val(&attributes)) })
}

fn perf_event() -> Option<OwnedFd> {
    let mut attributes = [0u64; 16];
    // A software event, whose attributes are 128 bytes long; disabled.
    attributes[0] = 1 | 128 << 32;
    attributes[5] = 1;
    // SAFETY: the attributes are valid during the call, and as long as their own length field.
    owned(unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 8) })
}

fn dead_process() -> Option<OwnedFd> {
    // SAFETY: the child only calls `_exit`, so it needs no lock that another thread may hold.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `_exit` may be called in any state.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: the arguments are plain numbers.
    let fd = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, child, 0) });
    // SAFETY: a null pointer is allowed for the status.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    fd
}

fn epoll_of(inner: &[BorrowedFd<'_>]) -> Option<OwnedFd> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
    for fd in inner {
        let _ = epoll::add(&set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    }
    Some(set)
}

/// Returns one of two sockets, each in the queue of the other. Only the kernel's garbage collector can close them.
fn in_circle() -> Option<OwnedFd> {
    let (one, other) = pair(SocketType::SEQPACKET)?;
    wire::send(&one, b"x", &[one.as_fd(), other.as_fd()]).ok()?;
    wire::send(&other, b"x", &[one.as_fd(), other.as_fd()]).ok()?;
    Some(other)
}

/// Returns memory of a huge size, without pages, with the seals `seals`.
fn sparse(choices: &mut Choices, seals: SealFlags) -> Option<OwnedFd> {
    let len = choices.pick(&[1u64 << 20, 1 << 30, 1 << 40, 1 << 46, 1 << 47, 1 << 62, i64::MAX as u64]);
    file(len as usize, seals).ok()
}

/// Returns a descriptor of one of the kinds of memory; honest peers send some of these kinds too.
fn memory(kind: Kind, choices: &mut Choices) -> Option<OwnedFd> {
    let sizes = [0, 1, 4096, 8192, 65_536, 135_168, 1 << 20, 768, 24_576];
    let len = choices.pick(&sizes);
    match kind {
        Kind::Memory => file(len.max(1), SIZE_SEALS).ok(),
        Kind::SparseMemory => sparse(choices, SIZE_SEALS),
        Kind::UnsealedMemory => file(len, SealFlags::empty()).ok(),
        Kind::ImmutableMemory => immutable(&vec![0; len]).ok(),
        Kind::HalfSealedMemory => file(len, choices.pick(&[SealFlags::SHRINK, SealFlags::GROW])).ok(),
        Kind::EmptyMemory => file(0, SIZE_SEALS).ok(),
        Kind::HugeMemory => {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
            let fd = memfd_create(NAME, flags).ok()?;
            let _ = ftruncate(&fd, 2 << 20);
            let _ = fcntl_add_seals(&fd, SIZE_SEALS);
            Some(fd)
        }
        Kind::SecretMemory => {
            // SAFETY: makes a descriptor.
            let fd = owned(unsafe { libc::syscall(libc::SYS_memfd_secret, libc::FD_CLOEXEC) })?;
            let _ = ftruncate(&fd, 4096);
            Some(fd)
        }
        _ => {
            let fd = file(len.max(1), SIZE_SEALS).ok()?;
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
        }
    }
}

fn socket(family: c_int, kind: c_int) -> Option<OwnedFd> {
    // SAFETY: the arguments are plain numbers.
    owned(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) }.into())
}

fn of_the_kernel(kind: Kind) -> Option<OwnedFd> {
    // SAFETY: the arguments are plain numbers, or pointers to locals and constants that are valid during the call.
    let fd = unsafe {
        match kind {
            Kind::Timer => libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC).into(),
            Kind::Signals => {
                let none: libc::sigset_t = std::mem::zeroed();
                libc::signalfd(-1, &raw const none, libc::SFD_CLOEXEC).into()
            }
            Kind::Inotify => {
                let fd = libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK);
                libc::inotify_add_watch(fd, c"/tmp".as_ptr(), libc::IN_ALL_EVENTS);
                fd.into()
            }
            Kind::Fanotify => {
                let fd = libc::fanotify_init(libc::FAN_CLOEXEC | libc::FAN_NONBLOCK, libc::O_RDONLY as u32);
                libc::fanotify_mark(fd, libc::FAN_MARK_ADD, libc::FAN_OPEN, libc::AT_FDCWD, c"/tmp".as_ptr());
                fd.into()
            }
            Kind::ProcessOwn => libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0),
            // The flag restricts the userfaultfd to faults of user code, which needs no privilege.
            Kind::Userfault => libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1),
            Kind::MessageQueue => {
                let name = c"/strait-hostile";
                let fd = libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600, 0);
                libc::mq_unlink(name.as_ptr());
                fd.into()
            }
            _ => -1,
        }
    };
    owned(fd)
}

/// Makes a descriptor of kind `kind`; `None` if the kernel refuses, or if the kind needs `donors` and there are none.
pub fn make(kind: Kind, choices: &mut Choices, kept: &mut Kept, donors: Option<&Donors>) -> Option<OwnedFd> {
    match kind {
        Kind::Memory
        | Kind::SparseMemory
        | Kind::UnsealedMemory
        | Kind::ImmutableMemory
        | Kind::HalfSealedMemory
        | Kind::EmptyMemory
        | Kind::HugeMemory
        | Kind::SecretMemory
        | Kind::ReadOnlyMemory => memory(kind, choices),
        Kind::Null => opened(c"/dev/null", OFlags::RDWR),
        Kind::Zero => opened(c"/dev/zero", OFlags::RDWR),
        Kind::Terminal => opened(c"/dev/ptmx", OFlags::RDWR),
        Kind::FuseDevice => opened(c"/dev/fuse", OFlags::RDWR),
        Kind::LoopControl => opened(c"/dev/loop-control", OFlags::RDWR),
        Kind::RegularFile => opened(c"/etc/passwd", OFlags::RDONLY),
        Kind::Directory => opened(c"/tmp", OFlags::DIRECTORY),
        Kind::PathOnly => opened(choices.pick(&[c"/", c"/etc/passwd", c"/dev/null"]), OFlags::PATH),
        Kind::ProcFile => opened(choices.pick(&[c"/proc/self/maps", c"/proc/self/mem", c"/sys"]), OFlags::RDONLY),
        Kind::Namespace => opened(choices.pick(&[c"/proc/self/ns/net", c"/proc/self/ns/mnt"]), OFlags::RDONLY),
        Kind::PipeReader => {
            let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
            kept.keep(writer);
            Some(reader)
        }
        Kind::FullPipe => {
            let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
            rustix::io::write(&writer, &[0; 65_536]).ok()?;
            kept.keep(reader);
            Some(writer)
        }
        Kind::Event => eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok(),
        Kind::Epoll => {
            let (one, other) = pair(SocketType::STREAM)?;
            let set = epoll_of(&[one.as_fd(), other.as_fd()]);
            kept.keep(one);
            set
        }
        Kind::EpollOfEpolls => {
            let mut set = epoll_of(&[])?;
            for _ in 0..3 {
                let outer = epoll_of(&[set.as_fd()])?;
                kept.keep(set);
                set = outer;
            }
            Some(set)
        }
        Kind::ProcessDead => dead_process(),
        Kind::IoUring => io_uring(),
        Kind::UnixSocket => {
            let (one, other) = pair(choices.pick(&[SocketType::SEQPACKET, SocketType::STREAM, SocketType::DGRAM]))?;
            kept.keep(one);
            Some(other)
        }
        Kind::UnixWithDescriptors => {
            let inner = opened(c"/dev/null", OFlags::RDWR)?;
            let one = wrapped(&[inner.as_fd(); 253], kept, choices.one_in(2))?;
            wrapped(&[one.as_fd()], kept, choices.one_in(2))
        }
        Kind::UnixWithLinger => {
            let inner = lingers(kept)?;
            wrapped(&[inner.as_fd()], kept, false)
        }
        Kind::UnixInCircle => in_circle(),
        Kind::UnixListener => {
            let socket = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET)?;
            let unnamed = rustix::net::SocketAddrUnix::new_unnamed();
            let _ = rustix::net::bind(&socket, &unnamed);
            let _ = rustix::net::listen(&socket, 1);
            Some(socket)
        }
        Kind::TcpListening => TcpListener::bind("127.0.0.1:0").ok().map(Into::into),
        Kind::TcpLingers => lingers(kept),
        Kind::Udp => UdpSocket::bind("127.0.0.1:0").ok().map(Into::into),
        Kind::Netlink => socket(libc::AF_NETLINK, libc::SOCK_RAW),
        Kind::PacketRing => packet_ring(),
        Kind::Crypto => socket(libc::AF_ALG, libc::SOCK_SEQPACKET),
        Kind::BpfMap => bpf_map(),
        Kind::PerfEvent => perf_event(),
        Kind::StuckUserfault => donors?.stuck_userfault(),
        Kind::FuseFile => donors?.fuse_file(),
        _ => of_the_kernel(kind),
    }
}
