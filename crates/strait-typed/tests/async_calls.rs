//! Typed calls in tasks: values and files go both ways, differing types are told, and the end of a reactor is an error.

mod common;

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::sync::Arc;
use std::time::Duration;

use strait::call::CallEnd;
use strait::{Channel, Deadline, Error};
use strait_tokio::Reactor;
use strait_typed::task::{AsyncTyped, AsyncTypedCalls};
use strait_typed::{CallError, Checked, Fd, Json, RecvError, Typed, TypedCalls};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

fn pair<Q, A>(reactor: &Reactor) -> (AsyncTypedCalls<Q, A>, AsyncTypedCalls<Q, A>) {
    let (one, other) = Channel::pair().unwrap();
    let [one, other] = [one, other].map(|end| AsyncTypedCalls::new(TypedCalls::over(end), reactor).unwrap());
    (one, other)
}

#[tokio::test]
async fn many_tasks_call_at_once_and_each_gets_its_reply() {
    let reactor = Reactor::new().unwrap();
    let (client, server) = pair::<u64, u64>(&reactor);
    let serving = tokio::spawn(async move {
        while let Ok(mut request) = server.next_request().await {
            let number = request.take();
            request.reply(&(number + 1), Deadline::NOW).unwrap();
        }
    });
    let client = Arc::new(client);
    let calls: Vec<_> = (0..50u64)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { assert_eq!(client.call(&number).await.unwrap(), number + 1) })
        })
        .collect();
    for call in calls {
        timeout(DEADLINE, call).await.unwrap().unwrap();
    }
    drop(client);
    timeout(DEADLINE, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn files_go_both_ways_and_come_back_from_a_request_that_was_not_sent() {
    let reactor = Reactor::new().unwrap();
    let (client, server) = pair::<Fd, Fd>(&reactor);
    let serving = tokio::spawn(async move {
        let mut request = server.next_request().await.unwrap();
        let mut file = File::from(request.take().into_fd().unwrap());
        file.write_all(b"written by the server").unwrap();
        request.reply(&Fd::from(file), Deadline::NOW).unwrap();
        server
    });
    let file = rustix::fs::memfd_create("typed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file =
        File::from(timeout(DEADLINE, client.call(&Fd::from(file))).await.unwrap().unwrap().into_fd().unwrap());
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "written by the server");
    drop(serving.await.unwrap());
    let request = Fd::from(file);
    let failed = timeout(DEADLINE, client.call(&request)).await.unwrap().unwrap_err();
    assert!(matches!(failed, CallError::Call(strait::call::CallError::NotSent(_))), "{failed}");
    assert!(File::from(request.into_fd().unwrap()).metadata().is_ok(), "the file is in the request again");
}

#[tokio::test]
async fn ends_of_different_types_are_told_apart() {
    let reactor = Reactor::new().unwrap();
    let (one, other) = Channel::pair().unwrap();
    let client = AsyncTypedCalls::new(TypedCalls::<u32, u32, Checked>::over(one), &reactor).unwrap();
    let server = AsyncTypedCalls::new(TypedCalls::<u64, u32, Checked>::over(other), &reactor).unwrap();
    let serving = tokio::spawn(async move { server.next_request().await.map(drop) });
    for _ in 0..2 {
        let failed = timeout(DEADLINE, client.call(&1)).await.unwrap();
        assert!(matches!(failed, Err(CallError::Schema(_))), "{failed:?}");
    }
    assert!(matches!(timeout(DEADLINE, serving).await.unwrap().unwrap(), Err(RecvError::Schema(_))));

    // An end without types.
    let (one, other) = Channel::pair().unwrap();
    let client = AsyncTypedCalls::new(TypedCalls::<u32, u32>::over(one), &reactor).unwrap();
    let server = CallEnd::over(other);
    let serving = std::thread::spawn(move || server.next_request(DEADLINE).unwrap().reply(b"what?", DEADLINE));
    let failed = timeout(DEADLINE, client.call(&1)).await.unwrap();
    assert!(matches!(failed, Err(CallError::Untyped)), "{failed:?}");
    serving.join().unwrap().unwrap();
}

#[tokio::test]
async fn other_tasks_run_while_the_peer_asks_for_the_types_again_and_again() {
    let reactor = Reactor::new().unwrap();
    let (one, other) = Channel::pair().unwrap();
    let (raw, server) = (CallEnd::over(one), TypedCalls::<u32, u32>::over(other));
    let server = AsyncTypedCalls::new(server, &reactor).unwrap();
    let question = common::question();
    let _asked: Vec<_> = (0..100).map(|_| raw.begin_call(&question, Deadline::NOW).unwrap()).collect();
    let answered = || raw.channel().status().unwrap().messages;
    let first_answered = async {
        while answered() == 0 {
            tokio::task::yield_now().await;
        }
        answered()
    };
    let answers = tokio::select! {
        next = server.next_request() => panic!("{next:?}"),
        answers = timeout(DEADLINE, first_answered) => answers.unwrap(),
    };
    assert!(answers < 100, "the task answers all questions before another task runs");
    let _call = raw.begin_call(&[7], Deadline::NOW).unwrap();
    assert_eq!(timeout(DEADLINE, server.next_request()).await.unwrap().unwrap().take(), 7);
}

#[tokio::test]
async fn other_tasks_run_while_the_peer_repeats_its_first_message_and_the_value_behind_arrives() {
    let (one, other) = Channel::pair().unwrap();
    Typed::<u32, u32, Json>::over(one).send(&1).unwrap();
    let first = other.recv().unwrap();
    let reactor = Reactor::new().unwrap();
    let (near, far) = Typed::<u32, u32, Json>::pair().unwrap();
    let far = AsyncTyped::new(far, &reactor).unwrap();
    near.send(&1).unwrap();
    assert_eq!(timeout(DEADLINE, far.recv()).await.unwrap().unwrap(), 1);
    for _ in 0..3000 {
        near.channel().try_send(first.bytes()).unwrap();
    }
    near.try_send(&2).unwrap();
    tokio::select! {
        biased;
        received = far.recv() => panic!("{received:?}"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(timeout(DEADLINE, far.recv()).await.unwrap().unwrap(), 2);
}

#[tokio::test]
async fn the_end_of_the_reactor_is_an_error_and_the_end_goes_on_in_a_thread() {
    let reactor = Reactor::new().unwrap();
    let (client, server) = pair::<u32, u32>(&reactor);
    let waiting = tokio::spawn(async move { (server.next_request().await.map(drop), server) });
    tokio::task::yield_now().await;
    drop(reactor);
    let (failed, server) = timeout(DEADLINE, waiting).await.unwrap().unwrap();
    assert!(matches!(failed, Err(RecvError::Channel(Error::ReactorEnded))), "{failed:?}");
    let (client, server) = (client.into_calls(), server.into_calls());
    let serving = std::thread::spawn(move || {
        let mut request = server.next_request(DEADLINE).unwrap();
        let number = request.take();
        request.reply(&(number + 1), DEADLINE)
    });
    assert_eq!(client.call(&1, DEADLINE).unwrap(), 2);
    serving.join().unwrap().unwrap();
}
