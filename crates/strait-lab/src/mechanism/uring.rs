//! A Unix seqpacket socket driven through io_uring: several operations in one system call.
//!
//! Who asks and waits for the answer gives both to the kernel at once and sleeps there, one system call instead of two. Who
//! answers cannot: it does not know whether anything follows. The buffers are the ring's own as long as an operation
//! is under way, since the kernel uses them whatever becomes of the caller; so each message is copied once more in each
//! process. Polled, an operation that would have to wait is given again.

use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use rustix::net::SocketType;

use super::{Ability, End, Opened, Side, exactly, meeting};
use crate::shape::Shape;
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// Which operation was completed.
const SENT: u64 = 1;
const RECEIVED: u64 = 2;

/// The socket's place among the ring's registered files.
const SOCKET: types::Fixed = types::Fixed(0);

/// Memory that the kernel may use at any time until the process ends, and that is therefore never given back.
#[derive(Debug)]
struct Place(&'static mut [u8]);

impl Place {
    fn new(len: usize) -> Self {
        Self(Box::leak(vec![0; len].into_boxed_slice()))
    }
}

/// One process's end.
#[derive(Debug)]
pub(crate) struct Uring {
    ring: Debugless,
    _socket: OwnedFd,
    flags: i32,
    outgoing: Place,
    incoming: Place,
    /// How much of `outgoing` is under way, or waits for the next call.
    sending: Option<usize>,
    /// Whether whoever sends certainly receives next.
    asks: bool,
}

/// A ring, which has nothing to show.
struct Debugless(IoUring);

impl std::fmt::Debug for Debugless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IoUring")
    }
}

fn ring() -> std::io::Result<IoUring> {
    // What is done on behalf of this thread is done when it asks, and not by interrupting it. Since Linux 6.1.
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(4).or_else(|_| IoUring::new(4))
}

impl End for Uring {
    const NAME: &'static str = "io-uring";
    const TITLE: &'static str = "Unix seqpacket, io_uring";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Stream];
    const MOST: usize = 64 << 10;

    fn missing() -> Option<String> {
        let error = ring().err()?;
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
        Some(match (disabled.trim(), error.raw_os_error()) {
            (level @ ("1" | "2"), _) => format!("kernel.io_uring_disabled is {level}"),
            (_, Some(libc::ENOSYS)) => "this kernel has no io_uring (CONFIG_IO_URING)".to_owned(),
            (_, Some(libc::EPERM)) => "io_uring is refused, perhaps by a sandbox's filter".to_owned(),
            _ => format!("io_uring_setup: {error}"),
        })
    }

    fn open(_: &Work) -> Result<Opened> {
        let (first, second) = meeting::pair(SocketType::SEQPACKET)?;
        Ok(Opened { first: vec![first], second: vec![second] })
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [socket] = exactly(descriptors)?;
        let ring = ring().doing("io_uring_setup")?;
        ring.submitter().register_files(&[socket.as_raw_fd()]).doing("io_uring_register")?;
        let polled = if work.wait == Wait::Spin { libc::MSG_DONTWAIT } else { 0 };
        let room = work.size.max(crate::shape::SMALLEST);
        Ok(Self {
            ring: Debugless(ring),
            _socket: socket,
            flags: libc::MSG_NOSIGNAL | polled,
            outgoing: Place::new(room),
            incoming: Place::new(room),
            sending: None,
            asks: side == Side::First && matches!(work.shape, Shape::PingPong { .. }),
        })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.outgoing.0.get_mut(..message.len()).ok_or_else(too_long)?.copy_from_slice(message);
        self.push_send(message.len())?;
        if self.asks { Ok(()) } else { self.run(None).map(drop) }
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        if buffer.len() > self.incoming.0.len() {
            return Err(too_long());
        }
        self.push_recv(buffer.len())?;
        match self.run(Some(buffer.len()))? {
            0 => Err(Trouble::new("the other end of the socket is closed")),
            got if got == buffer.len() => {
                buffer.copy_from_slice(&self.incoming.0[..got]);
                Ok(())
            }
            got => Err(Trouble::new(format!("a message of {got} bytes came"))),
        }
    }
}

#[cold]
fn too_long() -> Trouble {
    Trouble::new("longer than the ring's buffers")
}

impl Uring {
    fn push_send(&mut self, len: usize) -> Result<()> {
        self.sending = Some(len);
        let place = self.outgoing.0.as_ptr();
        let entry = opcode::Send::new(SOCKET, place, len as u32).flags(self.flags).build().user_data(SENT);
        self.push(&entry)
    }

    fn push_recv(&mut self, len: usize) -> Result<()> {
        let place = self.incoming.0.as_mut_ptr();
        let entry = opcode::Recv::new(SOCKET, place, len as u32).flags(self.flags).build().user_data(RECEIVED);
        self.push(&entry)
    }

    #[inline]
    fn push(&mut self, entry: &squeue::Entry) -> Result<()> {
        // SAFETY: both operations use memory that stays until the process ends, within its bounds. It is not touched from
        // here while the operation is under way: `run` waits for all of them.
        unsafe { self.ring.0.submission().push(entry) }.doing("the ring's queue")
    }

    /// Gives the kernel what was pushed and waits until all of it is done. How much was received, if something was to be.
    #[inline]
    fn run(&mut self, mut receiving: Option<usize>) -> Result<usize> {
        let mut received = 0;
        loop {
            let pending = usize::from(self.sending.is_some()) + usize::from(receiving.is_some());
            if pending == 0 {
                return Ok(received);
            }
            match self.ring.0.submit_and_wait(pending) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error).doing("io_uring_enter"),
            }
            let mut again = [None; 2];
            for done in self.ring.0.completion() {
                let result = done.result();
                let busy = result == -libc::EAGAIN || result == -libc::EINTR;
                match (done.user_data(), busy) {
                    (SENT, true) => again[0] = self.sending,
                    (SENT, false) if Some(result as usize) == self.sending => self.sending = None,
                    (RECEIVED, true) => again[1] = receiving,
                    (RECEIVED, false) if result >= 0 => {
                        received = result as usize;
                        receiving = None;
                    }
                    _ => return Err(Errno::from_raw_os_error(-result)).doing("an operation of the ring"),
                }
            }
            if let Some(len) = again[0] {
                self.push_send(len)?;
            }
            if let Some(len) = again[1] {
                self.push_recv(len)?;
            }
        }
    }
}
