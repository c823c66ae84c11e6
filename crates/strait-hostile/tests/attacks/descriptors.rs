//! Descriptors: too many, too few, of the wrong kind, and slow to close.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait::quota::Limits;
use strait::{Channel, Deadline, Error, Outgoing};
use strait_hostile::memory::{SIZE_SEALS, file};
use strait_hostile::record::{AN_END, BLOCK_PAYLOAD, Block, DESCRIPTOR, header, kind};
use strait_hostile::{Packet, RawPeer, Table, wire};

use crate::common::*;

/// Returns a descriptor with a long last close, a lingering connection with unread bytes, and the peer of the
/// connection.
pub(crate) fn slow_to_close() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &client, &[0; 65_536]).is_ok() {}
    sockopt::set_socket_linger(&client, Some(3 * SOON)).unwrap();
    (client.into(), server)
}

attack! {
    /// Unwanted descriptors with a blocking close must not delay the receiving thread.
    a10_descriptors_that_are_slow_to_close {
        on_a_victim(|mut peer, channel| {
            let (slow, _server) = slow_to_close();
            peer.packet(&Packet::wake(), &[slow.as_fd()]).unwrap();
            drop(slow);
            let begin = Instant::now();
            assert!(verdict(&mut peer, &channel).is_some());
            assert!(begin.elapsed() < SOON, "the call took {:?}", begin.elapsed());
        });
        on_a_victim(|mut peer, channel| {
            let (slow, _server) = slow_to_close();
            peer.packet(&Packet::handles(peer.token, 1, 1), &[slow.as_fd()]).unwrap();
            peer.writer.put(header(kind::MESSAGE, 0, 1), b"");
            drop(slow);
            let begin = Instant::now();
            drop(channel);
            assert!(begin.elapsed() < SOON, "the call took {:?}", begin.elapsed());
        });
    }
}

attack! {
    /// The peer sends introductions without end: their sockets are descriptors of the victim, which needs some for
    /// itself.
    a11_introductions_that_use_up_all_descriptors {
        let old = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(400), maximum: old.maximum }).unwrap();
        on_a_victim(|peer, channel| {
            let (other, _theirs) = sockets();
            for number in 0..2000 {
                if peer.packet(&Packet::introduce(number), &[other.as_fd()]).is_err() {
                    let _ = channel.recv_by(Duration::from_millis(30));
                }
            }
            // The sockets of the introductions are charged as descriptors: beyond the limit no more are received, and
            // all are released once the link ends.
            let refused = channel.recv_by(Duration::from_secs(30)).unwrap_err();
            assert!(matches!(refused, Error::LimitReached(_) | Error::BadPeer(_)), "{refused}");
            assert!(descriptors() < 400 - 10, "{} are in use", descriptors());
        });
        setrlimit(Resource::Nofile, old).unwrap();
    }
}

/// Returns the least processor time, of 15 attempts, that closing a channel with another peer takes, which has sent an
/// end.
fn time_of_closing() -> Duration {
    let close = |_| {
        let (one, other) = sockets();
        let (from, to) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
        let (end, _stays) = Channel::pair().unwrap();
        from.send(Outgoing::new(b"an end").handle(end)).unwrap();
        drop(to.recv_by(SOON).unwrap());
        let begin = thread_time();
        drop((from, to));
        thread_time() - begin
    };
    (0..15).map(close).min().unwrap()
}

attack! {
    /// A peer introduces thousands of processes. Closing the channel of any other peer takes no longer than before.
    a21_introductions_that_slow_others {
        const MANY: u64 = 4000;
        let old = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: old.maximum, ..old }).unwrap();
        on_a_victim(|peer, channel| {
            let before = time_of_closing();
            let (other, _theirs) = sockets();
            for number in 0..MANY {
                while peer.packet(&Packet::introduce(number), &[other.as_fd()]).is_err() {
                    let waited = channel.recv_by(Duration::from_millis(30));
                    assert!(matches!(waited, Err(Error::TimedOut)), "{waited:?}");
                }
            }
            let waited = channel.recv_by(Duration::from_millis(100));
                    assert!(matches!(waited, Err(Error::TimedOut)), "{waited:?}");
            assert!(descriptors() as u64 > MANY, "{}", descriptors());
            let after = time_of_closing();
            assert!(after < 4 * before + Duration::from_millis(1), "{before:?} before, {after:?} after");
        });
        setrlimit(Resource::Nofile, old).unwrap();
    }
}

/// Fills the socket `to` with packets that mean nothing.
fn fill(to: &OwnedFd) {
    while rustix::net::send(to, &Packet::wake().to_bytes(), rustix::net::SendFlags::DONTWAIT).is_ok() {}
}

attack! {
    /// A peer introduces many processes and fills the sockets to all of them. A call that looks through the sockets of
    /// all links takes no longer than promised: after a record that names an unknown lane, and at the number of
    /// introductions at which a process looks for introduced processes that have ended.
    a21_introduced_sockets_full_of_packets {
        const MANY: u64 = 1500;
        let old = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: old.maximum, ..old }).unwrap();
        for fills_before in [false, true] {
            on_a_victim(|mut peer, channel| {
                let mut longest = Duration::ZERO;
                let mut timed = |call: &dyn Fn() -> Result<strait::Message, Error>| {
                    // Other processes may have the processors meanwhile.
                    let begin = thread_time();
                    let result = call();
                    longest = longest.max(thread_time() - begin);
                    result
                };
                let mut halves = Vec::new();
                for number in 0..MANY {
                    let (other, theirs) = sockets();
                    if fills_before {
                        fill(&theirs);
                    }
                    while peer.packet(&Packet::introduce(number), &[other.as_fd()]).is_err() {
                        let waited = timed(&|| channel.recv_by(Duration::from_millis(30)));
                        assert!(matches!(waited, Err(Error::TimedOut)), "{waited:?}");
                    }
                    halves.push(theirs);
                }
                let waited = timed(&|| channel.recv_by(Duration::from_millis(100)));
                assert!(matches!(waited, Err(Error::TimedOut)), "{waited:?}");
                assert!(descriptors() as u64 > 2 * MANY, "{}", descriptors());
                halves.iter().for_each(fill);
                let nowhere = strait_hostile::record::Name { arena: 77, slot: 0, usage: 0 };
                peer.writer.put(header(kind::MOVED, 16, 0), &nowhere.to_bytes());
                let found = timed(&|| channel.try_recv());
                assert!(matches!(found, Err(Error::System { .. } | Error::BadPeer(_))), "{found:?}");
                assert!(longest < Duration::from_millis(400), "a call took {longest:?}");
                halves.iter().for_each(fill);
                let begin = thread_time();
                drop((channel, peer));
                let took = thread_time() - begin;
                assert!(took < Duration::from_millis(400), "the drop took {took:?}");
            });
        }
        setrlimit(Resource::Nofile, old).unwrap();
    }
}

attack! {
    /// A packet carries more or fewer descriptors than it announces, or is invalid and carries some.
    a12_more_descriptors_than_were_announced {
        on_a_victim(|_, _| {
            let spare = file_with(b"x");
            let memory = file(4096, SIZE_SEALS).unwrap();
            let packets = |peer: &RawPeer| [
                Packet::wake(), Packet::ring(peer.token, 1), Packet::handles(peer.token, 1, 3), Packet::block(peer.token, 0, 1, 1), Packet::sealed(peer.token, 1, 0),
                Packet::table(peer.token, 1, 2), Packet::introduce(1), Packet::arena(1, 1, 1, 4, 0), Packet::retract(peer.token), Packet::bitmap(), Packet::ahead(peer.token, 3),
            ];
            for index in 0..11 {
                for extra in [1usize, 2, 3, 200] {
                    let (mut peer, channel) = meet();
                    let before = descriptors();
                    let packet = packets(&peer)[index];
                    let mut beside: Vec<BorrowedFd<'_>> = vec![memory.as_fd(); packet.descriptors as usize];
                    beside.resize(beside.len() + extra, spare.as_fd());
                    peer.packet(&packet, &beside).unwrap();
                    assert_eq!(verdict(&mut peer, &channel), Some("a packet with other descriptors than announced"), "{packet:?}");
                    assert_no_more_than(before, &format!("{packet:?} and {extra} more"));
                    if packet.descriptors > 0 {
                        let (mut peer, channel) = meet();
                        peer.packet(&packet, &beside[..packet.descriptors as usize - 1]).unwrap();
                        assert_eq!(verdict(&mut peer, &channel), Some("a packet with other descriptors than announced"), "{packet:?}");
                    }
                }
            }
            for len in [1, 47, 49, 96, 4096, 60_000] {
                let (mut peer, channel) = meet();
                let before = descriptors();
                peer.bytes(&vec![0; len], &[spare.as_fd(); 253]).unwrap();
                assert_eq!(verdict(&mut peer, &channel), Some("an invalid packet"));
                assert_no_more_than(before, &format!("{len} bytes"));
            }
            // An empty packet, which only looks like the end of the connection.
            let (peer, channel) = meet();
            let before = descriptors();
            peer.bytes(&[], &[spare.as_fd(); 253]).unwrap();
            assert_eq!(bad_peer(channel.recv_by(SOON)), "an invalid packet");
            assert_no_more_than(before, "an empty packet");
        });
    }
}

/// Opens descriptors until only `free` can still be opened.
fn leave_free(free: usize) {
    let probe = file_with(b"");
    let lowest = std::os::fd::AsRawFd::as_raw_fd(&probe) as u64;
    drop(probe);
    let old = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest + free as u64), maximum: old.maximum }).unwrap();
}

attack! {
    /// Packets arrive while few descriptors are free. Lost descriptors of a message are an error of that message
    /// alone; memory waits in the socket until a descriptor is free.
    a13_descriptors_that_find_no_place {
        on_a_victim(|mut peer, channel| {
            let old = getrlimit(Resource::Nofile);
            let spare = file_with(b"x");
            for free in 0..10 {
                peer.send_with(b"eight", &[spare.as_fd(); 8]).unwrap();
                peer.send(b"after").unwrap();
                leave_free(free);
                let mut message = channel.try_recv().unwrap();
                setrlimit(Resource::Nofile, old).unwrap();
                assert_eq!(message.bytes(), b"eight");
                match message.take_handles() {
                    Ok(handles) => assert!(free >= 8 && handles.len() == 8),
                    Err(error) => assert!(free < 8 && matches!(error, Error::HandlesLost { sent: 8, arrived } if arrived <= free), "{free}: {error:?}"),
                }
                assert_eq!(channel.try_recv().unwrap().bytes(), b"after");
                // Memory, and a descriptor in the same packet.
                let memory = file(BLOCK_PAYLOAD + 10, SIZE_SEALS).unwrap();
                let (id, sequence) = (free as u64, peer.writer.sequence);
                peer.packet(&Packet::block(peer.token, id, sequence, 1), &[memory.as_fd(), spare.as_fd()]).unwrap();
                peer.writer.pad_for(32);
                peer.writer.put(header(kind::BLOCK, 32, 1), &Block { id, usage: 1, len: 10, once: 0 }.to_bytes());
                leave_free(free);
                let first = channel.try_recv();
                setrlimit(Resource::Nofile, old).unwrap();
                let mut message = match first {
                    Err(error) => {
                        assert!(free == 0 && error == Error::NoDescriptors, "{free}: {error:?}");
                        channel.try_recv().unwrap()
                    }
                    Ok(message) => message,
                };
                assert_eq!(message.bytes(), [0; 10]);
                assert_eq!(message.take_handles().is_ok(), free != 1);
                channel.try_send(b"and back").unwrap();
                assert_eq!(peer.try_recv().unwrap().unwrap().bytes, b"and back");
            }
        });
    }
}

attack! {
    /// Looks at what is queued take messages with descriptors out of their rings: the descriptors stay charged, and the
    /// looks stop before the peer holds more than half its limit here. No message is lost.
    a13_descriptors_of_messages_that_nobody_receives {
        on_a_victim(|mut peer, channel| {
            const LIMIT: u64 = 256;
            strait::quota::set_limits(Limits::new().peer(strait::quota::Resource::Descriptors, LIMIT));
            let spare = file_with(b"x");
            let before = descriptors();
            let messages = 12;
            for n in 0..messages {
                peer.send_with(&[n], &[spare.as_fd(); 32]).unwrap();
                // A look goes on behind the larger ring only if the messages before it leave their ring.
                if n % 3 == 2 {
                    peer.grow(256 << (n / 3)).unwrap();
                }
            }
            let looked = channel.status();
            let held = descriptors() - before;
            assert_eq!(looked.unwrap_err(), Error::LimitReached(strait::quota::Resource::Descriptors));
            assert!(held as u64 <= LIMIT / 2 + 64, "{held} descriptors");
            let usage = channel.peer_usage().unwrap().unwrap();
            let charged = usage.peer(strait::quota::Resource::Descriptors).held;
            assert!(charged >= 64, "{charged} descriptors are charged");
            for n in 0..messages {
                let mut message = channel.try_recv().unwrap();
                assert_eq!(message.bytes(), [n]);
                assert_eq!(message.take_handles().unwrap().len(), 32);
            }
            assert_eq!(channel.status().unwrap().messages, 0);
            strait::quota::set_limits(Limits::new());
        });
    }
}

attack! {
    /// The peer sends ends that have unread messages with descriptors, and the victim keeps the ends and reads none of
    /// these messages: the descriptors stay charged, and those over the limit are closed.
    a13_descriptors_of_messages_in_received_ends {
        on_a_victim(|mut peer, channel| {
            const LIMIT: u64 = 256;
            const ENDS: u32 = 20;
            const EACH: usize = 60;
            strait::quota::set_limits(Limits::new().peer(strait::quota::Resource::Descriptors, LIMIT));
            let spare = file_with(b"x");
            let arena = peer.announce(1, ENDS, 4, 0).unwrap();
            let before = descriptors();
            let held = || channel.peer_usage().unwrap().unwrap().peer(strait::quota::Resource::Descriptors).held;
            let mut ends = Vec::new();
            for slot in 0..ENDS {
                let table = Table::of(&[AN_END]).end(arena.name(slot), 0, 0, 1).message(b"", 0, &[DESCRIPTOR; EACH]);
                peer.packet(&Packet::handles(peer.token, peer.writer.sequence, EACH), &[spare.as_fd(); EACH]).unwrap();
                peer.send_ends(b"", 1, &table, &[arena.lane(slot)]).unwrap();
                match channel.try_recv().unwrap().take_handles() {
                    Ok(mut handles) => ends.push(handles.remove(0).into_channel().unwrap()),
                    Err(error) => assert_eq!(error, Error::HandlesLost { sent: 1, arrived: 0 }),
                }
                assert_eq!(held(), (ends.len() * EACH) as u64);
            }
            assert_no_more_than(before + LIMIT as usize, "unread messages of ends");
            assert_eq!(ends.len(), LIMIT as usize / EACH);
            for end in &ends {
                assert_eq!(end.try_recv().unwrap().take_handles().unwrap().len(), EACH);
            }
            assert_eq!(held(), 0);
            strait::quota::set_limits(Limits::new());
        });
    }
}

attack! {
    /// A peer does not receive descriptors. The kernel limits the descriptors in flight of a user, so a stalled
    /// channel must leave room for others.
    a14_descriptors_that_stay_under_way {
        let old = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(1024), maximum: old.maximum }).unwrap();
        // The kernel does not count descriptors in flight for root.
        if rustix::process::geteuid().is_root() {
            // SAFETY: the system call takes no pointers, and no other thread of the process depends on its user.
            assert_eq!(unsafe { libc::setresuid(54_321, 54_321, 54_321) }, 0);
        }
        on_a_victim(|mut peer, channel| {
            let spare = file_with(b"x");
            let mut sent = 0;
            let refused = loop {
                let handles = (0..8).map(|_| spare.try_clone().unwrap());
                let mut message = Outgoing::new(b"eight");
                for handle in handles {
                    message = message.handle(handle);
                }
                match channel.try_send(message) {
                    Ok(()) => sent += 8,
                    Err(failed) => break failed.error,
                }
            };
            assert_eq!(refused, Error::WouldBlock);
            // A quarter of the kernel's limit, less 65 descriptors, which are reserved for ends that are read.
            assert!((128..=191).contains(&sent), "{sent}");
            // Other channels have room, as has this channel for messages without descriptors.
            Bystander::new().assert_undisturbed();
            channel.try_send(b"small").unwrap();
            for _ in 0..sent / 8 {
                assert_eq!(peer.try_recv().unwrap().unwrap().descriptors.len(), 8);
            }
            channel.try_send(Outgoing::new(b"again").handle(spare)).unwrap();
        });
    }
}

attack! {
    /// The peer introduces wrong sockets: both ends of one pair, so that the victim meets itself; a socket without
    /// another end; and one number twice.
    a15_introductions_to_anything {
        on_a_victim(|_, _| {
            let stream = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            let datagram = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
            let unconnected = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
            let network: OwnedFd = TcpListener::bind("127.0.0.1:0").unwrap().into();
            for thing in [stream.0, datagram.0, unconnected, network, file_with(b"x"), file(4096, SIZE_SEALS).unwrap()] {
                let (mut peer, channel) = meet();
                peer.packet(&Packet::introduce(1), &[thing.as_fd()]).unwrap();
                assert_eq!(verdict(&mut peer, &channel), Some("an introduction without a socket"));
            }
            // A socket with which the kernel would not name the senders of packets.
            let nameless = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let (mut peer, channel) = meet();
            peer.packet(&Packet::introduce(1), &[nameless.0.as_fd()]).unwrap();
            let refused = "an introduction with a socket that does not name the sender of a packet";
            assert_eq!(verdict(&mut peer, &channel), Some(refused));
            let (mut peer, channel) = meet();
            let (one, other) = sockets();
            for (number, socket) in [(1, one.as_fd()), (2, other.as_fd()), (1, one.as_fd()), (1, other.as_fd()), (2, one.as_fd())] {
                peer.packet(&Packet::introduce(number), &[socket]).unwrap();
            }
            // Arenas with lanes from the victim to itself, over each of the introductions.
            for (number, with) in [(1, 3), (2, 4), (3, 3)] {
                peer.announce(number, 4, 4, with).unwrap();
            }
            assert_eq!(verdict(&mut peer, &channel), None);
            // Arenas for processes that were never introduced.
            for with in [2, 3, u64::MAX, 1 << 63] {
                let (mut peer, channel) = meet();
                peer.announce(1, 4, 4, with).unwrap();
                assert_eq!(verdict(&mut peer, &channel), Some("an arena shared with an unknown process"));
            }
            // A socket whose other end is closed, and the link's own socket.
            let (mut peer, channel) = meet();
            let (one, _) = sockets();
            peer.packet(&Packet::introduce(1), &[one.as_fd()]).unwrap();
            peer.packet(&Packet::introduce(2), &[peer.socket.as_fd()]).unwrap();
            peer.announce(1, 4, 4, 3).unwrap();
            peer.announce(2, 4, 4, 4).unwrap();
            // The victim sends a handshake itself on its own link.
            assert_eq!(verdict(&mut peer, &channel), Some("a second handshake"));
        });
    }
}

attack! {
    /// A message can carry any descriptor, and the victim receives it unchanged: the link's own socket, or a socket
    /// in flight inside itself.
    a15_the_links_own_socket_in_a_message {
        on_a_victim(|mut peer, channel| {
            let own = peer.socket.try_clone().unwrap();
            peer.send_with(b"own", &[own.as_fd()]).unwrap();
            drop(own);
            let handles = channel.try_recv().unwrap().take_handles().unwrap();
            // The victim now has both ends of the socket, and still notices that the peer hangs up.
            peer.close().unwrap();
            assert_eq!(channel.try_recv().unwrap_err(), Error::PeerClosed);
            drop(handles);
            let (one, other) = sockets();
            // Each socket is in flight over the other, and no process ever receives either.
            wire::send(&one, &Packet::introduce(1).to_bytes(), &[other.as_fd()]).unwrap();
            wire::send(&other, &Packet::introduce(1).to_bytes(), &[one.as_fd()]).unwrap();
        });
        let channel = {
            let (_ours, theirs) = sockets();
            Channel::over(theirs)
        };
        assert!(channel.is_err() || channel.unwrap().recv_by(Deadline::NEVER).is_err());
    }
}

attack! {
    /// A packet that cannot be received now carries slow descriptors. However often the victim looks at the packet,
    /// it does not hold more of these descriptors.
    a13_descriptors_of_a_packet_that_stays {
        on_a_victim(|_, _| {
            let (slow, _server) = slow_to_close();
            let (socket, _other) = sockets();
            let memory = file(BLOCK_PAYLOAD + 10, SIZE_SEALS).unwrap();
            let packets: [(Packet, Vec<BorrowedFd<'_>>); 2] = [
                (Packet::introduce(2), vec![socket.as_fd()]),
                (Packet::block(0x5eed, 1, 1, 64), [memory.as_fd()].into_iter().chain([slow.as_fd(); 64]).collect()),
            ];
            for (packet, beside) in packets {
                let (mut peer, channel) = meet();
                // The thread that closes descriptors of this peer is busy.
                peer.send_with(b"slow", &[slow.as_fd()]).unwrap();
                drop(channel.try_recv().unwrap());
                let limits = Limits::new().peer(strait::quota::Resource::Descriptors, 0).peer(strait::quota::Resource::Memory, 0);
                strait::quota::set_limits(limits);
                peer.packet(&packet, &beside).unwrap();
                peer.writer.put(header(kind::BLOCK, 32, 64), &Block { id: 1, usage: 1, len: 10, once: 0 }.to_bytes());
                let refused = channel.try_recv().unwrap_err();
                assert!(matches!(refused, Error::LimitReached(_)), "{refused}");
                let before = descriptors();
                for _ in 0..1000 {
                    assert_eq!(channel.try_recv().unwrap_err(), refused);
                }
                assert!(descriptors() <= before + 1, "{before} descriptors became {}", descriptors());
                strait::quota::set_limits(Limits::new());
            }
        });
    }
}
