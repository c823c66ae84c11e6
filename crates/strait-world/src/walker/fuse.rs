//! Fusing: a thread fuses two of its ends; the other ends become the two ends of one channel.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use strait::{Deadline, Error, FuseError};

use super::{About, Held, Walker};
use crate::ledger::{FOR_REPORTS, Place, other};
use crate::trail::Call;

fn said_of_fusing(result: &Result<(), FuseError>) -> String {
    match result {
        Ok(()) => "Ok".into(),
        Err(FuseError { error, .. }) => format!("{error:?}"),
    }
}

impl Walker {
    /// Fuses two ends of channels of equal class, so that the fused channel still carries only ends of a higher
    /// class.
    pub(super) fn fuse(&mut self) {
        let Some((one, two)) = self.pick_to_fuse() else { return };
        let (near, far) = (one.end, two.end);
        let (Some(one), Some(two)) = (Arc::into_inner(one.channel), Arc::into_inner(two.channel)) else {
            self.wrong(near, "an end that is to be fused is still in use")
        };
        let life = self.process.number;
        self.book(near).put(Place::Fusing { life, with: far });
        self.book(far).put(Place::Fusing { life, with: near });
        if self.life.has_been_short() {
            [near, far].iter().for_each(|end| self.book(*end).hardship.store(1, SeqCst));
        }
        let patience = self.patience();
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        let over = self.life.shortages_over();
        let about = About { call: Call::Fuse, end: near, number: far.into() };
        let fused = self.timed(about, patience, || one.fuse(two, deadline), said_of_fusing);
        self.note(Call::Fuse, far, near.into(), &said_of_fusing(&fused));
        match fused {
            Ok(()) => {
                self.book(near).put(Place::Fused { with: far });
                self.book(far).put(Place::Fused { with: near });
            }
            Err(FuseError { error, channels: (one, two) }) => {
                self.hold(near, one);
                self.hold(far, two);
                if !self.may_fuse_say(near, far, over, patience, error) {
                    self.wrong(near, &format!("fusing with {far} says {error:?}"));
                }
            }
        }
    }

    /// Takes two ends for a fuse by this thread: of two channels of equal class.
    fn pick_to_fuse(&mut self) -> Option<(Held, Held)> {
        // Channels made by connecting two processes are few.
        let with_roads = self.random.one_in(4);
        let one = self.pick(|_| true)?;
        let one = self.held.swap_remove(one);
        let (class, peer) = (self.class(&one), self.process.ledger.peer(one.end));
        let of_class = |walker: &Self, held: &Held| walker.class(held) == class && held.end != peer;
        let may_be = |walker: &Self, held: &Held| of_class(walker, held) && walker.is_known(held.end);
        let found: Vec<usize> = (0..self.held.len()).filter(|at| may_be(self, &self.held[*at])).collect();
        if found.is_empty() || class == 0 && !with_roads || class == FOR_REPORTS || !self.is_known(one.end) {
            self.held.push(one);
            return None;
        }
        let two = self.held.swap_remove(found[self.random.index(found.len())]);
        Some((one, two))
    }

    /// Returns whether the process at the other end can tell the number of the channel from the first message.
    fn is_known(&self, end: u32) -> bool {
        self.book(other(end)).place() != Place::Offered || self.book(end).accepted.load(SeqCst) > 0
    }

    /// Returns whether a fuse may have failed with this error.
    fn may_fuse_say(&self, near: u32, far: u32, over: u64, patience: Duration, error: Error) -> bool {
        match error {
            // Meanwhile another process has fused the other ends of both.
            Error::OwnChannel => self.process.ledger.peer(near) == far,
            // One of the other ends was closed, or its process killed, during the call.
            Error::PeerClosed => self.is_other_gone(near) || self.is_other_gone(far),
            _ => self.passes(near, over, patience, error) && self.passes(far, over, patience, error),
        }
    }
}
