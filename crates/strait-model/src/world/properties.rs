//! The properties that must hold.

use std::sync::Arc;

use stateright::{HasDiscoveries, Model, Property};
use strait_proto::links::{Dial, Id, Identity, Link, Links, Makers, Origin, Phase};

use super::act::act;
use super::action::{self, Action};
use super::configuration::Configuration;
use super::coverage::Coverage;
use crate::search::{Report, search};

use super::state::{A, End, H, Place, Process, V, World, Wrong, bit, identity};

/// The world in one configuration, in the form for the model checker.
#[derive(Debug)]
pub struct Rules {
    /// The bounds of the run.
    pub configuration: Configuration,
    /// The situations reached so far.
    pub coverage: Arc<Coverage>,
}

/// A property: a name, whether the property must hold only at rest, and the check.
pub type Check = (&'static str, bool, fn(&World) -> bool);

/// Every property.
pub const CHECKS: [Check; 13] = [
    ("a lane is harmed only by its peer, its movers and its makers", false, |now| {
        !matches!(now.wrong, Some(Wrong::Harmed(_))) && !captured(now)
    }),
    ("a peer is the process for which it is taken", false, |now| {
        !matches!(now.wrong, Some(Wrong::Stolen(_))) && !misnamed(now)
    }),
    ("a direct link is a socket of its two processes alone", false, only_direct),
    ("no honest process is taken for a bad peer", false, |now| !matches!(now.wrong, Some(Wrong::Accused(_)))),
    ("a link is closed only when neither side needs it", false, |now| {
        !matches!(now.wrong, Some(Wrong::ClosedInUse(_)))
    }),
    ("no packet is sent between an IDLE and its answer", false, |now| !matches!(now.wrong, Some(Wrong::NotQuiet(_)))),
    ("both ends of a lane are on one link", false, same_link),
    ("at rest, nothing that was accepted is lost", true, delivered),
    ("at rest, two processes that need a link no more have closed it", true, no_surplus),
    ("at rest, every IDLE was answered and every packet was read", true, answered),
    (
        "at rest, there is one introduced link for each introducer that names it and set of makers, and two direct links at most",
        true,
        count,
    ),
    ("at rest, no end waits for an end that cannot come", true, ends_told),
    ("at rest, an introducer remembers only pairs that are in use", true, remembered),
];

impl Model for Rules {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.configuration.start()]
    }

    fn actions(&self, now: &World, found: &mut Vec<Action>) {
        if now.wrong.is_none() {
            action::actions(&self.configuration, now, found);
        }
    }

    fn next_state(&self, now: &World, action: Action) -> Option<World> {
        Some(act(&self.coverage, now.clone(), &action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("every property holds", |model: &Self, now: &World| {
            violated(&model.configuration, now).is_none()
        })]
    }

    fn format_action(&self, action: &Action) -> String {
        format!("{action:?}")
    }
}

/// Returns a violated property; `None` if all properties hold.
pub fn violated(is: &Configuration, now: &World) -> Option<&'static str> {
    let broken = |at_rest: bool| CHECKS.iter().find(|check| check.1 == at_rest && !check.2(now)).map(|check| check.0);
    broken(false).or_else(|| {
        let mut left = Vec::new();
        action::required(is, now, &mut left);
        if left.is_empty() && now.wrong.is_none() { broken(true) } else { None }
    })
}

/// Returns every link of a living honest process, with the process.
fn all_links(now: &World) -> impl Iterator<Item = (Process, Id, &Link)> {
    let machines = now.machines.iter().filter(|(process, _)| now.lives(**process));
    machines.flat_map(|(&process, machine)| machine.links().map(move |(on, link)| (process, on, link)))
}

/// Returns every link between honest processes without a copy in A.
fn honest_links(now: &World) -> impl Iterator<Item = (Process, Id, &Link)> {
    all_links(now).filter(|&(_, on, link)| {
        let by_a = |side: usize| now.half(on, side).place == Place::At(A);
        let peer = !is_a(link.peer);
        now.socket(on).copied == 0 && !by_a(0) && !by_a(1) && peer && now.socket(on).maker != A
    })
}

/// Returns whether a peer is the hostile process, under any name.
fn is_a(peer: Option<Identity>) -> bool {
    peer.is_some_and(|peer| peer.inode == identity(A).inode)
}

fn captured(now: &World) -> bool {
    now.lanes.iter().any(|lane| {
        lane.ends.iter().any(|end| match end {
            End::At(on) => now.socket(*on).copies & !lane.blame != 0,
            _ => false,
        })
    })
}

/// Returns whether a lane is on a link to another process than that of the lane's other end.
fn misnamed(now: &World) -> bool {
    all_links(now).any(|(process, _, link)| {
        let Some(peer) = link.peer else { return false };
        link.lanes.iter().any(|&lane| {
            let state = now.lane(lane);
            let other = state.processes[1 - now.end_in(lane, process)];
            // The hostile process may lie about lanes that it may harm.
            identity(other) != peer && state.blame & bit(A) == 0
        })
    })
}

fn only_direct(now: &World) -> bool {
    all_links(now).all(|(process, on, link)| {
        // A process started by A believes what A claims about its parent.
        let started_by_a = process == H && link.origin == Origin::Given { peer: Some(identity(V).inode) };
        let greeted = link.peer.is_some_and(|_| !is_a(link.peer));
        !(link.makers.is_none() && greeted && now.socket(on).copied & bit(A) != 0) || started_by_a
    })
}

fn same_link(now: &World) -> bool {
    now.lanes.iter().all(|lane| match lane.ends {
        [End::At(one), End::At(other)] => one == other || lane.blame & bit(A) != 0,
        _ => true,
    })
}

fn delivered(now: &World) -> bool {
    now.lanes.iter().all(|lane| {
        (0..2).all(|at| match lane.ends {
            [End::At(on), End::At(_)] if now.socket(on).copied == 0 && lane.blame & bit(A) == 0 => {
                lane.received[at] == lane.sent[1 - at]
            }
            _ => true,
        })
    })
}

fn no_surplus(now: &World) -> bool {
    honest_links(now).all(|(_, on, link)| {
        let used = now.lanes.iter().any(|lane| lane.ends.contains(&End::At(on)));
        // A link named by a hostile introducer may stay, because that introducer may never send RELEASED.
        let named_by_a = link.name().is_some_and(|name| now.socket(name.by).copied != 0);
        used || named_by_a || waits_for_a(now, on) || introduces_a(now, on)
    })
}

/// Returns whether an introduction in progress uses a link, and also another link on which A can leave an IDLE
/// unanswered.
fn introduces_a(now: &World, on: Id) -> bool {
    now.machines.values().any(|machine| {
        let hostile =
            |over: &Id| machine.link(*over).is_some_and(|link| is_a(link.peer)) || now.socket(*over).copied != 0;
        machine.introductions().iter().any(|it| it.over.contains(&on) && it.over.iter().any(hostile))
    })
}

/// Returns whether one of the two processes of a link connects to the other, on a socket that A has or can read. A
/// may never answer, and so holds the direct links of the two processes.
fn waits_for_a(now: &World, on: Id) -> bool {
    let waits = |machine: &Links, to: u64| {
        let own = |dial: &Dial| matches!(dial, Dial::Asks { to: Some(it), .. } | Dial::Waits { to: Some(it), .. } if *it == to);
        (0..now.sockets.len() as Id).any(|other| {
            let a = now.side_of(other, A).is_some() || now.socket(other).copied != 0;
            a && machine.dial(other).is_some_and(own)
        })
    };
    let peer = |machine: &Links| machine.link(on).and_then(|link| link.peer).map(|peer| peer.inode);
    now.machines.values().any(|machine| peer(machine).is_some_and(|to| waits(machine, to)))
}

fn answered(now: &World) -> bool {
    let quiet = honest_links(now).all(|(_, on, link)| {
        let settled = matches!(link.life.phase(), Phase::Open | Phase::Refused) && link.greeted;
        settled && (link.unknown.is_empty() || waits_for_a(now, on))
    });
    quiet && now.halves().all(|(_, _, half)| half.queue.is_empty() || matches!(half.place, Place::Closed))
}

fn count(now: &World) -> bool {
    // A link that its introducer does not name any more stays while it is used.
    let nameable = |link: &Link| !matches!(link.origin, Origin::Introduced { name: None, .. });
    let all: Vec<_> = honest_links(now).filter(|(.., link)| nameable(link)).collect();
    let kind = |link: &Link| match link.origin {
        Origin::Given { .. } => 0,
        Origin::Connected { .. } => 1,
        Origin::Introduced { .. } => 2,
    };
    all.iter().all(|one| {
        let same = |other: &&(Process, Id, &Link)| {
            let alike = (one.0, one.2.peer, kind(one.2)) == (other.0, other.2.peer, kind(other.2));
            let makers = one.2.makers == other.2.makers && one.2.makers != Makers::Anyone;
            alike
                && makers
                && now.socket(one.1).maker_if_introduced(kind(one.2))
                    == now.socket(other.1).maker_if_introduced(kind(other.2))
        };
        let most = if kind(one.2) == 1 { 2 } else { 1 };
        kind(one.2) == 0 || all.iter().filter(same).count() <= most
    })
}

fn ends_told(now: &World) -> bool {
    let machines = now.machines.iter().filter(|(process, _)| now.lives(**process));
    machines.flat_map(|(_, machine)| machine.alone()).all(|alone| {
        let lane = now.lane(alone.lane);
        lane.blame & bit(A) != 0
    })
}

fn remembered(now: &World) -> bool {
    let machines = now.machines.iter().filter(|(process, _)| now.lives(**process));
    machines.flat_map(|(_, machine)| machine.pairs()).all(|pair| {
        let hostile = pair.ends.into_iter().any(is_a) || pair.over.iter().any(|&on| now.socket(on).copied != 0);
        hostile || honest_links(now).any(|(_, _, link)| link.name().is_some_and(|name| name.number == pair.number))
    })
}

/// Explores every state of a configuration, until a property does not hold.
pub fn explore(configuration: Configuration, coverage: &Arc<Coverage>) -> Report<()> {
    let rules = Rules { configuration, coverage: Arc::clone(coverage) };
    let mut report = search(rules, HasDiscoveries::AnyFailures, |_| Vec::new());
    report.wrong.truncate(1);
    report
}
