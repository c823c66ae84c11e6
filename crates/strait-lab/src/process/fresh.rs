//! Memory that was never used. The first use costs page faults. An allocator would hide these costs by returning used
//! memory.

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::trouble::{Result, While};

/// A new private mapping, all zero. The kernel adds each page at its first use.
#[derive(Debug)]
pub(crate) struct Fresh {
    base: NonNull<u8>,
    len: usize,
}

impl Fresh {
    /// Maps `len` bytes, at least one.
    pub(crate) fn new(len: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing that exists.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
                .doing("mmap")?;
        Ok(Self { base: NonNull::new(base.cast()).expect("a mapping is never at address zero"), len })
    }
}

impl Deref for Fresh {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has this length and belongs to this value alone; zero bytes are valid bytes.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Fresh {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length and belongs to this value alone, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and every reference into it borrowed `self`. Unmapping cannot
        // fail for a range that `mmap` returned, and a failure would be harmless.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::Fresh;

    #[test]
    fn it_is_zero_and_can_be_written() {
        let mut memory = Fresh::new(100_000).unwrap();
        assert!(memory.iter().all(|&byte| byte == 0));
        memory[99_999] = 1;
        assert_eq!(memory[99_999], 1);
    }
}
