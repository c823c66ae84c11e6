//! The attacker: a process with the sockets and the shared memory, which draws each of its steps at random.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, socketpair};

use crate::handshake;
use crate::layout::{Lane, Writer, bitmap, transfer};
use crate::memory::{Memory, SIZE_SEALS, file, immutable};
use crate::peer::{Arena, RawPeer};
use crate::record::{AN_END, Block, CELL, HEADER, Table, header, kind};
use crate::wire::{self, HAS_TABLE, PAYLOAD_SEALED, Packet, kind as packet_kind};
use crate::world::choices::Choices;
use crate::world::descriptors::{self, KINDS, Kept, Kind, SLOW};
use crate::world::donors::Donors;

/// A kind of step that the attacker can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Step {
    Message,
    Descriptors,
    Pack,
    Block,
    Sealed,
    Grow,
    Credit,
    Call,
    AnyPacket,
    Wrong,
    Truncated,
    Empty,
    Repeat,
    Later,
    Flood,
    Greeting,
    OwnOption,
    TheirOption,
    Steal,
    Shut,
    Filter,
    Record,
    Huge,
    Table,
    Arena,
    End,
    EndTwice,
    Row,
    Hands,
    LaneRecord,
    Introduce,
    Scribble,
    ReadyBitmap,
    Region,
    Pipe,
    Visit,
    HangUp,
    Silence,
}

/// All kinds of steps, each with its weight: among the enabled steps, the chance of a step is proportional to its
/// weight.
const STEPS: [(Step, usize); 38] = {
    use Step::*;
    [
        (Message, 6),
        (Descriptors, 4),
        (Pack, 2),
        (Block, 2),
        (Sealed, 2),
        (Grow, 2),
        (Credit, 6),
        (Call, 2),
        (AnyPacket, 6),
        (Wrong, 2),
        (Truncated, 1),
        (Empty, 1),
        (Repeat, 3),
        (Later, 3),
        (Flood, 3),
        (Greeting, 2),
        (OwnOption, 3),
        (TheirOption, 3),
        (Steal, 2),
        (Shut, 1),
        (Filter, 1),
        (Record, 3),
        (Huge, 1),
        (Table, 3),
        (Arena, 6),
        (End, 8),
        (EndTwice, 4),
        (Row, 1),
        (Hands, 5),
        (LaneRecord, 6),
        (Introduce, 4),
        (Scribble, 4),
        (ReadyBitmap, 3),
        (Region, 3),
        (Pipe, 3),
        (Visit, 3),
        (HangUp, 1),
        (Silence, 3),
    ]
};

/// The steps by which a victim usually finds out that its peer is a bad peer.
const FATAL: [Step; 14] = {
    use Step::*;
    [
        AnyPacket,
        Wrong,
        Truncated,
        Empty,
        Repeat,
        Greeting,
        Steal,
        Shut,
        Filter,
        Record,
        Table,
        Huge,
        HangUp,
        TheirOption,
    ]
};

/// A link between the attacker and the victim.
#[derive(Debug)]
struct Link {
    peer: RawPeer,
    /// A copy of the victim's end of the socket, if the attacker has one.
    copy: Option<OwnedFd>,
}

/// An arena announced by the attacker, and the index of the link of the announcement.
#[derive(Debug)]
struct Announced {
    arena: Arena,
    link: usize,
}

/// The attacker's means: the places within reach, and the permitted steps.
#[derive(Debug, Default)]
pub struct Means {
    /// The path of the victim's listener, if it has one.
    pub listener: Option<PathBuf>,
    /// The helper processes behind descriptors that are slow to close, if there are any.
    pub donors: Option<Donors>,
    /// Whether the victim runs in the same process and thread. If so, the attacker never sleeps and makes no
    /// descriptor that is slow to close.
    pub within: bool,
    /// The names of the steps that the attacker may take; empty for all steps.
    pub only: Vec<String>,
}

/// The attacker of one world: its links to the victim, everything that it sent, and the choices of its next steps.
pub struct Attacker<'a> {
    choices: Choices,
    means: Means,
    enabled: Vec<(Step, usize)>,
    kinds: Vec<Kind>,
    links: Vec<Link>,
    /// Pending connections of the attacker: each has sent a connect request and was not accepted yet.
    guests: Vec<RawPeer>,
    arenas: Vec<Announced>,
    /// Memory sent outside of arenas: cells, blocks and buffers of data pipes.
    memories: Vec<Arc<Memory>>,
    introduced: u64,
    /// Whether the attacker begins each link with a packet without bytes.
    mute: bool,
    kept: Kept,
    history: VecDeque<(Packet, Vec<OwnedFd>)>,
    later: VecDeque<(usize, Packet, Vec<OwnedFd>)>,
    tell: Box<dyn FnMut(&str) + 'a>,
    /// Microseconds of work that an honest receiver may spend on everything sent since the last
    /// [`Attacker::take_valid`].
    valid: u64,
}

impl fmt::Debug for Attacker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attacker").finish_non_exhaustive()
    }
}

/// The connect request of the attacker to a listener.
const CONNECT: Packet =
    Packet { kind: packet_kind::CONNECT, descriptors: 0, token: 0, fields: [handshake::MAGIC, 0, 0] };

/// The maximum number of arenas, and of other pieces of memory, that the attacker remembers.
const MOST: usize = 24;

fn unix_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Returns a random part of `all`, at least one element.
fn some_of<T: Copy>(all: &[T], choices: &mut Choices) -> Vec<T> {
    let times = choices.pick(&[1, 2, 2, 3, 4]);
    let mut some: Vec<T> = all.iter().copied().filter(|_| times == 1 || choices.one_in(times)).collect();
    if some.is_empty() {
        some.push(choices.pick(all));
    }
    some
}

impl<'a> Attacker<'a> {
    /// Returns an attacker with these sockets, some of them with a copy of the victim's end, and starts a link on
    /// each.
    ///
    /// The function draws the kinds of steps of the attacker. With few kinds, the attacker also finds mistakes that
    /// show only if these kinds of steps follow one another.
    ///
    /// `tell` is called with a line of text about each step.
    pub fn new(
        mut choices: Choices,
        means: Means,
        sockets: Vec<(OwnedFd, Option<OwnedFd>)>,
        mut tell: impl FnMut(&str) + 'a,
    ) -> io::Result<Self> {
        let mut enabled = some_of(&STEPS, &mut choices);
        // In half of the worlds, steps that end a link at once are left out, so that the attacker gets far.
        if choices.one_in(2) {
            enabled.retain(|(step, _)| !FATAL.contains(step));
            enabled.push((Step::Message, 1));
        }
        if !means.only.is_empty() {
            enabled = STEPS.into_iter().filter(|(step, _)| means.only.contains(&format!("{step:?}"))).collect();
        }
        tell(&format!("{enabled:?}"));
        let all: Vec<Kind> = KINDS.into_iter().chain([Kind::StuckUserfault, Kind::FuseFile]).collect();
        let mut kinds = some_of(&all, &mut choices);
        let slow = !means.within && descriptors::sends_slow();
        kinds.retain(|kind| slow || !SLOW.contains(kind));
        kinds.retain(|kind| !means.within || *kind != Kind::ProcessDead);
        kinds.push(Kind::Memory);
        let mut kept = Kept::default();
        kept.closes = means.within;
        let mut this = Self {
            choices,
            means,
            enabled,
            kinds,
            links: Vec::new(),
            guests: Vec::new(),
            arenas: Vec::new(),
            memories: Vec::new(),
            introduced: 0,
            mute: false,
            kept,
            history: VecDeque::new(),
            later: VecDeque::new(),
            tell: Box::new(tell),
            valid: 0,
        };
        this.mute = this.choices.one_in(8);
        for (socket, copy) in sockets {
            this.meet(socket, copy)?;
        }
        Ok(this)
    }

    fn told(&mut self, text: &str) {
        (self.tell)(text);
    }

    /// Returns the microseconds of work that an honest receiver may spend on everything sent since the last call.
    pub fn take_valid(&mut self) -> u64 {
        std::mem::take(&mut self.valid)
    }

    /// Starts a link on a socket: usually as an honest peer does, sometimes in a wrong way or in silence. `copy` is
    /// the victim's end of the socket, if the attacker has a copy.
    fn meet(&mut self, socket: OwnedFd, copy: Option<OwnedFd>) -> io::Result<()> {
        let how = if self.mute { 8 } else { self.choices.below(10) };
        let cells = self.choices.pick(&[4, 16, 128, 1024]);
        self.told(&format!("a link, beginning {how}, {cells} cells, copy {}", copy.is_some()));
        let token = u128::from(self.choices.word()) << 64 | self.links.len() as u128;
        let peer = match how {
            7 => RawPeer::silent(socket, token, cells)?,
            8 => {
                let peer = RawPeer::silent(socket, token, cells)?;
                let _ = peer.bytes(&[], &[]);
                peer
            }
            9 => {
                let peer = RawPeer::silent(socket, token, cells)?;
                let versions = [self.choices.nasty(), self.choices.nasty()];
                let _ = peer.packet(&self.handshake_with(token, versions), &[]);
                peer
            }
            _ => RawPeer::meet_as(socket, token, cells)?,
        };
        self.links.push(Link { peer, copy });
        Ok(())
    }

    /// Returns whether the choices come from an input that has ended.
    pub fn is_over(&self) -> bool {
        self.choices.are_over()
    }

    /// Takes one step. A step that fails is not an error.
    pub fn act(&mut self) {
        let total: usize = self.enabled.iter().map(|(_, weight)| weight).sum();
        let mut at = self.choices.below(total);
        let step = self.enabled.iter().find(|(_, weight)| {
            let found = at < *weight;
            at = at.wrapping_sub(*weight);
            found
        });
        let step = step.expect("one of them").0;
        self.enter();
        if self.links.is_empty() {
            if self.guests.is_empty() {
                let _ = self.connect_by_name();
            }
            return;
        }
        let link = self.choices.below(self.links.len().max(1));
        self.told(&format!("{step:?} on {link}"));
        match self.step(step, link) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.lose(link),
            Err(error) => self.told(&format!("  {error}")),
            Ok(()) => {}
        }
        if !self.later.is_empty() && self.choices.one_in(3) {
            self.send_late();
        }
    }

    fn step(&mut self, step: Step, link: usize) -> io::Result<()> {
        match step {
            Step::Message => self.message(link),
            Step::Descriptors => self.message_with_descriptors(link),
            Step::Pack => self.pack(link),
            Step::Block => self.block(link),
            Step::Sealed => self.sealed(link),
            Step::Grow => self.grow(link),
            Step::Credit => self.receive(link),
            Step::Call => self.call(link),
            Step::AnyPacket => self.any_packet(link),
            Step::Wrong => self.wrong_descriptors(link),
            Step::Truncated => self.truncated(link),
            Step::Empty => self.links[link].peer.bytes(&[], &[]),
            Step::Repeat => self.repeat(link),
            Step::Later => self.note_for_later(link),
            Step::Flood => self.flood(link),
            Step::Greeting => self.handshake_packet(link),
            Step::OwnOption => self.option(link, false),
            Step::TheirOption => self.option(link, true),
            Step::Steal => self.steal(link),
            Step::Shut => self.shut(link),
            Step::Filter => self.filter(link),
            Step::Record => self.record(link),
            Step::Huge => self.huge_record(link),
            Step::Table => self.table(link),
            Step::Arena => self.arena(link),
            Step::End => self.end(link, false),
            Step::EndTwice => self.end(link, true),
            Step::Row => self.row(link),
            Step::Hands => self.hands(),
            Step::LaneRecord => self.lane_record(),
            Step::Introduce => self.introduce(link),
            Step::Scribble => self.scribble(link),
            Step::ReadyBitmap => self.scribble_on_bitmap(link),
            Step::Region => self.region(link),
            Step::Pipe => self.pipe(link),
            Step::Visit => self.visit(),
            Step::HangUp => self.hang_up(link),
            Step::Silence => {
                if !self.means.within {
                    std::thread::sleep(Duration::from_millis(self.choices.below(20) as u64));
                }
                Ok(())
            }
        }
    }

    /// Returns at most `most` equal bytes.
    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.choices.below(most + 1);
        vec![self.choices.below(256) as u8; len]
    }

    /// Returns the maximum payload, in bytes, of a record in the ring of a link.
    fn room(&self, link: usize) -> usize {
        self.links[link].peer.writer.ring.count() * CELL - HEADER
    }

    fn message(&mut self, link: usize) -> io::Result<()> {
        let room = self.links[link].peer.writer.ring.count() * CELL / 4;
        let bytes = self.bytes(room.min(600));
        self.valid += 40;
        self.links[link].peer.send(&bytes)
    }

    fn descriptor(&mut self) -> Option<(Kind, OwnedFd)> {
        let kind = self.choices.pick(&self.kinds);
        let made = descriptors::make(kind, &mut self.choices, &mut self.kept, self.means.donors.as_ref());
        made.map(|fd| (kind, fd))
    }

    /// Returns up to `most` new descriptors, and adds their kinds to the trail.
    fn descriptors(&mut self, most: usize) -> Vec<OwnedFd> {
        let count = 1 + self.choices.below(most);
        let made: Vec<_> = (0..count.min(4)).filter_map(|_| self.descriptor()).collect();
        let text: Vec<_> = made.iter().map(|(kind, _)| format!("{kind:?}")).collect();
        let mut descriptors: Vec<_> = made.into_iter().map(|(_, fd)| fd).collect();
        // The remaining descriptors are duplicates of the last one.
        while !descriptors.is_empty() && descriptors.len() < count {
            let Ok(again) = descriptors[descriptors.len() - 1].try_clone() else { break };
            descriptors.push(again);
        }
        self.told(&format!("  {} descriptors: {}", descriptors.len(), text.join(" ")));
        descriptors
    }

    /// Sends a packet and closes its descriptors here, so that the victim can have the last copies. If the packet
    /// could not be sent, the descriptors stay open, because their close may take long.
    fn send_away(&mut self, link: usize, packet: &Packet, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).take(wire::MOST_DESCRIPTORS).collect();
        let sent = self.links[link].peer.packet(packet, &borrowed);
        if sent.is_err() {
            for fd in descriptors {
                self.kept.keep(fd);
            }
        }
        sent
    }

    fn message_with_descriptors(&mut self, link: usize) -> io::Result<()> {
        let most = self.choices.pick(&[1, 3, 64, 200]);
        let descriptors = self.descriptors(most);
        let count = descriptors.len();
        let peer = &self.links[link].peer;
        let packet = Packet::handles(peer.token, peer.writer.sequence, count);
        self.valid += 100 + 20 * count as u64;
        self.send_away(link, &packet, descriptors)?;
        let peer = &mut self.links[link].peer;
        peer.writer.pad_for(3);
        peer.writer.put(header(kind::MESSAGE, 3, count), b"fds");
        peer.wake()
    }

    fn pack(&mut self, link: usize) -> io::Result<()> {
        let count = 1 + self.choices.below(6);
        let messages: Vec<_> = (0..count).map(|_| self.bytes(60)).collect();
        let slices: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        if count * 72 > self.room(link) {
            return Ok(());
        }
        self.valid += 200;
        self.links[link].peer.send_pack(&slices)
    }

    fn block(&mut self, link: usize) -> io::Result<()> {
        let id = self.choices.below(66) as u64;
        let len = self.choices.pick(&[0, 1, 4096, 70_000, 300_000]);
        self.valid += 400;
        let peer = &mut self.links[link].peer;
        if self.choices.one_in(4) {
            let [usage, len, once] = [0; 3].map(|_: u64| self.choices.nasty());
            return peer.put_block(Block { id, usage, len, once });
        }
        let memory = peer.send_block(id, &vec![2; len])?;
        self.remember(memory);
        Ok(())
    }

    fn remember(&mut self, memory: Arc<Memory>) {
        if self.memories.len() >= MOST {
            self.memories.remove(0);
        }
        self.memories.push(memory);
    }

    fn sealed(&mut self, link: usize) -> io::Result<()> {
        let len = self.choices.pick(&[0, 1, 5000, 200_000]);
        self.valid += 400;
        match self.choices.one_in(4) {
            true => {
                let len = self.choices.nasty();
                self.links[link].peer.put_sealed(len)
            }
            false => self.links[link].peer.send_sealed(&vec![3; len]),
        }
    }

    fn grow(&mut self, link: usize) -> io::Result<()> {
        let peer = &mut self.links[link].peer;
        let count = peer.writer.ring.count() * self.choices.pick(&[1, 2, 4]);
        self.valid += 200;
        if count > 1 << 14 {
            return Ok(());
        }
        let memory = Arc::new(Memory::create(count * CELL)?);
        peer.grow_into(memory.clone())?;
        self.remember(memory);
        Ok(())
    }

    /// If the header in the ring makes sense and the victim is another process, receives as an honest peer does.
    /// Otherwise only gives credit.
    fn receive(&mut self, link: usize) -> io::Result<()> {
        let peer = &mut self.links[link].peer;
        peer.pump()?;
        let Some(reader) = &peer.reader else { return Ok(()) };
        let cell = reader.position % reader.ring.count();
        let len = crate::record::len_of(reader.ring.header(cell).load(SeqCst));
        // Within one process, a crash of the attacker would look like a mistake of the victim.
        if self.means.within || len + HEADER > (reader.ring.count() - cell) * CELL {
            return peer.give_credit();
        }
        self.valid += 40;
        peer.try_recv().map(drop)
    }

    fn call(&mut self, link: usize) -> io::Result<()> {
        let mut bytes = self.bytes(40);
        let number = self.choices.below(6) as u64;
        bytes.extend(number.to_le_bytes());
        bytes.extend([self.choices.below(6) as u8, 0, 0, 0, 0, 0, 0, 0]);
        self.valid += 60;
        self.links[link].peer.send(&bytes)
    }

    /// Sends a packet of an honest peer, with fitting descriptors; in one of three cases with a changed field.
    fn any_packet(&mut self, link: usize) -> io::Result<()> {
        let (mut packet, descriptors) = self.packet(link);
        let changed = self.choices.one_in(3);
        if changed {
            match self.choices.below(4) {
                0 => packet.fields[self.choices.below(3)] = self.choices.nasty(),
                1 => packet.token = self.choices.nasty().into(),
                2 => packet.kind = self.choices.below(18) as u32,
                _ => packet.descriptors = self.choices.below(5) as u32,
            }
        }
        self.valid += 150;
        self.told(&format!("  {packet:?}"));
        self.note_history(&packet, &descriptors);
        self.send_away(link, &packet, descriptors)
    }

    fn note_history(&mut self, packet: &Packet, descriptors: &[OwnedFd]) {
        if self.history.len() >= 8 {
            self.history.pop_front();
        }
        let copies = descriptors.iter().take(4).filter_map(|fd| fd.try_clone().ok()).collect();
        self.history.push_back((*packet, copies));
    }

    fn packet(&mut self, link: usize) -> (Packet, Vec<OwnedFd>) {
        let peer = &self.links[link].peer;
        let (token, sequence, generation) = (peer.token, peer.writer.sequence, peer.writer.generation);
        let small = self.choices.below(5) as u64;
        let packet = match self.choices.below(12) {
            0 => Packet::wake(),
            1 => Packet::ring(token, generation + small),
            2 => Packet::handles(token, sequence + small, 1),
            3 => Packet::block(token, self.choices.below(66) as u64, sequence, 0),
            4 => Packet::sealed(token, sequence + small, 0),
            5 => Packet::table(token, sequence + small, small as usize),
            6 => Packet::introduce(small),
            7 => Packet::arena(token ^ u128::from(small), small, 1 + self.choices.below(8) as u32, 4, small),
            8 => Packet::retract(token),
            9 => Packet::bitmap(),
            10 => Packet::ahead(token, small as usize),
            _ => handshake::open(token ^ u128::from(small), self.choices.nasty()),
        };
        let descriptors = (0..packet.descriptors).filter_map(|_| self.fitting(&packet)).collect();
        (packet, descriptors)
    }

    /// Returns a descriptor that fits the packet; in one of four cases any descriptor.
    fn fitting(&mut self, packet: &Packet) -> Option<OwnedFd> {
        if self.choices.one_in(4) {
            let (kind, fd) = self.descriptor()?;
            self.told(&format!("  beside it {kind:?}"));
            return Some(fd);
        }
        match packet.kind {
            packet_kind::READY_BITMAP if self.choices.one_in(2) => {
                file(self.choices.pick(&[1 << 47, 1 << 40, 1 << 62]), SIZE_SEALS).ok()
            }
            packet_kind::READY_BITMAP => file(bitmap::BYTES, SIZE_SEALS).ok(),
            packet_kind::MESSAGE if packet.fields[2] & (PAYLOAD_SEALED | HAS_TABLE) != 0 => {
                immutable(&self.bytes(5000)).ok()
            }
            packet_kind::INTRODUCE => unix_pair().ok().map(|(one, other)| {
                self.kept.keep(one);
                other
            }),
            packet_kind::ARENA => file(1 << 16, SIZE_SEALS).ok(),
            _ => file(self.choices.pick(&[4096, 8192, 65_536, 1 << 20]), SIZE_SEALS).ok(),
        }
    }

    fn wrong_descriptors(&mut self, link: usize) -> io::Result<()> {
        let (packet, _) = self.packet(link);
        let most = self.choices.pick(&[1, 4, 253]);
        let descriptors = self.descriptors(most);
        self.send_away(link, &packet, descriptors)
    }

    fn truncated(&mut self, link: usize) -> io::Result<()> {
        let len = self.choices.pick(&[1, 8, 24, 47, 49, 96, 4096, 60_000]);
        let with = self.choices.one_in(2);
        let descriptors = if with { self.descriptors(3) } else { Vec::new() };
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        self.links[link].peer.bytes(&vec![1; len], &borrowed)
    }

    fn repeat(&mut self, link: usize) -> io::Result<()> {
        let Some((packet, descriptors)) = self.history.back() else { return Ok(()) };
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        self.valid += 150;
        self.links[link].peer.packet(packet, &borrowed)
    }

    /// Publishes a record before the packet of that record. The packet is sent later, or never.
    fn note_for_later(&mut self, link: usize) -> io::Result<()> {
        let peer = &self.links[link].peer;
        let packet = match self.choices.below(3) {
            0 => Packet::handles(peer.token, peer.writer.sequence, 1),
            1 => Packet::sealed(peer.token, peer.writer.sequence, 0),
            _ => Packet::block(peer.token, 1, peer.writer.sequence, 0),
        };
        let Some(fd) = self.fitting(&packet) else { return Ok(()) };
        let peer = &mut self.links[link].peer;
        peer.writer.pad_for(32);
        match packet.fields[2] {
            0 => peer.writer.put(header(kind::MESSAGE, 0, 1), b""),
            PAYLOAD_SEALED => peer.writer.put(header(kind::SEALED, 8, 0), &4u64.to_le_bytes()),
            _ => peer.writer.put(header(kind::BLOCK, 32, 0), &Block { id: 1, usage: 1, len: 4, once: 0 }.to_bytes()),
        }
        self.later.push_back((link, packet, vec![fd]));
        self.valid += 100;
        self.links[link].peer.wake()
    }

    fn send_late(&mut self) {
        if let Some((link, packet, descriptors)) = self.later.pop_front()
            && link < self.links.len()
        {
            self.told(&format!("late on {link}: {packet:?}"));
            let _ = self.send_away(link, &packet, descriptors);
        }
    }

    /// Sends many equal packets, notifications or futex wake-ups that announce nothing.
    fn flood(&mut self, link: usize) -> io::Result<()> {
        let what = self.choices.below(7);
        let count = self.choices.pick(&[20, 200, 1000]);
        self.told(&format!("  {count} of {what}"));
        let peer = &mut self.links[link].peer;
        for nth in 0..count {
            match what {
                0 => peer.packet(&Packet::wake(), &[])?,
                1 => peer.packet(&Packet::retract(nth), &[])?,
                5 => peer.packet(&Packet::retire(nth as u64, (nth % 5) as u64), &[])?,
                6 => peer.packet(&Packet::absent(nth as u64 % 7), &[])?,
                2 => peer.ring_for(nth as u32)?,
                3 => {
                    let ring = peer.writer.ring.clone();
                    let _ = rustix::thread::futex::wake(ring.sleeping(), rustix::thread::futex::Flags::empty(), 1);
                    ring.sleeping().store(0, SeqCst);
                }
                _ => peer.packet(&Packet { kind: packet_kind::ACCEPT, ..Packet::default() }, &[])?,
            }
        }
        Ok(())
    }

    /// Returns a handshake packet with these versions (lowest, highest), and any other bits in the word of the
    /// highest version.
    fn handshake_with(&mut self, name: u128, versions: [u64; 2]) -> Packet {
        let mut packet = handshake::announce_with(name, versions);
        packet.fields[2] |= self.choices.nasty();
        packet
    }

    fn handshake_packet(&mut self, link: usize) -> io::Result<()> {
        let token = u128::from(self.choices.nasty());
        let packet = match self.choices.below(5) {
            0 => handshake::announce(token),
            1 => {
                let lowest = self.choices.nasty();
                self.handshake_with(token, [lowest, 1])
            }
            2 => Packet {
                kind: packet_kind::REFUSE,
                fields: [handshake::MAGIC | self.choices.below(6) as u64, 1, 1],
                ..Packet::default()
            },
            3 => Packet { kind: packet_kind::CONNECT, token, fields: [handshake::MAGIC, 0, 0], ..Packet::default() },
            _ => Packet { kind: packet_kind::ACCEPT, ..Packet::default() },
        };
        self.links[link].peer.packet(&packet, &[])
    }

    /// Sets an option of the attacker's own socket; with `theirs`, of the copy of the victim's socket, if there is a
    /// copy.
    fn option(&mut self, link: usize, theirs: bool) -> io::Result<()> {
        const SO_PEEK_OFF: i32 = 42;
        const SO_PASSPIDFD: i32 = 76;
        const SO_PASSRIGHTS: i32 = 83;
        let options = [
            SO_PEEK_OFF,
            SO_PASSPIDFD,
            libc::SO_PASSCRED,
            libc::SO_PASSSEC,
            libc::SO_TIMESTAMP,
            libc::SO_TIMESTAMPNS,
            libc::SO_RCVLOWAT,
            libc::SO_SNDBUF,
            libc::SO_RCVBUF,
            libc::SO_RCVTIMEO,
            libc::SO_LINGER,
            libc::SO_BUSY_POLL,
            SO_PASSRIGHTS,
        ];
        let option = self.choices.pick(&options);
        let value = self.choices.pick(&[1i32, 0, 48, 1 << 20, -1, 2000, i32::MAX]);
        let end = &self.links[link];
        let socket = if theirs { end.copy.as_ref() } else { Some(&end.peer.socket) };
        let Some(socket) = socket.map(AsRawFd::as_raw_fd) else { return Ok(()) };
        if !theirs && option == SO_PASSPIDFD {
            // With this option the attacker would have to close every received descriptor.
            return Ok(());
        }
        self.told(&format!("  option {option} = {value}"));
        let values = [value, 0, 0, 0];
        let len = match option {
            libc::SO_LINGER => 8,
            libc::SO_RCVTIMEO => 16,
            _ => 4,
        };
        if theirs && self.choices.one_in(4) {
            // Changes whether calls on the socket block.
            // SAFETY: the arguments are plain numbers.
            let flags = unsafe { libc::fcntl(socket, libc::F_GETFL) };
            // SAFETY: the arguments are plain numbers.
            unsafe { libc::fcntl(socket, libc::F_SETFL, flags ^ libc::O_NONBLOCK) };
        }
        // SAFETY: the pointer is to a local of 16 bytes, and `len` is at most 16.
        match unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, option, values.as_ptr().cast(), len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Uses the copy of the victim's end: receives or peeks at a packet for the victim, or sends a packet as the
    /// victim. Does nothing without a copy.
    fn steal(&mut self, link: usize) -> io::Result<()> {
        let Some(copy) = &self.links[link].copy else { return Ok(()) };
        let mut buffer = [0; 48];
        match self.choices.below(3) {
            0 => drop(rustix::net::recv(copy, &mut buffer, RecvFlags::DONTWAIT)?),
            1 => drop(rustix::net::recv(copy, &mut buffer, RecvFlags::DONTWAIT | RecvFlags::PEEK)?),
            _ => drop(wire::send(copy, &Packet::wake().to_bytes(), &[])?),
        }
        Ok(())
    }

    fn shut(&mut self, link: usize) -> io::Result<()> {
        let how = self.choices.pick(&[Shutdown::Read, Shutdown::Write, Shutdown::Both]);
        let theirs = self.choices.one_in(2);
        self.told(&format!("  {how:?}, theirs: {theirs}"));
        let end = &self.links[link];
        match (theirs, &end.copy) {
            (true, Some(copy)) => rustix::net::shutdown(copy, how)?,
            _ => rustix::net::shutdown(&end.peer.socket, how)?,
        }
        Ok(())
    }

    /// Attaches a socket filter, so that the kernel cuts each packet to the victim to a number of bytes, or drops it.
    /// Does nothing without a copy of the victim's end.
    fn filter(&mut self, link: usize) -> io::Result<()> {
        let Some(copy) = self.links[link].copy.as_ref().map(AsRawFd::as_raw_fd) else { return Ok(()) };
        let len = self.choices.pick(&[0u32, 1, 24, 47, 48]);
        self.told(&format!("  to {len} bytes"));
        let mut code = libc::sock_filter { code: 6, jt: 0, jf: 0, k: len };
        let program = libc::sock_fprog { len: 1, filter: &raw mut code };
        let (place, size) = ((&raw const program).cast(), size_of::<libc::sock_fprog>() as u32);
        // SAFETY: the program is one instruction in a local variable, and `place` is valid during the call.
        match unsafe { libc::setsockopt(copy, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, place, size) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Puts a record whose header can have any value.
    fn record(&mut self, link: usize) -> io::Result<()> {
        let payload = self.bytes(100);
        let kind = self.choices.below(usize::from(kind::END) + 1) as u8;
        let header = match self.choices.below(3) {
            0 => self.choices.nasty() | 1,
            1 => header(kind, payload.len(), self.choices.below(3)),
            _ => header(kind, self.choices.nasty() as usize & 0xffff_ffff, 0) | 1 << 32,
        };
        self.told(&format!("  {header:#x}"));
        if payload.len() > self.room(link) {
            return Ok(());
        }
        let peer = &mut self.links[link].peer;
        peer.writer.pad_for(payload.len());
        peer.writer.put(header, &payload);
        self.valid += 60;
        peer.wake()
    }

    /// Grows into a huge ring in memory without pages, and publishes one record almost as long as that ring.
    fn huge_record(&mut self, link: usize) -> io::Result<()> {
        let cells = 1usize << self.choices.pick(&[14, 20, 23]);
        let memory = Arc::new(Memory::create(cells * CELL)?);
        self.told(&format!("  {cells} cells"));
        let peer = &mut self.links[link].peer;
        peer.grow_into(memory)?;
        let at = peer.writer.cell();
        let len = (cells - at) * CELL - 64 - HEADER;
        peer.writer.ring.header(at).store(header(kind::MESSAGE, len, 0), SeqCst);
        peer.writer.position += crate::record::cells_for(len);
        // A victim that receives the message must copy it.
        self.valid += 300 + len.min(1 << 20) as u64 / 500;
        peer.wake()
    }

    fn table(&mut self, link: usize) -> io::Result<()> {
        let count = self.choices.below(4);
        let kinds: Vec<u8> = (0..count).map(|_| self.choices.below(7) as u8).collect();
        let mut table = Table::of(&kinds);
        for _ in 0..self.choices.below(3) {
            let bytes = self.bytes(40);
            table = match (self.choices.below(4), self.arenas.last()) {
                (0, Some(announced)) => {
                    let name = announced.arena.name(self.choices.below(9) as u32);
                    let (side, flags) = (self.choices.below(3) as u8, self.choices.below(8) as u8);
                    table.end(name, side, flags, self.choices.below(3) as u32)
                }
                (1, _) => table.message(&bytes, 0, &[]),
                (2, _) => table.message_in_memory(self.choices.nasty(), 0, &[]),
                _ => {
                    table.0.extend(bytes);
                    table
                }
            };
        }
        let is_long = self.choices.one_in(4) || table.0.len() > self.room(link);
        self.valid += 200;
        let peer = &mut self.links[link].peer;
        match is_long {
            true => peer.put_long_table(b"t", count, &table)?,
            false => peer.put_table(b"t", count, &table)?,
        }
        peer.wake()
    }

    fn arena(&mut self, link: usize) -> io::Result<()> {
        let number = 1 + self.choices.below(1000) as u64;
        let lanes = self.choices.pick(&[1, 4, 8, 64]);
        let cells = self.choices.pick(&[4, 16]);
        let with = match self.choices.below(4) {
            0 | 1 => 0,
            2 => 1,
            _ => 2 + self.choices.below(self.introduced as usize + 1) as u64,
        };
        self.told(&format!("  arena {number}, {lanes} lanes, with {with}"));
        self.valid += 250;
        let arena = self.links[link].peer.announce(number, lanes, cells, with)?;
        if self.arenas.len() >= MOST {
            self.arenas.remove(0);
        }
        self.arenas.push(Announced { arena, link });
        Ok(())
    }

    /// Returns an arena and the index of its link; once in a while the index of another link. Announces a new arena
    /// if there is none, and sometimes otherwise.
    fn announced(&mut self, link: usize) -> io::Result<(Arena, usize)> {
        if self.arenas.is_empty() || self.choices.one_in(3) {
            self.arena(link)?;
        }
        let at = self.arenas.len() - 1 - self.choices.below(self.arenas.len().min(4));
        // Once in a while the arena is used over another link than its own.
        let stranger = self.choices.one_in(10);
        let Announced { arena, link: known } = &self.arenas[at];
        Ok((arena.clone(), if stranger { link } else { *known }))
    }

    fn end(&mut self, link: usize, twice: bool) -> io::Result<()> {
        let (arena, link) = self.announced(link)?;
        let slot = self.choices.below(arena.lanes as usize) as u32;
        let side = self.choices.below(2) as u8;
        let flags = if self.choices.one_in(4) { self.choices.below(4) as u8 } else { 0 };
        self.told(&format!("  end of {slot}, side {side}, flags {flags}"));
        let mut table = Table::of(&[AN_END]).end(arena.name(slot), side, flags, 0);
        if self.choices.one_in(4) {
            table = Table::of(&[AN_END]).end(arena.name(slot), side, flags, 1).message(b"kept", 0, &[]);
        }
        let lane = arena.lane(slot);
        self.valid += 300;
        self.links[link].peer.send_ends(b"end", 1, &table, &[lane])?;
        if twice {
            let again = if self.choices.one_in(2) { side } else { 1 - side };
            let table = Table::of(&[AN_END]).end(arena.name(slot), again, flags, 0);
            self.links[link].peer.send_ends(b"again", 1, &table, &[])?;
        }
        Ok(())
    }

    /// Sends an end in the first of many lanes. Each lane says only that the end continues in the next lane.
    fn row(&mut self, link: usize) -> io::Result<()> {
        let lanes = match self.means.within {
            true => self.choices.pick(&[10, 1000]),
            false => self.choices.pick(&[10, 1000, 20_000, 1_000_000]),
        };
        let frozen = self.choices.one_in(2);
        self.told(&format!("  {lanes} lanes, frozen: {frozen}"));
        let number = 2000 + self.choices.below(1000) as u64;
        let arena = self.links[link].peer.announce(number, lanes, 4, 0)?;
        for slot in 0..lanes - 1 {
            let lane = arena.lane(slot);
            lane.transfer().store(transfer::HANDED_OVER, SeqCst);
            if frozen {
                let ring = lane.ring(0);
                ring.set_forward(arena.name(slot + 1).to_words());
                ring.header(0).store(header(kind::FROZEN, 0, 0), SeqCst);
            } else {
                Writer::new(lane.ring(1)).put(header(kind::MOVED, 16, 0), &arena.name(slot + 1).to_bytes());
            }
        }
        let table = Table::of(&[AN_END]).end(arena.name(0), 0, 0, 0);
        self.valid += 2000;
        self.links[link].peer.send_ends(b"row", 1, &table, &[arena.lane(0)])
    }

    fn lane(&mut self) -> Option<(Arena, u32, Lane)> {
        let at = self.arenas.len().checked_sub(1 + self.choices.below(self.arenas.len().clamp(1, 4)))?;
        let arena = self.arenas[at].arena.clone();
        let slot = self.choices.below(arena.lanes as usize) as u32;
        let lane = arena.lane(slot);
        Some((arena, slot, lane))
    }

    fn hands(&mut self) -> io::Result<()> {
        let Some((_, slot, lane)) = self.lane() else { return Ok(()) };
        let value = match self.choices.one_in(4) {
            true => self.choices.nasty() as u32,
            false => self.choices.below(7) as u32,
        };
        self.told(&format!("  lane {slot}: {value}"));
        match self.choices.below(4) {
            0 | 1 => lane.transfer().store(value, SeqCst),
            2 => lane.moving().store(value, SeqCst),
            _ => lane.done(self.choices.below(2)).store(value, SeqCst),
        }
        Ok(())
    }

    fn lane_record(&mut self) -> io::Result<()> {
        let Some((arena, slot, lane)) = self.lane() else { return Ok(()) };
        let side = self.choices.below(2);
        let ring = lane.ring(side);
        let cell = self.choices.pick(&[0, 0, 0, 1, 2, 3]) % arena.cells;
        let kind = self.choices.pick(&[
            kind::MOVED,
            kind::MESSAGE,
            kind::MESSAGE,
            kind::CLOSED,
            kind::FROZEN,
            kind::PREPENDED,
            kind::NEXT,
            kind::TABLE,
        ]);
        let other = arena.name(self.choices.below(arena.lanes as usize + 1) as u32);
        self.told(&format!("  lane {slot} ring {side} cell {cell}: kind {kind}, {other:?}"));
        ring.set_forward(other.to_words());
        ring.write(cell, 0, &other.to_bytes());
        ring.header(cell).store(header(kind, 16, usize::from(self.choices.one_in(8))), SeqCst);
        self.valid += 60;
        let link = self.choices.below(self.links.len());
        self.links[link].peer.wake_reader_of(&ring)
    }

    /// Sends the victim a socket as one to another process. The attacker has the other end, and makes a further link
    /// of it or never uses it.
    fn introduce(&mut self, link: usize) -> io::Result<()> {
        let (ours, theirs) = unix_pair()?;
        let number = self.choices.below(self.introduced as usize + 2) as u64;
        self.introduced = self.introduced.max(number + 1);
        self.valid += 200;
        let copies = self.choices.one_in(2).then(|| theirs.try_clone().ok()).flatten();
        self.links[link].peer.packet(&Packet::introduce(number), &[theirs.as_fd()])?;
        if self.links.len() < 6 {
            return self.meet(ours, copies);
        }
        self.kept.keep(ours);
        Ok(())
    }

    fn scribble(&mut self, link: usize) -> io::Result<()> {
        let mut all = self.links[link].peer.shared();
        all.extend(self.memories.iter().cloned());
        all.extend(self.arenas.iter().map(|announced| announced.arena.memory.clone()));
        let memory = self.choices.pick(&(0..all.len()).collect::<Vec<_>>());
        let memory = &all[memory];
        for _ in 0..1 + self.choices.below(4) {
            let value = self.choices.nasty();
            let limit = memory.len().min(self.choices.pick(&[256, 768, 5000, 200_000]));
            let at = self.choices.below(limit / 8) * 8;
            match self.choices.one_in(2) {
                true => memory.word64(at).store(value, SeqCst),
                false => memory.word32(at + 4 * (value & 1) as usize).store(value as u32, SeqCst),
            }
        }
        self.valid += 100;
        Ok(())
    }

    fn scribble_on_bitmap(&mut self, link: usize) -> io::Result<()> {
        let _ = self.links[link].peer.pump();
        let Some(theirs) = self.links[link].peer.bitmap.clone() else { return Ok(()) };
        match self.choices.below(4) {
            0 => theirs.word32(bitmap::SLEEPING).store(self.choices.nasty() as u32, SeqCst),
            1 => theirs.word32(bitmap::POSTED).store(self.choices.nasty() as u32, SeqCst),
            2 => theirs.word32(bitmap::KNOWN).store(self.choices.below(2) as u32, SeqCst),
            _ => {
                for at in 0..1 + self.choices.below(256) {
                    theirs.word64(bitmap::TOP + at * 8).store(u64::MAX, SeqCst);
                }
            }
        }
        self.valid += 100;
        let _ = rustix::thread::futex::wake(theirs.word32(bitmap::SLEEPING), rustix::thread::futex::Flags::empty(), 9);
        Ok(())
    }

    fn region(&mut self, link: usize) -> io::Result<()> {
        let len = self.choices.pick(&[0usize, 1, 4096, 8192, 1 << 20, 1 << 40]);
        let fd = match self.choices.below(4) {
            0 => self.descriptor().map(|(_, fd)| fd),
            1 => immutable(&vec![1; len.min(1 << 20)]).ok(),
            _ => file(len, SIZE_SEALS).ok(),
        };
        let Some(fd) = fd else { return Ok(()) };
        let said = if self.choices.one_in(4) { self.choices.nasty() } else { len as u64 };
        let peer = &self.links[link].peer;
        let packet = Packet::handles(peer.token, peer.writer.sequence, 1);
        self.valid += 300;
        self.send_away(link, &packet, vec![fd])?;
        self.links[link].peer.send_ends(b"region", 1, &Table::of_region(said), &[])
    }

    fn pipe(&mut self, link: usize) -> io::Result<()> {
        let (arena, link) = self.announced(link)?;
        let slot = self.choices.below(arena.lanes as usize) as u32;
        let lane = arena.lane(slot);
        let mut table = Table::of(&[3 + self.choices.below(2) as u8]);
        let nasty = self.choices.one_in(5);
        let mut or = |usual: u64| if nasty { self.choices.nasty() } else { usual };
        table.0.extend((or(1) as u32).to_le_bytes());
        table.0.extend(or(8192).to_le_bytes());
        table.0.extend(or(0).to_le_bytes());
        let table = table.end(arena.name(slot), self.choices.below(2) as u8, 0, 0);
        let memory = Arc::new(Memory::create(4096 + 8192)?);
        // The counter of written bytes, so that the victim finds something to read.
        memory.word64(0).store(self.choices.pick(&[0, 100, 8192, 8193]), SeqCst);
        let fd = memory.fd().try_clone_to_owned()?;
        self.remember(memory);
        let peer = &self.links[link].peer;
        let packet = Packet::handles(peer.token, peer.writer.sequence, 1);
        self.valid += 400;
        self.send_away(link, &packet, vec![fd])?;
        self.links[link].peer.send_ends(b"pipe", 1, &table, &[lane])
    }

    fn connect(&self) -> io::Result<Option<OwnedFd>> {
        let Some(path) = &self.means.listener else { return Ok(None) };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path)?)?;
        Ok(Some(socket))
    }

    /// Connects to the victim's listener and sends a handshake and a connect request.
    fn connect_by_name(&mut self) -> io::Result<()> {
        let Some(socket) = self.connect()? else { return Ok(()) };
        wire::send(&socket, &handshake::announce(0).to_bytes(), &[])?;
        wire::send(&socket, &CONNECT.to_bytes(), &[])?;
        let token = u128::from(self.choices.word());
        self.guests.push(RawPeer::silent(socket, token, 16)?);
        Ok(())
    }

    /// Connects to the victim's listener and sends nothing, something wrong, or a connect request.
    fn visit(&mut self) -> io::Result<()> {
        let how = self.choices.below(6);
        self.told(&format!("  a visitor, {how}"));
        if how == 5 {
            return self.connect_by_name();
        }
        let Some(socket) = self.connect()? else { return Ok(()) };
        let spare: Vec<_> = self.descriptor().map(|(_, fd)| fd).into_iter().collect();
        let beside: Vec<BorrowedFd<'_>> = spare.iter().map(AsFd::as_fd).collect();
        match how {
            0 => {}
            1 => drop(wire::send(&socket, b"", &[])?),
            2 => drop(wire::send(&socket, &[9; 48], &beside)?),
            3 => drop(wire::send(&socket, &handshake::announce(0).to_bytes(), &beside)?),
            4 => {
                wire::send(&socket, &handshake::announce(0).to_bytes(), &[])?;
                wire::send(&socket, &CONNECT.to_bytes(), &beside)?;
            }
            _ => {}
        }
        self.kept.keep(socket);
        Ok(())
    }

    /// Sends the open packet on each accepted connection, which is a link then, and drops each refused connection.
    fn enter(&mut self) {
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.pump() {
                Err(_) => {}
                Ok(()) if guest.arrived.iter().any(|(packet, _)| packet.kind == packet_kind::ACCEPT) => {
                    let memory = guest.writer.ring.memories()[0].clone();
                    let cells = guest.writer.ring.count() as u64;
                    let said = guest.packet(&handshake::open(guest.token, cells), &[memory.fd()]);
                    self.told(&format!("a visitor is in, {said:?}"));
                    self.valid += 500;
                    self.links.push(Link { peer: guest, copy: None });
                }
                Ok(()) => self.guests.push(guest),
            }
        }
    }

    /// Drops a link that the victim has ended, and connects to the listener once more.
    fn lose(&mut self, link: usize) {
        self.told(&format!("link {link} is over"));
        self.kept.keep_link(self.links.remove(link).copy);
        self.later.clear();
        self.arenas.retain(|announced| announced.link != link);
        for announced in &mut self.arenas {
            announced.link -= usize::from(announced.link > link);
        }
        if self.guests.len() < 4 {
            let _ = self.connect_by_name();
        }
    }

    fn hang_up(&mut self, link: usize) -> io::Result<()> {
        self.lose(link);
        Ok(())
    }
}
