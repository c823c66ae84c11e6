//! A hostile world: a victim that uses every public call of the library, an attacker that has its socket and its memory and
//! draws each step at random, an honest peer of the same victim, and a controller that looks from outside whether the
//! promises are kept.
//!
//! A seed makes the same choices in each run. What the processes of a round do is in their [trails](ledger), which the
//! controller prints when something is wrong.

pub mod attacker;
pub mod choices;
pub mod controller;
pub mod descriptors;
pub mod donors;
pub mod ledger;
pub mod plan;
pub mod roles;
pub mod victim;
pub mod within;

pub use choices::Choices;
