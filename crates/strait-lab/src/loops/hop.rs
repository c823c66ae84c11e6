//! A thread hop on each side: the "proxy" test of Mojo's and Chromium's ping-pongs.
//!
//! The first thread of the process does the input and output; a second thread, the handler, handles the messages.
//! Received messages go through a queue to the handler, and its answers go back through another. Each queue is a
//! mutex and a condition variable. The buffers are recycled, so nothing is allocated. The handlers play an ordinary
//! [ping-pong](super::ping_pong), and round trips are timed as the handler sees them.
//!
//! *Direct* is possible with a channel that any thread may call: the handler sends by itself, and only received
//! messages hop. This takes half of the hops and half of the queues.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::parts::{Messages, Share};
use super::ping_pong;
use crate::mechanism::{End, Receiving, Sending};
use crate::process::clock;
use crate::samples::Samples;
use crate::shape::payload::{self, STOP};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

/// The number of round trips by which a bare hop (handing a message to another thread) is measured.
const BARE: u64 = 2000;

/// A queue of messages from one thread to another.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Vec<u8>>,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, message: Vec<u8>) {
        self.lock().messages.push_back(message);
        self.told.notify_one();
    }

    /// Waits for the next message; returns `None` once the queue is closed and empty.
    fn pop(&self) -> Option<Vec<u8>> {
        let mut waiting = self.lock();
        loop {
            if let Some(message) = waiting.messages.pop_front() {
                return Some(message);
            }
            if waiting.closed {
                return None;
            }
            waiting = self.told.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the next message if there is one, without waiting.
    fn try_pop(&self) -> Option<Vec<u8>> {
        self.lock().messages.pop_front()
    }

    fn close(&self) {
        self.lock().closed = true;
        self.told.notify_one();
    }
}

/// The two queues between the threads of a process.
#[derive(Debug, Default)]
struct Hop {
    to_handler: Queue,
    to_io: Queue,
}

impl Hop {
    /// Closes both queues: no more messages will be added.
    fn close(&self) {
        self.to_handler.close();
        self.to_io.close();
    }
}

/// The handler's transport: a handler receives through a queue, and sends through another queue or, if `direct` is set,
/// by itself.
struct Handler<'a> {
    hop: &'static Hop,
    /// The recycled buffer for the next message to send.
    spare: Vec<u8>,
    direct: Option<Sending<'a>>,
}

impl Drop for Handler<'_> {
    fn drop(&mut self) {
        self.hop.close();
    }
}

impl Messages for Handler<'_> {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        if let Some(send) = &mut self.direct {
            return send(message);
        }
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.clear();
        buffer.extend_from_slice(message);
        self.hop.to_io.push(buffer);
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let message = self.hop.to_handler.pop().ok_or_else(|| Trouble::new("the thread for input and output ended"))?;
        if message.len() != buffer.len() {
            return Err(Trouble::new(format!("a message of {} bytes came through the queue", message.len())));
        }
        buffer.copy_from_slice(&message);
        if self.direct.is_some() {
            // A direct handler sends from a buffer of its own, so the received buffer goes back to the receiving
            // thread here.
            self.hop.to_io.push(message);
        } else {
            self.spare = message;
        }
        Ok(())
    }
}

/// Runs `handle` in a thread of its own, and `pump` in this thread, between the handler and the other process.
fn between<T: Send>(
    room: usize,
    direct: Option<Sending<'_>>,
    handle: impl FnOnce(&mut Handler<'_>) -> Result<T> + Send,
    pump: impl FnOnce(&Hop) -> Result<()>,
) -> Result<T> {
    // Nothing frees the queues: the process ends after this measurement, together with a hanging handler.
    let hop: &'static Hop = Box::leak(Box::default());
    thread::scope(|scope| {
        let handler = scope.spawn(move || handle(&mut Handler { hop, spare: Vec::with_capacity(room), direct }));
        let pumped = pump(hop);
        hop.close();
        let handled = handler.join().map_err(|_| Trouble::new("the handler panicked"))?;
        // If the pump failed, the handler's error is a consequence.
        pumped.and(handled)
    })
}

/// Puts received messages into the queue of a handler with its own sends, until the last message has arrived.
fn receive(hop: &Hop, receive: &mut Receiving<'_>, size: usize) -> Result<()> {
    loop {
        let mut buffer = hop.to_io.try_pop().unwrap_or_else(|| vec![0; size]);
        receive(&mut buffer)?;
        let last = payload::number(&buffer) == STOP;
        hop.to_handler.push(buffer);
        if last {
            return Ok(());
        }
    }
}

/// Runs the first process of the shape `hop`, with a handler that begins every round trip.
pub(super) fn first(end: &mut impl End, work: &Work, direct: bool) -> Result<Report> {
    let bare = bare()?;
    let handle = |handler: &mut Handler<'_>| ping_pong::first(handler, work, work.size);
    let mut report = if direct {
        let (sending, mut receiving) = end.divide()?;
        between(work.size, Some(sending), handle, |hop| receive(hop, &mut receiving, work.size))?
    } else {
        let pump = |hop: &Hop| -> Result<()> {
            while let Some(mut message) = hop.to_io.pop() {
                end.send(&message)?;
                end.recv(&mut message)?;
                hop.to_handler.push(message);
            }
            Ok(())
        };
        between(work.size, None, handle, pump)?
    };
    report.found.insert("bare_hop_ns".to_owned(), bare);
    Ok(report)
}

/// Runs the second process of the shape `hop`, with a handler that answers.
pub(super) fn second(end: &mut impl End, work: &Work, direct: bool) -> Result<Share> {
    let handle = |handler: &mut Handler<'_>| ping_pong::second(handler, work, work.size);
    if direct {
        let (sending, mut receiving) = end.divide()?;
        return between(work.size, Some(sending), handle, |hop| receive(hop, &mut receiving, work.size));
    }
    let pump = |hop: &Hop| -> Result<()> {
        let mut buffer = vec![0; work.size];
        loop {
            end.recv(&mut buffer)?;
            let last = payload::number(&buffer) == STOP;
            hop.to_handler.push(buffer);
            let Some(answer) = hop.to_io.pop() else { return Ok(()) };
            end.send(&answer)?;
            if last {
                return Ok(());
            }
            buffer = answer;
        }
    };
    between(work.size, None, handle, pump)
}

/// Measures a bare hop, which hands a message to another thread through a queue: half of the way to another thread
/// and back. Returns its median duration in nanoseconds.
pub(crate) fn bare() -> Result<f64> {
    let mut samples = Samples::new();
    let echo = |handler: &mut Handler<'_>| -> Result<()> {
        let mut word = [0; 8];
        for _ in 0..BARE {
            handler.recv(&mut word)?;
            handler.send(&word)?;
        }
        Ok(())
    };
    between(8, None, echo, |hop| {
        let mut message = vec![0; 8];
        for round in 0..BARE {
            let then = clock::now();
            hop.to_handler.push(message);
            message = hop.to_io.pop().ok_or_else(|| Trouble::new("the handler ended"))?;
            if round >= BARE / 10 {
                samples.record(clock::now() - then, 2);
            }
        }
        Ok(())
    })?;
    Ok(samples.percentiles().p50)
}

#[cfg(test)]
mod tests {
    use super::{Handler, Messages, bare, between};
    use crate::trouble::Trouble;

    #[test]
    fn a_hop_takes_time() {
        assert!(bare().unwrap() > 10.0);
    }

    #[test]
    fn a_pump_that_fails_ends_the_handler() {
        let handle = |handler: &mut Handler<'_>| handler.recv(&mut [0; 8]);
        let trouble = between(8, None, handle, |_| Err(Trouble::new("the pipe broke"))).unwrap_err();
        assert_eq!(trouble.to_string(), "the pipe broke");
    }
}
