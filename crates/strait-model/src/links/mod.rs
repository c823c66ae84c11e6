//! A model of the rules for links: the identity of the peer, the makers of the socket, the lanes on a link, and the
//! end of a link.
//!
//! The rules stand in `docs/maintainers/links.md`, each with its reason. The library does not follow them yet. The
//! model is a program of its own; it shares only the model checker with the model of moving ends. IDLE, FORGET and
//! RELEASED are packets of these rules.
//!
//! # Objects
//!
//! - Four **processes**: V and H, an honest introducer B, and a hostile process A. The number of a process stands for
//!   the identity that the kernel reports.
//! - **Sockets**, with two halves. A half is with a process, in a packet, or closed. For each socket the model also
//!   notes the hostile processes that hold a copy, which no honest process can know.
//! - A **link** is a half as one process knows it: its origin (direct, introduced, foreign), the peer, the makers,
//!   the bound lanes, whether an introducer may still name the link, and the state of IDLE.
//! - **Lanes**, each with the processes that may harm the lane (*blame*): the processes of both ends, the source of the
//!   move, and the makers.
//! - **Entries** of an introducer's table, each for one socket pair made by the introducer.
//!
//! A step is one packet received, or one decision of a process. The packets on one socket keep their order; every other
//! order is explored. A process may die between any two steps. The hostile process does only what the configuration
//! lists, each attack at most once, at any moment.
//!
//! # Where it is
//!
//! | module | what |
//! |---|---|
//! | [`state`] | processes, sockets, links, lanes, tables |
//! | [`action`] | the steps that can happen next |
//! | `steps` | the effect of each step |
//! | [`properties`] | the properties |
//! | [`breakage`] | deliberate errors; the tests show that the model finds each |
//! | [`configuration`], [`catalogue`] | bounds, and the configurations below |
//! | [`met`] | the situations that came about in a run |
//! | [`explore`] | the search |
//!
//! # Left out
//!
//! - Messages, and the steps of a move: here a move is a new lane, announced to both processes, and then a commit.
//!   The processes close the ends of the old lane. The model of moving ends has the rest.
//! - Full sockets, limits and charges.
//! - A connect that gives up before the answer; policies and tokens of a listener.
//! - Exec images and copies of the library within one process, distinguished by the random name.
//! - More than one hostile process, and hostile processes at the two ends of a lane (that lane may be harmed anyway).
//! - The planned option `trust_introducers`.
//!
//! # The configurations
//!
//! `cargo test -p strait-model --test links` explores the first table, in seconds; `cargo test -p strait-model --test
//! links -- --ignored` explores the second, in minutes.
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
//! | an introduced process introduces in its turn | 6 766 |
//! | an introduced process introduces in its turn, a death | 42 619 |
//! | an introducer has two links to one process | 15 990 |
//! | an introducer needs its link for nothing else | 88 885 |
//! | A claims a name | 242 |
//! | A names a process that is elsewhere | 3 254 |
//! | A announces a lane to one side | 874 |
//! | A forges FORGET | 42 920 |
//! | A forges RELEASED | 38 628 |
//! | yourself, and a false one | 761 |
//!
//! | larger bounds | states |
//! |---|--:|
//! | in its turn, a packet, two deaths | 367 191 |
//! | three lanes on a direct link, 2 packets, a death | 1 089 855 |
//! | three introductions, a packet | 1 149 480 |
//! | two introductions, 2 packets, two deaths | 1 147 560 |
//! | connects, twice both ways | 1 832 142 |
//! | connects, both ways, 2 packets, a death | 402 739 |
//! | connects, both ways, and a lane opened | 1 279 519 |
//! | connects beside an introduction | 1 622 226 |
//! | A hands its connection on, connects both ways | 342 750 |
//! | A has a copy of a listener, connects both ways | 342 750 |
//! | two ways; A swaps and shuts down | 251 678 |
//! | two introducers; A shuts down, a death | 666 450 |

pub mod action;
pub mod breakage;
pub mod catalogue;
pub mod configuration;
pub mod explore;
pub mod met;
pub mod properties;
pub mod state;
mod steps;
