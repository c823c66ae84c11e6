//! Options of a channel for C code.

use std::time::Duration;

use strait::{Options, Wait};

use crate::args;
use crate::status::Failure;

/// How functions on an end wait.
pub type strait_wait = u32;

/// `STRAIT_WAIT_ADAPTIVE`: spin for a short time if the peer runs on another CPU, then sleep.
pub const STRAIT_WAIT_ADAPTIVE: strait_wait = 0;
/// `STRAIT_WAIT_SPIN`: never sleep. The lowest latency, at the cost of a whole core.
pub const STRAIT_WAIT_SPIN: strait_wait = 1;
/// `STRAIT_WAIT_BLOCK`: sleep at once. The least CPU time.
pub const STRAIT_WAIT_BLOCK: strait_wait = 2;

/// The value of an option that is to be 0, since 0 stands for the default.
pub const STRAIT_ZERO: u64 = 0xffff_ffff_ffff_ffff;

/// Options of one end of a channel: wait strategy and limits. Zero means the default of each option, so set only the
/// options with other values: `(strait_options){.max_message = 4096}`. Functions with options also accept `NULL` for
/// the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct strait_options {
    /// The wait strategy of functions on this end: `STRAIT_WAIT_ADAPTIVE` by default.
    pub wait: strait_wait,
    /// 1 if the process at the other end may not send descriptors: the kernel drops the descriptors before they reach
    /// this process.
    pub refuse_descriptors: u32,
    /// How long an adaptive wait spins, in nanoseconds, at most 20 ms. The default is 50 µs, or what the environment
    /// variable STRAIT_SPIN says (microseconds, or off).
    pub spin: u64,
    /// Size in bytes of the first ring through which this end sends: 8 KiB by default for the first channel of a link,
    /// 256 B for others.
    pub ring: u64,
    /// Size in bytes up to which the sending ring grows: 1 MiB by default.
    pub ring_max: u64,
    /// Size in bytes of the largest message that goes through the ring: 64 KiB by default.
    pub inline_max: u64,
    /// Bytes of large messages allowed in flight from this end: 256 MiB by default.
    pub queue_bytes: u64,
    /// Number of messages allowed in flight from this end: by default, the number that fits into the ring.
    pub queue_messages: u64,
    /// Size in bytes of the longest message that this end sends: 256 MiB by default, also the maximum.
    pub max_message: u64,
    /// Number of handles allowed in a message from this end: 64 by default, also the maximum.
    pub max_handles: u64,
    /// Bytes of memory kept by this end for reuse by large messages: by default only the process has a limit, 256 MiB.
    pub pool: u64,
    /// Bytes of the peer's memory mapped at most by this process for the link of this end: 1 GiB by default.
    pub peer_memory: u64,
    /// Number of descriptors allowed in flight from this end: 256 by default.
    pub queue_handles: u64,
    /// Reserved; must be zero.
    pub reserved: [u64; 3],
}

/// A method of [`Options`] for a size.
type Set = fn(Options, usize) -> Options;

/// Returns the size that an option of C code stands for; `None` for the default.
fn size(option: u64) -> Option<usize> {
    match option {
        0 => None,
        STRAIT_ZERO => Some(0),
        some => Some(usize::try_from(some).unwrap_or(usize::MAX)),
    }
}

impl strait_options {
    /// Checks the options and converts them to options of the Rust library.
    ///
    /// # Errors
    /// [`Failure::Invalid`] if a reserved field is not zero, or a field has no valid value.
    fn checked(&self) -> Result<Options, Failure> {
        if self.reserved != [0; 3] || self.refuse_descriptors > 1 {
            return Err(Failure::Invalid(
                "strait_options: reserved fields must be 0, flags 0 or 1: zero the struct first",
            ));
        }
        let mut options = Options::new().accept_descriptors(self.refuse_descriptors == 0);
        options = match self.wait {
            STRAIT_WAIT_ADAPTIVE => options.wait(Wait::Adaptive),
            STRAIT_WAIT_SPIN => options.wait(Wait::Spin),
            STRAIT_WAIT_BLOCK => options.wait(Wait::Block),
            _ => return Err(Failure::Invalid("strait_options.wait is none of STRAIT_WAIT_*")),
        };
        options = match self.spin {
            0 => options,
            STRAIT_ZERO => options.spin(Duration::ZERO),
            spin => options.spin(Duration::from_nanos(spin)),
        };
        let sizes: [(u64, Set); 9] = [
            (self.ring_max, Options::ring_max),
            (self.ring, Options::ring),
            (self.inline_max, Options::inline_max),
            (self.queue_bytes, Options::queue_bytes),
            (self.max_message, Options::max_message),
            (self.max_handles, Options::max_handles),
            (self.pool, Options::pool),
            (self.peer_memory, Options::peer_memory),
            (self.queue_handles, Options::queue_handles),
        ];
        for (given, set) in sizes {
            if let Some(size) = size(given) {
                options = set(options, size);
            }
        }
        Ok(match self.queue_messages {
            0 => options,
            STRAIT_ZERO => options.queue_messages(0),
            most => options.queue_messages(most),
        })
    }
}

/// Converts options from C code; `NULL` gives the defaults.
///
/// # Errors
/// [`Failure::Invalid`] if a reserved field is not zero, or a field has no valid value.
///
/// # Safety
/// `given` is `NULL`, or points to options that stay valid during the function call.
pub(crate) unsafe fn options(given: *const strait_options) -> Result<Options, Failure> {
    if given.is_null() {
        return Ok(Options::new());
    }
    // SAFETY: the caller's promise.
    unsafe { args::reference(given, "options") }?.checked()
}
