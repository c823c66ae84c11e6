//! The victim's use of wait sets, traps, dispatchers, calls, tasks and listeners.

use std::future::{Future, poll_fn};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait::call::{CallEnd, CallError, CallOptions};
use strait::task::{AsyncCallEnd, AsyncChannel, AsyncConsumer, AsyncProducer, Reactor};
use strait::wait::{Conditions, Dispatched, Dispatcher, Fd, Interest, Mode, Sprung, Traps, WaitSet};
use strait::{Deadline, Error, Outgoing, SendError};

use super::Driver;

/// How often a future is polled before it is dropped.
const TURNS: usize = 3;

impl Driver<'_> {
    pub(super) fn act_on_sets(&mut self) {
        if self.choices.one_in(8)
            && let Some(set) = self.note("WaitSet::new", WaitSet::new())
        {
            self.keep(|pool| &mut pool.sets, Arc::new(set));
        }
        let Some(set) = self.one_of(|pool| &pool.sets) else { return };
        let (channel, consumer) = (self.channel(), self.one_of(|pool| &pool.consumers));
        let producer = self.one_of(|pool| &pool.producers);
        let interest = self.choices.pick(&[Interest::Readable, Interest::Writable, Interest::Both]);
        let mode = self.choices.pick(&[Mode::Level, Mode::OneShot]);
        let done = match (self.choices.below(12), channel, consumer, producer) {
            (0 | 1, Some(channel), _, _) => {
                self.call("WaitSet::add", Duration::ZERO, || set.add(&channel, 1, interest, mode))
            }
            (2, Some(channel), _, _) => self.call("WaitSet::remove", Duration::ZERO, || set.remove(&channel)),
            (3, Some(channel), _, _) => {
                self.call("WaitSet::modify", Duration::ZERO, || set.modify(&channel, 1, interest, mode))
            }
            (4, _, Some(consumer), _) => self.call("WaitSet::add a pipe", Duration::ZERO, || {
                set.add(&*consumer, 2, Interest::Both, mode)?;
                set.modify(&*consumer, 2, Interest::Both, mode)
            }),
            (5, _, _, Some(producer)) => {
                self.call("WaitSet::add a pipe", Duration::ZERO, || set.add(&*producer, 3, Interest::Both, mode))
            }
            (6, _, Some(consumer), _) => self.call("WaitSet::remove a pipe", Duration::ZERO, || set.remove(&*consumer)),
            (7, Some(channel), _, _) => self.call("WaitSet::await_room", Duration::ZERO, || {
                // The failed send tells the set which room to wait for.
                let _ = channel.try_send(&[0; 60 << 10]);
                set.await_room(&channel, 1)
            }),
            (8, _, _, _) => self.watch_a_pipe(&set, mode),
            _ => {
                let (deadline, allowed) = self.deadline();
                self.wait_on(&set, deadline, allowed)
            }
        };
        if !matches!(done, Err(Error::InSet | Error::NotInSet)) {
            self.note("a wait set", done);
        }
    }

    fn wait_on(&mut self, set: &WaitSet, deadline: Deadline, allowed: Duration) -> Result<(), Error> {
        let mut events = Vec::with_capacity(1 + self.choices.below(8));
        let found = self.call("WaitSet::wait", allowed, || set.wait(&mut events, deadline));
        for event in &events {
            let _ = (event.key(), event.is_readable(), event.is_writable(), event.has_moved());
        }
        let _ = (set.has_more(), set.len(), set.is_empty());
        found.map(drop)
    }

    /// Adds the reading end of a kernel's pipe to a set, and removes it by dropping it.
    fn watch_a_pipe(&mut self, set: &WaitSet, mode: Mode) -> Result<(), Error> {
        let Ok((reader, mut writer)) = std::io::pipe() else { return Ok(()) };
        let member = match self.choices.one_in(2) {
            true => Fd::duplicate(&reader)?,
            false => Fd::new(reader)?,
        };
        self.call("WaitSet::add a descriptor", Duration::ZERO, || set.add(&member, 4, Interest::Readable, mode))?;
        let _ = std::io::Write::write(&mut writer, b"x");
        let done = self.wait_on(set, Deadline::NOW, Duration::ZERO);
        self.call("drop of a descriptor in a set", Duration::ZERO, || drop(member));
        done
    }

    pub(super) fn act_on_traps(&mut self) {
        if self.choices.one_in(8)
            && let Some(traps) = self.note("Traps::new", Traps::new())
        {
            self.keep(|pool| &mut pool.traps, Arc::new(traps));
        }
        let (Some(traps), Some(channel)) = (self.one_of(|pool| &pool.traps), self.channel()) else { return };
        let conditions = match self.choices.below(5) {
            0 => Conditions::new().messages(1 + self.choices.below(20) as u64),
            1 => Conditions::new().bytes(self.choices.below(5000) as u64),
            2 if self.choices.one_in(2) => Conditions::new().arrived(5),
            2 => Conditions::new().room().messages(3),
            3 => Conditions::new().peer_closed(),
            _ => Conditions::new().all_read(),
        };
        match self.choices.below(4) {
            0 => {
                let armed = self.call("Traps::arm", Duration::ZERO, || traps.arm(&channel, conditions, drop::<Sprung>));
                if let Ok(trap) = armed
                    && self.choices.one_in(3)
                {
                    self.call("Traps::cancel", Duration::ZERO, || traps.cancel(trap));
                }
            }
            1 => {
                let again = move |sprung: Sprung| match sprung {
                    Sprung::Met(status) if !conditions.are_met(&Default::default()) => {
                        Some(Conditions::new().messages(2 * status.messages.max(1)))
                    }
                    _ => None,
                };
                let watched = self.call("Traps::watch", Duration::ZERO, || traps.watch(&channel, conditions, again));
                if !matches!(watched, Err(Error::InSet)) {
                    self.note("Traps::watch", watched);
                }
            }
            _ => {
                let (deadline, allowed) = self.deadline();
                let _ = (traps.len(), traps.is_empty());
                let called = self.call("Traps::dispatch", allowed, || traps.dispatch(deadline));
                self.note("Traps::dispatch", called);
            }
        }
    }

    pub(super) fn act_on_calls(&mut self) {
        if self.choices.one_in(6)
            && let Some(channel) = self.lone_channel()
        {
            let end = match self.choices.one_in(2) {
                true => {
                    CallOptions::new().calls(4).requests(4).max_message(1 << 16).request_bytes(1 << 17).over(channel)
                }
                false => CallEnd::over(channel),
            };
            self.keep(|pool| &mut pool.ends, Arc::new(end));
        }
        match self.choices.below(8) {
            0..=4 => {
                if let Some(end) = self.one_of(|pool| &pool.ends) {
                    self.use_call_end(&end);
                }
            }
            5 => self.answer(),
            _ => self.await_reply(),
        }
    }

    fn use_call_end(&mut self, end: &CallEnd) {
        let (deadline, allowed) = self.deadline();
        match self.choices.below(5) {
            0 => {
                let answered = self.call("call", allowed, || end.call(b"a call", deadline));
                self.note_answer("call", answered);
            }
            1 => {
                let answered = self.call("call_serving", allowed, || end.call_serving(b"a call", deadline, drop));
                self.note_answer("call_serving", answered);
            }
            2 => {
                let begun = self.call("begin_call", allowed, || end.begin_call(b"a call", deadline));
                match begun {
                    Ok(pending) => self.keep(|pool| &mut pool.pending, pending),
                    Err(CallError::NotSent(failed)) => self.note_sent::<()>("begin_call", Err(failed)),
                    Err(_) => {}
                }
            }
            3 => {
                let _ = (end.counters(), end.under_way(), end.channel().is_readable());
            }
            _ => {
                let next = self.call("next_request", allowed, || end.next_request(deadline));
                if let Some(request) = self.note("next_request", next) {
                    self.note_work(request.bytes().len());
                    self.keep(|pool| &mut pool.requests, request);
                }
            }
        }
    }

    fn note_answer(&mut self, name: &str, answered: Result<strait::Message, CallError>) {
        match answered {
            Ok(message) => self.received(message),
            Err(CallError::NotSent(SendError { error, handles, .. })) => {
                self.failed(name, error);
                self.keep_handles(handles);
            }
            Err(CallError::OutcomeUnknown(error)) => self.failed(name, error),
            Err(_) => {}
        }
    }

    fn answer(&mut self) {
        let Some(mut request) = self.take(|pool| &mut pool.requests) else { return };
        let (deadline, allowed) = self.deadline();
        let _ = request.is_cancelled();
        if let Ok(handles) = self.call("Request::take_handles", Duration::ZERO, || request.take_handles()) {
            self.keep_handles(handles);
        }
        if self.choices.one_in(4) {
            return self.call("drop a request", Duration::ZERO, || drop(request));
        }
        let (message, mut replier) = request.into_parts();
        drop(message);
        let replied = self.call("reply", allowed, || {
            let _ = replier.is_cancelled();
            replier.reply(b"an answer", deadline)
        });
        self.note_sent("reply", replied);
        self.call("drop a replier", Duration::ZERO, || drop(replier));
    }

    fn await_reply(&mut self) {
        let Some(mut pending) = self.take(|pool| &mut pool.pending) else { return };
        let (deadline, allowed) = self.deadline();
        match self.choices.below(3) {
            0 => {
                let answered = self.call("PendingCall::wait", allowed, || pending.wait(deadline));
                self.note_answer("PendingCall::wait", answered);
            }
            1 => {
                let polled = self.call("PendingCall::poll", Duration::ZERO, || pending.poll(Deadline::NOW));
                self.note_answer("PendingCall::poll", polled);
                self.keep(|pool| &mut pool.pending, pending);
            }
            _ => self.call("PendingCall::cancel", Duration::ZERO, || pending.cancel()),
        }
    }

    /// Polls a future up to [`TURNS`] times, with calls of its reactor in between, and drops the future. `None` if
    /// the future did not complete.
    pub(super) fn drive<T>(&self, name: &str, reactor: &Reactor, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        for turn in 0..TURNS {
            let polled = self.call(name, Duration::ZERO, || future.as_mut().poll(&mut context));
            if let std::task::Poll::Ready(result) = polled {
                return Some(result);
            }
            let turned = match turn {
                0 => self.call("Reactor::look", Duration::ZERO, || reactor.look()),
                1 => self.call("Reactor::rest", Duration::ZERO, || reactor.rest()),
                _ => self.call("Reactor::turn", Duration::ZERO, || reactor.turn()),
            };
            self.note("a reactor", turned);
            let _ = reactor.has_more();
        }
        None
    }

    pub(super) fn act_on_reactors(&mut self) {
        let Some(reactor) = self.note("Reactor::new", Reactor::new()) else { return };
        // Some reactors have ended before their use.
        match self.choices.below(8) {
            0 => self.call("Reactor::end", Duration::ZERO, || reactor.end()),
            1 => self.call("drop of a driver", Duration::ZERO, || drop(reactor.driver())),
            _ => {}
        }
        let _ = reactor.has_ended();
        match self.choices.below(4) {
            0 | 1 => {
                let Some(channel) = self.lone_channel() else { return };
                let made = self.call("AsyncChannel::new", Duration::ZERO, || AsyncChannel::new(channel, &reactor));
                let Some(channel) = self.note_unless_in_set(made) else { return };
                let channel = self.use_async_channel(&reactor, channel);
                let channel = self.call("into_inner", Duration::ZERO, || channel.into_inner());
                self.keep(|pool| &mut pool.channels, Arc::new(channel));
            }
            2 => {
                let Some(channel) = self.lone_channel() else { return };
                let end = CallEnd::over(channel);
                let made = self.call("AsyncCallEnd::new", Duration::ZERO, || AsyncCallEnd::new(end, &reactor));
                let Some(end) = self.note_unless_in_set(made) else { return };
                drop(self.drive("AsyncCallEnd::call", &reactor, end.call(b"from a task")));
                if let Some(Ok(request)) = self.drive("AsyncCallEnd::next_request", &reactor, end.next_request()) {
                    let (message, mut replier) = request.into_parts();
                    self.received(message);
                    let reply = end.reply(&mut replier, b"from a task");
                    drop(self.drive("AsyncCallEnd::reply", &reactor, reply));
                    self.call("drop a replier", Duration::ZERO, || drop(replier));
                }
                let next = poll_fn(|context| end.poll_next_request(context));
                if let Some(Ok(request)) = self.drive("AsyncCallEnd::poll_next_request", &reactor, next) {
                    let (message, mut replier) = request.into_parts();
                    self.received(message);
                    let mut answer = Outgoing::new(b"from a task");
                    let reply = poll_fn(|context| end.poll_reply(context, &mut replier, &mut answer));
                    drop(self.drive("AsyncCallEnd::poll_reply", &reactor, reply));
                    self.call("drop a replier", Duration::ZERO, || drop(replier));
                }
                let _ = end.get_ref().under_way();
                self.call("drop of an AsyncCallEnd", Duration::ZERO, || drop(end.into_inner()));
            }
            _ => self.act_on_async_pipes(&reactor),
        }
    }

    /// Receives and sends once by a channel in a task. Returns the channel.
    fn use_async_channel(&mut self, reactor: &Reactor, channel: AsyncChannel) -> AsyncChannel {
        let received = match self.choices.below(4) {
            0 => self.drive("AsyncChannel::recv", reactor, channel.recv()),
            1 => self.drive("AsyncChannel::poll_recv", reactor, poll_fn(|context| channel.poll_recv(context))),
            2 => self.drive("AsyncChannel::recv_with", reactor, channel.recv_with(strait::Channel::try_recv)),
            _ => {
                let receive = poll_fn(|context| channel.poll_recv_with(context, strait::Channel::try_recv));
                self.drive("AsyncChannel::poll_recv_with", reactor, receive)
            }
        };
        if let Some(Ok(message)) = received {
            self.received(message);
        }
        let send = |channel: &strait::Channel| channel.try_send(b"from a task").map_err(Error::from);
        let sent = match self.choices.below(4) {
            0 => self.drive("AsyncChannel::send", reactor, channel.send(b"from a task")).map(|sent| sent.is_ok()),
            1 => self.drive("AsyncChannel::send_with", reactor, channel.send_with(send)).map(|sent| sent.is_ok()),
            2 => {
                let send = poll_fn(|context| channel.poll_send_with(context, send));
                self.drive("AsyncChannel::poll_send_with", reactor, send).map(|sent| sent.is_ok())
            }
            _ => {
                let mut message = self.take(|pool| &mut pool.messages).unwrap_or_default();
                let forwarded = self.drive("AsyncChannel::forward", reactor, channel.forward(&mut message));
                self.call("drop a message", Duration::ZERO, || drop(message));
                forwarded.map(|sent| sent.is_ok())
            }
        };
        let _ = (sent, channel.get_ref().is_readable(), channel.reactor().has_more());
        if self.choices.one_in(2) {
            return channel;
        }
        let (mut sender, mut receiver) = channel.split();
        let _ = self.drive("AsyncSender::send", reactor, sender.send(b"from half a task"));
        let mut message = strait::Message::new();
        let received = self.drive("AsyncReceiver::recv_message", reactor, receiver.recv_message(&mut message));
        if let Some(Ok(())) = received {
            self.received(message);
        }
        match sender.join(receiver) {
            Ok(channel) => channel,
            Err(_) => panic!("two halves of a channel in a task cannot be joined"),
        }
    }

    fn note_unless_in_set<T>(&self, made: Result<T, Error>) -> Option<T> {
        if matches!(made, Err(Error::InSet)) { None } else { self.note("a reactor", made) }
    }

    fn act_on_async_pipes(&mut self, reactor: &Reactor) {
        if let Some(consumer) = self.take(|pool| &mut pool.consumers)
            && let Ok(consumer) = Arc::try_unwrap(consumer)
            && let Some(consumer) = self.note_unless_in_set(AsyncConsumer::new(consumer, reactor))
        {
            let mut out = [0; 64];
            let _ = self.drive("AsyncConsumer::read", reactor, consumer.read(&mut out));
            let read = poll_fn(|context| consumer.poll_read(context, &mut out));
            let _ = self.drive("AsyncConsumer::poll_read", reactor, read);
            let mut room = [MaybeUninit::uninit(); 64];
            let read = poll_fn(|context| consumer.poll_read_uninit(context, &mut room).map_ok(|bytes| bytes.len()));
            let _ = self.drive("AsyncConsumer::poll_read_uninit", reactor, read);
            let _ = self.drive("AsyncConsumer::begin_read", reactor, consumer.begin_read()).map(drop);
            let _ = consumer.get_ref().available();
            let aborts = self.choices.one_in(2);
            self.call("drop of an AsyncConsumer", Duration::ZERO, || match aborts {
                true => consumer.abort(5),
                false => drop(consumer.into_inner()),
            });
        }
        if let Some(producer) = self.take(|pool| &mut pool.producers)
            && let Ok(producer) = Arc::try_unwrap(producer)
            && let Some(producer) = self.note_unless_in_set(AsyncProducer::new(producer, reactor))
        {
            let _ = self.drive("AsyncProducer::write_all", reactor, producer.write_all(&[1; 64]));
            let _ = self.drive("AsyncProducer::write", reactor, producer.write(&[2; 64]));
            let write = poll_fn(|context| producer.poll_write(context, &[3; 64]));
            let _ = self.drive("AsyncProducer::poll_write", reactor, write);
            let _ = self.drive("AsyncProducer::begin_write", reactor, producer.begin_write()).map(drop);
            let _ = producer.get_ref().room();
            let aborts = self.choices.one_in(3);
            if !aborts {
                let _ = self.drive("AsyncProducer::finish", reactor, producer.finish());
                let finish = poll_fn(|context| producer.poll_finish(context));
                let _ = self.drive("AsyncProducer::poll_finish", reactor, finish);
            }
            self.call("drop of an AsyncProducer", Duration::ZERO, || match aborts {
                true => producer.abort(6),
                false => drop(producer.into_inner()),
            });
        }
    }

    /// Makes a dispatcher with one channel, runs it for a moment and stops it.
    fn dispatch(&mut self) {
        let Some(channel) = self.lone_channel() else { return };
        let Some(dispatcher) = self.note("Dispatcher::new", Dispatcher::new()) else { return };
        let handler = |_: &strait::Channel, dispatched: Dispatched| drop(dispatched);
        let served = self.call("Dispatcher::serve", Duration::ZERO, || dispatcher.serve(channel, 3, handler));
        if matches!(served, Err(Error::InSet)) {
            return;
        }
        let Some(key) = self.note("Dispatcher::serve", served) else { return };
        let (deadline, allowed) = self.deadline();
        if self.choices.one_in(3) {
            let pump = dispatcher.pump();
            let pumped = self.call("Pump::run_once", allowed, || pump.run_once(deadline));
            self.note("Pump::run_once", pumped);
        }
        let called = self.call("Dispatcher::dispatch", allowed, || dispatcher.dispatch(deadline));
        self.note("Dispatcher::dispatch", called);
        self.call("Dispatcher::stop", Duration::ZERO, || dispatcher.stop(key));
    }

    pub(super) fn act_on_meetings(&mut self) {
        match self.choices.below(4) {
            0 => self.dispatch(),
            1 => self.new_pipe(),
            _ => self.accept(),
        }
    }

    fn accept(&mut self) {
        let victim = self.victim;
        let Some(listener) = &victim.listener else { return };
        let (deadline, allowed) = self.deadline();
        let accepted = match self.choices.below(4) {
            0 => self.call("accept now", Duration::ZERO, || listener.accept(Deadline::NOW)),
            1 => {
                let invited = self.call("invite", Duration::ZERO, || listener.invite(Duration::from_secs(1)));
                let Some(invitation) = self.note("invite", invited.map_err(Error::from)) else { return };
                let _ = invitation.tell(&mut Vec::new());
                self.call("Invitation::accept", allowed, || invitation.accept(deadline))
            }
            _ => self.call("accept", allowed, || listener.accept(deadline)),
        };
        if let Some(channel) = self.note("accept", accepted.map_err(Error::from)) {
            self.keep(|pool| &mut pool.channels, Arc::new(channel));
        }
        if self.choices.one_in(4) {
            let folder = listener.path().parent().expect("a folder");
            let uid = rustix::process::getuid().as_raw();
            let connector = strait::meet::Connector::new().directory(folder).server(uid).wait_for_listener();
            let connected = self.call("connect", Duration::ZERO, || connector.connect("victim", Deadline::NOW));
            self.note("connect", connected.map_err(Error::from));
            let listed = self.call("names", Duration::ZERO, || strait::meet::names(Some(folder)));
            if let Some(listed) = self.note("names", listed.map_err(Error::from))
                && listed.is_empty()
            {
                self.find("the victim's listener is not among the names");
            }
            let pruned = self.call("prune", Duration::ZERO, || strait::meet::prune(Some(folder)));
            self.note("prune", pruned.map_err(Error::from));
        }
    }

    /// Accepts one pending connection, waiting up to 5 ms, and closes it.
    pub fn refuse_visitors(&mut self) {
        let victim = self.victim;
        let Some(listener) = &victim.listener else { return };
        let limit = Duration::from_millis(5);
        drop(self.call("accept", limit, || listener.accept(limit)));
    }

    /// Sleeps until a descriptor is readable, at most for `limit`.
    pub(super) fn poll(&self, fd: &impl AsFd, limit: Duration) {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit));
    }
}
