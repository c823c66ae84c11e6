//! Typed messages over Strait's channels: values of Rust types instead of bytes.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use strait_typed::{Fd, Typed};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Open {
//!     path: String,
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Opened {
//!     file: Fd,
//!     len: u64,
//! }
//!
//! let (client, server) = Typed::<Open, Opened>::pair()?; // One of the ends may be in another process.
//! client.send(&Open { path: "/etc/hostname".into() })?;
//!
//! let request = server.recv()?;
//! let file = std::fs::File::open("/dev/null")?;
//! server.send(&Opened { file: file.into(), len: request.path.len() as u64 })?;
//!
//! let opened = client.recv()?;
//! assert_eq!(opened.len, 13);
//! let _file = opened.file.into_fd().expect("it was not sent on");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`Typed`] sends and receives values of serde's types over a channel; [`TypedListener`] accepts such channels.
//! * [`TypedCalls`] are requests and their replies; [`task::AsyncTyped`] is a typed channel for tasks.
//! * The [`codec`] is a parameter: [`codec::Postcard`] by default.
//! * Files, channel ends, regions and data pipes are fields of a value: [`Fd`], [`End`], [`Shared`], [`Reader`],
//!   [`Writer`].
//! * [`Array`] is an array of numbers, as NumPy has it: with the codec [`codec::MsgPack`], a program in Python receives
//!   it as such.
//! * [`Typed::send_owned`] gives a value to a receiver in the same process without encoding it.
//!
//! # What a peer can do
//! The bytes of a message are checked while they are decoded. A message that is no value of the expected type is
//! reported as [`RecvError::Malformed`], its handles are closed, and the channel stays usable. Handles that the program
//! has not taken out of a message or a received value are closed without blocking. The memory for a decoded value is
//! proportional to the bytes received, whatever lengths they claim. Values are nested at most 128 deep, and a message
//! has at most 1,024 elements more than bytes.
//!
//! # Bytes
//! serde treats a `Vec<u8>` as a list of numbers. Mark large fields of bytes with `#[serde(with = "serde_bytes")]`, or
//! use the types of the crate `serde_bytes`; they are then copied at once.

mod array;
#[cfg(any(feature = "json", feature = "msgpack"))]
mod bounded;
mod calls;
pub mod codec;
mod core;
mod error;
mod extension;
mod given;
mod handles;
mod hello;
mod limits;
mod output;
#[cfg(doctest)]
mod refused;
mod scratch;
pub mod task;
mod typed;

pub use array::{Array, ArrayError, Element, Order};
pub use calls::{CallError, TypedCalls, TypedRequest};
#[cfg(feature = "schema")]
pub use codec::Checked;
#[cfg(feature = "json")]
pub use codec::Json;
#[cfg(feature = "msgpack")]
pub use codec::MsgPack;
#[cfg(feature = "pod")]
pub use codec::Pod;
pub use codec::Postcard;
pub use error::{Differs, GivenError, RecvError, SchemaMismatch, SendError, TYPES_DIFFER};
pub use handles::{End, Fd, RawEnd, Reader, Shared, Writer};
pub use output::{Full, Output};
pub use typed::{Encoded, Typed, TypedListener};

// The examples of the README are tests.
#[cfg(all(doctest, feature = "json"))]
#[doc = include_str!("../README.md")]
mod readme {}
