//! Tests of `fuse`, which joins two channels into one: with messages that were sent and not received, with far ends in
//! any process, and while the far ends are in use.

mod common;

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::travel::{Book, MIXED, NoLedger, Random, Sizes, TINY, Traveller, balance};
use common::{Actor, finish, parent, play, spawn};
use strait::pipe::DataPipe;
use strait::region::Region;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Options, Outgoing, Wait};

/// The time after which a wait of a test fails; long enough for a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn child() {
    play(&[
        ("player", |_| player()),
        ("joiner", |_| joiner()),
        ("mover", |_| mover()),
        ("counter", |_| counter()),
        ("late", |_| late()),
        ("holder of an end", |_| holder_of_an_end()),
        ("partner", |_| partner()),
    ]);
}

/// Returns the seed of the run: `STRAIT_FUSE_SEED` if set, otherwise a new seed. Prints the seed.
fn seed() -> u64 {
    let seed = std::env::var("STRAIT_FUSE_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed = seed.unwrap_or_else(|| {
        u64::from(std::process::id()) << 32 | u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos())
    });
    eprintln!("STRAIT_FUSE_SEED={seed}");
    seed
}

/// Returns `count` times the factor in `STRAIT_FUSE_TIMES`, by default 1.
fn times(count: u64) -> u64 {
    let factor = std::env::var("STRAIT_FUSE_TIMES").map_or(1, |times| times.parse().expect("a number"));
    count * factor
}

/// Makes a panic of any thread end the process, so that no other process waits for the thread.
fn die_of_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::exit(101);
    }));
}

fn ends_of(message: &mut strait::Message) -> Vec<Channel> {
    message.take_handles().unwrap().into_iter().filter_map(Handle::into_channel).collect()
}

fn expect(channel: &Channel, what: &[u8]) {
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), what);
}

/// Returns two ends of a future channel, with books as if already connected, and the pairs of ends to fuse between the
/// two. The order of the ends of each channel in between is random.
fn chain(id: u64, links: usize, options: &Options, random: &mut Random) -> ([Traveller; 2], Vec<(Channel, Channel)>) {
    let mut pairs = (0..=links).map(|_| {
        let (one, other) = options.pair().unwrap();
        if random.one_in(2) { (one, other) } else { (other, one) }
    });
    let (first, mut last) = pairs.next().unwrap();
    let mut joints = Vec::new();
    for (near, far) in pairs {
        joints.push((last, near));
        last = far;
    }
    let end = |side, channel| Traveller { book: Book { id, side, class: 0, sent: 0, received: 0, hops: 0 }, channel };
    ([end(0, first), end(1, last)], joints)
}

fn send_some(end: &mut Traveller, count: u64, sizes: Sizes, random: &mut Random) {
    for _ in 0..count {
        match end.send(Vec::new(), random, sizes, Deadline::NOW, &NoLedger) {
            Ok(()) => {}
            // The messages sent so far fill the room.
            Err((Error::WouldBlock, _)) => return,
            Err((error, _)) => panic!("sending: {error} {:?}", end.book),
        }
    }
}

/// Sends up to `count` messages, as long as there is room, and receives messages in between.
fn converse(end: &mut Traveller, count: u64, sizes: Sizes, random: &mut Random) {
    for _ in 0..count {
        let patience = Duration::from_micros(random.below(300));
        match end.send(Vec::new(), random, sizes, patience, &NoLedger) {
            Ok(()) | Err((Error::TimedOut | Error::WouldBlock, _)) => {}
            Err((error, _)) => panic!("sending: {error} {:?}", end.book),
        }
        for _ in 0..random.below(4) {
            let patience = Duration::from_micros(random.below(300));
            match end.receive(random, patience) {
                Ok(_) | Err(Error::TimedOut | Error::WouldBlock) => {}
                Err(error) => panic!("receiving: {error} {:?}", end.book),
            }
        }
    }
}

/// Sends and receives on each received end, and sends the end back.
fn player() {
    die_of_panics();
    let parent = parent();
    std::thread::scope(|scope| {
        while let Ok(mut message) = parent.recv() {
            let (orders, book) = message.bytes().split_at(16);
            let order = |n: usize| u64::from_le_bytes(orders[8 * n..8 * n + 8].try_into().unwrap());
            let (count, mut random) = (order(0), Random(order(1)));
            let book = Book::decode(book);
            let mut end = Traveller { book, channel: ends_of(&mut message).pop().unwrap() };
            let parent = &parent;
            scope.spawn(move || {
                converse(&mut end, count, MIXED_SMALLER, &mut random);
                parent.send_by(Outgoing::new(&end.book.encode()).handle(end.channel), DEADLINE).unwrap();
            });
        }
    });
}

const MIXED_SMALLER: Sizes = Sizes { large: 300_000, ..MIXED };

/// Sends an end with its book to a player, with orders to send `count` messages on the end.
fn give(to: &Channel, end: Traveller, count: u64, random: &mut Random) {
    let mut bytes: Vec<u8> = [count, random.next()].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(end.book.encode());
    to.send_by(Outgoing::new(&bytes).handle(end.channel), DEADLINE).unwrap();
}

/// Fuses each two received ends, in a thread for each pair.
fn joiner() {
    die_of_panics();
    let parent = parent();
    parent.send(b"ready").unwrap();
    std::thread::scope(|scope| {
        while let Ok(mut message) = parent.recv() {
            let [one, other]: [Channel; 2] = ends_of(&mut message).try_into().expect("two ends");
            let parent = &parent;
            scope.spawn(move || {
                one.fuse(other, DEADLINE).unwrap();
                // The parent may have closed the channel.
                let _ = parent.send_by(b"fused", DEADLINE);
            });
        }
    });
}

// Fuses within a process.

/// Shows that messages sent before a fuse arrive first, and later messages after them.
#[test]
fn what_was_sent_before_comes_first_and_what_is_sent_after_follows() {
    let mut random = Random(seed());
    for round in 0..times(60) {
        let sizes = if round % 3 == 0 { MIXED } else { TINY };
        let ([mut one, mut other], mut joints) = chain(round, 1, &Options::new(), &mut random);
        let (near, far) = joints.pop().unwrap();
        let (before, after) = (random.below(20), random.below(20));
        send_some(&mut one, before, sizes, &mut random);
        send_some(&mut other, random.below(20), sizes, &mut random);
        if random.one_in(3) {
            // Messages already received into the end's own memory also move, for example after `rehome`.
            near.rehome(DEADLINE).unwrap();
            far.status().unwrap();
            send_some(&mut one, 3, sizes, &mut random);
        }
        near.fuse(far, Deadline::NOW).unwrap();
        send_some(&mut one, after, sizes, &mut random);
        send_some(&mut other, random.below(20), sizes, &mut random);
        balance(one, other, &mut random, DEADLINE);
    }
}

/// Sends a message with a handle of each kind. The returned function receives the message and asserts that each handle
/// works.
fn send_every_kind(end: &Channel) -> impl FnOnce(&Channel) + use<> {
    let (rider, its_other) = Channel::pair().unwrap();
    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    producer.write_whole(b"in a pipe", DEADLINE).unwrap();
    its_other.send(Outgoing::new(b"in a rider").handle(common::file_with(b"another file"))).unwrap();
    let message = Outgoing::new(b"all")
        .handle(common::file_with(b"a file"))
        .handle(rider)
        .handle(Region::sealed(b"a region").unwrap())
        .handle(consumer);
    end.send_by(message, DEADLINE).unwrap();
    move |end| {
        let mut message = end.recv_by(DEADLINE).unwrap();
        assert_eq!(message.bytes(), b"all");
        let mut handles = message.take_handles().unwrap().into_iter();
        assert_eq!(common::content_of(handles.next().unwrap()), b"a file");
        let rider = handles.next().unwrap().into_channel().unwrap();
        let mut message = rider.recv_by(DEADLINE).unwrap();
        assert_eq!(message.bytes(), b"in a rider");
        assert_eq!(common::content_of(message.take_handles().unwrap().remove(0)), b"another file");
        rider.send(b"back").unwrap();
        expect(&its_other, b"back");
        let region = handles.next().unwrap().into_region().unwrap();
        assert_eq!(&*region.view(..).unwrap(), b"a region");
        let mut consumer = handles.next().unwrap().into_consumer().unwrap();
        drop(producer);
        let mut read = String::new();
        consumer.read_to_string(&mut read).unwrap();
        assert_eq!(read, "in a pipe");
    }
}

#[test]
fn handles_of_every_kind_come_along() {
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    let (to_d, to_a) = (send_every_kind(&a), send_every_kind(&d));
    b.fuse(c, Deadline::NOW).unwrap();
    to_d(&d);
    to_a(&a);
}

/// Shows that the far ends of a fuse are the two ends of a single channel in every respect.
#[test]
fn the_far_ends_are_each_others_in_every_way() {
    for sides in 0..4 {
        let (mut a, mut b) = Channel::pair().unwrap();
        let (mut c, mut d) = Channel::pair().unwrap();
        if sides & 1 > 0 {
            std::mem::swap(&mut a, &mut b);
        }
        if sides & 2 > 0 {
            std::mem::swap(&mut c, &mut d);
        }
        b.fuse(c, Deadline::NOW).unwrap();
        assert_eq!(a.try_recv().unwrap_err(), Error::WouldBlock);
        let refused = a.send(Outgoing::new(b"").handle(d)).unwrap_err();
        assert_eq!(refused.error, Error::OwnChannel, "the far ends are not ends of one channel");
        let d = refused.handles.into_iter().next().unwrap().into_channel().unwrap();
        assert_eq!(a.peer().unwrap().unwrap().pid, Some(std::process::id()));
        // The large messages make the ring grow or are stored outside the ring.
        for len in [0, 1, 100, 10_000, 1_000_000] {
            a.send(&common::pattern(1, len)).unwrap();
            d.send(&common::pattern(2, len)).unwrap();
            assert!(d.recv_by(DEADLINE).unwrap().bytes() == common::pattern(1, len));
            assert!(a.recv_by(DEADLINE).unwrap().bytes() == common::pattern(2, len));
        }
        drop(a);
        assert_eq!(d.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    }
}

/// Shows that an impossible fuse returns both ends unchanged.
#[test]
fn what_cannot_be_fused_comes_back_as_it_was() {
    let (a, b) = Channel::pair().unwrap();
    let failed = a.fuse(b, DEADLINE).unwrap_err();
    assert_eq!(failed.error, Error::OwnChannel);
    let (a, b) = failed.channels;
    a.send(b"as it was").unwrap();
    expect(&b, b"as it was");
    // The fuse would put an end into a message to itself.
    let (c, d) = Channel::pair().unwrap();
    d.send(Outgoing::new(b"a").handle(a)).unwrap();
    let failed = b.fuse(c, DEADLINE).unwrap_err();
    assert_eq!(failed.error, Error::OwnChannel);
    let (b, c) = failed.channels;
    let failed = c.fuse(b, DEADLINE).unwrap_err();
    assert_eq!(failed.error, Error::OwnChannel);
    let (c, b) = failed.channels;
    let a = ends_of(&mut c.recv_by(DEADLINE).unwrap()).remove(0);
    a.send(b"still").unwrap();
    expect(&b, b"still");
    c.send(b"there").unwrap();
    expect(&d, b"there");
}

/// Receives two ends, and then receives nothing until it is told to by its input; then answers two messages on the
/// first end.
fn late() {
    let channel = common::parent_over_any(&Options::new());
    let mut message = channel.recv_by(DEADLINE).unwrap();
    let ends = ends_of(&mut message);
    channel.send(b"has them").unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    for _ in 0..line.trim().parse::<usize>().unwrap() {
        drop(channel.recv_by(DEADLINE).unwrap());
    }
    let mut first = ends[0].recv_by(DEADLINE).unwrap();
    let content = common::content_of(first.take_handles().unwrap().remove(0));
    let second = ends[0].recv_by(DEADLINE).unwrap();
    ends[0].send(&[&content, second.bytes()].concat()).unwrap();
    assert_eq!(ends[0].recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Shows that a fuse fails without effect when the socket has no room for the backlog's descriptor. That packet is the
/// first of the fuse that finds no room: by then both ends are held, and the lane for the far ends has been made.
#[test]
fn a_fuse_for_which_a_socket_has_no_room_changes_nothing() {
    use std::io::Write;
    let (mut actor, channel) = common::spawn_over_socket("late", "", &Options::new());
    let ((c, d), (c_before, d_before)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
    channel.send(Outgoing::new(b"two ends").handle(d).handle(d_before)).unwrap();
    expect(&channel, b"has them");
    // From here on there is memory for lanes.
    let (a_before, b_before) = Channel::pair().unwrap();
    b_before.fuse(c_before, DEADLINE).unwrap();
    let (a, b) = Channel::pair().unwrap();
    a.send(Outgoing::new(b"with a file").handle(common::file_with(b"a file, "))).unwrap();
    a.send(b"and more").unwrap();
    let fill = || channel.send_by(Outgoing::new(b"").handle(common::file_with(b"fills")), Deadline::NOW).is_ok();
    let filled = std::iter::repeat_with(fill).take_while(|sent| *sent).count();
    let mut held = (b, c);
    for _ in 0..20 {
        let failed = held.0.fuse(held.1, Deadline::NOW).unwrap_err();
        assert_eq!(failed.error, Error::WouldBlock);
        held = failed.channels;
        // The far end in this process follows the move begun by the fuse.
        assert_eq!(a.try_recv().unwrap_err(), Error::WouldBlock);
    }
    held.0.send(b"still each other's").unwrap();
    expect(&a, b"still each other's");
    writeln!(actor.0.stdin.take().unwrap(), "{filled}").unwrap();
    held.0.fuse(held.1, DEADLINE).unwrap();
    expect(&a, b"a file, and more");
    drop((a, a_before));
    finish(actor);
}

/// Receives an end, sends a message on the end, and does nothing until it is told to go on. Then exchanges a further
/// message with the process of the other end.
fn partner() {
    let channel = parent();
    let end = ends_of(&mut channel.recv_by(DEADLINE).unwrap()).remove(0);
    end.send(b"before").unwrap();
    channel.send(b"idle").unwrap();
    expect(&channel, b"go on");
    end.send(b"after").unwrap();
    expect(&end, b"before");
    expect(&end, b"after");
    channel.send(b"done").unwrap();
    expect(&channel, b"end");
}

/// Shows that a fuse needs nothing of the processes of the far ends: both are stopped meanwhile.
#[test]
fn stopped_processes_need_not_take_part_in_a_fuse() {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    let partners = [spawn("partner"), spawn("partner")];
    let mut near = Vec::new();
    for (actor, channel) in &partners {
        let (ours, theirs) = Channel::pair().unwrap();
        channel.send(Outgoing::new(b"an end").handle(theirs)).unwrap();
        expect(channel, b"idle");
        near.push(ours);
        let pid = Pid::from_raw(actor.pid() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }
    let (one, other) = (near.remove(0), near.remove(0));
    one.fuse(other, DEADLINE).unwrap();
    for (actor, channel) in &partners {
        kill_process(Pid::from_raw(actor.pid() as i32).unwrap(), Signal::CONT).unwrap();
        channel.send(b"go on").unwrap();
    }
    partners.iter().for_each(|(_, channel)| expect(channel, b"done"));
    for (actor, channel) in partners {
        channel.send(b"end").unwrap();
        finish(actor);
    }
}

/// Receives an end, and then answers each message with the number of its descriptors.
fn holder_of_an_end() {
    let channel = parent();
    let _end = ends_of(&mut channel.recv_by(DEADLINE).unwrap());
    while let Ok(mut message) = channel.recv_by(DEADLINE) {
        drop(message.take_handles().unwrap());
        channel.send(common::descriptors().to_string().as_bytes()).unwrap();
    }
}

/// Shows that the repeated attempts of a fuse leave no descriptors in the process of a far end. Each attempt sends the
/// backlog there, and fails if the other far end has published one more message meanwhile, which it does often here.
#[test]
fn attempts_of_a_fuse_leave_nothing_with_a_far_end() {
    const FILES: usize = 60;
    let (actor, channel) = spawn("holder of an end");
    let ((a, b), (c, d)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
    channel.send(Outgoing::new(b"an end").handle(d)).unwrap();
    let descriptors = || {
        // For the file, the process receives the packets that came before.
        channel.send(Outgoing::new(b"how many?").handle(common::file_with(b"a file"))).unwrap();
        let answer = channel.recv_by(DEADLINE).unwrap();
        std::str::from_utf8(answer.bytes()).unwrap().parse::<usize>().unwrap()
    };
    let before = descriptors();
    for _ in 0..FILES {
        a.send(Outgoing::new(b"with a file").handle(common::file_with(b"a file"))).unwrap();
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = a.try_send(b"one more");
                // Not so often that the ring is full before the first attempt.
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_micros(20) {}
            }
        });
        let fused = b.fuse(c, DEADLINE);
        over.store(true, Ordering::Relaxed);
        fused.unwrap();
    });
    let after = descriptors();
    assert!(after <= before + FILES + 16, "{before} descriptors, and then {after}");
    drop((a, channel));
    finish(actor);
}

/// Shows that a far end receives the messages of the other far end, which was closed before the fuse.
#[test]
fn where_a_far_end_is_closed_the_other_gets_what_it_had_sent() {
    for turned in [false, true] {
        let (a, b) = Channel::pair().unwrap();
        let (c, d) = Channel::pair().unwrap();
        let shown = send_every_kind(&a);
        a.send(b"last words").unwrap();
        d.send(b"for nobody").unwrap();
        drop(a);
        if turned { c.fuse(b, Deadline::NOW) } else { b.fuse(c, Deadline::NOW) }.unwrap();
        shown(&d);
        expect(&d, b"last words");
        assert_eq!(d.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
        assert_eq!(d.send(b"").unwrap_err().error, Error::PeerClosed);
    }
    // If both far ends are closed, the fuse notifies none.
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    drop((a, d));
    b.fuse(c, Deadline::NOW).unwrap();
}

// Fuses between processes.

/// The processes of a test: players send and receive on the far ends, and joiners fuse.
struct Cast {
    players: Vec<(Actor, Channel)>,
    joiners: Vec<(Actor, Channel)>,
}

impl Cast {
    fn new(players: usize, joiners: usize) -> Self {
        let joiners: Vec<_> = (0..joiners).map(|_| spawn("joiner")).collect();
        joiners.iter().for_each(|(_, channel)| expect(channel, b"ready"));
        Self { players: (0..players).map(|_| spawn("player")).collect(), joiners }
    }

    fn leave(self) {
        for (actor, channel) in self.players.into_iter().chain(self.joiners) {
            drop(channel);
            finish(actor);
        }
    }
}

/// Where the two far ends of a chain are, and which processes fuse.
#[derive(Clone, Copy)]
struct Places {
    /// The indices of the players that have the far ends; an index without a player stands for this process.
    far: [usize; 2],
    /// The index of the joiner of each joint; an index without a joiner stands for this process.
    joints: &'static [usize],
}

const HERE: usize = usize::MAX;

/// Fuses all joints of a chain at once, while the ends of the chain send to each other.
fn fused_while_they_talk(cast: &Cast, places: Places, id: u64, options: &Options, random: &mut Random) {
    let count = 30;
    let (ends, joints) = chain(id, places.joints.len(), options, random);
    let mut at_home = Vec::new();
    for (mut end, place) in ends.into_iter().zip(places.far) {
        send_some(&mut end, random.below(12), TINY, random);
        match cast.players.get(place) {
            Some((_, to)) => give(to, end, count, random),
            None => at_home.push(end),
        }
    }
    std::thread::scope(|scope| {
        let talks: Vec<_> = at_home
            .into_iter()
            .map(|mut end| {
                let mut random = Random(random.next());
                scope.spawn(move || {
                    converse(&mut end, count, MIXED_SMALLER, &mut random);
                    end
                })
            })
            .collect();
        let mut here = Vec::new();
        for ((near, far), place) in joints.into_iter().zip(places.joints) {
            match cast.joiners.get(*place) {
                Some((_, to)) => {
                    to.send_by(Outgoing::new(b"").handle(near).handle(far), DEADLINE).unwrap();
                }
                None => here.push(scope.spawn(move || near.fuse(far, DEADLINE).unwrap())),
            }
        }
        here.into_iter().for_each(|thread| thread.join().unwrap());
        for place in places.joints.iter().filter(|place| cast.joiners.get(**place).is_some()) {
            expect(&cast.joiners[*place].1, b"fused");
        }
        let mut back: Vec<_> = talks.into_iter().map(|talk| talk.join().unwrap()).collect();
        for (_, from) in places.far.iter().filter_map(|place| cast.players.get(*place)) {
            let mut message = from.recv_by(DEADLINE).unwrap();
            back.push(Traveller { book: Book::decode(message.bytes()), channel: ends_of(&mut message).remove(0) });
        }
        let [one, other]: [Traveller; 2] = back.try_into().unwrap();
        balance(one, other, random, DEADLINE);
    });
}

/// Combinations of places of the far ends and of the fusing process.
const EVERYWHERE: &[Places] = &[
    Places { far: [0, 1], joints: &[HERE] },
    Places { far: [0, 0], joints: &[HERE] },
    Places { far: [HERE, 1], joints: &[HERE] },
    Places { far: [1, HERE], joints: &[HERE] },
    Places { far: [HERE, HERE], joints: &[HERE] },
    Places { far: [0, 1], joints: &[0] },
    Places { far: [HERE, 1], joints: &[0] },
    Places { far: [HERE, HERE], joints: &[0] },
    Places { far: [1, 1], joints: &[0] },
];

/// Shows that the far ends can send and receive during a fuse, whichever processes have the ends.
#[test]
fn far_ends_talk_on_wherever_they_are() {
    let mut random = Random(seed());
    let cast = Cast::new(2, 1);
    let options =
        [Options::new(), Options::new().ring(256).ring_max(1024).wait(Wait::Block), Options::new().queue_messages(4)];
    for round in 0..times(4) {
        for (at, places) in EVERYWHERE.iter().enumerate() {
            let options = &options[random.below(3) as usize];
            fused_while_they_talk(&cast, *places, round << 8 | at as u64, options, &mut random);
        }
    }
    cast.leave();
}

/// Shows that several processes can fuse a chain of channels at the same time.
#[test]
fn chains_of_channels_are_fused_by_many_at_once() {
    let mut random = Random(seed());
    let cast = Cast::new(2, 3);
    const LONG: &[Places] = &[
        Places { far: [0, 1], joints: &[HERE, HERE, HERE, HERE] },
        Places { far: [0, 1], joints: &[0, 1, 2, 0, 1, 2, 0, 1] },
        Places { far: [HERE, 0], joints: &[0, HERE, 1, 1, 2, HERE] },
        Places { far: [HERE, HERE], joints: &[0, 1, 0, 1, 2] },
        Places { far: [1, 1], joints: &[2, HERE, 2, HERE] },
    ];
    for round in 0..times(4) {
        for (at, places) in LONG.iter().enumerate() {
            fused_while_they_talk(&cast, *places, round << 8 | at as u64, &Options::new(), &mut random);
        }
    }
    cast.leave();
}

/// Shows that a fuse reaches a far end that moves between processes all the time; the other far end does not move.
#[test]
fn a_far_end_that_moves_meanwhile_is_found_wherever_it_is() {
    let mut random = Random(seed());
    let (mover, to_mover) = spawn("mover");
    for round in 0..times(40) {
        let ([mut one, mut other], mut joints) = chain(round, 1, &Options::new(), &mut random);
        send_some(&mut one, random.below(10), TINY, &mut random);
        send_some(&mut other, random.below(10), TINY, &mut random);
        let joint = joints.pop().unwrap();
        std::thread::scope(|scope| {
            let fused = scope.spawn(move || joint.0.fuse(joint.1, DEADLINE).unwrap());
            loop {
                let over = fused.is_finished();
                let away = std::mem::replace(&mut one.channel, Channel::pair().unwrap().0);
                to_mover.send_by(Outgoing::new(b"").handle(away), DEADLINE).unwrap();
                one.channel = ends_of(&mut to_mover.recv_by(DEADLINE).unwrap()).remove(0);
                send_some(&mut one, 1, TINY, &mut random);
                if over {
                    break;
                }
            }
            fused.join().unwrap();
        });
        balance(one, other, &mut random, DEADLINE);
    }
    drop(to_mover);
    finish(mover);
}

/// Shows that a thread that sleeps in a receive and a wait set that watches a far end are woken by messages of the
/// other far end after a fuse.
#[test]
fn those_who_wait_at_a_far_end_hear_the_other_one() {
    let (joiner, to_joiner) = spawn("joiner");
    expect(&to_joiner, b"ready");
    for wait in [Wait::Spin, Wait::Adaptive, Wait::Block] {
        for elsewhere in [false, true] {
            let options = Options::new().wait(wait);
            let (a, b) = options.pair().unwrap();
            let (c, d) = options.pair().unwrap();
            let set = WaitSet::new().unwrap();
            set.add(&d, 7, Interest::Readable, Mode::Level).unwrap();
            let watched = common::Watched::new();
            std::thread::scope(|scope| {
                let heard = scope.spawn(|| {
                    watched.enter();
                    a.recv_by(DEADLINE).unwrap().into_bytes()
                });
                watched.wait_until_blocked();
                if elsewhere {
                    to_joiner.send(Outgoing::new(b"").handle(b).handle(c)).unwrap();
                    expect(&to_joiner, b"fused");
                } else {
                    b.fuse(c, DEADLINE).unwrap();
                }
                d.send(b"to a").unwrap();
                assert_eq!(heard.join().unwrap(), b"to a");
            });
            a.send(b"to d").unwrap();
            let mut events = Vec::new();
            set.wait(&mut events, DEADLINE).unwrap();
            assert_eq!(events[0].key(), 7);
            expect(&d, b"to d");
        }
    }
    drop(to_joiner);
    finish(joiner);
}

/// Shows that after the death of a fusing process, at a random moment, either the far ends are connected to each other
/// or both are closed. The kill matrix tests the death at each fault point.
#[test]
fn a_fuser_that_is_killed_leaves_two_that_have_each_other_or_nobody() {
    let mut random = Random(seed());
    let mut outcomes = [0; 2];
    for _ in 0..times(25) {
        let (mut joiner, to_joiner) = spawn("joiner");
        expect(&to_joiner, b"ready");
        let (a, b) = Channel::pair().unwrap();
        let (c, d) = Channel::pair().unwrap();
        let unread = random.below(30);
        for n in 0..unread {
            a.send(&n.to_le_bytes()).unwrap();
        }
        to_joiner.send(Outgoing::new(b"").handle(b).handle(c)).unwrap();
        let patience = Duration::from_nanos(random.below(2_000_000) >> random.below(5));
        let begin = std::time::Instant::now();
        while begin.elapsed() < patience {
            std::hint::spin_loop();
        }
        joiner.kill();
        let _ = a.try_send(&unread.to_le_bytes());
        let heard: Result<Vec<()>, Error> = (0..=unread)
            .map(|n| {
                assert_eq!(d.recv_by(DEADLINE)?.bytes(), n.to_le_bytes());
                Ok(())
            })
            .collect();
        outcomes[usize::from(heard.is_ok())] += 1;
        match heard {
            Ok(_) => {
                d.send(b"there").unwrap();
                expect(&a, b"there");
            }
            Err(error) => {
                assert_eq!(error, Error::PeerClosed);
                assert_eq!(a.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
                assert_eq!(a.send(b"").unwrap_err().error, Error::PeerClosed);
            }
        }
    }
    eprintln!("closed {}, fused {}", outcomes[0], outcomes[1]);
}

/// Shows that fuses leave no descriptors and no mappings over.
#[test]
fn nothing_stays_of_channels_that_were_fused() {
    common::alone("counter", "");
}

/// Fuses again and again, in this process and in another, and asserts that no descriptors and mappings are left over.
fn counter() {
    die_of_panics();
    let (joiner, to_joiner) = spawn("joiner");
    expect(&to_joiner, b"ready");
    let (mover, to_mover) = spawn("mover");
    let round = |n: u64| {
        let (a, b) = Channel::pair().unwrap();
        let (c, mut d) = Channel::pair().unwrap();
        let large = common::pattern(n, 200_000);
        a.send(Outgoing::new(&large).handle(common::file_with(b"file"))).unwrap();
        d.send(b"small").unwrap();
        if n % 3 == 1 {
            to_mover.send(Outgoing::new(b"").handle(d)).unwrap();
            d = ends_of(&mut to_mover.recv_by(DEADLINE).unwrap()).remove(0);
        }
        if n.is_multiple_of(2) {
            b.fuse(c, DEADLINE).unwrap();
        } else {
            to_joiner.send(Outgoing::new(b"").handle(b).handle(c)).unwrap();
            expect(&to_joiner, b"fused");
        }
        if n % 5 == 4 {
            // Neither far end has received anything when it is dropped.
            return;
        }
        expect(&a, b"small");
        let mut message = d.recv_by(DEADLINE).unwrap();
        assert!(message.bytes() == large);
        assert_eq!(common::content_of(message.take_handles().unwrap().remove(0)), b"file");
    };
    (0..30).for_each(round);
    let before = (common::descriptors(), common::mappings());
    (30..330).for_each(round);
    let after = (common::descriptors(), common::mappings());
    eprintln!("{before:?} {after:?}");
    assert!(after.0 <= before.0 && after.1 <= before.1 + 5, "{before:?} {after:?}");
    drop((to_joiner, to_mover));
    finish(joiner);
    finish(mover);
}

/// Sends each end back to the sender.
fn mover() {
    die_of_panics();
    let parent = parent();
    while let Ok(mut message) = parent.recv() {
        let handles = message.take_handles().unwrap();
        parent.send_by(Outgoing::new(message.bytes()).handles(handles), DEADLINE).unwrap();
    }
}

/// Shows that the ends in messages which a fuse prepends for a far end in this process are closed if that far end is
/// closed during the fuse: the other end of each is told. Some of the rounds close the far end between two steps of the
/// fuse.
#[test]
fn ends_in_messages_for_a_far_end_that_is_closed_meanwhile_are_closed() {
    die_of_panics();
    let mut random = Random(seed());
    let (to_closer, ends) = mpsc::channel::<(Channel, u64)>();
    let turn = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let turn = &turn;
        scope.spawn(move || {
            for (end, delay) in ends {
                turn.store(1, Ordering::Release);
                (0..delay).for_each(|_| std::hint::spin_loop());
                drop(end);
                turn.store(2, Ordering::Release);
            }
        });
        let await_turn = |wanted| {
            while turn.load(Ordering::Acquire) < wanted {
                std::hint::spin_loop();
            }
        };
        for round in 0..times(20_000) {
            let ((a, b), (c, d)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
            let (inside, outside) = Channel::pair().unwrap();
            a.send(Outgoing::new(b"an end").handle(inside)).unwrap();
            // In every second round the other far end stays open.
            let a = (round % 2 == 0).then_some(a);
            turn.store(0, Ordering::Release);
            to_closer.send((d, random.below(2000))).unwrap();
            await_turn(1);
            b.fuse(c, Deadline::NEVER).unwrap();
            await_turn(2);
            let told = outside.recv_by(DEADLINE).unwrap_err();
            assert_eq!(told, Error::PeerClosed, "in round {round}");
            drop(a);
        }
        drop(to_closer);
    });
}
