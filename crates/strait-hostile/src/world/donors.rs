//! Helper processes behind descriptors whose close waits for those processes: a file system in user space, and the
//! userfaultfd of a process whose memory map is locked by an endless read.
//!
//! The helpers die with the attacker; no close waits for them after that.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::wire;

/// A FUSE file system with one file. Its server answers every request of the attacker, and for other processes only
/// requests to open, look up and release the file.
#[derive(Debug)]
pub struct Donors {
    root: OwnedFd,
}

mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// Forks a process that calls `work` and exits. The child is killed when its parent thread ends. Returns false if the
/// fork failed.
///
/// # Safety
/// This process has one thread.
unsafe fn child(work: impl FnOnce()) -> bool {
    // SAFETY: this process has one thread (the caller's promise), so the child inherits no lock held by another
    // thread.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: the arguments are plain numbers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            work();
            // SAFETY: `_exit` may be called in any state; the exit handlers of the parent do not run.
            unsafe { libc::_exit(0) }
        }
        child => child > 0,
    }
}

impl Donors {
    /// Mounts the file system and starts its server; `None` if the kernel refuses the mount.
    ///
    /// # Safety
    /// This process has one thread.
    pub unsafe fn start() -> Option<Self> {
        let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let folder = std::env::temp_dir().join(format!("strait-hostile-{}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        let mounted = mount(&device, folder.as_os_str().as_encoded_bytes());
        let asks = std::process::id();
        // SAFETY: this process has one thread, by the caller's promise.
        let served = mounted && unsafe { child(|| serve(&device, asks)) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = served.then(|| open(&folder, flags, Mode::empty()).ok()).flatten();
        if let Ok(path) = CString::new(folder.as_os_str().as_encoded_bytes()) {
            // SAFETY: the path ends with a zero byte.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        }
        let _ = std::fs::remove_dir(&folder);
        root.map(|root| Self { root })
    }

    /// Opens the file of the file system. In any process but the attacker, a close of the file or a request about it
    /// waits until the attacker ends.
    pub fn fuse_file(&self) -> Option<OwnedFd> {
        openat(&self.root, "f", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Returns the userfaultfd of a child whose memory map is locked, so that a close of the descriptor waits until
    /// the attacker ends. `None` if the child sent no descriptor within two seconds.
    pub fn stuck_userfault(&self) -> Option<OwnedFd> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
        // SAFETY: only the attacker has donors, and the attacker has one thread.
        unsafe { child(|| donate(self, &theirs)) };
        drop(theirs);
        let mut waited = 0;
        loop {
            let mut bytes = [0; 1];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
            let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
            let flags = rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&ours, &mut parts, &mut control, flags) {
                Ok(_) => {
                    let found = control.drain().find_map(|part| match part {
                        rustix::net::RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
                        _ => None,
                    });
                    return found;
                }
                Err(rustix::io::Errno::AGAIN) if waited < 2000 => waited += 1,
                Err(_) => return None,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn mount(device: &OwnedFd, path: &[u8]) -> bool {
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", device.as_raw_fd());
    let Ok(path) = CString::new(path) else { return false };
    let (fuse, flags) = (c"fuse".as_ptr(), libc::MS_NOSUID | libc::MS_NODEV);
    // SAFETY: all strings end with a zero byte.
    unsafe { libc::mount(fuse, path.as_ptr(), fuse, flags, options.as_ptr().cast()) == 0 }
}

/// Makes a userfaultfd, starts a process that blocks while it reads a page of this process, and sends the descriptor
/// over `to`. Returns only if no descriptor could be made.
fn donate(donors: &Donors, to: &OwnedFd) {
    let Some(file) = donors.fuse_file() else { return };
    // SAFETY: the kernel chooses fresh address space, without any reference to it.
    let page =
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    // SAFETY: the argument is a plain number.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) };
    if page == libc::MAP_FAILED || fd < 0 {
        return;
    }
    // SAFETY: the system call has just made the descriptor for this process, so nothing else owns it.
    let fault = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let memory = format!("/proc/{}/mem", std::process::id());
    let number = fault.as_raw_fd();
    // SAFETY: this process has one thread; the child closes its own copy of the descriptor and does not use it.
    unsafe {
        child(|| {
            libc::close(number);
            if let Ok(memory) = open(memory.as_str(), OFlags::RDONLY, Mode::empty()) {
                let _ = rustix::io::pread(&memory, &mut [0; 1], page as u64);
            }
        })
    };
    // The child must wait for the page before the descriptor is sent.
    std::thread::sleep(Duration::from_millis(150));
    let _ = wire::send(to, b"x", &[fault.as_fd()]);
    drop(fault);
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Returns the attributes (`struct fuse_attr`) of the root directory (`node` 1) or of the one file.
fn attributes(node: u64) -> [u8; 88] {
    let mut bytes = [0; 88];
    let mode: u32 = if node == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
    bytes[0..8].copy_from_slice(&node.to_le_bytes());
    bytes[8..16].copy_from_slice(&(1u64 << 20).to_le_bytes());
    bytes[60..64].copy_from_slice(&mode.to_le_bytes());
    bytes[64..68].copy_from_slice(&1u32.to_le_bytes());
    bytes[80..84].copy_from_slice(&4096u32.to_le_bytes());
    bytes
}

/// Answers requests of the kernel about the file system. The process `asks` gets a full answer. Returns when the
/// device fails.
fn serve(device: &OwnedFd, asks: u32) {
    let mut buffer = vec![0; 1 << 17];
    while let Ok(len) = rustix::io::read(device, &mut buffer[..]) {
        let word = |at: usize| u32::from_le_bytes(buffer[at..at + 4].try_into().expect("four bytes"));
        if len < 40 {
            continue;
        }
        let (code, asker) = (word(4), word(32));
        let unique: [u8; 8] = buffer[8..16].try_into().expect("eight bytes");
        let node = u64::from(word(16));
        let Some((error, body)) = answer(code, node, asker == asks) else { continue };
        let mut reply = Vec::with_capacity(16 + body.len());
        reply.extend((16 + body.len() as u32).to_le_bytes());
        reply.extend(error.to_le_bytes());
        reply.extend(unique);
        reply.extend(body);
        let _ = rustix::io::write(device, &reply);
    }
}

fn answer(code: u32, node: u64, is_own: bool) -> Option<(i32, Vec<u8>)> {
    let mut body = Vec::new();
    match code {
        opcode::INIT => {
            body.extend([7u32, 31, 0, 0].map(u32::to_le_bytes).concat());
            // max_background, congestion_threshold and max_write (in bytes).
            body.extend([16, 0, 12, 0]);
            body.extend(4096u32.to_le_bytes());
            body.resize(64, 0);
        }
        opcode::LOOKUP => {
            body.extend(2u64.to_le_bytes());
            body.extend([0; 8]);
            // The name is valid for 1000 s, the attributes for 0 s.
            body.extend(1000u64.to_le_bytes());
            body.extend([0; 16]);
            body.extend(attributes(2));
        }
        opcode::OPEN | opcode::OPENDIR => body.extend([1u64, 0].map(u64::to_le_bytes).concat()),
        opcode::RELEASE | opcode::RELEASEDIR => {}
        opcode::GETATTR if is_own || node == 1 => {
            body.extend([0; 16]);
            body.extend(attributes(node));
        }
        opcode::FLUSH if is_own => {}
        opcode::STATFS if is_own => body.extend([0; 80]),
        opcode::FORGET | opcode::BATCH_FORGET => return None,
        _ if is_own => return Some((-libc::ENOSYS, body)),
        _ => return None,
    }
    Some((0, body))
}
