//! How an end waits, and how much it may hold.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::os::fork::PerProcess;
use crate::quota::{HANDLES_IN_FLIGHT, MAX_HANDLES};
use crate::ring::{self, MAX_MESSAGE};
use crate::wake::Wait;

/// Options of one end of a channel: how it waits, and what it lets itself be used for. Each end has its own; what
/// concerns sending is counted at the sending end.
///
/// | option | default |
/// |---|---|
/// | [`wait`](Self::wait) | [`Wait::Adaptive`] |
/// | [`spin`](Self::spin) | 50 µs |
/// | [`ring`](Self::ring) | 8 KiB |
/// | [`ring_max`](Self::ring_max) | 1 MiB |
/// | [`inline_max`](Self::inline_max) | 64 KiB |
/// | [`queue_bytes`](Self::queue_bytes) | 256 MiB |
/// | [`queue_messages`](Self::queue_messages) | no limit but the ring |
/// | [`queue_handles`](Self::queue_handles) | 256 |
/// | [`max_message`](Self::max_message) | 256 MiB |
/// | [`max_handles`](Self::max_handles) | 64 |
/// | [`pool`](Self::pool) | 64 MiB |
/// | [`peer_memory`](Self::peer_memory) | 1 GiB |
/// | [`accept_descriptors`](Self::accept_descriptors) | yes |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    pub(crate) wait: Wait,
    pub(crate) spin: Duration,
    /// `None` for what suits the channel.
    pub(crate) ring_cells: Option<usize>,
    pub(crate) ring_max_cells: usize,
    pub(crate) inline_max: usize,
    pub(crate) queue_bytes: usize,
    pub(crate) queue_messages: u64,
    pub(crate) queue_handles: usize,
    pub(crate) max_message: usize,
    pub(crate) max_handles: usize,
    pub(crate) pool: usize,
    pub(crate) peer_memory: usize,
    pub(crate) accept_descriptors: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            wait: Wait::Adaptive,
            spin: Duration::from_micros(50),
            ring_cells: None,
            ring_max_cells: 16384,
            inline_max: 64 << 10,
            queue_bytes: 256 << 20,
            queue_messages: u64::MAX,
            queue_handles: HANDLES_IN_FLIGHT,
            max_message: MAX_MESSAGE,
            max_handles: MAX_HANDLES,
            pool: 64 << 20,
            peer_memory: 1 << 30,
            accept_descriptors: true,
        }
    }
}

/// Cells of a ring of about this many bytes.
fn cells(bytes: usize) -> usize {
    (bytes.min(1 << 30) / ring::CELL).max(ring::MIN_CELLS).next_power_of_two()
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How calls on this end wait.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// How long [`Wait::Adaptive`] spins before it sleeps, at most 20 ms. Longer than a wake-up takes is of little use.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin.min(Duration::from_millis(20));
        self
    }

    /// Bytes of the ring that this end sends through at first; rounded up to a power of two from 256 B to 1 GiB.
    #[must_use]
    pub fn ring(mut self, bytes: usize) -> Self {
        let cells = cells(bytes);
        self.ring_cells = Some(cells);
        self.ring_max_cells = self.ring_max_cells.max(cells);
        self
    }

    /// Bytes up to which that ring grows when the receiver does not keep up; then sending waits.
    #[must_use]
    pub fn ring_max(mut self, bytes: usize) -> Self {
        self.ring_max_cells = cells(bytes);
        self.ring_cells = self.ring_cells.map(|cells| cells.min(self.ring_max_cells));
        self
    }

    /// Bytes up to which a message goes through the ring; longer ones go through the pool. Messages over three
    /// eighths of [`ring_max`](Self::ring_max) go through the pool in any case.
    #[must_use]
    pub fn inline_max(mut self, bytes: usize) -> Self {
        self.inline_max = bytes;
        self
    }

    /// Bytes in large messages (those outside the ring) that may be under way from this end; then sending waits.
    /// One message may always be, whatever its size.
    #[must_use]
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// Messages that may be under way from this end, at least 1; then sending waits. Receivers report in lots (they
    /// are told of a quarter of this number), so it is reached early rather than late.
    #[must_use]
    pub fn queue_messages(mut self, messages: u64) -> Self {
        self.queue_messages = messages.max(1);
        self
    }

    /// Descriptors that may be under way from this end, at least 1; then sending one more waits. One message may always be under
    /// way, whatever it has.
    ///
    /// Counted is what the kernel has to carry: descriptors, regions, ends of data pipes and sealed memory, also in messages that an
    /// end takes along. Ends of channels need no descriptor, and within one process nothing does. The kernel counts the descriptors of
    /// all processes of a user together, and refuses more than `RLIMIT_NOFILE`.
    #[must_use]
    pub fn queue_handles(mut self, handles: usize) -> Self {
        self.queue_handles = handles.max(1);
        self
    }

    /// Bytes in the longest message that this end sends, at most [`MAX_MESSAGE`].
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes.min(MAX_MESSAGE);
        self
    }

    /// Handles in one message that this end sends, at most [`MAX_HANDLES`].
    #[must_use]
    pub fn max_handles(mut self, handles: usize) -> Self {
        self.max_handles = handles.min(MAX_HANDLES);
        self
    }

    /// Bytes of memory that this end keeps mapped and warm for large messages once they have been received.
    #[must_use]
    pub fn pool(mut self, bytes: usize) -> Self {
        self.pool = bytes;
        self
    }

    /// Bytes of the peer's memory that this end is willing to have mapped.
    #[must_use]
    pub fn peer_memory(mut self, bytes: usize) -> Self {
        self.peer_memory = bytes;
        self
    }

    /// Whether the process at the other end may send descriptors in messages. If not, the kernel drops them before they are
    /// this process's: so none can come from a file system that the peer serves itself (FUSE) and block whoever closes it.
    /// The bytes of such a message arrive, and taking its handles fails with
    /// [`Error::HandlesLost`](crate::Error::HandlesLost). Ends of channels arrive, except with messages in them that have
    /// descriptors or were sent outside of their ring.
    ///
    /// It holds for the whole link that a channel is made with ([`Channel::over`](crate::Channel::over), a child or a
    /// parent), and for links to processes that are introduced over that one.
    #[must_use]
    pub fn accept_descriptors(mut self, accept: bool) -> Self {
        self.accept_descriptors = accept;
        self
    }

    /// These options, to be shared by ends; the defaults are there once only.
    pub(crate) fn shared(&self) -> Arc<Self> {
        static DEFAULTS: PerProcess<OnceLock<Arc<Options>>> = PerProcess::new(OnceLock::new);
        let defaults = DEFAULTS.get().get_or_init(Arc::default);
        if **defaults == *self { defaults.clone() } else { Arc::new(*self) }
    }

    /// Longest message that goes through the ring without a further check.
    #[inline]
    pub(crate) fn plain_limit(&self) -> usize {
        self.inline_limit().min(self.max_message)
    }

    /// Longest message that goes through the ring.
    #[inline]
    pub(crate) fn inline_limit(&self) -> usize {
        self.inline_max.min(ring::longest_payload(self.ring_max_cells))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_rings() {
        let options = Options::new().ring(1).ring_max(100_000);
        assert_eq!(options.ring_cells, Some(ring::MIN_CELLS));
        assert_eq!(options.ring_max_cells, 2048);
        assert_eq!(Options::new().ring(8192).ring_max(0).ring_cells, Some(ring::MIN_CELLS));
        assert_eq!(Options::new().ring_max(0).inline_limit(), 56);
    }
}
