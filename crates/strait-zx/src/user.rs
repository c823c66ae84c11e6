//! What callers point to.
//!
//! The only place that reads and writes through a caller's pointers. A pointer may be null, which is found out, and need not be
//! aligned; memory that is not there cannot be found out in a library, and is the caller's fault as in any C function.
//! What is pointed to may overlap: nothing here holds a reference to one thing while another is written, except for the
//! buffer that a message is received into, and that alone.

use std::marker::PhantomData;

use crate::status::{Result, Status};

/// So many values to read.
pub(crate) struct In<'a, T> {
    pointer: *const T,
    len: usize,
    caller: PhantomData<&'a T>,
}

/// So many places to write to, and to read from.
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
    /// # Safety
    /// The pointer is null, or `len` values can be read there for `'a`.
    #[inline]
    pub(crate) unsafe fn new(pointer: *const T, len: usize) -> Self {
        Self { pointer, len, caller: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// That the values are there, as far as can be seen.
    ///
    /// # Errors
    /// `INVALID_ARGS` for a null pointer to more than nothing.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.pointer.is_null() && self.len > 0 { Err(Status::INVALID_ARGS) } else { Ok(()) }
    }

    /// A value.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> T {
        assert!(index < self.len && !self.pointer.is_null());
        // SAFETY: it is inside, and not null, so it can be read by the promise of `new`.
        unsafe { self.pointer.add(index).read_unaligned() }
    }

    /// All of them, one after the other.
    ///
    /// # Errors
    /// As [`In::check`].
    #[inline]
    pub(crate) fn values(&self) -> Result<impl Iterator<Item = T> + use<'a, T>> {
        self.check()?;
        let Self { pointer, len, .. } = *self;
        // SAFETY: inside, and not null if there are any, so they can be read by the promise of `new`.
        Ok((0..len).map(move |index| unsafe { pointer.add(index).read_unaligned() }))
    }

    /// All of them, as a slice of another type of the same size; `None` if they are not aligned for it.
    ///
    /// # Safety
    /// Each of them is one of that type as well.
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
        // SAFETY: not null, so they can be read by the promise of `new`; aligned; and such by the caller's.
        Some(unsafe { std::slice::from_raw_parts(pointer, self.len) })
    }

    /// Some of them, as places of another type.
    pub(crate) fn cast<U: Copy>(&self, len: usize) -> In<'a, U> {
        In { pointer: self.pointer.cast(), len, caller: PhantomData }
    }
}

impl<'a> In<'a, u8> {
    /// The bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> Result<&'a [u8]> {
        self.check()?;
        if self.len == 0 {
            return Ok(&[]);
        }
        // SAFETY: not null, so they can be read by the promise of `new`; a caller that changes them meanwhile sends what
        // it finds, byte by byte.
        Ok(unsafe { std::slice::from_raw_parts(self.pointer, self.len) })
    }
}

impl<'a, T: Copy> Out<'a, T> {
    /// # Safety
    /// The pointer is null, or `len` values can be written there for `'a`.
    #[inline]
    pub(crate) unsafe fn new(pointer: *mut T, len: usize) -> Self {
        Self { pointer, len, caller: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn is_null(&self) -> bool {
        self.pointer.is_null()
    }

    /// As [`In::check`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_null() && self.len > 0 { Err(Status::INVALID_ARGS) } else { Ok(()) }
    }

    /// Puts a value into a place.
    #[inline]
    pub(crate) fn set(&self, index: usize, value: T) {
        assert!(index < self.len && !self.pointer.is_null());
        // SAFETY: it is inside, and not null, so it can be written by the promise of `new`.
        unsafe { self.pointer.add(index).write_unaligned(value) }
    }

    /// Puts a value into the first place, if there is one.
    #[inline]
    pub(crate) fn set_if_wanted(&self, value: T) {
        if !self.is_null() {
            self.set(0, value);
        }
    }

    /// What is in a place. The caller has put something there.
    pub(crate) fn get(&self, index: usize) -> T {
        assert!(index < self.len && !self.pointer.is_null());
        // SAFETY: it is inside, and not null; C code that passes a pointer for reading and writing has set it.
        unsafe { self.pointer.add(index).read_unaligned() }
    }
}

impl Out<'_, u8> {
    /// The buffer, as far as `limit`; empty if there is none.
    #[inline]
    pub(crate) fn buffer(&mut self, limit: usize) -> &mut [u8] {
        if self.is_null() {
            return &mut [];
        }
        // SAFETY: not null, so it can be written by the promise of `new`. It may be uninitialised, which code of another
        // language may leave it; whoever gets this only writes to it. Nothing else of the caller's is looked at meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len.min(limit)) }
    }

    /// Copies bytes to the front of the buffer.
    ///
    /// # Errors
    /// `INVALID_ARGS` for a null pointer.
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
