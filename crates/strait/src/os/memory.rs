//! System calls for memory: memfds, their seals, and mappings.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{self, MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::process::signals;
use super::{Named, call, failed, last_errno};
use crate::error::Error;

/// The number by which `statfs(2)` names tmpfs, the file system of every memfd without huge pages.
pub(super) const TMPFS_MAGIC: u64 = 0x0102_1994;

/// How often sealing a memfd against writes is tried again after `EBUSY`. With a single try, sealing failed once in
/// about half a million times although no writable mapping was left, because the kernel held a page for a moment.
const SEAL_TRIES: usize = 8;

/// Returns the seals without which an access to a mapping of a file could fault: with them, neither the size nor the
/// seals of the file can change.
fn size_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

/// Creates a memfd of `len` bytes, to which seals can be added. The error names the refused system call.
pub(crate) fn memfd(name: &str, len: usize) -> Result<OwnedFd, Error> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let create = |flags| call("memfd_create", || fs::memfd_create(name, flags));
    let fd = match create(flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag `NOEXEC_SEAL`; no other refusal has the error EINVAL.
        Err(Errno::INVAL) => create(flags),
        made => made,
    }
    .named("memfd_create")?;
    check_file_size_limit("ftruncate (RLIMIT_FSIZE)", len)?;
    rustix::io::retry_on_intr(|| call("ftruncate", || fs::ftruncate(&fd, len as u64))).named("ftruncate")?;
    Ok(fd)
}

/// Fails with EFBIG if a file of `len` bytes would exceed `RLIMIT_FSIZE`. Without this check, growing a file over the
/// limit, or writing behind the limit, would kill this process with SIGXFSZ. The error names the system call `what`.
pub(crate) fn check_file_size_limit(what: &'static str, len: usize) -> Result<(), Error> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    match limit {
        Some(limit) if limit < len as u64 => Err(failed(what, Errno::FBIG)),
        _ => Ok(()),
    }
}

/// Seals the size of the memfd `fd`, whose contents both sides will write. Also seals the seals, so that no further
/// seal can be added.
pub(crate) fn seal_size(fd: impl AsFd) -> Result<(), Error> {
    call("fcntl(F_ADD_SEALS)", || fs::fcntl_add_seals(fd, size_seals())).named("fcntl(F_ADD_SEALS)")
}

/// Seals the memfd `fd` against every change. Fails if a process still has the memfd mapped for writing.
pub(crate) fn seal_all(fd: impl AsFd) -> Result<(), Error> {
    try_to_seal(&fd).named("fcntl(F_ADD_SEALS)")
}

/// Seals the memfd `fd` of `len` bytes against every change, and returns a sealed memfd. This process must have made
/// `fd` with [`memfd`] and have mapped the memfd only to fill it.
///
/// If another process still has the original mapped, the result is a sealed copy with the name `name`. Another process
/// can have a mapping if a thread forks a child between `mmap` and `madvise(MADV_DONTFORK)`: the child keeps the
/// mapping until it executes a program, perhaps never.
pub(crate) fn sealed(fd: OwnedFd, name: &str, len: usize) -> Result<OwnedFd, Error> {
    match try_to_seal(&fd) {
        Err(Errno::BUSY) => {}
        done => return done.named("fcntl(F_ADD_SEALS)").map(|()| fd),
    }
    let copy = memfd(name, len)?;
    let mut piece = vec![0; len.min(64 << 10)];
    let mut at = 0;
    while at < len {
        let piece = &mut piece[..(len - at).min(64 << 10)];
        match call("pread", || rustix::io::pread(&fd, &mut *piece, at as u64)) {
            // This process gave the memfd its size; only a process that may write to the memfd can have changed the
            // size.
            Ok(0) => return Err(failed("pread", Errno::IO)),
            Ok(read) => {
                write_at(&copy, &piece[..read], at as u64)?;
                at += read;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("pread", errno)),
        }
    }
    seal_all(&copy)?;
    Ok(copy)
}

fn try_to_seal(fd: impl AsFd) -> Result<(), Errno> {
    let mut tries = 0;
    loop {
        match call("fcntl(F_ADD_SEALS)", || fs::fcntl_add_seals(&fd, size_seals() | SealFlags::WRITE)) {
            Err(Errno::BUSY) if tries < SEAL_TRIES => {
                tries += 1;
                std::thread::yield_now();
            }
            done => return done,
        }
    }
}

/// Properties of a memfd from a peer, which [`check_memfd`] has read from the kernel.
pub(crate) struct Checked {
    /// The real size of the memfd in bytes, which no longer changes.
    pub(crate) len: usize,
    /// Whether the memfd is sealed against writes, so that no process can change its contents.
    pub(crate) immutable: bool,
    /// Whether this process can map the memfd for reading.
    pub(crate) readable: bool,
    /// Whether this process can map the memfd for writing, and so write to it.
    pub(crate) writable: bool,
}

/// Returns the properties of `fd` if the descriptor is a memfd with a sealed size; otherwise `None`. Access to a
/// mapping of any other file could fault or stall. An error reports a failed system call, not a property of the
/// descriptor.
pub(crate) fn check_memfd(fd: BorrowedFd<'_>) -> Result<Option<Checked>, Error> {
    let seals = match call("fcntl(F_GET_SEALS)", || fs::fcntl_get_seals(fd)) {
        // Files of this kind do not support seals.
        Err(Errno::INVAL | Errno::BADF) => return Ok(None),
        seals => seals.named("fcntl(F_GET_SEALS)")?,
    };
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Ok(None);
    }
    // Files of other file systems can have seals too (hugetlbfs), with other rules for faults.
    let system = rustix::io::retry_on_intr(|| call("fstatfs", || fs::fstatfs(fd))).named("fstatfs")?;
    if system.f_type as u64 != TMPFS_MAGIC {
        return Ok(None);
    }
    let size = call("fstat", || fs::fstat(fd)).named("fstat")?.st_size;
    let flags = call("fcntl(F_GETFL)", || fs::fcntl_getfl(fd)).named("fcntl(F_GETFL)")?;
    let writable = flags.contains(OFlags::RDWR) && !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
    let readable = !flags.contains(OFlags::WRONLY);
    let immutable = seals.contains(SealFlags::WRITE);
    Ok(usize::try_from(size).ok().map(|len| Checked { len, immutable, readable, writable }))
}

/// Writes all of `bytes` to the file `fd`, from byte `offset` on. Filling a fresh memfd in this way takes about half
/// the time of filling it through a mapping, which faults once for each page.
pub(crate) fn write_at(fd: impl AsFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Error> {
    while !bytes.is_empty() {
        match call("pwrite", || rustix::io::pwrite(&fd, bytes, offset)) {
            Ok(n) => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("pwrite", errno)),
        }
    }
    Ok(())
}

/// Writes the `len` bytes of memory from `from` on to the file `to`, in one system call; the memory may change
/// meanwhile. Returns how many bytes the file has accepted. Fails with [`Error::WouldBlock`] if the file accepts none
/// now. Raises no signal.
///
/// # Safety
/// `len` bytes from `from` on are mapped for reading.
pub(crate) unsafe fn write_from(to: BorrowedFd<'_>, from: *const u8, len: usize) -> Result<usize, Error> {
    loop {
        // A slice is not possible: Rust permits no slice of memory that changes.
        let write = || {
            // SAFETY: the caller promises that the `len` bytes are mapped for reading; the borrow keeps the descriptor
            // open.
            let written = unsafe { libc::write(to.as_raw_fd(), from.cast(), len) };
            usize::try_from(written).map_err(|_| last_errno())
        };
        match signals::without_signals(|| call("write", write)) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(Error::WouldBlock),
            written => return written.named("write"),
        }
    }
}

/// Reads from the file `from` into `into`, in one system call. Returns the number of bytes read, 0 at the end of the
/// file. Fails with [`Error::WouldBlock`] if there is nothing to read now.
pub(crate) fn read_into(from: BorrowedFd<'_>, into: &mut [MaybeUninit<u8>]) -> Result<usize, Error> {
    loop {
        match call("read", || rustix::io::read(from, &mut *into).map(|(read, _)| read.len())) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(Error::WouldBlock),
            read => return read.named("read"),
        }
    }
}

/// The memory that [`map`] maps, and the access that the mapping permits.
pub(crate) enum Source<'a> {
    /// The mapping shows fresh zeroed memory, which no other process can map.
    Anonymous,
    /// The mapping shows a memfd, for reading and writing, and shares its changes with other processes.
    Shared(BorrowedFd<'a>),
    /// The mapping shows a memfd that is sealed against writes, for reading. The mapping is private: kernels before 6.7
    /// refuse a shared mapping if the descriptor was opened for writing.
    Sealed(BorrowedFd<'a>),
}

/// Maps the first `len` bytes of `source`, and returns the address of the first byte. A forked child does not inherit
/// the mapping.
pub(crate) fn map(source: Source<'_>, len: usize) -> Result<NonNull<u8>, Error> {
    let read_write = ProtFlags::READ | ProtFlags::WRITE;
    let map = || {
        // SAFETY: a null hint makes the kernel choose fresh address space, so no existing mapping is touched.
        unsafe {
            match source {
                Source::Anonymous => mm::mmap_anonymous(ptr::null_mut(), len, read_write, MapFlags::PRIVATE),
                Source::Shared(fd) => mm::mmap(ptr::null_mut(), len, read_write, MapFlags::SHARED, fd, 0),
                Source::Sealed(fd) => mm::mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, fd, 0),
            }
        }
    };
    let mapped = call("mmap", map).named("mmap")?;
    // SAFETY: the range was mapped just now, and no pointer leads into it yet.
    let dont_fork = || unsafe { mm::madvise(mapped, len, Advice::LinuxDontFork) };
    if let Err(errno) = call("madvise(MADV_DONTFORK)", dont_fork) {
        // SAFETY: the range was mapped just now, and no pointer leads into it yet.
        let _ = unsafe { mm::munmap(mapped, len) };
        return Err(failed("madvise(MADV_DONTFORK)", errno));
    }
    NonNull::new(mapped.cast()).ok_or_else(|| failed("mmap", Errno::INVAL))
}

/// Removes a mapping made by [`map`].
///
/// # Safety
/// `base` and `len` are those of a mapping that [`map`] returned in this process, and nothing points into the mapping.
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller promises that the range is a mapping of [`map`] and that nothing points into it.
    let _ = call("munmap", || unsafe { mm::munmap(base.as_ptr().cast(), len) });
}

/// Allocates the pages of the `len` bytes from byte `offset` on of the mapping at `base` now, in one call
/// (`MADV_POPULATE_WRITE`, Linux 5.14). If the kernel refuses, each page is allocated at its first use.
pub(crate) fn populate(base: NonNull<u8>, offset: usize, len: usize) {
    // SAFETY: populating a mapping has no visible effect on its contents.
    let populate = || unsafe { mm::madvise(base.as_ptr().add(offset).cast(), len, Advice::LinuxPopulateWrite) };
    let _ = call("madvise(MADV_POPULATE_WRITE)", populate);
}

/// Gives the `len` bytes from byte `offset` on of the mapping at `base` back to the kernel (`MADV_REMOVE`, or
/// `MADV_DONTNEED` for memory that no other process can map). The bytes are zeroes then. Returns whether the kernel did
/// so.
pub(crate) fn discard(base: NonNull<u8>, offset: usize, len: usize) -> bool {
    // SAFETY: the range is inside a mapping of memory that has no meaning to Rust. The bytes become zeroes, as if a
    // peer had written zeroes.
    let discard = |advice| unsafe { mm::madvise(base.as_ptr().add(offset).cast(), len, advice) };
    match call("madvise(MADV_REMOVE)", || discard(Advice::LinuxRemove)) {
        // For private memory, MADV_REMOVE fails with EINVAL.
        Err(Errno::INVAL) => call("madvise(MADV_DONTNEED)", || discard(Advice::LinuxDontNeed)).is_ok(),
        removed => removed.is_ok(),
    }
}

/// Maps one page of zeroes, which the kernel clears again in each forked child (`MADV_WIPEONFORK`, Linux 4.14). So only
/// the process that made the page sees its contents. Returns the address of the page.
pub(crate) fn map_wiped_on_fork() -> Result<NonNull<u8>, Error> {
    let len = rustix::param::page_size();
    let read_write = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a null hint makes the kernel choose fresh address space.
    let map = || unsafe { mm::mmap_anonymous(ptr::null_mut(), len, read_write, MapFlags::PRIVATE) };
    let mapped = call("mmap", map).named("mmap")?;
    // SAFETY: the range was mapped just now, and no pointer leads into it yet.
    let wipe_on_fork = || unsafe { mm::madvise(mapped, len, Advice::LinuxWipeOnFork) };
    call("madvise(MADV_WIPEONFORK)", wipe_on_fork).named("madvise(MADV_WIPEONFORK)")?;
    NonNull::new(mapped.cast()).ok_or_else(|| failed("mmap", Errno::INVAL))
}

/// Returns whether the descriptor number of `fd` is open in this process.
pub(crate) fn is_open(fd: impl AsFd) -> bool {
    call("fcntl(F_GETFD)", || rustix::io::fcntl_getfd(fd)).is_ok()
}
