//! Memory for the bytes of arrays and messages, used again.
//!
//! The kernel clears each page at a process's first access, which takes longer than copying a page. So the memory of
//! large arrays and large messages is kept.

use std::cell::Cell;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};

use crate::memory::Memory;
use crate::warm::{self, Warm};

/// The least and the greatest capacity in bytes of the kept memory of messages.
const KEPT: std::ops::RangeInclusive<usize> = warm::LEAST..=8 << 20;

thread_local! {
    /// The memory of the last large message of this thread.
    static BYTES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Returns a writable buffer of `size` bytes, to which no other object refers. `fill` writes all bytes; the bytes are
/// of an earlier array before. The interpreter lock is free meanwhile if there are many bytes.
pub(crate) fn filled<'py>(
    py: Python<'py>,
    size: usize,
    fill: impl FnOnce(&mut [u8]) + Send,
) -> PyResult<Bound<'py, PyAny>> {
    if size < warm::LEAST {
        let buffer = PyByteArray::new_with(py, size, |bytes| {
            fill(bytes);
            Ok(())
        });
        return Ok(buffer?.into_any());
    }
    of(py, py.detach(|| Warm::filled(size, fill)))
}

/// Returns a buffer of `size` zeros, to which no other object refers.
#[pyfunction]
pub(crate) fn zeroed(py: Python<'_>, size: usize) -> PyResult<Bound<'_, PyAny>> {
    if size < warm::LEAST {
        return Ok(PyByteArray::new_with(py, size, |_| Ok(()))?.into_any());
    }
    of(py, py.detach(|| Warm::zeroed(size)))
}

fn of(py: Python<'_>, warm: Option<Warm>) -> PyResult<Bound<'_, PyAny>> {
    let warm = warm.ok_or_else(|| PyMemoryError::new_err("there is no memory for an array"))?;
    Ok(Bound::new(py, Memory::warm(warm))?.into_any())
}

/// The least number of bytes that are copied without the interpreter lock. To release the lock for fewer would take as
/// long as the copy.
const MANY: usize = 1 << 16;

/// The begin of memory, for a thread without the interpreter lock.
#[derive(Clone, Copy)]
struct Begin<P>(P);

// SAFETY: an address. The code that reads or writes there says why it may.
#[allow(unsafe_code)]
unsafe impl<P> Send for Begin<P> {}

impl<P> Begin<P> {
    fn get(self) -> P {
        self.0
    }
}

/// Returns a new object of `len` bytes, and the begin of its bytes, which have no values yet.
fn unwritten(py: Python<'_>, len: usize) -> PyResult<(Bound<'_, PyBytes>, Begin<*mut u8>)> {
    let len = len.try_into()?;
    // SAFETY: without a source, the call returns a new object of `len` bytes, or raises an exception.
    #[allow(unsafe_code)]
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), len)) }?;
    // SAFETY: `made` is a `bytes` object.
    #[allow(unsafe_code)]
    let begin = unsafe { ffi::PyBytes_AsString(made.as_ptr()) }.cast();
    Ok((made.cast_into()?, Begin(begin)))
}

/// Calls `work` without the interpreter lock if the work is for many bytes.
fn unlocked<T: Send>(py: Python<'_>, len: usize, work: impl FnOnce() -> T + Send) -> T {
    if len < MANY { work() } else { py.detach(work) }
}

/// Returns a copy of `source`. The interpreter lock is free meanwhile if there are many bytes.
pub(crate) fn copied<'py>(py: Python<'py>, source: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let (made, begin) = unwritten(py, source.len())?;
    unlocked(py, source.len(), move || {
        // SAFETY: the new object has as many bytes as `source`, and no other thread knows the object yet.
        #[allow(unsafe_code)]
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), begin.get(), source.len());
        }
    });
    Ok(made)
}

/// Returns the bytes of `whole`, which goes. The interpreter lock is free meanwhile if there are many bytes.
pub(crate) fn taken<'py, T: AsRef<[u8]> + Send>(py: Python<'py>, whole: T) -> PyResult<Bound<'py, PyBytes>> {
    let made = copied(py, whole.as_ref());
    unlocked(py, whole.as_ref().len(), || drop(whole));
    made
}

/// Returns `len` bytes, written by `write` over zeros. The interpreter lock is free meanwhile if there are many bytes.
pub(crate) fn written<'py>(
    py: Python<'py>,
    len: usize,
    write: impl FnOnce(&mut [u8]) + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    let (made, begin) = unwritten(py, len)?;
    unlocked(py, len, move || {
        // SAFETY: the new object has `len` bytes, all written here first, and no other thread knows the object yet.
        #[allow(unsafe_code)]
        let bytes = unsafe {
            std::ptr::write_bytes(begin.get(), 0, len);
            std::slice::from_raw_parts_mut(begin.get(), len)
        };
        write(bytes);
    });
    Ok(made)
}

/// Returns a copy of the bytes of a buffer. The interpreter lock is free meanwhile if there are many bytes in a row.
pub(crate) fn snapshot<'py>(data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let view = PyMemoryView::from(data)?;
    let buffer = PyUntypedBuffer::get(&view)?;
    let (py, len) = (data.py(), buffer.len_bytes());
    if len < MANY || !buffer.is_c_contiguous() {
        return Ok(view.call_method0("tobytes")?.cast_into()?);
    }
    let (made, target) = unwritten(py, len)?;
    let source = Begin(buffer.buf_ptr().cast::<u8>().cast_const());
    unlocked(py, len, move || {
        // SAFETY: the buffer has `len` bytes in a row, and its owner neither moves nor frees them while `buffer` is
        // there. No reference to the bytes is made. A thread that writes to them meanwhile changes single bytes of the
        // copy, as if it had written before or after the call; each byte value is valid. The new object has `len`
        // bytes, and no other thread knows the object yet.
        #[allow(unsafe_code)]
        unsafe {
            std::ptr::copy_nonoverlapping(source.get(), target.get(), len);
        }
    });
    Ok(made)
}

/// Returns empty memory for the bytes of a message.
pub(crate) fn bytes() -> Vec<u8> {
    BYTES.take()
}

/// If the memory of a message is large, retains it for the next message of this thread.
pub(crate) fn give_back(mut bytes: Vec<u8>) {
    if KEPT.contains(&bytes.capacity()) {
        bytes.clear();
        BYTES.set(bytes);
    }
}
