//! Sending and receiving values over a channel that a caller holds: what a typed channel does for threads and for
//! tasks.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use strait::bindings::UnclaimedHandle;
use strait::view::InPlace;
use strait::{Channel, Deadline, Message};

use crate::codec::{Codec, Decode, Encode, Malformed};
use crate::error::{GivenError, RecvError, SchemaMismatch, SendError, TYPES_DIFFER};
use crate::given::{Given, Turned};
use crate::hello::Hello;
use crate::limits::FIRST_MESSAGES;
use crate::output::Output;
use crate::scratch::{self, Decoding, Encoding, Lent, Outbound};

/// The state of a typed channel besides the channel: which of the first messages have been exchanged.
pub(crate) struct Core<S, R, C> {
    /// Whether this end has sent its first message, and the types agree as far as known.
    greeted: AtomicBool,
    /// Whether this end has received the peer's first message, and the types agree.
    met: AtomicBool,
    /// Locked while this end sends its first message into the reserved room, so that the end sends one such message.
    /// A thread that waits for room does not hold the lock.
    greeting: Mutex<()>,
    /// The number of threads that receive while the peer's first message is still missing.
    meeting: AtomicUsize,
    /// The difference between the types of the two ends.
    mismatch: OnceLock<Box<SchemaMismatch>>,
    types: PhantomData<fn(S) -> (R, C)>,
}

impl<S, R, C> fmt::Debug for Core<S, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (greeted, met) = self.progress();
        f.debug_struct("Core").field("greeted", &greeted).field("met", &met).finish_non_exhaustive()
    }
}

impl<S, R, C> Core<S, R, C> {
    /// Creates the state of an end; `greeted` and `met` say which first messages were sent and received.
    pub(crate) fn new(greeted: bool, met: bool) -> Self {
        Self {
            greeted: AtomicBool::new(greeted),
            met: AtomicBool::new(met),
            greeting: Mutex::new(()),
            meeting: AtomicUsize::new(0),
            mismatch: OnceLock::new(),
            types: PhantomData,
        }
    }

    /// Returns whether this end has sent its first message, and whether the peer's first message was received.
    pub(crate) fn progress(&self) -> (bool, bool) {
        (self.greeted.load(Ordering::Acquire), self.met.load(Ordering::Acquire))
    }

    fn mismatch(&self) -> Result<(), Box<SchemaMismatch>> {
        self.mismatch.get().map_or(Ok(()), |mismatch| Err(mismatch.clone()))
    }
}

impl<S, R, C: Codec<S> + Codec<R>> Core<S, R, C> {
    /// Sends this end's first message, unless already sent.
    #[inline]
    fn greet(&self, channel: &Channel, deadline: Deadline) -> Result<(), SendError> {
        if self.greeted.load(Ordering::Acquire) {
            return Ok(());
        }
        self.send_hello(channel, deadline)
    }

    #[cold]
    fn send_hello(&self, channel: &Channel, deadline: Deadline) -> Result<(), SendError> {
        self.mismatch().map_err(SendError::Schema)?;
        let hello = Hello::of::<S, R, C>().to_bytes();
        // Threads that greet at once wait for each other's reservations, until their deadlines. The lock is held only
        // for the send into the room, and until that send is noted.
        let mut room = channel.reserve(hello.len(), deadline)?;
        let _only_one = self.greeting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.greeted.load(Ordering::Acquire) {
            return Ok(());
        }
        room.write_at(&hello, 0);
        room.commit().map_err(|failed| failed.error)?;
        self.greeted.store(true, Ordering::Release);
        Ok(())
    }

    /// Receives the next message that is not the peer's first one: calls `receive`, which receives into `message` or
    /// returns a view of a long message, and waits until `deadline`. `is_given` says whether a message is a value that
    /// was given, and is taken as such.
    #[inline]
    fn next<'a>(
        &self,
        channel: &'a Channel,
        message: &mut Message,
        deadline: Deadline,
        mut receive: impl FnMut(&mut Message) -> Result<Option<InPlace<'a>>, strait::Error>,
        is_given: fn(&Message) -> bool,
    ) -> Result<Option<InPlace<'a>>, RecvError> {
        if self.met.load(Ordering::Acquire) {
            let mut view = receive(message)?;
            let mut taken = 0;
            // If the peer's end moved from a process without types to a process with types, the new process sends a
            // first message again.
            while <C as Codec<R>>::SELF_DESCRIBING
                && let Some(theirs) = first_message(&mut view, message, is_given)?
            {
                self.compare(channel, &theirs)?;
                taken += 1;
                if taken > FIRST_MESSAGES {
                    deadline.check()?;
                }
                view = receive(message)?;
            }
            return Ok(view);
        }
        self.meeting.fetch_add(1, Ordering::AcqRel);
        let met = self.meet(channel, message, receive, is_given);
        self.meeting.fetch_sub(1, Ordering::AcqRel);
        met
    }

    /// Receives the peer's first message, unless another thread receives it meanwhile, and then the next message.
    #[cold]
    fn meet<'a>(
        &self,
        channel: &'a Channel,
        message: &mut Message,
        mut receive: impl FnMut(&mut Message) -> Result<Option<InPlace<'a>>, strait::Error>,
        is_given: fn(&Message) -> bool,
    ) -> Result<Option<InPlace<'a>>, RecvError> {
        loop {
            self.mismatch().map_err(RecvError::Schema)?;
            let mut view = receive(message)?;
            if self.met.load(Ordering::Acquire) {
                return Ok(view);
            }
            match first_message(&mut view, message, is_given)? {
                Some(theirs) => self.compare(channel, &theirs)?,
                None => return self.meets_elsewhere().map(|()| view),
            }
        }
    }

    /// Returns whether another thread has, or may have, the peer's first message: this thread has received a later
    /// message. The other thread reports a mismatch. With a self-describing codec the peer may also have sent no first
    /// message.
    fn meets_elsewhere(&self) -> Result<(), RecvError> {
        let others = self.meeting.load(Ordering::Acquire) > 1;
        if others || self.met.load(Ordering::Acquire) {
            return Ok(());
        }
        // A thread that has found a mismatch in the meantime does not count as another thread any more.
        self.mismatch().map_err(RecvError::Schema)?;
        if !<C as Codec<R>>::SELF_DESCRIBING {
            return Err(RecvError::Untyped);
        }
        self.met.swap(true, Ordering::AcqRel);
        // Another thread may have found a mismatch since.
        self.mismatch().map_err(|mismatch| {
            self.met.store(false, Ordering::Release);
            RecvError::Schema(mismatch)
        })
    }

    fn compare(&self, channel: &Channel, theirs: &Hello) -> Result<(), RecvError> {
        let Err(mismatch) = Hello::of::<S, R, C>().compare(theirs) else {
            self.met.store(true, Ordering::Release);
            return Ok(());
        };
        // The peer learns of the mismatch by comparing the types in this end's first message. If there is no room now,
        // the peer learns of the mismatch when this end is closed.
        let _ = self.greet(channel, Deadline::NOW);
        channel.set_close_reason(TYPES_DIFFER);
        let mismatch = Box::new(mismatch);
        let _ = self.mismatch.set(mismatch.clone());
        // So that each send and each receive looks for a mismatch.
        self.greeted.store(false, Ordering::Release);
        self.met.store(false, Ordering::Release);
        Err(RecvError::Schema(mismatch))
    }
}

/// Reads a first message of a peer; returns `None` if the message is another one.
#[inline]
fn first_message(
    view: &mut Option<InPlace<'_>>,
    message: &Message,
    is_given: fn(&Message) -> bool,
) -> Result<Option<Hello>, strait::Error> {
    match view {
        Some(view) => Hello::read(view),
        // Asking a given value for its bytes would encode the value.
        None if is_given(message) => Ok(None),
        None => Ok(Hello::parse(message.bytes())),
    }
}

impl<S, R, C: Encode<S> + Codec<R>> Core<S, R, C> {
    /// Encodes `value` and sends it; waits for room until the deadline.
    #[inline]
    pub(crate) fn send(&self, channel: &Channel, value: &S, deadline: Deadline) -> Result<(), SendError> {
        self.greet(channel, deadline)?;
        let mut out = Output::new(scratch::take_window(), Some(channel));
        let encoded = encode::<S, C>(value, &mut out);
        let sent = match (&encoded, out.short()) {
            (Ok(None), Some(bytes)) => match channel.send_by(bytes, deadline) {
                Ok(()) => Ok(()),
                Err(failed) => Err(refused(failed)),
            },
            _ => send_rest(channel, &mut out, encoded, deadline),
        };
        scratch::keep_window(out.into_window());
        sent
    }

    /// Sends `value` as an object; waits for room until the deadline.
    pub(crate) fn send_owned(&self, channel: &Channel, value: S, deadline: Deadline) -> Result<(), GivenError<S>>
    where
        S: Send + 'static,
    {
        if let Err(error) = self.greet(channel, deadline) {
            return Err(GivenError { error, value: Some(value) });
        }
        let (given, turned) = Given::new::<C>(value);
        let sent = channel.send_value(given, deadline);
        let turned = turned.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (sent, turned) {
            (Ok(()), Some(Turned { value, places: Err(what) })) => {
                Err(GivenError { error: SendError::Encode(what), value: Some(value) })
            }
            (Ok(()), _) => Ok(()),
            (Err(mut failed), turned) => {
                let value = match turned {
                    None => failed.message.take_value::<Given<S>>().map(Given::into_value),
                    Some(turned) => Some(turned.taken_back(failed.message.take_handles().unwrap_or_default())),
                };
                Err(GivenError { error: SendError::Channel(failed.error), value })
            }
        }
    }
}

impl<S, R, C: Codec<S> + Codec<R>> Core<S, R, C> {
    /// Receives a value; waits for a message until the deadline.
    #[inline]
    pub(crate) fn recv(&self, channel: &Channel, deadline: Deadline) -> Result<R, RecvError>
    where
        R: Send + 'static,
        C: for<'de> Decode<'de, R>,
    {
        let mut lent = Lent::take();
        let receive = |message: &mut Message| channel.recv_message_or_view(message, deadline);
        if !<C as Codec<R>>::SELF_DESCRIBING && self.met.load(Ordering::Acquire) {
            let received = receive(lent.message());
            if matches!(received, Ok(None)) && lent.message().has_only_bytes() {
                // Tells the compiler that nothing has to be dropped.
                std::mem::forget(received);
                return decode_lent::<R, C>(lent);
            }
            return take_received::<R, C>(received.map_err(RecvError::Channel), lent);
        }
        let received = self.next(channel, lent.message(), deadline, receive, Message::is_value::<Given<R>>);
        take_received::<R, C>(received, lent)
    }

    /// Receives a message without decoding it; waits for the message until the deadline.
    pub(crate) fn recv_encoded(
        &self,
        channel: &Channel,
        message: &mut Message,
        deadline: Deadline,
    ) -> Result<Vec<UnclaimedHandle>, RecvError> {
        let receive = |message: &mut Message| channel.recv_message(message, deadline).map(|()| None);
        if let Err(error) = self.next(channel, message, deadline, receive, |_| false) {
            // A refused message is gone, also for the owner of `message`.
            message.clear();
            return Err(error);
        }
        Ok(message.take_unclaimed()?)
    }
}

/// Takes the value out of a received message, which is `lent` or a view of a long message.
#[inline(never)]
fn take_received<R, C>(received: Result<Option<InPlace<'_>>, RecvError>, mut lent: Lent) -> Result<R, RecvError>
where
    R: Send + 'static,
    C: for<'de> Decode<'de, R>,
{
    match received? {
        None if lent.message().has_only_bytes() => decode_lent::<R, C>(lent),
        None => take::<R, C>(lent.message()),
        Some(view) => take_out_of::<R, C>(view),
    }
}

/// Takes the value out of a message: a value given within the process, or the decoded bytes and handles.
fn take<R, C>(message: &mut Message) -> Result<R, RecvError>
where
    R: Send + 'static,
    C: for<'de> Decode<'de, R>,
{
    if let Some(given) = message.take_value::<Given<R>>() {
        return Ok(given.into_value());
    }
    let handles = message.take_unclaimed()?;
    decode::<R, C>(message.bytes(), handles).map_err(RecvError::Malformed)
}

/// Decodes the value of a long message in place, in the memory written by the peer.
#[cold]
fn take_out_of<R, C>(mut view: InPlace<'_>) -> Result<R, RecvError>
where
    C: for<'de> Decode<'de, R>,
{
    let handles = view.take_unclaimed()?;
    let mut bytes = Vec::new();
    decode_with(handles, || C::decode_view(&mut view, &mut bytes)).map_err(RecvError::Malformed)
}

/// Returns the error of a message without handles that was not sent.
#[cold]
fn refused(failed: strait::SendError) -> SendError {
    failed.error.into()
}

/// Sends an encoded message that is long or has handles, or returns the reason why encoding failed.
#[inline(never)]
fn send_rest(
    channel: &Channel,
    out: &mut Output<'_>,
    encoded: Result<Option<Box<Outbound>>, SendError>,
    deadline: Deadline,
) -> Result<(), SendError> {
    match encoded {
        Ok(None) => out.send(channel, Vec::new(), deadline).map_err(refused),
        Ok(Some(mut outbound)) => send_handles(channel, out, &mut outbound, deadline),
        Err(error) => Err(out.failed().map_or(error, SendError::Channel)),
    }
}

/// Sends a message with handles; waits for room until the deadline. If it is not sent, the handles are in the value
/// again.
fn send_handles(
    channel: &Channel,
    out: &mut Output<'_>,
    outbound: &mut Outbound,
    deadline: Deadline,
) -> Result<(), SendError> {
    out.send(channel, outbound.take_handles(), deadline).map_err(|failed| {
        outbound.give_back(failed.handles);
        SendError::Channel(failed.error)
    })
}

/// Encodes `value` into `out`. Returns the handles of the value, if any. If the value cannot be encoded, returns the
/// reason; then the handles are in the value again.
#[inline]
pub(crate) fn encode<S: ?Sized, C: Encode<S>>(
    value: &S,
    out: &mut Output<'_>,
) -> Result<Option<Box<Outbound>>, SendError> {
    let encoding = Encoding::begin();
    let encoded = C::encode(value, out);
    let outbound = encoding.end();
    match encoded {
        Ok(()) => Ok(outbound),
        Err(what) => {
            let problem = outbound.and_then(|outbound| outbound.problem);
            Err(SendError::Encode(problem.map_or(what, str::to_owned)))
        }
    }
}

/// Decodes a value from the bytes and handles of a message. On an error, closes all handles.
#[inline]
pub(crate) fn decode<'de, T, C: Decode<'de, T>>(
    bytes: &'de [u8],
    handles: Vec<UnclaimedHandle>,
) -> Result<T, Malformed> {
    decode_with(handles, || C::decode(bytes))
}

/// Decodes a value from the handles of a message and from what `decode` reads. On an error, closes all handles.
#[inline(always)]
fn decode_with<T>(
    handles: Vec<UnclaimedHandle>,
    decode: impl FnOnce() -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    let decoding = Decoding::begin(handles);
    let decoded = decode();
    let inbound = decoding.end();
    match decoded {
        Ok(_) if inbound.as_ref().is_some_and(|inbound| inbound.has_surplus()) => {
            Err(Malformed::new(None, "handles that no field of the value takes"))
        }
        Ok(value) => Ok(value),
        Err(malformed) => Err(match inbound.and_then(|inbound| inbound.problem) {
            Some(problem) => Malformed::new(malformed.at, problem),
            None => malformed,
        }),
    }
}

/// Decodes the value of a message without handles, and gives the message back to the thread.
#[inline(always)]
fn decode_lent<R, C: for<'de> Decode<'de, R>>(mut lent: Lent) -> Result<R, RecvError> {
    let decoding = Decoding::begin_without_handles();
    let decoded = C::decode(lent.message().bytes());
    if decoded.is_ok() {
        // Before the value is moved, so that the value is moved once.
        decoding.finish();
        lent.give_back();
        return decoded.map_err(RecvError::Malformed);
    }
    decoded.map_err(|malformed| RecvError::Malformed(decoding.explain(malformed)))
}
