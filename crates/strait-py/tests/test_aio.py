"""`strait.aio`: attempts that wait in an event loop, and the state after a cancelled attempt."""

import asyncio
import gc
import os
import signal
import subprocess
import threading
import weakref

import pytest

import strait
from conftest import LONG
from strait import _native, aio


def run(main):
    return asyncio.run(asyncio.wait_for(main, LONG))


class Interrupting(asyncio.SelectorEventLoop):
    """A loop in which Ctrl-C comes while tasks are woken."""

    interrupts = 0

    def call_soon(self, callback, *args, context=None):
        handle = super().call_soon(callback, *args, context=context)
        if self.interrupts:
            self.interrupts -= 1
            signal.raise_signal(signal.SIGINT)
        return handle


def test_ctrl_c_while_tasks_are_woken_ends_the_loop_and_loses_no_task():
    loop = Interrupting()
    pairs = [strait.pair() for _ in range(3)]

    async def begin():
        # Each task waits when this one goes on.
        tasks = [loop.create_task(receiving.recv()) for receiving in map(aio.Connection, (other for _, other in pairs))]
        for _ in range(3):
            await asyncio.sleep(0)
        return tasks

    tasks = loop.run_until_complete(begin())
    for number, (one, _) in enumerate(pairs):
        one.send(number)
    loop.interrupts = 2
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.gather(*tasks))
    assert [loop.run_until_complete(asyncio.wait_for(task, LONG)) for task in tasks] == [0, 1, 2]
    loop.close()



def test_objects_travel_and_a_loop_over_them_ends_with_the_peer():
    async def main():
        one, other = aio.pair()
        async with other:
            async with one:
                for number in range(300):
                    await one.send({"n": number})
                await one.send_bytes(strait.dumps(300))
            assert [await other.recv()] == [{"n": 0}]
            rest = [item async for item in other]
            assert len(rest) == 300 and rest[-1] == 300
            with pytest.raises(strait.PeerClosed):
                await other.recv()

    run(main())


def test_a_task_waits_for_a_message_and_for_room():
    async def main():
        one, other = aio.pair(queue_messages=4)
        received = []

        async def receive():
            while len(received) < 2000:
                received.append(await other.recv())

        receiving = asyncio.create_task(receive())
        await asyncio.sleep(0)
        for number in range(2000):
            await one.send(number)
        await receiving
        assert received == list(range(2000))

    run(main())


def test_many_tasks_share_a_connection():
    async def main():
        one, other = aio.pair(queue_messages=8)
        receivers = [asyncio.create_task(other.recv()) for _ in range(200)]
        await asyncio.gather(*(one.send(number) for number in range(200)))
        assert sorted(await asyncio.gather(*receivers)) == list(range(200))

    run(main())


def test_a_cancelled_call_has_done_nothing():
    async def main():
        one, other = aio.pair(queue_messages=2)
        received, sent = [], 0
        for number in range(1000):
            receiving = asyncio.create_task(other.recv())
            for _ in range(number % 3):
                await asyncio.sleep(0)
            try:
                await one.send(sent, timeout=LONG)
                sent += 1
            finally:
                receiving.cancel()
            try:
                received.append(await receiving)
            except asyncio.CancelledError:
                received.append(await other.recv(timeout=LONG))
        assert received == list(range(sent))
        await one.send(1)
        await one.send(2)
        for _ in range(50):
            sending = asyncio.create_task(one.send("never"))
            await asyncio.sleep(0)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        one.close()
        assert [item async for item in other] == [1, 2]

    run(main())


def test_timeouts():
    async def main():
        one, other = aio.pair(queue_messages=1)
        for timeout in (0, 0.001, -1):
            with pytest.raises(strait.TimedOut):
                await other.recv(timeout=timeout)
        await one.send("only")
        with pytest.raises(strait.TimedOut):
            await one.send("too much", timeout=0.001)
        assert await other.recv(timeout=LONG) == "only"

    run(main())


def test_one_descriptor_for_all_connections():
    async def main():
        first = aio.pair()
        await first[0].send(0)
        await first[1].recv()
        loop = asyncio.get_running_loop()
        before = len(loop._selector.get_map())
        pairs = [aio.pair() for _ in range(100)]
        waiting = [asyncio.create_task(other.recv()) for _one, other in pairs]
        await asyncio.sleep(0)
        assert len(loop._selector.get_map()) == before
        for number, (one, _other) in enumerate(pairs):
            await one.send(number)
        assert await asyncio.gather(*waiting) == list(range(100))

    run(main())


def test_a_child_answers_and_its_death_ends_the_wait(child):
    process, connection = child("""
import asyncio
from strait import _native, aio
async def main():
    async for item in aio.Connection(up):
        if item is None:
            os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
""")

    async def main():
        ours = aio.Connection(connection)
        waiting = asyncio.create_task(ours.recv())
        await ours.send([1, 2])
        await ours.send(None)
        with pytest.raises(strait.PeerClosed):
            await waiting

    run(main())
    assert process.wait(LONG) == -signal.SIGKILL and connection.closed


def test_messages_of_another_thread_wake_the_loop():
    one, other = strait.pair()

    async def main():
        ours = aio.Connection(other)
        thread = threading.Thread(target=lambda: [one.send(number) for number in range(2000)])
        thread.start()
        assert [await ours.recv() for _ in range(2000)] == list(range(2000))
        thread.join()

    run(main())


def test_a_listener_accepts_and_ends(tmp_path):
    async def main():
        os.chmod(tmp_path, 0o700)
        listener = aio.Listener("aio", directory=tmp_path)
        with pytest.raises(strait.TimedOut):
            await listener.accept(timeout=0.001)
        for _ in range(3):
            accepting = asyncio.create_task(listener.accept())
            client = await aio.connect("aio", directory=tmp_path)
            server = await accepting
            await client.send("hello")
            assert await server.recv() == "hello"
        accepting = asyncio.create_task(anext(listener, None))
        await asyncio.sleep(0)
        listener.close()
        assert await accepting is None and listener.closed

    run(main())


def test_a_close_ends_the_waits_of_tasks():
    async def main():
        one, other = aio.pair()
        waiting = asyncio.create_task(other.recv())
        await asyncio.sleep(0)
        other.close(7)
        with pytest.raises(strait.Closed):
            await waiting
        with pytest.raises(strait.PeerClosed) as closed:
            await one.recv()
        assert closed.value.reason == 7 and other.closed

    run(main())


def test_a_connection_leaves_the_loop_and_belongs_to_one():
    async def main():
        one, other = aio.pair()
        plain = other.detach()
        await one.send(1)
        assert plain.recv(timeout=LONG) == 1 and other.closed
        return one

    one = run(main())

    async def second():
        with pytest.raises(RuntimeError):
            await one.recv()

    run(second())


def test_nothing_is_left_of_loops_and_connections():
    async def main():
        one, other = aio.pair()
        await one.send(1)
        await other.recv()
        waiting = asyncio.create_task(other.recv())
        await asyncio.sleep(0)
        waiting.cancel()
        return weakref.ref(one), weakref.ref(asyncio.get_running_loop())

    run(main())
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        references = run(main())
    gc.collect()
    assert all(reference() is None for reference in references)
    # A thread of the library may close descriptors of an earlier test meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_close_during_an_attempt_of_another_thread_tells_its_reason():
    """The attempt holds the end until the attempt returns; the reason is not lost meanwhile."""
    for _ in range(20):
        here, there = strait.pair()
        end = _native.AsyncEnd(here, _native.Reactor(), lambda: None)
        begun = threading.Event()

        def attempts(end=end, begun=begun):
            while True:
                try:
                    end.poll_recv(True)
                except strait.Closed:
                    return
                begun.set()

        thread = threading.Thread(target=attempts)
        thread.start()
        begun.wait()
        end.close(7)
        thread.join()
        with pytest.raises(strait.PeerClosed) as closed:
            there.recv(timeout=10)
        assert closed.value.reason == 7


def test_an_end_that_another_thread_uses_stays_when_it_is_detached():
    refused = 0
    for _ in range(20):
        here, there = strait.pair()
        end = _native.AsyncEnd(here, _native.Reactor(), lambda: None)
        begun = threading.Event()

        def attempts(end=end, begun=begun):
            while True:
                try:
                    end.poll_recv(True)
                except strait.Closed:
                    return
                begun.set()
                os.sched_yield()

        thread = threading.Thread(target=attempts)
        thread.start()
        begun.wait()
        while True:
            try:
                connection = end.detach()
                break
            except strait.Closed:
                pytest.fail("the end was lost")
            except ValueError:
                refused += 1
                os.sched_yield()
        thread.join()
        connection.send("still here")
        assert there.recv(timeout=10) == "still here"
    print(f"{refused} times another thread used the end")


DROPPED = """
import sys, strait
from strait import _native

reactor, box = _native.Reactor(), {}
one, other = strait.pair()
if sys.argv[1] == "connection":
    box["end"] = _native.AsyncEnd(one, reactor, box.clear)
    assert box["end"].poll_recv() is None
    other.send(1)
elif sys.argv[1] == "consumer":
    producer, consumer = strait.DataPipe(1 << 14)
    box["end"] = _native.AsyncConsumerEnd(consumer, reactor, box.clear)
    assert box["end"].poll_read(1) is None
    producer.write(b"1")
else:
    box["end"] = _native.AsyncCaller(one, reactor, box.clear)
    assert box["end"].poll_request() is None
    other.close()
reactor.turn()
assert not box
print("turned")
"""


@pytest.mark.parametrize("kind", ["connection", "consumer", "caller"])
def test_a_callback_may_drop_its_end(python, kind):
    process = python(DROPPED, args=[kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, errors = process.communicate(timeout=LONG)
    assert (process.returncode, output, errors) == (0, "turned\n", "")
