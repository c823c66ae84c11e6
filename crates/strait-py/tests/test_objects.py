"""Data pipes, calls, invitations, and what connections tell about themselves."""

import asyncio
import contextlib
import gc
import os
import random
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

import strait
from conftest import LONG, is_open, scaled
from strait import aio


def thread(function, *arguments):
    started = threading.Thread(target=function, args=arguments, daemon=True)
    started.start()
    return started


# ---------------------------------------------------------------- data pipes


def test_a_data_pipe_carries_bytes_and_ends():
    producer, consumer = strait.DataPipe(4096)
    assert (producer.capacity, consumer.capacity, producer.element, producer.room) == (4096, 4096, 1, 4096)
    assert producer.write(b"hello ") == 6
    producer.write_whole(bytearray(b"world"))
    assert consumer.available == 11 and consumer.peek(5) == b"hello"
    assert consumer.read(3) == b"hel" and consumer.discard(3) == 3 and consumer.read_whole(2) == b"wo"
    buffer = bytearray(b"......")
    assert consumer.readinto(buffer) == 3 and buffer == b"rld..."
    with pytest.raises(strait.WouldBlock):
        consumer.read(timeout=0)
    with pytest.raises(strait.TimedOut):
        consumer.read(timeout=0.01)
    producer.finish()
    assert consumer.read() == b"" and consumer.available == 0
    with pytest.raises(strait.Finished):
        producer.write(b"x")
    with pytest.raises(strait.OutOfRange):
        consumer.read_whole(1)


def test_the_ends_of_a_data_pipe_are_closed_with_a_reason():
    producer, consumer = strait.DataPipe(4096)
    producer.write_whole(b"part")
    producer.abort(17)
    assert producer.closed and consumer.read() == b"part"
    for _ in range(2):
        with pytest.raises(strait.Aborted, match="incomplete") as raised:
            consumer.read()
        assert raised.value.reason == 17 and isinstance(raised.value, ConnectionAbortedError)
    producer.abort(18)  # The second time nothing happens.

    producer, consumer = strait.DataPipe(4)
    producer.write_whole(b"full")
    consumer.abort()
    with pytest.raises(strait.Aborted) as raised:
        producer.write(b"more")
    assert raised.value.reason == 0

    # A call of another thread that waits on the end is ended first.
    producer, consumer = strait.DataPipe(4)
    errors = []

    def read():
        try:
            consumer.read()
        except strait.StraitError as error:
            errors.append(type(error))

    reading = thread(read)
    consumer.abort(3)
    reading.join(LONG)
    assert errors == [strait.Closed]
    with pytest.raises(strait.Aborted):
        for _ in range(2):  # The first write finds room, and does not look at the other side.
            producer.write(b"full")


def test_more_than_the_buffer_goes_through_a_data_pipe():
    data = os.urandom(1 << 20)
    producer, consumer = strait.DataPipe(1 << 14)

    def write():
        with producer:
            rest = memoryview(data)
            while rest:
                rest = rest[producer.write(rest) :]

    writing = thread(write)
    assert b"".join(consumer) == data
    writing.join(LONG)


def test_whole_elements_and_what_does_not_fit():
    producer, consumer = strait.DataPipe(64, element=8)
    assert consumer.element == 8
    with pytest.raises(strait.NotElements):
        producer.write(b"1234567")
    with pytest.raises(strait.NotElements):
        consumer.read_whole(7)
    with pytest.raises(strait.OutOfRange):
        producer.write_whole(bytes(72))
    with pytest.raises(strait.OutOfRange):
        consumer.read_whole(1 << 40)
    producer.write_whole(bytes(64))
    with pytest.raises(strait.WouldBlock):
        producer.write(bytes(8), timeout=0)
    with pytest.raises(TypeError):
        producer.write("text")
    with pytest.raises(ValueError):
        strait.DataPipe(64, wait="never")


def test_ends_of_a_data_pipe_travel_with_what_is_unread(child):
    process, connection = child("producer = up.recv(); consumer = up.recv()\nproducer.write(consumer.read_whole(6).upper())\nup.recv()")
    out, theirs_in = strait.DataPipe(4096)
    theirs_out, back = strait.DataPipe(4096)
    out.write(b"before")
    connection.send(theirs_out)
    connection.send(theirs_in)
    assert theirs_in.closed and theirs_out.closed
    with pytest.raises(strait.Moved):
        theirs_in.read()
    assert back.read_whole(6, timeout=LONG) == b"BEFORE"
    threading.Timer(0.1, process.kill).start()
    with pytest.raises(strait.PeerClosed):
        back.read(timeout=LONG)
    with pytest.raises(BrokenPipeError):
        while True:
            out.write(bytes(4096), timeout=LONG)


def test_an_end_that_was_not_sent_stays():
    one, other = strait.pair(max_message=10)
    producer, consumer = strait.DataPipe(64)
    with pytest.raises(strait.MessageTooLarge):
        one.send_bytes(bytes(20), handles=[consumer])
    producer.write(b"x")
    assert consumer.read() == b"x"
    one.send_bytes(b"", handles=[producer])
    assert other.recv_message().handles[0].write(b"y") == 1 and consumer.read() == b"y"


ABORTED = """
import signal, sys, strait
producer, consumer = strait.DataPipe(4096)
if sys.argv[1] == "producer":
    producer.write_whole(bytes(4096))
    end, wait = producer, lambda: producer.write(b"x")
    def rest():
        assert consumer.read_whole(4096) == bytes(4096)
        consumer.read()
else:
    end, wait = consumer, consumer.read
    def rest():
        # The producer finds the other end closed once there is no room.
        for _ in range(2):
            producer.write(bytes(4096))
def handler(number, frame):
    end.abort(7)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    wait()
except strait.Closed:
    pass
else:
    raise SystemExit("not closed")
try:
    rest()
except strait.Aborted as error:
    assert error.reason == 7
else:
    raise SystemExit("not aborted")
"""


@pytest.mark.parametrize("end", ["producer", "consumer"])
def test_a_signal_handler_can_abort_the_end_that_it_interrupts(python, end):
    process = python(ABORTED, args=[end], stderr=subprocess.PIPE, text=True)
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == 0, errors


def test_wait_and_close_with_data_pipes():
    producer, consumer = strait.DataPipe(64)
    assert strait.wait([consumer], 0) == []
    producer.write(b"x")
    assert strait.wait([consumer], LONG) == [consumer]
    assert consumer.read() == b"x"
    ended = []

    def read():
        try:
            consumer.read()
        except strait.Closed as error:
            ended.append(error)

    reading = thread(read)
    time.sleep(0.05)
    consumer.close()
    reading.join(LONG)
    assert ended and consumer.closed
    with pytest.raises(strait.PeerClosed):
        while True:
            producer.write(b"x", timeout=LONG)


# ---------------------------------------------------------------- calls


@pytest.fixture
def callers():
    one, other = strait.pair()
    client, server = strait.Caller(one), strait.Caller(other)
    with client, server:
        yield client, server


def test_calls_are_answered(callers):
    client, server = callers
    serving = thread(server.serve, lambda number: number * 2)
    assert [client.call(number, timeout=LONG) for number in range(100)] == [number * 2 for number in range(100)]
    calling = [thread(lambda: [client.call(1, timeout=LONG) for _ in range(50)]) for _ in range(4)]
    for each in calling:
        each.join(LONG)
    assert client.counters[0] == 300 and server.counters[1] == 300 and client.under_way == 0
    client.close()
    serving.join(LONG)
    assert not serving.is_alive()
    with pytest.raises(strait.Closed):
        client.call(1)


def test_the_outcomes_of_calls(callers):
    client, server = callers
    with pytest.raises(strait.OutcomeUnknown) as unknown:
        client.call("nobody serves", timeout=0.01)
    assert isinstance(unknown.value.__cause__, strait.TimedOut) and isinstance(unknown.value, RuntimeError)
    with pytest.raises(strait.OutcomeUnknown):
        client.call(1, timeout=0)

    def drop():
        request = server.next_request(timeout=LONG)
        while request.cancelled:
            request = server.next_request(timeout=LONG)
        request.drop()
        with pytest.raises(strait.Closed):
            request.reply(1)

    dropping = thread(drop)
    with pytest.raises(strait.NotAnswered):
        client.call("dropped", timeout=LONG)
    dropping.join(LONG)
    with pytest.raises(strait.NotPlain):
        client.call(object())
    server.close()
    with pytest.raises(strait.CallError) as closed:
        client.call(1, timeout=LONG)
    assert isinstance(closed.value.__cause__, strait.PeerClosed)
    with pytest.raises(strait.PeerClosed):
        client.next_request(timeout=LONG)


def test_calls_carry_bytes_and_handles(callers):
    client, server = callers

    def serve():
        request = server.next_request()
        one, other = strait.pair()
        with pytest.raises(strait.NotPlain):
            request.reply(object())
        request.reply_bytes(request.bytes().upper(), handles=[other])
        with pytest.raises(strait.Closed):
            request.reply(None)
        one.send("over the new connection")

    serving = thread(serve)
    region = strait.Region.sealed(b"abc")
    reply = client.call_bytes(b"request", handles=[region], timeout=LONG)
    assert reply.bytes == b"REQUEST" and reply.handles[0].recv(timeout=LONG) == "over the new connection"
    serving.join(LONG)


def test_a_caller_whose_server_is_killed(child):
    process, connection = child(
        "server = strait.Caller(up)\nserver.next_request().reply('ready')\nrequest = server.next_request()\nos.kill(os.getpid(), 9)"
    )
    client = strait.Caller(connection)
    assert client.call(None, timeout=LONG) == "ready"
    with pytest.raises(strait.OutcomeUnknown):
        client.call("work", timeout=LONG)
    assert process.wait(LONG) == -signal.SIGKILL


# ---------------------------------------------------------------- processes


def work(connection, factor):
    for number in connection:
        connection.send(number * factor)


def test_a_function_runs_in_a_process_with_a_connection():
    process, connection = strait.process(work, 3)
    with connection:
        connection.send(14)
        assert connection.recv(timeout=LONG) == 42
    process.join(LONG)
    assert process.exitcode == 0


# ---------------------------------------------------------------- listeners


@pytest.fixture
def directory(tmp_path):
    os.chmod(tmp_path, 0o700)
    return tmp_path


def test_an_invited_process_connects(directory, python):
    listener = strait.Listener("editor", directory=directory, invited_only=True)
    assert listener.address == "editor" and listener.last_accepted is None
    invitation = listener.invite(60)
    # The invitation keeps its listener.
    del listener
    gc.collect()
    program = "import strait; c = strait.invited(timeout=60); c.send('in'); c.recv()"
    process = python(program, stdin=subprocess.PIPE)
    invitation.tell(process.stdin)
    connection = invitation.accept(LONG)
    assert connection.recv(timeout=LONG) == "in" and connection.peer.pid == process.pid
    process.stdin.close()
    del invitation
    listener = strait.Listener("editor", directory=directory, invited_only=True)
    accepting = thread(lambda: pytest.raises(strait.StraitError, listener.accept, 1))
    with pytest.raises(strait.Refused):
        strait.connect("editor", directory=directory, timeout=LONG)
    accepting.join(LONG)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError):
            listener.invite(wrong)


def test_what_is_no_invitation(python):
    program = (
        "import strait\n"
        "try: strait.invited(timeout=60)\n"
        "except strait.NoInvitation as error: print('none')\n"
    )
    process = python(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=LONG)[0] == "none\n"


def test_a_policy_decides(directory, monkeypatch):
    asked, raised = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: raised.append(str(args.exc_value)))

    def policy(peer):
        asked.append(peer.pid)
        if len(asked) == 2:
            raise RuntimeError("the policy is broken")
        return len(asked) == 3

    with strait.Listener("door", directory=directory, policy=policy) as listener:
        accepted = []
        accepting = thread(lambda: accepted.append(listener.accept(LONG)))
        for _ in range(2):
            with pytest.raises(strait.Refused, match="policy"):
                strait.connect("door", directory=directory, timeout=LONG)
        client = strait.connect("door", directory=directory, timeout=LONG)
        accepting.join(LONG)
        client.send(1)
        assert accepted[0].recv(timeout=LONG) == 1
        assert asked == [os.getpid()] * 3 and listener.last_accepted.pid == os.getpid()
    assert raised == ["the policy is broken"]


def test_a_listener_whose_policy_refers_to_the_listener_is_collected(directory):
    class Server:
        def __init__(self):
            self.listener = strait.Listener("collected", directory=directory, policy=self.allows)

        def allows(self, peer):
            return peer.uid == os.getuid()

    server = Server()
    path, reference = server.listener.path, weakref.ref(server)
    assert os.path.exists(path)
    gc.collect()
    accepting = thread(server.listener.accept)
    strait.connect("collected", directory=directory, timeout=LONG).close()
    accepting.join(LONG)
    del server, accepting
    gc.collect()
    assert reference() is None and not os.path.exists(path)


def test_a_signal_handler_ends_a_policy_and_the_accept(directory, python):
    interrupts = 2

    def policy(_peer):
        nonlocal interrupts
        interrupts -= 1
        if interrupts >= 0:
            signal.raise_signal(signal.SIGINT)
        return True

    listener = strait.Listener("interrupted", directory=directory, policy=policy)
    invitation = listener.invite(60)
    refused = thread(lambda: pytest.raises(strait.Refused, strait.connect, "interrupted", directory=directory))
    with pytest.raises(KeyboardInterrupt):
        listener.accept(LONG)
    refused.join(LONG)
    process = python("import strait; strait.invited(timeout=60)", stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    invitation.tell(process.stdin)
    with pytest.raises(KeyboardInterrupt):
        invitation.accept(LONG)
    process.stdin.close()
    connecting = thread(lambda: strait.connect("interrupted", directory=directory).recv())
    with listener.accept(LONG) as connection:
        connection.send(1)
    connecting.join(LONG)
    listener.close()


def test_a_signal_handler_ends_the_accept_of_the_thread_that_asked_the_policy(directory):
    def policy(_peer):
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
        return True

    def connects():
        for _ in range(200):
            with contextlib.suppress(strait.Refused, strait.PeerClosed):
                strait.connect("two", directory=directory, timeout=LONG).close()

    raised = []

    def accepts():
        try:
            while True:
                listener.accept().close()
        except strait.Closed:
            pass
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    listener = strait.Listener("two", directory=directory, policy=policy)
    accepting, connecting = thread(accepts), thread(connects)
    while connecting.is_alive():
        with contextlib.suppress(KeyboardInterrupt, strait.TimedOut):
            listener.accept(0.05).close()
    listener.close()
    accepting.join(LONG)
    assert not accepting.is_alive()
    assert raised == []


def test_connect_can_wait_for_the_listener(directory):
    connected = []
    connecting = thread(
        lambda: connected.append(strait.connect("late", directory=directory, wait_for_listener=True, timeout=LONG))
    )
    time.sleep(0.05)
    with strait.Listener("late", directory=directory) as listener:
        listener.accept(LONG).send("hello")
        connecting.join(LONG)
        assert connected[0].recv(timeout=LONG) == "hello"


# ---------------------------------------------------------------- connections


def test_parts_and_rows_of_messages(pair):
    one, other = pair
    one.sendv([b"abc", bytearray(b"def"), memoryview(b"ghi")[::2]], handles=[strait.Region.sealed(b"x")])
    message = other.recv_message()
    assert message.bytes == b"abcdefgi" and len(message.handles) == 1
    assert one.send_many([b"1", b"2", b"", bytearray(b"4")]) == 4
    assert other.recv_many(3) == [b"1", b"2", b""] and other.recv_many(100) == [b"4"]
    with pytest.raises(strait.TimedOut):
        other.recv_many(2, timeout=0.01)
    with pytest.raises(ValueError):
        other.recv_many(0)
    one.sendv([])
    assert other.recv_bytes() == b"" and one.send_many([]) == 0
    with pytest.raises(TypeError):
        one.send_many([1])


def test_a_row_that_does_not_fit_is_sent_in_part():
    one, other = strait.pair(queue_messages=3)
    assert one.send_many([b"x"] * 5, timeout=0) == 3
    with pytest.raises(strait.WouldBlock):
        one.send_many([b"x"], timeout=0)
    assert other.recv_many(10) == [b"x"] * 3
    one, other = strait.pair(max_message=4)
    assert one.send_many([b"1234", b"12345"]) == 1
    with pytest.raises(strait.MessageTooLarge):
        one.send_many([b"12345"])


class Stop(Exception):
    pass


def test_a_signal_handler_ends_a_row_of_messages():
    one, other = strait.pair(queue_messages=3)

    def handler(_number, _frame):
        # Messages are there: the row is being sent.
        if other.status.messages:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Stop

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(Stop) as stopped:
            one.send_many([b"x"] * 5, timeout=LONG)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stopped.value.sent == 3 == len(other.recv_many(9))


def test_status_and_counters(pair):
    one, other = pair
    one.send_bytes(b"abc")
    one.send_bytes(b"de")
    status = other.status
    assert (status.messages, status.bytes, status.peer_closed, status.has_room) == (2, 5, False, True)
    assert other.recv_bytes() == b"abc"
    assert (one.counters.messages_sent, one.counters.bytes_sent, other.counters.messages_received) == (2, 5, 1)
    assert one.counters.copied == 0 and "messages=1" in repr(other.status)
    one.close()
    assert other.status.peer_closed


def test_interrupt_ends_waits_until_resume(pair):
    one, other = pair
    ended = []

    def receive():
        try:
            other.recv()
        except strait.Interrupted as error:
            ended.append(error)

    receiving = thread(receive)
    other.interrupt()
    receiving.join(LONG)
    assert ended
    with pytest.raises(strait.Interrupted):
        other.recv()
    other.resume()
    with pytest.raises(strait.TimedOut):
        other.recv(timeout=0.01)
    one.send(1)
    assert other.recv(timeout=LONG) == 1


def test_rehome_and_reports(child):
    process, connection = child("up.recv()")
    connection.rehome(timeout=LONG)
    assert connection.report_bad("it sent nonsense") == "closed"
    with pytest.raises((strait.BadPeer, strait.PeerClosed)):
        connection.recv(timeout=LONG)
    one, _other = strait.pair()
    assert one.report_bad("it sent nonsense") in ("within", "gone")
    process.wait(LONG)


def test_a_message_closes_its_handles(pair):
    one, other = pair
    read, write = os.pipe()
    one.send_bytes(b"", handles=[strait.File(read), strait.File(write)])
    os.close(read)
    os.close(write)
    with other.recv_message() as message:
        numbers = [file.fileno() for file in message.handles]
        kept = message.handles[1].detach()
    assert [is_open(number) for number in numbers] == [False, True]
    os.close(kept)


def test_options_and_limits_are_types_and_keywords():
    one, other = strait.pair(**strait.Options(max_message=100, trust=True))
    with pytest.raises(strait.MessageTooLarge):
        one.send_bytes(bytes(101))
    assert one.trust and one.codec is None and not strait.pair()[0].trust
    with pytest.raises(TypeError):
        strait.pair(unknown=1)
    with pytest.raises(ValueError):
        strait.set_limits(peer={"unknown": 1})
    program = (
        "import strait\n"
        "strait.set_limits(peer=strait.Limits(descriptors=100), user={'regions': 50})\n"
        "print('set')\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"set\n"
    del other


def test_the_memory_for_large_messages_has_a_limit_and_is_given_back():
    program = (
        "import strait\n"
        "one, other = strait.pair()\n"
        "one.send_bytes(bytes(1 << 20))\n"
        "other.recv_bytes()\n"
        "held = strait.pool_held()\n"
        "assert held >= 1 << 20 and strait.pool_limit() == 256 << 20, held\n"
        "assert strait.trim() >= 1 << 20 and strait.pool_held() < held\n"
        "strait.set_pool_limit(1 << 10)\n"
        "one.send_bytes(bytes(1 << 20))\n"
        "other.recv_bytes()\n"
        "assert strait.pool_limit() == 1 << 10 and strait.pool_held() <= 1 << 10\n"
        "print('kept')\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"kept\n"


# ---------------------------------------------------------------- codecs


def test_codecs_are_of_a_connection(child):
    one, other = strait.pair(codec=strait.codec.json)
    one.send({"a": [1, None, "text"]})
    assert other.recv() == {"a": [1, None, "text"]} and one.codec is strait.codec.json
    with pytest.raises(strait.NotPlain):
        one.send(object())
    one.send_bytes(b"\xff")
    with pytest.raises(strait.Malformed):
        other.recv()
    one.send_bytes(b"[" * 100_000)
    with pytest.raises(strait.Malformed):
        other.recv()
    assert strait.pair(codec=strait.codec.plain)[0].codec is None
    with pytest.raises(TypeError):
        strait.pair(codec=object())
    process, connection = child("", codec=strait.codec.json)
    assert connection.codec is strait.codec.json
    process.wait(LONG)


def test_pickle_has_to_be_named_on_both_ends():
    one, other = strait.pair(codec=strait.codec.pickle)
    region = strait.Region.sealed(b"abc")
    one.send((1, {2, 3}, ValueError("x"), region))
    number, numbers, error, received = other.recv()
    assert (number, numbers, error.args) == (1, {2, 3}, ("x",)) and bytes(memoryview(received)) == b"abc"
    plain, pickling = strait.pair()
    plain.send_bytes(strait.codec.pickle.dumps(os.getpid)[0])
    with pytest.raises(strait.Malformed):
        pickling.recv()


def test_pickle_by_a_name_warns(tmp_path):
    os.chmod(tmp_path, 0o700)
    with strait.Listener("pickles", directory=tmp_path) as listener:
        accepting = thread(listener.accept, LONG)
        with pytest.warns(RuntimeWarning, match="run code in this process"):
            strait.connect("pickles", directory=tmp_path, codec=strait.codec.pickle, timeout=LONG)
        accepting.join(LONG)


def test_msgspec_checks_the_type():
    msgspec = pytest.importorskip("msgspec")

    class Point(msgspec.Struct):
        x: int
        y: int = 0

    one, other = strait.pair(codec=strait.codec.msgspec(Point))
    one.send(Point(1, 2))
    assert other.recv() == Point(1, 2)
    one.send_bytes(b"\x81\xa1x\xa1a")
    with pytest.raises(strait.Malformed):
        other.recv()
    with pytest.raises(strait.NotPlain):
        one.send(object())


# ---------------------------------------------------------------- Ctrl-C


# What comes before each wait, and the wait.
WAITS = {
    "recv": ("one, other = strait.pair()", "one.recv()"),
    "recv with a timeout": ("one, other = strait.pair()", "one.recv(timeout=600)"),
    "send": ("one, other = strait.pair(queue_messages=1); one.send(1)", "one.send(2)"),
    "poll": ("one, other = strait.pair()", "one.poll(None)"),
    "wait": ("one, other = strait.pair()", "strait.wait([one])"),
    "wait with a file": ("one, other = strait.pair()", "strait.wait([one, sys.stdin])"),
    "accept": ("server = strait.Listener('x', directory=sys.argv[1])", "server.accept()"),
    "connect": ("server = strait.Listener('x', directory=sys.argv[1])", "strait.connect('x', directory=sys.argv[1])"),
    "read": ("p = strait.DataPipe(64)", "p.consumer.read()"),
    "write": ("p = strait.DataPipe(64); p.producer.write(bytes(64))", "p.producer.write(b'x')"),
    "call": ("one, other = strait.pair(); caller = strait.Caller(one)", "caller.call(1)"),
    "request": ("one, other = strait.pair(); caller = strait.Caller(one)", "caller.next_request()"),
    "invitation": ("server = strait.Listener('x', directory=sys.argv[1])", "server.invite(60).accept()"),
    "invited": ("", "strait.invited()"),
    "mp.accept": ("listener = mp.Listener()", "listener.accept()"),
    "mp.recv": ("a, b = mp.Pipe()", "a.recv()"),
    # The calls end with the process of the executor.
    "executor": ("e = strait.Executor(1); a, b = mp.Pipe(); future = e.submit(b.recv)", "future.result()"),
    "executor.shutdown": ("e = strait.Executor(1); a, b = mp.Pipe(); e.submit(b.recv)", "e.shutdown()"),
    "aio": ("", "asyncio.run(receive())"),
}

LONGEST = 0.15
"""The seconds after which Ctrl-C has ended a wait."""


def after_ctrl_c(process, wait, delay):
    """Sends SIGINT to a process that begins to wait, and returns after how many seconds the wait has ended."""
    assert process.stdout.readline() == b"waiting\n"
    time.sleep(delay)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    if not select.select([process.stdout], [], [], LONG)[0]:
        # An executor waits for Python's locks. If a signal comes right before such a wait, only the next one ends it.
        assert wait.startswith("executor"), f"{wait} goes on after Ctrl-C"
        process.send_signal(signal.SIGINT)
    return float(process.stdout.readline()) - begun


def waiting(python, wait, directory):
    """Starts a program that waits again and again. A `KeyboardInterrupt` ends a wait."""
    before, call = WAITS[wait]
    program = f"""
import asyncio, strait, sys, time
from strait import aio, mp

async def receive():
    one, other = aio.pair()
    await one.recv()

def wait():
    {before or "pass"}
    try:
        print("waiting", flush=True)
        {call}
    except KeyboardInterrupt:
        print(time.monotonic(), flush=True)
    else:
        print("returned", flush=True)

if __name__ == "__main__":
    while True:
        wait()
"""
    return python(program, [str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


@pytest.mark.parametrize("wait", WAITS)
def test_4_ctrl_c_ends_each_wait_within_150_ms(wait, directory, python):
    """The signal comes at the begin of the wait, in its short first part, and in the part without wake-ups. A loaded
    machine delays single tries, so the least of ten counts."""
    process = waiting(python, wait, directory)
    with process.stdin:
        for delay in (0, 0.02, 0.2):
            assert any(after_ctrl_c(process, wait, delay) < LONGEST for _ in range(10)), f"{delay} s after the begin"


@pytest.mark.parametrize("wait", ["recv", "poll", "wait", "wait with a file"])
def test_4_ctrl_c_right_before_a_wait_is_not_lost(wait, directory, python):
    """Python's own functions that wait lose one signal of some thousands here."""
    process = waiting(python, wait, directory)
    with process.stdin:
        for _ in range(scaled(1_000, 20_000)):
            after_ctrl_c(process, wait, random.uniform(0, 0.0003))


def eventfds():
    """Returns the number of descriptors by which threads of this process can be woken."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            pass
    return sum("eventfd" in name for name in names)


def in_message(connection):
    one, other = strait.pair()
    with one, other:
        one.send(connection)


async def in_loop(connection):
    aio.Connection(connection)


async def in_loop_for_calls(connection):
    aio.Caller(connection)


TAKERS = {
    "message": in_message,
    "caller": strait.Caller,
    "aio": lambda connection: asyncio.run(in_loop(connection)),
    "aio.caller": lambda connection: asyncio.run(in_loop_for_calls(connection)),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_an_end_that_is_taken_ends_the_poll_of_another_thread(taker):
    gc.collect()
    _peer, connection = strait.pair()
    descriptor = connection.fileno()
    before, raised = eventfds(), []

    def poll():
        try:
            connection.poll(None)
        except strait.Moved as error:
            raised.append(error)

    polling = thread(poll)
    while eventfds() == before:
        # The waiting thread makes one, and waits for it.
        assert polling.is_alive()
    TAKERS[taker](connection)
    polling.join(LONG)
    assert len(raised) == 1
    gc.collect()
    assert not is_open(descriptor) or "eventpoll" not in os.readlink(f"/proc/self/fd/{descriptor}")


def test_an_end_of_a_data_pipe_in_a_loop_leaves_no_descriptor():
    gc.collect()
    producer, consumer = strait.DataPipe(4096)
    sets = [producer.fileno(), consumer.fileno()]

    async def main():
        aio.Producer(producer)
        aio.Consumer(consumer)

    asyncio.run(main())
    gc.collect()
    for descriptor in sets:
        assert not is_open(descriptor) or "eventpoll" not in os.readlink(f"/proc/self/fd/{descriptor}")


def test_a_failed_send_leaves_the_descriptors_of_its_ends(pair):
    one, _other = strait.pair(queue_messages=1)
    one.send("full")
    peer, carried = strait.pair()
    producer, consumer = strait.DataPipe(1 << 14)
    descriptors = [carried.fileno(), consumer.fileno(), producer.fileno()]
    with selectors.DefaultSelector() as selector:
        for end in carried, consumer:
            # The first look finds out that there is nothing.
            assert not end.poll()
            selector.register(end, selectors.EVENT_READ)
        assert not selector.select(0)
        for _ in range(3):
            with pytest.raises(strait.WouldBlock):
                one.send([carried, consumer, producer], timeout=0)
            # This message cannot be sent to anyone: a handle is there twice.
            with pytest.raises((ValueError, strait.StraitError)):
                pair[0].send_bytes(b"", handles=[carried, consumer, carried])
        assert [carried.fileno(), consumer.fileno(), producer.fileno()] == descriptors
        assert not carried.poll() and not consumer.poll() and not selector.select(0)
        peer.send(1)
        assert [key.fileobj for key, _ in selector.select(LONG)] == [carried]
        assert carried.recv(timeout=LONG) == 1
        producer.write(b"2")
        assert [key.fileobj for key, _ in selector.select(LONG)] == [consumer]
        selector.unregister(carried)
        selector.unregister(consumer)
    pair[0].send([carried, consumer, producer])
    assert not any(is_open(descriptor) for descriptor in descriptors)


def test_a_vain_attempt_in_a_loop_leaves_the_descriptor_of_an_end():
    async def main():
        one, other = aio.pair(queue_messages=1)
        await one.send("full")
        peer, carried = strait.pair()
        before = carried.fileno()
        assert not carried.poll()
        with selectors.DefaultSelector() as selector:
            selector.register(before, selectors.EVENT_READ)
            with pytest.raises(strait.TimedOut):
                await one.send(carried, timeout=0.01)
            assert carried.fileno() == before
            peer.send(1)
            assert selector.select(LONG) and carried.recv() == 1
        assert await other.recv() == "full"
        await one.send(carried)
        assert not is_open(before)

    asyncio.run(main())
