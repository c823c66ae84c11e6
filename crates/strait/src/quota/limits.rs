//! How much is held for peers, and what is held.

use std::sync::atomic::{AtomicU64, Ordering};

use super::KINDS;
use crate::error::Resource;

impl Resource {
    /// All of them.
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

/// How much this process holds for its peers: for each peer process, whatever links lead to it, and for all processes
/// of one user.
///
/// | what | a peer process | a user |
/// |---|---|---|
/// | [`Resource::Memory`] | 4 GiB | 32 GiB |
/// | [`Resource::Mappings`] | 16,384 | 32,768 |
/// | [`Resource::Descriptors`] | 8,192 | 32,768 |
/// | [`Resource::Lanes`] | 1,048,576 | 8,388,608 |
/// | [`Resource::QueuedBytes`] | 256 MiB | 1 GiB |
/// | [`Resource::QueuedMessages`] | 1,048,576 | 4,194,304 |
/// | [`Resource::Regions`] | 64 GiB | 256 GiB |
///
/// Of what the user's limit leaves, a process may have no more than one part in *n* + 1, if *n* processes of this user
/// are here: so those that are here, however they share it, leave the next one something, and a single one gets half.
/// The users are those that the kernel names. Peers that it could not name are one user together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub(super) peer: [u64; KINDS],
    pub(super) user: [u64; KINDS],
}

const DEFAULT: Limits = Limits {
    peer: [4 << 30, 16 << 10, 8 << 10, 1 << 20, 256 << 20, 1 << 20, 64 << 30],
    user: [32 << 30, 32 << 10, 32 << 10, 8 << 20, 1 << 30, 4 << 20, 256 << 30],
};

/// Of a peer, and of a user. Each by itself: no lock that a thread of a parent could hold.
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
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How much of it one peer process may have held.
    #[must_use]
    pub fn peer(mut self, resource: Resource, most: u64) -> Self {
        self.peer[resource.index()] = most;
        self
    }

    /// How much of it all peer processes of one user may have held together.
    #[must_use]
    pub fn user(mut self, resource: Resource, most: u64) -> Self {
        self.user[resource.index()] = most;
        self
    }
}

/// Sets the limits of this process, at any time. They hold for what is asked for from now on; what is held stays. A child of a
/// `fork` has those of its parent.
pub fn set_limits(limits: Limits) {
    for (places, limits) in LIMITS.iter().zip([limits.peer, limits.user]) {
        places.iter().zip(limits).for_each(|(place, limit)| place.store(limit, Ordering::Relaxed));
    }
}

/// The limits that hold now.
pub fn limits() -> Limits {
    let [peer, user] = LIMITS.each_ref().map(|places| places.each_ref().map(|place| place.load(Ordering::Relaxed)));
    Limits { peer, user }
}
