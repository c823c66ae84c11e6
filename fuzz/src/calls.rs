//! Calls: ends of channels that an input uses for requests and replies.
//!
//! As long as nothing was tampered with, each request is served at most once and has the bytes that were sent. Each
//! call gets its own reply, or learns that there is none. No more calls are in flight than are permitted.

use std::collections::HashSet;

use strait::call::{CallEnd, CallError, CallOptions, PendingCall, Request};
use strait::{Channel, Deadline, Error, Outgoing, SendError};

use crate::program::Instruction;
use crate::world::{Expected, Held, MOST_ENDS, Name, World, content, descriptor, length};

/// The greatest number of calls in flight, and of unanswered requests, of one call end.
const MOST: usize = 4;

/// The greatest number of call ends, of pending calls, and of served requests that are held.
const MOST_HELD: usize = 8;

/// What is known about a call, as long as nothing was tampered with.
#[derive(Debug)]
struct Fact {
    /// The end that made the call.
    from: Name,
    seed: u8,
    len: usize,
    taken: bool,
    /// The answer: a reply, or that there will be none; `None` as long as there is no answer.
    said: Option<Said>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Reply { seed: u8, len: usize },
    Nothing,
}

#[derive(Debug)]
struct HeldEnd {
    end: CallEnd,
    name: Name,
}

#[derive(Debug)]
struct Pending {
    call: PendingCall,
    name: Name,
    fact: usize,
}

#[derive(Debug)]
struct Served {
    request: Request,
    name: Name,
    /// The number of the call, if it is known.
    fact: Option<usize>,
}

/// All calls of an input.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// The channels that are used for calls.
    channels: HashSet<usize>,
    ends: Vec<HeldEnd>,
    pending: Vec<Pending>,
    served: Vec<Served>,
    facts: Vec<Fact>,
}

/// Returns bytes that contain the number of the call to which they belong.
fn numbered(fact: usize, seed: u8, len: usize) -> Vec<u8> {
    [&(fact as u32).to_le_bytes(), content(seed, len).as_slice()].concat()
}

fn number(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|number| u32::from_le_bytes(*number) as usize)
}

impl World {
    pub(crate) fn is_for_calls(&self, name: Name) -> bool {
        self.calls.channels.contains(&name.channel)
    }

    /// Makes a call end of a channel end, and holds it; drops it if too many are held.
    pub(crate) fn hold_for_calls(&mut self, channel: Channel, name: Name) {
        let end = CallOptions::new().calls(MOST).requests(MOST).over(channel);
        if self.calls.ends.len() < MOST_HELD {
            self.calls.ends.push(HeldEnd { end, name });
        } else {
            drop(end);
            self.calls_are_dropped(name);
        }
    }

    /// Notes that a part of a call end was dropped. If no part is held any more, the channel end is closed.
    fn calls_are_dropped(&mut self, name: Name) {
        let calls = &self.calls;
        let held = calls.ends.iter().any(|end| end.name == name)
            || calls.pending.iter().any(|pending| pending.name == name)
            || calls.served.iter().any(|served| served.name == name);
        if self.honest() && !held {
            self.note_closed(Expected::End(name));
        }
    }

    /// Makes a channel for calls. Either both ends are held, or one is sent.
    fn new_calls(&mut self, who: u8, a: u8, b: u8, word: u32) {
        let (one, other) = self.options.pair().expect("a pair");
        let name = self.new_name();
        self.calls.channels.insert(name.channel);
        self.hold_for_calls(one, name);
        if b & 1 == 0 || self.ends.is_empty() {
            self.hold_for_calls(other, name.other());
        } else {
            let at = usize::from(who) % self.ends.len();
            self.send(at, a, word, vec![(strait::Handle::Channel(other), Expected::End(name.other()))]);
        }
    }

    fn check_call(&mut self, name: Name, error: Error, call: &str) {
        if self.told() {
            eprintln!("  {call} of {name:?}: {error}");
        }
        if let Error::System { call: refused, code } = error {
            panic!("{call}: {refused} was refused: {code}");
        }
        if self.honest() {
            let fine = match error {
                Error::WouldBlock | Error::MessageTooLarge { .. } | Error::LimitReached(_) => true,
                Error::PeerClosed => self.is_closed(name.other()),
                _ => false,
            };
            assert!(fine, "{call} of {name:?}: {error}");
        }
    }

    fn begin_call(&mut self, who: u8, a: u8, b: u8, word: u32) {
        let Some(at) = self.calls.ends.len().checked_sub(1).map(|last| usize::from(who) % (last + 1)) else { return };
        let (seed, len) = (self.next_seed(), length(a, word));
        let name = self.calls.ends[at].name;
        let handles = if b & 1 == 0 { Vec::new() } else { vec![descriptor()] };
        let bytes = numbered(self.calls.facts.len(), seed, len);
        match self.calls.ends[at].end.begin_call(Outgoing::new(&bytes).handles(handles), Deadline::NOW) {
            Ok(call) => {
                // If there were as many calls before, an answer has arrived.
                assert!(self.calls.ends[at].end.under_way() <= MOST, "more calls at a time than permitted");
                self.calls.pending.push(Pending { call, name, fact: self.calls.facts.len() });
                self.calls.facts.push(Fact { from: name, seed, len, taken: false, said: None });
                // Drops the oldest call, which is not waited for any more.
                if self.calls.pending.len() > MOST_HELD {
                    self.drop_pending(0);
                }
            }
            Err(CallError::NotSent(SendError { error, handles, .. })) => {
                assert_eq!(handles.len(), usize::from(b & 1), "handles of a request that was not sent");
                self.check_call(name, error, "begin a call");
            }
            Err(error) => panic!("a call was begun and not: {error}"),
        }
    }

    fn next_request(&mut self, who: u8) {
        let Some(at) = self.calls.ends.len().checked_sub(1).map(|last| usize::from(who) % (last + 1)) else { return };
        let name = self.calls.ends[at].name;
        match self.calls.ends[at].end.next_request(Deadline::NOW) {
            Ok(mut request) => {
                let handles = request.take_handles();
                let fact = number(request.bytes()).filter(|_| self.honest());
                if self.honest() {
                    let number = fact.expect("a number");
                    let Fact { from, seed, len, taken, .. } = &mut self.calls.facts[number];
                    assert!(*from == name.other() && !*taken, "a request of {from:?} came to {name:?}");
                    *taken = true;
                    let whole = request.bytes() == numbered(number, *seed, *len);
                    assert!(whole && handles.is_ok(), "a request as it was made");
                }
                self.calls.served.push(Served { request, name, fact });
                if self.calls.served.len() > MOST_HELD {
                    self.drop_served(0);
                }
            }
            Err(error) => self.check_call(name, error, "the next request"),
        }
    }

    fn reply(&mut self, who: u8, a: u8, b: u8, word: u32) {
        let Some(at) = self.calls.served.len().checked_sub(1).map(|last| usize::from(who) % (last + 1)) else { return };
        let Served { request, name, fact } = self.calls.served.remove(at);
        let (seed, len) = (self.next_seed(), length(a, word));
        let handles = if b & 1 == 0 { Vec::new() } else { vec![descriptor()] };
        let (_, mut replier) = request.into_parts();
        let bytes = numbered(fact.unwrap_or(0), seed, len);
        let said = match replier.reply(Outgoing::new(&bytes).handles(handles), Deadline::NOW) {
            Ok(()) => Said::Reply { seed, len },
            Err(SendError { error, handles, .. }) => {
                assert_eq!(handles.len(), usize::from(b & 1), "handles of a reply that was not sent");
                self.check_call(name, error, "reply");
                Said::Nothing
            }
        };
        // Noted before the replier is dropped and the caller learns of it.
        if let Some(fact) = fact {
            self.calls.facts[fact].said = Some(said);
        }
        drop(replier);
        self.calls_are_dropped(name);
    }

    fn poll_call(&mut self, at: usize) {
        let Pending { call, name, fact } = &mut self.calls.pending[at];
        let (name, fact) = (*name, *fact);
        let polled = call.poll(Deadline::NOW);
        if self.told() {
            eprintln!("  poll of {name:?}: {polled:?}");
        }
        match polled {
            Ok(message) => {
                if self.honest() {
                    let Some(Said::Reply { seed, len }) = self.calls.facts[fact].said else {
                        panic!("a reply that was never made: {:?}", self.calls.facts[fact]);
                    };
                    assert!(message.bytes() == numbered(fact, seed, len), "a reply to another call");
                }
            }
            Err(CallError::NotAnswered) => {
                let said = self.calls.facts[fact].said;
                assert!(!self.honest() || said == Some(Said::Nothing), "no answer, after {said:?}");
            }
            Err(CallError::OutcomeUnknown(error)) => {
                self.check_call(name, error, "poll");
                if !matches!(error, Error::PeerClosed | Error::BadPeer(_)) {
                    return;
                }
                // The call gives the same answer ever after.
                let again = self.calls.pending[at].call.poll(Deadline::NOW);
                assert!(
                    matches!(again, Err(CallError::OutcomeUnknown(now)) if now == error),
                    "{again:?} after {error}"
                );
            }
            Err(error) => panic!("a call that was begun: {error}"),
        }
        self.drop_pending(at);
    }

    fn drop_pending(&mut self, at: usize) {
        let Pending { call, name, .. } = self.calls.pending.remove(at);
        call.cancel();
        self.calls_are_dropped(name);
    }

    fn drop_served(&mut self, at: usize) {
        let Served { request, name, fact } = self.calls.served.remove(at);
        if let Some(fact) = fact {
            self.calls.facts[fact].said = Some(Said::Nothing);
        }
        drop(request);
        self.calls_are_dropped(name);
    }

    pub(crate) fn act_on_calls(&mut self, what: u8, Instruction { who, a, b, word, .. }: Instruction) {
        let which = |count: usize| count.checked_sub(1).map(|last| usize::from(who) % (last + 1));
        match what {
            0 if self.calls.ends.len() < MOST_HELD => self.new_calls(who, a, b, word),
            1 | 2 => self.begin_call(who, a, b, word),
            3 => self.next_request(who),
            4 => self.reply(who, a, b, word),
            5 => {
                if let Some(at) = which(self.calls.pending.len()) {
                    self.poll_call(at);
                }
            }
            6 => match b % 3 {
                0 => which(self.calls.pending.len()).into_iter().for_each(|at| self.drop_pending(at)),
                1 => which(self.calls.served.len()).into_iter().for_each(|at| self.drop_served(at)),
                _ => which(self.calls.ends.len()).into_iter().for_each(|at| self.drop_calls(at)),
            },
            // Uses any end for calls, whatever its other end sends.
            7 if !self.honest() && !self.ends.is_empty() && self.ends.len() < MOST_ENDS => {
                let Held { channel, name, .. } = self.ends.remove(usize::from(who) % self.ends.len());
                self.hold_for_calls(channel, name);
            }
            _ => {}
        }
    }

    fn drop_calls(&mut self, at: usize) {
        let HeldEnd { end, name } = self.calls.ends.remove(at);
        drop(end);
        self.calls_are_dropped(name);
    }

    /// Answers all requests, receives all replies, and drops everything.
    pub(crate) fn end_calls(&mut self) {
        for at in 0..self.calls.ends.len() {
            for _ in 0..MOST {
                self.next_request(at as u8);
            }
            self.proxies.pump();
        }
        while !self.calls.served.is_empty() {
            self.reply(0, 0, 0, 1);
        }
        self.proxies.pump();
        while let Some(last) = self.calls.pending.len().checked_sub(1) {
            self.poll_call(last);
            if self.calls.pending.len() > last {
                self.drop_pending(last);
            }
        }
        while let Some(last) = self.calls.ends.len().checked_sub(1) {
            self.drop_calls(last);
            self.proxies.pump();
        }
    }
}
