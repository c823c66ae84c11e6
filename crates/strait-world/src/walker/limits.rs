//! Limits: a running process changes its limits on everything held for its peers.

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use strait::quota::{Limits, Resource};

use super::{About, Walker, said};
use crate::clock::now;
use crate::ledger::faults;
use crate::trail::{Call, NO_END};
use crate::worker::{excused, lift_limits};

/// The resources whose limits only delay messages: a process at such a limit can receive everything later. A lack of
/// memory, regions or descriptors can lose ends in messages.
const OF_MOVES: [Resource; 2] = [Resource::QueuedBytes, Resource::QueuedMessages];

/// A limit that no process of a world reaches.
const AMPLE: u64 = 1 << 36;

impl Walker {
    /// Sets other limits for this process. In a world with shortages the limits may be so low that moves fail for a
    /// while; otherwise the limits are ample, and no call may fail because of them.
    pub(super) fn change_limits(&mut self) {
        if self.random.one_in(4) {
            return self.prune();
        }
        let may_be_low = self.process.ledger.faults.load(SeqCst) & (faults::DESCRIPTORS | faults::MEMORY) != 0;
        match may_be_low && self.short_until.is_none() && self.random.one_in(2) {
            true => self.limit_moves(),
            false if self.limited_until.is_none() => self.set_limits(&Resource::ALL, AMPLE),
            false => {}
        }
    }

    /// Removes the names of dead listeners, and lists the names of the living.
    fn prune(&mut self) {
        let over = self.life.shortages_over();
        let about = About { call: Call::Prune, end: NO_END, number: 0 };
        let directory = Path::new(&self.process.directory);
        let prune = || strait::meet::prune(Some(directory)).map_err(strait::Error::from);
        if let Err(error) = self.timed(about, Duration::ZERO, prune, said)
            && !excused(self.process, over, error)
        {
            self.process.wrong(None, &format!("removing the names of dead listeners: {error:?}"));
        }
        let over = self.life.shortages_over();
        let names = || strait::meet::names(Some(directory)).map(drop).map_err(strait::Error::from);
        if let Err(error) = self.timed(about, Duration::ZERO, names, said)
            && !excused(self.process, over, error)
        {
            self.process.wrong(None, &format!("the names of listeners: {error:?}"));
        }
    }

    /// Limits for a while how much of the messages of moved ends this process holds.
    fn limit_moves(&mut self) {
        if self.limited_until.is_some() {
            return;
        }
        let millis = self.random.below(60);
        self.life.begin_shortage();
        let most = self.random.below(20);
        self.set_limits(&OF_MOVES, most);
        self.limited_until = Some(now() + millis * 1_000_000);
    }

    /// Lifts the limits if their time is over, or if `at_once`.
    pub(super) fn lift_limits(&mut self, at_once: bool) {
        if self.limited_until.is_some_and(|until| at_once || now() > until) {
            self.limited_until = None;
            lift_limits();
            self.life.end_shortage();
        }
    }

    /// Checks, after every message was received, that no peer is charged for messages any more.
    pub(super) fn see_that_nothing_is_charged(&self) {
        for held in &self.held {
            let Ok(Some(usage)) = held.channel.peer_usage() else { continue };
            for of in OF_MOVES {
                let used = usage.peer(of).held;
                if used != 0 && !self.process.ledger.is_fuse_unknown(held.end) {
                    self.wrong(held.end, &format!("all messages have come, and the peer is charged for {used} {of:?}"));
                }
            }
        }
    }

    /// Sets the limits of the resources `of` to about `most`, and leaves all others ample.
    fn set_limits(&mut self, of: &[Resource], most: u64) {
        let ample = |limits: Limits, of| limits.peer(of, 2 * AMPLE).user(of, 2 * AMPLE);
        let mut limits = Resource::ALL.into_iter().fold(Limits::new(), ample);
        for of in of {
            let more = self.random.below(most.max(1));
            limits = limits.peer(*of, most + more).user(*of, 2 * most + more);
        }
        let about = About { call: Call::SetLimits, end: NO_END, number: most };
        self.timed(about, Duration::ZERO, || strait::quota::set_limits(limits), |()| String::new());
        // Another thread of the process may have set others meanwhile.
        let _ = strait::quota::limits();
    }
}
