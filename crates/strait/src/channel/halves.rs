//! The halves of an end: a sender and a receiver, each for one thread.
//!
//! A half holds the lock of its direction for its whole life, marked as blocking. To the rest of the library a half
//! looks like a thread that is always in a call, so no other code needs to know of halves. The half itself neither
//! takes nor releases a lock for a message. When put into a wait set, a half gives the lock back, since the wait set
//! looks at the end from its own threads; from then on each call takes the lock, as the calls of a [`Channel`] do. The
//! other half gives its lock back at the end of its next call. Releasing a lock notifies the wait set.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::message::{Message, Outgoing, Received, ReceivedExtras};
use super::origin::Origin;
use super::receiver::Rx;
use super::receiver::Taken;
use super::sender::{Pushed, Tx};
use super::views::{Reservation, SealedReservation};
use super::{Channel, End, Interrupter, SendError, SendManyError};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::kept;
use crate::ring::ONE_CELL;
use crate::wake::lock::{Guard, Lock};

/// The sending half of an end, for one thread.
///
/// Example: [two halves](Channel::split).
pub struct Sender {
    /// The lock of the sending direction; `None` if each call takes it. Dropped before the channel.
    held: RefCell<Option<Guard<'static, Tx>>>,
    channel: Arc<Channel>,
    /// Whether a reservation was made since this half last held its lock. The next call takes the lock again.
    has_reserved: bool,
}

/// The receiving half of an end, for one thread.
///
/// Example: [two halves](Channel::split).
pub struct Receiver {
    /// The lock of the receiving direction; `None` if each call takes it. Dropped before the channel.
    held: RefCell<Option<Guard<'static, Rx>>>,
    channel: Arc<Channel>,
}

impl Channel {
    /// Splits this end into a [`Sender`] and a [`Receiver`], for a sending thread and a receiving thread. A half
    /// belongs to one thread at a time, so its calls need no lock: they are faster than the calls of a channel.
    ///
    /// [`Sender::join`] makes the channel again, for example to send the end to another process. The end is closed when
    /// both halves are dropped; the peer does not notice when one half is dropped. A sender follows the other end from
    /// process to process only when sending. Until the next send or the drop, an idle sender retains the memory of the
    /// lanes between, up to the limit ([`Resource::Lanes`](crate::quota::Resource::Lanes)).
    ///
    /// ```
    /// use strait::{Channel, Error};
    /// let (a, b) = Channel::pair()?;
    /// let (mut sender, mut receiver) = a.split();
    /// let answers = std::thread::spawn(move || {
    ///     let answer = receiver.recv()?.into_bytes();
    ///     Ok::<_, Error>((answer, receiver))
    /// });
    /// sender.send(b"question")?;
    /// b.send(b.recv()?.bytes())?;
    ///
    /// let (answer, receiver) = answers.join().expect("a thread")?;
    /// assert_eq!(answer, b"question");
    /// let a = sender.join(receiver).expect("two halves of one end");
    /// drop(a);
    /// assert_eq!(b.recv().unwrap_err(), Error::PeerClosed);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// An end that is in a wait set may be split. The halves of such a channel, and a half [put into a wait
    /// set](crate::wait::WaitSet::add), work as before, but each call takes the lock of a channel. If only one half is
    /// put into the wait set, the set reports events of the other half's direction from the next call of the other half
    /// on.
    ///
    /// # Calls of the halves
    /// | calls of a channel | sender | receiver |
    /// |---|---|---|
    /// | `send`, `try_send`, `send_by`, `send_many` | yes | |
    /// | `reserve`, `reserve_sealed` | yes | |
    /// | `recv`, `try_recv`, `recv_by`, `recv_message`, `recv_into`, `recv_many` | | yes |
    /// | `close_reason` | | yes |
    /// | `interrupter` | yes | yes |
    /// | `draft`, `forward`, `send_value` | | |
    /// | `peek`, `put_back`, `recv_in_place`, `recv_message_or_view`, `try_recv_bytes` | | |
    /// | `reserve_owned`, `reserve_sealed_owned`, `draft_owned`, `recv_in_place_owned` | | |
    /// | `counters`, `status`, `is_readable`, `is_writable`, `is_peer_closed`, `peer`, `peer_pidfd`, `peer_usage` | | |
    /// | `close_with`, `set_close_reason`, `disconnect`, `report_bad`, `fuse`, `rehome`, `split` | | |
    ///
    /// For a call that the halves lack, join the halves. A task cannot wait for a half either: join the halves, and
    /// split the [`AsyncChannel`](crate::task::AsyncChannel) of the end.
    pub fn split(self) -> (Sender, Receiver) {
        let channel = Arc::new(self);
        // SAFETY: the guards are dropped before the `Arc`s that the halves hold.
        let end = &*unsafe { kept::borrow(&channel) }.end;
        let sender = Sender { held: RefCell::new(hold(end, &end.tx)), channel: channel.clone(), has_reserved: false };
        (sender, Receiver { held: RefCell::new(hold(end, &end.rx)), channel })
    }
}

/// Takes the lock `lock` of the end for good, and marks it as blocking. Returns `None` if the end is in a wait set or
/// belongs to the parent of this process.
fn hold<T>(end: &End, lock: &'static Lock<T>) -> Option<Guard<'static, T>> {
    if end.born.is_elsewhere() || end.in_set.load(Ordering::Relaxed) {
        return None;
    }
    let held = lock.lock(Deadline::NOW).ok()?;
    held.mark_blocking();
    Some(held)
}

/// Releases the lock that a half of `end` holds in `held`, if any, and notifies the wait set of the end: the wait set
/// could not look at this direction before.
#[cold]
fn release<T>(held: &RefCell<Option<Guard<'static, T>>>, end: &End) {
    let Some(guard) = held.take() else { return };
    drop(guard);
    if !end.born.is_elsewhere() {
        end.after_blocking();
    }
}

/// Releases the lock that a half of `end` holds in `held`, if the end is in a wait set by now: the other half was
/// added, or a trap was armed.
#[inline]
fn release_for_set<T>(held: &RefCell<Option<Guard<'static, T>>>, end: &End) {
    if end.in_set.load(Ordering::Relaxed) {
        release(held, end);
    }
}

impl Sender {
    /// Sends a message; waits for room without a time limit.
    ///
    /// # Errors
    /// As [`Channel::send`].
    #[inline(always)]
    pub fn send<'a>(&mut self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.send_message(message.into(), Deadline::NEVER)
    }

    /// Sends a message if there is room for the message now. Does not block.
    ///
    /// # Errors
    /// As [`Channel::try_send`].
    #[inline]
    pub fn try_send<'a>(&mut self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.send_message(message.into(), Deadline::NOW)
    }

    /// Sends a message; waits for room until the deadline.
    ///
    /// # Errors
    /// As [`Channel::send_by`].
    #[inline]
    pub fn send_by<'a>(
        &mut self,
        message: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<(), SendError> {
        self.send_message(message.into(), deadline.into())
    }

    #[inline(always)]
    fn send_message(&mut self, message: Outgoing<'_>, deadline: Deadline) -> Result<(), SendError> {
        let Some(bytes) = message.only_bytes() else { return self.send_any(message, deadline) };
        // The message has nothing to drop.
        std::mem::forget(message);
        let sent = if bytes.len() <= ONE_CELL { self.send_short(bytes) } else { self.send_plainly(bytes) };
        if sent { Ok(()) } else { self.send_bytes(bytes, deadline) }
    }

    #[inline(never)]
    fn send_bytes(&mut self, bytes: &[u8], deadline: Deadline) -> Result<(), SendError> {
        self.send_any(Outgoing::new(bytes), deadline)
    }

    /// Sends a message of one cell without handles, if this half holds its lock, nothing ends or moves the channel, and
    /// the ring has room: the common case, in few instructions. Returns `false`, with nothing sent, in all other cases.
    /// Like the path of a channel, this function calls no other unless that call is its last step.
    #[inline(never)]
    fn send_short(&mut self, bytes: &[u8]) -> bool {
        let end = &**self.channel.end();
        if let Some(tx) = self.held.get_mut()
            && !end.born.is_elsewhere()
        {
            match end.push_one(tx, bytes) {
                Pushed::Yes if !end.in_set.load(Ordering::Relaxed) => return true,
                Pushed::Yes | Pushed::Look => return self.look_after_push(),
                Pushed::No => {}
            }
        }
        false
    }

    #[cold]
    #[inline(never)]
    fn look_after_push(&mut self) -> bool {
        let end = &self.channel.end;
        if let Some(tx) = self.held.get_mut() {
            end.committed(tx);
        }
        release_for_set(&self.held, end);
        // Not a constant to the compiler, so that the call of this function is the caller's last step.
        std::hint::black_box(true)
    }

    /// Sends a longer message in the cases in which [`Sender::send_short`] sends one.
    #[inline(never)]
    fn send_plainly(&mut self, bytes: &[u8]) -> bool {
        let Some(tx) = self.held.get_mut() else { return false };
        let sent = self.channel.end.send_plainly_held(tx, bytes);
        release_for_set(&self.held, &self.channel.end);
        sent
    }

    #[inline(never)]
    fn send_any(&mut self, mut message: Outgoing<'_>, deadline: Deadline) -> Result<(), SendError> {
        self.hold_again();
        let end = &self.channel.end;
        match self.held.get_mut() {
            Some(tx) => {
                let sent = end.send_any_held(tx, &mut message, deadline);
                release_for_set(&self.held, end);
                sent
            }
            None => end.send_any(&mut message, deadline),
        }
    }

    /// Sends messages in batches, as [`Channel::send_many`] does.
    ///
    /// # Errors
    /// As [`Channel::send_many`].
    pub fn send_many<'a, I>(&mut self, messages: I, deadline: impl Into<Deadline>) -> Result<usize, SendManyError>
    where
        I: IntoIterator,
        I::Item: Into<Outgoing<'a>>,
    {
        self.hold_again();
        match self.held.get_mut() {
            Some(tx) => {
                let end = &self.channel.end;
                let sent = end.send_many_held(tx, messages.into_iter().map(Into::into), deadline.into());
                release_for_set(&self.held, end);
                sent
            }
            None => self.channel.send_many(messages, deadline),
        }
    }

    /// Reserves room for a message of `len` bytes in the memory where the peer will read it, as [`Channel::reserve`]
    /// does; waits for room until the deadline.
    ///
    /// ```
    /// let (a, b) = strait::Channel::pair()?;
    /// let (mut sender, _receiver) = a.split();
    /// let mut room = sender.reserve(5, strait::Deadline::NEVER)?;
    /// room.write_at(b"frame", 0);
    /// room.commit()?;
    /// assert_eq!(b.recv()?.bytes(), b"frame");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Cost
    /// A reservation takes the lock of the end, as that of a [`Channel`] does.
    ///
    /// # Errors
    /// As [`Channel::reserve`].
    pub fn reserve(&mut self, len: usize, deadline: impl Into<Deadline>) -> Result<Reservation<'_>, Error> {
        self.lend();
        self.channel.reserve(len, deadline)
    }

    /// Allocates memory for a message of `len` bytes that is sealed when sent, as [`Channel::reserve_sealed`] does.
    ///
    /// # Errors
    /// As [`Channel::reserve_sealed`].
    pub fn reserve_sealed(&mut self, len: usize) -> Result<SealedReservation<'_>, Error> {
        self.lend();
        self.channel.reserve_sealed(len)
    }

    /// Releases the lock for a reservation, which takes it.
    fn lend(&mut self) {
        if self.held.get_mut().is_some() {
            release(&self.held, &self.channel.end);
            self.has_reserved = true;
        }
    }

    /// Takes the lock again that was released for a reservation, unless the end is in a wait set by now. The
    /// reservation has ended, because it borrows this half.
    #[inline]
    fn hold_again(&mut self) {
        if self.has_reserved {
            self.has_reserved = false;
            // SAFETY: the guard is dropped before the `Arc`.
            let end = &*unsafe { kept::borrow(&self.channel) }.end;
            *self.held.get_mut() = hold(end, &end.tx);
        }
    }

    /// Returns an interrupter of the end, which ends the waits of both halves.
    pub fn interrupter(&self) -> Interrupter {
        self.channel.interrupter()
    }

    /// Joins the two halves of an end to the [`Channel`] that was split.
    ///
    /// # Errors
    /// Returns the halves as the error if they belong to different ends.
    pub fn join(self, receiver: Receiver) -> Result<Channel, (Self, Receiver)> {
        if !Arc::ptr_eq(&self.channel, &receiver.channel) {
            return Err((self, receiver));
        }
        let channel = self.channel.clone();
        drop((self, receiver));
        Ok(Arc::into_inner(channel).expect("only the two halves hold it"))
    }

    /// Gives the lock back, for a wait set, and returns the channel.
    pub(crate) fn shared(&self) -> &Channel {
        release(&self.held, &self.channel.end);
        &self.channel
    }
}

impl Receiver {
    /// Receives the next message; waits for the message without a time limit.
    ///
    /// # Errors
    /// As [`Channel::recv`].
    pub fn recv(&mut self) -> Result<Message, Error> {
        self.recv_by(Deadline::NEVER)
    }

    /// Receives the next message if there is one now. Does not block.
    ///
    /// # Errors
    /// As [`Channel::try_recv`].
    pub fn try_recv(&mut self) -> Result<Message, Error> {
        self.recv_by(Deadline::NOW)
    }

    /// Receives the next message; waits for the message until the deadline.
    ///
    /// # Errors
    /// As [`Channel::recv_by`].
    pub fn recv_by(&mut self, deadline: impl Into<Deadline>) -> Result<Message, Error> {
        let mut message = Message::with_spare();
        if !self.recv_short(&mut message) {
            self.recv_any(&mut message, deadline.into())?;
        }
        Ok(message)
    }

    /// Receives the next message into `message`; waits for the next message until the deadline. Drops the old content
    /// of `message` and reuses its memory: in steady flow nothing is allocated. On an error `message` is empty.
    ///
    /// # Errors
    /// As [`Channel::recv_message`].
    #[inline]
    pub fn recv_message(&mut self, message: &mut Message, deadline: impl Into<Deadline>) -> Result<(), Error> {
        message.clear();
        if self.recv_short(message) { Ok(()) } else { self.recv_any(message, deadline.into()) }
    }

    /// Receives the next message into `message`, which is empty, if this half holds its lock and the message is plain:
    /// the common case, in few instructions. Returns `false`, and changes nothing, in all other cases. Like the path of
    /// a channel, the shortest path calls no function unless that call is its last step.
    #[inline(never)]
    fn recv_short(&mut self, message: &mut Message) -> bool {
        let end = &**self.channel.end();
        if let Some(rx) = self.held.get_mut()
            && !end.born.is_elsewhere()
        {
            match end.pop_one(rx, message) {
                Taken::Yes if !end.in_set.load(Ordering::Relaxed) => return true,
                Taken::Yes | Taken::Wakes => return self.look_after_pop(),
                Taken::Empty => return false,
                Taken::Other => {}
            }
        }
        self.recv_plainly(message)
    }

    #[cold]
    #[inline(never)]
    fn look_after_pop(&mut self) -> bool {
        let end = &self.channel.end;
        if let Some(rx) = self.held.get_mut() {
            end.wake_sender_of(rx);
        }
        release_for_set(&self.held, end);
        // Not a constant to the compiler, so that the call of this function is the caller's last step.
        std::hint::black_box(true)
    }

    #[inline(never)]
    fn recv_plainly(&mut self, message: &mut Message) -> bool {
        let end = &self.channel.end;
        let Some(rx) = self.held.get_mut() else { return false };
        let received = !end.born.is_elsewhere() && end.recv_any_plain(rx, message);
        release_for_set(&self.held, end);
        received
    }

    #[inline(never)]
    fn recv_any(&mut self, message: &mut Message, deadline: Deadline) -> Result<(), Error> {
        match self.held.get_mut() {
            Some(rx) => {
                let received = self.channel.end.recv_message_held(rx, message, deadline);
                release_for_set(&self.held, &self.channel.end);
                received
            }
            None => self.channel.recv_message(message, deadline),
        }
    }

    /// Receives the next message into the start of `buffer`; waits for the message until the deadline.
    ///
    /// # Errors
    /// As [`Channel::recv_into`].
    #[inline]
    pub fn recv_into(&mut self, buffer: &mut [u8], deadline: impl Into<Deadline>) -> Result<Received, Error> {
        match self.recv_short_into(buffer) {
            Some((len, origin)) => Ok(Received { len, arrived: ReceivedExtras::NONE, origin }),
            None => self.recv_any_into(buffer, deadline.into()),
        }
    }

    /// Receives the next message into the start of `buffer` in the cases in which [`Receiver::recv_short`] receives it,
    /// and returns its length and origin. Returns `None`, and changes nothing, in all other cases, also if the message
    /// is longer than `buffer`.
    #[inline(never)]
    fn recv_short_into(&mut self, buffer: &mut [u8]) -> Option<(usize, Origin)> {
        let end = &self.channel.end;
        let rx = self.held.get_mut().as_mut().filter(|_| !end.born.is_elsewhere())?;
        let received = end.take_bytes(rx, buffer).and_then(Result::ok).map(|len| (len, rx.origin));
        release_for_set(&self.held, end);
        received
    }

    #[inline(never)]
    fn recv_any_into(&mut self, buffer: &mut [u8], deadline: Deadline) -> Result<Received, Error> {
        match self.held.get_mut() {
            Some(rx) => {
                let received = self.channel.end.recv_into_held(rx, buffer, deadline);
                release_for_set(&self.held, &self.channel.end);
                received
            }
            None => self.channel.recv_into(buffer, deadline),
        }
    }

    /// Receives the messages that are there, as many as `slots` can take, as [`Channel::recv_many`] does.
    ///
    /// # Errors
    /// As [`Channel::recv_many`].
    pub fn recv_many(&mut self, slots: &mut [Message], deadline: impl Into<Deadline>) -> Result<usize, Error> {
        match self.held.get_mut() {
            Some(rx) => {
                let received = self.channel.end.recv_many_held(rx, slots, deadline.into());
                release_for_set(&self.held, &self.channel.end);
                received
            }
            None => self.channel.recv_many(slots, deadline),
        }
    }

    /// Returns the number with which the other end was closed, as [`Channel::close_reason`] does.
    pub fn close_reason(&self) -> Option<u32> {
        self.channel.close_reason()
    }

    /// Returns an interrupter of the end, which ends the waits of both halves.
    pub fn interrupter(&self) -> Interrupter {
        self.channel.interrupter()
    }

    /// Gives the lock back, for a wait set, and returns the channel.
    pub(crate) fn shared(&self) -> &Channel {
        release(&self.held, &self.channel.end);
        &self.channel
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        release(&self.held, &self.channel.end);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        release(&self.held, &self.channel.end);
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.channel.end.print("Sender", f)
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.channel.end.print("Receiver", f)
    }
}
