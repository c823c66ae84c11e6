"""Nothing is left behind: descriptors, mappings, threads and memory after many messages, connections and dead children."""

import gc
import os
import signal
import subprocess
import sys
import time

import numpy

import strait
from conftest import LONG, scaled


def held():
    """Returns the numbers of descriptors, mappings and threads, and the resident memory in KiB."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        shared = sum("memfd" in line for line in maps)
    with open("/proc/self/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    return len(os.listdir("/proc/self/fd")), shared, len(os.listdir("/proc/self/task")), resident


def assert_flat(repeat, times, slack=4096):
    """Calls `repeat` some times to warm up, and then `times` times; nothing may have grown, the memory but for `slack`
    KiB."""
    for _ in range(max(10, times // 10)):
        repeat()
    before = held()
    for _ in range(times):
        repeat()
    after = held()
    assert after[0] <= before[0], ("descriptors", before, after)
    assert after[1] <= before[1] + 2, ("mappings", before, after)
    assert after[2] <= before[2] + 1, ("threads", before, after)
    assert after[3] <= before[3] + slack, ("memory in KiB", before, after)


def test_messages_leave_nothing(child):
    _process, connection = child("for item in up: up.send(item)")
    values = [None, {"a": [1, 2, {"b": b"x" * 300}]}, "y" * 5000, numpy.zeros(30), numpy.zeros(30_000)]

    def repeat():
        for value in values:
            connection.send(value)
            received = connection.recv(timeout=LONG)
        del received

    assert_flat(repeat, scaled(1_000, 200_000))


def test_malformed_messages_with_handles_leave_nothing(pair):
    one, other = pair
    region = strait.Region.sealed(b"x" * 100)

    def repeat():
        one.send_bytes(b"\xc1", handles=[region, strait.File(2)])
        try:
            other.recv(timeout=LONG)
        except strait.Malformed:
            pass

    assert_flat(repeat, scaled(1_000, 20_000))


def test_arrays_made_by_empty_leave_nothing(pair):
    one, other = pair

    def repeat():
        array = strait.empty(100_000, "u1")
        array[:] = 1
        one.send(array)
        assert other.recv(timeout=LONG)[-1] == 1

    assert_flat(repeat, scaled(500, 20_000))


def test_connections_leave_nothing(tmp_path):
    with strait.Listener("leaks", directory=tmp_path) as listener:

        def repeat():
            near, far = strait.pair()
            near.send("hello")
            assert far.recv() == "hello"
            far.fileno()
            near.close()
            far.close()
            assert not listener.closed

        assert_flat(repeat, scaled(500, 10_000))


def test_21_ends_that_are_sent_away_leave_nothing(child):
    program = """
import gc
for end in up:
    if end is None:
        gc.collect()
        with open("/proc/self/status") as status:
            resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        up.send((len(os.listdir("/proc/self/fd")), resident))
    else:
        end.send("hello")
        end.close()
"""

    def exchange(connection):
        near, far = strait.pair()
        connection.send(far)
        assert near.recv(timeout=LONG) == "hello"
        near.close()

    def held_by_the_child():
        connection.send(None)
        return connection.recv(timeout=LONG)

    _process, connection = child(program)
    times = scaled(1_000, 100_000)
    for _ in range(times // 10):
        exchange(connection)
    before, (descriptors, resident) = held(), held_by_the_child()
    _process, second = child(program)
    exchange(second)
    assert held()[0] == before[0] + 1, "a peer takes one descriptor"
    assert_flat(lambda: exchange(connection), times, slack=1024)
    assert held()[0] == before[0] + 1
    after = held_by_the_child()
    assert after[0] == descriptors and after[1] <= resident + 1024, (descriptors, resident, after)


def test_killed_children_leave_nothing():
    def repeat():
        program = "import os, signal, strait\nstrait.parent().send('here')\nsignal.pause()"
        process, connection = strait.spawn([sys.executable, "-c", program])
        assert connection.recv(timeout=LONG) == "here"
        process.send_signal(signal.SIGKILL)
        try:
            connection.recv(timeout=LONG)
            raise AssertionError("a dead child has sent something")
        except strait.PeerClosed:
            pass
        connection.close()
        process.wait(LONG)

    times = scaled(10, 1_000)
    assert_flat(repeat, times)


def test_22_nothing_is_left_when_both_processes_are_killed():
    program = """
import os, signal, sys, strait
child = 'import strait, time\\nup = strait.parent()\\nup.send(1)\\nwhile True: up.recv()'
process, connection = strait.spawn([sys.executable, "-c", child])
connection.recv()
print(process.pid, flush=True)
array = strait.empty(64 << 20, "u1")
while True:
    connection.send(array)
"""

    def names():
        return {name for name in os.listdir("/dev/shm")} | {name for name in os.listdir("/tmp") if "strait" in name}

    before = names()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    with process.stdout:
        child = int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(LONG)
    # The end of the child is its parent's death at the latest.
    for _ in range(600):
        if not os.path.exists(f"/proc/{child}/exe") and not names() - before:
            break
        time.sleep(0.1)
    assert not names() - before and not os.path.exists(f"/proc/{child}/exe")
