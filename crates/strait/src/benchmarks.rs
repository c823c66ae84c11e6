//! Internals that the micro-benchmarks in `strait-bench` use. The module exists only with `--cfg strait_benchmarks`,
//! which only the build script of the crate `strait-twice` sets.
//!
//! This module is not part of the interface, and changes without notice.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::channel::table_is_read;
use crate::ring::{Consumer, Header, NextRecord, Producer, RecordKind, take_sleeper};
use crate::shm::{LaneMemory, Mapping, RingMemory, lane_size};

/// A producer and a consumer of one ring in private memory, without the waiting, accounts or locks of a channel.
#[derive(Debug)]
pub struct Ring {
    producer: Producer<RingMemory>,
    consumer: Consumer<RingMemory>,
}

impl Ring {
    /// Makes a ring of `cells` cells of 64 bytes in private memory.
    pub fn new(cells: usize) -> Self {
        let mapping = Mapping::private(lane_size(cells)).expect("a few pages");
        let memory = || LaneMemory::new(&mapping, 0, cells).expect("a lane").ring(0);
        Self { producer: Producer::new(memory()), consumer: Consumer::new(memory(), 64) }
    }

    /// Publishes a message with the bytes `bytes` in the ring. Returns `false`, and publishes nothing, if the ring has
    /// no room for the message.
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

    /// Copies the next message of the ring into `buffer` and takes it out of the ring. Returns the length of the
    /// message in bytes; `None` if the ring is empty. Panics if `buffer` is shorter than the message.
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

/// The sleep word of one side of a ring: the word in which that side publishes whether it sleeps.
#[derive(Debug, Default)]
pub struct Sleeper(AtomicU32);

impl Sleeper {
    /// Records in the sleep word that this side of the ring sleeps. Does not block.
    pub fn sleep(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// Clears the sleep word, and returns whether it said that the side sleeps. If `true`, the caller has the duty to
    /// wake that side. A sender does this after each message.
    #[inline]
    pub fn take(&self) -> bool {
        take_sleeper(&self.0) != 0
    }
}

/// Decodes `table` as the handle table of a message with `handles` handles. Returns whether the table is valid.
#[inline]
pub fn table_is_sound(table: &[u8], handles: usize) -> bool {
    table_is_read(table, handles).is_ok()
}
