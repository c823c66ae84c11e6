//! The errors of each system call of the library, by its manual page or because of a sandbox.

/// The system calls, by their names in the library, and their errors in the matrix. A call without an entry never
/// fails.
const ERRORS: &[(&str, &[&str])] = &[
    ("accept", &["ECONNABORTED", "EINTR", "EMFILE", "ENFILE", "ENOMEM", "EPERM"]),
    ("bind", &["EACCES", "ENOMEM", "ENOSPC", "EPERM"]),
    ("chmod", &["EPERM"]),
    ("connect", &["EACCES", "ECONNREFUSED", "EINTR", "EPERM"]),
    ("epoll_create1", &["EMFILE", "ENFILE", "ENOMEM", "EPERM"]),
    ("epoll_ctl", &["ENOMEM", "ENOSPC", "EPERM"]),
    ("epoll_ctl(DEL)", &["ENOMEM", "ENOENT"]),
    ("epoll_wait", &["EINTR", "EPERM"]),
    ("eventfd", &["EMFILE", "ENFILE", "ENOMEM", "ENOSYS", "EPERM"]),
    ("fcntl(F_ADD_SEALS)", &["EBUSY", "EPERM", "EINVAL"]),
    ("fcntl(F_DUPFD_CLOEXEC)", &["EMFILE", "EPERM"]),
    ("fcntl(F_GETFL)", &["EPERM"]),
    ("fcntl(F_GET_SEALS)", &["EPERM", "ENOSYS"]),
    ("fcntl(F_SETFD)", &["EPERM"]),
    ("fcntl(F_SETLK)", &["EINTR", "ENOMEM", "EPERM"]),
    ("fcntl(F_SETLKW)", &["EINTR", "ENOMEM", "EPERM"]),
    ("fchmod", &["EPERM"]),
    ("fstat", &["ENOMEM", "EPERM"]),
    ("fstatfs", &["EINTR", "EIO", "ENOMEM", "ENOSYS", "EPERM"]),
    ("ftruncate", &["EFBIG", "EINTR", "EINVAL", "ENOSPC", "EPERM"]),
    ("futex(WAIT)", &["EAGAIN", "EINTR", "ENOSYS", "EPERM", "ETIMEDOUT"]),
    ("futex(WAKE)", &["EINVAL", "ENOSYS", "EPERM"]),
    ("futex_waitv", &["EAGAIN", "EINTR", "ENOMEM", "ENOSYS", "EPERM", "ETIMEDOUT"]),
    ("getpeername", &["ENOBUFS"]),
    ("getrandom", &["EINTR", "ENOSYS", "EPERM"]),
    ("getsockopt", &["ENOMEM", "EPERM"]),
    ("getsockopt(SO_PEEK_OFF)", &["ENOPROTOOPT", "EPERM"]),
    ("getsockopt(SO_PEERCRED)", &["EPERM"]),
    ("getsockopt(SO_PEERPIDFD)", &["EMFILE", "ENOPROTOOPT", "ENOMEM", "ESRCH", "EPERM"]),
    ("madvise(MADV_DONTFORK)", &["EAGAIN", "EINVAL", "ENOMEM"]),
    ("madvise(MADV_POPULATE_WRITE)", &["EAGAIN", "EINVAL", "ENOMEM"]),
    ("madvise(MADV_WIPEONFORK)", &["EINVAL", "ENOMEM"]),
    ("listen", &["EPERM"]),
    ("memfd_create", &["EACCES", "EINVAL", "EMFILE", "ENFILE", "ENOMEM", "ENOSYS", "EPERM"]),
    ("mmap", &["EACCES", "EAGAIN", "ENFILE", "ENOMEM", "EPERM"]),
    ("open", &["EACCES", "EMFILE", "ENFILE", "ENOMEM"]),
    ("pidfd_open", &["EMFILE", "ENFILE", "ENOMEM", "ENOSYS", "EPERM", "ESRCH"]),
    ("ppoll", &["EINTR", "ENOMEM", "EPERM"]),
    ("pwrite", &["EINTR", "EFBIG", "EIO", "ENOSPC"]),
    ("read", &["EAGAIN", "EINTR"]),
    ("recvfrom", &["ECONNRESET", "EINTR", "ENOBUFS", "ENOMEM"]),
    ("recvmsg(MSG_PEEK)", &["ECONNRESET", "EINTR", "ENOBUFS", "ENOMEM"]),
    // EPIPE and EAGAIN are missing: the kernel returns them if the peer is gone or the socket is full; scenarios have
    // both.
    ("sendmsg", &["EINTR", "EMSGSIZE", "ENOBUFS", "ENOMEM", "EPERM", "ETOOMANYREFS"]),
    ("rt_sigprocmask", &["ENOSYS", "EPERM"]),
    ("rt_sigtimedwait", &["EAGAIN", "EINTR"]),
    ("setsockopt", &["ENOPROTOOPT", "EPERM"]),
    ("setsockopt(SO_PASSCRED)", &["ENOMEM", "ENOPROTOOPT", "EPERM"]),
    ("shutdown", &["ENOBUFS", "ENOTCONN"]),
    ("socket", &["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "EPERM"]),
    ("socketpair", &["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "EPERM"]),
    ("stat", &["ENOMEM"]),
    ("unlink", &["EPERM"]),
    ("unlink(lock)", &["EPERM"]),
    ("unlink(name)", &["EPERM"]),
    ("write", &["EAGAIN", "EINTR"]),
];

/// System calls without an effect on other processes. A kill before such a call tests nothing new. Calls right behind
/// a fault point of their own are listed too.
const INVISIBLE: &[&str] = &[
    "epoll_create1",
    "epoll_ctl",
    "epoll_ctl(DEL)",
    "eventfd",
    "fcntl(F_DUPFD)",
    "fcntl(F_DUPFD_CLOEXEC)",
    "fcntl(F_GETFD)",
    "fcntl(F_GETFL)",
    "fcntl(F_GET_SEALS)",
    "fcntl(F_SETFD)",
    "fstat",
    "fstatfs",
    "getpeername",
    "getrandom",
    "getsockopt",
    "getsockopt(SO_PEEK_OFF)",
    "getsockopt(SO_PEERCRED)",
    "getsockopt(SO_PEERPIDFD)",
    "madvise(MADV_POPULATE_WRITE)",
    "madvise(MADV_WIPEONFORK)",
    "read",
    "recvmsg(MSG_PEEK)",
    "rt_sigprocmask",
    "rt_sigtimedwait",
    "sendmsg",
    "setsockopt",
    "setsockopt(SO_PASSCRED)",
    "setsockopt(SO_PASSRIGHTS)",
    "socket",
    "socketpair",
    "stat",
    "write",
];

/// Returns the errors of the system call `point`; `None` if `point` is no call that can fail.
pub(crate) fn errors(point: &str) -> Option<&'static [&'static str]> {
    ERRORS.iter().find(|(call, _)| *call == point).map(|(_, errors)| *errors)
}

/// Returns whether other processes can see the step `point`.
pub(crate) fn is_visible(point: &str) -> bool {
    !INVISIBLE.contains(&point)
}
