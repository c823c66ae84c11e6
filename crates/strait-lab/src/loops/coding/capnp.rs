//! Cap'n Proto, by the crate `capnp` 0.27. Without its schema compiler there are no structs: a struct of `u8` fields
//! is measured as a list of equal length, with the bytes of the struct.

use capnp::message::{Builder, HeapAllocator, ReaderOptions};
use capnp::{data, data_list, primitive_list, serialize};

use super::{Codec, Named, both, values, wrong};
use crate::shape::{Sample, Step};
use crate::trouble::Result;
use crate::work::{Report, Work};

/// The crate `capnp`.
pub(crate) struct Capnp;

fn write(buffer: &mut Vec<u8>, message: &Builder<HeapAllocator>) -> Result<()> {
    buffer.clear();
    serialize::write_message(buffer, message).map_err(wrong)
}

impl Named for Capnp {
    const NAME: &'static str = "capnp";
    const TITLE: &'static str = "Cap'n Proto";
}

impl Codec for Capnp {
    fn run(work: &Work, step: Step, value: Sample) -> Result<Report> {
        let words = (2 * work.size / 8 + 64) as u32;
        let builder = move || Builder::new(HeapAllocator::new().first_segment_words(words));
        let bytes = values::bytes(work.size);
        match value {
            Sample::Bytes => {
                let encode = |buffer: &mut Vec<u8>, value: &Vec<u8>| {
                    let mut message = builder();
                    message.initn_root::<data::Builder<'_>>(value.len() as u32).copy_from_slice(value);
                    write(buffer, &message)
                };
                let decode = |bytes: &Vec<u8>| {
                    let message = serialize::read_message_from_flat_slice(&mut &bytes[..], ReaderOptions::new());
                    let message = message.map_err(wrong)?;
                    let root: data::Reader<'_> = message.get_root().map_err(wrong)?;
                    Ok(root.to_vec())
                };
                both(work, step, &bytes, Vec::new(), encode, decode)
            }
            Sample::Fields => {
                let encode = |buffer: &mut Vec<u8>, value: &Vec<u8>| {
                    let mut message = builder();
                    let mut root = message.initn_root::<primitive_list::Builder<'_, u8>>(value.len() as u32);
                    value.iter().enumerate().for_each(|(at, &byte)| root.set(at as u32, byte));
                    write(buffer, &message)
                };
                let decode = |bytes: &Vec<u8>| {
                    let message = serialize::read_message_from_flat_slice(&mut &bytes[..], ReaderOptions::new());
                    let message = message.map_err(wrong)?;
                    let root: primitive_list::Reader<'_, u8> = message.get_root().map_err(wrong)?;
                    Ok(root.iter().collect::<Vec<u8>>())
                };
                both(work, step, &bytes, Vec::new(), encode, decode)
            }
            Sample::Vectors => {
                let encode = |buffer: &mut Vec<u8>, value: &Vec<Vec<u8>>| {
                    let mut message = builder();
                    let mut root = message.initn_root::<data_list::Builder<'_>>(value.len() as u32);
                    value.iter().enumerate().for_each(|(at, vector)| root.set(at as u32, vector));
                    write(buffer, &message)
                };
                let decode = |bytes: &Vec<u8>| {
                    let message = serialize::read_message_from_flat_slice(&mut &bytes[..], ReaderOptions::new());
                    let message = message.map_err(wrong)?;
                    let root: data_list::Reader<'_> = message.get_root().map_err(wrong)?;
                    root.iter().map(|vector| vector.map(<[u8]>::to_vec).map_err(wrong)).collect::<Result<Vec<_>>>()
                };
                both(work, step, &values::vectors(work.size), Vec::new(), encode, decode)
            }
        }
    }
}
