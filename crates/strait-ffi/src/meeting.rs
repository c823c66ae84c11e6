//! Processes that meet by name, and by invitation.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::time::{Duration, UNIX_EPOCH};

use strait::{Connector, Error, Invitation, Listener, ListenerBuilder, Options};

use crate::args;
use crate::channel::strait_channel;
use crate::deadline::{strait_deadline, until};
use crate::options::{options, strait_options};
use crate::peer::{Context, say, strait_peer};
use crate::spawn::command;
use crate::status::{Failure, call, call_or, strait_status};

/// Says whether a process is let in, by what the kernel says of it.
pub type strait_policy = Option<unsafe extern "C" fn(peer: *const strait_peer, context: *mut c_void) -> bool>;

/// Is told of a process that was not let in: who it was, or `NULL` if it kept the kernel from saying so, and why;
/// `strait_last_error_text` says more.
pub type strait_tell_refused =
    Option<unsafe extern "C" fn(peer: *const strait_peer, why: strait_status, context: *mut c_void)>;

/// How to listen. All zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct strait_listener_options {
    /// The directory in which the name is to be; `NULL` for that of this user. Copied.
    pub directory: *const c_char,
    /// The permissions of the name: 0600 by default.
    pub mode: u32,
    /// 1 to let in only those that come with the token of an invitation.
    pub invited_only: u32,
    /// Connections of one user that may wait to be let in: 32 by default.
    pub waiting_of_a_user: u32,
    /// The same of all users: 128 by default.
    pub waiting_of_all: u32,
    /// Who is let in; `NULL` for every process of this user. Called without a lock, in whichever thread accepts; it must not use the
    /// listener.
    pub policy: strait_policy,
    /// Who is told of those that are not; `NULL` for nobody. Called as `policy` is.
    pub on_refused: strait_tell_refused,
    /// Handed to both; to be good as long as the listener and its invitations.
    pub context: *mut c_void,
    /// Options of the channels that it makes; `NULL` for the defaults. Copied.
    pub channel: *const strait_options,
    /// For later; zeroes.
    pub reserved: [u64; 4],
}

/// Lets other processes connect, under a name. Any number of threads may use it at once; free it when none does any more.
///
/// No thread is started: visitors are dealt with by whoever accepts.
#[derive(Debug)]
pub struct strait_listener {
    listener: Listener,
    path: CString,
}

fn builder(given: Option<&strait_listener_options>) -> Result<ListenerBuilder, Failure> {
    let mut builder = Listener::builder();
    let Some(given) = given else { return Ok(builder) };
    if given.reserved != [0; 4] || given.invited_only > 1 || given.mode > 0o777 {
        return Err(Failure::Invalid(
            "strait_listener_options: reserved fields must be 0, flags 0 or 1: zero the struct first",
        ));
    }
    // SAFETY: as the C API says of both.
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
        // SAFETY: as the C API says of both.
        builder = builder.policy(move |peer| unsafe { policy(&(*peer).into(), context.get()) });
    }
    if let Some(tell) = given.on_refused {
        builder = builder.on_refused(move |refused| {
            let peer = refused.peer.map(strait_peer::from);
            let why = say(refused.why);
            // SAFETY: as the C API says of both.
            unsafe { tell(peer.as_ref().map_or(ptr::null(), ptr::from_ref), why, context.get()) };
        });
    }
    Ok(builder)
}

fn give_listener(listener: Listener) -> *mut strait_listener {
    let path = CString::new(listener.path().as_os_str().as_bytes()).unwrap_or_default();
    Box::into_raw(Box::new(strait_listener { listener, path }))
}

/// Listens under a name. Blocks only while another process of this user takes the same name, or another thread any name.
///
/// `options` may be `NULL`. `listener` gets it, and it is the caller's; `NULL` on failure: `STRAIT_NAME_TAKEN` if somebody listens there.
/// The name of a process that is gone is taken over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_bind(
    name: *const c_char,
    options: *const strait_listener_options,
    listener: *mut *mut strait_listener,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of all of them.
        let (out, name, options) =
            unsafe { (args::out(listener, ptr::null_mut(), "listener is NULL")?, self::name(name)?, options.as_ref()) };
        *out = give_listener(builder(options)?.bind(name)?);
        Ok(())
    })
}

/// Listens on a socket that a service manager made: the one called so in its unit (`FileDescriptorName=`), or with `NULL` the only one.
/// Each can be taken once. Otherwise as `strait_listener_bind`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_activated(
    name: *const c_char,
    options: *const strait_listener_options,
    listener: *mut *mut strait_listener,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of all of them.
        let (out, name, options) =
            unsafe { (args::out(listener, ptr::null_mut(), "listener is NULL")?, args::text(name), options.as_ref()) };
        let name = name.map(|name| name.to_str().map_err(|_| Error::NotActivated)).transpose()?;
        *out = give_listener(builder(options)?.activated(name)?);
        Ok(())
    })
}

/// # Safety
/// `name` is `NULL` or a text.
unsafe fn name<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: as the caller says.
    let name = unsafe { args::text(name) }.ok_or(Failure::Invalid("name is NULL"))?;
    Ok(name.to_str().map_err(|_| Error::BadName)?)
}

/// Stops listening, and frees the listener; its invitations are refused from now on. `NULL` is let pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_free(listener: *mut strait_listener) {
    if !listener.is_null() {
        // SAFETY: it was given out by `give_listener`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(listener) }));
    }
}

/// The channel to the next process that is let in; waits for one until the deadline. Processes that are refused do not end the call.
///
/// `channel` gets this end, which is the caller's; `NULL` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_accept(
    listener: *const strait_listener,
    channel: *mut *mut strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, listener) = unsafe {
            (args::out(channel, ptr::null_mut(), "channel is NULL")?, args::reference(listener, "listener is NULL")?)
        };
        *out = strait_channel::give(listener.listener.accept_by(until(deadline))?);
        Ok(())
    })
}

/// A descriptor that is readable when `strait_listener_accept` with `STRAIT_NOW` has something to do, though not always something to
/// return: for any event loop. It belongs to the listener. -1 if `listener` is `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_fd(listener: *const strait_listener) -> c_int {
    use std::os::fd::AsFd;
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { listener.as_ref() }.map_or(-1, |listener| listener.listener.as_fd().as_raw_fd())
}

/// Where its socket is. Valid as long as the listener.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_path(listener: *const strait_listener) -> *const c_char {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { listener.as_ref() }.map_or(ptr::null(), |listener| listener.path.as_ptr())
}

/// How to connect. All zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_connect_options {
    /// The directory in which the name is; `NULL` for that of this user.
    pub directory: *const c_char,
    /// Options of the channel; `NULL` for the defaults.
    pub channel: *const strait_options,
    /// The user as whom the server is to run, if `has_server` is 1; otherwise this one.
    pub server: u32,
    /// Whether `server` is meant.
    pub has_server: u32,
    /// For later; zeroes.
    pub reserved: [u64; 4],
}

/// The channel to whoever listens under a name; waits to be let in until the deadline.
///
/// `options` may be `NULL`. `channel` gets this end, which is the caller's; `NULL` on failure: `STRAIT_NOBODY_THERE`, `STRAIT_REFUSED`,
/// `STRAIT_WRONG_SERVER`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_connect(
    name: *const c_char,
    options: *const strait_connect_options,
    channel: *mut *mut strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of all of them.
        let (out, name, given) =
            unsafe { (args::out(channel, ptr::null_mut(), "channel is NULL")?, self::name(name)?, options.as_ref()) };
        let mut connector = Connector::new(name);
        if let Some(given) = given {
            if given.reserved != [0; 4] || given.has_server > 1 {
                return Err(Failure::Invalid(
                    "strait_connect_options: reserved fields must be 0, flags 0 or 1: zero the struct first",
                ));
            }
            // SAFETY: as the C API says of both.
            let (channel, directory) = unsafe { (self::options(given.channel)?, args::path(given.directory)) };
            connector = connector.options(channel);
            if let Some(directory) = directory {
                connector = connector.directory(directory);
            }
            if given.has_server == 1 {
                connector = connector.server(given.server);
            }
        }
        *out = strait_channel::give(connector.connect_by(until(deadline))?);
        Ok(())
    })
}

/// Lets one process in, once: whoever is told of it. Any number of threads may use it at once; free it when none does any more.
#[derive(Debug)]
pub struct strait_invitation {
    invitation: Invitation,
}

/// Invites one process, for so many nanoseconds.
///
/// `invitation` gets it, and it is the caller's; `NULL` on failure. It may outlive the listener, but then nobody is let in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_listener_invite(
    listener: *const strait_listener,
    nanoseconds: u64,
    invitation: *mut *mut strait_invitation,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, listener) = unsafe {
            let out = args::out(invitation, ptr::null_mut(), "invitation is NULL")?;
            (out, args::reference(listener, "listener is NULL")?)
        };
        let invitation = listener.listener.invite(Duration::from_nanos(nanoseconds))?;
        *out = Box::into_raw(Box::new(strait_invitation { invitation }));
        Ok(())
    })
}

/// Takes an invitation back, and frees it. `NULL` is let pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_invitation_free(invitation: *mut strait_invitation) {
    if !invitation.is_null() {
        // SAFETY: it came from `strait_listener_invite`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(invitation) }));
    }
}

/// Starts a program, as `strait_spawn` does, and invites it over its standard input: it takes its end by `strait_invited`.
///
/// `pid` gets the process, for which the caller has to wait. `stdin_fd` gets the other end of its standard input, which is the caller's to
/// close; with `NULL` it is closed at once.
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
        // SAFETY: as the C API says of all of them.
        let (invitation, pid, stdin, mut command) = unsafe {
            let invitation = args::reference(invitation, "invitation is NULL")?;
            let stdin = (!stdin_fd.is_null()).then(|| args::out(stdin_fd, -1, "")).transpose()?;
            (invitation, args::out(pid, 0, "pid is NULL")?, stdin, command(program, argv, envp)?)
        };
        let mut child = invitation.invitation.spawn(&mut command)?;
        *pid = child.id().cast_signed();
        if let (Some(out), Some(stdin)) = (stdin, child.stdin.take()) {
            *out = std::os::fd::OwnedFd::from(stdin).into_raw_fd();
        }
        Ok(())
    })
}

/// Writes the line that invites a process to a descriptor that leads to its standard input, for those who start it otherwise. Whoever
/// reads it can come. The descriptor stays the caller's. Blocks as long as writing to it does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_invitation_tell(invitation: *const strait_invitation, fd: c_int) -> strait_status {
    call(|| {
        // SAFETY: as the C API says.
        let invitation = unsafe { args::reference(invitation, "invitation is NULL") }?;
        if fd < 0 {
            return Err(Failure::Invalid("fd is negative: give an open descriptor"));
        }
        // SAFETY: only written to, and not closed: it stays the caller's.
        let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        Ok(invitation.invitation.tell(&mut *file)?)
    })
}

/// The channel to whoever was invited, once it has come; waits for it until the deadline.
///
/// `channel` gets this end, which is the caller's; `NULL` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_invitation_accept(
    invitation: *const strait_invitation,
    channel: *mut *mut strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, invitation) = unsafe {
            let out = args::out(channel, ptr::null_mut(), "channel is NULL")?;
            (out, args::reference(invitation, "invitation is NULL")?)
        };
        *out = strait_channel::give(invitation.invitation.accept_by(until(deadline))?);
        Ok(())
    })
}

/// The channel to whoever invited this process over its standard input, of which one line is read and no byte more; waits to be let in
/// until the deadline.
///
/// `options` may be `NULL`. `channel` gets this end, which is the caller's; `NULL` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_invited(
    options: *const strait_options,
    channel: *mut *mut strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, options): (_, Options) =
            unsafe { (args::out(channel, ptr::null_mut(), "channel is NULL")?, self::options(options)?) };
        *out = strait_channel::give(strait::invited(&options, until(deadline))?);
        Ok(())
    })
}

/// A name under which somebody listens, or did. What it points to is valid during the call that is told of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_listening {
    /// The name.
    pub name: *const c_char,
    /// When it was taken, in seconds since 1970.
    pub since: i64,
    /// The user whose it is.
    pub uid: u32,
    /// The process that listens; 0 if nobody does any more, or if it is in a process namespace that this one does not see.
    pub pid: libc::pid_t,
    /// 1 if anybody listens, otherwise 0.
    pub is_live: u32,
    /// Zero.
    pub reserved: u32,
}

/// Is told of a name.
pub type strait_tell_name = Option<unsafe extern "C" fn(name: *const strait_listening, context: *mut c_void)>;

/// Calls `tell` with each name in a directory, sorted; `NULL` for that of this user. That somebody listens is found out by connecting to
/// it, which it does not notice. A directory that is not there has no names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_names(
    directory: *const c_char,
    tell: strait_tell_name,
    context: *mut c_void,
) -> strait_status {
    call(|| {
        let tell = tell.ok_or(Failure::Invalid("tell is NULL"))?;
        // SAFETY: as the C API says.
        for there in strait::names(unsafe { args::path(directory) })? {
            let name = CString::new(there.name).unwrap_or_default();
            let listening = strait_listening {
                name: name.as_ptr(),
                since: there.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed()),
                uid: there.uid,
                pid: there.pid.map_or(0, u32::cast_signed),
                is_live: there.is_live.into(),
                reserved: 0,
            };
            // SAFETY: as the C API says of both.
            unsafe { tell(&listening, context) };
        }
        Ok(())
    })
}
