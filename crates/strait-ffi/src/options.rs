//! Options of a channel, as C sees them.

use std::time::Duration;

use strait::{Options, Wait};

use crate::args;
use crate::status::Failure;

/// How a call waits when it has to.
pub type strait_wait = u32;

/// Spin for a while if the peer runs on another CPU, then sleep.
pub const STRAIT_WAIT_ADAPTIVE: strait_wait = 0;
/// Never sleep: the lowest latency, at the cost of a whole core.
pub const STRAIT_WAIT_SPIN: strait_wait = 1;
/// Sleep at once: the least CPU time.
pub const STRAIT_WAIT_BLOCK: strait_wait = 2;

/// For an option where 0 is meant, since 0 stands for the default.
pub const STRAIT_ZERO: u64 = 0xffff_ffff_ffff_ffff;

/// Options of one end of a channel. All zeroes are the defaults, so name only what you want:
/// `(strait_options){.max_message = 4096}`. Where a call takes options, `NULL` is the defaults too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct strait_options {
    /// How calls on this end wait: `STRAIT_WAIT_ADAPTIVE` by default.
    pub wait: strait_wait,
    /// 1 if the process at the other end may not send descriptors: the kernel drops them before they are this process's.
    pub refuse_descriptors: u32,
    /// Nanoseconds that an adaptive wait spins, at most 20 ms: 50 µs by default.
    pub spin: u64,
    /// Bytes of the ring that this end sends through at first: 8 KiB for the first channel of a link, 256 B for others.
    pub ring: u64,
    /// Bytes up to which that ring grows: 1 MiB by default.
    pub ring_max: u64,
    /// Bytes up to which a message goes through the ring: 64 KiB by default.
    pub inline_max: u64,
    /// Bytes in large messages that may be under way from this end: 256 MiB by default.
    pub queue_bytes: u64,
    /// Messages that may be under way from this end: as many as the ring takes by default.
    pub queue_messages: u64,
    /// Bytes in the longest message that this end sends: 256 MiB by default, and at most.
    pub max_message: u64,
    /// Handles in one message that this end sends: 64 by default, and at most.
    pub max_handles: u64,
    /// Bytes that this end keeps mapped and warm for large messages: 64 MiB by default.
    pub pool: u64,
    /// Bytes of the peer's memory that this end is willing to have mapped: 1 GiB by default.
    pub peer_memory: u64,
    /// For later; zeroes.
    pub reserved: [u64; 4],
}

/// Sets a size.
type Set = fn(Options, usize) -> Options;

/// A size, if it is not the default.
fn size(option: u64) -> Option<usize> {
    match option {
        0 => None,
        STRAIT_ZERO => Some(0),
        some => Some(usize::try_from(some).unwrap_or(usize::MAX)),
    }
}

impl strait_options {
    /// As the library wants them.
    fn checked(&self) -> Result<Options, Failure> {
        if self.reserved != [0; 4] || self.refuse_descriptors > 1 {
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
        let sizes: [(u64, Set); 8] = [
            (self.ring_max, Options::ring_max),
            (self.ring, Options::ring),
            (self.inline_max, Options::inline_max),
            (self.queue_bytes, Options::queue_bytes),
            (self.max_message, Options::max_message),
            (self.max_handles, Options::max_handles),
            (self.pool, Options::pool),
            (self.peer_memory, Options::peer_memory),
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

/// Options that a call was given, or the defaults.
///
/// # Safety
/// They are there, or `NULL`.
pub(crate) unsafe fn options(given: *const strait_options) -> Result<Options, Failure> {
    if given.is_null() {
        return Ok(Options::new());
    }
    // SAFETY: as the caller says.
    unsafe { args::reference(given, "options") }?.checked()
}
