"""A pool of processes. The death of a process fails one future."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.process
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent import futures
from multiprocessing.context import BaseContext
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from . import _pickled, mp
from ._errors import PeerClosed, WorkerDied

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["Executor"]


class Executor(futures.Executor):
    """Runs calls in other processes, as `concurrent.futures.ProcessPoolExecutor` does.

    If a worker dies, its present call fails with `WorkerDied`. Another worker takes its place, and all other calls are
    run. Arguments and results are pickled; large arrays among them travel in shared memory, and an array of
    `strait.empty` without a copy.

    Ctrl-C reaches each process of the terminal. A worker with a call in progress gets `KeyboardInterrupt`, and the call
    fails with this exception; other workers ignore Ctrl-C. So an initializer that sets a handler of `SIGINT` should set
    one that raises no exception.

    The workers are started by the start method "forkserver", or by the method of `mp_context`. A worker ends when this
    process ends.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        """Makes a pool of at most `workers` processes, by default one for each processor. Processes start as calls are
        submitted. Each process first calls `initializer`; if `initializer` raises an exception, the process ends."""
        if workers is not None and workers < 1:
            raise ValueError("workers must be at least 1")
        self._context: Any = mp_context or multiprocessing.get_context("forkserver")
        self._initial = initializer, initargs
        self._workers: set[_Worker] = set()
        self._of_thread = threading.local()
        # Each thread has a process of its own. The threads are few and sleep.
        self._threads = futures.ThreadPoolExecutor(workers or os.cpu_count() or 1, "strait-executor")
        _executors.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
        """Returns a future of a call by one of the workers."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def _call(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        """Makes a call in the worker process of this thread."""
        worker: _Worker | None = getattr(self._of_thread, "worker", None)
        if worker is not None and worker.has_died():
            self._workers.discard(worker)
            worker = None
        if worker is None:
            worker = self._of_thread.worker = _Worker(self._context, self._initial)
            self._workers.add(worker)
        try:
            result: T = worker.call(fn, args, kwargs)
        except WorkerDied:
            self._workers.discard(worker)
            self._of_thread.worker = None
            raise
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no more calls. If `wait` is set, waits for all submitted calls, and for the end of the workers.
        Otherwise a thread does so."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            self._end()
        else:
            threading.Thread(target=self.shutdown, name="strait-executor-end", daemon=True).start()

    def _end(self) -> None:
        while True:
            try:
                worker = self._workers.pop()
            except KeyError:
                return
            worker.end()


_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Ends all workers once the interpreter has waited for all threads. This function runs before `multiprocessing`
    waits for processes, because the latter was registered earlier."""
    for executor in list(_executors):
        executor._end()


class _Worker:
    """A process for calls, with a connection to the process. Belongs to one thread."""

    def __init__(self, context: Any, initial: tuple[Callable[..., object] | None, tuple[Any, ...]]) -> None:
        self._parent = os.getpid()
        self._connection, there = mp.Pipe()
        self._process: multiprocessing.process.BaseProcess = context.Process(
            target=_work, args=(there, *initial), name="strait-worker"
        )
        self._process.start()
        self._calls = 0
        # The end belongs to the process now, so a death of the process is seen.
        there.close()

    def has_died(self) -> bool:
        """Returns whether the process has ended while it had no call."""
        if not self._connection.poll(0):
            return False
        self.end()
        return True

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            self._connection.send((fn, args, kwargs))
            self._calls += 1
            number, done, value, text = self._connection.recv()
            while number != self._calls:
                # A signal made the process send two answers to an earlier call.
                number, done, value, text = self._connection.recv()
        except PeerClosed:
            self.end()
            code = self._process.exitcode
            error = WorkerDied(f"the process of the call has ended: {_ending(code)}")
            error.exitcode = code
            raise error from None
        if done:
            return value
        value.__cause__ = _RemoteTraceback(text)
        try:
            raise value
        finally:
            # The exception has this frame in its traceback.
            del value

    def end(self) -> None:
        """Closes the connection, and thereby ends the process; waits for the end of the process. Does nothing in a child
        of `fork`: the process belongs to the parent."""
        if os.getpid() != self._parent:
            return
        self._connection.close()
        self._process.join()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code}"
    return f"exit code {code}"


class _RemoteTraceback(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class _Interrupts:
    """Ctrl-C in a worker process. It reaches each process of the terminal, and the executor's own process decides. So
    only a call in progress gets `KeyboardInterrupt`: anywhere else the exception would lose a call, or answer it twice.
    """

    def __init__(self) -> None:
        self.in_call = False
        # Also in place of a handler that a child of a fork has from its parent, such as that of asyncio.
        signal.signal(signal.SIGINT, self._on_signal)

    def install(self) -> None:
        """Takes the place of Python's own handler, but not of a handler of the initializer or of a call."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.in_call:
            raise KeyboardInterrupt


def _work(connection: mp.Connection, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
    """Makes the arriving calls, in a worker process, until the connection ends."""
    interrupts = _Interrupts()
    if initializer is not None:
        initializer(*initargs)
    interrupts.install()
    number = 0
    while True:
        try:
            message = connection._end.recv_message()
        except PeerClosed:
            return
        # The executor counts its calls, too.
        number += 1
        try:
            fn, args, kwargs = _pickled.loads(message)
            interrupts.in_call = True
            answer: tuple[bool, Any, str] = True, fn(*args, **kwargs), ""
            interrupts.in_call = False
        except BaseException as error:
            # The interpreter runs signal handlers at calls and loops only: there is none before this statement.
            interrupts.in_call = False
            text = traceback.format_exc()
            answer = False, error.with_traceback(None), text
        fn = args = kwargs = None
        del message
        # The call, or a module that it imported, may have set Python's handler again.
        interrupts.install()
        try:
            connection.send((number, *answer))
        except PeerClosed:
            return
        except BaseException as error:
            connection.send((number, False, _plain(error, answer), traceback.format_exc()))
        del answer


def _plain(error: BaseException, answer: tuple[bool, Any, str]) -> Exception:
    """Returns a picklable exception in place of a result or exception that cannot be pickled."""
    done, value, text = answer
    what = f"the result, a {type(value)}," if done else f"an exception, {text.strip().splitlines()[-1]},"
    print(text, end="", file=sys.stderr)
    return TypeError(f"{what} cannot be sent: {error}")
