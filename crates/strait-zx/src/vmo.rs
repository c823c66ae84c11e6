//! VMOs: memory as an object, on memfds.
//!
//! System calls read and write the memory, not a mapping. So whatever another process does to the size of the memory,
//! no access faults. There is one exception: memory of a fixed size that another process may have is written through a
//! mapping. Such a process can block a system call that writes as long as the process likes.
//!
//! VMOs are not Strait's regions. A region has a fixed size, is mapped whole, and counts whole for its receiver. A
//! VMO can be resizable, empty, or too large to map, and unwritten pages cost nothing. So a VMO from a peer counts as
//! a descriptor.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::{Errno, ReadWriteFlags};
use strait::region::Region;

use crate::abi::{ZX_VMO_RESIZABLE, zx_koid_t};
use crate::koid;
use crate::status::{Result, Status};

/// Size of a page in bytes; sizes are rounded up to pages.
const PAGE: u64 = 4096;
/// Maximum size of a VMO in bytes.
const MAX: u64 = i64::MAX as u64 & !(PAGE - 1);

/// Memory in a memfd.
pub(crate) struct Vmo {
    fd: OwnedFd,
    koid: zx_koid_t,
    /// Whether another process may have a descriptor of the memory. Such a process can hold the lock of the memory's
    /// file as long as the process likes, in a write that does not end.
    is_shared: AtomicBool,
}

impl Vmo {
    /// Makes memory of `size` zero bytes, rounded up to pages.
    pub(crate) fn new(size: u64, options: u32) -> Result<Self> {
        if options & !ZX_VMO_RESIZABLE != 0 {
            return Err(Status::INVALID_ARGS);
        }
        if size > MAX {
            return Err(Status::OUT_OF_RANGE);
        }
        check_file_size_limit(size.next_multiple_of(PAGE))?;
        let fd = rustix::fs::memfd_create("zx-vmo", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, size.next_multiple_of(PAGE))?;
        let seals = if options & ZX_VMO_RESIZABLE != 0 {
            SealFlags::SEAL
        } else {
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
        };
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        Ok(Self { fd, koid: koid::next(), is_shared: AtomicBool::new(false) })
    }

    /// Checks that a descriptor that has arrived can be a VMO.
    ///
    /// # Errors
    /// `PEER_CLOSED` if the descriptor is not a memfd.
    pub(crate) fn check_received(fd: impl AsFd) -> Result<()> {
        // Only memfds have seals.
        rustix::fs::fcntl_get_seals(fd).map(drop).map_err(|_| Status::PEER_CLOSED)
    }

    /// Makes a VMO of a descriptor that has arrived and is [checked](Self::check_received).
    pub(crate) fn received(fd: OwnedFd, koid: zx_koid_t) -> Self {
        Self { fd, koid, is_shared: AtomicBool::new(true) }
    }

    pub(crate) fn koid(&self) -> zx_koid_t {
        self.koid
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> Result<u64> {
        Ok(rustix::fs::fstat(&self.fd)?.st_size as u64)
    }

    /// Checks that the memory has `len` bytes from `offset` on.
    pub(crate) fn check(&self, offset: u64, len: usize) -> Result<()> {
        let end = offset.checked_add(len as u64).ok_or(Status::OUT_OF_RANGE)?;
        if end > self.size()? { Err(Status::OUT_OF_RANGE) } else { Ok(()) }
    }

    /// Reads bytes from `offset` on.
    pub(crate) fn read(&self, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            match rustix::io::pread(&self.fd, &mut *out, offset) {
                // The memory has become smaller.
                Ok(0) => return Err(Status::OUT_OF_RANGE),
                Ok(n) => {
                    out = &mut out[n..];
                    offset += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes bytes from `offset` on. If the memory is resizable and another process has it, waits while that process
    /// writes.
    pub(crate) fn write(&self, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        if self.is_shared.load(Ordering::Acquire) && self.has_fixed_size()? {
            return self.write_through_a_mapping(offset, bytes);
        }
        check_file_size_limit(offset.saturating_add(bytes.len() as u64))?;
        while !bytes.is_empty() {
            match pwrite(self.fd.as_fd(), bytes, offset) {
                Ok(n) => {
                    bytes = &bytes[n..];
                    offset += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns whether the size can never change, so that an access to a mapping does not fault.
    fn has_fixed_size(&self) -> Result<bool> {
        let seals = rustix::fs::fcntl_get_seals(&self.fd)?;
        Ok(seals.contains(SealFlags::SHRINK | SealFlags::GROW) && is_plain_memory(&self.fd)?)
    }

    /// Writes bytes from `offset` on to memory of a fixed size.
    fn write_through_a_mapping(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let fd = self.fd.try_clone().map_err(|_| Status::NO_RESOURCES)?;
        let region = Region::from_fd(fd).map_err(|(failed, _fd)| failed);
        let offset = usize::try_from(offset).map_err(|_| Status::OUT_OF_RANGE)?;
        region.and_then(|region| region.write_at(bytes, offset)).map_err(|failed| match failed.error {
            strait::Error::ReadOnly => Status::ACCESS_DENIED,
            strait::Error::OutOfRange { .. } => Status::OUT_OF_RANGE,
            error => error.into(),
        })
    }
}

/// The flag `RWF_NOAPPEND` of `pwritev2`: write at the given offset although the open file is set to append (Linux
/// 6.9).
const NO_APPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

/// Writes at `offset`. All processes with the memory share one open file, possibly with the append flag.
fn pwrite(fd: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> rustix::io::Result<usize> {
    match rustix::io::pwritev2(fd, &[IoSlice::new(bytes)], offset, NO_APPEND) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        written => return written,
    }
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if flags.contains(OFlags::APPEND) {
        // A process that sets the flag again only harms memory that the process may write anyway.
        rustix::fs::fcntl_setfl(fd, flags - OFlags::APPEND)?;
    }
    rustix::io::pwrite(fd, bytes, offset)
}

/// Checks that a file may have `len` bytes. Otherwise SIGXFSZ would kill a process that enlarges a file beyond
/// `RLIMIT_FSIZE`, or writes beyond the limit.
pub(crate) fn check_file_size_limit(len: u64) -> Result<()> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if limit < len => Err(Errno::FBIG.into()),
        _ => Ok(()),
    }
}

/// Returns whether a descriptor is a memfd without huge pages. A mapping of any other file may fault.
pub(crate) fn is_plain_memory(fd: impl AsFd) -> Result<bool> {
    /// `f_type` of tmpfs in `statfs(2)`.
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    Ok(rustix::io::retry_on_intr(|| rustix::fs::fstatfs(&fd))?.f_type as u64 == TMPFS_MAGIC)
}

impl AsFd for Vmo {
    /// Returns the descriptor of the memory. From now on another process may have a duplicate of the descriptor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.is_shared.store(true, Ordering::Release);
        self.fd.as_fd()
    }
}
