"""Jobs for workers in processes of their own: each worker gets the next job when it is free. If a worker dies, another
worker takes its place and repeats its job.

    python worker.py              the parent; starts the workers as children
"""

import collections
import contextlib
import os
import signal
import subprocess
import sys

import strait

WORKERS = 3
JOBS = 12


def work() -> None:
    with strait.parent() as parent:
        for job in parent:
            assert isinstance(job, dict)
            if job == {"number": 5, "attempt": 1}:
                # Stands for a crash.
                os.kill(os.getpid(), signal.SIGKILL)
            parent.send(job["number"] ** 2)


def main() -> None:
    workers: dict[strait.Connection, subprocess.Popen[bytes]] = {}
    busy: dict[strait.Connection, dict[str, int]] = {}
    jobs = collections.deque({"number": number, "attempt": 1} for number in range(JOBS))
    results: dict[int, object] = {}
    while len(results) < JOBS:
        while len(workers) < WORKERS:
            process, connection = strait.spawn([sys.executable, __file__, "work"])
            workers[connection] = process
        for connection in workers:
            if jobs and connection not in busy:
                busy[connection] = jobs.popleft()
                # If the worker has died, `recv` raises the same exception below.
                with contextlib.suppress(strait.PeerClosed):
                    connection.send(busy[connection], timeout=60)
        for connection in strait.wait(busy, timeout=60):
            job = busy.pop(connection)
            try:
                results[job["number"]] = connection.recv(timeout=60)
            except strait.PeerClosed:
                connection.close()
                status = workers.pop(connection).wait(60)
                print(f"the worker of job {job['number']} has ended with {status}: another worker repeats the job")
                # The dead worker may have done the job: repeat only jobs that do no harm when done twice.
                jobs.append({**job, "attempt": job["attempt"] + 1})
    print([results[number] for number in range(JOBS)])
    for connection, process in workers.items():
        connection.close()
        process.wait(60)


if __name__ == "__main__":
    work() if sys.argv[1:] == ["work"] else main()
