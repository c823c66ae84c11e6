//! The status returned by functions, and details of a thread's last failure.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int};
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use strait::call::CallError;
use strait::meet::MeetError;
use strait::region::RegionError;
use strait::{Error, SendError};

/// The result of a function: `STRAIT_OK`, or the reason of the failure. `strait_last_error_text` has advice.
///
/// A failed function has changed nothing, unless its comment says otherwise: the caller still owns the arguments.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum strait_status {
    /// The function succeeded.
    STRAIT_OK = 0,
    /// The function would have to wait, and the deadline was `STRAIT_NOW`.
    STRAIT_WOULD_BLOCK = 1,
    /// The deadline passed before the function could complete.
    STRAIT_TIMED_OUT = 2,
    /// The other end was closed, or its process died. A receiving function returns this status only after every message
    /// sent by the other end was received.
    STRAIT_PEER_CLOSED = 3,
    /// The message is longer than `strait_options.max_message` of this end.
    STRAIT_MESSAGE_TOO_LARGE = 4,
    /// The message has more handles than `strait_options.max_handles` of this end.
    STRAIT_TOO_MANY_HANDLES = 5,
    /// The buffer is too small for the next message. The message stays there for the next receive.
    STRAIT_BUFFER_TOO_SMALL = 6,
    /// A handle to be sent is not an open descriptor, is given twice, or is of no known kind.
    STRAIT_BAD_HANDLE = 7,
    /// A handle is an end of the channel over which the message would be sent.
    STRAIT_OWN_CHANNEL = 8,
    /// The channel is in a wait set already. A channel can be in one wait set at a time.
    STRAIT_IN_SET = 9,
    /// The channel is not in the wait set.
    STRAIT_NOT_IN_SET = 10,
    /// Some descriptors of the message did not arrive; the bytes arrived.
    STRAIT_HANDLES_LOST = 11,
    /// This process has no free descriptor.
    STRAIT_NO_DESCRIPTORS = 12,
    /// The kernel has not enough memory for the function.
    STRAIT_NO_MEMORY = 13,
    /// This process holds as much for the peer as allowed: see `strait_set_limit`.
    STRAIT_LIMIT_REACHED = 14,
    /// The peer broke the protocol, and the channel has ended.
    STRAIT_BAD_PEER = 15,
    /// One side refused the connection.
    STRAIT_REFUSED = 16,
    /// This process is the child of a `fork` without `exec`; the object belongs to the parent.
    STRAIT_FORKED = 17,
    /// The descriptor is not a connected `SOCK_SEQPACKET` Unix socket.
    STRAIT_NOT_A_SOCKET = 18,
    /// The name is not valid. A name has 1 to 64 letters, digits, dots, dashes and underscores, and does not begin with
    /// a dot. An absolute path ends with such a name.
    STRAIT_BAD_NAME = 19,
    /// The name belongs to a listener of another process or of this process.
    STRAIT_NAME_TAKEN = 20,
    /// There is no listener with this name.
    STRAIT_NOBODY_THERE = 21,
    /// Other users could change the contents of the name directory.
    STRAIT_UNSAFE_DIRECTORY = 22,
    /// The listening process runs as another user than expected.
    STRAIT_WRONG_SERVER = 23,
    /// There was no invitation on standard input.
    STRAIT_NO_INVITATION = 24,
    /// The service manager has passed no listening socket of this name to this process.
    STRAIT_NOT_ACTIVATED = 25,
    /// This process was not started with a channel to a parent.
    STRAIT_NO_PARENT = 26,
    /// The channel to the parent was taken before.
    STRAIT_PARENT_TAKEN = 27,
    /// The kernel refused a system call; `strait_last_error` has its `errno`.
    STRAIT_SYSTEM = 28,
    /// The end was closed through another reference, or the listener was stopped.
    STRAIT_CLOSED = 29,
    /// The end was sent, or is being sent, through another reference. Also returned by a function call interrupted by
    /// an attempt to send the end, even if the attempt failed.
    STRAIT_MOVED = 30,
    /// The end to be sent is in use. For a channel: a view or a reservation of the end is still held, or the end and
    /// the end over which it would be sent are being sent over each other. For a data pipe: room or bytes are held that
    /// a function has begun with.
    STRAIT_IN_USE = 31,
    /// An argument is invalid: a null pointer, a number out of range, or nonzero bytes where zeroes are required.
    STRAIT_INVALID_ARGUMENT = 32,
    /// A defect of Strait, caught at the border of the library. How much the function did before is not known.
    STRAIT_PANICKED = 33,
    /// An error without a number in this version of the C library. `strait_last_error_text` has the text.
    STRAIT_OTHER = 34,
    /// The region, or the given handle of the region, is not writable.
    STRAIT_READ_ONLY = 35,
    /// The region is not sealed, so the content could change while being read.
    STRAIT_NOT_SEALED = 36,
    /// The region is mapped for writing, here or elsewhere, so it cannot be sealed.
    STRAIT_STILL_MAPPED = 37,
    /// The object has fewer bytes than the function was to read or write.
    STRAIT_OUT_OF_RANGE = 38,
    /// The descriptor cannot become a region.
    STRAIT_NOT_A_REGION = 39,
    /// The number of bytes is not a multiple of the element size of the data pipe.
    STRAIT_NOT_ELEMENTS = 40,
    /// The request of `strait_call` was sent, and there will be no reply: the deadline has passed, or the peer is gone.
    /// Whether the request was carried out is unknown.
    STRAIT_OUTCOME_UNKNOWN = 41,
    /// The other end dropped the request of `strait_call` without a reply.
    STRAIT_NOT_ANSWERED = 42,
    /// A signal has ended the wait, after `strait_signals_begin`. The function has done nothing and may be called
    /// again.
    STRAIT_SIGNALLED = 43,
    /// The other end of the data pipe was closed with a reason, by `strait_producer_abort` or `strait_consumer_abort`;
    /// the stream is incomplete. `strait_last_error` has the reason.
    STRAIT_ABORTED = 44,
}

use strait_status::*;

/// Numbers about the last failure in the thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_error {
    /// The status returned by the failed function; `STRAIT_OK` before the first failure in this thread.
    pub status: strait_status,
    /// The `errno` of a failure with `STRAIT_SYSTEM`; otherwise 0.
    pub os_error: c_int,
    /// The number that did not fit the limit; 0 if there is none. By `status`:
    ///
    /// * `STRAIT_MESSAGE_TOO_LARGE`: bytes of the message.
    /// * `STRAIT_BUFFER_TOO_SMALL`: required bytes of the buffer.
    /// * `STRAIT_TOO_MANY_HANDLES`: handles of the message.
    /// * `STRAIT_HANDLES_LOST`: descriptors sent with the message.
    /// * `STRAIT_WRONG_SERVER`: the uid of the user that listens in place of the expected user.
    /// * `STRAIT_ABORTED`: the reason; 2^32 − 1 if a panic of a Rust program dropped the producer.
    pub asked: u64,
    /// The limit; otherwise 0. By `status`:
    ///
    /// * `STRAIT_MESSAGE_TOO_LARGE`: the largest permitted number of bytes.
    /// * `STRAIT_TOO_MANY_HANDLES`: the largest permitted number of handles.
    /// * `STRAIT_HANDLES_LOST`: arrived descriptors.
    /// * `STRAIT_OUT_OF_RANGE`: bytes of the object.
    pub limit: u64,
}

/// Why a function of the C interface failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// An error of the Rust library.
    Strait(Error),
    /// An error whose text, with the name of the object concerned, is in [`TEXT`].
    Named(Error),
    /// An error of a send; the text is in the terms of a sender.
    NotSent(Error),
    /// An invalid argument; the text says which and why.
    Invalid(&'static str),
    /// A handle to be sent is no open descriptor, is given twice, or is of no known kind.
    BadHandle,
    /// A handle is the end over which the message would be sent.
    OwnChannel,
    /// A message has so many handles, more than [`strait::quota::MAX_HANDLES`].
    TooManyHandles(usize),
    /// The end was closed through another reference.
    Closed,
    /// The end was sent away, or is being sent, through another reference.
    Moved,
    /// The end to be sent has a user that sending cannot interrupt.
    InUse,
    /// A request was sent and there will be no reply, because of this error.
    OutcomeUnknown(Error),
    /// The other end dropped a request without a reply.
    NotAnswered,
    /// A panic was caught.
    Panicked,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            // Only closing an end interrupts waits here; moving an end is handled in `channel`.
            Error::Interrupted => Self::Closed,
            error => Self::Strait(error),
        }
    }
}

impl From<MeetError> for Failure {
    /// Keeps the text, in the terms of C, for the caller to record this failure at once.
    fn from(failed: MeetError) -> Self {
        if failed.error == Error::Interrupted {
            // `strait_listener_stop` ended the wait.
            return Self::Closed;
        }
        Self::of_attempt(failed.error, || failed.doing(), || failed.to_string())
    }
}

impl From<RegionError> for Failure {
    /// Keeps the text, in the terms of C, for the caller to record this failure at once.
    fn from(failed: RegionError) -> Self {
        Self::of_attempt(failed.error, || failed.doing(), || failed.to_string())
    }
}

impl From<SendError> for Failure {
    fn from(failed: SendError) -> Self {
        match failed.error {
            error @ (Error::WouldBlock | Error::TimedOut) => Self::NotSent(error),
            error => error.into(),
        }
    }
}

impl Failure {
    /// Keeps the text of an attempt that failed with `error`: `whole`, or, if the text of the error has names of the
    /// Rust API, what the attempt was `doing` and the text of the error in the terms of C.
    fn of_attempt(error: Error, doing: impl FnOnce() -> String, whole: impl FnOnce() -> String) -> Self {
        let in_c = Self::Strait(error).to_string();
        let text = if in_c == error.to_string() { whole() } else { format!("{}: {in_c}", doing()) };
        Self::named(error, text)
    }

    /// Keeps `text`, which names the event and the object, for the caller to record the failure at once.
    fn named(error: Error, text: String) -> Self {
        // While this thread ends there may be no place for the text any more; the status is right even then.
        let _ = TEXT.try_with(|kept| kept.replace(text));
        Self::Named(error)
    }

    /// Returns the status of the failure for C code.
    fn status(self) -> strait_status {
        match self {
            Self::Strait(error) => match error {
                Error::WouldBlock => STRAIT_WOULD_BLOCK,
                Error::TimedOut => STRAIT_TIMED_OUT,
                Error::Signalled => STRAIT_SIGNALLED,
                Error::PeerClosed => STRAIT_PEER_CLOSED,
                Error::MessageTooLarge { .. } => STRAIT_MESSAGE_TOO_LARGE,
                Error::TooManyHandles { .. } => STRAIT_TOO_MANY_HANDLES,
                Error::BufferTooSmall { .. } => STRAIT_BUFFER_TOO_SMALL,
                Error::BadHandle => STRAIT_BAD_HANDLE,
                Error::OwnChannel => STRAIT_OWN_CHANNEL,
                Error::InSet => STRAIT_IN_SET,
                Error::NotInSet => STRAIT_NOT_IN_SET,
                Error::HandlesLost { .. } => STRAIT_HANDLES_LOST,
                Error::NoDescriptors => STRAIT_NO_DESCRIPTORS,
                Error::NoMemory { .. } => STRAIT_NO_MEMORY,
                Error::LimitReached(_) => STRAIT_LIMIT_REACHED,
                Error::BadPeer(_) => STRAIT_BAD_PEER,
                Error::Refused(_) => STRAIT_REFUSED,
                Error::Forked => STRAIT_FORKED,
                Error::NotASocket(_) => STRAIT_NOT_A_SOCKET,
                Error::BadName => STRAIT_BAD_NAME,
                Error::NameTaken => STRAIT_NAME_TAKEN,
                Error::NobodyThere => STRAIT_NOBODY_THERE,
                Error::UnsafeDirectory(_) => STRAIT_UNSAFE_DIRECTORY,
                Error::WrongServer { .. } => STRAIT_WRONG_SERVER,
                Error::NoInvitation => STRAIT_NO_INVITATION,
                Error::NotActivated => STRAIT_NOT_ACTIVATED,
                Error::NoParent => STRAIT_NO_PARENT,
                Error::ParentTaken => STRAIT_PARENT_TAKEN,
                Error::System { .. } => STRAIT_SYSTEM,
                Error::ReadOnly => STRAIT_READ_ONLY,
                Error::NotSealed => STRAIT_NOT_SEALED,
                Error::StillMapped => STRAIT_STILL_MAPPED,
                Error::OutOfRange { .. } => STRAIT_OUT_OF_RANGE,
                Error::NotARegion(_) => STRAIT_NOT_A_REGION,
                Error::NotElements { .. } => STRAIT_NOT_ELEMENTS,
                Error::Aborted { .. } => STRAIT_ABORTED,
                Error::OutcomeUnknown => STRAIT_OUTCOME_UNKNOWN,
                Error::NotAnswered => STRAIT_NOT_ANSWERED,
                _ => STRAIT_OTHER,
            },
            Self::Named(error) | Self::NotSent(error) => Self::Strait(error).status(),
            Self::Invalid(_) => STRAIT_INVALID_ARGUMENT,
            Self::BadHandle => STRAIT_BAD_HANDLE,
            Self::OwnChannel => STRAIT_OWN_CHANNEL,
            Self::TooManyHandles(_) => STRAIT_TOO_MANY_HANDLES,
            Self::Closed => STRAIT_CLOSED,
            Self::Moved => STRAIT_MOVED,
            Self::InUse => STRAIT_IN_USE,
            Self::OutcomeUnknown(_) => STRAIT_OUTCOME_UNKNOWN,
            Self::NotAnswered => STRAIT_NOT_ANSWERED,
            Self::Panicked => STRAIT_PANICKED,
        }
    }

    /// Returns the fields `os_error`, `asked` and `limit` of [`strait_error`] for the failure.
    fn figures(self) -> (c_int, u64, u64) {
        match self {
            Self::Named(error) | Self::NotSent(error) => Self::Strait(error).figures(),
            Self::Strait(Error::System { code, .. }) => (code, 0, 0),
            Self::Strait(Error::MessageTooLarge { len, limit }) => (0, len as u64, limit as u64),
            Self::Strait(Error::TooManyHandles { count, limit }) => (0, count as u64, limit as u64),
            Self::Strait(Error::BufferTooSmall { needed }) => (0, needed as u64, 0),
            Self::Strait(Error::HandlesLost { sent, arrived }) => (0, sent as u64, arrived as u64),
            Self::Strait(Error::OutOfRange { len }) => (0, 0, len as u64),
            Self::Strait(Error::WrongServer { uid }) => (0, uid.into(), 0),
            Self::Strait(Error::Aborted { reason }) => (0, reason.into(), 0),
            Self::TooManyHandles(count) => (0, count as u64, strait::quota::MAX_HANDLES as u64),
            _ => (0, 0, 0),
        }
    }
}

/// Writes the event and the advice, in the terms of C.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Strait(error) => match error {
                Error::MessageTooLarge { len, limit } if len <= strait::MAX_MESSAGE => {
                    write!(
                        f,
                        "message of {len} bytes is over the limit of {limit}: split it, or raise \
                         strait_options.max_message"
                    )
                }
                Error::HandlesLost { sent, arrived } => write!(
                    f,
                    "{arrived} of {sent} descriptors of the message arrived, and were closed; the bytes of the message \
                     are intact: if strait_options.refuse_descriptors is on, switch it off; if strait_channel_peer_usage shows that \
                     the limit for this peer was reached, raise it by strait_set_limit; otherwise raise RLIMIT_NOFILE; \
                     then have the descriptors sent again"
                ),
                Error::LimitReached(resource) => write!(
                    f,
                    "limit reached: no more {resource} are held for this peer; nothing was lost: drop messages and \
                     ends that it sent, or raise the limit (strait_set_limit, strait_options.peer_memory), then call \
                     again"
                ),
                Error::WrongServer { uid } => write!(
                    f,
                    "user {uid} listens under this name, and another user is expected: if user {uid} is the right \
                     one, give it as strait_connect_options.server"
                ),
                Error::NoInvitation => write!(
                    f,
                    "no invitation on standard input: start this process by strait_invitation_spawn, and read nothing \
                     from standard input before the invitation"
                ),
                Error::NotSealed => write!(
                    f,
                    "the region is not sealed and its bytes may change: map it with STRAIT_MAP_READ and copy them, or \
                     have the process that made the region seal it"
                ),
                Error::NoParent => write!(f, "no channel to a parent: start this process by strait_spawn"),
                other => other.fmt(f),
            },
            Self::NotSent(error) => write!(
                f,
                "{}: the message was not sent{}, as the ring, the socket or a limit on what is in flight \
                 (strait_options.queue_messages, queue_bytes, queue_handles) was full, or an end was in transit, or \
                 another thread used this end; check that the peer receives, or give a later deadline",
                if error == Error::TimedOut { "timed out" } else { "would block" },
                if error == Error::TimedOut { " before the deadline" } else { "" },
            ),
            Self::Named(error) => {
                TEXT.try_with(|text| f.write_str(&text.borrow())).unwrap_or_else(|_| Self::Strait(error).fmt(f))
            }
            Self::Invalid(what) => write!(f, "invalid argument: {what}"),
            Self::BadHandle => {
                write!(
                    f,
                    "a handle in the message is no open descriptor, is there twice, or of no known kind: nothing was \
                     sent; give each open handle once, with its kind"
                )
            }
            Self::OwnChannel => Error::OwnChannel.fmt(f),
            Self::TooManyHandles(count) => Error::TooManyHandles { count, limit: strait::quota::MAX_HANDLES }.fmt(f),
            Self::Closed => {
                write!(f, "closed: this end was closed through another reference to it; release this reference")
            }
            Self::Moved => write!(
                f,
                "moved: this end was sent away through another reference to it, or was about to be; if it was sent, \
                 release this reference"
            ),
            Self::InUse => write!(
                f,
                "in use: what a call on the end has begun is still held (a view, a reservation, room or bytes of a \
                 data pipe), or another thread is using it in a way that sending cannot end; nothing was done: end \
                 that use, then call again"
            ),
            Self::OutcomeUnknown(error) => {
                let text = CallError::OutcomeUnknown(error).to_string();
                f.write_str(&text.replace(&error.to_string(), &Self::Strait(error).to_string()))
            }
            Self::NotAnswered => CallError::NotAnswered.fmt(f),
            Self::Panicked => {
                write!(f, "a defect of Strait was caught; please report what was written to standard error")
            }
        }
    }
}

thread_local! {
    static LAST: Cell<Option<Failure>> = const { Cell::new(None) };
    /// The text of the thread's last [`Failure::Named`].
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Records `failure` as the last failure of this thread, and returns the status.
#[cold]
pub(crate) fn failed(failure: Failure) -> strait_status {
    LAST.with(|last| last.set(Some(failure)));
    failure.status()
}

/// Runs the body of a function of the C interface. Turns a failure or a panic into a status, and records it as the last
/// failure of this thread.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> strait_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => STRAIT_OK,
        Ok(Err(failure)) => failed(failure),
        Err(payload) => {
            // Dropping the payload could panic once more.
            std::mem::forget(payload);
            failed(Failure::Panicked)
        }
    }
}

/// Runs the body of a function that returns no status. After a panic, returns `otherwise` and records
/// [`Failure::Panicked`].
#[inline]
pub(crate) fn call_or<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        std::mem::forget(payload);
        failed(Failure::Panicked);
        otherwise
    })
}

/// Returns the version of the library, such as `0.1.0`. The text is valid for the life of the process.
#[unsafe(no_mangle)]
pub extern "C" fn strait_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns a short description of a status. Never `NULL`; the text is valid for the life of the process.
#[unsafe(no_mangle)]
pub extern "C" fn strait_status_text(status: i32) -> *const c_char {
    let text = match status {
        0 => c"done",
        1 => c"would block",
        2 => c"timed out",
        3 => c"peer closed",
        4 => c"message too large",
        5 => c"too many handles",
        6 => c"buffer too small",
        7 => c"bad handle",
        8 => c"an end of a channel cannot be sent over that channel, nor to an end that lies in a message for it",
        9 => c"in a wait set already",
        10 => c"not in this wait set",
        11 => c"descriptors did not arrive",
        12 => c"no free descriptor",
        13 => c"no memory",
        14 => c"limit reached",
        15 => c"bad peer",
        16 => c"refused",
        17 => c"forked",
        18 => c"the descriptor is not a connected SOCK_SEQPACKET Unix socket",
        19 => c"the name is not valid",
        20 => c"the name is taken",
        21 => c"no process listens under this name",
        22 => c"the name directory cannot be used",
        23 => c"another user listens under this name",
        24 => c"no invitation on standard input",
        25 => c"the service manager has not passed this socket",
        26 => c"no channel to a parent",
        27 => c"the channel to the parent was already taken",
        28 => c"a system call was refused",
        29 => c"closed",
        30 => c"moved",
        31 => c"in use",
        32 => c"invalid argument",
        33 => c"a defect of Strait was caught",
        35 => c"the region is read-only",
        36 => c"the region is not sealed",
        37 => c"the region is still mapped for writing",
        38 => c"out of range",
        39 => c"the descriptor cannot become a region",
        40 => c"not whole elements of the data pipe",
        41 => c"the request was sent, and whether it was carried out is unknown",
        42 => c"the server dropped the request without a reply",
        43 => c"a signal has ended the wait",
        44 => c"the other end of the data pipe was closed with a reason",
        _ => c"an error without a number",
    };
    text.as_ptr()
}

/// Writes the numbers of the last failure in this thread to `out`. If no function has failed in this thread yet, the
/// status is `STRAIT_OK`. `out` must not be `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_last_error(out: *mut strait_error) {
    let last = LAST.get();
    let (os_error, asked, limit) = last.map_or((0, 0, 0), Failure::figures);
    let error = strait_error { status: last.map_or(STRAIT_OK, Failure::status), os_error, asked, limit };
    if !out.is_null() {
        // SAFETY: the caller may write a `strait_error` there.
        unsafe { out.write(error) };
    }
}

/// Writes into `buffer` what happened in the last failed function of this thread, and what to do. The text in the
/// buffer always ends with a zero byte, and is cut off at the capacity. Returns the number of bytes of the whole text
/// without the zero. With `capacity` 0, `buffer` may be `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_last_error_text(buffer: *mut c_char, capacity: usize) -> usize {
    struct Text {
        buffer: *mut u8,
        room: usize,
        len: usize,
    }
    impl Write for Text {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let fits = text.len().min(self.room.saturating_sub(self.len));
            if fits > 0 {
                // SAFETY: the caller's buffer has `room` bytes and one more; `len` bytes are already written.
                unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), self.buffer.add(self.len), fits) };
            }
            self.len += text.len();
            Ok(())
        }
    }
    let capacity = if buffer.is_null() { 0 } else { capacity };
    let mut text = Text { buffer: buffer.cast(), room: capacity.saturating_sub(1), len: 0 };
    call_or((), || {
        let written = match LAST.get() {
            Some(failure) => write!(text, "{failure}"),
            None => write!(text, "no call of this thread has failed"),
        };
        written.expect("it takes any text");
    });
    if capacity > 0 {
        // SAFETY: one byte was reserved for the zero.
        unsafe { buffer.add(text.len.min(text.room)).write(0) };
    }
    text.len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status() {
        let status = call(|| panic!("caught, as it should be"));
        assert_eq!(status, STRAIT_PANICKED);
        assert!(!call_or(false, || panic!("caught, as it should be")));
        let mut error = strait_error { status: STRAIT_OK, os_error: 0, asked: 0, limit: 0 };
        // SAFETY: the pointer leads to a local variable.
        unsafe { strait_last_error(&mut error) };
        assert_eq!(error.status, STRAIT_PANICKED);
    }

    #[test]
    fn every_status_has_its_own_text() {
        // SAFETY: the texts are valid for the life of the process.
        let text = |status| unsafe { std::ffi::CStr::from_ptr(strait_status_text(status)) };
        let other = text(STRAIT_OTHER as i32);
        let mut seen = std::collections::HashSet::new();
        for status in (0..=STRAIT_ABORTED as i32).filter(|status| *status != STRAIT_OTHER as i32) {
            assert!(text(status) != other && seen.insert(text(status)), "{status}");
        }
    }

    /// Shows that the texts for C code do not use names of the Rust API, also in the text of a failed call, in which
    /// the error is only a part.
    #[test]
    fn texts_name_what_c_has() {
        let errors = [
            Error::WouldBlock,
            Error::TimedOut,
            Error::PeerClosed,
            Error::MessageTooLarge { len: 2, limit: 1 },
            Error::TooManyHandles { count: 2, limit: 1 },
            Error::BufferTooSmall { needed: 1 },
            Error::BadHandle,
            Error::OwnChannel,
            Error::InSet,
            Error::NotInSet,
            Error::HandlesLost { sent: 2, arrived: 1 },
            Error::NoDescriptors,
            Error::NoMemory { call: "mmap" },
            Error::LimitReached(strait::quota::Resource::Memory),
            Error::BadPeer("a reason"),
            Error::Refused(strait::meet::Refusal::Busy),
            Error::Forked,
            Error::NotASocket("a stream socket"),
            Error::BadName,
            Error::NameTaken,
            Error::NobodyThere,
            Error::WrongServer { uid: 1 },
            Error::NoInvitation,
            Error::NotActivated,
            Error::NoParent,
            Error::ParentTaken,
            Error::System { call: "open", code: libc::EPERM },
            Error::ReadOnly,
            Error::NotSealed,
            Error::StillMapped,
            Error::OutOfRange { len: 1 },
            Error::NotARegion("a reason"),
            Error::NotElements { element: 4 },
            Error::Aborted { reason: 17 },
        ];
        for error in errors {
            let whole = || format!("accepting at name: {error}");
            let texts = [
                Failure::Strait(error).to_string(),
                Failure::OutcomeUnknown(error).to_string(),
                Failure::of_attempt(error, || "accepting at name".to_owned(), whole).to_string(),
            ];
            for text in texts {
                assert!(!text.contains("::") && !text.contains("(Limits") && !text.contains("raise Limits"), "{text}");
            }
        }
    }

    #[test]
    fn a_send_that_had_to_wait_names_what_can_be_full() {
        for error in [Error::WouldBlock, Error::TimedOut] {
            let text = Failure::from(SendError { error, handles: Vec::new() }).to_string();
            assert!(text.contains("strait_options.queue_messages") && text.contains("not sent"), "{text}");
        }
    }

    #[test]
    fn a_call_without_a_reply_is_not_to_be_repeated() {
        let text = Failure::OutcomeUnknown(Error::TimedOut).to_string();
        assert!(text.contains("do not repeat the call") && !text.contains("call again"), "{text}");
    }
}
