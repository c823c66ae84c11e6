//! Views that own themselves: they hold their channel or data pipe by an [`Arc`], and have no lifetime.
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
//! A [`Reservation`](crate::view::Reservation) and the other views borrow the end that they belong to, so that the
//! compiler keeps the end from being closed or sent meanwhile. Where a borrow cannot be held, in a struct or in a
//! binding to another language, a function whose name ends with `_owned` makes the view from an `Arc` of the end. The
//! two forms are one type: the second parameter says what keeps the end, nothing (`()`) for a borrow, or the `Arc`.
//! They have the same methods.
//!
//! While an owned view exists, its end stays open, even if the program drops all other references to it. To send the
//! end in a message the program takes it out of the `Arc` ([`Arc::into_inner`]), which is not possible before the view
//! is dropped.
//!
//! An owned view costs what the borrowed one costs, and a change of the `Arc`'s count.

use std::sync::Arc;

use crate::Channel;
use crate::pipe::{DataConsumer, DataProducer};

/// Room for a message, made by [`Channel::reserve_owned`].
pub type Reservation = crate::view::Reservation<'static, Arc<Channel>>;

/// Memory for a message that is sealed when it is sent, made by [`Channel::reserve_sealed_owned`].
pub type SealedReservation = crate::view::SealedReservation<'static, Arc<Channel>>;

/// A view of a received message, made by [`Channel::recv_in_place_owned`].
pub type InPlace = crate::view::InPlace<'static, Arc<Channel>>;

/// A message under construction, made by [`Channel::draft_owned`].
pub type Draft = crate::view::Draft<'static, Arc<Channel>>;

/// Free room in a data pipe, made by [`DataProducer::begin_write_owned`].
pub type Room = crate::pipe::Room<'static, Arc<DataProducer>>;

/// Unread bytes of a data pipe, made by [`DataConsumer::begin_read_owned`].
pub type Unread = crate::pipe::Unread<'static, Arc<DataConsumer>>;
