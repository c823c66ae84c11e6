//! Starting a process with a channel.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;

use crate::args;
use crate::channel::strait_channel;
use crate::options::{options, strait_options};
use crate::status::{Failure, call, strait_status};

/// Returns the texts of an array with `NULL` at the end.
///
/// # Safety
/// `array` is `NULL`, or such an array; each text ends with a zero.
unsafe fn texts<'a>(array: *const *const c_char) -> impl Iterator<Item = &'a OsStr> {
    let mut next = array;
    std::iter::from_fn(move || {
        // SAFETY: the array goes on until there is a `NULL`.
        let text = unsafe { args::text(*next.as_ref()?) }?;
        // SAFETY: the caller's promise.
        next = unsafe { next.add(1) };
        Some(OsStr::from_bytes(CStr::to_bytes(text)))
    })
}

/// Converts program, arguments and environment to a command.
///
/// # Errors
/// [`Failure::Invalid`] if `program` is `NULL`, or a text in `envp` is not `NAME=value`.
///
/// # Safety
/// `program` is `NULL` or a text; `argv` and `envp` are `NULL`, or arrays of texts that end with `NULL`.
pub(crate) unsafe fn command(
    program: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> Result<Command, Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        let program = args::path(program).ok_or(Failure::Invalid("program is NULL"))?;
        let mut command = Command::new(program);
        let mut arguments = texts(argv);
        if let Some(own_name) = arguments.next() {
            command.arg0(own_name).args(arguments);
        }
        if !envp.is_null() {
            command.env_clear();
            for variable in texts(envp) {
                let mut parts = variable.as_bytes().splitn(2, |byte| *byte == b'=').map(OsStr::from_bytes);
                match (parts.next(), parts.next()) {
                    (Some(name), Some(value)) if !name.is_empty() => command.env(name, value),
                    _ => return Err(Failure::Invalid("a text in envp is not NAME=value")),
                };
            }
        }
        Ok(command)
    }
}

/// Starts a program with a channel. The program takes its end with `strait_from_parent`.
///
/// `program` is searched in `PATH` if the text has no slash. `argv` are the arguments: the first is the program's own
/// name, and the last is `NULL`. `envp` is the environment, also with `NULL` at the end; if `envp` is `NULL`, the
/// program gets the environment of this process. `options` apply to this end, and may be `NULL`. The caller keeps all
/// of these. `channel` receives this end, owned by the caller. `pid` receives the process number; the caller has to
/// wait for the process as for any child.
///
/// The program inherits a single descriptor of Strait. Messages sent before the program takes its end wait for the
/// program. If the program exits without taking its end, this end gets `STRAIT_PEER_CLOSED`. Does not block, except for
/// starting the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_spawn(
    program: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    options: *const strait_options,
    channel: *mut *mut strait_channel,
    pid: *mut libc::pid_t,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        let (channel, pid, mut command, options) = unsafe {
            let channel = args::out(channel, ptr::null_mut(), "channel is NULL");
            let pid = args::out(pid, 0, "pid is NULL")?;
            (channel?, pid, command(program, argv, envp)?, self::options(options)?)
        };
        let (child, ours) = options.spawn(&mut command)?;
        *pid = child.id().cast_signed();
        *channel = strait_channel::give(ours);
        Ok(())
    })
}

/// Maximum number of bytes of the value of `STRAIT_PARENT`, including the zero at the end.
pub const STRAIT_INHERITANCE_LEN: usize = 40;

/// Makes a channel to a program that the caller starts in another way than with `strait_spawn`.
///
/// `options` apply to this end, and may be `NULL`. `channel` receives this end, owned by the caller. `fd` receives the
/// descriptor for the program. The program has to inherit the descriptor under the number `number`, which must be above
/// 2; -1 means the present number of the descriptor. The descriptor is closed on `exec`, and the caller has to close it
/// once the program has started. `value` receives a text for the program's environment, as the variable
/// `STRAIT_PARENT`; there must be room for `STRAIT_INHERITANCE_LEN` bytes. On failure the function writes `NULL`, -1
/// and an empty text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_inheritance(
    options: *const strait_options,
    number: c_int,
    channel: *mut *mut strait_channel,
    fd: *mut c_int,
    value: *mut c_char,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid, and `value` to have that many bytes.
        let (channel, fd, value, options) = unsafe {
            let channel = args::out(channel, ptr::null_mut(), "channel is NULL");
            let fd = args::out(fd, -1, "fd is NULL");
            let value = args::out(value.cast::<[u8; STRAIT_INHERITANCE_LEN]>(), [0; _], "value is NULL");
            (channel?, fd?, value?, self::options(options)?)
        };
        if (0..3).contains(&number) || number < -1 {
            return Err(Failure::Invalid("number is neither -1 nor above 2"));
        }
        let (ours, inheritance) = options.inheritance()?;
        let text = if number < 0 { inheritance.value() } else { inheritance.value_at(number) };
        value[..text.len()].copy_from_slice(text.as_bytes());
        *fd = OwnedFd::from(inheritance).into_raw_fd();
        *channel = strait_channel::give(ours);
        Ok(())
    })
}

/// Takes the channel to the parent process, which started this process with `strait_spawn`, or with the corresponding
/// function of another language. Works once in the life of a process. Does not block.
///
/// `options` may be `NULL`. `channel` receives the end, which the caller owns, or `NULL` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_from_parent(
    options: *const strait_options,
    channel: *mut *mut strait_channel,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (channel, options) =
            unsafe { (args::out(channel, ptr::null_mut(), "channel is NULL")?, self::options(options)?) };
        *channel = strait_channel::give(options.from_parent()?);
        Ok(())
    })
}
