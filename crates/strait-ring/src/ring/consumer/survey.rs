//! Surveys: counting queued messages without receiving them.
//!
//! A survey remembers how far it has looked. So looking again costs only as much as there are new messages, however
//! many are queued. A survey ends at the first record that is no message. The messages behind such a record, in another
//! ring, are counted once the consumer has continued in that ring.

use super::{Consumer, Corrupt};
use crate::ring::{Header, Memory, PACK_WORD, RecordKind, Word, cells_for};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Acquire;

/// A survey (a count of queued messages without receiving): the position of the survey in the ring, and the messages
/// and bytes counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    base: u64,
    position: u64,
    /// Number of messages counted since the survey began.
    pub messages: u64,
    /// Number of bytes of all messages counted since the survey began.
    pub bytes: u64,
}

impl<M: Memory> Consumer<M> {
    /// Returns a new survey, which begins at the consumer's next record and has counted nothing yet.
    pub fn survey(&self) -> Survey {
        Survey { base: self.base, position: self.position, messages: 0, bytes: 0 }
    }

    /// Returns whether `survey` can be continued: the consumer is in the ring in which the survey began, and has
    /// received no message that the survey has not counted. If not, the caller must begin a new survey.
    pub fn can_go_on(&self, survey: &Survey) -> bool {
        // Some messages of the packed record that is being read may have been received.
        let is_ahead = survey.position > self.position || (survey.position == self.position && self.pack.left == 0);
        survey.base == self.base && is_ahead
    }

    /// Adds to `survey` the messages that were published since the last call with the same survey, and receives none of
    /// them. Returns the kind of the record at which the count stopped: a mark or a prepended backlog. Returns `None`
    /// if every published record was counted.
    pub fn look_ahead(&self, survey: &mut Survey) -> Result<Option<RecordKind>, Corrupt> {
        // Counts the rest of a packed record that is being read, unless the survey is already behind the record.
        if self.pack.left > 0 && survey.position == self.position {
            let pack = self.pack;
            self.count_packed(survey, pack.cell as usize, pack.offset as usize, pack.len as usize, pack.left as usize)?;
            survey.position += cells_for(pack.len as usize) as u64;
        }
        loop {
            let cell = (survey.position - self.base) as usize & (self.memory.cells() - 1);
            let word = self.memory.header(cell).load(Acquire);
            if word == 0 {
                return Ok(None);
            }
            let header = Header::from_word(word).ok_or(Corrupt("an invalid record header"))?;
            let cells = cells_for(header.len());
            if cells > self.memory.cells() - cell {
                return Err(Corrupt("a record that does not fit its ring"));
            }
            let ahead = survey.position + cells as u64 - self.published().max(self.base);
            if ahead > self.memory.cells() as u64 {
                return Err(Corrupt("more records than fit its ring"));
            }
            match header.kind() {
                RecordKind::Pad | RecordKind::Table => {}
                RecordKind::Pack => self.count_packed(survey, cell, 0, header.len(), header.handles())?,
                RecordKind::Message => survey.count(header.len() as u64),
                // The record says in which block the payload is, and its length.
                RecordKind::Block => survey.count(self.word_at(cell, 2, header.len())),
                RecordKind::Sealed => survey.count(self.word_at(cell, 0, header.len())),
                kind @ (RecordKind::Next
                | RecordKind::Closed
                | RecordKind::Moved
                | RecordKind::Frozen
                | RecordKind::Prepended) => {
                    return Ok(Some(kind));
                }
            }
            survey.position += cells as u64;
        }
    }

    fn count_packed(
        &self,
        survey: &mut Survey,
        cell: usize,
        mut offset: usize,
        len: usize,
        left: usize,
    ) -> Result<(), Corrupt> {
        for _ in 0..left {
            let room = len
                .checked_sub(offset + PACK_WORD)
                .ok_or(Corrupt("a packed record with fewer messages than announced"))?;
            let length = self.word_at(cell, offset / PACK_WORD, len);
            let length = usize::try_from(length).ok().filter(|length| *length <= room);
            let length = length.ok_or(Corrupt("a message that does not fit its packed record"))?;
            survey.count(length as u64);
            offset += PACK_WORD + length.next_multiple_of(PACK_WORD);
        }
        Ok(())
    }

    /// Returns the 8-byte word with the index `index` (from 0) in the payload of the record that begins in `cell` and
    /// has `len` bytes. Returns 0 if the payload is too short. (The receiver of a record that is too short reports the
    /// error.)
    fn word_at(&self, cell: usize, index: usize, len: usize) -> u64 {
        if len < (index + 1) * 8 {
            return 0;
        }
        let mut word = [MaybeUninit::uninit(); 8];
        let word = self.memory.read(cell, index * 8, &mut word);
        u64::from_le_bytes((&*word).try_into().expect("eight bytes"))
    }
}

impl Survey {
    #[inline]
    fn count(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}
