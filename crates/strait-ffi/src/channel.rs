//! The end of a channel as a C object.
//!
//! C code has a pointer and no borrow checker. Whatever C code does with a valid pointer, an end must not be dropped or
//! sent away while another thread is in a function call on the end. So a [`strait_channel`] counts its references, one
//! for each thread. One word says whether the end is still there, and how many users the end has at the moment:
//!
//! ```text
//!  31       30      29      28 ... 0
//!  CLOSED   MOVED   SHARED  function calls in progress, views and reservations
//! ```
//!
//! As long as there never was more than one reference, only one thread can be in a function call. Such function calls
//! are not counted, and cost one load more than in Rust. Views and reservations outlive the function calls that make
//! them, and are always counted. A thread that closes an end in use interrupts the waits of the other threads, and the
//! last user drops the end. A thread that sends an end sets `MOVED`, interrupts the waits of the other threads, and
//! goes on when the other threads have left. If a view or a reservation is held, sending fails, since no thread can end
//! that use.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_int;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use strait::bindings::Keep;
use strait::{Channel, Error};

use crate::args;
use crate::deadline::{strait_deadline, until};
use crate::options::{options, strait_options};
use crate::status::{Failure, call, call_or, strait_status};

/// Bit of the state word: the end was closed.
const CLOSED: u32 = 1 << 31;
/// Bit of the state word: the end was sent away, or a thread is about to send it.
const MOVED: u32 = 1 << 30;
/// Bit of the state word: there is, or was, a second reference, so function calls on the end are counted.
const SHARED: u32 = 1 << 29;
/// Bits of the state word that hold the number of users: counted function calls, views and reservations.
const USERS: u32 = SHARED - 1;

/// One end of a channel: a bidirectional, ordered stream of messages between two processes, or within one process.
///
/// A pointer to an end is a reference. One thread at a time uses a reference; `strait_channel_ref` makes one for
/// another thread. When the last reference is released, the end is closed.
pub struct strait_channel {
    /// State word: `CLOSED`, `MOVED`, `SHARED`, and the number of users in the low bits.
    state: AtomicU32,
    /// The number of references not released yet, including the references of pins. The last release frees this object.
    references: AtomicU32,
    /// Number of uses that last until C code frees an object: views and reservations.
    held: AtomicU32,
    /// Whether `channel` was dropped. Set once, by the dropping thread.
    taken: AtomicBool,
    /// The end. Absent while the state is `MOVED` and a sending thread has taken the end out.
    channel: UnsafeCell<ManuallyDrop<Channel>>,
}

impl fmt::Debug for strait_channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("strait_channel").finish_non_exhaustive()
    }
}

impl strait_channel {
    /// Returns a new object with `channel` and one reference, for C code.
    pub(crate) fn give(channel: Channel) -> *mut Self {
        Box::into_raw(Box::new(Self {
            state: AtomicU32::new(0),
            references: AtomicU32::new(1),
            held: AtomicU32::new(0),
            taken: AtomicBool::new(false),
            channel: UnsafeCell::new(ManuallyDrop::new(channel)),
        }))
    }

    /// Starts a use of the end by a function call.
    ///
    /// # Errors
    /// [`Failure::Closed`] and [`Failure::Moved`] if the end is not there any more.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Using<'_>, Failure> {
        if self.state.load(Ordering::Acquire) & (CLOSED | MOVED | SHARED) == 0 {
            return Ok(Using { shell: self, is_counted: false });
        }
        self.enter_counted()
    }

    /// Starts a use of the end, and counts this use until the returned guard is dropped. Otherwise like
    /// [`enter`](Self::enter), for an end that is shared, closed or moved.
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

    /// Ends one counted use. The last user of a closed end drops the end.
    fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        // A moved end cannot be dropped here. A thread that puts the end back drops the end.
        if before & (CLOSED | MOVED) == CLOSED && before & USERS == 1 {
            self.drop_channel();
        }
    }

    /// Drops the end, once. The caller makes sure that the end has no user, and gets none: the state says that the end
    /// is closed, or the last reference was released.
    fn drop_channel(&self) {
        if !self.taken.swap(true, Ordering::AcqRel) {
            // SAFETY: by `taken` the end is present, and only this thread has set `taken`. The end has no user, and
            // gets none, because the state is closed.
            unsafe { ManuallyDrop::drop(&mut *self.channel.get()) };
        }
    }

    /// Returns the failure of a function call on this end. For an interrupted wait, the state word says whether the end
    /// was closed or moved.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        match error {
            Error::Interrupted if self.state.load(Ordering::Acquire) & CLOSED == 0 => Failure::Moved,
            error => error.into(),
        }
    }

    /// Interrupts the function calls in progress on an end whose state says `MOVED`, and waits until they have
    /// returned. Returns `true` once the end has no user.
    ///
    /// Returns `false` if the users cannot all leave: a view or a reservation is held, or another thread is sending the
    /// end `over` which this end is to be sent, so that each thread would wait for the other.
    fn drive_out(&self, over: Option<&Self>) -> bool {
        // SAFETY: the end is present: only this thread, which has set `MOVED`, takes the end out, and no thread drops
        // the end.
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

    /// Clears `MOVED`, as the end was not sent. If another thread has closed the end meanwhile, interrupts the waits on
    /// it.
    fn unmark_moved(&self) {
        // Counts this thread as a user, so that the end stays present.
        self.state.fetch_add(1, Ordering::AcqRel);
        let before = self.state.fetch_and(!MOVED, Ordering::AcqRel);
        if before & CLOSED != 0 {
            // Another thread has closed the end meanwhile, and has left the interruption of the waits to this thread.
            // SAFETY: the end is present: no thread has taken the end out, or the end was put back; and this thread
            // counts as a user.
            unsafe { &*self.channel.get() }.interrupter().interrupt();
        }
        self.leave();
    }

    /// Marks the end as closed. If the end has no user, drops it; otherwise the last user drops the end.
    fn close(&self) {
        if self.state.load(Ordering::Relaxed) & SHARED != 0 {
            return self.close_shared();
        }
        let before = self.state.fetch_or(CLOSED, Ordering::AcqRel);
        if before & USERS == 0 && before & MOVED == 0 {
            self.drop_channel();
        }
    }

    /// Marks the end as closed when other threads may be in function calls on the end, and interrupts the waits of the
    /// other threads.
    fn close_shared(&self) {
        // Counts this thread as a user, so that the end stays present until the waits are interrupted.
        self.state.fetch_add(1, Ordering::AcqRel);
        let before = self.state.fetch_or(CLOSED, Ordering::AcqRel);
        if before & (CLOSED | MOVED) == 0 {
            // SAFETY: the end was there, and is neither taken out nor dropped while this thread counts as a user.
            unsafe { &*self.channel.get() }.interrupter().interrupt();
        }
        self.leave();
    }
}

/// A use of an end by a function call. The end stays present until the guard is dropped.
pub(crate) struct Using<'a> {
    shell: &'a strait_channel,
    is_counted: bool,
}

impl Using<'_> {
    /// Returns the end.
    #[inline]
    pub(crate) fn channel(&self) -> &Channel {
        // SAFETY: the end is present. Either this use is counted, or there is a single reference, and the owner of the
        // reference is in this call.
        unsafe { &*self.shell.channel.get() }
    }

    /// Returns the object of the end.
    pub(crate) fn shell(&self) -> *const strait_channel {
        self.shell
    }

    /// Returns the failure of a function call on the end that got `error`.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        self.shell.failure(error)
    }

    /// Turns the use into a pin, which may outlive the function call.
    pub(crate) fn pin(self) -> Pin {
        if !self.is_counted {
            self.shell.state.fetch_add(1, Ordering::AcqRel);
        }
        self.shell.references.fetch_add(1, Ordering::Relaxed);
        let shell = NonNull::from(self.shell);
        std::mem::forget(self);
        Pin { shell, is_held: Cell::new(false) }
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

/// A use of an end together with a reference. The end and its object stay until the pin is dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    shell: NonNull<strait_channel>,
    /// Whether the pin belongs to a view or a reservation, which only C code can free.
    is_held: Cell<bool>,
}

impl Pin {
    /// Marks the pin as part of a view or a reservation: C code ends this use, not the function call.
    pub(crate) fn hold(&self) {
        self.is_held.set(true);
        // SAFETY: the pin has a reference.
        unsafe { self.shell.as_ref() }.held.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the address of the pinned end, for comparison with other ends.
    pub(crate) fn shell(&self) -> *const strait_channel {
        self.shell.as_ptr()
    }
}

// SAFETY: the end lies in its object, to which the pin has a reference. The pin counts as a user, and an end is taken
// out or dropped only when it has no user. Nothing borrows the end mutably.
unsafe impl Keep for Pin {
    type Object = Channel;

    fn object(&self) -> &Channel {
        // SAFETY: the pin has a reference, and counts as a user of the end.
        unsafe { &*self.shell.as_ref().channel.get() }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: the pin has a reference, which is released after the last use.
        unsafe {
            if self.is_held.get() {
                self.shell.as_ref().held.fetch_sub(1, Ordering::AcqRel);
            }
            self.shell.as_ref().leave();
            release(self.shell.as_ptr());
        }
    }
}

/// Releases a reference. The last release closes the end and frees its object.
///
/// # Safety
/// The caller has a reference, and does not use the reference after this call.
pub(crate) unsafe fn release(shell: *mut strait_channel) {
    // SAFETY: the caller has a reference.
    if unsafe { &*shell }.references.fetch_sub(1, Ordering::AcqRel) == 1 {
        // SAFETY: the object came from a box, and this was the last reference.
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

/// Takes an end out of its object, to be sent over the end `over` (`NULL` if there is no such end). Interrupts the
/// function calls in progress on the end, and returns once they have returned.
///
/// # Errors
/// [`Failure::Closed`] and [`Failure::Moved`] if the end is not there. [`Failure::InUse`] if a view or a reservation is
/// held, or if `over` is being sent itself.
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
    // SAFETY: the end is there and has no user, and gets none, since the state says `MOVED`.
    Ok(unsafe { ManuallyDrop::take(&mut *shell.channel.get()) })
}

/// Puts an unsent end back into its object.
///
/// # Safety
/// The caller has a reference, and has taken `channel` out of this object.
pub(crate) unsafe fn put_back(shell: *mut strait_channel, channel: Channel) {
    // SAFETY: the caller has a reference.
    let shell = unsafe { &*shell };
    // SAFETY: no thread uses the end while the state says `MOVED`.
    unsafe { shell.channel.get().write(ManuallyDrop::new(channel)) };
    shell.unmark_moved();
}

/// Returns the object at a pointer from C code.
///
/// # Errors
/// [`Failure::Invalid`] if `channel` is `NULL`.
///
/// # Safety
/// `channel` is `NULL`, or a reference of the caller's that stays during the function call.
pub(crate) unsafe fn shell<'a>(channel: *const strait_channel) -> Result<&'a strait_channel, Failure> {
    // SAFETY: the caller's promise.
    unsafe { args::reference(channel, "channel is NULL") }
}

/// Starts a use of the end at a pointer from C code.
///
/// # Errors
/// [`Failure::Invalid`] if `channel` is `NULL`; [`Failure::Closed`] and [`Failure::Moved`] if the end is not there.
///
/// # Safety
/// `channel` is `NULL`, or a reference of the caller's that stays during the function call.
#[inline]
pub(crate) unsafe fn enter<'a>(channel: *const strait_channel) -> Result<Using<'a>, Failure> {
    // SAFETY: the caller's promise.
    unsafe { shell(channel) }?.enter()
}

/// Makes a channel with both ends in this process, without a descriptor or shared memory.
///
/// `options` apply to both ends; `NULL` means the defaults. `a` and `b` receive the ends, which the caller owns, or
/// `NULL` on failure. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_pair(
    options: *const strait_options,
    a: *mut *mut strait_channel,
    b: *mut *mut strait_channel,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all three pointers to be valid.
        let (a, b, options) = unsafe {
            let a = args::out(a, ptr::null_mut(), "a is NULL");
            let b = args::out(b, ptr::null_mut(), "b is NULL");
            (a?, b?, self::options(options)?)
        };
        let (one, other) = options.pair()?;
        *a = strait_channel::give(one);
        *b = strait_channel::give(other);
        Ok(())
    })
}

/// Makes a channel over a connected `SOCK_SEQPACKET` Unix socket. The process with the other end of the socket calls
/// this function too. This way a channel reaches a process that the caller starts by its own means. The caller must not
/// send or receive anything else on the socket.
///
/// If the function succeeds, Strait owns `socket` and sets close-on-exec; otherwise the caller still owns it. `options`
/// may be `NULL`. `channel` receives the end, which the caller owns, or `NULL` on failure. Does not block: messages
/// sent before the peer has opened its side wait for the peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_over(
    socket: c_int,
    options: *const strait_options,
    channel: *mut *mut strait_channel,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointer to be valid.
        let (channel, options) =
            unsafe { (args::out(channel, ptr::null_mut(), "channel is NULL")?, self::options(options)?) };
        if socket < 0 {
            return Err(Failure::Strait(Error::NotASocket("negative, so not open")));
        }
        // The library takes a duplicate, so that the caller's descriptor is untouched if this fails.
        // SAFETY: only the kernel uses the number, and fails if no descriptor is open there.
        let copy = unsafe { libc::fcntl(socket, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            return Err(Failure::Strait(match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EMFILE) => Error::NoDescriptors,
                _ => Error::NotASocket("not an open file"),
            }));
        }
        // SAFETY: the descriptor was made just now, and has no other owner.
        let made = options.over(unsafe { OwnedFd::from_raw_fd(copy) })?;
        // SAFETY: by the contract of this function, the descriptor now belongs to the library.
        drop(unsafe { OwnedFd::from_raw_fd(socket) });
        *channel = strait_channel::give(made);
        Ok(())
    })
}

/// Makes another reference to an end, for another thread. Returns the same pointer, which must be released once more.
/// Returns `NULL` for `NULL`.
///
/// From then on each function call on this end costs a few nanoseconds more, since calls in progress are counted. In
/// return, one thread may close or send the end while another thread is in a function call on it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_ref(channel: *mut strait_channel) -> *mut strait_channel {
    // SAFETY: the pointer is `NULL`, or a reference of the caller's.
    if let Some(shell) = unsafe { channel.as_ref() } {
        let before = shell.state.fetch_or(SHARED, Ordering::AcqRel);
        shell.references.fetch_add(1, Ordering::Relaxed);
        if before & SHARED == 0 {
            // From here on a thread that closes the end can interrupt the waits of others. A closed or moved end has no
            // waits.
            call_or((), || drop(shell.enter().map(|using| using.channel().interrupter())));
        }
    }
    channel
}

/// Releases a reference. The last release closes the end. Ignores `NULL`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_unref(channel: *mut strait_channel) {
    if !channel.is_null() {
        // SAFETY: the caller gives up the reference.
        call_or((), || unsafe { release(channel) });
    }
}

/// Closes an end, and releases the caller's reference. Ignores `NULL`. Does not block.
///
/// The peer receives everything sent before, and then `STRAIT_PEER_CLOSED`. Messages that this end has not received are
/// dropped, with their handles. From now on calls through other references fail with `STRAIT_CLOSED`; waiting calls
/// fail at once. If a view or a reservation of the end is held, the end stays open until the view or reservation is
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_close(channel: *mut strait_channel) {
    // SAFETY: the pointer is `NULL`, or a reference of the caller's.
    if let Some(shell) = unsafe { channel.as_ref() } {
        call_or((), || shell.close());
        // SAFETY: the caller gives up the reference.
        call_or((), || unsafe { release(channel) });
    }
}

/// Closes an end as `strait_channel_close` does, and tells the peer the reason: once the peer has received everything
/// sent before, its `strait_channel_close_reason` returns `reason`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_close_with(channel: *mut strait_channel, reason: u32) {
    // SAFETY: the pointer is `NULL`, or a reference of the caller's.
    if let Some(shell) = unsafe { channel.as_ref() } {
        call_or((), || {
            if let Ok(using) = shell.enter() {
                using.channel().set_close_reason(reason);
            }
        });
        // SAFETY: the caller gives up the reference.
        unsafe { strait_channel_close(channel) }
    }
}

/// Returns whether the other end was closed with a reason (`strait_channel_close_with`), and writes the reason to
/// `reason`. Returns false until a receive from this end has failed with `STRAIT_PEER_CLOSED`, and if `channel` or
/// `reason` is `NULL`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_close_reason(channel: *const strait_channel, reason: *mut u32) -> bool {
    call_or(false, || {
        // SAFETY: the header requires both pointers to be valid.
        let (Ok(out), Ok(using)) = (unsafe { args::out(reason, 0, "reason is NULL") }, unsafe { enter(channel) })
        else {
            return false;
        };
        let found = using.channel().close_reason();
        *out = found.unwrap_or(0);
        found.is_some()
    })
}

/// Returns whether receiving would return at once: a message is there, or the channel has ended. Returns false if the
/// end is closed or moved, or `channel` is `NULL`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_is_readable(channel: *const strait_channel) -> bool {
    // SAFETY: the header requires the pointer to be valid.
    call_or(false, || unsafe { enter(channel) }.is_ok_and(|using| using.channel().is_readable()))
}

/// Returns whether a small message with one descriptor could be sent now without waiting. Returns false if the end is
/// closed or moved, or `channel` is `NULL`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_is_writable(channel: *const strait_channel) -> bool {
    // SAFETY: the header requires the pointer to be valid.
    call_or(false, || unsafe { enter(channel) }.is_ok_and(|using| using.channel().is_writable()))
}

/// Returns whether the other end is gone: closed, or its process died. Messages sent before may still wait to be
/// received. Returns false if this end is closed or moved, or `channel` is `NULL`. Does not block. Asks the kernel,
/// which takes longer than a receive: one system call, and at most once in 10 ms five more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_is_peer_closed(channel: *const strait_channel) -> bool {
    // SAFETY: the header requires the pointer to be valid.
    call_or(false, || unsafe { enter(channel) }.is_ok_and(|using| using.channel().is_peer_closed()))
}

/// Ends the link to the process at the other end, and every channel over the link, without a report of a bad peer. Does
/// nothing within one process. Does not block.
///
/// Both sides first receive the messages sent before, and then `STRAIT_PEER_CLOSED` on each of these channels. The end
/// still has to be closed. `ended` receives whether there was a link to end; `ended` may be `NULL`. Fails with
/// `STRAIT_WOULD_BLOCK` if other threads wait on this end in both directions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_disconnect(channel: *const strait_channel, ended: *mut bool) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointers to be valid, or `ended` to be `NULL`.
        let (ended, using) = unsafe {
            let ended = (!ended.is_null()).then(|| args::out(ended, false, "ended is NULL")).transpose()?;
            (ended, enter(channel)?)
        };
        let was_up = using.channel().disconnect().map_err(|error| using.failure(error))?;
        ended.into_iter().for_each(|ended| *ended = was_up);
        Ok(())
    })
}

/// Moves the channel into new memory, private to this process and the process of the other end. Use this function for
/// an end that an untrusted process has sent. No message is lost or reordered, and the other end notices nothing. Waits
/// until the deadline.
///
/// Fails with `STRAIT_WOULD_BLOCK` or `STRAIT_TIMED_OUT` while the other end is being sent to another process, or while
/// the other process has not opened its side. Then the channel is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_rehome(
    channel: *const strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointer to be valid.
        let using = unsafe { enter(channel) }?;
        using.channel().rehome(until(deadline)).map_err(|error| using.failure(error))
    })
}
