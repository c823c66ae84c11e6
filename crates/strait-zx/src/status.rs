//! Statuses: the results of functions of the C interface.

use std::ffi::CStr;

use crate::abi::zx_status_t;

/// The error of a function, as one of the numbers in `zircon/errors.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(zx_status_t);

/// The result inside of a function: a value, or the error that the function returns.
pub(crate) type Result<T> = std::result::Result<T, Status>;

/// Converts a result to the number that C code gets.
pub(crate) fn to_c(result: Result<()>) -> zx_status_t {
    match result {
        Ok(()) => codes::ZX_OK,
        Err(Status(code)) => code,
    }
}

impl Status {
    /// Returns the number of the error.
    pub(crate) fn code(self) -> zx_status_t {
        self.0
    }
}

macro_rules! statuses {
    ($($short:ident $name:ident $value:literal;)*) => {
        /// The numbers of the statuses.
        #[allow(unreachable_pub, reason = "the crate gives it out")]
        pub mod codes {
            #![allow(unreachable_pub, reason = "the crate gives them out by name")]
            use crate::abi::zx_status_t;

            /// Success.
            pub const ZX_OK: zx_status_t = 0;
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: zx_status_t = $value;
            )*
        }
        impl Status {
            $(#[allow(dead_code)] pub(crate) const $short: Status = Status($value);)*
        }
        /// Returns the name of a status, such as `ZX_ERR_TIMED_OUT`; `(UNKNOWN)` if there is none.
        pub(crate) fn name(code: zx_status_t) -> &'static CStr {
            let name = match code {
                0 => concat!("ZX_OK", "\0"),
                $($value => concat!(stringify!($name), "\0"),)*
                _ => concat!("(UNKNOWN)", "\0"),
            };
            CStr::from_bytes_with_nul(name.as_bytes()).expect("it ends with its only zero")
        }
    };
}

statuses! {
    INTERNAL ZX_ERR_INTERNAL -1;
    NOT_SUPPORTED ZX_ERR_NOT_SUPPORTED -2;
    NO_RESOURCES ZX_ERR_NO_RESOURCES -3;
    NO_MEMORY ZX_ERR_NO_MEMORY -4;
    INTERRUPTED_RETRY ZX_ERR_INTERRUPTED_RETRY -6;
    INVALID_ARGS ZX_ERR_INVALID_ARGS -10;
    BAD_HANDLE ZX_ERR_BAD_HANDLE -11;
    WRONG_TYPE ZX_ERR_WRONG_TYPE -12;
    BAD_SYSCALL ZX_ERR_BAD_SYSCALL -13;
    OUT_OF_RANGE ZX_ERR_OUT_OF_RANGE -14;
    BUFFER_TOO_SMALL ZX_ERR_BUFFER_TOO_SMALL -15;
    BAD_STATE ZX_ERR_BAD_STATE -20;
    TIMED_OUT ZX_ERR_TIMED_OUT -21;
    SHOULD_WAIT ZX_ERR_SHOULD_WAIT -22;
    CANCELED ZX_ERR_CANCELED -23;
    PEER_CLOSED ZX_ERR_PEER_CLOSED -24;
    NOT_FOUND ZX_ERR_NOT_FOUND -25;
    ALREADY_EXISTS ZX_ERR_ALREADY_EXISTS -26;
    ALREADY_BOUND ZX_ERR_ALREADY_BOUND -27;
    UNAVAILABLE ZX_ERR_UNAVAILABLE -28;
    ACCESS_DENIED ZX_ERR_ACCESS_DENIED -30;
    IO ZX_ERR_IO -40;
    IO_REFUSED ZX_ERR_IO_REFUSED -41;
    IO_DATA_INTEGRITY ZX_ERR_IO_DATA_INTEGRITY -42;
    IO_DATA_LOSS ZX_ERR_IO_DATA_LOSS -43;
    IO_NOT_PRESENT ZX_ERR_IO_NOT_PRESENT -44;
    IO_OVERRUN ZX_ERR_IO_OVERRUN -45;
    IO_MISSED_DEADLINE ZX_ERR_IO_MISSED_DEADLINE -46;
    IO_INVALID ZX_ERR_IO_INVALID -47;
    BAD_PATH ZX_ERR_BAD_PATH -50;
    NOT_DIR ZX_ERR_NOT_DIR -51;
    NOT_FILE ZX_ERR_NOT_FILE -52;
    FILE_BIG ZX_ERR_FILE_BIG -53;
    NO_SPACE ZX_ERR_NO_SPACE -54;
    NOT_EMPTY ZX_ERR_NOT_EMPTY -55;
    STOP ZX_ERR_STOP -60;
    NEXT ZX_ERR_NEXT -61;
    ASYNC ZX_ERR_ASYNC -62;
    PROTOCOL_NOT_SUPPORTED ZX_ERR_PROTOCOL_NOT_SUPPORTED -70;
    ADDRESS_UNREACHABLE ZX_ERR_ADDRESS_UNREACHABLE -71;
    ADDRESS_IN_USE ZX_ERR_ADDRESS_IN_USE -72;
    NOT_CONNECTED ZX_ERR_NOT_CONNECTED -73;
    CONNECTION_REFUSED ZX_ERR_CONNECTION_REFUSED -74;
    CONNECTION_RESET ZX_ERR_CONNECTION_RESET -75;
    CONNECTION_ABORTED ZX_ERR_CONNECTION_ABORTED -76;
}

/// Converts an error of Strait to the status that a caller of Zircon expects.
impl From<strait::Error> for Status {
    fn from(error: strait::Error) -> Self {
        use strait::Error;
        match error {
            Error::WouldBlock | Error::TimedOut => Self::SHOULD_WAIT,
            // A peer that breaks the protocol, or has no common version, is as good as gone.
            Error::PeerClosed | Error::BadPeer(_) | Error::Refused(_) => Self::PEER_CLOSED,
            Error::OwnChannel => Self::NOT_SUPPORTED,
            Error::BadHandle => Self::BAD_HANDLE,
            Error::NoMemory { .. } => Self::NO_MEMORY,
            Error::NoDescriptors | Error::LimitReached(_) | Error::HandlesLost { .. } => Self::NO_RESOURCES,
            Error::Forked => Self::BAD_STATE,
            Error::NotASocket(_) => Self::INVALID_ARGS,
            Error::NoParent => Self::NOT_FOUND,
            Error::ParentTaken => Self::ALREADY_BOUND,
            _ => Self::INTERNAL,
        }
    }
}

/// Converts an error of the kernel to a status.
impl From<rustix::io::Errno> for Status {
    fn from(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match errno {
            Errno::NOMEM => Self::NO_MEMORY,
            Errno::MFILE | Errno::NFILE => Self::NO_RESOURCES,
            Errno::BADF => Self::BAD_HANDLE,
            Errno::FBIG | Errno::NOSPC => Self::NO_MEMORY,
            Errno::PERM | Errno::ACCESS => Self::ACCESS_DENIED,
            _ => Self::INTERNAL,
        }
    }
}
