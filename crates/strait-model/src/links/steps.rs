//! The effect of each step.

use super::action::{Action, side_in};
use super::breakage::Breakage;
use super::configuration::{Attack, Configuration};
use super::met::{Met, Seen};
use super::state::{
    A, B, End, Entry, H, HOSTILE, LaneId, Link, Origin, Packet, Place, Process, Set, Socket, SocketId, State, Task, V,
    Wrong, bit,
};

/// Returns the state after a step.
pub(super) fn act(configuration: &Configuration, seen: &Seen, state: &State, action: Action) -> State {
    let mut step = Step { is: configuration, seen, now: state.clone() };
    step.act(action);
    step.forget_closed();
    step.now
}

struct Step<'a> {
    is: &'a Configuration,
    seen: &'a Seen,
    now: State,
}

impl Step<'_> {
    fn act(&mut self, action: Action) {
        match action {
            Action::Take(socket, side) => self.take(socket, side),
            Action::HangUp(socket, side) => self.abort(socket, side),
            Action::Ask(socket, side) => self.ask(socket, side),
            Action::Forget(socket, side) => self.forget(socket, side),
            Action::Go(at) => self.go(usize::from(at)),
            Action::Abandon(lane, side) => {
                self.seen.note(Met::Abandoned);
                self.end(lane, side);
            }
            Action::Introduce(line, over) => self.introduce(usize::from(line), over),
            Action::Open(socket, side) => self.open(socket, side),
            Action::Send(lane, side) => self.send_data(lane, side),
            Action::Close(lane, side) => self.close(lane, side),
            Action::Connect(line) => self.connect(usize::from(line)),
            Action::Attack(line, socket) => self.attack(line, socket),
            Action::Die(process) => self.die(process),
        }
    }

    fn wrong(&mut self, wrong: Wrong) {
        self.now.wrong.get_or_insert(wrong);
    }

    fn has(&self, breakage: Breakage) -> bool {
        self.is.has(breakage)
    }

    /// Puts a packet into a socket, for the other half. If the other half is closed, the packet is lost.
    fn put(&mut self, socket: SocketId, side: u8, packet: Packet) {
        if let Some(link) = self.now.link_mut(socket, side) {
            let quiet = link.asked.is_some();
            link.sent += u8::from(packet.counted());
            if quiet && packet.counted() {
                self.wrong(Wrong::NotQuiet(socket));
            }
        }
        let other = self.now.half(socket, 1 - side);
        match (other.place, packet) {
            (Place::Closed, Packet::Half { socket, side, .. }) => self.drop_half(socket, side),
            (Place::Closed, _) => {}
            _ => other.queue.push(packet),
        }
    }

    fn take(&mut self, socket: SocketId, side: u8) {
        let packet = self.now.half(socket, side).queue.remove(0);
        let process = self.now.holder(socket, side).expect("a process takes");
        if process == A {
            return self.taken_by_a(packet);
        }
        if let Some(link) = self.now.link_mut(socket, side) {
            link.received += u8::from(packet.counted());
        }
        match packet {
            Packet::Handshake { from, claims, direct } => self.handshake(socket, side, [from, claims], direct),
            Packet::Open(lane) => self.bind(lane, 1, socket, side),
            Packet::Data(lane) => self.data(socket, side, process, lane),
            Packet::NoLane(lane) => {
                self.seen.note(Met::NoLane);
                let at = side_in(self.now.lane(lane), process);
                self.lose(lane, at as u8);
            }
            Packet::Idle(n) => self.idle(socket, side, n),
            Packet::Agree => {
                self.seen.note(Met::Agreed);
                self.close_half(socket, side);
            }
            Packet::Refuse => {
                self.seen.note(Met::Refused);
                if let Some(link) = self.now.link_mut(socket, side) {
                    link.asked = None;
                    link.may_ask = false;
                }
            }
            Packet::Half { socket: new, side: at, lane, expected, makers } => {
                self.half_arrives(socket, side, process, (new, at), expected, makers);
                self.announced(process, new, lane);
            }
            Packet::Lane(over, lane) => self.announced(process, over, lane),
            Packet::Forget(over, n) => self.forget_asked(process, socket, over, n),
            Packet::Released(over) => self.released(process, socket, over),
            Packet::Yourself(lane, end) => self.now.lane(lane).ends[usize::from(end)] = End::Mailbox(socket),
            Packet::Connect => self.accept(socket, side, process),
            Packet::Reuse(lane, over) => self.reuse(socket, side, process, lane, over),
            Packet::New(lane) => self.new_link(socket, side, process, lane),
        }
    }

    fn taken_by_a(&mut self, packet: Packet) {
        if let Packet::Half { socket, side, lane, .. } = packet {
            if self.now.lane(lane).processes[usize::from(side)] != A {
                self.wrong(Wrong::Stolen(lane));
            }
            self.drop_half(socket, side);
        }
    }

    // Identity and provenance.

    fn handshake(&mut self, socket: SocketId, side: u8, [from, claims]: [Process; 2], direct: bool) {
        let first_packet_alone = self.has(Breakage::FirstPacketAlone);
        let one_side = self.has(Breakage::DirectByOneSide);
        let (claimed, unchecked) = (self.has(Breakage::ClaimedName), self.has(Breakage::ExpectedUnchecked));
        let Some(link) = self.now.link_mut(socket, side) else { return };
        let expected = link.expected;
        let peer = if claimed { claims } else { from };
        link.peer = Some(if unchecked { expected.unwrap_or(peer) } else { peer });
        if let Some(maker) = link.credentials {
            let agrees = (maker == from || first_packet_alone) && (direct || one_side || first_packet_alone);
            link.origin = if agrees { Origin::Direct } else { Origin::Foreign };
            if !agrees {
                self.seen.note(Met::Foreign);
            }
        }
        if expected.is_some_and(|expected| expected != from) && !unchecked {
            self.seen.note(Met::Mismatch);
            self.abort(socket, side);
        } else if self.now.link(socket, side).and_then(|link| link.peer) != Some(from) {
            self.wrong(Wrong::Misnamed(socket));
        }
    }

    /// Makes an introduced link of a received half, and sends the first packet over the link.
    fn half_arrives(
        &mut self,
        by: SocketId,
        by_side: u8,
        process: Process,
        (socket, side): (SocketId, u8),
        expected: Process,
        makers: Set,
    ) {
        let known = self.now.link(by, by_side).map_or(0, |link| link.makers);
        let introducer = self.now.link(by, by_side).and_then(|link| link.peer).map_or(0, bit);
        let makers = (makers | known | introducer) & !(bit(process) | bit(expected));
        let link =
            Link { expected: Some(expected), makers, by: Some(by), named: true, ..Link::new(Origin::Introduced) };
        let half = self.now.half(socket, side);
        half.place = Place::At(process);
        half.link = Some(link);
        self.put(socket, side, Packet::Handshake { from: process, claims: process, direct: false });
    }

    /// Binds a lane to the link named by the introducer.
    fn announced(&mut self, process: Process, socket: SocketId, lane: LaneId) {
        let at = side_in(self.now.lane(lane), process) as u8;
        let expected = self.now.lane(lane).processes[usize::from(1 - at)];
        let Some(side) = self.now.side_of(socket, process) else { return self.lose(lane, at) };
        if let Some(link) = self.now.link_mut(socket, side) {
            link.announced += 1;
        }
        let oldest = self.now.links_of(process, expected).first().copied();
        match oldest.filter(|_| self.has(Breakage::MakersIgnored)) {
            Some((oldest, its_side)) => self.bind(lane, at, oldest, its_side),
            None => self.bind(lane, at, socket, side),
        }
    }

    // Lanes.

    fn bind(&mut self, lane: LaneId, at: u8, socket: SocketId, side: u8) {
        let Some(link) = self.now.link_mut(socket, side) else { return self.lose(lane, at) };
        link.lanes |= bit(lane);
        self.now.lane(lane).ends[usize::from(at)] = End::At(socket);
    }

    fn unbind(&mut self, lane: LaneId, at: u8) {
        let process = self.now.lane(lane).processes[usize::from(at)];
        if let End::At(socket) = self.now.lane(lane).ends[usize::from(at)]
            && let Some(side) = self.now.side_of(socket, process)
            && let Some(link) = self.now.link_mut(socket, side)
        {
            link.lanes &= !bit(lane);
        }
    }

    /// Closes an end on behalf of its process.
    fn close(&mut self, lane: LaneId, at: u8) {
        self.unbind(lane, at);
        self.end(lane, at);
    }

    fn end(&mut self, lane: LaneId, at: u8) {
        self.unbind(lane, at);
        self.now.lane(lane).ends[usize::from(at)] = End::Closed;
    }

    /// Ends an end that its process did not close. Notes a fault if no process that may harm the lane can be the
    /// cause.
    fn lose(&mut self, lane: LaneId, at: u8) {
        self.end(lane, at);
        let alive = self.now.alive;
        let it = self.now.lane(lane);
        let peer_died = alive & bit(it.processes[usize::from(1 - at)]) == 0;
        let source_died = !it.committed && alive & bit(it.source) == 0;
        if !peer_died && !source_died && it.blame & HOSTILE == 0 {
            self.wrong(Wrong::Harmed(lane));
        }
    }

    fn open(&mut self, socket: SocketId, side: u8) {
        self.now.left.opens -= 1;
        let own = self.now.holder(socket, side).expect("a process opens");
        let peer = self.now.link(socket, side).and_then(|link| link.peer).expect("it is direct");
        let lane = self.now.add_lane(own, [own, peer], 0, true);
        self.bind(lane, 0, socket, side);
        self.put(socket, side, Packet::Open(lane));
    }

    fn send_data(&mut self, lane: LaneId, at: u8) {
        self.now.left.sends -= 1;
        let it = self.now.lane(lane);
        it.sent[usize::from(at)] += 1;
        let (End::At(socket), process) = (it.ends[usize::from(at)], it.processes[usize::from(at)]) else { return };
        let side = self.now.side_of(socket, process).expect("the end is bound");
        self.put(socket, side, Packet::Data(lane));
    }

    fn data(&mut self, socket: SocketId, side: u8, process: Process, lane: LaneId) {
        let at = side_in(self.now.lane(lane), process);
        let end = self.now.lane(lane).ends[at];
        match end {
            End::At(_) | End::Mailbox(_) => self.now.lane(lane).received[at] += 1,
            End::Closed => {}
            End::Coming if self.has(Breakage::UnknownIsBreach) => {
                let peer = self.now.link(socket, side).and_then(|link| link.peer);
                if let Some(peer) = peer.filter(|&peer| peer != A) {
                    self.wrong(Wrong::Accused(peer));
                }
            }
            End::Coming => self.put(socket, side, Packet::NoLane(lane)),
        }
    }

    // The end of a link.

    fn ask(&mut self, socket: SocketId, side: u8) {
        let link = self.now.link_mut(socket, side).expect("it asks");
        let n = link.received;
        link.asked = Some(n);
        self.put(socket, side, Packet::Idle(n));
    }

    fn idle(&mut self, socket: SocketId, side: u8, n: u8) {
        let any = self.has(Breakage::IdleWithoutCount);
        let used = self.now.in_use(socket, side);
        let breakage = self.is.breakage;
        let Some(link) = self.now.link_mut(socket, side) else { return };
        let in_use = match breakage {
            Breakage::LanesNotCounted => link.named || link.pinned,
            Breakage::ConnectHoldsNothing | Breakage::IntroductionHoldsNothing => {
                link.named || link.pinned || link.lanes != 0
            }
            _ => used,
        };
        let heard_all = n == link.sent || any;
        match link.asked {
            Some(asked) if heard_all && (asked == link.received || any) => {
                self.seen.note(Met::CrossedEqual);
                self.close_half(socket, side);
            }
            Some(_) => self.crossed_unequal(socket, side),
            None if in_use || !heard_all => self.refuse(socket, side),
            None => {
                self.put(socket, side, Packet::Agree);
                self.close_half(socket, side);
            }
        }
    }

    fn crossed_unequal(&mut self, socket: SocketId, side: u8) {
        self.seen.note(Met::CrossedUnequal);
        let owes = !self.has(Breakage::CrossedOweNothing);
        let link = self.now.link_mut(socket, side).expect("it asked");
        link.asked = None;
        link.may_ask = owes;
    }

    /// Sends REFUSE. The refusing side owes the next IDLE.
    fn refuse(&mut self, socket: SocketId, side: u8) {
        let owes = !self.has(Breakage::RefuserOwesNothing);
        let link = self.now.link_mut(socket, side).expect("it was asked");
        link.may_ask = owes;
        self.put(socket, side, Packet::Refuse);
    }

    /// Closes a half that is not needed any more. Notes a fault if a lane is bound to the half, or a counted packet
    /// is unread.
    fn close_half(&mut self, socket: SocketId, side: u8) {
        let half = &self.now.sockets[usize::from(socket)].halves[usize::from(side)];
        let bound = half.link.as_ref().map_or(0, |link| link.lanes);
        let unread = half.queue.iter().any(|packet| packet.counted());
        let harmed = self.now.sockets[usize::from(socket)].copies != 0;
        if (bound != 0 || unread) && !harmed {
            self.wrong(Wrong::ClosedInUse(socket));
        }
        self.abort(socket, side);
    }

    /// Closes a half and ends the lanes of the half.
    fn abort(&mut self, socket: SocketId, side: u8) {
        let process = self.now.holder(socket, side);
        let half = self.now.half(socket, side);
        half.place = Place::Closed;
        let lanes = half.link.take().map_or(0, |link| link.lanes);
        for packet in std::mem::take(&mut half.queue) {
            if let Packet::Half { socket, side, .. } = packet {
                self.drop_half(socket, side);
            }
        }
        for lane in (0..8).filter(|&lane| lanes & bit(lane) != 0) {
            let gone = |at: &u8| {
                let it = &self.now.lanes[usize::from(lane)];
                let process = it.processes[usize::from(*at)];
                it.ends[usize::from(*at)] == End::At(socket) && self.now.side_of(socket, process).is_none()
            };
            let bound: Vec<u8> = (0..2).filter(gone).collect();
            bound.into_iter().for_each(|at| self.lose(lane, at));
        }
        if let Some(process) = process.filter(|&process| self.now.alive(process)) {
            self.link_is_gone(process, socket);
        }
    }

    fn drop_half(&mut self, socket: SocketId, side: u8) {
        if self.now.half(socket, side).place == Place::Travelling {
            self.abort(socket, side);
        }
    }

    /// Handles the close of the link `socket`: links named over it are named no more. The introducer removes the
    /// entries of the link.
    fn link_is_gone(&mut self, process: Process, socket: SocketId) {
        for (other, its_side, _) in self.now.clone().halves().filter(|(.., half)| half.place == Place::At(process)) {
            if let Some(link) = self.now.link_mut(other, its_side).filter(|link| link.by == Some(socket)) {
                link.named = false;
            }
        }
        self.end_mailboxes(socket, process);
        let lost = |entry: &Entry| entry.introducer == process && entry.links.contains(&socket);
        let gone: Vec<Entry> = self.now.entries.iter().filter(|entry| lost(entry)).cloned().collect();
        self.now.entries.retain(|entry| !lost(entry));
        gone.iter().for_each(|entry| self.release(entry));
    }

    /// Ends each end that arrived over a closed link without the other end, which was announced for the process too.
    fn end_mailboxes(&mut self, socket: SocketId, process: Process) {
        if self.has(Breakage::YourselfBelieved) {
            return;
        }
        for lane in 0..self.now.lanes.len() as u8 {
            for at in 0..2 {
                let it = self.now.lane(lane);
                let other_came = it.ends[usize::from(1 - at)] != End::Coming;
                if it.processes[usize::from(at)] == process
                    && it.ends[usize::from(at)] == End::Mailbox(socket)
                    && !other_came
                {
                    self.seen.note(Met::HalfMailbox);
                    self.lose(lane, at);
                }
            }
        }
    }

    // The introducer.

    fn introduce(&mut self, line: usize, over: [SocketId; 2]) {
        self.now.left.introductions[line] -= 1;
        let (introducer, processes, _) = self.is.introductions[line];
        let makers = over.iter().fold(bit(introducer), |set, &socket| set | self.makers(socket, introducer));
        let truth = over.iter().fold(0, |set, &socket| set | self.now.sockets[usize::from(socket)].copies);
        let lane = self.now.add_lane(introducer, processes, makers | truth, false);
        if processes[0] == processes[1] {
            self.tell(introducer, over[0], Packet::Yourself(lane, 0));
            self.now.tasks.push(Task::Second(introducer, over[1], Packet::Yourself(lane, 1)));
        } else {
            let makers = makers & !(bit(processes[0]) | bit(processes[1]));
            self.name_a_link(introducer, processes, makers, over, lane);
        }
        self.now.tasks.push(Task::Commit(introducer, lane));
    }

    fn makers(&self, socket: SocketId, process: Process) -> Set {
        self.now.side_of(socket, process).and_then(|side| self.now.link(socket, side)).map_or(0, |link| link.makers)
    }

    fn name_a_link(
        &mut self,
        introducer: Process,
        processes: [Process; 2],
        makers: Set,
        over: [SocketId; 2],
        lane: LaneId,
    ) {
        let any_makers = self.has(Breakage::KeyWithoutMakers);
        let entry = self.now.entries.iter_mut().find(|entry| {
            entry.introducer == introducer && entry.processes == processes && (any_makers || entry.makers == makers)
        });
        let packets = if let Some(entry) = entry {
            self.seen.note(Met::NamedAgain);
            entry.announced += 1;
            entry.forgot = [false; 2];
            [Packet::Lane(entry.socket, lane); 2]
        } else {
            self.make_pair(introducer, processes, makers, over, lane)
        };
        self.tell(introducer, over[0], packets[0]);
        self.now.tasks.push(Task::Second(introducer, over[1], packets[1]));
    }

    fn make_pair(
        &mut self,
        introducer: Process,
        processes: [Process; 2],
        makers: Set,
        links: [SocketId; 2],
        lane: LaneId,
    ) -> [Packet; 2] {
        let hostile = makers & HOSTILE;
        let truth = links.iter().fold(hostile, |set, &socket| set | self.now.sockets[usize::from(socket)].copies);
        let socket = self.now.add_socket(Socket::new(introducer, truth & HOSTILE, [Place::Travelling; 2]));
        self.now.entries.push(Entry { introducer, socket, processes, makers, links, announced: 1, forgot: [false; 2] });
        [0, 1].map(|side| Packet::Half { socket, side, lane, expected: processes[usize::from(1 - side)], makers })
    }

    /// Sends a packet over a link of an introducer; if that link is closed, closes the half in the packet.
    fn tell(&mut self, process: Process, socket: SocketId, packet: Packet) {
        match (self.now.side_of(socket, process), packet) {
            (Some(side), _) => self.put(socket, side, packet),
            (None, Packet::Half { socket, side, .. }) => self.drop_half(socket, side),
            (None, _) => {}
        }
    }

    fn go(&mut self, at: usize) {
        match self.now.tasks.remove(at) {
            Task::Second(process, socket, packet) => self.tell(process, socket, packet),
            Task::Commit(_, lane) => self.now.lane(lane).committed = true,
        }
    }

    fn forget(&mut self, socket: SocketId, side: u8) {
        let unanswered = self.has(Breakage::ForgetUnanswered);
        let link = self.now.link_mut(socket, side).expect("it is named");
        link.forgot = Some(link.announced);
        link.named = !unanswered;
        let (by, n) = (link.by, link.announced);
        let process = self.now.holder(socket, side).expect("a process asks");
        if let Some(by) = by {
            self.tell(process, by, Packet::Forget(socket, n));
        }
    }

    fn forget_asked(&mut self, process: Process, on: SocketId, socket: SocketId, n: u8) {
        let (any_link, any_n) = (self.has(Breakage::ForgetOnAnyLink), self.has(Breakage::ForgetWithoutCount));
        let one = self.has(Breakage::ForgetByOneSide);
        let owns = |entry: &Entry| entry.introducer == process && entry.socket == socket;
        let Some(at) = self.now.entries.iter().position(owns) else { return };
        let entry = &mut self.now.entries[at];
        let sides: Vec<usize> = (0..2).filter(|&side| entry.links[side] == on || any_link).collect();
        if n != entry.announced && !any_n {
            return self.seen.note(Met::ForgetCrossed);
        }
        sides.into_iter().for_each(|side| entry.forgot[side] = true);
        if entry.forgot == [true; 2] || one {
            self.seen.note(Met::Released);
            let entry = self.now.entries.remove(at);
            self.release(&entry);
        }
    }

    /// Sends RELEASED to both processes of an entry: the introducer names the link no more.
    fn release(&mut self, entry: &Entry) {
        for link in entry.links {
            self.tell(entry.introducer, link, Packet::Released(entry.socket));
        }
    }

    fn released(&mut self, process: Process, by: SocketId, socket: SocketId) {
        let any_link = self.has(Breakage::ForgetOnAnyLink);
        if let Some(side) = self.now.side_of(socket, process)
            && let Some(link) = self.now.link_mut(socket, side).filter(|link| link.by == Some(by) || any_link)
        {
            link.named = false;
        }
    }

    // Connecting.

    fn connect(&mut self, line: usize) {
        self.now.left.connects[line] -= 1;
        let ([from, to], _) = self.is.connects[line];
        let socket = self.now.add_socket(Socket::new(from, 0, [Place::At(from), Place::At(to)]));
        self.put(socket, 0, Packet::Connect);
    }

    /// Returns a direct link to a peer for a new lane. Of two links, returns the link whose connector has the smaller
    /// identity.
    fn direct_link(&self, process: Process, peer: Process) -> Option<(SocketId, u8)> {
        let links = self.now.links_of(process, peer).into_iter().filter(|&(socket, side)| {
            let link = self.now.link(socket, side).expect("it is a link");
            let quiet = link.asked.is_some() && self.has(Breakage::AskedAnswersNew);
            link.origin == Origin::Direct && !link.pinned && !quiet && !self.now.hung_up(socket, side)
        });
        links.min_by_key(|&(socket, _)| self.now.sockets[usize::from(socket)].maker)
    }

    fn accept(&mut self, socket: SocketId, side: u8, process: Process) {
        let from = self.now.sockets[usize::from(socket)].maker;
        let lane = self.now.add_lane(from, [from, process], 0, true);
        if let Some((link, its_side)) = self.direct_link(process, from) {
            self.seen.note(Met::Reused);
            self.bind(lane, 1, link, its_side);
            self.put(socket, side, Packet::Reuse(lane, link));
        } else {
            self.direct(socket, side, from);
            self.bind(lane, 1, socket, side);
            self.put(socket, side, Packet::New(lane));
        }
    }

    fn direct(&mut self, socket: SocketId, side: u8, peer: Process) {
        let link = Link { peer: Some(peer), credentials: Some(peer), ..Link::new(Origin::Direct) };
        self.now.half(socket, side).link = Some(link);
    }

    fn reuse(&mut self, socket: SocketId, side: u8, process: Process, lane: LaneId, over: SocketId) {
        match self.now.side_of(over, process) {
            Some(its_side) => self.bind(lane, 0, over, its_side),
            None => self.lose(lane, 0),
        }
        self.abort(socket, side);
    }

    fn new_link(&mut self, socket: SocketId, side: u8, process: Process, lane: LaneId) {
        let peer = self.now.lane(lane).processes[1];
        let own = self.direct_link(process, peer).filter(|_| self.has(Breakage::BothChoose));
        self.direct(socket, side, peer);
        match own {
            Some((link, its_side)) => self.bind(lane, 0, link, its_side),
            None => self.bind(lane, 0, socket, side),
        }
    }

    // Death and attacks.

    fn die(&mut self, process: Process) {
        self.now.left.deaths -= 1;
        self.now.alive &= !bit(process);
        self.now.tasks.retain(|task| task.process() != process);
        self.now.entries.retain(|entry| entry.introducer != process);
        for lane in &mut self.now.lanes {
            for at in (0..2).filter(|&at| lane.processes[at] == process) {
                lane.ends[at] = End::Closed;
            }
        }
        for socket in 0..self.now.sockets.len() as u8 {
            self.now.sockets[usize::from(socket)].copies &= !bit(process);
            for side in 0..2 {
                if self.now.holder(socket, side) == Some(process) {
                    self.abort(socket, side);
                }
            }
        }
        self.close_unsent();
    }

    /// Closes the halves that are in no packet and in no task any more.
    fn close_unsent(&mut self) {
        let mut packets: Vec<Packet> = self.now.halves().flat_map(|(.., half)| half.queue.clone()).collect();
        packets.extend(self.now.tasks.iter().filter_map(|task| match task {
            Task::Second(.., packet) => Some(*packet),
            Task::Commit(..) => None,
        }));
        for socket in 0..self.now.sockets.len() as u8 {
            for side in 0..2 {
                let brings = |packet: &Packet| match *packet {
                    Packet::Half { socket: its, side: at, .. } => (its, at) == (socket, side),
                    _ => false,
                };
                if !packets.iter().any(brings) {
                    self.drop_half(socket, side);
                }
            }
        }
    }

    fn attack(&mut self, line: u8, socket: Option<SocketId>) {
        self.now.left.attacks &= !bit(line);
        match (self.is.attacks[usize::from(line)], socket) {
            (Attack::Shutdown, Some(socket)) => {
                let halves = [0, 1].map(|side| self.now.holder(socket, side).is_some());
                (0..2u8).filter(|&side| halves[usize::from(side)]).for_each(|side| self.shut(socket, side));
            }
            (Attack::Inject(side, packet), Some(socket)) => {
                if self.now.holder(socket, side).is_some() {
                    self.now.half(socket, side).queue.push(packet);
                }
            }
            (Attack::Swap, Some(socket)) => self.swap(socket),
            (Attack::Say(process, packet), _) => {
                let link = self.now.halves().find(|(socket, side, half)| {
                    half.place == Place::At(process) && self.now.holder(*socket, 1 - side) == Some(A)
                });
                if let Some((socket, side)) = link.map(|(socket, side, _)| (socket, side)) {
                    self.now.half(socket, side).queue.push(packet);
                }
            }
            (Attack::NameElsewhere, _) => self.name_elsewhere(),
            (Attack::Frame, _) => self.frame(),
            (Attack::FalseYourself, _) => {
                let lane = self.now.add_lane(A, [V, V], 0, true);
                self.say(V, Packet::Yourself(lane, 0));
            }
            (Attack::HandOn, _) => self.hand_on(H, V),
            (Attack::ListenerCopy, _) => self.listener_copy(),
            (Attack::Shutdown | Attack::Inject(..) | Attack::Swap, None) => {}
        }
    }

    fn shut(&mut self, socket: SocketId, side: u8) {
        if self.now.link(socket, side).is_some_and(|link| !link.pinned) {
            self.abort(socket, side);
        }
    }

    /// Attack: the hostile process A sends a packet over its link to a process.
    fn say(&mut self, to: Process, packet: Packet) {
        let over = self.now.halves().map(|(socket, side, _)| (socket, side)).find(|&(socket, side)| {
            self.now.holder(socket, side) == Some(to) && self.now.holder(socket, 1 - side) == Some(A)
        });
        match (over, packet) {
            (Some((socket, side)), _) => self.put(socket, 1 - side, packet),
            (None, Packet::Half { socket, side, .. }) => self.drop_half(socket, side),
            (None, _) => {}
        }
    }

    /// Attack: the hostile process A introduces V to "H", and keeps the other half itself.
    fn name_elsewhere(&mut self) {
        let socket = self.now.add_socket(Socket::new(A, bit(A), [Place::Travelling, Place::At(A)]));
        let lane = self.now.add_lane(A, [V, H], 0, true);
        self.say(V, Packet::Half { socket, side: 0, lane, expected: H, makers: bit(A) });
        self.put(socket, 1, Packet::Handshake { from: A, claims: H, direct: false });
    }

    /// Attack: the hostile process A introduces V and H, and announces a further lane to V alone.
    fn frame(&mut self) {
        let socket = self.now.add_socket(Socket::new(A, bit(A), [Place::Travelling; 2]));
        let lanes = [0, 1].map(|_| self.now.add_lane(A, [V, H], 0, true));
        self.say(V, Packet::Half { socket, side: 0, lane: lanes[0], expected: H, makers: bit(A) });
        self.say(H, Packet::Half { socket, side: 1, lane: lanes[0], expected: V, makers: bit(A) });
        self.say(V, Packet::Lane(socket, lanes[1]));
    }

    /// Attack: the hostile process A has connected to `listener`, and lets `greets` send the first packet over the
    /// connection.
    fn hand_on(&mut self, greets: Process, listener: Process) {
        let socket = self.now.add_socket(Socket::new(A, bit(A), [Place::Travelling, Place::At(listener)]));
        let lane = self.now.add_lane(A, [greets, listener], 0, true);
        self.now.half(socket, 1).link = Some(Link { credentials: Some(A), ..Link::new(Origin::Foreign) });
        self.say(greets, Packet::Half { socket, side: 0, lane, expected: listener, makers: bit(A) });
        self.put(socket, 1, Packet::Handshake { from: listener, claims: listener, direct: true });
    }

    /// Attack: H has connected to V's name. A, which has a copy of the listening socket, took the connection and
    /// sends it to V.
    fn listener_copy(&mut self) {
        let socket = self.now.add_socket(Socket::new(A, bit(A), [Place::At(H), Place::Travelling]));
        let lane = self.now.add_lane(A, [H, V], 0, true);
        self.now.half(socket, 0).link = Some(Link { credentials: Some(V), ..Link::new(Origin::Foreign) });
        self.put(socket, 0, Packet::Handshake { from: H, claims: H, direct: true });
        self.say(V, Packet::Half { socket, side: 1, lane, expected: H, makers: bit(A) });
    }

    /// Attack: the hostile process A has a copy of a link. A takes a half out of that link, and puts a half of its
    /// own there.
    fn swap(&mut self, over: SocketId) {
        let own = self.now.add_socket(Socket::new(A, bit(A), [Place::At(A), Place::Travelling]));
        for to in 0..2 {
            if let Some(Packet::Half { socket, side, lane, expected, makers }) =
                self.now.half(over, to).queue.first().copied()
            {
                self.now.half(over, to).queue[0] = Packet::Half { socket: own, side: 1, lane, expected, makers };
                self.now.half(socket, side).place = Place::At(A);
                let claims = self.now.lane(lane).processes[usize::from(side)];
                self.put(socket, side, Packet::Handshake { from: A, claims, direct: false });
                self.put(own, 0, Packet::Handshake { from: A, claims: expected, direct: false });
                return;
            }
        }
        self.abort(own, 0);
        self.abort(own, 1);
    }

    /// Makes all fully closed sockets equal, so that there are fewer different states.
    fn forget_closed(&mut self) {
        for socket in &mut self.now.sockets {
            if socket.halves.iter().all(|half| half.place == Place::Closed) {
                *socket = Socket::new(B, 0, [Place::Closed; 2]);
            }
        }
    }
}
