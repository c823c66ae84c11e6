//! A socket for setting up another library's mechanism on both sides.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::mechanism::{Opened, exactly};
use crate::process::control::{self, Heard};
use crate::trouble::{Result, Trouble};

/// The time limit for a packet: longer than any of the libraries needs to set up its channels.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket by which the two sides exchange names and wait for each other before using the measured mechanism. With
/// most libraries each process must create its channels by itself, in a certain order.
#[derive(Debug)]
pub(super) struct Terms(OwnedFd);

impl Terms {
    pub(super) fn open() -> Result<Opened> {
        let (first, second) = control::pair()?;
        Ok(Opened { first: vec![first], second: vec![second] })
    }

    pub(super) fn join(descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [socket] = exactly(descriptors)?;
        Ok(Self(socket))
    }

    /// Sends `what` to the other side.
    pub(super) fn tell(&self, what: &impl Serialize) -> Result<()> {
        control::send(self.0.as_fd(), what, &[])
    }

    /// Waits for a packet of the other side and returns its content.
    pub(super) fn hear<T: DeserializeOwned>(&self) -> Result<T> {
        match control::recv(self.0.as_fd(), PATIENCE)? {
            Heard::Packet(what, _) => Ok(what),
            Heard::Gone | Heard::Nothing => Err(Trouble::new("the other side did not get ready")),
        }
    }
}
