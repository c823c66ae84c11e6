//! Processes send channel ends to each other at random, under load, while some processes are killed and others started.
//! At the end the books of all ends must balance.
//!
//! `STRAIT_STORM_SEED` selects the random choices and `STRAIT_STORM_SECONDS` the length; a run also depends on how the
//! machine schedules the processes.

mod common;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::travel::{Book, Ledger, MIXED, Random, Sizes, TINY, Traveller, balance, travellers};
use common::{Actor, descriptors, finish, mappings, parent, play, spawn_with, wait_until};
use strait::{Channel, Error, Handle, Options, Outgoing, Wait};

/// The time after which a call counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of simultaneous processes.
const ACTORS: usize = 6;

#[test]
fn child() {
    play(&[("actor", actor)]);
}

/// The counts of the messages that each end of each channel has sent. The memory is shared by all processes and
/// outlives each of them.
struct SharedLedger(*mut rustix::ffi::c_void);

impl SharedLedger {
    const IDS: usize = 1 << 17;
    const BYTES: usize = Self::IDS * 64 + 8;

    fn make() -> OwnedFd {
        let fd = rustix::fs::memfd_create("ledger", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, Self::BYTES as u64).unwrap();
        fd
    }

    fn map(fd: &OwnedFd) -> Self {
        use rustix::mm::{MapFlags, ProtFlags};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the mapping is new, and stays as long as the process.
        Self(unsafe { rustix::mm::mmap(std::ptr::null_mut(), Self::BYTES, access, MapFlags::SHARED, fd, 0) }.unwrap())
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < Self::BYTES / 8);
        // SAFETY: the word is inside the mapping, aligned, and only used as an atomic.
        unsafe { &*self.0.cast::<AtomicU64>().add(at) }
    }

    fn new_id(&self) -> u64 {
        self.word(Self::IDS * 8).fetch_add(1, Ordering::Relaxed)
    }

    fn words(&self, id: u64, side: u64) -> [&AtomicU64; 2] {
        let at = (id * 8 + side * 4) as usize;
        [self.word(at), self.word(at + 1)]
    }

    /// Records the last event of an end, and the process of the event.
    fn note(&self, book: &Book, fate: Fate) {
        let at = (book.id * 8 + book.side * 4) as usize;
        self.word(at + 2).store(fate as u64, Ordering::SeqCst);
        self.word(at + 3).store(std::process::id().into(), Ordering::SeqCst);
    }

    /// Describes the last recorded event of the other end.
    fn fate_of_other(&self, book: &Book) -> String {
        let at = (book.id * 8 + (1 - book.side) * 4) as usize;
        let fate = match self.word(at + 2).load(Ordering::SeqCst) {
            0 => "never received",
            1 => "held",
            2 => "sent",
            3 => "closed",
            _ => "found its peer closed",
        };
        format!("the other end was last {fate} by process {}", self.word(at + 3).load(Ordering::SeqCst))
    }

    /// Asserts that an end whose other end is closed has received every message of the other end.
    fn check_closed(&self, book: &Book) {
        let [sent, trying] = self.words(book.id, 1 - book.side).map(|word| word.load(Ordering::SeqCst));
        assert!(
            (sent..=trying.max(sent)).contains(&book.received),
            "of {sent} messages that were sent, or {trying} perhaps, {} came: {book:?}",
            book.received
        );
    }
}

/// The last event of an end.
#[derive(Clone, Copy)]
enum Fate {
    Held = 1,
    Sent,
    Closed,
    PeerClosed,
}

impl Ledger for SharedLedger {
    fn trying(&self, book: &Book, upto: u64) {
        self.words(book.id, book.side)[1].store(upto, Ordering::SeqCst);
    }

    fn sent(&self, book: &Book) {
        self.words(book.id, book.side)[0].store(book.sent, Ordering::SeqCst);
    }
}

fn options(random: &mut Random) -> Options {
    let options = Options::new().queue_bytes(4 << 20).pool(2 << 20);
    let options = options.wait([Wait::Spin, Wait::Adaptive, Wait::Block][random.below(3) as usize]);
    let options = if random.one_in(2) { options.ring(256 << random.below(6)) } else { options };
    let options = if random.one_in(3) { options.ring_max(512 << random.below(8)) } else { options };
    if random.one_in(5) { options.queue_messages(1 + random.below(30)) } else { options }
}

/// The state of a process of the storm.
struct Storm {
    random: Random,
    ledger: SharedLedger,
    /// The ends of the process. Ends of class 0 stay in their process; other ends travel.
    held: Vec<Traveller>,
    moved: u64,
}

fn die_of_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::exit(101);
    }));
}

impl Storm {
    fn pick(&mut self, mut of: impl FnMut(&Book) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.held.len()).filter(|at| of(&self.held[*at].book)).collect();
        (!found.is_empty()).then(|| found[self.random.below(found.len() as u64) as usize])
    }

    fn patience(&mut self) -> Duration {
        match self.random.below(40) {
            0 => Duration::from_millis(40),
            1..5 => Duration::from_millis(self.random.below(3)),
            _ => Duration::from_micros(self.random.below(30)),
        }
    }

    /// Receives from an end. Returns `false` if there was no message, and also if the channel was closed; a closed end
    /// is removed from `held`.
    fn receive(&mut self, at: usize, patience: Duration) -> bool {
        match self.held[at].receive(&mut self.random, patience) {
            Ok(riders) => {
                riders.iter().for_each(|rider| self.ledger.note(&rider.book, Fate::Held));
                self.held.extend(riders);
                true
            }
            Err(Error::WouldBlock | Error::TimedOut) => false,
            Err(Error::PeerClosed) => {
                let end = self.held.swap_remove(at);
                self.ledger.note(&end.book, Fate::PeerClosed);
                self.ledger.check_closed(&end.book);
                false
            }
            Err(error) => panic!("receiving: {error} {:?}", self.held[at].book),
        }
    }

    fn send(&mut self, at: usize, riders: Vec<Traveller>) {
        let patience = self.patience();
        let sizes = if self.random.one_in(3) { MIXED } else { Sizes { large: 100_000, ..TINY } };
        let count = riders.len() as u64;
        riders.iter().for_each(|rider| self.ledger.note(&rider.book, Fate::Sent));
        let end = &mut self.held[at];
        match end.send(riders, &mut self.random, sizes, patience, &self.ledger) {
            Ok(()) => self.moved += count,
            Err((Error::WouldBlock | Error::TimedOut | Error::PeerClosed, back)) => {
                back.iter().for_each(|rider| self.ledger.note(&rider.book, Fate::Held));
                self.held.extend(back);
            }
            Err((error, _)) => panic!("sending: {error} {:?}", self.held[at].book),
        }
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0 if self.held.len() < 40 => {
                let id = self.ledger.new_id();
                let class = 1 + self.random.below(3);
                let options = options(&mut self.random);
                let ends = travellers(id, class, options.pair().unwrap());
                self.held.extend(ends);
            }
            0 | 1 if self.random.one_in(8) || self.held.len() > 60 => {
                if let Some(at) = self.pick(|book| book.class > 0) {
                    let end = self.held.swap_remove(at);
                    self.ledger.note(&end.book, Fate::Closed);
                }
            }
            2..5 => {
                if let Some(at) = self.pick(|_| true) {
                    self.send(at, Vec::new());
                }
            }
            5..9 => {
                let roads_only = self.random.one_in(2);
                let Some(carrier) = self.pick(|book| if roads_only { book.class == 0 } else { book.class < 3 }) else {
                    return;
                };
                let carrier = self.held.swap_remove(carrier);
                let mut riders = Vec::new();
                for _ in 0..1 + self.random.below(12).saturating_sub(8) {
                    let next = self.pick(|book| book.class > carrier.book.class);
                    riders.extend(next.map(|at| self.held.swap_remove(at)));
                }
                self.held.push(carrier);
                self.send(self.held.len() - 1, riders);
            }
            _ => {
                let roads_only = self.random.one_in(3);
                if let Some(at) = self.pick(|book| !roads_only || book.class == 0) {
                    let patience = self.patience();
                    self.receive(at, patience);
                }
            }
        }
    }

    /// Receives everything from all ends, while no process sends.
    fn drain(&mut self) {
        let mut at = 0;
        while at < self.held.len() {
            let before = self.held[at].book;
            // When an end is closed and removed, another end takes its index.
            while self.held.get(at).is_some_and(|end| (end.book.id, end.book.side) == (before.id, before.side))
                && self.receive(at, Duration::ZERO)
            {}
            if self.held.get(at).is_some_and(|end| (end.book.id, end.book.side) == (before.id, before.side)) {
                at += 1;
            }
        }
    }
}

fn actor(argument: &str) {
    die_of_panics();
    let control = parent();
    let mut first = control.recv_by(PATIENCE).unwrap();
    let fd = first.take_handles().unwrap().remove(0).into_fd().unwrap();
    let ledger = SharedLedger::map(&fd);
    drop(fd);
    let baseline = (descriptors(), mappings());
    let mut storm = Storm { random: Random(argument.parse().unwrap()), ledger, held: Vec::new(), moved: 0 };
    let mut stopped = false;
    loop {
        // After the stop, the main process asks the other processes first, so this receive has no deadline.
        let order = if stopped { control.recv() } else { control.try_recv() };
        let mut order = match order {
            Err(Error::WouldBlock) => {
                storm.step();
                continue;
            }
            Err(Error::PeerClosed) => break,
            order => order.unwrap(),
        };
        let mut handles = order.take_handles().unwrap();
        match &order.bytes()[..4] {
            b"road" => {
                let channel = handles.remove(0).into_channel().unwrap();
                storm.held.push(Traveller { book: Book::decode(&order.bytes()[4..]), channel });
            }
            b"stop" => {
                stopped = true;
                control.send(&storm.moved.to_le_bytes()).unwrap();
            }
            b"list" => {
                storm.drain();
                let books: Vec<u8> = storm.held.iter().flat_map(|end| end.book.encode()).collect();
                control.send_by(&books, PATIENCE).unwrap();
            }
            b"lone" => {
                let lone: Vec<Book> = order.bytes()[4..].chunks_exact(Book::SIZE).map(Book::decode).collect();
                for book in lone {
                    let at = storm.pick(|held| *held == book).expect("a listed end is missing");
                    let mut end = storm.held.swap_remove(at);
                    let got = end.receive(&mut storm.random, PATIENCE).map(|_| ());
                    if got != Err(Error::PeerClosed) {
                        let _ = end.channel.is_peer_closed();
                        panic!("{got:?}, and not closed: {book:?}, {}", storm.ledger.fate_of_other(&book));
                    }
                    storm.ledger.check_closed(&end.book);
                    assert!(end.channel.is_peer_closed());
                    let sent = end.channel.try_send(b"").map_err(|failed| failed.error);
                    assert_eq!(sent, Err(Error::PeerClosed), "{book:?}");
                }
                control.send(b"ok").unwrap();
            }
            b"home" => {
                for end in storm.held.drain(..) {
                    let bytes = end.book.encode();
                    control.send_by(Outgoing::new(&bytes).handle(end.channel), PATIENCE).unwrap();
                }
                let now = (descriptors(), mappings());
                let words = [baseline.0, now.0, baseline.1, now.1].map(|word| (word as u64).to_le_bytes());
                control.send_by(&words.concat(), PATIENCE).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

fn start(actors: &mut [(Actor, Channel)], ledger: (&OwnedFd, &SharedLedger), random: &mut Random) -> (Actor, Channel) {
    let (actor, control) = spawn_with("actor", &random.next().to_string(), &options(random));
    let fd = ledger.0.try_clone().unwrap();
    control.send_by(Outgoing::new(b"ledger").handle(fd), PATIENCE).unwrap();
    for (_, other) in actors {
        let id = ledger.1.new_id();
        for (end, to) in travellers(id, 0, options(random).pair().unwrap()).into_iter().zip([&control, other]) {
            let bytes = [b"road".as_slice(), &end.book.encode()].concat();
            to.send_by(Outgoing::new(&bytes).handle(end.channel), PATIENCE).unwrap();
        }
    }
    (actor, control)
}

fn answer(control: &Channel) -> strait::Message {
    control.recv_by(PATIENCE).expect("an actor that answers")
}

#[test]
fn after_a_storm_the_books_balance() {
    if std::env::var_os("STRAIT_TEST_ROLE").is_some() {
        return;
    }
    let from_environment = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect("a number"));
    let seed = from_environment("STRAIT_STORM_SEED").unwrap_or_else(|| {
        u64::from(std::process::id()) << 32 | u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos())
    });
    let seconds = from_environment("STRAIT_STORM_SECONDS").unwrap_or(8);
    eprintln!("STRAIT_STORM_SEED={seed} STRAIT_STORM_SECONDS={seconds}");
    let mut random = Random(seed);
    drop(Channel::pair().unwrap());
    let fd = SharedLedger::make();
    let ledger = SharedLedger::map(&fd);
    let baseline = (descriptors(), mappings());

    // A storm without kills, and then a storm with kills.
    for deadly in [false, true] {
        let mut actors: Vec<(Actor, Channel)> = Vec::new();
        for _ in 0..ACTORS {
            let next = start(&mut actors, (&fd, &ledger), &mut random);
            actors.push(next);
        }
        let end = Instant::now() + Duration::from_millis(seconds * 1000 / if deadly { 2 } else { 4 });
        let mut killed = 0;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20 + random.below(300)));
            for (actor, _) in &mut actors {
                assert_eq!(actor.0.try_wait().unwrap(), None, "an actor ended by itself");
            }
            if deadly {
                let (mut victim, _) = actors.swap_remove(random.below(actors.len() as u64) as usize);
                victim.kill();
                killed += 1;
                let next = start(&mut actors, (&fd, &ledger), &mut random);
                actors.push(next);
            }
        }
        settle(actors, &ledger, &mut random, killed);
    }
    wait_until("descriptors and mappings are what they were", || (descriptors(), mappings()) == baseline);
}

/// Stops all processes, and checks that every message and every end is accounted for.
fn settle(mut actors: Vec<(Actor, Channel)>, ledger: &SharedLedger, random: &mut Random, killed: usize) {
    let mut moved = 0;
    for (_, control) in &actors {
        control.send_by(b"stop", PATIENCE).unwrap();
        moved += u64::from_le_bytes(answer(control).bytes().try_into().unwrap());
    }
    // The ends of each process, and the ends that lack their other end.
    let mut lists: Vec<Vec<Book>> = Vec::new();
    for (_, control) in &actors {
        control.send_by(b"list", PATIENCE).unwrap();
        lists.push(answer(control).bytes().chunks_exact(Book::SIZE).map(Book::decode).collect());
    }
    let mut sides: HashMap<u64, Vec<Book>> = HashMap::new();
    for book in lists.iter().flatten() {
        sides.entry(book.id).or_default().push(*book);
    }
    let mut lone = 0;
    for ((_, control), list) in actors.iter().zip(&lists) {
        let books: Vec<&Book> = list.iter().filter(|book| sides[&book.id].len() == 1).collect();
        lone += books.len();
        let mut bytes = b"lone".to_vec();
        books.iter().for_each(|book| bytes.extend(book.encode()));
        control.send_by(&bytes, PATIENCE).unwrap();
    }
    for (_, control) in &actors {
        assert_eq!(answer(control).bytes(), b"ok");
    }
    for books in sides.values().filter(|books| books.len() > 1) {
        let [one, other] = books[..] else { panic!("more than two ends: {books:?}") };
        assert_eq!(one.side, 1 - other.side, "{books:?}");
        assert_eq!((one.received, other.received), (other.sent, one.sent), "messages are lost: {books:?}");
    }
    // All other ends move to this process.
    let mut first: HashMap<u64, Traveller> = HashMap::new();
    let mut whole = 0;
    for (_, control) in &actors {
        control.send_by(b"home", PATIENCE).unwrap();
        loop {
            let mut message = answer(control);
            let Some(Handle::Channel(channel)) = message.take_handles().unwrap().pop() else {
                let word = |n: usize| u64::from_le_bytes(message.bytes()[8 * n..8 * n + 8].try_into().unwrap());
                eprintln!("descriptors {} -> {}, mappings {} -> {}", word(0), word(1), word(2), word(3));
                break;
            };
            let end = Traveller { book: Book::decode(message.bytes()), channel };
            match first.remove(&end.book.id) {
                Some(other) => {
                    balance(end, other, random, PATIENCE);
                    whole += 1;
                }
                None => drop(first.insert(end.book.id, end)),
            }
        }
    }
    assert!(first.is_empty(), "ends without their other ends: {first:?}");
    let ids = ledger.word(SharedLedger::IDS * 8).load(Ordering::Relaxed);
    eprintln!("{ids} channels so far, {moved} journeys, {killed} killed, {whole} whole and {lone} lone at the end");
    for (actor, control) in actors.drain(..) {
        drop(control);
        finish(actor);
    }
}
