//! The scenarios: short programs for up to four processes, with a single purpose each.
//!
//! A process that finds a channel closed because of another process's fault drops everything and ends. [`Actor`]
//! checks the messages that the process must have received before.

mod meeting;
mod moves;
mod objects;
mod outside;
mod ring;
mod typed;

use std::os::fd::OwnedFd;

use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Options, Wait};

use crate::program::actor::{Actor, LOST, Played, Stop, options};
use crate::program::ledger::{Ledger, PROCESSES};
use meeting::{invited, named, within};
use moves::{both, ends, fused, moved, on};
use objects::{calls, pipe, regions};
use outside::{descriptors, full_socket, grow, large, sealed};
use ring::{call, close, connect, full, idle, row, small, spin, wait_set};

/// A function for one process of a scenario, called with the process's sockets.
pub(crate) type Role = fn(&Actor, Vec<OwnedFd>) -> Played;

/// A scenario: its processes, the sockets between them, and the role of each.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The pairs of processes with a socket to each other.
    pub(crate) sockets: &'static [(usize, usize)],
    pub(crate) roles: &'static [Role],
    /// An additional check after the run. Its second argument is the number of the killed process, if a process was
    /// killed.
    pub(crate) judge: fn(&Ledger, Option<usize>) -> Result<(), String>,
}

fn no_more(_: &Ledger, _: Option<usize>) -> Result<(), String> {
    Ok(())
}

/// All scenarios.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "connect", sockets: &[(0, 1)], roles: &[connect::one, connect::other], judge: no_more },
    Scenario { name: "small", sockets: &[(0, 1)], roles: &[small::one, small::other], judge: no_more },
    Scenario { name: "row", sockets: &[(0, 1)], roles: &[row::one, row::other], judge: no_more },
    Scenario { name: "full", sockets: &[(0, 1)], roles: &[full::one, full::other], judge: no_more },
    Scenario { name: "spin", sockets: &[(0, 1)], roles: &[spin::one, spin::other], judge: no_more },
    Scenario {
        name: "descriptors",
        sockets: &[(0, 1)],
        roles: &[descriptors::one, descriptors::other],
        judge: no_more,
    },
    Scenario {
        name: "full socket",
        sockets: &[(0, 1)],
        roles: &[full_socket::one, full_socket::other],
        judge: no_more,
    },
    Scenario { name: "idle", sockets: &[(0, 1)], roles: &[idle::one, idle::other], judge: no_more },
    Scenario { name: "large", sockets: &[(0, 1)], roles: &[large::one, large::other], judge: no_more },
    Scenario { name: "sealed", sockets: &[(0, 1)], roles: &[sealed::one, sealed::other], judge: no_more },
    Scenario { name: "grow", sockets: &[(0, 1)], roles: &[grow::one, grow::other], judge: no_more },
    Scenario { name: "call", sockets: &[(0, 1)], roles: &[call::one, call::other], judge: no_more },
    Scenario { name: "close", sockets: &[(0, 1)], roles: &[close::one, close::other], judge: no_more },
    Scenario { name: "wait set", sockets: &[(0, 1)], roles: &[wait_set::one, wait_set::other], judge: no_more },
    Scenario { name: "ends", sockets: &[(0, 1)], roles: &[ends::one, ends::other], judge: no_more },
    Scenario {
        name: "move",
        sockets: &[(0, 1), (0, 2)],
        roles: &[moved::mover, moved::other, moved::receiver],
        judge: moved::judge,
    },
    Scenario {
        name: "move both",
        sockets: &[(0, 1), (0, 2), (1, 3)],
        roles: &[both::one, both::other, both::receiver, both::receiver],
        judge: both::judge,
    },
    Scenario {
        name: "move on",
        sockets: &[(0, 1), (0, 2), (2, 3)],
        roles: &[on::first, on::other, on::second, on::third],
        judge: on::judge,
    },
    Scenario {
        name: "fuse",
        sockets: &[(0, 1), (0, 2)],
        roles: &[fused::fuser, fused::far, fused::far],
        judge: fused::judge,
    },
    Scenario { name: "by name", sockets: &[], roles: &[named::server, named::client], judge: no_more },
    Scenario { name: "invitation", sockets: &[], roles: &[invited::server, invited::client], judge: no_more },
    Scenario { name: "regions", sockets: &[(0, 1)], roles: &[regions::one, regions::other], judge: no_more },
    Scenario { name: "pipe", sockets: &[(0, 1)], roles: &[pipe::one, pipe::other], judge: no_more },
    Scenario {
        name: "pipe moves",
        sockets: &[(0, 1), (0, 2)],
        roles: &[pipe::mover, pipe::writer, pipe::reader],
        judge: no_more,
    },
    Scenario { name: "pipe aborted", sockets: &[(0, 1)], roles: &[pipe::aborter, pipe::aborted], judge: no_more },
    Scenario { name: "calls", sockets: &[(0, 1)], roles: &[calls::one, calls::other], judge: no_more },
    Scenario { name: "typed", sockets: &[(0, 1)], roles: &[typed::one, typed::other], judge: no_more },
    Scenario {
        name: "typed calls",
        sockets: &[(0, 1)],
        roles: &[typed::calls::one, typed::calls::other],
        judge: no_more,
    },
    Scenario { name: "within", sockets: &[], roles: &[within::alone], judge: no_more },
];

/// Returns the only socket of a process.
pub(crate) fn only(mut sockets: Vec<OwnedFd>) -> OwnedFd {
    assert_eq!(sockets.len(), 1);
    sockets.remove(0)
}

pub(crate) fn two(sockets: Vec<OwnedFd>) -> [OwnedFd; 2] {
    sockets.try_into().expect("two sockets")
}

/// Returns the two ends of a new channel within this process.
fn pair(actor: &Actor) -> Result<(Channel, Channel), Stop> {
    actor.call(|| options().pair())
}
