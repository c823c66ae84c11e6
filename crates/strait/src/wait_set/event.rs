//! The interest and mode of a registration with a wait set, and the events that the set reports.

use crate::channel::Ready;
use std::fmt;

/// The event for which a registration with a wait set waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Waits until a message can be received, or the channel has ended: the other end is closed, its process died, or
    /// broke the protocol.
    Readable,
    /// Waits until a small message can be sent, or sending would fail at once.
    Writable,
    /// Waits until the channel is readable or writable.
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

/// How often a wait set reports a ready channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Every call of `wait` reports the channel as long as the channel is ready.
    #[default]
    Level,
    /// One call of `wait` reports the channel, to one thread. After that no call reports the channel until
    /// [`WaitSet::rearm`](crate::WaitSet::rearm).
    OneShot,
}

/// An event: one channel is ready. Returned by [`WaitSet::wait`](crate::WaitSet::wait).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Event {
    key: u64,
    ready: Ready,
}

impl Event {
    pub(super) fn new(key: u64, ready: Ready) -> Self {
        Self { key, ready }
    }

    /// Returns the key under which the channel was added: the `key` given to [`WaitSet::add`](crate::WaitSet::add).
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Returns whether a message can be received. Also `true` if receiving would return an error: the other end is
    /// closed, its process died, or broke the protocol.
    pub fn is_readable(&self) -> bool {
        self.ready.is_readable()
    }

    /// Returns whether a small message can be sent. Also `true` if sending would fail at once.
    pub fn is_writable(&self) -> bool {
        self.ready.is_writable()
    }

    /// Returns whether the channel was sent away in a message and so left the set. This is the last event of the
    /// registration.
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
