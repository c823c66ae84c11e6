//! Calls under the model checker.

mod model;
