//! Programs that must not compile.
//!
//! A call that does not keep the message cannot return a value that borrows from the message:
//! ```compile_fail
//! use strait_typed::Typed;
//!
//! fn main() {
//!     let (_near, far) = Typed::<&str, ()>::pair().unwrap();
//!     let text: &str = far.recv().unwrap();
//!     println!("{text}");
//! }
//! ```
//!
//! A borrowing value cannot be given away, because the receiver may live longer:
//! ```compile_fail,E0597
//! use strait_typed::Typed;
//!
//! fn main() {
//!     let text = String::from("text");
//!     let (near, _far) = Typed::<&str, ()>::pair().unwrap();
//!     near.send_owned(&text, strait::Deadline::NOW).unwrap();
//! }
//! ```
//!
//! A value that borrows from a message does not outlive the message:
//! ```compile_fail,E0597
//! use strait_typed::{Encoded, Typed};
//!
//! fn main() {
//!     let (_near, far) = Typed::<String, ()>::pair().unwrap();
//!     let text: &str = {
//!         let mut encoded = Encoded::new();
//!         far.recv_encoded(&mut encoded, strait::Deadline::NOW).unwrap();
//!         encoded.get().unwrap()
//!     };
//!     println!("{text}");
//! }
//! ```
//!
//! A field for a descriptor takes no channel:
//! ```compile_fail,E0277
//! use strait_typed::Fd;
//!
//! fn main() {
//!     let (channel, _other) = strait::Channel::pair().unwrap();
//!     let _file: Fd = channel.into();
//! }
//! ```
//!
//! A handle is no plain memory:
//! ```compile_fail,E0599
//! use strait_typed::Fd;
//! use strait_typed::codec::Pod;
//!
//! fn main() {
//!     let (near, _far) = strait_typed::Typed::<Fd, (), Pod>::pair().unwrap();
//!     near.send(&std::fs::File::open("/dev/null").unwrap().into()).unwrap();
//! }
//! ```
//!
//! A handle is moved, and has no copy:
//! ```compile_fail,E0382
//! use strait_typed::Fd;
//!
//! fn main() {
//!     let file = Fd::from(std::fs::File::open("/dev/null").unwrap());
//!     let _both = (file, file);
//! }
//! ```
//!
//! The memory of a message is not reused while a value borrows from the message:
//! ```compile_fail,E0499
//! use strait_typed::{Encoded, Typed};
//!
//! fn main() {
//!     let (_near, far) = Typed::<String, ()>::pair().unwrap();
//!     let mut encoded = Encoded::new();
//!     far.recv_encoded(&mut encoded, strait::Deadline::NOW).unwrap();
//!     let text: &str = encoded.get().unwrap();
//!     far.recv_encoded(&mut encoded, strait::Deadline::NOW).unwrap();
//!     println!("{text}");
//! }
//! ```
//!
//! A call returns a reply of its own type only:
//! ```compile_fail,E0308
//! use strait_typed::TypedCalls;
//!
//! fn main() {
//!     let calls = TypedCalls::<String, u64>::over(strait::Channel::pair().unwrap().0);
//!     let _reply: String = calls.call(&String::new(), strait::Deadline::NOW).unwrap();
//! }
//! ```
//!
//! A value without `Deserialize` cannot be received:
//! ```compile_fail,E0599
//! struct Opaque;
//!
//! fn main() {
//!     let (_near, far) = strait_typed::Typed::<Opaque, ()>::pair().unwrap();
//!     let _: Opaque = far.recv().unwrap();
//! }
//! ```
//!
//! A value without `Serialize` cannot be sent:
//! ```compile_fail,E0599
//! struct Opaque;
//!
//! fn main() {
//!     let (near, _far) = strait_typed::Typed::<Opaque, ()>::pair().unwrap();
//!     near.send(&Opaque).unwrap();
//! }
//! ```
//!
//! The codec that compares shapes needs the shape of a type:
//! ```compile_fail,E0599
//! use strait_typed::codec::Checked;
//!
//! #[derive(serde::Serialize)]
//! struct Request;
//!
//! fn main() {
//!     let (near, _far) = strait_typed::Typed::<Request, (), Checked>::pair().unwrap();
//!     near.send(&Request).unwrap();
//! }
//! ```
//!
//! An end sends only values of its own type:
//! ```compile_fail,E0308
//! fn main() {
//!     let (near, _far) = strait_typed::Typed::<u32, ()>::pair().unwrap();
//!     near.send(&"text".to_owned()).unwrap();
//! }
//! ```
//!
//! A field for the reading end of a data pipe does not take the writing end:
//! ```compile_fail,E0277
//! use strait_typed::Reader;
//!
//! fn main() {
//!     let (writer, _reader) = strait::pipe::DataPipe::pair(64).unwrap();
//!     let _wrong: Reader = writer.into();
//! }
//! ```
//!
//! Text is no plain memory:
//! ```compile_fail,E0599
//! use strait_typed::codec::Pod;
//!
//! fn main() {
//!     let (near, _far) = strait_typed::Typed::<String, (), Pod>::pair().unwrap();
//!     near.send(&String::new()).unwrap();
//! }
//! ```
//!
//! A field takes an end of its own types only; here it gets the wrong end of the pair:
//! ```compile_fail,E0277
//! use strait_typed::{End, Typed};
//!
//! struct Request {
//!     _reply: End<String, ()>,
//! }
//!
//! fn main() {
//!     let (ours, _theirs) = Typed::<(), String>::pair().unwrap();
//!     let _request = Request { _reply: ours.into() };
//! }
//! ```
