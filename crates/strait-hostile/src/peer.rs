//! One end of a link and of the link's first channel.

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

/// The default number of cells of this peer's ring.
pub const CELLS: usize = 128;

/// One end of a link and of the link's first channel. The end speaks the wire protocol, and is honest unless its user
/// asks for something else. Each of its parts can also be used alone.
#[derive(Debug)]
pub struct RawPeer {
    /// The socket of the link.
    pub socket: OwnedFd,
    /// The token that names, in packets, the ring written by this peer.
    pub token: u128,
    /// Writes the ring of this peer.
    pub writer: Writer,
    /// Reads the ring of the other side; `None` until [`RawPeer::pump`] has received the other side's open packet.
    pub reader: Option<Reader>,
    /// The token that names, in packets, the ring of the other side; 0 until its open packet was received.
    pub their_token: u128,
    /// The received packets that no call has taken yet, without those of the kinds handshake, open, ready bitmap and
    /// wake.
    pub arrived: VecDeque<(Packet, Vec<OwnedFd>)>,
    /// The number of wake packets received.
    pub woken: u64,
    /// The ready bitmap in which this peer notifies the wait sets of the other side; `None` until that bitmap was
    /// received.
    pub bitmap: Option<Arc<Memory>>,
    /// The blocks of the other side, by their numbers.
    pub blocks: Vec<Option<Arc<Memory>>>,
    table: Option<Vec<u8>>,
    packed: VecDeque<Vec<u8>>,
    /// Memory with the payload of the message that is being received; `None` if its packet was not received, or
    /// brought no such memory.
    payload: Option<OwnedFd>,
    /// The descriptors of the message that is being received, from the packets received so far.
    beside: Vec<OwnedFd>,
}

/// A message received by the raw peer.
#[derive(Debug)]
pub struct Message {
    /// The header of the record that brought the message; 0 for a message of a packed record.
    pub header: u64,
    /// The bytes of the message.
    pub bytes: Vec<u8>,
    /// The descriptors that came with the message, in the order of their packets.
    pub descriptors: Vec<OwnedFd>,
    /// The handle table of the message, as bytes; `None` if the message had none.
    pub table: Option<Vec<u8>>,
}

/// An arena made by this peer.
#[derive(Clone, Debug)]
pub struct Arena {
    /// The memory of the arena's lanes.
    pub memory: Arc<Memory>,
    /// The token of the arena, from which the tokens of its rings are computed.
    pub token: u128,
    /// The number of the arena in records.
    pub number: u64,
    /// The number of lanes in the arena.
    pub lanes: u32,
    /// The number of cells of each ring.
    pub cells: usize,
}

impl Arena {
    /// Creates the memory of an arena. The arena is not announced to any process.
    pub fn new(number: u64, token: u128, lanes: u32, cells: usize) -> io::Result<Self> {
        let memory = Arc::new(Memory::create(lane_size(cells) * lanes as usize)?);
        Ok(Self { memory, token, number, lanes, cells })
    }

    /// Returns the lane in slot `slot`.
    pub fn lane(&self, slot: u32) -> Lane {
        Lane::new(&self.memory, slot as usize * lane_size(self.cells), self.cells)
    }

    /// Returns the name of the first lane in slot `slot`.
    pub fn name(&self, slot: u32) -> Name {
        Name::new(self.number, slot)
    }

    /// Returns the token that names, in packets, the ring written by the end of side `side` in the lane in slot
    /// `slot`.
    pub fn token(&self, slot: u32, side: usize) -> u128 {
        self.token.wrapping_add(u128::from(slot) << 1 | side as u128)
    }

    /// Returns the packet that announces the arena. For `with` see [`Packet::arena`].
    pub fn packet(&self, with: u64) -> Packet {
        Packet::arena(self.token, self.number, self.lanes, self.cells as u32, with)
    }
}

impl RawPeer {
    /// Starts a link over a connected `SOCK_SEQPACKET` socket: sends a handshake and an open packet. Does not wait
    /// for the packets of the other side.
    pub fn meet(socket: OwnedFd) -> io::Result<Self> {
        Self::meet_as(socket, 0x5eed, CELLS)
    }

    /// Starts a link like [`RawPeer::meet`], with the token `token` and a ring of `cells` cells.
    pub fn meet_as(socket: OwnedFd, token: u128, cells: usize) -> io::Result<Self> {
        let peer = Self::silent(socket, token, cells)?;
        let [memory, _] = peer.writer.ring.memories();
        peer.packet(&handshake::announce(0), &[])?;
        peer.packet(&handshake::open(token, cells as u64), &[memory.fd()])?;
        Ok(peer)
    }

    /// Returns a peer that has sent nothing, not even a handshake.
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
            payload: None,
            beside: Vec::new(),
        })
    }

    /// Sends a packet with these descriptors, whose number may differ from the number in the packet. Does not block.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has no room.
    pub fn packet(&self, packet: &Packet, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.bytes(&packet.to_bytes(), descriptors)
    }

    /// Sends any bytes as one packet, with these descriptors. Does not block.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has no room.
    pub fn bytes(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        match wire::send(&self.socket, bytes, descriptors)? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Sends a packet with these descriptors, and waits up to `limit` for room in the socket. So the other side must
    /// be another process or thread.
    ///
    /// # Errors
    /// `TimedOut` if there was no room in time.
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

    /// Receives every packet that has arrived, and handles those of the kinds handshake, open, ready bitmap and wake.
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
                // From now on the other side sleeps on a word of the ready bitmap.
                bitmap.word32(bitmap::POSTED).store(1, Ordering::SeqCst);
                bitmap.word32(bitmap::KNOWN).store(1, Ordering::SeqCst);
                self.bitmap = Some(Arc::new(bitmap));
            }
            _ => self.arrived.push_back((packet, descriptors)),
        }
        Ok(())
    }

    /// Returns the side (0 or 1) of this peer in the first lane. The side is known once the open packet of the other
    /// side was received.
    pub fn side(&self) -> usize {
        usize::from(self.token > self.their_token)
    }

    /// Takes the first received packet of kind `kind`, for the ring named by `token`, whose first field is `field`;
    /// `None` if there is none. Receives nothing from the socket.
    pub fn take_packet(&mut self, kind: u32, token: u128, field: u64) -> Option<(Packet, Vec<OwnedFd>)> {
        let at = self
            .arrived
            .iter()
            .position(|(packet, _)| packet.kind == kind && packet.token == token && packet.fields[0] == field)?;
        self.arrived.remove(at)
    }

    /// Returns every piece of memory shared by both sides of the link: rings, ready bitmap and blocks.
    pub fn shared(&self) -> Vec<Arc<Memory>> {
        let rings = [Some(&self.writer.ring), self.reader.as_ref().map(|reader| &reader.ring)];
        let mut shared: Vec<Arc<Memory>> =
            rings.into_iter().flatten().flat_map(|ring| ring.memories().map(Arc::clone)).collect();
        shared.extend(self.bitmap.clone());
        shared.extend(self.blocks.iter().flatten().cloned());
        shared.dedup_by(|one, other| Arc::ptr_eq(one, other));
        shared
    }

    /// Wakes the reader of this peer's ring, if its sleep word has a sleeper.
    pub fn wake(&mut self) -> io::Result<()> {
        let ring = self.writer.ring.clone();
        self.wake_reader_of(&ring)
    }

    /// Wakes the reader of `ring`, any ring read by the other side, if its sleep word has a sleeper.
    pub fn wake_reader_of(&mut self, ring: &Ring) -> io::Result<()> {
        let how = ring.sleeping().swap(0, Ordering::SeqCst);
        self.wake_as(ring.sleeping(), how)
    }

    /// Wakes the writer of the other side's ring, if its sleep word has a sleeper.
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

    /// Notifies member `number` of the other side's wait sets: sets its bit in the ready bitmap, and wakes the other
    /// side if a thread there sleeps. Does nothing without a ready bitmap.
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

    /// Sends a small message in the ring, and wakes the reader.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.pad_for(bytes.len());
        self.writer.put(header(kind::MESSAGE, bytes.len(), 0), bytes);
        self.wake()
    }

    /// Sends a small message in the ring with descriptors, and wakes the reader.
    pub fn send_with(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.writer.pad_for(bytes.len());
        self.packet(&Packet::handles(self.token, self.writer.sequence, descriptors.len()), descriptors)?;
        self.writer.put(header(kind::MESSAGE, bytes.len(), descriptors.len()), bytes);
        self.wake()
    }

    /// Sends small messages as one packed record, and wakes the reader.
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

    /// Sends a message in a new block with the number `id`, and wakes the reader. Returns the memory of the block.
    pub fn send_block(&mut self, id: u64, bytes: &[u8]) -> io::Result<Arc<Memory>> {
        let memory = Arc::new(Memory::create(BLOCK_PAYLOAD + bytes.len())?);
        memory.write(BLOCK_PAYLOAD, bytes);
        self.packet(&Packet::block(self.token, id, self.writer.sequence, 0), &[memory.fd()])?;
        self.put_block(Block { id, usage: 1, len: bytes.len() as u64, once: 0 })?;
        Ok(memory)
    }

    /// Puts the record `block` of a message in a block, and wakes the reader. Sends no memory.
    pub fn put_block(&mut self, block: Block) -> io::Result<()> {
        self.writer.pad_for(32);
        self.writer.put(header(kind::BLOCK, 32, 0), &block.to_bytes());
        self.wake()
    }

    /// Sends a message in sealed memory, and wakes the reader.
    pub fn send_sealed(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = memory::immutable(bytes)?;
        self.packet(&Packet::sealed(self.token, self.writer.sequence, 0), &[file.as_fd()])?;
        self.put_sealed(bytes.len() as u64)
    }

    /// Puts the record of a sealed message with the length `len`, and wakes the reader. Sends no memory.
    pub fn put_sealed(&mut self, len: u64) -> io::Result<()> {
        self.writer.pad_for(8);
        self.writer.put(header(kind::SEALED, 8, 0), &len.to_le_bytes());
        self.wake()
    }

    /// Continues in a larger ring of `cells` cells, in new memory.
    pub fn grow(&mut self, cells: usize) -> io::Result<()> {
        let memory = Memory::create(cells * CELL)?;
        self.grow_into(Arc::new(memory))
    }

    /// Continues in a ring whose cells are the whole memory `cells`: sends the memory, puts the record of kind *next*
    /// and wakes the reader.
    pub fn grow_into(&mut self, cells: Arc<Memory>) -> io::Result<()> {
        let generation = self.writer.generation + 1;
        self.packet(&Packet::ring(self.token, generation), &[cells.fd()])?;
        self.writer.put(header(kind::NEXT, 8, 0), &generation.to_le_bytes());
        self.writer.go_on_in(&cells);
        self.wake()
    }

    /// Closes the direction of the channel written by this peer, and wakes the reader.
    pub fn close(&mut self) -> io::Result<()> {
        self.writer.put(header(kind::CLOSED, 0, 0), &[]);
        self.wake()
    }

    /// Makes an arena and announces it to the other side. Its lanes lead from the other side to this peer (`with` 0),
    /// or from the other side to itself (`with` 1).
    pub fn announce(&self, number: u64, lanes: u32, cells: usize, with: u64) -> io::Result<Arena> {
        let arena = Arena::new(number, u128::from(number) << 64, lanes, cells)?;
        self.packet(&arena.packet(with), &[arena.memory.fd()])?;
        Ok(arena)
    }

    /// Sends a message with `handles` handles, described by `table`; then sets the transfer words of `lanes` from
    /// pending to handed over, and wakes the reader.
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

    /// Puts a handle table and behind it its message, with `handles` handles. Does not wake the reader.
    pub fn put_table(&mut self, bytes: &[u8], handles: usize, table: &Table) -> io::Result<()> {
        self.writer.pad_for(table.0.len());
        self.writer.put(header(kind::TABLE, table.0.len(), 0), &table.0);
        self.writer.pad_for(bytes.len());
        self.writer.put(header(kind::MESSAGE, bytes.len(), handles) | WITH_TABLE, bytes);
        Ok(())
    }

    /// Puts a message with `handles` handles, and sends its handle table in memory of its own. Does not wake the
    /// reader.
    pub fn put_long_table(&mut self, bytes: &[u8], handles: usize, table: &Table) -> io::Result<()> {
        let file = memory::immutable(&table.0)?;
        self.packet(&Packet::table(self.token, self.writer.sequence, 0), &[file.as_fd()])?;
        self.writer.pad_for(0);
        self.writer.put(header(kind::TABLE, 0, 1), &[]);
        self.writer.pad_for(bytes.len());
        self.writer.put(header(kind::MESSAGE, bytes.len(), handles) | WITH_TABLE, bytes);
        Ok(())
    }

    /// Takes the next record of the other side's ring and skips pads; `None` if no record was published.
    pub fn record(&mut self) -> io::Result<Option<Record>> {
        if self.reader.is_none() {
            self.pump()?;
        }
        Ok(self.reader.as_mut().and_then(Reader::take))
    }

    /// Receives the next message; `None` if no message is there. Continues in the larger ring if the ring grew, gives
    /// credit for each message, and returns blocks to their sender.
    ///
    /// # Errors
    /// `UnexpectedEof` once the other end is closed; `Unsupported` for the records of an end that moves.
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
                kind::BLOCK => self.block(sequence, &payload)?,
                kind::PACK => {
                    self.unpack(&payload);
                    continue;
                }
                kind::NEXT => {
                    let generation = words(&payload)[0];
                    self.pump_if_open()?;
                    let found = self.take_packet(packet_kind::RING, self.their_token, generation);
                    let memory = found.and_then(|(_, mut memory)| memory.pop()).ok_or(io::ErrorKind::NotFound)?;
                    let memory = Arc::new(Memory::map(memory)?);
                    self.reader.as_mut().expect("it had a record").go_on_in(&memory);
                    continue;
                }
                kind::TABLE => {
                    self.table = Some(match handles_of(header) {
                        0 => payload,
                        _ => {
                            let memory = self.fetch(sequence + 1)?.ok_or(io::ErrorKind::NotFound)?;
                            let memory = Memory::map(memory)?;
                            memory.read(0, memory.len())
                        }
                    });
                    continue;
                }
                kind::CLOSED => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => return Err(io::ErrorKind::Unsupported.into()),
            };
            self.fetch(sequence)?;
            let descriptors = std::mem::take(&mut self.beside);
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

    /// Receives the next message; looks every 50 µs until a message is there. So the other side must be another
    /// process or thread.
    ///
    /// # Errors
    /// As [`RawPeer::try_recv`]; `TimedOut` if no message came within `limit`.
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

    /// Stores the numbers of messages and cells read for the writer of the other side's ring, and wakes the writer if
    /// it sleeps for room.
    pub fn give_credit(&mut self) -> io::Result<()> {
        if let Some(reader) = &self.reader {
            reader.give_credit();
        }
        self.wake_writer()
    }

    /// Takes the packet of the message `sequence`, if that packet was received and not taken yet, and the packets
    /// sent ahead of it. Stores the memory with the payload, and the descriptors of the message. Returns the memory
    /// with the handle table; `None` if the packet brought none.
    fn fetch(&mut self, sequence: u64) -> io::Result<Option<OwnedFd>> {
        self.pump_if_open()?;
        let token = self.their_token;
        let Some((packet, descriptors)) = self.take_packet(packet_kind::MESSAGE, token, sequence) else {
            return Ok(None);
        };
        while let Some((_, ahead)) = self.take_packet(packet_kind::AHEAD, token, 0) {
            self.beside.extend(ahead);
        }
        let mut descriptors = descriptors.into_iter();
        let [payload, table] = packet.memories().map(|count| if count > 0 { descriptors.next() } else { None });
        self.payload = payload;
        self.beside.extend(descriptors);
        Ok(table)
    }

    fn payload_memory(&mut self, sequence: u64) -> io::Result<Memory> {
        self.fetch(sequence)?;
        Memory::map(self.payload.take().ok_or(io::ErrorKind::NotFound)?)
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
        let memory = self.payload_memory(sequence)?;
        Ok(memory.read(0, words(payload)[0] as usize))
    }

    fn block(&mut self, sequence: u64, payload: &[u8]) -> io::Result<Vec<u8>> {
        let block = Block::from_bytes(payload).ok_or(io::ErrorKind::InvalidData)?;
        let id = block.id as usize;
        if block.usage == 1 {
            let memory = self.payload_memory(sequence)?;
            self.blocks.resize(self.blocks.len().max(id + 1), None);
            self.blocks[id] = Some(Arc::new(memory));
        }
        let memory = self.blocks.get(id).cloned().flatten().ok_or(io::ErrorKind::NotFound)?;
        let bytes = memory.read(BLOCK_PAYLOAD, block.len as usize);
        memory.word64(0).store(block.usage, Ordering::SeqCst);
        Ok(bytes)
    }
}

/// Creates memory of `len` bytes without the seals that Strait requires.
pub fn unsealed(len: usize) -> io::Result<OwnedFd> {
    memory::file(len, SealFlags::empty())
}
