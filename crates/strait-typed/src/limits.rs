//! Limits of a message, for every codec.

/// The greatest depth to which structs, enums, options and collections of a message may be nested.
pub(crate) const DEPTH: usize = 128;

/// The number of elements of a message that is allowed in addition to one element for each byte.
pub(crate) const SPARE: usize = 1024;

/// The number of first messages that one receive takes without a look at its deadline. An honest peer sends one on a
/// channel, and on an end of calls at most one for each call that waits for an answer.
pub(crate) const FIRST_MESSAGES: usize = 1024;
