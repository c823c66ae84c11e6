//! A thread hop on each side: the "proxy" test of Mojo's and Chromium's ping-pongs.
//!
//! The process's first thread does the input and output, as an I/O thread does; a second one handles the messages. What
//! arrives is put into a queue for it, and what it answers goes back through another; each queue is a mutex and a
//! condition variable, and the buffers go around, so nothing is allocated. The handlers play an ordinary
//! [ping-pong](super::ping_pong), and what is timed is what they see.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::{Share, payload, ping_pong};
use crate::mechanism::{End, Opened, Side};
use crate::pair::clock;
use crate::samples::Samples;
use crate::shape::payload::STOP;
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Wait, Work};

/// Round trips from one thread to the other and back by which a bare hop is measured.
const BARE: u64 = 2000;

/// Messages from one thread to another.
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

    /// The next message, or `None` once it is closed and empty.
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

    fn close(&self) {
        self.lock().closed = true;
        self.told.notify_one();
    }
}

/// What is between the two threads of a process.
#[derive(Debug, Default)]
struct Hop {
    to_handler: Queue,
    to_io: Queue,
}

impl Hop {
    /// Nothing comes any more, in either direction.
    fn close(&self) {
        self.to_handler.close();
        self.to_io.close();
    }
}

/// The handler's end: everything goes through the queues.
#[derive(Debug)]
struct Handler<'a> {
    hop: &'a Hop,
    /// The buffer that goes around.
    spare: Vec<u8>,
}

impl Drop for Handler<'_> {
    fn drop(&mut self) {
        self.hop.close();
    }
}

impl Handler<'_> {
    fn send(&mut self, message: &[u8]) {
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.clear();
        buffer.extend_from_slice(message);
        self.hop.to_io.push(buffer);
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let message = self.hop.to_handler.pop().ok_or_else(|| Trouble::new("the input and output ended"))?;
        if message.len() != buffer.len() {
            return Err(Trouble::new(format!("a message of {} bytes came through the queue", message.len())));
        }
        buffer.copy_from_slice(&message);
        self.spare = message;
        Ok(())
    }
}

/// What the handler's loops are given: an end for which nothing has to be opened.
#[derive(Debug)]
struct Proxy(Handler<'static>);

impl End for Proxy {
    const NAME: &'static str = "proxy";
    const TITLE: &'static str = "proxy";
    const WAITS: &'static [Wait] = &[];

    fn open(_: &Work) -> Result<Opened> {
        Err(Self::unable())
    }

    fn join(_: &Work, _: Side, _: Vec<OwnedFd>) -> Result<Self> {
        Err(Self::unable())
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.0.send(message);
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.0.recv(buffer)
    }
}

/// Runs `handle` in a thread of its own, with `pump` in this one between it and the other process.
fn between<T: Send>(
    room: usize,
    handle: impl FnOnce(&mut Proxy) -> Result<T> + Send,
    pump: impl FnOnce(&Hop) -> Result<()>,
) -> Result<T> {
    // The process ends after this one measurement, and a handler that hangs is killed with it.
    let hop: &'static Hop = Box::leak(Box::default());
    let mut proxy = Proxy(Handler { hop, spare: Vec::with_capacity(room) });
    thread::scope(|scope| {
        let handler = scope.spawn(move || {
            let handled = handle(&mut proxy);
            drop(proxy);
            handled
        });
        let pumped = pump(hop);
        hop.close();
        let handled = handler.join().map_err(|_| Trouble::new("the handler panicked"))?;
        // If the pump failed, the handler failed of that.
        pumped.and(handled)
    })
}

/// The first process's side.
pub(super) fn first(end: &mut impl End, work: &Work) -> Result<Report> {
    let bare = bare()?;
    let pump = |hop: &Hop| -> Result<()> {
        while let Some(mut message) = hop.to_io.pop() {
            end.send(&message)?;
            end.recv(&mut message)?;
            hop.to_handler.push(message);
        }
        Ok(())
    };
    let mut report = between(work.size, |proxy| ping_pong::first(proxy, work, work.size), pump)?;
    report.found.insert("bare_hop_ns".to_owned(), bare);
    Ok(report)
}

/// The second process's side.
pub(super) fn second(end: &mut impl End, work: &Work) -> Result<Share> {
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
    between(work.size, |proxy| ping_pong::second(proxy, work, work.size), pump)
}

/// What a hop costs with nothing else: half of the way to another thread and back, in nanoseconds.
fn bare() -> Result<f64> {
    let mut samples = Samples::new();
    let echo = |proxy: &mut Proxy| -> Result<()> {
        let mut word = [0; 8];
        for _ in 0..BARE {
            proxy.recv(&mut word)?;
            proxy.send(&word)?;
        }
        Ok(())
    };
    between(8, echo, |hop| {
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
    use super::{bare, between};
    use crate::mechanism::End;
    use crate::trouble::Trouble;

    #[test]
    fn a_hop_takes_time() {
        assert!(bare().unwrap() > 10.0);
    }

    #[test]
    fn a_pump_that_fails_ends_the_handler() {
        let handle = |proxy: &mut super::Proxy| proxy.recv(&mut [0; 8]);
        let trouble = between(8, handle, |_| Err(Trouble::new("the pipe broke"))).unwrap_err();
        assert_eq!(trouble.to_string(), "the pipe broke");
    }
}
