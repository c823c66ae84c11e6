//! Arguments as C gives them: looked at before they are believed.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::status::Failure;

/// What a pointer points to.
///
/// # Safety
/// It is `NULL`, or points to one of these, which stays as long as the call.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, what: &'static str) -> Result<&'a T, Failure> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or(Failure::Invalid(what))
}

/// Where a result goes. It is written to at once, so that it has a value whatever happens.
///
/// # Safety
/// It is `NULL`, or the caller's to write to.
pub(crate) unsafe fn out<'a, T>(pointer: *mut T, at_first: T, what: &'static str) -> Result<&'a mut T, Failure> {
    if pointer.is_null() {
        return Err(Failure::Invalid(what));
    }
    // SAFETY: as the caller says; it may be uninitialised before.
    unsafe {
        pointer.write(at_first);
        Ok(&mut *pointer)
    }
}

/// Where a result goes that may lie in memory which is used for something else as well before it is there.
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// As [`out`].
    ///
    /// # Safety
    /// It is `NULL`, or the caller's to write to as long as this is used.
    pub(crate) unsafe fn new(pointer: *mut T, at_first: T, what: &'static str) -> Result<Self, Failure> {
        if pointer.is_null() {
            return Err(Failure::Invalid(what));
        }
        let place = Self(pointer);
        place.set(at_first);
        Ok(place)
    }

    pub(crate) fn set(&self, value: T) {
        // SAFETY: the promise of `new`.
        unsafe { self.0.write(value) }
    }
}

/// Bytes to read.
///
/// # Safety
/// There are so many, or `len` is 0.
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
    // SAFETY: as the caller says.
    Ok(unsafe { std::slice::from_raw_parts(bytes, len) })
}

/// A buffer to write to.
///
/// # Safety
/// It has so many bytes, which nobody else uses, or `len` is 0.
#[inline]
pub(crate) unsafe fn buffer<'a>(bytes: *mut u8, len: usize) -> Result<&'a mut [u8], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    if bytes.is_null() {
        return Err(Failure::Invalid("the buffer is NULL, but its size is not 0"));
    }
    // More cannot be there; who says "as much as there is" means it.
    let len = len.min(isize::MAX as usize);
    // SAFETY: as the caller says. What C left uninitialised is memory with some content from here.
    Ok(unsafe { std::slice::from_raw_parts_mut(bytes, len) })
}

/// So many things one after the other.
///
/// # Safety
/// There are so many, or `count` is 0.
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
    // SAFETY: as the caller says.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// A text.
///
/// # Safety
/// It is `NULL`, or ends with a zero.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: as the caller says.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// A path.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Option<&'a Path> {
    // SAFETY: as the caller says.
    unsafe { text(path) }.map(|path| Path::new(OsStr::from_bytes(path.to_bytes())))
}
