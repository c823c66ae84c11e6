//! A set that somebody drives who comes back by himself: the driver of a [reactor](crate::Reactor), for a while after there was
//! something, before he lets his runtime sleep.
//!
//! As long as he is **awake**, nobody has to wake him: peers ring and send no packet, and what threads of this process put into
//! the queue does not make the descriptor readable. So what comes while he is awake costs no system call on either side. Before
//! he sleeps he says that he does not look any more, and then looks once more, at the queue, at the boards and at the sockets:
//! what came before is found by that, and what comes after makes the descriptor readable.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Asleep, Event, PASSES, SOCKETS_EVERY, Shared};
use crate::error::Error;

impl Shared {
    /// What there is now, by one who looks again soon. Every so often it looks at the sockets as well.
    pub(in crate::wait_set) fn look(&self, events: &mut Vec<Event>, limit: usize) -> Result<(), Error> {
        self.awake.store(true, Ordering::SeqCst);
        if self.calls.fetch_add(1, Ordering::Relaxed) % SOCKETS_EVERY == SOCKETS_EVERY - 1 {
            self.attend(Asleep::new(&self.asleep), Some(Duration::ZERO), false)?;
        }
        self.find(events, limit);
        Ok(())
    }

    /// What there is now, by one who is about to sleep. If there is nothing, the descriptor becomes readable, or is, as soon as
    /// there may be something; with events he is still awake.
    pub(in crate::wait_set) fn rest(&self, events: &mut Vec<Event>, limit: usize) -> Result<(), Error> {
        for _ in 0..=PASSES {
            self.awake.store(false, Ordering::SeqCst);
            self.find(events, limit);
            if !events.is_empty() {
                self.awake.store(true, Ordering::SeqCst);
                return Ok(());
            }
            let asleep = Asleep::new(&self.asleep);
            let (idle, later) = self.silence();
            let rung = self.listen();
            if rung || !idle {
                drop(asleep);
                self.collect();
                continue;
            }
            if self.attend(asleep, Some(Duration::ZERO), false)? {
                continue;
            }
            // A wake-up that the kernel has refused is tried again, too: the peer may sleep until then.
            if later || self.is_stuck() || self.has_unsent() {
                self.look_again_later();
            }
            return Ok(());
        }
        // Peers that ring without end.
        self.nudge();
        Ok(())
    }

    fn find(&self, events: &mut Vec<Event>, limit: usize) {
        self.collect_some();
        self.take_ready(events, limit);
        if !events.is_empty() {
            self.fruitful.store(true, Ordering::Relaxed);
        }
    }
}
