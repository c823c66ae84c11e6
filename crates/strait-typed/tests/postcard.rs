//! The codec Postcard writes the bytes of the crate `postcard`, and reads bytes as the same value as that crate.

mod common;

use std::collections::BTreeMap;
use std::fmt::Debug;

use common::{Everything, LIMIT, Shape, Tree};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use strait::{Channel, Message, Options};
use strait_typed::codec::{Decode, Malformed};
use strait_typed::{Postcard, Typed};

/// Returns the bytes of a value in a message.
fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    let (near, far) = Typed::<T, ()>::pair().unwrap();
    near.send(value).unwrap();
    let far = far.into_channel();
    // The description of the types.
    far.recv_by(LIMIT).unwrap();
    far.recv_by(LIMIT).unwrap().into_bytes()
}

/// Decodes all bytes with the crate `postcard`; `None` if they are no value.
fn reference<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
}

thread_local! {
    /// A channel whose messages all lie outside the ring, as long messages do.
    static OUT_OF_LINE: (Channel, Channel) = Options::new().inline_max(0).pair().unwrap();
}

/// Decodes the bytes as those of a long message are decoded: out of the memory where the peer wrote them.
fn decode_view<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    OUT_OF_LINE.with(|(near, far)| {
        near.send_by(bytes, LIMIT).unwrap();
        let mut message = Message::new();
        match far.recv_message_or_view(&mut message, LIMIT).unwrap() {
            Some(mut view) => Postcard::decode_view(&mut view, &mut Vec::new()),
            None => {
                assert!(bytes.is_empty());
                Postcard::decode(&[])
            }
        }
    })
}

/// Decodes the bytes with all decoders and compares the results, by their bytes since some numbers equal nothing.
fn decode_alike<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) {
    let ours = <Postcard as Decode<'_, T>>::decode(bytes);
    let theirs = reference::<T>(bytes);
    match (&ours, decode_view::<T>(bytes)) {
        (Ok(ours), Ok(viewed)) => {
            assert_eq!(postcard::to_allocvec(ours).unwrap(), postcard::to_allocvec(&viewed).unwrap(), "{bytes:x?}");
        }
        (Err(ours), Err(viewed)) => assert_eq!(*ours, viewed, "{bytes:x?}"),
        (ours, viewed) => panic!("{bytes:x?} is {ours:?} in private memory, and {viewed:?} in a view"),
    }
    match (&ours, &theirs) {
        (Ok(ours), Some(theirs)) => {
            assert_eq!(postcard::to_allocvec(ours).unwrap(), postcard::to_allocvec(theirs).unwrap(), "{bytes:x?}");
        }
        (Err(_), None) => {}
        _ => panic!("{bytes:x?} is {ours:?} here, and {theirs:?} there"),
    }
}

fn encode_alike<T: Serialize + DeserializeOwned + Debug + PartialEq>(value: &T) {
    let bytes = encoded(value);
    assert_eq!(bytes, postcard::to_allocvec(value).unwrap(), "{value:?}");
    assert_eq!(<Postcard as Decode<'_, T>>::decode(&bytes).as_ref(), Ok(value));
    assert_eq!(decode_view(&bytes).as_ref(), Ok(value));
}

type Numbers = (u8, i8, u16, i16, u32, i32, u64, i64, u128, i128);
type Texts =
    (bool, String, f32, f64, Option<String>, Vec<i16>, BTreeMap<u32, String>, Result<u8, String>, usize, isize);

/// Numbers of all lengths. Random numbers are nearly always long.
fn shifted() -> impl Strategy<Value = Numbers> {
    (any::<Numbers>(), 0u32..128).prop_map(|(mut numbers, by)| {
        let shift = |bits: u32| by % bits;
        numbers.2 >>= shift(16);
        numbers.3 >>= shift(16);
        numbers.4 >>= shift(32);
        numbers.5 >>= shift(32);
        numbers.6 >>= shift(64);
        numbers.7 >>= shift(64);
        numbers.8 >>= shift(128);
        numbers.9 >>= shift(128);
        numbers
    })
}

/// A text of several pieces, whose length is unknown before formatting.
#[derive(Debug)]
struct Formatted(u64, f64);

impl Serialize for Formatted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}:{:e} äöü", self.0, self.1))
    }
}

#[test]
fn every_kind_of_field_has_the_same_bytes() {
    // The order of a hash map of several entries is not the same in each run, but in each value.
    encode_alike(&Everything::new());
    decode_alike::<u16>(&[0x80, 0x80, 0x04]);
    decode_alike::<u16>(&[0x80, 0x80, 0x03]);
    decode_alike::<u16>(&[0x80, 0x80, 0x80]);
    decode_alike::<u64>(&[0x80, 0x00]);
    decode_alike::<u64>(&[&[0xFF; 9][..], &[2]].concat());
    decode_alike::<u128>(&[&[0xFF; 18][..], &[4]].concat());
}

#[test]
fn a_field_that_is_left_out_is_an_error() {
    #[derive(Serialize)]
    struct Sparse {
        first: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        second: Option<u8>,
        third: u8,
    }
    #[derive(Serialize)]
    enum Choice {
        One {
            #[serde(skip_serializing_if = "Vec::is_empty")]
            list: Vec<u8>,
        },
    }
    let (near, _far) = Typed::<(Sparse, Choice), ()>::pair().unwrap();
    let refused = |second, list| {
        near.send(&(Sparse { first: 1, second, third: 3 }, Choice::One { list })).unwrap_err().to_string()
    };
    assert!(refused(None, vec![1]).contains("the field `second` is left out"));
    assert!(refused(Some(2), vec![]).contains("the field `list` is left out"));
    let kept = (Sparse { first: 1, second: Some(2), third: 3 }, Choice::One { list: vec![1] });
    assert_eq!(encoded(&kept), [1, 1, 2, 3, 0, 1, 1]);
}

#[test]
fn a_char_is_exactly_one_character() {
    assert_eq!(<Postcard as Decode<'_, char>>::decode(&[2, 0xC3, 0x9F]), Ok('ß'));
    // The crate `postcard` ignores the second character.
    assert!(<Postcard as Decode<'_, char>>::decode(&[2, b'a', b'b']).is_err());
    assert!(<Postcard as Decode<'_, char>>::decode(&[0]).is_err());
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Choice {
    None,
    Number(u32),
    Pair(u8, String),
    Fields { numbers: Vec<u64>, next: Option<Box<Choice>> },
}

fn choice() -> impl Strategy<Value = Choice> {
    let leaf = prop_oneof![
        Just(Choice::None),
        any::<u32>().prop_map(Choice::Number),
        any::<(u8, String)>().prop_map(|(number, text)| Choice::Pair(number, text)),
    ];
    leaf.prop_recursive(4, 8, 1, |inner| {
        (any::<Vec<u64>>(), prop::option::of(inner))
            .prop_map(|(numbers, next)| Choice::Fields { numbers, next: next.map(Box::new) })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn values_have_the_same_bytes(numbers in shifted(), texts in any::<Texts>(), char: char, choice in choice()) {
        encode_alike(&numbers);
        encode_alike(&texts);
        encode_alike(&(char, choice));
    }

    #[test]
    fn formatted_texts_have_the_same_bytes(number: u64, float: f64) {
        let value = Formatted(number, float);
        prop_assert_eq!(encoded(&value), postcard::to_allocvec(&value).unwrap());
    }

    #[test]
    fn changed_bytes_are_read_alike(
        numbers in shifted(), texts in any::<Texts>(), choice in choice(), at: prop::sample::Index, byte: u8, cut: bool,
    ) {
        fn check<T: Serialize + DeserializeOwned + Debug>(value: &T, at: prop::sample::Index, byte: u8, cut: bool) {
            let mut bytes = postcard::to_allocvec(value).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(if cut { at + 1 } else { bytes.len() });
            decode_alike::<T>(&bytes);
        }
        check(&numbers, at, byte, cut);
        check(&texts, at, byte, cut);
        check(&choice, at, byte, cut);
    }

    #[test]
    fn any_bytes_are_read_alike(bytes in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..60)) {
        decode_alike::<Numbers>(&bytes);
        decode_alike::<Texts>(&bytes);
        decode_alike::<Choice>(&bytes);
        decode_alike::<Vec<Shape>>(&bytes);
        decode_alike::<Tree>(&bytes);
        decode_alike::<Vec<Option<(u16, i64)>>>(&bytes);
    }
}

/// The fields of a long message, of all lengths, so that fields of each kind lie across the pieces in which a view is
/// read.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Field {
    number: u128,
    real: f64,
    char: char,
    text: String,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
    list: Vec<u32>,
    inner: Option<Box<Field>>,
}

impl Field {
    fn random(random: &mut fastrand::Rng) -> Self {
        let mut len = || if random.u8(..20) == 0 { random.usize(..10_000) } else { random.usize(..60) };
        let (texts, bytes, list) = (len(), len(), len());
        Self {
            number: random.u128(..) >> random.u32(..128),
            real: random.f64(),
            char: random.char(..),
            text: (0..texts).map(|_| random.char(..)).collect(),
            bytes: (0..bytes).map(|_| random.u8(..)).collect(),
            list: (0..list).map(|_| random.u32(..)).collect(),
            inner: (random.u8(..4) == 0).then(|| Box::new(Self::random(random))),
        }
    }
}

#[test]
fn long_messages_are_read_alike_wherever_they_lie() {
    let mut random = fastrand::Rng::with_seed(22);
    let (near, far) = Typed::<Vec<Field>>::pair().unwrap();
    for _ in 0..5 {
        let fields: Vec<_> = (0..random.usize(200..400)).map(|_| Field::random(&mut random)).collect();
        let bytes = postcard::to_allocvec(&fields).unwrap();
        assert!(bytes.len() > 64 << 10);
        assert_eq!(decode_view::<Vec<Field>>(&bytes).as_ref(), Ok(&fields));
        near.send(&fields).unwrap();
        assert_eq!(far.recv_by(LIMIT).unwrap(), fields);
        for _ in 0..4 {
            let mut changed = bytes.clone();
            let at = random.usize(..changed.len());
            if random.bool() {
                changed.truncate(at)
            } else {
                changed[at] ^= 1 << random.u8(..8)
            }
            decode_alike::<Vec<Field>>(&changed);
        }
    }
}

#[test]
fn a_long_field_of_bytes_is_copied_into_the_value_alone() {
    #[derive(Serialize, Deserialize)]
    struct Blob(u32, #[serde(with = "serde_bytes")] Vec<u8>, String);
    let blob = Blob(7, (0..1 << 20).map(|at| (at % 251) as u8).collect(), "x".repeat(100_000));
    let (near, far) = Typed::<Blob>::pair().unwrap();
    near.send(&blob).unwrap();
    let received = far.recv_by(LIMIT).unwrap();
    assert!(received.0 == 7 && received.1 == blob.1 && received.2 == blob.2);
    // No byte of memory beyond the message.
    assert_eq!((received.1.capacity(), received.2.capacity()), (1 << 20, 100_000));
}
