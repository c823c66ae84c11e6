//! Tests of regions: access rights, and how regions travel.

mod common;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{DEADLINE, Role, finish, parent, pattern, spawn, wait_until};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use strait::quota::{Limits, Resource, set_limits};
use strait::region::{Access, Region, RegionCopy, RegionError, RegionOptions, RegionWriter};
use strait::{Channel, Error, Handle, Outgoing};

const ROLES: &[(&str, Role)] = &[
    ("reader", |_| reader()),
    ("meddler", |_| meddler()),
    ("writer that stops", |_| writer_that_stops()),
    ("limited", |_| limited()),
    ("short of file size", |_| short_of_file_size()),
    ("sealer in place", |_| sealer_in_place()),
    ("echo", |_| common::echo(&parent())),
];

#[test]
fn child() {
    common::play(ROLES);
}

fn receive(channel: &Channel) -> Region {
    let mut message = channel.recv_by(DEADLINE).unwrap();
    message.take_handles().unwrap().remove(0).into_region().expect("a region")
}

/// Seals a region without writable mappings in this test. Waits for children of other tests, which have copies of the
/// mapping until their `exec`.
fn seal(region: &Region) {
    wait_until("no process has the region mapped for writing", || match region.seal() {
        Ok(()) => true,
        Err(failed) => failed.error != Error::StillMapped && panic!("{failed}"),
    });
}

fn send(channel: &Channel, region: &Region) {
    channel.send(Outgoing::new(b"").handle(region.clone())).unwrap();
}

/// Shows that a region can be mapped for reading while another holder of the memory seals it, and that a mapping for
/// writing fails with a temporary error. As long as the kernel waits for pages that a pipe still has, the kernel
/// refuses shared mappings, and then the seal fails.
#[test]
fn a_region_is_mapped_while_another_holder_seals_its_memory() {
    let region = Region::new(4096).unwrap();
    region.write_at(b"read", 0).unwrap();
    let memory = region.to_fd().unwrap();
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    // SAFETY: a null hint makes the kernel choose free address space, and the pipe only reads the page.
    unsafe {
        let page =
            rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &memory, 0).unwrap();
        let piece = [rustix::pipe::IoSliceRaw::from_slice(std::slice::from_raw_parts(page.cast::<u8>(), 4096))];
        rustix::pipe::vmsplice(&writer, &piece, rustix::pipe::SpliceFlags::empty()).unwrap();
    }
    let (is_over, is_sealing) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sealer = scope.spawn(|| {
            let (mut waits, deadline) = (0, Instant::now() + DEADLINE);
            // A seal that finds a mapping fails at once. The other seals wait for the page in the pipe.
            while waits < 3 && Instant::now() < deadline {
                let begun = Instant::now();
                is_sealing.store(true, Ordering::Relaxed);
                let sealed = rustix::fs::fcntl_add_seals(&memory, SealFlags::WRITE);
                is_sealing.store(false, Ordering::Relaxed);
                assert_eq!(sealed, Err(rustix::io::Errno::BUSY));
                waits += u32::from(begun.elapsed() >= Duration::from_millis(20));
            }
            is_over.store(true, Ordering::Relaxed);
            waits
        });
        let (mut read, mut refusals) = ([0; 4], 0);
        while !is_over.load(Ordering::Relaxed) {
            // The seal is to begin before there is a mapping.
            std::thread::sleep(Duration::from_millis(1));
            while is_sealing.load(Ordering::Relaxed) {
                region.map(..).expect("a mapping").read_at(&mut read, 0).unwrap();
                assert_eq!(&read, b"read");
                if let Err(failed) = region.map_writable(..) {
                    assert_eq!(failed.error, Error::WouldBlock, "{failed}");
                    refusals += 1;
                }
            }
        }
        assert_eq!(sealer.join().unwrap(), 3, "no seal waited");
        assert!(refusals > 0, "the memory was never being sealed");
    });
}

/// Returns every way in which the memory behind a descriptor can be written to, except through existing mappings.
fn ways_to_write(fd: impl AsFd) -> Vec<&'static str> {
    let mut ways = Vec::new();
    if rustix::io::pwrite(&fd, b"x", 0).is_ok() {
        ways.push("write");
    }
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd.as_fd()));
    let again = rustix::fs::open(path.as_str(), OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    let mut map = |fd: &dyn Fn() -> OwnedFd, name| {
        // SAFETY: a null hint makes the kernel choose free address space; the mapping is not touched, and unmapped at
        // once.
        unsafe {
            let mapped = rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::WRITE, MapFlags::SHARED, fd(), 0);
            if let Ok(mapped) = mapped {
                rustix::mm::munmap(mapped, 4096).unwrap();
                ways.push(name);
            }
        }
    };
    map(&|| fd.as_fd().try_clone_to_owned().unwrap(), "mapping");
    if let Ok(again) = again {
        map(&|| again.try_clone().unwrap(), "opening anew and mapping");
        if rustix::io::pwrite(&again, b"x", 0).is_ok() {
            ways.push("opening anew and writing");
        }
    }
    if rustix::fs::ftruncate(&fd, 1).is_ok() {
        ways.push("shrinking");
    }
    ways
}

/// Answers with a checksum of the region, read in place.
fn reader() {
    let channel = parent();
    let region = receive(&channel);
    let view = region.view(..).unwrap();
    // The mapping outlives the region.
    drop(region);
    channel.send(&common::checksum(&view).to_le_bytes()).unwrap();
    assert_eq!(channel.recv().unwrap_err(), Error::PeerClosed);
}

/// Answers each region with the ways in which the process could write.
fn meddler() {
    let channel = parent();
    while let Ok(mut message) = channel.recv() {
        let region = message.take_handles().unwrap().remove(0).into_region().unwrap();
        let access = region.access().unwrap();
        let through_us = region.write_at(b"x", 0).is_ok() || region.map_writable(..).is_ok();
        let answer = format!("{access:?} {through_us} {}", ways_to_write(&region).join(", "));
        channel.send(answer.as_str()).unwrap();
    }
}

/// Maps a region for writing, reports it, and does nothing more.
fn writer_that_stops() {
    let channel = parent();
    let region = receive(&channel);
    let map = region.map_writable(..).unwrap();
    map.word64(0).unwrap().store(1, Ordering::SeqCst);
    channel.send(b"mapped").unwrap();
    let _ = channel.recv();
}

/// Has a region larger than the limit on file sizes, which is one page, and receives another. Checks that writes behind
/// the limit fail for the own region, and succeed for the received one.
fn short_of_file_size() {
    let channel = parent();
    let (region, own) = (receive(&channel), Region::new(8192).unwrap());
    channel.send(b"received").unwrap();
    let fsize = rustix::process::Resource::Fsize;
    let hard = rustix::process::getrlimit(fsize).maximum;
    rustix::process::setrlimit(fsize, rustix::process::Rlimit { current: Some(4096), maximum: hard }).unwrap();
    // The process is not killed by a signal either.
    for (at, len) in [(4096, 1), (4000, 200), (0, 8192)] {
        region.write_at(&vec![1; len], at).unwrap();
        let error = own.write_at(&vec![1; len], at).unwrap_err();
        assert!(
            matches!(error.error, Error::System { code, .. } if code == rustix::io::Errno::FBIG.raw_os_error()),
            "{error}"
        );
    }
    own.write_at(&[2; 4096], 0).unwrap();
    region.map_writable(4096..).unwrap().write_at(&[3], 0).unwrap();
    channel.send(b"written").unwrap();
    let _ = channel.recv();
}

/// Limits the regions of the peer in this process to one megabyte, and checks what counts against the limit.
fn limited() {
    let channel = parent();
    set_limits(Limits::new().peer(Resource::Regions, 1 << 20));
    let held = || channel.peer_usage().unwrap().unwrap().peer(Resource::Regions).held;
    let first = receive(&channel);
    assert_eq!((first.len(), held()), (600_000, 600_000));
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::LimitReached(Resource::Regions));
    // A mapping counts like the region, and a clone does not count again.
    let (map, clone) = (first.map(..10).unwrap(), first.clone());
    drop(first);
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::LimitReached(Resource::Regions));
    drop(clone);
    assert_eq!(held(), 600_000);
    drop(map);
    let second = receive(&channel);
    assert_eq!((second.len(), held()), (700_000, 700_000));
    // A region left in a message is released when the message is dropped.
    drop(second);
    drop(channel.recv_by(DEADLINE).unwrap());
    assert_eq!(held(), 0);
    channel.send(b"done").unwrap();
    let _ = channel.recv();
}

#[test]
fn what_is_sealed_is_read_in_place_by_another_process() {
    let (actor, channel) = spawn("reader");
    let bytes = pattern(1, 3_000_000);
    let region = RegionOptions::new().create_from(&bytes).unwrap();
    assert_eq!(region.view(..).unwrap_err().error, Error::NotSealed);
    seal(&region);
    send(&channel, &region);
    let sum = channel.recv_by(DEADLINE).unwrap();
    assert_eq!(sum.bytes(), common::checksum(&bytes).to_le_bytes());
    drop(channel);
    finish(actor);
}

/// Shows that the kernel enforces the access rights of a region in another process.
#[test]
fn rights_are_the_kernels_to_give() {
    let (_actor, channel) = spawn("meddler");
    let ask = |region: &Region| {
        send(&channel, region);
        String::from_utf8(channel.recv_by(DEADLINE).unwrap().into_bytes()).unwrap()
    };
    let writable = Region::new(8192).unwrap();
    let ways = ask(&writable);
    assert!(ways.starts_with("Writable true write, mapping"), "{ways}");
    assert!(!ways.contains("shrinking"));
    // A read-only handle cannot be used to write; a process of the same user could open the memory anew.
    let reader = writable.reader().unwrap();
    assert!(ask(&reader).starts_with("ReadOnly false opening anew"));
    // While this process has a writable mapping, no other process can begin to write in any way.
    let map = writable.map_writable(..).unwrap();
    writable.admit_no_writer().unwrap();
    assert_eq!(ask(&writable), "ReadOnly false ");
    assert_eq!(ask(&reader), "ReadOnly false ");
    map.write_at(b"still", 100).unwrap();
    let mut seen = [0; 5];
    reader.read_at(&mut seen, 100).unwrap();
    assert_eq!(&seen, b"still");
    assert_eq!(writable.seal().unwrap_err().error, Error::StillMapped);
    assert_eq!(reader.seal().unwrap_err().error, Error::ReadOnly);
    drop(map);
    seal(&writable);
    assert_eq!(ask(&writable), "Sealed false ");
    assert_eq!(reader.access().unwrap(), Access::Sealed);
    assert_eq!(&reader.view(100..105).unwrap()[..], b"still");
    assert_eq!(reader.copy_on_write(..).unwrap().len(), 8192);
}

#[test]
fn a_writer_that_stops_keeps_a_region_from_being_sealed_until_it_is_killed() {
    let (mut actor, channel) = spawn("writer that stops");
    let region = Region::new(4096).unwrap();
    send(&channel, &region);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"mapped");
    let pid = rustix::process::Pid::from_raw(actor.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    assert_eq!(region.seal().unwrap_err().error, Error::StillMapped);
    actor.kill();
    seal(&region);
    assert_eq!(region.view(0..8).unwrap()[..], 1u64.to_ne_bytes());
}

#[test]
fn writing_behind_the_limit_of_file_sizes_is_an_error_and_kills_nobody() {
    let (_actor, channel) = spawn("short of file size");
    let region = Region::new(10_000).unwrap();
    send(&channel, &region);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"received");
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"written");
    let mut seen = [0; 4098];
    region.read_at(&mut seen, 0).unwrap();
    assert_eq!((seen[4095], seen[4096], seen[4097]), (1, 3, 1));
}

#[test]
fn parts_are_mapped_at_any_offset_and_nothing_outside() {
    let bytes = pattern(2, 10_000);
    let region = Region::sealed(&bytes).unwrap();
    for range in [0..10_000, 1..2, 4095..4097, 4096..8192, 9_999..10_000, 10_000..10_000, 5..5] {
        assert_eq!(region.view(range.clone()).unwrap()[..], bytes[range.clone()]);
        let map = region.map(range.clone()).unwrap();
        let mut out = vec![0; range.len()];
        map.read_at(&mut out, 0).unwrap();
        assert_eq!(out, bytes[range]);
        assert_eq!(map.read_at(&mut [0], map.len()).unwrap_err().error, Error::OutOfRange { len: map.len() });
        assert_eq!(map.read_at(&mut [0], usize::MAX).unwrap_err().error, Error::OutOfRange { len: map.len() });
        assert_eq!(map.write_at(b"", 0).unwrap_err().error, Error::ReadOnly);
        assert!(map.word64(0).is_none());
    }
    let outside = Error::OutOfRange { len: 10_000 };
    assert_eq!(region.view(..10_001).unwrap_err().error, outside);
    assert_eq!(region.view(..=usize::MAX).unwrap_err().error, outside);
    #[allow(clippy::reversed_empty_ranges, reason = "that it is refused is what this is about")]
    let reversed = region.view(7..3);
    assert_eq!(reversed.unwrap_err().error, outside);
    assert_eq!(region.read_at(&mut [0; 2], 9_999).unwrap_err().error, outside);
    assert_eq!(region.map_writable(..).unwrap_err().error, Error::ReadOnly);

    let region = Region::new(10_000).unwrap();
    let part = region.map_writable(4_100..4_200).unwrap();
    assert!(part.word32(2).is_none() && part.word64(96).is_none() && part.word64(usize::MAX).is_none());
    part.word32(4).unwrap().store(0x0403_0201, Ordering::Relaxed);
    // A mapping returns words of a single size, the size of the first word: here four bytes.
    assert!(part.word64(0).is_none() && part.word64(8).is_none() && part.word32(8).is_some());
    assert_eq!(region.map_writable(4_096..).unwrap().word64(8).unwrap().load(Ordering::Relaxed), 0x0403_0201);
    part.write_at(b"end of it.", 90).unwrap();
    assert!(part.write_at(b"end of it.", 91).is_err());
    drop(part);
    let mut seen = [0; 4];
    region.read_at(&mut seen, 4_104).unwrap();
    assert_eq!(u32::from_ne_bytes(seen), 0x0403_0201);
    let mut seen = [0; 11];
    region.read_at(&mut seen, 4_190).unwrap();
    assert_eq!(&seen, b"end of it.\0");
    assert_eq!(region.write_at(b"12", 9_999).unwrap_err().error, outside);
    let empty = Region::new(0).unwrap();
    assert!(empty.is_empty() && empty.map(..).unwrap().is_empty());
    seal(&empty);
    assert!(empty.view(..).unwrap().is_empty());
}

/// Returns the resident memory of this process alone, in kilobytes.
fn private_kilobytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find(|line| line.starts_with("Private_Dirty:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Shows that a copy-on-write mapping needs memory only for written pages, and does not change the region.
#[test]
fn a_copy_costs_what_is_written_to_and_changes_nothing() {
    const SIZE: usize = 64 << 20;
    let bytes = vec![7; 1 << 20];
    let region = Region::new(SIZE).unwrap();
    for offset in (0..SIZE).step_by(bytes.len()) {
        region.write_at(&bytes, offset).unwrap();
    }
    drop(bytes);
    assert_eq!(region.copy_on_write(..).unwrap_err().error, Error::NotSealed);
    seal(&region);
    let before = private_kilobytes();
    let mut copies: Vec<_> = (0..8).map(|_| region.copy_on_write(..).unwrap()).collect();
    for (n, copy) in copies.iter_mut().enumerate() {
        copy[SIZE / 2] = n as u8;
        copy[SIZE - 1] = 0;
    }
    // The copies cost sixteen pages, and the limit leaves room for other memory of this process; full copies would cost
    // 524,288 kilobytes.
    assert!(private_kilobytes() < before + 65_536);
    for (n, copy) in copies.iter().enumerate() {
        assert_eq!((copy[SIZE / 2 - 1], copy[SIZE / 2]), (7, n as u8));
    }
    let view = region.view(..).unwrap();
    assert_eq!((view[SIZE / 2], view[SIZE - 1]), (7, 7));
}

#[test]
fn memfds_become_regions_only_if_they_cannot_shrink() {
    let memfd = |flags| rustix::fs::memfd_create("strait-test", flags).unwrap();
    // The memfd permits seals.
    let fd = memfd(MemfdFlags::ALLOW_SEALING);
    rustix::fs::ftruncate(&fd, 5000).unwrap();
    let other = fd.try_clone().unwrap();
    let region = Region::from_fd(fd).unwrap();
    assert_eq!(region.len(), 5000);
    assert!(rustix::fs::ftruncate(&other, 10).is_err());
    let again = Region::from_fd(region.to_fd().unwrap()).unwrap();
    again.write_at(b"shared", 0).unwrap();
    let mut seen = [0; 6];
    region.map(..6).unwrap().read_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"shared");

    let refused = |fd: OwnedFd| {
        let (error, _back) = Region::from_fd(fd).unwrap_err();
        assert!(matches!(error.error, Error::NotARegion(_)), "{error}");
    };
    refused(memfd(MemfdFlags::empty()));
    let fd = memfd(MemfdFlags::ALLOW_SEALING);
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::SEAL).unwrap();
    refused(fd);
    // A receiver would take the sender of such a region for a bad peer.
    let path = format!("/proc/self/fd/{}", region.as_raw_fd());
    let write_only = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let (failed, _back) = Region::from_fd(write_only.into()).unwrap_err();
    assert_eq!(failed.error, Error::NotARegion("it is open for writing only"));
    refused(std::fs::File::open("/dev/null").unwrap().into());
    refused(std::fs::File::open(std::env::current_exe().unwrap()).unwrap().into());
}

#[test]
fn regions_travel_with_other_handles_within_a_process_and_in_what_moves() {
    let (to_holder, from_holder) = Channel::pair().unwrap();
    let (keep, travels) = Channel::pair().unwrap();
    let region = Region::sealed(b"inside").unwrap();
    keep.send(Outgoing::new(b"nested").handle(region.clone()).handle(std::fs::File::open("/dev/null").unwrap()))
        .unwrap();
    let handles: Vec<Handle> = vec![region.clone().into(), travels.into(), Region::new(10).unwrap().into()];
    to_holder.send(Outgoing::new(b"mixed").handles(handles)).unwrap();
    // The handles travel to another process and back.
    let mut handles = from_holder.recv().unwrap().take_handles().unwrap();
    let (_actor, echo) = spawn("echo");
    for _ in 0..2 {
        echo.send(Outgoing::new(b"round").handles(handles)).unwrap();
        handles = echo.recv_by(DEADLINE).unwrap().take_handles().unwrap();
    }
    let blank = handles.remove(2).into_region().unwrap();
    assert_eq!((blank.len(), blank.access().unwrap()), (10, Access::Writable));
    let travels = handles.remove(1).into_channel().unwrap();
    assert_eq!(handles.remove(0).into_region().unwrap().view(..).unwrap()[..], *b"inside");
    let mut nested = travels.recv_by(DEADLINE).unwrap();
    assert_eq!(nested.bytes(), b"nested");
    let mut nested = nested.take_handles().unwrap();
    assert!(nested.remove(1).into_fd().is_some());
    assert_eq!(nested.remove(0).into_region().unwrap().view(..).unwrap()[..], *b"inside");
}

/// Shows that the regions of a peer in this process are limited.
#[test]
fn what_a_peer_has_here_is_limited() {
    let (actor, channel) = spawn("limited");
    for size in [600_000, 700_000, 800_000] {
        send(&channel, &Region::new(size).unwrap());
    }
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"done");
    drop(channel);
    finish(actor);
}

#[test]
fn nothing_is_left_of_regions_that_were_sent_and_dropped() {
    let (_actor, echo) = spawn("echo");
    let round = || {
        send(&echo, &Region::new(100_000).unwrap());
        receive(&echo).map_writable(..).unwrap().write_at(b"used", 0).unwrap();
        // The program leaves the region in the message.
        send(&echo, &Region::new(100_000).unwrap());
        drop(echo.recv_by(DEADLINE).unwrap());
    };
    round();
    let mine = || {
        std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| {
                let target = std::fs::read_link(entry.ok()?.path()).ok()?;
                target.to_str()?.contains("memfd:strait-region-leak").then_some(())
            })
            .count()
    };
    let region = RegionOptions::new().name("strait-region-leak").create(10).unwrap();
    assert_eq!(region.name().as_deref(), Some("strait-region-leak"));
    assert_eq!(mine(), 1);
    for _ in 0..50 {
        round();
        send(&echo, &region);
        drop(receive(&echo).map(..).unwrap());
    }
    drop(region);
    assert_eq!(mine(), 0);
}

#[test]
fn threads_that_seal_one_region_at_once_all_succeed() {
    for _ in 0..10_000 {
        let region = Region::new(4096).unwrap();
        let both = std::sync::Barrier::new(2);
        let seal = || {
            both.wait();
            region.seal()
        };
        let results = std::thread::scope(|scope| [scope.spawn(seal), scope.spawn(seal)].map(|one| one.join().unwrap()));
        assert_eq!(results, [Ok(()), Ok(())]);
    }
}

/// Shows that only the user who made a region can open the region anew through a descriptor, for every way of making.
#[test]
fn only_its_owner_can_open_a_region_anew() {
    let regions = [
        Region::new(4096).unwrap(),
        Region::sealed(b"sealed").unwrap(),
        RegionOptions::new().name("named").create_from(b"bytes").unwrap(),
    ];
    for region in regions {
        assert_eq!(rustix::fs::fstat(&region).unwrap().st_mode & 0o777, 0o600);
    }
}

/// Seals `writer`. Fails if that takes a copy to another address.
fn seal_writer(mut writer: RegionWriter) -> (Region, RegionCopy) {
    let address = writer.as_mut_ptr();
    let (region, copy) = writer.seal().map_err(|(error, _)| error).unwrap();
    assert_eq!(copy.as_ptr(), address);
    (region, copy)
}

/// Sends a region sealed in place, writes to the private copy, and sends a sealed message while keeping it.
fn sealer_in_place() {
    let channel = parent();
    let bytes = pattern(3, 3_000_001);
    let mut writer = RegionOptions::new().name("in-place").writer(bytes.len()).unwrap();
    writer.copy_from_slice(&bytes);
    let (region, mut copy) = seal_writer(writer);
    send(&channel, &region);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), common::checksum(&bytes).to_le_bytes());
    copy[0] ^= 1;
    copy[3_000_000] ^= 1;
    assert_eq!(region.access().unwrap(), Access::Sealed);
    send(&channel, &region);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), common::checksum(&bytes).to_le_bytes());
    drop(region);
    assert_eq!((copy[0], copy[1], copy[3_000_000]), (bytes[0] ^ 1, bytes[1], bytes[3_000_000] ^ 1));

    let mut room = channel.reserve_sealed(bytes.len()).unwrap();
    room.bytes().copy_from_slice(&bytes);
    let address = room.bytes().as_mut_ptr();
    let mut kept = room.commit_and_keep(DEADLINE).unwrap();
    kept[5] ^= 1;
    assert_eq!((kept.as_ptr(), kept.len()), (address.cast_const(), bytes.len()));
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), common::checksum(&bytes).to_le_bytes());
    assert_eq!((kept[4], kept[5]), (bytes[4], bytes[5] ^ 1));
    assert!(channel.reserve_sealed(0).unwrap().commit_and_keep(DEADLINE).unwrap().is_empty());
    assert!(channel.recv_by(DEADLINE).unwrap().bytes() == common::checksum(b"").to_le_bytes());
}

/// Shows that the receiver gets the sealed bytes, in spite of later writes of the sender to its own memory.
#[test]
fn memory_that_its_owner_filled_is_sealed_without_a_copy() {
    let (actor, channel) = spawn("sealer in place");
    let bytes = pattern(3, 3_000_001);
    let region = receive(&channel);
    let view = region.view(..).unwrap();
    assert_eq!(*view, *bytes);
    channel.send(&common::checksum(&view).to_le_bytes()).unwrap();
    let again = receive(&channel);
    assert_eq!(*again.view(..).unwrap(), *bytes);
    assert_eq!(*view, *bytes);
    channel.send(&common::checksum(&view).to_le_bytes()).unwrap();
    for expected in [&*bytes, b""] {
        let message = channel.recv_in_place(DEADLINE).unwrap();
        channel.send(&common::checksum(message.sealed().unwrap()).to_le_bytes()).unwrap();
        assert_eq!(message.sealed(), Some(expected));
    }
    finish(actor);
}

#[test]
fn sealing_in_place_needs_no_memory_and_leaves_no_mapping() {
    let maps = |name: &str| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(name)).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut writer = RegionOptions::new().name("strait-no-copy").writer(32 << 20).unwrap();
    writer.fill(7);
    let before = private_kilobytes();
    let (region, mut copy) = seal_writer(writer);
    assert!(copy.iter().all(|byte| *byte == 7));
    copy[0] = 8;
    // A copy would have cost 32,768 kilobytes. The limit leaves room for other tests.
    assert!(private_kilobytes() < before + 16_384, "{before}");
    let mapped = maps("strait-no-copy");
    assert!(mapped.len() == 1 && mapped[0].contains(" rw-p "), "{mapped:?}");
    assert_eq!(region.view(..1).unwrap()[..], [7]);
    drop((copy, region));
    assert_eq!(maps("strait-no-copy"), [""; 0]);
    let (empty, copy) = seal_writer(RegionWriter::new(0).unwrap());
    assert!(copy.is_empty() && empty.is_sealed().unwrap());
}

/// Shows that an error of a region names the size of the region and the bytes that were asked for.
#[test]
fn an_error_names_the_size_and_the_bytes() {
    let text = |failed: RegionError| {
        let text = failed.to_string();
        assert!(text.starts_with(&format!("{}: ", failed.doing())), "{text}");
        text
    };
    let too_large = Region::new(usize::MAX).unwrap_err();
    assert_eq!((too_large.size, too_large.range.clone()), (Some(usize::MAX), None));
    assert!(text(too_large).starts_with("making a region of 18446744073709551615 bytes: ftruncate"));
    let vast = Region::new(1 << 62).unwrap().map(..).unwrap_err();
    assert_eq!(vast.error, Error::NoMemory { call: "mmap" });
    assert!(text(vast).starts_with("mapping bytes 0..4611686018427387904 of a region of 4611686018427387904 bytes: "));
    let region = Region::new(100).unwrap();
    let outside = region.map(90..120).unwrap_err();
    assert_eq!((outside.size, outside.range.clone()), (Some(100), Some(90..120)));
    assert!(text(outside).ends_with("out of range: give an offset and a length within its 100 bytes"));
    assert_eq!(region.write_at(b"1234", 98).unwrap_err().range, Some(98..102));
    assert_eq!(region.map(40..).unwrap().read_at(&mut [0; 20], 50).unwrap_err().range, Some(50..70));
    assert!(
        text(region.view(..).unwrap_err()).starts_with("mapping bytes 0..100 of a region of 100 bytes: the region is")
    );
    let (failed, fd) = Region::from_fd(std::fs::File::open("/dev/null").unwrap().into()).unwrap_err();
    assert!(text(failed).starts_with(&format!("making a region from descriptor {}: ", fd.as_raw_fd())));
}
