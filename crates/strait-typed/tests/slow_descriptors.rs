//! Descriptors of a peer that are slow to close, in messages that are refused and in values that are dropped: no call
//! waits for the close, and the close is charged to the peer.

#[path = "common/slow.rs"]
mod slow;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use slow::{slow_to_close, soon};
use strait::quota::Resource;
use strait::{Channel, Options, Outgoing};
use strait_typed::{CallError, Encoded, Fd, RawEnd, RecvError, Typed, TypedCalls};

const LIMIT: Duration = Duration::from_secs(60);

/// Sends `bytes` with one descriptor that is slow to close to an end that expects values of type `T`, over channels
/// with `options`. Returns what the end receives.
fn received<T>(options: &Options, first: &T, bytes: &[u8]) -> Result<T, RecvError>
where
    T: Serialize + DeserializeOwned + Send + 'static,
{
    let (one, other) = options.pair().unwrap();
    let (near, far) = (Typed::<T, ()>::over(one), Typed::<(), T>::over(other));
    near.send(first).unwrap();
    far.recv_by(LIMIT).unwrap();
    let (slow, _other) = slow_to_close();
    near.channel().send(Outgoing::new(bytes).handle(slow)).unwrap();
    soon("a receive", || far.recv_by(LIMIT))
}

/// Returns whether a receive has refused the message.
fn is_malformed<T>(received: &Result<T, RecvError>) -> bool {
    matches!(received, Err(RecvError::Malformed(_)))
}

#[test]
fn a_refused_message_is_closed_without_blocking() {
    let fd = || Fd::from(std::fs::File::open("/dev/null").unwrap());
    // Long messages are decoded in place.
    for options in [Options::new(), Options::new().inline_max(0)] {
        assert!(is_malformed(&received(&options, &1u32, &[0xFF; 11])), "bytes that are no number");
        assert!(is_malformed(&received(&options, &1u32, &[1])), "a handle without a field");
        assert!(is_malformed(&received(&options, &(fd(), 1u32), &[0])), "bytes that end behind the handle");
        let end = RawEnd::from(Channel::pair().unwrap().0);
        assert!(is_malformed(&received(&options, &end, &[0])), "a handle of another kind");
    }
}

#[test]
fn a_received_value_is_dropped_without_blocking() {
    let (near, far) = Typed::<Vec<Fd>, Vec<Fd>>::pair().unwrap();
    let (slow, _other) = slow_to_close();
    near.send(&vec![slow.into()]).unwrap();
    let value = far.recv_by(LIMIT).unwrap();
    soon("a drop", || drop(value));
}

#[test]
fn a_message_that_is_not_decoded_is_closed_without_blocking() {
    let (near, far) = Typed::<u32, u32>::pair().unwrap();
    near.send(&1).unwrap();
    far.recv_by(LIMIT).unwrap();
    let mut others = Vec::new();
    let mut send = |bytes: &[u8]| {
        let (slow, other) = slow_to_close();
        others.push(other);
        near.channel().send(Outgoing::new(bytes).handle(slow)).unwrap();
    };
    (0..3).for_each(|_| send(&[0xFF; 11]));
    let mut encoded = Encoded::new();
    soon("a receive", || far.recv_encoded(&mut encoded, LIMIT)).unwrap();
    soon("a receive in place of a message", || far.recv_encoded(&mut encoded, LIMIT)).unwrap();
    assert!(soon("decoding", || is_malformed(&encoded.get::<u32>())));
    soon("a receive", || far.recv_encoded(&mut encoded, LIMIT)).unwrap();
    soon("a drop", || drop(encoded));
}

#[test]
fn a_refused_call_is_closed_without_blocking() {
    let (one, other) = Channel::pair().unwrap();
    let (client, server) = (TypedCalls::<u32, u32>::over(one), TypedCalls::<u32, u32>::over(other));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut request = server.next_request(LIMIT).unwrap();
            let number = request.take();
            request.reply(&number, LIMIT).unwrap();
        });
        assert_eq!(client.call(&1, LIMIT).unwrap(), 1);
    });
    let (slow, _other) = slow_to_close();
    let raw = client.end().begin_call(Outgoing::new(&[0xFF; 11]).handle(slow), LIMIT).unwrap();
    assert!(soon("a request", || is_malformed(&server.next_request(LIMIT).map(drop))));
    drop(raw);
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| soon("a call", || client.call(&1, LIMIT)));
        let (slow, _other) = slow_to_close();
        let request = server.end().next_request(LIMIT).unwrap();
        request.reply(Outgoing::new(&[0xFF; 11]).handle(slow), LIMIT).unwrap();
        assert!(matches!(calling.join().unwrap(), Err(CallError::Malformed(_))));
    });
}

/// The program for the test below: sends descriptors that are slow to close, with bytes that are no number.
#[test]
fn child() {
    if std::env::var_os("STRAIT_TYPED_SLOW").is_none() {
        return;
    }
    let parent = Typed::<u32, ()>::from_parent().unwrap();
    parent.send(&1).unwrap();
    let (slow, other) = slow_to_close();
    // The parent has counted its descriptors.
    parent.recv_by(LIMIT).unwrap();
    parent.channel().send(Outgoing::new(&[0xFF; 11]).handle(slow)).unwrap();
    // The parent ends this process, which keeps the other side of the connection.
    let _ = parent.recv();
    drop(other);
}

#[test]
fn a_close_that_blocks_is_charged_to_the_peer() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child"]).env("STRAIT_TYPED_SLOW", "1").stdout(Stdio::null());
    let (mut child, typed) = Typed::<(), u32>::spawn(&mut command).unwrap();
    assert_eq!(typed.recv_by(LIMIT).unwrap(), 1);
    let held = || typed.channel().peer_usage().unwrap().expect("another process").peer(Resource::Descriptors).held;
    let before = held();
    typed.send(&()).unwrap();
    assert!(is_malformed(&soon("a receive", || typed.recv_by(LIMIT))));
    assert!(held() > before, "{} descriptors", held());
    child.kill().unwrap();
    child.wait().unwrap();
    let begin = Instant::now();
    while held() > before {
        assert!(begin.elapsed() < LIMIT, "the descriptor is charged for ever");
        std::thread::yield_now();
    }
}
