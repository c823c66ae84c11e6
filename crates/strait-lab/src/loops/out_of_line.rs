//! A large message there, and a short acknowledgement back: the total cost of moving many bytes to another process.
//!
//! *Warm* memory was used before, on both sides. *Cold* memory is used for the first time: page faults are most of its
//! cost, and are counted. *Touched* means that within the measured time the sender writes every byte of each message
//! and the receiver reads every byte. *Untouched* messages are written and read at 16 bytes only: the rest of the cost
//! is the transport's own work on the other bytes. A transport that moves memory instead of copying does no such work,
//! so its figures are marked, and kept separate.
//!
//! If memory of a mechanism can be filled and read in place, the shape uses it in place. A mechanism that can send
//! new memory without a copy sends new memory for the cold case. All other mechanisms copy from a buffer of the
//! sender into a buffer of the receiver.

use super::parts::{Share, acknowledged, finish, report};
use crate::mechanism::End;
use crate::process::clock;
use crate::process::fresh::Fresh;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::Ability;
use crate::shape::payload::{self, SMALLEST, STEADY, STOP};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

/// The number of bytes that are filled or read at a time in a large message. A piece stays in the cache.
const PIECE: usize = 64 << 10;

/// The way in which a mechanism is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Copy,
    InPlace,
    Fresh,
}

fn way<E: End>(cold: bool) -> Way {
    let able = |ability| E::ABILITIES.contains(&ability);
    match cold {
        true if able(Ability::Fresh) => Way::Fresh,
        false if able(Ability::InPlace) => Way::InPlace,
        _ => Way::Copy,
    }
}

/// Writes, reads and checks messages on one side.
#[derive(Debug)]
struct Touch {
    size: usize,
    all: bool,
    piece: Vec<u8>,
}

impl Touch {
    fn new(work: &Work, all: bool) -> Self {
        Self { size: work.size, all, piece: vec![0; PIECE.min(work.size)] }
    }

    /// Writes message `number`: all bytes, or only the first 8 and the last 8.
    fn write(&mut self, number: u64, mut put: impl FnMut(usize, &[u8])) {
        if self.all {
            payload::stamp(&mut self.piece, number);
            for place in (0..self.size).step_by(self.piece.len()) {
                let len = self.piece.len().min(self.size - place);
                put(place, &self.piece[..len]);
            }
        }
        put(0, &number.to_le_bytes());
        put(self.size - 8, &number.to_le_bytes());
    }

    /// Reads a message and returns its number. Fails if parts of the message have different numbers.
    fn read(&mut self, mut get: impl FnMut(usize, &mut [u8])) -> Result<u64> {
        let mut word = [0; 8];
        get(0, &mut word);
        let number = u64::from_le_bytes(word);
        get(self.size - 8, &mut word);
        if u64::from_le_bytes(word) != number {
            return Err(Trouble::new(format!("message {number} is torn: its end belongs to another message")));
        }
        if self.all {
            for place in (0..self.size).step_by(self.piece.len()) {
                let len = self.piece.len().min(self.size - place);
                get(place, &mut self.piece[..len]);
                // A short last piece has no room for a number of its own.
                if len >= SMALLEST * 2 && payload::number(&self.piece) != number {
                    return Err(Trouble::new(format!("message {number} is torn at byte {place}")));
                }
            }
        }
        Ok(number)
    }
}

/// Runs the first process of the shape `out-of-line`: sends large messages, and waits for each acknowledgement.
pub(super) fn first<E: End>(end: &mut E, work: &Work, cold: bool, touched: bool) -> Result<Report> {
    let way = way::<E>(cold);
    let mut touch = Touch::new(work, touched);
    let mut warm = vec![1; if way == Way::Copy && !cold { work.size } else { 0 }];
    let mut samples = Samples::new();
    let mut number = 0;
    let mut trip = |end: &mut E, number: u64| -> Result<u64> {
        let then = clock::now();
        let mut fresh = None;
        match way {
            Way::Copy => {
                let buffer = if cold { &mut fresh.insert(Fresh::new(work.size)?)[..] } else { &mut warm[..] };
                touch.write(number, |place, bytes| buffer[place..place + bytes.len()].copy_from_slice(bytes));
                end.send(buffer)?;
            }
            Way::InPlace => end.send_filled(work.size, |put| touch.write(number, put))?,
            Way::Fresh => end.send_fresh(work.size, |put| touch.write(number, put))?,
        }
        let mut answer = [0; SMALLEST];
        end.recv(&mut answer)?;
        let now = clock::now();
        acknowledged(&answer, number)?;
        Ok(now - then)
    };
    let begin = clock::now();
    let first = trip(end, number)?;
    while !work.extent.is_warm(number, clock::now() - begin) {
        number += 1;
        trip(end, number)?;
    }
    trip(end, STEADY)?;
    let gauge = Gauge::start()?;
    let begin = clock::now();
    let mut count = 0;
    while !work.extent.is_over(count, clock::now() - begin) {
        number += 1;
        samples.record(trip(end, number)?, 1);
        count += 1;
    }
    let elapsed = clock::now() - begin;
    let spent = gauge.spent()?;
    trip(end, STOP)?;
    Ok(Report { first, ..report(spent, count, elapsed, &samples) })
}

/// Runs the second process of the shape `out-of-line`: receives large messages, and acknowledges each.
pub(super) fn second<E: End>(end: &mut E, work: &Work, cold: bool, touched: bool) -> Result<Share> {
    let way = way::<E>(cold);
    let mut touch = Touch::new(work, touched);
    let mut warm = vec![0; if way == Way::Copy && !cold { work.size } else { 0 }];
    let mut gauge = Gauge::start()?;
    let mut due = 0;
    loop {
        let mut fresh = None;
        let number = if way == Way::Copy {
            let buffer = if cold { &mut fresh.insert(Fresh::new(work.size)?)[..] } else { &mut warm[..] };
            end.recv(buffer)?;
            touch.read(|place, out| out.copy_from_slice(&buffer[place..place + out.len()]))?
        } else {
            end.recv_in_place(work.size, |get| touch.read(get))??
        };
        match number {
            STEADY => gauge = Gauge::start()?,
            STOP => break,
            _ if number == due => due += 1,
            _ => return Err(Trouble::new(format!("message {number} came where message {due} was due"))),
        }
        end.send(&number.to_le_bytes())?;
    }
    finish(end, work, &STOP.to_le_bytes(), &gauge, due, &Samples::new())
}

#[cfg(test)]
mod tests {
    use super::Touch;
    use crate::placement::Placement;
    use crate::work::{Mechanism, Wait, Work};

    #[test]
    fn a_piece_of_another_message_is_found() {
        for size in [32, 100, 65_536, 200_000] {
            let work = Work::round_trip(Mechanism::PIPE, size, Wait::Block, Placement::Free);
            let mut touch = Touch::new(&work, true);
            let mut message = vec![0; size];
            touch.write(7, |place, bytes| message[place..place + bytes.len()].copy_from_slice(bytes));
            let mut read =
                |message: &[u8]| touch.read(|place, out| out.copy_from_slice(&message[place..place + out.len()]));
            assert_eq!(read(&message).unwrap(), 7);
            message[size - 8] = 6;
            assert!(read(&message).unwrap_err().to_string().contains("torn"));
            message[size - 8] = 7;
            if size > 65_536 {
                message[65_536] = 6;
                assert!(read(&message).unwrap_err().to_string().contains("torn at byte 65536"));
            }
        }
    }
}
