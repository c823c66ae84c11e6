"""Codecs: how `send` makes a message of an object, and `recv` an object of a message.

    from strait import codec, pair

    one, other = pair(codec=codec.json)

Both ends of a connection need one codec. `plain` is the default. `plain` carries plain objects, arrays and handles, and
executes no code. `register` adds classes of yours to `plain`. A codec of your own is an object with the methods of
`Codec`. If it reads the bytes of a codec of the Rust crate `strait-typed`, it can have an attribute `typed`, the number
of this codec; then it also receives from a typed channel.
"""

from __future__ import annotations

import json as _json
from typing import Any, Protocol

from ._errors import Malformed, NotPlain
from ._native import Message, dumps, loads
from ._registered import register

__all__ = ["Codec", "json", "msgspec", "pickle", "plain", "register"]


class Codec(Protocol):
    """The interface of a codec."""

    def dumps(self, obj: Any) -> tuple[Any, list[Any]]:
        """Returns the bytes and the handles of an object."""
        ...

    def loads(self, message: Message) -> Any:
        """Returns the object of a message."""
        ...


class _Plain:
    """The codec of connections without a named codec."""

    is_plain = True

    def dumps(self, obj: Any) -> tuple[Any, list[Any]]:
        return dumps(obj), []

    def loads(self, message: Message) -> Any:
        return loads(message.bytes)


class _Json:
    """Objects as JSON. No handles and no arrays."""

    typed = 3

    def dumps(self, obj: Any) -> tuple[Any, list[Any]]:
        try:
            return _json.dumps(obj, separators=(",", ":")).encode(), []
        except (TypeError, ValueError, RecursionError) as error:
            raise NotPlain(f"JSON cannot carry the object: {error}") from None

    def loads(self, message: Message) -> Any:
        try:
            return _json.loads(message.bytes)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"the message is no JSON: {error}") from None


class _Pickle:
    """Objects as pickles, with handles and large buffers as in `strait.mp`. A peer can run code in this process, so
    both ends have to name this codec."""

    unpickles = True

    def dumps(self, obj: Any) -> tuple[Any, list[Any]]:
        from . import _pickled

        return _pickled.dumps(obj)

    def loads(self, message: Message) -> Any:
        from . import _pickled

        return _pickled.loads(message)


class msgspec:  # noqa: N801
    """Objects of a type, for example a `msgspec.Struct`, as MessagePack, by the package `msgspec`. Received objects are
    checked against the type."""

    typed = 2

    def __init__(self, type: Any) -> None:
        import msgspec as package

        self._encoder = package.msgpack.Encoder()
        self._decoder = package.msgpack.Decoder(type)
        self._error = package.MsgspecError

    def dumps(self, obj: Any) -> tuple[Any, list[Any]]:
        try:
            return self._encoder.encode(obj), []
        except (TypeError, ValueError, RecursionError, self._error) as error:
            raise NotPlain(f"MessagePack cannot carry the object: {error}") from None

    def loads(self, message: Message) -> Any:
        try:
            return self._decoder.decode(message.bytes)
        except (ValueError, RecursionError, self._error) as error:
            raise Malformed(f"the message has not the type of this codec: {error}") from None


plain: Codec = _Plain()
json: Codec = _Json()
pickle: Codec = _Pickle()
