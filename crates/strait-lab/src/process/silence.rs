//! Forbids system calls, so that "no system call per message" is proven and not sampled.
//!
//! After [`begin`] the kernel kills the process at its first system call. Two calls are exceptions: ending the
//! process, and writing to the socket on standard input, by which a measured process reports; no mechanism knows of
//! that socket. A loop that survives has therefore made no system call.

use rustix::process::Signal;
use rustix::thread::set_no_new_privs;

use crate::trouble::{Result, Trouble, While};

/// The signal that kills a process for a forbidden system call.
pub(crate) const BROKEN: i32 = Signal::SYS.as_raw();

/// An instruction of the classic packet filter language, in which seccomp filters are written: load a word.
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
/// An instruction of the classic packet filter language: jump if the loaded word equals a constant.
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
/// An instruction of the classic packet filter language: end the filter with a verdict.
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// The offset of the system call's number in `seccomp_data`, in bytes.
const NUMBER: u32 = 0;
/// The offset of the low half of the system call's first argument in `seccomp_data`, in bytes.
const FIRST_ARGUMENT: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };

/// Forbids this thread every system call but the two of [`farewell`].
pub(crate) fn begin() -> Result<()> {
    const fn word(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }
    let filter = [
        word(LOAD, NUMBER, 0, 0),
        word(JUMP_IF_EQUAL, libc::SYS_exit_group as u32, 4, 0),
        word(JUMP_IF_EQUAL, libc::SYS_write as u32, 0, 2),
        word(LOAD, FIRST_ARGUMENT, 0, 0),
        word(JUMP_IF_EQUAL, libc::STDIN_FILENO as u32, 1, 0),
        word(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        word(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };

    // Without `no_new_privs` only a privileged process may install a filter.
    set_no_new_privs(true).doing("prctl(PR_SET_NO_NEW_PRIVS)")?;
    // SAFETY: `program` and the filter it points to live until the call returns; the kernel only reads and copies
    // them.
    let refused = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    if refused == 0 {
        Ok(())
    } else {
        let why = std::io::Error::last_os_error();
        Err(Trouble::new(format!("prctl(PR_SET_SECCOMP): {why}")))
    }
}

/// Reports `packet` and ends the process, by the two system calls that are still allowed.
pub(crate) fn farewell(packet: &[u8]) -> ! {
    if !packet.is_empty() {
        // SAFETY: a plain write of a valid slice. If the call fails, the receiver notices the missing report.
        unsafe { libc::write(libc::STDIN_FILENO, packet.as_ptr().cast(), packet.len()) };
    }
    // SAFETY: ends the process without running any more of its code, on purpose: destructors make system calls.
    unsafe { libc::_exit(0) }
}
