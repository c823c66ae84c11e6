"""Messages of bytes, timeouts, and the ends of a connection."""

import array
import contextlib
import math
import os
import select
import threading
import time

import pytest

import strait
from conftest import LONG, is_open


def test_bytes_arrive_whole_and_in_order(pair):
    one, other = pair
    messages = [b"", b"a", b"b" * 100_000, bytes(range(256)) * 10_000]
    sender = threading.Thread(target=lambda: [one.send_bytes(message) for message in messages])
    sender.start()
    assert [other.recv_bytes(timeout=LONG) for _ in messages] == messages
    sender.join()


@pytest.mark.parametrize(
    "data, expected",
    [
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (array.array("H", [1, 2]), array.array("H", [1, 2]).tobytes()),
    ],
)
def test_every_buffer_can_be_sent(pair, data, expected):
    one, other = pair
    one.send_bytes(data)
    assert other.recv_bytes(timeout=LONG) == expected


def test_an_offset_and_a_size_select_a_part(pair):
    one, other = pair
    one.send_bytes(b"abcdef", 2, 3)
    one.send_bytes(b"abcdef", 2)
    one.send_bytes(b"abcdef", 6)
    assert [other.recv_bytes(timeout=LONG) for _ in range(3)] == [b"cde", b"cdef", b""]
    for offset, size in [(7, None), (0, 7), (3, 4), (1, 2**64 - 1)]:
        with pytest.raises(ValueError):
            one.send_bytes(b"abcdef", offset, size)


@pytest.mark.parametrize("wrong", ["text", 5, None, [1, 2]])
def test_what_has_no_bytes_is_refused(pair, wrong):
    with pytest.raises(TypeError):
        pair[0].send_bytes(wrong)


def test_timeouts_end_waits(pair):
    one, _other = pair
    with pytest.raises(BlockingIOError) as blocked:
        one.recv_bytes(timeout=0)
    assert isinstance(blocked.value, strait.WouldBlock) and blocked.value.passes
    for timeout in [0.001, 0.12, -1, -math.inf]:
        with pytest.raises(TimeoutError) as timed_out:
            one.recv_bytes(timeout=timeout)
        assert isinstance(timed_out.value, strait.TimedOut) and "timed out" in str(timed_out.value)
    with pytest.raises(ValueError):
        one.recv_bytes(timeout=math.nan)


@pytest.mark.parametrize("timeout", [None, 1e18, 1e300, math.inf, 0])
def test_timeouts_of_any_length_are_valid(pair, timeout):
    one, other = pair
    one.send_bytes(b"x", timeout=timeout)
    assert other.recv_bytes(timeout=timeout) == b"x"


def test_a_message_that_is_too_long_is_kept(pair):
    one, other = pair
    one.send_bytes(b"first")
    one.send_bytes(b"second")
    with pytest.raises(ValueError) as small:
        other.recv_bytes(4)
    assert isinstance(small.value, strait.BufferTooSmall) and small.value.needed == 5
    with pytest.raises(strait.BufferTooSmall):
        other.recv_bytes_into(bytearray(4))
    buffer = bytearray(8)
    assert other.recv_bytes_into(buffer, 3) == 5
    assert buffer == b"\0\0\0first"
    assert other.recv_bytes(6) == b"second"
    with pytest.raises(ValueError):
        other.recv_bytes_into(b"constant")


def test_a_message_that_is_too_long_goes_to_another_thread(pair):
    one, other = pair
    buffer = bytearray(4)
    stop, errors = threading.Event(), []

    def refuse(receive):
        while not stop.is_set():
            try:
                receive()
            except (strait.BufferTooSmall, strait.TimedOut):
                pass
            except strait.StraitError as error:
                errors.append(error)

    refusing = [
        threading.Thread(target=refuse, args=(receive,))
        for receive in (lambda: other.recv_bytes(4, timeout=0.01), lambda: other.recv_bytes_into(buffer, timeout=0.01))
    ]
    received = []

    def take():
        while len(received) < 100:
            received.append(other.recv_bytes(timeout=LONG))

    taking = threading.Thread(target=take)
    for thread in [*refusing, taking]:
        thread.start()
    for number in range(100):
        one.send_bytes(b"number %d" % number)
        while len(received) <= number and taking.is_alive() and not errors:
            pass
    stop.set()
    if errors:
        one.close()
    for thread in [*refusing, taking]:
        thread.join()
    assert not errors and received == [b"number %d" % number for number in range(100)]


@pytest.mark.parametrize("size", [0, 1024, 1025, 100_000, 5 << 20])
@pytest.mark.parametrize("limit", [5 << 20, 2**40, 2**63])
def test_a_limit_takes_no_memory(pair, size, limit):
    one, other = pair
    with strait.File(0) as file:
        one.send_bytes(bytes(size), handles=[file])
    assert other.recv_bytes(limit) == bytes(size)
    one.send_bytes(bytes(size))
    if size:
        with pytest.raises(strait.BufferTooSmall) as small:
            other.recv_bytes(size - 1)
        assert small.value.needed == size
    assert other.recv_bytes_into(bytearray(5 << 20)) == size


def test_a_message_over_the_limit_is_refused():
    one, other = strait.pair(max_message=1000)
    with one, other:
        with pytest.raises(strait.MessageTooLarge):
            one.send_bytes(bytes(1001))
        one.send_bytes(bytes(1000))
        assert len(other.recv_bytes()) == 1000


def test_options_are_checked():
    with pytest.raises(TypeError):
        strait.pair(no_such_option=1)
    with pytest.raises(ValueError):
        strait.pair(wait="never")
    with pytest.raises(TypeError):
        strait.pair(max_message="much")
    for connection in strait.pair(wait="block", spin=0, queue_messages=10, accept_descriptors=False):
        connection.close()


def test_a_full_queue_ends_with_the_timeout():
    one, other = strait.pair(queue_messages=3)
    with one, other:
        with pytest.raises(strait.WouldBlock):
            for _ in range(1000):
                one.send_bytes(bytes(10_000), timeout=0)
        with pytest.raises(strait.TimedOut):
            one.send_bytes(bytes(10_000), timeout=0.01)
        other.recv_bytes()
        one.send_bytes(b"there is room", timeout=LONG)


def test_a_closed_peer_is_an_end_of_file_and_a_broken_pipe(pair):
    one, other = pair
    one.send_bytes(b"last")
    one.close(7)
    assert other.recv_bytes(timeout=LONG) == b"last"
    for expected in (strait.PeerClosed, EOFError, BrokenPipeError, strait.StraitError):
        with pytest.raises(expected) as closed:
            other.recv_bytes(timeout=LONG)
    assert closed.value.reason == 7 and other.close_reason == 7
    with pytest.raises(BrokenPipeError):
        other.send_bytes(b"x")


def test_a_closed_connection_says_so(pair):
    one, _other = pair
    assert not one.closed
    one.close()
    one.close()
    assert one.closed and "closed" in repr(one)
    for call in (one.recv_bytes, one.recv, one.poll, one.fileno, lambda: one.send_bytes(b"x"), lambda: one.send(1)):
        for expected in (strait.Closed, OSError, ValueError):
            with pytest.raises(expected):
                call()


WAITS = {
    "recv": lambda connection: connection.recv_bytes(),
    "poll": lambda connection: connection.poll(None),
    "send": lambda connection: [connection.send_bytes(bytes(10_000)) for _ in range(100_000)],
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_close_ends_the_wait_of_another_thread(wait):
    one, other = strait.pair(queue_messages=5)
    entered, raised = threading.Event(), []

    def run():
        entered.set()
        try:
            wait(one)
        except strait.Closed as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait()
    one.close()
    thread.join(LONG)
    assert len(raised) == 1
    other.close()


def test_poll_waits_for_a_message_or_the_end(pair):
    one, other = pair
    assert not other.poll() and not other.poll(0.01)
    one.send_bytes(b"x")
    assert other.poll() and other.poll(LONG) and other.poll(None)
    other.recv_bytes()
    assert not other.poll()
    one.close()
    assert other.poll(LONG)


@pytest.mark.parametrize("has_descriptor", [False, True])
def test_the_descriptor_is_readable_as_long_as_there_is_something(pair, has_descriptor):
    one, other = pair
    if has_descriptor:
        assert other.fileno() >= 0
    for _ in range(3):
        assert strait.wait([other], 0) == []
        one.send_bytes(b"x")
        one.send_bytes(b"y")
        assert strait.wait([other], LONG) == [other]
        assert other.recv_bytes() == b"x"
        assert strait.wait([other], LONG) == [other]
        assert other.recv_bytes() == b"y"


def test_wait_takes_connections_listeners_and_files(pair, tmp_path):
    one, other = pair
    reading, writing = os.pipe()
    with strait.Listener("waited-for", directory=tmp_path) as listener:
        objects = [other, listener, reading]
        assert strait.wait(objects, 0.01) == []
        os.write(writing, b"x")
        assert strait.wait(objects, LONG) == [reading]
        one.send_bytes(b"x")
        assert strait.wait(objects, LONG) == [other, reading]
        one.close()
        other.recv_bytes()
        assert other in strait.wait(objects, LONG)
    os.close(reading)
    os.close(writing)


def test_wait_takes_epolls_of_many_levels(pair):
    reading, writing = os.pipe()
    with contextlib.ExitStack() as stack:
        chain = [reading]
        with contextlib.suppress(OSError):
            # The kernel refuses a chain that is too long.
            while len(chain) < 10:
                chain.append(stack.enter_context(select.epoll()))
                chain[-1].register(chain[-2], select.EPOLLIN)
        for item in chain[1:-1]:
            writer = threading.Timer(0.05, os.write, (writing, b"x"))
            writer.start()
            assert strait.wait([pair[0], item], LONG) == [item]
            writer.join()
            assert os.read(reading, 10) == b"x" and strait.wait([pair[0], item], 0.001) == []
    os.close(reading)
    os.close(writing)


FEW_DESCRIPTORS = """
import os, resource, strait
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
pairs = [strait.pair() for _ in range(2000)]
pipes = [strait.DataPipe(64) for _ in range(100)]
ends = [other for _, other in pairs] + [pipe.consumer for pipe in pipes]
before = len(os.listdir("/proc/self/fd"))
assert strait.wait(ends, 0) == []
pairs[1999][0].send("last")
pairs[3][0].close()
pipes[7].producer.write(b"x")
ready = strait.wait(ends, 60)
while len(ready) < 3:
    ready = strait.wait(ends, 60)
assert ready == [ends[3], ends[1999], ends[2007]], [ends.index(item) for item in ready]
assert all(not end.poll() for end in ends[10:1000])
assert ends[1999].recv() == "last" and ends[2007].read() == b"x"
assert strait.wait(ends, 60) == [ends[3]]
# Each connection can get a descriptor of its own later.
assert strait.wait([ends[5], ends[5].fileno()], 0) == []
pairs[5][0].send("later")
assert strait.wait([ends[5], ends[5].fileno(), ends[6]], 60) == [ends[5], ends[5].fileno()]
assert len(os.listdir("/proc/self/fd")) <= before + 8
"""


def test_wait_needs_few_descriptors_for_thousands_of_connections(python):
    assert python(FEW_DESCRIPTORS).wait(LONG) == 0


@pytest.mark.parametrize("kind", ["connection", "consumer"])
@pytest.mark.parametrize("change", ["fileno", "close", "send", "second wait"])
def test_an_object_may_change_while_a_thread_waits_for_it(pair, change, kind):
    if kind == "connection":
        theirs, ours = strait.pair()
    else:
        theirs, ours = strait.DataPipe(64)
    _, beside = pair
    outcome = []

    def wait():
        try:
            outcome.append(strait.wait([ours, beside], LONG))
        except strait.StraitError as error:
            outcome.append(type(error))

    waiting = [threading.Thread(target=wait)]
    waiting[0].start()
    time.sleep(0.1)  # Any moment will do: the thread waits, or is about to.
    if change == "second wait":
        waiting.append(threading.Thread(target=wait))
        waiting[1].start()
        time.sleep(0.1)
    elif change == "send":
        way, _far = strait.pair()
        way.send(ours)
        # A later message makes the thread look again, wherever the end is.
        pair[0].send_bytes(b"x")
    else:
        getattr(ours, change)()
    if change in ("fileno", "second wait"):
        theirs.send_bytes(b"x") if kind == "connection" else theirs.write(b"x")
    for thread in waiting:
        thread.join(LONG)
    if change == "send":
        assert outcome in ([strait.Moved], [[beside]])
    else:
        assert outcome == ([strait.Closed] if change == "close" else [[ours]] * len(waiting))


def test_threads_share_a_connection(pair):
    one, other = pair
    count, threads = 200, 4
    received = []

    def receive():
        for _ in range(count):
            received.append(other.recv_bytes(timeout=LONG))

    def send(number):
        for index in range(count):
            one.send_bytes(b"%d %d" % (number, index))

    running = [threading.Thread(target=receive) for _ in range(threads)]
    running += [threading.Thread(target=send, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert sorted(received) == sorted(b"%d %d" % (n, i) for n in range(threads) for i in range(count))


def test_the_other_threads_run_while_one_waits(pair):
    one, other = pair
    echo = threading.Thread(target=lambda: other.send_bytes(other.recv_bytes(timeout=LONG)))
    echo.start()
    one.send_bytes(b"x")
    assert one.recv_bytes(timeout=LONG) == b"x"
    echo.join()


def test_handles_travel_with_bytes(pair):
    one, other = pair
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file, strait.File(writing) as duplicate:
        os.close(writing)
        one.send_bytes(b"two", handles=[file, duplicate])
        assert is_open(reading) and duplicate.closed
        with pytest.raises(strait.Closed):
            one.send_bytes(b"again", handles=[duplicate])
        message = other.recv_message(timeout=LONG)
        assert message.bytes == b"two"
        theirs_reading, theirs_writing = message.handles
        assert message.handles is message.handles
        os.write(theirs_writing.fileno(), b"through")
        theirs_writing.close()
        assert file.read() == b"through"
        number = theirs_reading.detach()
        assert theirs_reading.closed and is_open(number)
        os.close(number)


def test_a_handle_that_is_none_is_refused(pair):
    one, other = pair
    for wrong in (5, "file", object()):
        with pytest.raises(TypeError):
            one.send_bytes(b"x", handles=[wrong])
    with pytest.raises(OSError):
        strait.File(-1)
    with pytest.raises(OSError):
        strait.File(1_000_000)
    assert not other.poll()
