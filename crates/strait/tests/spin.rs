//! Tests of `STRAIT_SPIN`, which sets how long the adaptive waits of a process spin, without a change of the program.

mod common;

use std::time::Duration;

use common::{Actor, DEADLINE, command, finish, parent, play};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use strait::{CommandExt, Error, Options};

/// The number of waits of a process.
const WAITS: u64 = 50;

/// The length of a wait for a message that does not come. With a spin of 20 ms such a wait spins all the time.
const WAIT: Duration = Duration::from_millis(3);

#[test]
fn child() {
    play(&[("waits", waits), ("chosen", chosen)]);
}

/// Binds the current thread to the `index`th CPU of the process. Returns `false` if there is none.
fn take_cpu(index: usize) -> bool {
    let allowed = sched_getaffinity(None).unwrap();
    let Some(cpu) = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).nth(index) else { return false };
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
    true
}

/// Returns how often the current thread has gone to sleep (voluntary context switches), and the microseconds of
/// processor time used.
fn usage() -> [u64; 2] {
    // SAFETY: all fields are numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes to `usage`, which lives until the call returns.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    let micros = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    [usage.ru_nvcsw, micros(usage.ru_utime) + micros(usage.ru_stime)].map(|count| u64::try_from(count).unwrap())
}

/// Waits for messages that do not come, after a message that gave the CPU of the sender. Then sends how often this
/// thread slept, and the processor time.
fn waits(_: &str) {
    let parent = parent();
    parent.recv_by(DEADLINE).unwrap();
    let before = usage();
    for _ in 0..WAITS {
        assert_eq!(parent.recv_by(WAIT).unwrap_err(), Error::TimedOut);
    }
    let after = usage();
    for (before, after) in before.into_iter().zip(after) {
        parent.send(&(after - before).to_le_bytes()).unwrap();
    }
}

/// Returns how often a process with `spin` as `STRAIT_SPIN` slept in [`WAITS`] waits, and the microseconds of processor
/// time used. `None` if the machine has only one CPU, where nothing spins.
fn cost(spin: &str) -> Option<[u64; 2]> {
    // The processes run on different CPUs, so that the waiting process may spin. The child inherits the CPU of the
    // current thread, and keeps the CPU.
    let all = sched_getaffinity(None).unwrap();
    let two = take_cpu(1);
    let mut command = command("waits", "");
    let (child, channel) = command.env("STRAIT_SPIN", spin).spawn_with_channel().unwrap();
    sched_setaffinity(None, &all).unwrap();
    take_cpu(0);
    channel.send(b"from here").unwrap();
    sched_setaffinity(None, &all).unwrap();
    let costs = [(); 2].map(|()| u64::from_le_bytes(channel.recv_by(DEADLINE).unwrap().bytes().try_into().unwrap()));
    finish(Actor(child));
    two.then_some(costs)
}

#[test]
fn a_wait_sleeps_at_once_or_spins_as_the_environment_says() {
    let tenth = WAITS * WAIT.as_micros() as u64 / 10;
    for value in ["0", "off"] {
        let Some([sleeps, micros]) = cost(value) else {
            println!("left out: one CPU");
            return;
        };
        assert!(sleeps >= WAITS, "with {value:?} a process slept {sleeps} times in {WAITS} waits");
        assert!(micros < tenth, "with {value:?} a process used {micros} µs in {WAITS} waits of {WAIT:?}");
    }
    // On a busy machine the process may have the processor for a part of the time only.
    let spins = || cost("20000").is_some_and(|[_, micros]| micros >= tenth);
    assert!((0..20).any(|_| spins()), "a process that may spin for 20 ms used less than {tenth} µs each time");
}

/// Checks how long the waits of this process spin by default: `micros`.
fn chosen(micros: &str) {
    let micros = Duration::from_micros(micros.parse().unwrap());
    assert_eq!(Options::default_spin(), micros);
    assert_eq!(Options::new(), Options::new().spin(micros));
}

#[test]
fn a_wrong_value_is_ignored() {
    for (value, micros) in [("7", "7"), ("7 us", "50"), ("", "50"), ("-7", "50"), ("30000", "20000")] {
        let mut command = command("chosen", micros);
        finish(Actor(command.env("STRAIT_SPIN", value).spawn().unwrap()));
    }
}
