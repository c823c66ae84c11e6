//! Services written for sockets, over Strait: gRPC with tonic ([`grpc`]) and [`tarpc`]. Over Strait and over a Unix
//! socket, the services and their clients differ only in the lines that make a stream.
//!
//! `cargo run --release --example compare` measures both beside a Unix socket.

pub mod grpc;
pub mod tarpc;

use std::io;
use std::time::Duration;

use strait::Error;
use strait::meet::MeetError;

/// How long a service waits before it accepts again while the process lacks descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits a moment after an error of a listener that passes: the process lacks descriptors or memory, and the clients
/// wait meanwhile.
///
/// # Errors
/// Returns any other error.
async fn pause_after(error: io::Error) -> io::Result<()> {
    let source = error.get_ref();
    let failed = source.and_then(|source| source.downcast_ref::<MeetError>()).map(|failed| failed.error);
    let failed = failed.or_else(|| source.and_then(|source| source.downcast_ref::<Error>()).copied());
    if !failed.is_some_and(Error::is_temporary) {
        return Err(error);
    }
    tokio::time::sleep(PAUSE).await;
    Ok(())
}

/// Returns the processor time used by this process, in nanoseconds.
pub fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
