//! Signals in memory shared by several processes, and bells by which the processes wake each other.
//!
//! The signals of both ends are in one page of a memfd. A *bell* is a pair of sockets of an end. A process that changes
//! the signals sends a byte into one socket. Epoll wakes every process that watches the other socket, since epoll
//! reports each arrival anew (edge-triggered), also beside unread bytes. A process must not read the byte that woke it:
//! epoll drops a report if the socket is empty when the process collects the report, so another process would sleep on.
//! So bytes stay until there are many; a process that removes them sends a new byte. An end has both sockets of its own
//! bell, and the sending socket of its other end's bell. So when all processes of an end are gone, its bell hangs up:
//! the kernel counts the references.
//!
//! A hostile process with a handle of an event, with any rights, can set its signals and wake others for nothing. The
//! page cannot shrink, and its content is a word without pointers. But such a process can block a thread that reads
//! the bell: Linux lets one process at a time copy from a socket, even with `MSG_DONTWAIT`, and the hostile process may
//! copy into a page of its own that never arrives. Or it sends a descriptor through the bell, whose close takes long.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::abi::*;
use crate::channel::wire::UnclaimedFd;
use crate::status::{Result, Status};
use crate::vmo::{check_file_size_limit, is_plain_memory};

/// Size of the shared page in bytes.
const PAGE: usize = 4096;
/// Distance in bytes between the signals of the two ends.
const STRIDE: usize = 64;
/// Number of reads that empty a bell; remaining bytes only repeat the news.
const HEARD: usize = 16;
/// Number of unread bytes from which on a listening process empties a bell. The kernel has room for some 270.
const CROWD: u64 = 64;

/// The identity of a page: device and inode of its memfd.
pub(super) type Identity = (u64, u64);

/// The shared part of an end.
pub(super) struct Shared {
    page: Page,
    memory: OwnedFd,
    identity: Identity,
    side: usize,
    bell: Bell,
    /// The sending socket of the other end's bell; `None` for an event.
    peer: Option<OwnedFd>,
    failed: Failed,
}

/// The bells at which a byte is missing, because the kernel had no memory for it.
#[derive(Default)]
struct Failed {
    /// The end's own bell.
    own: AtomicBool,
    /// The bell of the other end.
    peer: AtomicBool,
}

/// The shared part of an end that has arrived, with checked and unclaimed descriptors.
pub(crate) struct Arrived {
    pub(super) pair: bool,
    pub(super) side: usize,
    pub(super) identity: Identity,
    page: Page,
    memory: UnclaimedFd,
    rope: UnclaimedFd,
    ear: UnclaimedFd,
    peer: Option<UnclaimedFd>,
}

impl Arrived {
    /// Checks the descriptors and the number `side` of an end, sent by another process.
    ///
    /// # Errors
    /// `PEER_CLOSED` if they are not those of an end.
    pub(crate) fn new(pair: bool, side: u32, cargo: Vec<UnclaimedFd>) -> Result<Self> {
        if side > u32::from(pair) {
            return Err(Status::PEER_CLOSED);
        }
        let mut cargo = cargo.into_iter();
        let mut next = || cargo.next().ok_or(Status::PEER_CLOSED);
        let memory = next()?;
        let seals = rustix::fs::fcntl_get_seals(&memory).map_err(|_| Status::PEER_CLOSED)?;
        if !is_plain_memory(&memory)?
            || !seals.contains(SealFlags::SHRINK)
            || rustix::fs::fstat(&memory)?.st_size < PAGE as i64
        {
            return Err(Status::PEER_CLOSED);
        }
        let mut socket = || next().and_then(|fd| fd.check_socket(SocketType::STREAM).map(|()| fd));
        let (rope, ear) = (socket()?, socket()?);
        let peer = if pair { Some(socket()?) } else { None };
        let (page, identity) = (Page::map(&memory)?, identify(&memory)?);
        Ok(Self { pair, side: side as usize, identity, page, memory, rope, ear, peer })
    }

    /// Returns the shared part, which owns the descriptors.
    pub(super) fn claim(self) -> Shared {
        let Self { side, identity, page, .. } = self;
        let bell = Bell { rope: self.rope.claim(), ear: self.ear.claim() };
        let (memory, peer) = (self.memory.claim(), self.peer.map(UnclaimedFd::claim));
        Shared { page, memory, identity, side, bell, peer, failed: Failed::default() }
    }
}

/// A pair of sockets by which processes wake each other.
struct Bell {
    /// The sending socket.
    rope: OwnedFd,
    /// The receiving socket.
    ear: OwnedFd,
}

impl Bell {
    fn new() -> Result<Self> {
        let (rope, ear) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { rope, ear })
    }
}

/// A mapped page with the signals of both ends.
struct Page(NonNull<u8>);

// SAFETY: the page is accessed only through atomics.
unsafe impl Send for Page {}
// SAFETY: the page is accessed only through atomics.
unsafe impl Sync for Page {}

impl Page {
    fn map(memory: impl AsFd) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: makes a new mapping at an address chosen by the kernel, of a memfd with at least a page, sealed
        // against shrinking.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, access, MapFlags::SHARED, memory, 0) }?;
        Ok(Self(NonNull::new(address.cast()).ok_or(Status::NO_MEMORY)?))
    }

    /// Returns the word with the signals of one end.
    fn word(&self, side: usize) -> &AtomicU32 {
        // SAFETY: the word is inside of the page and aligned. It is mapped as long as `self` lives, and all processes
        // use it as an atomic.
        unsafe { AtomicU32::from_ptr(self.0.add(side * STRIDE).cast().as_ptr()) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `map` has made the mapping, and no reference into it is left.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

impl Shared {
    /// Makes the shared part of this end; for an eventpair also the shared part of the other end.
    pub(super) fn new(pair: bool, side: usize) -> Result<(Self, Option<Self>)> {
        let memory = rustix::fs::memfd_create("zx-event", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        check_file_size_limit(PAGE as u64)?;
        rustix::fs::ftruncate(&memory, PAGE as u64)?;
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let identity = identify(&memory)?;
        let bell = Bell::new()?;
        if !pair {
            let page = Page::map(&memory)?;
            return Ok((Self { page, memory, identity, side, bell, peer: None, failed: Failed::default() }, None));
        }
        let other = Bell::new()?;
        let theirs = Self {
            page: Page::map(&memory)?,
            memory: copy(&memory)?,
            identity,
            side: 1 - side,
            peer: Some(copy(&bell.rope)?),
            bell: Bell { rope: copy(&other.rope)?, ear: other.ear },
            failed: Failed::default(),
        };
        let (page, peer) = (Page::map(&memory)?, Some(other.rope));
        let ours = Self { page, memory, identity, side, bell, peer, failed: Failed::default() };
        Ok((ours, Some(theirs)))
    }

    /// Returns duplicates of the descriptors that another process gets: the memfd, both sockets of the bell, and the
    /// sending socket of the other end's bell.
    pub(super) fn cargo(&self) -> Result<Vec<OwnedFd>> {
        let all = [Some(&self.memory), Some(&self.bell.rope), Some(&self.bell.ear), self.peer.as_ref()];
        all.into_iter().flatten().map(copy).collect()
    }

    /// Returns the identity of the page.
    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the receiving socket of the bell, which the hub watches.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.ear.as_fd()
    }

    /// Returns the descriptor that hangs up when the other end is gone; `None` for an event.
    pub(super) fn peer(&self) -> Option<BorrowedFd<'_>> {
        self.peer.as_ref().map(AsFd::as_fd)
    }

    /// Changes the signals of this end in the page.
    pub(super) fn change(&self, clear: zx_signals_t, set: zx_signals_t) {
        change(self.page.word(self.side), clear, set);
    }

    /// Changes the signals of the other end in the page.
    pub(super) fn change_peer(&self, clear: zx_signals_t, set: zx_signals_t) {
        change(self.page.word(1 - self.side), clear, set);
    }

    /// Returns the current signals of the end.
    pub(super) fn signals(&self) -> zx_signals_t {
        let known = ZX_USER_SIGNAL_ALL | ZX_EVENT_SIGNALED;
        let signals = self.page.word(self.side).load(Ordering::SeqCst) & known;
        if self.is_peer_closed() { signals | ZX_EVENTPAIR_PEER_CLOSED } else { signals }
    }

    /// Returns whether all processes of the other end are gone or have closed it. False for an event.
    pub(super) fn is_peer_closed(&self) -> bool {
        let Some(peer) = &self.peer else { return false };
        let mut look = [PollFd::new(peer, PollFlags::empty())];
        poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && !look[0].revents().is_empty()
    }

    /// Wakes the processes that wait for signals of the end.
    pub(super) fn ring(&self) {
        match ring(&self.bell.rope) {
            // No process has emptied the bell.
            Err(Errno::AGAIN) => self.ring_anew(),
            rung => note(&self.failed.own, rung),
        }
    }

    /// Repeats the wake-ups that have failed for lack of memory. Returns `false` if one fails again.
    pub(super) fn ring_again(&self) -> bool {
        if self.failed.own.load(Ordering::Relaxed) {
            self.ring();
        }
        if self.failed.peer.load(Ordering::Relaxed) {
            self.ring_peer();
        }
        !self.failed.own.load(Ordering::Relaxed) && !self.failed.peer.load(Ordering::Relaxed)
    }

    /// Empties the end's bell if there are many unread bytes, so that there is room for the next byte. The caller
    /// listens to the bell, and looks at the signals afterwards. Processes that have not collected the report of a
    /// removed byte are woken by a new byte.
    pub(super) fn make_room(&self) {
        if rustix::io::ioctl_fionread(&self.bell.ear).is_ok_and(|unread| unread > CROWD) {
            self.ring_anew();
        }
    }

    /// Empties the end's bell, and sends a byte.
    fn ring_anew(&self) {
        self.hear();
        note(&self.failed.own, ring(&self.bell.rope));
    }

    /// Wakes the processes that wait for signals of the other end. A full bell means that no process waits, or that a
    /// waiting process is about to look, and then empties the bell.
    pub(super) fn ring_peer(&self) {
        if let Some(peer) = &self.peer {
            note(&self.failed.peer, ring(peer));
        }
    }

    /// Reads the bytes at the end's bell.
    fn hear(&self) {
        let mut rings = [0u8; 256];
        for _ in 0..HEARD {
            match rustix::net::recv(&self.bell.ear, &mut rings[..], RecvFlags::DONTWAIT) {
                Ok((n, _)) if n == rings.len() => {}
                _ => return,
            }
        }
    }
}

/// Clears and sets signals atomically.
fn change(word: &AtomicU32, clear: zx_signals_t, set: zx_signals_t) {
    let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |signals| Some((signals & !clear) | set));
}

/// Sends a byte into a bell. Fails with `AGAIN` if there is no room.
fn ring(rope: &OwnedFd) -> std::result::Result<(), Errno> {
    rustix::net::send(rope, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// Notes whether a ring has failed for lack of memory. With any other error there is no process to wake.
fn note(failed: &AtomicBool, rung: std::result::Result<(), Errno>) {
    failed.store(matches!(rung, Err(Errno::NOBUFS | Errno::NOMEM)), Ordering::Relaxed);
}

/// Returns a duplicate of a descriptor.
fn copy(fd: &OwnedFd) -> Result<OwnedFd> {
    fd.try_clone().map_err(|_| Status::NO_RESOURCES)
}

/// Returns the identity of a page by its memfd.
fn identify(memory: impl AsFd) -> Result<Identity> {
    let stat = rustix::fs::fstat(memory)?;
    Ok((stat.st_dev, stat.st_ino))
}
