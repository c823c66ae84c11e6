//! The system calls that a sandbox must allow: lists for a filter such as seccomp.
//!
//! A process that is to be locked up takes its channels first, then activates its filter, and then looks at messages
//! from its peers. What the filter must allow depends on what the process still does under the filter:
//!
//! | phase | field of [`SYSCALLS`] |
//! |---|---|
//! | sends and receives messages, ends, descriptors and data pipes; waits; makes channels with [`Channel::pair`] and [`Channel::over`] | [`running`](SystemCalls::running) |
//! | makes, maps or seals [regions](crate::region) too | and [`with_regions`](SystemCalls::with_regions) |
//! | listens, connects, or takes its channel from its parent too | and [`connecting`](SystemCalls::connecting) |
//!
//! The lists contain the system calls of the library, and of the allocator and the threads below it. The lists contain
//! nothing that the program itself needs, such as writing to a file. The library can do without the system calls of
//! [`dispensable`](SystemCalls::dispensable), if the filter lets them fail.
//!
//! ```
//! use std::collections::HashSet;
//! use strait::sandbox::SYSCALLS;
//!
//! let allowed: HashSet<i64> = SYSCALLS.running.iter().chain(SYSCALLS.with_regions).map(|call| call.number).collect();
//! let refused: HashSet<i64> = SYSCALLS.dispensable.iter().map(|call| call.number).collect();
//! // The filter lets calls in `allowed` pass, lets those in `refused` fail with EPERM, and kills the process for others.
//! assert!(allowed.is_disjoint(&refused));
//!
//! // The names are those that a service manager and a container take, here for SystemCallFilter= of systemd:
//! let names: Vec<_> = SYSCALLS.running.iter().map(|call| call.name).collect();
//! assert!(names.contains(&"futex"));
//! ```
//!
//! Two system calls need a look at their arguments for a filter as narrow as possible: `prlimit64` only reads (its
//! third argument is 0), and `mmap` and `mprotect` never make memory executable.
//!
//! [`Channel::pair`]: crate::Channel::pair
//! [`Channel::over`]: crate::Channel::over

/// A system call: its name, and its number on the architecture for which the library was compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SystemCall {
    /// The name, as in `SYS_...` of the C library.
    pub name: &'static str,
    /// The number that seccomp compares.
    pub number: i64,
}

/// Lists of system calls by what a process does after its filter is active.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct SystemCalls {
    /// System calls for messages, waiting, and channels over links that exist or over a socket of the program. Every
    /// process needs them.
    pub running: &'static [SystemCall],
    /// Further system calls for regions.
    pub with_regions: &'static [SystemCall],
    /// Further system calls to listen under a name, to connect to a name, and to take a channel from the parent.
    pub connecting: &'static [SystemCall],
    /// System calls that the library tries, and can do without. A filter that kills a process for a forbidden system
    /// call must let these calls fail with `EPERM` instead, or allow all of them. If they fail, no thread of the
    /// library closes descriptors whose close may block: received descriptors that the program does not take stay open
    /// until the process ends, except those of a few harmless kinds; and
    /// [`Region::reader`](crate::region::Region::reader) fails. Some are in [`connecting`](Self::connecting) too, and a
    /// process that connects must allow those.
    pub dispensable: &'static [SystemCall],
}

impl std::fmt::Debug for SystemCalls {
    /// Prints the number of calls in each list.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SystemCalls")
            .field("running", &self.running.len())
            .field("with_regions", &self.with_regions.len())
            .field("connecting", &self.connecting.len())
            .field("dispensable", &self.dispensable.len())
            .finish()
    }
}

/// Returns a list of system calls.
macro_rules! calls {
    ($($(#[$when:meta])* $name:ident $number:ident),* $(,)?) => {
        &[$($(#[$when])* SystemCall { name: stringify!($name), number: libc::$number as i64 }),*]
    };
}

/// The system calls that a sandbox must allow, for each phase. [The module](self) has an example.
pub const SYSCALLS: SystemCalls = SystemCalls {
    running: calls![
        // The allocator's memory, and shared memory.
        brk SYS_brk,
        mmap SYS_mmap,
        mremap SYS_mremap,
        munmap SYS_munmap,
        mprotect SYS_mprotect,
        madvise SYS_madvise,
        memfd_create SYS_memfd_create,
        ftruncate SYS_ftruncate,
        pread64 SYS_pread64,
        pwrite64 SYS_pwrite64,
        fcntl SYS_fcntl,
        fstat SYS_fstat,
        fstatfs SYS_fstatfs,
        prlimit64 SYS_prlimit64,
        close SYS_close,
        // Links.
        sendmsg SYS_sendmsg,
        recvmsg SYS_recvmsg,
        recvfrom SYS_recvfrom,
        socketpair SYS_socketpair,
        getsockopt SYS_getsockopt,
        setsockopt SYS_setsockopt,
        getpeername SYS_getpeername,
        shutdown SYS_shutdown,
        pidfd_open SYS_pidfd_open,
        getrandom SYS_getrandom,
        // Waiting.
        futex SYS_futex,
        futex_waitv SYS_futex_waitv,
        ppoll SYS_ppoll,
        eventfd2 SYS_eventfd2,
        epoll_create1 SYS_epoll_create1,
        epoll_ctl SYS_epoll_ctl,
        epoll_pwait SYS_epoll_pwait,
        timerfd_create SYS_timerfd_create,
        timerfd_settime SYS_timerfd_settime,
        read SYS_read,
        write SYS_write,
        clock_gettime SYS_clock_gettime,
        clock_nanosleep SYS_clock_nanosleep,
        restart_syscall SYS_restart_syscall,
        sched_yield SYS_sched_yield,
        getcpu SYS_getcpu,
        getpid SYS_getpid,
        gettid SYS_gettid,
        geteuid SYS_geteuid,
        // Signals during a call, and the end of a thread or a process.
        rt_sigprocmask SYS_rt_sigprocmask,
        rt_sigpending SYS_rt_sigpending,
        rt_sigtimedwait SYS_rt_sigtimedwait,
        rt_sigreturn SYS_rt_sigreturn,
        sigaltstack SYS_sigaltstack,
        exit SYS_exit,
        exit_group SYS_exit_group,
    ],
    with_regions: calls![
        fchmod SYS_fchmod,
    ],
    connecting: calls![
        openat SYS_openat,
        #[cfg(target_arch = "x86_64")]
        open SYS_open,
        socket SYS_socket,
        bind SYS_bind,
        listen SYS_listen,
        accept4 SYS_accept4,
        connect SYS_connect,
        getsockname SYS_getsockname,
        newfstatat SYS_newfstatat,
        mkdirat SYS_mkdirat,
        unlinkat SYS_unlinkat,
        fchmod SYS_fchmod,
        fchmodat SYS_fchmodat,
        getdents64 SYS_getdents64,
        inotify_init1 SYS_inotify_init1,
        inotify_add_watch SYS_inotify_add_watch,
    ],
    dispensable: calls![
        openat SYS_openat,
        #[cfg(target_arch = "x86_64")]
        open SYS_open,
        statx SYS_statx,
        clone3 SYS_clone3,
        clone SYS_clone,
        set_robust_list SYS_set_robust_list,
        rseq SYS_rseq,
        rt_sigaction SYS_rt_sigaction,
        prctl SYS_prctl,
        sched_getaffinity SYS_sched_getaffinity,
    ],
};
