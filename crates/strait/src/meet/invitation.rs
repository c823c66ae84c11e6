//! Invitations: each is a token with which one process can connect, once.

use std::fmt;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::connector::Connector;
use super::listener::ListenerState;
use super::meet_error::{Attempt, MeetError};
use super::name;
use crate::channel::Channel;
use crate::channel::options::Options;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::names::own_user;
use crate::os::{self, socket};
use crate::sync::unpoisoned;

/// The first word of the invitation line. An invited process reads the line from its standard input.
const WORD: &str = "strait-invitation";

/// The most bytes in an invitation line: the line holds the token and the path of the listener.
const LONGEST: usize = 4352;

/// The tokens (random numbers) of a listener's invitations, neither used nor revoked yet. A token whose time is over is
/// removed when the listener next looks for a token.
#[derive(Default)]
pub(super) struct Tokens(Mutex<Vec<Token>>);

struct Token {
    invitation: u64,
    token: u128,
    until: Option<Instant>,
}

impl Drop for Token {
    fn drop(&mut self) {
        os::wipe(&mut self.token);
    }
}

impl Tokens {
    fn add(&self, invitation: u64, token: u128, valid_for: Duration) {
        let until = Instant::now().checked_add(valid_for);
        unpoisoned(&self.0).push(Token { invitation, token, until });
    }

    /// Uses up the token `token`: removes the token, and returns the number of its invitation. `None` if no invitation
    /// of the listener has the token, or the invitation's time is over. The search takes the same time for every token,
    /// so that a peer cannot find a valid token bit by bit.
    pub(super) fn redeem(&self, token: u128) -> Option<u64> {
        let mut tokens = unpoisoned(&self.0);
        let now = Instant::now();
        tokens.retain(|known| known.until.is_none_or(|until| now < until));
        let mut found = None;
        for (location, known) in tokens.iter().enumerate() {
            // The comparison branches on no single bit of the token.
            if std::hint::black_box(known.token ^ token) == 0 {
                found = Some(location);
            }
        }
        Some(tokens.swap_remove(found?).invitation)
    }

    pub(super) fn revoke(&self, invitation: u64) {
        unpoisoned(&self.0).retain(|known| known.invitation != invitation);
    }
}

/// A one-time token that lets one process connect to a listener.
///
/// The invited process gets the listener's path and a token of 128 random bits through its standard input. The token is
/// never in arguments or environment variables, where other processes could read it. The process connects with
/// [`invited`]. A wrong, used or late token is refused, and both sides get the reason. Dropping the invitation revokes
/// the token. After the listener was dropped, its invitations let in no process.
///
/// ```no_run
/// use std::process::Command;
/// use std::time::Duration;
/// use strait::Listener;
///
/// let listener = Listener::builder().invited_only().bind("editor")?;
/// let invitation = listener.invite(Duration::from_secs(10))?;
/// let mut child = invitation.spawn(&mut Command::new("renderer"))?;
/// let channel = invitation.accept(Duration::from_secs(10))?;
/// channel.send(b"work")?;
/// # child.wait().expect("a child");
/// # Ok::<(), strait::Error>(())
/// ```
pub struct Invitation {
    listener: Arc<ListenerState>,
    number: u64,
    token: u128,
}

impl fmt::Debug for Invitation {
    /// Formats the number of the invitation, and leaves out its secret token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invitation").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Invitation {
    pub(super) fn new(listener: &Arc<ListenerState>, valid_for: Duration) -> Result<Self, Error> {
        listener.born.check()?;
        if !fits_in_a_line(&listener.path) {
            return Err(Error::BadName);
        }
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // 0 stands for no token.
        let token = os::random_token()?.max(1);
        listener.tokens.add(number, token, valid_for);
        Ok(Self { listener: listener.clone(), number, token })
    }

    /// Starts the command, and writes the invitation to the child's standard input. The standard input stays open: the
    /// program can write to [`Child::stdin`] or close it. If writing fails, the child is killed.
    ///
    /// # Errors
    /// A [`MeetError`], which names the program. The reason is [`Error::System`], naming `spawn` or `write`.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, MeetError> {
        self.spawn_plainly(command).map_err(|error| MeetError::starting(command, error))
    }

    fn spawn_plainly(&self, command: &mut Command) -> Result<Child, Error> {
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(|error| system("spawn", &error))?;
        let written = self.write_to(child.stdin.as_mut().expect("it was asked for"));
        if let Err(error) = written {
            // Without an invitation the child would never connect.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok(child)
    }

    /// Writes the invitation line to `out`, for a process that was not started by [`spawn`](Self::spawn). Any process
    /// that reads the line can connect by the invitation. If `out` is a pipe whose reading end is closed, the call
    /// fails and raises no SIGPIPE.
    ///
    /// # Errors
    /// A [`MeetError`], which names the path of the listener. The reason is [`Error::System`] naming `write`.
    pub fn tell(&self, out: &mut impl Write) -> Result<(), MeetError> {
        self.write_to(out).map_err(|error| self.listener.failed(Attempt::Tell, error))
    }

    fn write_to(&self, out: &mut impl Write) -> Result<(), Error> {
        let mut line = format!("{WORD} 1 {} {:032x} ", own_user(), self.token).into_bytes();
        line.extend_from_slice(self.listener.path.as_os_str().as_bytes());
        line.push(b'\n');
        // The line is one write, and a pipe accepts the write as a whole. The reading process may have ended.
        let written = os::process::signals::without_signals(|| out.write_all(&line).and_then(|()| out.flush()));
        os::wipe(&mut line);
        written.map_err(|error| system("write", &error))
    }

    /// Waits until the invited process has connected or the deadline has passed, and returns the channel to the
    /// process. Meanwhile the calling thread handles other pending connections as
    /// [`Listener::accept`](crate::Listener::accept) does. If the listener accepts another process meanwhile, the next
    /// call of `accept` returns the channel to the other process.
    ///
    /// # Errors
    /// As [`Listener::accept`](crate::Listener::accept); [`Error::PeerClosed`] if the listener was dropped, or if the
    /// invited process has connected and then closed its connection. If the invited process cannot be sent the first
    /// packets of its channel, the error that the listener reports to
    /// [`on_refused`](crate::meet::ListenerBuilder::on_refused) for other processes.
    pub fn accept(&self, deadline: impl Into<Deadline>) -> Result<Channel, MeetError> {
        self.listener.accept_invited(self.number, deadline.into())
    }
}

impl Drop for Invitation {
    fn drop(&mut self) {
        if self.listener.born.is_elsewhere() {
            // In a child of `fork`, a lock may be held by a thread of the parent.
            std::mem::forget(self.listener.clone());
        } else {
            self.listener.forget(self.number);
        }
        os::wipe(&mut self.token);
    }
}

/// Connects to the listener that invited this process; the channel has default options. Reads one line of standard
/// input, the invitation, and no byte more. Blocks until the listener accepts, or until the deadline.
///
/// The line can be read only once, so a call that fails has used up the invitation, whatever the reason. To try again,
/// start the process anew with a new invitation.
///
/// Example: [an invitation](crate::meet::Invitation).
///
/// # Errors
/// [`Error::NoInvitation`] if the line is not an invitation; [`Error::Refused`] if the listener no longer accepts the
/// invitation; otherwise as [`Connector::connect`].
pub fn invited(deadline: impl Into<Deadline>) -> Result<Channel, MeetError> {
    Options::new().invited(deadline)
}

impl Options {
    /// Connects to the listener that invited this process, as [`invited`] does; the channel has these options.
    ///
    /// # Errors
    /// As [`invited`].
    pub fn invited(&self, deadline: impl Into<Deadline>) -> Result<Channel, MeetError> {
        let deadline = deadline.into();
        let stdin = std::io::stdin();
        let mut line = Vec::with_capacity(LONGEST);
        let read = socket::read_line(stdin.as_fd(), &mut line, LONGEST, deadline);
        let connector = read.map(|()| parse(&line));
        os::wipe(&mut line);
        let found = connector.and_then(|connector| connector.ok_or(Error::NoInvitation));
        let (connector, name) = found.map_err(|error| MeetError::new(Attempt::Invited, error))?;
        let connector = connector.options(*self);
        connector.connect_plainly(&name, deadline).map_err(|error| connector.failed(Attempt::Invited, &name, error))
    }
}

/// Returns whether a process that reads `path` from an invitation line finds the listener there: the path is absolute,
/// its last part is a valid name, and it has no line feed.
fn fits_in_a_line(path: &Path) -> bool {
    let is_one_line = !path.as_os_str().as_bytes().contains(&b'\n');
    is_one_line && Connector::at(path).is_some_and(|(_, name)| name::check(&name).is_ok())
}

/// Returns the connector and the name of the listener that an invitation line describes. `None` if `line` is no
/// invitation.
fn parse(line: &[u8]) -> Option<(Connector, String)> {
    let mut words = line.splitn(5, |byte| *byte == b' ');
    let mut word = || std::str::from_utf8(words.next()?).ok();
    if word()? != WORD || word()? != "1" {
        return None;
    }
    let server = word()?.parse().ok()?;
    let token = word().filter(|token| token.len() == 32 && token.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    let token = u128::from_str_radix(token, 16).ok()?;
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(words.next()?));
    let (connector, name) = Connector::at(&path)?;
    Some((connector.server(server).token(token), name))
}

fn system(call: &'static str, error: &std::io::Error) -> Error {
    Error::System { call, code: error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_and_in_time() {
        let tokens = Tokens::default();
        tokens.add(1, 11, Duration::MAX);
        tokens.add(2, 22, Duration::from_secs(1000));
        tokens.add(3, 33, Duration::ZERO);
        assert_eq!(tokens.redeem(12), None);
        assert_eq!(tokens.redeem(22), Some(2));
        assert_eq!(tokens.redeem(22), None, "used");
        assert_eq!(tokens.redeem(33), None, "late");
        tokens.revoke(1);
        assert_eq!(tokens.redeem(11), None, "taken back");
    }

    #[test]
    fn lines_that_are_no_invitation_are_refused() {
        let token = "0123456789abcdef0123456789abcdef";
        assert!(parse(format!("strait-invitation 1 0 {token} /run/x/name with a space").as_bytes()).is_some());
        for line in [
            String::new(),
            "strait-invitation".to_owned(),
            format!("strait-invitation 2 0 {token} /run/x/name"),
            format!("strait-invitation 1 -1 {token} /run/x/name"),
            format!("strait-invitation 1 0 {} /run/x/name", &token[1..]),
            format!("strait-invitation 1 0 +{} /run/x/name", &token[1..]),
            format!("strait-invitation 1 0 {token} name"),
            format!("strait-invitation 1 0 {token}"),
        ] {
            assert!(parse(line.as_bytes()).is_none(), "{line}");
        }
    }
}
