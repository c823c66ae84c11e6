//! Data pipes with hostile memory: the other side, or the process that sent the pipe, writes anything to it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::fs::SealFlags;
use strait::pipe::{DataConsumer, DataProducer};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle};
use strait_hostile::layout::{Reader, transfer};
use strait_hostile::memory::{SIZE_SEALS, file, immutable};
use strait_hostile::peer::Arena;
use strait_hostile::record::{header, kind};
use strait_hostile::{Memory, Packet, RawPeer, Table};

use crate::common::*;

/// The offset of the word with the number of bytes written by the producer.
const WRITTEN: usize = 0;
const FINISHED: usize = 8;
const PRODUCER_REASON: usize = 16;
const TAKEN: usize = 128;
const DONE: usize = 136;
const CONSUMER_REASON: usize = 144;
const SLEEPING: usize = 256;
const WAITING: usize = 384;
const BUFFER: usize = 4096;

const PRODUCER: u8 = 3;
const CONSUMER: u8 = 4;

/// The fields of a handle table that describe a data pipe.
#[derive(Clone, Copy)]
struct Claim {
    kind: u8,
    element: u32,
    capacity: u64,
    position: u64,
}

const HONEST: Claim = Claim { kind: CONSUMER, element: 1, capacity: 8192, position: 0 };

impl Claim {
    fn table(&self, arena: &Arena) -> Table {
        let mut table = Table::of(&[self.kind]);
        table.0.extend(self.element.to_le_bytes());
        table.0.extend(self.capacity.to_le_bytes());
        table.0.extend(self.position.to_le_bytes());
        table.end(arena.name(0), 0, 0, 0)
    }
}

/// Sends an end of a data pipe with this memory. Returns the result of the victim, and the lane of the channel of the
/// pipe.
fn offer(
    peer: &mut RawPeer,
    channel: &Channel,
    claim: Claim,
    memory: Option<&dyn AsFd>,
) -> Result<(Handle, Arena), Error> {
    let arena = peer.announce(1, 4, 16, 0).unwrap();
    offer_in(&arena, peer, channel, claim, memory).map(|handle| (handle, arena))
}

/// Sends an end of a data pipe as [`offer`] does. The channel of the pipe is in the first lane of `arena`.
fn offer_in(
    arena: &Arena,
    peer: &mut RawPeer,
    channel: &Channel,
    claim: Claim,
    memory: Option<&dyn AsFd>,
) -> Result<Handle, Error> {
    if let Some(memory) = memory {
        let packet = Packet::handles(peer.token, peer.writer.sequence, 1);
        peer.packet(&packet, &[memory.as_fd()]).unwrap();
    }
    peer.send_ends(b"", 1, &claim.table(arena), &[arena.lane(0)]).unwrap();
    let mut message = channel.try_recv()?;
    Ok(message.take_handles()?.remove(0))
}

fn consumer(peer: &mut RawPeer, channel: &Channel, claim: Claim) -> (DataConsumer, Memory, Arena) {
    let memory = Memory::create_with(BUFFER + 8192, SIZE_SEALS).unwrap();
    let (handle, arena) = offer(peer, channel, Claim { kind: CONSUMER, ..claim }, Some(&memory.fd())).unwrap();
    (handle.into_consumer().unwrap(), memory, arena)
}

fn producer(peer: &mut RawPeer, channel: &Channel, claim: Claim) -> (DataProducer, Memory, Arena) {
    let memory = Memory::create_with(BUFFER + 8192, SIZE_SEALS).unwrap();
    let (handle, arena) = offer(peer, channel, Claim { kind: PRODUCER, ..claim }, Some(&memory.fd())).unwrap();
    (handle.into_producer().unwrap(), memory, arena)
}

attack! {
    a06_pipes_whose_memory_is_none {
        type Make = fn() -> OwnedFd;
        let memories: [(&str, Make); 6] = [
            ("too small", || file(BUFFER + 4096, SIZE_SEALS).unwrap()),
            ("too large", || file(BUFFER + 16384, SIZE_SEALS).unwrap()),
            ("not sealed", || file(BUFFER + 8192, SealFlags::empty()).unwrap()),
            ("that can shrink", || file(BUFFER + 8192, SealFlags::GROW).unwrap()),
            ("immutable", || immutable(&[0; BUFFER + 8192]).unwrap()),
            ("a device", || std::fs::File::open("/dev/zero").unwrap().into()),
        ];
        for (what, make) in memories {
            for kind in [PRODUCER, CONSUMER] {
                on_a_victim(|mut peer, channel| {
                    let memory = make();
                    let offered = offer(&mut peer, &channel, Claim { kind, ..HONEST }, Some(&memory));
                    assert!(matches!(offered, Err(Error::BadPeer(_))), "{what}: {:?}", offered.map(|(handle, _)| handle));
                });
            }
        }
        on_a_victim(|mut peer, channel| {
            let offered = offer(&mut peer, &channel, HONEST, None);
            assert!(matches!(offered, Err(Error::BadPeer(_))), "no memory at all");
        });
    }
}

attack! {
    a06_pipes_of_no_possible_shape {
        let claims = [
            Claim { element: 0, ..HONEST },
            Claim { element: 3, ..HONEST },
            Claim { element: u32::MAX, ..HONEST },
            Claim { capacity: 0, ..HONEST },
            Claim { capacity: u64::MAX, ..HONEST },
            Claim { capacity: u64::MAX - 4095, ..HONEST },
            Claim { element: 2, position: 1, ..HONEST },
            Claim { position: u64::MAX, ..HONEST },
            Claim { position: 1 << 62, ..HONEST },
        ];
        for claim in claims {
            on_a_victim(|mut peer, channel| {
                let memory = file(BUFFER + 8192, SIZE_SEALS).unwrap();
                let offered = offer(&mut peer, &channel, claim, Some(&memory));
                assert_eq!(bad_peer(offered.map(|(handle, _)| handle)), "an invalid handle table");
            });
        }
        // Memory beyond the limit of the peer is not mapped.
        on_a_victim(|mut peer, channel| {
            let memory = file(BUFFER + 8192, SIZE_SEALS).unwrap();
            let offered = offer(&mut peer, &channel, Claim { capacity: 1 << 40, ..HONEST }, Some(&memory));
            assert!(matches!(offered, Err(Error::LimitReached(_))));
        });
    }
}

attack! {
    a03_counters_that_cannot_be {
        let wrong = [1u64, 8193, 1 << 61, 1 << 62, u64::MAX, u64::MAX - 8191];
        for value in wrong {
            on_a_victim(|mut peer, channel| {
                let claim = Claim { element: 2, position: 4, ..HONEST };
                let (consumer, memory, _arena) = consumer(&mut peer, &channel, claim);
                memory.word64(WRITTEN).store(value, SeqCst);
                bad_peer(consumer.read_some(&mut [0; 100], Deadline::NOW));
                // The result stays the same.
                memory.word64(WRITTEN).store(6, SeqCst);
                bad_peer(consumer.read_some(&mut [0; 100], Deadline::NOW));
                bad_peer(consumer.begin_read(Deadline::NOW).map(|_| ()));
            });
            on_a_victim(|mut peer, channel| {
                let claim = Claim { element: 2, position: 4, ..HONEST };
                let (producer, memory, _arena) = producer(&mut peer, &channel, claim);
                memory.word64(TAKEN).store(value, SeqCst);
                bad_peer(producer.write_whole(&[0; 8192], SOON));
                memory.word64(TAKEN).store(4, SeqCst);
                bad_peer(producer.write_some(&[0; 8192], Deadline::NOW));
            });
        }
        // A counter that goes back.
        on_a_victim(|mut peer, channel| {
            let (consumer, memory, _arena) = consumer(&mut peer, &channel, HONEST);
            memory.word64(WRITTEN).store(100, SeqCst);
            assert_eq!(consumer.available(), Ok(100));
            memory.word64(WRITTEN).store(99, SeqCst);
            bad_peer(consumer.available());
        });
    }
}

attack! {
    a03_what_the_victim_wrote_of_its_own_counters_is_changed {
        on_a_victim(|mut peer, channel| {
            let (producer, memory, _arena) = producer(&mut peer, &channel, HONEST);
            for round in 0..20u64 {
                assert_eq!(producer.write_some(&[round as u8; 1000], Deadline::NOW).unwrap(), 1000);
                assert_eq!(memory.word64(WRITTEN).swap(u64::MAX, SeqCst), (round + 1) * 1000);
                let at = BUFFER + (round as usize * 1000) % 8192;
                assert_eq!(memory.read(at, 1), [round as u8]);
                memory.word64(TAKEN).store((round + 1) * 1000, SeqCst);
            }
        });
        on_a_victim(|mut peer, channel| {
            let (consumer, memory, _arena) = consumer(&mut peer, &channel, HONEST);
            for round in 1..20u64 {
                memory.word64(WRITTEN).store(round * 1000, SeqCst);
                assert_eq!(consumer.read_some(&mut [0; 2000], Deadline::NOW).unwrap(), 1000);
                assert_eq!(memory.word64(TAKEN).swap(u64::MAX, SeqCst), round * 1000);
            }
        });
    }
}

attack! {
    /// A thread of the peer changes every word of the pipe all the time: calls return in time, and no memory outside of
    /// the pipe is read.
    a01_every_word_of_a_pipe_changes {
        for seed in 0..6 {
            on_a_victim(|mut peer, channel| {
                let stop = std::sync::atomic::AtomicBool::new(false);
                let (consumer, memory, _arena) = consumer(&mut peer, &channel, HONEST);
                std::thread::scope(|scope| {
                    let (memory, stop) = (&memory, &stop);
                    scope.spawn(move || {
                        let mut numbers = Numbers(seed);
                        let mut written = 0;
                        while !stop.load(SeqCst) {
                            // The value is often nearly right, so that the pipe stays usable.
                            written += numbers.next() % 100;
                            memory.word64(WRITTEN).store(written, SeqCst);
                            memory.word64(TAKEN).store(numbers.nasty(), SeqCst);
                            memory.word64(PRODUCER_REASON).store(numbers.nasty(), SeqCst);
                            memory.word64(CONSUMER_REASON).store(numbers.next(), SeqCst);
                            memory.word32(SLEEPING).store(numbers.next() as u32, SeqCst);
                            memory.word32(WAITING).store(numbers.next() as u32, SeqCst);
                            memory.word64(BUFFER).store(numbers.next(), SeqCst);
                            if numbers.below(1000) == 0 {
                                memory.word32(FINISHED).store(numbers.next() as u32 % 2, SeqCst);
                                memory.word32(DONE).store(1, SeqCst);
                            }
                        }
                    });
                    in_time("reading", || {
                        let mut out = [0; 9000];
                        for _ in 0..10_000 {
                            if matches!(consumer.read_some(&mut out, Deadline::NOW), Ok(0) | Err(Error::BadPeer(_))) {
                                break;
                            }
                            if let Ok(unread) = consumer.begin_read(Deadline::NOW) {
                                assert!(unread.len() <= 8192);
                                let len = unread.len();
                                unread.read_at(&mut out[..len], 0);
                                unread.consume(len);
                            }
                        }
                    });
                    stop.store(true, SeqCst);
                });
            });
        }
    }
}

attack! {
    /// The peer's words claim that the peer sleeps, although it never does: doorbells fill the channel, and have no
    /// other effect.
    a20_a_sleeper_that_never_sleeps {
        on_a_victim(|mut peer, channel| {
            let (producer, memory, _arena) = producer(&mut peer, &channel, HONEST);
            in_time("writing", || {
                for round in 1..=100_000u64 {
                    memory.word32(SLEEPING).store(1, SeqCst);
                    assert_eq!(producer.write_some(b"x", Deadline::NOW).unwrap(), 1);
                    memory.word64(TAKEN).store(round, SeqCst);
                }
            });
        });
    }
}

attack! {
    /// The consumer sleeps, and its end leads through a row of lanes: a write that must not wait follows 16,384 lanes
    /// for its doorbell, and a thread sends the doorbell later.
    a04_a_doorbell_follows_a_row_of_lanes {
        on_a_victim(|mut peer, channel| {
            const LANES: u32 = 20_000;
            let memory = Memory::create_with(BUFFER + 8192, SIZE_SEALS).unwrap();
            let arena = peer.announce(1, LANES, 4, 0).unwrap();
            let claim = Claim { kind: PRODUCER, ..HONEST };
            let handle = offer_in(&arena, &mut peer, &channel, claim, Some(&memory.fd())).unwrap();
            let producer = handle.into_producer().unwrap();
            for slot in 0..LANES - 1 {
                let lane = arena.lane(slot);
                lane.transfer().store(transfer::HANDED_OVER, SeqCst);
                lane.ring(0).set_forward(arena.name(slot + 1).to_words());
                lane.ring(0).header(0).store(header(kind::FROZEN, 0, 0), SeqCst);
            }
            let last = arena.lane(LANES - 1);
            last.transfer().store(transfer::HANDED_OVER, SeqCst);
            let mut reader = Reader::new(last.ring(0));
            memory.word32(SLEEPING).store(1, SeqCst);
            assert_eq!(in_time("a write", || producer.write_some(b"x", Deadline::NOW)), Ok(1));
            let begin = Instant::now();
            let doorbell = loop {
                match reader.take() {
                    Some(doorbell) => break doorbell,
                    None => std::thread::yield_now(),
                }
                assert!(begin.elapsed() < Duration::from_secs(60), "no doorbell comes");
            };
            assert_eq!(doorbell.payload, b"");
        });
    }
}

attack! {
    /// The peer sends doorbells without a reason, with content, and with handles.
    a20_doorbells_of_every_kind {
        on_a_victim(|mut peer, channel| {
            let (consumer, _memory, arena) = consumer(&mut peer, &channel, HONEST);
            let set = WaitSet::new().unwrap();
            set.add(&consumer, 1, Interest::Both, Mode::Level).unwrap();
            let mut writer = strait_hostile::layout::Writer::new(arena.lane(0).ring(1));
            for _ in 0..4 {
                writer.put(strait_hostile::record::header(strait_hostile::record::kind::MESSAGE, 0, 0), b"");
            }
            assert_eq!(consumer.read_some(&mut [0; 10], Deadline::NOW), Err(Error::WouldBlock));
            assert_eq!(set.wait(&mut Vec::new(), Deadline::NOW), Ok(0));
            let late = consumer.read_some(&mut [0; 10], std::time::Duration::from_millis(20));
            assert_eq!(late, Err(Error::TimedOut));
            writer.put(strait_hostile::record::header(strait_hostile::record::kind::MESSAGE, 5, 0), b"hello");
            assert_eq!(bad_peer(consumer.read_some(&mut [0; 10], Deadline::NOW)), "a message with bytes beside a data pipe, where only empty ones are sent");
        });
    }
}

attack! {
    /// The peer has filled its ring with doorbells, which the victim finds again after each round: a wait ends at its
    /// deadline, and a wait without a deadline ends the channel.
    a20_doorbells_without_end {
        for side in [PRODUCER, CONSUMER] {
            on_a_victim(|mut peer, channel| {
                let claim = Claim { kind: side, ..HONEST };
                let fill = |arena: &Arena| {
                    let ring = arena.lane(0).ring(1);
                    for cell in 0..ring.count() {
                        ring.header(cell).store(header(kind::MESSAGE, 0, 0), SeqCst);
                    }
                };
                let wait: Box<dyn Fn(Deadline) -> Result<usize, Error>> = if side == PRODUCER {
                    let (producer, memory, arena) = producer(&mut peer, &channel, claim);
                    let full = producer.write_some(&[0; 8192], Deadline::NOW).unwrap();
                    assert_eq!(full, 8192);
                    fill(&arena);
                    Box::new(move |deadline| {
                        let _memory = &memory;
                        producer.write_some(b"x", deadline)
                    })
                } else {
                    let (consumer, memory, arena) = consumer(&mut peer, &channel, claim);
                    fill(&arena);
                    Box::new(move |deadline| {
                        let _memory = &memory;
                        consumer.read_some(&mut [0; 10], deadline)
                    })
                };
                assert_eq!(in_time("a look", || wait(Deadline::NOW)), Err(Error::WouldBlock));
                // So many doorbells as are permitted cannot be received in a millisecond.
                let late = in_time("a wait", || wait(Duration::from_millis(1).into()));
                assert_eq!(late, Err(Error::TimedOut));
                let ended = in_time("a wait without a deadline", || wait(Deadline::NEVER));
                assert_eq!(bad_peer(ended), "doorbells without end beside a data pipe");
            });
        }
    }
}

attack! {
    /// The peer changes bytes between a look and a copy: the copy does not change.
    a01_bytes_in_place_change {
        on_a_victim(|mut peer, channel| {
            let (consumer, memory, _arena) = consumer(&mut peer, &channel, HONEST);
            memory.word64(BUFFER).store(7, SeqCst);
            memory.word64(WRITTEN).store(8, SeqCst);
            let unread = consumer.begin_read(Deadline::NOW).unwrap();
            let mut out = [0; 8];
            unread.read_at(&mut out, 0);
            memory.word64(BUFFER).store(8, SeqCst);
            memory.word64(WRITTEN).store(u64::MAX, SeqCst);
            assert_eq!((u64::from_ne_bytes(out), unread.len()), (7, 8));
            unread.consume(8);
            assert_eq!(memory.word64(TAKEN).load(SeqCst), 8);
        });
    }
}

attack! {
    /// The peer sends both ends of one pipe, and one end twice: no two ends of this process share a mapping.
    a04_both_ends_of_a_pipe_and_one_twice {
        on_a_victim(|mut peer, channel| {
            let memory = Memory::create_with(BUFFER + 8192, SIZE_SEALS).unwrap();
            let arena = peer.announce(1, 8, 16, 0).unwrap();
            let mut ends = Vec::new();
            for (slot, kind) in [PRODUCER, CONSUMER, PRODUCER].into_iter().enumerate() {
                let mut table = Table::of(&[kind]);
                table.0.extend(1u32.to_le_bytes());
                table.0.extend(8192u64.to_le_bytes());
                table.0.extend(0u64.to_le_bytes());
                let table = table.end(arena.name(slot as u32), 0, 0, 0);
                peer.packet(&Packet::handles(peer.token, peer.writer.sequence, 1), &[memory.fd()]).unwrap();
                peer.send_ends(b"", 1, &table, &[arena.lane(slot as u32)]).unwrap();
                ends.push(channel.try_recv().unwrap().take_handles().unwrap().remove(0));
            }
            let again = ends.pop().unwrap().into_producer().unwrap();
            let consumer = ends.pop().unwrap().into_consumer().unwrap();
            let producer = ends.pop().unwrap().into_producer().unwrap();
            let mut room = producer.begin_write(Deadline::NOW).unwrap();
            again.write_whole(b"scribble", Deadline::NOW).unwrap();
            let unread = consumer.begin_read(Deadline::NOW).unwrap();
            room.write_at(b"other", 0);
            let mut out = [0; 8];
            unread.read_at(&mut out, 0);
            assert_eq!(&out, b"otherble");
            drop((room, unread));
        });
    }
}
