//! Messages written or read in place, without a copy.
//!
//! [`reserve`] writes a message of known length into the memory from which it is sent, and [`draft`] builds a message
//! that grows. [`in_place`] reads a message in the memory where it arrived, and [`forward`] sends a received message
//! on. [`values`] sends objects within the process.

mod draft;
mod forward;
pub(super) mod in_place;
pub(super) mod reserve;
pub(super) mod values;

pub use draft::Draft;
pub use in_place::{InPlace, recv_in_place};
pub use reserve::{Reservation, SealedReservation, reserve, reserve_sealed};
