//! A process that may map no more memory lives on, and what it closes meanwhile is closed: threads of the library do that.

mod common;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::Duration;

use common::{Actor, DEADLINE, SOON, parent, spawn, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait::{Channel, Error, Handle, Interest, Mode, Outgoing, WaitSet};

#[test]
fn child() {
    common::play(&[
        ("drops handles", drops_handles),
        ("closes an end", closes_an_end),
        ("closes an end with few descriptors", closes_an_end_with_few_descriptors),
        ("has an end", has_an_end),
        ("waits for an end", waits_for_an_end),
        ("holds an end", holds_an_end),
    ]);
}

fn limit(of: Resource, current: Option<u64>) {
    let maximum = getrlimit(of).maximum;
    setrlimit(of, Rlimit { current: current.or(maximum), maximum }).unwrap();
}

/// Lets this process map no more than it has.
fn lack_memory() {
    lack_memory_but(0);
}

/// Lets this process map no more than so many bytes more.
fn lack_memory_but(few: u64) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().next().unwrap().parse().unwrap();
    limit(Resource::As, Some(pages * rustix::param::page_size() as u64 + few));
}

/// Calls that find nothing, until the peer has said something.
fn poll_until_told(channel: &Channel) {
    wait_until("the peer has seen it", || match channel.try_recv() {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, Error::WouldBlock);
            false
        }
    });
}

/// Drops messages with handles: two in plenty, if the argument says so, and one while it lacks memory.
fn drops_handles(argument: &str) {
    let channel = parent();
    if argument == "after others" {
        drop(channel.recv_by(DEADLINE).unwrap());
        poll_until_told(&channel);
    }
    let message = channel.recv_by(DEADLINE).unwrap();
    lack_memory();
    drop(message);
    limit(Resource::As, None);
    channel.send(b"dropped").unwrap();
    poll_until_told(&channel);
}

/// Sends the one end of a pipe, and waits until nobody has it any more.
fn is_closed(channel: &Channel, mut meanwhile: impl FnMut()) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    channel.send(Outgoing::new(b"a pipe").handle(OwnedFd::from(writer))).unwrap();
    meanwhile();
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    channel.send(b"it is closed").unwrap();
}

fn spawn_with_argument(role: &str, argument: &str) -> (Actor, Channel) {
    common::spawn_with(role, argument, &strait::Options::new())
}

/// A thread that has run before left its stack for the next one, which finds no memory for anything else.
#[test]
fn a_thread_that_starts_without_memory_does_not_end_the_process() {
    let (actor, channel) = spawn_with_argument("drops handles", "after others");
    is_closed(&channel, || {});
    is_closed(&channel, || assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"dropped"));
    common::finish(actor);
}

#[test]
fn handles_for_whose_closing_there_was_no_thread_are_closed_later() {
    let (actor, channel) = spawn_with_argument("drops handles", "");
    is_closed(&channel, || assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"dropped"));
    common::finish(actor);
}

/// Closes an end while there is no descriptor, and no memory for a thread that waits for one: the other end has moved to a process
/// that is not known here, or ends whose other ends are in such a process lie in messages.
fn closes_an_end(_: &str) {
    let channel = parent();
    let end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    // What happens meanwhile is not heard of here before there is nothing left.
    let mut go = File::from(channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_fd().unwrap());
    assert_eq!(go.read(&mut [0]).unwrap(), 0);
    drop(go);
    limit(Resource::Nofile, Some(64));
    let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // The file that says how much there is needs a descriptor.
    let all = drop_one_and(all, lack_memory);
    drop(end);
    drop(all);
    limit(Resource::Nofile, None);
    limit(Resource::As, None);
    channel.send(b"closed").unwrap();
    poll_until_told(&channel);
}

/// Has one descriptor for this, and then none again.
fn drop_one_and(mut all: Vec<File>, act: impl FnOnce()) -> Vec<File> {
    drop(all.pop());
    act();
    all.push(File::open("/dev/null").unwrap());
    all
}

fn has_an_end(_: &str) {
    let channel = parent();
    let end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    assert_eq!(end.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    channel.send(b"saw it").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

#[test]
fn an_end_for_whose_closing_there_was_no_thread_is_closed_later() {
    let (closing, to_closing) = spawn("closes an end");
    let (seeing, to_seeing) = spawn("has an end");
    let (one, other) = Channel::pair().unwrap();
    to_closing.send(Outgoing::new(b"").handle(one)).unwrap();
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    let (go, say) = std::io::pipe().unwrap();
    to_closing.send(Outgoing::new(b"").handle(OwnedFd::from(go))).unwrap();
    to_seeing.send(Outgoing::new(b"").handle(other)).unwrap();
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    drop(say);
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"closed");
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"saw it");
    to_closing.send(b"it is closed").unwrap();
    drop((to_closing, to_seeing));
    common::finish(closing);
    common::finish(seeing);
}

#[test]
fn an_end_in_a_message_that_was_dropped_without_descriptors_is_closed_later() {
    drop_message_with_end(&[]);
}

/// Without a thread the files cannot be taken out of the socket, and the end comes behind them.
#[test]
fn an_end_behind_files_that_were_dropped_without_descriptors_and_threads_is_closed_later() {
    let file = || File::open("/dev/null").unwrap();
    drop_message_with_end(&[file(), file()]);
}

/// Has a process drop a message with an end, behind one with these files, while it lacks descriptors and memory.
fn drop_message_with_end(files: &[File]) {
    let (closing, to_closing) = spawn("closes an end");
    let (seeing, to_seeing) = spawn("has an end");
    let (carrier, theirs) = Channel::pair().unwrap();
    to_closing.send(Outgoing::new(b"").handle(theirs)).unwrap();
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    let (go, say) = std::io::pipe().unwrap();
    to_closing.send(Outgoing::new(b"").handle(OwnedFd::from(go))).unwrap();
    let (one, other) = Channel::pair().unwrap();
    to_seeing.send(Outgoing::new(b"").handle(other)).unwrap();
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    if !files.is_empty() {
        let files = files.iter().map(|file| file.try_clone().unwrap().into());
        carrier.send_by(Outgoing::new(b"nor this").handles(files.collect::<Vec<Handle>>()), DEADLINE).unwrap();
    }
    carrier.send_by(Outgoing::new(b"nobody reads this").handle(one), DEADLINE).unwrap();
    drop(say);
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"closed");
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"saw it");
    assert_eq!(carrier.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    to_closing.send(b"it is closed").unwrap();
    drop((to_closing, to_seeing));
    common::finish(closing);
    common::finish(seeing);
}

/// Closes an end whose message brings an end, while few descriptors are left, so that a peer may have no more than it has here already.
fn closes_an_end_with_few_descriptors(_: &str) {
    limit(Resource::Nofile, Some(400));
    let channel = parent();
    let mut handles = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap();
    let _keeps_files = handles.pop().unwrap().into_channel().unwrap();
    let end = handles.pop().unwrap().into_channel().unwrap();
    channel.send(b"has it").unwrap();
    let mut go = File::from(channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_fd().unwrap());
    assert_eq!(go.read(&mut [0]).unwrap(), 0);
    drop(go);
    let all: Vec<File> = (0..320 - common::descriptors()).map(|_| File::open("/dev/null").unwrap()).collect();
    drop(end);
    drop(all);
    limit(Resource::Nofile, None);
    channel.send(b"closed").unwrap();
    poll_until_told(&channel);
}

#[test]
fn an_end_in_a_message_that_was_dropped_with_few_descriptors_left_is_closed_later() {
    let (closing, to_closing) = spawn("closes an end with few descriptors");
    let (seeing, to_seeing) = spawn("has an end");
    let ((carrier, theirs), (files, their_files)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
    to_closing.send(Outgoing::new(b"").handle(theirs).handle(their_files)).unwrap();
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    let as_many_as_there_may_be = (0..64).map(|_| File::open("/dev/null").unwrap().into());
    files.send(Outgoing::new(b"").handles(as_many_as_there_may_be.collect::<Vec<Handle>>())).unwrap();
    let (go, say) = std::io::pipe().unwrap();
    to_closing.send(Outgoing::new(b"").handle(OwnedFd::from(go))).unwrap();
    let (one, other) = Channel::pair().unwrap();
    to_seeing.send(Outgoing::new(b"").handle(other)).unwrap();
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    carrier.send_by(Outgoing::new(b"nobody reads this").handle(one), DEADLINE).unwrap();
    drop(say);
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"closed");
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"saw it");
    to_closing.send(b"it is closed").unwrap();
    drop((to_closing, to_seeing));
    common::finish(closing);
    common::finish(seeing);
}

/// Bytes of memory for the lane to another process; not enough for the board on which that one rings.
const LITTLE: u64 = 64 << 10;

/// Waits in a set for what happens at an end, with little memory.
fn waits_for_an_end(_: &str) {
    let channel = parent();
    let end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&end, 1, Interest::Readable, Mode::Level).unwrap();
    let mut events = Vec::with_capacity(8);
    lack_memory_but(LITTLE);
    channel.send(b"waits").unwrap();
    assert_eq!(set.wait(&mut events, SOON).unwrap(), 1, "the set was not told in time");
    assert_eq!(end.try_recv().unwrap_err(), Error::PeerClosed);
    channel.send(b"was told").unwrap();
}

fn holds_an_end(_: &str) {
    let channel = parent();
    let _end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// The set cannot have the other process ring, and so does not watch the link to it.
#[test]
fn a_member_whose_peer_cannot_be_told_that_it_listens_is_told_of_the_peers_death() {
    let (waiting, to_waiting) = spawn("waits for an end");
    let (mut holding, to_holding) = spawn("holds an end");
    let (one, other) = Channel::pair().unwrap();
    to_waiting.send(Outgoing::new(b"").handle(one)).unwrap();
    assert_eq!(to_waiting.recv_by(DEADLINE).unwrap().bytes(), b"waits");
    to_holding.send(Outgoing::new(b"").handle(other)).unwrap();
    assert_eq!(to_holding.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    // Time for the set to follow the end, which nobody can see; later it makes no difference.
    std::thread::sleep(Duration::from_millis(300));
    holding.0.kill().unwrap();
    assert_eq!(to_waiting.recv_by(DEADLINE).unwrap().bytes(), b"was told");
    common::finish(waiting);
}
