//! Access to the memory of callers.
//!
//! Only this module reads and writes through a caller's pointers. The module detects a null pointer, and needs no
//! alignment. As in any C function, a pointer to missing memory is the caller's fault and cannot be detected. The
//! pieces of memory may overlap: no function here holds a reference to one piece while the function writes another.
//! The only exception is the buffer for a received message, while no other memory is accessed.

use std::marker::PhantomData;

use crate::status::{Result, Status};

/// An array of `len` values of the caller, to be read.
pub(crate) struct In<'a, T> {
    pointer: *const T,
    len: usize,
    caller: PhantomData<&'a T>,
}

/// An array of `len` values of the caller, to be written and read.
pub(crate) struct Out<'a, T> {
    pointer: *mut T,
    len: usize,
    caller: PhantomData<&'a T>,
}

impl<T> Clone for In<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<'_, T> {}
impl<T> Clone for Out<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<'_, T> {}

impl<'a, T: Copy> In<'a, T> {
    /// Makes an array of `len` values at a pointer of the caller, to be read.
    ///
    /// # Safety
    /// The pointer is null, or `len` values can be read there for `'a`.
    #[inline]
    pub(crate) unsafe fn new(pointer: *const T, len: usize) -> Self {
        Self { pointer, len, caller: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Checks that the values are accessible, as far as detectable.
    ///
    /// # Errors
    /// `INVALID_ARGS` if the pointer is null and the length is not 0.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.pointer.is_null() && self.len > 0 { Err(Status::INVALID_ARGS) } else { Ok(()) }
    }

    /// Reads the value at `index`. Panics if the index is out of range or the pointer is null.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> T {
        assert!(index < self.len && !self.pointer.is_null());
        // SAFETY: the value is inside of the array, and the pointer is not null. So the value can be read by the
        // promise of `new`.
        unsafe { self.pointer.add(index).read_unaligned() }
    }

    /// Returns an iterator over all values.
    ///
    /// # Errors
    /// `INVALID_ARGS` if the pointer is null and the length is not 0.
    #[inline]
    pub(crate) fn values(&self) -> Result<impl Iterator<Item = T> + use<'a, T>> {
        self.check()?;
        let Self { pointer, len, .. } = *self;
        // SAFETY: the value is inside of the array, and the pointer is not null if there is one. So the value can be
        // read by the promise of `new`.
        Ok((0..len).map(move |index| unsafe { pointer.add(index).read_unaligned() }))
    }

    /// Returns all values as a slice of another type of equal size. Returns `None` if the pointer is null or not
    /// aligned for that type.
    ///
    /// # Safety
    /// Each value is a valid value of that type as well.
    #[inline]
    pub(crate) unsafe fn as_slice_of<U>(&self) -> Option<&'a [U]> {
        const { assert!(size_of::<T>() == size_of::<U>()) }
        if self.len == 0 {
            return Some(&[]);
        }
        let pointer = self.pointer.cast::<U>();
        if pointer.is_null() || !pointer.is_aligned() {
            return None;
        }
        // SAFETY: the pointer is not null, so the values can be read by the promise of `new`. It is aligned, and the
        // values are valid by the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(pointer, self.len) })
    }

    /// Returns an array of `len` values of another type at the address of this array.
    pub(crate) fn cast<U: Copy>(&self, len: usize) -> In<'a, U> {
        In { pointer: self.pointer.cast(), len, caller: PhantomData }
    }
}

impl<'a> In<'a, u8> {
    /// Returns the bytes as a slice.
    ///
    /// # Errors
    /// `INVALID_ARGS` if the pointer is null and the length is not 0.
    #[inline]
    pub(crate) fn bytes(&self) -> Result<&'a [u8]> {
        self.check()?;
        if self.len == 0 {
            return Ok(&[]);
        }
        // SAFETY: the pointer is not null, so the bytes can be read by the promise of `new`. If the caller changes
        // them meanwhile, the message has the value of each byte at some moment.
        Ok(unsafe { std::slice::from_raw_parts(self.pointer, self.len) })
    }
}

impl<'a, T: Copy> Out<'a, T> {
    /// Makes an array of `len` values at a pointer of the caller, to be written.
    ///
    /// # Safety
    /// The pointer is null, or `len` values can be written there for `'a`.
    #[inline]
    pub(crate) unsafe fn new(pointer: *mut T, len: usize) -> Self {
        Self { pointer, len, caller: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the pointer is null.
    #[inline]
    pub(crate) fn is_null(&self) -> bool {
        self.pointer.is_null()
    }

    /// Checks that the places are accessible, as far as detectable.
    ///
    /// # Errors
    /// `INVALID_ARGS` if the pointer is null and the length is not 0.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_null() && self.len > 0 { Err(Status::INVALID_ARGS) } else { Ok(()) }
    }

    /// Writes the value at `index`. Panics if the index is out of range or the pointer is null.
    #[inline]
    pub(crate) fn set(&self, index: usize, value: T) {
        assert!(index < self.len && !self.pointer.is_null());
        // SAFETY: the place is inside of the array, and the pointer is not null. So it can be written by the promise of
        // `new`.
        unsafe { self.pointer.add(index).write_unaligned(value) }
    }

    /// Writes the first value, if the pointer is not null.
    #[inline]
    pub(crate) fn set_if_wanted(&self, value: T) {
        if !self.is_null() {
            self.set(0, value);
        }
    }

    /// Reads the value at `index`, which the caller has set. Panics if the index is out of range or the pointer is
    /// null.
    pub(crate) fn get(&self, index: usize) -> T {
        assert!(index < self.len && !self.pointer.is_null());
        // SAFETY: the place is inside of the array, and the pointer is not null. C code that passes a pointer for
        // reading and writing has set the value.
        unsafe { self.pointer.add(index).read_unaligned() }
    }
}

impl Out<'_, u8> {
    /// Returns at most `limit` bytes of the buffer; an empty slice if the pointer is null.
    #[inline]
    pub(crate) fn buffer(&mut self, limit: usize) -> &mut [u8] {
        if self.is_null() {
            return &mut [];
        }
        // SAFETY: the pointer is not null, so the buffer can be written by the promise of `new`. It may be
        // uninitialised, as code of other languages may leave it; users of this slice only write to it. No other memory
        // of the caller is accessed meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len.min(limit)) }
    }

    /// Copies bytes to the front of the buffer.
    ///
    /// # Errors
    /// `INVALID_ARGS` if the pointer is null and there are bytes.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.is_null() {
            return Err(Status::INVALID_ARGS);
        }
        self.buffer(bytes.len()).copy_from_slice(bytes);
        Ok(())
    }
}
