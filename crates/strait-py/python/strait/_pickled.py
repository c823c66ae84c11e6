"""Objects as pickles with handles: for peers that may run code in this process."""

from __future__ import annotations

import io
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

from . import _arrays
from ._native import Connection, File, Memory, Message, Region

_LARGE = 1 << 16
"""The size in bytes from which on a buffer travels in a region of its own."""
_MOST_REGIONS = 32

_Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


class _Pickler(ForkingPickler):
    """Puts handles beside the pickle, and large buffers into regions."""

    def __init__(self, file: io.BytesIO) -> None:
        self.carriers: list[Any] = []
        self.regions: list[Region] = []
        super().__init__(file, 5, True, self._buffer)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is Connection:
            return self._connection(obj)
        if kind is File or kind is Region:
            return _taken, (self._carry(obj),)
        if isinstance(obj, socket.socket):
            return _socket, (self._carry(File(obj)), obj.family, obj.type, obj.proto)
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor:
            return _arrays.reduce_tensor(torch, obj)
        return NotImplemented

    def _carry(self, obj: Any) -> int:
        self.carriers.append(obj)
        return len(self.carriers) - 1

    def _connection(self, connection: Connection) -> _Reduced:
        unopened = connection.unopened_parts()
        if unopened is None:
            return _moved, (self._carry(connection), connection.readable, connection.writable)
        descriptor, options = unopened
        carried = self._carry(File(descriptor))
        return _unopened, (carried, connection.readable, connection.writable, options or {})

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Returns whether a buffer stays in the pickle."""
        if len(self.regions) == _MOST_REGIONS:
            return True
        with buffer.raw() as raw:
            if raw.nbytes < _LARGE or raw.readonly and isinstance(raw.obj, bytes):
                return True
            self.regions.append(_arrays.sealed_buffer(raw))
        return False


class _Unpickling(threading.local):
    handles: list[Any] = []


_current = _Unpickling()
"""The handles of the message that this thread unpickles."""


def _taken(index: int) -> Any:
    return _current.handles[index]


def _moved(index: int, readable: bool, writable: bool) -> Connection:
    connection: Connection = _current.handles[index]
    return connection.limited(readable, writable)


def _unopened(index: int, readable: bool, writable: bool, options: dict[str, Any]) -> Connection:
    from ._native import unopened

    return unopened(_current.handles[index].detach(), readable, writable, **options)


def _socket(index: int, family: int, kind: int, protocol: int) -> socket.socket:
    return socket.socket(family, kind, protocol, fileno=_current.handles[index].detach())


def dumps(obj: object) -> tuple[memoryview, list[Any]]:
    """Returns the pickle of an object, and its handles."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(obj)
    # The buffers are counted from the end, so that their number need not be sent.
    return file.getbuffer(), [*pickler.carriers, *reversed(pickler.regions)]


def loads(message: Message) -> Any:
    """Returns the object of a received pickle."""
    handles = message.handles
    if not handles:
        return pickle.loads(message.bytes)
    before, _current.handles = _current.handles, handles
    try:
        return pickle.loads(message.bytes, buffers=_memories(handles))
    finally:
        _current.handles = before


def _memories(handles: list[Any]) -> Iterator[Memory]:
    for region in reversed(handles):
        yield region.private()
