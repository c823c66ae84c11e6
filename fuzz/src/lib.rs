//! The targets of the fuzzers.
//!
//! [`socket`] and [`memory`] use real channels, in one thread, in steps that the input chooses. Every link passes
//! through a proxy, which sees each packet and has all shared memory. As long as the input uses neither, the
//! conversation is honest, and every message has to arrive. The proxy can change packets, lose them, repeat them, make
//! up packets, and replace their descriptors. It can also write to words of shared memory, between two calls or before
//! a chosen access in the middle of a call.
//!
//! Whatever the proxy does, no call panics or hangs, and an end that failed for good goes on failing for the same
//! reason. No descriptor and no mapping is leaked, and two other channels in the same process still work.
//!
//! [`hostile`] lets an attacker of the crate `strait-hostile` and a victim take turns: the bytes of an input make the
//! choices of the attacker and of the victim by turns.
//!
//! [`packet`], [`table`] and [`ring`] fuzz single parts of the library, a thousand times faster.
//!
//! [`fidl`] decodes messages of `strait-fidl`. What is accepted is the encoding of its value.
//!
//! [`typed`] receives messages of `strait-typed` with handles, in each codec. A value that is accepted has all handles
//! of its message, an error closes them, and the channel goes on.
//!
//! Nothing depends on time, on random numbers or on addresses, so an input has the same effect each time.

#[cfg(not(strait_fuzzing))]
compile_error!("run cargo in the directory `fuzz`, or add `--cfg strait_fuzzing` to RUSTFLAGS, if that is set");

mod calls;
mod fidl;
mod memory;
mod pipes;
pub mod program;
mod proxy;
mod regions;
mod typed;
mod world;

use std::cell::RefCell;
use std::time::Duration;

use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Error, Outgoing};

pub use fidl::fidl;
pub use typed::typed;
use world::{Attack, World};

pub use strait::fuzzing::{packet, ring, table};

/// The number of inputs between two counts of the mappings. A count takes longer than an input.
const COUNT_MAPPINGS_EVERY: u32 = 64;

/// Runs an input with a peer that tampers with the packets on the socket.
pub fn socket(input: &[u8]) {
    run(Attack::Socket, input);
}

/// Runs an input with a peer that writes to shared memory.
pub fn memory(input: &[u8]) {
    run(Attack::Memory, input);
}

/// Runs an input with an attacker that writes raw packets, and a victim that uses every call.
pub fn hostile(input: &[u8]) {
    strait::fuzzing::number_tokens(1);
    strait_hostile::world::within::Within { told: is_told(), ..Default::default() }.of_input(input);
}

/// Returns whether each step is printed, and the mappings are counted after each input: if `STRAIT_FUZZ_TRACE` is in
/// the environment.
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

/// Channels of this process that the input does not attack, and the number of descriptors and mappings that the process
/// had before the input.
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
        let over = |socket| Channel::over(socket).expect("a channel");
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
        // Makes everything that is made only once.
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

    /// Returns the number of open descriptors, once threads of the library have closed those whose closing may block.
    /// Waits at most 10 seconds.
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

/// Returns the number of open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd").count()
}

fn what_is_open() -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd");
    entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).collect()
}

/// Returns the number of mappings of shared memory (memfds) in this process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc/self/maps");
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}
