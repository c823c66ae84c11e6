//! Room for packets: the reasons that keep a packet from being sent, and how to wait for their end.

use std::collections::VecDeque;
use std::sync::Weak;
use std::time::{Duration, Instant};

use super::packet::Packet;
use super::reader::MOMENT;
use super::{Attachments, Link, peers};
use crate::blocked_on::{self, BlockedOn, POLL_INTERVAL, PollBackoff, Subject};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::os::socket::{Interest, Sent};
use crate::sync::unpoisoned;
use crate::wake::Direction;
use crate::wake::interrupt::Interruption;
use crate::wake::leader::Doing;

/// The longest wait of a call for sending a first packet of a link.
const FIRST: Duration = Duration::from_millis(100);

/// The reason why a packet cannot be sent over a link now: the socket is full, or the kernel refuses the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketBlockedOn {
    /// The packet cannot be sent because the socket is full. The socket becomes writable once the peer has received
    /// most of the packets in it.
    Room,
    /// The packet cannot be sent because the kernel refuses it: the kernel lacks memory, or the user has too many
    /// descriptors in flight. No event reports when that is over.
    Kernel,
}

impl SocketBlockedOn {
    fn blocked_on(self, link: Weak<Link>) -> BlockedOn {
        match self {
            Self::Room => BlockedOn::Socket(Subject::of(link), Instant::now()),
            Self::Kernel => BlockedOn::Unreported(Subject::of(link), Instant::now()),
        }
    }

    /// Returns the socket events for the sleep of a sender blocked for this reason: readable, or readable and writable.
    fn interest(self) -> Interest {
        match self {
            Self::Room => Interest::Any,
            Self::Kernel => Interest::Readable,
        }
    }

    /// Returns the longest sleep of a sender blocked for this reason, before the next attempt. `backoff` lets that time
    /// grow while the socket is full.
    fn slice(self, backoff: &mut PollBackoff) -> Duration {
        match self {
            Self::Room => backoff.next(),
            Self::Kernel => POLL_INTERVAL,
        }
    }
}

/// Packets that could not be sent over a link yet. The link sends them before any other packet.
#[derive(Default)]
pub(super) struct Unsent {
    /// The unsent packets in order, without the wake packet. Each belongs to a lane or an attachment that this process
    /// has announced over the link before. While packets are unsent, no further lane is made for the peer and nothing
    /// else is sent, so their number does not grow with the number of calls.
    packets: VecDeque<Packet>,
    /// Whether a wake packet to the peer is still to be sent, after `packets`. A flag and no entry of `packets`, so
    /// that storing the wake packet needs no memory.
    wake: bool,
}

impl Unsent {
    /// Removes the first unsent packet, which the link has just sent. If no other packet is unsent, this is the wake
    /// packet.
    fn sent_one(&mut self) {
        if self.packets.is_empty() {
            self.wake = false;
        } else {
            self.packets.pop_front();
        }
    }
}

impl Link {
    /// Sends the packets that are still unsent, and then `packet`, without blocking. Returns `None` if `packet` was
    /// sent. Otherwise returns the reason why no more can be sent now; `packet` was not sent then. Fails with
    /// [`Error::PeerClosed`] if the peer has hung up; the link is then down.
    fn post(&self, packet: &Packet, attachments: Attachments<'_>) -> Result<Option<SocketBlockedOn>, Error> {
        // Packets go out in order. If an unsent packet that revokes earlier packets went out after `packet`, the
        // receiver would revoke `packet` too.
        if let Some(blocked) = self.send_what_is_left()? {
            return Ok(Some(blocked));
        }
        match self.io.send(packet, attachments)? {
            Sent::Done => {
                self.posted();
                Ok(None)
            }
            Sent::Full => Ok(Some(SocketBlockedOn::Room)),
            Sent::Refused => Ok(Some(SocketBlockedOn::Kernel)),
            Sent::HungUp => {
                self.fail(Error::PeerClosed);
                Err(Error::PeerClosed)
            }
        }
    }

    /// Sends a packet without blocking, and returns `true`. If the packet cannot be sent now, returns `false` and
    /// [notes](blocked_on::note) the reason for this thread. Fails with [`Error::PeerClosed`] if the peer has hung up.
    pub(crate) fn try_send(&self, packet: &Packet, attachments: Attachments<'_>) -> Result<bool, Error> {
        let blocked = self.post(packet, attachments)?;
        if let Some(blocked) = blocked {
            blocked_on::note(blocked.blocked_on(self.weak()));
        }
        Ok(blocked.is_none())
    }

    /// Sends a packet. While the packet is blocked, waits until the deadline.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with [`Deadline::NOW`]; [`Error::TimedOut`] at any other deadline; [`Error::Interrupted`];
    /// [`Error::PeerClosed`]; errors of the kernel.
    pub(crate) fn send(
        &self,
        packet: &Packet,
        attachments: Attachments<'_>,
        deadline: Deadline,
        interruption: Interruption<'_>,
    ) -> Result<(), Error> {
        let mut backoff = PollBackoff::default();
        while let Some(blocked) = self.post(packet, attachments)? {
            if deadline.is_now() {
                blocked_on::note(blocked.blocked_on(self.weak()));
                return Err(Error::WouldBlock);
            }
            if deadline.has_passed() {
                return Err(Error::TimedOut);
            }
            interruption.check()?;
            self.wait_for(blocked, &mut backoff, deadline, interruption)?;
        }
        Ok(())
    }

    /// Waits until another attempt to send a packet is worthwhile, or until the deadline. `blocked` is the reason why
    /// the last attempt failed. Receives packets meanwhile, because two processes may each wait for the other to
    /// receive packets.
    pub(crate) fn wait_for(
        &self,
        blocked: SocketBlockedOn,
        backoff: &mut PollBackoff,
        deadline: Deadline,
        interruption: Interruption<'_>,
    ) -> Result<(), Error> {
        let slice = Deadline::after(deadline.within(blocked.slice(backoff)));
        // From here on an interruption ends the sleep.
        let _noted = interruption.note(Direction::Sending, self, None);
        let leading = self.try_lead(Doing::Sleeping);
        let found = self.sleep(blocked.interest(), slice, interruption);
        let Some(leading) = leading else {
            let found = found?;
            if found.readable && !found.hung_up {
                // The leader was woken together with this thread, and receives the packets.
                let leader = &self.reader.leader;
                drop(leader.follow(leader.lock(), Some(MOMENT)));
            }
            return if found.hung_up { Err(Error::PeerClosed) } else { Ok(()) };
        };
        leading.handle();
        let received = self.receive_and_leave(leading);
        if found?.hung_up { Err(Error::PeerClosed) } else { received }
    }

    /// Sends the packets that are still unsent, in order and without blocking. Returns `None` if none are left or the
    /// peer has hung up. Otherwise returns the reason why the first of those left cannot be sent now.
    fn send_what_is_left(&self) -> Result<Option<SocketBlockedOn>, Error> {
        let mut unsent = unpoisoned(&self.unsent);
        while let Some(packet) = unsent.packets.front().or(unsent.wake.then_some(&Packet::Wake)) {
            match self.io.send(packet, Attachments::NOTHING)? {
                Sent::Done => {
                    unsent.sent_one();
                    self.posted();
                }
                Sent::Full => return Ok(Some(SocketBlockedOn::Room)),
                Sent::Refused => return Ok(Some(SocketBlockedOn::Kernel)),
                // The next send or receive finds the hang-up, without the locks that are held here.
                Sent::HungUp => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Sends the packets that are still unsent, in order and without blocking. Returns `None` if none are left or the
    /// link is down. Otherwise returns the reason why the first of those left cannot be sent now.
    pub(crate) fn unsent(&self) -> Option<SocketBlockedOn> {
        if self.is_local() || self.is_down() {
            return None;
        }
        self.send_what_is_left().unwrap_or(Some(SocketBlockedOn::Kernel))
    }

    /// Returns the socket events for the sleep of the leader (the receiving thread), and the time of the end of the
    /// sleep. If packets are still unsent, the leader wakes up early to send them, because the peer may wait for them.
    pub(super) fn until_all_is_sent(&self, deadline: Deadline) -> (Interest, Deadline) {
        match self.unsent() {
            None => (Interest::Readable, deadline),
            Some(blocked) => (blocked.interest(), Deadline::after(deadline.within(POLL_INTERVAL))),
        }
    }

    /// Sends the packets that are still unsent, in order and without blocking.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if some are left. The reason is [noted](blocked_on::note) for this thread.
    pub(crate) fn check_all_is_sent(&self) -> Result<(), Error> {
        let Some(blocked) = self.unsent() else { return Ok(()) };
        blocked_on::note(blocked.blocked_on(self.weak()));
        Err(Error::WouldBlock)
    }

    /// Returns whether a packet may be sent into the socket now. Also `true` if the peer has hung up.
    pub(crate) fn is_writable(&self) -> bool {
        self.io.wait(Interest::Any, Deadline::NOW).is_ok_and(|found| found.writable || found.hung_up)
    }

    /// Sends a packet without attachments now or, if that is not possible, before the next packet of the link. Does not
    /// block. Sends nothing on a local link and on a link that is down.
    pub(crate) fn send_sooner_or_later(&self, packet: Packet) {
        let sent = self.is_local() || matches!(self.try_send(&packet, Attachments::NOTHING), Ok(true));
        if !sent && !self.is_down() {
            unpoisoned(&self.unsent).packets.push_back(packet);
        }
    }

    /// Sends one of the first packets of a link, waiting for at most [`FIRST`]. A new socket has room for these
    /// packets; only the kernel may lack memory for a moment.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the packet could not be sent within [`FIRST`]; otherwise those of [`Link::send`].
    pub(crate) fn send_first(&self, packet: &Packet, attachments: Attachments<'_>) -> Result<(), Error> {
        match self.send(packet, attachments, Deadline::after(FIRST), Interruption::NONE) {
            Err(Error::TimedOut) => Err(Error::WouldBlock),
            sent => sent,
        }
    }

    /// Sends a wake packet, for threads asleep on the socket in the peer's process. If the socket is full, no packet is
    /// needed: a full socket is readable, so no thread sleeps on it.
    ///
    /// Returns `false` if the kernel refused the packet. The link then tries again before it sends anything else,
    /// whenever a thread of this process is about to sleep on this link, and in later calls of the library: perhaps
    /// nothing else would wake the peer.
    pub(crate) fn wake(&self) -> bool {
        match self.io.send(&Packet::Wake, Attachments::NOTHING) {
            Ok(Sent::Done | Sent::Full) => true,
            Ok(Sent::Refused) | Err(_) => {
                unpoisoned(&self.unsent).wake = true;
                // An event loop may not look at its wait set before the peer answers, and this thread may never sleep
                // on this link.
                self.wake_sets();
                deferred::try_later("wake-ups", peers::send_all_that_is_unsent);
                false
            }
            Ok(Sent::HungUp) => {
                self.fail(Error::PeerClosed);
                true
            }
        }
    }
}
