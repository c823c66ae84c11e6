//! The [check for lost wake-ups](crate::wake::strict) of wait sets: what a thread of a wait set has overlooked in its
//! sleep must be on its way to the thread. Does nothing in builds without the check.

use std::sync::Arc;

use super::{Queue, SharedSet};
use crate::link::{Link, Listener};
use crate::sync::unpoisoned;
use crate::wake::strict;

impl SharedSet {
    /// Checks a sleep on the words of the wait set and of `links` that has just ended: other threads take the sleeper
    /// from its word for each queued member, and peers do so for each notification and each packet.
    pub(super) fn expect_wake_on_words<'a>(&self, links: impl Iterator<Item = &'a Arc<Link>>) {
        let is_overlooked = |ready: &Queue| ready.on_word && !ready.queue.is_empty();
        strict::expect_wake("on the word of a wait set, and a member is queued", || {
            is_overlooked(&unpoisoned(&self.ready))
        });
        for link in links {
            strict::expect_wake("on a notification area", || link.has_sleeper_on_word());
        }
    }

    /// Checks a sleep in epoll that has just ended without an event: other threads signal each queued member, and
    /// peers send a packet for each notification.
    pub(super) fn expect_events(&self) {
        if !strict::IS_ON {
            return;
        }
        let is_overlooked = |ready: &Queue| !ready.queue.is_empty() && !ready.signalled && !ready.on_word;
        strict::expect_wake("in epoll, and a member is queued", || is_overlooked(&unpoisoned(&self.ready)));
        for link in self.present_links() {
            let packets = link.packets_received();
            strict::expect_wake("in epoll, and a member is notified", || link.owes_packet_for_members(packets));
        }
    }

    /// Checks a wait or look that has ended: each member that is ready must be queued, or will be. Looks only at
    /// the first members of each link.
    pub(super) fn expect_notifications(&self) {
        if !strict::IS_ON || self.is_stuck() {
            return;
        }
        for link in self.present_links() {
            for member in link.first_members_of(self) {
                strict::expect_wake("in a wait set, and a member is not notified", || {
                    self.is_overlooked(&link, &*member)
                });
            }
        }
    }

    /// Returns whether `member`, a member of this set on `link`, is ready but not notified. Receives notifications
    /// first.
    fn is_overlooked(&self, link: &Link, member: &dyn Listener) -> bool {
        if !member.is_overlooked() {
            return false;
        }
        // The error of a packet that cannot be taken is reported by the next wait.
        let _ = link.drain(false);
        link.collect();
        member.is_overlooked() && !link.may_be_silent()
    }

    /// Returns the links of the set that the set does not ignore now.
    fn present_links(&self) -> Vec<Arc<Link>> {
        let links = unpoisoned(&self.links);
        let present = links.values().filter(|used| !used.throttled && !used.stuck);
        present.map(|used| Arc::clone(&used.link)).collect()
    }
}
