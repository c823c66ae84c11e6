//! A wake-up that the kernel refuses for lack of memory, in a process that only drives a reactor.

use std::future::Future;
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use strait::{AsyncChannel, Channel, CommandExt, Options, Reactor, Wait, fault, from_parent};

const DEADLINE: Duration = Duration::from_secs(60);

const ROLE: &str = "STRAIT_FAULTS_ECHO";

/// The child process: sends back what it receives, and sleeps while there is nothing.
#[test]
fn actor() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let channel = from_parent(&Options::new().wait(Wait::Block)).unwrap();
    while let Ok(message) = channel.recv() {
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

#[test]
fn a_refused_wake_up_is_sent_by_whoever_drives_a_reactor() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "actor", "--nocapture"]).env(ROLE, "").stdout(std::process::Stdio::null());
    let (mut child, channel): (_, Channel) = command.spawn_with_channel(&Options::new()).unwrap();
    let reactor = Reactor::new().unwrap();
    let channel = AsyncChannel::new(channel, &reactor).unwrap();
    drive(&reactor, channel.send(b"first")).unwrap();
    assert_eq!(drive(&reactor, channel.recv()).unwrap().bytes(), b"first");
    let begin = Instant::now();
    loop {
        // The child sleeps on a word for at most 20 ms, and on the socket after that.
        let mut asleep = 0;
        while asleep < 40 {
            asleep = if is_asleep(child.id()) { asleep + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(2));
        }
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
