//! The data pipes that an input makes, sends, writes and reads.
//!
//! As long as nothing was tampered with, the bytes that are read are those that were written, and exactly as many can
//! be written and read as there is room and as there are. Whatever was tampered with, only whole elements are
//! transferred, no more than were asked for, and an end that failed for good goes on failing.

use std::collections::VecDeque;

use strait::pipe::{DataConsumer, DataPipe, DataProducer, PipeOptions};
use strait::wait::{Interest, Mode, Source, WaitSet};
use strait::{Deadline, Error, Handle};

use crate::program::Instruction;
use crate::world::{Expected, Name, World, length};

/// The greatest number of ends of data pipes that are held.
const MOST: usize = 8;

/// The greatest number of reads in a row at the end of an input. A data pipe whose words the proxy changes may never
/// become empty.
const MOST_READS: usize = 500;

/// What is known about a data pipe, as long as nothing was tampered with.
#[derive(Debug)]
struct Pipe {
    channel: usize,
    capacity: u64,
    element: u64,
    written: u64,
    read: u64,
}

#[derive(Debug)]
enum Side {
    Producer(DataProducer),
    Consumer(DataConsumer),
}

impl Side {
    fn element(&self) -> usize {
        match self {
            Self::Producer(end) => end.element(),
            Self::Consumer(end) => end.element(),
        }
    }

    fn join(&self, set: &WaitSet, how: u8, key: u64) -> Result<(), Error> {
        fn join(set: &WaitSet, end: &impl Source, how: u8, key: u64) -> Result<(), Error> {
            match how % 4 {
                0 => set.add(end, key, Interest::Both, Mode::Level),
                1 => set.add(end, key, Interest::Both, Mode::OneShot),
                2 => set.modify(end, key, Interest::Both, Mode::OneShot),
                _ => set.remove(end),
            }
        }
        match self {
            Self::Producer(end) => join(set, end, how, key),
            Self::Consumer(end) => join(set, end, how, key),
        }
    }
}

#[derive(Debug)]
struct Held {
    side: Side,
    /// The end of the data pipe's channel; side 0 writes.
    name: Name,
    /// How the end failed for good: with an error, or `Some(None)` at the end of the stream.
    over: Option<Option<Error>>,
}

/// All data pipes of an input.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    pipes: Vec<Pipe>,
    held: VecDeque<Held>,
}

/// Returns the byte at a position of the stream of a data pipe.
fn byte(pipe: usize, at: u64) -> u8 {
    (pipe as u64 * 89 + at * 7 + at / 251) as u8
}

fn bytes(pipe: usize, from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(|at| byte(pipe, at)).collect()
}

/// The result of a call: the number of bytes, or the error.
type Done = Result<usize, Error>;

impl World {
    fn pipe_end_at(&self, who: u8) -> Option<usize> {
        let held = self.pipes.held.len();
        (held > 0).then(|| usize::from(who) % held)
    }

    /// Returns the index of a held producer (`writes`) or consumer; `None` if none is held.
    fn pipe_end_of(&self, who: u8, writes: bool) -> Option<usize> {
        let fits = |held: &Held| matches!(held.side, Side::Producer(_)) == writes;
        let count = self.pipes.held.iter().filter(|held| fits(held)).count();
        let which = usize::from(who) % count.max(1);
        self.pipes.held.iter().enumerate().filter(|(_, held)| fits(held)).nth(which).map(|(at, _)| at)
    }

    /// Returns what is known about a data pipe; `None` once something was tampered with.
    fn pipe(&mut self, name: Name) -> Option<(usize, &mut Pipe)> {
        let honest = self.honest();
        self.pipes.pipes.iter_mut().enumerate().find(|(_, pipe)| honest && pipe.channel == name.channel)
    }

    /// Returns the number of the data pipe and its positions of reading and writing. Then come the bytes to read and
    /// the room, both in all and without a wrap.
    fn stream(&mut self, name: Name) -> (usize, [u64; 2], [usize; 2], [usize; 2]) {
        self.pipe(name).map_or_else(Default::default, |(which, pipe)| {
            let beside = |at: u64, len: u64| [len as usize, len.min(pipe.capacity - at % pipe.capacity) as usize];
            let there = pipe.written - pipe.read;
            let (to_read, room) = (beside(pipe.read, there), beside(pipe.written, pipe.capacity - there));
            (which, [pipe.read, pipe.written], to_read, room)
        })
    }

    fn new_pipe(&mut self, a: u8, word: u32) -> (Held, Held) {
        let capacity = [1, 64, 300, 4096, 5000, 8192, 20_000, 1 << 16][usize::from(a % 8)];
        let element = [1, 1, 1, 2, 3, 8, 100, 1000][word as usize % 8];
        let (producer, consumer) = match element {
            1 => DataPipe::pair(capacity),
            _ => PipeOptions::new().capacity(capacity).element(element).create(),
        }
        .expect("a pipe");
        let name = self.new_name();
        let capacity = producer.capacity() as u64;
        self.pipes.pipes.push(Pipe { channel: name.channel, capacity, element: element.into(), written: 0, read: 0 });
        (
            Held { side: Side::Producer(producer), name, over: None },
            Held { side: Side::Consumer(consumer), name: name.other(), over: None },
        )
    }

    fn hold_side(&mut self, held: Held) {
        if self.pipes.held.len() < MOST {
            self.pipes.held.push_back(held);
        } else {
            self.drop_side(held);
        }
    }

    fn drop_side(&mut self, held: Held) {
        let name = held.name;
        drop(held);
        if self.honest() {
            self.note_closed(Expected::Pipe(name));
        }
    }

    /// Holds an end of a data pipe that arrived or came back from a failed send.
    pub(crate) fn hold_pipe(&mut self, handle: Handle, name: Name) {
        let side = match handle {
            Handle::Producer(end) => Side::Producer(end),
            Handle::Consumer(end) => Side::Consumer(end),
            handle => panic!("{handle:?} is no end of a pipe"),
        };
        self.hold_side(Held { side, name, over: None });
    }

    /// Checks and holds an end of a data pipe that arrived and should be `name`.
    pub(crate) fn pipe_arrived(&mut self, handle: Handle, name: Name) {
        let (element, capacity, writes) = match &handle {
            Handle::Producer(end) => (end.element(), end.capacity(), true),
            Handle::Consumer(end) => (end.element(), end.capacity(), false),
            handle => panic!("{handle:?} came for an end of a pipe"),
        };
        let (_, pipe) = self.pipe(name).expect("a pipe that was made");
        let expected = (pipe.element as usize, pipe.capacity as usize, name.side == 0);
        assert_eq!((element, capacity, writes), expected, "another pipe came");
        self.hold_pipe(handle, name);
    }

    /// Returns a handle of an end of a data pipe, and what to expect of it. The end is a held one, or one of a new data
    /// pipe whose other end is held.
    pub(crate) fn pipe_handle(&mut self, who: u8, a: u8, word: u32, over: Name) -> Option<(Handle, Expected)> {
        let held = if a & 8 == 0 {
            let at = self.pipe_end_at(who)?;
            // Never over a younger channel, as with ends of channels.
            if self.pipes.held[at].name.channel <= over.channel {
                return None;
            }
            self.pipes.held.remove(at)?
        } else {
            let (producer, consumer) = self.new_pipe(a, word);
            let (kept, sent) = if a & 16 == 0 { (producer, consumer) } else { (consumer, producer) };
            self.hold_side(kept);
            sent
        };
        let handle = match held.side {
            Side::Producer(end) => Handle::Producer(end),
            Side::Consumer(end) => Handle::Consumer(end),
        };
        Some((handle, Expected::Pipe(held.name)))
    }

    /// Panics if the result of a call is not one that is possible, or if an end that failed for good succeeds.
    fn check_pipe(&mut self, at: usize, done: Done, call: &str) {
        let honest = self.honest();
        let held = &self.pipes.held[at];
        let (reads, name) = (matches!(held.side, Side::Consumer(_)), held.name);
        if self.told() {
            eprintln!("  {call} of {name:?}: {done:?}");
        }
        let last = match done {
            Ok(0) if reads => Some(None),
            Err(error @ (Error::PeerClosed | Error::BadPeer(_))) => Some(Some(error)),
            _ => None,
        };
        let held = &mut self.pipes.held[at];
        // After an error a consumer can still read what is there, if that is less than was asked for. But a producer
        // can write nothing any more.
        if let (Some(before), false) = (held.over, reads) {
            assert!(!done.is_ok_and(|len| len > 0), "{call}: an end of a pipe that is over");
            assert!(last.is_none_or(|last| last == before), "{call}: {last:?} after {before:?}");
        }
        held.over = held.over.or(last);
        match done {
            Err(Error::System { call: refused, code }) => panic!("{call}: {refused} was refused: {code}"),
            Err(error) if honest => {
                let fine = match error {
                    Error::WouldBlock | Error::LimitReached(_) => true,
                    Error::NotElements { .. } | Error::OutOfRange { .. } => true,
                    Error::PeerClosed => !reads && self.is_closed(name.other()),
                    _ => false,
                };
                assert!(fine, "{call} of {name:?}: {error}");
            }
            Ok(0) if honest && reads => {
                assert!(self.is_closed(name.other()), "{call} of {name:?}: the end of the stream");
            }
            _ => {}
        }
    }

    /// Writes to a data pipe in one of several ways.
    fn write_pipe(&mut self, at: usize, a: u8, b: u8, word: u32) {
        let honest = self.honest();
        let name = self.pipes.held[at].name;
        let (which, [_, written], _, free) = self.stream(name);
        let Side::Producer(end) = &self.pipes.held[at].side else { return };
        let element = end.element();
        let wanted = length(a, word);
        let wanted = if b & 8 == 0 { wanted.next_multiple_of(element) } else { wanted };
        let stream = bytes(which, written, wanted);
        let (call, expected, done) = match b % 4 {
            0 => ("write", wanted.min(free[0]) / element * element, end.write_some(&stream, Deadline::NOW)),
            1 => ("write whole", wanted, end.write_whole(&stream, Deadline::NOW).map(|()| wanted)),
            2 => {
                let place = end.begin_write(Deadline::NOW).map(|mut room| {
                    assert!(!room.is_empty() && room.len().is_multiple_of(element), "room for {}", room.len());
                    assert!(!honest || room.len() == free[1], "{} bytes of room, not {}", room.len(), free[1]);
                    let len = wanted.min(room.len()) / element * element;
                    room.write_at(&stream[..len], 0);
                    if b & 16 != 0 {
                        self.proxies.pump();
                    }
                    room.commit(len);
                    len
                });
                ("begin to write", wanted.min(free[1]) / element * element, place)
            }
            _ => {
                let file = crate::memory::memfd(wanted, &stream, rustix::fs::SealFlags::empty());
                let len = wanted.min(free[1]);
                ("splice", len, end.splice_from(file, wanted, Deadline::NOW))
            }
        };
        if let Ok(len) = done {
            assert!(len <= wanted && len.is_multiple_of(element), "{call}: {len} of {wanted} bytes were written");
            if honest {
                assert_eq!(len, expected, "{call}: bytes for which there was room");
            }
            if let Some((_, pipe)) = self.pipe(name) {
                pipe.written += len as u64;
            }
        } else if honest && done == Err(Error::WouldBlock) {
            let needed = if b % 4 == 1 { wanted } else { element };
            assert!(free[0] < needed, "{call}: {} bytes of room are none", free[0]);
        }
        self.check_pipe(at, done, call);
    }

    /// Reads from a data pipe in one of several ways. Returns whether any bytes were read and removed.
    fn read_pipe(&mut self, at: usize, a: u8, b: u8, word: u32) -> bool {
        let honest = self.honest();
        let name = self.pipes.held[at].name;
        let (which, [read, _], there, _) = self.stream(name);
        let Held { side: Side::Consumer(end), over, .. } = &self.pipes.held[at] else { return false };
        let (over, element) = (*over, end.element());
        let wanted = length(a, word);
        let wanted = if b & 8 == 0 { wanted.next_multiple_of(element) } else { wanted };
        let mut out = vec![0; wanted];
        let whole = |len: usize| wanted.min(len) / element * element;
        let (call, expected, took, done) = match b % 8 {
            0 | 1 => ("read", whole(there[0]), true, end.read_some(&mut out, Deadline::NOW)),
            2 => ("read whole", wanted, true, end.read_whole(&mut out, Deadline::NOW).map(|()| wanted)),
            3 => ("peek", whole(there[0]), false, end.peek(&mut out)),
            4 => {
                // A discard of no bytes is not the end of the stream.
                let dropped = end.discard(wanted);
                if let Ok(len) = dropped {
                    out.copy_from_slice(&bytes(which, read, wanted));
                    assert!(!honest || len == whole(there[0]), "{len} of {} bytes were dropped", there[0]);
                }
                match dropped {
                    Ok(0) => return false,
                    dropped => ("discard", whole(there[0]), true, dropped),
                }
            }
            5 if element == 1 => {
                let file = crate::memory::memfd(0, &[], rustix::fs::SealFlags::empty());
                let written = end.splice_to(&file, wanted, Deadline::NOW);
                if let Ok(len) = written {
                    rustix::io::pread(&file, &mut out[..len], 0).expect("what was written");
                }
                if wanted == 0 && written == Ok(0) {
                    return false;
                }
                ("splice", wanted.min(there[1]), true, written)
            }
            _ => {
                let unread = end.begin_read(Deadline::NOW).map(|unread| {
                    let len = unread.len();
                    assert!(len.is_multiple_of(element), "{len} bytes are not whole elements");
                    assert!(!honest || len == there[1], "{len} bytes unread, not {}", there[1]);
                    let taken = whole(len);
                    unread.read_at(&mut out[..taken], 0);
                    if b & 16 != 0 {
                        self.proxies.pump();
                        let mut again = vec![0; len];
                        unread.read_at(&mut again, 0);
                    }
                    let ended = len == 0;
                    unread.consume(taken);
                    (taken, ended)
                });
                match unread {
                    // There were bytes, and the input took none.
                    Ok((0, false)) => return false,
                    unread => ("begin to read", whole(there[1]), true, unread.map(|(len, _)| len)),
                }
            }
        };
        if wanted == 0 && done == Ok(0) && b % 8 < 4 {
            return false;
        }
        if let Ok(len) = done {
            assert!(len <= wanted && len.is_multiple_of(element), "{call}: {len} of {wanted} bytes were read");
            if honest {
                assert_eq!(len, expected, "{call}: bytes that were there");
                assert!(out[..len] == bytes(which, read, len), "{call}: the bytes of a pipe");
            }
            if took && let Some((_, pipe)) = self.pipe(name) {
                pipe.read += len as u64;
            }
        } else if honest && done == Err(Error::WouldBlock) {
            let needed = if b % 8 == 2 { wanted } else { element };
            assert!(there[0] < needed, "{call}: {} bytes are nothing", there[0]);
        }
        // Once the end of the stream was reported, the same call reports it again.
        if let (Some(before), true) = (over, b % 8 < 2 && wanted >= element) {
            let now = done.map(|_| ()).err();
            let more = done.is_ok_and(|len| len > 0);
            assert!(more || now == before, "{call} of {name:?}: {now:?} after {before:?}");
        }
        self.check_pipe(at, done, call);
        done.is_ok_and(|len| len > 0 && took)
    }

    fn ask_pipe(&mut self, at: usize) {
        let name = self.pipes.held[at].name;
        let (_, _, there, free) = self.stream(name);
        let (said, expected) = match &self.pipes.held[at].side {
            Side::Producer(end) => (end.room(), free[0]),
            Side::Consumer(end) => (end.available(), there[0]),
        };
        if let (Ok(said), true) = (said, self.honest()) {
            assert_eq!(said, expected, "what there is of {name:?}");
        }
        if said.is_err() {
            self.check_pipe(at, said, "ask");
        }
    }

    pub(crate) fn act_on_pipes(&mut self, what: u8, Instruction { who, a, b, word, .. }: Instruction) {
        match what {
            0 => {
                let (producer, consumer) = self.new_pipe(a, word);
                self.hold_side(producer);
                self.hold_side(consumer);
            }
            1 | 2 => {
                if let Some(at) = self.pipe_end_of(who, true) {
                    self.write_pipe(at, a, b, word);
                }
            }
            3 | 4 => {
                if let Some(at) = self.pipe_end_of(who, false) {
                    self.read_pipe(at, a, b, word);
                }
            }
            5 => {
                let Some(at) = self.pipe_end_at(who) else { return };
                let set = &mut self.sets[usize::from(a % 2)];
                let set = set.get_or_insert_with(|| WaitSet::new().expect("a set"));
                match self.pipes.held[at].side.join(set, b, 100 + at as u64) {
                    Err(Error::InSet | Error::NotInSet) => {}
                    Err(error) => self.check_pipe(at, Err(error), "a wait set"),
                    Ok(()) => {}
                }
            }
            6 => {
                if let Some(at) = self.pipe_end_at(who) {
                    self.ask_pipe(at);
                }
            }
            _ => {
                if let Some(held) = self.pipe_end_at(who).and_then(|at| self.pipes.held.remove(at)) {
                    self.drop_side(held);
                }
            }
        }
    }

    /// Reads everything that was written, and drops all ends.
    pub(crate) fn end_pipes(&mut self) {
        for at in 0..self.pipes.held.len() {
            let element = self.pipes.held[at].side.element();
            for _ in 0..MOST_READS {
                // As much as there is to read.
                if !self.read_pipe(at, 4, 0, 69_000u32.next_multiple_of(element as u32)) {
                    break;
                }
            }
            let name = self.pipes.held[at].name;
            if let (true, 1, Some((_, pipe))) = (self.honest(), name.side, self.pipe(name)) {
                assert_eq!(pipe.read, pipe.written, "bytes to {name:?} that never came");
            }
        }
        while let Some(held) = self.pipes.held.pop_back() {
            self.drop_side(held);
            self.proxies.pump();
        }
    }
}
