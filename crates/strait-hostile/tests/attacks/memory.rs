//! Memory from the peer: of the wrong kind or size, or changed later; and what the peer can see in the victim's
//! memory.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait::quota::{pool_held, set_pool_limit, trim};
use strait::{Channel, Deadline, Error, Options};
use strait_hostile::handshake;
use strait_hostile::layout::{bitmap, lane_size};
use strait_hostile::memory::{SIZE_SEALS, file, immutable};
use strait_hostile::record::{BLOCK_PAYLOAD, Block, CELL, header, kind};
use strait_hostile::{Memory, Packet, RawPeer};

use crate::common::*;
use crate::standstill::Watcher;

/// Bytes of other channels, hidden from the peer.
const CANARY: &[u8; 16] = b"canary of others";

/// A way to send memory to the victim, with the result of the victim's channel. `len` is the size of the memory in
/// this way.
struct Way {
    name: &'static str,
    len: usize,
    immutable: bool,
    give: fn(OwnedFd) -> Result<(), Error>,
}

/// Sends memory over an open link, by a packet and then a record. Returns the result of the victim's receive call.
fn give(fd: OwnedFd, packet: impl FnOnce(&RawPeer) -> Packet, record: (u64, &[u8])) -> Result<(), Error> {
    let (mut peer, channel) = meet();
    peer.packet(&packet(&peer), &[fd.as_fd()]).unwrap();
    drop(fd);
    peer.writer.put(record.0, record.1);
    channel.try_recv().map(drop)
}

/// Every way to send memory to the victim.
const WAYS: [Way; 7] = [
    Way {
        name: "hello",
        len: lane_size(128),
        immutable: false,
        give: |fd| {
            let (ours, theirs) = sockets();
            let channel = Channel::over(theirs).unwrap();
            let peer = RawPeer::silent(ours, 1, 4).unwrap();
            peer.packet(&handshake::announce(0), &[]).unwrap();
            peer.packet(&handshake::open(1, 128), &[fd.as_fd()]).unwrap();
            channel.try_recv().map(drop)
        },
    },
    Way {
        name: "ring",
        len: 512 * CELL,
        immutable: false,
        give: |fd| give(fd, |peer| Packet::ring(peer.token, 1), (header(kind::NEXT, 8, 0), &1u64.to_le_bytes())),
    },
    Way {
        name: "block",
        len: BLOCK_PAYLOAD + 100,
        immutable: false,
        give: |fd| {
            let block = Block { id: 0, usage: 1, len: 100, once: 0 };
            give(fd, |peer| Packet::block(peer.token, 0, 1, 0), (header(kind::BLOCK, 32, 0), &block.to_bytes()))
        },
    },
    Way {
        name: "sealed",
        len: 100,
        immutable: true,
        give: |fd| {
            give(fd, |peer| Packet::sealed(peer.token, 1, 0), (header(kind::SEALED, 8, 0), &100u64.to_le_bytes()))
        },
    },
    Way {
        name: "table",
        len: 8,
        immutable: true,
        give: |fd| give(fd, |peer| Packet::table(peer.token, 1, 0), (header(kind::TABLE, 0, 1), &[])),
    },
    Way {
        name: "arena",
        len: 4 * lane_size(4),
        immutable: false,
        give: |fd| {
            give(
                fd,
                |_| Packet::arena(5, 1, 4, 4, 0),
                (header(kind::MOVED, 16, 0), &strait_hostile::record::Name::new(1, 0).to_bytes()),
            )
        },
    },
    Way {
        name: "bitmap",
        len: bitmap::BYTES,
        immutable: false,
        give: |fd| {
            let (mut peer, channel) = meet();
            peer.packet(&Packet::bitmap(), &[fd.as_fd()]).unwrap();
            verdict(&mut peer, &channel).map_or(Ok(()), |reason| Err(Error::BadPeer(reason)))
        },
    },
];

/// Returns whether the victim's channel still works, as with honest memory: then there is nothing to receive, and the
/// call would block.
fn is_accepted(result: Result<(), Error>) -> bool {
    matches!(result, Ok(()) | Err(Error::WouldBlock))
}

/// Sends memory made by `make` in each way, with the size for that way. The victim must refuse each.
fn refused_by_all(what: &str, make: impl Fn(&Way) -> Option<OwnedFd>) {
    for way in &WAYS {
        let Some(fd) = make(way) else { continue };
        let result = (way.give)(fd);
        assert!(matches!(result, Err(Error::BadPeer(_))), "{what} by way of {}: {result:?}", way.name);
    }
}

fn alone_with_bystander(attack: impl FnOnce()) {
    let bystander = Bystander::new();
    let census = Census::take();
    attack();
    bystander.assert_undisturbed();
    census.assert_unchanged();
}

attack! {
    /// Shows that honest memory is accepted in every way. Without this test, the others would prove nothing.
    a05_memory_as_it_should_be_is_taken {
        alone_with_bystander(|| {
            for way in &WAYS {
                let fd = if way.immutable { immutable(&vec![0; way.len]).unwrap() } else { file(way.len, SIZE_SEALS).unwrap() };
                assert!(is_accepted((way.give)(fd)), "{}", way.name);
            }
        });
    }
}

attack! {
    /// The peer sends memory that can still shrink. A later read of the memory would raise SIGBUS.
    a05_memory_that_can_be_truncated {
        alone_with_bystander(|| {
            for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW, SealFlags::GROW | SealFlags::SEAL, SealFlags::GROW | SealFlags::WRITE] {
                refused_by_all("memory with some seals", |way| {
                    let fd = file(way.len, seals).unwrap();
                    let _ = ftruncate(&fd, 0);
                    Some(fd)
                });
                refused_by_all("memory with some seals", |way| Some(file(way.len, seals).unwrap()));
            }
        });
    }
}

attack! {
    /// The peer sends a ring in memory that can shrink, and shrinks the memory once the victim has mapped it.
    a05_a_ring_that_shrinks_when_it_is_used {
        on_a_victim(|mut peer, channel| {
            let cells = file(512 * CELL, SealFlags::GROW | SealFlags::SEAL).unwrap_or_else(|_| unreachable!());
            peer.packet(&Packet::ring(peer.token, 1), &[cells.as_fd()]).unwrap();
            peer.writer.put(header(kind::NEXT, 8, 0), &1u64.to_le_bytes());
            let first = channel.try_recv().map(drop);
            ftruncate(&cells, 0).unwrap();
            bad_peer(first.and_then(|()| channel.try_recv().map(drop)));
        });
    }
}

attack! {
    /// The peer claims that memory is larger than its real size.
    a06_sizes_that_are_larger_than_the_memory {
        alone_with_bystander(|| {
            // The memory of the ring in an open packet.
            for (cells, len) in [(128, lane_size(64)), (1 << 20, 4096), (1 << 24, lane_size(128)), (128, 1), (4, lane_size(4) - 1),
                (0, 4096), (3, 4096), (1, 4096), (2, 4096), (1 << 25, 4096), (usize::MAX, 4096), (1 << 63, 4096), (1 << 57, 4096)] {
                let (ours, theirs) = sockets();
                let channel = Channel::over(theirs).unwrap();
                let peer = RawPeer::silent(ours, 1, 4).unwrap();
                peer.packet(&handshake::open(1, cells as u64), &[file(len, SIZE_SEALS).unwrap().as_fd()]).unwrap();
                bad_peer(channel.try_recv());
            }
            // The memory of an arena.
            for (lanes, cells, len) in [(5, 4, 4 * lane_size(4)), (u32::MAX, 4, 4096), (1, 1 << 24, 4096), (u32::MAX, 1 << 31, 4096), (0, 4, 4096), (1, 0, 4096),
                (1, 5, 4096), (1, 2, 4096), (1 << 30, 1 << 24, 1 << 20), (1, u32::MAX, 4096)] {
                let (mut peer, channel) = meet();
                peer.packet(&Packet::arena(1, 1, lanes, cells, 0), &[file(len, SIZE_SEALS).unwrap().as_fd()]).unwrap();
                assert!(verdict(&mut peer, &channel).is_some(), "{lanes} lanes of {cells} cells in {len} bytes");
            }
            // The memory of a ring that grows. The ring is as large as its memory, so the size must be valid for a
            // ring, and larger than before.
            for len in [1, 63, 64, 4096, 128 * CELL, 256 * CELL + 1, 257 * CELL, 300 * CELL] {
                let result = (WAYS[1].give)(file(len, SIZE_SEALS).unwrap());
                assert!(matches!(result, Err(Error::BadPeer(_))), "a ring of {len} bytes: {result:?}");
            }
            for len in [1, 4096, bitmap::BYTES - 1, bitmap::BYTES + 4096] {
                let result = (WAYS[6].give)(file(len, SIZE_SEALS).unwrap());
                assert!(matches!(result, Err(Error::BadPeer(_))), "a bitmap of {len} bytes: {result:?}");
            }
        });
    }
}

attack! {
    /// The peer sends memory that is far too large for its purpose and hardly has pages. The victim can never map
    /// such memory, so the error must not look like a temporary shortage.
    a06_memory_that_is_larger_than_any {
        alone_with_bystander(|| {
            for len in [(1usize << 31) + (1 << 20), 1 << 41, 1 << 47, 1 << 62] {
                refused_by_all(&format!("memory of {len} bytes"), |way| {
                    let seals = if way.immutable { SIZE_SEALS | SealFlags::WRITE } else { SIZE_SEALS };
                    Some(file(len, seals).unwrap())
                });
            }
        });
    }
}

attack! {
    /// The peer sends messages that claim to be longer than their memory.
    a06_messages_that_are_longer_than_their_memory {
        alone_with_bystander(|| {
            for memory in [1usize, 8, 4095, 4096, 4097, 8192, 70_000] {
                let room = memory.saturating_sub(BLOCK_PAYLOAD) as u64;
                for len in [0, 1, 8, room, room + 1, room + 4096, memory as u64, 1 << 28, (1 << 28) + 1, 1 << 32, u64::MAX, u64::MAX - 4095, i64::MAX as u64] {
                    let (mut peer, channel) = meet();
                    let block = file(memory, SIZE_SEALS).unwrap();
                    peer.packet(&Packet::block(peer.token, 3, 1, 0), &[block.as_fd()]).unwrap();
                    peer.put_block(Block { id: 3, usage: 1, len, once: 0 }).unwrap();
                    let fits = memory >= BLOCK_PAYLOAD && len <= room;
                    match channel.try_recv() {
                        Ok(message) => assert!(fits && message.bytes().len() as u64 == len),
                        refused => assert!(!fits && !bad_peer(refused).is_empty()),
                    }
                    // The other calls check the length too.
                    let (mut peer, channel) = meet();
                    peer.packet(&Packet::sealed(peer.token, 1, 0), &[immutable(&vec![1; memory]).unwrap().as_fd()]).unwrap();
                    peer.put_sealed(len).unwrap();
                    match channel.recv_in_place(Deadline::NOW) {
                        Ok(message) => assert!(len <= memory as u64 && message.sealed().unwrap().len() as u64 == len),
                        refused => assert!(len > memory as u64 && !bad_peer(refused).is_empty()),
                    }
                    let (mut peer, channel) = meet();
                    peer.packet(&Packet::block(peer.token, 3, 1, 0), &[block.as_fd()]).unwrap();
                    peer.put_block(Block { id: 3, usage: 1, len, once: 1 }).unwrap();
                    match channel.recv_into(&mut [0; 100_000], Deadline::NOW) {
                        Ok(received) => assert!(fits && received.len() as u64 == len),
                        Err(Error::BufferTooSmall { needed }) => assert!(needed as u64 == len && len > 100_000),
                        refused => assert!(!fits && !bad_peer(refused).is_empty()),
                    }
                }
            }
        });
    }
}

attack! {
    /// The peer sends sealed messages in memory that can still change.
    a07_sealed_messages_that_can_still_change {
        alone_with_bystander(|| {
            let seals = [SIZE_SEALS, SIZE_SEALS | SealFlags::FUTURE_WRITE, SealFlags::SHRINK | SealFlags::GROW, SealFlags::WRITE, SealFlags::WRITE | SealFlags::SHRINK];
            for seals in seals {
                for way in WAYS.iter().filter(|way| way.immutable) {
                    let fd = memfd_create("content", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
                    ftruncate(&fd, way.len as u64).unwrap();
                    // A writable mapping from before stays writable under F_SEAL_FUTURE_WRITE.
                    let mapping = (!seals.contains(SealFlags::WRITE)).then(|| Memory::map(fd.try_clone().unwrap()).unwrap());
                    fcntl_add_seals(&fd, seals).unwrap();
                    if let Some(mapping) = &mapping {
                        mapping.write(0, b"x");
                    }
                    let result = (way.give)(fd);
                    assert!(matches!(result, Err(Error::BadPeer(_))), "{seals:?} by way of {}: {result:?}", way.name);
                }
            }
        });
    }
}

attack! {
    /// No process can reopen memory sealed by the victim and write to it.
    a08_sealed_memory_opened_anew {
        on_a_victim(|mut peer, channel| {
            let mut room = channel.reserve_sealed(5000).unwrap();
            room.bytes().fill(1);
            room.commit(Deadline::NOW).unwrap();
            peer.pump().unwrap();
            let (_, descriptors) = peer.arrived.pop_front().unwrap();
            let path = format!("/proc/self/fd/{}", descriptors[0].as_raw_fd());
            if let Ok(anew) = OpenOptions::new().read(true).write(true).open(&path) {
                assert_eq!(rustix::io::pwrite(&anew, b"x", 0), Err(Errno::PERM));
                assert_eq!(ftruncate(&anew, 0), Err(Errno::PERM));
                assert_eq!(fcntl_add_seals(&anew, SealFlags::WRITE), Err(Errno::PERM));
                // SAFETY: the kernel chooses the address; the test does not use the mapping even if the kernel makes
                // it.
                let mapped = unsafe {
                    let (read, write) = (rustix::mm::ProtFlags::READ, rustix::mm::ProtFlags::WRITE);
                    rustix::mm::mmap(std::ptr::null_mut(), 4096, read | write, rustix::mm::MapFlags::SHARED, &anew, 0)
                };
                assert_eq!(mapped, Err(Errno::PERM));
                let punched = rustix::fs::fallocate(&anew, rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE, 0, 4096);
                assert_eq!(punched, Err(Errno::PERM));
            }
        });
    }
}

attack! {
    /// The peer can neither shrink memory that both sides write, nor seal the memory against writes of the victim.
    a08_the_victims_own_memory_keeps_its_size {
        on_a_victim(|mut peer, channel| {
            let set = strait::wait::WaitSet::new().unwrap();
            set.add(&channel, 1, strait::wait::Interest::Readable, strait::wait::Mode::Level).unwrap();
            channel.send(&[1; 100_000]).unwrap();
            while channel.counters().grown == 0 {
                channel.try_send(&[2; 1000]).unwrap();
            }
            while peer.try_recv().unwrap().is_some() {}
            let shared = peer.shared();
            assert!(shared.len() >= 4, "{}", shared.len());
            let theirs = &peer.reader.as_ref().unwrap().ring;
            let known = [Some(theirs.memories()[0].clone()), Some(theirs.memories()[1].clone()), peer.bitmap.clone(), peer.blocks[0].clone()];
            for memory in known.into_iter().flatten() {
                assert_eq!(ftruncate(memory.fd(), 0), Err(Errno::PERM));
                assert_eq!(ftruncate(memory.fd(), 1 << 30), Err(Errno::PERM));
                assert_eq!(fcntl_add_seals(memory.fd(), SealFlags::WRITE), Err(Errno::PERM));
            }
            channel.try_send(b"on").unwrap();
        });
    }
}

fn file_of_kind(kind: &str, len: usize) -> Option<OwnedFd> {
    let secret = || {
        // SAFETY: the system call takes no pointers; it has just made the descriptor, so nothing else owns it.
        unsafe {
            let fd = libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
        }
    };
    let sized = |fd: OwnedFd| {
        let _ = ftruncate(&fd, len as u64);
        Some(fd)
    };
    let temporary = |directory: &str| {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(directory).ok()?;
        sized(file.into())
    };
    match kind {
        "file on tmpfs" => temporary("/dev/shm"),
        "file on disk" => temporary("/tmp"),
        "huge pages" => {
            let fd =
                memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB).ok()?;
            let _ = ftruncate(&fd, 2 << 20);
            let _ = fcntl_add_seals(&fd, SIZE_SEALS);
            Some(fd)
        }
        "secret memory" => sized(secret()?),
        "device" => Some(File::options().read(true).write(true).open("/dev/zero").ok()?.into()),
        "directory" => Some(File::open("/").ok()?.into()),
        "pipe" => Some(rustix::pipe::pipe().ok()?.0),
        "socket" => Some(sockets().0),
        "path" => Some(OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/").ok()?.into()),
        "process" => {
            Some(rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).ok()?)
        }
        "empty" => file(0, SIZE_SEALS).ok(),
        "readable only" => {
            let fd = file(len, SIZE_SEALS).ok()?;
            Some(File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?.into())
        }
        _ => unreachable!("no such kind"),
    }
}

attack! {
    /// The peer sends descriptors of no memory, or of another kind of memory, whose reads may block or fault.
    a09_descriptors_that_are_no_such_memory {
        alone_with_bystander(|| {
            for kind in ["file on tmpfs", "file on disk", "huge pages", "secret memory", "device", "directory", "pipe", "socket", "path", "process", "empty"] {
                refused_by_all(kind, |way| file_of_kind(kind, way.len));
            }
            // Read-only memory for a purpose that needs writes from both sides.
            for way in WAYS.iter().filter(|way| !way.immutable) {
                let sealed = file(way.len, SIZE_SEALS | SealFlags::WRITE).unwrap();
                let future = file(way.len, SIZE_SEALS | SealFlags::FUTURE_WRITE).unwrap();
                for fd in [file_of_kind("readable only", way.len).unwrap(), sealed, future] {
                    let result = (way.give)(fd);
                    assert!(matches!(result, Err(Error::BadPeer(_))), "by way of {}: {result:?}", way.name);
                }
            }
            // Write-only memory.
            refused_by_all("writable only", |way| {
                let seals = if way.immutable { SIZE_SEALS | SealFlags::WRITE } else { SIZE_SEALS };
                let fd = file(way.len, seals).unwrap();
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                Some(OpenOptions::new().write(true).open(path).unwrap().into())
            });
        });
    }
}

attack! {
    /// The peer sends a thousand pieces of memory of a quarter of a gigabyte each, all without pages.
    a21_claims_of_more_memory_than_is_allowed {
        alone_with_bystander(|| {
            let (peer, channel) = meet_with(&Options::new().peer_memory(1 << 28));
            let claim = file(1 << 27, SIZE_SEALS).unwrap();
            // Several times as many packets as a socket holds.
            let mut sent = 0;
            while sent < 1000 {
                match peer.packet(&Packet::block(peer.token, sent, sent, 0), &[claim.as_fd()]) {
                    Ok(()) => sent += 1,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        if channel.recv_by(Duration::from_millis(25)).unwrap_err() != Error::TimedOut {
                            break;
                        }
                    }
                    Err(_) => break,
                }
            }
            let _ = channel.recv_by(Duration::from_millis(25));
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let claims = maps.lines().filter(|line| line.contains("memfd:hostile")).map(|line| {
                let (from, to) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
                usize::from_str_radix(to, 16).unwrap() - usize::from_str_radix(from, 16).unwrap()
            });
            assert!(claims.sum::<usize>() < (1 << 28) + (1 << 20), "{sent} claims");
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with("RssShmem")).unwrap();
            let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
            assert!(kilobytes < 64 << 10, "{kilobytes} kB of the claimed memory have pages");
        });
    }
}

/// Sends messages of 1.5 MiB between two other ends for `time`, and checks that each message arrives in time.
fn exchange_large_messages(time: Duration) {
    let (one, other) = sockets();
    let (one, other) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
    let begin = Instant::now();
    while begin.elapsed() < time {
        in_time("sending", || one.send_by(&vec![2; 3 << 19], SOON)).unwrap();
        assert_eq!(in_time("receiving", || other.recv_by(SOON)).unwrap().bytes().len(), 3 << 19);
    }
}

attack! {
    /// The receiver of a large message returns the memory of the message, and then stands still in a write to that
    /// memory. The kernel then makes every call wait that gives the memory's pages back.
    a08_a_block_whose_receiver_stands_still_in_a_write {
        let Some(watcher) = Watcher::new() else { return };
        let small_limit = || set_pool_limit(2 << 20);
        type Way<'a> = (&'a str, &'a dyn Fn());
        let ways: [Way<'_>; 3] = [
            ("trim", &|| assert!(trim() < 1 << 20)),
            ("a lower limit", &|| set_pool_limit(0)),
            // After 100 ms the memory of one channel makes way for the memory of another.
            ("another channel", &|| {
                small_limit();
                exchange_large_messages(Duration::from_millis(500));
            }),
        ];
        for (name, gives_back) in ways {
            on_a_victim(|mut peer, channel| {
                trim();
                channel.send(&vec![1; 1 << 20]).unwrap();
                assert_eq!(peer.try_recv().unwrap().unwrap().bytes.len(), 1 << 20);
                let block = peer.blocks[0].clone().unwrap();
                let page = watcher.stand_still_in_a_write_to(block.fd());
                in_time(name, gives_back);
                assert!(pool_held() > 1 << 20, "{name}: memory that is not given back yet counts");
                small_limit();
                exchange_large_messages(Duration::from_millis(1));
                // The channel to the peer goes on, in other memory.
                channel.send(&vec![3; 1 << 20]).unwrap();
                assert_eq!(peer.try_recv().unwrap().unwrap().bytes[1 << 19], 3);
                drop(page);
                let begin = Instant::now();
                while pool_held() > 0 {
                    assert!(begin.elapsed() < SOON, "{name}: {} bytes are never given back", pool_held());
                    trim();
                }
            });
        }
    }
}

attack! {
    /// The receiver of a large message stands still in a write to the message's memory, and the victim goes on with
    /// another channel. Each thread that sends, receives or sleeps looks for memory that was not used for ten seconds.
    a08_a_block_whose_receiver_stands_still_for_ten_seconds {
        let Some(watcher) = Watcher::new() else { return };
        on_a_victim(|mut peer, channel| {
            channel.send(&vec![1; 1 << 20]).unwrap();
            peer.try_recv().unwrap().unwrap();
            let page = watcher.stand_still_in_a_write_to(peer.blocks[0].clone().unwrap().fd());
            exchange_large_messages(Duration::from_secs(12));
            drop(page);
        });
    }
}

attack! {
    /// A limit on file sizes must not end the process when the process makes memory for the peer.
    a22_a_limit_on_file_sizes {
        on_a_victim(|mut peer, channel| {
            let old = getrlimit(Resource::Fsize);
            for limit in [0, 1, 4096, 65_536, 100_000] {
                setrlimit(Resource::Fsize, Rlimit { current: Some(limit), maximum: old.maximum }).unwrap();
                let failed = channel.try_send(&vec![1; 300_000]).unwrap_err();
                assert_eq!(failed.error, Error::System { call: "ftruncate (RLIMIT_FSIZE)", code: libc::EFBIG });
                assert!(channel.reserve_sealed(300_000).is_err());
                channel.try_send(b"small").unwrap();
                assert_eq!(peer.try_recv().unwrap().unwrap().bytes, b"small");
            }
            setrlimit(Resource::Fsize, old).unwrap();
            channel.try_send(&vec![1; 300_000]).unwrap();
            assert_eq!(peer.try_recv().unwrap().unwrap().bytes.len(), 300_000);
        });
    }
}

/// Returns the index of the memory that contains `needle`, and the offset there; `None` if no memory contains it.
fn find(shared: &[Arc<Memory>], needle: &[u8]) -> Option<(usize, usize)> {
    shared.iter().enumerate().find_map(|(index, memory)| {
        let bytes = memory.read(0, memory.len());
        bytes.windows(needle.len()).position(|window| window == needle).map(|at| (index, at))
    })
}

attack! {
    /// No memory of the peer contains messages to other peers, or bytes behind a message of the victim.
    a34_bytes_of_others_in_shared_memory {
        on_a_victim(|mut peer, channel| {
            let (a, b) = Channel::pair().unwrap();
            let (one, other) = sockets();
            let (c, d) = (Channel::over(one).unwrap(), Channel::over(other).unwrap());
            let secrets: Vec<u8> = CANARY.iter().cycle().take(200_000).copied().collect();
            for (from, to) in [(&a, &b), (&c, &d)] {
                for len in [16, 1000, 10_000, 200_000] {
                    from.try_send(&secrets[..len]).unwrap();
                    assert_eq!(to.recv_by(SOON).unwrap().bytes(), &secrets[..len]);
                }
            }
            // Other bytes of the victim are before a message and behind it.
            let mut buffer = secrets.clone();
            for len in [0, 1, 7, 8, 9, 55, 56, 57, 63, 64, 65, 120, 255, 256, 4000, 70_000, 100_001] {
                buffer[4096..4096 + len].fill(b'-');
                let message = &buffer[4096..4096 + len];
                channel.try_send(message).unwrap();
                channel.send_many([message, message, message], Deadline::NOW).unwrap();
                let mut room = channel.reserve(len, Deadline::NOW).unwrap();
                room.write_at(message, 0);
                room.commit().unwrap();
                let mut room = channel.reserve_sealed(len).unwrap();
                room.bytes().copy_from_slice(message);
                room.commit(Deadline::NOW).unwrap();
                for _ in 0..6 {
                    // Sealed memory is checked as a whole, with its padding.
                    peer.pump().unwrap();
                    for (_, descriptors) in &peer.arrived {
                        for fd in descriptors {
                            let memory = Memory::map(fd.try_clone().unwrap()).unwrap();
                            assert_eq!(find(&[Arc::new(memory)], CANARY), None, "{len} bytes");
                        }
                    }
                    let message = peer.try_recv().unwrap().unwrap();
                    assert_eq!(message.bytes, vec![b'-'; len]);
                }
                assert_eq!(find(&peer.shared(), CANARY), None, "{len} bytes");
            }
            assert!(peer.shared().len() >= 3);
        });
    }
}

/// Returns a sealed file of `len` bytes with the value 7, and a byte that is not 0 right behind its end. That byte is
/// mapped, but a read of the file does not return it.
fn with_something_behind(len: usize) -> OwnedFd {
    let fd = memfd_create("content", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len as u64).unwrap();
    let pages = len.next_multiple_of(4096);
    assert!(len < pages);
    // SAFETY: the kernel chooses the address of the mapping, and the file has its pages. Only this function uses the
    // mapping, and only before `munmap`.
    unsafe {
        let (read, write) = (rustix::mm::ProtFlags::READ, rustix::mm::ProtFlags::WRITE);
        let base = rustix::mm::mmap(std::ptr::null_mut(), pages, read | write, rustix::mm::MapFlags::SHARED, &fd, 0);
        let base = base.unwrap();
        base.cast::<u8>().write_bytes(7, len + 1);
        rustix::mm::munmap(base, pages).unwrap();
    }
    fcntl_add_seals(&fd, SIZE_SEALS | SealFlags::WRITE).unwrap();
    fd
}

attack! {
    /// The peer sends memory with more bytes than its message, and the victim forwards the message to a third
    /// process.
    a34_memory_that_is_more_than_the_message_that_is_sent_on {
        on_a_victim(|mut peer, channel| {
            const LEN: usize = 100_001;
            let (mut third, onward) = meet();
            let with_more = |len: usize| {
                let mut bytes = vec![7; len];
                bytes[LEN..].copy_from_slice(&CANARY.iter().cycle().take(len - LEN).copied().collect::<Vec<_>>());
                immutable(&bytes).unwrap()
            };
            let of_the_message = immutable(&[7; LEN]).unwrap();
            let ways = [
                ("as it should be", of_the_message, true),
                ("more pages", with_more(300_000), false),
                ("more in its page", with_more(LEN + 100), false),
                ("something behind its end", with_something_behind(LEN), false),
            ];
            for (name, memory, passes) in ways {
                for in_place in [false, true] {
                    let sequence = peer.writer.sequence;
                    peer.packet(&Packet::sealed(peer.token, sequence, 0), &[memory.as_fd()]).unwrap();
                    peer.put_sealed(LEN as u64).unwrap();
                    if in_place {
                        channel.recv_in_place(Deadline::NOW).unwrap().forward(&onward, Deadline::NOW).unwrap();
                    } else {
                        let mut message = channel.try_recv().unwrap();
                        assert_eq!(message.bytes(), [7; LEN]);
                        onward.forward(&mut message, Deadline::NOW).unwrap();
                    }
                    third.pump().unwrap();
                    let passed = third.arrived.iter().any(|(packet, _)| packet.fields[2] & strait_hostile::wire::PAYLOAD_SEALED != 0);
                    assert_eq!(passed, passes, "{name}, in place: {in_place}");
                    assert_eq!(third.try_recv().unwrap().unwrap().bytes, [7; LEN], "{name}");
                    assert_eq!(find(&third.shared(), CANARY), None, "{name}");
                }
            }
        });
    }
}
