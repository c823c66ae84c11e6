//! Closing an end: its unreceived messages are dropped, and the peer is woken to learn of the close.
//!
//! A peer chooses how many messages and lanes an end has to go through before it is closed. The dropping call does a
//! [limited part](AT_ONCE) of this work, and the [deferred close](super::deferred_close) does the rest.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::deferred_close;
use crate::channel::handle::Handle;
use crate::channel::receiver::Rx;
use crate::channel::sender::Tx;
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::{Error, Resource};
use crate::lane::{Lane, waiter};
use crate::os::fault;
use crate::quota;
use crate::ring::{Ended, Memory, Record, RecordKind};
use crate::wake::lock::Guard;

/// The largest number of records dropped by closing one end while the peer continues to send. The ends in the dropped
/// messages share this limit. The peer gets no credit meanwhile, so a correct peer can fill only the present ring, the
/// larger rings and the lanes that follow.
const CLOSE_LIMIT: usize = 1 << 22;

/// The largest number of records from other processes dropped in one attempt to close ends. An attempt takes some 10 ms
/// at most: the first attempt is a part of the call that drops an end, and the peer must not hold up that call.
const AT_ONCE: usize = 1 << 15;

/// Number of records that a step to another lane counts as, towards [`CLOSE_LIMIT`] and [`AT_ONCE`].
pub(super) const CLOSE_LANE: usize = 4;

/// The weight of a handle or a piece of memory in records, towards [`CLOSE_LIMIT`] and [`AT_ONCE`], because closing it
/// calls the kernel.
pub(in crate::channel) const CLOSE_THING: usize = 64;

/// Number of bytes of the longest handle table read by the call that drops an end: a longer table may take longer to
/// read than [`AT_ONCE`] records. The deferred close reads all tables.
pub(in crate::channel) const LONGEST_AT_ONCE: usize = 512 << 10;

/// Number of bytes of the reason in the record that says *closed*. The record of an end that gave no reason has none.
const CLOSE_REASON: usize = 4;

/// How much work an attempt to close ends may still do, counted in records.
#[derive(Debug)]
struct Work {
    /// The number of records left for this attempt and all later attempts, of [`CLOSE_LIMIT`].
    in_all: usize,
    /// The number of records of [`AT_ONCE`] left for this attempt.
    at_once: usize,
    /// Whether this is the first attempt: a part of the call that drops an end.
    is_first: bool,
}

impl Work {
    /// Returns the work of the first attempt, if no more than `in_all` records are left for all attempts.
    fn new(in_all: usize) -> Self {
        Self { in_all, at_once: AT_ONCE, is_first: true }
    }

    /// Returns the work of a later attempt, if no more than `in_all` records are left for all attempts.
    fn later(in_all: usize) -> Self {
        Self { is_first: false, ..Self::new(in_all) }
    }

    /// Leaves all further work to a later attempt.
    fn postpone(&mut self) {
        self.at_once = 0;
    }

    /// Returns whether the attempt may do no more work.
    fn is_done(&self) -> bool {
        self.in_all == 0 || self.at_once == 0
    }

    /// Returns why an end is left open by an attempt that may do no more work. Returns `None` if no later attempt may
    /// do any either.
    fn unfinished(&self) -> Option<Open> {
        (self.in_all > 0).then_some(Open::Unfinished)
    }

    /// Counts the work that `records` records caused. Records of this process (`is_local`) count only towards
    /// [`CLOSE_LIMIT`]: the program expects that values and ends which it has sent to itself are dropped with the end
    /// that would have received them.
    fn count(&mut self, records: usize, is_local: bool) {
        self.in_all = self.in_all.saturating_sub(records);
        if !is_local {
            self.at_once = self.at_once.saturating_sub(records);
        }
    }
}

/// Why an end is still open after an attempt to close the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::channel) enum Open {
    /// The attempt has done as much work as one attempt may do.
    Unfinished,
    /// This process lacked descriptors, memory or threads. The next attempt should begin after a pause.
    Shortage,
}

/// Ends to close together: a dropped end, and the ends in its unreceived messages.
pub(in crate::channel) struct Closing {
    ends: Vec<Arc<End>>,
    /// The number of records left for all attempts on these ends, of [`CLOSE_LIMIT`].
    limit: usize,
    /// Whether no attempt was made yet: the first attempt is a part of the call that drops the end.
    is_first: bool,
}

impl Closing {
    pub(super) fn later(end: Arc<End>) -> Self {
        Self { ends: vec![end], limit: CLOSE_LIMIT, is_first: false }
    }

    /// Returns whether the process of the peer that made the work is known to be dead. A dead peer can add no more
    /// work, and this process should soon release everything held for that peer.
    pub(super) fn has_lost_its_peer(&self) -> bool {
        self.ends.last().is_some_and(|end| end.has_lost_its_peer())
    }

    /// Closes the ends, and then, one after the other, the ends in their unreceived messages, until all are closed or
    /// this attempt has reached its limit of work. Returns the ends left for later attempts, each part with the reason.
    /// A loop replaces recursion, because ends may lie deeply in each other's messages.
    pub(super) fn attempt(self) -> Vec<(Self, Open)> {
        self.attempt_from(None)
    }

    /// Does what [`attempt`](Self::attempt) does, and closes `first` before the other ends. The only allocations are
    /// for ends in unreceived messages, and for ends that stay open.
    fn attempt_from(mut self, mut first: Option<Arc<End>>) -> Vec<(Self, Open)> {
        let mut work = if self.is_first { Work::new(self.limit) } else { Work::later(self.limit) };
        self.is_first = false;
        let mut left = Vec::new();
        while let Some(end) = first.take().or_else(|| self.ends.pop()) {
            let (handles, open) = end.close(&mut work);
            match open {
                None => {}
                Some(Open::Shortage) => left.push((Self::later(end), Open::Shortage)),
                Some(Open::Unfinished) => self.ends.push(end),
            }
            self.ends.extend(handles.into_iter().filter_map(Handle::into_end));
            if work.at_once == 0 {
                break;
            }
        }
        self.limit = work.in_all;
        if !self.ends.is_empty() {
            left.push((self, Open::Unfinished));
        }
        left
    }
}

/// Returns whether the error comes from a shortage of descriptors, memory or threads in this process. Only a close that
/// failed with such an error is tried again: a peer could cause the other errors without end.
fn is_ours(error: &Error) -> bool {
    match error {
        Error::NoDescriptors | Error::NoMemory { .. } => true,
        Error::System { code, .. } => [libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM].contains(code),
        _ => false,
    }
}

/// Returns [`Open::Shortage`] if `error` comes from a shortage in this process; then the failed close has to be tried
/// again.
fn shortage(error: Error) -> Option<Open> {
    is_ours(&shortage_behind(error)).then_some(Open::Shortage)
}

/// Returns [`Error::NoDescriptors`] in place of `error` if the descriptor limit of a peer was reached while this
/// process has few descriptors left, because such a shortage lowers that limit. Returns any other `error` unchanged.
fn shortage_behind(error: Error) -> Error {
    match error {
        Error::LimitReached(Resource::Descriptors) if quota::has_few_descriptors() => Error::NoDescriptors,
        error => error,
    }
}

/// Returns whether a direction has ended because the peer broke the protocol or a rule of the program, and the link is
/// up. The peer may not know of the end then, so a close ends the ring of such a direction, too. `ended` is the error
/// with which the direction has ended.
fn is_broken_off(lane: &Lane, ended: Option<Error>) -> bool {
    matches!(ended, Some(Error::BadPeer(_))) && !lane.is_down()
}

impl Channel {
    /// Closes this end of the channel, like dropping the end, with a number as the reason for the peer. The peer
    /// receives everything sent before, then [`Error::PeerClosed`], and then [`Channel::close_reason`] returns the
    /// number. The program defines the meaning of the number. Never blocks.
    ///
    /// ```
    /// use strait::{Channel, Error};
    /// let (worker, boss) = Channel::pair()?;
    /// worker.send(b"half of it")?;
    /// worker.close_with(17);
    ///
    /// assert_eq!(boss.recv()?.bytes(), b"half of it");
    /// assert_eq!(boss.close_reason(), None);
    /// assert_eq!(boss.recv().unwrap_err(), Error::PeerClosed);
    /// assert_eq!(boss.close_reason(), Some(17));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn close_with(self, reason: u32) {
        self.set_close_reason(reason);
        drop(self);
    }

    /// Sets the reason, a number, for the peer once this end is closed, in any way: see [`Channel::close_with`]. The
    /// first reason that was set stays. When an end is sent to another process, its reason stays behind.
    ///
    /// ```
    /// use strait::{Channel, Error};
    /// let (worker, boss) = Channel::pair()?;
    /// worker.set_close_reason(17);
    /// drop(worker);
    ///
    /// assert_eq!(boss.recv().unwrap_err(), Error::PeerClosed);
    /// assert_eq!(boss.close_reason(), Some(17));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn set_close_reason(&self, reason: u32) {
        // A child of `fork` closes nothing.
        if !self.end.born.is_elsewhere() {
            let _ = self.end.counts.cold().closes_with.set(reason);
        }
    }

    /// Returns the reason of the other end's close ([`Channel::close_with`]), once a receive from this end has returned
    /// [`Error::PeerClosed`]. `None` before, and if the other end was dropped, its process died, or this end was sent
    /// to another process after the other end had been closed.
    pub fn close_reason(&self) -> Option<u32> {
        self.end.counts.cold.get()?.closed_with.get().copied()
    }
}

impl Drop for Channel {
    /// Closes this end of the channel. The peer receives everything sent before, and then *peer closed*. Unreceived
    /// messages from the peer are dropped, with their handles. Never blocks.
    fn drop(&mut self) {
        if self.end.born.is_elsewhere() {
            // Threads that exist only in the parent process may have locked the end's parts.
            return std::mem::forget(self.end.clone());
        }
        close(&self.end);
    }
}

/// Closes an end, and the ends in its unreceived messages. Does nothing in a child of `fork`, or if the end was sent or
/// closed before.
pub(crate) fn close(end: &Arc<End>) {
    // A child of `fork` must not close its parent's end, and a sent end belongs to its receiver.
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

/// Closes an unused end, and the ends in its unreceived messages. Ends still open after one attempt get a deferred
/// close.
pub(super) fn close_all(end: Arc<End>) {
    let closing = Closing { ends: Vec::new(), limit: CLOSE_LIMIT, is_first: true };
    close_rest_later(closing.attempt_from(Some(end)));
}

/// Closes unused ends as [`close_all`] does. `limit` is the number of records left for all attempts, of
/// [`CLOSE_LIMIT`].
fn close_ends(ends: Vec<Arc<End>>, limit: usize) {
    close_rest_later(Closing { ends, limit, is_first: true }.attempt());
}

/// Gives the ends that an attempt has left open, each part with the reason, a deferred close.
fn close_rest_later(left: Vec<(Closing, Open)>) {
    for (closing, open) in left {
        deferred_close::close_later(closing, open);
    }
}

impl End {
    /// Returns whether the peer is known to be dead, for the direction that is closed next: the sending direction until
    /// it has ended, then the receiving direction. `false` if another thread uses this end.
    fn has_lost_its_peer(&self) -> bool {
        let (Some(tx), Some(rx)) = (self.tx.try_lock(), self.rx.try_lock()) else { return false };
        let lane = if tx.over { &rx.lane } else { &tx.lane };
        lane.current_link().has_lost_its_peer()
    }

    /// Closes both directions of this end. Drops the unreceived messages, and counts them as `work`. Returns the ends
    /// in the dropped messages, for the caller to close. Also returns why the end is still open, if the close has to be
    /// tried again.
    fn close(&self, work: &mut Work) -> (Vec<Handle>, Option<Open>) {
        // SAFETY: the channel is being dropped, so no call on it is in progress except for polls of a wait set, which
        // do not mark the lock as blocking. A lock that is marked now belongs to a leaked view or reservation, never to
        // be used again.
        let (mut tx, mut rx) = unsafe { (self.tx.lock_or_seize(), self.rx.lock_or_seize()) };
        let sending = self.close_tx(&mut tx, Error::PeerClosed, work);
        let (ends, receiving) = self.close_rx(&mut tx, &mut rx, work);
        let open = sending.max(receiving);
        let is_unclosed = |tx: &Tx| tx.ended().is_none() || is_broken_off(&tx.lane, tx.ended());
        if open.is_none() && tx.delayed().is_some() && is_unclosed(&tx) {
            self.close_delayed(&mut tx, &mut rx);
            let _ = self.close_tx(&mut tx, Error::PeerClosed, work);
        }
        (ends, open)
    }

    /// Ends this end with `error`, because the peer broke the protocol or a rule of the program. Drops the unreceived
    /// messages; for the other end the call is a close. If another thread waits with the lock of a direction for an end
    /// of this process, its wait fails, and then that thread ends the direction. If a thread holds a view or a
    /// reservation, the direction ends at the next wait. Returns the error with which the sending direction has ended:
    /// an earlier error if the direction had ended before, otherwise `error`.
    pub(crate) fn break_off(&self, error: Error) -> Error {
        let mut work = Work::new(CLOSE_LIMIT);
        let mut ends = Vec::new();
        let (tx, rx) = (self.tx.lock(Deadline::NOW), self.rx.lock(Deadline::NOW));
        if tx.is_err() || rx.is_err() {
            self.end_waits(error);
        }
        let ended = match (tx, rx) {
            (Ok(mut tx), Ok(mut rx)) => {
                let ended = self.break_off_tx(&mut tx, error);
                ends = self.break_off_rx(&mut tx, &mut rx, error, &mut work);
                ended
            }
            (Ok(mut tx), Err(_)) => self.break_off_tx(&mut tx, error),
            (Err(_), rx) => rx.map_or(error, |mut rx| rx.end_with(error)),
        };
        deferred::postponed(|| close_ends(ends.into_iter().filter_map(Handle::into_end).collect(), work.in_all));
        self.after_blocking();
        ended
    }

    /// Ends this end with `error` as [`break_off`](Self::break_off) does, for a sender with the lock `tx` whose wait
    /// has failed because another thread has broken off this end. If yet another thread holds the lock of the receiving
    /// direction, that thread ends the direction.
    #[cold]
    pub(in crate::channel) fn break_off_while_sending(&self, tx: &mut Guard<'_, Tx>, error: Error) -> Error {
        let ended = self.break_off_tx(tx, error);
        if let Ok(mut rx) = self.rx.lock(Deadline::NOW) {
            let mut work = Work::new(CLOSE_LIMIT);
            let ends = self.break_off_rx(tx, &mut rx, error, &mut work);
            let ends = ends.into_iter().filter_map(Handle::into_end).collect();
            deferred::run_later(move || close_ends(ends, work.in_all));
        }
        ended
    }

    /// Closes the receiving direction, which ends with `error`, and drops the unreceived messages. Returns the ends in
    /// these messages. The drop of this end closes what the call leaves open.
    fn break_off_rx(&self, tx: &mut Tx, rx: &mut Rx, error: Error, work: &mut Work) -> Vec<Handle> {
        rx.end_with(error);
        let ends = self.close_rx(tx, rx, work).0;
        rx.end_with(error);
        ends
    }

    /// Closes the sending direction, which ends with `error`. Returns the error with which the direction has ended: an
    /// earlier error if the direction had ended before, otherwise `error`.
    #[cold]
    pub(in crate::channel) fn break_off_tx(&self, tx: &mut Guard<'_, Tx>, error: Error) -> Error {
        // The peer learns of the end of a link from the link.
        if !tx.lane.is_down() {
            // If the other end cannot be followed now, the drop of this end tries again.
            let _ = self.close_tx(tx, error, &mut Work::new(AT_ONCE));
        }
        tx.end_with(error)
    }

    /// Closes the receiving direction of this end: drops its unreceived messages, counts them in `work`, and then ends
    /// the ring, so that the peer's sends fail from then on. A handle or a piece of memory counts as [`CLOSE_THING`]
    /// further records, a mark or an end in a handle table as [`CLOSE_LANE`] records, and a message in a handle table
    /// as one. Returns the channel ends and data-pipe ends from the
    /// dropped messages, for the caller to close. Also returns why messages were left undropped and the ring not ended,
    /// if the close has to be tried again. If a peer has sent more than [`CLOSE_LIMIT`] records, the close is given up:
    /// the remaining records stay in the ring, the ring is not ended, and the close is not tried again.
    fn close_rx(&self, tx: &mut Tx, rx: &mut Rx, work: &mut Work) -> (Vec<Handle>, Option<Open>) {
        let mut ends: Vec<Handle> = Vec::new();
        let mut open = None;
        let mut is_over = false;
        rx.over &= !is_broken_off(&rx.lane, rx.ended());
        if !work.is_first {
            rx.read_long_tables();
        }
        while !is_over && !work.is_done() {
            rx.lane.set_closing();
            while let Some(unread) = rx.pop_backlog() {
                ends.extend(unread.into_ends());
            }
            let is_local = rx.lane.current_link().is_local();
            let next = self.next_or_mark(rx);
            work.count(rx.take_table_work(), is_local);
            if rx.was_table_too_long() {
                work.postpone();
                continue;
            }
            let next = match next {
                Ok(Some(record)) if record.header.kind() == RecordKind::Moved => {
                    work.count(CLOSE_LANE, is_local);
                    match self.follow_mark(rx, record) {
                        Ok(()) => {
                            self.leave_behind(tx, rx);
                            continue;
                        }
                        Err(error) => {
                            open = shortage(error);
                            if open.is_some() {
                                is_over = true;
                                continue;
                            }
                            Err(error)
                        }
                    }
                }
                next => next,
            };
            match next {
                Ok(Some(record)) => {
                    let things = record.header.handles() + usize::from(record.header.kind() != RecordKind::Message);
                    work.count(1 + CLOSE_THING * things, is_local);
                    // Handles and blocks are released one by one; the rest is released with the link.
                    let payload = self.payload(rx, record);
                    match self.arrived(rx, record) {
                        Ok(arrived) => ends.extend(arrived.into_handles().into_ends()),
                        Err(_) if rx.was_table_too_long() => {
                            work.postpone();
                            continue;
                        }
                        // The shortage is temporary, and other processes wait for the close of the ends in this
                        // message: the close is tried again.
                        Err(error) => open = shortage(error),
                    }
                    is_over = open.is_some();
                    if !is_over {
                        if let Ok(payload) = payload {
                            self.let_go(rx, payload);
                        }
                        rx.consumer().advance(record);
                        rx.drop_table();
                        work.count(rx.take_table_work(), is_local);
                    }
                }
                Ok(None) if rx.consumer.is_none() => is_over = true,
                Ok(None) => {
                    // A prepended backlog may have been found.
                    work.count(1, is_local);
                    if rx.backlog().is_none() && rx.consumer().end(RecordKind::Closed) {
                        rx.lane.set_read();
                        self.give_credit(rx);
                        is_over = true;
                    }
                }
                Err(error) => match rx.lane.found_next().cloned() {
                    // The sending direction has found the present lane of the other end; the receiving direction cannot
                    // find that lane by itself. No other thread reads in that lane.
                    Some(next) => {
                        work.count(CLOSE_LANE, is_local);
                        rx.leave();
                        rx.over = false;
                        rx.enter(next);
                        self.leave_behind(tx, rx);
                    }
                    None => {
                        // If the link ends with this end, or has ended, the peer learns of the close from the end of
                        // the link.
                        if rx.lane.current_link().has_other_uses() && !rx.lane.is_down() {
                            open = shortage(error);
                        }
                        is_over = true;
                    }
                },
            }
        }
        if !is_over {
            open = work.unfinished();
        }
        let link = rx.lane.current_link().clone();
        // If the other end has closed its sending direction first, it gets no credit. The other end counts its
        // descriptors in flight, and so keeps the lane, until the descriptors are reported as taken. If both ends of a
        // lane waited for such a report, both would keep the lane for ever.
        if open.is_none() && !link.is_local() && rx.consumer.is_some() {
            rx.consumer().give_taken();
        }
        // The next attempt needs the attachments of the messages that are left.
        if !link.is_local() && open.is_none() {
            link.discard_received(rx.lane.token_in());
        }
        (ends, open)
    }

    /// Brings an ended sending direction to the lane of the receiving direction. In an earlier lane, the sending
    /// direction would retain all lanes since, of which a peer can make a million.
    fn leave_behind(&self, tx: &mut Tx, rx: &Rx) {
        if tx.ended().is_some() {
            tx.enter(rx.lane.clone(), &self.options);
        }
    }

    /// Notes the reason that the other end gave when closed. `record` is the mark of the close; its payload is the
    /// reason, if the peer gave a reason.
    pub(in crate::channel) fn note_close_reason(&self, rx: &mut Rx, record: Record) {
        if record.header.len() != CLOSE_REASON {
            return;
        }
        let mut reason = [MaybeUninit::uninit(); CLOSE_REASON];
        let reason = rx.consumer().read(record, 0, &mut reason);
        let reason = u32::from_le_bytes((&*reason).try_into().expect("four bytes"));
        let _ = self.counts.cold().closed_with.set(reason);
    }

    /// Closes the sending direction of this end: ends the ring with a record that says *closed*, and wakes the peer.
    /// The direction has then ended with `error`, unless it had ended before. Follows the other end before, from lane
    /// to lane, and counts this as `work`. Returns why the ring was not ended, if the close has to be tried again.
    fn close_tx(&self, tx: &mut Guard<'_, Tx>, error: Error, work: &mut Work) -> Option<Open> {
        let reason = self.counts.cold.get().and_then(|cold| cold.closes_with.get()).map(|reason| reason.to_le_bytes());
        let reason = reason.as_ref().map_or(&[][..], |bytes| bytes);
        tx.over &= !is_broken_off(&tx.lane, tx.ended());
        while !tx.over {
            tx.lane.set_closing();
            match tx.producer.end(RecordKind::Closed, reason) {
                Ok(()) => {
                    tx.end_with(error);
                    let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
                    waiter::wake(tx.lane.current_link(), tx.lane.scope(), tx.producer.memory().sleeping(), how);
                }
                Err(Ended(Some(RecordKind::Frozen))) if work.is_done() => {
                    return work.unfinished();
                }
                Err(Ended(Some(RecordKind::Frozen))) => {
                    work.count(CLOSE_LANE, tx.lane.current_link().is_local());
                    if let Err(error) = self.follow_frozen(tx) {
                        return shortage(error);
                    }
                }
                // The other end receives nothing more in this lane.
                Err(_) => {
                    tx.end_with(error);
                }
            }
        }
        None
    }
}
