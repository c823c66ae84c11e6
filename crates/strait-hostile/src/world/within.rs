//! A world in one thread. Attacker and victim take turns, so that equal choices have equal effects in each run.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::world::attacker::{Attacker, Means};
use crate::world::choices::Choices;
use crate::world::victim::{Setting, Victim};

/// The maximum number of turns of a world; in each turn the attacker and the victim take one step.
pub const TURNS: usize = 150;

/// A world in one thread, and the steps that its attacker may take.
#[derive(Clone, Debug, Default)]
pub struct Within {
    /// The names of the steps that the attacker may take; empty for all steps.
    pub only: Vec<String>,
    /// Whether each step is printed.
    pub told: bool,
}

fn descriptors() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("a list of descriptors");
    let mut links: Vec<_> = entries
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.display().to_string())
        .collect();
    links.sort();
    links
}

impl Within {
    /// Plays the world of a seed and a round. Returns `Err` with a description of the first mistake, if there was a
    /// mistake.
    pub fn of_seed(&self, seed: u64, round: u64) -> Result<(), String> {
        self.play(Choices::of_seed(seed, round, 1), Choices::of_seed(seed, round, 2))
    }

    /// Plays the world of a fuzzer's input, whose bytes belong in turn to the attacker and to the victim.
    ///
    /// # Panics
    /// If a mistake was found.
    pub fn of_input(&self, input: &[u8]) {
        let half = |first: usize| input.iter().copied().skip(first).step_by(2).collect::<Vec<_>>();
        if let Err(found) = self.play(Choices::of_input(&half(0)), Choices::of_input(&half(1))) {
            panic!("{found}");
        }
    }

    fn play(&self, attacker: Choices, victim: Choices) -> Result<(), String> {
        let before = descriptors();
        let played = catch_unwind(AssertUnwindSafe(|| self.turns(attacker, victim)));
        if let Err(panic) = played {
            let text = panic.downcast_ref::<String>().cloned();
            return Err(text.unwrap_or_else(|| "a panic".into()));
        }
        // Threads of the library may still close descriptors, for up to one second.
        for _ in 0..1000 {
            if descriptors().len() <= before.len() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let after = descriptors();
        let left: Vec<_> = after.iter().filter(|name| !before.contains(name)).collect();
        Err(format!("{} descriptors, then {}: {left:?}", before.len(), after.len()))
    }

    fn turns(&self, attacker: Choices, mut choices: Choices) {
        let pair = || -> Option<(OwnedFd, OwnedFd)> {
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()
        };
        let setting = Setting { within: true, ..Setting::default() };
        let victim = Victim::new(setting, None).expect("a victim");
        let mut sockets = Vec::new();
        for _ in 0..1 + choices.below(2) {
            let (ours, theirs) = pair().expect("a pair");
            let copy = choices.one_in(2).then(|| theirs.try_clone().expect("a copy"));
            sockets.push((ours, copy));
            if victim.meet(theirs, false).is_err() {
                return;
            }
        }
        let means = Means { within: true, only: self.only.clone(), ..Means::default() };
        let tell = |text: &str| {
            if self.told {
                println!("Attacker: {text}");
            }
        };
        let mut driver = victim.driver(choices, 0);
        driver.tell(self.told);
        let Ok(mut attacker) = Attacker::new(attacker, means, sockets, tell) else { return };
        for _ in 0..TURNS {
            if attacker.is_over() && driver.is_over() {
                break;
            }
            attacker.act();
            driver.act();
        }
        // Either the victim or the attacker closes everything first.
        if driver.ends_first() {
            driver.let_go();
            drop(attacker);
        } else {
            drop(attacker);
            driver.let_go();
        }
    }
}
