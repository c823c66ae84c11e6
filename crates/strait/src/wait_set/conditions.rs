//! What a member of a wait set can wait for in place of *a message is there*: see [traps](crate::Traps).

use super::Interest;
use crate::channel::Status;

/// What a trap waits for: any of these. None by default.
///
/// ```
/// // Ten messages, or a mebibyte in fewer, or nothing more to come.
/// let _ = strait::Conditions::new().messages(10).bytes(1 << 20).peer_closed();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Conditions {
    messages: Option<u64>,
    bytes: Option<u64>,
    room: bool,
    peer_closed: bool,
    all_read: bool,
}

impl Conditions {
    /// None yet.
    pub const fn new() -> Self {
        Self { messages: None, bytes: None, room: false, peer_closed: false, all_read: false }
    }

    /// That so many messages are queued here, or more.
    ///
    /// A channel holds only so many: the sender stops when the ring is at its largest, or at
    /// [`Options::queue_messages`](crate::Options::queue_messages), and more than that never come. If the other end closes before
    /// that, and nothing else is waited for, that is [`Sprung::Never`](crate::Sprung::Never).
    pub const fn messages(mut self, messages: u64) -> Self {
        self.messages = Some(messages);
        self
    }

    /// That so many bytes are queued here, or more; see [`messages`](Self::messages).
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// That there is room for a small message at the peer, with one descriptor as far as this end's options go, or that sending
    /// fails at once.
    pub const fn room(mut self) -> Self {
        self.room = true;
        self
    }

    /// That nothing more will come, though there may be something left to be received.
    pub const fn peer_closed(mut self) -> Self {
        self.peer_closed = true;
        self
    }

    /// That nothing more will come and everything was received.
    pub const fn all_read(mut self) -> Self {
        self.all_read = true;
        self
    }

    /// Whether one of them is so.
    pub fn are_met(&self, status: &Status) -> bool {
        self.messages.is_some_and(|messages| status.messages >= messages)
            || self.bytes.is_some_and(|bytes| status.bytes >= bytes)
            || (self.room && status.has_room)
            || (self.peer_closed && status.peer_closed)
            || (self.all_read && status.all_read())
    }

    /// Whether none of them is so, or ever will be, as nothing more will come.
    pub(crate) fn are_out_of_reach(&self, status: &Status) -> bool {
        let counts = self.messages.is_some() || self.bytes.is_some();
        counts && status.peer_closed && !self.all_read && !self.are_met(status)
    }

    pub(crate) fn wait_for_the_end(&self) -> bool {
        self.all_read
    }

    /// In which directions to look.
    pub(crate) fn interest(&self) -> Interest {
        let receiving = self.messages.is_some() || self.bytes.is_some() || self.peer_closed || self.all_read;
        match (receiving, self.room) {
            (true, true) => Interest::Both,
            (false, true) => Interest::Writable,
            (_, false) => Interest::Readable,
        }
    }
}
