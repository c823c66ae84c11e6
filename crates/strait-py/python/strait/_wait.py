"""Waiting for several objects at once."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Iterable
from typing import Any

from ._native import Connection, Consumer, Producer

_ASKED = Connection, Consumer, Producer
"""The objects that are asked themselves: the descriptor of one may be readable although there is nothing."""


def _ready(item: Any) -> bool:
    return item.poll(0) if isinstance(item, Connection) else item.poll()


def _milliseconds(end: float | None) -> int | None:
    """Returns the time until `end` for `poll`, at most 2**31 - 1 milliseconds."""
    if end is None:
        return None
    return min(max(0, math.ceil((end - time.monotonic()) * 1000)), 2**31 - 1)


def wait(objects: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Waits until an object has something to receive or to accept, and returns all such objects.

    The objects are connections, listeners, ends of data pipes, and other objects with a method `fileno`. Returns an
    empty list if the timeout ends first. A connection with a closed peer counts as ready.
    """
    objects = list(objects)
    end = None if timeout is None else time.monotonic() + max(0.0, timeout)
    poller = select.poll()
    by_descriptor: dict[int, list[Any]] = {}
    for item in objects:
        descriptor = item if isinstance(item, int) else item.fileno()
        by_descriptor.setdefault(descriptor, []).append(item)
        poller.register(descriptor, select.POLLIN)
    while True:
        ready = {
            id(item)
            for item in objects
            if isinstance(item, _ASKED) and _ready(item)
        }
        limit = 0 if ready else _milliseconds(end)
        for descriptor, _event in poller.poll(limit):
            ready |= {
                id(item)
                for item in by_descriptor[descriptor]
                if not isinstance(item, _ASKED) or _ready(item)
            }
        if ready or (end is not None and time.monotonic() >= end):
            return [item for item in objects if id(item) in ready]
