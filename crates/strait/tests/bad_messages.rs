//! Tests of messages that break the program's rules and none of Strait's. When the program reports such a message, the
//! sender loses its link.
//!
//! The function given to `on_bad_peer` is called for the whole process, so each test runs in a process of its own.

mod common;

use std::sync::{Arc, Mutex};

use common::{Actor, DEADLINE, Watched, alone, finish, parent, spawn};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::call::CallEnd;
use strait::quota::{BadPeer, Reported};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Message, Options, Outgoing, Peer, Wait};

#[test]
fn child() {
    common::play(&[
        ("sender", sender),
        ("reported", reported),
        ("by its channel", by_its_channel),
        ("every way", every_way),
        ("within", within),
        ("received before", received_before),
        ("holder", holder),
        ("brought", brought),
        ("mover", mover),
        ("moved", moved),
        ("dead", dead),
        ("no caller", no_caller),
    ]);
}

/// Returns a list of all further reports of bad peers in this process.
fn listen() -> Arc<Mutex<Vec<BadPeer>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let listening = told.clone();
    strait::quota::on_bad_peer(move |bad| listening.lock().unwrap().push(*bad));
    told
}

fn recv_end(channel: &Channel) -> Channel {
    let mut message = channel.recv_by(DEADLINE).unwrap();
    message.take_handles().unwrap().remove(0).into_channel().unwrap()
}

/// Gives its parent a second channel, sends messages on both channels, and succeeds if both are closed.
fn sender(_: &str) {
    let first = parent();
    let (second, theirs) = Channel::pair().unwrap();
    first.send(Outgoing::new(b"a channel").handle(theirs)).unwrap();
    // The parent may report the first message while this process sends the others.
    let sent = |sent: Result<(), strait::SendError>| match sent.map_err(Error::from) {
        Ok(()) | Err(Error::PeerClosed) => {}
        Err(error) => panic!("a message of the sender failed: {error}"),
    };
    for n in 0..3 {
        sent(first.send(format!("nonsense {n}").as_bytes()));
        sent(second.send(b"more"));
    }
    for channel in [first, second] {
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
        assert_eq!(channel.send(b"too late").unwrap_err().error, Error::PeerClosed);
    }
}

/// Asserts that the peer still answers.
fn assert_works(channel: &Channel) {
    channel.send(b"still there").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"still there");
}

/// Returns both ends of a channel over a socket of its own.
fn over_a_socket() -> (Channel, Channel) {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (Channel::over(one).unwrap(), Channel::over(other).unwrap())
}

/// Reports a message when the memory of the next message is already here.
fn received_before(_: &str) {
    let told = listen();
    let ((from, to), (moved, _stays)) = (over_a_socket(), over_a_socket());
    from.send(b"nonsense").unwrap();
    from.send(Outgoing::new(&[7; 1 << 20])).unwrap();
    // An introducing process first receives everything in the sockets.
    to.send(Outgoing::new(b"an end").handle(moved)).unwrap();
    assert_eq!(to.recv_by(DEADLINE).unwrap().report_bad("nonsense"), Reported::Closed);
    assert_eq!(to.recv_by(DEADLINE).unwrap_err(), Error::BadPeer("nonsense"));
    let reasons: Vec<_> = told.lock().unwrap().iter().map(|bad| bad.reason).collect();
    assert_eq!(reasons, ["nonsense"]);
}

#[test]
fn after_a_report_the_peer_is_not_accused_of_what_was_dropped() {
    alone("received before", "");
}

#[test]
fn a_report_closes_the_link_of_the_sender_and_nothing_else() {
    alone("reported", "");
}

/// Shows that a report by a channel closes the link of the sender, like a report by a message.
#[test]
fn a_report_at_a_channel_does_what_one_of_a_message_does() {
    alone("by its channel", "");
}

fn by_its_channel(_: &str) {
    let told = listen();
    let (bad, first) = spawn("sender");
    let second = recv_end(&first);
    assert_eq!(first.report_bad("nonsense"), Reported::Closed);
    assert_eq!(told.lock().unwrap().len(), 1);
    assert_eq!(first.recv_by(DEADLINE).unwrap_err(), Error::BadPeer("nonsense"));
    let error = loop {
        match second.recv_by(DEADLINE) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::BadPeer("nonsense"));
    // The peer sees both channels closed, although this process has dropped neither.
    common::finish(bad);
    assert_eq!(first.report_bad("nonsense"), Reported::Gone);
    let (one, _other) = Channel::pair().unwrap();
    assert_eq!(one.report_bad("within"), Reported::Within);
    assert_eq!(one.recv_by(DEADLINE).unwrap_err(), Error::BadPeer("within"));
}

fn reported(_: &str) {
    let told = listen();
    let (_good, works) = spawn_echo();
    let (bad, first) = spawn("sender");
    let second = recv_end(&first);
    let mut message = Message::new();
    first.recv_message(&mut message, DEADLINE).unwrap();
    assert_eq!(message.bytes(), b"nonsense 0");
    assert!(told.lock().unwrap().is_empty());
    assert_eq!(message.report_bad("nonsense"), Reported::Closed);
    {
        let told = told.lock().unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].peer.and_then(|peer| peer.pid), Some(bad.pid()));
        assert!(told[0].reason == "nonsense" && told[0].link_lost);
    }
    for channel in [&first, &second] {
        // Messages that the peer sent before may still be received; then the reason follows.
        let error = loop {
            match channel.recv_by(DEADLINE) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error, Error::BadPeer("nonsense"));
        assert_eq!(channel.send(b"hello").unwrap_err().error, Error::BadPeer("nonsense"));
    }
    assert_works(&works);
    // A second report finds nothing to close.
    assert_eq!(message.report_bad("nonsense"), Reported::Gone);
    common::finish(bad);
    assert_eq!(told.lock().unwrap().len(), 1);
}

fn spawn_echo() -> (Actor, Channel) {
    spawn("mover")
}

/// Shows that a message can be reported after any way of receiving.
#[test]
fn however_a_message_was_received() {
    alone("every way", "");
}

fn every_way(_: &str) {
    let told = listen();
    let mut buffer = [0; 64];
    type Way = fn(&Channel, &mut [u8]) -> (Option<Peer>, Reported);
    let ways: [Way; 3] = [
        |channel, buffer| {
            let received = channel.recv_into(buffer, DEADLINE).unwrap();
            (received.sender(), received.report_bad("by way 0"))
        },
        |channel, _| {
            let view = channel.recv_in_place(DEADLINE).unwrap();
            (view.sender(), view.report_bad("by way 1"))
        },
        |channel, _| {
            let mut slots = [Message::new(), Message::new()];
            let count = channel.recv_many(&mut slots, DEADLINE).unwrap();
            (slots[count - 1].sender(), slots[count - 1].report_bad("by way 2"))
        },
    ];
    for (n, way) in ways.into_iter().enumerate() {
        let (bad, first) = spawn("sender");
        let _second = recv_end(&first);
        let (sender, reported) = way(&first, &mut buffer);
        assert_eq!(reported, Reported::Closed, "way {n} of receiving");
        assert_eq!(sender.and_then(|sender| sender.pid), Some(bad.pid()), "way {n} of receiving");
        common::finish(bad);
        assert_eq!(told.lock().unwrap().len(), n + 1);
    }
}

/// Shows that a report of a message from within the process closes nothing, and that the callback is called.
#[test]
fn within_a_process_the_caller_is_told() {
    alone("within", "");
}

fn within(_: &str) {
    let told = listen();
    let (theirs, ours) = Channel::pair().unwrap();
    theirs.send(b"nonsense").unwrap();
    let message = ours.recv().unwrap();
    assert_eq!(message.sender().and_then(|sender| sender.pid), Some(std::process::id()));
    assert_eq!(message.report_bad("nonsense"), Reported::Within);
    assert_eq!(told.lock().unwrap()[0].reason, "nonsense");
    // The channel stays open.
    theirs.send(b"hello").unwrap();
    assert_eq!(ours.recv().unwrap().bytes(), b"hello");
    assert_eq!(Message::new().sender(), None);
    assert_eq!(Message::new().report_bad("nothing"), Reported::Gone);
}

/// Sends the parent an end with an unread message, and then another message to the end.
fn holder(_: &str) {
    let hub = parent();
    let (ours, theirs) = Channel::pair().unwrap();
    ours.send(b"unread").unwrap();
    hub.send(Outgoing::new(b"").handle(theirs)).unwrap();
    ours.send(b"fresh").unwrap();
    assert_eq!(hub.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Shows that a report of a backlog message closes no link, because another process may have sent the message.
#[test]
fn what_an_end_brought_along_is_blamed_on_nobody_for_sure() {
    alone("brought", "");
}

fn brought(_: &str) {
    let told = listen();
    let (actor, hub) = spawn("holder");
    let end = recv_end(&hub);
    let unread = end.recv_by(DEADLINE).unwrap();
    assert_eq!(unread.bytes(), b"unread");
    assert_eq!(unread.sender(), None, "either of two processes may have made the message");
    assert_eq!(unread.report_bad("unread"), Reported::Brought);
    {
        let told = told.lock().unwrap();
        assert_eq!(told[0].peer.and_then(|peer| peer.pid), Some(actor.pid()));
        assert!(!told[0].link_lost);
    }
    let fresh = end.recv_by(DEADLINE).unwrap();
    assert_eq!(fresh.bytes(), b"fresh");
    assert_eq!(fresh.sender().and_then(|sender| sender.pid), Some(actor.pid()));
    assert_eq!(fresh.report_bad("fresh"), Reported::Closed);
    assert_eq!(hub.recv_by(DEADLINE).unwrap_err(), Error::BadPeer("fresh"));
    common::finish(actor);
}

/// Echoes each message it does not know. Stores an end on "take it", sends the stored end over a given channel on "pass
/// it on", receives an end on "get it", and sends a message on the stored end on "speak".
fn mover(_: &str) {
    let hub = parent();
    let mut end: Option<Channel> = None;
    while let Ok(mut message) = hub.recv() {
        let mut handles = message.take_handles().unwrap().into_iter();
        match message.bytes() {
            b"take it" => end = handles.next().and_then(|handle| handle.into_channel()),
            b"pass it on" => {
                let way = handles.next().and_then(|handle| handle.into_channel()).unwrap();
                way.send(Outgoing::new(b"").handle(end.take().unwrap())).unwrap();
            }
            b"get it" => {
                let way = handles.next().and_then(|handle| handle.into_channel()).unwrap();
                end = Some(recv_end(&way));
            }
            b"speak" => end.as_ref().unwrap().send(b"nonsense").unwrap(),
            other => hub.send(other).unwrap(),
        }
    }
}

/// Shows that a report of a message closes the link of the present holder of the other end, and not of an earlier
/// holder.
#[test]
fn an_end_that_moved_is_blamed_on_who_has_it_now() {
    alone("moved", "");
}

fn moved(_: &str) {
    let told = listen();
    let (_first, one) = spawn("mover");
    let (second, other) = spawn("mover");
    let (ours, theirs) = Channel::pair().unwrap();
    one.send(Outgoing::new(b"take it").handle(theirs)).unwrap();
    assert_works(&one);
    let (from, to) = Channel::pair().unwrap();
    one.send(Outgoing::new(b"pass it on").handle(from)).unwrap();
    other.send(Outgoing::new(b"get it").handle(to)).unwrap();
    other.send(b"speak").unwrap();
    let message = ours.recv_by(DEADLINE).unwrap();
    assert_eq!(message.bytes(), b"nonsense");
    assert_eq!(message.report_bad("nonsense"), Reported::Closed);
    assert_eq!(told.lock().unwrap()[0].peer.and_then(|peer| peer.pid), Some(second.pid()));
    assert_eq!(ours.try_recv().unwrap_err(), Error::BadPeer("nonsense"));
    assert_works(&one);
}

/// Shows that the callback for a message of a dead process names the process.
#[test]
fn a_sender_that_is_dead_is_told_of() {
    alone("dead", "");
}

fn dead(_: &str) {
    let told = listen();
    let (mut actor, hub) = spawn("holder");
    let end = recv_end(&hub);
    end.recv_by(DEADLINE).unwrap();
    let fresh = end.recv_by(DEADLINE).unwrap();
    actor.kill();
    assert_eq!(hub.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(fresh.report_bad("fresh"), Reported::Gone);
    assert_eq!(told.lock().unwrap()[0].peer.and_then(|peer| peer.pid), Some(actor.pid()));
    // After the ends are dropped, the report still returns `Gone`.
    drop((end, hub));
    assert_eq!(fresh.report_bad("later"), Reported::Gone);
    assert_eq!(told.lock().unwrap().len(), 2);
}

/// Asserts that `channel` sees its other end closed.
fn assert_closed(channel: &Channel) {
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    // Another process closes one direction after the other.
    let failed = (0..).find_map(|_| channel.send_by(b"too late", DEADLINE).err()).unwrap();
    assert_eq!(failed.error, Error::PeerClosed);
    assert!(channel.is_peer_closed());
}

/// Shows that the other end of a reported end is closed, whether the reported end has unreceived messages or not, and
/// before and after the reported end is dropped.
#[test]
fn within_a_process_the_other_end_of_a_reported_end_is_closed() {
    for messages in [0, 1, 100] {
        let (a, b) = Channel::pair().unwrap();
        let (kept, sent) = Channel::pair().unwrap();
        let set = WaitSet::new().unwrap();
        let mut events = Vec::new();
        set.add(&b, 0, Interest::Readable, Mode::OneShot).unwrap();
        assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0);
        if messages > 0 {
            a.send(Outgoing::new(b"an end").handle(sent)).unwrap();
            assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
            set.modify(&b, 0, Interest::Writable, Mode::OneShot).unwrap();
        } else {
            drop(sent);
        }
        (1..messages).for_each(|_| a.send(b"unreceived").unwrap());
        assert_eq!(b.report_bad("nonsense"), Reported::Within);
        assert_closed(&a);
        assert_closed(&kept);
        assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
        assert_eq!(b.recv_by(DEADLINE).unwrap_err(), Error::BadPeer("nonsense"));
        assert_eq!(b.send_by(b"no", DEADLINE).unwrap_err().error, Error::BadPeer("nonsense"));
        drop(b);
        assert_closed(&a);
    }
}

/// Shows that an end which waits for room learns that its other end was reported.
#[test]
fn within_a_process_a_sender_that_waits_is_woken_when_the_other_end_is_reported() {
    let (a, b) = Options::new().ring_max(4096).pair().unwrap();
    while a.try_send(&[0; 1000]).is_ok() {}
    let watched = Watched::new();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            watched.enter();
            a.send_by(&[0; 1000], DEADLINE).unwrap_err().error
        });
        watched.wait_until_blocked();
        b.report_bad("nonsense");
        assert_eq!(sending.join().unwrap(), Error::PeerClosed);
    });
}

/// Shows that a report ends the waits of other threads on the reported end: in either direction, and in both at once.
#[test]
fn within_a_process_a_report_ends_the_waits_of_other_threads_on_the_end() {
    for (wait, receives, sends) in
        [(Wait::Adaptive, true, false), (Wait::Block, false, true), (Wait::Block, true, true), (Wait::Spin, true, true)]
    {
        let (a, b) = Options::new().ring_max(4096).wait(wait).pair().unwrap();
        while b.try_send(&[0; 1000]).is_ok() {}
        let (receiver, sender) = (Watched::new(), Watched::new());
        std::thread::scope(|scope| {
            let receiving = receives.then(|| {
                scope.spawn(|| {
                    receiver.enter();
                    b.recv_by(DEADLINE).unwrap_err()
                })
            });
            let sending = sends.then(|| {
                scope.spawn(|| {
                    sender.enter();
                    b.send_by(&[0; 1000], DEADLINE).unwrap_err().error
                })
            });
            receiving.iter().for_each(|_| receiver.wait_until_blocked());
            sending.iter().for_each(|_| sender.wait_until_blocked());
            b.report_bad("nonsense");
            for ended in receiving.into_iter().chain(sending) {
                assert_eq!(ended.join().unwrap(), Error::BadPeer("nonsense"));
            }
        });
        let error = loop {
            if let Err(error) = a.recv_by(DEADLINE) {
                break error;
            }
        };
        assert_eq!(error, Error::PeerClosed);
        // The other end is told although nobody has dropped the reported end yet.
        while a.send_by(&[0; 1000], DEADLINE).inspect_err(|failed| assert_eq!(failed.error, Error::PeerClosed)).is_ok()
        {
        }
        drop(b);
        assert_closed(&a);
    }
}

/// Shows that a call end which gets a message that is no call closes its channel, and leaves the link alone.
#[test]
fn the_peer_of_a_call_end_that_sends_no_calls_is_told_of_the_end() {
    let (a, b) = Channel::pair().unwrap();
    a.send(b"hello").unwrap();
    let end = CallEnd::over(b);
    assert!(matches!(end.next_request(DEADLINE).unwrap_err(), Error::BadPeer(_)));
    assert_closed(&a);
    drop(end);
    assert_closed(&a);

    let (actor, hub) = spawn("no caller");
    let (ours, theirs) = Channel::pair().unwrap();
    hub.send(Outgoing::new(b"a channel").handle(theirs)).unwrap();
    let end = CallEnd::over(ours);
    assert!(matches!(end.next_request(DEADLINE).unwrap_err(), Error::BadPeer(_)));
    drop(end);
    assert_eq!(hub.recv_by(DEADLINE).unwrap().bytes(), b"is closed");
    drop(hub);
    finish(actor);
}

/// Receives an end, sends a message that is no call, and tells its parent once the end's channel is closed.
fn no_caller(_: &str) {
    let hub = parent();
    let end = recv_end(&hub);
    end.send(b"hello").unwrap();
    assert_closed(&end);
    hub.send(b"is closed").unwrap();
    assert_eq!(hub.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}
