//! Values given to a receiver in the same process, which stay objects.

use std::sync::{Arc, Mutex, PoisonError};

use strait::Handle;
use strait::view::Value;

use crate::codec::Encode;
use crate::core::encode;
use crate::error::SendError;
use crate::output::Output;
use crate::scratch::{self, Outbound};

/// A given value that was turned into bytes and handles.
pub(crate) struct Turned<S> {
    /// The value; its handles are in the message.
    pub(crate) value: S,
    /// The places of the handles in the value, or the reason why the value could not be encoded.
    pub(crate) places: Result<Box<Outbound>, String>,
}

impl<S> Turned<S> {
    /// Returns the value of a message that was not sent; `handles` are the handles of the message.
    pub(crate) fn taken_back(self, handles: Vec<Handle>) -> S {
        if let Ok(mut places) = self.places {
            places.give_back(handles);
        }
        self.value
    }
}

/// The place of a turned value, shared with the call that gives the value. So the call has the value again if the send
/// fails.
type Shared<S> = Arc<Mutex<Option<Turned<S>>>>;

/// A function that turns a value into bytes, and returns the handles with their places in the value.
type Turn<S> = fn(&S) -> Result<(Vec<u8>, Box<Outbound>), String>;

/// A value that is given away. The value is encoded only if its receiver is in another process or asks for bytes.
pub(crate) struct Given<S> {
    value: S,
    turn: Turn<S>,
    turned: Shared<S>,
}

impl<S: Send + 'static> Given<S> {
    /// Creates the message of `value`, which the codec `C` encodes if need be.
    pub(crate) fn new<C: Encode<S>>(value: S) -> (Self, Shared<S>) {
        let turned = Shared::default();
        (Self { value, turn: turn::<S, C>, turned: turned.clone() }, turned)
    }

    /// Returns the value.
    pub(crate) fn into_value(self) -> S {
        self.value
    }
}

impl<S: Send + 'static> Value for Given<S> {
    /// Encodes the value. If the encoding fails, the message is empty, and the receiver reports a malformed message.
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        let (parts, places) = match (self.turn)(&self.value) {
            Ok((bytes, mut outbound)) => ((bytes, outbound.take_handles()), Ok(outbound)),
            Err(what) => (Default::default(), Err(what)),
        };
        let turned = Turned { value: self.value, places };
        *self.turned.lock().unwrap_or_else(PoisonError::into_inner) = Some(turned);
        parts
    }

    fn size(&self) -> usize {
        size_of::<S>()
    }
}

fn turn<S, C: Encode<S>>(value: &S) -> Result<(Vec<u8>, Box<Outbound>), String> {
    let mut out = Output::new(scratch::take_window(), None);
    let turned = encode::<S, C>(value, &mut out);
    let turned = turned.map(|outbound| (out.bytes().to_vec(), outbound.unwrap_or_default()));
    scratch::keep_window(out.into_window());
    turned.map_err(|error: SendError| error.to_string())
}
