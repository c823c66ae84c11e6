//! Tests of the ring: under the model checker, and with arbitrary input.

pub(crate) mod harness;
mod model;
mod moving;
mod properties;
mod table;
