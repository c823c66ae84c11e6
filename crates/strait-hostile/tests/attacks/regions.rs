//! Regions that do not match their handle table.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use strait::region::{Access, Region};
use strait::{Channel, Error, Outgoing};
use strait_hostile::memory::{SIZE_SEALS, file, immutable};
use strait_hostile::peer::Arena;
use strait_hostile::record::{A_REGION, AN_END};
use strait_hostile::{Memory, Packet, RawPeer, Table};

use crate::common::*;
use crate::standstill::Watcher;

/// Sets flags of an open file, for all processes with a descriptor of the file.
fn set_flags(fd: impl AsFd, flags: OFlags) {
    rustix::fs::fcntl_setfl(&fd, flags).unwrap();
}

/// Checks that the region can be written from its first byte to its last, whatever happened to the open file.
fn assert_can_be_written(region: &Region) {
    assert_eq!(region.access(), Ok(Access::Writable));
    for (bytes, offset) in
        [(&b"first"[..], 0), (b"in the middle", 4090), (b"last", region.len() - 4), (b"", region.len())]
    {
        region.write_at(bytes, offset).unwrap();
        let mut seen = vec![0; bytes.len()];
        region.read_at(&mut seen, offset).unwrap();
        assert_eq!(seen, bytes);
    }
    assert_eq!(region.len(), 8192);
}

/// Sends a descriptor as a region with the claimed size `len`. Returns the result of the victim.
fn offer(peer: &mut RawPeer, channel: &Channel, fd: impl AsFd, len: u64) -> Result<Region, Error> {
    let packet = Packet::handles(peer.token, peer.writer.sequence, 1);
    peer.packet(&packet, &[fd.as_fd()]).unwrap();
    peer.send_ends(b"", 1, &Table::of_region(len), &[]).unwrap();
    let mut message = channel.try_recv()?;
    Ok(message.take_handles()?.remove(0).into_region().expect("a region, or an error"))
}

attack! {
    a05_regions_that_are_none {
        type Make = Box<dyn Fn() -> OwnedFd>;
        let fds: [(&str, Make); 6] = [
            ("of no sealed size", Box::new(|| file(8192, SealFlags::empty()).unwrap())),
            ("that can grow", Box::new(|| file(8192, SealFlags::SHRINK).unwrap())),
            ("that can shrink", Box::new(|| file(8192, SealFlags::GROW).unwrap())),
            ("a device", Box::new(|| std::fs::File::open("/dev/null").unwrap().into())),
            ("a socket", Box::new(|| sockets().0)),
            ("a file", Box::new(|| std::fs::File::open("/proc/self/exe").unwrap().into())),
        ];
        for (what, make) in fds {
            on_a_victim(|mut peer, channel| {
                let reason = bad_peer(offer(&mut peer, &channel, make(), 8192));
                assert_eq!(reason, "a region that is not a memfd of sealed size", "{what}");
            });
        }
        // Memory of huge pages, if there are any: a mapping of such memory could fault.
        on_a_victim(|mut peer, channel| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING;
            let Ok(huge) = rustix::fs::memfd_create("hostile", flags) else { return };
            if rustix::fs::ftruncate(&huge, 2 << 20).is_ok() {
                rustix::fs::fcntl_add_seals(&huge, SIZE_SEALS).unwrap();
                bad_peer(offer(&mut peer, &channel, huge, 2 << 20));
            }
        });
    }
}

attack! {
    a06_regions_of_another_size {
        for claim in [0, 1, 8191, 8193, 1 << 30, 1 << 36] {
            on_a_victim(|mut peer, channel| {
                let offered = offer(&mut peer, &channel, file(8192, SIZE_SEALS).unwrap(), claim);
                // The claimed size is charged before the memory is checked.
                if claim == 1 << 36 {
                    assert!(matches!(offered, Err(Error::BadPeer(_) | Error::LimitReached(_))), "{offered:?}");
                } else {
                    assert_eq!(bad_peer(offered), "a region of another size than announced");
                }
            });
        }
        on_a_victim(|mut peer, channel| {
            let offered = offer(&mut peer, &channel, file(8192, SIZE_SEALS).unwrap(), u64::MAX);
            assert_eq!(bad_peer(offered), "an invalid handle table");
        });
    }
}

attack! {
    a06_regions_without_a_descriptor_and_in_messages_of_ends {
        on_a_victim(|mut peer, channel| {
            peer.send_ends(b"", 1, &Table::of_region(8192), &[]).unwrap();
            bad_peer(channel.try_recv());
        });
        // A region in a backlog message of an end.
        on_a_victim(|mut peer, channel| {
            let arena = Arena::new(1, 1 << 72, 4, 4).unwrap();
            peer.packet(&arena.packet(0), &[arena.memory.fd()]).unwrap();
            let mut table = Table::of(&[AN_END]).end(arena.name(0), 0, 0, 1).message(b"", 0, &[A_REGION]);
            table.0.extend(9000u64.to_le_bytes());
            let packet = Packet::handles(peer.token, peer.writer.sequence, 1);
            peer.packet(&packet, &[file(8192, SIZE_SEALS).unwrap().as_fd()]).unwrap();
            peer.send_ends(b"", 1, &table, &[arena.lane(0)]).unwrap();
            assert_eq!(bad_peer(channel.try_recv()), "a region of another size than announced");
        });
    }
}

attack! {
    a07_regions_that_are_not_sealed_are_not_read_in_place {
        on_a_victim(|mut peer, channel| {
            for more in [SealFlags::empty(), SealFlags::SEAL, SealFlags::FUTURE_WRITE] {
                let memory = Memory::create_with(8192, SealFlags::SHRINK | SealFlags::GROW).unwrap();
                rustix::fs::fcntl_add_seals(memory.fd(), more).unwrap();
                let region = offer(&mut peer, &channel, memory.fd(), 8192).unwrap();
                assert_eq!(region.view(..).unwrap_err().error, Error::NotSealed);
                assert_eq!(region.copy_on_write(..).unwrap_err().error, Error::NotSealed);
                // The victim sees the bytes that the peer writes, and a read returns a copy.
                let map = region.map(..).unwrap();
                memory.word64(0).store(7, SeqCst);
                let mut seen = [0; 8];
                map.read_at(&mut seen, 0).unwrap();
                memory.word64(0).store(8, SeqCst);
                assert_eq!(u64::from_ne_bytes(seen), 7);
            }
        });
    }
}

attack! {
    a08_a_sealed_region_stays_what_it_is_whatever_its_maker_does {
        on_a_victim(|mut peer, channel| {
            let fd = immutable(&[5; 8192]).unwrap();
            let region = offer(&mut peer, &channel, &fd, 8192).unwrap();
            assert_eq!(region.access().unwrap(), Access::Sealed);
            let view = region.view(..).unwrap();
            assert!(rustix::fs::ftruncate(&fd, 0).is_err());
            assert!(rustix::io::pwrite(&fd, &[6], 0).is_err());
            let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            assert!(rustix::fs::fallocate(&fd, hole, 0, 4096).is_err());
            // Mappings that the peer makes from now on are read-only.
            drop(Memory::map(fd).unwrap());
            assert_eq!(view[..], [5; 8192]);
        });
    }
}

attack! {
    a08_an_open_file_that_others_have_too_still_takes_what_is_written {
        // A region made and sent by the victim: the receiver has the victim's open file.
        on_a_victim(|mut peer, channel| {
            let region = Region::new(8192).unwrap();
            channel.try_send(Outgoing::new(b"").handle(region.clone())).unwrap();
            let received = peer.recv(SOON).unwrap().descriptors.remove(0);
            for flags in [OFlags::APPEND, OFlags::APPEND | OFlags::NONBLOCK, OFlags::NOATIME, OFlags::empty()] {
                set_flags(&received, flags);
                assert_can_be_written(&region);
            }
            // Writers stay forbidden.
            set_flags(&received, OFlags::APPEND);
            rustix::fs::fcntl_add_seals(&received, SealFlags::FUTURE_WRITE).unwrap();
            assert_eq!(region.write_at(b"x", 0).unwrap_err().error, Error::ReadOnly);
        });
        // A region made by the peer.
        on_a_victim(|mut peer, channel| {
            let fd = file(8192, SealFlags::SHRINK | SealFlags::GROW).unwrap();
            set_flags(&fd, OFlags::APPEND);
            let region = offer(&mut peer, &channel, &fd, 8192).unwrap();
            assert_can_be_written(&region);
            assert_eq!(region.reader().unwrap().write_at(b"x", 0).unwrap_err().error, Error::ReadOnly);
        });
    }
}

attack! {
    a08_a_lease_on_a_region_holds_up_nobody {
        on_a_victim(|mut peer, channel| {
            let file = file(8192, SIZE_SEALS).unwrap();
            // The kernel gives a lease only on a file opened by path, since only such a file has a count of writers.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
            drop(file);
            let region = offer(&mut peer, &channel, &opened, 8192).unwrap();
            // SAFETY: the calls take no pointers to memory of this process; SIGIO, the signal about a waiting
            // process, is ignored.
            let leased = unsafe {
                libc::signal(libc::SIGIO, libc::SIG_IGN);
                libc::fcntl(opened.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
            };
            assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
            let begin = Instant::now();
            let refused = Error::System { call: "open(/proc/self/fd)", code: libc::EAGAIN };
            assert_eq!(region.reader().unwrap_err().error, refused);
            // The kernel would wait for 45 seconds, or as long as `fs.lease-break-time` says.
            assert!(begin.elapsed() < SOON);
            assert_can_be_written(&region);
            drop(opened);
        });
    }
}

/// Checks that a write to the region succeeds, and that calls that seal the region fail in time, while another holder
/// of the region stands still in a write to the memory `held`.
fn assert_used_while_a_writer_stands_still(watcher: &Watcher, region: &Region, held: impl AsFd) {
    let page = watcher.stand_still_in_a_write_to(held);
    in_time("writing", || assert_can_be_written(region));
    in_time("mapping", || region.map_writable(..).unwrap().write_at(b"mapped", 0).unwrap());
    let mut seen = [0; 6];
    in_time("reading", || region.map(..).unwrap().read_at(&mut seen, 0).unwrap());
    assert_eq!(&seen, b"mapped");
    for _ in 0..3 {
        assert_eq!(in_time("sealing", || region.seal()).unwrap_err().error, Error::WouldBlock);
        assert_eq!(in_time("freezing", || region.admit_no_writer()).unwrap_err().error, Error::WouldBlock);
    }
    // The many calls have left one thread that waits.
    assert_eq!(threads_named("strait-seal"), 1);
    drop(page);
    let begin = Instant::now();
    while let Err(failed) = region.seal() {
        assert!(failed.error == Error::WouldBlock && begin.elapsed() < SOON, "{failed}");
    }
    assert_eq!(region.access(), Ok(Access::Sealed));
    while threads_named("strait-seal") > 0 {
        assert!(begin.elapsed() < SOON, "a thread never ends");
    }
}

/// Returns the number of threads of this process with this name.
fn threads_named(name: &str) -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path().join("comm"));
    threads.filter(|comm| std::fs::read_to_string(comm).is_ok_and(|found| found.trim() == name)).count()
}

attack! {
    /// A holder of a region stands still in a write to the region. The kernel then makes other writes wait, and every
    /// call that adds a seal.
    a08_a_region_whose_holder_stands_still_in_a_write {
        let Some(watcher) = Watcher::new() else { return };
        // A region made by the victim, and a region made by the peer.
        on_a_victim(|mut peer, channel| {
            let region = Region::new(8192).unwrap();
            channel.try_send(Outgoing::new(b"").handle(region.clone())).unwrap();
            let received = peer.recv(SOON).unwrap().descriptors.remove(0);
            assert_used_while_a_writer_stands_still(&watcher, &region, &received);
        });
        on_a_victim(|mut peer, channel| {
            let fd = file(8192, SealFlags::SHRINK | SealFlags::GROW).unwrap();
            let region = offer(&mut peer, &channel, &fd, 8192).unwrap();
            assert_used_while_a_writer_stands_still(&watcher, &region, &fd);
        });
        // The program gives the descriptor away by itself, the second time of a handle for reading.
        let region = Region::new(8192).unwrap();
        assert_used_while_a_writer_stands_still(&watcher, &region, region.to_fd().unwrap());
        let region = Region::new(8192).unwrap();
        let reader = region.reader().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let again = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_used_while_a_writer_stands_still(&watcher, &region, &again);
    }
}

attack! {
    /// A process sends a descriptor of memory whose size is not sealed, and stands still in a write to the memory. The
    /// program makes a region of the descriptor.
    a08_memory_that_becomes_a_region_while_its_sender_stands_still_in_a_write {
        let Some(watcher) = Watcher::new() else { return };
        let fd = file(8192, SealFlags::empty()).unwrap();
        let page = watcher.stand_still_in_a_write_to(&fd);
        let mut given = fd.try_clone().unwrap();
        for _ in 0..6 {
            let (failed, back) = in_time("making a region", || Region::from_fd(given)).unwrap_err();
            assert_eq!(failed.error, Error::WouldBlock);
            given = back;
        }
        assert!(threads_named("strait-seal") <= 4);
        drop(page);
        let begin = Instant::now();
        let region = loop {
            match Region::from_fd(given) {
                Ok(region) => break region,
                Err((failed, back)) => {
                    assert!(failed.error == Error::WouldBlock && begin.elapsed() < SOON, "{failed}");
                    given = back;
                }
            }
        };
        assert_can_be_written(&region);
    }
}
