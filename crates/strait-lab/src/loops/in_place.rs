//! Messages filled and read in shared memory, and never copied whole.

use super::parts::Share;
use crate::mechanism::End;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::payload::{self, SMALLEST};
use crate::trouble::{Result, Trouble};
use crate::work::{Extent, Report, Work};

/// The number of bytes that are filled or read at a time in a large message.
const PIECE: usize = 64 << 10;

/// Memory to read over between messages, so that the caches are equally cold for every message size.
///
/// Writing 256 MiB evicts everything else from the caches, and writing 1 MiB does not. The shape measures whether
/// handing over a larger message takes longer, not how filling the message changes the caches. So after each message
/// both sides read over memory of their own: 256 MiB less the size of the message.
#[derive(Debug)]
struct Walk(Vec<u8>);

impl Walk {
    const LINE: usize = 64;

    fn after(message: usize) -> Self {
        Self(vec![1; (256usize << 20).saturating_sub(message)])
    }

    fn take(&self) {
        let sum: u64 = self.0.iter().step_by(Self::LINE).copied().map(u64::from).sum();
        std::hint::black_box(sum);
    }
}

/// Runs the first process of the shape `in-place`, which fills messages in shared memory.
///
/// The second word of a message is the time of its commit, and is written last. So the measured time of the second
/// process begins when the message is complete and only has to be handed over.
pub(super) fn first(end: &mut impl End, work: &Work) -> Result<Report> {
    let (warm, steady) = counts(work)?;
    let mut piece = vec![0; PIECE.min(work.size)];
    let mut answer = [0; SMALLEST];
    let walk = Walk::after(work.size);
    let begin = clock::now();
    let mut first = 0;
    for number in 0..warm + steady {
        end.send_filled(work.size, |put| {
            payload::stamp(&mut piece, number);
            for place in (0..work.size).step_by(piece.len()) {
                let len = piece.len().min(work.size - place);
                put(place, &piece[..len]);
            }
            walk.take();
            put(8, &clock::now().to_le_bytes());
        })?;
        end.recv(&mut answer)?;
        if payload::number(&answer) != number {
            return Err(Trouble::new("the acknowledgement of another message arrived"));
        }
        if number == 0 {
            first = clock::now() - begin;
        }
    }
    Ok(Report { count: steady, first, ..Report::default() })
}

/// Runs the second process of the shape `in-place`, which reads messages in shared memory.
pub(super) fn second(end: &mut impl End, work: &Work) -> Result<Share> {
    let (warm, steady) = counts(work)?;
    let mut piece = vec![0; PIECE.min(work.size)];
    let walk = Walk::after(work.size);
    let mut samples = Samples::new();
    let gauge = Gauge::start()?;
    for number in 0..warm + steady {
        let (waited, intact) = end.recv_in_place(work.size, |get| {
            let mut start = [0; 16];
            get(0, &mut start);
            let arrived = clock::now();
            let committed = u64::from_le_bytes(*start.last_chunk().expect("16 bytes end in 8"));
            // Every byte is read, outside of the measured time.
            let mut intact = payload::number(&start) == number;
            for place in (0..work.size).step_by(piece.len()) {
                let len = piece.len().min(work.size - place);
                get(place, &mut piece[..len]);
                intact &= payload::number(&piece) == number;
            }
            (arrived.saturating_sub(committed), intact)
        })?;
        if !intact {
            return Err(Trouble::new(format!("message {number} arrived with wrong bytes")));
        }
        if number >= warm {
            samples.record(waited, 1);
        }
        walk.take();
        end.send(&number.to_le_bytes())?;
    }
    Ok(Share::of(gauge.spent()?, steady, &samples))
}

fn counts(work: &Work) -> Result<(u64, u64)> {
    match work.extent {
        Extent::Count { warm, steady } => Ok((warm, steady)),
        Extent::Time { .. } => Err(Trouble::new("the shape in-place needs a number of messages (--count)")),
    }
}
