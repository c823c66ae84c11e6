//! Tests of the notification area: under the model checker, and with arbitrary input.

mod model;
mod properties;
