"""Common code of the tests."""

import os
import re
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


MAY_BE_MISSING = re.compile(r"could not import '(torch|uvloop)'|Python 3\.\d+ is not on this machine|does not apply: ")
"""Reasons for which a test may be skipped at full length. A test skipped for any other reason has failed."""


def checked(report):
    """Returns the report of a test or a file. At full length, what is missing makes the report a failure."""
    if FULL and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if not MAY_BE_MISSING.match(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped, but at full length nothing may be missing: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return checked((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return checked((yield))


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
