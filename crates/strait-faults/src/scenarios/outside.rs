//! Scenarios of messages that need more than the ring: descriptors over the socket, large messages in memory of their
//! own, and a larger ring.

use super::*;

/// A process sends descriptors with small and large messages.
pub(super) mod descriptors {
    use super::*;

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.send_with(0, &channel, 30, actor.files(3))?;
        actor.send(0, &channel, 30)?;
        actor.send_with(0, &channel, 0, actor.files(1))?;
        actor.send_with(0, &channel, 100_000, actor.files(2))?;
        actor.recv_files(1, &channel, 3, 2)
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.recv_files(0, &channel, 30, 3)?;
        actor.recv(0, &channel, 30)?;
        actor.recv_files(0, &channel, 0, 1)?;
        actor.recv_files(0, &channel, 100_000, 2)?;
        actor.send_with(1, &channel, 3, actor.files(2))
    }
}

/// A process sends descriptors over a socket that is soon full.
pub(super) mod full_socket {
    use super::*;

    const COUNT: usize = 10;

    fn narrow(sockets: Vec<OwnedFd>) -> OwnedFd {
        let socket = only(sockets);
        // The kernel raises 1 to the minimum, about six packets.
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, 1).expect("setsockopt");
        socket
    }

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(narrow(sockets))?;
        for _ in 0..COUNT {
            actor.send_with(0, &channel, 30, actor.files(1))?;
        }
        actor.recv(1, &channel, 7)
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(narrow(sockets))?;
        // Receiving begins when the socket is likely to be full.
        std::thread::sleep(std::time::Duration::from_millis(2));
        for _ in 0..COUNT {
            actor.recv_files(0, &channel, 30, 1)?;
        }
        actor.send(1, &channel, 7)
    }
}

/// A process sends messages in blocks, and reuses the blocks.
pub(super) mod large {
    use super::*;

    const LENS: [usize; 4] = [100_000, 80_000, 200_000, 100_000];

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        // No two of the messages may be in flight at once, so the sender waits until the receiver returns a block.
        let channel = actor.open_with(only(sockets), &options().queue_bytes(150_000))?;
        for len in LENS {
            actor.send(0, &channel, len)?;
        }
        actor.recv(1, &channel, 70_000)
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for len in LENS {
            actor.recv(0, &channel, len)?;
        }
        actor.send(1, &channel, 70_000)
    }
}

/// A process sends messages in sealed memory; the receiver reads them in place.
pub(super) mod sealed {
    use super::*;
    use crate::program::actor::content;

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for (len, files) in [(50_000, 0), (5000, 2)] {
            let mut handles = actor.files(files);
            actor.send_made(0, |number| {
                let mut room = channel.reserve_sealed(len)?;
                room.bytes().copy_from_slice(&content(0, number, len));
                handles.drain(..).for_each(|handle| room.handle(handle));
                room.commit(Deadline::NEVER).map_err(|refused| {
                    handles = refused.handles;
                    refused.error
                })
            })?;
        }
        actor.send_made(0, |number| {
            let mut room = channel.reserve(90_000, Deadline::NEVER)?;
            room.write_at(&content(0, number, 90_000), 0);
            room.commit().map_err(|refused| refused.error)
        })?;
        actor.recv(1, &channel, 5)
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        for (len, files) in [(50_000, 0), (5000, 2), (90_000, 0)] {
            let mut view = actor.ended(0, |actor| actor.again_if_refused(|| channel.recv_in_place(Deadline::NEVER)))?;
            assert_eq!(view.len(), len);
            let mut bytes = vec![0; len];
            view.read_at(&mut bytes, 0);
            actor.check(0, &bytes);
            match view.take_handles() {
                Ok(handles) => actor.check_files(handles, files),
                Err(error) => assert!(matches!(error, Error::HandlesLost { .. }), "{error:?}"),
            }
        }
        actor.send(1, &channel, 5)
    }
}

/// A ring grows while its reader does not read.
pub(super) mod grow {
    use super::*;

    pub(in crate::program::scenarios) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open_with(only(sockets), &options().ring(512))?;
        if actor.may_be_refused() {
            // If the ring cannot grow, the reader must empty the ring.
            actor.open_gate(0);
        }
        for _ in 0..12 {
            actor.send(0, &channel, 150)?;
        }
        actor.send(0, &channel, 9000)?;
        actor.open_gate(0);
        actor.recv(1, &channel, 9)
    }

    pub(in crate::program::scenarios) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        actor.wait_at_gate(0, 0);
        for _ in 0..12 {
            actor.recv(0, &channel, 150)?;
        }
        actor.recv(0, &channel, 9000)?;
        actor.send(1, &channel, 9)
    }
}
