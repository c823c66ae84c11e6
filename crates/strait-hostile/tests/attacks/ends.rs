//! Attacks on ends that move, lanes, arenas, introductions and handle tables.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::fs::SealFlags;
use strait::view::Value;
use strait::{Channel, Deadline, Error, Handle, Options, Outgoing};
use strait_hostile::layout::{Lane, Ring, Writer, transfer};
use strait_hostile::memory::{SIZE_SEALS, file};
use strait_hostile::peer::Arena;
use strait_hostile::record::{AN_END, Block, Name, header, kind, kind_of};
use strait_hostile::{Memory, Packet, RawPeer, Table};

use crate::common::*;

/// Sends the victim the end of side `side` of a lane, and returns the received end.
fn give_end(peer: &mut RawPeer, channel: &Channel, name: Name, side: u8, lane: &Lane) -> Channel {
    let table = Table::of(&[AN_END]).end(name, side, 0, 0);
    peer.send_ends(b"", 1, &table, std::slice::from_ref(lane)).unwrap();
    channel.try_recv().unwrap().take_handles().unwrap().remove(0).into_channel().unwrap()
}

/// Sends the victim both ends of a lane that the peer made for the victim with itself.
fn give_both_ends(peer: &mut RawPeer, channel: &Channel, arena: &Arena) -> (Channel, Channel) {
    let lane = arena.lane(0);
    let one = give_end(peer, channel, arena.name(0), 0, &lane);
    (one, give_end(peer, channel, arena.name(0), 1, &lane))
}

/// Has the victim fail to send an end over a channel, because the peer has written to the ring. Returns the end.
fn fail_to_send(ring: &Ring, over: &Channel, end: Channel) -> Channel {
    ring.header(0).store(header(kind::MESSAGE, 0, 0), SeqCst);
    let failed = over.try_send(Outgoing::new(b"").handle(end)).unwrap_err();
    bad_peer(Err::<(), _>(failed.error));
    failed.handles.into_iter().next().unwrap().into_channel().unwrap()
}

/// Returns the first lane of the arena that the victim announced last.
fn first_lane_made(peer: &mut RawPeer) -> Lane {
    peer.pump().unwrap();
    let (_, mut memory) = peer.arrived.pop_back().unwrap();
    Lane::new(&Arc::new(Memory::map(memory.remove(0)).unwrap()), 0, 4)
}

/// Returns the name of the lane in the mark of this lane.
fn mark_in(lane: &Lane) -> Name {
    let mark = [0, 1].into_iter().find_map(|side| {
        let header = lane.ring(side).header(0).load(SeqCst);
        (kind_of(header) == kind::MOVED).then(|| lane.ring(side).read(0, 16))
    });
    Name::from_bytes(mark.unwrap().try_into().unwrap())
}

attack! {
    /// The maker of the memory of a channel within the victim chooses the names of rings there. A chosen name may
    /// equal that of a ring of one of the victim's own channels, but must not lead to that ring.
    a33_names_of_rings_that_are_another_channels {
        on_a_victim(|mut peer, channel| {
            let (a, b) = Channel::pair().unwrap();
            a.send(Outgoing::new(b"private").handle(file_with(b"secret"))).unwrap();
            let mut stolen = Vec::new();
            for number in 1..4u64 {
                // A process numbers the arenas of its own channels from 1.
                let token = u128::from(number) << 72;
                let arena = Arena::new(number, token, 4, 4).unwrap();
                peer.packet(&arena.packet(1), &[arena.memory.fd()]).unwrap();
                let (_zero, one) = give_both_ends(&mut peer, &channel, &arena);
                Writer::new(arena.lane(0).ring(0)).put(header(kind::MESSAGE, 0, 1), b"");
                stolen.push(one.try_recv().map(|message| message.bytes().len()).map_err(|error| bad_peer::<()>(Err(error))));
            }
            let mut message = b.try_recv().unwrap();
            assert_eq!(content_of(message.take_handles().unwrap().remove(0)), b"secret");
            assert!(stolen.iter().all(Result::is_err), "{stolen:?}");
        });
    }
}

attack! {
    /// The peer writes that the ring of a channel within the victim continues in a larger ring, which the peer never
    /// sent. The record must not lead to a ring of another of the victim's channels.
    a33_rings_that_are_another_channels {
        on_a_victim(|mut peer, channel| {
            let (a, b) = Channel::pair().unwrap();
            for n in 0..100u8 {
                a.try_send(&[n; 40]).unwrap();
            }
            for number in 1..4u64 {
                let arena = Arena::new(number, u128::from(number) << 72, 4, 4).unwrap();
                peer.packet(&arena.packet(1), &[arena.memory.fd()]).unwrap();
                let (_zero, one) = give_both_ends(&mut peer, &channel, &arena);
                Writer::new(arena.lane(0).ring(0)).put(header(kind::NEXT, 8, 0), &1u64.to_le_bytes());
                bad_peer(one.try_recv());
            }
            for n in 0..100u8 {
                assert_eq!(b.try_recv().unwrap().bytes(), [n; 40]);
            }
        });
    }
}

/// A value that counts its drops.
struct Secret(Arc<AtomicUsize>);

impl Value for Secret {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (b"secret".to_vec(), Vec::new())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

attack! {
    /// The peer names values that the victim sent to itself, over a link and in the memory of another channel within
    /// the victim. The peer must not get these values.
    a33_values_of_other_channels {
        on_a_victim(|mut peer, channel| {
            let count = Arc::new(AtomicUsize::new(0));
            let (a, b) = Channel::pair().unwrap();
            a.send_value(Secret(count.clone()), Deadline::NOW).unwrap();
            for number in 1..4u64 {
                let arena = Arena::new(number, u128::from(number) << 72, 4, 4).unwrap();
                peer.packet(&arena.packet(1), &[arena.memory.fd()]).unwrap();
                let (_zero, one) = give_both_ends(&mut peer, &channel, &arena);
                Writer::new(arena.lane(0).ring(0)).put(header(kind::MESSAGE, 0, 1), b"");
                bad_peer(one.try_recv());
            }
            peer.writer.put(header(kind::MESSAGE, 0, 1), b"");
            bad_peer(channel.try_recv());
            assert!(b.try_recv().unwrap().take_value::<Secret>().is_some());
            assert_eq!(count.load(SeqCst), 1);
        });
    }
}

attack! {
    /// The victim sends a value through memory made by the peer. The peer writes the record of the value a second
    /// time, changes its kind, or gives it bytes.
    a33_values_in_the_peers_own_memory {
        let headers = [
            header(kind::MESSAGE, 0, 1), header(kind::MESSAGE, 40, 1), header(kind::MESSAGE, 0, 0), header(kind::MESSAGE, 0, 2),
            header(kind::MESSAGE, 0, 64), header(kind::BLOCK, 32, 1), header(kind::SEALED, 8, 1), header(kind::PACK, 0, 1),
            header(kind::TABLE, 0, 1), header(kind::PREPENDED, 8, 1), header(kind::MESSAGE, 0, 1) | 1 << 48, header(kind::PAD, 56, 1),
        ];
        for first in headers {
            for by in 0..3 {
                on_a_victim(|mut peer, channel| {
                    let count = Arc::new(AtomicUsize::new(0));
                    let arena = peer.announce(1, 4, 16, 1).unwrap();
                    let (zero, one) = give_both_ends(&mut peer, &channel, &arena);
                    zero.send_value(Secret(count.clone()), Deadline::NOW).unwrap();
                    let ring = arena.lane(0).ring(0);
                    ring.header(2).store(0, SeqCst);
                    ring.header(1).store(header(kind::MESSAGE, 0, 1), SeqCst);
                    ring.header(0).store(first, SeqCst);
                    let mut taken = 0;
                    let mut buffer = [0; 100];
                    for _ in 0..3 {
                        match by {
                            0 => {
                                let Ok(mut message) = one.try_recv() else { break };
                                let is_value = message.is_value::<Secret>();
                                if message.take_value::<Secret>().is_some() {
                                    assert!(message.bytes().is_empty() && message.handles().is_empty());
                                }
                                taken += usize::from(is_value);
                            }
                            1 => {
                                let Ok(received) = one.recv_into(&mut buffer, Deadline::NOW) else { break };
                                taken += usize::from(buffer[..received.len()] == *b"secret");
                            }
                            _ => {
                                let Ok(view) = one.recv_in_place(Deadline::NOW) else { break };
                                taken += usize::from(view.len() == 6);
                            }
                        }
                    }
                    let as_it_was = [header(kind::MESSAGE, 0, 1), header(kind::MESSAGE, 40, 1)].contains(&first);
                    assert!(taken == usize::from(as_it_was), "{first:#x} by way {by}: {taken}");
                    drop((zero, one));
                    // The value is dropped once, perhaps only in a later operation.
                    drop(Channel::pair().unwrap());
                    assert_eq!(count.load(SeqCst), 1, "{first:#x} by way {by}");
                });
            }
        }
    }
}

attack! {
    /// The socket of a link holds another link, whose socket holds a third link, and so on. Closing the first link
    /// must not recurse on the stack.
    a15_links_within_links_without_end {
        on_a_victim(|peer, channel| {
            const DEPTH: u64 = 4_000;
            let (_, mut inner) = sockets();
            for number in 0..DEPTH {
                let (ours, theirs) = sockets();
                let sent = strait_hostile::wire::send(&ours, &Packet::introduce(number).to_bytes(), &[inner.as_fd()]);
                assert!(sent.unwrap());
                inner = theirs;
            }
            peer.packet(&Packet::introduce(DEPTH), &[inner.as_fd()]).unwrap();
            drop(inner);
            // The closes may take as long as an attack: each of the first thousand closed links arms all the others
            // once more, with some 300,000 system calls.
            drop(channel);
        });
    }
}

attack! {
    /// The peer sends one side of a lane twice. Two such ends would write to the same memory.
    a04_an_end_that_is_sent_twice {
        on_a_victim(|mut peer, channel| {
            let arena = peer.announce(1, 4, 16, 0).unwrap();
            let table = Table::of(&[AN_END, AN_END]).end(arena.name(0), 0, 0, 0).end(arena.name(0), 0, 0, 0);
            peer.send_ends(b"twice", 2, &table, &[arena.lane(0)]).unwrap();
            bad_peer(channel.try_recv());
        });
        on_a_victim(|mut peer, channel| {
            let arena = peer.announce(1, 4, 16, 0).unwrap();
            let first = give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0));
            let mut room = first.reserve(40, Deadline::NOW).unwrap();
            let table = Table::of(&[AN_END]).end(Name { usage: 1, ..arena.name(0) }, 0, 0, 0);
            peer.send_ends(b"again", 1, &table, &[arena.lane(0)]).unwrap();
            bad_peer(channel.try_recv());
            room.as_uninit_mut()[0].write(1);
        });
        // Once the end was closed, another end may arrive with another use of the lane slot.
        on_a_victim(|mut peer, channel| {
            let arena = peer.announce(1, 4, 16, 0).unwrap();
            for usage in 0..3 {
                let name = Name { usage, ..arena.name(0) };
                drop(give_end(&mut peer, &channel, name, 0, &arena.lane(0)));
                assert_eq!(arena.lane(0).done(0).swap(0, SeqCst), 1);
                arena.lane(0).ring(0).header(0).store(0, SeqCst);
                arena.lane(0).ring(1).header(0).store(0, SeqCst);
                arena.lane(0).transfer().store(transfer::PENDING, SeqCst);
            }
        });
    }
}

attack! {
    /// The peer sends one of two ends and claims that both are in the victim. The end leaves its lane slot in a fuse,
    /// and is sent again. The record of where the first end went must not stay for ever, though no process will ask
    /// for it.
    a04_an_end_that_comes_again_after_it_has_left {
        on_a_victim(|mut peer, channel| {
            let arena = peer.announce(1, 8, 4, 1).unwrap();
            let (one, other) = Channel::pair().unwrap();
            channel.try_send(Outgoing::new(b"away").handle(one)).unwrap();
            let table = Table::of(&[AN_END]).end(arena.name(3), 1, 0, 1).message(b"kept", 0, &[]);
            peer.send_ends(b"end", 1, &table, &[arena.lane(3)]).unwrap();
            let end = channel.try_recv().unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
            let table = Table::of(&[AN_END]).end(arena.name(3), 1, 3, 0);
            peer.send_ends(b"again", 1, &table, &[arena.lane(3)]).unwrap();
            other.fuse(end, Deadline::NOW).unwrap();
            let again = channel.try_recv();
            if let Ok(mut message) = again {
                for handle in message.take_handles().unwrap() {
                    let _ = handle.into_channel().unwrap().rehome(Deadline::NOW);
                }
            } else {
                bad_peer(again);
            }
        });
    }
}

attack! {
    /// The peer announces an arena again. In the lane of the first announcement is a message from the victim with an
    /// end, to another end that never came. The victim closes the end in the message. The peer has written that this
    /// end continues in a lane, and the victim looks for that lane over the link from which it is just receiving.
    a15_an_arena_that_is_announced_again_while_a_message_with_an_end_lies_there {
        on_a_victim(|mut peer, channel| {
            for moved in [false, true] {
                let number = u64::from(moved) * 2;
                let lanes = peer.announce(number + 2, 4, 16, 0).unwrap();
                let lane = lanes.lane(0);
                let inner = give_end(&mut peer, &channel, lanes.name(0), 0, &lane);
                let within = peer.announce(number + 1, 4, 16, 1).unwrap();
                let one = give_end(&mut peer, &channel, within.name(0), 0, &within.lane(0));
                one.try_send(Outgoing::new(b"to nobody").handle(inner)).unwrap();
                let nowhere = Name { arena: 1000, ..lanes.name(1) };
                lane.transfer().store(transfer::HANDED_OVER, SeqCst);
                if moved {
                    Writer::new(lane.ring(1)).put(header(kind::MOVED, 16, 0), &nowhere.to_bytes());
                } else {
                    lane.ring(0).set_forward(nowhere.to_words());
                    lane.ring(0).header(0).store(header(kind::FROZEN, 0, 0), SeqCst);
                }
                peer.announce(number + 1, 4, 16, 1).unwrap();
                let received = in_time("receiving while an arena is announced again", || channel.try_recv());
                match received {
                    Err(Error::WouldBlock) => {}
                    other => {
                        bad_peer(other);
                    }
                }
            }
        });
    }
}

attack! {
    /// The memory of rings is charged to the peer while the memory is mapped, and no longer.
    a21_the_memory_of_rings_counts_as_long_as_they_are_there {
        on_a_victim_with(&Options::new().peer_memory(1 << 20), |mut peer, channel| {
            let arena = peer.announce(1, 64, 4, 0).unwrap();
            for slot in 0..40 {
                let lane = arena.lane(slot);
                let end = give_end(&mut peer, &channel, arena.name(slot), 0, &lane);
                let mut writer = Writer::new(lane.ring(1));
                for generation in 1..3u64 {
                    let cells = std::sync::Arc::new(Memory::create(65_536 << generation).unwrap());
                    peer.packet(&Packet::ring(arena.token(slot, 1), generation), &[cells.fd()]).unwrap();
                    writer.put(header(kind::NEXT, 8, 0), &generation.to_le_bytes());
                    writer.go_on_in(&cells);
                }
                writer.put(header(kind::MESSAGE, 4, 0), b"here");
                assert_eq!(end.try_recv().unwrap().bytes(), b"here");
            }
        });
    }
}

attack! {
    /// The memory of blocks is charged to the peer while the memory is mapped, and no longer.
    a21_the_memory_of_blocks_counts_as_long_as_they_are_there {
        on_a_victim_with(&Options::new().peer_memory(1 << 20), |mut peer, channel| {
            let arena = peer.announce(1, 64, 4, 0).unwrap();
            for slot in 0..40 {
                let lane = arena.lane(slot);
                let end = give_end(&mut peer, &channel, arena.name(slot), 0, &lane);
                let memory = Memory::create(100_000).unwrap();
                peer.packet(&Packet::block(arena.token(slot, 1), 5, 0, 0), &[memory.fd()]).unwrap();
                let block = Block { id: 5, usage: 1, len: 7, once: 0 };
                Writer::new(lane.ring(1)).put(header(kind::BLOCK, 32, 0), &block.to_bytes());
                assert_eq!(end.try_recv().unwrap().bytes(), [0; 7]);
            }
        });
    }
}

attack! {
    /// The charge for a block with an unreceivable message is released once. A second release would raise the limit.
    a21_memory_is_given_back_once {
        on_a_victim_with(&Options::new().peer_memory(1 << 20), |mut peer, channel| {
            let arena = peer.announce(1, 64, 4, 0).unwrap();
            for slot in 0..40 {
                let lane = arena.lane(slot);
                let end = give_end(&mut peer, &channel, arena.name(slot), 0, &lane);
                let memory = Memory::create(500_000).unwrap();
                peer.packet(&Packet::block(arena.token(slot, 1), 5, 0, 0), &[memory.fd()]).unwrap();
                let block = Block { id: 5, usage: 1, len: 7, once: 0 };
                Writer::new(lane.ring(1)).put(header(kind::BLOCK, 32, 1), &block.to_bytes());
                bad_peer(end.try_recv());
            }
            peer.send_block(1, &[0; 1 << 20]).unwrap();
            assert!(matches!(channel.try_recv(), Err(Error::LimitReached(_) | Error::BadPeer(_))));
        });
    }
}

attack! {
    /// The peer sends a table of tens of millions of messages without bytes.
    a21_a_table_of_very_many_messages {
        on_a_victim(|mut peer, channel| {
            const MESSAGES: usize = 12_000_000;
            let arena = peer.announce(1, 4, 4, 0).unwrap();
            let mut table = Table::of(&[AN_END]).end(arena.name(0), 0, 0, MESSAGES as u32).0;
            table.resize(table.len() + 17 * MESSAGES, 0);
            // The victim holds the table twice, and no more.
            let limit = table.len() as u64 * 3;
            peer.put_long_table(b"", 1, &Table(table)).unwrap();
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = statm.split_whitespace().next().unwrap().parse().unwrap();
            rustix::process::setrlimit(
                rustix::process::Resource::As,
                rustix::process::Rlimit { current: Some(pages * 4096 + limit), maximum: None },
            ).unwrap();
            let error = channel.try_recv().unwrap_err();
            assert!(matches!(error, Error::BadPeer(_) | Error::NoMemory { .. }), "{error:?}");
        });
    }
}

attack! {
    /// The victim closes an end with a very long backlog while more messages arrive. Each drop of a message of the
    /// backlog needs system calls.
    a04_an_end_that_is_slow_to_close {
        on_a_victim(|mut peer, channel| {
            const CELLS: usize = 1 << 20;
            const EACH: usize = 200;
            peer.grow(CELLS).unwrap();
            for _ in 0..CELLS - 2 {
                peer.writer.put(header(kind::MESSAGE, 0, EACH), b"");
            }
            let (token, first) = (peer.token, 1);
            let socket = peer.socket.try_clone().unwrap();
            std::thread::spawn(move || {
                let file = file_with(b"x");
                let files = [file.as_fd(); EACH];
                let mut sequence = first;
                loop {
                    let packet = Packet::handles(token, sequence, EACH).to_bytes();
                    match strait_hostile::wire::send(&socket, &packet, &files) {
                        Ok(true) => sequence += 1,
                        Ok(false) => std::thread::yield_now(),
                        Err(_) => return,
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(50));
            let begin = std::time::Instant::now();
            drop(channel);
            eprintln!("closed in {:?}", begin.elapsed());
            assert!(begin.elapsed() < SOON);
        });
    }
}

attack! {
    /// Marks lead in a circle, in one direction or both, with a message in each lane or without.
    a04_marks_that_lead_in_a_circle {
        for (moved, frozen, messages) in [(true, false, 0), (false, true, 0), (true, true, 0), (true, false, 1)] {
            on_a_victim(|mut peer, channel| {
                let arena = peer.announce(1, 4, 4, 0).unwrap();
                let end = give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0));
                for slot in 0..3 {
                    let lane = arena.lane(slot);
                    let next = arena.name((slot + 1) % 3);
                    lane.transfer().store(transfer::HANDED_OVER, SeqCst);
                    if moved {
                        let mut writer = Writer::new(lane.ring(1));
                        for _ in 0..messages {
                            writer.put(header(kind::MESSAGE, 1, 0), b"m");
                        }
                        writer.put(header(kind::MOVED, 16, 0), &next.to_bytes());
                    }
                    if frozen {
                        lane.ring(0).set_forward(next.to_words());
                        lane.ring(0).header(0).store(header(kind::FROZEN, 0, 0), SeqCst);
                    }
                }
                in_time("sending and receiving", || {
                    let try_send = || end.try_send(b"x").map_err(Error::from);
                    if frozen {
                        let sent = (0..10).find_map(|_| times_blocked(try_send).1.err());
                        assert!(matches!(sent.unwrap(), Error::BadPeer(_)));
                    } else {
                        (0..10).for_each(|_| {
                            let _ = try_send();
                        });
                    }
                    if moved {
                        let mut received = 0;
                        let error = loop {
                            match times_blocked(|| end.try_recv()).1 {
                                Ok(_) => received += 1,
                                Err(error) => break error,
                            }
                            assert!(received < 1000, "the marks never end");
                        };
                        assert!(matches!(error, Error::BadPeer(_)), "{error:?}");
                    }
                });
                in_time("closing", || drop(end));
            });
        }
    }
}

attack! {
    /// The marks of very many empty lanes each lead to the next lane.
    a04_a_very_long_row_of_marks {
        on_a_victim(|mut peer, channel| {
            const LANES: u32 = 100_000;
            let arena = peer.announce(1, LANES, 4, 0).unwrap();
            let end = give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0));
            for slot in 0..LANES - 1 {
                let lane = arena.lane(slot);
                lane.transfer().store(transfer::HANDED_OVER, SeqCst);
                Writer::new(lane.ring(1)).put(header(kind::MOVED, 16, 0), &arena.name(slot + 1).to_bytes());
            }
            in_time("receiving", || assert_eq!(end.try_recv().unwrap_err(), Error::WouldBlock));
            in_time("receiving", || assert_eq!(end.recv_by(Duration::from_millis(5)).unwrap_err(), Error::TimedOut));
            in_time("closing", || drop(end));
            // The end is closed at once.
            let arena = peer.announce(2, LANES, 4, 0).unwrap();
            let end = give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0));
            for slot in 0..LANES - 1 {
                let lane = arena.lane(slot);
                lane.transfer().store(transfer::HANDED_OVER, SeqCst);
                Writer::new(lane.ring(1)).put(header(kind::MOVED, 16, 0), &arena.name(slot + 1).to_bytes());
            }
            in_time("closing", || drop(end));
        });
    }
}

/// Announces an arena with a chain of lanes: each lane says only that the end of side 0 continues in the next lane.
/// With `frozen`, the sending direction of the end finds the next lane; otherwise the receiving direction does.
fn row(peer: &RawPeer, number: u64, lanes: u32, frozen: bool) -> Arena {
    let arena = peer.announce(number, lanes, 4, 0).unwrap();
    for slot in 0..lanes - 1 {
        let lane = arena.lane(slot);
        lane.transfer().store(transfer::HANDED_OVER, SeqCst);
        if frozen {
            lane.ring(0).set_forward(arena.name(slot + 1).to_words());
            lane.ring(0).header(0).store(header(kind::FROZEN, 0, 0), SeqCst);
        } else {
            Writer::new(lane.ring(1)).put(header(kind::MOVED, 16, 0), &arena.name(slot + 1).to_bytes());
        }
    }
    arena.lane(lanes - 1).transfer().store(transfer::HANDED_OVER, SeqCst);
    arena
}

/// Returns whether the victim has closed its end in this lane, in the direction in which the end came there.
fn is_closed(lane: &Lane, frozen: bool) -> bool {
    kind_of(lane.ring(usize::from(!frozen)).header(0).load(SeqCst)) == kind::CLOSED
}

/// Waits until the victim has closed its end in this lane.
fn wait_until_closed(lane: &Lane, frozen: bool) {
    in_time("closing the end", || {
        while !is_closed(lane, frozen) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

attack! {
    /// An end in the first of very many lanes is dropped. The dropping thread follows a small part of the chain;
    /// still, the peer finds the end closed in the last lane.
    a04_a_row_of_lanes_does_not_hold_up_who_drops_the_end {
        on_a_victim(|mut peer, channel| {
            const LANES: u32 = 100_000;
            for (number, frozen) in [(1, false), (2, true)] {
                let arena = row(&peer, number, LANES, frozen);
                let end = give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0));
                let (of_process, of_thread) = (process_time(), thread_time());
                drop(end);
                let dropping = thread_time() - of_thread;
                wait_until_closed(&arena.lane(LANES - 1), frozen);
                let all = process_time() - of_process;
                assert!(dropping < all / 4, "{dropping:?} of {all:?}");
            }
        });
    }
}

attack! {
    /// A dropped end leaves each lane of a chain when it moves to the next lane. If the end left all lanes at once,
    /// it would hold much memory for a long chain, and one round of the deferred close would do all the work of
    /// leaving.
    a04_a_dropped_end_leaves_a_row_of_lanes_one_by_one {
        on_a_victim(|mut peer, channel| {
            const LANES: u32 = 100_000;
            let arena = row(&peer, 1, LANES, false);
            drop(give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0)));
            let last = arena.lane(LANES - 1);
            in_time("leaving half of the lanes", || {
                loop {
                    let is_closed = is_closed(&last, false);
                    if arena.lane(LANES / 2).done(0).load(SeqCst) == 1 {
                        break;
                    }
                    assert!(!is_closed, "the end is closed, and has left no lane");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            wait_until_closed(&last, false);
        });
    }
}

/// Returns the processor time of the thread with this name, and the time for which the thread has waited for a
/// processor. `None` if there is no such thread.
fn times_of(name: &str) -> Option<(Duration, Duration)> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let read = |thread: &Path, file: &str| std::fs::read_to_string(thread.join(file)).unwrap_or_default();
    let thread = threads.flatten().map(|entry| entry.path()).find(|thread| read(thread, "comm").trim() == name)?;
    let times = read(&thread, "schedstat");
    let mut times = times.split(' ').map(|word| word.parse().map_or(Duration::ZERO, Duration::from_nanos));
    Some((times.next()?, times.next()?))
}

attack! {
    /// A peer that sent its handshake without credentials makes a chain of lanes, and hangs up. The victim cannot
    /// tell whether the peer's process is dead. So the victim follows the chain as slowly as that of a living peer.
    a04_a_nameless_peer_that_hangs_up_costs_no_more_processor_time {
        let (ours, theirs) = sockets();
        // The kernel attaches no credentials to the handshake.
        rustix::net::sockopt::set_socket_passcred(&ours, false).unwrap();
        rustix::net::sockopt::set_socket_passcred(&theirs, false).unwrap();
        let mut peer = RawPeer::meet(ours).unwrap();
        let channel = Channel::over(theirs).unwrap();
        peer.pump().unwrap();
        const LANES: u32 = 100_000;
        let arena = row(&peer, 1, LANES, true);
        let end = give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0));
        assert_eq!(channel.peer().unwrap().and_then(|peer| peer.pid), None);
        drop(peer);
        drop(end);
        let (begin, mut times) = (Instant::now(), (Duration::ZERO, Duration::ZERO));
        in_time("closing the end", || {
            while !is_closed(&arena.lane(LANES - 1), true) {
                times = times_of("strait-unclosed").unwrap_or(times);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let (used, delayed) = times;
        let took = begin.elapsed().saturating_sub(delayed);
        assert!(took > 2 * used, "{used:?} of {took:?}");
    }
}

/// Repeats a call while it returns *would block*. Returns the number of repeated calls, and the last result.
fn times_blocked<T>(mut call: impl FnMut() -> Result<T, Error>) -> (usize, Result<T, Error>) {
    let mut times = 0;
    loop {
        match call() {
            Err(Error::WouldBlock) => times += 1,
            done => return (times, done),
        }
        assert!(times < 100_000, "the call never ends");
    }
}

attack! {
    /// A call without a wait follows a thousand lanes at most, and the next call continues there. A call that waits
    /// follows all lanes.
    a04_a_row_of_lanes_is_followed_a_thousand_at_a_time {
        on_a_victim(|mut peer, channel| {
            const LANES: u32 = 5000;
            for number in 1..=4 {
                let (sends, waits) = (number % 2 == 0, number > 2);
                let arena = peer.announce(number, LANES, 4, 0).unwrap();
                let end = give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0));
                for slot in 0..LANES - 1 {
                    let lane = arena.lane(slot);
                    let next = arena.name(slot + 1);
                    lane.transfer().store(transfer::HANDED_OVER, SeqCst);
                    if sends {
                        lane.ring(0).set_forward(next.to_words());
                        lane.ring(0).header(0).store(header(kind::FROZEN, 0, 0), SeqCst);
                    } else {
                        Writer::new(lane.ring(1)).put(header(kind::MOVED, 16, 0), &next.to_bytes());
                    }
                }
                let last = arena.lane(LANES - 1);
                last.transfer().store(transfer::HANDED_OVER, SeqCst);
                let mut writer = Writer::new(last.ring(1));
                writer.put(header(kind::MESSAGE, 1, 0), b"m");
                let deadline = || if waits { Deadline::after(Duration::from_secs(30)) } else { Deadline::NOW };
                let (times, done) = times_blocked(|| match sends {
                    true => end.send_by(b"x", deadline()).map_err(Error::from),
                    false => end.recv_by(deadline()).map(drop),
                });
                done.unwrap();
                assert!(if waits { times == 0 } else { (4..6).contains(&times) }, "{times} times");
            }
        });
    }
}

attack! {
    /// An end whose other end moves again and again is sent: a call without a wait follows a thousand lanes at most.
    a04_an_end_in_a_row_of_lanes_is_sent {
        on_a_victim(|mut peer, channel| {
            const LANES: u32 = 5000;
            let arena = peer.announce(1, LANES, 4, 0).unwrap();
            let mut end = Some(give_end(&mut peer, &channel, arena.name(0), 1, &arena.lane(0)));
            for slot in 0..LANES - 1 {
                let lane = arena.lane(slot);
                lane.transfer().store(transfer::HANDED_OVER, SeqCst);
                Writer::new(lane.ring(0)).put(header(kind::MOVED, 16, 0), &arena.name(slot + 1).to_bytes());
            }
            arena.lane(LANES - 1).transfer().store(transfer::HANDED_OVER, SeqCst);
            let (times, sent) = times_blocked(|| {
                channel.try_send(Outgoing::new(b"").handle(end.take().unwrap())).map_err(|mut failed| {
                    end = failed.handles.pop().and_then(Handle::into_channel);
                    failed.error
                })
            });
            sent.unwrap();
            assert!((4..6).contains(&times), "{times} times");
        });
    }
}

attack! {
    /// At every step, the peer writes to the transfer word and the other words about the owner of an end.
    a04_hands_that_say_anything {
        on_a_victim(|mut peer, channel| {
            let mut numbers = Numbers(21);
            for number in 1..400u64 {
                let arena = peer.announce(number, 3, 4, 0).unwrap();
                let lane = arena.lane(0);
                let scribble = |numbers: &mut Numbers| {
                    for slot in 0..3 {
                        let lane = arena.lane(slot);
                        match numbers.below(3) {
                            0 => lane.transfer().store(numbers.below(7) as u32, SeqCst),
                            1 => lane.transfer().store(numbers.nasty() as u32, SeqCst),
                            _ => lane.moving().store(numbers.below(4) as u32, SeqCst),
                        }
                        lane.done(numbers.below(2)).store(numbers.below(3) as u32, SeqCst);
                    }
                };
                scribble(&mut numbers);
                let end = give_end(&mut peer, &channel, arena.name(0), 0, &lane);
                let mut writer = Writer::new(lane.ring(1));
                for _ in 0..6 {
                    scribble(&mut numbers);
                    match numbers.below(6) {
                        0 => writer.put(header(kind::MESSAGE, 1, 0), b"m"),
                        1 => {
                            writer.put(header(kind::MOVED, 16, 0), &arena.name(1).to_bytes());
                            writer = Writer::new(arena.lane(1).ring(1));
                        }
                        2 => {
                            lane.ring(0).set_forward(arena.name(1 + numbers.below(2) as u32).to_words());
                            let _ = lane.ring(0).header(0).compare_exchange(0, header(kind::FROZEN, 0, 0), SeqCst, SeqCst);
                        }
                        _ => {}
                    }
                    in_time("using it", || {
                        let errors = [end.try_send(b"x").map_err(Error::from).err(), end.recv_by(Duration::from_micros(200)).err(), end.rehome(Duration::from_micros(200)).err()];
                        for error in errors.into_iter().flatten() {
                            assert!(matches!(error, Error::WouldBlock | Error::TimedOut | Error::PeerClosed | Error::BadPeer(_)), "{error:?}");
                        }
                    });
                }
                // The end is sent back, whatever the state of its transfer, or closed.
                let back = channel.send_by(Outgoing::new(b"back").handle(end), Duration::from_millis(2));
                drop(back);
                let _ = peer.pump();
                while let Ok(Some(_)) = peer.try_recv() {}
            }
            channel.try_send(b"still here").unwrap();
        });
    }
}

attack! {
    /// The source never hands an end over. A call that sends the end to a third process waits until its deadline.
    a04_an_end_that_is_never_handed_over {
        on_a_victim(|mut peer, channel| {
            let arena = peer.announce(1, 4, 4, 0).unwrap();
            let end = give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0));
            Writer::new(arena.lane(0).ring(1)).put(header(kind::MOVED, 16, 0), &arena.name(1).to_bytes());
            arena.lane(0).ring(0).set_forward(arena.name(1).to_words());
            arena.lane(0).ring(0).header(0).store(header(kind::FROZEN, 0, 0), SeqCst);
            assert_eq!(end.try_recv().unwrap_err(), Error::WouldBlock);
            in_time("waiting", || assert_eq!(end.recv_by(Duration::from_millis(30)).unwrap_err(), Error::TimedOut));
            in_time("sending", || end.try_send(b"x").unwrap());
            in_time("sending", || assert!(end.try_send(Outgoing::new(b"x").handle(file_with(b"x"))).is_err()));
            let failed = in_time("sending it", || channel.send_by(Outgoing::new(b"").handle(end), Duration::from_millis(30)).unwrap_err());
            assert_eq!(failed.error, Error::TimedOut);
            in_time("closing", || drop(failed));
        });
    }
}

attack! {
    /// Both ends of a channel are in the victim, in memory of the peer. One end moves into other memory, but the peer
    /// has overwritten the mark, so the other end cannot follow in one direction or in both. Messages for an
    /// unreachable end are dropped with their handles, whether sent before or after.
    a11_an_end_whose_way_to_the_other_is_cut_off {
        for follows in [false, true] {
            on_a_victim(|mut peer, channel| {
                let arena = peer.announce(1, 4, 16, 1).unwrap();
                let (one, other) = give_both_ends(&mut peer, &channel, &arena);
                one.rehome(Deadline::NOW).unwrap();
                arena.lane(0).ring(0).header(0).store(header(kind::MOVED, 8, 0), SeqCst);
                let send = || {
                    let (inner, sent) = Channel::pair().unwrap();
                    one.try_send(Outgoing::new(b"").handle(sent)).map(|()| inner)
                };
                let before = send().unwrap();
                bad_peer(other.try_recv());
                if !follows {
                    arena.lane(0).ring(1).set_forward(arena.name(3).to_words());
                }
                drop(other);
                assert_eq!(before.try_recv().map(drop), Err(Error::PeerClosed));
                let after = send();
                assert_eq!(after.is_err(), follows);
                drop(one);
                if let Ok(inner) = after {
                    assert_eq!(inner.try_recv().map(drop), Err(Error::PeerClosed));
                }
            });
        }
    }
}

attack! {
    /// Two sends of an end failed, so the end continued in memory shared with the peer, and then in other such
    /// memory. The peer writes that the end was handed over, and announces memory for the lane in the mark. The other
    /// end then continues in that lane, and not in the successor that this process stored for it. Nothing of the
    /// stored successor may be left.
    a11_an_end_that_is_led_elsewhere {
        on_a_victim(|mut peer, channel| {
            let (one, other) = Channel::pair().unwrap();
            let carrier = peer.announce(1 << 40, 1, 16, 0).unwrap();
            let carrier_ring = carrier.lane(0).ring(0);
            let carrier = give_end(&mut peer, &channel, carrier.name(0), 0, &carrier.lane(0));
            let one = fail_to_send(&carrier_ring, &carrier, one);
            let lane = first_lane_made(&mut peer);
            assert_eq!(lane.transfer().load(SeqCst), transfer::CANCELLED);
            let one = fail_to_send(&peer.reader.as_ref().unwrap().ring, &channel, one);
            let name = mark_in(&lane);
            lane.transfer().store(transfer::HANDED_OVER, SeqCst);
            peer.announce(name.arena, name.slot + 1, 4, 0).unwrap();
            assert_eq!(other.try_recv().unwrap_err(), Error::WouldBlock);
            drop((one, other));
        });
    }
}

attack! {
    /// Two sends of an end failed, so the end is two lanes ahead of the other end, which the peer led elsewhere. The
    /// other end is closed, and only then the first end continues. Its stored successor needs the link that holds the
    /// memory of the lane: this cycle must not keep the link.
    a11_an_end_that_goes_on_when_the_other_was_led_elsewhere {
        on_a_victim(|mut peer, channel| {
            let (one, other) = Channel::pair().unwrap();
            let arena = peer.announce(1 << 40, 2, 16, 0).unwrap();
            let carriers = [0, 1].map(|slot| give_end(&mut peer, &channel, arena.name(slot), 0, &arena.lane(slot)));
            let one = fail_to_send(&arena.lane(0).ring(0), &carriers[0], one);
            let lane = first_lane_made(&mut peer);
            let one = fail_to_send(&arena.lane(1).ring(0), &carriers[1], one);
            let name = mark_in(&lane);
            lane.transfer().store(transfer::HANDED_OVER, SeqCst);
            peer.announce(name.arena, name.slot + 1, 4, 0).unwrap();
            assert_eq!(other.try_recv().unwrap_err(), Error::WouldBlock);
            drop(other);
            channel.try_send(Outgoing::new(b"").handle(one)).unwrap();
        });
    }
}

attack! {
    /// An end was sent, and the peer writes that the transfer was cancelled, so the other end takes the sent end to
    /// be in this process. Messages to that end use the link that holds the memory of the lane: this cycle must not
    /// keep the link.
    a11_an_end_that_was_sent_and_is_said_to_be_here {
        for goes_on in [false, true] {
            on_a_victim(|mut peer, channel| {
                let (one, other) = Channel::pair().unwrap();
                let carried = {
                    let arena = peer.announce(1 << 40, 1, 16, 0).unwrap();
                    give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0))
                };
                channel.try_send(Outgoing::new(b"").handle(one)).unwrap();
                let lane = first_lane_made(&mut peer);
                assert_eq!(lane.transfer().load(SeqCst), transfer::HANDED_OVER);
                lane.transfer().store(transfer::CANCELLED, SeqCst);
                if goes_on {
                    channel.try_send(Outgoing::new(b"").handle(other)).unwrap();
                } else {
                    other.try_send(Outgoing::new(b"").handle(carried)).unwrap();
                }
            });
        }
    }
}

attack! {
    /// An end that could not be sent continued in memory shared with the peer. There the peer writes that a message
    /// to the other end has no handle. The other end reads every message, and the handle must not stay behind.
    a11_a_handle_that_is_written_out_of_its_message {
        on_a_victim(|mut peer, channel| {
            let (one, other) = Channel::pair().unwrap();
            let arena = peer.announce(1 << 40, 2, 16, 0).unwrap();
            let [carrier, carried] = [0, 1].map(|slot| give_end(&mut peer, &channel, arena.name(slot), 0, &arena.lane(slot)));
            let one = fail_to_send(&arena.lane(0).ring(0), &carrier, one);
            let lane = first_lane_made(&mut peer);
            assert_eq!(other.try_recv().unwrap_err(), Error::WouldBlock);
            one.try_send(Outgoing::new(b"").handle(carried)).unwrap();
            for side in [0, 1] {
                if kind_of(lane.ring(side).header(0).load(SeqCst)) == kind::MESSAGE {
                    lane.ring(side).header(0).store(header(kind::MESSAGE, 0, 0), SeqCst);
                }
            }
            assert_eq!(other.try_recv().unwrap().take_handles().unwrap().len(), 0);
            drop(other);
            drop(one);
        });
    }
}

attack! {
    /// Unreachable ends hold further unreachable ends in their messages, again and again. Closing the first end
    /// closes all, without a recursion.
    a32_ends_whose_ways_are_cut_off_in_messages_of_such {
        on_a_victim(|mut peer, channel| {
            const DEPTH: u32 = 20_000;
            let arena = peer.announce(1, DEPTH, 4, 1).unwrap();
            let (innermost, mut inner) = Channel::pair().unwrap();
            for slot in 0..DEPTH {
                let lane = arena.lane(slot);
                let one = give_end(&mut peer, &channel, arena.name(slot), 0, &lane);
                let other = give_end(&mut peer, &channel, arena.name(slot), 1, &lane);
                one.rehome(Deadline::NOW).unwrap();
                lane.ring(0).header(0).store(header(kind::MOVED, 8, 0), SeqCst);
                lane.ring(1).set_forward(arena.name(0).to_words());
                drop(other);
                one.try_send(Outgoing::new(b"").handle(inner)).unwrap();
                inner = one;
            }
            in_time("closing", || drop(inner));
            assert_eq!(innermost.try_recv().map(drop), Err(Error::PeerClosed));
        });
    }
}

attack! {
    /// The peer sends tables that name missing ends, ends in other processes, and the ends of the channel that
    /// carries the table.
    a04_tables_that_make_no_sense {
        on_a_victim(|_, _| {
            let name = Name::new(1, 0);
            let end = || Table::of(&[AN_END]);
            let cut = |table: Table, by: usize| Table(table.0[..table.0.len() - by].to_vec());
            let long = |mut table: Table| { table.0.push(0); table };
            let tables = [
                Table::default(), Table(vec![1]), Table::of(&[]), Table::of(&[0]), Table::of(&[2]), Table::of(&[AN_END; 2]), Table(vec![255; 4]), Table(vec![255; 100]),
                end(), end().end(name, 2, 0, 0), end().end(name, 0, 4, 0), end().end(name, 0, 255, 0), end().end(name, 0, 0, 1), end().end(name, 0, 0, u32::MAX),
                end().end(Name::new(2, 0), 0, 0, 0), end().end(Name::new(1, 4), 0, 0, 0), end().end(Name::new(1, u32::MAX), 0, 0, 0), end().end(Name::new(u64::MAX, 0), 0, 0, 0),
                cut(end().end(name, 0, 0, 0), 1), cut(end().end(name, 0, 0, 0), 4), long(end().end(name, 0, 0, 0)),
                end().end(name, 0, 0, 1).message(b"m", 0, &[0]), end().end(name, 0, 0, 1).message(b"m", 0, &[AN_END]), end().end(name, 0, 0, 1).message(b"m", 0, &[7]),
                end().end(name, 0, 0, 1).message_in_memory(9, 0, &[]), cut(end().end(name, 0, 0, 1).message(b"long", 0, &[]), 9),
                // A message that claims to contain the end in whose backlog the message is.
                end().end(name, 0, 0, 1).message(b"m", 0, &[AN_END]).end(name, 0, 0, 0),
                end().end(name, 0, 0, 1).message(b"m", 0, &[AN_END]).end(name, 0, 0, 1).message(b"m", 0, &[AN_END]).end(name, 0, 0, 0),
            ];
            for (index, table) in tables.iter().enumerate() {
                for long in [false, true] {
                    let (mut peer, channel) = meet();
                    peer.announce(1, 4, 4, 0).unwrap();
                    if long && !table.0.is_empty() {
                        peer.put_long_table(b"", 1, table).unwrap();
                    } else {
                        peer.put_table(b"", 1, table).unwrap();
                    }
                    let result = channel.try_recv();
                    assert!(matches!(result, Err(Error::BadPeer(_))), "{index}: {:.200}", format!("{result:?}"));
                }
            }
            // An end that is sent over itself.
            let (mut peer, channel) = meet();
            let arena = peer.announce(1, 4, 64, 0).unwrap();
            let carrier = give_end(&mut peer, &channel, arena.name(0), 0, &arena.lane(0));
            let mut writer = Writer::new(arena.lane(0).ring(1));
            let table = end().end(arena.name(0), 0, 0, 0).0;
            writer.put(header(kind::TABLE, table.len(), 0), &table);
            writer.put(header(kind::MESSAGE, 0, 1) | 1 << 48, b"");
            bad_peer(carrier.try_recv());
            // Two tables in a row, without a message between them.
            let (mut peer, channel) = meet();
            peer.grow(1 << 14).unwrap();
            for _ in 0..10_000 {
                peer.writer.put(header(kind::TABLE, 4, 0), &[0; 4]);
            }
            assert_eq!(bad_peer(channel.try_recv()), "handle tables without their messages");
            // Tables in memory without pages. A copy of each table would need pages.
            let (mut peer, channel) = meet();
            let long = file(1 << 26, SIZE_SEALS | SealFlags::WRITE).unwrap();
            let mut error = Error::WouldBlock;
            for _ in 0..100 {
                peer.packet(&Packet::table(peer.token, peer.writer.sequence, 0), &[long.as_fd()]).unwrap();
                peer.writer.pad_for(0);
                peer.writer.put(header(kind::TABLE, 0, 1), b"");
                error = channel.try_recv().unwrap_err();
                if error != Error::WouldBlock {
                    break;
                }
            }
            assert!(matches!(error, Error::BadPeer(_)), "{error:?}");
        });
    }
}

attack! {
    /// The peer sends ends in messages of ends in messages, tens of thousands deep. The victim receives and closes
    /// them without a recursion.
    a32_ends_in_messages_of_ends_very_deep {
        on_a_victim(|mut peer, channel| {
            const DEPTH: u32 = 50_000;
            let arena = peer.announce(1, DEPTH, 4, 0).unwrap();
            let mut table = Table::of(&[AN_END]);
            for slot in 0..DEPTH {
                arena.lane(slot).transfer().store(transfer::HANDED_OVER, SeqCst);
                table = if slot + 1 < DEPTH {
                    table.end(arena.name(slot), 0, 0, 1).message(b"m", 0, &[AN_END])
                } else {
                    table.end(arena.name(slot), 0, 0, 0)
                };
            }
            peer.put_long_table(b"", 1, &table).unwrap();
            let message = in_time("receiving", || channel.try_recv().unwrap());
            in_time("closing", || drop(message));
            // More ends than a message may carry.
            const TOO_MANY: usize = (1 << 17) + 10;
            let arena = peer.announce(2, TOO_MANY as u32 + 1, 4, 0).unwrap();
            let mut table = Table::of(&[AN_END]).end(arena.name(0), 0, 0, 1).message(b"", 0, &vec![AN_END; TOO_MANY]);
            for slot in 0..TOO_MANY as u32 {
                table = table.end(arena.name(slot + 1), 0, 0, 0);
            }
            peer.put_long_table(b"", 1, &table).unwrap();
            bad_peer(in_time("receiving", || channel.try_recv()));
        });
    }
}

attack! {
    /// The peer sends announcements without end, with used numbers and with new numbers.
    a21_announcements_without_end {
        on_a_victim(|mut peer, channel| {
            let arena = Arena::new(0, 1, 1, 4).unwrap();
            let mut refused = None;
            for number in 0..200_000u64 {
                let packet = Packet::arena(1, number, 1, 4, number & 1);
                if peer.packet(&packet, &[arena.memory.fd()]).is_err() {
                    match channel.recv_by(Duration::from_millis(25)) {
                        Err(Error::TimedOut) => {}
                        result => {
                            refused = Some(bad_peer(result));
                            break;
                        }
                    }
                }
            }
            assert!(refused.is_some());
            let _ = peer.pump();
        });
        on_a_victim_with(&Options::new().peer_memory(1 << 20), |mut peer, channel| {
            // Announcements with a used number: each replaces the announcement before.
            for n in 0..2000 {
                let arena = Arena::new(7, 1, 4, 4).unwrap();
                if peer.packet(&arena.packet(0), &[arena.memory.fd()]).is_err() {
                    assert_eq!(channel.recv_by(Duration::from_millis(25)).unwrap_err(), Error::TimedOut, "{n}");
                }
            }
            assert_eq!(verdict(&mut peer, &channel), None);
        });
    }
}

attack! {
    /// The victim sends away an end whose other end is closed. Nothing of the link used for the move may be retained
    /// for the other end.
    a11_an_end_without_another_that_is_sent_away {
        on_a_victim(|mut peer, channel| {
            let (one, other) = Channel::pair().unwrap();
            drop(other);
            channel.try_send(Outgoing::new(b"").handle(one)).unwrap();
            assert!(peer.try_recv().unwrap().unwrap().table.is_some());
        });
    }
}
