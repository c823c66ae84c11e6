//! Rings: one direction of a channel, in memory that two processes or threads share.

pub mod ring;
