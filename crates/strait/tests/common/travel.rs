//! Ends that travel together with their books. Each end's book lists the messages that were sent and received, so each
//! message can be checked wherever the end is: each message arrives once, in order, complete, with its handles.

use std::io::{IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use strait::{Channel, Deadline, Error, Handle, Message, Outgoing, SendError, SendManyError};

use super::{checksum, content_of, file_with, pattern};

/// A random number generator: SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn one_in(&mut self, so_many: u64) -> bool {
        self.below(so_many) == 0
    }
}

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The record of an end: everything sent and received so far, in any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Book {
    /// The number of the channel.
    pub(crate) id: u64,
    /// The side of the end in the channel, 0 or 1.
    pub(crate) side: u64,
    /// The class of the channel. An end travels only in messages of a channel of a lower class, so no reference cycle
    /// of ends arises.
    pub(crate) class: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// How many more times the end is to be sent.
    pub(crate) hops: u64,
}

impl Book {
    pub(crate) const SIZE: usize = 48;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self { id, side, class, sent, received, hops } = *self;
        [id, side, class, sent, received, hops].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let word = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap());
        Self { id: word(0), side: word(1), class: word(2), sent: word(3), received: word(4), hops: word(5) }
    }
}

/// The sizes of the messages of a channel, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// The largest size of most messages.
    pub(crate) small: u64,
    /// The largest size of the few large messages: 1 in 300 is large.
    pub(crate) large: u64,
}

pub(crate) const TINY: Sizes = Sizes { small: 100, large: 1000 };
pub(crate) const MIXED: Sizes = Sizes { small: 600, large: 3 << 20 };

/// An end with its book.
#[derive(Debug)]
pub(crate) struct Traveller {
    pub(crate) book: Book,
    pub(crate) channel: Channel,
}

/// Returns both ends of a new channel, with new books.
pub(crate) fn travellers(id: u64, class: u64, ends: (Channel, Channel)) -> [Traveller; 2] {
    let end = |side, channel| Traveller { book: Book { id, side, class, sent: 0, received: 0, hops: 0 }, channel };
    [end(0, ends.0), end(1, ends.1)]
}

const HEADER: usize = 40;

/// Returns whether message `n` of the end is empty; a message with ends is never empty.
fn is_empty(id: u64, side: u64, n: u64) -> bool {
    mix(id ^ mix(side ^ mix(n))).is_multiple_of(13)
}

fn bytes_of(book: &Book, n: u64, riders: &[Book], files: usize, random: &mut Random, sizes: Sizes) -> Vec<u8> {
    let limit = if random.one_in(300) { sizes.large } else { sizes.small >> random.below(4) };
    let filling = random.below(limit + 1) as usize;
    let words = [book.id, book.side, n, riders.len() as u64, files as u64];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    riders.iter().for_each(|rider| bytes.extend(rider.encode()));
    bytes.extend(pattern(mix(book.id ^ n), filling));
    let sum = checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn file_of(id: u64, n: u64, at: usize) -> Handle {
    let secret = mix(id ^ mix(n ^ at as u64)).to_le_bytes();
    if at.is_multiple_of(2) {
        return file_with(&secret).into();
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&secret).unwrap();
    OwnedFd::from(reader).into()
}

fn check_file(handle: Handle, id: u64, n: u64, at: usize) {
    let secret = mix(id ^ mix(n ^ at as u64)).to_le_bytes();
    if at.is_multiple_of(2) {
        assert_eq!(content_of(handle), secret, "file {at} of message {n} of channel {id:x}");
    } else {
        let mut content = Vec::new();
        std::fs::File::from(handle.into_fd().expect("a pipe")).read_to_end(&mut content).unwrap();
        assert_eq!(content, secret, "pipe {at} of message {n} of channel {id:x}");
    }
}

/// An observer of sends, called before and after each send, so that other processes can learn what may have been sent.
pub(crate) trait Ledger {
    fn trying(&self, _: &Book, _upto: u64) {}
    fn sent(&self, _: &Book) {}
}

/// A ledger that records nothing.
pub(crate) struct NoLedger;
impl Ledger for NoLedger {}

impl Traveller {
    /// Sends one message, or several, in a way chosen at random; the first message carries `riders`. If the send fails,
    /// `riders` are returned with the error.
    pub(crate) fn send(
        &mut self,
        riders: Vec<Self>,
        random: &mut Random,
        sizes: Sizes,
        deadline: impl Into<Deadline>,
        ledger: &impl Ledger,
    ) -> Result<(), (Error, Vec<Self>)> {
        let deadline = deadline.into();
        let Book { id, side, sent: n, .. } = self.book;
        let books: Vec<Book> = riders.iter().map(|rider| rider.book).collect();
        let files = if random.one_in(6) { random.below(5) as usize } else { 0 };
        let (files, bytes) = if books.is_empty() && is_empty(id, side, n) {
            (0, Vec::new())
        } else {
            (files, bytes_of(&self.book, n, &books, files, random, sizes))
        };
        let mut handles: Vec<Handle> = riders.into_iter().map(|rider| rider.channel.into()).collect();
        let riding = handles.len();
        handles.extend((0..files).map(|at| file_of(id, n, at)));
        if n % 2 == 1 {
            handles.reverse();
        }
        let count = handles.len();
        let channel = &self.channel;
        let mut many = 1;
        let outcome = match random.below(6) {
            0 => {
                let cut = random.below(bytes.len() as u64 + 1) as usize;
                ledger.trying(&self.book, n + 1);
                let parts = [IoSlice::new(&bytes[..cut]), IoSlice::new(&[]), IoSlice::new(&bytes[cut..])];
                channel.send_by(Outgoing::vectored(&parts).handles(handles), deadline)
            }
            1 => match channel.reserve(bytes.len() + random.below(100) as usize, deadline) {
                Ok(mut room) => {
                    room.write_at(&bytes, 0);
                    handles.into_iter().for_each(|handle| room.handle(handle));
                    ledger.trying(&self.book, n + 1);
                    room.commit_first(bytes.len())
                }
                Err(error) => Err(SendError { error, handles }),
            },
            2 if bytes.len() > 100 => match channel.reserve_sealed(bytes.len()) {
                Ok(mut room) => {
                    room.bytes().copy_from_slice(&bytes);
                    handles.into_iter().for_each(|handle| room.handle(handle));
                    ledger.trying(&self.book, n + 1);
                    room.commit(deadline)
                }
                Err(error) => Err(SendError { error, handles }),
            },
            3 => {
                // Several messages; only the first carries handles.
                let more: Vec<Vec<u8>> = (n + 1..n + 1 + random.below(20))
                    .map(|n| if is_empty(id, side, n) { vec![] } else { bytes_of(&self.book, n, &[], 0, random, TINY) })
                    .collect();
                many = 1 + more.len() as u64;
                ledger.trying(&self.book, n + many);
                let first = Outgoing::new(&bytes).handles(handles);
                let row = std::iter::once(first).chain(more.iter().map(|bytes| Outgoing::new(bytes)));
                match channel.send_many(row, deadline) {
                    Ok(sent) => {
                        assert_eq!(sent as u64, many);
                        Ok(())
                    }
                    Err(SendManyError { sent: 0, failed }) => Err(failed),
                    Err(SendManyError { sent, failed: SendError { handles, .. } }) => {
                        assert!(handles.is_empty());
                        many = sent as u64;
                        Ok(())
                    }
                }
            }
            _ => {
                ledger.trying(&self.book, n + 1);
                channel.send_by(Outgoing::new(&bytes).handles(handles), deadline)
            }
        };
        match outcome {
            Ok(()) => {
                self.book.sent += many;
                ledger.sent(&self.book);
                Ok(())
            }
            Err(SendError { error, mut handles }) => {
                assert_eq!(handles.len(), count, "handles come back with {error:?}");
                if n % 2 == 1 {
                    handles.reverse();
                }
                let files = handles.split_off(riding);
                for (at, file) in files.into_iter().enumerate() {
                    check_file(file, id, n, at);
                }
                let back = books
                    .into_iter()
                    .zip(handles)
                    .map(|(book, handle)| Self { book, channel: handle.into_channel().expect("an end") });
                Err((error, back.collect()))
            }
        }
    }

    /// Receives a message, or several, in a way chosen at random, and returns the ends that the messages carried.
    pub(crate) fn receive(&mut self, random: &mut Random, deadline: impl Into<Deadline>) -> Result<Vec<Self>, Error> {
        let deadline = deadline.into();
        let Self { book, channel } = self;
        match random.below(5) {
            0 => {
                let mut buffer = vec![0; random.below(300) as usize];
                let mut received = channel.recv_into(&mut buffer, deadline);
                if let Err(Error::BufferTooSmall { needed }) = received {
                    assert!(needed > buffer.len());
                    buffer.resize(needed, 0);
                    received = channel.recv_into(&mut buffer, Deadline::NOW);
                    assert_ne!(received.as_ref().err(), Some(&Error::WouldBlock), "it was there");
                }
                let mut received = received?;
                let handles = received.take_handles().unwrap();
                Ok(check(book, &buffer[..received.len()], handles))
            }
            1 => {
                let mut slots: Vec<Message> = (0..1 + random.below(8)).map(|_| Message::new()).collect();
                let received = channel.recv_many(&mut slots, deadline)?;
                let mut riders = Vec::new();
                for slot in &mut slots[..received] {
                    let handles = slot.take_handles().unwrap();
                    riders.extend(check(book, slot.bytes(), handles));
                }
                Ok(riders)
            }
            2 => {
                let mut view = channel.recv_in_place(deadline)?;
                let mut bytes = vec![0; view.len()];
                view.read_at(&mut bytes, 0);
                let handles = view.take_handles().unwrap();
                Ok(check(book, &bytes, handles))
            }
            _ => {
                let mut message = channel.recv_by(deadline)?;
                let handles = message.take_handles().unwrap();
                Ok(check(book, message.bytes(), handles))
            }
        }
    }
}

/// Checks that a received message is the next message of its channel, and returns the ends in the message.
pub(crate) fn check(book: &mut Book, bytes: &[u8], mut handles: Vec<Handle>) -> Vec<Traveller> {
    let n = book.received;
    let Book { id, side, .. } = *book;
    book.received += 1;
    if bytes.is_empty() {
        assert!(is_empty(id, 1 - side, n), "message {n} to side {side} of channel {id:x} is empty");
        assert!(handles.is_empty());
        return Vec::new();
    }
    assert!(bytes.len() >= HEADER + 8, "message {n} to side {side} of channel {id:x} has {} bytes", bytes.len());
    let (content, sum) = bytes.split_at(bytes.len() - 8);
    let word = |at: usize| u64::from_le_bytes(content[8 * at..8 * at + 8].try_into().unwrap());
    assert_eq!(
        (word(0), word(1), word(2)),
        (id, 1 - side, n),
        "(channel, sender, number) of a message; channel {id:x}, of {} bytes",
        bytes.len()
    );
    assert_eq!(checksum(content).to_le_bytes(), sum, "checksum of message {n} of channel {id:x}");
    let (riders, files) = (word(3) as usize, word(4) as usize);
    assert_eq!(handles.len(), riders + files, "handles of message {n} of channel {id:x}");
    if n % 2 == 1 {
        handles.reverse();
    }
    for (at, file) in handles.split_off(riders).into_iter().enumerate() {
        check_file(file, id, n, at);
    }
    let books = content[HEADER..].chunks_exact(Book::SIZE).map(Book::decode);
    books
        .zip(handles)
        .map(|(book, handle)| Traveller { book, channel: handle.into_channel().expect("an end") })
        .collect()
}

/// Receives and checks everything that each end has sent to the other, and closes the channel. Both ends are in this
/// process, and no other thread sends.
pub(crate) fn balance(mut one: Traveller, mut other: Traveller, random: &mut Random, patience: Duration) {
    assert_eq!((one.book.id, one.book.side), (other.book.id, 1 - other.book.side));
    for _ in 0..2 {
        let mut from = one.book.received;
        while one.book.received < other.book.sent {
            let riders = one.receive(random, patience).unwrap_or_else(|error| {
                panic!("{error:?}: {:?} of what {:?} sent", one.book, other.book);
            });
            assert!(riders.is_empty());
            assert!(one.book.received > from);
            from = one.book.received;
        }
        assert_eq!(one.book.received, other.book.sent, "channel {:x}", one.book.id);
        assert_eq!(one.channel.try_recv().unwrap_err(), Error::WouldBlock, "channel {:x}", one.book.id);
        std::mem::swap(&mut one, &mut other);
    }
    let Traveller { book, channel } = one;
    drop(channel);
    assert_eq!(other.receive(random, patience).unwrap_err(), Error::PeerClosed, "{book:?}");
}
