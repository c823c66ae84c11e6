//! What this process has, and what it may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open descriptors.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

/// What each open descriptor is.
pub(crate) fn open_files() -> String {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.map(|link| format!("{} ", link.display())).collect()
}

/// Mappings of memory that Strait made.
pub(crate) fn mappings() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter(|line| line.contains("memfd:strait")).map(str::to_owned).collect()
}

/// Threads.
pub(crate) fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// The number that the next descriptor would have, if any is free.
pub(crate) fn lowest_free_descriptor() -> Option<u64> {
    use std::os::fd::AsRawFd;
    let probe = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()?;
    u64::try_from(probe.as_raw_fd()).ok()
}

/// Lets this process open descriptors with numbers below `most` only.
pub(crate) fn limit_descriptors(most: u64) {
    let old = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: old.maximum });
}

/// Descriptors that a process may have when it does not lack any: as many as it may, up to this. Processes that introduce each
/// other again and again have a socket for each introduction.
const DESCRIPTORS: u64 = 1 << 16;

/// So many as it may have.
pub(crate) fn descriptors_in_plenty() -> u64 {
    getrlimit(Resource::Nofile).maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS))
}

/// Takes so much memory in advance that no allocation of this process asks the kernel for any, also while it may not have more.
pub(crate) fn take_memory_in_advance() {
    const HEAP: usize = 1 << 30;
    // SAFETY: the calls change where the allocator has its memory from; the block is freed by who allocated it, and stays the
    // allocator's, since it was told never to give memory back.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        // The compiler would leave out a block that nobody uses.
        let block = std::hint::black_box(libc::malloc(HEAP));
        assert!(!block.is_null(), "memory in advance");
        libc::free(block);
    }
}
