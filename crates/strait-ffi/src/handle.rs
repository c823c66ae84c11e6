//! What travels in messages besides bytes, as C sees it.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use strait::{Handle, MAX_HANDLES};

use crate::channel::{self, strait_channel};
use crate::pipe::shell::Held;
use crate::pipe::{strait_consumer, strait_consumer_free, strait_producer, strait_producer_free};
use crate::region::{strait_region, strait_region_free};
use crate::status::Failure;

/// What a `strait_handle` is.
pub type strait_handle_kind = u32;

/// Nothing.
pub const STRAIT_HANDLE_NONE: strait_handle_kind = 0;
/// A file descriptor, in `fd`.
pub const STRAIT_HANDLE_FD: strait_handle_kind = 1;
/// An end of a channel, a `strait_channel *` in `object`.
pub const STRAIT_HANDLE_CHANNEL: strait_handle_kind = 2;
/// A region, a `strait_region *` in `object`.
pub const STRAIT_HANDLE_REGION: strait_handle_kind = 3;
/// The writing end of a data pipe, a `strait_producer *` in `object`.
pub const STRAIT_HANDLE_PRODUCER: strait_handle_kind = 4;
/// The reading end of a data pipe, a `strait_consumer *` in `object`.
pub const STRAIT_HANDLE_CONSUMER: strait_handle_kind = 5;
/// Something that came from a newer library and has no kind here. It can be sent on, or closed by `strait_handle_close`.
pub const STRAIT_HANDLE_OTHER: strait_handle_kind = 255;

/// Something that travels in a message: a file descriptor, an end of a channel or of a data pipe, or a region.
///
/// It owns what it names. A call that sends it takes that over if it succeeds, and sets `kind` to `STRAIT_HANDLE_NONE`; if the
/// call fails, everything stays as it was. A handle that was received is the caller's: keep what it names, or close it with
/// `strait_handle_close`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_handle {
    /// What it is.
    pub kind: strait_handle_kind,
    /// The descriptor, if it is one; otherwise -1.
    pub fd: c_int,
    /// The object, if it is one; otherwise `NULL`.
    pub object: *mut c_void,
}

impl strait_handle {
    pub(crate) const NONE: Self = Self { kind: STRAIT_HANDLE_NONE, fd: -1, object: std::ptr::null_mut() };

    /// Gives a handle out to C.
    pub(crate) fn give(handle: Handle) -> Self {
        match handle {
            Handle::Fd(fd) => Self { kind: STRAIT_HANDLE_FD, fd: fd.into_raw_fd(), object: std::ptr::null_mut() },
            Handle::Channel(channel) => {
                Self { kind: STRAIT_HANDLE_CHANNEL, fd: -1, object: strait_channel::give(channel).cast() }
            }
            Handle::Region(region) => {
                Self { kind: STRAIT_HANDLE_REGION, fd: -1, object: strait_region::give(region).cast() }
            }
            Handle::Producer(end) => {
                Self { kind: STRAIT_HANDLE_PRODUCER, fd: -1, object: strait_producer::give(end).cast() }
            }
            Handle::Consumer(end) => {
                Self { kind: STRAIT_HANDLE_CONSUMER, fd: -1, object: strait_consumer::give(end).cast() }
            }
            other => Self { kind: STRAIT_HANDLE_OTHER, fd: -1, object: Box::into_raw(Box::new(other)).cast() },
        }
    }
}

/// Handles of the caller's that are about to be sent over `over`. They stay the caller's until [`Self::sent`].
pub(crate) struct Lent<'a> {
    theirs: &'a mut [strait_handle],
    over: *const strait_channel,
}

impl<'a> Lent<'a> {
    /// Looks at the handles that a call was given.
    ///
    /// # Safety
    /// As the C API says of `handles` and `count`: so many, or none and `NULL`.
    pub(crate) unsafe fn new(
        handles: *mut strait_handle,
        count: usize,
        over: *const strait_channel,
    ) -> Result<Self, Failure> {
        if count == 0 {
            return Ok(Self { theirs: &mut [], over });
        }
        if handles.is_null() {
            return Err(Failure::Invalid("handles is NULL, but handle_count is not 0"));
        }
        if count > MAX_HANDLES {
            return Err(Failure::TooManyHandles(count));
        }
        // SAFETY: so many the caller says there are, and nobody else uses them meanwhile.
        let theirs = unsafe { std::slice::from_raw_parts_mut(handles, count) };
        for (place, handle) in theirs.iter().enumerate() {
            let before = &theirs[..place];
            match handle.kind {
                STRAIT_HANDLE_FD if handle.fd >= 0 => {
                    if before.iter().any(|other| other.kind == STRAIT_HANDLE_FD && other.fd == handle.fd) {
                        return Err(Failure::BadHandle);
                    }
                }
                STRAIT_HANDLE_CHANNEL
                | STRAIT_HANDLE_REGION
                | STRAIT_HANDLE_PRODUCER
                | STRAIT_HANDLE_CONSUMER
                | STRAIT_HANDLE_OTHER
                    if !handle.object.is_null() =>
                {
                    if std::ptr::eq(handle.object.cast(), over) {
                        return Err(Failure::OwnChannel);
                    }
                    if before.iter().any(|other| other.object == handle.object) {
                        return Err(Failure::BadHandle);
                    }
                }
                _ => return Err(Failure::BadHandle),
            }
        }
        Ok(Self { theirs, over })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.theirs.is_empty()
    }

    /// Takes them from the caller. They must be given [back](Self::give_back), or said to be [sent](Self::sent).
    pub(crate) fn take(&mut self) -> Result<Vec<Handle>, Failure> {
        let mut taken = Vec::with_capacity(self.theirs.len());
        for handle in self.theirs.iter() {
            let one = match handle.kind {
                // SAFETY: the handle owns it, and it is forgotten or closed before the caller has it again.
                STRAIT_HANDLE_FD => Ok(Handle::Fd(unsafe { OwnedFd::from_raw_fd(handle.fd) })),
                STRAIT_HANDLE_CHANNEL => {
                    // SAFETY: the handle owns a reference to it, and the caller has one to what it is sent over.
                    unsafe { channel::take_out(handle.object.cast(), self.over) }.map(Handle::Channel)
                }
                STRAIT_HANDLE_REGION => {
                    // SAFETY: the handle owns it.
                    let shell = unsafe { &*handle.object.cast::<strait_region>() };
                    // Another handle for the same memory is sent, so that this one stays if it is not.
                    Ok(Handle::Region(shell.region().clone()))
                }
                STRAIT_HANDLE_PRODUCER => {
                    // SAFETY: the handle owns it.
                    unsafe { &*handle.object.cast::<strait_producer>() }.take_out().map(Handle::Producer)
                }
                STRAIT_HANDLE_CONSUMER => {
                    // SAFETY: the handle owns it.
                    unsafe { &*handle.object.cast::<strait_consumer>() }.take_out().map(Handle::Consumer)
                }
                // SAFETY: it was given out by `strait_handle::give`. What is left in place of it is never looked at.
                _ => Ok(*unsafe { Box::from_raw(handle.object.cast::<Handle>()) }),
            };
            match one {
                Ok(one) => taken.push(one),
                Err(failure) => {
                    let count = taken.len();
                    self.give_back(taken, count);
                    return Err(failure);
                }
            }
        }
        Ok(taken)
    }

    /// Gives back those that were not sent, in their order, of the first `taken`: the caller sees no change, but for such as
    /// are gone all the same.
    pub(crate) fn give_back(&mut self, handles: Vec<Handle>, taken: usize) {
        let mut handles = handles.into_iter().peekable();
        for place in &mut self.theirs[..taken] {
            let is_here = handles.peek().is_some_and(|handle| match handle {
                Handle::Fd(fd) => place.kind == STRAIT_HANDLE_FD && place.fd == fd.as_raw_fd(),
                Handle::Channel(_) => place.kind == STRAIT_HANDLE_CHANNEL,
                Handle::Region(_) => place.kind == STRAIT_HANDLE_REGION,
                Handle::Producer(_) => place.kind == STRAIT_HANDLE_PRODUCER,
                Handle::Consumer(_) => place.kind == STRAIT_HANDLE_CONSUMER,
                _ => place.kind == STRAIT_HANDLE_OTHER,
            });
            match handles.next_if(|_| is_here) {
                Some(Handle::Fd(fd)) => {
                    let _ = fd.into_raw_fd();
                }
                // SAFETY: it was taken out of there just now.
                Some(Handle::Channel(channel)) => unsafe { channel::put_back(place.object.cast(), channel) },
                Some(Handle::Region(_)) => {}
                // SAFETY: it was taken out of there just now.
                Some(Handle::Producer(end)) => unsafe { &*place.object.cast::<strait_producer>() }.put_back(end),
                // SAFETY: as above.
                Some(Handle::Consumer(end)) => unsafe { &*place.object.cast::<strait_consumer>() }.put_back(end),
                Some(other) => place.object = Box::into_raw(Box::new(other)).cast(),
                None => Self::gone(place),
            }
        }
    }

    /// What it named is not there any more.
    fn gone(handle: &mut strait_handle) {
        match handle.kind {
            // SAFETY: the handle owned a reference to it.
            STRAIT_HANDLE_CHANNEL => unsafe { channel::release(handle.object.cast()) },
            // SAFETY: the handle owned it.
            STRAIT_HANDLE_REGION => unsafe { strait_region_free(handle.object.cast()) },
            // SAFETY: as above.
            STRAIT_HANDLE_PRODUCER => unsafe { strait_producer_free(handle.object.cast()) },
            // SAFETY: as above.
            STRAIT_HANDLE_CONSUMER => unsafe { strait_consumer_free(handle.object.cast()) },
            _ => {}
        }
        *handle = strait_handle::NONE;
    }

    /// They are the caller's no more.
    pub(crate) fn sent(self) {
        self.theirs.iter_mut().for_each(Self::gone);
    }
}

/// A handle for a file descriptor, which it owns from now on.
#[unsafe(no_mangle)]
pub extern "C" fn strait_handle_from_fd(fd: c_int) -> strait_handle {
    strait_handle { kind: STRAIT_HANDLE_FD, fd, object: std::ptr::null_mut() }
}

/// A handle for an end of a channel: it owns the caller's reference from now on.
#[unsafe(no_mangle)]
pub extern "C" fn strait_handle_from_channel(channel: *mut strait_channel) -> strait_handle {
    strait_handle { kind: STRAIT_HANDLE_CHANNEL, fd: -1, object: channel.cast() }
}

/// A handle for a region, which it owns from now on.
#[unsafe(no_mangle)]
pub extern "C" fn strait_handle_from_region(region: *mut strait_region) -> strait_handle {
    strait_handle { kind: STRAIT_HANDLE_REGION, fd: -1, object: region.cast() }
}

/// A handle for the writing end of a data pipe, which it owns from now on.
#[unsafe(no_mangle)]
pub extern "C" fn strait_handle_from_producer(producer: *mut strait_producer) -> strait_handle {
    strait_handle { kind: STRAIT_HANDLE_PRODUCER, fd: -1, object: producer.cast() }
}

/// A handle for the reading end of a data pipe, which it owns from now on.
#[unsafe(no_mangle)]
pub extern "C" fn strait_handle_from_consumer(consumer: *mut strait_consumer) -> strait_handle {
    strait_handle { kind: STRAIT_HANDLE_CONSUMER, fd: -1, object: consumer.cast() }
}

/// Takes the descriptor out of a handle: it is the caller's, and the handle is nothing. -1 if it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_take_fd(handle: *mut strait_handle) -> c_int {
    // SAFETY: one that the caller has, or `NULL`.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.kind == STRAIT_HANDLE_FD => std::mem::replace(handle, strait_handle::NONE).fd,
        _ => -1,
    }
}

/// Takes the end of a channel out of a handle: it is the caller's, and the handle is nothing. `NULL` if it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_take_channel(handle: *mut strait_handle) -> *mut strait_channel {
    // SAFETY: one that the caller has, or `NULL`.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.kind == STRAIT_HANDLE_CHANNEL => {
            std::mem::replace(handle, strait_handle::NONE).object.cast()
        }
        _ => std::ptr::null_mut(),
    }
}

/// Takes the region out of a handle: it is the caller's, and the handle is nothing. `NULL` if it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_take_region(handle: *mut strait_handle) -> *mut strait_region {
    // SAFETY: one that the caller has, or `NULL`.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.kind == STRAIT_HANDLE_REGION => {
            std::mem::replace(handle, strait_handle::NONE).object.cast()
        }
        _ => std::ptr::null_mut(),
    }
}

/// Takes the writing end of a data pipe out of a handle: it is the caller's, and the handle is nothing. `NULL` if it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_take_producer(handle: *mut strait_handle) -> *mut strait_producer {
    // SAFETY: one that the caller has, or `NULL`.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.kind == STRAIT_HANDLE_PRODUCER => {
            std::mem::replace(handle, strait_handle::NONE).object.cast()
        }
        _ => std::ptr::null_mut(),
    }
}

/// Takes the reading end of a data pipe out of a handle: it is the caller's, and the handle is nothing. `NULL` if it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_take_consumer(handle: *mut strait_handle) -> *mut strait_consumer {
    // SAFETY: one that the caller has, or `NULL`.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.kind == STRAIT_HANDLE_CONSUMER => {
            std::mem::replace(handle, strait_handle::NONE).object.cast()
        }
        _ => std::ptr::null_mut(),
    }
}

/// Closes what a handle names; then it is nothing. `NULL`, and nothing, are let pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_close(handle: *mut strait_handle) {
    // SAFETY: one that the caller has, or `NULL`.
    let Some(handle) = (unsafe { handle.as_mut() }) else { return };
    let closed = std::mem::replace(handle, strait_handle::NONE);
    match closed.kind {
        // SAFETY: the handle owned it.
        STRAIT_HANDLE_FD if closed.fd >= 0 => drop(unsafe { OwnedFd::from_raw_fd(closed.fd) }),
        // SAFETY: the handle owned a reference to it.
        STRAIT_HANDLE_CHANNEL => unsafe { channel::strait_channel_close(closed.object.cast()) },
        // SAFETY: the handle owned it.
        STRAIT_HANDLE_REGION => unsafe { strait_region_free(closed.object.cast()) },
        // SAFETY: the handle owned it.
        STRAIT_HANDLE_PRODUCER => unsafe { strait_producer_free(closed.object.cast()) },
        // SAFETY: the handle owned it.
        STRAIT_HANDLE_CONSUMER => unsafe { strait_consumer_free(closed.object.cast()) },
        STRAIT_HANDLE_OTHER if !closed.object.is_null() => crate::status::call_or((), || {
            // SAFETY: it was given out by `strait_handle::give`.
            drop(unsafe { Box::from_raw(closed.object.cast::<Handle>()) });
        }),
        _ => {}
    }
}
