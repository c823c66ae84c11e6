//! The memory that a thread reuses from message to message, and the handles of the message that the thread encodes or
//! decodes.
//!
//! `Serialize` and `Deserialize` have no argument for handles, so handles travel beside a value in a thread-local
//! variable. The variable is set only while a message of a typed channel is encoded or decoded. If a program's
//! `Serialize` encodes a message within another message, the inner message has its own state.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

use strait::bindings::UnclaimedHandle;
use strait::{Handle, Message};

use crate::codec::Malformed;
use crate::output::{SMALL, Window, new_window};

/// The greatest number of bytes of a message after which the thread keeps the memory for the next message.
const KEPT: usize = 2 << 20;

/// The smallest page size.
const PAGE: usize = 4096;

const NO_SEND: &str = "a handle can be serialized only into a message of a typed channel";
const NO_RECEIVE: &str = "a handle can be deserialized only from a message of a typed channel";

/// A handle in a value.
pub(crate) enum Held {
    /// The handle is of this program.
    Own(Handle),
    /// The handle was received, and the program has not taken it out of the value. Its drop does not block.
    Received(UnclaimedHandle),
}

/// The place of a handle in a value: empty once the handle was sent.
pub(crate) type Slot = Arc<Mutex<Option<Held>>>;

/// Puts `handle` into `slot`, or takes it out with `None`. Returns the old content, as a handle of this program.
pub(crate) fn exchange(slot: &Slot, handle: Option<Handle>) -> Option<Handle> {
    let old = std::mem::replace(&mut *slot.lock().unwrap_or_else(PoisonError::into_inner), handle.map(Held::Own));
    old.map(|held| match held {
        Held::Own(handle) => handle,
        Held::Received(handle) => handle.claim(),
    })
}

/// How the bytes of a message name handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Carries {
    /// There is no message of a typed channel.
    #[default]
    Nothing,
    /// By numbers.
    Numbers,
    /// By extension types of MessagePack.
    Extensions,
}

impl Carries {
    /// Returns the value for a codec with extension types: a message stays a message.
    #[cfg(feature = "msgpack")]
    #[inline(always)]
    fn by_extensions(self) -> Self {
        match self {
            Self::Nothing => Self::Nothing,
            Self::Numbers | Self::Extensions => Self::Extensions,
        }
    }
}

/// The reusable memory of a thread, and the message in progress. Each field is a cell, and empty for a message without
/// handles, so that such a message costs a few stores.
struct Scratch {
    window: Cell<Option<Window>>,
    message: Cell<Option<Box<Message>>>,
    /// How the message being encoded names handles.
    encodes: Cell<Carries>,
    outbound: Cell<Option<Box<Outbound>>>,
    /// How the message being decoded names handles.
    decodes: Cell<Carries>,
    inbound: Cell<Option<Box<Inbound>>>,
}

thread_local! {
    static SCRATCH: Scratch = const { Scratch::new() };
}

/// Calls `work` with the scratch of this thread. Returns `None` while the thread ends, when there is none.
#[inline(always)]
fn with<T>(work: impl FnOnce(&Scratch) -> T) -> Option<T> {
    SCRATCH.try_with(work).ok()
}

impl Scratch {
    const fn new() -> Self {
        Self {
            window: Cell::new(None),
            message: Cell::new(None),
            encodes: Cell::new(Carries::Nothing),
            outbound: Cell::new(None),
            decodes: Cell::new(Carries::Nothing),
            inbound: Cell::new(None),
        }
    }
}

/// Takes the window of this thread; a nested call gets a new window.
#[inline]
pub(crate) fn take_window() -> Window {
    with(|scratch| scratch.window.take()).flatten().unwrap_or_else(new_window)
}

/// Gives the window back for the next message.
#[inline]
pub(crate) fn keep_window(window: Window) {
    with(|scratch| replace(&scratch.window, window));
}

/// Puts memory into a cell. The cell is empty, unless a nested call has put other memory there.
#[inline(always)]
fn replace<T>(cell: &Cell<Option<Box<T>>>, memory: Box<T>) {
    match cell.replace(Some(memory)) {
        None => {}
        Some(other) => drop_memory(other),
    }
}

#[cold]
#[inline(never)]
fn drop_memory<T>(memory: Box<T>) {
    drop(memory);
}

/// The message of this thread, for the lifetime of this value. Dropping the value closes the handles still in the
/// message.
pub(crate) struct Lent(Option<Box<Message>>);

impl Lent {
    /// Takes the message of this thread; a nested call gets a new message.
    #[inline(always)]
    pub(crate) fn take() -> Self {
        Self(Some(with(|scratch| scratch.message.take()).flatten().unwrap_or_default()))
    }

    #[inline(always)]
    pub(crate) fn message(&mut self) -> &mut Message {
        self.0.get_or_insert_default()
    }

    /// Gives back a message of bytes alone, as dropping this value does. The compiler does not inline a drop.
    #[inline(always)]
    pub(crate) fn give_back(mut self) {
        self.put_back();
        std::mem::forget(self);
    }

    /// Puts the message back for the next receive, unless it is large.
    #[inline(always)]
    fn put_back(&mut self) {
        if let Some(message) = self.0.take()
            && (message.bytes().len() <= SMALL || is_reusable(message.bytes()))
        {
            with(|scratch| replace(&scratch.message, message));
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.message().has_only_bytes() {
            self.message().clear();
        }
        self.put_back();
    }
}

/// Returns whether large memory is kept for the next message. A message sealed by its sender lies in separate memory,
/// at a page boundary, and is not kept: it would hold a descriptor.
#[cold]
fn is_reusable(bytes: &[u8]) -> bool {
    bytes.len() <= KEPT && !(bytes.as_ptr() as usize).is_multiple_of(PAGE)
}

/// The handles of a message being encoded.
#[derive(Default)]
pub(crate) struct Outbound {
    slots: Vec<Slot>,
    handles: Vec<Handle>,
    /// Why a handle could not be encoded. Some codecs lose the text of an error, so it is kept here.
    pub(crate) problem: Option<&'static str>,
}

impl Outbound {
    /// Takes the handles out, for the send.
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
    /// If the message was not encoded, puts the handles back that were not taken.
    fn drop(&mut self) {
        let handles = self.take_handles();
        self.give_back(handles);
    }
}

/// A message being encoded by this thread. Dropping the value, also by a panic, gives the handles back.
pub(crate) struct Encoding {
    encodes: Carries,
    outer: Option<Box<Outbound>>,
}

impl Encoding {
    /// Begins a message: handles serialized from now on belong to this message.
    #[inline(always)]
    pub(crate) fn begin() -> Self {
        let outer = with(|scratch| (scratch.encodes.replace(Carries::Numbers), scratch.outbound.take()));
        let (encodes, outer) = outer.unwrap_or_default();
        Self { encodes, outer }
    }

    /// Ends the message and returns its handles; `None` if there are none.
    #[inline(always)]
    pub(crate) fn end(self) -> Option<Box<Outbound>> {
        with(|scratch| scratch.outbound.take()).flatten()
    }
}

impl Drop for Encoding {
    #[inline(always)]
    fn drop(&mut self) {
        let outer = self.outer.take();
        with(|scratch| {
            scratch.encodes.set(self.encodes);
            // Gives back the handles of a message that has not ended.
            match scratch.outbound.replace(outer) {
                None => {}
                Some(outbound) => drop_memory(outbound),
            }
        });
    }
}

/// Moves the handle out of `slot` into the message being encoded by this thread. Returns the handle's index in the
/// message.
pub(crate) fn send_handle(slot: &Slot) -> Result<u32, &'static str> {
    with(|scratch| {
        if scratch.encodes.get() == Carries::Nothing {
            return Err(NO_SEND);
        }
        let mut outbound = scratch.outbound.take().unwrap_or_default();
        let index = outbound.handles.len() as u32;
        let taken = exchange(slot, None);
        match taken {
            Some(handle) => {
                outbound.slots.push(slot.clone());
                outbound.handles.push(handle);
            }
            None => outbound.problem = Some("a handle of the value was sent already"),
        }
        let problem = outbound.problem;
        scratch.outbound.set(Some(outbound));
        problem.map_or(Ok(index), Err)
    })
    .unwrap_or(Err(NO_SEND))
}

/// The handles of a message being decoded.
#[derive(Default)]
pub(crate) struct Inbound {
    handles: Vec<Option<UnclaimedHandle>>,
    /// Why a handle could not be decoded. Some codecs lose the text of an error, so it is kept here.
    pub(crate) problem: Option<&'static str>,
}

impl Inbound {
    #[cold]
    fn of(handles: Vec<UnclaimedHandle>) -> Box<Self> {
        Box::new(Self { handles: handles.into_iter().map(Some).collect(), problem: None })
    }

    /// Returns whether handles are left that no field of the value has taken.
    pub(crate) fn has_surplus(&self) -> bool {
        self.handles.iter().any(Option::is_some)
    }

    /// Takes the handle with the given index, if `is_kind` accepts the handle.
    fn take(&mut self, index: u32, is_kind: impl FnOnce(&Handle) -> bool) -> Result<UnclaimedHandle, &'static str> {
        let place = usize::try_from(index).ok().and_then(|index| self.handles.get_mut(index));
        let place = place.ok_or("the index of a handle is out of range")?;
        let handle = place.as_ref().ok_or("a handle is used twice")?;
        if !is_kind(handle) {
            return Err("a handle is of another kind than its field");
        }
        place.take().ok_or("a handle is used twice")
    }
}

/// A message being decoded by this thread. Dropping the value, also by a panic, closes the handles that were not taken.
pub(crate) struct Decoding {
    decodes: Carries,
    outer: Option<Box<Inbound>>,
}

impl Decoding {
    /// Begins a message with the given handles, for the values deserialized from now on.
    #[inline(always)]
    pub(crate) fn begin(handles: Vec<UnclaimedHandle>) -> Self {
        Self::begin_with(if handles.is_empty() { None } else { Some(Inbound::of(handles)) })
    }

    /// Begins a message without handles.
    #[inline(always)]
    pub(crate) fn begin_without_handles() -> Self {
        Self::begin_with(None)
    }

    #[inline(always)]
    fn begin_with(inbound: Option<Box<Inbound>>) -> Self {
        let outer = with(|scratch| (scratch.decodes.replace(Carries::Numbers), scratch.inbound.replace(inbound)));
        let (decodes, outer) = outer.unwrap_or_default();
        Self { decodes, outer }
    }

    /// Returns why the message could not be decoded, if the codec has failed with `malformed`.
    #[cold]
    pub(crate) fn explain(self, malformed: Malformed) -> Malformed {
        match self.end().and_then(|inbound| inbound.problem) {
            Some(problem) => Malformed::new(malformed.at, problem),
            None => malformed,
        }
    }

    /// Ends the message and returns the remaining handles; `None` if the message had no handles and needed none.
    #[inline(always)]
    pub(crate) fn end(self) -> Option<Box<Inbound>> {
        with(|scratch| scratch.inbound.take()).flatten()
    }

    /// Ends the message, as dropping this value does. The compiler does not inline a drop.
    #[inline(always)]
    pub(crate) fn finish(mut self) {
        self.restore::<false>();
        std::mem::forget(self);
    }

    /// Restores the state of the outer message, during which this message was decoded. The parameter makes two
    /// functions, so that the compiler inlines the function that is called once for each message.
    #[inline(always)]
    fn restore<const DROPS: bool>(&mut self) {
        let outer = self.outer.take();
        with(|scratch| {
            scratch.decodes.set(self.decodes);
            // Closes the handles of a message that has not ended.
            match scratch.inbound.replace(outer) {
                None => {}
                Some(inbound) => drop_memory(inbound),
            }
        });
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        self.restore::<true>();
    }
}

/// Takes the handle with the given index out of the message being decoded by this thread, if `is_kind` accepts the
/// handle.
pub(crate) fn receive_handle(
    index: u32,
    is_kind: impl FnOnce(&Handle) -> bool,
) -> Result<UnclaimedHandle, &'static str> {
    with(|scratch| {
        if scratch.decodes.get() == Carries::Nothing {
            return Err(NO_RECEIVE);
        }
        let mut inbound = scratch.inbound.take().unwrap_or_default();
        let handle = inbound.take(index, is_kind);
        inbound.problem = handle.as_ref().err().copied().or(inbound.problem);
        scratch.inbound.set(Some(inbound));
        handle
    })
    .unwrap_or(Err(NO_RECEIVE))
}

/// Makes the message being encoded by this thread, if any, name handles by extension types.
#[cfg(feature = "msgpack")]
#[inline(always)]
pub(crate) fn encode_extensions() {
    with(|scratch| scratch.encodes.set(scratch.encodes.get().by_extensions()));
}

/// Makes the message being decoded by this thread, if any, name handles by extension types.
#[cfg(feature = "msgpack")]
#[inline(always)]
pub(crate) fn decode_extensions() {
    with(|scratch| scratch.decodes.set(scratch.decodes.get().by_extensions()));
}

/// Returns how the message being encoded by this thread names handles.
pub(crate) fn encodes() -> Carries {
    with(|scratch| scratch.encodes.get()).unwrap_or_default()
}

/// Returns how the message being decoded by this thread names handles.
pub(crate) fn decodes() -> Carries {
    with(|scratch| scratch.decodes.get()).unwrap_or_default()
}
