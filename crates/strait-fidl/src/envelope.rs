//! Envelopes: the fields of tables and unions.

use crate::decode::Decoder;
use crate::encode::Output;
use crate::error::{Code, Error};
use crate::layout::{Context, Decode, Encode};

/// The number of bytes of an envelope.
pub(crate) const SIZE: usize = 8;

/// The number of bytes from the beginning of a union to its envelope.
pub(crate) const IN_UNION: usize = 8;

/// The greatest size in bytes of a value inside an envelope.
const INLINE: usize = 4;

/// The flag of an envelope with the value inside.
const INSIDE: u16 = 1;

/// The greatest ordinal of a table.
pub(crate) const MAX_ORDINAL: u64 = 64;

/// Writes a value and its envelope.
///
/// # Errors
/// The errors of encoding the value.
pub(crate) fn encode<'v, T: Encode>(
    value: &'v T,
    out: &mut Output<'v>,
    at: usize,
    context: Context,
) -> Result<(), Error> {
    let context = out.deeper(context, at)?;
    let handles = out.handles();
    let flags = if T::SIZE <= INLINE {
        value.encode(out, at, context)?;
        INSIDE
    } else {
        let before = out.len();
        let body = out.object(T::SIZE);
        value.encode(out, body, context)?;
        match u32::try_from(out.len() - before) {
            Ok(bytes) => out.put(at, &bytes.to_le_bytes()),
            Err(_) => return Err(out.error(Code::InvalidNumBytesInEnvelope, at)),
        }
        0
    };
    match u16::try_from(out.handles() - handles) {
        Ok(handles) => out.put(at + 4, &handles.to_le_bytes()),
        Err(_) => return Err(out.error(Code::InvalidNumHandlesInEnvelope, at)),
    }
    out.put(at + 6, &flags.to_le_bytes());
    Ok(())
}

/// An envelope as read, with valid flags.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    at: usize,
    bytes: u32,
    handles: u16,
    inside: bool,
}

impl Envelope {
    /// Reads an envelope; `None` if the field is absent.
    ///
    /// # Errors
    /// [`Code::InvalidInlineMarkerInEnvelope`].
    #[inline]
    pub fn read(input: &Decoder<'_>, at: usize) -> Result<Option<Self>, Error> {
        let [b0, b1, b2, b3, h0, h1, f0, f1] = input.array(at)?;
        let (bytes, handles) = (u32::from_le_bytes([b0, b1, b2, b3]), u16::from_le_bytes([h0, h1]));
        let inside = match u16::from_le_bytes([f0, f1]) {
            0 if bytes == 0 && handles == 0 => return Ok(None),
            0 => false,
            INSIDE => true,
            _ => return Err(Error::new(Code::InvalidInlineMarkerInEnvelope, at + 6)),
        };
        if !inside && bytes % 8 != 0 {
            return Err(Error::new(Code::InvalidNumBytesInEnvelope, at));
        }
        Ok(Some(Self { at, bytes, handles, inside }))
    }

    /// Decodes the value of the envelope.
    ///
    /// # Errors
    /// The envelope does not fit the value; those of the value.
    pub fn decode<'m, T: Decode<'m>>(self, input: &mut Decoder<'m>, context: Context) -> Result<T, Error> {
        let Self { at, .. } = self;
        if self.inside != (T::SIZE <= INLINE) {
            return Err(Error::new(Code::InvalidInlineBitInEnvelope, at + 6));
        }
        let context = context.deeper(at)?;
        let handles = input.handles_left();
        let value = if self.inside {
            input.zeros(at + T::SIZE, at + INLINE)?;
            T::decode(input, at, context)?
        } else {
            let before = input.next();
            let body = input.object(T::SIZE)?;
            let value = T::decode(input, body, context)?;
            if (input.next() - before) as u64 != u64::from(self.bytes) {
                return Err(Error::new(Code::InvalidNumBytesInEnvelope, at));
            }
            value
        };
        if handles - input.handles_left() != usize::from(self.handles) {
            return Err(Error::new(Code::InvalidNumHandlesInEnvelope, at + 4));
        }
        Ok(value)
    }

    /// Skips the value of an unknown field, and closes its handles.
    ///
    /// # Errors
    /// The message has fewer bytes or handles than the envelope.
    pub fn skip(self, input: &mut Decoder<'_>, context: Context) -> Result<(), Error> {
        let Self { at, .. } = self;
        context.deeper(at)?;
        if !self.inside {
            match usize::try_from(self.bytes) {
                Ok(bytes) if bytes <= input.bytes_left() => input.skip_bytes(bytes),
                _ => return Err(Error::new(Code::EnvelopeBytesExceedMessageLength, at)),
            }
        }
        if usize::from(self.handles) > input.handles_left() {
            return Err(Error::new(Code::EnvelopeHandlesExceedMessageLength, at + 4));
        }
        for _ in 0..self.handles {
            drop(input.take_handle());
        }
        input.count_skipped();
        Ok(())
    }
}
