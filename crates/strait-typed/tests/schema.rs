//! Both ends must have the same types and the same codec, and say what differs.

mod common;

use common::LIMIT;
use postcard_schema::Schema;
use serde::{Deserialize, Serialize};
use strait::{Channel, Error, Options};
use strait_typed::codec::{Checked, Json, MsgPack};
use strait_typed::{CallError, Differs, Fd, Postcard, RecvError, SendError, TYPES_DIFFER, Typed, TypedCalls};

mod old {
    use super::*;
    /// A comment, without effect on the schema.
    #[derive(Debug, PartialEq, Serialize, Deserialize, Schema)]
    pub(crate) enum Request {
        Open { path: String },
        Close(u32),
    }
}

mod same {
    use super::*;
    #[derive(Debug, PartialEq, Serialize, Deserialize, Schema)]
    pub(crate) enum Asked {
        Open { path: String },
        Close(u32),
    }
}

mod reordered {
    use super::*;
    #[derive(Debug, PartialEq, Serialize, Deserialize, Schema)]
    pub(crate) enum Request {
        Close(u32),
        Open { path: String },
    }
}

mod renamed {
    use super::*;
    #[derive(Debug, PartialEq, Serialize, Deserialize, Schema)]
    pub(crate) enum Request {
        Open { name: String },
        Close(u32),
    }
}

mod widened {
    use super::*;
    #[derive(Debug, PartialEq, Serialize, Deserialize, Schema)]
    pub(crate) enum Request {
        Open { path: String },
        Close(u64),
    }
}

type End<S, R> = Typed<S, R, Checked<Postcard>>;

fn ends<A, B>() -> (End<A, u32>, End<u32, B>) {
    let (one, other) = Channel::pair().unwrap();
    (Typed::over(one), Typed::over(other))
}

/// Sends from an end of the type `old::Request` to one of the type `B`. Checks that both ends report the mismatch.
fn mismatch<B>(name: &str)
where
    B: Schema + Serialize + serde::de::DeserializeOwned + Send + std::fmt::Debug + PartialEq + 'static,
{
    let (near, far) = ends::<old::Request, B>();
    near.send(&old::Request::Close(3)).unwrap();
    let Err(RecvError::Schema(seen)) = far.recv_by(LIMIT) else { panic!("{name}: the receiver does not notice") };
    assert_eq!(seen.differs, Differs::Received);
    assert!(seen.ours.contains(name) && seen.theirs.contains("old::Request"), "{seen}");
    assert_eq!(far.recv_by(LIMIT), Err(RecvError::Schema(seen.clone())));
    assert_eq!(far.send(&1), Err(SendError::Schema(seen)));

    let Err(RecvError::Schema(seen)) = near.recv_by(LIMIT) else { panic!("{name}: the sender does not notice") };
    assert_eq!(seen.differs, Differs::Sent);
    assert!(seen.ours.contains("old::Request") && seen.theirs.contains(name), "{seen}");
    assert_eq!(near.send(&old::Request::Close(3)), Err(SendError::Schema(seen.clone())));
    assert_eq!(near.try_recv(), Err(RecvError::Schema(seen)));
}

#[test]
fn a_reordered_enum_is_a_mismatch_at_both_ends() {
    mismatch::<reordered::Request>("reordered::Request");
}

#[test]
fn a_renamed_field_is_a_mismatch_at_both_ends() {
    mismatch::<renamed::Request>("renamed::Request");
}

#[test]
fn another_integer_is_a_mismatch_at_both_ends() {
    mismatch::<widened::Request>("widened::Request");
}

#[test]
fn another_type_is_a_mismatch_at_both_ends() {
    mismatch::<String>("String");
    mismatch::<(String, u32)>("String");
}

#[test]
fn a_type_of_another_name_and_the_same_shape_is_no_mismatch() {
    let (near, far) = ends::<old::Request, same::Asked>();
    near.send(&old::Request::Open { path: "a".into() }).unwrap();
    assert_eq!(far.recv_by(LIMIT).unwrap(), same::Asked::Open { path: "a".into() });
    far.send(&1).unwrap();
    assert_eq!(near.recv_by(LIMIT).unwrap(), 1);
}

#[test]
fn an_end_without_keys_talks_to_one_with_keys() {
    let (one, other) = Channel::pair().unwrap();
    let near: End<old::Request, u32> = Typed::over(one);
    let far: Typed<u32, same::Asked> = Typed::over(other);
    near.send(&old::Request::Close(1)).unwrap();
    assert_eq!(far.recv_by(LIMIT).unwrap(), same::Asked::Close(1));
    far.send(&1).unwrap();
    assert_eq!(near.recv_by(LIMIT).unwrap(), 1);
}

#[test]
fn another_codec_is_a_mismatch_at_both_ends() {
    let (one, other) = Channel::pair().unwrap();
    let (near, far) = (Typed::<u32, u32, Json>::over(one), Typed::<u32, u32, MsgPack>::over(other));
    near.send(&1).unwrap();
    let error = far.recv_by(LIMIT).unwrap_err().to_string();
    assert!(error.contains("this end uses the codec MsgPack and the peer the codec Json"), "{error}");
    let error = near.recv_by(LIMIT).unwrap_err().to_string();
    assert!(error.contains("this end uses the codec Json and the peer the codec MsgPack"), "{error}");
}

#[test]
fn a_peer_that_is_not_typed_is_reported_and_can_still_begin() {
    let (one, other) = Channel::pair().unwrap();
    let far = Typed::<u32, u32>::over(other);
    for bytes in [&b""[..], b"hello", b"\xF5strait\x01", &[b"\xF5strait\x01", &[255; 60][..]].concat()] {
        one.send(bytes).unwrap();
        assert_eq!(far.recv_by(LIMIT), Err(RecvError::Untyped));
    }
    let near = Typed::<u32, u32>::over(one);
    near.send(&5).unwrap();
    assert_eq!(far.recv_by(LIMIT).unwrap(), 5);
}

#[test]
fn handles_have_a_shape() {
    let (one, other) = Channel::pair().unwrap();
    let near = Typed::<(u32, Fd), u32, Checked>::over(one);
    let far = Typed::<u32, (u32, u32), Checked>::over(other);
    near.send(&(1, std::fs::File::open("/dev/null").unwrap().into())).unwrap();
    assert!(matches!(far.recv_by(LIMIT), Err(RecvError::Schema(_))));
}

/// Sends a value as a program without types does: no first message.
fn send_untyped(channel: &Channel, value: u32) {
    channel.send(&serde_json::to_vec(&value).unwrap()).unwrap();
}

#[test]
fn a_peer_without_types_needs_no_first_message_if_the_codec_describes_itself() {
    let (raw, other) = Channel::pair().unwrap();
    let typed = Typed::<u32, u32, Json>::over(other);
    send_untyped(&raw, 1);
    send_untyped(&raw, 2);
    assert_eq!((typed.recv_by(LIMIT).unwrap(), typed.recv_by(LIMIT).unwrap()), (1, 2));
    // The first message of the typed end comes before its values, and is no JSON.
    typed.send(&3).unwrap();
    assert!(raw.recv_by(LIMIT).unwrap().bytes().starts_with(b"\xF5strait\x01\x03"));
    assert_eq!(raw.recv_by(LIMIT).unwrap().bytes(), b"3");
}

#[test]
fn a_first_message_after_values_is_passed_over_and_compared() {
    let (raw, other) = Channel::pair().unwrap();
    let typed = Typed::<u32, u32, Checked<Json>>::over(other);
    send_untyped(&raw, 1);
    assert_eq!(typed.recv_by(LIMIT).unwrap(), 1);
    // The program without types sends its end to another program, which makes the end typed.
    let peer = Typed::<u32, u32, Checked<Json>>::over(raw);
    peer.send(&2).unwrap();
    assert_eq!(typed.recv_by(LIMIT).unwrap(), 2);
    // Then the end goes on to a program that has other types.
    let wrong = Typed::<u64, u32, Checked<Json>>::over(peer.into_channel());
    wrong.send(&3).unwrap();
    assert!(matches!(typed.recv_by(LIMIT), Err(RecvError::Schema(mismatch)) if mismatch.differs == Differs::Received));
    assert!(matches!(typed.recv_by(LIMIT), Err(RecvError::Schema(_))));
}

#[test]
fn a_long_value_of_a_peer_without_types_is_no_first_message() {
    let (raw, other) = Channel::pair().unwrap();
    let typed = Typed::<(), String, Json>::over(other);
    for _ in 0..2 {
        raw.send(&serde_json::to_vec(&"x".repeat(1 << 20)).unwrap()).unwrap();
        assert_eq!(typed.recv_by(LIMIT).unwrap().len(), 1 << 20);
    }
}

#[test]
fn a_peer_without_types_is_refused_by_other_codecs() {
    let (raw, other) = Channel::pair().unwrap();
    let typed = Typed::<u32, u32, Postcard>::over(other);
    raw.send(b"\x01").unwrap();
    assert!(matches!(typed.recv_by(LIMIT), Err(RecvError::Untyped)));
}

#[test]
fn an_end_that_found_a_mismatch_is_closed_with_a_reason() {
    let (near, far) = ends::<old::Request, widened::Request>();
    near.send(&old::Request::Close(3)).unwrap();
    assert!(matches!(far.recv_by(LIMIT), Err(RecvError::Schema(_))));
    drop(far);
    // The peer only sends, and goes on until the end is closed.
    assert_eq!(near.send(&old::Request::Close(3)), Err(SendError::Channel(Error::PeerClosed)));
    let channel = near.into_channel();
    assert!(channel.recv_by(LIMIT).unwrap().bytes().starts_with(b"\xF5strait\x01"), "the types of the other end");
    assert_eq!(channel.recv_by(LIMIT).unwrap_err(), Error::PeerClosed);
    assert_eq!(channel.close_reason(), Some(TYPES_DIFFER));
}

#[test]
fn a_peer_whose_ring_is_full_learns_of_a_mismatch_by_the_close_reason() {
    let (raw, other) = Options::new().ring(4096).ring_max(4096).pair().unwrap();
    let far: End<u32, widened::Request> = Typed::over(other);
    // This end sends its types, and then fills the ring.
    far.send(&1).unwrap();
    while far.try_send(&1).is_ok() {}
    let near: End<old::Request, u32> = Typed::over(raw);
    near.send(&old::Request::Close(3)).unwrap();
    assert!(matches!(far.recv_by(LIMIT), Err(RecvError::Schema(_))));
    drop(far);
    let channel = near.into_channel();
    while channel.recv_by(LIMIT).is_ok() {}
    assert_eq!(channel.close_reason(), Some(TYPES_DIFFER));
}

#[test]
fn calls_that_found_a_mismatch_are_closed_with_a_reason() {
    let (one, other) = Channel::pair().unwrap();
    let server = TypedCalls::<u64, u32, Checked>::over(one);
    let serving = std::thread::spawn(move || assert!(matches!(server.next_request(LIMIT), Err(RecvError::Schema(_)))));
    let client = TypedCalls::<u32, u32, Checked>::over(other);
    assert!(matches!(client.call(&1, LIMIT), Err(CallError::Schema(_))));
    serving.join().unwrap();
    assert!(client.end().next_request(LIMIT).is_err());
    assert_eq!(client.end().channel().close_reason(), Some(TYPES_DIFFER));
}
