//! Tests of the child of a `fork` without `exec`. The child cannot use the parent's objects, and every object made by
//! the child works.
//!
//! Each test has a process of its own, forked while threads use the library.

mod common;

use std::future::Future as _;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{DEADLINE, alone, command, pattern};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::call::{CallEnd, CallError};
use strait::meet::Connector;
use strait::pipe::DataPipe;
use strait::quota::{Limits, Resource};
use strait::region::{Region, RegionWriter};
use strait::task::{AsyncCallEnd, AsyncChannel, Reactor};
use strait::wait::{Event, Fd, Interest, Mode, WaitSet};
use strait::{Channel, CommandExt, Deadline, Error, Listener, Message, Outgoing};

#[test]
fn child() {
    common::play(&[
        ("echo", |_| common::echo(&common::parent())),
        ("makes all anew", makes_all_anew),
        ("leaves its parent alone", leaves_its_parent_alone),
        ("talks to its parent", talks_to_its_parent),
        ("listens for its parent", listens_for_its_parent),
        ("has children of its own", has_children_of_its_own),
        ("is forked at any time", is_forked_at_any_time),
        ("is forked while tasks wait", is_forked_while_tasks_wait),
        ("keeps limits", keeps_limits),
        ("leaves nothing to programs", leaves_nothing_to_programs),
        ("seals what its child does not have", seals_what_its_child_does_not_have),
        ("has a child that copies memory", has_a_child_that_copies_memory),
        ("has a child that polls its calls", has_a_child_that_polls_its_calls),
    ]);
}

/// The number of seconds after which a hanging child is killed.
const HANGS: u32 = 50;

/// The process id of a child that a fork started.
struct Child(i32);

impl Child {
    fn fork(play: impl FnOnce()) -> Self {
        // SAFETY: the child uses only the subject of the test, and never returns into the test harness.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: both are plain system calls; `_exit` does not return.
            unsafe {
                libc::alarm(HANGS);
                let failed = catch_unwind(AssertUnwindSafe(play)).is_err();
                libc::_exit(failed.into());
            }
        }
        Self(pid)
    }

    /// Waits for the exit of the child, and asserts success.
    fn finish(self) {
        let mut status = 0;
        // SAFETY: `status` is valid for writes.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with {status:#x}");
    }
}

/// Returns whether `act` panics, and prints nothing about the panic: the output of a test that passes does not look
/// like that of a failure. Replaces the panic hook of the whole process, so only a forked child calls this.
fn panics_quietly(act: impl FnOnce()) -> bool {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let panicked = catch_unwind(AssertUnwindSafe(act)).is_err();
    std::panic::set_hook(hook);
    panicked
}

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// Returns a channel over a link from this process to itself.
fn linked() -> (Channel, Channel) {
    let (one, other) = sockets();
    let (a, b) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
    pass(&a, &b);
    pass(&b, &a);
    (a, b)
}

/// Sends small and large messages, and a message with a descriptor and an end, and asserts that all arrive.
fn pass(from: &Channel, to: &Channel) {
    for len in [5, 3000, 200_000] {
        let bytes = pattern(len as u64, len);
        from.send_by(&bytes, DEADLINE).unwrap();
        assert_eq!(to.recv_by(DEADLINE).unwrap().bytes(), bytes);
    }
    let (ours, theirs) = Channel::pair().unwrap();
    let file = common::file_with(b"content");
    from.send_by(Outgoing::new(b"both").handle(file).handle(theirs), DEADLINE).unwrap();
    let mut handles = to.recv_by(DEADLINE).unwrap().take_handles().unwrap();
    let end = handles.pop().unwrap().into_channel().unwrap();
    assert_eq!(common::content_of(handles.pop().unwrap()), b"content");
    ours.send_by(b"through it", DEADLINE).unwrap();
    assert_eq!(end.recv_by(DEADLINE).unwrap().bytes(), b"through it");
}

/// Makes a name directory for this process alone, and returns the path.
fn directory() -> PathBuf {
    let path = std::env::temp_dir().join(format!("strait-forked-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    path
}

/// Makes and uses one object of each kind.
fn use_everything() {
    let (a, b) = Channel::pair().unwrap();
    pass(&a, &b);
    let (c, d) = linked();
    // A wait set sleeps, and is woken by each of its members.
    let set = WaitSet::new().unwrap();
    set.add(&b, 1, Interest::Readable, Mode::Level).unwrap();
    set.add(&d, 2, Interest::Readable, Mode::Level).unwrap();
    for (from, to, key) in [(&a, &b, 1), (&c, &d, 2)] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                from.send(b"wake").unwrap();
            });
            let mut events = Vec::new();
            assert_eq!(set.wait(&mut events, DEADLINE), Ok(1));
            assert_eq!(events[0].key(), key);
        });
        to.recv_by(DEADLINE).unwrap();
    }
    // A set whose descriptor was asked for has a timer.
    assert!(rustix::io::fcntl_getfd(&set).is_ok());
    // A thread begun in this process blocks in a call.
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(d.recv_by(DEADLINE).unwrap().bytes(), b"asleep"));
        std::thread::sleep(Duration::from_millis(50));
        c.send(b"asleep").unwrap();
    });
    let region = Region::sealed(b"region").unwrap();
    c.send(Outgoing::new(b"").handle(region)).unwrap();
    let region = d.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_region().unwrap();
    assert_eq!(region.view(..).unwrap()[..], *b"region");
    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    assert_eq!(producer.write_some(b"stream", Deadline::NOW), Ok(6));
    let mut read = [0; 6];
    assert_eq!(consumer.read_some(&mut read, Deadline::NOW), Ok(6));
    let interrupter = d.interrupter();
    interrupter.interrupt();
    assert_eq!(d.recv_by(DEADLINE).unwrap_err(), Error::Interrupted);
    let (child, channel) = command("echo", "").spawn_with_channel().unwrap();
    let mut actor = common::Actor(child);
    channel.send(b"back").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"back");
    actor.kill();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    let directory = directory();
    let listener = Listener::builder().directory(&directory).bind("service").unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Connector::new().directory(&directory).connect("service", DEADLINE).unwrap());
        let server = listener.accept(DEADLINE).unwrap();
        pass(&client.join().unwrap(), &server);
    });
    drop(listener);
    std::fs::remove_dir(&directory).unwrap();
}

/// Returns whether a program started now by another thread inherits `fd` as an open descriptor.
fn is_inherited(fd: i32) -> bool {
    // SAFETY: the call only asks for the flags of a number, whether or not that is an open descriptor.
    unsafe { libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC == 0 }
}

/// Shows that a program started by this process inherits no descriptor of the library, even if open only for a moment.
#[test]
fn no_descriptor_is_inherited_by_a_program() {
    alone("leaves nothing to programs", "");
}

fn leaves_nothing_to_programs(_: &str) {
    let others: Vec<_> = (0..200).filter(|fd| !is_inherited(*fd)).collect();
    std::thread::scope(|scope| {
        let works = scope.spawn(|| (0..5).for_each(|_| use_everything()));
        while !works.is_finished() {
            for &fd in &others {
                assert!(!is_inherited(fd), "{fd}: {:?}", std::fs::read_link(format!("/proc/self/fd/{fd}")));
            }
        }
    });
}

fn makes_all_anew(_: &str) {
    let (a, b) = linked();
    let set = WaitSet::new().unwrap();
    set.add(&a, 1, Interest::Readable, Mode::Level).unwrap();
    use_everything();
    Child::fork(use_everything).finish();
    // The first call of the child makes a region or a wait set.
    Child::fork(|| drop(Region::new(4096).unwrap())).finish();
    Child::fork(|| drop(WaitSet::new().unwrap())).finish();
    pass(&a, &b);
    drop(set);
    use_everything();
}

/// Asserts that each call on the parent's objects fails with `Forked` in a child. `own` is a channel made by the child,
/// if any.
fn assert_is_the_parents(channel: &Channel, set: &WaitSet, own: Option<&Channel>) {
    let forked = Some(Error::Forked);
    assert_eq!(channel.try_send(b"x").err().map(Error::from), forked);
    assert_eq!(channel.try_recv().err(), forked);
    assert_eq!(channel.recv_by(DEADLINE).err(), forked);
    assert_eq!(channel.recv_in_place(Deadline::NOW).map(drop).err(), forked);
    assert_eq!(channel.reserve(10, Deadline::NOW).map(drop).err(), forked);
    assert_eq!(channel.try_recv_bytes(&mut [0; 10]).err(), forked);
    assert_eq!(channel.status().err(), forked);
    assert_eq!(channel.rehome(Deadline::NOW).err(), forked);
    assert_eq!(channel.reserve_sealed(10).map(drop).err(), forked);
    assert_eq!(channel.forward(&mut Message::from_parts(vec![1], Vec::new()), Deadline::NOW).err(), forked);
    assert_eq!(channel.draft().append(b"x").err(), forked);
    assert_eq!(channel.draft().write_at(b"", 0).err(), forked);
    assert_eq!(channel.peer().err(), forked);
    assert_eq!(channel.peer_usage().map(drop).err(), forked);
    assert_eq!(set.modify(channel, 7, Interest::Readable, Mode::Level).err(), forked);
    assert_eq!(set.remove(channel).err(), forked);
    assert_eq!(set.wait(&mut Vec::new(), Deadline::NOW).err(), forked);
    assert_eq!(set.add(channel, 7, Interest::Readable, Mode::Level).err(), forked);
    if let Some(own) = own {
        assert_eq!(set.add(own, 7, Interest::Readable, Mode::Level).err(), forked);
        assert_eq!(WaitSet::new().unwrap().add(channel, 7, Interest::Readable, Mode::Level).err(), forked);
    }
}

fn leaves_its_parent_alone(_: &str) {
    let (a, b) = linked();
    let (c, d) = Channel::pair().unwrap();
    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&b, 1, Interest::Readable, Mode::Level).unwrap();
    let directory = directory();
    let listener = Listener::builder().directory(&directory).bind("service").unwrap();
    set.add(&listener, 2, Interest::Readable, Mode::Level).unwrap();
    let (fd, mut writes) = UnixStream::pair().unwrap();
    let fd = Fd::new(fd).unwrap();
    set.add(&fd, 3, Interest::Readable, Mode::Level).unwrap();
    let invitation = listener.invite(DEADLINE).unwrap();
    a.send(pattern(1, 100_000).as_slice()).unwrap();
    let large = b.recv_by(DEADLINE).unwrap();
    let (spare, theirs) = Channel::pair().unwrap();
    a.send(Outgoing::new(b"unread").handle(theirs)).unwrap();
    let everything = (
        Some((listener, fd)),
        Some(invitation),
        Some((producer, consumer)),
        Some(set),
        Some((a, b, c, d, large, spare)),
    );
    let mut kept = everything;
    for makes_own in [false, true] {
        // The child drops the copies of all objects.
        let taken = &mut kept;
        Child::fork(|| {
            let own = makes_own.then(|| Channel::pair().unwrap());
            let (a, _, c, ..) = taken.4.as_ref().unwrap();
            let set = taken.3.as_ref().unwrap();
            for channel in [a, c] {
                assert_is_the_parents(channel, set, own.as_ref().map(|own| &own.0));
            }
            let (producer, consumer) = taken.2.as_ref().unwrap();
            assert_eq!(producer.write_some(b"x", Deadline::NOW).err(), Some(Error::Forked));
            assert_eq!(consumer.read_some(&mut [0; 1], Deadline::NOW).err(), Some(Error::Forked));
            let (listener, fd) = taken.0.as_ref().unwrap();
            assert_eq!(listener.accept(Deadline::NOW).unwrap_err().error, Error::Forked);
            assert_eq!(set.remove(listener).err(), Some(Error::Forked));
            if makes_own {
                let own = WaitSet::new().unwrap();
                assert_eq!(own.add(listener, 2, Interest::Readable, Mode::Level).err(), Some(Error::Forked));
                assert_eq!(own.add(fd, 3, Interest::Readable, Mode::Level).err(), Some(Error::Forked));
            }
            let (a, b, c, d, large, spare) = taken.4.take().unwrap();
            if let Some((own, other)) = &own {
                // The child cannot send an end of the parent.
                let failed = own.send(Outgoing::new(b"yours?").handle(spare)).unwrap_err();
                assert_eq!(failed.error, Error::Forked);
                drop(failed);
                own.send(b"mine").unwrap();
                assert_eq!(other.recv_by(DEADLINE).unwrap().bytes(), b"mine");
            } else {
                drop(spare);
            }
            drop((a, b, c, d, large));
            drop((taken.0.take(), taken.1.take(), taken.2.take(), taken.3.take()));
            if makes_own {
                use_everything();
            }
        })
        .finish();
        // The parent is not affected.
        let (a, b, c, d, ..) = kept.4.as_ref().unwrap();
        pass(c, d);
        b.send(b"the other way").unwrap();
        assert_eq!(a.recv_by(DEADLINE).unwrap().bytes(), b"the other way");
        let set = kept.3.as_ref().unwrap();
        assert_eq!(set.wait(&mut Vec::new(), DEADLINE), Ok(1));
        let (producer, consumer) = kept.2.as_ref().unwrap();
        assert_eq!(producer.write_some(b"stream", Deadline::NOW), Ok(6));
        assert_eq!(consumer.read_some(&mut [0; 6], Deadline::NOW), Ok(6));
        assert!(directory.join("service").exists());
    }
    // The children have not taken the descriptor out of the parent's set.
    writes.write_all(b"x").unwrap();
    let (set, mut events) = (kept.3.as_ref().unwrap(), Vec::new());
    while !events.iter().any(|event: &Event| event.key() == 3) {
        assert!(set.wait(&mut events, DEADLINE).unwrap() > 0);
    }
    let (_, b, _, _, large, spare) = kept.4.as_ref().unwrap();
    assert_eq!(large.bytes(), pattern(1, 100_000));
    let mut unread = b.recv_by(DEADLINE).unwrap();
    assert_eq!(unread.bytes(), b"unread");
    let theirs = unread.take_handles().unwrap().remove(0).into_channel().unwrap();
    pass(spare, &theirs);
    drop(kept);
    std::fs::remove_dir(&directory).unwrap();
}

fn talks_to_its_parent(_: &str) {
    let (before, _kept) = linked();
    let (ours, theirs) = sockets();
    let child = Child::fork(move || {
        drop(before);
        let parent = Channel::over(theirs).unwrap();
        common::echo(&parent);
    });
    let channel = Channel::over(ours).unwrap();
    channel.send(pattern(1, 300_000).as_slice()).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), pattern(1, 300_000));
    // An end goes to the child and back.
    let (near, far) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"end").handle(far)).unwrap();
    let far = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0);
    near.send(b"all the way").unwrap();
    assert_eq!(far.into_channel().unwrap().recv_by(DEADLINE).unwrap().bytes(), b"all the way");
    assert_eq!(channel.peer().unwrap().unwrap().pid, Some(child.0 as u32));
    drop(channel);
    child.finish();
}

fn listens_for_its_parent(_: &str) {
    let (_before, _kept) = linked();
    let directory = directory();
    let path = directory.clone();
    let child = Child::fork(move || {
        let listener = Listener::builder().directory(&path).bind("child").unwrap();
        common::echo(&listener.accept(DEADLINE).unwrap());
    });
    let connector = Connector::new().directory(&directory);
    let mut channel = None;
    common::wait_until("the child listens", || {
        channel = connector.connect("child", DEADLINE).ok();
        channel.is_some()
    });
    let channel = channel.unwrap();
    channel.send(b"parent").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"parent");
    drop(channel);
    child.finish();
    std::fs::remove_dir(&directory).unwrap();
}

fn has_children_of_its_own(_: &str) {
    // Removing an end from the child's copy leaves the end in the parent's.
    let mut first = vec![linked()];
    Child::fork(|| {
        let mut second = vec![linked()];
        Child::fork(|| {
            for (a, b) in first.iter().chain(&second) {
                assert_eq!(a.try_recv().err(), Some(Error::Forked));
                assert_eq!(b.try_send(b"x").err().map(Error::from), Some(Error::Forked));
            }
            let mut third = vec![linked()];
            Child::fork(|| {
                for (a, _) in first.iter().chain(&second).chain(&third) {
                    assert_eq!(a.try_send(b"x").err().map(Error::from), Some(Error::Forked));
                }
                use_everything();
                [&mut first, &mut second, &mut third].into_iter().for_each(Vec::clear);
                use_everything();
            })
            .finish();
            pass(&third[0].0, &third[0].1);
        })
        .finish();
        pass(&second[0].0, &second[0].1);
    })
    .finish();
    pass(&first[0].0, &first[0].1);
}

/// Forks the process while its threads send, make, connect and close, so that any lock of the library may be held at
/// the moment of the fork.
fn is_forked_at_any_time(_: &str) {
    let over = AtomicBool::new(false);
    let directory = directory();
    let (a, b) = linked();
    let busy = |work: &(dyn Fn() + Sync)| {
        while !over.load(Ordering::Relaxed) {
            work();
        }
    };
    let send = || {
        a.send(pattern(1, 100_000).as_slice()).unwrap();
        a.send(Outgoing::new(b"").handle(common::file_with(b"file"))).unwrap();
        b.recv_by(DEADLINE).unwrap();
        b.recv_by(DEADLINE).unwrap();
    };
    let make = || drop(linked());
    let within = || {
        let (a, b) = Channel::pair().unwrap();
        pass(&a, &b);
    };
    let connect = || {
        let listener = Listener::builder().directory(&directory).bind("busy").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(Connector::new().directory(&directory).connect("busy", DEADLINE)));
            drop(listener.accept(DEADLINE));
        });
    };
    let settle = || {
        strait::quota::set_limits(strait::quota::limits());
        strait::quota::on_bad_peer(|_| {});
    };
    std::thread::scope(|scope| {
        let works: [&(dyn Fn() + Sync); 5] = [&send, &make, &within, &connect, &settle];
        for work in works {
            scope.spawn(|| busy(work));
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for round in 0..60 {
                Child::fork(|| {
                    let (c, d) = if round % 2 == 0 { linked() } else { Channel::pair().unwrap() };
                    pass(&c, &d);
                    assert_eq!(a.try_recv().err(), Some(Error::Forked));
                    let set = WaitSet::new().unwrap();
                    set.add(&d, 1, Interest::Readable, Mode::Level).unwrap();
                    c.send(b"m").unwrap();
                    assert_eq!(set.wait(&mut Vec::new(), DEADLINE), Ok(1));
                    // The name "busy" may be in use.
                    let name = format!("child-{}", std::process::id());
                    drop(Listener::builder().directory(&directory).bind(&name).unwrap());
                })
                .finish();
            }
        }));
        over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    std::fs::remove_dir(&directory).unwrap();
}

/// Forks the process while threads drive a reactor and change its members, so that any lock of the reactor and of its
/// members may be held at the moment of the fork. Each child drops the objects of tasks: futures, members, a driver.
fn is_forked_while_tasks_wait(_: &str) {
    let over = AtomicBool::new(false);
    let reactor = Reactor::new().unwrap();
    let busy = |work: &(dyn Fn() + Sync)| {
        while !over.load(Ordering::Relaxed) {
            work();
        }
    };
    let calls = || {
        let (a, b) = Channel::pair().unwrap();
        (CallEnd::over(a), AsyncCallEnd::new(CallEnd::over(b), &reactor).unwrap())
    };
    let (client, served) = calls();
    let drive = || assert!(reactor.turn().is_ok());
    let churn = || {
        let (a, b) = Channel::pair().unwrap();
        let b = AsyncChannel::new(b, &reactor).unwrap();
        assert!(b.poll_recv(&mut Context::from_waker(Waker::noop())).is_pending());
        drop((a, b));
    };
    let ask = || {
        client.begin_call(b"a request", DEADLINE).unwrap().cancel();
        let _ = served.poll_next_request(&mut Context::from_waker(Waker::noop()));
    };
    std::thread::scope(|scope| {
        let works: [&(dyn Fn() + Sync); 4] = [&drive, &churn, &churn, &ask];
        for work in works {
            scope.spawn(|| busy(work));
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..100 {
                let (_far, near) = Channel::pair().unwrap();
                let channel = AsyncChannel::new(near, &reactor).unwrap();
                let (_client, end) = calls();
                let driver = Reactor::new().unwrap().driver();
                let mut context = Context::from_waker(Waker::noop());
                let mut receives = Box::pin(async move { channel.recv().await });
                let mut serves = Box::pin(served.next_request());
                assert!(receives.as_mut().poll(&mut context).is_pending());
                let _ = serves.as_mut().poll(&mut context);
                Child::fork(|| {
                    drop(receives);
                    drop(serves);
                    // The reactor of the other threads, and another one.
                    drop(reactor.driver());
                    drop(driver);
                    assert_eq!(reactor.rest(), Err(Error::Forked));
                    // A thread of the parent may handle an event of these ends: the child then panics, and does not
                    // wait.
                    panics_quietly(|| drop(end.into_inner()));
                    // SAFETY: the child ends without using `served` again, and has no thread that does.
                    let served = unsafe { std::ptr::read(&served) };
                    panics_quietly(|| drop(served.into_inner()));
                })
                .finish();
            }
        }));
        over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Shows that limits set by the program hold in children, and that the callback for bad peers is not called there.
fn keeps_limits(_: &str) {
    let _linked = linked();
    let limits = Limits::new().peer(Resource::Descriptors, 77);
    strait::quota::set_limits(limits);
    strait::quota::on_bad_peer(|_| panic!("it is the parent's"));
    Child::fork(|| {
        assert_eq!(strait::quota::limits(), limits);
        let (a, b) = linked();
        b.send(b"makes no sense").unwrap();
        a.recv_by(DEADLINE).unwrap().report_bad("nonsense");
        strait::quota::set_limits(Limits::new());
        assert_eq!(strait::quota::limits(), Limits::new());
    })
    .finish();
    assert_eq!(strait::quota::limits(), limits);
}

/// Shows that every object made by a child works.
#[test]
fn a_child_makes_everything_anew() {
    alone("makes all anew", "");
}

/// Shows that a child that uses and drops copies of the parent's objects gets errors, and that the parent's objects
/// still work.
#[test]
fn a_child_that_has_and_drops_what_is_its_parents_disturbs_nothing() {
    alone("leaves its parent alone", "");
}

#[test]
fn a_child_talks_to_its_parent_over_sockets_that_were_there_before() {
    alone("talks to its parent", "");
}

#[test]
fn a_child_listens_and_its_parent_connects() {
    alone("listens for its parent", "");
}

/// Shows that a child of a child can use the objects of neither ancestor.
#[test]
fn children_of_children_have_nothing_of_any_of_them() {
    alone("has children of its own", "");
}

#[test]
fn a_process_can_be_forked_whatever_its_threads_do() {
    alone("is forked at any time", "");
}

#[test]
fn a_child_drops_the_objects_of_tasks_whatever_the_threads_of_its_parent_do() {
    alone("is forked while tasks wait", "");
}

#[test]
fn limits_hold_in_children_and_callbacks_do_not() {
    alone("keeps limits", "");
}

/// Has a child that polls the call, answers the request and waits for the next request of its parent as a task does.
fn has_a_child_that_polls_its_calls(_: &str) {
    let (a, b) = linked();
    let (client, server) = (CallEnd::over(a), CallEnd::over(b));
    let mut call = client.begin_call(b"request", DEADLINE).unwrap();
    let (message, mut replier) = server.next_request(DEADLINE).unwrap().into_parts();
    let reactor = Reactor::new().unwrap();
    let server = AsyncCallEnd::new(server, &reactor).unwrap();
    Child::fork(|| {
        let mut context = Context::from_waker(Waker::noop());
        let polled = Pin::new(&mut call).poll(&mut context);
        assert!(matches!(polled, Poll::Ready(Err(CallError::OutcomeUnknown(Error::Forked)))), "{polled:?}");
        assert_eq!(replier.reply(b"mine", Deadline::NOW).unwrap_err().error, Error::Forked);
        let polled = std::pin::pin!(server.next_request()).poll(&mut context);
        assert!(matches!(polled, Poll::Ready(Err(Error::Forked))), "{polled:?}");
        // The lock of these numbers may have been taken at the fork.
        assert_eq!((client.under_way(), client.counters().calls), (0, 0));
    })
    .finish();
    assert_eq!((client.under_way(), client.counters().calls), (1, 1));
    replier.reply(message.bytes(), DEADLINE).unwrap();
    assert_eq!(call.wait(DEADLINE).unwrap().bytes(), b"request");
}

#[test]
fn a_child_learns_at_once_that_it_cannot_wait_for_its_parents_calls() {
    alone("has a child that polls its calls", "");
}

/// Seals memory in place while a child lives that was forked before. The child has neither the memory nor a use of it.
fn seals_what_its_child_does_not_have(_: &str) {
    let mut writer = RegionWriter::new(8192).unwrap();
    writer.fill(7);
    let (stay, left) = std::io::pipe().unwrap();
    let mut inherited = RegionWriter::new(8192).unwrap();
    let left_in_child = left.as_raw_fd();
    let child = Child::fork(move || {
        // SAFETY: the child does not use its copy of `left` otherwise.
        unsafe { libc::close(left_in_child) };
        assert!(panics_quietly(|| inherited.fill(8)));
        let (error, inherited) = inherited.seal().unwrap_err();
        assert_eq!(error.error, Error::Forked);
        drop(inherited);
        // The child lives until its parent has sealed the memory.
        std::io::copy(&mut { stay }, &mut std::io::sink()).unwrap();
    });
    let (region, mut copy) = writer.seal().map_err(|(error, _)| error).unwrap();
    copy[0] = 9;
    assert_eq!(region.view(..2).unwrap()[..], [7, 7]);
    // A child has the private copy, once the memory is sealed.
    Child::fork(|| assert_eq!(copy[..2], [9, 7])).finish();
    drop(left);
    child.finish();
}

/// Forks a child that makes a copy of memory to be sealed in place, at the address of that memory.
fn has_a_child_that_copies_memory(_: &str) {
    let mut writer = RegionWriter::new(300_000).unwrap();
    writer[1] = 7;
    writer[200_000..].fill(8);
    // Nothing is copied in the process that has the memory.
    let (error, mut writer) = writer.copy_in_child().unwrap_err();
    let exists = rustix::io::Errno::EXIST.raw_os_error();
    assert_eq!(error.error, Error::System { call: "mmap(MAP_FIXED_NOREPLACE)", code: exists });
    let address = writer.as_ptr().addr();
    writer[0] = 6;
    Child::fork(|| {
        // The parent keeps its own writer; this is the child's.
        // SAFETY: the child never uses the original, and ends without its drop.
        let writer = unsafe { std::ptr::read(&raw const writer) };
        let mut copy = writer.copy_in_child().map_err(|(error, _)| error).unwrap();
        assert_eq!((copy.as_ptr().addr(), copy.len()), (address, 300_000));
        assert_eq!((&copy[..3], copy[199_999], copy[200_000], copy[299_999]), (&[6, 7, 0][..], 0, 8, 8));
        copy[2] = 9;
    })
    .finish();
    assert_eq!(writer[..3], [6, 7, 0]);
    let (region, _copy) = writer.seal().map_err(|(error, _)| error).unwrap();
    assert_eq!(region.view(..3).unwrap()[..], [6, 7, 0]);
}

#[test]
fn a_child_can_copy_memory_to_be_sealed_in_place() {
    alone("has a child that copies memory", "");
}

#[test]
fn memory_to_be_sealed_in_place_is_not_its_childrens() {
    alone("seals what its child does not have", "");
}
