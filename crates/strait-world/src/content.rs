//! The content of messages: bytes and files from which the receiver can tell that they are those that were sent.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use strait::pipe::DataPipe;
use strait::region::Region;
use strait::{Deadline, Handle};

use crate::judge::is_shortage;
use crate::random::mix;

/// Returns `len` bytes that depend on their positions and on a seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|at| (seed ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

/// Returns a checksum of the bytes (FNV-1a over words).
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let mut words = bytes.chunks_exact(8);
    let whole = words.by_ref().map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let sum = whole.fold(0xcbf2_9ce4_8422_2325, step);
    let rest = words.remainder().iter().fold(sum, |sum, byte| step(sum, u64::from(*byte)));
    rest ^ bytes.len() as u64
}

/// Returns the bytes in the file that is handle `at` of message `number` of a stream.
fn secret(stream: u32, number: u64, at: usize) -> [u8; 8] {
    mix(u64::from(stream) ^ mix(number ^ mix(at as u64))).to_le_bytes()
}

/// Makes handle `at` of message `number` of a stream, with the bytes that [`secret`] returns. It is a memfd, a pipe,
/// a region or an end of a data pipe. `None` if there is no descriptor or no memory for it.
pub(crate) fn file(stream: u32, number: u64, at: usize) -> Option<Handle> {
    let secret = secret(stream, number, at);
    match at % 4 {
        0 => {
            let fd = rustix::fs::memfd_create("content", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
            (rustix::io::pwrite(&fd, &secret, 0) == Ok(secret.len())).then(|| fd.into())
        }
        1 => {
            let (reader, mut writer) = std::io::pipe().ok()?;
            writer.write_all(&secret).ok()?;
            Some(OwnedFd::from(reader).into())
        }
        2 => Some(Region::sealed(&secret).ok()?.into()),
        _ => {
            let (producer, consumer) = DataPipe::pair(secret.len()).ok()?;
            producer.write_whole(&secret, Deadline::NOW).ok()?;
            drop(producer);
            Some(consumer.into())
        }
    }
}

/// How long the bytes in a received data pipe may take to arrive.
const SHOWS: Duration = Duration::from_secs(10);

/// Checks the bytes in handle `at` of a received message. Returns `Err` with a description of a mistake. If this
/// process `may_lack` descriptors or memory, a data pipe may fail to be read.
pub(crate) fn check_file(handle: Handle, stream: u32, number: u64, at: usize, may_lack: bool) -> Result<(), String> {
    let mut found = [0; 8];
    let read = match at % 4 {
        0 => {
            let fd = handle.into_fd().ok_or("a handle that is no descriptor")?;
            rustix::io::pread(&fd, &mut found, 0).map(drop).map_err(|error| error.to_string())
        }
        1 => {
            let fd = handle.into_fd().ok_or("a handle that is no descriptor")?;
            std::fs::File::from(fd).read(&mut found).map(drop).map_err(|error| error.to_string())
        }
        2 => {
            let region = handle.into_region().ok_or("a handle that is no region")?;
            region.read_at(&mut found, 0).map_err(|error| format!("{error:?}"))
        }
        _ => {
            let pipe = handle.into_consumer().ok_or("a handle that is no end of a pipe")?;
            match pipe.read_whole(&mut found, SHOWS) {
                Err(error) if may_lack && is_shortage(error) => return Ok(()),
                read => read.map_err(|error| format!("{error:?}")),
            }
        }
    };
    match read {
        Ok(()) if found == secret(stream, number, at) => Ok(()),
        other => Err(format!("file {at} of message {number} of stream {stream} holds {found:x?} ({other:?})")),
    }
}
