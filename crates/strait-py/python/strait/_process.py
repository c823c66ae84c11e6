"""Starting a process with a connection."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from . import _native

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

P = ParamSpec("P")

OPTIONS = frozenset(
    "max_message max_handles queue_bytes queue_messages queue_handles inline_max ring ring_max pool peer_memory "
    "accept_descriptors spin wait trust codec".split()
)


def spawn(args: str | Sequence[str], **keywords: Any) -> tuple[subprocess.Popen[Any], _native.Connection]:
    """Starts a program, and returns its process and a connection to the process. The program calls `strait.parent()`,
    or `from_parent` in Rust, C or C++.

    The keyword arguments are the options of a connection, and the arguments of `subprocess.Popen`.
    """
    connection, inheritance = inherit(keywords)
    try:
        process = subprocess.Popen(args, **keywords)
    except BaseException:
        connection.close()
        raise
    finally:
        # Otherwise this end would not see the death of the new process.
        inheritance.close()
    return process, connection


def inherit(keywords: dict[str, Any]) -> tuple[_native.Connection, _native.Inheritance]:
    """Returns a connection to a process about to be started, and the inheritance of the process. Takes the options of
    the connection out of the keywords, and adds the arguments for `subprocess.Popen`."""
    options = {name: keywords.pop(name) for name in OPTIONS & keywords.keys()}
    connection, inheritance = _native.inherit(**options)
    descriptor, value = inheritance.parts()
    environment = dict(os.environ if keywords.get("env") is None else keywords["env"])
    environment[inheritance.VARIABLE] = value
    keywords["env"] = environment
    keywords["pass_fds"] = (*keywords.get("pass_fds", ()), descriptor)
    return connection, inheritance


def process(
    function: Callable[Concatenate[_native.Connection, P], object], *args: P.args, **kwargs: P.kwargs
) -> tuple[SpawnProcess, _native.Connection]:
    """Calls a function in a new process, with a connection as its first argument. Returns the process and the other end
    of the connection. The process is started by `multiprocessing`'s start method "spawn"."""
    import multiprocessing

    here, there = _native.pipe()
    started = multiprocessing.get_context("spawn").Process(target=function, args=(there, *args), kwargs=kwargs)
    try:
        started.start()
    except BaseException:
        here.close()
        raise
    finally:
        # The new process has its own descriptor of this end.
        there.close()
    return started, here
