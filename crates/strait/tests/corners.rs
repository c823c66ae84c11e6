//! Tests of cases in which two features meet; each case once failed.

mod common;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use common::{DEADLINE, pattern};
use strait::region::Region;
use strait::{Channel, CommandExt, Deadline, Error, Handle, Options, Outgoing};

#[test]
fn child() {
    common::play(&[("quiet", quiet), ("sends_after", sends_after), ("sends_what_is_over", sends_what_is_over)]);
}

/// Reports to the parent, and receives until the channel is closed.
fn quiet(_: &str) {
    let channel = common::parent();
    channel.send(b"here").unwrap();
    while channel.recv().is_ok() {}
}

/// Runs `work` in a new thread and returns the result; fails after [`DEADLINE`].
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    result.recv_timeout(DEADLINE).expect("the work takes too long")
}

/// Shows that a sender with a full ring times out although a block was returned to the pool.
#[test]
fn a_block_that_came_back_does_not_keep_a_full_sender_awake() {
    in_time(|| {
        let (a, b) = Channel::pair().unwrap();
        a.send(&vec![1; 100_000]).unwrap();
        b.recv().unwrap();
        let full = loop {
            if let Err(failed) = a.try_send(b"small") {
                break failed.error;
            }
        };
        assert_eq!(full, Error::WouldBlock);
        let timed = a.send_by(b"small", Duration::from_millis(20)).unwrap_err();
        assert_eq!(timed.error, Error::TimedOut);
    });
}

/// Shows that a batch larger than the limit on messages in flight is sent in parts, as the receiver makes room.
#[test]
fn a_limit_on_messages_holds_for_rows_of_any_length() {
    for limit in 1..=17 {
        in_time(move || {
            let (a, b) = Options::new().queue_messages(limit).pair().unwrap();
            std::thread::scope(|scope| {
                let sender = scope.spawn(|| a.send_many((0..40).map(|_| Outgoing::new(b"m")), DEADLINE).unwrap());
                for _ in 0..40 {
                    b.recv_by(DEADLINE).unwrap();
                }
                assert_eq!(sender.join().unwrap(), 40);
            });
            let refused = a.send_many((0..40).map(|_| Outgoing::new(b"m")), Deadline::NOW).unwrap_err();
            assert_eq!(refused.failed.error, Error::WouldBlock);
            assert!(refused.sent as u64 <= limit, "{} messages were sent, and the limit is {limit}", refused.sent);
        });
    }
}

#[test]
fn a_command_can_be_started_again_and_each_child_has_its_own_end_alone() {
    let mut command = common::command("quiet", "");
    for _ in 0..3 {
        let (child, channel) = command.spawn_with_channel().unwrap();
        let mut actor = common::Actor(child);
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"here");
        let sockets = std::fs::read_dir(format!("/proc/{}/fd", actor.pid()))
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("socket:"))
            .count();
        assert_eq!(sockets, 1);
        // The channel would not be closed for the child if the child had both ends.
        drop(channel);
        assert!(actor.0.wait().unwrap().success());
    }
    let mut other = Command::new("/bin/sh");
    other.args(["-c", "test -z \"$STRAIT_PARENT\""]);
    drop(other.spawn_with_channel().unwrap().0.wait());
    assert!(other.status().unwrap().success(), "an ordinary start found a variable of the channel");
}

/// Shows that the limit on descriptors in flight holds for reservations.
#[test]
fn reservations_keep_to_the_limit_on_descriptors_under_way() {
    // Over a socket, because a channel within a process has no such limit.
    let (x, y) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let [a, b] = [x, y].map(|socket| Channel::over(socket).unwrap());
    let commit = |deadline: Deadline| {
        let mut room = a.reserve(8, deadline).unwrap();
        for _ in 0..64 {
            let (reader, _) = std::io::pipe().unwrap();
            room.handle(OwnedFd::from(reader));
        }
        room.commit()
    };
    for _ in 0..4 {
        commit(Deadline::NOW).unwrap();
    }
    let refused = commit(Deadline::NOW).unwrap_err();
    assert_eq!((refused.error, refused.handles.len()), (Error::WouldBlock, 64));
    assert_eq!(b.recv().unwrap().take_handles().unwrap().len(), 64);
    commit(Deadline::NOW).unwrap();
    for _ in 0..4 {
        assert_eq!(b.recv().unwrap().take_handles().unwrap().len(), 64);
    }
    assert_eq!(b.try_recv().unwrap_err(), Error::WouldBlock);
}

/// Shows that messages held as views do not count against the limit on the peer's memory.
#[test]
fn views_that_are_held_do_not_count_against_the_peer() {
    let (x, y) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let a = Channel::over(x).unwrap();
    let b = Options::new().peer_memory(8 << 20).over(y).unwrap();
    let mut held = Vec::new();
    for n in 0..12 {
        let mut room = a.reserve_sealed(1 << 20).unwrap();
        room.bytes().copy_from_slice(&pattern(n, 1 << 20));
        room.commit(DEADLINE).unwrap();
        held.push(b.recv_in_place(DEADLINE).unwrap());
    }
    for (n, view) in held.iter().enumerate() {
        assert!(view.sealed().unwrap() == pattern(n as u64, 1 << 20));
    }
}

#[test]
fn an_end_whose_view_was_leaked_can_be_dropped() {
    in_time(|| {
        let (a, b) = Channel::pair().unwrap();
        a.send(b"leaked").unwrap();
        std::mem::forget(b.recv_in_place(Deadline::NOW).unwrap());
        std::mem::forget(a.reserve(10, Deadline::NOW).unwrap());
        drop(b);
        drop(a);
    });
}

/// Shows that a call that does not wait returns `WouldBlock` while another view or reservation of the end is held.
#[test]
fn a_try_beside_a_held_view_or_reservation_would_block() {
    in_time(|| {
        let (a, b) = Channel::pair().unwrap();
        a.send(b"one").unwrap();
        a.send(b"two").unwrap();
        let view = b.recv_in_place(Deadline::NOW).unwrap();
        assert_eq!(b.try_recv().unwrap_err(), Error::WouldBlock);
        assert!(!b.is_readable());
        drop(view);
        assert_eq!(b.try_recv().unwrap().bytes(), b"two");
        let room = a.reserve(5, Deadline::NOW).unwrap();
        assert_eq!(a.try_send(b"no").unwrap_err().error, Error::WouldBlock);
        drop(room);
        a.try_send(b"yes").unwrap();
        assert_eq!(b.try_recv().unwrap().bytes(), b"yes");
    });
}

#[test]
fn a_row_of_mixed_messages_keeps_its_order_through_small_rings() {
    in_time(|| {
        let (a, b) = Options::new().ring(256).ring_max(4096).pair().unwrap();
        let lens: Vec<usize> = (0..3000).map(|n| [0, 1, 56, 57, 255, 256, 257, 1000, 5000][n * 7 % 9]).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let row: Vec<Vec<u8>> = lens.iter().enumerate().map(|(n, len)| pattern(n as u64, *len)).collect();
                let messages = row.iter().enumerate().map(|(n, bytes)| {
                    let handles = (n % 100 == 0).then(|| Handle::from(std::fs::File::open("/dev/null").unwrap()));
                    Outgoing::new(bytes).handles(handles)
                });
                assert_eq!(a.send_many(messages, DEADLINE).unwrap(), lens.len());
            });
            for (n, len) in lens.iter().enumerate() {
                let mut message = b.recv_by(DEADLINE).unwrap();
                assert!(message.bytes() == pattern(n as u64, *len), "message {n}");
                assert_eq!(message.take_handles().unwrap().len(), usize::from(n % 100 == 0));
            }
        });
    });
}

fn sockets() -> (OwnedFd, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// Returns a channel over a socket, with both ends in this process.
fn over_a_socket() -> (Channel, Channel) {
    let (one, other) = sockets();
    let over = |socket| Channel::over(socket).unwrap();
    (over(one), over(other))
}

/// Shows that a send succeeds although the link of the end's old process is closed before the send has read the mark
/// that says where the other end went.
#[test]
fn whoever_passed_an_end_on_may_be_gone_before_the_next_send_to_it() {
    let descriptor = || Handle::from(std::fs::File::open("/dev/null").unwrap());
    type Send = fn(&Channel, Handle);
    let sends: [(&str, Send); 6] = [
        ("a handle", |channel, handle| channel.try_send(Outgoing::new(b"m").handle(handle)).unwrap()),
        ("a row", |channel, handle| {
            channel.send_many([Outgoing::new(b"m").handle(handle)], Deadline::NOW).map(drop).unwrap();
        }),
        ("a large message", |channel, _| channel.try_send(&vec![1; 100_000]).unwrap()),
        ("a message for which the ring grows", |channel, _| channel.try_send(&vec![1; 30_000]).unwrap()),
        ("an end", |channel, _| {
            let (end, _other) = Channel::pair().unwrap();
            channel.try_send(Outgoing::new(b"m").handle(end)).unwrap();
        }),
        ("a sealed message", |channel, _| channel.reserve_sealed(5000).unwrap().commit(Deadline::NOW).unwrap()),
    ];
    for (what, send) in sends {
        println!("{what}");
        let (ours, theirs) = over_a_socket();
        let (carrier, receiver) = over_a_socket();
        // Each end has received from the other.
        ours.send(b"a").unwrap();
        theirs.send(b"b").unwrap();
        assert_eq!(ours.recv_by(DEADLINE).unwrap().bytes(), b"b");
        // The link of the end that moves has no other user, so the link is closed with the move.
        carrier.send(Outgoing::new(b"an end").handle(theirs)).unwrap();
        send(&ours, descriptor());
        let theirs = receiver.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
        assert_eq!(theirs.recv_by(DEADLINE).unwrap().bytes(), b"a");
        assert!(theirs.recv_by(DEADLINE).is_ok());
    }
}

/// Returns how many pieces of shared memory this process has mapped.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:strait")).count()
}

/// Sends an end away and then a sealed message to it, again and again, and asserts that no mapping is left over. Runs
/// in a process of its own, where no other test maps memory.
fn sends_after(_: &str) {
    let parent = common::parent();
    let (carrier, receiver) = over_a_socket();
    let round = || {
        let (ours, theirs) = Channel::pair().unwrap();
        carrier.send(Outgoing::new(b"an end").handle(theirs)).unwrap();
        // The memory is reserved as if the other end were in this process; the other end has left it.
        ours.reserve_sealed(5000).unwrap().commit(Deadline::NOW).unwrap();
        let theirs = receiver.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
        assert_eq!(theirs.recv_by(DEADLINE).unwrap().bytes().len(), 5000);
    };
    round();
    let before = mapped();
    (0..50).for_each(|_| round());
    assert_eq!(mapped(), before);
    parent.send(b"done").unwrap();
}

/// Shows that no mapping is left of memory reserved for an end that has left the process.
#[test]
fn memory_for_an_end_of_this_process_that_leaves_meanwhile_does_not_stay() {
    let (actor, channel) = common::spawn_with("sends_after", "", &Options::new());
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"done");
    actor.wait_for_success();
}

/// Shows that a message with an end can be sent once there is room, after several attempts found none. The record that
/// names the end is written before the message, and may find room when the message does not.
#[test]
fn ends_that_find_no_room_again_and_again_are_sent_once_there_is_some() {
    for (fill, inline) in (0..8).flat_map(|fill| [(fill, 500), (fill, 0)]) {
        // Either the ring is full, or the limit on bytes in flight outside the ring is reached.
        let ring = if inline == 0 { 4096 } else { 512 };
        let small = Options::new().ring(ring).ring_max(ring).inline_max(inline).queue_bytes(500);
        let (one, other) = sockets();
        let (sender, receiver) = (small.over(one).unwrap(), small.over(other).unwrap());
        receiver.send(b"here").unwrap();
        sender.recv_by(DEADLINE).unwrap();
        for _ in 0..fill {
            let _ = sender.try_send(&[1; 40]);
        }
        let (mut end, kept) = Channel::pair().unwrap();
        let mut received = 0usize;
        for _ in 0..20 {
            match sender.try_send(Outgoing::new(&[2; 120]).handle(end)) {
                Ok(()) => {
                    (end, _) = Channel::pair().unwrap();
                    received += 1;
                }
                Err(mut failed) => {
                    assert_eq!(failed.error, Error::WouldBlock);
                    end = failed.handles.remove(0).into_channel().unwrap();
                }
            }
        }
        let mut drain = || {
            loop {
                match receiver.try_recv() {
                    Ok(mut message) => received -= message.take_handles().unwrap().len(),
                    Err(error) => break assert_eq!(error, Error::WouldBlock),
                }
            }
        };
        drain();
        sender.try_send(Outgoing::new(&[2; 120]).handle(end)).unwrap();
        assert_eq!(receiver.recv_by(DEADLINE).unwrap().take_handles().unwrap().len(), 1);
        assert_eq!(received, 0);
        drop(kept);
    }
}

/// Shows that handles of a failed message are not received with the next message.
#[test]
fn the_handles_of_a_message_that_was_not_sent_are_not_the_next_ones() {
    in_time(|| {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let options = Options::new().ring(256).ring_max(256);
        let (a, b) = (options.over(one).unwrap(), options.over(other).unwrap());
        a.send(b"1").unwrap();
        assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"1");
        for _ in 0..40 {
            // Fill the ring step by step, so that in some rounds there is just not enough room for a message with an
            // end.
            let mut filled = 0;
            while filled < 2 && a.try_send(b"full").is_ok() {
                filled += 1;
            }
            let (end, _other_end) = Channel::pair().unwrap();
            let failed = a.try_send(Outgoing::new(b"A").handle(end).handle(common::file_with(b"first")));
            let sent = failed.is_ok();
            drop(failed);
            for _ in 0..filled {
                assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"full");
            }
            if sent {
                let handles = b.recv_by(DEADLINE).unwrap().take_handles().unwrap();
                assert_eq!(handles.len(), 2);
            }
            a.send_by(Outgoing::new(b"B").handle(common::file_with(b"second")), DEADLINE).unwrap();
            let mut message = b.recv_by(DEADLINE).unwrap();
            assert_eq!(message.bytes(), b"B");
            assert_eq!(common::content_of(message.take_handles().unwrap().remove(0)), b"second");
        }
    });
}

/// Returns the number of open descriptors of the process.
fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Sends ends whose other ends are closed, and asserts that no descriptor is left open. Runs in a process of its own,
/// where no other test opens descriptors.
fn sends_what_is_over(_: &str) {
    let parent = common::parent();
    let round = || {
        let (carrier, receiver) = over_a_socket();
        let (ours, theirs) = over_a_socket();
        drop(theirs);
        // The end is now in memory of this process alone, and the other end is closed.
        ours.rehome(DEADLINE).unwrap();
        carrier.send(Outgoing::new(b"an end").handle(ours)).unwrap();
        let ours = receiver.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
        assert_eq!(ours.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    };
    round();
    let before = open();
    (0..20).for_each(|_| round());
    assert_eq!(open(), before);
    parent.send(b"done").unwrap();
}

/// Shows that sending an end whose other end is closed leaves no descriptor open in the sender.
#[test]
fn an_end_that_is_over_leaves_no_descriptor_where_it_is_sent_from() {
    let (actor, channel) = common::spawn_with("sends_what_is_over", "", &Options::new());
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"done");
    actor.wait_for_success();
}

/// Opens the memory of the sealed message of `len` bytes anew.
fn sealed_memory(len: usize) -> OwnedFd {
    let path = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()).find(|path| {
        let name = fs::read_link(path).unwrap_or_default();
        name.to_string_lossy().contains("strait-sealed")
            && fs::metadata(path).is_ok_and(|file| file.len() == len as u64)
    });
    File::options().read(true).write(true).open(path.expect("no open sealed memory of this size")).unwrap().into()
}

/// Shows that a sealed message arrives as committed, although another holder of the memory writes to the memory
/// afterwards.
#[test]
fn a_sealed_message_that_somebody_can_still_write_to_is_sent_as_it_was_when_committed() {
    // A child forked by another thread during the mapping could write in this way. No other test uses these sizes.
    for len in [3, 5003, 1_000_003] {
        let (a, b) = Channel::pair().unwrap();
        let mut room = a.reserve_sealed(len).unwrap();
        let other = Region::from_fd(sealed_memory(len)).unwrap();
        let map = other.map_writable(..).unwrap();
        room.bytes().copy_from_slice(&pattern(1, len));
        room.commit(DEADLINE).unwrap();
        map.write_at(b"!", 0).unwrap();
        let view = b.recv_in_place(DEADLINE).unwrap();
        assert!(view.sealed().unwrap() == pattern(1, len), "{len} bytes");
    }
}

/// Shows that a reservation sends nothing if the handles cannot be sent because the socket is full, and that every sent
/// message arrives with its handle.
#[test]
fn a_reservation_whose_handles_find_no_room_in_the_socket_sends_nothing() {
    let (one, other) = sockets();
    rustix::net::sockopt::set_socket_send_buffer_size(&one, 1).unwrap();
    let (a, b) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
    a.send(b"first").unwrap();
    assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"first");
    let put = |n: usize| {
        let mut room = a.reserve(1, Deadline::NOW).unwrap();
        room.write_at(&[n as u8], 0);
        room.handle(common::file_with(&[n as u8]));
        room.commit()
    };
    let sent = (0..200).find(|n| put(*n).is_err()).expect("the socket is never full");
    for n in 0..sent {
        let mut message = b.recv_by(DEADLINE).unwrap();
        assert_eq!(message.bytes(), [n as u8]);
        let file = message.take_handles().unwrap().remove(0);
        assert_eq!(common::content_of(file), [n as u8]);
    }
    assert_eq!(b.try_recv().unwrap_err(), Error::WouldBlock);
    put(7).unwrap();
    assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), [7]);
}

/// Shows that an end arrives with unread messages that have more descriptors than one packet can carry, each descriptor
/// in its message.
#[test]
fn an_end_arrives_with_more_descriptors_than_a_packet_carries() {
    const MESSAGES: u8 = 5;
    let (one, other) = sockets();
    let (a, b) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
    for _ in 0..2 {
        let (end, feeder) = Channel::pair().unwrap();
        for n in 0..MESSAGES {
            let files = (0..strait::quota::MAX_HANDLES as u8).map(|file| common::file_with(&[n, file]).into());
            feeder.send_by(Outgoing::new(&[n]).handles(files), DEADLINE).unwrap();
        }
        a.send_by(Outgoing::new(b"with").handle(end).handle(common::file_with(b"a file")), DEADLINE).unwrap();
        let mut handles = b.recv_by(DEADLINE).unwrap().take_handles().unwrap();
        assert_eq!(common::content_of(handles.remove(1)), b"a file");
        let end = handles.remove(0).into_channel().unwrap();
        for n in 0..MESSAGES {
            let mut message = end.recv_by(DEADLINE).unwrap();
            assert_eq!(message.bytes(), [n]);
            for (file, handle) in message.take_handles().unwrap().into_iter().enumerate() {
                assert_eq!(common::content_of(handle), [n, file as u8]);
            }
        }
        feeder.send_by(b"goes on", DEADLINE).unwrap();
        assert_eq!(end.recv_by(DEADLINE).unwrap().bytes(), b"goes on");
    }
}

/// Shows that a receiver that never waits gives the credit that a limit on messages in flight asks for, in both
/// directions, also where the ring alone would ask for none yet.
#[test]
fn a_receiver_that_never_waits_knows_the_limit_on_messages_in_flight() {
    let (a, b) = Options::new().ring(8192).queue_messages(1).pair().unwrap();
    for (sender, receiver) in [(&a, &b), (&b, &a)] {
        for round in 0..4 {
            sender.try_send(b"one").unwrap_or_else(|failed| panic!("round {round}: {failed}"));
            assert_eq!(sender.try_send(b"two").unwrap_err().error, Error::WouldBlock);
            receiver.try_recv().unwrap();
        }
    }
}

/// Shows that calls that must not wait fail at once while the iterator of a `send_many` takes its time, and that the
/// iterator itself can make such calls.
#[test]
fn an_iterator_that_takes_its_time_makes_no_other_thread_spin() {
    let (a, b) = Channel::pair().unwrap();
    let (began, begins) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let messages = std::iter::from_fn(move || {
            began.send(()).ok()?;
            goes_on.recv_timeout(DEADLINE / 4).ok().map(|()| Outgoing::new(b"m"))
        });
        let sending = scope.spawn(|| a.send_many(messages, DEADLINE).unwrap());
        begins.recv().unwrap();
        assert_eq!(a.try_send(b"x").unwrap_err().error, Error::WouldBlock);
        go_on.send(()).unwrap();
        drop(go_on);
        assert_eq!(sending.join().unwrap(), 1);
    });
    let nested = std::iter::once_with(|| {
        assert_eq!(a.try_send(b"nested").unwrap_err().error, Error::WouldBlock);
        Outgoing::new(b"n")
    });
    assert_eq!(a.send_many(nested, DEADLINE).unwrap(), 1);
    a.try_send(b"after").unwrap();
    for expected in [&b"m"[..], b"n", b"after"] {
        assert_eq!(b.try_recv().unwrap().bytes(), expected);
    }
}
