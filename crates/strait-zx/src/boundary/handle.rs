//! Functions for handles, and for objects of all types.

use std::ffi::{c_char, c_void};

use super::call;
use crate::abi::*;
use crate::object;
use crate::status::{self, Result, Status};
use crate::table::{Table, table};
use crate::time::Deadline;
use crate::user::{In, Out};
use crate::wait;

/// Closes all valid handles of an array. `ZX_ERR_BAD_HANDLE` if some were not valid; `ZX_HANDLE_INVALID` is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_handle_close_many(handles: *const zx_handle_t, num_handles: usize) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let handles = unsafe { In::new(handles, num_handles) };
        handles.check()?;
        let mut result = Ok(());
        for index in 0..num_handles {
            let handle = handles.get(index);
            if handle != ZX_HANDLE_INVALID {
                result = object::close_handle(handle).and(result);
            }
        }
        result
    })
}

/// Makes another handle of the object. `rights` must be among the rights of this handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_handle_duplicate(
    handle: zx_handle_t,
    rights: zx_rights_t,
    out: *mut zx_handle_t,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(out, 1) };
        out.check()?;
        out.set(0, object::duplicate(handle, rights)?);
        Ok(())
    })
}

/// Replaces a handle by a new handle, and closes the old handle in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_handle_replace(
    handle: zx_handle_t,
    rights: zx_rights_t,
    out: *mut zx_handle_t,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(out, 1) };
        if out.is_null() {
            let _ = object::close_handle(handle);
            return Err(Status::INVALID_ARGS);
        }
        out.set(0, object::replace(handle, rights)?);
        Ok(())
    })
}

/// Waits until one of these signals is set, or until the deadline. Writes all set signals to `observed`, if
/// `observed` is not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_object_wait_one(
    handle: zx_handle_t,
    signals: zx_signals_t,
    deadline: zx_time_t,
    observed: *mut zx_signals_t,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let observed = unsafe { Out::new(observed, 1) };
        wait::wait_one(handle, signals, Deadline::new(deadline), observed)
    })
}

/// Waits until one of the objects has a signal of its `waitfor`, or until the deadline. Writes the signals of each
/// object to the object's `pending`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_object_wait_many(
    items: *mut zx_wait_item_t,
    num_items: usize,
    deadline: zx_time_t,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let items = unsafe { Out::new(items, num_items) };
        wait::wait_many(items, Deadline::new(deadline))
    })
}

/// Queues a packet to a port once one of the signals is set. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn zx_object_wait_async(
    handle: zx_handle_t,
    port: zx_handle_t,
    key: u64,
    signals: zx_signals_t,
    options: u32,
) -> zx_status_t {
    call(|| wait::wait_async(handle, port, key, signals, options))
}

/// Clears and sets signals of an object that programs may set.
#[unsafe(no_mangle)]
pub extern "C" fn zx_object_signal(handle: zx_handle_t, clear_mask: u32, set_mask: u32) -> zx_status_t {
    call(|| object::signal(handle, clear_mask, set_mask))
}

/// Clears and sets program-settable signals of an object's other end; never blocks. `ZX_ERR_SHOULD_WAIT` if the other
/// end is a channel end in another process and there is no room for the message; nothing has changed then.
#[unsafe(no_mangle)]
pub extern "C" fn zx_object_signal_peer(handle: zx_handle_t, clear_mask: u32, set_mask: u32) -> zx_status_t {
    call(|| object::signal_peer(handle, clear_mask, set_mask))
}

/// Returns `ZX_OK` if the handle is valid, otherwise `ZX_ERR_BAD_HANDLE`.
#[unsafe(no_mangle)]
pub extern "C" fn zx_handle_check_valid(handle: zx_handle_t) -> zx_status_t {
    call(|| table().get_kept(handle, Table::get).map(drop))
}

/// Returns whether a handle is valid (`ZX_INFO_HANDLE_VALID`), describes the object (`ZX_INFO_HANDLE_BASIC`), or counts
/// the object's handles in this process (`ZX_INFO_HANDLE_COUNT`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_object_get_info(
    handle: zx_handle_t,
    topic: u32,
    buffer: *mut c_void,
    buffer_size: usize,
    actual_count: *mut usize,
    avail_count: *mut usize,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let counts = unsafe { [Out::new(actual_count, 1), Out::new(avail_count, 1)] };
        match topic {
            ZX_INFO_HANDLE_VALID => table().get_kept(handle, Table::get).map(drop),
            // SAFETY: as the caller promises.
            ZX_INFO_HANDLE_BASIC => unsafe { tell(object::basic_info(handle)?, buffer, buffer_size, counts) },
            // SAFETY: as the caller promises.
            ZX_INFO_HANDLE_COUNT => unsafe { tell(object::handle_count(handle)?, buffer, buffer_size, counts) },
            _ => Err(Status::NOT_SUPPORTED),
        }
    })
}

/// Writes the single record, if there is room, and the numbers of records written and available.
///
/// # Safety
/// The buffer is null, or can be written for `buffer_size` bytes.
unsafe fn tell<T: Copy>(info: T, buffer: *mut c_void, buffer_size: usize, counts: [Out<usize>; 2]) -> Result<()> {
    let fits = buffer_size >= size_of::<T>();
    if fits {
        // SAFETY: as the caller promises, and the buffer is long enough.
        let out = unsafe { Out::new(buffer.cast::<T>(), 1) };
        out.check()?;
        out.set(0, info);
    }
    let [actual, avail] = counts;
    actual.set_if_wanted(usize::from(fits));
    avail.set_if_wanted(1);
    if fits { Ok(()) } else { Err(Status::BUFFER_TOO_SMALL) }
}

/// Returns the name of a status, as a constant text.
#[unsafe(no_mangle)]
pub extern "C" fn zx_status_get_string(status: zx_status_t) -> *const c_char {
    status::name(status).as_ptr()
}
