//! Tests of the lists in [`strait::sandbox`]: a process uses all objects of the library under a filter that allows only
//! the listed system calls. The filter ends the process at any other system call.

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use common::{Actor, DEADLINE, allow_only, command, echo, pattern};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::call::CallEnd;
use strait::meet::Connector;
use strait::pipe::DataPipe;
use strait::region::{Region, RegionOptions, RegionWriter};
use strait::sandbox::{Argument, SYSCALLS, SystemCall};
use strait::task::Reactor;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, CommandExt, Error, Handle, Listener, Outgoing};

#[test]
fn child() {
    common::play(&[("locked up", locked_up), ("attacks", attacks)]);
}

/// Long enough for the library to sleep in each of its ways.
const A_WHILE: Duration = Duration::from_millis(150);

/// Sends a message with the handles to an echoing process, and returns the handles of the echo.
fn there_and_back(channel: &Channel, handles: Vec<Handle>) -> Vec<Handle> {
    channel.send_by(Outgoing::new(b"handles").handles(handles), DEADLINE).unwrap();
    channel.recv_by(DEADLINE).unwrap().take_handles().unwrap()
}

/// Uses everything for which [`strait::sandbox::SystemCalls::running`] is made. `file` is a file opened before.
fn runs(channel: &Channel, file: &File) {
    for len in [0, 50, 5000, 200_000, 3 << 20] {
        channel.send_by(&pattern(1, len), DEADLINE).unwrap();
        assert!(channel.recv_by(DEADLINE).unwrap().bytes() == pattern(1, len), "{len} bytes");
    }
    let mut room = channel.reserve(1 << 20, DEADLINE).unwrap();
    room.write_at(b"in place", 0);
    room.commit().unwrap();
    assert_eq!(channel.recv_in_place(DEADLINE).unwrap().len(), 1 << 20);
    let mut room = channel.reserve_sealed(1 << 20).unwrap();
    room.bytes().fill(7);
    room.commit(DEADLINE).unwrap();
    assert!(channel.recv_by(DEADLINE).unwrap().bytes() == vec![7; 1 << 20]);
    assert!(channel.peer().unwrap().is_some());
    channel.peer_pidfd().unwrap();
    assert_eq!(channel.recv_by(A_WHILE).unwrap_err(), Error::TimedOut);

    // Descriptors: taken, and left in the message. The close of the second kind may block, as far as the library knows.
    let copies =
        || vec![file.try_clone().unwrap().into(), Handle::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap())];
    assert_eq!(there_and_back(channel, copies()).len(), 2);
    channel.send_by(Outgoing::new(b"handles").handles(copies()), DEADLINE).unwrap();
    drop(channel.recv_by(DEADLINE).unwrap());

    let (ours, theirs) = Channel::pair().unwrap();
    ours.send(b"unread").unwrap();
    let theirs = there_and_back(channel, vec![theirs.into()]).remove(0).into_channel().unwrap();
    assert_eq!(theirs.recv_by(DEADLINE).unwrap().bytes(), b"unread");
    theirs.rehome(DEADLINE).unwrap();
    drop(theirs);
    assert_eq!(ours.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);

    let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (one, other): (OwnedFd, OwnedFd) = pair();
    let (one, other) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
    one.send(b"over a socket").unwrap();
    assert_eq!(other.recv_by(DEADLINE).unwrap().bytes(), b"over a socket");

    let (producer, consumer) = DataPipe::pair(1 << 16).unwrap();
    let consumer = there_and_back(channel, vec![consumer.into()]).remove(0).into_consumer().unwrap();
    producer.write_whole(b"stream", DEADLINE).unwrap();
    consumer.read_whole(&mut [0; 6], DEADLINE).unwrap();
    assert_eq!(consumer.read_some(&mut [0; 6], A_WHILE), Err(Error::TimedOut));

    let (asks, answers) = Channel::pair().unwrap();
    let (asks, answers) = (CallEnd::over(asks), CallEnd::over(answers));
    assert!(asks.call(b"a request", A_WHILE).is_err());
    assert_eq!(answers.next_request(A_WHILE).unwrap_err(), Error::TimedOut);

    let (mine, yours) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&mine, 1, Interest::Readable, Mode::Level).unwrap();
    set.add(channel, 2, Interest::Readable, Mode::OneShot).unwrap();
    let mut events = Vec::new();
    assert_eq!(set.wait(&mut events, A_WHILE), Ok(0));
    // The descriptor makes the set sleep in another way.
    let _ = set.as_fd();
    assert_eq!(set.wait(&mut events, A_WHILE), Ok(0));
    yours.send(b"event").unwrap();
    channel.send_by(b"event", DEADLINE).unwrap();
    assert!(set.wait(&mut events, DEADLINE).unwrap() > 0);
    set.remove(&mine).unwrap();
    set.remove(channel).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"event");
    let reactor = Reactor::new().unwrap();
    reactor.turn().unwrap();
    reactor.rest().unwrap();

    // A signal that interrupts waits.
    assert_eq!(mine.recv_by(DEADLINE).unwrap().bytes(), b"event");
    let guard = strait::signals::Guard::new();
    assert_eq!(mine.recv_by(A_WHILE).unwrap_err(), Error::TimedOut);
    drop(guard);
    mine.close_with(7);
    assert_eq!(yours.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Uses everything for which [`strait::sandbox::SystemCalls::with_regions`] is made.
fn uses_regions(channel: &Channel) {
    let region = RegionOptions::new().name("locked-up").huge_pages(true).create(8 << 20).unwrap();
    region.map_writable(..).unwrap().write_at(b"mapped", 0).unwrap();
    region.write_at(b"written", 4096).unwrap();
    let region = there_and_back(channel, vec![region.into()]).remove(0).into_region().unwrap();
    region.seal().unwrap();
    assert_eq!(&region.view(..).unwrap()[..6], b"mapped");
    assert_eq!(region.access().unwrap(), strait::region::Access::Sealed);
    region.copy_on_write(..).unwrap()[0] = b'M';
    let mut writer = RegionWriter::new(4096).unwrap();
    writer[..6].copy_from_slice(b"sealed");
    let (sealed, _copy) = writer.seal().unwrap();
    there_and_back(channel, vec![sealed.into()]);
    let shared = Region::new(4096).unwrap();
    shared.admit_no_writer().unwrap();
    shared.to_fd().unwrap();
    // Opens a file, which a process in this phase need not be allowed to do.
    let failed = shared.reader().unwrap_err().error;
    assert!(matches!(failed, Error::System { code: libc::EPERM, .. }), "{failed}");
    Region::sealed(b"small").unwrap();
}

/// Uses everything for which [`strait::sandbox::SystemCalls::connecting`] is made, in the given directory.
fn connects(directory: &Path) {
    let listener = Listener::builder().directory(directory).bind("locked-up").unwrap();
    assert_eq!(Listener::builder().directory(directory).bind("locked-up").unwrap_err().error, Error::NameTaken);
    echo(&listener.accept(DEADLINE).unwrap());
    assert_eq!(listener.accept(A_WHILE).unwrap_err().error, Error::TimedOut);
    assert!(strait::meet::names(Some(directory)).unwrap().iter().any(|there| there.name == "locked-up"));
    strait::meet::prune(Some(directory)).unwrap();
    drop(listener);
    let connector = Connector::new().directory(directory).wait_for_listener();
    assert_eq!(connector.connect("nobody", A_WHILE).unwrap_err().error, Error::NobodyThere);
    let other = connector.connect("outside", DEADLINE).unwrap();
    other.send_by(b"connected", DEADLINE).unwrap();
    assert_eq!(other.recv_by(DEADLINE).unwrap().bytes(), b"connected");
}

/// Allows this thread the system calls of `calls` only with the arguments that the library uses. For others, the filter
/// gives `otherwise`.
fn allow_arguments<'a>(calls: impl Iterator<Item = &'a SystemCall>, otherwise: u32) {
    let mut ways: BTreeMap<i64, Vec<&[Argument]>> = BTreeMap::new();
    calls.filter(|call| !call.arguments.is_empty()).for_each(|call| {
        ways.entry(call.number).or_default().extend(call.arguments);
    });
    let step = |code: u32, jump_else: usize, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: u8::try_from(jump_else).unwrap(),
        k,
    };
    let load = |offset: u32| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, offset);
    let equal = |value: u32, jump_else| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jump_else, value);
    let mut filter = Vec::new();
    for (number, ways) in ways {
        let mut body = Vec::new();
        for way in ways {
            // The steps of a way. A failing comparison jumps over the rest.
            let mut halves = Vec::new();
            for argument in way {
                let offset = 16 + 8 * u32::from(argument.index);
                halves.push((offset, argument.mask as u32, argument.value as u32));
                halves.push((offset + 4, (argument.mask >> 32) as u32, (argument.value >> 32) as u32));
            }
            let len = 3 * halves.len() + 1;
            for (index, (offset, mask, value)) in halves.into_iter().enumerate() {
                body.push(load(offset));
                body.push(step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, mask));
                body.push(equal(value, len - 3 * (index + 1)));
            }
            body.push(step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
        }
        body.push(step(libc::BPF_RET | libc::BPF_K, 0, otherwise));
        filter.push(load(0));
        filter.push(equal(number as u32, body.len()));
        filter.append(&mut body);
    }
    filter.push(step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program and its filter live until the call returns; the kernel makes copies.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    assert_eq!(set, 0);
}

/// Activates the filters for the phase *running*, and then tries what would reach other processes.
fn attacks(_: &str) {
    // SAFETY: each call gets pointers to locals, or null pointers.
    let play = || unsafe {
        let channel = common::parent();
        let mut pair = [0; 2];
        let parent = libc::getppid();
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
        allow_arguments(SYSCALLS.running.iter(), libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
        let few = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
        let old = std::ptr::null_mut::<libc::rlimit>();
        let resource = libc::RLIMIT_NOFILE;
        let refused = [
            libc::syscall(libc::SYS_prlimit64, parent, resource, &raw const few, old),
            libc::syscall(libc::SYS_prlimit64, 0, resource, &raw const few, old),
            libc::syscall(libc::SYS_prlimit64, parent, resource, old, &raw mut pair),
            libc::fcntl(fd, libc::F_SETOWN, parent).into(),
            libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC).into(),
            libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()).into(),
            libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()).into(),
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            ) as i64,
        ];
        assert_eq!(refused, [-1; 8]);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
        channel.send_by(b"still here", DEADLINE).unwrap();
    };
    // The test harness makes other calls, so the process exits here.
    let status = i32::from(std::panic::catch_unwind(play).is_err());
    // SAFETY: `_exit` does not return; nothing of this process is used after the call.
    unsafe { libc::_exit(status) }
}

#[test]
fn the_arguments_let_a_locked_up_process_reach_no_other() {
    let (child, channel) = command("attacks", "").spawn_with_channel().unwrap();
    let actor = Actor(child);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"still here");
    actor.wait_for_success();
}

/// Activates a filter for the phase that the first word names, and uses the library; the second word is a directory.
fn locked_up(argument: &str) {
    let (phase, directory) = argument.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let numbers = |calls: &[SystemCall]| calls.iter().map(|call| call.number).collect::<Vec<_>>();
    let more = match phase {
        "regions" => SYSCALLS.with_regions,
        "connecting" => SYSCALLS.connecting,
        _ => &[],
    };
    let calls = || SYSCALLS.running.iter().chain(more);
    let (allowed, refused) = (calls().map(|call| call.number).collect::<Vec<_>>(), numbers(SYSCALLS.dispensable));
    let play = || {
        let early = (phase != "connecting").then(common::parent);
        allow_arguments(calls(), libc::SECCOMP_RET_TRAP);
        allow_only(&allowed, &refused);
        let channel = early.unwrap_or_else(common::parent);
        runs(&channel, &file);
        match phase {
            "regions" => uses_regions(&channel),
            "connecting" => connects(directory),
            _ => {}
        }
    };
    // The test harness makes other calls, so the process exits here.
    let status = i32::from(std::panic::catch_unwind(std::panic::AssertUnwindSafe(play)).is_err());
    // SAFETY: `_exit` does not return; nothing of this process is used after the call.
    unsafe { libc::_exit(status) }
}

/// Starts a process that locks itself up, echoes its messages, and meets it by name in the phase *connecting*.
fn beside_a_locked_up_process(phase: &str) {
    let directory = std::env::temp_dir().join(format!("strait-locked-up-{}-{phase}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    let argument = format!("{phase} {}", directory.display());
    let (child, channel) = command("locked up", &argument).spawn_with_channel().unwrap();
    let actor = Actor(child);
    let echoes = std::thread::spawn(move || echo(&channel));
    if phase == "connecting" {
        let client = Connector::new().directory(&directory).wait_for_listener().connect("locked-up", DEADLINE).unwrap();
        client.send(b"hello").unwrap();
        assert_eq!(client.recv_by(DEADLINE).unwrap().bytes(), b"hello");
        drop(client);
        let outside = Listener::builder().directory(&directory).bind("outside").unwrap();
        echo(&outside.accept(DEADLINE).unwrap());
    }
    actor.wait_for_success();
    echoes.join().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_process_that_runs_needs_what_is_listed_for_running() {
    beside_a_locked_up_process("running");
}

#[test]
fn a_process_with_regions_needs_what_is_listed_for_regions() {
    beside_a_locked_up_process("regions");
}

#[test]
fn a_process_that_connects_needs_what_is_listed_for_connecting() {
    beside_a_locked_up_process("connecting");
}

/// Shows that each system call named in the library's errors is in a list, and that the lists do not overlap.
/// Exception: calls that a process needs for connecting and can otherwise do without.
#[test]
fn the_lists_are_complete_and_apart() {
    let lists = [SYSCALLS.running, SYSCALLS.with_regions, SYSCALLS.connecting, SYSCALLS.dispensable];
    let all: Vec<_> = lists.iter().copied().flatten().map(|call| call.name).collect();
    let twice: Vec<_> = all.iter().filter(|name| all.iter().filter(|other| other == name).count() > 1).collect();
    assert!(twice.iter().all(|name| ["fchmod", "fcntl", "open", "openat"].contains(name)), "{twice:?}");
    for call in lists.iter().copied().flatten() {
        assert!(call.number >= 0 && call.number < 1000, "{call:?}");
    }
}
