//! Tests of the links between processes: how many sockets and mappings moves and introductions leave behind.

mod common;

use std::fs::File;
use std::time::Duration;

use common::{Actor, finish, parent, play, spawn, spawn_with};
use strait::meet::{Connector, Listener, connect};
use strait::quota::Resource;
use strait::{Channel, Deadline, Error, Options, Outgoing};

/// The time after which a wait of a test fails; long enough for a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn child() {
    play(&[
        ("idle", |others| idle(others.parse().unwrap())),
        ("fused", |_| fused()),
        ("homecoming", |_| homecoming()),
        ("forwarder", |_| forwarder()),
        ("mesh", |_| mesh()),
        ("member", |_| member()),
        ("crossing", crossing),
        ("mover", |_| mover()),
        ("without another", |_| without_another()),
        ("dropper", |_| dropper()),
        ("closed at once", |_| closed_at_once()),
        ("closer", |_| closer()),
        ("restarts", |_| restarts()),
        ("camera", |_| camera()),
        ("filter", |_| filter()),
        ("server", server),
        ("client", client),
        ("counter", |_| counter()),
        ("deaf", |_| deaf()),
        ("blocked introducer", |_| blocked_introducer()),
        ("blocked sender", |_| blocked_sender()),
    ]);
}

/// Receives a message with a channel end.
fn take(channel: &Channel) -> Channel {
    let mut handles = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap();
    assert_eq!(handles.len(), 1);
    handles.remove(0).into_channel().unwrap()
}

/// Sends a message with a channel end.
fn give(channel: &Channel, end: Channel) {
    channel.send_by(Outgoing::new(b"").handle(end), DEADLINE).unwrap();
}

/// Receives two roads from the parent, and then passes on each end that comes over the first over the second.
fn forwarder() {
    let parent = parent();
    let (from, to) = (take(&parent), take(&parent));
    loop {
        let Ok(mut message) = from.recv() else { return };
        give(&to, message.take_handles().unwrap().remove(0).into_channel().unwrap());
    }
}

/// Two processes and the roads to them: an end that is sent to the first comes back from the second.
struct Ring {
    actors: Vec<Actor>,
    to: Channel,
    from: Channel,
}

impl Ring {
    fn new() -> Self {
        Self::of(2)
    }

    /// Creates a ring of this process and `others` other processes, each with channels to both neighbours.
    fn of(others: usize) -> Self {
        let (actors, parents): (Vec<_>, Vec<_>) = (0..others).map(|_| spawn("forwarder")).unzip();
        let (to, mut road) = Channel::pair().unwrap();
        for parent in parents {
            let (from, next) = Channel::pair().unwrap();
            give(&parent, std::mem::replace(&mut road, from));
            give(&parent, next);
        }
        Self { actors, to, from: road }
    }

    fn end(self) {
        drop((self.to, self.from));
        self.actors.into_iter().for_each(finish);
    }
}

/// Returns the number of descriptors of the process `pid`.
fn descriptors_of(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Shows that an idle end costs no descriptors in any process, however often the other end goes round other processes.
/// At last both ends are in this process again, and find each other.
#[test]
fn an_end_that_goes_round_leaves_no_links_behind() {
    // With three others, each of them knows this process only from what its neighbour has been told.
    for others in ["2", "3", "5"] {
        common::alone("idle", others);
    }
}

fn idle(others: usize) {
    let ring = Ring::of(others);
    let (idle, mut goes) = Channel::pair().unwrap();
    let descriptors = |ring: &Ring| {
        let of_others = ring.actors.iter().map(|actor| descriptors_of(actor.0.id()));
        of_others.chain([common::descriptors()]).collect::<Vec<_>>()
    };
    let mut after_two = Vec::new();
    for round in 0..200 {
        give(&ring.to, goes);
        goes = take(&ring.from);
        if round == 1 {
            after_two = descriptors(&ring);
        }
    }
    // A link that came with the end may be closed a moment later.
    let is_flat = || descriptors(&ring).into_iter().zip(&after_two).all(|(now, before)| now <= before + 2);
    assert!(is_flat(), "{:?}, and after two rounds {after_two:?}", descriptors(&ring));
    idle.send_by(b"at last", DEADLINE).unwrap();
    assert_eq!(goes.recv_by(DEADLINE).unwrap().bytes(), b"at last");
    assert!(common::descriptors() <= 13 + others, "{}", common::descriptors());
    for end in [&idle, &goes] {
        assert_eq!(end.peer().unwrap().and_then(|peer| peer.pid), Some(std::process::id()));
    }
    drop((idle, goes));
    ring.end();
}

/// Shows that a returned end finds its other end even if the link of its return is closed before this process has read
/// where the other end goes on.
#[test]
fn an_end_that_came_home_does_not_need_its_road() {
    common::alone("homecoming", "");
}

fn homecoming() {
    for _ in 0..20 {
        let Ring { actors, to, from } = Ring::new();
        let (idle, goes) = Channel::pair().unwrap();
        give(&to, goes);
        let goes = take(&from);
        drop(from);
        idle.send_by(b"at last", DEADLINE).unwrap();
        assert_eq!(goes.recv_by(DEADLINE).unwrap().bytes(), b"at last");
        goes.send_by(b"back", DEADLINE).unwrap();
        assert_eq!(idle.recv_by(DEADLINE).unwrap().bytes(), b"back");
        drop(to);
        actors.into_iter().for_each(finish);
    }
}

/// Shows that no process keeps the memory of a lane for an expected end that never came, because the other end was
/// moved or closed at the same time.
#[test]
fn memory_for_ends_that_never_come_is_given_back() {
    for orders in ["move close", "move move"] {
        common::alone("crossing", orders);
    }
}

fn crossing(orders: &str) {
    let movers = [(); 2].map(|()| spawn("mover"));
    let roads = [0, 1].map(|mover| {
        let (road, theirs) = Channel::pair().unwrap();
        give(&movers[mover].1, theirs);
        road
    });
    let mut after_some = Vec::new();
    let count = || {
        let of_movers = movers.iter().map(|(_, channel)| {
            channel.send_by(b"count", DEADLINE).unwrap();
            str::from_utf8(channel.recv_by(DEADLINE).unwrap().bytes()).unwrap().parse().unwrap()
        });
        of_movers.chain([common::mappings()]).collect::<Vec<usize>>()
    };
    for round in 0..400 {
        // The lane has a mapping of its own, like each later lane.
        let (one, other) = Options::new().ring(1 << 16).pair().unwrap();
        give(&movers[0].1, one);
        give(&movers[1].1, other);
        for ((_, channel), order) in movers.iter().zip(orders.split(' ')) {
            channel.send_by(order.as_bytes(), DEADLINE).unwrap();
        }
        for (((_, channel), road), order) in movers.iter().zip(&roads).zip(orders.split(' ')) {
            if order == "move" {
                drop(take(road));
            }
            assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"done");
        }
        if round == 20 {
            after_some = count();
        }
    }
    let at_last = count();
    let is_flat = at_last.iter().zip(&after_some).all(|(now, before)| *now <= before + 15);
    assert!(is_flat, "{orders}: {at_last:?} mappings, and after some rounds {after_some:?}");
    for (mover, channel) in movers {
        drop(channel);
        finish(mover);
    }
}

/// Receives a road and then ends, and sends each end over the road or closes it, as it is told.
fn mover() {
    let parent = parent();
    let road = take(&parent);
    let mut end = None;
    while let Ok(mut message) = parent.recv_by(DEADLINE) {
        if let Some(handle) = message.take_handles().unwrap().pop() {
            end = handle.into_channel();
            continue;
        }
        let answer = match message.bytes() {
            b"count" => common::mappings().to_string(),
            b"move" => {
                give(&road, end.take().unwrap());
                "done".to_string()
            }
            _ => {
                end = None;
                "done".to_string()
            }
        };
        parent.send_by(answer.as_bytes(), DEADLINE).unwrap();
    }
}

/// Shows that the lane of an end whose other end is closed is free again after the end was sent and dropped.
#[test]
fn a_lane_of_an_end_without_another_is_given_back() {
    common::alone("without another", "");
}

fn without_another() {
    let (dropper, ends) = spawn("dropper");
    let mut after_some = 0;
    for round in 0..3000 {
        let (end, other) = Channel::pair().unwrap();
        drop(other);
        give(&ends, end);
        assert_eq!(ends.recv_by(DEADLINE).unwrap().bytes(), b"dropped");
        if round == 100 {
            after_some = common::mappings();
        }
    }
    assert!(common::mappings() <= after_some, "{} mappings, and after 100 ends {after_some}", common::mappings());
    drop(ends);
    finish(dropper);
}

/// Receives ends, and drops each.
fn dropper() {
    let parent = parent();
    while let Ok(mut message) = parent.recv_by(DEADLINE) {
        drop(message.take_handles().unwrap());
        if parent.send_by(b"dropped", DEADLINE).is_err() {
            return;
        }
    }
}

/// Shows that both processes give back the memory of a lane whose ends are closed at the same time, with descriptors in
/// flight in both directions.
#[test]
fn a_lane_whose_ends_are_closed_at_once_is_given_back() {
    common::alone("closed at once", "");
}

fn closed_at_once() {
    let (closer, orders) = spawn("closer");
    for round in 0..1000 {
        // The lane has a mapping of its own.
        let (mine, theirs) = Options::new().ring(1 << 16).pair().unwrap();
        give(&orders, theirs);
        mine.send_by(Outgoing::new(b"").handle(File::open("/dev/null").unwrap()), DEADLINE).unwrap();
        assert_eq!(orders.recv_by(DEADLINE).unwrap().bytes(), b"sent");
        orders.send_by(b"close", DEADLINE).unwrap();
        (0..round % 50 * 200).for_each(|_| std::hint::spin_loop());
        drop(mine);
    }
    assert_eq!(orders.recv_by(DEADLINE).unwrap().bytes(), b"");
    orders.send_by(b"count", DEADLINE).unwrap();
    let theirs: usize = str::from_utf8(orders.recv_by(DEADLINE).unwrap().bytes()).unwrap().parse().unwrap();
    // A process looks at some lanes only when it closes more.
    assert!(common::mappings() <= 25 && theirs <= 25, "{} mappings here, and {theirs} there", common::mappings());
    drop(orders);
    finish(closer);
}

/// Receives ends, sends a file over each, and closes it when told so. At last says how many mappings it has.
fn closer() {
    let parent = parent();
    for _ in 0..1000 {
        let end = take(&parent);
        end.send_by(Outgoing::new(b"").handle(File::open("/dev/null").unwrap()), DEADLINE).unwrap();
        parent.send_by(b"sent", DEADLINE).unwrap();
        assert_eq!(parent.recv_by(DEADLINE).unwrap().bytes(), b"close");
    }
    parent.send_by(b"", DEADLINE).unwrap();
    assert_eq!(parent.recv_by(DEADLINE).unwrap().bytes(), b"count");
    parent.send_by(common::mappings().to_string().as_bytes(), DEADLINE).unwrap();
}

/// Shows that a process that is introduced to one short-lived process after another keeps few sockets. So a supervisor
/// can restart a process any number of times.
#[test]
fn sockets_to_introduced_processes_that_have_ended_are_closed() {
    common::alone("restarts", "");
}

const RESTARTS: usize = 100;

fn restarts() {
    let (camera, to_camera) = spawn("camera");
    // A second channel to the first filter. The camera gets its other end after the filter has ended.
    let mut late = None;
    for _ in 0..RESTARTS {
        let (filter, to_filter) = spawn("filter");
        for _ in 0..2 {
            let (one, other) = Channel::pair().unwrap();
            give(&to_filter, other);
            match late {
                Some(_) => give(&to_camera, one),
                None => late = Some(one),
            }
        }
        assert_eq!(to_camera.recv_by(DEADLINE).unwrap().bytes(), b"seen");
        finish(filter);
    }
    give(&to_camera, late.unwrap());
    assert_eq!(to_camera.recv_by(DEADLINE).unwrap().bytes(), b"seen");
    assert!(common::descriptors() <= 60, "{} in the supervisor", common::descriptors());
    drop(to_camera);
    finish(camera);
}

fn filter() {
    let parent = parent();
    let channels = [take(&parent), take(&parent)];
    for channel in channels {
        channel.send_by(b"a frame", DEADLINE).unwrap();
    }
}

fn camera() {
    let parent = parent();
    for channels in std::iter::once(1).chain(std::iter::repeat_n(2, RESTARTS - 1)).chain([1]) {
        for _ in 0..channels {
            let filter = take(&parent);
            assert_eq!(filter.recv_by(DEADLINE).unwrap().bytes(), b"a frame");
            assert_eq!(filter.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
        }
        parent.send_by(b"seen", DEADLINE).unwrap();
    }
    assert!(common::descriptors() <= 60, "{} in the camera", common::descriptors());
}

/// Shows that two channels whose other ends went round can be joined, without leaving descriptors behind.
#[test]
fn ends_that_went_round_are_joined_at_once() {
    common::alone("fused", "");
}

fn fused() {
    let ring = Ring::new();
    let [(one, mut goes), (other, mut also)] = [(); 2].map(|()| Channel::pair().unwrap());
    for _ in 0..50 {
        give(&ring.to, goes);
        goes = take(&ring.from);
        give(&ring.to, also);
        also = take(&ring.from);
    }
    one.fuse(other, Deadline::after(DEADLINE)).unwrap();
    goes.send_by(b"joined", DEADLINE).unwrap();
    assert_eq!(also.recv_by(DEADLINE).unwrap().bytes(), b"joined");
    assert!(common::descriptors() <= 15, "{}", common::descriptors());
    drop((goes, also));
    ring.end();
}

/// Shows that a process keeps no memory of channels made for others.
#[test]
fn an_introducer_keeps_no_mapping_for_each_two_that_it_introduced() {
    common::alone("mesh", "");
}

/// Shows that the channels of several connects between two processes share a socket, in both directions; that the
/// channels work and end singly; and that a channel with other options has a socket of its own.
#[test]
fn connects_to_one_process_share_a_link() {
    let name = format!("links-{}", std::process::id());
    common::alone("server", &name);
}

/// The number of channels made by the client.
const CONNECTS: usize = 10;

fn server(name: &str) {
    let listener = Listener::bind(name).unwrap();
    let client = Actor(common::command("client", name).spawn().unwrap());
    let first = listener.accept(DEADLINE).unwrap();
    assert_eq!(first.recv_by(DEADLINE).unwrap().bytes(), b"first");
    let before = common::descriptors();
    let mut all: Vec<_> = (1..CONNECTS)
        .map(|_| {
            let channel = listener.accept(DEADLINE).unwrap();
            let mut message = channel.recv_by(DEADLINE).unwrap();
            assert_eq!(common::content_of(message.take_handles().unwrap().remove(0)), b"a file");
            channel.send_by(message.bytes(), DEADLINE).unwrap();
            channel
        })
        .collect();
    let shares = || common::descriptors() == before;
    common::wait_until("the channels share a socket", shares);
    // The other way round, the link is shared, too.
    let back = connect(&format!("{name}-back"), DEADLINE).unwrap();
    back.send_by(b"back", DEADLINE).unwrap();
    assert_eq!(back.recv_by(DEADLINE).unwrap().bytes(), b"back");
    common::wait_until("the channels share a socket", shares);
    let other = listener.accept(DEADLINE).unwrap();
    assert_eq!(other.recv_by(DEADLINE).unwrap().bytes(), b"with other options");
    common::wait_until("the channel with other options has a socket", || common::descriptors() == before + 1);
    drop(all.pop());
    first.send_by(b"one is closed", DEADLINE).unwrap();
    for channel in &all {
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"still here");
    }
    drop((first, all, back, other));
    let again = listener.accept(DEADLINE).unwrap();
    assert_eq!(again.recv_by(DEADLINE).unwrap().bytes(), b"again");
    again.send_by(b"welcome", DEADLINE).unwrap();
    finish(client);
}

fn client(name: &str) {
    let back = Listener::bind(&format!("{name}-back")).unwrap();
    let first = connect(name, DEADLINE).unwrap();
    first.send_by(b"first", DEADLINE).unwrap();
    let before = common::descriptors();
    let mut all: Vec<_> = (1..CONNECTS)
        .map(|_| {
            let channel = connect(name, DEADLINE).unwrap();
            channel.send_by(Outgoing::new(b"hello").handle(common::file_with(b"a file")), DEADLINE).unwrap();
            assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"hello");
            assert_eq!(channel.peer().unwrap(), first.peer().unwrap());
            channel
        })
        .collect();
    common::wait_until("the channels share a socket", || common::descriptors() == before);
    let channel = back.accept(DEADLINE).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"back");
    channel.send_by(b"back", DEADLINE).unwrap();
    let options = Options::new().accept_descriptors(false);
    let other = Connector::new().options(options).connect(name, DEADLINE).unwrap();
    other.send_by(b"with other options", DEADLINE).unwrap();
    assert_eq!(first.recv_by(DEADLINE).unwrap().bytes(), b"one is closed");
    assert_eq!(all.pop().unwrap().recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    for channel in &all {
        channel.send_by(b"still here", DEADLINE).unwrap();
    }
    for channel in all.iter().chain([&first, &channel, &other]) {
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    }
    drop((first, all, channel, other));
    let again = connect(name, DEADLINE).unwrap();
    again.send_by(b"again", DEADLINE).unwrap();
    assert_eq!(again.recv_by(DEADLINE).unwrap().bytes(), b"welcome");
}

/// The number of processes in the mesh: `STRAIT_LINKS_MESH` if set, otherwise 16.
fn members() -> usize {
    std::env::var("STRAIT_LINKS_MESH").map_or(16, |count| count.parse().expect("a number"))
}

fn mesh() {
    let count = members();
    let all: Vec<(Actor, Channel)> =
        (0..count).map(|_| spawn_with("member", &count.to_string(), &Options::new())).collect();
    for (_, channel) in &all {
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"ready");
    }
    let before = common::mappings();
    for one in 0..count {
        for other in 0..one {
            let (a, b) = Channel::pair().unwrap();
            give(&all[one].1, a);
            give(&all[other].1, b);
        }
    }
    all.iter().for_each(|(_, channel)| channel.send_by(b"all sent", DEADLINE).unwrap());
    for (_, channel) in &all {
        assert_eq!(channel.recv_by(2 * DEADLINE).unwrap().bytes(), b"heard all");
    }
    let after = common::mappings();
    assert!(after <= before + 16, "{before} mappings, and then {after}");
    // A channel to each of the same two processes again: their links are there.
    let descriptors = common::descriptors();
    let (a, b) = Channel::pair().unwrap();
    give(&all[0].1, a);
    give(&all[1].1, b);
    for (_, channel) in &all[..2] {
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"no more descriptors");
    }
    assert_eq!(common::descriptors(), descriptors);
    for (actor, channel) in all {
        drop(channel);
        finish(actor);
    }
}

/// Receives an end of a channel to each other member, and sends and receives over all of them.
fn member() {
    let parent = parent();
    parent.send_by(b"ready", DEADLINE).unwrap();
    let mut ends = Vec::new();
    loop {
        let mut message = parent.recv_by(2 * DEADLINE).unwrap();
        match message.take_handles().unwrap().pop() {
            Some(end) => ends.push(end.into_channel().unwrap()),
            None => break,
        }
    }
    ends.iter().for_each(|end| end.send_by(b"hello", DEADLINE).unwrap());
    ends.iter().for_each(|end| assert_eq!(end.recv_by(2 * DEADLINE).unwrap().bytes(), b"hello"));
    let before = common::descriptors();
    parent.send_by(b"heard all", DEADLINE).unwrap();
    if let Ok(mut message) = parent.recv_by(2 * DEADLINE) {
        let end = message.take_handles().unwrap().remove(0).into_channel().unwrap();
        end.send_by(b"again", DEADLINE).unwrap();
        assert_eq!(end.recv_by(DEADLINE).unwrap().bytes(), b"again");
        assert!(common::descriptors() <= before, "{} of {before}", common::descriptors());
        parent.send_by(b"no more descriptors", DEADLINE).unwrap();
        parent.recv().unwrap_err();
    }
}

/// Receives ends and files, and keeps them. Answers each message with the number of mappings of the parent's memory.
fn counter() {
    let parent = parent();
    let mut kept = Vec::new();
    while let Ok(mut message) = parent.recv() {
        kept.extend(message.take_handles().unwrap());
        let held = parent.peer_usage().unwrap().unwrap().peer(Resource::Mappings).held;
        parent.send_by(&held.to_le_bytes(), DEADLINE).unwrap();
    }
}

/// Receives one message with an end, answers, and then reads nothing more from its socket.
fn deaf() {
    let parent = common::parent_over_any(&Options::new());
    let _end = take(&parent);
    parent.send_by(b"received", DEADLINE).unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Starts a process that plays `deaf`, and sends `end` there. Returns the channel to the process.
fn spawn_deaf(end: Channel) -> (Actor, Channel) {
    let (actor, to) = common::spawn_over_socket("deaf", "", &Options::new());
    common::wait_until("the process opened its side", || to.peer().unwrap().is_some());
    give(&to, end);
    assert_eq!(to.recv_by(DEADLINE).unwrap().bytes(), b"received");
    (actor, to)
}

/// Fills the socket to a process that reads nothing from it.
fn fill_socket(to: &Channel) {
    for count in 0.. {
        assert!(count < 1000, "the socket is never full");
        match to.try_send(Outgoing::new(b"").handle(common::file_with(b""))) {
            Ok(()) => {}
            Err(failed) => return assert_eq!(failed.error, Error::WouldBlock),
        }
    }
}

/// Tries to send `end` and a file to a process with a full socket. Returns the end.
fn fail_to_give(to: &Channel, end: Channel) -> Channel {
    let failed = to.try_send(Outgoing::new(b"").handle(common::file_with(b"")).handle(end)).unwrap_err();
    assert_eq!(failed.error, Error::WouldBlock);
    failed.handles.into_iter().nth(1).unwrap().into_channel().unwrap()
}

/// Shows that an end which one process cannot be sent leaves no memory in the process with the other end, however often
/// the end is sent, and none at all once the first process has ended.
#[test]
fn an_end_that_cannot_be_sent_leaves_no_memory_with_a_third_process() {
    common::alone("blocked introducer", "");
}

fn blocked_introducer() {
    let (old, to_old) = spawn_deaf(Channel::pair().unwrap().0);
    let (other, to_other) = spawn("counter");
    let (young, to_young) = spawn("counter");
    let ask = |to: &Channel| {
        let answer = to.recv_by(DEADLINE).unwrap();
        usize::from_le_bytes(answer.bytes().try_into().unwrap())
    };
    // An end whose other end is in the young process, with rings of `ring` bytes.
    let reach = |ring: usize| {
        let (mine, theirs) = Options::new().ring(ring).pair().unwrap();
        give(&to_young, theirs);
        (mine, ask(&to_young))
    };
    // The two are introduced to each other while the socket has room.
    give(&to_old, reach(1 << 13).0);
    fill_socket(&to_old);
    let mut ends: Vec<_> = [9, 10, 11, 12, 13].map(|log| reach(1 << log).0).into();
    ends = ends.into_iter().map(|end| fail_to_give(&to_old, end)).collect();
    // For the file, the young process receives all packets before it.
    let held_by_young = || {
        to_young.send_by(Outgoing::new(b"").handle(common::file_with(b"")), DEADLINE).unwrap();
        ask(&to_young)
    };
    let before = held_by_young();
    for _ in 0..20 {
        ends = ends.into_iter().map(|end| fail_to_give(&to_old, end)).collect();
    }
    assert_eq!(held_by_young(), before);
    drop(old);
    assert_eq!(to_old.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    // The memory of the ended process is given back with the next lane for two others.
    give(&to_other, ends.remove(0));
    ask(&to_other);
    common::wait_until("the memory was given back", || held_by_young() + 4 <= before);
    drop((to_other, to_young));
    finish(other);
    finish(young);
}

/// Shows that ends which cannot be sent because the socket is full cost this process no memory, however many there are.
#[test]
fn ends_that_cannot_be_sent_leave_nothing_to_be_sent_later() {
    common::alone("blocked sender", "");
}

/// Returns the memory of this process in kibibytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn blocked_sender() {
    let pair = || Options::new().ring(1).pair().unwrap();
    let (mine, theirs) = pair();
    let (actor, to) = spawn_deaf(theirs);
    fill_socket(&to);
    let attempts = |count: usize| {
        for _ in 0..count {
            let (mine, theirs) = pair();
            drop(fail_to_give(&to, theirs));
            drop(mine);
        }
    };
    attempts(1000);
    let before = resident();
    attempts(50_000);
    assert!(resident() < before + 1024, "{before} KiB before, {} after", resident());
    drop((mine, to));
    finish(actor);
}
