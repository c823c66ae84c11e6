//! What is at the front of the ring, waiting for it, and following what is no message: to a larger ring, or to the lane in
//! which the other end went on.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::{Rx, message_quota};
use crate::channel::End;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::{Lane, Name};
use crate::link::{MemoryKey, Number};
use crate::ring::{Front, Kind, Memory, Record};
use crate::shm::Mapping;
use crate::wake::lock::Guard;
use crate::wake::waiter::{self, Waiter};
use crate::wake::{Direction, Wait};

/// Lanes that a call follows the other end through before it looks at its deadline. The next call goes on from there.
pub(in crate::channel) const MOST_LANES: usize = 1024;

/// Tables in a row at most.
const MOST_TABLES: usize = 4096;

/// As how many of them one counts that comes as memory.
const LONG_TABLE: usize = 64;

/// Errors that pass leave the channel as it is; after others it has ended.
pub(super) fn passing_or_end(rx: &mut Rx, error: Error) -> Error {
    if error.passes() { error } else { rx.end_with(error) }
}

/// Bytes of the number before messages that are brought along.
const NUMBER: usize = 8;

impl End {
    /// The next message's record in the ring, if it is there and nothing is kept that was brought before it.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] once the other end was followed through [`MOST_LANES`].
    #[inline]
    pub(in crate::channel) fn front(&self, rx: &mut Rx) -> Result<Option<Record>, Error> {
        match self.front_or_mark(rx)? {
            Some(record) if record.header.kind() == Kind::Moved => self.front_behind_marks(rx, record),
            found => Ok(found),
        }
    }

    #[cold]
    fn front_behind_marks(&self, rx: &mut Rx, mut mark: Record) -> Result<Option<Record>, Error> {
        for _ in 0..MOST_LANES {
            self.follow_mark(rx, mark)?;
            match self.front_or_mark(rx)? {
                Some(record) if record.header.kind() == Kind::Moved => mark = record,
                found => return Ok(found),
            }
        }
        Err(Error::WouldBlock)
    }

    /// The same until the deadline: as many lanes as there are.
    #[inline]
    pub(super) fn front_by(&self, rx: &mut Rx, deadline: Deadline) -> Result<Option<Record>, Error> {
        loop {
            match self.front(rx) {
                Err(Error::WouldBlock) if !deadline.is_now() => self.goes_on(deadline)?,
                found => return found,
            }
        }
    }

    /// Whether a call that has followed the other end through [`MOST_LANES`] may go on.
    #[cold]
    pub(in crate::channel) fn goes_on(&self, deadline: Deadline) -> Result<(), Error> {
        match () {
            () if deadline.is_now() => Err(Error::WouldBlock),
            () if deadline.has_passed() => Err(Error::TimedOut),
            () => self.interruption().check(),
        }
    }

    /// Follows the marks that are at the front, if the peer has opened its side; as many as a call may.
    pub(in crate::channel) fn front_of_open(&self, rx: &mut Rx) -> Result<(), Error> {
        for _ in 0..MOST_LANES {
            if !rx.is_at_ring() {
                break;
            }
            let Some(record) = self.front_or_mark(rx)?.filter(|record| record.header.kind() == Kind::Moved) else {
                break;
            };
            let next = self.marked(rx, record)?;
            rx.leave();
            rx.enter(next);
        }
        Ok(())
    }

    /// The same, or the mark that says where the other end went on.
    #[inline]
    pub(in crate::channel) fn front_or_mark(&self, rx: &mut Rx) -> Result<Option<Record>, Error> {
        loop {
            // Before the ring is looked at: what was committed before the peer went down is seen after.
            let down = rx.lane.is_down();
            let front = match &mut rx.consumer {
                Some(consumer) if !rx.over => consumer.front(),
                _ => match self.not_open(rx, down)? {
                    true => continue,
                    false => return Ok(None),
                },
            };
            match front {
                Ok(Front::Record(record)) if record.header.kind().is_message() => {
                    if !rx.open {
                        // Whoever wrote it has its end for good.
                        rx.reopen();
                    }
                    return Ok(Some(record));
                }
                Ok(Front::Empty) if !down => {
                    if !rx.open {
                        self.go_onward(rx);
                    }
                    return Ok(None);
                }
                Ok(Front::Empty) => {
                    let reason = rx.lane.reason();
                    return Err(rx.end_with(reason));
                }
                Ok(Front::Record(record)) if record.header.kind() == Kind::Moved => return Ok(Some(record)),
                Ok(Front::Record(record)) => {
                    self.follow(rx, record)?;
                    if record.header.kind() == Kind::Brought {
                        // That comes first.
                        return Ok(None);
                    }
                }
                Err(corrupt) => return Err(rx.end_with(Error::BadPeer(corrupt.0))),
            }
        }
    }

    /// The channel has ended, or the peer's hello has not come: true if it has now.
    #[cold]
    pub(super) fn not_open(&self, rx: &mut Rx, down: bool) -> Result<bool, Error> {
        if let Some(error) = rx.ended() {
            return Err(error);
        }
        let lane = rx.lane.clone();
        match lane.open().map_err(|error| passing_or_end(rx, error))? {
            true => {
                rx.enter(lane);
                Ok(true)
            }
            false if down || lane.link().is_down() => Err(rx.end_with(lane.link().reason())),
            false => Ok(false),
        }
    }

    /// Follows a record that is no message.
    #[cold]
    pub(in crate::channel) fn follow(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        match record.header.kind() {
            Kind::Closed => {
                rx.lane.set_read();
                Err(rx.end_with(Error::PeerClosed))
            }
            Kind::Next if record.header.len() == 8 => {
                let mut generation = [MaybeUninit::uninit(); 8];
                let generation = rx.consumer().read(record, 0, &mut generation);
                let generation = u64::from_le_bytes(generation.try_into().expect("eight bytes"));
                if generation != u64::from(rx.generation) + 1 {
                    return Err(rx.end_with(Error::BadPeer("a ring out of its turn")));
                }
                let cells = self.ring_of(rx, generation)?;
                let grown = rx.consumer().memory().grown(cells);
                let Some(grown) = grown else {
                    return Err(rx.end_with(Error::BadPeer("a ring of impossible size")));
                };
                rx.generation += 1;
                let rare = rx.rare();
                rare.fetched = None;
                rare.rings.retain(|(of, _)| *of > generation);
                rx.consumer().go_on_in(grown);
                // Its memory is no longer under way.
                self.give_credit(rx);
                Ok(())
            }
            Kind::Table => self.take_table(rx, record),
            Kind::Brought => self.take_brought(rx, record),
            _ => Err(rx.end_with(Error::BadPeer("a record out of place"))),
        }
    }

    /// The memory of a ring of this lane that was sent and not come to.
    pub(super) fn ring_of(&self, rx: &mut Rx, generation: u64) -> Result<Arc<Mapping>, Error> {
        match rx.ring_ahead(generation) {
            Some(ring) => Ok(ring),
            None => self.fetch_memory(rx, MemoryKey::Ring(rx.lane.token_in(), generation)),
        }
    }

    /// Goes on in the lane that a mark names.
    #[cold]
    pub(in crate::channel) fn follow_mark(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        let next = self.marked(rx, record)?;
        rx.leave();
        rx.enter(next);
        // An end that never sends must not stay behind lane after lane.
        if let Some(mut tx) = self.tx.try_lock() {
            self.catch_up(&mut tx);
        }
        Ok(())
    }

    /// The lane that a mark names.
    pub(in crate::channel) fn marked(&self, rx: &mut Rx, record: Record) -> Result<Arc<Lane>, Error> {
        let mut name = [MaybeUninit::uninit(); Name::SIZE];
        if record.header.len() != Name::SIZE {
            return Err(rx.end_with(Error::BadPeer("a mark that is none")));
        }
        let name = Name::decode((&*rx.consumer().read(record, 0, &mut name)).try_into().expect("as long as a name"));
        if rx.consumer().taken() > 0 {
            rx.lane.set_used();
        }
        let at_once = rx.onward().is_some_and(|onward| onward.was_marked_in(&rx.lane));
        let next = match at_once && rx.lane.side() == 0 {
            // Of two ends that move at once this one goes first: the other one comes to where this one goes on.
            true => self.arrive(rx),
            false => {
                let next = rx.lane.next(name).map_err(|error| passing_or_end(rx, error))?;
                if at_once {
                    self.give_way(rx);
                }
                next
            }
        };
        rx.lane.set_read();
        Ok(next)
    }

    /// Takes note of what the handles of the next message are.
    pub(super) fn take_table(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        // The message comes right behind it, unless that could not be sent: then it is tried again, table and all. A row of
        // tables must not keep a call here.
        let rare = rx.rare();
        let cost = 1 + usize::from(record.header.handles() > 0) * LONG_TABLE;
        rare.tables = if rare.table.is_some() { rare.tables + cost } else { cost };
        if rare.tables > MOST_TABLES {
            return Err(rx.end_with(Error::BadPeer("tables without their messages")));
        }
        let message = rx.number(record);
        let table = self.read_table(rx, record, 0, message)?;
        let rare = rx.rare();
        rare.fetched = None;
        rare.table = Some(table);
        rx.consumer().advance(record);
        Ok(())
    }

    /// The table that a record holds from `offset` on, or that came as memory of this number.
    fn read_table(&self, rx: &mut Rx, record: Record, offset: usize, message: Number) -> Result<Vec<u8>, Error> {
        if record.header.handles() == 0 {
            let len = record.header.len() - offset;
            let mut table = Vec::with_capacity(len);
            rx.consumer().read(record, offset, &mut table.spare_capacity_mut()[..len]);
            // SAFETY: `len` bytes were reserved and have been written just now.
            unsafe { table.set_len(len) };
            Ok(table)
        } else {
            // Too long for a ring: in memory of its own, which nobody can change any more.
            let key = MemoryKey::Table(rx.lane.token_in(), message);
            let mapping = self.fetch_memory(rx, key)?;
            let mut table = Vec::new();
            if table.try_reserve_exact(mapping.len()).is_err() {
                return Err(Error::NoMemory { call: "memory for a table of handles" });
            }
            table.extend_from_slice(mapping.immutable_bytes(mapping.len()));
            Ok(table)
        }
    }

    /// Keeps messages that were brought along.
    fn take_brought(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        let token = rx.lane.token_in();
        let mut number = [MaybeUninit::uninit(); NUMBER];
        if record.header.len() < NUMBER {
            return Err(rx.end_with(Error::BadPeer("messages brought along that are none")));
        }
        let number = rx.consumer().read(record, 0, &mut number);
        let number = Number::from_word(u64::from_le_bytes((&*number).try_into().expect("eight bytes")));
        let brought = if rx.lane.listen().is_local() {
            self.brought_within(rx, token, number)
        } else {
            let table = self.read_table(rx, record, NUMBER, number)?;
            self.receive_brought(rx, token, number, &table)
        };
        let brought = brought.map_err(|error| passing_or_end(rx, error))?;
        rx.rare().fetched = None;
        rx.consumer().advance(record);
        // What was counted of what is queued does not have these.
        rx.set_ahead(None);
        for kept in brought {
            rx.keep_message(kept);
        }
        Ok(())
    }

    /// Memory that the record at the front refers to, and that was sent before it. Until the record is taken it can be
    /// asked for again.
    pub(in crate::channel) fn fetch_memory(&self, rx: &mut Rx, key: MemoryKey) -> Result<Arc<Mapping>, Error> {
        if let Some(Some((fetched, mapping))) = rx.rare.as_ref().map(|rare| &rare.fetched)
            && *fetched == key
        {
            return Ok(mapping.clone());
        }
        let link = rx.lane.listen().clone();
        let found = link.fetch(|stash| stash.take_memory(key)).map_err(|error| passing_or_end(rx, error))?;
        let missing = Error::BadPeer("a record that refers to memory which was never sent");
        let mapping = found.ok_or_else(|| rx.end_with(missing))?.map_err(|error| passing_or_end(rx, error))?;
        rx.rare().fetched = Some((key, mapping.clone()));
        Ok(mapping)
    }

    /// Gives the credit that the sender may wait for while we wait for it.
    pub(in crate::channel) fn owe_nothing(&self, rx: &mut Rx) {
        let Some(consumer) = &mut rx.consumer else { return };
        // Told to us by a producer that may be newer than the ring.
        let quota = message_quota(consumer.memory());
        consumer.set_message_quota(quota);
        if consumer.owes_credit() {
            self.give_credit(rx);
        }
    }

    /// Whether a thread that waits for a message sleeps at once, as far as is known.
    pub(crate) fn sleeps_at_once(&self) -> bool {
        let peer_is_elsewhere = || {
            let rx = self.rx.try_lock()?;
            Some(waiter::is_elsewhere(rx.consumer.as_ref().map(|consumer| consumer.memory().cpu())))
        };
        match self.options.wait {
            Wait::Block => true,
            Wait::Spin => false,
            Wait::Adaptive => peer_is_elsewhere() == Some(false),
        }
    }

    pub(super) fn wait_for_message(&self, rx: &mut Guard<'_, Rx>, deadline: Deadline) -> Result<(), Error> {
        if rx.kept().is_some() {
            return Ok(());
        }
        let Some(consumer) = &rx.consumer else { return self.wait_for_hello(rx, deadline) };
        // An answer that comes at once is waited for as whoever is busy with the lock: others that want it wait as short.
        // To say that it is kept, and to look for whom it was, costs two fences.
        if self.options.wait != Wait::Block
            && !deadline.is_now()
            && waiter::look_eagerly(consumer.memory().cpu(), || !consumer.is_empty())
        {
            return Ok(());
        }
        self.owe_nothing(rx);
        let (lane, consumer) = (&rx.lane, rx.consumer.as_ref().expect("looked at just now"));
        let pending = lane.is_pending();
        let waiter = Waiter {
            link: lane.listen(),
            scope: lane.scope(),
            via_mover: pending,
            memory: consumer.memory(),
            direction: Direction::Receiving,
            interruption: self.interruption(),
            peer_cpu: Some(consumer.memory().cpu()),
            wait: self.options.wait,
            spin: self.options.spin,
            long: &self.long_sleep,
        };
        rx.keep_until(deadline);
        let waited = waiter.until(
            deadline,
            || !consumer.is_empty() || (pending && !lane.is_pending()),
            || {
                self.counts.rare().recv_sleeps.add(1);
                if let Some(tx) = self.tx.try_lock() {
                    self.publish_cpu(&tx);
                }
            },
        );
        rx.kept_until(deadline);
        self.kept_no_more();
        match waited {
            // What that means is for the lane to say, if it was the mover that died; and else that this end is over from here
            // on is noted where it is looked for what came before.
            Err(_) if waiter.link.is_down() => Ok(()),
            // The message may be behind a packet that could not be taken: then that is why there is none.
            Err(Error::WouldBlock) if waiter.link.is_stuck() => {
                waiter.link.fetch(|_| None::<()>)?;
                if waiter.link.is_stuck() { Err(Error::WouldBlock) } else { Ok(()) }
            }
            waited => waited,
        }
    }

    pub(super) fn wait_for_hello(&self, rx: &mut Guard<'_, Rx>, deadline: Deadline) -> Result<(), Error> {
        let link = rx.lane.link().clone();
        if deadline.is_now() {
            link.probe();
            return Err(Error::WouldBlock);
        }
        rx.keep();
        let mut hello = None;
        let interruption = self.interruption();
        let noted = interruption.note(Direction::Receiving, &link, None);
        let waited = link.park(deadline, interruption, || {
            hello = link.stash().take_hello();
            hello.is_some() || rx.lane.inward().is_some()
        });
        drop(noted);
        rx.keep_no_more();
        self.kept_no_more();
        match hello {
            // The caller goes on with what was opened.
            Some(hello) => rx.lane.open_with(hello).map_err(|error| rx.end_with(error)),
            None => {
                waited?;
                if rx.lane.inward().is_none() && !link.is_down() {
                    interruption.check()?;
                }
                // Down, which the caller sees, or the time is up.
                if !link.is_down() && deadline.has_passed() { Err(Error::TimedOut) } else { Ok(()) }
            }
        }
    }
}
