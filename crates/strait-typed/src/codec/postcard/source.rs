//! Where a decoder reads the bytes of a message: in private memory, or where the peer wrote them.

use serde::de::Visitor;
use strait::view::InPlace;

use super::Error;

/// The bytes of a message that were not read yet. Each byte is read once.
pub(super) trait Source<'de> {
    /// Returns the number of bytes not read yet.
    fn left(&self) -> usize;

    /// Reads a byte.
    fn byte(&mut self) -> Result<u8, Error>;

    /// Reads `N` bytes.
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error>;

    /// Reads `len` bytes for `visitor`.
    fn bytes<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value, Error>;

    /// Reads a text of `len` bytes, and passes the text to `visitor`.
    fn text<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value, Error>;
}

#[cold]
fn ended() -> Error {
    Error::new("the message ends within a value")
}

#[cold]
fn not_text() -> Error {
    Error::new("a text is not UTF-8")
}

/// Bytes in private memory, from which values borrow. An iterator stores one word for each read, the place of the next
/// byte; a slice would store its length too.
pub(super) struct Slice<'de>(std::slice::Iter<'de, u8>);

impl<'de> Slice<'de> {
    #[inline(always)]
    pub(super) fn new(bytes: &'de [u8]) -> Self {
        Self(bytes.iter())
    }

    #[inline(always)]
    fn take(&mut self, len: usize) -> Result<&'de [u8], Error> {
        let (bytes, rest) = self.0.as_slice().split_at_checked(len).ok_or_else(ended)?;
        self.0 = rest.iter();
        Ok(bytes)
    }
}

impl<'de> Source<'de> for Slice<'de> {
    #[inline(always)]
    fn left(&self) -> usize {
        self.0.as_slice().len()
    }

    #[inline(always)]
    fn byte(&mut self) -> Result<u8, Error> {
        self.0.next().copied().ok_or_else(ended)
    }

    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (bytes, rest) = self.0.as_slice().split_first_chunk().ok_or_else(ended)?;
        self.0 = rest.iter();
        Ok(*bytes)
    }

    #[inline(always)]
    fn bytes<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_bytes(self.take(len)?)
    }

    #[inline]
    fn text<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value, Error> {
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| not_text())?;
        visitor.visit_borrowed_str(text)
    }
}

/// The number of bytes that are copied at once out of a view, for the short fields of a value.
const PIECE: usize = 4 << 10;

/// The bytes of a view, which the peer may still change. Short fields are read from copies of a piece of the view each;
/// long texts and lists of bytes are copied straight into the value.
pub(super) struct Viewed<'v, 'c> {
    view: &'v mut InPlace<'c>,
    /// The number of bytes of the view that were copied out.
    copied: usize,
    piece: Vec<u8>,
    /// The number of bytes of the piece that were read.
    read: usize,
}

impl<'v, 'c> Viewed<'v, 'c> {
    pub(super) fn new(view: &'v mut InPlace<'c>) -> Self {
        Self { view, copied: 0, piece: Vec::with_capacity(PIECE), read: 0 }
    }

    /// Copies the next piece, once the present one was read. Does nothing at the end of the view.
    #[cold]
    fn next_piece(&mut self) -> Result<(), Error> {
        let len = PIECE.min(self.view.len() - self.copied);
        self.piece.clear();
        self.read = 0;
        self.copy(len).map(|piece| self.piece = piece)
    }

    /// Copies the next `len` bytes of the view behind those in the piece, and returns the piece.
    fn copy(&mut self, len: usize) -> Result<Vec<u8>, Error> {
        let mut piece = std::mem::take(&mut self.piece);
        self.view.append_to(&mut piece, self.copied, len).map_err(|error| Error::new(error.to_string()))?;
        self.copied += len;
        Ok(piece)
    }

    /// Copies the next `len` bytes into new memory.
    fn take(&mut self, len: usize) -> Result<Vec<u8>, Error> {
        if len > self.left() {
            return Err(ended());
        }
        let at_hand = &self.piece[self.read..];
        if len <= at_hand.len() {
            let bytes = at_hand[..len].to_vec();
            self.read += len;
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Error::new("no memory for a field of the value"))?;
        bytes.extend_from_slice(at_hand);
        self.read = self.piece.len();
        let rest = len - bytes.len();
        self.view.append_to(&mut bytes, self.copied, rest).map_err(|error| Error::new(error.to_string()))?;
        self.copied += rest;
        Ok(bytes)
    }
}

impl<'de> Source<'de> for Viewed<'_, '_> {
    #[inline]
    fn left(&self) -> usize {
        self.piece.len() - self.read + self.view.len() - self.copied
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, Error> {
        if self.read == self.piece.len() {
            self.next_piece()?;
        }
        let byte = *self.piece.get(self.read).ok_or_else(ended)?;
        self.read += 1;
        Ok(byte)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        if let Some(bytes) = self.piece[self.read..].first_chunk() {
            self.read += N;
            return Ok(*bytes);
        }
        if self.left() < N {
            return Err(ended());
        }
        // The bytes begin in the present piece and end in the next piece.
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    fn bytes<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_byte_buf(self.take(len)?)
    }

    fn text<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value, Error> {
        let text = String::from_utf8(self.take(len)?).map_err(|_| not_text())?;
        visitor.visit_string(text)
    }
}
