//! Tasks accept processes that connect: many at the same time, beside other futures, and with a runtime that ends while
//! a task waits.

use std::time::{Duration, Instant};

use strait::{Channel, Deadline, Error};
use strait_tokio::{Listener, Reactor};
use tokio::task::JoinSet;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

fn name(test: &str) -> String {
    format!("tokio-{test}-{}", std::process::id())
}

/// Connects and sends `number` in a thread of its own; returns the reply.
fn client(name: String, number: u32) -> std::thread::JoinHandle<u32> {
    std::thread::spawn(move || {
        let channel = strait::connect(&name, DEADLINE).unwrap();
        channel.send(&number.to_le_bytes()).unwrap();
        let reply = channel.recv_by(DEADLINE).unwrap();
        u32::from_le_bytes(reply.bytes().try_into().unwrap())
    })
}

#[tokio::test]
async fn many_processes_connect_at_once_and_several_tasks_accept_them() {
    const CLIENTS: u32 = 100;
    let name = name("many");
    let reactor = std::sync::Arc::new(Reactor::new().unwrap());
    // More connections may be pending than come, so that none is refused.
    let listener = strait::Listener::builder().waiting(200, 200).bind(&name).unwrap();
    let listener = std::sync::Arc::new(Listener::new(listener).unwrap());
    let clients: Vec<_> = (0..CLIENTS).map(|number| client(name.clone(), number)).collect();
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (listener, reactor) = (listener.clone(), reactor.clone());
        tasks.spawn(async move {
            for _ in 0..CLIENTS / 4 {
                let channel = timeout(DEADLINE, listener.accept(&reactor)).await.expect("in time").unwrap();
                let request = timeout(DEADLINE, channel.recv()).await.expect("in time").unwrap();
                channel.send(request.bytes()).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    for (number, client) in (0..).zip(clients) {
        assert_eq!(tokio::task::spawn_blocking(move || client.join().unwrap()).await.unwrap(), number);
    }
}

#[tokio::test]
async fn a_future_that_is_dropped_loses_no_connection() {
    let name = name("dropped");
    let listener = Listener::bind(&name).unwrap();
    for number in 0..20 {
        let client = client(name.clone(), number);
        let channel = loop {
            // Most of these futures are dropped while the listener makes the channel.
            match timeout(Duration::from_micros(50), listener.accept_channel()).await {
                Ok(channel) => break channel.unwrap(),
                Err(_) => tokio::task::yield_now().await,
            }
        };
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), number.to_le_bytes());
        channel.send(&number.to_le_bytes()).unwrap();
        assert_eq!(client.join().unwrap(), number);
    }
}

#[test]
fn a_runtime_ends_while_a_task_waits_for_a_process() {
    let name = name("ends");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(async { Listener::bind(&name).unwrap() });
    runtime.spawn(async move { listener.accept_channel().await.map(drop) });
    let begin = Instant::now();
    drop(runtime);
    assert!(begin.elapsed() < DEADLINE / 2, "the runtime waited for the listener");
    let failed = strait::connect(&name, Deadline::NOW).unwrap_err();
    assert_eq!(failed.error, Error::NobodyThere, "the name is free again");
}

#[tokio::test]
async fn a_listener_can_be_taken_back() {
    let name = name("back");
    let listener = Listener::bind(&name).unwrap();
    assert!(listener.path().ends_with(&name));
    let listener = listener.into_inner();
    let client = client(name, 7);
    let channel: Channel = tokio::task::spawn_blocking(move || listener.accept(DEADLINE).unwrap()).await.unwrap();
    channel.send(channel.recv_by(DEADLINE).unwrap().bytes()).unwrap();
    assert_eq!(client.join().unwrap(), 7);
}
