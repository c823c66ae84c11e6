"""Arrays up to 4 MiB, which travel in the bytes of the message, in memory that is used again and again."""

import gc
import resource

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
