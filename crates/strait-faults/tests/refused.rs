//! A wake-up refused by the kernel for lack of memory, in a process that waits for the answer, that only drives a
//! reactor, or that makes no further call.

#![cfg(strait_fault_points)]

use std::future::Future;
use std::pin::pin;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use strait::task::{AsyncChannel, Reactor};
use strait::{Channel, Error, Options, Outgoing, Wait, fault};

const DEADLINE: Duration = Duration::from_secs(60);

const ROLE: &str = "STRAIT_FAULTS_ECHO";

/// Held by the test with the plan: a process has one plan of faults.
static PLAN: Mutex<()> = Mutex::new(());

/// The child process: sends each message back, keeps received handles, and sleeps while there is no message. Ends with
/// the message `end`.
#[test]
fn actor() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let channel = Options::new().wait(Wait::Block).from_parent().unwrap();
    let mut idle = Vec::new();
    while let Ok(mut message) = channel.recv() {
        idle.append(&mut message.take_handles().unwrap());
        if message.bytes() == b"end" {
            return;
        }
        channel.send_by(message.bytes(), DEADLINE).unwrap();
    }
}

fn is_asleep(pid: u32) -> bool {
    let states = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
    });
    states.into_iter().all(|asleep| asleep)
}

/// Polls a future whenever the reactor's descriptor is readable, and never otherwise.
fn drive<T>(reactor: &Reactor, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let begin = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        let limit = DEADLINE.try_into().unwrap();
        assert_eq!(poll(&mut [PollFd::new(reactor, PollFlags::IN)], Some(&limit)).unwrap(), 1, "both sleep");
        assert!(begin.elapsed() < DEADLINE, "no answer came");
        while reactor.turn().unwrap() > 0 {}
    }
}

/// Starts the child process with a channel to it.
fn start(options: &Options) -> (Child, Channel) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "actor", "--nocapture"]).env(ROLE, "").stdout(std::process::Stdio::null());
    options.spawn(&mut command).unwrap()
}

/// Waits until all threads of a process sleep on a socket: a sleep on a word lasts 20 ms at most.
fn until_asleep(pid: u32) {
    let mut asleep = 0;
    while asleep < 40 {
        asleep = if is_asleep(pid) { asleep + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A thread waits on one channel of a link, with the link's socket. Another thread sends over another channel of the
/// link. The kernel refuses the packet that should wake the peer, and the sending thread waits for the answer. The
/// packet must be sent again.
#[test]
fn a_refused_wake_up_is_sent_by_a_thread_that_waits_beside_another() {
    let _plan = PLAN.lock().unwrap_or_else(PoisonError::into_inner);
    let options = Options::new().wait(Wait::Block);
    let (mut child, channel) = start(&options);
    let (idle, theirs) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"keep this").handle(theirs)).unwrap();
    channel.recv_by(DEADLINE).unwrap();
    let waiting = std::thread::spawn(move || idle.recv_by(2 * DEADLINE).map(|_| ()));
    let begin = Instant::now();
    loop {
        until_asleep(child.id());
        assert!(fault::follow("fail:sendmsg:ENOBUFS:1"));
        channel.send(b"again").unwrap();
        let refused = fault::is_past();
        assert_eq!(channel.recv_by(DEADLINE / 2).expect("an answer, or both sleep").bytes(), b"again");
        if refused {
            break;
        }
        assert!(begin.elapsed() < DEADLINE, "no wake-up needed a packet");
    }
    drop(channel);
    assert!(child.wait().unwrap().success());
    assert_eq!(waiting.join().unwrap(), Err(Error::PeerClosed));
}

#[test]
fn a_refused_wake_up_is_sent_by_whoever_drives_a_reactor() {
    let _plan = PLAN.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut child, channel) = start(&Options::new());
    let reactor = Reactor::new().unwrap();
    let channel = AsyncChannel::new(channel, &reactor).unwrap();
    drive(&reactor, channel.send(b"first")).unwrap();
    assert_eq!(drive(&reactor, channel.recv()).unwrap().bytes(), b"first");
    let begin = Instant::now();
    loop {
        until_asleep(child.id());
        assert!(fault::follow("fail:sendmsg:ENOBUFS:1"));
        drive(&reactor, channel.send(b"again")).unwrap();
        let refused = fault::is_past();
        assert_eq!(drive(&reactor, channel.recv()).unwrap().bytes(), b"again");
        if refused {
            break;
        }
        assert!(begin.elapsed() < DEADLINE, "no wake-up needed a packet");
    }
    drop(channel);
    assert!(child.wait().unwrap().success());
}

/// Shows that a refused wake-up is sent although the process makes no further call of the library.
#[test]
fn a_refused_wake_up_is_sent_although_no_further_call_is_made() {
    let _plan = PLAN.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    loop {
        let (mut child, channel) = start(&Options::new().wait(Wait::Block));
        channel.send(b"first").unwrap();
        channel.recv_by(DEADLINE).unwrap();
        until_asleep(child.id());
        assert!(fault::follow("fail:sendmsg:ENOBUFS:1"));
        channel.send(b"end").unwrap();
        let refused = fault::is_past();
        fault::record();
        let sent = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(sent.elapsed() < DEADLINE, "the peer sleeps");
            std::thread::sleep(Duration::from_millis(1));
        }
        if refused {
            break;
        }
        assert!(begin.elapsed() < DEADLINE, "no wake-up needed a packet");
    }
}

/// Holds the name of the listener in the environment of the process that connects to it.
const LISTENER: &str = "STRAIT_FAULTS_LISTENER";

/// The child process that connects to the listener of the parent.
#[test]
fn client() {
    if let Ok(name) = std::env::var(LISTENER) {
        strait::connect(&name, DEADLINE).unwrap().send(b"here").unwrap();
    }
}

/// A link without the identity of its peer would not count as one of several links to that process.
#[test]
fn an_accept_without_a_descriptor_for_the_identity_is_repeated() {
    let _plan = PLAN.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("refused-{}", std::process::id());
    let listener = strait::Listener::bind(&name).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "client", "--nocapture"]).env(LISTENER, &name).stdout(std::process::Stdio::null());
    let mut client = command.spawn().unwrap();
    assert!(fault::follow("fail:getsockopt(SO_PEERPIDFD):EMFILE:1"));
    assert_eq!(listener.accept(DEADLINE).unwrap_err().error, Error::NoDescriptors);
    assert!(fault::is_past());
    let channel = listener.accept(DEADLINE).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"here");
    assert!(client.wait().unwrap().success());
}
