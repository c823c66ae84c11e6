//! Functions for ports.

use super::call;
use crate::abi::*;
use crate::object::{self, Object};
use crate::port::PortHandle;
use crate::status::Status;
use crate::table::{Table, table};
use crate::time::Deadline;
use crate::user::{In, Out};
use crate::wait;

/// Makes a port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_port_create(options: u32, out: *mut zx_handle_t) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(out, 1) };
        if options & !ZX_PORT_BIND_TO_INTERRUPT != 0 {
            return Err(Status::INVALID_ARGS);
        }
        out.check()?;
        out.set(0, object::add(Object::Port(PortHandle::new()), ZX_DEFAULT_PORT_RIGHTS)?);
        Ok(())
    })
}

/// Queues a packet of a program: a key, a status and 32 bytes. `ZX_ERR_SHOULD_WAIT` if there is no room: a port holds
/// 4,096 packets of programs, and fewer once it is shared with another process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_port_queue(handle: zx_handle_t, packet: *const zx_port_packet_t) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let packet = unsafe { In::new(packet, 1) };
        let port = object::port_of(handle, ZX_RIGHT_WRITE)?;
        packet.check()?;
        port.queue(&packet.get(0))
    })
}

/// Takes the next packet; waits for it until the deadline.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zx_port_wait(
    handle: zx_handle_t,
    deadline: zx_time_t,
    packet: *mut zx_port_packet_t,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(packet, 1) };
        let packet = object::port_of(handle, ZX_RIGHT_READ)?.wait(Deadline::new(deadline))?;
        // A null pointer is detected only after the packet was taken.
        out.check()?;
        out.set(0, packet);
        Ok(())
    })
}

/// Ends the waits for `source` with the key, and drops the packets of the waits. `ZX_ERR_NOT_FOUND` if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn zx_port_cancel(handle: zx_handle_t, source: zx_handle_t, key: u64) -> zx_status_t {
    call(|| {
        let port = object::port_of(handle, ZX_RIGHT_WRITE)?;
        let entry = table().get_kept(source, Table::get)?;
        entry.need(ZX_RIGHT_WAIT)?;
        drop(entry);
        wait::cancel(&port, Some(source), key)
    })
}

/// Ends all waits with the key, and drops all packets with the key, including packets queued by programs.
/// `ZX_ERR_NOT_FOUND` if there was neither a wait nor a packet.
#[unsafe(no_mangle)]
pub extern "C" fn zx_port_cancel_key(handle: zx_handle_t, options: u32, key: u64) -> zx_status_t {
    call(|| {
        if options != 0 {
            return Err(Status::INVALID_ARGS);
        }
        let port = object::port_of(handle, ZX_RIGHT_WRITE)?;
        wait::cancel(&port, None, key)
    })
}
