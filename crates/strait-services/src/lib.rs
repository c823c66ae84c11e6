//! Services written for sockets, over Strait: gRPC with tonic ([`grpc`]) and [`tarpc`]. Over Strait and over a Unix
//! socket, the services and their clients differ only in the lines that make a stream.
//!
//! `cargo run --release --example compare` measures both beside a Unix socket.

pub mod grpc;
pub mod tarpc;

/// Returns the processor time used by this process, in nanoseconds.
pub fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
