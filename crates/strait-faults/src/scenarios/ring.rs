//! Scenarios of messages in the ring: sent, waited for, answered and left unread.

use super::*;

/// Two processes make a channel over a socket and send one message each.
pub(super) mod connect {
    use super::*;

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.send(0, &channel, 10)?;
        actor.recv(1, &channel, 20)
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.recv(0, &channel, 10)?;
        actor.send(1, &channel, 20)
    }
}

/// Two processes exchange small messages of lengths up to some cells.
pub(super) mod small {
    use super::*;

    const LENS: [usize; 8] = [0, 1, 8, 55, 56, 57, 120, 300];

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for len in LENS {
            actor.send(0, &channel, len)?;
        }
        LENS.iter().try_for_each(|len| actor.recv(1, &channel, *len))
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for len in LENS {
            actor.recv(0, &channel, len)?;
        }
        LENS.iter().try_for_each(|len| actor.send(1, &channel, *len))
    }
}

/// A process sends batches of messages; another receives several messages at a time.
pub(super) mod row {
    use super::*;

    const LENS: [usize; 12] = [10, 20, 0, 256, 257, 30, 8, 700, 1, 2, 3, 100];

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &options().ring(1024).ring_max(1024))?;
        actor.send_row(0, &channel, &LENS)?;
        actor.send_row(0, &channel, &LENS)?;
        actor.recv(1, &channel, 7)
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

/// A sender waits for room, because its ring may not grow.
pub(super) mod full {
    use super::*;

    const COUNT: usize = 20;

    fn narrow() -> Options {
        options().ring(512).ring_max(512)
    }

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &narrow())?;
        for _ in 0..COUNT {
            actor.send(0, &channel, 100)?;
        }
        (0..COUNT).try_for_each(|_| actor.recv(1, &channel, 50))
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &narrow())?;
        for _ in 0..COUNT {
            actor.recv(0, &channel, 100)?;
        }
        (0..COUNT).try_for_each(|_| actor.send(1, &channel, 50))
    }
}

/// A sender waits for room in a ring that may not grow, and all waits spin.
pub(super) mod spin {
    use super::*;

    fn spinning() -> Options {
        Options::new().wait(Wait::Spin).ring(512).ring_max(512)
    }

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &spinning())?;
        for _ in 0..6 {
            actor.send(0, &channel, 100)?;
        }
        actor.recv(1, &channel, 50)
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &spinning())?;
        for _ in 0..6 {
            actor.recv(0, &channel, 100)?;
        }
        actor.send(1, &channel, 50)
    }
}

/// A process waits so long that it sleeps on the socket; then a message arrives, and later the other end is closed
/// while both processes continue.
pub(super) mod idle {
    use super::*;

    /// Longer than a waiting thread sleeps on a word before that thread sleeps on the socket.
    const LONG: std::time::Duration = std::time::Duration::from_millis(40);

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let (x, y) = pair(actor)?;
        actor.send_with(0, &channel, 9, vec![y.into()])?;
        std::thread::sleep(LONG);
        actor.send(2, &x, 8)?;
        std::thread::sleep(LONG);
        drop(x);
        actor.recv(1, &channel, 7)
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let y = actor.recv_end(0, &channel, 9)?;
        actor.recv(2, &y, 8)?;
        actor.recv_end_of(2, &y)?;
        actor.send(1, &channel, 7)
    }
}

/// Two processes exchange requests and replies, some large and some with descriptors.
pub(super) mod call {
    use super::*;

    const ROUNDS: [(usize, usize); 4] = [(8, 0), (300, 1), (8, 0), (70_000, 1)];

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for (len, files) in ROUNDS {
            actor.send_with(0, &channel, len, actor.files(files))?;
            actor.recv_files(1, &channel, len, files)?;
        }
        Ok(())
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for (len, files) in ROUNDS {
            actor.recv_files(0, &channel, len, files)?;
            actor.send_with(1, &channel, len, actor.files(files))?;
        }
        Ok(())
    }
}

/// Both processes close their ends while messages and handles are unread.
pub(super) mod close {
    use super::*;

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.send_with(0, &channel, 5, actor.files(1))?;
        actor.send(0, &channel, 70_000)?;
        actor.send(0, &channel, 5)?;
        actor.wait_at_gate(0, 1);
        // The end is dropped with every unread message of the other process.
        Ok(())
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

/// A process waits for several channels in a wait set, and is woken by the other process.
pub(super) mod wait_set {
    use super::*;

    const CHANNELS: usize = 3;

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
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

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let set = actor.call(WaitSet::new)?;
        let mut theirs = Vec::new();
        for key in 0..CHANNELS {
            let end = actor.recv_end(0, &channel, 1)?;
            // Adding may fail with *would block* because the socket is full.
            actor.until_it_does_not_block(|| set.add(&end, key as u64, Interest::Readable, Mode::Level))?;
            theirs.push(end);
        }
        let mut left = 2 * CHANNELS;
        let mut events = Vec::new();
        while left > 0 {
            actor.call(|| set.wait(&mut events, Deadline::NEVER))?;
            for event in &events {
                let index = event.key() as usize;
                // A wait set reports the failure of a link as an event of its channels. The failure may be over by
                // now.
                let mut is_spurious = false;
                let received =
                    actor.recv_by(2 + index, |message| match theirs[index].recv_message(message, Deadline::NOW) {
                        Err(Error::WouldBlock) => {
                            is_spurious = true;
                            Ok(())
                        }
                        received => received,
                    });
                let message = received?;
                if is_spurious {
                    continue;
                }
                actor.check(2 + index, message.bytes());
                actor.send(8 + index, &theirs[index], 3)?;
                left -= 1;
            }
        }
        Ok(())
    }
}
