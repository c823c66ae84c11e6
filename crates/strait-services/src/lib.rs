//! Services that are written for sockets, over Strait: gRPC with tonic ([`grpc`]) and [`tarpc`]. The services and their
//! clients are what they are over a Unix socket; only the lines differ that make a stream.
//!
//! `cargo run --release --example compare` measures both beside a Unix socket.

pub mod grpc;
pub mod tarpc;

/// Returns the processor time that this process has used, in nanoseconds.
pub fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
