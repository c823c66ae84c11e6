//! Protocol buffers, by the crate `prost` 0.14. A field of `u8` is a `uint32`, which the format has instead.

use prost::Message;

use super::values::{self, with_fields};
use super::{Codec, Named, both, wrong};
use crate::shape::{Sample, Step};
use crate::trouble::Result;
use crate::work::{Report, Work};

/// The crate `prost`.
pub(crate) struct Prost;

#[derive(Clone, PartialEq, Message)]
struct Bytes {
    #[prost(bytes = "vec", tag = "1")]
    bytes: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Vectors {
    #[prost(bytes = "vec", repeated, tag = "1")]
    vectors: Vec<Vec<u8>>,
}

macro_rules! prost_fields {
    ($($field:ident $number:literal,)*) => {
        #[derive(Clone, PartialEq, Message)]
        struct Fields {
            $(#[prost(uint32, tag = $number)] $field: u32),*
        }

        impl Fields {
            fn of(bytes: &[u8]) -> Self {
                Self { $($field: bytes[$number - 1].into()),* }
            }
        }
    };
}

with_fields!(prost_fields);

#[derive(Clone, PartialEq, Message)]
struct ManyFields {
    #[prost(message, repeated, tag = "1")]
    fields: Vec<Fields>,
}

fn measured<V: Message + PartialEq + Default>(work: &Work, step: Step, value: &V) -> Result<Report> {
    let encode = |buffer: &mut Vec<u8>, value: &V| {
        buffer.clear();
        value.encode(buffer).map_err(wrong)
    };
    both(work, step, value, Vec::new(), encode, |bytes| V::decode(&bytes[..]).map_err(wrong))
}

impl Named for Prost {
    const NAME: &'static str = "prost";
    const TITLE: &'static str = "protobuf (prost)";
}

impl Codec for Prost {
    fn run(work: &Work, step: Step, value: Sample) -> Result<Report> {
        let bytes = values::bytes(work.size);
        match (value, work.size) {
            (Sample::Bytes, _) => measured(work, step, &Bytes { bytes }),
            (Sample::Vectors, _) => measured(work, step, &Vectors { vectors: values::vectors(work.size) }),
            (Sample::Fields, 256) => measured(work, step, &Fields::of(&bytes)),
            (Sample::Fields, _) => {
                measured(work, step, &ManyFields { fields: bytes.chunks(256).map(Fields::of).collect() })
            }
        }
    }
}
