//! Shared memory as a hostile peer has it: mapped once more, to be written to.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::mm::{self, MapFlags, ProtFlags};

/// The greatest size in bytes of memory that is mapped and written to.
const LARGEST: usize = 64 << 20;

/// The number of bytes at the start of a memory in which a word that is not zero is looked for.
const NEAR: usize = 64 << 10;

/// The number of bytes of a lane's two control blocks.
const CONTROLS: usize = 256;

/// The offsets in bytes of the words of a control block.
const CONTROL_WORDS: [usize; 11] = [0, 4, 8, 16, 20, 24, 64, 72, 80, 88, 96];

/// The offsets in bytes of the words of a data pipe.
const PIPE_WORDS: [usize; 12] = [0, 4, 8, 128, 132, 136, 256, 384, 16, 20, 144, 148];

/// The number of bytes of a lane in an arena of many lanes.
const SMALL_LANE: usize = 768;

/// A mapped piece of shared memory.
#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

impl Shared {
    /// Maps the memory of a descriptor; `None` if it cannot be mapped writable, may shrink, or has an unsuitable size.
    pub(crate) fn map(fd: BorrowedFd<'_>) -> Option<Self> {
        let seals = fs::fcntl_get_seals(fd).ok()?;
        if !seals.contains(SealFlags::SHRINK) || seals.contains(SealFlags::WRITE) {
            return None;
        }
        let len = usize::try_from(fs::fstat(fd).ok()?.st_size).ok().filter(|len| (8..=LARGEST).contains(len))?;
        let fd = fd.try_clone_to_owned().ok()?;
        // SAFETY: the kernel chooses fresh address space.
        let base = unsafe {
            mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)
        };
        Some(Self { base: NonNull::new(base.ok()?.cast())?, len, fd })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns whether `fd` is the same file as this memory.
    pub(crate) fn is(&self, fd: BorrowedFd<'_>) -> bool {
        let name = |fd| fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
        name(self.fd.as_fd()) == name(fd)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        let offset = (offset % self.len) & !3;
        // SAFETY: the word is inside the mapping and aligned. Every process accesses shared memory atomically, or by
        // copies that assume that it changes meanwhile.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        let offset = (offset % self.len) & !7;
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Returns the offset that an input means: that of a byte, of a word that is not zero, of a word of a control block
    /// or of a data pipe, or of the header of a record.
    fn offset(&self, how: u8, at: usize) -> usize {
        match how % 4 {
            2 if how >= 0x80 => PIPE_WORDS[at % PIPE_WORDS.len()],
            0 => at % self.len,
            1 => self.nonzero(at),
            2 => at / 32 % (self.len.div_ceil(SMALL_LANE)) * SMALL_LANE + at / 16 % 2 * 128 + CONTROL_WORDS[at % 11],
            _ => CONTROLS + at * 64,
        }
    }

    /// Returns the offset of one of the words near the start that are not zero: where something was written.
    fn nonzero(&self, at: usize) -> usize {
        let words = || (0..self.len.min(NEAR)).step_by(4).filter(|at| self.word(*at).load(Ordering::Relaxed) != 0);
        let count = words().take(256).count();
        if count == 0 { 0 } else { words().nth(at % count).unwrap_or(0) }
    }

    /// Writes to a place as an input says.
    pub(crate) fn scribble(&self, scribble: Scribble) {
        let Scribble { how, at, value } = scribble;
        let offset = self.offset(how, usize::from(at));
        let word = self.word(offset);
        let old = word.load(Ordering::Relaxed);
        match how / 4 % 8 {
            0 => word.store(value.into(), Ordering::SeqCst),
            1 => word.store(old ^ 1 << (value % 32), Ordering::SeqCst),
            2 => word.store(old.wrapping_add_signed((value as i16).into()), Ordering::SeqCst),
            3 => word.store(u32::MAX - u32::from(value), Ordering::SeqCst),
            // The value of a word from another place.
            4 => word.store(self.word(self.nonzero(value.into())).load(Ordering::Relaxed), Ordering::SeqCst),
            5 => {
                let from = self.word64(self.nonzero(value.into())).load(Ordering::Relaxed);
                self.word64(offset).store(from, Ordering::SeqCst);
            }
            // A header of a record: a length, a kind, and a number of handles.
            6 => {
                let header = u64::from(value >> 5) | u64::from(value % 12) << 32 | u64::from(value >> 15) << 48;
                self.word64(offset).store(header, Ordering::SeqCst);
            }
            _ => {
                let header = u64::from(value >> 7) | u64::from(value % 12) << 32 | u64::from(value >> 4 & 7) << 40;
                self.word64(offset).store(header | (header >> 41 & 1) << 48, Ordering::SeqCst);
            }
        }
    }

    /// Returns a view of this memory, to write to it later. The memory has to stay mapped as long as the view is used.
    pub(crate) fn view(&self) -> View {
        View { base: self.base, len: self.len }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`, and nothing points into it.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A write to shared memory, as an input describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scribble {
    pub(crate) how: u8,
    pub(crate) at: u16,
    pub(crate) value: u16,
}

/// A view of mapped memory, for a write in the middle of a call.
pub(crate) struct View {
    base: NonNull<u8>,
    len: usize,
}

impl View {
    /// Writes to a place of the memory as an input says.
    ///
    /// # Safety
    /// The [`Shared`] from which the view was made must still be mapped.
    pub(crate) unsafe fn scribble(&self, scribble: Scribble) {
        // The descriptor is needed only for things that are not done here.
        let shared = std::mem::ManuallyDrop::new(Shared { base: self.base, len: self.len, fd: never() });
        shared.scribble(scribble);
    }
}

/// Returns a descriptor that is not used and not closed.
fn never() -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the descriptor is only held in a `ManuallyDrop` and never used; any number but -1 is valid for the type.
    unsafe { OwnedFd::from_raw_fd(i32::MAX) }
}

/// Returns memory as a peer would make it: of this size, with this content and these seals.
pub(crate) fn memfd(len: usize, content: &[u8], seals: SealFlags) -> OwnedFd {
    let fd = fs::memfd_create("fuzzed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    fs::ftruncate(&fd, len as u64).expect("a size");
    rustix::io::pwrite(&fd, &content[..content.len().min(len)], 0).expect("room for its content");
    fs::fcntl_add_seals(&fd, seals).expect("its seals");
    fd
}
