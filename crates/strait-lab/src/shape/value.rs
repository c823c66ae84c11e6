//! The values that are encoded and decoded.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The measured step: encoding or decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The value is encoded, into memory that the encoder has already.
    Encode,
    /// The value is decoded, and owns its memory.
    Decode,
}

impl Step {
    /// Returns the name of the step on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Encode => "encode",
            Self::Decode => "decode",
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Encode => "encoding",
            Self::Decode => "decoding",
        }
    }
}

/// A kind of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Sample {
    /// A vector of bytes.
    Bytes,
    /// A struct with one field for each byte: 256, or 4,096 in 16 structs.
    Fields,
    /// A vector of vectors of 64 bytes each.
    Vectors,
}

impl Sample {
    /// All kinds.
    pub(crate) const ALL: [Self; 3] = [Self::Bytes, Self::Fields, Self::Vectors];

    /// Returns the name of the value on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Fields => "fields",
            Self::Vectors => "vectors",
        }
    }

    /// Returns whether there is a value of this kind with `size` bytes.
    pub(crate) fn has(self, size: usize) -> bool {
        match self {
            Self::Bytes | Self::Vectors => true,
            Self::Fields => matches!(size, 256 | 4096),
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Bytes => "a vector of bytes,",
            Self::Fields => "a struct of u8 fields,",
            Self::Vectors => "vectors of 64 B,",
        }
    }
}
