//! How a call waits when it has to.

/// How a blocking call waits. Waking a thread takes the kernel microseconds; spinning uses a whole core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Never sleep: check in a loop until the awaited event is there. Gives the lowest latency at the cost of a whole
    /// core. While the peer was last seen on the CPU of the waiting thread, the thread yields that CPU between
    /// checks.
    Spin,
    /// Spin for the time that [`Options::spin`](crate::Options::spin) sets if the peer runs on another CPU, since its
    /// answer may come sooner than the kernel could wake this thread. Then sleep.
    #[default]
    Adaptive,
    /// Sleep at once. Uses the least CPU time.
    Block,
}
