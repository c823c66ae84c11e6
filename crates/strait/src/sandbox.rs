//! The system calls to allow in a sandbox: lists for a filter such as seccomp.
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
//! A process takes its channels first, then activates its filter, and then looks at messages from its peers. The system
//! calls that the filter must allow depend on the work of the process under the filter:
//!
//! | phase | field of [`SYSCALLS`] |
//! |---|---|
//! | sends and receives messages, ends, descriptors and data pipes; waits; makes channels with [`Channel::pair`] and [`Channel::over`] | [`running`](SystemCalls::running) |
//! | makes, maps or seals [regions](crate::region) too | and [`with_regions`](SystemCalls::with_regions) |
//! | listens, connects, or takes its channel from its parent too | and [`connecting`](SystemCalls::connecting) |
//!
//! The lists contain the system calls of the library, and of the allocator and the threads below. The lists contain no
//! call that only the program needs, such as writing to a file. The library can do without the system calls of
//! [`dispensable`](SystemCalls::dispensable), if the filter lets the calls fail.
//!
//! # Arguments
//!
//! With arbitrary arguments, some of the calls let a process act on other processes. The process could, for example,
//! lower the limits of its parent (`prlimit64`), have the kernel send its parent a signal (`fcntl(F_SETOWN)`), or send
//! to any datagram socket of the machine (`socketpair`). [`SystemCall::arguments`] lists the arguments with which the
//! library makes such a call. A filter should allow only these arguments:
//!
//! ```
//! use strait::sandbox::SYSCALLS;
//!
//! let prlimit = SYSCALLS.running.iter().find(|call| call.name == "prlimit64").unwrap();
//! let allows = |arguments: [u64; 6]| {
//!     prlimit.arguments.iter().any(|way| way.iter().all(|a| arguments[usize::from(a.index)] & a.mask == a.value))
//! };
//! let (own, other, resource, limits) = (0, 1, 7, 0x1000);
//! assert!(allows([own, resource, 0, limits, 0, 0]), "read a limit of this process");
//! assert!(!allows([other, resource, limits, 0, 0, 0]), "change a limit of another process");
//! ```
//!
//! The guide *A plug-in host with seccomp* has a program with such a filter.
//!
//! [`Channel::pair`]: crate::Channel::pair
//! [`Channel::over`]: crate::Channel::over

/// A system call: its name, and its number on the architecture for which the library was compiled.
///
/// Example: [the arguments of a call](crate::sandbox#arguments).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SystemCall {
    /// The name, as in `SYS_...` of the C library.
    pub name: &'static str,
    /// The number compared by seccomp.
    pub number: i64,
    /// The arguments with which the library makes the call: a list of ways. A filter should allow the call if every
    /// argument of a way fits. An empty list: any arguments. A call in two lists of [`SYSCALLS`] has ways in both.
    pub arguments: &'static [&'static [Argument]],
}

/// An argument of a system call. The argument fits if `argument & mask == value`.
///
/// Example: [the arguments of a call](crate::sandbox#arguments).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Argument {
    /// The place of the argument, from 0 on.
    pub index: u8,
    /// The bits of the argument to compare.
    pub mask: u64,
    /// The required value of the bits.
    pub value: u64,
}

impl Argument {
    /// An argument of type `int` with a required value. The upper half of the register may hold anything.
    const fn int(index: u8, value: i32) -> Self {
        Self { index, mask: u32::MAX as u64, value: value as u32 as u64 }
    }

    /// An argument of type `int` that must lack the given bits.
    const fn without(index: u8, bits: i32) -> Self {
        Self { index, mask: bits as u32 as u64, value: 0 }
    }

    /// A pointer that must be null.
    const fn null(index: u8) -> Self {
        Self { index, mask: u64::MAX, value: 0 }
    }
}

/// Lists of system calls by the work of a process after its filter is active.
///
/// Example: [the calls of a filter](crate::sandbox).
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct SystemCalls {
    /// System calls for messages, waiting, and channels over existing links or over a socket of the program. Every
    /// process needs these calls.
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
    ///
    /// A filter may kill for `open` and `openat` if the process makes no `Region::reader`, and drops no message with
    /// handles that it has not taken, for example because it [accepts no
    /// descriptors](crate::Options::accept_descriptors).
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

/// Returns a list of system calls, each with the ways of its arguments if it has any.
macro_rules! calls {
    ($($(#[$when:meta])* $name:ident $number:ident $($arguments:expr)?),* $(,)?) => {
        &[$($(#[$when])* SystemCall {
            name: stringify!($name),
            number: libc::$number as i64,
            arguments: calls!(@ways $($arguments)?),
        }),*]
    };
    (@ways) => { &[] };
    (@ways $arguments:expr) => { $arguments };
}

/// Memory that no instruction is fetched from.
const NO_CODE: &[&[Argument]] = &[&[Argument::without(2, libc::PROT_EXEC)]];

/// A Unix socket that sends to its peer alone: through a datagram socket a process can send to any other.
const UNIX_SEQPACKET: &[&[Argument]] = &[&[
    Argument::int(0, libc::AF_UNIX),
    Argument {
        index: 1,
        mask: !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u32 as u64,
        value: libc::SOCK_SEQPACKET as u64,
    },
]];

/// The system calls that a sandbox must allow, for each phase.
///
/// Example: [the calls of a filter](self).
pub const SYSCALLS: SystemCalls = SystemCalls {
    running: calls![
        // The allocator's memory, and shared memory.
        brk SYS_brk,
        mmap SYS_mmap NO_CODE,
        mremap SYS_mremap,
        munmap SYS_munmap,
        mprotect SYS_mprotect NO_CODE,
        madvise SYS_madvise,
        memfd_create SYS_memfd_create,
        ftruncate SYS_ftruncate,
        pread64 SYS_pread64,
        pwrite64 SYS_pwrite64,
        fcntl SYS_fcntl &[
            &[Argument::int(1, libc::F_DUPFD_CLOEXEC)],
            &[Argument::int(1, libc::F_GETFD)],
            &[Argument::int(1, libc::F_SETFD)],
            &[Argument::int(1, libc::F_GETFL)],
            &[Argument::int(1, libc::F_ADD_SEALS)],
            &[Argument::int(1, libc::F_GET_SEALS)],
        ],
        fstat SYS_fstat,
        fstatfs SYS_fstatfs,
        prlimit64 SYS_prlimit64 &[&[Argument::int(0, 0), Argument::null(2)]],
        close SYS_close,
        // Links.
        sendmsg SYS_sendmsg,
        recvmsg SYS_recvmsg,
        recvfrom SYS_recvfrom,
        socketpair SYS_socketpair UNIX_SEQPACKET,
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
        fcntl SYS_fcntl &[
            &[Argument::int(1, libc::F_SETFL)],
            &[Argument::int(1, libc::F_SETLK)],
            &[Argument::int(1, libc::F_SETLKW)],
        ],
        openat SYS_openat,
        #[cfg(target_arch = "x86_64")]
        open SYS_open,
        socket SYS_socket UNIX_SEQPACKET,
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
