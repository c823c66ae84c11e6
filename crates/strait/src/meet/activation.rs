//! Sockets made by a service manager before this process was started (`sd_listen_fds(3)`). The sockets are the
//! descriptors from 3 on. `LISTEN_FDS` is the number of sockets, `LISTEN_PID` the process for which the sockets are,
//! and `LISTEN_FDNAMES` the names of the sockets.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Mutex;

use crate::error::Error;
use crate::os::fork::PerProcess;
use crate::os::process::spawn;
use crate::os::{names, socket};
use crate::sync::unpoisoned;

/// The number of the first descriptor that a service manager passes to a process; the others have the next numbers.
const FIRST: RawFd = 3;

/// The descriptor numbers of the service manager's sockets that this process has already taken for a listener.
static TAKEN: PerProcess<Mutex<Vec<RawFd>>> = PerProcess::new(Mutex::default);

/// Takes a listening socket that a service manager passed to this process: the socket of the name `name`, or the only
/// socket if `name` is `None`. Fails with [`Error::NotActivated`] if there is not exactly one such socket, or if the
/// socket was taken before.
pub(super) fn take(name: Option<&str>) -> Result<OwnedFd, Error> {
    let variable = |name| std::env::var(name).ok();
    let passed = passed(variable("LISTEN_PID"), variable("LISTEN_FDS"), variable("LISTEN_FDNAMES"), std::process::id());
    let fits: Vec<_> =
        passed.iter().filter(|(_, passed)| name.is_none_or(|name| name == passed)).map(|(fd, _)| *fd).collect();
    let [number] = fits[..] else { return Err(Error::NotActivated) };
    let mut taken = unpoisoned(TAKEN.get());
    if taken.contains(&number) || !spawn::is_listening(number) {
        return Err(Error::NotActivated);
    }
    taken.push(number);
    let socket = spawn::take_inherited(number);
    debug_assert!(names::is_listening(socket.as_fd()));
    socket::close_on_exec(&socket)?;
    Ok(socket)
}

/// Returns the number and the name of each descriptor that a service manager passed to the process whose pid is `own`.
/// `pid`, `count` and `names` are the values of the environment variables `LISTEN_PID`, `LISTEN_FDS` and
/// `LISTEN_FDNAMES`. The result is empty if the variables are meant for another process.
fn passed(pid: Option<String>, count: Option<String>, names: Option<String>, own: u32) -> Vec<(RawFd, String)> {
    if pid.and_then(|pid| pid.parse().ok()) != Some(own) {
        return Vec::new();
    }
    let count = count.and_then(|count| count.parse::<RawFd>().ok()).unwrap_or(0).clamp(0, 1 << 16);
    let names = names.unwrap_or_default();
    let mut names = names.split(':');
    (FIRST..FIRST + count).map(|fd| (fd, names.next().unwrap_or_default().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_passed_is_for_this_process_only() {
        let given = |text: &str| Some(text.to_owned());
        assert_eq!(passed(given("7"), given("2"), given("a:b"), 7), [(3, "a".to_owned()), (4, "b".to_owned())]);
        assert_eq!(passed(given("7"), given("1"), None, 7), [(3, String::new())]);
        assert!(passed(given("8"), given("2"), None, 7).is_empty());
        assert!(passed(None, given("2"), None, 7).is_empty());
        assert!(passed(given("7"), given("-1"), None, 7).is_empty());
        assert!(passed(given("7"), None, None, 7).is_empty());
    }
}
