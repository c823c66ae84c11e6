//! The measuring loops: a value is encoded or decoded again and again.

use std::fmt::Display;
use std::hint::black_box;

use crate::loops::parts::report;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::Step;
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

/// Turns an error of a codec into a trouble.
pub(super) fn wrong(error: impl Display) -> Trouble {
    Trouble::new(format!("the value was not encoded or decoded: {error}"))
}

/// Measures encoding or decoding of `value`. `buffer` is what the encoder fills and the decoder reads.
pub(super) fn both<V, D: PartialEq<V>, B>(
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
