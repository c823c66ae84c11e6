//! Changes to a link's socket by the maker of the socket, which may have a copy; and packets that no honest peer
//! sends.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use strait::quota::{Limits, Resource};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Error, Listener, Options};
use strait_hostile::layout::transfer;
use strait_hostile::record::{AN_END, Table};
use strait_hostile::{Packet, RawPeer, handshake, wire};

use crate::common::*;

/// Socket options that the headers do not have yet.
const SO_PASSPIDFD: libc::c_int = 76;
const SO_PASSRIGHTS: libc::c_int = 83;
const SO_TXREHASH: libc::c_int = 74;
const SO_RCVMARK: libc::c_int = 75;

/// How long a thread waits on a changed socket.
const WAITED: Duration = Duration::from_millis(200);
/// The maximum processor time of such a wait. A spinning thread uses all of [`WAITED`]; a sleeping thread needs a few
/// milliseconds. But if the host stops this virtual machine for a moment, the pause may count as time of the thread.
const COMPUTED: Duration = Duration::from_millis(150);

/// Makes a wait of [`WAITED`], and checks that this thread does not use a processor meanwhile.
fn without_spinning<T>(what: &str, wait: impl FnOnce() -> T) -> T {
    let begin = cpu_time();
    let result = wait();
    let used = cpu_time() - begin;
    assert!(used < COMPUTED, "{what} computed for {used:?}");
    result
}

/// Returns the processor time used by this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// A change to a socket by another holder of a copy.
#[derive(Clone, Copy, Debug)]
enum Tampering {
    /// Sets an option of `SOL_SOCKET` to a number.
    Option(libc::c_int, libc::c_int),
    /// Sets an option of `SOL_SOCKET` to a time.
    Time(libc::c_int),
    /// Attaches a filter that passes so many bytes of each packet.
    Filter(u32),
    /// Has the kernel send this process a signal, ignored by the process.
    Signal,
    Shutdown(libc::c_int),
}

/// The result of tampering for the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Works,
    Ends,
    /// No packet arrives over the link, as from a silent peer.
    Waits,
    /// The link works or ends, depending on the kernel.
    Either,
}

/// All changes, each with two results: for a link made on a changed socket, and for a link whose socket is changed
/// later.
const TAMPERINGS: &[(Tampering, Then, Then)] = {
    use Tampering::{Filter, Option, Shutdown, Signal, Time};
    use Then::{Either, Ends, Waits, Works};
    &[
        (Option(libc::SO_PASSCRED, 1), Works, Ends),
        (Option(SO_PASSPIDFD, 1), Works, Ends),
        // Without a security module the kernel has no label to send.
        (Option(libc::SO_PASSSEC, 1), Works, Either),
        (Option(libc::SO_TIMESTAMP, 1), Works, Ends),
        (Option(libc::SO_TIMESTAMPNS, 1), Works, Ends),
        (Option(libc::SO_TIMESTAMPING, 0x7fff), Works, Works),
        (Option(libc::SO_PEEK_OFF, 0), Works, Ends),
        (Option(libc::SO_PEEK_OFF, 1), Works, Ends),
        (Option(libc::SO_PEEK_OFF, 48), Works, Ends),
        (Option(libc::SO_PEEK_OFF, 1 << 20), Works, Ends),
        (Option(libc::SO_RCVLOWAT, 1 << 20), Works, Works),
        (Option(libc::SO_SNDBUF, 1), Works, Works),
        (Option(libc::SO_RCVBUF, 1), Works, Works),
        (Option(libc::SO_BUSY_POLL, 1_000_000), Works, Works),
        (Option(libc::SO_PREFER_BUSY_POLL, 1), Works, Works),
        (Option(libc::SO_MARK, 1), Works, Works),
        (Option(libc::SO_PRIORITY, 6), Works, Works),
        (Option(libc::SO_INCOMING_CPU, 0), Works, Works),
        (Option(libc::SO_RXQ_OVFL, 1), Works, Works),
        (Option(libc::SO_WIFI_STATUS, 1), Works, Works),
        (Option(libc::SO_SELECT_ERR_QUEUE, 1), Works, Works),
        (Option(libc::SO_ZEROCOPY, 1), Works, Works),
        (Option(libc::SO_KEEPALIVE, 1), Works, Works),
        (Option(libc::SO_OOBINLINE, 1), Works, Works),
        (Option(libc::SO_DEBUG, 1), Works, Works),
        (Option(libc::SO_LOCK_FILTER, 1), Works, Works),
        (Option(SO_TXREHASH, 1), Works, Works),
        (Option(SO_RCVMARK, 1), Works, Works),
        // The kernel refuses to send.
        (Option(SO_PASSRIGHTS, 0), Works, Works),
        (Time(libc::SO_RCVTIMEO), Works, Works),
        (Time(libc::SO_SNDTIMEO), Works, Works),
        (Time(libc::SO_LINGER), Works, Works),
        (Signal, Works, Works),
        (Filter(1), Ends, Ends),
        (Filter(0), Waits, Ends),
        (Shutdown(libc::SHUT_RD), Ends, Ends),
        (Shutdown(libc::SHUT_WR), Ends, Ends),
        (Shutdown(libc::SHUT_RDWR), Ends, Ends),
    ]
};

impl Tampering {
    /// Makes the change. Returns false if this kernel does not know the change, or does not permit it to this user.
    fn of(self, socket: BorrowedFd<'_>) -> bool {
        let fd = socket.as_raw_fd();
        // SAFETY: every pointer is to a local of the size given.
        let done = unsafe {
            match self {
                Self::Option(option, value) => {
                    libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), 4)
                }
                Self::Time(option) => {
                    // A long time, in the unit of each option.
                    let value = [3600i64; 2];
                    let len = if option == libc::SO_LINGER { 8 } else { 16 };
                    libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), len)
                }
                Self::Filter(bytes) => {
                    let code = (libc::BPF_RET | libc::BPF_K) as u16;
                    let mut program = [libc::sock_filter { code, jt: 0, jf: 0, k: bytes }];
                    let program = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
                    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
                    libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), len)
                }
                Self::Signal => {
                    libc::signal(libc::SIGIO, libc::SIG_IGN);
                    libc::fcntl(fd, libc::F_SETOWN, libc::getpid());
                    libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK)
                }
                Self::Shutdown(how) => libc::shutdown(fd, how),
            }
        };
        done == 0
    }
}

/// Has the peer send a message by the socket. Returns the result for the link.
fn outcome(peer: &mut RawPeer, channel: &Channel, what: &str) -> Then {
    for _ in 0..100 {
        let _ = peer.packet(&Packet::wake(), &[]);
    }
    let idle = without_spinning(what, || channel.recv_by(WAITED).map(drop));
    let file = file_with(b"content");
    let sent = match idle {
        Err(Error::TimedOut) => peer.send_with(b"file", &[file.as_fd()]),
        ended => {
            assert!(matches!(ended, Err(Error::BadPeer(_) | Error::PeerClosed)), "{what}: {ended:?}");
            return Then::Ends;
        }
    };
    if sent.is_err() {
        // The failure is the peer's own, so no thread here may wait or compute long.
        let waited = without_spinning(what, || channel.recv_by(WAITED).map(drop));
        return if waited == Err(Error::TimedOut) { Then::Works } else { Then::Ends };
    }
    match without_spinning(what, || channel.recv_by(WAITED)) {
        Ok(mut message) => {
            assert_eq!(content_of(message.take_handles().unwrap().remove(0)), b"content", "{what}");
            let back = channel.try_send(strait::Outgoing::new(b"back").handle(file));
            match back.map_err(Error::from) {
                Ok(()) => Then::Works,
                Err(Error::PeerClosed) => Then::Ends,
                Err(error) => panic!("{what}: sending: {error}"),
            }
        }
        Err(Error::BadPeer(_) | Error::PeerClosed) => Then::Ends,
        Err(Error::TimedOut) => Then::Waits,
        Err(error) => panic!("{what}: receiving: {error}"),
    }
}

attack! {
    /// The holder of a copy changes everything about a socket, before the link exists and after. The link works or is
    /// ended, and the victim neither spins nor retains a descriptor for the link.
    a18_options_of_a_socket_are_changed {
        on_a_victim(|_, _| {
            for (tampering, made_so, done_later) in TAMPERINGS {
                for (later, expected) in [(false, made_so), (true, done_later)] {
                    let what = format!("{tampering:?}, {}", if later { "done later" } else { "made so" });
                    let before = Census::take();
                    let (ours, theirs) = sockets();
                    let copy = theirs.try_clone().unwrap();
                    if !later && !tampering.of(copy.as_fd()) {
                        continue;
                    }
                    let channel = Channel::over(theirs);
                    let found = match (channel, RawPeer::meet(ours)) {
                        (Ok(channel), Ok(mut peer)) => {
                            if later {
                                peer.pump().unwrap();
                                peer.send(b"hello").unwrap();
                                assert_eq!(channel.try_recv().unwrap().bytes(), b"hello");
                                tampering.of(copy.as_fd());
                            }
                            outcome(&mut peer, &channel, &what)
                        }
                        // The link ended before it was up.
                        (Err(Error::PeerClosed), _) | (_, Err(_)) => Then::Ends,
                        (Err(error), Ok(_)) => panic!("{what}: {error}"),
                    };
                    assert!(found == *expected || *expected == Then::Either, "{what}: {found:?}");
                    drop(copy);
                    before.assert_unchanged();
                }
            }
        });
    }
}

attack! {
    /// The holder of a copy changes the socket of a link whose ends are in a wait set. The socket must not keep the
    /// wait set awake, and events of other links arrive.
    a18_options_of_a_socket_in_a_wait_set_are_changed {
        on_a_victim(|_, _| {
            for (tampering, _, _) in TAMPERINGS {
                let what = format!("{tampering:?}");
                let (ours, theirs) = sockets();
                let copy = theirs.try_clone().unwrap();
                let channel = Channel::over(theirs).unwrap();
                let mut peer = RawPeer::meet(ours).unwrap();
                peer.pump().unwrap();
                peer.send(b"hello").unwrap();
                assert_eq!(channel.try_recv().unwrap().bytes(), b"hello");
                let set = WaitSet::new().unwrap();
                set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
                let (other, ours) = Channel::pair().unwrap();
                set.add(&ours, 2, Interest::Readable, Mode::Level).unwrap();
                tampering.of(copy.as_fd());
                let _ = peer.packet(&Packet::wake(), &[]);
                let mut events = Vec::new();
                without_spinning(&what, || set.wait(&mut events, WAITED)).unwrap();
                if events.iter().any(|event| event.key() == 1) {
                    // The peer cannot send, or the link ends.
                    assert!(matches!(channel.try_recv(), Err(Error::BadPeer(_) | Error::PeerClosed)), "{what}");
                    set.remove(&channel).unwrap();
                }
                without_spinning(&what, || set.wait(&mut events, WAITED)).unwrap();
                other.send(b"message").unwrap();
                set.wait(&mut events, SOON).unwrap();
                assert!(events.iter().any(|event| event.key() == 2), "{what}: {events:?}");
            }
        });
    }
}

attack! {
    /// A peer introduces a socket that makes a descriptor with each packet, from the first packet or from a later one:
    /// no such descriptor stays open.
    a18_an_introduction_that_makes_descriptors {
        for from_the_first in [true, false] {
            makes_descriptors(from_the_first);
        }
    }
}

/// Plays [`a18_an_introduction_that_makes_descriptors`].
fn makes_descriptors(from_the_first: bool) {
    on_a_victim(|mut peer, channel| {
        let (one, other) = sockets();
        let made = Tampering::Option(SO_PASSPIDFD, 1);
        if from_the_first {
            made.of(one.as_fd());
        }
        peer.packet(&Packet::introduce(5), &[one.as_fd()]).unwrap();
        wire::send(&other, &handshake::announce(0x77).to_bytes(), &[]).unwrap();
        let arena = peer.announce(1, 2, 4, 2 + 5).unwrap();
        let lane = arena.lane(0);
        lane.transfer().store(transfer::HANDED_OVER, std::sync::atomic::Ordering::SeqCst);
        let table = Table::of(&[AN_END]).end(arena.name(0), 0, 0, 0);
        peer.send_ends(b"", 1, &table, &[lane]).unwrap();
        let end = channel.recv_by(SOON).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
        if !from_the_first {
            let received = end.recv_by(WAITED).map(drop);
            assert!(matches!(received, Err(Error::TimedOut)), "{received:?}");
            made.of(one.as_fd());
        }
        let before = descriptors();
        let mut sent = 0;
        while sent < 300 && wire::send(&other, &Packet::wake().to_bytes(), &[]).unwrap_or(false) {
            sent += 1;
        }
        let received = without_spinning("receiving", || end.recv_by(WAITED).map(drop));
        assert!(matches!(received, Err(Error::BadPeer(_))), "{received:?}");
        assert_no_more_than(before, &format!("{sent} packets"));
        drop(one);
    });
}

attack! {
    /// The peer sends packets without bytes, first and later. Such a packet looks like the end of a connection.
    a12_packets_without_bytes {
        on_a_victim(|_, _| {
            let spare = file_with(b"x");
            for beside in [&[][..], &[spare.as_fd()], &[spare.as_fd(); 253]] {
                let (theirs, ours) = sockets();
                wire::send(&theirs, b"", beside).unwrap();
                let channel = Channel::over(ours).unwrap();
                without_spinning("receiving", || bad_peer(channel.recv_by(SOON)));
                let (peer, channel) = meet();
                peer.bytes(&[], beside).unwrap();
                without_spinning("receiving", || bad_peer(channel.recv_by(SOON)));
            }
            let (theirs, ours) = sockets();
            let channel = Channel::over(ours).unwrap();
            let set = WaitSet::new().unwrap();
            set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
            wire::send(&theirs, b"", &[]).unwrap();
            let mut events = Vec::new();
            without_spinning("waiting", || set.wait(&mut events, SOON)).unwrap();
            assert_eq!(events.iter().map(strait::wait::Event::key).collect::<Vec<_>>(), [1]);
            bad_peer(channel.try_recv());
        });
    }
}

/// Connects to a listener and sends nothing.
fn visit(listener: &Listener) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(listener.path()).unwrap()).unwrap();
    socket
}

attack! {
    /// A pending connection sends a packet without bytes, before its handshake and after it.
    a12_visitors_with_packets_without_bytes {
        let directory = std::env::temp_dir().join(format!("strait-attack-empty-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        on_a_victim(|_, _| {
            let listener = Listener::builder().directory(&directory).bind("x").unwrap();
            for greets in [false, true] {
                let pending = visit(&listener);
                if greets {
                    wire::send(&pending, &handshake::announce(0).to_bytes(), &[]).unwrap();
                }
                wire::send(&pending, b"", &[]).unwrap();
                // On a machine with much other work, one wait may end before the listener has read a packet.
                let begin = Instant::now();
                let told = loop {
                    let accepted = without_spinning("accepting", || listener.accept(WAITED));
                    assert_eq!(accepted.map(drop).unwrap_err().error, Error::TimedOut);
                    match wire::receive(&pending) {
                        Ok(None) if begin.elapsed() < SOON => {}
                        told => break told.map(drop).map_err(|error| error.kind()),
                    }
                };
                // The pending connection was refused.
                assert_eq!(told, Err(std::io::ErrorKind::UnexpectedEof), "greeted: {greets}");
            }
        });
        std::fs::remove_dir_all(directory).unwrap();
    }
}

attack! {
    /// A victim that accepts no descriptors in messages has room for one descriptor, of memory. Other data from the
    /// kernel in that room must not look like a temporary shortage of descriptors.
    a13_the_room_for_a_descriptor_is_taken_by_something_else {
        on_a_victim(|_, _| {
            for option in [libc::SO_PASSCRED, SO_PASSPIDFD, libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS] {
                let (ours, theirs) = sockets();
                let copy = theirs.try_clone().unwrap();
                let channel = Options::new().accept_descriptors(false).over(theirs).unwrap();
                let mut peer = RawPeer::meet(ours).unwrap();
                peer.pump().unwrap();
                peer.send_sealed(&[1; 100]).unwrap();
                assert_eq!(channel.try_recv().unwrap().bytes(), [1; 100]);
                let set = WaitSet::new().unwrap();
                set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
                Tampering::Option(option, 1).of(copy.as_fd());
                peer.send_sealed(&[2; 100]).unwrap();
                let mut events = Vec::new();
                without_spinning("waiting", || set.wait(&mut events, SOON)).unwrap();
                assert_eq!(events[0].key(), 1);
                match channel.try_recv() {
                    // The additional data finds no room behind the descriptor, and then does no harm.
                    Ok(message) => assert_eq!((option, message.bytes()), (SO_PASSPIDFD, &[2; 100][..])),
                    refused => drop(bad_peer(refused)),
                }
            }
        });
    }
}

attack! {
    /// The peer sends more introductions than the victim holds for one peer, in a wait set. The packet stays in the
    /// socket, a channel of that peer reports the reason, and events of other links arrive.
    a20_a_packet_that_cannot_be_received_now {
        on_a_victim(|peer, channel| {
            strait::quota::set_limits(Limits::new().peer(Resource::Descriptors, 1));
            let (introduced, _theirs) = sockets();
            let (other, ours) = Channel::pair().unwrap();
            let set = WaitSet::new().unwrap();
            set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
            set.add(&ours, 2, Interest::Readable, Mode::Level).unwrap();
            for number in 0..3 {
                peer.packet(&Packet::introduce(number), &[introduced.as_fd()]).unwrap();
            }
            let (mut events, mut told) = (Vec::new(), 0);
            without_spinning("waiting", || {
                let begin = Instant::now();
                while begin.elapsed() < WAITED {
                    set.wait(&mut events, WAITED).unwrap();
                    for event in &events {
                        assert_eq!(event.key(), 1);
                        assert_eq!(channel.try_recv().unwrap_err(), Error::LimitReached(Resource::Descriptors));
                        told += 1;
                    }
                }
            });
            assert!((1..100).contains(&told), "told {told} times");
            other.send(b"message").unwrap();
            while !events.iter().any(|event| event.key() == 2) {
                assert!(set.wait(&mut events, SOON).unwrap() > 0);
            }
            strait::quota::set_limits(Limits::new());
        });
    }
}
