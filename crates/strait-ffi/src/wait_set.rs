//! Wait sets: waiting for many channels at once.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use strait::wait::{Event, Fd, Interest, Mode, WaitSet};

use crate::args;
use crate::channel::{enter, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::meeting::strait_listener;
use crate::pipe::shell::{Held, held};
use crate::pipe::{strait_consumer, strait_producer};
use crate::status::{Failure, call, call_or, strait_status};

/// Events of a channel or of a data-pipe end: a combination of `STRAIT_READABLE` and the constants that follow.
pub type strait_events = u32;

/// Receiving returns at once: a message is there, or the channel has ended.
pub const STRAIT_READABLE: strait_events = 1;
/// Sending a small message returns at once: there is room, or sending fails. A large message, or one with several
/// handles, may have no room all the same: after such a send has failed, use `strait_wait_set_await_room`.
pub const STRAIT_WRITABLE: strait_events = 2;
/// The end was sent away in a message and so left the set. Reported only, never requested; the last event of the
/// registration.
pub const STRAIT_HAS_MOVED: strait_events = 4;

/// How often a registration reports an event.
pub type strait_mode = u32;

/// `STRAIT_LEVEL`: every `strait_wait_set_wait` reports the event, as long as the member is ready.
pub const STRAIT_LEVEL: strait_mode = 0;
/// `STRAIT_ONE_SHOT`: the event is reported once, to one thread, and not again before `strait_wait_set_modify`.
pub const STRAIT_ONE_SHOT: strait_mode = 1;

/// An event of a member of a wait set.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_event {
    /// The key given to `strait_wait_set_add`.
    pub key: u64,
    /// A combination of `STRAIT_READABLE`, `STRAIT_WRITABLE` and `STRAIT_HAS_MOVED`.
    pub events: strait_events,
    /// Always zero.
    pub reserved: u32,
}

impl strait_event {
    fn new(event: &Event) -> Self {
        let bit = |is_so, bit| if is_so { bit } else { 0 };
        let events = bit(event.is_readable(), STRAIT_READABLE)
            | bit(event.is_writable(), STRAIT_WRITABLE)
            | bit(event.has_moved(), STRAIT_HAS_MOVED);
        Self { key: event.key(), events, reserved: 0 }
    }
}

/// A wait set, which waits for any number of channels, data-pipe ends, listeners and other descriptors at once: in a
/// thread, or through one descriptor in any event loop. Any number of threads may use a set at once. Free it when no
/// thread uses it any more.
#[derive(Debug)]
pub struct strait_wait_set {
    set: WaitSet,
    /// The set's duplicates of descriptors of C code, by the numbers of these descriptors.
    fds: Mutex<HashMap<c_int, Fd>>,
    /// Events beyond the capacity of C code's array, for the next wait. An empty vector is kept for its memory.
    events: Mutex<Vec<Event>>,
}

/// Makes a wait set without members. A set has two descriptors, however many members it has.
///
/// `set` receives the set, or `NULL` on failure; the caller owns the set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_new(set: *mut *mut strait_wait_set) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointer to be valid.
        let out = unsafe { args::out(set, ptr::null_mut(), "set is NULL") }?;
        let set = strait_wait_set { set: WaitSet::new()?, fds: Mutex::default(), events: Mutex::default() };
        *out = Box::into_raw(Box::new(set));
        Ok(())
    })
}

/// Frees a wait set, after removing all members. Ignores `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_free(set: *mut strait_wait_set) {
    if !set.is_null() {
        // SAFETY: `strait_wait_set_new` made the object, and the caller gives the object up.
        call_or((), || drop(unsafe { Box::from_raw(set) }));
    }
}

/// Returns the wait set at a pointer from C code.
///
/// # Errors
/// [`Failure::Invalid`] if `set` is `NULL`.
///
/// # Safety
/// `set` is `NULL`, or a set of the caller's that stays during the function call.
pub(crate) unsafe fn set<'a>(set: *const strait_wait_set) -> Result<&'a strait_wait_set, Failure> {
    // SAFETY: the caller's promise.
    unsafe { args::reference(set, "set is NULL") }
}

/// Adds a channel, whose events carry `key`; keys need not differ. If the channel is ready now, that counts as an
/// event. Does not block.
///
/// `interest` is `STRAIT_READABLE`, `STRAIT_WRITABLE` or both. The caller still owns the channel. A channel is in one
/// set at a time, and leaves the set when it is closed or sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_add(
    set: *const strait_wait_set,
    channel: *const strait_channel,
    key: u64,
    interest: strait_events,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, using) = unsafe { (self::set(set)?, enter(channel)?) };
        Ok(set.set.add(using.channel(), key, self::interest(interest)?, self::mode(mode)?)?)
    })
}

/// Converts an interest of C code to the Rust type.
fn interest(interest: strait_events) -> Result<Interest, Failure> {
    match interest {
        STRAIT_READABLE => Ok(Interest::Readable),
        STRAIT_WRITABLE => Ok(Interest::Writable),
        3 => Ok(Interest::Both),
        _ => Err(Failure::Invalid("interest is neither STRAIT_READABLE nor STRAIT_WRITABLE nor both")),
    }
}

/// Converts a mode of C code to the Rust type.
pub(crate) fn mode(mode: strait_mode) -> Result<Mode, Failure> {
    match mode {
        STRAIT_LEVEL => Ok(Mode::Level),
        STRAIT_ONE_SHOT => Ok(Mode::OneShot),
        _ => Err(Failure::Invalid("mode is neither STRAIT_LEVEL nor STRAIT_ONE_SHOT")),
    }
}

/// Replaces the key, the interest and the mode of a channel in the set, and arms its registration. With the values of
/// `strait_wait_set_add`, arms a one-shot registration again. If the channel is ready now, that counts as an event.
/// Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_modify(
    set: *const strait_wait_set,
    channel: *const strait_channel,
    key: u64,
    interest: strait_events,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, using) = unsafe { (self::set(set)?, enter(channel)?) };
        Ok(set.set.modify(using.channel(), key, self::interest(interest)?, self::mode(mode)?)?)
    })
}

/// Arms a channel of the set for one event: the send that has just failed with `STRAIT_WOULD_BLOCK` in this thread may
/// succeed now. Does not block.
///
/// Call this right after a send with `STRAIT_NOW` from `channel`. The event is `STRAIT_WRITABLE`, and comes when what
/// that send lacked may be there: room for this message, however large, and not only for a small one. The event also
/// comes if a send would fail at once, and may come early. Then send again; if that fails with `STRAIT_WOULD_BLOCK`,
/// call this function again. Until then the set reports nothing else for the channel, and no arriving messages either:
/// `strait_wait_set_modify` ends the wait for room and sets another interest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_await_room(
    set: *const strait_wait_set,
    channel: *const strait_channel,
    key: u64,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, using) = unsafe { (self::set(set)?, enter(channel)?) };
        Ok(set.set.await_room(using.channel(), key)?)
    })
}

/// Removes a channel. Later calls of `strait_wait_set_wait` report no event of the channel. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_remove(
    set: *const strait_wait_set,
    channel: *const strait_channel,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, using) = unsafe { (self::set(set)?, enter(channel)?) };
        Ok(set.set.remove(using.channel())?)
    })
}

/// Adds the writing end of a data pipe, as `strait_wait_set_add` adds a channel. Its event is `STRAIT_WRITABLE`: there
/// is room for an element, or the consumer is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_add_producer(
    set: *const strait_wait_set,
    producer: *const strait_producer,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, end) = unsafe { (self::set(set)?, held(producer)?) };
        let mode = self::mode(mode)?;
        end.with(|end| set.set.add(end, key, Interest::Both, mode))
    })
}

/// Replaces the key and the mode of an end of a data pipe in the set, and arms its registration, as
/// `strait_wait_set_modify` does for a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_modify_producer(
    set: *const strait_wait_set,
    producer: *const strait_producer,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, end) = unsafe { (self::set(set)?, held(producer)?) };
        let mode = self::mode(mode)?;
        end.with(|end| set.set.modify(end, key, Interest::Both, mode))
    })
}

/// Removes an end of a data pipe, as `strait_wait_set_remove` removes a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_remove_producer(
    set: *const strait_wait_set,
    producer: *const strait_producer,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, end) = unsafe { (self::set(set)?, held(producer)?) };
        end.with(|end| set.set.remove(end))
    })
}

/// Adds the reading end of a data pipe, as `strait_wait_set_add` adds a channel. Its event is `STRAIT_READABLE`: there
/// is an element, or the stream has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_add_consumer(
    set: *const strait_wait_set,
    consumer: *const strait_consumer,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, end) = unsafe { (self::set(set)?, held(consumer)?) };
        let mode = self::mode(mode)?;
        end.with(|end| set.set.add(end, key, Interest::Both, mode))
    })
}

/// Replaces the key and the mode of an end of a data pipe in the set, and arms its registration, as
/// `strait_wait_set_modify` does for a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_modify_consumer(
    set: *const strait_wait_set,
    consumer: *const strait_consumer,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, end) = unsafe { (self::set(set)?, held(consumer)?) };
        let mode = self::mode(mode)?;
        end.with(|end| set.set.modify(end, key, Interest::Both, mode))
    })
}

/// Removes an end of a data pipe, as `strait_wait_set_remove` removes a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_remove_consumer(
    set: *const strait_wait_set,
    consumer: *const strait_consumer,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, end) = unsafe { (self::set(set)?, held(consumer)?) };
        end.with(|end| set.set.remove(end))
    })
}

/// Adds a listener, as `strait_wait_set_add` adds a channel. Its event is `STRAIT_READABLE`: `strait_listener_accept`
/// has something to do, though not always something to return. The listener leaves the set when it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_add_listener(
    set: *const strait_wait_set,
    listener: *const strait_listener,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, listener) = unsafe { (self::set(set)?, args::reference(listener, "listener is NULL")?) };
        Ok(set.set.add(&listener.listener, key, Interest::Readable, self::mode(mode)?)?)
    })
}

/// Replaces the key and the mode of a listener in the set, and arms its registration, as `strait_wait_set_modify` does
/// for a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_modify_listener(
    set: *const strait_wait_set,
    listener: *const strait_listener,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, listener) = unsafe { (self::set(set)?, args::reference(listener, "listener is NULL")?) };
        Ok(set.set.modify(&listener.listener, key, Interest::Readable, self::mode(mode)?)?)
    })
}

/// Removes a listener, as `strait_wait_set_remove` removes a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_remove_listener(
    set: *const strait_wait_set,
    listener: *const strait_listener,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, listener) = unsafe { (self::set(set)?, args::reference(listener, "listener is NULL")?) };
        Ok(set.set.remove(&listener.listener)?)
    })
}

/// Adds any other descriptor, such as a socket, a timer or an eventfd, as `strait_wait_set_add` adds a channel. The
/// events are the events of `poll`; an error or a hang-up counts as both events.
///
/// A file can make the kernel wait for another process in this call and in each wait of the set, for any time: an epoll
/// instance that another process uses too, or a file of a file system in user space. Do not add a descriptor of a
/// process that you do not trust, unless the kind of the file is known to be harmless.
///
/// The set watches a duplicate, so the caller still owns `fd`. Remove `fd` from the set before closing `fd`:
/// afterwards, another file may have the number. Fails with `STRAIT_IN_SET` if a descriptor with the same number is in
/// the set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_add_fd(
    set: *const strait_wait_set,
    fd: c_int,
    key: u64,
    interest: strait_events,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointer to be valid.
        let set = unsafe { self::set(set) }?;
        let (interest, mode) = (self::interest(interest)?, self::mode(mode)?);
        if fd < 0 {
            return Err(Failure::Invalid("fd is negative"));
        }
        let mut fds = set.fds();
        if fds.contains_key(&fd) {
            return Err(strait::Error::InSet.into());
        }
        // SAFETY: the header requires the descriptor to be open during the call.
        let duplicate = Fd::duplicate(&unsafe { BorrowedFd::borrow_raw(fd) })?;
        set.set.add(&duplicate, key, interest, mode)?;
        fds.insert(fd, duplicate);
        Ok(())
    })
}

/// Replaces the key, the interest and the mode of a descriptor in the set, and arms its registration, as
/// `strait_wait_set_modify` does for a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_modify_fd(
    set: *const strait_wait_set,
    fd: c_int,
    key: u64,
    interest: strait_events,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointer to be valid.
        let set = unsafe { self::set(set) }?;
        let (interest, mode) = (self::interest(interest)?, self::mode(mode)?);
        let fds = set.fds();
        let duplicate = fds.get(&fd).ok_or(strait::Error::NotInSet)?;
        Ok(set.set.modify(duplicate, key, interest, mode)?)
    })
}

/// Removes a descriptor, as `strait_wait_set_remove` removes a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_remove_fd(set: *const strait_wait_set, fd: c_int) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointer to be valid.
        let set = unsafe { self::set(set) }?;
        // Dropping the duplicate removes the descriptor from the set.
        let removed = set.fds().remove(&fd);
        removed.map(drop).ok_or(strait::Error::NotInSet.into())
    })
}

/// Waits until a member is ready, or until the deadline.
///
/// `events` receives the events, at most `capacity` and at least one. `count` receives the number of events: 0 if the
/// deadline has passed, which is a success. A call reports a member at most once. A level registration that stays ready
/// is reported by the next call again, and members take turns. An event may be out of date: handling an earlier event
/// may have closed the channel of a later event, so look up the key rather than follow a pointer to a freed object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_wait(
    set: *const strait_wait_set,
    events: *mut strait_event,
    capacity: usize,
    count: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (count, set) = unsafe { (args::out(count, 0, "count is NULL")?, self::set(set)?) };
        if events.is_null() || capacity == 0 {
            return Err(Failure::Invalid("events is NULL, or capacity is 0"));
        }
        // A bound on memory, however large an array C code claims to have.
        let capacity = capacity.min(4096);
        let mut found = set.take_events();
        if found.is_empty() {
            if found.capacity() != capacity {
                found = Vec::with_capacity(capacity);
            }
            set.set.wait(&mut found, until(deadline))?;
        }
        *count = found.len().min(capacity);
        for (place, event) in found.drain(..*count).enumerate() {
            // SAFETY: the caller's array has room for `capacity` events.
            unsafe { events.add(place).write(strait_event::new(&event)) };
        }
        set.keep_events(found);
        Ok(())
    })
}

impl strait_wait_set {
    /// Returns the wait set of the Rust library.
    pub(crate) fn waits(&self) -> &WaitSet {
        &self.set
    }

    /// Returns the set's duplicates of descriptors of C code.
    fn fds(&self) -> MutexGuard<'_, HashMap<c_int, Fd>> {
        self.fds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the events left over from an earlier wait; or an empty vector, with its memory unless another thread has
    /// the memory.
    fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps events that did not fit, or the memory of an empty vector, for the next wait.
    fn keep_events(&self, events: Vec<Event>) {
        let mut kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            *kept = events;
        } else {
            kept.extend(events);
        }
    }
}

/// Returns a descriptor for `poll`, `epoll` or any event loop. It is readable whenever `strait_wait_set_wait` may have
/// events. Then call `strait_wait_set_wait` with `STRAIT_NOW` once, handle the events, and poll the descriptor again:
/// it stays readable as long as there may be more. The call that returns no event makes the descriptor unreadable.
///
/// Watch the descriptor level-triggered, without `EPOLLET`. An edge-triggered loop gets no further wake-up for
/// remaining events: such a loop has to call `strait_wait_set_wait` until the call returns no event and
/// `strait_wait_set_has_more` is false, and busy clients can prolong the loop for ever. The set owns the descriptor: do
/// not read from the descriptor or close it. Returns -1 if `set` is `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_fd(set: *const strait_wait_set) -> c_int {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { set.as_ref() }.map_or(-1, |set| call_or(-1, || set.set.as_raw_fd()))
}

/// Returns whether the set has more work although `strait_wait_set_wait` with `STRAIT_NOW` has returned no event. For
/// edge-triggered event loops (`EPOLLET`). Returns false for `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_has_more(set: *const strait_wait_set) -> bool {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { set.as_ref() }.is_some_and(|set| call_or(false, || set.set.has_more()))
}

/// Returns the number of members of a set; 0 for `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_len(set: *const strait_wait_set) -> usize {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { set.as_ref() }.map_or(0, |set| set.set.len())
}
