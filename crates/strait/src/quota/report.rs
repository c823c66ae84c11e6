//! Reports of peers that broke the protocol.
//!
//! A breach is found in the middle of an operation, with locks held. So reports are [deferred] work.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::deferred;
use crate::os::fork::PerProcess;
use crate::peer::Peer;
use crate::sync::unpoisoned;

/// A report that a peer broke the protocol, as passed to the callback of [`on_bad_peer`].
///
/// Example: [limits and reports](crate::quota).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadPeer {
    /// The peer process, as the kernel identifies it; `None` if the kernel does not identify the process.
    pub peer: Option<Peer>,
    /// The breach of the protocol, in the words of [`Error::BadPeer`](crate::Error::BadPeer).
    pub reason: &'static str,
    /// Whether the whole link was lost, and with the link every channel between the two processes over the link. If
    /// `false`, only one channel has ended.
    pub link_lost: bool,
    /// Whether another process has introduced the link to the peer. The introducer made the link's socket and may have
    /// kept a copy, so the breach may be the introducer's. The peer's links without an introducer are not affected.
    pub introduced: bool,
}

impl fmt::Display for BadPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = if self.introduced { "bad peer or introducer" } else { "bad peer" };
        write!(f, "{over}: {}", self.reason)?;
        match self.peer {
            Some(Peer { pid: Some(pid), uid, .. }) => write!(f, " (process {pid} of user {uid})"),
            Some(Peer { uid, .. }) => write!(f, " (a process of user {uid})"),
            None => Ok(()),
        }
    }
}

type Callback = Arc<dyn Fn(&BadPeer) + Send + Sync>;

static CALLBACK: PerProcess<Mutex<Option<Callback>>> = PerProcess::new(Mutex::default);

/// Sets the callback for peer processes that break the protocol, in place of an earlier callback.
///
/// The library calls `callback` once for each peer process and reason, however many links lead to the process, and once
/// more for each process that has introduced links to the peer process ([`BadPeer::introduced`]). The library forgets a
/// report once this process holds nothing for the peer process any more, and may then call again.
///
/// The callback runs within a call of this library, in the calling thread, while the thread holds no lock of the
/// library. So the callback may call every function, send, and drop channels. The call returns only after the callback:
/// the callback should be quick. If the callback panics, the panic continues in the call.
///
/// A forked child has no callback until the child calls this function.
///
/// The library writes no logs.
///
/// ```
/// strait::quota::on_bad_peer(|report| eprintln!("{report:?}"));
/// ```
pub fn on_bad_peer(callback: impl Fn(&BadPeer) + Send + Sync + 'static) {
    let old = unpoisoned(CALLBACK.get()).replace(Arc::new(callback));
    drop(old);
}

/// Defers a call of the program's callback with the report `bad`, until the thread holds no lock. Does nothing if the
/// program has set no callback.
#[cold]
pub(super) fn note(bad: BadPeer) {
    if callback().is_some() {
        deferred::run_later(move || callback().into_iter().for_each(|callback| callback(&bad)));
    }
}

fn callback() -> Option<Callback> {
    unpoisoned(CALLBACK.get()).clone()
}

/// The result of reporting a bad message: what happened to the link to its sender. The [`on_bad_peer`] callback learns
/// of the report, unless the message was not received from any process.
///
/// Example: [a message that is reported](crate::Message::report_bad).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reported {
    /// The report closed the link to the sender's process, and with the link every channel over it, on both sides.
    Closed,
    /// The report closed no link: the link to the sender's process had been closed before, or the message was not
    /// received from any process.
    Gone,
    /// The report closed no link, because the message was sent from within this process. The caller should close the
    /// channel.
    Within,
    /// The report closed no link, because the message was in the backlog of an end when that end was sent to this
    /// process. One process wrote the message and another process sent the end; either may have made the message bad.
    /// The callback names the process that sent the end. The caller should close the channel.
    Brought,
}
