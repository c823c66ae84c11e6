//! Two processes: the parent receives messages of its child, and learns of the child's end, even after a kill.

use std::env;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use rustix::thread::futex::{self, Flags, Timespec};
use strait_ring::{Error, Peer, Receiver, RingMemory, Sender, Sleep};

/// Size of the memory in bytes, known to both processes.
const LEN: usize = 64 << 10;

/// Sleeps on the words of the ring by futexes, and looks whether the other process lives.
pub(crate) struct Futex {
    peer: OwnedFd,
}

impl Futex {
    fn with(peer: Pid) -> Self {
        Self { peer: pidfd_open(peer, PidfdFlags::empty()).expect("a process that runs") }
    }

    fn peer(&self) -> Peer {
        let mut look = [PollFd::new(&self.peer, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The descriptor of a process becomes readable when the process ends.
        if poll(&mut look, Some(&now)) == Ok(1) { Peer::Gone } else { Peer::Alive }
    }
}

impl Sleep for Futex {
    fn wait(&self, word: &AtomicU32, asleep: u32, deadline: Option<Instant>) -> Peer {
        // A killed process wakes nobody, so each sleep is short, and the sleeping process looks at the ring after each
        // sleep.
        let look = Duration::from_millis(50);
        let left = deadline.map_or(look, |deadline| deadline.saturating_duration_since(Instant::now()).min(look));
        let left = Timespec::try_from(left).expect("a short time");
        match futex::wait(word, Flags::empty(), asleep, Some(&left)) {
            Err(Errno::TIMEDOUT) => self.peer(),
            _ => Peer::Alive,
        }
    }

    fn wake(&self, word: &AtomicU32) {
        let _ = futex::wake(word, Flags::empty(), 1);
    }
}

/// Maps `memory` and returns it as the memory of one side of a ring.
fn map(memory: impl AsFd) -> RingMemory {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a mapping at an address of the kernel's choice changes no other memory. It stays until the process ends.
    let base = unsafe { mmap(std::ptr::null_mut(), LEN, access, flags, memory, 0) }.expect("memory");
    // SAFETY: the memory is mapped, its size is sealed, and this process makes no other `RingMemory` of this mapping.
    unsafe { RingMemory::from_raw(base.cast(), LEN) }.expect("memory of the right size")
}

/// Starts `command`, a program that calls [`sender`]. Returns the child, and the receiver of its messages.
pub(crate) fn start(command: &mut Command) -> (Child, Receiver<Futex>) {
    let memory = memfd_create("ring", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&memory, LEN as u64).expect("memory");
    // Nobody can shorten the memory and so make an access fail.
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("seals");
    let ours = map(&memory);
    let child = command.stdin(Stdio::from(memory)).spawn().expect("a process");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id")).expect("not 0");
    (child, Receiver::new(ours, Futex::with(pid)))
}

/// Returns the sender of the ring on standard input, a gift of the parent.
pub(crate) fn sender() -> Sender<Futex> {
    let memory = map(std::io::stdin());
    Sender::new(memory, Futex::with(getppid().expect("a parent")))
}

fn main() {
    if env::args().nth(1).is_some() {
        let mut sender = sender();
        for number in 1..=5 {
            sender.send(format!("message {number} of process {}", std::process::id()).as_bytes()).expect("a receiver");
        }
        return;
    }
    let program = env::current_exe().expect("a program");
    let (mut child, mut receiver) = start(Command::new(program).arg("sends"));
    let mut message = Vec::new();
    let ended = loop {
        match receiver.recv(&mut message) {
            Ok(()) => println!("{}", String::from_utf8_lossy(&message)),
            Err(error) => break error,
        }
    };
    assert_eq!(ended, Error::Closed);
    println!("{ended}: {}", child.wait().expect("a child"));
}
