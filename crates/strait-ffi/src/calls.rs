//! Calls: requests with replies in any order, over a channel.

use std::ptr;

use libc::iovec;
use strait::{CallEnd, CallError, Replier};

use crate::args;
use crate::channel::{self, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::handle::{Lent, strait_handle};
use crate::receive::strait_message;
use crate::send::Gathered;
use crate::status::{Failure, call, call_or, strait_status};

/// An end of a channel for calls, both ways. Any number of threads may use it at once; it is freed when none does any more.
#[derive(Debug)]
pub struct strait_call_end {
    end: CallEnd,
}

/// What answers a request. One thread uses it at a time.
#[derive(Debug)]
pub struct strait_replier {
    replier: Replier,
    answered: bool,
}

/// Makes an end of calls of an end of a channel; the other end has to be made one, too. From here on nothing else may be sent or
/// received on it.
///
/// `channel`, the caller's reference, is taken if the call succeeds; otherwise it stays the caller's. Calls of other threads on
/// it fail with `STRAIT_MOVED`, those that wait at once; `STRAIT_IN_USE` if a view or a reservation of it is held. `end` gets the end of calls, which is the caller's; `NULL` on failure. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_call_end_over(
    channel: *mut strait_channel,
    end: *mut *mut strait_call_end,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let out = unsafe {
            let out = args::out(end, ptr::null_mut(), "end is NULL")?;
            args::reference(channel, "channel is NULL")?;
            out
        };
        // SAFETY: the caller has a reference, which it gives up.
        let taken = unsafe {
            let taken = channel::take_out(channel, ptr::null())?;
            channel::release(channel);
            taken
        };
        *out = Box::into_raw(Box::new(strait_call_end { end: CallEnd::over(taken) }));
        Ok(())
    })
}

/// Frees an end of calls. The channel is closed when the requests that were received and not answered are freed, too. `NULL` is let
/// pass. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_call_end_free(end: *mut strait_call_end) {
    if !end.is_null() {
        // SAFETY: it came from `strait_call_end_over`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(end) }));
    }
}

/// Calls the other end, and waits for its reply until the deadline, which holds for sending too. Any number of threads may call at once.
///
/// Parts and handles are as in `strait_sendv`. `reply` gets the reply; what it had before is gone, whatever happens.
///
/// * `STRAIT_OUTCOME_UNKNOWN`: the request was sent, and there will be no reply: the deadline has passed, or the peer is gone.
/// * `STRAIT_NOT_ANSWERED`: the other end has dropped the request.
/// * Anything else: the request was never sent, and the handles are the caller's still.
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
        // SAFETY: as the C API says of all of them.
        let (end, reply, parts, mut lent) = unsafe {
            let end = args::reference(end, "end is NULL")?;
            let reply = reply.as_mut().ok_or(Failure::Invalid("reply is NULL"))?;
            reply.put(Default::default());
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

/// The next request of the other end; waits for it until the deadline.
///
/// `request` gets it; what it had before is gone, whatever happens. `replier` gets what answers it, which is the caller's; `NULL` on
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_call_next(
    end: *const strait_call_end,
    request: *mut strait_message,
    replier: *mut *mut strait_replier,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of all three.
        let (end, request, out) = unsafe {
            let out = args::out(replier, ptr::null_mut(), "replier is NULL")?;
            let request = request.as_mut().ok_or(Failure::Invalid("request is NULL"))?;
            request.put(Default::default());
            (args::reference(end, "end is NULL")?, request, out)
        };
        let (message, replier) = end.end.next_request(until(deadline))?.into_parts();
        request.put(message);
        *out = Box::into_raw(Box::new(strait_replier { replier, answered: false }));
        Ok(())
    })
}

/// Whether nobody waits for the answer any more, as far as is known here. False of `NULL`. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_replier_is_cancelled(replier: *const strait_replier) -> bool {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { replier.as_ref() }.is_some_and(|replier| replier.replier.is_cancelled())
}

/// Answers a request, once; waits for room until the deadline. Parts and handles are as in `strait_sendv`. The replier stays the
/// caller's, to be freed; after a failure it can answer still.
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
        // SAFETY: as the C API says of all of them.
        let (replier, parts, mut lent) = unsafe {
            let replier = replier.as_mut().ok_or(Failure::Invalid("replier is NULL"))?;
            (replier, Gathered::new(parts, part_count)?, Lent::new(handles, handle_count, ptr::null())?)
        };
        if replier.answered {
            return Err(Failure::Invalid("the request was answered before: answer each request once"));
        }
        let taken = lent.take()?;
        let count = taken.len();
        match replier.replier.reply_by(parts.outgoing().handles(taken), until(deadline)) {
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

/// Frees what answers a request. Without an answer the caller is told that there is none. `NULL` is let pass. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_replier_free(replier: *mut strait_replier) {
    if !replier.is_null() {
        // SAFETY: it came from `strait_call_next`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(replier) }));
    }
}
