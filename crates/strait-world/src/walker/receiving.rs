//! Receiving, by every receiving call; each message must be the next of its stream, and is checked as a whole.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use strait::quota::Resource;
use strait::view::InPlace;
use strait::{Channel, Deadline, Error, Handle, Message, Peer};

use super::waits::Registration;
use super::{About, Held, Mood, Said, Walker, is_empty, parse, said};
use crate::content::check_file;
use crate::ledger::Place;
use crate::own;
use crate::trail::Call;
use crate::worker::excused;

/// The bytes and the handles of a message.
pub(super) type Parts = (Vec<u8>, Result<Vec<Handle>, Error>);

/// Asserts that the sender of a message, if known, is a process of this user.
fn check_sender(sender: Option<Peer>) {
    assert!(sender.is_none_or(|sender| sender.uid == rustix::process::getuid().as_raw()), "a sender of another user");
}

pub(super) fn in_parts(mut message: Message) -> Parts {
    if message.bytes().len().is_multiple_of(7) {
        check_sender(message.sender());
    }
    let handles =
        if message.bytes().len().is_multiple_of(3) { one_by_one(&mut message) } else { message.take_handles() };
    (message.into_bytes(), handles)
}

/// Takes the handles of a message one by one.
fn one_by_one(message: &mut Message) -> Result<Vec<Handle>, Error> {
    let mut handles = Vec::new();
    while let Some(handle) = message.take_handle(0)? {
        handles.push(handle);
    }
    Ok(handles)
}

fn recv_message(channel: &Channel, deadline: Deadline) -> Result<Parts, Error> {
    let mut message = Message::new();
    channel.recv_message(&mut message, deadline)?;
    Ok(in_parts(message))
}

/// Asks for the next message, and receives it. Panics if the message differs from the answer.
fn peek_and_recv(channel: &Channel) -> Result<Parts, Error> {
    let Some(next) = channel.peek()? else { return channel.try_recv().map(in_parts) };
    let message = channel.try_recv()?;
    assert_eq!(next.len, message.bytes().len());
    let parts = in_parts(message);
    if let Ok(handles) = &parts.1
        && !next.is_value
    {
        assert_eq!(next.handles, handles.len());
    }
    Ok(parts)
}

pub(super) fn copied<K>(mut view: InPlace<'_, K>) -> Parts {
    let mut bytes = vec![0; view.len()];
    view.read_at(&mut bytes, 0);
    if let Some(sealed) = view.sealed() {
        assert_eq!(sealed, bytes, "the sealed bytes of a message");
    }
    check_sender(view.sender());
    (bytes, view.take_handles())
}

/// Receives a short message as a message, and a long one as a view.
fn recv_message_or_view(channel: &Channel, deadline: Deadline) -> Result<Parts, Error> {
    let mut message = Message::new();
    let Some(mut view) = channel.recv_message_or_view(&mut message, deadline)? else { return Ok(in_parts(message)) };
    let mut bytes = Vec::new();
    view.append_to(&mut bytes, 0, view.len())?;
    Ok((bytes, view.take_handles()))
}

/// Receives into a buffer of `size` bytes; if the message is larger, into a larger buffer.
fn recv_into(channel: &Channel, size: usize, deadline: Deadline) -> Result<Parts, Error> {
    let mut buffer = vec![0; size];
    let mut received = match channel.recv_into(&mut buffer, deadline) {
        Err(Error::BufferTooSmall { needed }) => {
            buffer.resize(needed, 0);
            channel.recv_into(&mut buffer, deadline)?
        }
        received => received?,
    };
    buffer.truncate(received.len());
    let has_handles = received.has_handles();
    check_sender(received.sender());
    let handles = received.take_handles();
    assert_eq!(has_handles, !handles.as_ref().is_ok_and(Vec::is_empty));
    Ok((buffer, handles))
}

/// Receives by `try_recv_bytes`; if the message is too long or has handles, by `try_recv`.
fn try_recv_bytes(channel: &Channel) -> Result<Parts, Error> {
    let mut buffer = [0; 400];
    match channel.try_recv_bytes(&mut buffer) {
        Ok(Some(len)) => Ok((buffer[..len].to_vec(), Ok(Vec::new()))),
        Ok(None) | Err(Error::BufferTooSmall { .. }) => channel.try_recv().map(in_parts),
        Err(error) => Err(error),
    }
}

impl Walker {
    pub(super) fn receive_something(&mut self) {
        let roads_only = self.random.one_in(3);
        let found: Vec<usize> =
            (0..self.held.len()).filter(|at| !roads_only || self.class(&self.held[*at]) == 0).collect();
        if found.is_empty() {
            return self.take_from_door();
        }
        let at = found[self.random.index(found.len())];
        let is_long = self.mood.0 == Mood::Listening && self.random.one_in(10);
        let patience = if is_long { self.long_patience() } else { self.patience() };
        self.receive(at, patience);
    }

    /// Receives from an end by a random call. Returns false if there was nothing to receive, or if the end was
    /// closed.
    pub(super) fn receive(&mut self, at: usize, patience: Duration) -> bool {
        if self.held[at].registration == Registration::None && self.random.one_in(10) {
            return self.receive_by_half(at, patience);
        }
        let end = self.held[at].end;
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        let over = self.life.shortages_over();
        self.awaits(std::iter::once(end));
        let channel = Arc::clone(&self.held[at].channel);
        let way = self.random.below(10);
        let mut messages = Vec::new();
        let about = |call| About { call, end, number: 0 };
        let received = match way {
            0 => {
                let mut slots: Vec<Message> = (0..1 + self.random.below(8)).map(|_| Message::new()).collect();
                let received = self.timed(
                    about(Call::RecvMany),
                    patience,
                    || channel.recv_many(&mut slots, deadline),
                    |done| format!("{done:?}"),
                );
                received.map(|count| messages.extend(slots.into_iter().take(count).map(in_parts)))
            }
            1 => {
                let receive = || channel.recv_in_place(deadline).map(copied);
                self.timed(about(Call::InPlace), patience, receive, said).map(|message| messages.push(message))
            }
            2 => {
                let size = self.random.pick(&[0, 100, 1000, 1 << 20]);
                let receive = || recv_into(&channel, size, deadline);
                self.timed(about(Call::RecvInto), patience, receive, said).map(|message| messages.push(message))
            }
            3 if patience.is_zero() => {
                let receive = || try_recv_bytes(&channel);
                self.timed(about(Call::RecvBytes), patience, receive, said).map(|message| messages.push(message))
            }
            4 => {
                let receive = || {
                    let view = Arc::clone(&channel).recv_in_place_owned(deadline)?;
                    assert!(Arc::ptr_eq(view.kept(), &channel));
                    Ok(copied(view))
                };
                self.timed(about(Call::InPlace), patience, receive, said).map(|message| messages.push(message))
            }
            5 => {
                let receive = || recv_message(&channel, deadline);
                self.timed(about(Call::RecvMessage), patience, receive, said).map(|message| messages.push(message))
            }
            7 => {
                let receive = || recv_message_or_view(&channel, deadline);
                self.timed(about(Call::RecvOrView), patience, receive, said).map(|message| messages.push(message))
            }
            6 if patience.is_zero() => {
                let receive = || peek_and_recv(&channel);
                self.timed(about(Call::Peek), patience, receive, said).map(|message| messages.push(message))
            }
            _ => {
                let received = self.timed(about(Call::Recv), patience, || channel.recv_by(deadline), said);
                match received {
                    Ok(message) if self.random.one_in(10) => {
                        messages.extend(self.put_back(end, &channel, message).into_iter().map(in_parts));
                        Ok(())
                    }
                    received => received.map(|message| messages.push(in_parts(message))),
                }
            }
        };
        drop(channel);
        self.take_received(at, over, patience, received.map(|()| messages))
    }

    /// Splits an end, receives by the receiving half, and joins the halves.
    fn receive_by_half(&mut self, at: usize, patience: Duration) -> bool {
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        let over = self.life.shortages_over();
        let Held { end, channel, .. } = self.held.swap_remove(at);
        self.awaits(std::iter::once(end));
        let Some(channel) = Arc::into_inner(channel) else { self.wrong(end, "an end is used elsewhere") };
        let about = About { call: Call::Half, end, number: 0 };
        let receive = || {
            let (sender, mut receiver) = channel.split();
            let received = receiver.recv_by(deadline).map(in_parts);
            (received, sender.join(receiver).ok())
        };
        let (received, joined) = self.timed(about, patience, receive, |(received, _)| said(received));
        let Some(channel) = joined else { self.wrong(end, "the halves of an end cannot be joined") };
        self.held.push(Held::new(end, channel));
        let last = self.held.len() - 1;
        self.held.swap(at, last);
        self.take_received(at, over, patience, received.map(|message| vec![message]))
    }

    /// Takes the messages received by a call at the end with index `at`. Returns `false` if there was none, or if the
    /// end was closed.
    fn take_received(&mut self, at: usize, over: u64, patience: Duration, received: Result<Vec<Parts>, Error>) -> bool {
        let end = self.held[at].end;
        match received {
            Ok(messages) => {
                for (bytes, handles) in messages {
                    self.take(end, &bytes, handles);
                }
                true
            }
            Err(Error::PeerClosed) => {
                self.see_closed(at);
                false
            }
            Err(error) => {
                if !self.passes(end, over, patience, error) {
                    self.wrong(end, &format!("receiving says {error:?}"));
                }
                false
            }
        }
    }

    /// Puts a message back, so that the next call receives it again. Returns messages that could not be put back; these
    /// count as received.
    fn put_back(&mut self, end: u32, channel: &Channel, message: Message) -> Vec<Message> {
        let over = self.life.shortages_over();
        let about = About { call: Call::PutBack, end, number: 0 };
        let mut returned = Vec::new();
        // Only this thread has the end, so nothing prevents putting the message back.
        let put = || {
            channel.put_back([message]).map_err(|failed| {
                returned = failed.messages;
                failed.error
            })
        };
        let back = self.timed(about, Duration::ZERO, put, said);
        if let Err(error) = back
            && !excused(self.process, over, error)
        {
            self.wrong(end, &format!("putting back a message: {error:?}"));
        }
        returned
    }

    /// Handles *peer closed* at an end: checks that the other end is gone and that all accepted messages have
    /// arrived, and closes the end.
    pub(super) fn see_closed(&mut self, at: usize) {
        let end = self.held[at].end;
        self.judge_closed(end);
        if let Some(reason) = self.held[at].channel.close_reason()
            && !self.process.ledger.far_ends(end).any(|far| far == reason)
        {
            self.wrong(end, &format!("the peer is closed for the reason {reason}, which is not the number of its end"));
        }
        self.close(at);
    }

    /// After *peer closed* at an end, checks that the other end is gone and that all accepted messages have arrived.
    pub(super) fn judge_closed(&self, end: u32) {
        if !self.is_other_gone(end) {
            self.wrong(end, "receiving says that the peer is closed, and it is not");
        }
        if !self.process.ledger.is_fuse_unknown(end) {
            self.process.ledger.far_ends(end).for_each(|stream| self.see_complete(end, stream));
        }
    }

    /// Checks that all messages of a stream have arrived at `end`, whose peer is closed.
    fn see_complete(&self, end: u32, stream: u32) {
        let book = self.book(stream);
        let [received, accepted, tried] = [&book.received, &book.accepted, &book.tried].map(|word| word.load(SeqCst));
        if !(accepted..=tried.max(accepted)).contains(&received) {
            let what = format!("the peer is closed, and {received} of {accepted} messages of {stream} have come");
            self.wrong(end, &what);
        }
    }

    /// Checks that a received message is the next of its stream. Holds the ends in the message.
    pub(super) fn take(&mut self, end: u32, bytes: &[u8], handles: Result<Vec<Handle>, Error>) {
        let stream = self.process.ledger.stream_to(end);
        let book = self.book(stream);
        let number = book.received.load(SeqCst);
        if bytes.is_empty() {
            if !is_empty(stream, number) {
                self.wrong(end, &format!("message {number} is empty"));
            }
            book.received.store(number + 1, SeqCst);
            return;
        }
        let Some(said) = parse(bytes) else {
            self.wrong(end, &format!("message {number} of {} bytes is garbled", bytes.len()));
        };
        if (said.stream, said.number) != (stream, number) {
            let found = (said.stream, said.number);
            self.wrong(end, &format!("message {number} of stream {stream} is said to be (stream, number) {found:?}"));
        }
        if number >= book.tried.load(SeqCst) {
            self.wrong(end, &format!("message {number} was sent by nobody"));
        }
        match handles {
            Ok(handles) => self.take_handles(end, number, &said, handles),
            Err(error) => self.take_loss(end, number, &said, error),
        }
        book.received.store(number + 1, SeqCst);
    }

    pub(super) fn take_handles(&mut self, end: u32, number: u64, said: &Said, handles: Vec<Handle>) {
        if handles.len() != said.riders.len() + said.files {
            self.wrong(end, &format!("message {number} has {} handles", handles.len()));
        }
        for (at, handle) in handles.into_iter().enumerate() {
            match said.riders.get(at) {
                Some(rider) => match handle.into_channel() {
                    Some(channel) => {
                        let book = self.book(*rider);
                        if book.is_presumed_lost.load(SeqCst) != 0 {
                            self.wrong(*rider, "it arrived, and its other end was told that it is gone");
                        }
                        if self.life.has_been_short() || self.may_lose_handles(end) {
                            book.hardship.store(1, SeqCst);
                        }
                        self.process.ledger.note_arrival(*rider, said.stream, number);
                        self.hold(*rider, channel);
                        self.note(Call::Recv, *rider, u64::from(said.stream), "arrived");
                    }
                    None => self.wrong(*rider, "an end arrived as something else"),
                },
                None => {
                    if let Err(what) =
                        check_file(handle, said.stream, number, at - said.riders.len(), self.life.has_been_short())
                    {
                        self.wrong(end, &what);
                    }
                }
            }
        }
    }

    /// Returns whether this process may have lost handles of messages over `end` for holding many descriptors: few are
    /// left, or the library reports its limit for the peer as reached (`docs/reference/limits.md`: descriptors over the
    /// limit are closed, and their message reports the loss). An end can also bring messages whose handles were lost
    /// before.
    fn may_lose_handles(&self, end: u32) -> bool {
        let reached = |held: &Held| {
            let usage = held.channel.peer_usage().ok().flatten();
            usage.is_some_and(|usage| usage.peer(Resource::Descriptors).reached > 0)
        };
        own::has_few_descriptors() || self.held.iter().any(|held| held.end == end && reached(held))
    }

    /// Handles the loss of the handles of a message; only a shortage excuses the loss.
    pub(super) fn take_loss(&mut self, end: u32, number: u64, said: &Said, error: Error) {
        let book = self.book(end);
        let hardship = book.hardship.load(SeqCst) != 0 || self.life.has_been_short() || self.may_lose_handles(end);
        if !hardship || !matches!(error, Error::HandlesLost { .. }) {
            self.wrong(end, &format!("handles of message {number}: {error:?}"));
        }
        for rider in &said.riders {
            self.book(*rider).put(Place::Lost);
        }
    }
}
