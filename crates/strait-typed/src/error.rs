//! The errors of typed channels.

use std::fmt;

use crate::codec::Malformed;

/// The reason why a value was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The value cannot be encoded; the text says why. Nothing was sent, and the handles are in the value again.
    Encode(String),
    /// The two ends have different types or codecs.
    Schema(Box<SchemaMismatch>),
    /// The channel did not take the message. The handles are in the value again.
    Channel(strait::Error),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encode(what) => write!(f, "the value cannot be encoded: {what}"),
            Self::Schema(mismatch) => mismatch.fmt(f),
            Self::Channel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Encode(_) => None,
            Self::Schema(mismatch) => Some(mismatch),
            Self::Channel(error) => Some(error),
        }
    }
}

impl From<strait::Error> for SendError {
    fn from(error: strait::Error) -> Self {
        Self::Channel(error)
    }
}

/// The reason why no value was received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecvError {
    /// A received message is no value of the expected type. Its handles were closed, and the message is gone. The
    /// channel stays usable; [`Typed::report_bad`](crate::Typed::report_bad) ends it.
    Malformed(Malformed),
    /// The two ends have different types or codecs. The channel cannot be used as a typed channel; drop the end.
    Schema(Box<SchemaMismatch>),
    /// The first message of the peer is not that of a typed channel. The message is gone.
    Untyped,
    /// The channel has no message.
    Channel(strait::Error),
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => write!(f, "the message is not of the expected type: {malformed}"),
            Self::Schema(mismatch) => mismatch.fmt(f),
            Self::Untyped => f.write_str(
                "the peer's first message is not that of a typed channel: make a typed channel of the other end too",
            ),
            Self::Channel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RecvError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Malformed(malformed) => Some(malformed),
            Self::Schema(mismatch) => Some(mismatch),
            Self::Untyped => None,
            Self::Channel(error) => Some(error),
        }
    }
}

impl From<strait::Error> for RecvError {
    fn from(error: strait::Error) -> Self {
        Self::Channel(error)
    }
}

/// The reason for closing an end after it found that the types or codecs of the two ends differ. The other end gets the
/// reason from [`close_reason`](strait::Channel::close_reason). A program that only sends needs this call: it receives
/// no message that shows the difference, only the error *peer closed*.
///
/// ```
/// use strait::Channel;
/// use strait_typed::codec::{Json, MsgPack};
/// use strait_typed::{RecvError, TYPES_DIFFER, Typed};
///
/// let (one, other) = Channel::pair()?;
/// let (near, far) = (Typed::<u32, (), Json>::over(one), Typed::<(), u32, MsgPack>::over(other));
/// near.send(&1)?;
/// let Err(RecvError::Schema(mismatch)) = far.recv() else { panic!("the codecs differ") };
/// assert!(mismatch.to_string().starts_with("this end uses the codec MsgPack and the peer the codec Json"));
/// drop(far);
///
/// assert!(near.send(&2).is_err()); // From now on nothing is sent into the void.
/// let channel = near.into_channel();
/// while channel.recv().is_ok() {}
/// assert_eq!(channel.close_reason(), Some(TYPES_DIFFER));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const TYPES_DIFFER: u32 = u32::from_be_bytes(*b"type");

/// The two ends of a channel have different types or codecs. Each end finds this out by the first message of the other.
///
/// After the mismatch each end refuses to send and to receive. The channel stays open until an end is dropped; the drop
/// closes the channel with the reason [`TYPES_DIFFER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaMismatch {
    /// The difference: a property on which both ends must agree.
    pub differs: Differs,
    /// This end's name of the type or codec, with the key of the shape.
    pub ours: String,
    /// The other end's name of the type or codec, with the key of its shape.
    pub theirs: String,
}

/// A thing that both ends of a typed channel must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Differs {
    /// The codec.
    Codec,
    /// The type of the sent values of this end.
    Sent,
    /// The type of the received values of this end.
    Received,
}

impl fmt::Display for SchemaMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ours, theirs) = (&self.ours, &self.theirs);
        match self.differs {
            Differs::Codec => {
                write!(f, "this end uses the codec {ours} and the peer the codec {theirs}: use one codec at both ends")
            }
            Differs::Sent => write!(
                f,
                "this end sends {ours} and the peer receives {theirs}: build both programs from one definition"
            ),
            Differs::Received => write!(
                f,
                "this end receives {ours} and the peer sends {theirs}: build both programs from one definition"
            ),
        }
    }
}

impl std::error::Error for SchemaMismatch {}

/// The error of a value that was given and not sent.
pub struct GivenError<S> {
    /// The reason why the value was not sent.
    pub error: SendError,
    /// The value, with its handles. `None` if a process that breaks the protocol has made another message take the
    /// value's place.
    pub value: Option<S>,
}

impl<S> fmt::Debug for GivenError<S> {
    /// Prints the error, and whether the value is there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_value = self.value.is_some();
        f.debug_struct("GivenError").field("error", &self.error).field("has_value", &has_value).finish()
    }
}

impl<S> fmt::Display for GivenError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<S> std::error::Error for GivenError<S> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<S> From<GivenError<S>> for SendError {
    /// Returns the reason why the value was not sent, and drops the value.
    fn from(failed: GivenError<S>) -> Self {
        failed.error
    }
}
