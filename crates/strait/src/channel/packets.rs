//! Sending over the link what a message needs the kernel for, and waiting until it is known which link that is.

use std::time::Duration;

use super::End;
use super::tx::Tx;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::fault;
use crate::interrupt::Interruption;
use crate::lane::Lane;
use crate::link::Parcel;
use crate::link::packet::Packet;
use crate::lock::Guard;
use crate::ring::{Ended, Kind};

impl End {
    /// Sends a packet that what is staged refers to, made with the token of the ring; waits for room in the socket, with the
    /// lock kept meanwhile. If it cannot be sent the record staged last is forgotten.
    pub(super) fn send_packet(
        &self,
        tx: &mut Guard<'_, Tx>,
        packet: impl FnOnce(u128) -> Packet,
        parcel: Parcel<'_>,
        handles: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        tx.keep_until(deadline);
        let sent = self.send_packet_kept(tx, packet, parcel, handles, deadline);
        tx.kept_until(deadline);
        self.kept_no_more();
        match sent {
            Ok(()) => tx.note_sent(),
            Err(_) => {
                tx.producer.unstage_last();
                self.wanted_else(deadline);
            }
        }
        // Whoever passed the other end on may be gone at once.
        if let (Err(Error::PeerClosed), Some(ended @ Ended(Some(Kind::Frozen)))) = (sent, tx.producer.ended()) {
            self.after_end(tx, ended, deadline)?;
            tx.moved = true;
            return Err(Error::WouldBlock);
        }
        if sent == Err(Error::PeerClosed) && tx.lane.is_down() {
            tx.end_with(Error::PeerClosed);
        }
        sent
    }

    fn send_packet_kept(
        &self,
        tx: &Guard<'_, Tx>,
        packet: impl FnOnce(u128) -> Packet,
        parcel: Parcel<'_>,
        handles: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        // What needs a socket waits until it is known to which; before that the ring may get another token.
        wait_for_hand_over(&tx.lane, deadline, self.interruption())?;
        let link = tx.lane.link();
        let mut pause = Pause::new(self.interruption());
        while !link.may_send(handles) {
            // A dead process takes none.
            link.probe_if_due();
            if link.is_down() {
                return Err(link.reason());
            }
            pause.until(deadline)?;
        }
        link.send(&packet(tx.lane.token_out()), parcel, deadline, self.interruption())
    }

    /// Waits until it is known to which process the other end goes, with the lock kept meanwhile.
    pub(super) fn wait_for_hand_over(&self, tx: &Guard<'_, Tx>, deadline: Deadline) -> Result<(), Error> {
        if !tx.lane.is_pending() && !tx.lane.is_abandoned() {
            return Ok(());
        }
        tx.keep_until(deadline);
        let waited = wait_for_hand_over(&tx.lane, deadline, self.interruption());
        tx.kept_until(deadline);
        self.kept_no_more();
        if waited.is_err() {
            self.wanted_else(deadline);
        }
        match waited {
            // The other end went on elsewhere, and whoever passed it on is gone: what comes next follows it.
            Err(Error::PeerClosed) if tx.has_frozen() => Ok(()),
            waited => waited,
        }
    }
}

/// Waits until it is known to which process the other end of a lane goes. An error if it comes to nobody.
pub(super) fn wait_for_hand_over(lane: &Lane, deadline: Deadline, interruption: Interruption<'_>) -> Result<(), Error> {
    let mut pause = Pause::new(interruption);
    while lane.is_pending() {
        fault::point("between two looks at an end that is on its way");
        lane.probe();
        if lane.is_down() {
            return Err(lane.reason());
        }
        pause.until(deadline)?;
    }
    // The other end may have been the first to give it up: then nothing more is sent, although there is a way to it.
    if lane.is_abandoned() { Err(lane.reason()) } else { Ok(()) }
}

/// Waiting for what nobody will tell of, and what takes microseconds as a rule.
pub(super) struct Pause<'a> {
    next: Duration,
    interruption: Interruption<'a>,
}

impl<'a> Pause<'a> {
    pub(super) fn new(interruption: Interruption<'a>) -> Self {
        Self { next: Duration::from_micros(10), interruption }
    }

    /// Pauses once; an error if the time is up, or there was an interruption.
    pub(super) fn until(&mut self, deadline: Deadline) -> Result<(), Error> {
        if deadline.is_now() {
            return Err(Error::WouldBlock);
        }
        if deadline.has_passed() {
            return Err(Error::TimedOut);
        }
        self.interruption.check()?;
        std::thread::sleep(deadline.within(self.next));
        self.next = (self.next * 2).min(Duration::from_millis(1));
        Ok(())
    }
}
