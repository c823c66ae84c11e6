//! A model of the rules for links: who is at the other end, who made the socket, which lanes may use it, and when it is
//! closed.
//!
//! The rules stand in `docs/links.md`, with the reason for each. The library does not follow them yet. The model is a
//! program of its own; it shares only the model checker with the model of moving ends.
//!
//! # What there is
//!
//! - Four **processes**: V and H, an honest introducer B, and a hostile process A. The number of a process stands for the
//!   identity that the kernel reports.
//! - **Sockets**, with two halves. A half is with a process, in a packet, or closed. For each socket the model also notes
//!   what no process can know: the hostile processes that hold a copy.
//! - A **link** is what one process knows of its half: its origin (direct, introduced, foreign), the peer, the makers, the
//!   lanes bound to it, whether an introducer may still name it, and the state of IDLE.
//! - **Lanes**, each with the processes that may harm it (*blame*): its two ends' processes, its mover, its makers.
//! - **Entries** of an introducer's table, each for one socket pair that it made.
//!
//! A step is one packet received, or one decision of a process. The packets on one socket keep their order; every other
//! order is explored. A process may die between any two steps. The hostile process does only what the configuration
//! lists, each attack at most once, at any moment.
//!
//! # Where it is
//!
//! | module | what |
//! |---|---|
//! | [`state`] | what there is |
//! | [`action`] | what can happen next |
//! | `steps` | what it does |
//! | [`properties`] | what must hold |
//! | [`breakage`] | mistakes, which the tests show to be found |
//! | [`configuration`], [`catalogue`] | bounds, and the configurations below |
//! | [`met`] | what came about in a run |
//! | [`explore`] | the search |
//!
//! # What is left out
//!
//! - The messages and the move of an end: a move is here a new lane, told to both processes, then a commit; the ends of
//!   the old lane are closed by their processes. The model of moving ends has the rest.
//! - Full sockets, limits and charges.
//! - A connect that gives up before its answer came; policies and tokens of a listener.
//! - Exec images and copies of the library within one process, which the random name tells apart.
//! - More than one hostile process, and hostile processes at the two ends of a lane (such a lane may be harmed anyway).
//! - `trust_introducers`.
//!
//! # The configurations
//!
//! These are explored by `cargo test -p strait-model --test links`, in seconds.
//!
//! | configuration | states |
//! |---|--:|
//! | lanes on a direct link | 51 151 |
//! | lanes on a direct link, a death | 14 307 |
//! | two introductions | 27 384 |
//! | two introductions, a death | 29 001 |
//! | an introduction, a packet, two deaths | 4 176 |
//! | connects, both ways | 43 131 |
//! | connects, twice one way, a death | 7 076 |
//! | an honest and a hostile introducer; A shuts down | 51 213 |
//! | B's link to V was made by A, too; A shuts down | 93 828 |
//! | A swaps a half | 466 |
//! | A agrees in another's place | 70 975 |
//! | A hands its connection on | 1 561 |
//! | A has a copy of a listener | 1 561 |
//! | an introduced process introduces in its turn | 7 155 |
//! | an introduced process introduces in its turn, a death | 46 266 |
//! | A claims a name | 242 |
//! | A names a process that is elsewhere | 3 254 |
//! | A announces a lane to one side | 874 |
//! | A forges FORGET | 42 920 |
//! | A forges RELEASED | 38 628 |
//! | yourself, and a false one | 761 |

pub mod action;
pub mod breakage;
pub mod catalogue;
pub mod configuration;
pub mod explore;
pub mod met;
pub mod properties;
pub mod state;
mod steps;
