//! The properties that must hold.

use stateright::{Model, Property};

use super::action::{self, Action};
use super::configuration::Configuration;
use super::met::Seen;
use super::state::{A, End, Half, Link, Origin, Place, Process, SocketId, State, Wrong};
use super::steps;

/// The rules in one configuration, in the form for the model checker.
#[derive(Debug)]
pub struct Rules {
    /// The bounds of the run.
    pub configuration: Configuration,
    /// The situations reached so far.
    pub seen: Seen,
}

/// `HARM`: if a hostile process has a copy of a link, a lane runs over that link only if that process may harm the
/// lane anyway. A lane ends only by a death or a hostile process.
pub const HARM: &str = "a lane is harmed only by its peer, its movers and its makers";
/// `IDENTITY`: ends, halves and names reach the right processes.
pub const IDENTITY: &str = "a peer is the process for which it is taken";
/// `ACCUSED`: an honest process is never blamed for acts of another process.
pub const ACCUSED: &str = "no honest process is taken for a bad peer";
/// `CLOSED`: a link is closed by both sides, with no unread counted packet and no lane bound to it.
pub const CLOSED: &str = "a link is closed only when neither side needs it";
/// `QUIET`: a side with an unanswered IDLE sends no counted packet.
pub const QUIET: &str = "no packet is sent between an IDLE and its answer";
/// `SAME_LINK`: the two ends of a lane are on the two sides of one socket.
pub const SAME_LINK: &str = "both ends of a lane are on one link";
/// `DELIVERED`: at rest, every packet of a lane was received.
pub const DELIVERED: &str = "at rest, nothing that was accepted is lost";
/// `NO_SURPLUS`: at rest, each open link is needed by at least one side.
pub const NO_SURPLUS: &str = "at rest, two processes that need a link no more have closed it";
/// `ANSWERED`: at rest, no side waits for an answer, and no packet is unread.
pub const ANSWERED: &str = "at rest, every IDLE was answered and every packet was read";
/// `COUNT`: at rest, the number of links does not grow with the number of lanes.
pub const COUNT: &str =
    "at rest, there is one introduced link for each introducer and set of makers, and two direct links at most";
/// `ENDS_TOLD`: at rest, no end waits for an end that cannot arrive.
pub const ENDS_TOLD: &str = "at rest, no end waits for an end that cannot come";

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::start(&self.configuration)]
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
            Property::always(HARM, |_, state: &State| {
                !matches!(state.wrong, Some(Wrong::Harmed(_))) && !captured(state)
            }),
            Property::always(IDENTITY, |_, state: &State| {
                !matches!(state.wrong, Some(Wrong::Misnamed(_) | Wrong::Stolen(_)))
            }),
            Property::always(ACCUSED, |_, state: &State| !matches!(state.wrong, Some(Wrong::Accused(_)))),
            Property::always(CLOSED, |_, state: &State| !matches!(state.wrong, Some(Wrong::ClosedInUse(_)))),
            Property::always(QUIET, |_, state: &State| !matches!(state.wrong, Some(Wrong::NotQuiet(_)))),
            Property::always(SAME_LINK, |_, state: &State| same_link(state)),
            Property::always(DELIVERED, |model: &Self, state: &State| delivered(state) || !model.at_rest(state)),
            Property::always(NO_SURPLUS, |model: &Self, state: &State| no_surplus(state) || !model.at_rest(state)),
            Property::always(ANSWERED, |model: &Self, state: &State| answered(state) || !model.at_rest(state)),
            Property::always(COUNT, |model: &Self, state: &State| count(state) || !model.at_rest(state)),
            Property::always(ENDS_TOLD, |model: &Self, state: &State| ends_told(state) || !model.at_rest(state)),
        ]
    }

    fn format_action(&self, action: &Action) -> String {
        format!("{action:?}")
    }
}

impl Rules {
    /// Returns whether nothing more happens unless a user or the hostile process acts, or a process dies.
    fn at_rest(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        state.wrong.is_none() && actions.iter().all(|action| action.is_optional())
    }
}

/// Returns whether a lane runs over a link with a copy in a process that may not harm the lane.
fn captured(state: &State) -> bool {
    state.lanes.iter().any(|lane| {
        lane.ends.iter().any(|end| match end {
            End::At(socket) => state.sockets[usize::from(*socket)].copies & !lane.blame != 0,
            _ => false,
        })
    })
}

fn same_link(state: &State) -> bool {
    state.lanes.iter().all(|lane| match lane.ends {
        [End::At(one), End::At(other)] => {
            let copied = |socket: SocketId| state.sockets[usize::from(socket)].copies != 0;
            one == other || copied(one) || copied(other)
        }
        _ => true,
    })
}

fn delivered(state: &State) -> bool {
    state.lanes.iter().all(|lane| {
        (0..2).all(|at| match lane.ends[at] {
            End::At(socket) if state.sockets[usize::from(socket)].copies == 0 => lane.received[at] == lane.sent[1 - at],
            _ => true,
        })
    })
}

/// Returns every link of an honest process that no hostile process can keep open, with the id of its socket and the
/// process.
fn links(state: &State) -> impl Iterator<Item = (SocketId, Process, &Link)> {
    state.halves().filter_map(|(socket, _, half)| match (half.place, &half.link) {
        (Place::At(process), Some(link)) if process != A && state.sockets[usize::from(socket)].copies == 0 => {
            (link.peer != Some(A)).then_some((socket, process, link))
        }
        _ => None,
    })
}

fn no_surplus(state: &State) -> bool {
    links(state).all(|(socket, ..)| (0..2).any(|side| state.in_use(socket, side)))
}

fn answered(state: &State) -> bool {
    let unread = |(_, _, half): (SocketId, u8, &Half)| !half.queue.is_empty() && half.place != Place::Closed;
    links(state).all(|(_, _, link)| link.asked.is_none()) && !state.halves().any(unread)
}

fn count(state: &State) -> bool {
    let same = |one: &(SocketId, Process, &Link), other: &(SocketId, Process, &Link)| {
        let maker = |socket: SocketId| state.sockets[usize::from(socket)].maker;
        one.1 == other.1
            && one.2.peer == other.2.peer
            && one.2.origin == other.2.origin
            && (one.2.origin == Origin::Direct || (maker(one.0), one.2.makers) == (maker(other.0), other.2.makers))
    };
    let all: Vec<_> = links(state).filter(|(.., link)| !link.pinned).collect();
    all.iter().all(|one| {
        let most = if one.2.origin == Origin::Direct { 2 } else { 1 };
        all.iter().filter(|other| same(one, other)).count() <= most
    })
}

fn ends_told(state: &State) -> bool {
    state.lanes.iter().all(|lane| {
        let mailbox = |at: usize| matches!(lane.ends[at], End::Mailbox(_));
        let waits = |at: usize| mailbox(at) && lane.ends[1 - at] == End::Coming;
        state.alive(lane.source) || !(waits(0) || waits(1))
    })
}
