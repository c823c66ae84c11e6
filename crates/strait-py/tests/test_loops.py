"""`strait.aio` in every event loop: asyncio, uvloop, trio, and anyio over each."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import anyio
import pytest

import strait
from conftest import LONG, scaled
from strait import aio


def _asyncio(main):
    import asyncio

    return asyncio.run(main())


def _uvloop(main):
    uvloop = pytest.importorskip("uvloop")
    return uvloop.run(main())


def _trio(main):
    import trio

    return trio.run(main)


LOOPS = {
    "asyncio": _asyncio,
    "uvloop": _uvloop,
    "trio": _trio,
    "anyio on asyncio": lambda main: anyio.run(main, backend="asyncio"),
    "anyio on trio": lambda main: anyio.run(main, backend="trio"),
}


@pytest.fixture(params=LOOPS.values(), ids=LOOPS.keys())
def run(request):
    return request.param


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_tasks_wait_for_messages_and_for_room(run):
    async def main():
        one, other = aio.pair(queue_messages=5)
        received = []

        async def receive():
            async for item in other:
                received.append(item)

        async def send():
            for number in range(1000):
                await one.send(number)
            one.close()

        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            group.start_soon(send)
        assert received == list(range(1000))

    run(main)


def test_messages_of_another_thread_wake_the_loop(run):
    async def main():
        plain, other = strait.pair()
        one = aio.Connection(other)
        thread = threading.Timer(0.05, plain.send, ["hello"])
        thread.start()
        assert await one.recv(timeout=LONG) == "hello"
        thread.join()

    run(main)


def test_poll_waits_for_a_message_or_the_end(run):
    async def main():
        one, other = aio.pair()
        assert not await other.poll() and not await other.poll(0.01)
        with pytest.raises(ValueError):
            await other.poll(float("nan"))
        polled = []

        async def wait():
            polled.append(await other.poll(None))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(0.01)
            await one.send(1)
        # More calls in a row than may return without letting other tasks run.
        assert polled == [True] and all([await other.poll() for _ in range(250)])
        assert await other.recv() == 1 and not await other.poll(0)
        one.close()
        assert await other.poll(LONG)
        with pytest.raises(strait.PeerClosed):
            await other.recv()
        other.close()
        with pytest.raises(strait.Closed):
            await other.poll()

    run(main)


def test_messages_with_parts_and_handles_and_what_an_end_counts(run):
    async def main():
        one, other = aio.pair(queue_messages=2)
        with open(os.devnull) as file:
            await one.sendv([b"a", bytearray(b"b"), memoryview(b"c_d")[::2]], handles=[file])
        assert other.status.messages == 1
        message = await other.recv_message()
        assert message.bytes == b"abcd" and [type(handle) for handle in message.handles] == [strait.File]
        message.close()
        with pytest.raises(strait.TimedOut):
            await other.recv_message(timeout=0.01)
        received = []

        async def receive():
            for _ in range(10):
                received.append((await other.recv_message()).bytes)

        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            for number in range(10):
                await one.sendv([b"x" * 1000, str(number).encode()])
        assert [item[1000:] for item in received] == [str(number).encode() for number in range(10)]
        assert one.counters.messages_sent == other.counters.messages_received == 11 and one.counters.copied == 0
        numpy = pytest.importorskip("numpy")
        await one.send(numpy.zeros((64 << 20) + 1, "u1"))
        assert one.counters.copied == 1

    run(main)


def test_a_timeout_ends_a_wait_and_the_connection_works(run):
    async def main():
        one, other = aio.pair(queue_messages=2)
        with pytest.raises(strait.TimedOut):
            await one.recv(timeout=0.02)
        with pytest.raises(strait.TimedOut):
            for _ in range(5):
                await one.send_bytes(b"x", timeout=0.02)
        with pytest.raises(ValueError):
            await one.recv(timeout=float("nan"))
        assert await other.recv_bytes(timeout=LONG) == b"x"
        await other.send("back")
        assert await one.recv() == "back"

    run(main)


def test_16_a_cancelled_receive_loses_nothing(run):
    async def main():
        plain, other = strait.pair()
        one = aio.Connection(other)
        count = scaled(500, 10_000)
        stop = threading.Event()

        def send():
            for number in range(count):
                if stop.is_set():
                    return
                plain.send(number, timeout=LONG)
                if number % 7 == 0:
                    time.sleep(0.0005)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            cancelled = 0
            received = []
            while len(received) < count:
                with anyio.move_on_after(0.0003) as scope:
                    received.append(await one.recv())
                cancelled += scope.cancelled_caught
            assert received == list(range(count))
        finally:
            stop.set()
            thread.join()

    run(main)


def test_16_many_connections_need_one_descriptor(run):
    async def main():
        pairs = [aio.pair() for _ in range(3)]
        before = descriptors()
        pairs += [aio.pair() for _ in range(scaled(300, 1000))]
        assert descriptors() <= before
        for number, (one, other) in enumerate(pairs):
            await one.send(number)
            assert await other.recv() == number

    run(main)


def test_other_tasks_run_beside_an_exchange_that_never_waits(run):
    async def main():
        one, other = aio.pair()
        turns = []

        async def count():
            while True:
                turns.append(1)
                await anyio.sleep(0)

        async with anyio.create_task_group() as group:
            group.start_soon(count)
            for _ in range(2000):
                await one.send_bytes(b"x")
                await other.recv_bytes()
            group.cancel_scope.cancel()
        assert len(turns) > 10

    run(main)


def test_2_a_killed_child_ends_the_wait(run, child):
    process, connection = child("up.send('here')\ntime.sleep(600)")

    async def main():
        async with aio.Connection(connection) as one:
            assert await one.recv(timeout=LONG) == "here"
            os.kill(process.pid, signal.SIGKILL)
            begun = time.monotonic()
            with pytest.raises(strait.PeerClosed):
                await one.recv(timeout=LONG)
            # 50 ms on an idle machine.
            assert time.monotonic() - begun < 10

    run(main)


def test_a_listener_accepts_and_its_accept_can_be_cancelled(run, tmp_path):
    async def main():
        async with aio.Listener("loops", directory=tmp_path) as listener:
            for _ in range(3):
                with anyio.move_on_after(0.01) as scope:
                    await listener.accept()
                assert scope.cancelled_caught
            async with anyio.create_task_group() as group:
                accepted = []

                async def accept():
                    accepted.append(await listener.accept(timeout=LONG))

                group.start_soon(accept)
                client = await aio.connect("loops", directory=tmp_path, timeout=LONG)
            await client.send("hello")
            assert await accepted[0].recv(timeout=LONG) == "hello"

    run(main)


def test_loops_leave_nothing(run):
    async def main():
        one, other = aio.pair()
        await one.send(1)
        assert await other.recv() == 1

    run(main)
    before = descriptors()
    for _ in range(5):
        run(main)
    assert descriptors() <= before + 2


def test_a_connection_belongs_to_its_loop(run):
    kept = []

    async def make():
        kept.extend(aio.pair())

    async def use():
        with pytest.raises(RuntimeError, match="another event loop"):
            await kept[0].recv()

    run(make)
    run(use)


def test_outside_of_a_loop_there_is_a_plain_error():
    program = "from strait import aio\ntry: aio.pair()\nexcept RuntimeError as error: print(error)"
    import subprocess

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0 and "no running event loop" in done.stdout


def test_data_pipes_in_a_loop(run):
    data = os.urandom(300_000)

    async def main():
        plain, other = strait.DataPipe(1 << 14)
        producer, consumer = aio.Producer(plain), aio.Consumer(other)
        assert plain.closed and other.closed
        with pytest.raises(strait.TimedOut):
            await consumer.read(timeout=0.01)
        received = []

        async def read():
            async for piece in consumer:
                received.append(piece)

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await producer.write_all(data)
            await producer.finish()
        assert b"".join(received) == data and await consumer.read() == b""
        plain, other = strait.DataPipe(64)
        producer, consumer = aio.Producer(plain), aio.Consumer(other)
        assert await producer.write(bytes(100)) == 64
        with pytest.raises(strait.TimedOut):
            await producer.write(b"x", timeout=0.01)
        assert consumer.detach().read() == bytes(64) and consumer.closed
        with pytest.raises(strait.Closed):
            await consumer.read()
        async with producer:
            pass
        with pytest.raises(strait.Closed):
            await producer.write(b"x")

    run(main)


def test_calls_in_a_loop(run):
    async def main():
        one, other = strait.pair()
        client, server = aio.Caller(one), aio.Caller(other)

        async def double(number):
            await anyio.sleep(0)
            return number * 2

        async def call(number, results):
            results.append((number, await client.call(number, timeout=LONG)))

        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, double)
            results = []
            async with anyio.create_task_group() as calls:
                for number in range(50):
                    calls.start_soon(call, number, results)
            assert sorted(results) == [(number, number * 2) for number in range(50)]
            with pytest.raises(strait.NotPlain):
                await client.call(object())
            client.close()
        with pytest.raises(strait.Closed):
            await client.call(1)
        one, other = strait.pair()
        client, server = aio.Caller(one), aio.Caller(other)
        with pytest.raises(strait.TimedOut):
            await client.call("nobody", timeout=0.02)

        async def drop():
            request = await server.next_request(timeout=LONG)
            while request.value() != "dropped":
                # The call that nobody answered was cancelled, perhaps after its request was received here.
                request.drop()
                request = await server.next_request(timeout=LONG)
            request.drop()

        async with anyio.create_task_group() as group:
            group.start_soon(drop)
            with pytest.raises(strait.NotAnswered):
                await client.call("dropped")

        async def closed():
            with pytest.raises(strait.Closed):
                await client.call("waits")

        async with anyio.create_task_group() as group:
            group.start_soon(closed)
            await server.next_request(timeout=LONG)
            client.close()
        with pytest.raises(strait.PeerClosed):
            await server.next_request(timeout=LONG)

    run(main)


def test_a_program_is_started_in_a_loop(run):
    async def main():
        program = "import strait\nwith strait.parent() as up:\n    for number in up: up.send(number * 2)"
        process, connection = await aio.spawn(sys.executable, "-c", program, max_message=1000)
        await connection.send(21)
        assert await connection.recv(timeout=LONG) == 42
        with pytest.raises(strait.MessageTooLarge):
            await connection.send_bytes(bytes(1001))
        connection.close()
        assert await process.wait() == 0
        with pytest.raises(FileNotFoundError):
            await aio.spawn("/nothing/is/here")

    run(main)


def test_a_listener_may_be_closed_twice_while_a_task_accepts(run, tmp_path):
    async def main():
        async def accept():
            with pytest.raises(strait.Closed):
                await listener.accept()

        async with anyio.create_task_group() as tasks, aio.Listener("twice", directory=tmp_path) as listener:
            tasks.start_soon(accept)
            await anyio.sleep(0.01)
            listener.close()
            listener.close()
        assert listener.closed

    run(main)


def test_tasks_accept_while_another_one_lets_others_run(run, tmp_path):
    async def main():
        accepted = []

        async def accept():
            accepted.append(await listener.accept())

        async with aio.Listener("several", directory=tmp_path) as listener:
            with anyio.fail_after(LONG):
                async with anyio.create_task_group() as tasks:
                    for number in range(4):
                        # The next call of a task lets other tasks run first.
                        listener._waiters.loop.budget = -1
                        tasks.start_soon(accept)
                        tasks.start_soon(accept)
                        await anyio.sleep(0.01)
                        ends = [await aio.connect("several", directory=tmp_path) for _ in range(2)]
                        while len(accepted) < 2 * number + 2:
                            await anyio.sleep(0.01)
                        assert not any(end.closed for end in ends)

    run(main)


CONNECTS = """
import sys, strait
from strait import aio
listener = strait.Listener("never-accepts")

async def with_asyncio():
    try:
        await asyncio.wait_for(aio.connect("never-accepts"), 0.1)
    except TimeoutError:
        print("timed out")

async def with_trio():
    with trio.move_on_after(0.1) as scope:
        await aio.connect("never-accepts")
    if scope.cancelled_caught:
        print("timed out")

if sys.argv[1] == "trio":
    import trio
    async def several():
        trio.to_thread.current_default_thread_limiter().total_tokens = 3
        for _ in range(10):
            await with_trio()
    trio.run(several)
else:
    import asyncio
    asyncio.run(with_asyncio())
if sys.argv[2] == "late":
    listener.accept(60)
"""


@pytest.mark.parametrize("then", ["end", "late"])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_cancelled_connect_holds_nothing_up(python, tmp_path, loop, then):
    tmp_path.chmod(0o700)
    environment = {**os.environ, "STRAIT_DIR": str(tmp_path)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = python(CONNECTS, args=[loop, then], env=environment, **streams)
    output, errors = process.communicate(timeout=LONG)
    assert (process.returncode, errors) == (0, "") and output.startswith("timed out\n")


def test_a_connection_made_after_its_call_was_cancelled_is_closed(run, tmp_path):
    async def main():
        async with aio.Listener("late", directory=tmp_path) as listener:
            with anyio.move_on_after(0.05) as scope:
                await aio.connect("late", directory=tmp_path)
            assert scope.cancelled_caught
            accepted = await listener.accept(LONG)
            with pytest.raises(strait.PeerClosed):
                await accepted.recv(timeout=LONG)

    run(main)


CALLS = """
import asyncio
from strait import aio
async def main():
    callers = [aio.Caller(up.recv()) for _ in range(up.recv())]
    calls = [caller.call(number) for caller in callers for number in range(3)]
    for call in calls:
        # Sends the request.
        call.send(None)
    os.kill(os.getpid(), signal.SIGSTOP)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


async def stuck(child, count):
    """Returns the callers of a peer that sends requests and reads no replies, and the peer's process."""
    process, connection = child(CALLS)
    connection.send(count)
    callers = []
    for _ in range(count):
        here, there = strait.pair(queue_messages=1)
        connection.send(there)
        callers.append(aio.Caller(here))
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    return callers, process


async def no_threads():
    """Waits until no thread of `strait.aio` is left."""
    while any(thread.name == "strait-aio" for thread in threading.enumerate()):
        await anyio.sleep(0.01)


def test_replies_that_nobody_reads_hold_up_no_threads(run, child):
    async def main():
        callers, process = await stuck(child, 40)
        handled, cancelled, closed = [], [], []

        async def serve(caller):
            try:
                await caller.serve(handled.append)
            except strait.Closed:
                closed.append(caller)
            except anyio.get_cancelled_exc_class():
                cancelled.append(caller)
                raise

        with anyio.fail_after(LONG):
            async with anyio.create_task_group() as tasks:
                for caller in callers:
                    tasks.start_soon(serve, caller)
                # The first reply of each has room, the second one has none.
                while len(handled) < 80:
                    await anyio.sleep(0.01)
                before = threading.active_count()
                assert await anyio.to_thread.run_sync(lambda: 1) == 1
                assert before < 100
                for caller in callers[:20]:
                    caller.close()
                while len(closed) < 20:
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            assert set(closed) == set(callers[:20]) and set(cancelled) == set(callers[20:])
            # The threads end, although the peer never reads.
            await no_threads()
        for caller in callers:
            caller.close()
        process.kill()

    run(main)


def test_a_cancelled_reply_can_be_repeated(run, child):
    async def main():
        (caller,), process = await stuck(child, 1)
        requests = [await caller.next_request(timeout=LONG) for _ in range(3)]
        await requests[0].reply(0)
        # One waits for room, another one waits for its turn.
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(requests[1].reply, 1)
                tasks.start_soon(requests[2].reply, 2)
                await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()
        with anyio.fail_after(LONG):
            await no_threads()
            process.send_signal(signal.SIGCONT)
            await requests[1].reply(1)
            await requests[2].reply(2)
        caller.close()

    run(main)


def test_a_reply_for_which_no_thread_starts_fails_alone(run, child, monkeypatch):
    async def main():
        (caller,), process = await stuck(child, 1)
        requests = [await caller.next_request(timeout=LONG) for _ in range(2)]
        await requests[0].reply(0)

        def start(thread):
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError):
                await requests[1].reply(1)
        process.send_signal(signal.SIGCONT)
        with anyio.fail_after(LONG):
            await requests[1].reply(1)
        caller.close()

    run(main)
