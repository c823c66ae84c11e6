//! The calls of an end that have no answer yet, or whose answer was not taken. Each has a call slot, and the number of
//! the call says which.
//!
//! A slot is used again by a later call, whose number has another upper half. So an answer that comes twice, or was
//! made up, finds no call.

use std::sync::Arc;
use std::task::Waker;

use super::waiting::Waiter;
use crate::channel::message::Message;

/// The answer to a call: a reply, or word from the server that there will be none.
#[derive(Debug)]
pub(super) enum Answer {
    Reply(Message),
    /// The server will not reply.
    None,
}

/// The state of a call of this end.
#[derive(Debug)]
pub(super) enum Call {
    /// The call has no answer yet. The fields are the thread that sleeps for the answer and the task that waits for it,
    /// if any.
    Waiting(Option<Arc<Waiter>>, Option<Waker>),
    Answered(Answer),
    /// The caller has given up, so the answer will be dropped.
    Abandoned,
}

#[derive(Debug)]
struct Place {
    /// The upper half of the number of the call in this slot, or of the next call in it.
    turn: u32,
    call: Option<Call>,
}

/// The call slots of an end. There are as many as there were calls at the same time so far.
#[derive(Debug, Default)]
pub(super) struct Places {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Places {
    /// Returns the number of slots in use.
    pub(super) fn taken(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Gives a call a slot, and returns the number of the call.
    pub(super) fn take(&mut self) -> u64 {
        let call = Some(Call::Waiting(None, None));
        let at = match self.free.pop() {
            Some(at) => {
                self.places[at as usize].call = call;
                at
            }
            None => {
                let at = u32::try_from(self.places.len()).expect("fewer calls than that fit memory");
                // A turn of 1 ensures that no call number is 0.
                self.places.push(Place { turn: 1, call });
                at
            }
        };
        u64::from(self.places[at as usize].turn) << 32 | u64::from(at)
    }

    /// Returns the call of this number; `None` if no slot holds it.
    pub(super) fn get(&mut self, id: u64) -> Option<&mut Call> {
        let place = self.places.get_mut(id as u32 as usize)?;
        if u64::from(place.turn) == id >> 32 { place.call.as_mut() } else { None }
    }

    /// Frees the slot of a call, and returns the call; `None` if no slot holds it.
    pub(super) fn free(&mut self, id: u64) -> Option<Call> {
        let call = self.get(id).is_some().then(|| {
            let place = &mut self.places[id as u32 as usize];
            place.turn = place.turn.wrapping_add(1);
            place.call.take()
        });
        if call.is_some() {
            self.free.push(id as u32);
        }
        call.flatten()
    }

    /// Returns all calls that have a slot.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Call> {
        self.places.iter_mut().filter_map(|place| place.call.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_under_another_number() {
        let mut places = Places::default();
        let (one, other) = (places.take(), places.take());
        assert!(one != other && places.get(one).is_some() && places.taken() == 2);
        assert!(places.free(one).is_some());
        assert!(places.get(one).is_none() && places.free(one).is_none());
        let again = places.take();
        assert_eq!((again as u32, places.taken()), (one as u32, 2));
        assert!(again != one && places.get(one).is_none() && places.get(again).is_some());
        assert!([0, u64::MAX, other | 1 << 63].iter().all(|&id| places.get(id).is_none() && places.free(id).is_none()));
        assert_eq!(places.all().count(), 2);
    }
}
