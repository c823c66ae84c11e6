//! rkyv 0.8: the bytes come from another process, so they are checked before becoming a value.

use rkyv::api::high::to_bytes_in;
use rkyv::rancor::Error;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize, from_bytes};

use super::values::{self, fields, with_fields};
use super::{Codec, Named, both, wrong};
use crate::shape::{Sample, Step};
use crate::trouble::Result;
use crate::work::{Report, Work};

/// The crate `rkyv`.
pub(crate) struct Rkyv;

macro_rules! rkyv_fields {
    ($($fields:tt)*) => {
        fields! {
            #[derive(PartialEq, Archive, Serialize, Deserialize)]
            Fields: $($fields)*
        }
    };
}

with_fields!(rkyv_fields);

macro_rules! measured {
    ($work:expr, $step:expr, $ty:ty, $value:expr) => {{
        let value: $ty = $value;
        let encode = |buffer: &mut AlignedVec, value: &$ty| {
            let mut room = std::mem::take(buffer);
            room.clear();
            *buffer = to_bytes_in::<_, Error>(value, room).map_err(wrong)?;
            Ok(())
        };
        let decode = |bytes: &AlignedVec| from_bytes::<$ty, Error>(bytes).map_err(wrong);
        both($work, $step, &value, AlignedVec::new(), encode, decode)
    }};
}

impl Named for Rkyv {
    const NAME: &'static str = "rkyv";
    const TITLE: &'static str = "rkyv";
}

impl Codec for Rkyv {
    fn run(work: &Work, step: Step, value: Sample) -> Result<Report> {
        let bytes = values::bytes(work.size);
        match (value, work.size) {
            (Sample::Bytes, _) => measured!(work, step, Vec<u8>, bytes),
            (Sample::Vectors, _) => measured!(work, step, Vec<Vec<u8>>, values::vectors(work.size)),
            (Sample::Fields, 256) => measured!(work, step, Fields, Fields::of(&bytes)),
            (Sample::Fields, _) => {
                measured!(work, step, [Fields; 16], std::array::from_fn(|part| Fields::of(&bytes[part * 256..])))
            }
        }
    }
}
