//! Postcard, with serde.

use postcard::{from_bytes, to_slice};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::values::{self, fields, with_fields};
use super::{Codec, Postcard, both, wrong};
use crate::shape::{Sample, Step};
use crate::trouble::Result;
use crate::work::{Report, Work};

macro_rules! serde_fields {
    ($($fields:tt)*) => {
        fields! {
            #[derive(PartialEq, Serialize, Deserialize)]
            Fields: $($fields)*
        }
    };
}

with_fields!(serde_fields);

/// A buffer, and the number of bytes in it.
type Buffer = (Vec<u8>, usize);

fn measured<V: Serialize + DeserializeOwned + PartialEq>(work: &Work, step: Step, value: &V) -> Result<Report> {
    let buffer: Buffer = (vec![0; 2 * work.size + 64], 0);
    let encode = |(room, len): &mut Buffer, value: &V| {
        *len = to_slice(value, room).map_err(wrong)?.len();
        Ok(())
    };
    both(work, step, value, buffer, encode, |(room, len)| from_bytes::<V>(&room[..*len]).map_err(wrong))
}

impl Codec for Postcard {
    fn run(work: &Work, step: Step, value: Sample) -> Result<Report> {
        let bytes = values::bytes(work.size);
        match (value, work.size) {
            (Sample::Bytes, _) => measured(work, step, &ByteBuf::from(bytes)),
            (Sample::Vectors, _) => {
                let vectors: Vec<ByteBuf> = values::vectors(work.size).into_iter().map(ByteBuf::from).collect();
                measured(work, step, &vectors)
            }
            (Sample::Fields, 256) => measured(work, step, &Fields::of(&bytes)),
            (Sample::Fields, _) => {
                measured(work, step, &std::array::from_fn::<_, 16, _>(|part| Fields::of(&bytes[part * 256..])))
            }
        }
    }
}
