//! Encoding and decoding values in memory, without sending them.
//!
//! A [`Codec`] is measured like a mechanism, in a process of its own; there is no second process. Before the
//! measurement, a value is encoded, decoded, and compared with the original. An encoder reuses its memory, as a careful
//! sender does; a decoder makes a value with its own memory.

#[cfg(feature = "codecs-capnp")]
mod capnp;
#[cfg(feature = "formats")]
mod fidl;
#[cfg(feature = "formats")]
mod flat;
#[cfg(feature = "formats")]
mod measure;
#[cfg(feature = "formats")]
mod postcard;
#[cfg(feature = "codecs-prost")]
mod prost;
#[cfg(feature = "codecs-rkyv")]
mod rkyv;
#[cfg(feature = "formats")]
mod values;

#[cfg(not(feature = "formats"))]
use crate::shape::UNBUILT;
use crate::shape::{Sample, Shape, Step};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Side, Work};

#[cfg(feature = "codecs-capnp")]
pub(crate) use self::capnp::Capnp;
#[cfg(feature = "formats")]
use self::measure::{both, wrong};
#[cfg(feature = "codecs-prost")]
pub(crate) use self::prost::Prost;
#[cfg(feature = "codecs-rkyv")]
pub(crate) use self::rkyv::Rkyv;

/// The names of a way to encode values.
pub(crate) trait Named {
    /// The name on the command line and in results.
    const NAME: &'static str;
    /// The name in a table.
    const TITLE: &'static str;
}

/// A way to encode values.
pub(crate) trait Codec: Named {
    /// Measures a step with a value.
    fn run(work: &Work, step: Step, value: Sample) -> Result<Report>;
}

/// Defines codecs with their names. A program without the feature `formats` knows the names, to read results with these
/// formats.
macro_rules! codecs {
    ($($(#[doc = $doc:literal])* $codec:ident $name:literal $title:literal;)*) => {$(
        $(#[doc = $doc])*
        pub(crate) struct $codec;

        impl Named for $codec {
            const NAME: &'static str = $name;
            const TITLE: &'static str = $title;
        }

        #[cfg(not(feature = "formats"))]
        impl Codec for $codec {
            fn run(_work: &Work, _step: Step, _value: Sample) -> Result<Report> {
                Err(Trouble::new(UNBUILT))
            }
        }
    )*};
}

codecs! {
    /// FIDL with at most 16 parts, and no threshold, as Fuchsia has it.
    Fidl "fidl" "FIDL in parts";
    /// FIDL in one piece.
    FidlLinear "fidl-linear" "FIDL in one piece";
    /// No format: copies bytes.
    Flat "memcpy" "bare copies";
    /// The crate `postcard`; bytes by `serde_bytes`.
    Postcard "postcard" "Postcard";
}

/// Runs the only process of a work of the shape [`Shape::Coded`].
pub(crate) fn run<C: Codec>(work: &Work, side: Side) -> Result<Report> {
    work.placement.take(side == Side::First)?;
    match work.shape {
        Shape::Coded { step, value } => C::run(work, step, value),
        _ => Err(Trouble::new("this shape sends messages")),
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "formats")]
    use super::{Codec, Fidl, FidlLinear, Flat, Postcard, run};
    use crate::placement::Placement;
    use crate::shape::{Sample, Shape, Step};
    #[cfg(feature = "formats")]
    use crate::work::{Extent, Side};
    use crate::work::{Mechanism, Wait, Work};

    #[cfg(feature = "formats")]
    fn measure<C: Codec>() {
        for value in Sample::ALL {
            for size in [256, 4096] {
                for step in [Step::Encode, Step::Decode] {
                    let extent = Extent::Count { warm: 1, steady: 64 };
                    let work = Work::round_trip(Mechanism::FIDL, size, Wait::Spin, Placement::Free);
                    let work = Work { shape: Shape::Coded { step, value }, extent, ..work };
                    assert_eq!(work.unfit(), None);
                    let report = run::<C>(&work, Side::First).unwrap();
                    assert!(report.count >= 64 && report.times.p50 > 0.0, "{} {value:?} {size}", C::NAME);
                }
            }
        }
    }

    #[cfg(feature = "formats")]
    #[test]
    fn every_codec_gives_each_value_back() {
        measure::<Fidl>();
        measure::<FidlLinear>();
        measure::<Flat>();
        measure::<Postcard>();
        #[cfg(feature = "codecs-capnp")]
        measure::<super::Capnp>();
        #[cfg(feature = "codecs-prost")]
        measure::<super::Prost>();
        #[cfg(feature = "codecs-rkyv")]
        measure::<super::Rkyv>();
    }

    #[test]
    fn formats_send_no_messages_and_transports_encode_no_values() {
        let work = |mechanism, shape| Work { shape, ..Work::round_trip(mechanism, 256, Wait::Spin, Placement::Free) };
        let coded = Shape::Coded { step: Step::Encode, value: Sample::Bytes };
        assert!(work(Mechanism::FIDL, Shape::PingPong { reply: 256 }).unfit().is_some());
        assert!(work(Mechanism::STRAIT, coded).unfit().is_some());
        let fields = Shape::Coded { step: Step::Encode, value: Sample::Fields };
        let odd = Work { size: 100, ..work(Mechanism::FIDL, fields) };
        assert!(odd.unfit().is_some());
    }
}
