//! What members of a set wait for, and what is told of them.

use std::fmt;

/// What a registration waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// That a message can be received, or that the channel has ended.
    Readable,
    /// That a small message can be sent, or that sending fails at once.
    Writable,
    /// Either.
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

/// How often a registration tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In every call, as long as it is so.
    #[default]
    Level,
    /// Once, to one thread; then not before [`WaitSet::rearm`](crate::WaitSet::rearm).
    OneShot,
}

/// What a look at a member found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready(u8);

impl Ready {
    pub(crate) const NOTHING: Self = Self(0);
    const READABLE: u8 = 1;
    const WRITABLE: u8 = 2;
    /// An error can be received.
    pub(super) const TROUBLE: Self = Self(Self::READABLE);
    pub(super) const MOVED: Self = Self(4);

    pub(crate) fn new(readable: bool, writable: bool) -> Self {
        Self(if readable { Self::READABLE } else { 0 } | if writable { Self::WRITABLE } else { 0 })
    }
}

/// What [`WaitSet::wait`](crate::WaitSet::wait) tells of a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Event {
    key: u64,
    ready: Ready,
}

impl Event {
    pub(super) fn new(key: u64, ready: Ready) -> Self {
        Self { key, ready }
    }

    /// The number that was given to [`WaitSet::add`](crate::WaitSet::add).
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Whether a message can be received; or an error, as the other end is closed, its process dead, or a bad peer.
    pub fn is_readable(&self) -> bool {
        self.ready.0 & Ready::READABLE != 0
    }

    /// Whether a small message can be sent; or that fails at once.
    pub fn is_writable(&self) -> bool {
        self.ready.0 & Ready::WRITABLE != 0
    }

    /// Whether the channel was sent away in a message and so left the set. The last event of this registration.
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
