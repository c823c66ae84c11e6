//! The ways to connect two Unix sockets: as a pair that the second process inherits, or by a name.

use std::fs::remove_file;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recvfrom, send, socket_with, socketpair,
};

use super::keeper::Keeper;
use super::{Opened, Side, exactly, note};
use crate::trouble::{Result, Trouble, While};

/// A way to connect two Unix sockets.
pub(crate) trait Meeting: 'static {
    /// Whether the sockets are connected by a name.
    const NAMED: bool;

    /// Creates the descriptors that both sides need, in the first process.
    fn open(kind: SocketType) -> Result<Opened>;

    /// Returns a side's connected socket, and on the first side the keeper that removes names, if there are any.
    fn join(kind: SocketType, side: Side, descriptors: Vec<OwnedFd>) -> Result<(OwnedFd, Option<Keeper>)>;
}

/// Sockets from `socketpair`, which are connected from the beginning.
#[derive(Debug)]
pub(crate) struct Pair;

impl Meeting for Pair {
    const NAMED: bool = false;

    fn open(kind: SocketType) -> Result<Opened> {
        let (first, second) = pair(kind)?;
        Ok(Opened { first: vec![first], second: vec![second] })
    }

    fn join(_: SocketType, _: Side, descriptors: Vec<OwnedFd>) -> Result<(OwnedFd, Option<Keeper>)> {
        let [socket] = exactly(descriptors)?;
        Ok((socket, None))
    }
}

/// Returns a connected pair of Unix sockets.
pub(super) fn pair(kind: SocketType) -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).doing("socketpair")
}

/// Sockets that are connected by a path in a private directory: the first process binds and accepts, the second
/// connects.
///
/// Datagram sockets cannot listen. So both have a name: the second connects to the name of the first and sends an
/// empty datagram, from which the first learns the name to connect to.
#[derive(Debug)]
pub(crate) struct Named;

impl Meeting for Named {
    const NAMED: bool = true;

    fn open(kind: SocketType) -> Result<Opened> {
        let keeper = Keeper::start()?;
        let directory = keeper.directory()?;
        let socket = bound(kind, &directory.join("first"))?;
        if kind != SocketType::DGRAM {
            listen(&socket, 1).doing("listen")?;
        }
        let (here, there) = (note::write(&directory)?, note::write(&directory)?);
        Ok(Opened { first: vec![socket, here, keeper.into_descriptor()], second: vec![there] })
    }

    fn join(kind: SocketType, side: Side, mut descriptors: Vec<OwnedFd>) -> Result<(OwnedFd, Option<Keeper>)> {
        let keeper = Keeper::of(side, &mut descriptors);
        match side {
            Side::First => {
                let [socket, directory] = exactly(descriptors)?;
                let socket = if kind == SocketType::DGRAM {
                    meet_sender(socket)?
                } else {
                    accept_with(&socket, SocketFlags::CLOEXEC).doing("accept4")?
                };
                // No other process needs the name: a connected socket keeps working without it.
                remove_file(note::read::<PathBuf>(directory)?.join("first")).doing("removing the socket's name")?;
                Ok((socket, keeper))
            }
            Side::Second => {
                let [directory] = exactly(descriptors)?;
                let directory: PathBuf = note::read(directory)?;
                let socket = match kind {
                    SocketType::DGRAM => bound(kind, &directory.join("second"))?,
                    _ => unbound(kind)?,
                };
                connect(&socket, &address(&directory.join("first"))?).doing("connect")?;
                if kind == SocketType::DGRAM {
                    send(&socket, &[], SendFlags::NOSIGNAL).doing("sending the first datagram")?;
                }
                Ok((socket, keeper))
            }
        }
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).doing(&format!("using {} as the name of a socket", path.display()))
}

fn unbound(kind: SocketType) -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).doing("socket")
}

fn bound(kind: SocketType, path: &Path) -> Result<OwnedFd> {
    let socket = unbound(kind)?;
    bind(&socket, &address(path)?).doing(&format!("binding a socket to {}", path.display()))?;
    Ok(socket)
}

/// Waits for the empty datagram of the second process, and connects to that process.
fn meet_sender(socket: OwnedFd) -> Result<OwnedFd> {
    let (_, _, sender) = recvfrom(socket.as_fd(), &mut [0; 8], RecvFlags::empty()).doing("recvfrom")?;
    let sender = sender.ok_or_else(|| Trouble::new("a datagram arrived from a socket without a name"))?;
    let sender = SocketAddrUnix::try_from(sender).doing("reading the name of a datagram's sender")?;
    connect(&socket, &sender).doing("connect")?;
    Ok(socket)
}
