//! TCP over the loopback device, without delay (`TCP_NODELAY`): a transport that works between machines too.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Ability, End, Hub, Opened, Receiving, Sending, Side, exactly, hub, note, socket, stream};
use crate::trouble::{Result, While};
use crate::work::{Wait, Work};

/// One process's end of a TCP connection.
#[derive(Debug)]
pub(crate) struct Tcp {
    socket: OwnedFd,
    polled: bool,
}

impl End for Tcp {
    const NAME: &'static str = "tcp";
    const TITLE: &'static str = "TCP loopback";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Gather, Ability::Hub, Ability::Threads];

    fn missing() -> Option<String> {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).err().map(|error| format!("binding to 127.0.0.1: {error}"))
    }

    fn open(_: &Work) -> Result<Opened> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing("binding to 127.0.0.1")?;
        let address = listener.local_addr().doing("getsockname")?;
        Ok(Opened { first: vec![listener.into()], second: vec![note::write(&address)?] })
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [descriptor] = exactly(descriptors)?;
        let socket = match side {
            Side::First => TcpListener::from(descriptor).accept().doing("accept")?.0,
            Side::Second => TcpStream::connect(note::read::<SocketAddr>(descriptor)?).doing("connect")?,
        };
        // Without this option the kernel delays a small message in the hope of more.
        socket.set_nodelay(true).doing("setsockopt(TCP_NODELAY)")?;
        Ok(Self { socket: socket.into(), polled: work.wait == Wait::Spin })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        stream::send_all(&self.socket, message, self.polled)
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        stream::recv_all(&self.socket, buffer, self.polled)
    }

    /// Sends several messages by one call, since a stream keeps no message boundaries.
    #[inline]
    fn send_batch(&mut self, messages: &[u8], _: usize) -> Result<()> {
        self.send(messages)
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        hub::gathered(parts, |parts| socket::send_parts(self.socket.as_fd(), parts, &[], self.polled))
    }

    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        Ok(stream::divided(&self.socket, self.polled))
    }

    fn hub(ends: Vec<Self>, work: &Work) -> Result<Box<dyn Hub>> {
        hub::polled(ends, work)
    }
}

impl AsFd for Tcp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
