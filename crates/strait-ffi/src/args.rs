//! Checks of arguments from C code.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::status::Failure;

/// Returns the object at `pointer`.
///
/// # Errors
/// [`Failure::Invalid`] with the text `what` if `pointer` is `NULL`.
///
/// # Safety
/// `pointer` is `NULL`, or points to a `T` that stays valid during the function call.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, what: &'static str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(Failure::Invalid(what))
}

/// Returns a reference through which a result is written. Writes `at_first` at once, so that the result has a value
/// also if the function fails.
///
/// # Errors
/// [`Failure::Invalid`] with the text `what` if `pointer` is `NULL`.
///
/// # Safety
/// `pointer` is `NULL`, or the caller may write a `T` to it during the function call.
pub(crate) unsafe fn out<'a, T>(pointer: *mut T, at_first: T, what: &'static str) -> Result<&'a mut T, Failure> {
    if pointer.is_null() {
        return Err(Failure::Invalid(what));
    }
    // SAFETY: the caller's promise; the memory may be uninitialised before.
    unsafe {
        pointer.write(at_first);
        Ok(&mut *pointer)
    }
}

/// A place for a result that may overlap other memory of the function call, such as a buffer.
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// Returns the place at `pointer`, and writes `at_first` there at once.
    ///
    /// # Errors
    /// [`Failure::Invalid`] with the text `what` if `pointer` is `NULL`.
    ///
    /// # Safety
    /// `pointer` is `NULL`, or the caller may write a `T` to it as long as the place is used.
    pub(crate) unsafe fn new(pointer: *mut T, at_first: T, what: &'static str) -> Result<Self, Failure> {
        if pointer.is_null() {
            return Err(Failure::Invalid(what));
        }
        let place = Self(pointer);
        place.set(at_first);
        Ok(place)
    }

    /// Writes the result.
    pub(crate) fn set(&self, value: T) {
        // SAFETY: the promise of `new`.
        unsafe { self.0.write(value) }
    }
}

/// Returns `len` bytes to read; an empty slice if `len` is 0.
///
/// # Errors
/// [`Failure::Invalid`] if `bytes` is `NULL` and `len` is not 0, or if `len` is more than memory can have.
///
/// # Safety
/// `bytes` points to `len` bytes that stay valid during the function call, or `len` is 0.
#[inline]
pub(crate) unsafe fn bytes<'a>(bytes: *const u8, len: usize) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if bytes.is_null() {
        return Err(Failure::Invalid("the bytes are NULL, but their number is not 0: give both"));
    }
    if len > isize::MAX as usize {
        return Err(Failure::Invalid("the number of bytes is larger than any memory"));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(bytes, len) })
}

/// Returns a buffer of `len` bytes to write to; an empty slice if `len` is 0. A larger `len` than memory can have
/// counts as the largest possible.
///
/// # Errors
/// [`Failure::Invalid`] if `bytes` is `NULL` and `len` is not 0.
///
/// # Safety
/// `bytes` points to a buffer of `len` bytes for this function call alone, or `len` is 0.
#[inline]
pub(crate) unsafe fn buffer<'a>(bytes: *mut u8, len: usize) -> Result<&'a mut [u8], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    if bytes.is_null() {
        return Err(Failure::Invalid("the buffer is NULL, but its size is not 0"));
    }
    // More bytes cannot be there; a caller that passes more means "as many as there are".
    let len = len.min(isize::MAX as usize);
    // SAFETY: the caller's promise. Bytes that C code left uninitialised count as bytes of unknown value.
    Ok(unsafe { std::slice::from_raw_parts_mut(bytes, len) })
}

/// Returns an array of `count` elements; an empty slice if `count` is 0.
///
/// # Errors
/// [`Failure::Invalid`] with the text `what` if `first` is `NULL` or not aligned, or `count` is more than `most`.
///
/// # Safety
/// `first` points to `count` elements that stay valid during the function call, or `count` is 0.
pub(crate) unsafe fn array<'a, T>(
    first: *const T,
    count: usize,
    most: usize,
    what: &'static str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || count > most || !first.is_aligned() {
        return Err(Failure::Invalid(what));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Returns the text at `text`; `None` if the pointer is `NULL`.
///
/// # Safety
/// `text` is `NULL`, or points to a text with a zero at the end.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Returns the path at `path`; `None` if the pointer is `NULL`.
///
/// # Safety
/// `path` is `NULL`, or points to a text with a zero at the end.
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Option<&'a Path> {
    // SAFETY: the caller's promise.
    unsafe { text(path) }.map(|path| Path::new(OsStr::from_bytes(path.to_bytes())))
}
