//! Room for packets: what keeps one from being sent, and waiting for that.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::packet::Packet;
use super::{Leader, Link, MOMENT, Parcel};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::socket::{Interest, Sent};
use crate::sync::unpoisoned;
use crate::wake::Direction;
use crate::wake::interrupt::Interruption;
use crate::wake::want::{self, LOOK, Looks, Want};

/// What keeps a packet from being sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// The socket is full: it becomes writable once the peer has received most of what is in it.
    Room,
    /// The kernel has no memory, or the user has too many descriptors under way: no event tells when that is over.
    Kernel,
}

impl Lack {
    fn want(self, link: Weak<Link>) -> Want {
        match self {
            Self::Room => Want::Socket(link, Instant::now()),
            Self::Kernel => Want::Kernel(link, Instant::now()),
        }
    }

    /// For what, besides packets to receive, a thread sleeps that lacks this.
    fn interest(self) -> Interest {
        match self {
            Self::Room => Interest::Any,
            Self::Kernel => Interest::Readable,
        }
    }

    /// How long a thread sleeps at most that lacks this.
    fn slice(self, looks: &mut Looks) -> Duration {
        match self {
            Self::Room => looks.next(),
            Self::Kernel => LOOK,
        }
    }
}

impl Link {
    /// Sends a packet if that can be done now, and says what it lacks if not.
    fn post(&self, packet: &Packet, parcel: Parcel<'_>) -> Result<Option<Lack>, Error> {
        // In their order, or one that says that something came to nothing would be taken to mean what came before it.
        if let Some(lack) = self.send_what_is_left()? {
            return Ok(Some(lack));
        }
        match self.io.send(packet, parcel)? {
            Sent::Done => {
                self.posted();
                Ok(None)
            }
            Sent::Full => Ok(Some(Lack::Room)),
            Sent::Refused => Ok(Some(Lack::Kernel)),
            Sent::HungUp => {
                self.fail(Error::PeerClosed);
                Err(Error::PeerClosed)
            }
        }
    }

    /// Sends a packet if that can be done now; false if not, and what it lacks is [noted](want::note).
    pub(crate) fn try_send(&self, packet: &Packet, parcel: Parcel<'_>) -> Result<bool, Error> {
        let lack = self.post(packet, parcel)?;
        if let Some(lack) = lack {
            want::note(lack.want(self.weak()));
        }
        Ok(lack.is_none())
    }

    /// Sends a packet; until the deadline waits for what it lacks.
    pub(crate) fn send(
        &self,
        packet: &Packet,
        parcel: Parcel<'_>,
        deadline: Deadline,
        interruption: Interruption<'_>,
    ) -> Result<(), Error> {
        let mut looks = Looks::default();
        while let Some(lack) = self.post(packet, parcel)? {
            if deadline.is_now() {
                want::note(lack.want(self.weak()));
                return Err(Error::WouldBlock);
            }
            if deadline.has_passed() {
                return Err(Error::TimedOut);
            }
            interruption.check()?;
            self.wait_for(lack, &mut looks, deadline, interruption)?;
        }
        Ok(())
    }

    /// Waits until a packet that lacked this is worth another try, or until the deadline. Meanwhile takes in what arrives: two
    /// processes may wait for each other to take what is under way between them.
    pub(crate) fn wait_for(
        &self,
        lack: Lack,
        looks: &mut Looks,
        deadline: Deadline,
        interruption: Interruption<'_>,
    ) -> Result<(), Error> {
        let slice = Deadline::after(deadline.within(lack.slice(looks)));
        // From here on an interruption ends the sleep.
        let _noted = interruption.note(Direction::Sending, self, None);
        let leads = self.try_lead();
        let found = self.sleep(lack.interest(), slice, interruption);
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

    /// Gives the leader, which has been woken as this thread was, a moment to receive what has come.
    fn let_the_leader_receive(&self) {
        let leader = unpoisoned(&self.leader);
        if *leader != Leader::None {
            drop(self.follow(leader, Some(MOMENT)));
        }
    }

    /// Sends the packets that were left to be sent later. Returns what keeps the first of them from being sent, if one is left.
    fn send_what_is_left(&self) -> Result<Option<Lack>, Error> {
        let mut later = unpoisoned(&self.later);
        while let Some(packet) = later.packets.first().or(later.wake.then_some(&Packet::Wake)) {
            match self.io.send(packet, Parcel::NOTHING)? {
                Sent::Done => {
                    later.sent_one();
                    self.posted();
                }
                Sent::Full => return Ok(Some(Lack::Room)),
                Sent::Refused => return Ok(Some(Lack::Kernel)),
                // Whoever sends or receives next finds that, without the locks that are held here.
                Sent::HungUp => return Ok(None),
            }
        }
        Ok(None)
    }

    /// What keeps packets that were left to be sent later from being sent still, if any are left.
    pub(crate) fn unsent(&self) -> Option<Lack> {
        if self.is_local() || self.is_down() {
            return None;
        }
        self.send_what_is_left().unwrap_or(Some(Lack::Kernel))
    }

    /// For what, and until when, the leader sleeps: as long as something is left to be sent, somebody may sleep who waits for it.
    pub(super) fn until_all_is_sent(&self, deadline: Deadline) -> (Interest, Deadline) {
        match self.unsent() {
            None => (Interest::Readable, deadline),
            Some(lack) => (lack.interest(), Deadline::after(deadline.within(LOOK))),
        }
    }

    /// Whether a packet that found the socket full may find room now.
    pub(crate) fn is_writable(&self) -> bool {
        self.io.wait(Interest::Any, Deadline::NOW).is_ok_and(|found| found.writable || found.hung_up)
    }
}
