//! Announcements that are passed on from one link to another, or forgotten, while another thread is at a certain step.
//! Each test is that thread: it leads a link, or holds a link that nothing uses any more. Each test runs in a process
//! of its own, because calls of other threads receive from all links of their process, and hold links for a moment.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::process::{Resource as ProcessResource, Rlimit, getrlimit, setrlimit};

use crate::deferred;
use crate::error::Error;
use crate::lane::Name;
use crate::lane::arena::SMALL;
use crate::lane::directory::LaneDirectory;
use crate::link::packet::Packet;
use crate::link::uses::Directory;
use crate::link::{Attachments, InUse, Link, peers};
use crate::os::alone::is_alone;
use crate::os::call_thread::UNTIL_REFUSED;
use crate::os::socket::{self, credentials};
use crate::quota::{self, OverLimit, Resource};
use crate::shm::{Mapping, Shareable, lane_size};
use crate::wake::leader::Doing;

/// The value of the field `with` of an arena packet if both ends of each lane are in this process.
const WITH_YOURSELF: u64 = 1;

/// The value of the field `with` of an arena packet for the processes of the introduction with number 0.
const WITH_INTRODUCED: u64 = 2;

/// A link of this process, and the other end of its socket, by which the test is the peer.
struct Pair {
    ours: InUse,
    peer: InUse,
}

impl Pair {
    /// Creates a link over which nothing has come yet.
    fn new() -> Self {
        let (ours, peer) = socket::pair().unwrap();
        let over = |socket| Link::over(socket, usize::MAX, Arc::<LaneDirectory>::default()).unwrap();
        Self { ours: over(ours), peer: over(peer) }
    }

    /// Creates a link whose peer has said that its name is `name`.
    fn named(name: u128) -> Self {
        let pair = Self::new();
        pair.peer.send_handshake(name).unwrap();
        pair.ours.drain_once();
        pair
    }

    fn send(&self, packet: Packet, attachments: Attachments<'_>) {
        assert_eq!(self.peer.try_send(&packet, attachments), Ok(true));
    }

    /// Introduces another process, which is at the returned socket, under this number.
    fn introduce(&self, number: u64) -> std::os::fd::OwnedFd {
        let (theirs, other) = socket::pair().unwrap();
        credentials::ask(theirs.as_fd(), true).unwrap();
        self.send(Packet::Introduce { number, name: 0, inode: 0 }, Attachments::descriptors(&[theirs.as_fd()]));
        other
    }

    /// Announces an arena with two lanes, under the number `number`, for the process that was introduced as `with`.
    fn announce(&self, memory: &Shareable, number: u64, with: u64) {
        let with = WITH_INTRODUCED + with;
        let packet = Packet::Arena { token: 1, number, lanes: 2, cells: SMALL as u32, with };
        self.send(packet, Attachments::memory(memory));
    }
}

/// Returns memory for an arena with two lanes.
fn lane_memory() -> Shareable {
    let (mapping, fd) = Mapping::shared("strait-test", 2 * lane_size(SMALL)).unwrap();
    Shareable { mapping, fd: Some(fd) }
}

fn name(arena: u64) -> Name {
    Name { arena, slot: 0, usage: 0 }
}

/// Shows that an honest peer is not accused if this process has forgotten an introduction, because it uses the link no
/// more, and an arena for the introduced process comes after that.
#[test]
fn an_arena_for_a_process_whose_introduction_was_forgotten_is_no_breach() {
    if !is_alone() {
        return;
    }
    let link = Pair::named(0xa1);
    let _other = link.introduce(7);
    link.ours.drain_once();
    // Another thread has the link, and leads it, so the last search leaves its packets out.
    let held = Arc::clone(&link.ours);
    let leading = held.try_lead(Doing::Sleeping).unwrap();
    link.announce(&lane_memory(), 1, 7);
    let Pair { ours, peer: _peer } = link;
    drop(ours);
    assert!(held.announcements().is_empty());
    held.leave(leading);
    held.drain_once();
    let missing = Error::BadPeer("missing");
    assert_eq!(held.missing(missing), missing, "no accusation came before");
    assert!(held.announcements().is_empty());
}

/// Shows that nothing is left of an announcement that another one replaced while the link was dropped, although the
/// program makes no other call.
#[test]
fn an_announcement_that_is_replaced_while_its_link_is_dropped_is_forgotten() {
    if !is_alone() {
        return;
    }
    let link = Pair::named(0xa7);
    let held = Arc::clone(&link.ours);
    let leading = held.try_lead(Doing::Sleeping).unwrap();
    let others = [(); 2].map(|()| link.introduce(7));
    let Pair { ours, peer: _peer } = link;
    drop(ours);
    held.leave(leading);
    drop(held);
    for other in others {
        let wait = || {
            let limit = crate::deadline::Deadline::after(Duration::from_secs(20));
            socket::wait(other.as_fd(), socket::Interest::Readable, limit).unwrap()
        };
        // The handshake of the link that was introduced comes first.
        assert!(wait().readable);
        socket::take(other.as_fd(), &mut [0; 64]).unwrap();
        assert!(wait().hung_up, "a link is still open");
    }
}

/// Shows that the links to introduced processes that have ended are closed, except those that a remembered arena names,
/// and that the peer may announce an arena for such a process later. Its end finds the process gone.
#[test]
fn links_to_introduced_processes_that_have_ended_are_closed() {
    if !is_alone() {
        return;
    }
    let link = Pair::named(0xb1);
    let alive = link.introduce(0);
    for number in 1..=20 {
        drop(link.introduce(number));
    }
    link.announce(&lane_memory(), 1, 1);
    link.ours.drain_once();
    deferred::run();
    let named = || {
        let mut numbers = Vec::new();
        link.ours.announcements().named(|link| numbers.push(link.number()));
        numbers.sort_unstable();
        numbers.dedup();
        numbers.len()
    };
    assert_eq!(named(), 2, "the process that is alive, and the one that the arena names");
    link.announce(&lane_memory(), 2, 2);
    link.ours.drain_once();
    assert_eq!(link.ours.missing(Error::PeerClosed), Error::PeerClosed, "no accusation");
    let lane = link.ours.find_lane(name(2), 0, false, OverLimit::Refuse).unwrap();
    let gone = || {
        lane.link().probe();
        lane.link().is_down()
    };
    assert!(gone());
    drop(lane);
    drop(alive);
}

/// Shows that an arena for a process that was never introduced is still a breach.
#[test]
fn an_arena_for_a_process_that_was_never_introduced_is_a_breach() {
    if !is_alone() {
        return;
    }
    let link = Pair::named(0xa2);
    link.announce(&lane_memory(), 1, 7);
    link.ours.drain_once();
    assert_eq!(link.ours.reason(), Error::BadPeer("an arena shared with an unknown process"));
}

/// Shows that announcements are passed on to a link whose handshake another thread is about to receive.
#[test]
fn announcements_pass_to_a_link_whose_handshake_another_thread_is_about_to_receive() {
    if !is_alone() {
        return;
    }
    let (old, new) = (Pair::named(0xa3), Pair::new());
    let _other = old.introduce(7);
    old.announce(&lane_memory(), 1, 7);
    old.ours.drain_once();
    let leading = new.ours.try_lead(Doing::Sleeping).unwrap();
    new.peer.send_handshake(0xa3).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The time for which a leader needs a processor.
            std::thread::sleep(Duration::from_millis(5));
            new.ours.receive_and_leave(leading).unwrap();
        });
        drop(old);
    });
    assert!(new.ours.find_lane(name(1), 0, false, OverLimit::Refuse).is_ok());
}

/// Shows that announcements are passed on to a link that another thread is about to learn of: that thread leads the
/// link of the introducer, in whose socket the introduction is.
#[test]
fn announcements_pass_to_a_link_that_another_thread_is_about_to_be_introduced_to() {
    if !is_alone() {
        return;
    }
    let (old, introducer) = (Pair::named(0xa9), Pair::named(0xaa));
    let _other = old.introduce(7);
    old.announce(&lane_memory(), 1, 7);
    old.ours.drain_once();
    let leading = introducer.ours.try_lead(Doing::Sleeping).unwrap();
    let over = |socket| Link::over(socket, usize::MAX, Arc::<LaneDirectory>::default()).unwrap();
    let new = over(introducer.introduce(8));
    new.send_handshake(0xa9).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The time for which a leader needs a processor.
            std::thread::sleep(Duration::from_millis(5));
            introducer.ours.receive_and_leave(leading).unwrap();
        });
        drop(old);
    });
    let mut found = None;
    introducer.ours.announcements().named(|link| found = Some(Arc::clone(link)));
    assert!(found.expect("the introduced link").find_lane(name(1), 0, false, OverLimit::Refuse).is_ok());
}

/// Shows that the last use of a link may end while another thread learns that a newer link leads to the link's process:
/// that thread drops the link under no lock, and not before it has stopped leading.
#[test]
fn a_link_whose_use_ends_while_another_link_learns_its_name_is_dropped_later() {
    if !is_alone() {
        return;
    }
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (old, new) = (Pair::named(0xae), Pair::new());
        let link = Arc::downgrade(&old.ours);
        let other = old.introduce(7);
        old.ours.drain_once();
        new.peer.send_handshake(0xae).unwrap();
        peers::MEANWHILE.set(Some(Box::new(move || drop(old))));
        let leading = new.ours.try_lead(Doing::Sleeping).unwrap();
        new.ours.receive_all(|_| false).unwrap();
        let was_kept = link.strong_count() > 0;
        new.ours.leave(leading);
        while link.strong_count() > 0 {
            deferred::run();
        }
        tell.send((was_kept, new.ours.announcements().is_empty())).unwrap();
        drop((new, other));
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok((true, false)));
}

/// Sends more packets over this link than one look of this process receives.
fn send_many(pair: &Pair) {
    // A look receives few packets from a peer that has used up its wake-ups for nothing.
    while !pair.ours.woken_for_nothing() {}
    (0..100).for_each(|_| pair.send(Packet::Wake, Attachments::NOTHING));
}

/// Shows that a link passes on what its peer has announced over it, also if many packets were sent before that, and all
/// of them are unread when the link is dropped.
#[test]
fn announcements_behind_many_packets_pass_to_another_link() {
    if !is_alone() {
        return;
    }
    let (old, new) = (Pair::named(0xab), Pair::named(0xab));
    send_many(&old);
    let _other = old.introduce(7);
    old.announce(&lane_memory(), 1, 7);
    drop(old);
    assert!(new.ours.find_lane(name(1), 0, false, OverLimit::Refuse).is_ok());
}

/// Shows that announcements are passed on to a link whose introduction is behind many packets.
#[test]
fn announcements_pass_to_a_link_that_is_introduced_behind_many_packets() {
    if !is_alone() {
        return;
    }
    let (old, introducer) = (Pair::named(0xac), Pair::named(0xad));
    let _other = old.introduce(7);
    old.announce(&lane_memory(), 1, 7);
    old.ours.drain_once();
    send_many(&introducer);
    let over = |socket| Link::over(socket, usize::MAX, Arc::<LaneDirectory>::default()).unwrap();
    let new = over(introducer.introduce(8));
    new.send_handshake(0xac).unwrap();
    drop(old);
    introducer.ours.drain_once();
    let mut found = None;
    introducer.ours.announcements().named(|link| found = Some(Arc::clone(link)));
    assert!(found.expect("the introduced link").find_lane(name(1), 0, false, OverLimit::Refuse).is_ok());
}

/// Shows that a peer sees the end of a link before this process forgets what the peer has announced over it, if another
/// link may turn out to lead to that peer. The peer then does not refer to those announcements over the other link.
#[test]
fn a_peer_sees_that_a_link_ends_before_its_announcements_are_forgotten() {
    if !is_alone() {
        return;
    }
    let (old, new) = (Pair::named(0xa4), Pair::new());
    let _other = old.introduce(7);
    old.ours.drain_once();
    let held = Arc::clone(&old.ours);
    let Pair { ours, peer } = old;
    drop(ours);
    assert!(held.announcements().is_empty());
    peer.probe();
    assert!(peer.is_down());
    drop(new);
}

/// Shows that announcements with one number over two links stay apart if one of these links takes over what came over
/// the other. The peer did not know that both links lead here, and introduced this process to itself.
#[test]
fn announcements_with_one_number_over_two_links_stay_apart() {
    if !is_alone() {
        return;
    }
    let (one, two) = (Pair::named(0xa5), Pair::named(0xa5));
    let memory = lane_memory();
    let _others = [&one, &two].map(|link| {
        let other = link.introduce(7);
        link.announce(&memory, 1, 7);
        link.ours.drain_once();
        other
    });
    drop(one);
    let found = [0, 1].map(|side| two.ours.find_lane(name(1), side, false, OverLimit::Refuse).unwrap());
    assert_ne!(found[0].link().number(), found[1].link().number(), "each end has its own half of the introduction");
}

/// Shows that both ends of a lane get different links if the announcements are found over a third link to the peer.
#[test]
fn ends_of_one_lane_that_are_named_over_a_third_link_get_different_links() {
    if !is_alone() {
        return;
    }
    let links = [(); 3].map(|()| Pair::named(0xa6));
    let memory = lane_memory();
    let _others = [&links[0], &links[1]].map(|link| {
        let other = link.introduce(7);
        link.announce(&memory, 1, 7);
        link.ours.drain_once();
        other
    });
    let found = [0, 1].map(|side| links[2].ours.find_lane(name(1), side, false, OverLimit::Refuse).unwrap());
    assert_ne!(found[0].link().number(), found[1].link().number());
}

/// Shows that a process which gets both ends of a lane knows of each end when it comes.
#[test]
fn the_other_end_of_a_lane_within_this_process_is_here_once_it_has_come() {
    if !is_alone() {
        return;
    }
    let link = Pair::named(0xa8);
    let packet = Packet::Arena { token: 1, number: 1, lanes: 2, cells: SMALL as u32, with: WITH_YOURSELF };
    link.send(packet, Attachments::memory(&lane_memory()));
    let find = |side| link.ours.find_lane(name(1), side, false, OverLimit::Refuse).unwrap();
    let first = find(0);
    assert!(!first.is_other_here());
    let second = find(1);
    assert!(first.is_other_here() && second.is_other_here());
    drop(second);
    assert!(!first.is_other_here());
}

/// Shows that a search within the destructor of a link waits for a link that another thread is dropping, and does not
/// wait for its own.
#[test]
fn a_search_in_a_destructor_waits_for_links_that_other_threads_drop() {
    if !is_alone() {
        return;
    }
    let (own, other) = (Pair::new(), Pair::new());
    let wait = || {
        let begin = std::time::Instant::now();
        crate::link::peers::await_dropped(crate::deadline::Deadline::after(Duration::from_secs(60)));
        begin.elapsed()
    };
    let number = other.ours.number();
    let (dropping, is_dropping) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let link = Arc::clone(&other.ours);
            // The list has no link with this number that can still be used, as in a destructor.
            crate::link::peers::list_as_dropped(&link);
            dropping.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            crate::link::peers::forget(number);
            drop((link, other));
        });
        is_dropping.recv().unwrap();
        let mut waited = Duration::ZERO;
        crate::link::peers::while_dropping(own.ours.number(), || {
            crate::link::peers::list_as_dropped(&own.ours);
            waited = wait();
        });
        assert!(waited >= Duration::from_millis(20), "waited for {waited:?}");
        assert!(waited < Duration::from_secs(30), "waited for its own link");
    });
}

/// Shows that a thread which receives finds an introduction at a link that another thread is dropping, and does not
/// wait for that thread: such a thread may wait for the one that receives.
#[test]
fn an_introduction_is_found_at_a_link_that_is_being_dropped() {
    if !is_alone() {
        return;
    }
    // The link that is being dropped has taken the announcements of the other one over, and is in no table of peers.
    let (link, dropped) = (Pair::named(0xa9), Pair::new());
    let _other = link.introduce(7);
    link.ours.drain_once();
    let announcements = std::mem::take(&mut *link.ours.announcements());
    let _ = dropped.ours.announcements().take_over(announcements);
    peers::list_as_dropped(&dropped.ours);
    link.announce(&lane_memory(), 1, 7);
    link.ours.drain_once();
    let missing = Error::BadPeer("missing");
    assert_eq!(link.ours.missing(missing), missing, "no accusation came before");
    link.ours.find_lane(name(1), 0, false, OverLimit::Refuse).expect("the lane to the introduced process");
}

/// Shows that a process which introduced two others, and may have a copy of the socket between them, gets nothing of
/// what another process introduces between the two. What the first one introduces again goes over the link that is
/// there.
#[test]
fn an_older_link_stands_only_for_links_that_its_introducers_can_harm_too() {
    if !is_alone() {
        return;
    }
    let (one, two) = (Pair::named(0xb1), Pair::named(0xb2));
    let over = |socket| Link::over(socket, usize::MAX, Arc::<LaneDirectory>::default()).unwrap();
    // Both introduce the process 0xb3.
    let introduced = |by: &Pair, number| {
        let before: Vec<u64> = peers::all_there_are().iter().map(|link| link.number()).collect();
        let process = over(by.introduce(number));
        process.send_handshake(0xb3).unwrap();
        by.ours.drain_once();
        let mut found = None;
        by.ours.announcements().named(|link| {
            found = found.take().or_else(|| (!before.contains(&link.number())).then(|| Arc::clone(link)));
        });
        let found = found.expect("the introduced link");
        found.drain_once();
        (found, process)
    };
    let (first, _process) = introduced(&one, 1);
    let (second, _other_process) = introduced(&two, 2);
    let (again, _process_again) = introduced(&one, 3);
    assert_eq!(first.process(), second.process());
    assert_eq!(first.oldest_link().number(), first.number());
    assert_eq!(second.oldest_link().number(), second.number());
    assert_eq!(again.oldest_link().number(), first.number());
    // A process that the first one introduced introduces a fourth one: the first one may have copies of both sockets.
    let (third, process) = introduced(&one, 4);
    let through = Pair { ours: third.in_use(), peer: process };
    let (behind, _process_behind) = introduced(&through, 5);
    assert_eq!(behind.oldest_link().number(), first.number());
    assert_eq!(first.oldest_link().number(), first.number());
}

/// Shows that an end that is closed has its lane mapped over a limit, unless the lane's arena is larger than an honest
/// process makes: this process would keep private memory for each of its lanes.
#[test]
fn an_arena_larger_than_an_honest_one_is_not_mapped_over_a_limit() {
    if !is_alone() {
        return;
    }
    quota::set_limits(quota::Limits::new().peer(Resource::Lanes, 2));
    for (lanes, is_mapped) in [(64, true), (1 << 20, false)] {
        let link = Pair::named(0xb4);
        let (mapping, fd) = Mapping::shared("strait-test", lanes * lane_size(SMALL)).unwrap();
        let arena = Packet::Arena { token: 1, number: 1, lanes: lanes as u32, cells: SMALL as u32, with: 0 };
        link.send(arena, Attachments::memory(&Shareable { mapping, fd: Some(fd) }));
        link.ours.drain_once();
        let find = |over_limit| link.ours.find_lane(name(1), 0, false, over_limit).map(drop);
        let limit = Err(Error::LimitReached(Resource::Lanes));
        assert_eq!(find(OverLimit::Refuse), limit);
        assert_eq!(find(OverLimit::Exceed), if is_mapped { Ok(()) } else { limit });
    }
}

/// Shows that an introduced link that lacked a resource for its last receive loses no packet in the next.
#[test]
fn an_introduced_link_that_was_stuck_learns_who_its_peer_is() {
    if !is_alone() {
        return;
    }
    let one = Pair::named(0xb4);
    let process = Link::over(one.introduce(1), usize::MAX, Arc::<LaneDirectory>::default()).unwrap();
    let found = newest_introduced(&one);
    process.send_handshake(0xb5).unwrap();
    found.reader.stuck.store(true, std::sync::atomic::Ordering::Relaxed);
    found.drain_once();
    assert!(found.process().is_some());
}

/// Shows that a packet that was processed is not processed again, if no thread could be started for the removal of the
/// packet from an introduced socket.
#[test]
fn a_packet_that_no_thread_could_remove_is_processed_once() {
    if !is_alone() {
        return;
    }
    let one = Pair::named(0xb6);
    let process = Link::over(one.introduce(1), usize::MAX, Arc::<LaneDirectory>::default()).unwrap();
    let found = newest_introduced(&one);
    process.send_handshake(0xb7).unwrap();
    found.drain_once();
    assert!(found.process().is_some());
    let packet = Packet::Arena { token: 1, number: 5, lanes: 2, cells: SMALL as u32, with: 0 };
    assert_eq!(process.try_send(&packet, Attachments::memory(&lane_memory())), Ok(true));
    // The look at the packet finds a thread, and the removal finds none.
    UNTIL_REFUSED.set(Some(1));
    let lane = found.find_lane(name(5), 0, false, OverLimit::Refuse);
    assert_eq!(UNTIL_REFUSED.get(), None, "a call was refused");
    let lane = lane.unwrap();
    found.drain_once();
    assert!(!found.is_down(), "{:?}", found.reason());
    let again = found.find_lane(name(5), 0, false, OverLimit::Refuse);
    assert_eq!(again.err(), Some(Error::BadPeer("an end that this process has or had already")));
    drop(lane);
}

/// Shows that an end whose lane was made ready is found although nothing can be received from its link. Otherwise the
/// end would be lost: its message has been received by then.
#[test]
fn a_lane_that_was_made_ready_is_found_without_a_receive() {
    if !is_alone() {
        return;
    }
    let [one, two] = [(); 2].map(|()| Pair::named(0xb8));
    let _other = one.introduce(7);
    one.announce(&lane_memory(), 1, 7);
    let _arena = two.ours.ready_lane(name(1), 0, OverLimit::Refuse).unwrap();
    // This packet needs a descriptor.
    let _third = two.introduce(8);
    let enough = getrlimit(ProcessResource::Nofile);
    let lack = Rlimit { current: Some(0), maximum: enough.maximum };
    setrlimit(ProcessResource::Nofile, lack).unwrap();
    let missing = two.ours.find_lane(name(9), 0, false, OverLimit::Refuse).err();
    let found = two.ours.find_ready_lane(name(1), 0, OverLimit::Refuse);
    setrlimit(ProcessResource::Nofile, enough).unwrap();
    assert_eq!(missing, Some(Error::NoDescriptors));
    found.unwrap();
}

/// A process without free descriptors, until this value is dropped.
struct Starved(Rlimit);

impl Starved {
    fn now() -> Self {
        let before = getrlimit(ProcessResource::Nofile);
        // The kernel gives out the lowest free number.
        let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
        setrlimit(ProcessResource::Nofile, Rlimit { current: Some(lowest), ..before }).unwrap();
        Self(before)
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        setrlimit(ProcessResource::Nofile, self.0).unwrap();
    }
}

/// Calls the library, as a program does, until the link with this directory is closed.
fn await_closed(directory: &Weak<dyn Directory>) {
    let begin = std::time::Instant::now();
    while directory.strong_count() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the link is still open");
        deferred::run();
        std::thread::yield_now();
    }
}

/// Shows that announcements which a dropped link cannot receive, for lack of descriptors, are received later and passed
/// on to another link to the same process. Meanwhile their absence accuses nobody.
#[test]
fn announcements_that_a_dropped_link_cannot_receive_now_are_received_later() {
    if !is_alone() {
        return;
    }
    let (old, new) = (Pair::named(0xb6), Pair::named(0xb6));
    let _other = old.introduce(7);
    old.announce(&lane_memory(), 1, 7);
    let Pair { ours, peer: _peer } = old;
    let dropped = Arc::downgrade(&ours.directory);
    let starved = Starved::now();
    drop(ours);
    let find = |side| new.ours.find_lane(name(1), side, false, OverLimit::Refuse);
    let failed = find(0).map(drop).unwrap_err();
    assert!(failed.passes(), "{failed}");
    drop(starved);
    let first = find(0).expect("the lane of the announcement that is received now");
    await_closed(&dropped);
    let second = find(1).expect("the lane of the announcement that was passed on");
    drop((first, second));
}

/// Shows that announcements which a dropped link cannot receive are received later, if this process does not know yet
/// that another link leads to the same process.
#[test]
fn announcements_that_a_dropped_link_cannot_receive_now_pass_to_a_link_that_is_known_later() {
    if !is_alone() {
        return;
    }
    let (old, introducer) = (Pair::named(0xb7), Pair::named(0xb8));
    let _other = old.introduce(7);
    old.announce(&lane_memory(), 1, 7);
    let new = introduced_unread(&introducer, 0xb7);
    let Pair { ours, peer: _peer } = old;
    let dropped = Arc::downgrade(&ours.directory);
    let starved = Starved::now();
    drop(ours);
    drop(starved);
    let found = newest_introduced(&introducer);
    found.find_lane(name(1), 0, false, OverLimit::Refuse).expect("the lane of the dropped link's announcement");
    await_closed(&dropped);
    drop(new);
}

/// Introduces the process with this name to `pair`, which has not received the introduction yet. Returns the link of
/// the introduced process.
fn introduced_unread(pair: &Pair, name: u128) -> InUse {
    let new = Link::over(pair.introduce(8), usize::MAX, Arc::<LaneDirectory>::default()).unwrap();
    new.send_handshake(name).unwrap();
    new
}

/// Receives an introduction by the peer of `pair`, and returns the link to the introduced process.
fn newest_introduced(pair: &Pair) -> Arc<Link> {
    pair.ours.drain_once();
    let mut found = None;
    pair.ours.announcements().named(|link| found = Some(Arc::clone(link)));
    found.expect("the introduced link")
}

/// Shows that announcements are not forgotten while this process lacks the descriptors to receive the introduction of
/// another link to the same process.
#[test]
fn announcements_wait_for_a_link_whose_introduction_cannot_be_received_now() {
    if !is_alone() {
        return;
    }
    // Whether something besides uses keeps the link, such as announcements over a link of its own.
    for is_kept in [false, true] {
        let process = 0xb9 + u128::from(is_kept);
        let (old, introducer) = (Pair::named(process), Pair::named(0xbb));
        let _other = old.introduce(7);
        old.announce(&lane_memory(), 1, 7);
        old.ours.drain_once();
        let new = introduced_unread(&introducer, process);
        let Pair { ours, peer: _peer } = old;
        let dropped = Arc::downgrade(&ours.directory);
        let kept = is_kept.then(|| Arc::clone(&ours));
        let starved = Starved::now();
        drop(ours);
        assert!(kept.as_ref().is_none_or(|link| !link.announcements().is_empty()));
        drop(starved);
        let found = newest_introduced(&introducer);
        let first = found.find_lane(name(1), 0, false, OverLimit::Refuse);
        let first = first.expect("the lane of an announcement that was not forgotten");
        while kept.as_ref().is_some_and(|link| !link.announcements().is_empty()) {
            deferred::run();
        }
        drop(kept);
        await_closed(&dropped);
        let second = found.find_lane(name(1), 1, false, OverLimit::Refuse);
        let second = second.expect("the lane of an announcement that was passed on");
        drop((first, second, new));
    }
}

/// Shows that a link which cannot receive its announcements for long is closed, because it may hold the descriptors
/// that this process lacks, and that nobody is accused of the loss.
#[test]
fn a_lasting_shortage_closes_links_and_accuses_nobody() {
    if !is_alone() {
        return;
    }
    let (old, new) = (Pair::named(0xbc), Pair::named(0xbc));
    let _other = old.introduce(7);
    old.announce(&lane_memory(), 1, 7);
    let Pair { ours, peer: _peer } = old;
    let dropped = Arc::downgrade(&ours.directory);
    let starved = Starved::now();
    drop(ours);
    await_closed(&dropped);
    let find = || new.ours.find_lane(name(1), 0, false, OverLimit::Refuse).map(drop);
    assert_eq!(find(), Err(Error::PeerClosed));
    drop(starved);
    assert_eq!(find(), Err(Error::PeerClosed));
}
