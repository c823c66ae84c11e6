"""Arrays and regions: what travels without a copy, what each side keeps, and what hostile frames do."""

import gc
import os
import random
import re
import resource
import weakref

import pytest

import strait
from conftest import LONG

np = pytest.importorskip("numpy")

MANY = 1 << 18


def over(pair, value):
    one, other = pair
    one.send(value, timeout=LONG)
    return other.recv(timeout=LONG)


def is_mapped(array):
    """Whether an array lies in a mapping of a region."""
    address = array.ctypes.data
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(part, 16) for part in re.match(r"(\w+)-(\w+) ", line).groups())
            if low <= address < high:
                return "memfd:" in line
    return False


ARRAYS = [
    np.arange(12, dtype="i4").reshape(3, 4), np.arange(MANY, dtype="f8"), np.array(3.5),
    np.array([True, False] * 70_000),
    np.asfortranarray(np.arange(200_000, dtype="u2").reshape(400, 500)), np.arange(100_000, dtype="i8")[::-2],
    np.zeros((0, 5)), np.zeros((3, 0, 2), dtype="f2"), np.array(["a", "bcd"]), np.array([b"x", b"yz"]),
    np.arange(5).astype("M8[ns]"), np.arange(5).astype("m8[25s]"), np.arange(6, dtype=">f8"), np.ones(9, "c8"),
    np.ones((1,) * 32), np.zeros(3, "V7"), np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{array.shape}")
def test_arrays_arrive_equal_and_writable(pair, array):
    before = array.copy()
    received = over(pair, {"x": [array]})["x"][0]
    assert type(received) is np.ndarray and received.dtype == array.dtype and received.shape == array.shape
    assert np.array_equal(received, array) and received.flags.writeable
    assert received.flags.f_contiguous == array.flags.f_contiguous or not array.flags.forc
    received[...] = received.flat[0] if received.size else 0
    assert np.array_equal(array, before)
    assert np.array_equal(strait.loads(strait.dumps(array)), array)


def test_an_array_of_empty_is_sent_without_a_copy_and_each_side_keeps_its_own(pair):
    array = strait.empty((MANY,), "u1")
    assert not array.any() and array.flags.writeable and isinstance(array.base, strait.Memory)
    array[:] = 7
    address = array.ctypes.data
    received = over(pair, array)
    assert is_mapped(array) and is_mapped(received) and array.ctypes.data == address
    array[0] = 9
    received[1] = 5
    assert (array[0], array[1], received[0], received[1]) == (9, 7, 7, 5)
    # The memory may have changed since it was sealed: from now on, sending it copies.
    assert over(pair, array)[0] == 9
    assert list(over(pair, received)[:3]) == [7, 5, 7]


def test_sealing_happens_once_and_at_one_address():
    memory = strait.Memory(MANY)
    view = memoryview(memory)
    view[:3] = b"abc"
    address = memory.address
    region = memory.seal()
    assert (region.access, len(region), region.read(0, 4)) == ("sealed", MANY, b"abc\0")
    assert memory.address == address and bytes(view[:3]) == b"abc" and memory.seal() is None
    view[0] = 0
    assert region.read(0, 3) == b"abc" and bytes(view[:3]) == b"\0bc"


@pytest.mark.parametrize("part", [slice(1, None), slice(None, -1), slice(None, None, 2)], ids=str)
def test_a_part_of_an_array_does_not_show_the_rest_to_the_peer(pair, part):
    array = strait.empty(MANY, "u1")
    array[:] = 255
    one, other = pair
    one.send(array[part])
    with_handles = other.recv_message(timeout=LONG)
    region, = with_handles.handles
    assert len(region) == array[part].nbytes
    # The whole was not sealed by that.
    assert array.base.seal() is not None


@pytest.mark.parametrize("order", ["C", "F"])
def test_views_of_the_whole_are_sent_without_a_copy(pair, order):
    array = strait.empty((256, 1024), "i4", order=order)
    array[3, 4] = 77
    received = over(pair, array.T)
    assert received[4, 3] == 77 and array.base.seal() is None


def test_an_array_outlives_the_connection_and_its_memory_goes_with_it():
    one, other = strait.pair()
    one.send(np.arange(MANY, dtype="u4"))
    received = other.recv(timeout=LONG)
    one.close()
    other.close()
    part = received[1000:1003]
    memory = weakref.ref(received.base)
    del received
    gc.collect()
    assert list(part) == [1000, 1001, 1002] and memory() is not None and is_mapped(part)
    del part
    gc.collect()
    assert memory() is None


def test_received_arrays_hold_no_descriptors(pair):
    one, other = pair
    over(pair, np.zeros(MANY))
    before = len(os.listdir("/proc/self/fd"))
    kept = [over(pair, np.full(20_000, number)) for number in range(100)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert [array[-1] for array in kept] == list(range(100))


def test_many_arrays_fit_one_message(pair):
    sent = [np.full(9_000, number) for number in range(70)]
    assert all(np.array_equal(*arrays) for arrays in zip(sent, over(pair, sent), strict=True))


def test_arrays_travel_between_processes(child):
    _process, connection = child("""
import numpy
array = up.recv()
array += 1
up.send(array)
array = strait.empty((1000, 1000))
array[:] = 4
up.send([array, numpy.arange(3)])
""")
    array = strait.empty(MANY, "i8")
    array[:] = range(MANY)
    connection.send(array, timeout=LONG)
    assert np.array_equal(connection.recv(timeout=LONG), np.arange(MANY) + 1) and array[-1] == MANY - 1
    big, small = connection.recv(timeout=LONG)
    assert (big == 4).all() and big.shape == (1000, 1000) and list(small) == [0, 1, 2]


def test_an_array_that_was_not_sent_can_be_sent_later():
    one, other = strait.pair(queue_messages=1)
    with one, other:
        array = strait.empty(MANY, "u1")
        one.send("first")
        with pytest.raises(strait.WouldBlock):
            one.send(array, timeout=0)
        array[:] = 3
        assert other.recv(timeout=LONG) == "first"
        one.send(array)
        assert (other.recv(timeout=LONG) == 3).all()


REFUSED = [
    np.array([None, 1]), np.zeros(3, [("a", "i4"), ("b", "f8")]), np.ma.array([1, 2]), np.zeros(2, np.longdouble),
    np.zeros(2, np.clongdouble),
]


@pytest.mark.parametrize("array", REFUSED, ids=lambda array: f"{type(array).__name__}-{array.dtype}")
def test_what_cannot_travel_is_refused_by_its_place(pair, array):
    one, other = pair
    with pytest.raises(strait.NotPlain, match=r"x\['a'\]"):
        one.send({"a": array})
    assert not other.poll()


def test_bad_arguments_of_empty():
    bad = [(-1, "u1", ValueError), (4, "O", TypeError), ("a", "u1", TypeError), (2**62, "f8", ValueError)]
    for shape, dtype, expected in bad:
        with pytest.raises(expected):
            strait.empty(shape, dtype)
    with pytest.raises((strait.NoMemory, strait.System)):
        strait.empty(2**61, "u1")
    with pytest.raises(ValueError):
        strait.empty(3, order="K")
    assert strait.empty((0, 3)).shape == (0, 3)


def test_a_forked_child_is_told_that_it_does_not_have_the_memory():
    array = strait.empty(MANY, "u1")
    child = os.fork()
    if child == 0:
        try:
            strait.dumps(array)
        except BufferError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    array[0] = 1


def packed(dtype="<i4", shape=(2,), order="C", data=bytes(8), more=b""):
    parts = strait.dumps([dtype, list(shape) if isinstance(shape, tuple) else shape, order, data]) + more
    return strait.dumps(strait.Unknown(2, parts))


HOSTILE = [
    packed("O"), packed("|O8"), packed("<O8"), packed("<i3"), packed("<i9999999999"), packed("<i+4"), packed(""),
    packed("<"),
    packed("\u20ac\u20ac"), packed("<U0"), packed("<U4294967295"), packed("<f16"), packed("<c32"), packed("i4,i4"),
    packed("<M8[xx]"), packed("<M8[ns"), packed("<M8[" + "s" * 99 + "]"), packed(4), packed(None), packed(["<i4"]),
    packed(shape=(3,)), packed(shape=(2**62,)), packed(shape=(2**63, 2)), packed(shape=(2**64 - 1,)),
    packed(shape=(0,)),
    packed(shape=(-2,)), packed(shape=(1,) * 33 + (2,)), packed(shape=(0, 2**62), data=b""), packed(shape="ab"),
    packed(shape=(0, 2**32, 2**32), data=b""), packed(shape=(2.0,)), packed(shape=None), packed(shape=([2],)),
    packed(order="K"), packed(order="A"), packed(order=None), packed(order="\ud7ff"), packed(data=bytes(7)),
    packed(data=None), packed(data="eight by"), packed(data=[0]), packed(data=[0, 0]), packed(data=[2**63, 0]),
    packed(data=[-1, 0]), packed(data=[0, 0, 0]), packed(more=b"\xc0"), packed("|b1", (8,), data=b"\0\1\2\0\0\0\0\0"),
    strait.dumps(strait.Unknown(2, b"")), strait.dumps(strait.Unknown(2, b"\xc0")),
    strait.dumps(strait.Unknown(2, b"\x90")),
    strait.dumps(strait.Unknown(2, b"\xdd\xff\xff\xff\xff")),
]


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: data[:24].hex())
def test_hostile_arrays_are_malformed(pair, data):
    one, other = pair
    one.send_bytes(data)
    with pytest.raises(strait.Malformed):
        other.recv(timeout=LONG)
    one.send("next")
    assert other.recv(timeout=LONG) == "next"


def test_the_frame_of_the_hostile_tests_is_an_array():
    assert list(strait.loads(packed())) == [0, 0]


@pytest.mark.parametrize(
    "size, place, shape, dtype",
    [
        (8, [0, 1], (2,), "<i4"), (8, [0, 9], (2,), "<i4"), (8, [0, 2**64 - 1], (2,), "<i4"), (7, [0, 0], (2,), "<i4"),
        (8, [0, 0], (0,), "<i4"), (8, [0, 0], (2**40,), "<i4"), (8, [1, 0], (2,), "<i4"), (8, [0, 0], (8,), "|b1"),
        (8, [0, -1], (2,), "<i4"),
    ],
)
def test_arrays_that_are_not_within_their_region_are_malformed(pair, size, place, shape, dtype):
    one, other = pair
    one.send_bytes(packed(dtype, shape, data=place), handles=[strait.Region.sealed(b"\2" * size)])
    with pytest.raises(strait.Malformed):
        other.recv(timeout=LONG)


def test_an_array_over_memory_that_the_peer_can_write_is_malformed(pair):
    one, other = pair
    region = strait.Region(8)
    one.send_bytes(packed(data=[0, 0]), handles=[region])
    with pytest.raises(strait.Malformed, match="not sealed"):
        other.recv(timeout=LONG)
    with open(os.devnull) as file:
        one.send_bytes(packed(data=[0, 0]), handles=[file])
    with pytest.raises(strait.Malformed, match="no region"):
        other.recv(timeout=LONG)


def test_an_array_may_be_any_part_of_a_region(pair):
    one, other = pair
    region = strait.Region.sealed(bytes(range(256)) * 40)
    one.send_bytes(packed("|u1", (5,), data=[0, 5003]), handles=[region])
    received = other.recv(timeout=LONG)
    assert list(received) == [(5003 + n) % 256 for n in range(5)]
    received[:] = 0
    assert region.read(5003, 1) == bytes([5003 % 256])


def test_a_claimed_size_takes_no_memory(pair):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in HOSTILE * 20:
        with pytest.raises(strait.Malformed):
            strait.loads(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_random_arrays_never_do_more_than_fail():
    generator = random.Random(7)
    samples = [strait.dumps(array) for array in ARRAYS if array.nbytes < 1000]
    for _ in range(20_000):
        data = bytearray(generator.choice(samples))
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(min(len(data), 40))] = generator.randrange(256)
        try:
            value = strait.loads(bytes(data))
        except strait.Malformed:
            continue
        if type(value) is np.ndarray:
            value.tobytes()


def test_without_numpy_an_array_arrives_as_its_parts(child):
    _process, connection = child("""
sys.modules["numpy"] = None
for array in up:
    assert type(array) is strait.Array and array.shape == (100_000,) and array.order == "C"
    memoryview(array.memory)[0] = 9
    up.send(array)
    up.send(strait.Array("<i2", (2,), "C", bytearray(b"ab\\0\\0")))
""")
    connection.send(np.zeros(100_000, "u1"), timeout=LONG)
    assert list(connection.recv(timeout=LONG)[:2]) == [9, 0]
    assert connection.recv(timeout=LONG).dtype == np.dtype("<i2")


def test_regions_are_shared_and_sealed_ones_are_buffers(pair):
    region = strait.Region(10)
    theirs = over(pair, ["here", region])[1]
    region.write(b"abc", 2)
    assert theirs.read(1, 5) == b"\0abc\0" and theirs.access == "writable" and len(theirs) == 10
    with pytest.raises(BufferError) as refused:
        memoryview(theirs)
    assert isinstance(refused.value, strait.NotSealed)
    theirs.seal()
    with pytest.raises(strait.ReadOnly):
        region.write(b"x")
    view = memoryview(region)
    assert view.readonly and bytes(view) == b"\0\0abc\0\0\0\0\0" and np.frombuffer(theirs, "u1")[2] == ord("a")
    del region
    gc.collect()
    assert view[2] == ord("a")


def test_bytes_outside_of_a_region_are_refused():
    region = strait.Region(10)
    for offset, size in [(0, 11), (11, 0), (10, 1), (2**63, 2**63), (5, 2**64 - 1)]:
        with pytest.raises(strait.OutOfRange):
            region.read(offset, size)
    for offset in (8, 11, 2**63):
        with pytest.raises(strait.OutOfRange):
            region.write(b"abc", offset)
    for wrong in (-1, 2**64, "a"):
        with pytest.raises((OverflowError, TypeError)):
            strait.Region(wrong)
    with pytest.raises((strait.NoMemory, strait.System)):
        strait.Region(2**64 - 1)
    assert region.read(10) == b"" and bytes(strait.Region.sealed(b"")) == b""
