//! Conversations between builds of different ages. The packets of an older build are recorded here, byte for byte,
//! and never change; the packets of a newer build are invented.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with, socketpair,
};
use strait::meet::{Connector, Refusal};
use strait::{Channel, Error, Listener};
use strait_hostile::handshake::{MAGIC, REFUSE_VERSION, VERSIONS, announce_with, open};
use strait_hostile::memory::Memory;
use strait_hostile::wire::{Packet, kind};
use strait_hostile::{RawPeer, wire};

const DEADLINE: Duration = Duration::from_secs(60);

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// The open packet of the first build, for a ring of 8 cells. That build sent no handshake.
const FIRST_OPEN: [u8; 48] = [
    0x01, 0, 0, 0, 0x01, 0, 0, 0, // open packet, with one descriptor
    0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf, 0xb0, // token
    0x01, 0, 0, 0, 0x54, 0x52, 0x54, 0x53, // version 1
    0, 0, 0, 0, 0, 0, 0, 0, // no features
    0x08, 0, 0, 0, 0, 0, 0, 0, // 8 cells
];

#[test]
fn the_first_build_is_refused() {
    let (ours, theirs) = sockets();
    let memory = Memory::create(256 + 16 * 64).unwrap();
    assert!(wire::send(&ours, &FIRST_OPEN, &[memory.fd()]).unwrap());
    let channel = Channel::over(theirs).unwrap();
    let error = channel.recv_by(DEADLINE).unwrap_err();
    assert_eq!(error, Error::BadPeer("an open packet in a version that was not agreed on"));
}

/// Shows that a process works with a newer build of an equal version, whatever else is in the handshake of that
/// build: the version alone fixes the places of the words in shared memory.
#[test]
fn a_newer_build_may_say_more_in_its_handshake() {
    let (ours, theirs) = sockets();
    let channel = Channel::over(theirs).unwrap();
    let mut peer = RawPeer::silent(ours, 0x77, 8).unwrap();
    let newer = Packet { fields: [1 | MAGIC, u64::MAX, u64::MAX >> 8 | 7 << 56], ..announce_with(0, [1, 7]) };
    peer.packet(&newer, &[]).unwrap();
    let [memory, _] = peer.writer.ring.memories();
    peer.packet(&open(0x77, 8), &[memory.fd()]).unwrap();
    peer.send(b"of a newer build").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"of a newer build");
    channel.send(b"to a newer build").unwrap();
    assert_eq!(peer.recv(DEADLINE).unwrap().bytes, b"to a newer build");
}

#[test]
fn builds_without_a_common_version_say_so_to_each_other() {
    let (ours, theirs) = sockets();
    assert!(wire::send(&ours, &announce_with(0, [3, 7]).to_bytes(), &[]).unwrap());
    let channel = Channel::over(theirs).unwrap();
    let refused = Error::Refused(Refusal::Version { ours: (2, 2), theirs: (3, 7) });
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), refused);
    assert_eq!(
        refused.to_string(),
        "refused: the other process speaks versions 3 to 7 of the protocol and this one 2 to 2: update the older one"
    );
    let mut refusals = Vec::new();
    while let Some((packet, _)) = wire::receive(&ours).unwrap() {
        refusals.extend((packet.kind == kind::REFUSE).then_some(packet));
    }
    assert_eq!(refusals.len(), 1);
    assert_eq!(refusals[0].fields, [REFUSE_VERSION | MAGIC, 2, 2]);

    // The other way round: the library understands the packets of the other build.
    let (ours, theirs) = sockets();
    let refusal = Packet { kind: kind::REFUSE, fields: [REFUSE_VERSION | MAGIC, 3, 7], ..Packet::default() };
    assert!(wire::send(&ours, &refusal.to_bytes(), &[]).unwrap());
    let channel = Channel::over(theirs).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), refused);
}

/// A directory for the names of a single test.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("strait-builds-{test}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn seqpacket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// Waits for a packet and returns it.
fn next_packet(socket: &OwnedFd) -> Packet {
    loop {
        match wire::receive(socket) {
            Ok(Some((packet, _))) => return packet,
            Ok(None) => {}
            // If the peer closed with unread packets, Linux reports this error once, before the packets of the peer.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => continue,
            Err(error) => panic!("{error}"),
        }
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert!(poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)).unwrap() > 0, "no packet");
    }
}

/// Shows that a listener refuses a client of another version, that both learn both versions, and that the listener
/// then serves the next client.
#[test]
fn a_listener_refuses_another_version_and_goes_on() {
    let directory = Directory::new("listener");
    let (told, refusals) = mpsc::channel();
    let builder = Listener::builder().directory(&directory.0);
    let listener = builder.on_refused(move |refused| told.send(refused.why).unwrap()).bind("service").unwrap();
    let newer = seqpacket();
    connect(&newer, &SocketAddrUnix::new(directory.0.join("service")).unwrap()).unwrap();
    assert!(wire::send(&newer, &announce_with(0, [3, 7]).to_bytes(), &[]).unwrap());
    let path = directory.0.clone();
    let client = std::thread::spawn(move || Connector::new().directory(path).connect("service", DEADLINE).unwrap());
    let channel = listener.accept(DEADLINE).unwrap();
    client.join().unwrap().send(b"of this version").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"of this version");

    let refused = Error::Refused(Refusal::Version { ours: (2, 2), theirs: (3, 7) });
    let why = loop {
        if let Ok(why) = refusals.try_recv() {
            break why;
        }
        // The listener takes packets only while it accepts.
        assert_eq!(listener.accept(Duration::from_millis(10)).unwrap_err().error, Error::TimedOut);
    };
    assert_eq!(why, refused);
    let refusal = next_packet(&newer);
    assert_eq!((refusal.kind, refusal.fields), (kind::REFUSE, [REFUSE_VERSION | MAGIC, 2, 2]));
}

/// Shows that a client that connects to a process of another version learns both versions, as does that process.
#[test]
fn a_client_refuses_a_service_of_another_version() {
    let directory = Directory::new("client");
    let service = seqpacket();
    bind(&service, &SocketAddrUnix::new(directory.0.join("service")).unwrap()).unwrap();
    listen(&service, 8).unwrap();
    let path = directory.0.clone();
    let client = std::thread::spawn(move || Connector::new().directory(path).connect("service", DEADLINE));
    let connection = accept_with(&service, SocketFlags::CLOEXEC).unwrap();
    assert_eq!(next_packet(&connection).kind, kind::HANDSHAKE);
    assert!(wire::send(&connection, &announce_with(0, [3, 7]).to_bytes(), &[]).unwrap());
    let refused = Error::Refused(Refusal::Version { ours: (2, 2), theirs: (3, 7) });
    assert_eq!(client.join().unwrap().err().map(strait::Error::from), Some(refused));
    let mut packets = std::iter::from_fn(|| Some(next_packet(&connection)));
    let refusal = packets.find(|packet| packet.kind == kind::REFUSE).unwrap();
    assert_eq!(refusal.fields, [REFUSE_VERSION | MAGIC, 2, 2]);
}

#[test]
fn what_is_no_range_of_versions_is_a_bad_peer() {
    for handshake_packet in [[0, 1], [3, 2], [256, 0]].map(|versions| announce_with(0, versions)) {
        let (ours, theirs) = sockets();
        assert!(wire::send(&ours, &handshake_packet.to_bytes(), &[]).unwrap());
        let channel = Channel::over(theirs).unwrap();
        assert!(matches!(channel.recv_by(DEADLINE), Err(Error::BadPeer(_))), "{handshake_packet:?}");
    }
}

#[test]
fn a_greeting_comes_once() {
    let (ours, theirs) = sockets();
    let channel = Channel::over(theirs).unwrap();
    let peer = RawPeer::meet(ours).unwrap();
    peer.packet(&announce_with(0, VERSIONS), &[]).unwrap();
    assert!(matches!(channel.recv_by(DEADLINE), Err(Error::BadPeer(_))));
}
