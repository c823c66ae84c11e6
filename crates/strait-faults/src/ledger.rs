//! The record of a scenario, in shared memory that outlives each process. The scenario's processes and the watching
//! process write the record.
//!
//! A **stream** is the sequence of messages from the holder of one end to the holder of the other, even if the ends
//! move. The sender records that it tries to send a message, and then that the message was accepted; the receiver
//! records each received message. So if any of the processes dies, the record shows which messages must arrive.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The largest number of processes in a scenario.
pub(crate) const PROCESSES: usize = 4;
/// The maximum number of streams of a scenario.
pub(crate) const STREAMS: usize = 16;
/// The maximum number of bytes of text in a [`Life`].
const TEXT: usize = 64 << 10;

/// The progress of a stream: of the messages sent by one end of a channel, even if the end moves.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The number of messages that a sender tried to send, counted before each call.
    pub(crate) attempted: AtomicU32,
    /// The number of messages for which the send call returned success.
    pub(crate) accepted: AtomicU32,
    /// The number of messages received.
    pub(crate) received: AtomicU32,
}

/// The record of one process of a scenario.
#[derive(Debug)]
pub(crate) struct Life {
    /// 1 once the process has ended; set by the watching process.
    pub(crate) gone: AtomicU32,
    /// The line of source code reached by the process.
    pub(crate) line: AtomicU32,
    /// The ending of the process, as a number of [`crate::program::actor::Ending`]; 0 if the process recorded no
    /// ending.
    pub(crate) ending: AtomicU32,
    /// 1 once the process reached the step of its fault.
    pub(crate) is_past: AtomicU32,
    /// Bits for the judge of the scenario, with a meaning of its own in each scenario.
    pub(crate) mark: AtomicU32,
    /// The increase of the process's allocated bytes between start and end.
    pub(crate) bytes: AtomicU64,
    length: AtomicU32,
    text: [AtomicU8; TEXT],
}

/// The record of a scenario: its streams, gates and processes.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) streams: [Stream; STREAMS],
    pub(crate) gates: [AtomicU32; 8],
    pub(crate) lives: [Life; PROCESSES],
}

impl Ledger {
    /// Creates a ledger in memory shared with all later children of this process.
    pub(crate) fn new() -> &'static Self {
        let (len, access) = (size_of::<Self>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a null hint makes the kernel choose fresh address space.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::SHARED) };
        // SAFETY: the memory is fresh, zeroed, of the right size, aligned to a page and never unmapped. All zeroes
        // are a valid ledger, and every process accesses the ledger by atomics only.
        unsafe { &*memory.expect("memory for a ledger").cast::<Self>() }
    }

    /// Resets the ledger for the next run.
    pub(crate) fn clear(&self) {
        for stream in &self.streams {
            for count in [&stream.attempted, &stream.accepted, &stream.received] {
                count.store(0, Ordering::SeqCst);
            }
        }
        for gate in &self.gates {
            gate.store(0, Ordering::SeqCst);
        }
        for life in &self.lives {
            for word in [&life.gone, &life.line, &life.ending, &life.is_past, &life.mark, &life.length] {
                word.store(0, Ordering::SeqCst);
            }
        }
    }
}

impl Life {
    /// Appends `text` to the text of the process. Text that does not fit is cut off.
    pub(crate) fn say(&self, text: &str) {
        let begin = self.length.load(Ordering::SeqCst) as usize;
        let free = &self.text[begin..];
        for (place, byte) in free.iter().zip(text.bytes()) {
            place.store(byte, Ordering::Relaxed);
        }
        self.length.store((begin + text.len().min(free.len())) as u32, Ordering::SeqCst);
    }

    /// Returns the text written by the process.
    pub(crate) fn said(&self) -> String {
        let length = self.length.load(Ordering::SeqCst) as usize;
        let bytes: Vec<u8> = self.text[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
