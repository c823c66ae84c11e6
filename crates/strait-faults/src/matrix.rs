//! The matrix: all pairs of a scenario and a fault, and the worker processes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::program::ledger::PROCESSES;
use crate::program::run::{Fault, Limits, Outcome, World, run as run_once};
use crate::program::scenarios::{SCENARIOS, Scenario};
use crate::program::{Action, Arguments, calls};

/// The number of runs that find the steps of each scenario. Some steps depend on which process is faster, and do not
/// occur in every run.
const RECORDINGS: usize = 4;

/// The matrix stops after so many mistakes.
const ENOUGH: u32 = 30;

/// The step that sends the handshake of a process, when the process reaches the step for the first time: the
/// handshake is the first packet of a process.
const HANDSHAKE: &str = "sendmsg";

/// The steps of each process of a scenario, with the number of times of each step, and the bytes that stay allocated.
struct Recording {
    steps: Vec<BTreeMap<String, u32>>,
    /// For each process, the number of times of each step before the process had sent its handshake.
    unknown: Vec<BTreeMap<String, u32>>,
    bytes: Vec<u64>,
}

fn record(scenario: &Scenario, world: &World) -> Result<Recording, String> {
    let count = scenario.roles.len();
    let nothing = vec![BTreeMap::new(); count];
    let mut recording = Recording { steps: nothing.clone(), unknown: nothing, bytes: vec![0; count] };
    for _ in 0..RECORDINGS {
        if let Outcome::Wrong(what) = run_once(scenario, &Fault::Record, world, None) {
            return Err(format!("{} without a fault: {what}", scenario.name));
        }
        for (number, life) in world.ledger.lives[..count].iter().enumerate() {
            let mut times: BTreeMap<String, u32> = BTreeMap::new();
            let mut is_known = false;
            for step in life.said().lines() {
                *times.entry(step.to_owned()).or_default() += 1;
                // The fault point is before the packet is sent.
                if step == HANDSHAKE && !std::mem::replace(&mut is_known, true) {
                    recording.unknown[number] = times.clone();
                }
            }
            for (step, times) in times {
                let most = recording.steps[number].entry(step).or_default();
                *most = times.max(*most);
            }
            let bytes = life.bytes.load(Ordering::SeqCst);
            recording.bytes[number] = bytes.max(recording.bytes[number]);
        }
    }
    Ok(recording)
}

/// Returns the tried times, at most `most`, of the `all` times that a process reaches a step.
fn times(all: u32, most: u32) -> Vec<u32> {
    if all <= most {
        return (1..=all).collect();
    }
    // The first and the last time, and others evenly between them.
    let mut times: Vec<_> = (0..most).map(|index| 1 + index * (all - 1) / (most - 1).max(1)).collect();
    times.dedup();
    times
}

fn pairs_of(action: Action, recording: &Recording, arguments: &Arguments) -> Vec<Fault> {
    let mut faults = Vec::new();
    if action == Action::Interrupt {
        return vec![Fault::Interrupts; arguments.interrupted];
    }
    for (victim, steps) in recording.steps.iter().enumerate() {
        for (step, all) in steps {
            for time in times(*all, arguments.times) {
                let mut plan = |plan: String| faults.push(Fault::Plan { victim, plan });
                match action {
                    Action::Fail => {
                        let chosen = |error: &&&str| {
                            arguments.errors.is_empty() || arguments.errors.iter().any(|one| one == **error)
                        };
                        for error in calls::errors(step).unwrap_or_default().iter().filter(chosen) {
                            plan(format!("fail:{step}:{error}:{time}"));
                        }
                    }
                    // A lack of descriptors also shows at calls without an effect on other processes.
                    Action::Starve => plan(format!("starve:{step}:{time}")),
                    _ if !calls::is_visible(step) => {}
                    Action::Kill => plan(format!("kill:{step}:{time}")),
                    Action::Stop => plan(format!("stop:{step}:{time}")),
                    Action::Fork => {
                        // Other processes can notice the death only if they know the process that has the end. The
                        // process is known once its handshake was sent, but never if the end moves to a process unknown
                        // to the others. The number of steps before the handshake differs from run to run, so those
                        // steps are not counted.
                        let unknown = recording.unknown[victim].get(step).copied().unwrap_or(0);
                        if recording.steps.len() <= 2 && time > unknown {
                            plan(format!("fork:{step}:{}:after:{HANDSHAKE}", time - unknown));
                        } else {
                            plan(format!("fork?:{step}:{time}"));
                        }
                    }
                    Action::Interrupt => {}
                }
            }
        }
    }
    faults
}

/// The counters shared by the worker processes.
struct Tally {
    next: AtomicU32,
    right: AtomicU32,
    not_reached: AtomicU32,
    wrong: AtomicU32,
    late: AtomicU32,
}

/// Creates counters shared with all later children of this process.
fn shared_tally() -> &'static Tally {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a null hint makes the kernel choose fresh address space.
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), size_of::<Tally>(), access, MapFlags::SHARED) };
    // SAFETY: the memory is fresh, zeroed, of the right size, aligned to a page, never unmapped, and accessed by
    // atomics only.
    unsafe { &*memory.expect("memory for a tally").cast::<Tally>() }
}

/// Runs the selected part of the matrix. Returns whether all runs were correct.
pub(crate) fn run(arguments: &Arguments, limits: Limits) -> bool {
    crate::program::run::prepare();
    let world = World::new(limits);
    let right = run_in(&world, arguments, limits);
    world.end();
    right
}

fn run_in(world: &World, arguments: &Arguments, limits: Limits) -> bool {
    let begin = Instant::now();
    let chosen = |scenario: &&Scenario| {
        arguments.scenarios.is_empty() || arguments.scenarios.iter().any(|name| name == scenario.name)
    };
    let scenarios: Vec<_> = SCENARIOS.iter().filter(chosen).collect();
    if let Some(name) = arguments.scenarios.iter().find(|name| scenarios.iter().all(|known| known.name != **name)) {
        eprintln!("no scenario is called {name}");
        return false;
    }
    let mut recordings = Vec::new();
    for scenario in &scenarios {
        assert!(scenario.roles.len() <= PROCESSES);
        match record(scenario, world) {
            Ok(recording) => recordings.push(recording),
            Err(what) => {
                eprintln!("{what}");
                return false;
            }
        }
    }
    if arguments.list {
        for (scenario, recording) in scenarios.iter().zip(&recordings) {
            for (number, steps) in recording.steps.iter().enumerate() {
                for (step, times) in steps {
                    println!("{}\t{number}\t{times}\t{step}", scenario.name);
                }
            }
        }
        return true;
    }
    let steps: u32 = recordings.iter().flat_map(|recording| &recording.steps).flat_map(BTreeMap::values).sum();
    let mut names: Vec<_> = recordings.iter().flat_map(|recording| &recording.steps).flat_map(BTreeMap::keys).collect();
    names.sort();
    names.dedup();
    println!("{} scenarios, {} fault points, come to {steps} times", scenarios.len(), names.len());
    let mut right = true;
    for action in &arguments.actions {
        let mut pairs = Vec::new();
        for (scenario, recording) in scenarios.iter().zip(&recordings) {
            let faults = match &arguments.only {
                Some(only) => {
                    let (victim, plan) = only.split_once(':').expect("a process and a plan");
                    vec![Fault::Plan { victim: victim.parse().expect("a process"), plan: plan.to_owned() }]
                }
                None => pairs_of(*action, recording, arguments),
            };
            for fault in faults {
                pairs.extend(std::iter::repeat_n((*scenario, recording, fault), arguments.repeat));
            }
        }
        let all = pairs.len();
        let pairs: Vec<_> = pairs.into_iter().step_by(arguments.every).collect();
        let pairs = drawn(pairs, arguments);
        right &= run_pairs(*action, &pairs, all, arguments, limits);
        if arguments.only.is_some() {
            break;
        }
    }
    println!(
        "{} after {:.1} s",
        if right { "all is right" } else { "not all is right" },
        begin.elapsed().as_secs_f64()
    );
    right
}

/// Returns the elements drawn by the seed, or all elements if the arguments ask for no draw.
fn drawn<T>(mut all: Vec<T>, arguments: &Arguments) -> Vec<T> {
    let Some(count) = arguments.draw else { return all };
    let mut state = arguments.seed;
    for place in 0..count.min(all.len()) {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let left = all.len() - place;
        all.swap(place, place + (word ^ (word >> 31)) as usize % left);
    }
    all.truncate(count);
    all
}

fn run_pairs(
    action: Action,
    pairs: &[(&Scenario, &Recording, Fault)],
    all: usize,
    arguments: &Arguments,
    limits: Limits,
) -> bool {
    let begin = Instant::now();
    let tally = shared_tally();
    let mut workers = Vec::new();
    for _ in 0..arguments.jobs.max(1) {
        // SAFETY: this process has one thread, so the child inherits no lock held by another thread.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: the arguments are plain numbers; the kernel kills this process when its parent ends.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                crate::program::run::prepare();
                let world = World::new(limits);
                work(tally, pairs, &world);
                world.end();
                // SAFETY: `_exit` may be called in any state.
                unsafe { libc::_exit(0) }
            }
            pid => workers.push(rustix::process::Pid::from_raw(pid).expect("a process")),
        }
    }
    for worker in workers {
        let _ = rustix::process::waitpid(Some(worker), rustix::process::WaitOptions::empty());
    }
    let count = |count: &AtomicU32| count.load(Ordering::SeqCst);
    let [right, late, not_reached, wrong] = [&tally.right, &tally.late, &tally.not_reached, &tally.wrong].map(count);
    let run = (right + late + not_reached + wrong) as usize;
    let late = if late > 0 { format!("{late} late, ") } else { String::new() };
    println!(
        "{action:?}: {run} of {all} pairs run in {:.1} s, {right} right, {late}{not_reached} not reached, {wrong} wrong",
        begin.elapsed().as_secs_f64()
    );
    wrong == 0 && run == pairs.len()
}

fn work(tally: &Tally, pairs: &[(&Scenario, &Recording, Fault)], world: &World) {
    while let Some((scenario, recording, fault)) = pairs.get(tally.next.fetch_add(1, Ordering::SeqCst) as usize) {
        if tally.wrong.load(Ordering::SeqCst) >= ENOUGH {
            return;
        }
        let bytes = Some(&recording.bytes[..]);
        let mut outcome = run_once(scenario, fault, world, bytes);
        // The steps of a process can depend on which process is faster, so such a run is repeated.
        for _ in 0..3 {
            if outcome != Outcome::NotReached {
                break;
            }
            outcome = run_once(scenario, fault, world, bytes);
        }
        let count = match outcome {
            Outcome::Right => &tally.right,
            Outcome::Late => &tally.late,
            Outcome::NotReached => &tally.not_reached,
            Outcome::Wrong(what) => {
                eprintln!("{}, {fault:?}: {what}", scenario.name);
                &tally.wrong
            }
        };
        count.fetch_add(1, Ordering::SeqCst);
    }
}
