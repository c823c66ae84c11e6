//! Makes states equal whose only difference is the numbers of lanes, or lanes out of reach of every process.

use crate::end::{Doing, End, Message, Phase};
use crate::lane::{Lane, LaneId, Record, Seal};
use crate::state::{State, Task};

impl State {
    /// Numbers the lanes in the order of a walk through the processes, and removes lanes out of reach of all processes.
    pub fn tidy(&mut self) {
        let mut old = std::mem::take(&mut self.lanes);
        let mut found = Numbers { new: vec![None; old.len()], order: Vec::new() };
        for owner in &mut self.owners {
            owner.tasks.sort_unstable();
            for end in &mut owner.ends {
                found.end(end);
            }
            for task in &mut owner.tasks {
                match task {
                    Task::HandOver(lane)
                    | Task::TakeRelayed(lane, _)
                    | Task::TakeWord(lane, ..)
                    | Task::Wake(lane, ..) => found.lane(lane),
                }
            }
            owner.tasks.sort_unstable();
            if let Some(fuse) = &mut owner.fuse {
                fuse.held.iter_mut().chain(&mut fuse.lane).for_each(|lane| found.lane(lane));
                fuse.prepended.iter_mut().flatten().for_each(|message| found.message(message));
            }
        }
        let mut done = 0;
        while let Some(&lane) = found.order.get(done) {
            done += 1;
            found.rings(&mut old[usize::from(lane.place)]);
        }
        let mut old: Vec<_> = old.into_iter().map(Some).collect();
        for (place, id) in (0u8..).zip(&found.order) {
            let mut lane = old[usize::from(id.place)].take().expect("each is found once");
            lane.id.place = place;
            self.lanes.push(lane);
        }
    }
}

struct Numbers {
    new: Vec<Option<u8>>,
    order: Vec<LaneId>,
}

impl Numbers {
    fn lane(&mut self, lane: &mut LaneId) {
        let (order, old) = (&mut self.order, *lane);
        lane.place = *self.new[usize::from(old.place)].get_or_insert_with(|| {
            order.push(old);
            order.len() as u8 - 1
        });
    }

    fn end(&mut self, end: &mut End) {
        self.lane(&mut end.tx);
        self.lane(&mut end.rx);
        if let Doing::Staying(new, marked) = &mut end.doing {
            self.lane(new);
            self.lane(marked);
        }
        if let Doing::Moving(movement) = &mut end.doing {
            match &mut movement.phase {
                Phase::Drain(lane, marked) => {
                    self.lane(lane);
                    marked.as_mut().into_iter().for_each(|lane| self.lane(lane));
                }
                Phase::LateMark(lane) => self.lane(lane),
                Phase::Claim | Phase::Mark | Phase::EarlyHandOver | Phase::Commit | Phase::CallOff { .. } => {}
            }
        }
        end.backlog.iter_mut().for_each(|message| self.message(message));
    }

    fn message(&mut self, message: &mut Message) {
        message.carried.iter_mut().for_each(|end| self.end(end));
    }

    fn rings(&mut self, lane: &mut Lane) {
        for ring in &mut lane.rings {
            for record in &mut ring.records {
                if let Record::Message(message) = record {
                    self.message(message);
                }
            }
            if let Some(Seal::Moved(lane) | Seal::Frozen(lane)) = &mut ring.seal {
                self.lane(lane);
            }
        }
    }
}
