//! Measures round trips between this process and a child, with default options, as a program has them that is built
//! with Cargo's own release profile:
//!
//! ```text
//! cargo run --release -p strait --example round_trips -- CALL SIZE COUNT PLACE [OFFSET]
//! ```
//!
//! CALL is `recv`, `recv_message` or `recv_into` (a message of SIZE bytes each way), or `in_place` or `each_page` (a
//! message of SIZE bytes in place, with 8 bytes or each page touched on both sides, and an answer of 8 bytes). PLACE is
//! `same` (one processor), `two` (processors 0 and 1) or `free`. The buffers of `recv_into` begin OFFSET bytes behind a
//! page; without OFFSET they are ordinary vectors. Prints the median, the 99th and the 99.9th percentile and the mean,
//! in microseconds.

use std::mem::MaybeUninit;
use std::process::Command;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use strait::{Channel, CommandExt, Deadline, Error, Message};

const PAGE: usize = 4096;

/// A buffer whose first byte lies at a chosen place of its page.
struct Buffer {
    memory: Vec<u8>,
    begin: usize,
}

impl Buffer {
    fn new(len: usize, offset: Option<usize>) -> Self {
        let memory = vec![1; len + offset.map_or(0, |offset| PAGE + offset)];
        let begin = offset.map_or(0, |offset| memory.as_ptr().align_offset(PAGE) + offset);
        Self { memory, begin }
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + len]
    }
}

fn receive(channel: &Channel, call: &str, buffer: &mut [u8], message: &mut Message) -> Result<(), Error> {
    match call {
        "recv" => drop(channel.recv()?),
        "recv_into" => drop(channel.recv_into(buffer, Deadline::NEVER)?),
        _ => channel.recv_message(message, Deadline::NEVER)?,
    }
    Ok(())
}

fn send_in_place(channel: &Channel, len: usize, step: usize) -> Result<(), Error> {
    let mut room = channel.reserve(len, Deadline::NEVER)?;
    room.as_uninit_mut().iter_mut().step_by(step).for_each(|byte| *byte = MaybeUninit::new(1));
    Ok(room.commit()?)
}

fn read_in_place(channel: &Channel, len: usize, step: usize) -> Result<(), Error> {
    let mut seen = channel.recv_in_place(Deadline::NEVER)?;
    let mut bytes = [0; 8];
    for at in (0..len).step_by(step) {
        seen.read_at(&mut bytes, at);
        std::hint::black_box(&bytes);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [call, size, count, place, rest @ ..] = &arguments[..] else {
        return Err("the arguments are CALL SIZE COUNT PLACE [OFFSET]".into());
    };
    let (size, count) = (size.parse::<usize>()?, count.parse::<usize>()?);
    let offset = rest.first().map(|offset| offset.parse::<usize>()).transpose()?;
    let (child, channel) = match strait::from_parent() {
        Ok(channel) => (None, channel),
        Err(_) => {
            let (child, channel) = Command::new(std::env::current_exe()?).args(&arguments).spawn_with_channel()?;
            (Some(child), channel)
        }
    };
    if place != "free" {
        let mut cpus = CpuSet::new();
        cpus.set(usize::from(place == "two" && child.is_none()));
        sched_setaffinity(None, &cpus)?;
    }
    let (mut out, mut into, mut message) = (Buffer::new(size, offset), Buffer::new(size, offset), Message::new());
    let step = if call == "each_page" { PAGE } else { size };
    let warm_up = count / 10 + 20;
    let mut times = Vec::with_capacity(count);
    for number in 0..warm_up + count {
        let begin = Instant::now();
        match (call.as_str(), child.is_some()) {
            ("in_place" | "each_page", true) => {
                send_in_place(&channel, size, step)?;
                receive(&channel, "recv_message", &mut [], &mut message)?;
            }
            ("in_place" | "each_page", false) => {
                read_in_place(&channel, size, step)?;
                channel.send(&[1; 8])?;
            }
            (call, true) => {
                channel.send(&*out.bytes(size))?;
                receive(&channel, call, into.bytes(size), &mut message)?;
            }
            (call, false) => {
                receive(&channel, call, into.bytes(size), &mut message)?;
                channel.send(&*out.bytes(size))?;
            }
        }
        if number >= warm_up {
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
    }
    let Some(mut child) = child else {
        // The parent ends the conversation.
        let _ = channel.recv();
        return Ok(());
    };
    drop(channel);
    child.wait()?;
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!("{:.2} {:.2} {:.2} {mean:.2}", at(0.5), at(0.99), at(0.999));
    Ok(())
}
