//! Wait sets under the model checker, and members at the edge of their life.

mod members;
mod model;
