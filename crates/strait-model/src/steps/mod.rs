//! The effect of each step. A step is a visible change of shared memory by one process, together with everything that
//! the process does privately before.

mod closing;
mod fusing;
mod moving;
mod receiving;
mod sleeping;
mod writing;

use crate::action::Action;
use crate::breakage::Breakage;
use crate::configuration::Configuration;
use crate::end::{Doing, End, EndId};
use crate::lane::{LaneId, TransferState};
use crate::met::{Met, Seen};
use crate::state::{Fuse, FuseStep, Ledger, Owner, Process, State, Task};

/// Returns the first state of a configuration.
pub(crate) fn start(configuration: &Configuration) -> State {
    let mut state = State {
        lanes: Vec::new(),
        owners: vec![Owner::new(true); usize::from(configuration.processes)],
        ledger: Vec::new(),
        deaths: configuration.deaths,
        fulls: configuration.fulls,
        stays: configuration.stays,
        cut: false,
        wrong: None,
    };
    for (channel, setup) in (0u8..).zip(&configuration.channels) {
        let lanes = match configuration.fuser.filter(|_| channel == 0) {
            Some(fuser) => fusing::hold(&mut state, fuser, setup.at),
            None => [state.add_lane(TransferState::HandedOver, setup.at[0], 0, setup.at); 2],
        };
        for (side, user) in (0u8..).zip(&setup.users) {
            let end = End::new(EndId::new(channel, side), lanes[usize::from(side)]);
            state.owners[usize::from(setup.at[usize::from(side)])].ends.push(end);
            state.ledger.push(Ledger {
                writes: user.writes,
                moves: user.moves,
                may_close: user.closes,
                grows: user.grows,
                ..Ledger::default()
            });
        }
    }
    state
}

/// Returns the state after `action`.
pub(crate) fn act(configuration: &Configuration, seen: &Seen, state: &State, action: Action) -> State {
    let mut state = state.clone();
    state.wrong = None;
    let mut world = World { configuration, seen, state };
    world.act(action);
    world.state.tidy();
    world.state
}

struct World<'a> {
    configuration: &'a Configuration,
    seen: &'a Seen,
    state: State,
}

impl World<'_> {
    fn act(&mut self, action: Action) {
        match action {
            Action::Publish(process, id) => {
                if self.write(process, id) {
                    self.state.ledger[id.index()].writes -= 1;
                }
            }
            Action::Grow(process, id) => self.grow(process, id),
            Action::Receive(process, id) => self.receive(process, id),
            Action::Send(process, id, carrier) => self.send(process, id, carrier),
            Action::Close(process, id) => {
                self.state.ledger[id.index()].may_close = false;
                self.take_back(process, id);
                self.state.owned_mut(process, id).doing = Doing::ClosingOut;
            }
            Action::Go(process, id, Doing::Moving(movement)) => self.go_on(process, id, movement),
            Action::Go(process, id, Doing::Staying(new, marked)) => self.finish_move(process, id, new, marked),
            Action::Go(process, id, Doing::ClosingOut) => self.close_out(process, id),
            Action::Go(process, id, _) => self.close_in(process, id),
            Action::Full(process, id) => {
                self.state.fulls -= 1;
                self.call_off(process, id, false);
            }
            Action::Stay(process, id) => {
                self.state.stays -= 1;
                self.stay(process, id);
            }
            Action::Task(process, task) => self.task(process, task),
            Action::Fuse(process) => self.fuse(process),
            Action::Decide(process, id, half) => self.decide(process, id, half),
            Action::Announce(process, id, half) => self.announce(process, id, half),
            Action::Sleep(process, id, half) => self.sleep(process, id, half),
            Action::HangUp(process, id, half) => self.wake_up(process, id, half),
            Action::Die(process) => {
                self.state.deaths -= 1;
                let owner = &mut self.state.owners[usize::from(process)];
                let handed = |fuse: &Fuse| matches!(fuse.step, FuseStep::Cancel(_));
                self.state.cut |= owner.fuse.as_ref().is_some_and(|fuse| !handed(fuse));
                *owner = Owner::new(false);
            }
        }
    }

    fn broken(&self, breakage: Breakage) -> bool {
        self.configuration.breakage == breakage
    }

    pub(super) fn add_task(&mut self, process: Process, task: Task) {
        self.state.owners[usize::from(process)].tasks.push(task);
    }

    /// Sets a lane to *abandoned* if it is pending for the end on `side` and its source is dead.
    pub(super) fn abandon(&mut self, lane: LaneId, side: usize) {
        let dead = !self.state.alive(self.state.lane(lane).source);
        let lane = self.state.lane_mut(lane);
        if lane.pending(side) && dead {
            self.seen.note(Met::Abandoned);
            lane.transfer = TransferState::Abandoned;
        }
    }
}
