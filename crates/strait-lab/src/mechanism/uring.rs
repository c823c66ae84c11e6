//! A Unix seqpacket socket driven through io_uring: several operations in one system call.
//!
//! A side that sends a request and waits for the answer submits both operations at once and sleeps in the kernel: one
//! system call instead of two. The answering side cannot combine the calls, because it does not know whether another
//! request follows. While an operation is in flight, the kernel uses the buffer even if the caller is gone. So the
//! buffers belong to the ring, and each message is copied once more in each process. With polling, an operation that
//! would block is submitted again.
//!
//! Several sockets need no `epoll`. The ring has a receive operation in progress for each socket. One system call
//! submits the sends to all and waits for the first answer.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use rustix::net::SocketType;

use super::{Ability, End, Hub, Opened, Side, exactly, meeting};
use crate::shape::Shape;
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// The tag of a completed send operation.
const SENT: u64 = 1;
/// The tag of a completed receive operation.
const RECEIVED: u64 = 2;
/// The number of low bits of a completion's user data for the tag; the index of the socket is in the bits above.
const WHERE: u32 = 8;

/// The socket's index among the ring's registered files.
const SOCKET: types::Fixed = types::Fixed(0);

/// Memory for the kernel until the process ends, and therefore never freed.
#[derive(Debug)]
struct Place(&'static mut [u8]);

impl Place {
    fn new(len: usize) -> Self {
        Self(Box::leak(vec![0; len].into_boxed_slice()))
    }
}

/// One process's end of a socket, with its own ring.
#[derive(Debug)]
pub(crate) struct Uring {
    ring: Debugless,
    socket: OwnedFd,
    flags: i32,
    outgoing: Place,
    incoming: Place,
    /// The number of bytes in `outgoing` in flight, or to be sent by the next system call.
    sending: Option<usize>,
    /// Whether every send of this side is followed by a receive.
    asks: bool,
}

/// An io_uring instance with a `Debug` output, its name.
struct Debugless(IoUring);

impl std::fmt::Debug for Debugless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IoUring")
    }
}

/// Returns an io_uring instance with room for `room` operations at a time.
fn ring(room: u32) -> std::io::Result<IoUring> {
    // The kernel does a thread's work at the thread's request, without interrupting the thread (since Linux 6.1).
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(room).or_else(|_| IoUring::new(room))
}

impl End for Uring {
    const NAME: &'static str = "io-uring";
    const TITLE: &'static str = "Unix seqpacket, io_uring";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Hub];
    const MOST: usize = 64 << 10;

    fn missing() -> Option<String> {
        let error = ring(4).err()?;
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
        Some(match (disabled.trim(), error.raw_os_error()) {
            (level @ ("1" | "2"), _) => format!("kernel.io_uring_disabled is {level}"),
            (_, Some(libc::ENOSYS)) => "this kernel has no io_uring (CONFIG_IO_URING)".to_owned(),
            (_, Some(libc::EPERM)) => "io_uring is refused, perhaps by a sandbox".to_owned(),
            _ => format!("io_uring_setup: {error}"),
        })
    }

    fn open(_: &Work) -> Result<Opened> {
        let (first, second) = meeting::pair(SocketType::SEQPACKET)?;
        Ok(Opened { first: vec![first], second: vec![second] })
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [socket] = exactly(descriptors)?;
        let ring = ring(4).doing("io_uring_setup")?;
        ring.submitter().register_files(&[socket.as_raw_fd()]).doing("io_uring_register")?;
        let polled = if work.wait == Wait::Spin { libc::MSG_DONTWAIT } else { 0 };
        let room = work.size.max(crate::shape::SMALLEST);
        Ok(Self {
            ring: Debugless(ring),
            socket,
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
            got => Err(Trouble::new(format!("a message of {got} bytes arrived"))),
        }
    }

    fn hub(ends: Vec<Self>, _: &Work) -> Result<Box<dyn Hub>> {
        let ring = ring(2 * ends.len() as u32).doing("io_uring_setup")?;
        let sockets: Vec<_> = ends.iter().map(|end| end.socket.as_raw_fd()).collect();
        ring.submitter().register_files(&sockets).doing("io_uring_register")?;
        let (asked, answered) = (vec![false; ends.len()], VecDeque::with_capacity(ends.len()));
        Ok(Box::new(Several { ring: Debugless(ring), ends, asked, answered }))
    }
}

/// A hub of several sockets in one ring. The rings of the single ends are not used any more, but their buffers are.
#[derive(Debug)]
struct Several {
    ring: Debugless,
    ends: Vec<Uring>,
    /// For each end, whether a receive operation is in progress or its message was not taken yet.
    asked: Vec<bool>,
    /// Received messages that were not taken yet: the index of the end, and the number of bytes.
    answered: VecDeque<(usize, usize)>,
}

impl Hub for Several {
    /// Queues a send operation for the next system call. A caller with questions for several ends makes the call when
    /// waiting for the answers.
    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        while self.ends[to].sending.is_some() {
            self.step(1)?;
        }
        let end = &mut self.ends[to];
        end.outgoing.0.get_mut(..message.len()).ok_or_else(too_long)?.copy_from_slice(message);
        self.push_send(to, message.len())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        loop {
            if let Some((from, got)) = self.answered.pop_front() {
                self.asked[from] = false;
                if got != buffer.len() {
                    return Err(Trouble::new(format!("a message of {got} bytes arrived")));
                }
                buffer.copy_from_slice(&self.ends[from].incoming.0[..got]);
                return Ok(Some(from));
            }
            for from in 0..self.ends.len() {
                if !self.asked[from] {
                    self.push_recv(from)?;
                }
            }
            let sending = self.ends.iter().filter(|end| end.sending.is_some()).count();
            // Polled, every operation completes at once, whether it did something or not.
            let polled = self.ends.iter().any(|end| end.flags & libc::MSG_DONTWAIT != 0);
            self.step(sending + if polled { self.ends.len() } else { 1 })?;
        }
    }
}

impl Several {
    fn push_send(&mut self, to: usize, len: usize) -> Result<()> {
        let end = &mut self.ends[to];
        end.sending = Some(len);
        let place = end.outgoing.0.as_ptr();
        let entry = opcode::Send::new(types::Fixed(to as u32), place, len as u32).flags(end.flags);
        self.push(&entry.build().user_data(SENT | (to as u64) << WHERE))
    }

    fn push_recv(&mut self, from: usize) -> Result<()> {
        self.asked[from] = true;
        let end = &mut self.ends[from];
        let (place, room) = (end.incoming.0.as_mut_ptr(), end.incoming.0.len());
        let entry = opcode::Recv::new(types::Fixed(from as u32), place, room as u32).flags(end.flags);
        self.push(&entry.build().user_data(RECEIVED | (from as u64) << WHERE))
    }

    fn push(&mut self, entry: &squeue::Entry) -> Result<()> {
        // SAFETY: both operations use memory that stays until the process ends, within its bounds. This process does
        // not touch the memory while the operation is in progress: `sending` and `asked` are set until then.
        unsafe { self.ring.0.submission().push(entry) }.doing("queueing an operation")
    }

    /// Submits the queued operations, and waits until `enough` operations are completed.
    fn step(&mut self, enough: usize) -> Result<()> {
        match self.ring.0.submit_and_wait(enough) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error).doing("io_uring_enter"),
        }
        let mut again = Vec::new();
        for done in self.ring.0.completion() {
            let result = done.result();
            let busy = result == -libc::EAGAIN || result == -libc::EINTR;
            let (which, at) = (done.user_data() & ((1 << WHERE) - 1), (done.user_data() >> WHERE) as usize);
            match (which, busy) {
                (SENT, true) => again.push(at),
                (SENT, false) if Some(result as usize) == self.ends[at].sending => self.ends[at].sending = None,
                (RECEIVED, true) => self.asked[at] = false,
                (RECEIVED, false) if result > 0 => self.answered.push_back((at, result as usize)),
                (RECEIVED, false) if result == 0 => {
                    return Err(Trouble::new("the other end of the socket is closed"));
                }
                _ => return Err(Errno::from_raw_os_error(-result)).doing("an operation of the ring"),
            }
        }
        for to in again {
            if let Some(len) = self.ends[to].sending {
                self.push_send(to, len)?;
            }
        }
        Ok(())
    }
}

#[cold]
fn too_long() -> Trouble {
    Trouble::new("the message is longer than the ring's buffers")
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
        // SAFETY: both operations use memory that stays until the process ends, within its bounds. This process does
        // not touch the memory while the operation is in progress: `run` waits for all operations.
        unsafe { self.ring.0.submission().push(entry) }.doing("queueing an operation")
    }

    /// Submits the queued operations, and waits until all of them are completed. `receiving` is the number of bytes
    /// to receive, if any. Returns the number of received bytes, or 0.
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
