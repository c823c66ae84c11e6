"""Arrays, tensors and tables: the kinds carried by `send`.

`Connection.send` carries NumPy arrays, tensors of torch in the memory of the processor, tables and batches of Arrow,
arrays of any library with DLPack, and buffers of numbers. An array made by `strait.empty` is sent without a copy.
"""

from __future__ import annotations

from typing import Any

from ._arrays import Array, Reservation, empty
from ._native import Connection

__all__ = ["Array", "Reservation", "empty", "send_arrow"]


def send_arrow(connection: Connection, table: Any, *, timeout: float | None = None) -> None:
    """Sends a table or a batch of Arrow: its columns are written into shared memory once, and the peer reads the
    columns there. Equals `connection.send(table)`."""
    connection.send(table, timeout=timeout)
