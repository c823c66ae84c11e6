//! Roles and helpers of several kinds of faults.

use std::io::{PipeWriter, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{Actor, DEADLINE, Watched, content_of, file_with, parent_over_any, pattern, refuse, wait_until};
use strait::{Channel, Error, Handle, Message, Options, Outgoing, SendError, Wait};

pub(crate) const WAITS: [Wait; 3] = [Wait::Spin, Wait::Adaptive, Wait::Block];

/// Sends back each received message with its handles, until the channel is closed.
pub(crate) fn echo(_: &str) {
    let channel = parent_over_any(&Options::new());
    crate::common::echo(&channel);
}

/// Waits for the end of standard input, and then sends back each received message with the handles. The outgoing ring
/// never needs to grow.
pub(crate) fn late_echo(_: &str) {
    let channel = parent_over_any(&Options::new().ring(1 << 20));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    crate::common::echo(&channel);
}

/// Opens the side, sends one message, and does nothing more.
pub(crate) fn silent(_: &str) {
    let channel = parent_over_any(&Options::new());
    channel.send(b"here").unwrap();
    std::thread::sleep(2 * DEADLINE);
}

/// Runs without opening its side of the channel.
pub(crate) fn absent(_: &str) {
    std::thread::sleep(2 * DEADLINE);
}

pub(crate) fn recv(channel: &Channel) -> Message {
    channel.recv_by(DEADLINE).unwrap()
}

pub(crate) fn failed(sent: Result<(), SendError>) -> Error {
    sent.unwrap_err().error
}

pub(crate) fn files(count: usize) -> Vec<Handle> {
    (0..count).map(|n| file_with(format!("file {n}").as_bytes()).into()).collect()
}

/// Asserts that the handles are all handles of [`files`], in order.
pub(crate) fn assert_files(handles: Vec<Handle>, count: usize) {
    let contents: Vec<Vec<u8>> = handles.into_iter().map(content_of).collect();
    assert_eq!(contents, (0..count).map(|n| format!("file {n}").into_bytes()).collect::<Vec<_>>());
}

/// Asserts that the channel still works in both directions, for each kind of payload and for handles.
pub(crate) fn assert_echoes(channel: &Channel) {
    for len in [0, 5, 5000, 200_000] {
        let bytes = pattern(len as u64, len);
        channel.send_by(Outgoing::new(&bytes).handles(files(2)), DEADLINE).unwrap();
        let mut message = recv(channel);
        assert!(message.bytes() == bytes, "{len} bytes");
        assert_files(message.take_handles().unwrap(), 2);
    }
}

/// Runs `call` in a thread, and once the call has blocked, `meanwhile`. Returns what the call returned, and the time
/// from the start of `meanwhile` until then.
pub(crate) fn while_blocked<T: Send>(
    call: impl FnOnce() -> T + Send,
    started: impl Fn() -> bool,
    meanwhile: impl FnOnce(&Watched),
) -> (T, Duration) {
    let watched = Watched::new();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            watched.enter();
            let result = call();
            (result, Instant::now())
        });
        wait_until("the call waits", started);
        watched.wait_until_blocked();
        assert!(!thread.is_finished(), "the call did not block");
        let begin = Instant::now();
        meanwhile(&watched);
        let (result, end) = thread.join().unwrap();
        (result, end.saturating_duration_since(begin))
    })
}

/// Whether the reading end of a pipe is closed in all processes.
pub(crate) fn has_no_reader(writer: &PipeWriter) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(writer, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents().contains(PollFlags::ERR)
}

/// Sends messages until a send fails, and returns the error.
pub(crate) fn send_until_it_fails(channel: &Channel, len: usize, handles: usize) -> Error {
    let bytes = vec![7; len];
    loop {
        match channel.send(Outgoing::new(&bytes).handles(files(handles))) {
            Ok(()) => {}
            Err(failed) => {
                assert_files(failed.handles, handles);
                return failed.error;
            }
        }
    }
}

/// Returns the bytes of message `n` of the stream, and whether the message carries a file.
pub(crate) fn in_stream(n: u64) -> (Vec<u8>, bool) {
    let len = match n % 50 {
        7 => 100_000,
        13 | 29 => 5000,
        other => (other * 13 % 200) as usize,
    };
    (pattern(n, len), n % 40 == 5)
}

/// Sends `count` messages of the stream; stops at an error and returns it.
pub(crate) fn send_stream(channel: &Channel, count: u64) -> Result<(), Error> {
    for n in 0..count {
        let (bytes, file) = in_stream(n);
        let handles = file.then(|| Handle::from(file_with(&n.to_le_bytes())));
        channel.send_by(Outgoing::new(&bytes).handles(handles), DEADLINE)?;
    }
    Ok(())
}

/// Receives message `n` of the stream and checks it; returns the error if the receive fails.
pub(crate) fn recv_in_stream(channel: &Channel, n: u64, deadline: Duration) -> Result<(), Error> {
    let mut message = channel.recv_by(deadline)?;
    let (bytes, file) = in_stream(n);
    assert!(message.bytes() == bytes, "message {n}");
    let contents: Vec<Vec<u8>> = message.take_handles().unwrap().into_iter().map(content_of).collect();
    assert_eq!(contents, Vec::from_iter(file.then(|| n.to_le_bytes().to_vec())), "message {n}");
    Ok(())
}

/// Sends and receives as many messages of the stream as the argument says, both at once.
pub(crate) fn stream(argument: &str) {
    let channel = parent_over_any(&Options::new());
    let count = argument.parse().unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_stream(&channel, count));
        let received: Result<(), Error> = (0..count).try_for_each(|n| recv_in_stream(&channel, n, DEADLINE));
        assert_eq!((sender.join().unwrap(), received), (Ok(()), Ok(())));
    });
}

/// Starts a process with a pipe as standard input; the role acts at the end of the input.
pub(crate) fn spawn_with_stdin(role: &str, options: &Options) -> (Actor, Channel) {
    let (child, channel) = options.spawn(crate::common::command(role, "").stdin(Stdio::piped())).unwrap();
    (Actor(child), channel)
}

/// Returns `true` if the message was sent, and `false` if there was no room; fails on any other error.
pub(crate) fn sent_or_full(sent: Result<(), SendError>) -> bool {
    match sent {
        Ok(()) => true,
        Err(failed) => {
            assert_eq!(failed.error, Error::WouldBlock);
            false
        }
    }
}

/// Exits the process, with success if `play` returned. The test harness would need refused calls.
pub(crate) fn end_after(play: impl FnOnce() + std::panic::UnwindSafe) -> ! {
    let status = i32::from(std::panic::catch_unwind(play).is_err());
    // SAFETY: `_exit` does not return; nothing of this process is used after the call.
    unsafe { libc::_exit(status) }
}

/// Asserts that the process cannot open its side of the channel.
pub(crate) fn refused(argument: &str) {
    let errno = argument.parse().unwrap();
    end_after(move || {
        refuse(libc::SYS_memfd_create, errno);
        let failed = strait::from_parent().map(drop).unwrap_err();
        assert_eq!(failed.error, Error::System { call: "memfd_create", code: errno });
    });
}
