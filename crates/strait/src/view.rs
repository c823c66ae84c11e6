//! Views: messages written or read in place, without a copy.
//!
//! ```
//! use strait::{Channel, Deadline};
//!
//! let (a, b) = Channel::pair()?;
//! let mut place = a.reserve(1 << 20, Deadline::NEVER)?;
//! place.write_at(b"first", 0);
//! place.commit()?;
//! let mut view = b.recv_in_place(Deadline::NEVER)?;
//! let mut first = [0; 5];
//! view.read_at(&mut first, 0);
//! assert_eq!(&first, b"first");
//! # Ok::<(), strait::Error>(())
//! ```
//!
//! [`Channel`](crate::Channel) makes the views: `reserve` a [`Reservation`], `reserve_sealed` a [`SealedReservation`],
//! `draft` a [`Draft`] (a message that grows), `recv_in_place` an [`InPlace`]. A [`Value`] is an object: a receiver in
//! this process gets the object itself, a receiver in another process gets bytes.

pub use crate::channel::{Draft, InPlace, Reservation, SealedReservation, Value, ValueError};
