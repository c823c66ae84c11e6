//! States as a few lines of text, for counter-examples.

use std::fmt;

use crate::end::{Doing, End, Message, Move, Sleep};
use crate::lane::{Half, Lane, Record, Ring, TransferState, Word};
use crate::state::State;

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (process, owner) in self.owners.iter().enumerate() {
            if !owner.alive {
                writeln!(f, "    process {process} is dead")?;
            }
            for end in &owner.ends {
                writeln!(f, "    process {process}: {end:?}")?;
            }
            if let Some(fuse) = &owner.fuse {
                writeln!(f, "    process {process}: {fuse:?}")?;
            }
            if !owner.tasks.is_empty() {
                writeln!(f, "    process {process} has to {:?}", owner.tasks)?;
            }
        }
        let mut lanes: Vec<_> = self.lanes.iter().collect();
        lanes.sort_by_key(|lane| lane.id.name);
        for lane in lanes {
            writeln!(f, "    {lane:?}")?;
        }
        if let Some(wrong) = self.wrong {
            writeln!(f, "    WRONG: {wrong:?}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} tx {:?} rx {:?}", self.id, self.tx, self.rx)?;
        if !self.backlog.is_empty() {
            write!(f, " backlog {:?}", self.backlog)?;
        }
        if self.reading != crate::end::Reading::Open {
            write!(f, " reading {:?}", self.reading)?;
        }
        for (word, yes) in [("tx closed", self.tx_closed), ("dead", self.dead), ("in flight", self.in_flight)] {
            if yes {
                write!(f, ", {word}")?;
            }
        }
        for (half, sleep) in [Half::Reader, Half::Writer].into_iter().zip(self.sleep) {
            if sleep != Sleep::Awake {
                write!(f, ", {half:?} {sleep:?}")?;
            }
        }
        match self.doing {
            Doing::Nothing => Ok(()),
            doing => write!(f, " {doing:?}"),
        }
    }
}

impl fmt::Debug for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "through {:?} to {}, end {}: {:?}", self.carrier, self.to, self.item, self.phase)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.number)?;
        self.carried.iter().try_for_each(|end| write!(f, " with ({end:?})"))
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(message) => message.fmt(f),
            Self::Next => f.write_str("Next"),
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.records)?;
        self.seal.iter().try_for_each(|seal| write!(f, " {seal:?}"))?;
        for (half, word) in [Half::Reader, Half::Writer].into_iter().zip(self.words) {
            if word != Word::Nobody {
                write!(f, " {half:?} {word:?}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} joins {} and {}: {:?} | {:?}", self.id, self.at[0], self.at[1], self.rings[0], self.rings[1])?;
        match self.transfer {
            TransferState::HandedOver => Ok(()),
            transfer => write!(f, ", {} moved by {}: {transfer:?}", ["a", "b", "neither"][self.moved], self.source),
        }
    }
}
