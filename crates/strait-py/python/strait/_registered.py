"""Classes added to the codec `plain` by programs."""

from __future__ import annotations

import datetime
import pathlib
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from ._errors import Malformed, NotPlain, StraitError, Unknown
from ._native import Connection, File, Region

T = TypeVar("T")

_of_class: dict[type, tuple[int, Callable[[Any], Any]]] = {}
_of_code: dict[int, tuple[type, Callable[[bytes], Any]]] = {}

_BUILT_IN = (
    type(None), int, float, str, bytes, bytearray, memoryview, list, tuple, dict, set, frozenset, datetime.datetime,
    uuid.UUID, pathlib.PurePath, Connection, File, Region, Unknown,
)

FIRST, LAST = 16, 127
"""The codes that programs may use. Those below are the package's own; negative ones are MessagePack's."""


def register(cls: type[T], code: int, dumps: Callable[[T], bytes], loads: Callable[[bytes], T]) -> None:
    """Adds a class to the codec `plain`: `send` carries objects of the class, in messages of all connections of this
    process.

    An object travels as the bytes returned by `dumps`, with the extension type `code`, a number from 16 to 127. `loads`
    makes an object of such bytes. The bytes come from the peer, which may be hostile: `loads` must check the bytes, and
    must not unpickle. If `loads` raises an exception, `recv` raises `Malformed`. A peer that has not registered the
    code receives `strait.Unknown(code, data)`.

    Objects of subclasses are not carried. Raises `ValueError` if the codec carries the class already, or if another
    class has the code.
    """
    if not isinstance(cls, type):
        raise TypeError(f"{cls!r} is no class")
    if isinstance(code, bool) or not isinstance(code, int):
        raise TypeError(f"the code is an integer, not {code!r}")
    if not FIRST <= code <= LAST:
        raise ValueError(f"the code {code} is not from {FIRST} to {LAST}")
    if issubclass(cls, _BUILT_IN):
        raise ValueError(f"{cls} is carried already, as {next(base for base in _BUILT_IN if issubclass(cls, base))}")
    if code in _of_code and _of_code[code][0] is not cls:
        raise ValueError(f"the code {code} belongs to {_of_code[code][0]}")
    if cls in _of_class and _of_class[cls][0] != code:
        raise ValueError(f"{cls} has the code {_of_class[cls][0]}")
    _of_code[code] = cls, loads
    _of_class[cls] = code, dumps


def dumped(obj: Any) -> tuple[int, bytes] | None:
    """Returns the code and the bytes of an object of a registered class; `None` for any other object."""
    found = _of_class.get(type(obj))
    if found is None:
        return None
    code, dumps = found
    data = dumps(obj)
    if not isinstance(data, bytes):
        raise NotPlain(f"what was registered for {type(obj)} returned {type(data)} instead of bytes")
    return code, data


def loaded(code: int, data: bytes) -> Any:
    """Returns the object of an extension of the program."""
    found = _of_code.get(code)
    if found is None:
        return Unknown(code, data)
    try:
        return found[1](data)
    except StraitError:
        raise
    except Exception as error:
        raise Malformed(f"the bytes of a {found[0].__name__} (extension type {code}) are wrong: {error}") from error
