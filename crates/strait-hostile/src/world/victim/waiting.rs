//! The waits of the victim: by each waiting call, with the usual reaction to each result.

use std::sync::Arc;
use std::time::Duration;

use strait::task::Reactor;
use strait::wait::{Dispatched, Dispatcher, Interest, Mode, Traps, WaitSet};
use strait::{Channel, Deadline, Error, Message};

use super::Driver;
use crate::world::ledger::Word;

/// The duration of each wait. After each wait the driver checks whether the phase has changed.
const SLICE: Duration = Duration::from_millis(60);

/// The maximum number of consecutive errors for lack of descriptors or memory. More errors are a mistake, since there
/// is enough of both.
const MOST_PASSING: usize = 20;

/// The reaction of a program to an error.
enum After {
    /// Nothing is wrong: there was nothing to receive, or the call was interrupted.
    Nothing,
    /// The channel can no longer be used.
    Over,
    /// A later call will succeed.
    Passes,
}

fn after(error: Error) -> After {
    match error {
        Error::WouldBlock | Error::TimedOut | Error::Interrupted | Error::HandlesLost { .. } => After::Nothing,
        Error::NoDescriptors | Error::NoMemory { .. } => After::Passes,
        _ => After::Over,
    }
}

impl Driver<'_> {
    /// Waits while `more` returns true, each time by a random waiting call.
    pub fn wait_while(&mut self, more: impl Fn() -> bool) {
        let mut passing = 0;
        while more() {
            let how = self.choices.below(9);
            let passes = match how {
                0 | 1 => self.wait_for_one(&more),
                2 | 3 => self.wait_for_all(&more, false),
                4 => self.wait_for_all(&more, true),
                5 => self.wait_for_a_connection(),
                6 => self.wait_by_a_trap(),
                7 => self.wait_by_a_dispatcher(&more),
                _ => self.wait_by_a_task(),
            };
            passing = if passes { passing + 1 } else { 0 };
        }
    }

    /// Reacts to an error as a program does. Returns true if the program should make the call again.
    fn go_on_after(&mut self, name: &str, error: Error, in_a_row: &mut usize) -> bool {
        self.failed(name, error);
        match after(error) {
            After::Nothing => {
                *in_a_row = 0;
                if error == Error::Interrupted {
                    std::thread::sleep(Duration::from_millis(1));
                }
                true
            }
            After::Over => {
                self.note_work(100_000);
                false
            }
            After::Passes => {
                *in_a_row += 1;
                if *in_a_row == MOST_PASSING {
                    self.find(&format!("{name}: {error}, {in_a_row} times in a row"));
                }
                std::thread::sleep(Duration::from_millis(1));
                *in_a_row < MOST_PASSING
            }
        }
    }

    fn take_in(&mut self, message: Message) {
        self.check_length(message.bytes().len());
        self.note_work(message.bytes().len() + 20_000 * usize::from(!message.handles().is_empty()));
        self.call("drop a message", Duration::ZERO, || drop(message));
    }

    fn forget(&mut self, channel: &Arc<Channel>) {
        let mut pool = self.pool();
        pool.channels.retain(|other| !Arc::ptr_eq(other, channel));
        pool.pinned.retain(|other| !Arc::ptr_eq(other, channel));
    }

    fn wait_for_one(&mut self, more: &impl Fn() -> bool) -> bool {
        let pinned = self.one_of(|pool| &pool.pinned);
        let Some(channel) = pinned.or_else(|| self.channel()) else {
            std::thread::sleep(Duration::from_millis(5));
            return false;
        };
        let mut in_a_row = 0;
        while more() {
            let received = self.call("recv_by, waiting", SLICE, || channel.recv_by(SLICE));
            match received {
                Ok(message) => self.take_in(message),
                Err(error) if self.go_on_after("recv_by, waiting", error, &mut in_a_row) => {}
                Err(_) => {
                    self.forget(&channel);
                    break;
                }
            }
            if self.choices.one_in(3) {
                break;
            }
        }
        false
    }

    /// Waits for all channels in one wait set, and receives. With `polls`, sleeps by `poll` on the set's descriptor.
    /// Always returns false.
    fn wait_for_all(&mut self, more: &impl Fn() -> bool, polls: bool) -> bool {
        let Some(set) = self.note("WaitSet::new", WaitSet::new()) else { return false };
        let mut channels = self.pool().channels.clone();
        for pinned in self.pool().pinned.iter() {
            if !channels.iter().any(|other| Arc::ptr_eq(other, pinned)) {
                channels.push(pinned.clone());
            }
        }
        for channel in &channels {
            // The channel may be in another set, for which no thread waits now.
            for other in self.pool().sets.iter() {
                let _ = other.remove(channel);
            }
        }
        for (key, channel) in channels.iter().enumerate() {
            let added = set.add(channel, key as u64, Interest::Readable, Mode::Level);
            if !matches!(added, Err(Error::InSet | Error::WouldBlock)) {
                self.note("WaitSet::add", added);
            }
        }
        let (mut events, mut in_a_row, mut slices) = (Vec::new(), 0, 0);
        while more() && slices < 3 {
            if polls {
                self.poll(&set, SLICE);
            }
            let deadline = if polls { Deadline::NOW } else { Deadline::after(SLICE) };
            let found = self.call("WaitSet::wait, waiting", SLICE, || set.wait(&mut events, deadline));
            match found {
                Ok(0) => slices += 1,
                Ok(_) => {
                    for event in &events {
                        self.serve(&channels, event.key() as usize, &set, &mut in_a_row);
                    }
                }
                Err(error) => {
                    // A wait set must not fail here: there are enough descriptors and memory.
                    self.find(&format!("WaitSet::wait, waiting: {error}"));
                    break;
                }
            }
        }
        false
    }

    fn serve(&mut self, channels: &[Arc<Channel>], key: usize, set: &WaitSet, in_a_row: &mut usize) {
        let Some(channel) = channels.get(key) else { return };
        let received = self.call("try_recv, waiting", Duration::ZERO, || channel.try_recv());
        // Each event costs work, even if no message is there.
        self.note_work(0);
        match received {
            Ok(message) => self.take_in(message),
            Err(error) if self.go_on_after("try_recv, waiting", error, in_a_row) => {}
            Err(_) => {
                let _ = set.remove(channel);
                self.forget(channel);
            }
        }
    }

    fn wait_for_a_connection(&mut self) -> bool {
        let victim = self.victim;
        let Some(listener) = &victim.listener else { return false };
        let accepted = self.call("accept, waiting", SLICE, || listener.accept(SLICE));
        match accepted.map_err(Error::from) {
            Ok(channel) => {
                self.note_work(100_000);
                self.keep(|pool| &mut pool.channels, Arc::new(channel));
            }
            Err(Error::TimedOut) => {}
            Err(error) => {
                // A connecting process was refused.
                self.note_work(100_000);
                self.failed("accept, waiting", error);
            }
        }
        false
    }

    fn wait_by_a_trap(&mut self) -> bool {
        let (Some(channel), Some(traps)) = (self.channel(), self.note("Traps::new", Traps::new())) else {
            return false;
        };
        let conditions = strait::wait::Conditions::new().messages(1 << 40).peer_closed();
        if self.call("Traps::arm", Duration::ZERO, || traps.arm(&channel, conditions, drop)).is_err() {
            self.note_work(50_000);
            return false;
        }
        let called = self.call("Traps::dispatch, waiting", SLICE, || traps.dispatch(SLICE));
        if let Err(error) = called {
            self.find(&format!("Traps::dispatch, waiting: {error}"));
        }
        self.note_work(50_000);
        false
    }

    fn wait_by_a_dispatcher(&mut self, more: &impl Fn() -> bool) -> bool {
        let (Some(channel), Some(dispatcher)) = (self.lone_channel(), self.note("Dispatcher::new", Dispatcher::new()))
        else {
            return false;
        };
        let ledger = self.victim.setting.ledger.clone();
        let handler = move |_: &Channel, dispatched: Dispatched| {
            if let (Dispatched::Message(message), Some(ledger)) = (&dispatched, &ledger) {
                ledger.add(Word::Work, 100 + message.bytes().len() as u64 / 500);
            }
        };
        if dispatcher.serve(channel, 0, handler).is_err() {
            return false;
        }
        let mut slices = 0;
        while more() && slices < 3 {
            let called = self.call("Dispatcher::dispatch, waiting", SLICE, || dispatcher.dispatch(SLICE));
            match called {
                Ok(0) => slices += 1,
                Ok(_) => {}
                Err(error) => {
                    self.failed("Dispatcher::dispatch, waiting", error);
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        self.call("drop of a dispatcher", Duration::ZERO, || drop(dispatcher));
        false
    }

    fn wait_by_a_task(&mut self) -> bool {
        let (Some(channel), Some(reactor)) = (self.lone_channel(), self.note("Reactor::new", Reactor::new())) else {
            return false;
        };
        let Ok(channel) = strait::task::AsyncChannel::new(channel, &reactor) else { return false };
        for _ in 0..3 {
            match self.drive("AsyncChannel::recv", &reactor, channel.recv()) {
                Some(Ok(message)) => self.take_in(message),
                Some(Err(error)) => {
                    self.failed("AsyncChannel::recv", error);
                    self.note_work(100_000);
                    return false;
                }
                None => self.poll(&reactor, SLICE),
            }
        }
        self.keep(|pool| &mut pool.channels, Arc::new(channel.into_inner()));
        false
    }
}
