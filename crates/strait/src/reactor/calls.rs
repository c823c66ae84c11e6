//! Calls for tasks.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::{Reactor, Told};
use crate::account::{tell, told};
use crate::call::{CallEnd, CallError, Request};
use crate::deadline::Deadline;
use crate::error::{Error, SendError};
use crate::message::{Message, Outgoing};
use crate::wait_set::{Event, Interest};

/// An end of calls for tasks. What comes is received by [`Reactor::turn`], and given to the tasks that it is for.
pub struct AsyncCallEnd {
    source: Arc<Source>,
}

struct Source {
    end: CallEnd,
    reactor: Reactor,
    key: u64,
}

impl AsyncCallEnd {
    /// Puts an end of calls into a reactor. Threads may go on using it too.
    ///
    /// # Errors
    /// As [`WaitSet::add`](crate::WaitSet::add); the end is dropped.
    pub fn new(end: CallEnd, reactor: &Reactor) -> Result<Self, Error> {
        let source = reactor.enter(|key| Source { end, reactor: reactor.clone(), key });
        told(reactor.set().listen(source.end.channel(), None, source.key, Interest::Readable))?;
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
            // The second time after somebody was asked to wake this task.
            for asked in [false, true] {
                let request = Outgoing { parts, handles: std::mem::take(&mut handles) };
                match self.get_ref().begin_call(request, Deadline::NOW) {
                    Err(CallError::NotSent(SendError { error: Error::WouldBlock, handles: back })) => {
                        handles = back;
                        if !asked {
                            self.source.end.await_place(context.waker());
                            self.source.arm(Interest::Both);
                        }
                    }
                    begun => return Poll::Ready(begun),
                }
            }
            Poll::Pending
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
    /// Has the set tell of the channel, once.
    fn arm(&self, wanted: Interest) {
        // That it fails only in the child of a fork, or since the user has put the channel into another set.
        let _ = self.reactor.set().listen(self.end.channel(), None, self.key, wanted);
        tell();
    }
}

impl Told for Source {
    fn told(&self, event: Event) {
        if event.is_writable() {
            self.end.wake_places();
        }
        self.end.drain();
        // It is always listened to; what found no room is said when there is some.
        let wanted = if self.end.has_deferred() { Interest::Both } else { Interest::Readable };
        self.arm(wanted);
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
