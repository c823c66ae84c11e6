#![doc = include_str!("../../../README.md")]

#[cfg(feature = "benchmarks")]
#[doc(hidden)]
pub mod benchmarks;
mod blocked_on;
mod call;
mod channel;
mod deadline;
mod deferred;
mod dispatcher;
mod error;
#[cfg(strait_fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod lane;
mod link;
mod meet;
mod os;
mod peer;
mod pipe;
mod quota;
mod region;
mod shm;
pub mod signals;
mod sync;
mod task;
mod trap;
mod wait_set;
mod wake;

use strait_ring::ring;

/// Compiles and runs the code examples of the project's Markdown documents as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/messages.md")]
    struct Messages;
    #[doc = include_str!("../../../docs/regions.md")]
    struct Regions;
    #[doc = include_str!("../../../docs/data-pipes.md")]
    struct DataPipes;
    #[doc = include_str!("../../../docs/serving.md")]
    struct Serving;
    #[doc = include_str!("../../../docs/calls.md")]
    struct Calls;
    #[doc = include_str!("../../../docs/async.md")]
    struct Async;
}

/// Internals for the crates of this workspace that wrap this crate for other languages. Not part of the public
/// interface.
#[doc(hidden)]
pub mod bindings {
    pub use crate::os::fork::PerProcess;
    pub use crate::wake::spin::parse_spin;
}

pub use call::{CallCounters, CallEnd, CallError, CallOptions, PendingCall, Replier, Request};
pub use channel::{
    Channel, Conditions, Counters, Draft, FuseError, Handle, InPlace, Interrupter, Message, Options, Outgoing,
    PutBackError, Received, Reported, Reservation, SealedReservation, SendError, SendManyError, Status, Value,
    ValueError,
};
pub use deadline::Deadline;
pub use dispatcher::{Dispatched, Dispatcher, Pump};
pub use error::{Error, Refusal};
pub use meet::{
    CommandExt, Connector, Invitation, Listener, ListenerBuilder, Listening, Refused, connect, from_parent, invited,
    names,
};
#[cfg(strait_fault_points)]
#[doc(hidden)]
pub use os::fault;
pub use peer::Peer;
pub use pipe::{DataConsumer, DataPipe, DataProducer, PipeEnd, PipeOptions, Room, Unread};
pub use quota::{BadPeer, Level, Limits, MAX_HANDLES, Resource, Usage, limits, on_bad_peer, set_limits};
pub use region::{Access, Region, RegionCopy, RegionMap, RegionOptions, RegionView};
#[doc(inline)]
pub use ring::MAX_MESSAGE;
pub use task::{AsyncCallEnd, AsyncChannel, AsyncConsumer, AsyncProducer, Reactor};
pub use trap::{NotArmed, Reason, Sprung, TrapId, Traps};
pub use wait_set::{Event, Interest, Mode, WaitSet};
pub use wake::Wait;
