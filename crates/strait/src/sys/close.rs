//! Whether closing a descriptor could take long.

use std::os::fd::BorrowedFd;

use rustix::fs::{self, AtFlags, FileType, StatxFlags};
use rustix::net::{AddressFamily, sockopt};

/// File systems that answer when a file is closed without asking anybody else.
const LOCAL: [&str; 11] =
    ["tmpfs", "ramfs", "devtmpfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "squashfs", "overlay"];

/// Major numbers of devices that close at once: memory (`/dev/null`), and the ends of pseudoterminals.
const DEVICES: [u32; 9] = [1, 136, 137, 138, 139, 140, 141, 142, 143];

/// Whether closing this descriptor could have to wait for another process or machine. Asks no file system, which could
/// make it wait as well; what is not known for sure could.
pub(crate) fn may_block(fd: BorrowedFd<'_>) -> bool {
    // Only memory has seals.
    if fs::fcntl_get_seals(fd).is_ok() {
        return false;
    }
    let wanted = StatxFlags::TYPE | StatxFlags::MNT_ID;
    // What is known without asking the file system.
    let Ok(known) = fs::statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted) else { return true };
    match FileType::from_raw_mode(known.stx_mode.into()) {
        FileType::Fifo => false,
        // A socket other than these may linger until the other side has what was sent.
        FileType::Socket => {
            sockopt::socket_domain(fd) != Ok(AddressFamily::UNIX) && !matches!(sockopt::socket_linger(fd), Ok(None))
        }
        FileType::CharacterDevice => !DEVICES.contains(&known.stx_rdev_major),
        FileType::RegularFile | FileType::Directory | FileType::Symlink => {
            known.stx_mask & StatxFlags::MNT_ID.bits() == 0 || !is_local(known.stx_mnt_id)
        }
        // Eventfds, epoll instances, and other things of the kernel's own have none of the types.
        FileType::Unknown => false,
        FileType::BlockDevice => true,
    }
}

/// Whether a mount is here and of a file system that is local.
fn is_local(mount: u64) -> bool {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
    let number = mount.to_string();
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&number));
    let kind = line.and_then(|line| line.split_once(" - ")).and_then(|(_, rest)| rest.split(' ').next());
    kind.is_some_and(|kind| LOCAL.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn ordinary_descriptors_close_at_once_and_lingering_sockets_may_not() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(!may_block(file.as_fd()));
        let (pipe, _writer) = std::io::pipe().unwrap();
        assert!(!may_block(pipe.as_fd()));
        assert!(!may_block(fs::memfd_create("test", fs::MemfdFlags::ALLOW_SEALING).unwrap().as_fd()));
        assert!(!may_block(crate::sys::epoll::bell().unwrap().as_fd()));
        assert!(!may_block(crate::sys::socket::pair().unwrap().0.as_fd()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!may_block(listener.as_fd()));
        sockopt::set_socket_linger(&listener, Some(std::time::Duration::from_secs(1))).unwrap();
        assert!(may_block(listener.as_fd()));
        let process = std::fs::File::open("/proc/self/status").unwrap();
        assert!(may_block(process.as_fd()));
    }
}
