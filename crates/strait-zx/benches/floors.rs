//! Measures the cost of the functions above the operations inside.
//!
//! Each figure is a ratio of two ways to do the same, which take turns in short rounds. The program prints the medians
//! of the rounds and the median of their ratios, all of one run. Compare ratios, not nanoseconds of different runs.
//!
//! ```sh
//! cargo bench -p strait-zx                    # or with some of: small regions vectors calls
//! ```

use std::ffi::c_void;
use std::hint::black_box;
use std::io::IoSlice;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use strait::{Channel, Deadline};
use strait_zx::abi::*;
use strait_zx::boundary::*;

/// Number of rounds of each comparison.
const ROUNDS: usize = 301;

/// Size in bytes of the bare ring: the size to which the channel's ring has grown when it is measured.
const RING: usize = 512 << 10;

/// Returns whether the run only shows that the benchmark works: `cargo test` passes `--test`, and so may others.
fn is_trial() -> bool {
    std::env::args().any(|argument| argument == "--test")
}

/// Named ways to do the same; each is compared with the last one.
struct Contest<'a> {
    title: String,
    ways: Vec<(String, Box<dyn FnMut() + 'a>)>,
    /// Number of repetitions of each way in a round.
    count: usize,
}

impl<'a> Contest<'a> {
    fn new(title: impl Into<String>, count: usize) -> Self {
        Self { title: title.into(), ways: Vec::new(), count }
    }

    fn way(mut self, name: impl Into<String>, run: impl FnMut() + 'a) -> Self {
        self.ways.push((name.into(), Box::new(run)));
        self
    }

    fn run(mut self) {
        let rounds = if is_trial() { 3 } else { ROUNDS };
        let count = if is_trial() { 10 } else { self.count };
        let mut times = vec![Vec::with_capacity(rounds); self.ways.len()];
        for round in 0..rounds + rounds / 10 {
            for (index, (_, way)) in self.ways.iter_mut().enumerate() {
                let begin = Instant::now();
                for _ in 0..count {
                    way();
                }
                let each = begin.elapsed().as_nanos() as f64 / count as f64;
                // The first rounds warm up.
                if round >= rounds / 10 {
                    times[index].push(each);
                }
            }
        }
        println!("{}", self.title);
        let floor = times.last().expect("a way").clone();
        for ((name, _), times) in self.ways.iter().zip(&times) {
            let ratios: Vec<_> = times.iter().zip(&floor).map(|(time, floor)| time / floor).collect();
            println!("  {name:<58} {:>8.1} ns {:>6.2} x", median(times), median(&ratios));
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn channel() -> (zx_handle_t, zx_handle_t) {
    let (mut a, mut b) = (0, 0);
    // SAFETY: the pointers lead to local variables.
    assert_eq!(unsafe { zx_channel_create(0, &mut a, &mut b) }, 0);
    (a, b)
}

fn write(handle: zx_handle_t, bytes: &[u8]) {
    // SAFETY: the pointer and the length are those of a slice.
    let status = unsafe { zx_channel_write(handle, 0, bytes.as_ptr().cast(), bytes.len() as u32, null(), 0) };
    assert_eq!(status, 0);
}

fn write_regions(handle: zx_handle_t, regions: &[zx_channel_iovec_t]) {
    let options = ZX_CHANNEL_WRITE_USE_IOVEC;
    // SAFETY: the pointer and the length are those of a slice of valid regions.
    let status = unsafe { zx_channel_write(handle, options, regions.as_ptr().cast(), regions.len() as u32, null(), 0) };
    assert_eq!(status, 0);
}

fn read(handle: zx_handle_t, buffer: &mut [u8]) -> zx_status_t {
    let (mut bytes, mut handles) = (0, 0);
    let (out, len): (*mut c_void, _) = (buffer.as_mut_ptr().cast(), buffer.len() as u32);
    // SAFETY: the pointers and the lengths are those of a slice and of local variables.
    unsafe { zx_channel_read(handle, 0, out, null_mut(), len, 0, &mut bytes, &mut handles) }
}

/// Compares writing and reading 64 bytes with the same through Rust.
fn small_messages() {
    let message = [7u8; 64];
    let (a, b) = channel();
    let (c, d) = strait_zx::channel_options().pair().expect("a channel");
    let mut buffer = [0u8; 64];
    let mut other = [0u8; 64];
    Contest::new("write and read 64 B in one process", 2000)
        .way("zx_channel_write, zx_channel_read", || {
            write(a, black_box(&message));
            assert_eq!(read(b, black_box(&mut buffer)), 0);
        })
        .way("Channel::try_send, Channel::recv_into", || {
            c.try_send(black_box(&message)).expect("room");
            d.recv_into(black_box(&mut other), Deadline::NOW).expect("a message");
        })
        .run();
}

/// A minimal ring for one writer and one reader, with records like Strait's: a header of 8 bytes, and then the regions.
/// The ring does only what is unavoidable for any such ring: it checks the array of regions against Zircon's limits and
/// for room, copies the regions, and publishes the record with one store.
struct BareRing {
    memory: Vec<AtomicU64>,
    /// Number of bytes written, and number of bytes read as far as the writer knows.
    written: usize,
    read_seen: usize,
    /// Number of bytes read, as published by the reader, in a cache line of its own.
    read: Box<Line>,
    /// Whether a reader may sleep; the writer checks this behind a barrier.
    wakes: bool,
}

#[derive(Default)]
#[repr(align(64))]
struct Line {
    position: AtomicUsize,
    sleeps: AtomicU32,
}

impl BareRing {
    fn new(wakes: bool) -> Self {
        let memory = (0..RING / 8).map(|_| AtomicU64::new(0)).collect();
        Self { memory, written: 0, read_seen: 0, read: Box::default(), wakes }
    }

    /// Returns the address of a position in the ring. Panics if `len` bytes do not fit behind it.
    fn at(&self, position: usize, len: usize) -> *mut u8 {
        assert!(position + len <= RING);
        self.memory.as_ptr().cast_mut().cast::<u8>().wrapping_add(position)
    }

    #[inline(never)]
    fn gather(&mut self, regions: *const zx_channel_iovec_t, count: u32) -> bool {
        if count > ZX_CHANNEL_MAX_MSG_IOVECS || regions.is_null() {
            return false;
        }
        // SAFETY: the caller says that there are as many regions.
        let regions = unsafe { std::slice::from_raw_parts(regions, count as usize) };
        let (mut total, mut wrong) = (0u64, 0);
        for region in regions {
            total += u64::from(region.capacity);
            wrong |= region.reserved | u32::from(region.buffer.is_null() && region.capacity > 0);
        }
        if wrong != 0 || total > u64::from(ZX_CHANNEL_MAX_MSG_BYTES) {
            return false;
        }
        let size = (8 + total as usize).next_multiple_of(64);
        let at = self.written % RING;
        let skip = if at + size > RING { RING - at } else { 0 };
        if self.written + skip + size - self.read_seen > RING {
            self.read_seen = self.read.position.load(Ordering::Acquire);
            if self.written + skip + size - self.read_seen > RING {
                return false;
            }
        }
        if skip > 0 {
            self.memory[at / 8].store(SKIP, Ordering::Release);
            self.written += skip;
        }
        let start = self.written % RING;
        let mut to = self.at(start + 8, total as usize);
        for region in regions {
            let len = region.capacity as usize;
            // SAFETY: the regions are valid, and all of them fit at `to`, where no thread reads yet.
            unsafe {
                std::ptr::copy_nonoverlapping(region.buffer.cast(), to, len);
                to = to.add(len);
            }
        }
        self.written += size;
        if self.wakes {
            self.memory[start / 8].swap(total + 1, Ordering::SeqCst);
            return self.read.sleeps.load(Ordering::SeqCst) == 0;
        }
        self.memory[start / 8].store(total + 1, Ordering::Release);
        true
    }

    /// Reads a message; returns `false` if there is none.
    fn take(&mut self, out: &mut [u8]) -> bool {
        let position = self.read.position.load(Ordering::Relaxed);
        let at = position % RING;
        if position == self.written {
            return false;
        }
        let header = self.memory[at / 8].swap(0, Ordering::Acquire);
        if header == SKIP {
            self.read.position.store(position + RING - at, Ordering::Release);
            return self.take(out);
        }
        let len = header as usize - 1;
        // SAFETY: the record is inside of the ring, and the writer does not write there before the record is marked as
        // read.
        unsafe { std::ptr::copy_nonoverlapping(self.at(at + 8, len), out[..len].as_mut_ptr(), len) };
        self.read.position.store(position + (8 + len).next_multiple_of(64), Ordering::Release);
        true
    }
}

/// The header of the unused rest at the end of the ring.
const SKIP: u64 = u64::MAX;

/// Compares writing 1, 16 and 64 regions with copying them into a ring.
fn regions() {
    println!(
        "ns for a write of so many regions: zx_channel_write; Channel::try_send of slices; a bare ring; one that can wake a reader; \
         the first in ratio to each of the others"
    );
    for count in [1usize, 16, 64] {
        for size in [16usize, 64, 256, 1024, 4096, 16384, 65536] {
            let total = size * count;
            if total > ZX_CHANNEL_MAX_MSG_BYTES as usize {
                continue;
            }
            let parts: Vec<Vec<u8>> = (0..count).map(|part| vec![part as u8; size]).collect();
            let regions: Vec<_> = parts
                .iter()
                .map(|part| zx_channel_iovec_t {
                    buffer: part.as_ptr().cast(),
                    capacity: part.len() as u32,
                    reserved: 0,
                })
                .collect();
            // Written messages have to be read at some time, which is not measured: as many at a time as fit into the
            // first ring.
            let burst = (200_000 / total).clamp(1, 256);
            let (mut calls, mut bare, mut waking) = (Calls(channel()), BareRing::new(false), BareRing::new(true));
            let slices = parts.iter().map(|part| IoSlice::new(part)).collect();
            let mut rust = Rust { ends: strait_zx::channel_options().pair().expect("a channel"), slices };
            let times = compare_bursts(&regions, burst, &mut [&mut calls, &mut rust, &mut bare, &mut waking]);
            print!("{count:>4} x {size:>5} B");
            times.iter().for_each(|times| print!(" {:>9.1}", median(times)));
            times[1..].iter().for_each(|others| print!("   {:.2} x", median(&ratios(&times[0], others))));
            println!();
        }
    }
}

/// A destination of writes.
trait Way {
    /// Writes the regions `count` times.
    fn burst(&mut self, regions: &[zx_channel_iovec_t], count: usize);

    /// Reads all written messages.
    fn empty(&mut self, buffer: &mut [u8]);
}

struct Calls((zx_handle_t, zx_handle_t));

impl Way for Calls {
    fn burst(&mut self, regions: &[zx_channel_iovec_t], count: usize) {
        (0..count).for_each(|_| write_regions(self.0.0, black_box(regions)));
    }

    fn empty(&mut self, buffer: &mut [u8]) {
        while read(self.0.1, buffer) == 0 {}
    }
}

/// Writes through Rust, where the slices are known to be valid and are not checked.
struct Rust<'a> {
    ends: (Channel, Channel),
    slices: Vec<IoSlice<'a>>,
}

impl Way for Rust<'_> {
    fn burst(&mut self, _: &[zx_channel_iovec_t], count: usize) {
        (0..count).for_each(|_| self.ends.0.try_send(black_box(&self.slices[..])).expect("room"));
    }

    fn empty(&mut self, buffer: &mut [u8]) {
        while self.ends.1.recv_into(buffer, Deadline::NOW).is_ok() {}
    }
}

impl Way for BareRing {
    fn burst(&mut self, regions: &[zx_channel_iovec_t], count: usize) {
        (0..count).for_each(|_| assert!(self.gather(black_box(regions.as_ptr()), regions.len() as u32)));
    }

    fn empty(&mut self, buffer: &mut [u8]) {
        while self.take(buffer) {}
    }
}

/// Returns the time of one operation of each way, measured in alternating bursts: a figure for each round.
fn compare_bursts(regions: &[zx_channel_iovec_t], burst: usize, ways: &mut [&mut dyn Way]) -> Vec<Vec<f64>> {
    let rounds = if is_trial() { 3 } else { ROUNDS };
    let bursts = if is_trial() { 1 } else { (1500 / burst).max(2) };
    let mut times = vec![Vec::with_capacity(rounds); ways.len()];
    let mut buffer = vec![0u8; ZX_CHANNEL_MAX_MSG_BYTES as usize];
    for round in 0..rounds + rounds / 10 {
        let mut spent = vec![0u128; ways.len()];
        for _ in 0..bursts {
            for (way, spent) in ways.iter_mut().zip(&mut spent) {
                let begin = Instant::now();
                way.burst(regions, burst);
                *spent += begin.elapsed().as_nanos();
                way.empty(&mut buffer);
            }
        }
        // The first rounds warm up.
        if round >= rounds / 10 {
            for (times, spent) in times.iter_mut().zip(spent) {
                times.push(spent as f64 / (burst * bursts) as f64);
            }
        }
    }
    times
}

fn ratios(times: &[f64], floor: &[f64]) -> Vec<f64> {
    times.iter().zip(floor).map(|(time, floor)| time / floor).collect()
}

/// Measures the table of RFC-0010: an event with a vector is encoded, written, waited for by a port, and read; and
/// encoded alone.
fn vectors() {
    /// The encoding of a message with a vector: a header of 16 B, and a vector header of 16 B.
    #[repr(C)]
    struct Head {
        header: [u64; 2],
        vector: [u64; 2],
    }
    for size in [256usize, 4096] {
        let vector = vec![5u8; size];
        let (a, b) = channel();
        let mut port = 0;
        // SAFETY: the pointer leads to a local variable.
        assert_eq!(unsafe { zx_port_create(0, &mut port) }, 0);
        let mut buffer = vec![0u8; 8192];
        let event = |write: &mut dyn FnMut(), buffer: &mut [u8]| {
            write();
            assert_eq!(zx_object_wait_async(b, port, 1, ZX_CHANNEL_READABLE, 0), 0);
            let mut packet = zx_port_packet_t::default();
            // SAFETY: the pointer leads to a local variable.
            assert_eq!(unsafe { zx_port_wait(port, ZX_TIME_INFINITE, &mut packet) }, 0);
            assert_eq!(read(b, buffer), 0);
        };
        let linear = |vector: &[u8]| {
            let head = Head { header: [1, 2], vector: [vector.len() as u64, u64::MAX] };
            // As a language binding does: all data is copied into a buffer for the message.
            let mut bytes = Vec::with_capacity(size_of::<Head>() + vector.len());
            head.header.iter().chain(&head.vector).for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
            bytes.extend_from_slice(vector);
            bytes
        };
        let gathered = |vector: &[u8], send: &mut dyn FnMut(&[zx_channel_iovec_t])| {
            let head = Head { header: [1, 2], vector: [vector.len() as u64, u64::MAX] };
            send(&[
                zx_channel_iovec_t { buffer: (&raw const head).cast(), capacity: 32, reserved: 0 },
                zx_channel_iovec_t { buffer: vector.as_ptr().cast(), capacity: vector.len() as u32, reserved: 0 },
            ]);
        };
        let mut other = buffer.clone();
        Contest::new(format!("event of a vector of {size} B: write, wait_async, port_wait, read"), 500)
            .way("two regions", || {
                event(&mut || gathered(black_box(&vector), &mut |regions| write_regions(a, regions)), &mut other);
            })
            .way("linearised", || event(&mut || write(a, &linear(black_box(&vector))), &mut buffer))
            .run();
        let mut buffer = vec![0u8; 8192];
        let mut other = buffer.clone();
        Contest::new(format!("vector of {size} B: write and read alone"), 1000)
            .way("two regions", || {
                gathered(black_box(&vector), &mut |regions| write_regions(a, regions));
                assert_eq!(read(b, &mut other), 0);
            })
            .way("linearised", || {
                write(a, &linear(black_box(&vector)));
                assert_eq!(read(b, &mut buffer), 0);
            })
            .run();
        Contest::new(format!("encoding of a vector of {size} B alone"), 5000)
            .way("two regions", || {
                gathered(black_box(&vector), &mut |regions| {
                    black_box(regions);
                })
            })
            .way("linearised", || drop(black_box(linear(black_box(&vector)))))
            .run();
    }
}

/// Compares a call with two messages. A thread replies to each; both threads spin.
fn calls() {
    let turn = AtomicUsize::new(0);
    let take = |way| {
        if turn.load(Ordering::Relaxed) != way {
            turn.store(way, Ordering::Relaxed);
        }
    };
    let (a, b) = channel();
    let (c, d) = channel();
    let (e, f) = strait_zx::channel_options().pair().expect("a channel");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0u8; 64];
            loop {
                // The thread serves a single end at a time, so that the current way has the whole thread.
                match turn.load(Ordering::Relaxed) {
                    0 if read(b, &mut buffer) == 0 => write(b, &buffer[..56]),
                    1 if read(d, &mut buffer) == 0 => write(d, &buffer[..56]),
                    2 => {
                        if let Ok(received) = f.recv_into(&mut buffer, Deadline::NOW) {
                            f.try_send(&buffer[..received.len()]).expect("room");
                        }
                    }
                    3 => return,
                    _ => {}
                }
            }
        });
        let message = [1u8; 56];
        let mut answer = [0u8; 64];
        let mut other = [0u8; 64];
        let mut third = [0u8; 64];
        let args = zx_channel_call_args_t {
            wr_bytes: message.as_ptr().cast(),
            wr_handles: null_mut(),
            rd_bytes: answer.as_mut_ptr().cast(),
            rd_handles: null_mut(),
            wr_num_bytes: 56,
            wr_num_handles: 0,
            rd_num_bytes: 64,
            rd_num_handles: 0,
        };
        Contest::new("a call of 56 B, against a message each way (a thread answers)", 300)
            .way("zx_channel_call", || {
                take(0);
                let (mut bytes, mut handles) = (0, 0);
                // SAFETY: the pointers lead to local variables.
                let status = unsafe { zx_channel_call(a, 0, ZX_TIME_INFINITE, &args, &mut bytes, &mut handles) };
                assert_eq!((status, bytes), (0, 56));
            })
            .way("Channel::try_send, Channel::recv_into", || {
                take(2);
                e.try_send(&message).expect("room");
                while e.recv_into(&mut third, Deadline::NOW).is_err() {}
            })
            .way("zx_channel_write, zx_channel_read until it is there", || {
                take(1);
                write(c, &message);
                while read(c, &mut other) != 0 {}
            })
            .run();
        turn.store(3, Ordering::Relaxed);
    });
}

fn main() {
    // With names as arguments, only the named comparisons run.
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let comparisons: [(&str, fn()); 4] =
        [("small", small_messages), ("regions", regions), ("vectors", vectors), ("calls", calls)];
    for (name, compare) in comparisons {
        if named.is_empty() || named.iter().any(|wanted| wanted == name) {
            compare();
        }
    }
}
