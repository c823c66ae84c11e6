//! Random walks through worlds: each seed is a configuration and a schedule.

use std::sync::Arc;

use fastrand::Rng;
use strait_proto::links::{Id, Makers, Packet};

use super::act::act;
use super::action::{self, Action};
use super::configuration::{Attack, Configuration};
use super::coverage::Coverage;
use super::properties::violated;
use super::state::{A, B, C, H, Move, PROCESSES, Place, Process, V, World, bit, identity};

/// The fewest steps of a walk.
pub const STEPS: usize = 240;

/// Runs the world of a seed. Returns the number of steps.
///
/// # Errors
/// Returns the violated property, with the last steps.
pub fn run(seed: u64, coverage: &Arc<Coverage>) -> Result<usize, String> {
    let mut walk = Walk::new(seed, coverage);
    let steps = STEPS + walk.rng.usize(..STEPS);
    let calm = 1 + walk.rng.usize(..8);
    while walk.trail.len() < steps {
        let optional = walk.rng.usize(..10) >= calm;
        if !walk.step(optional)? && !walk.step(!optional)? {
            break;
        }
        // Now and then the world comes to rest.
        if walk.rng.usize(..60) == 0 {
            walk.rest()?;
        }
    }
    walk.end()?;
    Ok(walk.trail.len())
}

struct Walk {
    rng: Rng,
    is: Configuration,
    now: World,
    coverage: Arc<Coverage>,
    trail: Vec<Action>,
    hostile: bool,
    /// The socket and the side for the next packets of the hostile process.
    target: Option<(Id, usize)>,
    seed: u64,
}

impl Walk {
    fn new(seed: u64, coverage: &Arc<Coverage>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (is, hostile) = configuration(&mut rng);
        let now = is.start();
        Self { rng, is, now, coverage: Arc::clone(coverage), trail: Vec::new(), hostile, target: None, seed }
    }

    /// Does a random step. Returns whether there was a step.
    fn step(&mut self, optional: bool) -> Result<bool, String> {
        let mut found = Vec::new();
        if optional {
            action::optional(&self.is, &self.now, &mut found);
            found.retain(|action| !matches!(action, Action::Die(_)) || self.rng.usize(..20) == 0);
            if self.hostile && self.now.lives(A) && (self.target.is_some() || self.rng.usize(..4) == 0) {
                found = self.noise().map(|attack| Action::Attack(15, attack)).into_iter().collect();
            }
        } else {
            action::required(&self.is, &self.now, &mut found);
            // Consecutive packets of the hostile process are often taken one after the other.
            let aimed = |action: &Action| matches!((action, self.target), (Action::Take(on, side), Some(it)) if (*on, *side) == it);
            if self.rng.usize(..4) > 0 && found.iter().any(aimed) {
                found.retain(aimed);
            }
        }
        let Some(action) = self.rng.choice(&found).cloned() else { return Ok(false) };
        self.act(action)?;
        Ok(true)
    }

    fn act(&mut self, action: Action) -> Result<(), String> {
        self.trail.push(action.clone());
        let now = std::mem::replace(&mut self.now, World { sockets: Vec::new(), ..Configuration::default().start() });
        self.now = act(&self.coverage, now, &action);
        match violated(&self.is, &self.now) {
            None => Ok(()),
            Some(what) => Err(self.report(what)),
        }
    }

    fn rest(&mut self) -> Result<(), String> {
        let mut steps = 0;
        while self.step(false)? {
            steps += 1;
            if steps > 10_000 {
                return Err(self.report("the world comes to rest"));
            }
        }
        Ok(())
    }

    /// Closes every lane that does not stay open, calls off every introduction, gives up every connect without an
    /// answer, and lets the world come to rest.
    fn end(&mut self) -> Result<(), String> {
        self.rest()?;
        for lane in 0..self.now.lanes.len() {
            for side in 0..2 {
                let state = &self.now.lanes[lane];
                let open = matches!(state.ends[side], super::state::End::At(_));
                if open && !state.pinned && state.processes[side] != A && state.state == Move::Committed {
                    self.act(Action::Close(lane as u128, side))?;
                }
            }
        }
        self.rest()?;
        let living: Vec<_> = self.now.machines.keys().copied().filter(|&process| self.now.lives(process)).collect();
        for process in living {
            let machine = &self.now.machines[&process];
            let lanes: Vec<_> = machine.introductions().iter().map(|it| it.lane).collect();
            for lane in lanes {
                self.act(Action::CallOff(process, lane))?;
            }
            for on in action::unanswered(&self.now, process).collect::<Vec<_>>() {
                self.act(Action::GiveUp(process, on))?;
            }
        }
        self.rest()
    }

    fn report(&self, what: &str) -> String {
        let last: Vec<_> = self.trail.iter().map(|action| format!("  {action:?}\n")).collect();
        let from = last.len().saturating_sub(60);
        let wrong = &self.now.wrong;
        let machines: String = self.now.machines.iter().map(|(process, it)| format!("  {process}: {it:?}\n")).collect();
        let lanes: String = self.now.lanes.iter().enumerate().map(|(at, lane)| format!("  {at}: {lane:?}\n")).collect();
        let open = |(at, socket): (usize, &super::state::Socket)| format!("  {at}: {socket:?}\n");
        let sockets: String = self.now.sockets.iter().enumerate().map(open).collect();
        format!("seed {}: not so: {what} {wrong:?}\n{}{lanes}{sockets}{machines}", self.seed, last[from..].concat())
    }

    /// Returns an act of the hostile process.
    fn noise(&mut self) -> Option<Attack> {
        use Attack::{
            Dial, FalseYourself, Frame, HandOn, Inject, Intercept, ListenerCopy, NameElsewhere, NameSelf, Shutdown,
            Swap,
        };
        let on = self.rng.usize(..self.now.sockets.len()) as Id;
        let attack = match self.rng.usize(..18) {
            16 => NameSelf,
            17 => Intercept,
            0 => NameElsewhere,
            1 => Frame,
            2 => FalseYourself,
            3 => HandOn,
            4 => ListenerCopy,
            5 => Dial,
            6 => Shutdown(on),
            7 | 8 => Swap(on),
            _ => {
                let drawn = (on, self.rng.usize(..2));
                let (on, side) = self.target.take().unwrap_or(drawn);
                // Often several packets in a row.
                self.target = (self.rng.usize(..3) > 0).then_some((on, side));
                let Place::At(to) = self.now.half(on, side).place else { return None };
                let packet = self.packet(to, on)?;
                Inject(on, side, packet)
            }
        };
        let few = self.now.sockets.len() < 40 || matches!(attack, Inject(..) | Shutdown(_) | Swap(_));
        (few && action::possible(&self.now, &attack) && self.alive(&attack)).then_some(attack)
    }

    fn alive(&self, attack: &Attack) -> bool {
        let both = self.now.lives(V) && self.now.lives(H);
        matches!(attack, Attack::Inject(..) | Attack::Shutdown(_) | Attack::Swap(_)) || both
    }

    /// Returns an IDLE of the hostile process, often with the number that an honest process would send.
    fn idle(&mut self, to: Process, on: Id) -> Packet {
        let sent = self.now.machines.get(&to).and_then(|machine| machine.link(on)).map_or(0, |link| link.life.sent());
        Packet::Idle(if self.rng.usize(..4) == 0 { self.rng.u64(..5) } else { sent })
    }

    /// Returns a packet of the hostile process for another process.
    fn packet(&mut self, to: Process, on: Id) -> Option<Packet> {
        let small = self.rng.u64(..5);
        // A names only lanes that A knows.
        let known: Vec<_> = (0u128..).zip(&self.now.lanes).filter(|(_, lane)| lane.blame & bit(A) != 0).collect();
        let known: Vec<u128> = known.into_iter().filter(|(_, lane)| !lane.pinned).map(|(lane, _)| lane).collect();
        let lane = match self.rng.choice(&known) {
            Some(&lane) if self.rng.bool() => lane,
            _ => self.now.add_lane(A, [A, to], Move::Committed),
        };
        if !self.now.lane(lane).processes.contains(&to) {
            return None;
        }
        let number = if self.rng.bool() { small } else { 1000 + self.rng.u64(..self.now.sockets.len() as u64) };
        let name = identity(self.rng.u8(..PROCESSES)).name;
        Some(match self.rng.usize(..17) {
            15 | 16 => self.idle(to, on),
            0 => Packet::Handshake { name, direct: self.rng.bool() },
            1 => Packet::Connect { name, link: small },
            2 => Packet::New { name, lane },
            3 | 4 => Packet::Reuse { lane, link: self.rng.u64(..self.now.sockets.len() as u64) },
            5 => Packet::Open(lane),
            6 => Packet::Data(lane),
            7 => Packet::NoLane(lane),
            8 => self.idle(to, on),
            9 => Packet::Agree,
            10 => Packet::Refuse,
            11 => Packet::Named { number, lane },
            12 => Packet::Forget { number, times: small },
            13 => Packet::Released { number },
            _ if self.rng.bool() => Packet::Yourself { lane, side: self.rng.u8(..2) },
            _ => Packet::Half { number, lane, expected: Some(identity(to)), makers: Makers::NONE },
        })
    }
}

/// Returns a random configuration, and whether the hostile process acts at random.
fn configuration(rng: &mut Rng) -> (Configuration, bool) {
    let all: &[Process] = match rng.usize(..4) {
        0 => &[V, H],
        1 => &[V, H, B],
        2 => &[V, H, B, A],
        _ => &[V, H, B, A, C],
    };
    let mut is = Configuration::default().room(1 + rng.usize(..4));
    for (at, &left) in all.iter().enumerate() {
        for &right in &all[..at] {
            is = match rng.usize(..8) {
                0 | 1 => is,
                2 | 3 => is.idle_link(right, left),
                4 if left != A && right != A && all.contains(&A) => is.foreign(right, left),
                _ => is.link(right, left),
            };
        }
    }
    for &introducer in all.iter().filter(|&&process| process != A) {
        for &left in all {
            for &right in all {
                if introducer != left && introducer != right && left <= right && rng.usize(..3) > 0 {
                    is = is.introduces(introducer, left, right, 1 + rng.u8(..8));
                }
            }
        }
    }
    for &from in all.iter().filter(|&&process| process != A) {
        for &to in all {
            if from != to && rng.usize(..3) == 0 {
                is = is.connects(from, to, 1 + rng.u8(..6));
            }
        }
    }
    is = is.opens(rng.u8(..20)).sends(rng.u8(..40)).calls_off(rng.u8(..6));
    if rng.usize(..3) == 0 {
        is = is.deaths(1 + rng.u8(..2), all);
    }
    (is, all.contains(&A) && rng.usize(..4) > 0)
}
