//! Typed calls: requests of one type, and replies of another type.

use std::fmt;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use strait::call::{CallEnd, Replier, Request};
use strait::{Channel, Deadline, Message, Outgoing};

use crate::Postcard;
use crate::codec::{Codec, DecodeOwned, Encode, Malformed};
use crate::core::{decode, encode};
use crate::error::{RecvError, SchemaMismatch, SendError, TYPES_DIFFER};
use crate::hello::Hello;
use crate::limits::FIRST_MESSAGES;
use crate::output::Output;
use crate::scratch::{self, Outbound};

/// The reason why a typed call has no reply.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The request cannot be encoded; the text says why. Nothing was sent, and the handles are in the request again.
    Encode(String),
    /// The two ends have different types or codecs. The request was not sent.
    Schema(Box<SchemaMismatch>),
    /// The other end does not speak typed calls. The request was not sent.
    Untyped,
    /// The server has carried out the request, and its reply is not of the expected type. The handles of the reply were
    /// closed.
    Malformed(Malformed),
    /// The call failed; the error says whether the request was carried out. If it was not sent, the handles are in the
    /// request again.
    Call(strait::call::CallError),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encode(what) => write!(f, "the request cannot be encoded: {what}"),
            Self::Schema(mismatch) => mismatch.fmt(f),
            Self::Untyped => f.write_str("the other end does not speak typed calls: make `TypedCalls` of it too"),
            Self::Malformed(malformed) => write!(f, "the reply is not of the expected type: {malformed}"),
            Self::Call(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Encode(_) | Self::Untyped => None,
            Self::Schema(mismatch) => Some(mismatch),
            Self::Malformed(malformed) => Some(malformed),
            Self::Call(error) => Some(error),
        }
    }
}

/// An end of a channel for calls with requests of type `Q` and replies of type `A`. Either end may call the other; both
/// have this type.
///
/// ```
/// use std::time::Duration;
/// use strait::Channel;
/// use strait_typed::TypedCalls;
///
/// const LIMIT: Duration = Duration::from_secs(10);
///
/// let (one, other) = Channel::pair()?; // One of them may be in another process.
/// let (client, server) = (TypedCalls::<(i64, i64), i64>::over(one), TypedCalls::<(i64, i64), i64>::over(other));
/// std::thread::spawn(move || {
///     while let Ok(mut request) = server.next_request(LIMIT) {
///         let (one, other) = request.take();
///         let _ = request.reply(&(one + other), LIMIT);
///     }
/// });
/// assert_eq!(client.call(&(2, 3), LIMIT)?, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The first call of an end first asks the other end for its types, by one more call; if several threads call at once,
/// each thread asks. If the types differ, the call fails with [`CallError::Schema`].
pub struct TypedCalls<Q, A, C = Postcard> {
    end: CallEnd,
    core: CallsCore<Q, A, C>,
}

/// The state of an end for typed calls beside its call end: what the two ends know of each other's types.
pub(crate) struct CallsCore<Q, A, C> {
    /// Whether the other end has answered the first call of this end.
    greeted: AtomicBool,
    /// Whether the other end has asked for the types, and the types agree.
    met: AtomicBool,
    mismatch: OnceLock<Box<SchemaMismatch>>,
    types: PhantomData<fn(Q) -> (A, C)>,
}

impl<Q, A, C> fmt::Debug for TypedCalls<Q, A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedCalls").field(&self.end).finish()
    }
}

impl<Q, A, C> TypedCalls<Q, A, C> {
    /// Makes an end for typed calls from `channel`. From now on only calls may use the channel, and its other end must
    /// be `TypedCalls` too.
    pub fn over(channel: Channel) -> Self {
        Self::from_end(CallEnd::over(channel))
    }

    /// Makes an end for typed calls from a call end with options of its own, over which nothing was called yet.
    pub fn from_end(end: CallEnd) -> Self {
        let core = CallsCore {
            greeted: AtomicBool::new(false),
            met: AtomicBool::new(false),
            mismatch: OnceLock::new(),
            types: PhantomData,
        };
        Self { end, core }
    }

    /// Splits the object into the call end and the other state.
    pub(crate) fn into_parts(self) -> (CallEnd, CallsCore<Q, A, C>) {
        (self.end, self.core)
    }

    /// Makes an end for typed calls from a call end and the other state of the end.
    pub(crate) fn from_parts(end: CallEnd, core: CallsCore<Q, A, C>) -> Self {
        Self { end, core }
    }

    /// Returns the call end, for counters and to wait for it in a wait set.
    pub fn end(&self) -> &CallEnd {
        &self.end
    }
}

impl<Q, A, C: Codec<Q> + Codec<A>> TypedCalls<Q, A, C> {
    /// Compares the types of the two ends by a call, before the first call of this end. Several threads may do so at
    /// once.
    fn greet(&self, deadline: Deadline) -> Result<(), CallError> {
        if self.core.has_greeted()? {
            return Ok(());
        }
        let ours = Hello::of::<Q, A, C>();
        let reply = self.end.call(&ours.to_bytes(), deadline).map_err(CallError::Call)?;
        self.core.greeted_by(self.end.channel(), &ours, &reply)
    }
}

impl<Q, A, C: Codec<Q> + Codec<A>> CallsCore<Q, A, C> {
    /// Returns whether the other end has answered with its types, and the types agree.
    ///
    /// # Errors
    /// [`CallError::Schema`] if the types are known to differ.
    pub(crate) fn has_greeted(&self) -> Result<bool, CallError> {
        if self.greeted.load(Ordering::Acquire) {
            return Ok(true);
        }
        self.mismatch.get().map_or(Ok(false), |mismatch| Err(CallError::Schema(mismatch.clone())))
    }

    /// Takes the reply of the other end of `channel` to the call that asked for the other end's types.
    pub(crate) fn greeted_by(&self, channel: &Channel, ours: &Hello, reply: &Message) -> Result<(), CallError> {
        let theirs = Hello::parse(reply.bytes()).ok_or(CallError::Untyped)?;
        self.compare(channel, ours, &theirs).map_err(CallError::Schema)?;
        self.greeted.store(true, Ordering::Release);
        Ok(())
    }

    /// Compares the types. As its sent type, the other end of calls gives its reply type, like the other end of a typed
    /// channel.
    fn compare(&self, channel: &Channel, ours: &Hello, theirs: &Hello) -> Result<(), Box<SchemaMismatch>> {
        ours.compare(theirs).map_err(|mismatch| {
            channel.set_close_reason(TYPES_DIFFER);
            self.mismatch.get_or_init(|| Box::new(mismatch)).clone()
        })
    }

    /// Answers a request that asks for the types. The other end may ask again: if its first call was cancelled, or if
    /// several threads or tasks of the other end call at once.
    fn meet(
        &self,
        channel: &Channel,
        theirs: &Hello,
        mut replier: Replier,
        deadline: Deadline,
    ) -> Result<(), RecvError> {
        let ours = Hello::of::<A, Q, C>();
        let compared = self.compare(channel, &ours, theirs);
        // Stored before the reply: another thread may take the request that follows.
        self.met.store(compared.is_ok(), Ordering::Release);
        replier.reply(&ours.to_bytes(), deadline).map_err(|failed| failed.error)?;
        compared.map_err(RecvError::Schema)
    }
}

impl<Q, A: Send + 'static, C: Encode<Q> + DecodeOwned<A>> TypedCalls<Q, A, C> {
    /// Sends a request and waits for the reply until the deadline.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call(&self, request: &Q, deadline: impl Into<Deadline>) -> Result<A, CallError> {
        let deadline = deadline.into();
        self.greet(deadline)?;
        let mut out = Output::new(scratch::take_window(), None);
        let reply = encode_request::<Q, C>(request, &mut out)
            .and_then(|mut outbound| self.call_bytes(out.bytes(), &mut outbound, deadline));
        scratch::keep_window(out.into_window());
        value_of::<A, C>(reply?)
    }

    /// Sends an encoded request and waits for the reply. If the request is not sent, its handles are in it again.
    fn call_bytes(&self, bytes: &[u8], outbound: &mut Outbound, deadline: Deadline) -> Result<Message, CallError> {
        let request = Outgoing::new(bytes).handles(outbound.take_handles());
        self.end.call(request, deadline).map_err(|failed| taken_back(failed, outbound))
    }
}

/// Puts the handles of a request that was not sent back into the request, and returns the error.
pub(crate) fn taken_back(failed: strait::call::CallError, outbound: &mut Outbound) -> CallError {
    match failed {
        strait::call::CallError::NotSent(mut failed) => {
            outbound.give_back(std::mem::take(&mut failed.handles));
            CallError::Call(strait::call::CallError::NotSent(failed))
        }
        failed => CallError::Call(failed),
    }
}

/// Returns the value of a reply.
pub(crate) fn value_of<A, C: DecodeOwned<A>>(mut reply: Message) -> Result<A, CallError> {
    let handles = reply.take_unclaimed();
    let handles = handles.map_err(|error| CallError::Call(strait::call::CallError::OutcomeUnknown(error)))?;
    decode::<A, C>(reply.bytes(), handles).map_err(CallError::Malformed)
}

/// Encodes a request for a call that a task waits for. Returns the bytes, and the handles with their places in the
/// request.
pub(crate) fn encoded<Q, C: Encode<Q>>(request: &Q) -> Result<(Vec<u8>, Box<Outbound>), CallError> {
    let mut out = Output::new(scratch::take_window(), None);
    let outbound = encode_request::<Q, C>(request, &mut out);
    let bytes = out.bytes().to_vec();
    scratch::keep_window(out.into_window());
    Ok((bytes, outbound?))
}

/// Encodes a reply that a task sends. Returns the bytes, and the handles with their places in the reply.
pub(crate) fn encoded_reply<A, C: Encode<A>>(reply: &A) -> Result<(Vec<u8>, Box<Outbound>), SendError> {
    let mut out = Output::new(scratch::take_window(), None);
    let outbound = encode::<A, C>(reply, &mut out);
    let bytes = out.bytes().to_vec();
    scratch::keep_window(out.into_window());
    Ok((bytes, outbound?.unwrap_or_default()))
}

/// Encodes a request into `out`, and returns its handles. Refuses a request with the bytes of a question for the types,
/// which the other end would answer itself.
fn encode_request<Q, C: Encode<Q>>(request: &Q, out: &mut Output<'_>) -> Result<Box<Outbound>, CallError> {
    let outbound = encode::<Q, C>(request, out).map_err(|error| CallError::Encode(encode_text(error)))?;
    match Hello::parse(out.bytes()) {
        // Dropping the handles puts them back into the request.
        Some(_) => Err(CallError::Encode(
            "the bytes of this request are those by which a process asks for the types; send another value".to_owned(),
        )),
        None => Ok(outbound.unwrap_or_default()),
    }
}

fn encode_text(error: SendError) -> String {
    match error {
        SendError::Encode(what) => what,
        error => error.to_string(),
    }
}

impl<Q: Send + 'static, A, C: DecodeOwned<Q> + Codec<A>> TypedCalls<Q, A, C> {
    /// Returns the next request of the other end; waits for it until the deadline.
    ///
    /// # Errors
    /// [`RecvError`]. A request that is not of the expected type is [`RecvError::Malformed`]; its caller gets
    /// [`strait::call::CallError::NotAnswered`], and the next request can be taken.
    pub fn next_request(&self, deadline: impl Into<Deadline>) -> Result<TypedRequest<Q, A, C>, RecvError> {
        let deadline = deadline.into();
        let mut taken = 0;
        loop {
            let request = self.end.next_request(deadline)?;
            if let Some(request) = self.core.request_of(self.end.channel(), request, deadline)? {
                return Ok(request);
            }
            taken += 1;
            if taken > FIRST_MESSAGES {
                deadline.check()?;
            }
        }
    }
}

impl<Q: Send + 'static, A, C: DecodeOwned<Q> + Codec<A>> CallsCore<Q, A, C> {
    /// Returns the typed request of a request received over `channel`. If the request asks for the types, sends the
    /// types as the reply, at the latest by the deadline, and returns `None`.
    pub(crate) fn request_of(
        &self,
        channel: &Channel,
        request: Request,
        deadline: Deadline,
    ) -> Result<Option<TypedRequest<Q, A, C>>, RecvError> {
        let (mut message, replier) = request.into_parts();
        if let Some(theirs) = Hello::parse(message.bytes()) {
            return self.meet(channel, &theirs, replier, deadline).map(|()| None);
        }
        // A caller asks for the types before any other request.
        if !self.met.load(Ordering::Acquire) {
            return Err(RecvError::Untyped);
        }
        let handles = message.take_unclaimed()?;
        let value = decode::<Q, C>(message.bytes(), handles);
        let value = Some(value.map_err(RecvError::Malformed)?);
        Ok(Some(TypedRequest { value, replier, types: PhantomData }))
    }
}

/// A request of the other end, with the means to reply. If it is dropped without a reply, the caller gets
/// [`strait::call::CallError::NotAnswered`].
pub struct TypedRequest<Q, A, C = Postcard> {
    value: Option<Q>,
    replier: Replier,
    types: PhantomData<fn(A) -> C>,
}

impl<Q, A, C> fmt::Debug for TypedRequest<Q, A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedRequest").field("replier", &self.replier).finish_non_exhaustive()
    }
}

impl<Q, A, C> TypedRequest<Q, A, C> {
    /// Takes the request.
    ///
    /// # Panics
    /// If the request was taken before.
    pub fn take(&mut self) -> Q {
        self.value.take().expect("the request was taken before")
    }

    /// Returns the request; `None` if the request was taken.
    pub fn get(&self) -> Option<&Q> {
        self.value.as_ref()
    }

    /// Returns whether the caller has cancelled this call, as far as this process has received the cancellation. Takes
    /// a lock.
    pub fn is_cancelled(&self) -> bool {
        self.replier.is_cancelled()
    }
}

impl<Q, A, C> TypedRequest<Q, A, C> {
    pub(crate) fn into_replier(self) -> Replier {
        self.replier
    }
}

impl<Q, A, C: Encode<A>> TypedRequest<Q, A, C> {
    /// Sends the reply; waits for room until the deadline. After an error the caller learns that there is no reply. A
    /// task replies with [`AsyncTypedCalls::reply`](crate::task::AsyncTypedCalls::reply) instead.
    ///
    /// # Errors
    /// [`SendError`]; the handles are in the reply again.
    pub fn reply(mut self, reply: &A, deadline: impl Into<Deadline>) -> Result<(), SendError> {
        let deadline = deadline.into();
        let mut out = Output::new(scratch::take_window(), None);
        let sent = encode::<A, C>(reply, &mut out).and_then(|outbound| {
            let mut outbound = outbound.unwrap_or_default();
            let message = Outgoing::new(out.bytes()).handles(outbound.take_handles());
            self.replier.reply(message, deadline).map_err(|failed| {
                outbound.give_back(failed.handles);
                SendError::Channel(failed.error)
            })
        });
        scratch::keep_window(out.into_window());
        sent
    }
}
