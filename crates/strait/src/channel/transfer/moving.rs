//! An end moves to another process.
//!
//! The end *a* of this process goes to process C; the other end *b* is in process B, which may do anything meanwhile.
//!
//! 1. **Find out** whether what *b* has sent can be taken along: take in what is on the socket, look through the ring, map
//!    the rings that it leads to, ask the limits. What fails here has changed nothing.
//! 2. **Make** a fresh lane for B and C. If a socket cannot take what has to be said of it, nothing has happened.
//! 3. **Mark**: the last record of the ring that *a* writes says where *b* reads on. If *b* has frozen that ring, it
//!    moved before: follow, and begin again with the process that it is in now.
//! 4. **Drain**: take every message out of the ring that *b* writes, in order; they travel with *a*. At the first empty
//!    header **freeze** the ring: if *b* published just before, that fails, and there is more to take; after it *b*'s next
//!    publish fails and goes to the fresh lane. *b* never waits.
//! 5. **Hand over**: commit the message that carries *a* ([`super::ends`]), and say so in the lane; only then does *b*
//!    look at C as its peer.
//!
//! The mark comes before the freeze, so of two ends that move at once one at least meets the other's mark where it is
//! itself marked; then the end on side 0 has won, and the other goes to the winner's lane with what it drained, and waits
//! until the winner is handed over.
//!
//! Until it is handed over an end is here: if it cannot be sent, its transfer is *cancelled*, and it goes on in the fresh lane.
//!
//! *b* may send between the look and the freeze what cannot be taken out then. The move is given up, and the end stays where it is:
//! it receives from the ring of the old lane, and when that is empty freezes it and goes on in the fresh one ([`Onward`]). Until
//! then its sends, which have to go there, try the same first and fail as the move did; and *b* regards the end as on its way,
//! so that it does not move itself.
//!
//! The protocol is explored by a model with crashes in the crate `strait-model`; the orders of each single step with weak
//! memory are in `ring/tests/moving.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use super::table::Entry;
use crate::channel::End;
use crate::channel::receiver::backlog::BacklogMessage;
use crate::channel::receiver::front::MOST_LANES;
use crate::channel::receiver::{Onward, Rx};
use crate::channel::sender::Tx;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::arena::SMALL;
use crate::lane::{Lane, Name};
use crate::link::{InUse, Link, MemoryKey};
use crate::quota::{Amounts, Resource};
use crate::ring::{Ended, Front, Kind, Memory};
use crate::shm::Mapping;
use crate::wake::lock::Guard;
use crate::wake::waiter;
use crate::wake::want::{self, Looks, Want};

/// Cells of the largest rings that an end begins with where it goes to, if the ones that it leaves were larger.
const LARGEST_START: usize = 128;

/// What lies in the rings that an end that moves has to take along.
struct Ahead {
    /// What will be charged for it.
    amounts: Amounts,
    /// Whether some of it comes over the socket.
    needs_socket: bool,
}

/// An end does not go on in the lane that was made for it.
fn unmake(lane: &Lane, fresh: &Lane) {
    match lane.forget_successor() {
        true => fresh.unmake(),
        // The other end was told of it here, and has used it in some way.
        false => fresh.cancel_transfer(),
    }
}

impl End {
    /// Moves this end into a fresh lane for the process at `dest`. Nobody else uses the end. On an error it is where it
    /// was, or in another lane, and as good as before.
    ///
    /// `along` are the lanes of ends that go to the same process in the same message; the other end of this one may be
    /// among them.
    pub(super) fn relocate(&self, dest: &InUse, along: &[Name], deadline: Deadline) -> Result<(), Error> {
        self.relocate_into(dest, along, None, deadline)
    }

    /// The same, into a lane whose rings have so many cells.
    pub(super) fn relocate_into(
        &self,
        dest: &InUse,
        along: &[Name],
        cells: Option<usize>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let mut tx = self.tx.lock(deadline)?;
        let mut rx = self.rx.lock(deadline)?;
        loop {
            self.follow_to_peer(&mut tx, &mut rx, along)?;
            if tx.ended().is_none() && tx.lane.is_down() {
                // It may have gone on elsewhere right before; else there is nobody any more, and that goes along.
                if let Some(Ended(Some(Kind::Frozen))) = tx.producer.ended() {
                    continue;
                }
                let reason = tx.lane.reason();
                tx.end_with(reason);
            }
            self.come_to(&tx.lane, &mut rx)?;
            self.find_out(&mut rx)?;
            // For an end without a peer any lane will do.
            let alone = tx.ended().is_some();
            let peer = if alone { Link::own() } else { tx.lane.link().clone() };
            let fresh = match self.make(&tx, &rx, &peer, dest, cells) {
                Ok(fresh) => fresh,
                Err(Error::PeerClosed) if !dest.is_down() => continue,
                Err(error) => return Err(error),
            };
            // Of an end whose other end is gone nobody will ask.
            if tx.ended().is_none() {
                tx.lane.tell_successor(&fresh, dest);
            }
            let marked = match self.mark(&mut tx, &fresh) {
                Ok(marked) => marked,
                Err(Ended(_)) => {
                    unmake(&tx.lane, &fresh);
                    continue;
                }
            };
            if !marked {
                // Nobody is there to be told.
                tx.lane.forget_successor();
            }
            let marked = marked.then(|| tx.lane.clone());
            rx.set_onward(Some(Onward { fresh: fresh.clone(), marked, stays: false }));
            if let Err(error) = self.drain(&mut rx) {
                self.stay(&mut tx, &mut rx, error);
                return Err(error);
            }
            if rx.ended().is_none() && !Arc::ptr_eq(&rx.lane, &fresh) {
                // Both ends moved at once, and the other goes first.
                let theirs = rx.lane.clone();
                self.enter_tx(&mut tx, theirs);
                continue;
            }
            // The other end was gone before it came to where it was to go on.
            if alone && rx.ended().is_none() {
                rx.end_with(Error::PeerClosed);
            }
            // Nobody reads in the fresh lane of an end whose other end is gone: what is sent there would be lost, ends and all.
            if let Some(error) = rx.ended() {
                tx.end_with(error);
            }
            self.enter_tx(&mut tx, fresh.clone());
            if !Arc::ptr_eq(&rx.lane, &fresh) {
                rx.set_onward(None);
                rx.leave();
                rx.enter(fresh);
            }
            return Ok(());
        }
    }

    /// Moves this end within its process: into memory that nobody else has but the process of the other end.
    pub(in crate::channel) fn rehome(&self, deadline: Deadline) -> Result<(), Error> {
        self.born.check()?;
        let mut looks = Looks::default();
        loop {
            want::forget();
            match self.relocate(&Link::own(), &[], Deadline::NOW) {
                Err(Error::WouldBlock) if !deadline.is_now() => self.wait_for(want::take(), &mut looks, deadline)?,
                moved => break moved?,
            }
        }
        self.lane()?.cancel_transfer();
        Ok(())
    }

    /// Comes to where the other end is.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] while the other end is on its way itself, or its peer has not opened its side.
    pub(in crate::channel) fn follow_to_peer(
        &self,
        tx: &mut Guard<'_, Tx>,
        rx: &mut Guard<'_, Rx>,
        along: &[Name],
    ) -> Result<(), Error> {
        for _ in 0..MOST_LANES {
            // What the peer has made of its side, if it has opened it.
            let _ = self.front_or_mark(rx);
            if !rx.is_open() && rx.ended().is_none() {
                want::note(Want::Transit(Arc::downgrade(&rx.lane)));
                return Err(Error::WouldBlock);
            }
            let waits = |lane: &Lane| {
                lane.is_pending() && !(lane.listen().is_local() && along.contains(&lane.name())) && !lane.is_down()
            };
            let pending = [&tx.lane, &rx.lane].into_iter().find(|lane| waits(lane));
            if let Some(lane) = pending {
                lane.probe();
                if !lane.is_down() {
                    want::note(Want::Transit(Arc::downgrade(lane)));
                    return Err(Error::WouldBlock);
                }
                continue;
            }
            match tx.producer.ended() {
                _ if tx.ended().is_some() => return Ok(()),
                None => return Ok(()),
                Some(Ended(Some(Kind::Frozen))) => self.follow_frozen(tx)?,
                Some(Ended(Some(Kind::Moved))) if tx.delayed().is_some() => self.finish_move(tx, rx)?,
                Some(Ended(Some(Kind::Closed))) => {
                    tx.end_with(Error::PeerClosed);
                }
                Some(_) => {
                    tx.end_with(Error::BadPeer("it wrote into a ring that it reads"));
                }
            }
        }
        // There is more to follow in the next try.
        Err(Error::WouldBlock)
    }

    /// A lane for the other end and the process that this one goes to.
    fn make(&self, tx: &Tx, rx: &Rx, peer: &InUse, dest: &InUse, cells: Option<usize>) -> Result<Arc<Lane>, Error> {
        let present = tx.producer.memory().cells().max(rx.cells());
        let cells = cells.unwrap_or(if present > SMALL { present.min(LARGEST_START) } else { SMALL });
        let (arena, name) = Link::make_lane(peer, dest, cells)?;
        // Until it is handed over its other end has us for its peer; and so if that one goes along with it.
        let now = if tx.lane.is_pending() { tx.lane.listen() } else { peer };
        let lane = Lane::in_arena(&arena, name, tx.lane.side(), now.clone(), None).expect("it was made just now");
        lane.set_moving();
        Ok(Arc::new(lane))
    }

    /// Says in the ring that this end writes where the other reads on. False if that one reads no more.
    pub(in crate::channel) fn mark(&self, tx: &mut Guard<'_, Tx>, fresh: &Lane) -> Result<bool, Ended> {
        if tx.ended().is_some() {
            return Ok(false);
        }
        let name = tx.lane.name_for_other(fresh);
        match tx.producer.end(Kind::Moved, &name.encode()) {
            Ok(()) => {
                let word = tx.producer.memory().sleeping();
                let how = tx.lane.take_sleeper(word);
                waiter::wake(tx.lane.listen(), tx.lane.scope(), word, how);
                Ok(true)
            }
            Err(Ended(Some(Kind::Closed))) => {
                tx.end_with(Error::PeerClosed);
                Ok(false)
            }
            Err(ended) => Err(ended),
        }
    }

    /// Comes to this lane, in which the end sends: takes along what is in the rings of those before, which the other end has
    /// left. Nobody notices.
    fn come_to(&self, lane: &Arc<Lane>, rx: &mut Guard<'_, Rx>) -> Result<(), Error> {
        let mut lanes = 0;
        while rx.is_open() && rx.ended().is_none() && !Arc::ptr_eq(lane, &rx.lane) {
            let before = rx.lane.clone();
            match self.take_next(rx) {
                Ok(_) if !Arc::ptr_eq(&before, &rx.lane) => lanes += 1,
                Ok(false) if rx.consumer().is_empty() => break,
                Err(error) if rx.ended().is_none() => return Err(error),
                _ => {}
            }
            if lanes >= MOST_LANES {
                return Err(Error::WouldBlock);
            }
        }
        Ok(())
    }

    /// Takes the next message out of the ring, or follows a mark. False if there was neither.
    fn take_next(&self, rx: &mut Guard<'_, Rx>) -> Result<bool, Error> {
        let Some(record) = self.front_or_mark(rx)? else { return Ok(false) };
        if record.header.kind() == Kind::Moved {
            let next = self.marked(rx, record)?;
            rx.leave();
            rx.enter(next);
        } else {
            let unread = self.take_out(rx, record)?;
            rx.push_backlog(unread);
        }
        Ok(true)
    }

    /// Finds out whether what was sent here can be taken along. An error passes, and nothing has changed.
    fn find_out(&self, rx: &mut Rx) -> Result<(), Error> {
        if rx.ended().is_some() {
            return Ok(());
        }
        let link = rx.lane.listen().clone();
        let taken_in = |ahead: Ahead| match ahead.needs_socket {
            true => link.fetch(|_| None::<()>).map(|_| ahead),
            false => Ok(ahead),
        };
        let enough =
            self.look_ahead_of_move(rx).and_then(taken_in).and_then(|ahead| link.ledger().charge(ahead.amounts));
        match enough {
            Err(error) if error.passes() => Err(error),
            // What is wrong with the peer shows when it is looked for.
            _ => Ok(()),
        }
    }

    /// Looks through the records in this lane's rings, and maps those rings.
    fn look_ahead_of_move(&self, rx: &mut Rx) -> Result<Ahead, Error> {
        let (mut messages, mut bytes) = (0, 0_usize);
        let mut needs_socket = false;
        let mut generation = u64::from(rx.generation());
        if let Some(mut scout) = rx.consumer_of_open().cloned() {
            while let Ok(Front::Record(record)) = scout.front() {
                needs_socket |= record.header.handles() > 0 || record.header.kind() != Kind::Message;
                match record.header.kind() {
                    Kind::Message => {
                        messages += 1;
                        bytes = bytes.saturating_add(record.header.len());
                    }
                    // They stay in the memory that they are in.
                    Kind::Block | Kind::Sealed | Kind::Table => {}
                    Kind::Next => {
                        generation += 1;
                        let ring = self.map_ring_ahead(rx, generation)?;
                        let Some(larger) = scout.memory().grown(ring) else { break };
                        scout.go_on_in(larger);
                        continue;
                    }
                    _ => break,
                }
                scout.advance(record);
            }
        }
        let amounts = Amounts::of(Resource::QueuedMessages, messages).and(Resource::QueuedBytes, bytes);
        Ok(Ahead { amounts, needs_socket })
    }

    /// Maps a ring of this lane before its reader comes to it.
    fn map_ring_ahead(&self, rx: &mut Rx, generation: u64) -> Result<Arc<Mapping>, Error> {
        if let Some(ring) = rx.ring_ahead(generation) {
            return Ok(ring);
        }
        // What the message at the front brought stays.
        let of_front = rx.cold().fetched.take();
        let ring = self.fetch_memory(rx, MemoryKey::Ring(rx.lane.token_in(), generation));
        rx.cold().fetched = of_front;
        let ring = ring?;
        rx.cold().rings.push((generation, ring.clone()));
        Ok(ring)
    }

    /// Takes out what the other end sent, until this one is where it goes on, or where the other does if both move at once and
    /// that goes first; or has ended. An error passes.
    fn drain(&self, rx: &mut Guard<'_, Rx>) -> Result<(), Error> {
        while rx.onward().is_some() && rx.ended().is_none() {
            match self.take_next(rx) {
                Err(error) if rx.ended().is_none() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Freezes the ring, if it is empty, and goes on where the other end was told; if there is such a place.
    #[cold]
    pub(in crate::channel) fn go_onward(&self, rx: &mut Rx) {
        let Some(Onward { fresh, .. }) = rx.onward().cloned() else { return };
        if rx.freeze(&fresh) {
            self.give_taken(rx);
            let fresh = self.arrive(rx);
            rx.leave();
            rx.enter(fresh);
        }
    }

    /// This end goes on in its fresh lane from here on. The lane.
    pub(in crate::channel) fn arrive(&self, rx: &mut Rx) -> Arc<Lane> {
        let Some(Onward { fresh, marked, stays }) = rx.onward().cloned() else { return rx.lane.clone() };
        rx.set_onward(None);
        if stays {
            if let Some(marked) = marked {
                marked.lead_to(&fresh);
            }
            fresh.cancel_transfer();
        }
        fresh
    }

    /// Both ends move at once, and the other goes first: nobody goes on in the fresh lane.
    pub(in crate::channel) fn give_way(&self, rx: &mut Rx) {
        if let Some(Onward { fresh, marked: Some(marked), .. }) = rx.onward().cloned() {
            unmake(&marked, &fresh);
        }
        rx.set_onward(None);
    }

    /// The end could not be taken along. It stays, and goes on in its fresh lane once it can, if the other end was told of that.
    fn stay(&self, tx: &mut Tx, rx: &mut Rx, error: Error) {
        match rx.onward().cloned() {
            Some(onward @ Onward { marked: Some(_), .. }) => {
                tx.set_delayed(error);
                rx.set_onward(Some(Onward { stays: true, ..onward }));
            }
            Some(Onward { fresh, .. }) => {
                rx.set_onward(None);
                fresh.unmake();
            }
            None => {}
        }
    }

    /// Goes on where the other end was told that this one does, since it stays. On an error, which passes, it is as it was.
    fn finish_move(&self, tx: &mut Guard<'_, Tx>, rx: &mut Guard<'_, Rx>) -> Result<(), Error> {
        self.drain(rx)?;
        if let Some(error) = rx.ended() {
            tx.end_with(error);
            self.arrive(rx);
        }
        match tx.lane.found_next().cloned() {
            Some(next) => self.enter_tx(tx, next),
            None => {
                tx.end_with(Error::PeerClosed);
            }
        }
        Ok(())
    }

    /// The same for who has only the sending direction.
    pub(in crate::channel) fn finish_delayed(&self, tx: &mut Guard<'_, Tx>, error: Error) -> Result<(), Error> {
        if let Some(next) = tx.lane.found_next().cloned() {
            self.enter_tx(tx, next);
            return Ok(());
        }
        // Who holds a view of a message may be this very thread.
        let mut rx = self.rx.lock(Deadline::NOW).map_err(|_| error)?;
        self.finish_move(tx, &mut rx)?;
        tx.ended().map_or(Ok(()), Err)
    }

    /// Who closes an end that stays goes on as well, if there is a way.
    pub(super) fn close_delayed(&self, tx: &mut Tx, rx: &mut Rx) {
        let next = match rx.onward() {
            Some(_) => Some(self.arrive(rx)),
            None => tx.lane.found_next().cloned(),
        };
        if let Some(next) = next {
            self.enter_tx(tx, next);
        }
    }

    /// What a table says of this end.
    pub(super) fn entry(&self) -> Result<Entry, Error> {
        let tx = self.tx.lock(Deadline::NOW)?;
        let rx = self.rx.lock(Deadline::NOW)?;
        Ok(Entry {
            name: tx.lane.name(),
            side: tx.lane.side() as u8,
            cannot_send: tx.ended().is_some(),
            receives_no_more: rx.ended().is_some(),
        })
    }

    /// An end that was sent to us, in a lane that it was given by who sent it.
    pub(super) fn received(&self, lane: Lane, entry: Entry) -> Self {
        lane.claim();
        let end = Self::new(Arc::new(lane), &self.options);
        if entry.cannot_send {
            end.tx.lock(Deadline::NEVER).expect("nobody else has it").end_with(Error::PeerClosed);
        }
        if entry.receives_no_more {
            end.rx.lock(Deadline::NEVER).expect("nobody else has it").end_with(Error::PeerClosed);
        }
        end
    }

    /// The lane of an end that is on its way.
    pub(in crate::channel) fn lane(&self) -> Result<Arc<Lane>, Error> {
        Ok(self.tx.lock(Deadline::NOW)?.lane.clone())
    }

    /// Takes its backlog.
    pub(in crate::channel) fn take_backlog(&self) -> VecDeque<BacklogMessage> {
        self.rx.lock(Deadline::NOW).map(|mut rx| rx.take_backlog()).unwrap_or_default()
    }

    /// Puts these messages into its backlog.
    pub(super) fn restore_backlog(&self, backlog: Vec<BacklogMessage>) {
        if let Ok(mut rx) = self.rx.lock(Deadline::NOW) {
            for unread in backlog {
                rx.push_backlog(unread);
            }
        }
    }

    /// The ends in messages of its backlog.
    pub(in crate::channel) fn ends_in_backlog(&self) -> Vec<Arc<End>> {
        self.rx.lock(Deadline::NOW).map(|mut rx| rx.ends_in_backlog()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;

    /// The end has told the other one where it goes on, and then lacked what it takes to take along what that one sent.
    fn delay(channel: &Channel) {
        let end = &channel.end;
        let (mut tx, mut rx) = (end.tx.lock(Deadline::NOW).unwrap(), end.rx.lock(Deadline::NOW).unwrap());
        let own = Link::own();
        let fresh = end.make(&tx, &rx, &own, &own, None).unwrap();
        tx.lane.tell_successor(&fresh, &own);
        assert_eq!(end.mark(&mut tx, &fresh), Ok(true));
        rx.set_onward(Some(Onward { fresh, marked: Some(tx.lane.clone()), stays: false }));
        end.stay(&mut tx, &mut rx, Error::NoDescriptors);
    }

    /// An end that is delayed, and its other end, which has sent two messages; on each side once.
    fn each_side(test: impl Fn(Channel, Channel)) {
        for turned in [false, true] {
            let (one, other) = Channel::pair().unwrap();
            let (end, other) = if turned { (other, one) } else { (one, other) };
            send(&other, "one");
            delay(&end);
            send(&other, "two");
            test(end, other);
        }
    }

    fn send(channel: &Channel, text: &str) {
        channel.try_send(text).unwrap();
    }

    fn expect(channel: &Channel, text: &str) {
        assert_eq!(channel.try_recv().unwrap().bytes(), text.as_bytes());
    }

    fn talk(one: &Channel, other: &Channel) {
        for _ in 0..2 {
            for (from, to) in [(one, other), (other, one)] {
                send(from, "back and forth");
                expect(to, "back and forth");
                assert_eq!(to.try_recv().unwrap_err(), Error::WouldBlock);
            }
        }
        for (end, other) in [(one, other), (other, one)] {
            end.rehome(Deadline::NOW).unwrap();
            send(end, "at home");
            expect(other, "at home");
        }
    }

    #[test]
    fn an_end_that_stays_receives_and_goes_on() {
        each_side(|end, other| {
            expect(&end, "one");
            send(&other, "three");
            expect(&end, "two");
            expect(&end, "three");
            assert_eq!(end.try_recv().unwrap_err(), Error::WouldBlock);
            send(&other, "four");
            expect(&end, "four");
            talk(&end, &other);
        });
    }

    #[test]
    fn an_end_that_stays_goes_on_to_send() {
        each_side(|end, other| {
            assert!(!end.is_peer_closed() && end.is_writable());
            send(&end, "sent");
            expect(&other, "sent");
            send(&other, "three");
            ["one", "two", "three"].into_iter().for_each(|text| expect(&end, text));
            talk(&end, &other);
        });
    }

    /// Who holds a view of a message keeps the receiving direction.
    #[test]
    fn an_end_that_stays_and_is_being_received_from_fails_to_send_as_it_failed_to_move() {
        each_side(|end, other| {
            let view = end.recv_in_place(Deadline::NOW).unwrap();
            assert_eq!(end.send_by("sent", Deadline::NEVER).unwrap_err().error, Error::NoDescriptors);
            drop(view);
            send(&end, "sent");
            expect(&other, "sent");
            expect(&end, "two");
            talk(&end, &other);
        });
    }

    #[test]
    fn an_end_that_stays_can_be_moved_once_it_can() {
        each_side(|end, other| {
            assert_eq!(other.try_recv().unwrap_err(), Error::WouldBlock);
            assert_eq!(other.rehome(Deadline::NOW).unwrap_err(), Error::WouldBlock);
            end.rehome(Deadline::NOW).unwrap();
            ["one", "two"].into_iter().for_each(|text| expect(&end, text));
            talk(&end, &other);
        });
    }

    #[test]
    fn of_two_ends_that_stay_one_comes_to_the_other() {
        for first_to_look in [0, 1] {
            each_side(|end, other| {
                send(&other, "three");
                delay(&other);
                let ends = [&end, &other];
                // Either may be the first to find out, with either direction.
                let _ = ends[first_to_look].status();
                ["one", "two", "three"].into_iter().for_each(|text| expect(&end, text));
                assert_eq!(other.try_recv().unwrap_err(), Error::WouldBlock);
                talk(&end, &other);
            });
        }
    }

    #[test]
    fn an_end_that_stays_is_closed_where_the_other_is() {
        each_side(|end, other| {
            drop(end);
            assert_eq!(other.try_recv().unwrap_err(), Error::PeerClosed);
            assert_eq!(other.try_send("nobody").unwrap_err().error, Error::PeerClosed);
        });
        each_side(|end, other| {
            drop(other);
            ["one", "two"].into_iter().for_each(|text| expect(&end, text));
            assert_eq!(end.try_recv().unwrap_err(), Error::PeerClosed);
            assert_eq!(end.try_send("nobody").unwrap_err().error, Error::PeerClosed);
        });
    }
}
