//! Members whose end is closed or sent while another thread adds it.

use std::sync::Arc;

use crate::channel::{Channel, Conditions, Watcher};
use crate::deadline::Deadline;
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

/// Shows that a trap is reported as removed if its end got the trap during a send that then failed: the end goes back
/// into the wait set that it was in.
#[test]
fn an_end_that_is_added_while_a_send_of_it_fails_goes_back_to_its_former_set() {
    let (ours, _theirs) = Channel::pair().unwrap();
    let (set, traps) = (WaitSet::new().unwrap(), WaitSet::new().unwrap());
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    let former = ours.end.take_member().unwrap();
    assert!(!traps.add_trap(&ours.end, 2, Conditions::new().messages(1), true).unwrap());
    ours.end.put_member_back(former);
    let mut events = Vec::new();
    traps.wait(&mut events, Deadline::NOW).unwrap();
    assert!(events[0].key() == 2 && events[0].has_moved());
    assert_eq!(set.remove(&ours), Ok(()));
}
