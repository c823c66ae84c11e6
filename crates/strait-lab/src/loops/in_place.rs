//! Messages filled and read in shared memory, and never copied whole.

use super::parts::Share;
use crate::mechanism::End;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::payload::{self, SMALLEST};
use crate::trouble::{Result, Trouble};
use crate::work::{Extent, Report, Spent, Work};

/// The number of bytes that are filled or read at a time in a large message.
const PIECE: usize = 64 << 10;

/// Memory to read over between messages, so that the caches are equally cold for every message size.
///
/// Writing 256 MiB evicts everything else from the caches, and writing 1 MiB does not. The shape measures whether
/// handing over a larger message takes longer, not how filling the message changes the caches. So after each message
/// both sides read over memory of their own: 256 MiB less the size of the message. The counters of a side leave out
/// its own walks.
#[derive(Debug)]
struct Walk {
    memory: Vec<u8>,
    spent: Spent,
}

impl Walk {
    const LINE: usize = 64;

    fn after(message: usize) -> Self {
        Self { memory: vec![1; (256usize << 20).saturating_sub(message)], spent: Spent::default() }
    }

    fn take(&mut self) -> Result<()> {
        let gauge = Gauge::start()?;
        let sum: u64 = self.memory.iter().step_by(Self::LINE).copied().map(u64::from).sum();
        std::hint::black_box(sum);
        self.spent += gauge.spent()?;
        Ok(())
    }

    /// Starts the counters of this side, for the measured part.
    fn start(&mut self) -> Result<Gauge> {
        self.spent = Spent::default();
        Gauge::start()
    }

    /// Returns what this side has used since the start of `gauge`, less its walks.
    fn others(&self, gauge: &Gauge) -> Result<Spent> {
        Ok(gauge.spent()?.with(self.spent, u64::saturating_sub))
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
    let mut walk = Walk::after(work.size);
    let mut gauge = walk.start()?;
    let begin = clock::now();
    let mut first = 0;
    for number in 0..warm + steady {
        if number == warm {
            gauge = walk.start()?;
        }
        let mut walked = Ok(());
        end.send_filled(work.size, |put| {
            payload::stamp(&mut piece, number);
            for place in (0..work.size).step_by(piece.len()) {
                let len = piece.len().min(work.size - place);
                put(place, &piece[..len]);
            }
            walked = walk.take();
            put(8, &clock::now().to_le_bytes());
        })?;
        walked?;
        end.recv(&mut answer)?;
        if payload::number(&answer) != number {
            return Err(Trouble::new("the acknowledgement of another message arrived"));
        }
        if number == 0 {
            first = clock::now() - begin;
        }
    }
    let spent = [walk.others(&gauge)?, Spent::default()];
    Ok(Report { count: steady, first, spent, ..Report::default() })
}

/// Runs the second process of the shape `in-place`, which reads messages in shared memory.
pub(super) fn second(end: &mut impl End, work: &Work) -> Result<Share> {
    let (warm, steady) = counts(work)?;
    let mut piece = vec![0; PIECE.min(work.size)];
    let mut walk = Walk::after(work.size);
    let mut samples = Samples::new();
    let mut gauge = walk.start()?;
    for number in 0..warm + steady {
        if number == warm {
            gauge = walk.start()?;
        }
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
        walk.take()?;
        end.send(&number.to_le_bytes())?;
    }
    Ok(Share::of(walk.others(&gauge)?, steady, &samples))
}

fn counts(work: &Work) -> Result<(u64, u64)> {
    match work.extent {
        Extent::Count { warm, steady } => Ok((warm, steady)),
        Extent::Time { .. } => Err(Trouble::new("the shape in-place needs a number of messages (--count)")),
    }
}

#[cfg(test)]
mod tests {
    use strait::Channel;

    use super::{Walk, first, second};
    use crate::mechanism::Strait;
    use crate::placement::Placement;
    use crate::shape::Shape;
    use crate::work::{Extent, Mechanism, Wait, Work};

    #[test]
    fn both_sides_report_their_processor_time() {
        let work = Work {
            shape: Shape::InPlace,
            extent: Extent::Count { warm: 0, steady: 1 },
            ..Work::round_trip(Mechanism::STRAIT, 1 << 20, Wait::Block, Placement::Free)
        };
        let (one, other) = Channel::pair().unwrap();
        let (report, share) = std::thread::scope(|scope| {
            let answer = scope.spawn(|| second(&mut Strait(other), &work).unwrap());
            (first(&mut Strait(one), &work).unwrap(), answer.join().unwrap())
        });
        assert!(report.spent[0].cpu > 0 && share.spent.cpu > 0, "{report:?}, {share:?}");
    }

    #[test]
    fn a_walk_is_no_work_of_its_side() {
        let mut walk = Walk::after(0);
        let gauge = walk.start().unwrap();
        walk.take().unwrap();
        assert!(walk.others(&gauge).unwrap().cpu < walk.spent.cpu / 2);
    }
}
