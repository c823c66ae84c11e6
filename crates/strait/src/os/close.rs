//! Which descriptors from a peer are closed in place.
//!
//! The last close of a file runs code of the file's kind, in the closing thread. The code may wait for anything: for a
//! file server, for a connection that lingers, for a lock of another process. Only the files listed here are known not
//! to wait:
//!
//! | file | why closing it takes no time |
//! |---|---|
//! | memory (`memfd_create`) with at most [`AT_ONCE`] bytes in use | the kernel frees its pages without asking any process |
//! | a regular file of a tmpfs that is mounted here, with no more bytes in use | as for memory; and the file system stays mounted |
//! | `/dev/null`, `/dev/zero`, `/dev/full` on a tmpfs or devtmpfs that is mounted here | the kernel has nothing to do |
//!
//! These files look harmless, but closing them can block:
//!
//! * **all files that can be polled**: pipes, sockets, eventfds, timerfds, signalfds, pidfds, terminals. The last close
//!   removes the file from every epoll instance that watches it, under the lock of the epoll instance. A process holds
//!   this lock while it copies events to its own memory, which can be a page that never comes (userfaultfd, FUSE).
//!   Seen: an eventfd whose close took as long as its sender liked.
//! * **Unix sockets**, in addition: the close also closes unread packets in the queue. And a socket found empty can be
//!   filled just before the close.
//! * **TCP sockets**, in addition: a socket that does not linger can be made to linger just before the close.
//! * **epoll instances, inotify, fanotify, packet sockets, BPF, io_uring, KVM**: the close waits for grace periods of
//!   the kernel, or for each of a million entries. The close of a userfaultfd waits for the memory lock of its process.
//! * **files on disks**, also if open for reading only: ext4, XFS and btrfs write a file out when closed after a
//!   truncation, and free the blocks of a file without a name.
//! * **files of a mount outside this process's mount namespace**: with the last close, the whole file system may be
//!   unmounted.
//! * **much memory**: pages are freed one by one, a GiB in some 100 ms.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, AtFlags, FileType, MemfdFlags, Statx, StatxFlags};

/// The types of file systems whose files are in memory, as `/proc/self/mountinfo` names these types.
const IN_MEMORY: [&str; 2] = ["tmpfs", "devtmpfs"];

/// Major device number of `/dev/null` and similar devices. `ENDLESS` has the minor numbers of the devices whose close
/// never waits.
const MEMORY_DEVICES: u32 = 1;
const ENDLESS: [u32; 3] = [3, 5, 7];

/// The greatest size in bytes of a file in memory that is closed by the thread that drops it, not by the reaper.
/// Freeing so many bytes takes some 20 µs; freeing as many for each descriptor of a packet takes milliseconds.
const AT_ONCE: u64 = 256 << 10;

/// Size in bytes of the unit in which the kernel's `stx_blocks` counts a file's blocks.
const BLOCK: u64 = 512;

/// `STATX_MNT_ID_UNIQUE`: asks for the number of a mount that no other mount ever gets. Linux 6.8 and later know the
/// flag; earlier kernels ignore it. The kernel reuses the other number of a mount, `STATX_MNT_ID`, when the mount is
/// gone.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Returns whether closing `fd` is known to take little time and to wait for nothing. Asks no file system, because the
/// answer could take as long as the close.
///
/// # Cost
/// One to three system calls. In addition `/proc/self/mountinfo` is read: before Linux 6.8 for each file that is not a
/// memfd, and since then for the first file of each mount.
pub(crate) fn is_harmless(fd: BorrowedFd<'_>) -> bool {
    // The kernel knows these properties without asking the file system.
    let Some(known) = ask(fd, StatxFlags::TYPE | MNT_ID_UNIQUE) else { return false };
    match FileType::from_raw_mode(known.stx_mode.into()) {
        FileType::RegularFile => is_in_memory(fd, &known) && has_little(fd),
        FileType::CharacterDevice => {
            known.stx_rdev_major == MEMORY_DEVICES
                && ENDLESS.contains(&known.stx_rdev_minor)
                && is_in_memory(fd, &known)
        }
        _ => false,
    }
}

fn ask(fd: BorrowedFd<'_>, what: StatxFlags) -> Option<Statx> {
    fs::statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, what).ok()
}

/// Returns the number of the mount of a file, from the file's properties `known`. `which` is the kind of number:
/// `STATX_MNT_ID` or [`MNT_ID_UNIQUE`]. Returns `None` if the kernel did not report a number of this kind.
fn mount_of(known: &Statx, which: StatxFlags) -> Option<u64> {
    (known.stx_mask & which.bits() != 0).then_some(known.stx_mnt_id)
}

/// Returns whether the file `fd`, which is in memory, uses at most [`AT_ONCE`] bytes. Returns `false` if the kernel
/// does not tell.
fn has_little(fd: BorrowedFd<'_>) -> bool {
    ask(fd, StatxFlags::BLOCKS).is_some_and(|known| known.stx_blocks <= AT_ONCE / BLOCK)
}

/// The largest number of mounts of in-memory file systems that this process remembers.
const REMEMBERED: usize = 8;

/// The unique numbers of mounts of in-memory file systems with files of peers; 0 in unused entries. A mount seen in
/// this process's mount namespace is assumed to stay there: a peer cannot unmount it. If this process leaves its mount
/// namespace or unmounts the file system, the last close of a file there may free all memory of the file system.
static REMEMBERED_MOUNTS: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];

/// Returns whether the file `fd` is on the kernel's internal mount for memfds, or on an in-memory file system mounted
/// in this process's mount namespace. `known` has the mount's unique number, if the kernel reports it.
fn is_in_memory(fd: BorrowedFd<'_>, known: &Statx) -> bool {
    let unique = mount_of(known, MNT_ID_UNIQUE);
    let remembered = |unique| REMEMBERED_MOUNTS.iter().any(|mount| mount.load(Ordering::Relaxed) == unique);
    if unique.is_some_and(remembered) {
        return true;
    }
    let mount = ask(fd, StatxFlags::MNT_ID).and_then(|known| mount_of(&known, StatxFlags::MNT_ID));
    let found = mount.is_some_and(|mount| mount == mount_of_memory() || is_mounted_memory(mount));
    if found && let Some(unique) = unique {
        let keep = |mount: &&AtomicU64| mount.compare_exchange(0, unique, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // If there is no room, the mount is looked up again for its next file.
        let _ = REMEMBERED_MOUNTS.iter().find(keep);
    }
    found
}

/// Asks the kernel for the number of the mount of all memfds, and stores the number; does nothing if a number is stored
/// already. A process calls this function when it makes a link, because a sandbox may refuse the system calls later.
pub(crate) fn look_up() {
    mount_of_memory();
}

fn mount_of_memory() -> u64 {
    const UNKNOWN: u64 = u64::MAX;
    static KNOWN: AtomicU64 = AtomicU64::new(UNKNOWN);
    if KNOWN.load(Ordering::Relaxed) == UNKNOWN {
        let memory = fs::memfd_create(c"strait-close", MemfdFlags::CLOEXEC).ok();
        let known = memory.and_then(|memory| mount_of(&ask(memory.as_fd(), StatxFlags::MNT_ID)?, StatxFlags::MNT_ID));
        KNOWN.store(known.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }
    KNOWN.load(Ordering::Relaxed)
}

/// Returns whether the mount with number `mount` is in this process's mount namespace, so that it stays mounted, and
/// has a file system in memory. Reads `/proc/self/mountinfo`.
fn is_mounted_memory(mount: u64) -> bool {
    #[cfg(test)]
    tests::LOOKED.set(tests::LOOKED.get() + 1);
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
    let number = mount.to_string();
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&number));
    let kind = line.and_then(|line| line.split_once(" - ")).and_then(|(_, rest)| rest.split(' ').next());
    kind.is_some_and(|kind| IN_MEMORY.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    thread_local! {
        /// The number of times that the thread has read the list of mounts.
        pub(super) static LOOKED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    fn memory(bytes: u64) -> OwnedFd {
        let memory = fs::memfd_create(c"test", MemfdFlags::ALLOW_SEALING).unwrap();
        fs::fallocate(&memory, fs::FallocateFlags::empty(), 0, bytes).unwrap();
        memory
    }

    #[test]
    fn a_little_memory_and_endless_devices_are_harmless() {
        assert!(is_harmless(memory(AT_ONCE).as_fd()));
        for name in ["/dev/null", "/dev/zero", "/dev/full"] {
            assert!(is_harmless(std::fs::File::open(name).unwrap().as_fd()), "{name}");
        }
        // The size of the file does not matter, only the bytes in use.
        let sparse = fs::memfd_create(c"test", MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&sparse, 1 << 40).unwrap();
        assert!(is_harmless(sparse.as_fd()));
    }

    #[test]
    fn the_list_of_mounts_is_read_once_for_each_mount() {
        let null = std::fs::File::open("/dev/null").unwrap();
        if mount_of(&ask(null.as_fd(), MNT_ID_UNIQUE).unwrap(), MNT_ID_UNIQUE).is_none() {
            eprintln!("This kernel has no unique numbers of mounts.");
            return;
        }
        assert!(is_harmless(null.as_fd()));
        let looked = LOOKED.get();
        for _ in 0..10 {
            assert!(is_harmless(null.as_fd()) && is_harmless(memory(1).as_fd()));
        }
        assert_eq!(LOOKED.get(), looked);
    }

    #[test]
    fn what_can_wait_for_somebody_is_not() {
        assert!(!is_harmless(memory(AT_ONCE + 4096).as_fd()));
        let (pipe, writer) = std::io::pipe().unwrap();
        let (socket, other) = crate::os::socket::pair().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let process = std::fs::File::open("/proc/self/status").unwrap();
        let program = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let wake_fd = crate::os::epoll::wake_fd().unwrap();
        let random = std::fs::File::open("/dev/urandom").unwrap();
        let all: [BorrowedFd<'_>; 10] = [
            pipe.as_fd(),
            writer.as_fd(),
            socket.as_fd(),
            other.as_fd(),
            listener.as_fd(),
            process.as_fd(),
            program.as_fd(),
            epoll.as_fd(),
            wake_fd.as_fd(),
            random.as_fd(),
        ];
        for fd in all {
            let what = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
            assert!(!is_harmless(fd), "{what:?}");
        }
        // A userfaultfd, if the kernel lets this process have one.
        // SAFETY: the call takes flags only, and returns a descriptor of this process's own or an error.
        let raw = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } as libc::c_int;
        if raw >= 0 {
            // SAFETY: the descriptor was made just now and has no other owner.
            assert!(!is_harmless(unsafe { OwnedFd::from_raw_fd(raw) }.as_fd()));
        }
    }
}
