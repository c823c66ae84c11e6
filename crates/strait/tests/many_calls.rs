//! Makes calls from eight threads over one end, so many that a reply to the wrong call would be noticed.
//!
//! `STRAIT_CALLS` is the number of calls in all; ten million take a minute or two with `--release`.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use common::{Actor, DEADLINE, finish, parent, spawn, spawn_with};
use strait::call::CallEnd;
use strait::{Channel, Deadline, Error, Options, Wait};

const THREADS: u64 = 8;

#[test]
fn child() {
    common::play(&[("server", |_| server())]);
}

/// Returns the answer to a request, which no other request has.
fn answer(request: u64) -> u64 {
    (request ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Answers all queued requests, the last first.
fn server() {
    let end = CallEnd::over(parent());
    let mut held = Vec::new();
    loop {
        match end.next_request(DEADLINE) {
            Ok(request) => held.push(request),
            Err(error) => return assert_eq!(error, Error::PeerClosed),
        }
        while let Ok(request) = end.next_request(strait::Deadline::NOW) {
            held.push(request);
        }
        while let Some(request) = held.pop() {
            let mut bytes: [u8; 64] = request.bytes().try_into().unwrap();
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            bytes[8..16].copy_from_slice(&answer(number).to_le_bytes());
            request.reply(&bytes, Deadline::NEVER).unwrap();
        }
    }
}

#[test]
fn no_reply_of_many_goes_to_another_call() {
    let calls: u64 = std::env::var("STRAIT_CALLS").map_or(40_000, |calls| calls.parse().expect("a number"));
    make_calls(calls, spawn("server"));
}

/// Shows that all calls are answered if all threads and the server sleep and share one processor. There callers let
/// each other run before they wake the server.
#[test]
fn threads_on_one_processor_that_sleep_are_all_answered() {
    let processor = rustix::thread::sched_getaffinity(None).unwrap();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| processor.is_set(cpu)).unwrap();
    let mut one = rustix::thread::CpuSet::new();
    one.set(first);
    // Threads and processes that are made from here on inherit the affinity.
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    make_calls(20_000, spawn_with("server", "", &Options::new().wait(Wait::Block)));
}

/// Makes `calls` calls from eight threads, and checks each reply.
fn make_calls(calls: u64, (actor, channel): (Actor, Channel)) {
    let end = CallEnd::over(channel);
    let failed = AtomicBool::new(false);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (end, failed) = (&end, &failed);
            scope.spawn(move || {
                for call in 0..calls / THREADS {
                    let number = call * THREADS + thread;
                    let mut request = [thread as u8; 64];
                    request[..8].copy_from_slice(&number.to_le_bytes());
                    let reply = end.call(&request, DEADLINE).unwrap();
                    request[8..16].copy_from_slice(&answer(number).to_le_bytes());
                    if reply.bytes() != request {
                        failed.store(true, Ordering::Relaxed);
                    }
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
    });
    assert!(!failed.load(Ordering::Relaxed), "a reply went to the wrong call");
    let made = calls / THREADS * THREADS;
    println!("{made} calls, {:.0} a second", made as f64 / begin.elapsed().as_secs_f64());
    let counters = end.counters();
    assert_eq!((counters.calls, counters.late, counters.unknown, end.under_way()), (made, 0, 0, 0));
    drop(end);
    finish(actor);
}
