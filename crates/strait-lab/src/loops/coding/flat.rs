//! No format: the bytes are copied, with the length of each vector in front of it.

use super::{Codec, Flat, both, values};
use crate::shape::{Sample, Step};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

fn lengths_and_bytes(buffer: &mut Vec<u8>, vectors: &[Vec<u8>]) -> Result<()> {
    buffer.clear();
    for vector in vectors {
        buffer.extend_from_slice(&(vector.len() as u64).to_le_bytes());
        buffer.extend_from_slice(vector);
    }
    Ok(())
}

fn split(mut bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut vectors = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let taken = rest.split_at_checked(u64::from_le_bytes(*len) as usize);
        let (vector, rest) = taken.ok_or_else(|| Trouble::new("a vector is longer than the bytes"))?;
        vectors.push(vector.to_vec());
        bytes = rest;
    }
    Ok(vectors)
}

impl Codec for Flat {
    fn run(work: &Work, step: Step, value: Sample) -> Result<Report> {
        match value {
            Sample::Bytes => all_of(work, step, vec![values::bytes(work.size)]),
            Sample::Vectors => all_of(work, step, values::vectors(work.size)),
            // The value has no memory of its own to allocate.
            Sample::Fields if work.size == 256 => copied::<256>(work, step),
            Sample::Fields => copied::<4096>(work, step),
        }
    }
}

/// Measures vectors of bytes.
fn all_of(work: &Work, step: Step, vectors: Vec<Vec<u8>>) -> Result<Report> {
    let encode = |buffer: &mut Vec<u8>, vectors: &Vec<Vec<u8>>| lengths_and_bytes(buffer, vectors);
    both(work, step, &vectors, Vec::new(), encode, |bytes: &Vec<u8>| split(bytes))
}

/// Measures `N` bytes without memory of their own.
fn copied<const N: usize>(work: &Work, step: Step) -> Result<Report> {
    let fields: [u8; N] = array(&values::bytes(N));
    let copy = |buffer: &mut Vec<u8>, value: &[u8; N]| {
        buffer.clear();
        buffer.extend_from_slice(value);
        Ok(())
    };
    both(work, step, &fields, Vec::new(), copy, |bytes| Ok(array::<N>(bytes)))
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}
