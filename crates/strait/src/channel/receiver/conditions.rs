//! The conditions for which a member of a wait set can wait instead of a message: see [traps](crate::wait::Traps).

use super::Status;

/// The conditions of a trap. The trap fires when any condition is met. A new value has none.
///
/// ```
/// // Ten messages, or a mebibyte in fewer, or nothing more to come.
/// let _ = strait::wait::Conditions::new().messages(10).bytes(1 << 20).peer_closed();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Conditions {
    pub(crate) messages: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) arrived: Option<u64>,
    pub(crate) room: bool,
    pub(crate) peer_closed: bool,
    pub(crate) all_read: bool,
}

impl Conditions {
    /// Creates a `Conditions` that contains no condition.
    pub const fn new() -> Self {
        Self { messages: None, bytes: None, arrived: None, room: false, peer_closed: false, all_read: false }
    }

    /// Adds the condition that at least `messages` messages are queued at this end of the channel.
    ///
    /// A channel holds a limited number: the sender stops when the ring has its largest size, or at
    /// [`Options::queue_messages`](crate::Options::queue_messages). A condition on more messages is never met. If the
    /// other end closes first and there is no [`all_read`](Self::all_read), the trap fires with
    /// [`Sprung::Never`](crate::wait::Sprung::Never).
    pub const fn messages(mut self, messages: u64) -> Self {
        self.messages = Some(messages);
        self
    }

    /// Adds the condition that messages with at least `bytes` bytes in total are queued at this end of the channel. The
    /// limits are those of [`messages`](Self::messages).
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Adds the condition that [`Status::arrived`] is at least `messages`: that so many messages have arrived at this
    /// end, including received messages. With `status.arrived + 1` a trap fires at the next message, also if messages
    /// are queued already.
    ///
    /// ```
    /// use strait::Channel;
    /// use strait::wait::Conditions;
    /// let (a, b) = Channel::pair()?;
    /// a.send(b"one")?;
    /// let next = Conditions::new().arrived(b.status()?.arrived + 1);
    /// assert!(!next.are_met(&b.status()?));
    /// a.send(b"two")?;
    /// assert!(next.are_met(&b.status()?));
    /// # Ok::<(), strait::Error>(())
    /// ```
    pub const fn arrived(mut self, messages: u64) -> Self {
        self.arrived = Some(messages);
        self
    }

    /// Adds the condition of room for a small message from this end, with one descriptor as far as the options permit.
    /// The condition is also met if sending would fail at once.
    pub const fn room(mut self) -> Self {
        self.room = true;
        self
    }

    /// Adds the condition that no more messages can arrive, because the other end is closed. Messages may be left to
    /// receive.
    pub const fn peer_closed(mut self) -> Self {
        self.peer_closed = true;
        self
    }

    /// Adds the condition that no more messages can arrive, because the other end is closed, and all were received.
    pub const fn all_read(mut self) -> Self {
        self.all_read = true;
        self
    }

    /// Returns whether `status` meets a condition of this set.
    pub fn are_met(&self, status: &Status) -> bool {
        self.messages.is_some_and(|messages| status.messages >= messages)
            || self.bytes.is_some_and(|bytes| status.bytes >= bytes)
            || self.arrived.is_some_and(|arrived| status.arrived >= arrived)
            || (self.room && status.has_room)
            || (self.peer_closed && status.peer_closed)
            || (self.all_read && status.all_read())
    }

    /// Returns whether these conditions can never be met: the other end is closed, the conditions on messages or bytes
    /// need more than is queued, and no other condition is met or can be.
    pub(crate) fn are_out_of_reach(&self, status: &Status) -> bool {
        let counts = self.messages.is_some() || self.bytes.is_some() || self.arrived.is_some();
        counts && status.peer_closed && !self.all_read && !self.are_met(status)
    }

    pub(crate) fn wait_for_the_end(&self) -> bool {
        self.all_read
    }
}
