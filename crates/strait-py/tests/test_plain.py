"""The codec `plain`: accepted values, refused values, and hostile bytes."""

import datetime
import io
import math
import os
import pathlib
import pickle
import random
import socket
import uuid

import numpy
import pytest

import strait
from conftest import LONG

VALUES = [
    None, True, False, 0, 1, -1, 127, 128, -32, -33, 255, 256, 65_535, 65_536, -129, -32_769, 2**31, -(2**31) - 1,
    2**32, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 2**1000, -(2**1000), 2**71 - 1, -(2**71),
    0.0, -0.0, 1.5, math.inf, "", "text", "\u20ac" * 20, "x" * 300, "y" * 70_000, b"", b"bytes", bytes(300),
    bytes(70_000), [], [1, [2, [3]]], list(range(20)), list(range(70_000)), {}, {"a": 1, 2: [3], (1, (2, 3)): None},
    {str(n): n for n in range(20)}, set(), {1, "a", (2, 3)}, [{1}, {frozenset() or 1}],
    datetime.datetime(2026, 11, 23, 22, 0, 1, 5), datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
    uuid.UUID(int=7), pathlib.Path("/tmp/a b"), pathlib.Path(os.fsdecode(b"/\xff")), strait.Unknown(77, b"later"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_values_arrive_equal_and_of_their_type(value):
    decoded = strait.loads(strait.dumps(value))
    assert decoded == value and type(decoded) is type(value)


def test_values_travel(pair):
    one, other = pair
    for value in VALUES:
        one.send(value, timeout=LONG)
        assert other.recv(timeout=LONG) == value


def test_some_types_arrive_as_their_neighbours():
    assert math.isnan(strait.loads(strait.dumps(math.nan)))
    assert strait.loads(strait.dumps((1, 2))) == [1, 2]
    assert strait.loads(strait.dumps(frozenset({1}))) == {1}
    assert strait.loads(strait.dumps(bytearray(b"ab"))) == b"ab"
    assert strait.loads(strait.dumps(memoryview(b"abcd")[::2])) == b"ac"


class Foo:
    """A class unknown to every codec."""


def itself():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value, place",
    [
        (Foo(), "x: <class"),
        ({"rows": [1, 2, 3, Foo()]}, "x['rows'][3]: <class"),
        ({Foo(): 1}, "(the key): <class"),
        ([{"a": {Foo()}}], "x[0]['a'][0]: <class"),
        ("\ud800", "x: text with a surrogate"),
        (itself(), "nested more than 64 deep"),
        (len, "x: <class"),
        (Foo, "x: <class"),
    ],
    ids=repr,
)
def test_what_is_not_plain_is_refused_by_its_place(pair, value, place):
    one, other = pair
    with pytest.raises(TypeError) as refused:
        one.send(value)
    assert isinstance(refused.value, strait.NotPlain) and place in str(refused.value)
    assert not other.poll()


class Late(datetime.datetime):
    """A date whose text is another date."""

    def isoformat(self, *arguments):
        return "2020-01-01T00:00:00"


class Never(datetime.datetime):
    """A date like `pandas.NaT`, whose text is no date."""

    def isoformat(self, *arguments):
        return "NaT"


class Member(dict):
    def __hash__(self):
        return 1


def within(value, depth):
    for _ in range(depth):
        value = [value]
    return value


ODD = [
    {numpy.int64(3): "x"}, {numpy.uint64(2**63): 1}, {numpy.bool_(True): 1}, {numpy.float32(1.5): 1}, {numpy.float16(0.5)},
    {numpy.int8(1), numpy.int64(2)}, {(1, (2, numpy.int64(3))): 4}, {numpy.longdouble(1): 1}, {numpy.complex64(1): 1},
    {numpy.datetime64("2026-01-01"): 1}, {numpy.timedelta64(1, "ns"): 1}, {numpy.str_("a"): numpy.bytes_(b"b")},
    set(numpy.arange(3)), {frozenset({1}): 2}, {frozenset({1})}, {(1, frozenset()): 1}, {Member(): 1}, {Member()},
    numpy.complex64(1), numpy.complex128(1), numpy.longdouble(1), numpy.datetime64("2026-01-01"), numpy.timedelta64(3, "s"),
    numpy.void(b"abc"), numpy.zeros(1, [("a", "i4")])[0], numpy.float16(1), numpy.int64(7), io.BytesIO(b"x"), io.StringIO("x"),
    Late(2026, 1, 1), Never(2026, 1, 1), *[within(numpy.zeros(2), depth) for depth in (62, 63, 64, 65)],
    *[within(numpy.int64(2), depth) for depth in (63, 64)], *[within({1}, depth) for depth in (63, 64, 65)],
    *[within({(1, 2): {1}}, depth) for depth in (61, 62, 63, 64)], within(2**70, 65),
]


@pytest.mark.parametrize("value", ODD, ids=lambda value: f"{type(value).__name__} {value!r}"[:40])
def test_odd_values_arrive_equal_or_are_refused(value):
    try:
        data = strait.dumps(value)
    except strait.NotPlain:
        return
    received = strait.loads(data)
    for _ in range(65):
        if type(value) is list:
            (value,), (received,) = value, received
    assert numpy.array_equal(received, value)


@pytest.mark.parametrize("value", [{numpy.int64(3): "x"}, set(numpy.arange(3)), {(1, numpy.float32(1.5)): numpy.bool_(True)}], ids=repr)
def test_numbers_of_numpy_are_keys(value):
    received = strait.loads(strait.dumps(value))
    assert received == value and {type(key) for key in received} <= {int, tuple}


def nested(depth):
    return b"\x91" * depth + b"\x90"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x01\x02", b"\xa5abcd", b"\xa1\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff\xc0",
        b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\x92\x01", b"\x81\x80\x01",
        b"\x81\x01", nested(65), nested(1_000_000), b"\xd4\x01\x00", b"\xd4\x01\xff", b"\xd4\x03\x01",
        b"\xd5\x03\x91\x90\x00", b"\xc7\x02\x03\x91\x80", b"\xd4\x05\x41", b"\xd4\x06\x41", b"\xce\x00",
        b"\xcf\x00\x00\x00\x00\x00\x00\x00", b"\xd8",
    ],
    ids=lambda data: data[:12].hex(),
)
def test_hostile_bytes_are_malformed_and_the_connection_works(pair, data):
    one, other = pair
    one.send_bytes(data)
    with pytest.raises(ValueError) as malformed:
        other.recv(timeout=LONG)
    assert isinstance(malformed.value, strait.Malformed) and "before byte" in str(malformed.value)
    one.send("next")
    assert other.recv(timeout=LONG) == "next"


def test_depth_has_one_limit_for_both_sides():
    value = []
    for _ in range(64):
        value = [value]
    assert strait.loads(strait.dumps(value)) == value
    with pytest.raises(strait.NotPlain):
        strait.dumps([value])


def test_extensions_in_extensions_are_malformed():
    heads = [b"\xc9" + (1 + 6 * number).to_bytes(4, "big") + b"\x03" for number in range(200_000)]
    with pytest.raises(strait.Malformed):
        strait.loads(b"".join(reversed(heads)) + b"\x90")


def test_random_bytes_never_do_more_than_fail():
    generator = random.Random(23)
    samples = [strait.dumps(value) for value in VALUES if len(repr(value)) < 400]
    for _ in range(20_000):
        data = bytearray(generator.choice(samples) + generator.choice(samples)[:20])
        for _ in range(generator.randrange(4)):
            if data:
                data[generator.randrange(len(data))] = generator.randrange(256)
        try:
            strait.dumps(strait.loads(bytes(data)))
        except (strait.Malformed, strait.NotPlain):
            pass


class Bomb:
    def __reduce__(self):
        return os.abort, ()


def test_a_pickle_is_not_executed(pair):
    one, other = pair
    one.send_bytes(pickle.dumps(Bomb()))
    with pytest.raises(strait.Malformed):
        other.recv(timeout=LONG)
    with pytest.raises(strait.NotPlain):
        one.send(Bomb())


def test_open_files_and_sockets_travel_in_objects(pair, tmp_path):
    one, other = pair
    left, right = socket.socketpair()
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with open(path, "rb") as file, left, right:
        one.send({"file": file, "sockets": [left]})
        received = other.recv(timeout=LONG)
        # The sender's own objects stay open.
        assert file.read() == b"content"
        with received["file"] as theirs:
            os.lseek(theirs.fileno(), 0, os.SEEK_SET)
            assert os.read(theirs.fileno(), 100) == b"content"
        with socket.socket(fileno=received["sockets"][0].detach()) as theirs:
            theirs.send(b"hello")
            assert right.recv(100) == b"hello"


def test_a_connection_travels_with_its_messages(pair):
    one, other = pair
    near, far = strait.pair()
    for number in range(3):
        near.send(number)
    one.send(["take this", far])
    assert far.closed
    for expected in (strait.Moved, OSError, ValueError):
        with pytest.raises(expected):
            far.recv()
    text, moved = other.recv(timeout=LONG)
    assert [moved.recv(timeout=LONG) for _ in range(3)] == [0, 1, 2]
    moved.send("back")
    assert near.recv(timeout=LONG) == "back"
    near.close()
    moved.close()


def test_a_connection_travels_to_another_process(child):
    _process, connection = child("up.recv().send('from afar')")
    near, far = strait.pair()
    connection.send(far)
    assert near.recv(timeout=LONG) == "from afar"
    near.close()


def test_a_connection_that_was_not_sent_can_still_be_used(pair):
    one, other = pair
    near, far = strait.pair()
    with pytest.raises(ValueError):
        one.send([far, one])
    with pytest.raises(strait.NotPlain):
        one.send([far, Foo()])
    with pytest.raises(ValueError):
        one.send([far, far])
    other.close()
    with pytest.raises(strait.PeerClosed):
        one.send([far])
    near.send("here")
    assert far.recv(timeout=LONG) == "here" and not far.closed
    near.close()
    far.close()


def test_handles_are_named_once_each(pair):
    one, other = pair
    with open(os.devnull, "rb") as file:
        for data in (b"\xc0", b"\x92\xd4\x01\x00\xd4\x01\x00", b"\xd4\x01\x01", b"\xd4\x01\xc0"):
            one.send_bytes(data, handles=[file])
            with pytest.raises(strait.Malformed):
                other.recv(timeout=LONG)
    with pytest.raises(strait.NotPlain):
        strait.dumps([one])


def test_too_many_handles_are_refused_and_stay(pair):
    one, other = pair
    files = [strait.File(0) for _ in range(65)]
    with pytest.raises(strait.TooManyHandles):
        one.send(files)
    assert not any(file.closed for file in files) and not other.poll()
