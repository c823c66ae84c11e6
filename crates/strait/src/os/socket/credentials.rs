//! The identity of a peer, as the kernel reports it.
//!
//! `SO_PEERCRED` is fixed when a pair is made, so for a spawned child it names the parent on both ends. Therefore the
//! first packet of a link carries `SCM_CREDENTIALS`, which the kernel fills in for the sending process. Both are read
//! with `libc`: a process outside this process's namespace has the pid 0, which `rustix` cannot represent.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::peek::{self, Head, Looked};
use super::{SO_PASSPIDFD, set_option};
use crate::error::Error;
use crate::os::{Named, call, done, failed, process};
use crate::peer::Peer;

/// Number of the socket option `SO_PEERPIDFD` (Linux 6.5), which older headers lack.
const SO_PEERPIDFD: libc::c_int = 77;

/// Number of the socket option `SO_PASSRIGHTS` (Linux 6.16), which older headers lack.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Makes the kernel show the sender's credentials with each packet received from `socket`; stops doing so if `on` is
/// `false`.
pub(crate) fn ask(socket: BorrowedFd<'_>, on: bool) -> Result<(), Error> {
    call("setsockopt(SO_PASSCRED)", || sockopt::set_socket_passcred(socket, on)).named("setsockopt(SO_PASSCRED)")
}

/// Returns whether the kernel shows the sender's credentials with each packet received from `socket`. Does not block,
/// even if another process holds the lock of the socket.
pub(crate) fn are_asked(socket: BorrowedFd<'_>) -> Result<bool, Error> {
    call("getsockopt(SO_PASSCRED)", || sockopt::socket_passcred(socket)).named("getsockopt(SO_PASSCRED)")
}

/// Lets the peer send descriptors over `socket`; if `on` is `false`, makes the peer's attempts fail. Fails on a kernel
/// without `SO_PASSRIGHTS` (before Linux 6.16).
pub(crate) fn accept_rights(socket: BorrowedFd<'_>, on: bool) -> Result<(), Error> {
    let on = libc::c_int::from(on);
    let (place, len) = ((&raw const on).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    let say = || {
        // SAFETY: the pointer is to a local of the size given.
        done(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, place, len) } as isize)
    };
    call("setsockopt(SO_PASSRIGHTS)", say).named("setsockopt(SO_PASSRIGHTS)").map(drop)
}

/// Returns whether the kernel refuses descriptors that a peer sends over `socket`. Always `false` on a kernel without
/// `SO_PASSRIGHTS` (before Linux 6.16).
pub(crate) fn refuses_rights(socket: BorrowedFd<'_>) -> bool {
    let (mut on, mut len): (libc::c_int, _) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    let place = (&raw mut on).cast();
    let ask = || {
        // SAFETY: the pointers are to locals; `len` is the size of the first.
        done(unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, place, &raw mut len) }
            as isize)
    };
    call("getsockopt(SO_PASSRIGHTS)", ask).is_ok() && on == 0
}

fn peer(credentials: libc::ucred) -> Peer {
    Peer {
        pid: (credentials.pid > 0).then_some(credentials.pid as u32),
        uid: credentials.uid,
        gid: credentials.gid,
        is_alive: true,
    }
}

/// Returns the process that made the other end of the connected socket: the process that connected, listened or made
/// the pair (`SO_PEERCRED`).
pub(crate) fn of_socket(socket: BorrowedFd<'_>) -> Result<Peer, Error> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (place, socket) = ((&raw mut credentials).cast(), socket.as_raw_fd());
    let ask = || {
        // SAFETY: the pointers are to locals of the sizes given.
        done(unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut len) } as isize)
    };
    call("getsockopt(SO_PEERCRED)", ask).named("getsockopt(SO_PEERCRED)")?;
    Ok(peer(credentials))
}

/// Opens a pidfd for the process at the other end of the socket. Fails on a kernel without `SO_PEERPIDFD` (before Linux
/// 6.5).
pub(crate) fn pidfd_of_socket(socket: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let (place, socket) = ((&raw mut fd).cast(), socket.as_raw_fd());
    let ask = || {
        // SAFETY: the pointers are to locals of the sizes given.
        done(unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, place, &raw mut len) } as isize)
    };
    call("getsockopt(SO_PEERPIDFD)", ask).named("getsockopt(SO_PEERPIDFD)")?;
    if fd < 0 {
        return Err(failed("getsockopt(SO_PEERPIDFD)", Errno::BADF));
    }
    // SAFETY: the kernel has just opened this descriptor for this process, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the inode number of a pidfd of the connector: the process that connected `socket`, which a listener has
/// accepted. Returns `None` if the connector is not `sender`, the process that sends packets over the socket, or if the
/// kernel has no such number.
///
/// Fails only if this process lacks a descriptor or memory for the pidfd. Without the number, a link would not count as
/// one of several links to its process.
///
/// The two processes are compared by their pids. The comparison holds while the connector lives. If the connector has
/// ended, another process may have its pid now; but only a process that got the socket from the connector can send over
/// the socket.
pub(crate) fn inode_of_connector(socket: BorrowedFd<'_>, sender: Peer) -> Result<Option<u64>, Error> {
    let is_sender = of_socket(socket).is_ok_and(|connector| connector.pid.is_some() && connector.pid == sender.pid);
    if !is_sender {
        return Ok(None);
    }
    match pidfd_of_socket(socket) {
        Ok(pidfd) => Ok(process::inode(&pidfd)),
        Err(error @ (Error::NoDescriptors | Error::NoMemory { .. })) => Err(error),
        Err(_) => Ok(None),
    }
}

/// The sender of a packet: the process that the kernel names in the packet's credentials, or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Known(Peer),
    /// The sender is unknown: the kernel has attached no credentials to the packet.
    Unknown,
}

/// The packet at the head of a socket's queue: its sender, and whether descriptors travel with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) sender: Sender,
    /// Whether at least one descriptor travels with the packet.
    pub(crate) has_descriptors: bool,
}

/// Returns the sender of the packet at the head of a socket's queue, and whether descriptors travel with the packet.
/// The packet stays in the queue. If the kernel opens descriptors of the packet in this process meanwhile, passes them
/// to `close`. Returns `None` if no packet is there, or the connection has ended.
///
/// # Errors
/// [`Error::BadPeer`] if the packet has no bytes, which no correct peer sends; the errors of `recvmsg`.
pub(crate) fn of_next_packet(socket: BorrowedFd<'_>, close: fn(OwnedFd)) -> Result<Option<Next>, Error> {
    // There is room for the credentials alone. The kernel writes the credentials first, and opens no descriptor without
    // room. If the kernel attaches no credentials, there is room for some descriptors. Missing credentials can happen
    // if a peer sent the same socket twice: one of the two links may have turned the credentials off before the other
    // asked for them.
    const ROOM: usize = cmsg_space!(ScmCredentials(1));
    #[repr(C, align(8))]
    struct Control([MaybeUninit<u8>; ROOM]);
    let mut control = Control([MaybeUninit::uninit(); ROOM]);
    let Some(head) = next_packet(socket, &mut control.0)? else { return Ok(None) };
    let has_descriptors = head.control_truncated || !head.descriptors.is_empty();
    let sender = head.sender.map_or(Sender::Unknown, |sender| Sender::Known(peer(sender)));
    let is_empty = head.len == 0;
    head.descriptors.into_iter().for_each(close);
    if is_empty { Err(Error::BadPeer("an empty packet")) } else { Ok(Some(Next { sender, has_descriptors })) }
}

/// Returns the sender of the first packet in a socket's queue, as [`of_next_packet`] does, and the inode number of a
/// pidfd of the sender. The number is `None` if the kernel cannot give it (before Linux 6.9), or if this process has no
/// free descriptor for the pidfd. The kernel attaches the pidfd to the packet. So the number belongs to the sender,
/// even if the sender has died since and its pid is in use again.
pub(crate) fn of_first_packet(
    socket: BorrowedFd<'_>,
    close: fn(OwnedFd),
) -> Result<Option<(Sender, Option<u64>)>, Error> {
    // There is room for the credentials and the pidfd. The kernel writes the pidfd last: descriptors of the packet take
    // its room. No honest peer sends descriptors with the first packet.
    const ROOM: usize = cmsg_space!(ScmCredentials(1), ScmRights(1));
    #[repr(C, align(8))]
    struct Control([MaybeUninit<u8>; ROOM]);
    let mut control = Control([MaybeUninit::uninit(); ROOM]);
    let is_asked = set_option(socket, SO_PASSPIDFD, 1).is_ok();
    let head = next_packet(socket, &mut control.0);
    // An earlier call may have left the option set, because its reset failed. Therefore each call resets the option.
    let reset = set_option(socket, SO_PASSPIDFD, 0);
    // A kernel that cannot set the option need not reset it.
    let reset = if is_asked { reset } else { Ok(()) };
    let Some(mut head) = head? else { return reset.named("setsockopt(SO_PASSPIDFD)").map(|()| None) };
    let pidfd = head.pidfd.map(|at| head.descriptors.swap_remove(at));
    head.descriptors.into_iter().for_each(close);
    // With the option on, later packets would come with a control message that no honest peer causes.
    reset.named("setsockopt(SO_PASSPIDFD)")?;
    let sender = head.sender.map_or(Sender::Unknown, |sender| Sender::Known(peer(sender)));
    Ok(Some((sender, pidfd.and_then(|pidfd| process::inode(&pidfd)))))
}

/// Returns the inode number of a pidfd of the process that has the pid of `sender` now. `None` if there is no such
/// process, if the kernel has no such numbers (before Linux 6.9), or if this process has no free descriptor.
///
/// The process need not be the sender: the sender may have ended, and another process may have its pid. For a socket on
/// which this process sets no option; for other sockets [`of_first_packet`] is exact.
pub(crate) fn inode_by_pid(sender: Sender) -> Option<u64> {
    let Sender::Known(Peer { pid: Some(pid), .. }) = sender else { return None };
    process::inode(&process::open(pid).ok()?)
}

/// Looks at the packet at the head of a socket's queue, with `control` as the room for control messages. Returns `None`
/// if no packet is there, or the connection has ended.
fn next_packet(socket: BorrowedFd<'_>, control: &mut [MaybeUninit<u8>]) -> Result<Option<Head>, Error> {
    Ok(match peek::head(socket, &mut [0], control)? {
        Looked::Packet(head) => Some(head),
        Looked::Nothing | Looked::HungUp => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::socket;
    use std::os::fd::AsFd;

    /// Shows that the first packet names the sending process, even if the sender has died since. Older kernels then
    /// give no inode number, but never the number of another process.
    #[test]
    fn the_first_packet_tells_the_inode_of_its_sender() {
        let (ours, theirs) = socket::pair().unwrap();
        ask(ours.as_fd(), true).unwrap();
        let mut sends = std::process::Command::new("sh");
        let mut child = sends.args(["-c", "printf packet >&0; exec sleep 100"]).stdin(theirs).spawn().unwrap();
        let limit = crate::deadline::Deadline::after(std::time::Duration::from_secs(60));
        assert!(socket::wait(ours.as_fd(), socket::Interest::Readable, limit).unwrap().readable);
        let inode = process::inode(&process::open(child.id()).unwrap());
        let found = || of_first_packet(ours.as_fd(), drop).unwrap().unwrap();
        let (sender, told) = found();
        assert!(matches!(sender, Sender::Known(Peer { pid: Some(pid), .. }) if pid == child.id()), "{sender:?}");
        assert_eq!(told, inode);
        child.kill().unwrap();
        child.wait().unwrap();
        let (_, told) = found();
        assert!(told.is_none() || told == inode, "{told:?} is not {inode:?}");
    }

    #[test]
    fn a_packet_without_credentials_leaves_no_descriptor_here() {
        let (ours, theirs) = socket::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        socket::send(theirs.as_fd(), b"packet", &[writer.as_fd(); 6]).unwrap();
        drop(writer);
        assert_eq!(of_next_packet(ours.as_fd(), drop).unwrap().unwrap().sender, Sender::Unknown);
        // After the packet is gone, nothing holds the pipe's writing end for long; a leaked descriptor would make the
        // read block.
        drop((ours, theirs));
        assert_eq!(std::io::read_to_string(reader).unwrap(), "");
    }
}
