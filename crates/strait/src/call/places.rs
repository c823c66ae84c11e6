//! The calls of an end that have no answer yet, or one that was not taken: each has a place, and the number of the call says which.
//!
//! A place is used again. Its number has another upper half then, so that an answer which comes twice, or was made up, finds none.

use std::sync::Arc;
use std::task::Waker;

use super::waiting::Waiter;
use crate::channel::message::Message;

/// What came of a call.
#[derive(Debug)]
pub(super) enum Answer {
    Reply(Message),
    /// The server will not answer.
    None,
}

/// A call of this end.
#[derive(Debug)]
pub(super) enum Call {
    /// The thread that sleeps for it, and the task that waits, if there are any.
    Waiting(Option<Arc<Waiter>>, Option<Waker>),
    Answered(Answer),
    /// Nobody waits for it any more.
    Abandoned,
}

#[derive(Debug)]
struct Place {
    /// The upper half of the number of the call that is here, or of the next one.
    turn: u32,
    call: Option<Call>,
}

/// The places of calls: as many as there ever were at a time.
#[derive(Debug, Default)]
pub(super) struct Places {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Places {
    /// Calls that have a place.
    pub(super) fn taken(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Gives a call a place: its number.
    pub(super) fn take(&mut self) -> u64 {
        let call = Some(Call::Waiting(None, None));
        let at = match self.free.pop() {
            Some(at) => {
                self.places[at as usize].call = call;
                at
            }
            None => {
                let at = u32::try_from(self.places.len()).expect("fewer calls than that fit memory");
                // So that no number is 0.
                self.places.push(Place { turn: 1, call });
                at
            }
        };
        u64::from(self.places[at as usize].turn) << 32 | u64::from(at)
    }

    /// The call of this number, if it has a place.
    pub(super) fn get(&mut self, id: u64) -> Option<&mut Call> {
        let place = self.places.get_mut(id as u32 as usize)?;
        if u64::from(place.turn) == id >> 32 { place.call.as_mut() } else { None }
    }

    /// Frees the place of a call.
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

    /// All calls that have a place.
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
