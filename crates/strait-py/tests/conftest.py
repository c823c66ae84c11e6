"""Common code of the tests."""

import os
import signal
import subprocess
import sys

import pytest

import strait

LONG = 60.0
"""Seconds after which a wait in a test has failed."""

FULL = bool(os.environ.get("STRAIT_LONG_TESTS"))
"""Whether tests run at full length, as in the nightly run."""

# A shell that starts the tests in the background ignores Ctrl-C, and children of such a process would ignore it too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def scaled(quick, full):
    """Returns how often a test repeats something."""
    return full if FULL else quick


@pytest.fixture
def pair():
    one, other = strait.pair()
    with one, other:
        yield one, other


@pytest.fixture
def python():
    """Runs a program in a new interpreter, killed at the end of the test; returns the `Popen`."""
    started = []

    def start(program, args=(), **keywords):
        process = subprocess.Popen([sys.executable, "-c", program, *args], **keywords)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.fixture
def child():
    """Starts a program with a connection; the program finds the connection as `up`. Returns both."""
    started = []

    def start(program, **keywords):
        program = f"import os, signal, sys, threading, time, strait\nup = strait.parent()\n{program}"
        process, connection = strait.spawn([sys.executable, "-c", program], **keywords)
        started.append((process, connection))
        return process, connection

    yield start
    for process, connection in started:
        connection.close()
        if process.poll() is None:
            process.kill()
        process.wait()


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def regions(monkeypatch):
    """Makes arrays above 64 KiB travel in regions; without this fixture only arrays above 64 MiB do, and arrays of
    `strait.empty` above 4 MiB."""
    monkeypatch.setattr("strait._arrays.COPIED", 0)
    monkeypatch.setattr("strait._arrays.EMPTY_COPIED", 0)
