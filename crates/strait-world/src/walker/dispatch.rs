//! Dispatchers: a thread serves some of its ends by a dispatcher for a while, sometimes with a pump. Some ends are
//! closed together with the dispatcher.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use strait::wait::{Dispatched, Dispatcher};
use strait::{Deadline, Error};

use super::receiving::in_parts;
use super::tasks::ENOUGH;
use super::waits::Registration;
use super::{About, Held, Walker, said};
use crate::ledger::Place;
use crate::trail::{Call, NO_END};
use crate::worker::excused;

/// The arguments of each handler call, with the end of its channel.
type Dispatches = Arc<RefCell<Vec<(u32, Dispatched)>>>;

/// The ends served by a dispatcher, with the dispatcher's keys.
type Served = Vec<(u32, u64)>;

fn said_count<T: std::fmt::Debug>(done: &Result<T, Error>) -> String {
    format!("{done:?}")
}

impl Walker {
    /// Serves one to three ends by a dispatcher.
    pub(super) fn use_dispatcher(&mut self) {
        let over = self.life.shortages_over();
        let about = About { call: Call::NewDispatcher, end: NO_END, number: 0 };
        let dispatcher = match self.timed(about, Duration::ZERO, Dispatcher::new, said) {
            Ok(dispatcher) => dispatcher,
            Err(error) if excused(self.process, over, error) => return,
            Err(error) => self.process.wrong(None, &format!("a dispatcher: {error:?}")),
        };
        let dispatches = Dispatches::default();
        let mut served = Served::new();
        for _ in 0..1 + self.random.below(3) {
            served.extend(self.serve_one(&dispatcher, &dispatches));
        }
        for _ in 0..2 + self.random.below(8) {
            match self.random.one_in(3) {
                true => self.pump(&dispatcher, &served),
                false => self.run_dispatcher(&dispatcher, &served),
            }
            self.send_to_some(&served);
            let dispatched = std::mem::take(&mut *dispatches.borrow_mut());
            dispatched.into_iter().for_each(|(end, what)| self.take_dispatched(&mut served, end, what));
        }
        self.stop_serving(&dispatcher, served);
        let about = About { call: Call::DropDispatcher, end: NO_END, number: 0 };
        self.timed(about, Duration::ZERO, || drop(dispatcher), |()| String::new());
    }

    /// Gives an old end to a dispatcher.
    fn serve_one(&mut self, dispatcher: &Dispatcher, dispatches: &Dispatches) -> Option<(u32, u64)> {
        let ledger = self.process.ledger;
        let is_old = |end: u32| ledger.end(end).class.load(SeqCst) > 0;
        // For half of the calls, the other end must be here too, so that this thread can send while the dispatcher
        // runs.
        let here: Vec<u32> = self.held.iter().map(|held| held.end).collect();
        let needs_both = self.random.one_in(2);
        let may_be = |held: &Held| is_old(held.end) && held.registration == Registration::None;
        let at = self.pick(|held| may_be(held) && (!needs_both || here.contains(&ledger.peer(held.end))))?;
        let held = self.held.swap_remove(at);
        let end = held.end;
        let Some(channel) = Arc::into_inner(held.channel) else {
            self.wrong(end, "an end that is to be served is still in use")
        };
        let (priority, noted) = (self.random.below(3) as u8, dispatches.clone());
        let over = self.life.shortages_over();
        let about = About { call: Call::Serve, end, number: 0 };
        let serve = || dispatcher.serve(channel, priority, move |_, what| noted.borrow_mut().push((end, what)));
        match self.timed(about, Duration::ZERO, serve, said) {
            Ok(key) => Some((end, key)),
            Err(error) => {
                self.book(end).put(Place::Closed);
                // An end returned by a failed send is still in its wait set.
                let may_be = matches!(error, Error::InSet | Error::PeerClosed);
                if !may_be && !self.passes(end, over, Duration::ZERO, error) {
                    self.wrong(end, &format!("serving says {error:?}"));
                }
                None
            }
        }
    }

    /// Sends to some of the served ends, if this thread has their other ends.
    fn send_to_some(&mut self, served: &Served) {
        for (end, _) in served {
            let peer = self.process.ledger.peer(*end);
            if let Some(at) = self.held.iter().position(|held| held.end == peer)
                && self.random.one_in(2)
            {
                let _ = self.send(at, Vec::new());
            }
        }
    }

    fn run_dispatcher(&mut self, dispatcher: &Dispatcher, served: &Served) {
        // A waiting message must be handled at once, or the controller reports a mistake.
        let is_there = served.iter().any(|(end, _)| self.process.ledger.has_message(*end));
        let patience = if is_there { ENOUGH } else { self.patience() };
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        let over = self.life.shortages_over();
        self.awaits(served.iter().map(|(end, _)| *end));
        let about = About { call: Call::RunDispatcher, end: NO_END, number: served.len() as u64 };
        let called = self.timed(about, patience, || dispatcher.dispatch(deadline), said_count);
        self.judge_dispatch(over, called.err());
    }

    /// Receives once by a pump in this thread, and calls the handlers.
    fn pump(&mut self, dispatcher: &Dispatcher, served: &Served) {
        let pump = dispatcher.pump();
        let patience = self.patience();
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        let over = self.life.shortages_over();
        let about = About { call: Call::RunPump, end: NO_END, number: served.len() as u64 };
        let pumped = self.timed(about, patience, || pump.run_once(deadline), said_count);
        self.judge_dispatch(over, pumped.err());
        let about = About { call: Call::RunDispatcher, ..about };
        let called = self.timed(about, Duration::ZERO, || dispatcher.dispatch(Deadline::NOW), said_count);
        self.judge_dispatch(over, called.err());
    }

    fn judge_dispatch(&self, over: u64, error: Option<Error>) {
        if let Some(error) = error
            && !excused(self.process, over, error)
        {
            self.process.wrong(None, &format!("dispatching: {error:?}"));
        }
    }

    fn take_dispatched(&mut self, served: &mut Served, end: u32, what: Dispatched) {
        match what {
            Dispatched::Message(message) => {
                let (bytes, handles) = in_parts(message);
                self.take(end, &bytes, handles);
            }
            Dispatched::Ended(error) => {
                served.retain(|(other, _)| *other != end);
                if error == Error::PeerClosed {
                    self.judge_closed(end);
                } else if !self.passes(end, 0, Duration::ZERO, error) {
                    self.wrong(end, &format!("a served channel ended: {error:?}"));
                }
                // The dispatcher has closed the end after its handler has returned.
                self.book(end).put(Place::Closed);
            }
        }
    }

    /// Closes all ends served by the dispatcher: some one by one, the others with the dispatcher.
    fn stop_serving(&mut self, dispatcher: &Dispatcher, served: Served) {
        for (end, key) in served {
            self.book(end).put(Place::Closed);
            let about = About { call: Call::StopServing, end, number: key };
            let over = self.life.shortages_over();
            if !self.timed(about, Duration::ZERO, || dispatcher.stop(key), ToString::to_string) {
                self.wrong(end, "a dispatcher does not know an end that it serves");
            }
            if self.life.is_short_since(over) {
                self.book(end).is_closed_in_shortage.store(1, SeqCst);
            }
        }
    }
}
