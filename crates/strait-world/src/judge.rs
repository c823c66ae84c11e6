//! What may be, given what is written down.

use std::sync::atomic::Ordering::SeqCst;

use strait::Error;

use crate::ledger::{Ledger, Place, other};

/// Whether an end is gone: closed, lost, in a process that was killed, or in a message that nobody will receive.
pub(crate) fn is_gone(ledger: &Ledger, end: u32) -> bool {
    match ledger.end(end).place() {
        Place::Nowhere | Place::Closed | Place::Lost => true,
        // Who accepts may have died before it knew what it accepted.
        Place::Offered => true,
        Place::Held { life, .. } => ledger.lives[life].is_doomed(),
        Place::Riding { stream, number } => is_dropped(ledger, stream, number),
    }
}

/// Whether a message with ends in it will never be received.
fn is_dropped(ledger: &Ledger, stream: u32, number: u64) -> bool {
    let carrier = ledger.end(stream);
    // Its sender was killed in the middle of the call, which may or may not have sent it.
    let is_sent = carrier.accepted.load(SeqCst) > number;
    let sender_is_dead = matches!(carrier.place(), Place::Held { life, .. } if ledger.lives[life].is_doomed());
    !is_sent && sender_is_dead || is_gone(ledger, other(stream))
}

/// Whether an end rides in a message whose handles may have been lost when the message was taken along to another process, or put
/// back, which shows once that message is received. If so, the end is presumed lost from here on.
pub(crate) fn presume_lost(ledger: &Ledger, end: u32) -> bool {
    let may_be = may_be_lost(ledger, end);
    if may_be {
        ledger.end(end).is_presumed_lost.store(1, SeqCst);
    }
    may_be
}

fn may_be_lost(ledger: &Ledger, end: u32) -> bool {
    let Place::Riding { stream, .. } = ledger.end(end).place() else { return false };
    let had_hardship = |end| ledger.end(end).hardship.load(SeqCst) != 0;
    // It may have been received without its handles, and put back.
    let receiver = ledger.end(other(stream)).place();
    let receiver_lacks = matches!(receiver, Place::Held { life, .. } if ledger.lives[life].has_been_short());
    receiver_lacks || had_hardship(stream) || had_hardship(other(stream)) || may_be_lost(ledger, other(stream))
}

/// Whether an error says that this process lacks something just now.
pub(crate) fn is_shortage(error: Error) -> bool {
    matches!(
        error,
        Error::NoDescriptors
            | Error::NoMemory { .. }
            | Error::HandlesLost { .. }
            | Error::LimitReached(_)
            | Error::System { code: libc::EMFILE | libc::ENOMEM | libc::ENOBUFS, .. }
            | Error::System { call: "clone", code: libc::EAGAIN }
    )
}
