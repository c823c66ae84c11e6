//! The one in the middle: what goes over a link's socket goes through here, and may come out otherwise.
//!
//! Both ends of every link are real; each is the other's honest peer as long as nothing is changed, and a hostile one from
//! then on. So inputs get as deep into the library as real programs do.

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

/// Bytes of a packet.
pub(crate) const PACKET: usize = 48;

/// Kinds of packets that matter here.
const HANDSHAKE: u32 = 7;
const INTRODUCE: u32 = 8;
const ARENA: u32 = 9;

/// Links, and pieces of memory, that are looked after at most.
const MOST_LINKS: usize = 24;
const MOST_MEMORIES: usize = 64;

/// Packets that are moved in one go.
const MOST_MOVED: usize = 4096;

/// A packet on its way.
#[derive(Debug)]
struct Packet {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// One side of a link.
#[derive(Debug, Default)]
struct Side {
    /// Ours, which that process thinks is its peer's.
    socket: Option<OwnedFd>,
    /// What it is to get.
    queue: VecDeque<Packet>,
}

/// What is done to a packet to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tamper {
    /// To which packet from here on.
    pub(crate) after: u8,
    pub(crate) what: u8,
    pub(crate) how: u8,
    pub(crate) value: u32,
}

/// A link with the one in the middle.
#[derive(Debug)]
struct Proxy {
    sides: [Side; 2],
    tampers: [Option<Tamper>; 2],
    /// Whether there never was anybody at the second side.
    lonely: bool,
}

/// All links, and what was learnt from what went over them.
#[derive(Debug, Default)]
pub(crate) struct Proxies {
    proxies: Vec<Proxy>,
    pub(crate) memories: Vec<Shared>,
    /// First those that name things, then packets as they were.
    tokens: Vec<u128>,
    seen: Vec<Vec<u8>>,
    /// Other ends of sockets that were handed out.
    loose: Vec<OwnedFd>,
    /// Memory that shrinks once it was sent.
    shrinking: Vec<OwnedFd>,
    /// Whether all processes say the same name.
    one_name: bool,
    /// Whether anything was done that an honest peer, or the kernel, would not do.
    pub(crate) tampered: bool,
    /// How many announcements have passed.
    announcements: usize,
}

/// A connected pair.
pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair")
}

impl Proxies {
    /// With `one_name` all processes say that they are the same.
    pub(crate) fn new(one_name: bool) -> Self {
        Self { one_name, ..Self::default() }
    }

    /// The two ends of a link that goes through here.
    pub(crate) fn link(&mut self) -> (OwnedFd, OwnedFd) {
        let ((one, ours), (other, theirs)) = (pair(), pair());
        self.between(ours, theirs);
        (one, other)
    }

    fn between(&mut self, one: OwnedFd, other: OwnedFd) {
        let side = |socket| Side { socket: Some(socket), queue: VecDeque::new() };
        self.proxies.push(Proxy { sides: [side(one), side(other)], tampers: [None; 2], lonely: false });
    }

    /// A link at whose other end is nobody but the input.
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

    /// Changes a packet that will come from one side of a link.
    pub(crate) fn tamper(&mut self, who: u8, tamper: Tamper) {
        if let Some((link, side)) = self.which(who) {
            self.proxies[link].tampers[side] = Some(tamper);
        }
    }

    /// Moves packets until none is under way.
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

    /// Whether somebody was told of memory or of others just now, which was still here when it should have been there: a socket
    /// keeps nothing to itself, and so it is as if it had come late.
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
                    // What it sent still arrives, and then the other is told.
                    self.proxies[at].sides[side].socket = None;
                    moved += 1;
                }
            }
        }
        moved + self.flush(at, 1 - side)
    }

    /// Learns from a packet; names and introductions are changed so that nobody notices us.
    fn look_at(&mut self, mut packet: Packet, from: usize) -> Packet {
        if packet.bytes.len() != PACKET {
            return packet;
        }
        let kind = u32::from_le_bytes(packet.bytes[..4].try_into().expect("four bytes"));
        self.announcements += usize::from(matches!(kind, INTRODUCE | ARENA));
        let token = u128::from_le_bytes(packet.bytes[8..24].try_into().expect("sixteen bytes"));
        if kind == HANDSHAKE {
            let name = 0x5eed_u128 << 64 | if self.one_name { 0 } else { from as u128 + 1 };
            packet.bytes[8..24].copy_from_slice(&name.to_le_bytes());
            self.tokens.push(name);
        } else if token != 0 && !self.tokens.contains(&token) {
            self.tokens.push(token);
        }
        if kind == INTRODUCE
            && self.proxies.len() < MOST_LINKS
            && let Some(theirs) = packet.descriptors.pop()
        {
            let (handed, ours) = pair();
            // As the library does, before anybody says hello.
            net::sockopt::set_socket_passcred(&handed, true).expect("an option of a socket");
            // Which need not be one, if the introduction is nobody's.
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
            // Lost.
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
            // Twice.
            10 => {
                let again = packet.descriptors.iter().filter_map(|fd| fd.try_clone().ok()).collect();
                let again = Packet { bytes: packet.bytes.clone(), descriptors: again };
                self.proxies[at].sides[1 - side].queue.push_back(again);
            }
            // Before what was sent before it.
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

    /// A packet that nobody sent, to one side of a link: of these bytes, or one that was seen before.
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
        // What it says of them is mostly so.
        if third & 0x80 == 0 && bytes.len() == PACKET {
            bytes[4..8].copy_from_slice(&(count as u32).to_le_bytes());
        }
        self.proxies[at].sides[side].queue.push_back(Packet { bytes, descriptors });
        self.flush(at, side);
    }

    /// Bytes as they are.
    pub(crate) fn inject_bytes(&mut self, who: u8, bytes: &[u8]) {
        let Some((at, side)) = self.which(who) else { return };
        self.tampered = true;
        self.proxies[at].sides[side].queue.push_back(Packet { bytes: bytes.to_vec(), descriptors: Vec::new() });
        self.flush(at, side);
    }

    /// Something to send.
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
            // What both have mapped already.
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
            // More than it may be.
            _ => memfd(usize::from(kind) << 20, &[], size_seals),
        })
    }

    /// The link breaks, on one side or both.
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

    /// Sends what is there for one side of a link.
    fn flush(&mut self, at: usize, side: usize) -> usize {
        let Proxy { sides, lonely, .. } = &mut self.proxies[at];
        let mut sent = 0;
        while let (Some(socket), Some(packet)) = (&sides[side].socket, sides[side].queue.front()) {
            match send(socket.as_fd(), packet) {
                Ok(true) => {}
                Ok(false) => {
                    // It comes later than the record that refers to it.
                    self.tampered = true;
                    return sent;
                }
                // It takes nothing more. What it has sent is still to be read, as it is where nobody stands between.
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

/// The next packet, if there is one; an error if none will come.
fn receive(socket: BorrowedFd<'_>) -> Result<Option<Packet>, ()> {
    let mut bytes = vec![0; 4 * PACKET];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(253))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            // Said once if a process has left something unread, and before what it had sent.
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

/// False if there is no room now; an error if there never will be.
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
