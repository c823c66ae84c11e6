//! The survey: counts the messages queued at an end, and sees whether more will come, without receiving any.

use std::sync::Arc;

use super::Rx;
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::lane::Lane;
use crate::lane::mailbox::mailbox;
use crate::ring::{Corrupt, RecordKind, Survey};

/// Largest number of rings and lanes that one survey (a count of the queued messages) goes through. The next survey
/// continues from there.
const STEPS: usize = 64;

/// The state of an end of a channel: queued messages, room to send, and whether the other end is closed.
///
/// ```
/// let (a, b) = strait::Channel::pair()?;
/// a.send(b"hello")?;
/// let status = b.status()?;
/// assert_eq!((status.messages, status.bytes), (1, 5));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Number of messages that can be received now.
    pub messages: u64,
    /// Number of bytes in the messages that can be received now. A [value](crate::view::Value) from within the process
    /// counts as many as its [size](crate::view::Value::size) says.
    pub bytes: u64,
    /// The number of messages that have arrived at this end in this process: messages already received, and messages
    /// that can be received now. The number only grows, so two calls tell whether a message arrived in between. A
    /// message that was [put back](Channel::put_back) counts once more.
    pub arrived: u64,
    /// Whether a small message with one descriptor can be sent now without blocking, by the ring and the limits of this
    /// end's [`Options`](crate::Options). Also `true` if a send would fail at once.
    pub has_room: bool,
    /// Whether nothing more will come: the other end is closed, or its process is dead or a bad peer. Messages that
    /// were sent before can still be received.
    pub peer_closed: bool,
}

impl Status {
    /// Returns whether there is nothing to receive now, and never will be: the peer is closed and every message was
    /// received.
    pub fn all_read(&self) -> bool {
        self.peer_closed && self.messages == 0
    }
}

/// The state of a survey (a count of unreceived messages): its position and its result so far.
#[derive(Debug)]
pub(in crate::channel) struct Lookahead {
    lane: Arc<Lane>,
    survey: Survey,
    /// Number of messages, and of their bytes, received before the survey began or in the backlog then. The survey
    /// counts later messages only.
    base: (u64, u64),
}

/// The result of a survey: the number of messages queued at an end, the bytes in them, and whether the other end is
/// closed. `bytes` includes the sizes of values.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::channel) struct Queued {
    pub(in crate::channel) messages: u64,
    pub(in crate::channel) bytes: u64,
    pub(in crate::channel) peer_closed: bool,
}

impl Channel {
    /// Returns the state of this end: how much is queued to be received, whether there is room to send, and whether the
    /// other end is closed. Receives nothing and does not block.
    ///
    /// Messages that an earlier call has counted are not counted again. So a call after each message costs the same,
    /// however many messages are queued. At most every 10 ms a call also asks the kernel whether the other process is
    /// alive. Only the [values](crate::view::Value) in messages that were put back, or that moved with the end, are
    /// looked at one by one in each call, for [`Status::bytes`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`] while another thread blocks in a receive or in a send on this end, or holds a view, a
    /// reservation or a draft of this end. Also [`Error::WouldBlock`] if the messages lie in more than 64 rings and
    /// lanes, through which the other end has moved: the next call goes on from there. [`Error::LimitReached`] or
    /// [`Error::NoMemory`] if the peer's ring has just been replaced and the messages in the old one cannot be stored
    /// (receive, then ask again). [`Error::Forked`].
    pub fn status(&self) -> Result<Status, Error> {
        deferred::run_if_failed(self.end.status())
    }
}

impl End {
    pub(crate) fn status(&self) -> Result<Status, Error> {
        self.born.check()?;
        let queued = {
            let mut rx = self.rx.lock(Deadline::NOW)?;
            rx.lane.current_link().probe_if_due();
            self.queued(&mut rx)?
        };
        let has_room = {
            let mut tx = self.tx.lock(Deadline::NOW)?;
            self.has_room(&mut tx)
        };
        Ok(self.status_of(queued, has_room))
    }

    pub(in crate::channel) fn status_of(&self, queued: Queued, has_room: bool) -> Status {
        let Queued { messages, bytes, peer_closed } = queued;
        Status { messages, bytes, arrived: self.counts.messages_received.get() + messages, has_room, peer_closed }
    }

    /// Counts the messages queued at this end, and finds out whether the other end is closed. Receives none of them. A
    /// ring or lane that the other end has left is emptied into the backlog.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] after [`STEPS`] rings and lanes: the next call continues from there. Also a temporary
    /// error of moving messages to the backlog.
    pub(in crate::channel) fn queued(&self, rx: &mut Rx) -> Result<Queued, Error> {
        for _ in 0..STEPS {
            // The lane is checked before the ring: everything that was committed before the peer went down is then
            // seen in the ring.
            let down = rx.lane.is_down();
            let Some(end) = self.look_ahead(rx)? else {
                let counted = self.count_of(rx, down);
                return Ok(with_values(rx, counted));
            };
            match end {
                // The close comes after all messages.
                RecordKind::Closed => {
                    let counted = self.count_of(rx, true);
                    return Ok(with_values(rx, counted));
                }
                // The messages before this record go to the backlog, so that the ring behind this record can be
                // examined.
                _ => self.take_all_before(rx)?,
            }
        }
        // The peer goes from lane to lane; the next survey counts more.
        Err(Error::WouldBlock)
    }

    /// Counts the messages in the present ring that are new since the last survey. Before that, opens the lane and
    /// follows marks, as a receive does. Returns the kind of the record that ends the ring, or `None` if no such record
    /// has been written yet.
    fn look_ahead(&self, rx: &mut Rx) -> Result<Option<RecordKind>, Error> {
        if rx.ended().is_some() {
            return Ok(None);
        }
        // Follows the records at the front, and opens the lane if the peer's open packet has come.
        if let Err(error) = self.next_record(rx) {
            return if rx.ended().is_some() { Ok(None) } else { Err(error) };
        }
        let lane = rx.lane.clone();
        let Some(consumer) = rx.consumer_of_open() else { return Ok(None) };
        let goes_on = |ahead: &Lookahead| Arc::ptr_eq(&ahead.lane, &lane) && consumer.can_go_on(&ahead.survey);
        let (mut survey, base) = match rx.ahead().filter(|ahead| goes_on(ahead)) {
            Some(ahead) => (ahead.survey, ahead.base),
            None => (consumer.survey(), self.base(rx)),
        };
        let looked = consumer_look(rx, &mut survey);
        rx.set_ahead(Some(Lookahead { lane, survey, base }));
        looked.map_err(|corrupt| rx.end_with(Error::BadPeer(corrupt.0)))
    }

    /// Returns the number of messages, and of their bytes, received in this end's lifetime or in the backlog.
    fn base(&self, rx: &Rx) -> (u64, u64) {
        let (messages, bytes) = rx.backlog_amount();
        (self.counts.messages_received.get() + messages, self.counts.bytes_received.get().wrapping_add(bytes))
    }

    fn count_of(&self, rx: &mut Rx, peer_closed: bool) -> Queued {
        let peer_closed = peer_closed || rx.ended().is_some();
        let Some(Lookahead { survey, base, .. }) = rx.ahead().filter(|_| rx.ended().is_none()) else {
            let (messages, bytes) = rx.backlog_amount();
            return Queued { messages, bytes, peer_closed };
        };
        let received = (self.counts.messages_received.get(), self.counts.bytes_received.get());
        Queued {
            messages: (base.0 + survey.messages).saturating_sub(received.0),
            bytes: base.1.saturating_add(survey.bytes).saturating_sub(received.1),
            peer_closed,
        }
    }

    /// Moves all messages in the ring before a record *next* or *moved* to the backlog, and follows the record. So the
    /// messages behind that record can be counted.
    fn take_all_before(&self, rx: &mut Rx) -> Result<(), Error> {
        let (lane, generation) = (rx.lane.clone(), rx.generation());
        rx.set_ahead(None);
        loop {
            match self.next_record(rx) {
                Ok(Some(_)) if !Arc::ptr_eq(&lane, &rx.lane) || rx.generation() != generation => return Ok(()),
                Ok(Some(record)) => {
                    if record.header.handles() > 0 {
                        rx.lane.current_link().ledger().check_unread_descriptors(record.header.handles())?;
                    }
                    let unread = self.take_out_and_stay(rx, record)?;
                    rx.push_backlog(unread);
                }
                Ok(None) => return Ok(()),
                Err(_) if rx.ended().is_some() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Adds to `queued` the sizes of the values that can be received. The records of values have a length of 0.
fn with_values(rx: &mut Rx, mut queued: Queued) -> Queued {
    if queued.messages > 0 {
        let here = rx.backlog().into_iter().flatten().filter_map(|unread| unread.arrived.value());
        let mut bytes = here.fold(0, |sum: u64, value| sum.saturating_add(value.size() as u64));
        if rx.lane.current_link().is_local() {
            bytes = bytes.saturating_add(mailbox().size_for(rx.lane.token_in()));
        }
        queued.bytes = queued.bytes.saturating_add(bytes);
    }
    queued
}

fn consumer_look(rx: &mut Rx, survey: &mut Survey) -> Result<Option<RecordKind>, Corrupt> {
    match rx.consumer_of_open() {
        Some(consumer) => consumer.look_ahead(survey),
        None => Ok(None),
    }
}
