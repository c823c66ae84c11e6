//! What the micro-benchmarks in `strait-bench` need of the inside; only there with the feature `benchmarks`, which
//! nothing else turns on.
//!
//! Not part of the interface: it changes without notice.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::channel::table_is_read;
use crate::ring::{Consumer, Front, Header, Kind, Producer, take_sleeper};
use crate::shm::{LaneMemory, Layout, Mapping, RingMemory};

/// Both sides of a ring, with nothing around it: no waiting, no accounts, no lock.
#[derive(Debug)]
pub struct Ring {
    producer: Producer<RingMemory>,
    consumer: Consumer<RingMemory>,
}

impl Ring {
    /// A ring of so many cells of 64 bytes.
    pub fn new(cells: usize) -> Self {
        let mapping = Mapping::private(Layout::FIRST.lane_size(cells)).expect("a few pages");
        let memory = || LaneMemory::new(&mapping, 0, cells, Layout::FIRST).expect("a lane").ring(0);
        Self { producer: Producer::new(memory()), consumer: Consumer::new(memory(), 64) }
    }

    /// Publishes a record; false if there is no room.
    #[inline]
    pub fn publish(&mut self, bytes: &[u8]) -> bool {
        if self.producer.push(bytes) {
            return true;
        }
        // At the end of the ring, or out of room as far as was known.
        let header = Header::new(Kind::Message, bytes.len(), 0);
        let staged = self.producer.refresh_credit().and_then(|()| self.producer.stage(header));
        staged.is_ok_and(|slot| {
            self.producer.write(slot, 0, bytes);
            self.producer.commit().is_ok()
        })
    }

    /// Takes a record out into `buffer`, and how many bytes it had; none if there is none.
    #[inline]
    pub fn take(&mut self, buffer: &mut [MaybeUninit<u8>]) -> Option<usize> {
        let Ok(Front::Record(record)) = self.consumer.front() else { return None };
        let len = record.header.len();
        self.consumer.read(record, 0, &mut buffer[..len]);
        if self.consumer.advance(record) {
            self.consumer.give_credit();
        }
        Some(len)
    }
}

/// The word on which the other side of a ring sleeps.
#[derive(Debug, Default)]
pub struct Sleeper(AtomicU32);

impl Sleeper {
    /// It goes to sleep.
    pub fn sleep(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// Whether it slept and is ours to wake: what a sender asks after every message.
    #[inline]
    pub fn take(&self) -> bool {
        take_sleeper(&self.0) != 0
    }
}

/// Reads the table of a message with so many handles, and says whether it is one.
#[inline]
pub fn table_is_sound(table: &[u8], handles: usize) -> bool {
    table_is_read(table, handles).is_ok()
}
