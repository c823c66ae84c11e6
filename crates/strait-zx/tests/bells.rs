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

/// Makes sends of a single byte by the calling thread fail, as if the kernel had no memory. That cannot be undone.
fn fail_to_ring() {
    let step = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let load = |offset: u32| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, offset);
    let equal = |value: u32, jf| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jf, value);
    let end = |with: u32| step(libc::BPF_RET | libc::BPF_K, 0, with);
    // The number of the system call, and the third argument: the number of bytes.
    let mut filter = [
        load(0),
        equal(libc::SYS_sendto as u32, 3),
        load(16 + 2 * 8),
        equal(1, 1),
        end(libc::SECCOMP_RET_ERRNO | libc::ENOBUFS as u32),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the pointers lead to local variables.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program), 0);
    }
}

/// Shows that another waiting thread of the process repeats a wake-up that failed.
#[test]
fn a_wake_up_that_fails_is_repeated() {
    let _alone = ALONE.lock();
    let there = Side::there();
    let (shared, (near, far), awaited) = (event(), eventpair(), event());
    let [shared_there, near_there] =
        [shared, near].map(|handle| there.adopt(duplicate(handle, ZX_RIGHT_SAME_RIGHTS).unwrap()));
    assert_eq!(close(near), ZX_OK);
    let signal = |handle, with: extern "C" fn(zx_handle_t, u32, u32) -> zx_status_t| {
        scope(|scope| {
            let before = [(process(&there), watched(&process(&there)))];
            let wakes = scope.spawn(|| {
                there.await_signal(if handle == shared { shared_there } else { near_there }, ZX_USER_SIGNAL_0)
            });
            await_watchers(&before);
            let signals = scope.spawn(move || {
                fail_to_ring();
                with(handle, 0, ZX_USER_SIGNAL_0)
            });
            assert_eq!(signals.join().unwrap(), ZX_OK);
            assert_eq!(wakes.join().unwrap(), ZX_USER_SIGNAL_0);
        });
    };
    scope(|scope| {
        // The thread waits for an event that no other process has.
        let waits = scope.spawn(|| wait(awaited, ZX_USER_SIGNAL_0, zx_deadline_after(2 * SECONDS * 1_000_000_000)).0);
        signal(shared, zx_object_signal);
        signal(far, zx_object_signal_peer);
        assert_eq!(zx_object_signal(awaited, 0, ZX_USER_SIGNAL_0), ZX_OK);
        assert_eq!(waits.join().unwrap(), ZX_OK);
    });
    for handle in [shared, far, awaited] {
        assert_eq!(close(handle), ZX_OK);
    }
    assert_eq!((there.close(shared_there), there.close(near_there)), (ZX_OK, ZX_OK));
}
