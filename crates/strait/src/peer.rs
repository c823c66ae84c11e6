//! The identity of the process at the other end.

/// The process at the other end, as the kernel describes it. What the peer says about itself is never used.
///
/// Process and user numbers are as this process's namespaces show them. If a peer kept the kernel from attaching its
/// credentials, nothing is known of the peer: `pid` is `None`, and `uid` and `gid` are the kernel's numbers for
/// *unknown* (usually 65534).
///
/// ```
/// let (a, _b) = strait::Channel::pair()?;
/// // The other end is in this process; `None` if it is not known yet where it is.
/// if let Some(peer) = a.peer()? {
///     println!("process {:?} of user {}", peer.pid, peer.uid);
/// }
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's process number; `None` if the peer is in a process namespace that this process does not see. The
    /// kernel may use the number again after the peer's process has ended;
    /// [`Channel::peer_pidfd`](crate::Channel::peer_pidfd) stays with the peer's process.
    pub pid: Option<u32>,
    /// The peer's user number.
    pub uid: u32,
    /// The peer's group number.
    pub gid: u32,
    /// Whether the peer's process was alive when the `Peer` was made. If this process does not see the peer's process,
    /// `true` only says that the peer's socket is open.
    pub is_alive: bool,
}
