//! Uses of links, and the state of lanes that belongs to a link.
//!
//! A link is in **use** as long as something depends on it: a lane of an end that is here, a member of a wait set, a
//! call. Uses are counted ([`InUse`]). When the last use of a link ends, the lanes decide whether the link is still
//! needed ([`Directory`]).
//!
//! Two kinds of objects are kept for an end in transit to this process: the next link of the end, and the ends in
//! messages to the end. Both are counted as uses of their links, but do not retain the links. Each link knows how many
//! such uses there may be ([`InTransit`]).

use std::any::Any;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Link;
use super::io::ReceivedAttachment;
use super::packet::Packet;
use crate::error::Error;
use crate::os::fork::PerProcess;
use crate::sync::unpoisoned;

/// The state of lanes that belongs to a link: the announcements of the peer over the link, and this process's arenas
/// for the peer.
pub(crate) trait Directory: Any + Send + Sync {
    /// Stores the announcement in `packet`, which `link` has received: the packet introduces another process, brings an
    /// arena, or says that an arena brings no more lanes. Does nothing for any other packet. After a temporary error
    /// nothing has changed. Fails with [`Error::BadPeer`] if the announcement is impossible.
    fn learn(&self, link: &Link, packet: Packet, attachments: Vec<ReceivedAttachment>) -> Result<(), Error>;

    /// Called when the last use of `link`, not counting uses on behalf of ends in transit, has ended. `is_counted` says
    /// whether any use is still counted. The caller holds no lock.
    fn end_use(&self, link: &Link, is_counted: bool);

    /// Returns whether the dropped link may receive its remaining packets first.
    fn may_drain(&self) -> bool;

    /// Called when `link` is being dropped and has received its remaining packets; `heard` is the result of the last
    /// receive.
    ///
    /// # Errors
    /// A temporary error if the announcements over the link may still be needed: the link must then be dropped again
    /// later.
    fn end(&self, link: &Link, heard: Result<(), Error>) -> Result<(), Error>;
}

/// The counts of the uses of one link.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// The number of uses of the link, each by a lane, a member of a wait set or a call. A link with uses stays open.
    all: AtomicUsize,
    /// The number of uses, among `all`, that may be on behalf of ends still in transit to this process. Retention (the
    /// rule for open links) does not count such uses.
    in_transit: AtomicUsize,
}

/// A lock held by a thread while ending the last use of a link, and while searching for unreachable links. So the links
/// in use stay in use during a search.
static TURN: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

/// The number of retention marks in this process. A retention mark ([`InTransit`]) is a note that an object is kept for
/// an end possibly still in transit to this process.
static IN_TRANSIT: AtomicUsize = AtomicUsize::new(0);

/// Returns the guard of a lock: while a thread holds the guard, each link that is in use stays in use.
pub(crate) fn hold() -> MutexGuard<'static, ()> {
    unpoisoned(TURN.get())
}

/// A counted use of a link, by a lane, a member of a wait set or a call. The link stays open until every `InUse` of the
/// link is dropped.
#[derive(Debug)]
pub(crate) struct InUse(Arc<Link>);

impl InUse {
    /// Counts a use of `link`, and returns an `InUse` whose drop ends the use. The caller must have created the link,
    /// or have it from a link in use. Uses of the link of this process to itself are not counted.
    fn of(link: &Arc<Link>) -> Self {
        if !link.is_own() {
            link.uses.all.fetch_add(1, Ordering::AcqRel);
        }
        Self(link.clone())
    }
}

impl Deref for InUse {
    type Target = Arc<Link>;

    fn deref(&self) -> &Arc<Link> {
        &self.0
    }
}

impl Clone for InUse {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl Drop for InUse {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_own() {
            self.0.end_use();
        }
    }
}

/// A retention mark: a note that one use of each link in the field belongs to an end possibly still in transit to this
/// process. Retention (the rule for open links) does not count such uses.
#[derive(Debug)]
pub(crate) struct InTransit(Vec<Arc<Link>>);

impl InTransit {
    /// Returns a new retention mark, to which [`with`](Self::with) adds links, if `in_transit` is `true` or this
    /// process has any other retention mark. `in_transit` says whether the end of the kept object may be in transit to
    /// this process. Otherwise returns `None`: no mark is needed.
    pub(crate) fn counted(in_transit: bool) -> Option<Self> {
        (in_transit || IN_TRANSIT.load(Ordering::SeqCst) > 0).then(|| {
            IN_TRANSIT.fetch_add(1, Ordering::SeqCst);
            Self(Vec::new())
        })
    }

    /// Adds a use of each of these links to this retention mark, and returns the mark. Leaves out the link of this
    /// process to itself.
    pub(crate) fn with(mut self, links: impl IntoIterator<Item = Arc<Link>>) -> Self {
        let counted = links.into_iter().filter(|link| !link.is_own());
        self.0.extend(counted.inspect(|link| {
            link.uses.in_transit.fetch_add(1, Ordering::AcqRel);
        }));
        self
    }
}

impl Drop for InTransit {
    fn drop(&mut self) {
        for link in &self.0 {
            link.uses.in_transit.fetch_sub(1, Ordering::AcqRel);
        }
        IN_TRANSIT.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Link {
    /// Counts a use of the link, and returns an [`InUse`], whose drop ends the use. A link in use stays open.
    pub(crate) fn in_use(self: &Arc<Self>) -> InUse {
        InUse::of(self)
    }

    /// Counts a use of the link, and returns an [`InUse`], if the link has another use. Otherwise returns `None`: the
    /// link may be about to be closed.
    pub(crate) fn in_use_still(self: &Arc<Self>) -> Option<InUse> {
        let _turn = hold();
        self.is_used().then(|| self.in_use())
    }

    /// Returns whether the link is in use. Uses for ends in transit do not count.
    pub(crate) fn is_used(&self) -> bool {
        self.uses() > self.uses.in_transit.load(Ordering::Acquire)
    }

    /// Returns the number of counted uses of the link, including uses on behalf of ends in transit.
    pub(crate) fn uses(&self) -> usize {
        self.uses.all.load(Ordering::Acquire)
    }

    /// Returns whether the link would still be in use if one of its uses ended. Uses for ends in transit do not count.
    pub(crate) fn has_other_uses(&self) -> bool {
        self.uses() > self.uses.in_transit.load(Ordering::Acquire) + 1
    }

    /// Returns the state of the lanes of this link.
    pub(crate) fn directory(&self) -> &dyn Directory {
        &*self.directory
    }

    #[inline]
    fn end_use(&self) {
        let others = |all: usize| (all > self.uses.in_transit.load(Ordering::Acquire) + 1).then(|| all - 1);
        if self.uses.all.fetch_update(Ordering::AcqRel, Ordering::Acquire, others).is_err() {
            self.end_last_use();
        }
    }

    #[cold]
    fn end_last_use(&self) {
        if self.is_elsewhere() {
            return;
        }
        let held = hold();
        let before = self.uses.all.fetch_sub(1, Ordering::AcqRel);
        drop(held);
        self.directory.end_use(self, before > 1);
    }
}
