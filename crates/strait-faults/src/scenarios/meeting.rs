//! Scenarios of processes that meet by name or by invitation, and of a process alone.

use super::*;

/// A process connects to another one by name.
pub(super) mod named {
    use super::*;
    use std::time::Duration;
    use strait::Listener;
    use strait::meet::{Connector, MeetError};

    /// How long a server waits for a pending connection before it checks whether the client is gone.
    const LOOK: Duration = Duration::from_millis(5);

    pub(in crate::program::scenarios) fn server(actor: &Actor, _: Vec<OwnedFd>) -> Played {
        let bind =
            || Listener::builder().directory(actor.directory()).options(options()).bind("name").map_err(Error::from);
        let listener = actor.call(bind)?;
        actor.open_gate(0);
        greet(actor, |limit| Ok(listener.accept(limit)?))
    }

    /// Accepts the client by `accept`, and exchanges messages with it.
    pub(in crate::program::scenarios) fn greet(
        actor: &Actor,
        mut accept: impl FnMut(Duration) -> Result<Channel, Error>,
    ) -> Played {
        if actor.may_be_refused() {
            // The server refuses a client when the server cannot accept.
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
                // The client is gone, so no process will connect.
                None if gone => return Err(Stop::Closed),
                None => {}
                // The client tries again.
                Some(Err(Stop::Closed)) if actor.others_may_be_refused() && !gone => {}
                Some(talked) => return talked,
            }
        }
    }

    fn talk(actor: &Actor, channel: &Channel) -> Played {
        actor.recv_files(0, channel, 40, 1)?;
        actor.send(1, channel, 50)
    }

    pub(in crate::program::scenarios) fn client(actor: &Actor, _: Vec<OwnedFd>) -> Played {
        actor.wait_at_gate(0, 0);
        let connector = Connector::new().directory(actor.directory()).options(options());
        visit(actor, &actor.call(|| connector.connect("name", Deadline::NEVER).map_err(nobody_is_closed))?)
    }

    /// Turns the error that no process listens into *peer closed*: the server has ended.
    pub(in crate::program::scenarios) fn nobody_is_closed(failed: MeetError) -> Error {
        if failed.error == Error::NobodyThere { Error::PeerClosed } else { failed.error }
    }

    /// Exchanges messages with the server.
    pub(in crate::program::scenarios) fn visit(actor: &Actor, channel: &Channel) -> Played {
        actor.send_with(0, channel, 40, actor.files(1))?;
        actor.recv(1, channel, 50)
    }
}

/// A process is invited over its standard input.
pub(super) mod invited {
    use super::*;
    use std::time::Duration;
    use strait::Listener;

    pub(in crate::program::scenarios) fn server(actor: &Actor, _: Vec<OwnedFd>) -> Played {
        let mut file = std::fs::File::create(actor.directory().join("line")).expect("a file");
        let bind = || {
            Listener::builder()
                .directory(actor.directory())
                .options(options())
                .invited_only()
                .bind("invited")
                .map_err(Error::from)
        };
        let listener = actor.call(bind)?;
        let invitation = actor.call(|| Ok(listener.invite(Duration::from_secs(600))?))?;
        actor.call(|| Ok(invitation.tell(&mut file)?))?;
        drop(file);
        actor.open_gate(0);
        named::greet(actor, |limit| Ok(invitation.accept(limit)?))
    }

    pub(in crate::program::scenarios) fn client(actor: &Actor, _: Vec<OwnedFd>) -> Played {
        actor.wait_at_gate(0, 0);
        // A killed server may not have written the invitation.
        let line = actor.directory().join("line");
        let Some(file) = std::fs::File::open(line).ok().filter(|file| file.metadata().is_ok_and(|file| file.len() > 0))
        else {
            return Err(Stop::Closed);
        };
        rustix::stdio::dup2_stdin(&file).expect("dup2");
        drop(file);
        // An invitation can be read only once.
        let invited = || options().invited(Deadline::NEVER).map_err(named::nobody_is_closed);
        named::visit(actor, &actor.once(invited)?)
    }
}

/// A process uses channels with both ends in the process.
pub(super) mod within {
    use super::*;

    pub(in crate::program::scenarios) fn alone(actor: &Actor, _: Vec<OwnedFd>) -> Played {
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
