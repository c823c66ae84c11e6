//! Tests of processes that fork or start another process.

use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;

use crate::common::{
    Actor, DEADLINE, SOON, alone, descriptors, file_with, finish, parent, pattern, spawn, spawn_with, wait_until,
};
use crate::roles::{assert_echoes, assert_files, end_after, failed, files, recv};
use strait::{Channel, Error, Message, Options, Outgoing};

pub(crate) fn spawn_role(role: &str) -> (Actor, Channel) {
    let (actor, channel) = spawn(role);
    assert_eq!(recv(&channel).bytes(), b"here");
    (actor, channel)
}

#[test]
fn a_forked_child_is_told_so_and_the_parent_goes_on() {
    alone("forks", "");
}

/// Forks, runs `play` in the child, and asserts that the child succeeds.
pub(crate) fn in_forked_child(play: impl FnOnce()) {
    // SAFETY: the child runs the closure, which at most allocates (the C library makes this safe after a fork), and
    // ends with `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        end_after(std::panic::AssertUnwindSafe(play));
    }
    let mut status = 0;
    // SAFETY: the pointer points to a local variable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the forked child ended with {status:#x}");
}

/// Asserts that every call on a channel of the parent fails with `Forked` in the child.
pub(crate) fn assert_forked(channel: &Channel) {
    for len in [0, 200_000] {
        let bytes = vec![0; len];
        let refused = channel.send(Outgoing::new(&bytes).handles(files(1))).unwrap_err();
        assert_eq!(refused.error, Error::Forked);
        assert_files(refused.handles, 1);
        assert_eq!(failed(channel.try_send(&bytes)), Error::Forked);
        assert_eq!(failed(channel.send_by(&bytes, SOON)), Error::Forked);
        assert_eq!(channel.reserve(len, SOON).unwrap_err(), Error::Forked);
        assert_eq!(channel.reserve_sealed(len).unwrap_err(), Error::Forked);
    }
    assert_eq!(channel.send_many([b"row"], SOON).unwrap_err().failed.error, Error::Forked);
    assert_eq!(channel.recv().unwrap_err(), Error::Forked);
    assert_eq!(channel.try_recv().unwrap_err(), Error::Forked);
    assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::Forked);
    assert_eq!(channel.recv_message(&mut Message::new(), SOON).unwrap_err(), Error::Forked);
    assert_eq!(channel.recv_into(&mut [0; 10], SOON).unwrap_err(), Error::Forked);
    assert_eq!(channel.recv_in_place(SOON).unwrap_err(), Error::Forked);
    assert_eq!(channel.recv_many(&mut [Message::new()], SOON).unwrap_err(), Error::Forked);
    assert_eq!(channel.peer().unwrap_err(), Error::Forked);
    assert_eq!(channel.peer_pidfd().unwrap_err(), Error::Forked);
    assert!(!channel.is_readable() && !channel.is_writable());
    let _ = (channel.is_peer_closed(), channel.counters(), format!("{channel:?}"));
}

pub(crate) fn forks(_: &str) {
    let (actor, channel) = spawn("echo");
    let (a, b) = Channel::pair().unwrap();
    assert_echoes(&channel);
    a.send(b"before").unwrap();
    channel.send(b"before").unwrap();
    channel.send(&pattern(8, 200_000)).unwrap();
    // A message is there that the child could receive as well.
    wait_until("the echo has arrived", || channel.is_readable());
    let channels = ManuallyDrop::new([channel, a, b]);
    in_forked_child(|| {
        channels.iter().for_each(assert_forked);
        // Channels made by the child work, and do not change the parent's: see `forked.rs`.
        let (one, other) = Channel::pair().unwrap();
        one.send(b"new").unwrap();
        assert_eq!(recv(&other).bytes(), b"new");
        channels.iter().for_each(assert_forked);
        // SAFETY: the parent has its own copy of the variable; the child drops its copy once.
        drop(unsafe { std::ptr::read(&raw const *channels) });
    });
    let [channel, a, b] = ManuallyDrop::into_inner(channels);
    assert_eq!(recv(&channel).bytes(), b"before");
    assert!(recv(&channel).bytes() == pattern(8, 200_000));
    assert_eq!(recv(&b).bytes(), b"before");
    b.send(b"after").unwrap();
    assert_eq!(recv(&a).bytes(), b"after");
    assert_echoes(&channel);
    // The peer has noticed nothing: for the peer, only this drop closes the channel.
    drop(channel);
    finish(actor);
}

#[test]
fn a_fork_in_the_middle_of_a_message_harms_neither_process() {
    for what in ["view", "large view", "view with handles", "reservation", "large reservation", "sealed reservation"] {
        alone("forks in the middle", what);
    }
}

pub(crate) fn forks_in_the_middle(what: &str) {
    let (actor, channel) = spawn("echo");
    let len = if what.starts_with("large") { 200_000 } else { 20 };
    let bytes = pattern(3, len);
    if what.contains("view") {
        let handles = files(if what.contains("handles") { 2 } else { 0 });
        channel.send(Outgoing::new(&bytes).handles(handles)).unwrap();
        let message = ManuallyDrop::new(channel.recv_in_place(DEADLINE).unwrap());
        in_forked_child(|| {
            // SAFETY: the parent has its own copy of the variable; the child drops its copy once.
            drop(unsafe { std::ptr::read(&raw const *message) });
        });
        let mut message = ManuallyDrop::into_inner(message);
        let mut copy = vec![0; len];
        message.read_at(&mut copy, 0);
        assert!(copy == bytes);
    } else if what == "sealed reservation" {
        let mut room = channel.reserve_sealed(len).unwrap();
        room.bytes().copy_from_slice(&bytes);
        let mut room = ManuallyDrop::new(room);
        in_forked_child(|| {
            // SAFETY: the parent has its own copy of the variable; the child uses its copy once.
            let room = unsafe { std::ptr::read(&raw const *room) };
            assert_eq!(failed(room.commit(SOON)), Error::Forked);
        });
        assert_eq!(room.bytes(), bytes);
        ManuallyDrop::into_inner(room).commit(DEADLINE).unwrap();
        assert!(recv(&channel).bytes() == bytes);
    } else {
        let mut room = channel.reserve(len, DEADLINE).unwrap();
        room.write_at(&bytes, 0);
        let room = ManuallyDrop::new(room);
        in_forked_child(|| {
            // SAFETY: the parent has its own copy of the variable; the child drops its copy once.
            drop(unsafe { std::ptr::read(&raw const *room) });
        });
        in_forked_child(|| {
            // SAFETY: the parent has its own copy of the variable; the child uses its copy once.
            let room = unsafe { std::ptr::read(&raw const *room) };
            assert_eq!(failed(room.commit()), Error::Forked);
        });
        ManuallyDrop::into_inner(room).commit().unwrap();
        assert!(recv(&channel).bytes() == bytes);
    }
    assert_echoes(&channel);
    drop(channel);
    finish(actor);
}

pub(crate) fn takes_twice(_: &str) {
    let channel = parent();
    for _ in 0..2 {
        assert_eq!(strait::from_parent().map(drop).map_err(Error::from), Err(Error::ParentTaken));
    }
    channel.send(b"here").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

#[test]
fn the_channel_to_the_parent_is_taken_once() {
    let (actor, channel) = spawn_role("takes twice");
    drop(channel);
    finish(actor);
}

pub(crate) fn takes_nothing(_: &str) {
    let start = descriptors();
    for _ in 0..2 {
        assert_eq!(strait::from_parent().map(drop).map_err(Error::from), Err(Error::NoParent));
    }
    assert_eq!(descriptors(), start);
}

#[test]
fn a_process_that_was_started_without_a_channel_has_none() {
    alone("takes nothing", "");
}

pub(crate) fn starts_a_grandchild(argument: &str) {
    use std::os::unix::process::CommandExt as _;
    let channel = parent();
    let mut command = crate::common::command("takes nothing", "");
    if argument == "other files" {
        // Another file has the number of the channel's descriptor in the grandchild.
        let other = file_with(b"another");
        // SAFETY: the closure makes system calls only, which are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                for number in 3..20 {
                    if number != other.as_raw_fd() && libc::dup2(other.as_raw_fd(), number) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
    }
    finish(Actor(command.spawn().unwrap()));
    channel.send(b"here").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

#[test]
fn a_grandchild_that_inherits_the_environment_has_no_channel() {
    for argument in ["", "other files"] {
        let (actor, channel) = spawn_with("starts a grandchild", argument, &Options::new());
        assert_eq!(recv(&channel).bytes(), b"here");
        drop(channel);
        finish(actor);
    }
}
