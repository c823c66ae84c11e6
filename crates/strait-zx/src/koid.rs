//! Koids: numbers of objects, unique in this process and in all others.

use std::sync::Mutex;

use strait::bindings::PerProcess;

use crate::abi::zx_koid_t;
use crate::unpoisoned;

/// Number of consecutive koids after one random number.
const ROW: u64 = 1 << 24;

/// Returns a new koid of 63 bits. 39 bits of it are drawn at random once for 16 million koids in a row.
pub(crate) fn next() -> zx_koid_t {
    // The child of a fork draws new numbers, since the parent continues with the numbers of the last draw.
    static NEXT: PerProcess<Mutex<u64>> = PerProcess::new(Mutex::default);
    let mut next = unpoisoned(NEXT.get());
    if next.is_multiple_of(ROW) {
        let mut bytes = [0; 8];
        // While the kernel has no randomness yet, there is hardly another process whose numbers could be the same.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        let random = (u64::from_ne_bytes(bytes) >> 25) | 1;
        *next = (random % (1 << 39)) * ROW + 1;
    }
    let koid = *next;
    *next += 1;
    koid
}
