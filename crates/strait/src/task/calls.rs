//! Calls for tasks.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use super::{OnEvent, Reactor};
use crate::call::{CallEnd, CallError, Request};
use crate::channel::SendError;
use crate::channel::message::{Message, Outgoing};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::sync::unpoisoned;
use crate::wait_set::{Event, Interest};
use crate::want::{self, Want, Wants};

/// An end of calls for tasks. What comes is received by [`Reactor::turn`], and given to the tasks that it is for.
pub struct AsyncCallEnd {
    source: Arc<Source>,
}

struct Source {
    end: CallEnd,
    reactor: Reactor,
    key: u64,
    /// Tasks whose requests could not be sent, each with what the channel lacked.
    to_send: Mutex<Vec<(Waker, Option<Want>)>>,
}

impl AsyncCallEnd {
    /// Puts an end of calls into a reactor. Threads may go on using it too.
    ///
    /// # Errors
    /// As [`WaitSet::add`](crate::WaitSet::add); the end is dropped.
    pub fn new(end: CallEnd, reactor: &Reactor) -> Result<Self, Error> {
        let source = reactor.enter(|key| Source { end, reactor: reactor.clone(), key, to_send: Mutex::default() });
        let set = reactor.set();
        deferred::run_if_failed(set.listen(
            source.end.channel(),
            None,
            source.key,
            Interest::Readable,
            Wants::default(),
        ))?;
        Ok(Self { source })
    }

    /// The end, for what does not wait.
    pub fn get_ref(&self) -> &CallEnd {
        &self.source.end
    }

    /// Calls the other end and waits for its reply. For a deadline, use the runtime's.
    ///
    /// # Cancel safety
    /// A future that is dropped cancels the call; what is then known is what is known of a call whose deadline has passed.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call<'a>(&self, request: impl Into<Outgoing<'a>>) -> Result<Message, CallError> {
        let Outgoing { parts, mut handles } = request.into();
        let pending = poll_fn(|context| {
            // Whether somebody was asked to wake this task once there is a place, or room. Then it is tried once more.
            let (mut awaits_slot, mut awaits_room) = (false, false);
            loop {
                let request = Outgoing { parts, handles: std::mem::take(&mut handles) };
                want::forget();
                match self.get_ref().begin_call(request, Deadline::NOW) {
                    Err(CallError::NotSent(SendError { error: Error::WouldBlock, handles: back })) => handles = back,
                    begun => return Poll::Ready(begun),
                }
                let want = want::take();
                // Not both at once: who has a place and finds no room gives it back, which wakes those who wait for one.
                match self.get_ref().has_slot() {
                    false if !awaits_slot => {
                        self.get_ref().await_slot(context.waker());
                        awaits_slot = true;
                    }
                    true if !awaits_room => {
                        self.source.await_room(context.waker(), want);
                        awaits_room = true;
                    }
                    _ => return Poll::Pending,
                }
            }
        })
        .await?;
        pending.await
    }

    /// The next request of the other end.
    ///
    /// # Cancel safety
    /// A future that is dropped has taken nothing.
    ///
    /// # Errors
    /// As [`CallEnd::next_request`], but for the deadline.
    pub async fn next_request(&self) -> Result<Request, Error> {
        poll_fn(|context| self.get_ref().poll_request(context.waker())).await
    }
}

impl Source {
    /// Has a task woken once there may be what its last try lacked.
    fn await_room(&self, waker: &Waker, want: Option<Want>) {
        let mut to_send = unpoisoned(&self.to_send);
        to_send.retain(|(other, _)| !other.will_wake(waker));
        to_send.push((waker.clone(), want));
        self.arm(&to_send);
        drop(to_send);
        deferred::run();
    }

    /// Has the set tell of the channel, once. With the lock of those who wait: what one thread listens for another must not
    /// replace by what was wanted before.
    fn arm(&self, to_send: &[(Waker, Option<Want>)]) {
        let mut wants = Wants { small_room: self.end.has_deferred(), ..Wants::default() };
        to_send.iter().for_each(|(_, want)| wants.add(want.clone()));
        // It is always listened to; what found no room is said when there is some.
        let sends = wants.small_room || !to_send.is_empty();
        let wanted = if sends { Interest::Both } else { Interest::Readable };
        // It fails only in the child of a fork, or since the user has put the channel into another set. What the user's
        // callbacks are told of is told without a lock.
        let _ = deferred::postponed(|| self.reactor.set().listen(self.end.channel(), None, self.key, wanted, wants));
    }
}

impl OnEvent for Source {
    fn on_event(&self, event: Event) {
        self.end.drain();
        let has_room = event.is_writable() || self.end.has_ended();
        let mut to_send = unpoisoned(&self.to_send);
        let woken = if has_room { std::mem::take(&mut *to_send) } else { Vec::new() };
        self.arm(&to_send);
        drop(to_send);
        deferred::run();
        woken.into_iter().for_each(|(waker, _)| waker.wake());
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.reactor.leave(self.key);
        let _ = self.reactor.set().remove(self.end.channel());
    }
}

impl fmt::Debug for AsyncCallEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncCallEnd").field(self.get_ref()).finish()
    }
}
