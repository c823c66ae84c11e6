//! The cases of the conformance suite, in both directions, and mutations of them.

mod common;

use std::fmt::Debug;
use std::io::IoSlice;

use common::types::*;
use common::{Case, cases, descriptor, handles};
use strait_fidl::{Decode, Decoder, Encode, Encoder, Error, Gather, decode};

const PARTS: [usize; 7] = [1, 2, 3, 4, 5, 16, 64];
const THRESHOLDS: [usize; 8] = [0, 1, 8, 9, 16, 512, 513, usize::MAX];

fn all_gatherings() -> impl Iterator<Item = Gather> {
    PARTS.into_iter().flat_map(|parts| THRESHOLDS.map(|threshold| Gather { parts, threshold }))
}

/// Returns for each part whether the part lies in the memory of the value (has one address with both encoders), and the
/// length of the part.
fn shape(first: &[IoSlice<'_>], second: &[IoSlice<'_>]) -> Vec<(bool, usize)> {
    assert_eq!(first.len(), second.len());
    first.iter().zip(second).map(|(first, second)| (first.as_ptr() == second.as_ptr(), first.len())).collect()
}

/// Encodes a value in every way, and compares.
fn check_encoding<T: Encode>(value: &T, case: &Case) {
    for gather in all_gatherings() {
        let mut encoder = Encoder::gathering(gather);
        let encoded = encoder.encode(value).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(encoded.to_vec(), case.bytes, "{} {gather:?}", case.name);
        assert_eq!((encoded.len(), encoded.handle_count()), (case.bytes.len(), case.handles), "{}", case.name);
        assert!(encoded.parts().len() <= gather.parts, "{} {gather:?} {encoded:?}", case.name);
    }
    let (mut first, mut second) = (Encoder::gathering(Gather::FUCHSIA), Encoder::gathering(Gather::FUCHSIA));
    let (first, second) = (first.encode(value).unwrap(), second.encode(value).unwrap());
    assert_eq!(shape(first.parts(), second.parts()), case.parts, "{}", case.name);
}

fn check_success<T: Encode + for<'m> Decode<'m> + Debug>(case: &Case) {
    let value: T = decode(&case.bytes[..], handles(&case.ty, case.handles))
        .unwrap_or_else(|error| panic!("{}: {error}", case.name));
    if case.direction == "both" {
        check_encoding(&value, case);
    }
}

fn check_decode_failure<T: Encode + for<'m> Decode<'m> + Debug>(case: &Case) {
    match decode::<T>(&case.bytes, handles(&case.ty, case.handles)) {
        Ok(value) => panic!("{}: {value:?}", case.name),
        Err(error) => {
            assert_eq!(error.code().name(), case.error, "{}: {error}", case.name);
            assert!(error.at() <= case.bytes.len(), "{}: {error}", case.name);
        }
    }
}

/// Encodes the value of a case that only has an encoding, or none.
fn encode_case(case: &Case) -> Result<(), Error> {
    fn encode<T: Encode>(case: &Case, value: T) -> Result<(), Error> {
        let result = Encoder::new().encode(&value).map(drop);
        if result.is_ok() {
            check_encoding(&value, case);
        }
        for gather in all_gatherings() {
            let again = Encoder::gathering(gather).encode(&value).map(drop);
            assert_eq!(again.as_ref().map_err(Error::code), result.as_ref().map_err(Error::code));
        }
        result
    }
    let three = || vec![0x71, 0xc8, 0xea];
    match case.name.as_str() {
        "GoldenHandleBasicRightsStruct" => encode(case, GoldenHandleBasicRightsStruct { v: descriptor().into() }),
        "GoldenStringWithMaxSize2" => encode(case, GoldenStringWithMaxSize2 { s: "abc".into() }),
        "AbsentNonOptionalHandle" => {
            let value = SingleHandle { h: descriptor().into() };
            Encoder::new().encode(&value)?.take_handles()?;
            encode(case, value)
        }
        "HandlesBeforeAndAfterFailureAreClosed" => {
            let (trigger, ok) = ("abc".to_owned(), "ab".to_owned());
            let value = |failure_trigger1, failure_trigger2| AlternatingHandlesAndFailures {
                h1: descriptor().into(),
                failure_trigger1,
                h2: descriptor().into(),
                failure_trigger2,
                h3: descriptor().into(),
            };
            let later = encode(case, value(ok, trigger.clone())).unwrap_err();
            assert_eq!(later.path(), "failure_trigger2");
            encode(case, value(trigger.clone(), trigger))
        }
        "RecursiveOptionalStructExceedLimit" => {
            let mut value = RecursiveOptionalStruct { inner: None };
            for _ in 0..33 {
                value = RecursiveOptionalStruct { inner: Some(Box::new(value)) };
            }
            encode(case, value)
        }
        "TableFieldInlinedReservedDropped" => encode(case, TableFieldInlinedStruct { t: TableFieldInlined::default() }),
        "FlexibleUnionUnknownValue" => encode(case, TestFlexibleXUnionInStruct { xu: SampleXUnion::Unknown(0x4d2) }),
        "VectorExceedsLimit" => encode(case, VectorWithLimit { v: three() }),
        "VectorWithLimitInVectorExceedsLimit" => encode(case, VectorWithLimitInVector { v: vec![three()] }),
        "VectorWithLimitInArrayExceedsLimit" => {
            encode(case, VectorWithLimitInArray { a: [Some(vec![0x0b, 0x16]), Some(three())] })
        }
        "VectorWithLimitInTableExceedsLimit" => {
            encode(case, VectorWithLimitInTable { t: TableWithVectorWithLimit { v: Some(three()) } })
        }
        "VectorWithLimitInUnionExceedsLimit" => {
            encode(case, VectorWithLimitInUnion { u: UnionWithVectorWithLimit::V(three()) })
        }
        other => panic!("no value for the case {other}"),
    }
}

#[test]
fn all_cases_of_the_suite_pass_in_both_directions() {
    let cases = cases();
    assert_eq!(cases.len(), 98);
    for case in &cases {
        match case.direction.as_str() {
            "both" | "decode" => with_type!(case.ty.as_str(), check_success(case)),
            "no-decode" => with_type!(case.ty.as_str(), check_decode_failure(case)),
            "encode" => encode_case(case).unwrap_or_else(|error| panic!("{}: {error}", case.name)),
            "no-encode" => {
                let error = encode_case(case).expect_err(&case.name);
                assert_eq!(error.code().name(), case.error, "{}: {error}", case.name);
            }
            other => panic!("direction {other}"),
        }
    }
}

/// Returns the value of a case as text.
fn text<T: Encode + for<'m> Decode<'m> + Debug>(case: &Case) -> String {
    format!("{:?}", decode::<T>(&case.bytes, handles(&case.ty, case.handles)).unwrap())
}

#[test]
fn the_values_of_the_cases_are_those_that_their_names_say() {
    let mut shown = 0;
    let values = include_str!("values.tsv").lines().filter(|line| !line.starts_with('#'));
    let cases = cases();
    for (name, value) in values.map(|line| line.split_once('\t').unwrap()) {
        let case = cases.iter().find(|case| case.name == name && matches!(case.direction.as_str(), "both" | "decode"));
        let case = case.unwrap_or_else(|| panic!("no case {name}"));
        assert_eq!(with_type!(case.ty.as_str(), text(case)), value, "{name}");
        shown += 1;
    }
    assert_eq!(shown, 51);
    let bytes = |name| &cases.iter().find(|case| case.name == name).unwrap().bytes;
    let large: VectorWrapper = decode(bytes("LargeVector8ByteAligned"), []).unwrap();
    assert_eq!(large.v, [1; 512]);
    let fifteen: VectorOfByteVector = decode(bytes("ByteVectors15"), []).unwrap();
    assert!(fifteen.v.iter().map(Vec::as_slice).eq((1..=15).map(|byte| [byte; 512]).collect::<Vec<_>>()));
    let mut nested: RecursiveOptionalStruct = decode(bytes("RecursiveOptionalStructUnderLimit"), []).unwrap();
    let mut depth = 0;
    while let Some(inner) = nested.inner {
        nested = *inner;
        depth += 1;
    }
    assert_eq!(depth, 32);
}

/// Changes each byte of a case in five ways. Checks that the decoder accepts only bytes that encoding the value gives
/// again.
fn check_mutations<T: Encode + for<'m> Decode<'m> + Debug>(case: &Case) -> (usize, usize) {
    let (mut accepted, mut refused) = (0, 0);
    for at in 0..case.bytes.len() {
        for flip in [0x01, 0x80, 0xff, case.bytes[at], !case.bytes[at]] {
            let mut bytes = case.bytes.clone();
            bytes[at] ^= flip;
            match Decoder::new(&bytes, handles(&case.ty, case.handles)).decode_counting::<T>() {
                // Skipped bytes are not part of the value, and not encoded again.
                Ok((_, skipped)) if skipped > 0 => {}
                Ok((value, _)) => {
                    accepted += 1;
                    let mut encoder = Encoder::new();
                    let encoded = encoder.encode(&value);
                    let encoded = encoded.unwrap_or_else(|error| panic!("{} {at} {flip}: {error}", case.name));
                    assert_eq!(encoded.to_vec(), bytes, "{} {at} {flip} {value:?}", case.name);
                    assert_eq!(encoded.handle_count(), case.handles, "{} {at} {flip}", case.name);
                }
                Err(error) => {
                    refused += 1;
                    assert!(flip != 0, "{} {at}: {error}", case.name);
                }
            }
        }
    }
    (accepted, refused)
}

#[test]
fn a_mutated_message_is_accepted_only_if_it_is_an_encoding() {
    let (mut accepted, mut refused) = (0, 0);
    for case in cases().iter().filter(|case| case.direction == "both" || case.direction == "decode") {
        let (more_accepted, more_refused) = with_type!(case.ty.as_str(), check_mutations(case));
        accepted += more_accepted;
        refused += more_refused;
    }
    assert!(accepted > 1000 && refused > 5000, "{accepted} {refused}");
}

/// Cuts a message off, and extends a message.
fn check_lengths<T: Encode + for<'m> Decode<'m> + Debug>(case: &Case) {
    for len in (0..case.bytes.len()).filter(|len| case.bytes.len() < 1024 || len % 61 == 0) {
        let cut = &case.bytes[..len];
        assert!(decode::<T>(cut, handles(&case.ty, case.handles)).is_err(), "{} {len}", case.name);
    }
    for more in [1, 8] {
        let longer = [&case.bytes[..], &[0; 8][..more]].concat();
        assert!(decode::<T>(&longer, handles(&case.ty, case.handles)).is_err(), "{} {more}", case.name);
    }
    let code = |count| decode::<T>(&case.bytes, handles(&case.ty, count)).unwrap_err().code().name();
    assert_eq!(code(case.handles + 1), "TOO_MANY_HANDLES_IN_MESSAGE", "{}", case.name);
    if case.handles > 0 {
        let known = ["TOO_FEW_HANDLES", "ENVELOPE_HANDLES_EXCEED_MESSAGE_LENGTH"];
        assert!(known.contains(&code(case.handles - 1)), "{}", case.name);
    }
}

#[test]
fn a_message_of_another_length_is_refused() {
    for case in cases().iter().filter(|case| case.direction == "both" || case.direction == "decode") {
        with_type!(case.ty.as_str(), check_lengths(case));
    }
}
