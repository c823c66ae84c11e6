//! Tests of a data pipe's counters: under the model checker, and with arbitrary input.

mod model;
mod properties;
