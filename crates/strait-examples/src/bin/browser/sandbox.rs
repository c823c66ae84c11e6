//! The sandbox of a renderer: the process gives up its rights for good.

use std::collections::BTreeMap;

use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::Result;

/// The permitted system calls of a renderer: for its own and for shared memory, for the sockets of its channels, for
/// sleeping, and for exiting.
const ALLOWED: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    // Shared memory, and checks of memory from other processes.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fchmod,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    // Calls on open descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_getsockopt,
    libc::SYS_shutdown,
    // Time.
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_ppoll,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    // Exiting.
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Limits all threads of this process to the system calls in [`ALLOWED`], for good. Every other system call fails
/// with `EPERM`.
pub(crate) fn enter() -> Result<()> {
    let most = |current| Rlimit { current: Some(current), maximum: Some(current) };
    setrlimit(Resource::Nofile, most(64))?;
    setrlimit(Resource::Core, most(0))?;

    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    // Limits can be read, but not set.
    let reads = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![reads])?]);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    // `apply_filter_all_threads` sets `no_new_privs` first.
    seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter)?)?;
    Ok(())
}
