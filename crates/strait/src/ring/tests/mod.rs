//! The ring under the model checker, and with any input.

pub(crate) mod harness;
mod model;
mod moving;
mod properties;
mod table;
