//! Strait beside other libraries, each used as in its documentation.
//!
//! Each library is measured by a program of its own (`crates/strait-peers`, built by `tools/peers`), in the default
//! build profile of a user. A program starts a second process, measures a [`Row`] in a [`Form`] and prints a line of
//! JSON. [`run`] starts the programs one after the other: each repetition has every row of every program, in random
//! order. [`tables`] formats the results, [`picture`] draws the results, and [`summary`] prints the README's text about
//! the results.

pub mod picture;
mod program;
mod results;
mod row;
pub mod summary;
pub mod tables;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

pub use program::Program;
pub use results::{Figure, PeerResults, Run};
pub use row::{Form, Row, Spot};

use crate::machine::{Machine, Watch};
use crate::mechanism;
use crate::pair::PROBE_AREA;
use crate::placement::{Cpus, Placement};
use crate::progress::Progress;
use crate::runner;
use crate::sys::shared::Shared;
use crate::trouble::{Result, Trouble, While};
use crate::work::Side;

/// The task of a comparison: programs, forms, rows and placements.
#[derive(Clone, Debug)]
pub struct Contest {
    /// The programs.
    pub programs: Vec<Program>,
    /// How each library is used.
    pub forms: Vec<Form>,
    /// The rows to measure.
    pub rows: Vec<Row>,
    /// Where the processes run.
    pub spots: Vec<Spot>,
    /// The number of repetitions.
    pub repetitions: usize,
    /// The time of a measurement in milliseconds, after a warm-up of a fifth of this time.
    pub milliseconds: u64,
    /// Time budget in seconds: no repetition begins that would probably end later.
    pub budget: f64,
    /// The two processors for the pinned placements.
    pub cpus: Cpus,
    /// The seed of the order.
    pub seed: u64,
    /// The commit of the programs, recorded in the results.
    pub commit: Option<String>,
}

/// Measures everything in `contest`. After an interrupt (Ctrl-C), returns the figures measured until then.
///
/// # Errors
///
/// If a placement needs a second processor and there is none. The failure of a program is reported in its figure.
pub fn run(contest: &Contest) -> Result<PeerResults> {
    let mut figures = Vec::new();
    for spot in &contest.spots {
        spot.processors(contest.cpus)?;
        for form in &contest.forms {
            for row in contest.rows.iter().filter(|row| row.is_for(*form, *spot)) {
                for program in &contest.programs {
                    figures.push(Figure::new(program, *form, *row, *spot));
                }
            }
        }
    }
    let mut random = fastrand::Rng::with_seed(contest.seed);
    let begin = Instant::now();
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let watch = Watch::start();
    let mut machine = Machine::here();
    let mut progress = Progress::new(figures.len() * contest.repetitions);
    let mut complete = true;
    'all: for repetition in 0..contest.repetitions {
        let elapsed = begin.elapsed().as_secs_f64();
        if elapsed + elapsed / repetition.max(1) as f64 > contest.budget {
            complete = false;
            break;
        }
        let mut order: Vec<usize> = (0..figures.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            if runner::stopped() {
                complete = false;
                break 'all;
            }
            let figure = &mut figures[index];
            progress.step(&figure.words());
            if !figure.is_settled() {
                // A start that fails, as for lack of memory, costs one run, and not the figures of all others.
                let outcome = measure(contest, figure);
                figure.add(outcome.unwrap_or_else(|trouble| program::Outcome::Failed(trouble.to_string())));
            }
        }
    }
    progress.finish();
    machine.foreign = watch.foreign();
    Ok(PeerResults {
        machine,
        seconds: begin.elapsed().as_secs_f64(),
        began,
        commit: contest.commit.clone(),
        repetitions: contest.repetitions,
        milliseconds: contest.milliseconds,
        seed: contest.seed,
        complete,
        figures,
    })
}

/// Runs a program once, beside the load of its placement.
fn measure(contest: &Contest, figure: &Figure) -> Result<program::Outcome> {
    let program = contest.programs.iter().find(|program| program.name == figure.program);
    let program = program.ok_or_else(|| Trouble::new("a figure of a program that is not there"))?;
    let probe = match contest.cpus.two() {
        Some(two) if figure.row.feels_distance(figure.spot) => Some(distance(two)?),
        _ => None,
    };
    let burners = if figure.spot == Spot::Busy { Some(Burners::start()?) } else { None };
    let watch = Watch::start();
    let milliseconds = figure.row.milliseconds(contest.milliseconds);
    let processors = figure.spot.processors(contest.cpus)?;
    let mut outcome = program.run(figure.form, figure.row, processors, milliseconds)?;
    // The endless loops are no other processes: the loops belong to the placement, and count once ended.
    drop(burners);
    if let program::Outcome::Measured(run) = &mut outcome {
        (run.foreign, run.probe) = (watch.foreign(), probe);
    }
    Ok(outcome)
}

/// Measures the bare round trip of a cache line between two processors in nanoseconds, by two threads of this process.
fn distance(two: Placement) -> Result<f64> {
    let memory = Shared::create(PROBE_AREA)?;
    let side = |first: bool| {
        two.take(first)?;
        mechanism::probe(&memory, if first { Side::First } else { Side::Second })
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| side(false));
        let first = scope.spawn(|| side(true)).join();
        second.join().map_err(|_| Trouble::new("the probe panicked"))??;
        first.map_err(|_| Trouble::new("the probe panicked"))?
    })
}

/// Processes that keep all processors busy. The processes are killed when this value is dropped, and when the thread
/// that started them ends.
#[derive(Debug)]
struct Burners(Vec<Child>);

impl Burners {
    fn start() -> Result<Self> {
        let mut burners = Self(Vec::new());
        let parent = getpid();
        for _ in 0..Machine::processors() {
            let mut command = Command::new("sh");
            // An interrupt at the terminal goes to the process of the suite, which completes the current run.
            command.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).process_group(0);
            // SAFETY: the closure only makes two system calls, which is safe after `fork`.
            unsafe { command.pre_exec(move || end_with(parent)) };
            burners.0.push(command.spawn().doing("starting a process that computes without end")?);
        }
        Ok(burners)
    }
}

/// Makes the kernel kill this process when its parent ends. Fails if `parent` is no longer the parent.
fn end_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A failure means that the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reads a file that contains results as JSON, as `strait bench peers -o` writes them.
///
/// # Errors
///
/// If the file cannot be read, or has something else in it.
pub fn read(file: &Path) -> Result<PeerResults> {
    let text = std::fs::read_to_string(file).doing(&format!("reading {}", file.display()))?;
    serde_json::from_str(&text).doing(&format!("reading {}", file.display()))
}
