//! Receiving: the calls that receive messages.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Rx;
use super::backlog::{BacklogMessage, BacklogPayload};
use super::payload::{Payload, SMALLEST_BUFFER, as_uninit};
use crate::blocked_on::POLL_INTERVAL;
use crate::channel::message::{Message, Received, ReceivedExtras, Sealed};
use crate::channel::origin::Origin;
use crate::channel::{Channel, End, InPlace, recv_in_place};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::lane::mailbox::mailbox;
use crate::os;
use crate::ring::{Memory, ONE_CELL, Popped, Record, RecordKind};
use crate::wake::interrupt::Interrupts;
use crate::wake::lock::Guard;

/// The error of [`Channel::put_back`], with the messages, which are unchanged.
///
/// Example: [messages that are put back](crate::Channel::put_back).
#[derive(Debug)]
pub struct PutBackError {
    /// The reason why the messages could not be put back.
    pub error: Error,
    /// The messages passed to the call, in their order; no message was put back.
    pub messages: Vec<Message>,
}

impl fmt::Display for PutBackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for PutBackError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<PutBackError> for Error {
    /// Returns the reason why the messages could not be put back, and drops the messages.
    fn from(failed: PutBackError) -> Self {
        failed.error
    }
}

impl From<PutBackError> for std::io::Error {
    fn from(failed: PutBackError) -> Self {
        Error::from(failed).into()
    }
}

/// The properties of the next message of an end, before it is received: see [`Channel::peek`].
///
/// Example: [a message before it is received](crate::Channel::peek).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageInfo {
    /// Number of bytes in the message. For a value, its reported [size](crate::view::Value::size).
    pub len: usize,
    /// Number of handles that the message was sent with. 0 for a value.
    pub handles: usize,
    /// Whether the message is a [value](crate::view::Value) from within this process.
    pub is_value: bool,
}

impl Channel {
    /// Returns the sizes of the next message, and leaves the message there; `None` if no message is there now. Does not
    /// block.
    ///
    /// The next receive gets this message, unless another thread receives first. Its buffer may be chosen by
    /// [`MessageInfo::len`]; a peer that is not trusted may still make the call fail with [`Error::BufferTooSmall`].
    ///
    /// ```
    /// use strait::{Channel, Outgoing};
    /// let (a, b) = Channel::pair()?;
    /// assert_eq!(b.peek()?, None);
    /// a.send(Outgoing::new(b"a file").handle(std::fs::File::open("/dev/null").expect("/dev/null")))?;
    /// let next = b.peek()?.expect("a message");
    /// assert_eq!((next.len, next.handles), (6, 1));
    /// assert_eq!(b.recv()?.bytes(), b"a file");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`] while another thread waits for a message or holds a view of one; otherwise the errors of
    /// [`Channel::recv_message`].
    pub fn peek(&self) -> Result<Option<MessageInfo>, Error> {
        self.end.received_or(self.end.peek())
    }

    /// Receives the next message; waits for the message without a time limit.
    ///
    /// # Errors
    /// All errors of [`Channel::recv_message`], except that the call never times out.
    pub fn recv(&self) -> Result<Message, Error> {
        self.recv_new(Deadline::NEVER)
    }

    /// Receives the next message if there is one now. Does not block.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no message; otherwise the errors of [`Channel::recv_message`].
    pub fn try_recv(&self) -> Result<Message, Error> {
        self.recv_new(Deadline::NOW)
    }

    /// Receives the next message; waits for the message until the deadline.
    ///
    /// # Errors
    /// All errors of [`Channel::recv_message`].
    pub fn recv_by(&self, deadline: impl Into<Deadline>) -> Result<Message, Error> {
        self.recv_new(deadline.into())
    }

    #[inline(always)]
    fn recv_new(&self, deadline: Deadline) -> Result<Message, Error> {
        let mut message = Message::with_spare();
        if !self.end.recv_short(&mut message) {
            self.end.recv_any_by(&mut message, deadline)?;
        }
        Ok(message)
    }

    /// Receives the next message into `message`; waits for the next message until the deadline. Drops the old content
    /// of `message` and reuses its memory: in steady flow nothing is allocated. On an error `message` is empty.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerClosed`] once everything from the peer has been received;
    /// [`Error::NoDescriptors`] if this process has no free descriptor for memory sent by the peer, and
    /// [`Error::LimitReached`] if this process holds as much for the peer as the limits allow (nothing is lost, call
    /// again); [`Error::NoMemory`]; [`Error::BadPeer`]; [`Error::Forked`]; [`Error::System`].
    #[inline]
    pub fn recv_message(&self, message: &mut Message, deadline: impl Into<Deadline>) -> Result<(), Error> {
        message.clear();
        if self.end.recv_short(message) { Ok(()) } else { self.end.recv_any_by(message, deadline.into()) }
    }

    /// Receives the next message into `message` as [`recv_message`](Self::recv_message) does, unless the message lies
    /// in a block of shared memory outside the ring, as messages of more than [`Options::inline_max`] bytes do. Such a
    /// message is received as a view instead, as [`recv_in_place`](Self::recv_in_place) does; `message` is empty then.
    ///
    /// Use this call to copy the bytes of long messages to several places, without copying into one buffer first.
    ///
    /// ```
    /// let (a, b) = strait::Channel::pair()?;
    /// let mut message = strait::Message::new();
    /// a.send(b"short")?;
    /// assert!(b.recv_message_or_view(&mut message, strait::Deadline::NEVER)?.is_none());
    /// assert_eq!(message.bytes(), b"short");
    ///
    /// a.send(&vec![7; 1 << 20][..])?;
    /// let mut view = b.recv_message_or_view(&mut message, strait::Deadline::NEVER)?.expect("a long message");
    /// let mut bytes = Vec::new();
    /// view.append_to(&mut bytes, 0, 1 << 20)?;
    /// assert_eq!(bytes, [7; 1 << 20]);
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// All errors of [`Channel::recv_message`].
    ///
    /// [`Options::inline_max`]: crate::Options::inline_max
    #[inline]
    pub fn recv_message_or_view(
        &self,
        message: &mut Message,
        deadline: impl Into<Deadline>,
    ) -> Result<Option<InPlace<'_>>, Error> {
        message.clear();
        let deadline = deadline.into();
        self.end.received_or({
            let mut rx = self.end.lock_rx(deadline)?;
            if self.end.recv_plain(&mut rx, message) {
                return Ok(None);
            }
            self.end.recv_or_view(rx, message, deadline)
        })
    }

    /// Receives the next message into the start of `buffer`; waits for the message until the deadline.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`], with the size that is needed, if the message is longer than `buffer`: it then stays
    /// the next message. Otherwise the errors of [`Channel::recv_message`].
    #[inline]
    pub fn recv_into(&self, buffer: &mut [u8], deadline: impl Into<Deadline>) -> Result<Received, Error> {
        match self.end.recv_short_into(buffer) {
            Some((len, origin)) => Ok(Received { len, arrived: ReceivedExtras::NONE, origin }),
            None => self.end.recv_any_into_by(buffer, deadline.into()),
        }
    }

    /// Receives the next message into the start of `buffer`, if the message is there now and has only bytes. This call
    /// is the fastest way to receive. Returns the length of the message. Returns `None`, and takes nothing, if the
    /// message has more than bytes (handles, a region or a value), or is not at hand in the ring:
    /// [`Channel::recv_into`] or [`Channel::recv_message`] then finds it.
    ///
    /// Use this call to read many short messages, most of them without handles, or if a message with handles must not
    /// be taken.
    ///
    /// ```
    /// # use strait::{Channel, Error};
    /// let (a, b) = Channel::pair()?;
    /// let mut buffer = [0; 8];
    /// a.send(b"bytes")?;
    /// assert_eq!(b.try_recv_bytes(&mut buffer)?, Some(5));
    /// assert_eq!(b.try_recv_bytes(&mut buffer), Err(Error::WouldBlock));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if no message is there; [`Error::BufferTooSmall`], with the size that is needed, if the
    /// message is longer: it then stays the next message. Otherwise as [`Channel::recv_message`].
    #[inline]
    pub fn try_recv_bytes(&self, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
        let mut rx = self.end.lock_rx(Deadline::NOW)?;
        if let Some(taken) = self.end.take_bytes(&mut rx, buffer) {
            return taken.map(Some);
        }
        if !rx.is_plainly_empty() {
            return self.end.look_for_bytes(rx, buffer);
        }
        let looked = self.end.wait_for_message(&mut rx, Deadline::NOW);
        drop(rx);
        // If there is no error, a message has come just now.
        self.end.received_or(looked).map(|()| None)
    }

    /// Receives the next message without copying it: the caller reads the bytes where the peer wrote them. Waits for
    /// the message until the deadline.
    ///
    /// The peer may still be able to change the bytes, so [`InPlace`] gives copies or a pointer, and a `&[u8]` only of
    /// a sealed message. While the caller holds the view of a small message, no other thread receives from this end.
    ///
    /// # Errors
    /// All errors of [`Channel::recv_message`].
    pub fn recv_in_place(&self, deadline: impl Into<Deadline>) -> Result<InPlace<'_>, Error> {
        self.end.recv_view_with(deadline.into(), || ())
    }

    /// Receives the next message in place, like [`recv_in_place`](Self::recv_in_place), as a view that [owns
    /// itself](crate::owned).
    ///
    /// # Errors
    /// As [`Channel::recv_in_place`].
    pub fn recv_in_place_owned(
        self: Arc<Self>,
        deadline: impl Into<Deadline>,
    ) -> Result<InPlace<'static, Arc<Self>>, Error> {
        recv_in_place(self, deadline.into())
    }

    /// Receives the messages that are there, as many as `slots` can take; waits for the first message until the
    /// deadline. Returns the number of messages received: at least one, unless `slots` is empty. The memory of the
    /// slots is reused, as in [`Channel::recv_message`].
    ///
    /// # Errors
    /// The errors of [`Channel::recv_message`], for the first message. An error at a later message is returned by the
    /// next call.
    pub fn recv_many(&self, slots: &mut [Message], deadline: impl Into<Deadline>) -> Result<usize, Error> {
        self.end.received_or(self.end.recv_batch(slots, deadline.into()))
    }

    /// Receives up to `most` available messages, and appends them to `batch`; waits for the first message until the
    /// deadline. Receives no further message once the messages have `enough` bytes together. The bytes of each message
    /// lie in private memory of this process.
    pub(crate) fn recv_onto(
        &self,
        batch: &mut Vec<Message>,
        most: usize,
        enough: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.end.received_or(self.end.recv_onto(batch, most, enough, deadline))
    }

    /// Puts back messages received from this end: these messages are received next, in this order, before all others.
    /// If the end is sent, they travel along. The bytes are not copied, and no limit applies. Does not block.
    ///
    /// Use this call to look at messages and leave some to other threads. The order is right only if no other thread
    /// receives meanwhile.
    ///
    /// ```
    /// let (a, b) = strait::Channel::pair()?;
    /// a.send_many(["one", "two", "three"], strait::Deadline::NEVER)?;
    /// let skipped = [b.recv()?, b.recv()?];
    /// assert_eq!(b.recv()?.bytes(), b"three");
    /// b.put_back(skipped)?;
    /// assert_eq!(b.recv()?.bytes(), b"one");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error contains the messages. [`Error::WouldBlock`] while another thread blocks in a receive, or holds a
    /// view of a message; [`Error::Forked`].
    pub fn put_back<I>(&self, messages: I) -> Result<(), PutBackError>
    where
        I: IntoIterator<Item = Message>,
        I::IntoIter: DoubleEndedIterator,
    {
        let messages: Vec<_> = messages.into_iter().collect();
        let are_here = messages.iter().try_for_each(Message::check_fork);
        let mut rx = match are_here.and_then(|()| self.end.lock_rx(Deadline::NOW)) {
            Ok(rx) => rx,
            Err(error) => return Err(PutBackError { error, messages }),
        };
        for message in messages.into_iter().rev() {
            rx.put_back(unreceived(message));
        }
        drop(rx);
        self.end.after_blocking();
        Ok(())
    }
}

/// Returns a received message as a message of the backlog, to be received again.
fn unreceived(message: Message) -> BacklogMessage {
    let Message { mut bytes, mut arrived, origin } = message;
    let payload = match arrived.take_sealed() {
        None => BacklogPayload::Bytes(bytes.take()),
        Some(Sealed { mapping, len }) => BacklogPayload::Sealed(mapping, len),
    };
    BacklogMessage { payload, arrived, charge: None, descriptors: None, origin }
}

/// The result of [`End::pop_one`].
pub(in crate::channel) enum Taken {
    /// A message was received.
    Yes,
    /// A message was received, and the caller has to call [`End::wake_sender_of`].
    Wakes,
    /// Nothing was received, and the ring is empty now.
    Empty,
    /// Nothing was received: the next message is not plain, or takes more than one cell, or `message` has no memory.
    Other,
}

/// Returns the sizes of the first message in the backlog of `rx`; `None` if the backlog is empty.
fn peek_backlog(rx: &mut Rx) -> Option<MessageInfo> {
    let BacklogMessage { payload, arrived, .. } = rx.backlog()?.front()?;
    Some(match arrived.value() {
        Some(value) => MessageInfo { len: value.size(), handles: 0, is_value: true },
        None => MessageInfo { len: payload.len(), handles: arrived.handles().len(), is_value: false },
    })
}

impl End {
    #[inline]
    fn lock_rx(&self, deadline: Deadline) -> Result<Guard<'_, Rx>, Error> {
        self.born.check()?;
        self.rx.lock_unless(deadline, || self.interruption())
    }

    /// Receives the next message into `message`, which is empty, if the lock is free and the message is plain: in the
    /// ring, and without handles. This is the common case, in few instructions. Returns `false`, and changes nothing,
    /// in all other cases.
    ///
    /// A message of one cell takes the shortest path, which calls no function except as its last step. So the
    /// processor's registers need not be saved.
    #[inline(never)]
    fn recv_short(&self, message: &mut Message) -> bool {
        if !self.born.is_elsewhere()
            && let Some(mut rx) = self.rx.try_lock()
        {
            match self.pop_one(&mut rx, message) {
                Taken::Yes => return true,
                Taken::Wakes => return self.wake_after_pop(rx),
                Taken::Empty => return false,
                Taken::Other => return self.recv_after_pop(rx, message),
            }
        }
        false
    }

    /// Receives the next message into the empty `message`, if the next message is plain and takes one cell, and
    /// `message` has memory for a cell.
    #[inline(always)]
    pub(in crate::channel) fn pop_one(&self, rx: &mut Rx, message: &mut Message) -> Taken {
        // All of the cell is copied: a constant number of bytes takes less time than a variable one. The bytes behind
        // the message have no meaning.
        message.bytes.clear();
        let spare = message.bytes.spare_capacity_mut();
        match rx.pop_one(|_| spare.get_mut(..ONE_CELL)) {
            Popped::Message { len, producer_sleeps } => {
                // SAFETY: `message` was empty, and its first `ONE_CELL` bytes, no fewer than `len`, have been written
                // just now.
                unsafe { message.bytes.set_len(len) };
                message.origin = rx.origin;
                self.counts.messages_received.add(1);
                self.counts.bytes_received.add(len as u64);
                if producer_sleeps { Taken::Wakes } else { Taken::Yes }
            }
            Popped::Empty => Taken::Empty,
            Popped::Other => Taken::Other,
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_after_pop(&self, rx: Guard<'_, Rx>) -> bool {
        self.wake_sender_of(&rx);
        // Not a constant to the compiler, so that this function's call is the caller's last step.
        std::hint::black_box(true)
    }

    /// Wakes the sender of the ring, if the sender sleeps until there is room.
    pub(in crate::channel) fn wake_sender_of(&self, rx: &Rx) {
        if let Some(consumer) = &rx.consumer {
            self.wake_for_room(&rx.lane, consumer.memory().waiting());
        }
    }

    /// Receives the next message in the cases of [`End::recv_short`], whatever its length.
    #[inline(never)]
    fn recv_after_pop(&self, mut rx: Guard<'_, Rx>, message: &mut Message) -> bool {
        self.recv_any_plain(&mut rx, message)
    }

    /// Receives the next message into the start of `buffer` in the cases of [`End::recv_short`], and returns length and
    /// origin. Returns `None`, and changes nothing, in all other cases, also if the message is longer than `buffer`.
    #[inline(never)]
    fn recv_short_into(&self, buffer: &mut [u8]) -> Option<(usize, Origin)> {
        if self.born.is_elsewhere() {
            return None;
        }
        let mut rx = self.rx.try_lock()?;
        let len = self.take_bytes(&mut rx, buffer)?.ok()?;
        Some((len, rx.origin))
    }

    /// Receives as [`Channel::recv_message`] does, in all cases; `message` is empty.
    #[inline(never)]
    fn recv_any_by(&self, message: &mut Message, deadline: Deadline) -> Result<(), Error> {
        self.received_or({
            let mut rx = self.lock_rx(deadline)?;
            self.recv_locked(&mut rx, message, deadline)
        })
    }

    /// Receives as [`Channel::recv_into`] does, in all cases.
    #[inline(never)]
    fn recv_any_into_by(&self, buffer: &mut [u8], deadline: Deadline) -> Result<Received, Error> {
        self.received_or({
            let mut rx = self.lock_rx(deadline)?;
            self.recv_into_locked(&mut rx, buffer, deadline)
        })
    }

    /// Receives as [`Channel::recv_message`] does, for a caller that holds the lock for good.
    #[inline]
    pub(in crate::channel) fn recv_message_held(
        &self,
        rx: &mut Guard<'_, Rx>,
        message: &mut Message,
        deadline: Deadline,
    ) -> Result<(), Error> {
        message.clear();
        self.received_or(self.born.check().and_then(|()| self.recv_locked(rx, message, deadline)))
    }

    /// Receives as [`Channel::recv_many`] does, for a caller that holds the lock for good.
    pub(in crate::channel) fn recv_many_held(
        &self,
        rx: &mut Guard<'_, Rx>,
        slots: &mut [Message],
        deadline: Deadline,
    ) -> Result<usize, Error> {
        if slots.is_empty() {
            return Ok(0);
        }
        let mut let_go = false;
        let received = self.born.check().and_then(|()| self.recv_batch_locked(rx, slots, &mut let_go, deadline));
        if let_go {
            deferred::run();
        }
        self.received_or(received)
    }

    /// Receives as [`Channel::recv_into`] does, for a caller that holds the lock for good.
    #[inline]
    pub(in crate::channel) fn recv_into_held(
        &self,
        rx: &mut Guard<'_, Rx>,
        buffer: &mut [u8],
        deadline: Deadline,
    ) -> Result<Received, Error> {
        self.received_or(self.born.check().and_then(|()| self.recv_into_locked(rx, buffer, deadline)))
    }

    /// Returns the result of a receive unchanged. After a failure, first counts a reached limit, notes a temporary
    /// error for the wait set, and runs deferred callbacks and destructors. The caller holds no lock.
    #[inline]
    fn received_or<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.after_failure(error);
        }
        result
    }

    #[cold]
    #[inline(never)]
    fn after_failure(&self, error: &Error) {
        if let Error::LimitReached(_) = error {
            self.counts.cold().limits_reached.add(1);
        }
        if error.passes() {
            let now = os::coarse_time().as_millis() as u64;
            self.counts.cold().stumbled.store(now, Ordering::Relaxed);
        }
        if let Error::BadPeer(_) = error
            && self.interrupts().is_some_and(Interrupts::has_ended)
        {
            // Another thread has broken off this end, while this thread held the lock of the receiving direction.
            self.break_off(*error);
        }
        deferred::run();
    }

    /// Returns whether a receive from this end has failed with a temporary error a short while ago: a wait set reports
    /// the end again after about [`POLL_INTERVAL`], also if it has other members to report.
    pub(crate) fn rests_after_stumble(&self) -> bool {
        let Some(cold) = self.counts.cold.get() else { return false };
        let stumbled = cold.stumbled.load(Ordering::Relaxed);
        if stumbled == 0 {
            return false;
        }
        // A wait set that sleeps for the interval finds the end rested, although the clock is coarse.
        let rests = os::coarse_time() < Duration::from_millis(stumbled) + POLL_INTERVAL * 9 / 10;
        if !rests {
            cold.stumbled.store(0, Ordering::Relaxed);
        }
        rests
    }

    /// Makes the wait set report the end again at once, although a receive has failed a short while ago: for a program
    /// that itself decides when to try again.
    pub(crate) fn rests_no_more(&self) {
        self.counts.cold.get().inspect(|cold| cold.stumbled.store(0, Ordering::Relaxed));
    }

    /// Receives the next message into `buffer`, if the message is plain: in the ring, and without handles. Returns its
    /// length, or [`Error::BufferTooSmall`] if the message is longer than `buffer`. `None` if no plain message is
    /// there.
    #[inline(always)]
    pub(in crate::channel) fn take_bytes(
        &self,
        rx: &mut Guard<'_, Rx>,
        buffer: &mut [u8],
    ) -> Option<Result<usize, Error>> {
        match rx.pop_one(|len| buffer.get_mut(..len).map(as_uninit)) {
            Popped::Message { len, producer_sleeps } => {
                self.counts.messages_received.add(1);
                self.counts.bytes_received.add(len as u64);
                if producer_sleeps {
                    self.wake_sender_of(rx);
                }
                Some(Ok(len))
            }
            Popped::Empty => None,
            Popped::Other => self.take_any_bytes(rx, buffer),
        }
    }

    /// Receives the next message as [`End::take_bytes`] does, whether or not the message takes one cell.
    #[inline(never)]
    fn take_any_bytes(&self, rx: &mut Guard<'_, Rx>, buffer: &mut [u8]) -> Option<Result<usize, Error>> {
        let (consumer, record) = rx.plain()?;
        let needed = record.header.len();
        let Some(buffer) = buffer.get_mut(..needed) else { return Some(Err(Error::BufferTooSmall { needed })) };
        consumer.read(record, 0, as_uninit(buffer));
        self.finish_plain(rx, record);
        Some(Ok(needed))
    }

    /// Receives the next message into `buffer` if the message is nothing but bytes. Before, follows records other than
    /// messages, such as the record *next* for a larger ring. Returns the length of the message in bytes. Returns
    /// `None`, and receives nothing, if the next message has handles or is out of line, or if there is no message.
    #[inline(never)]
    fn look_for_bytes(&self, mut rx: Guard<'_, Rx>, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
        if rx.backlog().is_some() {
            return Ok(None);
        }
        let taken = match self.next_record(&mut rx) {
            Ok(Some(_)) => self.take_bytes(&mut rx, buffer).transpose(),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        drop(rx);
        self.received_or(taken)
    }

    fn peek(&self) -> Result<Option<MessageInfo>, Error> {
        let mut rx = self.lock_rx(Deadline::NOW)?;
        if let Some(found) = peek_backlog(&mut rx) {
            return Ok(Some(found));
        }
        let Some(record) = self.next_record(&mut rx)? else { return Ok(peek_backlog(&mut rx)) };
        if self.is_value(&mut rx, record) {
            let (token, message) = (rx.lane.token_in(), rx.consumer().taken());
            return Ok(Some(MessageInfo { len: mailbox().size_of(token, message), handles: 0, is_value: true }));
        }
        let len = self.len_of(&mut rx, record)?;
        Ok(Some(MessageInfo { len, handles: record.header.handles(), is_value: false }))
    }

    pub(in crate::channel) fn recv_view_with<K>(
        &self,
        deadline: Deadline,
        keep: impl FnOnce() -> K,
    ) -> Result<InPlace<'_, K>, Error> {
        self.received_or(self.recv_view(deadline, keep))
    }

    fn recv_view<K>(&self, deadline: Deadline, keep: impl FnOnce() -> K) -> Result<InPlace<'_, K>, Error> {
        let mut rx = self.lock_rx(deadline)?;
        loop {
            if let Some((mut payload, mut arrived, origin)) = rx.pop_parts()? {
                self.count(&payload);
                if arrived.value().is_some() {
                    // This call owns the value now, and the value's code runs without a lock.
                    drop(rx);
                    payload = Payload::Own(arrived.turn().unwrap_or_default());
                }
                return Ok(InPlace::from_backlog(self, (payload, arrived, origin), keep()));
            }
            if let Some(record) = self.next_record_by(&mut rx, deadline)? {
                if self.is_value(&mut rx, record) {
                    let unread = self.take_out_and_stay(&mut rx, record)?;
                    rx.push_backlog(unread);
                    continue;
                }
                let payload = self.payload(&mut rx, record)?;
                let arrived = self.arrived(&mut rx, record)?;
                return Ok(InPlace::new(self, rx, record, payload, arrived, keep()));
            }
            self.wait_for_message(&mut rx, deadline)?;
        }
    }

    fn recv_batch(&self, slots: &mut [Message], deadline: Deadline) -> Result<usize, Error> {
        if slots.is_empty() {
            return Ok(0);
        }
        let mut let_go = false;
        let received =
            self.lock_rx(deadline).and_then(|mut rx| self.recv_batch_locked(&mut rx, slots, &mut let_go, deadline));
        if let_go {
            deferred::run();
        }
        received
    }

    #[inline]
    fn recv_batch_locked(
        &self,
        rx: &mut Guard<'_, Rx>,
        slots: &mut [Message],
        let_go: &mut bool,
        deadline: Deadline,
    ) -> Result<usize, Error> {
        let mut received = 0;
        for slot in slots {
            *let_go |= slot.has_more_than_bytes();
            slot.clear_deferred();
            if received > 0 && !self.has_more(rx) {
                break;
            }
            match self.recv_locked(rx, slot, deadline) {
                Ok(()) => received += 1,
                Err(error) if received == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(received)
    }

    fn recv_onto(&self, batch: &mut Vec<Message>, most: usize, enough: usize, deadline: Deadline) -> Result<(), Error> {
        let mut rx = self.lock_rx(deadline)?;
        let mut bytes = 0;
        for received in 0..most {
            if bytes >= enough {
                break;
            }
            let mut message = Message::new();
            if !self.recv_plain(&mut rx, &mut message) {
                if received > 0 && !self.has_more(&mut rx) {
                    break;
                }
                match self.recv_locked(&mut rx, &mut message, deadline) {
                    Err(error) if received == 0 => return Err(error),
                    Err(_) => break,
                    Ok(()) => {}
                }
                if let Err(error) = message.own_bytes() {
                    rx.put_back(unreceived(message));
                    return if received == 0 { Err(error) } else { Ok(()) };
                }
            }
            bytes += message.bytes.len();
            batch.push(message);
        }
        Ok(())
    }

    #[inline]
    fn recv_locked(&self, rx: &mut Guard<'_, Rx>, message: &mut Message, deadline: Deadline) -> Result<(), Error> {
        loop {
            if self.recv_plain(rx, message) {
                return Ok(());
            }
            if rx.backlog().is_some() {
                return self.recv_backlog(rx, message);
            }
            match self.next_record_by(rx, deadline)? {
                Some(record) => return self.recv_any(rx, record, message),
                None => self.wait_for_message(rx, deadline)?,
            }
        }
    }

    /// Receives the first message of the backlog, which is not empty, into `message`. After an error the message is
    /// still there.
    #[inline(never)]
    fn recv_backlog(&self, rx: &mut Rx, message: &mut Message) -> Result<(), Error> {
        if let Some(BacklogPayload::Sealed(mapping, len)) = rx.backlog().and_then(|all| Some(&all.front()?.payload)) {
            self.reserve_for(&Payload::Sealed { mapping: mapping.clone(), len: *len }, message)?;
        }
        let Some((payload, arrived, origin)) = rx.pop_parts()? else { return Err(Error::WouldBlock) };
        self.count(&payload);
        (message.arrived, message.origin) = (arrived, origin);
        match payload {
            Payload::Own(bytes) if message.arrived.value().is_none() => {
                message.bytes = bytes.into();
                Ok(())
            }
            payload => self.take_payload_unless_value(rx, &payload, message),
        }
    }

    /// Receives the next message into `message`, or as a view if the message lies in a block; waits for the message
    /// until the deadline.
    #[inline(never)]
    fn recv_or_view<'a>(
        &'a self,
        mut rx: Guard<'a, Rx>,
        message: &mut Message,
        deadline: Deadline,
    ) -> Result<Option<InPlace<'a>>, Error> {
        loop {
            if rx.backlog().is_some() {
                return self.recv_locked(&mut rx, message, deadline).map(|()| None);
            }
            match self.next_record_by(&mut rx, deadline)? {
                Some(record) if record.header.kind() == RecordKind::Block => {
                    let payload = self.payload(&mut rx, record)?;
                    let arrived = self.arrived(&mut rx, record)?;
                    return Ok(Some(InPlace::new(self, rx, record, payload, arrived, ())));
                }
                Some(record) => return self.recv_any(&mut rx, record, message).map(|()| None),
                None => self.wait_for_message(&mut rx, deadline)?,
            }
        }
    }

    /// Returns whether another message can be received now without waiting.
    fn has_more(&self, rx: &mut Rx) -> bool {
        if rx.is_plainly_empty() {
            return false;
        }
        rx.backlog().is_some() || matches!(self.next_record(rx), Ok(Some(_))) || rx.backlog().is_some()
    }

    /// Receives the next message into `message` if the next message is plain (in the ring, and without handles) and
    /// `message` has enough memory. Returns whether a message was received; if not, the ring is unchanged.
    #[inline(always)]
    pub(in crate::channel) fn recv_plain(&self, rx: &mut Guard<'_, Rx>, message: &mut Message) -> bool {
        match self.pop_one(rx, message) {
            Taken::Yes => true,
            Taken::Wakes => {
                self.wake_sender_of(rx);
                true
            }
            Taken::Empty => false,
            Taken::Other => self.recv_any_plain(rx, message),
        }
    }

    /// Receives the next message as [`End::recv_plain`] does, whether or not the message takes one cell and `message`
    /// has memory.
    #[inline]
    pub(in crate::channel) fn recv_any_plain(&self, rx: &mut Guard<'_, Rx>, message: &mut Message) -> bool {
        let Some((consumer, record)) = rx.plain() else { return false };
        let len = record.header.len();
        if len > message.bytes.capacity() && message.bytes.try_reserve_exact(len.max(SMALLEST_BUFFER)).is_err() {
            return false;
        }
        consumer.read(record, 0, &mut message.bytes.spare_capacity_mut()[..len]);
        // SAFETY: `message` was empty, and its first `len` bytes have been written just now.
        unsafe { message.bytes.set_len(len) };
        message.origin = rx.origin;
        self.finish_plain(rx, record);
        true
    }

    #[inline(always)]
    fn finish_plain(&self, rx: &mut Guard<'_, Rx>, record: Record) {
        self.counts.messages_received.add(1);
        self.counts.bytes_received.add(record.header.len() as u64);
        if rx.consumer().advance(record) {
            self.give_credit(rx);
        }
    }

    // Always inlined: it is the whole of two small functions, of which each is called for every message.
    #[inline(always)]
    fn recv_into_locked(
        &self,
        rx: &mut Guard<'_, Rx>,
        buffer: &mut [u8],
        deadline: Deadline,
    ) -> Result<Received, Error> {
        loop {
            if let Some((consumer, record)) = rx.plain()
                && let Some(buffer) = buffer.get_mut(..record.header.len())
            {
                let len = consumer.read(record, 0, as_uninit(buffer)).len();
                self.finish_plain(rx, record);
                return Ok(Received { len, arrived: ReceivedExtras::default(), origin: rx.origin });
            }
            if rx.backlog().and_then(|all| all.front()).is_some_and(|all| all.arrived.value().is_some()) {
                let unread = rx.pop_backlog().expect("looked at just now");
                self.convert_next(rx, unread);
            }
            if let Some(unread) = rx.backlog().and_then(|all| all.front()) {
                let needed = unread.payload.len();
                let Some(buffer) = buffer.get_mut(..needed) else { return Err(Error::BufferTooSmall { needed }) };
                let (payload, arrived, origin) = rx.pop_parts()?.expect("looked at just now");
                self.count(&payload);
                rx.copy(&payload, 0, as_uninit(buffer));
                return Ok(Received { len: needed, arrived, origin });
            }
            match self.next_record_by(rx, deadline)? {
                Some(record) if self.is_value(rx, record) => {
                    let unread = self.take_out_and_stay(rx, record)?;
                    rx.push_backlog(unread);
                }
                Some(record) => return self.recv_any_into(rx, record, buffer),
                None => self.wait_for_message(rx, deadline)?,
            }
        }
    }

    #[inline(never)]
    fn recv_any_into(&self, rx: &mut Guard<'_, Rx>, record: Record, buffer: &mut [u8]) -> Result<Received, Error> {
        // The length is checked before anything is taken, so that a too long message stays whole.
        let needed = self.len_of(rx, record)?;
        let Some(buffer) = buffer.get_mut(..needed) else {
            return Err(Error::BufferTooSmall { needed });
        };
        let payload = self.payload(rx, record)?;
        let arrived = self.arrived(rx, record)?;
        // The length was read anew from shared memory; the peer may have changed it.
        let len = payload.len().min(buffer.len());
        rx.copy(&payload, 0, as_uninit(&mut buffer[..len]));
        self.finish(rx, record, payload);
        Ok(Received { len, arrived, origin: rx.origin })
    }

    #[inline(never)]
    fn recv_any(&self, rx: &mut Guard<'_, Rx>, record: Record, message: &mut Message) -> Result<(), Error> {
        let payload = self.payload(rx, record)?;
        self.reserve_for(&payload, message)?;
        message.arrived = self.arrived(rx, record)?;
        self.take_payload_unless_value(rx, &payload, message)?;
        message.origin = rx.origin;
        self.finish(rx, record, payload);
        Ok(())
    }

    /// Moves a payload into `message`. Does nothing if the received message is a value: the bytes of its record mean
    /// nothing.
    #[inline]
    fn take_payload_unless_value(&self, rx: &mut Rx, payload: &Payload, message: &mut Message) -> Result<(), Error> {
        match message.arrived.value() {
            None => self.take_payload(rx, payload, message),
            Some(_) => Ok(()),
        }
    }

    /// Turns the value `unread` into bytes and puts the message back as the next message, because the program's buffer
    /// may be too short for the bytes. The lock is held meanwhile, so no other thread receives.
    #[cold]
    fn convert_next(&self, rx: &mut Guard<'_, Rx>, mut unread: BacklogMessage) {
        let marked = self.mark_blocking(rx);
        if let Some(bytes) = unread.arrived.turn() {
            unread.payload = BacklogPayload::Bytes(bytes);
        }
        marked.guard.put_back(unread);
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.lock_rx(Deadline::NOW).is_ok_and(|mut rx| self.has_next(&mut rx))
    }
}
