//! Receiving messages.

use std::ffi::c_void;

use strait::bindings::UnclaimedHandle;
use strait::quota::Reported;
use strait::{Handle, Message, Received};

use crate::args;
use crate::channel::{enter, strait_channel};
use crate::deadline::{strait_deadline, until};
use crate::handle::strait_handle;
use crate::status::{Failure, call, call_or, strait_status};

/// A received message: the handles, and the bytes in private memory of this process. The next receive into the message
/// reuses the memory, and closes the handles still in the message. One thread at a time uses a message.
#[derive(Debug, Default)]
pub struct strait_message {
    message: Message,
    /// The handles of a message whose bytes are in a buffer of `strait_recv_into`.
    received: Option<Received>,
    /// Whether C code has taken a handle out of the message.
    has_given: bool,
}

/// Handles taken out of a view and not yet received by C code. Dropping the value closes them without blocking.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// The handles, in reverse order.
    handles: Vec<UnclaimedHandle>,
}

impl Taken {
    /// Checks that C code has received either all handles taken out of the message, or none.
    ///
    /// # Errors
    /// [`Failure::Invalid`] if a part of the handles is left.
    pub(crate) fn check_none_left(&self) -> Result<(), Failure> {
        match self.handles.is_empty() {
            true => Ok(()),
            false => Err(SOME_TAKEN),
        }
    }

    /// Writes as many handles to the array of C code as fit. If no handles are left over from before, takes them out of
    /// their view with `more`.
    ///
    /// # Safety
    /// `handles` is `NULL` or an array of `capacity` handles, and `count` is `NULL` or the caller may write to it.
    pub(crate) unsafe fn give(
        &mut self,
        more: impl FnOnce() -> Result<Vec<UnclaimedHandle>, strait::Error>,
        handles: *mut strait_handle,
        capacity: usize,
        count: *mut usize,
    ) -> Result<(), Failure> {
        let mut more = Some(more);
        let next = || {
            if let Some(more) = more.take()
                && self.handles.is_empty()
            {
                self.handles = more()?;
                self.handles.reverse();
            }
            Ok(self.handles.pop().map(UnclaimedHandle::claim))
        };
        // SAFETY: the caller's promise.
        unsafe { give(next, handles, capacity, count) }
    }
}

/// Writes to the array of C code the handles that `next` returns, as many as fit.
///
/// # Safety
/// `handles` is `NULL` or an array of `capacity` handles, and `count` is `NULL` or the caller may write to it.
unsafe fn give(
    mut next: impl FnMut() -> Result<Option<Handle>, strait::Error>,
    handles: *mut strait_handle,
    capacity: usize,
    count: *mut usize,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let count = unsafe { args::out(count, 0, "count is NULL") }?;
    if capacity > 0 && handles.is_null() {
        return Err(Failure::Invalid("handles is NULL, but capacity is not 0"));
    }
    while *count < capacity
        && let Some(handle) = next()?
    {
        // SAFETY: the caller's array has room for `capacity` handles.
        unsafe { handles.add(*count).write(strait_handle::give(handle)) };
        *count += 1;
    }
    Ok(())
}

/// The failure of a function that passes a message on, if C code has taken some of the message's handles and not all.
const SOME_TAKEN: Failure =
    Failure::Invalid("some handles of the message were taken and others were not: take all of them, or none");

impl strait_message {
    /// Replaces the message, and closes the handles still in the old message.
    pub(crate) fn put(&mut self, message: Message) {
        self.clear();
        self.message = message;
    }

    /// Takes the handle with the given index among the handles still in the message; `None` if there is none. The other
    /// handles stay in the message of the Rust library, which closes them without blocking.
    fn take_handle(&mut self, index: usize) -> Result<Option<Handle>, strait::Error> {
        let taken = match &mut self.received {
            Some(received) => received.take_handle(index),
            None => self.message.take_handle(index),
        };
        self.has_given |= matches!(taken, Ok(Some(_)));
        taken
    }

    /// Returns the bytes of the message; `None` in a child of `fork` that does not have their memory.
    fn bytes(&self) -> Option<&[u8]> {
        call_or(None, || self.message.check_fork().is_ok().then(|| self.message.bytes()))
    }

    /// Reports the sender of the message as a bad peer.
    pub(crate) fn report_bad(&self, reason: &'static str) -> Reported {
        match &self.received {
            Some(received) => received.report_bad(reason),
            None => self.message.report_bad(reason),
        }
    }

    /// Closes the handles that were not taken, drops the bytes, and returns the message, to receive into.
    #[inline]
    pub(crate) fn emptied(&mut self) -> &mut Message {
        self.clear();
        self.message.clear();
        &mut self.message
    }

    #[inline]
    fn clear(&mut self) {
        if self.received.is_some() {
            self.received = None;
        }
        self.has_given = false;
    }
}

/// Empties a message of C code, and returns it, to receive into: whatever fails later, the contents are lost.
///
/// # Errors
/// [`Failure::Invalid`] if `message` is `NULL`.
///
/// # Safety
/// The pointer is `NULL`, or valid and the caller's during the function call.
#[inline]
pub(crate) unsafe fn emptied<'a>(message: *mut strait_message) -> Result<&'a mut Message, Failure> {
    // SAFETY: the caller's promise.
    unsafe { message.as_mut() }.map(strait_message::emptied).ok_or(Failure::Invalid("message is NULL"))
}

/// Makes an empty message, to receive into. The caller owns the message. Returns `NULL` on failure.
#[unsafe(no_mangle)]
pub extern "C" fn strait_message_new() -> *mut strait_message {
    call_or(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees a message, and closes the handles that were not taken. Ignores `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_free(message: *mut strait_message) {
    if !message.is_null() {
        // SAFETY: `strait_message_new` made the object, and the caller gives the object up.
        call_or((), || drop(unsafe { Box::from_raw(message) }));
    }
}

/// Empties a message: closes the handles that were not taken, and drops the bytes. The message keeps its memory for the
/// next receive. Ignores `NULL`.
///
/// The handles are closed without blocking: a thread of the library closes a descriptor whose close may take long. So
/// to drop descriptors of an untrusted peer, leave the descriptors in the message and call this function, rather than
/// take them and call `strait_handle_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_clear(message: *mut strait_message) {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    if let Some(message) = unsafe { message.as_mut() } {
        call_or((), || _ = message.emptied());
    }
}

/// Returns the bytes of a message, valid until the message is received into again, cleared or freed. Returns `NULL`
/// only if `message` is `NULL`, and in the child of a `fork` for bytes that the sender has sealed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_bytes(message: *const strait_message) -> *const c_void {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { message.as_ref() }.and_then(strait_message::bytes).map_or(std::ptr::null(), |bytes| bytes.as_ptr().cast())
}

/// Returns the number of bytes of a message; 0 if `strait_message_bytes` returns `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_len(message: *const strait_message) -> usize {
    // SAFETY: the pointer is `NULL`, or an object of the caller's.
    unsafe { message.as_ref() }.and_then(strait_message::bytes).map_or(0, <[u8]>::len)
}

/// Takes the next handles out of a message, at most `capacity`, in the order of sending.
///
/// `handles` receives the handles, and the caller owns them. `count` receives the number of handles: 0 when all handles
/// were taken. Handles that do not fit stay for the next call; `STRAIT_MAX_HANDLES` are always enough. Fails with
/// `STRAIT_HANDLES_LOST` if not all handles have arrived; then the handles that arrived were closed, and the bytes are
/// intact.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_take_handles(
    message: *mut strait_message,
    handles: *mut strait_handle,
    capacity: usize,
    count: *mut usize,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        unsafe {
            let message = message.as_mut().ok_or(Failure::Invalid("message is NULL"))?;
            give(|| message.take_handle(0), handles, capacity, count)
        }
    })
}

/// Takes the handle with this index out of a message, and leaves the other handles in the message.
///
/// `index` counts the handles still in the message, from 0: each taken handle lowers the indices of the later handles
/// by one. `handle` receives the handle, owned by the caller; the kind is `STRAIT_HANDLE_NONE` if there is no handle
/// with this index. Fails with `STRAIT_HANDLES_LOST` like `strait_message_take_handles`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_message_take_handle(
    message: *mut strait_message,
    index: usize,
    handle: *mut strait_handle,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (handle, message) = unsafe {
            let handle = args::out(handle, strait_handle::NONE, "handle is NULL")?;
            (handle, message.as_mut().ok_or(Failure::Invalid("message is NULL"))?)
        };
        if let Some(taken) = message.take_handle(index)? {
            *handle = strait_handle::give(taken);
        }
        Ok(())
    })
}

/// The sizes of the next message of an end, before it is received.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct strait_message_info {
    /// Number of bytes in the message.
    pub len: usize,
    /// Number of handles sent with the message.
    pub handles: usize,
    /// Reserved; always zero.
    pub reserved: [u64; 2],
}

/// Writes the sizes of the next message to `info`, and leaves the message there. Does not block.
///
/// The next receive gets the same message, unless another thread receives first. An untrusted peer may still change the
/// message, so that `strait_recv_into` with a buffer of the reported size fails with `STRAIT_BUFFER_TOO_SMALL`. Fails
/// with `STRAIT_WOULD_BLOCK` if no message is queued, and while another thread waits for a message or holds a view.
/// Fails with `STRAIT_PEER_CLOSED` once everything sent by the peer was received.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_channel_peek(
    channel: *const strait_channel,
    info: *mut strait_message_info,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (info, using) =
            unsafe { (args::out(info, strait_message_info::default(), "info is NULL")?, enter(channel)?) };
        let next = using.channel().peek().map_err(|error| using.failure(error))?.ok_or(strait::Error::WouldBlock)?;
        (info.len, info.handles) = (next.len, next.handles);
        Ok(())
    })
}

/// Maximum number of handles in a message.
pub const STRAIT_MAX_HANDLES: usize = 64;

/// Maximum number of bytes in a message.
pub const STRAIT_MAX_MESSAGE: usize = 268_435_456;

const _: () = assert!(STRAIT_MAX_HANDLES == strait::quota::MAX_HANDLES && STRAIT_MAX_MESSAGE == strait::MAX_MESSAGE);

/// Waits for the next message until the deadline, and receives it into `message`. With `STRAIT_NOW`, receives only a
/// message that is already queued.
///
/// The previous contents of `message` are lost in any case; after a failure the message is empty. A steady flow of
/// messages allocates no memory. Fails with `STRAIT_PEER_CLOSED` once everything that the peer sent was received.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_recv(
    channel: *const strait_channel,
    message: *mut strait_message,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (message, using) = unsafe { (emptied(message)?, enter(channel)?) };
        using.channel().recv_message(message, until(deadline)).map_err(|error| using.failure(error))
    })
}

/// Receives the next message into the front of a buffer of the caller's; waits for it until the deadline.
///
/// `len` receives the number of bytes of the message. If `capacity` is less, the function fails with
/// `STRAIT_BUFFER_TOO_SMALL`, `len` receives the needed capacity, and the message stays the next message. The handles
/// of the message go into `handles`; take them with `strait_message_take_handles`. If `handles` is `NULL`, the handles
/// are closed. The previous contents of `handles` are lost in any case.
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
        // SAFETY: the header requires all the pointers to be valid.
        unsafe {
            receive_into(buffer, capacity, len, handles, |buffer| {
                let using = enter(channel)?;
                using.channel().recv_into(buffer, until(deadline)).map_err(|error| using.failure(error))
            })
        }
    })
}

/// Receives a message into a buffer of C code by `receive`. `len` gets the number of bytes, or the needed capacity if
/// the buffer is too small. Empties `handles` first.
///
/// # Safety
/// `buffer` is a buffer of `capacity` bytes, `handles` is `NULL` or a message, and `len` is `NULL` or the caller may
/// write to it; all are for this function call alone.
#[inline]
pub(crate) unsafe fn receive_into(
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    handles: *mut strait_message,
    receive: impl FnOnce(&mut [u8]) -> Result<Received, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let mut handles = unsafe { handles.as_mut() };
    if let Some(handles) = &mut handles {
        handles.clear();
        handles.message = Message::new();
    }
    // `len` may lie anywhere, even in the buffer. So it is no reference, and is written once the buffer is not borrowed
    // any more.
    // SAFETY: the caller's promise.
    let (len, buffer) = unsafe { (args::Place::new(len, 0, "len is NULL")?, args::buffer(buffer.cast(), capacity)?) };
    match receive(buffer) {
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
}

/// Receives the queued messages, at most `count` and at least one; waits for the first message until the deadline.
///
/// `messages` are `count` pointers to different messages. `received` receives the number of pointers, from the first,
/// that hold a new message. The previous contents of all `count` messages are lost. A failure concerns the first
/// message; the failure of a later message is returned by the next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_recv_many(
    channel: *const strait_channel,
    messages: *const *mut strait_message,
    count: usize,
    received: *mut usize,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires all the pointers to be valid.
        unsafe {
            receive_all(messages, count, received, |slots| {
                let using = enter(channel)?;
                using.channel().recv_many(slots, until(deadline)).map_err(|error| using.failure(error))
            })
        }
    })
}

/// Receives into messages of C code by `receive`. `received` gets the number of messages received. Empties all messages
/// first.
///
/// # Safety
/// The pointers are as `strait_recv_many` requires.
pub(crate) unsafe fn receive_all(
    messages: *const *mut strait_message,
    count: usize,
    received: *mut usize,
    receive: impl FnOnce(&mut [Message]) -> Result<usize, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let (received, messages) = unsafe {
        let received = args::out(received, 0, "received is NULL");
        let too_many = "messages is NULL, or there are too many";
        (received, args::array(messages, count, crate::send::STRAIT_MAX_MESSAGES, too_many)?)
    };
    if messages.iter().any(|message| message.is_null()) {
        return Err(Failure::Invalid("one of the messages is NULL"));
    }
    // SAFETY: the caller owns each message, and this function holds no other reference to the message.
    let shell = |message: &*mut strait_message| unsafe { &mut **message };
    let mut slots: Vec<Message> = messages.iter().map(|message| std::mem::take(shell(message).emptied())).collect();
    let filled = received.and_then(|received| {
        *received = receive(&mut slots)?;
        Ok(())
    });
    for (message, slot) in messages.iter().zip(slots) {
        shell(message).message = slot;
    }
    filled
}

/// Forwards a received message with its handles; waits for room until the deadline. On success `message` is empty, and
/// can be received into again. If the function fails, the message is unchanged.
///
/// If the sender of a large message has sealed it (`strait_reserve_sealed`), the memory is passed on, at a cost
/// independent of the size. Any other message is copied. A receiver of sealed memory can see that other processes have
/// the same memory. Fails with `STRAIT_HANDLES_LOST` if the message did not arrive whole. Fails with
/// `STRAIT_INVALID_ARGUMENT` if some of its handles were taken and others were not, or if its bytes are in a buffer of
/// `strait_recv_into`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_forward(
    channel: *const strait_channel,
    message: *mut strait_message,
    deadline: strait_deadline,
) -> strait_status {
    call(|| {
        // SAFETY: the header requires both pointers to be valid.
        let (using, message) =
            unsafe { (enter(channel)?, message.as_mut().ok_or(Failure::Invalid("message is NULL"))?) };
        if message.has_given && !message.message.handles().is_empty() {
            return Err(SOME_TAKEN);
        }
        if message.received.is_some() {
            return Err(Failure::Invalid(
                "the bytes of the message are in the buffer of strait_recv_into: send them with strait_send",
            ));
        }
        using.channel().forward(&mut message.message, until(deadline)).map_err(|error| using.failure(error))
    })
}
