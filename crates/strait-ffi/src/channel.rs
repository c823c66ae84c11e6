//! An end of a channel as C holds it.
//!
//! C code has a pointer and no borrow checker. Two things must not happen whatever it does with a pointer that is still good:
//! that an end is dropped while a call on it is under way in another thread, and that it is sent away meanwhile. So a
//! [`strait_channel`] counts its references, one for each thread, and says in one word whether its end is still there and how
//! many use it just now:
//!
//! ```text
//!  31       30      29      28 ... 0
//!  CLOSED   MOVED   SHARED  calls under way, views and reservations
//! ```
//!
//! As long as there never was more than one reference, only one thread can be in a call, so calls are not counted at all and
//! cost one load more than in Rust. Views and reservations outlive the calls that make them and are always counted. Whoever
//! closes an end that is in use ends what the others wait for, and leaves it to the last user to drop it. Whoever sends it says
//! that it has moved, ends what the others wait for, and goes on when they have left; unless a view or a reservation is held,
//! which nobody can end.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use strait::{Channel, Error};

use crate::args;
use crate::deadline::{strait_deadline, until};
use crate::options::{options, strait_options};
use crate::status::{Failure, call, call_or, strait_status};

const CLOSED: u32 = 1 << 31;
const MOVED: u32 = 1 << 30;
const SHARED: u32 = 1 << 29;
const USERS: u32 = SHARED - 1;

/// One end of a channel: a bidirectional, ordered stream of messages between two processes, or within one.
///
/// A pointer to one is a reference, which one thread uses at a time. For another thread make one with `strait_channel_ref`. When
/// the last reference is released, the end is closed.
pub struct strait_channel {
    state: AtomicU32,
    references: AtomicU32,
    /// Of the users, those that stay until the caller frees something.
    held: AtomicU32,
    /// Whether `channel` was taken for good.
    taken: AtomicBool,
    channel: UnsafeCell<ManuallyDrop<Channel>>,
}

impl strait_channel {
    /// Gives an end out to C.
    pub(crate) fn give(channel: Channel) -> *mut Self {
        Box::into_raw(Box::new(Self {
            state: AtomicU32::new(0),
            references: AtomicU32::new(1),
            held: AtomicU32::new(0),
            taken: AtomicBool::new(false),
            channel: UnsafeCell::new(ManuallyDrop::new(channel)),
        }))
    }

    /// The end, for a call.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Using<'_>, Failure> {
        if self.state.load(Ordering::Acquire) & (CLOSED | MOVED | SHARED) == 0 {
            return Ok(Using { shell: self, is_counted: false });
        }
        self.enter_counted()
    }

    /// The end, for as long as this is held.
    #[inline(never)]
    fn enter_counted(&self) -> Result<Using<'_>, Failure> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let using = Using { shell: self, is_counted: true };
        if before & CLOSED != 0 {
            Err(Failure::Closed)
        } else if before & MOVED != 0 {
            Err(Failure::Moved)
        } else {
            Ok(using)
        }
    }

    fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        // One that has moved is not there to be dropped; or it is put back, and then dropped by whoever does that.
        if before & (CLOSED | MOVED) == CLOSED && before & USERS == 1 {
            self.drop_channel();
        }
    }

    /// Drops the end, once. Nobody uses it any more: it is closed, and was so before the last user left.
    fn drop_channel(&self) {
        if !self.taken.swap(true, Ordering::AcqRel) {
            // SAFETY: `taken` says that it is there, and this is the only one to take it. No user is left, and since the
            // state says that it is closed, nobody becomes one.
            unsafe { ManuallyDrop::drop(&mut *self.channel.get()) };
        }
    }

    /// What a call says that failed: if its wait was ended, because of what.
    fn failure(&self, error: Error) -> Failure {
        match error {
            Error::Interrupted if self.state.load(Ordering::Acquire) & CLOSED == 0 => Failure::Moved,
            error => error.into(),
        }
    }

    /// Ends the calls under way on an end that was said to have moved. False if that cannot be: something of it is held; or the
    /// end `over` which it is to be sent is being sent itself, so that each would wait for the other.
    fn drive_out(&self, over: Option<&Self>) -> bool {
        // SAFETY: it is there: who has said that it has moved takes it out, and nobody else takes it out or drops it.
        let interrupter = unsafe { &*self.channel.get() }.interrupter();
        interrupter.interrupt();
        let mut looks = 0;
        let all_left = loop {
            if self.state.load(Ordering::Acquire) & USERS == 0 {
                break true;
            }
            if self.held.load(Ordering::Acquire) > 0
                || over.is_some_and(|over| over.state.load(Ordering::Acquire) & MOVED != 0)
            {
                break false;
            }
            looks += 1;
            match looks {
                ..100 => std::hint::spin_loop(),
                100..200 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        };
        interrupter.resume();
        all_left
    }

    /// It has not moved after all.
    fn unmark_moved(&self) {
        // Counted as a user, so that the end is there meanwhile.
        self.state.fetch_add(1, Ordering::AcqRel);
        let before = self.state.fetch_and(!MOVED, Ordering::AcqRel);
        if before & CLOSED != 0 {
            // Another thread has closed it, and has left it to this one to tell those who wait.
            // SAFETY: it is there: it was not taken out, or was put back, and it is counted that it is in use.
            unsafe { &*self.channel.get() }.interrupter().interrupt();
        }
        self.leave();
    }

    fn close(&self) {
        if self.state.load(Ordering::Relaxed) & SHARED != 0 {
            return self.close_shared();
        }
        let before = self.state.fetch_or(CLOSED, Ordering::AcqRel);
        if before & USERS == 0 && before & MOVED == 0 {
            self.drop_channel();
        }
    }

    /// The same where others may be waiting in calls on it.
    fn close_shared(&self) {
        // Counted as a user, so that the end is there until they were told.
        self.state.fetch_add(1, Ordering::AcqRel);
        let before = self.state.fetch_or(CLOSED, Ordering::AcqRel);
        if before & (CLOSED | MOVED) == 0 {
            // SAFETY: it was there, and is not taken out or dropped as long as it is counted that it is in use.
            unsafe { &*self.channel.get() }.interrupter().interrupt();
        }
        self.leave();
    }
}

/// That an end is in use.
pub(crate) struct Using<'a> {
    shell: &'a strait_channel,
    is_counted: bool,
}

impl Using<'_> {
    #[inline]
    pub(crate) fn channel(&self) -> &Channel {
        // SAFETY: it is there: either it is counted that it is in use, or there is one reference only, and whoever has that
        // is in this call.
        unsafe { &*self.shell.channel.get() }
    }

    /// What a call on the end says that failed.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        self.shell.failure(error)
    }

    /// Keeps the end in use beyond this call, if it comes to that.
    pub(crate) fn pin(self) -> Pin {
        if !self.is_counted {
            self.shell.state.fetch_add(1, Ordering::AcqRel);
        }
        self.shell.references.fetch_add(1, Ordering::Relaxed);
        let shell = NonNull::from(self.shell);
        std::mem::forget(self);
        Pin { shell, is_held: false }
    }
}

impl Drop for Using<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_counted {
            self.shell.leave();
        }
    }
}

/// That an end is in use, and its memory needed, for as long as this is held.
#[derive(Debug)]
pub(crate) struct Pin {
    shell: NonNull<strait_channel>,
    is_held: bool,
}

impl Pin {
    /// The end. It must not be used after the pin is dropped.
    ///
    /// # Safety
    /// As said.
    pub(crate) unsafe fn channel(&self) -> &'static Channel {
        // SAFETY: the pin has a reference, and it is counted that the end is in use.
        unsafe { &*self.shell.as_ref().channel.get() }
    }

    /// Says that it is for the caller to end it, and not for this call.
    pub(crate) fn hold(&mut self) {
        self.is_held = true;
        // SAFETY: the pin has a reference.
        unsafe { self.shell.as_ref() }.held.fetch_add(1, Ordering::AcqRel);
    }

    /// What a call on the end says that failed.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        // SAFETY: the pin has a reference.
        unsafe { self.shell.as_ref() }.failure(error)
    }

    /// Which end it is.
    pub(crate) fn shell(&self) -> *const strait_channel {
        self.shell.as_ptr()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: the pin has a reference, which is released after the last use.
        unsafe {
            if self.is_held {
                self.shell.as_ref().held.fetch_sub(1, Ordering::AcqRel);
            }
            self.shell.as_ref().leave();
            release(self.shell.as_ptr());
        }
    }
}

/// Lets go of a reference; the last one closes the end.
///
/// # Safety
/// The caller has one, and uses it no more.
pub(crate) unsafe fn release(shell: *mut strait_channel) {
    // SAFETY: the caller has a reference.
    if unsafe { &*shell }.references.fetch_sub(1, Ordering::AcqRel) == 1 {
        // SAFETY: it came from a box, and this was the last reference.
        drop(unsafe { Box::from_raw(shell) });
    }
}

impl Drop for strait_channel {
    fn drop(&mut self) {
        if *self.state.get_mut() & MOVED == 0 {
            self.drop_channel();
        }
    }
}

/// Takes an end out, to send it over another, if not `NULL`. Calls under way on it end.
///
/// # Safety
/// The caller has a reference to both.
pub(crate) unsafe fn take_out(shell: *mut strait_channel, over: *const strait_channel) -> Result<Channel, Failure> {
    // SAFETY: the caller has a reference.
    let (shell, over) = unsafe { (&*shell, over.as_ref()) };
    let mut state = shell.state.load(Ordering::Relaxed);
    loop {
        match state {
            _ if state & CLOSED != 0 => return Err(Failure::Closed),
            _ if state & MOVED != 0 => return Err(Failure::Moved),
            _ if shell.held.load(Ordering::Acquire) > 0 => return Err(Failure::InUse),
            _ => {}
        }
        match shell.state.compare_exchange_weak(state, state | MOVED, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => state = now,
        }
    }
    if state & USERS != 0 && !shell.drive_out(over) {
        shell.unmark_moved();
        return Err(Failure::InUse);
    }
    // SAFETY: it is there and in no use, and nobody uses it: the state says that it has moved.
    Ok(unsafe { ManuallyDrop::take(&mut *shell.channel.get()) })
}

/// Puts an end back that was not sent.
///
/// # Safety
/// The caller has a reference, and has taken the end out.
pub(crate) unsafe fn put_back(shell: *mut strait_channel, channel: Channel) {
    // SAFETY: the caller has a reference.
    let shell = unsafe { &*shell };
    // SAFETY: nobody looks at it while the state says that it has moved.
    unsafe { shell.channel.get().write(ManuallyDrop::new(channel)) };
    shell.unmark_moved();
}

/// The end that a call is about.
///
/// # Safety
/// `channel` is `NULL`, or a reference of the caller's, which stays as long as the call.
#[inline]
pub(crate) unsafe fn enter<'a>(channel: *const strait_channel) -> Result<Using<'a>, Failure> {
    // SAFETY: as the caller says.
    unsafe { args::reference(channel, "channel is NULL") }?.enter()
}

/// Makes a channel with both ends in this process. It uses no descriptor and no shared memory.
///
/// `options` are for both ends, or `NULL`. `a` and `b` get the ends, which are the caller's; `NULL` on failure. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_pair(
    options: *const strait_options,
    a: *mut *mut strait_channel,
    b: *mut *mut strait_channel,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of all three.
        let (a, b, options) = unsafe {
            let a = args::out(a, ptr::null_mut(), "a is NULL");
            let b = args::out(b, ptr::null_mut(), "b is NULL");
            (a?, b?, self::options(options)?)
        };
        let (one, other) = Channel::pair_with(&options)?;
        *a = strait_channel::give(one);
        *b = strait_channel::give(other);
        Ok(())
    })
}

/// Makes a channel over a connected `SOCK_SEQPACKET` Unix socket, to whoever does the same with the other end of it: a way to give
/// a channel to a process that is started by means of one's own. Nothing else may be sent or received on the socket.
///
/// `socket` is taken if the call succeeds, and closed on `exec` from then on; otherwise it stays the caller's. `options` may be
/// `NULL`. `channel` gets the end, which is the caller's; `NULL` on failure. Does not block: what is sent before the peer has
/// opened its side waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_over(
    socket: c_int,
    options: *const strait_options,
    channel: *mut *mut strait_channel,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says.
        let (channel, options) =
            unsafe { (args::out(channel, ptr::null_mut(), "channel is NULL")?, self::options(options)?) };
        if socket < 0 {
            return Err(Failure::Strait(Error::NotASocket));
        }
        // The library keeps a copy, so that the caller's is whole if this fails.
        // SAFETY: only looked at by the kernel, which says so if it is not open.
        let copy = unsafe { libc::fcntl(socket, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            return Err(Failure::Strait(match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EMFILE) => Error::NoDescriptors,
                _ => Error::NotASocket,
            }));
        }
        // SAFETY: made just now, and nobody else's.
        let made = Channel::over(unsafe { OwnedFd::from_raw_fd(copy) }, &options)?;
        // SAFETY: it is ours now, as the C API says.
        drop(unsafe { OwnedFd::from_raw_fd(socket) });
        *channel = strait_channel::give(made);
        Ok(())
    })
}

/// Makes another reference to an end, for another thread: the same pointer, to be released once more. `NULL` stays `NULL`.
///
/// From then on calls on this end cost a few nanoseconds more, as it is counted which are under way, and a thread may close or
/// send the end while another one is in a call on it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_ref(channel: *mut strait_channel) -> *mut strait_channel {
    // SAFETY: `NULL`, or a reference of the caller's.
    if let Some(shell) = unsafe { channel.as_ref() } {
        let before = shell.state.fetch_or(SHARED, Ordering::AcqRel);
        shell.references.fetch_add(1, Ordering::Relaxed);
        if before & SHARED == 0 {
            // From here on whoever closes it can end what the others wait for. One that has none any more has nobody who waits.
            call_or((), || drop(shell.enter().map(|using| using.channel().interrupter())));
        }
    }
    channel
}

/// Releases a reference. The last one closes the end. `NULL` is let pass. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_unref(channel: *mut strait_channel) {
    if !channel.is_null() {
        // SAFETY: the caller gives up its reference.
        call_or((), || unsafe { release(channel) });
    }
}

/// Closes an end, and releases the caller's reference. `NULL` is let pass. Does not block.
///
/// The peer receives what was sent, and then `STRAIT_PEER_CLOSED`; what it sent and was not received is dropped, handles and all.
/// Calls through other references fail with `STRAIT_CLOSED` from now on; those that wait, at once. While a view or
/// a reservation of the end is held, it stays open until that is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_close(channel: *mut strait_channel) {
    // SAFETY: `NULL`, or a reference of the caller's.
    if let Some(shell) = unsafe { channel.as_ref() } {
        call_or((), || shell.close());
        // SAFETY: the caller gives up its reference.
        call_or((), || unsafe { release(channel) });
    }
}

/// Whether a message is there to be received, or the end of the channel. False of a channel that is closed or moved, and of `NULL`.
/// Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_is_readable(channel: *const strait_channel) -> bool {
    // SAFETY: as the C API says.
    call_or(false, || unsafe { enter(channel) }.is_ok_and(|using| using.channel().is_readable()))
}

/// Whether a small message could be sent now. False of a channel that is closed or moved, and of `NULL`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_is_writable(channel: *const strait_channel) -> bool {
    // SAFETY: as the C API says.
    call_or(false, || unsafe { enter(channel) }.is_ok_and(|using| using.channel().is_writable()))
}

/// Whether the other end is known to be gone: closed, or its process dead. What it sent before may still be there to be received.
/// False of a channel that is closed or moved here, and of `NULL`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_is_peer_closed(channel: *const strait_channel) -> bool {
    // SAFETY: as the C API says.
    call_or(false, || unsafe { enter(channel) }.is_ok_and(|using| using.channel().is_peer_closed()))
}

/// Moves the channel into memory that nobody has but this process and that of the other end: for an end that was sent here by a
/// process that is not trusted. Nothing is lost or reordered, and the other end notices nothing.
///
/// Fails with `STRAIT_WOULD_BLOCK` or `STRAIT_TIMED_OUT` while the other end is just being sent elsewhere, or while the other process
/// has not opened its side; the channel is as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_rehome(
    channel: *const strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says.
        let using = unsafe { enter(channel) }?;
        using.channel().rehome(until(deadline)).map_err(|error| using.failure(error))
    })
}
