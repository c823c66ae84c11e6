//! What a thread reuses from message to message, and the handles of the message that it encodes or decodes.
//!
//! `Serialize` and `Deserialize` have no argument for handles, so these travel beside a value in a thread-local
//! variable. It is set only while a message of a typed channel is encoded or decoded; a message that is encoded within
//! that of another one (by the `Serialize` of a program's own) has its own.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError};

use strait::{Handle, Message};

use crate::output::SMALL;

/// The place of a handle in a value: empty once the handle was sent.
pub(crate) type Slot = Arc<Mutex<Option<Handle>>>;

/// Puts `handle` into `slot`, or takes it out with `None`. Returns what was there.
pub(crate) fn exchange(slot: &Slot, handle: Option<Handle>) -> Option<Handle> {
    std::mem::replace(&mut *slot.lock().unwrap_or_else(PoisonError::into_inner), handle)
}

/// What one thread reuses.
#[derive(Default)]
pub(crate) struct Scratch {
    buffer: Cell<Vec<u8>>,
    message: Cell<Message>,
    outbound: RefCell<Option<Outbound>>,
    inbound: RefCell<Option<Inbound>>,
}

thread_local! {
    static SCRATCH: Scratch = Scratch::default();
}

/// Calls `work` with the scratch of this thread; while the thread ends, with one of its own.
#[inline]
pub(crate) fn with<T>(work: impl FnOnce(&Scratch) -> T) -> T {
    let mut work = Some(work);
    let mut call = |scratch: &Scratch| work.take().map(|work| work(scratch));
    match SCRATCH.try_with(&mut call) {
        Ok(Some(result)) => result,
        _ => call(&Scratch::default()).expect("it is called once"),
    }
}

impl Scratch {
    /// Takes the buffer of this thread; a nested call gets a new one.
    #[inline]
    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        self.buffer.take()
    }

    /// Gives the buffer back for the next message, unless it has become large.
    #[inline]
    pub(crate) fn keep_buffer(&self, buffer: Vec<u8>) {
        if buffer.capacity() <= 2 * SMALL {
            self.buffer.set(buffer);
        }
    }

    /// Takes the message of this thread; a nested call gets a new one.
    #[inline]
    pub(crate) fn take_message(&self) -> Message {
        self.message.take()
    }

    /// Gives the message back for the next receive, unless it is large. Its handles must have been taken.
    #[inline]
    pub(crate) fn keep_message(&self, message: Message) {
        if message.bytes().len() <= SMALL {
            self.message.set(message);
        }
    }
}

/// The handles of a message that is being encoded.
#[derive(Default)]
pub(crate) struct Outbound {
    slots: Vec<Slot>,
    handles: Vec<Handle>,
    /// Why a handle could not be encoded. Some codecs lose the text of an error, so it is kept here.
    pub(crate) problem: Option<&'static str>,
}

impl Outbound {
    /// Takes the handles, to send them.
    pub(crate) fn take_handles(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.handles)
    }

    /// Puts the handles of a message that was not sent back into the value.
    pub(crate) fn give_back(&mut self, handles: Vec<Handle>) {
        for (slot, handle) in self.slots.drain(..).zip(handles) {
            exchange(&slot, Some(handle));
        }
    }
}

impl Drop for Outbound {
    /// Puts the handles back that were not taken, for a message that was not encoded.
    fn drop(&mut self) {
        let handles = self.take_handles();
        self.give_back(handles);
    }
}

/// A message of this thread that is being encoded. Dropping it, also by a panic, gives its handles back.
pub(crate) struct Encoding<'s> {
    scratch: &'s Scratch,
    outer: Option<Outbound>,
}

impl<'s> Encoding<'s> {
    /// Begins a message: the handles that are serialized from now on are its own.
    #[inline]
    pub(crate) fn begin(scratch: &'s Scratch) -> Self {
        let outer = scratch.outbound.replace(Some(Outbound::default()));
        Self { scratch, outer }
    }

    /// Ends the message and returns its handles.
    #[inline]
    pub(crate) fn end(self) -> Outbound {
        self.scratch.outbound.take().unwrap_or_default()
    }
}

impl Drop for Encoding<'_> {
    #[inline]
    fn drop(&mut self) {
        let inner = self.scratch.outbound.replace(self.outer.take());
        drop(inner);
    }
}

/// Moves the handle out of `slot` into the message that this thread encodes. Returns the handle's index there.
pub(crate) fn send_handle(slot: &Slot) -> Result<u32, &'static str> {
    with(|scratch| {
        let mut outbound = scratch.outbound.borrow_mut();
        let Some(outbound) = outbound.as_mut() else {
            return Err("a handle can be serialized only into a message of a typed channel");
        };
        let Some(handle) = exchange(slot, None) else {
            let problem = "a handle of the value was sent already";
            outbound.problem = Some(problem);
            return Err(problem);
        };
        let index = outbound.handles.len() as u32;
        outbound.slots.push(slot.clone());
        outbound.handles.push(handle);
        Ok(index)
    })
}

/// The handles of a message that is being decoded.
#[derive(Default)]
pub(crate) struct Inbound {
    handles: Vec<Option<Handle>>,
    /// Why a handle could not be decoded. Some codecs lose the text of an error, so it is kept here.
    pub(crate) problem: Option<&'static str>,
}

impl Inbound {
    /// Returns whether handles are left that no field of the value has taken.
    pub(crate) fn has_surplus(&self) -> bool {
        self.handles.iter().any(Option::is_some)
    }
}

/// A message of this thread that is being decoded. Dropping it, also by a panic, closes the handles that were not
/// taken.
pub(crate) struct Decoding<'s> {
    scratch: &'s Scratch,
    outer: Option<Inbound>,
}

impl<'s> Decoding<'s> {
    /// Begins a message with these handles: the handles that are deserialized from now on are these.
    #[inline]
    pub(crate) fn begin(scratch: &'s Scratch, handles: Vec<Handle>) -> Self {
        let handles = handles.into_iter().map(Some).collect();
        let outer = scratch.inbound.replace(Some(Inbound { handles, problem: None }));
        Self { scratch, outer }
    }

    /// Ends the message and returns the handles that are left.
    #[inline]
    pub(crate) fn end(self) -> Inbound {
        self.scratch.inbound.take().unwrap_or_default()
    }
}

impl Drop for Decoding<'_> {
    #[inline]
    fn drop(&mut self) {
        let inner = self.scratch.inbound.replace(self.outer.take());
        drop(inner);
    }
}

/// Takes the handle with this index out of the message that this thread decodes, if `is_kind` accepts it.
pub(crate) fn receive_handle(index: u32, is_kind: impl FnOnce(&Handle) -> bool) -> Result<Handle, &'static str> {
    with(|scratch| {
        let mut inbound = scratch.inbound.borrow_mut();
        let Some(inbound) = inbound.as_mut() else {
            return Err("a handle can be deserialized only from a message of a typed channel");
        };
        let place = usize::try_from(index).ok().and_then(|index| inbound.handles.get_mut(index));
        let (problem, handle) = match place {
            None => ("the index of a handle is out of range", None),
            Some(place) => match place.take_if(|handle| is_kind(handle)) {
                None if place.is_some() => ("a handle is of another kind than its field", None),
                None => ("a handle is used twice", None),
                handle => ("", handle),
            },
        };
        if handle.is_none() {
            inbound.problem = Some(problem);
        }
        handle.ok_or(problem)
    })
}
