//! Messages that are values, which stay what they are within a process. See [`crate::channel::value`].

use std::collections::VecDeque;
use std::sync::Arc;

use crate::channel::handle::Handle;
use crate::channel::message::{Message, Valued};
use crate::channel::receiver::Rx;
use crate::channel::receiver::front::MOST_LANES;
use crate::channel::receiver::kept::{Kept, KeptBody};
use crate::channel::sender::Tx;
use crate::channel::value::{Value, ValueError};
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::link::{Amount, Handles, Number};
use crate::ring::{Header, Kind, Record};
use crate::wake::lock::Guard;

impl Channel {
    /// Sends a value; waits for room until the deadline. A receiver in this process [takes it](Message::take_value) as it is.
    /// For one in another process it is [turned into bytes and handles](Value::into_parts), by this call or when its end
    /// goes there; and so it is for a receiver here that asks for bytes.
    ///
    /// It is a message like others, in its order among them. It is dropped, as it is, if it is never received.
    ///
    /// # Errors
    /// The message comes back. As [`Channel::send_by`]; [`Error::MessageTooLarge`] also if its [size](Value::size) is too
    /// large for a message of this end.
    ///
    /// # Cost
    /// Within the process that of a message with a handle, whatever the size.
    /// [`Status`](crate::channel::Status) counts a value as a message without bytes.
    pub fn send_value(&self, value: impl Value, deadline: impl Into<Deadline>) -> Result<(), ValueError> {
        let mut message = Message::from_value(value);
        self.forward(&mut message, deadline).map_err(|error| ValueError { error, message: Box::new(message) })
    }
}

impl End {
    /// Sends a message on that is a value, if the other end is in this process. On an error the message is as it was.
    pub(super) fn forward_value(&self, message: &mut Message, deadline: Deadline) -> Option<Result<(), Error>> {
        let mut value = message.arrived.take_valued();
        let sent = self.send_value_within(&mut value, deadline);
        message.arrived.put_valued(value);
        match sent {
            Ok(false) => None,
            Ok(true) => {
                message.clear();
                Some(Ok(()))
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Sends a value. False if the other end is in another process; then it is still here, as after an error.
    fn send_value_within(&self, value: &mut Option<Valued>, deadline: Deadline) -> Result<bool, Error> {
        let mut tx = self.lock_tx(deadline)?;
        for lanes in 1.. {
            // It may have come back to this process.
            self.catch_up(&mut tx);
            if !self.is_within(&mut tx, deadline)? {
                return Ok(false);
            }
            tx.pin();
            let sent = self.try_send_value(&mut tx, value, deadline);
            tx.unpin();
            match sent {
                Ok(()) => return Ok(true),
                Err(_) if tx.has_moved() => {}
                Err(error) => {
                    tx.discard();
                    return Err(error);
                }
            }
            if lanes % MOST_LANES == 0 {
                self.goes_on(deadline)?;
            }
        }
        unreachable!("a call goes on for as long as it takes")
    }

    fn try_send_value(
        &self,
        tx: &mut Guard<'_, Tx>,
        value: &mut Option<Valued>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let size = value.as_ref().map_or(0, |value| value.size());
        self.check_size(size, &[])?;
        self.wait_for_quotas(tx, 0, size, deadline)?;
        self.stage_record(tx, Header::new(Kind::Message, 0, 1), deadline)?;
        self.count_staged(tx, 0);
        let amount = Amount { sealed: size, ..Amount::default() };
        let Some((ended, left)) = self.commit_within(tx, Handles::of_value(value.take()), amount) else {
            return Ok(());
        };
        *value = left.value;
        self.after_end(tx, ended, deadline)
    }

    /// Whether the message at the front is a value.
    #[inline]
    pub(in crate::channel) fn is_value(&self, rx: &mut Rx, record: Record) -> bool {
        record.header.handles() == 1 && self.is_value_within(rx)
    }

    #[inline(never)]
    fn is_value_within(&self, rx: &mut Rx) -> bool {
        let (token, sequence) = (rx.lane.token_in(), rx.consumer().taken());
        let link = rx.lane.listen();
        link.is_local() && link.stash().is_value(token, Number::first(sequence))
    }

    /// Turns the values that this end has not received into bytes; nobody else uses it. Adds the ends that lie in its messages.
    fn turn_values(&self, ends: &mut Vec<Arc<End>>) -> Result<(), Error> {
        let mut rx = self.rx.lock(Deadline::NOW)?;
        if rx.is_at_ring() && rx.consumer().is_empty() {
            return Ok(());
        }
        let link = rx.lane.listen().clone();
        // Those that come while it goes on are not waited for.
        for _ in 0..rx.cells() {
            if !link.is_local() || !link.stash().has_value_for(rx.lane.token_in()) {
                break;
            }
            let Ok(Some(record)) = self.front(&mut rx) else { break };
            let kept = self.take_out_and_stay(&mut rx, record)?;
            rx.keep_message(kept);
        }
        let mut turning = Turning { end: self, kept: rx.take_all_kept() };
        drop(rx);
        for kept in &mut turning.kept {
            if let Some(bytes) = kept.arrived.turn() {
                kept.body = KeptBody::Bytes(bytes);
            }
            ends.extend(kept.arrived.handles().iter().filter_map(Handle::as_end).cloned());
        }
        Ok(())
    }
}

/// Messages that an end has not received, and does receive, whatever a value's code does.
struct Turning<'a> {
    end: &'a End,
    kept: VecDeque<Kept>,
}

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        if let Ok(mut rx) = self.end.rx.lock(Deadline::NEVER) {
            while let Some(kept) = self.kept.pop_back() {
                rx.put_back(kept);
            }
        }
        self.end.kept_no_more();
    }
}

/// Turns the values that ends among these handles have not received into bytes and handles, and those that ends among those
/// have not, and so on. No end is locked while the values' own code runs.
pub(in crate::channel) fn turn_values(handles: &[Handle]) -> Result<(), Error> {
    turn_values_of(handles.iter().filter_map(Handle::as_end).cloned().collect())
}

/// The same for values that these ends have not received.
pub(in crate::channel) fn turn_values_of(mut ends: Vec<Arc<End>>) -> Result<(), Error> {
    while let Some(end) = ends.pop() {
        end.turn_values(&mut ends)?;
    }
    Ok(())
}
