//! Two processes, as in the example: one sends, the other receives.

#[allow(dead_code, reason = "the example has a function `main`")]
#[path = "../examples/processes.rs"]
mod example;

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use strait_ring::{Error, Receiver};

/// Name of the environment variable for the role of a child process.
const ROLE: &str = "STRAIT_RING_ROLE";

/// Longer than any of these tests takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Number of messages of the roles that send a fixed number.
const COUNT: u32 = 500;

/// A child process, killed when the test ends.
struct Actor(Child);

impl Actor {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this test program again, as a process that runs only the test [`child`], in the role `role`.
fn start(role: &str) -> (Actor, Receiver<example::Futex>) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]).env(ROLE, role);
    let (child, receiver) = example::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    (Actor(child), receiver)
}

/// The work of a child process; does nothing in the process of the tests.
#[test]
fn child() {
    let send = |numbers: std::ops::Range<u32>, sender: &mut strait_ring::Sender<_>| {
        numbers.map(u32::to_le_bytes).all(|number| sender.send(&number).is_ok())
    };
    match env::var(ROLE).as_deref() {
        Ok("counts") => assert!(send(0..COUNT * 20, &mut example::sender())),
        Ok("goes on") => assert!(!send(0..u32::MAX, &mut example::sender())),
        Ok("stops") => {
            let mut sender = example::sender();
            assert!(send(0..COUNT, &mut sender));
            eprintln!("sent");
            loop {
                std::thread::park();
            }
        }
        _ => {}
    }
}

/// Receives numbers, each the one after the number before, from `next` on. Returns how the ring ended and the number
/// that would have been next.
fn receive_all(receiver: &mut Receiver<example::Futex>, mut next: u32) -> (u32, Error) {
    let mut message = Vec::new();
    loop {
        match receiver.recv_by(&mut message, Instant::now() + PATIENCE) {
            Ok(()) => assert_eq!(message, next.to_le_bytes()),
            Err(error) => return (next, error),
        }
        next += 1;
    }
}

/// Receives the numbers below `end`.
fn receive_some(receiver: &mut Receiver<example::Futex>, end: u32) {
    let mut message = Vec::new();
    for number in 0..end {
        receiver.recv_by(&mut message, Instant::now() + PATIENCE).unwrap();
        assert_eq!(message, number.to_le_bytes());
    }
}

#[test]
fn what_one_process_sends_the_other_receives() {
    let (mut child, mut receiver) = start("counts");
    assert_eq!(receive_all(&mut receiver, 0), (COUNT * 20, Error::Closed));
    assert!(child.wait().success());
}

#[test]
fn what_a_process_had_sent_when_it_was_killed_is_received() {
    let (mut child, mut receiver) = start("stops");
    let errors = BufReader::new(child.0.stderr.take().unwrap());
    assert!(errors.lines().any(|line| line.unwrap() == "sent"));
    child.kill();
    assert_eq!(receive_all(&mut receiver, 0), (COUNT, Error::Closed));
}

#[test]
fn a_process_that_is_killed_while_it_sends_leaves_whole_messages() {
    let (mut child, mut receiver) = start("goes on");
    receive_some(&mut receiver, COUNT);
    child.kill();
    let (next, ended) = receive_all(&mut receiver, COUNT);
    assert_eq!(ended, Error::Closed);
    assert!(next >= COUNT);
}

#[test]
fn a_process_that_sends_learns_that_the_receiver_is_gone() {
    let (mut child, mut receiver) = start("goes on");
    receive_some(&mut receiver, COUNT);
    drop(receiver);
    assert!(child.wait().success());
}
