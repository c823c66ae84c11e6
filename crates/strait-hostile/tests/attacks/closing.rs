//! Descriptors whose close takes as long as another process likes, in every place where the victim may have to close
//! such a descriptor.

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource as Limit, Rlimit, getrlimit, setrlimit};
use strait::quota::Resource;
use strait::{Channel, Options};
use strait_hostile::record::{header, kind};
use strait_hostile::{Packet, RawPeer, wire};

use crate::common::*;
use crate::descriptors::slow_to_close;

/// Returns a Unix socket whose last close takes long, because an unread descriptor in the socket is slow to close;
/// and the peer of the slow connection.
fn slow_within() -> (OwnedFd, TcpStream) {
    let (slow, server) = slow_to_close();
    let (one, other) = sockets();
    assert!(wire::send(&one, b"x", &[slow.as_fd()]).unwrap());
    (other, server)
}

/// Sends a small message with a descriptor; the attacker retains no copy of the descriptor.
fn send_only(peer: &mut RawPeer, fd: OwnedFd) {
    peer.send_with(b"only one", &[fd.as_fd()]).unwrap();
}

attack! {
    /// A received Unix socket has slow descriptors in its queue, which are closed with the socket.
    a10_sockets_with_something_slow_in_them {
        on_a_victim(|peer, channel| {
            let (within, _server) = slow_within();
            peer.packet(&Packet::wake(), &[within.as_fd()]).unwrap();
            drop(within);
            bad_peer(in_time("receiving", || channel.recv_by(SOON)));
            in_time("dropping the channel", || drop(channel));
        });
        on_a_victim(|mut peer, channel| {
            let (within, _server) = slow_within();
            peer.packet(&Packet::handles(peer.token, 1, 1), &[within.as_fd()]).unwrap();
            peer.writer.put(header(kind::MESSAGE, 0, 1), b"");
            drop(within);
            in_time("dropping the channel", || drop(channel));
        });
        on_a_victim(|mut peer, channel| {
            let (within, _server) = slow_within();
            send_only(&mut peer, within);
            let message = channel.recv_by(SOON).unwrap();
            in_time("dropping a message", || drop(message));
        });
    }
}

attack! {
    /// The socket of a link has unread packets with slow descriptors, which are closed with the socket.
    a10_packets_that_nobody_reads_any_more {
        for nonsense in [b"nonsense".as_slice(), &[0; 4096]] {
            on_a_victim(|peer, channel| {
                let (slow, _server) = slow_to_close();
                peer.bytes(nonsense, &[]).unwrap();
                peer.packet(&Packet::wake(), &[slow.as_fd()]).unwrap();
                drop(slow);
                bad_peer(in_time("receiving", || channel.recv_by(SOON)));
                in_time("dropping the channel", || drop(channel));
            });
        }
        // The packet seems to come after the end of the connection.
        on_a_victim(|peer, channel| {
            let (slow, _server) = slow_to_close();
            peer.bytes(&[], &[]).unwrap();
            peer.packet(&Packet::wake(), &[slow.as_fd()]).unwrap();
            drop(slow);
            in_time("receiving", || channel.recv_by(Duration::from_millis(100))).unwrap_err();
            in_time("dropping the channel", || drop(channel));
        });
        // The victim has never received from the socket.
        on_a_victim(|peer, channel| {
            let (slow, _server) = slow_to_close();
            peer.packet(&Packet::wake(), &[slow.as_fd()]).unwrap();
            drop(slow);
            in_time("dropping the channel", || drop(channel));
        });
    }
}

attack! {
    /// A received descriptor is in an epoll instance of another process. That process holds the lock of the instance
    /// as long as it likes, because it copies events to a page without content. The last close of the descriptor
    /// takes that lock.
    a10_a_descriptor_that_is_watched_by_somebody_who_stands_still {
        let Some(watcher) = Watcher::new() else { return };
        on_a_victim(|mut peer, channel| {
            let bell = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
            let page = watcher.stand_still_with(&bell);
            send_only(&mut peer, bell);
            let message = channel.recv_by(SOON).unwrap();
            in_time("dropping a message", || drop(message));
            in_time("dropping the channel", || drop(channel));
            drop(page);
        });
    }
}

/// A userfaultfd. The kernel waits for the content of each page of the userfaultfd until this process provides the
/// content.
pub(crate) struct Watcher {
    userfaultfd: OwnedFd,
}

/// A page of a [`Watcher`] on which a thread blocks until this value is dropped.
pub(crate) struct Page<'a> {
    watcher: &'a Watcher,
    at: usize,
    thread: Option<std::thread::JoinHandle<()>>,
}

const PAGE: usize = 4096;

impl Watcher {
    /// Makes a userfaultfd; returns `None` if the kernel does not let this user block the kernel on a page.
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: the call takes flags only.
        let raw = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as libc::c_int;
        if raw < 0 {
            return None;
        }
        // SAFETY: the descriptor was made just now, and nothing else owns it.
        let userfaultfd = unsafe { OwnedFd::from_raw_fd(raw) };
        let this = Self { userfaultfd };
        // UFFDIO_API: the version, no features, and zeros.
        (this.ask(0xc018_aa3f, [0xaa, 0, 0, 0]) == 0).then_some(this)
    }

    fn ask(&self, request: libc::c_ulong, mut words: [u64; 4]) -> libc::c_int {
        // SAFETY: the requests of this function read and write at most four words, and `words` is valid during the
        // call.
        unsafe { libc::ioctl(self.userfaultfd.as_raw_fd(), request, words.as_mut_ptr()) }
    }

    /// Starts a thread that watches `watched`, which is ready, and copies the event to a page without content. The
    /// thread has no copy of the descriptor.
    fn stand_still_with(&self, watched: &OwnedFd) -> Page<'_> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&set, watched, epoll::EventData::new_u64(1), epoll::EventFlags::IN).unwrap();
        self.stand_still_in(move |at| {
            let events = std::ptr::with_exposed_provenance_mut(at);
            // SAFETY: the page has room for an event, and stays mapped until this thread was joined.
            unsafe { libc::epoll_wait(set.as_raw_fd(), events, 1, -1) };
        })
    }

    /// Starts a thread that calls `call` with the address of a page without content. The call makes a system call with
    /// this page, and blocks in the kernel until the returned value is dropped.
    pub(crate) fn stand_still_in(&self, call: impl FnOnce(usize) + Send + 'static) -> Page<'_> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the mapping is new.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, protection, flags) }.unwrap().addr();
        // UFFDIO_REGISTER: the address, the length, and the mode (missing pages).
        assert_eq!(self.ask(0xc020_aa00, [at as u64, PAGE as u64, 1, 0]), 0);
        let thread = std::thread::spawn(move || call(at));
        let mut event = [0; 32];
        assert_eq!(rustix::io::read(&self.userfaultfd, &mut event).unwrap(), 32, "no thread waits for the page");
        Page { watcher: self, at, thread: Some(thread) }
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        // UFFDIO_ZEROPAGE: provides the page, filled with zeros.
        assert_eq!(self.watcher.ask(0xc020_aa04, [self.at as u64, PAGE as u64, 0, 0]), 0);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        // SAFETY: nothing uses the page any more.
        unsafe { munmap(std::ptr::with_exposed_provenance_mut(self.at), PAGE) }.unwrap();
    }
}

attack! {
    /// A descriptor is slow to close, and many others wait behind it. The waiting descriptors are charged to the
    /// peer, and limited, until they are closed.
    a11_descriptors_that_wait_to_be_closed {
        const MOST: u64 = 1024;
        let old = getrlimit(Limit::Nofile);
        setrlimit(Limit::Nofile, Rlimit { current: Some(MOST), maximum: old.maximum }).unwrap();
        on_a_victim(|mut peer, channel| {
            let (slow, server) = slow_to_close();
            let before = descriptors();
            send_only(&mut peer, slow);
            drop(channel.recv_by(SOON).unwrap());
            let status = std::fs::File::open("/proc/self/status").unwrap();
            let held = |channel: &Channel| {
                channel.peer_usage().unwrap().unwrap().peer(Resource::Descriptors).held as usize
            };
            let reason = loop {
                peer.send_with(b"more", &[status.as_fd(); 64]).unwrap();
                match channel.recv_by(SOON) {
                    Ok(message) => drop(message),
                    error => break bad_peer(error),
                }
                peer.pump().unwrap();
                // All open descriptors are charged to an account.
                let (open, held) = (descriptors() - before, held(&channel));
                assert!(held + 2 >= open, "{open} are open, {held} of them charged to the peer");
            };
            assert_eq!(reason, "descriptors that take longer to close than to send");
            assert!(descriptors() < MOST as usize * 7 / 8, "{} of {MOST} are taken", descriptors());
            // The descriptors stay charged to the peer even after the end of the link.
            assert!(held(&channel) > 64);
            drop(server);
        });
        setrlimit(Limit::Nofile, old).unwrap();
    }
}

attack! {
    /// Descriptors that the victim does not accept are slow to close, and are closed in the background too.
    a10_descriptors_that_are_not_accepted {
        on_a_victim_with(&Options::new().accept_descriptors(false), |peer, channel| {
            for sequence in 1..4 {
                let (slow, _server) = slow_to_close();
                peer.packet(&Packet::handles(peer.token, sequence, 1), &[slow.as_fd()]).unwrap();
                drop(slow);
                let begin = Instant::now();
                let received = channel.recv_by(Duration::from_millis(100));
                assert!(received.is_err() && begin.elapsed() < SOON, "{received:?} after {:?}", begin.elapsed());
            }
            in_time("dropping the channel", || drop(channel));
        });
    }
}
