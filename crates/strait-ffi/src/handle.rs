//! Handles for C code: the descriptors and objects that messages carry besides bytes.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use strait::Handle;
use strait::quota::MAX_HANDLES;

use crate::channel::{self, strait_channel};
use crate::pipe::shell::Held;
use crate::pipe::{strait_consumer, strait_consumer_free, strait_producer, strait_producer_free};
use crate::region::{strait_region, strait_region_free};
use crate::status::Failure;

/// The kind of a `strait_handle`.
pub type strait_handle_kind = u32;

/// The handle is empty.
pub const STRAIT_HANDLE_NONE: strait_handle_kind = 0;
/// The handle is a file descriptor, in `fd`.
pub const STRAIT_HANDLE_FD: strait_handle_kind = 1;
/// The handle is an end of a channel: `object` is a `strait_channel *`.
pub const STRAIT_HANDLE_CHANNEL: strait_handle_kind = 2;
/// The handle is a region: `object` is a `strait_region *`.
pub const STRAIT_HANDLE_REGION: strait_handle_kind = 3;
/// The handle is the writing end of a data pipe: `object` is a `strait_producer *`.
pub const STRAIT_HANDLE_PRODUCER: strait_handle_kind = 4;
/// The handle is the reading end of a data pipe: `object` is a `strait_consumer *`.
pub const STRAIT_HANDLE_CONSUMER: strait_handle_kind = 5;
/// A handle of a kind unknown to this version: the sender has a newer library. The handle can be sent on, or closed
/// with `strait_handle_close`.
pub const STRAIT_HANDLE_OTHER: strait_handle_kind = 255;

/// An object that a message can carry: a file descriptor, an end of a channel or of a data pipe, or a region.
///
/// A handle owns its object. A function that sends the handle takes the object on success, and sets `kind` to
/// `STRAIT_HANDLE_NONE`. If the function fails, the handle is unchanged. The caller owns a received handle: take the
/// object out, or close it with `strait_handle_close`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_handle {
    /// The kind, `STRAIT_HANDLE_*`.
    pub kind: strait_handle_kind,
    /// The file descriptor, if the handle is a file descriptor; otherwise -1.
    pub fd: c_int,
    /// The object, if the handle is an object; otherwise `NULL`.
    pub object: *mut c_void,
}

impl strait_handle {
    /// The empty handle.
    pub(crate) const NONE: Self = Self { kind: STRAIT_HANDLE_NONE, fd: -1, object: std::ptr::null_mut() };

    /// Converts a handle of the Rust library to a handle owned by C code.
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

/// Handles of C code for a message over the end `over`. C code owns the handles until [`Self::sent`].
pub(crate) struct Lent<'a> {
    theirs: &'a mut [strait_handle],
    over: *const strait_channel,
}

impl<'a> Lent<'a> {
    /// Checks the handles given to a function.
    ///
    /// # Errors
    /// [`Failure::BadHandle`] if a handle is empty, invalid or given twice. [`Failure::OwnChannel`] if a handle is the
    /// end `over`. [`Failure::TooManyHandles`] if there are more than [`MAX_HANDLES`].
    ///
    /// # Safety
    /// `handles` points to `count` handles for this function call alone, or `count` is 0.
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
        // SAFETY: the caller promises `count` handles, for this function call alone.
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

    /// Returns whether there are no handles.
    pub(crate) fn is_empty(&self) -> bool {
        self.theirs.is_empty()
    }

    /// Takes the objects out of the handles. The caller must either [give them back](Self::give_back), or report that
    /// they were [sent](Self::sent).
    ///
    /// # Errors
    /// [`Failure::Closed`], [`Failure::Moved`] or [`Failure::InUse`] if an end cannot be taken. Then all handles are as
    /// they were.
    pub(crate) fn take(&mut self) -> Result<Vec<Handle>, Failure> {
        let mut taken = Vec::with_capacity(self.theirs.len());
        for handle in self.theirs.iter() {
            let one = match handle.kind {
                // SAFETY: the handle owns the descriptor, and the `OwnedFd` is forgotten or closed before C code has
                // the handle again.
                STRAIT_HANDLE_FD => Ok(Handle::Fd(unsafe { OwnedFd::from_raw_fd(handle.fd) })),
                STRAIT_HANDLE_CHANNEL => {
                    // SAFETY: the handle owns a reference to the end, and the caller has a reference to `over`.
                    unsafe { channel::take_out(handle.object.cast(), self.over) }.map(Handle::Channel)
                }
                STRAIT_HANDLE_REGION => {
                    // SAFETY: the handle owns the object.
                    let shell = unsafe { &*handle.object.cast::<strait_region>() };
                    // A duplicate of the region is sent, so that the caller's region stays if sending fails.
                    Ok(Handle::Region(shell.region().clone()))
                }
                STRAIT_HANDLE_PRODUCER => {
                    // SAFETY: the handle owns the object.
                    unsafe { &*handle.object.cast::<strait_producer>() }.take_out().map(Handle::Producer)
                }
                STRAIT_HANDLE_CONSUMER => {
                    // SAFETY: the handle owns the object.
                    unsafe { &*handle.object.cast::<strait_consumer>() }.take_out().map(Handle::Consumer)
                }
                // SAFETY: the object came from `strait_handle::give`. The pointer that stays in the handle is never
                // followed.
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

    /// Puts unsent objects back into the first `taken` handles, in the order of taking. The caller sees no change,
    /// except that a handle without an object in `handles` becomes empty.
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
                // SAFETY: the end was just taken out of the object.
                Some(Handle::Channel(channel)) => unsafe { channel::put_back(place.object.cast(), channel) },
                Some(Handle::Region(_)) => {}
                // SAFETY: the end was just taken out of the object.
                Some(Handle::Producer(end)) => unsafe { &*place.object.cast::<strait_producer>() }.put_back(end),
                // SAFETY: the handle owned the object.
                Some(Handle::Consumer(end)) => unsafe { &*place.object.cast::<strait_consumer>() }.put_back(end),
                Some(other) => place.object = Box::into_raw(Box::new(other)).cast(),
                None => Self::gone(place),
            }
        }
    }

    /// Empties a handle whose object was sent or lost, and releases the rest of the handle.
    fn gone(handle: &mut strait_handle) {
        match handle.kind {
            // SAFETY: the handle owned a reference to the end.
            STRAIT_HANDLE_CHANNEL => unsafe { channel::release(handle.object.cast()) },
            // SAFETY: the handle owned the object.
            STRAIT_HANDLE_REGION => unsafe { strait_region_free(handle.object.cast()) },
            // SAFETY: the handle owned the object.
            STRAIT_HANDLE_PRODUCER => unsafe { strait_producer_free(handle.object.cast()) },
            // SAFETY: the handle owned the object.
            STRAIT_HANDLE_CONSUMER => unsafe { strait_consumer_free(handle.object.cast()) },
            _ => {}
        }
        *handle = strait_handle::NONE;
    }

    /// Empties all handles after the message with the objects was sent.
    pub(crate) fn sent(self) {
        self.theirs.iter_mut().for_each(Self::gone);
    }
}

/// Returns a handle with the file descriptor `fd`, owned by the handle from now on.
#[unsafe(no_mangle)]
pub extern "C" fn strait_handle_from_fd(fd: c_int) -> strait_handle {
    strait_handle { kind: STRAIT_HANDLE_FD, fd, object: std::ptr::null_mut() }
}

/// Returns a handle for an end of a channel. The handle owns the caller's reference from now on.
#[unsafe(no_mangle)]
pub extern "C" fn strait_handle_from_channel(channel: *mut strait_channel) -> strait_handle {
    strait_handle { kind: STRAIT_HANDLE_CHANNEL, fd: -1, object: channel.cast() }
}

/// Returns a handle with the region, owned by the handle from now on.
#[unsafe(no_mangle)]
pub extern "C" fn strait_handle_from_region(region: *mut strait_region) -> strait_handle {
    strait_handle { kind: STRAIT_HANDLE_REGION, fd: -1, object: region.cast() }
}

/// Returns a handle that owns the writing end of a data pipe from now on.
#[unsafe(no_mangle)]
pub extern "C" fn strait_handle_from_producer(producer: *mut strait_producer) -> strait_handle {
    strait_handle { kind: STRAIT_HANDLE_PRODUCER, fd: -1, object: producer.cast() }
}

/// Returns a handle that owns the reading end of a data pipe from now on.
#[unsafe(no_mangle)]
pub extern "C" fn strait_handle_from_consumer(consumer: *mut strait_consumer) -> strait_handle {
    strait_handle { kind: STRAIT_HANDLE_CONSUMER, fd: -1, object: consumer.cast() }
}

/// Takes the file descriptor out of a handle. The caller owns the descriptor, and the handle is empty. Returns -1, and
/// changes nothing, if the handle is no file descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_take_fd(handle: *mut strait_handle) -> c_int {
    // SAFETY: the pointer is `NULL`, or a handle of the caller's.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.kind == STRAIT_HANDLE_FD => std::mem::replace(handle, strait_handle::NONE).fd,
        _ => -1,
    }
}

/// Takes the end of a channel out of a handle. The caller owns the end, and the handle is empty. Returns `NULL`, and
/// changes nothing, if the handle is no end of a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_take_channel(handle: *mut strait_handle) -> *mut strait_channel {
    // SAFETY: the pointer is `NULL`, or a handle of the caller's.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.kind == STRAIT_HANDLE_CHANNEL => {
            std::mem::replace(handle, strait_handle::NONE).object.cast()
        }
        _ => std::ptr::null_mut(),
    }
}

/// Takes the region out of a handle. The caller owns the region, and the handle is empty. Returns `NULL`, and changes
/// nothing, if the handle is no region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_take_region(handle: *mut strait_handle) -> *mut strait_region {
    // SAFETY: the pointer is `NULL`, or a handle of the caller's.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.kind == STRAIT_HANDLE_REGION => {
            std::mem::replace(handle, strait_handle::NONE).object.cast()
        }
        _ => std::ptr::null_mut(),
    }
}

/// Takes the writing end of a data pipe out of a handle. The caller owns the end, and the handle is empty. Returns
/// `NULL`, and changes nothing, if the handle is no writing end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_take_producer(handle: *mut strait_handle) -> *mut strait_producer {
    // SAFETY: the pointer is `NULL`, or a handle of the caller's.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.kind == STRAIT_HANDLE_PRODUCER => {
            std::mem::replace(handle, strait_handle::NONE).object.cast()
        }
        _ => std::ptr::null_mut(),
    }
}

/// Takes the reading end of a data pipe out of a handle. The caller owns the end, and the handle is empty. Returns
/// `NULL`, and changes nothing, if the handle is no reading end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_take_consumer(handle: *mut strait_handle) -> *mut strait_consumer {
    // SAFETY: the pointer is `NULL`, or a handle of the caller's.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.kind == STRAIT_HANDLE_CONSUMER => {
            std::mem::replace(handle, strait_handle::NONE).object.cast()
        }
        _ => std::ptr::null_mut(),
    }
}

/// Closes or frees the object of a handle, and empties the handle. Ignores `NULL` and empty handles.
///
/// Closes a descriptor in the calling thread, as `close` does: that blocks as long as the descriptor's maker likes, for
/// example with a file of a FUSE file system. To drop a descriptor of a peer that is not trusted, do not take it out of
/// its message: `strait_message_clear`, `strait_message_free` and the next receive into the message close it without
/// blocking. Closing a handle of another kind does not wait for the peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_handle_close(handle: *mut strait_handle) {
    // SAFETY: the pointer is `NULL`, or a handle of the caller's.
    let Some(handle) = (unsafe { handle.as_mut() }) else { return };
    let closed = std::mem::replace(handle, strait_handle::NONE);
    match closed.kind {
        // SAFETY: the handle owned the object.
        STRAIT_HANDLE_FD if closed.fd >= 0 => drop(unsafe { OwnedFd::from_raw_fd(closed.fd) }),
        // SAFETY: the handle owned a reference to the end.
        STRAIT_HANDLE_CHANNEL => unsafe { channel::strait_channel_close(closed.object.cast()) },
        // SAFETY: the handle owned the object.
        STRAIT_HANDLE_REGION => unsafe { strait_region_free(closed.object.cast()) },
        // SAFETY: the handle owned the object.
        STRAIT_HANDLE_PRODUCER => unsafe { strait_producer_free(closed.object.cast()) },
        // SAFETY: the handle owned the object.
        STRAIT_HANDLE_CONSUMER => unsafe { strait_consumer_free(closed.object.cast()) },
        STRAIT_HANDLE_OTHER if !closed.object.is_null() => crate::status::call_or((), || {
            // SAFETY: the object came from `strait_handle::give`.
            drop(unsafe { Box::from_raw(closed.object.cast::<Handle>()) });
        }),
        _ => {}
    }
}
