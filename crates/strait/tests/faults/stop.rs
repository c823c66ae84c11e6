//! Tests of processes that are stopped, interrupted by signals, or idle.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Actor, DEADLINE, SOON, alone, finish, parent, spawn, spawn_with, wait_until};
use crate::roles::{
    WAITS, assert_echoes, assert_files, failed, files, recv, recv_in_stream, send_stream, send_until_it_fails,
    while_blocked,
};
use rustix::process::{Pid, Signal};
use strait::{Deadline, Error, Options, Outgoing, Wait};

pub(crate) fn pid_of(actor: &Actor) -> Pid {
    Pid::from_raw(actor.pid().cast_signed()).unwrap()
}

/// Returns the state of a process; `T` if it is stopped.
pub(crate) fn state_of(actor: &Actor) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", actor.pid())).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn a_deadline_in_the_past_lets_through_what_needs_no_waiting() {
    let past = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    for wait in WAITS {
        let options = Options::new().wait(wait).ring_max(4096).queue_bytes(1);
        let (mut actor, channel) = spawn_with("echo", "", &options);
        for deadline in [Deadline::from(past), Deadline::from(Duration::ZERO)] {
            assert_eq!(channel.recv_by(deadline).unwrap_err(), Error::TimedOut);
            for len in [5, 200_000] {
                channel.send_by(&vec![7; len], deadline).unwrap();
                wait_until("the echo has arrived", || channel.is_readable());
                assert_eq!(channel.recv_by(deadline).unwrap().bytes(), vec![7; len]);
            }
        }
        actor.kill();

        let (_actor, channel) = spawn_with("silent", "", &options);
        recv(&channel);
        channel.send_by(&[7; 200_000], past).unwrap();
        let refused = channel.send_by(Outgoing::new(&[7; 200_000]).handles(files(3)), past).unwrap_err();
        assert_eq!(refused.error, Error::TimedOut);
        assert_files(refused.handles, 3);
        let mut fitted = 0;
        let refused = loop {
            match channel.send_by(Outgoing::new(&[7; 500]).handles(files(1)), past) {
                Ok(()) => fitted += 1,
                Err(refused) => break refused,
            }
        };
        assert!(fitted > 0);
        assert_eq!(refused.error, Error::TimedOut);
        assert_files(refused.handles, 1);
        while channel.send_by(&[7; 500], past).is_ok() {}
        assert_eq!(failed(channel.send_by(&[7; 500], past)), Error::TimedOut);
        assert_eq!(failed(channel.send_by(&[7; 500], Duration::ZERO)), Error::TimedOut);
        assert_eq!(failed(channel.try_send(&[7; 500])), Error::WouldBlock);
        assert_eq!(channel.reserve(500, past).unwrap_err(), Error::TimedOut);
    }
}

#[test]
fn a_child_that_never_takes_its_channel_lets_sends_succeed_until_the_queue_is_full() {
    for (len, handles, least) in [(8, 0, 1000), (1000, 0, 100), (200_000, 0, 3), (8, 1, 3)] {
        let (_actor, channel) = spawn("absent");
        let mut sent = 0;
        let refused = loop {
            let message = vec![0; len];
            match channel.send_by(Outgoing::new(&message).handles(files(handles)), Duration::from_millis(50)) {
                Ok(()) => sent += 1,
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused.error, Error::TimedOut, "{len} bytes");
        assert_files(refused.handles, handles);
        assert!(sent >= least, "{sent} messages of {len} bytes");
        assert_eq!(failed(channel.try_send(Outgoing::new(&vec![0; len]).handles(files(handles)))), Error::WouldBlock);
        assert_eq!(channel.recv_by(Duration::from_millis(20)).unwrap_err(), Error::TimedOut);
        assert_eq!(channel.try_recv().unwrap_err(), Error::WouldBlock);
        assert_eq!(channel.peer().unwrap(), None);
        assert!(!channel.is_peer_closed() && !channel.is_readable());
    }
}

#[test]
fn a_peer_that_is_stopped_for_a_while_loses_nothing() {
    const COUNT: u64 = 20_000;
    let (actor, channel) = spawn_with("stream", &COUNT.to_string(), &Options::new());
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_stream(&channel, COUNT));
        let mut n = 0;
        for stop_at in [0, 500, 7000, 15_000] {
            while n < stop_at {
                recv_in_stream(&channel, n, DEADLINE).unwrap();
                n += 1;
            }
            rustix::process::kill_process(pid_of(&actor), Signal::STOP).unwrap();
            wait_until("the peer is stopped", || state_of(&actor) == 'T');
            // The messages that the peer sent before can be received; then receives time out, without another error.
            let error = loop {
                match recv_in_stream(&channel, n, Duration::from_millis(100)) {
                    Ok(()) => n += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(error, Error::TimedOut);
            assert!(!channel.is_peer_closed());
            rustix::process::kill_process(pid_of(&actor), Signal::CONT).unwrap();
        }
        while n < COUNT {
            recv_in_stream(&channel, n, DEADLINE).unwrap();
            n += 1;
        }
        assert_eq!(sender.join().unwrap(), Ok(()));
    });
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    finish(actor);
}

pub(crate) static INTERRUPTIONS: AtomicU64 = AtomicU64::new(0);

pub(crate) static THREADS_INTERRUPTED: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];

/// Interrupts this thread a thousand times a second from here on; interrupted system calls are not restarted.
pub(crate) fn interrupt_this_thread() {
    extern "C" fn count(_: libc::c_int) {
        INTERRUPTIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the call touches no memory.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        for thread in &THREADS_INTERRUPTED {
            let known = thread.load(Ordering::Relaxed);
            if known == tid
                || (known == 0 && thread.compare_exchange(0, tid, Ordering::Relaxed, Ordering::Relaxed).is_ok())
            {
                break;
            }
        }
    }
    // SAFETY: all-zero is a valid `sigaction`; the handler does only what is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()), 0);
    }
    // SAFETY: all-zero is a valid `sigevent` and `itimerspec`; the pointers point to local variables.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
        let mut period: libc::itimerspec = std::mem::zeroed();
        period.it_interval.tv_nsec = 1_000_000;
        period.it_value.tv_nsec = 1_000_000;
        assert_eq!(libc::timer_settime(timer, 0, &raw const period, std::ptr::null_mut()), 0);
    }
}

/// Sends back each received message, and pauses at times, so that the other side waits for room and for answers.
pub(crate) fn interrupted_echo(_: &str) {
    interrupt_this_thread();
    let channel = parent();
    for n in 0u64.. {
        match channel.recv() {
            Ok(mut message) => {
                let handles = message.take_handles().unwrap();
                channel.send(Outgoing::new(message.bytes()).handles(handles)).unwrap();
            }
            Err(error) => {
                assert_eq!(error, Error::PeerClosed);
                break;
            }
        }
        if n % 500 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(INTERRUPTIONS.load(Ordering::Relaxed) > 100);
}

pub(crate) fn interrupted(argument: &str) {
    const COUNT: u64 = 10_000;
    let wait = WAITS[argument.parse::<usize>().unwrap()];
    // The ring does not grow, and few bytes may be in flight, so senders wait.
    let options = Options::new().wait(wait).ring_max(16 << 10).queue_bytes(200_000);
    let (actor, channel) = spawn_with("interrupted echo", "", &options);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            interrupt_this_thread();
            send_stream(&channel, COUNT).unwrap();
            done.store(true, Ordering::Relaxed);
        });
        interrupt_this_thread();
        for n in 0..COUNT {
            recv_in_stream(&channel, n, DEADLINE).unwrap();
        }
        // A receive without a message takes the whole time.
        let begin = Instant::now();
        assert_eq!(channel.recv_by(Duration::from_millis(200)).unwrap_err(), Error::TimedOut);
        assert!(begin.elapsed() >= Duration::from_millis(200));
    });
    assert!(done.load(Ordering::Relaxed));
    let counters = channel.counters();
    assert!(counters.stalls > 0 && (wait == Wait::Spin || counters.sleeps > 0), "{counters:?}");
    assert!(INTERRUPTIONS.load(Ordering::Relaxed) > 200);
    assert!(THREADS_INTERRUPTED.iter().all(|thread| thread.load(Ordering::Relaxed) != 0));
    drop(channel);
    finish(actor);
}

#[test]
fn signals_in_the_middle_of_waits_change_nothing() {
    for wait in 0..WAITS.len() {
        alone("interrupted", &wait.to_string());
    }
}

pub(crate) fn idle_receiver(wait: Wait) {
    let (mut actor, channel) = spawn_with("echo", "", &Options::new().wait(wait));
    assert_echoes(&channel);
    let (result, took) = while_blocked(
        || channel.recv_by(DEADLINE),
        || true,
        |watched| {
            watched.assert_idle();
            channel.send(b"wake up").unwrap();
        },
    );
    assert_eq!(result.unwrap().bytes(), b"wake up");
    assert!(took < 2 * SOON, "{took:?}");
    let (result, took) = while_blocked(
        || channel.recv(),
        || true,
        |watched| {
            watched.assert_idle();
            actor.kill();
        },
    );
    assert_eq!(result.unwrap_err(), Error::PeerClosed);
    assert!(took < 2 * SOON, "{took:?}");
}

#[test]
fn an_idle_receiver_that_blocks_sleeps_until_a_message_or_the_end() {
    idle_receiver(Wait::Block);
}

#[test]
fn an_idle_receiver_that_spins_at_first_sleeps_until_a_message_or_the_end() {
    idle_receiver(Wait::Adaptive);
}

#[test]
fn an_idle_receiver_whose_peer_never_came_sleeps_until_it_dies() {
    let (mut actor, channel) = spawn("absent");
    let (result, _) = while_blocked(
        || channel.recv(),
        || true,
        |watched| {
            watched.assert_idle();
            actor.kill();
        },
    );
    assert_eq!(result.unwrap_err(), Error::PeerClosed);
}

#[test]
fn an_idle_sender_sleeps_until_its_peer_dies() {
    for (len, queue) in [(1000, 256 << 20), (1 << 20, 3 << 20)] {
        let (mut actor, channel) = spawn_with("silent", "", &Options::new().queue_bytes(queue));
        recv(&channel);
        let stalled = || channel.counters().stalls > 0;
        let (error, _) = while_blocked(
            || send_until_it_fails(&channel, len, 0),
            stalled,
            |watched| {
                watched.assert_idle();
                actor.kill();
            },
        );
        assert_eq!(error, Error::PeerClosed);
    }
}
