//! A peer that speaks Strait's raw wire: for tests and fuzzers that attack the library.
//!
//! Nothing but [`world`] uses the code of the `strait` crate. The packets, the layout of shared memory and the order of steps
//! are written down a second time, after `docs/design.md`: so an honest conversation between the two also shows that the
//! document is right.
//!
//! [`RawPeer`] is one end of a link and of its first channel. It does nothing by itself: it has no thread, sleeps only
//! where a call says so, and uses no randomness. Two in one thread, or one and a `strait::Channel`, talk in a fixed order.
//!
//! ```no_run
//! # fn socketpair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) { unimplemented!() }
//! use strait_hostile::RawPeer;
//! let (ours, _theirs) = socketpair();
//! // The other end of the pair is given to `strait::Channel::over`.
//! let mut peer = RawPeer::meet(ours)?;
//! peer.send(b"an honest message")?;
//! // A record of a kind that there is not, right behind it.
//! peer.writer.put(77 << 32, b"");
//! peer.wake()?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! * [`wire`]: packets, on the socket.
//! * [`record`]: what stands in rings: headers, names of lanes, blocks, tables of handles.
//! * [`layout`]: where it stands; every shared word by its name.
//! * [`memory`]: memfds and mappings, of any size and with any seals.
//! * [`handshake`]: the first packets.
//! * [`peer`]: all of it together.
//! * [`world`]: a victim that uses the library, and an attacker that draws its steps at random.

pub mod handshake;
pub mod layout;
pub mod memory;
pub mod peer;
pub mod record;
pub mod wire;
pub mod world;

pub use layout::{Lane, Ring};
pub use memory::Memory;
pub use peer::{Message, RawPeer};
pub use record::Table;
pub use wire::Packet;
