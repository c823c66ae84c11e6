//! Traces: the last calls of each thread, as text in a file that outlives the process, also one that is killed.
//!
//! The first line names the thread. The others are a ring of lines of one length, which the thread writes through a
//! shared mapping. Each line begins with its number, so `sort` brings the lines into the order of the calls. A thread
//! writes a line before each call, and adds the result after the call: the last line of a killed process is the call in
//! which the process died.

use std::cell::Cell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::ledger::WALKERS;
use crate::trail::{Call, NO_END};

/// The number of bytes of a line, with the line end.
const LINE: usize = 128;
/// The number of lines of a file, the first one included.
const LINES: usize = 4096;

/// The trace of a thread.
pub(crate) struct Trace {
    bytes: &'static [AtomicU8],
    /// The number of the next line.
    next: Cell<usize>,
    /// The time from which the lines count seconds.
    origin: u64,
}

/// Returns the path of the trace of a thread: the thread `walker` of the process `life` of the world `seed`.
fn path(directory: &Path, seed: u64, life: usize, walker: usize) -> PathBuf {
    directory.join(format!("world-{seed}.{life}.{walker}"))
}

impl Trace {
    /// Creates the file of a thread, filled with empty lines. The lines count seconds from `origin`.
    pub(crate) fn new(directory: &Path, seed: u64, life: usize, walker: usize, origin: u64) -> io::Result<Self> {
        let path = path(directory, seed, life, walker);
        let mut file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.write_all(format!("{:>LINE$}", '\n').repeat(LINES).as_bytes())?;
        let (len, access) = (LINE * LINES, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a null hint makes the kernel choose fresh address space.
        let mapped = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0) }?;
        // SAFETY: the mapping has this length and is never unmapped. Nothing makes the file shorter, and this thread
        // writes the mapping by atomics only.
        let bytes = unsafe { std::slice::from_raw_parts(mapped.cast::<AtomicU8>(), len) };
        let thread = rustix::thread::gettid().as_raw_nonzero();
        write(&bytes[..LINE - 1], &format!("process {}, thread {thread}", std::process::id()));
        Ok(Self { bytes, next: Cell::new(0), origin })
    }

    /// Writes the line of a call that begins at the time `begin`. `about` is the number of a message or of another
    /// thing that the call concerns. Returns the number of the line.
    pub(crate) fn begin(&self, begin: u64, call: Call, end: u32, about: u64) -> usize {
        let number = self.next.replace(self.next.get() + 1);
        let end = if end == NO_END { String::new() } else { format!(" end {end}") };
        let time = begin.saturating_sub(self.origin) as f64 / 1e9;
        let call = Call::of(call as u32);
        write(self.line(number), &format!("{number:>10} {time:>12.6} s  {call}{end} [{about}] ->"));
        number
    }

    /// Lets the next line replace the line with this number, unless that is not the last line.
    pub(crate) fn forget(&self, number: usize) {
        if self.next.get() == number + 1 {
            self.next.set(number);
        }
    }

    /// Adds the result to the line with this number, whose call took `took` nanoseconds.
    pub(crate) fn end(&self, number: usize, took: u64, outcome: &str) {
        let line = self.line(number);
        let used = line.iter().rposition(|byte| byte.load(Relaxed) != b' ').map_or(0, |last| last + 2);
        write(&line[used.min(line.len())..], &format!("{} us, {outcome}", took / 1000));
    }

    /// Returns the place of the line with this number, without the line end.
    fn line(&self, number: usize) -> &[AtomicU8] {
        let at = LINE * (1 + number % (LINES - 1));
        &self.bytes[at..at + LINE - 1]
    }
}

/// Writes `text` on one line into `place`. Cuts off what does not fit, and fills what is left with spaces.
fn write(place: &[AtomicU8], text: &str) {
    let text = text.bytes().map(|byte| if byte == b'\n' { b' ' } else { byte });
    for (place, byte) in place.iter().zip(text.chain(std::iter::repeat(b' '))) {
        place.store(byte, Relaxed);
    }
}

/// Returns the traces of the world `seed`, which has had `lives` processes.
pub(crate) fn of_world(directory: &Path, seed: u64, lives: usize) -> impl Iterator<Item = (usize, PathBuf)> {
    let threads = (0..lives).flat_map(|life| (0..WALKERS).map(move |walker| (life, walker)));
    threads.map(move |(life, walker)| (life, path(directory, seed, life, walker))).filter(|(_, path)| path.exists())
}

/// Returns the number of lines of a trace about ends of the channels `about`.
pub(crate) fn lines_about(trace: &Path, about: &[u32]) -> usize {
    let text = String::from_utf8_lossy(&std::fs::read(trace).unwrap_or_default()).into_owned();
    let end_of = |line: &str| line.split(" end ").nth(1)?.split(' ').next()?.parse::<u32>().ok();
    text.lines().filter_map(end_of).filter(|end| about.contains(&(end / 2))).count()
}
