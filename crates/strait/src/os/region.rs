//! System calls for regions: memfds for sending to other processes, with seals that restrict writing.

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

/// Properties of a memfd, or of another file on a tmpfs, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Size of the file in bytes.
    pub(crate) len: u64,
    /// Whether the size of the file is sealed and can no longer change.
    pub(crate) fixed: bool,
    /// Whether the file is sealed against writes: no process can write to the file, not even through an existing
    /// mapping.
    pub(crate) immutable: bool,
    /// Whether the file can be read, and mapped for reading, through the descriptor.
    pub(crate) readable: bool,
    /// Whether the file can be written to, and mapped for writing, through the descriptor.
    pub(crate) writable: bool,
    /// Whether seals can be added to the file through the descriptor.
    pub(crate) sealable: bool,
}

/// Returns the properties of the file `fd`; `None` if the file is neither a memfd nor another file on a tmpfs with
/// seals.
pub(crate) fn facts(fd: BorrowedFd<'_>) -> Result<Option<Facts>, Error> {
    let seals = match call("fcntl(F_GET_SEALS)", || fs::fcntl_get_seals(fd)) {
        Err(Errno::INVAL | Errno::BADF) => return Ok(None),
        seals => seals.named("fcntl(F_GET_SEALS)")?,
    };
    // Files of hugetlbfs have seals too, and access to a mapping of such a file can fault.
    let system = rustix::io::retry_on_intr(|| call("fstatfs", || fs::fstatfs(fd))).named("fstatfs")?;
    if system.f_type as u64 != TMPFS_MAGIC {
        return Ok(None);
    }
    let flags = call("fcntl(F_GETFL)", || fs::fcntl_getfl(fd)).named("fcntl(F_GETFL)")?;
    // The size is read after the seals: if the seals fix the size, the size stays as found.
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

/// Makes the memfd private to its owner, the user of the process that made it: only this user can open the memfd anew
/// through `/proc`. By default the kernel lets every process with a descriptor for the memfd do so.
pub(crate) fn own_alone(fd: impl AsFd) -> Result<(), Error> {
    call("fchmod", || fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)).named("fchmod")
}

/// Seals the size of the memfd: the size can no longer change. Other seals can still be added.
pub(crate) fn fix_size(fd: impl AsFd) -> Result<(), Error> {
    let seals = SealFlags::SHRINK | SealFlags::GROW;
    call("fcntl(F_ADD_SEALS)", || fs::fcntl_add_seals(&fd, seals)).named("fcntl(F_ADD_SEALS)")
}

/// Seals the memfd against new writers: no new writable mapping can be made, and `write` fails. Existing mappings can
/// still write.
pub(crate) fn admit_no_writer(fd: impl AsFd) -> Result<(), Error> {
    call("fcntl(F_ADD_SEALS)", || fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE)).named("fcntl(F_ADD_SEALS)")
}

/// How long [`seal`] waits until no process has the memfd mapped for writing. Between `fork` and `exec`, a child
/// process has all mappings of its parent, also mappings removed by the parent meanwhile.
const STILL_MAPPED: Duration = Duration::from_millis(100);

/// Seals the memfd against every change: size, contents and seals. Waits up to [`STILL_MAPPED`] (100 ms) until no
/// process has the memfd mapped for writing.
///
/// # Errors
/// [`Error::StillMapped`] if the memfd stays mapped for writing for [`STILL_MAPPED`].
pub(crate) fn seal(fd: impl AsFd) -> Result<(), Error> {
    seal_while(fd, || true).map(drop)
}

/// Seals the memfd as [`seal`] does, as long as `goes_on` returns `true`: `goes_on` is called before each attempt.
/// Returns whether the memfd is sealed.
pub(crate) fn seal_while(fd: impl AsFd, goes_on: impl Fn() -> bool) -> Result<bool, Error> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    let begin = Instant::now();
    while goes_on() {
        match call("fcntl(F_ADD_SEALS)", || fs::fcntl_add_seals(&fd, seals)) {
            // The kernel also returns EBUSY while it uses a page of the memfd for a moment. No event tells when such a
            // use, or a mapping in a child, ends: so the loop tries again after each millisecond.
            Err(Errno::BUSY) if begin.elapsed() < STILL_MAPPED => thread::sleep(Duration::from_millis(1)),
            Err(Errno::BUSY) => return Err(Error::StillMapped),
            done => return done.named("fcntl(F_ADD_SEALS)").map(|()| true),
        }
    }
    Ok(false)
}

/// Returns a number of the file `fd`: files of one file system that exist at the same time have different numbers.
pub(crate) fn number(fd: BorrowedFd<'_>) -> Result<usize, Error> {
    call("fstat", || fs::fstat(fd)).named("fstat").map(|facts| facts.st_ino as usize)
}

/// Returns a new descriptor, for reading only, of the memory `fd`. If another process has a lease on the memory, fails
/// at once, because the wait for the end of the lease could take the time in `fs.lease-break-time`.
pub(crate) fn reopen_for_reading(fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = || fs::open(path.as_str(), flags, Mode::empty());
    call("open(/proc/self/fd)", open).named("open(/proc/self/fd)")
}

/// Returns another descriptor, closed on `exec`, for the same open file as `fd`.
pub(crate) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    call("fcntl(F_DUPFD_CLOEXEC)", || rustix::io::fcntl_dupfd_cloexec(fd, 0)).named("fcntl(F_DUPFD_CLOEXEC)")
}

/// Returns whether `error` is one of the errors that the kernel returns for a write through a read-only descriptor or
/// to sealed memory. In two other cases the kernel returns the same errors: for a write to an open file that another
/// process has set to append, and for a call that a sandbox refuses.
pub(crate) fn is_refusal(error: Error) -> bool {
    let codes = [Errno::BADF, Errno::PERM, Errno::ACCESS, Errno::NOSYS].map(Errno::raw_os_error);
    matches!(error, Error::System { code, .. } if codes.contains(&code))
}

/// Returns the name with which the memfd `fd` was created; `None` if the name cannot be read from `/proc`.
pub(crate) fn name(fd: BorrowedFd<'_>) -> Option<String> {
    let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let name = target.to_str()?.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// Fills `out` from the file `fd`, from byte `offset` on. The file must be long enough and unable to shrink; otherwise
/// the call fails with `EIO`.
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

/// The way in which a region is mapped: for what access, and whether changes are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// `Write`: the mapping is for reading and writing, and is shared with other processes.
    Write,
    /// `Own`: the mapping is for reading and writing memory that no other process has. A forked child does not inherit
    /// the mapping.
    Own,
    /// `Read`: the mapping is for reading, and other processes may write to the memory at the same time.
    Read,
    /// `ReadPrivately`: as `Read`, but not shared. The kernel permits it also while another process seals the memory.
    /// The mapping shows the pages of the memory, because this process never writes to them.
    ReadPrivately,
    /// `Immutable`: the mapping is for reading memory that is sealed against writes. The mapping is private: kernels
    /// before 6.7 refuse a shared mapping of a sealed memfd whose descriptor was opened for writing.
    Immutable,
    /// `Copy`: the mapping is for reading and writing a private copy of memory that is sealed against writes. The
    /// kernel copies each page when this process first writes to the page.
    Copy,
}

impl How {
    /// Returns the arguments of `mmap` for a mapping of the kind `self`.
    fn flags(self) -> (ProtFlags, MapFlags) {
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        match self {
            Self::Write | Self::Own => (read_write, MapFlags::SHARED),
            Self::Read => (ProtFlags::READ, MapFlags::SHARED),
            Self::ReadPrivately | Self::Immutable => (ProtFlags::READ, MapFlags::PRIVATE),
            // The kernel reserves no memory for pages that may never be written to.
            Self::Copy => (read_write, MapFlags::PRIVATE | MapFlags::NORESERVE),
        }
    }
}

/// Maps `len` bytes of the file `fd`, whose size is sealed, from byte `offset` on, in the way `how`. Returns the
/// address of the first byte. A forked child inherits the mapping, except with [`How::Own`].
pub(crate) fn map(fd: BorrowedFd<'_>, offset: u64, len: usize, how: How) -> Result<NonNull<u8>, Error> {
    let (protection, flags) = how.flags();
    let map = || {
        // SAFETY: a null hint makes the kernel choose fresh address space, so no existing mapping is touched.
        unsafe { mm::mmap(ptr::null_mut(), len, protection, flags, fd, offset) }
    };
    let mapped = call("mmap", map).named("mmap")?;
    let base = NonNull::new(mapped.cast()).ok_or_else(|| failed("mmap", Errno::INVAL))?;
    if how == How::Own
        && let Err(error) = keep_from_children(base, len)
    {
        // SAFETY: the range was mapped just now and nothing points into it yet.
        unsafe { unmap(base, len) };
        return Err(error);
    }
    Ok(base)
}

fn keep_from_children(base: NonNull<u8>, len: usize) -> Result<(), Error> {
    // SAFETY: the advice changes nothing in this process.
    let dont_fork = || unsafe { mm::madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) };
    call("madvise(MADV_DONTFORK)", dont_fork).named("madvise(MADV_DONTFORK)")
}

/// Replaces a mapping made by [`map`] with a mapping of the first `len` bytes of the file `fd`, at the same address, in
/// the way `how`. After an error the kernel may have removed the earlier mapping.
///
/// # Safety
/// `base` and `len` are those of a mapping that [`map`] returned, and no reference points into the mapping.
pub(crate) unsafe fn map_over(base: NonNull<u8>, len: usize, fd: BorrowedFd<'_>, how: How) -> Result<(), Error> {
    let (protection, flags) = how.flags();
    let map = || {
        // SAFETY: only a mapping of [`map`] is replaced, and no reference points into it, as the caller promises.
        unsafe { mm::mmap(base.as_ptr().cast(), len, protection, flags | MapFlags::FIXED, fd, 0) }
    };
    call("mmap(MAP_FIXED)", map).named("mmap(MAP_FIXED)")?;
    if how != How::Own {
        return Ok(());
    }
    keep_from_children(base, len).inspect_err(|_| {
        // SAFETY: the range was mapped just now, and nothing points into it.
        unsafe { unmap(base, len) };
    })
}

/// Maps private memory at `base`, where this process must have no mapping, and copies the first `len` bytes of the file
/// `fd` to `base`. For a child of `fork`, which has not inherited a mapping of the kind [`How::Own`]. A piece of 64 KiB
/// takes no memory if all its bytes are 0. After an error nothing is mapped at `base`.
///
/// # Safety
/// `base` and `len` are those of a mapping that [`map`] returned in the parent process, and no reference of this
/// process points into the mapping.
pub(crate) unsafe fn copy_at(base: NonNull<u8>, len: usize, fd: BorrowedFd<'_>) -> Result<(), Error> {
    const CALL: &str = "mmap(MAP_FIXED_NOREPLACE)";
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    let map = || {
        // SAFETY: the kernel replaces no mapping.
        unsafe { mm::mmap_anonymous(base.as_ptr().cast(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
    };
    let mapped = call(CALL, map).named(CALL)?;
    let mapped = NonNull::new(mapped.cast()).ok_or_else(|| failed(CALL, Errno::INVAL))?;
    // Kernels before 4.17 take the address for a hint.
    let copied = if mapped == base { copy_into(mapped, len, fd) } else { Err(failed(CALL, Errno::EXIST)) };
    copied.inspect_err(|_| {
        // SAFETY: the range was mapped just now, and nothing points into it.
        unsafe { unmap(mapped, len) };
    })
}

/// Copies the first `len` bytes of the file `fd` to fresh memory at `base`, except pieces of zeroes.
fn copy_into(base: NonNull<u8>, len: usize, fd: BorrowedFd<'_>) -> Result<(), Error> {
    const PIECE: usize = 1 << 16;
    let mut buffer = vec![0; PIECE.min(len)];
    for offset in (0..len).step_by(PIECE) {
        let piece = &mut buffer[..PIECE.min(len - offset)];
        read_at(fd, piece, offset as u64)?;
        if piece.iter().any(|byte| *byte != 0) {
            // SAFETY: the range was mapped just now for writing, and nothing else points into it.
            unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), base.as_ptr().add(offset), piece.len()) };
        }
    }
    Ok(())
}

/// Removes a mapping made by [`map`].
///
/// # Safety
/// `base` and `len` are those of a mapping that [`map`] returned, and nothing points into the mapping.
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the range is a mapping of [`map`] and nothing points into it, as the caller promises.
    let _ = call("munmap", || unsafe { mm::munmap(base.as_ptr().cast(), len) });
}

/// Asks the kernel to back the `len` mapped bytes from `base` on with huge pages, now and for later pages. The kernel
/// may have no huge pages, or not use them for shared memory (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`).
/// Affects speed only.
pub(crate) fn prefer_huge_pages(base: NonNull<u8>, len: usize) {
    // SAFETY: the advice changes no byte of memory and no mapping, only the size of pages.
    let advise = || unsafe { mm::madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
    let _ = call("madvise(MADV_HUGEPAGE)", advise);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes each later `madvise` of the calling thread fail.
    fn refuse_advice() {
        let step = |code: u32, jump_else: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: jump_else, k };
        let mut filter = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_madvise as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the program and its filter live until the calls return; the kernel copies them.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program), 0);
        }
    }

    #[test]
    fn memory_that_cannot_be_kept_from_children_is_not_left_mapped() {
        let fd = fs::memfd_create("strait-advice-refused", fs::MemfdFlags::CLOEXEC).unwrap();
        fs::ftruncate(&fd, 4096).unwrap();
        let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("strait-advice-refused");
        thread::scope(|scope| {
            scope.spawn(|| {
                let base = map(fd.as_fd(), 0, 4096, How::Own).unwrap();
                assert!(is_mapped());
                refuse_advice();
                // SAFETY: the mapping was made just now, and nothing points into it.
                unsafe { map_over(base, 4096, fd.as_fd(), How::Own) }.unwrap_err();
                assert!(!is_mapped());
            });
        });
    }
}
