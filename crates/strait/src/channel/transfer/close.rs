//! Closing an end: its unreceived messages are dropped, and the peer is woken to learn of the close.

use std::sync::Arc;

use super::deferred_close;
use crate::channel::handle::Handle;
use crate::channel::receiver::Rx;
use crate::channel::sender::Tx;
use crate::channel::{Channel, End};
use crate::deferred;
use crate::error::{Error, Resource};
use crate::lane::waiter;
use crate::os::fault;
use crate::quota;
use crate::ring::{Ended, Memory, RecordKind};
use crate::wake::lock::Guard;

/// Largest number of records that closing one end drops while the peer goes on sending. The ends in the dropped
/// messages share this limit. The peer gets no credit meanwhile, so a correct peer can fill only the present ring and
/// the larger rings and lanes that follow it.
pub(super) const CLOSE_LIMIT: usize = 1 << 22;

/// Number of records that a mark (a record that leads to another lane) counts as, towards [`CLOSE_LIMIT`].
const CLOSE_MARK: usize = 4;

/// Number of records that a handle or a piece of memory counts as, towards [`CLOSE_LIMIT`], because the kernel is
/// called for it.
const CLOSE_THING: usize = 64;

/// Returns whether the error comes from a shortage of descriptors, memory or threads in this process. Only a close that
/// failed with such an error is tried again: a peer could cause the other errors without end.
pub(super) fn is_ours(error: &Error) -> bool {
    match error {
        Error::NoDescriptors | Error::NoMemory { .. } => true,
        Error::System { code, .. } => [libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM].contains(code),
        _ => false,
    }
}

/// Returns [`Error::NoDescriptors`] in place of `error` if the descriptor limit of a peer was reached while this
/// process has few descriptors left, because such a shortage lowers that limit. Returns any other `error` unchanged.
fn shortage_behind(error: Error) -> Error {
    match error {
        Error::LimitReached(Resource::Descriptors) if quota::has_few_descriptors() => Error::NoDescriptors,
        error => error,
    }
}

impl Drop for Channel {
    /// Closes this end of the channel. The peer receives everything that this end has sent, and then *peer closed*.
    /// Messages from the peer that this end has not received are dropped, with their handles. Never blocks.
    fn drop(&mut self) {
        if self.end.born.is_elsewhere() {
            // Threads that this process does not have may have locked the end's parts.
            return std::mem::forget(self.end.clone());
        }
        close(&self.end);
    }
}

/// Closes an end, and the ends in the messages that this end has not received. Does nothing in a child of `fork`, or if
/// the end was sent or closed before.
pub(crate) fn close(end: &Arc<End>) {
    // A child of `fork` must not close its parent's end, and an end that was sent belongs to its receiver.
    if end.born.is_elsewhere() || end.was_sent() {
        return;
    }
    fault::point("before an end is closed");
    if let Some(member) = end.take_member() {
        member.take_out(member.reports_its_end());
    }
    // Other users of the end, such as a wait set that polls the end, now find the end closed. No later call closes it
    // again.
    end.set_sent();
    close_all(end.clone());
    deferred::run();
}

/// Closes an end that no call uses any more, and then, one after the other, the ends in its unreceived messages. An end
/// that cannot be closed for lack of descriptors or memory gets a deferred close. A loop takes the place of a
/// recursion, however deeply ends lie in each other's messages.
pub(super) fn close_all(end: Arc<End>) {
    let mut closing = vec![end];
    let mut limit = CLOSE_LIMIT;
    while let Some(end) = closing.pop() {
        let (handles, failure) = end.close(&mut limit);
        closing.extend(handles.into_iter().filter_map(Handle::into_end));
        if failure.is_some() {
            deferred_close::close_later(end);
        }
    }
}

impl End {
    /// Closes both directions of this end. Drops its unreceived messages, until none is left or `limit` is used up, and
    /// lowers `limit` as [`close_rx`](Self::close_rx) does. Returns the ends from these messages, for the caller to
    /// close. Also returns an error if this process lacked descriptors, memory or threads, so that the close has to be
    /// tried again.
    fn close(&self, limit: &mut usize) -> (Vec<Handle>, Option<Error>) {
        // SAFETY: the channel is being dropped, so no call on it is in progress except for polls of a wait set, which
        // do not mark the lock as blocking. A lock that is marked now belongs to a view or a reservation that was
        // leaked and will never be used again.
        let (mut tx, mut rx) = unsafe { (self.tx.lock_or_seize(), self.rx.lock_or_seize()) };
        let failure = self.close_tx(&mut tx).err().map(shortage_behind);
        let (ends, error) = self.close_rx(&mut rx, limit);
        let failure = failure.filter(is_ours).or(error.filter(is_ours));
        if failure.is_none() && tx.delayed().is_some() && tx.ended().is_none() {
            self.close_delayed(&mut tx, &mut rx);
            let _ = self.close_tx(&mut tx);
        }
        (ends, failure)
    }

    /// Closes the receiving direction of this end: drops its unreceived messages, and then ends the ring, so that the
    /// peer's sends fail from here on. Lowers `limit` by the records dropped, but not below 0; a handle or a piece of
    /// memory counts as [`CLOSE_THING`] further records, and a mark as [`CLOSE_MARK`] records. If `limit` reaches 0,
    /// stops without an error: further messages stay in the ring, and the ring is not ended by this call. Returns the
    /// channel ends and data-pipe ends from the dropped messages, for the caller to close. Also returns an error if a
    /// failure left messages undropped or the ring not ended.
    pub(super) fn close_rx(&self, rx: &mut Rx, limit: &mut usize) -> (Vec<Handle>, Option<Error>) {
        let mut ends: Vec<Handle> = Vec::new();
        let mut stopped = None;
        while *limit > 0 {
            while let Some(unread) = rx.pop_backlog() {
                ends.extend(unread.into_ends());
            }
            match self.next_or_mark(rx) {
                Ok(Some(record)) if record.header.kind() == RecordKind::Moved => {
                    *limit = limit.saturating_sub(CLOSE_MARK);
                    if let Err(error) = self.follow_mark(rx, record) {
                        stopped = Some(shortage_behind(error));
                        break;
                    }
                }
                Ok(Some(record)) => {
                    let things = record.header.handles() + usize::from(record.header.kind() != RecordKind::Message);
                    *limit = limit.saturating_sub(1 + CLOSE_THING * things);
                    // Handles and blocks are released one by one; the rest is released with the link.
                    let payload = self.payload(rx, record);
                    match self.arrived(rx, record).map_err(shortage_behind) {
                        Ok(arrived) => ends.extend(arrived.into_handles().into_ends()),
                        // This shortage will pass, and other processes wait at the other ends of the ends in this
                        // message: the close is tried again.
                        Err(error) if is_ours(&error) => {
                            stopped = Some(error);
                            break;
                        }
                        Err(_) => {}
                    }
                    if let Ok(payload) = payload {
                        self.let_go(rx, payload);
                    }
                    rx.consumer().advance(record);
                }
                Ok(None) if rx.consumer.is_none() => break,
                Ok(None) => {
                    // A prepended backlog may have been found.
                    *limit = limit.saturating_sub(1);
                    if rx.backlog().is_none() && rx.consumer().end(RecordKind::Closed) {
                        rx.lane.set_read();
                        self.give_credit(rx);
                        break;
                    }
                }
                Err(error) => match rx.lane.found_next().cloned() {
                    // The sending direction has found the lane in which the other end is; the receiving direction
                    // cannot find that lane by itself. No other thread reads in that lane.
                    Some(next) => {
                        *limit = limit.saturating_sub(CLOSE_MARK);
                        rx.leave();
                        rx.over = false;
                        rx.enter(next);
                    }
                    None => {
                        // If the link ends with this end, or has ended, the peer learns of the close from that.
                        stopped = (rx.lane.current_link().has_other_uses() && !rx.lane.is_down())
                            .then(|| shortage_behind(error));
                        break;
                    }
                },
            }
        }
        let link = rx.lane.current_link();
        // The next attempt needs the attachments of the messages that are left.
        if !link.is_local() && !stopped.is_some_and(|error| is_ours(&error)) {
            link.discard_received(rx.lane.token_in());
        }
        (ends, stopped)
    }

    /// Closes the sending direction of this end: ends the ring with a record that says *closed*, and wakes the peer.
    ///
    /// # Errors
    /// The error that kept this end from following the peer into the lane to which the peer has moved.
    fn close_tx(&self, tx: &mut Guard<'_, Tx>) -> Result<(), Error> {
        while !tx.over {
            match tx.producer.end(RecordKind::Closed, &[]) {
                Ok(()) => {
                    tx.end_with(Error::PeerClosed);
                    let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
                    waiter::wake(tx.lane.current_link(), tx.lane.scope(), tx.producer.memory().sleeping(), how);
                }
                Err(Ended(Some(RecordKind::Frozen))) => self.follow_frozen(tx)?,
                Err(_) => break,
            }
        }
        Ok(())
    }
}
