//! Any received bytes give a value or an error, without a panic and without more memory than the bytes justify, and the
//! channel goes on.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};

use common::{Everything, LIMIT, Shape, Tree};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strait::{Handle, Outgoing};
use strait_typed::codec::{Codec, DecodeOwned, Encode, Json, MsgPack};
use strait_typed::{End, Fd, Postcard, RawEnd, RecvError, Shared, Typed};

/// The allocator of the test program, with a count for each thread.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count(change: impl FnOnce(usize) -> usize) {
    let _ = HELD.try_with(|held| {
        held.set(change(held.get()));
        MOST.with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|held| held + layout.size());
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(|held| held.saturating_sub(layout.size()));
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the greatest number of bytes held by this thread while `work` ran, beyond the bytes held before.
fn most_held(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    work();
    MOST.get() - before
}

/// An end that expects values of type `T`, and a peer that can send any bytes. The first messages were exchanged.
struct Ends<T, C> {
    near: Typed<(), (), C>,
    far: Typed<(), T, C>,
}

impl<T, C> Ends<T, C>
where
    T: DeserializeOwned + Send + 'static,
    C: Encode<()> + Codec<T> + DecodeOwned<T>,
{
    fn new() -> Self {
        Self::over(&strait::Options::new())
    }

    /// Creates ends whose messages are all read in place, like long messages.
    fn in_place() -> Self {
        Self::over(&strait::Options::new().inline_max(0))
    }

    fn over(options: &strait::Options) -> Self {
        let (one, other) = options.pair().unwrap();
        let ends = Self { near: Typed::over(one), far: Typed::over(other) };
        ends.near.send(&()).unwrap();
        // The unit is a value of type `T`, or not.
        let _ = ends.far.recv_by(LIMIT);
        ends
    }

    /// Sends and receives the bytes. Returns the result, and the greatest amount of memory held during the receive.
    fn receive(&self, bytes: &[u8]) -> (Result<T, RecvError>, usize) {
        self.near.channel().send_by(bytes, LIMIT).unwrap();
        // The memory for the received message itself.
        let mut received = None;
        let most = most_held(|| received = Some(self.far.recv_by(LIMIT)));
        (received.unwrap(), most)
    }

    /// Sends bytes that are no value, and checks the memory that the receive has held: no more than four bytes for each
    /// byte, and some for the error.
    #[track_caller]
    fn refuse(&self, bytes: &[u8]) -> String {
        let (received, most) = self.receive(bytes);
        let Err(RecvError::Malformed(malformed)) = received else { panic!("{bytes:x?} is taken as a value") };
        assert!(most <= 4 * bytes.len() + ROOM, "{most} bytes of memory for {} bytes: {malformed}", bytes.len());
        malformed.what
    }
}

/// The memory in bytes that a receive may take beyond that for the bytes: for an error, and for a piece of a long
/// message.
const ROOM: usize = 5 << 10;

/// Claimed lengths: from just too large to the largest possible.
const CLAIMED: [u64; 6] = [17, 1000, 1 << 20, 1 << 31, 1 << 40, u64::MAX >> 1];

/// Returns a postcard number.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 128 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

#[test]
fn a_forged_length_in_postcard_takes_no_memory() {
    fn check<T: DeserializeOwned + Send + 'static>() {
        for ends in [Ends::<T, Postcard>::new(), Ends::in_place()] {
            for claimed in CLAIMED {
                ends.refuse(&varint(claimed));
                ends.refuse(&[varint(claimed), vec![1; 16]].concat());
            }
        }
        // A value may really begin with a long list, so that only the end is missing.
        Ends::<T, Postcard>::in_place().refuse(&[varint(1 << 40), vec![1; 200_000]].concat());
    }
    check::<Vec<u8>>();
    check::<Vec<u64>>();
    check::<Vec<[u64; 32]>>();
    check::<String>();
    check::<serde_bytes::ByteBuf>();
    check::<HashMap<u64, [u64; 16]>>();
    check::<HashSet<u128>>();
    check::<BTreeMap<String, Vec<u64>>>();
    check::<Vec<String>>();
    check::<Box<[u64]>>();
    check::<std::collections::VecDeque<u64>>();
    check::<std::collections::BinaryHeap<u64>>();
}

#[test]
fn a_forged_length_in_msgpack_takes_no_memory() {
    fn check<T: DeserializeOwned + Send + 'static>() {
        let ends = Ends::<T, MsgPack>::new();
        // A string, bytes, an array, a map and an extension, each of a length of 32 bits.
        for marker in [0xDB, 0xC6, 0xDD, 0xDF, 0xC9] {
            for len in [17, 1 << 20, u32::MAX] {
                ends.refuse(&[&[marker][..], &len.to_be_bytes()].concat());
                ends.refuse(&[&[marker][..], &len.to_be_bytes(), &[1; 16]].concat());
            }
        }
    }
    check::<Vec<u8>>();
    check::<Vec<[u64; 32]>>();
    check::<String>();
    check::<serde_bytes::ByteBuf>();
    check::<HashMap<u64, [u64; 16]>>();
    check::<Vec<String>>();
}

#[test]
fn elements_without_bytes_are_bounded() {
    let ends = Ends::<Vec<()>, Postcard>::new();
    assert_eq!(ends.receive(&varint(1000)).0.unwrap().len(), 1000);
    for claimed in [1 << 20, 1 << 40, u64::MAX >> 1] {
        assert!(ends.refuse(&varint(claimed)).contains("more elements"));
    }
    let ends = Ends::<Vec<Vec<Vec<()>>>, Postcard>::new();
    let nested = [varint(1), varint(1 << 40), varint(1 << 50)].concat();
    assert!(ends.refuse(&nested).contains("more elements"));
}

#[test]
fn deep_nesting_is_an_error_and_no_overflow_of_the_stack() {
    #[derive(Debug, Serialize, Deserialize)]
    enum List {
        End,
        Next(Box<List>),
    }
    let ends = Ends::<List, Postcard>::new();
    assert!(ends.receive(&[&[1; 60][..], &[0]].concat()).0.is_ok());
    assert!(ends.refuse(&[1; 100_000]).contains("nested too deeply"));

    let ends = Ends::<Tree, MsgPack>::new();
    let deep: Vec<u8> = b"\x92\xA0\x91".repeat(20_000);
    assert!(ends.refuse(&deep).contains("nested too deeply"));

    let ends = Ends::<serde_json::Value, Json>::new();
    ends.refuse(&vec![b'['; 100_000]);
    let ends = Ends::<serde::de::IgnoredAny, MsgPack>::new();
    ends.refuse(&vec![0x91; 100_000]);
}

#[test]
fn an_error_says_where_and_what() {
    let ends = Ends::<(u8, bool, String), Postcard>::new();
    let (received, _) = ends.receive(&[5, 7]);
    assert_eq!(
        received.unwrap_err().to_string(),
        "the message is not of the expected type: a bool is neither 0 nor 1 (at byte 2)"
    );
    let (received, _) = ends.receive(&[5, 1, 1, b'x', 0]);
    assert_eq!(
        received.unwrap_err().to_string(),
        "the message is not of the expected type: bytes behind the value (at byte 4)"
    );
    let ends = Ends::<(u8, bool), Json>::new();
    let error = ends.receive(b"[1,true]x").0.unwrap_err().to_string();
    assert!(error.contains("bytes behind the value"), "{error}");
    assert!(ends.receive(b"[1,3]").0.unwrap_err().to_string().contains("line 1 column 4"));
    let ends = Ends::<u8, MsgPack>::new();
    assert!(ends.refuse(&[1, 2]).contains("bytes behind the value"));
    for cut in [&b""[..], b"\xCC"] {
        let text = ends.refuse(cut);
        assert!(text.ends_with("the message ends before its value does"), "{text}");
    }
    let text = Ends::<Vec<Fd>, MsgPack>::new().refuse(b"\x91\x92\x01\x02");
    assert!(text.ends_with("the object FixArray(2) of MessagePack is not of the type of its place"), "{text}");
}

/// Returns the bytes of a value in a message.
fn encoded<C: Encode<Everything>>() -> Vec<u8> {
    let (near, far) = Typed::<Everything, Everything, C>::pair().unwrap();
    near.send(&Everything::new()).unwrap();
    let far = far.into_channel();
    far.recv().unwrap();
    far.recv().unwrap().into_bytes()
}

fn any_change_is_an_error_or_a_value<C>(ends: &Ends<Everything, C>)
where
    C: Encode<Everything> + Encode<()> + DecodeOwned<Everything>,
{
    let bytes = encoded::<C>();
    let (received, most) = ends.receive(&bytes);
    assert_eq!(received.unwrap(), Everything::new());
    for at in 0..bytes.len() {
        for change in [0x01, 0x80, 0xFF] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            let (received, held) = ends.receive(&changed);
            assert!(held <= 2 * most + 4096, "{held} bytes held instead of {most}");
            assert!(matches!(received, Ok(_) | Err(RecvError::Malformed(_))), "{received:?}");
        }
        assert!(ends.receive(&bytes[..at]).0.is_err(), "the value is cut off at {at}");
    }
    assert_eq!(ends.receive(&bytes).0.unwrap(), Everything::new());
}

#[test]
fn changed_and_cut_bytes_are_errors_or_values_in_postcard() {
    any_change_is_an_error_or_a_value::<Postcard>(&Ends::new());
    any_change_is_an_error_or_a_value::<Postcard>(&Ends::in_place());
}

#[test]
fn changed_and_cut_bytes_are_errors_or_values_in_msgpack() {
    any_change_is_an_error_or_a_value::<MsgPack>(&Ends::new());
    any_change_is_an_error_or_a_value::<MsgPack>(&Ends::in_place());
}

#[test]
fn changed_and_cut_bytes_are_errors_or_values_in_json() {
    any_change_is_an_error_or_a_value::<Json>(&Ends::new());
    any_change_is_an_error_or_a_value::<Json>(&Ends::in_place());
}

/// A value with handles of several kinds at several places.
#[derive(Debug, Serialize, Deserialize)]
struct WithHandles {
    files: Vec<Fd>,
    end: Option<End<u32, ()>>,
    raw: Option<RawEnd>,
    region: Option<Shared>,
    text: String,
}

fn handle(kind: u8) -> Handle {
    match kind {
        0 => std::fs::File::open("/dev/zero").unwrap().into(),
        1 => strait::Channel::pair().unwrap().0.into(),
        2 => strait::region::Region::new(4096).unwrap().into(),
        3 => strait::pipe::DataPipe::pair(4096).unwrap().0.into(),
        _ => strait::pipe::DataPipe::pair(4096).unwrap().1.into(),
    }
}

fn zeros_held() -> usize {
    common::open_files("/dev/zero")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_an_error_or_a_value(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fn check<T: DeserializeOwned + Send + 'static>(bytes: &[u8]) {
            let check = |result: Result<T, RecvError>| match result {
                Ok(_) | Err(RecvError::Malformed(_)) => {}
                Err(error) => panic!("{error}"),
            };
            check(Ends::<T, Postcard>::new().receive(bytes).0);
            check(Ends::<T, MsgPack>::new().receive(bytes).0);
            check(Ends::<T, Json>::new().receive(bytes).0);
        }
        check::<Everything>(&bytes);
        check::<Vec<Shape>>(&bytes);
        check::<Tree>(&bytes);
        check::<serde_json::Value>(&bytes);
        check::<HashMap<String, Vec<Option<u16>>>>(&bytes);
    }

    #[test]
    fn any_indexes_and_kinds_of_handles_are_an_error_or_a_value(
        files in prop::collection::vec(0u32..6, 0..4),
        others in [prop::option::of(0u32..8), prop::option::of(0u32..8), prop::option::of(0u32..8)],
        flags in 0u32..4,
        kinds in prop::collection::vec(0u8..5, 0..6),
    ) {
        let ends = Ends::<WithHandles, Postcard>::new();
        let [end, raw, region] = others;
        let end = end.map(|index| index | flags << 16);
        let forged = postcard::to_allocvec(&(&files, end, raw, region, "text")).unwrap();
        let outgoing = Outgoing::new(&forged).handles(kinds.iter().map(|kind| handle(*kind)));
        ends.near.channel().send_by(outgoing, LIMIT).unwrap();
        let others = [(end.map(|end| end & 0xFFFF), 1), (raw, 1), (region, 2)];
        let named = || {
            let others = others.into_iter().filter_map(|(at, kind)| Some((at?, kind)));
            files.iter().map(|file| (*file, 0)).chain(others)
        };
        let fits = named().all(|(index, kind)| kinds.get(index as usize) == Some(&kind));
        let mut indexes: Vec<_> = named().map(|(index, _)| index).collect();
        indexes.sort_unstable();
        let each_once = indexes.iter().copied().eq(0..kinds.len() as u32);
        let received = ends.far.recv_by(LIMIT);
        prop_assert_eq!(received.is_ok(), fits && each_once, "{:?}", received);
        if let Ok(value) = received {
            prop_assert_eq!(value.text, "text");
            prop_assert_eq!(value.files.len(), files.len());
        } else {
            prop_assert!(matches!(received, Err(RecvError::Malformed(_))));
        }
        prop_assert_eq!(zeros_held(), 0);
    }
}
