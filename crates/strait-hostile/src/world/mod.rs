//! A hostile world has four processes: a victim that uses every public call of the library; an attacker that has the
//! other end of the victim's socket and the shared memory, and draws each step at random; a bystander, an honest peer
//! of the victim; and a controller that checks from outside that the library keeps its promises.
//!
//! The choices of a seed are equal in each run. The processes of a round write their steps into [trails](ledger),
//! which the controller prints when a check fails.

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
