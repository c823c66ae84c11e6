//! The errors of the library, with texts that say what happened and what to do about it.

use std::fmt;

/// The length in bytes of the longest message that any channel takes; equal to [`MAX_MESSAGE`](crate::MAX_MESSAGE).
const LONGEST: usize = 256 << 20;

/// The page that says for which object the library makes each system call.
const SYSTEM_CALLS: &str = "https://github.com/strait-ipc/strait/blob/main/docs/reference/system-calls.md";

/// `EPERM`: the error number with which a system call usually fails if a sandbox forbids it.
const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
/// `ENOSYS`: the error number of a system call that the kernel does not have, or that a sandbox hides.
const ENOSYS: i32 = rustix::io::Errno::NOSYS.raw_os_error();

/// The reason why a call of the library failed. The `Display` text of each error says what happened and what to do;
/// `docs/reference/errors.md` lists all errors.
///
/// Example: [what a dead peer leads to](crate#death).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The call would have to wait, and its deadline was [`Deadline::NOW`](crate::Deadline::NOW).
    WouldBlock,
    /// The deadline passed before the call could finish. Nothing was sent or received.
    TimedOut,
    /// Another thread has interrupted the waits on this end by an [`Interrupter`](crate::Interrupter), and the call
    /// would have had to wait. Nothing was sent or received.
    Interrupted,
    /// A signal has interrupted the wait of the call, and the thread has a [guard](crate::signals::Guard). Nothing was
    /// sent, received or accepted; the call may be made again.
    Signalled,
    /// The other end of the channel was closed, or its process has ended. A receiving call fails with this error only
    /// after all messages from the other end were received.
    PeerClosed,
    /// The message has more bytes than this end may send in one message. Nothing was sent. Also returned if the channel
    /// ends in the message have so many unreceived messages that their description exceeds 1 GiB.
    MessageTooLarge {
        /// The number of bytes in the message, or in the description of its ends so far.
        len: usize,
        /// The most bytes that one message may have: [`Options::max_message`](crate::Options::max_message). For the
        /// description of ends, 1 GiB.
        limit: usize,
    },
    /// The message has more handles than this end may send in one message. Nothing was sent.
    TooManyHandles {
        /// The number of handles in the message.
        count: usize,
        /// The most handles that one message may have: [`Options::max_handles`](crate::Options::max_handles).
        limit: usize,
    },
    /// The caller's buffer is too small for the next message. The message was not received, and stays the next message.
    BufferTooSmall {
        /// The number of bytes in the next message: a buffer must be at least this long to receive the message.
        needed: usize,
    },
    /// A descriptor in the message is not open in this process. Nothing was sent.
    BadHandle,
    /// An end of a channel cannot be sent over its own channel, nor fused with its own other end. Nor can the end be
    /// sent to an end of this process that lies in a message which only the sent end could receive: both would be lost.
    /// Nothing was changed.
    OwnChannel,
    /// The region cannot be written to, or sealed, through the given handle or mapping.
    ReadOnly,
    /// The region is not sealed, so its bytes could change during the read.
    NotSealed,
    /// The region is mapped for writing, in this process or another process, so the region cannot be sealed.
    StillMapped,
    /// The given range reaches past the end of the object: a message, a region or a data pipe.
    OutOfRange {
        /// The number of bytes of the object, which the end of the range must not exceed.
        len: usize,
    },
    /// The given number of bytes is smaller than an element of the data pipe, or not a multiple of the element's size.
    NotElements {
        /// The number of bytes in an element of the data pipe.
        element: usize,
    },
    /// The program has finished the stream of the data pipe, so the producer takes no more bytes.
    Finished,
    /// The other end of the data pipe was closed with a reason: the producer has
    /// [aborted](crate::pipe::DataProducer::abort) the stream, and everything that it wrote was read; or the
    /// [consumer](crate::pipe::DataConsumer::abort) reads nothing more. The stream is incomplete.
    Aborted {
        /// The number that the program at the other end gave; [`PANICKED`](crate::pipe::PANICKED) if a panic dropped
        /// the producer.
        reason: u32,
    },
    /// The given descriptor cannot become a region. The field holds the reason.
    NotARegion(&'static str),
    /// The channel is in a wait set already, and a channel can be in one wait set only.
    InSet,
    /// The channel is not in the wait set.
    NotInSet,
    /// The reactor of the object has ended, so no event would wake the task. Nothing was sent or received. The object
    /// is intact: take it out of the reactor, and make it again with a reactor that is driven.
    ReactorEnded,
    /// A request was sent, and there is no reply: whether the request was carried out is unknown. A
    /// [`CallError::OutcomeUnknown`](crate::call::CallError::OutcomeUnknown) becomes this error; the `CallError` says
    /// why there is no reply.
    OutcomeUnknown,
    /// The server dropped a request without a reply: [`CallError::NotAnswered`](crate::call::CallError::NotAnswered).
    NotAnswered,
    /// A [trap](crate::wait::Traps::arm) was not armed, since one of its conditions is met already, or none can be met
    /// any more. [`NotArmed`](crate::wait::NotArmed) says which of the two, with the channel's status.
    NotArmed,
    /// Not all descriptors of the received message arrived; the bytes of the message did. This process had no free
    /// descriptor, had no memory to map a data pipe of the message, holds as many descriptors for the peer as it may
    /// ([`Limits`](crate::quota::Limits)), or takes none
    /// ([`Options::accept_descriptors`](crate::Options::accept_descriptors)).
    HandlesLost {
        /// The number of descriptors that the peer sent with the message.
        sent: usize,
        /// The number of the message's descriptors that arrived. This process has closed all of them.
        arrived: usize,
    },
    /// This process has no free descriptor for something that the call needs. Nothing is lost: close some descriptors,
    /// or raise the limit, and call again.
    NoDescriptors,
    /// There is no memory or no address space for something that the call needs. Nothing is lost: free some memory or
    /// ask for less, and call again.
    NoMemory {
        /// The name of the failed system call, or the purpose of the memory.
        call: &'static str,
    },
    /// This process holds as much of the resource as a limit allows for the peer's process, for the peer's user, or
    /// over the link ([`Limits`](crate::quota::Limits), [`Options::peer_memory`](crate::Options::peer_memory)). Nothing
    /// is lost: drop messages and ends received from the peer, or raise the limit, and call again.
    LimitReached(Resource),
    /// The peer broke the protocol, and the channel has ended. The field names the breach. Links to other processes
    /// are not affected.
    BadPeer(&'static str),
    /// The listener or the connecting process refused the connection. The field holds the reason. No message was
    /// exchanged.
    Refused(Refusal),
    /// This process is the child of a `fork` without `exec`, and its parent had made the object (a channel, a wait set,
    /// a listener). The child can use its own new objects.
    Forked,
    /// The descriptor is not a connected `SOCK_SEQPACKET` Unix socket. The field says what the descriptor is instead,
    /// for example "a stream socket".
    NotASocket(&'static str),
    /// The name of the listener is not valid. A name has 1 to 64 letters, digits, dots, dashes and underscores, and
    /// does not begin with a dot. An absolute path must end with a valid name.
    BadName,
    /// Another listener uses the name, or the file of the name is not a listener's socket of this process's user.
    NameTaken,
    /// No process listens under the name.
    NobodyThere,
    /// The name directory is missing, or other users could change it. The field holds the reason.
    UnsafeDirectory(&'static str),
    /// The listener under the name, or the process that answered, does not belong to the expected user.
    WrongServer {
        /// The number of the user that owns the listener's socket or runs the process that answered.
        uid: u32,
    },
    /// The line read from standard input was not an invitation.
    NoInvitation,
    /// The service manager has not passed exactly one unused listening socket of the requested name to this process.
    NotActivated,
    /// This process was not started with a channel to its parent, or has only inherited the environment variable that
    /// names a descriptor of its parent.
    NoParent,
    /// The channel to the parent was already taken in this process.
    ParentTaken,
    /// The kernel refused a system call.
    System {
        /// The name of the system call.
        call: &'static str,
        /// The error number (`errno`) of the failed system call.
        code: i32,
    },
}

/// A limited resource that this process holds for a peer.
///
/// Example: [limits](crate::quota).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Resource {
    /// `Memory` counts the bytes of the peer's memory mapped in this process.
    Memory,
    /// `Mappings` counts this process's mappings of the peer's memory. The kernel limits the mappings of a process
    /// (`vm.max_map_count`).
    Mappings,
    /// `Descriptors` counts the descriptors received from the peer and not yet taken by the program. The sockets of
    /// introduced links, to processes that the peer introduced, count too.
    Descriptors,
    /// `Lanes` counts the lanes (each the shared memory of one channel over one link) in all arenas that the peer has
    /// announced to this process, used or not.
    Lanes,
    /// `QueuedBytes` counts the bytes of messages that this process took out of shared memory when an end moved, and
    /// that the program has not received yet.
    QueuedBytes,
    /// `QueuedMessages` counts the messages that this process took out of shared memory when an end moved, and that the
    /// program has not received yet.
    QueuedMessages,
    /// `Regions` counts the bytes of [regions](crate::region::Region) from the peer. The full size of a region counts
    /// until the region and all its mappings are dropped.
    Regions,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "bytes of mapped memory",
            Self::Mappings => "mappings",
            Self::Descriptors => "descriptors",
            Self::Lanes => "lanes",
            Self::QueuedBytes => "bytes in messages of moved ends",
            Self::QueuedMessages => "messages of moved ends",
            Self::Regions => "bytes of regions",
        })
    }
}

/// The reason why one process refused the connection of another process. Both processes get the reason.
///
/// Example: [a listener](crate::meet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The two processes have no version of the protocol in common.
    Version {
        /// The lowest and the highest protocol version that this process supports.
        ours: (u8, u8),
        /// The lowest and the highest protocol version that the other process supports.
        theirs: (u8, u8),
    },
    /// The token of an invitation was refused. The token was missing although the listener accepts only invited
    /// processes, or was wrong, used before, revoked or expired.
    Token,
    /// The listener's policy does not accept the connecting process.
    Policy,
    /// The listener has as many pending connections (neither accepted nor refused yet), or as many connections that
    /// wait for a call of `accept`, as its limits permit. A later attempt may succeed.
    Busy,
    /// The other process refused with a reason that this build of the library does not know.
    Unknown,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Version { ours, theirs } => write!(
                f,
                "the other process speaks versions {} to {} of the protocol and this one {} to {}: update the older one",
                theirs.0, theirs.1, ours.0, ours.1
            ),
            Self::Token => write!(
                f,
                "the listener accepts invited processes only, and the token of this one was missing, wrong, used \
                 before, or late: start the process again with a new invitation"
            ),
            Self::Policy => write!(
                f,
                "the listener's policy does not accept this user or process: run as a user that it accepts, or change \
                 that policy"
            ),
            Self::Busy => write!(
                f,
                "too many connections were waiting at the listener until the deadline: try again, or let more of them \
                 wait there"
            ),
            Self::Unknown => {
                write!(f, "the listener gave a reason that this version of Strait does not know: update this process")
            }
        }
    }
}

impl Error {
    /// Returns whether a service can go on after this error by calling again, after a moment or after it has freed
    /// something: `true` for [`WouldBlock`](Self::WouldBlock), [`TimedOut`](Self::TimedOut),
    /// [`Signalled`](Self::Signalled), [`NoDescriptors`](Self::NoDescriptors), [`NoMemory`](Self::NoMemory),
    /// [`LimitReached`](Self::LimitReached) and [`System`](Self::System). The failed call has changed nothing then,
    /// except that a [region](crate::region::Region::seal) may be sealed later.
    ///
    /// ```
    /// use strait::{Channel, Error};
    /// let (a, b) = Channel::pair()?;
    /// let nothing = b.try_recv().unwrap_err();
    /// assert!(nothing == Error::WouldBlock && nothing.is_temporary());
    /// drop(a);
    /// assert!(!b.recv().unwrap_err().is_temporary());
    /// assert!(!Error::Interrupted.is_temporary());
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn is_temporary(self) -> bool {
        self.passes() || matches!(self, Self::WouldBlock | Self::TimedOut | Self::Signalled)
    }

    /// Returns whether, after the error, nothing has changed and a later call may succeed: a resource was lacking, a
    /// limit was reached, or the kernel refused a system call.
    pub(crate) fn passes(self) -> bool {
        matches!(self, Self::NoDescriptors | Self::NoMemory { .. } | Self::LimitReached(_) | Self::System { .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::WouldBlock => write!(
                f,
                "would block: the call would have to wait (for a message, for room, or for the peer), and its \
                 deadline was now; give a later deadline, or wait for the channel in a wait set"
            ),
            Self::TimedOut => {
                write!(f, "timed out: nothing was sent or received before the deadline; call again to go on waiting")
            }
            Self::Interrupted => write!(
                f,
                "interrupted: another thread has interrupted the waits on this end, and nothing was sent or received; \
                 close this end, or let that thread resume the waits"
            ),
            Self::Signalled => write!(
                f,
                "signalled: a signal has ended the wait of this thread, and nothing was sent or received; do what the \
                 signal asks for, then call again to go on waiting"
            ),
            Self::PeerClosed => write!(
                f,
                "peer closed: the peer has closed its end or refused the connection, or its process has ended; close \
                 this end, and connect again if the peer still runs"
            ),
            Self::MessageTooLarge { len, limit } if limit > LONGEST => write!(
                f,
                "description of the handles of {len} bytes or more, with the unreceived messages of the channel ends, \
                 is over the limit of {limit}: receive some of these messages first, or send fewer ends"
            ),
            Self::MessageTooLarge { len, limit } if len > LONGEST => write!(
                f,
                "message of {len} bytes is over the limit of {limit}: split it, as no channel takes more than \
                 {LONGEST} bytes in one message"
            ),
            Self::MessageTooLarge { len, limit } => {
                write!(
                    f,
                    "message of {len} bytes is over the limit of {limit}: split it, or raise Options::max_message"
                )
            }
            Self::TooManyHandles { count, limit } => {
                write!(f, "{count} handles are over the limit of {limit} a message: send them in several messages")
            }
            Self::BufferTooSmall { needed } => {
                write!(
                    f,
                    "buffer too small: the next message has {needed} bytes; it was kept, call again with room for it"
                )
            }
            Self::BadHandle => write!(
                f,
                "a handle in the message is not an open descriptor: nothing was sent; find the code that closes a \
                 descriptor of which the handle is the owner"
            ),
            Self::OwnChannel => write!(
                f,
                "an end of a channel cannot be sent over that channel, nor to an end that lies in a message for it, nor \
                 be fused with its other end: nothing was changed; send it over another channel"
            ),
            Self::ReadOnly => write!(
                f,
                "the region is read-only through this handle or mapping: use a writable one (there is none once the \
                 region is sealed or admits no writer), or copy the bytes to a new region and write there"
            ),
            Self::NotSealed => write!(
                f,
                "the region is not sealed and its bytes may change: copy them out of Region::map, or have the process \
                 that made the region seal it"
            ),
            Self::StillMapped => write!(
                f,
                "the region is still mapped for writing, here or elsewhere: drop those mappings, then seal it again"
            ),
            Self::OutOfRange { len } => write!(
                f,
                "out of range: the region, mapping, message or data pipe of this call has only {len} bytes; give an \
                 offset and a length within them"
            ),
            Self::Finished => {
                write!(f, "finished: this end of the data pipe has ended its stream; make another data pipe")
            }
            Self::Aborted { reason: u32::MAX } => write!(
                f,
                "aborted: a panic dropped the producer of this data pipe, so the stream is incomplete; look for the panic \
                 in the program at the other end, and make another data pipe"
            ),
            Self::Aborted { reason } => write!(
                f,
                "aborted: the other end of this data pipe was closed with the reason {reason}, so the stream is \
                 incomplete; look in the program at the other end for what the reason means, and make another data pipe"
            ),
            Self::NotElements { element } => write!(
                f,
                "not whole elements: this data pipe has elements of {element} bytes; give a multiple of that, or, to \
                 copy from or to a descriptor, make a data pipe with elements of one byte"
            ),
            Self::NotARegion(why) => write!(
                f,
                "the given descriptor cannot become a region: {why}; give a readable memfd of ordinary pages whose size \
                 is sealed or can be sealed (MFD_ALLOW_SEALING)"
            ),
            Self::InSet => write!(f, "the channel is already in a wait set: remove it from that set first"),
            Self::NotInSet => write!(f, "the channel is not, or no longer, in this wait set: add it first"),
            Self::ReactorEnded => write!(
                f,
                "reactor ended: the Reactor of this object was dropped, or its runtime has ended, so nothing would wake \
                 the task, and nothing was sent or received; make the object again with a Reactor of a running runtime \
                 (into_inner gives the object back), or wait in a thread (get_ref)"
            ),
            Self::OutcomeUnknown => write!(
                f,
                "the request was sent, and there is no reply: whether it was carried out is unknown; do not repeat the \
                 call unless that does no harm"
            ),
            Self::NotAnswered => write!(
                f,
                "the server dropped the request without a reply: look there for the reason; do not repeat the call \
                 unless that does no harm"
            ),
            Self::NotArmed => write!(
                f,
                "the trap was not armed: a condition is met already, or none can be met any more; receive what there \
                 is, and act on Channel::status"
            ),
            Self::HandlesLost { sent, arrived } => write!(
                f,
                "{arrived} of {sent} descriptors of the message arrived, and were closed; the bytes of the message are \
                 intact: if Options::accept_descriptors is off, switch it on; if Channel::peer_usage shows that the limit \
                 for this peer was reached, raise Limits; otherwise raise RLIMIT_NOFILE; then have the descriptors \
                 sent again"
            ),
            Self::NoDescriptors => write!(
                f,
                "no free descriptor in this process (RLIMIT_NOFILE), nothing was lost: close some or raise the limit, \
                 then call again"
            ),
            Self::NoMemory { call } => write!(
                f,
                "{call}: no memory or address space is left, nothing was lost: free some or ask for less, then call \
                 again"
            ),
            Self::LimitReached(resource) => write!(
                f,
                "limit reached: no more {resource} are held for this peer; nothing was lost: drop messages and ends \
                 that it sent, or raise the limit (Limits, Options::peer_memory), then call again"
            ),
            Self::BadPeer(reason) => write!(
                f,
                "bad peer: {reason}; the peer broke the protocol and the channel has ended: close it, and check the \
                 program at its other end"
            ),
            Self::Refused(refusal) => write!(f, "refused: {refusal}"),
            Self::Forked => write!(
                f,
                "forked: the parent process made the object of this call (a channel, a wait set, a listener or \
                 another), and only the parent can use it; make a new object in this process, the child of a fork"
            ),
            Self::NotASocket(other) => write!(
                f,
                "the given descriptor is {other}, and not a connected SOCK_SEQPACKET Unix socket: make one with \
                 socketpair or connect"
            ),
            Self::BadName => write!(
                f,
                "the name is not valid: give 1 to 64 letters, digits, dots, dashes and underscores, the first of them \
                 no dot, or an absolute path that ends so"
            ),
            Self::NameTaken => write!(
                f,
                "the name is taken: a listener uses it (see strait ls), or a file that is no listener of this user; \
                 stop that listener, remove that file, or choose another name"
            ),
            Self::NobodyThere => write!(
                f,
                "no process listens under this name: start the server, and check that both processes use the same name \
                 directory (STRAIT_DIR; strait ls lists the listeners), then try again"
            ),
            Self::UnsafeDirectory(why) => write!(f, "the name directory cannot be used: {why}"),
            Self::WrongServer { uid } => write!(
                f,
                "user {uid} listens under this name, and another user is expected: if user {uid} is the right one, \
                 give it to Connector::server"
            ),
            Self::NoInvitation => write!(
                f,
                "no invitation on standard input: start this process by Invitation::spawn, and read nothing from \
                 standard input before the invitation"
            ),
            Self::NotActivated => write!(
                f,
                "the service manager has not passed exactly one unused listening socket of the asked name (of any \
                 name, if none was asked): check ListenSequentialPacket= and FileDescriptorName= in the socket unit"
            ),
            Self::NoParent => {
                write!(f, "no channel to a parent: start this process by Command::spawn_with_channel")
            }
            Self::ParentTaken => write!(
                f,
                "the channel to the parent was already taken in this process: use the channel that the first call \
                 returned"
            ),
            Self::System { call, code } if code == EPERM || code == ENOSYS => write!(
                f,
                "{call}: {}; a sandbox may forbid this call: run strait doctor in it",
                std::io::Error::from_raw_os_error(code)
            ),
            Self::System { call, code } => write!(
                f,
                "{call}: {}; the kernel refused this system call: {SYSTEM_CALLS} says for which object Strait makes it, \
                 so check that object",
                std::io::Error::from_raw_os_error(code)
            ),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind as Kind;
        let kind = match error {
            Error::WouldBlock => Kind::WouldBlock,
            Error::TimedOut => Kind::TimedOut,
            Error::Signalled => Kind::Interrupted,
            Error::PeerClosed | Error::Finished => Kind::BrokenPipe,
            Error::Aborted { .. } => Kind::ConnectionAborted,
            Error::MessageTooLarge { .. }
            | Error::TooManyHandles { .. }
            | Error::BufferTooSmall { .. }
            | Error::OutOfRange { .. }
            | Error::NotElements { .. } => Kind::InvalidInput,
            Error::NoMemory { .. } | Error::LimitReached(_) => Kind::OutOfMemory,
            Error::NameTaken => Kind::AddrInUse,
            Error::NobodyThere => Kind::NotFound,
            Error::BadName => Kind::InvalidInput,
            Error::ReadOnly | Error::UnsafeDirectory(_) | Error::WrongServer { .. } => Kind::PermissionDenied,
            Error::BadPeer(_) => Kind::InvalidData,
            Error::Refused(_) => Kind::ConnectionRefused,
            Error::System { code, .. } => std::io::Error::from_raw_os_error(code).kind(),
            _ => Kind::Other,
        };
        Self::new(kind, error)
    }
}
