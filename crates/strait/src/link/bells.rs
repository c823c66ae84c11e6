//! The bells of a link: how a peer says for which members of our wait sets it has published something.
//!
//! A member has a number on the [board] of the link on which it listens. The board is ours; it is made
//! when the link gets its first member, and sent to the peer before any word names a number on it. The peer sets the
//! member's bit, and sends a packet only if the board says that we sleep. Whoever of us receives from the socket, and
//! every wait set before it sleeps, **collects** what rang and puts those members into the queues of their sets.
//!
//! Ends that are both in this process need no board: who publishes puts the member into its set's queue itself.
//!
//! # A peer without the board
//!
//! The board takes a descriptor and a mapping to receive. A peer that lacks either, for a moment or for good, sends a packet
//! instead of ringing, which takes neither. So as long as this process has not seen that the peer knows the board, each packet
//! begins a [round](Round): this process looks at all members of the link, a limited number at a time. Until the peer knows the
//! board no thread sleeps on its word.
//!
//! A packet that the kernel refuses wakes nobody. The peer then puts back the word that it took from the member, so that the next
//! send tries again.
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

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::packet::Packet;
use super::{Link, Parcel};
use crate::error::Error;
use crate::os::fault;
use crate::os::futex::{self, Scope};
use crate::ring;
use crate::ring::board::{self, BYTES, Collector, MEMBERS, ON_SOCKET, ON_WORD, Round, Words};
use crate::shm::{BoardMemory, Mapping, Shareable};
use crate::sync::unpoisoned;
use crate::wait_set::{Member, Shared};

/// Members collected at a time: a peer that rings without end keeps nobody here for long.
const COLLECT_LIMIT: usize = 1024;

/// Members looked at in one go of a round, if the peer has woken this process for nothing too often lately.
const FEW_MEMBERS: usize = 256;

/// Both directions of it, and who listens.
#[derive(Default)]
pub(super) struct Bells {
    /// Where we ring.
    theirs: OnceLock<BoardMemory>,
    /// Where the peer does.
    ours: OnceLock<Ours>,
    members: Mutex<Members>,
    /// Whether a round through the members is under way. Written under their lock.
    in_round: AtomicBool,
    /// Whether no round begins any more. Written under that lock, too.
    knows_board: AtomicBool,
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
    round: Round,
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
        Ok(())
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
        members.round.grow();
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

    /// Rings for a member of the peer's, which this process has published something for. False if the peer could not be woken now:
    /// then the caller puts the member's word back.
    pub(crate) fn ring(&self, number: u32) -> bool {
        if self.is_local() {
            let member = unpoisoned(&self.bells.members).slots.get(number as usize).cloned().flatten();
            if let Some(member) = member {
                member.ring();
            }
            return true;
        }
        // Numbers that no member can have are a peer's nonsense.
        let Some(member) = board::Member::new(number) else { return true };
        let Some(theirs) = self.bells.theirs.get().or_else(|| self.fetch_board()) else { return self.ring_by_packet() };
        fault::point("before a member of a wait set is rung for");
        let how = board::ring(theirs, member);
        if how == ON_WORD {
            self.wake_on_word(theirs);
        } else if how != 0 && !self.wake() {
            // Not even a packet could be sent: the next to ring tries again.
            let _ = ring::Word::compare_exchange(theirs.sleeping(), 0, how, SeqCst, SeqCst);
        }
        true
    }

    /// The peer's board, if it can be received and mapped now. It was sent before the word that named a number was written.
    #[cold]
    fn fetch_board(&self) -> Option<&BoardMemory> {
        // Of an error the next ring learns again.
        let _ = self.fetch(|_| self.bells.theirs.get().map(|_| ()));
        board::before_ringing::<BoardMemory>();
        self.bells.theirs.get()
    }

    /// Has the peer look at all its members here: for a process that has not been able to receive or map the peer's board.
    /// Takes no descriptor and no memory. False if the kernel refused the packet.
    fn ring_by_packet(&self) -> bool {
        fault::point("before a member of a wait set is rung for by a packet");
        let sent = self.wake();
        // Another thread may have received the board meanwhile, and the peer sleep on its word since.
        self.posted();
        sent
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

    /// A packet came, or one is there that cannot be taken now. A peer that does not know the board has nothing else to say that
    /// a member has something: then all members are looked at.
    pub(super) fn begin_round(&self) {
        let Some(ours) = self.bells.ours.get().filter(|_| !self.bells.knows_board.load(Acquire)) else { return };
        let mut members = unpoisoned(&self.bells.members);
        let known = ours.memory.known().load(SeqCst) != 0;
        let count = members.slots.len();
        self.bells.in_round.store(members.round.begin(count, known), Release);
        self.bells.knows_board.store(known, Release);
    }

    fn is_in_round(&self) -> bool {
        self.bells.in_round.load(Acquire)
    }

    /// Puts the members that rang, and those that the round comes to, into the queues of their sets. Not all, if there are so many.
    pub(crate) fn collect(&self) {
        if self.is_in_round() {
            self.go_on_with_round();
        }
        self.collect_rung();
    }

    /// Puts the members that rang into the queues of their sets. Not all, if there are so many.
    fn collect_rung(&self) {
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

    fn go_on_with_round(&self) {
        let limit = if self.is_out_of_patience() { FEW_MEMBERS } else { COLLECT_LIMIT };
        let mut members = unpoisoned(&self.bells.members);
        let Members { slots, round, .. } = &mut *members;
        for _ in 0..limit {
            let Some(at) = round.next(slots.len()) else { break };
            if let Some(member) = &slots[at] {
                member.ring();
            }
        }
        if !round.is_under_way() {
            self.bells.in_round.store(false, Release);
        }
    }

    /// Whether somebody rang since, or there are members left that a round comes to.
    pub(crate) fn has_rung(&self) -> bool {
        self.bells.ours.get().is_some_and(|ours| self.is_in_round() || !unpoisoned(&ours.collector).is_empty())
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
        self.collect_at_once();
        if !unpoisoned(&self.bells.members).sets.iter().filter_map(Weak::upgrade).any(|set| set.is_listening()) {
            return;
        }
        self.listen();
        self.collect_at_once();
        if self.has_rung() {
            // There is no end to it; so the sets do the rest.
            self.nudge_sets();
        }
    }

    /// Has each set with members here look once more.
    pub(super) fn nudge_sets(&self) {
        for set in self.sets() {
            set.nudge();
        }
    }

    /// Collects for a thread that has just received. It leaves a round to the sets, which look at a link in pauses, if the peer has
    /// woken this process for nothing too often lately: a look at a member may receive, and so begin the next round.
    fn collect_at_once(&self) {
        if self.is_out_of_patience() { self.collect_rung() } else { self.collect() }
    }

    fn sets(&self) -> Vec<Arc<Shared>> {
        unpoisoned(&self.bells.members).sets.iter().filter_map(Weak::upgrade).collect()
    }

    /// Some of the members of a set here.
    pub(crate) fn some_members_of(&self, set: &Shared) -> Vec<Arc<Member>> {
        let members = unpoisoned(&self.bells.members);
        let here = members.slots.iter().take(COLLECT_LIMIT).flatten();
        here.filter(|member| member.is_in(set)).take(FEW_MEMBERS).cloned().collect()
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
