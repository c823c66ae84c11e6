//! Tests with fewer permissions than usual. The library names each call that the kernel refuses, or works without the
//! call; nothing hangs, and permitted operations still work. `faults/refuse.rs` also refuses single calls, for memfds
//! and futexes.
//!
//! Namespaces and memory groups need permissions that some machines do not grant. Without the permissions, a test
//! prints a note, and passes.

mod common;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Actor, DEADLINE, alone, command, finish, pattern, refuse, spawn};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait::region::Region;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Error, Handle, Options, Outgoing};

#[test]
fn child() {
    common::play(&[
        ("echo", |_| common::echo(&common::parent())),
        ("denied", denied),
        ("denied regions", with_regions_denied),
        ("namespaces", in_namespaces),
        ("no memfds that run", without_memfds_that_run),
        ("few descriptors", with_few_descriptors),
        ("little memory", with_little_memory),
    ]);
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn file() -> Handle {
    std::fs::File::open("/dev/null").unwrap().into()
}

// Refused calls.

/// A name, and a use of a channel whose other end echoes.
type Use = (&'static str, fn(&Channel) -> Result<(), Error>);

const TIME: Duration = Duration::from_secs(20);

fn round_trip(channel: &Channel, message: Outgoing<'_>) -> Result<usize, Error> {
    channel.send_by(message, TIME)?;
    Ok(channel.recv_by(TIME)?.take_handles()?.len())
}

const USES: [Use; 8] = [
    ("a small message", |channel| round_trip(channel, Outgoing::new(b"small")).map(drop)),
    ("a large message", |channel| round_trip(channel, Outgoing::new(&pattern(1, 200_000))).map(drop)),
    ("a handle", |channel| round_trip(channel, Outgoing::new(b"m").handle(file())).map(|count| assert_eq!(count, 1))),
    ("an end", |channel| {
        let (ours, theirs) = Channel::pair()?;
        let theirs = {
            channel.send_by(Outgoing::new(b"m").handle(theirs), TIME)?;
            channel.recv_by(TIME)?.take_handles()?.remove(0).into_channel().expect("an end")
        };
        ours.send_by(b"through it", TIME)?;
        assert_eq!(theirs.recv_by(TIME)?.bytes(), b"through it");
        Ok(())
    }),
    ("a wait set", |channel| {
        let set = WaitSet::new()?;
        set.add(channel, 1, Interest::Readable, Mode::Level)?;
        channel.send_by(b"m", TIME)?;
        assert_eq!(set.wait(&mut Vec::new(), TIME)?, 1);
        channel.recv_by(TIME).map(drop)
    }),
    ("a new channel", |_| {
        let (one, other) = pair();
        let (one, other) = (Channel::over(one)?, Channel::over(other)?);
        one.send_by(b"m", TIME)?;
        other.recv_by(TIME).map(drop)
    }),
    ("its peer", |channel| channel.peer().map(|peer| assert!(peer.is_some()))),
    ("its peer's descriptor", |channel| channel.peer_pidfd().map(drop)),
];

/// A refused system call by name and number, and the names of the uses that may fail without it.
const REFUSED: [(&str, libc::c_long, &[&str]); 12] = [
    ("sendmsg", libc::SYS_sendmsg, &["a large message", "a handle", "an end", "a wait set", "a new channel"]),
    // A small message fails if the wait for it is so long that the thread also watches the socket.
    (
        "recvmsg",
        libc::SYS_recvmsg,
        &["a small message", "a large message", "a handle", "an end", "a wait set", "a new channel"],
    ),
    ("recvfrom", libc::SYS_recvfrom, &[]),
    ("pidfd_open", libc::SYS_pidfd_open, &["its peer's descriptor"]),
    ("getsockopt", libc::SYS_getsockopt, &["a new channel", "its peer's descriptor"]),
    ("setsockopt", libc::SYS_setsockopt, &["a new channel"]),
    ("eventfd2", libc::SYS_eventfd2, &["a wait set"]),
    ("epoll_create1", libc::SYS_epoll_create1, &["a wait set"]),
    ("epoll_ctl", libc::SYS_epoll_ctl, &["a wait set"]),
    ("getrandom", libc::SYS_getrandom, &["an end", "a new channel"]),
    ("fstatfs", libc::SYS_fstatfs, &[]),
    ("madvise", libc::SYS_madvise, &["a large message", "an end", "a wait set", "a new channel"]),
];

/// Asserts that every use of a channel works or names the refused call, and that small messages still work afterwards.
fn denied(argument: &str) {
    let (index, errno) = argument.split_once(' ').unwrap();
    let (call, number, broken) = REFUSED[index.parse::<usize>().unwrap()];
    let errno = errno.parse().unwrap();
    let play = move || {
        // There is one peer process for each use, because a refused call may have ended the channel.
        let channels = USES.map(|_| spawn("echo"));
        for (_, channel) in &channels {
            round_trip(channel, Outgoing::new(b"before")).unwrap();
        }
        let (ours, theirs) = Channel::pair().unwrap();
        refuse(number, errno);
        for ((name, work), (_, channel)) in USES.iter().zip(&channels) {
            // A peer that sleeps on the socket cannot be woken without this call, and whether the peer sleeps depends
            // on time.
            if call == "sendmsg" && *name == "a small message" {
                continue;
            }
            let begin = Instant::now();
            let worked = work(channel);
            assert!(begin.elapsed() < DEADLINE, "{name} hangs");
            match worked {
                Ok(()) => {}
                Err(Error::System { code, .. }) => assert_eq!(code, errno, "{name}"),
                // Without the call the library cannot determine whether the other end is closed, or whether received
                // memory has the right type.
                Err(error) => {
                    let blind =
                        matches!((call, error), ("fstatfs", Error::BadPeer(_)) | ("recvfrom", Error::PeerClosed));
                    assert!(blind, "{call} refused with {errno}, {name}: {error}");
                }
            }
            let fine = worked.is_ok() || broken.contains(name) || ["fstatfs", "recvfrom"].contains(&call);
            assert!(fine, "{call} refused with {errno}, {name}: {worked:?}");
        }
        ours.send_by(b"within", TIME).unwrap();
        assert_eq!(theirs.recv_by(TIME).unwrap().bytes(), b"within");
    };
    // The test harness needs calls that are refused now, so the process exits here.
    let status = i32::from(std::panic::catch_unwind(play).is_err());
    // SAFETY: `_exit` does not return; nothing of this process is used after the call.
    unsafe { libc::_exit(status) }
}

#[test]
fn calls_that_are_refused_are_named_or_done_without() {
    for index in 0..REFUSED.len() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            alone("denied", &format!("{index} {errno}"));
        }
    }
}

/// Asserts that a refused call does not make a region read-only.
fn with_regions_denied(argument: &str) {
    let errno = argument.parse().unwrap();
    let play = move || {
        let region = Region::new(4096).unwrap();
        refuse(libc::SYS_pwrite64, errno);
        region.write_at(b"written", 4000).unwrap();
        let mut seen = [0; 7];
        region.read_at(&mut seen, 4000).unwrap();
        assert_eq!(&seen, b"written");
        refuse(libc::SYS_mmap, errno);
        let error = Error::System { call: "mmap", code: errno };
        assert_eq!(region.map_writable(..).unwrap_err().error, error);
        assert_eq!(region.map(..).unwrap_err().error, error);
        assert_eq!(region.write_at(b"x", 0).unwrap_err().error, error);
        let reader = region.reader().unwrap();
        assert_eq!(reader.write_at(b"x", 0).unwrap_err().error, Error::ReadOnly);
        assert_eq!(reader.map_writable(..).unwrap_err().error, Error::ReadOnly);
    };
    // The test harness needs more memory than can be mapped now, so the process exits here.
    let status = i32::from(std::panic::catch_unwind(play).is_err());
    // SAFETY: `_exit` does not return; nothing of this process is used after the call.
    unsafe { libc::_exit(status) }
}

#[test]
fn a_sandbox_makes_no_region_read_only() {
    for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
        alone("denied regions", &errno.to_string());
    }
}

// Namespaces.

/// Starts a process in new namespaces, with one end of a socket as its standard input, and returns the process and a
/// channel over the other end; `None` if this is not permitted here.
fn unshared(role: &str, flags: &[&str]) -> Option<(Actor, Channel)> {
    let allowed = Command::new("unshare").args(flags).args(["--fork", "true"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        println!("left out: unshare {} is not allowed here", flags.join(" "));
        return None;
    }
    let (ours, theirs) = pair();
    let plain = command(role, "");
    let mut wrapped = Command::new("unshare");
    wrapped.args(flags).arg("--fork").arg(plain.get_program()).args(plain.get_args());
    wrapped.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let child = wrapped.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn().unwrap();
    Some((Actor(child), Channel::over(ours).unwrap()))
}

fn from_stdin() -> Channel {
    let begin = Instant::now();
    loop {
        let socket = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().unwrap();
        match Channel::over(socket) {
            // A user without privileges has a limit on descriptors in flight for all processes of the user together.
            // While other tests run, none may be left for a while.
            Err(Error::WouldBlock) if begin.elapsed() < DEADLINE => {}
            opened => return opened.unwrap(),
        }
    }
}

/// Asserts that every use of a channel works with an echoing process.
fn assert_all_works(channel: &Channel) {
    for (name, work) in USES {
        work(channel).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

fn in_namespaces(_: &str) {
    let channel = from_stdin();
    channel.send(b"here").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"there");
    // A process outside has no process id in this namespace.
    let peer = channel.peer().unwrap().unwrap();
    assert_eq!((std::process::id(), peer.pid), (1, None));
    common::echo(&channel);
}

#[test]
fn processes_in_other_namespaces_are_peers_like_any() {
    for flags in
        [&["--pid"] as &[&str], &["--user", "--map-root-user", "--pid"], &["--user", "--pid", "--net", "--ipc"]]
    {
        let Some((actor, channel)) = unshared("namespaces", flags) else { continue };
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"here");
        channel.send(b"there").unwrap();
        let peer = channel.peer().unwrap().unwrap();
        assert!(peer.pid.is_some_and(|pid| pid != std::process::id()), "{peer:?}");
        assert_all_works(&channel);
        drop(channel);
        finish(actor);
    }
}

/// Uses channels with each of the three settings of whether memfds may be executable. The setting belongs to the
/// process namespace, so the machine's own setting does not change.
fn without_memfds_that_run(_: &str) {
    let channel = from_stdin();
    let setting = "/proc/sys/vm/memfd_noexec";
    for value in ["0", "1", "2"] {
        let set =
            std::fs::File::options().write(true).open(setting).and_then(|mut file| file.write_all(value.as_bytes()));
        if let Err(error) = set {
            eprintln!("left out: {setting} cannot be set to {value}: {error}");
            continue;
        }
        assert_eq!(std::fs::read_to_string(setting).unwrap().trim(), value);
        // This process makes the memory, as the sender and as the receiver.
        assert_all_works(&channel);
        let (one, other) = pair();
        let (one, other) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
        let mut room = one.reserve_sealed(100_000).unwrap();
        room.bytes().fill(7);
        room.commit(DEADLINE).unwrap();
        assert!(other.recv_by(DEADLINE).unwrap().bytes() == [7; 100_000]);
    }
    channel.send(b"done").unwrap();
}

#[test]
fn memfds_that_must_not_be_executable_are_not() {
    let before = std::fs::read_to_string("/proc/sys/vm/memfd_noexec");
    let Some((actor, channel)) = unshared("no memfds that run", &["--user", "--map-root-user", "--pid"]) else {
        return;
    };
    // The other process sends the messages, and this process sends each back.
    loop {
        let mut message = channel.recv_by(DEADLINE).unwrap();
        if message.bytes() == b"done" {
            break;
        }
        let handles = message.take_handles().unwrap();
        channel.send(Outgoing::new(message.bytes()).handles(handles)).unwrap();
    }
    drop(channel);
    finish(actor);
    assert_eq!(before.ok(), std::fs::read_to_string("/proc/sys/vm/memfd_noexec").ok());
}

// Shortages.

fn limit(resource: Resource, current: u64) {
    let Rlimit { maximum, .. } = getrlimit(resource);
    setrlimit(resource, Rlimit { current: Some(current), maximum }).unwrap();
}

/// Asserts that every use works or reports the lack of descriptors, for any number of free descriptors, and that all
/// uses work with enough descriptors.
fn with_few_descriptors(_: &str) {
    let all = getrlimit(Resource::Nofile).current.unwrap();
    let (_actor, channel) = spawn("echo");
    round_trip(&channel, Outgoing::new(b"before")).unwrap();
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    for free in (0..12).rev() {
        limit(Resource::Nofile, used - 1 + free);
        for (name, work) in USES {
            // These uses make descriptors in the test itself, with `unwrap`.
            if name == "a handle" || name == "a new channel" {
                continue;
            }
            match work(&channel) {
                Ok(()) => continue,
                Err(Error::NoDescriptors | Error::HandlesLost { .. }) => {}
                Err(error) => panic!("{name} with {free} free descriptors: {error}"),
            }
            // Receive what the failed use has left in the channel.
            limit(Resource::Nofile, all);
            channel.send(b"the last of it").unwrap();
            while channel.recv_by(DEADLINE).unwrap().bytes() != b"the last of it" {}
            limit(Resource::Nofile, used - 1 + free);
        }
        round_trip(&channel, Outgoing::new(b"small")).unwrap();
    }
    limit(Resource::Nofile, all);
    assert_all_works(&channel);
}

#[test]
fn with_few_descriptors_what_lacks_them_says_so() {
    alone("few descriptors", "");
}

/// Receives one message on each received socket, and asserts that there is no memory for any message.
fn with_little_memory(argument: &str) {
    let parent = common::parent();
    let mapped: u64 = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    let options = match argument {
        // 128 MiB more than the process has mapped now.
        "address space" => {
            limit(Resource::As, mapped * 4096 + (128 << 20));
            Options::new()
        }
        _ => Options::new().peer_memory(32 << 20),
    };
    while let Ok(mut message) = parent.recv() {
        let socket = message.take_handles().unwrap().remove(0).into_fd().unwrap();
        let channel = options.over(socket).unwrap();
        match channel.recv_by(DEADLINE).map(|message| message.bytes().len()) {
            Err(Error::NoMemory { .. } | Error::LimitReached(_)) => {}
            other => panic!("{other:?}"),
        }
        parent.send(b"next").unwrap();
    }
}

/// Puts a process into a memory group of its own with a limit of `bytes`, and returns the path of the group; `None` if
/// no group can be made.
fn in_memory_group(actor: &Actor, bytes: u64) -> Option<std::path::PathBuf> {
    let versions = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
    for (root, limit) in versions {
        let group = std::path::Path::new(root).join(format!("strait-test-{}", actor.pid()));
        if !std::path::Path::new(root).join("cgroup.procs").exists() || std::fs::create_dir(&group).is_err() {
            continue;
        }
        let set = std::fs::write(group.join(limit), bytes.to_string())
            .and_then(|()| std::fs::write(group.join("cgroup.procs"), actor.pid().to_string()));
        if set.is_ok() {
            return Some(group);
        }
        let _ = std::fs::remove_dir(&group);
    }
    println!("left out: no memory group can be made here");
    None
}

#[test]
fn a_peer_that_claims_all_memory_a_thousand_times_is_survived() {
    for how in ["address space", "memory group"] {
        let (actor, victim) = common::spawn_with("little memory", how, &Options::new());
        let group = (how == "memory group").then(|| in_memory_group(&actor, 64 << 20)).flatten();
        for _ in 0..1000 {
            let (ours, theirs) = pair();
            let hostile = Channel::over(ours).unwrap();
            // No page of this memory is ever written or read.
            hostile.reserve_sealed(strait::MAX_MESSAGE).unwrap().commit(DEADLINE).unwrap();
            victim.send(Outgoing::new(b"one more").handle(theirs)).unwrap();
            assert_eq!(victim.recv_by(DEADLINE).unwrap().bytes(), b"next");
        }
        drop(victim);
        finish(actor);
        if let Some(group) = group {
            let _ = std::fs::remove_dir(group);
        }
    }
}
