//! Calls: a request message, and the answer to it.
//!
//! A call writes its own number, whose highest bit is set, over the first four bytes of its message. Then the call
//! waits for a message that begins with its number. While a call is in flight, each thread that takes messages out of
//! the ring checks whether a message is an answer.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strait::Message;

use super::read::Destination;
use super::wire;
use super::write::{self, Gathered, HandlesIn};
use super::{Chan, Inner};
use crate::abi::*;
use crate::hub;
use crate::status::{Result, Status};
use crate::table::{Table, table};
use crate::time::Deadline;
use crate::user::In;
use crate::waiter::Waiter;

/// How long a caller spins before it sleeps. An answer from another CPU usually arrives sooner than a thread could be
/// woken.
const SPIN: Duration = Duration::from_micros(50);

/// Number of polls between two readings of the clock.
const LOOKS: u32 = 64;

/// Maximum number of messages that a poll takes out of the ring. A peer may send changes of signals, which no reader
/// sees, without end.
const PULLS: u32 = 256;

/// Number of polls under one lock, if there is no other call: together they take as long as locking some five times.
const AT_ONCE: u32 = 8;

/// Number of polls without a pause instruction in between.
const EAGER: u32 = 256;

/// The bit that is set in the numbers of calls.
const CALL: u32 = 1 << 31;

/// Size of a call number in bytes.
const TXID: usize = 4;

/// The calls in flight on an end.
#[derive(Default)]
pub(crate) struct Calls {
    /// The calls, in no order.
    list: Vec<Call>,
    /// The number of the last call, without the bit [`CALL`].
    counter: u32,
}

/// A call in flight.
struct Call {
    /// The number of the call.
    txid: u32,
    /// The answer, or the error that ended the call; `None` as long as neither is there.
    outcome: Option<Result<Message>>,
    /// The thread to wake once the outcome is there; `None` while the caller spins.
    waiter: Option<Arc<Waiter>>,
}

impl Calls {
    /// Returns whether no call is in flight.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a call, and returns its number, unique among the calls in flight.
    fn begin(&mut self) -> u32 {
        loop {
            self.counter = self.counter.wrapping_add(1);
            let txid = self.counter | CALL;
            if self.list.iter().all(|call| call.txid != txid) {
                self.list.push(Call { txid, outcome: None, waiter: None });
                return txid;
            }
        }
    }

    /// Returns whether this is the only call, and has no outcome.
    fn has_only(&self, txid: u32) -> bool {
        matches!(&self.list[..], [call] if call.txid == txid && call.outcome.is_none())
    }

    /// Returns the call with the given number.
    fn find(&mut self, txid: u32) -> Option<&mut Call> {
        self.list.iter_mut().find(|call| call.txid == txid)
    }

    /// Removes a call and returns the outcome, if any.
    fn take_outcome(&mut self, txid: u32) -> Option<Result<Message>> {
        let index = self.list.iter().position(|call| call.txid == txid && call.outcome.is_some())?;
        self.list.swap_remove(index).outcome
    }

    /// Removes a call.
    fn forget(&mut self, txid: u32) {
        self.list.retain(|call| call.txid != txid);
    }

    /// Gives an answer to its call; returns the message if there is no such call.
    pub(super) fn route(&mut self, message: Message) -> Option<Message> {
        if self.list.is_empty() {
            return Some(message);
        }
        let payload = wire::payload(message.bytes().len(), message.handles().len()).unwrap_or(0);
        let Some(txid) = message.bytes()[..payload].first_chunk().map(|txid| u32::from_ne_bytes(*txid)) else {
            return Some(message);
        };
        match self.list.iter_mut().find(|call| call.txid == txid && call.outcome.is_none()) {
            Some(call) => {
                call.end(Ok(message));
                None
            }
            None => Some(message),
        }
    }

    /// Ends all calls without an outcome with this status, as no answer will come any more.
    pub(super) fn end(&mut self, status: Status) {
        for call in self.list.iter_mut().filter(|call| call.outcome.is_none()) {
            call.end(Err(status));
        }
    }

    /// Ends all calls, as the end was closed or sent away. The callers find no call, and fail with `CANCELED`.
    pub(super) fn abandon(&mut self) {
        self.end(Status::CANCELED);
        self.list.clear();
    }
}

impl Call {
    /// Sets the outcome of the call (an answer, or an error), and wakes the waiting thread.
    fn end(&mut self, outcome: Result<Message>) {
        self.outcome = Some(outcome);
        if let Some(waiter) = &self.waiter {
            waiter.wake();
        }
    }
}

/// Size in bytes of the longest answer whose memory the thread retains for the next answer.
const SPARE: usize = 4096;

thread_local! {
    /// Memory of an earlier message, for the next one.
    static MEMORY: Cell<Option<Message>> = const { Cell::new(None) };
}

/// Returns a message to receive into, with memory if this thread has some.
pub(super) fn take_spare() -> Message {
    MEMORY.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

/// `zx_channel_call`, `zx_channel_call_etc` and `zx_channel_call_noretry`.
pub(crate) fn call(
    handle: zx_handle_t,
    options: u32,
    deadline: Deadline,
    bytes: In<'_, u8>,
    handles: HandlesIn<'_>,
    destination: &mut Destination<'_>,
) -> Result<()> {
    let consume = |_: &Status| handles.consume();
    if options & !ZX_CHANNEL_WRITE_USE_IOVEC != 0 {
        handles.consume();
        return Err(Status::INVALID_ARGS);
    }
    // The call is registered before anything is sent.
    let txid = begin(handle).inspect_err(consume)?;
    let mut scratch = write::scratch();
    let gathered = Gathered::of(&mut scratch, bytes, options, handles.len())
        .and_then(|gathered| if gathered.len() < TXID { Err(Status::INVALID_ARGS) } else { Ok(gathered) })
        .and_then(|gathered| handles.check().map(|()| gathered));
    let mut gathered = gathered.inspect_err(|_| {
        forget(handle, txid);
        handles.consume();
    })?;
    let front = txid.to_ne_bytes();
    gathered.replace_front(&front);
    if let Err(status) = write::send(handle, &gathered, handles) {
        forget(handle, txid);
        return Err(status);
    }
    let mut answer = wait(handle, txid, deadline, destination)?;
    if let Answer::Message(message) = &mut answer
        && wire::has_lost_handles(message)
    {
        return Err(Status::NO_RESOURCES);
    }
    let (payload, count) = match &answer {
        Answer::There(len) => (*len, 0),
        Answer::Message(message) => {
            let count = message.handles().len();
            (message.bytes().len() - count * wire::RECORD, count)
        }
    };
    if destination.actual_bytes.is_null() || destination.actual_handles.is_null() {
        return Err(Status::INVALID_ARGS);
    }
    if !destination.fits(payload, count) {
        return Err(Status::BUFFER_TOO_SMALL);
    }
    destination.tell_sizes(payload, count);
    match answer {
        Answer::There(_) => Ok(()),
        Answer::Message(mut message) if count == 0 => {
            destination.bytes.fill(message.bytes())?;
            if message.bytes().len() <= SPARE {
                let _ = MEMORY.try_with(|memory| memory.set(Some(std::mem::take(&mut message))));
            }
            Ok(())
        }
        Answer::Message(message) => destination.deliver(message),
    }
}

/// The answer to a call.
enum Answer {
    /// An answer of this many bytes without handles, received directly into the caller's buffer.
    There(usize),
    /// An answer, still to be delivered.
    Message(Message),
}

/// The result of a poll for the answer to a call.
enum Polled {
    /// The outcome of the call.
    Outcome(Result<Answer>),
    /// There is no answer, and no message to look at.
    Nothing,
    /// There was no answer among [`PULLS`] messages, and there may be more messages.
    More,
}

/// Registers a call on an end, and returns its number.
fn begin(handle: zx_handle_t) -> Result<u32> {
    let entry = table().get_kept(handle, Table::get_reading)?;
    let chan = entry.object.channel()?;
    entry.need(ZX_RIGHT_READ | ZX_RIGHT_WRITE)?;
    // The caller may have to sleep once the message is sent.
    hub::prepare()?;
    let txid = chan.inner().calls.begin();
    chan.slow.store(true, Ordering::Relaxed);
    Ok(txid)
}

/// Removes a call from an end.
fn forget(handle: zx_handle_t, txid: u32) {
    if let Ok(entry) = table().get_kept(handle, Table::get_reading)
        && let Ok(chan) = entry.object.channel()
    {
        let inner = chan.inner();
        inner.calls.forget(txid);
        chan.settle(inner);
    }
}

/// Waits for the answer until the deadline: spins first, then sleeps.
fn wait(handle: zx_handle_t, txid: u32, deadline: Deadline, destination: &mut Destination<'_>) -> Result<Answer> {
    let mut spin_until = None;
    let mut looks = 0u32;
    loop {
        let waiter = {
            // The handle is not valid if the end was closed or sent away.
            let entry = table().get_kept(handle, Table::get_reading).map_err(|_| Status::CANCELED)?;
            let chan = entry.object.channel().map_err(|_| Status::CANCELED)?;
            let inner = chan.inner();
            let has_more = match chan.look_for_answer(inner, txid, destination) {
                Polled::Outcome(outcome) => {
                    chan.settle(inner);
                    return outcome;
                }
                Polled::Nothing => false,
                Polled::More => true,
            };
            if inner.has_news {
                chan.settle(inner);
            }
            looks += 1;
            if has_more || looks.is_multiple_of(LOOKS) || !hub::may_spin() || deadline.is_past() {
                if deadline.has_passed() {
                    inner.calls.forget(txid);
                    chan.settle(inner);
                    return Err(Status::TIMED_OUT);
                }
                let until = *spin_until.get_or_insert_with(|| Instant::now() + SPIN);
                if !has_more && (!hub::may_spin() || Instant::now() >= until) {
                    Some(chan.sleep_for_answer(inner, handle, txid))
                } else {
                    None
                }
            } else {
                None
            }
        };
        match waiter {
            // The first polls have no pause in between, since an answer would be seen half a pause later on average.
            None if looks < EAGER => {}
            None => std::hint::spin_loop(),
            Some(None) => {}
            Some(Some(waiter)) => {
                hub::block(&waiter, deadline);
                looks = 0;
            }
        }
    }
}

impl Chan {
    /// Polls for the outcome of a call.
    fn look_for_answer(&self, inner: &mut Inner, txid: u32, destination: &mut Destination<'_>) -> Polled {
        let mut looks = 0;
        let mut pulls = 0;
        while pulls < PULLS {
            // The answer to the only call can be received directly into the caller's buffer.
            if inner.calls.has_only(txid) && inner.queue.is_empty() && inner.ended.is_none() {
                let buffer = destination.bytes.buffer(ZX_CHANNEL_MAX_MSG_BYTES as usize);
                match self.strait().try_recv_bytes(buffer) {
                    Ok(Some(len)) if buffer[..len].starts_with(&txid.to_ne_bytes()) => {
                        inner.calls.forget(txid);
                        return Polled::Outcome(Ok(Answer::There(len)));
                    }
                    // The message is no answer, but one for readers.
                    Ok(Some(len)) => inner.push(Message::from_parts(buffer[..len].to_vec(), Vec::new())),
                    Err(strait::Error::WouldBlock) => {
                        looks += 1;
                        if looks < AT_ONCE && hub::may_spin() {
                            continue;
                        }
                        return Polled::Nothing;
                    }
                    Ok(None) | Err(_) => {}
                }
            }
            if let Some(outcome) = inner.calls.take_outcome(txid) {
                return Polled::Outcome(outcome.map(Answer::Message));
            }
            // The cheapest check comes first, since it is repeated most often.
            if inner.is_full() || (inner.ended.is_none() && !self.strait().is_readable()) {
                return Polled::Nothing;
            }
            match self.pull(inner) {
                Ok(()) => pulls += 1,
                Err(ended @ (Status::PEER_CLOSED | Status::BAD_STATE)) => {
                    inner.calls.end(ended);
                    let outcome = inner.calls.take_outcome(txid);
                    return outcome.map_or(Polled::Nothing, |outcome| Polled::Outcome(outcome.map(Answer::Message)));
                }
                Err(_) => return Polled::Nothing,
            }
        }
        inner.calls.take_outcome(txid).map_or(Polled::More, |outcome| Polled::Outcome(outcome.map(Answer::Message)))
    }

    /// Registers this thread to be woken for the answer, and the end with the hub. Returns `None` if the outcome came
    /// meanwhile.
    fn sleep_for_answer(&self, inner: &mut Inner, handle: zx_handle_t, txid: u32) -> Option<Arc<Waiter>> {
        let waiter = Waiter::new();
        inner.calls.find(txid)?.waiter = Some(waiter.clone());
        self.tell(inner, handle);
        let is_there = inner.calls.find(txid).is_none_or(|call| call.outcome.is_some());
        if is_there { None } else { Some(waiter) }
    }
}
