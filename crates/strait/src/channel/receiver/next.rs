//! Finding the next record of the ring, and waiting for it. Some records are no messages, but lead to a larger ring, or
//! to the lane in which the other end went on.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::{HandleTable, Rx};
use crate::blocked_on;
use crate::channel::End;
use crate::channel::transfer::close::CLOSE_THING;
use crate::channel::transfer::table::LONGEST_INLINE;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::mailbox::mailbox;
use crate::lane::waiter::{self, Waiter};
use crate::lane::{Lane, Name};
use crate::link::MemoryKey;
use crate::quota::{OverLimit, pools};
use crate::ring::{Consumer, Memory, NextRecord, Record, RecordKind};
use crate::shm::Mapping;
use crate::signals;
use crate::wake::lock::Guard;
use crate::wake::{Direction, Wait};

/// Number of lanes through which a receive follows the other end, from move to move, before checking its deadline. The
/// next call continues from there.
pub(in crate::channel) const MOST_LANES: usize = 1024;

/// Largest number of handle tables from a peer without a message in between; a peer with more is a bad peer. A handle
/// table is the record before a message that describes its handles.
const MOST_TABLES: usize = 4096;

/// The weight of a table in separate memory towards [`MOST_TABLES`], in handle tables.
const LONG_TABLE: usize = 64;

/// Returns `error`. If the error is not temporary, first ends the receiving direction with this error; a temporary
/// error leaves the channel unchanged. [`Error::WouldBlock`] says that another attempt to close the end has to read a
/// long handle table.
pub(super) fn passing_or_end(rx: &mut Rx, error: Error) -> Error {
    if error.passes() || error == Error::WouldBlock { error } else { rx.end_with(error) }
}

/// Number of bytes of the number at the start of the record of a prepended backlog.
const NUMBER: usize = 8;

impl End {
    /// Returns the record of the next message in the ring, and leaves the message there. Follows marks into other
    /// lanes. Returns `None` if no message is there. Also returns `None` if this call has taken a prepended backlog off
    /// the ring: the messages in the backlog of `rx` are then next.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] after the call has followed the other end through [`MOST_LANES`] lanes; any error that
    /// ends the receiving direction.
    #[inline]
    pub(in crate::channel) fn next_record(&self, rx: &mut Rx) -> Result<Option<Record>, Error> {
        match self.next_or_mark(rx)? {
            Some(record) if record.header.kind() == RecordKind::Moved => self.next_behind_marks(rx, record),
            found => Ok(found),
        }
    }

    #[cold]
    fn next_behind_marks(&self, rx: &mut Rx, mut mark: Record) -> Result<Option<Record>, Error> {
        for _ in 0..MOST_LANES {
            self.follow_mark(rx, mark)?;
            match self.next_or_mark(rx)? {
                Some(record) if record.header.kind() == RecordKind::Moved => mark = record,
                found => return Ok(found),
            }
        }
        Err(Error::WouldBlock)
    }

    /// Returns the record of the next message in the ring, and leaves the message there; `None` if no message is there,
    /// or if this call has taken a prepended backlog off the ring, so that the messages in the backlog of `rx` are
    /// next. Follows the other end through as many lanes as there are, until the deadline.
    #[inline]
    pub(super) fn next_record_by(&self, rx: &mut Rx, deadline: Deadline) -> Result<Option<Record>, Error> {
        loop {
            match self.next_record(rx) {
                Err(Error::WouldBlock) if !deadline.is_now() => self.goes_on(deadline, Direction::Receiving)?,
                found => return found,
            }
        }
    }

    /// Checks whether a receive may continue until its deadline after following the other end through [`MOST_LANES`]
    /// lanes; `Ok` means yes.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the call must not block: blocked on nothing, because the next call continues at once;
    /// [`Error::TimedOut`]; [`Error::Interrupted`].
    #[cold]
    pub(in crate::channel) fn goes_on(&self, deadline: Deadline, direction: Direction) -> Result<(), Error> {
        match () {
            () if deadline.is_now() => {
                // An attempt in an earlier lane may have noted an obstacle there.
                blocked_on::forget();
                Err(Error::WouldBlock)
            }
            () if deadline.has_passed() => Err(Error::TimedOut),
            () if direction == Direction::Sending => self.interruption().check(),
            () => self.recv_interruption().check(),
        }
    }

    /// Follows marks (records that lead to another lane) at the front of the ring, through at most [`MOST_LANES`]
    /// lanes. Does nothing if the lane is not open, or if the backlog is not empty. Takes no message.
    pub(in crate::channel) fn next_of_open(&self, rx: &mut Rx) -> Result<(), Error> {
        for _ in 0..MOST_LANES {
            if !rx.is_at_ring() {
                break;
            }
            let Some(record) = self.next_or_mark(rx)?.filter(|record| record.header.kind() == RecordKind::Moved) else {
                break;
            };
            let next = self.marked(rx, record)?;
            rx.leave();
            rx.enter(next);
        }
        Ok(())
    }

    /// Returns the record at the front of the ring, and leaves the record there, if the record is a message or a mark.
    /// (A mark says in which lane the other end went on.) First opens the lane if the peer's open packet has arrived,
    /// and follows larger rings: [`follow`](Self::follow) takes each record of another kind off the ring. Returns
    /// `None` if the ring is empty or the lane cannot be opened yet. Also returns `None` if this call has taken a
    /// prepended backlog off the ring: the messages of that backlog are next.
    ///
    /// # Errors
    /// The error with which the receiving direction has ended or ends now, or a temporary error.
    #[inline]
    pub(in crate::channel) fn next_or_mark(&self, rx: &mut Rx) -> Result<Option<Record>, Error> {
        loop {
            // The link is checked before the ring: everything that was committed before the peer went down is then
            // seen in the ring.
            let down = rx.lane.is_down();
            let front = match &mut rx.consumer {
                Some(consumer) if !rx.over => consumer.next_record(),
                _ => match self.not_open(rx, down)? {
                    true => continue,
                    false => return Ok(None),
                },
            };
            match front {
                Ok(NextRecord::Record(record)) if record.header.kind().is_message() => {
                    if !rx.open {
                        if !record.header.has_table() {
                            // A table describes the message directly behind it, or none.
                            rx.drop_table();
                        }
                        // The writer of this message owns the other end now, so the transfer of the other end is
                        // complete.
                        rx.reopen();
                    }
                    return Ok(Some(record));
                }
                Ok(NextRecord::Empty) if !down => {
                    if !rx.open {
                        self.go_on_with_pending_move(rx);
                    }
                    return Ok(None);
                }
                Ok(NextRecord::Empty) => {
                    let reason = rx.lane.reason();
                    return Err(rx.end_with(reason));
                }
                Ok(NextRecord::Record(record)) if record.header.kind() == RecordKind::Moved => return Ok(Some(record)),
                Ok(NextRecord::Record(record)) => {
                    self.follow(rx, record)?;
                    if record.header.kind() == RecordKind::Prepended {
                        // The prepended backlog comes first.
                        return Ok(None);
                    }
                }
                Err(corrupt) => return Err(rx.end_with(Error::BadPeer(corrupt.0))),
            }
        }
    }

    /// Handles a receiving direction without a ring to read: either the direction has ended, or the lane is not open,
    /// and then this call tries to open it. `down` says whether the lane was down before the call. Returns `true` if
    /// the lane could be opened just now, and `false` if the peer's open packet has not arrived.
    ///
    /// # Errors
    /// The error with which the receiving direction has ended or ends now.
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

    /// Handles a record that is neither a message nor a mark. A larger ring, a handle table or a prepended backlog is
    /// taken off the ring. The close of the channel ends the receiving direction, and so does a record of any other
    /// kind, which makes the peer a bad peer.
    #[cold]
    pub(in crate::channel) fn follow(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        if !matches!(record.header.kind(), RecordKind::Table | RecordKind::Next) {
            rx.drop_table();
        }
        match record.header.kind() {
            RecordKind::Closed => {
                self.note_close_reason(rx, record);
                rx.lane.set_read();
                Err(rx.end_with(Error::PeerClosed))
            }
            RecordKind::Next if record.header.len() == 8 => {
                let mut generation = [MaybeUninit::uninit(); 8];
                let generation = rx.consumer().read(record, 0, &mut generation);
                let generation = u64::from_le_bytes(generation.try_into().expect("eight bytes"));
                if generation != u64::from(rx.generation) + 1 {
                    return Err(rx.end_with(Error::BadPeer("a ring that does not follow the one before")));
                }
                let cells = self.ring_of(rx, generation)?;
                let grown = rx.consumer().memory().grown(cells);
                let Some(grown) = grown else {
                    return Err(rx.end_with(Error::BadPeer("a ring of impossible size")));
                };
                rx.generation += 1;
                let cold = rx.cold();
                cold.fetched = None;
                cold.rings.retain(|(of, _)| *of > generation);
                rx.consumer().go_on_in(grown);
                // The memory of the larger ring is no longer in flight.
                self.give_credit(rx);
                Ok(())
            }
            RecordKind::Table => self.take_table(rx, record),
            RecordKind::Prepended => self.take_prepended(rx, record),
            _ => Err(rx.end_with(Error::BadPeer("a record of a kind that is not permitted there"))),
        }
    }

    /// Returns the memory of the ring of this lane with the generation `generation`, sent over the socket. Receives the
    /// memory from the link, unless the check before a move has mapped it already. The receiving direction does not
    /// read from that ring yet.
    pub(super) fn ring_of(&self, rx: &mut Rx, generation: u64) -> Result<Arc<Mapping>, Error> {
        match rx.ring_ahead(generation) {
            Some(ring) => Ok(ring),
            None => self.fetch_memory(rx, MemoryKey::Ring(rx.lane.token_in(), generation)),
        }
    }

    /// Goes on receiving in the lane named by a mark. `record` is the mark, the last record of its ring. Lets the
    /// sending direction follow too, if no other call uses it.
    #[cold]
    pub(in crate::channel) fn follow_mark(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        let next = self.marked(rx, record)?;
        rx.leave();
        rx.enter(next);
        // An end that never sends follows the other end here; otherwise such an end would retain one lane after the
        // other.
        if let Some(mut tx) = self.tx.try_lock() {
            self.catch_up(&mut tx);
        }
        Ok(())
    }

    /// Returns the next receiving lane of this end, after the mark `record`, the last record of the ring. Normally the
    /// mark names the next lane, in which the other end went on. If both ends move at once, the end on side 0 goes
    /// first. If this end is on side 0, the call completes this end's move and returns its fresh lane; otherwise the
    /// call gives up this end's move.
    pub(in crate::channel) fn marked(&self, rx: &mut Rx, record: Record) -> Result<Arc<Lane>, Error> {
        let mut name = [MaybeUninit::uninit(); Name::SIZE];
        if record.header.len() != Name::SIZE {
            return Err(rx.end_with(Error::BadPeer("an invalid mark")));
        }
        let name = Name::decode((&*rx.consumer().read(record, 0, &mut name)).try_into().expect("as long as a name"));
        if rx.consumer().taken() > 0 {
            rx.lane.set_used();
        }
        let at_once = rx.pending_move().is_some_and(|pending_move| pending_move.was_marked_in(&rx.lane));
        let next = match at_once && rx.lane.side() == 0 {
            // If both ends move at the same time, the end on side 0 goes first: the other end follows to the fresh lane
            // of this end.
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

    /// Takes the handle table in `record` off the ring, and stores it for the next message.
    pub(super) fn take_table(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        // A table without its message is void. The limit keeps a long sequence of such tables from holding up a call.
        let cold = rx.cold();
        let cost = 1 + usize::from(record.header.handles() > 0) * LONG_TABLE;
        cold.tables = if cold.table.is_some() { cold.tables + cost } else { cost };
        if cold.tables > MOST_TABLES {
            return Err(rx.end_with(Error::BadPeer("handle tables without their messages")));
        }
        let message = rx.number();
        let table = self.read_table(rx, record, 0, message)?;
        rx.cold().fetched = None;
        rx.set_table(table);
        rx.consumer().advance(record);
        Ok(())
    }

    /// Returns a handle table: a copy of the bytes of `record` from byte `offset` on, or, if the table was sent in
    /// separate memory, that memory. `message` is the number under which the memory was sent.
    fn read_table(&self, rx: &mut Rx, record: Record, offset: usize, message: u64) -> Result<HandleTable, Error> {
        if record.header.handles() > 0 {
            let memory = self.fetch_memory(rx, MemoryKey::Table(rx.lane.token_in(), message))?;
            rx.count_table_work(CLOSE_THING);
            return Ok(HandleTable::Sealed(memory));
        }
        let len = record.header.len() - offset;
        if len > LONGEST_INLINE {
            return Err(rx.end_with(Error::BadPeer("a handle table that is too long for its record")));
        }
        let mut table = Vec::new();
        if table.try_reserve_exact(len).is_err() {
            return Err(Error::NoMemory { call: "memory for a table of handles" });
        }
        rx.consumer().read(record, offset, &mut table.spare_capacity_mut()[..len]);
        // SAFETY: `len` bytes were reserved and have been written just now.
        unsafe { table.set_len(len) };
        rx.count_table_work(1);
        Ok(HandleTable::Copied(table))
    }

    /// Takes a prepended backlog off the ring, and appends its messages to the backlog of this end, to be received
    /// before everything in the ring.
    fn take_prepended(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        let token = rx.lane.token_in();
        let mut number = [MaybeUninit::uninit(); NUMBER];
        if record.header.len() < NUMBER {
            return Err(rx.end_with(Error::BadPeer("an invalid prepended backlog")));
        }
        let number = rx.consumer().read(record, 0, &mut number);
        let number = u64::from_le_bytes((&*number).try_into().expect("eight bytes"));
        let prepended = if rx.lane.current_link().is_local() {
            self.prepended_local(token, number)
        } else {
            let table = self.read_table(rx, record, NUMBER, number)?;
            rx.count_table_work(CLOSE_THING);
            let checked = rx.check_table(table.bytes().len());
            checked.and_then(|()| self.receive_prepended(rx, token, number, table.bytes()))
        };
        let prepended = prepended.map_err(|error| passing_or_end(rx, error))?;
        rx.cold().fetched = None;
        rx.consumer().advance(record);
        // The survey of queued messages did not count the prepended messages.
        rx.set_ahead(None);
        for unread in prepended {
            rx.push_backlog(unread);
        }
        Ok(())
    }

    /// Returns the memory of the next record, sent over the socket before the record. Until the record is taken off the
    /// ring, later calls return the same memory again.
    pub(in crate::channel) fn fetch_memory(&self, rx: &mut Rx, key: MemoryKey) -> Result<Arc<Mapping>, Error> {
        if let Some(Some((fetched, mapping))) = rx.cold.as_ref().map(|cold| &cold.fetched)
            && *fetched == key
        {
            return Ok(mapping.clone());
        }
        let link = rx.lane.current_link().clone();
        let found = if link.is_local() {
            mailbox().take_memory(key).map(Ok)
        } else {
            let over_limit = match key {
                MemoryKey::Ring(..) | MemoryKey::Table(..) => rx.lane.over_limit(),
                // An end that is closed does not need the payloads of its messages.
                MemoryKey::Block(..) | MemoryKey::Sealed(..) => OverLimit::Refuse,
            };
            link.fetch(|inbox| inbox.take_memory(key, over_limit)).map_err(|error| passing_or_end(rx, error))?
        };
        let missing = Error::BadPeer("a record that refers to memory which was never sent");
        let mapping =
            found.ok_or_else(|| rx.end_with(link.missing(missing)))?.map_err(|error| passing_or_end(rx, error))?;
        rx.cold().fetched = Some((key, mapping.clone()));
        Ok(mapping)
    }

    /// Gives the sender all owed credit, because the sender may wait for credit while this thread waits for the sender.
    pub(in crate::channel) fn owe_nothing(&self, rx: &mut Rx) {
        rx.learn_quota();
        if rx.consumer.as_ref().is_some_and(Consumer::owes_credit) {
            self.give_credit(rx);
        }
    }

    /// Returns whether a wait for a message on this end would sleep at once instead of spinning, as far as the call can
    /// find out without waiting for a lock.
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
        if rx.backlog().is_some() {
            return Ok(());
        }
        let Some(consumer) = &rx.consumer else { return self.wait_for_open(rx, deadline) };
        // First the thread spins for a short time without marking the lock as blocking: other threads wait for it
        // just as briefly. To mark the lock, and to look for threads that waited meanwhile, costs two fences.
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
            link: lane.current_link(),
            scope: lane.scope(),
            relayed: pending,
            memory: consumer.memory(),
            direction: Direction::Receiving,
            interruption: self.interruption_within(lane.current_link()).and_nudges(),
            peer_cpu: Some(consumer.memory().cpu()),
            wait: self.options.wait,
            spin: self.options.spin,
            long: &self.long_sleep,
        };
        rx.mark_blocking_until(deadline);
        let waited = waiter.until(
            deadline,
            || !consumer.is_empty() || (pending && !lane.is_pending()),
            || {
                self.counts.cold().recv_sleeps.add(1);
                pools::look();
                if let Some(tx) = self.tx.try_lock() {
                    self.publish_cpu(&tx);
                }
            },
        );
        rx.unmark_blocking_until(deadline);
        self.after_blocking();
        match waited {
            // If the source of a transfer died, the lane knows the outcome of the transfer. Otherwise this direction
            // has ended, and the caller notes the end when it looks for the remaining messages.
            Err(error) if waiter.link.is_down() => {
                signals::postpone(error);
                Ok(())
            }
            // The message may wait behind a packet that this process could not take; then the reason is the error of
            // that packet.
            Err(Error::WouldBlock) if waiter.link.is_stuck() => {
                waiter.link.fetch(|_| None::<()>)?;
                if waiter.link.is_stuck() { Err(Error::WouldBlock) } else { Ok(()) }
            }
            // Another thread has broken off this end.
            Err(error @ Error::BadPeer(_)) => Err(rx.end_with(error)),
            waited => waited,
        }
    }

    pub(super) fn wait_for_open(&self, rx: &mut Guard<'_, Rx>, deadline: Deadline) -> Result<(), Error> {
        let link = rx.lane.link().clone();
        if deadline.is_now() {
            link.probe();
            return Err(Error::WouldBlock);
        }
        rx.mark_blocking();
        let mut open = None;
        let interruption = self.recv_interruption();
        let noted = interruption.note(Direction::Receiving, &**link, None);
        let waited = link.park(deadline, interruption, || {
            open = link.inbox().take_open();
            open.is_some() || rx.lane.inward().is_some()
        });
        drop(noted);
        rx.unmark_blocking();
        self.after_blocking();
        match open {
            // The caller goes on with the lane that was opened.
            Some(open) => rx.lane.open_with(open).map_err(|error| rx.end_with(error)),
            None => {
                waited?;
                if rx.lane.inward().is_none() && !link.is_down() {
                    interruption.check()?;
                }
                // Either the link is down, which the caller sees, or the time is up.
                if !link.is_down() && deadline.has_passed() { Err(Error::TimedOut) } else { Ok(()) }
            }
        }
    }
}
