//! The mailbox: the handles, values and memory of messages within this process, until their receivers take them. The
//! ring holds only the records.
//!
//! A message to an end in this process needs no socket. The handles or the value, and the memory of the message are
//! here until the receiver takes them. Each entry is filed under the token of the ring. Only this process knows the
//! token, and nothing from another process is filed here.

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};

use super::in_transit::LaneUser;
use super::nesting::Nesting;
use crate::link::InTransit;
use crate::link::MemoryKey;
use crate::os::fork::PerProcess;
use crate::shm::Mapping;
use crate::sync::unpoisoned;

/// The handles of one message within this process, or the value of the message, until the receiver takes the message.
pub(crate) trait Parcel: Any + Debug + Send {
    /// Returns the number of handles in the record of the message. An object counts as one handle.
    fn len(&self) -> usize;

    /// Returns whether the message is an object (a value).
    fn is_value(&self) -> bool;

    /// Returns the size in bytes that the object reports; 0 if the message is not an object.
    fn size(&self) -> usize;

    /// Returns the channel ends among the handles.
    fn ends(&self) -> Vec<Arc<dyn LaneUser>>;

    /// Closes the handles, which the receiver will not take. The caller must hold no lock: some handles may be channel
    /// ends.
    fn close(self: Box<Self>);
}

/// A parcel in the mailbox.
#[derive(Debug)]
pub(crate) struct Left {
    parcel: Box<dyn Parcel>,
    /// The size in bytes that the value reported when the parcel was left here; 0 if the message is not a value.
    size: usize,
    /// Whether the record of the message has not been committed yet. The sending thread takes the parcel back if it
    /// cannot commit the message.
    is_uncommitted: bool,
    /// The tokens of the rings within this process that are read by channel ends in the parcel.
    read_by_ends: Vec<u128>,
    /// The retention mark for channel ends in the parcel; `None` if there are none. Such ends may stay in the mailbox
    /// until the receiving end arrives in this process.
    _in_transit: Option<InTransit>,
}

/// The mailbox of this process: the parcels and memory of messages within this process.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    /// The parcels, by the token of the ring and the number of the message.
    parcels: BTreeMap<(u128, u64), Left>,
    memories: BTreeMap<MemoryKey, Arc<Mapping>>,
    /// The ends in the parcels, for the look for reference cycles.
    pub(crate) nesting: Nesting,
    /// The sizes of the values in committed messages.
    sizes: Sizes,
}

/// The sizes of values, added up for each ring. Values of 0 bytes are left out.
#[derive(Debug, Default)]
struct Sizes {
    /// The token of one ring with values, or of the last ring with values; 0 before the first.
    ring: u128,
    /// The total for `ring`, outside the map, so that sending and receiving one value after the other allocates
    /// nothing.
    total: Total,
    /// The totals for the other rings with values, by the token of the ring.
    others: BTreeMap<u128, Total>,
}

/// The number of values for one ring, and the sum of their sizes in bytes.
#[derive(Debug, Default)]
struct Total {
    values: usize,
    bytes: u128,
}

impl Sizes {
    /// Adds the size of a value for the ring with this token.
    fn add(&mut self, token: u128, size: usize) {
        if size == 0 {
            return;
        }
        if token != self.ring && self.total.values == 0 {
            (self.ring, self.total) = (token, self.others.remove(&token).unwrap_or_default());
        }
        let total = if token == self.ring { &mut self.total } else { self.others.entry(token).or_default() };
        total.values += 1;
        total.bytes += size as u128;
    }

    /// Subtracts a size [added](Self::add) for the ring with this token.
    fn subtract(&mut self, token: u128, size: usize) {
        if size == 0 {
            return;
        }
        if token == self.ring {
            self.total.subtract(size);
        } else if let Entry::Occupied(mut total) = self.others.entry(token) {
            total.get_mut().subtract(size);
            if total.get().values == 0 {
                total.remove();
            }
        }
    }

    /// Returns the sum of the sizes for the ring with this token.
    fn sum(&self, token: u128) -> u64 {
        let total = if token == self.ring { Some(&self.total) } else { self.others.get(&token) };
        total.map_or(0, |total| u64::try_from(total.bytes).unwrap_or(u64::MAX))
    }
}

impl Total {
    fn subtract(&mut self, size: usize) {
        self.values -= 1;
        self.bytes -= size as u128;
    }
}

/// Locks the mailbox of this process, and returns the guard.
pub(crate) fn mailbox() -> MutexGuard<'static, Mailbox> {
    static MAILBOX: PerProcess<Mutex<Mailbox>> = PerProcess::new(Mutex::default);
    unpoisoned(MAILBOX.get())
}

/// Drops all entries for the rings with these tokens, because no end will receive from these rings. Parcels of messages
/// that are not [committed](Mailbox::committed) yet stay.
pub(crate) fn discard(tokens: RangeInclusive<u128>) {
    let left = mailbox().retract(tokens);
    for Left { parcel, .. } in left {
        parcel.close();
    }
}

/// Removes and returns the parcel of the message with the number `message` in the ring with this token. Returns `None`
/// if there is none, or if it has fewer than `count` handles.
pub(crate) fn take(token: u128, message: u64, count: usize) -> Option<Box<dyn Parcel>> {
    let left = mailbox().take(token, message, count);
    // The retention mark is dropped here, without the lock: the mark may be the last holder of a link, whose arenas
    // then discard their entries in the mailbox.
    left.map(|left| left.parcel)
}

/// Returns the range of the keys of the parcels for the ring with this token.
fn all_of(token: u128) -> RangeInclusive<(u128, u64)> {
    (token, 0)..=(token, u64::MAX)
}

impl Mailbox {
    /// Returns whether nothing lies in the mailbox.
    pub(crate) fn is_empty(&self) -> bool {
        self.parcels.is_empty() && self.memories.is_empty()
    }

    /// Leaves `parcel` for the receiver of the message with the number `message` in the ring with this token.
    /// `in_transit` is the retention mark for channel ends in the parcel, and `read_by_ends` are the tokens of the
    /// rings within this process read by these ends, whose [`Places`](super::nesting::Places) the caller has taken.
    /// Unless `is_committed`, the caller is about to [commit](Self::committed) the message. Returns the parcel that lay
    /// there before, for the caller to drop without a lock: only a peer with the memory of both ends can have caused
    /// the error. Otherwise returns `None`.
    #[must_use]
    pub(crate) fn leave(
        &mut self,
        token: u128,
        message: u64,
        parcel: Box<dyn Parcel>,
        in_transit: Option<InTransit>,
        read_by_ends: Vec<u128>,
        is_committed: bool,
    ) -> Option<Left> {
        let size = parcel.size();
        let left = Left { parcel, size, is_uncommitted: !is_committed, read_by_ends, _in_transit: in_transit };
        let old = self.parcels.insert((token, message), left);
        if let Some(old) = &old {
            self.uncount(token, old);
        }
        if is_committed {
            self.sizes.add(token, size);
        }
        old
    }

    /// Takes back the notes of a removed parcel: the places of its ends, and its size if its message was committed.
    fn uncount(&mut self, token: u128, left: &Left) {
        self.nesting.give_up(token, &left.read_by_ends);
        if !left.is_uncommitted {
            self.sizes.subtract(token, left.size);
        }
    }

    /// Removes and returns the parcel with this key.
    fn remove(&mut self, key: (u128, u64)) -> Option<Left> {
        let left = self.parcels.remove(&key)?;
        self.uncount(key.0, &left);
        Some(left)
    }

    /// Marks the parcel of a message as committed: the record of the message is in the ring with this token now, under
    /// the number `message`. After this call the sender checks whether the other end has been closed meanwhile, and if
    /// so [discards](discard) everything for the ring.
    pub(crate) fn committed(&mut self, token: u128, message: u64) {
        let Some(left) = self.parcels.get_mut(&(token, message)) else { return };
        if std::mem::take(&mut left.is_uncommitted) {
            self.sizes.add(token, left.size);
        }
    }

    /// Removes and returns the entry whose parcel [`take`] returns. The caller must drop the entry without a lock.
    #[must_use]
    fn take(&mut self, token: u128, message: u64, count: usize) -> Option<Left> {
        if self.parcels.get(&(token, message))?.parcel.len() < count {
            return None;
        }
        self.remove((token, message))
    }

    /// Leaves the memory of a message, or of a larger ring, for the receiver.
    pub(crate) fn leave_memory(&mut self, key: MemoryKey, memory: Arc<Mapping>) {
        self.memories.insert(key, memory);
    }

    /// Removes and returns the memory with this key; `None` if there is none.
    pub(crate) fn take_memory(&mut self, key: MemoryKey) -> Option<Arc<Mapping>> {
        self.memories.remove(&key)
    }

    /// Returns whether the message with this token and number is an unreceived value.
    pub(crate) fn is_value(&self, token: u128, message: u64) -> bool {
        self.parcels.get(&(token, message)).is_some_and(|left| left.parcel.is_value())
    }

    /// Returns whether a value lies here for the ring with this token.
    pub(crate) fn has_value_for(&self, token: u128) -> bool {
        self.parcels.range(all_of(token)).any(|(_, left)| left.parcel.is_value())
    }

    /// Returns the size of the value with this token and number; 0 if the value is not here.
    pub(crate) fn size_of(&self, token: u128, message: u64) -> usize {
        self.parcels.get(&(token, message)).map_or(0, |left| left.parcel.size())
    }

    /// Returns the sum of the sizes of the values here for the ring with this token. Each value counts with its size at
    /// the time of sending.
    pub(crate) fn size_for(&self, token: u128) -> u64 {
        self.sizes.sum(token)
    }

    /// Returns the channel ends here for the ring with this token. The ends stay here.
    pub(crate) fn ends_for(&self, token: u128) -> Vec<Arc<dyn LaneUser>> {
        self.parcels.range(all_of(token)).flat_map(|(_, left)| left.parcel.ends()).collect()
    }

    /// Returns, in ascending order, the tokens in this range with parcels in the mailbox.
    pub(crate) fn tokens(&self, tokens: RangeInclusive<u128>) -> Vec<u128> {
        let (first, last) = tokens.into_inner();
        let mut found: Vec<_> =
            self.parcels.range((first, 0)..=(last, u64::MAX)).map(|((token, _), _)| *token).collect();
        found.dedup();
        found
    }

    /// Removes and returns the parcels for the rings with these tokens, for the caller to close without a lock. Parcels
    /// of messages that are not [committed](Self::committed) yet stay.
    fn retract(&mut self, tokens: RangeInclusive<u128>) -> Vec<Left> {
        if self.is_empty() {
            return Vec::new();
        }
        let (first, last) = tokens.into_inner();
        let all = self.parcels.range((first, 0)..=(last, u64::MAX));
        let keys: Vec<_> = all.filter(|(_, left)| !left.is_uncommitted).map(|(key, _)| *key).collect();
        for kind in [MemoryKey::Ring, MemoryKey::Block, MemoryKey::Sealed, MemoryKey::Table] {
            while let Some(key) = self.memories.range(kind(first, 0)..=kind(last, u64::MAX)).map(|(key, _)| *key).next()
            {
                self.memories.remove(&key);
            }
        }
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::lane::arena::SMALL;
    use crate::link::{Link, linked};

    /// A parcel with the given number of handles.
    #[derive(Debug)]
    struct Handles(usize);

    impl Parcel for Handles {
        fn len(&self) -> usize {
            self.0
        }

        fn is_value(&self) -> bool {
            false
        }

        fn size(&self) -> usize {
            0
        }

        fn ends(&self) -> Vec<Arc<dyn LaneUser>> {
            Vec::new()
        }

        fn close(self: Box<Self>) {}
    }

    /// A value with the given size.
    #[derive(Debug)]
    struct Sized(usize);

    impl Parcel for Sized {
        fn len(&self) -> usize {
            1
        }

        fn is_value(&self) -> bool {
            true
        }

        fn size(&self) -> usize {
            self.0
        }

        fn ends(&self) -> Vec<Arc<dyn LaneUser>> {
            Vec::new()
        }

        fn close(self: Box<Self>) {}
    }

    /// Shows that the sizes of values are counted from the commit of their messages until the values leave, in every
    /// way of leaving.
    #[test]
    fn sizes_of_values_count_as_long_as_the_values_are_here() {
        let mut mailbox = Mailbox::default();
        let leave = |mailbox: &mut Mailbox, token, message, size, is_committed| {
            mailbox.leave(token, message, Box::new(Sized(size)), None, Vec::new(), is_committed).is_some()
        };
        leave(&mut mailbox, 1, 7, 100, true);
        leave(&mut mailbox, 1, 8, 20, false);
        leave(&mut mailbox, 1, 9, 0, true);
        leave(&mut mailbox, 2, 7, 5, true);
        leave(&mut mailbox, 3, 7, 6, true);
        drop(mailbox.take(3, 7, 1));
        assert_eq!((mailbox.size_for(1), mailbox.size_for(2), mailbox.size_for(3)), (100, 5, 0));
        mailbox.committed(1, 8);
        mailbox.committed(1, 8);
        assert_eq!(mailbox.size_for(1), 120);
        assert!(leave(&mut mailbox, 1, 7, 300, true));
        assert_eq!(mailbox.size_for(1), 320);
        drop(mailbox.take(1, 7, 1));
        assert_eq!(mailbox.size_for(1), 20);
        drop(mailbox.take(1, 8, 1));
        assert_eq!((mailbox.size_for(1), mailbox.size_for(2)), (0, 5));
        // The total of a ring moves out of the map when the ring outside the map has no values.
        leave(&mut mailbox, 2, 8, 30, true);
        assert_eq!((mailbox.size_for(1), mailbox.size_for(2)), (0, 35));
        leave(&mut mailbox, 1, 10, 40, true);
        assert_eq!((mailbox.size_for(1), mailbox.size_for(2)), (40, 35));
        drop(mailbox.retract(1..=2));
        assert_eq!((mailbox.size_for(1), mailbox.size_for(2)), (0, 0));
        assert!(mailbox.is_empty() && mailbox.sizes.others.is_empty());
    }

    #[test]
    fn what_no_end_will_receive_is_discarded_unless_its_message_is_not_committed_yet() {
        let mut mailbox = Mailbox::default();
        for (token, message) in [(1, 7), (1, 8), (2, 7)] {
            assert!(mailbox.leave(token, message, Box::new(Handles(2)), None, Vec::new(), false).is_none());
        }
        mailbox.leave_memory(MemoryKey::Block(1, 0), Mapping::private(4096).unwrap());
        mailbox.committed(1, 7);
        assert_eq!(mailbox.tokens(0..=9), [1, 2]);
        assert_eq!(mailbox.retract(1..=1).len(), 1);
        assert!(mailbox.take(1, 7, 0).is_none() && mailbox.take_memory(MemoryKey::Block(1, 0)).is_none());
        // The sender takes an uncommitted parcel back; a receiver gets no parcel with fewer handles than expected.
        assert!(mailbox.take(1, 8, 3).is_none());
        assert_eq!(mailbox.take(1, 8, 0).map(|left| left.parcel.len()), Some(2));
        mailbox.committed(2, 7);
        assert!(mailbox.take(2, 7, 2).is_some() && mailbox.is_empty());
    }

    #[test]
    fn a_parcel_that_is_gone_holds_no_ends() {
        let mut mailbox = Mailbox::default();
        let leave = |mailbox: &mut Mailbox, token, message, rings: &[u128]| {
            mailbox.nesting.place(token, rings);
            drop(mailbox.leave(token, message, Box::new(Handles(1)), None, rings.to_vec(), true));
        };
        leave(&mut mailbox, 1, 7, &[3]);
        leave(&mut mailbox, 2, 7, &[1]);
        leave(&mut mailbox, 3, 7, &[2, 9]);
        // Replaced, taken, and discarded.
        leave(&mut mailbox, 1, 7, &[]);
        assert!(!mailbox.nesting.lies_within(3, &[1]) && mailbox.nesting.lies_within(1, &[2]));
        drop(mailbox.take(2, 7, 1));
        assert!(!mailbox.nesting.lies_within(1, &[2]) && mailbox.nesting.lies_within(2, &[3]));
        drop(mailbox.retract(1..=3));
        assert!(mailbox.is_empty() && mailbox.nesting.is_empty());
    }

    /// Shows that a retention mark is dropped without the lock of the mailbox. Here the mark is the last holder of a
    /// link with an arena, and a dropped arena discards the mailbox entries of its rings.
    #[test]
    fn a_retention_mark_that_is_the_last_to_hold_a_link_is_dropped_without_the_lock() {
        const TOKEN: u128 = 7;
        let [link, peer] = linked();
        let (arena, name, _) = Link::make_lane(&link, &Link::own(), SMALL).unwrap();
        let (dropped, in_transit) =
            (Arc::downgrade(&arena), InTransit::counted(true).unwrap().with([Arc::clone(&link)]));
        drop((link, arena, name));
        assert!(dropped.strong_count() > 0, "the mark holds the link, and the link its arena");
        assert!(mailbox().leave(TOKEN, 0, Box::new(Handles(1)), Some(in_transit), Vec::new(), true).is_none());
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(take(TOKEN, 0, 1).is_some()));
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(true));
        assert_eq!(dropped.strong_count(), 0);
        drop(peer);
    }
}
