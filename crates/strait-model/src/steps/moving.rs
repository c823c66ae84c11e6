//! Sending an end: make, mark, drain and freeze, do so with each end in the backlog, commit, hand over; or call off.

use super::World;
use super::receiving::Taken;
use super::writing::Put;
use crate::action::can_carry;
use crate::breakage::Breakage;
use crate::end::{Doing, End, EndId, Message, Move, Phase, Reading};
use crate::lane::{Half, LaneId, Record, Seal, TransferState};
use crate::met::Met;
use crate::state::{Process, Task};

/// The result of reading an incoming ring to its end.
enum Drained {
    /// More is left to read in the ring.
    Partly,
    /// Nothing is left to read on the old lanes.
    Wholly,
    /// The other end moves at once and goes first. The end is on the lane of the other end now.
    Lost,
}

impl World<'_> {
    /// Begins to send an end through `carrier`, and marks its ring: the beginning and the mark are one step.
    pub(super) fn send(&mut self, process: Process, id: EndId, carrier: EndId) {
        self.take_back(process, id);
        let end = self.state.owned(process, carrier).expect("it carries");
        let to = can_carry(self.configuration, &self.state, end).expect("it can carry");
        let movement = Move { carrier, to, item: 0, phase: Phase::Mark };
        self.state.owned_mut(process, id).doing = Doing::Moving(movement);
        self.state.ledger[id.index()].moves -= 1;
        self.mark(process, id, movement);
    }

    /// Does the next step of a move in progress.
    pub(super) fn go_on(&mut self, process: Process, id: EndId, movement: Move) {
        match movement.phase {
            Phase::Claim => {
                let item = self.item_mut(process, id, movement.item).clone();
                *self.item_mut(process, id, movement.item) = self.claim(item);
                self.set(process, id, Move { phase: Phase::Mark, ..movement });
            }
            Phase::Mark => self.mark(process, id, movement),
            Phase::Drain(lane, marked) => self.drain(process, id, movement, lane, marked),
            Phase::LateMark(lane) => self.late_mark(process, id, movement, lane),
            Phase::EarlyHandOver => {
                for lane in self.new_lanes(process, id) {
                    self.hand_over(process, lane);
                }
                self.set(process, id, Move { phase: Phase::Commit, ..movement });
            }
            Phase::Commit => self.commit(process, id, movement),
            Phase::CallOff { close } => self.call_off(process, id, close),
        }
    }

    /// Makes a lane between the process of the other end and the destination of the end, and sets the mark. Both are
    /// one step: no process looks at a lane before the mark names it, and a lane that is not pending never becomes
    /// pending.
    fn mark(&mut self, process: Process, id: EndId, movement: Move) {
        let end = self.item_mut(process, id, movement.item);
        let (item, tx, rx, side) = (end.id, end.tx, end.rx, end.id.side());
        // No other process will notice the death of the source of an end in the backlog.
        if movement.item > 0 {
            self.abandon(tx, side);
            self.abandon(rx, side);
        }
        if self.item_mut(process, id, movement.item).dead {
            return self.next_item(process, id, movement);
        }
        if self.state.lane(tx).transfer == TransferState::Abandoned {
            self.item_mut(process, id, movement.item).tx_closed = true;
        }
        if self.state.lane(tx).pending(side) || self.state.lane(rx).pending(side) {
            self.seen.note(Met::NestedRefused);
            return self.call_off(process, id, false);
        }
        let mut at = [movement.to; 2];
        at[1 - side] = self.state.lane(tx).peer(side).unwrap_or(process);
        let new = self.state.add_lane(TransferState::Pending, process, side, at);
        let mut marked = None;
        if !self.item_mut(process, id, movement.item).tx_closed && !self.broken(Breakage::FreezeBeforeMark) {
            match self.put(process, item, tx, Put::Seal(Seal::Moved(new))) {
                Ok(()) => marked = Some(tx),
                Err(Seal::Frozen(lane)) => {
                    self.seen.note(Met::MarkFrozen);
                    self.item_mut(process, id, movement.item).tx = lane;
                    return self.begin_again(process, id, movement);
                }
                Err(_) => {
                    self.seen.note(Met::ReaderClosed);
                    self.item_mut(process, id, movement.item).tx_closed = true;
                }
            }
        }
        self.set(process, id, Move { phase: Phase::Drain(new, marked), ..movement });
    }

    /// Begins the move of an end again, because its other end moved first. For the end being sent, the send itself is
    /// undone, and may be tried again.
    fn begin_again(&mut self, process: Process, id: EndId, movement: Move) {
        if movement.item == 0 {
            self.state.owned_mut(process, id).doing = Doing::Nothing;
            self.state.ledger[id.index()].moves += 1;
        } else {
            self.set(process, id, Move { phase: Phase::Mark, ..movement });
        }
    }

    /// Reads the incoming ring to its end and freezes it. The reads and the freeze are one step unless the
    /// configuration drains record by record: no other process sees which records were taken, and a process that
    /// publishes between two reads might have published before the first read.
    fn drain(&mut self, process: Process, id: EndId, movement: Move, new: LaneId, marked: Option<LaneId>) {
        match self.read_to_end(process, id, movement.item, new, marked) {
            Drained::Partly => {}
            Drained::Wholly => self.drained(process, id, movement, new),
            Drained::Lost => self.begin_again(process, id, movement),
        }
    }

    /// Reads the incoming ring of an end into its backlog, and freezes the ring for the lane `new`. If the other end
    /// moves at once and goes first, puts the end on the lane of the other end instead.
    fn read_to_end(&mut self, process: Process, id: EndId, at: usize, new: LaneId, marked: Option<LaneId>) -> Drained {
        loop {
            let (taken, done) = self.take_next(process, id, at);
            let item = self.item_mut(process, id, at);
            let side = item.id.side();
            match taken {
                Taken::Message(message) => item.backlog.push(message),
                Taken::Next => {}
                Taken::Mark(lane) if marked == Some(item.rx) => {
                    if side == 0 || self.broken(Breakage::BothWin) {
                        return Drained::Wholly;
                    }
                    self.seen.note(Met::Lost);
                    let item = self.item_mut(process, id, at);
                    (item.tx, item.rx) = (lane, lane);
                    return Drained::Lost;
                }
                Taken::Mark(lane) => item.rx = lane,
                Taken::Nothing => {
                    let (item, rx) = (item.id, item.rx);
                    self.seal(process, item, rx, Seal::Frozen(new));
                    return Drained::Wholly;
                }
                Taken::End => {
                    if item.reading == Reading::Open {
                        item.reading = Reading::Ended;
                    }
                    return Drained::Wholly;
                }
            }
            if self.configuration.one_by_one && !done {
                return Drained::Partly;
            }
        }
    }

    /// Gives a move up after its mark. The other end knows the new lane, so the end will continue there.
    pub(super) fn stay(&mut self, process: Process, id: EndId) {
        self.seen.note(Met::Stayed);
        let end = self.state.owned_mut(process, id);
        if let Doing::Moving(Move { phase: Phase::Drain(new, Some(marked)), .. }) = end.doing {
            end.doing = Doing::Staying(new, marked);
        }
    }

    /// Completes a move that was given up: the end reads its incoming ring to the end, continues in the new lane, and
    /// cancels the transfer of that lane.
    pub(super) fn finish_move(&mut self, process: Process, id: EndId, new: LaneId, marked: LaneId) {
        match self.read_to_end(process, id, 0, new, Some(marked)) {
            Drained::Partly => return,
            Drained::Lost => {}
            Drained::Wholly => {
                let end = self.state.owned_mut(process, id);
                (end.tx, end.rx) = (new, new);
                if !self.broken(Breakage::StayPending) {
                    let word = &mut self.state.lane_mut(new).transfer;
                    if *word == TransferState::Pending {
                        *word = TransferState::Cancelled;
                    }
                    self.decided(process, new);
                }
            }
        }
        self.state.owned_mut(process, id).doing = Doing::Nothing;
    }

    /// Puts the moving end on the new lane once its incoming ring was read to the end: nothing is left on its old
    /// lanes.
    fn drained(&mut self, process: Process, id: EndId, movement: Move, new: LaneId) {
        let late = self.broken(Breakage::FreezeBeforeMark);
        let item = self.item_mut(process, id, movement.item);
        item.rx = new;
        if late && !item.tx_closed {
            return self.set(process, id, Move { phase: Phase::LateMark(new), ..movement });
        }
        item.tx = new;
        self.next_item(process, id, movement);
    }

    /// Sets the mark after the freeze; used only with a deliberate error.
    fn late_mark(&mut self, process: Process, id: EndId, movement: Move, new: LaneId) {
        let end = self.item_mut(process, id, movement.item);
        let (item, tx) = (end.id, end.tx);
        match self.put(process, item, tx, Put::Seal(Seal::Moved(new))) {
            Err(Seal::Frozen(lane)) => self.item_mut(process, id, movement.item).tx = lane,
            result => {
                let item = self.item_mut(process, id, movement.item);
                item.tx = new;
                item.tx_closed |= result.is_err();
                self.next_item(process, id, movement);
            }
        }
    }

    /// Continues with the next end in the backlog, or with the commit, once an end is on its new lane.
    fn next_item(&mut self, process: Process, id: EndId, movement: Move) {
        let item = movement.item + 1;
        let nested = self.state.owned_mut(process, id).item_mut(item).map(|end| end.in_flight);
        let phase = match nested {
            _ if self.broken(Breakage::NestedAsTheyAre) => Phase::Commit,
            None if self.broken(Breakage::HandOverBeforeCommit) => Phase::EarlyHandOver,
            None => Phase::Commit,
            Some(in_flight) => {
                self.seen.note(Met::Nested);
                if in_flight { Phase::Claim } else { Phase::Mark }
            }
        };
        self.set(process, id, Move { item, phase, ..movement });
    }

    /// Commits the message with the end; or calls the move off if the carrier was closed or frozen.
    fn commit(&mut self, process: Process, id: EndId, movement: Move) {
        let carrier = self.state.owned(process, movement.carrier).expect("it is borrowed");
        let (tx, side) = (carrier.tx, movement.carrier.side());
        if carrier.tx_closed {
            return self.call_off(process, id, true);
        }
        if can_carry(self.configuration, &self.state, carrier) != Some(movement.to) {
            return self.call_off(process, id, false);
        }
        match self.state.lane(tx).rings[side].seal {
            None => {}
            Some(Seal::Frozen(lane)) => {
                self.seen.note(Met::CommitFrozen);
                self.follow(process, movement.carrier, lane);
                return self.call_off(process, id, false);
            }
            Some(_) => {
                self.seen.note(Met::ReaderClosed);
                self.state.owned_mut(process, movement.carrier).tx_closed = true;
                return self.call_off(process, id, true);
            }
        }
        let lanes = self.new_lanes(process, id);
        let mut end = self.state.take(process, id);
        end.doing = Doing::Nothing;
        let nested = if self.broken(Breakage::NestedAsTheyAre) { 1 } else { usize::MAX };
        let mut item = 0;
        while let Some(end) = end.item_mut(item).filter(|_| item < nested) {
            end.in_flight = true;
            item += 1;
        }
        let message =
            Message { number: self.state.ledger[movement.carrier.index()].written, carried: Some(Box::new(end)) };
        self.put(process, movement.carrier, tx, Put::Record(Record::Message(message))).expect("it is not sealed");
        self.state.ledger[movement.carrier.index()].written += 1;
        for lane in lanes {
            self.add_task(process, Task::HandOver(lane));
        }
    }

    /// Sets a lane to *handed over*, unless the end was claimed or the lane was abandoned already.
    pub(super) fn hand_over(&mut self, process: Process, lane: LaneId) {
        let word = &mut self.state.lane_mut(lane).transfer;
        if *word == TransferState::Pending {
            *word = TransferState::HandedOver;
        }
        if !self.broken(Breakage::NoWakeOnHandOver) {
            self.decided(process, lane);
        }
    }

    /// Cancels one lane of the move, so that the lane is an ordinary lane between the other end and this process.
    /// After the last lane the end is usable again, or is closed if `close` is set.
    pub(super) fn call_off(&mut self, process: Process, id: EndId, close: bool) {
        self.seen.note(Met::CalledOff);
        let lanes = if self.broken(Breakage::StayPending) { Vec::new() } else { self.new_lanes(process, id) };
        if let Some(&lane) = lanes.first() {
            self.state.lane_mut(lane).transfer = TransferState::Cancelled;
            self.decided(process, lane);
        }
        let end = self.state.owned_mut(process, id);
        end.doing = match end.doing {
            Doing::Moving(movement) if lanes.len() > 1 => {
                Doing::Moving(Move { phase: Phase::CallOff { close }, ..movement })
            }
            _ if close => Doing::ClosingOut,
            _ => Doing::Nothing,
        };
    }

    /// Has the process look whether the other end sleeps relayed, once the transfer word of a lane has its final
    /// state.
    pub(super) fn decided(&mut self, process: Process, lane: LaneId) {
        for half in [Half::Reader, Half::Writer] {
            let forgotten = half == Half::Writer && self.broken(Breakage::NoWakeOfWriter);
            if self.configuration.sleeping(half) && !forgotten {
                self.add_task(process, Task::TakeRelayed(lane, half));
            }
        }
    }

    /// Returns the lanes of this move that are still pending.
    fn new_lanes(&self, process: Process, id: EndId) -> Vec<LaneId> {
        let end = self.state.owned(process, id).expect("it moves");
        let mut lanes: Vec<_> = end.items().iter().map(|end| (end.tx, end.id.side())).collect();
        lanes.retain(|&(lane, side)| {
            let lane = self.state.lane(lane);
            lane.transfer == TransferState::Pending && lane.source == process && lane.moved == side
        });
        lanes.into_iter().map(|(lane, _)| lane).collect()
    }

    fn set(&mut self, process: Process, id: EndId, movement: Move) {
        self.state.owned_mut(process, id).doing = Doing::Moving(movement);
    }

    fn item_mut(&mut self, process: Process, id: EndId, item: usize) -> &mut End {
        self.state.owned_mut(process, id).item_mut(item).expect("there is such an end")
    }
}
