//! Arrays for other libraries, by DLPack: a capsule with a structure that describes the memory and its layout.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

/// The names of capsules that no library has taken yet.
const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// The flags of a versioned structure: the memory must not be written; the memory was copied for the taker alone.
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// `DLDevice`, of which 1 and 0 are the memory of the processor.
#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

/// `DLDataType`.
#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// The target of the pointers in a structure.
struct Kept {
    /// Keeps the memory.
    _buffer: PyBuffer<u8>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

fn free(context: *mut c_void) {
    // A taker may call the deleter in any thread. An interpreter that has ended keeps the memory.
    let freed = Python::try_attach(|_| {
        // SAFETY: `dlpack` has made the context by `Box::into_raw`, and a deleter is called once.
        drop(unsafe { Box::from_raw(context.cast::<Kept>()) });
    });
    let _ = freed;
}

unsafe extern "C" fn delete_plain(managed: *mut Managed) {
    // SAFETY: `dlpack` has made the structure by `Box::into_raw`, and its taker calls the deleter once.
    let managed = unsafe { Box::from_raw(managed) };
    free(managed.context);
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as in `delete_plain`.
    let managed = unsafe { Box::from_raw(managed) };
    free(managed.context);
}

/// Deletes the structure of a capsule that no library has taken: takers change the capsule's name.
unsafe extern "C" fn delete_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this function with the capsule, whose pointer has the type named by the capsule's
    // name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            delete_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// Returns a capsule of DLPack with an array in the memory of a buffer. `code` and `size` describe the elements.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the parts of an array, for the Python code of this package")]
pub(crate) fn dlpack<'py>(
    py: Python<'py>,
    memory: &Bound<'py, PyAny>,
    code: u8,
    size: u8,
    shape: Vec<i64>,
    by_columns: bool,
    versioned: bool,
    copied: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let buffer = PyBuffer::<u8>::get(memory)?;
    let elements =
        shape.iter().try_fold(i64::from(size), |product, len| if *len < 0 { None } else { product.checked_mul(*len) });
    if elements.and_then(|bytes| usize::try_from(bytes).ok()) != Some(buffer.len_bytes()) {
        return Err(PyValueError::new_err("the array has not as many bytes as its shape"));
    }
    if buffer.readonly() && !versioned {
        return Err(PyBufferError::new_err(
            "the memory is read-only, which only DLPack of version 1 can say: update the library that takes the array",
        ));
    }
    let mut strides = vec![1; shape.len()];
    let places: Vec<usize> = if by_columns { (0..shape.len()).collect() } else { (0..shape.len()).rev().collect() };
    let mut stride = 1_i64;
    for place in places {
        strides[place] = stride;
        stride = stride.saturating_mul(shape[place].max(1));
    }
    let dimensions = i32::try_from(shape.len())?;
    let data = buffer.buf_ptr();
    let flags = if buffer.readonly() { READ_ONLY } else { 0 } | if copied { IS_COPIED } else { 0 };
    let mut kept = Box::new(Kept { _buffer: buffer, shape, strides });
    let tensor = Tensor {
        data,
        device: Device { kind: 1, number: 0 },
        dimensions,
        dtype: DataType { code, bits: size.saturating_mul(8), lanes: 1 },
        shape: kept.shape.as_mut_ptr(),
        strides: kept.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(kept).cast();
    let (pointer, name): (*mut c_void, _) = if versioned {
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut Versioned));
        let managed = Versioned { version: [1, 0], context, deleter, flags, tensor };
        (Box::into_raw(Box::new(managed)).cast(), VERSIONED)
    } else {
        let deleter = Some(delete_plain as unsafe extern "C" fn(*mut Managed));
        (Box::into_raw(Box::new(Managed { tensor, context, deleter })).cast(), PLAIN)
    };
    // SAFETY: the pointer is not null, the name lives as long as the program, and the destructor fits both.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(delete_capsule)) };
    match NonNull::new(capsule) {
        // SAFETY: the call has returned a new reference.
        Some(capsule) => Ok(unsafe { Bound::from_owned_ptr(py, capsule.as_ptr()) }),
        None => Err(PyErr::fetch(py)),
    }
}
