//! Shows that a sender without a free descriptor, or without memory for one more mapping, still wakes the receiver.
//!
//! The receiver waits in a wait set, with a ready bitmap that the sender has yet to receive. Only the sender has a
//! shortage.

mod common;

use std::future::Future;
use std::io::{BufRead, Write};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::{Actor, DEADLINE, SOON, Watched, parent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait::pipe::{DataConsumer, DataPipe, DataProducer};
use strait::task::{AsyncChannel, AsyncConsumer, Reactor};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, CommandExt, Deadline, Error, Options, Outgoing};

#[test]
fn child() {
    common::play(&[("sender", sender), ("echo", |_| common::echo(&parent()))]);
}

/// The resource missing in the sender.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lacks {
    Descriptors,
    Mappings,
}

/// The capacity of the data pipes, in bytes.
const PIPE: usize = 4096;

/// The size of the channel's ring, in bytes.
const RING: usize = 256;

/// The ends of the sender.
struct Sender {
    channel: Option<Channel>,
    more: Vec<Channel>,
    producer: DataProducer,
    consumer: DataConsumer,
    files: Vec<OwnedFd>,
}

/// Executes the orders on standard input. Reading an order needs no descriptor and no call of the library.
fn sender(_: &str) {
    let link = parent();
    let mut handles = link.recv_by(DEADLINE).unwrap().take_handles().unwrap().into_iter();
    let mut next = || handles.next().unwrap();
    let channel = Some(next().into_channel().unwrap());
    let (producer, consumer) = (next().into_producer().unwrap(), next().into_consumer().unwrap());
    let mut more = Vec::new();
    while let Some(handle) = link.recv_by(DEADLINE).unwrap().take_handles().unwrap().pop() {
        more.push(handle.into_channel().unwrap());
    }
    let mut sender = Sender { channel, more, producer, consumer, files: Vec::new() };
    for line in std::io::stdin().lock().lines() {
        match line.unwrap().as_str() {
            "lack Descriptors" => sender.use_up_descriptors(),
            "lack Mappings" => limit(Resource::As, Some(mapped())),
            "lack nothing" => {
                sender.files.clear();
                limit(Resource::Nofile, None);
                limit(Resource::As, None);
            }
            order => {
                sender.obey(order);
                continue;
            }
        }
        link.send_by(b"done", DEADLINE).unwrap();
    }
}

impl Sender {
    fn use_up_descriptors(&mut self) {
        limit(Resource::Nofile, Some(64));
        while let Ok(file) = std::fs::File::open("/dev/null") {
            self.files.push(file.into());
        }
    }

    fn obey(&mut self, order: &str) {
        match order {
            "send" => self.channel.as_ref().unwrap().send_by(b"news", DEADLINE).unwrap(),
            "take" => while self.channel.as_ref().unwrap().try_recv().is_ok() {},
            "close" => drop(self.channel.take()),
            "write" => self.producer.write_whole(b"news", DEADLINE).unwrap(),
            "ask for room" => assert!(self.producer.room().is_ok()),
            "read" => assert_eq!(self.consumer.read_some(&mut [0; PIPE], Deadline::NOW).unwrap(), PIPE),
            number => self.more[number.parse::<usize>().unwrap()].send_by(b"news", DEADLINE).unwrap(),
        }
    }
}

fn limit(of: Resource, current: Option<u64>) {
    let maximum = getrlimit(of).maximum;
    setrlimit(of, Rlimit { current: current.or(maximum), maximum }).unwrap();
}

/// Returns how many bytes of address space this process uses.
fn mapped() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().next().unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
}

/// The sender's process, the ends of this process, and the pipe for orders.
struct Receiver {
    actor: Actor,
    orders: ChildStdin,
    link: Channel,
    channel: Option<Channel>,
    more: Vec<Channel>,
    consumer: DataConsumer,
    producer: DataProducer,
}

impl Receiver {
    /// Starts a sender that lacks `lacks`, with `more` more channels to the sender.
    fn new(lacks: Lacks, more: usize) -> Self {
        let mut command = common::command("sender", "");
        command.stdin(Stdio::piped());
        let (mut child, link) = command.spawn_with_channel().unwrap();
        let orders = child.stdin.take().unwrap();
        // The ring does not grow, because a larger ring would need a descriptor.
        let (channel, theirs) = Options::new().ring(RING).ring_max(RING).pair().unwrap();
        let (their_producer, consumer) = DataPipe::pair(PIPE).unwrap();
        let (producer, their_consumer) = DataPipe::pair(PIPE).unwrap();
        let message = Outgoing::new(b"first").handle(theirs).handle(their_producer).handle(their_consumer);
        link.send_by(message, DEADLINE).unwrap();
        let more = (0..more).map(|_| one_more(&link)).collect();
        link.send_by(b"last", DEADLINE).unwrap();
        let mut receiver = Self { actor: Actor(child), orders, link, channel: Some(channel), more, consumer, producer };
        receiver.order(&format!("lack {lacks:?}"));
        receiver.settle();
        receiver
    }

    fn channel(&self) -> &Channel {
        self.channel.as_ref().unwrap()
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// Waits until the sender has executed an order that changes the shortage.
    fn settle(&self) {
        assert_eq!(self.link.recv_by(DEADLINE).unwrap().bytes(), b"done");
    }

    fn has_enough_again(&mut self) {
        self.order("lack nothing");
        self.settle();
    }

    fn end(self) {
        drop(self.orders);
        self.actor.wait_for_success();
    }
}

fn one_more(link: &Channel) -> Channel {
    let (ours, theirs) = Channel::pair().unwrap();
    link.send_by(Outgoing::new(b"").handle(theirs), DEADLINE).unwrap();
    ours
}

/// Runs `wait` in a thread, gives `order` to the sender once the thread sleeps, and asserts that the wait then ends in
/// time.
fn wakes(orders: &mut ChildStdin, order: &str, wait: impl FnOnce() + Send) {
    wakes_within(SOON, orders, order, wait);
}

/// Does what [`wakes`] does, and asserts that the wait ends within `limit`.
fn wakes_within(limit: Duration, orders: &mut ChildStdin, order: &str, wait: impl FnOnce() + Send) {
    let watched = Watched::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            watched.enter();
            let begin = Instant::now();
            wait();
            assert!(begin.elapsed() < limit, "the wait timed out");
        });
        watched.wait_until_blocked();
        writeln!(orders, "{order}").unwrap();
        waiting.join().unwrap();
    });
}

/// Waits until the wait set reports events, and returns their keys.
fn told(set: &WaitSet) -> Vec<u64> {
    let mut events = Vec::new();
    set.wait(&mut events, SOON).unwrap();
    assert!(!events.is_empty(), "the set slept on");
    events.iter().map(|event| event.key()).collect()
}

/// Fills a channel's ring with small messages.
fn fill(channel: &Channel) {
    let error = loop {
        match channel.try_send(b"") {
            Ok(()) => {}
            Err(error) => break error.error,
        }
    };
    assert_eq!(error, Error::WouldBlock);
}

/// The number of repetitions of an event, large enough to show that the shortage may last.
const TIMES: usize = 20;

fn a_member_is_told_of(lacks: Lacks) {
    let mut receiver = Receiver::new(lacks, 0);
    let channel = receiver.channel.take().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&channel, 5, Interest::Readable, Mode::Level).unwrap();
    let hear = |receiver: &mut Receiver| {
        wakes(&mut receiver.orders, "send", || assert_eq!(told(&set), [5]));
        assert_eq!(channel.try_recv().unwrap().bytes(), b"news");
    };
    (0..TIMES).for_each(|_| hear(&mut receiver));
    receiver.has_enough_again();
    (0..TIMES).for_each(|_| hear(&mut receiver));
    receiver.end();
}

#[test]
fn a_member_of_a_set_is_told_of_though_its_sender_has_no_descriptors() {
    a_member_is_told_of(Lacks::Descriptors);
}

/// Shows that a wait set reports a member although the sender cannot map the ready bitmap.
#[test]
fn a_member_of_a_set_is_told_of_though_its_sender_cannot_map_the_board() {
    a_member_is_told_of(Lacks::Mappings);
}

/// Shows that a member is reported after a shortage of only one message's duration.
#[test]
fn a_member_is_told_of_what_a_moments_shortage_came_before() {
    let mut receiver = Receiver::new(Lacks::Descriptors, 0);
    let channel = receiver.channel.take().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&channel, 5, Interest::Readable, Mode::OneShot).unwrap();
    wakes(&mut receiver.orders, "send", || assert_eq!(told(&set), [5]));
    receiver.has_enough_again();
    for _ in 0..TIMES {
        while channel.try_recv().is_ok() {}
        set.modify(&channel, 5, Interest::Readable, Mode::OneShot).unwrap();
        wakes(&mut receiver.orders, "send", || assert_eq!(told(&set), [5]));
    }
    receiver.end();
}

/// Shows that a wait set reports the one ready member of many, although the sender has no descriptors. There are more
/// members than a wait looks at in one step.
#[test]
fn one_of_many_members_is_told_of_though_its_sender_has_no_descriptors() {
    const MORE: usize = 2500;
    let mut receiver = Receiver::new(Lacks::Descriptors, MORE);
    let set = WaitSet::new().unwrap();
    for (key, channel) in (0..).zip(&receiver.more) {
        set.add(channel, key, Interest::Readable, Mode::Level).unwrap();
    }
    for which in [MORE - 1, 0, MORE / 2, MORE - 1] {
        wakes(&mut receiver.orders, &which.to_string(), || assert_eq!(told(&set), [which as u64]));
        assert_eq!(receiver.more[which].try_recv().unwrap().bytes(), b"news");
    }
    receiver.end();
}

#[test]
fn a_member_is_told_that_its_peer_has_closed_though_that_has_no_descriptors() {
    let mut receiver = Receiver::new(Lacks::Descriptors, 0);
    let channel = receiver.channel.take().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&channel, 5, Interest::Readable, Mode::Level).unwrap();
    wakes(&mut receiver.orders, "close", || assert_eq!(told(&set), [5]));
    assert_eq!(channel.try_recv().unwrap_err(), Error::PeerClosed);
    receiver.end();
}

fn a_member_is_told_of_room(lacks: Lacks) {
    let mut receiver = Receiver::new(lacks, 0);
    let channel = receiver.channel.take().unwrap();
    let set = WaitSet::new().unwrap();
    fill(&channel);
    set.add(&channel, 6, Interest::Writable, Mode::Level).unwrap();
    for _ in 0..TIMES {
        wakes(&mut receiver.orders, "take", || assert_eq!(told(&set), [6]));
        // The other side may not have received all messages yet.
        receiver.has_enough_again();
        receiver.order(&format!("lack {lacks:?}"));
        receiver.settle();
        fill(&channel);
    }
    receiver.end();
}

#[test]
fn a_member_is_told_of_room_though_its_receiver_has_no_descriptors() {
    a_member_is_told_of_room(Lacks::Descriptors);
}

/// Shows that a wait set reports room for a member although the receiver cannot map the ready bitmap.
#[test]
fn a_member_is_told_of_room_though_its_receiver_cannot_map_the_board() {
    a_member_is_told_of_room(Lacks::Mappings);
}

/// A waker's flag: whether the task was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Drives the reactor until the future is ready, and returns its value. The future is polled only after a wake-up.
fn drive<T>(reactor: &Reactor, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    loop {
        if woken.0.swap(false, Ordering::SeqCst)
            && let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return value;
        }
        let soon = SOON.try_into().unwrap();
        let found = poll(&mut [PollFd::new(reactor, PollFlags::IN)], Some(&soon)).unwrap();
        assert_eq!(found, 1, "the reactor slept on");
        while reactor.turn().unwrap() > 0 {}
    }
}

#[test]
fn a_task_is_woken_though_its_sender_has_no_descriptors() {
    let mut receiver = Receiver::new(Lacks::Descriptors, 0);
    let reactor = Reactor::new().unwrap();
    let channel = AsyncChannel::new(receiver.channel.take().unwrap(), &reactor).unwrap();
    for _ in 0..TIMES {
        let hear = || assert_eq!(drive(&reactor, channel.recv()).unwrap().bytes(), b"news");
        wakes(&mut receiver.orders, "send", hear);
    }
    receiver.end();
}

#[test]
fn a_task_is_told_of_room_though_its_receiver_has_no_descriptors() {
    let mut receiver = Receiver::new(Lacks::Descriptors, 0);
    let reactor = Reactor::new().unwrap();
    fill(receiver.channel());
    let channel = AsyncChannel::new(receiver.channel.take().unwrap(), &reactor).unwrap();
    wakes(&mut receiver.orders, "take", || drive(&reactor, channel.send(b"")).unwrap());
    receiver.end();
}

#[test]
fn a_task_that_reads_a_pipe_is_woken_though_its_writer_has_no_descriptors() {
    let mut receiver = Receiver::new(Lacks::Descriptors, 0);
    let reactor = Reactor::new().unwrap();
    let consumer = AsyncConsumer::new(receiver.consumer, &reactor).unwrap();
    for _ in 0..TIMES {
        let mut bytes = [0; 4];
        let hear = || assert_eq!(drive(&reactor, consumer.read(&mut bytes)).unwrap(), 4);
        wakes(&mut receiver.orders, "write", hear);
    }
    drop(receiver.orders);
    receiver.actor.wait_for_success();
}

#[test]
fn ends_of_pipes_are_told_of_though_the_other_side_has_no_descriptors() {
    let mut receiver = Receiver::new(Lacks::Descriptors, 0);
    let (readable, writable) = (WaitSet::new().unwrap(), WaitSet::new().unwrap());
    readable.add(&receiver.consumer, 7, Interest::Both, Mode::Level).unwrap();
    while receiver.producer.write_some(&[7; PIPE], Deadline::NOW).is_ok_and(|len| len > 0) {}
    writable.add(&receiver.producer, 8, Interest::Both, Mode::Level).unwrap();
    for _ in 0..TIMES {
        wakes(&mut receiver.orders, "write", || assert_eq!(told(&readable), [7]));
        assert_eq!(receiver.consumer.read_some(&mut [0; 4], SOON).unwrap(), 4);
        wakes(&mut receiver.orders, "read", || assert_eq!(told(&writable), [8]));
        while receiver.producer.write_some(&[7; PIPE], Deadline::NOW).is_ok_and(|len| len > 0) {}
    }
    receiver.end();
}

/// Shows that a doorbell that could not be sent for lack of a descriptor is sent with the next call on the end. The
/// producer needs descriptors to follow the consumer, which has moved to a third process and back.
#[test]
fn a_doorbell_that_found_no_descriptor_is_sent_with_the_next_call() {
    let mut receiver = Receiver::new(Lacks::Descriptors, 0);
    let (echo, channel) = common::spawn("echo");
    channel.send_by(Outgoing::new(b"").handle(receiver.consumer), DEADLINE).unwrap();
    let consumer = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_consumer().unwrap();
    wakes(&mut receiver.orders, "write\nlack nothing\nask for room", || {
        assert_eq!(consumer.read_some(&mut [0; PIPE], SOON), Ok(4));
    });
    drop((channel, receiver.orders));
    receiver.actor.wait_for_success();
    common::finish(echo);
}

/// Shows that such a doorbell is sent soon after there are descriptors again, although the program makes no further
/// call on the end.
#[test]
fn a_doorbell_that_found_no_descriptor_is_sent_without_a_further_call() {
    let mut receiver = Receiver::new(Lacks::Descriptors, 0);
    let (echo, channel) = common::spawn("echo");
    channel.send_by(Outgoing::new(b"").handle(receiver.consumer), DEADLINE).unwrap();
    let consumer = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_consumer().unwrap();
    wakes(&mut receiver.orders, "write\nlack nothing", || {
        assert_eq!(consumer.read_some(&mut [0; PIPE], SOON), Ok(4));
    });
    drop((channel, receiver.orders));
    receiver.actor.wait_for_success();
    common::finish(echo);
}

/// Shows that a doorbell reaches a consumer that has moved more often than one call without a wait follows.
#[test]
fn a_doorbell_reaches_a_consumer_that_has_moved_very_often() {
    let mut receiver = Receiver::new(Lacks::Descriptors, 0);
    receiver.has_enough_again();
    let (echo, channel) = common::spawn("echo");
    let mut consumer = receiver.consumer;
    for _ in 0..600 {
        channel.send_by(Outgoing::new(b"").handle(consumer), DEADLINE).unwrap();
        consumer = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_consumer().unwrap();
    }
    // The sender receives two introductions and announcements for each move, and each receive changes threads.
    const LONG: Duration = Duration::from_secs(300);
    wakes_within(LONG, &mut receiver.orders, "write", || {
        assert_eq!(consumer.read_some(&mut [0; PIPE], LONG), Ok(4));
    });
    drop((channel, receiver.orders));
    receiver.actor.wait_for_success();
    common::finish(echo);
}
