//! Round trips between handlers called by a `Dispatcher` in its thread, and between receiving threads.

use std::cell::RefCell;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use strait::wait::{Dispatched, Dispatcher};
use strait::{Channel, Deadline, Error, Message};

use super::super::hop;
use super::super::parts::Share;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::{By, payload};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Report, Spent};

const PATIENCE: Duration = Duration::from_secs(20);

/// The state of the first process in its round trips.
struct Asker {
    message: Vec<u8>,
    number: u64,
    begun: u64,
    samples: Samples,
}

impl Asker {
    fn ask(&mut self, channel: &Channel) -> Result<()> {
        payload::stamp(&mut self.message, self.number);
        self.begun = clock::now();
        channel.send(&self.message).doing("send")
    }

    fn answered(&mut self, answer: &[u8]) -> Result<()> {
        let now = clock::now();
        payload::check(answer, self.number)?;
        self.samples.record(now - self.begun, 1);
        self.number += 1;
        Ok(())
    }
}

/// Runs the first process of the task `Dispatched`: makes `trips` round trips, after a tenth of them as warm-up.
pub(super) fn ask(channel: Channel, by: By, size: usize, trips: u64) -> Result<Report> {
    let bare = hop::bare()?;
    let asker = Asker { message: vec![7; size], number: 0, begun: 0, samples: Samples::new() };
    let asker = Rc::new(RefCell::new(asker));
    let warm_up = (trips / 10).max(1);
    let gauge = Rc::new(RefCell::new(None));
    let (state, started) = (asker.clone(), gauge.clone());
    asker.borrow_mut().ask(&channel)?;
    serve(channel, by, move |channel, answer| {
        let mut asker = state.borrow_mut();
        asker.answered(answer)?;
        if asker.number == warm_up {
            asker.samples = Samples::new();
            *started.borrow_mut() = Some(Gauge::start()?);
        }
        if asker.number == warm_up + trips {
            return Ok(true);
        }
        asker.ask(channel)?;
        Ok(false)
    })?;
    let spent =
        gauge.borrow_mut().take().ok_or_else(|| Trouble::new("the other process closed the channel"))?.spent()?;
    let times = asker.borrow().samples.percentiles();
    let mut report = Report { count: trips, times, spent: [spent, Spent::default()], ..Report::default() };
    report.found.insert("bare_hop_ns".to_owned(), bare);
    Ok(report)
}

/// Runs the second process of the task `Dispatched`: sends back every message until the first process closes the
/// channel.
pub(super) fn answer(channel: Channel, by: By) -> Result<Share> {
    serve(channel, by, |channel, message| match channel.send(message) {
        Err(failed) if failed.error == Error::PeerClosed => Ok(true),
        sent => sent.doing("send").map(|()| false),
    })?;
    Ok(Share::default())
}

/// Calls `handle` in this thread with each message, until `handle` returns `true` or the peer has closed the channel.
fn serve(channel: Channel, by: By, mut handle: impl FnMut(&Channel, &[u8]) -> Result<bool> + 'static) -> Result<()> {
    if by == By::Itself {
        let mut message = Message::new();
        loop {
            match channel.recv_message(&mut message, Deadline::NEVER) {
                Err(Error::PeerClosed) => return Ok(()),
                received => received.doing("recv_message")?,
            }
            if handle(&channel, message.bytes())? {
                return Ok(());
            }
        }
    }
    let dispatcher = Dispatcher::new().doing("making a dispatcher")?;
    let outcome = Rc::new(RefCell::new(None));
    let told = outcome.clone();
    let handler = move |channel: &Channel, dispatched| {
        let done = match dispatched {
            Dispatched::Message(message) => match handle(channel, message.bytes()) {
                Ok(false) => return,
                done => done.map(drop),
            },
            Dispatched::Ended(_) => Ok(()),
        };
        told.borrow_mut().get_or_insert(done);
    };
    dispatcher.serve(channel, 0, handler).doing("serve")?;
    let pumping = (by == By::Pump).then(|| {
        let pump = dispatcher.pump();
        thread::spawn(move || pump.run())
    });
    while outcome.borrow().is_none() {
        if dispatcher.dispatch(PATIENCE).doing("dispatch")? == 0 {
            return Err(Trouble::new("no message came in time"));
        }
    }
    drop(dispatcher);
    if let Some(pumping) = pumping {
        pumping.join().map_err(|_| Trouble::new("the pump panicked"))?.doing("pump")?;
    }
    outcome.take().unwrap_or(Ok(()))
}
