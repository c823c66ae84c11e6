//! Sending and receiving values: messages that stay objects within a process. See [`crate::channel::value`].

use std::collections::VecDeque;
use std::sync::Arc;

use crate::channel::handle::Handle;
use crate::channel::message::{Message, Valued};
use crate::channel::receiver::Rx;
use crate::channel::receiver::backlog::{BacklogMessage, BacklogPayload};
use crate::channel::sender::Tx;
use crate::channel::value::{Value, ValueError};
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::mailbox::mailbox;
use crate::link::Amount;
use crate::ring::{Header, Record, RecordKind};
use crate::wake::lock::Guard;

impl Channel {
    /// Sends a value as a message; waits for room until the deadline. A receiver in this process
    /// [takes](Message::take_value) the object itself. For a receiver in another process the value is [turned into
    /// bytes and handles](Value::into_parts), by this call or when the receiving end is sent to the other process. A
    /// receiver in this process that asks for bytes gets bytes, too.
    ///
    /// The value keeps its place in the order of messages. A value that is never received is dropped without being
    /// turned into bytes.
    ///
    /// # Errors
    /// The error contains the message. The errors of [`Channel::send_by`]; [`Error::MessageTooLarge`] also if the
    /// value's [size](Value::size) is too large for a message of this end.
    ///
    /// # Cost
    /// Within the process, the cost is that of a message with a handle, whatever the size of the value.
    /// [`Status`](crate::channel::Status) counts a value as a message with as many bytes as its size says.
    pub fn send_value(&self, value: impl Value, deadline: impl Into<Deadline>) -> Result<(), ValueError> {
        let mut message = Message::from_value(value);
        self.forward(&mut message, deadline).map_err(|error| ValueError { error, message: Box::new(message) })
    }
}

impl End {
    /// Sends a value message over this end, if the other end is in this process, and empties `message`. Returns `None`
    /// if the other end is in another process. After an error or `None`, `message` is unchanged.
    pub(super) fn forward_value(&self, message: &mut Message, deadline: Deadline) -> Option<Result<(), Error>> {
        let mut value = message.arrived.take_valued();
        let sent = self.send_value_local(&mut value, deadline);
        message.arrived.put_valued(value);
        match sent {
            Ok(false) => None,
            Ok(true) => {
                message.clear_deferred();
                Some(Ok(()))
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Sends a value to the other end, if the other end is in this process. Returns `true` if the value was sent, and
    /// `false` if the other end is in another process. After an error or `false`, `value` still holds the value.
    fn send_value_local(&self, value: &mut Option<Valued>, deadline: Deadline) -> Result<bool, Error> {
        let mut tx = self.lock_tx(deadline)?;
        self.attempt_in_each_lane(&mut tx, deadline, |tx| {
            // The other end may have moved back to this process.
            self.catch_up(tx);
            if !self.is_local(tx, deadline)? {
                return Ok(false);
            }
            tx.pin();
            self.try_send_value(tx, value, deadline).map(|()| true)
        })
    }

    fn try_send_value(
        &self,
        tx: &mut Guard<'_, Tx>,
        value: &mut Option<Valued>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let size = value.as_ref().map_or(0, |value| value.value_size());
        self.check_size(size, &[])?;
        self.wait_for_quotas(tx, 0, size, deadline)?;
        self.stage_record(tx, Header::new(RecordKind::Message, 0, 1), deadline)?;
        self.count_staged(tx, 0);
        let amount = Amount { sealed: size, ..Amount::default() };
        let extras = value.take().unwrap_or_default();
        let Some((ended, left)) = self.commit_local(tx, extras, None, Vec::new(), amount) else { return Ok(()) };
        *value = left;
        self.after_end(tx, ended, deadline)
    }

    /// Returns whether the next message of this end, whose record is `record`, is a value.
    #[inline]
    pub(in crate::channel) fn is_value(&self, rx: &mut Rx, record: Record) -> bool {
        record.header.handles() == 1 && self.is_value_local(rx)
    }

    #[inline(never)]
    fn is_value_local(&self, rx: &mut Rx) -> bool {
        let (token, sequence) = (rx.lane.token_in(), rx.consumer().taken());
        let link = rx.lane.current_link();
        link.is_local() && mailbox().is_value(token, sequence)
    }

    /// Turns the values queued at this end into bytes and handles. Adds to `ends` the ends that this end's queued
    /// messages carry. Fails if another thread has marked the receiving lock of this end as blocking.
    fn turn_values(&self, ends: &mut Vec<Arc<End>>) -> Result<(), Error> {
        let mut rx = self.rx.lock(Deadline::NOW)?;
        if rx.is_at_ring() && rx.consumer().is_empty() {
            return Ok(());
        }
        let link = rx.lane.current_link().clone();
        // Values that arrive during the loop are left alone; the bound keeps the loop finite.
        for _ in 0..rx.cells() {
            if !link.is_local() || !mailbox().has_value_for(rx.lane.token_in()) {
                break;
            }
            let Ok(Some(record)) = self.next_record(&mut rx) else { break };
            let unread = self.take_out_and_stay(&mut rx, record)?;
            rx.push_backlog(unread);
        }
        let mut turning = Turning { end: self, backlog: rx.take_backlog() };
        drop(rx);
        for unread in &mut turning.backlog {
            if let Some(bytes) = unread.arrived.turn() {
                unread.payload = BacklogPayload::Bytes(bytes);
            }
            ends.extend(unread.arrived.handles().iter().filter_map(Handle::as_end).cloned());
        }
        Ok(())
    }
}

/// Messages taken out of an end while their values are turned into bytes. Dropping this object puts the messages back
/// as the next messages of the end, also if a value's code panics.
struct Turning<'a> {
    end: &'a End,
    backlog: VecDeque<BacklogMessage>,
}

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        if let Ok(mut rx) = self.end.rx.lock(Deadline::NEVER) {
            while let Some(unread) = self.backlog.pop_back() {
                rx.put_back(unread);
            }
        }
        self.end.after_blocking();
    }
}

/// Turns values into bytes and handles: the values queued at the ends among `handles`, the values queued at the ends in
/// those messages, and so on. No end is locked while the values' own code runs.
pub(in crate::channel) fn turn_values(handles: &[Handle]) -> Result<(), Error> {
    turn_values_of(handles.iter().filter_map(Handle::as_end).cloned().collect())
}

/// Turns the values queued at `ends` into bytes and handles, then the values queued at the ends in their messages, and
/// so on. No end is locked while the values' own code runs.
pub(in crate::channel) fn turn_values_of(mut ends: Vec<Arc<End>>) -> Result<(), Error> {
    while let Some(end) = ends.pop() {
        end.turn_values(&mut ends)?;
    }
    Ok(())
}
