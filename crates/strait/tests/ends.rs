//! Tests of ends that travel in messages: within a process, to the peer, to other processes, and back.

mod common;

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use common::{
    Actor, DEADLINE, alone, checksum, content_of, descriptors, file_with, finish, parent, pattern, play, spawn,
};
use strait::{Channel, Deadline, Error, Handle, Options, Outgoing};

#[test]
fn child() {
    play(&[
        ("server", |_| server()),
        ("hub-leaf", |_| leaf()),
        ("accounts", |_| accounts()),
        ("mesh", |_| mesh()),
        ("last", last),
        ("seals", |_| seals()),
        ("few", |_| few()),
        ("to the dead", |_| to_the_dead()),
        ("long backlog", |_| long_backlog()),
    ]);
}

/// Receives a message and returns its last handle, a channel end.
fn recv_end(channel: &Channel) -> Channel {
    let mut message = channel.recv_by(DEADLINE).unwrap();
    let handle = message.take_handles().unwrap().pop().expect("a handle");
    handle.into_channel().expect("an end")
}

fn send_end(over: &Channel, end: Channel) {
    over.send_by(Outgoing::new(b"end").handle(end), DEADLINE).unwrap();
}

/// Receives ends, and sends back each message that arrives on an end until the end's channel is closed.
fn server() {
    let parent = parent();
    while let Ok(mut message) = parent.recv() {
        for end in message.take_handles().unwrap().into_iter().filter_map(Handle::into_channel) {
            common::echo(&end);
        }
    }
}

/// Executes the commands of the parent on a list of received ends.
fn leaf() {
    let parent = parent();
    let mut ends: Vec<Channel> = Vec::new();
    while let Ok(mut message) = parent.recv() {
        let handles = message.take_handles().unwrap();
        let mut words = std::str::from_utf8(message.bytes()).unwrap().split(' ');
        match words.next().unwrap() {
            // Adds the received ends to the list.
            "keep" => ends.extend(handles.into_iter().filter_map(Handle::into_channel)),
            // Sends one end of the list over another.
            "pass" => {
                let what = ends.remove(words.next().unwrap().parse().unwrap());
                send_end(&ends[words.next().unwrap().parse::<usize>().unwrap()], what);
            }
            // Sends one end of the list to the parent.
            "return" => {
                let what = ends.remove(words.next().unwrap().parse().unwrap());
                send_end(&parent, what);
                continue;
            }
            "take" => {
                let from = &ends[words.next().unwrap().parse::<usize>().unwrap()];
                let taken = recv_end(from);
                ends.push(taken);
            }
            "say" => {
                let through = &ends[words.next().unwrap().parse::<usize>().unwrap()];
                through.send_by(words.next().unwrap().as_bytes(), DEADLINE).unwrap();
            }
            "hear" => {
                let from = &ends[words.next().unwrap().parse::<usize>().unwrap()];
                let heard = from.recv_by(DEADLINE);
                let answer =
                    heard.map(|message| message.into_bytes()).unwrap_or_else(|error| format!("{error:?}").into());
                parent.send(&answer).unwrap();
                continue;
            }
            "close" => drop(ends.remove(words.next().unwrap().parse().unwrap())),
            other => panic!("{other}"),
        }
        parent.send(b"done").unwrap();
    }
}

fn tell(leaf: &Channel, what: &str) {
    leaf.send_by(what.as_bytes(), DEADLINE).unwrap();
    assert_eq!(leaf.recv_by(DEADLINE).unwrap().bytes(), b"done");
}

fn give(leaf: &Channel, end: Channel) {
    leaf.send_by(Outgoing::new(b"keep").handle(end), DEADLINE).unwrap();
    assert_eq!(leaf.recv_by(DEADLINE).unwrap().bytes(), b"done");
}

fn hear(leaf: &Channel, which: &str) -> Vec<u8> {
    leaf.send_by(which.as_bytes(), DEADLINE).unwrap();
    leaf.recv_by(DEADLINE).unwrap().into_bytes()
}

#[test]
fn an_end_travels_within_the_process() {
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    c.send(b"before").unwrap();
    send_end(&a, d);
    let d = recv_end(&b);
    c.send(b"after").unwrap();
    assert_eq!(d.recv().unwrap().bytes(), b"before");
    assert_eq!(d.recv().unwrap().bytes(), b"after");
    d.send(b"back").unwrap();
    assert_eq!(c.recv().unwrap().bytes(), b"back");
}

#[test]
fn an_end_goes_to_the_peer() {
    let (actor, peer) = spawn("server");
    let (mine, theirs) = Channel::pair().unwrap();
    mine.send(b"unread").unwrap();
    send_end(&peer, theirs);
    assert_eq!(mine.recv_by(DEADLINE).unwrap().bytes(), b"unread");
    for n in 0..1000u32 {
        mine.send(&n.to_le_bytes()).unwrap();
        assert_eq!(mine.recv_by(DEADLINE).unwrap().bytes(), n.to_le_bytes());
    }
    drop(mine);
    drop(peer);
    finish(actor);
}

#[test]
fn large_unread_messages_and_their_handles_go_along() {
    let (actor, peer) = spawn("server");
    let (mine, theirs) = Channel::pair().unwrap();
    let large = pattern(1, 3 << 20);
    mine.send(&large).unwrap();
    mine.send(Outgoing::new(b"file").handle(file_with(b"content"))).unwrap();
    let mut fixed = mine.reserve_sealed(100_000).unwrap();
    fixed.bytes().fill(7);
    fixed.commit(DEADLINE).unwrap();
    let long = pattern(2, 50_000);
    mine.send(&long).unwrap();
    send_end(&peer, theirs);
    mine.send(b"after").unwrap();
    assert_eq!(checksum(mine.recv_by(DEADLINE).unwrap().bytes()), checksum(&large));
    let mut message = mine.recv_by(DEADLINE).unwrap();
    assert_eq!(message.bytes(), b"file");
    assert_eq!(content_of(message.take_handles().unwrap().remove(0)), b"content");
    assert_eq!(mine.recv_by(DEADLINE).unwrap().bytes(), [7; 100_000]);
    assert_eq!(checksum(mine.recv_by(DEADLINE).unwrap().bytes()), checksum(&long));
    assert_eq!(mine.recv_by(DEADLINE).unwrap().bytes(), b"after");
    drop(mine);
    drop(peer);
    finish(actor);
}

#[test]
fn an_end_comes_back_again_and_again() {
    let (_actor, peer) = spawn("hub-leaf");
    let (mine, mut theirs) = Channel::pair().unwrap();
    for n in 0..200u32 {
        mine.send(&n.to_le_bytes()).unwrap();
        give(&peer, theirs);
        mine.send(b"while away").unwrap();
        peer.send(b"return 0").unwrap();
        theirs = recv_end(&peer);
        assert_eq!(theirs.recv_by(DEADLINE).unwrap().bytes(), n.to_le_bytes());
        assert_eq!(theirs.recv_by(DEADLINE).unwrap().bytes(), b"while away");
    }
}

/// Sends an end back `times` times and keeps it the next time. Once the channel to the parent is closed, it sends a
/// message on the kept end and echoes.
fn last(times: &str) {
    let parent = parent();
    for _ in 0..times.parse().unwrap() {
        send_end(&parent, recv_end(&parent));
    }
    let end = recv_end(&parent);
    assert_eq!(parent.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    end.send(b"still here").unwrap();
    common::echo(&end);
}

/// Shows that an idle end still reaches its other end after the close of all channels by which the other end was sent.
#[test]
fn an_end_that_was_idle_finds_the_other_when_the_way_it_went_is_gone() {
    for times in [0, 1, 2, 7, 100] {
        let (actor, peer) = common::spawn_with("last", &times.to_string(), &Options::new());
        let (mine, mut theirs) = Channel::pair().unwrap();
        for _ in 0..times {
            send_end(&peer, theirs);
            theirs = recv_end(&peer);
        }
        send_end(&peer, theirs);
        // From here on only the kept end uses the link to the other process.
        drop(peer);
        assert_eq!(mine.recv_by(DEADLINE).unwrap().bytes(), b"still here", "after {times}");
        mine.send(b"and back").unwrap();
        assert_eq!(mine.recv_by(DEADLINE).unwrap().bytes(), b"and back", "after {times}");
        drop(mine);
        actor.wait_for_success();
    }
}

/// Shows that two processes introduced by a third can use the ends from the third, and send ends between each other.
#[test]
fn two_that_never_met_talk_when_the_one_between_them_is_gone() {
    let (_one_actor, one) = spawn("hub-leaf");
    let (_other_actor, other) = spawn("hub-leaf");
    let (a, b) = Channel::pair().unwrap();
    give(&one, a);
    give(&other, b);
    tell(&one, "say 0 hello");
    assert_eq!(hear(&other, "hear 0"), b"hello");
    tell(&other, "say 0 again");
    assert_eq!(hear(&one, "hear 0"), b"again");
    // An end of the channel between the two arrives in this process by way of both.
    let (c, d) = Channel::pair().unwrap();
    give(&one, c);
    tell(&one, "pass 1 0");
    tell(&other, "take 0");
    d.send(b"through two").unwrap();
    assert_eq!(hear(&other, "hear 1"), b"through two");
    tell(&one, "close 0");
    assert_eq!(hear(&other, "hear 0"), b"PeerClosed");
}

/// Shows that an end moves with the ends in its messages, nested two thousand deep.
#[test]
fn a_chain_of_ends_in_ends_goes_as_one() {
    let (_actor, peer) = spawn("hub-leaf");
    let depth = 2000;
    let (outer, mut inner) = Channel::pair().unwrap();
    let mut others = vec![];
    for n in 0..depth {
        let (next, holder) = Channel::pair().unwrap();
        next.send(Outgoing::new(format!("level {n}").as_bytes()).handle(inner)).unwrap();
        others.push(next);
        inner = holder;
    }
    outer.send(b"innermost").unwrap();
    give(&peer, inner);
    peer.send(b"return 0").unwrap();
    let mut inner = recv_end(&peer);
    for n in (0..depth).rev() {
        let mut message = inner.recv_by(DEADLINE).unwrap();
        assert_eq!(message.bytes(), format!("level {n}").as_bytes());
        inner = message.take_handles().unwrap().remove(0).into_channel().unwrap();
    }
    assert_eq!(inner.recv_by(DEADLINE).unwrap().bytes(), b"innermost");
}

#[test]
fn a_deep_chain_that_is_dropped_closes_every_end() {
    let (outer, mut inner) = Channel::pair().unwrap();
    for _ in 0..20_000 {
        let (next, holder) = Channel::pair().unwrap();
        next.send(Outgoing::new(b"").handle(inner)).unwrap();
        inner = holder;
    }
    assert!(!outer.is_peer_closed());
    drop(inner);
    assert!(outer.is_peer_closed());
    assert_eq!(outer.recv().unwrap_err(), Error::PeerClosed);
}

#[test]
fn an_end_cannot_go_over_its_own_channel() {
    let (a, b) = Channel::pair().unwrap();
    let failed = a.send(Outgoing::new(b"").handle(b)).unwrap_err();
    assert_eq!(failed.error, Error::OwnChannel);
    let b = failed.handles.into_iter().next().unwrap().into_channel().unwrap();
    a.send(b"still there").unwrap();
    assert_eq!(b.recv().unwrap().bytes(), b"still there");
}

/// Shows that an end is refused if the message would lie, directly or through other messages, in a message that only
/// the sent end can receive. No end would be left that could receive it, so the ends would hold each other for ever.
#[test]
fn an_end_cannot_be_sent_to_an_end_that_lies_in_a_message_for_it() {
    for between in 0..3 {
        let (to_first, first) = Channel::pair().unwrap();
        let (to_last, last) = Channel::pair().unwrap();
        // `last` lies in a message for the next end, and so on; the outermost of these messages is for `first`.
        let mut inner = last;
        for _ in 0..between {
            let (to_next, next) = Channel::pair().unwrap();
            send_end(&to_next, inner);
            inner = next;
        }
        send_end(&to_first, inner);
        let failed = to_last.send(Outgoing::new(b"kept").handle(first)).unwrap_err();
        assert_eq!(failed.error, Error::OwnChannel, "{between} messages between");
        let first = failed.handles.into_iter().next().unwrap().into_channel().unwrap();

        // As soon as the program holds the receiving end again, the message is like any other.
        let mut held = recv_end(&first);
        for _ in 0..between {
            held = recv_end(&held);
        }
        send_end(&to_last, first);
        to_first.send(b"still there").unwrap();
        assert_eq!(recv_end(&held).recv().unwrap().bytes(), b"still there");
    }
}

#[test]
fn an_end_that_cannot_be_sent_comes_back_whole() {
    // In a process of its own no other process has a copy of the dead peer's socket.
    alone("to the dead", "");
}

fn to_the_dead() {
    let (mut actor, peer) = spawn("hub-leaf");
    actor.kill();
    let (mine, theirs) = Channel::pair().unwrap();
    mine.send(b"unread").unwrap();
    let failed = peer.send_by(Outgoing::new(b"keep").handle(theirs), Duration::from_secs(5)).unwrap_err();
    assert_eq!(failed.error, Error::PeerClosed);
    let theirs = failed.handles.into_iter().next().unwrap().into_channel().unwrap();
    assert_eq!(theirs.recv().unwrap().bytes(), b"unread");
    theirs.send(b"alive").unwrap();
    assert_eq!(mine.recv().unwrap().bytes(), b"alive");
}

/// Shows that the death of the process with the other end ends a receive.
#[test]
fn an_end_that_dies_with_its_holder_is_seen_closed() {
    let (mut actor, peer) = spawn("hub-leaf");
    let (mine, theirs) = Channel::pair().unwrap();
    give(&peer, theirs);
    let waiting = std::thread::spawn(move || mine.recv_by(DEADLINE).unwrap_err());
    actor.kill();
    assert_eq!(waiting.join().unwrap(), Error::PeerClosed);
}

/// Shows that two thousand channels to one process need only the descriptors of the link.
#[test]
fn many_channels_cost_no_descriptors() {
    alone("accounts", "");
}

fn accounts() {
    let (_actor, peer) = spawn("hub-leaf");
    give(&peer, Channel::pair().unwrap().1);
    let before = descriptors();
    let mut mine = Vec::new();
    for n in 0..2000u32 {
        let (one, other) = Channel::pair().unwrap();
        one.send(&n.to_le_bytes()).unwrap();
        peer.send_by(Outgoing::new(b"keep").handle(other), DEADLINE).unwrap();
        assert_eq!(peer.recv_by(DEADLINE).unwrap().bytes(), b"done");
        mine.push(one);
    }
    assert_eq!(descriptors(), before);
    assert_eq!(hear(&peer, "hear 1999"), 1998u32.to_le_bytes());
    drop(mine);
    assert_eq!(hear(&peer, "hear 7"), 6u32.to_le_bytes());
    assert_eq!(hear(&peer, "hear 7"), b"PeerClosed");
}

/// Shows that `rehome` moves a channel into other memory without losing messages, between two processes and within a
/// process.
#[test]
fn a_channel_is_taken_out_of_memory_that_others_have() {
    let (_actor, peer) = spawn("hub-leaf");
    let (mine, theirs) = Channel::pair().unwrap();
    give(&peer, theirs);
    for n in 0..50u32 {
        tell(&peer, "say 0 unread");
        mine.rehome(DEADLINE).unwrap();
        assert_eq!(mine.recv_by(DEADLINE).unwrap().bytes(), b"unread");
        mine.send(&n.to_le_bytes()).unwrap();
        assert_eq!(hear(&peer, "hear 0"), n.to_le_bytes());
    }
    // Both ends are in this process again, so `rehome` moves the channel into memory of this process alone.
    peer.send(b"return 0").unwrap();
    let theirs = recv_end(&peer);
    theirs.rehome(DEADLINE).unwrap();
    mine.send(b"at home").unwrap();
    assert_eq!(theirs.recv_by(DEADLINE).unwrap().bytes(), b"at home");
    theirs.send(b"both ways").unwrap();
    assert_eq!(mine.recv_by(DEADLINE).unwrap().bytes(), b"both ways");
}

/// Calls a function on drop.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Shows that a channel works while another channel of the link is full and a third is busy.
#[test]
fn a_stalled_and_a_busy_channel_leave_the_others_alone() {
    let (_actor, peer) = spawn("hub-leaf");
    let (stalled, one) = Channel::pair().unwrap();
    let (busy, other) = Channel::pair().unwrap();
    let (lively, third) = Channel::pair().unwrap();
    for end in [one, other, third] {
        give(&peer, end);
    }
    // The peer receives nothing, and the sender reaches the limits on descriptors and on bytes in flight.
    while stalled.try_send(Outgoing::new(b"fd").handle(file_with(b""))).is_ok() {}
    while stalled.try_send(&[0; 60_000]).is_ok() {}
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = busy.send_by(b"busy", Duration::from_millis(1));
            }
        });
        // Stops the thread also if an assertion fails; otherwise the scope would wait for the thread without end.
        let _stop = AtEnd(|| stop.store(true, std::sync::atomic::Ordering::Relaxed));
        for n in 0..300u32 {
            lively.send_by(Outgoing::new(&n.to_le_bytes()).handle(file_with(b"x")), DEADLINE).unwrap();
            assert_eq!(hear(&peer, "hear 2"), n.to_le_bytes());
        }
    });
}

/// Shows that the number of links does not grow with the number of sent ends: a process that introduces two others
/// causes one link between them, and more ends cause no further links.
#[test]
fn links_do_not_beget_links() {
    alone("mesh", "");
}

fn mesh() {
    let leaves: Vec<_> = (0..3).map(|_| spawn("hub-leaf")).collect();
    let mut counted = Vec::new();
    for round in 0..12 {
        for (one, other) in [(0, 1), (1, 2), (2, 0)] {
            // One channel connects two of the processes. An end of another channel goes to the second of them by way of
            // the first.
            let (a, b) = Channel::pair().unwrap();
            let (c, d) = Channel::pair().unwrap();
            let (one, other) = (&leaves[one].1, &leaves[other].1);
            give(one, a);
            give(other, b);
            give(one, d);
            tell(one, "pass 1 0");
            tell(other, "take 0");
            c.send(b"hello").unwrap();
            assert_eq!(hear(other, "hear 1"), b"hello");
            tell(other, "close 1");
            tell(other, "close 0");
            tell(one, "close 0");
        }
        if round % 4 == 3 {
            let of = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
            counted.push(leaves.iter().map(|(actor, _)| of(actor.pid())).sum::<usize>() + descriptors());
        }
    }
    assert!(counted[2] <= counted[0] + 2, "descriptors after 4, 8 and 12 rounds: {counted:?}");
}

#[test]
fn both_ends_of_a_channel_go_in_one_message() {
    let (_actor, peer) = spawn("hub-leaf");
    for round in 0..50 {
        let (a, b) = Channel::pair().unwrap();
        a.send(b"from a").unwrap();
        b.send(b"from b").unwrap();
        peer.send_by(Outgoing::new(b"keep").handle(a).handle(b), DEADLINE).unwrap();
        assert_eq!(peer.recv_by(DEADLINE).unwrap().bytes(), b"done");
        assert_eq!(hear(&peer, "hear 0"), b"from b");
        assert_eq!(hear(&peer, "hear 1"), b"from a");
        tell(&peer, "say 0 there");
        assert_eq!(hear(&peer, "hear 1"), b"there");
        tell(&peer, "say 1 here");
        assert_eq!(hear(&peer, "hear 0"), b"here");
        // An end comes back to this process.
        peer.send(b"return 0").unwrap();
        let a = recv_end(&peer);
        tell(&peer, &format!("say 0 {round}"));
        assert_eq!(a.recv_by(DEADLINE).unwrap().bytes(), round.to_string().as_bytes());
        drop(a);
        assert_eq!(hear(&peer, "hear 0"), b"PeerClosed");
        tell(&peer, "close 0");
    }
}

/// Shows that messages that cannot be put back are returned with their handles.
#[test]
fn messages_that_cannot_be_put_back_come_back() {
    let (a, b) = Channel::pair().unwrap();
    let (inner, other) = Channel::pair().unwrap();
    a.send(Outgoing::new(b"one").handle(inner)).unwrap();
    a.send("two").unwrap();
    a.send("three").unwrap();
    let looked_at = [b.recv().unwrap(), b.recv().unwrap()];
    let view = b.recv_in_place(Deadline::NOW).unwrap();
    let failed = b.put_back(looked_at).unwrap_err();
    assert_eq!(failed.error, Error::WouldBlock);
    let texts: Vec<_> = failed.messages.iter().map(|message| message.bytes().to_vec()).collect();
    assert_eq!(texts, [b"one", b"two"]);
    other.send(b"alive").unwrap();
    drop(view);
    b.put_back(failed.messages).unwrap();
    let mut one = b.recv().unwrap();
    assert_eq!(one.bytes(), b"one");
    let inner = one.take_handles().unwrap().remove(0).into_channel().unwrap();
    assert_eq!(inner.recv().unwrap().bytes(), b"alive");
    assert_eq!(b.recv().unwrap().bytes(), b"two");
    assert_eq!(b.try_recv().unwrap_err(), Error::WouldBlock);
}

/// Shows that messages that were put back are received first, in order and with handles, and move with their end.
#[test]
fn messages_that_were_put_back_come_first_and_travel() {
    let (a, b) = Channel::pair().unwrap();
    let (carrier, receiver) = Channel::pair().unwrap();
    let (inner, other) = Channel::pair().unwrap();
    a.send(Outgoing::new(b"one").handle(inner)).unwrap();
    for text in ["two", "three"] {
        a.send(text).unwrap();
    }
    let looked_at = [b.recv().unwrap(), b.recv().unwrap()];
    assert_eq!(looked_at[0].handles().len(), 1);
    b.put_back(looked_at).unwrap();
    assert!(b.is_readable());

    carrier.send(Outgoing::new(b"the end").handle(b)).unwrap();
    let b = receiver.recv().unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    let mut one = b.recv().unwrap();
    assert_eq!(one.bytes(), b"one");
    let inner = one.take_handles().unwrap().remove(0).into_channel().unwrap();
    inner.send(b"whole").unwrap();
    assert_eq!(other.recv().unwrap().bytes(), b"whole");
    assert_eq!(b.recv().unwrap().bytes(), b"two");
    assert_eq!(b.recv().unwrap().bytes(), b"three");

    // A message that is put back is an event for a wait set with the end.
    let set = strait::wait::WaitSet::new().unwrap();
    set.add(&b, 1, strait::wait::Interest::Readable, strait::wait::Mode::Level).unwrap();
    let mut events = Vec::new();
    assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0);
    b.put_back([strait::Message::from_parts(b"again".to_vec(), Vec::new())]).unwrap();
    assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 1);
    assert_eq!(b.recv().unwrap().bytes(), b"again");
}

/// Receives an end, waits for the end of its input, then sends a sealed message on the end, which needs a packet, and
/// echoes.
fn seals() {
    let parent = parent();
    let end = recv_end(&parent);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let mut sealed = end.reserve_sealed(6).unwrap();
    sealed.bytes().copy_from_slice(b"sealed");
    sealed.commit(DEADLINE).unwrap();
    common::echo(&end);
}

/// Shows that an end whose sending to the process of the other end failed still receives a message that needs a packet.
/// The other end's first message must arrive at the holder of the end.
#[test]
fn an_end_that_could_not_go_home_gets_what_needs_the_socket() {
    let large = pattern(1, 100_000);
    // Only one such message may be in flight.
    let options = Options::new().queue_bytes(150_000);
    let (child, channel) = options.spawn(common::command("seals", "").stdin(Stdio::piped())).unwrap();
    let mut actor = Actor(child);
    let (ours, theirs) = Channel::pair().unwrap();
    send_end(&channel, theirs);
    // The peer has received neither message.
    ours.send(b"before").unwrap();
    channel.send(&large).unwrap();
    let failed = channel.try_send(Outgoing::new(&large).handle(ours)).unwrap_err();
    assert_eq!(failed.error, Error::WouldBlock);
    let ours = failed.handles.into_iter().next().and_then(Handle::into_channel).expect("the unsent end");
    drop(actor.0.stdin.take());
    assert_eq!(ours.recv_by(DEADLINE).unwrap().bytes(), b"sealed");
    assert_eq!(ours.recv_by(DEADLINE).unwrap().bytes(), b"before");
    ours.send(&large).unwrap();
    assert!(ours.recv_by(DEADLINE).unwrap().bytes() == large);
    drop((ours, channel));
    finish(actor);
}

/// The end that is sent has room for few messages.
fn few() {
    let parent = parent();
    let (end, _other) = Options::new().queue_messages(4).pair().unwrap();
    send_end(&parent, end);
    assert_eq!(parent.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Shows that the options of an end do not travel to another process: an end from there has the options of the
/// receiving end. Within a process an end keeps its options.
#[test]
fn a_received_end_has_the_options_of_the_end_that_received_it() {
    let room = |end: &Channel| (0..100).take_while(|_| end.try_send(b"one").is_ok()).count();
    let (child, channel) = spawn("few");
    assert_eq!(room(&recv_end(&channel)), 100);
    drop(channel);
    finish(child);

    let (carrier, receiver) = Channel::pair().unwrap();
    let (end, _other) = Options::new().queue_messages(4).pair().unwrap();
    send_end(&carrier, end);
    assert_eq!(room(&recv_end(&receiver)), 4);
}

/// Receives a channel from the parent, sends an end with many unread messages over it, waits until the parent has
/// dropped the channel, and reports how the other end of the sent end and the channel have ended.
fn long_backlog() {
    let parent = parent();
    let channel = recv_end(&parent);
    let (kept, sent) = Options::new().ring_max(4 << 20).pair().unwrap();
    for _ in 0..1000 {
        kept.try_send(&[7; 1000]).unwrap();
    }
    send_end(&channel, sent);
    parent.send(b"sent").unwrap();
    let kept = kept.recv_by(DEADLINE / 2).map(drop).unwrap_err();
    let channel = channel.recv_by(DEADLINE / 2).map(drop).unwrap_err();
    parent.send(format!("{kept:?} {channel:?}").as_bytes()).unwrap();
}

/// Shows that dropping a channel also closes an unread end in it that brings more messages than one call reads.
#[test]
fn an_unread_end_with_a_long_backlog_is_closed() {
    let (child, parent) = spawn("long backlog");
    let (ours, theirs) = Channel::pair().unwrap();
    send_end(&parent, theirs);
    assert_eq!(parent.recv_by(DEADLINE).unwrap().bytes(), b"sent");
    drop(ours);
    assert_eq!(parent.recv_by(DEADLINE).unwrap().bytes(), b"PeerClosed PeerClosed");
    finish(child);
}
