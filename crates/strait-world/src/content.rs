//! The content of messages: bytes and files by which a receiver can check that it received the sent message.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use strait::pipe::{DataConsumer, DataPipe, DataProducer, PipeOptions};
use strait::region::{Access, Region, RegionOptions, RegionWriter};
use strait::task::{AsyncConsumer, AsyncProducer, Reactor};
use strait::{Channel, Deadline, Error, Handle};

use crate::judge::is_shortage;
use crate::random::mix;
use crate::walker::drive;

/// Returns `len` bytes, derived from their positions and a seed.
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

/// The kinds of handles in messages, apart from the ends in the ledger.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memfd,
    Pipe,
    Region,
    DataPipe,
    /// An end of a channel with a closed other end, and with one message.
    End,
}

/// Returns the kind of handle `at` of message `number` of a stream.
fn kind(stream: u32, number: u64, at: usize) -> Kind {
    let kinds = [Kind::Memfd, Kind::Pipe, Kind::Region, Kind::DataPipe, Kind::End];
    kinds[way(stream, number, at, 0, kinds.len())]
}

/// Returns a number below `ways`, for the `nth` choice about a handle, known to its sender and its receiver.
fn way(stream: u32, number: u64, at: usize, nth: usize, ways: usize) -> usize {
    usize::from(secret(stream, number, at)[nth]) % ways
}

/// Returns whether handle `at` of message `number` of a stream is an end of a channel.
pub(crate) fn is_end(stream: u32, number: u64, at: usize) -> bool {
    kind(stream, number, at) == Kind::End
}

/// Makes handle `at` of message `number` of a stream, with the bytes that [`secret`] returns. `None` if there is no
/// descriptor or no memory for it.
pub(crate) fn file(stream: u32, number: u64, at: usize) -> Option<Handle> {
    let secret = secret(stream, number, at);
    let way = |ways| way(stream, number, at, 1, ways);
    match kind(stream, number, at) {
        Kind::Memfd => {
            let fd = rustix::fs::memfd_create("content", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
            (rustix::io::pwrite(&fd, &secret, 0) == Ok(secret.len())).then(|| fd.into())
        }
        Kind::Pipe => {
            let (reader, mut writer) = std::io::pipe().ok()?;
            writer.write_all(&secret).ok()?;
            Some(OwnedFd::from(reader).into())
        }
        Kind::Region => Some(region(secret, way(6)).ok()?.into()),
        Kind::DataPipe => Some(data_pipe(&secret, way(9)).ok()?.into()),
        Kind::End => {
            let (near, far) = Channel::pair().ok()?;
            near.try_send(&secret).ok()?;
            drop(near);
            Some(far.into())
        }
    }
}

/// Makes a region with these bytes, in one of six ways. Only the last three are not sealed.
fn region(secret: [u8; 8], way: usize) -> Result<Region, Error> {
    Ok(match way {
        0 => Region::sealed(&secret)?,
        1 => {
            let region = Region::new(secret.len())?;
            region.write_at(&secret, 0)?;
            region.seal()?;
            region
        }
        2 => {
            let mut writer = RegionOptions::new().huge_pages(false).writer(secret.len())?;
            writer.copy_from_slice(&secret);
            let (region, copy) = writer.seal().map_err(|(error, _)| error)?;
            assert_eq!(*copy, secret, "what was written in place");
            region
        }
        3 => RegionOptions::new().name("strait-world").create_from(&secret)?,
        4 => {
            let mut writer = RegionWriter::new(secret.len())?;
            writer.copy_from_slice(&secret);
            let (sealed, copy) = writer.seal().map_err(|(error, _)| error)?;
            let region = Region::new(copy.len())?;
            region.write_at(&copy, 0)?;
            assert_eq!((sealed.access()?, region.access()?), (Access::Sealed, Access::Writable));
            region
        }
        _ => {
            let region = Region::new(secret.len())?;
            let map = region.map_writable(..)?;
            if let Some(word) = map.word64(0) {
                word.store(u64::from_ne_bytes(secret), SeqCst);
            }
            drop(map);
            region.admit_no_writer()?;
            region
        }
    })
}

/// Returns the reading end of a data pipe. The other end has written these bytes, in one of nine ways, and is closed.
fn data_pipe(secret: &[u8; 8], way: usize) -> Result<DataConsumer, Error> {
    let (producer, consumer) = match way {
        0 => DataPipe::pair(secret.len())?,
        // Only pipes of single bytes are spliced.
        4 => PipeOptions::new().capacity(4096).prefault(true).create()?,
        _ => PipeOptions::new().name("strait-world").capacity(4096).element(8).prefault(true).create()?,
    };
    assert!(producer.element() <= secret.len() && producer.capacity() >= secret.len());
    assert_eq!(producer.room()?, producer.capacity());
    if way >= 5 {
        write_in_task(producer, secret, way)?;
        return Ok(consumer);
    }
    let producer = Arc::new(producer);
    match way {
        0 => producer.write_whole(secret, Deadline::NOW)?,
        1 => assert_eq!(producer.write_some(secret, Deadline::NOW)?, secret.len()),
        2 => {
            let mut room = producer.begin_write(Deadline::NOW)?;
            room.write_at(secret, 0);
            room.commit(secret.len());
        }
        3 => {
            let mut room = Arc::clone(&producer).begin_write_owned(Deadline::NOW)?;
            assert!(Arc::ptr_eq(room.kept(), &producer));
            for (place, byte) in room.as_uninit_mut().iter_mut().zip(secret) {
                place.write(*byte);
            }
            room.commit(secret.len());
        }
        _ => {
            let (reader, mut writer) = std::io::pipe().map_err(|_| Error::NoDescriptors)?;
            writer.write_all(secret).map_err(|_| Error::NoDescriptors)?;
            assert_eq!(producer.splice_from(&reader, secret.len(), Deadline::NOW)?, secret.len());
        }
    }
    match way {
        // The consumer first reads all written bytes.
        1 => Arc::into_inner(producer).expect("the only owner").abort(1),
        3 => producer.set_abort_reason(3),
        _ => producer.finish(Deadline::NOW)?,
    }
    Ok(consumer)
}

/// Writes these bytes in a task, in one of four ways, 5 to 8, and closes the producer.
fn write_in_task(producer: DataProducer, bytes: &[u8], way: usize) -> Result<(), Error> {
    let reactor = Reactor::new()?;
    let producer = AsyncProducer::new(producer, &reactor)?;
    assert!(producer.get_ref().room()? >= bytes.len());
    let write = async {
        match way {
            5 => producer.write_all(bytes).await?,
            6 => assert_eq!(producer.write(bytes).await?, bytes.len()),
            7 => assert_eq!(poll_fn(|context| producer.poll_write(context, bytes)).await?, bytes.len()),
            _ => {
                let mut room = producer.begin_write().await?;
                room.write_at(bytes, 0);
                room.commit(bytes.len());
            }
        }
        match way {
            5 => producer.finish().await,
            6 => poll_fn(|context| producer.poll_finish(context)).await,
            _ => Ok(()),
        }
    };
    drive(&reactor, pin!(write), SHOWS, way.is_multiple_of(2)).unwrap_or(Err(Error::TimedOut))?;
    match way {
        7 => producer.abort(7),
        _ => drop(producer.into_inner()),
    }
    Ok(())
}

/// How long the bytes in a received data pipe or channel may take to arrive.
const SHOWS: Duration = Duration::from_secs(10);

/// Reads the bytes of a region, made in the way `made`, in one of six ways.
fn read_region(region: Region, made: usize, way: usize, found: &mut [u8; 8]) -> Result<(), Error> {
    let is_sealed = region.is_sealed()?;
    assert_eq!(is_sealed, made < 3, "a region is sealed if its maker has sealed it");
    assert_eq!(is_sealed, region.access()? == Access::Sealed);
    let _ = region.name();
    match way {
        0 if is_sealed => found.copy_from_slice(&region.view(..)?),
        1 if is_sealed => {
            let mut copy = region.copy_on_write(..)?;
            found.copy_from_slice(&copy);
            copy.fill(0);
        }
        2 => region.map(..)?.read_at(found, 0)?,
        3 => {
            let again = Region::from_fd(region.to_fd()?).map_err(|(error, _)| error)?;
            again.read_at(found, 0)?;
        }
        4 => region.reader()?.read_at(found, 0)?,
        _ => region.read_at(found, 0)?,
    }
    Ok(())
}

/// Reads the bytes of a data pipe in one of eleven ways.
fn read_data_pipe(pipe: DataConsumer, way: usize, found: &mut [u8; 8]) -> Result<(), Error> {
    let len = found.len();
    assert!(pipe.element() <= len && pipe.capacity() >= len);
    match way {
        1 => assert_eq!(pipe.read_some(found, SHOWS)?, len),
        2 => {
            let unread = pipe.begin_read(SHOWS)?;
            unread.read_at(found, 0);
            unread.consume(len);
        }
        3 => {
            let pipe = Arc::new(pipe);
            let unread = Arc::clone(&pipe).begin_read_owned(SHOWS)?;
            assert!(Arc::ptr_eq(unread.kept(), &pipe));
            unread.read_at(found, 0);
            unread.consume(len);
        }
        4 => {
            // The bytes are there once a view of the bytes exists.
            drop(pipe.begin_read(SHOWS)?);
            assert_eq!((pipe.available()?, pipe.peek(found)?), (len, len));
            assert_eq!((pipe.discard(len)?, pipe.available()?), (len, 0));
        }
        5 if pipe.element() == 1 => {
            let (mut reader, writer) = std::io::pipe().map_err(|_| Error::NoDescriptors)?;
            assert_eq!(pipe.splice_to(&writer, len, SHOWS)?, len);
            reader.read_exact(found).map_err(|_| Error::NoDescriptors)?;
        }
        6 => {
            let mut room = [MaybeUninit::uninit(); 8];
            found.copy_from_slice(pipe.read_some_uninit(&mut room, SHOWS)?);
        }
        7.. => read_in_task(pipe, way, found)?,
        _ => {
            pipe.read_whole(found, SHOWS)?;
            pipe.abort(0);
        }
    }
    Ok(())
}

/// Reads the bytes of a data pipe in a task, in one of four ways, from 7 on.
fn read_in_task(pipe: DataConsumer, way: usize, found: &mut [u8; 8]) -> Result<(), Error> {
    let reactor = Reactor::new()?;
    let pipe = AsyncConsumer::new(pipe, &reactor)?;
    let _ = pipe.get_ref().available();
    let read = async {
        let len = match way {
            7 => pipe.read(found).await?,
            8 => poll_fn(|context| pipe.poll_read(context, found)).await?,
            9 => {
                let mut room = [MaybeUninit::uninit(); 8];
                let read = poll_fn(|context| {
                    pipe.poll_read_uninit(context, &mut room).map_ok(|bytes| <[u8; 8]>::try_from(&*bytes))
                });
                *found = read.await?.expect("all bytes");
                found.len()
            }
            _ => {
                let unread = pipe.begin_read().await?;
                unread.read_at(found, 0);
                unread.consume(8);
                8
            }
        };
        assert_eq!(len, 8);
        Ok(())
    };
    drive(&reactor, pin!(read), SHOWS, way.is_multiple_of(2)).unwrap_or(Err(Error::TimedOut))?;
    match way {
        7 => pipe.abort(7),
        _ => drop(pipe.into_inner()),
    }
    Ok(())
}

/// Receives the only message of an end with a closed other end.
fn read_end(end: &Channel, found: &mut [u8; 8]) -> Result<(), Error> {
    let message = end.recv_by(SHOWS)?;
    if message.bytes().len() == found.len() {
        found.copy_from_slice(message.bytes());
    }
    match end.recv_by(SHOWS) {
        Err(Error::PeerClosed) => Ok(()),
        Err(error) => Err(error),
        Ok(more) => {
            found.fill(0);
            found[0] = more.bytes().len().min(255) as u8;
            Ok(())
        }
    }
}

/// Checks the bytes in handle `at` of a received message. Returns `Err` with a description of a mistake. If this
/// process `may_lack` descriptors or memory, a data pipe, a region or an end may fail to be read.
pub(crate) fn check_file(handle: Handle, stream: u32, number: u64, at: usize, may_lack: bool) -> Result<(), String> {
    let mut found = [0; 8];
    let way = |nth, ways| way(stream, number, at, nth, ways);
    let read = match kind(stream, number, at) {
        Kind::Memfd => {
            let fd = handle.into_fd().ok_or("a handle that is no descriptor")?;
            rustix::io::pread(&fd, &mut found, 0).map(drop).map_err(|error| error.to_string())
        }
        Kind::Pipe => {
            let fd = handle.into_fd().ok_or("a handle that is no descriptor")?;
            std::fs::File::from(fd).read(&mut found).map(drop).map_err(|error| error.to_string())
        }
        other => {
            let read = match other {
                Kind::Region => {
                    let region = handle.into_region().ok_or("a handle that is no region")?;
                    read_region(region, way(1, 6), way(2, 6), &mut found)
                }
                Kind::DataPipe => {
                    let pipe = handle.into_consumer().ok_or("a handle that is no end of a pipe")?;
                    read_data_pipe(pipe, way(2, 11), &mut found)
                }
                _ => read_end(&handle.into_channel().ok_or("a handle that is no end")?, &mut found),
            };
            match read {
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
