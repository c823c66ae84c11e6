//! `strait bench`: translates the command line to works of `strait-lab`, runs them, and prints the results.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use strait_lab::CATALOGUE;
use strait_lab::bars::{self, ends, fairness, floors, scale, toolbox};
use strait_lab::peers::{self, Contest, PeerResults, Program, Row};
use strait_lab::results::tables::{self, Look};
use strait_lab::results::{Figure, Results, State};
use strait_lab::runner::{self, Plan};
use strait_lab::shape::names as shapes;
use strait_lab::stats::{rate, time};
use strait_lab::suite::{self, Axes, Suite};
use strait_lab::trouble::{Result, Trouble, While};
use strait_lab::{Cpus, Extent, Mechanism, Placement, Wait, Work, compare};

use crate::cli::{self, Bench, How, What};
use crate::output::Output;

/// Runs `strait bench`.
pub(crate) fn run(bench: Bench) -> Result<ExitCode> {
    match bench.what {
        None => match bench.one.name {
            Some(mechanism) => one(mechanism, bench.one.message, bench.one.iterations),
            None => named(bench.suite, bench.whole, &bench.how),
        },
        Some(What::Table { combinations, how }) => custom(combinations, &how),
        Some(What::Compare { before, after }) => compare(&before, &after),
        Some(What::Report { results, output }) => report(&results, &output),
        Some(What::Schema) => schema(),
        Some(What::Mechanisms) => {
            mechanisms();
            Ok(ExitCode::SUCCESS)
        }
        Some(What::Shapes) => {
            println!("{}", shapes::LISTING);
            Ok(ExitCode::SUCCESS)
        }
        Some(What::Floors(cli::Bars { rows, cpus: named })) => {
            let cpus = cpus(&named)?;
            judge(|| floors::run(rows.repetitions.into(), rows.only.as_deref(), cpus), None, rows.json)
        }
        Some(What::Ends(cli::Bars { rows, cpus: named })) => {
            let cpus = cpus(&named)?;
            let scale = if rows.quick { ends::Scale::QUICK } else { ends::Scale::FULL };
            let run = || ends::run(rows.repetitions.into(), rows.only.as_deref(), cpus, scale);
            judge(run, Some(ends::HOW), rows.json)
        }
        Some(What::Toolbox(cli::Bars { rows, cpus: named })) => {
            let cpus = cpus(&named)?;
            let scale = if rows.quick { toolbox::Scale::QUICK } else { toolbox::Scale::FULL };
            let run = || toolbox::run(rows.repetitions.into(), rows.only.as_deref(), cpus, scale);
            judge(run, Some(toolbox::HOW), rows.json)
        }
        Some(What::Scale(rows)) => {
            let most = if rows.quick { scale::Most::QUICK } else { scale::Most::FULL };
            let run = || scale::run(rows.repetitions.into(), rows.only.as_deref(), most);
            judge(run, Some(scale::HOW), rows.json)
        }
        Some(What::Fairness(cli::Bars { rows, cpus: named })) => {
            let cpus = cpus(&named)?;
            let trips = if rows.quick { 20 } else { 2000 };
            let run = || fairness::run(rows.repetitions.into(), rows.only.as_deref(), cpus, trips);
            judge(run, Some(fairness::HOW), rows.json)
        }
        Some(What::Peers(asked)) => peers(&asked),
    }
}

/// Runs `strait bench peers`: Strait beside other libraries, or an earlier result printed again.
fn peers(asked: &cli::Peers) -> Result<ExitCode> {
    // Tests before the first measurement whether the files can be written.
    let mut output = asked.output.as_deref().map(Output::open).transpose()?;
    let mut picture = asked.picture.as_deref().map(Output::open).transpose()?;
    let results = match &asked.from {
        Some(file) => peers::read(file)?,
        None => contest(asked)?,
    };
    // The tables are printed even if a file cannot be written: they are all that is left of the measurement then.
    let text = || serde_json::to_string(&results).doing("writing JSON");
    let written = match &mut output {
        Some(file) => text().and_then(|text| file.write(&(text + "\n"))),
        None => Ok(()),
    };
    let drawn = picture.as_mut().map_or(Ok(()), |file| file.write(&peers::picture::svg(&results)));
    if asked.readme {
        print!("{}", peers::summary::readme(&results, "docs/peers.png"));
    } else if asked.share {
        print!("{}", peers::tables::markdown(&results));
    } else {
        print!("{}", peers::tables::print(&results, std::io::stdout().is_terminal()));
    }
    written.and(drawn)?;
    let failed = results
        .figures
        .iter()
        .any(|figure| !figure.is_reached() || figure.program == "strait" && !figure.failed.is_empty());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures Strait beside other libraries.
fn contest(asked: &cli::Peers) -> Result<PeerResults> {
    let programs = Program::all(&asked.programs, &asked.only)?;
    let cpus = cpus(&asked.cpus)?;
    let mut spots = asked.placements.clone();
    spots.retain(|spot| spot.fits(cpus));
    if spots.is_empty() {
        return Err(nothing());
    }
    runner::stop_on_interrupt()?;
    peers::run(&Contest {
        programs,
        forms: asked.forms.clone(),
        rows: if asked.rows.is_empty() { Row::ALL.to_vec() } else { asked.rows.clone() },
        spots,
        repetitions: asked.repetitions.into(),
        milliseconds: asked.milliseconds,
        budget: asked.budget,
        cpus,
        seed: asked.seed.unwrap_or_else(runner::any_seed),
        commit: asked.commit.clone(),
    })
}

/// Returns the CPUs given on the command line; without any, the first two that are allowed.
fn cpus(named: &[usize]) -> Result<Cpus> {
    match named {
        [] => Cpus::allowed(),
        named => Cpus::named(named)?.verified(),
    }
}

/// Runs a named suite, or its longer form if `whole` is set.
fn named(suite: Suite, whole: bool, how: &How) -> Result<ExitCode> {
    let cpus = cpus(&how.cpus)?;
    let works = match whole {
        false => suite.works(cpus),
        true => suite.whole_works(cpus).ok_or_else(|| {
            Trouble::new(format!("--whole is for `mojo` and `mach`: `{}` has no longer form", suite.name()))
        })?,
    };
    take(suite.name(), works, suite.repetitions(), whole || suite.counts_calls(), how)
}

/// Runs `strait bench table`: every combination of the given axes.
fn custom(asked: cli::Combinations, how: &How) -> Result<ExitCode> {
    let cpus = cpus(&how.cpus)?;
    let axes = Axes {
        mechanisms: asked.mechanisms,
        shapes: asked.shapes,
        sizes: asked.sizes,
        waiting: asked.waiting,
        placements: asked.placements.iter().filter_map(|place| place.on(cpus)).collect(),
        extent: match asked.count {
            Some(count) => Extent::Count { warm: count / 4, steady: count },
            None => Extent::Time { warm: 30, steady: 170 },
        },
    };
    let works = axes.works();
    if let (true, Some(reason)) = (works.is_empty(), axes.first_unfit()) {
        return Err(Trouble::new(format!("nothing of what was asked for can be measured: {reason}")));
    }
    take("table", works, 1, false, how)
}

/// Runs these works and prints the results. The exit code is a failure if a work broke or was not reached; a work that
/// this machine cannot run is shown, but is not a failure.
fn take(suite: &str, mut works: Vec<Work>, repetitions: usize, calls: bool, how: &How) -> Result<ExitCode> {
    if let Some(only) = &how.only {
        works.retain(|work| work.words().contains(only));
    }
    if works.is_empty() {
        return Err(nothing());
    }
    // Tests before the first measurement whether the file can be written.
    let mut output = how.output.as_deref().map(Output::open).transpose()?;
    runner::stop_on_interrupt()?;
    let repetitions = how.repetitions.map_or(repetitions, usize::from);
    let calls = calls || how.calls;
    let expected = suite::expected(&works, repetitions, calls).as_secs_f64();
    eprintln!("{} figures, {repetitions} times each: about {}.", works.len(), minutes(expected.min(how.budget)));
    let results = runner::run(&Plan {
        suite: suite.to_owned(),
        works,
        repetitions,
        budget: how.budget,
        seed: how.seed.unwrap_or_else(runner::any_seed),
        calls,
    });
    let text = serde_json::to_string_pretty(&results).doing("writing JSON")?;
    // The results are printed even if the file cannot be written: they are all that is left of the measurement then.
    let written = output.as_mut().map_or(Ok(()), |file| file.write(&text));
    if how.json {
        println!("{text}");
    } else {
        print(&results, how);
    }
    written?;
    if let Some(file) = output.filter(|_| !how.json) {
        println!("Written to {}.", file.name());
    }
    Ok(exit(&results))
}

/// Returns the error of a command whose options leave nothing to measure.
fn nothing() -> Trouble {
    Trouble::new("nothing of what was asked for can be measured")
}

/// Formats a duration: in seconds below 100 s, then in minutes.
fn minutes(seconds: f64) -> String {
    if seconds < 99.5 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

/// Returns a failure if a work broke, or was not reached.
fn exit(results: &Results) -> ExitCode {
    let failed = |figure: &Figure| matches!(figure.state, State::Broken(_) | State::NotReached);
    if results.figures.iter().any(failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Prints the tables and a line about the machine; with `--verbose` also how the figures are taken, and the overhead of
/// the benchmark.
fn print(results: &Results, how: &How) {
    let look = match (how.share, how.verbose) {
        (true, _) => Look::Markdown,
        (_, true) => Look::Wide,
        _ if std::io::stdout().is_terminal() => Look::Bold,
        _ => Look::Plain,
    };
    println!("{}", tables::print(results, look));
    if how.verbose {
        println!(
            "{}\n\nA reading of the clock took {}, and the loop of a round trip with nothing in it {}.",
            tables::HOW,
            time(results.harness.clock),
            time(results.harness.empty)
        );
    }
    let foreign = results.machine.foreign.map_or_else(
        || "what others did meanwhile is not known".to_owned(),
        |share| format!("others used {:.0} % of the processors meanwhile", 100.0 * share),
    );
    let end = if results.complete { "" } else { ", stopped before its end" };
    println!("{}, {:.0} s{end}; {foreign}.", results.machine.words(), results.seconds);
    if !how.verbose && !how.share {
        println!("Medians; CPU is that of both sides. -v explains, and prints every column.");
    }
}

/// Measures one mechanism by ping-pongs between processes that are not pinned to a CPU. The processes block if the
/// mechanism can, as is usual in such benchmarks.
fn one(mechanism: Mechanism, size: usize, iterations: u64) -> Result<ExitCode> {
    let extent = Extent::Count { warm: iterations / 4, steady: iterations };
    let work = [Wait::Block, Wait::Adaptive, Wait::Spin]
        .map(|wait| Work { extent, stride: 1, ..Work::round_trip(mechanism, size, wait, Placement::Free) })
        .into_iter()
        .find(|work| work.unfit().is_none())
        .ok_or_else(|| Trouble::new(format!("{} cannot carry {size} bytes", mechanism.title())))?;
    let plan = Plan {
        suite: "one".to_owned(),
        works: vec![work],
        repetitions: 1,
        budget: f64::INFINITY,
        seed: 0,
        calls: false,
    };
    let results = runner::run(&plan);
    let [figure] = &results.figures[..] else {
        return Err(Trouble::new("one work gives one figure"));
    };
    one_figure(figure, iterations)
}

/// Prints the figure of one mechanism.
fn one_figure(figure: &Figure, iterations: u64) -> Result<ExitCode> {
    let (Some(summary), Some(report)) = (figure.summary, figure.middle()) else {
        return Err(match &figure.state {
            State::Broken(why) | State::Lacking(why) => {
                Trouble::new(format!("{}: {why}", figure.work.mechanism.name()))
            }
            _ => Trouble::new("nothing was measured"),
        });
    };
    let times = report.times;
    println!("{}", figure.work.words());
    println!("iterations       {iterations}");
    println!("total            {}", time(report.elapsed as f64));
    println!("messages         {}", summary.per_second.map_or("–".to_owned(), rate));
    for (name, value) in [
        ("minimum", times.min),
        ("median", times.p50),
        ("p90", times.p90),
        ("p98", times.p98),
        ("p99", times.p99),
        ("p99.9", times.p999),
        ("p99.99", times.p9999),
        ("maximum", times.max),
        ("CPU, both sides", summary.cpu),
    ] {
        println!("{name:<16} {}", time(value));
    }
    if let State::Disturbed(why) = &figure.state {
        println!("disturbed: {why}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the significant differences between two result files.
fn compare(before: &Path, after: &Path) -> Result<ExitCode> {
    print!("{}", compare::print(&Results::read(before)?, &Results::read(after)?));
    Ok(ExitCode::SUCCESS)
}

/// Makes an HTML page from result files, and prints its path.
#[cfg(feature = "report")]
fn report(files: &[PathBuf], output: &Path) -> Result<ExitCode> {
    let source = |file: &PathBuf| {
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        Results::read(file).map(|results| strait_report::Source { name, results })
    };
    let sources: Vec<strait_report::Source> = files.iter().map(source).collect::<Result<_>>()?;
    let page = strait_report::page(&sources)?;
    std::fs::write(output, &page).doing(&format!("writing {}", output.display()))?;
    println!("Written to {}: {} KiB, to be opened in a browser.", output.display(), page.len().div_ceil(1024));
    Ok(ExitCode::SUCCESS)
}

/// Fails: this program does not contain the libraries for drawing the page.
#[cfg(not(feature = "report"))]
fn report(_files: &[PathBuf], _output: &Path) -> Result<ExitCode> {
    Err(without_report("report FILE"))
}

/// Prints the form of the result files as JSON Schema.
#[cfg(feature = "report")]
fn schema() -> Result<ExitCode> {
    println!("{}", strait_lab::results::schema());
    Ok(ExitCode::SUCCESS)
}

/// Fails: this program does not contain the library for the schema.
#[cfg(not(feature = "report"))]
fn schema() -> Result<ExitCode> {
    Err(without_report("schema"))
}

/// Returns the error of a subcommand of `strait bench` for lack of the feature `report`.
#[cfg(not(feature = "report"))]
fn without_report(subcommand: &str) -> Trouble {
    Trouble::new(format!(
        "this program was built without the feature `report`. In a checkout: cargo run --release --features report -- bench \
         {subcommand}"
    ))
}

/// Prints the mechanisms; if this machine does not support a mechanism, also the reason.
fn mechanisms() {
    for mechanism in CATALOGUE {
        let missing = mechanism.missing().map_or(String::new(), |why| format!("   not here: {why}"));
        println!("{:<16} {}{missing}", mechanism.name(), mechanism.title());
    }
}

/// Measures a suite with targets by `run`, and prints it with the explanation `how`. The exit code is a failure only if
/// a run broke or a row was not reached; a missed target is a result.
fn judge(run: impl FnOnce() -> (bars::Suite, bool), how: Option<&str>, json: bool) -> Result<ExitCode> {
    runner::stop_on_interrupt()?;
    let (suite, broken) = run();
    if suite.bars.is_empty() {
        return Err(nothing());
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&suite).doing("writing JSON")?);
    } else {
        println!("{}\n{}", suite.machine, suite.table());
        if let Some(how) = how {
            println!("\n{how}");
        }
        let foreign = suite
            .foreign
            .map_or(String::new(), |share| format!("; others used {:.0} % of the processors", 100.0 * share));
        let end = if suite.complete { "" } else { ", stopped before its end" };
        println!("\n{}, in {:.0} s{end}{foreign}", suite.verdict(), suite.seconds);
    }
    Ok(if broken || !suite.complete { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
