//! Who the peer is, as the kernel says it.
//!
//! `SO_PEERCRED` is fixed when a pair is made, so for a spawned child it names the parent on both ends. The first
//! packet of a link therefore carries `SCM_CREDENTIALS`, which the kernel fills in for the process that sends.
//! Both are read with `libc`, because a process outside our process namespace has the number 0 there, which
//! `rustix` has no room for.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt;

use super::{Named, call, failed};
use crate::account::Payer;
use crate::error::Error;
use crate::peer::Peer;

/// `SO_PEERPIDFD` (Linux 6.5) is missing from older headers.
const SO_PEERPIDFD: libc::c_int = 77;

/// `SO_PASSRIGHTS` (Linux 6.16), as well.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has the kernel attach the sender's credentials to packets that arrive on this socket.
pub(crate) fn ask(socket: BorrowedFd<'_>, on: bool) -> Result<(), Error> {
    call("setsockopt(SO_PASSCRED)", || sockopt::set_socket_passcred(socket, on)).named("setsockopt(SO_PASSCRED)")
}

/// Lets the peer send descriptors over this socket, or has its attempts fail (`SO_PASSRIGHTS`, Linux 6.16).
pub(crate) fn accept_rights(socket: BorrowedFd<'_>, on: bool) -> Result<(), Error> {
    let on = libc::c_int::from(on);
    let (place, len) = ((&raw const on).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    let say = || {
        // SAFETY: the pointer is to a local of the size given.
        done(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, place, len) } as isize)
    };
    call("setsockopt(SO_PASSRIGHTS)", say).named("setsockopt(SO_PASSRIGHTS)").map(drop)
}

fn peer(credentials: libc::ucred) -> Peer {
    Peer {
        pid: (credentials.pid > 0).then_some(credentials.pid as u32),
        uid: credentials.uid,
        gid: credentials.gid,
        is_alive: true,
    }
}

/// The process that connected, bound or paired this socket.
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

/// A descriptor for the process at the other end, where the kernel has `SO_PEERPIDFD`.
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
    // SAFETY: the kernel has just made this descriptor for us, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The credentials of whoever sent the packet at the head of the queue; the packet stays there, and none of its
/// descriptors are taken. `None` if there is no packet; no peer if the kernel attached none.
pub(crate) fn of_next_packet(socket: BorrowedFd<'_>, payer: &Payer) -> Result<Option<Option<Peer>>, Error> {
    #[repr(C, align(8))]
    struct Control([MaybeUninit<u8>; 64]);
    let mut control = Control([MaybeUninit::uninit(); 64]);
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: all-zero is a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    // Room for the credentials alone: the kernel puts them first, and with no room it installs no descriptor. Where it puts
    // none there is room for some: a peer that gave us the same socket twice may have had the one link ask for none, before
    // the other did.
    // SAFETY: `CMSG_SPACE` is arithmetic.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let mut reset = false;
    loop {
        // SAFETY: `header` points to buffers that live until the call returns, of the sizes it gives.
        let look = || done(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) });
        match call("recvmsg(MSG_PEEK)", look) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(None),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            // The peer died with packets of ours unread. That is said once, before what it sent.
            Err(Errno::CONNRESET) if !reset => reset = true,
            Err(Errno::CONNRESET) => return Ok(None),
            Err(errno) => return Err(failed("recvmsg", errno)),
        }
    }
    let mut sender = None;
    // SAFETY: the kernel has filled `header`; the walk stays within `msg_controllen`, and descriptors in there are new ones
    // that nobody else knows of.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(&raw const header);
        while !part.is_null() {
            let data = libc::CMSG_DATA(part);
            match ((*part).cmsg_level, (*part).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    sender = Some(peer(data.cast::<libc::ucred>().read_unaligned()));
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let len = (*part).cmsg_len - libc::CMSG_LEN(0) as usize;
                    for at in 0..len / size_of::<libc::c_int>() {
                        let fd = data.cast::<libc::c_int>().add(at).read_unaligned();
                        crate::closing::close(OwnedFd::from_raw_fd(fd), payer);
                    }
                }
                _ => {}
            }
            part = libc::CMSG_NXTHDR(&raw const header, part);
        }
    }
    Ok(Some(sender))
}

/// What a call of `libc`'s has returned.
fn done(returned: isize) -> Result<isize, Errno> {
    let errno = || Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    if returned < 0 { Err(errno()) } else { Ok(returned) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket;
    use std::os::fd::AsFd;

    #[test]
    fn a_packet_without_credentials_leaves_no_descriptor_here() {
        let (ours, theirs) = socket::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        socket::send(theirs.as_fd(), b"packet", &[writer.as_fd(); 6]).unwrap();
        drop(writer);
        assert_eq!(of_next_packet(ours.as_fd(), &Payer::default()).unwrap(), Some(None));
        // Once the packet is gone nobody holds the pipe's other end for long; somebody who did would make this last for ever.
        drop((ours, theirs));
        assert_eq!(std::io::read_to_string(reader).unwrap(), "");
    }
}
