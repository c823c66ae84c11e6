//! Sending on what was received.
//!
//! A message in the ring or in a block of the pool was copied out when it was received, and is copied once more. That cannot be
//! saved: its sender can still write where it lies, so the next receiver would get something else than this process looked
//! at; and who gets a block can read and write what its owner puts there later, for somebody else.
//!
//! One that is sealed cannot change, and nobody uses its memory for anything else. So its memory is sent on, by the
//! descriptor that was kept when it was mapped.

use std::sync::Arc;

use super::in_place::Lies;
use super::reserve::PIECE;
use crate::channel::handle::Handle;
use crate::channel::message::{Message, Outgoing, Sealed};
use crate::channel::value::Lazy;
use crate::channel::{Channel, End, InPlace, SendError};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::fd_reaper::Untaken;
use crate::quota::told;
use crate::shm::{Mapping, Shareable};

impl Channel {
    /// Sends a received message on, handles and all; waits for room until the deadline. Then `message` is empty, and can be
    /// received into again. If it cannot be sent, it is as it was.
    ///
    /// The memory of a large message that its sender has [sealed](Channel::reserve_sealed) is passed on, at a cost that does
    /// not grow with its size. Any other is copied, as by [`Channel::send_by`].
    ///
    /// ```
    /// use strait::{Channel, Deadline};
    /// let (producer, relay_in) = Channel::pair()?;
    /// let (relay_out, consumer) = Channel::pair()?;
    /// let mut room = producer.reserve_sealed(1 << 20)?;
    /// room.bytes().fill(7);
    /// room.commit(Deadline::NEVER)?;
    ///
    /// // Looked at, and sent on; nobody can have changed it meanwhile.
    /// let mut message = relay_in.recv()?;
    /// assert_eq!(message.bytes()[0], 7);
    /// relay_out.forward(&mut message, Deadline::NEVER)?;
    /// assert_eq!(consumer.recv()?.bytes(), [7; 1 << 20]);
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// Whoever gets the memory can see that others have it too, and what has memory in common can signal to each other through
    /// it (by file locks, say). To keep two processes from each other, send them [`Message::bytes`] instead.
    ///
    /// # Errors
    /// As [`Channel::send_by`]; and [`Error::HandlesLost`], if the message did not arrive whole.
    ///
    /// # Cost
    /// With its memory: what a message with a descriptor costs. It is copied after all where there was no descriptor to spare
    /// for it (three quarters of `RLIMIT_NOFILE` are in use, or the limit of its sender is reached), and where there is something
    /// else in the memory than the message.
    pub fn forward(&self, message: &mut Message, deadline: impl Into<Deadline>) -> Result<(), Error> {
        told(self.end.forward(message, deadline.into()))
    }
}

impl InPlace<'_> {
    /// Sends the message on over another channel without looking at it, handles and all; waits for room until the deadline. For
    /// relays: of a large message that is not sealed this saves one of the two copies that [`Channel::forward`] makes.
    ///
    /// The handles are gone then; the view stays, and is dropped to make room for the sender. If the message cannot be sent, it
    /// is as it was.
    ///
    /// What this process saw in the view is not for certain what is sent, unless the message is [sealed](Self::sealed). Whoever
    /// has to check what passes receives it ([`Channel::recv_to`]), and forwards that.
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
    /// As [`Channel::forward`].
    pub fn forward(&mut self, channel: &Channel, deadline: impl Into<Deadline>) -> Result<(), Error> {
        self.check_fork()?;
        let deadline = deadline.into();
        let payer = self.arrived_mut().payer();
        let handles = self.arrived_mut().take()?;
        let sent = match self.lies() {
            Lies::Sealed(mapping, len) => channel.end.forward_sealed(&mapping, len, handles, deadline),
            Lies::Elsewhere => self.copy_on(channel, handles, deadline),
        };
        told(match sent {
            Ok(left) => {
                drop(Untaken::new(left, payer));
                Ok(())
            }
            Err(failed) => {
                self.arrived_mut().set_handles(Untaken::new(failed.handles, payer));
                Err(failed.error)
            }
        })
    }

    /// Copies the message from where it lies to where the next receiver reads it.
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
                self.copy_to(at, piece);
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
                drop(Untaken::new(left, payer));
                message.clear();
                Ok(())
            }
            Err(failed) => {
                message.arrived.set_handles(Untaken::new(failed.handles, payer));
                Err(failed.error)
            }
        }
    }

    /// Sends a message. What is left of its handles, which the caller closes.
    fn send_on(&self, mut message: Outgoing<'_>, deadline: Deadline) -> Result<Vec<Handle>, SendError> {
        self.send(&mut message, deadline).map(|()| message.handles)
    }

    /// The same of sealed memory.
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
