//! Internals that the micro-benchmarks in `strait-bench` use. The module exists only with the feature `benchmarks`,
//! which nothing else turns on.
//!
//! This module is not part of the interface, and changes without notice.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::channel::table_is_read;
use crate::ring::{Consumer, Header, NextRecord, Producer, RecordKind, take_sleeper};
use crate::shm::{LaneMemory, Layout, Mapping, RingMemory};

/// Both sides of a ring without waiting, accounts or locks around them.
#[derive(Debug)]
pub struct Ring {
    producer: Producer<RingMemory>,
    consumer: Consumer<RingMemory>,
}

impl Ring {
    /// Makes a ring of `cells` cells of 64 bytes in private memory.
    pub fn new(cells: usize) -> Self {
        let mapping = Mapping::private(Layout::FIRST.lane_size(cells)).expect("a few pages");
        let memory = || LaneMemory::new(&mapping, 0, cells, Layout::FIRST).expect("a lane").ring(0);
        Self { producer: Producer::new(memory()), consumer: Consumer::new(memory(), 64) }
    }

    /// Publishes a record. Returns `false` if there is no room.
    #[inline]
    pub fn publish(&mut self, bytes: &[u8]) -> bool {
        if self.producer.push(bytes) {
            return true;
        }
        // The record would pass the end of the ring, or the known credit is used up.
        let header = Header::new(RecordKind::Message, bytes.len(), 0);
        let staged = self.producer.refresh_credit().and_then(|()| self.producer.stage(header));
        staged.is_ok_and(|slot| {
            self.producer.write(slot, 0, bytes);
            self.producer.commit().is_ok()
        })
    }

    /// Copies the next record into `buffer` and takes it out of the ring. Returns its number of bytes; `None` if there
    /// is no record.
    #[inline]
    pub fn take(&mut self, buffer: &mut [MaybeUninit<u8>]) -> Option<usize> {
        let Ok(NextRecord::Record(record)) = self.consumer.next_record() else { return None };
        let len = record.header.len();
        self.consumer.read(record, 0, &mut buffer[..len]);
        if self.consumer.advance(record) {
            self.consumer.give_credit();
        }
        Some(len)
    }
}

/// The sleep word of one side of a ring: the word in which that side says that it sleeps.
#[derive(Debug, Default)]
pub struct Sleeper(AtomicU32);

impl Sleeper {
    /// Marks the side as asleep.
    pub fn sleep(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// Returns whether the side slept and this caller has to wake it. A sender asks so after every message.
    #[inline]
    pub fn take(&self) -> bool {
        take_sleeper(&self.0) != 0
    }
}

/// Reads a handle table for `handles` handles. Returns whether the table is valid.
#[inline]
pub fn table_is_sound(table: &[u8], handles: usize) -> bool {
    table_is_read(table, handles).is_ok()
}
