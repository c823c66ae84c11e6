//! Calls: a thread has ends that call and are called. A call gets one answer, its own reply, or the caller learns why
//! there is no reply.
//!
//! Channels for calls have a class of their own: they carry no ends. Their ends travel in messages of every other
//! channel until the holding thread makes a call end of the channel.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use strait::call::{CallEnd, CallError, CallOptions, PendingCall, Replier, Request};
use strait::task::{AsyncCallEnd, Reactor};
use strait::{Channel, Deadline, Error, Handle, Message, Outgoing, SendError};

use super::tasks::drive;
use super::{About, Held, Said, TOLD, WRITTEN_DOWN, Walker, bytes_of, parse, said, said_of_sending};
use crate::content::check_file;
use crate::judge;
use crate::ledger::{Answer, Ask, CALLS, FOR_CALLS, Phase, Place, other};
use crate::trail::{Call, NO_END};

/// The bit that distinguishes the stream of replies from the stream of requests.
pub(super) const REPLY: u32 = 1 << 31;

/// A thread with more ends for calls than this number makes no more of them.
const MANY: usize = 12;

/// An end for calls held by a thread. The channel becomes a call end when the thread first uses the end.
pub(super) struct Calling {
    end: u32,
    channel: Option<Channel>,
    calls: Option<Rc<CallEnd>>,
    /// The calls without an answer, with their numbers.
    pending: Vec<(u64, PendingCall)>,
    /// The requests without an answer, with their numbers.
    owed: Vec<(u64, Replier)>,
}

fn said_of_calling<T>(result: &Result<T, CallError>) -> String {
    match result {
        Ok(_) => "Ok".into(),
        Err(CallError::NotSent(SendError { error, .. })) => format!("not sent: {error:?}"),
        Err(CallError::OutcomeUnknown(error)) => format!("unknown: {error:?}"),
        Err(_) => "not answered".into(),
    }
}

fn deadline_of(patience: Duration) -> Deadline {
    if patience.is_zero() { Deadline::NOW } else { patience.into() }
}

/// The ends for calls of a thread.
impl Walker {
    pub(super) fn hold_for_calls(&mut self, end: u32, channel: Channel) {
        let (pending, owed) = (Vec::new(), Vec::new());
        self.calling.push(Calling { end, channel: Some(channel), calls: None, pending, owed });
    }

    /// Returns whether this thread makes no more channels for calls.
    pub(super) fn has_many_for_calls(&self) -> bool {
        self.calling.len() > MANY
    }

    /// Takes an end for calls that may still be sent to another process.
    pub(super) fn take_for_sending(&mut self) -> Option<Held> {
        let found: Vec<usize> = (0..self.calling.len()).filter(|at| self.calling[*at].channel.is_some()).collect();
        if found.is_empty() {
            return None;
        }
        let calling = self.calling.swap_remove(found[self.random.index(found.len())]);
        Some(Held::new(calling.end, calling.channel?))
    }

    /// Returns the call end at index `at`. If there is only a channel yet, makes the call end from the channel.
    fn call_end(&mut self, at: usize) -> (u32, Rc<CallEnd>) {
        let most = 1 + self.random.index(CALLS);
        let calling = &mut self.calling[at];
        if let Some(channel) = calling.channel.take() {
            // No end makes more calls at a time than the number of requests that the other end permits.
            calling.calls = Some(Rc::new(CallOptions::new().calls(most).requests(2 * CALLS).over(channel)));
        }
        match &calling.calls {
            Some(calls) => (calling.end, Rc::clone(calls)),
            None => self.wrong(self.calling[at].end, "an end for calls without a channel"),
        }
    }

    /// Takes a random step with a random end for calls.
    pub(super) fn use_calls(&mut self) {
        if self.calling.is_empty() {
            return;
        }
        let at = self.random.index(self.calling.len());
        // An unused end may still be sent.
        if self.calling[at].channel.is_some() && self.random.one_in(2) {
            return;
        }
        match self.random.below(20) {
            0 => self.close_calls(at),
            1..3 => self.use_calls_in_task(at),
            3..7 => self.call(at),
            7..10 => self.begin_call(at),
            10..13 => self.settle_one(at),
            13..15 => self.answer_one(at),
            _ => {
                let patience = self.patience();
                self.serve(at, patience);
            }
        }
    }

    /// Waits for a request for a long time.
    pub(super) fn await_request(&mut self) {
        if let Some(at) = self.calling.iter().position(|calling| calling.calls.is_some()) {
            let patience = self.long_patience();
            self.serve(at, patience);
        }
    }

    fn close_calls(&mut self, at: usize) {
        let Calling { end, channel, calls, pending, owed } = self.calling.swap_remove(at);
        let book = self.book(end);
        pending.iter().for_each(|(number, _)| book.put_ask(*number, Ask::MayEnd));
        book.put(Place::Closed);
        self.drop_owed(end, owed);
        let about = About { call: Call::Close, end, number: 0 };
        let over = self.life.shortages_over();
        self.timed(about, Duration::ZERO, || drop((pending, calls, channel)), |()| String::new());
        if self.life.is_short_since(over) {
            book.is_closed_in_shortage.store(1, SeqCst);
        }
    }

    fn drop_owed(&mut self, end: u32, owed: Vec<(u64, Replier)>) {
        let caller = self.book(other(end));
        for (number, replier) in owed {
            caller.put_answer(number, Answer::Begins);
            let about = About { call: Call::NoReply, end, number };
            self.timed(about, Duration::ZERO, || drop(replier), |()| String::new());
            caller.put_answer(number, Answer::Dropped);
        }
    }

    /// Judges an error of a call or a reply. Closes the end on *peer closed*. Returns whether the end is still there.
    fn take_error_of_calls(&mut self, end: u32, over: u64, patience: Duration, error: Error) -> bool {
        let is_closed = error == Error::PeerClosed;
        if is_closed && !self.is_other_gone(end) {
            self.wrong(end, "a call says that the peer is closed, and it is not");
        }
        if !is_closed && !self.passes(end, over, patience, error) {
            self.wrong(end, &format!("a call says {error:?}"));
        }
        let has_ended = is_closed || matches!(error, Error::BadPeer(_));
        if has_ended && let Some(at) = self.calling.iter().position(|calling| calling.end == end) {
            self.close_calls(at);
        }
        !has_ended
    }
}

/// Calling.
impl Walker {
    /// Returns the number, the bytes and the files of the next request; `None` if the ledger can record no more calls
    /// without an answer.
    fn request(&mut self, at: usize) -> Option<(u64, Vec<u8>, Vec<Handle>)> {
        let end = self.calling[at].end;
        let number = self.book(end).tried.load(SeqCst);
        let is_taken = |pending: &(u64, PendingCall)| pending.0 % CALLS as u64 == number % CALLS as u64;
        if self.calling[at].pending.iter().any(is_taken) {
            return None;
        }
        let files = self.files(end, number);
        let filling = self.filling();
        Some((number, bytes_of(end, number, &[], files.len(), filling), files))
    }

    fn call(&mut self, at: usize) {
        let Some((number, bytes, files)) = self.request(at) else { return self.settle_one(at) };
        let (end, calls) = self.call_end(at);
        let count = files.len();
        let patience = if self.random.one_in(4) { self.long_patience() } else { self.patience() };
        let request = Outgoing::new(&bytes).handles(files);
        let book = self.book(end);
        book.put_ask(number, Ask::MayEnd);
        book.tried.store(number + 1, SeqCst);
        let over = self.life.shortages_over();
        self.awaits_answer(end, number);
        let about = About { call: Call::Request, end, number };
        let mut requests = Vec::new();
        let serves = self.random.one_in(3);
        let call = || match serves {
            true => calls.call_serving(request, deadline_of(patience), |request| requests.push(request)),
            false => calls.call(request, deadline_of(patience)),
        };
        let called = self.timed(about, patience, call, said_of_calling);
        drop(calls);
        requests.into_iter().for_each(|request| self.take_request(end, request));
        self.end_call(end, number, count, over, patience, called);
    }

    fn begin_call(&mut self, at: usize) {
        let Some((number, bytes, files)) = self.request(at) else { return self.settle_one(at) };
        let (end, calls) = self.call_end(at);
        let count = files.len();
        let patience = self.patience();
        let request = Outgoing::new(&bytes).handles(files);
        let book = self.book(end);
        book.put_ask(number, Ask::Begins);
        book.tried.store(number + 1, SeqCst);
        let over = self.life.shortages_over();
        let about = About { call: Call::Begin, end, number };
        let begin = || calls.begin_call(request, deadline_of(patience));
        match self.timed(about, patience, begin, said_of_calling) {
            Ok(pending) => {
                book.put_ask(number, Ask::Sent);
                self.calling[at].pending.push((number, pending));
            }
            Err(error) => self.end_call(end, number, count, over, patience, Err(error)),
        }
    }

    /// Puts an end for calls without open calls into a reactor, makes one call or takes one request in a task, and
    /// takes the end out again.
    fn use_calls_in_task(&mut self, at: usize) {
        if !self.calling[at].pending.is_empty() || !self.calling[at].owed.is_empty() {
            return self.settle_one(at);
        }
        let over = self.life.shortages_over();
        let about = About { call: Call::NewReactor, end: NO_END, number: 0 };
        let Ok(reactor) = self.timed(about, Duration::ZERO, Reactor::new, said) else { return };
        let (end, calls) = self.call_end(at);
        self.calling[at].calls = None;
        let Some(calls) = Rc::into_inner(calls) else { self.wrong(end, "an end for calls is used elsewhere") };
        let about = About { call: Call::EnterReactor, end, number: 0 };
        let calls = match self.timed(about, Duration::ZERO, || AsyncCallEnd::new(calls, &reactor), said) {
            Ok(calls) => calls,
            // The end is closed.
            Err(error) => {
                self.calling.swap_remove(at);
                self.note_closed(end, over);
                if error != Error::PeerClosed && !self.passes(end, over, Duration::ZERO, error) {
                    self.wrong(end, &format!("an end for calls that enters a reactor says {error:?}"));
                }
                return;
            }
        };
        let _ = calls.get_ref().channel().is_readable();
        match self.random.one_in(2) {
            true => self.call_in_task(at, calls, &reactor),
            false => self.serve_in_task(at, calls, &reactor),
        }
    }

    /// Takes an end for calls out of its reactor.
    fn leave(&mut self, at: usize, calls: AsyncCallEnd) {
        let about = About { call: Call::LeaveReactor, end: self.calling[at].end, number: 0 };
        let calls = self.timed(about, Duration::ZERO, || calls.into_inner(), |_| String::new());
        self.calling[at].calls = Some(Rc::new(calls));
    }

    fn call_in_task(&mut self, at: usize, calls: AsyncCallEnd, reactor: &Reactor) {
        let end = self.calling[at].end;
        let Some((number, bytes, files)) = self.request(at) else { return self.leave(at, calls) };
        let count = files.len();
        let (patience, looks) = (self.patience_of_tasks(), self.random.one_in(2));
        let book = self.book(end);
        // A future that is dropped before the answer cancels the call, if the request was sent.
        book.put_ask(number, Ask::MayEnd);
        book.tried.store(number + 1, SeqCst);
        let over = self.life.shortages_over();
        self.awaits_answer(end, number);
        let about = About { call: Call::TaskAsk, end, number };
        let request = Outgoing::new(&bytes).handles(files);
        let call = || drive(reactor, pin!(calls.call(request)), patience, looks);
        let called = self.timed(about, patience, call, |called| match called {
            Some(called) => said_of_calling(called),
            None => "nothing".into(),
        });
        self.leave(at, calls);
        match called {
            Some(called) => self.end_call(end, number, count, over, patience, called),
            None => self.walk.awaits_answer.store(0, SeqCst),
        }
    }

    fn serve_in_task(&mut self, at: usize, calls: AsyncCallEnd, reactor: &Reactor) {
        let end = self.calling[at].end;
        let (patience, looks) = (self.patience_of_tasks(), self.random.one_in(2));
        let polls = self.random.one_in(2);
        let over = self.life.shortages_over();
        self.walk.awaits_answer.store(0, SeqCst);
        self.awaits(std::iter::once(end));
        let about = About { call: Call::TaskServe, end, number: 0 };
        let next = || match polls {
            true => drive(reactor, pin!(poll_fn(|context| calls.poll_next_request(context))), patience, looks),
            false => drive(reactor, pin!(calls.next_request()), patience, looks),
        };
        let next = self.timed(about, patience, next, |next| next.as_ref().map_or("nothing".into(), said));
        self.leave(at, calls);
        match next {
            Some(Ok(request)) => self.take_request(end, request),
            Some(Err(error)) => drop(self.take_error_of_calls(end, over, patience, error)),
            None => {}
        }
    }

    /// Polls, awaits or cancels a call without an answer.
    fn settle_one(&mut self, at: usize) {
        if self.calling[at].pending.is_empty() {
            return;
        }
        let which = self.random.index(self.calling[at].pending.len());
        match self.random.below(4) {
            0 => self.await_call(at, which),
            1 => self.cancel_call(at, which),
            _ => drop(self.poll_call(at, which)),
        }
    }

    /// Polls a call. Returns whether it is over.
    fn poll_call(&mut self, at: usize, which: usize) -> bool {
        let end = self.calling[at].end;
        let (number, mut pending) = self.calling[at].pending.swap_remove(which);
        let over = self.life.shortages_over();
        let about = About { call: Call::Poll, end, number };
        match self.timed(about, Duration::ZERO, || pending.poll(Deadline::NOW), said_of_calling) {
            Err(CallError::OutcomeUnknown(error)) if error != Error::PeerClosed => {
                self.calling[at].pending.push((number, pending));
                self.take_error_of_calls(end, over, Duration::ZERO, error);
                false
            }
            called => {
                self.end_call(end, number, 0, over, Duration::ZERO, called);
                true
            }
        }
    }

    fn await_call(&mut self, at: usize, which: usize) {
        let end = self.calling[at].end;
        let (number, pending) = self.calling[at].pending.swap_remove(which);
        let patience = if self.random.one_in(2) { self.long_patience() } else { self.patience() };
        self.book(end).put_ask(number, Ask::MayEnd);
        let over = self.life.shortages_over();
        self.awaits_answer(end, number);
        let about = About { call: Call::Await, end, number };
        let called = self.timed(about, patience, || pending.wait(deadline_of(patience)), said_of_calling);
        self.end_call(end, number, 0, over, patience, called);
    }

    fn cancel_call(&mut self, at: usize, which: usize) {
        let end = self.calling[at].end;
        let (number, pending) = self.calling[at].pending.swap_remove(which);
        self.book(end).put_ask(number, Ask::MayEnd);
        let about = About { call: Call::Cancel, end, number };
        self.timed(about, Duration::ZERO, || pending.cancel(), |()| String::new());
    }

    /// Records that this thread waits for the answer of a call.
    fn awaits_answer(&self, end: u32, number: u64) {
        self.walk.awaits_answer.store(number + 1, SeqCst);
        self.awaits(std::iter::once(end));
    }

    /// Judges the outcome of call `number` of an end. The request had `count` handles.
    fn end_call(
        &mut self,
        end: u32,
        number: u64,
        count: usize,
        over: u64,
        patience: Duration,
        called: Result<Message, CallError>,
    ) {
        self.walk.awaits_answer.store(0, SeqCst);
        let book = self.book(end);
        match called {
            Ok(reply) => {
                self.check_reply(end, number, reply);
                book.put_ask(number, Ask::Over);
            }
            Err(CallError::NotSent(SendError { error, handles })) => {
                if handles.len() != count {
                    self.wrong(end, &format!("{} of {count} handles came back with {error:?}", handles.len()));
                }
                book.tried.store(number, SeqCst);
                book.put_ask(number, Ask::Over);
                self.take_error_of_calls(end, over, patience, error);
            }
            Err(CallError::OutcomeUnknown(error)) => {
                self.take_error_of_calls(end, over, patience, error);
            }
            Err(_) => {
                if !self.has_dropped(end, number) {
                    self.wrong(end, &format!("call {number} is not answered, and its request was not dropped"));
                }
                book.put_ask(number, Ask::Over);
            }
        }
    }

    fn check_reply(&mut self, end: u32, number: u64, mut reply: Message) {
        if !matches!(self.book(end).answer(number), Answer::Begins | Answer::Sent) {
            self.wrong(end, &format!("call {number} has a reply that was not sent"));
        }
        let Some(said) = parse(reply.bytes()) else {
            self.wrong(end, &format!("the reply of {} bytes to call {number} is garbled", reply.bytes().len()));
        };
        if (said.stream, said.number) != (end | REPLY, number) {
            self.wrong(end, &format!("call {number} has the reply to call {} of {}", said.number, said.stream));
        }
        self.check_files(end, &said, reply.take_handles());
    }

    /// Checks the handles of a request or a reply: all are files.
    fn check_files(&mut self, end: u32, said: &Said, handles: Result<Vec<Handle>, Error>) {
        let handles = match handles {
            Ok(handles) => handles,
            Err(error) => return self.take_loss(end, said.number, said, error),
        };
        if handles.len() != said.files {
            self.wrong(end, &format!("{} of {} handles of a call have come", handles.len(), said.files));
        }
        for (at, handle) in handles.into_iter().enumerate() {
            if let Err(what) = check_file(handle, said.stream, said.number, at, self.life.has_been_short()) {
                self.wrong(end, &what);
            }
        }
    }

    /// Returns whether the other end has dropped request `number` of this end. Waits while the process of the other
    /// end may not have recorded the drop yet.
    fn has_dropped(&self, end: u32, number: u64) -> bool {
        let begin = Instant::now();
        loop {
            match self.book(end).answer(number) {
                Answer::Dropped => return true,
                Answer::Sent | Answer::None => return false,
                Answer::Begins if judge::is_peer_gone(self.process.ledger, end) => return true,
                Answer::Begins if begin.elapsed() > WRITTEN_DOWN => return false,
                Answer::Begins => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// Serving.
impl Walker {
    /// Takes the next request of an end, and answers it, drops it, or leaves it for later. Returns whether there was
    /// a request.
    fn serve(&mut self, at: usize, patience: Duration) -> bool {
        let (end, calls) = self.call_end(at);
        let over = self.life.shortages_over();
        self.walk.awaits_answer.store(0, SeqCst);
        self.awaits(std::iter::once(end));
        let about = About { call: Call::NextRequest, end, number: 0 };
        let next = self.timed(about, patience, || calls.next_request(deadline_of(patience)), said);
        let _ = calls.under_way();
        drop(calls);
        match next {
            Ok(request) => self.take_request(end, request),
            Err(error) => {
                self.take_error_of_calls(end, over, patience, error);
                return false;
            }
        }
        true
    }

    fn take_request(&mut self, end: u32, mut request: Request) {
        let stream = other(end);
        let Some(said) = parse(request.bytes()) else {
            self.wrong(end, &format!("a request of {} bytes is garbled", request.bytes().len()));
        };
        let number = said.number;
        self.check_request(end, &said);
        let caller = self.book(stream);
        if request.is_cancelled() && caller.ask(number) == Some(Ask::Sent) {
            self.wrong(end, &format!("request {number} is cancelled, and its caller did not do so"));
        }
        caller.received.store(number + 1, SeqCst);
        let handles = request.take_handles();
        self.check_files(end, &said, handles);
        let (_, replier) = request.into_parts();
        let at = self.calling.iter().position(|calling| calling.end == end);
        let may_owe = self.process.ledger.phase() == Phase::Run;
        match (self.random.below(8), at) {
            (0, _) | (_, None) => self.drop_owed(end, vec![(number, replier)]),
            (1, Some(at)) if may_owe => self.calling[at].owed.push((number, replier)),
            _ => self.answer(end, number, replier),
        }
    }

    /// Checks that a request is the next of its stream; requests that may have been cancelled may be missing.
    fn check_request(&self, end: u32, said: &Said) {
        let (stream, number) = (other(end), said.number);
        let caller = self.book(stream);
        let received = caller.received.load(SeqCst);
        if said.stream != stream || number >= caller.tried.load(SeqCst) {
            self.wrong(end, &format!("request {number} of {} was sent by nobody", said.stream));
        }
        if number < received {
            self.wrong(end, &format!("request {number} comes after request {received}"));
        }
        let lost = (received..number).find(|lost| caller.ask(*lost) == Some(Ask::Sent));
        if let Some(lost) = lost {
            self.wrong(end, &format!("request {number} has come, and request {lost} has not"));
        }
    }

    /// Answers an open request.
    fn answer_one(&mut self, at: usize) {
        let end = self.calling[at].end;
        if !self.calling[at].owed.is_empty() {
            let which = self.random.index(self.calling[at].owed.len());
            let (number, replier) = self.calling[at].owed.swap_remove(which);
            self.answer(end, number, replier);
        }
    }

    fn answer(&mut self, end: u32, number: u64, mut replier: Replier) {
        let (caller, stream) = (self.book(other(end)), other(end) | REPLY);
        let files = self.files(stream, number);
        let count = files.len();
        let filling = self.filling();
        let bytes = bytes_of(stream, number, &[], count, filling);
        let patience = self.patience();
        let over = self.life.shortages_over();
        caller.put_answer(number, Answer::Begins);
        let about = About { call: Call::Reply, end, number };
        let reply = || replier.reply(Outgoing::new(&bytes).handles(files), deadline_of(patience));
        match self.timed(about, patience, reply, said_of_sending) {
            Ok(()) => caller.put_answer(number, Answer::Sent),
            Err(SendError { error, handles }) => {
                if handles.len() != count {
                    self.wrong(end, &format!("{} of {count} handles came back with {error:?}", handles.len()));
                }
                let at = self.calling.iter().position(|calling| calling.end == end);
                match at {
                    Some(at) if self.random.one_in(2) => self.calling[at].owed.push((number, replier)),
                    _ => self.drop_owed(end, vec![(number, replier)]),
                }
                self.take_error_of_calls(end, over, patience, error);
            }
        }
    }
}

/// The end of the world.
impl Walker {
    /// Takes and answers all requests, and takes all replies. Returns whether there was any of them.
    pub(super) fn drain_calls(&mut self) -> bool {
        let mut came = false;
        for at in (0..self.calling.len()).rev() {
            let end = self.calling[at].end;
            while self.has_calls_at(at, end) && self.serve(at, Duration::ZERO) {
                came = true;
            }
            for which in (0..self.calling.get(at).map_or(0, |calling| calling.pending.len())).rev() {
                if self.has_calls_at(at, end) {
                    came |= self.poll_call(at, which);
                }
            }
            if self.has_calls_at(at, end) {
                self.answer_one(at);
            }
        }
        came
    }

    fn has_calls_at(&self, at: usize, end: u32) -> bool {
        self.calling.get(at).is_some_and(|calling| calling.end == end)
    }

    /// Checks that an end for calls returns *peer closed* if the other end is gone.
    pub(super) fn see_that_lone_calls_say_so(&mut self) {
        for at in (0..self.calling.len()).rev() {
            let end = self.calling[at].end;
            if judge::is_peer_gone_for_certain(self.process.ledger, end) {
                while self.has_calls_at(at, end) && self.serve(at, TOLD) {}
                if self.has_calls_at(at, end) {
                    self.wrong(end, "the other end is gone, and this end for calls is not told in time");
                }
            }
        }
    }

    pub(super) fn close_all_calls(&mut self) {
        while !self.calling.is_empty() {
            self.close_calls(self.calling.len() - 1);
        }
    }

    /// Returns whether a new channel is for calls.
    pub(super) fn is_for_calls(&self, end: u32) -> bool {
        self.book(end).class.load(SeqCst) == FOR_CALLS
    }
}
