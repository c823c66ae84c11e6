//! Sending.

use std::io::IoSlice;

use libc::iovec;
use strait::Outgoing;

use crate::args;
use crate::channel::{Using, enter, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::handle::{Lent, strait_handle};
use crate::status::{Failure, call, strait_status};

/// The most parts that one message may be given in.
pub const STRAIT_MAX_PARTS: usize = 65_536;

/// The most messages in one call.
pub const STRAIT_MAX_MESSAGES: usize = 1_048_576;

/// Sends a message of these bytes; waits for room until the deadline. With `STRAIT_NOW`: only if there is room at once.
///
/// `bytes` are copied, straight into shared memory; with `len` 0 they may be `NULL`: no bytes are a message too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_send(
    channel: *const strait_channel,
    bytes: *const std::ffi::c_void,
    len: usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (using, bytes) = unsafe { (enter(channel)?, args::bytes(bytes.cast(), len)?) };
        using.channel().send_by(bytes, until(deadline)).map_err(|failed| using.failure(failed.error))
    })
}

/// Sends a message of several parts, one after the other, and handles that go with it; waits for room until the deadline.
///
/// The `part_count` parts, at most `STRAIT_MAX_PARTS`, are gathered straight into shared memory; none are a message without bytes.
/// The `handle_count` handles are taken if the call succeeds; otherwise they stay the caller's. Calls of other threads on an end that
/// is sent fail with `STRAIT_MOVED`, those that wait at once, and this one goes on when they have returned; also where sending then fails,
/// and the end is as it was. Fails with `STRAIT_CLOSED` or `STRAIT_MOVED` if another thread has closed or sent such an end, and with
/// `STRAIT_IN_USE` if a view or a reservation of it is held, or room or bytes of a data pipe, or another thread just sends `channel`
/// while it is in a call on that end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_sendv(
    channel: *const strait_channel,
    parts: *const iovec,
    part_count: usize,
    handles: *mut strait_handle,
    handle_count: usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of all of them.
        unsafe {
            let using = enter(channel)?;
            let parts = Gathered::new(parts, part_count)?;
            let handles = Lent::new(handles, handle_count, channel)?;
            send_one(&using, &parts, handles, deadline)
        }
    })
}

fn send_one(
    using: &Using<'_>,
    parts: &Gathered<'_>,
    mut lent: Lent<'_>,
    deadline: strait_deadline,
) -> Result<(), Failure> {
    if lent.is_empty() {
        let sent = using.channel().send_by(parts.outgoing(), until(deadline));
        return sent.map_err(|failed| using.failure(failed.error));
    }
    let handles = lent.take()?;
    let count = handles.len();
    match using.channel().send_by(parts.outgoing().handles(handles), until(deadline)) {
        Ok(()) => {
            lent.sent();
            Ok(())
        }
        Err(failed) => {
            lent.give_back(failed.handles, count);
            Err(using.failure(failed.error))
        }
    }
}

/// One of the messages of `strait_send_many`; as in `strait_sendv`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_outgoing {
    /// Its bytes, in parts.
    pub parts: *const iovec,
    /// How many parts.
    pub part_count: usize,
    /// Handles that go with it; taken if the message was sent.
    pub handles: *mut strait_handle,
    /// How many handles.
    pub handle_count: usize,
}

/// Sends `count` messages in a row, at most `STRAIT_MAX_MESSAGES`: as many as fit appear at the peer at once, with one wake-up; waits
/// for room for the others until the deadline.
///
/// `sent` gets how many were sent, also if the call fails; it may be `NULL`. The failure is that of the first message that was not
/// sent. That one and those after it keep their handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_send_many(
    channel: *const strait_channel,
    messages: *const strait_outgoing,
    count: usize,
    sent: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    let mut done = 0;
    let status = call(|| {
        // SAFETY: as the C API says of both.
        let (using, messages) = unsafe {
            (
                enter(channel)?,
                args::array(messages, count, STRAIT_MAX_MESSAGES, "messages is NULL, or there are too many")?,
            )
        };
        // Those with handles go alone: only so it is known which of them were taken.
        while done < messages.len() {
            let plain = messages[done..].iter().take_while(|message| message.handle_count == 0).count();
            if plain == 0 {
                let message = messages[done];
                // SAFETY: as the C API says of all of them.
                unsafe {
                    let parts = Gathered::new(message.parts, message.part_count)?;
                    let handles = Lent::new(message.handles, message.handle_count, channel)?;
                    send_one(&using, &parts, handles, deadline)?;
                }
                done += 1;
            } else {
                send_row(&using, &messages[done..done + plain], &mut done, deadline)?;
            }
        }
        Ok(())
    });
    if !sent.is_null() {
        // SAFETY: the caller's, to write one number to.
        unsafe { sent.write(done) };
    }
    status
}

/// Sends messages without handles; counts them in `done`. What is wrong with one of them is said after those before it are sent.
fn send_row(
    using: &Using<'_>,
    messages: &[strait_outgoing],
    done: &mut usize,
    deadline: strait_deadline,
) -> Result<(), Failure> {
    let mut wrong = None;
    let mut gathered = Vec::with_capacity(messages.len());
    for message in messages {
        // SAFETY: as the C API says of them.
        match unsafe { Gathered::new(message.parts, message.part_count) } {
            Ok(parts) => gathered.push(parts),
            Err(failure) => {
                wrong = Some(failure);
                break;
            }
        }
    }
    match using.channel().send_many(gathered.iter().map(Gathered::outgoing), until(deadline)) {
        Ok(sent) => *done += sent,
        Err(failed) => {
            *done += failed.sent;
            return Err(using.failure(failed.failed.error));
        }
    }
    wrong.map_or(Ok(()), Err)
}

/// The bytes of a message as C gives them.
pub(crate) enum Gathered<'a> {
    One(&'a [u8]),
    Many(&'a [IoSlice<'a>]),
    /// With parts that are nothing and nowhere, which Rust has no slice for.
    Own(Vec<IoSlice<'a>>),
}

impl<'a> Gathered<'a> {
    /// # Safety
    /// There are so many parts, and what they say is there, as long as this is used.
    pub(crate) unsafe fn new(parts: *const iovec, count: usize) -> Result<Self, Failure> {
        // SAFETY: as the caller says.
        let parts: &'a [iovec] =
            unsafe { args::array(parts, count, STRAIT_MAX_PARTS, "parts is NULL, or there are too many") }?;
        if let [one] = parts {
            // SAFETY: as the caller says.
            return Ok(Self::One(unsafe { args::bytes(one.iov_base.cast(), one.iov_len) }?));
        }
        let mut is_whole = true;
        for part in parts {
            // SAFETY: as the caller says.
            unsafe { args::bytes(part.iov_base.cast(), part.iov_len) }?;
            is_whole &= !part.iov_base.is_null();
        }
        if is_whole {
            // SAFETY: `IoSlice` promises the layout of `iovec`, and each was looked at just now: not null, not too long, and as
            // the caller says there.
            return Ok(Self::Many(unsafe { std::slice::from_raw_parts(parts.as_ptr().cast(), parts.len()) }));
        }
        // SAFETY: as the caller says.
        let slice = |part: &iovec| unsafe { args::bytes(part.iov_base.cast(), part.iov_len) }.map(IoSlice::new);
        Ok(Self::Own(parts.iter().map(slice).collect::<Result<_, _>>()?))
    }

    pub(crate) fn outgoing(&self) -> Outgoing<'_> {
        match self {
            Self::One(bytes) => Outgoing::new(bytes),
            Self::Many(parts) => Outgoing::vectored(parts),
            Self::Own(parts) => Outgoing::vectored(parts),
        }
    }
}
