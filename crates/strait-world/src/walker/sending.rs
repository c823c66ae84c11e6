//! Sending: messages with ends and files in them, by every sending call; and calls that change an end or return its
//! state.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use strait::view::{Draft, Value};
use strait::wait::Conditions;
use strait::{Channel, Deadline, Error, Handle, Message, Outgoing, SendError, SendManyError};

use super::calls::REPLY;
use super::{About, Held, Walker, bytes_of, is_empty, said, said_of_sending};
use crate::content::{check_file, file, is_end};
use crate::ledger::{FOR_REPORTS, Place};
use crate::trail::Call;

fn send_vectored(channel: &Channel, bytes: &[u8], handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
    let (one, other) = bytes.split_at(bytes.len() / 3);
    let parts = [IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(other)];
    channel.send_by(Outgoing::vectored(&parts).handles(handles), deadline)
}

/// Returns whether the reservation or draft for `bytes` owns the channel, instead of borrowing it.
fn keeps_channel(bytes: &[u8]) -> bool {
    bytes.len().is_multiple_of(2)
}

fn send_reserved(
    channel: &Arc<Channel>,
    bytes: &[u8],
    handles: Vec<Handle>,
    deadline: Deadline,
) -> Result<(), SendError> {
    if keeps_channel(bytes) {
        return match Arc::clone(channel).reserve_owned(bytes.len(), deadline) {
            Ok(mut room) => {
                assert!(Arc::ptr_eq(room.kept(), channel));
                for (place, byte) in room.as_uninit_mut().iter_mut().zip(bytes) {
                    place.write(*byte);
                }
                handles.into_iter().for_each(|handle| room.handle(handle));
                room.commit()
            }
            Err(error) => Err(SendError { error, handles }),
        };
    }
    match channel.reserve(bytes.len() + 10, deadline) {
        Ok(mut room) => {
            room.write_at(bytes, 0);
            handles.into_iter().for_each(|handle| room.handle(handle));
            room.commit_first(bytes.len())
        }
        Err(error) => Err(SendError { error, handles }),
    }
}

fn send_sealed(
    channel: &Arc<Channel>,
    bytes: &[u8],
    handles: Vec<Handle>,
    deadline: Deadline,
) -> Result<(), SendError> {
    if keeps_channel(bytes) {
        return match Arc::clone(channel).reserve_sealed_owned(bytes.len()) {
            Ok(mut room) => {
                assert!(Arc::ptr_eq(room.kept(), channel));
                room.bytes().copy_from_slice(bytes);
                handles.into_iter().for_each(|handle| room.handle(handle));
                room.commit_and_keep(deadline).map(|kept| assert_eq!(*kept, *bytes, "what the sender keeps"))
            }
            Err(error) => Err(SendError { error, handles }),
        };
    }
    match channel.reserve_sealed(bytes.len()) {
        Ok(mut room) => {
            room.bytes().copy_from_slice(bytes);
            handles.into_iter().for_each(|handle| room.handle(handle));
            room.commit(deadline)
        }
        Err(error) => Err(SendError { error, handles }),
    }
}

fn send_draft(channel: &Arc<Channel>, bytes: &[u8], handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
    if keeps_channel(bytes) {
        let draft = Arc::clone(channel).draft_owned();
        assert!(Arc::ptr_eq(draft.kept(), channel));
        return fill_and_send(draft, bytes, handles, deadline);
    }
    fill_and_send(channel.draft(), bytes, handles, deadline)
}

fn fill_and_send<K>(
    mut draft: Draft<'_, K>,
    bytes: &[u8],
    handles: Vec<Handle>,
    deadline: Deadline,
) -> Result<(), SendError> {
    if let Some(error) = bytes.chunks(1000).find_map(|piece| draft.append(piece).err()) {
        return Err(SendError { error, handles });
    }
    assert_eq!(draft.len(), bytes.len());
    // A long draft is in shared memory, unless this process lacks memory.
    let _ = draft.is_shared();
    handles.into_iter().for_each(|handle| draft.handle(handle));
    draft.send(deadline)
}

/// Sends a message by forwarding it, as a relay does.
fn send_forwarded(channel: &Channel, bytes: &[u8], handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
    let forward = |mut message: Message| {
        channel
            .forward(&mut message, deadline)
            .map_err(|error| SendError { error, handles: message.take_handles().unwrap_or_default() })
    };
    // `from_parts` makes a message that was never received.
    match bytes.len() % 5 {
        0 => return forward(Message::from_parts(bytes.to_vec(), handles)),
        1 => {
            let mut message = Message::new();
            message.set_parts(bytes.to_vec(), handles);
            return forward(message);
        }
        2 if handles.is_empty() => {
            let message = Message::from_value(Whole { bytes: bytes.to_vec(), handles });
            assert!(message.is_value::<Whole>(), "a message made from a value");
            return forward(message);
        }
        _ => {}
    }
    let (near, far) = match Channel::pair() {
        Ok(pair) => pair,
        Err(error) => return Err(SendError { error, handles }),
    };
    near.try_send(Outgoing::new(bytes).handles(handles))?;
    // The channel is within this process, so the message is there already.
    forward(far.try_recv().map_err(|error| SendError { error, handles: Vec::new() })?)
}

/// A value; stays an object when sent within one process.
struct Whole {
    bytes: Vec<u8>,
    handles: Vec<Handle>,
}

impl Value for Whole {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (self.bytes, self.handles)
    }

    fn size(&self) -> usize {
        self.bytes.len()
    }
}

fn send_value(channel: &Channel, bytes: &[u8], handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
    channel.send_value(Whole { bytes: bytes.to_vec(), handles }, deadline).map_err(|failed| {
        let mut message = failed.message;
        let handles = match message.take_value::<Whole>() {
            Some(whole) => whole.handles,
            None => message.take_handles().unwrap_or_default(),
        };
        SendError { error: failed.error, handles }
    })
}

impl Walker {
    pub(super) fn send_something(&mut self) {
        if let Some(at) = self.pick(|_| true) {
            match self.random.below(5) {
                0 => self.send_row(at),
                _ => {
                    let _ = self.send(at, Vec::new());
                }
            }
        }
    }

    pub(super) fn send_an_end(&mut self) {
        let roads_only = self.random.one_in(2);
        let most = if roads_only { 0 } else { 2 };
        let found: Vec<usize> = (0..self.held.len()).filter(|at| self.class(&self.held[*at]) <= most).collect();
        if found.is_empty() {
            return;
        }
        let carrier = self.held.swap_remove(found[self.random.index(found.len())]);
        let riders = self.take_riders(self.class(&carrier));
        self.held.push(carrier);
        let _ = self.send(self.held.len() - 1, riders);
    }

    /// Returns whether an end may be sent over a channel of class `class`.
    pub(super) fn may_ride(&self, held: &Held, class: u64) -> bool {
        self.class(held) > class && self.class(held) != FOR_REPORTS
    }

    /// Takes some ends that may be sent over a channel of class `class`.
    pub(super) fn take_riders(&mut self, class: u64) -> Vec<Held> {
        let mut riders = Vec::new();
        for _ in 0..1 + self.random.below(12).saturating_sub(8) {
            let may_ride: Vec<usize> =
                (0..self.held.len()).filter(|at| self.may_ride(&self.held[*at], class)).collect();
            if !may_ride.is_empty() {
                riders.push(self.held.swap_remove(may_ride[self.random.index(may_ride.len())]));
            }
        }
        if self.random.one_in(4) {
            riders.extend(self.take_for_sending());
        }
        riders
    }

    /// Records the ends `riders` as part of message `number` of a stream, and returns their channels as handles.
    pub(super) fn board(&mut self, stream: u32, number: u64, riders: Vec<Held>) -> Vec<Handle> {
        let has_been_short = self.life.has_been_short();
        let mut handles = Vec::new();
        for rider in riders {
            let book = self.book(rider.end);
            book.put(Place::Riding { stream, number });
            if has_been_short {
                book.hardship.store(1, SeqCst);
            }
            // The ends are recorded as part of the message before the call; the result of the call decides their next
            // place.
            self.note(Call::SendWithEnds, rider.end, u64::from(stream), "rides");
            handles.extend(Arc::into_inner(rider.channel).map(Handle::from));
        }
        handles
    }

    pub(super) fn filling(&mut self) -> usize {
        let limit = match self.random.below(300) {
            0 if self.random.one_in(4) => 3 << 20,
            0..8 => 200_000,
            _ => 600 >> self.random.below(4),
        };
        self.random.index(limit + 1)
    }

    pub(super) fn files(&mut self, stream: u32, number: u64) -> Vec<Handle> {
        let count = if self.random.one_in(6) { self.random.index(5) } else { 0 };
        // No other end may use the link of an end of the class for reports.
        let may_have_ends = stream >= REPLY || self.book(stream).class.load(SeqCst) != FOR_REPORTS;
        let may_have = |at: &usize| may_have_ends || !is_end(stream, number, *at);
        (0..count).take_while(may_have).map_while(|at| file(stream, number, at)).collect()
    }

    /// Sends the next message of an end, with the ends `riders`, by a random call. Returns the error of a failed send.
    pub(super) fn send(&mut self, at: usize, riders: Vec<Held>) -> Option<Error> {
        let stream = self.held[at].end;
        let book = self.book(stream);
        let number = book.accepted.load(SeqCst);
        let names: Vec<u32> = riders.iter().map(|rider| rider.end).collect();
        let (files, bytes) = if names.is_empty() && is_empty(stream, number) {
            (Vec::new(), Vec::new())
        } else {
            let files = self.files(stream, number);
            let filling = self.filling();
            let bytes = bytes_of(stream, number, &names, files.len(), filling);
            (files, bytes)
        };
        let mut handles = self.board(stream, number, riders);
        handles.extend(files);
        let count = handles.len();
        let patience = self.patience();
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        book.tried.store(number + 1, SeqCst);
        let over = self.life.shortages_over();
        let call = self.way_to_send(bytes.len(), names.len());
        let about = About { call, end: stream, number };
        let channel = Arc::clone(&self.held[at].channel);
        let send = || match call {
            Call::SendVectored => send_vectored(&channel, &bytes, handles, deadline),
            Call::Reserve => send_reserved(&channel, &bytes, handles, deadline),
            Call::Sealed => send_sealed(&channel, &bytes, handles, deadline),
            Call::Draft => send_draft(&channel, &bytes, handles, deadline),
            Call::Forward => send_forwarded(&channel, &bytes, handles, deadline),
            Call::Value => send_value(&channel, &bytes, handles, deadline),
            _ => channel.send_by(Outgoing::new(&bytes).handles(handles), deadline),
        };
        let sent = self.timed(about, patience, send, said_of_sending);
        match sent {
            Ok(()) => {
                book.accepted.store(number + 1, SeqCst);
                None
            }
            Err(SendError { error, handles }) => {
                if handles.len() != count {
                    self.wrong(stream, &format!("{} of {count} handles came back with {error:?}", handles.len()));
                }
                self.take_back(stream, number, &names, handles);
                book.tried.store(number, SeqCst);
                self.take_error(stream, over, patience, error);
                Some(error)
            }
        }
    }

    /// Chooses a call to send a message with `len` bytes and `ends` ends.
    fn way_to_send(&mut self, len: usize, ends: usize) -> Call {
        match self.random.below(12) {
            0 => Call::SendVectored,
            1 => Call::Reserve,
            2 if len > 100 => Call::Sealed,
            3 => Call::Draft,
            4 => Call::Forward,
            // A value stays an object, so ends in it would remain members of their wait set. So a value carries no
            // ends.
            5 if ends == 0 => Call::Value,
            _ if ends > 0 => Call::SendWithEnds,
            _ => Call::Send,
        }
    }

    /// Sends a few messages as a batch, without handles.
    fn send_row(&mut self, at: usize) {
        let stream = self.held[at].end;
        let book = self.book(stream);
        let first = book.accepted.load(SeqCst);
        let last = first + 1 + self.random.below(20);
        let message = |walker: &mut Self, number| {
            let len = walker.random.index(300);
            if is_empty(stream, number) { Vec::new() } else { bytes_of(stream, number, &[], 0, len) }
        };
        let row: Vec<Vec<u8>> = (first..last).map(|number| message(self, number)).collect();
        let patience = self.patience();
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        book.tried.store(last, SeqCst);
        let over = self.life.shortages_over();
        let channel = Arc::clone(&self.held[at].channel);
        let about = About { call: Call::SendMany, end: stream, number: first };
        let send = || channel.send_many(row.iter().map(Outgoing::from), deadline);
        let said = |sent: &Result<usize, SendManyError>| match sent {
            Ok(sent) => format!("{sent}"),
            Err(stopped) => format!("{} {:?}", stopped.sent, stopped.failed.error),
        };
        let (sent, error) = match self.timed(about, patience, send, said) {
            Ok(sent) => (sent as u64, None),
            Err(stopped) => (stopped.sent as u64, Some(stopped.failed.error)),
        };
        if error.is_none() && first + sent != last {
            self.wrong(stream, &format!("a row of {} messages was sent, and {sent} are said to be", last - first));
        }
        book.accepted.store(first + sent, SeqCst);
        book.tried.store(first + sent, SeqCst);
        if let Some(error) = error {
            self.take_error(stream, over, patience, error);
        }
    }

    /// Moves a channel into private memory of its two processes.
    pub(super) fn rehome(&mut self) {
        let Some(at) = self.pick(|_| true) else { return };
        let (end, channel) = (self.held[at].end, Arc::clone(&self.held[at].channel));
        let patience = self.patience();
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        if self.life.has_been_short() {
            self.book(end).hardship.store(1, SeqCst);
        }
        let over = self.life.shortages_over();
        let about = About { call: Call::Rehome, end, number: 0 };
        if let Err(error) = self.timed(about, patience, || channel.rehome(deadline), said) {
            self.take_error(end, over, patience, error);
        }
    }

    /// Reads the state of an end. If the state is *peer closed*, checks that the other end is gone.
    pub(super) fn look(&mut self) {
        let Some(at) = self.pick(|_| true) else { return };
        let (end, channel) = (self.held[at].end, Arc::clone(&self.held[at].channel));
        let over = self.life.shortages_over();
        let about = About { call: Call::Look, end, number: 0 };
        let ask = || {
            let _ = (channel.counters(), channel.is_readable(), channel.is_writable(), channel.peer_pidfd());
            if let Ok(Some(usage)) = channel.peer_usage() {
                let _ = usage.idle_wake_ups();
                assert!(usage.uid().is_none_or(|uid| uid == rustix::process::getuid().as_raw()), "another user");
            }
            let status = channel.status();
            let all_read = status.as_ref().is_ok_and(|status| status.all_read());
            if let Ok(status) = &status {
                assert_eq!(Conditions::new().all_read().are_met(status), all_read);
            }
            let is_closed = all_read || channel.is_peer_closed();
            (is_closed, status.and(channel.peer()).map(|_| ()))
        };
        let (is_closed, asked) = self.timed(about, Duration::ZERO, ask, |(_, asked)| said(asked));
        if is_closed && !self.is_other_gone(end) {
            self.wrong(end, "is_peer_closed says so, and it is not");
        }
        if let Err(error) = asked {
            self.take_error(end, over, Duration::ZERO, error);
        }
    }

    /// Takes back the handles of an unsent message: holds the ends again, and checks the files.
    pub(super) fn take_back(&mut self, stream: u32, number: u64, names: &[u32], handles: Vec<Handle>) {
        for (at, handle) in handles.into_iter().enumerate() {
            match names.get(at) {
                Some(name) => match handle.into_channel() {
                    Some(channel) => self.hold(*name, channel),
                    None => self.wrong(*name, "an end came back from a send as something else"),
                },
                None => {
                    if let Err(what) = check_file(handle, stream, number, at - names.len(), self.life.has_been_short())
                    {
                        self.wrong(stream, &format!("came back from a send: {what}"));
                    }
                }
            }
        }
    }

    /// Reports a mistake if a call that sent nothing must not return `error`.
    pub(super) fn take_error(&mut self, end: u32, over: u64, patience: Duration, error: Error) {
        if error == Error::PeerClosed {
            if !self.is_other_gone(end) {
                self.wrong(end, "sending says that the peer is closed, and it is not");
            }
        } else if !self.passes(end, over, patience, error) {
            self.wrong(end, &format!("sending says {error:?}"));
        }
    }
}
