//! Functions for events, eventpairs and VMOs.

use std::ffi::c_void;
use std::sync::Arc;

use super::call;
use crate::abi::*;
use crate::event::EventEnd;
use crate::object::{self, Object};
use crate::status::Status;
use crate::table::{Table, table};
use crate::user::{In, Out};
use crate::vmo::Vmo;

/// Makes an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_event_create(options: u32, out: *mut zx_handle_t) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(out, 1) };
        if options != 0 {
            return Err(Status::INVALID_ARGS);
        }
        out.check()?;
        out.set(0, object::add(Object::Event(EventEnd::event()), ZX_DEFAULT_EVENT_RIGHTS)?);
        Ok(())
    })
}

/// Makes an eventpair: two ends that signal each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_eventpair_create(
    options: u32,
    out0: *mut zx_handle_t,
    out1: *mut zx_handle_t,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let (out0, out1) = unsafe { (Out::new(out0, 1), Out::new(out1, 1)) };
        if options != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        out0.check()?;
        out1.check()?;
        let (a, b) = EventEnd::pair();
        let first = object::add(Object::Event(a), ZX_DEFAULT_EVENTPAIR_RIGHTS)?;
        let second = object::add(Object::Event(b), ZX_DEFAULT_EVENTPAIR_RIGHTS).inspect_err(|_| {
            let _ = object::close_handle(first);
        })?;
        out0.set(0, first);
        out1.set(0, second);
        Ok(())
    })
}

/// Makes a VMO of `size` zero bytes, rounded up to pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_vmo_create(size: u64, options: u32, out: *mut zx_handle_t) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(out, 1) };
        out.check()?;
        let vmo = Vmo::new(size, options)?;
        let resize = if options & ZX_VMO_RESIZABLE != 0 { ZX_RIGHT_RESIZE } else { 0 };
        out.set(0, object::add(Object::Vmo(Arc::new(vmo)), ZX_DEFAULT_VMO_RIGHTS | resize)?);
        Ok(())
    })
}

/// Returns the VMO of a handle with the given rights.
fn vmo_of(handle: zx_handle_t, rights: zx_rights_t) -> crate::status::Result<Arc<Vmo>> {
    let entry = table().get_kept(handle, Table::get)?;
    let vmo = entry.object.vmo()?.clone();
    entry.need(rights)?;
    Ok(vmo)
}

/// Copies bytes out of a VMO. `ZX_ERR_OUT_OF_RANGE` if it has fewer bytes there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_vmo_read(
    handle: zx_handle_t,
    buffer: *mut c_void,
    offset: u64,
    buffer_size: usize,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let mut buffer = unsafe { Out::<u8>::new(buffer.cast(), buffer_size) };
        let vmo = vmo_of(handle, ZX_RIGHT_READ)?;
        vmo.check(offset, buffer_size)?;
        buffer.check()?;
        vmo.read(offset, buffer.buffer(buffer_size))
    })
}

/// Copies bytes into a VMO. `ZX_ERR_OUT_OF_RANGE` if it has fewer bytes there.
///
/// If the VMO is resizable and another process has it, waits while that process writes, however long that takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_vmo_write(
    handle: zx_handle_t,
    buffer: *const c_void,
    offset: u64,
    buffer_size: usize,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let buffer = unsafe { In::<u8>::new(buffer.cast(), buffer_size) };
        let vmo = vmo_of(handle, ZX_RIGHT_WRITE)?;
        vmo.check(offset, buffer_size)?;
        vmo.write(offset, buffer.bytes()?)
    })
}

/// Writes the size of a VMO in bytes to `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_vmo_get_size(handle: zx_handle_t, size: *mut u64) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(size, 1) };
        let vmo = vmo_of(handle, 0)?;
        out.check()?;
        out.set(0, vmo.size()?);
        Ok(())
    })
}
