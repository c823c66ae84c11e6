//! Receiving messages, claiming the ends in them, and learning that the other end is closed or dead.

use super::World;
use crate::breakage::Breakage;
use crate::end::{Doing, End, EndId, Message, Reading};
use crate::lane::{LaneId, Record, Seal, TransferState};
use crate::met::Met;
use crate::state::{Process, Wrong};

/// The next item of a ring.
pub(super) enum Taken {
    Message(Message),
    Next,
    Mark(LaneId),
    /// Nothing: the ring is empty and open.
    Nothing,
    /// The end of the ring: the other end has closed, or no process will write here.
    End,
}

impl World<'_> {
    /// Receives for an end: first from its backlog, then from the ring. After that, continues behind the seal, and
    /// then looks whether the peer lives.
    pub(super) fn receive(&mut self, process: Process, id: EndId) {
        let side = id.side();
        let end = self.state.owned_mut(process, id);
        if !end.backlog.is_empty() {
            let message = end.backlog.remove(0);
            return self.deliver(process, id, message);
        }
        if end.reading == Reading::Ended || end.dead {
            return self.peer_closed(process, id);
        }
        let rx = end.rx;
        let ring = &mut self.state.lane_mut(rx).rings[1 - side];
        if !ring.records.is_empty() {
            let record = ring.records.remove(0);
            self.made_room(process, id, rx);
            if let Record::Message(message) = record {
                self.deliver(process, id, message);
            }
            return;
        }
        let seal = ring.seal;
        match seal {
            Some(Seal::Moved(lane)) => self.state.owned_mut(process, id).rx = lane,
            Some(_) => self.peer_closed(process, id),
            None if self.broken(Breakage::AbandonWithoutWord) => self.peer_closed(process, id),
            None => {
                self.abandon(rx, side);
                // If the hand-over came first, the lane has another peer now.
                if self.state.alone(rx, side) {
                    self.peer_closed(process, id);
                }
            }
        }
    }

    /// Gives a message to the user, and the end in the message to the receiving process.
    fn deliver(&mut self, process: Process, id: EndId, message: Message) {
        let ledger = &mut self.state.ledger[id.index()];
        if message.number != ledger.received {
            self.state.wrong = Some(Wrong::Order(id));
        }
        ledger.received = message.number + 1;
        if let Some(end) = message.carried {
            let end = self.claim(*end);
            self.state.give(process, end);
        }
    }

    /// Reports *peer closed* to the user, and checks that everything was received before.
    fn peer_closed(&mut self, process: Process, id: EndId) {
        let [mine, other] = [id, id.other()].map(|id| self.state.ledger[id.index()]);
        let cut = self.state.cut;
        let end = self.state.owned_mut(process, id);
        end.reading = Reading::Closed;
        // A dead end can read only its backlog, and its other end is lost.
        if !end.dead && !cut && mine.received != other.written {
            self.state.wrong = Some(Wrong::ClosedEarly(id));
        }
    }

    /// Claims an end taken out of a message, and returns the end; as dead if its lane was abandoned.
    pub(super) fn claim(&mut self, mut end: End) -> End {
        if !std::mem::take(&mut end.in_flight) {
            return end;
        }
        let lane = self.state.lane_mut(end.tx);
        match lane.transfer {
            TransferState::Pending => self.seen.note(Met::ClaimedFirst),
            TransferState::HandedOver => {}
            TransferState::Abandoned => {
                self.seen.note(Met::ClaimedDead);
                end.dead = true;
                end.tx_closed = true;
                return end;
            }
            TransferState::Claimed | TransferState::Cancelled => self.state.wrong = Some(Wrong::OwnedTwice(end.id)),
        }
        self.state.lane_mut(end.tx).transfer = TransferState::Claimed;
        end
    }

    /// Takes the next item for an end (the `item`-th of [`End::items`]), and returns the item. While the end is being
    /// closed, its backlog comes first. The returned `bool` is true if nothing is left to read.
    pub(super) fn take_next(&mut self, process: Process, id: EndId, item: usize) -> (Taken, bool) {
        let end = self.state.owned_mut(process, id).item_mut(item).expect("it is read");
        if end.doing == Doing::ClosingIn && !end.backlog.is_empty() {
            return (Taken::Message(end.backlog.remove(0)), false);
        }
        if end.reading != Reading::Open || end.dead {
            return (Taken::End, true);
        }
        let (rx, side) = (end.rx, end.id.side());
        let lane = self.state.lane_mut(rx);
        let abandoned = lane.transfer == TransferState::Abandoned;
        let ring = &mut lane.rings[1 - side];
        if !ring.records.is_empty() {
            return match ring.records.remove(0) {
                Record::Message(message) => (Taken::Message(message), false),
                Record::Next => {
                    self.seen.note(Met::NextDrained);
                    (Taken::Next, false)
                }
            };
        }
        match ring.seal {
            Some(Seal::Moved(lane)) => (Taken::Mark(lane), false),
            Some(_) => (Taken::End, true),
            None if abandoned => (Taken::End, true),
            None => (Taken::Nothing, true),
        }
    }
}
