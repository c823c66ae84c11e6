//! Memory for the bytes of arrays and messages, used again.
//!
//! The kernel clears each page at a process's first access, which takes longer than copying a page. So the memory of
//! large arrays and large messages is kept.

use std::cell::Cell;

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

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
