//! Sending messages.

use std::io::IoSlice;

use libc::iovec;
use strait::{Deadline, Error, Outgoing, SendError, SendManyError};

use crate::args;
use crate::channel::{Using, enter, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::handle::{Lent, strait_handle};
use crate::status::{Failure, call, strait_status};

/// Maximum number of parts of a message.
pub const STRAIT_MAX_PARTS: usize = 65_536;

/// Maximum number of messages in one call of `strait_send_many` or `strait_recv_many`.
pub const STRAIT_MAX_MESSAGES: usize = 1_048_576;

/// Sends a message of `len` bytes; waits for room until the deadline. With `STRAIT_NOW`, sends only if there is room at
/// once.
///
/// The bytes are copied directly into shared memory. With `len` 0, `bytes` may be `NULL`: an empty message is a message
/// too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_send(
    channel: *const strait_channel,
    bytes: *const std::ffi::c_void,
    len: usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (using, bytes) = unsafe { (enter(channel)?, args::bytes(bytes.cast(), len)?) };
        using.channel().send_by(bytes, until(deadline)).map_err(|failed| using.failure(failed.error))
    })
}

/// Sends a message of several parts, one after the other, with handles; waits for room until the deadline.
///
/// The `part_count` parts, at most `STRAIT_MAX_PARTS`, are gathered directly into shared memory. A message may have no
/// part. If the function succeeds, it takes the `handle_count` handles; otherwise the caller still owns them.
///
/// If a handle is an end, function calls of other threads on the end fail with `STRAIT_MOVED`; waiting calls fail at
/// once. This function continues when the other calls have returned. If sending then fails, the end is as before. Fails
/// with `STRAIT_CLOSED` or `STRAIT_MOVED` if another thread has closed or sent the end. Fails with `STRAIT_IN_USE` if a
/// view or a reservation of the end, or room or bytes of a data pipe, are held; also if another thread is sending
/// `channel` itself while in a call on the end.
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
        // SAFETY: the header requires all the pointers to be valid.
        unsafe {
            send_parts(&mut enter(channel)?, strait_outgoing { parts, part_count, handles, handle_count }, deadline)
        }
    })
}

/// Something that C code sends over: an end, or the sending half of an end.
pub(crate) trait Sends {
    /// Sends a message.
    fn send_one(&mut self, message: Outgoing<'_>, deadline: Deadline) -> Result<(), SendError>;

    /// Sends a batch of messages.
    fn send_row<'a>(
        &mut self,
        messages: impl Iterator<Item = Outgoing<'a>>,
        deadline: Deadline,
    ) -> Result<usize, SendManyError>;

    /// Returns the failure of a function call with `error`.
    fn failure(&self, error: Error) -> Failure;

    /// Returns the object of the end, which must not be among the handles; `NULL` if there is no such object.
    fn shell(&self) -> *const strait_channel;
}

impl Sends for Using<'_> {
    fn send_one(&mut self, message: Outgoing<'_>, deadline: Deadline) -> Result<(), SendError> {
        self.channel().send_by(message, deadline)
    }

    fn send_row<'a>(
        &mut self,
        messages: impl Iterator<Item = Outgoing<'a>>,
        deadline: Deadline,
    ) -> Result<usize, SendManyError> {
        self.channel().send_many(messages, deadline)
    }

    fn failure(&self, error: Error) -> Failure {
        Using::failure(self, error)
    }

    fn shell(&self) -> *const strait_channel {
        Using::shell(self)
    }
}

/// Sends one message of several parts with handles. If sending fails, gives the handles back.
///
/// # Safety
/// The parts and the handles are as `strait_sendv` requires.
pub(crate) unsafe fn send_parts(
    over: &mut impl Sends,
    message: strait_outgoing,
    deadline: strait_deadline,
) -> Result<(), Failure> {
    let strait_outgoing { parts, part_count, handles, handle_count } = message;
    // SAFETY: the caller's promise.
    let (parts, mut lent) =
        unsafe { (Gathered::new(parts, part_count)?, Lent::new(handles, handle_count, over.shell())?) };
    if lent.is_empty() {
        let sent = over.send_one(parts.outgoing(), until(deadline));
        return sent.map_err(|failed| over.failure(failed.error));
    }
    let handles = lent.take()?;
    let count = handles.len();
    match over.send_one(parts.outgoing().handles(handles), until(deadline)) {
        Ok(()) => {
            lent.sent();
            Ok(())
        }
        Err(failed) => {
            lent.give_back(failed.handles, count);
            Err(over.failure(failed.error))
        }
    }
}

/// A message of `strait_send_many`, with the fields of `strait_sendv`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_outgoing {
    /// The bytes of the message, in parts.
    pub parts: *const iovec,
    /// The number of parts.
    pub part_count: usize,
    /// The handles of the message. If the message is sent, they are taken.
    pub handles: *mut strait_handle,
    /// The number of handles.
    pub handle_count: usize,
}

/// Sends a batch of `count` messages, at most `STRAIT_MAX_MESSAGES`. As many as fit appear at the peer at once, with
/// one wake-up; for the others the function waits for room until the deadline. Messages with handles are sent one by
/// one.
///
/// `sent` receives the number of messages sent, also if the function fails; it may be `NULL`. A failure concerns the
/// first unsent message. The unsent messages keep their handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_send_many(
    channel: *const strait_channel,
    messages: *const strait_outgoing,
    count: usize,
    sent: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    // SAFETY: the header requires the pointers to be valid.
    unsafe { send_all(|| enter(channel), messages, count, sent, deadline) }
}

/// Sends a batch of messages over what `over` returns, and writes the number of messages sent to `sent`.
///
/// # Safety
/// The pointers are as `strait_send_many` requires.
pub(crate) unsafe fn send_all<S: Sends>(
    over: impl FnOnce() -> Result<S, Failure>,
    messages: *const strait_outgoing,
    count: usize,
    sent: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    let mut done = 0;
    let status = call(|| {
        let mut over = over()?;
        // SAFETY: the caller's promise.
        let messages =
            unsafe { args::array(messages, count, STRAIT_MAX_MESSAGES, "messages is NULL, or there are too many")? };
        // Messages with handles are sent singly: otherwise a failure would not show which handles were taken.
        while done < messages.len() {
            let plain = messages[done..].iter().take_while(|message| message.handle_count == 0).count();
            if plain == 0 {
                // SAFETY: the caller's promise.
                unsafe { send_parts(&mut over, messages[done], deadline)? };
                done += 1;
            } else {
                send_plain(&mut over, &messages[done..done + plain], &mut done, deadline)?;
            }
        }
        Ok(())
    });
    if !sent.is_null() {
        // SAFETY: the caller may write a number there.
        unsafe { sent.write(done) };
    }
    status
}

/// Sends messages without handles, and adds the number sent to `done`. If a message has invalid parts, sends the
/// messages before it, and then fails.
fn send_plain(
    over: &mut impl Sends,
    messages: &[strait_outgoing],
    done: &mut usize,
    deadline: strait_deadline,
) -> Result<(), Failure> {
    let mut wrong = None;
    let mut gathered = Vec::with_capacity(messages.len());
    for message in messages {
        // SAFETY: the header requires the parts to be valid.
        match unsafe { Gathered::new(message.parts, message.part_count) } {
            Ok(parts) => gathered.push(parts),
            Err(failure) => {
                wrong = Some(failure);
                break;
            }
        }
    }
    match over.send_row(gathered.iter().map(Gathered::outgoing), until(deadline)) {
        Ok(sent) => *done += sent,
        Err(failed) => {
            *done += failed.sent;
            return Err(over.failure(failed.failed.error));
        }
    }
    wrong.map_or(Ok(()), Err)
}

/// The bytes of a message in the parts that C code gives.
pub(crate) enum Gathered<'a> {
    /// A single part.
    One(&'a [u8]),
    /// Several parts without a null pointer: the array of C code itself.
    Many(&'a [IoSlice<'a>]),
    /// Several parts, including empty parts with a null pointer, which is no slice in Rust: a converted copy.
    Own(Vec<IoSlice<'a>>),
}

impl<'a> Gathered<'a> {
    /// Checks the parts of a message.
    ///
    /// # Errors
    /// [`Failure::Invalid`] if a pointer is `NULL` and its length is not 0, or if there are too many parts or bytes.
    ///
    /// # Safety
    /// `parts` points to `count` parts, and each part to its bytes; all stay as long as the returned value is used.
    pub(crate) unsafe fn new(parts: *const iovec, count: usize) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let parts: &'a [iovec] =
            unsafe { args::array(parts, count, STRAIT_MAX_PARTS, "parts is NULL, or there are too many") }?;
        if let [one] = parts {
            // SAFETY: the caller's promise.
            return Ok(Self::One(unsafe { args::bytes(one.iov_base.cast(), one.iov_len) }?));
        }
        let mut is_whole = true;
        for part in parts {
            // SAFETY: the caller's promise.
            unsafe { args::bytes(part.iov_base.cast(), part.iov_len) }?;
            is_whole &= !part.iov_base.is_null();
        }
        if is_whole {
            // SAFETY: `IoSlice` promises the layout of `iovec`. Each part was just checked: it is not null, not too
            // long, and its bytes are there, as the caller promises.
            return Ok(Self::Many(unsafe { std::slice::from_raw_parts(parts.as_ptr().cast(), parts.len()) }));
        }
        // SAFETY: the caller's promise.
        let slice = |part: &iovec| unsafe { args::bytes(part.iov_base.cast(), part.iov_len) }.map(IoSlice::new);
        Ok(Self::Own(parts.iter().map(slice).collect::<Result<_, _>>()?))
    }

    /// Returns the message to be sent, without handles.
    pub(crate) fn outgoing(&self) -> Outgoing<'_> {
        match self {
            Self::One(bytes) => Outgoing::new(bytes),
            Self::Many(parts) => Outgoing::vectored(parts),
            Self::Own(parts) => Outgoing::vectored(parts),
        }
    }
}
