//! The wait strategy: how a blocking call waits.

/// The wait strategy of blocking calls on an end. Waking a thread takes the kernel microseconds; spinning keeps a whole
/// core busy.
///
/// ```
/// use strait::{Options, Wait};
/// // A program that runs beside others sleeps at once.
/// let (a, b) = Options::new().wait(Wait::Block).pair()?;
/// a.send(b"hello")?;
/// assert_eq!(b.recv()?.bytes(), b"hello");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// The call never sleeps: it checks in a loop until the awaited event is there. Gives the lowest latency at the
    /// cost of a whole core. While the peer was last seen on the CPU of the waiting thread, the thread yields that CPU
    /// between checks.
    Spin,
    /// The call spins for the time that [`Options::spin`](crate::Options::spin) sets, and then sleeps. The call spins
    /// only if the peer runs on another CPU, since the peer's answer may come sooner than the kernel could wake a
    /// thread. If the peer was last seen on the CPU of the waiting thread, the thread yields that CPU once before
    /// sleeping. But the thread does not yield if a yield has taken more than 50 µs lately: another program computes on
    /// that CPU.
    #[default]
    Adaptive,
    /// The call sleeps at once, without spinning. The thread may yield its CPU once before, as with [`Wait::Adaptive`].
    /// Uses the least CPU time.
    Block,
}
