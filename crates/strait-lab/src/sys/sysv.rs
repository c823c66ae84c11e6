//! System V message queues, shared memory and semaphores.
//!
//! All three have numbers as names. The names stay in the kernel until a process removes them, whatever processes die
//! meanwhile. The mechanisms' `keeper` removes them here.

use std::ptr::{self, NonNull};

use rustix::io::Errno;

use super::{last, outcome};

/// The access mode: readable and writable by this user only.
const MINE: i32 = 0o600;

/// The size in bytes of the largest message in a queue, with the default of `kernel.msgmax`.
pub(crate) const QUEUE_MOST: usize = 8192;

/// A message as the kernel requires it: a type above zero, followed by the bytes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Letter {
    kind: libc::c_long,
    bytes: [u8; QUEUE_MOST],
}

impl Letter {
    /// Returns an empty message buffer.
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self { kind: 1, bytes: [0; QUEUE_MOST] })
    }
}

/// Whether a call may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The call blocks.
    Wait,
    /// The call does not block: it fails with `EAGAIN`, or with `ENOMSG` for an empty queue.
    Now,
}

impl Patience {
    fn flag(self) -> i32 {
        if self == Self::Now { libc::IPC_NOWAIT } else { 0 }
    }
}

/// Creates a queue, which stays until [`remove_queue`]. Returns the queue's number.
pub(crate) fn make_queue() -> Result<i32, Errno> {
    // SAFETY: the call takes and returns numbers only.
    outcome(unsafe { libc::msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | MINE) })
}

/// Removes a queue. Threads that wait there wake with `EIDRM`.
pub(crate) fn remove_queue(queue: i32) -> Result<(), Errno> {
    // SAFETY: this command reads and writes nothing through the pointer.
    outcome(unsafe { libc::msgctl(queue, libc::IPC_RMID, ptr::null_mut()) }).map(drop)
}

/// Sends `message`. The message is first copied into `letter`, since the kernel requires the type before the message.
#[inline]
pub(crate) fn send(queue: i32, letter: &mut Letter, message: &[u8], patience: Patience) -> Result<(), Errno> {
    letter.bytes.get_mut(..message.len()).ok_or(Errno::INVAL)?.copy_from_slice(message);
    // SAFETY: the kernel reads a type and `message.len()` bytes, which were just copied into `letter`.
    let sent = unsafe { libc::msgsnd(queue, ptr::from_ref(letter).cast(), message.len(), patience.flag()) };
    outcome(sent).map(drop)
}

/// Receives the oldest message into `buffer`, and returns the size in bytes.
#[inline]
pub(crate) fn recv(queue: i32, letter: &mut Letter, buffer: &mut [u8], patience: Patience) -> Result<usize, Errno> {
    let room = buffer.len().min(QUEUE_MOST);
    // SAFETY: the kernel writes a type and at most `room` bytes, for which `letter` has room.
    let got = unsafe { libc::msgrcv(queue, ptr::from_mut(letter).cast(), room, 0, patience.flag()) };
    let got = outcome(got)? as usize;
    buffer[..got].copy_from_slice(&letter.bytes[..got]);
    Ok(got)
}

/// Creates `len` bytes of memory. The memory stays until [`remove_memory`], and then as long as a process has it
/// attached. Returns the memory's number.
pub(crate) fn make_memory(len: usize) -> Result<i32, Errno> {
    // SAFETY: the call takes and returns numbers only.
    outcome(unsafe { libc::shmget(libc::IPC_PRIVATE, len, libc::IPC_CREAT | MINE) })
}

/// Removes memory. The kernel frees the memory as soon as no process has it attached. On Linux processes can still
/// attach it until then.
pub(crate) fn remove_memory(memory: i32) -> Result<(), Errno> {
    // SAFETY: this command reads and writes nothing through the pointer.
    outcome(unsafe { libc::shmctl(memory, libc::IPC_RMID, ptr::null_mut()) }).map(drop)
}

/// Returns the size of the memory in bytes.
pub(crate) fn memory_len(memory: i32) -> Result<usize, Errno> {
    // SAFETY: a structure of numbers, for which all zeros are valid.
    let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one such structure.
    outcome(unsafe { libc::shmctl(memory, libc::IPC_STAT, &raw mut about) })?;
    Ok(about.shm_segsz)
}

/// Attaches memory at an address that the kernel chooses, until [`detach`].
pub(crate) fn attach(memory: i32) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing that exists.
    let base = unsafe { libc::shmat(memory, ptr::null(), 0) };
    if base.addr() == usize::MAX {
        return Err(last());
    }
    Ok(NonNull::new(base.cast()).expect("memory is never attached at address zero"))
}

/// Detaches memory.
///
/// # Safety
/// `base` was returned by [`attach`], and the memory is no longer used.
pub(crate) unsafe fn detach(base: NonNull<u8>) -> Result<(), Errno> {
    // SAFETY: the caller keeps the contract of this function, which equals that of `shmdt`.
    outcome(unsafe { libc::shmdt(base.as_ptr().cast()) }).map(drop)
}

/// Creates a set of `count` semaphores, all 0, which stays until [`remove_semaphores`]. Returns the set's number.
pub(crate) fn make_semaphores(count: usize) -> Result<i32, Errno> {
    // SAFETY: the call takes and returns numbers only.
    outcome(unsafe { libc::semget(libc::IPC_PRIVATE, count as i32, libc::IPC_CREAT | MINE) })
}

/// Removes a set of semaphores. Threads that wait there wake with `EIDRM`.
pub(crate) fn remove_semaphores(set: i32) -> Result<(), Errno> {
    // SAFETY: this command takes no further argument.
    outcome(unsafe { libc::semctl(set, 0, libc::IPC_RMID) }).map(drop)
}

/// Adds `by` to the value of the semaphore with this number in the set. If the value would fall below 0, the call
/// waits until it does not, or fails with `EAGAIN` under [`Patience::Now`].
#[inline]
pub(crate) fn change(set: i32, number: usize, by: i16, patience: Patience) -> Result<(), Errno> {
    let mut change = libc::sembuf { sem_num: number as u16, sem_op: by, sem_flg: patience.flag() as i16 };
    // SAFETY: the kernel reads one such structure.
    outcome(unsafe { libc::semop(set, &raw mut change, 1) }).map(drop)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::{Letter, Patience, change, make_queue, make_semaphores, recv, remove_queue, remove_semaphores, send};

    #[test]
    fn a_queue_carries_messages_until_it_is_removed() {
        let queue = make_queue().unwrap();
        let mut letter = Letter::new();
        let mut buffer = [0; 8];
        assert_eq!(recv(queue, &mut letter, &mut buffer, Patience::Now), Err(Errno::NOMSG));
        send(queue, &mut letter, b"message", Patience::Now).unwrap();
        assert_eq!(recv(queue, &mut letter, &mut buffer, Patience::Wait), Ok(7));
        assert_eq!(&buffer, b"message\0");
        remove_queue(queue).unwrap();
        assert_eq!(send(queue, &mut letter, b"message", Patience::Now), Err(Errno::INVAL));
    }

    #[test]
    fn semaphores_count() {
        let set = make_semaphores(2).unwrap();
        change(set, 1, 2, Patience::Now).unwrap();
        assert_eq!(change(set, 0, -1, Patience::Now), Err(Errno::AGAIN));
        change(set, 1, -2, Patience::Wait).unwrap();
        remove_semaphores(set).unwrap();
    }
}
