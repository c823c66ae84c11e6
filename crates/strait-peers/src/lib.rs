//! Shared by all programs of `strait bench peers`: the loops, the clock, the counters, and the command line.
//!
//! Each program in `src/bin` sends messages with one library, between two processes: the program starts itself a
//! second time as the server. It has two forms. The form *default* follows the first example of the library's own
//! documentation; the form *tuned* follows the advice for speed there. A program measures one row and prints one line
//! of JSON; `strait bench peers` starts the programs in turn and prints the tables.

mod child;
mod client;
mod command;
mod counters;
pub mod frames;
mod measure;
pub mod memory;
mod service;

pub use client::{Client, Touch};
pub use command::{Form, Meeting, Peer, Row, main};
pub use service::{Service, serve_with};

/// Any error of a library; it ends the program with its text.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;
