//! Attacks on names and invitations: files in the place of a name, connecting processes, their identities and their
//! number.

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use strait::meet::{Connector, Invitation, ListenerBuilder, Refusal, Refused};
use strait::{Channel, Deadline, Error, Listener, Options, Outgoing, Peer};
use strait_hostile::wire::{self, kind};
use strait_hostile::{Packet, RawPeer, handshake};

use crate::common::*;
use crate::descriptors::slow_to_close;

/// The socket option by which a socket refuses descriptors (Linux 6.16), which older headers lack.
const SO_PASSRIGHTS: i32 = 83;

/// A directory for one test alone.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("strait-attack-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn listen(&self, name: &str) -> Result<Listener, Error> {
        Listener::builder().directory(&self.0).bind(name).map_err(Error::from)
    }

    fn connect(&self, name: &str) -> Result<Channel, Error> {
        Connector::new().directory(&self.0).connect(name, SOON).map_err(Error::from)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn seqpacket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// Connects to a socket and sends nothing.
fn call(path: &Path) -> OwnedFd {
    let socket = seqpacket();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn connect(token: u128) -> Packet {
    Packet { kind: kind::CONNECT, token, fields: [handshake::MAGIC, 0, 0], ..Packet::default() }
}

/// Returns the index of the first connection that gets an answer from the listener, and the kind of the answer;
/// `None` if no connection gets an answer.
fn first_answer(sockets: &[OwnedFd]) -> Option<(usize, u32)> {
    let begin = Instant::now();
    while begin.elapsed() < SOON {
        for (at, socket) in sockets.iter().enumerate() {
            match wire::receive(socket) {
                Ok(Some((packet, _))) if packet.kind == kind::HANDSHAKE => {}
                Ok(Some((packet, _))) => return Some((at, packet.kind)),
                Ok(None) => {}
                Err(_) => return None,
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Accepts on a thread as long as `play` lasts. Returns the channels too.
fn while_accepting<T>(listener: &Listener, play: impl FnOnce() -> T) -> (T, Vec<Channel>) {
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let mut channels = Vec::new();
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                channels.extend(listener.accept(Duration::from_millis(5)).ok());
            }
            channels
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
        over.store(true, std::sync::atomic::Ordering::SeqCst);
        let channels = accepting.join().unwrap();
        (result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), channels)
    })
}

/// The environment variable with the part that a process plays.
const PART: &str = "STRAIT_ATTACKER";

/// The number of the descriptor of a child's socket, higher than the open descriptors of this process.
const SOCKET: i32 = 700;

/// Starts a process with this socket that plays a part: see [`attacker`].
fn start(part: &str, socket: &OwnedFd, prepare: impl Fn() -> std::io::Result<()> + Send + Sync + 'static) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "names::attacker", "--nocapture", "--test-threads", "1"]);
    command.env(PART, part).stdin(Stdio::piped()).stdout(Stdio::null());
    let fd = socket.as_raw_fd();
    // SAFETY: between fork and exec, the closure makes only system calls, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            prepare()?;
            // `dup2` of a descriptor to its own number would leave close-on-exec set, so `fcntl` clears it.
            match libc::dup2(fd, SOCKET) == SOCKET && libc::fcntl(SOCKET, libc::F_SETFD, 0) == 0 {
                true => Ok(()),
                false => Err(std::io::Error::last_os_error()),
            }
        });
    }
    command.spawn().unwrap()
}

/// Runs the other process of some attacks. Does nothing in an ordinary run.
#[test]
fn attacker() {
    let Ok(part) = std::env::var(PART) else { return };
    // SAFETY: the parent leaves this descriptor open for this process, and nothing else owns it.
    let socket: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(SOCKET) };
    if part == "knocks" {
        wire::send(&socket, &handshake::announce(0).to_bytes(), &[]).unwrap();
    }
    wire::send(&socket, &connect(0).to_bytes(), &[]).unwrap();
    // The process ends when its parent closes its standard input.
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}

attack! {
    /// Another file has the name: the listener neither listens on the file, nor follows it, nor removes it.
    a26_names_that_are_there_already {
        let directory = Directory::new();
        let elsewhere = Directory(std::env::temp_dir().join(format!("strait-elsewhere-{}", std::process::id())));
        std::fs::create_dir(&elsewhere.0).unwrap();
        let trap = seqpacket();
        rustix::net::bind(&trap, &SocketAddrUnix::new(elsewhere.at("trap")).unwrap()).unwrap();
        rustix::net::listen(&trap, 8).unwrap();
        type Make = fn(&Path, &Path);
        let things: [(&str, Make); 6] = [
            ("file", |path, _| std::fs::write(path, b"x").unwrap()),
            ("directory", |path, _| std::fs::create_dir(path).unwrap()),
            ("link", |path, trap| symlink(trap, path).unwrap()),
            ("dangling", |path, _| symlink("/nonexistent/there", path).unwrap()),
            ("pipe", |path, _| rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap()),
            ("self", |path, _| symlink(path, path).unwrap()),
        ];
        for (name, make) in things {
            make(&directory.at(name), &elsewhere.at("trap"));
            let before = std::fs::symlink_metadata(directory.at(name)).unwrap();
            assert!(directory.listen(name).is_err(), "listening at a {name}");
            let connected = in_time("connecting", || directory.connect(name).map(drop));
            assert!(connected.is_err(), "connecting to a {name}");
            let after = std::fs::symlink_metadata(directory.at(name)).unwrap();
            assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()), "the {name} was replaced");
        }
        // No process was led to the other socket.
        let mut fds = [rustix::event::PollFd::new(&trap, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap(), 0);
        // Names that lead out of the directory.
        for name in ["", ".", "..", "a/b", "../x", "/tmp/x", "\0", &"x".repeat(300)] {
            assert!(directory.listen(name).is_err() && directory.connect(name).is_err(), "{name:?}");
        }
    }
}

attack! {
    /// The permissions of a name do not depend on the umask of the process, and no directory writable by other users
    /// is used.
    a26_permissions_of_names {
        let directory = Directory::new();
        for mask in [0o000, 0o777, 0o022] {
            let old = rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
            let listener = directory.listen("name").unwrap();
            rustix::process::umask(old);
            let mode = std::fs::metadata(listener.path()).unwrap().mode() & 0o777;
            assert_eq!(mode, 0o600, "with mask {mask:o}");
        }
        for mode in [0o777, 0o770, 0o702, 0o1777, 0o720] {
            std::fs::set_permissions(&directory.0, PermissionsExt::from_mode(mode)).unwrap();
            assert!(matches!(directory.listen("name"), Err(Error::UnsafeDirectory(_))), "{mode:o}");
            assert!(matches!(directory.connect("name"), Err(Error::UnsafeDirectory(_))), "{mode:o}");
        }
    }
}

attack! {
    /// The token of an invitation is in no arguments and no environment, is printed nowhere, and lets in one process
    /// once.
    a27_tokens {
        let directory = Directory::new();
        let listener = Listener::builder().directory(&directory.0).invited_only().bind("name").unwrap();
        let invitation = listener.invite(Duration::from_secs(60)).unwrap();
        let mut line = Vec::new();
        invitation.tell(&mut line).unwrap();
        let line = String::from_utf8(line).unwrap();
        let word = line.split_whitespace().find(|word| word.len() == 32).unwrap();
        let token = u128::from_str_radix(word, 16).unwrap();
        assert!(!format!("{invitation:?} {listener:?}").contains(word));
        let mut child = invitation.spawn(Command::new("sleep").arg("60")).unwrap();
        for file in ["cmdline", "environ"] {
            for process in ["self".to_owned(), child.id().to_string()] {
                let bytes = std::fs::read(format!("/proc/{process}/{file}")).unwrap();
                assert!(!String::from_utf8_lossy(&bytes).contains(word), "{file} of {process}");
                assert!(!bytes.windows(16).any(|window| window == token.to_le_bytes() || window == token.to_be_bytes()));
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let come_with = |token: u128| {
            let socket = call(listener.path());
            wire::send(&socket, &handshake::announce(0).to_bytes(), &[]).unwrap();
            wire::send(&socket, &connect(token).to_bytes(), &[]).unwrap();
            socket
        };
        let (_, channels) = while_accepting(&listener, || {
            for bit in 0..128 {
                assert_eq!(first_answer(&[come_with(token ^ 1 << bit)]), Some((0, kind::REFUSE)), "bit {bit}");
            }
            assert_eq!(first_answer(&[come_with(0)]), Some((0, kind::REFUSE)));
            // The listener refuses one of the two connections, whichever it receives first. The other would be
            // accepted, and waits.
            let mut both = vec![come_with(token), come_with(token)];
            let (refused, answer) = first_answer(&both).unwrap();
            assert_eq!(answer, kind::REFUSE);
            drop(both.remove(refused));
            assert!(wire::receive(&both[0]).unwrap().is_none_or(|(packet, _)| packet.kind == kind::HANDSHAKE));
            // No later process is accepted either.
            assert_eq!(first_answer(&[come_with(token)]), Some((0, kind::REFUSE)));
        });
        assert!(channels.is_empty());
    }
}

attack! {
    /// An invitation is dropped at the moment at which its process connects: the process is refused, or its connection
    /// is closed.
    a27_tokens_that_are_revoked_meanwhile {
        const ROUNDS: usize = 20_000;
        let directory = Directory::new();
        let listener = directory.listen("name").unwrap();
        let before = descriptors();
        let (gives, invitations) = std::sync::mpsc::channel::<Invitation>();
        let start = Arc::new(Barrier::new(2));
        let drops = std::thread::spawn({
            let start = start.clone();
            move || {
                for invitation in invitations {
                    start.wait();
                    drop(invitation);
                    start.wait();
                }
            }
        });
        for round in 0..ROUNDS {
            let invitation = listener.invite(SOON).unwrap();
            let socket = call(listener.path());
            wire::send(&socket, &handshake::announce(0).to_bytes(), &[]).unwrap();
            wire::send(&socket, &connect(token_of(&invitation)).to_bytes(), &[]).unwrap();
            // The first call makes the connection pending, and the next one answers the request.
            let accept = || assert_eq!(listener.accept(Deadline::NOW).unwrap_err().error, Error::WouldBlock);
            accept();
            gives.send(invitation).unwrap();
            start.wait();
            accept();
            start.wait();
            match wire::receive(&socket) {
                Ok(Some((packet, _))) => assert_eq!(packet.kind, kind::REFUSE),
                Ok(None) => panic!("in round {round} the connection waits for nobody"),
                Err(_) => {}
            }
        }
        drop(gives);
        drops.join().unwrap();
        assert_no_more_than(before, "revoked invitations");
    }
}

attack! {
    /// A process dies right after its connect request: its process number does not count as another process.
    a28_a_process_number_that_is_nobodys {
        let directory = Directory::new();
        let listener = directory.listen("name").unwrap();
        let socket = call(listener.path());
        let mut child = start("knocks", &socket, || Ok(()));
        let channel = listener.accept(SOON).unwrap();
        let pid = channel.peer().unwrap().unwrap().pid;
        assert_eq!(pid, Some(child.id()));
        let pidfd = channel.peer_pidfd().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // The descriptor still stands for the dead process. The dead process's number opens no new descriptor, though
        // its socket is open here.
        let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap(), 1);
        assert!(channel.peer_pidfd().is_err());
        drop(socket);
        assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
    }
}

attack! {
    /// The process that connects is not always the process that sends: the policy is asked about the sender.
    a29_a_connection_that_was_handed_on {
        let directory = Directory::new();
        let seen: Arc<Mutex<Vec<Peer>>> = Arc::default();
        let asked = seen.clone();
        let listener = Listener::builder()
            .directory(&directory.0)
            .policy(move |peer| {
                asked.lock().unwrap().push(*peer);
                false
            })
            .bind("name")
            .unwrap();
        let socket = call(listener.path());
        let mut child = start("knocks", &socket, || Ok(()));
        let begin = Instant::now();
        while seen.lock().unwrap().is_empty() {
            assert!(begin.elapsed() < SOON, "the policy is not asked");
            let _ = listener.accept(Duration::from_millis(20));
        }
        assert_eq!(seen.lock().unwrap().iter().map(|peer| peer.pid).collect::<Vec<_>>(), [Some(child.id())]);
        child.kill().unwrap();
        child.wait().unwrap();
        // One process sends the handshake, another the connect request.
        drop(listener);
        let listener = directory.listen("another").unwrap();
        let socket = call(listener.path());
        wire::send(&socket, &handshake::announce(0).to_bytes(), &[]).unwrap();
        let (_, channels) = while_accepting(&listener, || {
            std::thread::sleep(Duration::from_millis(30));
            let mut child = start("only knocks", &socket, || Ok(()));
            std::thread::sleep(Duration::from_millis(300));
            child.kill().unwrap();
            child.wait().unwrap();
        });
        assert!(channels.is_empty());
    }
}

attack! {
    /// A process that is root in a user namespace of its own counts as its user outside.
    a30_a_user_of_another_namespace {
        let directory = Directory::new();
        let listener = directory.listen("name").unwrap();
        let socket = call(listener.path());
        // SAFETY: the system call takes no pointers.
        let unshare = || match unsafe { libc::unshare(libc::CLONE_NEWUSER) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        // Some kernels permit namespaces only to root; then this test shows nothing.
        // SAFETY: the calls take no pointers but one to a local variable, and the child exits at once.
        let allowed = unsafe {
            match libc::fork() {
                0 => libc::_exit(i32::from(unshare().is_err())),
                child => {
                    let mut status = 0;
                    libc::waitpid(child, &raw mut status, 0);
                    status == 0
                }
            }
        };
        if !allowed {
            return eprintln!("no user namespaces here");
        }
        let mut child = start("knocks", &socket, unshare);
        let channel = listener.accept(SOON).unwrap();
        let peer = channel.peer().unwrap().unwrap();
        assert_eq!((peer.pid, peer.uid), (Some(child.id()), rustix::process::geteuid().as_raw()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Returns a listener over a socket of the kind that a service manager makes, and a copy of the socket. The socket
/// passes descriptors, as a socket of another process may.
fn activate(directory: &Directory, builder: ListenerBuilder) -> (Listener, OwnedFd) {
    /// The lowest number for a passed socket, higher than the open descriptors of this process.
    const LOWEST: i32 = 750;
    /// The number of the first descriptor that a service manager passes to a process.
    const FIRST: i32 = 3;
    static PASSED: AtomicI32 = AtomicI32::new(0);
    let socket = seqpacket();
    let lowest = LOWEST + PASSED.fetch_add(1, Ordering::Relaxed);
    rustix::net::bind(&socket, &SocketAddrUnix::new(directory.at(&format!("activated-{lowest}"))).unwrap()).unwrap();
    rustix::net::listen(&socket, 64).unwrap();
    let passed = rustix::io::fcntl_dupfd_cloexec(&socket, lowest).unwrap().into_raw_fd();
    let before = passed - FIRST;
    // SAFETY: no other thread of this process reads or changes the environment.
    unsafe {
        std::env::set_var("LISTEN_PID", std::process::id().to_string());
        std::env::set_var("LISTEN_FDS", (before + 1).to_string());
        std::env::set_var("LISTEN_FDNAMES", format!("{}this", "other:".repeat(before as usize)));
    }
    (builder.activated(Some("this")).unwrap(), socket)
}

/// Sets whether the kernel passes descriptors to `socket` and to sockets that `socket` accepts. Returns false if the
/// kernel passes descriptors to all sockets, as every kernel before 6.16 does.
fn pass_descriptors(socket: &OwnedFd, on: bool) -> bool {
    let on = i32::from(on);
    // SAFETY: the pointer is to a local variable of the size given.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const on).cast(), 4) == 0 }
}

/// Connects and sends a connect request from a socket that refuses descriptors. So the kernel refuses the listener's
/// open packet, which brings memory. `None` if the kernel passes descriptors to all sockets.
fn call_from_a_socket_without_descriptors(path: &Path) -> Option<OwnedFd> {
    let socket = call(path);
    if !pass_descriptors(&socket, false) {
        eprintln!("this kernel passes descriptors to every socket");
        return None;
    }
    wire::send(&socket, &handshake::announce(0).to_bytes(), &[]).unwrap();
    wire::send(&socket, &connect(0).to_bytes(), &[]).unwrap();
    Some(socket)
}

/// Connects and sends a connect request with `token`, and then a packet with a descriptor that is slow to close.
/// Returns the socket and the peer of the slow connection.
fn call_with_something_slow(path: &Path, token: u128) -> (OwnedFd, TcpStream) {
    let socket = call(path);
    wire::send(&socket, &handshake::announce(0).to_bytes(), &[]).unwrap();
    wire::send(&socket, &connect(token).to_bytes(), &[]).unwrap();
    let (slow, server) = slow_to_close();
    assert!(wire::send(&socket, &Packet::wake().to_bytes(), &[slow.as_fd()]).unwrap());
    (socket, server)
}

/// Returns the token of an invitation.
fn token_of(invitation: &Invitation) -> u128 {
    let mut line = Vec::new();
    invitation.tell(&mut line).unwrap();
    let line = String::from_utf8(line).unwrap();
    u128::from_str_radix(line.split_whitespace().find(|word| word.len() == 32).unwrap(), 16).unwrap()
}

attack! {
    /// Behind a connect request there is a packet with a slow descriptor, which is closed with the socket. The request
    /// is refused, or nobody accepts the process any more.
    a10_requests_with_something_slow_behind_them {
        let directory = Directory::new();
        let bystander = Bystander::new();
        let before = Census::take();
        let handle = |listener: &Listener| {
            let accepted = in_time("accepting", || listener.accept(Duration::from_millis(5)));
            assert_eq!(accepted.unwrap_err().error, Error::TimedOut);
        };
        let refusals: Arc<Mutex<Vec<Error>>> = Arc::default();
        let listen = |builder: ListenerBuilder| {
            let refusals = refusals.clone();
            let builder = builder.on_refused(move |refused| refusals.lock().unwrap().push(refused.why));
            let (listener, copy) = activate(&directory, builder);
            pass_descriptors(&copy, true);
            listener
        };
        let refuses = listen(Listener::builder().policy(|_| false));
        let caller = call_with_something_slow(refuses.path(), 0);
        handle(&refuses);
        drop((caller, refuses));

        let invites = listen(Listener::builder());
        let unknown = call_with_something_slow(invites.path(), 1);
        handle(&invites);
        assert_eq!(*refusals.lock().unwrap(), [Error::Refused(Refusal::Policy), Error::Refused(Refusal::Token)]);
        let invitation = invites.invite(SOON).unwrap();
        let invited = call_with_something_slow(invites.path(), token_of(&invitation));
        handle(&invites);
        in_time("dropping the invitation", || drop(invitation));

        let invitation = invites.invite(SOON).unwrap();
        let admitted = call_with_something_slow(invites.path(), 0);
        let accepted = in_time("accepting", || invitation.accept(Duration::from_millis(5)));
        assert_eq!(accepted.unwrap_err().error, Error::TimedOut);
        drop(invitation);
        in_time("dropping the listener", || drop(invites));
        drop((unknown, invited, admitted));
        bystander.assert_undisturbed();
        before.assert_unchanged();
    }
}

attack! {
    /// A process sends descriptors before it is accepted, to a listener over a socket that another process made. From
    /// Linux 6.16 the kernel refuses these descriptors.
    a10_descriptors_for_a_listener_that_a_service_manager_made {
        let directory = Directory::new();
        let (listener, copy) = activate(&directory, Listener::builder());
        let mut on: i32 = -1;
        let mut len = 4;
        // SAFETY: the pointers are to local variables of the sizes given.
        let known = unsafe {
            libc::getsockopt(copy.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw mut on).cast(), &raw mut len)
        };
        if known != 0 {
            return eprintln!("this kernel passes descriptors to every socket");
        }
        let spare = file_with(b"x");
        let refused = wire::send(call(listener.path()), &handshake::announce(0).to_bytes(), &[spare.as_fd()]);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
        // An accepted process can send descriptors.
        let client = std::thread::spawn({
            let connector = Connector::new().directory(&directory.0);
            let name = listener.path().file_name().unwrap().to_str().unwrap().to_owned();
            move || connector.connect(&name, SOON).unwrap().send(Outgoing::new(b"").handle(file_with(b"y"))).unwrap()
        });
        let mut message = listener.accept(SOON).unwrap().recv_by(SOON).unwrap();
        assert_eq!(content_of(message.take_handles().unwrap().remove(0)), b"y");
        client.join().unwrap();
    }
}

attack! {
    /// A process sends a descriptor that is slow to close, and very many others send a descriptor each, before they are
    /// accepted. The number of sockets that wait to be closed is bounded. Once the slow descriptor is closed, the
    /// listener accepts again.
    a35_connections_that_are_slow_to_close {
        const VISITORS: usize = 600;
        let directory = Directory::new();
        let bystander = Bystander::new();
        let before = Census::take();
        let (listener, copy) = activate(&directory, Listener::builder());
        pass_descriptors(&copy, true);
        let accept = || assert_eq!(listener.accept(Duration::from_millis(1)).unwrap_err().error, Error::TimedOut);
        let (slow, server) = slow_to_close();
        let visitor = call(listener.path());
        wire::send(&visitor, b"nonsense", &[slow.as_fd()]).unwrap();
        drop((slow, visitor));
        accept();
        let open = descriptors();
        let spare = file_with(b"x");
        let address = SocketAddrUnix::new(listener.path()).unwrap();
        for _ in 0..VISITORS {
            let visitor = seqpacket();
            rustix::io::ioctl_fionbio(&visitor, true).unwrap();
            // The queue of the listening socket is full once the listener takes no connections any more.
            if rustix::net::connect(&visitor, &address).is_ok() {
                wire::send(&visitor, b"nonsense", &[spare.as_fd()]).unwrap();
            }
            drop(visitor);
            accept();
            assert!(descriptors() <= open + 128 + 8, "{} descriptors, {open} at first", descriptors());
        }
        let begin = thread_time();
        assert_eq!(listener.accept(Duration::from_millis(200)).unwrap_err().error, Error::TimedOut);
        assert!(thread_time() - begin < Duration::from_millis(150), "the wait used {:?}", thread_time() - begin);
        // The end of the slow connection ends its close.
        drop(server);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let name = listener.path().file_name().unwrap().to_str().unwrap();
                directory.connect(name).unwrap().send(b"in").unwrap();
            });
            assert_eq!(listener.accept(SOON).unwrap().recv_by(SOON).unwrap().bytes(), b"in");
        });
        drop((listener, copy, spare));
        bystander.assert_undisturbed();
        before.assert_unchanged();
    }
}

attack! {
    /// A process sends a descriptor that is slow to close to a listener that takes no connections: the listener can be
    /// dropped at once.
    a35_a_connection_in_the_queue_that_is_slow_to_close {
        let directory = Directory::new();
        let bystander = Bystander::new();
        let before = Census::take();
        let (listener, copy) = activate(&directory, Listener::builder());
        pass_descriptors(&copy, true);
        // The close of the listener's socket is the last one.
        drop(copy);
        let (slow, server) = slow_to_close();
        let visitor = call(listener.path());
        wire::send(&visitor, b"nonsense", &[slow.as_fd()]).unwrap();
        drop((slow, visitor));
        in_time("dropping the listener", || drop(listener));
        bystander.assert_undisturbed();
        drop(server);
        before.assert_unchanged();
    }
}

attack! {
    /// A process that is accepted cannot be sent the first packets of its channel. The call of `accept` goes on, and
    /// returns the channel to the next process.
    a35_a_client_that_cannot_be_answered {
        let directory = Directory::new();
        let refusals: Arc<Mutex<Vec<Refused>>> = Arc::default();
        let noted = refusals.clone();
        let builder = Listener::builder().directory(&directory.0);
        let listener = builder.on_refused(move |refused| noted.lock().unwrap().push(*refused)).bind("name").unwrap();
        let Some(_caller) = call_from_a_socket_without_descriptors(listener.path()) else { return };
        std::thread::scope(|scope| {
            scope.spawn(|| directory.connect("name").unwrap().send(b"in").unwrap());
            assert_eq!(listener.accept(SOON).unwrap().recv_by(SOON).unwrap().bytes(), b"in");
        });
        let refusals = refusals.lock().unwrap();
        let expected = (Some(std::process::id()), Error::System { call: "sendmsg", code: libc::EPERM });
        let refusals: Vec<_> =
            refusals.iter().map(|refused| (refused.peer.and_then(|peer| peer.pid), refused.why)).collect();
        assert_eq!(refusals, [expected]);
    }
}

attack! {
    /// An invited process has gone before it is accepted. Nobody else can come by the invitation, so the call of
    /// `Invitation::accept` fails, and does not wait.
    a35_an_invited_process_that_has_gone {
        let directory = Directory::new();
        let listener = directory.listen("name").unwrap();
        let invitation = listener.invite(SOON).unwrap();
        let socket = call(listener.path());
        wire::send(&socket, &handshake::announce(0).to_bytes(), &[]).unwrap();
        wire::send(&socket, &connect(token_of(&invitation)).to_bytes(), &[]).unwrap();
        drop(socket);
        let failed = in_time("accepting", || invitation.accept(2 * SOON)).unwrap_err();
        assert_eq!(failed.error, Error::PeerClosed);
        assert!(failed.to_string().contains("the invited process has closed its connection"), "{failed}");
    }
}

attack! {
    /// Many such processes, each of which takes the listener long, do not keep `accept` past its deadline.
    a35_clients_that_cannot_be_answered_and_a_deadline {
        const CALLERS: usize = 5;
        const WAITED: Duration = Duration::from_millis(20);
        let directory = Directory::new();
        let (admitted, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (admits, refuses) = (admitted.clone(), refused.clone());
        let listener = Listener::builder()
            .directory(&directory.0)
            .policy(move |_| admits.fetch_add(1, Ordering::SeqCst) < usize::MAX)
            .on_refused(move |_| {
                refuses.fetch_add(1, Ordering::SeqCst);
                // The deadline of the call passes meanwhile.
                std::thread::sleep(2 * WAITED);
            })
            .bind("name")
            .unwrap();
        let callers: Option<Vec<_>> =
            (0..CALLERS).map(|_| call_from_a_socket_without_descriptors(listener.path())).collect();
        let Some(_callers) = callers else { return };
        let invitation = listener.invite(SOON).unwrap();
        while admitted.load(Ordering::SeqCst) < CALLERS {
            assert_eq!(invitation.accept(WAITED).unwrap_err().error, Error::TimedOut);
        }
        assert_eq!(refused.load(Ordering::SeqCst), 0);
        for call in 1..=CALLERS {
            assert_eq!(listener.accept(WAITED).unwrap_err().error, Error::TimedOut);
            assert_eq!(refused.load(Ordering::SeqCst), call);
        }
    }
}

attack! {
    /// Very many processes connect and never finish, send anything, or send descriptors. A process with a connect
    /// request is accepted, and the memory and descriptors held for the others are bounded.
    a35_connections_that_are_never_finished {
        let directory = Directory::new();
        let listener = directory.listen("name").unwrap();
        let before = descriptors();
        let spare = file_with(b"x");
        let mut numbers = Numbers(4);
        let ((), channels) = while_accepting(&listener, || {
            let mut kept = Vec::new();
            for n in 0..1500usize {
                let socket = call(listener.path());
                match n % 5 {
                    0 => drop(wire::send(&socket, &handshake::announce(0).to_bytes(), &[])),
                    1 => drop(wire::send(&socket, &vec![numbers.next() as u8; numbers.below(200)], &[])),
                    2 => drop(wire::send(&socket, &handshake::announce(0).to_bytes(), &[spare.as_fd(); 200])),
                    3 => {
                        let packet = Packet { kind: numbers.below(17) as u32, descriptors: 0, token: 1, fields: [handshake::MAGIC | 1, 0, 0] };
                        drop(wire::send(&socket, &packet.to_bytes(), &[]));
                    }
                    _ => {}
                }
                kept.push(socket);
                // The count includes the descriptors of both sides for retained connections, and the listener's
                // pending connections.
                if n % 500 == 499 {
                    let channel = in_time("connecting", || directory.connect("name").unwrap());
                    channel.send(b"in").unwrap();
                    assert!(descriptors() < before + kept.len() + 128 + 64 + 64, "{} descriptors", descriptors());
                }
            }
        });
        assert!(channels.iter().filter(|channel| channel.recv_by(SOON).is_ok_and(|message| message.bytes() == b"in")).count() >= 3);
    }
}

attack! {
    /// A server answers a connecting process with anything, or not at all.
    a35_a_server_that_answers_with_anything {
        let directory = Directory::new();
        let trap = seqpacket();
        rustix::net::bind(&trap, &SocketAddrUnix::new(directory.at("name")).unwrap()).unwrap();
        rustix::net::listen(&trap, 64).unwrap();
        let spare = file_with(b"x");
        let refuse = |reason: u64| Packet { kind: kind::REFUSE, fields: [handshake::MAGIC | reason, 1, 1], ..Packet::default() };
        let welcome = Packet { kind: kind::ACCEPT, ..Packet::default() };
        // Packets, and the number of descriptors attached to each.
        type Packets = Vec<(Vec<u8>, usize)>;
        let answers: [(&str, Packets); 8] = [
            ("nothing", vec![]),
            ("rubbish", vec![(vec![7; 48], 0)]),
            ("short", vec![(vec![1; 3], 0)]),
            ("descriptors", vec![(welcome.to_bytes().to_vec(), 200)]),
            ("unknown reason", vec![(refuse(77).to_bytes().to_vec(), 0)]),
            ("wakes", vec![(Packet::wake().to_bytes().to_vec(), 0); 100]),
            ("a open before a handshake_packet", vec![(handshake::open(1, 4).to_bytes().to_vec(), 1)]),
            ("a knock", vec![(handshake::announce(0).to_bytes().to_vec(), 0), (connect(1).to_bytes().to_vec(), 0)]),
        ];
        for (what, packets) in answers {
            let open = descriptors();
            std::thread::scope(|scope| {
                let client = scope.spawn(|| {
                    let begin = Instant::now();
                    let result = Connector::new().directory(&directory.0).options(Options::new()).connect("name", Duration::from_millis(200));
                    assert!(begin.elapsed() < SOON);
                    result.map(|channel| channel.recv_by(Duration::from_millis(50)).map(drop))
                });
                let socket = rustix::net::accept(&trap).unwrap();
                for (bytes, count) in packets {
                    let _ = wire::send(&socket, &bytes, &vec![spare.as_fd(); count]);
                }
                match client.join().unwrap() {
                    Err(failed) => assert!(matches!(failed.error, Error::TimedOut | Error::BadPeer(_) | Error::Refused(_) | Error::PeerClosed), "{what}: {failed:?}"),
                    Ok(result) => assert!(result.is_err(), "{what}"),
                }
            });
            assert_no_more_than(open, what);
        }
        let _ = RawPeer::silent(trap, 1, 4);
    }
}
