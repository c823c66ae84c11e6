//! The types of values.

mod array;
mod option;
mod pointer;
mod scalar;
mod text;
mod vector;

pub use vector::Elements;
