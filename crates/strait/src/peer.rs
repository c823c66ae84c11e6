//! Who is at the other end.

/// The process at the other end, as the kernel describes it: never as it describes itself.
///
/// Numbers are as seen from this process's namespaces. Of a peer that kept the kernel from attaching its credentials
/// nothing is known: it has no process number, and the user and group that stand for *none* (65534, as a rule).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process number; `None` if it is in a process namespace that this one does not see. A number may be used
    /// again after its process has died; [`Channel::peer_pidfd`](crate::Channel::peer_pidfd) may not.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Whether it lived when it was asked for, as far as could be found out: of a process that this one does not see, that
    /// its socket is open is all that is known.
    pub is_alive: bool,
}
