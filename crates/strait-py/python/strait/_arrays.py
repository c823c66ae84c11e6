"""Arrays: how they become parts of a message, and what is made of received parts."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._errors import StillMapped
from ._native import Memory, Region

if TYPE_CHECKING:
    import numpy
    import numpy.typing

INLINE = 1 << 16
"""The size in bytes up to which an array travels in the bytes of its message."""

_KINDS = frozenset("biufcmMSUV")
_DIMENSIONS = 32


@dataclass(frozen=True, eq=False)
class Array:
    """A received array, where NumPy is not installed. It can be sent on."""

    dtype: str
    """The type of the elements, as NumPy writes it: `"<f8"` is a float of 8 bytes."""
    shape: tuple[int, ...]
    order: str
    """The order of the elements in memory: `"C"` or `"F"`."""
    memory: Memory | bytearray
    """The bytes: a writable buffer that only this process has."""


def empty(
    shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "f8", *, order: str = "C"
) -> numpy.ndarray[Any, Any]:
    """Returns a NumPy array of zeros that `send` sends without a copy, the first time that it is sent.

    `send` seals the memory where it is. The array stays valid and writable, but what is written to it afterwards is
    private to this process.
    """
    import numpy

    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"{dtype}: an array of Python objects cannot be shared")
    template = numpy.broadcast_to(numpy.empty((), dtype), shape)
    if template.nbytes == 0:
        return numpy.empty(shape, dtype, order=_order(order))
    memory: Any = Memory(template.nbytes)
    return numpy.ndarray(shape, dtype, memory, order=_order(order))


def _order(order: str) -> Any:
    if order not in ("C", "F"):
        raise ValueError(f"order is 'C' or 'F', not {order!r}")
    return order


def parts(value: Any, by_region: bool) -> tuple[str, tuple[int, ...], str, bytes | Region] | str | None:
    """Returns the type, the shape, the order and the bytes of an array. Returns text that says why the array cannot be
    sent, and `None` for what is no array. The bytes are a region if `by_region` and they are many."""
    if type(value) is Array:
        data = bytes(value.memory)
        many = by_region and len(data) > INLINE
        return value.dtype, tuple(value.shape), value.order, Region.sealed(data) if many else data
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return None
    why = _obstacle(numpy, value)
    if why is not None:
        return why
    _memory(value)
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    many = by_region and value.nbytes > INLINE
    return value.dtype.str, value.shape, order, _sealed(value, order) if many else value.tobytes(_order(order))


def _obstacle(numpy: Any, array: Any) -> str | None:
    """Returns why an array cannot be sent; `None` if it can."""
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


def _sealed(array: Any, order: str) -> Region:
    """Returns a sealed region with the bytes of an array: its own memory if that is a whole `Memory` that was not
    sealed before, otherwise a copy."""
    memory = _memory(array)
    whole = memory is not None and array.nbytes == len(memory) and array.ctypes.data == memory.address
    if memory is not None and whole and array.flags.forc:
        try:
            region = memory.seal()
        except StillMapped:  # A child that is being started still has the memory.
            region = None
        if region is not None:
            return region
    copy: Any = empty(array.shape, array.dtype, order=order)
    copy[...] = array
    own: Memory = copy.base
    region = own.seal()
    assert region is not None
    return region


def sealed_buffer(buffer: memoryview) -> Region:
    """Returns a sealed region with the bytes of a contiguous buffer: its own memory if that is a whole `Memory` that was
    not sealed before, otherwise a copy."""
    owner: Any = buffer.obj
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(owner) is numpy.ndarray and owner.flags.forc:
        return _sealed(owner, "F" if owner.flags.f_contiguous and not owner.flags.c_contiguous else "C")
    memory = Memory(buffer.nbytes)
    view = memoryview(memory)
    if numpy is None:
        view[:] = buffer
    else:
        # This copy lets other threads run.
        numpy.frombuffer(view, "u1")[:] = numpy.frombuffer(buffer, "u1")
    region = memory.seal()
    assert region is not None
    return region


def reduce_tensor(torch: Any, tensor: Any) -> Any:
    """Returns how to make a tensor from the buffer of an array, for `pickle`; `NotImplemented` for a tensor that is no
    plain array in the memory of the processor."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return NotImplemented
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _tensor, (flat, dtype, shape, tensor.requires_grad)


def _tensor(flat: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch  # type: ignore[import-not-found, unused-ignore]

    tensor = torch.from_numpy(flat).view(getattr(torch, dtype)).reshape(shape)
    return tensor.requires_grad_(requires_grad)


def _memory(array: Any) -> Memory | None:
    """Returns the memory in which an array is; `None` for an array in memory of another kind. Raises `BufferError` in a
    child of `fork` that does not have the memory."""
    base = array.base
    while type(base) is type(array):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, Memory):
        return None
    memoryview(base).release()
    return base


def made(dtype: str, shape: tuple[int, ...], order: str, memory: Memory | bytearray) -> Any:
    """Returns the array of received parts, whose sizes were checked."""
    try:
        import numpy
    except ImportError:
        return Array(dtype, shape, order, memory)
    if isinstance(memory, Memory):
        buffer: Any = memory
        array: Any = numpy.ndarray(shape, dtype, buffer, order=_order(order))
    elif not memory:
        array = numpy.empty(shape, dtype, order=_order(order))
    else:
        array = numpy.frombuffer(memory, dtype).reshape(shape, order=_order(order))
    # NumPy counts on this where it does not look.
    if array.dtype.kind == "b" and array.size and array.view("u1").max() > 1:
        raise ValueError("a truth value is neither 0 nor 1")
    return array
