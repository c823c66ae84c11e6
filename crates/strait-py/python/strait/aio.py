"""Connections for `asyncio` and `trio`.

    import asyncio
    from strait import aio

    async def main():
        one, other = aio.pair()
        async with one, other:
            await one.send("hello")
            assert await other.recv() == "hello"

    asyncio.run(main())

The event loop of an object is the running loop: the loop of `asyncio` (also with `uvloop`) or of `trio`; with `anyio`,
the loop of its backend.

An event loop waits for one descriptor, however many connections there are, and for one more for each listener with a
task in `accept`. A cancelled `send`, `recv` or `accept` has sent, received and accepted nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar

from . import _native
from ._errors import Closed, Interrupted, PeerClosed, TimedOut, WouldBlock
from ._process import inherit

__all__ = ["Caller", "Connection", "Consumer", "Listener", "Producer", "Request", "connect", "pair", "parent", "spawn"]

T = TypeVar("T")

_BUDGET = 100
"""How many calls in a row may return without letting other tasks of the loop run."""


class _Loop:
    """The interface of an event loop for connections."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.budget = _BUDGET
        self.reactor = _native.Reactor()
        self.add_reader(self.reactor.fileno(), self.reactor.turn)

    def runs(self) -> bool:
        """Returns whether this event loop runs in this thread."""
        raise NotImplementedError

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        raise NotImplementedError

    def add_reader(self, descriptor: int, call: Callable[[], object]) -> None:
        raise NotImplementedError

    def remove_reader(self, descriptor: int) -> None:
        raise NotImplementedError

    def lock(self) -> Any:
        """Returns a new lock for tasks."""
        raise NotImplementedError

    def waiter(self) -> Any:
        """Returns a new object for which one task can wait."""
        raise NotImplementedError

    def wake(self, waiter: Any) -> None:
        raise NotImplementedError

    async def wait(self, waiter: Any) -> None:
        raise NotImplementedError

    async def let_others_run(self) -> None:
        raise NotImplementedError

    def limit(self, timeout: float) -> AbstractAsyncContextManager[None]:
        """Once the timeout has ended, raises `TimedOut` in the task, at a point where the task waits."""
        raise NotImplementedError

    async def in_thread(self, call: Callable[[], T], drop: Callable[[T], object]) -> T:
        """Makes a call in a thread of its own, for which neither the loop nor the interpreter waits. If the task is
        cancelled, calls `drop` with the late result."""
        waiter = self.waiter()
        done = dropped = False
        result: list[T] = []
        errors: list[BaseException] = []

        def on_end() -> None:
            nonlocal done
            done = True
            self.wake(waiter)
            drop_late()

        def drop_late() -> None:
            if done and dropped and result:
                drop(result.pop())

        def run() -> None:
            try:
                result.append(call())
            except BaseException as error:
                errors.append(error)
            try:
                self.call_soon_threadsafe(on_end)
            except RuntimeError:
                # The loop has ended.
                while result:
                    drop(result.pop())

        threading.Thread(target=run, name="strait-aio", daemon=True).start()
        try:
            await self.wait(waiter)
        except BaseException:
            dropped = True
            drop_late()
            raise
        if errors:
            try:
                raise errors.pop()
            finally:
                # The exception has the frame of this call in its traceback.
                errors.clear()
        return result.pop()

    def may_go_on(self) -> bool:
        """Counts a call of a task. Returns `False` if other tasks are to run first."""
        if not self.runs():
            raise RuntimeError("this object belongs to another event loop")
        self.budget -= 1
        return self.budget >= 0


class _Asyncio(_Loop):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # The loop refers to this object by a reader, and must not keep itself alive.
        self._loop = weakref.ref(loop)
        super().__init__()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop()
        if loop is None:
            raise RuntimeError("the event loop is gone")
        return loop

    def runs(self) -> bool:
        return asyncio.get_running_loop() is self._loop()

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(call)

    def add_reader(self, descriptor: int, call: Callable[[], object]) -> None:
        self.loop.add_reader(descriptor, call)

    def remove_reader(self, descriptor: int) -> None:
        self.loop.remove_reader(descriptor)

    def lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    def waiter(self) -> asyncio.Future[None]:
        return self.loop.create_future()

    def wake(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    async def wait(self, waiter: asyncio.Future[None]) -> None:
        await waiter

    async def let_others_run(self) -> None:
        await asyncio.sleep(0)

    @asynccontextmanager
    async def limit(self, timeout: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout):
                yield
        except TimedOut:
            raise
        except TimeoutError:
            raise TimedOut("the timeout ended first") from None


class _Trio(_Loop):
    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        self._scopes: dict[int, Any] = {}
        super().__init__()

    def runs(self) -> bool:
        return self._trio.lowlevel.current_trio_token() is self._token

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        self._token.run_sync_soon(call)

    def add_reader(self, descriptor: int, call: Callable[[], object]) -> None:
        scope = self._scopes[descriptor] = self._trio.CancelScope()
        self._trio.lowlevel.spawn_system_task(self._read, scope, descriptor, call)

    async def _read(self, scope: Any, descriptor: int, call: Callable[[], object]) -> None:
        with scope:
            while True:
                await self._trio.lowlevel.wait_readable(descriptor)
                call()

    def remove_reader(self, descriptor: int) -> None:
        self._scopes.pop(descriptor).cancel()
        # When the descriptor is closed, the task must not wait for it any more.
        self._trio.lowlevel.notify_closing(descriptor)

    def lock(self) -> Any:
        return self._trio.Lock()

    def waiter(self) -> Any:
        return self._trio.Event()

    def wake(self, waiter: Any) -> None:
        waiter.set()

    async def wait(self, waiter: Any) -> None:
        await waiter.wait()

    async def let_others_run(self) -> None:
        await self._trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def limit(self, timeout: float) -> AsyncIterator[None]:
        with self._trio.move_on_after(max(0.0, timeout)) as scope:
            yield
        if scope.cancelled_caught:
            raise TimedOut("the timeout ended first")


_loops: weakref.WeakKeyDictionary[Any, _Loop] = weakref.WeakKeyDictionary()
_of_trio: Any = None


def _running() -> _Loop:
    """Returns this module's interface to the running event loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        if "trio" not in sys.modules:
            raise
        return _running_trio()
    found = _loops.get(loop)
    if found is None:
        found = _loops[loop] = _Asyncio(loop)
    return found


def _running_trio() -> _Loop:
    global _of_trio
    trio = importlib.import_module("trio")
    if _of_trio is None:
        _of_trio = trio.lowlevel.RunVar("strait", default=None)
    found: _Loop | None = _of_trio.get()
    if found is None:
        found = _Trio(trio)
        _of_trio.set(found)
    return found


class _Waiters:
    """The tasks of a loop that wait for one object. Any thread may call this object, to wake all tasks."""

    def __init__(self) -> None:
        self.loop = _running()
        self._waiters: set[Any] = set()

    def __call__(self) -> None:
        if threading.get_ident() == self.loop.thread:
            self.wake()
        else:
            self.loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        for waiter in self._waiters:
            self.loop.wake(waiter)

    def __len__(self) -> int:
        return len(self._waiters)

    async def until(self, attempt: Callable[[], T | None], timeout: float | None) -> T:
        """Makes attempts until an attempt returns a result. Returns the result without another look at the loop, so
        that a cancelled task has made no successful attempt."""
        if timeout is None:
            return await self._until(attempt)
        if math.isnan(timeout):
            raise ValueError("the timeout is not a number (NaN)")
        async with self.loop.limit(timeout):
            return await self._until(attempt)

    async def _until(self, attempt: Callable[[], T | None]) -> T:
        if not self.loop.runs():
            raise RuntimeError("this object belongs to another event loop")
        if self.loop.budget < 0:
            self.loop.budget = _BUDGET
            await self.loop.let_others_run()
        while True:
            # The attempt itself may call this object.
            waiter = self.loop.waiter()
            self._waiters.add(waiter)
            try:
                done = attempt()
                if done is not None:
                    return done
                await self.loop.wait(waiter)
            finally:
                self._waiters.discard(waiter)
            self.loop.budget = _BUDGET


class Connection:
    """An end of a channel in an event loop: the running loop when this object is made. The end is taken out of
    `connection`, a `strait.Connection`, which counts as moved afterwards."""

    def __init__(self, connection: _native.Connection) -> None:
        self._waiters = _Waiters()
        self._loop = self._waiters.loop
        self._sending = self._loop.lock()
        self._senders = 0
        self._end = _native.AsyncEnd(connection, self._loop.reactor, self._waiters)

    async def send(self, obj: object, *, timeout: float | None = None) -> None:
        """Sends an object in the codec `plain`."""
        draft = self._end.draft(obj)
        if not self._sent_at_once(draft):
            await self._send(draft, timeout)

    async def send_bytes(
        self, data: Any, *, handles: Iterable[Any] | None = None, timeout: float | None = None
    ) -> None:
        """Sends bytes and handles."""
        draft = _native.Draft.of_bytes(data, handles)
        if not self._sent_at_once(draft):
            await self._send(draft, timeout)

    async def sendv(
        self, parts: Iterable[Any], *, handles: Iterable[Any] | None = None, timeout: float | None = None
    ) -> None:
        """Sends the bytes of several buffers, and handles, as one message."""
        draft = _native.Draft.of_parts(parts, handles)
        if not self._sent_at_once(draft):
            await self._send(draft, timeout)

    def _sent_at_once(self, draft: _native.Draft) -> bool:
        """Returns whether the message could be sent without waiting, and was."""
        return self._senders == 0 and self._loop.may_go_on() and self._end.poll_send(draft)

    async def _send(self, draft: _native.Draft, timeout: float | None) -> None:
        self._senders += 1
        try:
            if timeout is None:
                await self._send_in_turn(draft)
            else:
                async with self._loop.limit(timeout):
                    await self._send_in_turn(draft)
        finally:
            self._senders -= 1

    async def _send_in_turn(self, draft: _native.Draft) -> None:
        async with self._sending:
            await self._waiters.until(lambda: self._end.poll_send(draft) or None, None)

    async def recv(self, *, timeout: float | None = None) -> Any:
        """Receives an object in the codec `plain`."""
        received = self._end.poll_recv(True) if self._loop.may_go_on() else None
        if received is None:
            received = await self._waiters.until(self._end.poll_recv, timeout)
        return received[0]

    async def recv_bytes(self, *, timeout: float | None = None) -> bytes:
        """Receives the bytes of a message, and closes its handles."""
        received = self._end.poll_recv_bytes(True) if self._loop.may_go_on() else None
        if received is None:
            received = await self._waiters.until(self._end.poll_recv_bytes, timeout)
        return received

    async def recv_message(self, *, timeout: float | None = None) -> _native.Message:
        """Receives a message with its bytes and its handles."""
        received = self._end.poll_recv_message(True) if self._loop.may_go_on() else None
        if received is None:
            received = await self._waiters.until(self._end.poll_recv_message, timeout)
        return received

    async def poll(self, timeout: float | None = 0.0) -> bool:
        """Waits for a message until the timeout, and returns whether a call of `recv` would not wait."""
        if not self._loop.may_go_on():
            self._loop.budget = _BUDGET
            await self._loop.let_others_run()
        if self._end.poll_readable():
            return True
        if timeout is not None and timeout <= 0:
            return False
        try:
            return await self._waiters.until(self._end.poll_readable, timeout)
        except TimedOut:
            return False

    def detach(self) -> _native.Connection:
        """Takes the end out of the loop, for example for a send; returns a `strait.Connection`. Waiting tasks get
        `Closed`."""
        connection = self._end.detach()
        self._waiters()
        return connection

    def close(self, reason: int = 0) -> None:
        """Closes this end, and gives the other end the reason. Waiting tasks get `Closed`."""
        self._end.close(reason)
        self._waiters()

    @property
    def closed(self) -> bool:
        """Whether this end was closed or detached."""
        return self._end.closed

    @property
    def peer(self) -> _native.Peer | None:
        """The process at the other end; `None` while unknown."""
        return self._end.peer

    @property
    def status(self) -> _native.Status:
        """The receivable messages of this end, and whether there is room to send."""
        return self._end.status

    @property
    def counters(self) -> _native.Counters:
        """The counts of this end since it was made or received. The number of copied arrays begins with this object."""
        return self._end.counters

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
    """Accepts connections under a name, in the running event loop when this object is made. The arguments are the
    arguments of `strait.Listener`."""

    def __init__(self, name: str, **keywords: Any) -> None:
        self._waiters = _Waiters()
        self._accepting = 0
        self._listener = _native.Listener(name, **keywords)

    async def accept(self, timeout: float | None = None) -> Connection:
        """Returns the connection to the next connecting process."""
        if timeout is None:
            return Connection(await self._accept())
        async with self._waiters.loop.limit(timeout):
            return Connection(await self._accept())

    async def _accept(self) -> _native.Connection:
        descriptor = self._listener.fileno()
        # A task that lets other tasks run is in `accept`, but does not wait yet.
        self._accepting += 1
        if self._accepting == 1:
            self._waiters.loop.add_reader(descriptor, self._waiters.wake)
        try:
            return await self._waiters.until(self._attempt, None)
        finally:
            self._accepting -= 1
            if not self._accepting and not self._listener.closed:
                self._waiters.loop.remove_reader(descriptor)

    def _attempt(self) -> _native.Connection | None:
        try:
            return self._listener.accept(0)
        except WouldBlock:
            return None

    def close(self) -> None:
        """Stops listening. Waiting tasks get `Closed`. Accepted connections stay open. Does nothing the second time."""
        if self._listener.closed:
            return
        if self._accepting:
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


class Producer:
    """The writing end of a data pipe in an event loop: the running loop when this object is made. The end is taken out
    of `producer`, a `strait.Producer`, which counts as moved afterwards."""

    def __init__(self, producer: _native.Producer) -> None:
        self._waiters = _Waiters()
        self._writing = self._waiters.loop.lock()
        self._end = _native.AsyncProducerEnd(producer, self._waiters.loop.reactor, self._waiters)

    async def write(self, data: Any, *, timeout: float | None = None) -> int:
        """Writes as many bytes as there is room for, at least one element, and returns the number. A cancelled call has
        written nothing."""
        async with self._writing:
            return await self._waiters.until(lambda: self._end.poll_write(data), timeout)

    async def write_all(self, data: Any) -> None:
        """Writes all bytes. A cancelled call may have written some bytes."""
        rest = memoryview(data).cast("B")
        async with self._writing:
            while rest:
                piece = rest
                rest = rest[await self._waiters.until(lambda: self._end.poll_write(piece), None) :]

    async def finish(self) -> None:
        """Ends the stream: the consumer reads all written bytes, and then the end of the stream."""
        async with self._writing:
            await self._waiters.until(self._end.poll_finish, None)

    def detach(self) -> _native.Producer:
        """Takes the end out of the loop, for example to send it. Tasks that wait get `Closed`."""
        producer = self._end.detach()
        self._waiters()
        return producer

    def close(self) -> None:
        """Closes this end, which ends the stream. Tasks that wait get `Closed`."""
        self._end.close()
        self._waiters()

    @property
    def closed(self) -> bool:
        """Whether this end was closed or detached."""
        return self._end.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


class Consumer:
    """The reading end of a data pipe in an event loop: the running loop when this object is made. The end is taken out
    of `consumer`, a `strait.Consumer`, which counts as moved afterwards."""

    def __init__(self, consumer: _native.Consumer) -> None:
        self._waiters = _Waiters()
        self._end = _native.AsyncConsumerEnd(consumer, self._waiters.loop.reactor, self._waiters)

    async def read(self, size: int = 1 << 16, *, timeout: float | None = None) -> bytes:
        """Reads at most `size` bytes, as many as there are, at least one element. Returns no bytes at the end of the
        stream. A cancelled call has read nothing."""
        return await self._waiters.until(lambda: self._end.poll_read(size), timeout)

    def detach(self) -> _native.Consumer:
        """Takes the end out of the loop, for example to send it. Tasks that wait get `Closed`."""
        consumer = self._end.detach()
        self._waiters()
        return consumer

    def close(self) -> None:
        """Closes this end. Waiting tasks get `Closed`."""
        self._end.close()
        self._waiters()

    @property
    def closed(self) -> bool:
        """Whether this end was closed or detached."""
        return self._end.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Returns the next bytes. Ends at the end of the stream."""
        data = await self.read()
        if not data:
            raise StopAsyncIteration
        return data


class Request:
    """A request of the other side. If the request is dropped without a reply, the caller gets `NotAnswered`."""

    def __init__(self, request: _native.Request, replies: _Replies) -> None:
        self._request = request
        self._replies = replies

    def value(self) -> Any:
        """Returns the object of the request. Can be called once."""
        return self._request.value()

    async def reply(self, obj: object) -> None:
        """Replies with an object. If there is no room, a thread waits for room, one thread for all requests of a
        caller. If the task is cancelled, the caller may have got the reply; otherwise the request can be answered
        again."""
        if not self._replies.waits:
            try:
                return self._request.reply(obj, timeout=0)
            except WouldBlock:
                pass
        await self._replies.reply(self._request, obj)

    def drop(self) -> None:
        """Drops the request without a reply: the caller gets `NotAnswered`."""
        self._request.drop()

    @property
    def cancelled(self) -> bool:
        """Whether the caller does not wait for a reply any more."""
        return self._request.cancelled


class _Replies:
    """The replies of a caller that wait for room, one after the other."""

    def __init__(self, end: _native.AsyncCaller) -> None:
        self._end = end
        self._waiters = _Waiters()
        self.waits = False
        """Whether a thread waits for room. The thread may still hold the request of a task that was cancelled."""

    async def reply(self, request: _native.Request, obj: object) -> None:
        await self._waiters.until(self._begin, None)
        started = ended = False

        def on_end() -> None:
            nonlocal ended
            ended = True
            self._end.resume()
            self.waits = False
            self._waiters.wake()

        def reply() -> None:
            nonlocal started
            started = True
            try:
                request.reply(obj)
            finally:
                try:
                    self._waiters.loop.call_soon_threadsafe(on_end)
                except RuntimeError:
                    # The loop has ended.
                    pass

        try:
            await self._waiters.loop.in_thread(reply, lambda _: None)
        except Interrupted:
            raise Closed("this caller was closed") from None
        except BaseException as error:
            if isinstance(error, RuntimeError) and not started:
                # There was no thread to be had.
                on_end()
            elif not ended:
                # Without this call the thread would wait for as long as the peer likes.
                self._end.interrupt()
            raise

    def _begin(self) -> bool | None:
        if self._end.closed:
            raise Closed("this caller was closed")
        if self.waits:
            return None
        self.waits = True
        return True

    def wake(self) -> None:
        self._waiters()


class Caller:
    """An end of a connection for calls, in the running event loop when this object is made. The end is taken out of
    `connection`, a `strait.Connection`. The other side is also a `Caller`, in a loop or not."""

    def __init__(self, connection: _native.Connection) -> None:
        self._waiters = _Waiters()
        self._end = _native.AsyncCaller(connection, self._waiters.loop.reactor, self._waiters)
        self._calls: set[_Waiters] = set()
        self._replies = _Replies(self._end)

    async def call(self, obj: object, *, timeout: float | None = None) -> Any:
        """Sends an object as a request, and returns the object of the reply. If the timeout ends first (`TimedOut`), or
        the task is cancelled, the call is cancelled; whether the other side carries out the request is then unknown,
        and the handles in `obj` are closed, also if the request was not sent."""
        waiters = _Waiters()
        call = self._end.begin(obj, waiters)
        self._calls.add(waiters)

        def attempt() -> tuple[Any] | None:
            if self._end.closed:
                raise Closed("this caller was closed")
            return call.poll()

        try:
            return (await waiters.until(attempt, timeout))[0]
        finally:
            self._calls.discard(waiters)
            call.cancel()

    async def next_request(self, *, timeout: float | None = None) -> Request:
        """Returns the next request of the other side. A cancelled call loses no request."""
        return Request(await self._waiters.until(self._end.poll_request, timeout), self._replies)

    async def serve(self, handler: Callable[[Any], Any]) -> None:
        """Calls `handler` with the object of each request, one after the other, and replies with the result, until the
        other side closes. The handler may be a function or a coroutine function."""
        while True:
            try:
                request = await self.next_request()
            except PeerClosed:
                return
            answer = handler(request.value())
            if inspect.isawaitable(answer):
                answer = await answer
            try:
                await request.reply(answer)
            except PeerClosed:
                return

    def close(self) -> None:
        """Closes this end. Waiting tasks get `Closed`."""
        self._end.close()
        self._waiters()
        self._replies.wake()
        for waiters in list(self._calls):
            waiters()

    @property
    def closed(self) -> bool:
        """Whether this end was closed."""
        return self._end.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


async def spawn(program: str, *args: str, **keywords: Any) -> tuple[Any, Connection]:
    """Starts a program, and returns its process and a connection to the process. The process comes from
    `asyncio.create_subprocess_exec`, or from `trio.lowlevel.open_process`. The program calls `strait.parent()`. The
    keyword arguments are the options of a connection, and the arguments of the function that starts the process."""
    connection, inheritance = inherit(keywords)
    try:
        if isinstance(_running(), _Asyncio):
            process: Any = await asyncio.create_subprocess_exec(program, *args, **keywords)
        else:
            process = await importlib.import_module("trio").lowlevel.open_process([program, *args], **keywords)
    except BaseException:
        connection.close()
        raise
    finally:
        # Otherwise this end would not see the death of the new process.
        inheritance.close()
    return process, Connection(connection)


def pair(**options: Any) -> tuple[Connection, Connection]:
    """Returns the two ends of a new channel."""
    one, other = _native.pair(**options)
    return Connection(one), Connection(other)


async def connect(name: str, **keywords: Any) -> Connection:
    """Connects to a listener. A thread waits for the listener. If the task is cancelled and the listener accepts later,
    the connection is closed at once. The thread of a cancelled call ends when the listener answers, and at the
    `timeout` of the call: a program that tries again and again gives a `timeout`. The arguments are the arguments of
    `strait.connect`."""
    connect = partial(_native.connect, name, **keywords)
    return Connection(await _running().in_thread(connect, _native.Connection.close))


def parent(**options: Any) -> Connection:
    """Returns the connection to the parent process, which started this process with `strait.spawn`."""
    return Connection(_native.parent(**options))
