//! Fusing two channels whose far ends are held: freeze, commit, mark, hand over. The moves that hold the far ends are
//! steps of their own.

use super::World;
use crate::breakage::Breakage;
use crate::lane::{Half, LaneId, Record, Seal, TransferState};
use crate::met::Met;
use crate::state::{Fuse, FuseStep, Process, State, Task};

/// Makes the two lanes in which `fuser` holds the ends of channel 0, and returns their ids. `at` is the process of
/// each end.
pub(super) fn hold(state: &mut State, fuser: Process, at: [Process; 2]) -> [LaneId; 2] {
    let held = [
        state.add_lane(TransferState::Pending, fuser, 1, [at[0], fuser]),
        state.add_lane(TransferState::Pending, fuser, 0, [fuser, at[1]]),
    ];
    let (prepended, told) = Default::default();
    state.owners[usize::from(fuser)].fuse = Some(Fuse { held, lane: None, prepended, told, step: FuseStep::Freeze(0) });
    held
}

impl World<'_> {
    /// Does the next step of the fuse of a process.
    pub(super) fn fuse(&mut self, process: Process) {
        let mut fuse = self.state.owners[usize::from(process)].fuse.take().expect("it fuses");
        let next = match fuse.step {
            FuseStep::Freeze(side) => self.freeze_held(process, &mut fuse, side),
            FuseStep::Bring(side) => {
                fuse.told[side] = self.bring(process, &mut fuse, side);
                Some(FuseStep::Mark(side))
            }
            FuseStep::Mark(side) => {
                let (lane, new) = (fuse.held[side], fuse.lane.expect("it was made"));
                fuse.told[side] &= self.seal_held(process, lane, 1 - side, Seal::Moved(new));
                Some(if side == 0 && !self.far_is_gone(&fuse) { FuseStep::Bring(1) } else { FuseStep::HandOver })
            }
            FuseStep::HandOver => {
                self.hand_over_to_both(process, &fuse);
                Some(FuseStep::Cancel(0))
            }
            FuseStep::Cancel(side) => {
                let lane = fuse.held[side];
                self.state.lane_mut(lane).transfer = TransferState::Cancelled;
                self.decided(process, lane);
                (side == 0).then_some(FuseStep::Cancel(1))
            }
            FuseStep::BringAlone(side) => {
                self.bring(process, &mut fuse, side);
                Some(FuseStep::Close(side))
            }
            FuseStep::Close(side) => {
                let lane = fuse.held[side];
                self.seal_held(process, lane, 1 - side, Seal::ClosedByWriter);
                self.close_reading(process, lane, side);
                Some(FuseStep::Cancel(0))
            }
        };
        self.state.owners[usize::from(process)].fuse = next.map(|step| Fuse { step, ..fuse });
    }

    /// Takes everything that a held end wrote and freezes its ring, or finds a held end closed or dead. Returns the
    /// next step.
    fn freeze_held(&mut self, process: Process, fuse: &mut Fuse, side: usize) -> Option<FuseStep> {
        // As long as the fuse can still be called off, both held ends are looked at.
        if side == 0 {
            for side in 0..2 {
                self.take_held(fuse, side);
            }
            let gone = [0, 1].map(|side| {
                let lane = self.state.lane(fuse.held[side]);
                lane.rings[side].seal.is_some() || !self.state.alive(lane.at[side])
            });
            match gone {
                [false, false] => {}
                [true, true] => return Some(FuseStep::Cancel(0)),
                [true, false] => return Some(FuseStep::BringAlone(1)),
                [false, true] => return Some(FuseStep::BringAlone(0)),
            }
            let at = [0, 1].map(|side| self.state.lane(fuse.held[side]).at[side]);
            fuse.lane = Some(self.state.add_lane(TransferState::Pending, process, 2, at));
        }
        self.take_held(fuse, side);
        let new = fuse.lane.expect("it was made");
        let lane = fuse.held[side];
        let ring = &mut self.state.lane_mut(lane).rings[side];
        if ring.seal.is_none() {
            ring.seal = Some(Seal::Frozen(new));
            self.made_room_at(process, lane, side);
        }
        if self.broken(Breakage::MarkBeforeFreeze) && side == 0 {
            // Messages that the other end published since then are committed for neither end.
            return Some(FuseStep::Bring(0));
        }
        Some(if side == 0 { FuseStep::Freeze(1) } else { FuseStep::Bring(0) })
    }

    /// Returns whether the far end on side 1 had closed before its ring was frozen.
    fn far_is_gone(&self, fuse: &Fuse) -> bool {
        matches!(self.state.lane(fuse.held[1]).rings[1].seal, Some(Seal::ClosedByWriter))
    }

    fn take_held(&mut self, fuse: &mut Fuse, side: usize) {
        let ring = &mut self.state.lane_mut(fuse.held[side]).rings[side];
        for record in ring.records.drain(..) {
            if let Record::Message(message) = record {
                fuse.prepended[1 - side].push(message);
            }
        }
    }

    /// Commits for the held end on `side` everything that the other held end wrote, all at once. Returns `false` if
    /// the held end reads no more.
    fn bring(&mut self, process: Process, fuse: &mut Fuse, side: usize) -> bool {
        let (lane, prepended) = (fuse.held[side], std::mem::take(&mut fuse.prepended[side]));
        let ring = &mut self.state.lane_mut(lane).rings[1 - side];
        if ring.seal.is_some() {
            self.seen.note(Met::ReaderClosed);
            return false;
        }
        let some = !prepended.is_empty();
        ring.records.extend(prepended.into_iter().map(Record::Message));
        if some {
            self.published_at(process, lane, 1 - side);
        }
        true
    }

    /// Seals a ring written by this process. Returns `false` if the consumer has sealed the ring already.
    fn seal_held(&mut self, process: Process, lane: LaneId, side: usize, seal: Seal) -> bool {
        let ring = &mut self.state.lane_mut(lane).rings[side];
        if ring.seal.is_some() {
            return false;
        }
        ring.seal = Some(seal);
        self.published_at(process, lane, side);
        true
    }

    /// Drops everything that the end on `side` of a lane wrote, and seals its ring as closed by the consumer.
    fn close_reading(&mut self, process: Process, lane: LaneId, side: usize) {
        let ring = &mut self.state.lane_mut(lane).rings[side];
        ring.records.clear();
        if ring.seal.is_none() {
            ring.seal = Some(Seal::ClosedByReader);
            self.made_room_at(process, lane, side);
        }
    }

    fn hand_over_to_both(&mut self, process: Process, fuse: &Fuse) {
        let lane = fuse.lane.expect("it was made");
        let transfer = if self.far_is_gone(fuse) {
            // This process stands in for the closed far end in the lane.
            self.seal_held(process, lane, 1, Seal::ClosedByWriter);
            self.close_reading(process, lane, 0);
            TransferState::Cancelled
        } else {
            for side in (0..2).filter(|side| !fuse.told[*side]) {
                self.close_reading(process, lane, 1 - side);
            }
            TransferState::HandedOver
        };
        let word = &mut self.state.lane_mut(lane).transfer;
        if *word == TransferState::Pending {
            *word = transfer;
        }
        if !self.broken(Breakage::NoWakeOnHandOver) {
            self.decided(process, lane);
        }
    }

    fn published_at(&mut self, process: Process, lane: LaneId, side: usize) {
        if self.configuration.sleeping(Half::Reader) {
            self.add_task(process, Task::TakeWord(lane, side, Half::Reader, None));
        }
    }

    fn made_room_at(&mut self, process: Process, lane: LaneId, side: usize) {
        if self.configuration.sleeping(Half::Writer) {
            self.add_task(process, Task::TakeWord(lane, side, Half::Writer, None));
        }
    }
}
