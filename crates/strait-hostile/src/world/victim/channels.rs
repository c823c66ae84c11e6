//! The victim's use of channels: sending and receiving, also in place, and moving ends.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use strait::region::Region;
use strait::view::{InPlace, Value};
use strait::{Channel, Error, Handle, Message, Outgoing, SendError};

use super::Driver;
use crate::world::ledger::Word;

/// A value that becomes bytes in another process.
struct Bytes(Vec<u8>);

impl Value for Bytes {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (self.0, Vec::new())
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

/// Something else.
struct Other;

impl Value for Other {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        Default::default()
    }
}

impl Driver<'_> {
    pub(super) fn act_on_channels(&mut self) {
        let Some(channel) = self.channel() else { return };
        match self.choices.below(32) {
            0..=3 => self.receive(&channel),
            4 => self.receive_into(&channel),
            5 => self.receive_in_place(&channel),
            6 => self.receive_many(&channel),
            7 => self.receive_without_deadline(&channel),
            8..=10 => self.send(&channel),
            11 => self.send_without_deadline(&channel),
            12 => self.send_many(&channel),
            13 => self.reserve(&channel),
            14 => self.reserve_sealed(&channel),
            15 => self.draft(&channel),
            16 => self.send_value(&channel),
            17 => self.forward(&channel),
            18..=20 => self.send_handles(&channel),
            21 | 22 => self.ask(&channel),
            23 => self.put_back(&channel),
            24 => {
                let (deadline, allowed) = self.deadline();
                let rehomed = self.call("rehome", allowed, || channel.rehome(deadline));
                self.note("rehome", rehomed);
            }
            25 => self.receive_message_or_view(&channel),
            26 => self.receive_owned(channel),
            27 => self.reserve_owned(channel),
            28 => self.draft_owned(channel),
            29 => self.use_halves(),
            30 => self.close_for_a_reason(),
            _ if self.choices.one_in(8) => drop(channel.report_bad("nothing")),
            _ if self.choices.one_in(40) => {
                let ended = self.call("disconnect", Duration::ZERO, || channel.disconnect());
                self.note("disconnect", ended);
            }
            _ => self.new_pair(),
        }
    }

    pub(super) fn note<T>(&self, name: &str, result: Result<T, impl Into<Error>>) -> Option<T> {
        result.map_err(|error| self.failed(name, error.into())).ok()
    }

    /// Records the error of a failed send, and adds the unsent handles to the pool.
    pub(super) fn note_sent<T>(&mut self, name: &str, result: Result<T, SendError>) {
        if let Err(SendError { error, handles, .. }) = result {
            self.failed(name, error);
            self.keep_handles(handles);
        }
    }

    fn receive(&mut self, channel: &Channel) {
        let (deadline, allowed) = self.deadline();
        let received = match self.choices.below(3) {
            0 => self.call("try_recv", Duration::ZERO, || channel.try_recv()),
            1 => self.call("recv_by", allowed, || channel.recv_by(deadline)),
            _ => {
                let mut message = self.take(|pool| &mut pool.messages).unwrap_or_default();
                let received = self.call("recv_message", allowed, || channel.recv_message(&mut message, deadline));
                received.map(|()| message)
            }
        };
        if let Some(message) = self.note("receive", received) {
            self.received(message);
        }
    }

    fn receive_without_deadline(&mut self, channel: &Channel) {
        let Some(received) = self.call_until_interrupted("recv", channel, || channel.recv()) else { return };
        if let Some(message) = self.note("recv", received) {
            self.received(message);
        }
    }

    fn receive_into(&mut self, channel: &Channel) {
        let mut buffer = vec![0; self.choices.pick(&[0, 10, 700, 80_000])];
        let (deadline, allowed) = self.deadline();
        if self.choices.one_in(3) {
            let received = self.call("try_recv_bytes", Duration::ZERO, || channel.try_recv_bytes(&mut buffer));
            self.note("try_recv_bytes", received);
            return;
        }
        let received = self.call("recv_into", allowed, || channel.recv_into(&mut buffer, deadline));
        let Some(mut received) = self.note("recv_into", received) else { return };
        self.note_work(received.len());
        let _ = (received.is_empty(), received.has_handles(), received.sender());
        if self.choices.one_in(8) {
            let _ = received.report_bad("nothing");
        }
        if let Ok(Some(handle)) = self.call("take_handle", Duration::ZERO, || received.take_handle(0)) {
            self.keep_handles(vec![handle]);
        }
        if let Ok(handles) = self.call("take_handles", Duration::ZERO, || received.take_handles()) {
            self.keep_handles(handles);
        }
        self.call("drop what was received", Duration::ZERO, || drop(received));
    }

    fn receive_in_place(&mut self, channel: &Channel) {
        let (deadline, allowed) = self.deadline();
        let received = self.call("recv_in_place", allowed, || channel.recv_in_place(deadline));
        let Some(mut view) = self.note("recv_in_place", received) else { return };
        let work = self.look_at(&mut view);
        self.note_work(work);
        if self.choices.one_in(8) {
            let _ = view.report_bad("nothing");
        }
        if self.choices.one_in(3) {
            let to = self.channel();
            let (deadline, allowed) = self.deadline();
            if let Some(to) = to {
                let sent = self.call("InPlace::forward", allowed, || view.forward(&to, deadline));
                self.note("InPlace::forward", sent);
            }
        }
        let handles = self.call("take_handles", Duration::ZERO, || view.take_handles());
        self.call("drop a view", Duration::ZERO, || drop(view));
        if let Ok(handles) = handles {
            self.keep_handles(handles);
        }
    }

    /// Receives a short message, or a view of a long one.
    fn receive_message_or_view(&mut self, channel: &Channel) {
        let (deadline, allowed) = self.deadline();
        let mut message = self.take(|pool| &mut pool.messages).unwrap_or_default();
        let receive = || channel.recv_message_or_view(&mut message, deadline);
        let received = self.call("recv_message_or_view", allowed, receive);
        match self.note("recv_message_or_view", received) {
            Some(Some(mut view)) => {
                let work = self.look_at(&mut view);
                self.note_work(work);
                let mut bytes = b"before".to_vec();
                let len = view.len().min(100_000);
                let appended = self.call("append_to", Duration::ZERO, || view.append_to(&mut bytes, 0, len));
                if self.note("append_to", appended).is_some() && bytes.len() != len + 6 {
                    self.find(&format!("append_to appended {} bytes of {len}", bytes.len() - 6));
                }
                let handles = self.call("take_handles", Duration::ZERO, || view.take_handles());
                self.call("drop a view", Duration::ZERO, || drop(view));
                self.keep_handles(handles.unwrap_or_default());
            }
            Some(None) => self.received(message),
            None => {}
        }
    }

    /// Receives by a view that keeps the channel.
    fn receive_owned(&mut self, channel: Arc<Channel>) {
        let (deadline, allowed) = self.deadline();
        let received = self.call("recv_in_place_owned", allowed, || channel.recv_in_place_owned(deadline));
        let Some(mut view) = self.note("recv_in_place_owned", received) else { return };
        let work = self.look_at(&mut view);
        self.note_work(work);
        let _ = view.kept().is_readable();
        let handles = self.call("take_handles", Duration::ZERO, || view.take_handles());
        self.call("drop an owned view", Duration::ZERO, || drop(view));
        self.keep_handles(handles.unwrap_or_default());
    }

    fn look_at<K>(&self, view: &mut InPlace<'_, K>) -> usize {
        let len = view.len();
        let mut bytes = vec![0; len.min(1 << 20)];
        self.call("read_at", Duration::ZERO, || view.read_at(&mut bytes, 0));
        if let Some(sealed) = view.sealed() {
            let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
            if sum(&sealed[..bytes.len()]) != sum(&bytes) {
                self.find("sealed bytes changed");
            }
        }
        let _ = (view.is_empty(), view.as_ptr(), view.sender());
        len
    }

    fn receive_many(&mut self, channel: &Channel) {
        let mut slots: Vec<_> = (0..1 + self.choices.below(6)).map(|_| Message::new()).collect();
        let (deadline, allowed) = self.deadline();
        let received = self.call("recv_many", allowed, || channel.recv_many(&mut slots, deadline));
        if let Some(count) = self.note("recv_many", received) {
            slots.truncate(count);
            let handles: usize = slots.iter().map(|message| message.handles().len()).sum();
            if let Some(ledger) = &self.victim.setting.ledger {
                ledger.add(Word::Own, handles as u64);
            }
            slots.into_iter().for_each(|message| self.received(message));
            if let Some(ledger) = &self.victim.setting.ledger {
                ledger.word(Word::Own).fetch_sub(handles as u64, SeqCst);
            }
        }
    }

    fn put_back(&mut self, channel: &Channel) {
        let Some(message) = self.take(|pool| &mut pool.messages) else { return };
        let put = self.call("put_back", Duration::ZERO, || channel.put_back([message]).map_err(Error::from));
        self.note("put_back", put);
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.choices.pick(&[0, 1, 40, 200, 700, 3000, 20_000, 80_000, 300_000]);
        vec![7; len]
    }

    fn send(&mut self, channel: &Channel) {
        let bytes = self.bytes();
        let (deadline, allowed) = self.deadline();
        let sent = match self.choices.below(3) {
            0 => self.call("try_send", Duration::ZERO, || channel.try_send(&bytes)),
            1 => self.call("send_by", allowed, || channel.send_by(&bytes, deadline)),
            _ => {
                let parts = [IoSlice::new(b"two parts, "), IoSlice::new(&bytes)];
                self.call("send_by", allowed, || channel.send_by(Outgoing::vectored(&parts), deadline))
            }
        };
        self.note_sent("send", sent);
    }

    fn send_without_deadline(&mut self, channel: &Channel) {
        let bytes = self.bytes();
        if let Some(sent) = self.call_until_interrupted("send", channel, || channel.send(&bytes)) {
            self.note_sent("send", sent);
        }
    }

    fn send_many(&mut self, channel: &Channel) {
        let bytes = self.bytes();
        let count = 1 + self.choices.below(30);
        let (deadline, allowed) = self.deadline();
        let row = (0..count).map(|_| Outgoing::new(&bytes));
        let sent = self.call("send_many", allowed, || channel.send_many(row, deadline));
        self.note("send_many", sent.map_err(|failed| failed.failed.error));
    }

    fn reserve(&mut self, channel: &Channel) {
        let bytes = self.bytes();
        let (deadline, allowed) = self.deadline();
        let reserved = self.call("reserve", allowed, || channel.reserve(bytes.len(), deadline));
        let Some(mut room) = self.note("reserve", reserved) else { return };
        let how = self.choices.below(4);
        let sent = self.call("write_at and commit", Duration::ZERO, || {
            match how {
                0 => drop(room.as_uninit_mut()),
                _ => room.write_at(&bytes, 0),
            }
            let _ = (room.len(), room.is_empty());
            match how {
                1 => Ok(()),
                2 => room.commit_first(bytes.len() / 2),
                _ => room.commit(),
            }
        });
        self.note_sent("commit", sent);
    }

    fn reserve_sealed(&mut self, channel: &Channel) {
        let len = self.choices.pick(&[0, 100, 5000, 100_000]);
        let (deadline, allowed) = self.deadline();
        let reserved = self.call("reserve_sealed", Duration::ZERO, || channel.reserve_sealed(len));
        let Some(mut room) = self.note("reserve_sealed", reserved) else { return };
        if let Some(first) = room.bytes().first_mut() {
            *first = 1;
        }
        let sent = self.call("commit of sealed memory", allowed, || room.commit(deadline));
        self.note_sent("commit of sealed memory", sent);
    }

    fn draft(&mut self, channel: &Channel) {
        let bytes = self.bytes();
        let (deadline, allowed) = self.deadline();
        let sent = self.call("a draft", allowed, || {
            let mut draft = channel.draft();
            draft.append(&bytes).map_err(|error| (error, Vec::new()))?;
            draft.append(b"more").map_err(|error| (error, Vec::new()))?;
            draft.write_at(b"over", 0).map_err(|error| (error, Vec::new()))?;
            let _ = (draft.len(), draft.is_empty(), draft.is_shared());
            draft.send(deadline).map_err(|failed| (failed.error, failed.handles))
        });
        if let Err((error, handles)) = sent {
            self.failed("a draft", error);
            self.keep_handles(handles);
        }
    }

    /// Reserves room that keeps the channel, ordinary or sealed, and sends what is there.
    fn reserve_owned(&mut self, channel: Arc<Channel>) {
        let bytes = self.bytes();
        let (deadline, allowed) = self.deadline();
        if self.choices.one_in(2) {
            let reserved = self.call("reserve_owned", allowed, || channel.reserve_owned(bytes.len(), deadline));
            let Some(mut room) = self.note("reserve_owned", reserved) else { return };
            let sent = self.call("commit of owned room", Duration::ZERO, || {
                room.write_at(&bytes, 0);
                let _ = room.kept().is_writable();
                room.commit()
            });
            return self.note_sent("commit of owned room", sent);
        }
        let reserve = || channel.reserve_sealed_owned(bytes.len());
        let reserved = self.call("reserve_sealed_owned", Duration::ZERO, reserve);
        let Some(mut room) = self.note("reserve_sealed_owned", reserved) else { return };
        let _ = room.kept().is_writable();
        room.bytes().copy_from_slice(&bytes);
        let kept = self.call("commit_and_keep", allowed, || room.commit_and_keep(deadline));
        if let Ok(kept) = &kept
            && **kept != *bytes
        {
            self.find("the sender's copy of sealed bytes changed");
        }
        self.note_sent("commit_and_keep", kept);
    }

    fn draft_owned(&mut self, channel: Arc<Channel>) {
        let bytes = self.bytes();
        let (deadline, allowed) = self.deadline();
        let mut draft = channel.draft_owned();
        let sent = self.call("an owned draft", allowed, || {
            let _ = draft.kept().is_writable();
            match draft.append(&bytes) {
                Ok(()) => draft.send(deadline),
                Err(error) => Err(SendError { error, handles: Vec::new() }),
            }
        });
        self.note_sent("an owned draft", sent);
    }

    /// Splits a channel, sends and receives by the halves, and joins them.
    fn use_halves(&mut self) {
        let Some(channel) = self.lone_channel() else { return };
        let (mut sender, mut receiver) = self.call("split", Duration::ZERO, || channel.split());
        let (deadline, allowed) = self.deadline();
        let sent = match self.choices.below(4) {
            0 => self.call("Sender::try_send", Duration::ZERO, || sender.try_send(b"by a half")),
            1 => self.call("Sender::send_by", allowed, || sender.send_by(b"by a half", deadline)),
            2 => {
                let row = (0..3).map(|_| Outgoing::new(b"by a half"));
                let sent = self.call("Sender::send_many", allowed, || sender.send_many(row, deadline));
                sent.map(drop).map_err(|failed| failed.failed)
            }
            _ => self.call("Sender::reserve", allowed, || match sender.reserve(9, deadline) {
                Ok(mut room) => {
                    room.write_at(b"by a half", 0);
                    room.commit()
                }
                Err(error) => Err(SendError { error, handles: Vec::new() }),
            }),
        };
        self.note_sent("a sending half", sent);
        let (deadline, allowed) = self.deadline();
        let mut message = Message::new();
        let received = match self.choices.below(3) {
            0 => self.call("Receiver::try_recv", Duration::ZERO, || receiver.try_recv()),
            1 => self.call("Receiver::recv_by", allowed, || receiver.recv_by(deadline)),
            _ => self
                .call("Receiver::recv_message", allowed, || receiver.recv_message(&mut message, deadline))
                .map(|()| message),
        };
        if let Some(message) = self.note("a receiving half", received) {
            self.received(message);
        }
        let _ = (receiver.close_reason(), sender.interrupter(), receiver.interrupter());
        match self.call("join", Duration::ZERO, || sender.join(receiver)) {
            Ok(channel) => self.keep(|pool| &mut pool.channels, Arc::new(channel)),
            Err(_) => self.find("two halves of a channel cannot be joined"),
        }
    }

    /// Closes a channel with a reason for the peer.
    fn close_for_a_reason(&mut self) {
        let Some(channel) = self.lone_channel() else { return };
        let _ = channel.close_reason();
        let at_once = self.choices.one_in(2);
        self.call("close_with", Duration::ZERO, || {
            if at_once {
                channel.close_with(3);
            } else {
                channel.set_close_reason(4);
                drop(channel);
            }
        });
    }

    fn send_value(&mut self, channel: &Channel) {
        let bytes = self.bytes();
        let (deadline, allowed) = self.deadline();
        if self.choices.one_in(2) {
            let sent = self.call("send_value", allowed, || channel.send_value(Bytes(bytes), deadline));
            return drop(sent);
        }
        let mut message = match self.choices.below(3) {
            0 => Message::from_value(Bytes(bytes)),
            1 => Message::from_parts(bytes, Vec::new()),
            _ => {
                let mut message = Message::new();
                message.set_parts(bytes, Vec::new());
                message
            }
        };
        let _ = (message.is_value::<Bytes>(), message.take_value::<Other>().is_none(), message.has_only_bytes());
        let sent = self.call("forward of a value", allowed, || channel.forward(&mut message, deadline));
        self.note("forward of a value", sent);
    }

    fn forward(&mut self, channel: &Channel) {
        let Some(mut message) = self.take(|pool| &mut pool.messages) else { return };
        let (deadline, allowed) = self.deadline();
        let sent = self.call("forward", allowed, || channel.forward(&mut message, deadline));
        self.note("forward", sent);
        let _ = (message.handles().len(), message.bytes().len(), message.sender());
        if self.choices.one_in(8) {
            let _ = message.report_bad("nothing");
        }
        if let Ok(Some(handle)) = self.call("take_handle", Duration::ZERO, || message.take_handle(0)) {
            self.keep_handles(vec![handle]);
        }
        let clears = self.choices.one_in(2);
        self.call("drop a message", Duration::ZERO, || {
            if clears {
                message.clear();
            }
            drop(message.into_bytes());
        });
    }

    /// Returns a random handle, new or from the pool; `None` if the choice is not possible.
    fn handle(&mut self) -> Option<Handle> {
        Some(match self.choices.below(8) {
            0 => {
                let (one, other) = self.note("pair", self.options().pair())?;
                self.keep(|pool| &mut pool.channels, Arc::new(other));
                Handle::Channel(one)
            }
            1 | 2 => {
                let channel = self.take(|pool| &mut pool.channels)?;
                match Arc::try_unwrap(channel) {
                    Ok(channel) => Handle::Channel(channel),
                    Err(shared) => {
                        self.keep(|pool| &mut pool.channels, shared);
                        return None;
                    }
                }
            }
            3 => Handle::Region(self.note("Region::new", Region::new(5000))?),
            4 => Handle::Region(self.one_of(|pool| &pool.regions)?),
            5 => {
                let (producer, consumer) = self.note("DataPipe::pair", strait::pipe::DataPipe::pair(4096))?;
                self.keep(|pool| &mut pool.consumers, Arc::new(consumer));
                Handle::Producer(producer)
            }
            6 => {
                let consumer = self.take(|pool| &mut pool.consumers)?;
                match Arc::try_unwrap(consumer) {
                    Ok(consumer) => Handle::Consumer(consumer),
                    Err(shared) => {
                        self.keep(|pool| &mut pool.consumers, shared);
                        return None;
                    }
                }
            }
            _ => Handle::Fd(std::fs::File::open("/dev/null").ok()?.into()),
        })
    }

    fn send_handles(&mut self, channel: &Channel) {
        let count = 1 + self.choices.below(3);
        let handles: Vec<_> = (0..count).filter_map(|_| self.handle()).collect();
        let (deadline, allowed) = self.deadline();
        // Ends go only to the attacker or over the relay. Two ends in messages to each other within this process
        // would leak (`docs/reference/limits.md`, *Reference cycles*).
        let has_ends = handles.iter().any(|handle| !matches!(handle, Handle::Fd(_) | Handle::Region(_)));
        let pinned = if has_ends { self.one_of(|pool| &pool.pinned) } else { None };
        let to_relay = self.choices.one_in(2) || has_ends && pinned.is_none();
        let channel = pinned.as_deref().unwrap_or(channel);
        // Half of the handles go over the link of this process to itself, and come back here.
        if to_relay {
            let Some(relay) = self.relay() else { return };
            let message = Outgoing::new(b"ends").handles(handles);
            let sent = self.call("send_by with handles, to oneself", allowed, || relay.0.send_by(message, deadline));
            self.note_sent("send_by with handles, to oneself", sent);
            return self.receive_from(&relay.1);
        }
        let message = Outgoing::new(b"ends").handles(handles);
        let sent = self.call("send_by with handles", allowed, || channel.send_by(message, deadline));
        self.note_sent("send_by with handles", sent);
    }

    fn receive_from(&mut self, end: &Channel) {
        while let Ok(mut message) = self.call("try_recv of what moved", Duration::ZERO, || end.try_recv()) {
            if let Ok(handles) = message.take_handles() {
                self.keep_handles(handles);
            }
        }
    }

    fn ask(&mut self, channel: &Channel) {
        let _ = (channel.is_readable(), channel.is_writable(), channel.is_peer_closed());
        let _ = channel.counters();
        let peer = self.call("peer", Duration::ZERO, || channel.peer());
        let _ = peer;
        let usage = self.call("peer_usage", Duration::ZERO, || channel.peer_usage());
        if let Ok(Some(usage)) = usage {
            for resource in strait::quota::Resource::ALL {
                let _ = (usage.peer(resource), usage.user(resource));
            }
            let _ = (usage.idle_wake_ups(), usage.pauses(), usage.processes(), usage.uid());
        }
        drop(self.call("peer_pidfd", Duration::ZERO, || channel.peer_pidfd()));
        let limits = strait::quota::limits();
        let _ = (limits, strait::quota::pool_held());
        self.call("trim", Duration::ZERO, || {
            strait::quota::set_pool_limit(strait::quota::pool_limit());
            strait::quota::trim()
        });
        let status = self.call("status", Duration::ZERO, || channel.status());
        let _ = status.map(|status| status.all_read());
    }

    /// Fuses two channels of the pool, unless another driver uses one of them.
    pub(super) fn act_on_ends(&mut self) {
        let (Some(one), Some(other)) = (self.take(|pool| &mut pool.channels), self.take(|pool| &mut pool.channels))
        else {
            return;
        };
        match (Arc::try_unwrap(one), Arc::try_unwrap(other)) {
            (Ok(one), Ok(other)) => {
                let (deadline, allowed) = self.deadline();
                let fused = self.call("fuse", allowed, || one.fuse(other, deadline));
                if let Err(failed) = fused {
                    self.failed("fuse", failed.error);
                    let (one, other) = failed.channels;
                    self.keep(|pool| &mut pool.channels, Arc::new(one));
                    self.keep(|pool| &mut pool.channels, Arc::new(other));
                }
            }
            (one, other) => {
                for channel in [one.map_or_else(|one| one, Arc::new), other.map_or_else(|other| other, Arc::new)] {
                    self.keep(|pool| &mut pool.channels, channel);
                }
            }
        }
    }

    /// Adds both ends of a new channel to the pool.
    pub(super) fn new_pair(&mut self) {
        if let Some((one, other)) = self.note("pair", self.options().pair()) {
            self.keep(|pool| &mut pool.channels, Arc::new(one));
            self.keep(|pool| &mut pool.channels, Arc::new(other));
        }
    }

    /// Takes a channel out of the pool; `None` if there is none, or if another driver uses the channel.
    pub(super) fn lone_channel(&mut self) -> Option<Channel> {
        let channel = self.take(|pool| &mut pool.channels)?;
        match Arc::try_unwrap(channel) {
            Ok(channel) => Some(channel),
            Err(shared) => {
                self.keep(|pool| &mut pool.channels, shared);
                None
            }
        }
    }
}
