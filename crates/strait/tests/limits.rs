//! Tests of limits on the resources held for peers, and of peers that break the protocol.
//!
//! Limits hold for a whole process, so each test runs in a process of its own, with peers of its own.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Actor, DEADLINE, SOON, alone, content_of, descriptors, file_with, mappings, parent, pattern, wait_until};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use strait::meet::Connector;
use strait::pipe::DataPipe;
use strait::quota::{BadPeer, Limits, Resource};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, CommandExt, Deadline, Error, Handle, Listener, Options, Outgoing, SendError, Wait};

#[test]
fn child() {
    common::play(&[
        ("peer", peer),
        ("client", client),
        ("raw", raw),
        ("memory waits unmapped", memory_waits_unmapped),
        ("idle ends", idle_ends),
        ("leaves unread", leaves_unread),
        ("unread of ends that left", unread_of_ends_that_left),
        ("grown rings", grown_rings),
        ("memory of many", memory_of_many),
        ("one message too large", one_message_too_large),
        ("mappings", mappings_are_limited),
        ("descriptors", descriptors_are_limited),
        ("hub", hub),
        ("holder", holder),
        ("descriptors of unread ends", descriptors_of_unread_ends),
        ("counts handles", counts_handles),
        ("stuck hub", stuck_hub),
        ("stuck link in a set", stuck_link_in_a_set),
        ("one message too large in a set", one_message_too_large_in_a_set),
        ("few descriptors for a while", few_descriptors_for_a_while),
        ("users", users_do_not_disturb_each_other),
        ("users of a listener", clients_do_not_disturb_each_other),
        ("lanes", lanes_are_limited),
        ("lanes unmapped", lanes_wait_unmapped),
        ("queued", queued_messages_are_limited),
        ("dropped at a limit", dropped_at_a_limit),
        ("dropped without room for a lane", dropped_without_room_for_a_lane),
        ("closed without room for the next lane", closed_without_room_for_the_next_lane),
        ("waits for the close", waits_for_the_close),
        ("closed without room for a ring", closed_without_room_for_a_ring),
        ("grown rings are given back", grown_rings_are_given_back),
        ("bad peer", bad_peer_is_told_once),
        ("bad client", bad_client_is_told_once),
        ("bad peer in a wait set", bad_peer_is_told_by_a_wait_set),
        ("bad peer may drop", bad_peer_may_do_anything),
        ("refuses", refuses),
        ("lingers", lingers),
        ("closing takes long", closing_takes_long),
        ("pipes", pipes),
        ("closing for others", closing_for_others),
        ("reads the last", reads_the_last),
        ("others do not read", others_do_not_read),
        ("reads nothing", reads_nothing),
        ("one peer reads nothing", one_peer_reads_nothing),
        ("storm", storm),
        ("scribbles", scribbles),
        ("echo", |_| common::echo(&common::parent_over_any(&Options::new().wait(Wait::Block)))),
        ("woken by packets", woken_by_packets),
        ("woken by a word", woken_by_a_word),
        ("a set is woken", a_set_is_woken),
        ("woken for something", woken_for_something),
    ]);
}

/// Starts a process that plays `peer`, as user `user` if given, and returns the process with a channel.
fn start_as(user: Option<u32>) -> (Actor, Channel) {
    let mut command = common::command("peer", "");
    if let Some(uid) = user {
        command.uid(uid).gid(uid);
    }
    let (child, channel) = command.spawn_with_channel().unwrap();
    (Actor(child), channel)
}

fn start() -> (Actor, Channel) {
    start_as(None)
}

/// The number of channels, each over a link of its own, that a process with the role `client` makes to a listener.
const CONNECTIONS: usize = 2;

/// A listener in a directory for one test. Dropping the value removes the directory.
struct Service(Listener, PathBuf);

impl Service {
    /// Makes a listener that accepts processes of every user.
    fn start() -> Self {
        let directory = std::env::temp_dir().join(format!("strait-limits-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
        let builder = Listener::builder().directory(&directory).mode(0o666).policy(|_| true);
        Self(builder.bind("service").unwrap(), directory)
    }

    /// Starts a process that plays `client`, as user `user` if given, and returns the process with its
    /// [`CONNECTIONS`] channels.
    fn start_client(&self, user: Option<u32>) -> (Actor, Vec<Channel>) {
        let server = rustix::process::geteuid().as_raw();
        let mut command = common::command("client", &format!("{server} {}", self.0.path().display()));
        if let Some(uid) = user {
            command.uid(uid).gid(uid);
        }
        let actor = Actor(command.spawn().unwrap());
        let channels: Vec<_> = (0..CONNECTIONS).map(|_| self.0.accept(DEADLINE).unwrap()).collect();
        for channel in &channels {
            assert_eq!(channel.peer().unwrap().unwrap().pid, Some(actor.pid()));
        }
        (actor, channels)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

/// Connects [`CONNECTIONS`] times to a listener, given as "uid path", and executes orders from each channel. Channels
/// with large rings have links of their own.
fn client(argument: &str) {
    let (server, path) = argument.split_once(' ').unwrap();
    let connector = Connector::new().server(server.parse().unwrap()).options(Options::new().ring(1 << 16));
    let channels: Vec<_> = (0..CONNECTIONS).map(|_| connector.connect(path, DEADLINE).unwrap()).collect();
    std::thread::scope(|scope| {
        for channel in &channels {
            scope.spawn(|| execute_orders(channel));
        }
    });
}

/// Sends a packet that is not of the protocol over every `SOCK_SEQPACKET` socket of this process.
fn send_nonsense_everywhere() {
    let sockets = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers: Vec<i32> =
        sockets.map(|entry| entry.unwrap().file_name().into_string().unwrap().parse().unwrap()).collect();
    for number in numbers {
        // SAFETY: `send` and `getsockopt` on a number that names no socket fail and change nothing, and the descriptor
        // is used during these calls only.
        let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        if rustix::net::sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET) {
            // The other process may have closed this link already, because of the packet over another link.
            let _ = rustix::net::send(socket, b"nonsense", SendFlags::NOSIGNAL);
        }
    }
}

/// Executes the orders of the parent process.
fn peer(_: &str) {
    execute_orders(&parent());
}

/// Executes orders from `channel`. An order is a message of a word for what to send, how many times, and a number of
/// bytes or handles.
fn execute_orders(channel: &Channel) {
    let (mut ends, mut producers) = (Vec::new(), Vec::new());
    while let Ok(order) = channel.recv() {
        let order = std::str::from_utf8(order.bytes()).unwrap().to_string();
        let mut words = order.split(' ');
        let what = words.next().unwrap();
        let mut number = || words.next().unwrap().parse::<usize>().unwrap();
        let (count, size) = (number(), number());
        for n in 0..count {
            match what {
                "plain" => channel.send(&pattern(n as u64, size)).unwrap(),
                "nonsense" => {
                    send_nonsense_everywhere();
                    // Waits until the other process closes the channel.
                    assert!(channel.recv().is_err());
                    return;
                }
                "sealed" => {
                    let mut room = channel.reserve_sealed(size).unwrap();
                    room.bytes().copy_from_slice(&pattern(n as u64, size));
                    room.commit(DEADLINE).unwrap();
                }
                "handles" => {
                    let handles = (0..size).map(|_| Handle::Fd(file_with(&[n as u8])));
                    channel.send(Outgoing::new(&[n as u8]).handles(handles)).unwrap();
                }
                "large" => {
                    let handles = (0..size).map(|_| Handle::Fd(file_with(&[n as u8])));
                    channel.send(Outgoing::new(&pattern(n as u64, 100_000)).handles(handles)).unwrap();
                }
                "end" | "both" => {
                    // The end has three messages of `size` bytes each.
                    let (mine, theirs) = Channel::pair().unwrap();
                    for n in 0..3 {
                        mine.send(&pattern(n, size)).unwrap();
                    }
                    let file = (what == "both").then(|| Handle::Fd(file_with(b"a file")));
                    channel.send(Outgoing::new(b"an end").handle(theirs).handles(file)).unwrap();
                    ends.push(mine);
                }
                "end-with-handles" => {
                    // The end has two messages, each with `size` descriptors.
                    let (mine, theirs) = Channel::pair().unwrap();
                    for n in 0..2 {
                        let handles = (0..size).map(|_| Handle::Fd(file_with(&[n])));
                        mine.send(Outgoing::new(&[n]).handles(handles)).unwrap();
                    }
                    channel.send(Outgoing::new(b"an end").handle(theirs)).unwrap();
                    ends.push(mine);
                }
                "data-pipe" => {
                    let (producer, consumer) = DataPipe::pair(size).unwrap();
                    channel.send(Outgoing::new(b"a pipe").handle(consumer)).unwrap();
                    producers.push(producer);
                }
                "dropped" => {
                    // The end has three messages of `size` bytes each. The parent drops the message with the end.
                    let (road, theirs) = Channel::pair().unwrap();
                    channel.send(Outgoing::new(b"a road").handle(theirs)).unwrap();
                    let (mine, other) = Channel::pair().unwrap();
                    for n in 0..3 {
                        mine.send(&pattern(n, size)).unwrap();
                    }
                    road.send(Outgoing::new(b"an end").handle(other)).unwrap();
                    channel.send(b"sent").unwrap();
                    assert_eq!(mine.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
                }
                "dropped-ring" => {
                    // The lane of the end has an arena of its own, because its rings are large. The parent drops the
                    // message with the end.
                    let (road, theirs) = Channel::pair().unwrap();
                    channel.send(Outgoing::new(b"a road").handle(theirs)).unwrap();
                    assert_eq!(channel.recv().unwrap().bytes(), b"limited");
                    let (mine, other) = Options::new().ring(size).pair().unwrap();
                    road.send(Outgoing::new(b"an end").handle(other)).unwrap();
                    channel.send(b"sent").unwrap();
                    assert_eq!(mine.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
                }
                "moved-ring" => {
                    // The other end of the parent's end moves into a lane with an arena of its own. The parent closes
                    // its end.
                    let (_third, third) = common::spawn("waits for the close");
                    let (mine, theirs) = Options::new().ring(size).pair().unwrap();
                    channel.send(Outgoing::new(b"an end").handle(theirs)).unwrap();
                    assert_eq!(channel.recv().unwrap().bytes(), b"limited");
                    third.send(Outgoing::new(b"an end").handle(mine)).unwrap();
                    channel.send(b"sent").unwrap();
                    assert_eq!(recv(&third).bytes(), b"closed");
                }
                "grown" => {
                    // The ring of the end grows until there is room for the messages. The parent closes its end unread.
                    let (mine, theirs) = Options::new().ring_max(1 << 20).pair().unwrap();
                    channel.send(Outgoing::new(b"an end").handle(theirs)).unwrap();
                    assert_eq!(channel.recv().unwrap().bytes(), b"limited");
                    let (kept, other) = Channel::pair().unwrap();
                    for n in 0..size {
                        mine.try_send(&pattern(n as u64, 1000)).unwrap();
                    }
                    mine.try_send(Outgoing::new(b"an end").handle(other)).unwrap();
                    channel.send(b"sent").unwrap();
                    assert_eq!(kept.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
                    assert_eq!(mine.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
                }
                "stream" => {
                    // A separate end carries the messages; its ring grows because the parent receives nothing
                    // meanwhile.
                    let (mine, theirs) = Channel::pair().unwrap();
                    channel.send(Outgoing::new(b"an end").handle(theirs)).unwrap();
                    let taken = channel.recv().unwrap();
                    assert_eq!(taken.bytes(), b"taken");
                    for n in 0..size {
                        mine.send(&pattern(n as u64, 1000)).unwrap();
                    }
                    channel.send(b"sent").unwrap();
                }
                other => panic!("unknown order: {other}"),
            }
        }
        channel.send(b"done").unwrap();
    }
}

fn order(channel: &Channel, what: &str) {
    channel.send(what.as_bytes()).unwrap();
}

fn recv(channel: &Channel) -> strait::Message {
    channel.recv_by(DEADLINE).unwrap()
}

/// Orders a peer to send something, and waits until `is_so` finds in the account of the peer that this process has
/// received all packets. Records stay in their rings.
fn order_and_settle(channel: &Channel, what: &str, is_so: impl Fn(&strait::quota::Usage) -> bool) {
    let set = WaitSet::new().unwrap();
    set.add(channel, 0, Interest::Readable, Mode::Level).unwrap();
    let mut events = Vec::new();
    // From here on the set watches the socket; a set with a member that is always ready need not.
    assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0);
    order(channel, what);
    wait_until("the peer has sent everything", || {
        // Receives what is in the socket; not every call does.
        for _ in 0..64 {
            set.wait(&mut events, Deadline::NOW).unwrap();
        }
        channel.peer_usage().unwrap().is_some_and(|usage| is_so(&usage))
    });
}

/// Asserts that the peer at the other end of `channel` works, in spite of another peer.
fn assert_works(channel: &Channel) {
    order(channel, "plain 2 100000");
    for n in 0..2 {
        assert!(recv(channel).bytes() == pattern(n, 100_000));
    }
    assert_eq!(recv(channel).bytes(), b"done");
}

/// Shows that memory above the peer's limit stays unmapped until its message is received, and that no message is lost.
#[test]
fn what_does_not_fit_the_limit_waits_unmapped_and_nothing_is_lost() {
    alone("memory waits unmapped", "");
}

fn memory_waits_unmapped(_: &str) {
    let (_one, channel) = start();
    let (_two, other) = start();
    order(&channel, "plain 0 0");
    assert_eq!(recv(&channel).bytes(), b"done");
    let before = channel.peer_usage().unwrap().unwrap().peer(Resource::Memory);
    strait::quota::set_limits(Limits::new().peer(Resource::Memory, before.held + (5 << 19)));
    // Two messages are mapped, with retained descriptors for forwarding.
    order_and_settle(&channel, "sealed 6 1048576", |usage| usage.peer(Resource::Descriptors).held == 2 + 4);
    let usage = channel.peer_usage().unwrap().unwrap();
    assert_eq!(usage.peer(Resource::Memory).held, before.held + (2 << 20));
    assert!(usage.peer(Resource::Memory).reached >= 4);
    assert_eq!(usage.peer(Resource::Memory).limit, before.held + (5 << 19));
    assert_works(&other);
    for n in 0..6 {
        assert!(recv(&channel).bytes() == pattern(n, 1 << 20));
    }
    assert_eq!(recv(&channel).bytes(), b"done");
    let usage = channel.peer_usage().unwrap().unwrap();
    assert_eq!((usage.peer(Resource::Memory).held, usage.peer(Resource::Descriptors).held), (before.held, 0));
}

/// Shows that receiving a message larger than the limit fails, and succeeds once the limit is raised.
#[test]
fn a_message_larger_than_the_limit_waits_until_that_is_raised() {
    alone("one message too large", "");
}

fn one_message_too_large(_: &str) {
    let (_one, channel) = start();
    let (_two, other) = start();
    strait::quota::set_limits(Limits::new().peer(Resource::Memory, 1 << 20));
    order(&channel, "plain 1 2000000");
    let limit = Error::LimitReached(Resource::Memory);
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), limit);
    assert_eq!(channel.try_recv().unwrap_err(), limit);
    assert!(channel.is_readable());
    assert_works(&other);
    strait::quota::set_limits(Limits::new());
    assert!(recv(&channel).bytes() == pattern(0, 2_000_000));
    assert_eq!(recv(&channel).bytes(), b"done");
    assert!(channel.counters().limits_reached >= 2);
}

#[test]
fn mappings_are_limited_too() {
    alone("mappings", "");
}

fn mappings_are_limited(_: &str) {
    let (_one, channel) = start();
    order(&channel, "plain 0 0");
    assert_eq!(recv(&channel).bytes(), b"done");
    let held = channel.peer_usage().unwrap().unwrap().peer(Resource::Mappings).held;
    strait::quota::set_limits(Limits::new().peer(Resource::Mappings, held + 3));
    let before = mappings();
    order_and_settle(&channel, "sealed 20 1", |usage| usage.peer(Resource::Descriptors).held == 17);
    // One more mapping is the ready bitmap for the wait set.
    assert_eq!(mappings(), before + 3 + 1);
    for n in 0..20 {
        assert_eq!(recv(&channel).bytes(), pattern(n, 1));
    }
    assert_eq!(channel.peer_usage().unwrap().unwrap().peer(Resource::Mappings).held, held);
}

/// Shows that the memory of a received data pipe counts as one mapping, and with its bytes, until the end is dropped.
#[test]
fn data_pipes_are_mappings_of_the_peer() {
    const PIPES: u64 = 20;
    const CAPACITY: u64 = 1 << 16;
    let (_actor, channel) = start();
    let held = || {
        let usage = channel.peer_usage().unwrap().unwrap();
        (usage.peer(Resource::Mappings).held, usage.peer(Resource::Memory).held)
    };
    order(&channel, &format!("data-pipe {PIPES} {CAPACITY}"));
    let received: Vec<_> = (0..PIPES).map(|_| recv(&channel).take_handles().unwrap()).collect();
    assert_eq!(recv(&channel).bytes(), b"done");
    let (mappings, memory) = held();
    drop(received);
    // The memory of the lanes of the ends stays mapped.
    assert!(
        held().0 <= mappings - PIPES && held().1 <= memory - PIPES * CAPACITY,
        "{:?}, then {:?}",
        (mappings, memory),
        held()
    );
}

/// Shows that descriptors above the peer's limit are closed and lost, and that other messages are not affected.
#[test]
fn descriptors_that_nobody_receives_are_limited() {
    alone("descriptors", "");
}

fn descriptors_are_limited(_: &str) {
    strait::quota::set_limits(Limits::new().peer(Resource::Descriptors, 9));
    let (_one, channel) = start();
    let (_two, other) = start();
    assert_works(&other);
    let before = descriptors();
    order_and_settle(&channel, "handles 5 4", |usage| usage.peer(Resource::Descriptors).reached == 3);
    assert_eq!(descriptors(), before + 8);
    order(&other, "handles 1 8");
    assert_eq!(recv(&other).take_handles().unwrap().len(), 8);
    for n in 0..5u8 {
        let mut message = recv(&channel);
        assert_eq!(message.bytes(), [n]);
        match message.take_handles() {
            Ok(handles) => {
                assert!(n < 2);
                handles.into_iter().for_each(|handle| assert_eq!(content_of(handle), [n]));
            }
            Err(error) => assert!(n >= 2 && error == Error::HandlesLost { sent: 4, arrived: 0 }, "{n}: {error}"),
        }
    }
    assert_eq!(recv(&channel).bytes(), b"done");
    assert_eq!(descriptors(), before);
    order(&channel, "handles 1 9");
    assert_eq!(recv(&channel).take_handles().unwrap().len(), 9);
}

/// Sends its parent a channel end, then on order descriptors over that channel while the parent has few descriptors
/// left. Then sends an end whose other end is in a third process, so that parent and third process are introduced, and
/// more messages.
fn hub(_: &str) {
    let channel = parent();
    let (_holder, held) = common::spawn("holder");
    let (bulk, theirs) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"bulk").handle(theirs)).unwrap();
    assert_eq!(recv(&channel).bytes(), b"now");
    for n in 0..70u8 {
        bulk.send(Outgoing::new(&[n]).handle(file_with(&[n]))).unwrap();
    }
    let (near, far) = Channel::pair().unwrap();
    held.send(Outgoing::new(b"an end").handle(near)).unwrap();
    channel.send(Outgoing::new(b"the other").handle(far)).unwrap();
    channel.send(b"plain").unwrap();
    for n in 0..3 {
        bulk.send(&pattern(n, 200_000)).unwrap();
    }
    assert_eq!(recv(&channel).bytes(), b"all came");
}

/// Receives an end, and tells the parent once the other end is closed.
fn waits_for_the_close(_: &str) {
    let channel = parent();
    let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    assert_eq!(end.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    channel.send(b"closed").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Echoes on the end that it receives.
fn holder(_: &str) {
    let end = recv(&parent()).take_handles().unwrap().remove(0).into_channel().unwrap();
    common::echo(&end);
}

/// Shows that descriptors in unread messages of a received end stay charged to the sender until the program receives
/// the messages, sends the end on or drops the end.
#[test]
fn descriptors_in_unread_messages_of_a_received_end_are_charged() {
    alone("descriptors of unread ends", "");
}

fn descriptors_of_unread_ends(_: &str) {
    let (_one, channel) = start();
    let (_two, other) = common::spawn("counts handles");
    let held = || channel.peer_usage().unwrap().unwrap().peer(Resource::Descriptors).held;
    order(&channel, "end-with-handles 3 5");
    let end = || recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    let [read, sent_on, dropped] = [end(), end(), end()];
    assert_eq!(recv(&channel).bytes(), b"done");
    assert_eq!(held(), 30);
    for (n, left) in [(0, 25), (1, 20)] {
        let handles = recv(&read).take_handles().unwrap();
        assert_eq!((handles.len(), held()), (5, left));
        handles.into_iter().for_each(|handle| assert_eq!(content_of(handle), [n]));
    }
    other.send(Outgoing::new(b"an end").handle(sent_on)).unwrap();
    wait_until("only the descriptors of the last end are charged", || held() == 10);
    assert_eq!(recv(&other).bytes(), [5, 5]);
    drop(dropped);
    wait_until("no descriptors are charged", || held() == 0);
}

/// Receives an end with two messages, and tells the parent how many handles each of them has.
fn counts_handles(_: &str) {
    let channel = parent();
    let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    let counts = [(); 2].map(|()| recv(&end).take_handles().unwrap().len() as u8);
    channel.send(&counts).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Shows that a packet not received for lack of descriptors is received once there are descriptors.
#[test]
fn a_shortage_of_descriptors_that_passes_loses_nothing() {
    alone("few descriptors for a while", "");
}

fn few_descriptors_for_a_while(_: &str) {
    let (_hub, channel) = common::spawn("hub");
    let bulk = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    // Three quarters of the descriptors are in use.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(400), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let files: Vec<_> = (descriptors()..300).map(|_| file_with(b"in use")).collect();
    order(&channel, "now");
    // Descriptors of unreceived messages use up the limit, so the packet that introduces the third process cannot be
    // received. Each call reports the limit.
    for _ in 0..3 {
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::LimitReached(Resource::Descriptors));
    }
    // The descriptors made by each attempt to receive the packet stay charged until a thread has closed them.
    wait_until("only the descriptors that were not received are held", || {
        channel.peer_usage().unwrap().unwrap().peer(Resource::Descriptors).held == 64
    });
    drop(files);
    let mut message = recv(&channel);
    assert_eq!(message.bytes(), b"the other");
    let end = message.take_handles().unwrap().remove(0).into_channel().unwrap();
    end.send_by(b"to a third process", DEADLINE).unwrap();
    assert_eq!(recv(&end).bytes(), b"to a third process");
    assert_eq!(recv(&channel).bytes(), b"plain");
    for n in 0..70u8 {
        let mut message = recv(&bulk);
        assert_eq!(message.bytes(), [n]);
        match message.take_handles() {
            Ok(handles) => handles.into_iter().for_each(|handle| assert_eq!(content_of(handle), [n])),
            Err(error) => assert!(n >= 64 && error == Error::HandlesLost { sent: 1, arrived: 0 }, "{n}: {error}"),
        }
    }
    for n in 0..3 {
        assert!(recv(&bulk).bytes() == pattern(n, 200_000));
    }
    order(&channel, "all came");
}

/// Sends the parent two ends. On order, sends over one end as many descriptors as the parent's limit permits, then an
/// end for which the parent needs an introduction without room, and reports both. At last sends a message over the
/// other end.
fn stuck_hub(_: &str) {
    let channel = parent();
    let (_holder, held) = common::spawn("holder");
    let [(bulk, one), (idle, other)] = [(); 2].map(|()| Channel::pair().unwrap());
    channel.send(Outgoing::new(b"ends").handle(one).handle(other)).unwrap();
    assert_eq!(recv(&channel).bytes(), b"now");
    for n in 0..4 {
        bulk.send(Outgoing::new(&[n]).handle(file_with(&[n]))).unwrap();
    }
    let (near, far) = Channel::pair().unwrap();
    held.send(Outgoing::new(b"an end").handle(near)).unwrap();
    bulk.send(Outgoing::new(b"the other").handle(far)).unwrap();
    channel.send(b"sent").unwrap();
    assert_eq!(recv(&channel).bytes(), b"say something");
    idle.send(b"something").unwrap();
    assert_eq!(recv(&channel).bytes(), b"all came");
}

/// How long a wait set is watched.
const WATCHED: Duration = Duration::from_secs(1);

/// Calls `each` with the key of each event of a wait set for [`WATCHED`], and asserts that this thread uses little
/// processor time and gets few events. With `polled` set, the thread waits in `poll` on the descriptor of the set.
fn without_spinning(set: &WaitSet, polled: bool, mut each: impl FnMut(u64)) {
    let (begin, used) = (Instant::now(), cpu_time());
    let (mut told, mut turns) = (0, 0);
    while begin.elapsed() < WATCHED || (told < 3 && begin.elapsed() < DEADLINE) {
        if polled {
            let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&limit)).unwrap();
        }
        let mut events = Vec::new();
        let limit = if polled { Deadline::NOW } else { Deadline::after(Duration::from_millis(50)) };
        told += set.wait(&mut events, limit).unwrap();
        turns += 1;
        events.iter().for_each(|event| each(event.key()));
    }
    let (used, watched) = (cpu_time() - used, begin.elapsed());
    assert!((3..=200).contains(&told) && turns <= 1000, "{told} events in {turns} turns");
    assert!(used < watched * 3 / 4, "the thread used a processor for {used:?} of {watched:?}");
}

/// Returns the processor time used by the current thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Shows that a wait set reports a packet that cannot be received as an event of a channel of the link, and does not
/// spin.
#[test]
fn a_set_tells_of_a_packet_that_cannot_be_taken_by_a_channel_of_its_link() {
    alone("stuck link in a set", "");
}

/// Shows that an event loop that polls the descriptor of a wait set does not spin on a packet that cannot be received.
#[test]
fn an_event_loop_does_not_spin_on_a_packet_that_cannot_be_taken() {
    alone("stuck link in a set", "polled");
}

fn stuck_link_in_a_set(how: &str) {
    strait::quota::set_limits(Limits::new().peer(Resource::Descriptors, 4));
    let (_hub, channel) = common::spawn("stuck hub");
    let (_peer, other) = start();
    let mut ends = recv(&channel).take_handles().unwrap();
    let idle = ends.pop().unwrap().into_channel().unwrap();
    let bulk = ends.pop().unwrap().into_channel().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&idle, 1, Interest::Readable, Mode::Level).unwrap();
    set.add(&other, 2, Interest::Readable, Mode::Level).unwrap();
    order(&channel, "now");
    let limit = Error::LimitReached(Resource::Descriptors);
    let sent = loop {
        match channel.recv_by(DEADLINE) {
            Err(error) => assert_eq!(error, limit),
            Ok(sent) => break sent,
        }
    };
    assert_eq!(sent.bytes(), b"sent");
    without_spinning(&set, how == "polled", |key| {
        assert_eq!(key, 1);
        assert_eq!(idle.try_recv().unwrap_err(), limit);
    });
    // The set reports events of other members all the while.
    order(&other, "plain 1 10");
    let mut events = Vec::new();
    while !events.iter().any(|event: &strait::wait::Event| event.key() == 2) {
        assert!(set.wait(&mut events, DEADLINE).unwrap() > 0);
    }
    assert_eq!(recv(&other).bytes(), pattern(0, 10));
    assert_eq!(recv(&other).bytes(), b"done");
    for n in 0..4 {
        assert_eq!(content_of(recv(&bulk).take_handles().unwrap().remove(0)), [n]);
    }
    order(&channel, "say something");
    let said = loop {
        assert!(set.wait(&mut events, DEADLINE).unwrap() > 0);
        match idle.try_recv() {
            Err(error) => assert!(error == limit || error == Error::WouldBlock, "{error}"),
            Ok(said) => break said,
        }
    };
    assert_eq!(said.bytes(), b"something");
    let end = recv(&bulk).take_handles().unwrap().remove(0).into_channel().unwrap();
    end.send_by(b"to a third process", DEADLINE).unwrap();
    assert_eq!(recv(&end).bytes(), b"to a third process");
    order(&channel, "all came");
}

/// Shows that a wait set does not spin on a message larger than the peer's limit.
#[test]
fn a_set_does_not_spin_on_a_message_that_cannot_be_received() {
    alone("one message too large in a set", "");
    alone("one message too large in a set", "polled");
}

fn one_message_too_large_in_a_set(how: &str) {
    let (_peer, channel) = start();
    let set = WaitSet::new().unwrap();
    set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
    strait::quota::set_limits(Limits::new().peer(Resource::Memory, 1 << 20));
    order(&channel, "plain 1 2000000");
    let limit = Error::LimitReached(Resource::Memory);
    without_spinning(&set, how == "polled", |_| {
        // A wake-up may come before the message.
        assert!(matches!(channel.try_recv(), Err(error) if error == limit || error == Error::WouldBlock));
    });
    strait::quota::set_limits(Limits::new());
    assert!(recv(&channel).bytes() == pattern(0, 2_000_000));
    assert_eq!(recv(&channel).bytes(), b"done");
}

/// Shows that each further process of a user may use part of the rest of the user's limit, and that other users have
/// limits of their own.
#[test]
fn processes_of_a_user_leave_something_for_the_next_and_all_of_it_for_other_users() {
    alone("users", "");
}

/// Orders a peer to send 24 messages with a descriptor each, and waits until each of them was received or refused.
/// Returns the number of descriptors that this process holds for the peer then.
fn fill(channel: &Channel) -> u64 {
    let level = |usage: &strait::quota::Usage| usage.peer(Resource::Descriptors);
    let sum = |usage: &strait::quota::Usage| level(usage).held + level(usage).reached;
    let before = channel.peer_usage().unwrap().map_or(0, |usage| sum(&usage));
    order_and_settle(channel, "handles 24 1", |usage| sum(usage) == before + 24);
    level(&channel.peer_usage().unwrap().unwrap()).held
}

fn users_do_not_disturb_each_other(_: &str) {
    strait::quota::set_limits(Limits::new().user(Resource::Descriptors, 24));
    let (_one, first) = start();
    assert_eq!(fill(&first), 12);
    let (_two, second) = start();
    assert_eq!(fill(&second), 4);
    let (_three, third) = start();
    assert_eq!(fill(&third), 2);
    let usage = third.peer_usage().unwrap().unwrap();
    assert_eq!(usage.user(Resource::Descriptors).held, 18);
    assert_eq!((usage.processes(), usage.uid()), (3, Some(rustix::process::geteuid().as_raw())));
    assert!(usage.user(Resource::Descriptors).reached > 0);
    if !rustix::process::geteuid().is_root() {
        println!("not root, so there is no other user to try it with");
        return;
    }
    let (_four, stranger) = start_as(Some(65534));
    assert_eq!(fill(&stranger), 12);
    let usage = stranger.peer_usage().unwrap().unwrap();
    assert_eq!((usage.processes(), usage.uid()), (1, Some(65534)));
    assert_eq!(usage.user(Resource::Descriptors).held, 12);
}

/// Shows that all channels of a process that has connected to a listener use one account, and that the processes of a
/// user share the user's limit.
#[test]
fn connections_of_a_process_to_a_listener_share_its_limits_and_those_of_its_user() {
    alone("users of a listener", "");
}

fn clients_do_not_disturb_each_other(_: &str) {
    strait::quota::set_limits(Limits::new().user(Resource::Descriptors, 24));
    let service = Service::start();
    let (_one, first) = service.start_client(None);
    assert_eq!(first.iter().map(fill).collect::<Vec<_>>(), [12, 12]);
    let (_two, second) = service.start_client(None);
    assert_eq!(second.iter().map(fill).collect::<Vec<_>>(), [4, 4]);
    for channel in first.iter().chain(&second) {
        let usage = channel.peer_usage().unwrap().unwrap();
        assert_eq!(usage.user(Resource::Descriptors).held, 16);
        assert_eq!((usage.processes(), usage.uid()), (2, Some(rustix::process::geteuid().as_raw())));
    }
    if !rustix::process::geteuid().is_root() {
        println!("not root, so there is no other user to try it with");
        return;
    }
    let (_three, stranger) = service.start_client(Some(65534));
    assert_eq!(stranger.iter().map(fill).collect::<Vec<_>>(), [12, 12]);
    let usage = stranger[0].peer_usage().unwrap().unwrap();
    assert_eq!((usage.processes(), usage.uid()), (1, Some(65534)));
    assert_eq!(usage.user(Resource::Descriptors).held, 12);
}

#[test]
fn lanes_are_limited_until_that_is_raised() {
    alone("lanes", "");
}

fn lanes_are_limited(_: &str) {
    let (_one, channel) = start();
    strait::quota::set_limits(Limits::new().peer(Resource::Lanes, 2));
    order(&channel, "both 1 10");
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::LimitReached(Resource::Lanes));
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::LimitReached(Resource::Lanes));
    strait::quota::set_limits(Limits::new());
    let mut handles = recv(&channel).take_handles().unwrap();
    assert_eq!(content_of(handles.pop().unwrap()), b"a file");
    let end = handles.pop().unwrap().into_channel().unwrap();
    for n in 0..3 {
        assert_eq!(recv(&end).bytes(), pattern(n, 10));
    }
    assert!(channel.peer_usage().unwrap().unwrap().peer(Resource::Lanes).held > 2);
}

/// Shows that memory of lanes that may not be mapped yet waits as a descriptor, and that the descriptor counts towards
/// the limit of the peer.
#[test]
fn memory_of_lanes_that_waits_unmapped_is_a_descriptor_of_the_peer() {
    alone("lanes unmapped", "");
}

fn lanes_wait_unmapped(_: &str) {
    let (_one, channel) = start();
    strait::quota::set_limits(Limits::new().peer(Resource::Lanes, 2).peer(Resource::Descriptors, 0));
    order(&channel, "end 1 10");
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::LimitReached(Resource::Descriptors));
    strait::quota::set_limits(Limits::new().peer(Resource::Lanes, 2));
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::LimitReached(Resource::Lanes));
    let held = || channel.peer_usage().unwrap().unwrap().peer(Resource::Descriptors).held;
    assert_eq!(held(), 1);
    strait::quota::set_limits(Limits::new());
    let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    assert_eq!((recv(&end).bytes(), held()), (&pattern(0, 10)[..], 0));
}

#[test]
fn messages_of_moved_ends_are_limited_until_that_is_raised() {
    alone("queued", "");
}

fn queued_messages_are_limited(_: &str) {
    let (_one, channel) = start();
    for (resource, most) in [(Resource::QueuedBytes, 2999), (Resource::QueuedMessages, 2)] {
        strait::quota::set_limits(Limits::new().peer(resource, most));
        order(&channel, "end 1 1000");
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::LimitReached(resource));
        strait::quota::set_limits(Limits::new().peer(resource, most + 1));
        let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
        let held = || channel.peer_usage().unwrap().unwrap().peer(resource).held;
        assert_eq!(held(), most + 1);
        for n in 0..3 {
            assert_eq!(recv(&end).bytes(), pattern(n, 1000));
        }
        assert_eq!(held(), 0);
        assert_eq!(recv(&channel).bytes(), b"done");
    }
}

/// Shows that an end in a dropped message is closed even if the messages of the end are over a limit.
#[test]
fn an_end_in_a_dropped_message_is_closed_although_its_messages_are_over_a_limit() {
    alone("dropped at a limit", "");
}

fn dropped_at_a_limit(_: &str) {
    let (_one, channel) = start();
    for (resource, most) in [(Resource::QueuedBytes, 2999), (Resource::QueuedMessages, 2)] {
        strait::quota::set_limits(Limits::new().peer(resource, most));
        order(&channel, "dropped 1 1000");
        let road = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
        assert_eq!(recv(&channel).bytes(), b"sent");
        drop(road);
        assert_eq!(recv(&channel).bytes(), b"done");
        assert_eq!(channel.peer_usage().unwrap().unwrap().peer(resource).held, 0);
    }
}

/// The resources of which a lane with its own arena needs more.
const OF_A_LANE: [Resource; 3] = [Resource::Lanes, Resource::Memory, Resource::Mappings];

/// Limits the peer to as much of `resource` as is held for it, and tells the peer.
fn limit_to_what_is_held(channel: &Channel, resource: Resource) -> u64 {
    let held = channel.peer_usage().unwrap().unwrap().peer(resource).held;
    strait::quota::set_limits(Limits::new().peer(resource, held));
    channel.send(b"limited").unwrap();
    held
}

/// Shows that an end in a message that is dropped is closed even if a limit permits no mapping of the end's lane.
#[test]
fn an_end_in_a_dropped_message_is_closed_although_its_lane_is_over_a_limit() {
    alone("dropped without room for a lane", "");
}

fn dropped_without_room_for_a_lane(_: &str) {
    let (_one, channel) = start();
    for resource in OF_A_LANE {
        order(&channel, "dropped-ring 1 65536");
        let road = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
        let held = limit_to_what_is_held(&channel, resource);
        assert_eq!(recv(&channel).bytes(), b"sent");
        drop(road);
        assert_eq!(recv(&channel).bytes(), b"done", "{resource:?}");
        assert!(channel.peer_usage().unwrap().unwrap().peer(resource).held <= held);
        strait::quota::set_limits(Limits::new());
    }
}

/// Shows that an end is closed even if a limit permits no mapping of the lane of the other end.
#[test]
fn an_end_is_closed_although_the_lane_of_its_moved_other_end_is_over_a_limit() {
    alone("closed without room for the next lane", "");
}

fn closed_without_room_for_the_next_lane(_: &str) {
    let (_one, channel) = start();
    for resource in OF_A_LANE {
        order(&channel, "moved-ring 1 65536");
        let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
        limit_to_what_is_held(&channel, resource);
        assert_eq!(recv(&channel).bytes(), b"sent");
        drop(end);
        assert_eq!(recv(&channel).bytes(), b"done", "{resource:?}");
        strait::quota::set_limits(Limits::new());
    }
}

/// Shows that an end is closed, with the ends in its messages, even if a limit permits no mapping of the larger ring
/// with the messages.
#[test]
fn an_end_is_closed_although_its_larger_ring_is_over_a_limit() {
    alone("closed without room for a ring", "");
}

fn closed_without_room_for_a_ring(_: &str) {
    let (_one, channel) = start();
    for resource in [Resource::Memory, Resource::Mappings] {
        order(&channel, "grown 1 200");
        let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
        limit_to_what_is_held(&channel, resource);
        assert_eq!(recv(&channel).bytes(), b"sent");
        drop(end);
        assert_eq!(recv(&channel).bytes(), b"done", "{resource:?}");
        strait::quota::set_limits(Limits::new());
    }
}

#[test]
fn memory_of_rings_that_grew_is_given_back_with_them() {
    alone("grown rings are given back", "");
}

fn grown_rings_are_given_back(_: &str) {
    let (_one, channel) = start();
    strait::quota::set_limits(Limits::new().peer(Resource::Memory, 2 << 20));
    order(&channel, "stream 20 300");
    for _ in 0..20 {
        let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
        channel.send(b"taken").unwrap();
        assert_eq!(recv(&channel).bytes(), b"sent");
        for n in 0..300 {
            assert!(recv(&end).bytes() == pattern(n, 1000));
        }
    }
    assert_eq!(recv(&channel).bytes(), b"done");
    assert_eq!(channel.peer_usage().unwrap().unwrap().peer(Resource::Memory).reached, 0);
}

/// The number of the first descriptor of a process with the role `raw` at its start.
const FIRST: i32 = common::SOCKET;

/// Starts a process that plays `raw` with `sockets` sockets, and returns the process and a channel over each socket.
fn start_raw(sockets: usize, what: &str) -> (Actor, Vec<Channel>) {
    start_over_sockets("raw", sockets, what)
}

/// Starts a process that plays `role` with `sockets` sockets, and returns the process and a channel over each socket.
fn start_over_sockets(role: &str, sockets: usize, what: &str) -> (Actor, Vec<Channel>) {
    let pairs: Vec<_> = (0..sockets)
        .map(|_| {
            let flags = SocketFlags::CLOEXEC;
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
        })
        .collect();
    // The child is started by `exec`, so the kernel reports the child as the sender of each packet.
    let mut command = common::command(role, &format!("{sockets} {what}"));
    let theirs: Vec<_> = pairs.iter().map(|(_, theirs)| theirs.as_raw_fd()).collect();
    // SAFETY: the closure makes system calls only, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || theirs.iter().zip(FIRST..).try_for_each(|(fd, place)| common::leave_open(*fd, place)));
    }
    command.stdin(Stdio::piped());
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let channels = ours.into_iter().map(|socket| Channel::over(socket).unwrap()).collect();
    let actor = Actor(command.spawn().unwrap());
    drop(theirs);
    (actor, channels)
}

/// Sends `what`, which is not a packet of the protocol, over each socket, and runs until standard input ends.
fn raw(argument: &str) {
    let (sockets, what) = argument.split_once(' ').unwrap();
    for place in (FIRST..).take(sockets.parse().unwrap()) {
        // SAFETY: the parent of a process with this role leaves the descriptor to the process.
        let socket = unsafe { OwnedFd::from_raw_fd(place) };
        // The parent may have closed this link already, because of the packet over another link.
        let _ = rustix::net::send(&socket, what.as_bytes(), SendFlags::NOSIGNAL);
        std::mem::forget(socket);
    }
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

const NONSENSE: Error = Error::BadPeer("an invalid packet");

/// Returns a list of all further reports of bad peers in this process.
fn listen() -> Arc<Mutex<Vec<BadPeer>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let listening = told.clone();
    strait::quota::on_bad_peer(move |bad| listening.lock().unwrap().push(*bad));
    told
}

/// Shows that a bad peer is reported once for all links, and that other peers are not affected.
#[test]
fn a_bad_peer_is_told_once_for_all_its_links_and_nobody_else_is_disturbed() {
    alone("bad peer", "");
}

fn bad_peer_is_told_once(_: &str) {
    let told = listen();
    let (_good, other) = start();
    let (bad, channels) = start_raw(3, "nonsense");
    for channel in &channels {
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), NONSENSE);
        assert_eq!(channel.send(b"hello").unwrap_err().error, NONSENSE);
    }
    assert_works(&other);
    let (worse, more) = start_raw(1, "nonsense too");
    assert_eq!(more[0].recv_by(DEADLINE).unwrap_err(), NONSENSE);
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 2, "{told:?}");
    for (bad, actor) in told.iter().zip([bad, worse]) {
        assert_eq!(bad.peer.and_then(|peer| peer.pid), Some(actor.pid()));
        assert!(bad.link_lost && bad.reason == "an invalid packet");
        assert!(bad.to_string().starts_with("bad peer: an invalid packet (process "));
    }
}

/// Shows that a bad peer that has connected to a listener is reported once for all links, with its process.
#[test]
fn a_bad_peer_that_has_connected_is_told_once_for_all_its_links() {
    alone("bad client", "");
}

fn bad_client_is_told_once(_: &str) {
    let told = listen();
    let service = Service::start();
    let (_good, others) = service.start_client(None);
    let (bad, channels) = service.start_client(None);
    order(&channels[0], "nonsense 1 0");
    for channel in &channels {
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), NONSENSE);
    }
    others.iter().for_each(assert_works);
    let told = told.lock().unwrap();
    assert_eq!(told.iter().map(|bad| bad.peer.and_then(|peer| peer.pid)).collect::<Vec<_>>(), [Some(bad.pid())]);
}

/// Shows that a wait in a wait set detects and reports a bad peer, although no thread receives from the peer.
#[test]
fn a_wait_set_tells_of_a_bad_peer_that_nobody_receives_from() {
    alone("bad peer in a wait set", "");
}

fn bad_peer_is_told_by_a_wait_set(_: &str) {
    let told = listen();
    let set = WaitSet::new().unwrap();
    let (_bad, channels) = start_raw(1, "nonsense");
    set.add(&channels[0], 1, Interest::Readable, Mode::Level).unwrap();
    let mut events = Vec::new();
    set.wait(&mut events, DEADLINE).unwrap();
    assert_eq!(told.lock().unwrap().len(), 1);
}

/// Shows that the callback for bad peers may drop channels, receive, detect another bad peer, and set another callback.
#[test]
fn who_is_told_of_a_bad_peer_may_do_anything() {
    alone("bad peer may drop", "");
}

fn bad_peer_may_do_anything(_: &str) {
    let (_good, other) = start();
    let (_bad, channels) = start_raw(2, "nonsense");
    let (_worse, more) = start_raw(1, "nonsense");
    let calls = Arc::new(AtomicUsize::new(0));
    let rest: Mutex<Vec<Channel>> = Mutex::new(more);
    let mut channels = channels;
    let second = Mutex::new(channels.pop());
    let counted = calls.clone();
    strait::quota::on_bad_peer(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let dropped = second.lock().unwrap().take();
        drop(dropped);
        // The callback detects and reports another bad peer, from within itself.
        let next = rest.lock().unwrap().pop();
        if let Some(channel) = next {
            assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), NONSENSE);
        }
        assert_works(&other);
        strait::quota::on_bad_peer(|_| {});
    });
    assert_eq!(channels[0].recv_by(DEADLINE).unwrap_err(), NONSENSE);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// Sends pure wake packets as fast as possible over the first socket.
fn storm(_: &str) {
    // SAFETY: the parent of a process with this role leaves the descriptor to the process.
    let socket = unsafe { OwnedFd::from_raw_fd(FIRST) };
    let mut wake = [0u8; 48];
    wake[0] = 6;
    while rustix::net::send(&socket, &wake, SendFlags::NOSIGNAL).is_ok() {}
}

/// Reports that its side is open. Then, whenever the parent sleeps, clears the parent's sleep word and wakes the parent
/// for nothing.
fn scribbles(_: &str) {
    let channel = parent();
    channel.send(b"here").unwrap();
    let words: Vec<*const AtomicU32> = std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter(|line| line.contains("memfd:strait-ring"))
        .map(|line| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap() + 80)
        .map(std::ptr::with_exposed_provenance)
        .collect();
    assert!(!words.is_empty());
    while !channel.is_peer_closed() {
        for _ in 0..100_000 {
            for word in &words {
                // SAFETY: the word is aligned and inside memory of a channel, which stays mapped as long as the channel
                // exists.
                let word = unsafe { &**word };
                if word.swap(0, Ordering::SeqCst) != 0 {
                    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), 1);
                }
            }
        }
    }
}

/// Calls `wait` again and again until the peer of `channel` was throttled 50 times. Then asserts that the peer wakes
/// this thread not much more often than the throttle permits.
fn assert_endures(channel: &Channel, mut wait: impl FnMut()) {
    let usage = || channel.peer_usage().unwrap();
    wait_until("the peer was throttled 50 times", || {
        wait();
        usage().is_some_and(|usage| usage.pauses() >= 50)
    });
    let cpu = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let is_little = || {
        let (begin, cpu_before, before) = (Instant::now(), cpu(), usage().unwrap());
        let mut calls = 0;
        while begin.elapsed() < Duration::from_secs(1) {
            wait();
            calls += 1;
        }
        let (used, elapsed) = (cpu() - cpu_before, begin.elapsed());
        let woken = usage().unwrap().idle_wake_ups() - before.idle_wake_ups();
        // Each call may search for the handshake in all packets in the socket and those that arrive meanwhile: 8192
        // packets at most.
        let most = elapsed.as_millis() as u64 * 40 + calls * 8300;
        println!("woken {woken} times in {elapsed:?}, of which {used:?} on a CPU");
        assert!(woken <= most, "woken {woken} times, and {most} are too many");
        used < elapsed / 2
    };
    // Time that the host takes away may be counted as time of this thread, but hardly in each of five attempts.
    assert!(std::iter::repeat_with(is_little).take(5).any(|is_little| is_little), "idle wake-ups use most of the time");
}

/// Shows that a peer that sends wake packets without end is throttled.
#[test]
fn packets_that_only_wake_take_little_time() {
    alone("woken by packets", "");
}

fn woken_by_packets(_: &str) {
    let (_storm, channels) = start_over_sockets("storm", 1, "");
    assert_endures(&channels[0], || {
        assert_eq!(channels[0].recv_by(Duration::from_millis(50)).unwrap_err(), Error::TimedOut);
    });
}

/// Shows that a peer that wakes a sleep word without end is throttled.
#[test]
fn a_word_that_only_wakes_takes_little_time() {
    alone("woken by a word", "");
}

fn woken_by_a_word(_: &str) {
    let (child, channel) = Options::new().wait(Wait::Block).spawn(&mut common::command("scribbles", "")).unwrap();
    let _scribbles = Actor(child);
    assert_eq!(recv(&channel).bytes(), b"here");
    // A longer sleep is on the socket, and a change of the word does not end that sleep.
    assert_endures(&channel, || {
        assert_eq!(channel.recv_by(Duration::from_millis(10)).unwrap_err(), Error::TimedOut);
    });
}

/// Shows that a wait set reports events of other peers while throttling one peer.
#[test]
fn a_set_hears_others_while_a_peer_wakes_it_for_nothing() {
    alone("a set is woken", "");
}

fn a_set_is_woken(_: &str) {
    let (_storm, channels) = start_over_sockets("storm", 1, "");
    let (_good, other) = common::spawn("echo");
    let set = WaitSet::new().unwrap();
    // The socket is watched from here on, although the peer never sends a handshake.
    set.add(&channels[0], 1, Interest::Readable, Mode::Level).unwrap();
    set.add(&other, 2, Interest::Readable, Mode::Level).unwrap();
    let mut events = Vec::new();
    assert_endures(&channels[0], || {
        assert_eq!(set.wait(&mut events, Duration::from_millis(50)).unwrap(), 0);
    });
    for n in 0..200 {
        other.send(&pattern(n, 50)).unwrap();
        assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
        assert_eq!(events[0].key(), 2);
        assert_eq!(other.try_recv().unwrap().bytes(), pattern(n, 50));
    }
    // The set also reports the messages to a thread that waits on the set's descriptor.
    for n in 0..200 {
        other.send(&pattern(n, 50)).unwrap();
        wait_until("the set is readable for the message", || {
            poll(&mut [PollFd::new(&set, PollFlags::IN)], None).unwrap();
            set.wait(&mut events, Deadline::NOW).unwrap() == 1
        });
        assert_eq!(other.try_recv().unwrap().bytes(), pattern(n, 50));
    }
}

/// Shows that a peer whose wake-ups all bring messages is never throttled.
#[test]
fn who_wakes_for_something_is_always_listened_to() {
    alone("woken for something", "");
}

fn woken_for_something(_: &str) {
    for by_set in [false, true] {
        let (_echo, channel) = common::spawn_with("echo", "", &Options::new().wait(Wait::Block));
        let set = WaitSet::new().unwrap();
        set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
        let mut events = Vec::new();
        for n in 0..10_000u64 {
            channel.send(&n.to_ne_bytes()).unwrap();
            if by_set {
                assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
            }
            assert_eq!(recv(&channel).bytes(), n.to_ne_bytes());
        }
        assert_eq!(channel.peer_usage().unwrap().unwrap().pauses(), 0);
    }
}

/// Shows that a channel that refuses descriptors never opens the descriptors of messages, but receives memory.
#[test]
fn descriptors_that_are_not_accepted_never_become_this_process_s() {
    alone("refuses", "");
}

fn refuses(_: &str) {
    let options = Options::new().accept_descriptors(false);
    let (child, channel) = options.spawn(&mut common::command("peer", "")).unwrap();
    let _actor = Actor(child);
    order(&channel, "plain 0 0");
    assert_eq!(recv(&channel).bytes(), b"done");
    let before = descriptors();
    // The kernel gives out the lowest free number, so receiving 60 descriptors would need higher numbers for a moment.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let tight = rustix::process::Rlimit { current: Some(before as u64 + 4), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, tight).unwrap();
    order(&channel, "handles 3 60");
    for n in 0..3u8 {
        let mut message = recv(&channel);
        assert_eq!(message.bytes(), [n]);
        assert_eq!(message.take_handles().unwrap_err(), Error::HandlesLost { sent: 60, arrived: 0 });
    }
    assert_eq!(recv(&channel).bytes(), b"done");
    // Memory is accepted, even in a packet with descriptors.
    order(&channel, "large 1 7");
    let mut message = recv(&channel);
    assert!(message.bytes() == pattern(0, 100_000));
    assert_eq!(message.take_handles().unwrap_err(), Error::HandlesLost { sent: 7, arrived: 0 });
    assert_eq!(recv(&channel).bytes(), b"done");
    order(&channel, "plain 2 100000");
    for n in 0..2 {
        assert!(recv(&channel).bytes() == pattern(n, 100_000));
    }
    assert_eq!(recv(&channel).bytes(), b"done");
    order(&channel, "end 1 100");
    let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    for n in 0..3 {
        assert_eq!(recv(&end).bytes(), pattern(n, 100));
    }
    assert_eq!(descriptors(), before);
}

/// Sends sockets whose last close blocks for a minute: until the other side, in this process, has received everything.
/// The other side never receives.
fn lingers(_: &str) {
    let channel = parent();
    // Over this channel the process reports the close of its copy of the socket, so that the parent's close is the
    // last.
    let closed = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut others = Vec::new();
    while let Ok(order) = channel.recv() {
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        others.push(listener.accept().unwrap());
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 65536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&socket, Some(DEADLINE)).unwrap();
        socket.set_nonblocking(false).unwrap();
        channel.send(Outgoing::new(order.bytes()).handle(OwnedFd::from(socket))).unwrap();
        closed.send(b"closed").unwrap();
    }
}

/// Shows that a thread does not wait for the close of a received descriptor, however long that close takes.
#[test]
fn closing_what_a_peer_sent_keeps_nobody() {
    alone("closing takes long", "");
}

fn closing_takes_long(_: &str) {
    let (_lingers, channel) = common::spawn("lingers");
    let (closed, theirs) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"say when").handle(theirs)).unwrap();
    common::handle_signals();
    let begin = Instant::now();
    for _ in 0..2 {
        channel.send(b"one").unwrap();
        let message = recv(&channel);
        assert_eq!(recv(&closed).bytes(), b"closed");
        // The message is dropped with the handle.
        drop(message);
    }
    // The thread that closes the socket must not run signal handlers of the program.
    common::assert_handles_no_signals(std::process::id(), "strait-close");
    assert_eq!(common::handled_by(), 0);
    channel.send(b"one").unwrap();
    assert_eq!(recv(&closed).bytes(), b"closed");
    // The channel is dropped with a message.
    drop(channel);
    assert!(begin.elapsed() < DEADLINE / 2, "closing took {:?}", begin.elapsed());
}

/// Sends one end of a pipe, and reports when every copy of the end is closed.
fn pipes(_: &str) {
    let channel = parent();
    let (mut reader, writer) = std::io::pipe().unwrap();
    channel.send(Outgoing::new(b"a pipe").handle(OwnedFd::from(writer))).unwrap();
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    channel.send(b"closed").unwrap();
}

/// Shows that a slow close of one peer's descriptor does not delay the close of another peer's.
#[test]
fn what_one_peer_sent_does_not_keep_what_another_sent_from_being_closed() {
    alone("closing for others", "");
}

fn closing_for_others(_: &str) {
    let (_lingers, channel) = common::spawn("lingers");
    // Started before the parent has the lingering socket; otherwise `exec` would close a copy of the socket here.
    let (_pipes, other) = common::spawn("pipes");
    let (closed, theirs) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"say when").handle(theirs)).unwrap();
    channel.send(b"one").unwrap();
    let message = recv(&channel);
    assert_eq!(recv(&closed).bytes(), b"closed");
    drop(message);
    let held = || channel.peer_usage().unwrap().unwrap().peer(Resource::Descriptors).held;
    assert_eq!(held(), 1, "the descriptor that waits to be closed is not charged");
    drop(recv(&other));
    let begin = Instant::now();
    assert_eq!(recv(&other).bytes(), b"closed");
    assert!(begin.elapsed() < DEADLINE / 2, "closing took {:?}", begin.elapsed());
    assert_eq!(held(), 1);
}

/// Receives ends, and reads only from the last of them.
fn reads_the_last(_: &str) {
    let channel = parent();
    let ends: Vec<_> = recv(&channel).take_handles().unwrap();
    let ends: Vec<_> = ends.into_iter().map(|end| end.into_channel().unwrap()).collect();
    let last = ends.last().unwrap();
    while let Ok(mut message) = last.recv() {
        let count = message.take_handles().unwrap().len();
        last.send(&[count as u8]).unwrap();
    }
}

/// Shows that a channel whose peer receives can send descriptors although other channels of the link have many in
/// flight, with a limit on descriptors that is large, and with the usual limit.
#[test]
fn a_channel_that_is_read_passes_descriptors_whatever_others_have_under_way() {
    for limit in ["16384", USUAL_LIMIT] {
        alone("others do not read", limit);
    }
}

/// The usual soft limit of a process on descriptors.
const USUAL_LIMIT: &str = "1024";

/// Sets the soft limit of this process on descriptors to `most`, or to the hard limit if that is lower. Returns the
/// limit.
fn limit_descriptors(most: &str) -> u64 {
    let old = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = most.parse::<u64>().unwrap().min(old.maximum.unwrap_or(u64::MAX));
    let new = rustix::process::Rlimit { current: Some(most), ..old };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, new).unwrap();
    most
}

/// Sends messages with files on `ends` until each end refuses one file more. Returns the number of files sent.
fn fill_with_files(ends: &[Channel]) -> usize {
    let file = file_with(b"content");
    let mut sent = 0;
    for count in [64, 1] {
        for end in ends {
            let files = || (0..count).map(|_| Handle::from(file.try_clone().unwrap()));
            while end.try_send(Outgoing::new(b"files").handles(files())).is_ok() {
                sent += count;
            }
        }
    }
    sent
}

fn others_do_not_read(limit: &str) {
    let limit = limit_descriptors(limit);
    let (_child, channel) = common::spawn("reads the last");
    let (near, far): (Vec<_>, Vec<_>) = (0..30).map(|_| Channel::pair().unwrap()).unzip();
    channel.send(Outgoing::new(b"ends").handles(far.into_iter().map(Handle::from))).unwrap();
    let (read, unread) = near.split_last().unwrap();
    let pass = |count: usize| {
        let files = (0..count).map(|_| Handle::from(file_with(b"content")));
        read.send_by(Outgoing::new(b"files").handles(files), DEADLINE).unwrap();
        assert_eq!(recv(read).bytes(), [count as u8]);
    };
    pass(1);
    let sent = fill_with_files(unread);
    assert!(sent as u64 <= limit / 4, "{sent} descriptors are in flight to one peer");
    pass(64);
    pass(64);
}

/// Shows that a peer with seven channels that receives nothing leaves descriptors for other peers. The kernel limits
/// the descriptors in flight of a user, so this process has a user of its own.
#[test]
fn a_peer_that_reads_nothing_keeps_no_descriptor_from_another_peer() {
    if !rustix::process::geteuid().is_root() {
        println!("Only root can start a process as another user.");
        return;
    }
    let mut command = common::command("one peer reads nothing", "");
    common::finish(Actor(command.uid(54_322).gid(54_322).spawn().unwrap()));
}

/// Receives the ends of channels, and then nothing more.
fn reads_nothing(_: &str) {
    let channel = parent();
    let ends = recv(&channel).take_handles().unwrap();
    channel.send(&[ends.len() as u8]).unwrap();
    loop {
        std::thread::park();
    }
}

fn one_peer_reads_nothing(_: &str) {
    const FURTHER: usize = 6;
    let limit = limit_descriptors(USUAL_LIMIT);
    let (_silent, silent) = common::spawn("reads nothing");
    let (_reader, reader) = common::spawn("echo");
    let (mut near, far): (Vec<_>, Vec<_>) = (0..FURTHER).map(|_| Channel::pair().unwrap()).unzip();
    silent.send(Outgoing::new(b"ends").handles(far.into_iter().map(Handle::from))).unwrap();
    assert_eq!(recv(&silent).bytes(), [FURTHER as u8]);
    near.push(silent);
    let sent = fill_with_files(&near);

    let pass = |message: Outgoing<'_>| {
        reader.send_by(message, SOON).unwrap();
        recv(&reader)
    };
    let mut file = pass(Outgoing::new(b"file").handle(file_with(b"content")));
    assert_eq!(content_of(file.take_handles().unwrap().remove(0)), b"content");
    let long = pattern(1, 1 << 20);
    assert!(pass(Outgoing::new(&long)).bytes() == long);
    let (kept, sent_away) = Channel::pair().unwrap();
    let mut end = pass(Outgoing::new(b"end").handle(sent_away));
    let end = end.take_handles().unwrap().remove(0).into_channel().unwrap();
    kept.send_by(b"through", SOON).unwrap();
    assert_eq!(recv(&end).bytes(), b"through");
    assert!(sent as u64 <= limit / 4, "{sent} descriptors are in flight to one peer");
}

/// Shows that messages of idle ends do not keep other ends from sending. An end counts its messages in flight when it
/// sends, and an idle end does not send again.
#[test]
fn what_idle_ends_have_sent_and_others_have_taken_keeps_nobody_from_sending() {
    alone("idle ends", "");
}

fn idle_ends(_: &str) {
    let pairs: Vec<_> = (0..20).map(|_| Channel::pair().unwrap()).collect();
    for (n, (a, b)) in pairs.iter().enumerate() {
        // More than the share of one of twenty ends, if all ends had so much in flight at once.
        for m in 0..240 {
            let room = a.reserve_sealed(1).unwrap();
            room.commit(Deadline::NOW).unwrap_or_else(|error| panic!("message {m} of channel {n}: {error}"));
        }
        for _ in 0..240 {
            b.try_recv().unwrap();
        }
    }
}

/// Shows that the descriptors of memory for large messages count as descriptors in flight. Otherwise many channels
/// could send more descriptors than a link accepts from an untrusted peer.
#[test]
fn memory_of_many_channels_that_nobody_takes_waits_where_it_is_sent() {
    alone("memory of many", "");
}

fn memory_of_many(_: &str) {
    let bytes = vec![1; 70_000];
    let pairs: Vec<_> = (0..100).map(|_| Options::new().pool(0).pair().unwrap()).collect();
    let mut sent = 0;
    for (n, (a, _)) in pairs.iter().cycle().take(60 * pairs.len()).enumerate() {
        match a.try_send(&bytes) {
            Ok(()) => sent += 1,
            Err(SendError { error: Error::WouldBlock, .. }) => {}
            Err(error) => panic!("message {n}: {error}"),
        }
    }
    // The number includes the memory of grown rings.
    assert!((3500..=4096).contains(&sent), "{sent} messages were sent");
    let received = pairs.iter().map(|(_, b)| std::iter::from_fn(|| b.try_recv().ok()).count());
    assert_eq!(received.sum::<usize>(), sent);
    for (a, b) in &pairs {
        a.try_send(&bytes).unwrap();
        assert_eq!(b.try_recv().unwrap().bytes(), bytes);
    }
}

/// Shows that a ring that grew is not in flight any more once the other end reads the ring, even if no message in the
/// ring needs credit.
#[test]
fn rings_that_grew_and_are_read_keep_nobody_from_sending() {
    alone("grown rings", "");
}

fn grown_rings(_: &str) {
    let pairs: Vec<_> = (0..4500).map(|_| Channel::pair().unwrap()).collect();
    for (n, (a, b)) in pairs.iter().enumerate() {
        a.try_send(&[1; 2000]).unwrap_or_else(|error| panic!("channel {n}: {error}"));
        assert_eq!(a.counters().grown, 1);
        assert_eq!(b.try_recv().unwrap().bytes(), [1; 2000]);
    }
}

/// Shows that unreceived messages of ends that were closed, or that moved to the process of their other ends, stay in
/// flight. A sender at the limit then waits, and is not treated as a bad peer.
#[test]
fn what_ends_had_sent_before_they_were_closed_is_still_in_flight() {
    alone("unread of ends that left", "closes them");
}

/// Shows that unreceived messages of moved ends stay in flight.
#[test]
fn what_ends_had_sent_before_they_went_on_is_still_under_way() {
    alone("unread of ends that left", "sends them on");
}

/// Shows that the backlog messages of a fuse are in flight.
#[test]
fn what_a_fuse_has_brought_along_is_under_way() {
    alone("unread of ends that left", "fuses them");
}

/// More attachments than a process accepts without having requested them.
const UNREAD: usize = 9_000;

fn unread_of_ends_that_left(how: &str) {
    let (child, channel) = common::command("leaves unread", how).spawn_with_channel().unwrap();
    let (mut unread, mut received) = (Vec::<Channel>::new(), 0);
    let mut goes_on = None;
    loop {
        // The receiver reads only when the sender pauses. A pause for another reason does no harm.
        let next = channel.recv_by(Duration::from_millis(500));
        let mut message = match next {
            Err(Error::TimedOut) => {
                // The peer may not have sent to the last end yet.
                let last = unread.pop();
                for end in unread.drain(..) {
                    assert_eq!(recv(&end).bytes()[0], 7);
                    assert_eq!(end.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
                    received += 1;
                }
                unread.extend(last);
                continue;
            }
            next => next.unwrap_or_else(|error| panic!("with {} unread: {error}", unread.len())),
        };
        match message.bytes() {
            b"end" => unread.push(message.take_handles().unwrap().remove(0).into_channel().unwrap()),
            b"it goes on" => {
                let end = message.take_handles().unwrap().remove(0).into_channel().unwrap();
                // All other ends that were sent on are closed.
                goes_on.get_or_insert_with(|| (end, unread.pop().unwrap()));
            }
            _ => break,
        }
    }
    if let Some((mine, theirs)) = goes_on {
        mine.send(b"from where it went").unwrap();
        assert_eq!(recv(&theirs).bytes(), [7]);
        assert_eq!(recv(&theirs).bytes(), b"from where it went");
        received += 1;
    }
    for end in unread {
        assert_eq!(recv(&end).bytes()[0], 7);
        received += 1;
    }
    assert_eq!(received, UNREAD);
    common::finish(Actor(child));
}

fn leaves_unread(how: &str) {
    let channel = parent();
    for _ in 0..UNREAD {
        let (mine, theirs) = Channel::pair().unwrap();
        channel.send_by(Outgoing::new(b"end").handle(theirs), DEADLINE).unwrap();
        if how == "fuses them" {
            // The message is too large for the room in a ring.
            let (far, near) = Channel::pair().unwrap();
            far.send(&[7; 1000]).unwrap();
            mine.fuse(near, DEADLINE).unwrap();
            continue;
        }
        let mut room = mine.reserve_sealed(1).unwrap();
        room.bytes()[0] = 7;
        room.commit(DEADLINE).unwrap();
        if how == "sends them on" {
            channel.send_by(Outgoing::new(b"it goes on").handle(mine), DEADLINE).unwrap();
        }
    }
    channel.send(b"done").unwrap();
}

/// Shows that unreceived messages within a process do not affect other channels of the process, in any number, and
/// although the sending ends are closed.
#[test]
fn memory_that_was_sent_within_a_process_and_is_not_received() {
    const MANY: usize = 9_000;
    let mut unread = Vec::new();
    for _ in 0..MANY {
        let (a, b) = Channel::pair().unwrap();
        let mut room = a.reserve_sealed(1).unwrap();
        room.bytes()[0] = 7;
        room.commit(Deadline::NOW).unwrap();
        unread.push(b);
    }
    let (a, b) = Channel::pair().unwrap();
    a.try_send(&vec![1; 100_000]).unwrap();
    assert_eq!(b.try_recv().unwrap().bytes().len(), 100_000);
    for b in unread {
        assert_eq!(b.try_recv().unwrap().bytes(), [7]);
        assert_eq!(b.try_recv().unwrap_err(), Error::PeerClosed);
    }
}

/// The first call of a link is the send of a large message, before the peer's first packet.
#[test]
fn the_account_of_a_peer_has_its_name_after_a_large_first_message() {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let ours = Channel::over(ours).unwrap();
    ours.send(&vec![1; 1 << 20][..]).unwrap();
    let theirs = std::thread::spawn(move || {
        let channel = Channel::over(theirs).unwrap();
        channel.send(channel.recv_by(DEADLINE).unwrap().bytes()).unwrap();
        channel.recv_by(DEADLINE).map(drop).unwrap_err()
    });
    assert_eq!(ours.recv_by(DEADLINE).unwrap().bytes().len(), 1 << 20);
    assert_eq!(ours.peer_usage().unwrap().unwrap().uid(), Some(rustix::process::getuid().as_raw()));
    drop(ours);
    assert_eq!(theirs.join().unwrap(), Error::PeerClosed);
}
