//! Ends of data pipes in wait sets.
//!
//! The member of the wait set is the end's channel, on which doorbells arrive. Before looking at the channel, the wait
//! set asks the end ([`Gate`]). The end is ready if the pipe has bytes or room; otherwise the end sets its sleep word,
//! and looks once more.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use super::end::Side;
use crate::channel::pipe_end::{ConsumerShared, DataConsumer, DataProducer, ProducerShared};
use crate::channel::{Channel, Ready};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::ring::stream::{Reading, Writing};

/// A data-pipe end as its wait set sees it. The wait set asks the gate whether the end is ready, before looking at the
/// end's channel.
pub(crate) trait Gate: Debug + Send + Sync {
    /// Returns whether the end is ready to read or to write; an error counts as ready. If the end is not ready, sets
    /// its sleep word, so that a doorbell (an empty message that wakes this side) arrives when the end is ready.
    /// Returns `None` if another thread is using the end; the other thread makes the wait set ask again afterwards.
    fn look(&self) -> Option<Ready>;

    /// Returns whether the end is ready to read or to write, but the other side still has to take this side from its
    /// sleep word. Changes nothing. For the [check for lost wake-ups](crate::wake::strict).
    fn has_sleeper(&self) -> bool;
}

/// An end of a data pipe, as a wait set needs it.
pub(crate) trait PipeEnd {
    /// Returns the end's channel, on which doorbells (empty messages that wake this side) arrive, and the gate that
    /// says whether the end is ready.
    fn watched(&self) -> (&Channel, Weak<dyn Gate>);
}

impl PipeEnd for DataProducer {
    fn watched(&self) -> (&Channel, Weak<dyn Gate>) {
        let gate: Weak<ProducerShared> = Arc::downgrade(&self.shared);
        (self.channel(), gate)
    }
}

impl PipeEnd for DataConsumer {
    fn watched(&self) -> (&Channel, Weak<dyn Gate>) {
        let gate: Weak<ConsumerShared> = Arc::downgrade(&self.shared);
        (self.channel(), gate)
    }
}

impl Gate for ProducerShared {
    fn look(&self) -> Option<Ready> {
        let mut state = self.lock(Deadline::NOW).ok()?;
        let writable = Ready::new(false, true);
        let element = u64::from(state.index.shape().element);
        // An error is reported as ready to write; the next write returns the error.
        if self.refresh(&mut state).is_err() || state.index.room() >= element {
            return Some(writable);
        }
        if self.end.take_doorbells_quietly() != Error::WouldBlock {
            return Some(writable);
        }
        <Writing as Side>::arm(&self.end.memory);
        if self.refresh(&mut state).is_err() || state.index.room() >= element {
            state.sleeper.expect(Writing::disarm(&self.end.memory));
            return Some(writable);
        }
        Some(Ready::NOTHING)
    }

    fn has_sleeper(&self) -> bool {
        let Ok(mut state) = self.lock(Deadline::NOW) else { return false };
        let element = u64::from(state.index.shape().element);
        self.refresh(&mut state).is_ok() && state.index.room() >= element && self.end.is_armed::<Writing>()
    }
}

impl Gate for ConsumerShared {
    fn look(&self) -> Option<Ready> {
        let mut state = self.lock(Deadline::NOW).ok()?;
        let readable = Ready::new(true, false);
        if self.has_news(&mut state) {
            return Some(readable);
        }
        match self.end.take_doorbells_quietly() {
            Error::WouldBlock => {}
            _ => return Some(readable),
        }
        <Reading as Side>::arm(&self.end.memory);
        if self.has_news(&mut state) {
            state.sleeper.expect(Reading::disarm(&self.end.memory));
            return Some(readable);
        }
        Some(Ready::NOTHING)
    }

    fn has_sleeper(&self) -> bool {
        let Ok(mut state) = self.lock(Deadline::NOW) else { return false };
        self.has_news(&mut state) && self.end.is_armed::<Reading>()
    }
}
