//! Hubs: one process sends to several ends, and waits for all ends at once.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::{End, Hub};
use crate::trouble::{Result, While};
use crate::work::{Wait, Work};

/// An end that can be polled without waiting.
pub(super) trait Look: End {
    /// Receives a message into `buffer` if there is one; returns whether there was.
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool>;
}

/// A hub that polls its ends in turn.
struct InTurn<E, S> {
    ends: Vec<E>,
    /// The index of the end for the next poll.
    next: usize,
    sleep: S,
}

/// Returns a hub that polls its ends in turn. If no end had a message, `sleep` waits until some end may have one.
pub(super) fn in_turn<E: Look + 'static>(
    ends: Vec<E>,
    sleep: impl FnMut(&[E]) -> Result<()> + 'static,
) -> Box<dyn Hub> {
    Box::new(InTurn { ends, next: 0, sleep })
}

/// Returns a hub that polls its ends in turn, and never sleeps.
pub(super) fn spinning<E: Look + 'static>(ends: Vec<E>) -> Box<dyn Hub> {
    in_turn(ends, |_| {
        std::hint::spin_loop();
        Ok(())
    })
}

impl<E: Look, S: FnMut(&[E]) -> Result<()>> Hub for InTurn<E, S> {
    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        self.ends[to].send(message)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        loop {
            for _ in 0..self.ends.len() {
                let from = self.next;
                self.next = (from + 1) % self.ends.len();
                if self.ends[from].try_recv(buffer)? {
                    return Ok(Some(from));
                }
            }
            (self.sleep)(&self.ends)?;
        }
    }
}

/// An end with a descriptor that can be waited for together with others.
pub(super) trait Polls: End {
    /// Returns the descriptor that becomes readable when there is a message.
    fn polled(&self) -> BorrowedFd<'_>;

    /// Whether the end has a message although the descriptor is not readable, because one read takes the notifications
    /// of several messages.
    fn holds(&self) -> bool {
        false
    }
}

/// An end with only one descriptor (`AsFd`) uses the descriptor for its waits.
impl<E: End + AsFd> Polls for E {
    fn polled(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// A hub whose ends have descriptors in an epoll instance.
struct Polled<E> {
    ends: Vec<E>,
    epoll: OwnedFd,
    spins: bool,
    events: Vec<epoll::Event>,
    last: usize,
}

/// Returns a hub that waits for all ends by one `epoll_wait`, which returns all ready ends. The hub takes a message
/// from each ready end before waiting again.
pub(super) fn polled<E: Polls>(ends: Vec<E>, work: &Work) -> Result<Box<dyn Hub>> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).doing("epoll_create")?;
    for (key, end) in (0..).zip(&ends) {
        epoll::add(&epoll, end.polled(), epoll::EventData::new_u64(key), epoll::EventFlags::IN).doing("epoll_ctl")?;
    }
    let events = Vec::with_capacity(ends.len());
    Ok(Box::new(Polled { ends, epoll, spins: work.wait == Wait::Spin, events, last: 0 }))
}

impl<E: Polls> Hub for Polled<E> {
    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        self.ends[to].send(message)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        if self.ends[self.last].holds() {
            self.ends[self.last].recv(buffer)?;
            return Ok(Some(self.last));
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while self.events.is_empty() {
            let limit = self.spins.then_some(&now);
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), limit) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("epoll_wait"),
            }
        }
        match self.events.pop() {
            Some(event) => {
                let from = event.data.u64() as usize;
                self.last = from;
                self.ends[from].recv(buffer)?;
                Ok(Some(from))
            }
            None => self.recv(buffer),
        }
    }
}

/// Sends all bytes of `parts` by calls of `send`, each with as many bytes as possible. `send` returns the number of
/// sent bytes, or `None` if it could send none now.
pub(super) fn gathered(
    parts: &[IoSlice<'_>],
    mut send: impl FnMut(&[IoSlice<'_>]) -> Result<Option<usize>>,
) -> Result<()> {
    let all: usize = parts.iter().map(|part| part.len()).sum();
    let mut sent = loop {
        match send(parts)? {
            Some(sent) => break sent,
            None => std::hint::spin_loop(),
        }
    };
    if sent == all {
        return Ok(());
    }
    // The way was full. The remaining bytes are sent piece by piece.
    for part in parts {
        let skipped = sent.min(part.len());
        sent -= skipped;
        let mut rest = &part[skipped..];
        while !rest.is_empty() {
            match send(&[IoSlice::new(rest)])? {
                Some(more) => rest = &rest[more..],
                None => std::hint::spin_loop(),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::gathered;

    #[test]
    fn a_full_way_takes_the_pieces_in_order() {
        let parts = [b"one".as_slice(), b"", b"three", b"4"].map(IoSlice::new);
        let mut out = Vec::new();
        let mut calls = 0;
        gathered(&parts, |parts| {
            calls += 1;
            if calls % 2 == 0 {
                return Ok(None);
            }
            let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            let some = all.len().min(2);
            out.extend_from_slice(&all[..some]);
            Ok(Some(some))
        })
        .unwrap();
        assert_eq!(out, b"onethree4");
    }
}
