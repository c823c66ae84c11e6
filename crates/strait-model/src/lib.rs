//! A model of how channel ends move between processes: every order of steps, with processes that die between any two.
//!
//! The model is a program of its own, not the code that ships. It says what each process may do next, and the model
//! checker [`stateright`] goes through every state that can come about within bounds (a
//! [configuration](configuration::Configuration)). In each it looks at the [`properties`]. If one does not hold, the
//! shortest way there is shown. The ring that ships is checked on its own, with weak memory, in `strait`'s
//! `ring/tests/model.rs`; here every step is atomic and seen by all at once.
//!
//! The module [`links`] is a second model, of rules that are planned: which links two processes have, and when they close.
//!
//! # The protocol
//!
//! A **lane** is two rings, one each way, and a word, the *transfer word*. A ring ends with at most one **seal**, set by
//! compare-and-swap on its first empty header. Publishing is the same compare-and-swap, so nothing is published behind
//! a seal.
//!
//! | seal | by | says |
//! |---|---|---|
//! | *moved(N)*, the mark | its writer | the writer's end has moved: read on in lane N |
//! | *frozen(N)* | its reader | the reader's end has moved: write on in lane N |
//! | *closed* | either | that end is closed |
//!
//! | transfer word | set by | says |
//! |---|---|---|
//! | pending | whoever makes the lane | the move is in progress: the lane is **pending** for the other end |
//! | handed over | the source | the message that carries the end is committed |
//! | claimed | the end's new process | it has taken the end out of its message |
//! | cancelled | the source | the move was called off: the lane joins the other end and the source |
//! | abandoned | the other end | the source died first: both ends see *peer closed* |
//!
//! It changes once from *pending*, and once more from *handed over* to *claimed*; always by compare-and-swap. For the
//! other end, its peer is the source (*pending*, *cancelled*), or the end's new process (*handed over*, *claimed*), and their
//! link is the one whose hang-up counts.
//!
//! Process A sends end *a* through its end *x* of another channel, whose other end is in process C:
//!
//! 1. **Make.** Neither lane of *a* may be pending, nor the one that *x* writes in; or the send would block. Lane N is
//!    made for the process of *b*, the other end, and C, and both are told of it.
//! 2. **Mark.** *Moved(N)* into the ring that *a* writes. If that was frozen, *b* has moved: follow, and begin again.
//! 3. **Drain.** Everything unread goes into *a*'s backlog. At the first empty header: *frozen(N)*. If *b*'s mark comes
//!    instead: on an older lane than that of *a*'s mark, follow it; on the same lane, both move at once, and the end on
//!    side 0 has won and is done. The other takes the winner's lane, keeps its backlog and begins again.
//! 4. **Ends in the backlog** are claimed and go through 1 to 3 themselves, for C: their lanes lead to A.
//! 5. **Commit** the message in *x*, with *a* and its backlog. If *x* is frozen or closed, or a socket is full, or an
//!    end in the backlog cannot be moved now: each lane made so far is *cancelled*, and the send would block (or, if *x* has
//!    no other end any more, *a* is closed).
//! 6. **Hand over**: each new lane is *handed over*, and *b*, if it sleeps as pending, woken.
//!
//! *b* reads on in N when it comes to the mark, and writes on in N when it finds its ring frozen, whichever is first.
//! It may publish there at once, but it can neither be sent nor carry an end while N is pending. C, when it receives
//! *a* (or drops it), sets *claimed*, or finds *abandoned*: then the backlog can be read, and *peer closed* follows.
//! That a link is down is looked at only behind the last record, and behind the seal of the ring that one writes.
//!
//! Who **sleeps** says so in a word of the ring: *plain*, and sleeps on the link to its peer; or *via*, if the lane is
//! pending, and sleeps on the link to the source. Then it looks once more at the ring and at the transfer word. Whoever has
//! published takes the word if it is *plain*, only then looks at the transfer word to see who the peer is, and wakes it. *Relayed*
//! it leaves: the source takes it, by compare-and-swap, after *handed over* or *cancelled*, in both rings; or its death wakes the
//! sleeper. A writer that waits for room has a word of its own, and freezing or closing a ring wakes it too.
//!
//! # Two channels are fused
//!
//! Process F has the near ends of A–b and c–D. It holds both far ends by moving b and c within itself and not handing over,
//! which are moves as above; the model begins there. Then it takes what A wrote and freezes its ring, the same with D, each
//! towards lane N; commits for each what the other one wrote, and marks behind that where it reads on, in N; and hands
//! N over. N is pending for both, and both sides of it are woken then.
//!
//! An end that is found to be closed or dead before A is frozen needs no N: the other gets what it wrote, and is closed. One that
//! is found so later is stood in for, in N.
//!
//! # Where it is
//!
//! | module | what |
//! |---|---|
//! | [`lane`], [`end`], [`state`] | what there is |
//! | [`action`] | what can happen next; which of it somebody may rely on |
//! | `steps` | what it does: writing, receiving, moving, fusing, closing, sleeping |
//! | [`properties`] | what must hold |
//! | [`breakage`] | mistakes, which the tests show to be found |
//! | [`catalogue`] | the configurations below |
//! | [`met`] | what came about in a run, so that no configuration passes because nothing happened in it |
//! | `tidy` | makes states the same that differ only in the numbers of lanes |
//!
//! A step of the model is one atomic operation on shared memory, with everything that its process does for itself
//! before. So *make* and *mark* are one step (nobody looks for a lane before a mark names it), and so are *drain* and
//! *freeze* (what is read is seen by nobody else); one configuration drains record by record to show that it makes no
//! difference. The sockets are not there: what step 1 sends arrives before the mark that names it, as it does when it
//! is sent first.
//!
//! # What must hold
//!
//! In every state:
//! - messages arrive in order, each once;
//! - *peer closed* comes after everything that was written;
//! - an end is in one place, and on lanes that its process was told of;
//! - a lane is pending only while its source is at work on it or dead. A move can always take its next step, so nobody
//!   ever waits for an idle process, and only the move of an end, or through an end, waits for another's move at all.
//!
//! In every state where nothing more happens unless a user wants something (at rest):
//! - everything that was written has been received, unless its reader is gone;
//! - *peer closed* has been seen where the other end is closed, died, or was in a message that nobody will receive; and
//!   nowhere else;
//! - (an end whose source died between the commit and the hand-over may arrive dead: its backlog is read, then *peer closed*
//!   is seen at both ends, and what the other end had written behind the backlog is gone;)
//! - (of two channels whose fuser died before the hand-over, both far ends see *peer closed*, and what it had drained is gone;)
//! - no operation is in progress, and nobody sleeps with something to read, or with room.
//!
//! # Reading a counter-example
//!
//! It alternates between what is new in the state and the step (`=>`) that follows. Processes are numbers, lanes are
//! `L0`, `L1`, …, and `0a` and `0b` are the ends of channel 0. This is the middle of one, from `cargo test -p
//! strait-model neither -- --nocapture`, where the tie of two moves is not broken:
//!
//! ```text
//! => Send(1, 0b, 2a)                                      process 1 sends 0b through 2a: it makes L4 and marks
//!     process 1: 0b tx L0 rx L0 Moving(through 2a to 2, end 0: Drain(L4, Some(L0)))
//!                                                         0b is on L0; next: drain, for L4; its mark is on L0
//!     L0 joins 0 and 1: [] Moved(L3) | [#0] Moved(L4)     side 0's ring: only a mark; side 1's: message 0, then a mark
//!     L4 joins 0 and 2: [] | [], b moved by 1: Pending  two empty rings; the transfer word
//! => Go(0, 0a, Moving(through 1a to 2, end 0: Drain(L3, Some(L0))))
//!     process 0: 0a tx L3 rx L3 backlog [#0] Moving(through 1a to 2, end 1: Commit)
//! ```
//!
//! # What is left out
//!
//! - Weak memory, and the insides of a ring: see `ring/tests/model.rs` in `strait`.
//! - Hostile processes. All of these keep to the protocol until they die.
//! - Links being made: two processes have one as soon as a lane joins them, and it is down when either is dead. That a
//!   source dies after it has told one process of a link and not the other is not modelled; its lane was named by no
//!   mark.
//! - A lane that was made and came to nothing (a lost race, a move called off) is forgotten here; the process that was
//!   told of it has to be told that.
//! - Descriptors other than ends, sizes, credit; room is one message or without bounds.
//! - A user who goes on trying for ever to send an end whose unread messages hold the other end of the carrier: each
//!   try is called off.
//!
//! # The configurations
//!
//! All are right. The first table is explored by `cargo test`, in half a minute; the second by `cargo test -p
//! strait-model -- --ignored`, in four.
//!
//! | configuration | states |
//! |---|--:|
//! | both ends move, 2 messages each | 8 772 |
//! | the same, drained record by record | 9 544 |
//! | both ends move twice | 181 637 |
//! | a chain of three moves through four processes | 82 324 |
//! | back again, and to the other end's process | 10 287 |
//! | a chain of two moves, the other end moves too | 15 785 |
//! | rings grow while both ends move | 41 080 |
//! | each of two channels carries an end of the other | 68 984 |
//! | the carrier's other end moves | 5 843 |
//! | the carrier's other end moves, and the peer | 51 525 |
//! | both ends move, all three may die | 19 001 |
//! | both ends move or are closed; a full socket, a death | 188 764 |
//! | the carrier is closed at either end, two deaths | 357 746 |
//! | a chain of two moves, the other end moves too, a death | 153 265 |
//! | the carrier's other end moves; a full socket, two deaths | 103 537 |
//! | a busy carrier's other end moves; a full socket, a death | 343 633 |
//! | the other end's reader sleeps | 121 588 |
//! | the moved end's reader sleeps | 41 786 |
//! | both readers sleep | 106 684 |
//! | both ends move, one reader sleeps, a death | 264 444 |
//! | the carrier's other end moves, the peer's reader sleeps | 132 322 |
//! | the other end's writer waits for room | 85 687 |
//! | the other end's writer waits and its reader sleeps | 187 693 |
//! | two channels are fused, 2 messages each | 2 623 |
//! | two are fused, far ends are closed, two deaths | 91 064 |
//! | two are fused, far ends move on | 8 552 |
//! | two are fused, far ends move on, a death | 37 804 |
//! | two are fused, both readers sleep | 678 872 |
//! | two are fused, both writers wait for room | 330 277 |
//!
//! | larger bounds | states |
//! |---|--:|
//! | both ends move twice over any of three channels | 760 449 |
//! | both ends move twice, 2 messages each, two deaths | 1 946 930 |
//! | the carrier's other end moves, and the peer; a full socket, two deaths | 1 499 430 |
//! | the carrier and both ends move twice or are closed, a death | 2 130 056 |
//! | the carrier's other end moves, the peer's reader sleeps, a death | 563 896 |
//! | there and back, the other end's reader sleeps, a death | 1 491 068 |
//! | both ends move, both writers wait for room | 846 163 |
//! | an end moves, either end of it and of the carrier is closed, the other end's reader sleeps; a full socket | 1 639 536 |
//! | an end moves, ends are closed, the other end's writer waits for room; a death | 1 671 277 |
//! | an end moves there and to the other end's process, whose writer waits for room; a full socket, a death | 1 704 156 |
//! | the carrier's other end moves, its reader sleeps; a full socket, a death | 680 513 |
//! | the carrier's other end moves, the end twice, the peer to the process between; a full socket, a death | 2 042 048 |
//! | each of two channels carries an end of the other, one is closed; a full socket, a death | 1 888 257 |
//! | rings grow while both ends move; a full socket, two deaths | 696 345 |
//! | ends in ends in ends | 274 659 |
//! | both ends move twice, a socket is full | 349 993 |
//! | two are fused, both readers sleep, a death | 1 213 096 |
//! | two are fused, a reader sleeps, the other end is closed, two deaths | 1 191 927 |

pub mod action;
pub mod breakage;
pub mod catalogue;
pub mod configuration;
pub mod end;
pub mod explore;
pub mod lane;
pub mod links;
pub mod met;
pub mod properties;
pub mod search;
mod show;
pub mod state;
mod steps;
mod tidy;
