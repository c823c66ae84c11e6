"""Times Strait beside other installed libraries.

    python -m strait.bench [--rounds N] [--only TEXT] [--json]

In each row, a process sends an object to a second process, and gets an answer; the row shows the time of one exchange.
The column *CPU* is the processor time of both processes for one exchange. A figure is the median over the rounds. In
each round every library runs once. Array rows need NumPy; the receiver reads a byte of each page of an array.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import pickle
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import strait
from strait import aio

SMALL = b"x" * 64
MEBIBYTE = 1 << 20


class Way:
    """A way to talk between two processes."""

    name = ""
    needs: tuple[str, ...] = ()

    def __init__(self, descriptor: int, path: str, side: int) -> None:
        raise NotImplementedError

    def send(self, data: bytes) -> None:
        raise NotImplementedError

    def recv(self) -> bytes:
        raise NotImplementedError


class Strait(Way):
    """Connections of this package."""

    name = "strait"

    def __init__(self, descriptor: int, path: str, side: int) -> None:
        if side == 0:
            with strait.Listener("bench", directory=path) as listener:
                open(os.path.join(path, "ready"), "w").close()
                self.connection = listener.accept()
        else:
            _wait_for(os.path.join(path, "ready"))
            self.connection = strait.connect("bench", directory=path)

    def send(self, data: bytes) -> None:
        self.connection.send_bytes(data)

    def recv(self) -> bytes:
        return self.connection.recv_bytes()

    def send_array(self, array: Any) -> None:
        self.connection.send(array)

    def recv_array(self) -> Any:
        return self.connection.recv()

    def room(self, size: int) -> Any:
        self.array = strait.empty(size, "u1")
        return self.array

    def commit(self) -> None:
        self.connection.send(self.array)
        del self.array


class Pipe(Way):
    """`multiprocessing.Pipe`: bytes by `send_bytes`, arrays by `send`, with pickle."""

    name = "multiprocessing.Pipe"

    def __init__(self, descriptor: int, path: str, side: int) -> None:
        from multiprocessing.connection import Connection

        self.connection: Any = Connection(os.dup(descriptor))

    def send(self, data: bytes) -> None:
        self.connection.send_bytes(data)

    def recv(self) -> bytes:
        return bytes(self.connection.recv_bytes())

    def send_array(self, array: Any) -> None:
        self.connection.send(array)

    def recv_array(self) -> Any:
        return self.connection.recv()


class SharedMemory(Pipe):
    """A `multiprocessing.shared_memory`, made once, and a Pipe for the notice that the memory was filled."""

    name = "shared_memory + Pipe"

    def __init__(self, descriptor: int, path: str, side: int) -> None:
        super().__init__(descriptor, path, side)
        self.memory: Any = None
        self.owner = side == 1

    def room(self, size: int) -> Any:
        import numpy
        from multiprocessing import shared_memory

        if self.memory is None or self.memory.size < size:
            self.drop()
            self.memory = shared_memory.SharedMemory(create=True, size=size)
        self.size = size
        return numpy.frombuffer(self.memory.buf, "u1", size)

    def commit(self) -> None:
        self.connection.send((self.memory.name, self.size))

    def send_array(self, array: Any) -> None:
        self.room(array.nbytes)[:] = array
        self.commit()

    def recv_array(self) -> Any:
        import numpy
        from multiprocessing import shared_memory

        name, size = self.connection.recv()
        if self.memory is None or self.memory.name != name:
            keywords: Any = {"track": False} if sys.version_info >= (3, 13) else {}
            self.memory = shared_memory.SharedMemory(name, **keywords)
        return numpy.frombuffer(self.memory.buf, "u1", size)

    def drop(self) -> None:
        if self.memory is not None:
            if self.owner:
                self.memory.unlink()
            try:
                self.memory.close()
            except BufferError:
                pass


class ZeroMQ(Way):
    """pyzmq over `ipc`."""

    name = "pyzmq"
    needs = ("zmq",)

    def __init__(self, descriptor: int, path: str, side: int) -> None:
        zmq: Any = importlib.import_module("zmq")
        self.socket: Any = zmq.Context.instance().socket(zmq.PAIR)
        address = "ipc://" + os.path.join(path, "socket")
        self.socket.bind(address) if side == 0 else self.socket.connect(address)

    def send(self, data: bytes) -> None:
        self.socket.send(data)

    def recv(self) -> bytes:
        return bytes(self.socket.recv())

    def send_array(self, array: Any) -> None:
        self.socket.send(array)

    def recv_array(self) -> Any:
        import numpy

        return numpy.frombuffer(self.socket.recv(), "u1")


class Torch(Pipe):
    """`torch.multiprocessing`; puts each tensor into shared memory."""

    name = "torch.multiprocessing"
    needs = ("torch",)

    def send_array(self, array: Any) -> None:
        from multiprocessing.reduction import ForkingPickler

        torch: Any = importlib.import_module("torch")
        importlib.import_module("torch.multiprocessing").set_sharing_strategy("file_system")
        self.kept = torch.from_numpy(array)
        self.connection.send_bytes(ForkingPickler.dumps(self.kept))

    def recv_array(self) -> Any:
        importlib.import_module("torch.multiprocessing")
        return pickle.loads(self.connection.recv_bytes()).numpy()


class Socket(Way):
    """A bare Unix socket with message boundaries, for the cost of the kernel alone."""

    name = "seqpacket socket"

    def __init__(self, descriptor: int, path: str, side: int) -> None:
        self.socket = socket.socket(fileno=os.dup(descriptor))

    def send(self, data: bytes) -> None:
        self.socket.send(data)

    def recv(self) -> bytes:
        return self.socket.recv(1 << 16)


WAYS: list[type[Way]] = [Strait, Pipe, SharedMemory, ZeroMQ, Torch, Socket]


def _wait_for(path: str) -> None:
    """Waits until a file exists. Only the start of a benchmark looks again and again."""
    while not os.path.exists(path):
        time.sleep(0.01)


async def _asyncio_strait(path: str, side: int) -> tuple[Callable[[bytes], Any], Callable[[], Any]]:
    if side == 0:
        async with aio.Listener("bench", directory=path) as listener:
            open(os.path.join(path, "ready"), "w").close()
            connection = await listener.accept()
    else:
        _wait_for(os.path.join(path, "ready"))
        connection = await aio.connect("bench", directory=path)
    return connection.send_bytes, connection.recv_bytes


async def _asyncio_streams(path: str, side: int) -> tuple[Callable[[bytes], Any], Callable[[], Any]]:
    address = os.path.join(path, "socket")
    if side == 0:
        streams: asyncio.Queue[Any] = asyncio.Queue()
        await asyncio.start_unix_server(lambda *both: streams.put_nowait(both), address)
        open(os.path.join(path, "ready"), "w").close()
        reader, writer = await streams.get()
    else:
        _wait_for(os.path.join(path, "ready"))
        reader, writer = await asyncio.open_unix_connection(address)

    async def send(data: bytes) -> None:
        writer.write(len(data).to_bytes(4, "big") + data)
        await writer.drain()

    async def recv() -> bytes:
        size = int.from_bytes(await reader.readexactly(4), "big")
        return bytes(await reader.readexactly(size))

    return send, recv


async def _asyncio_zmq(path: str, side: int) -> tuple[Callable[[bytes], Any], Callable[[], Any]]:
    zmq: Any = importlib.import_module("zmq.asyncio")
    made: Any = zmq.Context.instance().socket(importlib.import_module("zmq").PAIR)
    address = "ipc://" + os.path.join(path, "socket")
    made.bind(address) if side == 0 else made.connect(address)
    return made.send, made.recv


LOOPS: dict[str, tuple[Callable[[str, int], Any], tuple[str, ...]]] = {
    "strait": (_asyncio_strait, ()),
    "asyncio streams": (_asyncio_streams, ()),
    "pyzmq": (_asyncio_zmq, ("zmq",)),
}


class Row(NamedTuple):
    """A measured way of exchanging messages."""

    name: str
    size: int
    repeats: int
    kind: str
    unit: float


ROWS = [
    Row("64 B there and back, us", 64, 3000, "bytes", 1e6),
    Row("64 B there and back in asyncio, us", 64, 2000, "asyncio", 1e6),
    Row("64 B there and back in uvloop, us", 64, 2000, "uvloop", 1e6),
    Row("array of 1 MiB, us", MEBIBYTE, 60, "own", 1e6),
    Row("array of 1 MiB filled in place, us", MEBIBYTE, 60, "in place", 1e6),
    Row("array of 256 MiB, ms", 256 * MEBIBYTE, 3, "own", 1e3),
    Row("array of 256 MiB filled in place, ms", 256 * MEBIBYTE, 3, "in place", 1e3),
]


def _installed(needs: tuple[str, ...]) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in needs)


def competitors(row: Row) -> list[str]:
    """Returns the names of the installed ways with a row."""
    if row.kind in ("asyncio", "uvloop"):
        if row.kind == "uvloop" and not _installed(("uvloop",)):
            return []
        return [name for name, (_open, needs) in LOOPS.items() if _installed(needs)]
    if row.kind in ("own", "in place") and not _installed(("numpy",)):
        return []
    method = {"bytes": "send", "own": "send_array", "in place": "room"}[row.kind]
    return [way.name for way in WAYS if hasattr(way, method) and _installed(way.needs)]


def _runner(kind: str) -> Callable[[Any], Any]:
    if kind != "uvloop":
        return asyncio.run
    run: Callable[[Any], Any] = importlib.import_module("uvloop").run
    return run


def _cpu() -> float:
    return time.process_time()


def serve(row: Row, name: str, descriptor: int, path: str) -> None:
    """Answers, in the second process."""
    if row.kind in ("asyncio", "uvloop"):

        async def echo() -> None:
            send, recv = await LOOPS[name][0](path, 0)
            await send(await recv())
            begin = _cpu()
            while (data := await recv()) != b"cpu":
                await send(data)
            await send(repr(_cpu() - begin).encode())
            await recv()

        _runner(row.kind)(echo())
        return
    way: Any = next(way for way in WAYS if way.name == name)(descriptor, path, 0)
    begin = _cpu()
    if row.kind == "bytes":
        way.send(way.recv())
        begin = _cpu()
        while (data := way.recv()) != b"cpu":
            way.send(data)
    else:
        for number in range(row.repeats + 2):
            array = way.recv_array()
            begin = begin if number else _cpu()
            total = int(array.reshape(-1)[::4096].sum(dtype="u8"))
            del array
            way.send(total.to_bytes(8, "little"))
        way.recv()
    way.send(repr(_cpu() - begin).encode())
    way.recv()


def _exchanges(row: Row, way: Any) -> Callable[[int], float]:
    """Returns a function that makes an exchange and returns its duration in seconds."""
    if row.kind == "bytes":

        def exchange(_number: int) -> float:
            begin = time.perf_counter()
            way.send(SMALL)
            way.recv()
            return time.perf_counter() - begin

        return exchange
    import numpy

    own = numpy.zeros(row.size, "u1") if row.kind == "own" else None

    def exchange_array(number: int) -> float:
        begin = time.perf_counter()
        if own is not None:
            own.fill(number % 200)
            begin = time.perf_counter()
            way.send_array(own)
        else:
            array = way.room(row.size)
            array.fill(number % 200)
            del array
            way.commit()
        total = int.from_bytes(way.recv(), "little")
        took = time.perf_counter() - begin
        assert total == number % 200 * (row.size // 4096), "the array arrived whole"
        return took

    return exchange_array


def _measure(row: Row, name: str, descriptor: int, path: str) -> tuple[list[float], float]:
    """Returns the times of the exchanges, and the processor time of both processes for one exchange."""
    if row.kind in ("asyncio", "uvloop"):

        async def exchange_all() -> tuple[list[float], float]:
            send, recv = await LOOPS[name][0](path, 1)
            times = []
            cpu = _cpu()
            for number in range(row.repeats + row.repeats // 10):
                if number == row.repeats // 10:
                    cpu = _cpu()
                begin = time.perf_counter()
                await send(SMALL)
                await recv()
                times.append(time.perf_counter() - begin)
            cpu = _cpu() - cpu
            await send(b"cpu")
            cpu += float(await recv()) * row.repeats / (row.repeats * 1.1)
            await send(b"end")
            return times[row.repeats // 10 :], cpu / row.repeats

        measured: tuple[list[float], float] = _runner(row.kind)(exchange_all())
        return measured
    way: Any = next(way for way in WAYS if way.name == name)(descriptor, path, 1)
    exchange = _exchanges(row, way)
    warm = 2 if row.kind != "bytes" else row.repeats // 10
    for number in range(warm):
        exchange(number)
    cpu = _cpu()
    times = [exchange(number) for number in range(row.repeats)]
    cpu = _cpu() - cpu
    way.send(b"cpu")
    cpu += float(way.recv()) * row.repeats / (row.repeats + warm)
    way.send(b"end")
    if isinstance(way, SharedMemory):
        way.drop()
    return times, cpu / row.repeats


def measure(row: Row, name: str) -> tuple[float, float]:
    """Starts the second process of a row, measures, and returns the median time and the processor time of an exchange,
    in seconds."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o700)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET if "socket" in name else socket.SOCK_STREAM)
        with ours, theirs:
            descriptor = theirs.fileno()
            arguments = [row.name, name, str(descriptor), path]
            process = subprocess.Popen(
                [sys.executable, "-m", "strait.bench", "--serve", *arguments], pass_fds=[descriptor]
            )
            theirs.close()
            try:
                times, cpu = _measure(row, name, ours.fileno(), path)
                process.wait(60)
            finally:
                process.kill()
                process.wait()
    return statistics.median(times), cpu


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m strait.bench", description="Times Strait beside its neighbours.")
    parser.add_argument("--rounds", type=int, default=5, help="how often each figure is taken (default: 5)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the rows whose name contains TEXT")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        name, way, descriptor, path = options.serve
        serve(next(row for row in ROWS if row.name == name), way, int(descriptor), path)
        return
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in ROWS:
        if options.only not in row.name:
            continue
        names = competitors(row)
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for _ in range(options.rounds):
            for name in names:
                figures[name].append(measure(row, name))
        found[row.name] = {
            name: {"time": statistics.median(t for t, _ in all) * row.unit, "cpu": statistics.median(c for _, c in all) * row.unit}
            for name, all in figures.items()
        }
        if not options.json:
            _print(row.name, found[row.name])
    if options.json:
        print(json.dumps(found, indent=2))


def _print(row: str, figures: dict[str, dict[str, float]]) -> None:
    if not figures:
        print(f"{row}: left out, since a package is missing\n")
        return
    print(f"{row:42} {'time':>10} {'CPU':>10}   strait is")
    own = figures["strait"]["time"]
    for name, figure in figures.items():
        ratio = "" if name == "strait" else f"{figure['time'] / own:8.2f} times as fast"
        print(f"  {name:40} {figure['time']:10.1f} {figure['cpu']:10.1f} {ratio}")
    print(flush=True)


if __name__ == "__main__":
    main()
