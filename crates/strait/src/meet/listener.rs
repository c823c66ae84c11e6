//! Listeners: accepting and refusing processes that connect.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::acceptor::{Acceptor, CLOSED, ConnectRequest, ConnectionLimits, ConnectionStep, LISTENING, refuse};
use super::invitation::{Invitation, Tokens};
use super::meet_error::{Attempt, MeetError};
use super::name::{self, NameDirectory};
use crate::channel::options::Options;
use crate::channel::{Channel, Interrupter, Interruptible};
use crate::deadline::Deadline;
use crate::error::{Error, Refusal};
use crate::os::epoll;
use crate::os::fork::{self, Born};
use crate::os::names::{self, Directory, own_user};
use crate::os::socket::credentials;
use crate::peer::Peer;
use crate::signals;
use crate::sync::unpoisoned;
use crate::wake::leader::{Doing, Leader};
use crate::wake::watched_fd::WatchedFd;

/// A function of the program that decides whether a listener accepts a connecting process: `true` accepts.
type Policy = Box<dyn Fn(&Peer) -> bool + Send + Sync>;

/// A function of the program that a listener calls for each connecting process that it has refused.
type OnRefused = Box<dyn Fn(&Refused) + Send + Sync>;

/// A connecting process that a listener refused, and the reason.
///
/// Example: [a listener](crate::meet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// The refused process, as the kernel identifies it; `None` if the kernel did not identify the process.
    pub peer: Option<Peer>,
    /// The reason for the refusal: [`Error::Refused`]; [`Error::BadPeer`] if the process broke the protocol; or another
    /// error if the process was accepted and could not be sent the first packets of its channel.
    pub why: Error,
}

/// The options with which [`bind`](Self::bind) or [`activated`](Self::activated) makes a [`Listener`].
///
/// Example: [a listener in a directory of its own](crate::meet).
pub struct ListenerBuilder {
    options: Options,
    location: NameDirectory,
    mode: u32,
    policy: Option<Policy>,
    on_refused: Option<OnRefused>,
    invited_only: bool,
    limits: ConnectionLimits,
}

impl fmt::Debug for ListenerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerBuilder")
            .field("location", &self.location)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl Default for ListenerBuilder {
    fn default() -> Self {
        Self {
            options: Options::new(),
            location: NameDirectory::default(),
            mode: 0o600,
            policy: None,
            on_refused: None,
            invited_only: false,
            limits: ConnectionLimits { of_a_user: 32, of_all: 128 },
        }
    }
}

impl ListenerBuilder {
    /// Sets the options of this process's end of each channel that the listener accepts.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the directory that gets the listener's name, instead of the name directories of this process's user. A
    /// service for other users needs a directory that those users can search, such as one below `/run`. The directory
    /// must exist, and only this user or root may be able to write to it.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.location = NameDirectory(Some(path.into()));
        self
    }

    /// Sets the file permissions of the listener's socket, 0o600 by default. Every process that may write to the socket
    /// file can connect; the policy then decides.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o777;
        self
    }

    /// Sets the function that decides which processes are accepted, by the identity that the kernel reports: `true`
    /// accepts. By default every process of this process's user is accepted. But if the user's number is also the
    /// kernel's number for users that the user namespace does not map, no process is accepted. The listener calls
    /// `allow` once for each connect request and holds no lock meanwhile; `allow` must not use the listener.
    #[must_use]
    pub fn policy(mut self, allow: impl Fn(&Peer) -> bool + Send + Sync + 'static) -> Self {
        self.policy = Some(Box::new(allow));
        self
    }

    /// Sets a function that the listener calls once for each refused process, in a thread that handles pending
    /// connections or accepts a process. The function must not use the listener.
    #[must_use]
    pub fn on_refused(mut self, on_refused: impl Fn(&Refused) + Send + Sync + 'static) -> Self {
        self.on_refused = Some(Box::new(on_refused));
        self
    }

    /// Makes the listener accept only processes whose connect request has the token of an [`Invitation`].
    #[must_use]
    pub fn invited_only(mut self) -> Self {
        self.invited_only = true;
        self
    }

    /// Sets the most pending connections of one user (32 by default) and of all users (128 by default), at least 1
    /// each. Each pending connection costs a descriptor. If a new connection exceeds the limit of its user, the
    /// listener refuses the user's oldest pending connection. If the new connection exceeds the limit of all users, the
    /// listener refuses the oldest pending connection of the user with the most pending connections.
    ///
    /// The limit of all users also holds for refused connections that a thread of the library has still to close,
    /// because a process has sent descriptors whose close takes long. At this limit the listener takes no connections
    /// until one of these is closed. From Linux 6.16 connecting processes cannot send descriptors.
    #[must_use]
    pub fn waiting(mut self, of_a_user: usize, of_all: usize) -> Self {
        self.limits = ConnectionLimits { of_a_user: of_a_user.max(1), of_all: of_all.max(1) };
        self
    }

    /// Makes a listener named `name`. The listener takes the name in every name directory of this process's user (see
    /// [the module](crate::meet#name-directories)) or in the given directory. Blocks only while another process of the
    /// user is taking the same name, or another thread of this process is taking any name; each takes a few system
    /// calls. During these calls there is a lock file beside the socket of the name. An absolute path as the name, such
    /// as `/run/service/echo`, means the name `echo` in the directory `/run/service`, as if
    /// [`directory`](Self::directory) named that directory.
    ///
    /// # Errors
    /// A [`MeetError`], which names the listener and the paths of its sockets. The reason is [`Error::NameTaken`] if
    /// another listener uses the name in one of the directories; the name of a process that has ended is taken over.
    /// [`Error::BadName`], [`Error::UnsafeDirectory`], [`Error::NoDescriptors`], [`Error::Forked`]; [`Error::System`]
    /// naming the system call that the kernel refused.
    pub fn bind(self, name: &str) -> Result<Listener, MeetError> {
        let location = self.location.clone();
        self.bind_plainly(name).map_err(|error| {
            MeetError::new(Attempt::Listen, error).named(name, name::full(&location, name)).passing_over(&location)
        })
    }

    fn bind_plainly(self, name: &str) -> Result<Listener, Error> {
        fork::arm()?;
        let (location, name) = name::resolve(&self.location, name)?;
        let opened = location.open_or_make(own_user())?;
        let path = opened.first().map_or_else(PathBuf::new, |(path, _)| path.join(&name));
        // Without a working directory there is no absolute path. Then the listener can be used, and cannot invite.
        let path = std::path::absolute(&path).unwrap_or(path);
        let (mut sockets, mut bound) = (Vec::new(), Vec::new());
        for (_, directory) in opened {
            let (socket, file) = directory.listen(&name, self.mode)?;
            sockets.push(socket);
            bound.push(Bound { directory, name: name.clone(), file, born: Born::here() });
        }
        if location == NameDirectory::default() {
            bound.iter().for_each(Bound::prune);
        }
        Listener::new(Watching::new()?, sockets, bound, path, self)
    }

    /// Makes a listener from a `SOCK_SEQPACKET` Unix socket that a service manager has made and passed to this process.
    /// `name` is the name of the socket in the service manager's unit (`FileDescriptorName=`); `None` stands for the
    /// only passed socket. Each socket can be taken once.
    ///
    /// The unit sets the permissions (`SocketMode=`), and the socket file stays when the listener is dropped.
    ///
    /// # Errors
    /// A [`MeetError`]. The reason is [`Error::NotActivated`] if there is not exactly one such socket, or the socket
    /// does not listen or was taken before; [`Error::NoDescriptors`], with which the socket was not taken: close
    /// something, and call again; [`Error::Forked`], [`Error::System`].
    pub fn activated(self, name: Option<&str>) -> Result<Listener, MeetError> {
        self.activated_plainly(name).map_err(|error| MeetError::activating(name, error))
    }

    fn activated_plainly(self, name: Option<&str>) -> Result<Listener, Error> {
        fork::arm()?;
        let watching = Watching::new()?;
        let socket = super::activation::take(name)?;
        credentials::ask(socket.as_fd(), true)?;
        // A process that was not accepted yet has no reason to send descriptors. Kernels before 6.16 cannot refuse
        // descriptors.
        let _ = credentials::accept_rights(socket.as_fd(), false);
        let path = names::path_of(socket.as_fd()).unwrap_or_default();
        Listener::new(watching, vec![socket], Vec::new(), path, self)
    }
}

/// The descriptors of a listener besides its sockets.
struct Watching {
    comings: Arc<OwnedFd>,
    outside: Arc<WatchedFd>,
    wake_fd: OwnedFd,
}

impl Watching {
    fn new() -> Result<Self, Error> {
        let (comings, outside, wake_fd) = (Arc::new(epoll::create()?), epoll::create()?, epoll::wake_fd()?);
        epoll::add(&comings, &wake_fd, CLOSED)?;
        epoll::pause(&comings, &wake_fd, CLOSED)?;
        epoll::add(&outside, &*comings, 0)?;
        epoll::add(&outside, &wake_fd, 0)?;
        Ok(Self { comings, outside: WatchedFd::new(outside)?, wake_fd })
    }
}

/// The name that a listener has taken in one name directory: the directory, the name, and the identity of the socket
/// file. By the identity the listener removes only its own file. Dropping the value in the process that made it removes
/// the name.
struct Bound {
    directory: Directory,
    name: String,
    file: names::FileId,
    born: Born,
}

impl Bound {
    /// The most names that one call of [`prune`](Self::prune) checks.
    const MOST_PRUNED: usize = 8;

    /// Removes dead listeners' names from the name directory, if they are among the [`Self::MOST_PRUNED`] names that
    /// follow the listener's own name in alphabetical order. The next listener removes what this call fails to remove.
    fn prune(&self) {
        let names = self.directory.names().unwrap_or_default();
        let (before, after) = names.split_at(names.partition_point(|name| *name <= self.name));
        for name in after.iter().chain(before).filter(|name| **name != self.name).take(Self::MOST_PRUNED) {
            let _ = self.directory.prune(name);
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if !self.born.is_elsewhere() {
            self.directory.unlink(&self.name, self.file);
        }
    }
}

/// Accepts connections of other processes under a name.
///
/// The kernel tells the listener which process connects; the listener ignores what the process says about itself. If
/// the policy accepts a process that connects with [`connect`](crate::connect), [`accept`](Self::accept) returns a
/// [`Channel`] to the process. No thread is started: the threads that call [`accept`](Self::accept) handle the pending
/// connections. A [wait set](crate::wait::WaitSet) can hold a listener, and through [`AsFd`] any event loop can wait
/// for a listener. The descriptor is readable when [`accept`](Self::accept) has something to do, though not always
/// something to return.
///
/// ```
/// use std::time::Duration;
/// use strait::{Error, Listener, connect};
///
/// const LIMIT: Duration = Duration::from_secs(10);
/// let name = format!("example-{}", std::process::id());
/// let listener = Listener::bind(&name)?;
/// let client = std::thread::spawn(move || connect(&name, LIMIT)?.send(b"hello").map_err(Error::from));
/// let channel = listener.accept(LIMIT)?;
/// assert_eq!(channel.recv()?.bytes(), b"hello");
/// client.join().expect("a client")?;
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # Cost
/// Three descriptors, one or two for each name directory, and one for each pending connection.
pub struct Listener {
    pub(super) listener: Arc<ListenerState>,
    /// The epoll instance for the event loops and wait sets of the program. The instance watches `comings` (the
    /// listener's internal epoll instance) and `wake_fd`.
    pub(crate) outside: Arc<WatchedFd>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("path", &self.listener.path).finish_non_exhaustive()
    }
}

/// The state that a listener and its invitations share.
pub(super) struct ListenerState {
    pub(super) born: Born,
    /// The names that the listener has taken, one in each name directory; empty if a service manager made the socket.
    /// Dropping the values removes the names, which must come before the listening sockets are closed: the sockets keep
    /// other processes from taking the names.
    bound: Mutex<Vec<Bound>>,
    pub(super) path: PathBuf,
    /// The epoll instance that watches the listening sockets and the pending connections. Only the leader (the thread
    /// that handles the pending connections now) waits on the instance. The leader handles all reported events, so that
    /// no event is reported twice.
    comings: Arc<OwnedFd>,
    /// The eventfd that is readable while `admitted` holds an accepted connection that no `accept` has returned yet,
    /// and after the listener was closed. `comings` ignores the eventfd until the listener is closed.
    wake_fd: OwnedFd,
    options: Options,
    policy: Option<Policy>,
    on_refused: Option<OnRefused>,
    invited_only: bool,
    pub(super) tokens: Tokens,
    /// The pending connections. Only the leader (the thread that handles the pending connections now) uses the field.
    acceptor: Mutex<Acceptor>,
    /// The most connections, accepted without an invitation, that may wait for a call of `accept` to return them.
    /// Further connections are refused with the reason *busy*.
    most_admitted: usize,
    /// The threads in `accept`: the leader handles the pending connections, and stops leading when it has handled all
    /// ready events. All threads look for the accepted connections under the lock of the leader.
    leader: Leader<Accepted>,
}

/// The connections that a listener has accepted and not yet returned to the program.
#[derive(Default)]
struct Accepted {
    /// Connect requests that the policy accepted without an invitation and no `accept` has returned yet, oldest first.
    admitted: VecDeque<ConnectRequest>,
    /// Connect requests that were accepted by an invitation and whose channel was not returned to the program yet,
    /// keyed by the number of the invitation.
    invited: HashMap<u64, ConnectRequest>,
    /// Whether the program has dropped the listener. Only invitations are left then, and let in no process.
    is_closed: bool,
    /// Whether an [`Interrupter`] ends the waits of the listener.
    is_interrupted: bool,
    /// Whether an interrupt has made `comings` report the eventfd, to wake the leader. The leader undoes that when it
    /// stops leading.
    wakes_leader: bool,
}

/// The processes for which a call of the listener waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whom {
    /// `Anyone`: any process that the policy accepts without an invitation.
    Anyone,
    /// `Invited`: the process with the invitation of this number.
    Invited(u64),
}

impl Accepted {
    /// Takes the oldest connect request for `whom`.
    fn take(&mut self, whom: Whom) -> Option<ConnectRequest> {
        match whom {
            Whom::Anyone => self.admitted.pop_front(),
            Whom::Invited(invitation) => self.invited.remove(&invitation),
        }
    }

    /// Puts a request for `whom` back that [`take`](Self::take) returned. Returns the request if the listener was
    /// closed meanwhile.
    fn put_back(&mut self, request: ConnectRequest, whom: Whom) -> Option<ConnectRequest> {
        match whom {
            _ if self.is_closed => return Some(request),
            Whom::Anyone => self.admitted.push_front(request),
            Whom::Invited(invitation) => return self.invited.insert(invitation, request),
        }
        None
    }
}

impl Listener {
    /// Makes a listener named `name` in the name directories of this process's user. The listener accepts only
    /// processes of this user.
    ///
    /// # Errors
    /// As [`ListenerBuilder::bind`].
    pub fn bind(name: &str) -> Result<Self, MeetError> {
        Self::builder().bind(name)
    }

    /// Returns a builder for a listener, with the default options.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder::default()
    }

    fn new(
        Watching { comings, outside, wake_fd }: Watching,
        sockets: Vec<OwnedFd>,
        bound: Vec<Bound>,
        path: PathBuf,
        builder: ListenerBuilder,
    ) -> Result<Self, Error> {
        for socket in &sockets {
            names::set_nonblocking(socket.as_fd())?;
            epoll::add(&comings, socket, LISTENING)?;
        }
        let ListenerBuilder { options, policy, on_refused, invited_only, limits, .. } = builder;
        Ok(Self {
            outside,
            listener: Arc::new(ListenerState {
                born: Born::here(),
                bound: Mutex::new(bound),
                path,
                acceptor: Mutex::new(Acceptor::new(limits, comings.clone(), Arc::new(sockets))),
                comings,
                wake_fd,
                options,
                policy,
                on_refused,
                invited_only,
                tokens: Tokens::default(),
                most_admitted: limits.of_all,
                leader: Leader::default(),
            }),
        })
    }

    /// Returns the channel to the next connecting process that the listener accepts; waits for the process until the
    /// deadline. Refused processes do not end the wait.
    ///
    /// # Errors
    /// A [`MeetError`], which names the path of the listener. The reason is [`Error::WouldBlock`], [`Error::TimedOut`],
    /// [`Error::Interrupted`], [`Error::Signalled`], [`Error::Forked`]; [`Error::NoDescriptors`] or
    /// [`Error::NoMemory`], with which all pending connections stay pending: close something, and call again; or
    /// [`Error::System`] naming the system call that the kernel refused to this process: then the process that was
    /// about to be accepted may see *peer closed*. A connecting process cannot cause the last error.
    pub fn accept(&self, deadline: impl Into<Deadline>) -> Result<Channel, MeetError> {
        self.listener.accept_next(deadline.into())
    }

    /// Returns an object for ending the waits in [`accept`](Self::accept), also those of
    /// [invitations](Invitation::accept), from another thread: to stop a service. The object does not keep the listener
    /// open. Processes that connect during an interruption stay pending, and a later [`accept`](Self::accept) returns
    /// the channels to them.
    ///
    /// ```
    /// # let name = format!("interrupted-{}", std::process::id());
    /// let listener = strait::Listener::bind(&name)?;
    /// let interrupter = listener.interrupter();
    /// let service = std::thread::spawn(move || {
    ///     loop {
    ///         match listener.accept(strait::Deadline::NEVER) {
    ///             Ok(_channel) => { /* serve the client */ }
    ///             Err(failed) => return failed.error,
    ///         }
    ///     }
    /// });
    /// interrupter.interrupt();
    /// assert_eq!(service.join().unwrap(), strait::Error::Interrupted);
    /// # Ok::<(), strait::Error>(())
    /// ```
    pub fn interrupter(&self) -> Interrupter {
        let listener = Arc::downgrade(&self.listener);
        Interrupter::of(listener)
    }

    /// Makes an invitation: with it, one process can connect to the listener once, within the time `valid_for` from
    /// now.
    ///
    /// # Errors
    /// A [`MeetError`], which names the path of the listener. The reason is [`Error::BadName`] if the path of the
    /// listener does not fit in the line of an invitation: a service manager made the socket, and the path is not
    /// absolute or its last part is not a valid name; or a directory has a line feed in its name. [`Error::System`] if
    /// the kernel has no randomness to give; [`Error::Forked`].
    pub fn invite(&self, valid_for: Duration) -> Result<Invitation, MeetError> {
        Invitation::new(&self.listener, valid_for).map_err(|error| self.listener.failed(Attempt::Invite, error))
    }

    /// Returns the path of the listener's socket file in the first name directory, as an absolute path unless a service
    /// manager gave the socket a relative one; empty for a socket without a path that a service manager made.
    pub fn path(&self) -> &std::path::Path {
        &self.listener.path
    }
}

impl Drop for Listener {
    /// Takes the listener out of its wait set, and stops listening, even if there are invitations.
    fn drop(&mut self) {
        self.outside.leave();
        self.listener.close();
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outside.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Returns whether `error`, with which a listener could not open the channel to an accepted process, may be due to that
/// process. Such an error must not end a call of `accept`, for which other processes wait.
fn is_due_to_the_client(error: Error) -> bool {
    match error {
        Error::NoDescriptors | Error::NoMemory { .. } | Error::Forked => false,
        // The connecting process can set its socket such that the kernel refuses to pass descriptors.
        Error::System { call, .. } => call == "sendmsg",
        _ => true,
    }
}

impl Interruptible for ListenerState {
    fn interrupt(&self) {
        if self.born.is_elsewhere() {
            return;
        }
        let mut turn = self.leader.lock();
        turn.shared.is_interrupted = true;
        if turn.sleeps() && !turn.shared.wakes_leader && !turn.shared.is_closed {
            turn.shared.wakes_leader = true;
            epoll::signal(&self.wake_fd);
            epoll::resume(&self.comings, &self.wake_fd, CLOSED);
        }
        drop(turn);
        self.leader.wake_followers();
    }

    fn resume(&self) {
        if !self.born.is_elsewhere() {
            self.leader.lock().shared.is_interrupted = false;
        }
    }
}

impl fmt::Debug for ListenerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerState").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ListenerState {
    /// Gives up the names, stops listening, closes all connections that were not returned to the program, and ends the
    /// waits of all threads. Does nothing in a child of `fork`, where a thread of the parent may hold a lock.
    fn close(&self) {
        if self.born.is_elsewhere() {
            return;
        }
        unpoisoned(&self.bound).clear();
        unpoisoned(&self.acceptor).close();
        let mut turn = self.leader.lock();
        turn.shared.is_closed = true;
        let (admitted, invited) = (std::mem::take(&mut turn.shared.admitted), std::mem::take(&mut turn.shared.invited));
        epoll::signal(&self.wake_fd);
        drop(turn);
        epoll::resume(&self.comings, &self.wake_fd, CLOSED);
        self.leader.wake_followers();
        drop((admitted, invited));
    }

    /// Waits until the listener has a connect request for `whom`, and returns the channel to the sender of the request.
    /// Fails at the deadline. If no other thread handles the pending connections, the calling thread does so meanwhile.
    /// If this process lacks something for the channel, the request stays for a later call. If the sender has failed, a
    /// call for any process goes on, and a call for an invited process fails.
    fn accept(&self, deadline: Deadline, whom: Whom) -> Result<Channel, Error> {
        self.born.check()?;
        // Even without time to wait, the call handles the connections already made.
        let mut looked = false;
        let mut turn = self.leader.lock();
        loop {
            if let Some(request) = turn.shared.take(whom) {
                // If an interrupt wakes the leader by the eventfd now, the leader resets the eventfd.
                if turn.shared.admitted.is_empty() && !turn.shared.wakes_leader {
                    epoll::reset(&self.wake_fd);
                }
                drop(turn);
                let peer = request.peer;
                match self.accept_request(request, whom) {
                    outcome if whom != Whom::Anyone => return outcome,
                    // The connecting process has closed its socket already.
                    Err(Error::PeerClosed) => {}
                    Err(error) if is_due_to_the_client(error) => self.report_refused(Some(peer), error),
                    channel => return channel,
                }
                // Any number of clients may fail. A call without time to wait goes on until no connection is left to
                // accept, which an event loop relies on.
                if !deadline.is_now() {
                    if deadline.has_passed() {
                        return Err(Error::TimedOut);
                    }
                    signals::check()?;
                }
                turn = self.leader.lock();
                continue;
            }
            if turn.shared.is_closed {
                return Err(Error::PeerClosed);
            }
            if looked {
                deadline.check()?;
                if turn.shared.is_interrupted {
                    return Err(Error::Interrupted);
                }
            }
            if !deadline.is_now() {
                signals::check()?;
            }
            turn = match self.leader.lead(turn, Doing::Sleeping) {
                Ok(leading) => {
                    let limit = if looked { deadline.remaining(Instant::now()) } else { Some(Duration::ZERO) };
                    let handled = self.handle_ready(limit);
                    self.end_interrupt_event();
                    drop(leading);
                    handled?;
                    self.leader.lock()
                }
                Err(turn) => self.leader.follow(turn, deadline.remaining(Instant::now())),
            };
            looked = true;
        }
    }

    /// Undoes the change by which an interrupt has woken the leader, so that the listener's descriptor is not readable
    /// as long as the interruption lasts. Called by the leader before it stops leading.
    fn end_interrupt_event(&self) {
        let mut turn = self.leader.lock();
        if std::mem::take(&mut turn.shared.wakes_leader) && !turn.shared.is_closed {
            // The kernel refuses the change only if a filter of system calls does. Then the descriptor stays readable.
            let _ = epoll::pause(&self.comings, &self.wake_fd, CLOSED);
            if turn.shared.admitted.is_empty() {
                epoll::reset(&self.wake_fd);
            }
        }
    }

    /// Makes new connections pending, and reads from pending connections that have sent a packet. If there is no event
    /// yet, waits at most the time `limit` for an event; with `None`, waits without a limit.
    fn handle_ready(&self, limit: Option<Duration>) -> Result<(), Error> {
        let mut found = [const { std::mem::MaybeUninit::uninit() }; 64];
        let ready: Vec<u64> = epoll::wait(&self.comings, &mut found, limit)?.collect();
        for number in ready {
            match number {
                LISTENING => {
                    let mut sent_away = Vec::new();
                    let opened = unpoisoned(&self.acceptor).open_all(&mut sent_away);
                    sent_away.into_iter().for_each(|step| self.go_on(step));
                    opened?;
                }
                connection => {
                    let step = unpoisoned(&self.acceptor).read_request(connection);
                    self.go_on(step);
                }
            }
        }
        Ok(())
    }

    fn go_on(&self, step: ConnectionStep) {
        match step {
            ConnectionStep::Waits | ConnectionStep::Gone => {}
            ConnectionStep::Refused(peer, why) => self.report_refused(peer, why),
            ConnectionStep::Requested(request) => self.answer(request),
        }
    }

    fn answer(&self, request: ConnectRequest) {
        let refused = |request: &ConnectRequest, why| {
            refuse(request.socket.as_fd(), why);
            self.report_refused(Some(request.peer), Error::Refused(why));
        };
        let allowed = match &self.policy {
            Some(allow) => allow(&request.peer),
            None => request.peer.uid == own_user() && names::is_one_user(own_user()),
        };
        if !allowed {
            return refused(&request, Refusal::Policy);
        }
        // Under the lock no invitation is dropped, so a request with a valid token finds its invitation.
        let mut turn = self.leader.lock();
        // An unknown token is refused even if the listener needs no token: the process with the token was invited.
        let invitation = match request.token {
            0 if !self.invited_only => None,
            token => match self.tokens.redeem(token) {
                Some(invitation) => Some(invitation),
                None => {
                    drop(turn);
                    return refused(&request, Refusal::Token);
                }
            },
        };
        let accepted = &mut turn.shared;
        if accepted.is_closed {
            drop(turn);
            return;
        }
        match invitation {
            Some(invitation) => {
                accepted.invited.insert(invitation, request);
            }
            None if accepted.admitted.len() >= self.most_admitted => {
                drop(turn);
                refused(&request, Refusal::Busy);
            }
            None => {
                accepted.admitted.push_back(request);
                epoll::signal(&self.wake_fd);
            }
        }
    }

    fn report_refused(&self, peer: Option<Peer>, why: Error) {
        if let Some(on_refused) = &self.on_refused {
            on_refused(&Refused { peer, why });
        }
    }

    /// Returns the channel to the sender of `request`, a request for `whom`. If this process lacks something for the
    /// channel, the request comes back into the state of the listener.
    fn accept_request(&self, request: ConnectRequest, whom: Whom) -> Result<Channel, Error> {
        let ConnectRequest { socket, peer, request, token } = request;
        Channel::accept(socket, peer, request, &self.options).map_err(|(error, socket)| {
            if let Some(socket) = socket {
                let mut turn = self.leader.lock();
                let left = turn.shared.put_back(ConnectRequest { socket, peer, request, token }, whom);
                if !turn.shared.admitted.is_empty() {
                    epoll::signal(&self.wake_fd);
                }
                drop(turn);
                drop(left);
            }
            error
        })
    }

    /// Revokes the token of the invitation with the number `invitation`. If a process has connected with the invitation
    /// and [`accept_invited`](Self::accept_invited) has not returned the channel yet, closes the connection.
    pub(super) fn forget(&self, invitation: u64) {
        let mut turn = self.leader.lock();
        self.tokens.revoke(invitation);
        let request = turn.shared.invited.remove(&invitation);
        drop(turn);
        drop(request);
    }

    /// Waits until a process has connected with the invitation of the number `invitation`, or the deadline has passed,
    /// and returns the channel to the process.
    pub(super) fn accept_invited(&self, invitation: u64, deadline: Deadline) -> Result<Channel, MeetError> {
        // An invitation serves once, so nobody else can come.
        self.accept(deadline, Whom::Invited(invitation)).map_err(|error| self.failed(Attempt::AcceptInvited, error))
    }

    /// Returns the channel to the next process that was accepted without an invitation.
    fn accept_next(&self, deadline: Deadline) -> Result<Channel, MeetError> {
        self.accept(deadline, Whom::Anyone).map_err(|error| self.failed(Attempt::Accept, error))
    }

    /// Returns the error of an `attempt` with the listener.
    pub(super) fn failed(&self, attempt: Attempt, error: Error) -> MeetError {
        MeetError::at_listener(attempt, &self.path, error)
    }
}
