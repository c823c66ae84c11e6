//! The end of the world: each thread receives all messages, checks that lone ends return *peer closed*, and closes
//! everything.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::{TOLD, Walker};
use crate::judge;
use crate::ledger::Phase;

impl Walker {
    fn arrive_at(&self, phase: Phase) {
        self.walk.done.store(phase as u32, SeqCst);
    }

    /// Receives all messages until the controller ends the phase.
    pub(super) fn drain_all(&mut self) {
        self.arrive_at(Phase::Drain);
        while self.process.ledger.phase() == Phase::Drain {
            self.take_from_door();
            let mut came = false;
            for at in (0..self.held.len()).rev() {
                while at < self.held.len() && self.receive(at, Duration::ZERO) {
                    came = true;
                }
            }
            if !self.drain_calls() && !came {
                self.walk.quiet.fetch_add(1, SeqCst);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Checks that an end returns *peer closed* if and only if its other end is gone.
    pub(super) fn see_that_lone_ends_say_so(&mut self) {
        for at in (0..self.held.len()).rev() {
            let end = self.held[at].end;
            let is_lone = judge::is_peer_gone_for_certain(self.process.ledger, end);
            if is_lone {
                while self.receive(at, TOLD) {}
                if self.held.get(at).is_some_and(|held| held.end == end) {
                    self.wrong(end, "the other end is gone, and this one is not told in time");
                }
            } else {
                self.receive(at, Duration::ZERO);
            }
        }
        self.see_that_lone_calls_say_so();
        self.arrive_at(Phase::Lone);
        while self.process.ledger.phase() < Phase::Close {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(super) fn close_all(&mut self) {
        self.see_that_nothing_is_charged();
        while !self.held.is_empty() {
            self.close(self.held.len() - 1);
        }
        self.close_all_calls();
        self.unknown.clear();
        self.set = None;
        self.held = Vec::new();
        self.arrive_at(Phase::Close);
    }
}
