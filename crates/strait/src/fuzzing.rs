//! Internals that the fuzzers in `fuzz/` use. The module exists only with `--cfg strait_fuzzing`, which nothing else
//! turns on.
//!
//! This module is not part of the interface, and changes without notice.

use std::collections::VecDeque;

use crate::channel::table_is_read;
use crate::error::Error;
use crate::link::packet::Packet;
pub use crate::os::fuzz_hooks::{at_step, no_more_steps, number_tokens};
use crate::ring::{Consumer, Header, NextRecord, Producer, RecordKind};
use crate::shm::{LaneMemory, Mapping, lane_size};

/// Returns a description of every open link to another process, each with the reason why the link stays open.
pub fn links() -> Vec<String> {
    crate::lane::retention::describe_all()
}

/// Decodes `bytes` as a packet of a link. If the bytes are a valid packet, checks that encoding and decoding the packet
/// again gives an equal packet; panics otherwise.
pub fn packet(bytes: &[u8]) {
    if let Some(packet) = Packet::decode(bytes) {
        assert_eq!(Packet::decode(&packet.encode()), Some(packet));
    }
}

/// Decodes `bytes` as a handle table, which must not panic, whether the table is valid or not. The first byte chooses
/// the number of handles; the others are the table.
pub fn table(bytes: &[u8]) {
    if let Some((handles, bytes)) = bytes.split_first() {
        let _: Result<(), Error> = table_is_read(bytes, usize::from(*handles % 8));
    }
}

/// Runs the producer and the consumer of a ring, as `program` says, while a third party writes to the ring's memory;
/// neither may panic. The first byte of `program` chooses the size of the ring; each four bytes after it are one
/// instruction.
pub fn ring(program: &[u8]) {
    let Some((size, program)) = program.split_first() else { return };
    let cells = 4usize << (size % 4);
    let mapping = Mapping::private(lane_size(cells)).expect("a few pages");
    let memory = || LaneMemory::new(&mapping, 0, cells).expect("a lane").ring(0);
    let mut producer = Producer::new(memory());
    let mut consumer = Consumer::new(memory(), 8);
    let mut sent = VecDeque::new();
    let mut scribbled = false;
    for instruction in program.chunks_exact(4) {
        let [code, a, b, c] = instruction.try_into().expect("four bytes");
        let len = usize::from(b) | usize::from(c & 3) << 8;
        match code % 10 {
            // A write by the third party: neither side of the ring knows of it.
            0 => {
                scribbled = true;
                let words = lane_size(cells) / 8;
                let kind = u64::from(c % 12) << 32;
                let at = usize::from(a) * 8;
                mapping.word(at % (words * 8)).store(u64::from(b) | kind | u64::from(c >> 4) << 44, RELAXED);
            }
            1 => {
                scribbled = true;
                let at = [64, 72, 256 + usize::from(a) % cells * 64][usize::from(c % 3)];
                let word = mapping.word(at);
                word.store(word.load(RELAXED).wrapping_add_signed((b as i8).into()), RELAXED);
            }
            2 | 3 => {
                let payload = vec![a; len];
                if producer.push(&payload) {
                    sent.push_back(payload);
                }
            }
            4 => {
                let longest = producer.longest_payload();
                if let Ok(slot) = producer.stage(Header::new(RecordKind::Message, len.min(longest), 0)) {
                    let payload = vec![a; len.min(longest)];
                    producer.write(slot, 0, &payload);
                    match producer.commit() {
                        Ok(()) => sent.push_back(payload),
                        Err(_) => producer.discard(),
                    }
                }
            }
            5 => {
                if let Some(mut pack) = producer.begin_pack() {
                    let mut packed = Vec::new();
                    for _ in 0..c % 8 {
                        let payload = vec![a; usize::from(b)];
                        if producer.pack(&mut pack, &payload) {
                            packed.push(payload);
                        }
                    }
                    producer.end_pack(pack);
                    match producer.has_staged().then(|| producer.commit()) {
                        Some(Ok(())) => sent.extend(packed),
                        _ => producer.discard(),
                    }
                }
            }
            6 => {
                let _ = producer.refresh_credit();
                let _ = producer.staged_records();
            }
            7 => consumer.give_credit(),
            _ => {
                let Ok(NextRecord::Record(record)) = consumer.next_record() else { continue };
                if !record.header.kind().is_message() {
                    assert!(scribbled, "a record that nobody sent");
                    continue;
                }
                let mut payload = vec![std::mem::MaybeUninit::uninit(); record.header.len()];
                let payload = consumer.read(record, 0, &mut payload).to_vec();
                if !scribbled {
                    assert_eq!(Some(payload), sent.pop_front());
                }
                if consumer.advance(record) {
                    consumer.give_credit();
                }
            }
        }
    }
    if !scribbled {
        while let Ok(NextRecord::Record(record)) = consumer.next_record() {
            consumer.advance(record);
            sent.pop_front();
        }
        assert!(sent.is_empty() && consumer.is_empty());
    }
}

const RELAXED: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Relaxed;
