//! The command line of the program `strait`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use strait_lab::peers::{Form, Row, Spot};
use strait_lab::suite::{Place, Suite};
use strait_lab::{Mechanism, Shape, Wait, shape as shapes};

/// The examples of `strait --help`.
const EXAMPLES: &str = "\
Examples:
  strait                        the demo, then a comparison with pipes and sockets
  strait doctor                 check this machine
  strait ls                     the listeners of this user
  strait bench -o quick.json    the quick benchmark, with a result file

Exit codes: 0 success; 1 failure, described on standard error; 2 wrong arguments.";

/// The examples of `strait demo --help`.
const DEMO_EXAMPLES: &str = "\
Examples:
  strait demo          two processes talk until one is killed; then some figures
  strait demo --story  only the conversation";

/// The examples of `strait man --help`.
const MAN_EXAMPLES: &str = "\
Examples:
  strait man ~/.local/share/man/man1
  strait man pages && man ./pages/strait-bench.1";

/// The examples of `strait bench table --help`.
const TABLE_EXAMPLES: &str = "\
Examples:
  strait bench table --mechanisms strait,pipe --sizes 64,4096
  strait bench table --mechanisms strait --waiting adaptive --placements free -o strait.json
  strait bench table --mechanisms strait,seqpacket --shapes ping-pong --share";

/// The examples of `strait bench compare --help`.
const COMPARE_EXAMPLES: &str = "\
Examples:
  strait bench -o before.json
  strait bench -o after.json               after a change
  strait bench compare before.json after.json";

/// The examples of `strait bench report --help`.
const REPORT_EXAMPLES: &str = "\
Examples:
  strait bench report quick.json           writes report.html
  strait bench report before.json after.json -o both.html";

/// The examples of `strait bench schema --help`.
const SCHEMA_EXAMPLES: &str = "\
Examples:
  strait bench schema >results.schema.json";

/// The examples of `strait bench mechanisms --help`.
const MECHANISMS_EXAMPLES: &str = "\
Examples:
  strait bench mechanisms                  names for --mechanisms and -n";

/// The examples of `strait bench shapes --help`.
const SHAPES_EXAMPLES: &str = "\
Examples:
  strait bench shapes                      names for --shapes";

/// The examples of `strait bench floors --help`.
const FLOORS_EXAMPLES: &str = "\
Examples:
  strait bench floors                      every target, in about a minute
  strait bench floors --only \"round trip\" --repetitions 9";

/// The examples of `strait bench ends --help`.
const ENDS_EXAMPLES: &str = "\
Examples:
  strait bench ends --repetitions 3
  strait bench ends --only descriptor --json";

/// The examples of `strait bench toolbox --help`.
const TOOLBOX_EXAMPLES: &str = "\
Examples:
  strait bench toolbox --only calls        eight threads beside one
  strait bench toolbox --only dispatchers";

/// The examples of `strait bench scale --help`.
const SCALE_EXAMPLES: &str = "\
Examples:
  strait bench scale --repetitions 3
  strait bench scale --only member --json
  strait bench scale --only mesh           full meshes of up to 250 processes";

/// The examples of `strait bench fairness --help`.
const FAIRNESS_EXAMPLES: &str = "\
Examples:
  strait bench fairness --repetitions 3
  strait bench fairness --cpus 0,1";

/// The examples of `strait bench peers --help`.
const PEERS_EXAMPLES: &str = "\
Examples:
  tools/peers                              in a checkout: builds the programs
  strait bench peers -o peers.json --picture peers.svg
  strait bench peers --rows round-trip:64 --only strait,pipe --forms default
  strait bench peers --from peers.json --share";

/// The examples of `strait ls --help`.
const LS_EXAMPLES: &str = "\
Examples:
  strait ls                      the listeners of this user
  strait ls --prune              remove the names of dead listeners first
  strait ls --json | jq .[].pid  the numbers of the processes that listen
  strait ls /srv/sockets         the listeners in a directory of your own";

/// The examples of `strait doctor --help`.
const DOCTOR_EXAMPLES: &str = "\
Examples:
  strait doctor              one line for each check, with a remedy below each problem
  strait doctor --json       the checks for a program
  strait doctor >/dev/null || echo \"Strait does not work here\"";

/// The examples of `strait bench --help`.
const BENCH_EXAMPLES: &str = "\
Examples:
  strait bench                            the quick benchmark
  strait bench -v                         with every column, and the method
  strait bench --share                    Markdown tables
  strait bench full -o full.json          all benchmarks, with a result file
  strait bench -n pipe -m 4096            round trips of 4096 bytes over pipes
  strait bench table --mechanisms strait,pipe --sizes 64,4096
  strait bench compare old.json new.json  significant changes";

/// The examples of `strait completions --help`.
const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  strait completions bash >~/.local/share/bash-completion/completions/strait
  strait completions fish >~/.config/fish/completions/strait.fish
  source <(strait completions zsh)";

/// Message channels between processes: demo, benchmarks and diagnosis
#[derive(Debug, Parser)]
#[command(name = "strait", version, about, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// The subcommand; without one, the program runs the demo.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show channels at work between two processes, and compare their speed with pipes and sockets (default)
    Demo(Demo),
    /// Measure Strait and other ways to send messages
    Bench(Box<Bench>),
    /// List active listeners: name, user, process and age
    Ls(Ls),
    /// Check this machine for everything that Strait needs, and say how to fix each problem
    ///
    /// The exit code is 0 if Strait works here, with restrictions or without, and 1 if it does not.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor {
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a completion script, to be sourced, or put where the shell looks for completions
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, one for each subcommand
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// Directory for the pages; made if missing
        directory: PathBuf,
    },
    /// A process of a benchmark
    #[command(hide = true)]
    Peer {
        /// The side of this process: `first` or `second`.
        side: String,
        /// The work, as JSON.
        work: String,
    },
    /// The second process of the demo
    #[command(hide = true)]
    Companion,
}

#[derive(Debug, Args)]
#[command(after_help = LS_EXAMPLES)]
pub(crate) struct Ls {
    /// Directory to list, instead of this user's
    pub(crate) directory: Option<PathBuf>,
    /// First remove the names of dead listeners
    #[arg(long)]
    pub(crate) prune: bool,
    /// Print JSON: an array with an object for each listener
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, Default, Args)]
#[command(after_help = DEMO_EXAMPLES)]
pub(crate) struct Demo {
    /// Run only the conversation, without the benchmark
    #[arg(long)]
    pub(crate) story: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = BENCH_EXAMPLES)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) what: Option<What>,
    /// Benchmark suite
    #[arg(value_enum, default_value = "quick")]
    pub(crate) suite: Suite,
    /// For `mojo`: all 50,000 ping-pongs at each size, and system call counts (at least 6 minutes instead of 2); for
    /// `mach`: more than 2,000 messages at each size, also the largest
    #[arg(long)]
    pub(crate) whole: bool,
    #[command(flatten)]
    pub(crate) one: One,
    #[command(flatten)]
    pub(crate) how: How,
}

/// Options to measure one mechanism by a number of ping-pongs. The option names are usual in such benchmarks.
#[derive(Clone, Debug, Args)]
pub(crate) struct One {
    /// Measure one mechanism by ping-pongs, instead of a suite; only with -m and -i (`strait bench table` measures
    /// mechanisms with every option)
    #[arg(short, long, value_parser = mechanism, conflicts_with_all = ["How", "suite", "whole"])]
    pub(crate) name: Option<Mechanism>,
    /// Message size in bytes
    #[arg(short, long, default_value = "64", value_parser = size, requires = "name")]
    pub(crate) message: usize,
    /// Number of round trips to measure, after a quarter as many to warm up
    #[arg(short, long, default_value_t = 10_000, requires = "name", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Benchmark a custom matrix: every sensible combination of these options
    #[command(after_help = TABLE_EXAMPLES)]
    Table {
        #[command(flatten)]
        combinations: Combinations,
        #[command(flatten)]
        how: How,
    },
    /// Compare two result files; report significant changes
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare {
        /// The earlier result file
        before: PathBuf,
        /// The later result file
        after: PathBuf,
    },
    /// Make an HTML page from result files: tables, plots, and where Strait loses
    #[command(after_help = REPORT_EXAMPLES)]
    Report {
        /// Result files, as written by `-o`
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// The HTML file to write
        #[arg(short, long, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Print the JSON Schema of result files
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema,
    /// List the mechanisms, and mark the unsupported ones on this machine
    #[command(after_help = MECHANISMS_EXAMPLES)]
    Mechanisms,
    /// List the shapes: the patterns of sending messages
    #[command(after_help = SHAPES_EXAMPLES)]
    Shapes,
    /// Check Strait against its performance targets, with the theoretical floors measured at the same time
    #[command(after_help = FLOORS_EXAMPLES)]
    Floors(Bars),
    /// Measure the cost of sending channel ends, and of having many channels
    #[command(after_help = ENDS_EXAMPLES)]
    Ends(Bars),
    /// Measure objects built on channels: dispatchers, calls, data pipes, async tasks, forwarding
    #[command(after_help = TOOLBOX_EXAMPLES)]
    Toolbox(Bars),
    /// Measure the cost of a further channel, client or wait-set member, at 10 to 100,000 of each
    #[command(after_help = SCALE_EXAMPLES)]
    Scale(Rows),
    /// Measure how long a quiet channel waits beside busy channels on its own link, and on another link
    #[command(after_help = FAIRNESS_EXAMPLES)]
    Fairness(Bars),
    /// Compare Strait with other libraries, each used as in the first example of its documentation
    ///
    /// Each library has its own measuring program. `tools/peers` builds the programs in a checkout.
    #[command(after_help = PEERS_EXAMPLES)]
    Peers(Peers),
}

/// Options of the comparison with other libraries.
#[derive(Debug, Args)]
pub(crate) struct Peers {
    /// Directory of the programs built by `tools/peers`
    #[arg(long, value_name = "DIRECTORY", default_value = "target/peers/release")]
    pub(crate) programs: PathBuf,
    /// Only these programs, by name without `peer-`, for example strait,pipe,iceoryx2 [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Rows: round-trip:SIZE, ends:SIZE, pages:SIZE, stream:SIZE, descriptor, idle, death [default: all of the
    /// comparison]
    #[arg(long, value_delimiter = ',', value_parser = row)]
    pub(crate) rows: Vec<Row>,
    /// Forms: default (the first example of the documentation), tuned (what the documentation advises for speed;
    /// unpinned and on two cores only)
    #[arg(long, value_delimiter = ',', value_parser = form, default_value = "default,tuned")]
    pub(crate) forms: Vec<Form>,
    /// CPU placements: unpinned, same, two (left out if there is one CPU), and busy (unpinned, beside programs that use
    /// every processor)
    #[arg(long, value_delimiter = ',', value_parser = spot, default_value = "unpinned,same,two")]
    pub(crate) placements: Vec<Spot>,
    /// Number of repetitions, each with two new processes for every row
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: u16,
    /// Time of a measurement in milliseconds, after a warm-up of a fifth of this time
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) milliseconds: u64,
    /// Time budget in seconds: start no repetition that would exceed it
    #[arg(long, default_value_t = f64::INFINITY, hide_default_value = true)]
    pub(crate) budget: f64,
    /// CPUs to use for `same` and `two`: one or two [default: the first two that are allowed]
    #[arg(long, value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Random seed for the run order [default: a new one each time]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Commit of the measured programs, to be recorded in the results
    #[arg(long, value_name = "COMMIT", conflicts_with = "from")]
    pub(crate) commit: Option<String>,
    /// Measure nothing: take the results from FILE, as written by `-o`
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    pub(crate) from: Option<PathBuf>,
    /// Result file to write (JSON)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print Markdown tables, to share
    #[arg(long)]
    pub(crate) share: bool,
    /// Write the picture of the default forms as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
    /// Print the part of the README's section "How fast" that has figures, in place of the tables
    #[arg(long, conflicts_with = "share")]
    pub(crate) readme: bool,
}

/// Options for running a suite, and for its results.
#[derive(Clone, Debug, Args)]
pub(crate) struct How {
    /// Number of repetitions of each benchmark, each with new processes [default: by suite]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: Option<u16>,
    /// Run only benchmarks whose name contains FILTER
    #[arg(long, value_name = "FILTER")]
    pub(crate) only: Option<String>,
    /// CPUs to use: one or two [default: the first two that are allowed]
    #[arg(long, value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Time budget in seconds: start no repetition that would exceed it
    #[arg(long, default_value_t = f64::INFINITY, hide_default_value = true)]
    pub(crate) budget: f64,
    /// Also count system calls, in separate runs (under ptrace unless the kernel's tracepoint is accessible)
    #[arg(long)]
    pub(crate) calls: bool,
    /// Random seed for the run order [default: a new one each time]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Result file to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the results as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Print Markdown tables, to share
    #[arg(long, conflicts_with = "json")]
    pub(crate) share: bool,
    /// Print every column, and how the figures are taken
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// The axes of a table.
#[derive(Clone, Debug, Args)]
pub(crate) struct Combinations {
    /// Mechanisms to measure: see `strait bench mechanisms`
    #[arg(long, value_delimiter = ',', value_parser = mechanism,
          default_value = "strait,line,flag,futex,pipe,stream,seqpacket")]
    pub(crate) mechanisms: Vec<Mechanism>,
    /// Patterns of sending messages: see `strait bench shapes`
    #[arg(long, value_parser = shape, value_delimiter = ',', default_value = "ping-pong,stream")]
    pub(crate) shapes: Vec<Shape>,
    /// Message size in bytes
    #[arg(long, value_delimiter = ',', default_value = "64,1024,20736", value_parser = size)]
    pub(crate) sizes: Vec<usize>,
    /// Wait strategies of both sides
    #[arg(long, value_enum, value_delimiter = ',', default_value = "spin,adaptive,block")]
    pub(crate) waiting: Vec<Wait>,
    /// CPU placements; a placement that needs more CPUs than available is left out
    #[arg(long, value_enum, value_delimiter = ',', default_value = "free,two,same")]
    pub(crate) placements: Vec<Place>,
    /// Number of messages to measure, instead of a fifth of a second's worth
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

/// Options of a suite with targets for its rows, on one or two CPUs.
#[derive(Debug, Args)]
pub(crate) struct Bars {
    #[command(flatten)]
    pub(crate) rows: Rows,
    /// CPUs to use: one or two [default: the first two that are allowed]
    #[arg(long, value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
}

/// Options of a suite with targets for its rows.
#[derive(Debug, Args)]
pub(crate) struct Rows {
    /// Number of repetitions of each row, each with new processes
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: u16,
    /// Run only rows whose name contains FILTER
    #[arg(long, value_name = "FILTER")]
    pub(crate) only: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Run very short benchmarks, only to test the program
    #[arg(long, hide = true)]
    pub(crate) quick: bool,
}

/// Parses the name of a mechanism.
fn mechanism(words: &str) -> Result<Mechanism, String> {
    words.parse().map_err(|trouble: strait_lab::trouble::Trouble| trouble.to_string())
}

/// Parses a row of the comparison with other libraries.
fn row(words: &str) -> Result<Row, String> {
    words.parse().map_err(|trouble: strait_lab::trouble::Trouble| trouble.to_string())
}

/// Parses a form of the comparison with other libraries.
fn form(words: &str) -> Result<Form, String> {
    words.parse().map_err(|trouble: strait_lab::trouble::Trouble| trouble.to_string())
}

/// Parses a placement of the comparison with other libraries.
fn spot(words: &str) -> Result<Spot, String> {
    words.parse().map_err(|trouble: strait_lab::trouble::Trouble| trouble.to_string())
}

/// Parses the name of a shape.
fn shape(words: &str) -> Result<Shape, String> {
    words.parse().map_err(|trouble: strait_lab::trouble::Trouble| trouble.to_string())
}

/// Parses a message size in bytes, and checks that a benchmark can send messages of this size.
fn size(words: &str) -> Result<usize, String> {
    let size: usize = words.parse().map_err(|error| format!("{error}"))?;
    let most = 256 << 20;
    if (shapes::SMALLEST..=most).contains(&size) {
        Ok(size)
    } else {
        Err(format!("a measured message has 8 to {most} bytes: it carries its number"))
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};
    use strait_lab::suite::{Place, Suite};
    use strait_lab::{Mechanism, Wait};

    use super::{Cli, Command, What};

    fn parse(words: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(words.split_whitespace())
    }

    fn bench(words: &str) -> super::Bench {
        match parse(words).unwrap().command {
            Some(Command::Bench(bench)) => *bench,
            other => panic!("not a bench: {other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_words_are_the_demonstration() {
        assert!(parse("strait").unwrap().command.is_none());
        let demo = parse("strait demo").unwrap().command;
        assert!(matches!(demo, Some(Command::Demo(demo)) if !demo.story));
    }

    #[test]
    fn one_mechanism_is_named_as_it_always_was() {
        let bench = bench("strait bench -m 128 -i 500 -n pipe");
        assert_eq!((bench.one.message, bench.one.iterations), (128, 500));
        assert_eq!(bench.one.name, Some(Mechanism::PIPE));
        assert!(parse("strait bench -m 128").is_err());
    }

    #[test]
    fn lists_are_given_with_commas() {
        let bench = bench("strait bench table --sizes 8,64 --waiting spin,block --placements same --cpus 0,1 --json");
        let Some(What::Table { combinations, how }) = bench.what else {
            panic!("not a table");
        };
        assert_eq!(combinations.sizes, [8, 64]);
        assert_eq!(combinations.waiting, [Wait::Spin, Wait::Block]);
        assert_eq!(combinations.placements, [Place::Same]);
        assert_eq!(how.cpus, [0, 1]);
        assert!(how.json);
    }

    #[test]
    fn suites_and_floors_take_their_own_words() {
        let suite = bench("strait bench quick --repetitions 2 -o a.json");
        assert_eq!((suite.suite, suite.how.repetitions), (Suite::Quick, Some(2)));
        let Some(What::Floors(floors)) = bench("strait bench floors --only stream --repetitions 7").what else {
            panic!("not the floors");
        };
        assert_eq!((floors.rows.repetitions, floors.rows.only.as_deref()), (7, Some("stream")));
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            "strait bench table --sizes 7",
            "strait bench table --sizes 268435457",
            "strait bench table --count 0",
            "strait bench table --waiting never",
            "strait bench table --placements nowhere",
            "strait bench table --mechanisms carrier-pigeon",
            "strait bench everything",
            "strait bench -n pipe -o a.json",
            "strait bench -n pipe --json",
            "strait bench -n pipe --share",
            "strait bench -n pipe --cpus 0",
            "strait bench -n pipe --repetitions 2",
            "strait bench -n pipe --calls",
            "strait bench -n pipe --budget 1",
            "strait bench -n pipe --seed 1",
            "strait bench -n pipe --only pipe",
            "strait bench -n pipe --whole",
            "strait bench -n pipe -v",
            "strait bench mojo -n pipe",
            "strait bench scale --cpus 0",
            "strait bench floors --repetitions 0",
            "strait bench peers --rows round-trip",
            "strait bench peers --placements nowhere",
            "strait bench peers --forms formless",
            "strait bench peers --share --readme",
            "strait bench peers --from a.json -o b.json",
            "strait sail",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
