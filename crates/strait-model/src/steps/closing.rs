//! Closing an end: seal the outgoing ring, then read the incoming ring to its end. Ends in dropped messages are
//! claimed and closed.

use super::World;
use super::receiving::Taken;
use super::writing::Put;
use crate::end::{Doing, EndId, Message};
use crate::lane::Seal;
use crate::met::Met;
use crate::state::Process;

impl World<'_> {
    /// Seals the outgoing ring of an end as closed, behind its messages; or continues in a new lane if the ring is
    /// frozen.
    pub(super) fn close_out(&mut self, process: Process, id: EndId) {
        let end = self.state.owned(process, id).expect("it closes");
        let (tx, known) = (end.tx, end.tx_closed);
        if !known && let Err(Seal::Frozen(lane)) = self.put(process, id, tx, Put::Seal(Seal::ClosedByWriter)) {
            self.seen.note(Met::CloseFrozen);
            return self.follow(process, id, lane);
        }
        self.state.owned_mut(process, id).doing = Doing::ClosingIn;
    }

    /// Drops unread messages, then seals the incoming ring as closed, at the first empty header.
    pub(super) fn close_in(&mut self, process: Process, id: EndId) {
        loop {
            let (end, done) = self.take_next(process, id, 0);
            match end {
                Taken::Message(Message { carried: Some(end), .. }) => {
                    let mut end = self.claim(*end);
                    end.doing = Doing::ClosingOut;
                    self.state.give(process, end);
                }
                Taken::Message(_) | Taken::Next => {}
                Taken::Mark(lane) => self.state.owned_mut(process, id).rx = lane,
                Taken::Nothing => {
                    let rx = self.state.owned(process, id).expect("it closes").rx;
                    self.seal(process, id, rx, Seal::ClosedByReader);
                    return self.closed(process, id);
                }
                Taken::End => return self.closed(process, id),
            }
            if self.configuration.one_by_one && !done {
                return;
            }
        }
    }

    fn closed(&mut self, process: Process, id: EndId) {
        self.state.ledger[id.index()].closed = true;
        self.state.take(process, id);
    }
}
