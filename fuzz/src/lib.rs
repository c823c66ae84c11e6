//! What the fuzzers do with their inputs.
//!
//! [`socket`] and [`memory`] run real channels, in one thread, in steps that the input chooses. Every link goes through
//! somebody in the middle who sees each packet and has all shared memory. As long as the input leaves both alone it is an
//! honest conversation, and everything has to arrive. Then packets are changed, lost, repeated, or sent by nobody, with other
//! descriptors than they say; or words of shared memory are written to, between two calls or before a chosen access in the
//! middle of one.
//!
//! Whatever is done, no call panics or hangs, an end that is over stays so for the same reason, no descriptor and no mapping is
//! left behind, and two other channels in the same process go on.
//!
//! [`hostile`] has an attacker of the crate `strait-hostile` and a victim take turns: every second byte of an input makes the choices of the one,
//! the others those of the other.
//!
//! [`packet`], [`table`] and [`ring`] are the same for single parts, a thousand times faster.
//!
//! Nothing depends on time, on random numbers or on addresses, so an input does the same each time.

mod calls;
mod memory;
mod pipes;
pub mod program;
mod proxy;
mod regions;
mod world;

use std::cell::RefCell;
use std::time::Duration;

use strait::{Channel, Error, Interest, Mode, Options, Outgoing, WaitSet};

use world::{Attack, World};

pub use strait::fuzzing::{packet, ring, table};

/// In every so many inputs the mappings are counted, which takes longer than an input.
const COUNT_MAPPINGS_EVERY: u32 = 64;

/// A peer that tampers with what goes over the socket.
pub fn socket(input: &[u8]) {
    run(Attack::Socket, input);
}

/// A peer that writes to shared memory.
pub fn memory(input: &[u8]) {
    run(Attack::Memory, input);
}

/// A peer that speaks the raw wire, and a victim that uses every call.
pub fn hostile(input: &[u8]) {
    strait::fuzzing::number_tokens(1);
    strait_hostile::world::within::Within { told: is_told(), ..Default::default() }.of_input(input);
}

/// Whether each step is printed, and the mappings are counted each time: with `STRAIT_FUZZ_TRACE` in the environment.
fn is_told() -> bool {
    std::env::var_os("STRAIT_FUZZ_TRACE").is_some()
}

fn run(attack: Attack, input: &[u8]) {
    BYSTANDER.with_borrow_mut(|bystander| {
        let bystander = bystander.get_or_insert_with(Bystander::new);
        let (head, program) = program::decode(input);
        let mut world = World::new(attack, head);
        for instruction in program {
            world.act(instruction);
        }
        world.end();
        bystander.check();
    });
}

thread_local! {
    static BYSTANDER: RefCell<Option<Bystander>> = const { RefCell::new(None) };
}

/// Channels of the same process that nobody attacks, and what the process had before an input.
struct Bystander {
    within: (Channel, Channel),
    between: (Channel, Channel),
    set: WaitSet,
    descriptors: usize,
    mappings: usize,
    inputs: u32,
    count_mappings_every: u32,
}

impl Bystander {
    fn new() -> Self {
        let (one, other) = proxy::pair();
        let over = |socket| Channel::over(socket, &Options::new()).expect("a channel");
        let mut bystander = Self {
            within: Channel::pair().expect("a pair"),
            between: (over(one), over(other)),
            set: WaitSet::new().expect("a set"),
            descriptors: 0,
            mappings: 0,
            inputs: 0,
            count_mappings_every: if cfg!(fuzzing) && !is_told() { COUNT_MAPPINGS_EVERY } else { 1 },
        };
        bystander.set.add(&bystander.between.1, 7, Interest::Readable, Mode::Level).expect("a member");
        // What is made once.
        for _ in 0..4 {
            bystander.talk();
        }
        bystander.descriptors = descriptors();
        bystander.mappings = mappings();
        bystander
    }

    fn talk(&self) {
        for (one, other) in [&self.within, &self.between] {
            for (from, to) in [(one, other), (other, one)] {
                from.try_send(Outgoing::new(b"all is well").handle(a_file())).expect("room");
                let mut message = to.try_recv().expect("a message");
                assert_eq!(message.bytes(), b"all is well");
                assert_eq!(message.take_handles().expect("a handle").len(), 1);
                assert_eq!(to.try_recv().expect_err("one message"), Error::WouldBlock);
            }
        }
        let mut events = Vec::new();
        self.between.0.try_send(b"are you awake?").expect("room");
        assert_eq!(self.set.wait(&mut events, Duration::from_secs(5)), Ok(1));
        assert_eq!(events[0].key(), 7);
        assert_eq!(self.between.1.try_recv().expect("a message").bytes(), b"are you awake?");
        assert_eq!(self.set.wait(&mut events, strait::Deadline::NOW), Ok(0));
    }

    /// How many descriptors are open, once threads of the library have closed what may take long to close.
    fn descriptors_left(&self) -> usize {
        let begin = std::time::Instant::now();
        loop {
            let open = descriptors();
            if open == self.descriptors || begin.elapsed() > Duration::from_secs(10) {
                return open;
            }
            std::thread::yield_now();
        }
    }

    fn check(&mut self) {
        self.talk();
        let open = self.descriptors_left();
        let links = strait::fuzzing::links;
        assert!(
            open == self.descriptors,
            "{open} descriptors instead of {}: {:?}, links {:#?}",
            self.descriptors,
            what_is_open(),
            links()
        );
        self.inputs += 1;
        if self.inputs.is_multiple_of(self.count_mappings_every) {
            assert_eq!(mappings(), self.mappings, "shared memory was left mapped");
        }
    }
}

fn a_file() -> std::os::fd::OwnedFd {
    std::fs::File::open("/dev/null").expect("/dev/null").into()
}

/// How many descriptors this process has.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd").count()
}

fn what_is_open() -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd");
    entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).collect()
}

/// How many mappings of files that are in no directory.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc/self/maps");
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}
