//! A quiet channel; its receiver also serves busy channels on the same link or from another process.

use strait::wait::{Event, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Options};

use super::super::parts::Share;
use super::super::ping_pong;
use super::sending::new_channel;
use super::talk::{self, SIZE, Words, words};
use crate::mechanism::Strait;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::shape::payload::{self, STEADY, STOP};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Extent, Mechanism, Report, Work};

/// The number of channel ends in a message.
const BATCH: usize = 64;

/// The processes of the task `Crowded`: the number of busy channels, and whether their messages come from a separate
/// process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    pub(super) busy: usize,
    pub(super) apart: bool,
}

/// Runs the first process of the task `Crowded`: makes round trips on the quiet channel. The busy channels are filled
/// by another thread of this process, or by the process at `other`.
pub(super) fn ping(
    server: &Channel,
    other: &Channel,
    options: &Options,
    work: &Work,
    crowd: Crowd,
    trips: u64,
) -> Result<Report> {
    let (quiet, theirs) = new_channel(options)?;
    talk::give(server, &words(0, 0), [theirs])?;
    let mut busy = Vec::new();
    open(server, other, options, crowd, &mut busy)?;
    talk::hear_number(server, STOP)?;
    let mut report = std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&busy));
        let report = ping_pong::first(&mut Strait(quiet), &round_trips(work, trips), SIZE);
        // The server has closed the busy channels, or will when it dies.
        flood.join().map_err(|_| Trouble::new("the thread of the busy channels panicked"))??;
        report
    })?;
    for (name, time) in [("p50", report.times.p50), ("p99", report.times.p99)] {
        report.found.insert(name.to_owned(), time);
    }
    Ok(report)
}

/// Makes the busy channels, and sends an end of each to the server. Puts the other ends into `mine`, or, if they belong
/// to the process at `other`, sends them there.
fn open(server: &Channel, other: &Channel, options: &Options, crowd: Crowd, mine: &mut Vec<Channel>) -> Result<()> {
    let mut left = crowd.busy;
    while left > 0 {
        let count = left.min(BATCH);
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| new_channel(options)).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        talk::give(server, &words(0, 0), receivers)?;
        if crowd.apart {
            talk::give(other, &words(0, 0), senders)?;
        } else {
            mine.extend(senders);
        }
        left -= count;
    }
    Ok(())
}

/// Returns the work of the ping-pong on the quiet channel.
fn round_trips(work: &Work, trips: u64) -> Work {
    let extent = Extent::Count { warm: trips.div_ceil(4), steady: trips };
    Work { extent, stride: 1, ..Work::round_trip(Mechanism::STRAIT, SIZE, work.wait, work.placement) }
}

/// Sends numbered messages through the busy channels in turn, as fast as possible, until the server closes the
/// channels.
fn flood(busy: &[Channel]) -> Result<()> {
    for number in 0.. {
        for channel in busy {
            match channel.send(&words(number, 0)) {
                Ok(()) => {}
                Err(error) if error.error == Error::PeerClosed => return Ok(()),
                Err(error) => return Err(error).doing("send"),
            }
        }
        if busy.is_empty() {
            return Ok(());
        }
    }
    Ok(())
}

/// Runs the third process of the task `Crowded`: fills the busy channels, if they do not belong to the first process.
pub(super) fn fill(first: &Channel, crowd: Crowd) -> Result<Share> {
    let busy = if crowd.apart { hear_ends(first, crowd.busy)? } else { Vec::new() };
    let gauge = Gauge::start()?;
    flood(&busy)?;
    Ok(Share { spent: gauge.spent()?, ..Share::default() })
}

/// Receives `count` channel ends.
fn hear_ends(from: &Channel, count: usize) -> Result<Vec<Channel>> {
    let mut heard: Words = [0; SIZE];
    let mut ends = Vec::with_capacity(count);
    while ends.len() < count {
        ends.extend(talk::ends(talk::hear(from, &mut heard)?)?);
    }
    Ok(ends)
}

/// Runs the second process of the task `Crowded`: answers on the quiet channel, and receives from the busy channels,
/// one message for each report of a channel by the wait set.
pub(super) fn serve(first: &Channel, crowd: Crowd) -> Result<Share> {
    let quiet = hear_ends(first, 1)?.remove(0);
    let mut server = Server { quiet, busy: hear_ends(first, crowd.busy)?, received: vec![0; crowd.busy], steady: None };
    let set = WaitSet::new().doing("making a wait set")?;
    for (key, channel) in (0..).zip(server.busy.iter().chain([&server.quiet])) {
        set.add(channel, key, Interest::Readable, Mode::Level).doing("adding to the wait set")?;
    }
    talk::say(first, STOP)?;
    let gauge = Gauge::start()?;
    let mut events = Vec::new();
    loop {
        set.wait(&mut events, Deadline::NEVER).doing("waiting")?;
        for event in &events {
            if let Some((count, time)) = server.take(event)? {
                let mut share = Share { count, spent: gauge.spent()?, ..Share::default() };
                share.found.insert("busy".to_owned(), 1e3 * count as f64 / time.max(1) as f64);
                return Ok(share);
            }
        }
    }
}

/// The channels of the second process.
struct Server {
    quiet: Channel,
    busy: Vec<Channel>,
    /// The number of messages that each busy channel has carried.
    received: Vec<u64>,
    /// The number of messages on all busy channels at the begin of the measured part, and the time of the begin.
    steady: Option<(u64, u64)>,
}

impl Server {
    /// Takes one message from the channel of `event`. With the last message of the quiet channel, returns the number
    /// of messages over the busy channels in the measured part, and its nanoseconds.
    fn take(&mut self, event: &Event) -> Result<Option<(u64, u64)>> {
        let mut heard: Words = [0; SIZE];
        let key = event.key() as usize;
        let Some(busy) = self.busy.get(key) else { return self.answer(&mut heard) };
        talk::hear(busy, &mut heard)?;
        payload::check(&heard, self.received[key])?;
        self.received[key] += 1;
        Ok(None)
    }

    /// Answers a message of the quiet channel.
    fn answer(&mut self, heard: &mut Words) -> Result<Option<(u64, u64)>> {
        talk::hear(&self.quiet, heard)?;
        let now = (self.received.iter().sum::<u64>(), clock::now());
        let mut over = None;
        match payload::number(heard) {
            STEADY => self.steady = Some(now),
            STOP => over = self.steady.map(|(count, time)| (now.0 - count, now.1 - time)),
            _ => {}
        }
        self.quiet.send(&*heard).doing("send")?;
        Ok(over)
    }
}
