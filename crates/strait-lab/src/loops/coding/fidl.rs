//! FIDL, by the crate `strait-fidl`: with parts inside the value, and with everything copied into one piece.

use std::hint::black_box;

use strait_fidl::{Decode, Encode, Encoder, Gather, decode, to_vec};

use super::values::{self, fields, with_fields};
use super::{Codec, Fidl, FidlLinear, both, wrong};
use crate::shape::{Sample, Step};
use crate::trouble::Result;
use crate::work::{Report, Work};

#[derive(PartialEq, strait_fidl::Fidl)]
struct Bytes {
    bytes: Vec<u8>,
}

#[derive(PartialEq, strait_fidl::Fidl)]
struct Vectors {
    vectors: Vec<Vec<u8>>,
}

macro_rules! fidl_fields {
    ($($fields:tt)*) => {
        fields! {
            #[derive(PartialEq, strait_fidl::Fidl)]
            Fields: $($fields)*
        }
    };
}

with_fields!(fidl_fields);

/// A struct of 4,096 `u8` fields, in structs of 256.
#[derive(PartialEq, strait_fidl::Fidl)]
struct ManyFields {
    fields: [Fields; 16],
}

fn measured<V>(work: &Work, step: Step, value: &V, gather: Gather) -> Result<Report>
where
    V: Encode + PartialEq + for<'m> Decode<'m>,
{
    let buffer = (Encoder::gathering(gather), to_vec(value).map_err(wrong)?);
    let encode = |(encoder, _): &mut (Encoder, Vec<u8>), value: &V| {
        encoder.encode(value).map(|encoded| _ = black_box(encoded.parts())).map_err(wrong)
    };
    both(work, step, value, buffer, encode, |(_, bytes)| decode::<V>(bytes, []).map_err(wrong))
}

fn run(work: &Work, step: Step, value: Sample, gather: Gather) -> Result<Report> {
    let bytes = values::bytes(work.size);
    match (value, work.size) {
        (Sample::Bytes, _) => measured(work, step, &Bytes { bytes }, gather),
        (Sample::Vectors, _) => measured(work, step, &Vectors { vectors: values::vectors(work.size) }, gather),
        (Sample::Fields, 256) => measured(work, step, &Fields::of(&bytes), gather),
        (Sample::Fields, _) => {
            let fields = std::array::from_fn(|part| Fields::of(&bytes[part * 256..]));
            measured(work, step, &ManyFields { fields }, gather)
        }
    }
}

impl Codec for Fidl {
    fn run(work: &Work, step: Step, value: Sample) -> Result<Report> {
        run(work, step, value, Gather::FUCHSIA)
    }
}

impl Codec for FidlLinear {
    fn run(work: &Work, step: Step, value: Sample) -> Result<Report> {
        run(work, step, value, Gather::LINEAR)
    }
}
