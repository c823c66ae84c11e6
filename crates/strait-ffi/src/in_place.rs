//! Messages without a copy: filled in the memory where the peer will read, and read in the memory where the peer wrote.

use std::ffi::c_void;
use std::ptr;

use strait::bindings::{recv_in_place, reserve, reserve_sealed};
use strait::view::{InPlace, Reservation, SealedReservation};
use strait::{Handle, SendError};

use crate::args;
use crate::channel::{Pin, enter, shell, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::halves::Lender;
use crate::handle::{Lent, strait_handle};
use crate::receive::Taken;
use crate::status::{Failure, call, call_or, strait_status};

/// Room for a message, to be filled in the memory where the peer will read it. One thread at a time uses a reservation.
/// While the reservation is held, no other thread sends from this end, and the end stays open.
#[derive(Debug)]
pub struct strait_reservation {
    room: Room,
    /// The borrow of the sender with the reservation; `None` for a reservation of an end. Dropped after the room.
    lender: Option<Lender>,
}

impl strait_reservation {
    fn give(room: Room, lender: Option<Lender>) -> *mut Self {
        Box::into_raw(Box::new(Self { room, lender }))
    }

    /// Returns a new object for C code, which owns a reservation of a sender and the borrow of the sender.
    pub(crate) fn lent(room: Reservation<'static>, lender: Lender) -> *mut Self {
        Self::give(Room::Lent(room), Some(lender))
    }

    /// Returns a new object for C code, which owns a reservation of a sender and the borrow of the sender.
    pub(crate) fn lent_sealed(
        room: SealedReservation<'static>,
        len: usize,
        deadline: strait_deadline,
        lender: Lender,
    ) -> *mut Self {
        Self::give(Room::LentSealed { room, len, deadline }, Some(lender))
    }
}

/// The memory of a reservation.
#[derive(Debug)]
enum Room {
    /// Room in the ring or in the pool.
    Warm(Reservation<'static, Pin>),
    /// Fresh memory that is sealed when sent; the send must succeed before the deadline.
    Sealed { room: SealedReservation<'static, Pin>, len: usize, deadline: strait_deadline },
    /// Room in the ring or in the pool, over a sender.
    Lent(Reservation<'static>),
    /// Fresh memory, sealed when sent over a sender.
    LentSealed { room: SealedReservation<'static>, len: usize, deadline: strait_deadline },
}

impl Room {
    /// Returns the address of the end that is kept, for comparison with other ends; null for a sender.
    fn shell(&self) -> *const strait_channel {
        match self {
            Self::Warm(room) => room.kept().shell(),
            Self::Sealed { room, .. } => room.kept().shell(),
            Self::Lent(_) | Self::LentSealed { .. } => ptr::null(),
        }
    }

    /// Returns the memory.
    ///
    /// # Errors
    /// [`strait::Error::Forked`] in a child of `fork`, which does not have the memory.
    fn memory(&mut self) -> Result<*mut c_void, strait::Error> {
        match self {
            Self::Warm(room) => room.check_fork().map(|()| room.as_uninit_mut().as_mut_ptr().cast()),
            Self::Lent(room) => room.check_fork().map(|()| room.as_uninit_mut().as_mut_ptr().cast()),
            Self::Sealed { room, .. } => room.check_fork().map(|()| room.bytes().as_mut_ptr().cast()),
            Self::LentSealed { room, .. } => room.check_fork().map(|()| room.bytes().as_mut_ptr().cast()),
        }
    }

    /// Returns the number of bytes that were reserved.
    fn len(&self) -> usize {
        match self {
            Self::Warm(room) => room.len(),
            Self::Lent(room) => room.len(),
            Self::Sealed { len, .. } | Self::LentSealed { len, .. } => *len,
        }
    }

    fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed { .. } | Self::LentSealed { .. })
    }

    /// Sends the first `len` bytes with `handles`.
    fn commit(self, len: usize, handles: Vec<Handle>) -> Result<(), SendError> {
        fn warm<K>(mut room: Reservation<'_, K>, len: usize, handles: Vec<Handle>) -> Result<(), SendError> {
            handles.into_iter().for_each(|handle| room.handle(handle));
            room.commit_first(len)
        }
        fn sealed<K>(
            mut room: SealedReservation<'_, K>,
            deadline: strait_deadline,
            handles: Vec<Handle>,
        ) -> Result<(), SendError> {
            handles.into_iter().for_each(|handle| room.handle(handle));
            room.commit(until(deadline))
        }
        match self {
            Self::Warm(room) => warm(room, len, handles),
            Self::Lent(room) => warm(room, len, handles),
            Self::Sealed { room, deadline, .. } => sealed(room, deadline, handles),
            Self::LentSealed { room, deadline, .. } => sealed(room, deadline, handles),
        }
    }
}

/// Makes room for a message of `len` bytes, to be filled in place and sent without a copy. Waits for room until the
/// deadline, which also applies to `strait_reservation_commit`.
///
/// `reservation` receives the reservation, or `NULL` on failure; the caller owns the reservation. If the caller leaves
/// bytes unwritten, the peer reads the previous content of the memory: zeroes, or bytes of earlier messages to the same
/// peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_reserve(
    channel: *const strait_channel,
    len: usize,
    reservation: *mut *mut strait_reservation,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, shell) = unsafe {
            let out = args::out(reservation, ptr::null_mut(), "reservation is NULL")?;
            (out, shell(channel)?)
        };
        let room = reserve(shell.enter()?.pin(), len, until(deadline)).map_err(|error| shell.failure(error))?;
        room.kept().hold();
        *out = strait_reservation::give(Room::Warm(room), None);
        Ok(())
    })
}

/// Makes fresh memory for a message of `len` bytes that is *sealed* when sent. From then on no process can change the
/// message, and the receiver can read it in place without trusting this process (`strait_view_is_sealed`). The bytes
/// are zeroes at first.
///
/// `reservation` receives the reservation, or `NULL` on failure; the caller owns the reservation. The deadline applies
/// to `strait_reservation_commit`. Costs fresh pages for each message: use this function for receivers that have to
/// check the message and must not copy the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_reserve_sealed(
    channel: *const strait_channel,
    len: usize,
    reservation: *mut *mut strait_reservation,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, shell) = unsafe {
            let out = args::out(reservation, ptr::null_mut(), "reservation is NULL")?;
            (out, shell(channel)?)
        };
        let room = reserve_sealed(shell.enter()?.pin(), len)?;
        room.kept().hold();
        *out = strait_reservation::give(Room::Sealed { room, len, deadline }, None);
        Ok(())
    })
}

/// Returns the memory of a reservation, with as many bytes as were reserved. Write to the memory, but do not read from
/// it: the peer may be able to change the bytes. Valid until the reservation is committed or cancelled. Returns `NULL`
/// for `NULL`, and in the child of a `fork`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_reservation_data(reservation: *mut strait_reservation) -> *mut c_void {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    let Some(reservation) = (unsafe { reservation.as_mut() }) else { return ptr::null_mut() };
    call_or(ptr::null_mut(), || reservation.room.memory().unwrap_or(ptr::null_mut()))
}

/// Sends the first `len` bytes of the reserved memory as a message, with handles.
///
/// The reservation is freed in any case. If the function succeeds, it takes the handles; otherwise the caller still
/// owns the handles, and the bytes of the message are lost. A sealed message is sent whole: `len` must be the number of
/// bytes reserved.
///
/// Waits until the deadline that was given for the reservation. With `STRAIT_NOW`, a small message without handles
/// finds its room. A large or a sealed message, and a message with handles, may still fail with `STRAIT_WOULD_BLOCK`:
/// they need room in the ring or in the socket that `strait_reserve` has not reserved. So may any message if the other
/// end was sent to another process meanwhile. Reserve with a later deadline, or keep what is needed to write the
/// message again.
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
        // The object stays whole until the commit, so that a failure drops the room before the borrow of the sender.
        // SAFETY: `strait_reserve` made the object, and the caller gives the object up.
        let object = *unsafe { Box::from_raw(reservation) };
        // SAFETY: the header requires both pointers to be valid.
        let mut lent = unsafe { Lent::new(handles, handle_count, object.room.shell()) }?;
        let reserved = object.room.len();
        if len > reserved || len < reserved && object.room.is_sealed() {
            return Err(Failure::Invalid(
                "len is more than was reserved; for a sealed message it must be as much as was reserved",
            ));
        }
        let taken: Vec<Handle> = lent.take()?;
        let count = taken.len();
        let strait_reservation { room, lender: _lender } = object;
        match room.commit(len, taken) {
            Ok(()) => lent.sent(),
            Err(failed) => {
                lent.give_back(failed.handles, count);
                return Err(failed.error.into());
            }
        }
        Ok(())
    })
}

/// Frees a reservation without sending a message. Ignores `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_reservation_cancel(reservation: *mut strait_reservation) {
    if !reservation.is_null() {
        // SAFETY: `strait_reserve` made the object, and the caller gives the object up.
        call_or((), || drop(unsafe { Box::from_raw(reservation) }));
    }
}

/// A received message in the memory where the peer wrote it. One thread at a time uses a view. While the view is held,
/// the end stays open; while a view of a small message is held, no other thread receives from the end.
#[derive(Debug)]
pub struct strait_view {
    view: InPlace<'static, Pin>,
    taken: Taken,
}

/// Receives the next message without copying it, to be read in the memory where the peer wrote it; waits for the
/// message until the deadline.
///
/// `view` receives the message, or `NULL` on failure; the caller owns the view. Free the view soon, since the message
/// occupies the sender's room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_recv_in_place(
    channel: *const strait_channel,
    view: *mut *mut strait_view,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (out, shell) = unsafe { (args::out(view, ptr::null_mut(), "view is NULL")?, shell(channel)?) };
        let view = recv_in_place(shell.enter()?.pin(), until(deadline)).map_err(|error| shell.failure(error))?;
        view.kept().hold();
        *out = Box::into_raw(Box::new(strait_view { view, taken: Taken::default() }));
        Ok(())
    })
}

/// Returns the number of bytes of the message, which does not change; 0 for `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_len(view: *const strait_view) -> usize {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { view.as_ref() }.map_or(0, |view| view.view.len())
}

/// Returns the bytes of the message, valid until the view is freed. **Unless the message is sealed, the peer can change
/// the bytes while this process reads them**: copy the bytes on which a decision depends with `strait_view_read_at`,
/// and decide on the copy. Returns `NULL` for `NULL`, and in the child of a `fork`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_data(view: *const strait_view) -> *const c_void {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    let Some(view) = (unsafe { view.as_ref() }) else { return ptr::null() };
    call_or(ptr::null(), || if view.view.check_fork().is_ok() { view.view.as_ptr().cast() } else { ptr::null() })
}

/// Returns whether the bytes are sealed: no process can change the bytes any more. `false` in the child of a `fork`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_is_sealed(view: *const strait_view) -> bool {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { view.as_ref() }
        .is_some_and(|view| call_or(false, || view.view.check_fork().is_ok() && view.view.sealed().is_some()))
}

/// Copies `len` bytes of the message, from `offset` on, to `out`. The arguments have the order of those of `pread`.
/// Fails with `STRAIT_INVALID_ARGUMENT` if the message has fewer bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_read_at(
    view: *mut strait_view,
    out: *mut c_void,
    len: usize,
    offset: usize,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (view, out) =
            unsafe { (view.as_mut().ok_or(Failure::Invalid("view is NULL"))?, args::buffer(out.cast(), len)?) };
        if offset > view.view.len() || len > view.view.len() - offset {
            return Err(Failure::Invalid("offset and len reach beyond the end of the message"));
        }
        view.view.check_fork()?;
        view.view.read_at(out, offset);
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
        // SAFETY: the header requires all the pointers to be valid.
        unsafe {
            let view = view.as_mut().ok_or(Failure::Invalid("view is NULL"))?;
            let inner = &mut view.view;
            view.taken.give(|| inner.take_unclaimed(), handles, capacity, count)
        }
    })
}

/// Forwards the message with its handles over another channel without reading the bytes; waits for room until the
/// deadline. For a large message that is not sealed, `strait_forward` makes two copies, and this function one.
///
/// If the function succeeds, the handles are gone. The view stays; free it to make room for the sender. If the function
/// fails, the view is as it was. The bytes seen in the view are certain to be the bytes sent only if the message is
/// sealed. To check a message before forwarding it, receive it and call `strait_forward`. Fails with
/// `STRAIT_INVALID_ARGUMENT` if some of the handles were taken and others were not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_forward(
    view: *mut strait_view,
    channel: *const strait_channel,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (view, using) = unsafe { (view.as_mut().ok_or(Failure::Invalid("view is NULL"))?, enter(channel)?) };
        view.taken.check_none_left()?;
        view.view.forward(using.channel(), until(deadline)).map_err(|error| using.failure(error))
    })
}

/// Frees a view, which makes room for the sender, and closes the handles still in the message without blocking. Ignores
/// `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_view_free(view: *mut strait_view) {
    if !view.is_null() {
        // SAFETY: `strait_recv_in_place` made the object, and the caller gives the object up.
        call_or((), || drop(unsafe { Box::from_raw(view) }));
    }
}
