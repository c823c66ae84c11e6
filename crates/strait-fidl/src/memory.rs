//! The memory of values as bytes, and bytes as the memory of values: beside the calls of `strait-zx`, the only unsafe
//! code of this crate.

use std::fmt;
use std::io::IoSlice;
use std::ptr;

use crate::Layout;

/// Returns the bytes of the values; `None` if the values' memory is not their encoding.
#[inline]
pub(crate) fn bytes_of<T: Layout>(values: &[T]) -> Option<&[u8]> {
    if !T::COPYABLE || size_of::<T>() != T::SIZE {
        return None;
    }
    // SAFETY: the bytes are the memory of the slice, for as long as the slice is borrowed. `COPYABLE` promises that
    // each byte of a value is initialized, and no value of this crate's traits changes while borrowed.
    Some(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) })
}

/// Returns whether the encoding of a `T` is its memory, and any bytes are a valid `T`.
#[inline]
pub(crate) const fn is_any<T: Layout>() -> bool {
    T::COPYABLE && T::ANY_BITS && size_of::<T>() == T::SIZE
}

/// Returns the value with the given bytes as its memory; `None` if some sequence of bytes is no value of the type, or
/// the length is wrong.
#[inline]
pub(crate) fn value_of<T: Layout>(bytes: &[u8]) -> Option<T> {
    if !is_any::<T>() || bytes.len() != size_of::<T>() {
        return None;
    }
    // SAFETY: the length was checked, the read needs no alignment, and `ANY_BITS` promises that the bytes are a value.
    Some(unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// Returns the values with the given bytes as their memory, one after the other; `None` if some sequence of bytes is no
/// value of the type, or the length is no multiple of the size.
#[inline]
pub(crate) fn values_of<T: Layout>(bytes: &[u8]) -> Option<Vec<T>> {
    if !is_any::<T>() || size_of::<T>() == 0 || !bytes.len().is_multiple_of(size_of::<T>()) {
        return None;
    }
    let count = bytes.len() / size_of::<T>();
    let mut values: Vec<T> = Vec::with_capacity(count);
    // SAFETY: `values` has the capacity for `count` values, as many bytes as given; the memory is new, so nothing
    // overlaps. `ANY_BITS` promises that the bytes are values.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), values.as_mut_ptr().cast(), bytes.len());
        values.set_len(count);
    }
    Some(values)
}

/// The memory of a list of parts, kept by an encoder from one value to the next.
#[derive(Default)]
pub(crate) struct Parts(Vec<IoSlice<'static>>);

impl fmt::Debug for Parts {
    /// Prints no part: the memory of the parts may be gone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

impl Parts {
    /// Returns the list, empty.
    #[inline]
    pub(crate) fn start<'v>(&'v mut self) -> &'v mut Vec<IoSlice<'v>> {
        self.0.clear();
        let list: *mut Vec<IoSlice<'static>> = &mut self.0;
        // SAFETY: the types differ in a lifetime only. The list is borrowed as long as the new parts live, and no part
        // is read afterwards: only this function accesses the list, and empties the list first; a part has no
        // destructor.
        unsafe { &mut *list.cast::<Vec<IoSlice<'v>>>() }
    }
}
