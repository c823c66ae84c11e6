//! What the processes of a scenario and whoever watches them write down, in memory that outlives each of them.
//!
//! A **stream** is a row of messages from the holder of one end to the holder of the other, whoever that is at the time.
//! The sender writes down that it tries to send one, and then that it was accepted; the receiver what it received. So
//! when any of them dies it is known what must arrive.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Most processes in a scenario.
pub(crate) const PROCESSES: usize = 4;
/// Streams of a scenario.
pub(crate) const STREAMS: usize = 16;
/// Bytes that a process can write of itself.
const TEXT: usize = 64 << 10;

/// How far a stream is.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Messages that somebody tried to send.
    pub(crate) attempted: AtomicU32,
    /// Messages of which sending said that they were accepted.
    pub(crate) accepted: AtomicU32,
    /// Messages received.
    pub(crate) received: AtomicU32,
}

/// What is known of a process.
#[derive(Debug)]
pub(crate) struct Life {
    /// Whether it has ended; the watcher says so.
    pub(crate) gone: AtomicU32,
    /// The line that it is at.
    pub(crate) line: AtomicU32,
    /// How it ended, as in [`crate::actor::Ending`]; 0 if it did not say.
    pub(crate) ending: AtomicU32,
    /// Whether it came to its fault.
    pub(crate) is_past: AtomicU32,
    /// What it has to show, by scenario.
    pub(crate) mark: AtomicU32,
    /// Bytes that it had allocated at its end more than at its begin.
    pub(crate) bytes: AtomicU64,
    length: AtomicU32,
    text: [AtomicU8; TEXT],
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) streams: [Stream; STREAMS],
    pub(crate) gates: [AtomicU32; 8],
    pub(crate) lives: [Life; PROCESSES],
}

impl Ledger {
    /// A ledger that the processes started from now on share with this one.
    pub(crate) fn new() -> &'static Self {
        let (len, access) = (size_of::<Self>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a null hint makes the kernel choose fresh address space.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::SHARED) };
        // SAFETY: fresh zeroed memory of the right size, aligned to a page, never unmapped; all zeroes are a ledger, and
        // every process that has it uses it as atomics only.
        unsafe { &*memory.expect("memory for a ledger").cast::<Self>() }
    }

    /// Forgets everything.
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
    /// Writes down what there is to say. What is too long is cut off.
    pub(crate) fn say(&self, text: &str) {
        let begin = self.length.load(Ordering::SeqCst) as usize;
        let free = &self.text[begin..];
        for (place, byte) in free.iter().zip(text.bytes()) {
            place.store(byte, Ordering::Relaxed);
        }
        self.length.store((begin + text.len().min(free.len())) as u32, Ordering::SeqCst);
    }

    /// What was said.
    pub(crate) fn said(&self) -> String {
        let length = self.length.load(Ordering::SeqCst) as usize;
        let bytes: Vec<u8> = self.text[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
