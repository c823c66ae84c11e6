//! Notification of wait sets over a link: how a peer names the members for which it has published something.
//!
//! A member has a member id on the [notification area](crate::ring::ready_bitmap) of the link where the member is
//! armed. This process creates the area when the link gets its first member, and sends the area to the peer before any
//! sleep word names a member id. The peer sets the member's bit in the area's ready bitmap, and sends a packet only if
//! the area shows that this process sleeps. Each thread of this process that has received from the socket **collects**
//! the members with set bits: the thread puts these members into the queues of their wait sets. A wait set also
//! collects before it sleeps.
//!
//! Two ends in this process need no area: the publishing thread puts the member into the queue of the member's wait
//! set.
//!
//! # A peer without the area
//!
//! Receiving the area takes a descriptor and a mapping. A peer that lacks either, for a moment or for good, sends a
//! packet in place of each notification, which takes neither. So until this process has seen that the peer has the
//! area, each packet begins a [round](Round): this process looks at all members of the link, a limited number at a
//! time. Until the peer has the area, no thread sleeps on its word.
//!
//! If the kernel refuses the packet, no thread is woken. The peer then restores the sleep word taken from the member,
//! so that the peer's next send tries again.
//!
//! # Saying that this process sleeps
//!
//! To notify, a peer takes the sleep word of the area and sends one packet. Some thread of this process receives that
//! packet: a thread of a wait set, or a thread that blocks on another channel. While any wait set with members here may
//! be asleep, the receiving thread sets the sleep word again, and then looks once more. So the word is set whenever a
//! wait set sleeps, unless a packet is in flight or a thread is just about to set the word.
//!
//! If only one thread of one wait set with members here sleeps, the thread can sleep on the word of the area, and is
//! woken without a packet: see [`ready_bitmap`]. A second thread, before sleeping, takes the word and wakes the first
//! thread, which looks again.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::packet::Packet;
use super::{Attachments, InUse, Link};
use crate::error::Error;
use crate::os::fault;
use crate::os::futex::{self, Scope};
use crate::ring;
use crate::ring::ready_bitmap::{self, BYTES, Collector, MEMBERS, ON_SOCKET, ON_WORD, Round, Words};
use crate::shm::{Mapping, ReadyBitmapMemory, Shareable};
use crate::sync::unpoisoned;
use crate::wake::strict;

/// The most members put into the queues of their wait sets by one call. The limit keeps a peer with endless
/// notifications from keeping a thread busy.
const COLLECT_LIMIT: usize = 1024;

/// The most members of wait sets in one step of a round, if the link has used up its budget of idle wake-ups. A round
/// is a look, in steps, at all members that are registered on a link.
const FEW_MEMBERS: usize = 64;

/// A member of a wait set, as a link sees it: the object that a notification over the link reaches.
pub(crate) trait Listener: Send + Sync {
    /// Puts the member into the queue of its wait set, if the member is armed.
    fn notify(&self);

    /// Returns whether this is a member of the wait set `set`.
    fn is_in(&self, set: &dyn ListenerSet) -> bool;

    /// Makes the wait set report an error of `link`, if this member is armed and waits for messages over the link.
    /// Returns whether the set will report the error for this member.
    fn report_trouble(&self, link: &InUse) -> bool;

    /// Returns whether the member is ready and waits for an event, but is not in the queue of its wait set. Changes
    /// nothing. For the [check for lost wake-ups](crate::wake::strict).
    fn is_overlooked(&self) -> bool;
}

/// A wait set with members registered on a link, as seen by the link.
pub(crate) trait ListenerSet: Send + Sync {
    /// Makes a sleeping thread of this wait set look at its members once more.
    fn wake_one(&self);

    /// Returns whether a thread may be asleep: in a wait on this wait set, or in an event loop with the set's
    /// descriptor. A driver that is polling does not count.
    fn is_armed(&self) -> bool;

    /// Makes the wait set stop watching the socket of the link with this number. The link is down.
    fn link_down(&self, number: u64);
}

/// The state of a link for notifications: the notification areas of this process and of the peer, and the members of
/// wait sets registered on the link.
#[derive(Default)]
pub(super) struct Notifications {
    /// The peer's notification area (shared memory with the ready bitmap and some words); this process sets bits there
    /// to notify the peer. Empty until the area was received.
    theirs: OnceLock<ReadyBitmapMemory>,
    /// This process's notification area (shared memory with the ready bitmap and some words); the peer sets bits there
    /// to notify this process. Empty until the link gets its first member.
    ours: OnceLock<Ours>,
    members: Mutex<Members>,
    /// Whether a round is in progress: a look, in steps, at all members registered on the link. Written under the lock
    /// of `members`.
    in_round: AtomicBool,
    /// Whether this process has seen that the peer has received the notification area. If so, no new round begins.
    /// Written under the lock of `members`.
    knows_bitmap: AtomicBool,
}

struct Ours {
    memory: ReadyBitmapMemory,
    collector: Mutex<Collector<ReadyBitmapMemory>>,
    /// The memory of this process's notification area with its descriptor, to be sent to the peer; `None` once sent.
    unsent: Mutex<Option<Shareable>>,
}

#[derive(Default)]
struct Members {
    /// The members of wait sets registered on this link; the index is the member id.
    slots: Vec<Option<Arc<dyn Listener>>>,
    /// The member ids below `slots.len()` that no member has.
    free: Vec<u32>,
    /// The wait sets with members registered on this link.
    sets: Vec<Weak<dyn ListenerSet>>,
    round: Round,
}

/// Records in this process's notification area how its threads sleep: `how` is on the socket or on the area's sleep
/// word. If a thread slept on the word, wakes all threads there, so that each looks again.
fn announce(ours: &Ours, how: u32) {
    if ready_bitmap::announce(&ours.memory, how) {
        futex::wake_all(ours.memory.sleeping(), Scope::Shared);
    }
}

impl Link {
    /// Creates this process's notification area and sends it to the peer. Does nothing if an earlier call did so, and
    /// on a local link.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the packet cannot be sent now; errors of creating shared memory; [`Error::PeerClosed`].
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
                // If two threads create the area at the same time, one of the two areas is dropped.
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

    /// Stores the peer's notification area, where this process sets bits to notify the peer, and acknowledges the area
    /// by a word in the area. Fails with [`Error::BadPeer`] for a second area or a wrong size.
    pub(super) fn learn_bitmap(&self, mapping: Arc<Mapping>) -> Result<(), Error> {
        let bitmap = ReadyBitmapMemory::new(mapping).ok_or(Error::BadPeer("a ready bitmap of impossible size"))?;
        self.notifications.theirs.set(bitmap.clone()).map_err(|_| Error::BadPeer("a second ready bitmap"))?;
        ready_bitmap::acknowledge(&bitmap);
        Ok(())
    }

    /// Registers `member`, a member of a wait set, on this link and returns its member id.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if all [`MEMBERS`] ids are in use.
    pub(crate) fn register(&self, member: Arc<dyn Listener>) -> Result<u32, Error> {
        let mut members = unpoisoned(&self.notifications.members);
        if let Some(number) = members.free.pop() {
            members.slots[number as usize] = Some(member);
            return Ok(number);
        }
        let number = members.slots.len();
        if number >= MEMBERS {
            return Err(Error::NoMemory { call: "a number for one more member of wait sets" });
        }
        members.slots.push(Some(member));
        members.round.grow();
        Ok(number as u32)
    }

    /// Frees the member id `number` on this link for another member. A notification in flight for that id then causes
    /// an idle wake-up at most.
    pub(crate) fn unregister(&self, number: u32) {
        let mut members = unpoisoned(&self.notifications.members);
        let member = members.slots[number as usize].take();
        members.free.push(number);
        drop(members);
        drop(member);
    }

    /// Adds the wait set `set`, with members registered on this link from now on, to the link's list. Records this
    /// process as sleeping in its notification area, and wakes a thread of the set if members have been notified
    /// already.
    pub(crate) fn add_set(&self, set: Weak<dyn ListenerSet>) {
        unpoisoned(&self.notifications.members).sets.push(set.clone());
        self.arm();
        if self.has_notified()
            && let Some(set) = set.upgrade()
        {
            set.wake_one();
        }
    }

    /// Removes the wait set `set`, now without members registered on this link, from the link's list.
    pub(crate) fn remove_set(&self, set: &dyn ListenerSet) {
        unpoisoned(&self.notifications.members).sets.retain(|known| !std::ptr::addr_eq(known.as_ptr(), set));
    }

    /// Notifies the peer's member with the id `number`, after this process has published something for the member.
    /// Returns `false` if the kernel refused a packet to the peer, and this process does not have the peer's
    /// notification area. The caller then restores the sleep word of the peer's member, so that a later call tries
    /// again.
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
        if how == ON_WORD || (strict::IS_ON && how == strict::WOKEN) {
            self.wake_on_word(theirs);
        } else if how != 0 && !self.wake() {
            // The packet could not be sent: the next notification tries again.
            let _ = ring::Word::compare_exchange(theirs.sleeping(), 0, how, SeqCst, SeqCst);
        }
        true
    }

    /// Returns the peer's notification area; receives the area first if it is still in the socket: the peer sent the
    /// area before writing a sleep word with a member id. Returns `None` if the area cannot be received or mapped now.
    #[cold]
    fn fetch_bitmap(&self) -> Option<&ReadyBitmapMemory> {
        // The next notification sees an error again.
        let _ = self.fetch(|_| self.notifications.theirs.get().map(|_| ()));
        ready_bitmap::before_notifying::<ReadyBitmapMemory>();
        self.notifications.theirs.get()
    }

    /// Sends a wake packet; the peer then looks at all its members on this link. Used while this process cannot receive
    /// or map the peer's notification area; needs no descriptor and no memory. Returns `false` if the kernel refused
    /// the packet.
    fn notify_by_packet(&self) -> bool {
        fault::point("before a member of a wait set is notified by a packet");
        let sent = self.wake();
        // Another thread may have received the area meanwhile, and the peer may sleep on its word since.
        self.posted();
        sent
    }

    /// Wakes the thread of the peer that sleeps on the sleep word of `theirs`, the peer's notification area. If no
    /// thread sleeps there, asks the kernel whether the peer is alive.
    fn wake_on_word(&self, theirs: &ReadyBitmapMemory) {
        strict::note_wake(theirs.sleeping());
        // If no thread sleeps there, the peer was just about to sleep, or died in its sleep.
        if !futex::wake_one(theirs.sleeping(), Scope::Shared) {
            self.probe();
        }
    }

    /// Notes in the peer's notification area that this process has sent a packet. If a thread of the peer sleeps on the
    /// area's sleep word, wakes the thread; a packet alone would not wake it.
    pub(super) fn posted(&self) {
        if let Some(theirs) = self.notifications.theirs.get()
            && ready_bitmap::post(theirs)
        {
            strict::note_wake(theirs.sleeping());
            futex::wake_one(theirs.sleeping(), Scope::Shared);
        }
    }

    /// Begins a round (a look, in steps, at all members registered on the link), unless this process has already seen
    /// that the peer has the notification area. Called after a packet was received or could not be taken: without the
    /// area the peer can notify a member only by a packet.
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

    /// Puts members into the queues of their wait sets: the members that the peer has notified, and the next members of
    /// a round in progress. Handles at most [`COLLECT_LIMIT`] of each; later calls handle the rest.
    pub(crate) fn collect(&self) {
        if self.is_in_round() {
            self.go_on_with_round();
        }
        self.collect_notified();
    }

    /// Puts up to [`COLLECT_LIMIT`] members notified by the peer into the queues of their wait sets. Later calls handle
    /// the rest.
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

    /// Returns whether a call of [`Link::collect`] has something to do: the peer has notified members outside of the
    /// queues of their wait sets, or a round is in progress.
    pub(crate) fn has_notified(&self) -> bool {
        self.notifications.ours.get().is_some_and(|ours| self.is_in_round() || !unpoisoned(&ours.collector).is_empty())
    }

    /// Records in this process's notification area that threads sleep on the socket, so that the peer sends a packet
    /// with the next notification. The caller then checks [`has_notified`](Self::has_notified).
    pub(crate) fn arm(&self) {
        if let Some(ours) = self.notifications.ours.get() {
            announce(ours, ON_SOCKET);
        }
    }

    /// Returns whether the only sleeping thread of the wait set `set` may sleep on the sleep word of this process's
    /// notification area. It may if the peer has received the area and no other wait set with members on this link
    /// sleeps. The thread must count as asleep already. Always `true` on a local link.
    pub(crate) fn may_sleep_on_word(&self, set: &dyn ListenerSet) -> bool {
        if self.is_local() {
            return true;
        }
        let Some(ours) = self.notifications.ours.get() else { return false };
        let members = unpoisoned(&self.notifications.members);
        let others = members.sets.iter().filter(|other| !std::ptr::addr_eq(other.as_ptr(), set));
        ours.memory.known().load(SeqCst) != 0 && !others.filter_map(Weak::upgrade).any(|set| set.is_armed())
    }

    /// Records in this process's notification area that a thread sleeps on the area's sleep word, and returns the area.
    /// Returns `None` if there is no area. The caller then checks [`has_notified`](Self::has_notified) and
    /// [`has_post`](Self::has_post), and in any case calls [`leave_word`](Self::leave_word) at the end.
    pub(crate) fn arm_on_word(&self) -> Option<ReadyBitmapMemory> {
        let ours = self.notifications.ours.get()?;
        announce(ours, ON_WORD);
        Some(ours.memory.clone())
    }

    /// Returns whether the peer has notified a member, or noted a packet, but still has to wake the thread of this
    /// process that sleeps on the word of the notification area. For the [check for lost
    /// wake-ups](crate::wake::strict).
    pub(crate) fn has_sleeper_on_word(&self) -> bool {
        self.notifications.ours.get().is_some_and(|ours| {
            let has_news = !unpoisoned(&ours.collector).is_empty() || ready_bitmap::has_post(&ours.memory);
            has_news && [ON_WORD, 0].contains(&ours.memory.sleeping().load(SeqCst))
        }) && !self.may_be_silent()
    }

    /// Returns whether the peer has notified a member, but still has to send a packet for the notification, because
    /// threads of this process sleep on the socket. This process had received `packets` packets before. For the [check
    /// for lost wake-ups](crate::wake::strict).
    pub(crate) fn owes_packet_for_members(&self, packets: usize) -> bool {
        let ours = self.notifications.ours.get();
        ours.is_some_and(|ours| !unpoisoned(&ours.collector).is_empty()) && self.owes_packet(packets)
    }

    /// Returns whether this process's notification area has the peer's note of a sent packet. [`Link::take_post`]
    /// clears the note.
    pub(crate) fn has_post(&self) -> bool {
        self.notifications.ours.get().is_some_and(|ours| ready_bitmap::has_post(&ours.memory))
    }

    /// Returns whether this process's notification area has the peer's note of a sent packet, and clears the note. If
    /// `true`, the caller receives the packet.
    pub(crate) fn take_post(&self) -> bool {
        self.notifications.ours.get().is_some_and(|ours| ready_bitmap::take_post(&ours.memory))
    }

    /// Ends a sleep on the sleep word of this process's notification area, begun by [`Link::arm_on_word`]. The thread
    /// must no longer count as asleep. Returns whether the word has changed since then: the peer or another thread of
    /// this process woke the thread.
    pub(crate) fn leave_word(&self) -> bool {
        let Some(ours) = self.notifications.ours.get() else { return false };
        let woken = !ready_bitmap::leave(&ours.memory);
        strict::forget_wake(ours.memory.sleeping());
        self.answer_notifications();
        woken
    }

    /// Puts notified members into the queues of their wait sets. If a wait set with members on this link sleeps, also
    /// records this process as sleeping in the notification area again. Called after a receive from the socket and
    /// after a sleep on the area's sleep word: see the head of this file.
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

    /// Wakes a sleeping thread of each wait set with members on this link, for one more look.
    pub(super) fn wake_sets(&self) {
        for set in self.sets() {
            set.wake_one();
        }
    }

    /// Puts notified members into the queues of their wait sets, for a thread that has just received. If the link has
    /// used up its budget of idle wake-ups, leaves the members of a round to later calls. Wait sets pause between looks
    /// at such a link, and a look at a member may receive and so begin the next round.
    fn collect_at_once(&self) {
        if self.is_over_wake_limit() { self.collect_notified() } else { self.collect() }
    }

    fn sets(&self) -> Vec<Arc<dyn ListenerSet>> {
        unpoisoned(&self.notifications.members).sets.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns up to [`FEW_MEMBERS`] members of the wait set `set` registered on this link. Searches the first
    /// [`COLLECT_LIMIT`] member ids only.
    pub(crate) fn some_members_of(&self, set: &dyn ListenerSet) -> Vec<Arc<dyn Listener>> {
        let members = unpoisoned(&self.notifications.members);
        let here = members.slots.iter().take(COLLECT_LIMIT).flatten();
        here.filter(|member| member.is_in(set)).take(FEW_MEMBERS).cloned().collect()
    }

    /// Returns the members of the wait set `set` registered on this link, but of those with member ids above
    /// [`COLLECT_LIMIT`] none.
    pub(crate) fn first_members_of(&self, set: &dyn ListenerSet) -> Vec<Arc<dyn Listener>> {
        let members = unpoisoned(&self.notifications.members);
        let here = members.slots.iter().take(COLLECT_LIMIT).flatten();
        here.filter(|member| member.is_in(set)).cloned().collect()
    }

    /// Puts all armed members registered on this link into the queues of their wait sets.
    pub(super) fn notify_all(&self) {
        for member in unpoisoned(&self.notifications.members).slots.iter().flatten() {
            member.notify();
        }
    }

    /// Ends the notifications over a link that went down: puts every armed member into the queue of its wait set, and
    /// makes each wait set stop watching the link's socket.
    pub(super) fn end_notifications(&self) {
        self.notify_all();
        for set in self.sets() {
            set.link_down(self.number);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::lane::directory::LaneDirectory;
    use crate::link::ANONYMOUS;
    use crate::os::fork;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// Returns the links at both ends of a new socket.
    fn pair() -> [InUse; 2] {
        fork::arm().unwrap();
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        [pair.0, pair.1].map(|socket| Link::over(socket, usize::MAX, Arc::<LaneDirectory>::default()).unwrap())
    }

    /// Returns the links at both ends of a new socket. The second link has the notification area of the first.
    pub(crate) fn linked() -> [InUse; 2] {
        let links = pair();
        links.iter().for_each(|link| link.send_handshake(ANONYMOUS).unwrap());
        links[0].open_bitmap().unwrap();
        links[1].drain(false).unwrap();
        assert!(links[1].notifications.theirs.get().is_some());
        links
    }

    /// Returns a link to a peer that has sent a handshake and closed its socket, with neither noticed yet.
    pub(crate) fn hung_up() -> InUse {
        let [link, peer] = pair();
        peer.send_handshake(ANONYMOUS).unwrap();
        drop(peer);
        link
    }

    /// Runs `wake` once a thread sleeps on the sleep word of the notification area of `link`. Returns whether that
    /// thread is woken.
    fn is_woken_by(link: &Link, wake: impl FnOnce()) -> bool {
        let area = link.arm_on_word().unwrap();
        let (said, heard) = mpsc::channel();
        thread::spawn(move || {
            said.send(rustix::thread::gettid()).unwrap();
            futex::wait(area.sleeping(), ON_WORD, Scope::Shared, Some(3 * DEADLINE)).unwrap();
            said.send(rustix::thread::gettid())
        });
        let path = format!("/proc/self/task/{}/stat", heard.recv().unwrap());
        while !std::fs::read_to_string(&path).unwrap().contains(") S ") {
            thread::yield_now();
        }
        wake();
        heard.recv_timeout(DEADLINE).is_ok()
    }

    #[test]
    fn a_notification_or_a_noted_packet_wakes_a_thread_that_sleeps_on_the_word() {
        let [ours, theirs] = linked();
        assert!(is_woken_by(&ours, || assert!(theirs.notify(5))), "by a notification");
        assert!(is_woken_by(&ours, || theirs.posted()), "by a note of a packet");
        assert!(is_woken_by(&ours, || ours.arm()), "by another thread that is about to sleep on the socket");
    }
}
