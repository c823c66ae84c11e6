//! A Unix seqpacket socket: a message is a packet, with descriptors.

use std::io::Error;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use strait_peers::{Client, Meeting, Peer, Result, Row, serve_with};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "Unix seqpacket socket",
        default: "send, recv; sendmsg, recvmsg for descriptors",
        tuned: None,
        serve,
        connect,
    })
}

/// Returns a socket and the address of the meeting.
fn socket(meeting: &Meeting) -> Result<(OwnedFd, libc::sockaddr_un)> {
    // SAFETY: the call makes a descriptor.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(Error::last_os_error().into());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: zeros are a valid address structure.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = meeting.path("socket");
    if path.len() >= address.sun_path.len() {
        return Err("the path of the socket is too long".into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
        *to = from as libc::c_char;
    }
    make_room(&socket, meeting.size)?;
    Ok((socket, address))
}

/// Asks the kernel for room for a message of `size` bytes in the socket's send buffer. The kernel gives at most its
/// limit for all users.
fn make_room(socket: &OwnedFd, size: usize) -> Result<()> {
    let room = libc::c_int::try_from(size + 65536)?;
    let len = size_of_val(&room) as libc::socklen_t;
    let pointer = (&raw const room).cast();
    // SAFETY: the pointer is to a local integer, and the length is its size. A failure leaves the default.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, pointer, len) };
    Ok(())
}

fn done(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 { Err(Error::last_os_error().into()) } else { Ok(result) }
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let (listener, address) = socket(meeting)?;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer is to a local address, and the length is its size.
    done(unsafe { libc::bind(listener.as_raw_fd(), (&raw const address).cast(), len) })?;
    // SAFETY: the call has no pointers.
    done(unsafe { libc::listen(listener.as_raw_fd(), 1) })?;
    ready("");
    // SAFETY: the call may leave out the address.
    let socket = done(unsafe { libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) })?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    make_room(&socket, meeting.size)?;
    let passes = meeting.row == Row::Descriptor;
    serve_with(
        |message| if passes { receive_message(&socket, message) } else { receive(&socket, meeting.size, message) },
        |message| send(&socket, message),
    )
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let (socket, address) = socket(meeting)?;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer is to a local address, and the length is its size.
    done(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(Box::new(Seqpacket { socket, size: meeting.size }))
}

fn send(socket: &OwnedFd, message: &[u8]) -> Result<()> {
    // SAFETY: pointer and length are those of `message`.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL) };
    match Error::last_os_error() {
        _ if sent >= 0 => Ok(()),
        // A packet has to fit into the send buffer.
        error if error.raw_os_error() == Some(libc::EMSGSIZE) => Err("not offered".into()),
        error => Err(error.into()),
    }
}

fn receive(socket: &OwnedFd, size: usize, message: &mut Vec<u8>) -> Result<()> {
    message.resize(size, 0);
    // SAFETY: pointer and length are those of `message`.
    let len = unsafe { libc::recv(socket.as_raw_fd(), message.as_mut_ptr().cast(), message.len(), 0) };
    match len {
        0 => Err("the other side has closed".into()),
        len if len < 0 => Err(Error::last_os_error().into()),
        len => {
            message.truncate(len as usize);
            Ok(())
        }
    }
}

/// The room for one descriptor in control data.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Receives a packet, and closes its descriptor.
fn receive_message(socket: &OwnedFd, message: &mut Vec<u8>) -> Result<()> {
    message.resize(4096, 0);
    let mut control = Control([0; 24]);
    let mut part = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: message.len() };
    // SAFETY: zeros are a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
    (header.msg_control, header.msg_controllen) = ((&raw mut control).cast(), size_of::<Control>());
    // SAFETY: all pointers of the header are to local values.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_CMSG_CLOEXEC) };
    if len <= 0 {
        return Err("the other side has closed".into());
    }
    message.truncate(len as usize);
    // SAFETY: the header was filled in by the kernel.
    let first = unsafe { libc::CMSG_FIRSTHDR(&header) };
    if !first.is_null() {
        // SAFETY: the control data has one descriptor, and nothing else owns it.
        drop(unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(first).cast::<libc::c_int>().read_unaligned()) });
    }
    Ok(())
}

struct Seqpacket {
    socket: OwnedFd,
    size: usize,
}

impl Client for Seqpacket {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        send(&self.socket, request)?;
        receive(&self.socket, self.size, reply)
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        send(&self.socket, message)
    }

    fn pass(&mut self, request: &[u8], descriptor: BorrowedFd<'_>) -> Result<()> {
        // Strait's sender gives away a descriptor of its own, so here the descriptor is duplicated and closed, too.
        let descriptor = descriptor.try_clone_to_owned()?;
        let mut control = Control([0; 24]);
        let mut part = libc::iovec { iov_base: request.as_ptr().cast_mut().cast(), iov_len: request.len() };
        // SAFETY: zeros are a valid header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        (header.msg_control, header.msg_controllen) = ((&raw mut control).cast(), size_of::<Control>());
        // SAFETY: the control data has room for one header and one descriptor.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(first).cast::<libc::c_int>().write_unaligned(descriptor.as_raw_fd());
        }
        // SAFETY: all pointers of the header are to local values.
        if unsafe { libc::sendmsg(self.socket.as_raw_fd(), &header, libc::MSG_NOSIGNAL) } < 0 {
            return Err(Error::last_os_error().into());
        }
        drop(descriptor);
        receive(&self.socket, self.size, &mut Vec::new())
    }
}
