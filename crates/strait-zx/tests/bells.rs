//! Events that several processes wait for: each signal wakes all of them, also if one of the processes sets the signal
//! or looks at the event meanwhile.

mod rig;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

/// Held by a test, since the tests count what this process watches.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the number of descriptors that epoll instances of a process watch; 0 if the kernel does not tell.
fn watched(process: &str) -> usize {
    let Ok(all) = std::fs::read_dir(format!("/proc/{process}/fdinfo")) else { return 0 };
    let infos = all.flatten().filter_map(|info| std::fs::read_to_string(info.path()).ok());
    infos.map(|info| info.lines().filter(|line| line.starts_with("tfd:")).count()).sum()
}

/// Waits until each process watches one descriptor more than before, usually because it waits for an event. If that
/// never shows, the test goes on, and proves less.
fn await_watchers(before: &[(String, usize)]) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) && !before.iter().all(|(process, count)| watched(process) > *count) {
        std::thread::yield_now();
    }
}

/// Ends a loop of another thread when it is dropped, also by a failing test.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn process(side: &Side) -> String {
    match side {
        Side::Here => "self".into(),
        Side::There { child, .. } => child.id().to_string(),
    }
}

/// Lets two processes wait for an event again and again, and calls `signal` while both wait.
fn wake_both(sides: [(&Side, zx_handle_t); 2], signal: impl Fn()) {
    for _ in 0..10 {
        let before = sides.map(|(side, _)| process(side)).map(|process| (process.clone(), watched(&process)));
        scope(|scope| {
            let waits = sides.map(|(side, handle)| {
                scope.spawn(move || side.wait(handle, ZX_USER_SIGNAL_0, SECONDS * 1_000_000_000))
            });
            await_watchers(&before);
            signal();
            for wait in waits {
                assert_eq!(wait.join().unwrap(), (ZX_OK, ZX_USER_SIGNAL_0));
            }
        });
        assert_eq!(sides[0].0.signal(sides[0].1, ZX_USER_SIGNAL_0, 0), ZX_OK);
    }
}

#[test]
fn a_signal_wakes_all_processes_that_wait() {
    let _alone = ALONE.lock();
    let (here, there, third) = (Side::here(), Side::there(), Side::there());
    let copy = |handle| duplicate(handle, ZX_RIGHT_SAME_RIGHTS).unwrap();
    // One of the waiting processes sets the signal.
    let ours = event();
    let theirs = there.adopt(copy(ours));
    wake_both([(&here, ours), (&there, theirs)], || {
        assert_eq!(zx_object_signal(ours, 0, ZX_USER_SIGNAL_0), ZX_OK);
    });
    // A third process sets the signal, while another thread looks at the event without waiting.
    let thirds = third.adopt(copy(ours));
    let is_over = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                signals(ours);
            }
        });
        let _over = Over(&is_over);
        wake_both([(&here, ours), (&there, theirs)], || {
            assert_eq!(third.signal(thirds, 0, ZX_USER_SIGNAL_0), ZX_OK);
        });
    });
    assert_eq!((close(ours), there.close(theirs), third.close(thirds)), (ZX_OK, ZX_OK, ZX_OK));
}

/// Shows that very many signals, of which nobody takes notice, leave room for the wake-up that matters.
#[test]
fn a_signal_of_the_other_end_wakes_all_processes_that_wait() {
    let _alone = ALONE.lock();
    let (here, there, third) = (Side::here(), Side::there(), Side::there());
    let (ours, other) = eventpair();
    let theirs = there.adopt(duplicate(ours, ZX_RIGHT_SAME_RIGHTS).unwrap());
    let other = third.adopt(other);
    wake_both([(&here, ours), (&there, theirs)], || {
        for _ in 0..200 {
            assert_eq!(third.signal_peer(other, 0, ZX_USER_SIGNAL_7), ZX_OK);
            assert_eq!(third.signal_peer(other, ZX_USER_SIGNAL_7, 0), ZX_OK);
        }
        assert_eq!(third.signal_peer(other, 0, ZX_USER_SIGNAL_0), ZX_OK);
    });
    assert_eq!((close(ours), there.close(theirs), third.close(other)), (ZX_OK, ZX_OK, ZX_OK));
}
