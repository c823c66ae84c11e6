//! The exceptions: each error of the library is a Python class of `strait._errors`.

use pyo3::prelude::*;
use pyo3::types::PyType;
use strait::Error;
use strait::meet::MeetError;
use strait::region::RegionError;

/// The errno for which `NoDescriptors` stands.
const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();

/// Returns the name of the class for an error.
fn class(error: Error) -> &'static str {
    match error {
        Error::WouldBlock => "WouldBlock",
        Error::TimedOut => "TimedOut",
        Error::Interrupted => "Interrupted",
        Error::PeerClosed => "PeerClosed",
        Error::MessageTooLarge { .. } => "MessageTooLarge",
        Error::TooManyHandles { .. } => "TooManyHandles",
        Error::BufferTooSmall { .. } => "BufferTooSmall",
        Error::BadHandle => "BadHandle",
        Error::OwnChannel => "OwnChannel",
        Error::ReadOnly => "ReadOnly",
        Error::NotSealed => "NotSealed",
        Error::StillMapped => "StillMapped",
        Error::OutOfRange { .. } => "OutOfRange",
        Error::NotElements { .. } => "NotElements",
        Error::Finished => "Finished",
        Error::Aborted { .. } => "Aborted",
        Error::NotARegion(_) => "NotARegion",
        Error::OutcomeUnknown => "OutcomeUnknown",
        Error::NotAnswered => "NotAnswered",
        Error::HandlesLost { .. } => "HandlesLost",
        Error::NoDescriptors => "NoDescriptors",
        Error::NoMemory { .. } => "NoMemory",
        Error::LimitReached(_) => "LimitReached",
        Error::BadPeer(_) => "BadPeer",
        Error::Refused(_) => "Refused",
        Error::Forked => "Forked",
        Error::NotASocket(_) => "NotASocket",
        Error::BadName => "BadName",
        Error::NameTaken => "NameTaken",
        Error::NobodyThere => "NobodyThere",
        Error::UnsafeDirectory(_) => "UnsafeDirectory",
        Error::WrongServer { .. } => "WrongServer",
        Error::NoParent | Error::ParentTaken => "NoParent",
        Error::NoInvitation => "NoInvitation",
        Error::System { .. } => "System",
        _ => "StraitError",
    }
}

/// Returns an exception of the named class of `strait._errors`.
pub(crate) fn named(py: Python<'_>, class: &str, text: String) -> PyErr {
    let class = py.import("strait._errors").and_then(|module| module.getattr(class));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, (text,)),
        Err(error) => error,
    }
}

/// Returns the exception of an error of the library, with `text`.
fn with_text(py: Python<'_>, error: Error, text: String) -> PyErr {
    let exception = named(py, class(error), text);
    let value = exception.value(py);
    let set = match error {
        Error::BufferTooSmall { needed } => value.setattr("needed", needed),
        Error::NoDescriptors => value.setattr("errno", EMFILE),
        Error::System { code, .. } => value.setattr("errno", code),
        Error::Refused(why) => value.setattr("why", why.to_string()),
        Error::Aborted { reason } => value.setattr("reason", reason),
        _ => Ok(()),
    };
    set.err().unwrap_or(exception)
}

/// Returns the exception of an error of the library.
pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    with_text(py, error, error.to_string())
}

/// Returns the exception of a failed attempt to listen, to connect, or to take the channel to the parent.
pub(crate) fn raise_meeting(py: Python<'_>, error: &MeetError) -> PyErr {
    with_text(py, error.error, error.to_string())
}

/// Returns the exception of a call on a region.
pub(crate) fn raise_region(py: Python<'_>, error: &RegionError) -> PyErr {
    with_text(py, error.error, error.to_string())
}

/// Returns the exception for a closed peer, with the reason from the peer.
pub(crate) fn peer_closed(py: Python<'_>, reason: Option<u32>) -> PyErr {
    let exception = raise(py, Error::PeerClosed);
    match exception.value(py).setattr("reason", reason.unwrap_or(0)) {
        Ok(()) => exception,
        Err(error) => error,
    }
}

/// Returns whether an exception is of the named class of `strait._errors`.
pub(crate) fn is(py: Python<'_>, exception: &PyErr, class: &str) -> bool {
    let class = py.import("strait._errors").and_then(|module| module.getattr(class));
    class.is_ok_and(|class| exception.matches(py, class).unwrap_or(false))
}
