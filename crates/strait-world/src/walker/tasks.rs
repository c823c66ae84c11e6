//! Tasks: a thread puts an end into a reactor, drives one future, and takes the end out again. Tasks send and receive
//! ends, and an end used by a task moves on to another process.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait::task::{AsyncChannel, Reactor};
use strait::{Channel, Deadline, Error, Handle, Message, Outgoing, SendError};

use super::receiving::{Parts, copied, in_parts};
use super::waits::Registration;
use super::{About, Walker, bytes_of, is_empty, said};
use crate::ledger::Place;
use crate::trail::{Call, NO_END};
use crate::worker::excused;

/// The lowest class of ends that carry no ends.
const HIGHEST_CARRIER: u64 = 3;

/// Long enough for the controller to notice a thread asleep beside a message.
pub(super) const ENOUGH: Duration = Duration::from_secs(2);

/// Records that the task was woken.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// Drives a future for up to `patience`, and polls it only after a wake-up. `None` if the future is not ready by
/// then. If `looks`, drives the reactor as a driver does that polls before it sleeps.
pub(crate) fn drive<T>(
    reactor: &Reactor,
    mut future: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    patience: Duration,
    looks: bool,
) -> Option<T> {
    let (begin, flag) = (Instant::now(), Arc::new(Flag(AtomicBool::new(true))));
    let waker = Waker::from(flag.clone());
    loop {
        if flag.0.swap(false, SeqCst)
            && let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return Some(done);
        }
        // After an error of a shortage or of the channel, the future is polled once more.
        let turned = match looks {
            true => reactor.look().and_then(|count| if count == 0 { reactor.rest() } else { Ok(count) }),
            false => reactor.turn(),
        };
        match turned {
            Ok(0) if !flag.0.load(SeqCst) => {}
            Ok(_) => continue,
            Err(_) => flag.0.store(true, SeqCst),
        }
        let left = patience.checked_sub(begin.elapsed())?;
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(reactor, PollFlags::IN)], Some(&timeout));
    }
}

/// A future of a task, which borrows.
type Task<'a, T> = Pin<&'a mut dyn Future<Output = T>>;

/// Receives by one of seven calls, and drives the call with `drive`. Returns the result, and the channel.
fn receive_by(
    way: u64,
    channel: AsyncChannel,
    drive: impl Fn(Task<'_, Result<Parts, Error>>) -> Option<Result<Parts, Error>>,
) -> (Option<Result<Parts, Error>>, AsyncChannel) {
    let in_place = |channel: &Channel| channel.recv_in_place(Deadline::NOW).map(copied);
    let try_recv = |channel: &Channel| channel.try_recv().map(in_parts);
    let received = match way {
        0 => drive(pin!(poll_fn(|context| channel.poll_recv(context).map_ok(in_parts)))),
        1 => drive(pin!(channel.recv_with(in_place))),
        2 => drive(pin!(poll_fn(|context| channel.poll_recv_with(context, try_recv)))),
        3 => drive(pin!(async {
            let mut message = Message::new();
            channel.recv_message(&mut message).await.map(|()| in_parts(message))
        })),
        4 | 5 => {
            let (sender, mut receiver) = channel.split();
            let received = drive(pin!(async {
                let mut message = Message::new();
                match way {
                    4 => receiver.recv_message(&mut message).await?,
                    _ => message = receiver.recv().await?,
                }
                Ok(in_parts(message))
            }));
            return (received, sender.join(receiver).expect("two halves of a channel"));
        }
        _ => drive(pin!(async { channel.recv().await.map(in_parts) })),
    };
    (received, channel)
}

/// Sends by one of six calls, and drives the call with `drive`. Returns the result, and the channel.
fn send_by(
    way: u64,
    channel: AsyncChannel,
    bytes: &[u8],
    handles: Vec<Handle>,
    drive: impl Fn(Task<'_, Result<(), SendError>>) -> Option<Result<(), SendError>>,
) -> (Option<Result<(), SendError>>, AsyncChannel) {
    let has_handles = !handles.is_empty();
    let without_handles = |error| SendError { error, handles: Vec::new() };
    let reserve = |channel: &Channel| {
        let mut room = channel.reserve(bytes.len(), Deadline::NOW)?;
        room.write_at(bytes, 0);
        room.commit().map_err(Error::from)
    };
    let sent = match way {
        // If there is no room for handles, the commit of a reservation does not wait.
        0 if !has_handles => drive(pin!(async { channel.send_with(reserve).await.map_err(without_handles) })),
        1 if !has_handles => {
            let send = poll_fn(|context| channel.poll_send_with(context, reserve).map_err(without_handles));
            drive(pin!(send))
        }
        2 => {
            let (mut sender, receiver) = channel.split();
            let sent = drive(pin!(sender.send(Outgoing::new(bytes).handles(handles))));
            return (sent, sender.join(receiver).expect("two halves of a channel"));
        }
        3 => drive(pin!(async {
            let mut message = Message::from_parts(bytes.to_vec(), handles);
            let sent = channel.forward(&mut message).await;
            sent.map_err(|error| SendError { error, handles: message.take_handles().unwrap_or_default() })
        })),
        _ => drive(pin!(channel.send(Outgoing::new(bytes).handles(handles)))),
    };
    (sent, channel)
}

impl Walker {
    /// Receives from an end, or sends to it, in a task.
    pub(super) fn use_task(&mut self) {
        let Some(at) = self.pick(|held| held.registration == Registration::None) else { return };
        let over = self.life.shortages_over();
        let about = About { call: Call::NewReactor, end: NO_END, number: 0 };
        let reactor = match self.timed(about, Duration::ZERO, Reactor::new, said) {
            Ok(reactor) => reactor,
            Err(error) if excused(self.process, over, error) => return,
            Err(error) => self.process.wrong(None, &format!("a reactor: {error:?}")),
        };
        let held = self.held.swap_remove(at);
        let end = held.end;
        let Some(channel) = Arc::into_inner(held.channel) else {
            self.wrong(end, "an end that a task is to use is still in use")
        };
        let Some(channel) = self.enter(end, channel, &reactor) else { return };
        let channel = match self.random.one_in(3) {
            true => self.send_in_task(end, channel, &reactor),
            false => self.receive_in_task(end, channel, &reactor),
        };
        let _ = (channel.get_ref().is_readable(), channel.reactor().has_more());
        let about = About { call: Call::LeaveReactor, end, number: 0 };
        let channel = self.timed(about, Duration::ZERO, || channel.into_inner(), |_| String::new());
        drop(reactor);
        self.hold(end, channel);
        match self.random.one_in(3) {
            true => self.send_last_end(),
            false => drop(self.receive(self.held.len() - 1, Duration::ZERO)),
        }
    }

    /// Sends the last end taken by this thread over a channel of a lower class.
    fn send_last_end(&mut self) {
        let Some(rider) = self.held.pop() else { return };
        let class = if self.may_ride(&rider, 0) { self.class(&rider) } else { 0 };
        match self.pick(|held| self.process.ledger.end(held.end).class.load(SeqCst) < class) {
            Some(carrier) => drop(self.send(carrier, vec![rider])),
            None => self.held.push(rider),
        }
    }

    /// Puts an end into a reactor. If that fails, the end is closed, and the result is `None`.
    fn enter(&mut self, end: u32, channel: Channel, reactor: &Reactor) -> Option<AsyncChannel> {
        let over = self.life.shortages_over();
        let about = About { call: Call::EnterReactor, end, number: 0 };
        match self.timed(about, Duration::ZERO, || AsyncChannel::new(channel, reactor), said) {
            Ok(channel) => Some(channel),
            Err(error) => {
                self.book(end).put(Place::Closed);
                // An end returned by a failed send is still in its wait set.
                let may_be = matches!(error, Error::InSet | Error::PeerClosed);
                if !may_be && !self.passes(end, over, Duration::ZERO, error) {
                    self.wrong(end, &format!("entering a reactor says {error:?}"));
                }
                None
            }
        }
    }

    /// Receives once in a task, by a random call. Returns the channel.
    fn receive_in_task(&mut self, end: u32, channel: AsyncChannel, reactor: &Reactor) -> AsyncChannel {
        // A waiting message must be received at once, or the controller reports a mistake.
        let is_there = self.process.ledger.has_message(end);
        let patience = if is_there { ENOUGH } else { self.patience_of_tasks() };
        let over = self.life.shortages_over();
        self.awaits(std::iter::once(end));
        let about = About { call: Call::TaskRecv, end, number: 0 };
        let (way, looks) = (self.random.below(7), self.random.one_in(2));
        let receive = || receive_by(way, channel, |receive| drive(reactor, receive, patience, looks));
        let outcome = |(done, _): &(Option<Result<Parts, Error>>, _)| done.as_ref().map_or("nothing".into(), said);
        let (received, channel) = self.timed(about, patience, receive, outcome);
        match received {
            Some(Ok((bytes, handles))) => self.take(end, &bytes, handles),
            // The next call, after the end has left the reactor, says so too.
            Some(Err(Error::PeerClosed)) | None => {}
            Some(Err(error)) => {
                if !self.passes(end, over, patience, error) {
                    self.wrong(end, &format!("receiving in a task says {error:?}"));
                }
            }
        }
        channel
    }

    /// Sends a message in a task, by a random call. Returns the channel.
    fn send_in_task(&mut self, end: u32, channel: AsyncChannel, reactor: &Reactor) -> AsyncChannel {
        let patience = self.patience_of_tasks();
        let book = self.book(end);
        let number = book.accepted.load(SeqCst);
        let class = book.class.load(SeqCst);
        let riders =
            if class < HIGHEST_CARRIER && self.random.one_in(2) { self.take_riders(class) } else { Vec::new() };
        let names: Vec<u32> = riders.iter().map(|rider| rider.end).collect();
        let mut handles = self.board(end, number, riders);
        let bytes = match names.is_empty() && is_empty(end, number) {
            true => Vec::new(),
            false => {
                let files = self.files(end, number);
                let filling = self.filling();
                let bytes = bytes_of(end, number, &names, files.len(), filling);
                handles.extend(files);
                bytes
            }
        };
        let count = handles.len();
        book.tried.store(number + 1, SeqCst);
        let over = self.life.shortages_over();
        let about = About { call: Call::TaskSend, end, number };
        let (way, looks) = (self.random.below(6), self.random.one_in(2));
        let send = || send_by(way, channel, &bytes, handles, |send| drive(reactor, send, patience, looks));
        let outcome = |(done, _): &(Option<Result<(), SendError>>, _)| match done {
            None => "nothing".into(),
            Some(Ok(())) => "Ok".into(),
            Some(Err(SendError { error, .. })) => format!("{error:?}"),
        };
        let (sent, channel) = self.timed(about, patience, send, outcome);
        match sent {
            Some(Ok(())) => {
                book.accepted.store(number + 1, SeqCst);
                return channel;
            }
            Some(Err(SendError { error, handles })) => {
                if handles.len() != count {
                    self.wrong(end, &format!("{} of {count} handles came back with {error:?}", handles.len()));
                }
                self.take_back(end, number, &names, handles);
                self.take_error(end, over, patience, error);
            }
            // The future was dropped before it was ready: nothing was sent, and the ends in the message are closed.
            None => names.iter().for_each(|name| self.note_closed(*name, over)),
        }
        book.tried.store(number, SeqCst);
        channel
    }

    pub(super) fn patience_of_tasks(&mut self) -> Duration {
        match self.random.below(6) {
            0 => ENOUGH,
            1 | 2 => Duration::from_millis(self.random.below(60)),
            _ => Duration::ZERO,
        }
    }
}
