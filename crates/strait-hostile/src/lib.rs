//! A peer that speaks Strait's raw wire: for tests and fuzzers that attack the library.
//!
//! Only [`world`] uses the code of the `strait` crate. The other modules implement the packets, the layout of shared
//! memory and the order of steps a second time, from `docs/how-it-works/wire.md`. So an honest conversation between
//! this crate and the library also shows that the document is right.
//!
//! [`RawPeer`] is one end of a link and of its first channel. It has no thread, sleeps only in calls whose
//! documentation says so, and uses no randomness. Two raw peers in one thread, or a raw peer and a `strait::Channel`,
//! therefore talk in a fixed order.
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
//! * [`wire`]: packets on the socket.
//! * [`record`]: the content of rings: headers, names of lanes, blocks, handle tables.
//! * [`layout`]: the places of rings and records in shared memory, and every shared word by its name.
//! * [`memory`]: memfds and their mappings, of any size and with any seals.
//! * [`handshake`]: the first packets of a link.
//! * [`peer`]: a whole peer, built from the modules above.
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
