//! Units of work in one process, against one growing link, listener or wait set.
//!
//! All units run in one process, so that the counts of instructions and system calls do not depend on the scheduler. A
//! socket pair connects the two ends of a link, as between two processes.

use std::fs;
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, getrlimit, setrlimit};
use strait::meet::Connector;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Handle, Listener, Options, Outgoing, Wait};

use crate::process::clock;
use crate::shape::Unit;
use crate::trouble::{Result, Trouble, While};
use crate::work::Report;

/// The number of units before the measured ones, since the first units create memory and tables for all.
const WARM: usize = 64;

/// The number of channel ends in one message.
const BATCH: usize = 64;

/// Runs the only process of the task `Units`, and reports the cost of all units together.
pub(super) fn run(unit: Unit, units: usize) -> Result<Report> {
    raise_descriptor_limit()?;
    match unit {
        Unit::Channels => {
            let link = Link::new()?;
            let mut ends = Vec::new();
            measured(units, |units| link.open(units, &mut ends))
        }
        Unit::Clients => {
            let directory = tempdir()?;
            let listener = Listener::builder().directory(&directory).bind("scale").doing("bind")?;
            let mut ends = Vec::new();
            let taken = measured(units, |units| clients(&listener, &directory, units, &mut ends));
            drop((ends, listener));
            fs::remove_dir_all(&directory).doing("removing the name directory")?;
            taken
        }
        Unit::Members => {
            let link = Link::new()?;
            let mut ends = Vec::new();
            link.open(WARM + units, &mut ends)?;
            let set = WaitSet::new().doing("WaitSet::new")?;
            let mut added = 0;
            measured(units, |units| {
                added += units;
                members(&set, &ends[added - units..added], added - units)
            })
        }
    }
}

/// Calls `work` with the number of units for the warm-up, and then with `units`. Returns the cost of the second call.
fn measured(units: usize, mut work: impl FnMut(usize) -> Result<()>) -> Result<Report> {
    work(WARM)?;
    let memory = held_memory()?;
    let (begin, processor) = (clock::now(), clock::cpu());
    work(units)?;
    let (time, processor) = ((clock::now() - begin) as f64, (clock::cpu() - processor) as f64);
    // Of shared memory, the share of this process counts.
    let costs = [("time", time), ("processor time", processor), ("memory", held_memory()? - memory)];
    let found = costs.map(|(name, cost)| (name.to_owned(), cost)).into();
    Ok(Report { count: units as u64, found, ..Report::default() })
}

/// A link with both of its ends in this process: the two ends of its first channel.
struct Link {
    one: Channel,
    other: Channel,
}

/// Returns options with which every wait blocks at once: a wait that spins takes a varying number of instructions.
fn options() -> Options {
    Options::new().wait(Wait::Block)
}

impl Link {
    fn new() -> Result<Self> {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).doing("socketpair")?;
        Ok(Self {
            one: options().over(one).doing("Channel::over")?,
            other: options().over(other).doing("Channel::over")?,
        })
    }

    /// Makes `units` channels, sends one end of each over the link, and one message through each.
    fn open(&self, units: usize, ends: &mut Vec<[Channel; 2]>) -> Result<()> {
        let mut left = units;
        while left > 0 {
            let batch = left.min(BATCH);
            left -= batch;
            self.open_batch(batch, ends)?;
        }
        Ok(())
    }

    fn open_batch(&self, batch: usize, ends: &mut Vec<[Channel; 2]>) -> Result<()> {
        let pairs: std::result::Result<Vec<_>, strait::Error> = (0..batch).map(|_| options().pair()).collect();
        let (kept, sent): (Vec<_>, Vec<_>) = pairs.doing("making channels")?.into_iter().unzip();
        self.one.send(Outgoing::new(b"ends").handles(sent.into_iter().map(Handle::from))).doing("sending ends")?;
        let mut message = self.other.recv().doing("receiving ends")?;
        let received = message.take_handles().doing("take_handles")?.into_iter().filter_map(Handle::into_channel);
        for (one, other) in kept.into_iter().zip(received) {
            message_through(&one, &other)?;
            ends.push([one, other]);
        }
        Ok(())
    }
}

/// Sends a message through a channel and receives the message.
fn message_through(one: &Channel, other: &Channel) -> Result<()> {
    one.send(b"hello").doing("send")?;
    hear(other)
}

fn hear(channel: &Channel) -> Result<()> {
    let mut bytes = [0; 8];
    let received = channel.recv_into(&mut bytes, Deadline::NEVER).doing("recv_into")?;
    if received.len() == 5 { Ok(()) } else { Err(Trouble::new("a message of the wrong length arrived")) }
}

/// Connects `units` clients to the listener in sequence, and sends a message through each channel.
fn clients(listener: &Listener, directory: &std::path::Path, units: usize, ends: &mut Vec<[Channel; 2]>) -> Result<()> {
    thread::scope(|scope| {
        let accepted = scope.spawn(|| -> Result<Vec<Channel>> {
            (0..units).map(|_| listener.accept(Deadline::NEVER).doing("accept")).collect()
        });
        let connector = Connector::new().directory(directory).options(options());
        let connected: Result<Vec<_>> =
            (0..units).map(|_| connector.connect("scale", Deadline::NEVER).doing("connect")).collect();
        let accepted = accepted.join().map_err(|_| Trouble::new("the accepting thread panicked"))??;
        for (one, other) in connected?.into_iter().zip(accepted) {
            message_through(&one, &other)?;
            ends.push([one, other]);
        }
        Ok(())
    })
}

/// Adds the second end of each channel to the wait set, sends a message to each, and receives the messages reported by
/// the set.
fn members(set: &WaitSet, ends: &[[Channel; 2]], first_key: usize) -> Result<()> {
    for (key, [_, member]) in ends.iter().enumerate() {
        set.add(member, (first_key + key) as u64, Interest::Readable, Mode::OneShot).doing("WaitSet::add")?;
    }
    for [sender, _] in ends {
        sender.send(b"hello").doing("send")?;
    }
    let mut events = Vec::new();
    let mut heard = 0;
    while heard < ends.len() {
        set.wait(&mut events, Deadline::NEVER).doing("WaitSet::wait")?;
        for event in events.drain(..) {
            hear(&ends[event.key() as usize - first_key][1])?;
            heard += 1;
        }
    }
    Ok(())
}

/// Returns the memory of this process in bytes, with the process's share of shared pages.
pub(super) fn held_memory() -> Result<f64> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").doing("/proc/self/smaps_rollup")?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024.0).ok_or_else(|| Trouble::new("/proc/self/smaps_rollup has no Pss"))
}

/// Raises the descriptor limit as far as allowed: a thousand clients need more than a thousand descriptors.
pub(super) fn raise_descriptor_limit() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).doing("setrlimit")
}

/// Creates a new directory for the listener's name, and returns its path.
fn tempdir() -> Result<std::path::PathBuf> {
    let path = std::env::temp_dir().join(format!("strait-scale-{}-{}", std::process::id(), clock::now()));
    fs::create_dir(&path).doing("making the name directory")?;
    Ok(path)
}
