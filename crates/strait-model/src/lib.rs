//! A model of how channel ends move between processes. The model explores every order of steps, with deaths of
//! processes between any two steps.
//!
//! The model is a program of its own, not the code that ships. The model says what each process may do next. The
//! model checker [`stateright`] visits every state within bounds (a [configuration](configuration::Configuration)),
//! and checks the [`properties`] in each state. If a property does not hold, the checker shows a shortest sequence of
//! steps that leads to a violation. The shipped ring has a model of its own, with weak memory, in `strait-ring`'s
//! `src/ring/tests/model.rs`; here every step is atomic, and every process sees the effect of a step at once.
//!
//! The module [`links`] is a second model, of planned rules: which links two processes have, and when the links
//! close. It was written before the machines of [`strait_proto`], and has a protocol of its own. The module [`world`]
//! runs those machines.
//!
//! # The protocol
//!
//! A **lane** is two rings, one each way, and a word, the *transfer word*. Of each ring, one end is the *writer* (the
//! producer) and the other the *reader* (the consumer). A ring ends with at most one **seal**, set by
//! compare-and-swap on the ring's first empty header. Publishing is a compare-and-swap on the same header, so nothing
//! is published behind a seal.
//!
//! | seal | set by | meaning |
//! |---|---|---|
//! | *moved(N)*, the mark | the writer | the writer's end has moved: the reader goes on in lane N |
//! | *frozen(N)* | the reader | the reader's end has moved: the writer goes on in lane N |
//! | *closed* | either | the end that set the seal is closed |
//!
//! | transfer word | set by | meaning |
//! |---|---|---|
//! | pending | the process that makes the lane | the move is in progress: the lane is **pending** for the other end |
//! | handed over | the source | the message that carries the end is committed |
//! | claimed | the end's new process | that process has taken the end out of its message |
//! | cancelled | the source | the move was called off: the lane joins the other end and the source |
//! | abandoned | the other end | the source died before the hand-over: both ends see *peer closed* |
//!
//! The transfer word changes once from *pending*, and once more from *handed over* to *claimed*; always by
//! compare-and-swap. The other end takes the source for its peer while the word is *pending* or *cancelled*, and the
//! end's new process once the word is *handed over* or *claimed*. Only the hang-up of the link to that peer counts.
//!
//! Process A sends end *a* through its end *x* of another channel, whose other end is in process C. The other end of
//! *a* is *b*:
//!
//! 1. **Make.** If a lane of *a* is pending, or the lane in which *x* writes, the send would block. Otherwise A makes
//!    lane N for the process of *b* and for C, and tells both processes of N.
//! 2. **Mark.** A puts *moved(N)* into the ring that *a* writes. If that ring was frozen, *b* has moved: A follows to
//!    the lane that the seal names, and begins again.
//! 3. **Drain.** A reads every unread message into *a*'s backlog. At the first empty header A sets *frozen(N)*. If A
//!    finds *b*'s mark instead on an older lane than that of *a*'s mark, A follows the mark. If both marks are on one
//!    lane, both ends move at once: the end on side 0 has won, and its drain is complete. The other end takes the
//!    winner's lane, keeps its backlog and begins again.
//! 4. **Ends in the backlog** are claimed and go through steps 1 to 3 themselves, for C, because their lanes lead to A.
//! 5. **Commit**: A publishes the message in *x*, with *a* and its backlog. The commit fails if *x* is frozen or
//!    closed, a socket is full, or an end in the backlog cannot be moved now. Then A sets each lane made so far to
//!    *cancelled*, and the send would block. If *x* has no other end any more, *a* is closed instead.
//! 6. **Hand over**: A sets each new lane to *handed over*, and wakes *b* if *b* sleeps relayed (below).
//!
//! If A lacks memory during the drain of *a*, the mark has led *b* to N already. So A keeps *a*, and the send fails.
//! The next call on *a* drains the rest, freezes the ring, continues in N, and sets N to *cancelled*.
//!
//! *b* continues to read in N when it comes to the mark, and to write in N when it finds its ring frozen, whichever
//! is first. *b* may publish in N at once, but while N is pending *b* can neither be sent nor carry an end. When C
//! receives *a* (or drops it), C sets *claimed*, or finds *abandoned*. In the second case the backlog can be read,
//! and *peer closed* follows. An end looks whether a link is down only after the last record, and after it found no
//! seal on the ring that it writes.
//!
//! An end that **sleeps** records that in the sleep word of the ring. The word is *plain* if the end sleeps on the
//! link to its peer. The word is *relayed* ([`Word::Via`](lane::Word::Via)) if the lane is pending, and the end
//! sleeps on the link to the source. Then the end looks once more at the ring and at the transfer word. A process
//! that has published takes a *plain* sleep word. Only then does the process read in the transfer word which process
//! is the peer, and wakes the peer. A *relayed* sleep word stays: the source takes the word by compare-and-swap after
//! *handed over* or *cancelled*, in both rings; or the death of the source wakes the sleeper. A writer that waits for
//! room has a sleep word of its own; freezing or closing a ring wakes the writer too.
//!
//! # Two channels are fused
//!
//! Process F has the near ends of two channels, A–b and c–D: its own ends b and c. F begins a move of b and of c
//! within itself, and does not hand over; so both far ends, A and D, are held. These are moves as above, and the
//! model begins after them. F then does these steps:
//!
//! 1. F takes what A wrote, and freezes that ring towards a new lane N; then F does the same for D.
//! 2. F commits for A what D wrote. Behind that F puts a mark, so that A continues to read in N; then F does the same
//!    for D with what A wrote.
//! 3. F hands N over. N was pending for both far ends, so F wakes both sides of N.
//!
//! If F finds one far end closed or dead before A is frozen, no lane N is needed: the other far end gets everything
//! that the first far end wrote, and its channel is closed. If F finds D closed after that, F stands in for D in N
//! and closes that side of N.
//!
//! # Where it is
//!
//! | module | contents |
//! |---|---|
//! | [`lane`], [`end`], [`state`] | the objects |
//! | [`action`] | the steps that can happen next, and which of them no process may rely on |
//! | `steps` | the effect of each step: writing, receiving, moving, fusing, closing, sleeping |
//! | [`properties`] | what must hold |
//! | [`breakage`] | deliberate errors; the tests show that the model finds each |
//! | [`catalogue`] | the configurations below |
//! | [`met`] | the situations that came about in a run, so that no configuration passes because nothing happened in it |
//! | `tidy` | makes states equal that differ only in the numbers of lanes |
//!
//! A step of the model is one atomic operation on shared memory, together with everything that its process does
//! privately before. So *make* and *mark* are one step, because no process looks for a lane before a mark names the
//! lane. *Drain* and *freeze* are one step too, because no other process sees which records were read. One
//! configuration drains record by record to show that this makes no difference. The model has no sockets: the
//! announcement of step 1 arrives before the mark that names the lane. In the library the announcement also arrives
//! first, because it is sent first.
//!
//! # What must hold
//!
//! In every state:
//! - Messages arrive in order, each once.
//! - *Peer closed* comes after everything that was written.
//! - An end is in a single place, and on lanes announced to its process.
//! - A lane is pending only while its source is at work on it or dead, or until the next call on an end whose move was
//!   given up. A move can always take its next step, so no end waits for an idle process. Only the move of an end, or
//!   through an end, waits for another move.
//!
//! In every state in which only a user can cause the next step (at rest):
//! - Every written message has been received, unless its reader is closed or dead.
//! - *Peer closed* has been seen where the other end is closed, died, or was in a message that no process will
//!   receive; and nowhere else.
//! - No operation is in progress, and no end sleeps with something to read, or with room.
//!
//! Two deaths are exceptions to the first rule at rest:
//! - If the source of an end dies between the commit and the hand-over, the end may arrive dead: its backlog is read,
//!   then both ends see *peer closed*. Messages that the other end wrote behind the backlog are lost.
//! - If the process that fuses two channels dies before the hand-over, both far ends see *peer closed*. Messages that
//!   the process had drained are lost.
//!
//! # Reading a counter-example
//!
//! A counter-example alternates between the changes of the state and the next step (`=>`). Processes are numbers,
//! lanes are `L0`, `L1`, …, and `0a` and `0b` are the ends of channel 0. The lines below are the middle of a
//! counter-example from `cargo test -p strait-model neither -- --nocapture`, in which neither of two moves gives way:
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
//! - Weak memory, and the insides of a ring: see `src/ring/tests/model.rs` in `strait-ring`.
//! - Hostile processes. All processes keep to the protocol until they die.
//! - The making of links: two processes have a link as soon as a lane joins them, and the link is down when either
//!   process is dead. The model does not have the death of a source that has told only one of two processes of a
//!   link; no mark has named its lane at that time.
//! - The end of unused lanes: the model forgets a lane that was made and is not needed (a lost race, a cancelled
//!   move). The library must tell the process to which it announced the lane.
//! - The reuse of a lane's slot, with the words *done* and *moving*.
//! - A user who makes no call on an end whose move was given up. In the library the lane stays pending as long, and the
//!   other end can neither be sent nor send ends meanwhile. In the model this call always comes, as every receive does.
//!   The move of an end in a backlog is never given up after its mark.
//! - The beginning of a fuse: the moves that hold the far ends, and their cancellation if the fuse cannot begin. A fuse
//!   of the model begins with both far ends held.
//! - Relayed sleepers of a fuse's far ends between its steps. The library wakes such a sleeper when it publishes or
//!   marks in the lane that holds the far end, because the process that fuses is itself the source of that lane. The
//!   model leaves the sleeper until the lane is cancelled.
//! - Attachments: the packets that bring them, their retraction, and a message whose attachments keep it from being
//!   published again in another lane.
//! - Descriptors other than ends, sizes, and credit. A ring has room for one message, or without bounds.
//! - Endless attempts: a user may try again and again to send an end whose unread messages hold the other end of the
//!   carrier, and each attempt is called off.
//!
//! # The configurations
//!
//! Every property holds in all configurations. `cargo test` explores the first table, in half a minute; `cargo test
//! -p strait-model -- --ignored` explores the second, in four minutes. *Fused* channels are joined into one.
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
//! | both ends move, a source lacks memory to drain; 2 messages each | 15 293 |
//! | both ends move or are closed, sources lack memory to drain twice; a death | 214 159 |
//! | the carrier's other end moves; a full socket, two deaths | 103 537 |
//! | a busy carrier's other end moves; a full socket, a death | 343 633 |
//! | the other end's reader sleeps | 121 588 |
//! | the moved end's reader sleeps | 41 786 |
//! | both readers sleep | 106 684 |
//! | both ends move, one reader sleeps, a death | 264 444 |
//! | the carrier's other end moves, the peer's reader sleeps | 132 322 |
//! | the other end's reader sleeps, a source lacks memory to drain; a death | 124 808 |
//! | the other end's writer waits for room, a source lacks memory to drain | 21 056 |
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
pub mod world;
