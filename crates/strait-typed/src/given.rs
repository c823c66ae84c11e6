//! Values given to a receiver in the same process, which stay objects.

use std::sync::{Arc, Mutex, PoisonError};

use strait::Handle;
use strait::view::Value;

use crate::codec::Encode;
use crate::core::encode;
use crate::output::Output;
use crate::scratch;

/// The reason why a given value could not be turned into bytes, shared with the call that gives it.
type Problem = Arc<Mutex<Option<String>>>;

/// A function that turns a value into bytes and handles.
type Turn<S> = fn(&S) -> Result<(Vec<u8>, Vec<Handle>), String>;

/// A value that is given away. The value is encoded only if its receiver is in another process or asks for bytes.
pub(crate) struct Given<S> {
    value: S,
    turn: Turn<S>,
    problem: Problem,
}

impl<S: Send + 'static> Given<S> {
    /// Creates the message of `value`, which the codec `C` encodes if need be.
    pub(crate) fn new<C: Encode<S>>(value: S) -> (Self, Problem) {
        let problem = Problem::default();
        (Self { value, turn: turn::<S, C>, problem: problem.clone() }, problem)
    }

    /// Returns the value.
    pub(crate) fn into_value(self) -> S {
        self.value
    }
}

impl<S: Send + 'static> Value for Given<S> {
    /// Encodes the value. If the encoding fails, the message is empty, and the receiver reports a malformed message.
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (self.turn)(&self.value).unwrap_or_else(|what| {
            *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
            Default::default()
        })
    }

    fn size(&self) -> usize {
        size_of::<S>()
    }
}

fn turn<S, C: Encode<S>>(value: &S) -> Result<(Vec<u8>, Vec<Handle>), String> {
    let mut out = Output::new(scratch::take_window(), None);
    let turned = encode::<S, C>(value, &mut out).map_err(|error| error.to_string()).map(|outbound| {
        let handles = outbound.map(|mut outbound| outbound.take_handles()).unwrap_or_default();
        (out.bytes().to_vec(), handles)
    });
    scratch::keep_window(out.into_window());
    turned
}
