//! Publishing, and the two compare-and-swaps on the header at the end of a ring.

use super::World;
use crate::breakage::Breakage;
use crate::end::{EndId, Message};
use crate::lane::{Half, LaneId, Record, Seal};
use crate::met::Met;
use crate::state::{Process, Task};

/// A producer's input to a ring.
pub(super) enum Put {
    Record(Record),
    Seal(Seal),
}

impl World<'_> {
    /// Publishes a record or a seal in the ring written by the end `id`, by compare-and-swap. Afterwards the process
    /// will look at the sleep word of the consumer. Returns the seal if the ring has ended.
    pub(super) fn put(&mut self, process: Process, id: EndId, lane: LaneId, what: Put) -> Result<(), Seal> {
        let side = id.side();
        let early = self.state.lane(lane).peer(side);
        let ring = &mut self.state.lane_mut(lane).rings[side];
        if let Some(seal) = ring.seal {
            return Err(seal);
        }
        match what {
            Put::Record(record) => ring.records.push(record),
            Put::Seal(seal) => ring.seal = Some(seal),
        }
        if self.configuration.sleeps(id.other(), Half::Reader) {
            let to = early.filter(|_| self.broken(Breakage::WakeBeforeWord));
            self.add_task(process, Task::TakeWord(lane, side, Half::Reader, to));
        }
        Ok(())
    }

    /// Seals a ring that the end `id` has read to its end, by compare-and-swap.
    pub(super) fn seal(&mut self, process: Process, id: EndId, lane: LaneId, seal: Seal) {
        let ring = &mut self.state.lane_mut(lane).rings[1 - id.side()];
        assert!(ring.records.is_empty() && ring.seal.is_none(), "the header is empty");
        ring.seal = Some(seal);
        if !self.broken(Breakage::NoWakeOnSeal) {
            self.made_room(process, id, lane);
        }
    }

    /// Notes that the end `id` has read from a ring or sealed it: the process will look whether the producer waits
    /// for room.
    pub(super) fn made_room(&mut self, process: Process, id: EndId, lane: LaneId) {
        if self.configuration.sleeps(id.other(), Half::Writer) {
            self.add_task(process, Task::TakeWord(lane, id.other().side(), Half::Writer, None));
        }
    }

    /// Lets an end whose outgoing ring is frozen continue to write in the new lane.
    pub(super) fn follow(&mut self, process: Process, id: EndId, lane: LaneId) {
        let both = self.broken(Breakage::FollowWithoutMark);
        let end = self.state.owned_mut(process, id);
        end.tx = lane;
        if both {
            end.rx = lane;
        }
    }

    /// Publishes a message. Returns `false` if nothing was published: the end continued in a new lane, or learned
    /// that its peer is closed or dead.
    pub(super) fn write(&mut self, process: Process, id: EndId) -> bool {
        let end = self.state.owned(process, id).expect("it writes");
        let (tx, side) = (end.tx, id.side());
        let sealed = self.state.lane(tx).rings[side].seal.is_some() && !self.broken(Breakage::DeadBeforeSeal);
        if self.state.alone(tx, side) && !sealed {
            self.abandon(tx, side);
            // If the hand-over came first, the lane has another peer now.
            let alone = self.state.alone(tx, side);
            self.state.owned_mut(process, id).tx_closed |= alone;
            return false;
        }
        let message = Message { number: self.state.ledger[id.index()].written, carried: None };
        match self.put(process, id, tx, Put::Record(Record::Message(message))) {
            Ok(()) => {
                self.state.ledger[id.index()].written += 1;
                true
            }
            Err(Seal::Frozen(lane)) => {
                self.seen.note(Met::PublishFrozen);
                self.follow(process, id, lane);
                false
            }
            Err(_) => {
                self.state.owned_mut(process, id).tx_closed = true;
                false
            }
        }
    }

    /// Commits the record *next*, so that the end continues to write in a larger ring.
    pub(super) fn grow(&mut self, process: Process, id: EndId) {
        let tx = self.state.owned(process, id).expect("it grows").tx;
        match self.put(process, id, tx, Put::Record(Record::Next)) {
            Ok(()) => self.state.ledger[id.index()].grows -= 1,
            Err(Seal::Frozen(lane)) => {
                self.seen.note(Met::NextFrozen);
                self.follow(process, id, lane);
            }
            Err(_) => self.state.owned_mut(process, id).tx_closed = true,
        }
    }
}
