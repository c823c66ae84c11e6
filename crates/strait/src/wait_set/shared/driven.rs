//! A wait set whose driver polls: the driver of a [reactor](crate::task::Reactor). After an event the driver polls for
//! a while before it lets its runtime sleep.
//!
//! As long as the driver is **polling**, no thread has to wake it. Peers notify and send no packet, and a member that a
//! thread of this process queues does not make the descriptor readable. So an event while the driver polls costs no
//! system call on either side. Before the driver sleeps, it records that it no longer polls, and then looks once more:
//! at the queue, at the notification areas and at the sockets. The last look finds everything that happened before;
//! everything later makes the descriptor readable.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Asleep, Event, PASSES, SharedSet};
use crate::error::Error;
use crate::link::ListenerSet;

impl SharedSet {
    /// Polls the wait set for its driver, which will poll again soon: adds an event for each ready member to `events`,
    /// up to `limit` events. Now and then a call also receives from the sockets.
    pub(in crate::wait_set) fn look(&self, events: &mut Vec<Event>, limit: usize) -> Result<(), Error> {
        self.polling.store(true, Ordering::SeqCst);
        if self.is_due_to_hear() {
            self.sleep_and_drain(Asleep::new(&self.asleep), Some(Duration::ZERO), false)?;
        }
        self.find(events, limit);
        Ok(())
    }

    /// Polls the wait set for its driver, which is about to sleep: adds an event for each ready member to `events`, up
    /// to `limit` events. Without an event the driver no longer counts as polling, and the set's descriptor becomes
    /// readable as soon as a member may be ready. With events the driver still counts as polling.
    pub(in crate::wait_set) fn park(&self, events: &mut Vec<Event>, limit: usize) -> Result<(), Error> {
        for _ in 0..=PASSES {
            self.polling.store(false, Ordering::SeqCst);
            self.find(events, limit);
            if !events.is_empty() {
                self.polling.store(true, Ordering::SeqCst);
                return Ok(());
            }
            let asleep = Asleep::new(&self.asleep);
            let (idle, later) = self.reset_wake_fd();
            let notified = self.arm();
            if notified || !idle {
                drop(asleep);
                self.collect();
                continue;
            }
            if self.sleep_and_drain(asleep, Some(Duration::ZERO), false)? {
                continue;
            }
            // A wake-up that the kernel has refused is tried again, too: the peer may sleep until then.
            if later || self.is_stuck() || self.has_unsent() {
                self.look_again_later();
            }
            self.expect_notifications();
            return Ok(());
        }
        // Peers notify again and again: the descriptor stays readable, so that the driver looks again.
        self.wake_one();
        Ok(())
    }

    fn find(&self, events: &mut Vec<Event>, limit: usize) {
        self.collect_some();
        self.take_ready(events, limit);
        if !events.is_empty() {
            self.had_events.store(true, Ordering::Relaxed);
        }
    }
}
