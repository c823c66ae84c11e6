//! Many idle channels: memory and descriptors, and the effect on a busy channel.

use std::fs;

use strait::{Channel, Options};

use super::super::parts::Share;
use super::super::ping_pong;
use super::sending::new_channel;
use super::talk::{self, SIZE, Words, words};
use crate::mechanism::Strait;
use crate::process::allocations;
use crate::shape::payload::{self, STOP};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Extent, Mechanism, Report, Work};

/// The number of channel ends in a message.
const BATCH: usize = 64;

/// The number of the message that requests the memory and descriptor counts of the second process.
const STOCK: u64 = STOP - 2;

/// Adds new channels to `mine`, up to `channels`, and sends the other ends to the peer.
pub(super) fn fill(peer: &Channel, options: &Options, mine: &mut Vec<Channel>, channels: usize) -> Result<()> {
    while mine.len() < channels {
        let mut theirs = Vec::with_capacity(BATCH);
        for _ in 0..BATCH.min(channels - mine.len()) {
            let (one, other) = new_channel(options)?;
            mine.push(one);
            theirs.push(other);
        }
        talk::give(peer, &words(0, 0), theirs)?;
    }
    Ok(())
}

/// Runs the first process of the task `Beside`: makes round trips on one channel, while `idle` others are idle.
pub(super) fn ping(peer: &Channel, options: &Options, work: &Work, idle: usize) -> Result<Report> {
    let mut mine = Vec::new();
    fill(peer, options, &mut mine, 1)?;
    let active = mine.remove(0);
    fill(peer, options, &mut mine, idle)?;
    talk::say(peer, STOP)?;
    let report = ping_pong::first(&mut Strait(active), &round_trips(work), SIZE)?;
    talk::hear_number(peer, STOP)?;
    Ok(report)
}

/// Runs the second process of the task `Beside`: answers on one channel, and holds the idle channels.
pub(super) fn echo(peer: &Channel, work: &Work, idle: usize) -> Result<Share> {
    let mut heard: Words = [0; SIZE];
    let active = talk::one_end(talk::hear(peer, &mut heard)?)?;
    let mut ends = Vec::with_capacity(idle);
    while ends.len() < idle {
        ends.extend(talk::ends(talk::hear(peer, &mut heard)?)?);
    }
    talk::hear_number(peer, STOP)?;
    let share = ping_pong::second(&mut Strait(active), &round_trips(work), SIZE)?;
    talk::say(peer, STOP)?;
    Ok(share)
}

/// Returns the work of the ping-pong beside the idle channels.
fn round_trips(work: &Work) -> Work {
    let extent = Extent::Time { warm: 30, steady: 200 };
    Work { extent, ..Work::round_trip(Mechanism::STRAIT, SIZE, work.wait, work.placement) }
}

/// The descriptors and the memory that a process holds.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Stock {
    descriptors: f64,
    /// Bytes of the present pages of channels, as this process's share: each page is divided equally among the
    /// processes with a mapping of it, so the sum over all processes is the memory in use.
    shared: f64,
    /// Bytes of this process's private pages.
    private: f64,
    /// Bytes that were allocated and not freed.
    heap: f64,
}

impl Stock {
    fn take() -> Result<Self> {
        let heap = allocations::bytes() as f64;
        let maps = fs::read_to_string("/proc/self/smaps").doing("/proc/self/smaps")?;
        let status = fs::read_to_string("/proc/self/status").doing("/proc/self/status")?;
        let private = kilobytes(&status, "RssAnon:").ok_or_else(|| Trouble::new("/proc/self/status has no RssAnon"))?;
        let descriptors = fs::read_dir("/proc/self/fd").doing("/proc/self/fd")?.count() as f64;
        Ok(Self { descriptors, shared: shared(&maps), private, heap })
    }

    fn since(self, before: Self) -> Self {
        Self {
            descriptors: self.descriptors - before.descriptors,
            shared: self.shared - before.shared,
            private: self.private - before.private,
            heap: self.heap - before.heap,
        }
    }
}

/// Returns the bytes of channel memory in `maps`, the text of `/proc/self/smaps`: this process's share of them.
fn shared(maps: &str) -> f64 {
    let mut sum = 0.0;
    let mut ours = false;
    for line in maps.lines() {
        if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            ours = line.contains("/memfd:strait-");
        } else if ours && let Some(bytes) = kilobytes(line, "Pss:") {
            sum += bytes;
        }
    }
    sum
}

/// Returns the value in the line that begins with `name`, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok().map(|kilobytes| 1024.0 * kilobytes)
}

/// Runs the first process of the task `Hold`: makes channels and uses each. It reads memory and descriptor counts
/// after the first channel and after the last.
pub(super) fn hold(peer: &Channel, options: &Options, channels: usize) -> Result<Report> {
    // The list of the ends is allocated before the first reading.
    let mut mine = Vec::from_iter((0..channels).map(|_| None));
    let mut stocks = Vec::new();
    let mut made = 0;
    for due in [1, channels] {
        let mut new = Vec::new();
        while made < due {
            let count = BATCH.min(due - made);
            fill(peer, options, &mut new, count)?;
            for (place, one) in mine[made..].iter_mut().zip(new.drain(..)) {
                talk::say(&one, 1)?;
                *place = Some(one);
            }
            made += count;
        }
        talk::say(peer, STOCK)?;
        talk::hear_number(peer, STOCK)?;
        // The other process has made its reading, and neither process does anything meanwhile.
        stocks.push(Stock::take()?);
    }
    talk::say(peer, STOP)?;
    let message = peer.recv().doing("recv")?;
    let theirs: Stock = serde_json::from_slice(message.bytes()).doing("decoding")?;
    let ours = stocks[1].since(stocks[0]);

    let each = |bytes: f64| bytes / (channels - 1).max(1) as f64;
    let mut report = Report { count: channels as u64, ..Report::default() };
    for (name, value) in [
        ("descriptors", ours.descriptors.max(theirs.descriptors)),
        ("shared", each(ours.shared + theirs.shared)),
        ("private", each(ours.private.max(theirs.private))),
        ("heap", each(ours.heap.max(theirs.heap))),
    ] {
        report.found.insert(name.to_owned(), value.ceil());
    }
    Ok(report)
}

/// Runs the second process of the task `Hold`: receives the message through each channel, and reads its memory and
/// descriptor counts at the request of the first process.
pub(super) fn hold_too(peer: &Channel) -> Result<Share> {
    // The list has room for all ends from the start, and so never moves: this process does not know the number of ends.
    let mut all = Vec::with_capacity(1 << 17);
    all.resize_with(all.capacity(), || None);
    let mut held = 0;
    let mut heard: Words = [0; SIZE];
    let mut stocks = Vec::new();
    loop {
        let received = talk::hear(peer, &mut heard)?;
        match payload::number(&heard) {
            STOCK => {
                stocks.push(Stock::take()?);
                talk::say(peer, STOCK)?;
            }
            STOP => break,
            _ => {
                for end in talk::ends(received)? {
                    talk::hear_number(&end, 1)?;
                    all[held] = Some(end);
                    held += 1;
                }
            }
        }
    }
    let [before, after] = stocks[..] else {
        return Err(Trouble::new("memory was not read twice"));
    };
    let packet = serde_json::to_vec(&after.since(before)).doing("encoding")?;
    peer.send(&packet).doing("send")?;
    Ok(Share::default())
}

#[cfg(test)]
mod tests {
    use super::{kilobytes, shared};

    #[test]
    fn only_the_memory_of_channels_counts() {
        let maps = "7f00-7f10 rw-s 00000000 00:01 5  /memfd:strait-lanes (deleted)\nRss:  8 kB\nPss:     6 kB\n\
                    7f10-7f20 rw-p 00000000 00:00 0\nPss:      100 kB\nVmFlags: rd wr mr\n\
                    7f20-7f30 rw-s 00000000 00:01 6  /memfd:strait-lanes (deleted)\nPss:     1 kB\n";
        assert_eq!(shared(maps), 7.0 * 1024.0);
        assert_eq!(kilobytes("VmRSS:\t  5 kB\nRssAnon:\t     396 kB\n", "RssAnon:"), Some(396.0 * 1024.0));
    }
}
