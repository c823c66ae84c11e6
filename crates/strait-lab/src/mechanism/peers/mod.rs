//! Other libraries for messages to another process, each behind a cargo feature (off by default).
//!
//! Other libraries are measured like every other mechanism: in two fresh processes, with every message checked,
//! polled and blocking if they can. Each is used in its fastest correct way; the version is stated in the library's
//! module. To measure all of them:
//!
//! ```text
//! cargo run --release --features peers -- bench peers
//! ```
//!
//! `peers-iceoryx2`, `peers-ipc-channel`, `peers-zeromq` and `peers-heapless` build in one library each. ZeroMQ is
//! built from its source and needs a C++ compiler, and iceoryx2 needs `libclang`; both take minutes. A library whose
//! process is killed may leave files in `/tmp` and `/dev/shm`. The laboratory does not remove these files, unlike the
//! files of its own mechanisms.

#[cfg(feature = "peers-heapless")]
pub(crate) mod heapless;
#[cfg(feature = "peers-iceoryx2")]
pub(crate) mod iceoryx2;
#[cfg(feature = "peers-ipc-channel")]
pub(crate) mod ipc_channel;
#[cfg(any(feature = "peers-iceoryx2", feature = "peers-ipc-channel", feature = "peers-zeromq"))]
mod terms;
#[cfg(feature = "peers-zeromq")]
pub(crate) mod zeromq;
