//! The objects in a reactor for which tasks wait, with the wakers of the tasks.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::{OnEvent, Reactor};
use crate::blocked_on::{BlockedOn, BlockedSends};
use crate::deferred;
use crate::error::Error;
use crate::sync::unpoisoned;
use crate::wait_set::source::{EndParts, EndSource};
use crate::wait_set::{Event, Interest};
use crate::wakers::{FutureId, Wakers};

/// The greatest number of attempts to send or receive on one object in a row, by all tasks and without a wait. After so
/// many attempts, a task lets other tasks of its runtime run.
const MAX_CONSECUTIVE: u32 = 128;

/// Counts the attempts of all tasks to use one object without a wait.
#[derive(Debug, Default)]
pub(super) struct Turns(AtomicU32);

impl Turns {
    /// Returns `Ready` if the task may make an attempt. After [`MAX_CONSECUTIVE`] attempts in a row without a wait,
    /// returns `Pending` and wakes the task again at once, so that other tasks run first. Otherwise other tasks of the
    /// thread, and the runtime's timers, would wait as long as the peer sends.
    pub(super) fn poll_turn(&self, context: &mut Context<'_>) -> Poll<()> {
        let before = self.0.load(Ordering::Relaxed);
        if before < MAX_CONSECUTIVE {
            self.0.store(before + 1, Ordering::Relaxed);
            return Poll::Ready(());
        }
        self.0.store(0, Ordering::Relaxed);
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Notes that a task waits.
    pub(super) fn wait(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// An object that a reactor's wait set can hold.
pub(super) trait Object: EndSource + Send + Sync + 'static {}
impl<T: EndSource + Send + Sync + 'static> Object for T {}

/// A channel or a data-pipe end in a reactor, with the tasks that wait for it.
pub(super) struct Source<T: Object> {
    /// The channel or data-pipe end; `None` after it was taken out of the reactor.
    object: Option<T>,
    reactor: Reactor,
    key: u64,
    tasks: Mutex<Tasks>,
    turns: Turns,
}

/// The tasks that wait to read from a channel or data-pipe end in a reactor, or to write to it.
#[derive(Default)]
struct Tasks {
    to_read: Wakers<()>,
    /// The tasks that wait to write, each with the obstacle of its last attempt (such as missing room); `None` if the
    /// obstacle is not known.
    to_write: Wakers<Option<BlockedOn>>,
}

impl Tasks {
    /// Returns the union of the waiting writers' obstacles: for each task that waits to write, the obstacle of its last
    /// attempt.
    fn blocked(&self) -> BlockedSends {
        let mut blocked = BlockedSends::default();
        self.to_write.values().for_each(|blocked_on| blocked.add(blocked_on.clone()));
        blocked
    }
}

impl<T: Object> Source<T> {
    /// Puts `object`, a channel or a data-pipe end, into `reactor`. The object enters the reactor's wait set at once,
    /// so the call fails if the object is already in a wait set.
    pub(super) fn new(object: T, reactor: &Reactor) -> Result<Arc<Self>, Error> {
        let tasks = Mutex::default();
        let source = reactor.enter(|key| Self {
            object: Some(object),
            reactor: reactor.clone(),
            key,
            tasks,
            turns: Turns::default(),
        });
        deferred::run_if_failed(source.arm_for(Interest::Readable, BlockedSends::default()))?;
        Ok(source)
    }

    pub(super) fn object(&self) -> &T {
        self.object.as_ref().expect("taken out by value")
    }

    pub(super) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// Takes the channel or data-pipe end out of the reactor and its wait set, and returns it. Waits while another
    /// thread handles an event of the object.
    pub(super) fn into_object(self: Arc<Self>) -> T {
        self.reactor.leave(self.key);
        let reactor = self.reactor.clone();
        let mut source = reactor.sole(self);
        let object = source.object.take().expect("taken out once");
        let _ = source.reactor.set().remove(&object);
        object
    }

    /// Returns `Ready` if the task may make an attempt: see [`Turns::poll_turn`].
    pub(super) fn poll_turn(&self, context: &mut Context<'_>) -> Poll<()> {
        self.turns.poll_turn(context)
    }

    /// Returns the value of a future that may have to wait for the object.
    pub(super) fn waiting(&self) -> Waiting<'_, T> {
        Waiting { source: self, future: None }
    }

    /// Registers a task, which is woken when an attempt to read or to write, as `interest` says, may succeed. If the
    /// state has changed since the task's last attempt, the task is woken soon. `future` is the future that the task
    /// polls, if it is one of the library. Fails with [`Error::ReactorEnded`] if nothing would wake the task.
    pub(super) fn wait(
        &self,
        future: Option<&mut Waiting<'_, T>>,
        waker: &Waker,
        interest: Interest,
    ) -> Result<(), Error> {
        if interest == Interest::Writable {
            return self.wait_for(future, waker, None);
        }
        self.register(|tasks| tasks.to_read.add(future.map(Waiting::id), waker, ()))
    }

    /// Registers a task that could not write. `blocked_on` is the obstacle of its last attempt, such as missing room;
    /// the task is woken when another attempt may succeed. If the state has changed since the last attempt, the task is
    /// woken soon. `future` is the future that the task polls, if it is one of the library. Fails with
    /// [`Error::ReactorEnded`] if nothing would wake the task.
    pub(super) fn wait_for(
        &self,
        future: Option<&mut Waiting<'_, T>>,
        waker: &Waker,
        blocked_on: Option<BlockedOn>,
    ) -> Result<(), Error> {
        self.register(|tasks| tasks.to_write.add(future.map(Waiting::id), waker, blocked_on))
    }

    /// Registers a task by `add`, which returns the replaced waker.
    fn register(&self, add: impl FnOnce(&mut Tasks) -> Option<Waker>) -> Result<(), Error> {
        self.turns.wait();
        let mut tasks = self.tasks()?;
        let replaced = add(&mut tasks);
        let armed = self.arm(&tasks);
        drop(tasks);
        drop(replaced);
        deferred::run_if_failed(armed)
    }

    /// Locks the tasks, to add one that waits. Fails if the reactor has ended.
    fn tasks(&self) -> Result<MutexGuard<'_, Tasks>, Error> {
        let tasks = unpoisoned(&self.tasks);
        if self.reactor.has_ended() { Err(Error::ReactorEnded) } else { Ok(tasks) }
    }

    /// Arms a one-shot event in the wait set for everything that `tasks` wait for; does nothing if no task waits.
    fn arm(&self, tasks: &Tasks) -> Result<(), Error> {
        match (tasks.to_read.is_empty(), tasks.to_write.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => self.arm_for(Interest::Readable, BlockedSends::default()),
            (true, false) => self.arm_for(Interest::Writable, tasks.blocked()),
            (false, false) => self.arm_for(Interest::Both, tasks.blocked()),
        }
    }

    fn arm_for(&self, interest: Interest, blocked: BlockedSends) -> Result<(), Error> {
        let EndParts { channel, gate } = self.object().end_parts();
        // For a data pipe the wait set waits for doorbells, whether the task reads or writes.
        let interest = if gate.is_some() { Interest::Readable } else { interest };
        // Callbacks of the program run later, without a lock.
        deferred::postponed(|| self.reactor.set().arm(channel, gate, self.key, interest, blocked))
    }
}

/// A future that may have to wait for an object. Its drop removes the waker of its task.
pub(super) struct Waiting<'a, T: Object> {
    source: &'a Source<T>,
    /// The number of the future; `None` as long as it has registered no waker.
    future: Option<FutureId>,
}

impl<T: Object> Waiting<'_, T> {
    fn id(&mut self) -> FutureId {
        *self.future.get_or_insert_with(FutureId::new)
    }
}

impl<T: Object> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        if let Some(future) = self.future
            && !self.source.object().end_parts().channel.end.born.is_elsewhere()
        {
            let mut tasks = unpoisoned(&self.source.tasks);
            let forgotten = (tasks.to_read.remove(future), tasks.to_write.remove(future));
            drop(tasks);
            drop(forgotten);
        }
    }
}

impl<T: Object> OnEvent for Source<T> {
    fn on_event(&self, event: Event) {
        let mut tasks = unpoisoned(&self.tasks);
        let mut woken = Vec::new();
        if event.is_readable() {
            woken.extend(tasks.to_read.take());
        }
        if event.is_writable() {
            woken.extend(tasks.to_write.take());
        }
        // Tasks that wait for the other direction still wait.
        if self.arm(&tasks).is_err() {
            woken.extend(tasks.to_read.take());
            woken.extend(tasks.to_write.take());
        }
        drop(tasks);
        deferred::run();
        woken.into_iter().for_each(Waker::wake);
    }

    fn on_end(&self) {
        let mut tasks = unpoisoned(&self.tasks);
        let woken = tasks.to_read.take().chain(tasks.to_write.take());
        drop(tasks);
        woken.for_each(Waker::wake);
    }
}

impl<T: Object> Drop for Source<T> {
    fn drop(&mut self) {
        self.reactor.leave(self.key);
    }
}
