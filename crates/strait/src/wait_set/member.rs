//! A channel's registration with a wait set.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::{Conditions, Event, Interest, Mode, Ready, Shared};
use crate::channel::End;
use crate::error::Error;
use crate::link::InUse;
use crate::pipe::Gate;
use crate::sync::unpoisoned;
use crate::wake::Direction;
use crate::wake::want::{self, Want, Wants};

/// Looks at an end of a pipe in a row, if there is a doorbell each time.
const DOORBELLS: usize = 16;

/// On which link it listens, and by which number.
#[derive(Debug)]
struct Place {
    link: InUse,
    number: u32,
}

const IN: u8 = 0;
/// Its end was sent away, which its set has still to say.
const MOVED: u8 = 1;
/// It is no member any more.
const OUT: u8 = 2;

/// A channel in a wait set.
#[derive(Debug)]
pub(crate) struct Member {
    set: Weak<Shared>,
    end: Weak<End>,
    /// For an end of a pipe: what is asked before its channel is looked at.
    gate: Option<Weak<dyn Gate>>,
    key: u64,
    pub(crate) interest: Interest,
    /// For a trap: what it waits for, in place of a message.
    pub(crate) conditions: Option<Conditions>,
    mode: Mode,
    /// What the tasks lacked that wait to send; none for room for a small message.
    wants: Mutex<Option<Wants>>,
    /// Whether it is in the queue of its set. Cleared before it is looked at, so that a ring after that puts it there again.
    queued: AtomicBool,
    /// Whether its events are wanted now; for a one-shot registration, until there was one.
    armed: AtomicBool,
    /// Whether its set has found that the packet at the head of its link's socket cannot be taken now.
    in_trouble: AtomicBool,
    state: AtomicU8,
    /// By direction.
    places: Mutex<[Option<Place>; 2]>,
    /// Links of other ends that tasks want to send, each with the number of this member there, and links whose sockets were full.
    beside: Mutex<Vec<(InUse, Option<u32>)>>,
}

/// What a look at a member found.
pub(super) enum Examined {
    /// Something to tell; and with `again` it is to be looked at in the next round too.
    Event {
        event: Event,
        again: bool,
    },
    Nothing,
    /// It could not be said to the peer that we listen: it is to be tried again soon.
    Retry,
}

impl Member {
    pub(super) fn new(
        set: &Arc<Shared>,
        end: &Arc<End>,
        gate: Option<Weak<dyn Gate>>,
        key: u64,
        interest: Interest,
        conditions: Option<Conditions>,
        mode: Mode,
    ) -> Arc<Self> {
        Arc::new(Self {
            set: Arc::downgrade(set),
            end: Arc::downgrade(end),
            gate,
            key,
            interest,
            conditions,
            mode,
            wants: Mutex::new(None),
            queued: AtomicBool::new(false),
            armed: AtomicBool::new(true),
            in_trouble: AtomicBool::new(false),
            state: AtomicU8::new(IN),
            places: Mutex::default(),
            beside: Mutex::default(),
        })
    }

    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// Sets what is waited for to send.
    pub(super) fn set_wants(&self, wants: Wants) {
        *unpoisoned(&self.wants) = Some(wants);
        // They were for what was wanted before.
        self.leave_beside(self.set.upgrade().as_ref());
    }

    /// Does something with what is waited for to send, if anybody has said that.
    pub(crate) fn with_wants<T>(&self, act: impl FnOnce(Option<&Wants>) -> T) -> T {
        act(unpoisoned(&self.wants).as_ref())
    }

    /// The set, as long as it is there.
    pub(super) fn set(&self) -> Option<Arc<Shared>> {
        self.set.upgrade().filter(|set| !set.is_closed())
    }

    /// Whether its set is still there.
    pub(crate) fn is_current(&self) -> bool {
        self.set().is_some()
    }

    /// Whether it is a member of this set.
    pub(crate) fn is_of(&self, set: &Arc<Shared>) -> bool {
        std::ptr::eq(self.set.as_ptr(), Arc::as_ptr(set))
    }

    /// Whether it is a member of this set, as [`Member::is_of`] says.
    pub(crate) fn is_in(&self, set: &Shared) -> bool {
        std::ptr::eq(self.set.as_ptr(), set)
    }

    /// Has its set tell of the trouble of a link, if this is where it waits for messages: receiving then fails with the error.
    pub(super) fn tell_of_trouble(self: &Arc<Self>, link: &InUse) -> bool {
        let place = unpoisoned(&self.places)[Direction::Receiving as usize].as_ref().map(|place| place.link.clone());
        let tells = self.interest.readable()
            && self.conditions.is_none()
            && self.gate.is_none()
            && self.armed.load(Ordering::Acquire)
            && place.is_some_and(|place| Arc::ptr_eq(&place, link));
        if tells {
            self.in_trouble.store(true, Ordering::Relaxed);
            self.ring();
        }
        tells
    }

    pub(super) fn is_out(&self) -> bool {
        self.state.load(Ordering::Acquire) == OUT
    }

    /// Takes away that its events are wanted; false if that was so, as one has been told just now.
    pub(super) fn disarm(&self) -> bool {
        self.armed.swap(false, Ordering::AcqRel)
    }

    /// Whether its set is to say that its end has gone, when that is closed here.
    pub(crate) fn tells_of_its_end(&self) -> bool {
        self.conditions.is_some()
    }

    pub(super) fn rearm(&self) {
        self.armed.store(true, Ordering::Release);
    }

    /// Has it looked at by its set: something may have happened to it.
    pub(crate) fn ring(self: &Arc<Self>) {
        if self.armed.load(Ordering::Acquire) && self.state.load(Ordering::Acquire) == IN {
            self.enqueue();
        }
    }

    fn enqueue(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Some(set) = self.set.upgrade()
        {
            set.push(self.clone());
        }
    }

    /// Marks it as being in the queue; false if it was.
    pub(super) fn set_queued(&self) -> bool {
        !self.queued.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire)
    }

    /// Looks at what it has. Says to the peer that we listen, if that is nothing.
    pub(super) fn look(self: &Arc<Self>) -> Result<Ready, Error> {
        let Some(end) = self.end.upgrade() else { return Ok(Ready::NOTHING) };
        let Some(gate) = &self.gate else { return end.look(self) };
        for _ in 0..DOORBELLS {
            match gate.upgrade().and_then(|gate| gate.look()) {
                Some(Ready::NOTHING) => {}
                Some(ready) => return Ok(ready),
                None => return Ok(Ready::NOTHING),
            }
            // A doorbell that came meanwhile is for another look.
            if end.look(self)? == Ready::NOTHING {
                return Ok(Ready::NOTHING);
            }
        }
        // A peer that rings without end and has nothing.
        Err(Error::WouldBlock)
    }

    /// Takes it from the queue: what it has to tell.
    pub(super) fn examine(self: &Arc<Self>) -> Examined {
        self.queued.swap(false, Ordering::AcqRel);
        match self.state.load(Ordering::Acquire) {
            IN => {}
            MOVED if self.state.compare_exchange(MOVED, OUT, Ordering::AcqRel, Ordering::Relaxed).is_ok() => {
                return Examined::Event { event: Event::new(self.key, Ready::MOVED), again: false };
            }
            _ => return Examined::Nothing,
        }
        if !self.armed.load(Ordering::Acquire) {
            return Examined::Nothing;
        }
        // Told of at once, whoever receives what cannot be received now would do nothing else.
        if self.end.upgrade().is_some_and(|end| end.take_stumble()) {
            return Examined::Retry;
        }
        let in_trouble = self.in_trouble.swap(false, Ordering::Relaxed);
        match self.look() {
            Ok(Ready::NOTHING) if !in_trouble => Examined::Nothing,
            // Of two threads that look at it at once one tells.
            Ok(_) if self.mode == Mode::OneShot && !self.armed.swap(false, Ordering::AcqRel) => Examined::Nothing,
            // It is told of again when the next try to take the packet fails.
            Ok(Ready::NOTHING) => Examined::Event { event: Event::new(self.key, Ready::TROUBLE), again: false },
            Ok(ready) => Examined::Event { event: Event::new(self.key, ready), again: self.mode == Mode::Level },
            Err(_) => {
                self.await_room_to_say_so();
                Examined::Retry
            }
        }
    }

    /// If the last look failed since a socket was full, has its set look again once there is room.
    fn await_room_to_say_so(&self) {
        if let Some(Want::Socket(link, _)) = want::take()
            && let (Some(link), Some(set)) = (link.upgrade(), self.set.upgrade())
        {
            set.await_socket(&link);
        }
    }

    /// Its number on the link on which it listens in this direction.
    pub(crate) fn place(self: &Arc<Self>, direction: Direction, link: &InUse) -> Result<u32, Error> {
        let mut places = unpoisoned(&self.places);
        if let Some(place) = &places[direction as usize]
            && Arc::ptr_eq(&place.link, link)
        {
            return Ok(place.number);
        }
        let Some(set) = self.set.upgrade().filter(|_| self.state.load(Ordering::Acquire) == IN) else {
            return Err(Error::NotInSet);
        };
        link.open_board()?;
        set.use_link(link)?;
        let number = link.register(self).inspect_err(|_| set.leave_link(link))?;
        let old = places[direction as usize].replace(Place { link: link.clone(), number });
        drop(places);
        if let Some(place) = old {
            place.link.unregister(place.number);
            set.leave_link(&place.link);
        }
        Ok(number)
    }

    /// Its number on the link of another end, whose arrival is waited for.
    pub(crate) fn place_beside(self: &Arc<Self>, link: &InUse) -> Result<u32, Error> {
        let mut beside = unpoisoned(&self.beside);
        let known = beside.iter().find_map(|(known, number)| number.filter(|_| Arc::ptr_eq(known, link)));
        if let Some(number) = known {
            return Ok(number);
        }
        let set = self.present_set()?;
        link.open_board()?;
        set.use_link(link)?;
        let number = link.register(self).inspect_err(|_| set.leave_link(link))?;
        beside.push((link.clone(), Some(number)));
        Ok(number)
    }

    /// Has its set look again once the socket of this link has room.
    pub(crate) fn await_socket(&self, link: &InUse) -> Result<(), Error> {
        let mut beside = unpoisoned(&self.beside);
        let set = self.present_set()?;
        if !beside.iter().any(|(known, _)| Arc::ptr_eq(known, link)) {
            set.use_link(link)?;
            beside.push((link.clone(), None));
        }
        set.await_socket(link);
        Ok(())
    }

    fn present_set(&self) -> Result<Arc<Shared>, Error> {
        self.set.upgrade().filter(|_| self.state.load(Ordering::Acquire) == IN).ok_or(Error::NotInSet)
    }

    /// Waits for other ends and sockets no more.
    fn leave_beside(&self, set: Option<&Arc<Shared>>) {
        let beside = std::mem::take(&mut *unpoisoned(&self.beside));
        for (link, number) in beside {
            if let Some(number) = number {
                link.unregister(number);
            }
            if let Some(set) = set {
                set.leave_link(&link);
            }
        }
    }

    /// It is no member any more; with `moved` its set says so.
    pub(crate) fn take_out(self: &Arc<Self>, moved: bool) {
        let before = self.state.swap(if moved { MOVED } else { OUT }, Ordering::AcqRel);
        let places = std::mem::take(&mut *unpoisoned(&self.places));
        let set = self.set.upgrade();
        self.leave_beside(set.as_ref());
        for place in places.into_iter().flatten() {
            place.link.unregister(place.number);
            if let Some(set) = &set {
                set.leave_link(&place.link);
            }
        }
        if let Some(set) = set.filter(|_| before == IN) {
            set.count_out(self);
        }
        if moved {
            self.enqueue();
        }
    }
}
