//! POSIX message queues, and POSIX semaphores in shared memory.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use super::outcome;
use super::shared::Shared;

/// The size in bytes of the largest message in a queue, with the default of `fs.mqueue.msgsize_max`.
pub(crate) const QUEUE_MOST: usize = 8192;

/// Creates the queue `name`, which must not exist, for `count` messages of up to `size` bytes. The name stays until
/// [`unlink_queue`]. If `polled` is set, calls on the queue do not block.
pub(crate) fn make_queue(name: &CStr, count: usize, size: usize, polled: bool) -> Result<OwnedFd, Errno> {
    // SAFETY: a structure of numbers, for which all zeros are valid.
    let mut about: libc::mq_attr = unsafe { std::mem::zeroed() };
    about.mq_maxmsg = count as _;
    about.mq_msgsize = size as _;
    let flags = libc::O_CREAT | libc::O_EXCL | access(polled);
    let mode: libc::mode_t = 0o600;
    // SAFETY: a name that ends in a zero byte, and the two further arguments that O_CREAT requires.
    own(unsafe { libc::mq_open(name.as_ptr(), flags, mode, &raw mut about) })
}

/// Opens the queue `name`. If `polled` is set, calls on the queue do not block.
pub(crate) fn open_queue(name: &CStr, polled: bool) -> Result<OwnedFd, Errno> {
    // SAFETY: a name that ends in a zero byte; without O_CREAT no other argument is read.
    own(unsafe { libc::mq_open(name.as_ptr(), access(polled)) })
}

fn access(polled: bool) -> i32 {
    libc::O_RDWR | libc::O_CLOEXEC | if polled { libc::O_NONBLOCK } else { 0 }
}

fn own(queue: libc::mqd_t) -> Result<OwnedFd, Errno> {
    let queue = outcome(queue)?;
    // SAFETY: on Linux a queue's number is a descriptor, which was just opened; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(queue) })
}

/// Removes the name of a queue. The queue itself is freed when no process has the queue open.
pub(crate) fn unlink_queue(name: &CStr) -> Result<(), Errno> {
    // SAFETY: a name that ends in a zero byte.
    outcome(unsafe { libc::mq_unlink(name.as_ptr()) }).map(drop)
}

/// Sends `message` to `queue`; `EAGAIN` if a polled queue is full.
#[inline]
pub(crate) fn send(queue: BorrowedFd<'_>, message: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads the bytes of a valid slice.
    outcome(unsafe { libc::mq_send(queue.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) }).map(drop)
}

/// Receives the oldest message and returns its size in bytes. `buffer` must have room for the largest message that
/// the queue takes.
#[inline]
pub(crate) fn recv(queue: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    let (to, room) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: the kernel writes into a valid slice; the priority is not requested.
    outcome(unsafe { libc::mq_receive(queue.as_raw_fd(), to, room, ptr::null_mut()) }).map(|got| got as usize)
}

/// A semaphore in shared memory, which several processes use.
#[derive(Debug)]
pub(crate) struct Semaphore<'a>(*mut libc::sem_t, PhantomData<&'a Shared>);

/// The size of a semaphore in bytes.
pub(crate) const SEMAPHORE: usize = size_of::<libc::sem_t>();

impl<'a> Semaphore<'a> {
    /// Returns the semaphore that was [made](Self::make) at `offset`.
    #[inline]
    pub(crate) fn at(memory: &'a Shared, offset: usize) -> Self {
        assert!(offset.is_multiple_of(align_of::<libc::sem_t>()));
        Self(memory.place(offset, SEMAPHORE).cast(), PhantomData)
    }

    /// Initializes a semaphore with the value 0 at `offset`, before any process uses it.
    pub(crate) fn make(memory: &'a Shared, offset: usize) -> Result<Self, Errno> {
        let semaphore = Self::at(memory, offset);
        // SAFETY: an aligned place with room for a semaphore, which no process uses yet; it is marked as shared.
        outcome(unsafe { libc::sem_init(semaphore.0, 1, 0) })?;
        Ok(semaphore)
    }

    /// Increments the semaphore, and wakes a waiting thread if there is one.
    #[inline]
    pub(crate) fn post(&self) -> Result<(), Errno> {
        // SAFETY: the process that made the semaphore gave the memory to the other process afterwards. The semaphore
        // exists as long as the memory, which outlives `self`.
        outcome(unsafe { libc::sem_post(self.0) }).map(drop)
    }

    /// Waits until the semaphore is above 0, and decrements it.
    #[inline]
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        // SAFETY: the process that made the semaphore gave the memory to the other process afterwards. The semaphore
        // exists as long as the memory, which outlives `self`.
        outcome(unsafe { libc::sem_wait(self.0) }).map(drop)
    }

    /// Decrements the semaphore if it is above 0; `EAGAIN` if it is 0.
    #[inline]
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        // SAFETY: the process that made the semaphore gave the memory to the other process afterwards. The semaphore
        // exists as long as the memory, which outlives `self`.
        outcome(unsafe { libc::sem_trywait(self.0) }).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::Semaphore;
    use crate::sys::shared::Shared;

    #[test]
    fn a_semaphore_counts_across_mappings() {
        let memory = Shared::create(4096).unwrap();
        let (one, two) = (Shared::map(&memory, 4096).unwrap(), Shared::map(&memory, 4096).unwrap());
        let (one, two) = (Semaphore::make(&one, 128).unwrap(), Semaphore::at(&two, 128));
        assert_eq!(two.try_wait(), Err(Errno::AGAIN));
        one.post().unwrap();
        two.wait().unwrap();
        assert_eq!(one.try_wait(), Err(Errno::AGAIN));
    }
}
