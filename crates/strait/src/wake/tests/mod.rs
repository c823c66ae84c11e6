//! Tests of the leader and the followers, with and without the model checker.

mod model;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use super::leader::{Doing, Leader};

/// Shows that a follower wakes up and leads after the leader has panicked.
#[test]
fn a_leader_that_panics_stops_leading() {
    let (leader, (tell, told)) = (Arc::new(Leader::<()>::default()), channel());
    let leads = {
        let leader = leader.clone();
        std::thread::spawn(move || {
            let _leading = leader.lead(leader.lock(), Doing::Sleeping).unwrap();
            tell.send(()).unwrap();
            let begin = Instant::now();
            while leader.lock().followers() == 0 && begin.elapsed() < Duration::from_secs(60) {
                yield_now();
            }
            panic!("as the test wants");
        })
    };
    told.recv().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let turn = leader.lead(leader.lock(), Doing::Sleeping).unwrap_err();
        let turn = leader.follow(turn, None);
        tell.send(leader.lead(turn, Doing::Sleeping).is_ok()).unwrap();
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(true));
    assert!(leads.join().is_err());
}
