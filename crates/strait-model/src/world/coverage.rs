//! The pairs of a state and an input that came about.

use std::collections::BTreeMap;
use std::sync::Mutex;

use strait_proto::links::{Dial, Id, Links, Packet, Phase, Seen, Side, Stage, Step};

/// The count of each pair: the machine, its state, and the input.
#[derive(Debug, Default)]
pub struct Coverage(Mutex<BTreeMap<(&'static str, String, &'static str), u64>>);

const PHASES: [&str; 7] = ["greeting", "open", "refused", "asked", "overtaken", "agreeing", "refusing"];
const LINK_SEEN: [&str; 12] = [
    "handshake",
    "counted",
    "other",
    "idle",
    "agree",
    "refuse",
    "closed",
    "sent handshake",
    "sent counted",
    "sent idle",
    "sent agree",
    "sent refuse",
];
const DIALS: [&str; 4] = ["asks", "waits", "expects", "answers"];
const DIAL_SEEN: [&str; 8] =
    ["connect", "new", "reuse", "anything else", "closed", "sent connect", "sent new", "sent reuse"];
const NAMES: [&str; 3] = ["named", "asked", "none"];
const NAME_SEEN: [&str; 3] = ["named again", "released", "sent forget"];
const SIDES: [&str; 9] = [
    "named, named",
    "named, forgot",
    "named, released",
    "forgot, named",
    "forgot, forgot",
    "forgot, released",
    "released, named",
    "released, forgot",
    "released, released",
];
const PAIR_SEEN: [&str; 5] = ["forget", "stale forget", "closed", "sent name", "sent released"];
const STAGES: [&str; 4] = ["make", "first", "second", "commit"];
const STAGE_SEEN: [&str; 3] = ["done", "called off", "closed"];
const ALONE: [&str; 2] = ["none", "alone"];
const ALONE_SEEN: [&str; 3] = ["yourself", "closed", "closes the lane"];

/// The pairs that cannot come about, or only by a rare act of the hostile process, with the reason. A state or an
/// input is given by its beginning.
const NEVER: &[(&str, &str, &str, &str)] = &[
    ("link", "", "sent handshake", "a link is greeted first, while it is greeting or when the peer was faster (open)"),
    ("link", "greeting", "sent", "nothing but the handshake is sent before the peer's handshake has come"),
    ("link", "refused", "sent idle", "the other side sends the next IDLE"),
    ("link", "refused", "sent", "only an answering side answers"),
    ("link", "asked", "sent", "a side that asked sends nothing that counts, and does not answer"),
    ("link", "overtaken", "sent", "a side that asked sends nothing that counts, and does not answer"),
    ("link", "open", "sent", "only an answering side answers"),
    ("link", "agreeing", "sent idle", "it answers first"),
    ("link", "agreeing", "sent refuse", "it owes AGREE"),
    ("link", "refusing", "sent idle", "it answers first"),
    ("link", "refusing", "sent agree", "it owes REFUSE"),
    ("connect", "asks", "", "the acceptor answers no question that was not asked"),
    ("connect", "waits", "sent", "the question was sent"),
    ("connect", "expects", "sent", "the question has not come"),
    ("connect", "answers", "sent connect", "the other side asked"),
    ("name", "none", "", "without a name no link is found"),
    ("name", "asked", "sent forget", "FORGET was sent"),
    ("pair", "released, released", "", "the entry is removed"),
    ("pair", "named, released", "", "losing one side makes the other one forget"),
    ("pair", "released, named", "", "losing one side makes the other one forget"),
    ("pair", "forgot, released", "sent name", "a pair that is being released is not named"),
    ("pair", "released, forgot", "sent name", "a pair that is being released is not named"),
    ("link", "agreeing", "handshake", "rare: the hostile process sends it before this side has answered its IDLE"),
    ("link", "agreeing", "idle", "rare: the hostile process sends it before this side has answered its IDLE"),
    ("link", "agreeing", "agree", "rare: the hostile process sends it before this side has answered its IDLE"),
    ("link", "agreeing", "refuse", "rare: the hostile process sends it before this side has answered its IDLE"),
    ("connect", "answers", "connect", "rare: the hostile process asks twice on one socket"),
    ("pair", "forgot, forgot", "forget", "no honest process asks twice"),
    ("pair", "forgot, forgot", "stale forget", "no honest process asks twice"),
    ("pair", "forgot, released", "stale forget", "no honest process asks twice"),
    ("pair", "released, forgot", "stale forget", "no honest process asks twice"),
    ("pair", "named, named", "sent released", "no side has asked"),
    ("pair", "named, forgot", "sent released", "one side has not asked"),
    ("pair", "forgot, named", "sent released", "one side has not asked"),
    ("own end", "none", "closed", "nothing is alone"),
    ("own end", "none", "closes the lane", "nothing is alone"),
];

impl Coverage {
    fn note(&self, machine: &'static str, state: impl Into<String>, seen: &'static str) {
        *self.0.lock().unwrap().entry((machine, state.into(), seen)).or_default() += 1;
    }

    /// Notes the next input of a process.
    pub(super) fn see(&self, machine: &Links, seen: &Seen) {
        match seen {
            Seen::Packet { on, packet, .. } => self.packet(machine, *on, packet),
            Seen::HungUp(on) => self.closed(machine, *on),
            Seen::Done(Step::Send(on, packet)) => self.sent(machine, *on, packet),
            Seen::Done(Step::Make(_)) => self.note("introduction", "make", "done"),
            Seen::Done(Step::Commit(_)) => self.note("introduction", "commit", "done"),
            Seen::CallOff(lane) => {
                let found = machine.introductions().iter().filter(|it| it.lane == *lane);
                found.for_each(|it| self.note("introduction", stage(it.stage), "called off"));
            }
            Seen::Close(lane) if machine.alone().iter().any(|alone| alone.lane == *lane) => {
                self.note("own end", "alone", "closes the lane");
            }
            _ => {}
        }
    }

    fn packet(&self, machine: &Links, on: Id, packet: &Packet) {
        if let Some(state) = machine.dial(on) {
            let what = match packet {
                Packet::Connect { .. } => "connect",
                Packet::New { .. } => "new",
                Packet::Reuse { .. } => "reuse",
                _ => "anything else",
            };
            return self.note("connect", dial(state), what);
        }
        let Some(at) = machine.phase(on) else { return };
        let what = match packet {
            Packet::Handshake { .. } => "handshake",
            Packet::Idle(_) => "idle",
            Packet::Agree => "agree",
            Packet::Refuse => "refuse",
            _ if packet.is_counted() => "counted",
            _ => "other",
        };
        self.note("link", phase(at), what);
        match *packet {
            Packet::Named { number, .. } => self.name(machine, on, number, "named again"),
            Packet::Released { number } => self.name(machine, on, number, "released"),
            Packet::Forget { number, times } => {
                for pair in machine.pairs().iter().filter(|pair| pair.number == number) {
                    let at = pair.over.iter().position(|&over| over == on);
                    let fresh = at.is_some_and(|side| pair.told[side] == times);
                    self.note("pair", sides(pair.sides), if fresh { "forget" } else { "stale forget" });
                }
            }
            Packet::Yourself { lane, .. } => {
                let alone = machine.alone().iter().any(|alone| alone.lane == lane);
                self.note("own end", ALONE[usize::from(alone)], "yourself");
            }
            _ => {}
        }
    }

    fn name(&self, machine: &Links, on: Id, number: u64, what: &'static str) {
        for name in machine.links().filter_map(|(_, link)| link.name()) {
            if (name.by, name.number) == (on, number) {
                self.note("name", if name.asked { "asked" } else { "named" }, what);
            }
        }
    }

    fn closed(&self, machine: &Links, on: Id) {
        if let Some(state) = machine.dial(on) {
            self.note("connect", dial(state), "closed");
        }
        if let Some(at) = machine.phase(on) {
            self.note("link", phase(at), "closed");
        }
        machine.pairs().iter().filter(|pair| pair.over.contains(&on)).for_each(|pair| {
            self.note("pair", sides(pair.sides), "closed");
        });
        let over = machine.introductions().iter().filter(|it| it.over.contains(&on));
        over.for_each(|it| self.note("introduction", stage(it.stage), "closed"));
        machine.alone().iter().filter(|alone| alone.by == on).for_each(|_| self.note("own end", "alone", "closed"));
    }

    fn sent(&self, machine: &Links, on: Id, packet: &Packet) {
        if let Some(state) = machine.dial(on) {
            let what = match packet {
                Packet::Connect { .. } => "sent connect",
                Packet::New { .. } => "sent new",
                _ => "sent reuse",
            };
            return self.note("connect", dial(state), what);
        }
        let Some(at) = machine.phase(on) else { return };
        match packet {
            Packet::Handshake { .. } => self.note("link", phase(at), "sent handshake"),
            Packet::Idle(_) => self.note("link", phase(at), "sent idle"),
            Packet::Agree => self.note("link", phase(at), "sent agree"),
            Packet::Refuse => self.note("link", phase(at), "sent refuse"),
            _ if packet.is_counted() => self.note("link", phase(at), "sent counted"),
            _ => {}
        }
        match *packet {
            Packet::Forget { number, .. } => self.name(machine, on, number, "sent forget"),
            Packet::Half { lane, .. } | Packet::Named { lane, .. } | Packet::Yourself { lane, .. } => {
                let found = machine.introductions().iter().find(|it| it.lane == lane);
                found.into_iter().for_each(|it| self.note("introduction", stage(it.stage), "done"));
                let pair = found.and_then(|it| machine.pairs().iter().find(|pair| it.pair == Some(pair.number)));
                pair.into_iter().for_each(|pair| self.note("pair", sides(pair.sides), "sent name"));
            }
            Packet::Released { number } => {
                let found = machine.pairs().iter().filter(|pair| pair.number == number);
                found.for_each(|pair| self.note("pair", sides(pair.sides), "sent released"));
            }
            _ => {}
        }
    }

    /// Returns the table of all pairs as text, and the pairs that never came about and have no reason.
    pub fn table(&self) -> (String, Vec<String>) {
        let met = self.0.lock().unwrap();
        let (mut text, mut missing) = (String::new(), Vec::new());
        let all: [(&'static str, &[&str], &[&'static str]); 6] = [
            ("link", &PHASES, &LINK_SEEN),
            ("connect", &DIALS, &DIAL_SEEN),
            ("name", &NAMES, &NAME_SEEN),
            ("pair", &SIDES, &PAIR_SEEN),
            ("introduction", &STAGES, &STAGE_SEEN),
            ("own end", &ALONE, &ALONE_SEEN),
        ];
        for (machine, states, seens) in all {
            for state in states {
                for &seen in seens {
                    let times = met.get(&(machine, (*state).to_owned(), seen)).copied().unwrap_or(0);
                    let why = NEVER
                        .iter()
                        .find(|row| row.0 == machine && state.starts_with(row.1) && seen.starts_with(row.2));
                    let note = match (times, why) {
                        (0, Some(row)) => format!("never: {}", row.3),
                        (0, None) => {
                            missing.push(format!("{machine}: {state}, {seen}"));
                            "NEVER".to_owned()
                        }
                        _ => times.to_string(),
                    };
                    text += &format!("{machine:12} | {state:18} | {seen:15} | {note}\n");
                }
            }
        }
        (text, missing)
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Greeting => PHASES[0],
        Phase::Open => PHASES[1],
        Phase::Refused => PHASES[2],
        Phase::Asked => PHASES[3],
        Phase::Overtaken => PHASES[4],
        Phase::Agreeing => PHASES[5],
        Phase::Refusing => PHASES[6],
    }
}

fn dial(dial: &Dial) -> &'static str {
    match dial {
        Dial::Asks { .. } => DIALS[0],
        Dial::Waits { .. } => DIALS[1],
        Dial::Expects { .. } => DIALS[2],
        Dial::Answers { .. } => DIALS[3],
    }
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Make => STAGES[0],
        Stage::First => STAGES[1],
        Stage::Second => STAGES[2],
        Stage::Commit => STAGES[3],
    }
}

fn sides(sides: [Side; 2]) -> String {
    let name = |side| match side {
        Side::Named => "named",
        Side::Forgot => "forgot",
        Side::Released => "released",
    };
    format!("{}, {}", name(sides[0]), name(sides[1]))
}
