//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use strait_lab::suite::{Place, Suite};
use strait_lab::{Mechanism, Shape, Wait, shape as shapes};

/// Message channels between processes, shown and measured.
#[derive(Debug, Parser)]
#[command(name = "strait", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Talk to a second process, hand it a descriptor, an end of a channel and 256 MiB, and compare with what the system has (the default)
    Demo(Demo),
    /// Measure Strait and what it competes with
    Bench(Box<Bench>),
    /// Say who listens under which name, as which user, since when
    Ls {
        /// Look into this directory instead of this user's
        directory: Option<std::path::PathBuf>,
    },
    /// Try what Strait needs of this machine, and say what is missing and what mends it
    Doctor,
    /// A process of a measurement
    #[command(hide = true)]
    Peer {
        /// Which of the two.
        side: String,
        /// What to do, as JSON.
        work: String,
    },
    /// A process of a measurement of ends
    #[command(hide = true)]
    Ends {
        /// Which one.
        name: String,
        /// What to do, as JSON.
        order: String,
    },
    /// A process of a measurement of scale
    #[command(hide = true)]
    Scale {
        /// Always `one`: there is one process.
        name: String,
        /// What to do, as JSON.
        order: String,
    },
    /// The second process of the demonstration
    #[command(hide = true)]
    Companion,
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Demo {
    /// Only the conversation, without the figures
    #[arg(long)]
    pub(crate) story: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) what: Option<What>,
    /// The suite to take
    #[arg(value_enum, default_value = "quick")]
    pub(crate) suite: Suite,
    /// Of `mojo`, all 50,000 ping-pongs at each size, and the system calls: six minutes and more, instead of two
    #[arg(long)]
    pub(crate) whole: bool,
    #[command(flatten)]
    pub(crate) one: One,
    #[command(flatten)]
    pub(crate) how: How,
}

/// One mechanism, a ping-pong of so many messages, as benchmarks of this kind have always been called.
#[derive(Clone, Debug, Args)]
pub(crate) struct One {
    /// Instead of a suite: one mechanism, a ping-pong
    #[arg(short, long, value_parser = mechanism)]
    pub(crate) name: Option<Mechanism>,
    /// Bytes in a message
    #[arg(short, long, default_value = "64", value_parser = size, requires = "name")]
    pub(crate) message: usize,
    /// Round trips to measure, after a quarter as many to warm up
    #[arg(short, long, default_value_t = 10_000, requires = "name", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Take a table of one's own: every combination that makes sense
    Table {
        #[command(flatten)]
        combinations: Combinations,
        #[command(flatten)]
        how: How,
    },
    /// Say what changed between two results beyond noise
    Compare {
        /// The earlier results.
        before: PathBuf,
        /// The later results.
        after: PathBuf,
    },
    /// Make one page to look at out of results: tables, plots, and where Strait loses
    Report {
        /// What `-o` wrote.
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// Where to write the page
        #[arg(short, long, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Print the form of the results, as JSON Schema
    Schema,
    /// List the mechanisms, and what this machine lacks
    Mechanisms,
    /// List the shapes of work
    Shapes,
    /// What Strait must reach, beside the floors from the same seconds
    Floors(Bars),
    /// What it costs to send ends of channels, and to have many
    Ends(Bars),
    /// What is built on channels: ping-pongs with and without hops, calls, data pipes, tasks, messages sent on
    Toolbox(Bars),
    /// What one more channel, client or wait-set member costs, from 10 of them to 100,000
    Scale(Bars),
}

/// How a suite is taken and where its results go.
#[derive(Clone, Debug, Args)]
pub(crate) struct How {
    /// Fresh pairs of processes for each figure [default: as the suite has it]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: Option<u16>,
    /// Only the figures whose description contains this
    #[arg(long, value_name = "FILTER")]
    pub(crate) only: Option<String>,
    /// The processors to use: one or two [default: the first two that are allowed]
    #[arg(long, value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Begin no repetition that would end after so many seconds
    #[arg(long, default_value_t = f64::INFINITY, hide_default_value = true)]
    pub(crate) budget: f64,
    /// Count system calls too, in runs of their own under ptrace unless the kernel's tracepoint can be had
    #[arg(long)]
    pub(crate) calls: bool,
    /// The order of the runs is drawn from this [default: another one each time]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Write the results to this file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the results as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// The axes of a table.
#[derive(Clone, Debug, Args)]
pub(crate) struct Combinations {
    /// What to measure
    #[arg(long, value_delimiter = ',', value_parser = mechanism,
          default_value = "strait,line,flag,futex,pipe,stream,seqpacket")]
    pub(crate) mechanisms: Vec<Mechanism>,
    /// In which manner: see `strait bench shapes`
    #[arg(long, value_parser = shape, value_delimiter = ',', default_value = "ping-pong,stream")]
    pub(crate) shapes: Vec<Shape>,
    /// Bytes in a message
    #[arg(long, value_delimiter = ',', default_value = "64,1024,20736", value_parser = size)]
    pub(crate) sizes: Vec<usize>,
    /// How each side waits
    #[arg(long, value_enum, value_delimiter = ',', default_value = "spin,adaptive,block")]
    pub(crate) waiting: Vec<Wait>,
    /// Where the processes run; what needs more processors than there are is left out
    #[arg(long, value_enum, value_delimiter = ',', default_value = "free,two,same")]
    pub(crate) placements: Vec<Place>,
    /// Messages to measure, instead of a fifth of a second's worth
    #[arg(long)]
    pub(crate) count: Option<u64>,
}

/// How a suite of bars is run.
#[derive(Debug, Args)]
pub(crate) struct Bars {
    /// Fresh pairs of processes for each figure
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: u16,
    /// Only the rows whose name contains this
    #[arg(long, value_name = "FILTER")]
    pub(crate) only: Option<String>,
    /// The processors to use: one or two [default: the first two that are allowed]
    #[arg(long, value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Do little, only to see that it works
    #[arg(long, hide = true)]
    pub(crate) quick: bool,
}

fn mechanism(words: &str) -> Result<Mechanism, String> {
    words.parse().map_err(|trouble: strait_lab::trouble::Trouble| trouble.to_string())
}

fn shape(words: &str) -> Result<Shape, String> {
    words.parse().map_err(|trouble: strait_lab::trouble::Trouble| trouble.to_string())
}

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
        assert_eq!((floors.repetitions, floors.only.as_deref()), (7, Some("stream")));
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            "strait bench table --sizes 7",
            "strait bench table --sizes 268435457",
            "strait bench table --waiting never",
            "strait bench table --placements nowhere",
            "strait bench table --mechanisms carrier-pigeon",
            "strait bench everything",
            "strait bench floors --repetitions 0",
            "strait sail",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
