//! Situations with two stopped processes, which the matrix reaches only by chance.

#![cfg(strait_fault_points)]

use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use strait::{Channel, CommandExt, Deadline, Outgoing};

const DEADLINE: Duration = Duration::from_secs(60);

const ROLE: &str = "STRAIT_FAULTS_ROLE";

/// A child process of this program, stopped at a step, and killed when this value is dropped.
struct Actor(Child);

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Actor {
    fn command(role: &str, stops_at: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["actor", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env("STRAIT_FAULT", format!("stop:{stops_at}:1"));
        command
    }

    fn start(role: &str, stops_at: &str) -> (Self, Channel) {
        let (child, channel) = Self::command(role, stops_at).spawn_with_channel().expect("a process");
        (Self(child), channel)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn wait_until_stopped(&self) {
        let (_, status) =
            waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("a child").expect("it was waited for");
        assert!(status.stopped(), "it ended before it came to where it was to stop: {status:?}");
    }

    fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).expect("it is there");
    }
}

fn ends_from(channel: &Channel) -> Vec<Channel> {
    let mut message = channel.recv_by(DEADLINE).expect("a message");
    let handles = message.take_handles().expect("ends");
    handles.into_iter().map(|handle| handle.into_channel().expect("an end")).collect()
}

#[test]
fn actor() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "late reader" {
        return read_late();
    }
    let parent = strait::from_parent().expect("a parent");
    let mut ends = ends_from(&parent);
    match role.as_str() {
        "fuser" => {
            let (other, one) = (ends.remove(1), ends.remove(0));
            one.fuse(other, Deadline::NEVER).expect("they are fused");
        }
        "sender" => {
            parent.send(b"ready").expect("a parent");
            parent.recv_by(DEADLINE).expect("a word");
            let file = std::fs::File::open("/dev/null").expect("/dev/null");
            ends[0].send_by(Outgoing::new(b"with a file").handle(file), DEADLINE).expect("it has its other end");
            ends[0].recv_by(DEADLINE).expect("an answer");
        }
        other => panic!("no role: {other}"),
    }
}

/// Shows that a sender notices a new peer: the sender sends a descriptor while its other end is still in transit.
/// Before the sender looks again, the end arrives at its destination, and the source of the end is gone.
#[test]
fn whoever_waits_for_an_end_that_is_handed_over_finds_it_when_the_one_between_is_gone() {
    let (sender, to_sender) = Actor::start("sender", "between two looks at an end that is on its way");
    let (mut fuser, to_fuser) = Actor::start("fuser", "before two ends are handed to each other");
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    to_sender.send(Outgoing::new(b"").handle(d)).unwrap();
    assert_eq!(to_sender.recv_by(DEADLINE).unwrap().bytes(), b"ready");
    to_fuser.send(Outgoing::new(b"").handle(b).handle(c)).unwrap();
    fuser.wait_until_stopped();
    to_sender.send(b"now").unwrap();
    sender.wait_until_stopped();
    fuser.go_on();
    assert!(fuser.0.wait().unwrap().success());
    sender.go_on();
    let mut message = a.recv_by(DEADLINE).unwrap();
    assert_eq!(message.bytes(), b"with a file");
    assert_eq!(message.take_handles().unwrap().len(), 1);
    a.send(b"it came").unwrap();
    let mut sender = sender;
    assert!(sender.0.wait().unwrap().success());
}

/// Receives all messages of the parent over the socket on standard input while this process is stopped.
fn read_late() {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("a socket");
    let parent = Channel::over(socket).expect("a channel");
    assert_eq!(parent.recv_by(DEADLINE).expect("what was sent").bytes(), b"last words");
    let file = parent.recv_by(DEADLINE).expect("what was sent").take_handles().expect("what was sent with it");
    assert_eq!(file.len(), 1);
    assert_eq!(parent.recv_by(DEADLINE).expect_err("nothing more was sent"), strait::Error::PeerClosed);
}

/// Shows that the last messages of a peer are received: a process looks for the first packet of a link in vain.
/// Before the process checks whether the peer is alive, the peer sends everything and ends.
#[test]
fn what_a_peer_sent_just_before_it_ended_is_received_by_who_had_found_nothing() {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let mut command = Actor::command("late reader", "ppoll");
    let mut reader = Actor(command.stdin(theirs).spawn().expect("a process"));
    // The command holds a copy of the other socket.
    drop(command);
    reader.wait_until_stopped();
    let channel = Channel::over(ours).unwrap();
    channel.send(b"last words").unwrap();
    let file = std::fs::File::open("/dev/null").expect("/dev/null");
    channel.send(Outgoing::new(b"").handle(file)).unwrap();
    drop(channel);
    reader.go_on();
    assert!(reader.0.wait().unwrap().success());
}
