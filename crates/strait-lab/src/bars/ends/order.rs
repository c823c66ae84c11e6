//! What the processes of a run of this suite are told to do.

use serde::{Deserialize, Serialize};

use crate::bars::toolbox::dispatched::By;
use crate::bars::toolbox::objects::Relay;
use crate::pair::placement::Placement;
use crate::work::Wait;

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) task: Task,
    /// How every call waits.
    pub(crate) wait: Wait,
    pub(crate) placement: Placement,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// A message with one descriptor goes to and fro, over a channel or a bare socket; timed from before it is sent until
    /// it is received. What sending an end is compared with.
    Descriptor { bare: bool, count: u64 },
    /// An end of a new channel goes to the second process; timed from before it is sent until the first message through it
    /// is received there.
    Give { count: u64 },
    /// An end of a new channel, whose other end the second process has, goes to the third process; timed from before it
    /// is sent until the second has received a message that the third sent through it at once.
    Acquaint { count: u64 },
    /// A stream of messages to an end that moves between the second and the third process each time so many have been
    /// received, or stays at the second; timed by these stretches.
    Stream { moves: bool, stretches: u64, stretch: u64 },
    /// Round trips on one channel between two processes, beside so many that are idle.
    Beside { idle: usize },
    /// So many channels between two processes, each of which has carried a message: what they hold, above what they hold
    /// for one.
    Hold { channels: usize },
    /// A message wakes the second process, which waits for so many channels at once, all idle but one; timed from before it is
    /// sent until it is received.
    Wake { members: usize },
    /// So many channels within one process: made, used for the first time, each with an end sent, closed.
    Within { channels: usize },
    /// Channels are made, and one end of each sent to the second process, so many in a message, with one message through
    /// each; timed from before the first is made until the second process has received the last message.
    Open { channels: usize, batch: usize },
    /// Messages with so many ends go to the second process, which sends them back, so many of these messages being under
    /// way; timed until the last is back.
    Pass { crossings: usize, ends: usize, window: usize },
    /// Calls from so many threads on one end, for so long.
    Call { threads: usize, millis: u64 },
    /// So many pieces of 64 KiB through a data pipe, or bare.
    Bulk { bare: bool, pieces: u64 },
    /// Round trips between tasks of tokio's, over a channel or over a socket.
    Tasks { bare: bool, trips: u64 },
    /// Round trips between handlers.
    Dispatched { by: By, size: usize, trips: u64 },
    /// Messages go from the first process by way of the second to the third, one at a time; timed from before one is written
    /// until the third has looked at it.
    Relayed { how: Relay, size: usize, count: u64 },
    /// Values that own so many bytes go from one end to the other within one process, as they are or as bytes.
    Values { as_bytes: bool, size: usize, count: u64 },
}

impl Task {
    /// How many processes take part.
    pub(crate) fn processes(self) -> usize {
        match self {
            Self::Acquaint { .. } | Self::Stream { .. } | Self::Relayed { .. } => 3,
            Self::Within { .. } | Self::Values { .. } => 1,
            _ => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Order, Task};
    use crate::pair::placement::Placement;
    use crate::work::Wait;

    #[test]
    fn an_order_survives_the_way_to_its_process() {
        let task = Task::Pass { crossings: 3, ends: 2, window: 1 };
        let order = Order { task, wait: Wait::Block, placement: Placement::Same(0) };
        let told = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&told).unwrap(), order);
    }
}
