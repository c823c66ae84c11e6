//! The steps that can happen in a state.

use super::breakage::Breakage;
use super::configuration::{Attack, Configuration};
use super::state::{A, End, Entry, Lane, LaneId, Link, Origin, Packet, Place, Process, SocketId, State, bit};

/// A step of one process. Socket values have the side (0 or 1) of one of the halves; lane values the side of one of
/// the ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The holder of this half of a socket receives the next packet from the socket.
    Take(SocketId, u8),
    /// The holder of a half of a socket sees that the other half is closed.
    HangUp(SocketId, u8),
    /// The holder of this half does not need the link any more, and sends IDLE.
    Ask(SocketId, u8),
    /// The holder of this half sends FORGET, so that the introducer does not name the link any more.
    Forget(SocketId, u8),
    /// An introducer does a task; the number is the index in [`State::tasks`].
    Go(u8),
    /// A process ends its end of a lane after the source died before the commit.
    Abandon(LaneId, u8),
    /// An introducer moves an end. The values are the permitting line of [`Configuration`], and the introducer's
    /// links to the two processes.
    Introduce(u8, [SocketId; 2]),
    /// The holder of this half of a direct link opens a lane on the link.
    Open(SocketId, u8),
    /// The process at this end of a lane sends a packet for the lane.
    Send(LaneId, u8),
    /// The process at this end of a lane closes the end.
    Close(LaneId, u8),
    /// A process connects to another; the number is the permitting line of the configuration.
    Connect(u8),
    /// The hostile process does the attack on this line of the configuration, on a socket if the attack needs a
    /// socket.
    Attack(u8, Option<SocketId>),
    /// The process dies.
    Die(Process),
}

impl Action {
    /// Returns whether only a user, the hostile process or a death causes the step.
    pub fn is_optional(self) -> bool {
        use Action::{Attack, Close, Connect, Die, Introduce, Open, Send};
        matches!(self, Introduce(..) | Open(..) | Send(..) | Close(..) | Connect(_) | Attack(..) | Die(_))
    }
}

/// Adds to `found` every step that can happen in `state`.
pub fn actions(configuration: &Configuration, state: &State, found: &mut Vec<Action>) {
    for (socket, side, half) in state.halves() {
        let Place::At(process) = half.place else { continue };
        if let Some(&packet) = half.queue.first() {
            if may_take(configuration, state, process, (socket, side), packet) {
                found.push(Action::Take(socket, side));
            }
        } else if state.hung_up(socket, side) && process != A {
            found.push(Action::HangUp(socket, side));
        }
        if let Some(link) = &half.link
            && process != A
        {
            of_link(configuration, state, (socket, side), link, found);
        }
    }
    found.extend(
        (0u8..).zip(&state.tasks).filter(|&(at, _)| first_of_its_process(state, at)).map(|(at, _)| Action::Go(at)),
    );
    for (id, lane) in (0u8..).zip(&state.lanes) {
        of_lane(configuration, state, id, lane, found);
    }
    of_configuration(configuration, state, found);
}

/// Returns whether the task at index `at` is the first of its process: a process does its tasks in order.
fn first_of_its_process(state: &State, at: u8) -> bool {
    let process = state.tasks[usize::from(at)].process();
    state.tasks.iter().position(|task| task.process() == process) == Some(usize::from(at))
}

/// Returns whether a process may receive the packet now. The process first reads packets on other sockets that explain
/// the packet.
fn may_take(
    configuration: &Configuration,
    state: &State,
    process: Process,
    (socket, side): (SocketId, u8),
    packet: Packet,
) -> bool {
    use Breakage::{AcceptorReadsLate, ConnectorReadsLate, UnknownAtOnce};
    match packet {
        // The packet that announces the lane to the receiver was sent before.
        Packet::Data(lane) if !configuration.has(UnknownAtOnce) => {
            let lane = &state.lanes[usize::from(lane)];
            let known = lane.ends[side_in(lane, process)] != End::Coming;
            let by = state.link(socket, side).and_then(|link| link.by);
            let mut connects = state.connects(process);
            known || by.is_none_or(|by| drained(state, by, process)) && connects.all(|it| drained(state, it, process))
        }
        // Before connecting, the peer sent on each link whether it still needs the link.
        Packet::Connect if !configuration.has(AcceptorReadsLate) => {
            let links = state.links_of(process, state.sockets[usize::from(socket)].maker);
            links.into_iter().all(|(link, _)| drained(state, link, process))
        }
        // The process first reads the acceptor's earlier packets on that link, and the acceptor's answer to an older
        // connect.
        Packet::Reuse(lane, over) if !configuration.has(ConnectorReadsLate) => {
            state.side_of(over, process).is_none_or(|side| {
                let half = &state.sockets[usize::from(over)].halves[usize::from(side)];
                half.link.is_some() && half.queue.first().is_none_or(|&packet| packet == Packet::Data(lane))
            })
        }
        _ => true,
    }
}

fn drained(state: &State, socket: SocketId, process: Process) -> bool {
    state
        .side_of(socket, process)
        .is_none_or(|side| state.sockets[usize::from(socket)].halves[usize::from(side)].queue.is_empty())
}

/// Returns the side (0 or 1) of the end of a lane in a process.
pub fn side_in(lane: &Lane, process: Process) -> usize {
    usize::from(lane.processes[0] != process)
}

fn of_link(
    configuration: &Configuration,
    state: &State,
    (socket, side): (SocketId, u8),
    link: &Link,
    found: &mut Vec<Action>,
) {
    let unused = link.lanes == 0;
    let up = !state.hung_up(socket, side);
    if link.named && unused && link.forgot != Some(link.announced) {
        found.push(Action::Forget(socket, side));
    }
    let idle = match configuration.breakage {
        Breakage::LanesNotCounted => !link.named && !link.pinned,
        Breakage::ConnectHoldsNothing | Breakage::IntroductionHoldsNothing => unused && !link.named && !link.pinned,
        _ => !state.in_use(socket, side),
    };
    if idle && up && link.may_ask && link.asked.is_none() && link.peer.is_some() && link.origin != Origin::Foreign {
        found.push(Action::Ask(socket, side));
    }
    if state.left.opens > 0 && link.origin == Origin::Direct && !link.pinned && link.asked.is_none() && up {
        found.push(Action::Open(socket, side));
    }
}

fn of_lane(configuration: &Configuration, state: &State, id: LaneId, lane: &Lane, found: &mut Vec<Action>) {
    for side in 0..2 {
        let process = lane.processes[usize::from(side)];
        match lane.ends[usize::from(side)] {
            _ if process == A => {}
            End::At(_) if !lane.committed && !state.alive(lane.source) && all_read(state, process) => {
                found.push(Action::Abandon(id, side));
            }
            End::At(socket) => {
                if lane.committed {
                    found.push(Action::Close(id, side));
                }
                if may_send(configuration, state, id, process, socket) {
                    found.push(Action::Send(id, side));
                }
            }
            End::Mailbox(_) => found.push(Action::Close(id, side)),
            End::Coming | End::Closed => {}
        }
    }
}

/// Returns whether a process has read every packet from dead processes.
fn all_read(state: &State, process: Process) -> bool {
    state
        .halves()
        .filter(|(.., half)| half.place == Place::At(process))
        .all(|(socket, side, half)| half.queue.is_empty() || !state.hung_up(socket, side))
}

fn may_send(configuration: &Configuration, state: &State, id: LaneId, process: Process, socket: SocketId) -> bool {
    let Some(link) = state.side_of(socket, process).and_then(|side| state.link(socket, side)) else { return false };
    let lane = &state.lanes[usize::from(id)];
    state.left.sends > 0
        && lane.committed
        && link.peer.is_some()
        && (link.asked.is_none() || configuration.has(Breakage::SendWhileAsked))
}

fn of_configuration(configuration: &Configuration, state: &State, found: &mut Vec<Action>) {
    for (line, &(introducer, [left, right], _)) in (0u8..).zip(&configuration.introductions) {
        let idle = state.tasks.iter().all(|task| task.process() != introducer);
        if state.left.introductions[usize::from(line)] > 0 && state.alive(introducer) && idle {
            let ready = |&(socket, side): &(SocketId, u8)| {
                let quiet = state.link(socket, side).is_none_or(|link| link.asked.is_none());
                quiet && !state.hung_up(socket, side)
            };
            for (one, _) in state.links_of(introducer, left).into_iter().filter(ready) {
                for (other, _) in state.links_of(introducer, right).into_iter().filter(ready) {
                    if left != right && elsewhere(configuration, state, introducer, [left, right], [one, other]) {
                        continue;
                    }
                    if left != right || one == other {
                        found.push(Action::Introduce(line, [one, other]));
                    }
                }
            }
        }
    }
    for (line, &([from, to], _)) in (0u8..).zip(&configuration.connects) {
        if state.left.connects[usize::from(line)] > 0 && state.alive(from) && state.alive(to) {
            found.push(Action::Connect(line));
        }
    }
    for (line, attack) in (0u8..).zip(&configuration.attacks) {
        if state.alive(A) && state.left.attacks & bit(line) != 0 {
            attacks(state, line, attack, found);
        }
    }
    if state.left.deaths > 0 {
        found.extend((0..4).filter(|&p| state.alive & configuration.mortal & bit(p) != 0).map(Action::Die));
    }
}

/// Returns whether the introducer has made a pair for these processes and makers over other links. If so, the
/// introducer must name that pair over those links.
fn elsewhere(
    configuration: &Configuration,
    state: &State,
    introducer: Process,
    processes: [Process; 2],
    over: [SocketId; 2],
) -> bool {
    let made = |socket| state.side_of(socket, introducer).and_then(|side| state.link(socket, side));
    let makers = over.iter().fold(bit(introducer), |set, &socket| set | made(socket).map_or(0, |link| link.makers));
    let makers = makers & !(bit(processes[0]) | bit(processes[1]));
    let same = |entry: &Entry| {
        (entry.introducer, entry.processes, entry.makers) == (introducer, processes, makers) && entry.links != over
    };
    !configuration.has(Breakage::NamedOverAnyLink) && state.entries.iter().any(same)
}

fn attacks(state: &State, line: u8, attack: &Attack, found: &mut Vec<Action>) {
    let has_copy = |socket: &SocketId| state.sockets[usize::from(*socket)].copies & bit(A) != 0;
    let sockets = (0..state.sockets.len() as u8).filter(has_copy);
    match attack {
        Attack::Shutdown | Attack::Inject(..) => found.extend(sockets.map(|socket| Action::Attack(line, Some(socket)))),
        Attack::Swap => {
            let carries = |socket: &SocketId| {
                let halves = &state.sockets[usize::from(*socket)].halves;
                halves.iter().any(|half| matches!(half.queue.first(), Some(Packet::Half { .. })))
            };
            found.extend(sockets.filter(carries).map(|socket| Action::Attack(line, Some(socket))));
        }
        _ => found.push(Action::Attack(line, None)),
    }
}
