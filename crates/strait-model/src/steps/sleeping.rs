//! Sleeping on a link, and waking.

use super::World;
use crate::action::{readable, writable};
use crate::breakage::Breakage;
use crate::end::{End, EndId, Sleep};
use crate::lane::{Half, LaneId, Word};
use crate::met::Met;
use crate::state::{Process, Task};

impl World<'_> {
    /// Does one task of a process and removes it from the list.
    pub(super) fn task(&mut self, process: Process, task: Task) {
        let tasks = &mut self.state.owners[usize::from(process)].tasks;
        let at = tasks.iter().position(|other| *other == task).expect("it is to be done");
        tasks.remove(at);
        match task {
            Task::HandOver(lane) => self.hand_over(process, lane),
            Task::TakeRelayed(lane, half) => {
                // Both sleep words belong to the other end: that end reads the ring written by the moved end, and
                // writes its own ring. If neither end moved, each end is the other end of the other.
                let moved = self.state.lane(lane).moved;
                for moved in (0..2).filter(|side| moved == 2 || moved == *side) {
                    let side = if half == Half::Reader { moved } else { 1 - moved };
                    let take_plain = self.broken(Breakage::TakePlainOnHandOver);
                    let word = &mut self.state.lane_mut(lane).rings[side].words[half as usize];
                    if *word == Word::Via || (*word == Word::Plain && take_plain) {
                        *word = Word::Nobody;
                        self.seen.note(Met::WokenVia);
                        let to = self.state.lane(lane).at[1 - moved];
                        self.wake(process, lane, side, half, to);
                    }
                }
            }
            Task::TakeWord(lane, side, half, to) => {
                let take_via = self.broken(Breakage::TakeRelayed);
                let word = &mut self.state.lane_mut(lane).rings[side].words[half as usize];
                match *word {
                    Word::Nobody => {}
                    Word::Via if !take_via => self.seen.note(Met::LeftVia),
                    Word::Via | Word::Plain => {
                        *word = Word::Nobody;
                        self.add_task(process, Task::Wake(lane, side, half, to));
                    }
                }
            }
            Task::Wake(lane, side, half, to) => {
                // The process that wakes a consumer is on the side of the ring; the process that wakes a producer is on
                // the other side.
                let mine = if half == Half::Reader { side } else { 1 - side };
                if let Some(to) = to.or_else(|| self.state.lane(lane).peer(mine)) {
                    self.wake(process, lane, side, half, to);
                }
            }
        }
    }

    /// Sends a wake-up over the link between two processes. The wake-up wakes the half on this ring in `to`, if that
    /// half sleeps on the link to `from`.
    fn wake(&mut self, from: Process, lane: LaneId, side: usize, half: Half, to: Process) {
        for end in &mut self.state.owners[usize::from(to)].ends {
            let (place, sleep) = (end.place(half), &mut end.sleep[half as usize]);
            if place == (lane, side)
                && matches!(sleep, Sleep::Announced(_, link) | Sleep::Asleep(link) if *link == from)
            {
                self.seen.note(if half == Half::Reader { Met::Woken } else { Met::WokenForRoom });
                *sleep = Sleep::Awake;
            }
        }
    }

    /// Returns how a half of an end would sleep now, and on the link to which process.
    fn listens(&self, end: &End, half: Half) -> (Word, Process) {
        let (lane, side) = (self.state.lane(end.place(half).0), end.id.side());
        let peer = lane.peer(side).expect("an end that sees its lane given up does not sleep");
        (if lane.pending(side) { Word::Via } else { Word::Plain }, peer)
    }

    /// Decides how a half of an end with nothing to do will sleep.
    pub(super) fn decide(&mut self, process: Process, id: EndId, half: Half) {
        let (how, link) = self.listens(self.state.owned(process, id).expect("it sleeps"), half);
        self.state.owned_mut(process, id).sleep[half as usize] = Sleep::Decided(how, link);
    }

    /// Records the sleep of a half of an end in its sleep word.
    pub(super) fn announce(&mut self, process: Process, id: EndId, half: Half) {
        let end = self.state.owned_mut(process, id);
        let Sleep::Decided(how, link) = end.sleep[half as usize] else { unreachable!("it has decided") };
        end.sleep[half as usize] = Sleep::Announced(how, link);
        let (lane, side) = end.place(half);
        self.state.lane_mut(lane).rings[side].words[half as usize] = how;
    }

    /// Looks once more at the ring and at the transfer word, and puts the half to sleep if nothing has changed.
    pub(super) fn sleep(&mut self, process: Process, id: EndId, half: Half) {
        let end = self.state.owned(process, id).expect("it sleeps");
        let Sleep::Announced(how, link) = end.sleep[half as usize] else { unreachable!("it has announced itself") };
        let something = if half == Half::Reader { readable(&self.state, end) } else { writable(&self.state, end) };
        let lane = self.state.lane(end.place(half).0);
        let changed = lane.peer(id.side()).is_none() || self.listens(end, half) != (how, link);
        if something || (changed && !self.broken(Breakage::SleepWithoutTransfer)) {
            self.wake_up(process, id, half);
        } else {
            if how == Word::Via {
                self.seen.note(Met::SleptVia);
            }
            self.state.owned_mut(process, id).sleep[half as usize] = Sleep::Asleep(link);
        }
    }

    /// Wakes a half of an end, and clears its sleep word.
    pub(super) fn wake_up(&mut self, process: Process, id: EndId, half: Half) {
        let end = self.state.owned_mut(process, id);
        let before = std::mem::replace(&mut end.sleep[half as usize], Sleep::Awake);
        let (lane, side) = end.place(half);
        if matches!(before, Sleep::Announced(..) | Sleep::Asleep(_)) {
            self.state.lane_mut(lane).rings[side].words[half as usize] = Word::Nobody;
        }
    }

    /// Makes both halves of an end awake, because the user does something else with the end.
    pub(super) fn take_back(&mut self, process: Process, id: EndId) {
        self.wake_up(process, id, Half::Reader);
        self.wake_up(process, id, Half::Writer);
    }
}
