//! Two versions of the library in one program: `strait`, and a second copy under another name. The copies share no
//! state, and communicate like two processes.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const LONG: Duration = Duration::from_secs(60);

/// Returns a channel with an end of each copy of the library.
fn channel() -> (strait::Channel, strait_twice::Channel) {
    let sockets: (OwnedFd, OwnedFd) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (strait::Channel::over(sockets.0).unwrap(), strait_twice::Channel::over(sockets.1).unwrap())
}

#[test]
fn each_copy_works_for_itself() {
    let (a, b) = strait::Channel::pair().unwrap();
    let (c, d) = strait_twice::Channel::pair().unwrap();
    for number in 0..100u8 {
        a.send(&[number]).unwrap();
        c.send(&[number, number]).unwrap();
        assert_eq!((b.recv().unwrap().bytes(), d.recv().unwrap().bytes()), (&[number][..], &[number, number][..]));
    }
}

#[test]
fn the_copies_talk_to_each_other() {
    let (one, other) = channel();
    for len in [0, 56, 1000, 100_000, 1_000_000] {
        one.send(&vec![7; len]).unwrap();
        assert_eq!(other.recv_by(LONG).unwrap().bytes(), vec![7; len]);
        other.send(&vec![8; len]).unwrap();
        assert_eq!(one.recv_by(LONG).unwrap().bytes(), vec![8; len]);
    }
    drop(one);
    assert_eq!(other.recv_by(LONG).unwrap_err(), strait_twice::Error::PeerClosed);
}

/// Shows that an end can be sent from one copy to the other, and arrives with the unread messages.
#[test]
fn an_end_goes_over_to_the_other_copy() {
    let (one, other) = channel();
    let (client, server) = strait::Channel::pair().unwrap();
    client.send(b"unread").unwrap();
    one.send(strait::Outgoing::new(b"an end").handle(server)).unwrap();
    let handle = other.recv_by(LONG).unwrap().take_handles().unwrap().remove(0);
    let server = handle.into_channel().unwrap();
    assert_eq!(server.recv_by(LONG).unwrap().bytes(), b"unread");
    server.send(b"an answer").unwrap();
    assert_eq!(client.recv_by(LONG).unwrap().bytes(), b"an answer");
}

/// Shows that the copies can connect to each other by name.
#[test]
fn the_copies_meet_by_name() {
    let directory = std::env::temp_dir().join(format!("strait-twice-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let listener = strait::Listener::builder().directory(&directory).bind("service").unwrap();
    let client = std::thread::spawn({
        let directory = directory.clone();
        move || strait_twice::meet::Connector::new().directory(directory).connect("service", LONG).unwrap()
    });
    let server = listener.accept(LONG).unwrap();
    client.join().unwrap().send(b"hello").unwrap();
    assert_eq!(server.recv_by(LONG).unwrap().bytes(), b"hello");
    drop(listener);
    std::fs::remove_dir_all(&directory).unwrap();
}
