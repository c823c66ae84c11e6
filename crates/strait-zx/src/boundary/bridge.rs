//! Functions that Zircon does not have: file descriptors as handles, and the first channel between two processes.

use std::ffi::{CStr, OsStr, c_char};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::Arc;

use strait::Channel;

use super::call;
use crate::abi::*;
use crate::channel::{self, Chan};
use crate::koid;
use crate::object::{self, Descriptor, Object};
use crate::status::{Result, Status};
use crate::table::{Entry, Reserved, table};
use crate::user::{In, Out};

/// Makes a handle of a file descriptor. If the function succeeds, the library owns the descriptor; otherwise the caller
/// still does.
///
/// `ZX_ERR_BAD_HANDLE` if the descriptor is not open; `ZX_ERR_NO_MEMORY` if there are too many handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_zx_handle_from_fd(fd: i32, out: *mut zx_handle_t) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(out, 1) };
        out.check()?;
        let slot = table().reserve()?;
        // SAFETY: the caller hands over the descriptor.
        let open = unsafe { borrow(fd) }?;
        rustix::io::fcntl_setfd(open, rustix::io::FdFlags::CLOEXEC)?;
        // SAFETY: the descriptor is open, and belongs to the library since nothing fails from here on.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let object = Object::Fd(Arc::new(Descriptor { fd, koid: koid::next() }));
        out.set(0, slot.fill(Entry { rights: STRAIT_ZX_DEFAULT_FD_RIGHTS, object }));
        Ok(())
    })
}

/// Makes a file descriptor from a handle, and closes the handle in any case. The handle must come from
/// [`strait_zx_handle_from_fd`], or be that of a VMO. The descriptor is closed on `exec`.
///
/// `ZX_ERR_NOT_SUPPORTED` for other objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_zx_handle_to_fd(handle: zx_handle_t, out: *mut i32) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(out, 1) };
        let mut taken = table().take(handle)?;
        let fd = if out.is_null() { Err(Status::INVALID_ARGS) } else { taken.entry().object.descriptor() };
        object::close(taken);
        out.set(0, fd?.into_raw_fd());
        Ok(())
    })
}

/// Makes a channel over a connected `SOCK_SEQPACKET` Unix socket; the process with the other end does the same. If the
/// function succeeds, the library owns the socket; otherwise the caller still does.
///
/// `ZX_ERR_INVALID_ARGS` for another kind of descriptor; `ZX_ERR_NO_RESOURCES` without a free descriptor, as the
/// channel uses a duplicate and then closes `fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_zx_channel_from_socket(fd: i32, out: *mut zx_handle_t) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(out, 1) };
        out.check()?;
        let slot = table().reserve()?;
        // SAFETY: the caller hands over the descriptor.
        let open = unsafe { borrow(fd) }?;
        // The channel takes a duplicate, so that the caller's descriptor is untouched if this fails.
        let copy = rustix::io::fcntl_dupfd_cloexec(open, 3)?;
        rustix::net::sockopt::socket_type(&copy)
            .ok()
            .filter(|kind| *kind == rustix::net::SocketType::SEQPACKET)
            .ok_or(Status::INVALID_ARGS)?;
        let channel = channel::options().over(copy)?;
        // SAFETY: the descriptor is open, and belongs to the library since nothing fails from here on.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        out.set(0, adopt(slot, channel));
        Ok(())
    })
}

/// Starts a program with a channel to it. The program takes its end with [`strait_zx_channel_from_parent`]. `argv`
/// ends with a null pointer; its first text is the program, searched in `PATH` as by a shell. Writes the process
/// number to `pid` if `pid` is not null. The caller waits for the process as for any child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_zx_spawn(
    argv: *const *const c_char,
    pid: *mut i32,
    out: *mut zx_handle_t,
) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let (out, pid) = unsafe { (Out::new(out, 1), Out::new(pid, 1)) };
        out.check()?;
        let mut words = Vec::new();
        loop {
            // SAFETY: the array continues until the null pointer, not reached yet.
            let word = unsafe { In::new(argv, words.len() + 1) };
            word.check()?;
            let word = word.get(words.len());
            if word.is_null() {
                break;
            }
            // SAFETY: the pointer is not null, so it points to a text with a zero at its end, as the caller promises.
            words.push(OsStr::from_bytes(unsafe { CStr::from_ptr(word) }.to_bytes()));
        }
        let (program, arguments) = words.split_first().ok_or(Status::INVALID_ARGS)?;
        // Without a slot for the handle, no process is started.
        let slot = table().reserve()?;
        let (child, channel) =
            channel::options().spawn(Command::new(program).args(arguments)).map_err(|failed| match failed.error {
                strait::Error::System { call: "spawn", .. } => Status::NOT_FOUND,
                other => other.into(),
            })?;
        out.set(0, adopt(slot, channel));
        pid.set_if_wanted(child.id() as i32);
        Ok(())
    })
}

/// Takes the channel to the parent of this process, if the parent used [`strait_zx_spawn`] or Strait's
/// `spawn_with_channel`. Succeeds once.
///
/// `ZX_ERR_NOT_FOUND` if the parent used neither; `ZX_ERR_ALREADY_BOUND` the second time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_zx_channel_from_parent(out: *mut zx_handle_t) -> zx_status_t {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(out, 1) };
        out.check()?;
        // Without a slot for the handle, the end stays for a later call.
        let slot = table().reserve()?;
        out.set(0, adopt(slot, channel::options().from_parent().map_err(strait::Error::from)?));
        Ok(())
    })
}

/// Makes a handle of an end of a Strait channel.
fn adopt(slot: Reserved, channel: Channel) -> zx_handle_t {
    let object = Object::Channel(Box::new(Chan::new(channel, koid::next(), 0, 0)));
    slot.fill(Entry { rights: ZX_DEFAULT_CHANNEL_RIGHTS, object })
}

/// Returns a descriptor of the caller's, for use in a call.
///
/// # Errors
/// `BAD_HANDLE` for a negative number, which is no descriptor.
///
/// # Safety
/// If the descriptor is open, no other thread closes it during the call.
unsafe fn borrow<'a>(fd: i32) -> Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Status::BAD_HANDLE);
    }
    // SAFETY: the caller's promise. If the descriptor is not open, system calls with this number fail.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}
