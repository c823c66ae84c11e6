"""`strait.Executor`: a pool of processes, where the death of a process fails only one future."""

import concurrent.futures
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import strait
import strait.mp
from conftest import LONG, scaled

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def square(number):
    return number * number


def pid():
    return os.getpid()


def die(how):
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


def fail(text):
    raise ValueError(text)


def unsendable():
    return threading.Lock()


class Unsendable(Exception):
    def __init__(self, lock):
        super().__init__("with a lock")
        self.lock = lock


def fail_unsendable():
    raise Unsendable(threading.Lock())


def hold(path):
    with open(path, "w"):
        pass
    signal.pause()


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_each_send():
    """Makes Ctrl-C arrive at the end of each send of this process."""
    send = strait.mp.Connection.send

    def interrupted(connection, obj):
        send(connection, obj)
        interrupt()

    strait.mp.Connection.send = interrupted


def numbered(number):
    return number, bytes(1 << 20)


def started(path):
    while not os.path.exists(path):
        time.sleep(0.01)


@pytest.fixture
def one():
    with strait.Executor(1) as executor:
        yield executor


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_calls_run_in_other_processes(method):
    with strait.Executor(2, mp_context=multiprocessing.get_context(method)) as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        assert list(executor.map(square, range(50))) == [number * number for number in range(50)]
        pids = {executor.submit(pid).result(LONG) for _ in range(20)}
    assert os.getpid() not in pids and 1 <= len(pids) <= 2
    for number in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
    with pytest.raises(RuntimeError):
        executor.submit(pid)


@pytest.mark.parametrize(("how", "code"), [("signal", -signal.SIGKILL), ("exit", 3)])
def test_a_worker_that_dies_fails_its_future_only(how, code):
    with strait.Executor(2) as executor:
        before = executor.submit(pid).result(LONG)
        futures = [executor.submit(die, how) if number == 5 else executor.submit(square, number) for number in range(20)]
        for number, future in enumerate(futures):
            if number == 5:
                with pytest.raises(strait.WorkerDied) as died:
                    future.result(LONG)
                assert died.value.exitcode == code
            else:
                assert future.result(LONG) == number * number
        assert isinstance(before, int)
        assert len({executor.submit(pid).result(LONG) for _ in range(10)}) >= 1


def test_a_worker_that_was_killed_while_idle_is_replaced(one):
    first = one.submit(pid).result(LONG)
    os.kill(first, signal.SIGKILL)
    while True:
        # The kernel reports the death a moment after the signal. A call in between fails like a call of a dead worker.
        try:
            second = one.submit(pid).result(LONG)
        except strait.WorkerDied:
            continue
        break
    assert second != first


def test_an_exception_of_a_call_arrives_with_its_traceback(one):
    with pytest.raises(ValueError, match="^wrong$") as raised:
        one.submit(fail, "wrong").result(LONG)
    assert "in fail" in str(raised.value.__cause__)
    assert one.submit(square, 3).result(LONG) == 9


def test_what_cannot_be_sent_fails_its_future(one):
    with pytest.raises(TypeError, match="lock"):
        one.submit(square, threading.Lock()).result(LONG)
    with pytest.raises(TypeError, match="the result, a .*lock"):
        one.submit(unsendable).result(LONG)
    with pytest.raises(TypeError, match="an exception, .*with a lock"):
        one.submit(fail_unsendable).result(LONG)
    with pytest.raises((AttributeError, TypeError), match="lambda|local"):
        one.submit(lambda: 1).result(LONG)
    first = one.submit(pid).result(LONG)
    assert one.submit(pid).result(LONG) == first


def remember(value):
    global remembered
    remembered = value


def recall():
    return remembered


def test_an_initializer_runs_in_each_worker():
    with strait.Executor(1, initializer=remember, initargs=(7,)) as executor:
        assert executor.submit(recall).result(LONG) == 7
    with strait.Executor(1, initializer=fail, initargs=("no",)) as executor, pytest.raises(strait.WorkerDied):
        executor.submit(recall).result(LONG)
    with pytest.raises(ValueError):
        strait.Executor(0)


def double(array):
    array *= 2
    return array


def test_arrays_travel_in_shared_memory(one):
    np = pytest.importorskip("numpy")
    array = strait.empty((1 << 17,), "f8")
    array[:] = 3
    doubled = one.submit(double, array).result(LONG)
    assert doubled[0] == 6 and array[0] == 3 and doubled.flags.writeable
    assert isinstance(doubled, np.ndarray)


def test_shutdown_cancels_what_has_not_begun(one, tmp_path):
    running = one.submit(hold, str(tmp_path / "begun"))
    waiting = one.submit(square, 2)
    started(tmp_path / "begun")
    one.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled() and not running.done()
    for worker in list(one._workers):
        worker._process.kill()
    with pytest.raises(strait.WorkerDied):
        running.result(LONG)


def test_ctrl_c_in_a_call_fails_the_call(one):
    first = one.submit(pid).result(LONG)
    with pytest.raises(KeyboardInterrupt):
        one.submit(interrupt).result(LONG)
    assert one.submit(pid).result(LONG) == first


def test_ctrl_c_in_a_call_fails_the_call_of_a_child_of_a_fork():
    # A child of a fork has the handler of its parent.
    handler = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        with strait.Executor(1, mp_context=multiprocessing.get_context("fork")) as one:
            with pytest.raises(KeyboardInterrupt):
                one.submit(interrupt).result(LONG)
            assert one.submit(square, 3).result(LONG) == 9
    finally:
        signal.signal(signal.SIGINT, handler)


def test_ctrl_c_while_a_worker_imports_the_function_loses_no_call(one, tmp_path, monkeypatch):
    (tmp_path / "interrupted.py").write_text(
        "import multiprocessing, os, signal\n"
        "if multiprocessing.parent_process() is not None:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "def answer():\n"
        "    return 42\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert one.submit(__import__("interrupted").answer).result(LONG) == 42
    assert one.submit(square, 3).result(LONG) == 9


def test_ctrl_c_at_the_end_of_an_answer_mixes_up_no_answers(one):
    one.submit(interrupt_each_send).result(LONG)
    for number in range(20):
        assert one.submit(square, number).result(LONG) == number * number


def test_ctrl_c_at_any_time_mixes_up_no_answers(one):
    worker = one.submit(pid).result(LONG)
    ended = threading.Event()
    generator = random.Random(2)

    def interrupts():
        while not ended.wait(generator.random() / 200):
            os.kill(worker, signal.SIGINT)

    thread = threading.Thread(target=interrupts)
    thread.start()
    try:
        for number in range(scaled(300, 3000)):
            try:
                assert one.submit(numbered, number).result(LONG)[0] == number
            except KeyboardInterrupt:
                pass
    finally:
        ended.set()
        thread.join()
    assert one.submit(pid).result(LONG) == worker


def default_handler():
    """Handles Ctrl-C like a program that knows nothing of the executor."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_loses_no_call_if_an_initializer_has_set_pythons_handler():
    with strait.Executor(1, initializer=default_handler) as one:
        one.submit(interrupt_each_send).result(LONG)
        for number in range(5):
            assert one.submit(square, number).result(LONG) == number * number


def test_idle_workers_end_after_a_shutdown_without_a_wait():
    executor = strait.Executor(2)
    descriptors = [os.pidfd_open(executor.submit(pid).result(LONG)) for _ in range(2)]
    executor.shutdown(wait=False)
    for descriptor in descriptors:
        assert strait.wait([descriptor], LONG)
        os.close(descriptor)
    assert executor is not None


FORKS = """
import os, sys, strait
if __name__ == "__main__":
    executor = strait.Executor(1)
    assert executor.submit(abs, -1).result() == 1
    child = os.fork()
    if child == 0:
        if sys.argv[1] == "shutdown":
            executor.shutdown()
        sys.exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    assert executor.submit(abs, -2).result() == 2
"""


@pytest.mark.parametrize("how", ["exit", "shutdown"])
def test_the_child_of_a_fork_leaves_the_workers_alone(tmp_path, how):
    path = tmp_path / "forks.py"
    path.write_text(FORKS)
    command = [sys.executable, "-W", "ignore", str(path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    # `multiprocessing` itself tries to join the processes, and prints an AssertionError.
    assert done.returncode == 0 and "strait" not in done.stderr.replace(str(path), ""), done.stderr


PROGRAM = """
import os, signal, sys, threading, strait

def hold(path):
    with open(path, "w"):
        pass
    signal.pause()

if __name__ == "__main__":
    executor = strait.Executor(2)
    executor.submit(print, "from a worker", flush=True).result()
    if sys.argv[1] == "exit":
        print("at the end", flush=True)
    else:
        executor.submit(hold, sys.argv[2])
        one, other = strait.pair()
        try:
            print(os.getpid(), *[worker._process.pid for worker in executor._workers], flush=True)
            # Unlike the waits of Python's locks, this one misses no signal that comes right before it.
            one.recv()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            os._exit(0)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_the_interpreter_ends_with_an_open_executor(program):
    done = subprocess.run([sys.executable, program, "exit"], capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stdout, done.stderr) == (0, "from a worker\nat the end\n", "")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_idle_workers_end_with_the_process_of_the_executor(program, tmp_path, how):
    path = tmp_path / "begun"
    process = subprocess.Popen([sys.executable, program, "wait", str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "from a worker\n"
        parent, *workers = map(int, process.stdout.readline().split())
        assert parent == process.pid and workers
        descriptors = [os.pidfd_open(worker) for worker in workers]
        process.send_signal(how)
        for descriptor, worker in zip(descriptors, workers, strict=True):
            # A worker with a call in progress first ends the call; this call never ends by itself.
            if strait.wait([descriptor], 5) == []:
                os.kill(worker, signal.SIGKILL)
            assert strait.wait([descriptor], LONG)
            os.close(descriptor)
