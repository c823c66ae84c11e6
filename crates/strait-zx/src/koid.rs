//! Numbers of objects, which no other object has, in this process or in another.

use std::sync::Mutex;

use strait::bindings::PerProcess;

use crate::abi::zx_koid_t;
use crate::unpoisoned;

/// Numbers that are drawn at once.
const ROW: u64 = 1 << 24;

/// The next number. Of 63 bits, 39 are drawn at random, for 16 million numbers in a row.
pub(crate) fn next() -> zx_koid_t {
    // The child of a fork draws its own: its parent goes on with the row.
    static NEXT: PerProcess<Mutex<u64>> = PerProcess::new(Mutex::default);
    let mut next = unpoisoned(NEXT.get());
    if next.is_multiple_of(ROW) {
        let mut bytes = [0; 8];
        // Before there is randomness there is hardly another process whose numbers could be the same.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        let random = (u64::from_ne_bytes(bytes) >> 25) | 1;
        *next = (random % (1 << 39)) * ROW + 1;
    }
    let koid = *next;
    *next += 1;
    koid
}
