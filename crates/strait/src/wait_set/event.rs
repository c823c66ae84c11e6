//! The interest and mode of a registration with a wait set, and the events that the set reports.

use crate::channel::{Conditions, Ready};
use std::fmt;

/// The kind of readiness for which a wait set reports a channel: readable, writable, or either.
///
/// Example: [a wait set](crate::wait).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// The wait set reports the channel when it is readable: a message can be received, or the channel has ended (the
    /// other end is closed, its process died, or broke the protocol).
    Readable,
    /// The wait set reports the channel when it is writable: a small message can be sent, or sending would fail at
    /// once.
    Writable,
    /// The wait set reports the channel when it is readable or writable.
    Both,
}

impl Interest {
    pub(crate) fn readable(self) -> bool {
        self != Self::Writable
    }

    pub(crate) fn writable(self) -> bool {
        self != Self::Readable
    }
}

/// How often a wait set reports a channel that is ready.
///
/// Example: [a wait set](crate::wait).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The wait set reports the channel at every call of `wait`, as long as the channel is ready.
    #[default]
    Level,
    /// The wait set reports the channel once, to one thread, and then no more until
    /// [`WaitSet::modify`](crate::wait::WaitSet::modify).
    OneShot,
}

/// An event that [`WaitSet::wait`](crate::wait::WaitSet::wait) returns: one source in the set, such as a channel, is
/// ready.
///
/// Example: [a wait set](crate::wait).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Event {
    key: u64,
    ready: Ready,
}

impl Event {
    pub(super) fn new(key: u64, ready: Ready) -> Self {
        Self { key, ready }
    }

    /// Returns the key of the event's channel: the `key` that was given to [`WaitSet::add`](crate::wait::WaitSet::add).
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Returns whether a message can be received from the channel. Also `true` if receiving would return an error: the
    /// other end is closed, its process died, or broke the protocol.
    pub fn is_readable(&self) -> bool {
        self.ready.is_readable()
    }

    /// Returns whether a small message can be sent on the channel. Also `true` if sending would fail at once.
    pub fn is_writable(&self) -> bool {
        self.ready.is_writable()
    }

    /// Returns whether the channel end was sent away in a message and so left the wait set. Such an event is the last
    /// event of its registration.
    pub fn has_moved(&self) -> bool {
        self.ready == Ready::MOVED
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("key", &self.key)
            .field("readable", &self.is_readable())
            .field("writable", &self.is_writable())
            .field("moved", &self.has_moved())
            .finish()
    }
}

impl Conditions {
    /// Returns the interest with which a wait set must watch an end to notice when the conditions are met: readable,
    /// writable or both.
    pub(crate) fn interest(&self) -> Interest {
        let counts = self.messages.is_some() || self.bytes.is_some() || self.arrived.is_some();
        let receiving = counts || self.peer_closed || self.all_read;
        match (receiving, self.room) {
            (true, true) => Interest::Both,
            (false, true) => Interest::Writable,
            (_, false) => Interest::Readable,
        }
    }
}
