//! Shows that the [check for lost wake-ups](strait::strict_wakes) finds a peer that publishes and does not wake. Runs
//! with `./run-strict test --package strait-hostile --test strict_wakes`.

#![cfg(strait_strict_wakes)]

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::{Channel, Error};
use strait_hostile::RawPeer;
use strait_hostile::layout::ON_SOCKET;
use strait_hostile::record::{header, kind};

/// Set for the process that receives.
const RECEIVES: &str = "STRAIT_RECEIVES";

/// Receives one message, in waits of a second, over the socket that is the standard input.
#[test]
fn receiver() {
    if std::env::var_os(RECEIVES).is_none() {
        return;
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let channel = Channel::over(socket).unwrap();
    loop {
        match channel.recv_by(Duration::from_secs(1)) {
            Ok(message) => return assert_eq!(message.bytes(), b"x"),
            Err(error) => assert_eq!(error, Error::TimedOut),
        }
    }
}

/// Starts a process that receives. Returns its peer and the process.
fn start() -> (RawPeer, Child) {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "receiver", "--nocapture"]).env(RECEIVES, "1");
    command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::piped());
    (RawPeer::meet(ours).unwrap(), command.spawn().unwrap())
}

/// Publishes a message once the receiver sleeps on its socket, and does not wake the receiver.
fn publish(peer: &mut RawPeer) {
    let begin = Instant::now();
    while peer.writer.ring.sleeping().load(SeqCst) != ON_SOCKET {
        assert!(begin.elapsed() < Duration::from_secs(60), "the receiver does not sleep");
        std::thread::yield_now();
    }
    peer.writer.put(header(kind::MESSAGE, 1, 0), b"x");
}

fn end(process: Child) -> (Output, String) {
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn a_peer_that_does_not_wake_is_found() {
    let (mut peer, process) = start();
    publish(&mut peer);
    let (output, said) = end(process);
    assert!(said.contains("a lost wake-up, "), "{said}");
    assert!(output.status.signal().is_some(), "{:?}", output.status);
}

#[test]
fn a_peer_that_wakes_late_is_not_reported() {
    let (mut peer, process) = start();
    publish(&mut peer);
    std::thread::sleep(Duration::from_secs(2));
    peer.wake().unwrap();
    let (output, said) = end(process);
    assert!(output.status.success() && !said.contains("a lost wake-up"), "{said}");
}
