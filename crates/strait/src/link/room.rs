//! Room for packets: what keeps a packet from being sent, and how to wait for that.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::packet::Packet;
use super::{Attachments, Leader, Link, MOMENT};
use crate::blocked_on::{self, BlockedOn, POLL_INTERVAL, PollBackoff, Subject};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::socket::{Interest, Sent};
use crate::sync::unpoisoned;
use crate::wake::Direction;
use crate::wake::interrupt::Interruption;

/// The reason why a packet cannot be sent over a link now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketBlockedOn {
    /// The socket is full. It becomes writable once the peer has received most of what is in it.
    Room,
    /// The kernel refuses the packet: it lacks memory, or the user has too many descriptors in flight. No event
    /// announces when that is over.
    Kernel,
}

impl SocketBlockedOn {
    fn blocked_on(self, link: Weak<Link>) -> BlockedOn {
        match self {
            Self::Room => BlockedOn::Socket(Subject::of(link), Instant::now()),
            Self::Kernel => BlockedOn::Kernel(Subject::of(link), Instant::now()),
        }
    }

    /// Returns the socket events for which a sender sleeps that is blocked for this reason.
    fn interest(self) -> Interest {
        match self {
            Self::Room => Interest::Any,
            Self::Kernel => Interest::Readable,
        }
    }

    /// Returns for how long a blocked sender sleeps at most before it tries again.
    fn slice(self, backoff: &mut PollBackoff) -> Duration {
        match self {
            Self::Room => backoff.next(),
            Self::Kernel => POLL_INTERVAL,
        }
    }
}

impl Link {
    /// Sends the packets left unsent before, and then this packet, if possible now. Returns `None` if the packet was
    /// sent, and otherwise the reason why not.
    fn post(&self, packet: &Packet, attachments: Attachments<'_>) -> Result<Option<SocketBlockedOn>, Error> {
        // Packets go out in order. A packet that revokes earlier ones would otherwise be taken to mean those before it.
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

    /// Sends a packet if that is possible now, and returns `true`. Otherwise returns `false`, and [notes](blocked_on::note)
    /// what the attempt was blocked on.
    pub(crate) fn try_send(&self, packet: &Packet, attachments: Attachments<'_>) -> Result<bool, Error> {
        let blocked = self.post(packet, attachments)?;
        if let Some(blocked) = blocked {
            blocked_on::note(blocked.blocked_on(self.weak()));
        }
        Ok(blocked.is_none())
    }

    /// Sends a packet, and waits until the deadline if it is blocked.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] or [`Error::TimedOut`] at the deadline; [`Error::Interrupted`]; [`Error::PeerClosed`];
    /// errors of the kernel.
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

    /// Waits until a packet that was blocked on `lack` is worth another attempt, or until the deadline. Receives what
    /// arrives meanwhile, because two processes may each wait for the other to take what is in flight between them.
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
        let leads = self.try_lead();
        let found = self.sleep(blocked.interest(), slice, interruption);
        let received = if leads { self.receive_and_leave() } else { Ok(()) };
        let found = found?;
        if found.hung_up {
            return Err(Error::PeerClosed);
        }
        if !leads && found.readable {
            self.let_the_leader_receive();
        }
        received
    }

    /// Waits until the leader, which was woken together with this thread, has received what is in the socket, for at
    /// most [`MOMENT`].
    fn let_the_leader_receive(&self) {
        let leader = unpoisoned(&self.leader);
        if *leader != Leader::None {
            drop(self.follow(leader, Some(MOMENT)));
        }
    }

    /// Sends the packets left unsent before. Returns `None` if none are left, and otherwise the reason why the first of
    /// them cannot be sent.
    fn send_what_is_left(&self) -> Result<Option<SocketBlockedOn>, Error> {
        let mut later = unpoisoned(&self.later);
        while let Some(packet) = later.packets.first().or(later.wake.then_some(&Packet::Wake)) {
            match self.io.send(packet, Attachments::NOTHING)? {
                Sent::Done => {
                    later.sent_one();
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

    /// Tries to send the packets left unsent before. Returns `None` if none are left or the link is down, and otherwise
    /// the reason why the first of them cannot be sent.
    pub(crate) fn unsent(&self) -> Option<SocketBlockedOn> {
        if self.is_local() || self.is_down() {
            return None;
        }
        self.send_what_is_left().unwrap_or(Some(SocketBlockedOn::Kernel))
    }

    /// Returns for which events, and until when, the leader sleeps. While packets are left unsent the leader wakes up
    /// early to send them, because the peer may wait for them.
    pub(super) fn until_all_is_sent(&self, deadline: Deadline) -> (Interest, Deadline) {
        match self.unsent() {
            None => (Interest::Readable, deadline),
            Some(blocked) => (blocked.interest(), Deadline::after(deadline.within(POLL_INTERVAL))),
        }
    }

    /// Returns whether the socket has room for a packet now, or the peer has hung up.
    pub(crate) fn is_writable(&self) -> bool {
        self.io.wait(Interest::Any, Deadline::NOW).is_ok_and(|found| found.writable || found.hung_up)
    }
}
