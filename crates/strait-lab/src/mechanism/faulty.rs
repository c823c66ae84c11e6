//! Pipes that lose or damage one message in five hundred, or fail, on purpose. Tests check that such a mechanism gets
//! no figure.

use std::os::fd::OwnedFd;

use rustix::process::{Signal, getpid, kill_process};

use super::{Ability, End, Opened, Pipe, Side};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// The fault that a message is not sent.
pub(crate) const LOSES: u8 = 0;
/// The fault that a message is sent twice.
pub(crate) const DOUBLES: u8 = 1;
/// The fault that the last byte of a message is wrong.
pub(crate) const TEARS: u8 = 2;
/// The fault of sending a message after the next message.
pub(crate) const REORDERS: u8 = 3;
/// The fault that the receiving process is killed.
pub(crate) const DIES: u8 = 4;
/// Not a fault of a message, but a mechanism that no machine supports.
pub(crate) const LACKING: u8 = 5;
/// Not a fault of a message, but a mechanism that meets a known limit.
pub(crate) const LIMITED: u8 = 6;

/// The fault occurs once in so many messages.
const ONCE_IN: u64 = 500;

/// One process's end of two pipes with the fault `HOW`. Only messages from the first process are affected.
#[derive(Debug)]
pub(crate) struct Faulty<const HOW: u8> {
    pipe: Pipe,
    side: Side,
    sent: u64,
    received: u64,
    held: Option<Vec<u8>>,
}

impl<const HOW: u8> End for Faulty<HOW> {
    const NAME: &'static str = match HOW {
        LOSES => "faulty-loses",
        DOUBLES => "faulty-doubles",
        TEARS => "faulty-tears",
        REORDERS => "faulty-reorders",
        DIES => "faulty-dies",
        LIMITED => "faulty-limited",
        _ => "faulty-lacking",
    };
    const TITLE: &'static str = Self::NAME;
    const WAITS: &'static [Wait] = Pipe::WAITS;
    const ABILITIES: &'static [Ability] = &[Ability::Stream];

    fn missing() -> Option<String> {
        (HOW == LACKING).then(|| "no machine has it".to_owned())
    }

    fn open(work: &Work) -> Result<Opened> {
        Pipe::open(work)
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        Ok(Self { pipe: Pipe::join(work, side, descriptors)?, side, sent: 0, received: 0, held: None })
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.sent += 1;
        if self.side == Side::Second || !self.sent.is_multiple_of(ONCE_IN) {
            self.pipe.send(message)?;
            return self.held.take().map_or(Ok(()), |held| self.pipe.send(&held));
        }
        match HOW {
            LOSES => Ok(()),
            DOUBLES => self.pipe.send(message).and_then(|()| self.pipe.send(message)),
            TEARS => {
                let mut torn = message.to_vec();
                torn.iter_mut().rev().take(1).for_each(|byte| *byte ^= 0x55);
                self.pipe.send(&torn)
            }
            REORDERS => {
                self.held = Some(message.to_vec());
                Ok(())
            }
            LIMITED => Err(Trouble::limit("no pipe takes more than 499 messages")),
            _ => self.pipe.send(message),
        }
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.received += 1;
        if HOW == DIES && self.side == Side::Second && self.received == ONCE_IN {
            kill_process(getpid(), Signal::KILL).doing("kill")?;
        }
        self.pipe.recv(buffer)
    }
}
