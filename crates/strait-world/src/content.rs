//! What messages hold: bytes and files that show when they are not what was sent.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use strait::Handle;

use crate::random::mix;

/// Bytes that depend on their place and on a seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|at| (seed ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

/// A checksum of bytes (FNV-1a over words).
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let mut words = bytes.chunks_exact(8);
    let whole = words.by_ref().map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let sum = whole.fold(0xcbf2_9ce4_8422_2325, step);
    let rest = words.remainder().iter().fold(sum, |sum, byte| step(sum, u64::from(*byte)));
    rest ^ bytes.len() as u64
}

/// What the file at a place in a message holds.
fn secret(stream: u32, number: u64, at: usize) -> [u8; 8] {
    mix(u64::from(stream) ^ mix(number ^ mix(at as u64))).to_le_bytes()
}

/// The file at a place in a message: memory, or a pipe. `None` if there is no descriptor or no memory for it.
pub(crate) fn file(stream: u32, number: u64, at: usize) -> Option<Handle> {
    let secret = secret(stream, number, at);
    if at.is_multiple_of(2) {
        let fd = rustix::fs::memfd_create("content", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
        (rustix::io::pwrite(&fd, &secret, 0) == Ok(secret.len())).then(|| fd.into())
    } else {
        let (reader, mut writer) = std::io::pipe().ok()?;
        writer.write_all(&secret).ok()?;
        Some(OwnedFd::from(reader).into())
    }
}

/// What is wrong with a file that arrived.
pub(crate) fn check_file(handle: Handle, stream: u32, number: u64, at: usize) -> Result<(), String> {
    let fd = handle.into_fd().ok_or("a handle that is no descriptor")?;
    let mut found = [0; 8];
    let len = if at.is_multiple_of(2) {
        rustix::io::pread(&fd, &mut found, 0).map_err(std::io::Error::from)
    } else {
        std::fs::File::from(fd).read(&mut found)
    };
    match len {
        Ok(8) if found == secret(stream, number, at) => Ok(()),
        other => Err(format!("file {at} of message {number} of stream {stream} holds {found:x?} ({other:?})")),
    }
}
