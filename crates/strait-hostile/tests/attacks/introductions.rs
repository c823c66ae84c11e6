//! Introductions by a process that kept copies of the sockets it made, and uses them to block or to accuse others.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use strait::quota::{BadPeer, Limits, Resource};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Error, Options, Outgoing};
use strait_hostile::layout::transfer;
use strait_hostile::record::{AN_END, Table};
use strait_hostile::wire::kind as packet_kind;
use strait_hostile::{Packet, RawPeer, handshake, wire};

use crate::common::*;
use crate::descriptors::slow_to_close;
use crate::standstill::{Page, Watcher};

/// The length of a wait that must end at its deadline.
const WAITED: Duration = Duration::from_millis(200);

/// Runs `work` in another thread, and checks that it takes less than [`SOON`]. Then drops `page`, some [`Page`]s, which
/// ends the attack; so a thread that blocks because of the attack goes on, and the test can fail.
fn in_time_beside<T: Send>(what: &str, page: impl Sized, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(move || tell.send(work()));
        let result = told.recv_timeout(SOON);
        drop(page);
        result.unwrap_or_else(|_| panic!("{what} takes longer than {SOON:?}"))
    })
}

/// Blocks a thread in a system call that holds the lock of `socket`: the call copies a filter from a page without
/// content.
fn hold_lock<'a>(watcher: &'a Watcher, socket: &OwnedFd) -> Page<'a> {
    let copy = socket.try_clone().unwrap();
    watcher.stand_still_in(move |at| {
        let program = libc::sock_fprog { len: 1, filter: std::ptr::with_exposed_provenance_mut(at) };
        let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
        // SAFETY: the page has room for a filter of one instruction, and stays mapped until this thread was joined.
        unsafe {
            let place = (&raw const program).cast();
            libc::setsockopt(copy.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, place, len);
        }
    })
}

/// Sends the victim an end whose other end is in the process introduced as `number`, and returns the victim's end.
fn send_end(peer: &mut RawPeer, channel: &Channel, number: u64) -> Channel {
    let arena = peer.announce(number, 2, 4, 2 + number).unwrap();
    let lane = arena.lane(0);
    lane.transfer().store(transfer::HANDED_OVER, Ordering::SeqCst);
    let table = Table::of(&[AN_END]).end(arena.name(0), 0, 0, 0);
    peer.send_ends(b"", 1, &table, &[lane]).unwrap();
    channel.recv_by(SOON).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap()
}

attack! {
    /// A peer introduces a socket while one of its threads holds the socket's lock. The victim waits for an honest
    /// peer in the same wait set, and the wait ends at its deadline. Neither does a call that uses the introduced link
    /// block.
    a18_an_introduced_socket_whose_lock_is_held {
        let Some(watcher) = Watcher::new() else { return };
        for accepts in [true, false] {
            on_a_victim_with(&Options::new().accept_descriptors(accepts), |mut peer, channel| {
                let set = WaitSet::new().unwrap();
                let (other, honest) = Channel::pair().unwrap();
                set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
                set.add(&honest, 2, Interest::Readable, Mode::Level).unwrap();
                let (half, others) = sockets();
                let page = hold_lock(&watcher, &half);
                peer.packet(&Packet::introduce(5), &[half.as_fd()]).unwrap();
                wire::send(&others, &handshake::announce(0x77).to_bytes(), &[]).unwrap();
                in_time_beside("a wait beside an introduction", page, || {
                    let mut events = Vec::new();
                    let begin = Instant::now();
                    while begin.elapsed() < WAITED {
                        set.wait(&mut events, WAITED).unwrap();
                        assert!(events.is_empty(), "{events:?}");
                    }
                    other.send(b"message").unwrap();
                    while !events.iter().any(|event| event.key() == 2) {
                        assert!(set.wait(&mut events, SOON).unwrap() > 0);
                    }
                });
                let page = hold_lock(&watcher, &half);
                in_time_beside("an end over an introduced link", page, || {
                    let end = send_end(&mut peer, &channel, 5);
                    wire::send(&others, &Packet::wake().to_bytes(), &[]).unwrap();
                    assert_eq!(end.recv_by(WAITED).map(drop).unwrap_err(), Error::TimedOut);
                });
            });
        }
    }
}

attack! {
    /// The victim introduces two peers to each other, and can send only one half of the socket pair, because the second
    /// peer reads nothing. The first peer sends a descriptor that is slow to close into its half, so that the
    /// descriptor lies in the half that the victim still has.
    a10_something_slow_in_the_half_of_an_introduction {
        on_a_victim(|first, channel| {
            // The link to the peer that reads nothing is the older one.
            drop((first, channel));
            let (stalls, older) = meet_by(|ours| sockopt::set_socket_send_buffer_size(ours, 1).unwrap());
            let (mut reads, younger) = meet();
            let (one, other) = Channel::pair().unwrap();
            younger.try_send(Outgoing::new(b"an end").handle(one)).unwrap();
            let is_full = || older.try_send(Outgoing::new(b"file").handle(file_with(b"x"))).is_err();
            assert!((0..1000).any(|_| is_full()), "the socket has room for any number of packets");
            let refused = older.try_send(Outgoing::new(b"an end").handle(other)).unwrap_err();
            reads.pump().unwrap();
            let introduces = |(packet, _): &(Packet, Vec<OwnedFd>)| packet.kind == packet_kind::INTRODUCE;
            let at = reads.arrived.iter().position(introduces).expect("the first half was sent");
            let (_, half) = reads.arrived.remove(at).unwrap();
            let (slow, _server) = slow_to_close();
            wire::send(&half[0], &Packet::wake().to_bytes(), &[slow.as_fd()]).unwrap();
            drop(slow);
            in_time("dropping the channels", || drop((refused, younger, older)));
            drop((stalls, reads));
        });
    }
}

/// Returns an attacker and its victim, as [`meet`] does. `change` changes the victim's socket first.
fn meet_by(change: impl FnOnce(&OwnedFd)) -> (RawPeer, Channel) {
    let (ours, theirs) = sockets();
    change(&theirs);
    let channel = Channel::over(theirs).unwrap();
    let mut peer = RawPeer::meet(ours).unwrap();
    peer.pump().unwrap();
    peer.send(b"hello").unwrap();
    assert_eq!(channel.try_recv().unwrap().bytes(), b"hello");
    (peer, channel)
}

attack! {
    /// An introducer sends handles over a copy of a socket that it made for an honest process and the victim. The
    /// handles do not count for the honest process, and neither do the introducer's breaches: the direct link to the
    /// honest process works. The kernel reports one process for all of them here.
    a11_what_an_introducer_sends_in_the_place_of_another_process {
        on_a_victim(|mut peer, channel| {
            let reports = Arc::new(Mutex::new(Vec::<BadPeer>::new()));
            let note = reports.clone();
            strait::quota::on_bad_peer(move |bad| note.lock().unwrap().push(*bad));
            let (mut honest, direct) = meet();
            let (half, others) = sockets();
            peer.packet(&Packet::introduce(5), &[half.as_fd()]).unwrap();
            drop(half);
            wire::send(&others, &handshake::announce(0x77).to_bytes(), &[]).unwrap();
            let end = send_end(&mut peer, &channel, 5);
            strait::quota::set_limits(Limits::new().peer(Resource::Descriptors, 20));
            let file = file_with(b"content");
            let token = 5 << 64 | 1;
            for number in 1..=8 {
                let handles = Packet::handles(token, number, 16);
                wire::send(&others, &handles.to_bytes(), &[file.as_fd(); 16]).unwrap();
            }
            assert_eq!(end.recv_by(WAITED).map(drop).unwrap_err(), Error::TimedOut);
            let held = end.peer_usage().unwrap().unwrap().peer(Resource::Descriptors).held;
            assert!(held >= 16, "{held}");
            honest.send_with(b"files", &[file.as_fd(); 16]).unwrap();
            assert_eq!(direct.recv_by(SOON).unwrap().take_handles().unwrap().len(), 16);
            wire::send(&others, b"nonsense", &[]).unwrap();
            assert_eq!(bad_peer(end.recv_by(SOON)), "an invalid packet");
            honest.bytes(b"nonsense", &[]).unwrap();
            assert_eq!(bad_peer(direct.recv_by(SOON)), "an invalid packet");
            let told: Vec<_> = reports.lock().unwrap().iter().map(|bad| (bad.reason, bad.introduced)).collect();
            assert_eq!(told, [("an invalid packet", true), ("an invalid packet", false)]);
            strait::quota::set_limits(Limits::new());
            strait::quota::on_bad_peer(|_| {});
        });
    }
}

/// Blocks a thread in a receive from `socket`, which has a packet: the receive copies the packet to a page without
/// content, and leaves the packet in the socket.
fn hold_receives<'a>(watcher: &'a Watcher, socket: &OwnedFd) -> Page<'a> {
    let copy = socket.try_clone().unwrap();
    watcher.stand_still_in(move |at| {
        let page = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: the page has room for a packet, and stays mapped until this thread was joined.
        unsafe { libc::recv(copy.as_raw_fd(), page, 48, libc::MSG_PEEK) };
    })
}

attack! {
    /// An introducer receives from its copy of an introduced socket, and the kernel waits for the memory of the
    /// introducer. Every receive of the victim from that socket blocks. The victim's wait for an honest peer goes on,
    /// and so does a call that closes another end. The introduced link ends, and the introducer's own link too.
    a18_an_introduced_socket_from_which_the_introducer_receives {
        let Some(watcher) = Watcher::new() else { return };
        for accepts in [true, false] {
            on_a_victim_with(&Options::new().accept_descriptors(accepts), |mut peer, channel| {
                let (other, honest) = Channel::pair().unwrap();
                let (half, others) = sockets();
                peer.packet(&Packet::introduce(5), &[half.as_fd()]).unwrap();
                let end = send_end(&mut peer, &channel, 5);
                wire::send(&others, &handshake::announce(0x77).to_bytes(), &[]).unwrap();
                let page = hold_receives(&watcher, &half);
                in_time_beside("a wait beside an introduced link", page, || {
                    let set = WaitSet::new().unwrap();
                    set.add(&end, 1, Interest::Readable, Mode::Level).unwrap();
                    set.add(&honest, 2, Interest::Readable, Mode::Level).unwrap();
                    other.send(b"message").unwrap();
                    let mut events = Vec::new();
                    while !events.iter().any(|event: &strait::wait::Event| event.key() == 2) {
                        assert!(set.wait(&mut events, SOON).unwrap() > 0);
                    }
                    bad_peer(end.recv_by(SOON));
                    drop((end, set));
                    peer.packet(&Packet::wake(), &[]).unwrap();
                    bad_peer(channel.recv_by(SOON));
                });
            });
        }
    }
}

attack! {
    /// An introducer blocks the receives from the sockets of ten introductions, over which the victim has never
    /// received anything. The victim drops its channel to the introducer.
    a18_introduced_sockets_from_which_the_introducer_receives_at_the_end {
        let Some(watcher) = Watcher::new() else { return };
        on_a_victim(|peer, channel| {
            let pairs: Vec<_> = (0..10).map(|_| sockets()).collect();
            let mut pages = Vec::new();
            for (number, (half, others)) in (0..).zip(&pairs) {
                peer.packet(&Packet::introduce(number), &[half.as_fd()]).unwrap();
                wire::send(others, &handshake::announce(0x77).to_bytes(), &[]).unwrap();
                pages.push(hold_receives(&watcher, half));
            }
            assert_eq!(channel.recv_by(WAITED).map(drop).unwrap_err(), Error::TimedOut);
            in_time_beside("dropping the channel", pages, || drop(channel));
        });
    }
}
