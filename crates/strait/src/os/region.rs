//! Regions: memfds that are handed out, with seals that say who may still write.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{self, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::memory::TMPFS_MAGIC;
use super::{Named, call, failed};
use crate::error::Error;

/// What the kernel says of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Bytes.
    pub(crate) len: u64,
    /// Whether that can change no more.
    pub(crate) fixed: bool,
    /// Whether nobody can write any more, not even through a mapping that exists.
    pub(crate) immutable: bool,
    /// Whether this descriptor can be read and mapped.
    pub(crate) readable: bool,
    /// Whether this descriptor can be written to and mapped for writing.
    pub(crate) writable: bool,
    /// Whether this descriptor can be used to add seals.
    pub(crate) sealable: bool,
}

/// Looks at a descriptor; `None` if it is not a memfd, nor like one.
pub(crate) fn facts(fd: BorrowedFd<'_>) -> Result<Option<Facts>, Error> {
    let seals = match call("fcntl(F_GET_SEALS)", || fs::fcntl_get_seals(fd)) {
        Err(Errno::INVAL | Errno::BADF) => return Ok(None),
        seals => seals.named("fcntl(F_GET_SEALS)")?,
    };
    // Files of hugetlbfs have seals too, and a mapping of one can fault.
    let system = rustix::io::retry_on_intr(|| call("fstatfs", || fs::fstatfs(fd))).named("fstatfs")?;
    if system.f_type as u64 != TMPFS_MAGIC {
        return Ok(None);
    }
    let flags = call("fcntl(F_GETFL)", || fs::fcntl_getfl(fd)).named("fcntl(F_GETFL)")?;
    // After the seals: a size that they fix is the size from then on.
    let size = call("fstat", || fs::fstat(fd)).named("fstat")?.st_size;
    let opened_for_both = flags.contains(OFlags::RDWR);
    Ok(u64::try_from(size).ok().map(|len| Facts {
        len,
        fixed: seals.contains(SealFlags::SHRINK | SealFlags::GROW),
        immutable: seals.contains(SealFlags::WRITE),
        readable: !flags.contains(OFlags::WRONLY),
        writable: opened_for_both && !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE),
        sealable: opened_for_both && !seals.contains(SealFlags::SEAL),
    }))
}

/// Lets nobody but its owner open a memfd anew, which the kernel otherwise allows everybody who has a descriptor.
pub(crate) fn own_alone(fd: impl AsFd) -> Result<(), Error> {
    call("fchmod", || fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)).named("fchmod")
}

/// Fixes the size of a memfd. Other seals can still be added.
pub(crate) fn fix_size(fd: impl AsFd) -> Result<(), Error> {
    let seals = SealFlags::SHRINK | SealFlags::GROW;
    call("fcntl(F_ADD_SEALS)", || fs::fcntl_add_seals(&fd, seals)).named("fcntl(F_ADD_SEALS)")
}

/// Lets nobody become a writer any more: mappings that can write stay, no others can be made, and `write` fails.
pub(crate) fn admit_no_writer(fd: impl AsFd) -> Result<(), Error> {
    call("fcntl(F_ADD_SEALS)", || fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE)).named("fcntl(F_ADD_SEALS)")
}

/// How long somebody may still have it mapped for writing when a memfd is to be sealed: a child has all mappings of its
/// parent from `fork` to `exec`, also those that the parent has just ended.
const STILL_MAPPED: Duration = Duration::from_millis(100);

/// Seals a memfd against every change; waits [`STILL_MAPPED`] for who has it mapped for writing.
///
/// # Errors
/// [`Error::StillMapped`] if somebody has it mapped for writing all that time.
pub(crate) fn seal(fd: impl AsFd) -> Result<(), Error> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    let begin = Instant::now();
    loop {
        match call("fcntl(F_ADD_SEALS)", || fs::fcntl_add_seals(&fd, seals)) {
            // So it is also for a moment while the kernel uses a page of it.
            Err(Errno::BUSY) if begin.elapsed() < STILL_MAPPED => thread::sleep(Duration::from_millis(1)),
            Err(Errno::BUSY) => return Err(Error::StillMapped),
            done => return done.named("fcntl(F_ADD_SEALS)"),
        }
    }
}

/// A descriptor for the same memory that cannot be written to. Does not wait for a lease of another process's to end, which
/// would take as long as `fs.lease-break-time` says.
pub(crate) fn reopen_for_reading(fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = || fs::open(path.as_str(), flags, Mode::empty());
    call("open(/proc/self/fd)", open).named("open(/proc/self/fd)")
}

/// Another descriptor for the same open file.
pub(crate) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    call("fcntl(F_DUPFD_CLOEXEC)", || rustix::io::fcntl_dupfd_cloexec(fd, 0)).named("fcntl(F_DUPFD_CLOEXEC)")
}

/// Whether the kernel gives this error for a write through a descriptor that cannot write, or to memory that is sealed. It gives the
/// same for others: for a write to an open file that another process has set to append, and for a call that a sandbox refuses.
pub(crate) fn is_refusal(error: Error) -> bool {
    let codes = [Errno::BADF, Errno::PERM, Errno::ACCESS, Errno::NOSYS].map(Errno::raw_os_error);
    matches!(error, Error::System { code, .. } if codes.contains(&code))
}

/// The name that a memfd was made with.
pub(crate) fn name(fd: BorrowedFd<'_>) -> Option<String> {
    let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let name = target.to_str()?.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// Copies from a file that cannot shrink.
pub(crate) fn read_at(fd: impl AsFd, out: &mut [u8], offset: u64) -> Result<(), Error> {
    let mut done = 0;
    while done < out.len() {
        match call("pread", || rustix::io::pread(&fd, &mut out[done..], offset + done as u64)) {
            Ok(0) => return Err(failed("pread", Errno::IO)),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("pread", errno)),
        }
    }
    Ok(())
}

/// How memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Shared, for reading and writing.
    Write,
    /// Shared, for reading.
    Read,
    /// Immutable memory. Not as shared: kernels before 6.7 refuse that for a descriptor that was opened for writing.
    Immutable,
    /// Immutable memory, whose pages are copied as they are written to.
    Copy,
}

/// Maps part of a file whose size is fixed. A `fork` carries it into the child.
pub(crate) fn map(fd: BorrowedFd<'_>, offset: u64, len: usize, how: How) -> Result<NonNull<u8>, Error> {
    let read_write = ProtFlags::READ | ProtFlags::WRITE;
    let (protection, flags) = match how {
        How::Write => (read_write, MapFlags::SHARED),
        How::Read => (ProtFlags::READ, MapFlags::SHARED),
        How::Immutable => (ProtFlags::READ, MapFlags::PRIVATE),
        // Nothing is set aside for pages that may never be written to.
        How::Copy => (read_write, MapFlags::PRIVATE | MapFlags::NORESERVE),
    };
    let map = || {
        // SAFETY: a null hint makes the kernel choose fresh address space, so no existing mapping is touched.
        unsafe { mm::mmap(ptr::null_mut(), len, protection, flags, fd, offset) }
    };
    let mapped = call("mmap", map).named("mmap")?;
    NonNull::new(mapped.cast()).ok_or_else(|| failed("mmap", Errno::INVAL))
}

/// Ends a mapping made by [`map`].
///
/// # Safety
/// `base` and `len` are those of a mapping that [`map`] returned, and nothing points into it.
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    let _ = call("munmap", || unsafe { mm::munmap(base.as_ptr().cast(), len) });
}

/// Asks for huge pages, for what is mapped and for what will be. The kernel may not have any, or not give them to shared
/// memory (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`): only a matter of speed.
pub(crate) fn prefer_huge_pages(base: NonNull<u8>, len: usize) {
    // SAFETY: advice on pages changes nothing that can be seen.
    let advise = || unsafe { mm::madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
    let _ = call("madvise(MADV_HUGEPAGE)", advise);
}
