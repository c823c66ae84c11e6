"""How connections become arguments of a new process of `multiprocessing`."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from . import _native

_links: weakref.WeakKeyDictionary[Any, tuple[_native.Connection, _native.Connection, Any]] = weakref.WeakKeyDictionary()
"""For each process that was started with connections: the two ends of the pipe over which those move, and what the new
process gets to find its end."""

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


def _send(popen: Any, connection: _native.Connection) -> Any:
    """Sends an end to a future process. Returns an object by which the new process finds its end of the pipe. The ends
    arrive over the pipe in the order of sending."""
    link = _links.get(popen)
    if link is None:
        one, other = _native.pipe()
        parts = other.unopened_parts()
        assert parts is not None
        # Once for each process: a second duplicate would be a second user of the end.
        link = _links[popen] = one, other, popen.DupFd(popen.duplicate_for_child(parts[0]))
    link[0].send_bytes(b"", handles=[connection], timeout=0)
    return link[2]


def _receive(socket: Any, readable: bool, writable: bool) -> _native.Connection:
    descriptor = socket.detach()
    link = _inherited.get(descriptor)
    if link is None:
        link = _inherited[descriptor] = _native.unopened(descriptor)
    # The message was sent before the start of this process.
    received: Any = link.recv_message(timeout=0).handles[0]
    limited: _native.Connection = received.limited(readable, writable)
    return limited
