//! All links of a process.

use std::collections::{BTreeMap, BTreeSet};

use super::identity::{Identity, Makers};
use super::life::{Fate, Life, Phase, Say};
use super::packet::Packet;
use super::pair::{Introduction, Name, Pair, Side, Stage};
use super::{Id, Lane};

/// The origin of a link. The first packet of the link must agree with its origin.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// The program gave this process the socket. If this process made the socket with another process, `peer` is the
    /// other process according to the kernel.
    Given {
        /// The inode number of the pidfd of the peer process.
        peer: Option<u64>,
    },
    /// A connect made the link. Both processes know the number of the link.
    Connected {
        /// The process that connected.
        connector: Identity,
        /// The number in the connect request.
        link: u64,
    },
    /// An introducer sent the half, and named the process with the other half.
    Introduced {
        /// The process with the other half.
        expected: Option<Identity>,
        /// The introducer's name for the link, while the introducer may use the name.
        name: Option<Name>,
    },
}

/// A link, as seen by one of the link's two processes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Link {
    /// How the link came about.
    pub origin: Origin,
    /// The process at the other side; `None` before its first packet, and if the kernel reports no identity.
    pub peer: Option<Identity>,
    /// The possible holders of a copy of the socket.
    pub makers: Makers,
    /// How the link begins and ends.
    pub life: Life,
    /// Whether this side has sent its first packet.
    pub greeted: bool,
    /// The lanes bound to the link.
    pub lanes: BTreeSet<Lane>,
    /// Unknown lanes for which NO_LANE is owed.
    pub unknown: Vec<Lane>,
}

/// The maximum number of unknown lanes of a link for which NO_LANE is owed. Further packets for unknown lanes stay in
/// the socket.
const UNKNOWN: usize = 16;

impl Link {
    pub(super) fn new(origin: Origin, makers: Makers) -> Self {
        let (lanes, unknown) = (BTreeSet::new(), Vec::new());
        Self { origin, peer: None, makers, life: Life::GREETING, greeted: false, lanes, unknown }
    }

    /// Returns a link made by a connect: both sides know each other already.
    pub(super) fn connected(origin: Origin, peer: Option<Identity>, direct: bool, lane: Lane) -> Self {
        let makers = if direct { Makers::NONE } else { Makers::Anyone };
        let lanes = BTreeSet::from([lane]);
        Self { peer, life: Life::OPEN, greeted: true, lanes, ..Self::new(origin, makers) }
    }

    /// Returns the introducer's name for the link, if the introducer may still name it.
    #[must_use]
    pub fn name(&self) -> Option<Name> {
        match self.origin {
            Origin::Introduced { name, .. } => name,
            Origin::Given { .. } | Origin::Connected { .. } => None,
        }
    }

    pub(super) fn set_name(&mut self, new: Option<Name>) {
        if let Origin::Introduced { name, .. } = &mut self.origin {
            *name = new;
        }
    }
}

/// The socket of a connect in progress.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Dial {
    /// This process connects to the process with the inode number `to`, and has not sent its request yet.
    Asks {
        /// The inode number of the listener's process.
        to: Option<u64>,
        /// The number of the link, if the socket becomes a link.
        link: u64,
    },
    /// This process has sent its connect request, and waits for the answer.
    Waits {
        /// The inode number of the listener's process.
        to: Option<u64>,
        /// The number of the link, if the socket becomes a link.
        link: u64,
    },
    /// Another process has connected, and has not sent its connect request yet.
    Expects {
        /// The inode number of the process that connected.
        from: Option<u64>,
        /// The lane for that process.
        lane: Lane,
    },
    /// Another process has sent its connect request, and waits for the answer.
    Answers {
        /// The process that sent the request.
        peer: Option<Identity>,
        /// Whether the connecting process sent the request.
        direct: bool,
        /// The link for the lane, chosen when the request came, and held until the answer; `None` for a new link.
        shared: Option<Id>,
        /// The number of the link, if the socket becomes a link.
        link: u64,
        /// The lane for that process.
        lane: Lane,
    },
}

/// An end of a lane; the other end should arrive in this process, too, and has not arrived.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Alone {
    /// The lane.
    pub lane: Lane,
    /// The side of the arrived end.
    pub side: u8,
    /// The link to the introducer. The end is lost when this link is closed.
    pub by: Id,
}

/// An input to the machine from the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The program gave this process a socket; both sides begin with a handshake.
    Given {
        /// The socket.
        on: Id,
        /// The inode number of the other process, if this process made the socket with it; `None` if another process
        /// made the socket.
        peer: Option<u64>,
    },
    /// The user connects, with this socket.
    Connect {
        /// The socket.
        on: Id,
        /// The inode number of the listener's process, by the kernel's report for the socket.
        to: Option<u64>,
        /// A new random number.
        link: u64,
    },
    /// A process has connected to a listener, with this socket.
    Accepted {
        /// The socket.
        on: Id,
        /// The inode number of the connecting process, by the kernel's report for the socket.
        from: Option<u64>,
        /// A new lane for that process.
        lane: Lane,
    },
    /// The user moves an end: its lane continues in a new lane between the processes at these links.
    Introduce {
        /// Links to the two processes.
        over: [Id; 2],
        /// The new lane.
        lane: Lane,
    },
    /// The user's call ends before the introduction for this lane is committed.
    CallOff(Lane),
    /// This process closes its end of a lane, or has found the introduction of the lane called off.
    Close(Lane),
    /// A packet was received.
    Packet {
        /// The socket.
        on: Id,
        /// The inode number of the sender, by the kernel's report with the packet.
        from: Option<u64>,
        /// The packet.
        packet: Packet,
        /// The driver's number for the socket in the packet.
        brings: Option<Id>,
    },
    /// The other side of a socket is closed, or the peer process is dead; and the socket has no unread packet.
    HungUp(Id),
    /// The driver has done a step.
    Done(Step),
}

/// A step that can fail.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Send a packet. A packet [`Packet::Half`] takes along a half of the pair of its number: the first half over the
    /// first link of the introduction, the second half over the second.
    Send(Id, Packet),
    /// Make the socket pair for the introduction of this lane.
    Make(Lane),
    /// Commit the move into this lane.
    Commit(Lane),
}

/// An action that cannot fail; the driver does the action at once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Close a socket.
    Close(Id),
    /// The peer, or a holder of a copy of this socket, broke the protocol. The driver must close the socket.
    Breach(Id),
    /// A lane of this process is on this link now.
    Bound(Lane, Id),
    /// A lane of this process ended.
    Lost(Lane),
    /// Both ends of a lane are in this process.
    Within(Lane),
    /// A connect failed. The driver must close its socket.
    Failed(Id),
    /// The introduction for this lane was called off.
    CalledOff(Lane),
    /// Close the halves of the pair with this number that were not sent.
    Drop(u64),
}

/// All links of a process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Links {
    pub(super) me: Identity,
    pub(super) links: BTreeMap<Id, Link>,
    pub(super) dials: BTreeMap<Id, Dial>,
    pub(super) pairs: Vec<Pair>,
    pub(super) introductions: Vec<Introduction>,
    pub(super) alone: Vec<Alone>,
    numbers: u64,
}

impl Links {
    /// Creates the machine of a process without links.
    #[must_use]
    pub fn new(me: Identity) -> Self {
        let (links, dials) = (BTreeMap::new(), BTreeMap::new());
        Self { me, links, dials, pairs: Vec::new(), introductions: Vec::new(), alone: Vec::new(), numbers: 0 }
    }

    /// Returns a link of this process.
    #[must_use]
    pub fn link(&self, on: Id) -> Option<&Link> {
        self.links.get(&on)
    }

    /// Returns every link of this process.
    pub fn links(&self) -> impl Iterator<Item = (Id, &Link)> {
        self.links.iter().map(|(&on, link)| (on, link))
    }

    /// Returns the connect in progress on a socket.
    #[must_use]
    pub fn dial(&self, on: Id) -> Option<&Dial> {
        self.dials.get(&on)
    }

    /// Returns the pairs made by this process, as long as it may still name them, or has to release them.
    #[must_use]
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Returns the introductions in progress.
    #[must_use]
    pub fn introductions(&self) -> &[Introduction] {
        &self.introductions
    }

    /// Returns the ends with a missing other end that should arrive in this process.
    #[must_use]
    pub fn alone(&self) -> &[Alone] {
        &self.alone
    }

    /// Returns the direct link to a process that a new lane uses. If connects in both directions made two links, the
    /// function returns the link whose connector has the smaller identity.
    #[must_use]
    pub fn direct(&self, peer: Identity) -> Option<Id> {
        let connector = |link: &Link| match link.origin {
            Origin::Connected { connector, .. } if link.peer == Some(peer) && link.makers.is_none() => Some(connector),
            _ => None,
        };
        let found = self.links.iter().filter_map(|(&on, link)| Some((connector(link)?, on)));
        found.min().map(|(_, on)| on)
    }

    /// Returns whether anything but an introducer's name holds a link on this side.
    pub(super) fn uses(&self, on: Id) -> bool {
        let Some(link) = self.links.get(&on) else { return false };
        let introduces = self.introductions.iter().any(|it| it.over.contains(&on));
        let chosen = |dial: &Dial| matches!(dial, Dial::Answers { shared, .. } if *shared == Some(on));
        let connected = self.connects_to(link) || self.dials.values().any(chosen);
        !link.lanes.is_empty() || introduces || connected
    }

    /// Returns whether the answer to a connect in progress may name this link.
    fn connects_to(&self, link: &Link) -> bool {
        let peer = link.peer.filter(|_| link.makers.is_none());
        peer.is_some_and(|peer| self.connects(Some(peer.inode)).next().is_some())
    }

    /// Returns whether this side needs a link.
    #[must_use]
    pub fn holds(&self, on: Id) -> bool {
        self.uses(on) || self.links.get(&on).is_some_and(|link| link.name().is_some())
    }

    /// Returns whether a counted packet may be sent over a link now.
    #[must_use]
    pub fn may_send(&self, on: Id) -> bool {
        self.links.get(&on).is_some_and(|link| link.greeted && link.life.may_send())
    }

    /// Returns whether an introduction over these links can begin: both sides of the links have sent their first
    /// packets, and every IDLE of this side is answered.
    #[must_use]
    pub fn may_introduce(&self, over: [Id; 2]) -> bool {
        over.iter().all(|&on| self.may_send(on))
    }

    /// Returns every step owed by the machine now. The order of the steps of one link must be kept; otherwise any order
    /// will do.
    #[must_use]
    pub fn owed(&self) -> Vec<Step> {
        let mut owed = Vec::new();
        self.links.iter().for_each(|(&on, link)| self.owed_by(on, link, &mut owed));
        owed.extend(self.dials.iter().filter_map(|(&on, dial)| Some(Step::Send(on, self.dials_with(dial)?))));
        owed.extend(self.introductions.iter().filter_map(|it| self.next(it)));
        for pair in &self.pairs {
            let busy = self.is_busy(pair.number);
            let sides = (0..2).filter(|&side| pair.owes_released(side, busy));
            owed.extend(sides.map(|side| Step::Send(pair.over[side], Packet::Released { number: pair.number })));
        }
        owed
    }

    fn owed_by(&self, on: Id, link: &Link, owed: &mut Vec<Step>) {
        if !link.greeted {
            let direct = link.makers.is_none();
            return owed.push(Step::Send(on, Packet::Handshake { name: self.me.name, direct }));
        }
        // The answer to a connect may put an unknown lane on this link.
        let unknown = link.unknown.first().filter(|_| !self.connects_to(link));
        owed.extend(unknown.map(|&lane| Step::Send(on, Packet::NoLane(lane))));
        if let Some(name) = link.name().filter(|name| !name.asked && !self.uses(on)) {
            owed.push(Step::Send(name.by, Packet::Forget { number: name.number, times: name.times }));
        }
        owed.extend(link.life.owes(self.holds(on)).map(|say| {
            Step::Send(
                on,
                match say {
                    Say::Idle(n) => Packet::Idle(n),
                    Say::Agree => Packet::Agree,
                    Say::Refuse => Packet::Refuse,
                },
            )
        }));
    }

    fn dials_with(&self, dial: &Dial) -> Option<Packet> {
        match *dial {
            Dial::Asks { link, .. } => Some(Packet::Connect { name: self.me.name, link }),
            Dial::Answers { shared, lane, .. } => Some(match shared.and_then(|on| self.number(on)) {
                Some(link) => Packet::Reuse { lane, link },
                None => Packet::New { name: self.me.name, lane },
            }),
            Dial::Waits { .. } | Dial::Expects { .. } => None,
        }
    }

    /// Returns the number in the connect request for a link.
    fn number(&self, on: Id) -> Option<u64> {
        match self.links.get(&on)?.origin {
            Origin::Connected { link, .. } => Some(link),
            Origin::Given { .. } | Origin::Introduced { .. } => None,
        }
    }

    /// Returns the next step of an introduction; `None` while its link may not be used.
    fn next(&self, it: &Introduction) -> Option<Step> {
        let side = match it.stage {
            Stage::Make => {
                // If several introductions use one new pair, the first introduction makes the pair.
                let first = self.introductions.iter().find(|other| other.pair == it.pair);
                return (first == Some(it)).then_some(Step::Make(it.lane));
            }
            Stage::Commit => return Some(Step::Commit(it.lane)),
            Stage::First => 0,
            Stage::Second => 1,
        };
        let packet = match it.pair {
            None => Packet::Yourself { lane: it.lane, side: side as u8 },
            Some(number) => {
                let pair = self.pairs.iter().find(|pair| pair.number == number)?;
                self.names(pair, side, it.lane)
            }
        };
        self.may_send(it.over[side]).then_some(Step::Send(it.over[side], packet))
    }

    fn names(&self, pair: &Pair, side: usize, lane: Lane) -> Packet {
        let number = pair.number;
        if pair.told[side] > 0 {
            return Packet::Named { number, lane };
        }
        Packet::Half { number, lane, expected: pair.ends[1 - side], makers: pair.makers.clone() }
    }

    /// Returns whether an introduction in progress uses a pair.
    pub(super) fn is_busy(&self, number: u64) -> bool {
        self.introductions.iter().any(|it| it.pair == Some(number))
    }

    /// Returns whether a packet can be taken from a socket now. If not, the driver first takes packets from other
    /// sockets. `head` returns the next packet on a socket of this process.
    #[must_use]
    pub fn ready<'a>(
        &self,
        on: Id,
        from: Option<u64>,
        packet: &Packet,
        head: impl Fn(Id) -> Option<&'a Packet>,
    ) -> bool {
        let drained = |socket: Id| socket == on || head(socket).is_none();
        match *packet {
            // The introducer may have named the lane on another link.
            Packet::Data(lane) => self.knows(on, lane) || self.named_by(on).is_none_or(drained) && self.has_place(on),
            // No honest process sends these packets on a link, so no such packet need wait.
            Packet::Connect { .. } | Packet::Reuse { .. } if !self.dials.contains_key(&on) => true,
            // The peer may have sent IDLE on another link.
            Packet::Connect { .. } => {
                let same = |peer: Option<Identity>| peer.map(|peer| peer.inode) == from;
                let answers = |dial: &Dial| matches!(dial, Dial::Answers { peer, .. } if same(*peer));
                let mut links = self.links.iter().filter(|(_, link)| same(link.peer));
                links.all(|(&on, _)| drained(on)) && !self.dials.values().any(answers)
            }
            // The acceptor may have sent IDLE on the named link, or may have answered an older connect with NEW for it.
            Packet::Reuse { lane, link } => match self.numbered(link) {
                Some(shared) => head(shared).is_none_or(|head| *head == Packet::Data(lane)),
                None => !self.connects(from).any(|dial| matches!(head(dial), Some(Packet::New { .. }))),
            },
            _ => true,
        }
    }

    fn knows(&self, on: Id, lane: Lane) -> bool {
        self.links.get(&on).is_none_or(|link| link.lanes.contains(&lane))
    }

    /// Returns the link to the introducer that may still name the link `on`.
    fn named_by(&self, on: Id) -> Option<Id> {
        self.links.get(&on).and_then(Link::name).map(|name| name.by)
    }

    /// Returns the sockets of unanswered connects to the process with this inode number.
    fn connects(&self, peer: Option<u64>) -> impl Iterator<Item = Id> {
        let own = move |dial: &Dial| match *dial {
            Dial::Asks { to, .. } | Dial::Waits { to, .. } => to == peer,
            Dial::Expects { .. } | Dial::Answers { .. } => false,
        };
        self.dials.iter().filter(move |(_, dial)| own(dial)).map(|(&on, _)| on)
    }

    fn has_place(&self, on: Id) -> bool {
        self.links.get(&on).is_none_or(|link| link.unknown.len() < UNKNOWN)
    }

    /// Returns the direct link made by the connect with this number.
    pub(super) fn numbered(&self, number: u64) -> Option<Id> {
        let same = |link: &Link| matches!(link.origin, Origin::Connected { link, .. } if link == number);
        self.links.iter().find(|(_, link)| same(link) && link.makers.is_none()).map(|(&on, _)| on)
    }

    /// Takes an input from the driver, and returns the actions for the driver.
    pub fn see(&mut self, seen: Seen) -> Vec<Effect> {
        let mut effects = Vec::new();
        let to = &mut effects;
        match seen {
            Seen::Given { on, peer } => {
                let makers = if peer.is_some() { Makers::NONE } else { Makers::Anyone };
                self.links.insert(on, Link::new(Origin::Given { peer }, makers));
            }
            Seen::Connect { on, to, link } => drop(self.dials.insert(on, Dial::Asks { to, link })),
            Seen::Accepted { on, from, lane } => drop(self.dials.insert(on, Dial::Expects { from, lane })),
            Seen::Introduce { over, lane } => self.introduce(over, lane, to),
            Seen::CallOff(lane) => self.call_off(|it| it.lane == lane, to),
            Seen::Close(lane) => self.unbind(lane),
            Seen::Packet { on, from, packet, brings } => self.arrives(on, from, packet, brings, to),
            Seen::HungUp(on) => self.hung_up(on, to),
            Seen::Done(Step::Send(on, packet)) => self.sent(on, packet, to),
            Seen::Done(Step::Make(lane)) => self.made(lane),
            Seen::Done(Step::Commit(lane)) => self.introductions.retain(|it| it.lane != lane),
        }
        self.note_holds();
        effects
    }

    /// For each held link with an unanswered IDLE of the peer, records that the link is held.
    fn note_holds(&mut self) {
        let agreeing = self.links.iter().filter(|(_, link)| link.life.phase() == Phase::Agreeing);
        let held: Vec<Id> = agreeing.map(|(&on, _)| on).filter(|&on| self.holds(on)).collect();
        for on in held {
            self.links.entry(on).and_modify(|link| link.life = link.life.held());
        }
    }

    // Lanes.

    pub(super) fn bind(&mut self, lane: Lane, on: Id, effects: &mut Vec<Effect>) {
        match self.links.get_mut(&on) {
            Some(link) => {
                link.lanes.insert(lane);
                link.unknown.retain(|&unknown| unknown != lane);
                effects.push(Effect::Bound(lane, on));
            }
            None => effects.push(Effect::Lost(lane)),
        }
    }

    fn unbind(&mut self, lane: Lane) {
        for link in self.links.values_mut() {
            link.lanes.remove(&lane);
        }
        self.alone.retain(|alone| alone.lane != lane);
    }

    /// Returns whether this process has an end of a lane.
    pub(super) fn has(&self, lane: Lane) -> bool {
        self.links.values().any(|link| link.lanes.contains(&lane))
    }

    // The end of a link.

    fn hung_up(&mut self, on: Id, effects: &mut Vec<Effect>) {
        match self.dials.remove(&on) {
            Some(_) => effects.push(Effect::Failed(on)),
            None => self.close(on, effects),
        }
    }

    /// Closes a link, and ends everything depending on the link.
    pub(super) fn close(&mut self, on: Id, effects: &mut Vec<Effect>) {
        let Some(link) = self.links.remove(&on) else { return };
        effects.push(Effect::Close(on));
        effects.extend(link.lanes.into_iter().map(Effect::Lost));
        for link in self.links.values_mut().filter(|link| link.name().is_some_and(|name| name.by == on)) {
            link.set_name(None);
        }
        effects.extend(self.alone.iter().filter(|alone| alone.by == on).map(|alone| Effect::Lost(alone.lane)));
        self.alone.retain(|alone| alone.by != on);
        for dial in self.dials.values_mut() {
            if let Dial::Answers { shared, .. } = dial {
                *shared = shared.filter(|&shared| shared != on);
            }
        }
        self.call_off(|it| it.over.contains(&on), effects);
        self.pairs.iter_mut().filter_map(|pair| pair.side(on).map(|side| (pair, side))).for_each(|(pair, side)| {
            pair.lost(side);
        });
        self.forget_released();
    }

    fn forget_released(&mut self) {
        self.pairs.retain(|pair| pair.sides != [Side::Released; 2]);
    }

    // Introductions.

    fn introduce(&mut self, over: [Id; 2], lane: Lane, effects: &mut Vec<Effect>) {
        let [Some(first), Some(second)] = over.map(|on| self.links.get(&on)) else {
            return effects.push(Effect::CalledOff(lane));
        };
        let ends = [first.peer, second.peer];
        let makers = first.makers.clone().and(&second.makers).with(Some(self.me));
        if over[0] == over[1] || ends[0].is_some() && ends[0] == ends[1] {
            let (pair, stage) = (None, Stage::First);
            return self.introductions.push(Introduction { lane, pair, over, stage });
        }
        let makers = match ends {
            [Some(first), Some(second)] => makers.between([first, second]),
            _ => Makers::Anyone,
        };
        if let Some(pair) = self.pairs.iter().find(|pair| pair.serves(ends, &makers)) {
            let (pair, over) = (Some(pair.number), pair.over);
            let unmade = |it: &Introduction| it.pair == pair && it.stage == Stage::Make;
            let stage = if self.introductions.iter().any(unmade) { Stage::Make } else { Stage::First };
            return self.introductions.push(Introduction { lane, pair, over, stage });
        }
        self.numbers += 1;
        let (number, told, sides) = (self.numbers, [0; 2], [Side::Named; 2]);
        self.pairs.push(Pair { number, ends, makers, over, told, sides });
        self.introductions.push(Introduction { lane, pair: Some(number), over, stage: Stage::Make });
    }

    fn made(&mut self, lane: Lane) {
        let number = self.introductions.iter().find(|it| it.lane == lane).and_then(|it| it.pair);
        for it in self.introductions.iter_mut().filter(|it| it.stage == Stage::Make && it.pair == number) {
            it.stage = Stage::First;
        }
    }

    /// Returns the pair with a number and its side at the link `on`. A number counts only on a link of the pair.
    pub(super) fn pair(&mut self, number: u64, on: Id) -> Option<(&mut Pair, usize)> {
        let pair = self.pairs.iter_mut().find(|pair| pair.number == number)?;
        let side = pair.side(on)?;
        Some((pair, side))
    }

    fn introduced(&mut self, on: Id, lane: Lane) {
        let Some(it) = self.introductions.iter_mut().find(|it| it.lane == lane) else { return };
        let (side, next) = if it.stage == Stage::First { (0, Stage::Second) } else { (1, Stage::Commit) };
        debug_assert_eq!(it.over[side], on);
        it.stage = next;
        if let Some(pair) = self.pairs.iter_mut().find(|pair| Some(pair.number) == it.pair) {
            pair.was_named(side);
        }
    }

    /// Calls off introductions. If fewer than two halves of a pair were sent, the pair is closed.
    fn call_off(&mut self, which: impl Fn(&Introduction) -> bool, effects: &mut Vec<Effect>) {
        let (off, rest): (Vec<_>, Vec<_>) = self.introductions.drain(..).partition(which);
        self.introductions = rest;
        for it in off {
            effects.push(Effect::CalledOff(it.lane));
            let Some(number) = it.pair.filter(|&number| !self.is_busy(number)) else { continue };
            let before = self.pairs.len();
            self.pairs.retain(|pair| pair.number != number || !pair.told.contains(&0));
            if self.pairs.len() < before {
                effects.push(Effect::Drop(number));
            }
        }
    }

    // The consequences of sent packets.

    fn sent(&mut self, on: Id, packet: Packet, effects: &mut Vec<Effect>) {
        if let Some(link) = self.links.get_mut(&on).filter(|_| packet.is_counted()) {
            link.life = link.life.counted();
        }
        match packet {
            Packet::Handshake { .. } => self.links.get_mut(&on).into_iter().for_each(|link| link.greeted = true),
            Packet::Idle(n) => self.says(on, Say::Idle(n), effects),
            Packet::Agree => self.says(on, Say::Agree, effects),
            Packet::Refuse => self.says(on, Say::Refuse, effects),
            Packet::Open(lane) => self.bind(lane, on, effects),
            Packet::NoLane(lane) => {
                self.links.get_mut(&on).into_iter().for_each(|link| link.unknown.retain(|&unknown| unknown != lane));
            }
            Packet::Half { lane, .. } | Packet::Named { lane, .. } | Packet::Yourself { lane, .. } => {
                self.introduced(on, lane);
            }
            Packet::Forget { number, .. } => {
                for link in self.links.values_mut() {
                    let name = link.name().filter(|name| (name.by, name.number) == (on, number));
                    name.into_iter().for_each(|name| link.set_name(Some(Name { asked: true, ..name })));
                }
            }
            Packet::Released { number } => {
                if let Some((pair, side)) = self.pair(number, on) {
                    pair.sides[side] = Side::Released;
                }
                self.forget_released();
            }
            Packet::Connect { .. } | Packet::New { .. } | Packet::Reuse { .. } => self.dialled(on, packet, effects),
            Packet::Data(_) => {}
        }
    }

    fn says(&mut self, on: Id, say: Say, effects: &mut Vec<Effect>) {
        let Some(link) = self.links.get_mut(&on) else { return };
        let (life, fate) = link.life.says(say);
        link.life = life;
        if fate == Fate::Closes {
            self.close(on, effects);
        }
    }

    fn dialled(&mut self, on: Id, packet: Packet, effects: &mut Vec<Effect>) {
        match (self.dials.remove(&on), packet) {
            (Some(Dial::Asks { to, link }), _) => drop(self.dials.insert(on, Dial::Waits { to, link })),
            (Some(Dial::Answers { peer, direct, link, lane, .. }), Packet::New { .. }) => {
                let connector = peer.unwrap_or(self.me);
                let origin = Origin::Connected { connector, link };
                self.links.insert(on, Link::connected(origin, peer, direct, lane));
                effects.push(Effect::Bound(lane, on));
            }
            (Some(Dial::Answers { lane, .. }), Packet::Reuse { link, .. }) => {
                let shared = self.numbered(link);
                shared.into_iter().for_each(|shared| self.bind(lane, shared, effects));
                effects.push(Effect::Close(on));
            }
            _ => {}
        }
    }

    /// Returns the phase of a link.
    #[must_use]
    pub fn phase(&self, on: Id) -> Option<Phase> {
        self.links.get(&on).map(|link| link.life.phase())
    }
}
