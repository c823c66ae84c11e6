//! The scenarios: what two to four processes do with each other. Each is short, and does one thing.
//!
//! A process that finds a channel closed by another's fault drops all that it has and ends; what it must have received
//! before that, [`Actor`] checks.

use std::os::fd::OwnedFd;

use strait::{Channel, Deadline, Error, Interest, Mode, Options, Wait, WaitSet};

use crate::actor::{Actor, LOST, Played, Stop, options};
use crate::ledger::{Ledger, PROCESSES};
use crate::objects::{calls, pipe, regions};

/// What a process does with its sockets.
pub(crate) type Role = fn(&Actor, Vec<OwnedFd>) -> Played;

/// Processes, the sockets between them, and what each does.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Which processes have a socket to each other.
    pub(crate) sockets: &'static [(usize, usize)],
    pub(crate) roles: &'static [Role],
    /// What must be so at the end besides what holds everywhere, given who was killed.
    pub(crate) judge: fn(&Ledger, Option<usize>) -> Result<(), String>,
}

fn no_more(_: &Ledger, _: Option<usize>) -> Result<(), String> {
    Ok(())
}

/// All of them.
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
    Scenario { name: "calls", sockets: &[(0, 1)], roles: &[calls::one, calls::other], judge: no_more },
    Scenario { name: "within", sockets: &[], roles: &[within::alone], judge: no_more },
];

/// The only socket of a process.
pub(crate) fn only(mut sockets: Vec<OwnedFd>) -> OwnedFd {
    assert_eq!(sockets.len(), 1);
    sockets.remove(0)
}

pub(crate) fn two(sockets: Vec<OwnedFd>) -> [OwnedFd; 2] {
    sockets.try_into().expect("two sockets")
}

/// Ends that many processes can hold, each with a channel to nobody else.
fn pair(actor: &Actor) -> Result<(Channel, Channel), Stop> {
    actor.call(|| Channel::pair_with(&options()))
}

/// Two processes open their sides, and say a word each.
mod connect {
    use super::*;

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.send(0, &channel, 10)?;
        actor.recv(1, &channel, 20)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.recv(0, &channel, 10)?;
        actor.send(1, &channel, 20)
    }
}

/// Small messages of all lengths up to some cells, there and back.
mod small {
    use super::*;

    const LENS: [usize; 8] = [0, 1, 8, 55, 56, 57, 120, 300];

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for len in LENS {
            actor.send(0, &channel, len)?;
        }
        LENS.iter().try_for_each(|len| actor.recv(1, &channel, *len))
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for len in LENS {
            actor.recv(0, &channel, len)?;
        }
        LENS.iter().try_for_each(|len| actor.send(1, &channel, *len))
    }
}

/// Messages in rows, and received in rows.
mod row {
    use super::*;

    const LENS: [usize; 12] = [10, 20, 0, 256, 257, 30, 8, 700, 1, 2, 3, 100];

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &options().ring(1024).ring_max(1024))?;
        actor.send_row(0, &channel, &LENS)?;
        actor.send_row(0, &channel, &LENS)?;
        actor.recv(1, &channel, 7)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let mut left = 2 * LENS.len();
        let mut slots: Vec<_> = (0..5).map(|_| strait::Message::new()).collect();
        while left > 0 {
            let received =
                actor.ended(0, |actor| actor.again_if_refused(|| channel.recv_many(&mut slots, Deadline::NEVER)))?;
            slots[..received].iter().for_each(|message| actor.check(0, message.bytes()));
            left -= received;
        }
        actor.send(1, &channel, 7)
    }
}

/// A sender that waits for room, since the ring may not grow.
mod full {
    use super::*;

    const COUNT: usize = 20;

    fn narrow() -> Options {
        options().ring(512).ring_max(512)
    }

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &narrow())?;
        for _ in 0..COUNT {
            actor.send(0, &channel, 100)?;
        }
        (0..COUNT).try_for_each(|_| actor.recv(1, &channel, 50))
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &narrow())?;
        for _ in 0..COUNT {
            actor.recv(0, &channel, 100)?;
        }
        (0..COUNT).try_for_each(|_| actor.send(1, &channel, 50))
    }
}

/// The same with waiters that spin.
mod spin {
    use super::*;

    fn spinning() -> Options {
        Options::new().wait(Wait::Spin).ring(512).ring_max(512)
    }

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &spinning())?;
        for _ in 0..6 {
            actor.send(0, &channel, 100)?;
        }
        actor.recv(1, &channel, 50)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &spinning())?;
        for _ in 0..6 {
            actor.recv(0, &channel, 100)?;
        }
        actor.send(1, &channel, 50)
    }
}

/// Descriptors in messages small and large.
mod descriptors {
    use super::*;

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.send_with(0, &channel, 30, actor.files(3))?;
        actor.send(0, &channel, 30)?;
        actor.send_with(0, &channel, 0, actor.files(1))?;
        actor.send_with(0, &channel, 100_000, actor.files(2))?;
        actor.recv_files(1, &channel, 3, 2)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.recv_files(0, &channel, 30, 3)?;
        actor.recv(0, &channel, 30)?;
        actor.recv_files(0, &channel, 0, 1)?;
        actor.recv_files(0, &channel, 100_000, 2)?;
        actor.send_with(1, &channel, 3, actor.files(2))
    }
}

/// The same over a socket that is soon full.
mod full_socket {
    use super::*;

    const COUNT: usize = 10;

    fn narrow(sockets: Vec<OwnedFd>) -> OwnedFd {
        let socket = only(sockets);
        // The kernel makes the least it can of this, about six packets.
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, 1).expect("setsockopt");
        socket
    }

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(narrow(sockets))?;
        for _ in 0..COUNT {
            actor.send_with(0, &channel, 30, actor.files(1))?;
        }
        actor.recv(1, &channel, 7)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(narrow(sockets))?;
        // Not before the socket is full.
        std::thread::sleep(std::time::Duration::from_millis(2));
        for _ in 0..COUNT {
            actor.recv_files(0, &channel, 30, 1)?;
        }
        actor.send(1, &channel, 7)
    }
}

/// Waits so long that who waits sleeps on the socket, and then a message, and then the end of a channel whose processes go
/// on.
mod idle {
    use super::*;

    /// Longer than a sleep on a word.
    const LONG: std::time::Duration = std::time::Duration::from_millis(40);

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let (x, y) = pair(actor)?;
        actor.send_with(0, &channel, 9, vec![y.into()])?;
        std::thread::sleep(LONG);
        actor.send(2, &x, 8)?;
        std::thread::sleep(LONG);
        drop(x);
        actor.recv(1, &channel, 7)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let y = actor.recv_end(0, &channel, 9)?;
        actor.recv(2, &y, 8)?;
        actor.recv_end_of(2, &y)?;
        actor.send(1, &channel, 7)
    }
}

/// Messages outside of the ring, and blocks that are used again.
mod large {
    use super::*;

    const LENS: [usize; 4] = [100_000, 80_000, 200_000, 100_000];

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        // Two may not be under way at once, so the sender waits for what the receiver gives back.
        let channel = actor.open_with(only(sockets), &options().queue_bytes(150_000))?;
        for len in LENS {
            actor.send(0, &channel, len)?;
        }
        actor.recv(1, &channel, 70_000)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for len in LENS {
            actor.recv(0, &channel, len)?;
        }
        actor.send(1, &channel, 70_000)
    }
}

/// Messages in sealed memory, read in place.
mod sealed {
    use super::*;
    use crate::actor::content;

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for (len, files) in [(50_000, 0), (5000, 2)] {
            let mut handles = actor.files(files);
            actor.send_made(0, |number| {
                let mut room = channel.reserve_sealed(len)?;
                room.bytes().copy_from_slice(&content(0, number, len));
                handles.drain(..).for_each(|handle| room.add_handle(handle));
                room.commit(Deadline::NEVER).map_err(|refused| {
                    handles = refused.handles;
                    refused.error
                })
            })?;
        }
        actor.send_made(0, |number| {
            let mut room = channel.reserve(90_000, Deadline::NEVER)?;
            room.put_at(0, &content(0, number, 90_000));
            room.commit().map_err(|refused| refused.error)
        })?;
        actor.recv(1, &channel, 5)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for (len, files) in [(50_000, 0), (5000, 2), (90_000, 0)] {
            let mut view = actor.ended(0, |actor| actor.again_if_refused(|| channel.recv_in_place(Deadline::NEVER)))?;
            assert_eq!(view.len(), len);
            let mut bytes = vec![0; len];
            view.copy_to(0, &mut bytes);
            actor.check(0, &bytes);
            match view.take_handles() {
                Ok(handles) => actor.check_files(handles, files),
                Err(error) => assert!(matches!(error, Error::HandlesLost { .. }), "{error:?}"),
            }
        }
        actor.send(1, &channel, 5)
    }
}

/// A ring that grows under a receiver that does not come to it.
mod grow {
    use super::*;

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &options().ring(512))?;
        if actor.may_be_refused() {
            // A ring that cannot grow has to be emptied.
            actor.open_gate(0);
        }
        for _ in 0..12 {
            actor.send(0, &channel, 150)?;
        }
        actor.send(0, &channel, 9000)?;
        actor.open_gate(0);
        actor.recv(1, &channel, 9)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.wait_at_gate(0, 0);
        for _ in 0..12 {
            actor.recv(0, &channel, 150)?;
        }
        actor.recv(0, &channel, 9000)?;
        actor.send(1, &channel, 9)
    }
}

/// Questions and answers.
mod call {
    use super::*;

    const ROUNDS: [(usize, usize); 4] = [(8, 0), (300, 1), (8, 0), (70_000, 1)];

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for (len, files) in ROUNDS {
            actor.send_with(0, &channel, len, actor.files(files))?;
            actor.recv_files(1, &channel, len, files)?;
        }
        Ok(())
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for (len, files) in ROUNDS {
            actor.recv_files(0, &channel, len, files)?;
            actor.send_with(1, &channel, len, actor.files(files))?;
        }
        Ok(())
    }
}

/// Both sides close with something unread.
mod close {
    use super::*;

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.send_with(0, &channel, 5, actor.files(1))?;
        actor.send(0, &channel, 70_000)?;
        actor.send(0, &channel, 5)?;
        actor.wait_at_gate(0, 1);
        // With all that the other has sent unread.
        Ok(())
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.recv_files(0, &channel, 5, 1)?;
        let (x, y) = pair(actor)?;
        actor.send_with(1, &channel, 6, actor.files(2))?;
        actor.send_with(1, &channel, 6, vec![y.into()])?;
        actor.send(1, &channel, 70_000)?;
        actor.open_gate(0);
        actor.recv(0, &channel, 70_000)?;
        actor.recv(0, &channel, 5)?;
        actor.recv_end_of(0, &channel)?;
        actor.recv_end_of(2, &x)
    }
}

/// Many channels waited for at once, by an end that is woken through a wait set.
mod wait_set {
    use super::*;

    const CHANNELS: usize = 3;

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let mut ours = Vec::new();
        for _ in 0..CHANNELS {
            let (x, y) = pair(actor)?;
            actor.send_with(0, &channel, 1, vec![y.into()])?;
            ours.push(x);
        }
        for _ in 0..2 {
            for (index, x) in ours.iter().enumerate() {
                actor.send(2 + index, x, 30)?;
                actor.recv(8 + index, x, 3)?;
            }
        }
        Ok(())
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let set = actor.call(WaitSet::new)?;
        let mut theirs = Vec::new();
        for key in 0..CHANNELS {
            let end = actor.recv_end(0, &channel, 1)?;
            // The socket may be full, as it is said.
            actor.until_it_does_not_block(|| set.add(&end, key as u64, Interest::Readable, Mode::Level))?;
            theirs.push(end);
        }
        let mut left = 2 * CHANNELS;
        let mut events = Vec::new();
        while left > 0 {
            actor.call(|| set.wait(&mut events, Deadline::NEVER))?;
            for event in &events {
                let index = event.key() as usize;
                let received = actor.recv_by(2 + index, |message| theirs[index].recv_to(message, Deadline::NOW));
                let message = received?;
                actor.check(2 + index, message.bytes());
                actor.send(8 + index, &theirs[index], 3)?;
                left -= 1;
            }
        }
        Ok(())
    }
}

/// Several ends in one message, and all of them used, and closed while the processes go on.
mod ends {
    use super::*;

    const ENDS: usize = 4;

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let mut ours = Vec::new();
        let mut theirs = actor.files(1);
        for index in 0..ENDS {
            let (x, y) = pair(actor)?;
            // What is unread goes along, descriptors as well.
            actor.send_with(2 + index, &x, 40, actor.files(usize::from(index == 1)))?;
            theirs.push(y.into());
            ours.push(x);
        }
        actor.send_with(0, &channel, 9, theirs)?;
        for (index, x) in ours.iter().enumerate() {
            actor.send(2 + index, x, 500)?;
            actor.recv(8 + index, x, 2)?;
        }
        drop(ours);
        actor.recv(1, &channel, 6)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let Some(mut handles) = actor.recv_with(0, &channel, 9)? else {
            return Err(Stop::GaveUp(Error::HandlesLost { sent: 1 + ENDS, arrived: 0 }));
        };
        let ends = handles.split_off(1);
        actor.check_files(handles, 1);
        let ends: Vec<_> = ends.into_iter().map(|end| end.into_channel().expect("an end")).collect();
        for (index, end) in ends.iter().enumerate() {
            actor.recv_files(2 + index, end, 40, usize::from(index == 1))?;
            actor.recv(2 + index, end, 500)?;
            actor.send(8 + index, end, 2)?;
        }
        for (index, end) in ends.iter().enumerate() {
            actor.recv_end_of(2 + index, end)?;
        }
        actor.send(1, &channel, 6)
    }
}

/// What was said over a channel whose ends moved: it went through, or was closed.
const THROUGH: u32 = 1;
/// It got its end.
const HAS: u32 = 2;
/// It sent the end away.
const AWAY: u32 = 4;

fn marks(ledger: &Ledger) -> [u32; PROCESSES] {
    std::array::from_fn(|number| ledger.lives[number].mark.load(std::sync::atomic::Ordering::SeqCst))
}

/// Two that live both come through, or neither; and they do if all those between them who died had done their part.
fn agree(marks: &[u32], pair: [usize; 2], killed: Option<usize>, movers: &[usize]) -> Result<(), String> {
    let through = pair.map(|number| marks[number] & THROUGH != 0);
    let lost = marks.iter().any(|mark| mark & LOST != 0);
    match killed {
        Some(killed) if pair.contains(&killed) => Ok(()),
        _ if lost => Ok(()),
        _ if through[0] != through[1] => Err(format!("of {pair:?} one came through only: {through:?}")),
        Some(killed) if movers.contains(&killed) && marks[killed] & AWAY != 0 && !through[0] => {
            Err(format!("{pair:?} were cut off by {killed}, which had done its part"))
        }
        _ => Ok(()),
    }
}

/// An end moves from the process that holds it to another one, and the two that are left talk.
mod moved {
    use super::*;

    pub(super) fn mover(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let [b, c] = two(sockets);
        let (b, c) = (actor.open(b)?, actor.open(c)?);
        let (x, y) = pair(actor)?;
        actor.send_with(0, &b, 11, vec![y.into()])?;
        actor.wait_at_gate(0, 1);
        actor.send(2, &x, 60)?;
        actor.send_with(2, &x, 61, actor.files(1))?;
        actor.send_with(1, &c, 12, vec![x.into()])?;
        actor.mark(AWAY);
        actor.recv(3, &b, 1)?;
        actor.recv(4, &c, 1)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let b = actor.open(only(sockets))?;
        let y = actor.recv_end(0, &b, 11)?;
        actor.send(5, &y, 62)?;
        actor.send_with(5, &y, 63, actor.files(1))?;
        actor.send(5, &y, 70_000)?;
        actor.open_gate(0);
        actor.recv(2, &y, 60)?;
        actor.recv_files(2, &y, 61, 1)?;
        actor.recv(2, &y, 64)?;
        actor.recv_files(2, &y, 65, 1)?;
        actor.send_with(5, &y, 66, actor.files(1))?;
        actor.recv(2, &y, 5)?;
        actor.mark(THROUGH);
        actor.send(3, &b, 1)
    }

    pub(super) fn receiver(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let c = actor.open(only(sockets))?;
        let x = actor.recv_end(1, &c, 12)?;
        actor.mark(HAS);
        actor.recv(5, &x, 62)?;
        actor.recv_files(5, &x, 63, 1)?;
        actor.recv(5, &x, 70_000)?;
        actor.send(2, &x, 64)?;
        actor.send_with(2, &x, 65, actor.files(1))?;
        actor.recv_files(5, &x, 66, 1)?;
        actor.send(2, &x, 5)?;
        // The other one has it, and has closed its end or soon will.
        actor.recv_end_of(5, &x)?;
        actor.mark(THROUGH);
        actor.send(4, &c, 1)
    }

    pub(super) fn judge(ledger: &Ledger, killed: Option<usize>) -> Result<(), String> {
        agree(&marks(ledger), [1, 2], killed, &[0])
    }
}

/// Both ends of a channel move at once.
mod both {
    use super::*;

    pub(super) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let [b, c] = two(sockets);
        let (b, c) = (actor.open(b)?, actor.open(c)?);
        let (x, y) = pair(actor)?;
        actor.send_with(0, &b, 11, vec![y.into()])?;
        actor.send(6, &x, 20)?;
        actor.open_gate(0);
        actor.wait_at_gate(1, 1);
        actor.send_with(1, &c, 12, vec![x.into()])?;
        actor.mark(AWAY);
        actor.recv(3, &c, 1)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let [b, d] = two(sockets);
        let (b, d) = (actor.open(b)?, actor.open(d)?);
        let y = actor.recv_end(0, &b, 11)?;
        actor.send(7, &y, 20)?;
        actor.open_gate(1);
        actor.wait_at_gate(0, 0);
        actor.send_with(2, &d, 12, vec![y.into()])?;
        actor.mark(AWAY);
        actor.recv(4, &d, 1)
    }

    /// The two differ in what they send first.
    pub(super) fn receiver(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let (carrying, answer, out, back) = if actor.number() == 2 { (1, 3, 6, 7) } else { (2, 4, 7, 6) };
        let channel = actor.open(only(sockets))?;
        let end = actor.recv_end(carrying, &channel, 12)?;
        actor.mark(HAS);
        actor.send(out, &end, 30)?;
        actor.recv(back, &end, 20)?;
        actor.recv(back, &end, 30)?;
        actor.send(out, &end, 40)?;
        actor.recv(back, &end, 40)?;
        actor.mark(THROUGH);
        actor.open_gate(actor.number());
        actor.wait_at_gate(5 - actor.number(), 5 - actor.number());
        actor.send(answer, &channel, 1)
    }

    pub(super) fn judge(ledger: &Ledger, killed: Option<usize>) -> Result<(), String> {
        let marks = marks(ledger);
        // If one of the two never got its end it is nobody's fault but the mover's.
        match marks[2] & marks[3] & HAS {
            0 => Ok(()),
            _ => agree(&marks, [2, 3], killed, &[0, 1]),
        }
    }
}

/// Two channels are fused by the process between, and the two that are left talk.
mod fused {
    use super::*;

    pub(super) fn fuser(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let [b, c] = two(sockets);
        let mut ends = Some((actor.open(b)?, actor.open(c)?));
        // What both have sent is there.
        actor.wait_at_gate(1, 1);
        actor.wait_at_gate(2, 2);
        actor.call(|| {
            let (b, c) = ends.take().expect("they came back");
            b.fuse(c, Deadline::NEVER).map_err(|failed| {
                ends = Some(failed.channels);
                failed.error
            })
        })?;
        actor.mark(AWAY);
        Ok(())
    }

    /// Receives a message of one who may have sent it to a process that died with it.
    fn hear(actor: &Actor, stream: usize, channel: &Channel, len: usize, files: usize) -> Played {
        let mut message = actor.call(|| channel.recv())?;
        assert_eq!(message.bytes().len(), len, "the length of a message of stream {stream}");
        actor.check(stream, message.bytes());
        match message.take_handles() {
            Ok(handles) => actor.check_files(handles, files),
            Err(error) => assert!(matches!(error, Error::HandlesLost { .. }), "{error:?}"),
        }
        Ok(())
    }

    pub(super) fn far(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let (out, back) = if actor.number() == 1 { (0, 1) } else { (1, 0) };
        let channel = actor.open(only(sockets))?;
        actor.send(out, &channel, 60)?;
        actor.send_with(out, &channel, 61, actor.files(1))?;
        actor.send(out, &channel, 70_000)?;
        actor.open_gate(actor.number());
        actor.send(out, &channel, 62)?;
        hear(actor, back, &channel, 60, 0)?;
        hear(actor, back, &channel, 61, 1)?;
        hear(actor, back, &channel, 70_000, 0)?;
        hear(actor, back, &channel, 62, 0)?;
        // Whoever hears this has the other one, and nobody between.
        actor.send_with(out, &channel, 63, actor.files(1))?;
        hear(actor, back, &channel, 63, 1)?;
        actor.mark(THROUGH);
        actor.open_gate(2 + actor.number());
        actor.wait_at_gate(5 - actor.number(), 3 - actor.number());
        Ok(())
    }

    pub(super) fn judge(ledger: &Ledger, killed: Option<usize>) -> Result<(), String> {
        agree(&marks(ledger), [1, 2], killed, &[0])
    }
}

/// An end moves on before anybody has looked at it.
mod on {
    use super::*;

    pub(super) fn first(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let [b, c] = two(sockets);
        let (b, c) = (actor.open(b)?, actor.open(c)?);
        let (x, y) = pair(actor)?;
        actor.send(6, &x, 20)?;
        actor.send_with(0, &b, 11, vec![y.into()])?;
        actor.send(6, &x, 21)?;
        actor.send_with(1, &c, 12, vec![x.into()])?;
        actor.mark(AWAY);
        actor.recv(3, &c, 1)
    }

    pub(super) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let b = actor.open(only(sockets))?;
        let y = actor.recv_end(0, &b, 11)?;
        actor.send(7, &y, 30)?;
        for len in [20, 21, 22, 23] {
            actor.recv(6, &y, len)?;
        }
        actor.send(7, &y, 31)?;
        actor.recv_end_of(6, &y)?;
        actor.mark(THROUGH);
        Ok(())
    }

    pub(super) fn second(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let [c, d] = two(sockets);
        let (c, d) = (actor.open(c)?, actor.open(d)?);
        let x = actor.recv_end(1, &c, 12)?;
        actor.send(6, &x, 22)?;
        actor.send_with(2, &d, 13, vec![x.into()])?;
        actor.mark(AWAY);
        actor.send(3, &c, 1)?;
        actor.recv(4, &d, 1)
    }

    pub(super) fn third(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let d = actor.open(only(sockets))?;
        let x = actor.recv_end(2, &d, 13)?;
        actor.mark(HAS);
        actor.send(6, &x, 23)?;
        actor.recv(7, &x, 30)?;
        actor.recv(7, &x, 31)?;
        actor.mark(THROUGH);
        actor.send(4, &d, 1)
    }

    pub(super) fn judge(ledger: &Ledger, killed: Option<usize>) -> Result<(), String> {
        let marks = marks(ledger);
        match marks[3] & HAS {
            0 => Ok(()),
            _ => agree(&marks, [1, 3], killed, &[2]),
        }
    }
}

/// A process connects to another one by its name.
mod named {
    use super::*;
    use std::time::Duration;
    use strait::{Connector, Listener};

    /// How often whoever waits for a visitor looks whether there can be one.
    const LOOK: Duration = Duration::from_millis(5);

    pub(super) fn server(actor: &Actor, _: Vec<OwnedFd>) -> Played {
        let bind = || Listener::builder().directory(actor.directory()).options(options()).bind("name");
        let listener = actor.call(bind)?;
        actor.open_gate(0);
        greet(actor, |limit| listener.accept_by(limit))
    }

    /// Lets in who comes, and talks to it.
    pub(super) fn greet(actor: &Actor, mut accept: impl FnMut(Duration) -> Result<Channel, Error>) -> Played {
        if actor.may_be_refused() {
            // Whom it cannot let in it sends away.
            actor.mark(LOST);
        }
        loop {
            let gone = actor.is_gone(1);
            let accepted = actor.call(|| match accept(LOOK) {
                Ok(channel) => Ok(Some(channel)),
                Err(Error::TimedOut) => Ok(None),
                Err(error) => Err(error),
            })?;
            match accepted.map(|channel| talk(actor, &channel)) {
                // Nobody will come.
                None if gone => return Err(Stop::Closed),
                None => {}
                // It tries again.
                Some(Err(Stop::Closed)) if actor.others_may_be_refused() && !gone => {}
                Some(talked) => return talked,
            }
        }
    }

    fn talk(actor: &Actor, channel: &Channel) -> Played {
        actor.recv_files(0, channel, 40, 1)?;
        actor.send(1, channel, 50)
    }

    pub(super) fn client(actor: &Actor, _: Vec<OwnedFd>) -> Played {
        actor.wait_at_gate(0, 0);
        let connector = Connector::new("name").directory(actor.directory()).options(options());
        visit(actor, &actor.call(|| connector.connect_by(Deadline::NEVER).map_err(nobody_is_closed))?)
    }

    /// That nobody listens any more.
    pub(super) fn nobody_is_closed(error: Error) -> Error {
        if error == Error::NobodyThere { Error::PeerClosed } else { error }
    }

    /// Talks to the server.
    pub(super) fn visit(actor: &Actor, channel: &Channel) -> Played {
        actor.send_with(0, channel, 40, actor.files(1))?;
        actor.recv(1, channel, 50)
    }
}

/// A process is invited over its standard input.
mod invited {
    use super::*;
    use std::time::Duration;
    use strait::Listener;

    pub(super) fn server(actor: &Actor, _: Vec<OwnedFd>) -> Played {
        let mut file = std::fs::File::create(actor.directory().join("line")).expect("a file");
        let bind =
            || Listener::builder().directory(actor.directory()).options(options()).invited_only().bind("invited");
        let listener = actor.call(bind)?;
        let invitation = actor.call(|| listener.invite(Duration::from_secs(600)))?;
        actor.call(|| invitation.tell(&mut file))?;
        drop(file);
        actor.open_gate(0);
        named::greet(actor, |limit| invitation.accept_by(limit))
    }

    pub(super) fn client(actor: &Actor, _: Vec<OwnedFd>) -> Played {
        actor.wait_at_gate(0, 0);
        // A server that was killed may have told nobody.
        let line = actor.directory().join("line");
        let Some(file) = std::fs::File::open(line).ok().filter(|file| file.metadata().is_ok_and(|file| file.len() > 0))
        else {
            return Err(Stop::Closed);
        };
        rustix::stdio::dup2_stdin(&file).expect("dup2");
        drop(file);
        // Once, since an invitation is read once.
        let invited = || strait::invited(&options(), Deadline::NEVER).map_err(named::nobody_is_closed);
        named::visit(actor, &actor.once(invited)?)
    }
}

/// Channels within a process.
mod within {
    use super::*;

    pub(super) fn alone(actor: &Actor, _: Vec<OwnedFd>) -> Played {
        let (a, b) = pair(actor)?;
        let (x, y) = pair(actor)?;
        actor.send(0, &a, 10)?;
        actor.send_with(0, &a, 100_000, actor.files(1))?;
        actor.send_with(0, &a, 1, vec![y.into()])?;
        actor.send(1, &x, 20)?;
        actor.recv(0, &b, 10)?;
        actor.recv_files(0, &b, 100_000, 1)?;
        let y = actor.recv_end(0, &b, 1)?;
        actor.recv(1, &y, 20)?;
        drop(x);
        actor.recv_end_of(1, &y)
    }
}
