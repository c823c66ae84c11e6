//! Threads that stand still inside the kernel, with a lock of the kernel held, until the test lets them go on.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::epoll;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

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
    pub(crate) fn stand_still_with(&self, watched: &OwnedFd) -> Page<'_> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&set, watched, epoll::EventData::new_u64(1), epoll::EventFlags::IN).unwrap();
        self.stand_still_in(move |at| {
            let events = std::ptr::with_exposed_provenance_mut(at);
            // SAFETY: the page has room for an event, and stays mapped until this thread was joined.
            unsafe { libc::epoll_wait(set.as_raw_fd(), events, 1, -1) };
        })
    }

    /// Starts a thread that writes a page without content to the second page of `memory`. Meanwhile the kernel holds
    /// the lock of the memory's file.
    pub(crate) fn stand_still_in_a_write_to(&self, memory: impl AsFd) -> Page<'_> {
        let memory = memory.as_fd().try_clone_to_owned().unwrap();
        self.stand_still_in(move |at| {
            let page = std::ptr::with_exposed_provenance(at);
            // SAFETY: the page has as many bytes, and stays mapped until this thread was joined.
            unsafe { libc::pwrite(memory.as_raw_fd(), page, PAGE, PAGE as libc::off_t) };
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
