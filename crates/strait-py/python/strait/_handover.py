"""How connections become arguments of a new process of `multiprocessing`."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from . import _native

_links: weakref.WeakKeyDictionary[Any, _Link] = weakref.WeakKeyDictionary()
"""For each process that was started with connections: how those move to the process."""

_inherited: dict[int, _native.Connection] = {}
"""In a new process: the connections over which its parent sends opened connections, by their sockets."""


def reduce(connection: _native.Connection) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns how to make a connection in another process, for `pickle`.

    The socket of an unused end is duplicated. A used end moves to the process that `multiprocessing` is starting.
    """
    context = sys.modules.get("multiprocessing.context")
    popen = context.get_spawning_popen() if context is not None else None
    unopened = connection.unopened_parts()
    if context is None or (popen is None and unopened is None):
        raise TypeError("a connection travels by Connection.send, or as an argument of a process that is being started")
    if unopened is not None:
        from multiprocessing.reduction import DupFd

        descriptor, options = unopened
        return _rebuild, (DupFd(descriptor), connection.readable, connection.writable, options or {})
    return _receive, (_send(popen, connection), connection.readable, connection.writable)


def _rebuild(
    descriptor: Any, readable: bool, writable: bool, options: dict[str, Any]
) -> _native.Connection:
    return _native.unopened(descriptor.detach(), readable, writable, **options)


class _Link:
    """A pipe to a future process, over which connections move to it once the process has the other end of the pipe. So
    nothing has moved if the process cannot be started."""

    def __init__(self, popen: Any) -> None:
        self._here, there = _native.pipe()
        self._there: _native.Connection | None = there
        parts = there.unopened_parts()
        assert parts is not None
        # Once for each process: a second duplicate would be a second user of the end.
        self.inherited = popen.DupFd(popen.duplicate_for_child(parts[0]))
        self._waiting: list[_native.Connection] = []

    def add(self, connection: _native.Connection) -> None:
        if connection.closed:
            # Raises the exception of a closed or moved connection.
            connection.poll(0)
        self._waiting.append(connection)

    def move(self) -> None:
        """Moves the connections, in the order of their adding. The process has its descriptors, and waits for its
        arguments."""
        # While this process has a descriptor of the other end, it does not see the death of the new process.
        self._there = None
        for connection in self._waiting:
            self._here.send_bytes(b"", handles=[connection], timeout=0)
        self._waiting.clear()


def _send(popen: Any, connection: _native.Connection) -> Any:
    """Sends an end to a future process. Returns an object by which the new process finds its end of the pipe. The ends
    arrive over the pipe in the order of sending."""
    link = _links.get(popen)
    if link is None:
        link = _links[popen] = _Link(popen)
        popen.__class__ = _starting(popen.__class__)
    link.add(connection)
    return link.inherited


@functools.cache
def _starting(kind: Any) -> Any:
    """Returns a subclass of a class `Popen` of `multiprocessing`, for a process that is being started. Connections move
    once the process has its descriptors, and before the process gets its arguments: right then, each start method with
    pickled arguments sets the attribute `sentinel`."""

    class Starting(kind):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "sentinel":
                super().__setattr__("__class__", kind)
                _links[self].move()

    return Starting


def _receive(socket: Any, readable: bool, writable: bool) -> _native.Connection:
    descriptor = socket.detach()
    link = _inherited.get(descriptor)
    if link is None:
        link = _inherited[descriptor] = _native.unopened(descriptor)
    # The message was sent before the start of this process.
    received: Any = link.recv_message(timeout=0).handles[0]
    limited: _native.Connection = received.limited(readable, writable)
    return limited
