//! Functions for channels.

use std::ffi::c_void;

use super::call;
use crate::abi::*;
use crate::channel;
use crate::channel::read::{Destination, HandlesOut};
use crate::channel::write::HandlesIn;
use crate::object;
use crate::status::Status;
use crate::time::Deadline;
use crate::user::{In, Out};

/// Makes a channel, and writes the handles of its two ends to `out0` and `out1`.
///
/// `ZX_ERR_INVALID_ARGS` if there are options, or a pointer is null; `ZX_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_channel_create(
    options: u32,
    out0: *mut zx_handle_t,
    out1: *mut zx_handle_t,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let (out0, out1) = unsafe { (Out::new(out0, 1), Out::new(out1, 1)) };
        if options != 0 {
            return Err(Status::INVALID_ARGS);
        }
        out0.check()?;
        out1.check()?;
        let (a, b) = channel::create()?;
        out0.set(0, a);
        out1.set(0, b);
        Ok(())
    })
}

/// Reads a message; never blocks.
///
/// `ZX_ERR_SHOULD_WAIT` if there is no message. `ZX_ERR_BUFFER_TOO_SMALL` if the message does not fit: the function
/// writes the sizes of the message, and the message stays, or is discarded with `ZX_CHANNEL_READ_MAY_DISCARD`.
/// `ZX_ERR_PEER_CLOSED` if there is no message and the other end is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_channel_read(
    handle: zx_handle_t,
    options: u32,
    bytes: *mut c_void,
    handles: *mut zx_handle_t,
    num_bytes: u32,
    num_handles: u32,
    actual_bytes: *mut u32,
    actual_handles: *mut u32,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        unsafe {
            let handles = HandlesOut::Plain(Out::new(handles, num_handles as usize));
            let mut destination = destination(bytes, num_bytes, handles, actual_bytes, actual_handles);
            channel::read::read(handle, options, &mut destination)
        }
    })
}

/// Reads a message like [`zx_channel_read`], and also writes the type and the rights of each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_channel_read_etc(
    handle: zx_handle_t,
    options: u32,
    bytes: *mut c_void,
    handles: *mut zx_handle_info_t,
    num_bytes: u32,
    num_handles: u32,
    actual_bytes: *mut u32,
    actual_handles: *mut u32,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        unsafe {
            let handles = HandlesOut::Infos(Out::new(handles, num_handles as usize));
            let mut destination = destination(bytes, num_bytes, handles, actual_bytes, actual_handles);
            channel::read::read(handle, options, &mut destination)
        }
    })
}

/// Collects the pointers to the caller's memory for a message.
///
/// # Safety
/// Each pointer is null, or points to as many values as the caller of the function says.
#[inline]
unsafe fn destination<'a>(
    bytes: *mut c_void,
    num_bytes: u32,
    handles: HandlesOut<'a>,
    actual_bytes: *mut u32,
    actual_handles: *mut u32,
) -> Destination<'a> {
    // SAFETY: as the caller promises.
    unsafe {
        Destination {
            bytes: Out::new(bytes.cast(), num_bytes as usize),
            handles,
            actual_bytes: Out::new(actual_bytes, 1),
            actual_handles: Out::new(actual_handles, 1),
        }
    }
}

/// Writes a message; never blocks. With `ZX_CHANNEL_WRITE_USE_IOVEC`, `bytes` are `num_bytes` regions
/// ([`zx_channel_iovec_t`]), sent one after the other.
///
/// The handles are consumed in any case, except after `ZX_ERR_SHOULD_WAIT`, a status that Zircon does not return
/// here: there is no room, and nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_channel_write(
    handle: zx_handle_t,
    options: u32,
    bytes: *const c_void,
    num_bytes: u32,
    handles: *const zx_handle_t,
    num_handles: u32,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises; for regions, of each of them.
        let (bytes, handles) =
            unsafe { (In::new(bytes.cast(), num_bytes as usize), In::new(handles, num_handles as usize)) };
        channel::write::write(handle, options, bytes, HandlesIn::Plain(handles))
    })
}

/// Writes a message like [`zx_channel_write`]. Each disposition says whether its handle is moved or duplicated, its
/// required type, and the rights of the receiver's handle. On failure, `result` of each wrong handle has the reason;
/// nothing else is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_channel_write_etc(
    handle: zx_handle_t,
    options: u32,
    bytes: *const c_void,
    num_bytes: u32,
    handles: *mut zx_handle_disposition_t,
    num_handles: u32,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises; for regions, of each of them.
        let (bytes, handles) =
            unsafe { (In::new(bytes.cast(), num_bytes as usize), Out::new(handles, num_handles as usize)) };
        channel::write::write(handle, options, bytes, HandlesIn::Dispositions(handles))
    })
}

/// Writes a message with a number in place of its first four bytes, and waits for a message that begins with the
/// number.
///
/// The handles are consumed in any case, except if `args` is null, and after `ZX_ERR_SHOULD_WAIT`, as in
/// [`zx_channel_write`]. After `ZX_ERR_TIMED_OUT` the message was sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_channel_call(
    handle: zx_handle_t,
    options: u32,
    deadline: zx_time_t,
    args: *const zx_channel_call_args_t,
    actual_bytes: *mut u32,
    actual_handles: *mut u32,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises, also of what the arguments point to.
        unsafe {
            let args = In::new(args, 1);
            args.check()?;
            let args = args.get(0);
            let handles = HandlesIn::Plain(In::new(args.wr_handles, args.wr_num_handles as usize));
            let handles_out = HandlesOut::Plain(Out::new(args.rd_handles, args.rd_num_handles as usize));
            run_call(handle, options, deadline, &args, handles, handles_out, actual_bytes, actual_handles)
        }
    })
}

/// Calls like [`zx_channel_call`]. No call here ever has to be retried.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_channel_call_noretry(
    handle: zx_handle_t,
    options: u32,
    deadline: zx_time_t,
    args: *const zx_channel_call_args_t,
    actual_bytes: *mut u32,
    actual_handles: *mut u32,
) -> zx_status_t {
    // SAFETY: as the caller promises.
    unsafe { zx_channel_call(handle, options, deadline, args, actual_bytes, actual_handles) }
}

/// Calls like [`zx_channel_call`], with dispositions as in [`zx_channel_write_etc`] and infos as in
/// [`zx_channel_read_etc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_channel_call_etc(
    handle: zx_handle_t,
    options: u32,
    deadline: zx_time_t,
    args: *mut zx_channel_call_etc_args_t,
    actual_bytes: *mut u32,
    actual_handles: *mut u32,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises, also of what the arguments point to.
        unsafe {
            let args = In::new(args.cast_const(), 1);
            args.check()?;
            let args = args.get(0);
            let handles = HandlesIn::Dispositions(Out::new(args.wr_handles, args.wr_num_handles as usize));
            let handles_out = HandlesOut::Infos(Out::new(args.rd_handles, args.rd_num_handles as usize));
            run_call(handle, options, deadline, &args, handles, handles_out, actual_bytes, actual_handles)
        }
    })
}

/// Runs a call with either kind of arguments.
///
/// # Safety
/// Each pointer in the arguments is null, or points to as many values as the caller of the function says.
#[allow(clippy::too_many_arguments)]
unsafe fn run_call<W, R>(
    handle: zx_handle_t,
    options: u32,
    deadline: zx_time_t,
    args: &CallArgs<W, R>,
    handles: HandlesIn<'_>,
    handles_out: HandlesOut<'_>,
    actual_bytes: *mut u32,
    actual_handles: *mut u32,
) -> crate::status::Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let bytes = In::new(args.wr_bytes.cast(), args.wr_num_bytes as usize);
        let mut destination = destination(args.rd_bytes, args.rd_num_bytes, handles_out, actual_bytes, actual_handles);
        channel::call::call(handle, options, Deadline::new(deadline), bytes, handles, &mut destination)
    }
}

/// Closes a handle; ignores `ZX_HANDLE_INVALID`.
#[unsafe(no_mangle)]
pub extern "C" fn zx_handle_close(handle: zx_handle_t) -> zx_status_t {
    call(|| if handle == ZX_HANDLE_INVALID { Ok(()) } else { object::close_handle(handle) })
}
