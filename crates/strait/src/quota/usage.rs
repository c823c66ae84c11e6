//! Usage: the amounts held for a peer, for the program to read.

use std::sync::atomic::Ordering;

use super::limits::Limits;
use super::{Account, KINDS, Resource};
use crate::sync::unpoisoned;

/// The amount of one resource held for a peer process or for a user, the limit that applies, and how often the limit
/// was reached.
///
/// ```
/// use strait::quota::Resource;
/// let (a, _b) = strait::Channel::pair()?;
/// // `None`: the other end is in this process, which is charged nothing.
/// if let Some(usage) = a.peer_usage()? {
///     let memory = usage.peer(Resource::Memory);
///     println!("{} of {} bytes", memory.held, memory.limit);
/// }
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Level {
    /// The amount of the resource that is held now, in the resource's unit.
    pub held: u64,
    /// The limit that applies to the resource now, in the resource's unit.
    pub limit: u64,
    /// Number of charges that reached the limit so far: each was refused, or was made although it exceeded the limit.
    /// For a peer process, also counts the charges that reached the user's limit or
    /// [`Options::peer_memory`](crate::Options::peer_memory).
    pub reached: u64,
}

/// The resources that this process holds for the peer process at the other end of a channel, and for all processes of
/// the peer's user.
///
/// Example: [how much a peer holds](crate::quota::Level).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    peer: [Level; KINDS],
    user: [Level; KINDS],
    uid: Option<u32>,
    processes: u64,
    idle_wake_ups: u64,
    pauses: u64,
}

impl Usage {
    pub(super) fn of(account: &Account, limits: &Limits) -> Self {
        let of_user = unpoisoned(&account.user.state);
        let mut usage = Self {
            peer: Default::default(),
            user: Default::default(),
            uid: account.user.uid,
            processes: of_user.processes,
            idle_wake_ups: account.idle_wake_ups.load(Ordering::Relaxed),
            pauses: account.pauses.load(Ordering::Relaxed),
        };
        for index in 0..KINDS {
            usage.peer[index] = Level {
                held: account.held[index].load(Ordering::Relaxed),
                limit: limits.peer[index],
                reached: account.reached[index].load(Ordering::Relaxed),
            };
            usage.user[index] = Level {
                held: of_user.held[index],
                limit: limits.user[index],
                reached: account.user.reached[index].load(Ordering::Relaxed),
            };
        }
        usage
    }

    /// Returns how much of `resource` this process holds for the peer process, over all links to the peer, and the
    /// limit.
    pub fn peer(&self, resource: Resource) -> Level {
        self.peer[resource.index()]
    }

    /// Returns how much of `resource` this process holds for all processes of the peer's user together, and the limit.
    pub fn user(&self, resource: Resource) -> Level {
        self.user[resource.index()]
    }

    /// Returns the uid of the peer's user; `None` if the kernel does not identify the user.
    pub fn uid(&self) -> Option<u32> {
        self.uid
    }

    /// Returns the number of idle wake-ups by the peer: the peer woke this process, or sent a packet that only wakes,
    /// and there was nothing to do. A few idle wake-ups are normal for each message for which a thread sleeps.
    pub fn idle_wake_ups(&self) -> u64 {
        self.idle_wake_ups
    }

    /// Returns how often this process throttled the peer: after an idle wake-up over the peer's budget, this process
    /// did not listen to the peer for a millisecond. The budget grows by 8 idle wake-ups for each wake-up with events,
    /// and by one each millisecond, up to 1,024 in all.
    pub fn pauses(&self) -> u64 {
        self.pauses
    }

    /// Returns the number of processes of the peer's user for which this process has an account (the peer included).
    pub fn processes(&self) -> u64 {
        self.processes
    }
}
