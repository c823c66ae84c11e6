//! Programs that must not compile.
//!
//! Each field has a FIDL type:
//! ```compile_fail,E0277
//! struct Point {
//!     _x: i32,
//! }
//!
//! #[derive(strait_fidl::Fidl)]
//! struct Path {
//!     points: Vec<Point>,
//! }
//!
//! fn main() {
//!     let _ = Path { points: vec![Point { _x: 1 }] };
//! }
//! ```
//!
//! The kind of a handle is the kind of its field:
//! ```compile_fail,E0277
//! use strait_fidl::{FidlHandle, kind};
//!
//! fn main() {
//!     let file = std::fs::File::open("/dev/null").unwrap();
//!     let _handle: FidlHandle<kind::Channel> = file.into();
//! }
//! ```
//!
//! An end of a protocol is not the other end:
//! ```compile_fail,E0308
//! use strait_fidl::{ClientEnd, Fidl, ServerEnd};
//!
//! enum Files {}
//!
//! #[derive(Fidl)]
//! struct Open {
//!     files: ClientEnd<Files>,
//! }
//!
//! fn main() {
//!     let server: ServerEnd<Files> = strait::Channel::pair().unwrap().0.into();
//!     let _ = Open { files: server };
//! }
//! ```
//!
//! Slices of numbers are encoded and not decoded, since a message is not aligned:
//! ```compile_fail,E0277
//! #[derive(strait_fidl::Fidl)]
//! struct Numbers<'a> {
//!     numbers: &'a [u32],
//! }
//!
//! fn main() {
//!     let _ = Numbers { numbers: &[1] };
//! }
//! ```
//!
//! Each field of a table may be absent:
//! ```compile_fail
//! #[derive(strait_fidl::Fidl)]
//! #[fidl(table)]
//! struct Settings {
//!     #[fidl(1)]
//!     volume: u32,
//! }
//!
//! fn main() {
//!     let _ = Settings { volume: 1 };
//! }
//! ```
//!
//! A union declares what happens to unknown fields:
//! ```compile_fail
//! #[derive(strait_fidl::Fidl)]
//! #[fidl(union)]
//! enum Answer {
//!     #[fidl(1)]
//!     Yes(bool),
//! }
//!
//! fn main() {
//!     let _ = Answer::Yes(true);
//! }
//! ```
//!
//! The size of a `usize` differs between machines, so it has no encoding:
//! ```compile_fail,E0277
//! #[derive(strait_fidl::Fidl)]
//! struct Size {
//!     bytes: usize,
//! }
//!
//! fn main() {
//!     let _ = Size { bytes: 1 };
//! }
//! ```
//!
//! A value does not change while the encoding lives:
//! ```compile_fail,E0502
//! fn main() {
//!     let mut encoder = strait_fidl::Encoder::new();
//!     let mut value = vec![0_u8; 4096];
//!     let encoded = encoder.encode(&value).unwrap();
//!     value.push(1);
//!     let _parts = encoded.parts();
//! }
//! ```
//!
//! A value lives as long as the encoding, which has parts in the value:
//! ```compile_fail,E0505
//! fn main() {
//!     let mut encoder = strait_fidl::Encoder::new();
//!     let value = vec![0_u8; 4096];
//!     let encoded = encoder.encode(&value).unwrap();
//!     drop(value);
//!     let _parts = encoded.parts();
//! }
//! ```
//!
//! Memory that the peer can still change has no bytes to decode: only a sealed view has:
//! ```compile_fail,E0308
//! use strait_fidl::decode;
//!
//! fn main() {
//!     let (_near, far) = strait::Channel::pair().unwrap();
//!     let view = far.recv_in_place(strait::Deadline::NOW).unwrap();
//!     let _text: &str = decode(&view, []).unwrap();
//! }
//! ```
//!
//! Text cannot borrow from bytes with a shorter lifetime:
//! ```compile_fail,E0597
//! fn main() {
//!     let text: &'static str = {
//!         let bytes = strait_fidl::to_vec(&"text").unwrap();
//!         strait_fidl::decode(&bytes, []).unwrap()
//!     };
//!     println!("{text}");
//! }
//! ```
//!
//! A value that borrows from a message does not outlive the message:
//! ```compile_fail,E0597
//! use strait_fidl::decode_message;
//!
//! fn main() {
//!     let (near, far) = strait::Channel::pair().unwrap();
//!     near.send(&strait_fidl::to_vec(&"text").unwrap()).unwrap();
//!     let text: &str = {
//!         let mut message = far.recv().unwrap();
//!         decode_message(&mut message).unwrap()
//!     };
//!     println!("{text}");
//! }
//! ```
//!
//! The protocol of an end is the protocol of its field:
//! ```compile_fail,E0308
//! use strait_fidl::{ClientEnd, Fidl};
//!
//! enum Files {}
//! enum Logs {}
//!
//! #[derive(Fidl)]
//! struct Open {
//!     files: ClientEnd<Files>,
//! }
//!
//! fn main() {
//!     let logs: ClientEnd<Logs> = strait::Channel::pair().unwrap().0.into();
//!     let _ = Open { files: logs };
//! }
//! ```
//!
//! An enum declares its integer type:
//! ```compile_fail
//! #[derive(strait_fidl::Fidl)]
//! #[fidl(strict)]
//! enum Color {
//!     Red = 1,
//! }
//!
//! fn main() {
//!     let _ = Color::Red;
//! }
//! ```
//!
//! A number cannot be absent:
//! ```compile_fail,E0277
//! #[derive(strait_fidl::Fidl)]
//! struct Size {
//!     bytes: Option<u64>,
//! }
//!
//! fn main() {
//!     let _ = Size { bytes: None };
//! }
//! ```
//!
//! Elements with invalid bit patterns cannot be read in place:
//! ```compile_fail,E0080
//! fn main() {
//!     let _ = strait_fidl::decode::<strait_fidl::Elements<'_, bool>>(&[], []);
//! }
//! ```
//!
//! An array has at least one element:
//! ```compile_fail,E0080
//! fn main() {
//!     let _ = strait_fidl::decode::<Vec<[u8; 0]>>(&[], []);
//! }
//! ```
//!
//! An ordinal names one field:
//! ```compile_fail
//! #[derive(strait_fidl::Fidl)]
//! #[fidl(union, strict)]
//! enum Answer {
//!     #[fidl(1)]
//!     Yes(bool),
//!     #[fidl(1)]
//!     Why(String),
//! }
//!
//! fn main() {
//!     let _ = (Answer::Yes(true), Answer::Why(String::new()));
//! }
//! ```
//!
//! An encoder encodes one value at a time:
//! ```compile_fail,E0499
//! fn main() {
//!     let mut encoder = strait_fidl::Encoder::new();
//!     let one = encoder.encode(&1_u32).unwrap();
//!     let other = encoder.encode(&2_u32).unwrap();
//!     let _parts = (one.parts(), other.parts());
//! }
//! ```
//!
//! A limit is for a string or a vector, not for a number:
//! ```compile_fail,E0080
//! #[derive(strait_fidl::Fidl)]
//! struct Size {
//!     #[fidl(max = 10)]
//!     bytes: u64,
//! }
//!
//! fn main() {
//!     let _ = Size { bytes: 1 };
//! }
//! ```
//!
//! A limit of a field does not apply within a struct; the struct has limits of its own:
//! ```compile_fail,E0080
//! #[derive(strait_fidl::Fidl)]
//! struct Name {
//!     text: String,
//! }
//!
//! #[derive(strait_fidl::Fidl)]
//! #[fidl(table)]
//! struct Person {
//!     #[fidl(1, max = 10)]
//!     name: Option<Name>,
//! }
//!
//! fn main() {
//!     let _ = Person { name: Some(Name { text: String::new() }) };
//! }
//! ```
//!
//! There are at most as many limits as levels of vectors and strings, also for a type that borrows:
//! ```compile_fail,E0080
//! #[derive(strait_fidl::Fidl)]
//! #[fidl(union, strict)]
//! enum Tags<'a> {
//!     #[fidl(1)]
//!     All(#[fidl(max(8, 16, 32))] Vec<&'a str>),
//! }
//!
//! fn main() {
//!     let _ = Tags::All(vec![]);
//! }
//! ```
//!
//! The limits of a generic type are checked for each parameter with which the type is encoded:
//! ```compile_fail,E0080
//! #[derive(strait_fidl::Fidl)]
//! struct Limited<T> {
//!     #[fidl(max = 8)]
//!     value: T,
//! }
//!
//! fn main() {
//!     let _ = strait_fidl::to_vec(&Limited { value: 1_u32 });
//! }
//! ```
