//! The board under the model checker, and with any input.

mod model;
mod properties;
