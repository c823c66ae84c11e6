//! The halves of an end, a sender and a receiver, each for one thread at a time.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use libc::iovec;
use strait::wait::Interest;
use strait::{Deadline, Error, Outgoing, Receiver, SendError, SendManyError, Sender};

use crate::args;
use crate::channel::{self, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::handle::strait_handle;
use crate::in_place::strait_reservation;
use crate::receive::{emptied, receive_all, receive_into, strait_message};
use crate::send::{Sends, send_all, send_parts, strait_outgoing};
use crate::status::{Failure, call, call_or, strait_status};
use crate::wait_set::{mode, set, strait_mode, strait_wait_set};

/// The sending half of an end, for one thread at a time: see `strait_channel_split`.
#[derive(Debug)]
pub struct strait_sender(Sender, Loan);

/// Whether a reservation borrows a sender.
#[derive(Debug, Default)]
struct Loan {
    /// Whether there is such a reservation.
    lent: bool,
    /// Whether C code has freed the sender meanwhile. Then the end of the borrow frees it.
    freed: bool,
}

/// A borrow of a sender by a reservation. Dropping it, after the reservation, ends the borrow.
#[derive(Debug)]
pub(crate) struct Lender(NonNull<strait_sender>);

impl Drop for Lender {
    fn drop(&mut self) {
        // SAFETY: a lent sender is not freed. One thread at a time uses the sender and the reservation, as required by
        // the header.
        unsafe {
            let loan = &mut (*self.0.as_ptr()).1;
            loan.lent = false;
            if loan.freed {
                drop(Box::from_raw(self.0.as_ptr()));
            }
        }
    }
}

/// Returns the sender at a pointer from C code, for use in a call.
///
/// # Errors
/// [`Failure::Invalid`] if `sender` is `NULL`; [`Failure::InUse`] while a reservation is held.
///
/// # Safety
/// `sender` is `NULL`, or an object that no other thread uses during the function call.
unsafe fn sending<'a>(sender: *mut strait_sender) -> Result<&'a mut strait_sender, Failure> {
    // SAFETY: the caller's promise.
    let sender = unsafe { half(sender, NO_SENDER) }?;
    if sender.1.lent { Err(Failure::InUse) } else { Ok(sender) }
}

/// Makes a reservation of a sender by `reserve`. Returns the reservation, and the borrow of the sender.
///
/// # Errors
/// The errors of [`sending`] and of `reserve`.
///
/// # Safety
/// As for [`sending`]. The caller drops the reservation before the borrow.
unsafe fn lend<T>(
    sender: *mut strait_sender,
    reserve: impl FnOnce(&'static mut Sender) -> Result<T, Error>,
) -> Result<(T, Lender), Failure> {
    // SAFETY: the caller's promise. While the sender is lent, no call uses or frees the sender, so the sender outlives
    // the reservation.
    let strait_sender(half, loan) = unsafe { sending::<'static>(sender) }?;
    let reserved = reserve(half)?;
    loan.lent = true;
    // Not null, since there is a sender.
    NonNull::new(sender).map(|sender| (reserved, Lender(sender))).ok_or(Failure::Invalid(NO_SENDER))
}

/// Makes room for a message of `len` bytes over a sender, as `strait_reserve` does for an end. The thread that uses the
/// sender commits or cancels the reservation; until then other functions fail with `STRAIT_IN_USE` for the sender.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_sender_reserve(
    sender: *mut strait_sender,
    len: usize,
    reservation: *mut *mut strait_reservation,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid, and the object drops the reservation before the
        // borrow.
        unsafe {
            let out = args::out(reservation, ptr::null_mut(), "reservation is NULL")?;
            let (room, lender) = lend(sender, |half| half.reserve(len, until(deadline)))?;
            *out = strait_reservation::lent(room, lender);
        }
        Ok(())
    })
}

/// Makes memory for a message of `len` bytes that is sealed when sent, over a sender, as `strait_reserve_sealed` does
/// for an end. The thread that uses the sender commits or cancels the reservation; until then other functions fail with
/// `STRAIT_IN_USE` for the sender.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_sender_reserve_sealed(
    sender: *mut strait_sender,
    len: usize,
    reservation: *mut *mut strait_reservation,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid, and the object drops the reservation before the
        // borrow.
        unsafe {
            let out = args::out(reservation, ptr::null_mut(), "reservation is NULL")?;
            let (room, lender) = lend(sender, |half| half.reserve_sealed(len))?;
            *out = strait_reservation::lent_sealed(room, len, deadline, lender);
        }
        Ok(())
    })
}

/// The receiving half of an end, for one thread at a time: see `strait_channel_split`.
#[derive(Debug)]
pub struct strait_receiver(Receiver);

impl Sends for &mut strait_sender {
    fn send_one(&mut self, message: Outgoing<'_>, deadline: Deadline) -> Result<(), SendError> {
        self.0.send_by(message, deadline)
    }

    fn send_row<'a>(
        &mut self,
        messages: impl Iterator<Item = Outgoing<'a>>,
        deadline: Deadline,
    ) -> Result<usize, SendManyError> {
        self.0.send_many(messages, deadline)
    }

    fn failure(&self, error: Error) -> Failure {
        error.into()
    }

    fn shell(&self) -> *const strait_channel {
        ptr::null()
    }
}

const NO_SENDER: &str = "sender is NULL";
const NO_RECEIVER: &str = "receiver is NULL";

/// Returns the half at a pointer from C code.
///
/// # Errors
/// [`Failure::Invalid`] with the text `what` if `half` is `NULL`.
///
/// # Safety
/// `half` is `NULL`, or an object that no other thread uses during the function call.
unsafe fn half<'a, T>(half: *mut T, what: &'static str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { half.as_mut() }.ok_or(Failure::Invalid(what))
}

/// Splits an end into a sender and a receiver, for two threads: one only sends, the other only receives. Calls on a
/// half need no lock, because only one thread at a time uses the half. So the calls are faster than on an end.
///
/// If the function succeeds, it takes this reference to the end; other references fail with `STRAIT_MOVED` from then
/// on. `sender` and `receiver` receive the halves, which the caller owns, or `NULL` on failure. The end is closed when
/// both halves are freed; `strait_sender_join` makes the end again, for example to send it. Fails as `strait_sendv`
/// does for an end that is sent: with `STRAIT_CLOSED`, `STRAIT_MOVED` or `STRAIT_IN_USE`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_split(
    channel: *mut strait_channel,
    sender: *mut *mut strait_sender,
    receiver: *mut *mut strait_receiver,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointers to be valid.
        let (sender, receiver) = unsafe {
            let sender = args::out(sender, ptr::null_mut(), "sender is NULL");
            let receiver = args::out(receiver, ptr::null_mut(), "receiver is NULL");
            (sender?, receiver?)
        };
        // SAFETY: the header requires the pointer to be valid, and the reference is the caller's.
        let end = unsafe {
            channel::shell(channel)?;
            channel::take_out(channel, ptr::null())?
        };
        // SAFETY: the caller gives up the reference.
        unsafe { channel::release(channel) };
        let (sending, receiving) = end.split();
        *sender = Box::into_raw(Box::new(strait_sender(sending, Loan::default())));
        *receiver = Box::into_raw(Box::new(strait_receiver(receiving)));
        Ok(())
    })
}

/// Joins the two halves of an end to the end that was split. If the function succeeds, it takes both halves, and
/// `channel` receives the end, which the caller owns. Fails with `STRAIT_INVALID_ARGUMENT` if the halves belong to
/// different ends; then the caller still owns them, and `channel` receives `NULL`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_sender_join(
    sender: *mut strait_sender,
    receiver: *mut strait_receiver,
    channel: *mut *mut strait_channel,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires the pointers to be valid.
        let channel = unsafe {
            let channel = args::out(channel, ptr::null_mut(), "channel is NULL")?;
            self::sending(sender)?;
            half(receiver, NO_RECEIVER)?;
            channel
        };
        // SAFETY: `strait_channel_split` made both objects as boxes, and the caller gives both up unless this function
        // fails.
        let (mut sending, mut receiving) = unsafe { (Box::from_raw(sender), Box::from_raw(receiver)) };
        match sending.0.join(receiving.0) {
            Ok(joined) => {
                *channel = strait_channel::give(joined);
                Ok(())
            }
            Err(halves) => {
                // The objects keep the addresses known to the caller.
                (sending.0, receiving.0) = halves;
                let _ = (Box::into_raw(sending), Box::into_raw(receiving));
                Err(Failure::Invalid("the sender and the receiver belong to different ends"))
            }
        }
    })
}

/// Sends a message of `len` bytes, as `strait_send` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_sender_send(
    sender: *mut strait_sender,
    bytes: *const c_void,
    len: usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (sender, bytes) = unsafe { (sending(sender)?, args::bytes(bytes.cast(), len)?) };
        sender.0.send_by(bytes, until(deadline)).map_err(|failed| failed.error.into())
    })
}

/// Sends a message of several parts with handles, as `strait_sendv` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_sender_sendv(
    sender: *mut strait_sender,
    parts: *const iovec,
    part_count: usize,
    handles: *mut strait_handle,
    handle_count: usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        unsafe {
            let mut sender = sending(sender)?;
            send_parts(&mut sender, strait_outgoing { parts, part_count, handles, handle_count }, deadline)
        }
    })
}

/// Sends a batch of `count` messages, as `strait_send_many` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_sender_send_many(
    sender: *mut strait_sender,
    messages: *const strait_outgoing,
    count: usize,
    sent: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    // SAFETY: the header requires all the pointers to be valid.
    unsafe { send_all(|| sending(sender), messages, count, sent, deadline) }
}

/// Receives the next message into `message`, as `strait_recv` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_receiver_recv(
    receiver: *mut strait_receiver,
    message: *mut strait_message,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (message, receiver) = unsafe { (emptied(message)?, half(receiver, NO_RECEIVER)?) };
        Ok(receiver.0.recv_message(message, until(deadline))?)
    })
}

/// Receives the next message into the front of a buffer of the caller's, as `strait_recv_into` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_receiver_recv_into(
    receiver: *mut strait_receiver,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    handles: *mut strait_message,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        unsafe {
            receive_into(buffer, capacity, len, handles, |buffer| {
                half(receiver, NO_RECEIVER)?.0.recv_into(buffer, until(deadline)).map_err(Failure::from)
            })
        }
    })
}

/// Receives the queued messages, at most `count` and at least one, as `strait_recv_many` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_receiver_recv_many(
    receiver: *mut strait_receiver,
    messages: *const *mut strait_message,
    count: usize,
    received: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        unsafe {
            receive_all(messages, count, received, |slots| {
                Ok(half(receiver, NO_RECEIVER)?.0.recv_many(slots, until(deadline))?)
            })
        }
    })
}

/// Frees a sender. The end is closed once its receiver is freed too. Ignores `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_sender_free(sender: *mut strait_sender) {
    if !sender.is_null() {
        // SAFETY: `strait_channel_split` made the object, and the caller gives the object up. If the object is lent,
        // the end of the borrow frees the object.
        call_or((), || unsafe {
            match &mut (*sender).1 {
                loan if loan.lent => loan.freed = true,
                _ => drop(Box::from_raw(sender)),
            }
        });
    }
}

/// Frees a receiver. The end is closed once its sender is freed too. Ignores `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_receiver_free(receiver: *mut strait_receiver) {
    if !receiver.is_null() {
        // SAFETY: `strait_channel_split` made the object, and the caller gives the object up.
        call_or((), || drop(unsafe { Box::from_raw(receiver) }));
    }
}

/// Adds a receiver, as `strait_wait_set_add` adds an end. Its event is `STRAIT_READABLE`. The thread that uses the
/// receiver calls this function. From then on the calls of both halves take a lock, as the calls of an end do. The
/// receiver leaves the set when both halves are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_add_receiver(
    set: *const strait_wait_set,
    receiver: *mut strait_receiver,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, receiver) = unsafe { (self::set(set)?, half(receiver, NO_RECEIVER)?) };
        Ok(set.waits().add(&receiver.0, key, Interest::Readable, self::mode(mode)?)?)
    })
}

/// Replaces the key and the mode of a receiver in the set, and arms its registration, as `strait_wait_set_modify` does
/// for an end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_modify_receiver(
    set: *const strait_wait_set,
    receiver: *mut strait_receiver,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, receiver) = unsafe { (self::set(set)?, half(receiver, NO_RECEIVER)?) };
        Ok(set.waits().modify(&receiver.0, key, Interest::Readable, self::mode(mode)?)?)
    })
}

/// Removes a receiver, as `strait_wait_set_remove` removes an end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_remove_receiver(
    set: *const strait_wait_set,
    receiver: *mut strait_receiver,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, receiver) = unsafe { (self::set(set)?, half(receiver, NO_RECEIVER)?) };
        Ok(set.waits().remove(&receiver.0)?)
    })
}

/// Adds a sender, as `strait_wait_set_add` adds an end. Its event is `STRAIT_WRITABLE`. The thread that uses the
/// sender calls this function. From then on the calls of both halves take a lock, as the calls of an end do. The
/// sender leaves the set when both halves are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_add_sender(
    set: *const strait_wait_set,
    sender: *mut strait_sender,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, sender) = unsafe { (self::set(set)?, sending(sender)?) };
        Ok(set.waits().add(&sender.0, key, Interest::Writable, self::mode(mode)?)?)
    })
}

/// Replaces the key and the mode of a sender in the set, and arms its registration, as `strait_wait_set_modify` does
/// for an end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_modify_sender(
    set: *const strait_wait_set,
    sender: *mut strait_sender,
    key: u64,
    mode: strait_mode,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, sender) = unsafe { (self::set(set)?, sending(sender)?) };
        Ok(set.waits().modify(&sender.0, key, Interest::Writable, self::mode(mode)?)?)
    })
}

/// Arms a sender of the set for one event: the send that has just failed with `STRAIT_WOULD_BLOCK` in this thread may
/// succeed now. Like `strait_wait_set_await_room` for an end. `strait_wait_set_modify_sender` ends the wait for room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_await_room_sender(
    set: *const strait_wait_set,
    sender: *mut strait_sender,
    key: u64,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, sender) = unsafe { (self::set(set)?, sending(sender)?) };
        Ok(set.waits().await_room(&sender.0, key)?)
    })
}

/// Removes a sender, as `strait_wait_set_remove` removes an end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_wait_set_remove_sender(
    set: *const strait_wait_set,
    sender: *mut strait_sender,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (set, sender) = unsafe { (self::set(set)?, sending(sender)?) };
        Ok(set.waits().remove(&sender.0)?)
    })
}

/// Returns the number with which the other end was closed, as `strait_channel_close_reason` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_receiver_close_reason(receiver: *mut strait_receiver, reason: *mut u32) -> bool {
    call_or(false, || {
        // SAFETY: the header requires both pointers to be valid.
        let (Ok(receiver), false) = (unsafe { half(receiver, NO_RECEIVER) }, reason.is_null()) else { return false };
        let Some(given) = receiver.0.close_reason() else { return false };
        // SAFETY: the caller may write a number there.
        unsafe { reason.write(given) };
        true
    })
}
