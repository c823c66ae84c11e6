#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod error;
#[allow(unsafe_code, reason = "the only code that accesses the memory of a ring")]
mod memory;
mod receiver;
#[allow(unsafe_code, reason = "a memory can lend its bytes for writing in place")]
pub mod ring;
mod sender;
mod sleep;

pub use error::Error;
pub use memory::RingMemory;
pub use receiver::Receiver;
pub use ring::MAX_MESSAGE;
pub use sender::Sender;
pub use sleep::{Peer, Sleep, Threads};

/// Creates a ring on the heap for two threads of this process, and returns its two sides. The ring holds at least
/// `bytes` bytes, its size rounded up to a power of two; each message takes 8 bytes more than its own, rounded up to a
/// multiple of
/// 64. [`Sender::longest`] tells the length of the longest message, some three eighths of the ring.
///
/// ```
/// let (mut sender, mut receiver) = strait_ring::channel(4096);
/// let thread = std::thread::spawn(move || sender.send(b"hello"));
/// let mut message = Vec::new();
/// receiver.recv(&mut message)?;
/// assert_eq!(message, b"hello");
/// # thread.join().unwrap()?;
/// # Ok::<(), strait_ring::Error>(())
/// ```
#[must_use]
pub fn channel(bytes: usize) -> (Sender<Threads>, Receiver<Threads>) {
    let [ours, theirs] = RingMemory::on_heap(bytes);
    let threads = Threads::default();
    (Sender::new(ours, threads.clone()), Receiver::new(theirs, threads))
}
