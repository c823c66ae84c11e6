//! A message of some thirty kinds of fields, for the tests of all codecs.
#![allow(dead_code, reason = "each test uses some of it")]

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) x: i32,
    pub(crate) y: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Metres(pub(crate) f32);

type Unit = (u8, Option<()>);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Nothing;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Shape {
    Empty,
    Circle(f64),
    Line(Point, Point),
    Box { corner: Point, size: (u16, u16) },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tree {
    pub(crate) name: String,
    pub(crate) children: Vec<Tree>,
}

/// A field of each kind that serde distinguishes, and of the usual types of the standard library.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Everything {
    pub(crate) truth: bool,
    pub(crate) tiny: i8,
    pub(crate) short: i16,
    pub(crate) int: i32,
    pub(crate) long: i64,
    pub(crate) huge: i128,
    pub(crate) byte: u8,
    pub(crate) word: u16,
    pub(crate) double: u32,
    pub(crate) quad: u64,
    pub(crate) wide: u128,
    pub(crate) size: usize,
    pub(crate) float: f32,
    pub(crate) real: f64,
    pub(crate) letter: char,
    pub(crate) text: String,
    #[serde(with = "serde_bytes")]
    pub(crate) bytes: Vec<u8>,
    pub(crate) list_of_bytes: Vec<u8>,
    pub(crate) none: Option<u32>,
    pub(crate) some: Option<Point>,
    pub(crate) unit: (),
    pub(crate) nothing: Nothing,
    pub(crate) metres: Metres,
    pub(crate) pair: (u8, String),
    pub(crate) array: [u16; 5],
    pub(crate) list: Vec<Point>,
    pub(crate) names: Vec<String>,
    pub(crate) map: HashMap<String, u64>,
    pub(crate) sorted: BTreeMap<u32, Vec<i8>>,
    pub(crate) set: BTreeSet<String>,
    pub(crate) queue: VecDeque<bool>,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) boxed: Box<Shape>,
    pub(crate) cow: Cow<'static, str>,
    pub(crate) tree: Tree,
    pub(crate) elapsed: Duration,
    pub(crate) address: IpAddr,
    pub(crate) socket: SocketAddr,
    pub(crate) path: PathBuf,
    pub(crate) nonzero: NonZeroU32,
    pub(crate) outcome: Result<u8, String>,
    pub(crate) nested: Vec<Vec<Option<Unit>>>,
}

impl Everything {
    pub(crate) fn new() -> Self {
        let leaf = |name: &str| Tree { name: name.into(), children: Vec::new() };
        Self {
            truth: true,
            tiny: i8::MIN,
            short: i16::MIN,
            int: i32::MIN,
            long: i64::MIN,
            huge: i128::MIN,
            byte: u8::MAX,
            word: u16::MAX,
            double: u32::MAX,
            quad: u64::MAX,
            wide: u128::MAX,
            size: usize::MAX,
            float: -0.1,
            real: f64::MIN_POSITIVE,
            letter: '\u{10FFFF}',
            text: "Straße \"quoted\" \u{0} \n".into(),
            bytes: (0..=255).collect(),
            list_of_bytes: vec![0, 127, 128, 255],
            none: None,
            some: Some(Point { x: -1, y: 0.5 }),
            unit: (),
            nothing: Nothing,
            metres: Metres(1.5),
            pair: (7, "seven".into()),
            array: [0, 1, 256, 65535, 5],
            list: vec![Point::default(); 3],
            names: vec![String::new(), "a".repeat(300)],
            map: HashMap::from([("one".into(), 1), ("two".into(), 2)]),
            sorted: BTreeMap::from([(0, vec![]), (70000, vec![-1, 1])]),
            set: BTreeSet::from(["b".into(), "a".into()]),
            queue: VecDeque::from([true, false]),
            shapes: vec![
                Shape::Empty,
                Shape::Circle(2.0),
                Shape::Line(Point { x: 1, y: 1.0 }, Point { x: 2, y: -2.0 }),
                Shape::Box { corner: Point { x: 0, y: 0.0 }, size: (1, 2) },
            ],
            boxed: Box::new(Shape::Circle(1e300)),
            cow: "borrowed".into(),
            tree: Tree { name: "root".into(), children: vec![leaf("left"), leaf("right")] },
            elapsed: Duration::new(3, 999_999_999),
            address: IpAddr::V6(Ipv6Addr::LOCALHOST),
            socket: "127.0.0.1:80".parse().unwrap(),
            path: PathBuf::from("/a/b"),
            nonzero: NonZeroU32::MIN,
            outcome: Err("no".into()),
            nested: vec![vec![], vec![None, Some((1, None)), Some((2, None))]],
        }
    }
}

/// Returns the number of descriptors of this process for the file at `path`.
pub(crate) fn open_files(path: &str) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_str() == Some(path)).count()
}

/// Returns the request by which typed calls of numbers ask for the types.
pub(crate) fn question() -> Vec<u8> {
    let (one, other) = strait::Channel::pair().unwrap();
    let (client, raw) = (strait_typed::TypedCalls::<u32, u32>::over(one), strait::call::CallEnd::over(other));
    std::thread::scope(|scope| {
        scope.spawn(|| client.call(&1, LIMIT));
        raw.next_request(LIMIT).unwrap().bytes().to_vec()
    })
}

/// A path unique to a test, for a file deleted when this object is dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(content: &[u8]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("strait-typed-{}-{number}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    pub(crate) fn open(&self) -> std::fs::File {
        std::fs::File::open(&self.0).unwrap()
    }

    /// Returns the number of descriptors of this process for the file.
    pub(crate) fn held(&self) -> usize {
        open_files(self.0.to_str().unwrap())
    }

    /// Waits until this process has no descriptor for the file: a thread of the library closes received descriptors.
    pub(crate) fn wait_until_closed(&self) {
        let begin = Instant::now();
        while self.held() > 0 {
            assert!(begin.elapsed() < LIMIT, "{} descriptors are left", self.held());
            std::thread::yield_now();
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
