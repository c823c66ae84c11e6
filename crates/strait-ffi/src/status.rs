//! What calls return, and what can be asked about a failure afterwards.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use strait::{CallError, Error, SendError};

/// What a call returns: `STRAIT_OK`, or why it failed. `strait_last_error_text` says what to do about it.
///
/// A failed call has changed nothing, unless it says otherwise: what it was given is still the caller's.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum strait_status {
    /// Done.
    STRAIT_OK = 0,
    /// It would have to wait, and the deadline was `STRAIT_NOW`.
    STRAIT_WOULD_BLOCK = 1,
    /// The deadline passed first.
    STRAIT_TIMED_OUT = 2,
    /// The other end was closed or its process died. When receiving: and everything it had sent was received.
    STRAIT_PEER_CLOSED = 3,
    /// The message is longer than this end's limit.
    STRAIT_MESSAGE_TOO_LARGE = 4,
    /// More handles in one message than this end's limit.
    STRAIT_TOO_MANY_HANDLES = 5,
    /// The buffer is too small for the next message, which stays the next one.
    STRAIT_BUFFER_TOO_SMALL = 6,
    /// A handle to be sent is not an open descriptor, is there twice, or is of no known kind.
    STRAIT_BAD_HANDLE = 7,
    /// An end of a channel cannot be sent over that channel.
    STRAIT_OWN_CHANNEL = 8,
    /// The channel is in a wait set already.
    STRAIT_IN_SET = 9,
    /// The channel is not in this wait set.
    STRAIT_NOT_IN_SET = 10,
    /// Descriptors of this message did not arrive; its bytes did.
    STRAIT_HANDLES_LOST = 11,
    /// This process has no free descriptor.
    STRAIT_NO_DESCRIPTORS = 12,
    /// The kernel has no memory for it.
    STRAIT_NO_MEMORY = 13,
    /// As much is held for the peer as may be: see `strait_set_limit`.
    STRAIT_LIMIT_REACHED = 14,
    /// The peer broke the protocol; the channel is at an end.
    STRAIT_BAD_PEER = 15,
    /// One of the two sides does not want the other.
    STRAIT_REFUSED = 16,
    /// This process is the child of a `fork` without `exec`; the channel belongs to its parent.
    STRAIT_FORKED = 17,
    /// Not a connected `SOCK_SEQPACKET` Unix socket.
    STRAIT_NOT_A_SOCKET = 18,
    /// Not a name: 1 to 64 letters, digits, dots, dashes and underscores, the first of them no dot.
    STRAIT_BAD_NAME = 19,
    /// Somebody listens under this name.
    STRAIT_NAME_TAKEN = 20,
    /// Nobody listens under this name.
    STRAIT_NOBODY_THERE = 21,
    /// Others could change what is in the directory of names.
    STRAIT_UNSAFE_DIRECTORY = 22,
    /// Whoever listens under this name is another user than the one expected.
    STRAIT_WRONG_SERVER = 23,
    /// There was no invitation on standard input.
    STRAIT_NO_INVITATION = 24,
    /// The service manager passed no such listening socket.
    STRAIT_NOT_ACTIVATED = 25,
    /// This process was not started with a channel.
    STRAIT_NO_PARENT = 26,
    /// The channel to the parent was taken before.
    STRAIT_PARENT_TAKEN = 27,
    /// A system call was refused; `strait_last_error` has its `errno`.
    STRAIT_SYSTEM = 28,
    /// This end was closed, through another reference to it.
    STRAIT_CLOSED = 29,
    /// This end was sent away in a message, or is just being sent, through another reference to it; or was about to, which ended the call.
    STRAIT_MOVED = 30,
    /// The end to be sent is in use: a view or a reservation of it is still held, or it and the end that it is to be sent over are just
    /// being sent over each other. Of a data pipe: room or bytes are held that a call has begun with.
    STRAIT_IN_USE = 31,
    /// An argument that cannot be meant: a null pointer, a number out of range, bytes that are not zero where they must be.
    STRAIT_INVALID_ARGUMENT = 32,
    /// A defect of Strait, which was caught at the border of the library. What the call did until then is not known.
    STRAIT_PANICKED = 33,
    /// An error that this build of the C library has no number for; it has a text.
    STRAIT_OTHER = 34,
    /// The region, or this handle of it, cannot be written to.
    STRAIT_READ_ONLY = 35,
    /// The region is not sealed, so it could change while it is read.
    STRAIT_NOT_SEALED = 36,
    /// The region is mapped for writing, here or elsewhere, so it cannot be sealed.
    STRAIT_STILL_MAPPED = 37,
    /// There are fewer bytes than that.
    STRAIT_OUT_OF_RANGE = 38,
    /// The descriptor is no region.
    STRAIT_NOT_A_REGION = 39,
    /// Not whole elements of the data pipe.
    STRAIT_NOT_ELEMENTS = 40,
    /// A call was sent, and there will be no reply: the deadline has passed, or the peer is gone. Whether it was carried out is unknown.
    STRAIT_OUTCOME_UNKNOWN = 41,
    /// A call was dropped by the other end without an answer.
    STRAIT_NOT_ANSWERED = 42,
}

use strait_status::*;

/// Figures that go with the last failure of this thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_error {
    /// What the call returned.
    pub status: strait_status,
    /// The `errno` of `STRAIT_SYSTEM`; otherwise 0.
    pub os_error: c_int,
    /// What was asked for: the bytes of a message that is too large, or that the buffer has to have room for; the handles that
    /// are too many, or that were sent with a message that lost some; the user that listens in place of the one expected.
    /// Otherwise 0.
    pub asked: u64,
    /// The limit that it is over: bytes, or handles; of lost handles, how many arrived; of what is out
    /// of range, how many bytes there are. Otherwise 0.
    pub limit: u64,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// As the library says.
    Strait(Error),
    /// What is wrong with the arguments.
    Invalid(&'static str),
    /// A handle that is none.
    BadHandle,
    OwnChannel,
    TooManyHandles(usize),
    Closed,
    Moved,
    InUse,
    OutcomeUnknown(Error),
    NotAnswered,
    Panicked,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            // Nobody else does that.
            Error::Interrupted => Self::Closed,
            error => Self::Strait(error),
        }
    }
}

impl From<SendError> for Failure {
    fn from(failed: SendError) -> Self {
        failed.error.into()
    }
}

impl Failure {
    fn status(self) -> strait_status {
        match self {
            Self::Strait(error) => match error {
                Error::WouldBlock => STRAIT_WOULD_BLOCK,
                Error::TimedOut => STRAIT_TIMED_OUT,
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
                Error::NotASocket => STRAIT_NOT_A_SOCKET,
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
                _ => STRAIT_OTHER,
            },
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

    /// The `errno`, what was asked for, and the limit.
    fn figures(self) -> (c_int, u64, u64) {
        match self {
            Self::Strait(Error::System { code, .. }) => (code, 0, 0),
            Self::Strait(Error::MessageTooLarge { len, limit }) => (0, len as u64, limit as u64),
            Self::Strait(Error::TooManyHandles { count, limit }) => (0, count as u64, limit as u64),
            Self::Strait(Error::BufferTooSmall { needed }) => (0, needed as u64, 0),
            Self::Strait(Error::HandlesLost { sent, arrived }) => (0, sent as u64, arrived as u64),
            Self::Strait(Error::OutOfRange { len }) => (0, 0, len as u64),
            Self::Strait(Error::WrongServer { uid }) => (0, uid.into(), 0),
            Self::TooManyHandles(count) => (0, count as u64, strait::MAX_HANDLES as u64),
            _ => (0, 0, 0),
        }
    }
}

/// What to do, in the terms of C.
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
                    "{arrived} of {sent} descriptors arrived, and were closed: this process had no more free ones \
                     (RLIMIT_NOFILE), holds as many for this peer as it may (strait_set_limit), or takes none \
                     (strait_options.refuse_descriptors); the bytes of the message are intact: raise that limit, and \
                     have the descriptors sent again"
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
            Self::Invalid(what) => write!(f, "invalid argument: {what}"),
            Self::BadHandle => {
                write!(
                    f,
                    "a handle in the message is no open descriptor, is there twice, or of no known kind: nothing was \
                     sent; give each open handle once, with its kind"
                )
            }
            Self::OwnChannel => Error::OwnChannel.fmt(f),
            Self::TooManyHandles(count) => Error::TooManyHandles { count, limit: strait::MAX_HANDLES }.fmt(f),
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
            Self::OutcomeUnknown(error) => CallError::OutcomeUnknown(error).fmt(f),
            Self::NotAnswered => CallError::NotAnswered.fmt(f),
            Self::Panicked => {
                write!(f, "a defect of Strait was caught; please report what was written to standard error")
            }
        }
    }
}

thread_local! {
    static LAST: Cell<Option<Failure>> = const { Cell::new(None) };
}

#[cold]
pub(crate) fn failed(failure: Failure) -> strait_status {
    LAST.with(|last| last.set(Some(failure)));
    failure.status()
}

/// The body of a call: no panic leaves it.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> strait_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => STRAIT_OK,
        Ok(Err(failure)) => failed(failure),
        Err(payload) => {
            // Dropping it could panic once more.
            std::mem::forget(payload);
            failed(Failure::Panicked)
        }
    }
}

/// The same for calls that have no status: `otherwise` in place of a panic.
#[inline]
pub(crate) fn call_or<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        std::mem::forget(payload);
        failed(Failure::Panicked);
        otherwise
    })
}

/// The version of the library, such as `0.1.0`. The text lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn strait_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// What a status means, in a few words. Never `NULL`; the text lives for ever.
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
        8 => c"an end of a channel cannot be sent over that channel",
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
        _ => c"an error without a number",
    };
    text.as_ptr()
}

/// The figures of the last call of this thread that failed. With no failure yet, the status is `STRAIT_OK`. `out` must not be
/// `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_last_error(out: *mut strait_error) {
    let last = LAST.get();
    let (os_error, asked, limit) = last.map_or((0, 0, 0), Failure::figures);
    let error = strait_error { status: last.map_or(STRAIT_OK, Failure::status), os_error, asked, limit };
    if !out.is_null() {
        // SAFETY: the caller's, to write one of these to.
        unsafe { out.write(error) };
    }
}

/// Writes what happened in the last call of this thread that failed, and what to do about it, into `buffer`, whose last byte
/// is always a zero; what does not fit is left out. Returns the bytes of the whole text without the zero. With `capacity` 0,
/// `buffer` may be `NULL`.
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
                // SAFETY: the caller's buffer has `room` bytes and one more, of which `len` are written.
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
        // SAFETY: one byte was left for it.
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
        // SAFETY: ours.
        unsafe { strait_last_error(&mut error) };
        assert_eq!(error.status, STRAIT_PANICKED);
    }

    #[test]
    fn every_status_has_its_own_text() {
        // SAFETY: they live for ever.
        let text = |status| unsafe { std::ffi::CStr::from_ptr(strait_status_text(status)) };
        let other = text(STRAIT_OTHER as i32);
        let mut seen = std::collections::HashSet::new();
        for status in (0..=STRAIT_NOT_ANSWERED as i32).filter(|status| *status != STRAIT_OTHER as i32) {
            assert!(text(status) != other && seen.insert(text(status)), "{status}");
        }
    }

    /// Those who read a text of C's must not be told of names of Rust's.
    #[test]
    fn texts_name_what_c_has() {
        let errors = [
            Error::WouldBlock,
            Error::MessageTooLarge { len: 2, limit: 1 },
            Error::TooManyHandles { count: 2, limit: 1 },
            Error::BufferTooSmall { needed: 1 },
            Error::HandlesLost { sent: 2, arrived: 1 },
            Error::NoDescriptors,
            Error::LimitReached(strait::Resource::Memory),
            Error::Forked,
            Error::NotASocket,
            Error::WrongServer { uid: 1 },
            Error::NoInvitation,
            Error::NotActivated,
            Error::NoParent,
            Error::ParentTaken,
            Error::ReadOnly,
            Error::NotSealed,
            Error::StillMapped,
            Error::OutOfRange { len: 1 },
        ];
        for error in errors {
            let text = Failure::Strait(error).to_string();
            assert!(!text.contains("::") && !text.contains("(Limits"), "{text}");
        }
    }

    #[test]
    fn a_call_without_a_reply_is_not_to_be_repeated() {
        let text = Failure::OutcomeUnknown(Error::TimedOut).to_string();
        assert!(text.contains("do not repeat the call") && !text.contains("call again"), "{text}");
    }
}
