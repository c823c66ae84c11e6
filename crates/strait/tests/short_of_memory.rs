//! A process that may map no more memory lives on, and what it closes meanwhile is closed: threads of the library do that.

mod common;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use common::{Actor, DEADLINE, parent, spawn, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait::{Channel, Error, Outgoing};

#[test]
fn child() {
    common::play(&[("drops handles", drops_handles), ("closes an end", closes_an_end), ("has an end", has_an_end)]);
}

fn limit(of: Resource, current: Option<u64>) {
    let maximum = getrlimit(of).maximum;
    setrlimit(of, Rlimit { current: current.or(maximum), maximum }).unwrap();
}

/// Lets this process map no more than it has.
fn lack_memory() {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().next().unwrap().parse().unwrap();
    limit(Resource::As, Some(pages * rustix::param::page_size() as u64));
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

/// Closes an end whose other end has moved to a process that is not known here, while there is no descriptor for getting to know it,
/// and no memory for a thread that waits for one.
fn closes_an_end(_: &str) {
    let channel = parent();
    let end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    // The other end moves on meanwhile, which is not heard of here before there is nothing left.
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
