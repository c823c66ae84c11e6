//! Handle tables and prepended backlogs: without their messages, and of great size.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::SealFlags;
use strait::Error;
use strait_hostile::memory::{SIZE_SEALS, file};
use strait_hostile::record::{AN_END, Name, WITH_TABLE, header, kind};
use strait_hostile::{Packet, RawPeer, Table};

use crate::common::*;

/// The number of bytes of a large table in these tests.
const LARGE: usize = 256 << 20;

/// The processor time for which no call may read large tables. A copy of [`LARGE`] bytes takes some 50 ms or more.
const BRIEF: Duration = Duration::from_secs(2);

/// Returns sealed memory of `len` bytes: `start`, and then zeroes without pages.
fn sealed(start: &[u8], len: usize) -> OwnedFd {
    let fd = file(len, SealFlags::empty()).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, start, 0).unwrap(), start.len());
    rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS | SealFlags::WRITE).unwrap();
    fd
}

/// Puts the record of a handle table in memory of its own, and sends the memory.
fn put_table_in(peer: &mut RawPeer, memory: &OwnedFd) {
    peer.packet(&Packet::table(peer.token, peer.writer.sequence, 0), &[memory.as_fd()]).unwrap();
    peer.writer.put(header(kind::TABLE, 0, 1), b"");
}

/// Puts the record of a handle table.
fn put_table(peer: &mut RawPeer, table: &Table) {
    peer.writer.pad_for(table.0.len());
    peer.writer.put(header(kind::TABLE, table.0.len(), 0), &table.0);
}

/// Puts the record of an empty message with `handles` handles and the bit that announces a handle table.
fn put_message_with_table(peer: &mut RawPeer, handles: usize) {
    peer.writer.put(header(kind::MESSAGE, 0, handles) | WITH_TABLE, b"");
}

/// Returns the number of bytes of private memory of this process that are in use.
fn private_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

/// Does `work`, and checks that it uses less processor time than [`BRIEF`].
fn briefly<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = thread_time();
    let result = work();
    let took = thread_time() - begin;
    assert!(took < BRIEF, "{what} took {took:?}");
    result
}

attack! {
    /// The peer sends a table, then a message without a table, then a message that announces a table and has none. The
    /// first table describes no message.
    a04_a_table_that_is_not_directly_before_its_message {
        on_a_victim(|_, _| {
            let ends = Table::of(&[AN_END]).end(Name::new(1, 0), 0, 0, 0);
            let between: [fn(&mut RawPeer); 4] = [
                |peer| peer.send(b"between").unwrap(),
                |peer| peer.send_pack(&[b"between"]).unwrap(),
                |peer| peer.send_sealed(b"between").unwrap(),
                |peer| peer.send_with(b"between", &[file_with(b"").as_fd()]).unwrap(),
            ];
            for put in between {
                let (mut peer, channel) = meet();
                peer.announce(1, 4, 4, 0).unwrap();
                put_table(&mut peer, &ends);
                // The victim looks at the table before the message comes.
                assert_eq!(channel.try_recv().unwrap_err(), Error::WouldBlock);
                put(&mut peer);
                put_message_with_table(&mut peer, 1);
                assert_eq!(channel.try_recv().unwrap().bytes(), b"between");
                assert_eq!(bad_peer(channel.try_recv()), "a message without its handle table");
            }
            // The last of two tables describes the message, also in a larger ring.
            let (mut peer, channel) = meet();
            peer.announce(1, 4, 4, 0).unwrap();
            put_table(&mut peer, &Table(vec![255; 40]));
            put_table(&mut peer, &ends);
            peer.grow(512).unwrap();
            put_message_with_table(&mut peer, 1);
            assert_eq!(channel.try_recv().unwrap().take_handles().unwrap().len(), 1);
        });
    }
}

attack! {
    /// The peer announces a table for messages without handles: with no table, and with a table of no handles.
    a04_a_table_of_a_message_without_handles {
        on_a_victim(|_, _| {
            for is_there in [false, true] {
                let (mut peer, channel) = meet();
                if is_there {
                    put_table(&mut peer, &Table::of(&[]));
                }
                put_message_with_table(&mut peer, 0);
                assert_eq!(bad_peer(channel.try_recv()), "a message without handles that has a handle table");
            }
        });
    }
}

attack! {
    /// A sender fails again and again to send a message with its table, and sends other messages in between. The
    /// victim must not take the sender for a bad peer. (Each such table is void.)
    a04_tables_with_other_messages_between {
        on_a_victim(|mut peer, channel| {
            for round in 0..5_000 {
                put_table(&mut peer, &Table::of(&[AN_END]));
                peer.send(b"between").unwrap();
                assert_eq!(channel.try_recv().map(|message| message.bytes().to_vec()), Ok(b"between".to_vec()), "{round}");
            }
        });
    }
}

attack! {
    /// The peer sends tables that are longer than any table that an honest peer puts into a record.
    a04_tables_too_long_for_their_records {
        on_a_victim(|_, _| {
            for (kind, before) in [(kind::TABLE, 0), (kind::PREPENDED, 8)] {
                let (mut peer, channel) = meet();
                peer.grow(1 << 10).unwrap();
                peer.writer.put(header(kind, before + 4097, 0), &vec![0; before + 4097]);
                assert_eq!(bad_peer(channel.try_recv()), "a handle table that is too long for its record");
            }
        });
    }
}

attack! {
    /// The peer sends large tables, one over each of several links, and no messages. The victim must not hold a
    /// copy of the tables, which no limit would count.
    a21_the_memory_of_tables_without_messages {
        on_a_victim(|_, _| {
            let memory = sealed(b"", LARGE);
            let mut victims: Vec<_> = (0..8).map(|_| meet()).collect();
            let (before, census) = (private_memory(), Census::take());
            for (peer, channel) in &mut victims {
                put_table_in(peer, &memory);
                assert!(!channel.status().unwrap().peer_closed);
                assert_eq!(channel.peek().unwrap(), None);
                assert_eq!(channel.try_recv().unwrap_err(), Error::WouldBlock);
            }
            let more = private_memory().saturating_sub(before);
            assert!(more < LARGE / 2, "{more} bytes of private memory for {} tables", victims.len());
            // The next message shows that the table has none.
            for (peer, channel) in &mut victims {
                peer.send(b"another").unwrap();
                assert_eq!(channel.try_recv().unwrap().bytes(), b"another");
            }
            census.assert_unchanged();
        });
    }
}

attack! {
    /// The peer sends many large tables in a row, and no message. A call that finds the tables must not read them.
    a21_large_tables_in_a_row {
        on_a_victim(|mut peer, channel| {
            let memory = sealed(b"", LARGE);
            for _ in 0..60 {
                put_table_in(&mut peer, &memory);
            }
            let looked = briefly("receiving", || channel.try_recv());
            assert_eq!(looked.unwrap_err(), Error::WouldBlock);
        });
    }
}

attack! {
    /// The peer sends many large prepended backlogs, each of one message in the table, and the victim drops the
    /// channel. The victim must not copy the messages.
    a21_large_prepended_backlogs_of_an_end_that_is_closed {
        on_a_victim(|mut peer, channel| {
            // The last fields, behind the bytes of the message, are zeroes.
            let mut table = Table::of(&[AN_END]).end(Name::default(), 0, 0, 1).0;
            let len = LARGE - table.len() - 1 - 8 - 4 - 4;
            table.push(0);
            table.extend((len as u64).to_le_bytes());
            let memory = sealed(&table, LARGE);
            for number in 1..=60u64 {
                let number = 1 << 63 | number;
                peer.packet(&Packet::table(peer.token, number, 0), &[memory.as_fd()]).unwrap();
                peer.writer.put(header(kind::PREPENDED, 8, 1), &number.to_le_bytes());
            }
            let begin = process_time();
            drop(channel);
            assert_soon_closed(&mut peer);
            // A thread of the library does a part of the work.
            let took = process_time() - begin;
            assert!(took < BRIEF, "{took:?} for closing");
        });
    }
}

/// Waits until the victim has closed its end of the channel.
fn assert_soon_closed(peer: &mut RawPeer) {
    let begin = std::time::Instant::now();
    let cell = peer.writer.cell();
    let has_ended = |peer: &RawPeer| peer.writer.ring.header(cell).load(std::sync::atomic::Ordering::SeqCst) != 0;
    while !has_ended(peer) && peer.pump().is_ok() {
        assert!(begin.elapsed() < SOON, "the victim does not close its end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

attack! {
    /// The peer sends prepended backlogs of millions of messages without bytes, and the victim drops the channel. The
    /// call must count the messages as work, and leave the rest to a thread.
    a21_prepended_backlogs_of_very_many_messages {
        on_a_victim(|mut peer, channel| {
            const MESSAGES: u32 = 1 << 22;
            let table = Table::of(&[AN_END]).end(Name::default(), 0, 0, MESSAGES).0;
            // A message without bytes and handles is all zeroes.
            let memory = sealed(&table, table.len() + 17 * MESSAGES as usize);
            for number in 1..=20u64 {
                let number = 1 << 63 | number;
                peer.packet(&Packet::table(peer.token, number, 0), &[memory.as_fd()]).unwrap();
                peer.writer.put(header(kind::PREPENDED, 8, 1), &number.to_le_bytes());
            }
            let begin = thread_time();
            drop(channel);
            let took = thread_time() - begin;
            assert!(took < Duration::from_millis(200), "{took:?} for dropping the channel");
            assert_soon_closed(&mut peer);
        });
    }
}
