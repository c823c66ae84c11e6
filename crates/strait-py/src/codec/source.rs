//! The bytes of a received message, each read at most once.
//!
//! The bytes of a long message may lie in memory that the peer can change at any time. So the decoder sees only private
//! copies of bytes, in windows of increasing size. The bytes of a large array go from the shared memory straight into
//! the memory of the array; the decoder never looks at these bytes.

use std::cell::{Cell, OnceCell, RefCell};

use pyo3::prelude::*;
use strait::view::InPlace;

use crate::errors;

/// The size in bytes of a first window.
const WINDOW: usize = 1 << 12;
/// The maximum number of windows. The last window has all further bytes.
const MOST: usize = 64;

/// A message in memory that the peer can change, and copies of parts of its bytes.
pub(crate) struct Viewed<'v> {
    view: RefCell<InPlace<'v>>,
    len: usize,
    windows: [OnceCell<Vec<u8>>; MOST],
    used: Cell<usize>,
}

impl<'v> Viewed<'v> {
    pub(crate) fn new(view: InPlace<'v>) -> Self {
        let len = view.len();
        Self { view: RefCell::new(view), len, windows: [const { OnceCell::new() }; MOST], used: Cell::new(0) }
    }

    /// Copies at least `least` bytes from `at` on, and if possible `most`. There are at least `least` bytes.
    fn window(&self, py: Python<'_>, at: usize, least: usize, most: usize) -> PyResult<&[u8]> {
        let index = self.used.get();
        self.used.set(index + 1);
        let is_last = index + 1 >= MOST;
        let len = if is_last { usize::MAX } else { least.max(most) }.min(self.len - at);
        let mut bytes = Vec::new();
        let mut view = self.view.borrow_mut();
        let view = &mut *view;
        let copied = py.detach(|| view.append_to(&mut bytes, at, len));
        copied.map_err(|error| errors::raise(py, error))?;
        Ok(self.windows[index.min(MOST - 1)].get_or_init(|| bytes))
    }

    pub(crate) fn take_handles(&self, py: Python<'_>) -> PyResult<Vec<strait::Handle>> {
        self.view.borrow_mut().take_handles().map_err(|error| errors::raise(py, error))
    }
}

/// The bytes of a message that the decoder has not taken yet.
pub(crate) struct Source<'a, 'v> {
    viewed: Option<&'a Viewed<'v>>,
    /// The number of bytes taken so far.
    at: usize,
    /// The place behind the last byte that can be taken now.
    end: usize,
    /// The private bytes from `at` on: all of the message, or a window.
    rest: &'a [u8],
    /// The size of the next window.
    window: usize,
}

/// Bytes of a message, for one copy.
#[derive(Clone, Copy)]
pub(crate) enum Span<'a, 'v> {
    /// Private bytes.
    Here(&'a [u8]),
    /// Bytes that the peer can change.
    Viewed { viewed: &'a Viewed<'v>, at: usize, len: usize },
}

impl<'a, 'v> Source<'a, 'v> {
    pub(crate) fn of_bytes(bytes: &'a [u8]) -> Self {
        Self { viewed: None, at: 0, end: bytes.len(), rest: bytes, window: 0 }
    }

    pub(crate) fn of_view(viewed: &'a Viewed<'v>) -> Self {
        Self { viewed: Some(viewed), at: 0, end: viewed.len, rest: &[], window: WINDOW }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the number of bytes until the end.
    pub(crate) fn remaining(&self) -> usize {
        self.end - self.at
    }

    /// Returns the next bytes without taking them: at least `len`, unless fewer remain; `None` if fewer remain.
    pub(crate) fn peek(&mut self, py: Python<'_>, len: usize) -> PyResult<Option<&'a [u8]>> {
        if len > self.remaining() {
            return Ok(None);
        }
        if let Some(viewed) = self.viewed
            && len > self.rest.len()
        {
            self.rest = viewed.window(py, self.at, len, self.window)?;
            self.window = self.window.saturating_mul(4);
        }
        Ok(self.rest.get(..len))
    }

    /// Takes `len` bytes; `None` if fewer remain.
    pub(crate) fn take(&mut self, py: Python<'_>, len: usize) -> PyResult<Option<&'a [u8]>> {
        let taken = self.peek(py, len)?;
        if taken.is_some() {
            self.rest = &self.rest[len..];
            self.at += len;
        }
        Ok(taken)
    }

    /// Takes `len` bytes for one copy; `None` if fewer remain.
    pub(crate) fn span(&mut self, len: usize) -> Option<Span<'a, 'v>> {
        if len > self.remaining() {
            return None;
        }
        let span = match self.viewed {
            None => Span::Here(&self.rest[..len]),
            Some(viewed) => Span::Viewed { viewed, at: self.at, len },
        };
        self.at += len;
        self.rest = self.rest.get(len..).unwrap_or_default();
        // What follows an array is most likely short.
        self.window = WINDOW;
        Some(span)
    }

    /// Lets only the next `len` bytes be taken, and returns the former end; `None` if fewer remain.
    pub(crate) fn limit(&mut self, len: usize) -> Option<usize> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.end)?;
        Some(std::mem::replace(&mut self.end, end))
    }

    /// Sets the end of the bytes that can be taken, as it was before a call of `limit`.
    pub(crate) fn restore(&mut self, end: usize) {
        self.end = end;
    }
}

impl Span<'_, '_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Viewed { len, .. } => *len,
        }
    }

    /// Calls `with` with a function that copies the bytes into memory of the same length.
    pub(crate) fn copied<T>(self, with: impl FnOnce(&mut (dyn FnMut(&mut [u8]) + Send)) -> T) -> T {
        match self {
            Self::Here(bytes) => with(&mut |out| out.copy_from_slice(bytes)),
            Self::Viewed { viewed, at, .. } => {
                let mut view = viewed.view.borrow_mut();
                let view = &mut *view;
                with(&mut |out| view.read_at(out, at))
            }
        }
    }
}
