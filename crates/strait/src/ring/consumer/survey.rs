//! Counting what is queued, without taking it.
//!
//! A survey remembers how far it has looked, so that looking again after each message costs as much as the message is new,
//! however many are queued. It ends at whatever is no message: what lies behind that, in another ring, is counted once the
//! consumer has gone there.

use super::{Consumer, Corrupt};
use crate::ring::{Header, Kind, Memory, PACK_WORD, Word, cells_for};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Acquire;

/// How far a consumer has looked ahead, and how much it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    base: u64,
    position: u64,
    /// Seen since the survey began.
    pub(crate) messages: u64,
    /// In them.
    pub(crate) bytes: u64,
}

impl<M: Memory> Consumer<M> {
    /// Begins a survey at the front.
    pub(crate) fn survey(&self) -> Survey {
        Survey { base: self.base, position: self.position, messages: 0, bytes: 0 }
    }

    /// Whether everything that a survey has not seen is still there; else a new one must begin.
    pub(crate) fn can_go_on(&self, survey: &Survey) -> bool {
        // Some messages of the pack at the front may have been taken.
        let is_ahead = survey.position > self.position || (survey.position == self.position && self.pack.left == 0);
        survey.base == self.base && is_ahead
    }

    /// Counts what has come since the survey was last looked at. What it ended at, if that is no message that is still
    /// to come: the kind of a record that leads elsewhere, or ends the channel.
    pub(crate) fn look_ahead(&self, survey: &mut Survey) -> Result<Option<Kind>, Corrupt> {
        // What is left of a pack at the front. A survey that went past it goes on behind.
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
            let header = Header::from_word(word).ok_or(Corrupt("a header that is none"))?;
            let cells = cells_for(header.len());
            if cells > self.memory.cells() - cell {
                return Err(Corrupt("a record that does not fit its ring"));
            }
            let ahead = survey.position + cells as u64 - self.published.max(self.base);
            if ahead > self.memory.cells() as u64 {
                return Err(Corrupt("more records than fit its ring"));
            }
            match header.kind() {
                Kind::Pad | Kind::Table => {}
                Kind::Pack => self.count_packed(survey, cell, 0, header.len(), header.handles())?,
                Kind::Message => survey.count(header.len() as u64),
                // Where its bytes are stands in the record, and how many.
                Kind::Block => survey.count(self.word_at(cell, 2, header.len())),
                Kind::Sealed => survey.count(self.word_at(cell, 0, header.len())),
                kind @ (Kind::Next | Kind::Closed | Kind::Moved | Kind::Frozen | Kind::Brought) => {
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
            let room = len.checked_sub(offset + PACK_WORD).ok_or(Corrupt("a pack with fewer messages than it says"))?;
            let length = self.word_at(cell, offset / PACK_WORD, len);
            let length = usize::try_from(length).ok().filter(|length| *length <= room);
            let length = length.ok_or(Corrupt("a message that does not fit its pack"))?;
            survey.count(length as u64);
            offset += PACK_WORD + length.next_multiple_of(PACK_WORD);
        }
        Ok(())
    }

    /// A word of a record's payload; 0 if it has none there, which whoever receives it finds out.
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
    fn count(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}
