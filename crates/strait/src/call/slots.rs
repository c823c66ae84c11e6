//! The calls of an end that have no answer yet, or whose answer was not taken. Each call has a call slot; the lower
//! half of the call's number is the number of the slot.
//!
//! A later call uses the slot again, with another upper half of its number. So an answer that comes twice, or was made
//! up, finds no call.

use std::sync::Arc;
use std::task::Waker;

use super::waiting::CallWaiter;
use crate::channel::message::Message;

/// The answer to a call: a reply, or the notice that there will be no reply.
#[derive(Debug)]
pub(super) enum Answer {
    Reply(Message),
    /// `None`: the server will not reply, because the program has dropped the request.
    None,
}

/// The state of a call of this end with a slot.
#[derive(Debug)]
pub(super) enum Call {
    /// `Waiting`: the call has no answer yet. The fields are the object on which a thread sleeps until the answer
    /// arrives, and the waker of a task that waits for the answer; each is `None` if no thread or no task waits.
    Waiting(Option<Arc<CallWaiter>>, Option<Waker>),
    Answered(Answer),
    /// `Abandoned`: the caller has given up, and the call has no answer yet. An arriving answer will be dropped.
    Abandoned,
}

#[derive(Debug)]
struct CallSlot {
    /// The upper 32 bits of the number of the call in the slot, or of the next call that takes the slot. The value
    /// changes with each call, so that a late answer does not fit the next call of the slot.
    turn: u32,
    call: Option<Call>,
}

/// The call slots of one call end, free and in use. There are as many slots as the greatest number of calls that held a
/// slot at the same time so far.
#[derive(Debug, Default)]
pub(super) struct CallSlots {
    slots: Vec<CallSlot>,
    free: Vec<u32>,
}

impl CallSlots {
    /// Returns the number of call slots in use.
    pub(super) fn taken(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a free call slot, or adds a slot, for a new call without an answer. Returns the number of the call, which
    /// is never 0. Does not check any limit.
    pub(super) fn take(&mut self) -> u64 {
        let call = Some(Call::Waiting(None, None));
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize].call = call;
                at
            }
            None => {
                let at = u32::try_from(self.slots.len()).expect("fewer calls than that fit memory");
                // A turn of 1 ensures that no call number is 0.
                self.slots.push(CallSlot { turn: 1, call });
                at
            }
        };
        u64::from(self.slots[at as usize].turn) << 32 | u64::from(at)
    }

    /// Returns the call with the number `id`; `None` if no slot holds the call.
    pub(super) fn get(&mut self, id: u64) -> Option<&mut Call> {
        let slot = self.slots.get_mut(id as u32 as usize)?;
        if u64::from(slot.turn) == id >> 32 { slot.call.as_mut() } else { None }
    }

    /// Frees the slot of the call with the number `id`, and returns the call. If no slot holds the call, returns `None`
    /// and changes nothing.
    pub(super) fn free(&mut self, id: u64) -> Option<Call> {
        let call = self.get(id).is_some().then(|| {
            let slot = &mut self.slots[id as u32 as usize];
            slot.turn = slot.turn.wrapping_add(1);
            slot.call.take()
        });
        if call.is_some() {
            self.free.push(id as u32);
        }
        call.flatten()
    }

    /// Returns an iterator over all calls with a call slot.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Call> {
        self.slots.iter_mut().filter_map(|slot| slot.call.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_under_another_number() {
        let mut slots = CallSlots::default();
        let (one, other) = (slots.take(), slots.take());
        assert!(one != other && slots.get(one).is_some() && slots.taken() == 2);
        assert!(slots.free(one).is_some());
        assert!(slots.get(one).is_none() && slots.free(one).is_none());
        let again = slots.take();
        assert_eq!((again as u32, slots.taken()), (one as u32, 2));
        assert!(again != one && slots.get(one).is_none() && slots.get(again).is_some());
        assert!([0, u64::MAX, other | 1 << 63].iter().all(|&id| slots.get(id).is_none() && slots.free(id).is_none()));
        assert_eq!(slots.all().count(), 2);
    }
}
