//! Tests of several threads in one wait set, and of several wait sets.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{DEADLINE, Watched, parent, spawn, wait_until};
use crate::roles::{Random, begin, channels, done, ready, tell, tell_from};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Options, Outgoing};

/// Shows that every thread that waits in a wait set gets the event of a level registration.
#[test]
fn a_level_is_seen_by_every_thread() {
    let (theirs, ours) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    let sleepers: [Watched; 3] = std::array::from_fn(|_| Watched::new());
    std::thread::scope(|scope| {
        for sleeper in &sleepers {
            let set = &set;
            scope.spawn(move || {
                sleeper.enter();
                assert_eq!(ready(set, DEADLINE), [1]);
            });
        }
        sleepers.iter().for_each(Watched::wait_until_blocked);
        theirs.send(b"to all").unwrap();
    });
}

/// Shows that a message goes to a thread that blocks in a receive on a member, and that the wait set does not report
/// it.
#[test]
fn a_thread_that_blocks_on_a_member_goes_first() {
    let (_actor, hub) = spawn("hub");
    let (theirs, within) = Channel::pair().unwrap();
    let [across] = channels(&hub, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    for ours in [&within, &across] {
        let say = || if std::ptr::eq(ours, &within) { theirs.send(b"a").unwrap() } else { tell(&hub, "say 0 a") };
        // The channel is added before another thread blocks on it, and while it blocks.
        for before in [true, false] {
            if before {
                set.add(ours, 1, Interest::Readable, Mode::Level).unwrap();
            }
            let sleeper = Watched::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    sleeper.enter();
                    ours.recv_by(DEADLINE).unwrap();
                });
                sleeper.wait_until_blocked();
                if !before {
                    set.add(ours, 1, Interest::Readable, Mode::Level).unwrap();
                }
                assert_eq!(ready(&set, Deadline::NOW), []);
                say();
            });
            assert_eq!(ready(&set, Deadline::NOW), []);
            say();
            assert_eq!(ready(&set, DEADLINE), [1]);
            // A thread holds a view of a message.
            let view = ours.recv_in_place(DEADLINE).unwrap();
            say();
            assert_eq!(ready(&set, Deadline::NOW), []);
            drop(view);
            assert_eq!(ready(&set, DEADLINE), [1]);
            ours.try_recv().unwrap();
            // A receive times out.
            assert_eq!(ours.recv_by(Duration::from_millis(30)).unwrap_err(), Error::TimedOut);
            assert_eq!(ready(&set, Deadline::NOW), []);
            say();
            assert_eq!(ready(&set, DEADLINE), [1]);
            ours.try_recv().unwrap();
            set.remove(ours).unwrap();
        }
    }
}

/// Shows that wait sets and a receiver that share a socket all get their events: a thread that receives a wake-up for
/// another passes it on.
#[test]
fn several_sets_and_a_receiver_on_one_link() {
    let (_actor, hub) = spawn("hub");
    let ours = channels(&hub, 4);
    let sets = [WaitSet::new().unwrap(), WaitSet::new().unwrap(), WaitSet::new().unwrap()];
    for (set, channel) in sets.iter().zip(&ours) {
        set.add(channel, 1, Interest::Readable, Mode::Level).unwrap();
    }
    // The thread of the last set waits on the set's descriptor.
    let descriptor = sets[2].as_fd();
    let heard: [AtomicUsize; 4] = Default::default();
    let rounds = 100;
    std::thread::scope(|scope| {
        for which in 0..4 {
            let (sets, ours, heard) = (&sets, &ours, &heard);
            scope.spawn(move || {
                while heard[which].load(Ordering::SeqCst) < rounds {
                    match which {
                        3 => {
                            ours[3].recv_by(DEADLINE).unwrap();
                        }
                        _ => {
                            if which == 2 {
                                let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
                                assert_eq!(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)), Ok(1));
                                if ready(&sets[2], Deadline::NOW).is_empty() {
                                    continue;
                                }
                            } else {
                                assert_eq!(ready(&sets[which], DEADLINE), [1]);
                            }
                            ours[which].try_recv().unwrap();
                        }
                    }
                    heard[which].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for round in 1..=rounds {
            for which in 0..4 {
                // No earlier thread is there to pass the wake-up on.
                let which = (which + round) % 4;
                tell_from(&hub, which);
                wait_until("the message was received", || heard[which].load(Ordering::SeqCst) == round);
            }
        }
    });
}

#[test]
fn members_come_and_go_while_threads_wait() {
    let (_actor, hub) = spawn("hub");
    let across = channels(&hub, 4);
    let pairs: Vec<_> = (0..4).map(|_| Channel::pair().unwrap()).collect();
    let all: Vec<&Channel> = across.iter().chain(pairs.iter().map(|(_, ours)| ours)).collect();
    let set = WaitSet::new().unwrap();
    let heard: Vec<AtomicUsize> = all.iter().map(|_| AtomicUsize::new(0)).collect();
    let over = AtomicBool::new(false);
    let rounds = 300;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut events = Vec::new();
                while !over.load(Ordering::SeqCst) {
                    set.wait(&mut events, Duration::from_millis(100)).unwrap();
                    for event in &events {
                        let key = event.key() as usize;
                        while all[key].try_recv().is_ok() {
                            heard[key].fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
        for round in 0..rounds {
            // In each round another channel is out of the set when a message arrives for it.
            let out = all[round % all.len()];
            let _ = set.remove(out);
            begin(&hub, "all");
            pairs.iter().for_each(|(theirs, _)| theirs.send(b"all").unwrap());
            if round % 2 == 0 {
                done(&hub);
            }
            for (key, channel) in (0..).zip(&all) {
                match set.add(channel, key, Interest::Readable, Mode::Level) {
                    Ok(()) | Err(Error::InSet) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            if round % 2 == 1 {
                done(&hub);
            }
            wait_until("all messages were received", || heard.iter().all(|heard| heard.load(Ordering::SeqCst) > round));
        }
        over.store(true, Ordering::SeqCst);
    });
    assert!(heard.iter().all(|heard| heard.load(Ordering::SeqCst) == rounds));
}

/// Shows that an event which happens just when the wait set arms is not lost. The other side varies its delay by a few
/// nanoseconds each time.
///
/// Both sides spin. If they share a processor, or other processes use it, each round takes a whole time slice, so the
/// test ends after fewer rounds.
#[test]
fn what_comes_just_then_is_not_lost() {
    let rounds = 150_000;
    let enough = Duration::from_secs(10);
    let options = Options::new().queue_messages(1);
    for interest in [Interest::Readable, Interest::Writable] {
        let (theirs, ours) = options.pair().unwrap();
        let set = WaitSet::new().unwrap();
        set.add(&ours, 1, interest, Mode::Level).unwrap();
        let (round, begin) = (AtomicUsize::new(0), Instant::now());
        std::thread::scope(|scope| {
            let round = &round;
            scope.spawn(move || {
                let mut random = Random(1);
                for n in 1.. {
                    let asked = loop {
                        match round.load(Ordering::Acquire) {
                            asked if asked >= n => break asked,
                            _ => std::hint::spin_loop(),
                        }
                    };
                    if asked == usize::MAX {
                        break;
                    }
                    for _ in 0..random.below(60) {
                        std::hint::black_box(&random);
                    }
                    match interest {
                        Interest::Readable => theirs.send(b"x").unwrap(),
                        _ => drop(theirs.recv().unwrap()),
                    }
                }
            });
            // Ends the other thread also if this thread fails; otherwise the other thread would spin without end and
            // hide the failure.
            let _over = Over(round);
            for n in 1..=rounds {
                if interest == Interest::Writable {
                    ours.try_send(b"x").unwrap();
                }
                round.store(n, Ordering::Release);
                assert_eq!(ready(&set, DEADLINE), [1], "round {n}");
                if interest == Interest::Readable {
                    ours.try_recv().unwrap();
                }
                if begin.elapsed() > enough {
                    eprintln!("{n} rounds of {interest:?} on a crowded machine");
                    break;
                }
            }
        });
    }
}

/// Tells the thread that waits for the next round that there is none, when this object is dropped.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicUsize);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(usize::MAX, Ordering::Release);
    }
}

/// Executes the orders of its parent without answers: sends numbers on ends, and sends ends to another process of this
/// role or receives them from it.
pub(crate) fn soaker() {
    let parent = parent();
    let mut ends = std::collections::BTreeMap::new();
    let mut bridge = None;
    while let Ok(mut message) = parent.recv() {
        let end = message.take_handles().unwrap().pop().and_then(Handle::into_channel);
        let text = String::from_utf8(message.into_bytes()).unwrap();
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "bridge" => bridge = end,
            "keep" => drop(ends.insert(number(1), end.unwrap())),
            "say" => {
                let row: Vec<[u8; 8]> = (number(2)..number(3)).map(u64::to_le_bytes).collect();
                ends[&number(1)].send_many(row.iter().map(|n| n.as_slice()), DEADLINE).unwrap();
            }
            "pass" => {
                let what = ends.remove(&number(1)).unwrap();
                bridge
                    .as_ref()
                    .unwrap()
                    .send_by(Outgoing::new(&number(1).to_le_bytes()).handle(what), DEADLINE)
                    .unwrap();
            }
            "receive" => {
                let mut message = bridge.as_ref().unwrap().recv_by(DEADLINE).unwrap();
                let end = message.take_handles().unwrap().pop().unwrap().into_channel().unwrap();
                ends.insert(u64::from_le_bytes(message.bytes().try_into().unwrap()), end);
            }
            other => panic!("{other}"),
        }
    }
}

/// Shows that every message is reported, under load: with channels to two processes and within this one, messages in
/// bursts, ends that move between the two processes, members that are added and removed, and threads that block on
/// members.
#[test]
fn soak() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = setting("STRAIT_SOAK_SEED").unwrap_or_else(|| {
        Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()) << 20 ^ std::ptr::from_ref(&0) as u64
    });
    println!("STRAIT_SOAK_SEED={seed}");
    let end = Instant::now() + Duration::from_secs(setting("STRAIT_SOAK_SECONDS").unwrap_or(4));
    let mut random = Random(seed);
    let hubs: [_; 2] = std::array::from_fn(|_| spawn("soaker"));
    let (bridge, bridge_end) = Channel::pair().unwrap();
    for ((_, hub), bridge) in hubs.iter().zip([bridge, bridge_end]) {
        hub.send(Outgoing::new(b"bridge").handle(bridge)).unwrap();
    }
    const WITHIN: usize = 8;
    const COUNT: usize = 40;
    let mut theirs = Vec::new();
    let mut ours = Vec::new();
    // The index of the process that has the other end.
    let mut holders = vec![0; COUNT];
    for (key, holder) in holders.iter_mut().enumerate() {
        let (one, other) = Channel::pair().unwrap();
        ours.push(one);
        if key < WITHIN {
            theirs.push(other);
        } else {
            *holder = random.below(2);
            hubs[*holder].1.send(Outgoing::new(format!("keep {key}").as_bytes()).handle(other)).unwrap();
        }
    }
    let set = WaitSet::new().unwrap();
    let mode = |random: &mut Random| if random.below(2) == 0 { Mode::Level } else { Mode::OneShot };
    for (key, channel) in (0..).zip(&ours) {
        set.add(channel, key, Interest::Readable, mode(&mut random)).unwrap();
    }
    let mut sent = vec![0u64; COUNT];
    let heard: Vec<std::sync::Mutex<Vec<bool>>> = ours.iter().map(|_| Default::default()).collect();
    let hear = |key: usize, bytes: &[u8]| {
        let n = u64::from_le_bytes(bytes.try_into().unwrap()) as usize;
        let mut heard = heard[key].lock().unwrap();
        let len = heard.len().max(n + 1);
        heard.resize(len, false);
        assert!(!std::mem::replace(&mut heard[n], true), "message {n} of {key} came twice");
    };
    let over = AtomicBool::new(false);
    let (set, ours, over, hear) = (&set, &ours, &over, &hear);
    std::thread::scope(|scope| {
        for waiter in 0..2 {
            let mut random = Random(seed ^ (waiter + 1));
            scope.spawn(move || {
                let mut events = Vec::with_capacity(8);
                while !over.load(Ordering::SeqCst) {
                    // The second thread waits on the descriptor of the set.
                    let mut deadline = Deadline::after(Duration::from_millis(200));
                    if waiter == 1 {
                        poll(
                            &mut [PollFd::new(set, PollFlags::IN)],
                            Some(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 }),
                        )
                        .unwrap();
                        deadline = Deadline::NOW;
                    }
                    set.wait(&mut events, deadline).unwrap();
                    for event in &events {
                        assert!(event.is_readable());
                        let key = event.key() as usize;
                        for _ in 0..1 + random.below(5) {
                            if let Ok(message) = ours[key].try_recv() {
                                hear(key, message.bytes());
                            }
                        }
                        match set.modify(&ours[key], event.key(), Interest::Readable, Mode::OneShot) {
                            Ok(()) | Err(Error::NotInSet) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        let mut others = Random(seed ^ 99);
        let disturber = scope.spawn(move || {
            let mut out = [false; COUNT];
            while Instant::now() < end {
                let key = others.below(COUNT);
                match others.below(4) {
                    0 => {
                        if let Ok(message) = ours[key].recv_by(Duration::from_micros(others.below(2000) as u64)) {
                            hear(key, message.bytes());
                        }
                    }
                    1 => {
                        if let Ok(view) = ours[key].recv_in_place(Deadline::NOW) {
                            let mut bytes = [0; 8];
                            let mut view = view;
                            view.read_at(&mut bytes, 0);
                            hear(key, &bytes);
                        }
                    }
                    _ if out[key] => {
                        set.add(&ours[key], key as u64, Interest::Readable, mode(&mut others)).unwrap();
                        out[key] = false;
                    }
                    _ => {
                        set.remove(&ours[key]).unwrap();
                        out[key] = true;
                    }
                }
                std::thread::sleep(Duration::from_micros(others.below(300) as u64));
            }
            for (key, _) in out.iter().enumerate().filter(|(_, out)| **out) {
                set.add(&ours[key], key as u64, Interest::Readable, mode(&mut others)).unwrap();
            }
        });
        let mut moves = 0;
        while Instant::now() < end {
            let key = random.below(COUNT);
            let from = sent[key];
            let say = |to: u64| format!("say {key} {from} {to}");
            if key < WITHIN {
                theirs[key].send(&from.to_le_bytes()).unwrap();
                sent[key] += 1;
            } else if random.below(3) > 0 {
                sent[key] += 1 + random.below(6) as u64;
                hubs[holders[key]].1.send(say(sent[key]).as_bytes()).unwrap();
            } else {
                hubs[holders[key]].1.send(format!("pass {key}").as_bytes()).unwrap();
                holders[key] = 1 - holders[key];
                hubs[holders[key]].1.send(b"receive").unwrap();
                // The processes wait for each other, so neither falls far behind.
                moves += 1;
            }
            if random.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(1500) as u64));
            }
        }
        disturber.join().unwrap();
        let count = || {
            heard.iter().map(|heard| heard.lock().unwrap().iter().filter(|heard| **heard).count() as u64).sum::<u64>()
        };
        let total = sent.iter().sum::<u64>();
        println!("{total} messages, {moves} moves");
        let begin = Instant::now();
        while count() < total && begin.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::SeqCst);
        let missing: Vec<_> = (0..COUNT)
            .filter(|key| heard[*key].lock().unwrap().iter().filter(|heard| **heard).count() as u64 != sent[*key])
            .map(|key| (key, sent[key], ours[key].try_recv().map(|message| message.into_bytes())))
            .collect();
        assert!(missing.is_empty(), "seed {seed}: messages not reported: {missing:?}");
    });
}
