//! Copies to a destination that lies a little behind its source, both counted within their pages.

use std::arch::x86_64::{__m128i, __m256i, _mm_loadu_si128, _mm_store_si128, _mm256_loadu_si256, _mm256_store_si256};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Number of bytes of the shortest copy for which `memcpy` may be slow. Implementations of `memcpy` use `rep movsb`
/// from this length on, or from a greater length.
pub(super) const SHORTEST: usize = 2048;

/// Number of bytes behind the source, within a page, up to which a destination may be slow to copy to.
const NEAR: usize = 63;

/// The size of a page in bytes.
const PAGE: usize = 4096;

/// Returns whether `to` lies 1 to [`NEAR`] bytes behind `from`, both counted within their pages.
#[inline]
pub(super) fn is_near(from: *const u8, to: *mut u8) -> bool {
    (to.addr().wrapping_sub(from.addr()) % PAGE).wrapping_sub(1) < NEAR
}

/// `UNKNOWN`: no copy has needed to know yet which way is faster in this process.
const UNKNOWN: u8 = 0;
/// `MEMCPY`: `memcpy` is as fast here as elsewhere, or a thread is measuring.
const MEMCPY: u8 = 1;
/// `SSE2`: the loop with vectors of 16 bytes is much faster than `memcpy`.
const SSE2: u8 = 2;
/// `AVX`: the loop with vectors of 32 bytes is much faster than `memcpy`.
const AVX: u8 = 3;

/// The way in which this process copies to destinations near their source: one of the values [`UNKNOWN`] to [`AVX`].
static WAY: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Copies `len` bytes, at least [`SHORTEST`], from `from` to `to`, for which [`is_near`] holds. The first call in a
/// process measures how fast `memcpy` makes such copies, which takes some 30 µs.
///
/// # Safety
/// Both ranges are mapped, the destination for writing, and they do not overlap.
#[inline(never)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let way = match WAY.load(Ordering::Relaxed) {
        UNKNOWN => find_way(),
        way => way,
    };
    // SAFETY: both ranges are mapped and do not overlap, as the caller promises. The way with AVX is only chosen if the
    // processor has AVX.
    unsafe {
        match way {
            AVX => by_avx(from, to, len),
            SSE2 => by_sse2(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// The memory that the measurement copies within. A process that never measures never touches the memory.
struct Scratch(UnsafeCell<[MaybeUninit<u8>; SCRATCH]>);

/// Number of bytes that the measurement copies each time. All implementations of `memcpy` that use `rep movsb` do so at
/// this length.
const MEASURED: usize = 4 * PAGE + 64;

/// Size of [`Scratch`] in bytes: two ranges of [`MEASURED`] bytes, with their distance and alignment.
const SCRATCH: usize = 11 * PAGE;

// SAFETY: only the one thread that sets `WAY` from `UNKNOWN` to `MEMCPY` accesses the memory.
unsafe impl Sync for Scratch {}

static SCRATCH_MEMORY: Scratch = Scratch(UnsafeCell::new([MaybeUninit::uninit(); SCRATCH]));

/// Finds out which way of copying this process should use, and stores the way in [`WAY`]. Makes no system call and does
/// not wait: if another thread is measuring, the answer is [`MEMCPY`].
#[cold]
fn find_way() -> u8 {
    if WAY.compare_exchange(UNKNOWN, MEMCPY, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return MEMCPY;
    }
    let (own, by): (u8, unsafe fn(*const u8, *mut u8, usize)) =
        if is_x86_feature_detected!("avx") { (AVX, by_avx) } else { (SSE2, by_sse2) };
    let base: *mut u8 = SCRATCH_MEMORY.0.get().cast();
    // SAFETY: this thread is the only one that has set `WAY` from `UNKNOWN` to another value, and so the only one that
    // ever comes here. The ranges are inside the memory and 5 pages and 8 bytes apart, which is more than their length.
    // All bytes are written before they are read. `by` is right for this processor.
    let (memcpy, own_loop) = unsafe {
        let from = base.add(base.align_offset(PAGE));
        let to = from.add(5 * PAGE + 8);
        from.write_bytes(1, MEASURED);
        (time(from, to, std::ptr::copy_nonoverlapping::<u8>), time(from, to, by))
    };
    let way = if memcpy > 2 * own_loop { own } else { MEMCPY };
    WAY.store(way, Ordering::Relaxed);
    way
}

/// Returns the shortest time that `by` takes to copy [`MEASURED`] bytes, of three copies.
///
/// # Safety
/// Both ranges are memory of this thread alone, and do not overlap; `by` runs on this processor.
unsafe fn time(from: *const u8, to: *mut u8, by: unsafe fn(*const u8, *mut u8, usize)) -> Duration {
    let copies = (0..3).map(|_| {
        let begin = Instant::now();
        // SAFETY: the ranges belong to the calling thread alone and do not overlap, as the caller promises. The
        // compiler knows neither pointer nor function, so it keeps the copy.
        unsafe { std::hint::black_box(by)(std::hint::black_box(from), std::hint::black_box(to), MEASURED) };
        begin.elapsed()
    });
    copies.min().unwrap_or_default()
}

/// Returns the copy loops that the processor can run.
#[cfg(test)]
pub(super) fn loops() -> Vec<unsafe fn(*const u8, *mut u8, usize)> {
    let mut all: Vec<unsafe fn(*const u8, *mut u8, usize)> = vec![by_sse2];
    if is_x86_feature_detected!("avx") {
        all.push(by_avx);
    }
    all
}

/// The bytes that each round of the loops copies.
const ROUND: usize = 128;

/// Copies the bytes before the first byte of `to` that is aligned for a line of 64 bytes. Returns their number, below
/// 64.
///
/// # Safety
/// Both ranges have at least 64 bytes and are mapped, the destination for writing, and they do not overlap.
#[inline]
unsafe fn copy_to_line(from: *const u8, to: *mut u8) -> usize {
    let before = to.addr().wrapping_neg() % 64;
    // SAFETY: both ranges have more than `before` bytes and do not overlap, as the caller promises.
    unsafe { super::copy_small(from, to, before) };
    before
}

/// Copies the last bytes of a range, fewer than [`ROUND`], from offset `at` on.
///
/// # Safety
/// Both ranges have `len` bytes and are mapped, the destination for writing, and they do not overlap.
#[inline]
unsafe fn copy_rest(from: *const u8, to: *mut u8, mut at: usize, len: usize) {
    // SAFETY: each piece ends at `len` or before; both ranges are mapped and do not overlap, as the caller promises.
    unsafe {
        if len - at > super::SMALL {
            super::copy_small(from.add(at), to.add(at), super::SMALL);
            at += super::SMALL;
        }
        super::copy_small(from.add(at), to.add(at), len - at);
    }
}

/// Copies `len` bytes, at least 64, by vectors of 16 bytes.
///
/// # Safety
/// Both ranges are mapped, the destination for writing, and they do not overlap.
unsafe fn by_sse2(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each access ends at `len` or before, and the stores are aligned. Both ranges are mapped and do not
    // overlap, as the caller promises.
    unsafe {
        let mut at = copy_to_line(from, to);
        while len - at >= ROUND {
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let parts: [__m128i; 8] = std::array::from_fn(|part| _mm_loadu_si128(source.add(part)));
            for (part, bytes) in parts.into_iter().enumerate() {
                _mm_store_si128(target.add(part), bytes);
            }
            at += ROUND;
        }
        copy_rest(from, to, at, len);
    }
}

/// Copies `len` bytes, at least 64, by vectors of 32 bytes.
///
/// # Safety
/// Both ranges are mapped, the destination for writing, and they do not overlap. The processor has AVX.
#[target_feature(enable = "avx")]
unsafe fn by_avx(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each access ends at `len` or before, and the stores are aligned. Both ranges are mapped and do not
    // overlap, as the caller promises.
    unsafe {
        let mut at = copy_to_line(from, to);
        while len - at >= ROUND {
            let (source, target) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            let (one, two) = (_mm256_loadu_si256(source), _mm256_loadu_si256(source.add(1)));
            let (three, four) = (_mm256_loadu_si256(source.add(2)), _mm256_loadu_si256(source.add(3)));
            _mm256_store_si256(target, one);
            _mm256_store_si256(target.add(1), two);
            _mm256_store_si256(target.add(2), three);
            _mm256_store_si256(target.add(3), four);
            at += ROUND;
        }
        copy_rest(from, to, at, len);
    }
}
