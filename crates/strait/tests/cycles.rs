//! Tests of reference cycles: channel ends that lie in messages for each other, so that no program can reach them.

mod common;

use std::io::{PipeReader, Read as _, pipe};
use std::os::fd::OwnedFd;
use std::sync::Barrier;

use common::{DEADLINE, SOON};
use rustix::event::{PollFd, PollFlags};
use strait::{Channel, Error, Handle, Outgoing};

/// Returns a message with `end` and with one end of a pipe, and the reader of that pipe. The reader finds the pipe
/// closed once the message is dropped.
fn message_with(end: Channel) -> (Outgoing<'static>, PipeReader) {
    let (reader, writer) = pipe().unwrap();
    (Outgoing::new(b"").handle(end).handle(Handle::Fd(OwnedFd::from(writer))), reader)
}

/// Returns whether the pipe is closed, at once or soon: a thread of the library may close it.
fn is_closed(mut reader: PipeReader) -> bool {
    let mut waited = [PollFd::new(&reader, PollFlags::IN)];
    let timeout = SOON.try_into().unwrap();
    rustix::event::poll(&mut waited, Some(&timeout)).unwrap() == 1 && matches!(reader.read(&mut [0]), Ok(0))
}

#[test]
fn two_sends_at_one_moment_leave_no_cycle() {
    for _ in 0..2_000 {
        let (to_one, one) = Channel::pair().unwrap();
        let (to_other, other) = Channel::pair().unwrap();
        let start = Barrier::new(2);
        let send = |over: Channel, end| {
            let (message, reader) = message_with(end);
            start.wait();
            let sent = over.send_by(message, DEADLINE);
            (sent, reader)
        };
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| send(to_one, other));
            let second = send(to_other, one);
            (first.join().unwrap(), second)
        });
        for (sent, _) in [&first, &second] {
            if let Err(failed) = sent {
                assert_eq!(failed.error, Error::OwnChannel);
            }
        }
        assert!(first.0.is_ok() || second.0.is_ok());
        drop((first.0, second.0));
        assert!(is_closed(first.1) && is_closed(second.1));
    }
}

/// Shows that a send is refused, and that its end comes back: that message and the message read by `reader` would hold
/// each other.
fn assert_refused(over: &Channel, end: Channel) -> Channel {
    let failed = over.send(Outgoing::new(b"").handle(end)).unwrap_err();
    assert_eq!(failed.error, Error::OwnChannel);
    failed.handles.into_iter().next().unwrap().into_channel().unwrap()
}

#[test]
fn an_end_whose_other_end_went_on_closes_no_cycle() {
    for twice in [false, true] {
        let (to_first, first) = Channel::pair().unwrap();
        let (to_last, last) = Channel::pair().unwrap();
        let (message, pipe) = message_with(last);
        to_first.send(message).unwrap();
        // The sender to `last` goes on in another lane, which `last` has not noticed.
        let mut far = to_last;
        for _ in 0..1 + u32::from(twice) {
            let (next, near) = Channel::pair().unwrap();
            far.fuse(near, DEADLINE).unwrap();
            far = next;
        }
        let first = assert_refused(&far, first);

        // The program holds the receiving end again, so the message is like any other.
        let last = first.recv().unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
        far.send(Outgoing::new(b"").handle(first)).unwrap();
        to_first.send(b"to the first").unwrap();
        let first = last.recv().unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
        assert_eq!(first.recv().unwrap().bytes(), b"to the first");
        assert!(is_closed(pipe));
    }
}

#[test]
fn an_end_in_a_message_that_went_on_with_another_end_closes_no_cycle() {
    let (to_holder, holder) = Channel::pair().unwrap();
    let (to_last, last) = Channel::pair().unwrap();
    to_holder.send(Outgoing::new(b"").handle(last)).unwrap();
    // The message with `last` becomes the backlog of `holder`.
    holder.rehome(DEADLINE).unwrap();
    let holder = assert_refused(&to_last, holder);
    let (outer, inner) = Channel::pair().unwrap();
    outer.send(Outgoing::new(b"").handle(holder)).unwrap();
    assert_refused(&to_last, inner);
}

#[test]
fn a_fuse_closes_no_cycle() {
    // `last` lies in a message for `between`, which lies in a message for `near`.
    let (to_near, near) = Channel::pair().unwrap();
    let (to_between, between) = Channel::pair().unwrap();
    let (to_last, last) = Channel::pair().unwrap();
    to_between.send(Outgoing::new(b"").handle(last)).unwrap();
    to_near.send(Outgoing::new(b"").handle(between)).unwrap();
    // After this fuse `last` would receive the message with `between`.
    let failed = near.fuse(to_last, DEADLINE).unwrap_err();
    assert_eq!(failed.error, Error::OwnChannel);
    let (near, to_last) = failed.channels;
    to_last.send(b"to the last").unwrap();
    let between = near.recv().unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    let last = between.recv().unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    assert_eq!(last.recv().unwrap().bytes(), b"to the last");
}
