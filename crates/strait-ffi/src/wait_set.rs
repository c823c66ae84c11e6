//! Waiting for many channels at once.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use strait::{Event, Interest, Mode, WaitSet};

use crate::args;
use crate::channel::{enter, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::pipe::shell::{Held, held};
use crate::pipe::{strait_consumer, strait_producer};
use crate::status::{Failure, call, call_or, strait_status};

/// What a channel is waited for, and what was found: an or of `STRAIT_READABLE` and the like.
pub type strait_events = u32;

/// A message can be received; or an error, as the channel is at an end.
pub const STRAIT_READABLE: strait_events = 1;
/// A small message can be sent; or that fails at once.
pub const STRAIT_WRITABLE: strait_events = 2;
/// Only found: the end was sent away in a message and so left the set. The last event of this registration.
pub const STRAIT_HAS_MOVED: strait_events = 4;

/// How often a registration tells.
pub type strait_mode = u32;

/// In every call, as long as it is so.
pub const STRAIT_LEVEL: strait_mode = 0;
/// Once, to one thread; then not before `strait_wait_set_rearm`.
pub const STRAIT_ONE_SHOT: strait_mode = 1;

/// What `strait_wait_set_wait` tells of a channel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_event {
    /// The number that was given to `strait_wait_set_add`.
    pub key: u64,
    /// What was found.
    pub events: strait_events,
    /// Zero.
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

/// Waits for any number of channels at once, in a thread or through one descriptor in any event loop. Any number of threads may use it
/// at once; free it when none does any more.
#[derive(Debug)]
pub struct strait_wait_set {
    set: WaitSet,
    /// Memory for events, and those of them that did not fit.
    events: Mutex<Vec<Event>>,
}

/// Makes a set without members: it has two descriptors, whatever is in it.
///
/// `set` gets it, and it is the caller's; `NULL` on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_new(set: *mut *mut strait_wait_set) -> strait_status {
    call(|| {
        // SAFETY: as the C API says.
        let out = unsafe { args::out(set, ptr::null_mut(), "set is NULL") }?;
        let set = strait_wait_set { set: WaitSet::new()?, events: Mutex::default() };
        *out = Box::into_raw(Box::new(set));
        Ok(())
    })
}

/// Frees a set; its members are in no set any more. `NULL` is let pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_free(set: *mut strait_wait_set) {
    if !set.is_null() {
        // SAFETY: it came from `strait_wait_set_new`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(set) }));
    }
}

/// # Safety
/// As the C API says of a set.
unsafe fn set<'a>(set: *const strait_wait_set) -> Result<&'a strait_wait_set, Failure> {
    // SAFETY: as the caller says.
    unsafe { args::reference(set, "set is NULL") }
}

/// Adds a channel, whose events come with this key; keys need not differ. If it is ready now, that is an event. Does not block.
///
/// `interest` is `STRAIT_READABLE`, `STRAIT_WRITABLE` or both. The channel stays the caller's. It is in one set at a time, and leaves it
/// when it is closed or sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_add(
    set: *const strait_wait_set,
    channel: *const strait_channel,
    key: u64,
    interest: strait_events,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (set, using) = unsafe { (self::set(set)?, enter(channel)?) };
        let interest = match interest {
            STRAIT_READABLE => Interest::Readable,
            STRAIT_WRITABLE => Interest::Writable,
            3 => Interest::Both,
            _ => return Err(Failure::Invalid("interest is neither STRAIT_READABLE nor STRAIT_WRITABLE nor both")),
        };
        Ok(set.set.add(using.channel(), key, interest, self::mode(mode)?)?)
    })
}

fn mode(mode: strait_mode) -> Result<Mode, Failure> {
    match mode {
        STRAIT_LEVEL => Ok(Mode::Level),
        STRAIT_ONE_SHOT => Ok(Mode::OneShot),
        _ => Err(Failure::Invalid("mode is neither STRAIT_LEVEL nor STRAIT_ONE_SHOT")),
    }
}

/// Has a one-shot registration tell once more. If its channel is ready now, that is an event. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_rearm(
    set: *const strait_wait_set,
    channel: *const strait_channel,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (set, using) = unsafe { (self::set(set)?, enter(channel)?) };
        Ok(set.set.rearm(using.channel())?)
    })
}

/// Takes a channel out. Calls that begin after this tell nothing of it. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_remove(
    set: *const strait_wait_set,
    channel: *const strait_channel,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (set, using) = unsafe { (self::set(set)?, enter(channel)?) };
        Ok(set.set.remove(using.channel())?)
    })
}

/// As `strait_wait_set_add` for an end of a data pipe: `STRAIT_WRITABLE` when there is room for an element, or the consumer is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_add_producer(
    set: *const strait_wait_set,
    producer: *const strait_producer,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (set, end) = unsafe { (self::set(set)?, held(producer)?) };
        let mode = self::mode(mode)?;
        end.with(|end| set.set.add_pipe(end, key, mode))
    })
}

/// As `strait_wait_set_rearm` for an end of a data pipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_rearm_producer(
    set: *const strait_wait_set,
    producer: *const strait_producer,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (set, end) = unsafe { (self::set(set)?, held(producer)?) };
        end.with(|end| set.set.rearm_pipe(end))
    })
}

/// As `strait_wait_set_remove` for an end of a data pipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_remove_producer(
    set: *const strait_wait_set,
    producer: *const strait_producer,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (set, end) = unsafe { (self::set(set)?, held(producer)?) };
        end.with(|end| set.set.remove_pipe(end))
    })
}

/// As `strait_wait_set_add` for an end of a data pipe: `STRAIT_READABLE` when there is an element, or the stream has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_add_consumer(
    set: *const strait_wait_set,
    consumer: *const strait_consumer,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (set, end) = unsafe { (self::set(set)?, held(consumer)?) };
        let mode = self::mode(mode)?;
        end.with(|end| set.set.add_pipe(end, key, mode))
    })
}

/// As `strait_wait_set_rearm` for an end of a data pipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_rearm_consumer(
    set: *const strait_wait_set,
    consumer: *const strait_consumer,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (set, end) = unsafe { (self::set(set)?, held(consumer)?) };
        end.with(|end| set.set.rearm_pipe(end))
    })
}

/// As `strait_wait_set_remove` for an end of a data pipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_remove_consumer(
    set: *const strait_wait_set,
    consumer: *const strait_consumer,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (set, end) = unsafe { (self::set(set)?, held(consumer)?) };
        end.with(|end| set.set.remove_pipe(end))
    })
}

/// Waits until a member is ready, or until the deadline.
///
/// `events` gets what was found, at most `capacity` and at least one; `count` gets how many: 0 if the time was up, which is a success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_wait(
    set: *const strait_wait_set,
    events: *mut strait_event,
    capacity: usize,
    count: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (set, count) = unsafe { (self::set(set)?, args::out(count, 0, "count is NULL")?) };
        if events.is_null() || capacity == 0 {
            return Err(Failure::Invalid("events is NULL, or capacity is 0"));
        }
        // No more than anybody has room for.
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
            // SAFETY: the caller has room for so many.
            unsafe { events.add(place).write(strait_event::new(&event)) };
        }
        set.keep_events(found);
        Ok(())
    })
}

impl strait_wait_set {
    /// Events that did not fit before; or their memory, if no other thread has it.
    fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn keep_events(&self, events: Vec<Event>) {
        let mut kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            *kept = events;
        } else {
            kept.extend(events);
        }
    }
}

/// A descriptor that is readable whenever `strait_wait_set_wait` may have something: for `poll`, `epoll`, or any event loop. It belongs to
/// the set. When it is readable, call `strait_wait_set_wait` with `STRAIT_NOW`, as often as there are events or once for each time; the
/// call that returns none makes it unreadable. It must not be read from or closed. -1 if `set` is `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_fd(set: *const strait_wait_set) -> c_int {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { set.as_ref() }.map_or(-1, |set| call_or(-1, || set.set.as_raw_fd()))
}

/// How many channels are in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_len(set: *const strait_wait_set) -> usize {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { set.as_ref() }.map_or(0, |set| set.set.len())
}
