//! The processes of an input: the ends of channels that the input uses, and what is known about them.
//!
//! All of them are in this process and in one thread. They communicate over sockets that pass through the
//! [`proxy`](crate::proxy). As long as nothing was tampered with, every message has to arrive as it was sent, and no
//! end may report a bad peer. A queue for each direction is kept to check this.

use std::collections::VecDeque;

use rustix::fs::{Mode as FileMode, OFlags};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing, SendError};

use crate::calls::Calls;
use crate::memory::Scribble;
use crate::pipes::Pipes;
use crate::program::{INSTRUCTION, Instruction};
use crate::proxy::{Proxies, Tamper};
use crate::regions::{Regions, Which};

/// The greatest number of ends that are held.
pub(crate) const MOST_ENDS: usize = 16;

/// The first code of the instructions for regions, data pipes and calls. Below it, each kind of instruction for
/// channels has several codes.
pub(crate) const OTHERS: u8 = 0x84;

/// The first code of the instructions for attacks.
pub(crate) const ATTACKS: u8 = 0xb0;

/// The greatest number of messages that are received in a row; an honest input has no more in flight.
const MOST_RECEIVED: usize = 20_000;

/// The kind of attack that an input may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// Change packets, and send packets that no end sent.
    Socket,
    /// Write to shared memory.
    Memory,
}

/// The name of an end: its channel and its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) channel: usize,
    pub(crate) side: usize,
}

impl Name {
    pub(crate) fn other(self) -> Self {
        Self { side: 1 - self.side, ..self }
    }
}

/// What a handle should be at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Descriptor,
    End(Name),
    Region(Which),
    /// An end of a data pipe, named by the end of its channel; side 0 writes.
    Pipe(Name),
}

impl Expected {
    /// Returns the name of the channel end that the handle is, or that belongs to it.
    fn end(self) -> Option<Name> {
        match self {
            Self::End(name) | Self::Pipe(name) => Some(name),
            Self::Descriptor | Self::Region(_) => None,
        }
    }
}

/// A message in flight.
#[derive(Debug)]
struct Sent {
    seed: u8,
    len: usize,
    handles: Vec<Expected>,
}

/// One direction of a channel, kept by the end that sends.
#[derive(Debug, Default)]
struct Direction {
    under_way: VecDeque<Sent>,
    /// Whether the sending end was closed.
    closed: bool,
}

/// An end that the input holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) channel: Channel,
    pub(crate) name: Name,
    /// The error with which receiving failed for good; `None` if it did not. `sending` is the error of sending.
    receiving: Option<Error>,
    sending: Option<Error>,
}

/// Everything that an input can reach.
#[derive(Debug)]
pub(crate) struct World {
    attack: Attack,
    pub(crate) proxies: Proxies,
    pub(crate) ends: Vec<Held>,
    pub(crate) regions: Regions,
    pub(crate) pipes: Pipes,
    pub(crate) calls: Calls,
    directions: Vec<[Direction; 2]>,
    pub(crate) sets: [Option<WaitSet>; 2],
    pub(crate) options: Options,
    /// Whether shared memory was written to.
    scribbled: bool,
    /// A counter that makes the contents of messages differ.
    count: u8,
    /// Whether each step and its errors are printed.
    told: bool,
}

/// Returns the bytes of a message.
pub(crate) fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| seed.wrapping_add((at % 251) as u8)).collect()
}

/// Returns whether an end that failed with this error fails for good.
fn lasts(error: Error) -> bool {
    matches!(error, Error::PeerClosed | Error::BadPeer(_) | Error::Refused(_))
}

pub(crate) fn descriptor() -> Handle {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Handle::Fd(rustix::fs::open("/dev/null", flags, FileMode::empty()).expect("/dev/null"))
}

/// Returns the length of a message in bytes.
pub(crate) fn length(a: u8, word: u32) -> usize {
    let word = word as usize;
    match a % 8 {
        0 | 1 => word % 64,
        2 => word % 300,
        3 => word % 5000,
        4 => word % 70_000,
        5 => word % 200_000,
        6 => [0, 1, 8, 55, 56, 57, 63, 64, 119, 120, 121, 248, 256, 257, 1008, 1024][word % 16],
        _ => 0,
    }
}

impl World {
    /// Makes two processes with one or two channels, over a link each, with the options that `head` chooses.
    pub(crate) fn new(attack: Attack, head: [u8; INSTRUCTION]) -> Self {
        strait::fuzzing::number_tokens(1 + u64::from(head[0] & 3));
        let options = Options::new()
            .peer_memory(32 << 20)
            .max_message(1 << 20)
            .inline_max([64 << 10, 1000, 200, 0][usize::from(head[1] % 4)])
            .pool([4 << 20, 1 << 20, 0][usize::from(head[2] % 3)])
            .queue_bytes([8 << 20, 300_000][usize::from(head[3] % 2)])
            .queue_messages([u64::MAX, 100, 3][usize::from(head[4] % 3)]);
        let options = match head[5] % 4 {
            0 => options,
            1 => options.ring(256).ring_max(1024),
            2 => options.ring(256),
            _ => options.ring(1024).ring_max(1 << 14),
        };
        let mut world = Self {
            attack,
            proxies: Proxies::new(head[6] % 4 == 3),
            ends: Vec::new(),
            regions: Regions::default(),
            pipes: Pipes::default(),
            calls: Calls::default(),
            directions: Vec::new(),
            sets: [None, None],
            options,
            scribbled: false,
            count: 0,
            told: crate::is_told(),
        };
        for _ in 0..1 + head[7] % 2 {
            let (one, other) = world.proxies.link();
            let one = world.options.over(one).expect("a channel over a socket");
            let other = world.options.over(other).expect("a channel over a socket");
            world.hold_pair(one, other);
        }
        world.proxies.pump();
        world
    }

    pub(crate) fn honest(&self) -> bool {
        !self.scribbled && !self.proxies.tampered
    }

    fn hold_pair(&mut self, one: Channel, other: Channel) -> Name {
        let name = self.new_name();
        self.hold(one, name);
        self.hold(other, name.other());
        name
    }

    /// Returns the name of side 0 of a channel that is being made.
    pub(crate) fn new_name(&mut self) -> Name {
        self.directions.push(Default::default());
        Name { channel: self.directions.len() - 1, side: 0 }
    }

    fn hold(&mut self, channel: Channel, name: Name) {
        if self.is_for_calls(name) {
            return self.hold_for_calls(channel, name);
        }
        self.ends.push(Held { channel, name, receiving: None, sending: None });
    }

    fn direction(&mut self, sender: Name) -> &mut Direction {
        &mut self.directions[sender.channel][sender.side]
    }

    /// Returns whether an end was closed, or is in a message that will never be received.
    pub(crate) fn is_closed(&mut self, name: Name) -> bool {
        self.direction(name).closed
    }

    pub(crate) fn told(&self) -> bool {
        self.told
    }

    /// Executes one instruction.
    pub(crate) fn act(&mut self, instruction: Instruction) {
        let Instruction { code, who, a, b, word } = instruction;
        if self.told {
            let held: Vec<_> = self.ends.iter().map(|held| (held.name.channel, held.name.side)).collect();
            eprintln!("{instruction:?} held {held:?}");
        }
        if code >= ATTACKS {
            match self.attack {
                Attack::Socket => self.attack_socket(instruction),
                Attack::Memory => self.attack_memory(instruction),
            }
        } else if code >= OTHERS {
            match (code - OTHERS) % 22 {
                what @ 0..3 => self.act_on_regions(what, instruction),
                what @ 3..11 => self.act_on_pipes(what - 3, instruction),
                what @ 11..19 => self.act_on_calls(what - 11, instruction),
                _ if !self.ends.is_empty() => self.send_others(usize::from(who) % self.ends.len(), a, b, word),
                _ => {}
            }
            strait::fuzzing::no_more_steps();
        } else if !self.ends.is_empty() {
            let at = usize::from(who) % self.ends.len();
            match code % 22 {
                0 | 1 => self.send(at, a, word, Vec::new()),
                2 => self.send(at, a, word, (0..1 + b % 5).map(|_| (descriptor(), Expected::Descriptor)).collect()),
                3 => self.send_new_ends(at, a, b, word),
                4 => self.send_held_end(at, a, b, word),
                5 => self.send_row(at, a, b, word),
                6 => self.reserve(at, a, b, word),
                7 => self.reserve_sealed(at, a, b, word),
                8 | 9 => {
                    self.receive(at);
                }
                10 => self.receive_into(at, length(a, word)),
                11 => self.receive_in_place(at, b),
                12 => self.receive_many(at, usize::from(b % 8)),
                13 => self.receive_all(at),
                14 => self.close(at),
                15 => self.change_set(at, a, b),
                16 => self.wait(b),
                17 => self.ask(at),
                18 => {
                    let rehomed = self.ends[at].channel.rehome(Deadline::NOW);
                    self.check(at, rehomed.err(), "rehome");
                }
                19 if self.ends.len() < MOST_ENDS => {
                    let (one, other) = self.options.pair().expect("a pair");
                    self.hold_pair(one, other);
                }
                20 => (0..b % 64).for_each(|_| self.send(at, a, word, Vec::new())),
                21 => self.sets[usize::from(a % 2)] = None,
                _ => {}
            }
            // The action of the attacker in the middle of a call is dropped, if it did not run.
            strait::fuzzing::no_more_steps();
        }
        self.proxies.pump();
    }

    fn attack_socket(&mut self, Instruction { code, who, a, b, word }: Instruction) {
        match code % 8 {
            0..=3 => {
                let tamper = Tamper { after: a % 4, what: a / 4, how: b, value: word };
                self.proxies.tamper(who, tamper);
            }
            4 | 5 => self.proxies.inject(who, a, b, word),
            6 => {
                let bytes = [&[a, b], word.to_le_bytes().as_slice()].concat().repeat(9);
                let len = [0, 1, 47, 48, 49, 54][usize::from(a) % 6];
                self.proxies.inject_bytes(who, &bytes[..len]);
            }
            _ if b > 200 => self.proxies.hang_up(who, a),
            _ => {}
        }
    }

    fn attack_memory(&mut self, Instruction { code, who, a, b, word }: Instruction) {
        let known = self.proxies.memories.len();
        let Some(at) = known.checked_sub(1 + usize::from(who) % known.max(1)) else { return };
        let memory = &self.proxies.memories[at];
        let scribble = Scribble { how: a, at: word as u16, value: (word >> 16) as u16 };
        match code % 4 {
            0 | 1 => {
                memory.scribble(scribble);
                self.scribbled = true;
            }
            2 => {
                let view = memory.view();
                // SAFETY: memories are kept until the world ends, and `act` drops the action before that.
                strait::fuzzing::at_step(b.into(), move || unsafe { view.scribble(scribble) });
                self.scribbled = true;
            }
            _ => {
                for more in 0..u16::from(b % 16) {
                    memory.scribble(Scribble { at: scribble.at.wrapping_add(more), ..scribble });
                }
                self.scribbled = true;
            }
        }
    }

    /// Panics if an error is not one that is possible in this state.
    fn check(&mut self, at: usize, error: Option<Error>, call: &str) {
        let Some(error) = error else { return };
        let name = self.ends[at].name;
        if self.told {
            eprintln!("  {call} of {name:?}: {error}");
        }
        if error == Error::BadPeer("a lane that was never announced") && self.proxies.kept_an_announcement() {
            self.proxies.tampered = true;
        }
        if self.honest() {
            let fine = match error {
                Error::WouldBlock | Error::OwnChannel | Error::MessageTooLarge { .. } => true,
                Error::BufferTooSmall { .. } | Error::LimitReached(_) => true,
                Error::PeerClosed => self.direction(name.other()).closed,
                // An end maps only a limited amount of memory of its peer.
                Error::BadPeer(reason) => reason.starts_with("memory larger"),
                _ => false,
            };
            assert!(fine, "{call} of {name:?}: {error}");
        }
        if let Error::System { call: refused, code } = error {
            panic!("{call}: {refused} was refused: {code}");
        }
    }

    fn check_received(&mut self, at: usize, error: Error) {
        self.check(at, Some(error), "receive");
        let held = &mut self.ends[at];
        if let Some(before) = held.receiving {
            assert_eq!(before, error, "an end that is over said something else");
        }
        if lasts(error) {
            held.receiving = Some(error);
            if self.honest() {
                let name = self.ends[at].name;
                let lost = self.direction(name.other()).under_way.len();
                assert_eq!(lost, 0, "messages that were sent before it was closed");
            }
        }
    }

    fn check_sent(&mut self, at: usize, error: Error) {
        self.check(at, Some(error), "send");
        let held = &mut self.ends[at];
        // The reason may change: an end can depend on two links, and one may be found broken after the other.
        let other = matches!(error, Error::OwnChannel | Error::MessageTooLarge { .. });
        if let Some(before) = held.sending {
            assert!(lasts(error) || other, "an end that is over said {error} after {before}");
        }
        if lasts(error) {
            held.sending = Some(error);
        }
    }

    /// Notes that a message was sent.
    fn note_sent(&mut self, sender: Name, seed: u8, len: usize, handles: Vec<Expected>) {
        if self.direction(sender.other()).closed {
            handles.into_iter().for_each(|handle| self.note_closed(handle));
        } else {
            self.direction(sender).under_way.push_back(Sent { seed, len, handles });
        }
    }

    /// Notes that a handle was closed. With it, all handles are closed that are in messages which will never be
    /// received.
    pub(crate) fn note_closed(&mut self, handle: Expected) {
        let mut closing = vec![handle];
        while let Some(handle) = closing.pop() {
            let Some(name) = handle.end() else { continue };
            self.direction(name).closed = true;
            let lost = std::mem::take(&mut self.direction(name.other()).under_way);
            closing.extend(lost.into_iter().flat_map(|sent| sent.handles));
        }
    }

    pub(crate) fn next_seed(&mut self) -> u8 {
        self.count = self.count.wrapping_add(37);
        self.count
    }

    pub(crate) fn send(&mut self, at: usize, a: u8, word: u32, handles: Vec<(Handle, Expected)>) {
        let (seed, len) = (self.next_seed(), length(a, word));
        let bytes = content(seed, len);
        let (handles, expected): (Vec<_>, Vec<_>) = handles.into_iter().unzip();
        let sent = self.ends[at].channel.try_send(Outgoing::new(&bytes).handles(handles));
        self.after_send(at, seed, len, expected, sent);
    }

    fn after_send(&mut self, at: usize, seed: u8, len: usize, handles: Vec<Expected>, sent: Result<(), SendError>) {
        let name = self.ends[at].name;
        match sent {
            Ok(()) => {
                assert!(self.ends[at].sending.is_none(), "an end that is over sent");
                self.note_sent(name, seed, len, handles);
            }
            Err(SendError { error, handles: back, .. }) => {
                assert_eq!(back.len(), handles.len(), "handles that were not sent");
                // If an end is sent, the error may be that of the sent end.
                match handles.iter().any(|handle| handle.end().is_some()) {
                    true => self.check(at, Some(error), "send ends"),
                    false => self.check_sent(at, error),
                }
                for (handle, expected) in back.into_iter().zip(handles) {
                    match (handle, expected) {
                        (Handle::Channel(channel), Expected::End(name)) => {
                            self.hold(channel, name);
                        }
                        (Handle::Fd(_), Expected::Descriptor) | (Handle::Region(_), Expected::Region(_)) => {}
                        (handle @ (Handle::Producer(_) | Handle::Consumer(_)), Expected::Pipe(name)) => {
                            self.hold_pipe(handle, name);
                        }
                        (handle, expected) => panic!("{handle:?} came back for {expected:?}"),
                    }
                }
            }
        }
    }

    fn send_new_ends(&mut self, at: usize, a: u8, b: u8, word: u32) {
        let mut handles = Vec::new();
        for _ in 0..1 + b % 3 {
            if self.ends.len() >= MOST_ENDS {
                break;
            }
            let (one, other) = self.options.pair().expect("a pair");
            let name = self.new_name();
            self.hold(one, name);
            handles.push((Handle::Channel(other), Expected::End(name.other())));
            if b & 0x80 != 0 {
                handles.push((descriptor(), Expected::Descriptor));
            }
        }
        self.send(at, a, word, handles);
    }

    fn send_held_end(&mut self, mut at: usize, a: u8, b: u8, word: u32) {
        let which = usize::from(b) % self.ends.len();
        // Never over a younger channel: two ends that travel over each other can never be received.
        if self.ends[which].name.channel <= self.ends[at].name.channel {
            return;
        }
        let Held { channel, name, .. } = self.ends.remove(which);
        at -= usize::from(which < at);
        self.send(at, a, word, vec![(Handle::Channel(channel), Expected::End(name))]);
    }

    /// Sends regions and ends of data pipes, some of each.
    fn send_others(&mut self, at: usize, a: u8, b: u8, word: u32) {
        let mut handles = Vec::new();
        let over = self.ends[at].name;
        for nth in 0..1 + b / 64 {
            let (who, how) = (b.wrapping_add(nth), (word >> 16) as u8);
            match b / 8 % 4 {
                0 => handles.push(self.region_handle(who, how, word >> 8)),
                1 => handles.extend(self.pipe_handle(who, how, word >> 8, over)),
                2 => {
                    handles.push(self.region_handle(who, how, word >> 8));
                    handles.extend(self.pipe_handle(who, how, word >> 8, over));
                }
                _ => {
                    handles.extend(self.pipe_handle(who, how, word >> 8, over));
                    handles.push((descriptor(), Expected::Descriptor));
                }
            }
        }
        self.send(at, a, word % 256, handles);
    }

    fn send_row(&mut self, at: usize, a: u8, b: u8, word: u32) {
        let count = 1 + usize::from(b % 20);
        let len = length(a, word).min(20_000);
        let seeds: Vec<_> = (0..count).map(|_| self.next_seed()).collect();
        let bytes: Vec<_> = seeds.iter().map(|seed| content(*seed, len)).collect();
        let with_handles = b / 20 % 4 == 1;
        let row = bytes.iter().map(|bytes| {
            let message = Outgoing::new(bytes);
            if with_handles { message.handle(descriptor()) } else { message }
        });
        let (sent, error) = match self.ends[at].channel.send_many(row, Deadline::NOW) {
            Ok(sent) => (sent, None),
            Err(failed) => (failed.sent, Some(failed.failed.error)),
        };
        assert!(sent <= count && (sent == count || error.is_some()), "{sent} of {count} were sent: {error:?}");
        let name = self.ends[at].name;
        let handles = if with_handles { vec![Expected::Descriptor] } else { Vec::new() };
        for seed in &seeds[..sent] {
            self.note_sent(name, *seed, len, handles.clone());
        }
        if let Some(error) = error {
            self.check_sent(at, error);
        }
    }

    fn reserve(&mut self, at: usize, a: u8, b: u8, word: u32) {
        let (seed, len) = (self.next_seed(), length(a, word));
        let less = if b & 2 != 0 { len / 2 } else { len };
        let channel = &self.ends[at].channel;
        let reserved = channel.reserve(len, Deadline::NOW).map(|mut room| {
            room.write_at(&content(seed, len), 0);
            if b & 4 != 0 {
                room.handle(descriptor());
            }
            // Or the reservation is dropped.
            (b & 1 == 0).then(|| room.commit_first(less))
        });
        let sent = match reserved {
            Ok(Some(sent)) => sent,
            Ok(None) => return,
            Err(error) => return self.check_sent(at, error),
        };
        let handles = if b & 4 != 0 { vec![Expected::Descriptor] } else { Vec::new() };
        self.after_send(at, seed, less, handles, sent);
    }

    fn reserve_sealed(&mut self, at: usize, a: u8, b: u8, word: u32) {
        let (seed, len) = (self.next_seed(), length(a, word));
        let channel = &self.ends[at].channel;
        let reserved = channel.reserve_sealed(len).map(|mut room| {
            // The memory of an empty message has a byte that is not part of the message.
            room.bytes()[..len].copy_from_slice(&content(seed, len));
            if b & 4 != 0 {
                room.handle(descriptor());
            }
            (b & 1 == 0).then(|| room.commit(Deadline::NOW))
        });
        let sent = match reserved {
            Ok(Some(sent)) => sent,
            Ok(None) => return,
            Err(error) => return self.check_sent(at, error),
        };
        let handles = if b & 4 != 0 { vec![Expected::Descriptor] } else { Vec::new() };
        self.after_send(at, seed, len, handles, sent);
    }

    /// Checks a message that was received: it must be the one that was sent.
    fn arrived(&mut self, at: usize, bytes: &[u8], handles: Result<Vec<Handle>, Error>) {
        let name = self.ends[at].name;
        assert!(self.ends[at].receiving.is_none(), "an end that is over received");
        if self.honest() {
            let sent = self.direction(name.other()).under_way.pop_front().expect("a message that was sent");
            let handles = handles.expect("handles that were sent");
            assert!(bytes == content(sent.seed, sent.len), "the bytes that were sent");
            assert_eq!(handles.len(), sent.handles.len());
            for (handle, expected) in handles.into_iter().zip(sent.handles) {
                match (handle, expected) {
                    (Handle::Channel(channel), Expected::End(name)) if self.ends.len() < MOST_ENDS => {
                        self.hold(channel, name);
                    }
                    (Handle::Fd(_), Expected::Descriptor) => {}
                    (Handle::Channel(_), Expected::End(_)) => self.note_closed(expected),
                    (Handle::Region(region), Expected::Region(which)) => self.region_arrived(region, which),
                    (handle, Expected::Pipe(name)) => self.pipe_arrived(handle, name),
                    (handle, expected) => panic!("{handle:?} came for {expected:?}"),
                }
            }
            return;
        }
        for handle in handles.into_iter().flatten() {
            // It may not be known any more which end this is. It gets a younger channel than the one over which it
            // arrived, so it cannot be sent over an end whose other end it has in a message itself.
            let unknown = Name { channel: name.channel + 1, side: 0 };
            while self.directions.len() <= unknown.channel {
                self.directions.push(Default::default());
            }
            match handle {
                Handle::Channel(channel) if self.ends.len() < MOST_ENDS => self.hold(channel, unknown),
                Handle::Producer(_) => self.hold_pipe(handle, unknown),
                Handle::Consumer(_) => self.hold_pipe(handle, unknown.other()),
                Handle::Region(region) => self.hold_region(region, None),
                _ => {}
            }
        }
    }

    fn receive(&mut self, at: usize) -> bool {
        match self.ends[at].channel.try_recv() {
            Ok(mut message) => {
                let handles = message.take_handles();
                self.arrived(at, message.bytes(), handles);
                true
            }
            Err(error) => {
                self.check_received(at, error);
                false
            }
        }
    }

    /// Receives the messages that are there, up to a limit: a peer can make its ring look endlessly full with one
    /// write.
    fn receive_all(&mut self, at: usize) {
        for _ in 0..MOST_RECEIVED {
            if !self.receive(at) {
                break;
            }
            self.proxies.pump();
        }
    }

    fn receive_into(&mut self, at: usize, room: usize) {
        let mut buffer = vec![0; room];
        match self.ends[at].channel.recv_into(&mut buffer, Deadline::NOW) {
            Ok(mut received) => {
                let handles = received.take_handles();
                self.arrived(at, &buffer[..received.len()], handles);
            }
            Err(error) => self.check_received_or_small(at, error, room),
        }
    }

    fn check_received_or_small(&mut self, at: usize, error: Error, room: usize) {
        match error {
            Error::BufferTooSmall { needed } => assert!(needed > room && self.ends[at].receiving.is_none()),
            error => self.check_received(at, error),
        }
    }

    fn receive_in_place(&mut self, at: usize, b: u8) {
        let proxies = &mut self.proxies;
        let received = self.ends[at].channel.recv_in_place(Deadline::NOW).map(|mut message| {
            let mut bytes = vec![0; message.len()];
            if b & 1 != 0 {
                proxies.pump();
            }
            message.read_at(&mut bytes, 0);
            if let Some(sealed) = message.sealed() {
                assert!(sealed == bytes, "sealed bytes changed");
            }
            (bytes, message.take_handles())
        });
        match received {
            Ok((bytes, handles)) => self.arrived(at, &bytes, handles),
            Err(error) => self.check_received(at, error),
        }
    }

    fn receive_many(&mut self, at: usize, count: usize) {
        let mut slots: Vec<_> = (0..count).map(|_| Message::new()).collect();
        match self.ends[at].channel.recv_many(&mut slots, Deadline::NOW) {
            Ok(received) => {
                for slot in &mut slots[..received] {
                    let handles = slot.take_handles();
                    self.arrived(at, slot.bytes(), handles);
                }
            }
            Err(error) => self.check_received(at, error),
        }
    }

    fn close(&mut self, at: usize) {
        let Held { name, channel, .. } = self.ends.remove(at);
        drop(channel);
        if self.honest() {
            self.note_closed(Expected::End(name));
        }
    }

    fn change_set(&mut self, at: usize, a: u8, b: u8) {
        let set = &mut self.sets[usize::from(a % 2)];
        let set = set.get_or_insert_with(|| WaitSet::new().expect("a set"));
        let channel = &self.ends[at].channel;
        let interest = [Interest::Readable, Interest::Writable, Interest::Both][usize::from(b) % 3];
        let mode = if a & 2 == 0 { Mode::Level } else { Mode::OneShot };
        let changed = match a / 4 % 4 {
            0 | 1 => set.add(channel, at as u64, interest, mode),
            2 => set.modify(channel, at as u64, interest, mode),
            _ => set.remove(channel),
        };
        match changed {
            Err(Error::InSet | Error::NotInSet) => {}
            changed => self.check(at, changed.err(), "a wait set"),
        }
    }

    fn wait(&mut self, b: u8) {
        let Some(set) = &self.sets[usize::from(b % 2)] else { return };
        let mut events = Vec::with_capacity(1 + usize::from(b / 2 % 8));
        let most = events.capacity();
        match set.wait(&mut events, Deadline::NOW) {
            Ok(count) => assert!(count == events.len() && count <= most),
            Err(error) => assert!(!self.honest(), "waiting failed: {error}"),
        }
    }

    fn ask(&mut self, at: usize) {
        let channel = &self.ends[at].channel;
        let _ = (channel.is_readable(), channel.is_writable(), channel.is_peer_closed(), channel.counters());
        let peer = channel.peer();
        if let Ok(Some(peer)) = &peer {
            assert_eq!(peer.pid, Some(std::process::id()));
        }
        self.check(at, peer.err(), "who is it");
    }

    /// Receives everything and closes all ends.
    pub(crate) fn end(mut self) {
        let mut at = 0;
        while at < self.ends.len() {
            self.receive_all(at);
            at += 1;
        }
        if self.honest() {
            for held in &self.ends {
                let under_way = &self.directions[held.name.channel][1 - held.name.side].under_way;
                assert!(under_way.is_empty(), "messages to {:?} that never came: {under_way:?}", held.name);
            }
        }
        self.forget_regions();
        self.end_pipes();
        self.end_calls();
        while !self.ends.is_empty() {
            self.close(self.ends.len() - 1);
            self.proxies.pump();
        }
        self.sets = [None, None];
        strait::fuzzing::no_more_steps();
    }
}
