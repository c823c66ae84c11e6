//! Shared memory with one message in each direction, for the rows that are floors and no products.

use std::fs::OpenOptions;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::{Meeting, Result};

/// The bytes before each message: the counter, alone in two cache lines, and the message's length.
const HEAD: usize = 256;

/// One process's view of the memory.
#[derive(Debug)]
pub struct Shared {
    map: MmapRaw,
    size: usize,
    sent: u32,
    received: u32,
    /// The half for the messages of this side: 0 or 1.
    side: usize,
}

impl Shared {
    /// Makes the memory of a meeting; the server does.
    pub fn make(meeting: &Meeting) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(Self::file(meeting))?;
        file.set_len(2 * (HEAD + meeting.size.next_multiple_of(4096)) as u64)?;
        Self::over(&file, meeting, 1)
    }

    /// Opens the memory of a meeting; the client does.
    pub fn open(meeting: &Meeting) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(Self::file(meeting))?;
        Self::over(&file, meeting, 0)
    }

    fn file(meeting: &Meeting) -> String {
        format!("/dev/shm/{}", meeting.name())
    }

    /// Removes the name of the memory; both processes still have the memory.
    pub fn unlink(meeting: &Meeting) -> Result<()> {
        Ok(std::fs::remove_file(Self::file(meeting))?)
    }

    fn over(file: &std::fs::File, meeting: &Meeting, side: usize) -> Result<Self> {
        let map = MmapOptions::new().map_raw(file)?;
        Ok(Self { map, size: meeting.size, sent: 0, received: 0, side })
    }

    fn half(&self, side: usize) -> *mut u8 {
        // SAFETY: the mapping has two halves of this length.
        unsafe { self.map.as_mut_ptr().add(side * (HEAD + self.size.next_multiple_of(4096))) }
    }

    /// Returns the counter of messages from one side.
    fn counter(&self, side: usize) -> &AtomicU32 {
        // SAFETY: the begin of each half is aligned and in the mapping, which lives as long as this value. Both
        // processes use the word only as an atomic.
        unsafe { AtomicU32::from_ptr(self.half(side).cast()) }
    }

    /// Copies a message into the memory, and counts it. Returns the counter for a wake-up.
    ///
    /// The other side must have answered the previous message.
    pub fn send(&mut self, message: &[u8]) -> Result<&AtomicU32> {
        if message.len() > self.size {
            return Err("the message is longer than the memory".into());
        }
        let half = self.half(self.side);
        // SAFETY: the length was compared with the room of this half, and the other side does not read the half
        // before the counter changes.
        unsafe {
            half.add(128).cast::<u64>().write(message.len() as u64);
            half.add(HEAD).copy_from_nonoverlapping(message.as_ptr(), message.len());
        }
        self.sent = self.sent.wrapping_add(1);
        self.counter(self.side).store(self.sent, Ordering::Release);
        Ok(self.counter(self.side))
    }

    /// Copies the next message out. While there is no message, waits by `sleep`, with the counter and its value.
    pub fn receive(&mut self, message: &mut Vec<u8>, sleep: impl Fn(&AtomicU32, u32)) -> Result<()> {
        let other = 1 - self.side;
        while self.counter(other).load(Ordering::Acquire) == self.received {
            sleep(self.counter(other), self.received);
        }
        self.received = self.received.wrapping_add(1);
        let half = self.half(other);
        // SAFETY: the other side wrote the length before it changed the counter.
        let len = usize::try_from(unsafe { half.add(128).cast::<u64>().read() })?;
        if len > self.size {
            return Err("a length in shared memory is too large".into());
        }
        message.clear();
        message.reserve(len);
        // SAFETY: the length was compared with the room of the half, the vector has room for it, and the other side
        // writes the half again only after an answer.
        unsafe {
            message.as_mut_ptr().copy_from_nonoverlapping(half.add(HEAD), len);
            message.set_len(len);
        }
        Ok(())
    }
}
