//! A process of a scenario: calls, reactions to errors, and checks before the end.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use strait::pipe::{DataConsumer, DataProducer};
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing, Wait, fault};

use crate::program::allocations;
use crate::program::ledger::{Ledger, Life};
use crate::program::run::World;
use crate::program::scenarios::Scenario;

/// How a process of a scenario ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Ending {
    /// The process was killed, and recorded no ending.
    Killed = 0,
    /// The process did everything without a fault.
    Done = 1,
    /// The process stopped because a channel was closed by the failure of another process.
    Closed = 2,
    /// The process could not continue after an error caused by its own fault, and recorded the error.
    GaveUp = 3,
    /// The process found and recorded a mistake.
    Wrong = 4,
}

impl Ending {
    pub(crate) fn of(life: &Life) -> Self {
        let word = life.ending.load(Ordering::SeqCst);
        let all = [Self::Done, Self::Closed, Self::GaveUp, Self::Wrong];
        all.into_iter().find(|ending| *ending as u32 == word).unwrap_or(Self::Killed)
    }
}

/// The failures to expect in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// No failure: each call of this process succeeds.
    Success,
    /// Other processes may end.
    Death,
    /// Calls of other processes may fail, so handles of their messages may be lost.
    Loss,
    /// Calls of this process may fail.
    Refusal,
}

/// The reason why a process does not continue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    Closed,
    GaveUp(Error),
}

/// How often a failing call is made before the failures count as a mistake.
const TRIES: u32 = 4;

/// How long a process may have something open after it dropped everything.
const SETTLED: Duration = Duration::from_secs(5);

/// The number of descriptors that a process has prepared for sending.
const FILES: usize = 16;

/// A process of a scenario.
pub(crate) struct Actor {
    number: usize,
    ledger: &'static Ledger,
    directory: PathBuf,
    expect: Expect,
    /// The number of failed calls since the last successful call.
    refused: Cell<u32>,
    files: RefCell<Vec<OwnedFd>>,
    inode: u64,
}

pub(crate) type Played = Result<(), Stop>;

impl Actor {
    fn life(&self) -> &'static Life {
        &self.ledger.lives[self.number]
    }

    /// Records the caller's line, so that the place of a hang is known.
    #[track_caller]
    fn at(&self) {
        self.life().line.store(Location::caller().line(), Ordering::Relaxed);
    }

    /// Judges an error. Returns `Ok` if the call is to be made again, and `Err` if the process is to stop. Panics if
    /// nothing explains the error.
    #[track_caller]
    fn take(&self, error: Error) -> Played {
        let passes = matches!(
            error,
            Error::NoDescriptors | Error::NoMemory { .. } | Error::System { .. } | Error::HandlesLost { .. }
        );
        match self.expect {
            // The source of a moving end could not send these handles with the end.
            Expect::Loss if matches!(error, Error::HandlesLost { .. }) => Ok(()),
            Expect::Refusal if passes => {
                fault::feed();
                let refused = self.refused.get() + 1;
                self.refused.set(refused);
                assert!(refused < TRIES, "trying again does not help: {error:?}");
                Ok(())
            }
            Expect::Refusal | Expect::Death | Expect::Loss if error == Error::PeerClosed => Err(Stop::Closed),
            _ => panic!("an error that nobody has to reckon with: {error:?}"),
        }
    }

    /// Makes a call, and repeats the call after a temporary error.
    #[track_caller]
    pub(crate) fn call<T>(&self, call: impl FnMut() -> Result<T, Error>) -> Result<T, Stop> {
        self.at();
        self.again_if_refused(call)
    }

    #[track_caller]
    pub(crate) fn again_if_refused<T>(&self, mut call: impl FnMut() -> Result<T, Error>) -> Result<T, Stop> {
        loop {
            match call() {
                Ok(done) => {
                    self.refused.set(0);
                    return Ok(done);
                }
                Err(error) => self.take(error)?,
            }
        }
    }

    /// Makes a call without a wait, and repeats the call while it would block or fails with a temporary error.
    #[track_caller]
    pub(crate) fn until_it_does_not_block(&self, mut call: impl FnMut() -> Result<(), Error>) -> Played {
        self.call(|| {
            loop {
                match call() {
                    Err(Error::WouldBlock) => std::thread::sleep(Duration::from_micros(100)),
                    done => return done,
                }
            }
        })
    }

    /// Makes a call that consumes the arguments, and so cannot be repeated. If the call fails, the process stops.
    #[track_caller]
    pub(crate) fn once<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Stop> {
        self.at();
        match call() {
            Ok(done) => Ok(done),
            // The socket was refused a packet once.
            Err(error @ (Error::WouldBlock | Error::NotASocket(_))) if self.expect == Expect::Refusal => {
                Err(Stop::GaveUp(error))
            }
            Err(error) => {
                self.take(error)?;
                Err(Stop::GaveUp(error))
            }
        }
    }

    /// Makes a channel over a socket, with the usual options.
    #[track_caller]
    pub(crate) fn open(&self, socket: OwnedFd) -> Result<Channel, Stop> {
        self.open_with(socket, &options())
    }

    #[track_caller]
    pub(crate) fn open_with(&self, socket: OwnedFd, options: &Options) -> Result<Channel, Stop> {
        self.once(|| options.over(socket))
    }

    /// Takes `count` of the prepared descriptors.
    pub(crate) fn files(&self, count: usize) -> Vec<Handle> {
        let mut files = self.files.borrow_mut();
        let rest = files.len().checked_sub(count).expect("enough files");
        files.split_off(rest).into_iter().map(Handle::from).collect()
    }

    fn attempt(&self, stream: usize, count: u32) -> u32 {
        self.ledger.streams[stream].attempted.fetch_add(count, Ordering::SeqCst)
    }

    fn accept(&self, stream: usize, count: u32) {
        self.ledger.streams[stream].accepted.fetch_add(count, Ordering::SeqCst);
    }

    fn accepted(&self, stream: usize) -> u32 {
        self.ledger.streams[stream].accepted.load(Ordering::SeqCst)
    }

    /// Sends the next message of a stream, with `len` bytes.
    #[track_caller]
    pub(crate) fn send(&self, stream: usize, channel: &Channel, len: usize) -> Played {
        self.send_with(stream, channel, len, Vec::new())
    }

    /// Sends the next message of a stream, with `len` bytes and these handles.
    #[track_caller]
    pub(crate) fn send_with(&self, stream: usize, channel: &Channel, len: usize, handles: Vec<Handle>) -> Played {
        let count = handles.len();
        let bytes = content(stream, self.attempt(stream, 1), len);
        let mut handles = Some(handles);
        self.call(|| {
            let message = Outgoing::new(&bytes).handles(handles.take().expect("they came back"));
            channel.send(message).map_err(|refused| {
                assert_eq!(refused.handles.len(), count, "handles of a message that was not sent: {}", refused.error);
                handles = Some(refused.handles);
                refused.error
            })
        })?;
        self.accept(stream, 1);
        Ok(())
    }

    /// Sends the next message of a stream by `send`, which gets the number of the message.
    #[track_caller]
    pub(crate) fn send_made(&self, stream: usize, mut send: impl FnMut(u32) -> Result<(), Error>) -> Played {
        let number = self.attempt(stream, 1);
        self.call(|| send(number))?;
        self.accept(stream, 1);
        Ok(())
    }

    /// Sends the next messages of a stream as a batch; `lens` are their lengths in bytes.
    #[track_caller]
    pub(crate) fn send_row(&self, stream: usize, channel: &Channel, lens: &[usize]) -> Played {
        let first = self.attempt(stream, lens.len() as u32);
        let row: Vec<_> = (first..).zip(lens).map(|(number, len)| content(stream, number, *len)).collect();
        let mut row = row.iter().map(Outgoing::from).peekable();
        let mut refused = None;
        self.call(|| {
            // The iterator no longer has the failed message, so that message is sent alone.
            if let Some(failed) = refused.take() {
                let failed: usize = failed;
                channel.send(&content(stream, first + failed as u32, lens[failed])).map_err(|again| {
                    refused = Some(failed);
                    again.error
                })?;
                self.accept(stream, 1);
            }
            if row.peek().is_none() {
                return Ok(());
            }
            let begin = lens.len() - row.len();
            match channel.send_many(row.by_ref(), Deadline::NEVER) {
                Ok(sent) => {
                    self.accept(stream, sent as u32);
                    Ok(())
                }
                Err(stopped) => {
                    self.accept(stream, stopped.sent as u32);
                    refused = Some(begin + stopped.sent);
                    Err(stopped.failed.error)
                }
            }
        })
    }

    /// Writes the next `len` bytes of a stream to a data pipe. Each byte counts as a message.
    #[track_caller]
    pub(crate) fn write(&self, stream: usize, producer: &DataProducer, len: usize) -> Played {
        let first = self.attempt(stream, len as u32) as usize;
        let bytes: Vec<_> = (first..first + len).map(byte).collect();
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            let written = self.call(|| producer.write_some(left, Deadline::NEVER))?;
            self.accept(stream, written as u32);
            left = &left[written..];
        }
        Ok(())
    }

    /// Reads at most `most` of the next bytes of a stream from a data pipe. Returns their number. At the end of the
    /// stream, and if the stream was aborted, the number is 0, and all bytes must have arrived.
    #[track_caller]
    pub(crate) fn read(&self, stream: usize, consumer: &DataConsumer, most: usize) -> Result<usize, Stop> {
        let mut out = vec![0; most];
        let read = || match consumer.read_some(&mut out, Deadline::NEVER) {
            Err(Error::Aborted { .. }) => Ok(0),
            read => read,
        };
        let read = self.ended(stream, |actor| actor.again_if_refused(read))?;
        let stream = &self.ledger.streams[stream];
        let first = stream.received.fetch_add(read as u32, Ordering::SeqCst) as usize;
        assert!((first..).zip(&out[..read]).all(|(at, found)| byte(at) == *found), "other bytes than were written");
        let attempted = stream.attempted.load(Ordering::SeqCst) as usize;
        assert!(first + read <= attempted, "bytes that nobody wrote");
        assert!(read > 0 || first == attempted, "the end after {first} of {attempted} bytes");
        Ok(read)
    }

    /// Checks that a received message is next in the stream.
    #[track_caller]
    pub(crate) fn check(&self, stream: usize, bytes: &[u8]) {
        let number = self.ledger.streams[stream].received.fetch_add(1, Ordering::SeqCst);
        assert!(bytes == content(stream, number, bytes.len()), "not message {number} of stream {stream}");
        let attempted = self.ledger.streams[stream].attempted.load(Ordering::SeqCst);
        assert!(number < attempted, "a message of stream {stream} that nobody sent");
    }

    /// Receives the next message of a stream, which must have `len` bytes. Returns its handles; `None` if the handles
    /// were lost for lack of descriptors.
    #[track_caller]
    pub(crate) fn recv_with(&self, stream: usize, channel: &Channel, len: usize) -> Result<Option<Vec<Handle>>, Stop> {
        let mut message = self.recv_by(stream, |message| channel.recv_message(message, Deadline::NEVER))?;
        self.taken(stream, message.bytes(), len);
        self.handles(message.take_handles())
    }

    /// Checks that a received message has `len` bytes and is next in the stream.
    #[track_caller]
    pub(crate) fn taken(&self, stream: usize, bytes: &[u8], len: usize) {
        assert_eq!(bytes.len(), len, "the length of a message of stream {stream}");
        self.check(stream, bytes);
    }

    /// Checks that a received value has the next number of the stream. `None` if the value was lost with its handles.
    #[track_caller]
    pub(crate) fn taken_value(&self, stream: usize, number: Option<u32>) {
        let next = self.ledger.streams[stream].received.fetch_add(1, Ordering::SeqCst);
        assert!(number.is_none_or(|number| number == next), "value {number:?} of stream {stream} instead of {next}");
        let attempted = self.ledger.streams[stream].attempted.load(Ordering::SeqCst);
        assert!(next < attempted, "a value of stream {stream} that nobody sent");
    }

    /// Returns the handles of a message; `None` if the handles were lost for lack of descriptors.
    #[track_caller]
    pub(crate) fn handles(&self, taken: Result<Vec<Handle>, Error>) -> Result<Option<Vec<Handle>>, Stop> {
        match taken {
            Ok(handles) => Ok(Some(handles)),
            Err(error) => {
                assert!(matches!(error, Error::HandlesLost { .. }), "{error:?}");
                self.take(error)?;
                self.life().mark.fetch_or(LOST, Ordering::SeqCst);
                Ok(None)
            }
        }
    }

    /// Receives a message by `recv`. If `recv` returns *peer closed*, all messages accepted before this call must
    /// have arrived.
    #[track_caller]
    pub(crate) fn recv_by(
        &self,
        stream: usize,
        mut recv: impl FnMut(&mut Message) -> Result<(), Error>,
    ) -> Result<Message, Stop> {
        let mut message = Message::new();
        self.ended(stream, |actor| actor.again_if_refused(|| recv(&mut message)))?;
        Ok(message)
    }

    #[track_caller]
    pub(crate) fn ended<T>(&self, stream: usize, recv: impl FnOnce(&Self) -> Result<T, Stop>) -> Result<T, Stop> {
        self.at();
        let accepted = self.accepted(stream);
        let received = recv(self);
        if let Err(Stop::Closed) = received {
            let received = self.ledger.streams[stream].received.load(Ordering::SeqCst);
            assert!(received >= accepted, "stream {stream} ended after {received} of {accepted} messages");
        }
        received
    }

    /// Receives the next message of a stream, which must have `len` bytes and no handles.
    #[track_caller]
    pub(crate) fn recv(&self, stream: usize, channel: &Channel, len: usize) -> Played {
        let handles = self.recv_with(stream, channel, len)?;
        assert!(handles.is_none_or(|handles| handles.is_empty()), "handles that nobody sent");
        Ok(())
    }

    /// Receives the next message of a stream, which must have `len` bytes and `count` descriptors.
    #[track_caller]
    pub(crate) fn recv_files(&self, stream: usize, channel: &Channel, len: usize, count: usize) -> Played {
        if let Some(handles) = self.recv_with(stream, channel, len)? {
            self.check_files(handles, count);
        }
        Ok(())
    }

    #[track_caller]
    pub(crate) fn check_files(&self, handles: Vec<Handle>, count: usize) {
        assert_eq!(handles.len(), count, "descriptors of a message");
        for handle in handles {
            let fd = handle.into_fd().expect("a descriptor");
            assert_eq!(rustix::fs::fstat(&fd).expect("fstat").st_ino, self.inode, "another file than was sent");
        }
    }

    /// Receives the next message of a stream, with `len` bytes and one channel end, and returns the end.
    #[track_caller]
    pub(crate) fn recv_end(&self, stream: usize, channel: &Channel, len: usize) -> Result<Channel, Stop> {
        match self.recv_with(stream, channel, len)? {
            Some(mut handles) => {
                assert_eq!(handles.len(), 1, "handles of a message");
                Ok(handles.remove(0).into_channel().expect("an end was sent"))
            }
            None => Err(Stop::GaveUp(Error::HandlesLost { sent: 1, arrived: 0 })),
        }
    }

    /// Waits until the other end of the channel is closed. No message may arrive before, and all accepted messages
    /// must have arrived.
    #[track_caller]
    pub(crate) fn recv_end_of(&self, stream: usize, channel: &Channel) -> Played {
        self.ended(stream, |actor| {
            actor.again_if_refused(|| match channel.recv() {
                Err(Error::PeerClosed) => Ok(()),
                Err(error) => Err(error),
                Ok(_) => panic!("a message that nobody sent"),
            })
        })?;
        let count = |count: &AtomicU32| count.load(Ordering::SeqCst);
        let stream = &self.ledger.streams[stream];
        assert!(count(&stream.received) >= count(&stream.accepted), "a message got lost before the end");
        Ok(())
    }

    /// Returns the directory of the listeners' names.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns whether process `process` has ended.
    pub(crate) fn is_gone(&self, process: usize) -> bool {
        self.ledger.lives[process].gone.load(Ordering::SeqCst) != 0
    }

    /// Returns whether calls of other processes may fail.
    pub(crate) fn others_may_be_refused(&self) -> bool {
        self.expect == Expect::Loss
    }

    /// Returns the number of this process in its scenario.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Returns whether calls of this process may fail.
    pub(crate) fn may_be_refused(&self) -> bool {
        self.expect == Expect::Refusal
    }

    /// Opens a gate for a waiting process.
    pub(crate) fn open_gate(&self, gate: usize) {
        self.ledger.gates[gate].store(1, Ordering::SeqCst);
    }

    /// Waits until another process, `opener`, has opened a gate or has ended.
    #[track_caller]
    pub(crate) fn wait_at_gate(&self, gate: usize, opener: usize) {
        self.at();
        let is_set = |word: &AtomicU32| word.load(Ordering::SeqCst) != 0;
        while !is_set(&self.ledger.gates[gate]) && !is_set(&self.ledger.lives[opener].gone) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Sets a bit in the mark of this process, for the judge of the scenario.
    pub(crate) fn mark(&self, bit: u32) {
        self.life().mark.fetch_or(bit, Ordering::SeqCst);
    }
}

/// Bit of a process's mark: handles of a message were lost for lack of descriptors.
pub(crate) const LOST: u32 = 1 << 31;

/// Returns the usual options. A waiting thread sleeps at once, so that runs resemble each other.
pub(crate) fn options() -> Options {
    Options::new().wait(Wait::Block)
}

/// Returns the bytes of message `number` of a stream with the length `len`.
pub(crate) fn content(stream: usize, number: u32, len: usize) -> Vec<u8> {
    let seed = (number as usize * 31 + stream * 7) as u64;
    let word = |index: u64| (seed + index).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8) as u64).flat_map(|index| word(index).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// Returns byte `at` of a stream of bytes.
fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

fn mappings() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    maps.lines().filter(|line| line.contains("memfd:strait")).map(str::to_owned).collect()
}

/// The fate of one process of a scenario.
pub(crate) enum Fate {
    /// Nothing is done to the process.
    None,
    /// The steps of the process are recorded.
    Record,
    /// The process follows a plan, such as `kill:mmap:1`.
    Plan(String),
    /// A signal interrupts the process all the time.
    Interrupted,
}

/// Plays a role of a scenario in this process, checks that nothing is left, and ends the process.
pub(crate) fn play(
    scenario: &Scenario,
    number: usize,
    world: &World,
    sockets: Vec<OwnedFd>,
    fate: Fate,
    expect: Expect,
) -> ! {
    let World { ledger, content, directory, .. } = world;
    let life = &ledger.lives[number];
    std::panic::set_hook(Box::new(move |panic| life.say(&format!("{panic}\n"))));
    let wrong = |what: String| {
        life.say(&what);
        life.ending.store(Ending::Wrong as u32, Ordering::SeqCst);
    };
    let before = descriptors() - sockets.len();
    let inode = rustix::fs::fstat(content).expect("fstat").st_ino;
    let files = (0..FILES).map(|_| rustix::io::fcntl_dupfd_cloexec(content, 3).expect("a descriptor")).collect();
    let bytes = allocations::bytes();
    let refused = Cell::new(0);
    let actor =
        Actor { number, ledger, directory: directory.clone(), expect, refused, files: RefCell::new(files), inode };
    let is_recorded = matches!(fate, Fate::Record);
    match fate {
        Fate::None => {}
        Fate::Record => fault::record(),
        Fate::Plan(plan) => assert!(fault::follow(&plan), "{plan}"),
        Fate::Interrupted => crate::program::interrupt::every(Duration::from_micros(100)),
    }
    let played = catch_unwind(AssertUnwindSafe(|| (scenario.roles[number])(&actor, sockets)));
    life.is_past.store(u32::from(fault::is_past()), Ordering::SeqCst);
    fault::feed();
    if is_recorded {
        for step in fault::trace() {
            life.say(&format!("{step}\n"));
        }
    }
    crate::program::interrupt::no_more();
    drop(actor);
    match played {
        Err(_) => life.ending.store(Ending::Wrong as u32, Ordering::SeqCst),
        Ok(played) => {
            let ending = match played {
                Ok(()) => Ending::Done,
                Err(Stop::Closed) => Ending::Closed,
                Err(Stop::GaveUp(error)) => {
                    life.say(&format!("{error:?}"));
                    Ending::GaveUp
                }
            };
            life.ending.store(ending as u32, Ordering::SeqCst);
            // If a lack of descriptors or memory prevented the closing of an end, the library closes the end soon
            // after the lack.
            let begin = Instant::now();
            while (descriptors() != before || !mappings().is_empty()) && begin.elapsed() < SETTLED {
                std::thread::sleep(Duration::from_millis(5));
            }
            life.bytes.store(allocations::bytes().saturating_sub(bytes), Ordering::SeqCst);
            let (after, mapped) = (descriptors(), mappings());
            if after != before {
                wrong(format!("{before} open descriptors before, {after} after: {}", open_files()));
            }
            if !mapped.is_empty() {
                wrong(format!("left mapped: {mapped:#?}"));
            }
        }
    }
    // SAFETY: `_exit` may be called in any state; exit handlers would act on state of the parent.
    unsafe { libc::_exit(0) }
}

fn open_files() -> String {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.map(|link| format!("{} ", link.display())).collect()
}
