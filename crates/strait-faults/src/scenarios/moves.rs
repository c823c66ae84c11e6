//! Scenarios about moving ends and fusing channels.

use super::*;

/// A process sends several ends in one message; all are used, and closed while the processes go on.
pub(super) mod ends {
    use super::*;

    const ENDS: usize = 4;

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let mut ours = Vec::new();
        let mut theirs = actor.files(1);
        for index in 0..ENDS {
            let (x, y) = pair(actor)?;
            // Unread messages move with the end, including the descriptors.
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

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

/// Bit of a process's mark: all messages were exchanged over the channel whose ends moved.
const THROUGH: u32 = 1;
/// Bit of a process's mark: the end for this process arrived.
const HAS: u32 = 2;
/// Bit of a process's mark: it sent the end away, or fused the channels, and the call returned.
const AWAY: u32 = 4;

fn marks(ledger: &Ledger) -> [u32; PROCESSES] {
    std::array::from_fn(|number| ledger.lives[number].mark.load(std::sync::atomic::Ordering::SeqCst))
}

/// Checks the two processes of `pair`, which exchange messages at the end. If both processes live, both or neither
/// exchanged all messages. Both did if the killed process is one of `movers` and had done its part.
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

/// An end moves between two processes; the new holder and the holder of the other end exchange messages.
pub(super) mod moved {
    use super::*;

    pub(in crate::program::scenarios) fn mover(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

    pub(in crate::program::scenarios) fn receiver(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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
        // The other process has received the last message, and has closed its end or will soon.
        actor.recv_end_of(5, &x)?;
        actor.mark(THROUGH);
        actor.send(4, &c, 1)
    }

    pub(in crate::program::scenarios) fn judge(ledger: &Ledger, killed: Option<usize>) -> Result<(), String> {
        agree(&marks(ledger), [1, 2], killed, &[0])
    }
}

/// Both ends of a channel move at the same time.
pub(super) mod both {
    use super::*;

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

    /// Receives one of the two ends. Each receiver has streams of its own.
    pub(in crate::program::scenarios) fn receiver(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

    pub(in crate::program::scenarios) fn judge(ledger: &Ledger, killed: Option<usize>) -> Result<(), String> {
        let marks = marks(ledger);
        // If a receiver never received its end, the killed source must be the cause.
        match marks[2] & marks[3] & HAS {
            0 => Ok(()),
            _ => agree(&marks, [2, 3], killed, &[0, 1]),
        }
    }
}

/// The process between two others fuses its two channels; the other two exchange messages.
pub(super) mod fused {
    use super::*;

    pub(in crate::program::scenarios) fn fuser(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let [b, c] = two(sockets);
        let mut ends = Some((actor.open(b)?, actor.open(c)?));
        // By now the messages of both processes are there.
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

    /// Receives a message from an unknown sender: handles may be lost with a dead process.
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

    pub(in crate::program::scenarios) fn far(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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
        // This message arrives only if the two processes are directly connected.
        actor.send_with(out, &channel, 63, actor.files(1))?;
        hear(actor, back, &channel, 63, 1)?;
        actor.mark(THROUGH);
        actor.open_gate(2 + actor.number());
        actor.wait_at_gate(5 - actor.number(), 3 - actor.number());
        Ok(())
    }

    pub(in crate::program::scenarios) fn judge(ledger: &Ledger, killed: Option<usize>) -> Result<(), String> {
        agree(&marks(ledger), [1, 2], killed, &[0])
    }
}

/// An end moves on to a third process before the second process has received from the end.
pub(super) mod on {
    use super::*;

    pub(in crate::program::scenarios) fn first(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

    pub(in crate::program::scenarios) fn second(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let [c, d] = two(sockets);
        let (c, d) = (actor.open(c)?, actor.open(d)?);
        let x = actor.recv_end(1, &c, 12)?;
        actor.send(6, &x, 22)?;
        actor.send_with(2, &d, 13, vec![x.into()])?;
        actor.mark(AWAY);
        actor.send(3, &c, 1)?;
        actor.recv(4, &d, 1)
    }

    pub(in crate::program::scenarios) fn third(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let d = actor.open(only(sockets))?;
        let x = actor.recv_end(2, &d, 13)?;
        actor.mark(HAS);
        actor.send(6, &x, 23)?;
        actor.recv(7, &x, 30)?;
        actor.recv(7, &x, 31)?;
        actor.mark(THROUGH);
        actor.send(4, &d, 1)
    }

    pub(in crate::program::scenarios) fn judge(ledger: &Ledger, killed: Option<usize>) -> Result<(), String> {
        let marks = marks(ledger);
        match marks[3] & HAS {
            0 => Ok(()),
            _ => agree(&marks, [1, 3], killed, &[2]),
        }
    }
}
