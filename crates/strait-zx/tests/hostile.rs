//! Tests with a peer that does not use this library's functions: a random walk of calls on an end, and a hostile peer.

mod rig;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use rig::*;
use strait::{Channel, Handle, Outgoing};
use strait_zx::abi::*;

/// Random numbers, equal for equal seeds.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// Returns the bytes of a message that changes signals.
fn change(clear: u32, set: u32) -> Vec<u8> {
    let mut bytes = [clear.to_le_bytes(), set.to_le_bytes()].concat();
    bytes.resize(31, 0);
    bytes
}

fn token() -> Handle {
    Channel::pair().unwrap().0.into()
}

/// Makes an end in this process; a write of the other end is like a write of another process, as no thread is told.
fn end_and_peer() -> (zx_handle_t, Channel) {
    let (peer, end) = strait_zx::channel_options().pair().unwrap();
    (strait_zx::handle_from_channel(end).unwrap(), peer)
}

/// An end, its peer, a port, and what a program can know about them.
struct Walk {
    a: zx_handle_t,
    peer: Channel,
    port: zx_handle_t,
    /// The unread messages.
    unread: VecDeque<Vec<u8>>,
    /// The program-defined signals of the end after all changes.
    user: zx_signals_t,
    /// The awaited signals of the waits without a packet yet, by key.
    armed: BTreeMap<u64, zx_signals_t>,
    steps: Vec<&'static str>,
}

impl Walk {
    fn new() -> Self {
        let (a, peer) = end_and_peer();
        let (unread, armed) = (VecDeque::new(), BTreeMap::new());
        Self { a, peer, port: port(), unread, user: 0, armed, steps: Vec::new() }
    }

    fn signals(&self) -> zx_signals_t {
        self.user | if self.unread.is_empty() { 0 } else { ZX_CHANNEL_READABLE }
    }

    fn step(&mut self, number: u64, random: &mut Random) {
        let user = random.one_of(&[ZX_USER_SIGNAL_0, ZX_USER_SIGNAL_7]);
        match random.below(8) {
            0 => {
                self.steps.push("message");
                let message = number.to_le_bytes().to_vec();
                self.peer.try_send(&message[..]).unwrap();
                self.unread.push_back(message);
            }
            1 => {
                self.steps.push("change");
                let (clear, set) = random.one_of(&[(user, 0), (0, user)]);
                self.peer.try_send(Outgoing::new(&change(clear, set)).handle(token())).unwrap();
                self.user = self.user & !clear | set;
            }
            2 => {
                self.steps.push("wait_async");
                let mask = random.one_of(&[ZX_CHANNEL_READABLE, ZX_CHANNEL_PEER_CLOSED, user]);
                // A wait for an edge that begins without its signal ends with any such signal.
                let options = if self.signals() & mask == 0 { random.one_of(&[0, ZX_WAIT_ASYNC_EDGE]) } else { 0 };
                assert_eq!(zx_object_wait_async(self.a, self.port, number, mask, options), ZX_OK);
                self.armed.insert(number, mask);
            }
            3 => {
                self.steps.push("query");
                let mask = random.one_of(&[0, ZX_CHANNEL_READABLE, ZX_CHANNEL_PEER_CLOSED, user]);
                let observed = wait(self.a, mask, 0).1;
                if mask == 0 {
                    assert_eq!(observed, self.signals() | ZX_CHANNEL_WRITABLE, "{:?}", self.steps);
                }
            }
            4 => {
                self.steps.push("call");
                assert_eq!(call_with(self.a, 0, b"....", &[], (4, 0)).status, ZX_ERR_TIMED_OUT);
                let request = self.peer.try_recv().unwrap().bytes().to_vec();
                if random.below(2) == 0 {
                    // A late answer is an ordinary message.
                    self.peer.try_send(&request[..]).unwrap();
                    self.unread.push_back(request);
                }
            }
            5 => {
                self.steps.push("read");
                let read = read(self.a);
                match self.unread.pop_front() {
                    Some(message) => assert_eq!((read.status, read.bytes), (ZX_OK, message), "{:?}", self.steps),
                    None => assert_eq!(read.status, ZX_ERR_SHOULD_WAIT, "{:?}", self.steps),
                }
            }
            6 => {
                self.steps.push("signal_peer");
                assert_eq!(zx_object_signal_peer(self.a, 0, user), ZX_OK);
                self.peer.try_recv().unwrap();
            }
            _ => self.take_packets(),
        }
    }

    /// Takes the packets. Each wait whose signals are set now has one.
    fn take_packets(&mut self) {
        self.steps.push("packets");
        loop {
            let is_due = self.armed.values().any(|mask| mask & self.signals() != 0);
            let limit = if is_due { zx_deadline_after(20_000_000_000) } else { 0 };
            match port_wait(self.port, limit) {
                (ZX_OK, packet) => assert!(self.armed.remove(&packet.key).is_some(), "{:?}", self.steps),
                (status, _) => {
                    assert_eq!((status, is_due), (ZX_ERR_TIMED_OUT, false), "{:?} {:?}", self.armed, self.steps);
                    return;
                }
            }
        }
    }
}

#[test]
fn a_wait_whose_signal_is_set_gets_its_packet_whatever_was_called_before() {
    for seed in 0..200 {
        let (mut random, mut walk) = (Random(seed), Walk::new());
        for number in 0..60 {
            walk.step(number, &mut random);
        }
        walk.take_packets();
        assert_eq!((close(walk.a), close(walk.port)), (ZX_OK, ZX_OK));
    }
}

/// Shows that an object whose descriptors do not arrive counts as malformed: neither a read nor a call, which have
/// taken the message, reports that nothing has happened.
#[test]
fn an_object_without_its_descriptors_ends_a_read_and_a_call() {
    for (type_, rights) in [(ZX_OBJ_TYPE_EVENT, ZX_DEFAULT_EVENT_RIGHTS), (ZX_OBJ_TYPE_PORT, ZX_DEFAULT_PORT_RIGHTS)] {
        let (a, peer) = end_and_peer();
        // The other end of the carrier is open, and sends nothing.
        let (_open, carrier) = Channel::pair().unwrap();
        let (_also_open, other) = Channel::pair().unwrap();
        let with_record = |bytes: &[u8]| {
            let mut bytes = [bytes, &type_.to_le_bytes(), &rights.to_le_bytes()].concat();
            bytes.resize(bytes.len() + 24, 0);
            bytes
        };
        peer.send(Outgoing::new(&with_record(b"message")).handles([carrier.into()])).unwrap();
        assert_eq!(await_read(a).status, ZX_ERR_PEER_CLOSED);
        scope(|scope| {
            let calls = scope.spawn(|| call(a, b"....", &[]).status);
            let request = peer.recv().unwrap();
            peer.send(Outgoing::new(&with_record(request.bytes())).handles([other.into()])).unwrap();
            assert_eq!(calls.join().unwrap(), ZX_ERR_PEER_CLOSED);
        });
        assert_eq!(close(a), ZX_OK);
    }
}

/// How long the hostile peer attacks.
const ATTACK: Duration = Duration::from_secs(2);

/// How long a call may take at most. Each has a deadline within a millisecond.
const TOO_LONG: Duration = Duration::from_secs(20);

/// Returns a handle of a random kind, which may be what a record wants, or something else.
fn something(random: &mut Random, depth: usize) -> Handle {
    let memory = || -> OwnedFd {
        let memory = rustix::fs::memfd_create("hostile", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&memory, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&memory, rustix::fs::SealFlags::SHRINK).unwrap();
        memory
    };
    let stream = || -> OwnedFd { std::os::unix::net::UnixStream::pair().unwrap().0.into() };
    let seqpacket = || -> OwnedFd {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap().0
    };
    match random.below(if depth == 0 { 5 } else { 8 }) {
        0 => OwnedFd::from(std::fs::File::open("/dev/null").unwrap()).into(),
        1 => memory().into(),
        2 => stream().into(),
        3 => seqpacket().into(),
        4 => token(),
        kind => {
            // A carrier of an event, of an end of an eventpair, or of a port; or of anything.
            let cargo: Vec<Handle> = match (kind, random.below(3)) {
                (_, 0) => (0..random.below(5)).map(|_| something(random, depth - 1)).collect(),
                (5, _) => vec![seqpacket().into(), seqpacket().into()],
                (_, which) => {
                    let sockets = (0..1 + which).map(|_| stream().into());
                    [memory().into()].into_iter().chain(sockets).collect()
                }
            };
            let (into, out) = Channel::pair().unwrap();
            into.try_send(Outgoing::new(b"").handles(cargo)).unwrap();
            out.into()
        }
    }
}

/// Sends a random message.
fn attack(peer: &Channel, random: &mut Random) {
    let types = [
        (ZX_OBJ_TYPE_CHANNEL, ZX_DEFAULT_CHANNEL_RIGHTS),
        (ZX_OBJ_TYPE_EVENT, ZX_DEFAULT_EVENT_RIGHTS),
        (ZX_OBJ_TYPE_EVENTPAIR, ZX_DEFAULT_EVENTPAIR_RIGHTS),
        (ZX_OBJ_TYPE_PORT, ZX_DEFAULT_PORT_RIGHTS),
        (ZX_OBJ_TYPE_VMO, ZX_DEFAULT_VMO_RIGHTS),
        (STRAIT_ZX_OBJ_TYPE_FD, STRAIT_ZX_DEFAULT_FD_RIGHTS),
        (1, 0),
    ];
    match random.below(8) {
        0 => {
            for _ in 0..random.below(600) {
                let change = change(ZX_USER_SIGNAL_ALL, (random.below(256) as u32) << 24);
                let _ = peer.try_send(Outgoing::new(&change).handle(token()));
            }
        }
        1 => {
            let _ = peer.try_send(&vec![random.below(256) as u8; random.one_of(&[0, 1, 4, 31, 32, 70_000])][..]);
        }
        2 => {
            // An answer to a call, perhaps.
            let _ = peer.try_send(&(1 << 31 | random.below(8) as u32).to_ne_bytes()[..]);
        }
        3 => while peer.try_recv().is_ok() {},
        _ => {
            let handles: Vec<Handle> = (0..1 + random.below(2)).map(|_| something(random, 1)).collect();
            let mut bytes = vec![0; random.below(3)];
            for _ in 0..handles.len() - usize::from(random.below(16) == 0) {
                let (type_, rights) = random.one_of(&types);
                bytes.extend_from_slice(&type_.to_le_bytes());
                bytes.extend_from_slice(&rights.to_le_bytes());
                bytes.extend((0..16).map(|_| random.below(256) as u8));
                bytes.extend_from_slice(&((random.below(256) as u32) << 24).to_le_bytes());
                bytes.extend_from_slice(&(random.below(2) as u32).to_le_bytes());
            }
            let _ = peer.try_send(Outgoing::new(&bytes).handles(handles));
        }
    }
}

/// Makes a random call on an end of the hostile peer, and calls on the handles that the call brings. No call panics.
fn be_a_victim(handle: zx_handle_t, port: zx_handle_t, random: &mut Random) {
    let soon = zx_deadline_after(random.below(1_000_000) as i64);
    let mask = random.one_of(&[ZX_CHANNEL_READABLE, ZX_CHANNEL_PEER_CLOSED, ZX_CHANNEL_WRITABLE, ZX_USER_SIGNAL_ALL]);
    let check = |status: zx_status_t| {
        // The status of a call that has panicked.
        assert_ne!(status, ZX_ERR_INTERNAL);
        status
    };
    match random.below(9) {
        0 | 1 => {
            let read = read_with(handle, 0, random.one_of(&[4, 65_536]), 64);
            check(read.status);
            for received in read.handles {
                check(wait(received.handle, u32::MAX, soon).0);
                check(read_with(received.handle, 0, 8, 8).status);
                check(zx_object_signal(received.handle, 0, ZX_USER_SIGNAL_0));
                check(vmo_read(received.handle, 0, 8).0);
                check(port_wait(received.handle, 0).0);
                assert_eq!(close(received.handle), ZX_OK);
            }
        }
        2 => {
            check(wait(handle, mask, soon).0);
        }
        3 => {
            check(zx_object_wait_async(handle, port, 1, mask, random.one_of(&[0, ZX_WAIT_ASYNC_EDGE])));
        }
        4 => {
            let called = call_with(handle, soon, b"....", &[], (64, 4));
            check(called.status);
            called.handles.into_iter().for_each(|handle| assert_eq!(close(handle), ZX_OK));
        }
        5 => {
            check(zx_object_signal_peer(handle, 0, ZX_USER_SIGNAL_0));
        }
        6 => {
            let sent = event();
            if check(write(handle, b"x", &[sent])) == ZX_ERR_SHOULD_WAIT {
                assert_eq!(close(sent), ZX_OK);
            }
        }
        7 => {
            check(port_wait(port, soon).0);
        }
        _ => {
            let mut items = [handle; 2].map(|handle| zx_wait_item_t { handle, waitfor: mask, pending: 0 });
            // SAFETY: the pointer and the length are those of an array.
            check(unsafe { zx_object_wait_many(items.as_mut_ptr(), 2, soon) });
        }
    }
}

/// Shows that a hostile peer delays neither the calls on its own channels, each of which has a deadline, nor another
/// channel.
#[test]
fn a_hostile_peer_delays_no_call() {
    let (a, b) = channel();
    let port = port();
    let ends = Mutex::new(Vec::new());
    let is_over = AtomicBool::new(false);
    let in_time = |what: &str, begin: Instant| assert!(begin.elapsed() < TOO_LONG, "{what}: {:?}", begin.elapsed());
    scope(|scope| {
        scope.spawn(|| {
            let (mut random, mut peers) = (Random(1), VecDeque::new());
            while !is_over.load(Ordering::SeqCst) {
                if random.below(10) == 0 || peers.is_empty() {
                    let (handle, peer) = end_and_peer();
                    peers.push_back(peer);
                    ends.lock().unwrap().push(handle);
                    if peers.len() > 4 {
                        peers.pop_front();
                        assert_eq!(close(ends.lock().unwrap().remove(0)), ZX_OK);
                    }
                }
                let peer = random.below(peers.len());
                attack(&peers[peer], &mut random);
            }
        });
        for seed in [2, 3] {
            let (ends, is_over, in_time) = (&ends, &is_over, &in_time);
            scope.spawn(move || {
                let mut random = Random(seed);
                while !is_over.load(Ordering::SeqCst) {
                    let handle = {
                        let ends = ends.lock().unwrap();
                        if ends.is_empty() { 0 } else { random.one_of(&ends) }
                    };
                    let begin = Instant::now();
                    be_a_victim(handle, port, &mut random);
                    in_time("a call on the peer's channel", begin);
                }
            });
        }
        scope.spawn(|| {
            loop {
                let request = await_read(b);
                if request.status != ZX_OK {
                    return;
                }
                assert_eq!(write(b, &request.bytes, &[]), ZX_OK);
            }
        });
        let begin = Instant::now();
        while begin.elapsed() < ATTACK {
            let begin = Instant::now();
            assert_eq!(call_with(a, deadline(), b"....", &[], (4, 0)).status, ZX_OK);
            in_time("a call on another channel", begin);
        }
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(close(a), ZX_OK);
    });
    for handle in ends.into_inner().unwrap().into_iter().chain([b, port]) {
        assert_eq!(close(handle), ZX_OK);
    }
}
