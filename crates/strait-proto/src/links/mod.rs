//! The life of links: the process at the other side, the lanes that a link may carry, how introductions and connects
//! share links, and when a link is closed.
//!
//! [`Links`] is the machine of one process. The program around it, the *driver*, has the sockets. The driver passes
//! inputs ([`Seen`]) to the machine: a wish of the user, a packet, a socket with a closed other side. The machine
//! answers with [effects](Effect), which cannot fail. An action that can fail is a [step](Step), *owed* by the machine:
//! a packet, if the socket has no room, or a socket pair, if there is no descriptor. The driver tries the steps of
//! [`Links::owed`] whenever it can, and tells the machine each step that it has [done](Seen::Done). A failed step
//! changes nothing. The machine owes that step again, or another step if something has happened meanwhile.
//!
//! A packet stays in its socket until, according to [`Links::ready`], the machine can take the packet. Some packets are
//! explained by packets on other sockets, which the driver takes first.
//!
//! | file | contents |
//! |---|---|
//! | `identity` | identities, and sets of makers |
//! | `packet` | the packets |
//! | `life` | handshake and IDLE: one side of a link |
//! | `pair` | FORGET and RELEASED: the introducer's entry and the receiver's name for a link; introductions |
//! | `table` | all links of a process; connects; *yourself* |
//! | `arrival` | the effect of each packet |

mod arrival;
mod identity;
mod life;
mod packet;
mod pair;
mod table;

pub use identity::{Identity, Makers};
pub use life::{Fate, Heard, Life, Phase, Say};
pub use packet::Packet;
pub use pair::{Introduction, Name, Pair, Side, Stage};
pub use table::{Alone, Dial, Effect, Link, Links, Origin, Seen, Step};

/// The driver's number for a socket.
pub type Id = u64;

/// The name of a lane, equal in both processes: a number that other processes cannot guess.
pub type Lane = u128;
