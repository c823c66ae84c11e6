//! Members whose end is closed while another thread adds it.

use std::sync::Arc;

use crate::channel::{Channel, Watcher};
use crate::link::Link;
use crate::wait_set::member::{Member, Subject, Terms};
use crate::wait_set::{Interest, Mode, WaitSet};
use crate::wake::Direction;

/// Shows that a member does not outlive its end: a link holds its members, and a member its links, so such a link would
/// stay open for ever.
#[test]
fn an_end_that_is_added_while_it_is_closed_leaves_no_member() {
    let (ours, _theirs) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    let end = Arc::clone(&ours.end);
    drop(ours);
    // The thread that adds the end has not seen the close yet.
    let terms = Terms::new(1, Interest::Readable, Mode::Level);
    let member = Member::new(&set.shared, Subject::end(&end, None), terms, None);
    end.join_set(member.clone()).unwrap();
    member.register_for(Direction::Receiving, &Link::own()).unwrap();
    let left = Arc::downgrade(&member);
    drop((member, set, end));
    assert_eq!(left.strong_count(), 0);
}
