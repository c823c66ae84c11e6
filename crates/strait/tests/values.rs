//! Tests of messages that are values: when a value stays a value, when a value becomes bytes, and the fate of an
//! unreceived value.

mod common;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{DEADLINE, alone, finish, parent, pattern, spawn};
use strait::view::Value;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing};

#[test]
fn child() {
    common::play(&[("take", take), ("relay", relay), ("forks", forks)]);
}

/// Counts of the events of values.
#[derive(Debug, Default)]
struct Book {
    turned: AtomicUsize,
    dropped: AtomicUsize,
}

impl Book {
    /// Returns how many values were turned into bytes, and how many were dropped as values.
    fn counts(&self) -> (usize, usize) {
        (self.turned.load(Ordering::SeqCst), self.dropped.load(Ordering::SeqCst))
    }
}

/// A value whose book counts its events.
struct Thing {
    bytes: Vec<u8>,
    handles: Vec<Handle>,
    size: usize,
    book: Arc<Book>,
    /// Runs when the value becomes bytes or is dropped.
    then: Option<Box<dyn FnOnce() + Send>>,
}

impl Thing {
    fn new(bytes: &[u8], book: &Arc<Book>) -> Self {
        Self { bytes: bytes.to_vec(), handles: Vec::new(), size: 0, book: book.clone(), then: None }
    }

    fn with(mut self, handle: impl Into<Handle>) -> Self {
        self.handles.push(handle.into());
        self
    }

    fn of_size(mut self, size: usize) -> Self {
        self.size = size;
        self
    }

    fn then(mut self, act: impl FnOnce() + Send + 'static) -> Self {
        self.then = Some(Box::new(act));
        self
    }
}

impl Value for Thing {
    fn into_parts(mut self) -> (Vec<u8>, Vec<Handle>) {
        self.book.turned.fetch_add(1, Ordering::SeqCst);
        if let Some(then) = self.then.take() {
            then();
        }
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.handles))
    }

    fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        // A value that was turned into bytes has none left.
        if !self.bytes.is_empty() || !self.handles.is_empty() {
            self.book.dropped.fetch_add(1, Ordering::SeqCst);
            if let Some(then) = self.then.take() {
                then();
            }
        }
    }
}

/// A value of another type.
struct Number(u64);

impl Value for Number {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (self.0.to_le_bytes().to_vec(), Vec::new())
    }
}

fn recv(channel: &Channel) -> Message {
    channel.recv_by(DEADLINE).unwrap()
}

fn take_thing(channel: &Channel) -> Thing {
    recv(channel).take_value().expect("a thing")
}

fn end_of(mut message: Message) -> Channel {
    message.take_handles().unwrap().remove(0).into_channel().expect("an end")
}

/// Answers each message with the bytes, the number of handles, and the messages of the ends among the handles. After a
/// message "go on" with an end, receives from the end until the channel is closed.
fn take(_: &str) {
    let answers = parent();
    let mut from = None;
    loop {
        let mut message = match from.as_ref().unwrap_or(&answers).recv_by(DEADLINE) {
            Ok(message) => message,
            Err(Error::PeerClosed) if from.is_some() => {
                from = None;
                answers.send(b"closed").unwrap();
                continue;
            }
            Err(error) => return assert_eq!(error, Error::PeerClosed),
        };
        assert!(!message.is_value::<Thing>());
        let mut answer = message.bytes().to_vec();
        let handles = message.take_handles().unwrap();
        if message.bytes() == b"go on" {
            from = handles.into_iter().next().and_then(Handle::into_channel);
            continue;
        }
        answer.extend([b' ', b'0' + handles.len() as u8]);
        for end in handles.into_iter().filter_map(Handle::into_channel) {
            while let Ok(message) = end.try_recv() {
                answer.extend([b" ", message.bytes()].concat());
            }
        }
        answers.send(&answer).unwrap();
    }
}

/// Forwards each message over the first received end.
fn relay(_: &str) {
    let channel = parent();
    let back = end_of(recv(&channel));
    while let Ok(mut message) = channel.recv() {
        back.forward(&mut message, DEADLINE).unwrap();
    }
}

#[test]
fn a_value_is_moved_in_its_order_among_others() {
    let book = Arc::default();
    let (a, b) = Channel::pair().unwrap();
    let bytes = pattern(1, 1 << 20);
    let at = bytes.as_ptr();
    let mut thing = Thing::new(b"", &book);
    thing.bytes = bytes;
    let (end, other) = Channel::pair().unwrap();
    a.send(b"first").unwrap();
    a.send_value(thing.with(end), DEADLINE).unwrap();
    a.send(b"between").unwrap();
    a.send_value(Number(7), Deadline::NOW).unwrap();
    a.send(&pattern(2, 100_000)).unwrap();
    assert_eq!(b.status().unwrap().messages, 5);
    assert_eq!(recv(&b).bytes(), b"first");
    let mut message = recv(&b);
    assert!(message.is_value::<Thing>() && !message.is_value::<Number>());
    assert!(message.take_value::<Number>().is_none());
    let mut thing: Thing = message.take_value().unwrap();
    assert!(message.take_value::<Thing>().is_none());
    assert!(message.bytes().is_empty() && message.take_handles().unwrap().is_empty());
    // The received value is the sent value, not a copy.
    assert_eq!(thing.bytes.as_ptr(), at);
    other.send(b"alive").unwrap();
    assert_eq!(recv(thing.handles[0].as_channel()).bytes(), b"alive");
    assert_eq!(recv(&b).bytes(), b"between");
    assert_eq!(recv(&b).take_value::<Number>().unwrap().0, 7);
    assert!(recv(&b).bytes() == pattern(2, 100_000));
    // The value can be sent back and forwarded.
    thing.bytes.truncate(3);
    b.send_value(thing, DEADLINE).unwrap();
    let mut message = recv(&a);
    a.forward(&mut message, DEADLINE).unwrap();
    assert!(!message.is_value::<Thing>());
    assert_eq!(take_thing(&b).bytes.as_ptr(), at);
    assert_eq!(book.counts(), (0, 1));
}

trait AsChannel {
    fn as_channel(&self) -> &Channel;
}

impl AsChannel for Handle {
    fn as_channel(&self) -> &Channel {
        match self {
            Handle::Channel(channel) => channel,
            other => panic!("no end: {other:?}"),
        }
    }
}

/// Shows that a value becomes bytes when the program asks for its bytes or handles, in every way of receiving.
#[test]
fn whoever_asks_for_bytes_gets_bytes() {
    let (a, b) = Channel::pair().unwrap();
    let book: Arc<Book> = Arc::default();
    let send = || {
        let file = File::open("/dev/null").unwrap();
        a.send_value(Thing::new(b"some bytes", &book).with(file), DEADLINE).unwrap();
        a.send(b"next").unwrap();
    };
    let next = || assert_eq!(recv(&b).bytes(), b"next");
    // The bytes are borrowed by several threads at once; after that the message is no value.
    send();
    let mut message = recv(&b);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!((message.bytes(), message.handles().len()), (b"some bytes".as_slice(), 1)));
        }
    });
    assert!(message.take_value::<Thing>().is_none());
    assert_eq!(message.take_handles().unwrap().len(), 1);
    assert_eq!(message.bytes(), b"some bytes");
    assert_eq!(book.counts(), (1, 0));
    next();
    send();
    assert_eq!(recv(&b).into_bytes(), b"some bytes");
    next();
    send();
    assert_eq!(recv(&b).take_handles().unwrap().len(), 1);
    next();
    // A value is received into a buffer; if the buffer is too small, the value stays the next message.
    send();
    let mut buffer = [0; 100];
    assert_eq!(b.recv_into(&mut buffer[..3], DEADLINE).unwrap_err(), Error::BufferTooSmall { needed: 10 });
    let mut received = b.recv_into(&mut buffer, DEADLINE).unwrap();
    assert_eq!((&buffer[..received.len()], received.take_handles().unwrap().len()), (b"some bytes".as_slice(), 1));
    next();
    send();
    assert_eq!(b.recv_into(&mut buffer, Deadline::NOW).unwrap().len(), 10);
    next();
    send();
    let mut view = b.recv_in_place(DEADLINE).unwrap();
    view.read_at(&mut buffer[..10], 0);
    assert_eq!((view.len(), &buffer[..10]), (10, b"some bytes".as_slice()));
    assert_eq!(view.take_handles().unwrap().len(), 1);
    drop(view);
    next();
    // Values are received in batches, into slots that are used again.
    let mut slots = [Message::new(), Message::new()];
    for _ in 0..2 {
        send();
        assert_eq!(b.recv_many(&mut slots, DEADLINE).unwrap(), 2);
        assert!(slots[0].is_value::<Thing>());
        assert_eq!((slots[0].bytes(), slots[1].bytes()), (b"some bytes".as_slice(), b"next".as_slice()));
    }
    send();
    assert_eq!(b.recv_many(&mut slots, DEADLINE).unwrap(), 2);
    send();
    // A value that is still in a slot is dropped when the slot is used again.
    assert_eq!(b.recv_many(&mut slots, DEADLINE).unwrap(), 2);
    assert_eq!(book.counts(), (8, 1));
    let mut message = slots.into_iter().next().unwrap();
    a.send(b"into the same").unwrap();
    b.recv_message(&mut message, DEADLINE).unwrap();
    assert_eq!(book.counts(), (8, 2));
}

/// Shows that a value that is put back stays a value.
#[test]
fn put_back_it_is_a_value_still() {
    let book = Arc::default();
    let (a, b) = Channel::pair().unwrap();
    a.send_value(Thing::new(b"one", &book), DEADLINE).unwrap();
    a.send(b"two").unwrap();
    let messages = [recv(&b), recv(&b)];
    b.put_back(messages).unwrap();
    assert_eq!(take_thing(&b).bytes, b"one");
    assert_eq!(recv(&b).bytes(), b"two");
    b.put_back([Message::from_value(Number(3))]).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(b.recv_into(&mut buffer, DEADLINE).unwrap().len(), 8);
    assert_eq!(u64::from_le_bytes(buffer), 3);
}

/// Shows that a value arrives in another process as bytes and handles.
#[test]
fn to_another_process_go_bytes_and_handles() {
    let book = Arc::default();
    let (actor, channel) = spawn("take");
    let (ours, theirs) = Channel::pair().unwrap();
    ours.send_value(Thing::new(b"inner", &book), DEADLINE).unwrap();
    ours.send(b"last").unwrap();
    let thing = Thing::new(b"outer", &book).with(File::open("/dev/null").unwrap()).with(theirs);
    channel.send_value(thing, DEADLINE).unwrap();
    assert_eq!(recv(&channel).bytes(), b"outer 2 inner last");
    let large = Thing::new(&pattern(1, 200_000), &book);
    channel.send_value(large, DEADLINE).unwrap();
    assert_eq!(recv(&channel).bytes()[..200_000], pattern(1, 200_000));
    assert_eq!(book.counts(), (3, 0));
    drop(channel);
    finish(actor);
}

#[test]
fn what_could_not_be_sent_comes_back() {
    let book = Arc::default();
    let (actor, channel) = spawn("take");
    // The message comes back as bytes, because sending had to turn the value into bytes.
    let many = (0..=strait::quota::MAX_HANDLES).map(|_| File::open("/dev/null").unwrap());
    let thing = many.fold(Thing::new(b"too many", &book), Thing::with);
    let failed = channel.send_value(thing, DEADLINE).unwrap_err();
    assert!(matches!(failed.error, Error::TooManyHandles { count: 65, limit: 64 }));
    let mut message = failed.message;
    assert!(!message.is_value::<Thing>());
    assert_eq!(message.bytes(), b"too many");
    assert_eq!(message.take_handles().unwrap().len(), 65);
    channel.forward(&mut message, DEADLINE).unwrap();
    assert_eq!(recv(&channel).bytes(), b"too many 0");
    drop(channel);
    finish(actor);
    // The message comes back as a value.
    let (a, b) = Options::new().queue_messages(1).max_message(1000).pair().unwrap();
    let failed = a.send_value(Thing::new(b"x", &book).of_size(1001), DEADLINE).unwrap_err();
    assert_eq!(failed.error, Error::MessageTooLarge { len: 1001, limit: 1000 });
    drop(failed);
    a.send_value(Thing::new(b"fits", &book).of_size(1000), DEADLINE).unwrap();
    let failed = a.send_value(Thing::new(b"y", &book), Deadline::NOW).unwrap_err();
    assert_eq!(failed.error, Error::WouldBlock);
    let mut message = failed.message;
    assert_eq!(a.forward(&mut message, Duration::from_millis(5)), Err(Error::TimedOut));
    assert!(message.is_value::<Thing>());
    drop(b);
    assert_eq!(book.counts(), (1, 2), "(converted, dropped) after a value was too large and another was not received");
    assert_eq!(a.forward(&mut message, DEADLINE), Err(Error::PeerClosed));
    assert_eq!(message.take_value::<Thing>().unwrap().bytes, b"y");
}

/// Shows that values count with their size against the limit on bytes in flight.
#[test]
fn so_much_may_be_under_way() {
    let book: Arc<Book> = Arc::default();
    let (a, b) = Options::new().queue_bytes(1000).pair().unwrap();
    a.send_value(Thing::new(b"one may always be", &book).of_size(5000), DEADLINE).unwrap();
    let failed = a.send_value(Thing::new(b"another", &book).of_size(1), Deadline::NOW).unwrap_err();
    assert_eq!(failed.error, Error::WouldBlock);
    drop(take_thing(&b));
    a.send_value(Thing::new(b"z", &book).of_size(600), DEADLINE).unwrap();
    a.send_value(Thing::new(b"z", &book).of_size(400), DEADLINE).unwrap();
    assert!(a.send_value(Thing::new(b"z", &book).of_size(1), Deadline::NOW).is_err());
    drop((take_thing(&b), take_thing(&b)));
    // As many values without a size fit as the ring holds: none of them needs a descriptor.
    for n in 0..1000 {
        a.send_value(Number(n), Deadline::NOW).unwrap();
    }
    for n in 0..1000 {
        assert_eq!(recv(&b).take_value::<Number>().unwrap().0, n);
    }
    assert_eq!(b.try_recv().unwrap_err(), Error::WouldBlock);
}

/// Shows that the values of an end become bytes when the end moves to another process.
#[test]
fn an_end_takes_its_values_along_as_bytes() {
    let book = Arc::default();
    let (actor, channel) = spawn("take");
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    c.send_value(Thing::new(b"within", &book), DEADLINE).unwrap();
    // This value was received and put back, so the end keeps it outside the ring.
    a.send_value(Thing::new(b"kept", &book), DEADLINE).unwrap();
    let kept = recv(&b);
    b.put_back([kept]).unwrap();
    a.send(b"bytes").unwrap();
    a.send_value(Thing::new(b"value", &book).with(d), DEADLINE).unwrap();
    a.send(Outgoing::new(b"handle").handle(File::open("/dev/null").unwrap())).unwrap();
    channel.send(Outgoing::new(b"go on").handle(b)).unwrap();
    assert_eq!(book.counts(), (3, 0));
    a.send_value(Thing::new(b"after", &book), DEADLINE).unwrap();
    drop(a);
    for answer in ["kept 0", "bytes 0", "value 1 within", "handle 1", "after 0", "closed"] {
        assert_eq!(str::from_utf8(recv(&channel).bytes()), Ok(answer));
    }
    assert_eq!(book.counts(), (4, 0));
    drop(channel);
    finish(actor);
}

#[test]
fn values_that_are_sent_while_the_end_goes_away_arrive_in_order() {
    for _ in 0..20 {
        let (actor, channel) = spawn("take");
        let (a, b) = Channel::pair().unwrap();
        let sender = std::thread::spawn(move || {
            for n in 0..500u64 {
                let sent = if n % 3 == 0 {
                    a.send_by(n.to_string().as_bytes(), DEADLINE).map_err(Error::from)
                } else {
                    a.send_value(Text(n.to_string()), DEADLINE).map_err(Error::from)
                };
                sent.unwrap();
            }
        });
        // The end moves while the sender is about in the middle.
        for n in 0..50 {
            assert_eq!(recv(&b).bytes(), n.to_string().as_bytes());
        }
        channel.send(Outgoing::new(b"go on").handle(b)).unwrap();
        for n in 50..500 {
            assert_eq!(str::from_utf8(recv(&channel).bytes()).unwrap(), format!("{n} 0"));
        }
        assert_eq!(recv(&channel).bytes(), b"closed");
        sender.join().unwrap();
        drop(channel);
        finish(actor);
    }
}

/// A value that holds a text.
struct Text(String);

impl Value for Text {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (self.0.into_bytes(), Vec::new())
    }
}

/// Shows that the values of an end stay values when the end moves within the process.
#[test]
fn an_end_within_the_process_takes_its_values_along_as_they_are() {
    let book = Arc::default();
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    a.send_value(Thing::new(b"value", &book), DEADLINE).unwrap();
    c.send(Outgoing::new(b"take this").handle(b)).unwrap();
    let b = end_of(recv(&d));
    b.rehome(DEADLINE).unwrap();
    assert_eq!(take_thing(&b).bytes, b"value");
    // The end moves to another process and back; a value that is sent afterwards stays a value.
    let (actor, channel) = spawn("relay");
    let (back, ours) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"").handle(back)).unwrap();
    a.send_value(Thing::new(b"away", &book), DEADLINE).unwrap();
    channel.send(Outgoing::new(b"").handle(b)).unwrap();
    let b = end_of(recv(&ours));
    assert_eq!(recv(&b).bytes(), b"away");
    a.send_value(Thing::new(b"here", &book), DEADLINE).unwrap();
    assert_eq!(take_thing(&b).bytes, b"here");
    drop(channel);
    finish(actor);
}

#[test]
fn fused_channels_bring_values() {
    let book = Arc::default();
    // Both far ends are in this process.
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    a.send_value(Thing::new(b"one", &book), DEADLINE).unwrap();
    d.send_value(Thing::new(b"back", &book), DEADLINE).unwrap();
    b.fuse(c, DEADLINE).unwrap();
    a.send_value(Thing::new(b"two", &book), DEADLINE).unwrap();
    assert_eq!(take_thing(&d).bytes, b"one");
    assert_eq!(take_thing(&d).bytes, b"two");
    assert_eq!(take_thing(&a).bytes, b"back");
    assert_eq!(book.counts().0, 0);
    // One far end is in another process.
    let (actor, channel) = spawn("take");
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"go on").handle(d)).unwrap();
    a.send_value(Thing::new(b"one", &book), DEADLINE).unwrap();
    a.send(b"two").unwrap();
    b.fuse(c, DEADLINE).unwrap();
    a.send_value(Thing::new(b"three", &book), DEADLINE).unwrap();
    drop(a);
    for answer in ["one 0", "two 0", "three 0", "closed"] {
        assert_eq!(str::from_utf8(recv(&channel).bytes()), Ok(answer));
    }
    assert_eq!(book.counts().0, 2);
    drop(channel);
    finish(actor);
}

#[test]
fn what_nobody_receives_is_dropped_once_and_may_do_anything() {
    let book = Arc::default();
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    let (log, read) = Channel::pair().unwrap();
    let (log, d) = (Arc::new(log), Arc::new(Mutex::new(Some(d))));
    for n in 0..10 {
        let (log, d) = (log.clone(), d.clone());
        let thing = Thing::new(b"x", &book).then(move || {
            log.send(format!("dropped {n}").as_bytes()).unwrap();
            // Closes another end, whose channel carries values too.
            drop(d.lock().unwrap().take());
        });
        a.send_value(thing, DEADLINE).unwrap();
    }
    let (end, within) = Channel::pair().unwrap();
    end.send_value(Thing::new(b"inner", &book), DEADLINE).unwrap();
    c.send_value(Thing::new(b"of the other", &book).with(within), DEADLINE).unwrap();
    drop(b);
    assert_eq!(book.counts(), (0, 12));
    let mut said: Vec<_> = (0..10).map(|_| String::from_utf8(recv(&read).into_bytes()).unwrap()).collect();
    said.sort();
    assert_eq!(said, (0..10).map(|n| format!("dropped {n}")).collect::<Vec<_>>());
    assert_eq!(end.send(b"x").unwrap_err().error, Error::PeerClosed);
    // A received message, and a message never sent.
    let (a, b) = Channel::pair().unwrap();
    a.send_value(Thing::new(b"x", &book), DEADLINE).unwrap();
    drop(recv(&b));
    assert_eq!(book.counts(), (0, 13));
    drop(Message::from_value(Thing::new(b"x", &book)));
    assert_eq!(book.counts(), (0, 14));
    let failed = c.send_value(Thing::new(b"x", &book), DEADLINE).unwrap_err();
    assert_eq!(failed.error, Error::PeerClosed);
    drop(failed);
    assert_eq!(book.counts(), (0, 15));
}

/// Shows that a value's conversion to bytes may use the library, also the channel for which the bytes are needed.
#[test]
fn its_code_may_use_the_library_where_bytes_are_asked_for() {
    let book: Arc<Book> = Arc::default();
    let (log, read) = Channel::pair().unwrap();
    let log = Arc::new(log);
    let say = |text: &'static str| {
        let log = log.clone();
        move || log.send(text.as_bytes()).unwrap()
    };
    let (actor, channel) = spawn("take");
    let channel = Arc::new(channel);
    // The channel can be used while a value is turned into bytes for it.
    let same = channel.clone();
    let thing = Thing::new(b"two", &book).then(move || same.send(b"one").unwrap());
    channel.send_value(thing, DEADLINE).unwrap();
    assert_eq!((recv(&channel).bytes(), recv(&channel).bytes()), (b"one 0".as_slice(), b"two 0".as_slice()));
    // The other end of an end that moves can be used meanwhile.
    let (a, b) = Channel::pair().unwrap();
    let a = Arc::new(a);
    let same = a.clone();
    a.send_value(Thing::new(b"one", &book).then(move || same.send(b"two").unwrap()), DEADLINE).unwrap();
    channel.send(Outgoing::new(b"go on").handle(b)).unwrap();
    assert_eq!((recv(&channel).bytes(), recv(&channel).bytes()), (b"one 0".as_slice(), b"two 0".as_slice()));
    drop(a);
    assert_eq!(recv(&channel).bytes(), b"closed");
    let (a, b) = Channel::pair().unwrap();
    a.send_value(Thing::new(b"a view", &book).then(say("a view")), DEADLINE).unwrap();
    assert_eq!(b.recv_in_place(DEADLINE).unwrap().len(), 6);
    a.send_value(Thing::new(b"a buffer", &book).then(say("a buffer")), DEADLINE).unwrap();
    assert_eq!(b.recv_into(&mut [0; 10], DEADLINE).unwrap().len(), 8);
    assert_eq!((recv(&read).bytes(), recv(&read).bytes()), (b"a view".as_slice(), b"a buffer".as_slice()));
    drop(channel);
    finish(actor);
}

/// Shows that a panic in a value's conversion loses only this value.
#[test]
fn a_panic_takes_the_value_and_nothing_else_that_was_sent() {
    let book: Arc<Book> = Arc::default();
    let (actor, channel) = spawn("take");
    let bad = || Thing::new(b"bad", &book).then(|| panic!("not to be turned into bytes"));
    let panics = |act: &mut dyn FnMut()| assert!(catch_unwind(AssertUnwindSafe(act)).is_err());
    panics(&mut || drop(channel.send_value(bad(), DEADLINE)));
    channel.send(b"goes on").unwrap();
    assert_eq!(recv(&channel).bytes(), b"goes on 0");
    let (a, b) = Channel::pair().unwrap();
    let send = || {
        a.send_value(bad(), DEADLINE).unwrap();
        a.send(b"next").unwrap();
    };
    let next = || assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"next");
    send();
    let message = recv(&b);
    panics(&mut || drop(message.bytes().to_vec()));
    assert!(message.bytes().is_empty());
    next();
    send();
    panics(&mut || drop(b.recv_into(&mut [0; 10], DEADLINE)));
    next();
    send();
    panics(&mut || drop(b.recv_in_place(DEADLINE)));
    next();
    // The unsent message is dropped together with its end.
    let (c, d) = Channel::pair().unwrap();
    c.send_value(bad(), DEADLINE).unwrap();
    let mut d = Some(d);
    panics(&mut || drop(channel.send(Outgoing::new(b"go on").handle(d.take().unwrap()))));
    assert_eq!(c.send(b"x").unwrap_err().error, Error::PeerClosed);
    channel.send(b"goes on").unwrap();
    assert_eq!(recv(&channel).bytes(), b"goes on 0");
    drop((a, b, c, channel));
    finish(actor);
}

/// Shows that a panic in a value's conversion leaves no member in a wait set, if an end with the value is sent or
/// fused.
#[test]
fn a_panic_leaves_no_member_of_an_end_in_a_wait_set() {
    let (actor, channel) = spawn("take");
    let book = Arc::new(Book::default());
    let set = WaitSet::new().unwrap();
    let with_bad_value = || {
        let (near, far) = Channel::pair().unwrap();
        near.send_value(Thing::new(b"bad", &book).then(|| panic!("not to be turned into bytes")), DEADLINE).unwrap();
        set.add(&far, 1, Interest::Readable, Mode::Level).unwrap();
        (near, far)
    };
    let panics = |act: &mut dyn FnMut()| assert!(catch_unwind(AssertUnwindSafe(act)).is_err());
    let (_near, mut far) = with_bad_value();
    let mut end = Some(std::mem::replace(&mut far, Channel::pair().unwrap().0));
    panics(&mut || drop(channel.send(Outgoing::new(b"an end").handle(end.take().unwrap()))));
    assert!(set.is_empty());

    let (ours, theirs) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"an end").handle(theirs)).unwrap();
    let (_near, far) = with_bad_value();
    let mut ends = Some((far, ours));
    panics(&mut || {
        let (one, other) = ends.take().unwrap();
        drop(one.fuse(other, DEADLINE));
    });
    assert!(set.is_empty());
    drop((channel, actor));
}

/// Shows that a wait set reports an end although code of the program, called by the library, has panicked while it kept
/// the wait set from looking at the end.
#[test]
fn a_panic_in_a_call_keeps_no_event_from_a_wait_set() {
    let book = Arc::new(Book::default());
    let panics = |act: &mut dyn FnMut()| assert!(catch_unwind(AssertUnwindSafe(act)).is_err());
    let (a, b) = Channel::pair().unwrap();
    let (a, set) = (Arc::new(a), Arc::new(WaitSet::new().unwrap()));
    let mut events = Vec::new();
    set.add(&b, 1, Interest::Readable, Mode::OneShot).unwrap();
    let (from, looked) = (a.clone(), set.clone());
    let while_received = move || {
        from.send(b"next").unwrap();
        assert_eq!(looked.wait(&mut Vec::new(), Deadline::NOW), Ok(0));
        panic!("not to be turned into bytes");
    };
    a.send_value(Thing::new(b"bad", &book).then(while_received), DEADLINE).unwrap();
    panics(&mut || drop(b.recv_into(&mut [0; 10], DEADLINE)));
    assert_eq!(set.wait(&mut events, DEADLINE), Ok(1));
    assert_eq!(b.try_recv().unwrap().bytes(), b"next");

    while b.try_send(b"no room is left").is_ok() {}
    set.modify(&b, 2, Interest::Writable, Mode::OneShot).unwrap();
    let mut messages = std::iter::from_fn(|| -> Option<&[u8]> {
        while a.try_recv().is_ok() {}
        assert_eq!(set.wait(&mut Vec::new(), Deadline::NOW), Ok(0));
        panic!("there is no message");
    });
    panics(&mut || drop(b.send_many(&mut messages, DEADLINE)));
    assert_eq!(set.wait(&mut events, DEADLINE), Ok(1));
    assert!(events[0].key() == 2 && events[0].is_writable());
}

/// Shows that a panic in a value's destructor reaches the caller, and that the other values are dropped.
#[test]
fn a_destructor_that_panics_goes_on_in_the_call() {
    let book: Arc<Book> = Arc::default();
    let (a, b) = Channel::pair().unwrap();
    a.send_value(Thing::new(b"bad", &book).then(|| panic!("not to be dropped")), DEADLINE).unwrap();
    a.send_value(Thing::new(b"good", &book), DEADLINE).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(b))).is_err());
    assert_eq!(a.send(b"x").unwrap_err().error, Error::PeerClosed);
    // The rest is dropped with the next operation.
    drop(Channel::pair().unwrap());
    assert_eq!(book.counts(), (0, 2));
}

#[test]
fn sets_wait_for_values_as_for_other_messages() {
    let (a, b) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&b, 3, Interest::Readable, Mode::Level).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| a.send_value(Number(5), DEADLINE).unwrap());
        let mut events = Vec::new();
        while set.wait(&mut events, DEADLINE).unwrap() == 0 {}
        assert_eq!(b.try_recv().unwrap().take_value::<Number>().unwrap().0, 5);
    });
}

#[test]
fn many_threads_send_and_take_values() {
    const EACH: u64 = 2000;
    let (a, b) = Channel::pair().unwrap();
    let (a, b) = (&a, &b);
    let sum = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || {
                    (1..=EACH).for_each(|n| a.send_value(Number(n), DEADLINE).unwrap());
                })
            })
            .collect();
        let (sum, done) = (&sum, &done);
        for _ in 0..3 {
            scope.spawn(move || {
                loop {
                    match b.recv_by(Duration::from_millis(20)) {
                        Ok(mut message) => {
                            let number = message.take_value::<Number>().expect("a number").0;
                            sum.fetch_add(number as usize, Ordering::Relaxed);
                        }
                        Err(Error::TimedOut) if done.load(Ordering::Acquire) && !b.is_readable() => return,
                        Err(Error::TimedOut) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        done.store(true, Ordering::Release);
    });
    assert_eq!(sum.load(Ordering::Relaxed) as u64, 3 * EACH * (EACH + 1) / 2);
}

#[test]
fn a_fork_leaves_values_to_the_parent() {
    alone("forks", "");
}

fn forks(_: &str) {
    let book: Arc<Book> = Arc::default();
    let (a, b) = Channel::pair().unwrap();
    a.send_value(Thing::new(b"one", &book), DEADLINE).unwrap();
    a.send_value(Thing::new(b"two", &book), DEADLINE).unwrap();
    let mut held = Some(recv(&b));
    let mut ends = Some((a, b));
    // SAFETY: the process has no other thread, and the child exits without unwinding.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let mut code = 1;
        if let (Some((a, b)), Some(mut message)) = (ends.take(), held.take()) {
            let refused = a.send_value(Number(1), DEADLINE).is_err_and(|failed| failed.error == Error::Forked);
            let forked = refused && b.recv().is_err_and(|error| error == Error::Forked);
            // The child has a copy of the value.
            let mine = message.is_value::<Thing>() && a.forward(&mut message, DEADLINE) == Err(Error::Forked);
            drop(message);
            drop((a, b));
            code = i32::from(!(forked && mine && book.counts() == (0, 1)));
        }
        // SAFETY: `_exit` runs no code of the parent.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the pointer points to a local variable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the forked child ended with {status:#x}");
    assert_eq!(held.unwrap().take_value::<Thing>().unwrap().bytes, b"one");
    let (a, b) = ends.unwrap();
    assert_eq!(take_thing(&b).bytes, b"two");
    drop((a, b));
}
