//! Waiting for many channels, listeners and descriptors at once: wait sets, one-shot traps, and a dispatcher for
//! handlers bound to one thread.
//!
//! ```
//! use strait::{Channel, Deadline};
//! use strait::wait::{Interest, Mode, WaitSet};
//!
//! let set = WaitSet::new()?;
//! let (theirs, ours) = Channel::pair()?;
//! set.add(&ours, 7, Interest::Readable, Mode::Level)?;
//! theirs.send(b"hello")?;
//! let mut events = Vec::new();
//! set.wait(&mut events, Deadline::NEVER)?;
//! assert_eq!(events[0].key(), 7);
//! assert_eq!(ours.try_recv()?.bytes(), b"hello");
//! # Ok::<(), strait::Error>(())
//! ```
//!
//! A [`WaitSet`] has a descriptor, so an event loop can wait for the wait set beside other descriptors. [`Traps`] call
//! a handler once when a condition is met. A [`Dispatcher`] calls handlers in the thread that made the dispatcher.

pub use crate::channel::Conditions;
pub use crate::dispatcher::{Dispatched, Dispatcher, Pump};
pub use crate::trap::{NotArmed, Reason, Sprung, TrapId, Traps};
pub use crate::wait_set::{Event, Fd, Interest, Mode, Source, WaitSet};
