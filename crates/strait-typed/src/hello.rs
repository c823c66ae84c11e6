//! The first message of a typed channel, each way: the codec, and the names and keys of both types.
//!
//! ```text
//! byte  0   F5 's' 't' 'r' 'a' 'i' 't' 01     no text, and no value of MessagePack that has more bytes
//!       8   codec
//!       9   bit 0: the key of the sent type is there; bit 1: that of the received type
//!      10   length in bytes of the sent type's name
//!      11   length in bytes of the received type's name
//!      12   4 bytes, 0
//!      16   key of the sent type      little-endian
//!      24   key of the received type
//!      32   name of the sent type, then that of the received type, in UTF-8
//! ```
//!
//! "Sent" and "received" are from the point of view of the end that sends the message.

use strait::view::InPlace;

use crate::codec::Codec;
use crate::error::{Differs, SchemaMismatch};

const MAGIC: [u8; 8] = *b"\xF5strait\x01";
/// The number of bytes before the names.
const FIXED: usize = 32;
/// The greatest number of bytes of a name; longer names are cut off.
const NAME: usize = 200;

/// A type of a typed channel, as described in the first message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Described {
    name: String,
    key: Option<u64>,
}

impl Described {
    fn of<T: ?Sized, C: Codec<T>>() -> Self {
        let name = std::any::type_name::<T>();
        let end = (0..=name.len().min(NAME)).rev().find(|end| name.is_char_boundary(*end));
        let name = &name[..end.unwrap_or(0)];
        Self { name: name.to_owned(), key: C::key() }
    }

    fn display(&self) -> String {
        match self.key {
            Some(key) => format!("`{}` (key {key:016x})", self.name),
            None => format!("`{}`", self.name),
        }
    }

    /// Returns whether both descriptions have a key, and the keys differ.
    fn contradicts(&self, other: &Self) -> bool {
        self.key.zip(other.key).is_some_and(|(one, other)| one != other)
    }
}

/// The content of the first message that an end sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    codec: u8,
    sends: Described,
    receives: Described,
}

impl Hello {
    /// Creates the first message of an end that sends `S` and receives `R`.
    pub(crate) fn of<S, R, C: Codec<S> + Codec<R>>() -> Self {
        Self { codec: <C as Codec<S>>::ID, sends: Described::of::<S, C>(), receives: Described::of::<R, C>() }
    }

    /// Returns the bytes of the message.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let has = |described: &Described, bit| if described.key.is_some() { bit } else { 0u8 };
        let flags = has(&self.sends, 1) | has(&self.receives, 2);
        let lengths = [self.sends.name.len() as u8, self.receives.name.len() as u8];
        let keys = [self.sends.key.unwrap_or(0).to_le_bytes(), self.receives.key.unwrap_or(0).to_le_bytes()];
        let head = [&MAGIC[..], &[self.codec, flags], &lengths, &[0; 4], &keys.concat()].concat();
        [&head, self.sends.name.as_bytes(), self.receives.name.as_bytes()].concat()
    }

    /// Reads a first message. Returns `None` if the bytes are another message.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, names) = bytes.split_at_checked(FIXED)?;
        if !head.starts_with(&MAGIC) {
            return None;
        }
        let (sends, receives) = names.split_at_checked(head[10].into())?;
        if receives.len() != usize::from(head[11]) {
            return None;
        }
        let described = |name, at: usize, bit| {
            let key = u64::from_le_bytes(*head[at..].first_chunk().expect("eight bytes"));
            // The name is shown in an error, maybe on a terminal.
            let name = String::from_utf8_lossy(name).chars().filter(|char| !char.is_control()).collect();
            Described { name, key: (head[9] & bit != 0).then_some(key) }
        };
        Some(Self { codec: head[8], sends: described(sends, 16, 1), receives: described(receives, 24, 2) })
    }

    /// Reads a first message out of the memory where the peer wrote it. Returns `None` if the bytes are another
    /// message.
    pub(crate) fn read(view: &mut InPlace<'_>) -> Result<Option<Self>, strait::Error> {
        if view.len() > FIXED + 2 * NAME {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let len = view.len();
        view.append_to(&mut bytes, 0, len)?;
        Ok(Self::parse(&bytes))
    }

    /// Compares this end's first message with the peer's first message.
    pub(crate) fn compare(&self, theirs: &Self) -> Result<(), SchemaMismatch> {
        let differ = |differs, ours, theirs| Err(SchemaMismatch { differs, ours, theirs });
        if self.codec != theirs.codec {
            return differ(Differs::Codec, codec_name(self.codec), codec_name(theirs.codec));
        }
        if self.receives.contradicts(&theirs.sends) {
            return differ(Differs::Received, self.receives.display(), theirs.sends.display());
        }
        if self.sends.contradicts(&theirs.receives) {
            return differ(Differs::Sent, self.sends.display(), theirs.receives.display());
        }
        Ok(())
    }
}

fn codec_name(id: u8) -> String {
    match id {
        1 => "Postcard".to_owned(),
        2 => "MsgPack".to_owned(),
        3 => "Json".to_owned(),
        4 => "Pod".to_owned(),
        other => format!("number {other}"),
    }
}
