//! Notes: small values for the second process in a memfd, since a process receives nothing but descriptors.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::trouble::{Result, While};

/// Writes `what` into a new note.
pub(super) fn write(what: &impl Serialize) -> Result<OwnedFd> {
    let text = serde_json::to_vec(what).doing("writing a note")?;
    let mut note = File::from(memfd_create("strait-note", MemfdFlags::CLOEXEC).doing("memfd_create")?);
    note.write_all(&text).doing("writing a note")?;
    Ok(note.into())
}

/// Reads a note. Several processes may share the descriptor, and with it a file position, so the position is not
/// used.
pub(super) fn read<T: DeserializeOwned>(note: OwnedFd) -> Result<T> {
    let note = File::from(note);
    let mut text = vec![0; note.metadata().doing("reading a note")?.len() as usize];
    note.read_exact_at(&mut text, 0).doing("reading a note")?;
    serde_json::from_slice(&text).doing("reading a note")
}
