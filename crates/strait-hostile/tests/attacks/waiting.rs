//! Attacks on sleeping and waking: peers that keep the victim busy, and peers that do nothing at all.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::thread::futex;
use strait::call::CallEnd;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Options, Wait};
use strait_hostile::layout::{Reader, Writer, bitmap};
use strait_hostile::record::{AN_END, header, kind};
use strait_hostile::{Packet, RawPeer, Table, wire};

use crate::common::*;

/// Runs an attacker that repeats one step as long as `play` lasts.
fn while_somebody<T>(again: impl Fn() + Sync, play: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                again();
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
        over.store(true, SeqCst);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

attack! {
    /// A peer hangs up while its victim waits for a message, and continues to write to the shared memory. After *peer
    /// closed*, an end receives nothing more and returns only that error.
    a16_a_peer_that_has_hung_up_and_goes_on_writing {
        for wait in [Wait::Spin, Wait::Block] {
            for bad in [false, true] {
                on_a_victim_with(&Options::new().wait(wait), |mut peer, channel| {
                    rustix::net::shutdown(&peer.socket, rustix::net::Shutdown::Both).unwrap();
                    assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
                    let len = if bad { 1 << 30 } else { 0 };
                    peer.writer.put(header(kind::MESSAGE, len, 0), b"");
                    assert_eq!(channel.try_recv().unwrap_err(), Error::PeerClosed);
                });
            }
        }
    }
}

attack! {
    /// The peer's process is gone, but another process has its socket, so the socket does not hang up. A wait still
    /// ends at its deadline, and the victim can still find out and watch which process the peer was.
    a16_a_connection_that_outlives_its_peer {
        on_a_victim(|peer, channel| {
            let heir = peer.socket.try_clone().unwrap();
            drop(peer);
            let begin = Instant::now();
            assert_eq!(channel.recv_by(Duration::from_millis(50)).unwrap_err(), Error::TimedOut);
            assert!(begin.elapsed() >= Duration::from_millis(50));
            assert_eq!(channel.peer().unwrap().unwrap().pid, Some(std::process::id()));
            // The kernel reports whether the process itself is alive.
            let pidfd = channel.peer_pidfd().unwrap();
            let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
            assert_eq!(rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap(), 0);
            drop(heir);
            assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
        });
    }
}

attack! {
    /// The peer gets no descriptor that could make a call of the victim block: none that the victim waits on, and
    /// none that the victim writes to.
    a17_no_doorbell_is_shared {
        on_a_victim(|mut peer, channel| {
            let set = WaitSet::new().unwrap();
            set.add(&channel, 1, Interest::Both, Mode::Level).unwrap();
            let arena = peer.announce(1, 4, 4, 0).unwrap();
            let table = Table::of(&[AN_END]).end(arena.name(0), 1, 0, 0);
            peer.send_ends(b"", 1, &table, &[arena.lane(0)]).unwrap();
            let end = channel.try_recv().unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
            channel.try_send(strait::Outgoing::new(&[1; 100_000]).handle(end)).unwrap();
            for _ in 0..300 {
                channel.try_send(&[1; 1000]).unwrap();
            }
            let mut came = 0;
            let mut see = |peer: &mut RawPeer| {
                while let Some((packet, descriptors)) = wire::receive(&peer.socket).unwrap() {
                    for fd in descriptors {
                        came += 1;
                        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
                        assert!(link.to_string_lossy().contains("memfd:"), "{packet:?} prepended {link:?}");
                    }
                }
            };
            see(&mut peer);
            assert!(came >= 4, "{came}");
        });
    }
}

attack! {
    /// Another holder of the socket changes whether calls on the socket block: the victim's calls do not depend on
    /// that mode.
    a18_whether_a_socket_blocks_is_changed {
        on_a_victim(|_, _| {
            let (ours, theirs) = sockets();
            let same = theirs.try_clone().unwrap();
            let channel = Channel::over(theirs).unwrap();
            let mut peer = RawPeer::meet(ours).unwrap();
            let set = WaitSet::new().unwrap();
            set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
            let flip = || {
                let flags = rustix::fs::fcntl_getfl(&same).unwrap();
                rustix::fs::fcntl_setfl(&same, flags ^ OFlags::NONBLOCK).unwrap();
            };
            rustix::fs::fcntl_setfl(&same, OFlags::empty()).unwrap();
            for round in 0..2 {
                let play = || {
                    // Once with nothing to receive, and once with a full socket.
                    in_time("receiving", || assert_eq!(channel.recv_by(Deadline::NOW).unwrap_err(), Error::WouldBlock));
                    in_time("looking", || channel.is_peer_closed());
                    let file = file_with(b"x");
                    in_time("sending", || while channel.try_send(strait::Outgoing::new(b"x").handle(file.try_clone().unwrap())).is_ok() {});
                    let mut events = Vec::new();
                    in_time("waiting", || set.wait(&mut events, Deadline::NOW).unwrap());
                    in_time("waiting", || channel.recv_by(Duration::from_millis(40)).unwrap_err());
                };
                if round == 0 { play() } else { while_somebody(flip, play) }
                while peer.try_recv().unwrap().is_some() {}
            }
            drop(same);
        });
    }
}

attack! {
    /// The peer sets the victim's sleep words to any value all the time: deadlines hold, messages are received, and
    /// the close of the channel is noticed.
    a19_sleeping_words_that_are_pinned {
        on_a_victim(|_, _| {
            for wait in [Wait::Adaptive, Wait::Block, Wait::Spin] {
                for value in [0, 1, 2, 3, 4, 5, 6, 7, 0xff, 3 | 5 << 8, 7 | 1 << 20, u32::MAX] {
                    let (mut peer, channel) = meet_with(&Options::new().wait(wait).ring(256).ring_max(256));
                    let ring = peer.writer.ring.clone();
                    let waiting = peer.reader.as_ref().unwrap().ring.clone();
                    let pin = || {
                        ring.sleeping().store(value, SeqCst);
                        waiting.waiting().store(value, SeqCst);
                        std::thread::yield_now();
                    };
                    while_somebody(pin, || {
                        in_time("receiving", || assert_eq!(channel.recv_by(Duration::from_millis(25)).unwrap_err(), Error::TimedOut));
                        while channel.try_send(&[1; 30]).is_ok() {}
                        in_time("sending", || assert_eq!(channel.send_by(b"", Duration::from_millis(25)).unwrap_err().error, Error::TimedOut));
                    });
                    // A word that is set once, and never changed again, delays nothing either.
                    std::thread::scope(|scope| {
                        let receiver = scope.spawn(|| channel.recv_by(SOON).map(|message| message.bytes().len()));
                        std::thread::sleep(Duration::from_millis(1));
                        ring.sleeping().store(value, SeqCst);
                        peer.writer.put(header(kind::MESSAGE, 7, 0), b"message");
                        // A peer that never takes the sleeper wakes no thread, and so delays only its own message.
                        ring.sleeping().store(0, SeqCst);
                        peer.packet(&Packet::wake(), &[]).unwrap();
                        assert_eq!(receiver.join().unwrap(), Ok(7), "{wait:?} {value}");
                        let receiver = scope.spawn(|| channel.recv_by(SOON).map(|message| message.bytes().len()));
                        std::thread::sleep(Duration::from_millis(1));
                        ring.sleeping().store(value, SeqCst);
                        drop(peer);
                        assert_eq!(receiver.join().unwrap(), Err(Error::PeerClosed), "{wait:?} {value}");
                    });
                }
            }
        });
    }
}

attack! {
    /// A sleep word that the peer changed once does not keep the victim from sleeping.
    a19_a_sleeper_sleeps {
        on_a_victim(|mut peer, channel| {
            let ring = peer.writer.ring.clone();
            let time_used = |value| {
                std::thread::scope(|scope| {
                    let receiver = scope.spawn(|| {
                        let before = thread_time();
                        let result = channel.recv_by(Duration::from_millis(150)).map(drop);
                        (result, thread_time() - before)
                    });
                    for _ in 0..5 {
                        std::thread::sleep(Duration::from_millis(20));
                        ring.sleeping().store(value, SeqCst);
                    }
                    let (result, used) = receiver.join().unwrap();
                    assert_eq!(result, Err(Error::TimedOut));
                    used
                })
            };
            for value in 0..8 {
                // If the host stops this virtual machine for a moment, the pause may count as time of this thread,
                // but not in every attempt.
                let most = Duration::from_millis(100);
                assert!((0..5).any(|_| time_used(value) < most), "with {value}: most of the time, each time");
            }
            peer.pump().unwrap();
        });
    }
}

attack! {
    /// Packets without end must not delay a call without a wait.
    a20_packets_without_end_keep_no_call {
        on_a_victim(|_, _| {
            let (ours, theirs) = sockets();
            let channel = Channel::over(theirs).unwrap();
            let peer = RawPeer::silent(ours, 1, 4).unwrap();
            let file = file_with(b"x");
            let packet = Packet::handles(7, 7, 200).to_bytes();
            let flood = || drop(wire::send(&peer.socket, &packet, &[file.as_fd(); 200]));
            while_somebody(flood, || {
                for _ in 0..5 {
                    std::thread::sleep(Duration::from_millis(50));
                    let begin = Instant::now();
                    assert_eq!(channel.recv_by(Deadline::NOW).unwrap_err(), Error::WouldBlock);
                    assert!(begin.elapsed() < SOON, "the receive took {:?}", begin.elapsed());
                }
            });
        });
    }
}

attack! {
    /// The peer sends wake-ups without end: deadlines hold, other channels are served, and a wait set reports events
    /// of other links.
    a20_wake_ups_without_end {
        let bystander = Bystander::new();
        on_a_victim(|peer, channel| {
            let (mut honest, other) = meet();
            let set = WaitSet::new().unwrap();
            set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
            set.add(&other, 2, Interest::Readable, Mode::Level).unwrap();
            let packet = Packet::wake().to_bytes();
            let bitmap = { let mut peer = peer; peer.pump().unwrap(); (peer.bitmap.clone().unwrap(), peer) };
            let storm = || {
                let _ = wire::send(&bitmap.1.socket, &packet, &[]);
                for word in (bitmap::TOP..bitmap::LEAVES + 4096).step_by(8) {
                    bitmap.0.word64(word).store(u64::MAX, SeqCst);
                }
                // Threads that sleep on the word are woken as well.
                bitmap.0.word32(bitmap::POSTED).store(1, SeqCst);
                let sleeping = bitmap.0.word32(bitmap::SLEEPING);
                sleeping.store(0, SeqCst);
                let _ = futex::wake(sleeping, futex::Flags::empty(), 9);
            };
            while_somebody(storm, || {
                let mut events = Vec::new();
                for n in 0..20 {
                    in_time("waiting", || assert_eq!(set.wait(&mut events, Duration::from_millis(5)).unwrap(), 0));
                    honest.send(&[n]).unwrap();
                    in_time("telling", || assert_eq!(set.wait(&mut events, SOON).unwrap(), 1));
                    assert_eq!(events[0].key(), 2);
                    assert_eq!(other.try_recv().unwrap().bytes(), [n]);
                    in_time("receiving", || assert_eq!(channel.recv_by(Duration::from_millis(5)).unwrap_err(), Error::TimedOut));
                    bystander.assert_undisturbed();
                }
            });
        });
    }
}

attack! {
    /// A peer has sent its victim thousands of ends, never takes the ready bitmap, and sends wake packets without
    /// end. Each wake packet may stand for any of the ends. Events of other members are reported, and the victim is
    /// idle most of the time.
    a20_a_ready_bitmap_that_is_never_taken {
        const ENDS: u32 = 3000;
        on_a_victim(|mut peer, channel| {
            let (mut honest, other) = meet();
            let set = WaitSet::new().unwrap();
            set.add(&other, 0, Interest::Readable, Mode::Level).unwrap();
            let arena = peer.announce(1, ENDS, 4, 0).unwrap();
            let ends: Vec<_> = (0..ENDS).map(|slot| {
                let table = Table::of(&[AN_END]).end(arena.name(slot), 1, 0, 0);
                peer.send_ends(b"", 1, &table, &[arena.lane(slot)]).unwrap();
                let end = channel.recv_by(SOON).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
                set.add(&end, u64::from(slot) + 1, Interest::Readable, Mode::Level).unwrap();
                end
            }).collect();
            let packet = Packet::wake().to_bytes();
            let storm = || drop(wire::send(&peer.socket, &packet, &[]));
            let mut events = Vec::new();
            while_somebody(storm, || {
                let usage = || channel.peer_usage().unwrap().unwrap();
                let begin = Instant::now();
                while usage().pauses() < 50 {
                    assert!(begin.elapsed() < SOON, "the peer is not throttled");
                    assert_eq!(set.wait(&mut events, Duration::from_millis(20)).unwrap(), 0);
                }
                let is_little = || {
                    let (begin, before) = (Instant::now(), thread_time());
                    assert_eq!(set.wait(&mut events, Duration::from_millis(500)).unwrap(), 0);
                    thread_time() - before < begin.elapsed() / 4
                };
                assert!(std::iter::repeat_with(is_little).take(5).any(|is_little| is_little), "idle wake-ups use most of the time");
                for n in 0..20 {
                    honest.send(&[n]).unwrap();
                    in_time("telling", || assert_eq!(set.wait(&mut events, SOON).unwrap(), 1));
                    assert_eq!(events[0].key(), 0);
                    assert_eq!(other.try_recv().unwrap().bytes(), [n]);
                }
            });
            drop(ends);
        });
    }
}

attack! {
    /// The peer wakes a thread on the word of the ready bitmap again and again without changing the word. Such
    /// wake-ups count as idle too.
    a20_wake_ups_by_a_word_that_stays_as_it_is {
        // If the kernel refuses this call, no thread sleeps on the word.
        let asked = futex::waitv(&[], futex::WaitvFlags::empty(), None, rustix::time::ClockId::Monotonic);
        if asked != Err(rustix::io::Errno::INVAL) {
            return;
        }
        on_a_victim(|mut peer, channel| {
            let set = WaitSet::new().unwrap();
            set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
            peer.pump().unwrap();
            let bitmap = peer.bitmap.clone().unwrap();
            let storm = || {
                let _ = futex::wake(bitmap.word32(bitmap::SLEEPING), futex::Flags::empty(), 9);
            };
            let idle = || channel.peer_usage().unwrap().unwrap().idle_wake_ups();
            while_somebody(storm, || {
                let (before, begin) = (idle(), Instant::now());
                while idle() < before + 100 {
                    assert!(begin.elapsed() < SOON, "{} wake-ups were counted", idle() - before);
                    assert_eq!(set.wait(&mut Vec::new(), Duration::from_millis(5)).unwrap(), 0);
                }
            });
        });
    }
}

attack! {
    /// The peer fills the ready bitmap and its sleep word with anything: members without messages are not reported,
    /// and members of other links are.
    a19_a_ready_bitmap_full_of_anything {
        on_a_victim(|mut peer, channel| {
            let set = WaitSet::new().unwrap();
            set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
            peer.pump().unwrap();
            let bitmap = peer.bitmap.clone().unwrap();
            let mut numbers = Numbers(5);
            let mut events = Vec::new();
            for n in 0..2000 {
                for _ in 0..10 {
                    bitmap.word64(bitmap::TOP + numbers.below(16_600) * 8).store(numbers.nasty(), SeqCst);
                }
                bitmap.word32(bitmap::SLEEPING).store(numbers.nasty() as u32, SeqCst);
                peer.writer.ring.sleeping().store(numbers.nasty() as u32, SeqCst);
                assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0);
                if n % 100 == 0 {
                    peer.send(b"x").unwrap();
                    // A peer that stores a false sleep word is not woken, which harms only its own channel.
                    peer.ring_for(0).unwrap();
                    let _ = set.wait(&mut events, Deadline::NOW).unwrap();
                    assert_eq!(channel.try_recv().unwrap().bytes(), b"x");
                }
            }
            drop(set);
            let set = WaitSet::new().unwrap();
            set.add(&channel, 2, Interest::Readable, Mode::Level).unwrap();
            peer.send(b"again").unwrap();
            peer.ring_for(0).unwrap();
            peer.packet(&Packet::wake(), &[]).unwrap();
            assert_eq!(set.wait(&mut events, SOON).unwrap(), 1);
        });
    }
}

attack! {
    /// The peer has filled its ring with answers to no call, or with cancellations, which the victim finds again after
    /// each round: calls and waits for requests end in time, and a wait without a deadline ends the channel.
    a20_answers_and_cancellations_without_end {
        for kind_of_call in [2u8, 3, 4] {
            on_a_victim(|mut peer, channel| {
                let end = CallEnd::over(channel);
                let trailer = [7u64.to_le_bytes(), [kind_of_call, 0, 0, 0, 0, 0, 0, 0]].concat();
                for _ in 0..peer.writer.ring.count() {
                    peer.writer.put(header(kind::MESSAGE, trailer.len(), 0), &trailer);
                }
                let first = peer.writer.cell();
                peer.writer.ring.header(first).store(header(kind::MESSAGE, trailer.len(), 0), SeqCst);
                let looked = in_time("a look", || end.next_request(Deadline::NOW).map(drop));
                assert_eq!(looked, Err(Error::WouldBlock));
                // So many messages as are permitted cannot be received in a millisecond.
                let waited = in_time("a wait", || end.next_request(Duration::from_millis(1)).map(drop));
                assert_eq!(waited, Err(Error::TimedOut));
                let ended = in_time("a wait without a deadline", || end.next_request(Deadline::NEVER).map(drop));
                assert_eq!(bad_peer(ended), "more answers and cancellations than there were calls");
            });
        }
    }
}

attack! {
    /// A peer receives nothing: the messages for it are bounded, and complete once it receives.
    a23_a_reader_that_does_not_read {
        on_a_victim(|mut peer, channel| {
            let rss = || {
                let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
                statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
            };
            let (before, open) = (rss(), descriptors());
            let mut sent = 0u64;
            let mut refused = 0;
            while refused < 1000 {
                match channel.try_send(&[sent as u8; 3000]) {
                    Ok(()) => sent += 1,
                    Err(failed) => {
                        assert_eq!(failed.error, Error::WouldBlock);
                        refused += 1;
                    }
                }
            }
            assert!(sent >= 250 && rss() < before + (16 << 20), "{sent} messages, {} bytes", rss() - before);
            // Each larger array of cells is a descriptor in flight.
            assert!(descriptors() <= open + 16);
            for n in 0..sent {
                assert_eq!(peer.try_recv().unwrap().unwrap().bytes, [n as u8; 3000]);
            }
            assert!(peer.try_recv().unwrap().is_none());
            channel.try_send(b"and on").unwrap();
            assert_eq!(peer.try_recv().unwrap().unwrap().bytes, b"and on");
        });
    }
}

attack! {
    /// One channel of a link is stalled in every possible way: another channel of the link goes on.
    a24_a_channel_that_stalls_others {
        on_a_victim_with(&Options::new().ring_max(8192), |mut peer, channel| {
            let arena = peer.announce(1, 4, 64, 0).unwrap();
            let lanes = [arena.lane(0), arena.lane(1)];
            let table = Table::of(&[AN_END, AN_END]).end(arena.name(0), 0, 0, 0).end(arena.name(1), 0, 0, 0);
            peer.send_ends(b"", 2, &table, &lanes).unwrap();
            let mut ends = channel.try_recv().unwrap().take_handles().unwrap().into_iter().map(|handle| handle.into_channel().unwrap());
            let (stalled, busy) = (ends.next().unwrap(), ends.next().unwrap());
            while stalled.try_send(&[1; 500]).is_ok() {}
            while stalled.try_send(strait::Outgoing::new(&[1; 100_000]).handle(file_with(b"x"))).is_ok() {}
            // A record without its header, and a record whose attachments are never sent.
            Writer::new(lanes[0].ring(1)).place(0, b"half");
            assert_eq!(stalled.try_recv().unwrap_err(), Error::WouldBlock);
            let mut reader = Reader::new(lanes[1].ring(0));
            let mut writer = Writer::new(lanes[1].ring(1));
            for n in 0..2000u32 {
                in_time("sending", || busy.try_send(&n.to_le_bytes()).unwrap());
                assert_eq!(reader.take().unwrap().payload, n.to_le_bytes());
                reader.give_credit();
                writer.put(header(kind::MESSAGE, 4, 0), &n.to_le_bytes());
                in_time("receiving", || assert_eq!(busy.try_recv().unwrap().bytes(), n.to_le_bytes()));
            }
        });
    }
}

attack! {
    /// A peer that stops in the middle of any step holds no lock that another process needs.
    a25_a_writer_that_stops_in_the_middle {
        on_a_victim(|mut peer, channel| {
            for n in 0..100u8 {
                // The peer writes all of a message except the word that commits the message.
                peer.writer.pad_for(20);
                peer.writer.place(0, &[n; 20]);
                in_time("receiving", || assert_eq!(channel.try_recv().unwrap_err(), Error::WouldBlock));
                in_time("sending", || channel.try_send(&[n; 30]).unwrap());
                assert_eq!(peer.try_recv().unwrap().unwrap().bytes, [n; 30]);
                peer.writer.put(header(kind::MESSAGE, 20, 0), &[n; 20]);
                assert_eq!(channel.try_recv().unwrap().bytes(), [n; 20]);
            }
            peer.writer.place(0, &[1; 20]);
            in_time("closing", || drop(channel));
            let gone: OwnedFd = peer.socket;
            drop(gone);
        });
    }
}
