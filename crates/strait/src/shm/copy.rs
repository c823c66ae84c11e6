//! Copies between private memory and shared memory.
//!
//! The system's `memcpy` copies all but two kinds of messages. A short message is copied in a few pieces, since a call
//! costs more than the copy. The other kind depends on the addresses: on some processors `rep movsb`, which `memcpy`
//! uses from a few KiB on, takes up to thirty times as long if the destination lies a little behind the source, both
//! counted within their pages of 4 KiB. Such distances are common: a block's payload begins at a page, and a large
//! `Vec` 16 bytes behind the start of a page. For these distances the library has a loop of its own; a process uses the
//! loop only if it has found `memcpy` to be slow.

#[cfg(target_arch = "x86_64")]
mod near;

/// Copies `len` bytes from `from` to `to`, in one pass from front to back. One of the two sides may be shared memory.
///
/// # Safety
/// Both ranges are mapped, the destination for writing, and they do not overlap.
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    super::accessed();
    barrier(from);
    // SAFETY: the caller promises that both ranges are mapped and do not overlap. The language does not define a peer's
    // write to the shared side at the same time. But between the two barriers there is no other access that the
    // compiler could combine with the copy, so the copied bytes do not change afterwards, whatever their values.
    unsafe { if len <= SMALL { copy_small(from, to, len) } else { copy_large(from, to, len) } }
    barrier(to.cast_const());
}

/// Copies `len` bytes, at most [`SMALL`], as [`copy`] does. Always inlined, for the places where each instruction
/// counts.
///
/// # Safety
/// Both ranges are mapped, the destination for writing, and they do not overlap.
#[inline(always)]
pub(super) unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    debug_assert!(len <= SMALL);
    super::accessed();
    barrier(from);
    // SAFETY: both ranges are mapped and do not overlap, as the caller promises.
    unsafe { copy_small(from, to, len) }
    barrier(to.cast_const());
}

/// Number of bytes up to which a copy in pieces is faster than a call of `memcpy`.
const SMALL: usize = 64;

/// Copies `len` bytes, more than [`SMALL`], from `from` to `to`. A separate function, so that the code for short copies
/// stays small enough to be inlined.
///
/// # Safety
/// Both ranges are mapped, the destination for writing, and they do not overlap.
#[inline(never)]
unsafe fn copy_large(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= near::SHORTEST && near::is_near(from, to) {
        // SAFETY: both ranges are mapped and do not overlap, as the caller promises.
        return unsafe { near::copy(from, to, len) };
    }
    // SAFETY: both ranges are mapped and do not overlap, as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Copies `len` bytes, at most [`SMALL`], from `from` to `to`, in a few pieces of constant size.
///
/// # Safety
/// Both ranges are mapped, the destination for writing, and they do not overlap.
#[inline(always)]
unsafe fn copy_small(from: *const u8, to: *mut u8, len: usize) {
    /// Copies `N` bytes from offset `at` of the range `from` to offset `at` of the range `to`.
    ///
    /// # Safety
    /// Both ranges have `N` bytes from `at` on and are mapped, the destination for writing, and they do not overlap.
    #[inline]
    unsafe fn piece<const N: usize>(from: *const u8, to: *mut u8, at: usize) {
        // SAFETY: both ranges have `N` bytes from `at` on and do not overlap, as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), N) }
    }
    // SAFETY: every piece ends at `len` or before; both ranges are mapped and do not overlap, as the caller promises.
    unsafe {
        // There is no loop, because the compiler would turn a loop into a call. No pieces overlap, because the next
        // reader of the bytes would wait until the overlapping stores are done. Each bit of the length is a piece,
        // behind the pieces of the higher bits.
        if len == SMALL {
            return piece::<SMALL>(from, to, 0);
        }
        if len & 32 != 0 {
            piece::<32>(from, to, 0);
        }
        if len & 16 != 0 {
            piece::<16>(from, to, len & 32);
        }
        if len & 8 != 0 {
            piece::<8>(from, to, len & 48);
        }
        if len & 7 == 0 {
            return;
        }
        if len & 4 != 0 {
            piece::<4>(from, to, len & 56);
        }
        if len & 2 != 0 {
            piece::<2>(from, to, len & 60);
        }
        if len & 1 != 0 {
            piece::<1>(from, to, len & 62);
        }
    }
}

/// Makes the compiler assume that any memory may have changed; produces no instruction.
#[inline]
fn barrier(pointer: *const u8) {
    #[cfg(not(miri))]
    // SAFETY: no instruction; tells the compiler that any memory may have changed.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) pointer, options(nostack, preserves_flags));
    }
    #[cfg(miri)]
    {
        let _ = pointer;
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of a page in bytes: the copies depend on addresses within a page only.
    const PAGE: usize = 4096;

    /// Copies `len` bytes by `by`, from offset `from` of one buffer to offset `to` of another, and checks that the
    /// bytes arrived and that no byte before or behind them has changed.
    fn check(
        buffers: &mut (Vec<u8>, Vec<u8>),
        from: usize,
        to: usize,
        len: usize,
        by: unsafe fn(*const u8, *mut u8, usize),
    ) {
        let (source, target) = buffers;
        let range = |start: usize| (start.max(64) - 64, start + len + 64);
        let (first, end) = range(to);
        target[first..end].fill(0xee);
        let source_start = source.as_ptr().align_offset(PAGE);
        let target_start = target.as_ptr().align_offset(PAGE);
        assert_eq!((source_start, target_start), (0, 0), "buffers begin at a page");
        // SAFETY: the ranges are inside their buffers, and the buffers are distinct.
        unsafe { by(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
        assert!(target[to..to + len] == source[from..from + len], "{from} {to} {len}");
        let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xee);
        assert!(untouched(&target[first..to]) && untouched(&target[to + len..end]), "{from} {to} {len}");
    }

    /// Returns two buffers of `len` bytes that begin at a page, the first with changing bytes.
    fn with_buffers(len: usize, test: impl FnOnce(&mut (Vec<u8>, Vec<u8>))) {
        let mapping = crate::shm::Mapping::private(2 * len).unwrap();
        let base = mapping.base();
        // SAFETY: the mapping has `2 * len` bytes; the vectors are never dropped.
        let mut buffers =
            unsafe { (Vec::from_raw_parts(base, len, len), Vec::from_raw_parts(base.add(len), len, len)) };
        let mut number = 1u32;
        for byte in &mut buffers.0 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (number >> 24) as u8;
        }
        test(&mut buffers);
        std::mem::forget(buffers);
    }

    /// Returns every `step`th number below `end`; with Miri, which is slow, only a few of them.
    fn some(end: usize, step: usize) -> impl Iterator<Item = usize> {
        (0..end).step_by(if cfg!(miri) { end / 3 } else { step })
    }

    #[test]
    fn copies_are_right_at_every_distance_within_a_page() {
        with_buffers(8 * PAGE, |buffers| {
            for distance in some(PAGE, 1) {
                for from in [PAGE, PAGE + 8, PAGE + 16, PAGE + 63] {
                    for len in [100, 2300, 5000] {
                        check(buffers, from, PAGE + (from + distance) % PAGE, len, copy);
                    }
                }
            }
        });
    }

    #[test]
    fn copies_are_right_at_every_length_around_the_thresholds() {
        with_buffers(16 * PAGE, |buffers| {
            let lengths =
                some(300, 1).chain(some(300, 1).map(|more| 1900 + more)).chain(some(200, 1).map(|more| 4000 + more));
            for len in lengths.chain([PAGE * 4 - 1, PAGE * 4, PAGE * 4 + 1, PAGE * 10 + 17]) {
                for distance in [0, 1, 8, 15, 16, 17, 31, 32, 56, 63, 64, 65, 2048, 4095] {
                    check(buffers, PAGE + 8, PAGE + (8 + distance) % PAGE, len, copy);
                }
            }
        });
    }

    /// Shows that each way of copying (each process uses one) is right at every small distance, and at every length
    /// with which its loop begins or ends.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_loop_is_right_at_every_length() {
        with_buffers(4 * PAGE, |buffers| {
            for by in near::loops() {
                for from in some(70, 1) {
                    for len in some(300, 1).map(|more| near::SHORTEST + more) {
                        check(buffers, PAGE + from, PAGE + from + 1 + len % 63, len, by);
                    }
                }
            }
        });
    }
}
