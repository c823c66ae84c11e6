//! What is held for a peer, as its user sees it.

use std::sync::atomic::Ordering;

use super::limits::Limits;
use super::{Account, KINDS, Resource};
use crate::sync::unpoisoned;

/// How much of a resource is held, and how much may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Level {
    /// Held now.
    pub held: u64,
    /// The limit that is set now.
    pub limit: u64,
    /// How often something was refused, since more would have been held than may be.
    pub reached: u64,
}

/// What this process holds for the process at the other end of a channel, and for all peers of that one's user.
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

    /// What is held for the process, over all links to it.
    pub fn peer(&self, resource: Resource) -> Level {
        self.peer[resource.index()]
    }

    /// What is held for all processes of its user.
    pub fn user(&self, resource: Resource) -> Level {
        self.user[resource.index()]
    }

    /// That user; `None` for peers of which the kernel knows none.
    pub fn uid(&self) -> Option<u32> {
        self.uid
    }

    /// How often the process has woken this one, or sent a packet that only wakes, and there was nothing; a few come
    /// with every message that somebody sleeps for.
    pub fn idle_wake_ups(&self) -> u64 {
        self.idle_wake_ups
    }

    /// How many of those were too many: more than 8 for each wake-up that had something to show, and one a millisecond,
    /// with 1,024 in store. After each of them the peer was not listened to for a millisecond.
    pub fn pauses(&self) -> u64 {
        self.pauses
    }

    /// How many processes of the user something is held for.
    pub fn processes(&self) -> u64 {
        self.processes
    }
}
