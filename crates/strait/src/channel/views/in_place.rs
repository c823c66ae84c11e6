//! Reading a message where the peer wrote it.

use std::sync::Arc;

use crate::channel::End;
use crate::channel::handle::Handle;
use crate::channel::message::Arrived;
use crate::channel::origin::{Origin, Reported};
use crate::channel::receiver::Rx;
use crate::channel::receiver::body::{Body, as_uninit, put};
use crate::error::Error;
use crate::ring::Record;
use crate::shm::Mapping;
use crate::wake::lock::Guard;

/// A received message, where the peer wrote it.
///
/// **The bytes are untrusted**, in a way that ordinary bytes are not: unless the sender has [sealed](Self::sealed)
/// them, the peer can change them while they are looked at. So they are not given out as `&[u8]`; copy what you
/// decide on ([`copy_to`](Self::copy_to)), once, and decide on the copy.
///
/// A small message stays in the ring until this is dropped, and no other thread receives from this end meanwhile; a
/// large one keeps its memory, and others go on.
#[derive(Debug)]
pub struct InPlace<'a> {
    end: &'a End,
    place: Place<'a>,
    arrived: Arrived,
    origin: Origin,
}

#[derive(Debug)]
enum Place<'a> {
    /// At the front of the ring.
    Ring { rx: Guard<'a, Rx>, record: Record },
    /// In memory outside of it.
    Outside(Body),
}

/// Where a message lies.
pub(super) enum Lies {
    /// In memory of its own that cannot change.
    Sealed(Arc<Mapping>, usize),
    Elsewhere,
}

impl<'a> InPlace<'a> {
    pub(in crate::channel) fn new(
        end: &'a End,
        mut rx: Guard<'a, Rx>,
        record: Record,
        body: Body,
        arrived: Arrived,
    ) -> Self {
        let origin = rx.origin();
        let place = match body {
            Body::Ring(record) => {
                rx.keep();
                Place::Ring { rx, record }
            }
            outside => {
                end.detach(&mut rx, record, &outside);
                Place::Outside(outside)
            }
        };
        Self { end, place, arrived, origin }
    }

    /// A message that was taken out of its ring when the end moved.
    pub(in crate::channel) fn kept(end: &'a End, (body, arrived, origin): (Body, Arrived, Origin)) -> Self {
        Self { end, place: Place::Outside(body), arrived, origin }
    }

    /// Bytes of the message. This number does not change.
    pub fn len(&self) -> usize {
        match &self.place {
            Place::Ring { record, .. } => record.header.len(),
            Place::Outside(body) => body.len(),
        }
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes from `offset` on into all of `out`.
    ///
    /// # Panics
    /// If the message has fewer; in the child of a `fork`, which does not have the memory.
    pub fn copy_to(&mut self, offset: usize, out: &mut [u8]) {
        assert!(!self.end.born.is_elsewhere(), "{}", Error::Forked);
        let len = self.len();
        assert!(offset <= len && out.len() <= len - offset, "a copy inside the message");
        let out = as_uninit(out);
        match &mut self.place {
            Place::Ring { rx, record } => rx.consumer().read(*record, offset, out),
            Place::Outside(Body::Block { mapping, record, .. }) => mapping.copy_out(record.at() + offset, out),
            Place::Outside(Body::Sealed { mapping, .. }) => mapping.copy_out(offset, out),
            Place::Outside(Body::Own(bytes)) => put(&bytes[offset..offset + out.len()], out),
            Place::Outside(Body::Ring(_)) => unreachable!("a message in the ring is not outside"),
        };
    }

    /// The bytes themselves, if the sender has sealed them: then nobody can change them any more.
    ///
    /// # Panics
    /// In the child of a `fork`, which does not have the memory.
    pub fn sealed(&self) -> Option<&[u8]> {
        assert!(!self.end.born.is_elsewhere(), "{}", Error::Forked);
        match &self.place {
            Place::Outside(Body::Sealed { mapping, len }) => Some(mapping.immutable_bytes(*len)),
            _ => None,
        }
    }

    /// Where the bytes are, [`len`](Self::len) of them, readable as long as this lives; for system calls and other
    /// code that copes with bytes that change. Aligned to a page for a large message, and to 8 otherwise.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.place {
            Place::Ring { rx, record } => rx.in_place(*record),
            Place::Outside(Body::Block { mapping, record, .. }) => mapping.at(record.at()),
            Place::Outside(Body::Sealed { mapping, .. }) => mapping.at(0),
            Place::Outside(Body::Own(bytes)) => bytes.as_ptr(),
            Place::Outside(Body::Ring(_)) => unreachable!("a message in the ring is not outside"),
        }
    }

    /// [`Error::Forked`] in any process but the one that received it.
    pub(in crate::channel) fn check_fork(&self) -> Result<(), Error> {
        self.end.born.check()
    }

    pub(super) fn arrived_mut(&mut self) -> &mut Arrived {
        &mut self.arrived
    }

    /// Where the message lies, for whoever sends it on.
    pub(super) fn lies(&self) -> Lies {
        match &self.place {
            Place::Outside(Body::Sealed { mapping, len }) => Lies::Sealed(mapping.clone(), *len),
            _ => Lies::Elsewhere,
        }
    }

    /// As [`Message::take_handles`](crate::Message::take_handles).
    ///
    /// # Errors
    /// As there.
    pub fn take_handles(&mut self) -> Result<Vec<Handle>, Error> {
        self.arrived.take()
    }

    /// As [`Message::report_bad`](crate::Message::report_bad).
    pub fn report_bad(&self, why: &'static str) -> Reported {
        self.origin.report(why)
    }
}

impl Drop for InPlace<'_> {
    /// Makes room for the sender.
    fn drop(&mut self) {
        // In the child of a fork it is not there, and not the child's.
        if self.end.born.is_elsewhere() {
            return;
        }
        match &mut self.place {
            Place::Ring { rx, record } => {
                let record = *record;
                self.end.finish(rx, record, Body::Ring(record));
                rx.keep_no_more();
                self.end.kept_no_more();
            }
            Place::Outside(body) => self.end.release(body),
        }
    }
}
