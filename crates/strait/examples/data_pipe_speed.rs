//! Measures the throughput of a data pipe between two processes, compared with bare copies through shared memory with a
//! flag for each piece.
//!
//! ```sh
//! cargo run --release -p strait --example data_pipe_speed
//! ```
//!
//! The producer runs on the first CPU and the consumer on the second. Rounds of all variants are interleaved, and
//! medians are shown. A piece is 64 KiB, and so is the memory on either side that is copied from and to; the buffer is
//! 256 KiB.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use strait::pipe::{DataConsumer, DataProducer, PipeOptions};
use strait::region::Region;
use strait::{CommandExt, Deadline, Error, Outgoing};

const PIECE: usize = 64 << 10;
const SLOTS: usize = 4;
const PIECES: usize = 20_000;
const ROUNDS: usize = 7;

/// Binds this process to a CPU, if there are that many.
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// The variants that are measured.
const VARIANTS: [&str; 4] = ["bare", "in place, copied", "in place, not copied", "write and read"];

fn main() -> Result<(), Error> {
    if std::env::args().nth(1).as_deref() == Some("child") {
        return child();
    }
    pin(0);
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    let (mut child, channel) = command.arg("child").spawn_with_channel()?;
    let (producer, consumer) = PipeOptions::new().capacity(SLOTS * PIECE).prefault(true).create()?;
    let bare = Region::new((SLOTS + 1) * PIECE)?;
    channel.send(Outgoing::new(b"").handle(consumer).handle(bare.clone()))?;
    let mut rates = [const { Vec::new() }; VARIANTS.len()];
    let source = vec![7u8; PIECE];
    for _ in 0..ROUNDS {
        for (variant, rates) in rates.iter_mut().enumerate() {
            channel.send(&[variant as u8])?;
            channel.recv()?;
            let begin = Instant::now();
            match variant {
                0 => bare_in(&bare, &source)?,
                variant => pipe_in(&producer, &source, variant)?,
            }
            channel.recv()?;
            rates.push((PIECE * PIECES) as f64 / begin.elapsed().as_secs_f64() / 1e9);
        }
    }
    drop(channel);
    child.wait().expect("a child");
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let medians = rates.each_mut().map(median);
    for (variant, rate) in VARIANTS.iter().zip(medians) {
        println!("{variant:22} {rate:6.2} GB/s   {:4.2} of bare", rate / medians[0]);
    }
    Ok(())
}

fn child() -> Result<(), Error> {
    pin(1);
    let channel = strait::from_parent()?;
    let mut handles = channel.recv()?.take_handles()?;
    let bare = handles.pop().and_then(strait::Handle::into_region).expect("a region");
    let consumer = handles.pop().and_then(strait::Handle::into_consumer).expect("a consumer");
    let mut sink = vec![0u8; PIECE];
    while let Ok(message) = channel.recv() {
        let variant = usize::from(message.bytes()[0]);
        channel.send(b"ready")?;
        match variant {
            0 => bare_out(&bare, &mut sink)?,
            variant => pipe_out(&consumer, &mut sink, variant)?,
        }
        channel.send(b"done")?;
    }
    Ok(())
}

/// Returns the flag of a slot, which is 1 while the slot is full.
fn flag(map: &strait::region::RegionMap, slot: usize) -> &AtomicU32 {
    map.word32(slot * 128).expect("inside")
}

fn wait_for(flag: &AtomicU32, value: u32) {
    while flag.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
}

fn bare_in(region: &Region, source: &[u8]) -> Result<(), Error> {
    let map = region.map_writable(..)?;
    for n in 0..PIECES {
        wait_for(flag(&map, n % SLOTS), 0);
        map.write_at(source, (1 + n % SLOTS) * PIECE)?;
        flag(&map, n % SLOTS).store(1, Ordering::Release);
    }
    Ok(())
}

fn bare_out(region: &Region, sink: &mut [u8]) -> Result<(), Error> {
    let map = region.map_writable(..)?;
    for n in 0..PIECES {
        wait_for(flag(&map, n % SLOTS), 1);
        map.read_at(sink, (1 + n % SLOTS) * PIECE)?;
        flag(&map, n % SLOTS).store(0, Ordering::Release);
    }
    Ok(())
}

fn pipe_in(producer: &DataProducer, source: &[u8], variant: usize) -> Result<(), Error> {
    let mut left = PIECE * PIECES;
    let deadline = Deadline::after(Duration::from_secs(60));
    while left > 0 {
        if variant == 3 {
            left -= producer.write_some(&source[..PIECE.min(left)], deadline)?;
            continue;
        }
        let mut room = producer.begin_write(deadline)?;
        let len = room.len().min(PIECE).min(left);
        if variant == 1 {
            room.write_at(&source[..len], 0);
        }
        room.commit(len);
        left -= len;
    }
    Ok(())
}

fn pipe_out(consumer: &DataConsumer, sink: &mut [u8], variant: usize) -> Result<(), Error> {
    let mut left = PIECE * PIECES;
    let deadline = Deadline::after(Duration::from_secs(60));
    while left > 0 {
        if variant == 3 {
            left -= consumer.read_some(sink, deadline)?;
            continue;
        }
        let unread = consumer.begin_read(deadline)?;
        let len = unread.len().min(PIECE);
        if variant == 1 {
            unread.read_at(&mut sink[..len], 0);
        }
        unread.consume(len);
        left -= len;
    }
    Ok(())
}
