"""Other processes: listeners, children, their deaths, signals, forks, and the exit of the interpreter."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import strait
from conftest import LONG


def test_a_listener_accepts_a_process(tmp_path, python):
    with strait.Listener("echo", directory=tmp_path) as listener:
        client = python(
            "import strait, sys\n"
            "with strait.connect('echo', directory=sys.argv[1], timeout=60) as c:\n"
            "    c.send(['hello', c.recv()])\n".replace("sys.argv[1]", repr(str(tmp_path)))
        )
        with listener.accept(LONG) as connection:
            connection.send("you")
            assert connection.recv(timeout=LONG) == ["hello", "you"]
            peer = connection.peer
            assert peer.pid == client.pid and peer.uid == os.getuid()
        assert client.wait(LONG) == 0


def test_the_exceptions_of_meeting_are_builtin_ones_too(tmp_path):
    for expected in (strait.NobodyThere, ConnectionRefusedError, FileNotFoundError):
        with pytest.raises(expected) as nobody:
            strait.connect("nobody", directory=tmp_path, timeout=1)
    assert "nobody" in str(nobody.value)
    with pytest.raises(strait.BadName):
        strait.Listener("a/b", directory=tmp_path)
    with strait.Listener("taken", directory=tmp_path) as listener:
        with pytest.raises(FileExistsError):
            strait.Listener("taken", directory=tmp_path)
        with pytest.raises(TimeoutError):
            listener.accept(0.01)
        with pytest.raises(strait.WouldBlock):
            listener.accept(0)
    with pytest.raises(strait.Closed):
        listener.accept()
    with pytest.raises(strait.NoParent):
        strait.parent()


def test_close_ends_the_accept_of_another_thread(tmp_path):
    listener = strait.Listener("closing", directory=tmp_path)
    entered, ended = threading.Event(), []

    def accept():
        entered.set()
        ended.extend(listener)
        ended.append("ended")

    thread = threading.Thread(target=accept)
    thread.start()
    entered.wait()
    listener.close()
    thread.join(LONG)
    assert ended == ["ended"]


def test_a_child_talks_to_its_parent(child):
    process, connection = child("for obj in up: up.send(obj * 2)")
    for obj in (21, "ab", [1]):
        connection.send(obj)
        assert connection.recv(timeout=LONG) == obj * 2
    connection.close()
    assert process.wait(LONG) == 0


def test_spawn_takes_the_keywords_of_popen(child):
    process, connection = child(
        "up.send(os.environ['OWN']); print('out')",
        env={**os.environ, "OWN": "value"}, stdout=subprocess.PIPE, max_message=1000,
    )
    assert connection.recv(timeout=LONG) == "value"
    assert process.communicate(timeout=LONG)[0] == b"out\n"
    with pytest.raises(FileNotFoundError):
        strait.spawn(["/no/such/program"])


def test_3_a_killed_child_is_told_after_its_messages(child):
    process, connection = child("for i in range(5): up.send(i)\nos.kill(os.getpid(), signal.SIGKILL)")
    assert [connection.recv(timeout=LONG) for _ in range(5)] == list(range(5))
    with pytest.raises(strait.PeerClosed):
        connection.recv(timeout=LONG)
    assert process.wait(LONG) == -signal.SIGKILL


@pytest.mark.parametrize("wait", ["recv", "send"])
def test_2_a_kill_ends_a_wait_soon(child, wait):
    """On an idle machine the wait ends within 50 ms. The least of several tries may take ten times as long."""
    shortest = LONG
    for _ in range(10):
        process, connection = child("up.send('here')\ntime.sleep(600)", queue_messages=2)
        assert connection.recv(timeout=LONG) == "here"
        killed = []

        def kill(process=process, killed=killed):
            killed.append(time.monotonic())
            process.kill()

        killing = threading.Timer(0.1, kill)
        killing.start()
        with pytest.raises(strait.PeerClosed) as closed:
            while True:
                connection.recv(timeout=LONG) if wait == "recv" else connection.send(bytes(1000), timeout=LONG)
        assert isinstance(closed.value, (EOFError, BrokenPipeError))
        shortest = min(shortest, time.monotonic() - killed[0])
        killing.join()
        connection.close()
        if shortest < 0.5:
            return
    raise AssertionError(f"the wait went on for {shortest} s")


def test_iteration_ends_with_the_peer(child):
    _process, connection = child("for i in range(5): up.send(i)")
    assert list(connection) == list(range(5))


WAITS = {
    "recv": "one.recv()",
    "recv with a timeout": "one.recv(timeout=600)",
    "send": "[one.send_bytes(bytes(10_000)) for _ in range(100_000)]",
    "poll": "one.poll(None)",
    "wait": "strait.wait([one])",
    "accept": "strait.Listener('interrupted', directory=directory).accept()",
    "connect": "listener = strait.Listener('full', directory=directory)\n"
    "    strait.connect('full', directory=directory)",
}


@pytest.mark.parametrize("after", [0, 0.3])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_control_c_ends_every_wait(python, tmp_path, wait, after):
    program = f"""
import signal, strait
directory = {str(tmp_path)!r}
one, other = strait.pair(queue_messages=5)
try:
    print("waiting", flush=True)
    {wait}
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while one.poll(): one.recv_bytes()
    while other.poll(): other.recv_bytes()
    other.send("still works")
    print(one.recv(), flush=True)
"""
    process = python(program, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waiting\n"
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    assert process.wait(LONG) is not None
    assert process.stdout.read() == "still works\n"
    assert process.returncode == 0


IDLE = {
    "recv": "up.recv()",
    "recv with a timeout": "up.recv(timeout=600)",
    "poll": "up.poll(None)",
    "wait": "strait.wait([up])",
    "wait with a file": "strait.wait([up, os.pipe()[0]])",
    "accept": "strait.Listener('idle', directory=directory).accept()",
    "accept in a thread": "thread(strait.Listener('idle', directory=directory).accept)",
    "poll in a thread": "thread(lambda: up.poll(None))",
}


@pytest.mark.parametrize("wait", IDLE.values(), ids=IDLE.keys())
def test_an_idle_process_makes_no_wake_ups(child, tmp_path, wait):
    program = f"""
directory = {str(tmp_path)!r}
up.send("waiting")
def thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
{wait}
"""
    process, connection = child(program)
    assert connection.recv(timeout=LONG) == "waiting"
    # The first parts of a wait are short. On a busy machine the process may not have begun the long one.
    for _ in range(20):
        time.sleep(1)
        before = sleeps(process.pid)
        time.sleep(2)
        after = sleeps(process.pid)
        if before == after:
            return
    raise AssertionError(f"{after - before} wake-ups in 2 s")


def sleeps(pid):
    """Returns how often the threads of a process have slept."""
    count = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status") as status:
            count += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
    return count


def test_a_close_ends_the_wait_of_another_thread(tmp_path):
    def check(wait, close):
        raised = []

        def run():
            try:
                wait()
            except strait.Closed as error:
                raised.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # Any moment will do: the threads wait, or are about to.
        close()
        for thread in threads:
            thread.join(LONG)
        assert len(raised) == 3

    listener = strait.Listener("closed", directory=tmp_path)
    check(listener.accept, listener.close)
    strait.Listener("closed", directory=tmp_path).close()
    for method in ("recv", "poll"):
        one, other = strait.pair()
        with other:
            check(lambda: getattr(one, method)(*([None] if method == "poll" else [])), one.close)


def test_a_handler_that_raises_nothing_does_not_end_the_wait(pair):
    one, other = pair
    calls = []

    def handler(_number, _frame):
        calls.append(1)
        if len(calls) == 3:
            other.send_bytes(b"from the handler")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        assert one.recv_bytes(timeout=LONG) == b"from the handler"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_forked_child_cannot_use_the_connection_and_the_parent_can(pair):
    one, other = pair
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            one.send_bytes(b"from the child")
        except strait.Forked as error:
            code = 0 if isinstance(error, RuntimeError) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    one.send_bytes(b"from the parent")
    assert other.recv_bytes(timeout=LONG) == b"from the parent"


def test_the_interpreter_exits_with_anything_open(tmp_path, python):
    program = f"""
import strait, threading, time
pairs = [strait.pair() for _ in range(50)]
listener = strait.Listener("open", directory={str(tmp_path)!r})
def again():
    while True:
        try: pairs[2][0].recv(timeout=0.001)
        except TimeoutError: pass
waits = [pairs[0][0].recv, lambda: pairs[1][0].poll(None), listener.accept, again]
for wait in waits:
    threading.Thread(target=wait, daemon=True).start()
time.sleep(0.3)  # Any moment will do: the threads wait, or are about to.
print(time.monotonic(), flush=True)
"""
    process = python(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    begun, rest = process.stdout.readline(), process.stdout.read()
    assert process.wait(LONG) == 0 and rest == ""
    # A second on an idle machine; a hang would last for ever.
    assert time.monotonic() - float(begun) < 20
