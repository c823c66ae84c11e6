//! Tests of calls that are refused: calls of the program by the library, and calls of the library by the kernel.

use std::fs::File;
use std::io::IoSlice;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::common::{
    Actor, DEADLINE, alone, descriptors, file_with, finish, pattern, refuse, spawn, spawn_with, wait_until,
};
use crate::roles::{
    WAITS, assert_echoes, assert_files, end_after, failed, files, has_no_reader, recv, sent_or_full, spawn_with_stdin,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use strait::{Channel, Error, Handle, Options, Outgoing, SendError};

/// Returns the number of Strait's mappings in another process.
pub(crate) fn mappings_of(actor: &Actor) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", actor.pid())).unwrap();
    maps.lines().filter(|line| line.contains("memfd:strait")).count()
}

#[test]
fn too_many_handles_are_refused_and_come_back() {
    for limit in [64, 2] {
        let (actor, channel) = spawn_with("echo", "", &Options::new().max_handles(limit));
        let error = Error::TooManyHandles { count: limit + 1, limit };
        let check = |failed: SendError| {
            assert_eq!(failed.error, error);
            assert_files(failed.handles, limit + 1);
        };
        check(channel.send(Outgoing::new(b"refused").handles(files(limit + 1))).unwrap_err());
        let mut room = channel.reserve(7, DEADLINE).unwrap();
        files(limit + 1).into_iter().for_each(|handle| room.handle(handle));
        check(room.commit().unwrap_err());
        let mut room = channel.reserve_sealed(7).unwrap();
        files(limit + 1).into_iter().for_each(|handle| room.handle(handle));
        check(room.commit(DEADLINE).unwrap_err());
        // Of a batch, the messages before the refused one are sent.
        let row = [limit, limit + 1, 0].map(|count| Outgoing::new(b"in a row").handles(files(count)));
        let stopped = channel.send_many(row, DEADLINE).unwrap_err();
        assert_eq!(stopped.sent, 1);
        check(stopped.failed);
        let mut first = recv(&channel);
        assert_eq!(first.bytes(), b"in a row");
        assert_files(first.take_handles().unwrap(), limit);
        assert_echoes(&channel);
        drop(channel);
        finish(actor);
    }
}

#[test]
fn a_message_over_a_smaller_limit_is_refused_and_its_handles_come_back() {
    let (actor, channel) = spawn_with("echo", "", &Options::new().max_message(1000));
    let error = Error::MessageTooLarge { len: 1001, limit: 1000 };
    let refused = channel.send(Outgoing::new(&[0; 1001]).handles(files(2))).unwrap_err();
    assert_eq!(refused.error, error);
    assert_files(refused.handles, 2);
    let parts = [IoSlice::new(&[1; 1000]), IoSlice::new(&[2])];
    assert_eq!(failed(channel.try_send(Outgoing::vectored(&parts))), error);
    assert_eq!(channel.reserve(1001, DEADLINE).unwrap_err(), error);
    assert_eq!(channel.reserve_sealed(1001).unwrap_err(), error);
    assert_eq!(channel.send_many([&[3; 1000][..], &[4; 1001]], DEADLINE).unwrap_err().sent, 1);
    assert_eq!(recv(&channel).bytes(), [3; 1000]);
    channel.send(Outgoing::vectored(&parts[..1])).unwrap();
    assert_eq!(recv(&channel).bytes(), [1; 1000]);
    drop(channel);
    finish(actor);
}

#[test]
fn a_closed_descriptor_is_refused_and_nothing_is_sent() {
    // Runs alone, because another thread could soon reuse the number of a closed descriptor.
    alone("closed descriptor", "");
}

pub(crate) fn closed_descriptor(_: &str) {
    fn closed() -> OwnedFd {
        // A file opened meanwhile does not get so high a number.
        let fd = rustix::io::fcntl_dupfd_cloexec(file_with(b"closed"), 500).unwrap();
        let number = fd.as_raw_fd();
        drop(fd);
        // SAFETY: the descriptor is not open, as required by the test; no other code in this process uses the number,
        // and the object is forgotten before it would be closed.
        unsafe { OwnedFd::from_raw_fd(number) }
    }
    fn forget(handles: Vec<Handle>) -> usize {
        handles.into_iter().map(ManuallyDrop::new).count()
    }
    let (actor, remote) = spawn("echo");
    let (local, other) = Channel::pair().unwrap();
    for channel in [&remote, &local] {
        for len in [0, 5, 5000, 200_000, 200_000] {
            // An open descriptor comes before the closed one, and must not be sent either.
            let (reader, writer) = std::io::pipe().unwrap();
            let bytes = pattern(9, len);
            let message = Outgoing::new(&bytes).handle(OwnedFd::from(reader)).handle(closed());
            let refused = channel.send_by(message, DEADLINE).unwrap_err();
            assert_eq!(refused.error, Error::BadHandle);
            let mut handles = refused.handles;
            assert_eq!(handles.len(), 2);
            drop(handles.remove(0));
            assert_eq!(forget(handles), 1);
            wait_until("no other process has the open descriptor", || has_no_reader(&writer));

            let mut room = channel.reserve(len, DEADLINE).unwrap();
            room.handle(closed());
            let refused = room.commit().unwrap_err();
            assert_eq!((refused.error, forget(refused.handles)), (Error::BadHandle, 1));
            let mut room = channel.reserve_sealed(len).unwrap();
            room.handle(closed());
            let refused = room.commit(DEADLINE).unwrap_err();
            assert_eq!((refused.error, forget(refused.handles)), (Error::BadHandle, 1));
        }
        let row = [Outgoing::new(b"goes out"), Outgoing::new(b"does not").handle(closed()), Outgoing::new(b"nor does")];
        let stopped = channel.send_many(row, DEADLINE).unwrap_err();
        assert_eq!((stopped.sent, stopped.failed.error), (1, Error::BadHandle));
        assert_eq!(forget(stopped.failed.handles), 1);
        let receiver = if std::ptr::eq(channel, &raw const local) { &other } else { channel };
        assert_eq!(recv(receiver).bytes(), b"goes out");
        assert_eq!(receiver.recv_by(Duration::from_millis(20)).unwrap_err(), Error::TimedOut);
    }
    // Memory of refused messages may have arrived at the peer, and must not accumulate there.
    assert_echoes(&remote);
    let mapped = mappings_of(&actor);
    for n in 0..700u32 {
        let mut room = remote.reserve_sealed(10).unwrap();
        room.handle(closed());
        assert_eq!(forget(room.commit(DEADLINE).unwrap_err().handles), 1);
        let refused = remote.send_by(Outgoing::new(&[7; 200_000]).handle(closed()), DEADLINE).unwrap_err();
        assert_eq!((refused.error, forget(refused.handles)), (Error::BadHandle, 1));
        remote.send(&n.to_le_bytes()).unwrap();
        assert_eq!(recv(&remote).bytes(), n.to_le_bytes());
    }
    assert!(mappings_of(&actor) <= mapped + 5, "{} mappings", mappings_of(&actor));
    assert_echoes(&remote);
    local.send(Outgoing::new(b"still").handles(files(1))).unwrap();
    assert_files(recv(&other).take_handles().unwrap(), 1);
    drop(remote);
    finish(actor);
}

#[test]
fn only_a_connected_seqpacket_socket_is_taken() {
    let refused = |fd: OwnedFd, what| assert_eq!(Channel::over(fd).err(), Some(Error::NotASocket(what)));
    let pair = |kind| rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    for (kind, what) in [(SocketType::STREAM, "a stream socket"), (SocketType::DGRAM, "a datagram socket")] {
        let (one, other) = pair(kind);
        refused(one, what);
        refused(other, what);
    }
    let unconnected =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    refused(unconnected, "a socket that is not connected");
    refused(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into(), "a socket of another family");
    refused(file_with(b"file"), "no socket");
    refused(File::open("/dev/null").unwrap().into(), "no socket");
    let (reader, writer) = std::io::pipe().unwrap();
    refused(reader.into(), "no socket");
    refused(writer.into(), "no socket");
    let (one, other) = pair(SocketType::SEQPACKET);
    let (one, other) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
    one.send(b"this kind").unwrap();
    assert_eq!(recv(&other).bytes(), b"this kind");
}

/// Shows that a channel over a socket whose other end is closed fails with `PeerClosed`.
#[test]
fn a_socket_whose_other_end_is_closed_is_no_channel_for_long() {
    // No other process may have a copy of the closed end.
    alone("closed socket", "");
}

pub(crate) fn closed_socket(_: &str) {
    let (one, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    drop(other);
    assert_eq!(Channel::over(one).map(drop), Err(Error::PeerClosed));
}

#[test]
fn a_row_that_ends_in_a_panic_of_the_callers_leaves_the_channel_whole() {
    for (len, handles) in [(4, 0), (500, 0), (4, 1), (200_000, 0)] {
        for panics_at in [0, 1, 2, 7] {
            let (actor, channel) = spawn("echo");
            let bytes: Vec<Vec<u8>> = (0..10).map(|n| pattern(n, len)).collect();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let row = bytes.iter().enumerate().map(|(n, bytes)| {
                    if n == panics_at {
                        // `panic!` would print a report.
                        std::panic::resume_unwind(Box::new("the caller's own"));
                    }
                    Outgoing::new(bytes).handles(files(handles))
                });
                channel.send_many(row, DEADLINE)
            }));
            assert!(outcome.is_err());
            channel.send(b"after it").unwrap();
            // The messages of the batch that were sent arrive completely, in order, and before the next message.
            let mut arrived = 0;
            loop {
                let mut message = recv(&channel);
                if message.bytes() == b"after it" {
                    break;
                }
                assert!(message.bytes() == bytes[arrived], "message {arrived} of {len} bytes");
                assert_files(message.take_handles().unwrap(), handles);
                arrived += 1;
            }
            assert!(arrived <= panics_at);
            assert_echoes(&channel);
            drop(channel);
            finish(actor);
        }
    }
}

pub(crate) const REFUSALS: [libc::c_int; 2] = [libc::EPERM, libc::ENOSYS];

#[test]
fn a_kernel_that_refuses_memfds_is_named_and_the_peer_sees_a_closed_channel() {
    for errno in REFUSALS {
        alone("memfd refused from the start", &errno.to_string());
        let (actor, channel) = spawn_with("refused", &errno.to_string(), &Options::new());
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
        finish(actor);
    }
}

pub(crate) fn memfd_refused_from_the_start(argument: &str) {
    let errno = argument.parse().unwrap();
    end_after(move || {
        refuse(libc::SYS_memfd_create, errno);
        let start = descriptors();
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let error = Channel::over(one).map(drop).unwrap_err();
        assert_eq!(error, Error::System { call: "memfd_create", code: errno });
        assert!(error.to_string().starts_with("memfd_create: "), "{error}");
        drop(other);
        assert_eq!(descriptors(), start);
        // A channel within a process needs no memfd.
        let (a, b) = Channel::pair().unwrap();
        a.send(&pattern(1, 200_000)).unwrap();
        assert!(recv(&b).bytes() == pattern(1, 200_000));
    });
}

/// Shows that a channel without further memfds still carries small messages, and names the refused call otherwise.
#[test]
fn a_kernel_that_refuses_memfds_later_leaves_what_needs_none() {
    for errno in REFUSALS {
        alone("memfd refused later", &errno.to_string());
    }
}

pub(crate) fn memfd_refused_later(argument: &str) {
    let errno = argument.parse().unwrap();
    end_after(move || {
        let (mut actor, channel) = spawn_with_stdin("late echo", &Options::new());
        refuse(libc::SYS_memfd_create, errno);
        let refused = Error::System { call: "memfd_create", code: errno };
        assert_eq!(failed(channel.send(&[7; 200_000])), refused);
        assert_eq!(channel.reserve(200_000, DEADLINE).map(|_| ()), Err(refused));
        assert_eq!(channel.reserve_sealed(10).map(|_| ()), Err(refused));
        let mut sent = 0u64;
        while sent_or_full(channel.try_send(&sent.to_le_bytes())) {
            sent += 1;
            assert!(sent < 1000, "the ring grew");
        }
        drop(actor.0.stdin.take());
        for n in 0..sent {
            assert_eq!(recv(&channel).bytes(), n.to_le_bytes());
        }
    });
}

#[test]
fn a_kernel_that_refuses_futexes_is_named_or_done_without() {
    for errno in REFUSALS {
        alone("futex refused", &errno.to_string());
    }
}

pub(crate) fn futex_refused(argument: &str) {
    let errno = argument.parse().unwrap();
    end_after(move || {
        let mut channels = WAITS.map(|wait| spawn_with("echo", "", &Options::new().wait(wait)));
        refuse(libc::SYS_futex, errno);
        for (actor, channel) in &mut channels {
            for len in [0, 5, 5000, 200_000] {
                let bytes = pattern(len as u64, len);
                // A wait may fail with the refused call; the answer still arrives.
                let named = |error: Error| assert_eq!(error, Error::System { call: "futex", code: errno });
                let begin = Instant::now();
                while let Err(failed) = channel.send_by(&bytes, DEADLINE) {
                    named(failed.error);
                    assert!(begin.elapsed() < DEADLINE);
                }
                let message = loop {
                    match channel.recv_by(DEADLINE) {
                        Ok(message) => break message,
                        Err(error) => named(error),
                    }
                    assert!(begin.elapsed() < DEADLINE);
                };
                assert!(message.bytes() == bytes, "{len} bytes");
            }
            actor.kill();
            let error = loop {
                match channel.recv_by(DEADLINE).unwrap_err() {
                    Error::System { call: "futex", .. } => {
                        assert!(channel.is_peer_closed(), "the death of the peer was not noticed without futexes");
                    }
                    other => break other,
                }
            };
            assert_eq!(error, Error::PeerClosed);
        }
        let (a, b) = Channel::pair().unwrap();
        a.send(b"within").unwrap();
        assert_eq!(b.recv().unwrap().bytes(), b"within");
        let error = b.recv_by(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, Error::System { call: "futex", .. } | Error::TimedOut), "{error}");
    });
}
