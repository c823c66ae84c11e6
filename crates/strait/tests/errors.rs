//! Tests of the conversions between the error types of the library.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use strait::call::{CallEnd, CallError};
use strait::wait::{Conditions, Reason, Traps};
use strait::{Channel, Deadline, Error, Outgoing, SendError};

/// Returns the lines of the list of the public interface of this crate, split into the path of an item and its text.
fn interface() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("../../../docs/public-api.txt").lines().filter(|line| line.starts_with("strait::"));
    lines.filter_map(|line| line.split_once(": "))
}

#[test]
fn every_error_converts_to_error_and_to_an_error_of_io() {
    let listed: BTreeSet<_> = interface().collect();
    let errors = listed.iter().filter(|(_, text)| *text == "impl Error").map(|(path, _)| *path);
    let errors: Vec<_> = errors.filter(|path| *path != "strait::Error").collect();
    assert!(errors.len() >= 8, "{errors:?}");
    let converts = |path: &&&str, target: &str| {
        let name = path.rsplit("::").next().unwrap();
        listed.iter().any(|(of, text)| {
            let from = text.strip_prefix("impl").and_then(|text| text.split_once("From<"));
            let to = from.and_then(|(_, rest)| rest.strip_prefix(name)?.split_once("> for "));
            of == *path && to.is_some_and(|(_, to)| to == target)
        })
    };
    for target in ["Error", "std::io::Error"] {
        let lacking: Vec<_> = errors.iter().filter(|path| !converts(path, target)).collect();
        assert!(lacking.is_empty(), "these do not convert to {target}: {lacking:?}");
    }
}

#[test]
fn the_error_of_a_call_keeps_whether_the_request_was_sent() {
    let not_sent = || CallError::NotSent(SendError { error: Error::PeerClosed, handles: Vec::new() });
    assert_eq!(Error::from(not_sent()), Error::PeerClosed);
    assert_eq!(io::Error::from(not_sent()).kind(), io::ErrorKind::BrokenPipe);
    for reason in [Error::TimedOut, Error::PeerClosed, Error::Signalled, Error::WouldBlock] {
        let unknown = Error::from(CallError::OutcomeUnknown(reason));
        assert_eq!(unknown, Error::OutcomeUnknown);
        assert!(!unknown.is_temporary());
        let failed = io::Error::from(CallError::OutcomeUnknown(reason));
        assert_ne!(failed.kind(), io::ErrorKind::Interrupted);
        let inner = failed.get_ref().and_then(|inner| inner.downcast_ref::<CallError>());
        assert!(matches!(inner, Some(CallError::OutcomeUnknown(error)) if *error == reason));
    }
    assert_eq!(io::Error::from(CallError::OutcomeUnknown(Error::TimedOut)).kind(), io::ErrorKind::TimedOut);
}

/// Calls, and turns the error of the call into the error of the library.
fn ask(caller: &CallEnd, request: Outgoing<'_>) -> Result<(), Error> {
    caller.call(request, Deadline::after(Duration::from_millis(1)))?;
    Ok(())
}

#[test]
fn the_handles_of_a_request_that_was_not_sent_are_closed_with_its_error() {
    let (one, other) = Channel::pair().unwrap();
    let caller = CallEnd::over(one);
    let (end, far) = Channel::pair().unwrap();
    assert_eq!(ask(&caller, Outgoing::new(b"nobody answers")), Err(Error::OutcomeUnknown));
    drop(other);
    assert_eq!(ask(&caller, Outgoing::new(b"nobody is there").handle(end)), Err(Error::PeerClosed));
    assert!(far.is_peer_closed());
}

#[test]
fn the_error_of_a_trap_has_its_reason() {
    let (one, other) = Channel::pair().unwrap();
    let traps = Traps::new().unwrap();
    let arm = |conditions| -> Result<(), Error> {
        traps.arm(&other, conditions, drop)?;
        Ok(())
    };
    assert_eq!(arm(Conditions::new().room()), Err(Error::NotArmed));
    assert_eq!(arm(Conditions::new().messages(1)), Ok(()));
    assert_eq!(arm(Conditions::new().messages(1)), Err(Error::InSet));
    let failed = traps.arm(&other, Conditions::new().messages(1), drop).unwrap_err();
    assert_eq!(failed.reason, Reason::Failed(Error::InSet));
    assert!(io::Error::from(failed).get_ref().is_some_and(|inner| inner.is::<Error>()));
    drop(one);
}
