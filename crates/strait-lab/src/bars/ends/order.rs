//! Orders: what the processes of a run are to do.

use serde::{Deserialize, Serialize};

use crate::bars::toolbox::dispatched::By;
use crate::bars::toolbox::objects::Relay;
use crate::placement::Placement;
use crate::work::Wait;

/// The order for one run: its task, the way of waiting and the placement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) task: Task,
    /// The way in which every blocking call waits.
    pub(crate) wait: Wait,
    pub(crate) placement: Placement,
}

/// The task of a run. The numbers in it say how often or how many.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// `Descriptor`: a message with one descriptor goes back and forth, over a channel or (`bare`) over a socket. It
    /// is timed from before it is sent until it is received. Sending an end is compared with this.
    Descriptor { bare: bool, count: u64 },
    /// `Give`: an end of a new channel goes to the second process. It is timed from before it is sent until that
    /// process has received the first message through it.
    Give { count: u64 },
    /// `Acquaint`: an end of a new channel, whose other end the second process has, goes to the third process, which
    /// sends a message through it at once. It is timed from before it is sent until the second process has received
    /// that message.
    Acquaint { count: u64 },
    /// `Stream`: a stream of messages to an end that stays at the second process, or (`moves`) that moves between the
    /// second and the third process after every `stretch` messages. The stretches are timed.
    Stream { moves: bool, stretches: u64, stretch: u64 },
    /// `Beside`: round trips on one channel between two processes that also have `idle` idle channels.
    Beside { idle: usize },
    /// `Hold`: `channels` channels between two processes, each of which has carried a message. The memory and
    /// descriptors that they hold are compared with those of one channel.
    Hold { channels: usize },
    /// `Wake`: a message wakes the second process, which waits for `members` channels at once, all idle but one. It
    /// is timed from before it is sent until it is received.
    Wake { members: usize },
    /// `Within`: `channels` channels within one process are made, used for the first time, have one end sent each,
    /// and are closed.
    Within { channels: usize },
    /// `Open`: channels are made and one end of each is sent to the second process, `batch` in a message, with one
    /// message through each channel. They are timed from before the first is made until the second process has
    /// received the last message.
    Open { channels: usize, batch: usize },
    /// `Pass`: messages with `ends` ends each go to the second process, which sends them back. `window` of these
    /// messages are in flight at a time. They are timed until the last is back.
    Pass { crossings: usize, ends: usize, window: usize },
    /// `Call`: `threads` threads make calls on one end, for `millis` milliseconds.
    Call { threads: usize, millis: u64 },
    /// `Bulk`: `pieces` pieces of 64 KiB go through a data pipe, or (`bare`) through bare shared memory.
    Bulk { bare: bool, pieces: u64 },
    /// `Tasks`: round trips between tasks of tokio, over a channel or (`bare`) over a socket.
    Tasks { bare: bool, trips: u64 },
    /// `Dispatched`: round trips between handlers, each called by a dispatcher or by the receiving thread itself.
    Dispatched { by: By, size: usize, trips: u64 },
    /// `Relayed`: messages go from the first process through the second to the third, one at a time. Each is timed
    /// from before it is written until the third process has checked it.
    Relayed { how: Relay, size: usize, count: u64 },
    /// `Values`: values that own `size` bytes are sent from one end to the other within one process, as they are or
    /// (`as_bytes`) as bytes.
    Values { as_bytes: bool, size: usize, count: u64 },
}

impl Task {
    /// Returns the number of processes that take part.
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
    use crate::placement::Placement;
    use crate::work::Wait;

    #[test]
    fn an_order_survives_the_way_to_its_process() {
        let task = Task::Pass { crossings: 3, ends: 2, window: 1 };
        let order = Order { task, wait: Wait::Block, placement: Placement::Same(0) };
        let told = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&told).unwrap(), order);
    }
}
