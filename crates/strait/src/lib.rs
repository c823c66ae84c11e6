//! Strait carries messages between processes on one Linux machine: as fast as shared memory allows, and safe to use
//! with an untrusted peer. This page is a tutorial; each section links to its types.
//!
//! # What Strait is
//! A [`Channel`] has two **ends**. Each end sends to the other and receives from it. A **message** is bytes and
//! **handles**: file descriptors, [regions](region::Region) of shared memory, ends of [data pipes](pipe), and ends of
//! other channels. A small message is one cache line of shared memory that goes from the sender's core to the
//! receiver's. There is no daemon. A Unix socket between the two processes, the **link**, carries descriptors and
//! wake-ups; the link serves all channels between them.
//!
//! # What Strait does not do
//! * Strait connects processes of one machine, on Linux 5.10 or later.
//! * A channel has two ends: there is no publish and subscribe.
//! * A message is bytes: there is no serialisation.
//! * A channel does not reconnect: when its peer is gone, the channel stays closed.
//!
//! # Hello
//! Both ends can be in one process:
//!
//! ```
//! use strait::{Channel, Error};
//!
//! fn main() -> Result<(), Error> {
//!     let (a, b) = Channel::pair()?;
//!     a.send(b"hello")?;
//!     assert_eq!(b.recv()?.bytes(), b"hello");
//!     Ok(())
//! }
//! ```
//!
//! Between processes there are four ways to the first channel:
//!
//! | the processes | one process calls | the other calls |
//! |---|---|---|
//! | parent and child | [`CommandExt::spawn_with_channel`] | [`from_parent`] |
//! | meet by a name | [`Listener::bind`], [`Listener::accept`] | [`connect`] |
//! | meet by an invitation that admits one process, once | [`Listener::invite`] | [`meet::invited`] |
//! | have a `SOCK_SEQPACKET` socket between them | [`Channel::over`] | [`Channel::over`] |
//!
//! ```no_run
//! use std::process::Command;
//! use strait::{CommandExt, Error};
//!
//! fn parent() -> Result<(), Error> {
//!     let (mut child, channel) = Command::new("worker").spawn_with_channel()?;
//!     channel.send(b"work")?;
//!     println!("{} bytes came back", channel.recv()?.bytes().len());
//!     child.wait().expect("a child");
//!     Ok(())
//! }
//!
//! fn worker() -> Result<(), Error> {
//!     let channel = strait::from_parent()?;
//!     let work = channel.recv()?;
//!     channel.send(work.bytes())?;
//!     Ok(())
//! }
//! # fn main() {}
//! ```
//!
//! To make a further channel, call [`Channel::pair`] and send one of the two ends over an existing channel.
//!
//! # Sizes and limits
//! A message has 0 to 256 MiB ([`MAX_MESSAGE`]) and up to 64 handles. Messages arrive whole and once, in the order in
//! which they were sent. A sender that is ahead of its receiver blocks when the ring is full (1 MiB) or too many large
//! messages are in flight (256 MiB); [`Channel::try_send`] returns [`Error::WouldBlock`] instead. [`Options`] set these
//! numbers for a new channel:
//!
//! ```
//! use strait::{Error, Options};
//!
//! let (a, b) = Options::new().max_message(100).pair()?;
//! assert_eq!(a.send(&[0; 101]).unwrap_err().error, Error::MessageTooLarge { len: 101, limit: 100 });
//! a.send(&[0; 100])?;
//! assert_eq!(b.recv()?.bytes().len(), 100);
//! # Ok::<(), Error>(())
//! ```
//!
//! The resources that a peer can make this process hold are limited as well, for each process and each user: see
//! [`quota`].
//!
//! Large messages need no copy: [`Channel::reserve`] gives the memory to fill, and [`Channel::recv_in_place`] reads a
//! message where the sender wrote it. A [sealed region](region::Region::sealed) is read in place by any number of
//! processes, and no process can change the region.
//!
//! # Handles
//! Handles travel with a message, and belong to its receiver. If a send fails, its error returns them.
//!
//! ```
//! use strait::{Channel, Error, Outgoing};
//!
//! // One of these may be a channel to another process.
//! let (to_helper, helper) = Channel::pair()?;
//! let (client, server) = Channel::pair()?;
//! client.send(b"a request")?;
//! to_helper.send(Outgoing::new(b"serve this").handle(server))?;
//!
//! let handle = helper.recv()?.take_handles()?.remove(0);
//! let server = handle.into_channel().expect("an end was sent");
//! assert_eq!(server.recv()?.bytes(), b"a request");
//! server.send(b"an answer")?;
//! assert_eq!(client.recv()?.bytes(), b"an answer");
//! # Ok::<(), Error>(())
//! ```
//!
//! The process that receives an end talks to the other end directly, without a relay. Messages that were not received
//! yet move along, and the other end does not notice the move.
//!
//! # Waiting
//! `send` and `recv` block without a limit, `try_send` and `try_recv` do not block, and every other call that can block
//! takes a [`Deadline`] as its last argument: a `Duration` from now, an `Instant`, [`Deadline::NOW`] or
//! [`Deadline::NEVER`].
//!
//! ```
//! use std::time::Duration;
//! use strait::{Channel, Error};
//!
//! let (_a, b) = Channel::pair()?;
//! assert_eq!(b.recv_by(Duration::from_millis(1)).unwrap_err(), Error::TimedOut);
//! # Ok::<(), Error>(())
//! ```
//!
//! Some calls can wait and have no such argument:
//!
//! * [`Reservation::commit`](view::Reservation::commit) and `commit_first` wait until the deadline that
//!   [`Channel::reserve`] got: one deadline covers the message.
//! * [`Pump::run`](wait::Pump::run) works for a dispatcher until the dispatcher is dropped; `run_once` has a deadline.
//! * [`Region::seal`](region::Region::seal) and [`RegionWriter::seal`](region::RegionWriter::seal) wait at most 100 ms,
//!   for mappings that a starting child process inherits. No event tells when such a mapping goes. A seal also waits
//!   for the kernel: if another process holds up the kernel, at most a second, and longer in a sandbox without threads.
//! * Readers and writers of [`std::io`], such as [`DataConsumer`](pipe::DataConsumer), wait without a limit, since the
//!   traits have no deadline.
//!
//! A call that waits spins for a moment, and then sleeps; [`Options::wait`] chooses otherwise. [`wait::WaitSet`] waits
//! for any number of channels, pipes, calls and listeners, and has a descriptor for an event loop. [`task`] has
//! channels for async tasks; the crate `strait-tokio` runs them in tokio. Another thread ends a wait with an
//! [`Interrupter`], and a signal does so under a [guard](signals).
//!
//! # Death
//! When an end is closed, or its process dies, the other end receives all messages sent before, and then
//! [`Error::PeerClosed`]:
//!
//! ```
//! use strait::{Channel, Error};
//!
//! let (a, b) = Channel::pair()?;
//! a.send(b"last words")?;
//! drop(a);
//! assert_eq!(b.recv()?.bytes(), b"last words");
//! assert_eq!(b.recv().unwrap_err(), Error::PeerClosed);
//! assert_eq!(b.send(b"anybody?").unwrap_err().error, Error::PeerClosed);
//! # Ok::<(), Error>(())
//! ```
//!
//! A receiver that has waited for at least 20 ms learns of a death at once, any other receiver within 20 ms. A sender
//! that does not wait learns of a death within 16 messages and 10 ms; the messages sent in between are lost with the
//! peer. A stopped process looks like a slow process: use deadlines.
//!
//! # Trust
//! The peer can be hostile. Whatever the peer writes to shared memory or sends, calls on this side return in bounded
//! time with a result or an error, and other channels go on. A peer that breaks the protocol ends its channel, or its
//! link, with [`Error::BadPeer`]. The kernel says which process and user the peer is ([`Channel::peer`]); what a peer
//! says about itself is never used. By default a listener accepts processes of the same user
//! ([`meet::ListenerBuilder::policy`]), and a client checks which user it connects to.
//!
//! The peer chooses the bytes of a message: check them. Bytes read [in place](Channel::recv_in_place) can change during
//! the read, unless the sender has sealed them.
//!
//! # Further
//! * [`call`]: requests and replies, in any order. [`pipe`]: byte streams. [`region`]: shared memory as an object.
//! * [`wait`]: wait sets, dispatchers and traps. [`task`]: async. [`owned`]: views that keep their channel.
//! * [`sandbox`]: the system calls that a filter must allow.
//! * [`Error`] says of each error what happened and what to do.
//!
//! Both processes must speak the same version of the protocol; otherwise [`Error::Refused`] names the versions of both.

#[cfg(strait_benchmarks)]
#[doc(hidden)]
pub mod benchmarks;
mod blocked_on;
pub mod call;
mod channel;
mod deadline;
mod deferred;
mod dispatcher;
mod error;
#[cfg(strait_fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod kept;
mod lane;
mod link;
pub mod meet;
mod os;
pub mod owned;
mod peer;
pub mod pipe;
pub mod quota;
pub mod region;
pub mod sandbox;
mod shm;
pub mod signals;
mod sync;
pub mod task;
mod trap;
pub mod view;
pub mod wait;
mod wait_set;
mod wake;
mod wakers;

#[cfg(not(test))]
use strait_ring::ring;
#[cfg(test)]
use strait_ring_model::ring;

/// Internals for the crates of this workspace that decode messages or wrap this crate for other languages. Not part of
/// the public interface.
#[doc(hidden)]
pub mod bindings {
    pub use crate::channel::{UnclaimedHandle, recv_in_place, reserve, reserve_sealed};
    pub use crate::kept::Keep;
    pub use crate::os::fork::PerProcess;
    pub use crate::wake::spin::parse_spin;
}

/// The check for lost wake-ups, for tests of this workspace.
#[cfg(strait_strict_wakes)]
#[doc(hidden)]
pub mod strict_wakes {
    pub use crate::wake::strict::{count_in, switch_off};
}

pub use channel::{
    Channel, Counters, FuseError, Handle, Interrupter, Message, MessageInfo, Options, Outgoing, PutBackError, Received,
    Receiver, SendError, SendManyError, Sender, Status,
};
pub use deadline::Deadline;
pub use error::Error;
#[doc(inline)]
pub use meet::{CommandExt, Listener, connect, from_parent};
#[cfg(strait_fault_points)]
#[doc(hidden)]
pub use os::fault;
pub use peer::Peer;
#[doc(inline)]
pub use ring::MAX_MESSAGE;
pub use wake::Wait;
