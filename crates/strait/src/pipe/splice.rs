//! Bytes moved between a data pipe and a descriptor, without a buffer between them.

use std::os::fd::AsFd;

use super::{DataConsumer, DataProducer};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::os::memory;

impl DataConsumer {
    /// Writes up to `most` bytes of the pipe to a file, a socket or another descriptor, straight from the shared
    /// memory; waits for the first byte until the deadline. Removes the written bytes from the pipe, and returns their
    /// number: 0 at the end of the stream, or if `most` is 0.
    ///
    /// The call makes one `write`, which may block on the descriptor without a limit; the deadline applies to the pipe
    /// only. The write raises neither SIGPIPE nor SIGXFSZ.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the descriptor is non-blocking and accepts nothing now; [`Error::System`] if the write
    /// fails; [`Error::NotElements`] if elements of the pipe have more than 1 byte; otherwise as
    /// [`DataConsumer::read_some`].
    pub fn splice_to(&self, to: impl AsFd, most: usize, deadline: impl Into<Deadline>) -> Result<usize, Error> {
        deferred::run_if_failed(self.write_out(to, most, deadline.into()))
    }

    fn write_out(&self, to: impl AsFd, most: usize, deadline: Deadline) -> Result<usize, Error> {
        single_bytes(self.element())?;
        self.channel().end.born.check()?;
        if most == 0 {
            return Ok(0);
        }
        let unread = self.shared.begin(deadline, || ())?;
        if unread.is_empty() {
            return Ok(0);
        }
        let written = unread.write_out(most, to.as_fd())?;
        unread.consume(written);
        Ok(written)
    }
}

impl DataProducer {
    /// Reads up to `most` bytes from a file, a socket or another descriptor straight into the pipe; waits for room
    /// until the deadline. Returns the number of bytes read: 0 at the end of the file, or if `most` is 0.
    ///
    /// The call makes one `read`, which may block on the descriptor without a limit; the deadline applies to the pipe
    /// only.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the descriptor is non-blocking and has nothing now; [`Error::System`] if the read
    /// fails; [`Error::NotElements`] if elements of the pipe have more than 1 byte; otherwise as
    /// [`DataProducer::write_some`].
    pub fn splice_from(&self, from: impl AsFd, most: usize, deadline: impl Into<Deadline>) -> Result<usize, Error> {
        deferred::run_if_failed(self.read_in(from, most, deadline.into()))
    }

    fn read_in(&self, from: impl AsFd, most: usize, deadline: Deadline) -> Result<usize, Error> {
        single_bytes(self.element())?;
        self.channel().end.born.check()?;
        if most == 0 {
            return Ok(0);
        }
        let mut room = self.shared.begin(deadline, || ())?;
        let most = most.min(room.len());
        let read = memory::read_into(from.as_fd(), &mut room.uninit_mut()[..most])?;
        room.commit(read);
        Ok(read)
    }
}

fn single_bytes(element: usize) -> Result<(), Error> {
    if element == 1 { Ok(()) } else { Err(Error::NotElements { element }) }
}
