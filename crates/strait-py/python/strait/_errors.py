"""The exceptions of the package, and received objects of unknown kinds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "StraitError", "WouldBlock", "TimedOut", "Interrupted", "PeerClosed", "Closed", "Moved", "MessageTooLarge",
    "TooManyHandles", "BufferTooSmall", "NotElements", "OutOfRange", "BadHandle", "OwnChannel", "NotARegion",
    "NotASocket", "BadName", "HandlesLost", "NoDescriptors", "LimitReached", "System", "NoMemory", "BadPeer",
    "Refused", "NameTaken", "NobodyThere", "NoParent", "NoInvitation", "UnsafeDirectory", "WrongServer", "Forked",
    "ReadOnly", "NotSealed", "StillMapped", "WorkerDied", "Finished", "Aborted", "CallError", "NotSent",
    "NotAnswered", "OutcomeUnknown", "NotPlain", "Malformed",
]


class StraitError(Exception):
    """An error of Strait. The base class of every exception of this package."""

    passes: bool = False
    """Whether the failed call has changed nothing, so that a later call may succeed."""


class WouldBlock(StraitError, BlockingIOError):
    """The call would have to wait, and the timeout was 0."""

    passes = True


class TimedOut(StraitError, TimeoutError):
    """The timeout ended first. Nothing was sent, received or accepted."""

    passes = True


class Interrupted(StraitError, OSError):
    """Another thread has ended the wait."""

    passes = True


class PeerClosed(StraitError, EOFError, BrokenPipeError):
    """The peer has closed its end, or its process has ended, and all messages of the peer were received."""

    reason: int = 0
    """The reason that the peer gave to `close`; 0 if it gave none."""


class Closed(StraitError, OSError, ValueError):
    """This process has closed the object."""


class Moved(StraitError, OSError, ValueError):
    """This process has sent the object away in a message."""


class MessageTooLarge(StraitError, ValueError):
    """The message is over the limit of bytes."""

    passes = True


class TooManyHandles(StraitError, ValueError):
    """The message is over the limit of handles."""

    passes = True


class BufferTooSmall(StraitError, ValueError):
    """The next message does not fit. The message was kept."""

    passes = True
    needed: int = 0
    """The number of bytes of the next message."""


class NotElements(StraitError, ValueError):
    """The length is no multiple of the element of a data pipe."""

    passes = True


class OutOfRange(StraitError, ValueError):
    """The offset or the length is outside of the object."""

    passes = True


class BadHandle(StraitError, ValueError):
    """A handle is no open descriptor."""

    passes = True


class OwnChannel(StraitError, ValueError):
    """A connection cannot be sent over itself."""

    passes = True


class NotARegion(StraitError, ValueError):
    """The descriptor cannot become a region."""


class NotASocket(StraitError, ValueError):
    """The descriptor is no connected socket of the right kind."""


class BadName(StraitError, ValueError):
    """The name is not valid."""


class HandlesLost(StraitError, OSError):
    """Descriptors of a message did not arrive."""

    passes = True


class NoDescriptors(StraitError, OSError):
    """This process has no free descriptor."""

    passes = True


class LimitReached(StraitError, OSError):
    """This process is at its limit of a resource for the peer."""

    passes = True


class System(StraitError, OSError):
    """The kernel refused a system call; `errno` says why."""

    passes = True


class NoMemory(StraitError, MemoryError):
    """There is no memory or no address space left."""

    passes = True


class BadPeer(StraitError, ConnectionError):
    """The peer broke the protocol."""


class Refused(StraitError, ConnectionError):
    """The listener refused the connection."""

    why: str = ""
    """The reason of the listener."""


class NameTaken(StraitError, FileExistsError):
    """Another listener has the name."""


class NobodyThere(StraitError, ConnectionRefusedError, FileNotFoundError):
    """No process listens under the name."""

    passes = True


class NoParent(StraitError, RuntimeError):
    """This process has no connection to a parent, or has taken it before."""


class NoInvitation(StraitError, ValueError):
    """The standard input of this process has no invitation."""


class UnsafeDirectory(StraitError, PermissionError):
    """The name directory is missing, or other users could change it."""


class WrongServer(StraitError, PermissionError):
    """Another user listens under the name."""


class Forked(StraitError, RuntimeError):
    """The parent of this process made the object, and only the parent can use it."""


class ReadOnly(StraitError, BufferError):
    """The region is read-only."""


class NotSealed(StraitError, BufferError):
    """The region is not sealed."""

    passes = True


class StillMapped(StraitError, BufferError):
    """A process has the region mapped for writing."""

    passes = True


class WorkerDied(StraitError, RuntimeError):
    """The process of a call of an `Executor` has ended. Whether the call had effects is unknown."""

    exitcode: int | None = None
    """The exit code of the process; the negative number of the signal that killed it."""


class Finished(StraitError, BrokenPipeError):
    """This end of the data pipe has ended the stream."""


class Aborted(StraitError, ConnectionAbortedError):
    """The other end of the data pipe was closed with a reason. The stream is incomplete."""

    reason: int = 0
    """The number that the program at the other end gave; 2**32 - 1 if a panic of a Rust program dropped the producer."""


class CallError(StraitError, RuntimeError):
    """A call has failed. The cause of the exception says why."""


class NotSent(CallError):
    """The request was not sent, so the other side has not carried it out."""

    passes = True


class NotAnswered(CallError):
    """The other side has dropped the request without a reply."""


class OutcomeUnknown(CallError):
    """The request was sent, and no reply came. Whether the other side has carried it out is not known."""


class NotPlain(StraitError, TypeError):
    """The codec cannot carry a part of the object. The text names the place of the part."""

    passes = True


class Malformed(StraitError, ValueError):
    """A received message is not a plain object. The message is gone, and its handles are closed; the connection
    works."""


@dataclass(frozen=True)
class Unknown:
    """A received MessagePack extension, unknown to this version. The extension can be sent on."""

    code: int
    data: bytes
