"""The interpreter lock is free while large messages are copied, and while large memory is given back."""

import sys
import threading
import time

import pytest

import strait
from conftest import LONG

SIZE = 256 << 20


def longest_stall(call):
    """Returns the share of the call's processor time in which no other thread could run: between two turns of another
    thread, which wants the lock all the time."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    turns, done = [], threading.Event()

    def take_turns():
        while not done.is_set():
            turns.append(time.clock_gettime(clock))
            time.sleep(0.0001)

    thread = threading.Thread(target=take_turns)
    thread.start()
    while len(turns) < 3:
        time.sleep(0.001)
    begin = time.clock_gettime(clock)
    call()
    end = time.clock_gettime(clock)
    done.set()
    thread.join()
    moments = [begin, *(turn for turn in turns if begin < turn < end), end]
    return max(later - earlier for earlier, later in zip(moments, moments[1:])) / (end - begin)


def receiving(receive):
    def make():
        one, other = strait.pair(max_message=SIZE, queue_bytes=2 * SIZE)
        kept = [other]
        sending = threading.Thread(target=one.send_bytes, args=(bytes(SIZE),), kwargs={"timeout": LONG})
        sending.start()
        sending.join()

        def call():
            kept.append(receive(other))

        return call, kept

    return make


def sending(kind):
    def make():
        one, other = strait.pair(max_message=SIZE, queue_bytes=2 * SIZE)
        data = kind(SIZE)
        return lambda: one.send_bytes(data, timeout=LONG), [one, other, data]

    return make


def sealing():
    data = bytearray(SIZE)
    return lambda: strait.Region.sealed(data), [data]


def dropping():
    kept = [strait._native.zeroed(SIZE)]
    memoryview(kept[0])[:] = bytes(SIZE)
    return kept.clear, kept


CALLS = {
    "recv_bytes": receiving(lambda end: end.recv_bytes(timeout=LONG)),
    "recv_bytes with a limit": receiving(lambda end: end.recv_bytes(SIZE, timeout=LONG)),
    "recv_message": receiving(lambda end: end.recv_message(timeout=LONG)),
    "recv_many": receiving(lambda end: end.recv_many(1, timeout=LONG)),
    "send_bytes of a bytearray": sending(bytearray),
    "Region.sealed": sealing,
    "drop": dropping,
}


@pytest.mark.parametrize("make", CALLS.values(), ids=CALLS.keys())
def test_other_threads_run_during_a_large_copy(make):
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        shares = []
        # A loaded machine may not run the other thread at its turn, but does not do so each time.
        # To give memory back takes some 20 ms, in which a loaded machine may run no other thread more than once.
        most = 0.8 if make is dropping else 0.2
        for _ in range(20):
            call, kept = make()
            shares.append(longest_stall(call))
            kept.clear()
            if shares[-1] < most:
                return
    finally:
        sys.setswitchinterval(before)
    raise AssertionError(f"no other thread ran during these shares of the processor time of a call: {shares}")
