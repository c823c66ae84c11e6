//! The model of call ends, for the model checker.

mod model;
