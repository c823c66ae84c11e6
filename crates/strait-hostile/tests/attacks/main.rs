//! One test for each attack that a peer can try, named after its number in `docs/attacks.md`.
//!
//! Each runs in a process of its own, so that its descriptors, limits and mappings are nobody else's, and a crash or an
//! endless loop is the failure of one test. The victim is the library, by its public interface; the attacker is
//! [`RawPeer`](strait_hostile::RawPeer). A [`Bystander`](common::Bystander) is another channel of the victim's process,
//! which must notice nothing.

mod common;

mod closing;
mod descriptors;
mod ends;
mod memory;
mod names;
mod pipes;
mod records;
mod regions;
mod sandbox;
mod sockets;
mod waiting;
