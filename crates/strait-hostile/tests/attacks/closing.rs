//! Descriptors whose close takes as long as another process likes, in every place where the victim may have to close
//! such a descriptor.

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource as Limit, Rlimit, getrlimit, setrlimit};
use strait::quota::Resource;
use strait::{Channel, Options};
use strait_hostile::record::{header, kind};
use strait_hostile::{Packet, RawPeer, wire};

use crate::common::*;
use crate::descriptors::slow_to_close;
use crate::standstill::Watcher;

/// Returns a Unix socket whose last close takes long, because an unread descriptor in the socket is slow to close;
/// and the peer of the slow connection.
fn slow_within() -> (OwnedFd, TcpStream) {
    let (slow, server) = slow_to_close();
    let (one, other) = sockets();
    assert!(wire::send(&one, b"x", &[slow.as_fd()]).unwrap());
    (other, server)
}

/// Sends a small message with a descriptor; the attacker retains no copy of the descriptor.
fn send_only(peer: &mut RawPeer, fd: OwnedFd) {
    peer.send_with(b"only one", &[fd.as_fd()]).unwrap();
}

attack! {
    /// A received Unix socket has slow descriptors in its queue, which are closed with the socket.
    a10_sockets_with_something_slow_in_them {
        on_a_victim(|peer, channel| {
            let (within, _server) = slow_within();
            peer.packet(&Packet::wake(), &[within.as_fd()]).unwrap();
            drop(within);
            bad_peer(in_time("receiving", || channel.recv_by(SOON)));
            in_time("dropping the channel", || drop(channel));
        });
        on_a_victim(|mut peer, channel| {
            let (within, _server) = slow_within();
            peer.packet(&Packet::handles(peer.token, 1, 1), &[within.as_fd()]).unwrap();
            peer.writer.put(header(kind::MESSAGE, 0, 1), b"");
            drop(within);
            in_time("dropping the channel", || drop(channel));
        });
        on_a_victim(|mut peer, channel| {
            let (within, _server) = slow_within();
            send_only(&mut peer, within);
            let message = channel.recv_by(SOON).unwrap();
            in_time("dropping a message", || drop(message));
        });
    }
}

attack! {
    /// The socket of a link has unread packets with slow descriptors, which are closed with the socket.
    a10_packets_that_nobody_reads_any_more {
        for nonsense in [b"nonsense".as_slice(), &[0; 4096]] {
            on_a_victim(|peer, channel| {
                let (slow, _server) = slow_to_close();
                peer.bytes(nonsense, &[]).unwrap();
                peer.packet(&Packet::wake(), &[slow.as_fd()]).unwrap();
                drop(slow);
                bad_peer(in_time("receiving", || channel.recv_by(SOON)));
                in_time("dropping the channel", || drop(channel));
            });
        }
        // The packet seems to come after the end of the connection.
        on_a_victim(|peer, channel| {
            let (slow, _server) = slow_to_close();
            peer.bytes(&[], &[]).unwrap();
            peer.packet(&Packet::wake(), &[slow.as_fd()]).unwrap();
            drop(slow);
            in_time("receiving", || channel.recv_by(Duration::from_millis(100))).unwrap_err();
            in_time("dropping the channel", || drop(channel));
        });
        // The victim has never received from the socket.
        on_a_victim(|peer, channel| {
            let (slow, _server) = slow_to_close();
            peer.packet(&Packet::wake(), &[slow.as_fd()]).unwrap();
            drop(slow);
            in_time("dropping the channel", || drop(channel));
        });
    }
}

attack! {
    /// A received descriptor is in an epoll instance of another process. That process holds the lock of the instance
    /// as long as it likes, because it copies events to a page without content. The last close of the descriptor
    /// takes that lock.
    a10_a_descriptor_that_is_watched_by_somebody_who_stands_still {
        let Some(watcher) = Watcher::new() else { return };
        on_a_victim(|mut peer, channel| {
            let bell = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
            let page = watcher.stand_still_with(&bell);
            send_only(&mut peer, bell);
            let message = channel.recv_by(SOON).unwrap();
            in_time("dropping a message", || drop(message));
            in_time("dropping the channel", || drop(channel));
            drop(page);
        });
    }
}

attack! {
    /// A descriptor is slow to close, and many others wait behind it. The waiting descriptors are charged to the
    /// peer, and limited, until they are closed.
    a11_descriptors_that_wait_to_be_closed {
        const MOST: u64 = 1024;
        let old = getrlimit(Limit::Nofile);
        setrlimit(Limit::Nofile, Rlimit { current: Some(MOST), maximum: old.maximum }).unwrap();
        on_a_victim(|mut peer, channel| {
            let (slow, server) = slow_to_close();
            let before = descriptors();
            send_only(&mut peer, slow);
            drop(channel.recv_by(SOON).unwrap());
            let status = std::fs::File::open("/proc/self/status").unwrap();
            let held = |channel: &Channel| {
                channel.peer_usage().unwrap().unwrap().peer(Resource::Descriptors).held as usize
            };
            let reason = loop {
                peer.send_with(b"more", &[status.as_fd(); 64]).unwrap();
                match channel.recv_by(SOON) {
                    Ok(message) => drop(message),
                    error => break bad_peer(error),
                }
                peer.pump().unwrap();
                // All open descriptors are charged to an account.
                let (open, held) = (descriptors() - before, held(&channel));
                assert!(held + 2 >= open, "{open} are open, {held} of them charged to the peer");
            };
            assert_eq!(reason, "descriptors that take longer to close than to send");
            assert!(descriptors() < MOST as usize * 7 / 8, "{} of {MOST} are taken", descriptors());
            // The descriptors stay charged to the peer even after the end of the link.
            assert!(held(&channel) > 64);
            drop(server);
        });
        setrlimit(Limit::Nofile, old).unwrap();
    }
}

attack! {
    /// Descriptors that the victim does not accept are slow to close, and are closed in the background too.
    a10_descriptors_that_are_not_accepted {
        on_a_victim_with(&Options::new().accept_descriptors(false), |peer, channel| {
            for sequence in 1..4 {
                let (slow, _server) = slow_to_close();
                peer.packet(&Packet::handles(peer.token, sequence, 1), &[slow.as_fd()]).unwrap();
                drop(slow);
                let begin = Instant::now();
                let received = channel.recv_by(Duration::from_millis(100));
                assert!(received.is_err() && begin.elapsed() < SOON, "{received:?} after {:?}", begin.elapsed());
            }
            in_time("dropping the channel", || drop(channel));
        });
    }
}
