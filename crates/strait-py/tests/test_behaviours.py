"""Behaviours of the package as a whole, by the numbers of the list that it was built to. Other files have the others."""

import gc
import math
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import strait
from conftest import FULL, LONG, scaled


def descriptors():
    """Returns the number of descriptors, without the descriptors of garbage of earlier tests."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def settled(expected):
    """Waits until the process has `expected` descriptors: a thread of the library may close some."""
    waiting = threading.Event()
    for _ in range(200):
        if descriptors() == expected:
            return True
        waiting.wait(0.05)
    return False


class Stop(Exception):
    pass


ROOT = pathlib.Path(__file__).parent.parent


def interpreters():
    """Returns the interpreters of the first behaviour: the running one, and at full length each version up to 3.15, skipped
    if the machine does not have it."""
    found = {sys.version_info[:2]: sys.executable}
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    for minor in range(11, 16) if FULL else ():
        places = [*sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3")), f"python3.{minor}"]
        for place in places:
            try:
                works = subprocess.run([place, "-c", "import venv"], capture_output=True).returncode == 0
            except FileNotFoundError:
                continue
            if works:
                found.setdefault((3, minor), str(place))
    parameters = [pytest.param(path, id=f"{major}.{minor}") for (major, minor), path in found.items()]
    for minor in range(11, 16) if FULL else ():
        if (3, minor) not in found:
            missing = pytest.mark.skip(reason=f"Python 3.{minor} is not on this machine")
            parameters.append(pytest.param(None, id=f"3.{minor}", marks=missing))
    return parameters


@pytest.mark.parametrize("interpreter", interpreters())
def test_1_the_wheel_alone_runs_the_first_example_of_the_readme(interpreter, tmp_path):
    wheel = os.environ.get("STRAIT_WHEEL")
    if not wheel:
        pytest.skip("STRAIT_WHEEL does not name the wheel: run tools/python")
    subprocess.run([interpreter, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    install = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install", "--no-index", wheel]
    subprocess.run(install, check=True)
    example = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Neither a compiler nor another package is there.
    program = f"{example}\nimport importlib.util\nassert importlib.util.find_spec('numpy') is None\n"
    done = subprocess.run([python, "-c", program], env={**environment, "PATH": "/nowhere"}, cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_4_no_message_is_lost_by_signals(child):
    """A handler raises at random moments. `list.extend` runs no Python code between two messages, which the handler could
    interrupt."""
    process, connection = child(
        "number = 0\n"
        "while not up.poll(0):\n"
        "    up.send(number)\n"
        "    number += 1\n"
        "    if number % 50 == 0:\n"
        "        time.sleep(0.001)\n"
        "up.send(-1)\n"
        "up.recv()\n"
        "up.poll(None)\n"
    )
    got, raised, armed = [], 0, False

    def handler(_number, _frame):
        nonlocal armed
        if armed:
            armed = False
            raise Stop

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        while raised < scaled(2_000, 10_000):
            try:
                armed = True
                got.extend(connection)
            except Stop:
                raised += 1
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    connection.send("stop")
    while got[-1] != -1:
        got.append(connection.recv(timeout=LONG))
    assert got == [*range(len(got) - 1), -1]
    connection.close()
    process.wait(LONG)


def test_5_a_handler_that_returns_leaves_the_wait_and_its_deadline_as_they_were(child):
    process, connection = child(
        "count = 0\n"
        "def handler(number, frame):\n"
        "    global count\n"
        "    count += 1\n"
        "signal.signal(signal.SIGALRM, handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)\n"
        "begin = time.monotonic()\n"
        "try: up.recv(timeout=1.5); end = None\n"
        "except strait.TimedOut: end = time.monotonic() - begin\n"
        "during = count\n"
        "up.send([end, during])\n"
        "got = up.recv(timeout=60)\n"
        "while count < during + 3: time.sleep(0.01)\n"
        "up.send([got, count])\n"
    )
    end, during = connection.recv(timeout=LONG)
    # Twenty-nine signals were sent; a loaded machine merges some. None may begin the timeout anew.
    assert 1.5 <= end < LONG / 2 and during >= 2, (end, during)
    # A wait without an end in sight goes on through signals, and gets the message.
    threading.Event().wait(0.2)
    connection.send("a message")
    got, count = connection.recv(timeout=LONG)
    assert got == "a message" and count > during
    process.wait(LONG)


def test_6_an_array_of_256_mib_arrives_whole_within_its_memory():
    pytest.importorskip("numpy")
    program = (
        "import numpy as np, os, resource, strait, sys\n"
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "peak = lambda: (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) * 1024\n"
        "if sys.argv[1:]:\n"
        "    up = strait.parent()\n"
        "    array = up.recv()\n"
        "    assert array.flags.writeable and array.shape == (1 << 28,)\n"
        "    assert int(array[:: 1 << 12].sum(dtype='u8')) == 65536 * 7 and array[-1] == 7\n"
        "    array[0] = 1\n"
        "    up.send(peak())\n"
        "    sys.exit()\n"
        "process, connection = strait.spawn([sys.executable, __file__, 'child'])\n"
        "array = np.full(1 << 28, 7, 'u1')\n"
        "connection.send(array)\n"
        "print(peak(), connection.recv(), array[0])\n"
        "process.wait()\n"
    )
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"strait-{os.getpid()}.py")
    with open(path, "w") as file:
        file.write(program)
    try:
        output = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300, check=True).stdout
    finally:
        os.unlink(path)
    sender, receiver, kept = map(int, output.split())
    assert kept == 7
    assert sender <= 2.2 * (1 << 28) and receiver <= 2.2 * (1 << 28), (sender, receiver)


def test_14_handles_of_all_kinds_travel_in_one_message(child, tmp_path):
    process, connection = child(
        "import socket\n"
        "file, sock, conn, region, producer, consumer = up.recv()\n"
        "os.write(file.fileno(), b'written by the child')\n"
        "sock = socket.socket(fileno=sock.detach())\n"
        "sock.sendall(b'over the socket')\n"
        "conn.send([conn.recv() for _ in range(3)])\n"
        "conn.send(region.read())\n"
        "producer.write_whole(consumer.read_whole(6))\n"
        "up.poll(None)\n"
    )
    mine, theirs = strait.pair()
    for number in range(3):
        mine.send(number)
    left, right = socket.socketpair()
    out, their_in = strait.DataPipe(4096)
    their_out, back = strait.DataPipe(4096)
    out.write(b"stream")
    with open(tmp_path / "file", "wb") as file:
        connection.send([file, right, theirs, strait.Region.sealed(b"region"), their_out, their_in])
        assert not file.closed
    right.close()
    for moved in (theirs, their_out, their_in):
        assert moved.closed
    for moved in (theirs.recv, lambda: their_in.read(1)):
        with pytest.raises(strait.Moved, match=r"in a message, at .*test_behaviours.py:\d+ in test_14_"):
            moved()
    assert mine.recv(timeout=LONG) == [0, 1, 2] and mine.recv(timeout=LONG) == b"region"
    assert left.recv(100) == b"over the socket" and back.read_whole(6, timeout=LONG) == b"stream"
    assert (tmp_path / "file").read_bytes() == b"written by the child"
    left.close()
    connection.close()
    process.wait(LONG)


def test_15_too_many_handles_send_nothing(pair):
    one, other = pair
    assert not other.poll()
    before = descriptors()
    with open(os.devnull) as file:
        files = [strait.File(file) for _ in range(65)]
        with pytest.raises(strait.TooManyHandles):
            one.send(files)
        assert not any(item.closed for item in files) and not other.poll()
        one.send(files[:64])
        assert len(other.recv()) == 64
    del files
    gc.collect()
    assert settled(before)


def test_15_a_receiver_without_descriptors_loses_handles_only(child):
    process, connection = child(
        "import resource\n"
        "up.send('ready')\n"
        "up.recv()\n"
        "used = len(os.listdir('/proc/self/fd'))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, 4096))\n"
        "up.send('limited')\n"
        "try:\n"
        "    message = up.recv_message(timeout=10)\n"
        "    outcome = message.bytes\n"
        "    message.handles\n"
        "except strait.StraitError as error:\n"
        "    outcome = [type(error).__name__, error.passes]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\n"
        "up.send(outcome)\n"
        "up.send([up.recv(), used == len(os.listdir('/proc/self/fd'))])\n"
    )
    assert connection.recv(timeout=LONG) == "ready"
    connection.send(None)
    assert connection.recv(timeout=LONG) == "limited"
    with open(os.devnull) as file:
        connection.send_bytes(b"bytes", handles=[strait.File(file) for _ in range(20)])
    outcome = connection.recv(timeout=LONG)
    assert outcome in (["HandlesLost", True], ["NoDescriptors", True]), outcome
    connection.send("later")
    first = connection.recv(timeout=LONG)
    assert first[0] == "later" or outcome == ["NoDescriptors", True], first
    process.wait(LONG)


@pytest.mark.parametrize("total", [scaled(100_000, 1_000_000)])
def test_19_eight_threads_send_and_eight_receive(pair, total):
    one, other = pair
    each = total // 8

    def send(sender):
        for number in range(each):
            one.send_bytes(b"%d %d" % (sender, number))

    received = [[] for _ in range(8)]

    def receive(mine):
        while True:
            message = other.recv_bytes()
            if message == b"end":
                return
            mine.append(message)

    senders = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    receivers = [threading.Thread(target=receive, args=(mine,)) for mine in received]
    for thread in senders + receivers:
        thread.start()
    for thread in senders:
        thread.join()
    for _ in receivers:
        one.send_bytes(b"end")
    for thread in receivers:
        thread.join()
    messages = [tuple(map(int, message.split())) for mine in received for message in mine]
    assert len(messages) == total and len(set(messages)) == total
    # Each receiver got the messages of a sender in the order of sending.
    for mine in received:
        last = [-1] * 8
        for sender, number in (map(int, message.split()) for message in mine):
            assert number > last[sender]
            last[sender] = number


def test_20_an_interpreter_with_everything_open_exits_at_once():
    program = (
        "import asyncio, strait, sys, threading, time\n"
        "from strait import aio\n"
        "pairs = [strait.pair() for _ in range(1000)]\n"
        "begun = threading.Event()\n"
        "def wait():\n"
        "    begun.set()\n"
        "    pairs[0][0].recv()\n"
        "for _ in range(4): threading.Thread(target=wait, daemon=True).start()\n"
        "begun.wait()\n"
        "loop = asyncio.new_event_loop()\n"
        "async def use():\n"
        "    global one, other, task\n"
        "    one, other = aio.pair()\n"
        "    task = asyncio.ensure_future(one.recv())\n"
        "    await other.send(1)\n"
        "    await task\n"
        "    task = None\n"
        "loop.run_until_complete(use())\n"
        "process, child = strait.spawn([sys.executable, '-c', 'import strait; list(strait.parent())'])\n"
        "listener = strait.Listener(f'exit-{process.pid}')\n"
        "process.returncode = 0\n"
        "print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)\n"
    )
    shortest = math.inf
    # Another program may hold the processors at one of the exits.
    for _ in range(5):
        done = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        output, errors = done.stdout.read(), done.stderr.read()
        code = done.wait(LONG)
        ended = time.clock_gettime(time.CLOCK_MONOTONIC)
        done.stdout.close()
        done.stderr.close()
        assert (code, errors) == (0, "") and len(output.splitlines()) == 1
        shortest = min(shortest, ended - float(output))
        if shortest < 1:
            break
    assert shortest < 1


def test_25_timeouts_and_sizes_at_the_edges(pair):
    one, other = pair
    for call in (other.recv, other.recv_bytes, other.recv_message):
        with pytest.raises(strait.WouldBlock):
            call(timeout=0)
        for timeout in (-1, -1e18, 1e-9):
            with pytest.raises(strait.TimedOut):
                call(timeout=timeout)
        with pytest.raises(ValueError):
            call(timeout=math.nan)
    one.send_bytes(b"")
    assert other.recv_bytes(timeout=1e18) == b""
    one.send_bytes(b"x")
    assert other.recv_bytes(timeout=math.inf) == b"x"
    one.send_bytes(b"y")
    assert other.recv_bytes(timeout=None) == b"y"
    with pytest.raises(TypeError):
        other.recv(timeout="1")
    with pytest.raises(strait.MessageTooLarge):
        one.send_bytes(bytes((1 << 28) + 1))
    assert not other.poll()


def test_25_buffers_of_any_kind_and_one_that_another_thread_resizes(pair):
    one, other = pair

    class Bytes(bytes):
        pass

    for data, expected in (
        (Bytes(b"sub"), b"sub"), (memoryview(b"abcdef")[::2], b"ace"), (memoryview(b"abcdef")[::-1], b"fedcba"),
    ):
        one.send_bytes(data)
        assert other.recv_bytes() == expected
    moving = bytearray(1 << 20)
    stop = threading.Event()

    def resize():
        while not stop.is_set():
            try:
                moving.extend(bytes(1 << 16))
                del moving[1 << 20 :]
            except BufferError:
                pass

    resizing = threading.Thread(target=resize)
    resizing.start()
    try:
        for _ in range(50):
            one.send_bytes(moving)
            assert 1 << 20 <= len(other.recv_bytes()) <= (1 << 20) + (1 << 16)
    finally:
        stop.set()
        resizing.join()
    for offset, size in ((1 << 30, None), (0, 1 << 30), (3, 4), (2**63 - 1, 2**63 - 1)):
        with pytest.raises(ValueError):
            one.send_bytes(b"12345", offset, size)


def test_open_files_of_this_process_are_few():
    """A connection within the process needs no descriptor."""
    before = descriptors()
    pairs = [strait.pair() for _ in range(1000)]
    assert descriptors() <= before + 2
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
    del pairs
