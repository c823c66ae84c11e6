//! Typed channels for threads.

use std::fmt;
use std::marker::PhantomData;
use std::process::{Child, Command};

use strait::bindings::UnclaimedHandle;
use strait::meet::MeetError;
use strait::{Channel, CommandExt, Deadline, Listener, Message};

use crate::Postcard;
use crate::codec::{Codec, Decode, DecodeOwned, Encode};
use crate::core::{Core, decode};
use crate::error::{GivenError, RecvError, SendError};

/// An end of a channel that sends values of type `S` and receives values of type `R`. The other end, of type
/// `Typed<R, S>`, may be in another process.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use strait_typed::Typed;
///
/// #[derive(Serialize, Deserialize)]
/// enum Request {
///     Add(i64, i64),
/// }
///
/// let (client, server) = Typed::<Request, i64>::pair()?;
/// client.send(&Request::Add(2, 3))?;
/// let Request::Add(one, other) = server.recv()?;
/// server.send(&(one + other))?;
/// assert_eq!(client.recv()?, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Many threads may use one end at once.
///
/// # First messages
/// The first message of each end names the end's types and codec. The other end compares the types and the codec with
/// its own. If there is a difference, receiving fails with [`RecvError::Schema`].
///
/// # Cost
/// A value is encoded into memory that the thread reuses, and sent from there; a value of more than 64 KiB is encoded
/// in the memory where the peer reads it. In steady flow a value of up to 64 KiB allocates nothing, except the memory
/// that the decoded value itself owns.
///
/// The `Serialize` implementation of a value must not send over the channel over which the value is being sent.
pub struct Typed<S, R = S, C = Postcard> {
    channel: Channel,
    core: Core<S, R, C>,
}

impl<S, R, C> fmt::Debug for Typed<S, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed").field("channel", &self.channel).field("core", &self.core).finish()
    }
}

impl<S, R, C> From<Channel> for Typed<S, R, C> {
    fn from(channel: Channel) -> Self {
        Self::over(channel)
    }
}

impl<S, R, C> Typed<S, R, C> {
    /// Creates a typed channel with both ends in this process.
    ///
    /// # Errors
    /// The errors of [`Channel::pair`].
    pub fn pair() -> Result<(Self, Typed<R, S, C>), strait::Error> {
        let (one, other) = Channel::pair()?;
        Ok((Self::over(one), Typed::over(other)))
    }

    /// Makes a typed end of `channel`, over which nothing was sent or received yet. The process with the other end
    /// makes a `Typed<R, S, C>` of it.
    pub fn over(channel: Channel) -> Self {
        Self::resume(channel, false, false)
    }

    /// Makes a typed end of a channel; `greeted` and `met` say which first messages were sent and received.
    pub(crate) fn resume(channel: Channel, greeted: bool, met: bool) -> Self {
        Self { channel, core: Core::new(greeted, met) }
    }

    /// Returns whether this end has sent its first message, and whether the peer's first message was received.
    pub(crate) fn progress(&self) -> (bool, bool) {
        self.core.progress()
    }

    /// Splits the object into the channel and the other state.
    pub(crate) fn into_parts(self) -> (Channel, Core<S, R, C>) {
        (self.channel, self.core)
    }

    /// Makes a typed end of a channel and the other state of the end.
    pub(crate) fn from_parts(channel: Channel, core: Core<S, R, C>) -> Self {
        Self { channel, core }
    }

    /// Connects to the listener with this name; waits until the listener accepts or the deadline passes.
    ///
    /// # Errors
    /// The errors of [`strait::connect`].
    pub fn connect(name: &str, deadline: impl Into<Deadline>) -> Result<Self, MeetError> {
        strait::connect(name, deadline).map(Self::over)
    }

    /// Starts a program with a channel. The program takes its end with [`Typed::from_parent`].
    ///
    /// # Errors
    /// The errors of [`CommandExt::spawn_with_channel`].
    pub fn spawn(command: &mut Command) -> Result<(Child, Self), MeetError> {
        let (child, channel) = command.spawn_with_channel()?;
        Ok((child, Self::over(channel)))
    }

    /// Takes the channel to the parent process, which has started this program with [`Typed::spawn`].
    ///
    /// # Errors
    /// The errors of [`strait::from_parent`].
    pub fn from_parent() -> Result<Self, MeetError> {
        strait::from_parent().map(Self::over)
    }

    /// Returns the channel, to wait for it in a [`WaitSet`](strait::wait::WaitSet) or to ask for the peer. An end that
    /// has received nothing yet becomes readable with the peer's first message, which is no value. So a receive may
    /// still fail with *would block*.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns the channel; unreceived messages stay in the channel. To go on with typed messages, in this process or
    /// another one, use an [`End`](crate::End) instead: an `End` knows which first messages were exchanged.
    pub fn into_channel(self) -> Channel {
        self.channel
    }

    /// Reports the process at the other end as a bad peer: see [`Channel::report_bad`].
    pub fn report_bad(&self, reason: &'static str) -> strait::quota::Reported {
        self.channel.report_bad(reason)
    }
}

impl<S, R, C: Encode<S> + Codec<R>> Typed<S, R, C> {
    /// Sends a value; waits for room. The handles in the value move into the message.
    ///
    /// # Errors
    /// [`SendError`]. Nothing was sent, and the handles are in the value again.
    #[inline]
    pub fn send(&self, value: &S) -> Result<(), SendError> {
        self.core.send(&self.channel, value, Deadline::NEVER)
    }

    /// Sends a value if there is room now.
    ///
    /// # Errors
    /// As [`Typed::send`]; [`strait::Error::WouldBlock`] if there is no room.
    #[inline]
    pub fn try_send(&self, value: &S) -> Result<(), SendError> {
        self.core.send(&self.channel, value, Deadline::NOW)
    }

    /// Sends a value; waits for room until the deadline.
    ///
    /// # Errors
    /// As [`Typed::send`]; [`strait::Error::TimedOut`] if there was no room.
    #[inline]
    pub fn send_by(&self, value: &S, deadline: impl Into<Deadline>) -> Result<(), SendError> {
        self.core.send(&self.channel, value, deadline.into())
    }

    /// Gives a value away; waits for room until the deadline. A receiver in this process gets the value itself, without
    /// encoding. For a receiver in another process the value is encoded: by this call, or once the receiving end is
    /// sent to another process.
    ///
    /// # Errors
    /// The error contains the value with its handles. If the value cannot be encoded for another process,
    /// this call fails with [`SendError::Encode`], and the receiver gets a malformed message in place of the value.
    pub fn send_owned(&self, value: S, deadline: impl Into<Deadline>) -> Result<(), GivenError<S>>
    where
        S: Send + 'static,
    {
        self.core.send_owned(&self.channel, value, deadline.into())
    }
}

impl<S, R: Send + 'static, C: Codec<S> + DecodeOwned<R>> Typed<S, R, C> {
    /// Receives the next value; waits for the value without a limit.
    ///
    /// # Errors
    /// [`RecvError`]. After [`RecvError::Malformed`] the message is gone, its handles are closed, and the channel can
    /// be used further.
    #[inline]
    pub fn recv(&self) -> Result<R, RecvError> {
        self.core.recv(&self.channel, Deadline::NEVER)
    }

    /// Receives the next value if one is there now. Does not block.
    ///
    /// # Errors
    /// As [`Typed::recv`]; [`strait::Error::WouldBlock`] if there is no message.
    #[inline]
    pub fn try_recv(&self) -> Result<R, RecvError> {
        self.core.recv(&self.channel, Deadline::NOW)
    }

    /// Receives the next value; waits for the value until the deadline.
    ///
    /// # Errors
    /// As [`Typed::recv`]; [`strait::Error::TimedOut`] if no message came.
    #[inline]
    pub fn recv_by(&self, deadline: impl Into<Deadline>) -> Result<R, RecvError> {
        self.core.recv(&self.channel, deadline.into())
    }
}

impl<S, R, C: Codec<S> + Codec<R>> Typed<S, R, C> {
    /// Receives the next message without decoding it, into `encoded`, whose old message is dropped; waits for the
    /// message until the deadline. [`Encoded::get`] then decodes a value that may borrow from the message.
    ///
    /// ```
    /// use std::time::Duration;
    /// use serde::{Deserialize, Serialize};
    /// use strait_typed::{Encoded, Typed};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Line<'a> {
    ///     number: u32,
    ///     text: &'a str,
    /// }
    ///
    /// let (near, far) = Typed::<Line<'_>, ()>::pair()?;
    /// near.send(&Line { number: 1, text: "not copied once more" })?;
    /// let mut encoded = Encoded::new();
    /// far.recv_encoded(&mut encoded, Duration::from_secs(10))?;
    /// let line: Line<'_> = encoded.get()?;
    /// assert_eq!((line.number, line.text), (1, "not copied once more"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Typed::recv`], but for [`RecvError::Malformed`].
    pub fn recv_encoded(&self, encoded: &mut Encoded<C>, deadline: impl Into<Deadline>) -> Result<(), RecvError> {
        encoded.handles.clear();
        encoded.handles = self.core.recv_encoded(&self.channel, &mut encoded.message, deadline.into())?;
        Ok(())
    }
}

/// A received message before decoding; the memory is reused for the next message. Dropping the object closes the
/// handles of the message without blocking.
pub struct Encoded<C = Postcard> {
    message: Message,
    handles: Vec<UnclaimedHandle>,
    codec: PhantomData<fn() -> C>,
}

impl<C> Default for Encoded<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> fmt::Debug for Encoded<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded").field("message", &self.message).field("handles", &self.handles).finish()
    }
}

impl<C> Encoded<C> {
    /// Creates an empty message for [`Typed::recv_encoded`].
    pub fn new() -> Self {
        Self { message: Message::new(), handles: Vec::new(), codec: PhantomData }
    }

    /// Returns the bytes of the message.
    pub fn bytes(&self) -> &[u8] {
        self.message.bytes()
    }

    /// Returns the message without the handles, for [`Message::sender`] and [`Message::report_bad`].
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Decodes the message. The value may borrow from the message, and gets the handles; a second call finds none.
    ///
    /// # Errors
    /// [`RecvError::Malformed`]; the handles were closed.
    pub fn get<'m, T>(&'m mut self) -> Result<T, RecvError>
    where
        C: Decode<'m, T>,
    {
        let handles = std::mem::take(&mut self.handles);
        let bytes = self.message.bytes();
        decode::<T, C>(bytes, handles).map_err(RecvError::Malformed)
    }
}

/// A listener whose clients send values of type `R` and receive values of type `S`.
///
/// ```
/// use std::time::Duration;
/// use strait_typed::{Typed, TypedListener};
///
/// let name = format!("typed-doc-{}", std::process::id());
/// let listener = TypedListener::<u64, String>::bind(&name)?;
/// let client = std::thread::spawn(move || {
///     let client = Typed::<String, u64>::connect(&name, Duration::from_secs(10)).expect("a listener");
///     client.send(&"hello".to_owned()).expect("room");
///     client.recv().expect("a length")
/// });
/// let server = listener.accept(Duration::from_secs(10))?;
/// let text = server.recv()?;
/// server.send(&(text.len() as u64))?;
/// assert_eq!(client.join().expect("a client"), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TypedListener<S, R = S, C = Postcard> {
    listener: Listener,
    types: PhantomData<fn(S) -> (R, C)>,
}

impl<S, R, C> fmt::Debug for TypedListener<S, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedListener").field(&self.listener).finish()
    }
}

impl<S, R, C> TypedListener<S, R, C> {
    /// Creates a listener with the given name and default options.
    ///
    /// # Errors
    /// The errors of [`Listener::bind`].
    pub fn bind(name: &str) -> Result<Self, MeetError> {
        Listener::bind(name).map(Self::over)
    }

    /// Makes a typed listener of `listener`, for example of a listener with options.
    pub fn over(listener: Listener) -> Self {
        Self { listener, types: PhantomData }
    }

    /// Accepts the next client; waits for a client until the deadline.
    ///
    /// # Errors
    /// The errors of [`Listener::accept`].
    pub fn accept(&self, deadline: impl Into<Deadline>) -> Result<Typed<S, R, C>, MeetError> {
        self.listener.accept(deadline).map(Typed::over)
    }

    /// Returns the listener, to invite a process or to wait for clients.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }
}
