"""Arrays and regions: transfers without a copy, the memory kept by each side, and hostile frames."""

import gc
import os
import random
import re
import resource
import subprocess
import weakref

import pytest

import strait
import strait.mp
from conftest import LONG

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.usefixtures("regions")

MANY = 1 << 18


def over(pair, value):
    one, other = pair
    one.send(value, timeout=LONG)
    return other.recv(timeout=LONG)


def is_mapped(array):
    """Whether an array lies in a mapping of a region."""
    return is_in_region(array.ctypes.data)


def is_in_region(address):
    """Whether this process has a region mapped at an address."""
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
    # The memory may have changed since the seal: from now on, sending copies the memory.
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
    # Sending a part has not sealed the whole memory.
    assert array.base.seal() is not None


@pytest.mark.parametrize("order", ["C", "F"])
def test_views_of_the_whole_are_sent_without_a_copy(pair, order):
    array = strait.empty((256, 1024), "i4", order=order)
    array[3, 4] = 77
    received = over(pair, array.T)
    assert received[4, 3] == 77 and array.base.seal() is None


def test_12_an_array_outlives_the_connection_and_its_memory_goes_with_it():
    one, other = strait.pair()
    one.send(np.arange(MANY, dtype="u4"))
    received = other.recv(timeout=LONG)
    one.close()
    other.close()
    part = received[1000:1003]
    memory, address = weakref.ref(received.base), part.ctypes.data
    del received
    gc.collect()
    assert list(part) == [1000, 1001, 1002] and memory() is not None and is_mapped(part)
    del part
    gc.collect()
    assert memory() is None and not is_in_region(address)


def test_12_an_array_outlives_its_region():
    region = strait.Region.sealed(np.arange(MANY, dtype="u4"))
    whole = region.array(MANY, "u4")
    part = whole[1000:1003]
    address = part.ctypes.data
    del region, whole
    gc.collect()
    assert list(part) == [1000, 1001, 1002] and is_mapped(part)
    del part
    gc.collect()
    assert not is_in_region(address)


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


def test_a_forked_child_has_a_copy_of_memory_that_was_not_sent(pair):
    array = strait.empty((MANY,), "u1")
    array[:] = 3
    untouched = strait.empty((1 << 30,), "u1")
    read, write = os.pipe()
    copied, copies = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(copies, b"x")
            os.read(read, 1)
            # The child does not see later writes of the parent, and the parent does not see writes of the child.
            assert array[0] == 3 and array[-1] == 3 and not untouched[:: 1 << 20].any()
            array[1] = 5
            untouched[7] = 1
            one, other = strait.pair()
            one.send(array)
            received = other.recv()
            assert received[1] == 5 and received[2] == 3 and one.counters.copied == 1
            code = 0
        finally:
            os._exit(code)
    os.read(copied, 1)
    array[0] = 9
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (array[0], array[1]) == (9, 3) and not untouched[7]
    one, other = pair
    one.send(array)
    assert one.counters.copied == 0 and other.recv()[0] == 9
    for descriptor in (read, write, copied, copies):
        os.close(descriptor)


def test_a_forked_child_has_a_copy_of_memory_without_an_array(python):
    program = """
import os, strait
memory = strait.Memory(1 << 20)
view = memoryview(memory)
view[5] = 7
child = os.fork()
if child == 0:
    code = view[5] - 7
    view[6] = 8
    os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert view[6] == 0
"""
    process = python(program, stderr=subprocess.PIPE, text=True)
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == 0, errors


def packed(dtype="<i4", shape=(2,), order="C", data=bytes(8), more=b""):
    parts = strait.dumps([dtype, list(shape) if isinstance(shape, tuple) else shape, order, data]) + more
    return strait.dumps(strait.Unknown(2, parts))


HOSTILE = [
    packed("O"), packed("|O8"), packed("<O8"), packed("<i3"), packed("<i9999999999"), packed("<i+4"), packed(""),
    packed("<"),
    packed("\u20ac\u20ac"), packed("<U0"), packed("<U4294967295"), packed("<f16"), packed("<c32"), packed("i4,i4"),
    packed("<M8[0s]", (1,)), packed("<m8[00D]", (1,)), packed("<m8[01s]", (1,)), packed("<M8[4294967296s]", (1,)),
    packed("<M8[xx]"), packed("<M8[ns"), packed("<M8[" + "s" * 99 + "]"), packed(4), packed(None), packed(["<i4"]),
    packed(shape=(3,)), packed(shape=(2**62,)), packed(shape=(2**63, 2)), packed(shape=(2**64 - 1,)),
    packed(shape=(0,)),
    packed(shape=(-2,)), packed(shape=(1,) * 33 + (2,)), packed(shape=(0, 2**62), data=b""), packed(shape="ab"),
    packed(shape=(0, 2**32, 2**32), data=b""), packed(shape=(2.0,)), packed(shape=None), packed(shape=([2],)),
    packed(order="K"), packed(order="A"), packed(order=None), packed(order="\ud7ff"), packed(data=bytes(7)),
    packed(data=None), packed(data="eight by"), packed(data=[0]), packed(data=[0, 0]), packed(data=[2**63, 0]),
    packed(data=[-1, 0]), packed(data=[0, 0, 0]), packed(more=b"\xc0"), packed("|b1", (8,), data=b"\0\1\2\0\0\0\0\0"),
    packed("<U2", (1,), data=b"\xff\xff\xff\x7f" * 2), packed(">U1", data=b"\0\0\0a\0\x11\0\0"),
    packed("|U1", (1, 2), "F", data=b"a\0\0\0\0\0\x11\0"),
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
        (8, [0, -1], (2,), "<i4"), (8, [0, 0], (2,), "<U1"),
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


# ---------------------------------------------------------------- other libraries


def test_arrays_can_be_received_read_only(pair):
    one, other = pair
    for value in (np.arange(5), np.arange(MANY, dtype="f8")):
        one.send(value)
        received = other.recv(writable=False)
        assert not received.flags.writeable and np.array_equal(received, value)
        with pytest.raises(ValueError):
            received[0] = 1
    # An array that no process can change is sent on without a copy.
    copied = one.counters.copied
    one.send(received)
    assert one.counters.copied == copied and np.array_equal(other.recv(), value)
    one.send(received[1:])
    assert one.counters.copied == copied + 1 and np.array_equal(other.recv(), value[1:])


def test_7_counters_tell_what_was_copied(pair):
    one, other = pair
    array = strait.empty((1 << 28,), "u1")
    array[:] = 7
    one.send(array)
    received = other.recv()
    assert one.counters.copied == 0 and is_mapped(received)
    array[0], received[1] = 9, 5
    assert (array[0], array[1], received[0], received[1]) == (9, 7, 7, 5)
    one.send(array)
    assert one.counters.copied == 1 and other.recv()[0] == 9


def test_13_reservations_are_filled_in_place_and_stay_valid(pair):
    one, other = pair
    with one.reserve(1 << 20, dtype="u1") as reservation:
        kept = reservation.buffer
        reservation.array[:] = 3
        reservation.send()
        with pytest.raises(strait.Closed):
            reservation.send()
    received = other.recv()
    kept[0] = 9
    assert one.counters.copied == 0 and received[0] == 3 and kept[1] == 3 and reservation.array[0] == 9
    raw = one.reserve(5)
    raw.buffer[:] = b"bytes"
    raw.send()
    assert other.recv_bytes() == b"bytes"
    with one.reserve(100) as cancelled:
        pass
    with pytest.raises(strait.Closed):
        cancelled.send()
    assert not other.poll()
    one.reserve(0).send()
    assert other.recv_bytes() == b""


def test_buffers_of_numbers_arrive_as_arrays(pair):
    import array
    import ctypes
    import mmap

    for value, dtype in (
        (array.array("i", range(10)), "<i4"), (array.array("d", [1.5] * 100_000), "<f8"),
        ((ctypes.c_uint16 * 3)(1, 2, 3), "<u2"), (np.int64(7), "<i8"), (np.float32(1.5), "<f4"),
    ):
        received = over(pair, value)
        assert received.dtype.str == dtype and np.array_equal(received, np.asarray(value))
    memory = mmap.mmap(-1, 10)
    memory[:3] = b"abc"
    assert over(pair, memory) == b"abc" + bytes(7)
    assert over(pair, strait.Memory(4)) == bytes(4)


class Foreign:
    """An array of another library, described by DLPack alone."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)


def test_arrays_of_any_library_travel_by_dlpack(pair):
    for array in (np.arange(6, dtype="f4").reshape(2, 3), np.arange(MANY)):
        received = over(pair, Foreign(array))
        assert type(received) is np.ndarray and np.array_equal(received, array)
    mine = strait.empty((MANY,), "u1")
    mine[:] = 4
    over(pair, Foreign(mine))
    assert pair[0].counters.copied == 1
    with pytest.raises(strait.NotPlain, match=r"x\[0\]: .*device 2.0"):
        pair[0].send([Foreign(np.ones(2), (2, 0))])


def test_an_array_without_numpy_is_given_by_dlpack():
    from strait._arrays import Array

    memory = bytearray(np.arange(6, dtype="<f4").tobytes())
    for order, expected in (("C", [[0, 1, 2], [3, 4, 5]]), ("F", [[0, 2, 4], [1, 3, 5]])):
        taken = np.from_dlpack(Array("<f4", (2, 3), order, memory))
        assert taken.tolist() == expected and taken.dtype == "f4"
    taken[0, 0] = 9
    assert np.frombuffer(memory, "f4")[0] == 9
    frozen = Array("<i2", (2,), "C", bytes(4))
    assert not np.from_dlpack(frozen).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        frozen.__dlpack__()
    capsule = Array("|b1", (), "C", bytearray(1)).__dlpack__(max_version=(1, 0), copy=True)
    assert "dltensor_versioned" in repr(capsule)
    del capsule
    gc.collect()
    for wrong in (Array(">f4", (1,), "C", bytearray(4)), Array("<M8[s]", (1,), "C", bytearray(8))):
        with pytest.raises(BufferError):
            wrong.__dlpack__()
    with pytest.raises(ValueError, match="shape"):
        Array("<f4", (7,), "C", bytearray(4)).__dlpack__()
    with pytest.raises(BufferError):
        frozen.__dlpack__(dl_device=(2, 0))
    reference = weakref.ref(strait.Memory(1 << 20))
    kept = np.from_dlpack(Array("|u1", (1 << 20,), "C", memory := strait.Memory(1 << 20)))
    reference = weakref.ref(memory)
    del memory
    gc.collect()
    assert reference() is not None and kept[0] == 0
    del kept
    gc.collect()
    assert reference() is None


def test_a_region_is_an_array_only_if_nobody_can_write_to_it(pair):
    region = strait.Region(1 << 17, name="frames")
    assert region.name == "frames" and os.fstat(region.fileno()).st_size == 1 << 17
    with pytest.raises(strait.NotSealed, match="trust=True"):
        region.array((10,), "u1")
    shared = region.array((1 << 17,), "u1", trust=True)
    shared[:] = 3
    assert region.read(0, 2) == b"\3\3"
    # Only a connection with a trusted peer takes an array still writable by the peer.
    one, other = pair
    one.send(shared)
    with pytest.raises(strait.Malformed, match="sealed"):
        other.recv()
    one, other = strait.pair(trust=True)
    one.send(shared)
    received = other.recv()
    shared[1] = 8
    assert received[1] == 8 and received.flags.writeable
    received[2] = 9
    assert shared[2] == 9 and one.counters.copied == 0
    one.send(region.reader().array((1 << 17,), "u1", trust=True))
    assert not other.recv().flags.writeable
    del shared, received
    gc.collect()
    reader = region.reader()
    assert reader.access == "read-only"
    region.admit_no_writer()
    region.seal()
    array = region.array((2, 3), "u1", offset=1, order="F")
    assert array[0, 0] == 8 and not array.flags.writeable
    for wrong in (((1 << 18,), "u1"), ((2,), "O")):
        with pytest.raises((TypeError, ValueError)):
            region.array(*wrong)
    again = strait.Region.from_fd(region.fileno())
    assert again.access == "sealed" and again.read(1, 1) == b"\x08"
    with open(os.devnull) as file, pytest.raises(strait.NotARegion):
        strait.Region.from_fd(file)


@pytest.mark.parametrize("dtype", ["?", "<U1", ">U1", [("a", "u1", (3,)), ("b", "?")], [("a", [("b", "<U1")])]], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_region_with_values_that_do_not_exist_is_no_array(dtype, order):
    region = strait.Region.sealed(b"\2\2\2\2" * 6)
    with pytest.raises(ValueError, match="truth value|text"):
        region.array((2, 3), dtype, order=order)
    with pytest.raises(ValueError, match="truth value|text"):
        region.array((), dtype)
    good = strait.Region.sealed(np.zeros((2, 3), dtype).tobytes())
    assert not any(good.array((2, 3), dtype, order=order).tobytes())


def test_hostile_origins_of_arrays(pair):
    one, other = pair
    for parts in (
        ["|u1", [3], "C", b"abc", "arrow.table"], ["|u1", [3], "C", b"abc", "arrow.other"], ["<f8", [1], "C", bytes(8), "arrow.batch"],
        [">f8", [1], "C", bytes(8), "torch"], ["bfloat16", [2], "C", b"abc", ""], ["|u1", [3], "C", b"abc", 7],
        ["|u1", [3], "C", b"abc", "", ""], ["|b1", [1], "C", b"\2", "torch"],
    ):
        one.send(strait.Unknown(2, strait.dumps(parts)))
        try:
            received = other.recv()
        except strait.Malformed:
            continue
        # If the library of the origin is not installed, the array is an array of NumPy or a `strait.Array`.
        assert isinstance(received, (np.ndarray, strait.Array)), parts


@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
def test_a_message_imports_libraries_only_for_a_trusted_peer(python, tmp_path, fails):
    for name in ("torch", "pyarrow", "ml_dtypes"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError" if fails else "")
    program = """
import sys, strait
sys.path.insert(0, sys.argv[1])
def messages():
    for origin, dtype in [("torch", "|u1"), ("torch", "bfloat16"), ("arrow.table", "|u1"), ("", "bfloat16")]:
        yield strait.Unknown(2, strait.dumps([dtype, [8 if dtype == "|u1" else 4], "C", bytes(8), origin]))
def over(message, **options):
    one, other = strait.pair(**options)
    one.send(message)
    return other.recv(timeout=60)
for message in messages():
    assert type(over(message)).__name__ in ("ndarray", "Array")
assert not {"torch", "pyarrow", "ml_dtypes"} & sys.modules.keys()
if sys.argv[2] == "True":
    # A failed import loses no message.
    for message in messages():
        assert type(over(message, trust=True)).__name__ in ("ndarray", "Array")
"""
    process = python(program, args=[str(tmp_path), str(fails)], stderr=subprocess.PIPE, text=True)
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == 0, errors


# ---------------------------------------------------------------- torch


def test_tensors_travel(pair):
    torch = pytest.importorskip("torch")
    one, other = pair
    kinds = [
        torch.arange(12).reshape(3, 4), torch.ones(MANY, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bool),
        torch.tensor(2.5), torch.zeros(0, 3), torch.ones(4, dtype=torch.complex64).conj(), torch.arange(20).reshape(4, 5).T,
        torch.ones(5, requires_grad=True), torch.ones(3, dtype=torch.bfloat16), torch.arange(MANY, dtype=torch.uint8),
    ]
    for tensor in kinds:
        received = over(pair, {"t": tensor})["t"]
        assert type(received) is torch.Tensor and received.dtype == tensor.dtype and torch.equal(received, tensor.detach())
        received += 1 if tensor.dtype != torch.bool else received
    one.send(torch.ones(MANY))
    received = other.recv(writable=False)
    received += 1
    assert received[0] == 2
    array = strait.empty((MANY,), "f4")
    tensor = torch.from_numpy(array)
    tensor += 1
    copied = one.counters.copied
    one.send(tensor)
    received = other.recv()
    assert one.counters.copied == copied and received[0] == 1 and is_mapped(received.numpy())
    tensor += 5
    received += 1
    assert (tensor[0], received[0]) == (6, 2)
    with pytest.raises(strait.NotPlain, match="to_dense"):
        one.send(torch.ones(3).to_sparse())
    with pytest.raises(strait.NotPlain, match=r"on meta: send t.cpu\(\)"):
        one.send(torch.ones(3, device="meta"))


def test_8_a_received_array_is_a_tensor_without_a_copy(pair):
    torch = pytest.importorskip("torch")
    sent = np.arange(MANY, dtype="f8")
    received = over(pair, sent)
    tensor = torch.from_dlpack(received)
    tensor += 1
    assert received[0] == 1 and sent[0] == 0 and tensor.data_ptr() == received.ctypes.data


def test_tensors_in_pickles_leave_the_pickle():
    torch = pytest.importorskip("torch")
    here, there = strait.mp.Pipe()
    tensor = torch.ones(MANY, dtype=torch.bfloat16)
    here.send([tensor, torch.arange(3), torch.ones(2, requires_grad=True)])
    message = there._end.recv_message()
    assert len(message.bytes) < 5000 and len(message.handles) == 1
    here.send([tensor, torch.arange(3), torch.ones(2, requires_grad=True)])
    big, small, grad = there.recv()
    assert torch.equal(big, tensor) and small.tolist() == [0, 1, 2] and grad.requires_grad
    big += 1
    assert tensor[0] == 1


# ---------------------------------------------------------------- Arrow


def test_tables_travel(pair):
    pa = pytest.importorskip("pyarrow")
    one, other = pair
    small = pa.table({"n": [1, 2, None], "s": ["a", "bc", None], "d": pa.array(["x", "y", "x"]).dictionary_encode()})
    large = pa.table({"n": np.arange(100_000), "s": [str(number) for number in range(100_000)]})
    batch = large.to_batches()[0]
    for table in (small, large, large.slice(5, 10), small.slice(0, 0), batch):
        received = over(pair, [table])[0]
        assert type(received) is type(table) and received.equals(table)
    received = over(pair, large)
    assert one.counters.copied and is_mapped(np.asarray(received["n"].chunk(0)))
    other_reads = large.slice(3, 2)
    strait.arrays.send_arrow(one, other_reads)
    assert other.recv(writable=False).equals(other_reads)


def test_a_hostile_table_is_validated(pair):
    pa = pytest.importorskip("pyarrow")
    one, other = pair
    table = pa.table({"s": ["a" * 10, "b" * 10]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream = bytearray(sink.getvalue().to_pybytes())
    offsets = np.array([0, 10, 20], "<i4").tobytes()
    at = bytes(stream).index(offsets)
    stream[at + 4 : at + 8] = (1 << 30).to_bytes(4, "little")
    hostile = strait.Unknown(2, strait.dumps(["|u1", [len(stream)], "C", bytes(stream), "arrow.table"]))
    one.send(hostile)
    with pytest.raises(strait.Malformed):
        other.recv()
    rng = random.Random(7)
    good = bytes(sink.getvalue().to_pybytes())
    for _ in range(500):
        broken = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        one.send(strait.Unknown(2, strait.dumps(["|u1", [len(broken)], "C", bytes(broken), "arrow.table"])))
        try:
            received = other.recv()
        except strait.Malformed:
            continue
        received.to_pydict()


def test_an_old_version_of_arrow_reads_no_table_of_an_untrusted_peer(pair, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"n": [1, 2]})
    trusting = strait.pair(trust=True)
    for version, is_safe in [("0.14.0", False), ("14.0.0", False), ("14.0.1", True), ("21.0.0.dev7", True)]:
        monkeypatch.setattr(pa, "__version__", version)
        received = over(pair, table)
        assert type(received) is (pa.Table if is_safe else np.ndarray), version
        # The bytes are the stream.
        assert (received if is_safe else pa.ipc.open_stream(pa.py_buffer(received)).read_all()).equals(table)
        assert over(trusting, table).equals(table)


def compressed(pa):
    """Returns streams whose compressed buffers are much larger than they are: of a batch, and of a dictionary."""
    for codec in ("zstd", "lz4"):
        options = pa.ipc.IpcWriteOptions(compression=codec)
        zeros = pa.array(np.zeros(1 << 26, "u1"))
        words = pa.DictionaryArray.from_arrays(pa.array([0], "i8"), pa.array(["a" * (1 << 26)]))
        for table in pa.table({"a": zeros}), pa.table({"a": [[1]], "b": words}):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
                writer.write_table(table)
            yield sink.getvalue().to_pybytes()
    # What Arrow wrote before version 5 of its metadata.
    sink, batch = pa.BufferOutputStream(), pa.record_batch({"a": [1, 2, 3]})
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata={"ARROW:experimental_compression": "zstd"})
    yield sink.getvalue().to_pybytes()


@pytest.mark.parametrize("origin", ["arrow.table", "arrow.batch"])
def test_a_compressed_table_is_refused(pair, origin):
    pa = pytest.importorskip("pyarrow")
    one, other = pair
    for stream in compressed(pa):
        assert len(stream) < 1 << 20
        one.send(strait.Unknown(2, strait.dumps(["|u1", [len(stream)], "C", stream, origin])))
        with pytest.raises(strait.Malformed) as refused:
            other.recv(timeout=LONG)
        assert "compressed" in str(refused.value.__cause__)
    one.send("works")
    assert other.recv(timeout=LONG) == "works"


def test_a_compressed_table_does_not_fill_the_memory(python):
    pytest.importorskip("pyarrow")
    program = """
import resource, sys
import numpy, pyarrow as pa, strait
table = pa.table({"a": numpy.zeros(1 << 30, "u1")})
sink = pa.BufferOutputStream()
with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
    writer.write_table(table)
del table, writer
stream = sink.getvalue().to_pybytes()
in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + (512 << 20), resource.RLIM_INFINITY))
try:
    strait.loads(strait.dumps(strait.Unknown(2, strait.dumps(["|u1", [len(stream)], "C", stream, "arrow.table"]))))
except strait.Malformed:
    pass
else:
    raise SystemExit("not malformed")
"""
    process = python(program, stderr=subprocess.PIPE, text=True)
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == 0, errors


def test_a_trusted_peer_may_send_a_compressed_table():
    pa = pytest.importorskip("pyarrow")
    one, other = strait.pair(trust=True)
    stream = next(compressed(pa))
    one.send(strait.Unknown(2, strait.dumps(["|u1", [len(stream)], "C", stream, "arrow.table"])))
    assert other.recv(timeout=LONG).num_rows == 1 << 26
