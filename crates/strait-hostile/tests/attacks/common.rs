//! The parts of an attack: a victim, an attacker, a bystander, and a count of what the process holds.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::time::{ClockId, clock_gettime};
use strait::{Channel, Error, Handle, Options, Outgoing};
use strait_hostile::RawPeer;
use strait_hostile::record::Block;

/// The environment variable with the name of the test that a process must run.
const TEST: &str = "STRAIT_ATTACK";

/// How long the process of a test may run before it counts as hanging. The longest tests take seconds on an otherwise
/// idle machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// How long a slow machine may take for any wait that must end. Some calls take a second in a debug build on an idle
/// machine, and forty times as long on an overloaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(90);

/// Declares an attack: a test that runs in a process of its own.
macro_rules! attack {
    ($(#[$meta:meta])* $name:ident $body:block) => {
        $(#[$meta])*
        #[test]
        fn $name() {
            $crate::common::alone(concat!(module_path!(), "::", stringify!($name)), || $body);
        }
    };
}
pub(crate) use attack;

/// Starts this test program again for one test. In that process, runs `play`.
pub(crate) fn alone(test: &str, play: impl FnOnce()) {
    let (_, test) = test.split_once("::").expect("a crate and a test in it");
    if std::env::var(TEST).as_deref() == Ok(test) {
        return play();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads", "1"])
        .env(TEST, test)
        .env("RUST_BACKTRACE", "0");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = std::io::Read::read_to_string(&mut errors, &mut text);
        text
    });
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if begin.elapsed() >= LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let errors = reader.join().unwrap();
    match status {
        Some(status) => assert!(status.success(), "the victim ended with {status}:\n{errors}"),
        None => panic!("the victim hangs:\n{errors}"),
    }
}

/// Returns a connected pair of sockets for a link. As the wire protocol demands of the maker of a pair, the kernel
/// attaches the sender's credentials to each packet.
pub(crate) fn sockets() -> (OwnedFd, OwnedFd) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_passcred(&pair.0, true).unwrap();
    sockopt::set_socket_passcred(&pair.1, true).unwrap();
    pair
}

/// Returns an attacker and its victim, with an open link and an open first channel.
pub(crate) fn meet() -> (RawPeer, Channel) {
    meet_with(&Options::new())
}

/// Returns an attacker and its victim, with an open link and an open first channel. The victim's channel has these
/// options.
pub(crate) fn meet_with(options: &Options) -> (RawPeer, Channel) {
    let (ours, theirs) = sockets();
    let channel = options.over(theirs).unwrap();
    let mut peer = RawPeer::meet(ours).unwrap();
    peer.pump().unwrap();
    peer.send(b"hello").unwrap();
    assert_eq!(channel.try_recv().unwrap().bytes(), b"hello");
    (peer, channel)
}

/// A channel with both ends in this process, through shared memory and a socket like a channel to another process.
pub(crate) struct Bystander(Channel, Channel);

impl Bystander {
    pub(crate) fn new() -> Self {
        let (one, other) = sockets();
        let end = |socket| Channel::over(socket).unwrap();
        let this = Self(end(one), end(other));
        this.assert_undisturbed();
        this
    }

    /// Checks that the channel still carries messages of every kind in each direction.
    pub(crate) fn assert_undisturbed(&self) {
        for (from, to) in [(&self.0, &self.1), (&self.1, &self.0)] {
            from.try_send(b"small").unwrap();
            assert_eq!(to.recv_by(SOON).unwrap().bytes(), b"small");
            let file = file_with(b"content");
            from.try_send(Outgoing::new(&[1; 100_000]).handle(file)).unwrap();
            let mut message = to.recv_by(SOON).unwrap();
            assert_eq!(message.bytes(), [1; 100_000]);
            assert_eq!(content_of(message.take_handles().unwrap().remove(0)), b"content");
        }
    }
}

/// The numbers of open descriptors and of mappings of this process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Census {
    descriptors: usize,
    mappings: usize,
}

impl Census {
    pub(crate) fn take() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            descriptors: descriptors(),
            mappings: maps
                .lines()
                .filter(|line| line.contains("memfd:strait") || line.contains("memfd:hostile"))
                .count(),
        }
    }

    /// Checks that soon no more is open or mapped than at first. Less is allowed, since background work may have
    /// ended.
    pub(crate) fn assert_unchanged(&self) {
        let begin = Instant::now();
        let is_more = |now: Self| now.descriptors > self.descriptors || now.mappings > self.mappings;
        while is_more(Self::take()) {
            assert!(begin.elapsed() < SOON, "at first {self:?}, now {:?}", Self::take());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the number of open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Checks that soon at most `most` descriptors are open; a thread of the library closes some in the background.
pub(crate) fn assert_no_more_than(most: usize, what: &str) {
    let begin = Instant::now();
    while descriptors() > most {
        assert!(begin.elapsed() < SOON, "{what}: {} descriptors, not {most}", descriptors());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs an attack on a new victim. Afterwards nothing of the attack may be left, and the bystander must be
/// undisturbed.
pub(crate) fn on_a_victim(attack: impl FnOnce(RawPeer, Channel)) {
    on_a_victim_with(&Options::new(), attack);
}

/// Runs an attack on a new victim whose channel has these options. Afterwards nothing of the attack may be left, and
/// the bystander must be undisturbed.
pub(crate) fn on_a_victim_with(options: &Options, attack: impl FnOnce(RawPeer, Channel)) {
    let bystander = Bystander::new();
    let census = Census::take();
    let (peer, channel) = meet_with(options);
    attack(peer, channel);
    bystander.assert_undisturbed();
    census.assert_unchanged();
}

/// Checks that a call of the victim failed because its peer is a bad peer. Returns the reason.
pub(crate) fn bad_peer<T: std::fmt::Debug>(result: Result<T, impl Into<Error>>) -> &'static str {
    match result.map_err(Into::into) {
        Err(Error::BadPeer(reason)) => reason,
        other => panic!("a bad peer was taken for {:.200}", format!("{other:?}")),
    }
}

/// Has the victim receive the packets in its socket. If the victim then takes the peer for a bad peer, returns the
/// reason. The channel cannot be used afterwards.
pub(crate) fn verdict(peer: &mut RawPeer, channel: &Channel) -> Option<&'static str> {
    peer.put_block(Block { id: 63, usage: 1, len: 0, once: 0 }).unwrap();
    let reason = bad_peer(channel.try_recv());
    (reason != "a record that refers to memory which was never sent").then_some(reason)
}

/// Does `work`, and checks that it takes less than [`SOON`].
pub(crate) fn in_time<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    assert!(begin.elapsed() < SOON, "{what} took {:?}", begin.elapsed());
    result
}

/// Returns the processor time used by this thread.
pub(crate) fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

/// Returns the processor time used by all threads of this process.
pub(crate) fn process_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap()
}

/// Returns a file with this content, for sending.
pub(crate) fn file_with(content: &[u8]) -> OwnedFd {
    let fd = rustix::fs::memfd_create("content", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, content, 0).unwrap(), content.len());
    fd
}

/// Returns the content of a received file.
pub(crate) fn content_of(handle: Handle) -> Vec<u8> {
    let fd = handle.into_fd().unwrap();
    let mut content = vec![0; usize::try_from(rustix::fs::fstat(&fd).unwrap().st_size).unwrap()];
    assert_eq!(rustix::io::pread(fd.as_fd(), &mut content, 0).unwrap(), content.len());
    content
}

/// A generator of pseudo-random numbers, equal in every run.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ self.0 >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ mixed >> 33
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Returns a number that is likely to find mistakes: the limit of a type, a small number, or any number.
    pub(crate) fn nasty(&mut self) -> u64 {
        const NASTY: [u64; 12] = [0, 1, 2, 3, 4, 7, 63, 64, u32::MAX as u64, 1 << 32, u64::MAX, i64::MAX as u64];
        match self.below(3) {
            0 => self.next(),
            1 => self.next() % 256,
            _ => NASTY[self.below(NASTY.len())],
        }
    }
}
