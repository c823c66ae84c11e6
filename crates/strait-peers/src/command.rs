//! The command line of all programs.

use std::path::PathBuf;
use std::str::FromStr;

use serde_json::{Value, json};

use crate::service::SHORTEST;
use crate::{Client, Error, Result, Touch, measure};

/// How a library is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As in the first example of the library's documentation.
    Default,
    /// As the library's documentation advises for speed.
    Tuned,
}

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Round trips of messages, copied in and out on both sides.
    RoundTrip,
    /// Messages written and read in place; the reply is short.
    InPlace(Touch),
    /// Messages in one direction, as many as go.
    Stream,
    /// Round trips of a request with a descriptor.
    Descriptor,
    /// The use of resources by two connected processes while nothing is sent.
    Idle,
    /// How long after SIGKILL of the server a blocked client gets an error.
    Death,
}

/// The meeting place of two processes, and their task.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// A directory for this pair of processes only.
    pub directory: PathBuf,
    /// How the library is used.
    pub form: Form,
    /// The measured row.
    pub row: Row,
    /// The length of the messages in bytes.
    pub size: usize,
    /// The processors of the client and of the server, if they are bound.
    pub processors: Option<[usize; 2]>,
}

/// A measured library.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The name in tables.
    pub title: &'static str,
    /// A description of the form *default*.
    pub default: &'static str,
    /// A description of the form *tuned*; `None` if the documentation advises nothing else.
    pub tuned: Option<&'static str>,
    /// Listens, calls the closure with a word for the client, and serves one client until it leaves.
    pub serve: fn(&Meeting, &mut dyn FnMut(&str)) -> Result<()>,
    /// Connects to the server, with the word from the server.
    pub connect: fn(&Meeting, &str) -> Result<Box<dyn Client>>,
}

/// The main function of each program: measures one row and prints one line of JSON, or describes the library.
///
/// Exits with an error if the library fails; prints `{"lacking": …}` if the library does not offer the row.
pub fn main(peer: Peer) -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["describe"] => {
            println!("{}", json!({ "title": peer.title, "default": peer.default, "tuned": peer.tuned }));
            Ok(())
        }
        ["run", form, row, size, processors, milliseconds] => {
            let meeting = Meeting {
                directory: fresh_directory()?,
                form: form.parse()?,
                row: row.parse()?,
                size: size.parse::<usize>()?.max(SHORTEST),
                processors: parse_processors(processors)?,
            };
            let measured = match meeting.form {
                Form::Tuned if peer.tuned.is_none() => Ok(lacking("its documentation advises nothing else")),
                _ => measure::run(&peer, &meeting, milliseconds.parse()?),
            };
            let removed = std::fs::remove_dir_all(&meeting.directory);
            println!("{}", measured?);
            Ok(removed?)
        }
        ["serve", directory, form, row, size, processors] => {
            let meeting = Meeting {
                directory: directory.into(),
                form: form.parse()?,
                row: row.parse()?,
                size: size.parse()?,
                processors: parse_processors(processors)?,
            };
            bind(meeting.processors.map(|both| both[1]))?;
            (peer.serve)(&meeting, &mut |word| println!("ready {word}"))
        }
        _ => Err("describe | run FORM ROW SIZE PROCESSORS MILLISECONDS, where FORM is default or tuned, ROW is \
                  round-trip, ends, pages, stream, descriptor, idle or death, and PROCESSORS is - or A,B"
            .into()),
    }
}

/// Returns the output for a row that the library does not offer.
pub(crate) fn lacking(why: &str) -> Value {
    json!({ "lacking": why })
}

/// Binds this process to a processor, if `processor` names one. Later threads are bound, too.
pub(crate) fn bind(processor: Option<usize>) -> Result<()> {
    let Some(processor) = processor else { return Ok(()) };
    // SAFETY: an all-zero set is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processor >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(format!("there is no processor {processor}").into());
    }
    // SAFETY: the number was compared with the size of the set.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the set lives as long as the call, and the length is its size.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(format!("binding to processor {processor}: {}", std::io::Error::last_os_error()).into()),
    }
}

impl Meeting {
    /// Returns the command line of the server.
    pub(crate) fn words(&self) -> Vec<String> {
        let processors = self.processors.map_or("-".to_owned(), |[client, server]| format!("{client},{server}"));
        let directory = self.directory.to_string_lossy().into_owned();
        vec![
            "serve".into(),
            directory,
            self.form.name().into(),
            self.row.name().into(),
            self.size.to_string(),
            processors,
        ]
    }

    /// Returns the path of a file in the directory of this meeting.
    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).to_string_lossy().into_owned()
    }

    /// Returns a name for this pair of processes only.
    pub fn name(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns whether the program uses the library as its documentation advises for speed.
    pub fn tuned(&self) -> bool {
        self.form == Form::Tuned
    }
}

/// Makes a directory for this pair of processes only.
fn fresh_directory() -> Result<PathBuf> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos();
    let directory = std::env::temp_dir().join(format!("strait-peers-{}-{now:x}", std::process::id()));
    std::fs::create_dir(&directory)?;
    Ok(directory)
}

fn parse_processors(word: &str) -> Result<Option<[usize; 2]>> {
    match word.split_once(',') {
        Some((client, server)) => Ok(Some([client.parse()?, server.parse()?])),
        None if word == "-" => Ok(None),
        None => Err(format!("processors are A,B or -, not {word}").into()),
    }
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::Default => "default",
            Form::Tuned => "tuned",
        }
    }
}

impl FromStr for Form {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        [Form::Default, Form::Tuned]
            .into_iter()
            .find(|form| form.name() == word)
            .ok_or(format!("no form: {word}").into())
    }
}

impl Row {
    const ALL: [Self; 7] = [
        Row::RoundTrip,
        Row::InPlace(Touch::Ends),
        Row::InPlace(Touch::Pages),
        Row::Stream,
        Row::Descriptor,
        Row::Idle,
        Row::Death,
    ];

    fn name(self) -> &'static str {
        match self {
            Row::RoundTrip => "round-trip",
            Row::InPlace(Touch::Ends) => "ends",
            Row::InPlace(Touch::Pages) => "pages",
            Row::Stream => "stream",
            Row::Descriptor => "descriptor",
            Row::Idle => "idle",
            Row::Death => "death",
        }
    }
}

impl FromStr for Row {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|row| row.name() == word).ok_or(format!("no row: {word}").into())
    }
}
