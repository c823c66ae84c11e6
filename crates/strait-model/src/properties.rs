//! The properties that must hold.

use stateright::{Model, Property};

use crate::action::{self, Action, readable, writable};
use crate::configuration::Configuration;
use crate::end::{Doing, End, EndId, Move, Phase, Reading, Sleep};
use crate::lane::{LaneId, Record, TransferState};
use crate::met::Seen;
use crate::state::{Fuse, Process, State, Task, Wrong};
use crate::steps;

/// The protocol in one configuration, in the form for the model checker.
#[derive(Debug)]
pub struct Protocol {
    /// The bounds of the run.
    pub configuration: Configuration,
    /// The situations reached so far.
    pub seen: Seen,
}

/// `IN_ORDER`: the messages of an end arrive in order, each once.
pub const IN_ORDER: &str = "messages arrive in order, each once";
/// `CLOSED_LAST`: an end sees *peer closed* after everything that the other end wrote.
pub const CLOSED_LAST: &str = "peer closed comes after everything that was written";
/// `ONE_OWNER`: each end is in one place, with a process or in a message.
pub const ONE_OWNER: &str = "an end is in one place";
/// `OWN_LANES`: a process uses only lanes announced to it.
pub const OWN_LANES: &str = "an end is on a lane that its process has";
/// `NO_IDLE_SOURCE`: no end waits for the move of an idle process.
pub const NO_IDLE_SOURCE: &str = "a lane is pending only while its source is at work";
/// `ALL_ARRIVED`: where nothing more happens unless a user acts, every message has been received.
pub const ALL_ARRIVED: &str = "at rest, everything has arrived";
/// `CLOSED_SEEN`: where nothing more happens unless a user acts, an end has seen *peer closed* if and only if the other
/// end is closed or dead.
pub const CLOSED_SEEN: &str = "at rest, peer closed was seen if and only if the other end is gone";
/// `ALL_IDLE`: where nothing more happens unless a user acts, no operation is in progress.
pub const ALL_IDLE: &str = "at rest, everybody is idle";
/// `NO_SLEEPER`: at rest, no end sleeps with something to read, or with room.
pub const NO_SLEEPER: &str = "at rest, nobody sleeps with something to read, or with room";

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![steps::start(&self.configuration)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_none() {
            action::actions(&self.configuration, state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(steps::act(&self.configuration, &self.seen, state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(IN_ORDER, |_, state: &State| !matches!(state.wrong, Some(Wrong::Order(_)))),
            Property::always(CLOSED_LAST, |_, state: &State| !matches!(state.wrong, Some(Wrong::ClosedEarly(_)))),
            Property::always(ONE_OWNER, |_, state: &State| {
                !matches!(state.wrong, Some(Wrong::OwnedTwice(_))) && one_place(state)
            }),
            Property::always(OWN_LANES, |_, state: &State| own_lanes(state)),
            Property::always(NO_IDLE_SOURCE, |_, state: &State| no_idle_source(state)),
            Property::always(ALL_ARRIVED, |model: &Self, state: &State| all_arrived(state) || !model.at_rest(state)),
            Property::always(CLOSED_SEEN, |model: &Self, state: &State| closed_seen(state) || !model.at_rest(state)),
            Property::always(ALL_IDLE, |model: &Self, state: &State| all_idle(state) || !model.at_rest(state)),
            Property::always(NO_SLEEPER, |model: &Self, state: &State| no_sleeper(state) || !model.at_rest(state)),
        ]
    }

    fn format_action(&self, action: &Action) -> String {
        format!("{action:?}")
    }
}

impl Protocol {
    /// Returns whether nothing more happens unless a user acts, a process dies, a socket is full, or a source lacks
    /// memory.
    fn at_rest(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.iter().all(|action| action.is_optional())
    }
}

fn count(end: &End, counts: &mut [u8]) {
    for end in end.items() {
        counts[end.id.index()] += 1;
    }
}

fn one_place(state: &State) -> bool {
    let mut counts = [0; 32];
    for (_, end) in state.ends() {
        count(end, &mut counts);
    }
    for record in state.lanes.iter().flat_map(|lane| &lane.rings).flat_map(|ring| &ring.records) {
        if let Record::Message(message) = record {
            message.carried.iter().for_each(|end| count(end, &mut counts));
        }
    }
    counts.iter().all(|&count| count <= 1)
}

fn own_lanes(state: &State) -> bool {
    state.ends().all(|(process, end)| {
        // A dead end has no use for its lane.
        end.dead
            || [end.tx, end.rx].into_iter().all(|id| {
                let (lane, side) = (state.lane(id), end.id.side());
                let pending =
                    side == lane.moved && matches!(lane.transfer, TransferState::Pending | TransferState::Cancelled);
                process == if pending { lane.source } else { lane.at[side] }
            })
    })
}

/// Returns whether a process is at work on the move for which this lane was made.
fn at_work(state: &State, process: Process, lane: LaneId) -> bool {
    let owner = &state.owners[usize::from(process)];
    let fuses = |fuse: &Fuse| fuse.held.contains(&lane) || fuse.lane == Some(lane);
    owner.tasks.contains(&Task::HandOver(lane))
        || owner.fuse.as_ref().is_some_and(fuses)
        || owner.ends.iter().any(|end| match end.doing {
            Doing::Moving(Move { phase: Phase::Drain(new, _) | Phase::LateMark(new), .. }) if new == lane => true,
            Doing::Staying(new, _) => new == lane,
            Doing::Moving(_) => {
                end.items().iter().any(|item| item.tx == lane && item.id.side() == state.lane(lane).moved)
            }
            _ => false,
        })
}

fn no_idle_source(state: &State) -> bool {
    state.ends().all(|(_, end)| {
        [end.tx, end.rx].into_iter().all(|id| {
            let lane = state.lane(id);
            !lane.pending(end.id.side()) || !state.alive(lane.source) || at_work(state, lane.source, id)
        })
    })
}

/// Returns an end of some process. At rest, an end in a message is in a message that no process will receive.
fn owner(state: &State, id: EndId) -> Option<&End> {
    state.ends().map(|(_, end)| end).find(|end| end.id == id)
}

fn all_arrived(state: &State) -> bool {
    state.ends().all(|(_, end)| {
        let [mine, other] = [end.id, end.id.other()].map(|id| state.ledger[id.index()]);
        end.dead
            || state.cut
            || mine.received == other.written
            || owner(state, end.id.other()).is_some_and(|other| other.dead)
    })
}

fn closed_seen(state: &State) -> bool {
    state.ends().all(|(_, end)| match owner(state, end.id.other()) {
        Some(other) if other.dead || end.dead || (state.cut && end.id.channel() == 0) => end.reading == Reading::Closed,
        Some(_) => end.reading != Reading::Closed && !end.tx_closed,
        None => end.reading == Reading::Closed,
    })
}

fn all_idle(state: &State) -> bool {
    state.ends().all(|(_, end)| end.doing == Doing::Nothing)
        && state.owners.iter().all(|owner| owner.tasks.is_empty() && owner.fuse.is_none())
}

fn no_sleeper(state: &State) -> bool {
    state.ends().all(|(_, end)| {
        let asleep = end.sleep.map(|sleep| matches!(sleep, Sleep::Asleep(_)));
        !(asleep[0] && readable(state, end) || asleep[1] && writable(state, end))
    })
}
