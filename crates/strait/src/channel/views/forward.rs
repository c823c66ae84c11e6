//! Forwarding: sends a received message on.
//!
//! A message in the ring or in a block of the pool was copied out when it was received, and is copied again by the
//! forward. Both copies are needed. The original sender can still write to the memory, so the next receiver might get
//! other bytes than this process has checked. And a process with a block can read and write later messages in the block
//! from its owner to another process.
//!
//! Sealed memory cannot change, and holds only this message. So it is passed on, by the descriptor that was retained
//! when the memory was mapped.

use std::sync::Arc;

use super::in_place::PayloadLocation;
use super::reserve::PIECE;
use crate::channel::handle::Handle;
use crate::channel::message::{Message, Outgoing, Sealed};
use crate::channel::unclaimed::UnclaimedHandles;
use crate::channel::value::Lazy;
use crate::channel::{Channel, End, InPlace, SendError};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::shm::{Mapping, Shareable};

impl Channel {
    /// Sends a received message on, with its handles; waits for room until the deadline. After success `message` is
    /// empty, and can be received into again. After an error `message` is unchanged.
    ///
    /// If the sender of a large message has [sealed](Channel::reserve_sealed) it, the memory is passed on, at a cost
    /// independent of the size. Any other message is copied, as by [`Channel::send_by`].
    ///
    /// ```
    /// use strait::{Channel, Deadline};
    /// let (producer, relay_in) = Channel::pair()?;
    /// let (relay_out, consumer) = Channel::pair()?;
    /// let mut room = producer.reserve_sealed(1 << 20)?;
    /// room.bytes().fill(7);
    /// room.commit(Deadline::NEVER)?;
    ///
    /// // Checked, then sent on; nobody can have changed the bytes meanwhile.
    /// let mut message = relay_in.recv()?;
    /// assert_eq!(message.bytes()[0], 7);
    /// relay_out.forward(&mut message, Deadline::NEVER)?;
    /// assert_eq!(consumer.recv()?.bytes(), [7; 1 << 20]);
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// A process can see that others have the same memory, and processes with common memory can signal to each other
    /// through the memory (by file locks, for example). To keep two processes apart, send them [`Message::bytes`]
    /// instead.
    ///
    /// # Errors
    /// The errors of [`Channel::send_by`]; and [`Error::HandlesLost`] if the message did not arrive whole.
    ///
    /// # Cost
    /// If the memory is passed on: the cost of a message with a descriptor. The message is copied if this process
    /// kept no descriptor of the memory: three quarters of `RLIMIT_NOFILE` were in use, or the limit of the sender
    /// was reached. It is also copied if the memory holds anything else.
    pub fn forward(&self, message: &mut Message, deadline: impl Into<Deadline>) -> Result<(), Error> {
        deferred::run_if_failed(self.end.forward(message, deadline.into()))
    }
}

impl<K> InPlace<'_, K> {
    /// Sends the message on over another channel, with its handles, without reading it; waits for room until the
    /// deadline. Meant for relays: for a large unsealed message, this call saves one of the two copies of
    /// [`Channel::forward`].
    ///
    /// After success the handles are gone; the view stays, and dropping it makes room for the sender. After an error
    /// the message is unchanged.
    ///
    /// If the message is not [sealed](Self::sealed), its bytes may change between a look at the view and this call. To
    /// check messages, a relay receives each message ([`Channel::recv_message`]) and forwards the copy.
    ///
    /// ```
    /// use strait::{Channel, Deadline};
    /// let (producer, relay_in) = Channel::pair()?;
    /// let (relay_out, consumer) = Channel::pair()?;
    /// producer.send(&[7; 1 << 20])?;
    /// relay_in.recv_in_place(Deadline::NEVER)?.forward(&relay_out, Deadline::NEVER)?;
    /// assert_eq!(consumer.recv()?.bytes(), [7; 1 << 20]);
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Channel::forward`].
    pub fn forward(&mut self, channel: &Channel, deadline: impl Into<Deadline>) -> Result<(), Error> {
        self.check_fork()?;
        let deadline = deadline.into();
        let payer = self.arrived_mut().payer();
        let handles = self.arrived_mut().take()?;
        let sent = match self.lies() {
            PayloadLocation::Sealed(mapping, len) => channel.end.forward_sealed(&mapping, len, handles, deadline),
            PayloadLocation::Elsewhere => self.copy_on(channel, handles, deadline),
        };
        deferred::run_if_failed(match sent {
            Ok(left) => {
                drop(UnclaimedHandles::new(left, payer));
                Ok(())
            }
            Err(failed) => {
                self.arrived_mut().set_handles(UnclaimedHandles::new(failed.handles, payer));
                Err(failed.error)
            }
        })
    }

    /// Copies the message into reserved room of `channel`, and sends it from there. On success returns the handles of
    /// the message that are still open in this process, for the caller to close.
    fn copy_on(
        &mut self,
        channel: &Channel,
        handles: Vec<Handle>,
        deadline: Deadline,
    ) -> Result<Vec<Handle>, SendError> {
        let len = self.len();
        let filled = channel.reserve(len, deadline).and_then(|mut room| {
            let mut piece = vec![0; PIECE.min(len)];
            for at in (0..len).step_by(PIECE) {
                let piece = &mut piece[..PIECE.min(len - at)];
                self.read_at(piece, at);
                room.fill_at(at, piece)?;
            }
            Ok(room)
        });
        match filled {
            Ok(room) => room.commit_with(len, handles, deadline),
            Err(error) => Err(SendError::new(error, handles)),
        }
    }
}

impl End {
    fn forward(&self, message: &mut Message, deadline: Deadline) -> Result<(), Error> {
        self.born.check()?;
        message.check_fork()?;
        if message.arrived.value().is_some_and(Lazy::is_value)
            && let Some(sent) = self.forward_value(message, deadline)
        {
            return sent;
        }
        message.turn();
        let payer = message.arrived.payer();
        let handles = message.arrived.take()?;
        let sent = match message.arrived.sealed() {
            Some(Sealed { mapping, len }) => self.forward_sealed(mapping, *len, handles, deadline),
            None => self.send_on(Outgoing::new(&message.bytes).handles(handles), deadline),
        };
        match sent {
            Ok(left) => {
                drop(UnclaimedHandles::new(left, payer));
                message.clear_deferred();
                Ok(())
            }
            Err(failed) => {
                message.arrived.set_handles(UnclaimedHandles::new(failed.handles, payer));
                Err(failed.error)
            }
        }
    }

    /// Sends a message over this end. On success returns the handles of the message that are still open in this
    /// process, for the caller to close.
    fn send_on(&self, mut message: Outgoing<'_>, deadline: Deadline) -> Result<Vec<Handle>, SendError> {
        self.send_any(&mut message, deadline).map(|()| message.handles)
    }

    /// Sends a message of `len` bytes whose payload is in sealed memory: passes the memory on, or else copies the
    /// payload. On success returns the handles of the message that are still open in this process, for the caller to
    /// close.
    fn forward_sealed(
        &self,
        mapping: &Arc<Mapping>,
        len: usize,
        mut handles: Vec<Handle>,
        deadline: Deadline,
    ) -> Result<Vec<Handle>, SendError> {
        if !mapping.can_be_passed_on(len) {
            return self.send_on(Outgoing::new(mapping.immutable_bytes(len)).handles(handles), deadline);
        }
        let memory = Shareable { mapping: mapping.clone(), fd: None };
        let sent = self.check_size(len, &handles).and_then(|()| self.send_sealed(&memory, len, &mut handles, deadline));
        match sent {
            Ok(()) => Ok(handles),
            Err(error) => Err(SendError::new(error, handles)),
        }
    }
}
