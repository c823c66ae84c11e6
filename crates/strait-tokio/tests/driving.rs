//! Messages arrive however long the driving task polls before the runtime sleeps.

use std::time::Duration;

use strait::{Channel, Wait};
use strait_tokio::{AsyncChannel, Reactor};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

/// Runs the other side: a thread that answers sometimes at once and sometimes late.
fn answers(channel: &Channel) {
    let mut n = 0u64;
    while let Ok(message) = channel.recv() {
        n += 1;
        if n.is_multiple_of(7) {
            std::thread::sleep(Duration::from_micros(n % 200));
        }
        if channel.send(message.bytes()).is_err() {
            return;
        }
    }
}

async fn to_and_fro(spin: Duration) {
    let reactor = Reactor::with_spin(spin).unwrap();
    let (ours, theirs) = strait::Options::new().wait(Wait::Block).pair().unwrap();
    let other = std::thread::spawn(move || answers(&theirs));
    let ours = AsyncChannel::new(ours, &reactor).unwrap();
    for n in 0..2000u32 {
        ours.send(&n.to_le_bytes()).await.unwrap();
        let answer = timeout(DEADLINE, ours.recv()).await.expect("a wake-up was lost").unwrap();
        assert_eq!(answer.bytes(), n.to_le_bytes());
    }
    drop(ours);
    other.join().unwrap();
}

const SPINS: [Duration; 4] = [Duration::ZERO, Duration::from_micros(1), Reactor::SPIN, Duration::from_millis(2)];

#[tokio::test]
async fn messages_come_however_long_one_thread_looks() {
    for spin in SPINS {
        to_and_fro(spin).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_come_however_long_many_threads_look() {
    for spin in SPINS {
        to_and_fro(spin).await;
    }
}

/// Returns how often the current thread has slept.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[tokio::test]
async fn a_runtime_that_waits_sleeps_and_is_not_woken() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Channel::pair().unwrap();
    let b = AsyncChannel::new(b, &reactor).unwrap();
    a.send(b"something to look for more of").unwrap();
    b.recv().await.unwrap();
    let waits = async { b.recv().await.unwrap() };
    let sends = async {
        // Time for all remaining work.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let before = sleeps();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let slept = sleeps() - before;
        a.send(b"the end").unwrap();
        slept
    };
    let (message, slept) = timeout(DEADLINE, async { tokio::join!(waits, sends) }).await.unwrap();
    assert_eq!(message.bytes(), b"the end");
    // The timer and the reading of the file account for a few sleeps; a task that polls all the time would sleep
    // hundreds of times.
    assert!(slept <= 20, "the thread went to sleep {slept} times");
}
