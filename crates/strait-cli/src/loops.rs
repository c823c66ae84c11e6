//! The measuring loops, the same for every mechanism: what the first process does, and what the second answers.
//!
//! A run has a warm-up, which is excluded from every figure, and a measured part. The first process announces the
//! second part and the end by messages with special numbers, so that both sides count the same messages.

use std::time::Duration;

use crate::clock;
use crate::gauge::{Gauge, sleeps};
use crate::mechanism::{End, InPlace};
use crate::payload::{self, SMALLEST, STEADY, STOP};
use crate::samples::{Percentiles, Samples};
use crate::silence;
use crate::trouble::{Result, Trouble};
use crate::work::{Extent, Report, Spent, Work};

/// The second process's share of a report.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Share {
    pub(crate) spent: Spent,
    pub(crate) count: u64,
    pub(crate) times: Percentiles,
}

/// A one-way stream is timed by stretches of this many messages, put together until they have taken long enough.
const LOOK: u64 = 4096;
/// Nanoseconds of a stretch.
const STRETCH: u64 = 5_000_000;

/// How late the receiver of a stream begins.
const LATE: Duration = Duration::from_millis(10);

/// Large messages are filled and read by pieces of this size.
const PIECE: usize = 64 << 10;

/// The first process's side of a round trip.
pub(crate) fn ping(end: &mut impl End, work: &Work, reply: usize) -> Result<Report> {
    let mut message = vec![0; work.size];
    let mut answer = vec![0; reply];
    let mut samples = Samples::new();
    let stride = u64::from(work.stride);
    let mut number = 0;
    let mut trip = |end: &mut _, number| exchange(end, &mut message, &mut answer, number);

    let begin = clock::now();
    trip(end, number)?;
    let first = clock::now() - begin;
    while !work.extent.is_warm(number, clock::now() - begin) {
        for _ in 0..stride {
            number += 1;
            trip(end, number)?;
        }
    }

    trip(end, STEADY)?;
    let gauge = Gauge::start()?;
    let farewell = farewell(work)?;
    let begin = clock::now();
    let mut then = begin;
    let mut count = 0;
    while !work.extent.is_over(count, then - begin) {
        for _ in 0..stride {
            number += 1;
            trip(end, number)?;
        }
        let now = clock::now();
        samples.record(now - then, stride);
        then = now;
        count += stride;
    }
    if let Some(packet) = farewell {
        trip(end, STOP)?;
        silence::farewell(&packet);
    }
    let spent = gauge.spent()?;
    trip(end, STOP)?;

    Ok(Report { count, times: samples.percentiles(), spent: [spent, Spent::default()], first, ..Report::default() })
}

/// Sends the message with this number and waits for its answer.
#[inline(always)]
fn exchange(end: &mut impl End, message: &mut [u8], answer: &mut [u8], number: u64) -> Result<()> {
    payload::stamp(message, number);
    end.send(message)?;
    end.recv(answer)?;
    if answer.len() == message.len() {
        payload::check(answer, number)
    } else if payload::number(answer) == number {
        Ok(())
    } else {
        Err(Trouble::new("the acknowledgement of another message came"))
    }
}

/// The second process's side of a round trip.
pub(crate) fn echo(end: &mut impl End, work: &Work, reply: usize) -> Result<Share> {
    let mut message = vec![0; work.size];
    let mut due = 0;
    let untimed = Samples::new();
    let mut gauge = Gauge::start()?;
    loop {
        end.recv(&mut message)?;
        match payload::number(&message) {
            STEADY => {
                gauge = Gauge::start()?;
                farewell(work)?;
            }
            STOP => break,
            _ => {
                payload::check(&message, due)?;
                due += 1;
            }
        }
        end.send(&message[..reply])?;
    }
    finish(end, work, &message[..reply], &gauge, due, &untimed)
}

/// The first process's side of a stream.
pub(crate) fn pour(end: &mut impl End, work: &Work, batch: usize) -> Result<Report> {
    let mut messages = vec![0; work.size * batch];
    let mut mark = vec![0; work.size];
    let mut answer = [0; SMALLEST];
    let mut number = 0;

    let mut pour = |end: &mut _, number: &mut u64| -> Result<()> {
        for _ in 0..(1024 / batch).max(1) {
            for message in messages.chunks_exact_mut(work.size) {
                payload::stamp(message, *number);
                *number += 1;
            }
            End::send_batch(end, &messages, work.size)?;
        }
        Ok(())
    };

    let begin = clock::now();
    while !work.extent.is_warm(number, clock::now() - begin) {
        pour(end, &mut number)?;
    }
    exchange(end, &mut mark, &mut answer, STEADY)?;
    let gauge = Gauge::start()?;
    let farewell = farewell(work)?;
    let begin = clock::now();
    let from = number;
    while !work.extent.is_over(number - from, clock::now() - begin) {
        pour(end, &mut number)?;
    }
    if let Some(packet) = farewell {
        exchange(end, &mut mark, &mut answer, STOP)?;
        silence::farewell(&packet);
    }
    let spent = gauge.spent()?;
    exchange(end, &mut mark, &mut answer, STOP)?;
    Ok(Report { count: number - from, spent: [spent, Spent::default()], ..Report::default() })
}

/// The second process's side of a stream, which takes its time: what counts is what arrives.
pub(crate) fn drain(end: &mut impl End, work: &Work) -> Result<Share> {
    let mut message = vec![0; work.size];
    let mut samples = Samples::new();
    let mut gauge = Gauge::start()?;
    let mut due = 0;
    // Comes late once, in the warm-up: what grows under pressure (rings do) has then grown before anything is measured.
    std::thread::sleep(LATE);
    let (mut then, mut counted_to) = (clock::now(), 0);
    loop {
        end.recv(&mut message)?;
        match payload::number(&message) {
            STEADY => {
                samples = Samples::new();
                gauge = Gauge::start()?;
                farewell(work)?;
                end.send(&message[..SMALLEST])?;
                (then, counted_to) = (clock::now(), due);
            }
            STOP => {
                // A stream shorter than a stretch is one stretch.
                if samples.is_empty() && due > counted_to {
                    samples.record(clock::now() - then, due - counted_to);
                }
                break;
            }
            _ => {
                payload::check(&message, due)?;
                due += 1;
                if due.is_multiple_of(LOOK) {
                    let now = clock::now();
                    if now - then >= STRETCH {
                        samples.record(now - then, due - counted_to);
                        (then, counted_to) = (now, due);
                    }
                }
            }
        }
    }
    finish(end, work, &message[..SMALLEST], &gauge, due, &samples)
}

/// Acknowledges the end, after taking stock.
fn finish(
    end: &mut impl End,
    work: &Work,
    answer: &[u8],
    gauge: &Gauge,
    count: u64,
    samples: &Samples,
) -> Result<Share> {
    if work.silent {
        end.send(answer)?;
        silence::farewell(&[]);
    }
    let share = Share { spent: gauge.spent()?, count, times: samples.percentiles() };
    end.send(answer)?;
    Ok(share)
}

/// If the run is a silent one, begins the silence. What is to be reported when it was kept is made before, since even
/// memory may need a system call.
fn farewell(work: &Work) -> Result<Option<Vec<u8>>> {
    if !work.silent {
        return Ok(None);
    }
    let packet = crate::control::encode(&Ok::<_, String>(Report::default()))?;
    silence::begin()?;
    Ok(Some(packet))
}

/// Memory of no interest, to walk over.
///
/// Whoever has just written 256 MiB has lost everything else from its caches, and whoever wrote 1 MiB has not. What is
/// asked is whether handing over grows with the size of a message, not what filling it did to the caches. So both
/// sides walk over memory of their own after each message, as much as is missing to 256 MiB, and always start equally
/// cold.
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

/// The first process's side of messages filled and read in place.
///
/// The second word of a message is the time of its commit, and it is written last, so that what the second process
/// measures begins when the message is complete and only has to be handed over.
pub(crate) fn lend(end: &mut impl InPlace, work: &Work) -> Result<Report> {
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
            return Err(Trouble::new("the acknowledgement of another message came"));
        }
        if number == 0 {
            first = clock::now() - begin;
        }
    }
    Ok(Report { count: steady, first, ..Report::default() })
}

/// The second process's side of messages filled and read in place.
pub(crate) fn look(end: &mut impl InPlace, work: &Work) -> Result<Share> {
    let (warm, steady) = counts(work)?;
    let mut piece = vec![0; PIECE.min(work.size)];
    let walk = Walk::after(work.size);
    let mut samples = Samples::new();
    for number in 0..warm + steady {
        let (waited, intact) = end.recv_in_place(work.size, |get| {
            let mut start = [0; 16];
            get(0, &mut start);
            let arrived = clock::now();
            let committed = u64::from_le_bytes(*start.last_chunk().expect("16 bytes end in 8"));
            // Then every byte is read, outside of the measured time.
            let mut intact = payload::number(&start) == number;
            for place in (0..work.size).step_by(piece.len()) {
                let len = piece.len().min(work.size - place);
                get(place, &mut piece[..len]);
                intact &= payload::number(&piece) == number;
            }
            (arrived.saturating_sub(committed), intact)
        })?;
        if !intact {
            return Err(Trouble::new(format!("message {number} is not what was written")));
        }
        if number >= warm {
            samples.record(waited, 1);
        }
        walk.take();
        end.send(&number.to_le_bytes())?;
    }
    Ok(Share { count: steady, times: samples.percentiles(), ..Share::default() })
}

fn counts(work: &Work) -> Result<(u64, u64)> {
    match work.extent {
        Extent::Count { warm, steady } => Ok((warm, steady)),
        Extent::Time { .. } => Err(Trouble::new("messages in place are measured by count")),
    }
}

/// The first process's side of silence: it sends nothing, and looks how often the other process wakes.
pub(crate) fn watch(end: &mut impl End, work: &Work, peer: u32) -> Result<Report> {
    let Extent::Time { warm, steady } = work.extent else {
        return Err(Trouble::new("idleness is measured by time"));
    };
    let pause = |milliseconds| std::thread::sleep(Duration::from_millis(milliseconds));
    pause(warm);
    let before = sleeps(peer)?;
    pause(steady);
    let wake_ups = sleeps(peer)? - before;

    // That it can still be woken shows that it slept where it should, and was not simply stuck.
    let mut answer = [0; SMALLEST];
    exchange(end, &mut [0; SMALLEST], &mut answer, STOP)?;
    Ok(Report { wake_ups: Some(wake_ups), ..Report::default() })
}

/// The second process's side of silence.
pub(crate) fn doze(end: &mut impl End) -> Result<Share> {
    let mut message = [0; SMALLEST];
    end.recv(&mut message)?;
    end.send(&message)?;
    Ok(Share::default())
}
