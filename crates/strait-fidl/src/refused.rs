//! Programs that must not compile.
//!
//! A value stays as long as its encoding, whose parts lie in it:
//! ```compile_fail,E0505
//! let mut encoder = strait_fidl::Encoder::new();
//! let value = vec![0_u8; 4096];
//! let encoded = encoder.encode(&value).unwrap();
//! drop(value);
//! let _parts = encoded.parts();
//! ```
//!
//! A value does not change while it is encoded:
//! ```compile_fail,E0502
//! let mut encoder = strait_fidl::Encoder::new();
//! let mut value = vec![0_u8; 4096];
//! let encoded = encoder.encode(&value).unwrap();
//! value.push(1);
//! let _parts = encoded.parts();
//! ```
//!
//! An encoder encodes one value at a time:
//! ```compile_fail,E0499
//! let mut encoder = strait_fidl::Encoder::new();
//! let one = encoder.encode(&1_u32).unwrap();
//! let other = encoder.encode(&2_u32).unwrap();
//! let _parts = (one.parts(), other.parts());
//! ```
//!
//! A value that borrows from a message does not outlive it:
//! ```compile_fail,E0597
//! use strait_fidl::{decode_message, Fidl};
//! let (near, far) = strait::Channel::pair().unwrap();
//! near.send(&strait_fidl::to_vec(&"text").unwrap()).unwrap();
//! let text: &str = {
//!     let mut message = far.recv().unwrap();
//!     decode_message(&mut message).unwrap()
//! };
//! println!("{text}");
//! ```
//!
//! Elements that have to be checked are not read where they lie:
//! ```compile_fail,E0080
//! let _ = strait_fidl::decode::<strait_fidl::Elements<'_, bool>>(&[], []);
//! ```
//!
//! Text is not read into memory that outlives the message:
//! ```compile_fail,E0597
//! let text: &'static str = {
//!     let bytes = strait_fidl::to_vec(&"text").unwrap();
//!     strait_fidl::decode(&bytes, []).unwrap()
//! };
//! ```
//!
//! The size of a `usize` differs between machines, so it has no encoding:
//! ```compile_fail,E0277
//! #[derive(strait_fidl::Fidl)]
//! struct Size {
//!     bytes: usize,
//! }
//! ```
//!
//! A number cannot be absent:
//! ```compile_fail,E0277
//! #[derive(strait_fidl::Fidl)]
//! struct Size {
//!     bytes: Option<u64>,
//! }
//! ```
//!
//! A handle is of the kind of its field:
//! ```compile_fail,E0277
//! use strait_fidl::{FidlHandle, kind};
//! let file = std::fs::File::open("/dev/null").unwrap();
//! let _handle: FidlHandle<kind::Channel> = file.into();
//! ```
//!
//! Slices of numbers are encoded and not decoded, since a message is not aligned:
//! ```compile_fail,E0277
//! #[derive(strait_fidl::Fidl)]
//! struct Numbers<'a> {
//!     numbers: &'a [u32],
//! }
//! ```
