//! Messages as a stream and a sink of the crate `futures`.

use std::fs::File;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use strait::{Channel, Error, Message, Options};
use strait_tokio::{AsyncChannel, Framed, Reactor};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

fn framed(channel: Channel, reactor: &Reactor) -> Framed {
    Framed::new(AsyncChannel::new(channel, reactor).unwrap())
}

fn message(bytes: impl Into<Vec<u8>>) -> Message {
    Message::from_parts(bytes.into(), Vec::new())
}

#[tokio::test]
async fn more_messages_than_there_is_room_for_arrive_in_order() {
    let reactor = Reactor::new().unwrap();
    let (near, far) = Options::new().ring(4096).ring_max(4096).queue_messages(8).pair().unwrap();
    let (mut near, mut far) = (framed(near, &reactor), framed(far, &reactor));
    let sender = tokio::spawn(async move {
        for number in 0..500u32 {
            near.feed(message(number.to_le_bytes())).await.unwrap();
        }
        near.flush().await.unwrap();
    });
    let receiver = async {
        for number in 0..500u32 {
            assert_eq!(far.next().await.unwrap().unwrap().bytes(), number.to_le_bytes());
        }
        // The other end is closed, and stays so.
        assert!(far.next().await.is_none() && far.next().await.is_none());
    };
    timeout(DEADLINE, receiver).await.expect("in time");
    sender.await.unwrap();
}

#[tokio::test]
async fn the_sink_keeps_one_message_that_has_no_room() {
    let reactor = Reactor::new().unwrap();
    let (near, far) = Options::new().queue_messages(1).pair().unwrap();
    let (mut near, far) = (framed(near, &reactor), far);
    near.send(message("first")).await.unwrap();
    near.feed(message("second")).await.unwrap();
    // The second message waits in the sink.
    assert!(timeout(Duration::from_millis(20), near.flush()).await.is_err());
    assert_eq!(far.recv_by(DEADLINE).unwrap().bytes(), b"first");
    timeout(DEADLINE, near.close()).await.expect("in time").unwrap();
    assert_eq!(far.recv_by(DEADLINE).unwrap().bytes(), b"second");
    assert!(near.into_parts().1.is_none());
}

#[tokio::test]
async fn handles_travel_and_both_directions_split() {
    let reactor = Reactor::new().unwrap();
    let (near, far) = Channel::pair().unwrap();
    let (near, far) = (framed(near, &reactor), framed(far, &reactor));
    let (mut requests, mut replies) = near.split();
    let (to, from) = far.split();
    // Each message goes back.
    let echo = tokio::spawn(from.forward(to));
    let file = File::open("/dev/null").unwrap();
    requests.send(Message::from_parts(b"a file".to_vec(), vec![file.into()])).await.unwrap();
    let mut reply = timeout(DEADLINE, replies.next()).await.expect("in time").unwrap().unwrap();
    assert_eq!((reply.bytes(), reply.handles().len()), (b"a file".as_slice(), 1));
    assert!(reply.take_handles().unwrap().remove(0).into_fd().is_some());
    drop((requests, replies));
    timeout(DEADLINE, echo).await.expect("in time").unwrap().unwrap();
}

#[tokio::test]
async fn an_error_of_the_sink_is_returned_once() {
    let reactor = Reactor::new().unwrap();
    let (near, far) = Options::new().max_message(10).pair().unwrap();
    let mut near = framed(near, &reactor);
    assert!(matches!(near.send(message("x".repeat(11))).await, Err(Error::MessageTooLarge { .. })));
    near.send(message("short")).await.unwrap();
    assert_eq!(far.recv_by(DEADLINE).unwrap().bytes(), b"short");
    drop(far);
    assert_eq!(near.send(message("nobody")).await, Err(Error::PeerClosed));
}

/// Shows that the stream returns an error that does not pass once, and then ends.
#[tokio::test]
async fn the_stream_ends_after_its_last_error() {
    let reactor = Reactor::new().unwrap();
    let (near, _far) = Channel::pair().unwrap();
    let mut near = framed(near, &reactor);
    drop(reactor);
    let received: Vec<_> = timeout(DEADLINE, near.by_ref().take(3).collect()).await.expect("in time");
    assert!(matches!(received[..], [Err(Error::ReactorEnded)]), "{received:?}");
}

/// Shows that a message for which the sink had no room is not lost if the program goes on without waiting.
#[tokio::test]
async fn a_message_that_waits_in_the_sink_is_not_replaced() {
    let reactor = Reactor::new().unwrap();
    let (near, far) = Options::new().queue_messages(1).pair().unwrap();
    let mut near = framed(near, &reactor);
    near.send(message("first")).await.unwrap();
    near.feed(message("second")).await.unwrap();
    assert_eq!(near.start_send_unpin(message("third")), Err(Error::WouldBlock));
    assert_eq!(far.recv_by(DEADLINE).unwrap().bytes(), b"first");
    timeout(DEADLINE, near.flush()).await.expect("in time").unwrap();
    assert_eq!(far.recv_by(DEADLINE).unwrap().bytes(), b"second");
    // If there is room now, the earlier message is sent first.
    near.send(message("fourth")).await.unwrap();
    near.feed(message("fifth")).await.unwrap();
    assert_eq!(far.recv_by(DEADLINE).unwrap().bytes(), b"fourth");
    near.start_send_unpin(message("sixth")).unwrap();
    assert_eq!(far.recv_by(DEADLINE).unwrap().bytes(), b"fifth");
    timeout(DEADLINE, near.flush()).await.expect("in time").unwrap();
    assert_eq!(far.recv_by(DEADLINE).unwrap().bytes(), b"sixth");
}
