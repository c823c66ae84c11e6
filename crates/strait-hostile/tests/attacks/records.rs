//! Hostile content: anything that the peer writes into rings and sends in packets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, MAX_MESSAGE, Message, Options, Outgoing};
use strait_hostile::handshake;
use strait_hostile::layout::{bitmap, control, lane_size};
use strait_hostile::memory::{SIZE_SEALS, file, immutable};
use strait_hostile::record::{BLOCK_PAYLOAD, Block, CELL, HEADER, header, kind};
use strait_hostile::wire::{self, PACKET};
use strait_hostile::{Memory, Packet, RawPeer};

use crate::common::*;

/// Returns whether an honest user may see this error because its peer is hostile.
fn is_expected(error: Error) -> bool {
    matches!(
        error,
        Error::WouldBlock
            | Error::TimedOut
            | Error::PeerClosed
            | Error::BadPeer(_)
            | Error::Refused(_)
            | Error::BufferTooSmall { .. }
            | Error::HandlesLost { .. }
            | Error::NoMemory { .. }
    )
}

attack! {
    /// The peer changes the length of a message in a block between two looks of a call: one checks whether the
    /// caller's buffer is large enough, the other copies.
    a01_a_length_that_changes_between_two_looks {
        on_a_victim(|mut peer, channel| {
            const SMALL: u64 = 100;
            const LARGE: u64 = 150_000;
            let memory = Memory::create(BLOCK_PAYLOAD + LARGE as usize).unwrap();
            memory.write(BLOCK_PAYLOAD, &vec![7; LARGE as usize]);
            peer.packet(&Packet::block(peer.token, 0, peer.writer.sequence, 0), &[memory.fd()]).unwrap();
            let mut buffer = vec![0; 1000];
            let over = AtomicBool::new(false);
            let (mut small, mut large) = (0, 0);
            let begin = Instant::now();
            let mut usage = 0;
            while (small < 5_000 || large < 2_000) && begin.elapsed() < Duration::from_secs(8) {
                usage += 1;
                let (ring, cell) = (peer.writer.ring.clone(), peer.writer.cell());
                peer.writer.pad_for(32);
                let cell = if peer.writer.cell() == cell { cell } else { peer.writer.cell() };
                peer.writer.put(header(kind::BLOCK, 32, 0), &Block { id: 0, usage, len: SMALL, once: 0 }.to_bytes());
                over.store(false, SeqCst);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while !over.load(SeqCst) {
                            ring.write(cell, 16, &LARGE.to_le_bytes());
                            ring.write(cell, 16, &SMALL.to_le_bytes());
                        }
                    });
                    // The record is there until it is taken.
                    for _ in 0..5_000 {
                        match channel.recv_into(&mut buffer, Deadline::NOW) {
                            Ok(received) => {
                                small += 1;
                                let len = received.len();
                                // A length written byte by byte may be read as any mixture.
                                assert!(buffer[..len].iter().all(|byte| *byte == 7), "{len} bytes");
                                break;
                            }
                            Err(Error::BufferTooSmall { needed }) => {
                                large += 1;
                                assert!(needed <= strait::MAX_MESSAGE);
                            }
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    over.store(true, SeqCst);
                });
                while channel.try_recv().is_ok() {}
            }
            eprintln!("{small} small, {large} large");
        });
    }
}

attack! {
    /// The peer changes the length in the header of a record, and of messages in a packed record, all the time.
    a01_headers_that_change_while_they_are_read {
        on_a_victim(|mut peer, channel| {
            const HEADERS: [u64; 6] = [header(kind::MESSAGE, 8, 0), header(kind::MESSAGE, 56, 0), header(kind::MESSAGE, 40, 0), header(kind::PACK, 48, 2), header(kind::PACK, 56, 3), header(kind::PACK, 16, 1)];
            let over = AtomicBool::new(false);
            let ring = peer.writer.ring.clone();
            let mut message = Message::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut numbers = Numbers(1);
                    while !over.load(SeqCst) {
                        for cell in 0..ring.count() {
                            ring.header(cell).store(HEADERS[numbers.below(HEADERS.len())], SeqCst);
                            ring.write(cell, numbers.below(6) * 8, &[numbers.next() as u8 % 40, 0, 0, 0, 0, 0, 0, 0]);
                        }
                    }
                });
                let begin = Instant::now();
                let mut received = 0;
                while begin.elapsed() < Duration::from_secs(1) {
                    let result = match received % 3 {
                        0 => channel.recv_message(&mut message, Deadline::NOW).map(|()| message.bytes().len()),
                        1 => channel.recv_into(&mut [0; 60], Deadline::NOW).map(|received| received.len()),
                        _ => channel.recv_in_place(Deadline::NOW).map(|mut view| {
                            let len = view.len();
                            view.read_at(&mut vec![0; len], 0);
                            len
                        }),
                    };
                    match result {
                        Ok(len) => assert!(len <= 56, "{len} bytes"),
                        Err(error) => {
                            assert!(is_expected(error), "{error:?}");
                            if matches!(error, Error::BadPeer(_)) {
                                break;
                            }
                        }
                    }
                    received += 1;
                }
                over.store(true, SeqCst);
            });
            peer.give_credit().unwrap();
        });
    }
}

/// Makes every call on a channel that does not wait. Returns false once the channel is unusable.
fn use_in_every_way(channel: &Channel, numbers: &mut Numbers) -> bool {
    let error = match numbers.below(12) {
        0 => channel.try_send(b"small").map_err(Error::from).err(),
        1 => channel.try_send(&[1; 2000]).map_err(Error::from).err(),
        2 => channel.try_send(Outgoing::new(b"with").handle(file_with(b"x"))).map_err(Error::from).err(),
        3 => channel.send_many([&b"one"[..], b"two", &[3; 300]], Deadline::NOW).map_err(Error::from).err(),
        4 => channel.recv_into(&mut [0; 200], Deadline::NOW).map(drop).err(),
        5 => channel
            .recv_in_place(Deadline::NOW)
            .map(|mut view| {
                let mut bytes = vec![0; view.len().min(10_000)];
                view.read_at(&mut bytes, 0);
            })
            .err(),
        6 => channel
            .reserve(numbers.below(3000), Deadline::NOW)
            .and_then(|mut room| {
                room.write_at(b"", 0);
                room.commit().map_err(Error::from)
            })
            .err(),
        7 => {
            channel.is_readable();
            channel.is_writable();
            channel.is_peer_closed();
            channel.peer().err()
        }
        8 => channel.try_send(&[1; 70_000]).map_err(Error::from).err(),
        9 => channel.recv_by(Duration::from_micros(100)).err(),
        _ => channel.try_recv().err(),
    };
    match error {
        None => true,
        Some(error) => {
            assert!(is_expected(error), "{error:?}");
            !matches!(error, Error::BadPeer(_) | Error::PeerClosed | Error::Refused(_))
        }
    }
}

attack! {
    /// A thread of the peer writes to every word of shared memory while the victim uses the memory.
    a01_every_word_is_scribbled_on_while_it_is_used {
        let begin = Instant::now();
        let mut numbers = Numbers(7);
        let mut victims = 0;
        while begin.elapsed() < Duration::from_secs(2) {
            victims += 1;
            let seed = numbers.next();
            let play = |mut peer: RawPeer, channel: Channel| {
                let _ = channel.try_send(&[1; 100_000]);
                while let Ok(Some(_)) = peer.try_recv() {}
                let _ = peer.send_block(1, &[2; 80_000]);
                let shared = peer.shared();
                let over = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut numbers = Numbers(seed);
                        while !over.load(SeqCst) {
                            let memory = &shared[numbers.below(shared.len())];
                            // Most changes are in the control blocks and in the first cells.
                            let reach = if numbers.below(4) == 0 { memory.len() / 8 } else { memory.len().min(2048) / 8 };
                            let word = memory.word64(numbers.below(reach) * 8);
                            match numbers.below(3) {
                                0 => word.store(numbers.nasty(), SeqCst),
                                1 => word.store(header((numbers.next() % 12) as u8, numbers.below(200), numbers.below(3)), SeqCst),
                                _ => drop(word.fetch_add(1, SeqCst)),
                            }
                        }
                    });
                    let mut numbers = Numbers(seed ^ 1);
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_millis(20) && use_in_every_way(&channel, &mut numbers) {}
                    over.store(true, SeqCst);
                });
            };
            if victims % 50 == 1 {
                on_a_victim(play);
            } else {
                let (peer, channel) = meet();
                play(peer, channel);
            }
        }
        eprintln!("{victims} victims");
    }
}

attack! {
    /// The peer writes records of every kind, of lengths and at positions near the limits.
    a02_records_that_leave_their_ring {
        let bystander = Bystander::new();
        let census = Census::take();
        const CELLS: usize = 16;
        let room = CELLS * CELL - HEADER;
        for place in [0, 1, CELLS / 2, CELLS - 2, CELLS - 1] {
            let to_end = (CELLS - place) * CELL - HEADER;
            for len in [0, 1, 8, 16, 32, 56, 57, to_end - 1, to_end, to_end + 1, to_end + CELL, room, room + 1, 1 << 20, 1 << 31, (1 << 32) - 64, (1 << 32) - 8, u32::MAX as usize] {
                for kind in 0..=kind::END {
                    for handles in [0, 1, 255] {
                        for beyond in [0, 1 << 48, 1 << 49, 1 << 63] {
                            let (ours, theirs) = sockets();
                            let channel = Channel::over(theirs).unwrap();
                            let mut peer = RawPeer::meet_as(ours, 1, CELLS).unwrap();
                            for _ in 0..place {
                                peer.send(b"before").unwrap();
                                assert_eq!(channel.try_recv().unwrap().bytes(), b"before");
                            }
                            peer.writer.ring.header(place + 1).store(0, SeqCst);
                            peer.writer.ring.header(place).store(header(kind, len, handles) | beyond, SeqCst);
                            let result = channel.try_recv();
                            let fits = len <= to_end;
                            match &result {
                                Ok(message) => assert!(fits && message.bytes().len() <= to_end && beyond < 1 << 49),
                                Err(error) => assert!(matches!(error, Error::BadPeer(_) | Error::WouldBlock | Error::PeerClosed), "{error:?}"),
                            }
                            if !fits && kind != 0 {
                                let reason = bad_peer(result);
                                assert!(matches!(reason, "a record that does not fit its ring" | "padding that does not reach the end of the ring" | "an invalid record header"), "{reason}");
                            }
                        }
                    }
                }
            }
        }
        bystander.assert_undisturbed();
        census.assert_unchanged();
    }
}

attack! {
    /// The peer writes a record longer than any message, in a ring that has room for the record but hardly any pages.
    /// A receiver would need a gigabyte of memory, and seconds past the deadline.
    a02_records_that_are_longer_than_any_message {
        on_a_victim(|_, _| {
            const CELLS: usize = 1 << 23;
            type Receive = fn(&Channel) -> Result<(), Error>;
            let ways: [Receive; 5] = [
                |channel| channel.recv_by(Duration::from_millis(100)).map(drop),
                |channel| channel.recv_into(&mut [0; 100], Duration::from_millis(100)).map(drop),
                |channel| channel.try_recv_bytes(&mut [0; 100]).map(drop),
                |channel| channel.recv_in_place(Duration::from_millis(100)).map(drop),
                |channel| channel.recv_many(&mut [Message::new(), Message::new()], Duration::from_millis(100)).map(drop),
            ];
            for receive in ways {
                for len in [MAX_MESSAGE + 1, (CELLS - 1) * CELL] {
                    let (mut peer, channel) = meet_with(&Options::new().max_message(1 << 20));
                    peer.grow_into(Arc::new(Memory::create(CELLS * CELL).unwrap())).unwrap();
                    let at = peer.writer.cell();
                    peer.writer.ring.header(at).store(header(kind::MESSAGE, len, 0), SeqCst);
                    bad_peer(receive(&channel));
                }
            }
        });
    }
}

attack! {
    /// The peer sends packed records whose messages are longer than the record.
    a02_packs_that_do_not_add_up {
        on_a_victim(|_, _| {
            let pack = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
            let cases: [(usize, usize, &[u64]); 12] = [
                (0, 0, &[]), (8, 0, &[0]), (0, 1, &[]), (4, 1, &[0]), (8, 2, &[0]), (8, 1, &[1]), (16, 1, &[9, 0]), (16, 1, &[u64::MAX, 0]),
                (16, 255, &[0, 0]), (16, 2, &[1, 0]), (24, 2, &[8, 0, u64::MAX - 7]), (16, 1, &[1 << 32, 0]),
            ];
            for (len, count, words) in cases {
                let (mut peer, channel) = meet();
                peer.writer.put(header(kind::PACK, len, count), &pack(words));
                let mut received = 0;
                let error = loop {
                    match channel.try_recv() {
                        Ok(message) => assert!(message.bytes().len() <= 16),
                        Err(error) => break error,
                    }
                    received += 1;
                };
                assert!(matches!(error, Error::BadPeer(_)) && received < count.max(1), "{len} {count} {words:?}: {received}, {error:?}");
            }
        });
    }
}

attack! {
    /// The peer changes the words in which the victim published its positions: the victim never reads these words
    /// back.
    a03_the_victims_own_positions_are_changed {
        on_a_victim(|mut peer, channel| {
            let mut numbers = Numbers(3);
            let scribbled = peer.writer.ring.clone();
            for n in 0..2000u32 {
                let len = numbers.below(300);
                // The record stays until the victim receives it.
                scribbled.credit().store(numbers.nasty(), SeqCst);
                scribbled.taken().store(numbers.nasty(), SeqCst);
                scribbled.sleeping().store(numbers.nasty() as u32 & !3, SeqCst);
                let theirs = peer.reader.as_ref().unwrap().ring.clone();
                theirs.waiting().store(0, SeqCst);
                theirs.word32(control::CPU).store(numbers.nasty() as u32, SeqCst);
                theirs.word64(control::QUOTA).store(numbers.nasty(), SeqCst);
                let bytes = vec![n as u8; len];
                peer.writer.pad_for(len);
                peer.writer.put(header(kind::MESSAGE, len, 0), &bytes);
                assert_eq!(channel.try_recv().unwrap().bytes(), bytes);
                // Headers behind the victim's position, and headers of records that the victim sent and the peer has
                // read.
                let position = peer.reader.as_ref().unwrap().position;
                theirs.header(position + theirs.count() - 1).store(numbers.nasty(), SeqCst);
                channel.try_send(&bytes).unwrap();
                assert_eq!(peer.try_recv().unwrap().unwrap().bytes, bytes);
            }
        });
    }
}

attack! {
    /// The peer's words about what it has received go back, beyond what was sent, and anywhere.
    a03_credit_for_what_was_never_sent {
        on_a_victim(|_, _| {
            let claims = [1000, 1 << 20, 1 << 32, u64::MAX, u64::MAX / 2, i64::MAX as u64, u64::MAX - 127];
            for claim in claims {
                for taken in [false, true] {
                    let (mut peer, channel) = meet_with(&Options::new().ring(1024).ring_max(1024).queue_messages(8));
                    channel.try_send(&[1; 100]).unwrap();
                    peer.try_recv().unwrap().unwrap();
                    let ring = peer.reader.as_ref().unwrap().ring.clone();
                    if taken { ring.taken().store(claim, SeqCst) } else { ring.credit().store(claim, SeqCst) }
                    let error = (0..100).find_map(|_| channel.try_send(&[2; 100]).err()).expect("the victim sent beyond its ring").error;
                    assert!(matches!(error, Error::BadPeer(_)), "{claim}: {error:?}");
                }
            }
            // The credit, or the number of received messages, shrinks.
            for taken in [false, true] {
                let (mut peer, channel) = meet_with(&Options::new().ring(1024).ring_max(1024).queue_messages(8));
                for _ in 0..20 {
                    channel.try_send(&[1; 100]).unwrap();
                    peer.try_recv().unwrap().unwrap();
                }
                let ring = peer.reader.as_ref().unwrap().ring.clone();
                if taken { ring.taken().store(2, SeqCst) } else { ring.credit().store(2, SeqCst) }
                let error = (0..100).find_map(|_| channel.try_send(&[2; 100]).err()).unwrap().error;
                assert!(matches!(error, Error::BadPeer(_)), "{error:?}");
            }
            // The peer writes where the victim's next record will be.
            for word in [header(kind::MESSAGE, 8, 0), header(kind::FROZEN, 0, 0), header(kind::PAD, 8, 0), 1, u64::MAX, 77 << 32] {
                let (peer, channel) = meet();
                peer.reader.as_ref().unwrap().ring.header(0).store(word, SeqCst);
                let error = channel.try_send(b"x").unwrap_err().error;
                assert!(matches!(error, Error::BadPeer(_)), "{word:#x}: {error:?}");
            }
        });
    }
}

attack! {
    /// The peer writes where the victim's next record will be, and the victim sends its end to another process. The
    /// peer is reported once, and no other process is reported.
    a03_an_end_whose_peer_broke_the_protocol_is_passed_on {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let told = reports.clone();
        strait::quota::on_bad_peer(move |bad| told.lock().unwrap().push(*bad));
        on_a_victim(|peer, channel| {
            peer.reader.as_ref().unwrap().ring.header(0).store(u64::MAX, SeqCst);
            let reason = bad_peer(channel.try_send(b"x"));
            let (one, other) = sockets();
            let (one, other) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
            one.send_by(Outgoing::new(b"an end").handle(channel), SOON).unwrap();
            let end = other.recv_by(SOON).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
            // The end travels with the state that its sender knew, except for the reason.
            assert_eq!(end.try_send(b"x").unwrap_err().error, Error::PeerClosed);
            let reports = reports.lock().unwrap().iter().map(|bad| (bad.reason, bad.peer.is_some())).collect::<Vec<_>>();
            assert_eq!(reports, [(reason, true)]);
        });
    }
}

attack! {
    /// The peer sets the return word of a block to any value: blocks in use stay in use.
    a04_blocks_given_back_that_were_not_lent {
        on_a_victim_with(&Options::new().queue_bytes(1 << 20), |mut peer, channel| {
            let mut numbers = Numbers(9);
            for n in 0..300u64 {
                let _ = channel.try_send(&vec![n as u8; 70_000 + numbers.below(50_000)]);
                peer.pump().unwrap();
                while let Some(at) = peer.arrived.iter().position(|(packet, _)| packet.memories()[0] == 1) {
                    let (packet, mut descriptors) = peer.arrived.remove(at).unwrap();
                    let id = packet.fields[0] as usize;
                    peer.blocks.resize(peer.blocks.len().max(id + 1), None);
                    peer.blocks[id] = Some(Arc::new(Memory::map(descriptors.remove(0)).unwrap()));
                }
                for block in peer.blocks.iter().flatten() {
                    block.word64(0).store(if numbers.below(2) == 0 { numbers.below(20) as u64 } else { numbers.nasty() }, SeqCst);
                }
                let mut room = match channel.reserve(80_000, Deadline::NOW) {
                    Ok(room) => room,
                    Err(error) => { assert_eq!(error, Error::WouldBlock); continue }
                };
                for block in peer.blocks.iter().flatten() {
                    block.word64(0).store(numbers.below(20) as u64, SeqCst);
                }
                room.write_at(&[1; 80_000], 0);
                if numbers.below(2) == 0 { let _ = room.commit(); }
                while let Ok(Some(_)) = peer.record() {}
                peer.give_credit().unwrap();
            }
        });
    }
}

attack! {
    /// The peer writes records of rings, blocks, sealed memory and marks that do not match what the peer has sent.
    a33_records_of_what_was_never_sent {
        on_a_victim(|_, _| {
            let block = |id, usage, len, once| (header(kind::BLOCK, 32, 0), Block { id, usage, len, once }.to_bytes().to_vec());
            let cases = [
                block(0, 1, 1, 0), block(0, 2, 1, 0), block(63, 7, 0, 0), block(64, 1, 0, 0), block(u64::MAX, 1, 0, 0), block(0, 1, 0, 2), block(0, 0, 0, 0), block(1 << 32, 2, 0, 1),
                (header(kind::BLOCK, 31, 0), vec![0; 31]), (header(kind::BLOCK, 0, 0), vec![]), (header(kind::BLOCK, 40, 0), vec![0; 40]),
                (header(kind::SEALED, 8, 0), 1u64.to_le_bytes().to_vec()), (header(kind::SEALED, 0, 0), vec![]), (header(kind::SEALED, 8, 0), u64::MAX.to_le_bytes().to_vec()),
                (header(kind::NEXT, 8, 0), 1u64.to_le_bytes().to_vec()), (header(kind::NEXT, 8, 0), 2u64.to_le_bytes().to_vec()), (header(kind::NEXT, 8, 0), 0u64.to_le_bytes().to_vec()),
                (header(kind::NEXT, 0, 0), vec![]), (header(kind::NEXT, 7, 0), vec![0; 7]),
                (header(kind::MOVED, 16, 0), vec![9; 16]), (header(kind::MOVED, 0, 0), vec![]), (header(kind::MOVED, 15, 0), vec![0; 15]),
                (header(kind::FROZEN, 0, 0), vec![]), (header(kind::TABLE, 0, 1), vec![]),
                (header(kind::PREPENDED, 0, 0), vec![]), (header(kind::PREPENDED, 7, 0), vec![0; 7]), (header(kind::PREPENDED, 8, 0), vec![0; 8]), (header(kind::PREPENDED, 8, 1), vec![0; 8]),
                (header(kind::PREPENDED, 39, 0), [vec![0; 8], vec![1, 0, 0, 0, 1], vec![0; 26]].concat()), (header(kind::PREPENDED, 40, 0), vec![1; 40]),
                (header(kind::MESSAGE, 1, 1), vec![0]), (header(kind::MESSAGE, 1, 255), vec![0]), (header(kind::MESSAGE, 1, 1) | 1 << 48, vec![0]),
            ];
            for (header, payload) in cases {
                let (mut peer, channel) = meet();
                peer.writer.put(header, &payload);
                peer.send(b"behind it").unwrap();
                bad_peer(channel.try_recv());
                // The result stays the same.
                bad_peer(channel.try_recv());
                assert!(channel.is_readable());
            }
            // A block with too high a number, whose memory was sent.
            for id in [64, 1000, 1 << 32, u64::MAX] {
                let (mut peer, channel) = meet();
                let memory = file(BLOCK_PAYLOAD + 10, SIZE_SEALS).unwrap();
                peer.packet(&Packet::block(peer.token, id, 1, 0), &[memory.as_fd()]).unwrap();
                peer.put_block(Block { id, usage: 1, len: 10, once: 0 }).unwrap();
                bad_peer(channel.try_recv());
            }
        });
    }
}

attack! {
    /// The peer sends handles for earlier, later and missing messages, sends some ahead, and retracts them.
    a33_handles_of_other_messages {
        on_a_victim(|_, _| {
            let file = file_with(b"x");
            let two = [file.as_fd(); 2];
            let send = |peer: &RawPeer, packet: Packet| peer.packet(&packet, &two[..packet.descriptors as usize]).unwrap();
            let handles = |peer: &RawPeer, sequence: u64, count: usize| send(peer, Packet::handles(peer.token, sequence, count));
            // Handles of earlier and later messages do not belong to this message.
            for sequence in [0, 2, 1000, u64::MAX] {
                let (mut peer, channel) = meet();
                handles(&peer, sequence, 2);
                peer.writer.put(header(kind::MESSAGE, 0, 2), b"");
                bad_peer(channel.try_recv());
            }
            // Handles of another ring do not belong to this message.
            let (mut peer, channel) = meet();
            send(&peer, Packet::handles(peer.token + 1, 1, 2));
            peer.writer.put(header(kind::MESSAGE, 0, 2), b"");
            bad_peer(channel.try_recv());
            // More handles, or fewer, than the message has.
            for count in [1, 3] {
                let (mut peer, channel) = meet();
                handles(&peer, 1, 2);
                peer.writer.put(header(kind::MESSAGE, 0, count), b"");
                bad_peer(channel.try_recv());
            }
            // Handles sent ahead count as handles of the next message that has a packet, and of no other.
            for (ahead, count) in [(0, 2), (1, 2), (2, 3)] {
                let (mut peer, channel) = meet();
                send(&peer, Packet::ahead(peer.token + u128::from(ahead == 0), 1));
                send(&peer, Packet::ahead(peer.token, ahead));
                handles(&peer, 1, 1);
                peer.writer.put(header(kind::MESSAGE, 0, count), b"");
                bad_peer(channel.try_recv());
            }
            // Handles ahead of no packet are handles of no message.
            let (mut peer, channel) = meet();
            send(&peer, Packet::ahead(peer.token, 2));
            peer.writer.put(header(kind::MESSAGE, 0, 2), b"");
            bad_peer(channel.try_recv());
            let (mut peer, channel) = meet();
            let before = descriptors();
            send(&peer, Packet::ahead(peer.token, 2));
            send(&peer, Packet::ahead(peer.token, 1));
            handles(&peer, 1, 1);
            peer.writer.put(header(kind::MESSAGE, 0, 4), b"");
            assert_eq!(channel.try_recv().unwrap().take_handles().unwrap().len(), 4);
            // Void handles and retracted handles do not arrive. Handles that are sent twice arrive once.
            send(&peer, Packet::ahead(peer.token, 2));
            send(&peer, Packet::ahead(peer.token, 0));
            handles(&peer, 2, 1);
            handles(&peer, 2, 1);
            peer.writer.put(header(kind::MESSAGE, 0, 1), b"");
            assert_eq!(channel.try_recv().unwrap().take_handles().unwrap().len(), 1);
            send(&peer, Packet::ahead(peer.token, 2));
            handles(&peer, 4, 1);
            send(&peer, Packet::ahead(peer.token, 2));
            send(&peer, Packet::retract(peer.token));
            // When this record is received, all earlier packets are received too; a wait that ends sooner need not
            // receive them.
            peer.send_sealed(b"nothing is amiss").unwrap();
            assert_eq!(channel.try_recv().unwrap().bytes(), b"nothing is amiss");
            assert_no_more_than(before, "nothing is left of void, repeated and retracted handles");
            peer.writer.put(header(kind::MESSAGE, 0, 1), b"");
            bad_peer(channel.try_recv());
        });
    }
}

/// Sends packets until the victim takes the peer for a bad peer or leaves packets in the socket. The descriptors open
/// in the victim are bounded, and are closed when the victim ends the link or closes the channel.
fn flood(peer: &RawPeer, channel: Channel, most: usize, send: impl Fn(u64) -> std::io::Result<()>) {
    let before = descriptors();
    let (mut sent, mut stalled) = (0, 0);
    let mut refused = false;
    while !refused && stalled < 20 {
        match send(sent) {
            Ok(()) => (sent, stalled) = (sent + 1, 0),
            Err(_) => {
                stalled += 1;
                match channel.recv_by(Duration::from_millis(10)) {
                    Err(Error::TimedOut | Error::LimitReached(_)) => {}
                    result => refused = !bad_peer(result).is_empty(),
                }
            }
        }
        assert!(descriptors() < before + most, "{} after {sent} packets", descriptors());
        assert!(sent < 200_000, "the victim received every packet");
    }
    drop(channel);
    // Some descriptors are closed in the background.
    let begin = Instant::now();
    while descriptors() > before {
        assert!(begin.elapsed() < SOON, "{} of {before}", descriptors());
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = &peer.socket;
}

attack! {
    /// Attachments without a record are bounded, and are closed with the link.
    a11_handles_that_nobody_asks_for {
        let file = file_with(b"x");
        on_a_victim(|peer, channel| {
            flood(&peer, channel, 10_000, |n| peer.packet(&Packet::handles(u128::from(n), n, 200), &[file.as_fd(); 200]));
        });
        // Handles ahead of a missing message count as well, for one ring or for many, as do pieces of memory. A
        // message's packet without content is invalid.
        for rings in [1, u64::MAX] {
            on_a_victim(|peer, channel| {
                flood(&peer, channel, 10_000, |n| peer.packet(&Packet::ahead(u128::from(n % rings), 200), &[file.as_fd(); 200]));
            });
        }
        on_a_victim(|peer, channel| {
            flood(&peer, channel, 10, |n| peer.packet(&Packet::handles(u128::from(n), n, 0), &[]));
        });
        let memory = self::file(1, SIZE_SEALS).unwrap();
        on_a_victim(|peer, channel| {
            flood(&peer, channel, 10_000, |n| peer.packet(&Packet::ring(u128::from(n), n), &[memory.as_fd()]));
        });
    }
}

attack! {
    /// The peer sends packets of every kind with any fields and any descriptors.
    a02_packets_of_every_kind_with_anything_in_them {
        let bystander = Bystander::new();
        let mut numbers = Numbers(11);
        let things: Vec<OwnedFd> = vec![
            file(4096, SIZE_SEALS).unwrap(), file(bitmap::BYTES, SIZE_SEALS).unwrap(), file(lane_size(128), SIZE_SEALS).unwrap(),
            immutable(&[1; 100]).unwrap(), file_with(b"x"), sockets().0, rustix::pipe::pipe().unwrap().0, file(512 * CELL, SIZE_SEALS).unwrap(),
        ];
        let census = Census::take();
        let begin = Instant::now();
        let mut victims = 0;
        while begin.elapsed() < Duration::from_secs(2) {
            victims += 1;
            let (ours, theirs) = sockets();
            let channel = Channel::over(theirs).unwrap();
            let mut peer = if numbers.below(4) == 0 { RawPeer::silent(ours, 1, 4).unwrap() } else { RawPeer::meet(ours).unwrap() };
            let set = WaitSet::new().unwrap();
            let _ = set.add(&channel, 0, Interest::Both, Mode::Level);
            for _ in 0..30 {
                let count = if numbers.below(3) == 0 { numbers.below(5) } else { 1 };
                let descriptors: Vec<BorrowedFd<'_>> = (0..count).map(|_| things[numbers.below(things.len())].as_fd()).collect();
                let claimed = if numbers.below(5) == 0 { numbers.nasty() as u32 } else { count as u32 };
                let magic = if numbers.below(2) == 0 { handshake::MAGIC | 1 } else { 0 };
                let token = [peer.token, peer.their_token, u128::from(numbers.nasty())][numbers.below(3)];
                let packet = Packet {
                    kind: numbers.below(wire::kind::END as usize + 1) as u32, descriptors: claimed, token,
                    fields: [numbers.nasty() >> numbers.below(64) | magic, numbers.nasty(), numbers.nasty()],
                };
                let mut bytes = packet.to_bytes().to_vec();
                match numbers.below(20) {
                    0 => bytes.truncate(1 + numbers.below(PACKET)),
                    1 => bytes.extend([0; 9]),
                    _ => {}
                }
                if peer.bytes(&bytes, &descriptors).is_err() {
                    break;
                }
                if numbers.below(3) == 0 {
                    let (kind, len) = (numbers.below(12) as u8, [0, 8, 16, 32, 60][numbers.below(5)]);
                    peer.writer.put(header(kind, len, numbers.below(3)) | (numbers.next() & 1) << 48, &numbers.nasty().to_le_bytes().repeat(8)[..len]);
                }
                let mut events = Vec::new();
                let _ = set.wait(&mut events, Deadline::NOW);
                if !use_in_every_way(&channel, &mut numbers) {
                    break;
                }
                let _ = peer.pump();
            }
        }
        eprintln!("{victims} victims");
        bystander.assert_undisturbed();
        census.assert_unchanged();
    }
}

attack! {
    /// The peer sends impossible handshakes, second ones, late ones, or handshakes of other versions.
    a32_handshakes_that_make_no_sense {
        on_a_victim(|_, _| {
            for versions in [[1, 1], [200, 255], [3, 9]] {
                let (ours, theirs) = sockets();
                let channel = Channel::over(theirs).unwrap();
                let mut peer = RawPeer::silent(ours, 1, 4).unwrap();
                peer.packet(&handshake::announce_with(0, versions), &[]).unwrap();
                let error = channel.try_recv().unwrap_err();
                assert!(matches!(error, Error::Refused(_)), "{error:?}");
                peer.pump().unwrap();
                assert!(peer.arrived.iter().any(|(packet, _)| packet.kind == wire::kind::REFUSE));
            }
            for versions in [[0, 0], [0, 1], [3, 2], [256, 0]] {
                let (ours, theirs) = sockets();
                let channel = Channel::over(theirs).unwrap();
                let peer = RawPeer::silent(ours, 1, 4).unwrap();
                peer.packet(&handshake::announce_with(0, versions), &[]).unwrap();
                bad_peer(channel.try_recv());
            }
            let (mut peer, channel) = meet();
            peer.packet(&handshake::announce(5), &[]).unwrap();
            assert_eq!(verdict(&mut peer, &channel), Some("a second handshake"));
            let (mut peer, channel) = meet();
            let ring = handshake::ring_memory(4).unwrap();
            peer.packet(&handshake::open(5, 4), &[ring.fd()]).unwrap();
            assert_eq!(verdict(&mut peer, &channel), Some("a second open packet"));
            let (ours, theirs) = sockets();
            let channel = Channel::over(theirs).unwrap();
            let peer = RawPeer::silent(ours, 1, 4).unwrap();
            peer.packet(&handshake::announce(1), &[]).unwrap();
            let open = handshake::open(1, 4);
            let newer = Packet { fields: [open.fields[0] + 1, open.fields[1], open.fields[2]], ..open };
            peer.packet(&newer, &[handshake::ring_memory(4).unwrap().fd()]).unwrap();
            assert_eq!(bad_peer(channel.try_recv()), "an open packet in a version that was not agreed on");
            let (mut peer, channel) = meet();
            let bitmap = file(bitmap::BYTES, SIZE_SEALS).unwrap();
            for _ in 0..2 {
                peer.packet(&Packet::bitmap(), &[bitmap.as_fd()]).unwrap();
            }
            assert_eq!(verdict(&mut peer, &channel), Some("a second ready bitmap"));
            // A connect request on a link that is open, and an accept packet without a connect request.
            let (mut peer, channel) = meet();
            peer.packet(&Packet { kind: wire::kind::CONNECT, fields: [handshake::MAGIC, 0, 0], ..Packet::default() }, &[]).unwrap();
            assert!(verdict(&mut peer, &channel).is_some());
            let (mut peer, channel) = meet();
            peer.packet(&Packet { kind: wire::kind::ACCEPT, ..Packet::default() }, &[]).unwrap();
            assert_eq!(verdict(&mut peer, &channel), None);
        });
    }
}
