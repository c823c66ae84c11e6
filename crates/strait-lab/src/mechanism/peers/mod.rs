//! Other people's ways to get a message across, each behind a cargo feature that is off unless asked for.
//!
//! They are measured like everything else: in two fresh processes, every message checked, polled and blocking where they
//! can. Each gets its fastest correct use; which version that is, its own page says. To take them all:
//!
//! ```text
//! cargo run --release --features peers -- bench peers
//! ```
//!
//! `peers-iceoryx2`, `peers-ipc-channel`, `peers-zeromq` and `peers-heapless` take one each. ZeroMQ is built from its source
//! and needs a C++ compiler, and iceoryx2 needs `libclang`; both take minutes. What a peer that is killed leaves
//! behind (files in `/tmp` and `/dev/shm`) is its own business, other than with the mechanisms of this library.

#[cfg(feature = "peers-heapless")]
pub(super) mod heapless;
#[cfg(feature = "peers-iceoryx2")]
pub(super) mod iceoryx2;
#[cfg(feature = "peers-ipc-channel")]
pub(super) mod ipc_channel;
#[cfg(any(feature = "peers-iceoryx2", feature = "peers-ipc-channel", feature = "peers-zeromq"))]
mod terms;
#[cfg(feature = "peers-zeromq")]
pub(super) mod zeromq;
