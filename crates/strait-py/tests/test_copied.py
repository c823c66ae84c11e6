"""Arrays up to 64 MiB, which travel in the bytes of the message, in memory that is used again and again."""

import asyncio
import gc
import os
import random
import resource
import subprocess
import sys
import threading

import numpy
import pytest

import strait
from conftest import LONG

MANY = 1 << 20


def over(pair, value):
    one, other = pair
    one.send(value, timeout=LONG)
    return other.recv(timeout=LONG)


ARRAYS = [
    numpy.arange(MANY, dtype="u4"), numpy.asfortranarray(numpy.arange(MANY, dtype="u2").reshape(1024, 1024)),
    numpy.arange(MANY)[::-2], numpy.arange(MANY // 8).astype("M8[ns]"), numpy.array([True, False] * MANY),
    numpy.zeros(1 << 16, "u1"), numpy.zeros((1 << 16) + 1, "u1"), numpy.ones(4 << 20, "u1"), numpy.ones((4 << 20) + 1, "u1"),
    numpy.arange(2 << 20, dtype="u4")[::2], numpy.ones((64 << 20) + 1, "u1"),
    numpy.array(["text"] * 10_000), numpy.arange(20_000, dtype=">f8"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{array.shape}")
def test_arrays_arrive_equal_and_writable(pair, array):
    received = over(pair, array)
    assert received.dtype == array.dtype and received.shape == array.shape and received.flags.writeable
    assert (received == array).all() and received.flags.f_contiguous == array.flags.f_contiguous or array.ndim == 1
    assert (over(pair, {"a": [array, 7]})["a"][0] == array).all()


def test_an_array_that_is_kept_does_not_change_with_later_messages(pair):
    kept = []
    for number in range(20):
        kept.append(over(pair, numpy.full(MANY, number, "u1")))
        if number % 3 == 0:
            del kept[0]
    for array in kept:
        assert (array == array[0]).all()
    # A part of an array keeps the memory of the array.
    part = over(pair, numpy.full(MANY, 9, "u1"))[5:7]
    gc.collect()
    for number in range(6):
        over(pair, numpy.full(MANY, number, "u1"))
    assert list(part) == [9, 9]


def test_the_memory_is_used_again(pair):
    array = numpy.ones(MANY, "u1")
    for _ in range(10):
        over(pair, array)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        over(pair, array)
    # Each new MiB would have 256 pages.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 50 * 256


def test_empty_returns_zeros_and_each_side_keeps_its_own(pair):
    for number in range(1, 8):
        array = strait.empty((1024, 1024), "u1")
        assert not array.any()
        array[:] = number
        received = over(pair, array)
        array[0] = 100
        received[1] = 200
        assert (received[0] == number).all() and (array[1] == number).all()


def test_many_arrays_fit_one_message():
    one, other = strait.pair(queue_bytes=600 << 20)
    with one, other:
        arrays = [numpy.full(3 << 20, number, "u1") for number in range(40)]
        one.send(arrays, timeout=LONG)
        received = other.recv(timeout=LONG)
        assert [int(array[-1]) for array in received] == list(range(40))


def regions_of(pair, value):
    """Returns the number of regions in the message of a value."""
    one, other = pair
    one.send(value, timeout=LONG)
    return len(other.recv_message(timeout=LONG).handles)


def test_only_sealed_and_very_large_arrays_travel_in_regions(pair):
    size = 8 << 20
    assert regions_of(pair, numpy.zeros(size, "u1")) == 0
    assert regions_of(pair, strait.empty(4 << 20, "u1")) == 0
    assert regions_of(pair, strait.empty((4 << 20) + 1, "u1")) == 1
    assert pair[0].counters.copied == 0
    assert regions_of(pair, numpy.zeros((64 << 20) + 1, "u1")) == 1
    sealed = strait.empty(1 << 20, "u1", seal=True)
    assert regions_of(pair, sealed[1:]) == 0
    assert regions_of(pair, [sealed, numpy.zeros(size, "u1")]) == 1 and pair[0].counters.copied == 1
    # It was sealed, and may have changed since.
    assert regions_of(pair, sealed) == 0
    with pair[0].reserve(size, "u1", seal=True) as reservation:
        reservation.send()
    assert len(pair[1].recv_message(timeout=LONG).handles) == 1
    one, other = strait.pair(max_message=1 << 20)
    with one, other:
        for count in [1 << 19, 1 << 20, 2 << 20, 8 << 20]:
            assert (over((one, other), numpy.full(count, 3, "u1")) == 3).all()


ONCE = """
import numpy, strait
def most():
    open("/proc/self/clear_refs", "w").write("5")
    def value(name):
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))
    before = value("VmRSS")
    yield
    yield value("VmHWM") - before
one, other = strait.pair()
one.send(numpy.ones(1 << 16, "u1")); other.recv()
array = numpy.ones(4 << 20, "u1")
measured = most()
next(measured)
one.send(array)
received = other.recv()
print(next(measured))
"""


def test_an_array_is_copied_once_on_each_side():
    done = subprocess.run([sys.executable, "-c", ONCE], capture_output=True, text=True, timeout=LONG)
    # In KiB: the memory of the message, and the received array.
    assert done.returncode == 0 and int(done.stdout) < 10 << 10, (done.stdout, done.stderr)


@pytest.mark.parametrize("size", [100, 1 << 16, 1_000_003, 5 << 20, (9 << 20) + 1])
def test_no_array_shows_the_bytes_of_another(pair, size):
    for _ in range(4):
        for count in [size, size + size // 3]:
            received = over(pair, numpy.full(count, 0xEE, "u1"))
            assert len(memoryview(received.base)) == count
            received = over(pair, numpy.zeros(count, "u1"))
            assert not received.any()
            received[:] = 0xEE
            del received
        assert not strait.empty(size, "u1").any()
        reservation = pair[0].reserve(size, "u1")
        assert not reservation.array.any()
        reservation.array[:] = 0xEE
        reservation.cancel()


def test_kept_memory_is_bounded_and_given_back(pair):
    size = 8 << 20
    strait.trim()
    received = over(pair, numpy.ones(size, "u1"))
    del received
    held = strait.pool_held()
    assert strait.trim() >= held + size and strait.trim() == 0
    arrays = [over(pair, numpy.full(size, number, "u1")) for number in range(24)]
    assert [int(array[-1]) for array in arrays] == list(range(24))
    del arrays
    held = strait.pool_held()
    assert size <= strait.trim() - held <= 128 << 20


def blocks():
    """Returns the shared memory of this process that messages are in."""
    import ctypes

    for line in open("/proc/self/maps"):
        place, rights, _offset, _device, _inode, *name = line.split(maxsplit=5)
        if rights == "rw-s" and "strait-block" in "".join(name):
            begin, end = (int(part, 16) for part in place.split("-"))
            # The first page has the control words.
            yield (ctypes.c_char * (end - begin - 4096)).from_address(begin + 4096)


class Changing:
    """Changes all messages in shared memory while it is decoded."""

    def __init__(self, data):
        for block in blocks():
            block[:1000] = b"\xc1" * 1000


def test_a_message_that_changes_while_it_is_decoded_is_read_once(child):
    strait.codec.register(Changing, 99, lambda _: b"", Changing)
    # The peer is another process, whose memory cannot be in the private memory of this process.
    _process, connection = child("""
import numpy
class Changing: pass
strait.codec.register(Changing, 99, lambda _: b"", lambda _: Changing())
up.recv()
up.send([Changing(), "text", 7, numpy.full(1 << 20, 5, "u1"), "end"])
up.recv()
""")
    connection.send("go")
    changing, text, number, array, end = connection.recv(timeout=LONG)
    assert list(blocks()), "the message lay in shared memory"
    assert isinstance(changing, Changing) and (text, number, end) == ("text", 7, "end")
    # Its first bytes are the changed ones, since they were copied once, after the change.
    assert len(array) == 1 << 20 and (array[1000:] == 5).all()


def test_long_messages_are_decoded_as_short_ones_are(pair):
    one, other = pair
    generator = random.Random(5)
    parts = [numpy.full(70_000 + number, number, "u2") for number in range(90)]
    value = [[f"{number} " * 3000, parts[number], {"x": (number, b"y" * 5000)}] for number in range(90)]
    received = over(pair, value)
    assert all((x[1] == y[1]).all() and x[0] == y[0] and x[2]["x"][0] == y[2]["x"][0] for x, y in zip(received, value))
    data = strait.dumps([{"a": "t" * 90_000}, parts[3], set(range(2000)), parts[7].reshape(1, -1), "end", b"z" * 9000])
    outcomes = set()
    for _ in range(300):
        changed = bytearray(data[: generator.randrange(70_000, len(data))] if generator.random() < 0.2 else data)
        for _ in range(generator.randrange(3)):
            near = generator.choice([0, 90_000, data.index(b"<u2"), data.rindex(b"<u2"), len(data) - 9010])
            changed[min(near + generator.randrange(30), len(changed) - 1)] = generator.randrange(256)

        def decoded(get):
            try:
                return repr(get()).encode()
            except strait.Malformed as error:
                return str(error)

        one.send_bytes(bytes(changed), timeout=LONG)
        outcome = decoded(lambda: other.recv(timeout=LONG))
        assert outcome == decoded(lambda: strait.loads(bytes(changed)))
        outcomes.add(type(outcome))
    assert outcomes == {bytes, str}


def test_large_arrays_travel_in_loops_and_calls(pair):
    from strait import aio

    one, other = pair
    array = numpy.arange(2 << 20, dtype="u4")

    async def both():
        near, far = aio.Connection(one), aio.Connection(other)
        async with near, far:
            for _ in range(3):
                _, received = await asyncio.gather(near.send([array, "text"]), far.recv())
                assert (received[0] == array).all() and received[1] == "text"

    asyncio.run(both())
    near, far = (strait.Caller(end) for end in strait.pair())
    serving = threading.Thread(target=far.serve, args=(lambda value: [value + 1, "text"],))
    serving.start()
    reply = near.call(array, timeout=LONG)
    assert (reply[0] == array + 1).all() and reply[1] == "text"
    near.close()
    serving.join(LONG)


def test_a_child_of_fork_has_kept_memory_of_its_own(pair):
    received = over(pair, numpy.full(MANY, 7, "u1"))
    pid = os.fork()
    if pid == 0:
        received[:] = 9
        del received
        code = 0 if not strait.empty(MANY, "u1").any() else 1
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and (received == 7).all()
