//! Usage: what this process holds for a peer, for the program to read.

use std::sync::atomic::Ordering;

use super::limits::Limits;
use super::{Account, KINDS, Resource};
use crate::sync::unpoisoned;

/// How much of a resource is held for a peer or a user, and its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Level {
    /// The amount held now.
    pub held: u64,
    /// The limit that applies now.
    pub limit: u64,
    /// How often the limit was reached, so that a request was refused or held only as an exception.
    pub reached: u64,
}

/// What this process holds for the process at the other end of a channel, and for all processes of that process's user.
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

    /// Returns what is held for the peer process, over all links to it.
    pub fn peer(&self, resource: Resource) -> Level {
        self.peer[resource.index()]
    }

    /// Returns what is held for all processes of the peer's user.
    pub fn user(&self, resource: Resource) -> Level {
        self.user[resource.index()]
    }

    /// Returns the uid of the peer's user; `None` for peers whose user the kernel does not name.
    pub fn uid(&self) -> Option<u32> {
        self.uid
    }

    /// Returns the number of idle wake-ups: how often the peer woke this process, or sent a packet that only wakes, and
    /// there was nothing to do. A few are normal for each message for which a thread sleeps.
    pub fn idle_wake_ups(&self) -> u64 {
        self.idle_wake_ups
    }

    /// Returns how often the peer was throttled: it was not listened to for a millisecond after an idle wake-up too
    /// many. Permitted are 8 idle wake-ups for each wake-up that had events, and one more each millisecond, of which up
    /// to 1,024 accumulate.
    pub fn pauses(&self) -> u64 {
        self.pauses
    }

    /// Returns the number of processes of the peer's user for which this process has an account.
    pub fn processes(&self) -> u64 {
        self.processes
    }
}
