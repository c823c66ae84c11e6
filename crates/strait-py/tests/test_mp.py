"""`strait.mp`, which stands in for `multiprocessing.connection`."""

import gc
import multiprocessing
import os
import pickle
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing import AuthenticationError, BufferTooShort

import pytest

import strait
from conftest import LONG, is_open
from strait import mp

METHODS = ["fork", "spawn", "forkserver"]
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture(params=METHODS)
def start(request):
    """Starts a function in a new process, which is killed at the end of the test."""
    context = multiprocessing.get_context(request.param)
    started = []

    def run(function, *arguments):
        process = context.Process(target=function, args=arguments, daemon=True)
        process.start()
        started.append(process)
        return process

    run.method = request.param
    yield run
    for process in started:
        process.kill()
        process.join()
        process.close()


@pytest.mark.parametrize("method", METHODS)
def test_18_the_tests_of_cpython_pass(method):
    pytest.importorskip("test._test_multiprocessing", reason="this Python has no tests of its own installed")
    suite = os.path.join(os.path.dirname(__file__), "cpython_suite.py")
    done = subprocess.run([sys.executable, suite, method], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def double(connection):
    for number in iter(connection.recv, None):
        connection.send(number * 2)


def test_an_end_that_was_not_used_is_an_argument(start):
    here, there = mp.Pipe()
    start(double, there)
    here.send(21)
    assert here.poll(LONG) and here.recv() == 42


def write_to_files(connection):
    """What CPython's tests of `send_handle` do, by `send`."""
    for _ in range(2):
        file, data = connection.recv()
        os.write(file.fileno(), data)
        file.close()
    connection.send("written")
    with pytest.raises(EOFError):
        connection.recv()


def test_open_files_travel(start, tmp_path):
    here, there = mp.Pipe()
    process = start(write_to_files, there)
    there.close()
    path = tmp_path / "file"
    with open(path, "wb") as file:
        here.send((strait.File(file), b"foo"))
        high = os.dup2(file.fileno(), 300)
        here.send((strait.File(high), b"bar"))
        os.close(high)
    assert here.recv() == "written"
    assert path.read_bytes() == b"foobar"
    here.close()
    process.join(LONG)
    assert process.exitcode == 0


def test_an_end_that_was_used_moves_to_a_new_process(start):
    if start.method == "fork":
        pytest.skip("does not apply: fork pickles no arguments")
    here, there = mp.Pipe()
    here.send(1)
    assert there.recv() == 1
    here.send(2)
    one, other = strait.pair()
    start(double_both, there, other)
    assert there.closed and other.closed
    there.close()
    with pytest.raises(strait.Moved):
        there.recv()
    assert here.recv() == 4
    one.send(5)
    assert one.recv(timeout=LONG) == 10


@pytest.mark.parametrize("close", ["close", "__exit__", "exit"])
def test_the_child_of_a_fork_does_not_end_the_listener_of_its_parent(tmp_path, close):
    program = f"""
import os, sys
from strait import mp
with mp.Listener({str(tmp_path / "listener")!r}) as listener:
    child = os.fork()
    if child == 0:
        if {close!r} == "close": listener.close()
        if {close!r} == "__exit__": listener.__exit__(None, None, None)
        sys.exit(0) if {close!r} == "exit" else os._exit(0)
    os.waitpid(child, 0)
    client = mp.Client(listener.address)
    accepted = listener.accept()
    client.send(1)
    assert accepted.recv() == 1
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "listener").exists()


class Exits:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (3,)


def test_the_death_of_a_new_process_is_seen_before_it_takes_its_ends(start):
    if start.method == "fork":
        pytest.skip("does not apply: fork pickles no arguments")
    one, other = strait.pair()
    two, another = mp.Pipe()
    two.send("unread")
    assert another.poll(LONG)
    process = start(print, Exits(), other, another)
    assert other.closed and another.closed
    with pytest.raises(strait.PeerClosed):
        one.recv(timeout=LONG)
    with pytest.raises(EOFError):
        two.recv()
    process.join(LONG)
    assert process.exitcode == 3


def test_ends_stay_if_a_process_cannot_be_started(start):
    if start.method == "fork":
        pytest.skip("does not apply: fork pickles no arguments")
    one, other = strait.pair()
    two, another = mp.Pipe()
    one.send(1)
    two.send(2)
    assert another.poll(LONG)
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        start(print, other, another, lambda: 0)
    other.send(3)
    assert (other.recv(timeout=LONG), another.recv(), one.recv(timeout=LONG)) == (1, 2, 3)
    start(double_both, another, other)
    one.send(4)
    two.send(5)
    assert one.recv(timeout=LONG) == 8 and two.recv() == 10


def test_a_closed_end_is_no_argument_of_a_process(start):
    if start.method == "fork":
        pytest.skip("does not apply: fork pickles no arguments")
    _one, other = strait.pair()
    other.close()
    with pytest.raises(strait.Closed):
        start(print, other)


def double_both(connection, other):
    connection.send(connection.recv() * 2)
    other.send(other.recv() * 2)


def report(connection, out):
    try:
        connection.send("from the child")
    except strait.Forked as error:
        out.send(str(error))
    with pytest.raises(EOFError):
        out.recv()


def test_17_the_child_of_a_fork_cannot_use_an_end_that_was_used():
    here, there = mp.Pipe()
    here.send("before")
    out, child_out = mp.Pipe()
    process = multiprocessing.get_context("fork").Process(target=report, args=(here, child_out))
    process.start()
    assert "fork" in out.recv()
    assert there.recv() == "before"
    here.send("after")
    assert there.recv() == "after" and not there.poll(0)
    out.close()
    process.join(LONG)
    assert process.exitcode == 0


def hold(connection):
    connection.send(os.getpid())
    signal.pause()


def test_2_a_killed_child_is_noticed_although_its_end_is_open_elsewhere(start):
    here, there = mp.Pipe()
    process = start(hold, there)
    assert here.recv() == process.pid
    bystander = start(signal_pause)
    threading.Timer(0.2, process.kill).start()
    with pytest.raises(EOFError):
        here.recv()
    with pytest.raises(BrokenPipeError):
        here.send(1)
    assert bystander.is_alive() and not there.closed


def signal_pause():
    signal.pause()


def test_one_process_alone_can_use_an_end(start):
    here, there = mp.Pipe()
    process = start(hold, there)
    assert here.recv() == process.pid
    with pytest.raises(OSError, match="another process"):
        there.send(1)
    with pytest.raises(OSError, match="another process"):
        there.fileno()


def test_ends_of_pipes_and_sockets_travel_over_connections():
    here, there = mp.Pipe()
    reader, writer = mp.Pipe(duplex=False)
    one, other = strait.pair()
    left, right = socket.socketpair()
    here.send({"writer": writer, "other": other, "right": right, "region": strait.Region.sealed(b"abc")})
    writer.close()
    right.close()
    received = there.recv()
    assert other.closed and bytes(memoryview(received["region"])) == b"abc"
    received["writer"].send("through the pipe")
    assert reader.recv() == "through the pipe"
    with pytest.raises(OSError, match="only sends"):
        received["writer"].recv()
    received["other"].send("by the pair")
    assert one.recv() == "by the pair"
    received["right"].sendall(b"socket")
    assert left.recv(10) == b"socket"
    left.close()
    received["right"].close()


def test_a_pipe_that_is_not_duplex_has_two_directions():
    for reader, writer in (mp.Pipe(duplex=False), strait.pipe(duplex=False)):
        assert (reader.readable, reader.writable, writer.readable, writer.writable) == (True, False, False, True)
        writer.send(1)
        assert reader.poll(LONG) and reader.recv() == 1
        for call in (lambda: reader.send(1), lambda: reader.send_bytes(b""), writer.recv, writer.recv_bytes, writer.poll):
            with pytest.raises(OSError, match="only"):
                call()


def test_an_end_that_was_closed_before_the_other_was_used():
    here, there = mp.Pipe()
    here.close()
    assert mp.wait([there], LONG) == [there] and there.poll()
    with pytest.raises(EOFError):
        there.recv()
    here, there = mp.Pipe()
    here.send("last")
    here.close()
    assert there.recv() == "last"
    with pytest.raises(EOFError):
        there.recv()


def test_messages_that_are_too_long_are_kept():
    here, there = mp.Pipe()
    here.send_bytes(b"12345")
    with pytest.raises(OSError, match="5 bytes"):
        there.recv_bytes(4)
    with pytest.raises(BufferTooShort) as short:
        there.recv_bytes_into(bytearray(4))
    assert short.value.args == (b"12345",)
    for call in (lambda: there.recv_bytes(-1), lambda: there.recv_bytes_into(bytearray(4), -1)):
        with pytest.raises(ValueError, match="negative"):
            call()
    here.send([1])
    assert pickle.loads(there.recv_bytes()) == [1]
    here.send_bytes(pickle.dumps((2,)))
    assert there.recv() == (2,)


def test_a_message_that_is_too_long_for_one_thread_is_not_lost():
    here, there = mp.Pipe()
    received = []

    def take(receive):
        try:
            while True:
                received.append(receive())
        except EOFError:
            pass

    def into():
        try:
            there.recv_bytes_into(bytearray(4))
        except BufferTooShort as error:
            return error.args[0]

    threads = [threading.Thread(target=take, args=(receive,)) for receive in (there.recv_bytes, into)]
    for thread in threads:
        thread.start()
    for number in range(300):
        here.send_bytes(b"number %d" % number)
        # Both threads wait for the next message.
        while len(received) <= number and all(thread.is_alive() for thread in threads):
            pass
    here.close()
    for thread in threads:
        thread.join(LONG)
    assert sorted(received) == sorted(b"number %d" % number for number in range(300))


def test_a_pickle_outside_of_a_message_says_what_to_do():
    one, other = mp.Pipe()
    one.send(1)
    with pytest.raises(TypeError, match="Connection.send"):
        pickle.dumps(one)


def test_large_arrays_travel_in_shared_memory():
    np = pytest.importorskip("numpy")
    here, there = mp.Pipe()
    own, shared = np.arange(1 << 16, dtype="i4"), strait.empty((1 << 16,), "f8")
    shared[:] = 7
    frozen = np.ones(1 << 16)
    frozen.flags.writeable = False
    many = [np.full(1 << 14, number) for number in range(70)]
    here.send({"own": own, "shared": shared, "small": np.ones(3), "frozen": frozen, "f": np.asfortranarray(own.reshape(256, 256))})
    received = there.recv()
    assert np.array_equal(received["own"], own) and np.array_equal(received["small"], [1, 1, 1])
    assert received["f"].flags.f_contiguous and np.array_equal(received["f"].ravel("A"), own.reshape(256, 256).ravel("F"))
    assert received["own"].flags.writeable and not received["frozen"].flags.writeable
    shared[0] = 9
    received["shared"][1] = 5
    assert (shared[0], shared[1], received["shared"][0], received["shared"][1]) == (9, 7, 7, 5)
    here.send(many)
    assert all((a == b).all() for a, b in zip(there.recv(), many, strict=True))
    del received
    gc.collect()


def test_a_listener_and_a_client(start):
    with mp.Listener() as listener:
        assert os.path.exists(listener.address) and listener.last_accepted is None
        start(answer, listener.address)
        with listener.accept() as connection:
            assert connection.recv() == "hello"
            connection.send("bye")
            with pytest.raises(EOFError):
                connection.recv()
    assert not os.path.exists(listener.address)
    with pytest.raises(OSError, match="closed"):
        listener.accept()
    with pytest.raises(FileNotFoundError):
        mp.Client(listener.address)


def answer(address):
    with mp.Client(address) as connection:
        connection.send("hello")
        assert connection.recv() == "bye"


def test_an_accepted_connection_is_an_argument(start):
    with mp.Listener() as listener:
        client = mp.Client(listener.address)
        accepted = listener.accept()
        start(double, accepted)
        accepted.close()
    client.send(4)
    assert client.recv() == 8


def test_a_wrong_key_is_refused():
    with mp.Listener(authkey=b"right") as listener:
        errors = []

        def connect(key):
            try:
                mp.Client(listener.address, authkey=key).send("in")
            except (AuthenticationError, EOFError) as error:
                errors.append(error)

        for key in (b"wrong", b"right"):
            client = threading.Thread(target=connect, args=(key,))
            client.start()
            if key == b"wrong":
                with pytest.raises(AuthenticationError):
                    listener.accept()
            else:
                assert listener.accept().recv() == "in"
            client.join(LONG)
        assert len(errors) == 1
        with pytest.raises(TypeError):
            mp.Client(listener.address, authkey="text")


@pytest.mark.parametrize("address", [("localhost", 1), "\0name", 7])
def test_other_addresses_are_refused(address):
    with pytest.raises(ValueError, match="give the path"):
        mp.Listener(address)
    with pytest.raises(ValueError, match="give the path"):
        mp.Client(address)
    with pytest.raises(ValueError, match="AF_UNIX alone"):
        mp.Listener(family="AF_INET")


def test_a_name_in_use_and_a_path_that_something_else_has(tmp_path):
    path = str(tmp_path / "socket")
    listener = mp.Listener(path)
    with pytest.raises(OSError):
        mp.Listener(path)
    os.unlink(path)
    with open(path, "w"):
        pass
    listener.close()
    assert os.path.exists(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_process_of_another_user_is_sent_away():
    directory = tempfile.TemporaryDirectory()
    os.chmod(directory.name, 0o755)
    listener = mp.Listener(os.path.join(directory.name, "socket"))
    os.chmod(listener.address, 0o666)
    program = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.connect(sys.argv[1])\n"
        "print(s.recv(100))\n"
    )
    other = subprocess.Popen(
        ["/usr/bin/python3", "-c", program, listener.address], user=pwd.getpwnam("nobody").pw_uid,
        stdout=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"},
    )
    accepted = []
    accepting = threading.Thread(target=lambda: accepted.append(listener.accept()))
    accepting.start()
    assert other.communicate(timeout=LONG)[0] == b"b''\n"
    client = mp.Client(listener.address)
    accepting.join(LONG)
    accepted[0].send("own user")
    assert client.recv() == "own user"
    listener.close()
    directory.cleanup()


def test_closing_a_listener_ends_the_wait_of_another_thread():
    listener = mp.Listener()
    ended = []

    def accept():
        with pytest.raises(strait.Closed):
            listener.accept()
        ended.append(True)

    thread = threading.Thread(target=accept)
    thread.start()
    listener.close()
    thread.join(LONG)
    assert ended


def test_the_descriptor_of_an_end_belongs_to_the_end():
    here, _there = mp.Pipe()
    descriptor = here._end.unopened_parts()[0]
    assert is_open(descriptor)
    here.close()
    assert not is_open(descriptor)
    with pytest.raises(ValueError):
        strait._native.unopened(-1)
    with pytest.raises(OSError):
        strait._native.unopened(9999)
    with open(os.devnull) as file, pytest.raises(strait.NotASocket):
        strait._native.unopened(os.dup(file.fileno())).send(1)
