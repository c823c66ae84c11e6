//! Counts the copies and allocations for a message. This program's own `memcpy` and `memmove` count every copy of at
//! least [`WORTH`] bytes, and its allocator counts every allocation.
#![cfg(target_arch = "x86_64")]

use std::arch::asm;
use std::cell::Cell;
use std::ffi::c_void;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::{Channel, Deadline};
use strait_lab::process::allocations;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// The size in bytes from which a copy is counted. Smaller copies are not of messages here, but of headers, addresses
/// and events.
const WORTH: usize = 256;

thread_local! {
    static COPIED: Cell<usize> = const { Cell::new(0) };
}

fn count(len: usize) {
    if len >= WORTH {
        // A thread that is ending counts no more.
        let _ = COPIED.try_with(|copied| copied.set(copied.get() + len));
    }
}

/// Copies by one instruction: the compiler could replace a loop by a call of `memcpy`.
///
/// # Safety
/// The contract of `memcpy`, or of `memmove` if the destination is before the source.
unsafe fn forward(to: *mut c_void, from: *const c_void, len: usize) {
    // SAFETY: the caller keeps this function's contract; the direction flag is clear by the calling convention.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags))
    }
}

/// Replaces the C library's `memcpy`, and counts.
///
/// # Safety
/// The contract of C's `memcpy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    count(len);
    // SAFETY: the caller keeps the contract of `memcpy`.
    unsafe { forward(to, from, len) };
    to
}

/// Replaces the C library's `memmove`, and counts.
///
/// # Safety
/// The contract of C's `memmove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    count(len);
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: the destination begins before the source or at or after its end.
        unsafe { forward(to, from, len) };
    } else {
        // SAFETY: copies from the last byte down, and clears the direction flag again before any other code runs.
        unsafe {
            asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rdi") to.byte_add(len).byte_sub(1) => _,
                 inout("rsi") from.byte_add(len).byte_sub(1) => _, options(nostack));
        }
    }
    to
}

/// Returns the number of bytes that `work` copies and of allocations that it makes in this thread.
fn costs(work: impl FnOnce()) -> (usize, u64) {
    let (copied, allocated) = (COPIED.get(), allocations::so_far());
    work();
    (COPIED.get() - copied, allocations::so_far() - allocated)
}

/// Returns the two ends of a channel over a socket, as between two processes.
fn ends() -> (Channel, Channel) {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let there = std::thread::spawn(move || Channel::over(other).unwrap());
    (Channel::over(one).unwrap(), there.join().unwrap())
}

/// Shows that a message is copied once when it is sent and once when it is received, and that neither allocates.
/// There is only one test, since the allocator counts for all threads.
#[test]
fn a_message_is_copied_once_in_and_once_out_and_nothing_is_allocated() {
    // The counters work.
    let (from, mut to) = (std::hint::black_box(vec![7u8; 4096]), vec![0u8; 4096]);
    assert_eq!(costs(|| to.copy_from_slice(&from)), (4096, 0));
    assert_eq!((to, costs(|| drop(std::hint::black_box(Box::new(1)))).1), (from, 1));

    let (sender, receiver) = ends();
    for size in [1024, 4096, 16 << 10, 1 << 20] {
        let message = vec![5; size];
        let mut buffer = vec![0; size];
        let mut pass = |copies: &mut [(usize, u64); 2]| {
            copies[0] = costs(|| sender.send(&message).unwrap());
            copies[1] = costs(|| assert_eq!(receiver.recv_into(&mut buffer, Deadline::NEVER).unwrap().len(), size));
        };
        let mut counted = [(0, 0); 2];
        // Rings grow and pools fill at first.
        (0..64).for_each(|_| pass(&mut counted));
        for _ in 0..100 {
            pass(&mut counted);
            assert_eq!(counted, [(size, 0), (size, 0)], "{size} bytes");
        }

        // Filled and read in place: only the caller copies bytes.
        let pass = |counted: &mut [(usize, u64); 2]| {
            counted[0] = costs(|| {
                let mut room = sender.reserve(size, Deadline::NEVER).unwrap();
                room.as_uninit_mut().last_mut().unwrap().write(3);
                room.commit().unwrap();
            });
            counted[1] = costs(|| {
                let mut first = [0];
                receiver.recv_in_place(Deadline::NEVER).unwrap().read_at(&mut first, size - 1);
                assert_eq!(first, [3]);
            });
        };
        let mut counted = [(0, 0); 2];
        (0..64).for_each(|_| pass(&mut counted));
        for _ in 0..100 {
            pass(&mut counted);
            assert_eq!(counted, [(0, 0), (0, 0)], "{size} bytes in place");
        }
    }
}
