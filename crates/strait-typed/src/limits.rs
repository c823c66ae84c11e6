//! The limits of a message that no codec exceeds.

/// The greatest depth to which structs, enums, options and collections of a message may be nested.
pub(crate) const DEPTH: usize = 128;

/// The number of elements that a message may have beyond one for each of its bytes.
pub(crate) const SPARE: usize = 1024;
