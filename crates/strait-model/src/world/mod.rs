//! Worlds of processes that run the machines of links: [`strait_proto::links`], the planned protocol.
//!
//! The rules stand in `docs/maintainers/links.md`, each with a reason. This module has no protocol of its own, only the
//! surroundings of the machines: the kernel (sockets, the order of packets and the room for packets, deaths), the
//! users, and a hostile process.
//!
//! # Objects
//!
//! - Up to five **processes**: V and H, an introducer B, a second introducer C, and the hostile process A. Each honest
//!   process has a [`Links`](strait_proto::links::Links).
//! - **Sockets** with two halves. A half is with a process, in a packet, or closed. For each socket the world notes
//!   whether A has a copy, which no honest process can know.
//! - **Lanes**, each with the processes that may harm the lane (*blame*): its two processes, the source of its move,
//!   and its makers.
//!
//! A step is one packet received, one step owed by a machine, or one decision of a user. The packets on one socket
//! keep their order. A process may die between any two steps. An owed step may fail any number of times: the world
//! does it later. A socket has room for a few packets only. A user calls off introductions at any step, and gives up
//! connects. A may send any packet on its sockets and on sockets with a copy in A, close them, take out the halves in
//! them, introduce, connect, and listen. A knows every lane that A may harm anyway.
//!
//! Two ways to run it: [`properties::explore`] visits every state of a small [configuration](catalogue), and
//! [`random::run`] walks through a large one, some 240 to 480 steps, drawn from a seed. The program `links` does that
//! for many seeds, and prints which pairs of a state and an input came about ([`coverage`]).
//!
//! # Where it is
//!
//! | module | what |
//! |---|---|
//! | [`state`] | processes, sockets, lanes |
//! | [`action`] | the steps that can happen next |
//! | [`act`] | the effect of each step |
//! | [`properties`] | the properties |
//! | [`configuration`], [`catalogue`] | bounds, and the configurations below |
//! | [`random`] | random walks |
//! | [`coverage`] | the pairs of a state and an input; why some never come about |
//!
//! # Left out
//!
//! - Messages, and the steps of a move: here a move is a new lane, announced to both processes, and then a commit.
//!   The model of moving ends has the rest.
//! - Limits, charges, and the payer.
//! - Policies and tokens of a listener.
//! - Exec images and copies of the library within one process, but for A, which claims any name.
//! - More than one hostile process.
//! - Several threads of one process: a step is atomic within its process.
//!
//! # The configurations
//!
//! `cargo test -p strait-model --test world` explores the first table in some ten seconds; with `-- --ignored` also
//! the second.
//!
//! | configuration | states |
//! |---|--:|
//! | lanes on a direct link, a death | 19 089 |
//! | an introduction, room for one packet | 653 |
//! | two introductions | 15 681 |
//! | an introduction, a packet, two deaths | 5 825 |
//! | connects, both ways | 3 065 |
//! | connects, twice one way | 5 465 |
//! | connects, one way, a death | 541 |
//! | A can copy one of B's links to V | 413 |
//! | A swaps a half | 872 |
//! | A hands its connection on | 886 |
//! | A has a copy of a listener | 1 744 |
//! | A names a process that is elsewhere | 9 477 |
//! | A names itself, and gives the half to H | 7 200 |
//! | A hands the socket of its parent down | 2 425 |
//! | A takes the socket of a child | 4 659 |
//! | A announces a lane to one side | 1 012 |
//! | A forges RELEASED | 621 |
//! | A forges FORGET | 621 |
//! | A connects to V, and answers a connect of V | 655 |
//! | yourself, and a false one | 800 |
//! | an introduced process introduces | 16 287 |
//!
//! | larger bounds | states |
//! |---|--:|
//! | lanes on a direct link | 88 801 |
//! | two introductions, one is called off | 49 384 |

pub mod act;
pub mod action;
pub mod catalogue;
pub mod configuration;
pub mod coverage;
pub mod properties;
pub mod random;
pub mod state;
