//! What tasks wait for, with their wakers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use super::{OnEvent, Reactor};
use crate::channel::Channel;
use crate::deferred;
use crate::error::Error;
use crate::pipe::{Gate, PipeEnd};
use crate::sync::unpoisoned;
use crate::wait_set::{Event, Interest};
use crate::want::{Want, Wants};

/// What tasks do with a source in a row without having waited, before they let others of their runtime run.
const MAX_CONSECUTIVE: u32 = 128;

/// What can be in a wait set.
pub(super) trait Object: Send + Sync + 'static {
    /// The channel that is the member, and what is asked before it.
    fn parts(&self) -> (&Channel, Option<Weak<dyn Gate>>);
}

impl Object for Channel {
    fn parts(&self) -> (&Channel, Option<Weak<dyn Gate>>) {
        (self, None)
    }
}

impl<T: PipeEnd + Send + Sync + 'static> Object for T {
    fn parts(&self) -> (&Channel, Option<Weak<dyn Gate>>) {
        let parts = PipeEnd::parts(self);
        (parts.channel, Some(parts.gate))
    }
}

/// Something in a reactor.
pub(super) struct Source<T: Object> {
    /// `None` once it was taken out.
    object: Option<T>,
    reactor: Reactor,
    key: u64,
    tasks: Mutex<Tasks>,
    consecutive: AtomicU32,
}

/// The tasks that wait.
#[derive(Default)]
struct Tasks {
    to_read: Vec<Waker>,
    /// Each with what it lacked when it tried.
    to_write: Vec<(Waker, Option<Want>)>,
}

impl Tasks {
    /// Takes those that wait to write.
    fn take_writers(&mut self) -> impl Iterator<Item = Waker> {
        std::mem::take(&mut self.to_write).into_iter().map(|(waker, _)| waker)
    }

    /// What those that wait to write lack.
    fn wants(&self) -> Wants {
        let mut wants = Wants::default();
        self.to_write.iter().for_each(|(_, want)| wants.add(want.clone()));
        wants
    }
}

impl<T: Object> Source<T> {
    /// Puts it into a reactor, and its set: so that what is in a set already shows at once.
    pub(super) fn new(object: T, reactor: &Reactor) -> Result<Arc<Self>, Error> {
        let tasks = Mutex::default();
        let source = reactor.enter(|key| Self {
            object: Some(object),
            reactor: reactor.clone(),
            key,
            tasks,
            consecutive: AtomicU32::new(0),
        });
        deferred::run_if_failed(source.listen(Interest::Readable, Wants::default()))?;
        Ok(source)
    }

    pub(super) fn object(&self) -> &T {
        self.object.as_ref().expect("taken out by value")
    }

    pub(super) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// Takes it out again.
    pub(super) fn into_object(self: Arc<Self>) -> T {
        self.reactor.leave(self.key);
        let mut source = self;
        loop {
            // A turn of another thread may be telling it something just now.
            match Arc::try_unwrap(source) {
                Ok(mut source) => {
                    let object = source.object.take().expect("taken out once");
                    let _ = source.reactor.set().remove(object.parts().0);
                    return object;
                }
                Err(shared) => source = shared,
            }
            std::thread::yield_now();
        }
    }

    /// Whether a task may go on, or is to let others run first, as it has found something so often in a row: those of a single
    /// thread would have to wait as long as the peer sends, and the runtime's clock too.
    pub(super) fn poll_turn(&self, context: &mut Context<'_>) -> Poll<()> {
        let before = self.consecutive.load(Ordering::Relaxed);
        if before < MAX_CONSECUTIVE {
            self.consecutive.store(before + 1, Ordering::Relaxed);
            return Poll::Ready(());
        }
        self.consecutive.store(0, Ordering::Relaxed);
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Has a task woken when it can read, or write. What has come meanwhile wakes it too.
    pub(super) fn wait(&self, waker: &Waker, interest: Interest) -> Result<(), Error> {
        if interest == Interest::Writable {
            return self.wait_for(waker, None);
        }
        self.consecutive.store(0, Ordering::Relaxed);
        let mut tasks = unpoisoned(&self.tasks);
        if !tasks.to_read.iter().any(|other| other.will_wake(waker)) {
            tasks.to_read.push(waker.clone());
        }
        let armed = self.arm(&tasks);
        drop(tasks);
        deferred::run_if_failed(armed)
    }

    /// Has a task woken once there may be what its last try lacked. What has come since the try wakes it too.
    pub(super) fn wait_for(&self, waker: &Waker, want: Option<Want>) -> Result<(), Error> {
        self.consecutive.store(0, Ordering::Relaxed);
        let mut tasks = unpoisoned(&self.tasks);
        // What it lacked in an earlier try is of no matter any more.
        tasks.to_write.retain(|(other, _)| !other.will_wake(waker));
        tasks.to_write.push((waker.clone(), want));
        let armed = self.arm(&tasks);
        drop(tasks);
        deferred::run_if_failed(armed)
    }

    /// Has the set tell of what is waited for, once.
    fn arm(&self, tasks: &Tasks) -> Result<(), Error> {
        match (tasks.to_read.is_empty(), tasks.to_write.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => self.listen(Interest::Readable, Wants::default()),
            (true, false) => self.listen(Interest::Writable, tasks.wants()),
            (false, false) => self.listen(Interest::Both, tasks.wants()),
        }
    }

    fn listen(&self, interest: Interest, wants: Wants) -> Result<(), Error> {
        let (channel, gate) = self.object().parts();
        // Of a pipe it is the doorbells that are listened for, whatever they are about.
        let interest = if gate.is_some() { Interest::Readable } else { interest };
        // What the user's callbacks are told of is told without a lock.
        deferred::postponed(|| self.reactor.set().listen(channel, gate, self.key, interest, wants))
    }
}

impl<T: Object> OnEvent for Source<T> {
    fn on_event(&self, event: Event) {
        let mut tasks = unpoisoned(&self.tasks);
        let mut woken = Vec::new();
        if event.is_readable() {
            woken.append(&mut tasks.to_read);
        }
        if event.is_writable() {
            woken.extend(tasks.take_writers());
        }
        // Those who wait for the other thing still do.
        if self.arm(&tasks).is_err() {
            woken.append(&mut tasks.to_read);
            woken.extend(tasks.take_writers());
        }
        drop(tasks);
        deferred::run();
        woken.into_iter().for_each(Waker::wake);
    }
}

impl<T: Object> Drop for Source<T> {
    fn drop(&mut self) {
        self.reactor.leave(self.key);
    }
}
