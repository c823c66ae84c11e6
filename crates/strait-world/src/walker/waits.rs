//! Other waits than by a deadline or a level-triggered set: interrupters, one-shot members of wait sets, and traps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use strait::wait::{Conditions, Interest, Mode, NotArmed, Reason, Sprung, Traps, WaitSet};
use strait::{Deadline, Error};

use super::receiving::in_parts;
use super::{About, Walker, said};
use crate::trail::{Call, NO_END};
use crate::worker::excused;

/// The registration of an end in the wait set of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registration {
    None,
    Level,
    /// The set reports the end once, if `armed`.
    OneShot {
        armed: bool,
    },
    /// The set reports the end once, when there is room to send.
    Room,
}

impl Registration {
    /// Returns whether the set reports a waiting message.
    pub(super) fn reports(self) -> bool {
        matches!(self, Self::Level | Self::OneShot { armed: true })
    }
}

impl Walker {
    /// Interrupts an end, and then receives with a distant deadline: the call must return at once.
    pub(super) fn receive_interrupted(&mut self) {
        let Some(at) = self.pick(|_| true) else { return };
        let (end, channel) = (self.held[at].end, Arc::clone(&self.held[at].channel));
        let interrupter = channel.interrupter();
        interrupter.interrupt();
        let over = self.life.shortages_over();
        let about = About { call: Call::Interrupted, end, number: 0 };
        let received = self.timed(about, Duration::ZERO, || channel.recv_by(Duration::from_secs(6)), said);
        interrupter.resume();
        drop(channel);
        match received {
            Ok(message) => {
                let (bytes, handles) = in_parts(message);
                self.take(end, &bytes, handles);
            }
            Err(Error::Interrupted) => {}
            Err(Error::PeerClosed) => self.see_closed(at),
            Err(error) => {
                if !excused(self.process, over, error) {
                    self.wrong(end, &format!("receiving from an end that is interrupted says {error:?}"));
                }
            }
        }
    }

    /// Rearms some of the members reported by the set.
    pub(super) fn rearm_some(&mut self, set: &WaitSet) {
        for at in 0..self.held.len() {
            let may_be =
                matches!(self.held[at].registration, Registration::OneShot { armed: false } | Registration::Room);
            if !may_be || self.random.one_in(2) {
                continue;
            }
            let (end, channel) = (self.held[at].end, Arc::clone(&self.held[at].channel));
            let over = self.life.shortages_over();
            let about = About { call: Call::Rearm, end, number: 0 };
            let rearm = || set.modify(&channel, end.into(), Interest::Readable, Mode::OneShot);
            match self.timed(about, Duration::ZERO, rearm, said) {
                // After an error of the channel the set reports the error.
                Ok(()) | Err(Error::PeerClosed) => self.held[at].registration = Registration::OneShot { armed: true },
                Err(error) if self.passes(end, over, Duration::ZERO, error) => {}
                Err(error) => self.wrong(end, &format!("rearming in a set: {error:?}")),
            }
        }
    }

    /// Records that the set has reported an end. A one-shot end must have been armed.
    pub(super) fn note_event(&mut self, at: usize) {
        let held = &mut self.held[at];
        let end = held.end;
        if held.registration == Registration::Room {
            held.registration = Registration::OneShot { armed: false };
        } else if let Registration::OneShot { armed } = &mut held.registration
            && !std::mem::replace(armed, false)
        {
            self.wrong(end, "a set reports an end that is not armed");
        }
    }

    /// Removes an end returned by a failed send from its set, if the end is still there.
    pub(super) fn remove(&mut self, set: &WaitSet, at: usize) {
        let (end, channel) = (self.held[at].end, Arc::clone(&self.held[at].channel));
        let about = About { call: Call::Remove, end, number: 0 };
        if let Err(error) = self.timed(about, Duration::ZERO, || set.remove(&channel), said) {
            self.wrong(end, &format!("removing from a set: {error:?}"));
        }
    }

    /// Waits for an end by a trap, which must spring once if a message is there or the other end is gone.
    pub(super) fn trap(&mut self) {
        let Some(at) = self.pick(|held| held.registration == Registration::None) else { return };
        let over = self.life.shortages_over();
        let about = About { call: Call::NewTraps, end: NO_END, number: 0 };
        let traps = match self.timed(about, Duration::ZERO, Traps::new, said) {
            Ok(traps) => traps,
            Err(error) if excused(self.process, over, error) => return,
            Err(error) => self.process.wrong(None, &format!("traps: {error:?}")),
        };
        let (end, channel) = (self.held[at].end, Arc::clone(&self.held[at].channel));
        let calls = Arc::new(AtomicU32::new(0));
        let counted = calls.clone();
        let handler = move |_: Sprung| {
            counted.fetch_add(1, SeqCst);
        };
        // Only the first trap must spring for a message that is there.
        let (conditions, awaits) = match (self.random.below(4), channel.status()) {
            (0, Ok(status)) => (Conditions::new().arrived(status.arrived + 1), false),
            (1, _) => (Conditions::new().room().messages(3), false),
            _ => (Conditions::new().messages(1), true),
        };
        let arm = || traps.arm(&channel, conditions.peer_closed(), handler);
        let about = About { call: Call::Arm, end, number: 0 };
        let armed = self.timed(about, Duration::ZERO, arm, |armed| match armed {
            Ok(_) => "Ok".into(),
            Err(NotArmed { reason, .. }) => format!("{reason:?}"),
        });
        match armed {
            Ok(trap) => {
                self.dispatch(&traps, end, awaits);
                let (sprung, cancelled) = (calls.load(SeqCst), traps.cancel(trap));
                if sprung + u32::from(cancelled) != 1 {
                    self.wrong(end, &format!("a trap sprang {sprung} times, and was cancelled: {cancelled}"));
                }
            }
            Err(NotArmed { reason: Reason::Met(_) | Reason::Never(_), .. }) => {}
            Err(NotArmed { reason: Reason::Failed(error), .. }) => {
                if ![Error::PeerClosed, Error::InSet].contains(&error) && !self.passes(end, over, Duration::ZERO, error)
                {
                    self.wrong(end, &format!("arming a trap: {error:?}"));
                }
            }
        }
        drop((channel, traps));
        self.receive(at, Duration::ZERO);
    }

    /// Waits for a trap; `awaits` says whether the trap must spring if there is a message for `end`.
    fn dispatch(&mut self, traps: &Traps, end: u32, awaits: bool) {
        let patience = self.patience();
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        let over = self.life.shortages_over();
        self.awaits(std::iter::once(end).filter(|_| awaits));
        let about = About { call: Call::Dispatch, end, number: 0 };
        let called = self.timed(about, patience, || traps.dispatch(deadline), |called| format!("{called:?}"));
        if let Err(error) = called
            && !excused(self.process, over, error)
        {
            self.wrong(end, &format!("dispatching a trap: {error:?}"));
        }
    }
}
