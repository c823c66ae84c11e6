//! Notification of wait sets over a link: how a peer says for which members it has published something.
//!
//! A member has a member id on the [notification area](crate::ring::ready_bitmap) of the link on which it is armed.
//! This process creates the area when the link gets its first member, and sends it to the peer before any sleep word
//! names a member id. The peer sets the member's bit in the area's ready bitmap, and sends a packet only if the area
//! says that this process sleeps. Each thread of this process that has received from the socket **collects** the
//! members with set bits: it puts them into the queues of their sets. A wait set does so too before it sleeps.
//!
//! Ends that are both in this process need no area: a thread that publishes puts the member into the queue of its set.
//!
//! # A peer without the area
//!
//! Receiving the area takes a descriptor and a mapping. A peer that lacks either, for a moment or for good, sends a
//! packet in place of each notification, which takes neither. So as long as this process has not seen that the peer has
//! the area, each packet begins a [round](Round): this process looks at all members of the link, a limited number at a
//! time. Until the peer has the area, no thread sleeps on its word.
//!
//! A packet that the kernel refuses wakes no thread. The peer then puts back the sleep word that it took from the
//! member, so that its next send tries again.
//!
//! # Saying that this process sleeps
//!
//! A peer that notifies takes the sleep word of the area and sends one packet. Some thread of this process receives
//! that packet: one of a set, or one that blocks on another channel. While any set with members here may be asleep,
//! that thread says again that this process sleeps, and looks again after that. So the word says so whenever a set
//! sleeps, unless a packet is in flight or a thread is just about to say so.
//!
//! If only one thread of one set with members here sleeps, the thread can sleep on the word of the area. Then it is
//! woken without a packet: see [`ready_bitmap`]. Another thread that is about to sleep takes the word from it and wakes
//! it, so that it looks again.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::packet::Packet;
use super::{Attachments, Link};
use crate::error::Error;
use crate::os::fault;
use crate::os::futex::{self, Scope};
use crate::ring;
use crate::ring::ready_bitmap::{self, BYTES, Collector, MEMBERS, ON_SOCKET, ON_WORD, Round, Words};
use crate::shm::{Mapping, ReadyBitmapMemory, Shareable};
use crate::sync::unpoisoned;
use crate::wait_set::{Member, SharedSet};

/// The most members that are collected at a time, so that a peer that notifies without end keeps no thread busy for
/// long.
const COLLECT_LIMIT: usize = 1024;

/// The most members of wait sets that one step of a round looks at, if the peer has caused too many idle wake-ups. (A
/// round looks at all members of a link.)
const FEW_MEMBERS: usize = 256;

/// The state of a link for notifications: the notification areas of both directions, and the registered members of wait
/// sets.
#[derive(Default)]
pub(super) struct Notifications {
    /// The peer's notification area (a shared bitmap with some words), in which this process sets bits to notify the
    /// peer.
    theirs: OnceLock<ReadyBitmapMemory>,
    /// This process's notification area (a shared bitmap with some words), in which the peer sets bits to notify this
    /// process.
    ours: OnceLock<Ours>,
    members: Mutex<Members>,
    /// Whether a round (a look at all members of the link) is in progress. Written under the lock of `members`.
    in_round: AtomicBool,
    /// Whether the peer has this process's notification area, so that no new round begins. Written under the lock of
    /// `members`.
    knows_bitmap: AtomicBool,
}

struct Ours {
    memory: ReadyBitmapMemory,
    collector: Mutex<Collector<ReadyBitmapMemory>>,
    /// The memory of the notification area with its descriptor, until it has been sent to the peer.
    unsent: Mutex<Option<Shareable>>,
}

#[derive(Default)]
struct Members {
    /// The registered members; the index is the member id.
    slots: Vec<Option<Arc<Member>>>,
    /// The free member ids below `slots.len()`.
    free: Vec<u32>,
    /// The wait sets that have members registered on this link.
    sets: Vec<Weak<SharedSet>>,
    round: Round,
}

/// Writes into the notification area how a thread of this process sleeps (`how`). Wakes a thread that slept on the word
/// of the area, so that it looks again.
fn announce(ours: &Ours, how: u32) {
    if ready_bitmap::announce(&ours.memory, how) {
        futex::wake_all(ours.memory.sleeping(), Scope::Shared);
    }
}

impl Link {
    /// Creates this process's notification area and sends it to the peer, at the first successful call.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the socket is full; what making memory fails with; [`Error::PeerClosed`].
    pub(crate) fn open_bitmap(&self) -> Result<(), Error> {
        if self.is_local() {
            return Ok(());
        }
        let ours = match self.notifications.ours.get() {
            Some(ours) => ours,
            None => {
                let shareable = self.io().memory("strait-ready-bitmap", BYTES)?;
                let memory = ReadyBitmapMemory::new(shareable.mapping.clone()).expect("of the size of a ready bitmap");
                let collector = Mutex::new(Collector::new(memory.clone()));
                // If two threads come here at once, one of them has created it for nothing.
                self.notifications.ours.get_or_init(|| Ours { memory, collector, unsent: Mutex::new(Some(shareable)) })
            }
        };
        let mut unsent = unpoisoned(&ours.unsent);
        if let Some(shareable) = &*unsent {
            if !self.try_send(&Packet::ReadyBitmap, Attachments::memory(shareable))? {
                return Err(Error::WouldBlock);
            }
            *unsent = None;
        }
        Ok(())
    }

    /// Stores the peer's notification area, in which this process sets bits to notify the peer. Acknowledges its
    /// arrival in the area.
    pub(super) fn learn_bitmap(&self, mapping: Arc<Mapping>) -> Result<(), Error> {
        let bitmap = ReadyBitmapMemory::new(mapping).ok_or(Error::BadPeer("a ready bitmap of impossible size"))?;
        self.notifications.theirs.set(bitmap.clone()).map_err(|_| Error::BadPeer("a second ready bitmap"))?;
        ready_bitmap::acknowledge(&bitmap);
        Ok(())
    }

    /// Registers a member of a wait set on this link and returns its member id.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if all [`MEMBERS`] ids are in use.
    pub(crate) fn register(&self, member: &Arc<Member>) -> Result<u32, Error> {
        let mut members = unpoisoned(&self.notifications.members);
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

    /// Frees the member id `number`. A notification in flight for that id then only causes a wake-up.
    pub(crate) fn unregister(&self, number: u32) {
        let mut members = unpoisoned(&self.notifications.members);
        let member = members.slots[number as usize].take();
        members.free.push(number);
        drop(members);
        drop(member);
    }

    /// Notes that `set` has members registered on this link from now on.
    pub(crate) fn add_set(&self, set: Weak<SharedSet>) {
        unpoisoned(&self.notifications.members).sets.push(set.clone());
        self.arm();
        if self.has_notified()
            && let Some(set) = set.upgrade()
        {
            set.wake_one();
        }
    }

    /// Notes that `set` has no members registered on this link any more.
    pub(crate) fn remove_set(&self, set: &SharedSet) {
        unpoisoned(&self.notifications.members).sets.retain(|known| !std::ptr::eq(known.as_ptr(), set));
    }

    /// Notifies the peer's member with the id `number`, for which this process has published something. Returns `false`
    /// if the peer could not be woken now; the caller then puts the member's sleep word back.
    pub(crate) fn notify(&self, number: u32) -> bool {
        if self.is_local() {
            let member = unpoisoned(&self.notifications.members).slots.get(number as usize).cloned().flatten();
            if let Some(member) = member {
                member.notify();
            }
            return true;
        }
        // Only a misbehaving peer gives a number that no member can have.
        let Some(member) = ready_bitmap::MemberId::new(number) else { return true };
        let Some(theirs) = self.notifications.theirs.get().or_else(|| self.fetch_bitmap()) else {
            return self.notify_by_packet();
        };
        fault::point("before a member of a wait set is notified");
        let how = ready_bitmap::notify(theirs, member);
        if how == ON_WORD {
            self.wake_on_word(theirs);
        } else if how != 0 && !self.wake() {
            // The packet could not be sent: the next notification tries again.
            let _ = ring::Word::compare_exchange(theirs.sleeping(), 0, how, SeqCst, SeqCst);
        }
        true
    }

    /// Returns the peer's notification area, or `None` if it cannot be received or mapped now. The peer sent it before
    /// it wrote a sleep word with a member id.
    #[cold]
    fn fetch_bitmap(&self) -> Option<&ReadyBitmapMemory> {
        // The next notification sees an error again.
        let _ = self.fetch(|_| self.notifications.theirs.get().map(|_| ()));
        ready_bitmap::before_notifying::<ReadyBitmapMemory>();
        self.notifications.theirs.get()
    }

    /// Sends a packet that makes the peer look at all its members on this link. Used while this process cannot receive
    /// or map the peer's notification area. Takes no descriptor and no memory. Returns `false` if the kernel refused
    /// the packet.
    fn notify_by_packet(&self) -> bool {
        fault::point("before a member of a wait set is notified by a packet");
        let sent = self.wake();
        // Another thread may have received the area meanwhile, and the peer may sleep on its word since.
        self.posted();
        sent
    }

    /// Wakes the thread of the peer that slept on the word of the peer's notification area.
    fn wake_on_word(&self, theirs: &ReadyBitmapMemory) {
        // If no thread sleeps there, the peer was just about to sleep, or it died in its sleep.
        if !futex::wake_one(theirs.sleeping(), Scope::Shared) {
            self.probe();
        }
    }

    /// Tells the peer through the peer's notification area that a packet was sent. A packet alone does not wake a
    /// thread that sleeps on the word of the area.
    pub(super) fn posted(&self) {
        if let Some(theirs) = self.notifications.theirs.get()
            && ready_bitmap::post(theirs)
        {
            futex::wake_one(theirs.sleeping(), Scope::Shared);
        }
    }

    /// Begins a round (a look at all members of the link) unless the peer has the notification area. Called when a
    /// packet has come or cannot be taken now. A peer without the area has no other way to notify a member.
    pub(super) fn begin_round(&self) {
        let Some(ours) = self.notifications.ours.get().filter(|_| !self.notifications.knows_bitmap.load(Acquire))
        else {
            return;
        };
        let mut members = unpoisoned(&self.notifications.members);
        let known = ours.memory.known().load(SeqCst) != 0;
        let count = members.slots.len();
        self.notifications.in_round.store(members.round.begin(count, known), Release);
        self.notifications.knows_bitmap.store(known, Release);
    }

    fn is_in_round(&self) -> bool {
        self.notifications.in_round.load(Acquire)
    }

    /// Puts the members that the peer has notified, and the next members of a round, into the queues of their wait
    /// sets. Processes about [`COLLECT_LIMIT`] of each; the rest comes in later calls.
    pub(crate) fn collect(&self) {
        if self.is_in_round() {
            self.go_on_with_round();
        }
        self.collect_notified();
    }

    /// Puts the members that the peer has notified into the queues of their wait sets. Processes at most
    /// [`COLLECT_LIMIT`]; the rest comes in later calls.
    fn collect_notified(&self) {
        let Some(ours) = self.notifications.ours.get() else { return };
        let mut collector = unpoisoned(&ours.collector);
        if collector.is_empty() {
            return;
        }
        let members = unpoisoned(&self.notifications.members);
        collector.collect(COLLECT_LIMIT, |member| {
            if let Some(Some(member)) = members.slots.get(member.number() as usize) {
                member.notify();
            }
        });
    }

    fn go_on_with_round(&self) {
        let limit = if self.is_over_wake_limit() { FEW_MEMBERS } else { COLLECT_LIMIT };
        let mut members = unpoisoned(&self.notifications.members);
        let Members { slots, round, .. } = &mut *members;
        for _ in 0..limit {
            let Some(at) = round.next(slots.len()) else { break };
            if let Some(member) = &slots[at] {
                member.notify();
            }
        }
        if !round.is_in_progress() {
            self.notifications.in_round.store(false, Release);
        }
    }

    /// Returns whether notified members are left to collect, or members of a round that is in progress.
    pub(crate) fn has_notified(&self) -> bool {
        self.notifications.ours.get().is_some_and(|ours| self.is_in_round() || !unpoisoned(&ours.collector).is_empty())
    }

    /// Writes into the notification area that this process sleeps on the socket, so that the peer sends a packet with
    /// its next notification. The caller then checks [`has_notified`](Self::has_notified).
    pub(crate) fn arm(&self) {
        if let Some(ours) = self.notifications.ours.get() {
            announce(ours, ON_SOCKET);
        }
    }

    /// Returns whether a thread of `set`, the only one of the set that sleeps, may sleep on the word of the
    /// notification area. It may if the peer has the area and no other set with members on this link sleeps. The thread
    /// must count as asleep already.
    pub(crate) fn may_sleep_on_word(&self, set: &SharedSet) -> bool {
        if self.is_local() {
            return true;
        }
        let Some(ours) = self.notifications.ours.get() else { return false };
        let members = unpoisoned(&self.notifications.members);
        let others = members.sets.iter().filter(|other| !std::ptr::eq(other.as_ptr(), set));
        ours.memory.known().load(SeqCst) != 0 && !others.filter_map(Weak::upgrade).any(|set| set.is_armed())
    }

    /// Writes into the notification area that this process sleeps on its word, and returns the area if there is one.
    /// The caller then checks [`has_notified`](Self::has_notified) and [`has_post`](Self::has_post), and calls
    /// [`leave_word`](Self::leave_word) in any case.
    pub(crate) fn arm_on_word(&self) -> Option<ReadyBitmapMemory> {
        let ours = self.notifications.ours.get()?;
        announce(ours, ON_WORD);
        Some(ours.memory.clone())
    }

    /// Returns whether the peer has said in the notification area that it sent a packet, since the last
    /// [`take_post`](Self::take_post).
    pub(crate) fn has_post(&self) -> bool {
        self.notifications.ours.get().is_some_and(|ours| ready_bitmap::has_post(&ours.memory))
    }

    /// Returns whether the peer has said in the notification area that it sent a packet, and clears that. The caller
    /// then receives the packet.
    pub(crate) fn take_post(&self) -> bool {
        self.notifications.ours.get().is_some_and(|ours| ready_bitmap::take_post(&ours.memory))
    }

    /// Ends a sleep on the word that [`Link::arm_on_word`] began. The thread must no longer count as asleep. Returns
    /// whether the peer or another thread of this process took the word, and so woke the sleeper.
    pub(crate) fn leave_word(&self) -> bool {
        let Some(ours) = self.notifications.ours.get() else { return false };
        let woken = !ready_bitmap::leave(&ours.memory);
        self.answer_notifications();
        woken
    }

    /// Collects notified members, and says again in the notification area that this process sleeps if one of the wait
    /// sets does. Called after a receive from the socket and after a sleep on the word: see the head of this file.
    pub(super) fn answer_notifications(&self) {
        if self.notifications.ours.get().is_none() {
            return;
        }
        self.collect_at_once();
        if !unpoisoned(&self.notifications.members).sets.iter().filter_map(Weak::upgrade).any(|set| set.is_armed()) {
            return;
        }
        self.arm();
        self.collect_at_once();
        if self.has_notified() {
            // The peer notifies without end, so the sets do the rest.
            self.wake_sets();
        }
    }

    /// Makes each wait set with members on this link look once more.
    pub(super) fn wake_sets(&self) {
        for set in self.sets() {
            set.wake_one();
        }
    }

    /// Collects notified members, for a thread that has just received. If the peer has caused too many idle wake-ups,
    /// leaves members of a round to the wait sets, which pause between looks at such a link. A look at a member may
    /// receive, and so begin the next round.
    fn collect_at_once(&self) {
        if self.is_over_wake_limit() { self.collect_notified() } else { self.collect() }
    }

    fn sets(&self) -> Vec<Arc<SharedSet>> {
        unpoisoned(&self.notifications.members).sets.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns up to [`FEW_MEMBERS`] members of `set` on this link.
    pub(crate) fn some_members_of(&self, set: &SharedSet) -> Vec<Arc<Member>> {
        let members = unpoisoned(&self.notifications.members);
        let here = members.slots.iter().take(COLLECT_LIMIT).flatten();
        here.filter(|member| member.is_in(set)).take(FEW_MEMBERS).cloned().collect()
    }

    /// Puts all armed members on this link into the queues of their wait sets.
    pub(super) fn notify_all(&self) {
        for member in unpoisoned(&self.notifications.members).slots.iter().flatten() {
            member.notify();
        }
    }

    /// Ends notification on a link that is down: queues every member, and makes each wait set stop watching the socket.
    pub(super) fn end_notifications(&self) {
        self.notify_all();
        for set in self.sets() {
            set.link_down(self.number);
        }
    }
}
