//! How the two sides of other people's mechanisms come to terms.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::mechanism::{Opened, exactly};
use crate::pair::control::{self, Heard};
use crate::trouble::{Result, Trouble};

/// Longer than any of them needs to get ready.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket by which the two sides come to terms before they use what is measured: most of these have to be made by
/// each process for itself, in a certain order.
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

    /// Tells the other side.
    pub(super) fn tell(&self, what: &impl Serialize) -> Result<()> {
        control::send(self.0.as_fd(), what, &[])
    }

    /// Waits for what the other side tells.
    pub(super) fn hear<T: DeserializeOwned>(&self) -> Result<T> {
        match control::recv(self.0.as_fd(), PATIENCE)? {
            Heard::Packet(what, _) => Ok(what),
            Heard::Gone | Heard::Nothing => Err(Trouble::new("the other side did not get ready")),
        }
    }
}
