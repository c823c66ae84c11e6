#![doc = include_str!("../../../README.md")]

mod account;
#[cfg(feature = "benchmarks")]
#[doc(hidden)]
pub mod benchmarks;
mod board;
mod call;
mod channel;
mod closing;
mod counters;
mod deadline;
mod dispatcher;
mod error;
#[cfg(feature = "fault-points")]
#[doc(hidden)]
pub mod fault;
#[cfg(not(feature = "fault-points"))]
mod fault;
mod fork;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod interrupt;
mod lane;
mod link;
mod lock;
mod meeting;
mod message;
mod options;
mod origin;
mod peer;
mod pipe;
mod pool;
mod reactor;
mod region;
mod ring;
mod shm;
mod spawn;
mod sys;
mod trap;
mod value;
mod wait;
mod wait_set;
mod want;

/// The examples of the documents, which are compiled and run as tests.
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

/// For the crates of this workspace that make C libraries of this one.
#[doc(hidden)]
pub mod bindings {
    pub use crate::fork::PerProcess;
}

pub use account::{BadPeer, Level, Limits, Resource, Usage, limits, on_bad_peer, set_limits};
pub use call::{CallCounters, CallEnd, CallError, CallOptions, PendingCall, Replier, Request};
pub use channel::{
    Channel, Draft, FuseError, InPlace, Interrupter, PutBackError, Reservation, SealedReservation, Status,
};
pub use counters::Counters;
pub use deadline::Deadline;
pub use dispatcher::{Dispatched, Dispatcher, Pump};
pub use error::{Error, Refusal, SendError, SendManyError};
pub use handle::Handle;
pub use meeting::{Connector, Invitation, Listener, ListenerBuilder, Listening, Refused, connect, invited, names};
pub use message::{Message, Outgoing, Received};
pub use options::{MAX_HANDLES, MAX_MESSAGE, Options, Wait};
pub use origin::Reported;
pub use peer::Peer;
pub use pipe::{DataConsumer, DataPipe, DataProducer, PipeEnd, PipeOptions, Room, Unread};
pub use reactor::{AsyncCallEnd, AsyncChannel, AsyncConsumer, AsyncProducer, Reactor};
pub use region::{Access, Region, RegionCopy, RegionMap, RegionOptions, RegionView};
pub use spawn::{CommandExt, from_parent};
pub use trap::{Conditions, NotArmed, Reason, Sprung, TrapId, Traps};
pub use value::{Value, ValueError};
pub use wait_set::{Event, Interest, Mode, WaitSet};
