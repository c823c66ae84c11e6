//! Two named pipes (FIFOs), one for each direction.
//!
//! Once both ends are open, a FIFO is a pipe. Each side opens only one end, for reading or for writing. So a side
//! learns when the other side has closed its end; a process with both ends in one descriptor never learns of it.
//! Opening waits until the other side opens the other end.

use std::fs::{OpenOptions, remove_file};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, mkfifoat};

use super::keeper::Keeper;
use super::pipe::{Pipe, enlarge};
use super::{Ability, End, Hub, Opened, Receiving, Sending, Side, exactly, hub, note};
use crate::trouble::{Result, While};
use crate::work::{Wait, Work};

/// One process's end of two FIFOs.
#[derive(Debug)]
pub(crate) struct Fifo {
    pipes: Pipe,
    _keeper: Option<Keeper>,
}

impl End for Fifo {
    const NAME: &'static str = "fifo";
    const TITLE: &'static str = "FIFO";
    const WAITS: &'static [Wait] = Pipe::WAITS;
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Gather, Ability::Hub, Ability::Threads];

    fn open(_: &Work) -> Result<Opened> {
        let keeper = Keeper::start()?;
        let directory = keeper.directory()?;
        for name in ["there", "back"] {
            mkfifoat(CWD, directory.join(name), Mode::RUSR | Mode::WUSR).doing("mkfifo")?;
        }
        let (here, there) = (note::write(&directory)?, note::write(&directory)?);
        Ok(Opened { first: vec![here, keeper.into_descriptor()], second: vec![there] })
    }

    fn join(work: &Work, side: Side, mut descriptors: Vec<OwnedFd>) -> Result<Self> {
        let keeper = Keeper::of(side, &mut descriptors);
        let [directory] = exactly(descriptors)?;
        let directory: PathBuf = note::read(directory)?;
        let (out, inward) = side.of(directory.join("there"), directory.join("back"));
        // Both sides open the same FIFO first; otherwise each would wait at a different one.
        let (out, inward) = match side {
            Side::First => {
                let out = one_end(&out, true, work)?;
                (out, one_end(&inward, false, work)?)
            }
            Side::Second => {
                let inward = one_end(&inward, false, work)?;
                (one_end(&out, true, work)?, inward)
            }
        };
        if side == Side::First {
            for name in ["there", "back"] {
                remove_file(directory.join(name)).doing("removing the FIFO's name")?;
            }
        }
        Ok(Self { pipes: Pipe::over(out, inward), _keeper: keeper })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.pipes.send(message)
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.pipes.recv(buffer)
    }

    #[inline]
    fn send_batch(&mut self, messages: &[u8], size: usize) -> Result<()> {
        self.pipes.send_batch(messages, size)
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        self.pipes.send_gathered(parts)
    }

    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        self.pipes.divide()
    }

    fn hub(ends: Vec<Self>, work: &Work) -> Result<Box<dyn Hub>> {
        hub::polled(ends, work)
    }
}

impl AsFd for Fifo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipes.as_fd()
    }
}

/// Opens one end of the FIFO at `path`. A polled end becomes non-blocking after opening, since a non-blocking open
/// fails for a writer that comes first.
fn one_end(path: &Path, to_write: bool, work: &Work) -> Result<OwnedFd> {
    let end: OwnedFd = OpenOptions::new().read(!to_write).write(to_write).open(path).doing("opening the FIFO")?.into();
    if work.wait == Wait::Spin {
        let flags = fcntl_getfl(&end).doing("fcntl(F_GETFL)")?;
        fcntl_setfl(&end, flags | OFlags::NONBLOCK).doing("fcntl(F_SETFL)")?;
    }
    enlarge(&end, work)?;
    Ok(end)
}
