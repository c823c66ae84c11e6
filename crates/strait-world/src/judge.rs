//! Judgements from the ledger: which ends are gone or may be lost, and which errors come from a shortage.

use std::sync::atomic::Ordering::SeqCst;

use strait::Error;

use crate::ledger::{Ledger, Place};

/// Returns whether an end may be gone: closed, lost, in a killed process, or in a message that no process will
/// receive.
pub(crate) fn is_gone(ledger: &Ledger, end: u32) -> bool {
    is_gone_or(ledger, end, true)
}

/// Returns whether the other end of the channel of `end` may be gone.
pub(crate) fn is_peer_gone(ledger: &Ledger, end: u32) -> bool {
    is_peer_gone_or(ledger, end, true)
}

/// Returns whether the other end of the channel of `end` is gone for certain.
pub(crate) fn is_peer_gone_for_certain(ledger: &Ledger, end: u32) -> bool {
    is_peer_gone_or(ledger, end, false)
}

/// Returns whether an end is gone; returns `unknown` if the answer depends on a fuse or a send during which the
/// process was killed.
fn is_gone_or(ledger: &Ledger, end: u32, unknown: bool) -> bool {
    match ledger.end(end).place() {
        Place::Nowhere | Place::Closed | Place::Lost => true,
        // The accepting process may have died before learning the number of the accepted channel, or may learn the
        // number later.
        Place::Offered => unknown,
        Place::Held { life, .. } => ledger.lives[life].is_doomed(),
        Place::Riding { stream, number } => is_dropped(ledger, stream, number, unknown),
        Place::Fusing { .. } | Place::Fused { .. } => false,
    }
}

fn is_peer_gone_or(ledger: &Ledger, end: u32, unknown: bool) -> bool {
    if ledger.is_fuse_unknown(end) { unknown } else { is_gone_or(ledger, ledger.peer(end), unknown) }
}

/// Returns whether no process will receive a message with ends in it; `unknown` as for [`is_gone_or`].
fn is_dropped(ledger: &Ledger, stream: u32, number: u64, unknown: bool) -> bool {
    let carrier = ledger.end(stream);
    // A sender killed during the call may or may not have sent the message.
    let is_sent = ledger.is_settled(stream, number);
    let sender_is_dead = matches!(carrier.place(), Place::Held { life, .. } if ledger.lives[life].is_doomed());
    (unknown && !is_sent && sender_is_dead) || is_peer_gone_or(ledger, stream, unknown)
}

/// Returns whether an end may be lost: the handles of its message may have been lost when the message moved to
/// another process or was put back. Such a loss shows only when the message is received. If so, the end is presumed
/// lost from now on.
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
    // The message may have been received without its handles, and put back.
    let receiver = ledger.end(ledger.peer(stream)).place();
    let receiver_lacks = matches!(receiver, Place::Held { life, .. } if ledger.lives[life].has_been_short());
    let had_any = had_hardship(stream) || ledger.far_ends(stream).any(had_hardship);
    receiver_lacks || had_any || may_be_lost(ledger, ledger.peer(stream))
}

/// Returns whether `end` or its other end arrived in a message from a sender that was killed before the hand-over. If
/// so, both ends may have been reported as closed.
pub(crate) fn may_be_abandoned(ledger: &Ledger, end: u32) -> bool {
    let was_sent_in_vain = |(stream, number): (u32, u64)| {
        let sender = ledger.end(stream);
        let is_dead = matches!(sender.place(), Place::Held { life, .. } if ledger.lives[life].is_doomed());
        is_dead && !ledger.is_settled(stream, number)
    };
    ledger.far_ends(end).chain([end]).any(|end| ledger.end(end).unsettled().any(was_sent_in_vain))
}

/// Returns whether an error reports a present lack of descriptors or memory in this process.
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
