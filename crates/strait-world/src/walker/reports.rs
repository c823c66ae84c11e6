//! Reports of bad peers: a thread reports a message of an honest peer as bad. The report ends the link to the peer,
//! and every channel over the link.
//!
//! The ledger does not know which channels share a link. So only ends of a class of their own are reported: such ends
//! are made by connecting, carry no ends and do not move, so each has a link of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use strait::quota::Reported;
use strait::{Channel, Deadline, Error};

use super::receiving::in_parts;
use super::{About, Walker, said};
use crate::judge;
use crate::ledger::{FOR_REPORTS, Place};
use crate::trail::Call;
use crate::worker::{REASON, excused};

impl Walker {
    /// Reports a peer as bad at a random end of the class for reports: by the channel, or by a message of the
    /// channel.
    pub(super) fn report_bad(&mut self) {
        let Some(at) = self.pick(|held| self.process.ledger.end(held.end).class.load(SeqCst) == FOR_REPORTS) else {
            return;
        };
        if self.random.one_in(3) {
            return self.disconnect(at);
        }
        let (end, channel) = (self.held[at].end, Arc::clone(&self.held[at].channel));
        let over = self.life.shortages_over();
        let message = match channel.try_recv() {
            Ok(message) => Some(message),
            Err(Error::WouldBlock) => None,
            Err(Error::PeerClosed) => return self.see_closed(at),
            Err(error) if excused(self.process, over, error) => return,
            Err(error) => self.wrong(end, &format!("receiving says {error:?}")),
        };
        // The other end learns of the report during the call.
        self.book(end).put(Place::Closed);
        let about = About { call: Call::ReportBad, end, number: 0 };
        let report = || match &message {
            Some(message) => message.report_bad(REASON),
            None => channel.report_bad(REASON),
        };
        let reported = self.timed(about, Duration::ZERO, report, |reported| format!("{reported:?}"));
        let has_message = message.is_some();
        if let Some(message) = message {
            let (bytes, handles) = in_parts(message);
            self.take(end, &bytes, handles);
        }
        self.judge_report(end, reported);
        if !has_message || reported == Reported::Closed {
            self.see_end_of_reported(end, &channel);
        }
        drop(channel);
        self.close(at);
    }

    /// Ends the link of an end without a report, receives the earlier messages, and closes the end.
    fn disconnect(&mut self, at: usize) {
        let (end, channel) = (self.held[at].end, Arc::clone(&self.held[at].channel));
        let over = self.life.shortages_over();
        // The other end learns of the end of the link during the call.
        self.book(end).put(Place::Closed);
        let about = About { call: Call::Disconnect, end, number: 0 };
        match self.timed(about, Duration::ZERO, || channel.disconnect(), said) {
            Ok(true) => {}
            Ok(false) if self.is_other_gone(end) => {}
            Err(error) if excused(self.process, over, error) => {}
            other => self.wrong(end, &format!("disconnecting says {other:?}")),
        }
        loop {
            match channel.recv_by(Deadline::NOW) {
                Ok(message) => {
                    let (bytes, handles) = in_parts(message);
                    self.take(end, &bytes, handles);
                }
                Err(Error::PeerClosed | Error::BadPeer(REASON)) => break,
                Err(error) if excused(self.process, over, error) => break,
                Err(error) => self.wrong(end, &format!("the link was ended, and receiving says {error:?}")),
            }
        }
        drop(channel);
        self.close(at);
    }

    fn judge_report(&self, end: u32, reported: Reported) {
        if self.process.reports.load(SeqCst) == 0 {
            self.wrong(end, "a peer was reported as bad, and the callback does not know");
        }
        let may_be = match reported {
            Reported::Closed => true,
            Reported::Gone => self.is_other_gone(end),
            // The channel has moved into other memory within its process, together with its unreceived messages.
            Reported::Brought => true,
            _ => false,
        };
        if !may_be {
            self.wrong(end, &format!("reporting a bad peer says {reported:?}"));
        }
        self.process.ledger.reports.fetch_add(u32::from(reported == Reported::Closed), SeqCst);
    }

    /// Receives the rest at an end whose peer was reported, and checks the error after the last message.
    fn see_end_of_reported(&mut self, end: u32, channel: &Channel) {
        loop {
            let over = self.life.shortages_over();
            match channel.recv_by(Deadline::NOW) {
                Ok(message) => {
                    let (bytes, handles) = in_parts(message);
                    self.take(end, &bytes, handles);
                }
                Err(Error::BadPeer(REASON)) => return,
                // The peer was gone before.
                Err(Error::PeerClosed) if judge::is_peer_gone(self.process.ledger, end) => return,
                Err(error) if excused(self.process, over, error) => return,
                Err(error) => self.wrong(end, &format!("the peer was reported as bad, and receiving says {error:?}")),
            }
        }
    }
}
