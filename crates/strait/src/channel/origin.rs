//! Where a message came from, so that whoever reads it can report its sender.
//!
//! A message notes the *number* of the link over which it came: one word, copied from where it is received, so that
//! messages that nobody reports cost nothing for it. What becomes of the link is looked up only by a report.
//!
//! One kind of message has no certain sender: what an end had not received when it was sent here. Such messages were written
//! by one process and brought by another, either of which may have made them what they are.

use crate::error::Error;
use crate::link::Link;
use crate::quota::{Ledger, tell};

/// The link over which a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u64);

/// Beside the number of a link: an end that came over it brought the message along.
const BROUGHT: u64 = 1 << 63;

impl Origin {
    /// Of a message that was not received.
    pub(crate) const NOWHERE: Self = Self(u64::MAX);

    pub(crate) fn of(link: &Link) -> Self {
        Self(link.number())
    }

    /// Of what came in a table over this link.
    pub(crate) fn brought_over(link: &Link) -> Self {
        Self(link.number() | BROUGHT)
    }

    /// As [`Message::report_bad`](crate::Message::report_bad).
    #[cold]
    pub(crate) fn report(self, why: &'static str) -> Reported {
        if self == Self::NOWHERE {
            return Reported::Gone;
        }
        let link = Link::numbered(self.0 & !BROUGHT);
        // Who it is may be there to be asked, and nobody has listened: messages do not come through the socket.
        link.iter().for_each(|link| link.probe());
        let reported = match &link {
            None => {
                Ledger::nobodys().broken(why, true);
                Reported::Gone
            }
            Some(link) if self.0 & BROUGHT != 0 => {
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
        tell();
        reported
    }
}

impl Default for Origin {
    fn default() -> Self {
        Self::NOWHERE
    }
}

/// What a report of a bad message has led to. In every case [`on_bad_peer`](crate::on_bad_peer) was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reported {
    /// The link to its sender's process is closed, and every channel over it is at an end, at both sides.
    Closed,
    /// Its sender was gone before, or the message was never received from anybody.
    Gone,
    /// It was sent from within this process, which has no link to close. Close the channel.
    Within,
    /// It had not been received when its end was sent here, so it was written by one process and brought by another, and
    /// nobody can say which of them made it bad. Neither is closed; the one that brought it is told of. Close the channel.
    Brought,
}
