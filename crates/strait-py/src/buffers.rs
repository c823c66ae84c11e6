//! Reuses the memory of arrays.
//!
//! The kernel clears each page at a process's first access, which takes longer than copying a page. So the buffers of
//! large arrays are retained, and reused once no array refers to them.

use std::cell::Cell;
use std::sync::Mutex;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::sync::lock;

/// The least and the greatest size in bytes of a kept buffer.
const KEPT: std::ops::RangeInclusive<usize> = 1 << 16..=4 << 20;
/// The greatest number of kept buffers.
const MOST: usize = 4;
/// The greatest capacity of the kept memory of messages.
const MOST_BYTES: usize = 8 << 20;

static BUFFERS: Mutex<Vec<Py<PyByteArray>>> = Mutex::new(Vec::new());

thread_local! {
    /// The memory of the last large message of this thread.
    static BYTES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Returns a buffer with these bytes and without another reference.
pub(crate) fn filled<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyByteArray> {
    match kept(py, bytes.len()) {
        Some(buffer) => {
            // SAFETY: only this function refers to the buffer, and no Python code runs meanwhile.
            #[allow(unsafe_code)]
            unsafe {
                buffer.as_bytes_mut().copy_from_slice(bytes);
            }
            buffer
        }
        None => keep(PyByteArray::new(py, bytes)),
    }
}

/// Returns a buffer of `size` zeros, to which no other object refers.
#[pyfunction]
pub(crate) fn zeroed(py: Python<'_>, size: usize) -> PyResult<Bound<'_, PyByteArray>> {
    match kept(py, size) {
        Some(buffer) => {
            // SAFETY: only this function refers to the buffer, and no Python code runs meanwhile.
            #[allow(unsafe_code)]
            unsafe {
                buffer.as_bytes_mut().fill(0);
            }
            Ok(buffer)
        }
        None => Ok(keep(PyByteArray::new_with(py, size, |_| Ok(()))?)),
    }
}

/// Returns a retained buffer of this size without any reference.
fn kept(py: Python<'_>, size: usize) -> Option<Bound<'_, PyByteArray>> {
    if !KEPT.contains(&size) {
        return None;
    }
    let buffers = lock(&BUFFERS);
    let unused = buffers.iter().find(|buffer| is_unused(buffer) && buffer.bind(py).len() == size)?;
    // The new reference is made under the lock, so that no other thread takes the buffer too.
    Some(unused.bind(py).clone())
}

/// Returns whether only the list of kept buffers refers to a buffer. Then no other thread can make a new reference.
fn is_unused(buffer: &Py<PyByteArray>) -> bool {
    // SAFETY: the object is alive, since the list refers to it.
    #[allow(unsafe_code)]
    let references = unsafe { ffi::Py_REFCNT(buffer.as_ptr()) };
    references == 1
}

/// Retains a new buffer for later. If all places are taken, replaces the oldest unused buffer.
fn keep(buffer: Bound<'_, PyByteArray>) -> Bound<'_, PyByteArray> {
    if KEPT.contains(&buffer.len()) {
        let mut buffers = lock(&BUFFERS);
        let unused = if buffers.len() < MOST { None } else { buffers.iter().position(is_unused) };
        let dropped = unused.map(|unused| buffers.remove(unused));
        if buffers.len() < MOST {
            buffers.push(buffer.clone().unbind());
        }
        drop(buffers);
        drop(dropped);
    }
    buffer
}

/// Returns empty memory for the bytes of a message.
pub(crate) fn bytes() -> Vec<u8> {
    BYTES.take()
}

/// If the memory of a message is large, retains it for the next message of this thread.
pub(crate) fn give_back(mut bytes: Vec<u8>) {
    if (*KEPT.start()..=MOST_BYTES).contains(&bytes.capacity()) {
        bytes.clear();
        BYTES.set(bytes);
    }
}
