//! Options of an end: wait strategy and limits; and the channels that have the default options.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Channel;
use crate::error::Error;
use crate::link::reuse::Terms;
use crate::os::fork::PerProcess;
use crate::quota::{HANDLES_IN_FLIGHT, MAX_HANDLES};
use crate::ring::{self, MAX_MESSAGE};
use crate::wake::Wait;
use crate::wake::spin::{self, LONGEST as LONGEST_SPIN};

/// Options of one end of a channel: wait strategy and limits. Each end has its own options; limits on sending apply at
/// the sending end.
///
/// The options of an end do not travel to another process: an end from another process has the options of the end that
/// received the message.
///
/// | option | default |
/// |---|---|
/// | [`wait`](Self::wait) | [`Wait::Adaptive`] |
/// | [`spin`](Self::spin) | `STRAIT_SPIN` in the environment, or 50 µs |
/// | [`ring`](Self::ring) | 8 KiB |
/// | [`ring_max`](Self::ring_max) | 1 MiB |
/// | [`inline_max`](Self::inline_max) | 64 KiB |
/// | [`queue_bytes`](Self::queue_bytes) | 256 MiB |
/// | [`queue_messages`](Self::queue_messages) | no limit but the ring |
/// | [`queue_handles`](Self::queue_handles) | 256 |
/// | [`max_message`](Self::max_message) | 256 MiB |
/// | [`max_handles`](Self::max_handles) | 64 |
/// | [`pool`](Self::pool) | no limit but that of the process |
/// | [`peer_memory`](Self::peer_memory) | 1 GiB |
/// | [`accept_descriptors`](Self::accept_descriptors) | yes |
///
/// ```
/// let (a, b) = strait::Options::new().max_message(1000).queue_messages(10).pair()?;
/// for _ in 0..10 {
///     a.try_send(b"as many as may wait")?;
/// }
/// assert_eq!(a.try_send(b"one more").unwrap_err().error, strait::Error::WouldBlock);
/// b.recv()?;
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    pub(crate) wait: Wait,
    pub(crate) spin: Duration,
    /// Number of cells (of 64 bytes) of the first ring through which an end sends; `None` for the default of the kind
    /// of channel.
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
            spin: spin::default_spin(),
            ring_cells: None,
            ring_max_cells: 16384,
            inline_max: 64 << 10,
            queue_bytes: 256 << 20,
            queue_messages: u64::MAX,
            queue_handles: HANDLES_IN_FLIGHT,
            max_message: MAX_MESSAGE,
            max_handles: MAX_HANDLES,
            pool: usize::MAX,
            peer_memory: 1 << 30,
            accept_descriptors: true,
        }
    }
}

/// Returns the number of cells (of 64 bytes) for a ring of `bytes` bytes: rounded up to a power of two. The ring has
/// from 256 B to 1 GiB.
fn cells(bytes: usize) -> usize {
    (bytes.min(1 << 30) / ring::CELL).max(ring::MIN_CELLS).next_power_of_two()
}

impl Options {
    /// Creates options with the default values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how blocking calls on this end wait. Default: [`Wait::Adaptive`].
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how long [`Wait::Adaptive`] spins before it sleeps: at most 20 ms. Spinning for longer than a wake-up takes
    /// is of little use. Default: [`Options::default_spin`].
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin.min(LONGEST_SPIN);
        self
    }

    /// Returns how long [`Wait::Adaptive`] spins by default in this process: the value of the environment variable
    /// `STRAIT_SPIN`, or 50 µs if the variable is not set.
    ///
    /// The value is a whole number of microseconds (more than 20,000 count as 20,000), or `off` for 0. Any other value
    /// is ignored, and `strait doctor` reports it. The environment is read once, when this process first needs the
    /// value. [`Options::spin`] takes precedence, and [`Wait::Spin`] and [`Wait::Block`] are not affected.
    pub fn default_spin() -> Duration {
        spin::default_spin()
    }

    /// Sets the size in bytes of this end's first outgoing ring, rounded up to a power of two from 256 B to 1 GiB.
    #[must_use]
    pub fn ring(mut self, bytes: usize) -> Self {
        let cells = cells(bytes);
        self.ring_cells = Some(cells);
        self.ring_max_cells = self.ring_max_cells.max(cells);
        self
    }

    /// Sets the size in bytes up to which the sending ring grows while the receiver does not keep up. Once a ring of
    /// that size is full, sending blocks. Default: 1 MiB.
    #[must_use]
    pub fn ring_max(mut self, bytes: usize) -> Self {
        self.ring_max_cells = cells(bytes);
        self.ring_cells = self.ring_cells.map(|cells| cells.min(self.ring_max_cells));
        self
    }

    /// Sets the largest payload, in bytes, that goes through the ring; longer messages go out of line, through the
    /// pool. Messages over three eighths of [`ring_max`](Self::ring_max) go through the pool in any case. Default: 64
    /// KiB.
    #[must_use]
    pub fn inline_max(mut self, bytes: usize) -> Self {
        self.inline_max = bytes;
        self
    }

    /// Sets how many bytes of large messages (those out of line) this end may have in flight. A send that would exceed
    /// the limit blocks. If no large message is in flight, one large message is allowed whatever its size. Default: 256
    /// MiB.
    #[must_use]
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// Sets how many messages this end may have in flight, at least 1. A send that would exceed the limit blocks. The
    /// receiver reports progress after each quarter of this number, so sending may block a little before the limit.
    /// Default: no limit.
    #[must_use]
    pub fn queue_messages(mut self, messages: u64) -> Self {
        self.queue_messages = messages.max(1);
        self
    }

    /// Sets how many descriptors this end may have in flight, at least 1. A send that would exceed the limit blocks. If
    /// no descriptor is in flight, one message with any number of descriptors is allowed. Default: 256.
    ///
    /// The limit counts the descriptors that the kernel has to carry: file descriptors, regions, ends of data pipes and
    /// sealed memory, also in messages that travel in the backlog of an end. Ends of channels need no descriptor, and
    /// within one process no handle does. The kernel counts the descriptors of all processes of a user together, and
    /// refuses more than `RLIMIT_NOFILE`.
    #[must_use]
    pub fn queue_handles(mut self, handles: usize) -> Self {
        self.queue_handles = handles.max(1);
        self
    }

    /// Sets the number of bytes of the longest message of this end, at most [`MAX_MESSAGE`], the default.
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes.min(MAX_MESSAGE);
        self
    }

    /// Sets the largest number of handles in one message of this end, at most [`MAX_HANDLES`], the default.
    #[must_use]
    pub fn max_handles(mut self, handles: usize) -> Self {
        self.max_handles = handles.min(MAX_HANDLES);
        self
    }

    /// Sets the number of bytes of memory kept in the pool of this end, for reuse by large messages after earlier
    /// messages were received. All ends of a process together keep no more than
    /// [`pool_limit`](crate::quota::pool_limit) says. Default: no limit of this end.
    #[must_use]
    pub fn pool(mut self, bytes: usize) -> Self {
        self.pool = bytes;
        self
    }

    /// Sets the most bytes of the peer's memory mapped by this process for the link of this end. Default: 1 GiB.
    #[must_use]
    pub fn peer_memory(mut self, bytes: usize) -> Self {
        self.peer_memory = bytes;
        self
    }

    /// Sets whether the process at the other end may send descriptors in messages; the default is yes. If the setting
    /// is `false`, the kernel drops received descriptors before this process gets them. Then no descriptor can come
    /// from a file system served by the peer itself (FUSE), where a close may block. The bytes of such a message
    /// arrive, and taking its handles fails with [`Error::HandlesLost`](crate::Error::HandlesLost). Ends of channels
    /// arrive, except ends with queued messages that have descriptors or were sent out of line.
    ///
    /// The option holds for the whole link that a channel is created with ([`Channel::over`](crate::Channel::over), a
    /// child or a parent), and for links to processes introduced over that link.
    #[must_use]
    pub fn accept_descriptors(mut self, accept: bool) -> Self {
        self.accept_descriptors = accept;
        self
    }

    /// Returns these options in an allocation for sharing between ends. All ends with the default options share one
    /// allocation.
    pub(crate) fn shared(&self) -> Arc<Self> {
        static DEFAULTS: PerProcess<OnceLock<Arc<Options>>> = PerProcess::new(OnceLock::new);
        let defaults = DEFAULTS.get().get_or_init(Arc::default);
        if **defaults == *self { defaults.clone() } else { Arc::new(*self) }
    }

    /// Returns the terms under which a channel with these options can be on one link with channels of other connects.
    /// `None` if such a channel needs a link of its own: the rings of a channel on a link that is there begin small.
    pub(crate) fn terms(&self) -> Option<Terms> {
        let terms = Terms { memory: self.peer_memory, accepts_descriptors: self.accept_descriptors };
        self.ring_cells.is_none().then_some(terms)
    }

    /// Returns the largest length in bytes at which a message is known to go through the ring and to be within the
    /// limits: the smaller of the limits `inline_limit` and `max_message`.
    #[inline]
    pub(crate) fn plain_limit(&self) -> usize {
        self.inline_limit().min(self.max_message)
    }

    /// Returns the number of bytes of the longest message that goes through the ring, and not out of line.
    #[inline]
    pub(crate) fn inline_limit(&self) -> usize {
        self.inline_max.min(ring::longest_payload(self.ring_max_cells))
    }
}

impl Channel {
    /// Creates a channel with both ends in this process and default options. Uses no descriptor and no shared memory.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::Forked`].
    pub fn pair() -> Result<(Self, Self), Error> {
        Options::new().pair()
    }

    /// Creates a channel over a connected `SOCK_SEQPACKET` Unix socket, with default options. The process with the
    /// other end of the socket calls this function, or [`Options::over`], too.
    ///
    /// The socket is the link from now on: the program must neither send nor receive on the socket, and `exec` closes
    /// it. Returns at once; messages sent before the peer has opened its side wait for the peer.
    ///
    /// # Errors
    /// [`Error::NotASocket`]; [`Error::System`] naming the call that the kernel refuses; [`Error::NoDescriptors`],
    /// [`Error::NoMemory`], [`Error::Forked`]; [`Error::PeerClosed`] if the peer has closed the socket without having
    /// opened its side.
    pub fn over(socket: OwnedFd) -> Result<Self, Error> {
        Options::new().over(socket)
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
