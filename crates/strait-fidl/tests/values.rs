//! Subjects missing in the conformance cases: text, enums, bits, floats, limits, depth, borrowed values, parts.

use std::borrow::Cow;
use std::fmt::Debug;

use bitflags::bitflags;
use strait_fidl::{Code, Decode, Elements, Encode, Encoder, Error, Fidl, Gather, MAX_DEPTH, decode, to_vec};

/// Encodes a value, decodes it, and encodes it again.
fn there_and_back<T: Encode + for<'m> Decode<'m> + Debug>(value: &T) -> T {
    let bytes = to_vec(value).unwrap();
    assert_eq!(bytes.len() % 8, 0);
    let back: T = decode(&bytes, []).unwrap();
    assert_eq!(to_vec(&back).unwrap(), bytes, "{value:?}");
    back
}

fn refused<T: for<'m> Decode<'m> + Debug>(bytes: &[u8]) -> Error {
    decode::<T>(bytes, []).unwrap_err()
}

/// Returns words as bytes.
fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The presence word.
const PRESENT: u64 = u64::MAX;

#[derive(Debug, Fidl)]
struct Names {
    names: Vec<String>,
}

#[test]
fn a_string_that_is_not_utf8_is_refused_at_its_byte() {
    let good = to_vec(&Names { names: vec!["ab".into(), "grün".into()] }).unwrap();
    assert_eq!(decode::<Names>(&good, []).unwrap().names[1], "grün");
    let second = good.len() - 8;
    // A byte never used in UTF-8, a truncated sequence, a surrogate, and an overlong sequence.
    for wrong in [[b'g', b'r', 0xff, b'u', b'n'], [b'g', b'r', b'u', b'n', 0xc3], *b"g\xed\xa0\x80n", *b"gr\xc0\x80n"] {
        let mut bytes = good.clone();
        bytes[second..second + 5].copy_from_slice(&wrong);
        let error = refused::<Names>(&bytes);
        assert_eq!((error.code(), error.path().as_str()), (Code::StringNotUtf8, "names[1]"));
        let valid = std::str::from_utf8(&wrong).unwrap_err().valid_up_to();
        assert_eq!(error.at(), second + valid, "{wrong:x?}");
    }
}

#[test]
fn a_string_without_a_body_or_with_too_many_bytes_is_refused() {
    assert_eq!(refused::<String>(&words(&[0, 0])).code(), Code::NonNullableTypeWithNullValue);
    assert_eq!(refused::<String>(&words(&[1, 0])).code(), Code::NonEmptyStringWithNullBody);
    assert_eq!(refused::<String>(&words(&[1 << 32, PRESENT])).code(), Code::StringCountExceeds32BitLimit);
    assert_eq!(refused::<String>(&words(&[9, PRESENT, 0])).code(), Code::TooFewBytes);
    assert_eq!(refused::<String>(&words(&[u64::from(u32::MAX), PRESENT, 0])).code(), Code::TooFewBytes);
    assert_eq!(refused::<String>(&words(&[1, 1, 0])).code(), Code::InvalidPresenceIndicator);
    assert_eq!(refused::<Option<String>>(&words(&[1, 0])).code(), Code::NonEmptyStringWithNullBody);
}

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
#[fidl(strict)]
#[repr(i8)]
enum Strict {
    Minus = -1,
    Zero,
    Seven = 7,
}

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
#[fidl(flexible)]
#[repr(u32)]
enum Flexible {
    One = 1,
    #[fidl(unknown)]
    Unknown(u32),
}

#[derive(Debug, PartialEq, Fidl)]
struct Enums {
    strict: Vec<Strict>,
    flexible: Flexible,
}

#[test]
fn an_unknown_value_of_a_strict_enum_is_refused_and_of_a_flexible_one_is_kept() {
    let value = Enums { strict: vec![Strict::Minus, Strict::Zero, Strict::Seven], flexible: Flexible::One };
    assert_eq!(there_and_back(&value), value);
    let value = Enums { strict: vec![], flexible: Flexible::Unknown(0xffff_ffff) };
    assert_eq!(there_and_back(&value), value);

    let mut bytes = to_vec(&Enums { strict: vec![Strict::Minus, Strict::Seven], flexible: Flexible::One }).unwrap();
    bytes[25] = 8;
    let error = refused::<Enums>(&bytes);
    assert_eq!((error.code(), error.at(), error.path().as_str()), (Code::StrictEnumUnknownValue, 25, "strict[1]"));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Fidl)]
#[fidl(bits, strict, mask = Access::all().bits())]
struct Access(u16);

bitflags! {
    impl Access: u16 {
        const READ = 1;
        const WRITE = 4;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Fidl)]
#[fidl(bits, flexible)]
struct Any {
    bits: u8,
}

#[derive(Debug, PartialEq, Fidl)]
struct Bits {
    strict: Access,
    flexible: Vec<Any>,
}

#[test]
fn unknown_bits_of_a_strict_type_are_refused_and_of_a_flexible_one_are_kept() {
    let value = Bits { strict: Access::READ | Access::WRITE, flexible: vec![Any { bits: 0xff }, Any { bits: 0 }] };
    assert_eq!(there_and_back(&value), value);
    for unknown in [2, 0x8000] {
        let mut bytes = to_vec(&value).unwrap();
        bytes[..2].copy_from_slice(&(5_u16 | unknown).to_le_bytes());
        let error = refused::<Bits>(&bytes);
        assert_eq!((error.code(), error.at(), error.path().as_str()), (Code::StrictBitsUnknownBit, 0, "strict"));
        let wrong = Bits { strict: Access(unknown), flexible: vec![] };
        assert_eq!(to_vec(&wrong).unwrap_err().code(), Code::StrictBitsUnknownBit);
    }
}

#[test]
fn floats_keep_each_bit() {
    let signalling = f32::from_bits(0x7fa0_0001);
    let floats = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, signalling, f32::MIN_POSITIVE / 2.0, 1.5];
    let back = there_and_back(&floats.to_vec());
    assert!(back.iter().map(|float| float.to_bits()).eq(floats.map(f32::to_bits)));
    for bits in
        [0, 1 << 63, f64::NAN.to_bits(), 0x7ff4_0000_0000_0001, 0xfff8_0000_0000_0000, f64::INFINITY.to_bits(), 1]
    {
        assert_eq!(there_and_back(&f64::from_bits(bits)).to_bits(), bits);
        assert_eq!(to_vec(&f64::from_bits(bits)).unwrap(), bits.to_le_bytes());
    }
}

#[test]
fn numbers_are_little_endian_with_their_natural_alignment() {
    #[derive(Debug, Fidl)]
    struct All {
        a: i8,
        b: i16,
        c: i32,
        d: i64,
        e: u8,
        f: f32,
        g: bool,
        h: u64,
    }
    let all = All { a: -1, b: -2, c: -3, d: -4, e: 5, f: 1.0, g: true, h: 6 };
    let bytes = to_vec(&all).unwrap();
    let expected = [
        &[0xff, 0, 0xfe, 0xff, 0xfd, 0xff, 0xff, 0xff][..],
        &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[5, 0, 0, 0, 0, 0, 0x80, 0x3f],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(bytes, expected.concat());
    let back: All = decode(&bytes, []).unwrap();
    assert_eq!((back.a, back.b, back.c, back.d, back.e, back.f, back.g, back.h), (-1, -2, -3, -4, 5, 1.0, true, 6));
    for padding in [1, 17, 19, 25, 31] {
        let mut wrong = bytes.clone();
        wrong[padding] = 1;
        let error = refused::<All>(&wrong);
        assert_eq!((error.code(), error.at()), (Code::InvalidPaddingByte, padding));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
#[repr(C)]
struct Point {
    x: i32,
    y: i32,
}

/// The memory has padding, so the elements are copied one by one.
#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
#[repr(C)]
struct Padded {
    a: u8,
    b: u32,
}

#[derive(Debug, PartialEq, Fidl)]
struct Shapes {
    points: Vec<Point>,
    padded: Vec<Padded>,
    grid: [[u16; 3]; 2],
}

#[test]
fn a_vector_of_plain_structs_is_a_part_of_the_callers_memory() {
    let points: Vec<Point> = (0..64).map(|x| Point { x, y: -x }).collect();
    let padded: Vec<Padded> = (0..64).map(|b| Padded { a: b as u8, b }).collect();
    let value = Shapes { points, padded, grid: [[1, 2, 3], [4, 5, 6]] };
    assert_eq!(there_and_back(&value), value);
    let mut encoder = Encoder::new();
    let encoded = encoder.encode(&value).unwrap();
    let [_, second, _] = encoded.parts() else { panic!("{encoded:?}") };
    assert_eq!((second.as_ptr(), second.len()), (value.points.as_ptr().cast(), 512));
}

#[test]
fn the_body_of_a_vector_is_not_copied_from_the_threshold_on() {
    #[derive(Fidl)]
    struct Two<'a> {
        text: &'a str,
        bytes: &'a [u8],
        more: Cow<'a, [u64]>,
    }
    let (text, bytes, more) = ("t".repeat(515), vec![7; 513], vec![9; 63]);
    let value = Two { text: &text, bytes: &bytes, more: Cow::Borrowed(&more) };
    let mut encoder = Encoder::gathering(Gather { parts: 16, threshold: 512 });
    let encoded = encoder.encode(&value).unwrap();
    let [own, first, tail, second, rest] = encoded.parts() else { panic!("{encoded:?}") };
    assert_eq!((own.len(), first.len(), tail.len(), second.len(), rest.len()), (48, 512, 8, 512, 8 + 504));
    assert_eq!((first.as_ptr(), second.as_ptr()), (text.as_ptr(), bytes.as_ptr()));
    assert_eq!((&tail[..], &rest[..8]), (&b"ttt\0\0\0\0\0"[..], &[7, 0, 0, 0, 0, 0, 0, 0][..]));
    let bytes = encoded.to_vec();
    let back: Two<'_> = decode(&bytes, []).unwrap();
    assert_eq!((back.text, back.bytes, &back.more[..]), (value.text, value.bytes, &more[..]));
}

impl<'m: 'a, 'a> From<Elements<'m, u64>> for Longs<'a> {
    fn from(elements: Elements<'m, u64>) -> Self {
        Self { longs: elements }
    }
}

#[derive(Debug, Fidl)]
struct Longs<'a> {
    longs: Elements<'a, u64>,
}

#[derive(Debug, Fidl)]
struct View<'m> {
    name: &'m str,
    bytes: Option<&'m [u8]>,
    points: Elements<'m, Point>,
}

#[test]
fn a_view_reads_from_the_message_where_it_lies() {
    #[derive(Fidl)]
    struct Owned {
        name: String,
        bytes: Option<Vec<u8>>,
        points: Vec<Point>,
    }
    let points: Vec<Point> = (0..5).map(|x| Point { x, y: 2 * x }).collect();
    let message = to_vec(&Owned { name: "shape".into(), bytes: Some(vec![1, 2, 3]), points: points.clone() }).unwrap();
    // At no offset is the message aligned for its elements by chance.
    for shift in 0..8 {
        let shifted = [&vec![0; shift][..], &message].concat();
        let view: View<'_> = decode(&shifted[shift..], []).unwrap();
        assert_eq!((view.name, view.bytes), ("shape", Some(&[1, 2, 3][..])));
        assert!(shifted.as_ptr_range().contains(&view.name.as_ptr()));
        assert!(shifted.as_ptr_range().contains(&view.points.as_bytes().as_ptr()));
        assert_eq!((view.points.len(), view.points.get(4), view.points.get(5)), (5, Some(points[4]), None));
        assert_eq!(view.points.get(usize::MAX), None);
        assert!(view.points.iter().eq(points.iter().copied()));
        assert_eq!(to_vec(&view).unwrap(), message);
    }
    let longs = to_vec(&vec![3_u64; 2]).unwrap();
    assert_eq!(decode::<Longs<'_>>(&longs, []).unwrap().longs.iter().sum::<u64>(), 6);
}

#[test]
fn a_view_reads_from_sealed_memory_where_it_lies_and_from_no_other_memory_of_the_peer() {
    #[derive(Fidl)]
    struct Owned {
        name: String,
        bytes: Option<Vec<u8>>,
        points: Vec<Point>,
    }
    let points: Vec<Point> = (0..20_000).map(|x| Point { x, y: -x }).collect();
    let message = to_vec(&Owned { name: "shape".into(), bytes: None, points }).unwrap();
    let (near, far) = strait::Channel::pair().unwrap();

    let mut room = near.reserve_sealed(message.len()).unwrap();
    room.bytes().copy_from_slice(&message);
    room.commit(strait::Deadline::NEVER).unwrap();
    let received = far.recv_in_place(strait::Deadline::NEVER).unwrap();
    let view: View<'_> = decode(received.sealed().expect("a sealed message"), []).unwrap();
    let shared = received.as_ptr() as usize..received.as_ptr() as usize + message.len();
    assert!(shared.contains(&(view.points.as_bytes().as_ptr() as usize)));
    assert!(view.points.iter().map(|point| (point.x, point.y)).eq((0..20_000).map(|x| (x, -x))));
    drop(received);

    // The peer can still change the message, so the view gives no bytes for decoding.
    near.send(&message).unwrap();
    assert!(far.recv_in_place(strait::Deadline::NEVER).unwrap().sealed().is_none());
    // A message received whole is private memory.
    near.send(&message).unwrap();
    let received = far.recv().unwrap();
    let view: View<'_> = decode(received.bytes(), []).unwrap();
    assert!(received.bytes().as_ptr_range().contains(&view.points.as_bytes().as_ptr()));
}

#[derive(Debug, Default, Fidl)]
#[fidl(table)]
struct Settings {
    #[fidl(1)]
    volume: Option<u8>,
    #[fidl(4, max = 8)]
    name: Option<String>,
    #[fidl(3)]
    nested: Option<Box<Settings>>,
}

#[derive(Debug, Default, Fidl)]
#[fidl(table)]
struct Newer {
    #[fidl(2)]
    other: Option<u64>,
    #[fidl(4)]
    name: Option<String>,
    #[fidl(64)]
    last: Option<bool>,
}

#[test]
fn a_table_grows_in_both_directions() {
    let newer = Newer { other: Some(1), name: Some("ab".into()), last: Some(true) };
    let old: Settings = decode(&to_vec(&newer).unwrap(), []).unwrap();
    assert_eq!((old.volume, old.name.as_deref()), (None, Some("ab")));

    let nested = Settings { volume: Some(3), ..Default::default() };
    let old = Settings { volume: Some(7), name: Some("xyz".into()), nested: Some(Box::new(nested)) };
    assert_eq!(there_and_back(&old).nested.unwrap().volume, Some(3));
    let newer: Newer = decode(&to_vec(&old).unwrap(), []).unwrap();
    assert_eq!((newer.other, newer.name.as_deref(), newer.last), (None, Some("xyz"), None));

    let long = Settings { name: Some("123456789".into()), ..Default::default() };
    let error = to_vec(&long).unwrap_err();
    assert_eq!((error.code(), error.path().as_str()), (Code::StringTooLong, "name"));
}

#[test]
fn a_table_with_invalid_words_is_refused() {
    assert_eq!(refused::<Settings>(&words(&[0, 5])).code(), Code::InvalidPresenceIndicator);
    assert_eq!(refused::<Settings>(&words(&[65, PRESENT])).code(), Code::CountExceedsLimit);
    assert_eq!(refused::<Settings>(&words(&[1, 0, 0])).code(), Code::NonNullableTypeWithNullValue);
    // The field `volume` has a single byte, so the value is inside the envelope, followed by zeros.
    assert_eq!(refused::<Settings>(&words(&[1, PRESENT, 0x0001_0000_0000_0103])).code(), Code::InvalidPaddingByte);
    assert_eq!(refused::<Settings>(&words(&[1, PRESENT, 8, 3])).code(), Code::InvalidInlineBitInEnvelope);
    assert_eq!(refused::<Settings>(&words(&[1, PRESENT, 4, 3])).code(), Code::InvalidNumBytesInEnvelope);
    // `name` has 24 bytes.
    let name = |bytes| words(&[4, PRESENT, 0, 0, 0, bytes, 2, PRESENT, 0x6261]);
    assert!(decode::<Settings>(&name(24), []).is_ok());
    assert_eq!(refused::<Settings>(&name(16)).code(), Code::InvalidNumBytesInEnvelope);
    assert_eq!(refused::<Settings>(&name(24 | 1 << 48)).code(), Code::InvalidInlineBitInEnvelope);
    // An unknown field.
    let unknown = |envelope| words(&[2, PRESENT, 0, envelope, 7]);
    assert!(decode::<Settings>(&unknown(8), []).is_ok());
    assert_eq!(refused::<Settings>(&unknown(16)).code(), Code::EnvelopeBytesExceedMessageLength);
    assert_eq!(refused::<Settings>(&unknown(0xffff_fff8)).code(), Code::EnvelopeBytesExceedMessageLength);
    assert_eq!(refused::<Settings>(&unknown(8 | 1 << 32)).code(), Code::EnvelopeHandlesExceedMessageLength);
    assert_eq!(refused::<Settings>(&unknown(8 | 2 << 48)).code(), Code::InvalidInlineMarkerInEnvelope);
}

#[derive(Debug, PartialEq, Fidl)]
#[fidl(union, flexible)]
enum Event {
    #[fidl(1)]
    Key(u32),
    #[fidl(9, max = 3)]
    Text(String),
    #[fidl(unknown)]
    Other(u64),
}

#[test]
fn a_union_without_a_field_is_refused() {
    assert_eq!(refused::<Event>(&words(&[0, 0])).code(), Code::UnionFieldNotSet);
    assert_eq!(refused::<Event>(&words(&[1, 0])).code(), Code::UnionFieldNotSet);
    assert_eq!(refused::<Option<Event>>(&words(&[0, 1 << 48])).code(), Code::UnionFieldNotSet);
    assert_eq!(refused::<Event>(&words(&[5, 2 << 48])).code(), Code::InvalidInlineMarkerInEnvelope);
    assert_eq!(decode::<Option<Event>>(&words(&[0, 0]), []).unwrap(), None);
    assert_eq!(decode::<Event>(&words(&[5, 1 << 48]), []).unwrap(), Event::Other(5));
    assert_eq!(there_and_back(&Some(Event::Key(7))), Some(Event::Key(7)));
    let error = to_vec(&Event::Text("four".into())).unwrap_err();
    assert_eq!((error.code(), error.path().as_str()), (Code::StringTooLong, "Text"));
}

#[derive(Debug, Fidl)]
struct Chain {
    next: Option<Box<Chain>>,
    end: Vec<u8>,
}

#[test]
fn each_pointer_is_a_level_and_there_are_32() {
    let chain = |links| {
        let end = Chain { next: None, end: vec![] };
        (0..links).fold(end, |chain, _| Chain { next: Some(Box::new(chain)), end: vec![] })
    };
    // The vector of the last link is one level deeper than the link.
    let links = MAX_DEPTH - 1;
    let bytes = to_vec(&chain(links)).unwrap();
    assert!(decode::<Chain>(&bytes, []).is_ok());
    let error = to_vec(&chain(links + 1)).unwrap_err();
    assert_eq!(error.code(), Code::ExceededMaxOutOfLineDepth);
    assert_eq!(error.path(), ["next"; MAX_DEPTH as usize].join(".") + ".end");
    // Adds a link to the chain by hand: the words of a link, and then the previous bytes.
    let deeper = [words(&[PRESENT, 0, PRESENT]), bytes].concat();
    assert_eq!(refused::<Chain>(&deeper).code(), Code::ExceededMaxOutOfLineDepth);
}

#[test]
fn a_claimed_length_takes_no_memory() {
    // Four billion elements of 24 bytes each, and no bytes.
    assert_eq!(refused::<Vec<Chain>>(&words(&[u64::from(u32::MAX), PRESENT])).code(), Code::TooFewBytes);
    assert_eq!(refused::<Vec<u64>>(&words(&[u64::from(u32::MAX), PRESENT, 1])).code(), Code::TooFewBytes);
}

#[derive(Debug, PartialEq, Fidl)]
struct Pair<T, U = u8> {
    first: T,
    second: U,
}

#[derive(Debug, PartialEq, Fidl)]
struct Tuple(u8, Pair<u32>, #[fidl(max = 1)] Vec<u8>);

#[derive(Debug, PartialEq, Fidl)]
struct Unit;

#[test]
fn generic_structs_and_tuples_have_an_encoding() {
    let pair = Pair { first: vec![1_u16, 2], second: Some(Pair { first: 1_u8, second: Unit }) };
    assert_eq!(there_and_back(&pair), pair);
    let tuple = Tuple(1, Pair { first: 2, second: 3 }, vec![4]);
    assert_eq!(there_and_back(&tuple), tuple);
    assert_eq!(to_vec(&Tuple(1, Pair { first: 2, second: 3 }, vec![4, 5])).unwrap_err().path(), "2");
    assert_eq!(refused::<Unit>(&[1, 0, 0, 0, 0, 0, 0, 0]).code(), Code::InvalidEmptyStruct);
}

#[test]
fn errors_name_the_byte_behind_borrowed_parts_too() {
    #[derive(Fidl)]
    #[fidl(encode_only)]
    struct Late<'a> {
        large: &'a [u32],
        #[fidl(max(_, 1))]
        small: Vec<&'a str>,
    }
    let value = Late { large: &[1; 512], small: vec!["a", "bc"] };
    let errors =
        [Gather::LINEAR, Gather::default()].map(|gather| Encoder::gathering(gather).encode(&value).unwrap_err());
    assert_eq!(errors[0], errors[1]);
    assert_eq!((errors[0].at(), errors[0].path().as_str()), (32 + 2048 + 16, "small[1]"));
}
