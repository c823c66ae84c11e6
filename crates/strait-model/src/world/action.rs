//! The steps that can happen in a state.

use strait_proto::links::{Dial, Id, Lane, Packet, Seen, Step};

use super::configuration::{Attack, Configuration};
use super::state::{A, End, Move, Place, Process, World, bit, identity, process};

/// A step of one process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The holder of this half receives the next packet from the half.
    Take(Id, usize),
    /// The holder of a half sees that the other half is closed.
    HangUp(Id, usize),
    /// A process does a step owed by its machine.
    Do(Process, Step),
    /// A process ends its end of a lane that was called off, or whose source died before the commit.
    Abandon(Lane, usize),
    /// A process introduces two others, over its links to them. The number is the line of the configuration.
    Introduce(usize, Process, [Id; 2]),
    /// A process calls off its introduction for a lane.
    CallOff(Process, Lane),
    /// A process gives up a connect whose answer has not come.
    GiveUp(Process, Id),
    /// The holder of this half opens a lane on the link.
    Open(Id, usize),
    /// The process at this end of a lane sends a packet for the lane.
    Send(Lane, usize),
    /// The process at this end of a lane closes the end.
    Close(Lane, usize),
    /// A process connects to another. The number is the line of the configuration.
    Connect(usize, [Process; 2]),
    /// The hostile process does an attack. The number is the line of the configuration.
    Attack(usize, Attack),
    /// A process dies.
    Die(Process),
}

impl Action {
    /// Returns whether only a user, the hostile process or a death causes the step.
    pub fn is_optional(&self) -> bool {
        !matches!(self, Self::Take(..) | Self::HangUp(..) | Self::Do(..) | Self::Abandon(..))
    }
}

/// Adds every possible step of a state: first the steps without a user or the hostile process.
pub fn actions(is: &Configuration, now: &World, found: &mut Vec<Action>) {
    required(is, now, found);
    optional(is, now, found);
}

/// Adds every step that needs no user and no hostile process.
pub fn required(is: &Configuration, now: &World, found: &mut Vec<Action>) {
    for (on, side, half) in now.halves() {
        let Place::At(process) = half.place else { continue };
        match half.queue.first() {
            Some(item) => found.extend(may_take(now, process, on, item).then_some(Action::Take(on, side))),
            None if process != A && now.hung_up(on, side) => found.push(Action::HangUp(on, side)),
            None => {}
        }
    }
    for (&process, machine) in now.machines.iter().filter(|(process, _)| now.lives(**process)) {
        let mut links = Vec::new();
        for step in machine.owed() {
            // The packets of a link keep their order; a packet without room waits.
            let Step::Send(on, ref packet) = step else {
                found.push(Action::Do(process, step));
                continue;
            };
            let first = !links.contains(&on) || matches!(packet, Packet::Forget { .. } | Packet::Released { .. });
            links.push(on);
            if first && has_room(is, now, process, on) {
                found.push(Action::Do(process, step));
            }
        }
    }
    for (lane, state) in (0..).zip(&now.lanes) {
        for side in 0..2 {
            let dead = state.state == Move::Pending && !now.lives(state.source) && all_read(now, state.processes[side]);
            let over = dead || state.state == Move::CalledOff;
            let here = matches!(state.ends[side], End::At(_)) || is_alone(now, lane, side);
            if over && state.processes[side] != A && here {
                found.push(Action::Abandon(lane, side));
            }
        }
    }
}

fn is_alone(now: &World, lane: Lane, side: usize) -> bool {
    let machine = now.machines.get(&now.lane(lane).processes[side]);
    machine.is_some_and(|machine| machine.alone().iter().any(|alone| (alone.lane, alone.side) == (lane, side as u8)))
}

fn may_take(now: &World, process: Process, on: Id, item: &super::state::Item) -> bool {
    let Some(machine) = now.machines.get(&process) else { return true };
    let head = |other: Id| {
        let side = now.side_of(other, process)?;
        now.half(other, side).queue.first().map(|item| &item.packet)
    };
    machine.ready(on, Some(identity(item.from).inode), &item.packet, head)
}

/// Returns whether a process can send a packet on a socket now: the other half is open, and has room.
pub(super) fn has_room(is: &Configuration, now: &World, process: Process, on: Id) -> bool {
    let Some(side) = now.side_of(on, process) else { return false };
    let other = now.half(on, 1 - side);
    let open = other.place != Place::Closed || now.socket(on).copies != 0;
    open && other.queue.len() < is.room
}

/// Returns whether a process has read everything on sockets whose other half is closed.
fn all_read(now: &World, process: Process) -> bool {
    now.halves()
        .filter(|(.., half)| half.place == Place::At(process))
        .all(|(on, side, half)| half.queue.is_empty() || now.half(on, 1 - side).place != Place::Closed)
}

/// Adds every step of a user or the hostile process, and every death.
pub fn optional(is: &Configuration, now: &World, found: &mut Vec<Action>) {
    for (line, &(introducer, processes, _)) in is.introductions.iter().enumerate() {
        if now.left.introductions[line] > 0 && now.lives(introducer) {
            let over = introductions(now, introducer, processes);
            found.extend(over.into_iter().map(|over| Action::Introduce(line, introducer, over)));
        }
    }
    for (line, &(processes, _)) in is.connects.iter().enumerate() {
        if now.left.connects[line] > 0 && processes.iter().all(|&process| now.lives(process)) {
            found.push(Action::Connect(line, processes));
        }
    }
    for (&process, machine) in now.machines.iter().filter(|(process, _)| now.lives(**process)) {
        if now.left.calls_off > 0 {
            found.extend(machine.introductions().iter().map(|it| Action::CallOff(process, it.lane)));
            found.extend(unanswered(now, process).map(|on| Action::GiveUp(process, on)));
        }
        for (on, link) in machine.links().filter(|(_, link)| link.makers.is_none() && now.left.opens > 0) {
            if link.peer.is_some() && machine.may_send(on) && has_room(is, now, process, on) && !pinned(now, on) {
                found.extend(now.side_of(on, process).map(|side| Action::Open(on, side)));
            }
        }
    }
    for (lane, state) in (0..).zip(&now.lanes) {
        for side in 0..2 {
            let (process, committed) = (state.processes[side], state.state == Move::Committed);
            if process == A || state.pinned || !committed {
                continue;
            }
            match state.ends[side] {
                End::At(on) => {
                    found.push(Action::Close(lane, side));
                    let sends = now.left.sends > 0 && now.machines[&process].may_send(on);
                    if sends && has_room(is, now, process, on) {
                        found.push(Action::Send(lane, side));
                    }
                }
                End::Within => found.push(Action::Close(lane, side)),
                End::Coming | End::Closed => {}
            }
        }
    }
    for (line, attack) in is.attacks.iter().enumerate() {
        if now.lives(A) && now.left.attacks & 1 << line != 0 && possible(now, attack) {
            found.push(Action::Attack(line, attack.clone()));
        }
    }
    if now.left.deaths > 0 {
        let mortal = |process: &Process| now.alive & is.mortal & bit(*process) != 0;
        found.extend((0..super::state::PROCESSES).filter(mortal).map(Action::Die));
    }
}

/// Returns the sockets on which a process connects and has no answer. Before a process gives up, it shuts its side
/// down, so that no answer can come, and reads the earlier packets.
pub(super) fn unanswered(now: &World, process: Process) -> impl Iterator<Item = Id> {
    now.halves()
        .filter(move |(on, _, half)| {
            let dial = now.machines.get(&process).and_then(|machine| machine.dial(*on));
            let own = matches!(dial, Some(Dial::Asks { .. } | Dial::Waits { .. }));
            own && half.place == Place::At(process) && half.queue.is_empty()
        })
        .map(|(on, ..)| on)
}

fn pinned(now: &World, on: Id) -> bool {
    now.lanes.iter().any(|lane| lane.pinned && lane.ends.contains(&End::At(on)))
}

/// Returns the links over which a process can introduce two others now.
pub(super) fn introductions(now: &World, introducer: Process, processes: [Process; 2]) -> Vec<[Id; 2]> {
    let Some(machine) = now.machines.get(&introducer) else { return Vec::new() };
    let to = |peer: Process| {
        let links = machine.links().filter(move |(_, link)| link.peer == Some(identity(peer)));
        links.map(|(on, _)| on).collect::<Vec<_>>()
    };
    let [left, right] = processes.map(to);
    let all = left.iter().flat_map(|&one| right.iter().map(move |&other| [one, other]));
    let usable = |over: &[Id; 2]| machine.may_introduce(*over) && (processes[0] != processes[1] || over[0] == over[1]);
    all.filter(usable).collect()
}

/// Returns whether the hostile process can do an attack now.
pub(super) fn possible(now: &World, attack: &Attack) -> bool {
    let copied = |on: Id| now.sockets.get(on as usize).is_some_and(|socket| socket.copies & bit(A) != 0);
    let open = |on: Id, side: usize| matches!(now.half(on, side).place, Place::At(process) if process != A);
    match *attack {
        Attack::Inject(on, side, _) => (copied(on) || now.side_of(on, A) == Some(1 - side)) && open(on, side),
        Attack::Shutdown(on) => copied(on) && !pinned(now, on),
        Attack::Swap(on) => {
            copied(on) && (0..2).any(|side| now.half(on, side).queue.first().is_some_and(|item| item.half.is_some()))
        }
        _ => true,
    }
}

/// Returns the input of a machine for an item.
pub(super) fn seen(on: Id, item: &super::state::Item) -> Seen {
    let brings = item.half.map(|(socket, _)| socket);
    Seen::Packet { on, from: Some(identity(item.from).inode), packet: item.packet.clone(), brings }
}

/// Returns the peer of a link, as known to the machine.
pub(super) fn peer_of(now: &World, owner: Process, on: Id) -> Option<Process> {
    let link = now.machines.get(&owner)?.link(on)?;
    link.peer.map(|peer| process(peer.inode))
}
