"""Waiting for several objects at once."""

from __future__ import annotations

import errno
import math
import select
import time
from collections.abc import Collection, Iterable
from typing import Any

from ._native import Connection, Consumer, Group, Producer

_ASKED = Connection, Consumer, Producer
"""The objects that are asked themselves: the descriptor of one may be readable although there is nothing."""

_REFUSED = errno.EPERM, errno.ELOOP
"""The errors of `epoll` for a descriptor that `poll` takes: a kind of file, and an `epoll` of many levels."""


def _ready(item: Any) -> bool:
    return item.poll(0) if isinstance(item, Connection) else item.poll()


def _milliseconds(end: float | None) -> int | None:
    """Returns the time until `end` for `poll`, at most 2**31 - 1 milliseconds."""
    if end is None:
        return None
    return min(max(0, math.ceil((end - time.monotonic()) * 1000)), 2**31 - 1)


def _sleep(group: Group, descriptors: Collection[int], end: float | None) -> None:
    """Sleeps until the group or a descriptor may have something, or until `end`. Each signal interrupts the sleep. A
    sleep in Python's `poll` would go on after a signal right before `poll`, and so after Ctrl-C."""
    seconds = None if end is None else max(0.0, end - time.monotonic())
    if not descriptors:
        group.sleep(seconds)
        return
    with select.epoll() as others:
        for descriptor in descriptors:
            others.register(descriptor, select.EPOLLIN)
        group.sleep(seconds, others.fileno())


def wait(objects: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Waits until an object has something to receive or to accept, and returns all such objects.

    The objects are connections, listeners, ends of data pipes, and other objects with a method `fileno`. Returns an
    empty list if the timeout ends first. A connection with a closed peer counts as ready.

    The call takes three descriptors for all connections and ends of data pipes together. One of them needs a descriptor
    of its own only if the program has called its `fileno`, the `poll` of a connection with a wait, or the `poll` of an
    end of a data pipe, or if two threads wait for it. All other objects together take two more descriptors.
    """
    objects = list(objects)
    end = None if timeout is None else time.monotonic() + max(0.0, timeout)
    while True:
        group = Group()
        try:
            ready = _wait_once(group, objects, end)
        finally:
            group.release()
        if ready is not None:
            return [item for item in objects if id(item) in ready]


def _wait_once(group: Group, objects: list[Any], end: float | None) -> set[int] | None:
    """Waits, and returns the identities of the ready objects; `None` if `group` has ended, since an object has left."""
    poller = select.poll()
    by_descriptor: dict[int, list[Any]] = {}
    asked = []
    for item in objects:
        if isinstance(item, _ASKED):
            if group.add(item):
                continue
            asked.append(item)
        descriptor = item if isinstance(item, int) else item.fileno()
        by_descriptor.setdefault(descriptor, []).append(item)
        poller.register(descriptor, select.POLLIN)
    poller.register(group.fileno(), select.POLLIN)
    while True:
        joined = group.ready()
        if joined is None:
            return None
        ready = {id(item) for item in joined}
        ready |= {id(item) for item in asked if _ready(item)}
        for descriptor, _event in poller.poll(0):
            ready |= {
                id(item)
                for item in by_descriptor.get(descriptor, ())
                if not isinstance(item, _ASKED) or _ready(item)
            }
        if ready or (end is not None and time.monotonic() >= end):
            return ready
        try:
            _sleep(group, by_descriptor, end)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            poller.poll(_milliseconds(end))
