//! Encoding and decoding values in memory, without sending them.
//!
//! A [`Codec`] is measured like a mechanism, in a process of its own; there is no second process. Before the
//! measurement, a value is encoded, decoded, and compared with the original. An encoder reuses its memory, as a
//! careful sender does; a decoder makes a value that owns its memory.

#[cfg(feature = "codecs-capnp")]
mod capnp;
mod fidl;
mod flat;
mod postcard;
#[cfg(feature = "codecs-prost")]
mod prost;
#[cfg(feature = "codecs-rkyv")]
mod rkyv;
mod values;

use std::fmt::Display;
use std::hint::black_box;

use super::parts::report;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::{Sample, Shape, Step};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Side, Work};

#[cfg(feature = "codecs-capnp")]
pub(crate) use self::capnp::Capnp;
pub(crate) use self::fidl::{Fidl, FidlLinear};
pub(crate) use self::flat::Flat;
pub(crate) use self::postcard::Postcard;
#[cfg(feature = "codecs-prost")]
pub(crate) use self::prost::Prost;
#[cfg(feature = "codecs-rkyv")]
pub(crate) use self::rkyv::Rkyv;

/// A way to encode values.
pub(crate) trait Codec {
    /// The name on the command line and in results.
    const NAME: &'static str;
    /// The name in a table.
    const TITLE: &'static str;

    /// Measures a step with a value.
    fn run(work: &Work, step: Step, value: Sample) -> Result<Report>;
}

/// Runs the only process of a work of the shape [`Shape::Coded`].
pub(crate) fn run<C: Codec>(work: &Work, side: Side) -> Result<Report> {
    work.placement.take(side == Side::First)?;
    match work.shape {
        Shape::Coded { step, value } => C::run(work, step, value),
        _ => Err(Trouble::new("this shape sends messages")),
    }
}

/// Turns an error of a codec into a trouble.
fn wrong(error: impl Display) -> Trouble {
    Trouble::new(format!("the value was not encoded or decoded: {error}"))
}

/// Measures encoding or decoding of `value`. `buffer` is what the encoder fills and the decoder reads.
fn both<V, D: PartialEq<V>, B>(
    work: &Work,
    step: Step,
    value: &V,
    mut buffer: B,
    encode: impl Fn(&mut B, &V) -> Result<()>,
    decode: impl Fn(&B) -> Result<D>,
) -> Result<Report> {
    encode(&mut buffer, value)?;
    if decode(&buffer)? != *value {
        return Err(Trouble::new("the decoded value is another one"));
    }
    match step {
        Step::Encode => timed(work, || encode(&mut buffer, black_box(value))),
        Step::Decode => timed(work, || decode(black_box(&buffer)).map(|value| _ = black_box(value))),
    }
}

/// Calls `once` again and again. The clock is read after each stride of the work.
fn timed(work: &Work, mut once: impl FnMut() -> Result<()>) -> Result<Report> {
    let stride = u64::from(work.stride);
    let mut samples = Samples::new();
    let begin = clock::now();
    once()?;
    let first = clock::now() - begin;
    let mut done = 0;
    while !work.extent.is_warm(done, clock::now() - begin) {
        (0..stride).try_for_each(|_| once())?;
        done += stride;
    }
    let gauge = Gauge::start()?;
    let begin = clock::now();
    let (mut then, mut count) = (begin, 0);
    while !work.extent.is_over(count, then - begin) {
        (0..stride).try_for_each(|_| once())?;
        let now = clock::now();
        samples.record(now - then, stride);
        then = now;
        count += stride;
    }
    Ok(Report { first, ..report(gauge.spent()?, count, then - begin, &samples) })
}

#[cfg(test)]
mod tests {
    use super::{Codec, Fidl, FidlLinear, Flat, Postcard, run};
    use crate::placement::Placement;
    use crate::shape::{Sample, Shape, Step};
    use crate::work::{Extent, Mechanism, Side, Wait, Work};

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
