//! How much is queued at an end, and whether more will come, without receiving any of it.

use std::sync::Arc;

use super::Rx;
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::Lane;
use crate::quota::told;
use crate::ring::{Corrupt, Kind, Survey};

/// Rings and lanes gone through in one look, at most. The next look goes on from there.
const STEPS: usize = 64;

/// What there is at an end of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Messages that can be received now.
    pub messages: u64,
    /// Bytes in them. A [value](crate::Value) that came from within the process has none, whatever its size is said to be.
    pub bytes: u64,
    /// Whether a small message, with one descriptor, can be sent now as far as the ring and the limits of this end's
    /// [`Options`](crate::Options) go, or sending fails at once.
    pub has_room: bool,
    /// Whether nothing more will come, since the other end is closed, its process dead, or a bad peer. What it had sent can
    /// still be received.
    pub peer_closed: bool,
}

impl Status {
    /// Whether nothing is left to be received, now or ever.
    pub fn all_read(&self) -> bool {
        self.peer_closed && self.messages == 0
    }
}

/// How far an end has looked at what it has not received.
#[derive(Debug)]
pub(in crate::channel) struct Ahead {
    lane: Arc<Lane>,
    survey: Survey,
    /// Messages and bytes that were received when the survey began, and those that were kept by then: whatever is seen
    /// comes on top of them.
    base: (u64, u64),
}

/// What is queued here.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::channel) struct Queued {
    pub(in crate::channel) messages: u64,
    pub(in crate::channel) bytes: u64,
    pub(in crate::channel) peer_closed: bool,
}

impl Channel {
    /// What there is here: how much is queued, whether there is room at the other end, and whether that is closed. Nothing
    /// is received by it, and nothing waited for.
    ///
    /// Messages that were seen by an earlier call are not looked at again, so that asking after each message costs the same
    /// however many are queued.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if another thread waits for a message or for room, or holds a view or a reservation;
    /// [`Error::LimitReached`] or [`Error::NoMemory`] if the peer's ring has just been replaced and what is in the old one
    /// cannot be kept (receive, then ask again); [`Error::Forked`].
    pub fn status(&self) -> Result<Status, Error> {
        told(self.end.status())
    }
}

impl End {
    pub(crate) fn status(&self) -> Result<Status, Error> {
        self.born.check()?;
        let Queued { messages, bytes, peer_closed } = {
            let mut rx = self.rx.lock(Deadline::NOW)?;
            self.queued(&mut rx)?
        };
        let has_room = {
            let mut tx = self.tx.lock(Deadline::NOW)?;
            self.has_room(&mut tx)
        };
        Ok(Status { messages, bytes, has_room, peer_closed })
    }

    /// Counts what is queued, and sees whether more will come.
    pub(in crate::channel) fn queued(&self, rx: &mut Rx) -> Result<Queued, Error> {
        for _ in 0..STEPS {
            // First: what was committed before the peer went down is seen after.
            let down = rx.lane.is_down();
            let Some(end) = self.look_ahead(rx)? else {
                return Ok(self.count_of(rx, down));
            };
            match end {
                // It comes after all that is there.
                Kind::Closed => return Ok(self.count_of(rx, true)),
                // What is before it is taken out of the ring, so that what is behind can be seen.
                _ => self.take_all_before(rx)?,
            }
        }
        // A peer that goes from lane to lane; there is more to see in the next look.
        Err(Error::WouldBlock)
    }

    /// Looks at what is new in the present ring. What that ends with, if not with nothing.
    fn look_ahead(&self, rx: &mut Rx) -> Result<Option<Kind>, Error> {
        if rx.ended().is_some() {
            return Ok(None);
        }
        // Follows what is at the front, and opens the lane if the peer's hello has come.
        if let Err(error) = self.front(rx) {
            return if rx.ended().is_some() { Ok(None) } else { Err(error) };
        }
        let lane = rx.lane.clone();
        let Some(consumer) = rx.consumer_of_open() else { return Ok(None) };
        let goes_on = |ahead: &Ahead| Arc::ptr_eq(&ahead.lane, &lane) && consumer.can_go_on(&ahead.survey);
        let (mut survey, base) = match rx.ahead().filter(|ahead| goes_on(ahead)) {
            Some(ahead) => (ahead.survey, ahead.base),
            None => (consumer.survey(), self.base(rx)),
        };
        let looked = consumer_look(rx, &mut survey);
        rx.set_ahead(Some(Ahead { lane, survey, base }));
        looked.map_err(|corrupt| rx.end_with(Error::BadPeer(corrupt.0)))
    }

    /// Messages and bytes that were received or are kept.
    fn base(&self, rx: &Rx) -> (u64, u64) {
        let (messages, bytes) = rx.amount_kept();
        (self.counts.messages_received.get() + messages, self.counts.bytes_received.get().wrapping_add(bytes))
    }

    fn count_of(&self, rx: &mut Rx, peer_closed: bool) -> Queued {
        let peer_closed = peer_closed || rx.ended().is_some();
        let Some(Ahead { survey, base, .. }) = rx.ahead().filter(|_| rx.ended().is_none()) else {
            let (messages, bytes) = rx.amount_kept();
            return Queued { messages, bytes, peer_closed };
        };
        let received = (self.counts.messages_received.get(), self.counts.bytes_received.get());
        Queued {
            messages: (base.0 + survey.messages).saturating_sub(received.0),
            bytes: base.1.saturating_add(survey.bytes).saturating_sub(received.1),
            peer_closed,
        }
    }

    /// Takes all messages out of the ring that come before a record which leads elsewhere, and follows that.
    fn take_all_before(&self, rx: &mut Rx) -> Result<(), Error> {
        let (lane, generation) = (rx.lane.clone(), rx.generation());
        rx.set_ahead(None);
        loop {
            match self.front(rx) {
                Ok(Some(_)) if !Arc::ptr_eq(&lane, &rx.lane) || rx.generation() != generation => return Ok(()),
                Ok(Some(record)) => {
                    let kept = self.take_out_and_stay(rx, record)?;
                    rx.keep_message(kept);
                }
                Ok(None) => return Ok(()),
                Err(_) if rx.ended().is_some() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

fn consumer_look(rx: &mut Rx, survey: &mut Survey) -> Result<Option<Kind>, Corrupt> {
    match rx.consumer_of_open() {
        Some(consumer) => consumer.look_ahead(survey),
        None => Ok(None),
    }
}
