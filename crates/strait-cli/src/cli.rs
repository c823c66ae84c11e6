//! The command line.

use clap::{Args, Parser, Subcommand};

use crate::work::{Mechanism, Wait};

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
    Bench(Bench),
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
    pub(crate) suite: Option<Suite>,
    #[command(flatten)]
    pub(crate) table: Table,
}

/// What the general table measures.
#[derive(Clone, Debug, Args)]
pub(crate) struct Table {
    /// Bytes in a message
    #[arg(long, value_delimiter = ',', default_value = "64,1024,20736", value_parser = size)]
    pub(crate) sizes: Vec<usize>,
    /// Messages to measure, instead of a fifth of a second's worth
    #[arg(long)]
    pub(crate) count: Option<u64>,
    /// How each side waits
    #[arg(long, value_enum, value_delimiter = ',', default_value = "spin,adaptive,block")]
    pub(crate) waiting: Vec<Wait>,
    /// The processors to use: one or two [default: the first two that are allowed]
    #[arg(long, value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "strait,line,flag,futex,pipe,stream,seqpacket")]
    pub(crate) mechanisms: Vec<Mechanism>,
    /// Fresh pairs of processes for each figure, of which the median is shown
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: u16,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Suite {
    /// What Strait must reach, beside the floors from the same seconds
    Floors(Bars),
    /// What it costs to send ends of channels, and to have many
    Ends(Bars),
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

fn size(words: &str) -> Result<usize, String> {
    let size: usize = words.parse().map_err(|error| format!("{error}"))?;
    let most = 256 << 20;
    if (crate::payload::SMALLEST..=most).contains(&size) {
        Ok(size)
    } else {
        Err(format!("a measured message has 8 to {most} bytes: it carries its number"))
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Command, Suite};
    use crate::work::Wait;

    fn parse(words: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(words.split_whitespace())
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
    fn lists_are_given_with_commas() {
        let Some(Command::Bench(bench)) =
            parse("strait bench --sizes 8,64 --waiting spin,block --cpus 0,1 --json").unwrap().command
        else {
            panic!("not a bench");
        };
        assert_eq!(bench.table.sizes, [8, 64]);
        assert_eq!(bench.table.waiting, [Wait::Spin, Wait::Block]);
        assert_eq!(bench.table.cpus, [0, 1]);
        assert!(bench.table.json && bench.suite.is_none());
    }

    #[test]
    fn floors_take_their_own_words() {
        let Some(Command::Bench(bench)) = parse("strait bench floors --only stream --repetitions 7").unwrap().command
        else {
            panic!("not a bench");
        };
        let Some(Suite::Floors(floors)) = bench.suite else {
            panic!("not the floors");
        };
        assert_eq!((floors.repetitions, floors.only.as_deref()), (7, Some("stream")));
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            "strait bench --sizes 7",
            "strait bench --sizes 268435457",
            "strait bench --waiting never",
            "strait bench floors --repetitions 0",
            "strait sail",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
