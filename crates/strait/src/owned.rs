//! Owned views: each holds its channel or data pipe by an [`Arc`], and no lifetime binds it.
//!
//! ```
//! use std::sync::Arc;
//! use strait::{Channel, Deadline, owned};
//!
//! /// A message that a struct, another thread or another language holds.
//! struct Frame {
//!     room: owned::Reservation,
//! }
//!
//! let (near, far) = Channel::pair()?;
//! let near = Arc::new(near);
//! let mut frame = Frame { room: near.clone().reserve_owned(5, Deadline::NEVER)? };
//! frame.room.write_at(b"frame", 0);
//! std::thread::spawn(move || frame.room.commit()).join().unwrap()?;
//! assert_eq!(far.recv()?.bytes(), b"frame");
//! # Ok::<(), strait::Error>(())
//! ```
//!
//! A [`Reservation`](crate::view::Reservation) and the other views borrow their end: the compiler keeps the end from
//! being closed or sent meanwhile. Where a borrow cannot be held, in a struct or in a binding to another language, a
//! function whose name ends with `_owned` makes the view from an `Arc` of the end. Both forms are one type with the
//! same methods. The second type parameter holds the end: nothing (`()`) for a borrow, or the `Arc`.
//!
//! While an owned view exists, its end stays open, even if the program drops all other references to the end. To send
//! the end in a message, the program takes the end out of the `Arc` ([`Arc::into_inner`]), which is possible only after
//! the view was dropped.
//!
//! [Halves](crate::Channel::split) have no owned views. A call of a half needs the half for itself (`&mut self`), since
//! it takes no lock; an `Arc` gives only shared access. A program that needs owned views keeps the channel whole.
//!
//! An owned view costs as much as a borrowed view, plus a change of the `Arc`'s count.

use std::sync::Arc;

use crate::Channel;
use crate::pipe::{DataConsumer, DataProducer};

/// Room for a message, made by [`Channel::reserve_owned`].
///
/// Example: [an owned view](crate::owned).
pub type Reservation = crate::view::Reservation<'static, Arc<Channel>>;

/// Memory for a message that is sealed when sent, made by [`Channel::reserve_sealed_owned`].
///
/// Example: [an owned view](crate::owned).
pub type SealedReservation = crate::view::SealedReservation<'static, Arc<Channel>>;

/// A view of a received message, made by [`Channel::recv_in_place_owned`].
///
/// Example: [an owned view](crate::owned).
pub type InPlace = crate::view::InPlace<'static, Arc<Channel>>;

/// A message under construction, made by [`Channel::draft_owned`].
///
/// Example: [an owned view](crate::owned).
pub type Draft = crate::view::Draft<'static, Arc<Channel>>;

/// Free room in a data pipe, made by [`DataProducer::begin_write_owned`].
///
/// Example: [an owned view](crate::owned).
pub type Room = crate::pipe::Room<'static, Arc<DataProducer>>;

/// Unread bytes of a data pipe, made by [`DataConsumer::begin_read_owned`].
///
/// Example: [an owned view](crate::owned).
pub type Unread = crate::pipe::Unread<'static, Arc<DataConsumer>>;
