//! Letting processes in.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::acceptor::{Acceptor, ConnectRequest, ConnectionLimits, LISTENING, Step, refuse};
use super::invitation::{Invitation, Tokens};
use super::name::{self, NameDirectory};
use crate::channel::Channel;
use crate::channel::options::Options;
use crate::deadline::Deadline;
use crate::error::{Error, Refusal};
use crate::os::epoll;
use crate::os::fork::{self, Born};
use crate::os::names::{self, Directory, own_user};
use crate::peer::Peer;
use crate::sync::unpoisoned;

/// Who is let in.
type Policy = Box<dyn Fn(&Peer) -> bool + Send + Sync>;

/// Who is told of those that were not.
type OnRefused = Box<dyn Fn(&Refused) + Send + Sync>;

/// A process that was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// Who it was, as the kernel says; `None` if it kept the kernel from saying so.
    pub peer: Option<Peer>,
    /// Why: [`Error::Refused`], or [`Error::BadPeer`] if it did not speak the protocol.
    pub why: Error,
}

/// How a [`Listener`] is to be made.
pub struct ListenerBuilder {
    options: Options,
    place: NameDirectory,
    mode: u32,
    policy: Option<Policy>,
    on_refused: Option<OnRefused>,
    invited_only: bool,
    limits: ConnectionLimits,
}

impl fmt::Debug for ListenerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerBuilder").field("place", &self.place).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Default for ListenerBuilder {
    fn default() -> Self {
        Self {
            options: Options::new(),
            place: NameDirectory::default(),
            mode: 0o600,
            policy: None,
            on_refused: None,
            invited_only: false,
            limits: ConnectionLimits { of_a_user: 32, of_all: 128 },
        }
    }
}

impl ListenerBuilder {
    /// Options of the channels that it makes.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The directory in which the name is to be, instead of this user's: for a service of other users, one that they can
    /// look into, such as one below `/run`. It must exist, and be writable by this user or root only.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.place = NameDirectory(Some(path.into()));
        self
    }

    /// The permissions of the name, 0o600 by default: whoever may write to it can connect, and is then asked who it is.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o777;
        self
    }

    /// Who is let in, by what the kernel says of it; by default every process of this user (and nobody, where this user's
    /// number also stands for those that its namespace does not know). Called without a lock, once
    /// for each connect request; it must not use the listener.
    #[must_use]
    pub fn policy(mut self, allow: impl Fn(&Peer) -> bool + Send + Sync + 'static) -> Self {
        self.policy = Some(Box::new(allow));
        self
    }

    /// Called for each process that is not let in. It must not use the listener.
    #[must_use]
    pub fn on_refused(mut self, on_refused: impl Fn(&Refused) + Send + Sync + 'static) -> Self {
        self.on_refused = Some(Box::new(on_refused));
        self
    }

    /// Lets in only those that come with the token of an [`Invitation`].
    #[must_use]
    pub fn invited_only(mut self) -> Self {
        self.invited_only = true;
        self
    }

    /// Connections that may wait to be let in, at least one each: of one user (32 by default), and of all (128). Each has a
    /// descriptor. Beyond that the oldest is refused of whoever has most.
    #[must_use]
    pub fn waiting(mut self, of_a_user: usize, of_all: usize) -> Self {
        self.limits = ConnectionLimits { of_a_user: of_a_user.max(1), of_all: of_all.max(1) };
        self
    }

    /// Listens under this name. Blocks only while another process of this user takes the same name, or another thread of this
    /// process any name: as long as a few system calls take. For that time there is a lock file beside the name.
    ///
    /// # Errors
    /// [`Error::NameTaken`] if somebody listens there; the name of a process that is gone is taken over. [`Error::BadName`],
    /// [`Error::UnsafeDirectory`], [`Error::NoDescriptors`], [`Error::Forked`]; [`Error::System`] naming what the kernel
    /// refuses.
    pub fn bind(self, name: &str) -> Result<Listener, Error> {
        fork::arm()?;
        name::check(name)?;
        let directory = self.place.open_or_make()?;
        let (socket, file) = directory.listen(name, self.mode)?;
        let bound = Bound { directory, name: name.to_owned(), file };
        let path = name::full(&self.place, name);
        Listener::new(socket, Some(bound), path, self)
    }

    /// Listens on a `SOCK_SEQPACKET` Unix socket that a service manager made: the one called so in its unit
    /// (`FileDescriptorName=`), or the only one. Each can be taken once.
    ///
    /// Its permissions are the unit's business (`SocketMode=`), and its name stays when the listener is dropped.
    ///
    /// # Errors
    /// [`Error::NotActivated`] if there is none, or it is no such socket; [`Error::Forked`], [`Error::System`].
    pub fn activated(self, name: Option<&str>) -> Result<Listener, Error> {
        fork::arm()?;
        let socket = super::activation::take(name)?;
        crate::os::socket::credentials::ask(socket.as_fd(), true)?;
        let path = names::path_of(socket.as_fd()).unwrap_or_default();
        Listener::new(socket, None, path, self)
    }
}

/// The name that a listener has taken.
struct Bound {
    directory: Directory,
    name: String,
    file: names::FileId,
}

/// Lets other processes connect, under a name.
///
/// Whoever connects with [`connect`](crate::connect) is asked who it is (by the kernel: it is not believed what it says
/// itself), and if the policy lets it in, becomes a [`Channel`]. No thread is started: pending connections are dealt with by whoever
/// calls [`accept`](Self::accept). With [`AsFd`] a listener can be waited for in any event loop; it is readable when
/// [`try_accept`](Self::try_accept) has something to do, though not always something to return.
///
/// ```
/// use strait::{Listener, connect};
///
/// let name = format!("example-{}", std::process::id());
/// let listener = Listener::bind(&name)?;
/// let client = std::thread::spawn(move || connect(&name)?.send(b"hello").map_err(strait::Error::from));
/// let channel = listener.accept()?;
/// assert_eq!(channel.recv()?.bytes(), b"hello");
/// client.join().expect("a client")?;
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # Cost
/// Four descriptors, and one for each process that waits to be let in.
pub struct Listener {
    pub(super) listener: Arc<ListenerState>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("path", &self.listener.path).finish_non_exhaustive()
    }
}

/// What a listener and its invitations share.
pub(super) struct ListenerState {
    pub(super) born: Born,
    socket: OwnedFd,
    bound: Option<Bound>,
    pub(super) path: PathBuf,
    /// Watches the listening socket and the pending connections. Each thing it reports is dealt with by the thread that asked, so a wait
    /// on it never returns twice for one cause.
    comings: Arc<OwnedFd>,
    /// Watches `comings` and `wake_fd`, for event loops of the program.
    outside: OwnedFd,
    /// Readable while a pending connection is admitted that no `accept` has returned yet.
    wake_fd: OwnedFd,
    options: Options,
    policy: Option<Policy>,
    on_refused: Option<OnRefused>,
    invited_only: bool,
    pub(super) tokens: Tokens,
    /// For whoever leads.
    acceptor: Mutex<Acceptor>,
    /// Most that are let in before they are asked for.
    most_admitted: usize,
    state: Mutex<State>,
    /// Told when somebody was let in, and when the leader leaves.
    turn: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether a thread deals with pending connections.
    leading: bool,
    /// Let in without an invitation.
    admitted: VecDeque<ConnectRequest>,
    /// Let in by an invitation.
    invited: HashMap<u64, ConnectRequest>,
}

impl Listener {
    /// Listens under this name, in the directory of this user, for processes of this user.
    ///
    /// # Errors
    /// As [`ListenerBuilder::bind`].
    pub fn bind(name: &str) -> Result<Self, Error> {
        Self::builder().bind(name)
    }

    /// Says how to listen.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder::default()
    }

    fn new(socket: OwnedFd, bound: Option<Bound>, path: PathBuf, builder: ListenerBuilder) -> Result<Self, Error> {
        names::set_nonblocking(socket.as_fd())?;
        let (comings, outside, wake_fd) = (Arc::new(epoll::create()?), epoll::create()?, epoll::wake_fd()?);
        epoll::add(&comings, &socket, LISTENING)?;
        epoll::add(&outside, &*comings, 0)?;
        epoll::add(&outside, &wake_fd, 0)?;
        let ListenerBuilder { options, policy, on_refused, invited_only, limits, .. } = builder;
        Ok(Self {
            listener: Arc::new(ListenerState {
                born: Born::here(),
                socket,
                bound,
                path,
                acceptor: Mutex::new(Acceptor::new(limits, comings.clone())),
                comings,
                outside,
                wake_fd,
                options,
                policy,
                on_refused,
                invited_only,
                tokens: Tokens::default(),
                most_admitted: limits.of_all,
                state: Mutex::default(),
                turn: Condvar::new(),
            }),
        })
    }

    /// The channel to the next process that is let in. Blocks until there is one.
    ///
    /// # Errors
    /// As [`accept_by`](Self::accept_by), but for the deadline.
    pub fn accept(&self) -> Result<Channel, Error> {
        self.accept_by(Deadline::NEVER)
    }

    /// The same, if there is one now.
    ///
    /// # Errors
    /// As [`accept_by`](Self::accept_by).
    pub fn try_accept(&self) -> Result<Channel, Error> {
        self.accept_by(Deadline::NOW)
    }

    /// The same, until the deadline. Processes that are refused do not end the call.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::TimedOut`], [`Error::Forked`]; [`Error::NoDescriptors`] and [`Error::NoMemory`]: then
    /// the process that was about to be let in sees *peer closed*, and the others go on waiting.
    pub fn accept_by(&self, deadline: impl Into<Deadline>) -> Result<Channel, Error> {
        self.listener.accept(deadline.into(), |state| state.admitted.pop_front())
    }

    /// Invites one process, for this long.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel has no randomness to give; [`Error::Forked`].
    pub fn invite(&self, valid_for: Duration) -> Result<Invitation, Error> {
        Invitation::new(&self.listener, valid_for)
    }

    /// Where its socket is.
    pub fn path(&self) -> &std::path::Path {
        &self.listener.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.outside.as_fd()
    }
}

impl ListenerState {
    /// Waits until `find` finds somebody who was let in.
    fn accept(
        &self,
        deadline: Deadline,
        mut find: impl FnMut(&mut State) -> Option<ConnectRequest>,
    ) -> Result<Channel, Error> {
        self.born.check()?;
        // With no time to wait there still is time for what is there already.
        let mut looked = false;
        let mut state = unpoisoned(&self.state);
        loop {
            if let Some(request) = find(&mut state) {
                if state.admitted.is_empty() {
                    epoll::reset(&self.wake_fd);
                }
                drop(state);
                match self.accept_request(request) {
                    // It was gone already.
                    Err(Error::PeerClosed) => state = unpoisoned(&self.state),
                    channel => return channel,
                }
                continue;
            }
            if looked && deadline.has_passed() {
                return Err(if deadline.is_now() { Error::WouldBlock } else { Error::TimedOut });
            }
            if state.leading {
                looked = true;
                // The leader tells whatever it has done.
                state = match deadline.remaining(Instant::now()) {
                    None => self.turn.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(left) => self.turn.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                };
                continue;
            }
            state.leading = true;
            drop(state);
            let leading = Leading(self);
            let limit = if looked { deadline.remaining(Instant::now()) } else { Some(Duration::ZERO) };
            let attended = self.attend(limit);
            looked = true;
            drop(leading);
            attended?;
            state = unpoisoned(&self.state);
        }
    }

    /// Deals with whoever has something to say, after a sleep of at most `limit` for it.
    fn attend(&self, limit: Option<Duration>) -> Result<(), Error> {
        let mut found = [const { std::mem::MaybeUninit::uninit() }; 64];
        let ready: Vec<u64> = epoll::wait(&self.comings, &mut found, limit)?.collect();
        for number in ready {
            match number {
                LISTENING => {
                    let mut sent_away = Vec::new();
                    let opened = unpoisoned(&self.acceptor).open(&self.socket, &mut sent_away);
                    sent_away.into_iter().for_each(|step| self.go_on(step));
                    opened?;
                }
                connection => {
                    let step = unpoisoned(&self.acceptor).listen(connection);
                    self.go_on(step);
                }
            }
        }
        Ok(())
    }

    fn go_on(&self, step: Step) {
        match step {
            Step::Waits | Step::Gone => {}
            Step::Refused(peer, why) => self.report_refused(peer, why),
            Step::Requested(request) => self.answer(request),
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
        // A token that nobody gave is refused even where none is needed: whoever has it thinks that it was invited.
        let invitation = match request.token {
            0 if !self.invited_only => None,
            token => match self.tokens.redeem(token) {
                Some(invitation) => Some(invitation),
                None => return refused(&request, Refusal::Token),
            },
        };
        let mut state = unpoisoned(&self.state);
        match invitation {
            Some(invitation) => {
                state.invited.insert(invitation, request);
            }
            None if state.admitted.len() >= self.most_admitted => {
                drop(state);
                refused(&request, Refusal::Busy);
            }
            None => {
                state.admitted.push_back(request);
                epoll::signal(&self.wake_fd);
            }
        }
    }

    fn report_refused(&self, peer: Option<Peer>, why: Error) {
        if let Some(on_refused) = &self.on_refused {
            on_refused(&Refused { peer, why });
        }
    }

    fn accept_request(&self, request: ConnectRequest) -> Result<Channel, Error> {
        let ConnectRequest { socket, peer, parameters, .. } = request;
        Channel::accept(socket, peer, parameters, &self.options)
    }

    /// Takes back an invitation, and whoever came with it.
    pub(super) fn forget(&self, invitation: u64) {
        self.tokens.revoke(invitation);
        let request = unpoisoned(&self.state).invited.remove(&invitation);
        drop(request);
    }

    /// Waits for whoever was invited.
    pub(super) fn accept_invited(&self, invitation: u64, deadline: Deadline) -> Result<Channel, Error> {
        self.accept(deadline, |state| state.invited.remove(&invitation))
    }
}

/// Deals with pending connections; another thread may when it is dropped, even if the policy has panicked.
struct Leading<'a>(&'a ListenerState);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        unpoisoned(&self.0.state).leading = false;
        self.0.turn.notify_all();
    }
}

impl Drop for ListenerState {
    /// Takes the name away. Those who wait to be let in see that nobody is there.
    fn drop(&mut self) {
        if let Some(bound) = &self.bound
            && !self.born.is_elsewhere()
        {
            bound.directory.unlink(&bound.name, bound.file);
        }
    }
}
