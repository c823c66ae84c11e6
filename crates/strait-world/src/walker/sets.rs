//! Waiting for many ends by a wait set.

use std::sync::Arc;
use std::time::Duration;

use strait::wait::{Event, Fd, Interest, Mode, WaitSet};
use strait::{Deadline, Error};

use super::waits::Registration;
use super::{About, Mood, Walker, said};
use crate::ledger::AWAITED;
use crate::trail::{Call, NO_END};
use crate::worker::excused;

/// The key of a descriptor of another library in a set. Other keys are the numbers of ends.
const BELL: u64 = u64::MAX;

impl Walker {
    /// Returns the wait set of this thread, or a new one, after adding some of the thread's ends to it. `None` in a
    /// shortage.
    fn fill_set(&mut self) -> Option<WaitSet> {
        let over = self.life.shortages_over();
        let set = match self.set.take().filter(|_| !self.random.one_in(8)) {
            Some(set) => set,
            None => {
                self.held.iter_mut().for_each(|held| held.registration = Registration::None);
                let about = About { call: Call::NewSet, end: NO_END, number: 0 };
                match self.timed(about, Duration::ZERO, WaitSet::new, said) {
                    Ok(set) => set,
                    Err(error) if excused(self.process, over, error) => return None,
                    Err(error) => self.process.wrong(None, &format!("a wait set: {error:?}")),
                }
            }
        };
        for at in 0..self.held.len() {
            if self.held[at].registration != Registration::None || set.len() >= AWAITED || self.random.one_in(4) {
                continue;
            }
            self.add(&set, at);
        }
        self.rearm_some(&set);
        Some(set)
    }

    fn add(&mut self, set: &WaitSet, at: usize) {
        let over = self.life.shortages_over();
        let (end, channel) = (self.held[at].end, Arc::clone(&self.held[at].channel));
        let about = About { call: Call::Add, end, number: 0 };
        let (mode, registration) = match self.random.one_in(3) {
            true => (Mode::OneShot, Registration::OneShot { armed: true }),
            false => (Mode::Level, Registration::Level),
        };
        let add = || set.add(&channel, end.into(), Interest::Readable, mode);
        let added = self.timed(about, Duration::ZERO, add, said);
        match added {
            Ok(()) => self.held[at].registration = registration,
            // An end returned by a failed send is still in its wait set.
            Err(Error::InSet) => return self.remove(set, at),
            Err(_) => {}
        }
        if let Err(error) = added
            && error != Error::PeerClosed
            && !self.passes(end, over, Duration::ZERO, error)
        {
            self.wrong(end, &format!("adding to a set: {error:?}"));
        }
    }

    /// Adds a descriptor of another library to a set, and makes it readable or not. Returns the descriptor, and whether
    /// it is readable; `None` in a shortage.
    fn add_bell(&mut self, set: &WaitSet) -> Option<(Fd, bool)> {
        let rings = self.random.one_in(2);
        let bell = rustix::event::eventfd(u32::from(rings), rustix::event::EventfdFlags::CLOEXEC).ok()?;
        let (duplicates, over) = (self.random.one_in(2), self.life.shortages_over());
        let about = About { call: Call::AddFd, end: NO_END, number: 0 };
        let add = || {
            let bell = if duplicates { Fd::duplicate(&bell)? } else { Fd::new(bell)? };
            set.add(&bell, BELL, Interest::Readable, Mode::Level)?;
            Ok(bell)
        };
        match self.timed(about, Duration::ZERO, add, said) {
            Ok(bell) => Some((bell, rings)),
            Err(error) if excused(self.process, over, error) => None,
            Err(error) => self.process.wrong(None, &format!("adding a descriptor to a set: {error:?}")),
        }
    }

    /// Sends until there is no room, and arms the end in the set of this thread for the room that the last message
    /// lacked.
    pub(super) fn await_room(&mut self) {
        let Some(at) = self.pick(|held| held.registration != Registration::None) else { return };
        let Some(set) = self.set.take() else { return };
        let (end, channel) = (self.held[at].end, Arc::clone(&self.held[at].channel));
        for _ in 0..5 {
            if self.send(at, Vec::new()).is_some() {
                break;
            }
        }
        let over = self.life.shortages_over();
        let about = About { call: Call::AwaitRoom, end, number: 0 };
        match self.timed(about, Duration::ZERO, || set.await_room(&channel, end.into()), said) {
            Ok(()) => self.held[at].registration = Registration::Room,
            Err(error) if self.passes(end, over, Duration::ZERO, error) => {}
            Err(error) => self.wrong(end, &format!("arming an end for room: {error:?}")),
        }
        self.set = Some(set);
    }

    pub(super) fn wait(&mut self) {
        let Some(set) = self.fill_set() else { return };
        let patience = if self.mood.0 == Mood::Listening { self.long_patience() } else { self.patience() };
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        let bell = if self.random.one_in(4) { self.add_bell(&set) } else { None };
        let over = self.life.shortages_over();
        self.awaits(self.held.iter().filter(|held| held.registration.reports()).map(|held| held.end));
        let mut events: Vec<Event> = Vec::new();
        let about = About { call: Call::Wait, end: NO_END, number: set.len() as u64 };
        let waited = self.timed(about, patience, || set.wait(&mut events, deadline), |done| format!("{done:?}"));
        let _ = set.has_more();
        if let Some((bell, has_rung)) = bell {
            let is_reported = events.iter().any(|event| event.key() == BELL);
            if is_reported != has_rung && (is_reported || waited == Ok(0)) {
                self.process
                    .wrong(None, &format!("a descriptor in a set is readable: {has_rung}, reported: {is_reported}"));
            }
            if self.random.one_in(2)
                && let Err(error) = set.remove(&bell)
            {
                self.process.wrong(None, &format!("removing a descriptor from a set: {error:?}"));
            }
        }
        self.set = Some(set);
        if let Err(error) = waited
            && !excused(self.process, over, error)
        {
            self.process.wrong(None, &format!("waiting for a set: {error:?}"));
        }
        for event in events {
            let Some(at) = self.held.iter().position(|held| u64::from(held.end) == event.key()) else { continue };
            if !event.has_moved() {
                self.note_event(at);
                self.receive(at, Duration::ZERO);
            }
        }
    }
}
