"""Unpickles received messages, so a peer can run code in this process: use `strait.mp` with processes of your own user
only.

Stands in for `multiprocessing.connection`: `Pipe`, `Listener`, `Client`, and `wait`. Ends of pipes can be arguments of
`multiprocessing.Process`, with each start method.

    from multiprocessing import Process
    from strait.mp import Pipe

    def work(connection):
        connection.send(connection.recv() * 2)

    if __name__ == "__main__":
        here, there = Pipe()
        Process(target=work, args=(there,)).start()
        here.send(21)
        print(here.recv())

Differences from `multiprocessing`:

* One process alone can use an end of a pipe: the process that uses the end first. Other processes get an `OSError`.
* The death of a process is seen although other processes have inherited the end of the pipe.
* Any number of threads may use one connection. Each message arrives whole.
* Large arrays and other buffers of a pickle travel in shared memory, and arrive writable. Files, sockets and regions
  travel in an object that is sent.
* `fileno()` is for waiting only: the descriptor cannot be read or written.
* Addresses are paths of Unix sockets. There are no network addresses and no abstract addresses.
* There are no queues: a queue with several reading processes needs a process that hands out the items.
"""

from __future__ import annotations

import itertools
import os
import socket
import stat
import struct
from collections.abc import Iterable
from multiprocessing import AuthenticationError, BufferTooShort, connection as _theirs, util
from types import TracebackType
from typing import Any, Self

from . import _native, _pickled
from ._errors import BufferTooSmall, Closed, WrongServer
from ._wait import wait as _wait

__all__ = ["Client", "Connection", "Listener", "Pipe", "families", "wait"]

families = ["AF_UNIX"]
"""The kinds of addresses."""

_numbers = itertools.count()


class Connection:
    """An end of a pipe, or of a connection between a client and a listener."""

    __slots__ = ("__weakref__", "_end")

    def __init__(self, end: _native.Connection) -> None:
        self._end = end

    def send(self, obj: Any) -> None:
        """Sends an object that `pickle` can carry."""
        data, handles = _pickled.dumps(obj)
        self._end.send_bytes(data, handles=handles or None)

    def recv(self) -> Any:
        """Receives an object. Raises `EOFError` once the peer has closed and everything was received."""
        return _pickled.loads(self._end.recv_message())

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        """Sends bytes."""
        if offset < 0:
            raise ValueError("offset is negative")
        if size is not None and size < 0:
            raise ValueError("size is negative")
        self._end.send_bytes(buf, offset, size)

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """Receives the bytes of a message. If the message has more than `maxlength` bytes, raises `OSError`, and keeps
        the message."""
        if maxlength is not None and maxlength < 0:
            raise ValueError("negative maxlength")
        try:
            return self._end.recv_bytes(maxlength)
        except BufferTooSmall as error:
            raise OSError(f"the next message has {error.needed} bytes, more than {maxlength}; it was kept") from None

    def recv_bytes_into(self, buf: Any, offset: int = 0) -> int:
        """Receives the bytes of a message into a writable buffer, and returns the number of bytes. Raises
        `BufferTooShort` with the message if the buffer is too small."""
        if offset < 0:
            raise ValueError("negative offset")
        received = self._end._recv_bytes_into(buf, offset)
        if isinstance(received, bytes):
            raise BufferTooShort(received)
        return received

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Waits for a message until the timeout, and returns whether there is something to receive."""
        return self._end.poll(timeout)

    def fileno(self) -> int:
        """Returns a descriptor that is readable whenever there may be something to receive."""
        return self._end.fileno()

    def close(self) -> None:
        """Closes this end. Does nothing the second time."""
        self._end.close()

    @property
    def closed(self) -> bool:
        """Whether this end was closed here or sent away."""
        return self._end.closed

    @property
    def readable(self) -> bool:
        """Whether this end receives."""
        return self._end.readable

    @property
    def writable(self) -> bool:
        """Whether this end sends."""
        return self._end.writable

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Connection], tuple[_native.Connection]]:
        return Connection, (self._end,)

    def __repr__(self) -> str:
        return f"<strait.mp.Connection of {self._end!r}>"


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:  # noqa: N802
    """Returns the two ends of a new pipe. Without `duplex`, the first end only receives, and the second only sends."""
    one, other = _native.pipe(duplex)
    return Connection(one), Connection(other)


class Listener:
    """Accepts connections of processes of this user under the path of a Unix socket."""

    def __init__(
        self,
        address: str | None = None,
        family: str | None = None,
        backlog: int = 1,
        authkey: bytes | None = None,
    ) -> None:
        self._authkey = _key(authkey)
        self._last: Any = None
        self._process = os.getpid()
        self._address = _path(address, family)
        self._socket: socket.socket | None = _socket()
        try:
            self._socket.bind(self._address)
            self._socket.listen(backlog)
        except BaseException:
            self._socket.close()
            raise
        made = os.stat(self._address)
        self._unlink = util.Finalize(
            self, _unlink, args=(self._address, made.st_dev, made.st_ino), exitpriority=0
        )

    def accept(self) -> Connection:
        """Returns the connection to the next connecting process. A process of another user is refused."""
        while True:
            listening = self._socket
            if listening is None:
                raise Closed("this listener was closed")
            try:
                accepted, _address = listening.accept()
            except OSError:
                if self._socket is None:
                    raise Closed("this listener was closed") from None
                raise
            if _user(accepted) == os.geteuid():
                break
            accepted.close()
        connection = _over(accepted)
        if self._authkey is not None:
            _check(connection, self._authkey, first=True)
        self._last = ""
        return connection

    def close(self) -> None:
        """Stops listening, and removes the socket's path. Accepted connections stay open. In a child of `fork`, closes
        the child's descriptor only: the parent goes on listening."""
        listening, self._socket = self._socket, None
        if listening is not None:
            if os.getpid() == self._process:
                # Ends the waits of other threads.
                try:
                    listening.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            listening.close()
            self._unlink()

    def fileno(self) -> int:
        """Returns a descriptor that is readable whenever a process waits to be accepted."""
        if self._socket is None:
            raise Closed("this listener was closed")
        return self._socket.fileno()

    @property
    def address(self) -> str:
        """The path of the socket, for `Client`."""
        return self._address

    @property
    def last_accepted(self) -> str | None:
        """The address of the last client: the empty text, since clients have no address; `None` before the first."""
        last: str | None = self._last
        return last

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def Client(address: str, family: str | None = None, authkey: bytes | None = None) -> Connection:  # noqa: N802
    """Returns a connection to the listener at a path. Raises `WrongServer` if a process of another user listens."""
    key = _key(authkey)
    path = _path(address, family)
    connected = _socket()
    try:
        connected.connect(path)
        if _user(connected) not in (os.geteuid(), 0):
            raise WrongServer(f"{path}: another user listens there, and this module would unpickle what it sends")
    except BaseException:
        connected.close()
        raise
    connection = _over(connected)
    if key is not None:
        _check(connection, key, first=False)
    return connection


def wait(object_list: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Waits until an object is ready, and returns all ready objects: connections with something to receive, and other
    objects with a readable descriptor, or numbers of readable descriptors."""
    objects = list(object_list)
    ends = [item._end if isinstance(item, Connection) else item for item in objects]
    ready = {id(end) for end in _wait(ends, timeout)}
    return [item for item, end in zip(objects, ends, strict=True) if id(end) in ready]


def _key(authkey: bytes | None) -> bytes | None:
    if authkey is not None and not isinstance(authkey, bytes):
        raise TypeError("authkey should be a byte string")
    return authkey


def _path(address: str | None, family: str | None) -> str:
    if family not in (None, "AF_UNIX"):
        raise ValueError(f"family {family!r}: connections of Strait stay on one machine, so there is AF_UNIX alone")
    if address is None or address == "":
        return os.path.join(util.get_temp_dir(), f"strait-{os.getpid()}-{next(_numbers)}")
    if not isinstance(address, (str, os.PathLike)):
        raise ValueError(f"address {address!r}: give the path of a Unix socket")
    path = os.fspath(address)
    if "\0" in path:
        raise ValueError(f"address {path!r}: an abstract socket has no permissions; give the path of a Unix socket")
    return path


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _user(connected: socket.socket) -> int:
    """Returns the user at the other end of a socket, by the kernel's report."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user


def _unlink(path: str, device: int, inode: int) -> None:
    """Removes the path of a listener, unless something else is there now."""
    try:
        found = os.lstat(path)
        if stat.S_ISSOCK(found.st_mode) and (found.st_dev, found.st_ino) == (device, inode):
            os.unlink(path)
    except OSError:
        pass


def _over(connected: socket.socket) -> Connection:
    return Connection(_native.unopened(connected.detach()))


def _check(connection: Connection, key: bytes, first: bool) -> None:
    """Makes each process prove to the other that it has the key, like `multiprocessing`. Raises
    `AuthenticationError`."""
    steps: list[Any] = [_theirs.deliver_challenge, _theirs.answer_challenge]
    try:
        for step in steps if first else reversed(steps):
            step(connection, key)
    except (AuthenticationError, EOFError, OSError):
        connection.close()
        raise
