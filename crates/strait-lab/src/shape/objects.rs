//! The tasks of the suites with targets: channel ends that travel, and the objects that are built on channels.

use serde::{Deserialize, Serialize};

/// A task of the processes of a run, with Strait's objects. Its numbers say how often or how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the documentation of a task names its numbers")]
pub enum Task {
    /// `Give`: an end of a new channel goes to the second process. The time counts from before the send until that
    /// process has received the first message through the end.
    Give { count: u64 },
    /// `Acquaint`: an end of a new channel, whose other end is in the second process, goes to the third process,
    /// which sends a message through it at once. The time counts from before the send of the end until the second
    /// process has received that message.
    Acquaint { count: u64 },
    /// `Stream`: a stream of messages to an end that stays at the second process, or (`moves`) that moves between the
    /// second and the third process after every `stretch` messages. The stretches are timed.
    Stream { moves: bool, stretches: u64, stretch: u64 },
    /// `Beside`: round trips on one channel between two processes that also have `idle` idle channels.
    Beside { idle: usize },
    /// `Crowded`: round trips on a quiet channel to a process that also serves `busy` busy channels with the same wait
    /// set. The busy channels are on the link of the quiet one, or (`apart`) on a link to the third process.
    Crowded { busy: usize, apart: bool, trips: u64 },
    /// `Hold`: `channels` channels between two processes, each used for one message. Their memory and descriptors are
    /// compared with those of one channel.
    Hold { channels: usize },
    /// `Wake`: a message wakes the second process, which waits for `members` channels at once, all idle but one. The
    /// time counts from before the send until the receipt of the message.
    Wake { members: usize },
    /// `Within`: `channels` channels within one process are made, used for the first time, have one end sent each,
    /// and are closed.
    Within { channels: usize },
    /// `Open`: channels are made and one end of each is sent to the second process, `batch` in a message, with one
    /// message through each channel. The time counts from before the first channel is made until the second process
    /// has received the last message.
    Open { channels: usize, batch: usize },
    /// `Pass`: messages with `ends` ends each go to the second process, which sends them back. `window` of these
    /// messages are in flight at a time. The time counts until the last message is back.
    Pass { crossings: usize, ends: usize, window: usize },
    /// `Call`: `threads` threads make calls on one end, for `millis` milliseconds.
    Call { threads: usize, millis: u64 },
    /// `Bulk`: `pieces` pieces of 64 KiB go through a data pipe, or (`bare`) through bare shared memory.
    Bulk { bare: bool, pieces: u64 },
    /// `Tasks`: round trips between tasks of tokio, over a channel or (`bare`) over a socket.
    Tasks { bare: bool, trips: u64 },
    /// `Dispatched`: round trips between handlers, each called by a dispatcher or by the receiving thread itself.
    Dispatched { by: By, size: usize, trips: u64 },
    /// `Relayed`: messages go from the first process through the second to the third, one at a time. The time of each
    /// counts from before the write until the third process has checked the message.
    Relayed { how: Relay, size: usize, count: u64 },
    /// `Values`: values with `size` bytes of their own are sent from one end to the other within one process, as
    /// values or (`as_bytes`) as bytes.
    Values { as_bytes: bool, size: usize, count: u64 },
    /// `Units`: so many units of work within one process, after 64 others as warm-up.
    Units { unit: Unit, units: usize },
    /// `Mesh`: `members` processes, and a controller. If `joined`, the controller introduces each pair of members
    /// by a channel between them, and a message goes in each direction of each channel.
    Mesh { members: usize, joined: bool },
}

impl Task {
    /// Returns the number of processes that take part.
    pub(super) fn processes(self) -> usize {
        match self {
            Self::Acquaint { .. } | Self::Stream { .. } | Self::Crowded { .. } | Self::Relayed { .. } => 3,
            Self::Within { .. } | Self::Values { .. } | Self::Units { .. } => 1,
            Self::Mesh { members, .. } => 1 + members,
            _ => 2,
        }
    }
}

/// The caller of a message's handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum By {
    /// The thread that receives calls the handler; there is no dispatcher.
    Itself,
    /// A dispatcher receives and calls the handler.
    Dispatcher,
    /// A dispatcher calls the handler; a pump in another thread receives for it.
    Pump,
}

/// The way in which the second process passes a message on to the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Relay {
    /// The second process receives the message, and sends its bytes.
    Sent,
    /// The second process receives the message, and forwards it.
    Forwarded,
    /// The second process receives the message in place, and forwards it.
    View,
    /// The first process seals the message; the second receives it, and forwards it.
    Sealed,
}

/// The kind of unit that a run makes many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// A channel over one link: the channel is made, one end is sent, and one message is sent through the channel.
    Channels,
    /// A client of one listener: the client connects, is accepted, and one message is sent through the channel.
    Clients,
    /// A member of one wait set: the member is added, a message notifies the member, and the message is received.
    Members,
}
