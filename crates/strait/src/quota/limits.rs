//! Limits on the resources that a process holds for its peers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::KINDS;
use crate::error::Resource;

impl Resource {
    /// All kinds of resources with limits, in the order of their indices in the arrays of amounts and limits.
    pub const ALL: [Self; KINDS] = [
        Self::Memory,
        Self::Mappings,
        Self::Descriptors,
        Self::Lanes,
        Self::QueuedBytes,
        Self::QueuedMessages,
        Self::Regions,
    ];

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// Limits on the resources held for peers: for each peer process, over all its links, and for all processes of one user
/// together.
///
/// | resource | a peer process | a user |
/// |---|---|---|
/// | [`Resource::Memory`] | 4 GiB | 32 GiB |
/// | [`Resource::Mappings`] | 16,384 | 32,768 |
/// | [`Resource::Descriptors`] | 8,192 | 32,768 |
/// | [`Resource::Lanes`] | 1,048,576 | 8,388,608 |
/// | [`Resource::QueuedBytes`] | 256 MiB | 1 GiB |
/// | [`Resource::QueuedMessages`] | 1,048,576 | 4,194,304 |
/// | [`Resource::Regions`] | 64 GiB | 256 GiB |
///
/// While *n* processes of a user are connected, each may have at most 1/(*n* + 1) of the amount that the other
/// processes leave of the user's limit. So an amount always remains for the next process, and a single process gets
/// half. The kernel identifies the users. Peers that the kernel does not identify count as one user.
///
/// Example: [limits](crate::quota).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub(super) peer: [u64; KINDS],
    pub(super) user: [u64; KINDS],
}

const DEFAULT: Limits = Limits {
    peer: [4 << 30, 16 << 10, 8 << 10, 1 << 20, 256 << 20, 1 << 20, 64 << 30],
    user: [32 << 30, 32 << 10, 32 << 10, 8 << 20, 1 << 30, 4 << 20, 256 << 30],
};

/// The limits that apply in this process now: first the limits for one peer process, then the limits for all processes
/// of one user. The limits are atomics without a lock: in a forked child, a lock could stay locked for ever by a thread
/// of the parent.
static LIMITS: [[AtomicU64; KINDS]; 2] = [atomic(DEFAULT.peer), atomic(DEFAULT.user)];

const fn atomic(limits: [u64; KINDS]) -> [AtomicU64; KINDS] {
    let [a, b, c, d, e, f, g] = limits;
    [
        AtomicU64::new(a),
        AtomicU64::new(b),
        AtomicU64::new(c),
        AtomicU64::new(d),
        AtomicU64::new(e),
        AtomicU64::new(f),
        AtomicU64::new(g),
    ]
}

impl Default for Limits {
    fn default() -> Self {
        DEFAULT
    }
}

impl Limits {
    /// Returns the default limits of every resource, as in the table of [`Limits`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the greatest amount of `resource` to hold for one peer process.
    #[must_use]
    pub fn peer(mut self, resource: Resource, most: u64) -> Self {
        self.peer[resource.index()] = most;
        self
    }

    /// Sets the greatest amount of `resource` to hold for all peer processes of one user together.
    #[must_use]
    pub fn user(mut self, resource: Resource, most: u64) -> Self {
        self.user[resource.index()] = most;
        self
    }
}

/// Sets the limits of this process; possible at any time. The limits apply to later requests of peers; this process
/// keeps the resources already held. A forked child has the limits of its parent.
///
/// Example: [limits](crate::quota).
pub fn set_limits(limits: Limits) {
    for (places, limits) in LIMITS.iter().zip([limits.peer, limits.user]) {
        places.iter().zip(limits).for_each(|(place, limit)| place.store(limit, Ordering::Relaxed));
    }
}

/// Returns the limits that apply in this process now, for one peer process and for all processes of one user.
///
/// Example: [limits](crate::quota).
pub fn limits() -> Limits {
    let [peer, user] = LIMITS.each_ref().map(|places| places.each_ref().map(|place| place.load(Ordering::Relaxed)));
    Limits { peer, user }
}
