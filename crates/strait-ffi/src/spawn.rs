//! Starting a process with a channel to it.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;

use strait::CommandExt;

use crate::args;
use crate::channel::strait_channel;
use crate::options::{options, strait_options};
use crate::status::{Failure, call, strait_status};

/// The texts of an array that ends with `NULL`.
///
/// # Safety
/// `array` is `NULL` or such an array.
unsafe fn texts<'a>(array: *const *const c_char) -> impl Iterator<Item = &'a OsStr> {
    let mut next = array;
    std::iter::from_fn(move || {
        // SAFETY: the array goes on until there is a `NULL`.
        let text = unsafe { args::text(*next.as_ref()?) }?;
        // SAFETY: as before.
        next = unsafe { next.add(1) };
        Some(OsStr::from_bytes(CStr::to_bytes(text)))
    })
}

/// A command as C gives it.
///
/// # Safety
/// As the C API says of all three.
pub(crate) unsafe fn command(
    program: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> Result<Command, Failure> {
    // SAFETY: as the caller says.
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

/// Starts a program, with a channel whose other end it takes by `strait_from_parent`.
///
/// `program` is looked for in `PATH` if it has no slash. `argv` are its arguments, the first of them the name by which it knows itself,
/// and the last `NULL`; `envp` is its environment, which ends with `NULL` too, or `NULL` for that of this process. `options` are for this
/// end, or `NULL`. All stay the caller's. `channel` gets this end, which is the caller's; `pid` the process, for which the caller has to
/// wait as for any child.
///
/// The program inherits one descriptor of Strait's, and no other. What is sent before it takes its end waits for it. If it ends without
/// taking it, this end sees `STRAIT_PEER_CLOSED`. Does not block but for starting it.
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
        // SAFETY: as the C API says of all of them.
        let (channel, pid, mut command, options) = unsafe {
            let channel = args::out(channel, ptr::null_mut(), "channel is NULL")?;
            let pid = args::out(pid, 0, "pid is NULL")?;
            (channel, pid, command(program, argv, envp)?, self::options(options)?)
        };
        let (child, ours) = command.spawn_with_channel(&options)?;
        *pid = child.id().cast_signed();
        *channel = strait_channel::give(ours);
        Ok(())
    })
}

/// Takes the channel to the process that started this one by `strait_spawn`, or by the like in another language. Once in the life of a
/// process. Does not block.
///
/// `options` may be `NULL`. `channel` gets the end, which is the caller's; `NULL` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_from_parent(
    options: *const strait_options,
    channel: *mut *mut strait_channel,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (channel, options) =
            unsafe { (args::out(channel, ptr::null_mut(), "channel is NULL")?, self::options(options)?) };
        *channel = strait_channel::give(strait::from_parent(&options)?);
        Ok(())
    })
}
