//! How handles travel in messages.
//!
//! Each handle of a message is a handle of Strait, and has a record of 32 bytes behind the message's bytes, in the same
//! order:
//!
//! ```text
//! offset
//!      0  type      u32   as ZX_OBJ_TYPE_*
//!      4  rights    u32
//!      8  koid      u64
//!     16  related   u64   koid of the other end, or 0
//!     24  signals   u32   of a channel's end: those that programs set
//!     28  detail    u32   of an event: which end it is; otherwise 0
//! ```
//!
//! An object with more than one descriptor travels in a *carrier*: an end of a channel with one unread message, which
//! has the descriptors. So the object travels as a single handle, and is closed like a single handle if no process
//! takes the object.
//!
//! A special message changes the signals of the other end, and no reader sees that message. It has 31 bytes and one
//! handle. Any other message with a handle has at least 32 bytes, so the length distinguishes it. The handle is an
//! end of a channel without another use.
//!
//! ```text
//! offset
//!      0  clear     u32
//!      4  set       u32
//!      8            23 bytes, 0
//! ```
//!
//! All of this comes from a peer. The receiver checks types against the handles that arrived; the peer chooses the
//! rights. A malformed message ends its channel. The last close of a descriptor can block as long as its sender likes,
//! so a message keeps its descriptors *unclaimed*, to be closed by a thread of Strait, until all of them are checked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};

use strait::bindings::UnclaimedHandle;
use strait::{Channel, Handle, Message};

use super::Chan;
use crate::abi::*;
use crate::event::{self, EventEnd};
use crate::object::{Descriptor, Object};
use crate::port::{self, PortHandle};
use crate::status::{Result, Status};
use crate::table::Entry;
use crate::vmo::Vmo;

/// Size of a record in bytes.
pub(crate) const RECORD: usize = 32;

/// Size in bytes of a message that changes signals: one byte less than a record. Other messages rarely have this
/// length. A message of this length must be taken out of the ring before its kind is known.
pub(crate) const SIGNALS: usize = RECORD - 1;

/// The record of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) type_: zx_obj_type_t,
    pub(crate) rights: zx_rights_t,
    pub(crate) koid: zx_koid_t,
    pub(crate) related: zx_koid_t,
    pub(crate) signals: zx_signals_t,
    pub(crate) detail: u32,
}

impl Record {
    /// Appends the 32 bytes of the record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.type_.to_le_bytes());
        out.extend_from_slice(&self.rights.to_le_bytes());
        out.extend_from_slice(&self.koid.to_le_bytes());
        out.extend_from_slice(&self.related.to_le_bytes());
        out.extend_from_slice(&self.signals.to_le_bytes());
        out.extend_from_slice(&self.detail.to_le_bytes());
    }

    /// Reads a record.
    fn decode(bytes: &[u8; RECORD]) -> Self {
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let whole = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Self {
            type_: half(0),
            rights: half(4),
            koid: whole(8),
            related: whole(16),
            signals: half(24),
            detail: half(28),
        }
    }

    /// Returns whether the record has a known type, and only rights and signals possible for that type.
    fn is_valid(&self) -> bool {
        let known = match self.type_ {
            ZX_OBJ_TYPE_CHANNEL => ZX_DEFAULT_CHANNEL_RIGHTS,
            ZX_OBJ_TYPE_EVENT => ZX_DEFAULT_EVENT_RIGHTS,
            ZX_OBJ_TYPE_EVENTPAIR => ZX_DEFAULT_EVENTPAIR_RIGHTS,
            ZX_OBJ_TYPE_PORT => ZX_DEFAULT_PORT_RIGHTS,
            ZX_OBJ_TYPE_VMO => ZX_DEFAULT_VMO_RIGHTS | ZX_RIGHT_RESIZE,
            STRAIT_ZX_OBJ_TYPE_FD => STRAIT_ZX_DEFAULT_FD_RIGHTS,
            _ => return false,
        };
        // A right that no handle of the type ever has is refused: an end of a channel with two handles would have two
        // owners.
        self.rights & !known == 0 && self.signals & !ZX_USER_SIGNAL_ALL == 0
    }
}

/// Returns the bytes of a message that changes the signals of the other end.
pub(crate) fn signals(clear: zx_signals_t, set: zx_signals_t) -> [u8; SIGNALS] {
    let mut bytes = [0; SIGNALS];
    bytes[..4].copy_from_slice(&clear.to_le_bytes());
    bytes[4..8].copy_from_slice(&set.to_le_bytes());
    bytes
}

/// Returns the handle of a message that changes signals.
pub(crate) fn token() -> Result<Handle> {
    Ok(Channel::pair()?.0.into())
}

/// Returns the signals to clear and to set, if the message changes signals.
pub(crate) fn as_signals(message: &Message) -> Option<(zx_signals_t, zx_signals_t)> {
    let bytes: &[u8; SIGNALS] = message.bytes().try_into().ok()?;
    let [Handle::Channel(_)] = message.handles() else { return None };
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (clear, set) = (half(0), half(4));
    ((clear | set) & !ZX_USER_SIGNAL_ALL == 0 && bytes[8..].iter().all(|byte| *byte == 0)).then_some((clear, set))
}

/// Returns the number of bytes for the reader in a Strait message of `len` bytes with this number of handles; `None` if
/// the message is too short for their records.
pub(crate) fn payload(len: usize, handles: usize) -> Option<usize> {
    len.checked_sub(handles * RECORD)
}

/// Returns whether handles of a received message did not arrive, for lack of free descriptors in this process.
pub(crate) fn has_lost_handles(message: &mut Message) -> bool {
    // No message has a handle with this index; only a message with lost handles makes the call fail.
    !message.has_only_bytes() && message.take_handle(usize::MAX).is_err()
}

/// Returns whether a message is well-formed.
pub(crate) fn is_valid(message: &Message) -> bool {
    let handles = message.handles();
    let bytes = message.bytes();
    let Some(payload) = payload(bytes.len(), handles.len()) else { return false };
    payload <= ZX_CHANNEL_MAX_MSG_BYTES as usize
        && handles.iter().zip(bytes[payload..].as_chunks().0).all(|(handle, record)| {
            let record = Record::decode(record);
            let is_end = matches!(handle, Handle::Channel(_));
            record.is_valid() && is_end == travels_as_end(record.type_)
        })
}

/// Returns whether an object of this type travels as an end of a channel; otherwise it travels as a descriptor.
fn travels_as_end(type_: zx_obj_type_t) -> bool {
    matches!(type_, ZX_OBJ_TYPE_CHANNEL | ZX_OBJ_TYPE_EVENT | ZX_OBJ_TYPE_EVENTPAIR | ZX_OBJ_TYPE_PORT)
}

/// Converts an entry's object to a handle of Strait and a record. An end of a channel leaves its entry; other objects
/// stay. `moves` tells whether the entry is dropped once the handle was sent; otherwise the entry is a duplicate.
///
/// # Errors
/// `SHOULD_WAIT` if the last handle of a port would leave packets behind; other errors of the object. The entry is as
/// it was.
pub(crate) fn pack(entry: &mut Entry, rights: zx_rights_t, moves: bool) -> Result<(Handle, Record)> {
    let type_ = entry.object.type_();
    let (koid, related) = entry.object.koids();
    let mut record = Record { type_, rights, koid, related, signals: 0, detail: 0 };
    let handle = match &mut entry.object {
        Object::Channel(chan) => {
            record.signals = chan.user_signals();
            chan.detach()?.into()
        }
        Object::Event(event) => {
            let (carrier, side) = event.pack()?;
            record.detail = side;
            carrier.into()
        }
        Object::Port(port) => port.pack(moves)?.into(),
        Object::Vmo(_) | Object::Fd(_) => entry.object.descriptor()?.into(),
    };
    Ok((handle, record))
}

/// Restores an entry after [`pack`] has returned this handle, and the handle was not sent.
pub(crate) fn unpack_back(entry: &mut Entry, handle: Handle) {
    match (&mut entry.object, handle) {
        (Object::Channel(chan), Handle::Channel(channel)) => chan.attach(channel),
        (Object::Port(port), _) => port.stay(),
        _ => {}
    }
}

/// A descriptor that has arrived. Dropping this value closes the descriptor without blocking, by a thread of Strait if
/// need be.
#[derive(Debug)]
pub(crate) struct UnclaimedFd(UnclaimedHandle);

impl UnclaimedFd {
    /// # Errors
    /// `PEER_CLOSED` for a handle of another kind.
    fn new(handle: UnclaimedHandle) -> Result<Self> {
        if matches!(*handle, Handle::Fd(_)) { Ok(Self(handle)) } else { Err(Status::PEER_CLOSED) }
    }

    /// Checks that the descriptor is a Unix socket of this type. The check asks no file system, whose answer could take
    /// as long as its server likes.
    ///
    /// # Errors
    /// `PEER_CLOSED`.
    pub(crate) fn check_socket(&self, type_: SocketType) -> Result<()> {
        match (socket_domain(self), socket_type(self)) {
            (Ok(AddressFamily::UNIX), Ok(found)) if found == type_ => Ok(()),
            _ => Err(Status::PEER_CLOSED),
        }
    }

    /// Returns the descriptor, which this process closes itself from now on.
    pub(crate) fn claim(self) -> OwnedFd {
        self.0.claim().into_fd().expect("checked by `new`")
    }
}

impl AsFd for UnclaimedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &*self.0 {
            Handle::Fd(fd) => fd.as_fd(),
            _ => unreachable!("checked by `new`"),
        }
    }
}

/// An arrived object that has passed all checks. Its descriptors are unclaimed.
enum Checked {
    Channel(Channel),
    Event(event::Arrived),
    Port(port::Arrived),
    Vmo(UnclaimedFd),
    Fd(UnclaimedFd),
}

impl Checked {
    /// Checks an arrived handle, with its record.
    ///
    /// # Errors
    /// `PEER_CLOSED` if handle and record do not match.
    fn new(handle: UnclaimedHandle, record: &Record) -> Result<Self> {
        match (record.type_, &*handle) {
            (ZX_OBJ_TYPE_CHANNEL, Handle::Channel(_)) => {
                Ok(Self::Channel(handle.claim().into_channel().ok_or(Status::PEER_CLOSED)?))
            }
            (ZX_OBJ_TYPE_EVENT | ZX_OBJ_TYPE_EVENTPAIR, Handle::Channel(carrier)) => {
                let pair = record.type_ == ZX_OBJ_TYPE_EVENTPAIR;
                Ok(Self::Event(event::Arrived::new(pair, record.detail, take_cargo(carrier)?)?))
            }
            (ZX_OBJ_TYPE_PORT, Handle::Channel(carrier)) => Ok(Self::Port(port::Arrived::new(take_cargo(carrier)?)?)),
            (ZX_OBJ_TYPE_VMO, Handle::Fd(fd)) => {
                Vmo::check_received(fd)?;
                Ok(Self::Vmo(UnclaimedFd::new(handle)?))
            }
            (STRAIT_ZX_OBJ_TYPE_FD, Handle::Fd(_)) => Ok(Self::Fd(UnclaimedFd::new(handle)?)),
            _ => Err(Status::PEER_CLOSED),
        }
    }

    /// Converts the arrived object to an entry, which owns the descriptors.
    fn claim(self, record: &Record) -> Entry {
        let Record { rights, koid, related, .. } = *record;
        let object = match self {
            Self::Channel(channel) => Object::Channel(Box::new(Chan::new(channel, koid, related, record.signals))),
            Self::Event(arrived) => Object::Event(EventEnd::unpack((koid, related), arrived)),
            Self::Port(arrived) => Object::Port(PortHandle::unpack(koid, arrived)),
            Self::Vmo(fd) => Object::Vmo(Arc::new(Vmo::received(fd.claim(), koid))),
            Self::Fd(fd) => Object::Fd(Arc::new(Descriptor { fd: fd.claim(), koid })),
        };
        Entry { rights, object }
    }
}

/// Converts all handles of a message to entries, or none.
///
/// # Errors
/// `NO_RESOURCES` or `NO_MEMORY`; `PEER_CLOSED` if a handle does not match its record.
pub(crate) fn unpack_all(message: &mut Message) -> Result<Vec<Entry>> {
    let handles = message.take_unclaimed()?;
    let records = message.bytes().len() - handles.len() * RECORD;
    let records: Vec<_> = message.bytes()[records..].as_chunks().0.iter().map(Record::decode).collect();
    let checked = handles.into_iter().zip(&records).map(|(handle, record)| Checked::new(handle, record));
    let checked = checked.collect::<Result<Vec<_>>>()?;
    Ok(checked.into_iter().zip(&records).map(|(checked, record)| checked.claim(record)).collect())
}

/// Packs descriptors into a carrier.
pub(crate) fn carrier(cargo: Vec<OwnedFd>) -> Result<Channel> {
    let (ours, theirs) = Channel::pair()?;
    ours.try_send(strait::Outgoing::new(b"").handles(cargo.into_iter().map(Handle::Fd)))
        .map_err(|error| Status::from(error.error))?;
    Ok(theirs)
}

/// Takes the descriptors out of a carrier, unclaimed.
///
/// # Errors
/// `PEER_CLOSED` if the carrier has anything else, or nothing; `NO_RESOURCES` or `NO_MEMORY`.
fn take_cargo(carrier: &Channel) -> Result<Vec<UnclaimedFd>> {
    // The message with the carrier is taken, so the caller must not see `SHOULD_WAIT`.
    let mut message = carrier.try_recv().map_err(|error| match Status::from(error) {
        Status::SHOULD_WAIT => Status::PEER_CLOSED,
        status => status,
    })?;
    message.take_unclaimed()?.into_iter().map(UnclaimedFd::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let record = Record { type_: 4, rights: 2, koid: 3 << 40, related: u64::MAX, signals: 1 << 31, detail: 6 };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(Record::decode(bytes.as_slice().try_into().unwrap()), record);
    }

    /// Returns a message with these bytes and handles, as received from a peer.
    fn received(bytes: &[u8], handles: Vec<Handle>) -> Message {
        let (peer, us) = Channel::pair().unwrap();
        peer.send(strait::Outgoing::new(bytes).handles(handles)).unwrap();
        us.recv().unwrap()
    }

    #[test]
    fn only_what_is_made_like_a_change_of_signals_is_one() {
        let file = || Handle::Fd(std::fs::File::open("/dev/null").unwrap().into());
        let region = || Handle::Region(strait::region::Region::new(1).unwrap());
        let (clear, set) = (ZX_USER_SIGNAL_7, ZX_USER_SIGNAL_0);
        let good = signals(clear, set);
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            bytes.to_vec()
        };
        assert_eq!(as_signals(&received(&good, vec![token().unwrap()])), Some((clear, set)));
        let malformed = [
            ("one byte less", good[..SIGNALS - 1].to_vec(), vec![token().unwrap()]),
            ("one byte more", [good.as_slice(), &[0]].concat(), vec![token().unwrap()]),
            ("no bytes", Vec::new(), vec![token().unwrap()]),
            ("no handle", good.to_vec(), vec![]),
            ("two handles", good.to_vec(), vec![token().unwrap(), token().unwrap()]),
            ("a descriptor", good.to_vec(), vec![file()]),
            ("a region", good.to_vec(), vec![region()]),
            ("a signal that is not the program's to clear", with(0, ZX_CHANNEL_READABLE as u8), vec![token().unwrap()]),
            ("a signal that is not the program's to set", with(4, ZX_CHANNEL_WRITABLE as u8), vec![token().unwrap()]),
            ("one that says that the peer is gone", with(4, ZX_CHANNEL_PEER_CLOSED as u8), vec![token().unwrap()]),
            ("a first byte that is not 0", with(8, 1), vec![token().unwrap()]),
            ("a last byte that is not 0", with(SIGNALS - 1, 0x80), vec![token().unwrap()]),
        ];
        for (what, bytes, handles) in malformed {
            let message = received(&bytes, handles);
            assert_eq!(as_signals(&message), None, "{what}");
            // A message of this length is for a reader only if its handle has a valid record, or if it has no handle.
            let for_a_reader = message.handles().is_empty();
            assert_eq!(is_valid(&message), for_a_reader, "{what}");
        }
    }

    #[test]
    fn an_end_of_a_channel_cannot_arrive_with_a_right_to_duplicate_it() {
        let mut record = Record { type_: 4, rights: 0, koid: 0, related: 0, signals: 0, detail: 0 };
        assert!(record.is_valid());
        record.rights = ZX_RIGHT_DUPLICATE;
        assert!(!record.is_valid());
    }
}
