//! Programs that must not compile.
//!
//! A value that serde cannot serialize is not sent:
//! ```compile_fail,E0599
//! struct Opaque;
//! let (near, _far) = strait_typed::Typed::<Opaque, ()>::pair().unwrap();
//! near.send(&Opaque).unwrap();
//! ```
//!
//! An end sends values of its own type only:
//! ```compile_fail,E0308
//! let (near, _far) = strait_typed::Typed::<u32, ()>::pair().unwrap();
//! near.send(&"text".to_owned()).unwrap();
//! ```
//!
//! A field takes an end of its own types only; here it gets the wrong end of the pair:
//! ```compile_fail,E0277
//! use strait_typed::{End, Typed};
//! struct Request {
//!     _reply: End<String, ()>,
//! }
//! let (ours, _theirs) = Typed::<(), String>::pair().unwrap();
//! let _request = Request { _reply: ours.into() };
//! ```
//!
//! Text is no plain memory:
//! ```compile_fail,E0599
//! use strait_typed::codec::Pod;
//! let (near, _far) = strait_typed::Typed::<String, (), Pod>::pair().unwrap();
//! near.send(&String::new()).unwrap();
//! ```
//!
//! The codec that compares shapes needs the shape of a type:
//! ```compile_fail,E0599
//! use strait_typed::codec::Checked;
//! #[derive(serde::Serialize)]
//! struct Request;
//! let (near, _far) = strait_typed::Typed::<Request, (), Checked>::pair().unwrap();
//! near.send(&Request).unwrap();
//! ```
//!
//! A value that borrows from a message does not outlive it:
//! ```compile_fail,E0597
//! use strait_typed::{Encoded, Typed};
//! let (_near, far) = Typed::<String, ()>::pair().unwrap();
//! let text: &str = {
//!     let mut encoded = Encoded::new();
//!     far.recv_encoded(&mut encoded, strait::Deadline::NOW).unwrap();
//!     encoded.get().unwrap()
//! };
//! println!("{text}");
//! ```
