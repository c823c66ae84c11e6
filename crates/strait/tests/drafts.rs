//! Tests of messages built by appending.

mod common;

use common::{DEADLINE, checksum, finish, parent, pattern, spawn, spawn_with};
use strait::{Channel, Deadline, Error, Options, Outgoing};

#[test]
fn child() {
    common::play(&[("sum", sum), ("idle", idle)]);
}

/// Receives nothing until the process is killed.
fn idle(_: &str) {
    let _channel = parent();
    std::thread::sleep(2 * DEADLINE);
}

/// Answers each message with the length, the checksum and the handles.
fn sum(_: &str) {
    let channel = parent();
    while let Ok(mut message) = channel.recv() {
        let sums = [message.bytes().len() as u64, checksum(message.bytes())].map(u64::to_le_bytes).concat();
        let handles = message.take_handles().unwrap();
        channel.send(Outgoing::new(&sums).handles(handles)).unwrap();
    }
}

/// Shows that a message of any length can be appended in pieces of any size, with a handle.
#[test]
fn of_any_length_in_any_pieces() {
    let (actor, channel) = spawn("sum");
    for (len, piece) in
        [(0, 1), (1, 1), (56, 7), (65_536, 1000), (65_537, 65_537), (1 << 20, 4096), (5_000_000, 333_333)]
    {
        // In the second round the blocks of the first can be used again.
        for round in 0..2 {
            let bytes = pattern(len as u64 + round, len);
            let mut draft = channel.draft();
            for piece in bytes.chunks(piece) {
                draft.append(piece).unwrap();
            }
            assert_eq!(draft.len(), len);
            assert_eq!(draft.is_shared(), len > 65_536, "{len}");
            let (ours, theirs) = Channel::pair().unwrap();
            draft.handle(theirs);
            draft.send(DEADLINE).unwrap();
            let mut answer = channel.recv_by(DEADLINE).unwrap();
            let sums = [len as u64, checksum(&bytes)].map(u64::to_le_bytes).concat();
            assert_eq!(answer.bytes(), sums, "{len} in pieces of {piece}");
            let back = answer.take_handles().unwrap().remove(0).into_channel().unwrap();
            back.send(b"it came along").unwrap();
            assert_eq!(ours.recv_by(DEADLINE).unwrap().bytes(), b"it came along");
        }
    }
    drop(channel);
    finish(actor);
}

/// Shows that appended bytes can be overwritten, in private and in shared memory, and no bytes behind them.
#[test]
fn what_was_appended_can_be_written_over_wherever_it_lies() {
    let (a, b) = Channel::pair().unwrap();
    for len in [0usize, 10, 100_000, 1_000_000] {
        let mut draft = a.draft();
        // A placeholder for a value that is not known yet.
        draft.append(&[0; 8]).unwrap();
        for piece in vec![7; len].chunks(30_000) {
            draft.append(piece).unwrap();
        }
        assert_eq!(draft.is_shared(), len > 65_536);
        draft.write_at(&len.to_le_bytes(), 0).unwrap();
        draft.write_at(&[1; 8], len).unwrap();
        draft.write_at(&[], len + 8).unwrap();
        let end = Error::OutOfRange { len: len + 8 };
        assert_eq!(draft.write_at(&[1], len + 8), Err(end));
        assert_eq!(draft.write_at(&[1; 8], len + 1), Err(end));
        assert_eq!(draft.write_at(&[1], usize::MAX), Err(end));
        draft.send(DEADLINE).unwrap();
        let mut whole = [&len.to_le_bytes()[..], &vec![7; len]].concat();
        whole[len..].fill(1);
        assert!(b.recv_by(DEADLINE).unwrap().bytes() == whole, "{len}");
    }
}

/// Shows that dropped drafts have no effect on later messages.
#[test]
fn one_that_is_dropped_was_never_there() {
    let (actor, channel) = spawn("sum");
    for len in [10, 1 << 20] {
        for _ in 0..200 {
            let mut draft = channel.draft();
            draft.append(&vec![1; len]).unwrap();
        }
    }
    channel.send(b"the only one").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes()[..8], 12u64.to_le_bytes());
    drop(channel);
    finish(actor);
}

/// Shows that appending beyond the largest message fails, and that the draft keeps the earlier bytes.
#[test]
fn what_is_too_long_is_refused_and_the_rest_stays() {
    let (a, b) = Options::new().max_message(100).pair().unwrap();
    let mut draft = a.draft();
    draft.append(&[1; 90]).unwrap();
    assert_eq!(draft.append(&[2; 11]).unwrap_err(), Error::MessageTooLarge { len: 101, limit: 100 });
    draft.append(&[3; 10]).unwrap();
    draft.send(Deadline::NOW).unwrap();
    assert_eq!(b.recv().unwrap().bytes(), [[1; 90].as_slice(), &[3; 10]].concat());
}

/// Shows that a draft without a block is kept in private memory.
#[test]
fn where_no_block_is_to_be_had_it_is_private() {
    // A single large message may be in flight; the peer never receives it.
    let options = Options::new().queue_bytes(1 << 20);
    let (actor, channel) = spawn_with("idle", "", &options);
    channel.send(&vec![0; 1 << 20]).unwrap();
    let mut draft = channel.draft();
    for _ in 0..20 {
        draft.append(&pattern(1, 10_000)).unwrap();
    }
    assert!(!draft.is_shared());
    assert_eq!(draft.send(Deadline::NOW).unwrap_err().error, Error::WouldBlock);
    drop(actor);
}

/// Shows that a draft that outgrows its block is sent although no larger block can be used besides the first.
#[test]
fn one_that_outgrows_its_block_where_there_is_no_other_goes_on() {
    // The limit on bytes in flight permits the larger block alone, but not beside the smaller one.
    let options = Options::new().queue_bytes(300_000);
    let (actor, channel) = spawn_with("sum", "", &options);
    let bytes = pattern(3, 2_000_000);
    for _ in 0..3 {
        let mut draft = channel.draft();
        for piece in bytes.chunks(50_000) {
            draft.append(piece).unwrap();
        }
        assert!(draft.is_shared());
        draft.send(DEADLINE).unwrap();
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes()[8..], checksum(&bytes).to_le_bytes());
    }
    drop(channel);
    finish(actor);
}
