//! Processes that make, move, fill, fuse and drop objects at random, part after part. At the end of each part they drop
//! everything. After the first two parts no process may hold more descriptors, mappings or memory than then.
//!
//! The test notices descriptors of dropped messages and ends that stay open, after a few parts. It does not notice
//! single lanes that stay in use, because many lanes share a mapping: tests of their own are in `links`.
//!
//! `STRAIT_GROWTH_SEEDS=7..20` plays the given seeds instead of the usual few.

mod common;

use std::collections::BTreeMap;

use common::travel::Random;
use common::{Actor, DEADLINE, alone, file_with, parent, play, spawn};
use strait::call::CallEnd;
use strait::pipe::DataPipe;
use strait::region::{Region, RegionMap};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Handle, Options, Outgoing};

#[test]
fn child() {
    play(&[("director", director), ("node", |_| Node::meet().obey())]);
}

/// Shows that nothing is left of objects after unforeseen uses.
#[test]
fn what_processes_hold_does_not_grow() {
    let chosen = std::env::var("STRAIT_GROWTH_SEEDS").unwrap_or_else(|_| "0..1".into());
    let (first, end) = chosen.split_once("..").expect("a range such as 7..20");
    for seed in first.parse::<u64>().unwrap()..end.parse().unwrap() {
        for nodes in [3, 5] {
            alone("director", &format!("{nodes} {seed}"));
        }
    }
}

/// The number of parts of one run, and of orders in a part.
const PARTS: usize = 25;
const ORDERS: usize = 250;

/// By how much the figures of a process may exceed those of all processes after the first two parts. Each two processes
/// keep the memory of the most lanes that they had at a time, for each size of ring and each process that makes lanes;
/// the mappings become more in the first 40 parts, up to 100 more with five nodes, and then stay.
const MORE: Held = Held { descriptors: 12, mappings: 120, kibibytes: 3072 };

/// An order to a node. The numbers behind an order are bytes that choose among nodes, kept objects and sizes.
mod order {
    /// Sends an answer.
    pub(super) const ANSWER: u8 = b'a';
    /// Takes the channel in the message as the road to a node.
    pub(super) const ROAD: u8 = b'r';
    /// Keeps the handles in the message.
    pub(super) const KEEP: u8 = b'k';
    /// Makes a call end over the channel in the message.
    pub(super) const SERVE: u8 = b'S';
    /// Drops everything kept.
    pub(super) const DROP: u8 = b'x';
    /// The orders of a part, which the director chooses at random: make a pair, a data pipe, a region or a call with
    /// another node; use everything kept; receive from everything kept; send something kept to another node, or over a
    /// kept channel; fuse two kept channels; wait for what is kept; drop one kept object.
    pub(super) const PAIR: u8 = b'p';
    pub(super) const PIPE: u8 = b'd';
    pub(super) const REGION: u8 = b'g';
    pub(super) const CALL: u8 = b'c';
    pub(super) const USE: u8 = b'u';
    pub(super) const RECEIVE: u8 = b'v';
    pub(super) const MOVE: u8 = b't';
    pub(super) const NEST: u8 = b'e';
    pub(super) const FUSE: u8 = b'f';
    pub(super) const WAIT: u8 = b'w';
    pub(super) const DROP_ONE: u8 = b'o';
    pub(super) const RANDOM: [u8; 15] =
        [PAIR, PAIR, PAIR, PIPE, REGION, CALL, USE, USE, RECEIVE, MOVE, MOVE, NEST, FUSE, WAIT, DROP_ONE];
}

/// An object that a node keeps. Two ends of which each lies in a message for the other are never freed, so only
/// carriers carry ends, and no carrier lies in a message of a carrier, or is fused.
struct Kept {
    handle: Handle,
    is_carrier: bool,
}

impl Kept {
    fn channel(&self) -> Option<&Channel> {
        match &self.handle {
            Handle::Channel(channel) => Some(channel),
            _ => None,
        }
    }

    fn carrier(&self) -> Option<&Channel> {
        self.channel().filter(|_| self.is_carrier)
    }
}

/// A process that obeys the director and the other nodes.
struct Node {
    /// The channels to the director, as the first, and to the other nodes.
    roads: Vec<Option<Channel>>,
    kept: Vec<Kept>,
    maps: Vec<RegionMap>,
    calls: Vec<CallEnd>,
    set: WaitSet,
}

impl Node {
    fn meet() -> Self {
        let parent = parent();
        let set = WaitSet::new().unwrap();
        set.add(&parent, 0, Interest::Readable, Mode::Level).unwrap();
        Self { roads: vec![Some(parent)], kept: Vec::new(), maps: Vec::new(), calls: Vec::new(), set }
    }

    /// Obeys orders until the director is gone.
    fn obey(mut self) {
        let mut events = Vec::new();
        loop {
            events.clear();
            self.set.wait(&mut events, Deadline::NEVER).unwrap();
            for event in &events {
                let from = event.key() as usize;
                let Some(road) = self.roads.get(from).and_then(Option::as_ref) else { continue };
                match road.try_recv() {
                    Ok(mut message) => {
                        let handles = message.take_handles().unwrap_or_default();
                        let order = message.bytes().to_vec();
                        self.follow(&order, handles);
                    }
                    Err(strait::Error::WouldBlock) => {}
                    Err(_) if from == 0 => return,
                    // The run is over, and the other node has ended first.
                    Err(_) => self.roads[from] = None,
                }
            }
        }
    }

    fn follow(&mut self, order: &[u8], mut handles: Vec<Handle>) {
        let (&order, numbers) = order.split_first().expect("an order");
        let number = |at: usize| numbers.get(at).copied().map_or(0, usize::from);
        match order {
            order::ANSWER => self.roads[0].as_ref().expect("the director").send_by(&[order::ANSWER], DEADLINE).unwrap(),
            order::ROAD => {
                let road = handles.remove(0).into_channel().expect("a channel");
                self.set.add(&road, number(0) as u64, Interest::Readable, Mode::Level).unwrap();
                self.roads.resize_with(self.roads.len().max(number(0) + 1), || None);
                self.roads[number(0)] = Some(road);
            }
            order::KEEP => self.keep(handles, number(0) == 1),
            order::SERVE => self.calls.push(CallEnd::over(handles.remove(0).into_channel().expect("a channel"))),
            order::DROP => {
                self.kept.clear();
                self.maps.clear();
                self.calls.clear();
            }
            order::PAIR => {
                let options = if number(1) % 4 == 0 { Options::new().ring(1 << 16) } else { Options::new() };
                let (ours, theirs) = options.pair().unwrap();
                let is_carrier = number(2) % 3 == 0;
                self.keep([ours.into()], is_carrier);
                self.send(number(0), &[order::KEEP, u8::from(is_carrier)], theirs);
            }
            order::PIPE => {
                let (producer, consumer) = DataPipe::pair(1 << 16).unwrap();
                let (ours, theirs) = if number(1) % 2 == 0 {
                    (Handle::from(producer), Handle::from(consumer))
                } else {
                    (consumer.into(), producer.into())
                };
                self.keep([ours], false);
                self.send(number(0), &[order::KEEP], theirs);
            }
            order::REGION => {
                let region = Region::new(5000).unwrap();
                self.keep([region.clone().into()], false);
                self.send(number(0), &[order::KEEP], region);
            }
            order::CALL => {
                let (ours, theirs) = Channel::pair().unwrap();
                self.send(number(0), &[order::SERVE], theirs);
                let calls = CallEnd::over(ours);
                // Nobody serves the call, unless the other node uses its end.
                let request = Outgoing::new(b"request").handle(file_with(b"file"));
                let _ = calls.call(request, Deadline::NOW);
                self.calls.push(calls);
            }
            order::USE => self.use_all(if number(0) % 8 == 0 { 100_000 } else { 100 }),
            order::RECEIVE => self.receive_all(),
            order::MOVE if !self.kept.is_empty() => {
                let moved = self.kept.swap_remove(number(1) % self.kept.len());
                self.send(number(0), &[order::KEEP, u8::from(moved.is_carrier)], moved.handle);
            }
            order::NEST => {
                let nested = self.take(number(1), |kept| !kept.is_carrier);
                let carriers: Vec<_> = self.kept.iter().filter_map(Kept::carrier).collect();
                if let Some(nested) = nested
                    && let Some(carrier) = carriers.get(number(2) % carriers.len().max(1))
                {
                    let _ = carrier.try_send(Outgoing::new(&[order::KEEP]).handle(nested.handle));
                }
            }
            order::FUSE => {
                let is_fusible = |kept: &Kept| kept.channel().is_some() && !kept.is_carrier;
                let one = self.take(number(1), is_fusible).and_then(|kept| kept.handle.into_channel());
                let other = self.take(number(2), is_fusible).and_then(|kept| kept.handle.into_channel());
                if let (Some(one), Some(other)) = (one, other) {
                    let _ = one.fuse(other, DEADLINE);
                }
            }
            order::WAIT => {
                let set = WaitSet::new().unwrap();
                for channel in self.kept.iter().filter_map(Kept::channel) {
                    let _ = set.add(channel, 1, Interest::Both, Mode::OneShot);
                }
                let _ = set.wait(&mut Vec::new(), Deadline::NOW);
            }
            order::DROP_ONE if !self.kept.is_empty() => drop(self.kept.swap_remove(number(1) % self.kept.len())),
            order::MOVE | order::DROP_ONE => {}
            unknown => panic!("an unknown order: {unknown}"),
        }
    }

    /// Sends an object to a node with an order; drops the object if the node has ended.
    fn send(&self, to: usize, order: &[u8], object: impl Into<Handle>) {
        if let Some(road) = self.roads.get(to).and_then(Option::as_ref) {
            let _ = road.send_by(Outgoing::new(order).handle(object), DEADLINE);
        }
    }

    fn keep(&mut self, handles: impl IntoIterator<Item = Handle>, is_carrier: bool) {
        self.kept.extend(handles.into_iter().map(|handle| Kept { handle, is_carrier }));
    }

    /// Takes a kept object for which `is_fit` returns true, chosen by `number`.
    fn take(&mut self, number: usize, is_fit: impl Fn(&Kept) -> bool) -> Option<Kept> {
        let fit: Vec<usize> = (0..self.kept.len()).filter(|at| is_fit(&self.kept[*at])).collect();
        fit.get(number % fit.len().max(1)).map(|at| self.kept.swap_remove(*at))
    }

    fn use_all(&mut self, len: usize) {
        let bytes = vec![7; len];
        for kept in &self.kept {
            match &kept.handle {
                Handle::Channel(channel) => {
                    let _ = channel.try_send(Outgoing::new(&bytes).handle(file_with(b"file")));
                }
                Handle::Producer(producer) => {
                    let _ = producer.write_some(&bytes, Deadline::NOW);
                }
                Handle::Consumer(consumer) => {
                    let _ = consumer.read_some(&mut [0; 5000], Deadline::NOW);
                }
                Handle::Region(region) => self.maps.extend(region.map_writable(..)),
                _ => {}
            }
        }
        for calls in &self.calls {
            if let Ok(request) = calls.next_request(Deadline::NOW) {
                let _ = request.reply(Outgoing::new(b"reply").handle(file_with(b"file")), Deadline::NOW);
            }
        }
    }

    fn receive_all(&mut self) {
        let mut received = Vec::new();
        for channel in self.kept.iter().filter_map(Kept::channel) {
            for _ in 0..50 {
                let Ok(mut message) = channel.try_recv() else { break };
                received.extend(message.take_handles().unwrap_or_default());
            }
        }
        self.keep(received.into_iter().filter(|handle| !matches!(handle, Handle::Fd(_))), false);
    }
}

/// The resources held by a process.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    descriptors: usize,
    /// The number of mappings of the library's memory.
    mappings: usize,
    /// The memory of the process that is not mapped from files.
    kibibytes: usize,
}

impl Held {
    fn by(process: u32) -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap();
        let memory = read("status");
        let line = memory.lines().find(|line| line.starts_with("RssAnon")).unwrap();
        Self {
            descriptors: std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count(),
            mappings: read("maps").lines().filter(|line| line.contains("memfd:strait")).count(),
            kibibytes: line.split_whitespace().nth(1).unwrap().parse().unwrap(),
        }
    }

    fn with(self, other: Self, each: impl Fn(usize, usize) -> usize) -> Self {
        Self {
            descriptors: each(self.descriptors, other.descriptors),
            mappings: each(self.mappings, other.mappings),
            kibibytes: each(self.kibibytes, other.kibibytes),
        }
    }

    fn is_within(self, limit: Self) -> bool {
        self.descriptors <= limit.descriptors && self.mappings <= limit.mappings && self.kibibytes <= limit.kibibytes
    }
}

/// Returns the kinds of the descriptors of a process, and the number of each.
fn descriptors_of(process: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{process}/fd")).unwrap() {
        let name = std::fs::read_link(entry.unwrap().path()).unwrap_or_default().display().to_string();
        *kinds.entry(name.split('[').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    kinds
}

/// The nodes of a run, from number 1 on, and the director's channels to them.
struct Nodes(Vec<(Actor, Channel)>);

impl Nodes {
    fn order(&self, node: usize, order: &[u8]) {
        self.0[node - 1].1.send_by(order, DEADLINE).unwrap();
    }

    /// Makes a road between two nodes.
    fn introduce(&self, one: usize, other: usize) {
        let (a, b) = Channel::pair().unwrap();
        for (to, about, road) in [(one, other, a), (other, one, b)] {
            let order = [order::ROAD, u8::try_from(about).unwrap()];
            self.0[to - 1].1.send_by(Outgoing::new(&order).handle(road), DEADLINE).unwrap();
        }
    }

    /// Waits until each node has followed all orders of the director.
    fn settle(&self) {
        for (_, channel) in &self.0 {
            channel.send_by(&[order::ANSWER], DEADLINE).unwrap();
        }
        for (_, channel) in &self.0 {
            while channel.recv_by(DEADLINE).unwrap().bytes() != [order::ANSWER] {}
        }
    }

    fn drop_all(&self) {
        for node in 1..=self.0.len() {
            self.order(node, &[order::DROP]);
        }
    }

    fn held(&self) -> Vec<Held> {
        let processes = self.0.iter().map(|(actor, _)| actor.pid());
        std::iter::once(std::process::id()).chain(processes).map(Held::by).collect()
    }
}

/// Gives random orders to nodes. The argument is the number of nodes and the seed.
fn director(argument: &str) {
    let (count, seed) = argument.split_once(' ').expect("two numbers");
    let (count, seed) = (count.parse::<usize>().unwrap(), seed.parse().unwrap());
    let mut random = Random(seed);
    let mut below = |limit: usize| (random.next() % limit as u64) as usize;
    let nodes = Nodes((0..count).map(|_| spawn("node")).collect());
    (1..=count).for_each(|one| (1..one).for_each(|other| nodes.introduce(one, other)));
    let mut limit = Held::default();
    for part in 0..PARTS {
        for _ in 0..ORDERS {
            let node = 1 + below(count);
            // A node other than the receiver of the order.
            let other = 1 + (node - 1 + 1 + below(count - 1)) % count;
            let order = order::RANDOM[below(order::RANDOM.len())];
            nodes.order(node, &[order, other as u8, below(256) as u8, below(256) as u8]);
        }
        // In the second round, objects sent to another node are mostly dropped there.
        for _ in 0..3 {
            nodes.settle();
            nodes.drop_all();
        }
        if part < 2 {
            nodes.settle();
            limit = nodes.held().into_iter().fold(limit, |limit, held| limit.with(held, usize::max));
            continue;
        }
        let limit = limit.with(MORE, |most, more| most + more);
        let begun = std::time::Instant::now();
        let held = loop {
            // A node that had much to do may have kept objects from other nodes since its last order to drop
            // everything.
            nodes.drop_all();
            nodes.settle();
            let held = nodes.held();
            if held.iter().all(|held| held.is_within(limit)) {
                break held;
            }
            assert!(
                begun.elapsed() < DEADLINE,
                "{argument:?}: part {part} leaves {held:?}, at most {limit:?} may be; descriptors: {:?}",
                nodes.0.iter().map(|(actor, _)| descriptors_of(actor.pid())).collect::<Vec<_>>()
            );
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        println!("part {part}: {held:?}");
    }
}
