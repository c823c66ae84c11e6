//! Closing an end: what was not received is dropped, and the peer is told.

use std::sync::Arc;

use super::unclosed;
use crate::channel::handle::Handle;
use crate::channel::receiver::Rx;
use crate::channel::sender::Tx;
use crate::channel::{Channel, End};
use crate::error::Error;
use crate::os::fault;
use crate::quota::tell;
use crate::ring::{Ended, Kind, Memory};
use crate::wake::lock::Guard;
use crate::wake::waiter;

/// Records dropped at most when an end is closed, with the ends that lie in them, while its peer goes on sending. It gets
/// no credit meanwhile, so one ring and its successors is all it can fill.
pub(super) const CLOSE_LIMIT: usize = 1 << 22;

/// As how many records a mark counts there.
const CLOSE_MARK: usize = 4;

/// As how many each thing counts that the kernel has to be asked for or to take back.
const CLOSE_THING: usize = 64;

impl Drop for Channel {
    /// Closes the end: the peer receives what was sent, and then *peer closed*; what it sent and was not received is
    /// dropped, handles and all. Never blocks.
    fn drop(&mut self) {
        if self.end.born.is_elsewhere() {
            // What it consists of may be locked by threads that this process does not have.
            return std::mem::forget(self.end.clone());
        }
        close(&self.end);
    }
}

/// Closes an end for good, if it is here, and the ends in messages that it has not received.
pub(crate) fn close(end: &Arc<End>) {
    // The parent's end is not this child's to close; and one that was sent is no longer ours.
    if end.born.is_elsewhere() || end.was_sent() {
        return;
    }
    fault::point("before an end is closed");
    if let Some(member) = end.take_member() {
        member.take_out(member.tells_of_its_end());
    }
    // Whoever has it still, as a set that looks at it, finds that it is closed; and it is closed once.
    end.set_sent();
    close_all(end.clone());
    tell();
}

/// Closes an end that nobody uses any more. Those in messages that were never received are closed after it, one by one: no end
/// closes another from within.
pub(super) fn close_all(end: Arc<End>) {
    let mut closing = vec![end];
    let mut limit = CLOSE_LIMIT;
    while let Some(end) = closing.pop() {
        let (handles, lacks) = end.close(&mut limit);
        closing.extend(handles.into_iter().filter_map(Handle::into_end));
        if lacks.is_some() {
            unclosed::close_later(end);
        }
    }
}

impl End {
    /// Closes the end, and drops what it has not received as far as `limit` allows. The ends that came and were not
    /// received; and what lacked, if it is to be closed once more.
    fn close(&self, limit: &mut usize) -> (Vec<Handle>, Option<Error>) {
        // SAFETY: the channel is being dropped, so no call on it is in progress but for looks of a set, which keep no lock;
        // one that is kept now was kept by a view or a reservation that was leaked, and will never be used again.
        let (mut tx, mut rx) = unsafe { (self.tx.lock_or_seize(), self.rx.lock_or_seize()) };
        let lacks = self.close_tx(&mut tx).err();
        let (ends, error) = self.close_rx(&mut rx, limit);
        // What only the peer has too much of it may have too much of for ever.
        let is_ours = |error: &Error| matches!(error, Error::NoDescriptors | Error::NoMemory { .. });
        let lacks = lacks.filter(is_ours).or(error.filter(is_ours));
        if lacks.is_none() && tx.delayed().is_some() && tx.ended().is_none() {
            self.close_delayed(&mut tx, &mut rx);
            let _ = self.close_tx(&mut tx);
        }
        (ends, lacks)
    }

    /// Drops what was not received, as far as `limit` allows, and makes the peer's sends fail from here on. The ends, and what has
    /// one, that were not received; and why it did not come to its end.
    pub(super) fn close_rx(&self, rx: &mut Rx, limit: &mut usize) -> (Vec<Handle>, Option<Error>) {
        let mut ends: Vec<Handle> = Vec::new();
        let mut stopped = None;
        while *limit > 0 {
            while let Some(unread) = rx.pop_backlog() {
                ends.extend(unread.into_ends());
            }
            match self.front_or_mark(rx) {
                Ok(Some(record)) if record.header.kind() == Kind::Moved => {
                    *limit = limit.saturating_sub(CLOSE_MARK);
                    if let Err(error) = self.follow_mark(rx, record) {
                        stopped = Some(error);
                        break;
                    }
                }
                Ok(Some(record)) => {
                    let things = record.header.handles() + usize::from(record.header.kind() != Kind::Message);
                    *limit = limit.saturating_sub(1 + CLOSE_THING * things);
                    // Handles and blocks are let go one by one; what cannot be had goes with the link.
                    let body = self.body(rx, record);
                    if let Ok(arrived) = self.arrived(rx, record) {
                        ends.extend(arrived.into_handles().into_ends());
                    }
                    if let Ok(body) = body {
                        self.let_go(rx, body);
                    }
                    rx.consumer().advance(record);
                }
                Ok(None) if rx.consumer.is_none() => break,
                Ok(None) => {
                    // What was brought may have been found.
                    *limit = limit.saturating_sub(1);
                    if rx.backlog().is_none() && rx.consumer().end(Kind::Closed) {
                        rx.lane.set_read();
                        self.give_credit(rx);
                        break;
                    }
                }
                Err(error) => match rx.lane.found_next().cloned() {
                    // The other direction has found the way to where the other end is, and this one has lost it. Nobody
                    // but us reads there.
                    Some(next) => {
                        *limit = limit.saturating_sub(CLOSE_MARK);
                        rx.leave();
                        rx.over = false;
                        rx.enter(next);
                    }
                    None => {
                        // If the link goes with this end, or has gone, that tells the other one, too.
                        stopped = (rx.lane.listen().has_other_uses() && !rx.lane.is_down()).then_some(error);
                        break;
                    }
                },
            }
        }
        let link = rx.lane.listen();
        if !link.is_local() {
            link.discard_received(rx.lane.token_in());
        }
        (ends, stopped)
    }

    /// Tells the peer. An error is why it could not be followed to where it is.
    fn close_tx(&self, tx: &mut Guard<'_, Tx>) -> Result<(), Error> {
        while !tx.over {
            match tx.producer.end(Kind::Closed, &[]) {
                Ok(()) => {
                    tx.end_with(Error::PeerClosed);
                    let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
                    waiter::wake(tx.lane.listen(), tx.lane.scope(), tx.producer.memory().sleeping(), how);
                }
                Err(Ended(Some(Kind::Frozen))) => self.follow_frozen(tx)?,
                Err(_) => break,
            }
        }
        Ok(())
    }
}
