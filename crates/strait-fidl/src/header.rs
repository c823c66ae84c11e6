//! Headers of messages of a protocol, and epitaphs.

use crate::error::{Code, Error};
use crate::layout::{Context, Decode, Encode, Layout};
use crate::{Decoder, Output};

/// The header of a message of a protocol: 16 bytes in front of the value.
///
/// ```
/// use strait_fidl::{Encoder, Header};
///
/// let header = Header { txid: 1, flexible: false, ordinal: 0x1234_5678_9abc_def0 };
/// let mut encoder = Encoder::new();
/// let call = encoder.message(header, &7_u64)?.to_vec();
/// assert_eq!(call.len(), 24);
/// let (read, body) = Header::split(&call)?;
/// assert_eq!((read, body), (header, &7_u64.to_le_bytes()[..]));
/// # Ok::<(), strait_fidl::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// The number of the call, repeated in the reply; 0 if there is no reply. Numbers with the highest bit set belong
    /// to `zx_channel_call`.
    pub txid: u32,
    /// Whether a receiver that does not know the method may go on.
    pub flexible: bool,
    /// The number of the method.
    pub ordinal: u64,
}

/// The bit in the first byte of flags: wire format version 2.
const VERSION_2: u8 = 1 << 1;
/// The bit in the third byte of flags: the method is flexible. The bit below, *byte overflow*, says that the value is
/// not in the message, since it is too long for a message of Zircon; it is refused, as unknown bits are.
const FLEXIBLE: u8 = 1 << 7;
/// The last byte before the ordinal.
const MAGIC: u8 = 1;

impl Header {
    /// The number of bytes.
    pub const LEN: usize = 16;

    /// Returns the bytes of the header.
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.txid.to_le_bytes());
        bytes[4] = VERSION_2;
        bytes[6] = if self.flexible { FLEXIBLE } else { 0 };
        bytes[7] = MAGIC;
        bytes[8..].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes
    }

    /// Splits a message into the header and the bytes of the value.
    ///
    /// # Errors
    /// [`Code::TooFewBytesInPrimaryObject`] if the message is shorter than a header. [`Code::InvalidHeader`] if the
    /// header is of another format or version, if its value is said to be outside of the message, or if unknown flags
    /// are set.
    pub fn split(message: &[u8]) -> Result<(Self, &[u8]), Error> {
        let Some((header, body)) = message.split_first_chunk::<{ Self::LEN }>() else {
            return Err(Error::new(Code::TooFewBytesInPrimaryObject, message.len()));
        };
        let [t0, t1, t2, t3, f0, f1, f2, magic, ordinal @ ..] = *header;
        let wrong = [(7, magic != MAGIC), (4, f0 != VERSION_2), (5, f1 != 0), (6, f2 & !FLEXIBLE != 0)];
        match wrong.into_iter().find(|(_, wrong)| *wrong) {
            Some((at, _)) => Err(Error::new(Code::InvalidHeader, at)),
            None => {
                let (txid, ordinal) = (u32::from_le_bytes([t0, t1, t2, t3]), u64::from_le_bytes(ordinal));
                Ok((Self { txid, flexible: f2 & FLEXIBLE != 0, ordinal }, body))
            }
        }
    }
}

/// The last message over a channel: says why the server closes it.
///
/// ```
/// use strait_fidl::{Encoder, Epitaph, Header, decode};
///
/// let mut encoder = Encoder::new();
/// let message = encoder.message(Epitaph::HEADER, &Epitaph { status: -24 })?.to_vec();
/// let (header, body) = Header::split(&message)?;
/// assert_eq!(header.ordinal, Epitaph::ORDINAL);
/// assert_eq!(decode::<Epitaph>(body, [])?.status, -24);
/// # Ok::<(), strait_fidl::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epitaph {
    /// The status, as Zircon's calls return it: 0, or a negative number.
    pub status: i32,
}

impl Epitaph {
    /// The ordinal in the header of an epitaph.
    pub const ORDINAL: u64 = u64::MAX;

    /// The header of an epitaph.
    pub const HEADER: Header = Header { txid: 0, flexible: false, ordinal: Self::ORDINAL };
}

// SAFETY: not copyable.
unsafe impl Layout for Epitaph {
    const SIZE: usize = 4;
    const ALIGN: usize = 4;
}

impl Encode for Epitaph {
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, context: Context) -> Result<(), Error> {
        self.status.encode(out, at, context)
    }
}

impl<'m> Decode<'m> for Epitaph {
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error> {
        Ok(Self { status: i32::decode(input, at, context)? })
    }
}
