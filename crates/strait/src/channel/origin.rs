//! The origin of a message, by which its reader can report the sender.
//!
//! A message stores the *number* of the link over which it came: one word, copied when the message is received.
//! Messages that are never reported therefore cost nothing. Only a report looks the link up.
//!
//! Messages of a backlog have no certain sender. Such a message was queued at an end when that end was sent here: one
//! process wrote the message and another brought it along, and either may have made it what it is.

use crate::deferred;
use crate::error::Error;
use crate::link::Link;
use crate::quota::Ledger;

/// The number of the link over which a message came; or [`Origin::NOWHERE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u64);

/// Flag beside the number of a link: the message belongs to the backlog of an end that came over the link.
const IN_BACKLOG: u64 = 1 << 63;

impl Origin {
    /// The origin of a message that this process did not receive from anywhere.
    pub(crate) const NOWHERE: Self = Self(u64::MAX);

    pub(crate) fn of(link: &Link) -> Self {
        Self(link.number())
    }

    /// Returns the origin of a message that came over this link in the backlog of an end.
    pub(crate) fn in_backlog_over(link: &Link) -> Self {
        Self(link.number() | IN_BACKLOG)
    }

    /// Reports the sender of a message with this origin as a bad peer, as
    /// [`Message::report_bad`](crate::Message::report_bad) says.
    #[cold]
    pub(crate) fn report(self, why: &'static str) -> Reported {
        if self == Self::NOWHERE {
            return Reported::Gone;
        }
        let link = Link::numbered(self.0 & !IN_BACKLOG);
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

/// The result of a report of a bad message. In every case the [`on_bad_peer`](crate::on_bad_peer) callback was
/// called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reported {
    /// The link to the sender's process was closed, and with it every channel over that link, on both sides.
    Closed,
    /// The link to the sender's process was gone before the report, or the message was not received from any process.
    Gone,
    /// The message was sent from within this process, so there is no link to close. The caller should close the
    /// channel.
    Within,
    /// The message was queued at an end when that end was sent here. One process wrote the message and another
    /// brought it; nobody can tell which made it bad. No link is closed; the callback names the process that brought
    /// the message. The caller should close the channel.
    Brought,
}
