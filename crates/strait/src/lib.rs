#![doc = include_str!("../../../README.md")]

#[cfg(feature = "benchmarks")]
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
mod shm;
pub mod signals;
mod sync;
pub mod task;
mod trap;
pub mod view;
pub mod wait;
mod wait_set;
mod wake;

use strait_ring::ring;

/// Internals for the crates of this workspace that wrap this crate for other languages. Not part of the public
/// interface.
#[doc(hidden)]
pub mod bindings {
    pub use crate::channel::{recv_in_place, reserve, reserve_sealed, set_close_reason};
    pub use crate::kept::Keep;
    pub use crate::os::fork::PerProcess;
    pub use crate::wake::spin::parse_spin;
}

pub use channel::{
    Channel, Counters, FuseError, Handle, Interrupter, Message, MessageInfo, Options, Outgoing, PutBackError, Received,
    SendError, SendManyError, Status,
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
