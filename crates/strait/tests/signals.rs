//! Tests of waits that a signal ends: under a guard each wait ends and nothing is lost; without a guard each wait goes
//! on.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt as _;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{
    Actor, DEADLINE, SOON, Watched, file_with, parent, parent_over_any, spawn, spawn_over_socket, spawn_with,
};
use strait::call::{CallEnd, CallError};
use strait::meet::Connector;
use strait::pipe::DataPipe;
use strait::signals::{Guard, guarded, guarded_if};
use strait::wait::{Dispatcher, Interest, Mode, WaitSet};
use strait::{Channel, CommandExt as _, Deadline, Error, Listener, Options, Outgoing, SendError, Wait};

#[test]
fn child() {
    common::play(&[
        ("silent", |_| silent()),
        ("absent", |_| std::thread::sleep(2 * DEADLINE)),
        ("echo", |_| common::echo(&parent())),
        ("terminal", |_| at_a_terminal()),
    ]);
}

/// Opens the side and sends one message, and then receives nothing.
fn silent() {
    let channel = parent_over_any(&Options::new());
    channel.send(b"here").unwrap();
    std::thread::sleep(2 * DEADLINE);
}

/// A signal with a handler without `SA_RESTART`.
const PLAIN: libc::c_int = libc::SIGUSR1;
/// A signal with a handler with `SA_RESTART`.
const RESTARTS: libc::c_int = libc::SIGUSR2;

/// The number of signals handled in this process.
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// Installs [`count`] as the handler of `signal`, with the given flags.
fn handle(signal: libc::c_int, flags: libc::c_int) {
    // SAFETY: all zeroes are a value of the structure; the handler only adds to an atomic number.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// A thread of this process to which a test sends signals.
struct Target(AtomicI32, Watched);

impl Target {
    fn new() -> Self {
        handle(PLAIN, 0);
        handle(RESTARTS, libc::SA_RESTART);
        Self(0.into(), Watched::new())
    }

    /// Makes the calling thread the target.
    fn enter(&self) {
        self.0.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
        self.1.enter();
    }

    fn send(&self, signal: libc::c_int) {
        let thread = self.0.load(Ordering::SeqCst);
        // SAFETY: the call touches no memory of this process.
        assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) }, 0);
    }
}

/// Asserts that a signal ends the wait of `wait` under a guard: right before the wait begins, soon after the beginning,
/// and after a long time. `wait` returns the error of its call.
fn ends(what: &str, wait: impl Fn() -> Error + Sync) {
    for signal in [PLAIN, RESTARTS] {
        let (target, handled) = (Target::new(), AtomicU64::new(0));
        let signal_right_before = || {
            target.enter();
            handled.store(HANDLED.load(Ordering::SeqCst), Ordering::SeqCst);
            target.send(signal);
            true
        };
        let error = guarded_if(Instant::now(), signal_right_before, &wait);
        assert_eq!(error, Some(Error::Signalled), "{what}: signal {signal} right before the wait");
        assert!(HANDLED.load(Ordering::SeqCst) > handled.load(Ordering::SeqCst), "{what}: signal {signal} was handled");
        for after in [0, 150].map(Duration::from_millis) {
            // A signal between two sleeps of a wait ends neither sleep. Such a signal is too rare to come three times
            // in a row.
            let ended = (0..3).any(|_| ends_at_once(what, signal, after, &wait));
            assert!(ended, "{what}: signal {signal} does not end the wait after {after:?}");
        }
    }
}

/// Sends signals to a thread that waits under a guard, until the wait has ended. Returns whether the first signal
/// ended the wait.
fn ends_at_once(what: &str, signal: libc::c_int, after: Duration, wait: &(impl Fn() -> Error + Sync)) -> bool {
    let (target, ended) = (Target::new(), mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            target.enter();
            ended.0.send(guarded(wait)).unwrap();
        });
        target.1.wait_until_blocked();
        // A thread changes from one kind of sleep to the next over time; the signal must end each kind.
        std::thread::sleep(after);
        let mut signals = 0;
        loop {
            target.send(signal);
            signals += 1;
            if let Ok(error) = ended.1.recv_timeout(Duration::from_secs(2)) {
                assert_eq!(error, Error::Signalled, "{what}, signal {signal} after {after:?}");
                return signals == 1;
            }
            assert!(signals < 15, "{what}: signal {signal} does not end the wait");
        }
    })
}

fn failed<T: std::fmt::Debug>(result: Result<T, Error>) -> Error {
    result.unwrap_err()
}

/// Sends until the call fails, and returns the error.
fn for_room(channel: &Channel) -> Error {
    loop {
        if let Err(failed) = channel.send(&[1; 1000]) {
            return failed.error;
        }
    }
}

fn for_room_in_place(channel: &Channel) -> Error {
    loop {
        match channel.reserve(100_000, Deadline::NEVER) {
            Ok(room) => room.commit().unwrap(),
            Err(error) => return error,
        }
    }
}

fn to_send_files(channel: &Channel) -> Error {
    let file = file_with(b"content");
    loop {
        if let Err(failed) = channel.send(Outgoing::new(b"").handle(file.try_clone().unwrap())) {
            assert_eq!(failed.handles.len(), 1);
            return failed.error;
        }
    }
}

fn to_send_ends(channel: &Channel) -> Error {
    loop {
        let (_near, far) = Channel::pair().unwrap();
        if let Err(failed) = channel.send(Outgoing::new(b"").handle(far)) {
            assert_eq!(failed.handles.len(), 1);
            return failed.error;
        }
    }
}

fn options(wait: Wait) -> Options {
    Options::new().wait(wait).ring(4096).ring_max(4096).queue_bytes(300_000).queue_handles(20)
}

#[test]
fn a_signal_ends_waits_on_a_channel_within_a_process() {
    for wait in [Wait::Block, Wait::Adaptive] {
        let (near, _far) = options(wait).pair().unwrap();
        ends("receiving", || failed(near.recv()));
        ends("receiving until a deadline", || failed(near.recv_by(DEADLINE)));
        ends("receiving in place", || failed(near.recv_in_place(Deadline::NEVER)));
        ends("sending", || for_room(&near));
        ends("reserving", || for_room_in_place(&near));
        ends("sending files", || to_send_files(&near));
    }
}

#[test]
fn a_signal_ends_waits_for_another_process() {
    for wait in [Wait::Block, Wait::Adaptive] {
        let (_actor, channel) = spawn_with("silent", "", &options(wait));
        channel.recv_by(DEADLINE).unwrap();
        ends("receiving", || failed(channel.recv()));
        // Now the waits begin at the socket.
        ends("receiving until a deadline", || failed(channel.recv_by(DEADLINE)));
        ends("sending", || for_room(&channel));
        ends("reserving", || for_room_in_place(&channel));
        ends("sending files", || to_send_files(&channel));
    }
}

#[test]
fn a_signal_ends_waits_for_a_socket_and_for_a_process_that_is_not_there() {
    let (_actor, channel) = spawn_over_socket("silent", "", &Options::new());
    channel.recv_by(DEADLINE).unwrap();
    ends("sending files through a narrow socket", || to_send_files(&channel));
    ends("sending ends through a narrow socket", || to_send_ends(&channel));
    let (_actor, channel) = spawn("absent");
    ends("receiving", || failed(channel.recv()));
    ends("sending a file", || to_send_files(&channel));
}

/// Shows that a signal ends the waits of threads that sleep because another thread uses the end or the socket.
#[test]
fn a_signal_ends_waits_for_other_threads() {
    let (_actor, first) = spawn("silent");
    first.recv_by(DEADLINE).unwrap();
    let (second, theirs) = Channel::pair().unwrap();
    first.send(Outgoing::new(b"").handle(theirs)).unwrap();
    let (first, second) = (&first, &second);
    let (watched, interrupter) = (Watched::new(), first.interrupter());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            watched.enter();
            first.recv()
        });
        watched.wait_until_blocked();
        ends("receiving from an end that another thread uses", || failed(first.recv()));
        ends("following another thread", || failed(second.recv()));
        interrupter.interrupt();
        assert_eq!(other.join().unwrap().unwrap_err(), Error::Interrupted);
    });
}

#[test]
fn a_signal_ends_waits_of_sets_and_dispatchers() {
    let (_actor, remote) = spawn("silent");
    remote.recv_by(DEADLINE).unwrap();
    let (local, _far) = Channel::pair().unwrap();
    for channels in [vec![&local], vec![&remote], vec![&local, &remote]] {
        for polled in [false, true] {
            let set = WaitSet::new().unwrap();
            for (key, channel) in (0..).zip(&channels) {
                set.add(channel, key, Interest::Readable, Mode::Level).unwrap();
            }
            if polled {
                let _ = set.as_raw_fd();
            }
            ends("a wait set", || failed(set.wait(&mut Vec::new(), Deadline::NEVER)));
            ends("a wait set until a deadline", || failed(set.wait(&mut Vec::new(), DEADLINE)));
            assert_eq!(set.wait(&mut Vec::new(), Deadline::NOW), Ok(0));
        }
    }
    for count in [1, 2] {
        ends("a dispatcher", || {
            let dispatcher = Dispatcher::new().unwrap();
            let ends: Vec<_> = (0..count).map(|_| Channel::pair().unwrap()).collect();
            let (kept, served): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
            for channel in served {
                dispatcher.serve(channel, 0, |_, _| unreachable!("the wait was no end")).unwrap();
            }
            let error = failed(dispatcher.dispatch(Deadline::NEVER));
            drop((dispatcher, kept));
            error
        });
    }
}

#[test]
fn a_signal_ends_waits_of_calls_and_leaves_a_pending_call_in_flight() {
    let (near, far) = Channel::pair().unwrap();
    let (client, server) = (CallEnd::over(near), CallEnd::over(far));
    ends("waiting for a request", || failed(server.next_request(Deadline::NEVER)));
    ends("waiting for a reply", || match client.call(b"question", Deadline::NEVER).unwrap_err() {
        CallError::OutcomeUnknown(error) => error,
        other => panic!("{other}"),
    });
    let pending = std::sync::Mutex::new(client.begin_call(b"question", Deadline::NEVER).unwrap());
    let watched = Watched::new();
    std::thread::scope(|scope| {
        // Another thread receives for both, so that the thread under test sleeps without receiving.
        scope.spawn(|| {
            watched.enter();
            assert_eq!(client.call(b"question", DEADLINE).unwrap().bytes(), b"answer");
        });
        watched.wait_until_blocked();
        ends("waiting for a reply that another thread receives", || {
            match pending.lock().unwrap().poll(Deadline::NEVER).unwrap_err() {
                CallError::OutcomeUnknown(error) => error,
                other => panic!("{other}"),
            }
        });
        // The cancelled requests were never taken.
        for _ in 0..2 {
            server.next_request(DEADLINE).unwrap().reply(b"answer", Deadline::NEVER).unwrap();
        }
    });
    assert_eq!(pending.into_inner().unwrap().poll(DEADLINE).unwrap().bytes(), b"answer");
}

/// Shows that a signal ends a wait for a request that has arrived and cannot be taken for lack of memory.
#[test]
fn a_signal_ends_a_wait_for_a_request_that_cannot_be_taken() {
    let kind = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let (x, y) = rustix::net::socketpair(kind.0, kind.1, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
    let client = CallEnd::over(Channel::over(x).unwrap());
    let server = CallEnd::over(Options::new().peer_memory(8 << 20).over(y).unwrap());
    let _pending = client.begin_call(&vec![7; 16 << 20], DEADLINE).unwrap();
    let error = server.next_request(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::LimitReached(_)), "{error:?}");
    ends("waiting for a request that cannot be taken", || failed(server.next_request(Deadline::NEVER)));
}

#[test]
fn a_signal_ends_waits_on_a_data_pipe() {
    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    let (producer, consumer) = (std::sync::Mutex::new(producer), std::sync::Mutex::new(consumer));
    ends("reading", || failed(consumer.lock().unwrap().read_some(&mut [0; 10], Deadline::NEVER)));
    ends("writing", || {
        loop {
            if let Err(error) = producer.lock().unwrap().write_some(&[1; 100], Deadline::NEVER) {
                return error;
            }
        }
    });
}

#[test]
fn a_signal_ends_waits_of_accept_and_connect() {
    let directory = std::env::temp_dir().join(format!("strait-signals-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let listener = Listener::builder().directory(&directory).bind("signals").unwrap();
    let connector = Connector::new().directory(&directory);
    ends("accepting", || listener.accept(Deadline::NEVER).unwrap_err().error);
    let watched = Watched::new();
    std::thread::scope(|scope| {
        let accepts = scope.spawn(|| {
            watched.enter();
            listener.accept(DEADLINE).unwrap()
        });
        watched.wait_until_blocked();
        ends("accepting beside another thread", || listener.accept(DEADLINE).unwrap_err().error);
        let client = connector.connect("signals", DEADLINE).unwrap();
        client.send(b"hello").unwrap();
        assert_eq!(accepts.join().unwrap().recv_by(DEADLINE).unwrap().bytes(), b"hello");
    });
    // Nobody accepts.
    ends("connecting", || failed(connector.connect("signals", DEADLINE).map_err(Error::from)));
    drop(listener);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Returns how often the current thread has slept so far.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// Shows that no wait begins if the check fails, that the signal mask is restored, and that a thread that holds its
/// signals sleeps without wake-ups of its own.
#[test]
fn a_thread_that_misses_no_signal_sleeps_without_a_break() {
    let (actor, channel) = spawn("silent");
    channel.recv_by(DEADLINE).unwrap();
    let mask = || {
        std::fs::read_to_string("/proc/thread-self/status")
            .unwrap()
            .lines()
            .find(|l| l.starts_with("SigBlk"))
            .map(str::to_owned)
    };
    let before = mask();
    assert_eq!(guarded_if(Instant::now(), || false, || channel.recv().map(drop)), None);
    let wait = || guarded_if(Instant::now(), || true, || channel.recv_by(Duration::from_millis(1500))).unwrap();
    assert_eq!(wait().unwrap_err(), Error::TimedOut);
    let slept = sleeps();
    assert_eq!(wait().unwrap_err(), Error::TimedOut);
    assert!(sleeps() - slept <= 8, "slept {} times", sleeps() - slept);
    drop(actor);
    assert_eq!(wait().unwrap_err(), Error::PeerClosed);
    assert_eq!(mask(), before);
}

/// Shows that a thread without a guard continues to wait, for any number of handled signals.
#[test]
fn without_a_guard_waits_go_on() {
    let (_actor, channel) = spawn("echo");
    let (target, ended) = (Target::new(), mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            target.enter();
            drop(Guard::new());
            ended.0.send(channel.recv_by(DEADLINE)).unwrap();
        });
        target.1.wait_until_blocked();
        for _ in 0..20 {
            for signal in [PLAIN, RESTARTS] {
                let before = HANDLED.load(Ordering::SeqCst);
                target.send(signal);
                common::wait_until("the signal was handled", || HANDLED.load(Ordering::SeqCst) > before);
            }
        }
        assert!(ended.1.try_recv().is_err());
        channel.send(b"now").unwrap();
        assert_eq!(ended.1.recv_timeout(SOON).unwrap().unwrap().bytes(), b"now");
    });
}

/// Repeats `call` as long as it fails with [`Error::Signalled`]; counts the failures.
fn again<T, E: Into<Error>>(signalled: &AtomicU64, mut call: impl FnMut() -> Result<T, E>) -> T {
    loop {
        match call().map_err(Into::into) {
            Ok(done) => return done,
            Err(Error::Signalled) => signalled.fetch_add(1, Ordering::SeqCst),
            Err(error) => panic!("{error}"),
        };
    }
}

/// Shows that signals at any time lose no message and repeat none: neither where a thread receives nor where it sends.
#[test]
fn nothing_is_lost_and_nothing_comes_twice() {
    const MESSAGES: u64 = 20_000;
    let (_actor, channel) = spawn_with("echo", "", &options(Wait::Block));
    let (sender, receiver) = (Target::new(), Target::new());
    let signalled = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let sends = scope.spawn(|| {
            sender.enter();
            let _guard = Guard::new();
            for number in 0..MESSAGES {
                let mut bytes = number.to_le_bytes().to_vec();
                // Now and then a message that does not fit into the ring.
                bytes.resize(if number % 100 == 0 { 50_000 } else { 8 }, 1);
                again(&signalled, || channel.send(&bytes[..]).map_err(|SendError { error, .. }| error));
            }
        });
        let receives = scope.spawn(|| {
            receiver.enter();
            let _guard = Guard::new();
            for number in 0..MESSAGES {
                let message = again(&signalled, || channel.recv_by(DEADLINE));
                assert_eq!(message.bytes()[..8], number.to_le_bytes());
            }
        });
        for target in [&sender, &receiver] {
            common::wait_until("the thread began", || target.0.load(Ordering::SeqCst) != 0);
        }
        // A signal to a thread that has ended is refused, so the threads are joined only afterwards.
        while !(sends.is_finished() && receives.is_finished()) {
            for (target, thread) in [(&sender, &sends), (&receiver, &receives)] {
                if !thread.is_finished() {
                    let thread = target.0.load(Ordering::SeqCst);
                    // SAFETY: the call touches no memory of this process.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, PLAIN) };
                }
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        sends.join().unwrap();
        receives.join().unwrap();
    });
    assert!(signalled.load(Ordering::SeqCst) > 0, "no signal came during a wait");
}

/// Waits for a message under a guard, in a process with a terminal; tells the parent how the wait ended.
fn at_a_terminal() {
    let parent = parent();
    handle(libc::SIGINT, libc::SA_RESTART);
    // The parent has blocked SIGINT for all threads, so that the test's other threads do not get it.
    // SAFETY: the set is filled before it is used; the mask is that of this thread.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
    parent.send(b"ready").unwrap();
    let error = guarded(|| parent.recv_by(DEADLINE)).unwrap_err();
    parent.send(format!("{error:?}").as_bytes()).unwrap();
}

/// Shows that Ctrl-C at a terminal ends a wait: the terminal raises SIGINT for the character 3.
#[test]
fn ctrl_c_at_a_terminal_ends_a_wait() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let mut command = common::command("terminal", "");
    // SAFETY: the closure makes system calls only, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            // The first terminal that the leader of a session opens becomes the terminal of the session.
            if libc::setsid() < 0 || libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let (child, channel) = command.spawn_with_channel().unwrap();
    let _actor = Actor(child);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"ready");
    let begin = std::time::Instant::now();
    let told = loop {
        rustix::io::write(&terminal, &[3]).unwrap();
        match channel.recv_by(Duration::from_millis(500)) {
            Err(Error::TimedOut) => assert!(begin.elapsed() < SOON, "Ctrl-C does not end the wait"),
            told => break told.unwrap(),
        }
    };
    assert_eq!(told.bytes(), b"Signalled");
}
