//! Values arrive as they were sent, in all codecs, within a process and between processes.

mod common;

use std::collections::HashMap;
use std::process::{Command, Stdio};

use common::{Everything, LIMIT};
use postcard_schema::Schema;
use postcard_schema::schema::NamedType;
use serde::{Deserialize, Serialize};
use strait::Deadline;
use strait_typed::codec::{Checked, Codec, DecodeOwned, Encode, InPlace, Json, MsgPack, Pod};
use strait_typed::task::AsyncTyped;
use strait_typed::{Encoded, Postcard, RecvError, SendError, Typed, TypedListener};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

fn round_trip<C>()
where
    C: Encode<Everything> + Codec<Everything> + DecodeOwned<Everything>,
{
    let (near, far) = Typed::<Everything, Everything, C>::pair().unwrap();
    let sent = Everything::new();
    for _ in 0..3 {
        near.send(&sent).unwrap();
        let received = far.recv_by(LIMIT).unwrap();
        assert_eq!(received, sent);
        far.send(&received).unwrap();
        assert_eq!(near.recv_by(LIMIT).unwrap(), sent);
    }
    assert_eq!(far.try_recv(), Err(RecvError::Channel(strait::Error::WouldBlock)));
}

#[test]
fn every_kind_of_field_round_trips_in_postcard() {
    round_trip::<Postcard>();
}

#[test]
fn every_kind_of_field_round_trips_in_msgpack() {
    round_trip::<MsgPack>();
}

#[test]
fn every_kind_of_field_round_trips_in_json() {
    round_trip::<Json>();
}

/// Shows that values of many short lists and maps, each element of one byte, are within the limits of all codecs.
#[test]
fn many_short_lists_and_maps_round_trip() {
    fn check<C>()
    where
        C: Encode<Vec<Vec<bool>>> + DecodeOwned<Vec<Vec<bool>>> + Codec<()>,
        C: Encode<Vec<HashMap<u8, u8>>> + DecodeOwned<Vec<HashMap<u8, u8>>>,
    {
        let lists = vec![vec![true; 10]; 2000];
        let (near, far) = Typed::<Vec<Vec<bool>>, (), C>::pair().unwrap();
        near.send(&lists).unwrap();
        assert!(far.recv_by(LIMIT).unwrap() == lists);
        let empty = vec![vec![]; 20_000];
        near.send(&empty).unwrap();
        assert!(far.recv_by(LIMIT).unwrap() == empty);
        let maps = vec![HashMap::from([(1, 2)]); 5000];
        let (near, far) = Typed::<Vec<HashMap<u8, u8>>, (), C>::pair().unwrap();
        near.send(&maps).unwrap();
        assert!(far.recv_by(LIMIT).unwrap() == maps);
    }
    check::<Postcard>();
    check::<MsgPack>();
    check::<Json>();
}

/// The shape's key is the key of another type, at both ends.
impl Schema for Everything {
    const SCHEMA: &'static NamedType = <(u8, String)>::SCHEMA;
}

#[test]
fn every_kind_of_field_round_trips_with_keys() {
    round_trip::<Checked>();
    round_trip::<Checked<MsgPack>>();
    round_trip::<Checked<Json>>();
}

#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Sample {
    time: u64,
    values: [f32; 12],
    flags: u32,
    channel: u32,
}

#[test]
fn plain_memory_round_trips_and_is_read_in_place() {
    let (near, far) = Typed::<Sample, Sample, Pod>::pair().unwrap();
    let sample = Sample { time: 1, values: [0.5; 12], flags: u32::MAX, channel: 3 };
    near.send(&sample).unwrap();
    assert_eq!(far.recv_by(LIMIT).unwrap(), sample);
    near.send(&sample).unwrap();
    let mut encoded = Encoded::new();
    far.recv_encoded(&mut encoded, LIMIT).unwrap();
    let InPlace(received) = encoded.get::<InPlace<'_, Sample>>().unwrap();
    assert_eq!(*received, sample);
}

#[test]
fn a_pod_of_another_length_is_malformed_and_the_next_one_is_not() {
    let (near, far) = Typed::<Sample, Sample, Pod>::pair().unwrap();
    let sample = Sample { time: 1, values: [0.5; 12], flags: 0, channel: 3 };
    near.send(&sample).unwrap();
    assert_eq!(far.recv_by(LIMIT).unwrap(), sample);
    for len in [0, 63, 65, 4096] {
        near.channel().send(&vec![1; len]).unwrap();
        assert!(matches!(far.recv_by(LIMIT), Err(RecvError::Malformed(_))), "{len}");
    }
    near.send(&sample).unwrap();
    assert_eq!(far.recv_by(LIMIT).unwrap(), sample);
}

#[test]
fn large_values_are_built_where_the_peer_reads_them() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Large {
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        numbers: Vec<u64>,
        text: String,
    }
    for (bytes, numbers) in [(65_520, 0), (65_536, 1), (1 << 20, 1000), (100, 100_000), (0, 7_000), (3 << 20, 70_000)] {
        let (near, far) = Typed::<Large, Large>::pair().unwrap();
        let large = Large {
            bytes: (0..bytes).map(|n| n as u8).collect(),
            numbers: (0..numbers).map(|n| n << (n % 60)).collect(),
            text: "the end".into(),
        };
        let sender = std::thread::spawn(move || {
            near.send_by(&large, LIMIT).unwrap();
            near.send_by(&large, LIMIT).unwrap();
            large
        });
        let received = [far.recv_by(LIMIT).unwrap(), far.recv_by(LIMIT).unwrap()];
        let large = sender.join().unwrap();
        assert!(received.iter().all(|each| *each == large), "{bytes} bytes and {numbers} numbers");
    }
}

#[test]
fn a_value_that_is_too_long_is_not_sent_and_says_so() {
    let (one, other) = strait::Options::new().max_message(100_000).pair().unwrap();
    let (near, far) = (Typed::<Vec<u64>, ()>::over(one), Typed::<(), Vec<u64>>::over(other));
    let large = vec![u64::MAX; 20_000];
    let failed = near.send(&large).unwrap_err();
    assert!(matches!(failed, SendError::Channel(strait::Error::MessageTooLarge { .. })), "{failed}");
    near.send(&vec![1]).unwrap();
    assert_eq!(far.recv_by(LIMIT).unwrap(), [1]);
}

#[test]
fn a_value_may_borrow_from_its_message() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Borrowing<'a> {
        text: &'a str,
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    }
    let (near, far) = Typed::<Borrowing<'_>, Borrowing<'_>, MsgPack>::pair().unwrap();
    let mut encoded = Encoded::new();
    for text in ["one", "two"] {
        let value = Borrowing { text, bytes: &[1, 2, 3] };
        near.send(&value).unwrap();
        far.recv_encoded(&mut encoded, LIMIT).unwrap();
        let received: Borrowing<'_> = encoded.get().unwrap();
        assert_eq!(received, value);
    }
}

#[test]
fn an_end_that_would_block_takes_the_value_later() {
    let (one, other) = strait::Options::new().queue_messages(4).pair().unwrap();
    let (near, far) = (Typed::<String, ()>::over(one), Typed::<(), String>::over(other));
    let mut sent = 0;
    let full = loop {
        match near.try_send(&sent.to_string()) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full, SendError::Channel(strait::Error::WouldBlock));
    for n in 0..sent {
        assert_eq!(far.recv_by(LIMIT).unwrap(), n.to_string());
    }
    near.try_send(&"later".to_owned()).unwrap();
    assert_eq!(far.recv_by(LIMIT).unwrap(), "later");
}

/// The program for the tests below: this test binary, with only this test.
#[test]
fn child() {
    if std::env::var_os("STRAIT_TYPED_CHILD").is_none() {
        return;
    }
    let parent = Typed::<Everything, Everything, MsgPack>::from_parent().unwrap();
    while let Ok(value) = parent.recv_by(LIMIT) {
        parent.send_by(&value, LIMIT).unwrap();
    }
}

#[test]
fn a_child_process_sends_everything_back() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child"]).env("STRAIT_TYPED_CHILD", "1").stdout(Stdio::null());
    let (mut child, typed) = Typed::<Everything, Everything, MsgPack>::spawn(&mut command).unwrap();
    for _ in 0..100 {
        typed.send_by(&Everything::new(), LIMIT).unwrap();
        assert_eq!(typed.recv_by(LIMIT).unwrap(), Everything::new());
    }
    drop(typed);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_listener_accepts_typed_clients() {
    let name = format!("typed-{}", std::process::id());
    let listener = TypedListener::<Everything>::bind(&name).unwrap();
    let client = std::thread::spawn(move || {
        let client = Typed::<Everything>::connect(&name, LIMIT).unwrap();
        client.send(&Everything::new()).unwrap();
        client.recv_by(LIMIT).unwrap()
    });
    let server = listener.accept(LIMIT).unwrap();
    server.send(&server.recv_by(LIMIT).unwrap()).unwrap();
    assert_eq!(client.join().unwrap(), Everything::new());
}

#[tokio::test]
async fn tasks_send_and_receive_more_than_there_is_room_for() {
    let reactor = strait_tokio::Reactor::new().unwrap();
    let (near, far) = Typed::<HashMap<u32, String>, u32>::pair().unwrap();
    let (near, far) = (AsyncTyped::new(near, &reactor).unwrap(), AsyncTyped::new(far, &reactor).unwrap());
    let serving = tokio::spawn(async move {
        for _ in 0..500 {
            let map = far.recv().await.unwrap();
            far.send(&map.keys().sum()).await.unwrap();
        }
        far.into_typed()
    });
    let client = async {
        for n in 0..500 {
            near.send(&HashMap::from([(n, "x".repeat(1000))])).await.unwrap();
        }
        for n in 0..500 {
            assert_eq!(near.recv().await.unwrap(), n);
        }
        near.into_typed()
    };
    let near = tokio::time::timeout(LIMIT, client).await.unwrap();
    let far = serving.await.unwrap();
    // The ends continue in threads, without new first messages.
    near.send(&HashMap::new()).unwrap();
    assert!(far.recv_by(LIMIT).unwrap().is_empty());
}

#[test]
fn many_threads_use_one_end_from_the_first_message_on() {
    for _ in 0..50 {
        let (near, far) = Typed::<u64, ()>::pair().unwrap();
        let sum: u64 = std::thread::scope(|scope| {
            for n in 0..4u64 {
                let near = &near;
                scope.spawn(move || (0..25).for_each(|m| near.send_by(&(n * 25 + m), LIMIT).unwrap()));
            }
            let receivers: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..25).map(|_| far.recv_by(LIMIT).unwrap()).sum::<u64>())).collect();
            receivers.into_iter().map(|each| each.join().unwrap()).sum()
        });
        assert_eq!(sum, 99 * 100 / 2);
        assert!(matches!(far.try_recv(), Err(RecvError::Channel(strait::Error::WouldBlock))));
    }
}

#[test]
fn a_deadline_ends_a_wait() {
    let (near, far) = Typed::<u64, ()>::pair().unwrap();
    let soon = std::time::Duration::from_millis(1);
    assert_eq!(far.recv_by(soon), Err(RecvError::Channel(strait::Error::TimedOut)));
    assert_eq!(far.recv_by(Deadline::NOW), Err(RecvError::Channel(strait::Error::WouldBlock)));
    drop(near);
    assert_eq!(far.recv(), Err(RecvError::Channel(strait::Error::PeerClosed)));
}
