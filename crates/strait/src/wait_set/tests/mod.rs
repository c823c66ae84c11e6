//! Wait sets under the model checker.

mod model;
