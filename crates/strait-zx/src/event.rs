//! Events and eventpairs: objects whose signals programs set.
//!
//! Both are *ends*; an event is an end without another end. The signals of an end are in private memory until one of
//! its handles is written into a channel. From then on they are in memory shared by all its processes ([`shared`]).
//! If an end comes back to a process that has the end already, the process recognises the end.

mod shared;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use strait::bindings::PerProcess;

use crate::abi::*;
use crate::hub::{self, Rung};
use crate::koid;
use crate::observer::Observer;
use crate::observer::Observers;
use crate::status::{Result, Status};
use crate::unpoisoned;
pub(crate) use shared::Arrived;
use shared::{Identity, Shared};

/// An event, or an end of an eventpair.
pub(crate) struct EventEnd {
    koid: zx_koid_t,
    related: zx_koid_t,
    pair: bool,
    /// The number of this end of an eventpair, 0 or 1; 0 for an event.
    side: usize,
    me: Weak<Self>,
    state: Mutex<State>,
    /// The other end, if ever in this process.
    peer: Mutex<Weak<EventEnd>>,
}

/// The state of an end under its lock.
#[derive(Default)]
struct State {
    /// The signals; once the signals are shared, the last signals reported to observers.
    signals: zx_signals_t,
    /// The waits for signals of the end.
    observers: Observers,
    /// The shared part; `None` while the end is in this process only.
    shared: Option<Shared>,
    /// The numbers under which the hub watches the end's bell, and the descriptor that hangs up when the other end is
    /// gone. `None` while the hub watches neither.
    listens: Option<(u64, Option<u64>)>,
}

impl State {
    /// Unregisters the end from the hub.
    fn silence(&mut self) {
        if let Some((bell, peer)) = self.listens.take()
            && let Some(shared) = &self.shared
        {
            hub::silence_bell(shared.bell(), bell);
            if let (Some(peer), Some(number)) = (shared.peer(), peer) {
                hub::silence_bell(peer, number);
            }
        }
    }

    /// Removes the shared part of the end, which no other process has yet.
    fn withdraw(&mut self) {
        self.silence();
        self.shared = None;
    }
}

impl Rung for EventEnd {
    fn rung(&self) {
        self.look();
    }
}

/// The shared ends in this process, by page identity and side.
type Here = HashMap<(Identity, usize), Weak<EventEnd>>;

static HERE: PerProcess<Mutex<Option<Here>>> = PerProcess::new(Mutex::default);

impl EventEnd {
    /// Makes an event.
    pub(crate) fn event() -> Arc<Self> {
        Self::new(false, 0, (koid::next(), 0))
    }

    /// Makes both ends of an eventpair.
    pub(crate) fn pair() -> (Arc<Self>, Arc<Self>) {
        let koids = (koid::next(), koid::next());
        let a = Self::new(true, 0, koids);
        let b = Self::new(true, 1, (koids.1, koids.0));
        *unpoisoned(&a.peer) = Arc::downgrade(&b);
        *unpoisoned(&b.peer) = Arc::downgrade(&a);
        (a, b)
    }

    fn new(pair: bool, side: usize, (koid, related): (zx_koid_t, zx_koid_t)) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            koid,
            related,
            pair,
            side,
            me: me.clone(),
            state: Mutex::default(),
            peer: Mutex::default(),
        })
    }

    /// Returns whether this is an end of an eventpair.
    pub(crate) fn is_pair(&self) -> bool {
        self.pair
    }

    /// Returns the koids of this end and of the other end.
    pub(crate) fn koids(&self) -> (zx_koid_t, zx_koid_t) {
        (self.koid, self.related)
    }

    /// Checks that programs may change the given signals.
    fn check(clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
        let allowed = ZX_USER_SIGNAL_ALL | ZX_EVENT_SIGNALED;
        if (clear | set) & !allowed != 0 { Err(Status::INVALID_ARGS) } else { Ok(()) }
    }

    /// Changes the signals of this end, and informs observers.
    ///
    /// # Errors
    /// `INVALID_ARGS` if programs may not change a given signal.
    pub(crate) fn signal(&self, clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
        Self::check(clear, set)?;
        self.change(clear, set);
        Ok(())
    }

    /// Changes the signals of this end, and informs observers in all processes with the end.
    fn change(&self, clear: zx_signals_t, set: zx_signals_t) {
        let mut state = unpoisoned(&self.state);
        match &state.shared {
            Some(shared) => {
                shared.change(clear, set);
                shared.ring();
            }
            None => {
                let before = state.signals;
                state.signals = (before & !clear) | set;
                let now = state.signals;
                state.observers.tell(before, now);
                return;
            }
        }
        self.look_locked(&mut state);
    }

    /// Changes the signals of the other end, and informs observers.
    ///
    /// # Errors
    /// `INVALID_ARGS` for signals that programs may not change; `PEER_CLOSED` if the other end is gone.
    pub(crate) fn signal_peer(&self, clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
        Self::check(clear, set)?;
        let peer = unpoisoned(&self.peer).upgrade();
        if let Some(peer) = peer {
            peer.change(clear, set);
            return Ok(());
        }
        let state = unpoisoned(&self.state);
        let shared = state.shared.as_ref().ok_or(Status::PEER_CLOSED)?;
        if shared.is_peer_closed() {
            return Err(Status::PEER_CLOSED);
        }
        shared.change_peer(clear, set);
        shared.ring_peer();
        self.ring_again(shared);
        let identity = (shared.identity(), 1 - self.side);
        drop(state);
        // The other end may have come back to this process.
        if let Some(peer) = find(&identity) {
            peer.look();
        }
        Ok(())
    }

    /// Returns the signals now. If there is an observer, and none of its signals is set, adds the observer.
    ///
    /// # Errors
    /// `NO_RESOURCES` or `NO_MEMORY` if no thread could notice the signals; the observer was not added.
    pub(crate) fn observe(&self, mask: zx_signals_t, observer: Option<Observer>) -> Result<zx_signals_t> {
        let mut state = unpoisoned(&self.state);
        self.look_locked(&mut state);
        let now = state.signals;
        if let Some(observer) = observer
            && (now & mask == 0 || observer.waits_for_edge())
        {
            // Needed also while the end is in this process only: another thread may share the end during the wait.
            hub::prepare()?;
            let id = observer.id;
            state.observers.add(observer);
            self.listen(&mut state).inspect_err(|_| state.observers.remove(id))?;
        }
        Ok(now)
    }

    /// Removes an observer.
    pub(crate) fn forget_observer(&self, id: u64) {
        let mut state = unpoisoned(&self.state);
        state.observers.remove(id);
        self.rest(&mut state);
    }

    /// Ends all waits by a handle.
    pub(crate) fn cancel(&self, handle: zx_handle_t) {
        let mut state = unpoisoned(&self.state);
        let now = state.signals;
        state.observers.cancel(handle, now);
        self.rest(&mut state);
    }

    /// Informs observers of changed signals.
    fn look(&self) {
        self.look_locked(&mut unpoisoned(&self.state));
    }

    /// Informs observers of signals that other processes have changed.
    fn look_locked(&self, state: &mut State) {
        let Some(shared) = &state.shared else { return };
        if state.listens.is_some() {
            shared.make_room();
        }
        self.ring_again(shared);
        let now = shared.signals();
        let before = std::mem::replace(&mut state.signals, now);
        state.observers.tell(before, now);
        self.rest(state);
    }

    /// Repeats wake-ups of other processes that have failed. If one fails again, a waiting thread of this process
    /// repeats it after a while.
    fn ring_again(&self, shared: &Shared) {
        if !shared.ring_again() {
            hub::look_at_bell_later(self.me.clone());
        }
    }

    /// Registers the end with the hub, if it is shared.
    fn listen(&self, state: &mut State) -> Result<()> {
        let Some(shared) = state.shared.as_ref().filter(|_| state.listens.is_none()) else { return Ok(()) };
        let bell = hub::listen_to_bell(shared.bell(), self.me.clone())?;
        let peer = match shared.peer().map(|peer| hub::listen_to_bell(peer, self.me.clone())) {
            None => None,
            Some(Ok(number)) => Some(number),
            Some(Err(status)) => {
                hub::silence_bell(shared.bell(), bell);
                return Err(status);
            }
        };
        state.listens = Some((bell, peer));
        // Changes may have come before the registration.
        self.look_locked(state);
        Ok(())
    }

    /// Unregisters the end from the hub if there are no observers.
    fn rest(&self, state: &mut State) {
        if state.observers.is_empty() {
            state.silence();
        }
    }

    /// Returns a carrier with everything that another process needs to have this end too, and the number of the end.
    pub(crate) fn pack(self: &Arc<Self>) -> Result<(strait::Channel, u32)> {
        self.share()?;
        let state = unpoisoned(&self.state);
        let cargo = state.shared.as_ref().expect("it is shared now").cargo()?;
        Ok((crate::channel::wire::carrier(cargo)?, self.side as u32))
    }

    /// Moves the signals of this end and of the other end into memory that can be shared.
    fn share(self: &Arc<Self>) -> Result<()> {
        let peer = unpoisoned(&self.peer).upgrade();
        // The lock of the first end is taken first.
        let (mut own, mut other) = match &peer {
            Some(peer) if self.side == 1 => {
                let other = unpoisoned(&peer.state);
                (unpoisoned(&self.state), Some(other))
            }
            _ => (unpoisoned(&self.state), peer.as_ref().map(|peer| unpoisoned(&peer.state))),
        };
        if own.shared.is_some() {
            return Ok(());
        }
        let (ours, theirs) = Shared::new(self.pair, self.side)?;
        let identity = ours.identity();
        // If the other end is gone, its part is dropped, so that other processes see the loss.
        if let (Some(peer), Some(state), Some(theirs)) = (&peer, &mut other, theirs) {
            peer.publish(state, theirs)?;
        }
        if let Err(status) = self.publish(&mut own, ours) {
            other.iter_mut().for_each(|state| state.withdraw());
            return Err(status);
        }
        register(self, identity);
        peer.iter().for_each(|peer| register(peer, identity));
        Ok(())
    }

    /// Moves the signals of this end into its new shared part. Observers are informed by way of the shared part from
    /// now on.
    ///
    /// # Errors
    /// The errors of [`listen`](Self::listen); the end has no shared part then.
    fn publish(&self, state: &mut State, shared: Shared) -> Result<()> {
        shared.change(0, state.signals & !ZX_EVENTPAIR_PEER_CLOSED);
        state.shared = Some(shared);
        if state.observers.is_empty() { Ok(()) } else { self.listen(state).inspect_err(|_| state.withdraw()) }
    }

    /// Makes an end that has arrived in a message.
    pub(crate) fn unpack(koids: (zx_koid_t, zx_koid_t), arrived: Arrived) -> Arc<Self> {
        let Arrived { pair, side, identity, .. } = arrived;
        // The process may have the end already.
        if let Some(end) = find(&(identity, side)).filter(|end| end.pair == pair) {
            return end;
        }
        let end = Self::new(pair, side, koids);
        unpoisoned(&end.state).shared = Some(arrived.claim());
        register(&end, identity);
        end
    }
}

/// Returns the shared end with the given identity, if this process has the end.
fn find(identity: &(Identity, usize)) -> Option<Arc<EventEnd>> {
    unpoisoned(HERE.get()).as_ref()?.get(identity)?.upgrade()
}

/// Records a shared end in this process.
fn register(end: &Arc<EventEnd>, identity: Identity) {
    unpoisoned(HERE.get()).get_or_insert_default().insert((identity, end.side), Arc::downgrade(end));
}

impl Drop for EventEnd {
    /// Closes the end for this process: the last handle in this process is being closed.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.silence();
        let shared = state.shared.take();
        if let Some(shared) = &shared {
            shared.ring_again();
            let identity = (shared.identity(), self.side);
            let mut here = unpoisoned(HERE.get());
            // The end may have come back meanwhile as another object.
            if let Some(here) = here.as_mut()
                && here.get(&identity).is_some_and(|end| end.strong_count() == 0)
            {
                here.remove(&identity);
            }
        }
        let identity = shared.as_ref().map(Shared::identity);
        drop(shared);
        if !self.pair {
            return;
        }
        let peer = unpoisoned(&self.peer).upgrade();
        let peer = peer.or_else(|| find(&(identity?, 1 - self.side)));
        if let Some(peer) = peer {
            match identity {
                Some(_) => peer.look(),
                None => peer.change(0, ZX_EVENTPAIR_PEER_CLOSED),
            }
        }
    }
}
