//! The effect of each packet.

use super::identity::{Identity, Makers};
use super::life::{Fate, Heard};
use super::packet::Packet;
use super::pair::Name;
use super::table::{Alone, Dial, Effect, Link, Links, Origin};
use super::{Id, Lane};

impl Links {
    pub(super) fn arrives(
        &mut self,
        on: Id,
        from: Option<u64>,
        packet: Packet,
        brings: Option<Id>,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(dial) = self.dials.remove(&on) {
            effects.extend(brings.map(Effect::Close));
            return self.answers(on, from, packet, dial, effects);
        }
        let Some(link) = self.links.get_mut(&on) else { return effects.extend(brings.map(Effect::Close)) };
        let (life, fate) = link.life.hears(heard(&packet));
        link.life = life;
        match fate {
            Fate::Stays => self.takes(on, from, packet, brings, effects),
            Fate::Closes | Fate::Breach => {
                effects.extend((fate == Fate::Breach).then_some(Effect::Breach(on)));
                effects.extend(brings.map(Effect::Close));
                self.close(on, effects);
            }
        }
    }

    fn takes(&mut self, on: Id, from: Option<u64>, packet: Packet, brings: Option<Id>, effects: &mut Vec<Effect>) {
        match packet {
            Packet::Handshake { name, direct } => self.greets(on, Identity::heard(from, name), direct, effects),
            Packet::Open(lane) if !self.has(lane) => self.bind(lane, on, effects),
            Packet::Data(lane) => self.unknown(on, lane),
            Packet::NoLane(lane) => {
                let bound = self.links.get_mut(&on).is_some_and(|link| link.lanes.remove(&lane));
                effects.extend(bound.then_some(Effect::Lost(lane)));
            }
            Packet::Half { number, lane, expected, makers } => {
                self.half(on, number, (expected, makers), brings, effects);
                return self.announced(lane, brings, effects);
            }
            Packet::Named { number, lane } => {
                let named = self.named(on, number);
                if let Some(link) = named.and_then(|named| self.links.get_mut(&named)) {
                    link.set_name(link.name().map(Name::again));
                }
                self.announced(lane, named, effects);
            }
            Packet::Forget { number, times } => {
                if let Some((pair, side)) = self.pair(number, on) {
                    pair.forget(side, times);
                }
            }
            Packet::Released { number } => {
                let named = self.named(on, number);
                if let Some(link) = named.and_then(|named| self.links.get_mut(&named)) {
                    link.set_name(None);
                }
            }
            Packet::Yourself { lane, side } => self.yourself(on, lane, side, effects),
            // No honest process sends these packets on a link, and they bring no socket.
            Packet::Connect { .. } | Packet::New { .. } | Packet::Reuse { .. } => {}
            Packet::Open(_) | Packet::Idle(_) | Packet::Agree | Packet::Refuse => {}
        }
        effects.extend(brings.map(Effect::Close));
    }

    // Identity and provenance.

    /// Takes the peer's first packet. If the evidence does not agree, the link becomes foreign. An introduced link is
    /// closed if its peer is another process than named by the introducer.
    fn greets(&mut self, on: Id, peer: Option<Identity>, direct: bool, effects: &mut Vec<Effect>) {
        let Some(link) = self.links.get_mut(&on) else { return };
        link.peer = peer;
        match link.origin {
            Origin::Given { peer: made_with } => {
                let agrees = direct && made_with.is_some() && made_with == peer.map(|peer| peer.inode);
                link.makers = if agrees { Makers::NONE } else { Makers::Anyone };
            }
            Origin::Introduced { expected: Some(expected), .. } if peer != Some(expected) => self.close(on, effects),
            Origin::Introduced { .. } | Origin::Connected { .. } => {}
        }
    }

    /// Makes a link from the half sent by an introducer.
    fn half(
        &mut self,
        by: Id,
        number: u64,
        (expected, stated): (Option<Identity>, Makers),
        brings: Option<Id>,
        effects: &mut Vec<Effect>,
    ) {
        let (Some(on), Some(introducer)) = (brings, self.links.get(&by)) else { return };
        // The introducer already uses the number for another link: no honest process sends the number again.
        if self.named(by, number).is_some() {
            return effects.push(Effect::Close(on));
        }
        let makers = stated.and(&introducer.makers).with(introducer.peer);
        let makers = expected.map_or(Makers::Anyone, |expected| makers.between([self.me, expected]));
        let name = Some(Name { by, number, times: 1, asked: false });
        self.links.insert(on, Link::new(Origin::Introduced { expected, name }, makers));
    }

    /// Returns the link with the name `number` from the introducer at `by`.
    fn named(&self, by: Id, number: u64) -> Option<Id> {
        let same = |link: &Link| link.name().is_some_and(|name| (name.by, name.number) == (by, number));
        self.links.iter().find(|(_, link)| same(link)).map(|(&on, _)| on)
    }

    /// Binds a lane to the link named by the introducer.
    fn announced(&mut self, lane: Lane, on: Option<Id>, effects: &mut Vec<Effect>) {
        match on {
            _ if self.has(lane) => {}
            Some(on) => self.bind(lane, on, effects),
            None => effects.push(Effect::Lost(lane)),
        }
    }

    /// Takes an end; according to the peer, the other end is in this process, too. Only the arrival of the other end
    /// proves the peer's claim.
    fn yourself(&mut self, by: Id, lane: Lane, side: u8, effects: &mut Vec<Effect>) {
        match self.alone.iter().position(|alone| alone.lane == lane) {
            Some(at) if self.alone[at].side != side => {
                self.alone.remove(at);
                effects.push(Effect::Within(lane));
            }
            Some(_) => {}
            None => self.alone.push(Alone { lane, side, by }),
        }
    }

    /// Records a packet for an unknown lane. The packet is no breach: another process may have named the lane to the
    /// peer alone.
    fn unknown(&mut self, on: Id, lane: Lane) {
        let Some(link) = self.links.get_mut(&on) else { return };
        if !link.lanes.contains(&lane) && !link.unknown.contains(&lane) {
            link.unknown.push(lane);
        }
    }

    // Connects.

    fn answers(&mut self, on: Id, from: Option<u64>, packet: Packet, dial: Dial, effects: &mut Vec<Effect>) {
        match (dial, packet) {
            (Dial::Expects { from: connected, lane }, Packet::Connect { name, link }) => {
                let peer = Identity::heard(from, name);
                let direct = peer.is_some() && from == connected;
                let shared = peer.filter(|_| direct).and_then(|peer| self.direct(peer));
                self.dials.insert(on, Dial::Answers { peer, direct, shared, link, lane });
            }
            (Dial::Waits { to, link }, Packet::New { name, lane }) if !self.has(lane) => {
                let (peer, origin) = (Identity::heard(from, name), Origin::Connected { connector: self.me, link });
                let direct = peer.is_some() && from == to;
                self.links.insert(on, Link::connected(origin, peer, direct, lane));
                effects.push(Effect::Bound(lane, on));
            }
            (Dial::Waits { to, .. }, Packet::Reuse { lane, link }) if from == to && !self.has(lane) => {
                let with = |on: &Id| self.link(*on).and_then(|link| link.peer).map(|peer| peer.inode) == to;
                match self.numbered(link).filter(with) {
                    Some(shared) => self.bind(lane, shared, effects),
                    None => effects.push(Effect::Lost(lane)),
                }
                effects.push(Effect::Close(on));
            }
            _ => effects.extend([Effect::Breach(on), Effect::Failed(on)]),
        }
    }
}

/// Returns the meaning of a packet for the life of its link.
fn heard(packet: &Packet) -> Heard {
    match *packet {
        Packet::Handshake { .. } => Heard::Handshake,
        Packet::Idle(n) => Heard::Idle(n),
        Packet::Agree => Heard::Agree,
        Packet::Refuse => Heard::Refuse,
        _ if packet.is_counted() => Heard::Counted,
        _ => Heard::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Seen, Step};
    use super::*;

    fn identity(inode: u64) -> Identity {
        Identity { inode, name: inode.into() }
    }

    /// Shows that a connect makes a direct link only if the packet comes from the process at the other end of the
    /// connection, by the kernel's report for the socket. A process that handed its connection on may have kept a copy.
    #[test]
    fn a_connection_that_was_handed_on_makes_no_direct_link() {
        let (on, lane, link) = (7, 5, 9);
        for (from, makers) in [(1, Makers::NONE), (2, Makers::Anyone)] {
            let (me, name) = (identity(0), identity(from).name);
            let mut listener = Links::new(me);
            listener.see(Seen::Accepted { on, from: Some(1), lane });
            let packet = Packet::Connect { name, link };
            listener.see(Seen::Packet { on, from: Some(from), packet, brings: None });
            listener.see(Seen::Done(Step::Send(on, Packet::New { name: me.name, lane })));
            assert_eq!(listener.link(on).map(|link| &link.makers), Some(&makers), "accepted, sent by {from}");
            let mut connector = Links::new(me);
            connector.see(Seen::Connect { on, to: Some(1), link });
            connector.see(Seen::Done(Step::Send(on, Packet::Connect { name: me.name, link })));
            connector.see(Seen::Packet { on, from: Some(from), packet: Packet::New { name, lane }, brings: None });
            assert_eq!(connector.link(on).map(|link| &link.makers), Some(&makers), "connected, answered by {from}");
        }
    }
}
