//! The counters of a data pipe under the model checker, and with any input.

mod model;
mod properties;
