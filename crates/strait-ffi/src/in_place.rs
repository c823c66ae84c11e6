//! Messages without a copy: filled where the peer will read them, and read where the peer wrote them.

use std::ffi::c_void;
use std::ptr;

use strait::{Handle, InPlace, Reservation, SealedReservation};

use crate::args;
use crate::channel::{Pin, enter, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::handle::{Lent, strait_handle};
use crate::receive::Taken;
use crate::status::{Failure, call, call_or, strait_status};

/// Room for a message, to be filled where the peer will read it. One thread uses it at a time. Other threads do not send from this
/// end while it is held, and the end stays open.
#[derive(Debug)]
pub struct strait_reservation {
    // Dropped before the pin that keeps what it borrows.
    room: Room,
    pin: Pin,
}

#[derive(Debug)]
enum Room {
    Warm(Reservation<'static>),
    Sealed { room: SealedReservation<'static>, deadline: strait_deadline },
}

/// Makes room for a message of `len` bytes, to be filled in place and sent without a copy; waits for it until the deadline, which
/// holds for `strait_reservation_commit` too.
///
/// `reservation` gets the room, which is the caller's; `NULL` on failure. Bytes that are never written reach the peer as whatever
/// was there: zeroes, or bytes of earlier messages to the same peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_reserve(
    channel: *const strait_channel,
    len: usize,
    reservation: *mut *mut strait_reservation,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, mut pin) = unsafe {
            let out = args::out(reservation, ptr::null_mut(), "reservation is NULL")?;
            (out, enter(channel)?.pin())
        };
        // SAFETY: what it gives stands in front of the pin.
        let room = unsafe { pin.channel() }.reserve(len, until(deadline)).map_err(|error| pin.failure(error))?;
        pin.hold();
        *out = Box::into_raw(Box::new(strait_reservation { room: Room::Warm(room), pin }));
        Ok(())
    })
}

/// Makes fresh memory for a message of `len` bytes that is *sealed* when it is sent: from then on nobody can change it, and the
/// receiver can read it in place without trusting this process (`strait_view_is_sealed`). The bytes are zeroes at first.
///
/// `reservation` gets the room, which is the caller's; `NULL` on failure. The deadline is that of `strait_reservation_commit`. Costs
/// fresh pages for each message: for what is read by somebody who must not copy it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_reserve_sealed(
    channel: *const strait_channel,
    len: usize,
    reservation: *mut *mut strait_reservation,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, mut pin) = unsafe {
            let out = args::out(reservation, ptr::null_mut(), "reservation is NULL")?;
            (out, enter(channel)?.pin())
        };
        // SAFETY: what it gives stands in front of the pin.
        let room = unsafe { pin.channel() }.reserve_sealed(len)?;
        pin.hold();
        *out = Box::into_raw(Box::new(strait_reservation { room: Room::Sealed { room, deadline }, pin }));
        Ok(())
    })
}

/// The room, of as many bytes as were reserved: to be written to and not read, as the peer may be able to change what is in it. Valid
/// until the reservation is committed or cancelled. `NULL` of `NULL`, and in the child of a `fork`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_reservation_data(reservation: *mut strait_reservation) -> *mut c_void {
    // SAFETY: `NULL`, or one of the caller's.
    let Some(reservation) = (unsafe { reservation.as_mut() }) else { return ptr::null_mut() };
    call_or(ptr::null_mut(), || match &mut reservation.room {
        Room::Warm(room) => room.as_uninit_mut().as_mut_ptr().cast(),
        Room::Sealed { room, .. } => room.bytes().as_mut_ptr().cast(),
    })
}

/// Sends the first `len` bytes of the room as the message, with handles that go with it.
///
/// The reservation is gone whatever happens. The handles are taken if the call succeeds; otherwise they stay the caller's. A sealed
/// message is sent whole: `len` must be what was reserved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_reservation_commit(
    reservation: *mut strait_reservation,
    len: usize,
    handles: *mut strait_handle,
    handle_count: usize,
) -> strait_status {
    call(|| {
        if reservation.is_null() {
            return Err(Failure::Invalid("reservation is NULL"));
        }
        // SAFETY: it came from `strait_reserve`, and the caller gives it up.
        let strait_reservation { mut room, pin } = *unsafe { Box::from_raw(reservation) };
        // SAFETY: as the C API says of both.
        let mut lent = unsafe { Lent::new(handles, handle_count, pin.shell()) }?;
        let reserved = match &mut room {
            Room::Warm(room) => room.len(),
            Room::Sealed { room, .. } => room.bytes().len(),
        };
        if len > reserved || len < reserved && matches!(room, Room::Sealed { .. }) {
            return Err(Failure::Invalid(
                "len is more than was reserved; for a sealed message it must be as much as was reserved",
            ));
        }
        let taken: Vec<Handle> = lent.take()?;
        let count = taken.len();
        let committed = match room {
            Room::Warm(mut room) => {
                taken.into_iter().for_each(|handle| room.add_handle(handle));
                room.commit_first(len)
            }
            Room::Sealed { mut room, deadline } => {
                taken.into_iter().for_each(|handle| room.add_handle(handle));
                room.commit(until(deadline))
            }
        };
        match committed {
            Ok(()) => lent.sent(),
            Err(failed) => {
                lent.give_back(failed.handles, count);
                return Err(failed.error.into());
            }
        }
        Ok(())
    })
}

/// Gives the room back; the peer sees nothing. `NULL` is let pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_reservation_cancel(reservation: *mut strait_reservation) {
    if !reservation.is_null() {
        // SAFETY: it came from `strait_reserve`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(reservation) }));
    }
}

/// A received message, where the peer wrote it. One thread uses it at a time. The end stays open while it is held; a small message
/// keeps other threads from receiving from it.
#[derive(Debug)]
pub struct strait_view {
    // Dropped before the pin that keeps what it borrows.
    view: InPlace<'static>,
    taken: Taken,
    // Never read: it is there to be dropped last.
    _pin: Pin,
}

/// Receives the next message without copying it: it is read where the peer wrote it. Waits for it until the deadline.
///
/// `view` gets the message, which is the caller's; `NULL` on failure. Free it soon: it is the sender's room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_recv_in_place(
    channel: *const strait_channel,
    view: *mut *mut strait_view,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (out, mut pin) = unsafe { (args::out(view, ptr::null_mut(), "view is NULL")?, enter(channel)?.pin()) };
        // SAFETY: what it gives stands in front of the pin.
        let view = unsafe { pin.channel() }.recv_in_place(until(deadline)).map_err(|error| pin.failure(error))?;
        pin.hold();
        *out = Box::into_raw(Box::new(strait_view { view, taken: Taken::default(), _pin: pin }));
        Ok(())
    })
}

/// How many bytes the message has. This number does not change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_len(view: *const strait_view) -> usize {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { view.as_ref() }.map_or(0, |view| view.view.len())
}

/// The bytes, valid until the view is freed. **Unless the message is sealed, the peer can change them while they are looked at**:
/// copy what you decide on with `strait_view_copy`, and decide on the copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_data(view: *const strait_view) -> *const c_void {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { view.as_ref() }.map_or(ptr::null(), |view| call_or(ptr::null(), || view.view.as_ptr().cast()))
}

/// Whether the sender has sealed the bytes: then nobody can change them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_is_sealed(view: *const strait_view) -> bool {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { view.as_ref() }.is_some_and(|view| call_or(false, || view.view.sealed().is_some()))
}

/// Copies `len` bytes from `offset` on to `out`. Fails with `STRAIT_INVALID_ARGUMENT` if the message has fewer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_copy(
    view: *mut strait_view,
    offset: usize,
    out: *mut c_void,
    len: usize,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (view, out) =
            unsafe { (view.as_mut().ok_or(Failure::Invalid("view is NULL"))?, args::buffer(out.cast(), len)?) };
        if offset > view.view.len() || len > view.view.len() - offset {
            return Err(Failure::Invalid("offset and len reach beyond the end of the message"));
        }
        view.view.copy_to(offset, out);
        Ok(())
    })
}

/// Takes the next handles out of the message, as `strait_message_take_handles` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_take_handles(
    view: *mut strait_view,
    handles: *mut strait_handle,
    capacity: usize,
    count: *mut usize,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of all of them.
        unsafe {
            let view = view.as_mut().ok_or(Failure::Invalid("view is NULL"))?;
            let inner = &mut view.view;
            view.taken.give(|| inner.take_handles(), handles, capacity, count)
        }
    })
}

/// Sends the message on over another channel without looking at it, handles and all; waits for room until the deadline. Of a large
/// message that is not sealed this saves one of the two copies that `strait_forward` makes.
///
/// If that succeeds the handles are gone; the view stays, and is freed to make room for the sender. Otherwise it is as it was. What was
/// seen in the view is for certain what is sent only if the message is sealed: whoever has to check what passes receives it, and calls
/// `strait_forward`. Fails with `STRAIT_INVALID_ARGUMENT` if some of the handles were taken and others were not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_forward(
    view: *mut strait_view,
    channel: *const strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (view, using) = unsafe { (view.as_mut().ok_or(Failure::Invalid("view is NULL"))?, enter(channel)?) };
        view.taken.check_none_left()?;
        view.view.forward(using.channel(), until(deadline)).map_err(|error| using.failure(error))
    })
}

/// Frees a view, which makes room for the sender, and closes the handles that were not taken. `NULL` is let pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_free(view: *mut strait_view) {
    if !view.is_null() {
        // SAFETY: it came from `strait_recv_in_place`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(view) }));
    }
}
