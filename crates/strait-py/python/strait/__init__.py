"""Message channels between processes on Linux.

    import strait

    one, other = strait.pair()
    one.send({"answer": 42})
    assert other.recv() == {"answer": 42}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import *  # noqa: F403
from ._errors import Unknown as Unknown
from ._arrays import Array, empty
from ._native import Caller, Connection, Consumer, Counters, DataPipe, File, Invitation, Listener, Memory, Message
from ._native import Opaque, Peer, Producer, Region, Request, Status
from ._native import connect, dumps, invited, loads, pair, parent, pipe, pool_held, pool_limit, set_limits
from ._native import set_pool_limit, trim
from ._options import Limits, Options
from ._process import process, spawn
from ._wait import wait

from . import _errors, arrays, codec

if TYPE_CHECKING:
    from ._executor import Executor

__all__ = [
    "Array", "Caller", "Connection", "Consumer", "Counters", "DataPipe", "Executor", "File", "Invitation", "Limits",
    "Listener", "Memory", "Message", "Opaque", "Options", "Peer", "Producer", "Region", "Request", "Status", "Unknown",
    "arrays", "codec", "connect", "dumps", "empty", "invited", "loads", "pair", "parent", "pipe", "pool_held",
    "pool_limit", "process", "set_limits", "set_pool_limit", "spawn", "trim", "wait",
]
__all__ += _errors.__all__

for _error in vars(_errors).values():
    if isinstance(_error, type) and _error.__module__ == _errors.__name__:
        _error.__module__ = "strait"


def __getattr__(name: str) -> Any:
    # Parts that need `multiprocessing` or `concurrent.futures` are loaded at the first use.
    if name == "Executor":
        from ._executor import Executor

        globals()[name] = Executor
        return Executor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
