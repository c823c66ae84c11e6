//! Channels.

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

/// Makes a channel: two ends.
///
/// `ZX_ERR_INVALID_ARGS` for options, or a null pointer; `ZX_ERR_NO_MEMORY`.
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
/// `ZX_ERR_SHOULD_WAIT` if there is none; `ZX_ERR_BUFFER_TOO_SMALL`, with the sizes, if it does not fit: it stays, or is
/// discarded with `ZX_CHANNEL_READ_MAY_DISCARD`; `ZX_ERR_PEER_CLOSED` if there is none and the other end is gone.
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

/// As [`zx_channel_read`], and says of each handle of what type it is and which rights it has.
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

/// Where a message goes.
///
/// # Safety
/// As the caller of a call promises of each pointer.
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
/// ([`zx_channel_iovec_t`]), which are sent one after the other.
///
/// The handles are gone, whatever comes of it; except after `ZX_ERR_SHOULD_WAIT`, which Zircon does not have: there is no
/// room, and nothing has happened.
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

/// As [`zx_channel_write`], and says of each handle whether it is moved or duplicated, of what type it must be, and which
/// rights the receiver's is to have. On failure `result` of those that were wrong says why; nothing else is written.
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

/// Writes a message whose first four bytes are replaced by a number, and waits for one that begins with the same.
///
/// The handles are gone, whatever comes of it, except where `args` are null, and after `ZX_ERR_SHOULD_WAIT`, as in
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

/// As [`zx_channel_call`]: nothing here is ever to be tried again.
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

/// As [`zx_channel_call`], with what [`zx_channel_write_etc`] and [`zx_channel_read_etc`] have more.
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

/// # Safety
/// What the arguments point to is there, as the caller of a call promises.
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

/// Closes a handle; `ZX_HANDLE_INVALID` is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn zx_handle_close(handle: zx_handle_t) -> zx_status_t {
    call(|| if handle == ZX_HANDLE_INVALID { Ok(()) } else { object::close_handle(handle) })
}
