//! Tests of processes in two containers with a common mounted directory: each container has namespaces of its own for
//! users, processes and mounts. Namespaces and memory groups need permissions that some machines do not grant. Without
//! the permissions, a test prints a note, and passes.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Actor, DEADLINE, command, echo, finish, pattern};
use strait::meet::Connector;
use strait::quota::Resource;
use strait::region::Region;
use strait::{Channel, Error, Handle, Listener, Outgoing};

#[test]
fn child() {
    common::play(&[("serves", serves), ("visits", visits), ("holds a message", holds_a_message)]);
}

/// A directory for mounting in containers, removed on drop.
struct Shared(PathBuf);

impl Shared {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("strait-containers-{}-{test}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn connect(&self, name: &str) -> Channel {
        Connector::new().directory(&self.0).wait_for_listener().connect(name, DEADLINE).unwrap()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where a container has the shared directory.
const INSIDE: &str = "/mnt";

/// Returns a command for `program` in a container with its own namespaces (`flags` of `unshare`), with the directory
/// mounted.
fn container(flags: &[&str], directory: &Path, program: &Command) -> Command {
    let mut wrapped = Command::new("unshare");
    wrapped.args(flags).args(["--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]);
    wrapped.args(["sh", "-c", "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"", "sh"]).arg(directory).arg(INSIDE);
    wrapped.arg(program.get_program()).args(program.get_args());
    wrapped.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped.env("STRAIT_DIR", INSIDE).stdin(Stdio::null()).stdout(Stdio::null());
    wrapped
}

/// Starts a process with the role `role` in a container.
fn contained(flags: &[&str], directory: &Path, role: &str) -> Actor {
    Actor(container(flags, directory, &command(role, "")).spawn().unwrap())
}

/// Asserts that only the user of the process at the other end is known: the process is in a container invisible to this
/// process.
fn assert_has_no_number(channel: &Channel) {
    let peer = channel.peer().unwrap().unwrap();
    assert_eq!((peer.pid, peer.uid), (None, rustix::process::geteuid().as_raw()));
}

/// Accepts a process from the other container and a process from outside, introduces the two to each other twice, and
/// takes over one of the ends.
fn serves(_: &str) {
    assert_eq!(std::process::id(), 1);
    let listener = Listener::bind("service").unwrap();
    let mut clients = [listener.accept(DEADLINE).unwrap(), listener.accept(DEADLINE).unwrap()];
    clients.iter().for_each(assert_has_no_number);
    let first = clients[0].recv_by(DEADLINE).unwrap().bytes().to_vec();
    clients[1].recv_by(DEADLINE).unwrap();
    if first == b"outside" {
        clients.reverse();
    }
    let [visitor, outside] = clients;
    let mut ends: Vec<_> = (0..2).map(|_| Channel::pair().unwrap()).collect();
    let (second, first) = (ends.pop().unwrap(), ends.pop().unwrap());
    visitor.send(Outgoing::new(b"meet").handle(first.0).handle(second.0)).unwrap();
    outside.send(Outgoing::new(b"meet").handle(first.1).handle(second.1)).unwrap();

    let moved = visitor.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    moved.send_by(b"from the server", DEADLINE).unwrap();
    // The visitor is killed; the others go on.
    assert_eq!(visitor.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    echo(&moved);
    echo(&outside);
}

/// Talks to the process outside over an introduced channel, passes the end of another one on, and waits to be killed.
fn visits(_: &str) {
    assert_eq!(std::process::id(), 1);
    let channel = Connector::new().wait_for_listener().connect("service", DEADLINE).unwrap();
    assert_has_no_number(&channel);
    channel.send(b"inside").unwrap();
    let mut handles = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap();
    let (stays, moves) = (handles.pop().unwrap().into_channel().unwrap(), handles.pop().unwrap());
    channel.send_by(Outgoing::new(b"moves on").handle(moves), DEADLINE).unwrap();
    for _ in 0..2 {
        let mut message = stays.recv_by(DEADLINE).unwrap();
        let handles = message.take_handles().unwrap();
        stays.send_by(Outgoing::new(message.bytes()).handles(handles), DEADLINE).unwrap();
    }
    // The process outside is known after opening its side.
    assert_has_no_number(&stays);
    stays.send_by(b"the last message", DEADLINE).unwrap();
    assert_eq!(channel.recv_by(2 * DEADLINE).map(drop), Ok(()), "this process is killed before");
}

/// Shows that processes in two containers with a common directory connect, introduce processes to each other, move
/// ends, learn of deaths and have limits, as processes without containers do.
#[test]
fn two_containers_need_a_common_directory_and_nothing_else() {
    for (number, flags) in [&[] as &[&str], &["--user", "--map-root-user"]].into_iter().enumerate() {
        let shared = Shared::new(&number.to_string());
        let allowed = container(flags, &shared.0, &Command::new("true")).stderr(Stdio::null()).status();
        if !allowed.is_ok_and(|status| status.success()) {
            println!("left out: containers by unshare {} are not allowed here", flags.join(" "));
            continue;
        }
        let server = contained(flags, &shared.0, "serves");
        let mut visitor = contained(flags, &shared.0, "visits");
        let channel = shared.connect("service");
        // A container is no secret from outside: its processes have numbers there.
        let peer = channel.peer().unwrap().unwrap();
        assert!(peer.pid.is_some_and(|pid| pid != 1), "{peer:?}");
        channel.send(b"outside").unwrap();
        let mut handles = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap();
        let (stays, moved) = (handles.pop().unwrap(), handles.pop().unwrap());
        let (stays, moved) = (stays.into_channel().unwrap(), moved.into_channel().unwrap());

        // Bytes, memory and a descriptor, both ways.
        let large = pattern(1, 3 << 20);
        let sealed: Handle = Region::sealed(b"a region").unwrap().into();
        stays.send_by(Outgoing::new(&large).handle(sealed), DEADLINE).unwrap();
        let mut back = stays.recv_by(DEADLINE).unwrap();
        assert!(back.bytes() == large);
        let region = back.take_handles().unwrap().remove(0).into_region().unwrap();
        assert_eq!(&region.view(..).unwrap()[..], b"a region");
        // The resources held for the visitor count for the visitor alone.
        let held = |channel: &Channel| channel.peer_usage().unwrap().unwrap().peer(Resource::Regions).held;
        assert_eq!((held(&stays), held(&channel)), (8, 0));
        let file: Handle = std::fs::File::open("/dev/null").unwrap().into();
        stays.send_by(Outgoing::new(b"a file").handle(file), DEADLINE).unwrap();
        assert_eq!(stays.recv_by(DEADLINE).unwrap().take_handles().unwrap().len(), 1);

        assert_eq!(moved.recv_by(DEADLINE).unwrap().bytes(), b"from the server");
        // A message sent before the death arrives, then the death is seen.
        assert_eq!(stays.recv_by(DEADLINE).unwrap().bytes(), b"the last message");
        visitor.kill();
        assert_eq!(stays.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
        // The server serves one channel after the other.
        for channel in [moved, channel] {
            channel.send_by(b"still here", DEADLINE).unwrap();
            assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"still here");
        }
        finish(server);
    }
}

// Memory groups.

/// The bytes of the message in the test of memory groups.
const LARGE: usize = 64 << 20;

const PAGE: usize = 4096;

/// Receives messages, holds each until the next, and reports when every page was read.
fn holds_a_message(_: &str) {
    let parent = common::parent();
    let mut page = [0; PAGE];
    while let Ok(mut message) = parent.recv_in_place(DEADLINE) {
        for number in 0..message.len() / PAGE {
            message.read_at(&mut page, number * PAGE);
        }
        parent.send_by(b"read", DEADLINE).unwrap();
        parent.recv_by(DEADLINE).unwrap();
    }
}

/// Puts a process into a memory group of its own. Returns the path of a file that has the bytes that are charged to the
/// group, and the path of the group; `None` if no group can be made.
fn memory_group(actor: &Actor) -> Option<(PathBuf, PathBuf)> {
    for (root, charged) in [("/sys/fs/cgroup/memory", "memory.usage_in_bytes"), ("/sys/fs/cgroup", "memory.current")] {
        let group = Path::new(root).join(format!("strait-test-{}", actor.pid()));
        if Path::new(root).join("cgroup.procs").exists() && std::fs::create_dir(&group).is_ok() {
            let moved = std::fs::write(group.join("cgroup.procs"), actor.pid().to_string());
            if moved.is_ok() && group.join(charged).exists() {
                return Some((group.join(charged), group));
            }
            let _ = std::fs::remove_dir(&group);
        }
    }
    println!("left out: no memory group can be made here");
    None
}

/// Shows that the memory of a large message is charged to the group of the sender, which touches the memory first,
/// however long the receiver holds the message.
#[test]
fn a_message_is_charged_to_the_memory_group_of_its_sender() {
    let (actor, channel) = common::spawn("holds a message");
    let Some((charged, group)) = memory_group(&actor) else { return };
    let charged = || std::fs::read_to_string(&charged).unwrap().trim().parse::<usize>().unwrap();
    let before = charged();
    let mut room = channel.reserve(LARGE, DEADLINE).unwrap();
    (0..LARGE / PAGE).for_each(|page| room.write_at(&[1; PAGE], page * PAGE));
    room.commit().unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"read");
    let while_held = charged();
    assert!(while_held < before + LARGE / 4, "{before} bytes before, {while_held} while the message is held");
    channel.send_by(b"next", DEADLINE).unwrap();
    drop(channel);
    finish(actor);
    let _ = std::fs::remove_dir(group);
}
