//! The two ends of a data pipe, as handles: state, closing, and description in a message.
//!
//! An end travels as a channel end, with the memory as a descriptor, and with the number of bytes that the end has
//! written or read. The sender's description of the pipe may be false, so this process checks the description against
//! the memory. The counters may have any valid value; as always, this process checks them against the counters that the
//! other side publishes.
//!
//! Writing and reading are in [`crate::pipe`].

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::{Channel, End, Handle, Outgoing, PipeState, SendError, WakeWaiters, close};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::fault;
use crate::os::fork::PerProcess;
use crate::ring::stream::{Reading, Shape, Writing};
use crate::shm::PipeMemory;
use crate::sync::unpoisoned;
use crate::wake::lock::Lock;
use crate::{blocked_on, deferred};

/// The reason of the abort if a panic drops a [`DataProducer`], unless the program has set [another
/// reason](DataProducer::set_abort_reason): 2^32 − 1.
///
/// Example: [how a stream is aborted](DataProducer::abort).
pub const PANICKED: u32 = u32::MAX;

/// How many attempts one doorbell makes to reach the other end, each of which follows the other end through at most
/// 1,024 lanes. The other end sleeps until the doorbell, and the program may make no further call on this end.
const FOLLOWS: usize = 16;

/// The upper half of [`PipeEndShared::aborts_with`] once a reason was set.
const HAS_REASON: u64 = 1 << 32;

/// The writing end of a [data pipe](crate::pipe::DataPipe).
///
/// Many threads may use the end through `&self`: one thread at a time writes, and calls of other threads wait for their
/// turn until their deadline. Dropping the end ends the stream, and a panic that drops the end aborts the stream: see
/// [the end of the stream](crate::pipe::DataPipe#the-end-of-the-stream).
///
/// Example: [a pipe](crate::pipe).
#[derive(Debug)]
pub struct DataProducer {
    pub(crate) shared: Arc<ProducerShared>,
}

/// The reading end of a [data pipe](crate::pipe::DataPipe).
///
/// Many threads may use the end through `&self`: one thread at a time reads, and calls of other threads wait for their
/// turn until their deadline.
///
/// Example: [a pipe](crate::pipe).
#[derive(Debug)]
pub struct DataConsumer {
    pub(crate) shared: Arc<ConsumerShared>,
}

/// The state that the threads using the writing end of a data pipe share.
pub(crate) type ProducerShared = PipeEndShared<Writing, Error>;

/// The state that the threads using the reading end of a data pipe share.
pub(crate) type ConsumerShared = PipeEndShared<Reading, Ended>;

/// The shared state of the threads using one end of a data pipe. `I` is the end's position in the stream, and `E` the
/// reason why the stream has ended.
#[derive(Debug)]
pub(crate) struct PipeEndShared<I, E> {
    pub(crate) end: PipeCore,
    pub(crate) shape: Shape,
    pub(crate) state: Lock<PipeEndLocked<I, E>>,
    /// 2^32 + the reason for aborting the stream when the end is dropped; 0 if no reason was set.
    aborts_with: AtomicU64,
}

/// The part of the state of a data-pipe end for one thread at a time. `I` is the end's position in the stream, and `E`
/// the reason why the stream has ended.
#[derive(Debug)]
pub(crate) struct PipeEndLocked<I, E> {
    pub(crate) index: I,
    pub(crate) sleeper: Sleeper,
    /// For the writing end the reason why nothing can be written any more; for the reading end how the stream ended,
    /// once the end has noticed: known unread bytes can still be read afterwards. `None` before that.
    pub(crate) ended: Option<E>,
}

/// The way in which the stream of a data pipe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// `Finished`: the producer has finished the stream, so that the consumer gets every byte that the producer wrote.
    Finished,
    Failed(Error),
}

/// The private state of one side of a data pipe between waits: the number of doorbells in flight to this side, and the
/// CPU published last.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    /// Number of doorbells (empty messages that wake this side) in flight although this side has not slept; this side
    /// must still receive them.
    pub(crate) owed: u32,
    /// The number of the last CPU published by this side, plus 1; 0 if no CPU was published.
    pub(crate) cpu: u32,
}

/// The parts that the producer and the consumer of a data pipe have in common: the channel for doorbells, and the
/// shared memory with the bytes.
pub(crate) struct PipeCore {
    pub(crate) channel: Channel,
    pub(crate) memory: PipeMemory,
}

impl fmt::Debug for PipeCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeCore").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl PipeCore {
    pub(crate) fn new(channel: Channel, memory: PipeMemory) -> Self {
        Self { channel, memory }
    }

    /// Sends a doorbell (an empty message) to the other side, which sleeps according to its sleep word. If the doorbell
    /// cannot be sent now, the end owes it: see [`End::ring`].
    #[cold]
    pub(crate) fn notify(&self) {
        let _ = self.channel.end.ring();
    }

    /// Sends the doorbell that this end owes, if any. Fails as [`End::ring_if_owed`] does.
    #[inline]
    pub(crate) fn make_up(&self) -> Result<(), Error> {
        self.channel.end.ring_if_owed()
    }
}

/// The ends that owe a doorbell.
static OWING: PerProcess<Mutex<Vec<Weak<End>>>> = PerProcess::new(Mutex::default);

/// Notes that `end` owes a doorbell, for a later attempt.
fn owe(end: &Arc<End>) {
    unpoisoned(OWING.get()).push(Arc::downgrade(end));
    deferred::try_later("doorbells", ring_all_owed);
}

/// Sends the doorbells that the ends of this process owe. An end owes its doorbell until it is sent: the end may move
/// to another process meanwhile, and must not leave without it.
fn ring_all_owed() {
    let owing = std::mem::take(&mut *unpoisoned(OWING.get()));
    for end in owing.iter().filter_map(Weak::upgrade).filter(|end| !end.was_sent()) {
        if end.ring_if_owed().is_err() {
            owe(&end);
        }
    }
}

impl End {
    /// Sends a doorbell (an empty message) to the other end, for a side of a data pipe.
    ///
    /// If this process lacks a resource to follow the other end to another process, or if the other end has moved too
    /// often for [`FOLLOWS`] attempts, this end owes the doorbell. The other side may sleep until then. So the next
    /// call on this end sends the doorbell, or [an action for later](deferred::try_later), or the move of this end.
    ///
    /// # Errors
    /// If this end owes the doorbell now: [`Error::WouldBlock`] if a further call continues to follow the other end, or
    /// the temporary error of a lacking resource.
    fn ring(self: &Arc<Self>) -> Result<(), Error> {
        let rung = self.try_ring();
        if rung.is_err() && !self.owes_doorbell.swap(true, Ordering::Relaxed) {
            owe(self);
        }
        rung
    }

    /// Sends the doorbell that this end owes; does nothing if it owes none.
    ///
    /// # Errors
    /// As those of [`ring`](Self::ring); this end then still owes the doorbell.
    #[inline]
    pub(super) fn ring_if_owed(&self) -> Result<(), Error> {
        if self.owes_doorbell.load(Ordering::Relaxed) { self.try_ring() } else { Ok(()) }
    }

    #[cold]
    fn try_ring(&self) -> Result<(), Error> {
        fault::point("before a doorbell");
        for _ in 0..FOLLOWS {
            blocked_on::forget();
            match self.send_any(&mut Outgoing::new(b""), Deadline::NOW) {
                Err(SendError { error, .. }) if error.passes() => return Err(error),
                // Nothing blocked the attempt: it has only followed the other end through as many lanes as one attempt
                // may. The next attempt continues from there.
                Err(SendError { error: Error::WouldBlock, .. }) if blocked_on::take().is_none() => {}
                // If there is no room, enough doorbells are in flight; if the other end is closed, other calls report
                // it.
                _ => {
                    self.owes_doorbell.store(false, Ordering::Relaxed);
                    return Ok(());
                }
            }
        }
        Err(Error::WouldBlock)
    }
}

impl<I, E> PipeEndShared<I, E> {
    fn new(end: PipeCore, shape: Shape, index: I, ended: Option<E>) -> Arc<Self> {
        let state = Lock::new(PipeEndLocked { index, sleeper: Sleeper::default(), ended });
        Arc::new(Self { end, shape, state, aborts_with: AtomicU64::new(0) })
    }

    /// Sets the reason for aborting the stream when the end is dropped. The last reason counts.
    pub(crate) fn set_abort_reason(&self, reason: u32) {
        self.aborts_with.store(HAS_REASON | u64::from(reason), Ordering::Relaxed);
    }

    fn abort_reason(&self) -> Option<u32> {
        let word = self.aborts_with.load(Ordering::Relaxed);
        // The cast drops the upper half.
        (word != 0).then_some(word as u32)
    }

    /// Closes the dropped end, unless it was sent before. `end_words` publishes in the data pipe that the stream has
    /// ended, or that this end reads no more.
    fn close(self: &Arc<Self>, end_words: impl FnOnce()) {
        let end = &self.end.channel.end;
        // The child of a `fork` must not end the parent's stream; and an end that was sent belongs to its receiver.
        if end.born.is_elsewhere() {
            // In the child of a `fork`, as when a channel is dropped there: the parent's objects are left alone.
            return std::mem::forget(self.clone());
        }
        if !end.was_sent() {
            end_words();
            // The channel is closed here, not when a wait set drops its reference to the channel.
            close(end);
        }
    }
}

impl<I: fmt::Debug + Send, E: fmt::Debug + Send> WakeWaiters for PipeEndShared<I, E> {
    fn wake_waiters(&self) {
        self.state.wake_waiters();
    }
}

impl DataProducer {
    pub(crate) fn new(end: PipeCore, index: Writing) -> Self {
        // A producer that was received from another process may have been finished there.
        let ended = Reading::is_finished(&end.memory).then_some(Error::Finished);
        Self { shared: PipeEndShared::new(end, index.shape(), index, ended) }
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.shared.end.channel
    }

    /// Publishes the end of the stream, and wakes the consumer if it sleeps; does nothing if writing has failed or the
    /// stream has ended before. If the stream is to be aborted, publishes the reason instead. Does not close the pipe's
    /// channel; the caller must do that, which also wakes the consumer of an aborted stream.
    pub(crate) fn end_words(&self) {
        if let Some(reason) = self.shared.abort_reason() {
            // A stream that was finished is complete. If the lock is held, its holder has leaked the room.
            if !self.shared.state.lock(Deadline::NOW).is_ok_and(|state| state.ended == Some(Error::Finished)) {
                fault::point("before the reason of a producer");
                self.shared.end.memory.set_producer_reason(reason);
            }
            return;
        }
        // If the producer got the error that the consumer is closed, the stream is incomplete. A consumer may still
        // exist then: perhaps a process died while passing the consumer on. A producer that has finished has published
        // the end of the stream already.
        if self.shared.state.lock(Deadline::NOW).is_ok_and(|state| state.ended.is_some()) {
            return;
        }
        fault::point("before a pipe is finished");
        if Writing::finish(&self.shared.end.memory) {
            self.shared.end.notify();
        }
    }
}

impl DataConsumer {
    pub(crate) fn new(end: PipeCore, index: Reading) -> Self {
        Self { shared: PipeEndShared::new(end, index.shape(), index, None) }
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.shared.end.channel
    }

    /// Publishes to the producer that this end reads nothing more, and the reason if there is one, and wakes a sleeping
    /// producer. Does not close the pipe's channel; the caller must do that.
    pub(crate) fn end_words(&self) {
        if let Some(reason) = self.shared.abort_reason() {
            fault::point("before the reason of a consumer");
            self.shared.end.memory.set_consumer_reason(reason);
        }
        fault::point("before a pipe is abandoned");
        if Reading::abandon(&self.shared.end.memory) {
            self.shared.end.notify();
        }
    }
}

impl Drop for DataProducer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The bytes that were to come are missing.
            let panicked = HAS_REASON | u64::from(PANICKED);
            let _ = self.shared.aborts_with.compare_exchange(0, panicked, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.shared.close(|| self.end_words());
    }
}

impl Drop for DataConsumer {
    fn drop(&mut self) {
        self.shared.close(|| self.end_words());
    }
}

impl Handle {
    /// Returns the state of a data-pipe end that is about to be sent: whether it writes, the sizes of buffer and
    /// element, and how many bytes the end has written or read. Returns `None` if this handle is no data-pipe end. No
    /// thread may be using the end.
    pub(super) fn pipe_state(&self) -> Option<PipeState> {
        match self {
            Handle::Producer(producer) => {
                // SAFETY: the handle is owned here as a whole. So if the lock is held, its holder has leaked the value
                // that borrows the end, and never comes back.
                let state = unsafe { producer.shared.state.lock_or_seize() };
                Some(PipeState { writes: true, shape: state.index.shape(), position: state.index.position() })
            }
            Handle::Consumer(consumer) => {
                // SAFETY: as for the producer: if the lock is held, its holder has leaked the value and never comes
                // back.
                let state = unsafe { consumer.shared.state.lock_or_seize() };
                Some(PipeState { writes: false, shape: state.index.shape(), position: state.index.position() })
            }
            _ => None,
        }
    }

    /// Makes the handle of a received data-pipe end from its state, its channel for doorbells and its shared memory.
    /// The state must have been checked at decoding; otherwise this call panics.
    pub(super) fn pipe_end(state: PipeState, channel: Channel, memory: PipeMemory) -> Self {
        let end = PipeCore::new(channel, memory);
        let sound = "looked at when it was decoded";
        if state.writes {
            DataProducer::new(end, Writing::at(state.shape, state.position).expect(sound)).into()
        } else {
            DataConsumer::new(end, Reading::at(state.shape, state.position).expect(sound)).into()
        }
    }

    /// Returns the shared memory of a data-pipe end; `None` if this handle is no data-pipe end.
    pub(super) fn pipe_memory(&self) -> Option<&PipeMemory> {
        match self {
            Handle::Producer(producer) => Some(&producer.shared.end.memory),
            Handle::Consumer(consumer) => Some(&consumer.shared.end.memory),
            _ => None,
        }
    }
}
