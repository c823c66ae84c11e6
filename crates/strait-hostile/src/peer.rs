//! One end of a link, and of its first channel.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::SealFlags;
use rustix::thread::futex;

use crate::handshake;
use crate::layout::{Lane, ON_SET, ON_SOCKET, Reader, Record, Ring, Writer, bitmap, lane_size, transfer};
use crate::memory::{self, Memory};
use crate::record::{BLOCK_PAYLOAD, Block, CELL, Name, Table, WITH_TABLE, handles_of, header, kind, kind_of, words};
use crate::wire::{self, Packet, kind as packet_kind};

/// Cells of our ring, unless somebody wants others.
pub const CELLS: usize = 128;

/// Speaks the wire, honestly as long as nobody asks for anything else. Every part of it can be used alone.
#[derive(Debug)]
pub struct RawPeer {
    /// The link.
    pub socket: OwnedFd,
    /// What names the ring that we write.
    pub token: u128,
    /// Writes our ring.
    pub writer: Writer,
    /// Reads theirs, once their open packet has come, by [`RawPeer::pump`].
    pub reader: Option<Reader>,
    /// What names theirs.
    pub their_token: u128,
    /// Packets that came, but for those of the handshake and wake, and were not looked for yet.
    pub arrived: VecDeque<(Packet, Vec<OwnedFd>)>,
    /// Wake packets that came.
    pub woken: u64,
    /// Where their wait sets are rung for, once they have sent it.
    pub bitmap: Option<Arc<Memory>>,
    /// Their blocks, by number.
    pub blocks: Vec<Option<Arc<Memory>>>,
    table: Option<Vec<u8>>,
    packed: VecDeque<Vec<u8>>,
    /// Descriptors that came beside the memory of a message.
    beside: Vec<OwnedFd>,
}

/// A message as it came.
#[derive(Debug)]
pub struct Message {
    /// Of the record that it came by.
    pub header: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
    /// What its handles are, if a table said so.
    pub table: Option<Vec<u8>>,
}

/// Lanes that we made.
#[derive(Clone, Debug)]
pub struct Arena {
    /// Their memory.
    pub memory: Arc<Memory>,
    /// What its lanes are named by in packets.
    pub token: u128,
    /// What they are named by in records.
    pub number: u64,
    /// How many.
    pub lanes: u32,
    /// Cells of each ring.
    pub cells: usize,
}

impl Arena {
    /// Memory for lanes, of which nobody was told yet.
    pub fn new(number: u64, token: u128, lanes: u32, cells: usize) -> io::Result<Self> {
        let memory = Arc::new(Memory::create(lane_size(cells) * lanes as usize)?);
        Ok(Self { memory, token, number, lanes, cells })
    }

    /// A lane.
    pub fn lane(&self, slot: u32) -> Lane {
        Lane::new(&self.memory, slot as usize * lane_size(self.cells), self.cells)
    }

    /// What it is called.
    pub fn name(&self, slot: u32) -> Name {
        Name::new(self.number, slot)
    }

    /// What names in packets the ring that this side of the lane writes.
    pub fn token(&self, slot: u32, side: usize) -> u128 {
        self.token.wrapping_add(u128::from(slot) << 1 | side as u128)
    }

    /// The packet that tells of it.
    pub fn packet(&self, with: u64) -> Packet {
        Packet::arena(self.token, self.number, self.lanes, self.cells as u32, with)
    }
}

impl RawPeer {
    /// Greets and says open packet over a connected `SOCK_SEQPACKET` socket. Does not wait for theirs.
    pub fn meet(socket: OwnedFd) -> io::Result<Self> {
        Self::meet_as(socket, 0x5eed, CELLS)
    }

    /// The same with this token, and a ring of so many cells.
    pub fn meet_as(socket: OwnedFd, token: u128, cells: usize) -> io::Result<Self> {
        let peer = Self::silent(socket, token, cells)?;
        let [memory, _] = peer.writer.ring.memories();
        peer.packet(&handshake::announce(0), &[])?;
        peer.packet(&handshake::open(token, cells as u64), &[memory.fd()])?;
        Ok(peer)
    }

    /// One that has said nothing, and does not by itself.
    pub fn silent(socket: OwnedFd, token: u128, cells: usize) -> io::Result<Self> {
        let memory = Arc::new(handshake::ring_memory(cells)?);
        Ok(Self {
            socket,
            token,
            writer: Writer::new(Lane::new(&memory, 0, cells).ring(0)),
            reader: None,
            their_token: 0,
            arrived: VecDeque::new(),
            woken: 0,
            bitmap: None,
            blocks: Vec::new(),
            table: None,
            packed: VecDeque::new(),
            beside: Vec::new(),
        })
    }

    /// Sends a packet with these descriptors, which need not be as many as it says.
    pub fn packet(&self, packet: &Packet, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.bytes(&packet.to_bytes(), descriptors)
    }

    /// Sends any bytes.
    pub fn bytes(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        match wire::send(&self.socket, bytes, descriptors)? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// The same; waits for room, so that it is for when the other side is another process or thread.
    pub fn packet_by(&self, packet: &Packet, descriptors: &[BorrowedFd<'_>], limit: Duration) -> io::Result<()> {
        let end = Instant::now() + limit;
        while !wire::send(&self.socket, &packet.to_bytes(), descriptors)? {
            if Instant::now() >= end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Takes in every packet that has come.
    ///
    /// # Errors
    /// `UnexpectedEof` once the other side has hung up.
    pub fn pump(&mut self) -> io::Result<()> {
        while let Some((packet, descriptors)) = wire::receive(&self.socket)? {
            self.take_in(packet, descriptors)?;
        }
        Ok(())
    }

    fn take_in(&mut self, packet: Packet, mut descriptors: Vec<OwnedFd>) -> io::Result<()> {
        match packet.kind {
            packet_kind::WAKE => self.woken += 1,
            packet_kind::HANDSHAKE if !handshake::is_like_ours(&packet) => {
                return Err(io::ErrorKind::InvalidData.into());
            }
            packet_kind::HANDSHAKE => {}
            packet_kind::OPEN => {
                let open = handshake::read_open(&packet).ok_or(io::ErrorKind::InvalidData)?;
                let memory = Arc::new(Memory::map(descriptors.pop().ok_or(io::ErrorKind::InvalidData)?)?);
                self.reader = Some(Reader::new(Lane::new(&memory, 0, open.cells).ring(0)));
                self.their_token = open.token;
            }
            packet_kind::READY_BITMAP => {
                let memory = descriptors.pop().ok_or(io::ErrorKind::InvalidData)?;
                let bitmap = Memory::map(memory)?;
                // So that they sleep on its word.
                bitmap.word32(bitmap::POSTED).store(1, Ordering::SeqCst);
                bitmap.word32(bitmap::KNOWN).store(1, Ordering::SeqCst);
                self.bitmap = Some(Arc::new(bitmap));
            }
            _ => self.arrived.push_back((packet, descriptors)),
        }
        Ok(())
    }

    /// Which side of the first lane we are, once their open packet has come.
    pub fn side(&self) -> usize {
        usize::from(self.token > self.their_token)
    }

    /// Takes the packet of this kind that belongs to this ring and has this first field.
    pub fn take_packet(&mut self, kind: u32, token: u128, field: u64) -> Option<(Packet, Vec<OwnedFd>)> {
        let at = self
            .arrived
            .iter()
            .position(|(packet, _)| packet.kind == kind && packet.token == token && packet.fields[0] == field)?;
        self.arrived.remove(at)
    }

    /// Every piece of memory that both sides have.
    pub fn shared(&self) -> Vec<Arc<Memory>> {
        let rings = [Some(&self.writer.ring), self.reader.as_ref().map(|reader| &reader.ring)];
        let mut shared: Vec<Arc<Memory>> =
            rings.into_iter().flatten().flat_map(|ring| ring.memories().map(Arc::clone)).collect();
        shared.extend(self.bitmap.clone());
        shared.extend(self.blocks.iter().flatten().cloned());
        shared.dedup_by(|one, other| Arc::ptr_eq(one, other));
        shared
    }

    /// Wakes the reader of our ring, if its word says that it sleeps.
    pub fn wake(&mut self) -> io::Result<()> {
        let ring = self.writer.ring.clone();
        self.wake_reader_of(&ring)
    }

    /// The same of any ring that the peer reads.
    pub fn wake_reader_of(&mut self, ring: &Ring) -> io::Result<()> {
        let how = ring.sleeping().swap(0, Ordering::SeqCst);
        self.wake_as(ring.sleeping(), how)
    }

    /// Wakes the writer of their ring, if its word says that it sleeps.
    pub fn wake_writer(&mut self) -> io::Result<()> {
        let Some(reader) = &self.reader else { return Ok(()) };
        let ring = reader.ring.clone();
        let how = ring.waiting().swap(0, Ordering::SeqCst);
        self.wake_as(ring.waiting(), how)
    }

    fn wake_as(&mut self, word: &std::sync::atomic::AtomicU32, how: u32) -> io::Result<()> {
        match how & 3 {
            0 => Ok(()),
            ON_SOCKET => self.packet(&Packet::wake(), &[]),
            ON_SET => {
                if self.bitmap.is_none() {
                    self.pump()?;
                }
                self.ring_for(how >> 8)
            }
            _ => futex::wake(word, futex::Flags::empty(), 1).map(drop).map_err(Into::into),
        }
    }

    /// Rings for a member of their wait sets.
    pub fn ring_for(&self, number: u32) -> io::Result<()> {
        let Some(bitmap) = &self.bitmap else { return Ok(()) };
        let number = number as usize;
        if number >= bitmap::MEMBERS {
            return Ok(());
        }
        for (level, bit) in [(bitmap::LEAVES, number), (bitmap::MIDDLE, number / 64), (bitmap::TOP, number / 4096)] {
            bitmap.word64(level + bit / 64 * 8).fetch_or(1 << (bit % 64), Ordering::SeqCst);
        }
        let sleeping = bitmap.word32(bitmap::SLEEPING);
        match sleeping.swap(0, Ordering::SeqCst) {
            0 => Ok(()),
            1 => futex::wake(sleeping, futex::Flags::empty(), 1).map(drop).map_err(Into::into),
            _ => self.packet(&Packet::wake(), &[]),
        }
    }

    /// Sends a small message.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.pad_for(bytes.len());
        self.writer.put(header(kind::MESSAGE, bytes.len(), 0), bytes);
        self.wake()
    }

    /// Sends a small message with descriptors.
    pub fn send_with(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.writer.pad_for(bytes.len());
        self.packet(&Packet::handles(self.token, self.writer.sequence, 0, descriptors.len()), descriptors)?;
        self.writer.put(header(kind::MESSAGE, bytes.len(), descriptors.len()), bytes);
        self.wake()
    }

    /// Sends small messages as one record.
    pub fn send_pack(&mut self, messages: &[&[u8]]) -> io::Result<()> {
        let mut payload = Vec::new();
        for message in messages {
            payload.extend((message.len() as u64).to_le_bytes());
            payload.extend(*message);
            payload.resize(payload.len().next_multiple_of(8), 0);
        }
        self.writer.pad_for(payload.len());
        self.writer.put(header(kind::PACK, payload.len(), messages.len()), &payload);
        self.writer.sequence += messages.len() as u64;
        self.wake()
    }

    /// Sends a message in a new block.
    pub fn send_block(&mut self, id: u64, bytes: &[u8]) -> io::Result<Arc<Memory>> {
        let memory = Arc::new(Memory::create(BLOCK_PAYLOAD + bytes.len())?);
        memory.write(BLOCK_PAYLOAD, bytes);
        self.packet(&Packet::block(self.token, id, self.writer.sequence, 0), &[memory.fd()])?;
        self.put_block(Block { id, usage: 1, len: bytes.len() as u64, once: 0 })?;
        Ok(memory)
    }

    /// Puts the record of a message in a block.
    pub fn put_block(&mut self, block: Block) -> io::Result<()> {
        self.writer.pad_for(32);
        self.writer.put(header(kind::BLOCK, 32, 0), &block.to_bytes());
        self.wake()
    }

    /// Sends a message in memory that cannot change.
    pub fn send_sealed(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = memory::immutable(bytes)?;
        self.packet(&Packet::sealed(self.token, self.writer.sequence, 0), &[file.as_fd()])?;
        self.put_sealed(bytes.len() as u64)
    }

    /// Puts the record of a message in memory that cannot change.
    pub fn put_sealed(&mut self, len: u64) -> io::Result<()> {
        self.writer.pad_for(8);
        self.writer.put(header(kind::SEALED, 8, 0), &len.to_le_bytes());
        self.wake()
    }

    /// Goes on in a larger ring.
    pub fn grow(&mut self, cells: usize) -> io::Result<()> {
        let memory = Memory::create(cells * CELL)?;
        self.grow_into(Arc::new(memory))
    }

    /// The same in this memory.
    pub fn grow_into(&mut self, cells: Arc<Memory>) -> io::Result<()> {
        let generation = self.writer.generation + 1;
        self.packet(&Packet::ring(self.token, generation), &[cells.fd()])?;
        self.writer.put(header(kind::NEXT, 8, 0), &generation.to_le_bytes());
        self.writer.go_on_in(&cells);
        self.wake()
    }

    /// Closes our direction.
    pub fn close(&mut self) -> io::Result<()> {
        self.writer.put(header(kind::CLOSED, 0, 0), &[]);
        self.wake()
    }

    /// Makes lanes, and tells of them: lanes between us and the peer (`with` 0), or of the peer to itself (1).
    pub fn announce(&self, number: u64, lanes: u32, cells: usize, with: u64) -> io::Result<Arena> {
        let arena = Arena::new(number, u128::from(number) << 64, lanes, cells)?;
        self.packet(&arena.packet(with), &[arena.memory.fd()])?;
        Ok(arena)
    }

    /// Sends a message with ends, as a table says; then hands them over.
    pub fn send_ends(&mut self, bytes: &[u8], handles: usize, table: &Table, lanes: &[Lane]) -> io::Result<()> {
        self.put_table(bytes, handles, table)?;
        for lane in lanes {
            let _ = lane.transfer().compare_exchange(
                transfer::PENDING,
                transfer::HANDED_OVER,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
        self.wake()
    }

    /// Puts a table, and the message whose handles it is about.
    pub fn put_table(&mut self, bytes: &[u8], handles: usize, table: &Table) -> io::Result<()> {
        self.writer.pad_for(table.0.len());
        self.writer.put(header(kind::TABLE, table.0.len(), 0), &table.0);
        self.writer.pad_for(bytes.len());
        self.writer.put(header(kind::MESSAGE, bytes.len(), handles) | WITH_TABLE, bytes);
        Ok(())
    }

    /// The same with a table too long for the ring.
    pub fn put_long_table(&mut self, bytes: &[u8], handles: usize, table: &Table) -> io::Result<()> {
        let file = memory::immutable(&table.0)?;
        self.packet(&Packet::table(self.token, self.writer.sequence), &[file.as_fd()])?;
        self.writer.pad_for(0);
        self.writer.put(header(kind::TABLE, 0, 1), &[]);
        self.writer.pad_for(bytes.len());
        self.writer.put(header(kind::MESSAGE, bytes.len(), handles) | WITH_TABLE, bytes);
        Ok(())
    }

    /// The next record of their ring that is no pad.
    pub fn record(&mut self) -> io::Result<Option<Record>> {
        if self.reader.is_none() {
            self.pump()?;
        }
        Ok(self.reader.as_mut().and_then(Reader::take))
    }

    /// The next message, if it is there. Follows rings that grow; gives credit, and blocks back.
    ///
    /// # Errors
    /// `UnexpectedEof` once the other end is closed; `Unsupported` with what an end does that moves.
    pub fn try_recv(&mut self) -> io::Result<Option<Message>> {
        loop {
            if let Some(bytes) = self.packed.pop_front() {
                self.reader.as_mut().expect("it read a pack").taken += 1;
                self.give_credit()?;
                return Ok(Some(Message { header: 0, bytes, descriptors: Vec::new(), table: None }));
            }
            let Some(Record { header, payload }) = self.record()? else { return Ok(None) };
            let sequence = self.reader.as_ref().expect("it had a record").taken.wrapping_sub(1);
            let bytes = match kind_of(header) {
                kind::MESSAGE => payload,
                kind::SEALED => self.sealed(sequence, &payload)?,
                kind::BLOCK => self.block(&payload)?,
                kind::PACK => {
                    self.unpack(&payload);
                    continue;
                }
                kind::NEXT => {
                    let generation = words(&payload)[0];
                    let memory = self.fetch(packet_kind::RING, self.their_token, generation)?;
                    let memory = Arc::new(Memory::map(memory)?);
                    self.reader.as_mut().expect("it had a record").go_on_in(&memory);
                    continue;
                }
                kind::TABLE => {
                    self.table = Some(match handles_of(header) {
                        0 => payload,
                        _ => {
                            let memory = self.fetch(packet_kind::TABLE, self.their_token, sequence + 1)?;
                            let memory = Memory::map(memory)?;
                            memory.read(0, memory.len())
                        }
                    });
                    continue;
                }
                kind::CLOSED => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => return Err(io::ErrorKind::Unsupported.into()),
            };
            let mut descriptors = std::mem::take(&mut self.beside);
            self.pump_if_open()?;
            while let Some((_, more)) = self.take_packet(packet_kind::HANDLES, self.their_token, sequence) {
                descriptors.extend(more);
            }
            self.give_credit()?;
            return Ok(Some(Message { header, bytes, descriptors, table: self.table.take() }));
        }
    }

    fn pump_if_open(&mut self) -> io::Result<()> {
        match self.pump() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            pumped => pumped,
        }
    }

    /// The same; looks again and again until there is one. For when the other side is another process or thread.
    pub fn recv(&mut self, limit: Duration) -> io::Result<Message> {
        let end = Instant::now() + limit;
        loop {
            if let Some(message) = self.try_recv()? {
                return Ok(message);
            }
            if Instant::now() >= end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Tells the writer of their ring what was taken, and wakes it if it waits for that.
    pub fn give_credit(&mut self) -> io::Result<()> {
        if let Some(reader) = &self.reader {
            reader.give_credit();
        }
        self.wake_writer()
    }

    /// The memory that a packet brought; descriptors beside it belong to the message in flight.
    fn fetch(&mut self, kind: u32, token: u128, field: u64) -> io::Result<OwnedFd> {
        self.pump_if_open()?;
        let (_, mut descriptors) = self.take_packet(kind, token, field).ok_or(io::ErrorKind::NotFound)?;
        if descriptors.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.beside.extend(descriptors.drain(1..));
        Ok(descriptors.remove(0))
    }

    fn unpack(&mut self, payload: &[u8]) {
        let mut rest = payload;
        while let Some((len, after)) = rest.split_first_chunk() {
            let len = u64::from_le_bytes(*len) as usize;
            let Some(bytes) = after.get(..len) else { return };
            self.packed.push_back(bytes.to_vec());
            rest = after.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
    }

    fn sealed(&mut self, sequence: u64, payload: &[u8]) -> io::Result<Vec<u8>> {
        let memory = self.fetch(packet_kind::SEALED, self.their_token, sequence)?;
        let memory = Memory::map(memory)?;
        Ok(memory.read(0, words(payload)[0] as usize))
    }

    fn block(&mut self, payload: &[u8]) -> io::Result<Vec<u8>> {
        let block = Block::from_bytes(payload).ok_or(io::ErrorKind::InvalidData)?;
        let id = block.id as usize;
        if block.usage == 1 {
            let memory = self.fetch(packet_kind::BLOCK, self.their_token, block.id)?;
            self.blocks.resize(self.blocks.len().max(id + 1), None);
            self.blocks[id] = Some(Arc::new(Memory::map(memory)?));
        }
        let memory = self.blocks.get(id).cloned().flatten().ok_or(io::ErrorKind::NotFound)?;
        let bytes = memory.read(BLOCK_PAYLOAD, block.len as usize);
        memory.word64(0).store(block.usage, Ordering::SeqCst);
        Ok(bytes)
    }
}

/// Memory with none of the seals that Strait asks for.
pub fn unsealed(len: usize) -> io::Result<OwnedFd> {
    memory::file(len, SealFlags::empty())
}
