//! Servo's `ipc-channel` 0.23: channels like those of the standard library, over Unix seqpacket sockets.
//!
//! The channels of bytes are used, which need no serialization. Each has one direction, so there are two. A received
//! message is in newly allocated memory.
//!
//! The library's set of receivers (`IpcReceiverSet`) takes receivers of serialized values only, not those of bytes. So
//! a thread can poll several receivers in turn, but cannot sleep for all.

use std::os::fd::OwnedFd;

use ipc_channel::TryRecvError;
use ipc_channel::ipc::{IpcBytesReceiver, IpcBytesSender, IpcOneShotServer, IpcSender, bytes_channel};

use super::terms::Terms;
use crate::mechanism::hub::{self, Look};
use crate::mechanism::{Ability, End, Hub, Opened, Side};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One side's ends of the channels for both directions.
type Ends = (IpcBytesSender, IpcBytesReceiver);

/// One process's end of two channels.
#[derive(Debug)]
pub(crate) struct IpcChannel {
    out: IpcBytesSender,
    inward: IpcBytesReceiver,
    polled: bool,
}

impl End for IpcChannel {
    const NAME: &'static str = "ipc-channel";
    const TITLE: &'static str = "ipc-channel";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Hub];
    const HUB_WAITS: &'static [Wait] = &[Wait::Spin];

    fn open(_: &Work) -> Result<Opened> {
        Terms::open()
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let terms = Terms::join(descriptors)?;
        let (out, inward) = match side {
            Side::First => {
                let (server, name) = IpcOneShotServer::<Ends>::new().doing("IpcOneShotServer::new")?;
                terms.tell(&name)?;
                server.accept().doing("accept")?.1
            }
            Side::Second => {
                let server = IpcSender::<Ends>::connect(terms.hear()?).doing("connect")?;
                let (there, here) = (bytes_channel().doing("bytes_channel")?, bytes_channel().doing("bytes_channel")?);
                server.send((here.0, there.1)).doing("sending the ends")?;
                (there.0, here.1)
            }
        };
        Ok(Self { out, inward, polled: work.wait == Wait::Spin })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.out.send(message).doing("send")
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let message = if self.polled {
            loop {
                match self.inward.try_recv() {
                    Ok(message) => break message,
                    Err(TryRecvError::Empty) => std::hint::spin_loop(),
                    Err(error) => return Err(error).doing("try_recv"),
                }
            }
        } else {
            self.inward.recv().doing("recv")?
        };
        if message.len() != buffer.len() {
            return Err(Trouble::new(format!("a message of {} bytes arrived", message.len())));
        }
        buffer.copy_from_slice(&message);
        Ok(())
    }

    fn hub(ends: Vec<Self>, _: &Work) -> Result<Box<dyn Hub>> {
        Ok(hub::spinning(ends))
    }
}

impl Look for IpcChannel {
    #[inline]
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        match self.inward.try_recv() {
            Ok(message) if message.len() == buffer.len() => {
                buffer.copy_from_slice(&message);
                Ok(true)
            }
            Ok(message) => Err(Trouble::new(format!("a message of {} bytes arrived", message.len()))),
            Err(TryRecvError::Empty) => Ok(false),
            Err(error) => Err(error).doing("try_recv"),
        }
    }
}
