//! Channels of a connect over a link that an earlier connect has made: see [`crate::link::reuse`].

use std::sync::{Arc, Mutex};

use super::{Channel, End, Options};
use crate::deferred;
use crate::error::Error;
use crate::lane::arena::SMALL;
use crate::lane::{Lane, Name};
use crate::link::packet::Packet;
use crate::link::{Attachments, InUse, Link};
use crate::os::fork::PerProcess;
use crate::quota::OverLimit;
use crate::sync::unpoisoned;

/// Makes a lane on the link `reused`, for an end in this process and an end in the connecting process. Announces the
/// lane's arena to that process.
pub(super) fn make(reused: &InUse) -> Result<Lane, Error> {
    let (arena, name, [own, other]) = Link::make_lane(&Link::own(), reused, SMALL)?;
    let lane = Lane::in_arena(&arena, name, 0, reused.clone(), None).expect("it was made just now");
    lane.complete_transfer();
    Ok(lane.announced_over([other, own]))
}

/// Accepts a process that has connected over the socket of `link`: names `lane` to it, which is on another link.
/// Returns the end of this process.
pub(super) fn accept(link: &Link, lane: Lane, options: &Options) -> Result<Channel, Error> {
    let accepts = Packet::Accept { lane: Some(lane.name().to_words()) };
    if let Err(error) = link.send_first(&accepts, Attachments::NOTHING) {
        lane.unmake();
        return Err(error);
    }
    Ok(Channel { end: Arc::new(End::new(Arc::new(lane), &options.shared())) })
}

/// Creates the channel of a connect that was accepted in the lane `name` of the link `reused`. If the lane cannot be
/// found for lack of a resource, fails, and closes this end later: the listener has the other end already.
pub(super) fn over(reused: InUse, name: Name, options: &Options) -> Result<Channel, Error> {
    let found = find(&reused, name, options, OverLimit::Refuse);
    if found.as_ref().is_err_and(|error| error.passes()) {
        unpoisoned(lost().get()).push((reused, name));
        deferred::try_later("failed connects", close_lost);
    }
    found
}

fn find(link: &InUse, name: Name, options: &Options, over_limit: OverLimit) -> Result<Channel, Error> {
    let lane = link.find_lane(name, 1, false, over_limit)?;
    lane.claim();
    Ok(Channel { end: Arc::new(End::new(Arc::new(lane), &options.shared())) })
}

/// The lanes of failed connects after the listener's accept, each with its link.
type Lost = Mutex<Vec<(InUse, Name)>>;

fn lost() -> &'static PerProcess<Lost> {
    static LOST: PerProcess<Lost> = PerProcess::new(Mutex::default);
    &LOST
}

/// Closes the ends of connects that failed after the listener had accepted. If some cannot be closed yet, a later call
/// of the library tries again.
fn close_lost() {
    let lanes = std::mem::take(&mut *unpoisoned(lost().get()));
    for (link, name) in lanes {
        if !link.is_down() && find(&link, name, &Options::new(), OverLimit::Exceed).is_err_and(|error| error.passes()) {
            unpoisoned(lost().get()).push((link, name));
            deferred::try_later("failed connects", close_lost);
        }
    }
}
