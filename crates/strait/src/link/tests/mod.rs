//! Links while other threads are at certain steps.

mod held;
