//! Receiving.

use std::ffi::c_void;

use strait::{Handle, Message, Received};

use crate::args;
use crate::channel::{Using, enter, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::handle::strait_handle;
use crate::status::{Failure, call, call_or, strait_status};

/// A received message: its bytes in memory of this process, which nobody else can change, and its handles. Receiving into it again
/// uses its memory again, and closes the handles that were not taken. One thread uses it at a time.
#[derive(Debug, Default)]
pub struct strait_message {
    message: Message,
    /// What came with a message whose bytes went elsewhere.
    received: Option<Received>,
    taken: Taken,
}

/// Handles on their way from a message to C.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// The last first.
    handles: Vec<Handle>,
}

impl Taken {
    fn clear(&mut self) {
        if !self.handles.is_empty() {
            self.handles.clear();
        }
    }

    /// That there are none of which others were taken.
    pub(crate) fn check_none_left(&self) -> Result<(), Failure> {
        match self.handles.is_empty() {
            true => Ok(()),
            false => Err(Failure::Invalid(
                "some handles of the message were taken and others were not: take all of them, or none",
            )),
        }
    }

    /// Gives out as many as there is room for. `more` takes them out of their message.
    ///
    /// # Safety
    /// As the C API says of `handles`, `capacity` and `count`.
    pub(crate) unsafe fn give(
        &mut self,
        more: impl FnOnce() -> Result<Vec<Handle>, strait::Error>,
        handles: *mut strait_handle,
        capacity: usize,
        count: *mut usize,
    ) -> Result<(), Failure> {
        // SAFETY: as the caller says.
        let count = unsafe { args::out(count, 0, "count is NULL") }?;
        if capacity > 0 && handles.is_null() {
            return Err(Failure::Invalid("handles is NULL, but capacity is not 0"));
        }
        if self.handles.is_empty() {
            self.handles = more()?;
            self.handles.reverse();
        }
        while *count < capacity
            && let Some(handle) = self.handles.pop()
        {
            // SAFETY: the caller's, to write so many to.
            unsafe { handles.add(*count).write(strait_handle::give(handle)) };
            *count += 1;
        }
        Ok(())
    }
}

impl strait_message {
    /// Has another message in place of what was there.
    pub(crate) fn put(&mut self, message: Message) {
        self.clear();
        self.message = message;
    }

    #[inline]
    fn clear(&mut self) {
        if self.received.is_some() {
            self.received = None;
        }
        self.taken.clear();
    }
}

/// What a call is about that receives into a message, or sends one on.
///
/// # Safety
/// Both are `NULL`, or the caller's, and stay as long as the call.
unsafe fn end_and_message<'a>(
    channel: *const strait_channel,
    message: *mut strait_message,
) -> Result<(Using<'a>, &'a mut strait_message), Failure> {
    // SAFETY: as the caller says.
    unsafe { Ok((enter(channel)?, message.as_mut().ok_or(Failure::Invalid("message is NULL"))?)) }
}

/// Makes an empty message, to receive into. It is the caller's. `NULL` if that fails.
#[unsafe(no_mangle)]
pub extern "C" fn strait_message_new() -> *mut strait_message {
    call_or(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees a message, and closes the handles that were not taken. `NULL` is let pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_free(message: *mut strait_message) {
    if !message.is_null() {
        // SAFETY: it came from `strait_message_new`, and the caller gives it up.
        call_or((), || drop(unsafe { Box::from_raw(message) }));
    }
}

/// The bytes of a message, which are valid until it is received into again or freed. Never `NULL`, but for `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_bytes(message: *const strait_message) -> *const c_void {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { message.as_ref() }.map_or(std::ptr::null(), |message| message.message.bytes().as_ptr().cast())
}

/// How many bytes a message has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_len(message: *const strait_message) -> usize {
    // SAFETY: `NULL`, or one of the caller's.
    unsafe { message.as_ref() }.map_or(0, |message| message.message.bytes().len())
}

/// Takes the next handles out of a message, in the order in which they were sent: as many as there are and `capacity` takes.
///
/// `handles` gets them; they are the caller's. `count` gets how many; 0 when all were taken. Those that do not fit are there for the
/// next call; `STRAIT_MAX_HANDLES` always are enough. Fails with `STRAIT_HANDLES_LOST` if not all have arrived; those that did were
/// closed, and the bytes are intact.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_take_handles(
    message: *mut strait_message,
    handles: *mut strait_handle,
    capacity: usize,
    count: *mut usize,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of all of them.
        unsafe {
            let message = message.as_mut().ok_or(Failure::Invalid("message is NULL"))?;
            let (received, inner) = (&mut message.received, &mut message.message);
            let more = || match received {
                Some(received) => received.take_handles(),
                None => inner.take_handles(),
            };
            message.taken.give(more, handles, capacity, count)
        }
    })
}

/// The most handles that a message has.
pub const STRAIT_MAX_HANDLES: usize = 64;

/// The most bytes that a message has.
pub const STRAIT_MAX_MESSAGE: usize = 268_435_456;

const _: () = assert!(STRAIT_MAX_HANDLES == strait::MAX_HANDLES && STRAIT_MAX_MESSAGE == strait::MAX_MESSAGE);

/// Receives the next message into `message`; waits for it until the deadline. With `STRAIT_NOW`: only if it is there.
///
/// What `message` had before is gone, whatever happens; after a failure it is empty. In steady flow nothing is allocated. Fails with
/// `STRAIT_PEER_CLOSED` once everything that the peer sent was received.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_recv(
    channel: *const strait_channel,
    message: *mut strait_message,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (using, message) = unsafe { end_and_message(channel, message) }?;
        message.clear();
        using.channel().recv_to(&mut message.message, until(deadline)).map_err(|error| using.failure(error))
    })
}

/// Receives the next message into the front of a buffer of the caller's; waits for it until the deadline.
///
/// `len` gets the bytes of the message. If `capacity` is less, the call fails with `STRAIT_BUFFER_TOO_SMALL`, `len` gets what is
/// needed, and the message stays the next one. Its handles go into `handles`, to be taken from there with
/// `strait_message_take_handles`; with `NULL` they are closed. What `handles` had before is gone, whatever happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_recv_into(
    channel: *const strait_channel,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    handles: *mut strait_message,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // `len` may be anywhere, in the buffer even: so it is no reference, and written to when the buffer is none any more.
        // SAFETY: as the C API says of all of them.
        let (using, buffer, len, mut handles) = unsafe {
            let len = args::Place::new(len, 0, "len is NULL")?;
            (enter(channel)?, args::buffer(buffer.cast(), capacity)?, len, handles.as_mut())
        };
        if let Some(handles) = &mut handles {
            handles.clear();
            handles.message = Message::new();
        }
        let received = using.channel().recv_into(buffer, until(deadline)).map_err(|error| using.failure(error));
        match received {
            Ok(received) => {
                len.set(received.len());
                if let Some(handles) = handles {
                    handles.received = Some(received);
                }
                Ok(())
            }
            Err(failure) => {
                if let Failure::Strait(strait::Error::BufferTooSmall { needed }) = failure {
                    len.set(needed);
                }
                Err(failure)
            }
        }
    })
}

/// Receives as many messages as are there, at most `count` and at least one; waits for the first until the deadline.
///
/// `messages` are `count` pointers to messages, each another one; `received` gets how many of them, from the first, have got one.
/// What they had before is gone. A failure is that of the first; one at a later message is that of the next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_recv_many(
    channel: *const strait_channel,
    messages: *const *mut strait_message,
    count: usize,
    received: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of all of them.
        let (using, messages, received) = unsafe {
            let received = args::out(received, 0, "received is NULL")?;
            let what = "messages is NULL, or there are too many";
            (enter(channel)?, args::array(messages, count, crate::send::STRAIT_MAX_MESSAGES, what)?, received)
        };
        if messages.iter().any(|message| message.is_null()) {
            return Err(Failure::Invalid("one of the messages is NULL"));
        }
        // SAFETY: each is one of the caller's, and no other reference to it is held.
        let shell = |message: &*mut strait_message| unsafe { &mut **message };
        let take = |message| {
            let shell = shell(message);
            shell.clear();
            std::mem::take(&mut shell.message)
        };
        let mut slots: Vec<Message> = messages.iter().map(take).collect();
        let got = using.channel().recv_many(&mut slots, until(deadline));
        for (message, slot) in messages.iter().zip(slots) {
            shell(message).message = slot;
        }
        *received = got.map_err(|error| using.failure(error))?;
        Ok(())
    })
}

/// Sends a received message on, handles and all; waits for room until the deadline. Then `message` is empty, and can be received into
/// again. If it cannot be sent, it is as it was.
///
/// The memory of a large message that its sender has sealed (`strait_reserve_sealed`) is passed on, at a cost that does not grow with
/// its size; any other is copied. Whoever gets the memory can see that others have it too. Fails with `STRAIT_HANDLES_LOST` if the message
/// did not arrive whole, and with `STRAIT_INVALID_ARGUMENT` if some of its handles were taken and others were not, or its bytes are in
/// a buffer of `strait_recv_into`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_forward(
    channel: *const strait_channel,
    message: *mut strait_message,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: as the C API says of both.
        let (using, message) = unsafe { end_and_message(channel, message) }?;
        message.taken.check_none_left()?;
        if message.received.is_some() {
            return Err(Failure::Invalid(
                "the bytes of the message are in the buffer of strait_recv_into: send them with strait_send",
            ));
        }
        using.channel().forward(&mut message.message, until(deadline)).map_err(|error| using.failure(error))
    })
}
