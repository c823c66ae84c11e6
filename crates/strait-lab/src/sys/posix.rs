//! POSIX queues, and POSIX semaphores in shared memory.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use super::outcome;
use crate::pair::shared::Shared;

/// The largest message of a queue for which nobody changed `fs.mqueue.msgsize_max`.
pub(crate) const QUEUE_MOST: usize = 8192;

/// Makes the queue `name`, which must not exist, for `count` messages of up to `size` bytes. The name stays until
/// [`unlink_queue`]. Calls on it do not wait if it is `polled`.
pub(crate) fn make_queue(name: &CStr, count: usize, size: usize, polled: bool) -> Result<OwnedFd, Errno> {
    // SAFETY: a structure of numbers, for which all zeros are valid.
    let mut about: libc::mq_attr = unsafe { std::mem::zeroed() };
    about.mq_maxmsg = count as _;
    about.mq_msgsize = size as _;
    let flags = libc::O_CREAT | libc::O_EXCL | access(polled);
    let mode: libc::mode_t = 0o600;
    // SAFETY: a name that ends in a zero byte, and with O_CREAT the two further arguments that belong to it.
    own(unsafe { libc::mq_open(name.as_ptr(), flags, mode, &raw mut about) })
}

/// Opens the queue `name`.
pub(crate) fn open_queue(name: &CStr, polled: bool) -> Result<OwnedFd, Errno> {
    // SAFETY: a name that ends in a zero byte; without O_CREAT nothing else is read.
    own(unsafe { libc::mq_open(name.as_ptr(), access(polled)) })
}

fn access(polled: bool) -> i32 {
    libc::O_RDWR | libc::O_CLOEXEC | if polled { libc::O_NONBLOCK } else { 0 }
}

fn own(queue: libc::mqd_t) -> Result<OwnedFd, Errno> {
    let queue = outcome(queue)?;
    // SAFETY: on Linux a queue's number is a descriptor, and this one was just opened and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(queue) })
}

/// Removes the name of a queue. The queue itself goes when nobody has it open.
pub(crate) fn unlink_queue(name: &CStr) -> Result<(), Errno> {
    // SAFETY: a name that ends in a zero byte.
    outcome(unsafe { libc::mq_unlink(name.as_ptr()) }).map(drop)
}

/// Sends `message`.
#[inline]
pub(crate) fn send(queue: BorrowedFd<'_>, message: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads the bytes of a valid slice.
    outcome(unsafe { libc::mq_send(queue.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) }).map(drop)
}

/// Takes the oldest message; how many bytes it had. `buffer` must have room for the largest that the queue takes.
#[inline]
pub(crate) fn recv(queue: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    let (to, room) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: the kernel writes into a valid slice, and does not want the priority's place.
    outcome(unsafe { libc::mq_receive(queue.as_raw_fd(), to, room, ptr::null_mut()) }).map(|got| got as usize)
}

/// A semaphore in shared memory, for processes.
#[derive(Debug)]
pub(crate) struct Semaphore<'a>(*mut libc::sem_t, PhantomData<&'a Shared>);

/// How much memory a semaphore needs.
pub(crate) const SEMAPHORE: usize = size_of::<libc::sem_t>();

impl<'a> Semaphore<'a> {
    /// The semaphore that was [made](Self::make) at `offset`.
    #[inline]
    pub(crate) fn at(memory: &'a Shared, offset: usize) -> Self {
        assert!(offset.is_multiple_of(align_of::<libc::sem_t>()));
        Self(memory.place(offset, SEMAPHORE).cast(), PhantomData)
    }

    /// Makes a semaphore of zero at `offset`, before anybody uses it.
    pub(crate) fn make(memory: &'a Shared, offset: usize) -> Result<Self, Errno> {
        let semaphore = Self::at(memory, offset);
        // SAFETY: an aligned place with room for a semaphore, which nobody uses yet; it is marked as shared.
        outcome(unsafe { libc::sem_init(semaphore.0, 1, 0) })?;
        Ok(semaphore)
    }

    /// Adds one, and wakes whoever waits for it.
    #[inline]
    pub(crate) fn post(&self) -> Result<(), Errno> {
        // SAFETY: made before, by the process that then told the other of this memory. It stays as long as the memory.
        outcome(unsafe { libc::sem_post(self.0) }).map(drop)
    }

    /// Takes one away, and waits until there is one.
    #[inline]
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        // SAFETY: as for `post`.
        outcome(unsafe { libc::sem_wait(self.0) }).map(drop)
    }

    /// Takes one away if there is one.
    #[inline]
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        // SAFETY: as for `post`.
        outcome(unsafe { libc::sem_trywait(self.0) }).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::Semaphore;
    use crate::pair::shared::Shared;

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
