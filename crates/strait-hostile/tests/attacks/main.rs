//! One test for each attack that a peer can try, named by the number of the attack in `docs/maintainers/attacks.md`.
//!
//! Each test runs in a process of its own. So it shares no descriptors, limits and mappings with other tests, and a
//! crash or an endless loop fails only one test. The victim uses the library by its public interface; the attacker is
//! a [`RawPeer`](strait_hostile::RawPeer). A [`Bystander`](common::Bystander) is another channel of the victim's
//! process, which the attack must not disturb.

mod common;

mod closing;
mod descriptors;
mod ends;
mod introductions;
mod memory;
mod names;
mod pipes;
mod records;
mod regions;
mod sandbox;
mod sockets;
mod standstill;
mod tables;
mod waiting;
