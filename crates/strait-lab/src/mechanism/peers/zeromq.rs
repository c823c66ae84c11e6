//! ZeroMQ, over its `ipc` transport: libzmq 4.3.4, from the crate `zmq` 0.10.
//!
//! The two sides have `PAIR` sockets, which connect exactly two ends in both directions. The library starts a thread
//! in each process. Every message goes through queues to that thread, and over a Unix stream socket to the thread of
//! the other process. Several sockets are waited for by `zmq_poll`.

use std::os::fd::OwnedFd;

use zmq::{Context, DONTWAIT, Error, PAIR, POLLIN, PollItem, Socket};

use super::terms::Terms;
use crate::mechanism::hub::{self, Look};
use crate::mechanism::keeper::Keeper;
use crate::mechanism::{Ability, End, Hub, Opened, Side};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One process's end of a `PAIR` socket.
pub(crate) struct Zeromq {
    socket: Socket,
    flags: i32,
    _keeper: Option<Keeper>,
}

impl std::fmt::Debug for Zeromq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Zeromq")
    }
}

impl End for Zeromq {
    const NAME: &'static str = "zeromq";
    const TITLE: &'static str = "ZeroMQ, ipc";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Hub];

    fn open(_: &Work) -> Result<Opened> {
        let keeper = Keeper::start()?;
        let mut opened = Terms::open()?;
        opened.first.push(keeper.into_descriptor());
        Ok(opened)
    }

    fn join(work: &Work, side: Side, mut descriptors: Vec<OwnedFd>) -> Result<Self> {
        let keeper = Keeper::of(side, &mut descriptors);
        let terms = Terms::join(descriptors)?;
        let socket = Context::new().socket(PAIR).doing("zmq_socket")?;
        // When this end is dropped, the library still sends the last messages, but for a second at most.
        socket.set_linger(1000).doing("zmq_setsockopt(ZMQ_LINGER)")?;
        match &keeper {
            Some(keeper) => {
                let name = format!("ipc://{}", keeper.directory()?.join("zmq").display());
                socket.bind(&name).doing("zmq_bind")?;
                terms.tell(&name)?;
            }
            None => socket.connect(&terms.hear::<String>()?).doing("zmq_connect")?,
        }
        let flags = if work.wait == Wait::Spin { DONTWAIT } else { 0 };
        Ok(Self { socket, flags, _keeper: keeper })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        loop {
            match self.socket.send(message, self.flags) {
                Ok(()) => return Ok(()),
                Err(Error::EAGAIN) => std::hint::spin_loop(),
                Err(Error::EINTR) => {}
                Err(error) => return Err(error).doing("zmq_send"),
            }
        }
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        loop {
            match self.socket.recv_into(buffer, self.flags) {
                Ok(got) if got == buffer.len() => return Ok(()),
                Ok(got) => return Err(Trouble::new(format!("a message of {got} bytes arrived"))),
                Err(Error::EAGAIN) => std::hint::spin_loop(),
                Err(Error::EINTR) => {}
                Err(error) => return Err(error).doing("zmq_recv"),
            }
        }
    }

    fn hub(ends: Vec<Self>, work: &Work) -> Result<Box<dyn Hub>> {
        Ok(if work.wait == Wait::Spin { hub::spinning(ends) } else { hub::in_turn(ends, wait_for_any) })
    }
}

impl Look for Zeromq {
    #[inline]
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        match self.socket.recv_into(buffer, DONTWAIT) {
            Ok(got) if got == buffer.len() => Ok(true),
            Ok(got) => Err(Trouble::new(format!("a message of {got} bytes arrived"))),
            Err(Error::EAGAIN | Error::EINTR) => Ok(false),
            Err(error) => Err(error).doing("zmq_recv"),
        }
    }
}

fn wait_for_any(ends: &[Zeromq]) -> Result<()> {
    let mut items: Vec<PollItem<'_>> = ends.iter().map(|end| end.socket.as_poll_item(POLLIN)).collect();
    match zmq::poll(&mut items, -1) {
        Ok(_) | Err(Error::EINTR) => Ok(()),
        Err(error) => Err(error).doing("zmq_poll"),
    }
}
