//! The effect of each step: acts of the kernel (sockets, deaths) and of the hostile process. The machines of honest
//! processes decide about the rest.

use strait_proto::links::{Effect, Id, Identity, Lane, Links, Makers, Packet, Seen, Step};

use super::action::{Action, peer_of, seen};
use super::configuration::Attack;
use super::coverage::Coverage;
use super::state::{
    A, End, H, Item, Move, Place, Process, Socket, V, World, Wrong, bit, identity, process as process_of,
};

/// Returns the state after a step.
pub fn act(coverage: &Coverage, now: World, action: &Action) -> World {
    let mut act = Act { coverage, now };
    act.act(action);
    act.forget_closed();
    act.now
}

pub(super) struct Act<'a> {
    pub(super) coverage: &'a Coverage,
    pub(super) now: World,
}

impl Act<'_> {
    fn act(&mut self, action: &Action) {
        match *action {
            Action::Take(on, side) => self.take(on, side),
            Action::HangUp(on, side) => {
                let Place::At(process) = self.now.half(on, side).place else { return };
                self.see(process, Seen::HungUp(on));
            }
            Action::Do(process, ref step) => self.step(process, step),
            Action::Abandon(lane, side) | Action::Close(lane, side) => self.close_end(lane, side),
            Action::Introduce(line, process, over) => {
                self.now.left.introductions[line] -= 1;
                self.introduce(process, over);
            }
            Action::CallOff(process, lane) => {
                self.now.left.calls_off = self.now.left.calls_off.saturating_sub(1);
                self.see(process, Seen::CallOff(lane));
            }
            Action::GiveUp(process, on) => {
                self.now.left.calls_off = self.now.left.calls_off.saturating_sub(1);
                if let Some(lane) = self.now.socket(on).lane {
                    let at = self.now.end_in(lane, process);
                    self.now.lane_mut(lane).ends[at] = End::Closed;
                }
                self.see(process, Seen::HungUp(on));
            }
            Action::Open(on, side) => {
                self.now.left.opens -= 1;
                let Place::At(process) = self.now.half(on, side).place else { return };
                let peer = peer_of(&self.now, process, on).expect("the peer has greeted");
                let lane = self.now.add_lane(process, [process, peer], Move::Committed);
                self.step(process, &Step::Send(on, Packet::Open(lane)));
            }
            Action::Send(lane, side) => {
                self.now.left.sends -= 1;
                let state = self.now.lane_mut(lane);
                state.sent[side] += 1;
                let (End::At(on), process) = (state.ends[side], state.processes[side]) else { return };
                self.step(process, &Step::Send(on, Packet::Data(lane)));
            }
            Action::Connect(line, [from, to]) => {
                self.now.left.connects[line] -= 1;
                self.connect(from, to);
            }
            Action::Attack(line, ref attack) => {
                self.now.left.attacks &= !(1 << line);
                self.attack(attack);
            }
            Action::Die(process) => {
                self.now.left.deaths -= 1;
                self.die(process);
            }
        }
    }

    fn wrong(&mut self, wrong: Wrong) {
        self.now.wrong.get_or_insert(wrong);
    }

    // The inputs of a machine, and its effects.

    fn see(&mut self, process: Process, seen: Seen) {
        let Some(machine) = self.now.machines.get_mut(&process) else { return };
        self.coverage.see(machine, &seen);
        let effects = machine.see(seen.clone());
        let by_idle = match &seen {
            Seen::Done(Step::Send(_, Packet::Agree)) => true,
            Seen::Packet { packet: Packet::Idle(_) | Packet::Agree, .. } => {
                !effects.iter().any(|effect| matches!(effect, Effect::Breach(_)))
            }
            _ => false,
        };
        if by_idle && let Some(Effect::Close(on)) = effects.first() {
            self.closes_by_idle(process, *on, &effects);
        }
        effects.into_iter().for_each(|effect| self.effect(process, effect));
    }

    /// Notes a fault if a link is closed by IDLE with a lane on it, or with an unread packet.
    fn closes_by_idle(&mut self, process: Process, on: Id, effects: &[Effect]) {
        let Some(side) = self.now.side_of(on, process) else { return };
        let unread = self.now.half(on, side).queue.iter().any(|item| item.packet.is_counted());
        let off = |lane: Lane| self.now.lane(lane).state == Move::CalledOff;
        let lost = effects.iter().any(|effect| matches!(*effect, Effect::Lost(lane) if !off(lane)));
        let honest = self.now.socket(on).copied == 0 && self.now.half(on, 1 - side).place != Place::At(A);
        if (unread || lost) && honest {
            self.wrong(Wrong::ClosedInUse(on));
        }
    }

    fn effect(&mut self, process: Process, effect: Effect) {
        match effect {
            Effect::Close(on) => self.close(process, on),
            Effect::Breach(on) => {
                let blameless = self.now.socket(on).copied == 0;
                let side = self.now.side_of(on, process);
                let holder = side.map(|side| self.now.half(on, 1 - side).place);
                if let Some(Place::At(peer)) = holder.filter(|&place| blameless && place != Place::At(A)) {
                    self.wrong(Wrong::Accused(peer));
                }
            }
            Effect::Bound(lane, on) => {
                let at = self.now.end_in(lane, process);
                self.now.lane_mut(lane).ends[at] = End::At(on);
            }
            Effect::Lost(lane) => {
                let at = self.now.end_in(lane, process);
                self.lose(lane, at);
            }
            Effect::Within(lane) => self.now.lane_mut(lane).ends = [End::Within; 2],
            Effect::Failed(on) => {
                if let Some(lane) = self.now.socket(on).lane {
                    let at = self.now.end_in(lane, process);
                    self.lose(lane, at);
                }
                self.close(process, on);
            }
            Effect::CalledOff(lane) => {
                let state = &mut self.now.lane_mut(lane).state;
                if *state == Move::Pending {
                    *state = Move::CalledOff;
                }
            }
            Effect::Drop(number) => {
                let gone = self.now.kept.iter().position(|kept| (kept.0, kept.1) == (process, number));
                if let Some((.., on)) = gone.map(|at| self.now.kept.remove(at)) {
                    (0..2).for_each(|side| self.drop_half(on, side));
                }
            }
        }
    }

    /// Ends an end that its process did not close. Notes a fault if no process that may harm the lane can be the cause.
    fn lose(&mut self, lane: Lane, at: usize) {
        let alive = self.now.alive;
        let state = self.now.lane_mut(lane);
        if state.ends[at] == End::Closed {
            return;
        }
        let other_gone = state.ends[1 - at] == End::Closed || alive & bit(state.processes[1 - at]) == 0;
        let source_gone = state.state == Move::Pending && alive & bit(state.source) == 0;
        let excused = other_gone || source_gone || state.state == Move::CalledOff || state.blame & bit(A) != 0;
        state.ends[at] = End::Closed;
        if !excused {
            self.wrong(Wrong::Harmed(lane));
        }
    }

    fn close_end(&mut self, lane: Lane, side: usize) {
        let process = self.now.lane(lane).processes[side];
        self.now.lane_mut(lane).ends[side] = End::Closed;
        self.see(process, Seen::Close(lane));
    }

    // Sockets.

    /// Closes a process's half of a socket.
    fn close(&mut self, process: Process, on: Id) {
        if let Some(side) = self.now.side_of(on, process) {
            self.close_half(on, side);
        }
    }

    fn close_half(&mut self, on: Id, side: usize) {
        let half = self.now.half_mut(on, side);
        half.place = Place::Closed;
        half.asked = false;
        let lost = std::mem::take(&mut half.queue);
        lost.into_iter().filter_map(|item| item.half).for_each(|(socket, side)| self.drop_half(socket, side));
    }

    fn drop_half(&mut self, on: Id, side: usize) {
        if self.now.half(on, side).place == Place::Travelling {
            self.close_half(on, side);
        }
    }

    /// Puts a packet into a socket, for the half on `side`.
    fn put(&mut self, on: Id, side: usize, item: Item) {
        let half = self.now.half_mut(on, side);
        if half.place == Place::Closed {
            item.half.into_iter().for_each(|(socket, side)| self.drop_half(socket, side));
        } else {
            half.queue.push(item);
        }
    }

    fn take(&mut self, on: Id, side: usize) {
        let half = self.now.half_mut(on, side);
        let item = half.queue.remove(0);
        let Place::At(process) = half.place else { return };
        if matches!(item.packet, Packet::Agree | Packet::Refuse | Packet::Idle(_)) {
            half.asked = false;
        }
        if process == A {
            return self.taken_by_a(item);
        }
        if let Some((socket, side)) = item.half {
            self.now.half_mut(socket, side).place = Place::At(process);
        }
        if let Packet::Data(lane) = item.packet {
            let at = self.now.end_in(lane, process);
            let state = self.now.lane_mut(lane);
            if state.ends[at] != End::Closed {
                state.received[at] += 1;
            }
        }
        self.see(process, seen(on, &item));
    }

    fn taken_by_a(&mut self, item: Item) {
        let Some((socket, side)) = item.half else { return };
        if let Packet::Half { lane, .. } = item.packet
            && self.now.lane(lane).blame & bit(A) == 0
        {
            self.wrong(Wrong::Stolen(lane));
        }
        self.drop_half(socket, side);
    }

    // Steps of honest processes.

    fn step(&mut self, process: Process, step: &Step) {
        match *step {
            Step::Send(on, ref packet) => self.send(process, on, packet),
            Step::Make(lane) => self.make(process, lane),
            Step::Commit(lane) => self.now.lane_mut(lane).state = Move::Committed,
        }
        self.see(process, Seen::Done(step.clone()));
    }

    fn send(&mut self, process: Process, on: Id, packet: &Packet) {
        let Some(side) = self.now.side_of(on, process) else { return };
        let asked = &mut self.now.half_mut(on, side).asked;
        if packet.is_counted() && *asked {
            self.wrong(Wrong::NotQuiet(on));
        } else if matches!(packet, Packet::Idle(_)) {
            *asked = true;
        }
        let half = match *packet {
            Packet::Half { number, .. } => self.half_of(process, number, on),
            _ => None,
        };
        self.put(on, 1 - side, Item { from: process, packet: packet.clone(), half });
    }

    /// Returns the half of a pair that goes over a link.
    fn half_of(&mut self, process: Process, number: u64, over: Id) -> Option<(Id, usize)> {
        let pair = self.now.machines[&process].pairs().iter().find(|pair| pair.number == number)?;
        let side = pair.over.iter().position(|&link| link == over)?;
        let last = pair.told[1 - side] > 0;
        let at = self.now.kept.iter().position(|kept| (kept.0, kept.1) == (process, number))?;
        let (.., socket) = self.now.kept[at];
        if last {
            self.now.kept.remove(at);
        }
        Some((socket, side))
    }

    fn introduce(&mut self, process: Process, over: [Id; 2]) {
        let ends = over.map(|on| peer_of(&self.now, process, on).expect("the peer has greeted"));
        let lane = self.now.add_lane(process, ends, Move::Pending);
        self.see(process, Seen::Introduce { over, lane });
        let used = self.now.machines[&process].introductions().iter().find(|it| it.lane == lane).map(|it| it.over);
        for on in used.into_iter().flatten() {
            let known = self.now.machines[&process].link(on).map_or(0, |link| set(&link.makers));
            let copied = self.now.socket(on).copied;
            self.now.lane_mut(lane).blame |= known | copied;
        }
    }

    fn make(&mut self, process: Process, lane: Lane) {
        let found = self.now.machines[&process].introductions().iter().find(|it| it.lane == lane).cloned();
        let Some((it, number)) = found.and_then(|it| it.pair.map(|number| (it, number))) else { return };
        // The hostile process can copy everything that passes over a socket if it has a copy of the socket.
        let over = |of: fn(&Socket) -> u8| it.over.iter().fold(0, |set, &on| set | of(self.now.socket(on)));
        let (copies, copied) = (over(|socket| socket.copies), over(|socket| socket.copied));
        let pair = Socket { copied, ..Socket::new(process, copies, [Place::Travelling; 2]) };
        let on = self.now.add_socket(pair);
        self.now.kept.push((process, number, on));
    }

    fn connect(&mut self, from: Process, to: Process) {
        let on = self.now.add_socket(Socket::new(from, 0, [Place::At(from), Place::At(to)]));
        let lane = self.now.add_lane(from, [from, to], Move::Committed);
        self.now.sockets[on as usize].lane = Some(lane);
        self.see(from, Seen::Connect { on, to: Some(identity(to).inode), link: on });
        self.see(to, Seen::Accepted { on, from: Some(identity(from).inode), lane });
    }

    // The start of a world.

    pub(super) fn given(&mut self, process: Process, on: Id, peer: Option<Process>) {
        self.see(process, Seen::Given { on, peer: peer.map(|peer| identity(peer).inode) });
    }

    /// Lets both sides of a socket send and take their first packets.
    pub(super) fn greet(&mut self, on: Id) {
        for side in 0..2 {
            let Place::At(process) = self.now.half(on, side).place else { continue };
            let direct = self.now.socket(on).copies == 0;
            let packet = Packet::Handshake { name: identity(process).name, direct };
            self.send(process, on, &packet);
            self.see(process, Seen::Done(Step::Send(on, packet)));
        }
        (0..2).for_each(|side| self.take(on, side));
    }

    pub(super) fn open_both(&mut self, on: Id, lane: Lane) {
        let [left, right] = self.now.lane(lane).processes;
        let opener = if left == A { right } else { left };
        self.step(opener, &Step::Send(on, Packet::Open(lane)));
        let other = self.now.side_of(on, if left == A { left } else { right });
        other.into_iter().for_each(|side| self.take(on, side));
        for at in 0..2 {
            self.now.lane_mut(lane).ends[at] = End::At(on);
        }
    }

    // Deaths and attacks.

    fn die(&mut self, process: Process) {
        self.now.alive &= !bit(process);
        if let Some(machine) = self.now.machines.get_mut(&process) {
            *machine = Links::new(identity(process));
        }
        for lane in &mut self.now.lanes {
            for at in (0..2).filter(|&at| lane.processes[at] == process) {
                lane.ends[at] = End::Closed;
            }
        }
        for on in 0..self.now.sockets.len() as Id {
            self.now.sockets[on as usize].copies &= !bit(process);
            self.close(process, on);
        }
        let (gone, kept) = self.now.kept.iter().partition(|kept| kept.0 == process);
        self.now.kept = kept;
        let gone: Vec<(Process, u64, Id)> = gone;
        for (.., on) in gone {
            (0..2).filter(|&side| !self.is_in_a_packet(on, side)).collect::<Vec<_>>().into_iter().for_each(|side| {
                self.drop_half(on, side);
            });
        }
    }

    fn is_in_a_packet(&self, on: Id, side: usize) -> bool {
        self.now.halves().any(|(.., half)| half.queue.iter().any(|item| item.half == Some((on, side))))
    }

    fn attack(&mut self, attack: &Attack) {
        match *attack {
            Attack::Inject(on, side, ref packet) => {
                self.put(on, side, Item { from: A, packet: packet.clone(), half: None });
            }
            Attack::Shutdown(on) => {
                for side in 0..2 {
                    if let Place::At(process) = self.now.half(on, side).place {
                        self.close_half(on, side);
                        self.see(process, Seen::HungUp(on));
                    }
                }
            }
            Attack::Swap(on) => self.swap(on),
            Attack::NameElsewhere => self.name_elsewhere(),
            Attack::Frame => self.frame(),
            Attack::FalseYourself => {
                let lane = self.now.add_lane(A, [V, V], Move::Committed);
                self.say(V, Packet::Yourself { lane, side: 0 }, None);
            }
            Attack::HandOn => self.hand_on(),
            Attack::ListenerCopy => self.listener_copy(),
            Attack::NameSelf => self.name_self(),
            Attack::HandDown => self.hand_down(),
            Attack::Intercept => self.intercept(),
            Attack::Dial => self.dial(),
        }
    }

    /// A sends a packet over its own link to a process.
    fn say(&mut self, to: Process, packet: Packet, half: Option<(Id, usize)>) {
        let found = self.now.halves().map(|(on, side, _)| (on, side)).find(|&(on, side)| {
            let own = self.now.half(on, 1 - side).place == Place::At(A);
            own && self.now.half(on, side).place == Place::At(to)
        });
        match (found, half) {
            (Some((on, side)), _) => self.put(on, side, Item { from: A, packet, half }),
            (None, Some((socket, side))) => self.drop_half(socket, side),
            (None, None) => {}
        }
    }

    fn half_packet(&self, on: Id, lane: Lane, expected: Process) -> Packet {
        // A does not name itself as a maker.
        Packet::Half { number: 1000 + on, lane, expected: Some(identity(expected)), makers: Makers::NONE }
    }

    fn name_elsewhere(&mut self) {
        let on = self.now.add_socket(Socket::new(A, bit(A), [Place::Travelling, Place::At(A)]));
        let lane = self.now.add_lane(A, [V, H], Move::Committed);
        let packet = self.half_packet(on, lane, H);
        self.say(V, packet, Some((on, 0)));
        self.put(
            on,
            0,
            Item { from: A, packet: Packet::Handshake { name: identity(H).name, direct: false }, half: None },
        );
    }

    fn frame(&mut self) {
        let on = self.now.add_socket(Socket::new(A, bit(A), [Place::Travelling; 2]));
        let lanes = [0, 1].map(|_| self.now.add_lane(A, [V, H], Move::Committed));
        for (side, to, other) in [(0, V, H), (1, H, V)] {
            let packet = self.half_packet(on, lanes[0], other);
            self.say(to, packet, Some((on, side)));
        }
        self.say(V, Packet::Named { number: 1000 + on, lane: lanes[1] }, None);
    }

    fn hand_on(&mut self) {
        let on = self.now.add_socket(Socket::new(A, bit(A), [Place::Travelling, Place::At(V)]));
        let lane = self.now.add_lane(A, [H, V], Move::Committed);
        self.see(V, Seen::Accepted { on, from: Some(identity(A).inode), lane });
        let packet = self.half_packet(on, lane, V);
        self.say(H, packet, Some((on, 0)));
    }

    fn listener_copy(&mut self) {
        let on = self.now.add_socket(Socket::new(A, bit(A), [Place::At(H), Place::Travelling]));
        let lane = self.now.add_lane(A, [H, V], Move::Committed);
        self.now.sockets[on as usize].lane = Some(lane);
        self.see(H, Seen::Connect { on, to: Some(identity(V).inode), link: on });
        let packet = self.half_packet(on, lane, H);
        self.say(V, packet, Some((on, 1)));
    }

    fn name_self(&mut self) {
        let on = self.now.add_socket(Socket::new(A, bit(A), [Place::Travelling; 2]));
        let lane = self.now.add_lane(A, [V, H], Move::Committed);
        for (side, to, expected) in [(0, V, A), (1, H, V)] {
            let packet = self.half_packet(on, lane, expected);
            self.say(to, packet, Some((on, side)));
        }
    }

    fn hand_down(&mut self) {
        let on = self.now.add_socket(Socket::new(V, bit(A), [Place::At(V), Place::At(H)]));
        self.given(V, on, Some(A));
        self.given(H, on, Some(V));
    }

    fn intercept(&mut self) {
        let on = self.now.add_socket(Socket::new(H, bit(A), [Place::At(H), Place::Travelling]));
        let lane = self.now.add_lane(A, [H, V], Move::Committed);
        self.given(H, on, Some(V));
        let packet = self.half_packet(on, lane, H);
        self.say(V, packet, Some((on, 1)));
    }

    fn dial(&mut self) {
        let on = self.now.add_socket(Socket::new(A, 0, [Place::At(A), Place::At(V)]));
        let lane = self.now.add_lane(A, [A, V], Move::Committed);
        self.now.sockets[on as usize].lane = Some(lane);
        self.see(V, Seen::Accepted { on, from: Some(identity(A).inode), lane });
        let packet = Packet::Connect { name: identity(A).name, link: on };
        self.put(on, 1, Item { from: A, packet, half: None });
    }

    fn swap(&mut self, over: Id) {
        let brings = |side: &usize| self.now.half(over, *side).queue.first().and_then(|item| item.half).is_some();
        let Some(to) = (0..2).find(brings) else { return };
        let own = self.now.add_socket(Socket::new(A, bit(A), [Place::At(A), Place::Travelling]));
        let item = &mut self.now.half_mut(over, to).queue[0];
        let Some((socket, side)) = item.half.replace((own, 1)) else { return };
        let Packet::Half { expected, .. } = item.packet else { return };
        self.now.half_mut(socket, side).place = Place::At(A);
        let name =
            |process: Option<Identity>| Packet::Handshake { name: process.map_or(0, |it| it.name), direct: false };
        self.put(own, 1, Item { from: A, packet: name(expected), half: None });
        self.put(socket, 1 - side, Item { from: A, packet: name(expected), half: None });
    }

    /// Makes all closed sockets equal, so that there are fewer different states.
    fn forget_closed(&mut self) {
        for socket in &mut self.now.sockets {
            if socket.halves.iter().all(|half| half.place == Place::Closed) {
                *socket = Socket::new(V, 0, [Place::Closed; 2]);
            }
        }
    }
}

/// Returns the processes of a set of makers.
fn set(makers: &Makers) -> u8 {
    match makers {
        Makers::Known(known) => known.iter().fold(0, |set, maker| set | bit(process_of(maker.inode))),
        Makers::Anyone => 0,
    }
}
