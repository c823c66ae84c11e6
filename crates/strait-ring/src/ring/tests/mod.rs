//! Tests of the ring: under the model checker, and with arbitrary input.

pub mod harness;
#[cfg(test)]
mod model;
#[cfg(test)]
mod moving;
#[cfg(test)]
mod properties;
mod table;
