//! The proxy: every packet on the socket of a link passes through it, and may come out changed.
//!
//! Both ends of every link are real ends of the library. Each is an honest peer of the other as long as nothing is
//! changed, and a hostile one from then on. So inputs reach as deep into the library as real programs do.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::memory::{Shared, memfd};

/// The number of bytes of a packet.
pub(crate) const PACKET: usize = 48;

/// The kinds of packets that the proxy treats specially.
const HANDSHAKE: u32 = 7;
const INTRODUCE: u32 = 8;
const ARENA: u32 = 9;

/// The greatest number of links, and of pieces of memory, that the proxy tracks.
const MOST_LINKS: usize = 24;
const MOST_MEMORIES: usize = 64;

/// The greatest number of packets that are moved in one call of [`Proxies::pump`].
const MOST_MOVED: usize = 4096;

/// A packet that the proxy has received and not sent yet.
#[derive(Debug)]
struct Packet {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// One side of a link.
#[derive(Debug, Default)]
struct Side {
    /// The proxy's socket, which the end at this side takes for its peer's; `None` once it is closed.
    socket: Option<OwnedFd>,
    /// The packets that the end at this side will get.
    queue: VecDeque<Packet>,
}

/// A change to a packet that will pass later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tamper {
    /// How many packets pass unchanged before the changed one.
    pub(crate) after: u8,
    pub(crate) what: u8,
    pub(crate) how: u8,
    pub(crate) value: u32,
}

/// A link that passes through the proxy.
#[derive(Debug)]
struct Proxy {
    sides: [Side; 2],
    tampers: [Option<Tamper>; 2],
    /// Whether there never was an end at the second side.
    lonely: bool,
}

/// All links, and what the proxy has learnt from their packets.
#[derive(Debug, Default)]
pub(crate) struct Proxies {
    proxies: Vec<Proxy>,
    pub(crate) memories: Vec<Shared>,
    /// The tokens and names seen in packets.
    tokens: Vec<u128>,
    /// Copies of the packets that have passed, unchanged.
    seen: Vec<Vec<u8>>,
    /// The other ends of sockets that the proxy handed out.
    loose: Vec<OwnedFd>,
    /// Memory that shrinks after it was sent.
    shrinking: Vec<OwnedFd>,
    /// Whether all processes have the same name in their handshakes.
    one_name: bool,
    /// Whether the proxy did anything that an honest peer, or the kernel, would not do.
    pub(crate) tampered: bool,
    /// The number of announcements that have passed.
    announcements: usize,
}

/// Returns a connected pair of sockets.
pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair")
}

/// The name in all handshakes, if all links are to lead to one process; the begin of the names otherwise.
const ONE_NAME: u128 = 0x5eed << 64;

impl Proxies {
    /// Returns a proxy without links. With `one_name` all processes have the same name in their handshakes.
    pub(crate) fn new(one_name: bool) -> Self {
        Self { one_name, ..Self::default() }
    }

    /// Returns the two ends of a new link that passes through the proxy.
    pub(crate) fn link(&mut self) -> (OwnedFd, OwnedFd) {
        let ((one, ours), (other, theirs)) = (pair(), pair());
        self.between(ours, theirs);
        (one, other)
    }

    fn between(&mut self, one: OwnedFd, other: OwnedFd) {
        let side = |socket| Side { socket: Some(socket), queue: VecDeque::new() };
        self.proxies.push(Proxy { sides: [side(one), side(other)], tampers: [None; 2], lonely: false });
    }

    /// Returns one end of a new link at whose other end there is only the proxy.
    fn lonely_link(&mut self) -> OwnedFd {
        let (handed, ours) = pair();
        if self.proxies.len() < MOST_LINKS {
            let first = Side { socket: Some(ours), queue: VecDeque::new() };
            self.proxies.push(Proxy { sides: [first, Side::default()], tampers: [None; 2], lonely: true });
        }
        handed
    }

    fn which(&self, who: u8) -> Option<(usize, usize)> {
        let links = self.proxies.len();
        (links > 0).then(|| (usize::from(who / 2) % links, usize::from(who % 2)))
    }

    /// Sets the change for a packet that will come from one side of a link.
    pub(crate) fn tamper(&mut self, who: u8, tamper: Tamper) {
        if let Some((link, side)) = self.which(who) {
            self.proxies[link].tampers[side] = Some(tamper);
        }
    }

    /// Moves packets until none is in flight.
    pub(crate) fn pump(&mut self) {
        self.shrink();
        let mut moved = 0;
        loop {
            let before = moved;
            let mut at = 0;
            while at < self.proxies.len() {
                for side in 0..2 {
                    moved += self.pump_side(at, side);
                }
                at += 1;
            }
            if moved == before || moved > MOST_MOVED {
                break;
            }
        }
        self.shrink();
    }

    /// Returns whether the proxy still held an announcement that should have arrived. A real socket holds nothing back,
    /// so this counts as a late packet.
    pub(crate) fn kept_an_announcement(&mut self) -> bool {
        let before = self.announcements;
        self.pump();
        self.announcements > before
    }

    fn shrink(&mut self) {
        for fd in self.shrinking.drain(..) {
            let _ = rustix::fs::ftruncate(&fd, 0);
        }
    }

    fn pump_side(&mut self, at: usize, side: usize) -> usize {
        let mut moved = 0;
        while let Some(socket) = &self.proxies[at].sides[side].socket {
            match receive(socket.as_fd()) {
                Ok(None) => break,
                Ok(Some(packet)) => {
                    moved += 1;
                    let packet = self.look_at(packet, 2 * at + side);
                    if !self.proxies[at].lonely {
                        self.pass_on(packet, at, side);
                    }
                }
                Err(()) => {
                    // The packets that this side had sent still arrive; then the other side sees the hang-up.
                    self.proxies[at].sides[side].socket = None;
                    moved += 1;
                }
            }
        }
        moved + self.flush(at, 1 - side)
    }

    /// Learns from a packet. Changes its name, or the socket that it introduces, so that the ends do not notice the
    /// proxy.
    fn look_at(&mut self, mut packet: Packet, from: usize) -> Packet {
        if packet.bytes.len() != PACKET {
            return packet;
        }
        let kind = u32::from_le_bytes(packet.bytes[..4].try_into().expect("four bytes"));
        self.announcements += usize::from(matches!(kind, INTRODUCE | ARENA));
        let token = u128::from_le_bytes(packet.bytes[8..24].try_into().expect("sixteen bytes"));
        if kind == HANDSHAKE {
            let name = ONE_NAME | if self.one_name { 0 } else { from as u128 + 1 };
            packet.bytes[8..24].copy_from_slice(&name.to_le_bytes());
            self.tokens.push(name);
        } else if kind == INTRODUCE {
            // An introducer names the process as it knows it, by the name that the proxy gave to another link.
            let name = if self.one_name { ONE_NAME } else { 0 };
            packet.bytes[8..24].copy_from_slice(&name.to_le_bytes());
        } else if token != 0 && !self.tokens.contains(&token) {
            self.tokens.push(token);
        }
        if kind == INTRODUCE
            && self.proxies.len() < MOST_LINKS
            && let Some(theirs) = packet.descriptors.pop()
        {
            let (handed, ours) = pair();
            // As the library does, before the first packet.
            net::sockopt::set_socket_passcred(&handed, true).expect("an option of a socket");
            // The descriptor need not be a socket, if the proxy made the packet up.
            let _ = net::sockopt::set_socket_passcred(&theirs, true);
            packet.descriptors.push(handed);
            self.between(ours, theirs);
        }
        self.seen.push(packet.bytes.clone());
        for fd in &packet.descriptors {
            if self.memories.len() < MOST_MEMORIES && !self.memories.iter().any(|known| known.is(fd.as_fd())) {
                self.memories.extend(Shared::map(fd.as_fd()));
            }
        }
        packet
    }

    fn pass_on(&mut self, mut packet: Packet, at: usize, side: usize) {
        let tamper = match &mut self.proxies[at].tampers[side] {
            Some(tamper) if tamper.after > 0 => {
                tamper.after -= 1;
                None
            }
            tamper => tamper.take(),
        };
        let Some(Tamper { what, how, value, .. }) = tamper else {
            self.proxies[at].sides[1 - side].queue.push_back(packet);
            return;
        };
        self.tampered = true;
        let offset = usize::from(how) % packet.bytes.len().max(1);
        match what % 12 {
            0 => packet.bytes[offset] ^= (value % 255 + 1) as u8,
            1 => packet.bytes[offset] = value as u8,
            2 => {
                let field = [0, 4, 24, 32, 36, 40][usize::from(how) % 6];
                let place = &mut packet.bytes[field..field + 4];
                let old = u32::from_le_bytes((&*place).try_into().expect("four bytes"));
                place.copy_from_slice(&old.wrapping_add_signed(value as i8 as i32).to_le_bytes());
            }
            3 => {
                let token = self.token(how, value);
                packet.bytes[8..24].copy_from_slice(&token.to_le_bytes());
            }
            // Loses the packet.
            4 => return,
            5 => packet.bytes.truncate(offset),
            6 => packet.bytes.resize(PACKET + usize::from(how), value as u8),
            7 => {
                packet.descriptors.pop();
            }
            8 => packet.descriptors.extend(self.descriptor(how, value)),
            9 => {
                packet.descriptors.pop();
                packet.descriptors.extend(self.descriptor(how, value));
            }
            // Sends the packet twice.
            10 => {
                let again = packet.descriptors.iter().filter_map(|fd| fd.try_clone().ok()).collect();
                let again = Packet { bytes: packet.bytes.clone(), descriptors: again };
                self.proxies[at].sides[1 - side].queue.push_back(again);
            }
            // Sends the packet before packets that were sent earlier.
            _ => {
                let queue = &mut self.proxies[at].sides[1 - side].queue;
                let place = queue.len().saturating_sub(usize::from(how % 4));
                queue.insert(place, packet);
                return;
            }
        }
        self.proxies[at].sides[1 - side].queue.push_back(packet);
    }

    fn token(&self, which: u8, value: u32) -> u128 {
        let token = match self.tokens.len() {
            0 => 0,
            count => self.tokens[usize::from(which) % count],
        };
        token.wrapping_add(i128::from(value as i8) as u128)
    }

    /// Sends a packet to one side of a link that the other side did not send: made of these bytes, or a copy of an
    /// earlier packet.
    pub(crate) fn inject(&mut self, who: u8, a: u8, b: u8, value: u32) {
        let Some((at, side)) = self.which(who) else { return };
        self.tampered = true;
        let [one, other, third, fourth] = value.to_le_bytes();
        let mut bytes = match a & 0x80 {
            0 => {
                let mut bytes = vec![0; PACKET];
                bytes[..4].copy_from_slice(&u32::from(a % 16).to_le_bytes());
                bytes[8..24].copy_from_slice(&self.token(b, 0).to_le_bytes());
                bytes[24..32].copy_from_slice(&u64::from(one).to_le_bytes());
                bytes[32..40].copy_from_slice(&u64::from(other).to_le_bytes());
                if matches!(a % 16, 1 | 7 | 13 | 14) {
                    bytes[24..32].copy_from_slice(&(0x5354_5254 << 32 | u64::from(one)).to_le_bytes());
                    bytes[40..48].copy_from_slice(&u64::from(other).to_le_bytes());
                }
                if a % 16 == 9 {
                    let cells = 1u64 << (other % 26);
                    bytes[32..40].copy_from_slice(&(u64::from(one) | cells << 32).to_le_bytes());
                    bytes[40..48].copy_from_slice(&u64::from(other / 26).to_le_bytes());
                }
                bytes
            }
            _ => match self.seen.len() {
                0 => return,
                count => self.seen[usize::from(b) % count].clone(),
            },
        };
        let count = usize::from(third % 8);
        let descriptors = (0..count).filter_map(|_| self.descriptor(fourth, value)).collect();
        // The number of descriptors in the packet is mostly right.
        if third & 0x80 == 0 && bytes.len() == PACKET {
            bytes[4..8].copy_from_slice(&(count as u32).to_le_bytes());
        }
        self.proxies[at].sides[side].queue.push_back(Packet { bytes, descriptors });
        self.flush(at, side);
    }

    /// Sends these bytes as a packet to one side of a link.
    pub(crate) fn inject_bytes(&mut self, who: u8, bytes: &[u8]) {
        let Some((at, side)) = self.which(who) else { return };
        self.tampered = true;
        self.proxies[at].sides[side].queue.push_back(Packet { bytes: bytes.to_vec(), descriptors: Vec::new() });
        self.flush(at, side);
    }

    /// Returns a descriptor of the given kind to send; `None` if there is none.
    fn descriptor(&mut self, kind: u8, value: u32) -> Option<OwnedFd> {
        let size_seals = SealFlags::SHRINK | SealFlags::GROW;
        let pages = [1, 2, 4, 16, 17, 64, 256][value as usize % 7] * 4096;
        let content = [u8::try_from(value >> 24).unwrap_or(0); 64];
        Some(match kind % 14 {
            0 => {
                rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC, 0.into()).ok()?
            }
            1 => memfd(pages, &[], size_seals | SealFlags::SEAL),
            2 => {
                let fd = memfd(pages, &[], SealFlags::empty());
                self.shrinking.push(fd.try_clone().ok()?);
                fd
            }
            3 => memfd(pages, &content, size_seals | SealFlags::SEAL | SealFlags::WRITE),
            4 => self.lonely_link(),
            5 => rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()?,
            // Memory that both sides have mapped already.
            6 | 7 => {
                let known = self.memories.len();
                let at = (value >> 8) as usize % known.max(1);
                self.memories.get(known.checked_sub(at + 1)?)?.fd().try_clone_to_owned().ok()?
            }
            8 => {
                let fd = memfd(pages, &[], SealFlags::SHRINK);
                self.shrinking.push(fd.try_clone().ok()?);
                fd
            }
            9 => rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?.0,
            10 => memfd(0, &[], size_seals),
            11 => {
                let stream =
                    net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
                self.loose.push(stream.1);
                stream.0
            }
            12 => memfd(pages + value as usize % 4096, &content, size_seals),
            // More memory than a peer may have.
            _ => memfd(usize::from(kind) << 20, &[], size_seals),
        })
    }

    /// Shuts the link down, on one side or both.
    pub(crate) fn hang_up(&mut self, who: u8, how: u8) {
        let Some((at, side)) = self.which(who) else { return };
        self.tampered = true;
        if let Some(socket) = &self.proxies[at].sides[side].socket {
            let how = [net::Shutdown::Read, net::Shutdown::Write, net::Shutdown::Both][usize::from(how % 3)];
            let _ = net::shutdown(socket, how);
        }
        if how >= 128 {
            self.proxies[at].sides[side].socket = None;
        }
    }

    /// Sends what is queued for one side of a link, and returns the number of packets sent.
    fn flush(&mut self, at: usize, side: usize) -> usize {
        let Proxy { sides, lonely, .. } = &mut self.proxies[at];
        let mut sent = 0;
        while let (Some(socket), Some(packet)) = (&sides[side].socket, sides[side].queue.front()) {
            match send(socket.as_fd(), packet) {
                Ok(true) => {}
                Ok(false) => {
                    // The packet arrives later than the record that refers to it.
                    self.tampered = true;
                    return sent;
                }
                // This side receives nothing more. What it has sent can still be read, as on a link without a proxy.
                Err(()) => {
                    sides[side].queue.clear();
                    sent += 1;
                    break;
                }
            }
            sides[side].queue.pop_front();
            sent += 1;
        }
        if !*lonely && sides[1 - side].socket.is_none() && sides[side].queue.is_empty() {
            sides[side].socket = None;
        }
        sent
    }
}

/// Returns the next packet; `None` if there is none now. Fails if none will come.
fn receive(socket: BorrowedFd<'_>) -> Result<Option<Packet>, ()> {
    let mut bytes = vec![0; 4 * PACKET];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(253))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            // The kernel reports this once if a process has left something unread, before the packets that the process
            // had sent.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(_) => return Err(()),
            Ok(received) => break received,
        }
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    if received.bytes == 0 {
        return Err(());
    }
    bytes.truncate(received.bytes);
    Ok(Some(Packet { bytes, descriptors }))
}

/// Sends a packet. Returns `false` if there is no room now; fails if there never will be.
fn send(socket: BorrowedFd<'_>, packet: &Packet) -> Result<bool, ()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = packet.descriptors.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(());
    }
    loop {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match net::sendmsg(socket, &[IoSlice::new(&packet.bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(false),
            Err(_) => return Err(()),
            Ok(_) => return Ok(true),
        }
    }
}
