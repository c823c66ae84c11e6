//! How a call waits when it has to.

/// How a call waits when it has to. Waking takes the kernel microseconds; spinning takes a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Never sleep: look until it is there, for the lowest latency at the cost of a whole core. While the peer was
    /// last seen on this very CPU, yields it instead.
    Spin,
    /// Spin for a while if the peer runs on another CPU, since then the answer may be there sooner than the kernel
    /// could wake this thread; then sleep.
    #[default]
    Adaptive,
    /// Sleep at once: the least CPU time.
    Block,
}
