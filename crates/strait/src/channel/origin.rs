//! The origin of a message; the receiver uses the origin to report the sender.
//!
//! A message stores the *number* of the link over which the message came: one word, copied at receipt. Only a report
//! looks the link up, so a message that is never reported costs nothing more.
//!
//! Messages of a backlog have no certain sender. Such a message was queued at an end when the end was sent to this
//! process: one process wrote the message and another sent the end. Either process may have made the message bad.

use std::sync::Arc;

use super::peer_of;
use crate::deferred;
use crate::error::Error;
use crate::link::Link;
use crate::peer::Peer;
use crate::quota::{Ledger, Reported};

/// The origin of a message: the number of the message's link, with or without the flag `IN_BACKLOG`; or
/// [`Origin::NOWHERE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u64);

/// A flag in an [`Origin`], beside the number of the link: the message was in the backlog of an end received over the
/// link.
const IN_BACKLOG: u64 = 1 << 63;

impl Origin {
    /// The origin of a message that came from no other process.
    pub(crate) const NOWHERE: Self = Self(u64::MAX);

    pub(crate) fn of(link: &Link) -> Self {
        Self(link.number())
    }

    /// Returns the origin of a message in the backlog of an end received over `link`.
    pub(crate) fn in_backlog_over(link: &Link) -> Self {
        Self(link.number() | IN_BACKLOG)
    }

    /// Returns the identity of the sender of a message with this origin, like
    /// [`Message::sender`](crate::Message::sender).
    pub(crate) fn sender(self) -> Option<Peer> {
        if self == Self::NOWHERE || self.0 & IN_BACKLOG != 0 {
            return None;
        }
        let own = Link::own();
        let link = if self.0 == own.number() { Arc::clone(&own) } else { Link::numbered(self.0)? };
        peer_of(&link).ok()?
    }

    /// Reports the sender of a message with this origin as a bad peer, for the reason `why`, as
    /// [`Message::report_bad`](crate::Message::report_bad) says.
    #[cold]
    pub(crate) fn report(self, why: &'static str) -> Reported {
        if self == Self::NOWHERE {
            return Reported::Gone;
        }
        let (own, number) = (Link::own(), self.0 & !IN_BACKLOG);
        let link = if number == own.number() { Some(Arc::clone(&own)) } else { Link::numbered(number) };
        // The peer's identity may be waiting unread in the socket, because the messages came through shared memory;
        // the probe reads it.
        link.iter().for_each(|link| link.probe());
        let reported = match &link {
            None => {
                Ledger::nobodys().broken(why, true);
                Reported::Gone
            }
            Some(link) if self.0 & IN_BACKLOG != 0 => {
                link.ledger().broken(why, false);
                Reported::Brought
            }
            Some(link) if link.is_local() => {
                link.ledger().broken(why, false);
                Reported::Within
            }
            Some(link) if link.is_down() => {
                link.ledger().broken(why, true);
                Reported::Gone
            }
            Some(link) => {
                link.cut(Error::BadPeer(why));
                Reported::Closed
            }
        };
        deferred::run();
        reported
    }
}

impl Default for Origin {
    fn default() -> Self {
        Self::NOWHERE
    }
}
