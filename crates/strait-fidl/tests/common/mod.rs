//! The cases of the conformance suite, and what tests of messages need.

#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod types;

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use strait::Channel;
use strait_fidl::RawHandle;

/// A case of the conformance suite.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) direction: String,
    pub(crate) name: String,
    pub(crate) ty: String,
    pub(crate) handles: usize,
    pub(crate) error: String,
    pub(crate) parts: Vec<(bool, usize)>,
    pub(crate) bytes: Vec<u8>,
}

/// Reads words of eight bytes in hexadecimal digits; a word can be followed by `*` and a number of repetitions.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split(' ').filter(|&word| word != "-") {
        let (digits, times) = word.split_once('*').unwrap_or((word, "1"));
        let digit = |index| u8::from_str_radix(&digits[index..index + 2], 16).unwrap();
        let word: Vec<u8> = (0..digits.len()).step_by(2).map(digit).collect();
        bytes.extend(word.repeat(times.parse().unwrap()));
    }
    bytes
}

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    let lines = include_str!("../cases.tsv").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let columns: Vec<&str> = line.split('\t').collect();
            let [direction, name, ty, handles, error, parts, words] = columns[..] else { panic!("{line}") };
            let part = |text: &str| (text.starts_with('u'), text[1..].parse().unwrap());
            Case {
                direction: direction.into(),
                name: name.into(),
                ty: ty.into(),
                handles: handles.parse().unwrap(),
                error: error.into(),
                parts: parts.split(' ').filter(|&part| part != "-").map(part).collect(),
                bytes: bytes(words),
            }
        })
        .collect()
}

/// Returns a new descriptor.
pub(crate) fn descriptor() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// Returns handles of the kind wanted by the type.
pub(crate) fn handles(ty: &str, count: usize) -> Vec<RawHandle> {
    let handle = |_| match ty {
        "TableFieldInlinedHandleStruct" => Channel::pair().unwrap().0.into(),
        _ => descriptor().into(),
    };
    (0..count).map(handle).collect()
}
