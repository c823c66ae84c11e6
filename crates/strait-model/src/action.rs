//! The steps that can happen in a state.

use crate::breakage::Breakage;
use crate::configuration::Configuration;
use crate::end::{Doing, End, EndId, Move, Phase, Reading, Sleep};
use crate::lane::Half;
use crate::state::{Process, State, Task};

/// A step of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The user publishes a message through the end; or the end finds its ring frozen and continues in the new lane.
    Publish(Process, EndId),
    /// The end commits the record *next*, and so goes on in a larger ring.
    Grow(Process, EndId),
    /// The user receives a message; or the end follows a mark, or learns that the other end is closed or dead.
    Receive(Process, EndId),
    /// The user sends the first end through the second.
    Send(Process, EndId, EndId),
    /// The user closes the end.
    Close(Process, EndId),
    /// The process does the next step of sending or closing the end.
    Go(Process, EndId, Doing),
    /// The move of the end finds a socket full, so descriptors cannot be sent.
    Full(Process, EndId),
    /// The source lacks memory for the messages that it drains, after it has set the mark: it gives the move up.
    Stay(Process, EndId),
    /// The process does a task.
    Task(Process, Task),
    /// The process does the next step of a fuse.
    Fuse(Process),
    /// A half of the end has nothing to read, or no room, and finds the process that would wake it.
    Decide(Process, EndId, Half),
    /// A half of the end records its sleep in the sleep word of the half.
    Announce(Process, EndId, Half),
    /// A half of the end looks once more, and sleeps if it still has nothing to do.
    Sleep(Process, EndId, Half),
    /// The link on which a half of the end sleeps hangs up, which wakes the half.
    HangUp(Process, EndId, Half),
    /// The process dies.
    Die(Process),
}

impl Action {
    /// Returns whether no process may rely on the step, because only a user or bad luck causes it.
    pub fn is_optional(self) -> bool {
        matches!(
            self,
            Self::Publish(..)
                | Self::Grow(..)
                | Self::Decide(_, _, Half::Writer)
                | Self::Send(..)
                | Self::Close(..)
                | Self::Full(..)
                | Self::Stay(..)
                | Self::Die(_)
        )
    }
}

/// Adds to `actions` every step that can happen in `state`.
pub(crate) fn actions(configuration: &Configuration, state: &State, actions: &mut Vec<Action>) {
    for (process, end) in state.ends() {
        let (id, ledger) = (end.id, &state.ledger[end.id.index()]);
        if end.doing != Doing::Nothing {
            actions.push(Action::Go(process, id, end.doing));
            if matches!(end.doing, Doing::Moving(Move { phase: Phase::Commit, .. })) && state.fulls > 0 {
                actions.push(Action::Full(process, id));
            }
            if let Doing::Moving(Move { phase: Phase::Drain(_, Some(_)), item: 0, .. }) = end.doing
                && state.stays > 0
            {
                actions.push(Action::Stay(process, id));
            }
            continue;
        }
        let [reader, writer] = end.sleep.map(|sleep| sleep == Sleep::Awake);
        let room = !configuration.user(id).waits || writable(state, end);
        if ledger.writes > 0 && writer && room && !end.tx_closed {
            actions.push(Action::Publish(process, id));
        }
        if ledger.grows > 0 && writer && !end.tx_closed {
            actions.push(Action::Grow(process, id));
        }
        let something = readable(state, end);
        if reader && something {
            actions.push(Action::Receive(process, id));
        }
        let reads = configuration.user(id).sleeps && end.reading == Reading::Open;
        let writes = ledger.writes > 0 && !end.tx_closed;
        for (half, sleep, tired) in
            [(Half::Reader, end.sleep[0], reads && !something), (Half::Writer, end.sleep[1], writes && !room)]
        {
            match sleep {
                Sleep::Awake if tired => actions.push(Action::Decide(process, id, half)),
                Sleep::Decided(..) => actions.push(Action::Announce(process, id, half)),
                Sleep::Announced(..) => actions.push(Action::Sleep(process, id, half)),
                Sleep::Asleep(link) if !state.alive(link) => actions.push(Action::HangUp(process, id, half)),
                Sleep::Awake | Sleep::Asleep(_) => {}
            }
        }
        if borrowed(state, process, id) {
            continue;
        }
        if ledger.may_close {
            actions.push(Action::Close(process, id));
        }
        if ledger.moves > 0 && end.reading != Reading::Closed && ready(state, end) {
            let over = &configuration.user(id).over;
            let carriers = state.owners[usize::from(process)].ends.iter();
            for carrier in carriers.filter(|end| over.contains(&end.id.channel()) && end.doing == Doing::Nothing) {
                if can_carry(configuration, state, carrier).is_some() {
                    actions.push(Action::Send(process, id, carrier.id));
                }
            }
        }
    }
    for (process, owner) in (0u8..).zip(&state.owners) {
        let mut last = None;
        for &task in &owner.tasks {
            if last != Some(task) {
                actions.push(Action::Task(process, task));
            }
            last = Some(task);
        }
        if owner.fuse.is_some() {
            actions.push(Action::Fuse(process));
        }
        if owner.alive && state.deaths > 0 && configuration.mortal.contains(&process) {
            actions.push(Action::Die(process));
        }
    }
}

/// Returns whether a move goes through this end. During the move its owner can use the end, but not send or close the
/// end.
fn borrowed(state: &State, process: Process, id: EndId) -> bool {
    state.owners[usize::from(process)]
        .ends
        .iter()
        .any(|end| matches!(end.doing, Doing::Moving(Move { carrier, .. }) if carrier == id))
}

/// Returns whether a move of the end can begin: neither lane is pending.
fn ready(state: &State, end: &End) -> bool {
    let side = end.id.side();
    !state.lane(end.tx).pending(side) && !state.lane(end.rx).pending(side)
}

/// Returns the process that would receive an end sent through `end`; `None` if `end` can carry no end now.
pub(crate) fn can_carry(configuration: &Configuration, state: &State, end: &End) -> Option<Process> {
    let lane = state.lane(end.tx);
    let pending = lane.pending(end.id.side());
    if end.tx_closed {
        None
    } else if pending && configuration.breakage == Breakage::CarryOverPending {
        // The lane names the future process of the other end.
        Some(lane.at[lane.moved])
    } else if pending {
        None
    } else {
        lane.peer(end.id.side())
    }
}

/// Returns whether a receive would do something: there is a message, a mark to follow, or *peer closed*.
pub(crate) fn readable(state: &State, end: &End) -> bool {
    if end.reading == Reading::Closed {
        return false;
    }
    if !end.backlog.is_empty() || end.reading == Reading::Ended || end.dead {
        return true;
    }
    let ring = &state.lane(end.rx).rings[1 - end.id.side()];
    !ring.records.is_empty() || ring.seal.is_some() || state.alone(end.rx, end.id.side())
}

/// Returns whether a publish would not wait: there is room, a seal to follow, or no process that would read the
/// message.
pub(crate) fn writable(state: &State, end: &End) -> bool {
    let ring = &state.lane(end.tx).rings[end.id.side()];
    end.tx_closed || ring.records.is_empty() || ring.seal.is_some() || state.alone(end.tx, end.id.side())
}
