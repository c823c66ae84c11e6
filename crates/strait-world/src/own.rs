//! The resources of this process, and the limits on them.

use std::os::fd::OwnedFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns the number of open descriptors.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

/// Returns the path of each open descriptor, from `/proc`.
pub(crate) fn open_files() -> String {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.map(|link| format!("{} ", link.display())).collect()
}

/// Returns the number of open eventfds.
pub(crate) fn eventfds() -> usize {
    open_files().split(' ').filter(|path| *path == "anon_inode:[eventfd]").count()
}

/// Returns the mappings made by Strait, as lines of `/proc/self/maps`.
pub(crate) fn mappings() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter(|line| line.contains("memfd:strait")).map(str::to_owned).collect()
}

/// Returns the number of threads.
pub(crate) fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Returns the nanoseconds for which the threads started by the library have waited for a processor so far, summed
/// over the threads: such a thread may have a lock that another thread needs.
pub(crate) fn delays_of_library_threads() -> u64 {
    let entries = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let delay = |entry: std::fs::DirEntry| {
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok();
        let is_of_library = read("comm")?.starts_with("strait-c") || read("comm")?.starts_with("strait-u");
        let delay = read("schedstat")?.split_whitespace().nth(1)?.parse::<u64>().ok()?;
        Some(if is_of_library { delay } else { 0 })
    };
    entries.filter_map(delay).sum()
}

/// Returns the number of the next descriptor; `None` if no descriptor is free.
pub(crate) fn lowest_free_descriptor() -> Option<u64> {
    use std::os::fd::AsRawFd;
    let probe = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()?;
    u64::try_from(probe.as_raw_fd()).ok()
}

/// Returns whether this process may have few free descriptors. If three quarters of `RLIMIT_NOFILE` are in use, the
/// library closes descriptors of a peer with more than one message's descriptors here (`docs/reference/limits.md`,
/// `Descriptors`). Returns `true` from a half on, because the number changes between two looks.
pub(crate) fn has_few_descriptors() -> bool {
    lowest_free_descriptor().is_none_or(|lowest| lowest >= descriptors_in_plenty() / 2)
}

/// Lets this process open descriptors with numbers below `most` only.
pub(crate) fn limit_descriptors(most: u64) {
    let old = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: old.maximum });
}

/// The limit of descriptors outside of shortages. Processes that introduce each other again and again have a socket
/// for each introduction.
const DESCRIPTORS: u64 = 1 << 16;

/// Returns the limit of descriptors outside of shortages: the hard limit, at most [`DESCRIPTORS`].
pub(crate) fn descriptors_in_plenty() -> u64 {
    getrlimit(Resource::Nofile).maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS))
}

/// Has the kernel make the descriptor table of this process as large as the table may become; `any` is an open
/// descriptor. Otherwise the kernel enlarges the table while the process has threads. All threads then wait for a
/// grace period of the kernel, which can take more than a second on a machine with other work.
pub(crate) fn grow_descriptor_table(any: &OwnedFd) {
    let last = i32::try_from(descriptors_in_plenty()).unwrap_or(i32::MAX) - 1;
    let _ = rustix::io::fcntl_dupfd_cloexec(any, last);
}

/// Takes 1 GiB of memory for the allocator in advance, so that no allocation asks the kernel for memory, even while
/// this process is at its limit.
pub(crate) fn take_memory_in_advance() {
    const HEAP: usize = 1 << 30;
    // SAFETY: the calls only change from where the allocator takes its memory. One allocator returned the block, frees
    // the block, and keeps the memory.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        // Without `black_box`, the compiler would leave out the unused block.
        let block = std::hint::black_box(libc::malloc(HEAP));
        assert!(!block.is_null(), "memory in advance");
        libc::free(block);
    }
}
