"""The options of connections, and the limits of the process, as types."""

from __future__ import annotations

from typing import Literal, TypedDict

from .codec import Codec


class Options(TypedDict, total=False):
    """The options of a connection: `strait.pair(**Options(max_message=1 << 20))`. Each option is a keyword argument of
    the functions that make connections."""

    max_message: int
    max_handles: int
    queue_bytes: int
    queue_messages: int
    queue_handles: int
    inline_max: int
    ring: int
    ring_max: int
    pool: int
    peer_memory: int
    accept_descriptors: bool
    spin: float
    wait: Literal["adaptive", "spin", "block"]
    trust: bool
    codec: Codec | None


class Limits(TypedDict, total=False):
    """The limits on resources held for a peer process or a user, for `strait.set_limits`."""

    descriptors: int
    lanes: int
    mappings: int
    memory: int
    queued_bytes: int
    queued_messages: int
    regions: int
