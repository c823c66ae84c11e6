//! Typed calls: replies reach their callers, errors describe the outcome, and no handle is lost.

mod common;

use common::{Everything, LIMIT, Scratch};
use serde::{Deserialize, Serialize};
use strait::Channel;
use strait::call::CallEnd;
use strait_typed::codec::{Checked, Json, MsgPack};
use strait_typed::{CallError, Fd, RecvError, TypedCalls};

type Calls<Q, A, C = strait_typed::Postcard> = TypedCalls<Q, A, C>;

fn pair<Q, A>() -> (Calls<Q, A>, Calls<Q, A>) {
    let (one, other) = Channel::pair().unwrap();
    (TypedCalls::over(one), TypedCalls::over(other))
}

#[test]
fn threads_of_both_ends_call_and_serve_from_the_first_call_on() {
    for _ in 0..20 {
        let (client, server) = pair::<u64, u64>();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while let Ok(mut request) = server.next_request(LIMIT) {
                        let number = request.take();
                        if number == 0 {
                            return;
                        }
                        request.reply(&(number * 2), LIMIT).unwrap();
                    }
                });
            }
            let callers: Vec<_> = (0..3u64)
                .map(|n| {
                    let client = &client;
                    scope.spawn(move || {
                        for m in 1..50 {
                            assert_eq!(client.call(&(n * 1000 + m), LIMIT).unwrap(), 2 * (n * 1000 + m));
                        }
                    })
                })
                .collect();
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            for _ in 0..3 {
                let failed = client.call(&0, LIMIT).unwrap_err();
                assert!(matches!(failed, CallError::Call(strait::call::CallError::NotAnswered)), "{failed}");
            }
        });
    }
}

#[test]
fn everything_and_handles_go_both_ways() {
    #[derive(Serialize, Deserialize)]
    struct WithFile(Everything, Fd);
    let file = Scratch::new(b"");
    let (client, server) = pair::<WithFile, WithFile>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut request = server.next_request(LIMIT).unwrap();
            assert!(request.get().is_some());
            let value = request.take();
            request.reply(&value, LIMIT).unwrap();
        });
        let reply = client.call(&WithFile(Everything::new(), file.open().into()), LIMIT).unwrap();
        assert_eq!(reply.0, Everything::new());
        assert_eq!(file.held(), 1);
        assert!(reply.1.into_fd().is_some());
    });
    // If sending fails, the request keeps its handle.
    drop(server);
    let request = WithFile(Everything::new(), file.open().into());
    assert!(client.call(&request, LIMIT).is_err());
    assert!(!request.1.is_sent());
}

#[test]
fn a_malformed_request_is_not_answered_and_the_next_one_is() {
    let (one, other) = Channel::pair().unwrap();
    let client = Calls::<u32, u32, Json>::over(one);
    let server = Calls::<u32, u32, Json>::over(other);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            server.next_request(LIMIT).unwrap().reply(&1, LIMIT).unwrap();
            assert!(matches!(server.next_request(LIMIT), Err(RecvError::Malformed(_))));
            let request = server.next_request(LIMIT).unwrap();
            request.reply(&3, LIMIT).unwrap();
        });
        assert_eq!(client.call(&1, LIMIT).unwrap(), 1);
        let raw = client.end().call(b"no number", LIMIT);
        assert!(matches!(raw, Err(strait::call::CallError::NotAnswered)));
        assert_eq!(client.call(&3, LIMIT).unwrap(), 3);
    });
}

#[test]
fn a_request_with_the_bytes_of_a_question_for_the_types_is_not_sent() {
    let (client, server) = pair::<([u8; 32], Option<Fd>), u32>();
    let mut question = [0; 32];
    question[..8].copy_from_slice(b"\xF5strait\x01");
    // The last byte belongs to the field behind the array: there is no name in these bytes.
    question[10] = 1;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                server.next_request(LIMIT).unwrap().reply(&1, LIMIT).unwrap();
            }
        });
        assert_eq!(client.call(&([0; 32], None), LIMIT).unwrap(), 1);
        let failed = client.call(&(question, None), LIMIT).unwrap_err();
        assert!(matches!(&failed, CallError::Encode(what) if what.contains("types")), "{failed}");
        // The other end knows nothing of it.
        assert_eq!(client.call(&([1; 32], None), LIMIT).unwrap(), 1);
    });
}

#[test]
fn a_malformed_reply_is_an_error_of_the_call() {
    let (one, other) = Channel::pair().unwrap();
    let client = Calls::<(), u32, Json>::over(one);
    let server = Calls::<(), String, Json>::over(other);
    std::thread::scope(|scope| {
        scope.spawn(|| server.next_request(LIMIT).unwrap().reply(&"text".to_owned(), LIMIT).unwrap());
        assert!(matches!(client.call(&(), LIMIT), Err(CallError::Malformed(_))));
    });
}

#[test]
fn other_types_are_a_mismatch_at_both_ends() {
    let (one, other) = Channel::pair().unwrap();
    let client = Calls::<u32, u32, Checked>::over(one);
    let server = Calls::<u32, String, Checked>::over(other);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let error = server.next_request(LIMIT).unwrap_err().to_string();
            assert!(error.contains("this end sends `alloc::string::String`"), "{error}");
        });
        for _ in 0..2 {
            let failed = client.call(&1, LIMIT).unwrap_err();
            assert!(matches!(failed, CallError::Schema(_)), "{failed}");
        }
    });
}

#[test]
fn an_end_that_is_not_typed_is_reported() {
    let (one, other) = Channel::pair().unwrap();
    let (client, raw) = (Calls::<u32, u32, MsgPack>::over(one), CallEnd::over(other));
    std::thread::scope(|scope| {
        scope.spawn(|| raw.next_request(LIMIT).unwrap().reply(b"what?", LIMIT).unwrap());
        assert!(matches!(client.call(&1, LIMIT), Err(CallError::Untyped)));
        scope.spawn(|| assert!(raw.call(b"a question", LIMIT).is_err()));
        assert!(matches!(client.next_request(LIMIT), Err(RecvError::Untyped)));
    });
}
