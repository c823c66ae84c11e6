"""Arrays: turns them into parts of a message, and makes arrays of received parts."""

from __future__ import annotations

import functools
import importlib
import math
import os
import re
import struct
import sys
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ._errors import Closed, NotSealed, StillMapped
from ._native import Connection, Memory, Region, dlpack, zeroed

if TYPE_CHECKING:
    import numpy
    import numpy.typing

INLINE = 1 << 16
"""The size in bytes up to which any array travels in the bytes of its message."""
HEAD = 1 << 10
"""Enough bytes for what a message has of an array besides the bytes of the array."""
COPIED = 64 << 20
"""The size up to which NumPy arrays and tensors do so, as long as the bytes of the message are no more than this. Both
sides use the memory for these bytes again and again, which is quicker than a region for each array: the kernel clears
each page of a new region."""
EMPTY_COPIED = 4 << 20
"""The size up to which arrays of `empty` are copied, too, unless `seal` says otherwise. Above, they are sealed in place:
that is what programs use `empty` for, and it needs least memory."""

_KINDS = frozenset("biufcmMSUV")
_DIMENSIONS = 32

_TORCH = {
    "bool": "|b1", "uint8": "|u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8", "int8": "|i1", "int16": "<i2",
    "int32": "<i4", "int64": "<i8", "float16": "<f2", "float32": "<f4", "float64": "<f8", "complex64": "<c8",
    "complex128": "<c16", "bfloat16": "bfloat16",
}
"""The types of the elements of tensors, as NumPy writes them."""

_FORMATS = {
    "b": "i", "B": "u", "h": "i", "H": "u", "i": "i", "I": "u", "l": "i", "L": "u", "q": "i", "Q": "u", "e": "f",
    "f": "f", "d": "f", "?": "b",
}
"""The kinds of the elements of buffers, in NumPy's letters."""

_filling: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
"""The memory of arrays of `empty`, by its address. It is found so in an array, a tensor or a buffer of any library."""

_at_fork: weakref.WeakSet[Memory] = weakref.WeakSet()
"""All memory that a child of `fork` does not inherit: unsealed memory, and memory that was unsealed once."""


def copy_at_fork(memory: Memory) -> None:
    """Has each child of `fork` make a copy of unsealed memory, as `Memory(size)` makes it."""
    _at_fork.add(memory)


def _copy_in_child() -> None:
    for memory in list(_at_fork):
        memory.copy_in_child()


os.register_at_fork(after_in_child=_copy_in_child)


class Parts(NamedTuple):
    """The parts of an array in a message. The native part of the package reads the fields by their position."""

    dtype: str
    shape: tuple[int, ...]
    order: str
    data: bytes | memoryview | Region
    offset: int = 0
    """The place of the first byte in the region."""
    copied: bool = False
    """Whether the bytes were copied into the region."""
    origin: str = ""
    """The kind of the array: nothing for NumPy's, "torch", "arrow.table" or "arrow.batch"."""


@dataclass(frozen=True, eq=False)
class Array:
    """A received array, where NumPy is not installed. The array can be sent on, and given to any library with
    DLPack."""

    dtype: str
    """The type of the elements, as NumPy writes it: `"<f8"` is a float of 8 bytes."""
    shape: tuple[int, ...]
    order: str
    """The order of the elements in memory: `"C"` or `"F"`."""
    memory: Memory | bytearray | bytes
    """The bytes: a buffer that only this process has, unless the connection trusts its peer."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns the device: the memory of the processor."""
        return 1, 0

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Returns a capsule of DLPack over the memory, from which another library makes its own array."""
        if stream is not None or (dl_device is not None and tuple(dl_device) != (1, 0)):
            raise BufferError("the array is in the memory of the processor: it goes to no other device")
        memory: Any = bytearray(self.memory) if copy else self.memory
        kinds = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
        if self.dtype == "bfloat16":
            code, size = 4, 2
        elif self.dtype[0] != ">" and self.dtype[1] in kinds:
            code, size = kinds[self.dtype[1]], int(self.dtype[2:])
        else:
            raise BufferError(f"DLPack has no elements of the type {self.dtype}")
        versioned = max_version is not None and max_version[0] >= 1
        return dlpack(memory, code, size, self.shape, self.order == "F", versioned, bool(copy))


def empty(
    shape: int | tuple[int, ...],
    dtype: numpy.typing.DTypeLike = "f8",
    *,
    order: str = "C",
    huge_pages: bool = False,
    seal: bool = False,
) -> numpy.ndarray[Any, Any]:
    """Returns a NumPy array of zeros, for a `send` without a copy.

    The first `send` of an array above 4 MiB, or with `seal` or `huge_pages`, makes no copy, but seals the memory in
    place. The array stays valid and writable, but later writes to the array are private to this process. Such an array
    needs least memory, since sender and receiver have one. Smaller arrays are copied, in memory that is used again,
    which is faster. So is the `send` of an ordinary array up to 64 MiB.

    `huge_pages` requests huge pages (`MADV_HUGEPAGE`). Shared memory gets them only if the administrator has set
    `/sys/kernel/mm/transparent_hugepage/shmem_enabled` to `advise`, `within_size` or `always`.
    """
    import numpy

    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"{dtype}: an array of Python objects cannot be shared")
    template = numpy.broadcast_to(numpy.empty((), dtype), shape)
    if template.nbytes == 0:
        return numpy.empty(shape, dtype, order=_order(order))
    is_copied = template.nbytes <= EMPTY_COPIED and not (seal or huge_pages)
    memory: Any = zeroed(template.nbytes) if is_copied else filling(template.nbytes, huge_pages)
    return numpy.ndarray(shape, dtype, memory, order=_order(order))


def filling(size: int, huge_pages: bool = False) -> Memory:
    """Returns memory. The first send of the whole memory makes no copy."""
    memory = Memory(size, huge_pages=huge_pages)
    _filling[memory.address] = memory
    return memory


def of_region(
    region: Region, shape: int | tuple[int, ...], dtype: Any, offset: int, order: str, trust: bool
) -> numpy.ndarray[Any, Any]:
    """Returns an array over the bytes of a region."""
    import numpy

    if numpy.dtype(dtype).hasobject:
        raise TypeError(f"{dtype}: an array of Python objects cannot be in a region")
    if region.access != "sealed" and not trust:
        raise NotSealed(
            "another process may write to the region while NumPy computes with it, and lead NumPy out of bounds: seal "
            "the region first, or say trust=True if you trust every process that has it"
        )
    buffer: Any = region if region.access == "sealed" else region.trusted()
    array: numpy.ndarray[Any, Any] = numpy.ndarray(shape, dtype, buffer, offset, order=_order(order))
    if not trust:
        _check_values(array)
    return array


def _order(order: str) -> Any:
    if order not in ("C", "F"):
        raise ValueError(f"order is 'C' or 'F', not {order!r}")
    return order


class Reservation:
    """Memory to fill in place; `send` makes a message of the memory. A block of `with` without `send` sends nothing."""

    def __init__(self, connection: Connection, nbytes: int, dtype: Any = None, seal: bool = False) -> None:
        self._connection = connection
        self._sent = False
        self._plain: Any = zeroed(nbytes) if nbytes <= COPIED and not seal else filling(nbytes)
        self.array: Any = None
        """The memory as an array of one dimension; `None` without a type of elements."""
        if dtype is not None:
            import numpy

            kind = numpy.dtype(dtype)
            # A buffer object: stubs of some versions of NumPy name only a few types.
            memory: Any = self._plain
            self.array = numpy.ndarray((nbytes // kind.itemsize,), kind, memory)

    @property
    def buffer(self) -> memoryview:
        """The memory. It stays valid after `send`; later writes are private to this process."""
        return memoryview(self._plain)

    def send(self, *, timeout: float | None = None) -> None:
        """Sends the memory: the array as an object, without a copy; or else the bytes."""
        if self._sent:
            raise Closed("this reservation was sent or cancelled before")
        if self.array is None:
            self._connection.send_bytes(self._plain, timeout=timeout)
        else:
            self._connection.send(self.array, timeout=timeout)
        self._sent = True

    def cancel(self) -> None:
        """Gives the memory back without a send."""
        self._sent = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()


def parts(value: Any, by_region: bool, taken: int, room: int = sys.maxsize) -> Parts | str | None:
    """Returns the parts of an array for a message with `taken` bytes so far and room for `room` more. Returns a text
    with the reason if the array cannot be sent, and `None` if the object is not an array. Many bytes become a region
    if `by_region` is set."""
    copied = max(min(COPIED - taken, room - HEAD), INLINE)
    if type(value) is Array:
        data = bytes(value.memory)
        many = by_region and len(data) > INLINE
        return Parts(value.dtype, tuple(value.shape), value.order, Region.sealed(data) if many else data, copied=many)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _obstacle(numpy, value) or _of_array(value, by_region, copied)
    if numpy is not None and isinstance(value, numpy.generic):
        # A number, a time or the like travels as an array without dimensions.
        array = numpy.asarray(value)
        return _obstacle(numpy, array) or _of_array(array, by_region, copied)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value, by_region, copied)
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(value, (arrow.Table, arrow.RecordBatch)):
        return _of_table(arrow, value, by_region)
    if hasattr(value, "__dlpack__"):
        return _of_dlpack(value, by_region, copied)
    return _of_buffer(value, by_region)


def number(value: Any) -> bool | int | float | None:
    """Returns the plain number of a number of NumPy; `None` for any other object."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.integer, numpy.floating, numpy.bool_)):
        return None
    if isinstance(value, numpy.timedelta64):
        return None
    plain = value.item()
    return plain if isinstance(plain, (int, float)) else None


def _of_array(array: Any, by_region: bool, copied: int, dtype: str = "", origin: str = "") -> Parts:
    _memory(array)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    dtype = dtype or array.dtype.str
    if not by_region or array.nbytes <= (INLINE if _unsealed(array) else copied):
        return Parts(dtype, array.shape, order, _bytes(array, order), origin=origin)
    kept = _kept(array)
    if kept is not None:
        return Parts(dtype, array.shape, order, *kept, origin=origin)
    region, copied = _sealed(array, order)
    return Parts(dtype, array.shape, order, region, 0, copied, origin)


def _bytes(array: Any, order: str) -> bytes | memoryview:
    """Returns the bytes of an array: a view of the bytes, if they are many and contiguous."""
    if array.nbytes <= INLINE or not array.flags.forc:
        data: bytes = array.tobytes(_order(order))
        return data
    flat = array if order == "C" else array.T
    return memoryview(flat.reshape(-1).view("u1"))


def _of_tensor(torch: Any, tensor: Any, by_region: bool, copied: int) -> Parts | str:
    if tensor.device.type != "cpu":
        return f"a tensor on {tensor.device}: send t.cpu()"
    if tensor.layout is not torch.strided:
        return f"a tensor of the layout {tensor.layout}: send t.to_dense()"
    dtype = _TORCH.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        return f"a tensor of {tensor.dtype}: send a view of it with a plain type of elements"
    if tensor.ndim > _DIMENSIONS:
        return f"a tensor of {tensor.ndim} dimensions: at most {_DIMENSIONS} travel"
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    array = (tensor.view(torch.int16) if dtype == "bfloat16" else tensor).numpy()
    return _of_array(array, by_region, copied, dtype, "torch")


def _of_table(arrow: Any, table: Any, by_region: bool) -> Parts:
    """Writes a table as a stream of Arrow's IPC format: once to learn the size, once into the memory."""
    batches = [table] if isinstance(table, arrow.RecordBatch) else None
    origin = "arrow.table" if batches is None else "arrow.batch"

    def write(sink: Any) -> Any:
        with arrow.ipc.new_stream(sink, table.schema) as writer:
            if batches is None:
                writer.write_table(table)
            else:
                writer.write_batch(table)
        return sink

    size: int = write(arrow.MockOutputStream()).size()
    if not by_region or size <= INLINE:
        stream = write(arrow.BufferOutputStream()).getvalue().to_pybytes()
        return Parts("|u1", (size,), "C", stream, origin=origin)
    memory = Memory(size)
    with arrow.FixedSizeBufferWriter(arrow.py_buffer(memory)) as sink:
        write(sink)
    region = memory.seal()
    assert region is not None
    return Parts("|u1", (size,), "C", region, 0, True, origin)


def _of_dlpack(value: Any, by_region: bool, copied: int) -> Parts | str | None:
    """Returns the parts of an array of another library."""
    kind, number = value.__dlpack_device__()
    if kind != 1:
        return f"an array of {type(value)} on device {int(kind)}.{number} of DLPack: send a copy on the CPU"
    try:
        import numpy

        array = numpy.from_dlpack(value)
    except (ImportError, BufferError, RuntimeError, TypeError) as error:
        return f"an array of {type(value)} that NumPy cannot take by DLPack: {error}"
    return _obstacle(numpy, array) or _of_array(array, by_region, copied)


def _of_buffer(value: Any, by_region: bool) -> Parts | None:
    """Returns the parts of a buffer of numbers; `None` for a buffer of bytes, and for other objects."""
    if isinstance(value, (Memory, Region)):
        return None
    try:
        view = memoryview(value)
    except TypeError:
        return None
    with view:
        kind = _FORMATS.get(view.format.lstrip("@<="))
        if kind is None or view.format == "B" or view.ndim > _DIMENSIONS:
            return None
        dtype = f"{'|' if view.itemsize == 1 else '<'}{kind}{view.itemsize}"
        if sys.byteorder == "big":
            return None
        if not by_region or view.nbytes <= INLINE or not view.c_contiguous:
            return Parts(dtype, view.shape or (), "C", view.tobytes())
        return Parts(dtype, view.shape or (), "C", sealed_buffer(view.cast("B")), 0, True)


def _obstacle(numpy: Any, array: Any) -> str | None:
    """Returns the reason why an array cannot be sent; `None` for a sendable array."""
    dtype = array.dtype
    if type(array) not in (numpy.ndarray, numpy.memmap):
        return f"{type(array)}: send numpy.asarray of it"
    if dtype.hasobject:
        return f"an array of {dtype}: only elements without references travel"
    long = dtype.kind in "fc" and dtype.itemsize > {"f": 8, "c": 16}[dtype.kind]
    if dtype.kind not in _KINDS or dtype.itemsize == 0 or long or numpy.dtype(dtype.str) != dtype:
        return f"an array of {dtype}: send a view of it with a plain type of elements"
    if array.ndim > _DIMENSIONS:
        return f"an array of {array.ndim} dimensions: at most {_DIMENSIONS} travel"
    return None


def _sealed(array: Any, order: str) -> tuple[Region, bool]:
    """Returns a sealed region with the bytes of an array, and whether the bytes were copied. If the array is a whole,
    unsealed `Memory`, the region is the array's own memory."""
    memory = _unsealed(array)
    if memory is not None:
        try:
            region = memory.seal()
            _filling.pop(memory.address, None)
        except StillMapped: # A starting child process still has the memory.
            region = None
        if region is not None:
            return region, False
    import numpy

    own = Memory(array.nbytes)
    buffer: Any = own
    copy: Any = numpy.ndarray(array.shape, array.dtype, buffer, order=_order(order))
    copy[...] = array
    region = own.seal()
    assert region is not None
    return region, True


def _unsealed(array: Any) -> Memory | None:
    """Returns the memory of an array that can be sealed in place: a whole memory that no send has sealed."""
    if not _filling or array.nbytes <= INLINE or not array.flags.forc:
        return None
    memory = _filling.get(array.ctypes.data)
    return memory if memory is not None and len(memory) == array.nbytes else None


def _kept(array: Any) -> tuple[Region, int] | None:
    """Returns the region with all of an array, and the array's place there, if the array was received read-only or is
    in memory shared by processes. A part of such an array is copied, so that the peer sees only the part."""
    memory = _memory(array)
    if memory is None or array.nbytes != len(memory) or array.ctypes.data != memory.address or not array.flags.forc:
        return None
    return memory.region()


def sealed_buffer(buffer: memoryview) -> Region:
    """Returns a sealed region with the bytes of a contiguous buffer: the own memory of a whole, unsealed `Memory`,
    otherwise a copy."""
    owner: Any = buffer.obj
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(owner) is numpy.ndarray and owner.flags.forc and owner.nbytes == buffer.nbytes:
        return _sealed(owner, "F" if owner.flags.f_contiguous and not owner.flags.c_contiguous else "C")[0]
    memory = Memory(buffer.nbytes)
    view = memoryview(memory)
    if numpy is None:
        view[:] = buffer
    else:
        # Other threads run during this copy.
        numpy.frombuffer(view, "u1")[:] = numpy.frombuffer(buffer, "u1")
    region = memory.seal()
    assert region is not None
    return region


def reduce_tensor(torch: Any, tensor: Any) -> Any:
    """Returns how to make a tensor from the buffer of an array, for `pickle`; `NotImplemented` for a tensor other than
    a plain array in the memory of the processor."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return NotImplemented
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _TORCH:
        return NotImplemented
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _tensor, (flat, dtype, tuple(tensor.shape), tensor.requires_grad)


def _tensor(flat: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    torch = importlib.import_module("torch")
    tensor = torch.from_numpy(flat).view(getattr(torch, dtype)).reshape(shape)
    return tensor.requires_grad_(requires_grad)


def _memory(array: Any) -> Memory | None:
    """Returns the memory of an array; `None` for an array in memory of another kind. Raises `BufferError` in a child of
    `fork` that could not copy the memory."""
    base = array.base
    while type(base) is type(array):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, Memory):
        return None
    memoryview(base).release()
    return base


def made(
    dtype: str,
    shape: tuple[int, ...],
    order: str,
    memory: Memory | bytearray | bytes,
    origin: str = "",
    trust: bool = False,
) -> Any:
    """Returns the array of received parts. The sizes were checked before."""
    _order(order)
    if origin.startswith("arrow."):
        table = _table(dtype, shape, memory, origin, trust)
        if table is not None:
            return table
    numpy = _imported("numpy")
    if numpy is None:
        return Array(dtype, shape, order, memory)
    torch = _library("torch", trust) if origin == "torch" else None
    plain = dtype
    if dtype == "bfloat16":
        if torch is None and _library("ml_dtypes", trust) is None:
            return Array(dtype, shape, order, memory)
        plain = "<i2" if torch is not None else "bfloat16"
    array = _of_memory(numpy, plain, shape, order, memory)
    if torch is None:
        return array
    if _TORCH_TYPES.get(dtype) is None:
        raise ValueError(f"a tensor has no elements of the type {dtype}")
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


_TORCH_TYPES = {plain: name for name, plain in _TORCH.items()}


def _library(name: str, trust: bool) -> Any:
    """Returns a module if the program has imported it, otherwise `None`. A trusted peer can also have an installed
    module imported."""
    return _imported(name) if trust or name in sys.modules else None


@functools.cache
def _imported(name: str) -> Any:
    """Returns a module if it is installed, otherwise `None`. The first loading may take a moment."""
    try:
        return __import__(name)
    except Exception: # Code of the module may raise any exception.
        return None


def _of_memory(numpy: Any, dtype: str, shape: tuple[int, ...], order: str, memory: Memory | bytearray | bytes) -> Any:
    if isinstance(memory, Memory):
        array: Any = numpy.ndarray(shape, dtype, memory, order=_order(order))
    elif not memory:
        array = numpy.empty(shape, dtype, order=_order(order))
    else:
        array = numpy.frombuffer(memory, dtype).reshape(shape, order=_order(order))
    _check_values(array)
    return array


def _check_values(array: Any) -> None:
    """Raises `ValueError` if a value of an array is outside of its type. NumPy relies on the values without checking
    them, and writes out of bounds for a text with a character above U+10FFFF."""
    dtype = array.dtype
    if array.size == 0:
        return
    if dtype.names is not None:
        for name in dtype.names:
            _check_values(array[name])
    elif dtype.kind == "b" and array.view("u1").max() > 1:
        raise ValueError("a truth value is neither 0 nor 1")
    elif dtype.kind == "U" and array.view((f"{dtype.byteorder}u4", (dtype.itemsize // 4,))).max() > sys.maxunicode:
        raise ValueError("a text has a character above U+10FFFF")


def _table(dtype: str, shape: tuple[int, ...], memory: Any, origin: str, trust: bool) -> Any:
    """Reads a table from a stream of Arrow's IPC format, without a copy of the columns. Returns `None` where Arrow is
    not imported. If the peer is not trusted, also returns `None` for a version of Arrow that could run code of the
    peer, and refuses a stream with compressed columns: their size is not limited by the size of the stream."""
    arrow = _library("pyarrow", trust)
    if arrow is None or not (trust or _is_safe(arrow)):
        return None
    if dtype != "|u1" or len(shape) != 1 or math.prod(shape) == 0 or origin not in ("arrow.table", "arrow.batch"):
        raise ValueError("a table is no stream of bytes")
    try:
        if not trust:
            for message in arrow.ipc.MessageReader.open_stream(arrow.py_buffer(memory)):
                if _is_compressed(bytes(message.metadata)):
                    raise ValueError("a table is compressed, so it could have any size")
        with arrow.ipc.open_stream(arrow.py_buffer(memory)) as reader:
            if origin == "arrow.table":
                table = reader.read_all()
            else:
                table = reader.read_next_batch()
        if not trust:
            # The offsets of columns are used without a look at each.
            table.validate(full=True)
    except (arrow.ArrowException, OSError, StopIteration, struct.error, IndexError) as error:
        raise ValueError(f"a table that Arrow refuses: {error}") from None
    return table


def _is_safe(arrow: Any) -> bool:
    """Returns whether Arrow opens a stream without running code of its writer. Before version 14.0.1, Arrow unpickles
    the metadata of extension types (CVE-2023-47248)."""
    version = [int(part) for part in re.findall(r"\d+", arrow.__version__)[:3]]
    return version >= [14, 0, 1]


def _is_compressed(metadata: bytes) -> bool:
    """Returns whether the metadata of a message of Arrow's IPC format, which Arrow has verified, say that the buffers
    of the message are compressed. The numbers of the fields are the numbers of Arrow's files Message.fbs and
    Schema.fbs."""
    if b"ARROW:experimental_compression" in metadata:
        # The mark of compression before version 5 of the metadata.
        return True

    def field(table: int, number: int) -> int:
        """Returns the place of a field of a table, or 0 if the table has no such field."""
        fields = table - _number("<i", metadata, table)
        at = 4 + 2 * number
        if at + 2 > _number("<H", metadata, fields):
            return 0
        offset = _number("<H", metadata, fields + at)
        return table + offset if offset else 0

    def table_at(place: int) -> int:
        return place + _number("<I", metadata, place)

    message = table_at(0)
    kind, header = field(message, 1), field(message, 2)
    if not kind or not header:
        return False
    dictionary, batch = 2, 3
    number = metadata[kind]
    if number not in (dictionary, batch):
        return False
    of_batch = table_at(header)
    if number == dictionary:
        data = field(of_batch, 1)
        if not data:
            return False
        of_batch = table_at(data)
    return field(of_batch, 3) != 0


def _number(kind: str, data: bytes, at: int) -> int:
    if at < 0:
        raise ValueError("an offset is beyond the metadata of a table")
    number: int = struct.unpack_from(kind, data, at)[0]
    return number
