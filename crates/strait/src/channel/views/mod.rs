//! Messages at which the program works where they lie.
//!
//! [`reserve`] is to write a message into the memory it is sent in, and [`draft`] is for messages that grow. [`in_place`] is to read one
//! where it was received, and what was received can be [sent on](forward). What stays within the process need not be bytes
//! ([`values`]).

mod draft;
mod forward;
pub(super) mod in_place;
pub(super) mod reserve;
pub(super) mod values;

pub use draft::Draft;
pub use in_place::InPlace;
pub use reserve::{Reservation, SealedReservation};
