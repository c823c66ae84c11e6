//! Listening and connecting: by name, and by invitation.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::time::{Duration, UNIX_EPOCH};

use strait::meet::{Connector, Invitation, ListenerBuilder};
use strait::{Error, Listener, Options};

use crate::args;
use crate::channel::strait_channel;
use crate::deadline::{strait_deadline, until};
use crate::options::{options, strait_options};
use crate::peer::{Context, say, strait_peer};
use crate::spawn::command;
use crate::status::{Failure, call, call_or, strait_status};

/// A function that decides whether a listener accepts a process: return true to accept. `peer` describes the process;
/// all fields come from the kernel.
pub type strait_policy = Option<unsafe extern "C" fn(peer: *const strait_peer, context: *mut c_void) -> bool>;

/// A function called for each refused process. `peer` describes the process as known to the kernel, or is `NULL` if the
/// process kept the kernel from answering. `why` is the reason; `strait_last_error_text` gives details.
pub type strait_tell_refused =
    Option<unsafe extern "C" fn(peer: *const strait_peer, why: strait_status, context: *mut c_void)>;

/// Options of a listener. Zero means the default of each option.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_listener_options {
    /// The directory for the name; `NULL` for the directory of this user. Copied.
    pub directory: *const c_char,
    /// The permissions of the name, at most 0777: 0600 by default.
    pub mode: u32,
    /// 1 to accept only processes that connect with the token of an invitation.
    pub invited_only: u32,
    /// Limit on pending connections of a user: 32 by default.
    pub waiting_of_a_user: u32,
    /// Limit on pending connections of all users: 128 by default.
    pub waiting_of_all: u32,
    /// The function that decides which processes the listener accepts; with `NULL` the listener accepts every process
    /// of this user. Called without a lock, in the accepting thread. The function must not use the listener.
    pub policy: strait_policy,
    /// The function that is called for each refused process; `NULL` for none. Called as `policy` is.
    pub on_refused: strait_tell_refused,
    /// The argument `context` of both functions. Must stay valid as long as the listener and its invitations.
    pub context: *mut c_void,
    /// Options of the channels that the listener makes; `NULL` for the defaults. Copied.
    pub channel: *const strait_options,
    /// Reserved; must be zero.
    pub reserved: [u64; 4],
}

/// A listener, to which other processes connect under a name. Any number of threads may use the listener at once. Free
/// the listener when no thread uses it any more.
///
/// A listener has no thread of its own: the threads that accept also handle the pending connections.
#[derive(Debug)]
pub struct strait_listener {
    pub(crate) listener: Listener,
    /// The path of the listener's socket, for `strait_listener_path`.
    path: CString,
}

/// Converts the options of C code to a builder of a listener.
fn builder(given: Option<&strait_listener_options>) -> Result<ListenerBuilder, Failure> {
    let mut builder = Listener::builder();
    let Some(given) = given else { return Ok(builder) };
    if given.reserved != [0; 4] || given.invited_only > 1 || given.mode > 0o777 {
        return Err(Failure::Invalid(
            "strait_listener_options: reserved fields must be 0, flags 0 or 1: zero the struct first",
        ));
    }
    // SAFETY: the header requires both pointers to be valid.
    let (channel, directory) = unsafe { (options(given.channel)?, args::path(given.directory)) };
    builder = builder.options(channel);
    if let Some(directory) = directory {
        builder = builder.directory(directory);
    }
    if given.mode != 0 {
        builder = builder.mode(given.mode);
    }
    if given.invited_only == 1 {
        builder = builder.invited_only();
    }
    let places = |given: u32, default| if given == 0 { default } else { given as usize };
    builder = builder.waiting(places(given.waiting_of_a_user, 32), places(given.waiting_of_all, 128));
    let context = Context::new(given.context);
    if let Some(policy) = given.policy {
        // SAFETY: the header requires both pointers to be valid.
        builder = builder.policy(move |peer| unsafe { policy(&(*peer).into(), context.get()) });
    }
    if let Some(tell) = given.on_refused {
        builder = builder.on_refused(move |refused| {
            let peer = refused.peer.map(strait_peer::from);
            let why = say(refused.why);
            // SAFETY: the header requires both pointers to be valid.
            unsafe { tell(peer.as_ref().map_or(ptr::null(), ptr::from_ref), why, context.get()) };
        });
    }
    Ok(builder)
}

/// Returns a listener object owned by C code.
fn give_listener(listener: Listener) -> *mut strait_listener {
    let path = CString::new(listener.path().as_os_str().as_bytes()).unwrap_or_default();
    Box::into_raw(Box::new(strait_listener { listener, path }))
}

/// Listens under a name. Blocks only while another process of this user takes the same name, or another thread of this
/// process takes any name.
///
/// `name` may be an absolute path: the last part is then the name, and the rest its directory. `options` may be `NULL`.
/// `listener` receives the listener, which the caller owns, or `NULL` on failure. Fails with
/// `STRAIT_NAME_TAKEN` if another process, or another listener of this process, listens under the name. The name of a
/// process that is gone is taken over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_bind(
    name: *const c_char,
    options: *const strait_listener_options,
    listener: *mut *mut strait_listener,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        let (out, name, options) =
            unsafe { (args::out(listener, ptr::null_mut(), "listener is NULL")?, self::name(name)?, options.as_ref()) };
        *out = give_listener(builder(options)?.bind(name)?);
        Ok(())
    })
}

/// Listens on a socket that a service manager made. `name` is the name of the socket in the unit
/// (`FileDescriptorName=`); `NULL` takes the only socket. Each socket can be taken once. Otherwise like
/// `strait_listener_bind`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_activated(
    name: *const c_char,
    options: *const strait_listener_options,
    listener: *mut *mut strait_listener,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        let (out, name, options) =
            unsafe { (args::out(listener, ptr::null_mut(), "listener is NULL")?, args::text(name), options.as_ref()) };
        let name = name.map(|name| name.to_str().map_err(|_| Error::NotActivated)).transpose()?;
        *out = give_listener(builder(options)?.activated(name)?);
        Ok(())
    })
}

/// Returns the name as a string of Rust.
///
/// # Errors
/// [`Failure::Invalid`] if `name` is `NULL`; [`Error::BadName`] if the name is not UTF-8.
///
/// # Safety
/// `name` is `NULL`, or points to a text with a zero at the end.
unsafe fn name<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let name = unsafe { args::text(name) }.ok_or(Failure::Invalid("name is NULL"))?;
    Ok(name.to_str().map_err(|_| Error::BadName)?)
}

/// Stops listening, and frees the listener. Its invitations are refused from now on. Ignores `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_free(listener: *mut strait_listener) {
    if !listener.is_null() {
        // SAFETY: `give_listener` made the object, and the caller gives the object up.
        call_or((), || drop(unsafe { Box::from_raw(listener) }));
    }
}

/// Waits for the next process until the deadline, and accepts the process. Refused processes do not end the wait.
///
/// `channel` receives this end of the new channel, or `NULL` on failure; the caller owns the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_accept(
    listener: *const strait_listener,
    channel: *mut *mut strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, listener) = unsafe {
            (args::out(channel, ptr::null_mut(), "channel is NULL")?, args::reference(listener, "listener is NULL")?)
        };
        *out = strait_channel::give(listener.listener.accept(until(deadline))?);
        Ok(())
    })
}

/// Ends all waits in `strait_listener_accept` and `strait_invitation_accept`, those in progress and all later ones.
/// The waits fail with `STRAIT_CLOSED`. To stop a service, call this function from another thread, and free the
/// listener once no thread uses it. Does not block. Ignores `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_stop(listener: *const strait_listener) {
    call_or((), || {
        // SAFETY: the pointer is `NULL`, or an object of the caller's.
        if let Some(listener) = unsafe { listener.as_ref() } {
            listener.listener.interrupter().interrupt();
        }
    });
}

/// Returns a descriptor for event loops. It is readable when `strait_listener_accept` with `STRAIT_NOW` has work to do,
/// though that function does not always return a channel then. The listener owns the descriptor. Returns -1 if
/// `listener` is `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_fd(listener: *const strait_listener) -> c_int {
    use std::os::fd::AsFd;
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { listener.as_ref() }.map_or(-1, |listener| listener.listener.as_fd().as_raw_fd())
}

/// Returns the path of the listener's socket. Valid until the listener is freed. Returns `NULL` if `listener` is
/// `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_path(listener: *const strait_listener) -> *const c_char {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { listener.as_ref() }.map_or(ptr::null(), |listener| listener.path.as_ptr())
}

/// Options of a connection. Zero means the default of each option.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_connect_options {
    /// The directory of the name; `NULL` for this user's name directory.
    pub directory: *const c_char,
    /// Options of the channel; `NULL` for the defaults.
    pub channel: *const strait_options,
    /// The required uid of the server, if `has_server` is 1. Otherwise the server must have the uid of this process.
    pub server: u32,
    /// 1 if `server` is set; otherwise 0.
    pub has_server: u32,
    /// 1 to wait until the deadline for a listener of this name, if there is none yet; otherwise 0.
    pub wait_for_listener: u32,
    /// Reserved; must be zero.
    pub reserved_flags: u32,
    /// Reserved; must be zero.
    pub reserved: [u64; 3],
}

/// Connects to the process that listens under a name; waits until the deadline for the server to accept.
///
/// `name` may be an absolute path: the last part is then the name, and the rest its directory. `options` may be `NULL`.
/// `channel` receives this end of the new channel, which the caller owns, or `NULL` on failure. Fails with
/// `STRAIT_NOBODY_THERE`, `STRAIT_REFUSED` or `STRAIT_WRONG_SERVER`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_connect(
    name: *const c_char,
    options: *const strait_connect_options,
    channel: *mut *mut strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        let (out, name, given) =
            unsafe { (args::out(channel, ptr::null_mut(), "channel is NULL")?, self::name(name)?, options.as_ref()) };
        let mut connector = Connector::new();
        if let Some(given) = given {
            let reserved = (given.reserved_flags, given.reserved);
            if reserved != (0, [0; 3]) || given.has_server > 1 || given.wait_for_listener > 1 {
                return Err(Failure::Invalid(
                    "strait_connect_options: reserved fields must be 0, flags 0 or 1: zero the struct first",
                ));
            }
            // SAFETY: the header requires both pointers to be valid.
            let (channel, directory) = unsafe { (self::options(given.channel)?, args::path(given.directory)) };
            connector = connector.options(channel);
            if let Some(directory) = directory {
                connector = connector.directory(directory);
            }
            if given.has_server == 1 {
                connector = connector.server(given.server);
            }
            if given.wait_for_listener == 1 {
                connector = connector.wait_for_listener();
            }
        }
        *out = strait_channel::give(connector.connect(name, until(deadline))?);
        Ok(())
    })
}

/// An invitation: a one-time token with which one process can connect. Any number of threads may use the invitation at
/// once. Free the invitation when no thread uses it any more.
#[derive(Debug)]
pub struct strait_invitation {
    invitation: Invitation,
}

/// Makes an invitation for one process, valid for `nanoseconds`.
///
/// `invitation` receives the invitation, which the caller owns, or `NULL` on failure. The invitation may outlive the
/// listener, but then no process is let in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_invite(
    listener: *const strait_listener,
    nanoseconds: u64,
    invitation: *mut *mut strait_invitation,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, listener) = unsafe {
            let out = args::out(invitation, ptr::null_mut(), "invitation is NULL")?;
            (out, args::reference(listener, "listener is NULL")?)
        };
        let invitation = listener.listener.invite(Duration::from_nanos(nanoseconds))?;
        *out = Box::into_raw(Box::new(strait_invitation { invitation }));
        Ok(())
    })
}

/// Revokes an invitation, and frees the object. Ignores `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_invitation_free(invitation: *mut strait_invitation) {
    if !invitation.is_null() {
        // SAFETY: `strait_listener_invite` made the object, and the caller gives the object up.
        call_or((), || drop(unsafe { Box::from_raw(invitation) }));
    }
}

/// Starts a program as `strait_spawn` does, and writes the invitation to the program's standard input. The program
/// takes its end with `strait_invited`.
///
/// `pid` receives the process number; the caller has to wait for the process as for any child. `stdin_fd` receives the
/// writing end of the program's standard input, which the caller has to close; if `stdin_fd` is `NULL`, that end is
/// closed at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_invitation_spawn(
    invitation: *const strait_invitation,
    program: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    pid: *mut libc::pid_t,
    stdin_fd: *mut c_int,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        let (invitation, pid, stdin, mut command) = unsafe {
            let stdin = (!stdin_fd.is_null()).then(|| args::out(stdin_fd, -1, "")).transpose()?;
            let pid = args::out(pid, 0, "pid is NULL")?;
            let invitation = args::reference(invitation, "invitation is NULL")?;
            (invitation, pid, stdin, command(program, argv, envp)?)
        };
        let mut child = invitation.invitation.spawn(&mut command)?;
        *pid = child.id().cast_signed();
        if let (Some(out), Some(stdin)) = (stdin, child.stdin.take()) {
            *out = std::os::fd::OwnedFd::from(stdin).into_raw_fd();
        }
        Ok(())
    })
}

/// Writes the invitation line to `fd`, connected to the standard input of the invited process. Use this function for a
/// process started by the caller's own means. Any process that reads the line can use the invitation. The caller still
/// owns `fd`. Blocks as long as the write to `fd` blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_invitation_tell(invitation: *const strait_invitation, fd: c_int) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointer to be valid.
        let invitation = unsafe { args::reference(invitation, "invitation is NULL") }?;
        if fd < 0 {
            return Err(Failure::Invalid("fd is negative: give an open descriptor"));
        }
        // SAFETY: the file is only written to and never closed, so the caller still owns the descriptor.
        let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        Ok(invitation.invitation.tell(&mut *file)?)
    })
}

/// Accepts the invited process; waits for the process until the deadline.
///
/// `channel` receives this end of the new channel, or `NULL` on failure; the caller owns the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_invitation_accept(
    invitation: *const strait_invitation,
    channel: *mut *mut strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, invitation) = unsafe {
            let out = args::out(channel, ptr::null_mut(), "channel is NULL")?;
            (out, args::reference(invitation, "invitation is NULL")?)
        };
        *out = strait_channel::give(invitation.invitation.accept(until(deadline))?);
        Ok(())
    })
}

/// Connects to the process that sent an invitation over the standard input of this process; waits until the deadline to
/// be accepted. Reads one line of standard input, and no byte more.
///
/// `options` may be `NULL`. `channel` receives this end of the new channel, or `NULL` on failure; the caller owns the
/// end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_invited(
    options: *const strait_options,
    channel: *mut *mut strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, options): (_, Options) =
            unsafe { (args::out(channel, ptr::null_mut(), "channel is NULL")?, self::options(options)?) };
        *out = strait_channel::give(options.invited(until(deadline))?);
        Ok(())
    })
}

/// A name with a present or past listener. Valid only during the call of the function that receives the structure.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_listening {
    /// The name of the listener.
    pub name: *const c_char,
    /// The time in seconds since 1970 at which the listener took the name.
    pub since: i64,
    /// The uid of the user of the name.
    pub uid: u32,
    /// The listening process. 0 if there is no listening process any more, or if its PID namespace is invisible to this
    /// process.
    pub pid: libc::pid_t,
    /// 1 if a process listens; otherwise 0.
    pub is_live: u32,
    /// Always zero.
    pub reserved: u32,
}

/// A function called for each name.
pub type strait_tell_name = Option<unsafe extern "C" fn(name: *const strait_listening, context: *mut c_void)>;

/// Calls `tell` with each name in a directory, sorted. `directory` may be `NULL` for the directory of this user. The
/// function connects to each name to find out whether a process listens there; the listener does not notice. A
/// directory that does not exist has no names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_names(
    directory: *const c_char,
    tell: strait_tell_name,
    context: *mut c_void,
) -> strait_status {
    call(|| {
        let tell = tell.ok_or(Failure::Invalid("tell is NULL"))?;
        // SAFETY: the header requires the pointer to be valid.
        for there in strait::meet::names(unsafe { args::path(directory) })? {
            let name = CString::new(there.name).unwrap_or_default();
            let listening = strait_listening {
                name: name.as_ptr(),
                since: there.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed()),
                uid: there.uid,
                pid: there.pid.map_or(0, u32::cast_signed),
                is_live: there.is_live.into(),
                reserved: 0,
            };
            // SAFETY: the header requires both pointers to be valid.
            unsafe { tell(&listening, context) };
        }
        Ok(())
    })
}
