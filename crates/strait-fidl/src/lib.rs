//! FIDL's wire format (version 2) for messages over Strait's channels.
//!
//! FIDL is the interface language of Fuchsia. The wire format of FIDL has one encoding for each value, in a layout
//! specified for all languages, with handles as parts of values, and with extensible tables and unions. This crate has
//! the values: [`Fidl`] derives the encoding of a Rust type, [`Encoder`] encodes a value, and [`decode`] decodes a
//! message. The crate has no protocols and does not read `.fidl` files.
//!
//! ```
//! use strait::Channel;
//! use strait_fidl::{Encoder, Fidl, FidlHandle, decode_message, kind};
//!
//! #[derive(Debug, PartialEq, Fidl)]
//! struct Size {
//!     width: u32,
//!     height: u32,
//! }
//!
//! #[derive(Debug, PartialEq, Fidl)]
//! #[fidl(union, flexible)]
//! enum Source {
//!     #[fidl(1)]
//!     File(#[fidl(max = 255)] String),
//!     #[fidl(2)]
//!     Pixels(Vec<u8>),
//!     #[fidl(unknown)]
//!     Unknown(u64),
//! }
//!
//! #[derive(Debug, Fidl)]
//! struct Show {
//!     source: Source,
//!     size: Option<Size>,
//!     fence: Option<FidlHandle<kind::Fd>>,
//! }
//!
//! let (a, b) = Channel::pair()?; // One of the ends may be in another process.
//! let show = Show { source: Source::Pixels(vec![0x80; 4096]), size: Some(Size { width: 64, height: 64 }), fence: None };
//! let mut encoder = Encoder::new();
//! encoder.encode(&show)?.send(&a)?; // The pixels are copied once, from the vector into the channel.
//!
//! let mut message = b.recv()?;
//! let shown: Show = decode_message(&mut message)?;
//! assert_eq!((shown.source, shown.size), (show.source, show.size));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Types
//! | FIDL | Rust |
//! |---|---|
//! | `bool`, `int8` to `uint64`, `float32`, `float64` | `bool`, `i8` to `u64`, `f32`, `f64` |
//! | `array<T, N>` | `[T; N]`, with at least one element |
//! | `vector<T>:N` | `Vec<T>`, `&[T]`, [`Elements`] with `#[fidl(max = N)]` |
//! | `string:N` | `String`, `&str` with `#[fidl(max = N)]` |
//! | `struct` | a struct with `#[derive(Fidl)]` |
//! | `table` | a struct with `#[fidl(table)]`, all of whose fields are `Option` |
//! | `strict union`, `flexible union` | an enum with `#[fidl(union, strict)]` or `#[fidl(union, flexible)]` |
//! | `strict enum`, `flexible enum` | an enum with `#[fidl(strict)]` or `#[fidl(flexible)]`, and `#[repr(u32)]` or another |
//! | `strict bits`, `flexible bits` | a struct of one number with `#[fidl(bits, strict, mask = 0b111)]` |
//! | `box<S>`, `U:optional`, `vector<T>:optional`, ... | `Option` of it |
//! | `zx.Handle`, `client_end:P`, `server_end:P` | [`FidlHandle`], [`ClientEnd`], [`ServerEnd`] |
//!
//! `Box<T>` and `&T` are encoded like `T`: an `Option<Box<S>>` is a `box<S>`. The derive macro [`Fidl`] has the
//! attributes.
//!
//! # What a peer can do
//! Decoding checks everything: padding, lengths, presence, nesting, UTF-8, and that all bytes and handles are used. An
//! [`Error`] names the mistake, the byte, and the field; the handles of the message are closed, and the channel stays
//! usable. Handles of a refused message, of an unknown field, and in a received value that is dropped are closed
//! without blocking, at the charge of the peer. Handles that a failed send puts back into a value, and those of
//! messages read from a channel of `strait-zx`, belong to the program: closing them may block. The memory for a value
//! is proportional to the bytes present, for any claimed lengths. Decoded values borrow from the bytes of a message,
//! which are private or sealed memory; memory that the peer can still change cannot be decoded.
//!
//! # Sizes
//! A message may have as many bytes as the channel takes (256 MiB), so the format's rule for values that are larger
//! than a message of Zircon (*byte overflow*) is not needed; a header that asks for it is refused. Handles have no
//! rights.

extern crate self as strait_fidl;

mod decode;
mod encode;
mod envelope;
mod error;
mod handle;
mod header;
mod layout;
#[cfg(feature = "zx")]
mod list;
mod memory;
#[cfg(doctest)]
mod refused;
#[doc(hidden)]
pub mod support;
mod value;
#[cfg(feature = "zx")]
pub mod zx;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// The examples of the derive macro. The macro's crate cannot depend on this crate.
#[cfg(doctest)]
#[doc = include_str!("../../strait-fidl-derive/derive.md")]
struct Derive;

pub use decode::{Decoder, decode, decode_call, decode_message};
pub use encode::{Encoded, Encoder, Gather, Output, SendError, to_vec};
pub use error::{Code, Error};
pub use handle::{ClientEnd, FidlHandle, RawHandle, ServerEnd, kind};
pub use header::{Epitaph, Header};
pub use layout::{Context, Decode, Encode, Layout, MAX_DEPTH, Optional};
pub use strait_fidl_derive::Fidl;
pub use value::Elements;
