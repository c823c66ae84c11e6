//! Signals in memory that several processes share, and bells to tell each other that they changed.
//!
//! The signals of both ends lie in one page of a memfd. An end's *bell* is a pair of sockets: who changes its signals sends a
//! byte into one, and epoll wakes every process that listens to the other, however many there are, since it is told of each
//! arrival anew. An end holds both sockets of its own bell and the sending one of its other end's; so when all
//! processes that had that end are gone, its bell hangs up. The kernel counts them.
//!
//! Whoever has a handle of an event, with whatever rights, could set its signals and ring for nothing if it does not keep to
//! the rules. It cannot do more: the page cannot be made smaller, no call on a bell blocks, and what is there is a word to look at.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::abi::*;
use crate::status::{Result, Status};
use crate::vmo::{check_file_size_limit, is_plain_memory};

const PAGE: usize = 4096;
/// Where an end's signals are.
const STRIDE: usize = 64;
/// Arrivals that are taken at once: more only tell the same.
const HEARD: usize = 16;

/// Which page it is: the memfd's device and inode.
pub(super) type Identity = (u64, u64);

/// What an end has of it.
pub(super) struct Shared {
    page: Page,
    memory: OwnedFd,
    identity: Identity,
    side: usize,
    bell: Bell,
    /// The other end's, to ring.
    peer: Option<OwnedFd>,
}

/// A pair of sockets.
struct Bell {
    rope: OwnedFd,
    ear: OwnedFd,
}

impl Bell {
    fn new() -> Result<Self> {
        let (rope, ear) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { rope, ear })
    }
}

/// A mapped page.
struct Page(NonNull<u8>);

// SAFETY: it is only reached through atomics.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn map(memory: &OwnedFd) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping where the kernel likes, of a memfd that has a page and is sealed against shrinking.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, access, MapFlags::SHARED, memory, 0) }?;
        Ok(Self(NonNull::new(address.cast()).ok_or(Status::NO_MEMORY)?))
    }

    fn word(&self, side: usize) -> &AtomicU32 {
        // SAFETY: inside of the page, aligned, mapped as long as this lives, and used by everybody as an atomic.
        unsafe { AtomicU32::from_ptr(self.0.add(side * STRIDE).cast().as_ptr()) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody has a reference into it any more.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

impl Shared {
    /// For this end, and of a pair for the other.
    pub(super) fn new(pair: bool, side: usize) -> Result<(Self, Option<Self>)> {
        let memory = rustix::fs::memfd_create("zx-event", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        check_file_size_limit(PAGE as u64)?;
        rustix::fs::ftruncate(&memory, PAGE as u64)?;
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let identity = identify(&memory)?;
        let bell = Bell::new()?;
        if !pair {
            let page = Page::map(&memory)?;
            return Ok((Self { page, memory, identity, side, bell, peer: None }, None));
        }
        let other = Bell::new()?;
        let theirs = Self {
            page: Page::map(&memory)?,
            memory: copy(&memory)?,
            identity,
            side: 1 - side,
            peer: Some(copy(&bell.rope)?),
            bell: Bell { rope: copy(&other.rope)?, ear: other.ear },
        };
        let ours = Self { page: Page::map(&memory)?, memory, identity, side, bell, peer: Some(other.rope) };
        Ok((ours, Some(theirs)))
    }

    /// What another process gets: the page, both sockets of the bell, and the other end's.
    pub(super) fn cargo(&self) -> Result<Vec<OwnedFd>> {
        let all = [Some(&self.memory), Some(&self.bell.rope), Some(&self.bell.ear), self.peer.as_ref()];
        all.into_iter().flatten().map(copy).collect()
    }

    /// From what another process sent.
    ///
    /// # Errors
    /// `PEER_CLOSED` if it is something else.
    pub(super) fn received(pair: bool, side: usize, cargo: Vec<OwnedFd>) -> Result<Self> {
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
        let bell = Bell { rope: socket(next()?)?, ear: socket(next()?)? };
        let peer = if pair { Some(socket(next()?)?) } else { None };
        Ok(Self { page: Page::map(&memory)?, identity: identify(&memory)?, memory, side, bell, peer })
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Where a ring is heard.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.ear.as_fd()
    }

    /// What hangs up when the other end is gone.
    pub(super) fn peer(&self) -> Option<BorrowedFd<'_>> {
        self.peer.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn change(&self, clear: zx_signals_t, set: zx_signals_t) {
        change(self.page.word(self.side), clear, set);
    }

    pub(super) fn change_peer(&self, clear: zx_signals_t, set: zx_signals_t) {
        change(self.page.word(1 - self.side), clear, set);
    }

    /// This end's signals now.
    pub(super) fn signals(&self) -> zx_signals_t {
        let known = ZX_USER_SIGNAL_ALL | ZX_EVENT_SIGNALED;
        let signals = self.page.word(self.side).load(Ordering::SeqCst) & known;
        if self.is_peer_closed() { signals | ZX_EVENTPAIR_PEER_CLOSED } else { signals }
    }

    pub(super) fn is_peer_closed(&self) -> bool {
        let Some(peer) = &self.peer else { return false };
        let mut look = [PollFd::new(peer, PollFlags::empty())];
        poll(&mut look, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && !look[0].revents().is_empty()
    }

    /// Wakes whoever listens for this end's signals.
    pub(super) fn ring(&self) {
        if !ring(&self.bell.rope) {
            // It is full of rings that nobody took.
            self.hear();
            ring(&self.bell.rope);
        }
    }

    /// Wakes whoever listens for the other end's; if it is full of rings, nobody listens, or somebody is about to look.
    pub(super) fn ring_peer(&self) {
        if let Some(peer) = &self.peer {
            ring(peer);
        }
    }

    /// Takes the rings that have arrived.
    pub(super) fn hear(&self) {
        let mut rings = [0u8; 256];
        for _ in 0..HEARD {
            match rustix::net::recv(&self.bell.ear, &mut rings[..], RecvFlags::DONTWAIT) {
                Ok((n, _)) if n == rings.len() => {}
                _ => return,
            }
        }
    }
}

fn change(word: &AtomicU32, clear: zx_signals_t, set: zx_signals_t) {
    let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |signals| Some((signals & !clear) | set));
}

/// False if there is no room.
fn ring(rope: &OwnedFd) -> bool {
    rustix::net::send(rope, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL) != Err(rustix::io::Errno::AGAIN)
}

fn copy(fd: &OwnedFd) -> Result<OwnedFd> {
    fd.try_clone().map_err(|_| Status::NO_RESOURCES)
}

fn identify(memory: &OwnedFd) -> Result<Identity> {
    let stat = rustix::fs::fstat(memory)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn socket(fd: OwnedFd) -> Result<OwnedFd> {
    match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
        FileType::Socket => Ok(fd),
        _ => Err(Status::PEER_CLOSED),
    }
}
