//! A child made by `fork` without `exec` must not touch the channels of its parent: both would be the same end.
//!
//! The mappings are not carried into the child at all (`MADV_DONTFORK`), so a missed check could only crash the
//! child, never harm the parent. That it is a child is seen on a page which the kernel empties in it
//! (`MADV_WIPEONFORK`): one load of a line that is always in the cache, no system call.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::sys::memory;

/// What the page holds in the process that made it.
const PARENT: u64 = 0x5354_5241_4954_0001;

static PAGE: OnceLock<&'static AtomicU64> = OnceLock::new();

/// Makes the page, before the first channel of the process.
pub(crate) fn arm() -> Result<(), Error> {
    if PAGE.get().is_none() {
        let page = memory::map_wiped_on_fork()?;
        // SAFETY: a fresh page, aligned, never unmapped, touched by nobody else than this module.
        let word = unsafe { AtomicU64::from_ptr(page.as_ptr().cast()) };
        word.store(PARENT, Ordering::Relaxed);
        // Of two threads at once one keeps its page and the other's stays as a page of nobody's.
        let _ = PAGE.set(word);
    }
    // The page of a parent says so in its child, which may have channels of its own only after `exec`.
    check()
}

/// Whether this process is the child of a fork of the one that made its channels.
#[inline]
pub(crate) fn in_child() -> bool {
    PAGE.get().is_some_and(|word| word.load(Ordering::Relaxed) != PARENT)
}

/// [`Error::Forked`] in the child of a fork.
#[inline]
pub(crate) fn check() -> Result<(), Error> {
    if in_child() { Err(Error::Forked) } else { Ok(()) }
}
