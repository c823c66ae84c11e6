//! Tests of processes that are dead while copies of their sockets are still open, in a child or in another process.

mod common;

use std::time::Duration;

use common::{Actor, DEADLINE, Watched, spawn_with};
use strait::call::CallEnd;
use strait::pipe::DataPipe;
use strait::wait::{Dispatched, Dispatcher, Interest, Mode, WaitSet};
use strait::{Channel, Error, Options, Outgoing, Wait};

#[test]
fn child() {
    common::play(&[
        ("survived", survived),
        ("survived unheard", survived_unheard),
        ("survived with two", survived_with_two),
        ("killed", killed),
    ]);
}

/// Sends a message and is killed, while a child keeps copies of all descriptors.
fn survived(_: &str) {
    let channel = common::parent();
    let child = leave_a_child();
    channel.send(&child.to_le_bytes()).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"the end");
    channel.send(b"last words").unwrap();
    // SAFETY: the process kills itself to leave its channels without an orderly close.
    unsafe { libc::raise(libc::SIGKILL) };
}

/// The number of messages on each channel; larger than the number after which a sender probes whether the peer is
/// alive.
const MANY: u64 = 1000;

/// Receives many messages on two channels, sends a last message and is killed, while its child keeps copies of all its
/// descriptors.
fn survived_with_two(_: &str) {
    let channel = common::parent();
    let child = leave_a_child();
    channel.send(&child.to_le_bytes()).unwrap();
    let handle = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0);
    let second = handle.into_channel().unwrap();
    // The process receives nothing before all messages have arrived.
    common::wait_until("all messages have arrived", || channel.status().unwrap().messages > MANY);
    for channel in [&channel, &second] {
        (0..MANY).for_each(|_| assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"many"));
    }
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"the end");
    channel.send(b"last words").unwrap();
    // SAFETY: the process kills itself to leave its channels without an orderly close.
    unsafe { libc::raise(libc::SIGKILL) };
}

/// Sends a message and is killed at once, while a child keeps copies of all descriptors.
fn survived_unheard(_: &str) {
    let channel = common::parent();
    let child = leave_a_child();
    channel.send(&child.to_le_bytes()).unwrap();
    // SAFETY: the process kills itself to leave its channels without an orderly close.
    unsafe { libc::raise(libc::SIGKILL) };
}

/// Starts a child that has copies of all descriptors of this process and does nothing; returns the child's process id.
fn leave_a_child() -> i32 {
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain system calls. The child is killed when the test ends.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, 0);
            libc::sleep(600);
            libc::_exit(0);
        }
    }
    child
}

/// A process with a channel, and its child, which is killed on drop.
struct Family {
    parent: Actor,
    channel: Channel,
    child: i32,
}

impl Family {
    fn start(options: &Options) -> Self {
        let (parent, channel) = spawn_with("survived", "", options);
        let child = i32::from_le_bytes(channel.recv_by(DEADLINE).unwrap().bytes().try_into().unwrap());
        Self { parent, channel, child }
    }

    fn end_parent(&mut self) {
        self.channel.send(b"the end").unwrap();
        self.parent.0.wait().unwrap();
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // SAFETY: a plain system call.
        unsafe { libc::kill(self.child, libc::SIGKILL) };
    }
}

#[test]
fn a_receiver_learns_of_the_death_of_a_process_whose_child_has_its_socket() {
    for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
        let mut family = Family::start(&Options::new().wait(wait));
        family.end_parent();
        assert_eq!(family.channel.recv_by(DEADLINE).unwrap().bytes(), b"last words", "{wait:?}");
        assert_eq!(family.channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed, "{wait:?}");
    }
}

/// Shows that a receiver notices the death of a process that died before the first receive.
#[test]
fn a_process_that_was_dead_before_anybody_listened_is_known_to_be() {
    let (mut parent, channel) = spawn_with("survived unheard", "", &Options::new());
    parent.0.wait().unwrap();
    let child = i32::from_le_bytes(channel.recv_by(DEADLINE).unwrap().bytes().try_into().unwrap());
    let family = Family { parent, channel, child };
    assert_eq!(family.channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Shows that the death of a peer ends the sleep of a receiver, although a child of the peer has the peer's socket.
#[test]
fn a_receiver_that_sleeps_already_learns_of_it() {
    let mut family = Family::start(&Options::new());
    let watched = Watched::new();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            watched.enter();
            let message = family.channel.recv_by(DEADLINE).unwrap();
            assert_eq!(message.bytes(), b"last words");
            family.channel.recv_by(DEADLINE).unwrap_err()
        });
        watched.wait_until_blocked();
        family.channel.send(b"the end").unwrap();
        assert_eq!(receiver.join().unwrap(), Error::PeerClosed);
    });
    family.parent.0.wait().unwrap();
}

/// Shows that the death of a peer ends a wait for room, although a child of the peer has the peer's socket.
#[test]
fn a_sender_that_waits_for_room_learns_of_it() {
    let mut family = Family::start(&Options::new().ring(256).ring_max(4096));
    family.end_parent();
    let error = loop {
        if let Err(failed) = family.channel.send_by(&[7; 1000], DEADLINE) {
            break failed.error;
        }
    };
    assert_eq!(error, Error::PeerClosed);
}

/// Shows that a thread that sends on two channels in turn notices the death of their peer. The channels share this
/// process's knowledge of the peer. If one channel sees no new activity, that must not count as news for the other
/// channel.
#[test]
fn who_sends_through_two_channels_in_turn_learns_of_it() {
    let (parent, first) = spawn_with("survived with two", "", &Options::new());
    let child = i32::from_le_bytes(first.recv_by(DEADLINE).unwrap().bytes().try_into().unwrap());
    let mut family = Family { parent, channel: first, child };
    let (second, theirs) = Channel::pair().unwrap();
    family.channel.send(Outgoing::new(b"another").handle(theirs)).unwrap();
    // The messages make the rings grow, so that there is room for many more.
    for channel in [&family.channel, &second] {
        (0..MANY).for_each(|_| channel.send(b"many").unwrap());
    }
    family.channel.send(b"the end").unwrap();
    assert_eq!(family.channel.recv_by(DEADLINE).unwrap().bytes(), b"last words");
    family.parent.0.wait().unwrap();
    let error = (0..10_000).find_map(|n| {
        std::thread::sleep(Duration::from_millis(1));
        [&family.channel, &second][n % 2].try_send(b"to nobody").err().map(|failed| (failed.error, n))
    });
    // Each channel probes with every sixteenth message.
    assert!(matches!(error, Some((Error::PeerClosed, 0..200))), "{error:?}");
}

/// Shows that a wait set reports the death of a peer, although a child of the peer has the peer's socket.
#[test]
fn a_wait_set_learns_of_it() {
    let mut family = Family::start(&Options::new());
    let set = WaitSet::new().unwrap();
    set.add(&family.channel, 1, Interest::Readable, Mode::Level).unwrap();
    family.end_parent();
    let mut events = Vec::new();
    set.wait(&mut events, DEADLINE).unwrap();
    assert_eq!(family.channel.try_recv().unwrap().bytes(), b"last words");
    events.clear();
    set.wait(&mut events, DEADLINE).unwrap();
    assert_eq!(events.len(), 1, "the set reported no close");
    assert_eq!(family.channel.try_recv().unwrap_err(), Error::PeerClosed);
}

#[test]
fn whether_the_peer_lives_can_be_asked() {
    let mut family = Family::start(&Options::new());
    let peer = family.channel.peer().unwrap().unwrap();
    assert!(peer.is_alive);
    assert_eq!(peer.pid, Some(family.parent.pid()));
    family.end_parent();
    assert!(!family.channel.peer().unwrap().unwrap().is_alive);
    assert!(family.channel.is_peer_closed());
}

/// Shows that a stopped process does not count as dead.
#[test]
fn a_process_that_is_only_stopped_lives() {
    let family = Family::start(&Options::new());
    let pid = i32::try_from(family.parent.pid()).unwrap();
    // SAFETY: plain system calls.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    assert_eq!(family.channel.recv_by(Duration::from_millis(500)).unwrap_err(), Error::TimedOut);
    assert!(family.channel.peer().unwrap().unwrap().is_alive);
    // SAFETY: a plain system call.
    unsafe { libc::kill(pid, libc::SIGCONT) };
}

/// Receives three handles and keeps them until the process is killed. If the argument says so, a child of the process
/// keeps copies of all its descriptors.
fn killed(leaves_a_child: &str) {
    let channel = common::parent();
    let child = if leaves_a_child == "true" { leave_a_child() } else { 0 };
    channel.send(&child.to_le_bytes()).unwrap();
    let _handles = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap();
    channel.send(b"all received").unwrap();
    let _ = channel.recv();
}

/// A call with a deadline of a few milliseconds. Returns whether the call has noticed the death of the other process.
type ShortCall<'a> = Box<dyn FnMut() -> bool + 'a>;

/// Shows that calls with short deadlines, one after the other, notice the death of the other process, although no call
/// sleeps on the socket.
#[test]
fn many_short_waits_notice_a_death() {
    for leaves_a_child in ["false", "true"] {
        // Each call has a process of its own: a death is noticed for all channels over the link.
        let mut count = 1;
        let mut number = 0;
        while number < count {
            count = short_waits_notice_a_death(number, leaves_a_child);
            number += 1;
        }
    }
}

/// Makes the call with the number `number` again and again, until it has noticed the death of the other process.
/// Returns the number of calls.
fn short_waits_notice_a_death(number: usize, leaves_a_child: &str) -> usize {
    const SHORT: Duration = Duration::from_millis(4);
    let (mut actor, channel) = spawn_with("killed", leaves_a_child, &Options::new());
    let child = i32::from_le_bytes(channel.recv_by(DEADLINE).unwrap().bytes().try_into().unwrap());
    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    let (full, far_consumer) = DataPipe::pair(4096).unwrap();
    let mut ends = Vec::new();
    let mut far: Vec<strait::Handle> = vec![producer.into(), far_consumer.into()];
    for _ in 0..4 {
        let (mine, theirs) = Channel::pair().unwrap();
        ends.push(mine);
        far.push(theirs.into());
    }
    channel.send_by(Outgoing::new(b"").handles(far), DEADLINE).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"all received");
    let [served, split, spinning, asked] = ends.try_into().unwrap();
    let served = CallEnd::over(served);
    let (_sender, mut receiver) = split.split();
    let dispatcher = Dispatcher::new().unwrap();
    let has_ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let told = has_ended.clone();
    let tell = move |_: &_, dispatched| {
        if let Dispatched::Ended(_) = dispatched {
            told.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    dispatcher.serve(spinning, 1, tell).unwrap();
    let is_closed = |error: Option<Error>| error == Some(Error::PeerClosed);
    let calls: [(&str, ShortCall<'_>); 9] = [
        ("recv_by", Box::new(|| is_closed(channel.recv_by(SHORT).err()))),
        ("recv_into", Box::new(|| is_closed(channel.recv_into(&mut [0; 8], SHORT).err()))),
        ("recv_in_place", Box::new(|| is_closed(channel.recv_in_place(SHORT).err()))),
        ("Receiver::recv_by", Box::new(|| is_closed(receiver.recv_by(SHORT).err()))),
        ("next_request", Box::new(|| is_closed(served.next_request(SHORT).err()))),
        ("read_some", Box::new(|| is_closed(consumer.read_some(&mut [0; 8], SHORT).err()))),
        ("write_whole", Box::new(|| is_closed(full.write_whole(&[0; 100], SHORT).err()))),
        (
            "dispatch",
            Box::new(|| {
                dispatcher.dispatch(SHORT).unwrap();
                has_ended.load(std::sync::atomic::Ordering::Relaxed)
            }),
        ),
        (
            "status",
            Box::new(|| {
                std::thread::sleep(SHORT);
                asked.status().unwrap().peer_closed
            }),
        ),
    ];
    actor.0.kill().unwrap();
    actor.0.wait().unwrap();
    let count = calls.len();
    let (name, mut call) = calls.into_iter().nth(number).unwrap();
    let begin = std::time::Instant::now();
    while !call() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{name} does not notice the death");
    }
    if let Some(child) = rustix::process::Pid::from_raw(child) {
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    }
    count
}
