//! The errors of encoding and decoding.

use std::fmt;

/// The reason of an error. Each code has its name in the conformance suite of the format ([`Code::name`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// A vector, or the number of fields of a table, is longer than its type allows.
    CountExceedsLimit,
    /// An envelope of unknown data claims more bytes than the message has.
    EnvelopeBytesExceedMessageLength,
    /// An envelope of unknown data claims more handles than the message has.
    EnvelopeHandlesExceedMessageLength,
    /// Objects are nested more than [`MAX_DEPTH`](crate::MAX_DEPTH) deep.
    ExceededMaxOutOfLineDepth,
    /// A union of an unknown field cannot be encoded, since the field was dropped when the union was decoded.
    FlexibleUnionUnknownField,
    /// A handle does not have the kind given by its type.
    IncorrectHandleType,
    /// A bool is neither 0 nor 1.
    InvalidBoolean,
    /// The byte of a struct without fields is not 0.
    InvalidEmptyStruct,
    /// The word of a handle says neither *present* nor *absent*.
    InvalidHandlePresenceIndicator,
    /// A message header is not of this format, or requires an unsupported feature.
    InvalidHeader,
    /// A value of at most four bytes is outside its envelope, or a larger value is inside.
    InvalidInlineBitInEnvelope,
    /// The flags of an envelope have unknown bits.
    InvalidInlineMarkerInEnvelope,
    /// An envelope does not have as many bytes as it says, or the number is no multiple of eight.
    InvalidNumBytesInEnvelope,
    /// An envelope does not have as many handles as it says.
    InvalidNumHandlesInEnvelope,
    /// A byte between or behind values is not 0.
    InvalidPaddingByte,
    /// The word of a vector, string, table or optional struct says neither *present* nor *absent*.
    InvalidPresenceIndicator,
    /// An absent string has bytes.
    NonEmptyStringWithNullBody,
    /// An absent vector has elements.
    NonEmptyVectorWithNullBody,
    /// A value that is not optional is absent, or a handle was sent already.
    NonNullableTypeWithNullValue,
    /// Bits of a strict type are unknown.
    StrictBitsUnknownBit,
    /// The value of a strict enum is unknown.
    StrictEnumUnknownValue,
    /// The field of a strict union is unknown.
    StrictUnionUnknownField,
    /// The length of a string needs more than 32 bits.
    StringCountExceeds32BitLimit,
    /// A string is not UTF-8.
    StringNotUtf8,
    /// A string is longer than the type allows.
    StringTooLong,
    /// The number of fields of a table needs more than 32 bits.
    TableCountExceeds32BitLimit,
    /// The message ends before an object that a pointer says is there.
    TooFewBytes,
    /// The message ends inside the first object.
    TooFewBytesInPrimaryObject,
    /// The message has fewer handles than the values need.
    TooFewHandles,
    /// The message has bytes behind the last object.
    TooManyBytesInMessage,
    /// The message has more handles than the values need.
    TooManyHandlesInMessage,
    /// A union has no field, or ordinal and envelope disagree about the presence of the field.
    UnionFieldNotSet,
    /// The length of a vector needs more than 32 bits.
    VectorCountExceeds32BitLimit,
}

impl Code {
    /// Returns the name of the code in the conformance suite of the format, for example `STRING_TOO_LONG`.
    pub const fn name(self) -> &'static str {
        self.texts().0
    }

    /// Returns the name, and a sentence without the final full stop.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::CountExceedsLimit => ("COUNT_EXCEEDS_LIMIT", "there are more elements than the type allows"),
            Self::EnvelopeBytesExceedMessageLength => {
                ("ENVELOPE_BYTES_EXCEED_MESSAGE_LENGTH", "an envelope says that it has more bytes than the message")
            }
            Self::EnvelopeHandlesExceedMessageLength => {
                ("ENVELOPE_HANDLES_EXCEED_MESSAGE_LENGTH", "an envelope says that it has more handles than the message")
            }
            Self::ExceededMaxOutOfLineDepth => {
                ("EXCEEDED_MAX_OUT_OF_LINE_DEPTH", "objects are nested more than 32 deep")
            }
            Self::FlexibleUnionUnknownField => (
                "FLEXIBLE_UNION_UNKNOWN_FIELD",
                "an unknown field was dropped when it was decoded, and cannot be encoded",
            ),
            Self::IncorrectHandleType => ("INCORRECT_HANDLE_TYPE", "the handle is of another kind than the type says"),
            Self::InvalidBoolean => ("INVALID_BOOLEAN", "a bool is neither 0 nor 1"),
            Self::InvalidEmptyStruct => ("INVALID_EMPTY_STRUCT", "the byte of a struct without fields is not 0"),
            Self::InvalidHandlePresenceIndicator => {
                ("INVALID_HANDLE_PRESENCE_INDICATOR", "the word of a handle is neither all zeros nor all ones")
            }
            Self::InvalidHeader => ("INVALID_HEADER", "this is no message header of wire format version 2"),
            Self::InvalidInlineBitInEnvelope => (
                "INVALID_INLINE_BIT_IN_ENVELOPE",
                "a value of at most four bytes must be inside its envelope, and a larger one outside",
            ),
            Self::InvalidInlineMarkerInEnvelope => {
                ("INVALID_INLINE_MARKER_IN_ENVELOPE", "the flags of an envelope have unknown bits")
            }
            Self::InvalidNumBytesInEnvelope => {
                ("INVALID_NUM_BYTES_IN_ENVELOPE", "an envelope has another number of bytes than it says")
            }
            Self::InvalidNumHandlesInEnvelope => {
                ("INVALID_NUM_HANDLES_IN_ENVELOPE", "an envelope has another number of handles than it says")
            }
            Self::InvalidPaddingByte => ("INVALID_PADDING_BYTE", "a byte of padding is not 0"),
            Self::InvalidPresenceIndicator => {
                ("INVALID_PRESENCE_INDICATOR", "a presence word is neither all zeros nor all ones")
            }
            Self::NonEmptyStringWithNullBody => ("NON_EMPTY_STRING_WITH_NULL_BODY", "an absent string has bytes"),
            Self::NonEmptyVectorWithNullBody => ("NON_EMPTY_VECTOR_WITH_NULL_BODY", "an absent vector has elements"),
            Self::NonNullableTypeWithNullValue => (
                "NON_NULLABLE_TYPE_WITH_NULL_VALUE",
                "a value that is not optional is absent, as is a handle that was sent",
            ),
            Self::StrictBitsUnknownBit => ("STRICT_BITS_UNKNOWN_BIT", "strict bits have an unknown bit"),
            Self::StrictEnumUnknownValue => ("STRICT_ENUM_UNKNOWN_VALUE", "a strict enum has an unknown value"),
            Self::StrictUnionUnknownField => ("STRICT_UNION_UNKNOWN_FIELD", "a strict union has an unknown field"),
            Self::StringCountExceeds32BitLimit => {
                ("STRING_COUNT_EXCEEDS_32_BIT_LIMIT", "the length of a string needs more than 32 bits")
            }
            Self::StringNotUtf8 => ("STRING_NOT_UTF8", "a string is not UTF-8"),
            Self::StringTooLong => ("STRING_TOO_LONG", "a string is longer than the type allows"),
            Self::TableCountExceeds32BitLimit => {
                ("TABLE_COUNT_EXCEEDS_32_BIT_LIMIT", "the number of fields of a table needs more than 32 bits")
            }
            Self::TooFewBytes => ("TOO_FEW_BYTES", "the message ends before an object does"),
            Self::TooFewBytesInPrimaryObject => {
                ("TOO_FEW_BYTES_IN_PRIMARY_OBJECT", "the message is shorter than its first object")
            }
            Self::TooFewHandles => ("TOO_FEW_HANDLES", "the message has fewer handles than its values"),
            Self::TooManyBytesInMessage => {
                ("TOO_MANY_BYTES_IN_MESSAGE", "the message has bytes behind its last object")
            }
            Self::TooManyHandlesInMessage => {
                ("TOO_MANY_HANDLES_IN_MESSAGE", "the message has more handles than its values")
            }
            Self::UnionFieldNotSet => ("UNION_FIELD_NOT_SET", "a union has no field"),
            Self::VectorCountExceeds32BitLimit => {
                ("VECTOR_COUNT_EXCEEDS_32_BIT_LIMIT", "the length of a vector needs more than 32 bits")
            }
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().1)
    }
}

/// A step from a value to a part of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Field(&'static str),
    Index(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    code: Code,
    at: usize,
    /// The steps, the last one first.
    path: Vec<Step>,
}

/// The reason why a value was not encoded, or a message not decoded, with the byte of the message and the part of the
/// value.
///
/// ```
/// use strait_fidl::{Code, Fidl, decode};
///
/// #[derive(Debug, Fidl)]
/// struct Names {
///     #[fidl(max(_, 4))]
///     names: Vec<String>,
/// }
///
/// let bytes = strait_fidl::to_vec(&Names { names: vec!["Ada".into(), "Grace".into()] });
/// assert_eq!(bytes.unwrap_err().to_string(), "a string is longer than the type allows: names[1], byte 32 (STRING_TOO_LONG)");
///
/// let error = decode::<Names>(&[0; 16], []).unwrap_err();
/// assert_eq!((error.code(), error.at(), error.path().as_str()), (Code::NonNullableTypeWithNullValue, 8, "names"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Fault>);

impl Error {
    /// Creates an error of the object at this byte of the message.
    #[cold]
    pub(crate) fn new(code: Code, at: usize) -> Self {
        Self(Box::new(Fault { code, at, path: Vec::new() }))
    }

    /// Returns the reason.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Returns the offset in bytes, in the message, of what is wrong. For an error of an encoder: of the object that
    /// would stand there.
    pub fn at(&self) -> usize {
        self.0.at
    }

    /// Returns the part of the value that is wrong, for example `names[1].first`; empty for the value as a whole.
    pub fn path(&self) -> String {
        let mut text = String::new();
        for step in self.0.path.iter().rev() {
            match step {
                Step::Field(name) if text.is_empty() => text.push_str(name),
                Step::Field(name) => text.extend([".", name]),
                Step::Index(index) => text.extend(["[", &index.to_string(), "]"]),
            }
        }
        text
    }

    /// Adds the name of the field in which the error is.
    #[cold]
    pub(crate) fn in_field(mut self, name: &'static str) -> Self {
        self.0.path.push(Step::Field(name));
        self
    }

    /// Adds the index of the element in which the error is.
    #[cold]
    pub(crate) fn in_element(mut self, index: usize) -> Self {
        self.0.path.push(Step::Index(index));
        self
    }

    /// Adds to the offset: the value is not at the beginning of its message.
    #[cold]
    pub(crate) fn behind(mut self, bytes: usize) -> Self {
        self.0.at += bytes;
        self
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("code", &self.0.code).field("at", &self.0.at).field("path", &self.path()).finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, name) = (self.path(), self.0.code.name());
        let path = if path.is_empty() { "the value".to_owned() } else { path };
        write!(f, "{}: {path}, byte {} ({name})", self.0.code, self.0.at)
    }
}

impl std::error::Error for Error {}
