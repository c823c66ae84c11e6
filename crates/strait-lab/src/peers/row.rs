//! The rows of the comparison.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::placement::Cpus;
use crate::stats::bytes;
use crate::trouble::{Result, Trouble};

/// How a library is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// As in the first example of its documentation.
    Default,
    /// As its documentation advises for speed.
    Tuned,
}

impl Form {
    /// All forms, in the order of the tables.
    pub const ALL: [Self; 2] = [Self::Default, Self::Tuned];

    /// Returns the word by which the programs know the form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Tuned => "tuned",
        }
    }
}

/// Where the two processes run, and beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spot {
    /// The scheduler places the processes.
    Free,
    /// The scheduler places the processes, and as many other processes as there are processors compute without end.
    Busy,
    /// Both processes on one processor.
    Same,
    /// Each process on a processor of its own.
    Two,
}

impl Spot {
    /// All placements, in the order of the tables.
    pub const ALL: [Self; 4] = [Self::Free, Self::Busy, Self::Same, Self::Two];

    /// Returns the name of the placement in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "unpinned",
            Self::Busy => "busy",
            Self::Same => "same",
            Self::Two => "two",
        }
    }

    /// Describes the placement in a heading.
    pub fn words(self) -> &'static str {
        match self {
            Self::Free => "unpinned, idle machine",
            Self::Busy => "unpinned, every processor kept busy by another program",
            Self::Same => "both processes on one core",
            Self::Two => "each process on a core of its own",
        }
    }

    /// Whether the placement is possible on these processors: `two` needs two.
    pub fn fits(self, cpus: Cpus) -> bool {
        self != Self::Two || cpus.two().is_some()
    }

    /// Returns the processors of the client and the server; `None` if the scheduler places them.
    pub(super) fn processors(self, cpus: Cpus) -> Result<Option<[usize; 2]>> {
        let (first, second) = cpus.both();
        match self {
            Self::Free | Self::Busy => Ok(None),
            Self::Same => Ok(Some([first, first])),
            Self::Two => match second {
                Some(second) => Ok(Some([first, second])),
                None => Err(Trouble::new("the placement `two` needs two processors, and this process may use one")),
            },
        }
    }
}

impl FromStr for Form {
    type Err = Trouble;

    fn from_str(word: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|form| form.name() == word);
        found.ok_or_else(|| Trouble::new(format!("no form `{word}`: default or tuned")))
    }
}

impl FromStr for Spot {
    type Err = Trouble;

    fn from_str(word: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|spot| spot.name() == word);
        found.ok_or_else(|| Trouble::new(format!("no placement `{word}`: unpinned, busy, same or two")))
    }
}

/// A row: the kind of measurement, with the size of messages in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// Round trips of messages of this many bytes, copied in and out at both sides.
    RoundTrip(usize),
    /// Messages of this many bytes, written and read in place, eight bytes at either end; the reply is short.
    Ends(usize),
    /// As `Ends`, but each side touches a byte of each page.
    Pages(usize),
    /// Messages of this many bytes in one direction, as many as possible.
    Stream(usize),
    /// Round trips of a request of 16 bytes with a descriptor.
    Descriptor,
    /// The resources of two connected processes while nothing is sent.
    Idle,
    /// The time until a client that waits for a reply notices a kill of the server.
    Death,
}

impl Row {
    /// All rows of the comparison.
    pub const ALL: [Self; 14] = [
        Self::RoundTrip(56),
        Self::RoundTrip(64),
        Self::RoundTrip(1 << 10),
        Self::RoundTrip(64 << 10),
        Self::RoundTrip(256 << 10),
        Self::RoundTrip(1 << 20),
        Self::Ends(1 << 20),
        Self::Ends(64 << 20),
        Self::Pages(1 << 20),
        Self::Pages(64 << 20),
        Self::Stream(64),
        Self::Descriptor,
        Self::Idle,
        Self::Death,
    ];

    /// Returns the word by which the programs know the row.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::RoundTrip(_) => "round-trip",
            Self::Ends(_) => "ends",
            Self::Pages(_) => "pages",
            Self::Stream(_) => "stream",
            Self::Descriptor => "descriptor",
            Self::Idle => "idle",
            Self::Death => "death",
        }
    }

    /// Returns the length of the messages in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::RoundTrip(size) | Self::Ends(size) | Self::Pages(size) | Self::Stream(size) => size,
            Self::Descriptor | Self::Idle | Self::Death => 16,
        }
    }

    /// Describes the row in a heading.
    pub fn words(self) -> String {
        let size = bytes(self.size());
        match self {
            Self::RoundTrip(_) => format!("round trip of {size}, copied"),
            Self::Ends(_) => format!("{size} in place, 8 bytes touched at either end, short reply"),
            Self::Pages(_) => format!("{size} in place, every page touched on both sides, short reply"),
            Self::Stream(_) => format!("stream of {size}"),
            Self::Descriptor => "round trip of a request with a descriptor".to_owned(),
            Self::Idle => "two idle processes".to_owned(),
            Self::Death => "death of the server (SIGKILL) noticed by a waiting client".to_owned(),
        }
    }

    /// Whether the row is measured in this form and placement: what idle processes use, and when a death is noticed, is
    /// measured once. The form *tuned* mostly polls, and on one core polling only keeps the other side from running.
    pub(super) fn is_for(self, form: Form, spot: Spot) -> bool {
        match self {
            Self::Idle | Self::Death => (form, spot) == (Form::Default, Spot::Free),
            _ => form == Form::Default || matches!(spot, Spot::Free | Spot::Two),
        }
    }

    /// Returns how long one run measures if other rows take `milliseconds`: wake-ups of idle processes are counted for
    /// at least a second.
    pub(super) fn milliseconds(self, milliseconds: u64) -> u64 {
        if self == Self::Idle { milliseconds.max(1000) } else { milliseconds }
    }

    /// Returns the number of runs after which further runs would take much time and show nothing new.
    pub(super) fn most_runs(self) -> usize {
        if self == Self::Idle { 3 } else { usize::MAX }
    }

    /// Whether the distance between the processors changes the figure in this placement.
    pub(super) fn feels_distance(self, spot: Spot) -> bool {
        spot != Spot::Same && !matches!(self, Self::Idle | Self::Death)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor | Self::Idle | Self::Death => f.write_str(self.word()),
            _ => write!(f, "{}:{}", self.word(), self.size()),
        }
    }
}

impl FromStr for Row {
    type Err = Trouble;

    fn from_str(text: &str) -> Result<Self> {
        let (word, size) = text.split_once(':').unwrap_or((text, ""));
        let sized = |row: fn(usize) -> Self| -> Result<Self> {
            let size: usize =
                size.parse().map_err(|_| Trouble::new(format!("`{text}` needs a size, as in {word}:64")))?;
            match size {
                16..=0x1000_0000 => Ok(row(size)),
                _ => Err(Trouble::new(format!("`{text}`: a message has 16 to {} bytes", 256 << 20))),
            }
        };
        match word {
            "round-trip" => sized(Self::RoundTrip),
            "ends" => sized(Self::Ends),
            "pages" => sized(Self::Pages),
            "stream" => sized(Self::Stream),
            "descriptor" => Ok(Self::Descriptor),
            "idle" => Ok(Self::Idle),
            "death" => Ok(Self::Death),
            _ => Err(Trouble::new(format!(
                "no row `{text}`: round-trip:SIZE, ends:SIZE, pages:SIZE, stream:SIZE, descriptor, idle or death"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Form, Row, Spot};

    #[test]
    fn every_row_is_read_as_it_is_written() {
        for row in Row::ALL {
            assert_eq!(row.to_string().parse::<Row>().unwrap(), row);
        }
        for wrong in ["", "round-trip", "ends:8", "stream:x", "pages:268435457", "sail"] {
            assert!(wrong.parse::<Row>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_form_is_read_as_it_is_written() {
        for form in Form::ALL {
            assert_eq!(form.name().parse::<Form>().unwrap(), form);
        }
        assert!("formless".parse::<Form>().is_err());
    }

    #[test]
    fn nothing_polls_on_one_core() {
        let row = Row::RoundTrip(64);
        assert!(row.is_for(Form::Default, Spot::Same) && !row.is_for(Form::Tuned, Spot::Same));
        assert!(row.is_for(Form::Tuned, Spot::Two) && !Row::Idle.is_for(Form::Tuned, Spot::Free));
    }

    #[test]
    fn every_placement_is_read_as_it_is_written() {
        for spot in Spot::ALL {
            assert_eq!(spot.name().parse::<Spot>().unwrap(), spot);
        }
        assert!("nowhere".parse::<Spot>().is_err());
    }
}
