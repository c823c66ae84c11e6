"""Connections for `asyncio`.

    import asyncio
    from strait import aio

    async def main():
        one, other = aio.pair()
        async with one, other:
            await one.send("hello")
            assert await other.recv() == "hello"

    asyncio.run(main())

An event loop waits for one descriptor, however many connections there are, and for one more for each listener in whose
`accept` a task waits. A call that is cancelled has sent, received and accepted nothing.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar

from . import _native
from ._errors import Closed, PeerClosed, TimedOut, WouldBlock

__all__ = ["Connection", "Listener", "connect", "pair", "parent"]

T = TypeVar("T")

_reactors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _native.Reactor] = weakref.WeakKeyDictionary()


def _reactor(loop: asyncio.AbstractEventLoop) -> _native.Reactor:
    reactor = _reactors.get(loop)
    if reactor is None:
        reactor = _reactors[loop] = _native.Reactor()
        loop.add_reader(reactor.fileno(), reactor.turn)
    return reactor


@asynccontextmanager
async def _limit(timeout: float | None) -> AsyncIterator[None]:
    """Raises `TimedOut` in the task, at a point where it waits, once the timeout has ended."""
    if timeout is None:
        yield
        return
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimedOut:
        raise
    except TimeoutError:
        raise TimedOut("the timeout ended first") from None


class _Waiters:
    """The tasks of a loop that wait for one object. Any thread may call this object to wake them all."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._futures: set[asyncio.Future[None]] = set()

    def __call__(self) -> None:
        if threading.get_ident() == self._thread:
            self.wake()
        else:
            self.loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        for future in self._futures:
            if not future.done():
                future.set_result(None)

    def __len__(self) -> int:
        return len(self._futures)

    async def until(self, attempt: Callable[[], T | None]) -> T:
        """Makes attempts until one returns something. Returns that without another look at the loop, so that a
        cancelled task has made no attempt that returned something."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("this object belongs to another event loop")
        while True:
            # The attempt itself may call this object.
            future: asyncio.Future[None] = self.loop.create_future()
            self._futures.add(future)
            try:
                done = attempt()
                if done is not None:
                    return done
                await future
            finally:
                self._futures.discard(future)


class Connection:
    """An end of a channel in the event loop that runs when this object is made. It takes the end out of `connection`,
    a `strait.Connection`, which counts as moved afterwards."""

    def __init__(self, connection: _native.Connection) -> None:
        self._waiters = _Waiters()
        self._sending = asyncio.Lock()
        self._end = _native.AsyncEnd(connection, _reactor(self._waiters.loop), self._waiters)

    async def send(self, obj: object, *, timeout: float | None = None) -> None:
        """Sends an object in the codec `plain`."""
        await self._send(_native.Draft(obj), timeout)

    async def send_bytes(
        self, data: Any, *, handles: Iterable[Any] | None = None, timeout: float | None = None
    ) -> None:
        """Sends bytes, and handles with them."""
        await self._send(_native.Draft.of_bytes(data, handles), timeout)

    async def _send(self, draft: _native.Draft, timeout: float | None) -> None:
        async with _limit(timeout), self._sending:
            await self._waiters.until(lambda: self._end.poll_send(draft) or None)

    async def recv(self, *, timeout: float | None = None) -> Any:
        """Receives an object in the codec `plain`."""
        if timeout is None:
            return (await self._waiters.until(self._end.poll_recv))[0]
        async with _limit(timeout):
            return (await self._waiters.until(self._end.poll_recv))[0]

    async def recv_bytes(self, *, timeout: float | None = None) -> bytes:
        """Receives the bytes of a message, and closes the handles that came with it."""
        async with _limit(timeout):
            return await self._waiters.until(self._end.poll_recv_bytes)

    def detach(self) -> _native.Connection:
        """Takes the end out of the loop, for example to send it; returns it as a `strait.Connection`. Tasks that wait
        get `Closed`."""
        connection = self._end.detach()
        self._waiters()
        return connection

    def close(self, reason: int = 0) -> None:
        """Closes this end, and tells the other end the reason. Tasks that wait get `Closed`."""
        self._end.close(reason)
        self._waiters()

    @property
    def closed(self) -> bool:
        """Whether this end was closed or detached."""
        return self._end.closed

    @property
    def peer(self) -> _native.Peer | None:
        """The process at the other end; `None` as long as that is not known."""
        return self._end.peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Receives the next object. Ends once the peer has closed and everything was received."""
        try:
            return await self.recv()
        except PeerClosed:
            raise StopAsyncIteration from None


class Listener:
    """Accepts connections under a name, in the event loop that runs when this object is made. The arguments are those
    of `strait.Listener`."""

    def __init__(self, name: str, **keywords: Any) -> None:
        self._waiters = _Waiters()
        self._listener = _native.Listener(name, **keywords)

    async def accept(self, timeout: float | None = None) -> Connection:
        """Returns the connection to the next process that connects."""
        async with _limit(timeout):
            return Connection(await self._accept())

    async def _accept(self) -> _native.Connection:
        descriptor = self._listener.fileno()
        if not self._waiters:
            self._waiters.loop.add_reader(descriptor, self._waiters.wake)
        try:
            return await self._waiters.until(self._attempt)
        finally:
            if not self._waiters and not self._listener.closed:
                self._waiters.loop.remove_reader(descriptor)

    def _attempt(self) -> _native.Connection | None:
        try:
            return self._listener.accept(0)
        except WouldBlock:
            return None

    def close(self) -> None:
        """Stops listening. Tasks that wait get `Closed`. Accepted connections stay open."""
        if self._waiters:
            self._waiters.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._waiters()

    @property
    def closed(self) -> bool:
        """Whether the listener was closed."""
        return self._listener.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Connection:
        """Returns the next connection. Ends once the listener is closed."""
        try:
            return await self.accept()
        except Closed:
            raise StopAsyncIteration from None


def pair(**options: Any) -> tuple[Connection, Connection]:
    """Returns the two ends of a new channel."""
    one, other = _native.pair(**options)
    return Connection(one), Connection(other)


async def connect(name: str, **keywords: Any) -> Connection:
    """Connects to a listener. A thread of the loop's executor waits for it. The arguments are those of
    `strait.connect`."""
    loop = asyncio.get_running_loop()
    return Connection(await loop.run_in_executor(None, partial(_native.connect, name, **keywords)))


def parent(**options: Any) -> Connection:
    """Returns the connection to the process that started this one with `strait.spawn`."""
    return Connection(_native.parent(**options))
