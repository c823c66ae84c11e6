//! Calls over a channel: requests with replies, which may come in any order.

use std::ptr;

use libc::iovec;
use strait::call::{CallEnd, CallError, Replier};

use crate::args;
use crate::channel::{self, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::handle::{Lent, strait_handle};
use crate::receive::strait_message;
use crate::send::Gathered;
use crate::status::{Failure, call, call_or, strait_status};

/// An end of a channel for calls in both directions. Any number of threads may use the end at once. Free the end when
/// no thread uses it any more.
#[derive(Debug)]
pub struct strait_call_end {
    end: CallEnd,
}

/// The object for the reply to one request, used by one thread at a time.
#[derive(Debug)]
pub struct strait_replier {
    replier: Replier,
    /// Whether the reply was sent.
    answered: bool,
}

/// Turns an end of a channel into a call end. The other end must be turned into one, too. From then on nothing
/// else may be sent or received on the channel.
///
/// If the function succeeds, it takes `channel`, the caller's reference; otherwise the caller still owns the reference.
/// Function calls of other threads on the channel fail with `STRAIT_MOVED`; waiting calls fail at once. Fails with
/// `STRAIT_IN_USE` if a view or a reservation of the channel is held. `end` receives the call end, which the caller
/// owns, or `NULL` on failure. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_call_end_over(
    channel: *mut strait_channel,
    end: *mut *mut strait_call_end,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let out = unsafe {
            let out = args::out(end, ptr::null_mut(), "end is NULL")?;
            args::reference(channel, "channel is NULL")?;
            out
        };
        // SAFETY: the caller gives up a reference.
        let taken = unsafe {
            let taken = channel::take_out(channel, ptr::null())?;
            channel::release(channel);
            taken
        };
        *out = Box::into_raw(Box::new(strait_call_end { end: CallEnd::over(taken) }));
        Ok(())
    })
}

/// Frees a call end. The channel closes once the repliers of all received requests are freed, too. Ignores
/// `NULL`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_call_end_free(end: *mut strait_call_end) {
    if !end.is_null() {
        // SAFETY: `strait_call_end_over` made the object, and the caller gives the object up.
        call_or((), || drop(unsafe { Box::from_raw(end) }));
    }
}

/// Sends a request to the other end, and waits for its reply until the deadline, which also applies to sending. Any
/// number of threads may call at once.
///
/// Parts and handles are as in `strait_sendv`. `reply` receives the reply; its previous contents are lost in any case.
///
/// * `STRAIT_OUTCOME_UNKNOWN`: the request was sent, and there will be no reply: the deadline has passed, or the peer
///   is gone.
/// * `STRAIT_NOT_ANSWERED`: the other end dropped the request without a reply.
/// * Any other failure: the request was not sent, and the caller still owns the handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_call(
    end: *const strait_call_end,
    parts: *const iovec,
    part_count: usize,
    handles: *mut strait_handle,
    handle_count: usize,
    reply: *mut strait_message,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        let (end, reply, parts, mut lent) = unsafe {
            let reply = reply.as_mut().ok_or(Failure::Invalid("reply is NULL"))?;
            reply.put(Default::default());
            let end = args::reference(end, "end is NULL")?;
            (end, reply, Gathered::new(parts, part_count)?, Lent::new(handles, handle_count, ptr::null())?)
        };
        let taken = lent.take()?;
        let count = taken.len();
        let answer = end.end.call(parts.outgoing().handles(taken), until(deadline));
        if let Err(CallError::NotSent(failed)) = answer {
            lent.give_back(failed.handles, count);
            return Err(failed.error.into());
        }
        lent.sent();
        match answer {
            Ok(message) => reply.put(message),
            Err(CallError::OutcomeUnknown(error)) => return Err(Failure::OutcomeUnknown(error)),
            Err(_) => return Err(Failure::NotAnswered),
        }
        Ok(())
    })
}

/// Receives the next request of the other end; waits for it until the deadline.
///
/// `request` receives the request; the previous contents are lost in any case. `replier` receives the object for the
/// reply, or `NULL` on failure; the caller owns the object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_call_next(
    end: *const strait_call_end,
    request: *mut strait_message,
    replier: *mut *mut strait_replier,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all three pointers to be valid.
        let (end, request, out) = unsafe {
            let out = args::out(replier, ptr::null_mut(), "replier is NULL");
            let request = request.as_mut().ok_or(Failure::Invalid("request is NULL"))?;
            request.put(Default::default());
            (args::reference(end, "end is NULL")?, request, out?)
        };
        let (message, replier) = end.end.next_request(until(deadline))?.into_parts();
        request.put(message);
        *out = Box::into_raw(Box::new(strait_replier { replier, answered: false }));
        Ok(())
    })
}

/// Returns whether the caller has stopped waiting for the reply, as far as this process knows. Returns false for
/// `NULL`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_replier_is_cancelled(replier: *const strait_replier) -> bool {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { replier.as_ref() }.is_some_and(|replier| replier.replier.is_cancelled())
}

/// Replies to a request, once; waits for room until the deadline. Parts and handles are as in `strait_sendv`. The
/// caller still owns the replier, and has to free it. After a failure, the replier can be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_replier_reply(
    replier: *mut strait_replier,
    parts: *const iovec,
    part_count: usize,
    handles: *mut strait_handle,
    handle_count: usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        let (replier, parts, mut lent) = unsafe {
            let replier = replier.as_mut().ok_or(Failure::Invalid("replier is NULL"))?;
            (replier, Gathered::new(parts, part_count)?, Lent::new(handles, handle_count, ptr::null())?)
        };
        if replier.answered {
            return Err(Failure::Invalid("the request was answered before: answer each request once"));
        }
        let taken = lent.take()?;
        let count = taken.len();
        match replier.replier.reply(parts.outgoing().handles(taken), until(deadline)) {
            Ok(()) => {
                replier.answered = true;
                lent.sent();
                Ok(())
            }
            Err(failed) => {
                lent.give_back(failed.handles, count);
                Err(failed.error.into())
            }
        }
    })
}

/// Frees a replier. If it has sent no reply, the caller of the request gets `STRAIT_NOT_ANSWERED`. Ignores `NULL`. Does
/// not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_replier_free(replier: *mut strait_replier) {
    if !replier.is_null() {
        // SAFETY: `strait_call_next` made the object, and the caller gives the object up.
        call_or((), || drop(unsafe { Box::from_raw(replier) }));
    }
}
