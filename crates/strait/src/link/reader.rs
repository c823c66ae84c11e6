//! The reader of a link: one thread at a time, the [leader](crate::wake::leader), receives the packets in the socket
//! into the [inbox](super::inbox::Inbox), for all threads waiting on the link.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::inbox::{Inbox, OpenPacket};
use super::io::{BLOCKS, Incoming, ReceivedAttachment, Takes};
use super::packet::Packet;
use super::wake_limiter::{PAUSE, WakeLimiter};
use super::{ANONYMOUS, Link};
use crate::blocked_on::POLL_INTERVAL;
use crate::deadline::Deadline;
use crate::error::{Error, Refusal};
use crate::os::socket::{Interest, NOT_NOW};
use crate::quota::{LINK_HANDLES_IN_FLIGHT, Ledger, OverLimit, closing};
use crate::ring::ready_bitmap;
use crate::shm::sizes_of_lanes;
use crate::sync::unpoisoned;
use crate::wake::interrupt::{Interruption, Sleepers};
use crate::wake::leader::{self, Doing};

/// The most packets and descriptors, counted together, received by one call from a socket. So a peer with endless
/// packets cannot keep a thread busy.
pub(super) const DRAIN_LIMIT: usize = 1024;

/// The number of packets and descriptors, counted together, after which a fetch of an attachment gives up. The sender
/// sends an attachment before the record that refers to the attachment. So at most as many packets arrive before the
/// attachment as fit into a socket.
const FETCH_LIMIT: usize = 8 * DRAIN_LIMIT;

/// The number of packets and descriptors, counted together, after which a look for the rest of a socket's packets gives
/// up. No honest peer has more unread: a socket holds fewer packets than [`DRAIN_LIMIT`].
pub(super) const REST_LIMIT: usize = DRAIN_LIMIT + LINK_HANDLES_IN_FLIGHT;

/// The longest sleep of a follower in a fetch or a look before the follower looks at the inbox and the socket itself.
/// One event wakes no follower: another process with a copy of the socket, such as the introducer that made the socket,
/// takes the packet that the follower has seen there, before the sleeping leader sees it. Then the leader sleeps on.
const FOLLOW: Duration = Duration::from_millis(10);

/// The longest time for which a wait set, or a sender waiting for room, waits for the leader (the receiving thread) to
/// receive the packets in the socket.
pub(super) const MOMENT: Duration = Duration::from_millis(1);

/// The error for a packet without the memory or socket that the packet should bring.
pub(crate) const MISSING: Error = Error::BadPeer("a reference to memory that did not arrive");

/// The calling thread as the leader of a link. [`Link::leave`] stops leading.
pub(super) type Leading<'a> = leader::Leading<'a, ()>;

/// The state shared by the threads that receive over a link.
pub(super) struct Reader {
    /// The threads that wait on the link: the leader receives. The followers are also woken when the link goes down or
    /// a wait is interrupted.
    pub(super) leader: leader::Leader<()>,
    /// How often a leader has found no packet left in the socket. One leader counts at most once.
    emptied: AtomicUsize,
    /// The number of packets received so far.
    #[cfg(strait_strict_wakes)]
    received: AtomicUsize,
    inbox: Mutex<Inbox>,
    /// Whether the link is stuck: the last attempt to take the next packet from the socket failed for lack of a
    /// resource.
    pub(super) stuck: AtomicBool,
    /// Whether this process accepts no handles of messages on this link; the kernel then drops the handles.
    refuses: AtomicBool,
    pub(super) wake_limiter: WakeLimiter,
}

impl Reader {
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        Self {
            leader: leader::Leader::default(),
            emptied: AtomicUsize::new(0),
            #[cfg(strait_strict_wakes)]
            received: AtomicUsize::new(0),
            inbox: Mutex::new(Inbox::new(ledger)),
            stuck: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            wake_limiter: WakeLimiter::default(),
        }
    }
}

impl Link {
    /// Returns whether the link is stuck: at the last attempt the next packet in the socket could not be taken, for
    /// lack of a resource. `false` for a link that is down. Costs one load.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.reader.stuck.load(Ordering::Relaxed) && !self.is_down()
    }

    /// Makes this process accept no handles of messages over this link from now on: the kernel drops descriptors that
    /// the peer sends as handles. Memory and sockets of the library itself (rings, blocks, links) still arrive.
    pub(crate) fn refuse_descriptors(&self) {
        self.reader.refuses.store(true, Ordering::Relaxed);
    }

    pub(crate) fn refuses_descriptors(&self) -> bool {
        self.reader.refuses.load(Ordering::Relaxed)
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        unpoisoned(&self.reader.inbox)
    }

    /// Drops the attachments in the inbox for the ring with this token, and closes their descriptors, because no record
    /// will refer to them.
    pub(crate) fn discard_received(&self, token: u128) {
        let dropped = self.inbox().retract(token);
        drop(dropped);
    }

    /// Makes the calling thread the leader, which is `doing` this first, unless another thread leads.
    pub(super) fn try_lead(&self, doing: Doing) -> Option<Leading<'_>> {
        self.reader.leader.lead(self.reader.leader.lock(), doing).ok()
    }

    /// Receives the packets in the socket, as many as [`drain_limit`](Self::drain_limit) allows, and stops leading.
    pub(super) fn receive_and_leave(&self, leading: Leading<'_>) -> Result<(), Error> {
        let received = self.receive_all(|_| false);
        self.leave(leading);
        received.map(|_more| ())
    }

    /// Receives the packets in the socket, as many as [`drain_limit`](Self::drain_limit) allows. Does nothing if
    /// another thread is the leader. Returns no error: a permanent error is stored in the link, which is then down.
    pub(super) fn drain_once(&self) {
        if let Some(leading) = self.try_lead(Doing::Handling) {
            // An error is stored in the link.
            let _ = self.receive_and_leave(leading);
        }
    }

    /// Receives the packets that are in the socket now, but only about `limit` packets and descriptors, counted
    /// together. Returns how many were received, and whether more may be left. If another thread is the leader, waits
    /// until that thread has received the packets, until the deadline and for up to twice [`FOLLOW`] more: this process
    /// may have been stopped until the deadline, so that the leader could not run.
    ///
    /// # Errors
    /// [`NOT_NOW`] if the other thread has not received the packets in that time; the errors of receiving.
    pub(super) fn drain_or_follow(&self, limit: usize, deadline: Deadline) -> Result<(usize, bool), Error> {
        let emptied = || self.reader.emptied.load(Ordering::Relaxed);
        let leader = &self.reader.leader;
        let mut turn = leader.lock();
        let before = emptied();
        let mut late = 0;
        loop {
            turn = match leader.lead(turn, Doing::Handling) {
                Ok(leading) => {
                    let received = self.receive_rest(limit);
                    self.leave(leading);
                    return received;
                }
                Err(turn) => turn,
            };
            // The leader may have looked for the last time before the call, and count only now.
            let has_received = emptied().wrapping_sub(before) >= 2;
            late += u32::from(deadline.has_passed());
            if has_received || (turn.sleeps() && !self.is_readable()?) {
                return Ok((0, false));
            }
            if late > 2 {
                return Err(NOT_NOW);
            }
            turn = leader.follow(turn, Some(FOLLOW));
        }
    }

    /// Returns the number of packets received over this link so far; always 0 without a [check for lost
    /// wake-ups](crate::wake::strict).
    #[inline(always)]
    pub(crate) fn packets_received(&self) -> usize {
        #[cfg(strait_strict_wakes)]
        return self.reader.received.load(Ordering::Relaxed);
        #[cfg(not(strait_strict_wakes))]
        0
    }

    /// Returns whether the peer, which has published something for a sleeping thread, still has to send a packet to
    /// wake this process: no packet has come since [`packets_received`](Self::packets_received) returned `before`, and
    /// the peer is alive and not stopped. For the [check for lost wake-ups](crate::wake::strict).
    pub(crate) fn owes_packet(&self, before: usize) -> bool {
        !self.is_readable().unwrap_or(true) && self.packets_received() == before && !self.may_be_silent()
    }

    /// Returns whether the socket is readable. If so, a sleeping leader is about to wake up and receive the packets.
    fn is_readable(&self) -> Result<bool, Error> {
        Ok(self.io.wait(Interest::Readable, Deadline::NOW)?.readable)
    }

    /// Receives the packets that are in the socket now, but only about `limit` packets and descriptors, counted
    /// together. Returns how many were received, and whether more may be left. Only the leader may call this.
    pub(super) fn receive_rest(&self, limit: usize) -> Result<(usize, bool), Error> {
        let mut work = 0;
        let mut is_more = true;
        while is_more && work < limit {
            let (received, more) = self.receive_up_to(self.drain_limit().min(limit - work), |_| false)?;
            work += received;
            is_more = more;
        }
        Ok((work, is_more))
    }

    /// Stops leading, and tells the wait sets of the members about which the peer has notified this process meanwhile.
    pub(super) fn leave(&self, leading: Leading<'_>) {
        drop(leading);
        self.answer_notifications();
    }

    /// Receives the packets in the socket, for a wait set whose epoll instance reported the socket. If another thread
    /// is the leader, that thread receives; if `may_wait`, the call then waits for the leader for at most [`MOMENT`].
    /// Fails if the packets cannot be received now, or if the link goes down because of them.
    pub(crate) fn drain(&self, may_wait: bool) -> Result<(), Error> {
        if self.is_down() {
            return Ok(());
        }
        let leader = &self.reader.leader;
        match leader.lead(leader.lock(), Doing::Handling) {
            Ok(leading) => return self.receive_and_leave(leading),
            Err(turn) if may_wait => drop(leader.follow(turn, Some(MOMENT))),
            Err(_) => {}
        }
        Ok(())
    }

    /// Receives packets into the inbox until there are none or `enough` returns `true`. Returns `true` only if
    /// [`drain_limit`](Self::drain_limit) was reached before; then packets may be left in the socket. After a permanent
    /// error the link is down. Only the leader may call this.
    pub(super) fn receive_all(&self, enough: impl FnMut(&mut Inbox) -> bool) -> Result<bool, Error> {
        self.receive_up_to(self.drain_limit(), enough).map(|(_, is_more)| is_more)
    }

    /// Works like [`receive_all`](Self::receive_all), with the limit `limit`. Also returns how many packets and
    /// descriptors were received.
    fn receive_up_to(&self, limit: usize, enough: impl FnMut(&mut Inbox) -> bool) -> Result<(usize, bool), Error> {
        let received = self.receive_until(limit, enough);
        self.reader.stuck.store(received.is_err(), Ordering::Relaxed);
        if let Err(error) = received {
            if !error.passes() {
                self.fail(error);
            }
            // Behind the stuck packet, another packet may wait that would have woken a member.
            self.begin_round();
        }
        received
    }

    fn receive_until(&self, limit: usize, mut enough: impl FnMut(&mut Inbox) -> bool) -> Result<(usize, bool), Error> {
        let mut work = 0;
        while work < limit {
            if !self.knows_who_it_is()? {
                return Ok((work, self.is_emptied()));
            }
            if self.ledger.blocks_receives() {
                return Err(Error::BadPeer(BLOCKS));
            }
            self.check_room()?;
            match self.io.receive(self.refuses_descriptors(), Takes::PacketsThatNeedNothing)? {
                Incoming::Empty => {
                    if work == 0 {
                        self.io.check_nothing()?;
                    }
                    return Ok((work, self.is_emptied()));
                }
                Incoming::HungUp => {
                    self.fail(Error::PeerClosed);
                    return Ok((work, self.is_emptied()));
                }
                Incoming::Packet { packet, attachments, more_wakes } => {
                    work += 1 + attachments.len() + more_wakes;
                    self.put_and_take(packet, attachments)?;
                    (0..more_wakes).for_each(|_| _ = self.woken_for_nothing());
                    self.packet_came();
                    #[cfg(strait_strict_wakes)]
                    self.reader.received.fetch_add(1, Ordering::Relaxed);
                    self.begin_round();
                }
            }
            if enough(&mut self.inbox()) {
                return Ok((work, false));
            }
        }
        Ok((work, true))
    }

    /// Counts that this thread, the leader, has found no packet left in the socket. Returns `false`: none is left.
    fn is_emptied(&self) -> bool {
        self.reader.emptied.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Processes a received packet with its attachments, and removes the packet from the socket. After a temporary
    /// error nothing has changed, and the packet stays in the socket.
    ///
    /// No thread closes a descriptor of the packet before the packet is removed. Otherwise the removal would be the
    /// last close, and the sender could make that close take any time. So this thread holds its descriptors back until
    /// then, and the other threads find the handles in the inbox only afterwards.
    fn put_and_take(&self, packet: Packet, attachments: Vec<ReceivedAttachment>) -> Result<(), Error> {
        let _held_back = (!attachments.is_empty()).then(closing::hold_back);
        if packet.handles() > 0 {
            let mut inbox = self.inbox();
            inbox.put(packet, attachments)?;
            return self.io.take(&packet);
        }
        self.put(packet, attachments)?;
        self.io.take(&packet)
    }

    /// Processes a received packet with its attachments. After a temporary error nothing has changed, and the call can
    /// be repeated with the same packet.
    fn put(&self, packet: Packet, attachments: Vec<ReceivedAttachment>) -> Result<(), Error> {
        match packet {
            Packet::Introduce { .. } | Packet::Arena { .. } => self.directory.learn(self, packet, attachments),
            Packet::Retire { .. } | Packet::Absent { .. } => {
                self.woken_for_nothing();
                self.directory.learn(self, packet, attachments)
            }
            Packet::Wake => {
                // If a thread wakes and has something to do, the thread corrects this count.
                self.woken_for_nothing();
                Ok(())
            }
            Packet::Retract { token } => {
                self.woken_for_nothing();
                self.discard_received(token);
                Ok(())
            }
            // The message of the descriptors that were sent ahead has failed.
            Packet::Ahead { count: 0, .. } => {
                self.woken_for_nothing();
                self.inbox().put(packet, attachments)
            }
            Packet::Handshake { name, versions, features } => {
                self.learn_how_it_speaks(versions, features)?;
                if name != ANONYMOUS {
                    self.learn_name(name);
                }
                Ok(())
            }
            Packet::Refuse { reason, versions } => Err(Error::Refused(Refusal::heard(reason, versions))),
            Packet::Connect { .. } => Err(Error::BadPeer("a connect request on an accepted connection")),
            Packet::Accept { lane } => {
                let _ = self.peer.accepted.set(lane);
                Ok(())
            }
            Packet::ReadyBitmap => {
                let attachment = attachments.first().ok_or(MISSING)?;
                // There is one notification area for each link, so the area is mapped whatever the limits.
                let mapping =
                    attachment.map(ready_bitmap::BYTES..=ready_bitmap::BYTES, &self.ledger, OverLimit::Exceed)?;
                self.learn_bitmap(mapping)
            }
            Packet::Open { token, version, cells, .. } => {
                let attachment = attachments.first().ok_or(MISSING)?;
                let sizes = sizes_of_lanes(1, cells).ok_or(Error::BadPeer("a ring of impossible size"))?;
                let ring = attachment.map(sizes, &self.ledger, OverLimit::Refuse)?;
                self.inbox().put_open(version, OpenPacket { token, cells, ring })?;
                // An end that is not open yet has no sleep word in which to arm.
                self.notify_all();
                Ok(())
            }
            _ => self.inbox().put(packet, attachments),
        }
    }

    /// Takes an attachment, sent by the peer before its record, from the inbox. Calls `find`, and receives packets
    /// until `find` returns the attachment. Returns `None` if `find` has returned nothing and there are no more
    /// packets, or after some [`FETCH_LIMIT`] packets.
    pub(crate) fn fetch<T>(&self, find: impl FnMut(&mut Inbox) -> Option<T>) -> Result<Option<T>, Error> {
        self.fetch_among(FETCH_LIMIT, find)
    }

    /// Takes an item without a record from the inbox, sent by the peer before everything else, such as the peer's open
    /// packet. Works like [`Link::fetch`], but if the link has used up its budget of idle wake-ups, receives only as
    /// many packets as [`drain_limit`](Self::drain_limit) allows.
    pub(crate) fn fetch_first<T>(&self, find: impl FnMut(&mut Inbox) -> Option<T>) -> Result<Option<T>, Error> {
        self.fetch_among(if self.is_over_wake_limit() { 0 } else { FETCH_LIMIT }, find)
    }

    /// Takes an attachment from the inbox: calls `find`, and receives packets until `find` returns the attachment.
    /// Returns `None` if there are no more packets, or after about `packets` packets. With 0, receives only as many as
    /// [`drain_limit`](Self::drain_limit) allows.
    fn fetch_among<T>(
        &self,
        packets: usize,
        mut find: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let leader = &self.reader.leader;
        let mut work = 0;
        loop {
            if let Some(found) = find(&mut self.inbox()) {
                return Ok(Some(found));
            }
            let leading = match leader.lead(leader.lock(), Doing::Handling) {
                Ok(leading) => leading,
                Err(turn) if turn.sleeps() && !self.is_readable()? => {
                    drop(turn);
                    return Ok(find(&mut self.inbox()));
                }
                Err(turn) => {
                    drop(leader.follow(turn, Some(FOLLOW)));
                    continue;
                }
            };
            // Another thread may have received the attachment before it stopped leading.
            let mut found = find(&mut self.inbox());
            let received = match found {
                Some(_) => Ok(false),
                None => self.receive_all(|inbox| {
                    found = find(inbox);
                    found.is_some()
                }),
            };
            self.leave(leading);
            if found.is_some() {
                return Ok(found);
            }
            // The received packets may be for other threads; no packet was for this call.
            work += self.drain_limit();
            if !received? || work >= packets {
                return Ok(None);
            }
        }
    }

    /// Sleeps until `done` returns `true`, the link is down, the deadline passes or an interruption comes. The caller
    /// checks which of these happened. The caller has [noted](Interruption::note) before that its thread sleeps here.
    pub(crate) fn park(
        &self,
        deadline: Deadline,
        interruption: Interruption<'_>,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let mut done = || done() || interruption.has_come();
        // Whether packets are unsent, as a follower has found out before it follows the leader.
        let mut is_unsent = None;
        let leader = &self.reader.leader;
        let mut turn = leader.lock();
        loop {
            if done() || self.is_down() || deadline.has_passed() {
                return Ok(());
            }
            turn = match leader.lead(turn, Doing::Sleeping) {
                Ok(leading) => {
                    is_unsent = None;
                    let (interest, slice) = self.until_all_is_sent(deadline);
                    let found = self.sleep(interest, slice, interruption);
                    leading.handle();
                    let received = self.receive_and_leave(leading);
                    let found = found?;
                    received?;
                    if found.hung_up && !found.readable {
                        self.fail(Error::PeerClosed);
                    } else if self.is_over_wake_limit() && !done() {
                        crate::os::pause(deadline.within(PAUSE));
                    }
                    leader.lock()
                }
                // The leader wakes its followers when it stops leading, which it does after each receive. The leader
                // may have gone to sleep before the kernel refused this thread's packet, so this thread tries again to
                // send that packet.
                Err(turn) => match is_unsent.take() {
                    None => {
                        drop(turn);
                        is_unsent = Some(self.unsent().is_some());
                        leader.lock()
                    }
                    Some(is_unsent) => {
                        let limit = is_unsent.then(|| deadline.within(POLL_INTERVAL));
                        leader.follow(turn, limit.or_else(|| deadline.remaining(Instant::now())))
                    }
                },
            };
        }
    }
}

impl Sleepers for Link {
    /// Wakes the followers of this link, so that each checks its condition.
    fn wake_followers(&self) {
        self.reader.leader.wake_followers();
    }

    fn weak_if_socket(&self) -> Option<Weak<dyn Sleepers>> {
        if self.is_local() { None } else { Some(self.weak()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::lane::directory::LaneDirectory;
    use crate::link::io::{Attachments, Io, Local};
    use crate::link::linked;
    use crate::link::packet::PayloadMemory;
    use crate::os::socket::{Readiness, Sent};
    use crate::quota::Amounts;

    /// The transport of a link with one packet from the peer. Like a socket, the transport holds the packet's only
    /// descriptor, the writing end of a pipe, until the packet is removed.
    struct OnePacket {
        incoming: Mutex<Option<Incoming>>,
        reader: std::io::PipeReader,
        /// Whether the writing end of the pipe had been closed when the packet was removed.
        was_closed: Arc<AtomicBool>,
        local: Local,
    }

    impl Io for OnePacket {
        fn send(&self, packet: &Packet, attachments: Attachments<'_>) -> Result<Sent, Error> {
            self.local.send(packet, attachments)
        }

        fn receive(&self, _refusing: bool, _takes: Takes) -> Result<Incoming, Error> {
            Ok(unpoisoned(&self.incoming).take().unwrap_or(Incoming::Empty))
        }

        fn take(&self, _packet: &Packet) -> Result<(), Error> {
            // Another thread gets time to close the descriptor, and must not close it yet.
            let limit = Deadline::after(Duration::from_millis(100));
            let found = crate::os::socket::wait(self.reader.as_fd(), Interest::Readable, limit)?;
            self.was_closed.store(found.hung_up, Ordering::Relaxed);
            Ok(())
        }

        fn check_nothing(&self) -> Result<(), Error> {
            Ok(())
        }

        fn wait(&self, interest: Interest, deadline: Deadline) -> Result<Readiness, Error> {
            self.local.wait(interest, deadline)
        }

        fn memory(&self, name: &str, len: usize) -> Result<crate::shm::Shareable, Error> {
            self.local.memory(name, len)
        }

        fn socket(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            None
        }
    }

    /// Creates a link over which the handles of message 1 have come, but have not been received. Returns the link, its
    /// ledger, and the flag [`OnePacket::was_closed`].
    fn with_one_packet() -> (Arc<Link>, Arc<Ledger>, Arc<AtomicBool>) {
        let (reader, writer) = std::io::pipe().unwrap();
        let ledger = Ledger::new(Some(1 << 20));
        let fd = closing::ReceivedFd::new(writer.into(), &ledger.payer());
        let payload = PayloadMemory::None;
        let packet = Packet::Message { token: 1, message: 1, payload, has_table: false, handles: 1 };
        let attachments = vec![ReceivedAttachment(fd)];
        let incoming = Incoming::Packet { packet, attachments, more_wakes: 0 };
        let was_closed = Arc::new(AtomicBool::new(false));
        let io =
            OnePacket { incoming: Mutex::new(Some(incoming)), reader, was_closed: was_closed.clone(), local: Local };
        (Link::new(1, Box::new(io), ledger.clone(), Arc::<LaneDirectory>::default()), ledger, was_closed)
    }

    /// Shows that a thread waiting for a leader goes on once the leader has found the socket empty, although the leader
    /// never stops leading. The leader may have looked for the first time before the other thread began to wait.
    #[test]
    fn a_thread_waits_until_the_leader_has_found_the_socket_empty() {
        let [link, _peer] = linked();
        let leading = link.try_lead(Doing::Handling).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                link.drain_or_follow(REST_LIMIT, Deadline::after(Duration::from_secs(40))).unwrap();
                tell.send(()).unwrap();
            });
            let begin = Instant::now();
            while link.reader.leader.lock().followers() == 0 && begin.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
            }
            link.receive_all(|_| false).unwrap();
            link.wake_followers();
            assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
            link.receive_all(|_| false).unwrap();
            link.wake_followers();
            assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(()));
            link.leave(leading);
        });
    }

    /// Shows that a thread does not wait for a leader beyond its deadline, although the leader never finds the socket
    /// empty and never stops leading.
    #[test]
    fn a_thread_does_not_wait_for_a_leader_beyond_its_deadline() {
        let [link, _peer] = linked();
        let leading = link.try_lead(Doing::Handling).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let drained = link.drain_or_follow(REST_LIMIT, Deadline::after(Duration::from_millis(1)));
                assert_eq!(drained, Err(NOT_NOW));
                tell.send(()).unwrap();
            });
            assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(()));
            link.leave(leading);
        });
    }

    /// Shows that a look for an attachment ends if another process with a copy of the socket takes the packet for which
    /// the look waits. The leader, which the test plays, was about to receive the packet, and sleeps on.
    #[test]
    fn a_look_ends_if_another_process_takes_the_packet() {
        let [link, peer] = linked();
        link.drain_once();
        let leading = link.try_lead(Doing::Sleeping).unwrap();
        assert_eq!(peer.try_send(&Packet::Wake, Attachments::NOTHING), Ok(true));
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| tell.send(link.fetch(|_| None::<()>)).unwrap());
            let begin = Instant::now();
            while link.reader.leader.lock().followers() == 0 && begin.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
            }
            crate::os::socket::take(link.io.socket().unwrap(), &mut [0; 64]).unwrap();
            let found = told.recv_timeout(Duration::from_secs(20));
            link.leave(leading);
            assert_eq!(found, Ok(Ok(None)));
        });
    }

    #[test]
    fn descriptors_over_a_limit_are_closed_after_their_packet_was_removed() {
        let (link, ledger, was_closed) = with_one_packet();
        let _all = ledger.charge_anyway(Amounts::of(crate::quota::Resource::Descriptors, 1 << 20));
        link.drain(false).unwrap();
        assert!(!was_closed.load(Ordering::Relaxed));
        let lost = link.inbox().take_handles(1, 1, 1).unwrap();
        assert_eq!((lost.sent, lost.descriptors.len()), (1, 0));
    }

    #[test]
    fn no_other_thread_gets_handles_before_their_packet_was_removed() {
        let (link, _ledger, was_closed) = with_one_packet();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let take = || link.inbox().take_handles(1, 1, 1);
                while take().map(drop).is_none() {
                    std::thread::yield_now();
                }
            });
            link.drain(false).unwrap();
        });
        assert!(!was_closed.load(Ordering::Relaxed));
    }
}
