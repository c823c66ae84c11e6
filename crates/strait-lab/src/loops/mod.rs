//! Shapes: the measuring loops of the first and the second process, written once for all mechanisms.
//!
//! A run has a warm-up, excluded from every figure, and a measured part. The first process announces the measured
//! part and the end by messages with special numbers, so that both sides count equal messages. Every message carries
//! its number. The receiver copies a message out whole before it checks the number. A lost, doubled, torn or
//! misplaced message ends the run: see `payload`.
//!
//! To add a shape, add it to [`Shape`], write its two loops in a module, and call them in `first` and `second`.

pub(crate) mod coding;
pub(crate) mod connect;
mod descriptors;
mod fan_out;
#[cfg(feature = "formats")]
mod fidl;
pub(crate) mod hop;
mod idle;
mod in_place;
mod mix;
pub(crate) mod objects;
mod open_loop;
mod out_of_line;
mod parts;
mod ping_pong;
mod producers;
mod stream;
mod vectored;
mod wake;

use crate::mechanism::End;
#[cfg(not(feature = "formats"))]
use crate::shape::UNBUILT;
use crate::shape::{SMALLEST, Shape};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

pub(crate) use self::parts::Share;

/// Runs the loop of the first process. `peer` is the process id of the second process.
pub(crate) fn first<E: End>(end: &mut E, work: &Work, peer: u32) -> Result<Report> {
    match work.shape {
        Shape::PingPong { reply } => ping_pong::first(end, work, reply),
        Shape::Stream { batch } => stream::first(end, work, batch),
        Shape::OpenLoop { load } => open_loop::first(end, work, open_loop::Load::Share(load)),
        Shape::Paced { rate } => open_loop::first(end, work, open_loop::Load::Rate(rate)),
        Shape::Mix { stream } => mix::first(end, work, stream),
        Shape::Hop { direct } => hop::first(end, work, direct),
        Shape::Descriptors { count } => descriptors::first(end, work, count.into()),
        Shape::OutOfLine { cold, touched } => out_of_line::first(end, work, cold, touched),
        Shape::InPlace => in_place::first(end, work),
        Shape::Vectored { parts, linear } => vectored::first(end, work, parts.into(), linear),
        #[cfg(feature = "formats")]
        Shape::Fidl { linear } => fidl::first(end, work, linear),
        #[cfg(not(feature = "formats"))]
        Shape::Fidl { .. } => Err(Trouble::new(UNBUILT)),
        Shape::Wake { after } => wake::first(end, work, after),
        Shape::Idle => idle::first(end, work, peer),
        Shape::Producers { .. }
        | Shape::FanOut { .. }
        | Shape::Connect
        | Shape::Objects { .. }
        | Shape::Coded { .. } => Err(Trouble::new("this shape does not run between two ends")),
    }
}

/// Runs the loop of the first process in a shape with several other processes. `ends` has an end for each other
/// process, or one end used by all.
pub(crate) fn first_of_many<E: End>(mut ends: Vec<E>, work: &Work) -> Result<Report> {
    match work.shape {
        Shape::Producers { count, shared: true } => match ends.pop() {
            Some(end) => producers::first(&mut producers::One(end), work, count.into()),
            None => Err(Trouble::new("the mechanism has no end")),
        },
        Shape::Producers { count, .. } => producers::first(&mut *E::hub(ends, work)?, work, count.into()),
        Shape::FanOut { count } => fan_out::first(&mut *E::hub(ends, work)?, work, count.into()),
        _ => Err(Trouble::new("this shape does not run between several ends")),
    }
}

/// Runs the loop of the second process, or of another process with the number `index` from 0.
pub(crate) fn second<E: End>(end: &mut E, work: &Work, index: usize) -> Result<Share> {
    match work.shape {
        Shape::PingPong { reply } => ping_pong::second(end, work, reply),
        Shape::Stream { .. } => stream::second(end, work),
        Shape::OpenLoop { .. } | Shape::Paced { .. } => open_loop::second(end, work),
        Shape::Producers { .. } => producers::second(end, work, index),
        Shape::FanOut { .. } => ping_pong::second(end, work, SMALLEST),
        Shape::Mix { stream } => mix::second(end, work, stream),
        Shape::Hop { direct } => hop::second(end, work, direct),
        Shape::Descriptors { .. } => descriptors::second(end, work),
        Shape::OutOfLine { cold, touched } => out_of_line::second(end, work, cold, touched),
        Shape::InPlace => in_place::second(end, work),
        Shape::Vectored { .. } => ping_pong::second(end, work, SMALLEST),
        #[cfg(feature = "formats")]
        Shape::Fidl { .. } => fidl::second(end, work),
        #[cfg(not(feature = "formats"))]
        Shape::Fidl { .. } => Err(Trouble::new(UNBUILT)),
        Shape::Wake { .. } => wake::second(end, work),
        Shape::Idle => idle::second(end),
        Shape::Connect | Shape::Objects { .. } | Shape::Coded { .. } => {
            Err(Trouble::new("this shape does not run with one end"))
        }
    }
}
