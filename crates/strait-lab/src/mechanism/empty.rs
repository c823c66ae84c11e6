//! No mechanism: a message that is sent is received at once, in the same process. The rest of a round trip is the
//! cost of the measuring itself.

use std::os::fd::OwnedFd;

use super::{End, Opened, Side};
use crate::trouble::Result;
use crate::work::{Wait, Work};

/// An end without a mechanism behind it: the end receives each of its sent messages.
#[derive(Debug, Default)]
pub(crate) struct Empty {
    number: u64,
}

impl End for Empty {
    const NAME: &'static str = "empty";
    const TITLE: &'static str = "nothing";
    const WAITS: &'static [Wait] = &[Wait::Spin];

    fn open(_: &Work) -> Result<Opened> {
        Ok(Opened { first: Vec::new(), second: Vec::new() })
    }

    fn join(_: &Work, _: Side, _: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self { number: 0 })
    }

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        if let Some(number) = message.first_chunk() {
            self.number = u64::from_le_bytes(*number);
        }
        Ok(())
    }

    #[inline(always)]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        // Only the number that the receiver checks is written: copying the message is the work of a mechanism.
        let number = self.number;
        if let Some(end) = buffer.last_chunk_mut::<4>() {
            *end = (number as u32).to_le_bytes();
        }
        if let Some(start) = buffer.first_chunk_mut() {
            *start = number.to_le_bytes();
        }
        Ok(())
    }
}
