//! The bells of a link: how a peer says for which members of our wait sets it has published something.
//!
//! A member has a number on the [board](crate::board) of the link on which it listens. The board is ours; it is made
//! when the link gets its first member, and sent to the peer before any word names a number on it. The peer sets the
//! member's bit, and sends a packet only if the board says that we sleep. Whoever of us receives from the socket, and
//! every wait set before it sleeps, **collects** what rang and puts those members into the queues of their sets.
//!
//! Ends that are both in this process need no board: who publishes puts the member into its set's queue itself.
//!
//! # Who says that we sleep
//!
//! Whoever rings takes the board's sleeping word and sends one packet, and some thread of ours receives that: a set's, or
//! one that blocks on another channel. While any set with members here may be asleep, that thread says again that we
//! sleep, and looks again after that. So the word says so whenever a set sleeps, or a packet is under way, or somebody is
//! just about to do this.
//!
//! A set in which one thread sleeps, and no other set with members here, can sleep on the board's word instead, and is woken
//! without a packet: see [`board`]. Whoever else is about to sleep takes the word from it, and has it look.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::packet::Packet;
use super::{Link, Parcel, Shareable, unpoisoned};
use crate::board::{self, BYTES, Collector, MEMBERS, ON_SOCKET, ON_WORD, Words};
use crate::error::Error;
use crate::fault;
use crate::ring;
use crate::shm::{BoardMemory, Mapping};
use crate::sys::futex::{self, Scope};
use crate::wait_set::{Member, Shared};

/// Members collected at a time: a peer that rings without end keeps nobody here for long.
const COLLECT_LIMIT: usize = 1024;

/// Both directions of it, and who listens.
#[derive(Default)]
pub(super) struct Bells {
    /// Where we ring.
    theirs: OnceLock<BoardMemory>,
    /// Where the peer does.
    ours: OnceLock<Ours>,
    members: Mutex<Members>,
    /// Members of the peer's to ring for once its board is here.
    unrung: Mutex<BTreeSet<u32>>,
}

struct Ours {
    memory: BoardMemory,
    collector: Mutex<Collector<BoardMemory>>,
    /// Until the peer was told of it.
    unsent: Mutex<Option<Shareable>>,
}

#[derive(Default)]
struct Members {
    /// By number.
    slots: Vec<Option<Arc<Member>>>,
    /// Numbers below that which nobody has.
    free: Vec<u32>,
    /// Sets with members here.
    sets: Vec<Weak<Shared>>,
}

/// Says how a thread sleeps; who slept on the word looks again then.
fn announce(ours: &Ours, how: u32) {
    if board::announce(&ours.memory, how) {
        futex::wake_all(ours.memory.sleeping(), Scope::Shared);
    }
}

impl Link {
    /// Makes sure that the peer knows the board on which it is to ring.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the socket is full; what making memory fails with; [`Error::PeerClosed`].
    pub(crate) fn open_board(&self) -> Result<(), Error> {
        if self.is_local() {
            return Ok(());
        }
        let ours = match self.bells.ours.get() {
            Some(ours) => ours,
            None => {
                let shareable = self.io().memory("strait-board", BYTES)?;
                let memory = BoardMemory::new(shareable.mapping.clone()).expect("of the size of a board");
                let collector = Mutex::new(Collector::new(memory.clone()));
                // Of two threads at once one has made it for nothing.
                self.bells.ours.get_or_init(|| Ours { memory, collector, unsent: Mutex::new(Some(shareable)) })
            }
        };
        let mut unsent = unpoisoned(&ours.unsent);
        if let Some(shareable) = &*unsent {
            if !self.try_send(&Packet::Board, Parcel::memory(shareable))? {
                return Err(Error::WouldBlock);
            }
            *unsent = None;
        }
        Ok(())
    }

    /// The peer has sent the board on which we are to ring.
    pub(super) fn learn_board(&self, mapping: Arc<Mapping>) -> Result<(), Error> {
        let board = BoardMemory::new(mapping).ok_or(Error::BadPeer("a board of impossible size"))?;
        self.bells.theirs.set(board.clone()).map_err(|_| Error::BadPeer("a second board"))?;
        board::acknowledge(&board);
        self.ring_unrung();
        Ok(())
    }

    /// Rings for those for whom it could not be done before.
    fn ring_unrung(&self) {
        let unrung = std::mem::take(&mut *unpoisoned(&self.bells.unrung));
        for number in unrung {
            self.ring(number, true);
        }
    }

    /// Gives a member a number.
    pub(crate) fn register(&self, member: &Arc<Member>) -> Result<u32, Error> {
        let mut members = unpoisoned(&self.bells.members);
        if let Some(number) = members.free.pop() {
            members.slots[number as usize] = Some(member.clone());
            return Ok(number);
        }
        let number = members.slots.len();
        if number >= MEMBERS {
            return Err(Error::NoMemory { call: "a number for one more member of wait sets" });
        }
        members.slots.push(Some(member.clone()));
        Ok(number as u32)
    }

    /// Takes its number back. A ring for it that is under way is one for nothing.
    pub(crate) fn unregister(&self, number: u32) {
        let mut members = unpoisoned(&self.bells.members);
        let member = members.slots[number as usize].take();
        members.free.push(number);
        drop(members);
        drop(member);
    }

    /// A set has members here from now on.
    pub(crate) fn add_set(&self, set: Weak<Shared>) {
        unpoisoned(&self.bells.members).sets.push(set.clone());
        self.listen();
        if self.has_rung()
            && let Some(set) = set.upgrade()
        {
            set.nudge();
        }
    }

    /// It has none any more.
    pub(crate) fn remove_set(&self, set: &Shared) {
        unpoisoned(&self.bells.members).sets.retain(|known| !std::ptr::eq(known.as_ptr(), set));
    }

    /// Rings for a member of the peer's. False if that could not be done, so that it is to be tried again. With `alone`
    /// nobody else rings for it later.
    pub(crate) fn ring(&self, number: u32, alone: bool) -> bool {
        if self.is_local() {
            let member = unpoisoned(&self.bells.members).slots.get(number as usize).cloned().flatten();
            if let Some(member) = member {
                member.ring();
            }
            return true;
        }
        // Numbers that no member can have are a peer's nonsense.
        let Some(member) = board::Member::new(number) else { return true };
        // It was sent before the word that named the number was written.
        if self.bells.theirs.get().is_none() {
            let _ = self.fetch(|_| self.bells.theirs.get().map(|_| ()));
        }
        let Some(theirs) = self.bells.theirs.get() else {
            // It could not be received now, and nobody else may ring for this one later.
            unpoisoned(&self.bells.unrung).insert(number);
            if self.bells.theirs.get().is_some() {
                self.ring_unrung();
            }
            return true;
        };
        fault::point("before a member of a wait set is rung for");
        let how = board::ring(theirs, member);
        if how == ON_WORD {
            self.wake_on_word(theirs);
        } else if how != 0 && !self.wake() {
            if alone {
                self.send_sooner_or_later(Packet::Wake);
            }
            // Not even a packet could be sent: the next to ring tries again.
            let _ = ring::Word::compare_exchange(theirs.sleeping(), 0, how, SeqCst, SeqCst);
        }
        true
    }

    /// Wakes who slept on the word of the peer's board.
    fn wake_on_word(&self, theirs: &BoardMemory) {
        // If nobody is there, it was just about to sleep, or it died in its sleep.
        if !futex::wake_one(theirs.sleeping(), Scope::Shared) {
            self.probe();
        }
    }

    /// A packet was sent: who sleeps on a word does not hear that by itself.
    pub(super) fn posted(&self) {
        if let Some(theirs) = self.bells.theirs.get()
            && board::post(theirs)
        {
            futex::wake_one(theirs.sleeping(), Scope::Shared);
        }
    }

    /// Puts the members that rang into the queues of their sets. Not all, if there are so many.
    pub(crate) fn collect(&self) {
        let Some(ours) = self.bells.ours.get() else { return };
        let mut collector = unpoisoned(&ours.collector);
        if collector.is_empty() {
            return;
        }
        let members = unpoisoned(&self.bells.members);
        collector.collect(COLLECT_LIMIT, |member| {
            if let Some(Some(member)) = members.slots.get(member.number() as usize) {
                member.ring();
            }
        });
    }

    /// Whether somebody rang since.
    pub(crate) fn has_rung(&self) -> bool {
        self.bells.ours.get().is_some_and(|ours| !unpoisoned(&ours.collector).is_empty())
    }

    /// Says that we sleep, so that who rings sends a packet. The caller then looks whether anybody [rang](Self::has_rung).
    pub(crate) fn listen(&self) {
        if let Some(ours) = self.bells.ours.get() {
            announce(ours, ON_SOCKET);
        }
    }

    /// Whether a thread of this set, in which no other sleeps, may sleep on the word of the board: whether its peer will wake it
    /// there, and no other set sleeps in another way. To be asked once it counts as asleep.
    pub(crate) fn may_sleep_on_word(&self, set: &Shared) -> bool {
        if self.is_local() {
            return true;
        }
        let Some(ours) = self.bells.ours.get() else { return false };
        let members = unpoisoned(&self.bells.members);
        let others = members.sets.iter().filter(|other| !std::ptr::eq(other.as_ptr(), set));
        ours.memory.known().load(SeqCst) != 0 && !others.filter_map(Weak::upgrade).any(|set| set.is_listening())
    }

    /// Says that we sleep on the word of the board, if there is one, and where that is. The caller then looks whether anybody
    /// [rang](Self::has_rung) and anything was [posted](Self::has_post); and [leaves](Self::leave_word) in any case.
    pub(crate) fn listen_on_word(&self) -> Option<BoardMemory> {
        let ours = self.bells.ours.get()?;
        announce(ours, ON_WORD);
        Some(ours.memory.clone())
    }

    /// Whether the peer has sent a packet lately.
    pub(crate) fn has_post(&self) -> bool {
        self.bells.ours.get().is_some_and(|ours| board::has_post(&ours.memory))
    }

    /// The same, for one who receives it now.
    pub(crate) fn take_post(&self) -> bool {
        self.bells.ours.get().is_some_and(|ours| board::take_post(&ours.memory))
    }

    /// After [`Link::listen_on_word`], by one who counts as asleep no more. Whether it was woken.
    pub(crate) fn leave_word(&self) -> bool {
        let Some(ours) = self.bells.ours.get() else { return false };
        let woken = !board::leave(&ours.memory);
        self.answer_bells();
        woken
    }

    /// What whoever has received from the socket does, and whoever slept on the word: see the head of this file.
    pub(super) fn answer_bells(&self) {
        if self.bells.ours.get().is_none() {
            return;
        }
        self.collect();
        if !unpoisoned(&self.bells.members).sets.iter().filter_map(Weak::upgrade).any(|set| set.is_listening()) {
            return;
        }
        self.listen();
        self.collect();
        if self.has_rung() {
            // There is no end to it; so the sets do the rest.
            for set in self.sets() {
                set.nudge();
            }
        }
    }

    fn sets(&self) -> Vec<Arc<Shared>> {
        unpoisoned(&self.bells.members).sets.iter().filter_map(Weak::upgrade).collect()
    }

    /// Has all members here looked at.
    pub(super) fn ring_all(&self) {
        for member in unpoisoned(&self.bells.members).slots.iter().flatten() {
            member.ring();
        }
    }

    /// Nothing more will come: every member has something to see, and no set listens to the socket any more.
    pub(super) fn end_bells(&self) {
        self.ring_all();
        for set in self.sets() {
            set.link_down(self.number);
        }
    }
}
