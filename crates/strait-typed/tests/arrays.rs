//! Arrays as fields, in each codec, and the bytes of arrays and handles in MessagePack.

mod common;

use common::LIMIT;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strait::region::{Region, RegionOptions};
use strait::{Channel, Outgoing};
use strait_typed::codec::{Codec, DecodeOwned, Encode, Json, MsgPack};
use strait_typed::{Array, ArrayError, End, Fd, Order, Postcard, RecvError, Typed};

#[derive(Serialize, Deserialize)]
struct Frame {
    name: String,
    pixels: Array,
    more: Vec<Array>,
}

fn round_trip<C: Encode<Frame> + DecodeOwned<Frame> + Codec<()>>() {
    let (near, far) = Typed::<Frame, (), C>::pair().unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    let region = Region::sealed(&bytes).unwrap();
    let frame = Frame {
        name: "frame".into(),
        pixels: Array::from_slice(&[2, 2], &[1.5, -1.0, f64::INFINITY, 0.0]).unwrap(),
        more: vec![
            Array::in_region("|u1", &[16, 8], Order::Fortran, region, 128).unwrap(),
            Array::new("<M8[ns]", &[0, 5], Order::C, Vec::new()).unwrap(),
            Array::from_slice(&[], &[7_i16]).unwrap(),
        ],
    };
    near.send_by(&frame, LIMIT).unwrap();
    assert!(matches!(frame.more[0].to_vec::<u8>(), Err(ArrayError::Sent)));
    let Frame { name, pixels, mut more } = far.recv_by(LIMIT).unwrap();
    assert_eq!((name.as_str(), pixels.dtype(), pixels.shape()), ("frame", "<f8", &[2, 2][..]));
    assert_eq!(pixels.to_vec::<f64>().unwrap(), [1.5, -1.0, f64::INFINITY, 0.0]);
    assert!(matches!(pixels.to_vec::<i64>(), Err(ArrayError::OtherDtype(dtype)) if dtype == "<f8"));
    assert_eq!((more[1].dtype(), more[1].shape()), ("<M8[ns]", &[0, 5][..]));
    assert_eq!(more[2].to_vec::<i16>().unwrap(), [7]);
    let large = more.remove(0);
    let rows: Vec<u8> = (0..16).flat_map(|row| (0..8).map(move |column| 128 + row + 16 * column)).collect();
    assert_eq!((large.order(), large.to_vec::<u8>().unwrap()), (Order::Fortran, rows));
    let (region, offset) = large.into_region().unwrap();
    assert_eq!((region.len(), offset), (256, 128));
}

#[test]
fn arrays_round_trip_in_each_codec() {
    round_trip::<MsgPack>();
    round_trip::<Postcard>();
    round_trip::<Json>();
}

/// NumPy sends `numpy.asfortranarray(numpy.arange(12).reshape(2, 3, 2))` in the order of Fortran.
#[test]
fn elements_are_in_the_order_of_c_whatever_their_order_in_memory() {
    let columns = [0_u8, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11];
    let array = Array::new("|u1", &[2, 3, 2], Order::Fortran, columns.to_vec()).unwrap();
    assert_eq!(array.to_vec::<u8>().unwrap(), (0..12).collect::<Vec<u8>>());
    assert_eq!(array.into_bytes().unwrap(), columns);
    for shape in [&[12][..], &[1, 12, 1], &[12, 1]] {
        let array = Array::new("|u1", shape, Order::Fortran, columns.to_vec()).unwrap();
        assert_eq!(array.to_vec::<u8>().unwrap(), columns, "{shape:?}");
    }
    let empty = Array::new("<f8", &[0, u64::MAX, 2], Order::Fortran, Vec::new());
    assert!(empty.is_err() || empty.unwrap().to_vec::<f64>().unwrap().is_empty());
    assert!(Array::new("<f8", &[3, 0], Order::Fortran, Vec::new()).unwrap().to_vec::<f64>().unwrap().is_empty());
}

/// Receives what an end with values of type `T` in MessagePack sends, as bytes.
fn bytes_of<T: Serialize>(value: &T) -> Vec<u8> {
    let (one, raw) = Channel::pair().unwrap();
    Typed::<T, (), MsgPack>::over(one).send(value).unwrap();
    raw.recv_by(LIMIT).unwrap();
    raw.recv_by(LIMIT).unwrap().bytes().to_vec()
}

#[test]
fn the_bytes_are_those_that_the_page_lists() {
    let array = Array::from_slice(&[2], &[1.0, 2.0]).unwrap();
    let mut expected = b"\xC7\x1B\x02\x94\xA3<f8\x91\x02\xA1C\xC4\x10".to_vec();
    expected.extend([1.0_f64.to_le_bytes(), 2.0_f64.to_le_bytes()].concat());
    assert_eq!(bytes_of(&array), expected);

    let fd = || Fd::from(std::fs::File::open("/dev/null").unwrap());
    assert_eq!(bytes_of(&fd()), b"\xD4\x01\x00");
    let list = bytes_of(&(0..64).map(|_| fd()).collect::<Vec<_>>());
    assert!(list.ends_with(b"\xD4\x01\x3F") && list.len() == 3 + 64 * 3);

    let in_region = Array::in_region("|u1", &[3], Order::C, Region::sealed(b"12345").unwrap(), 1).unwrap();
    assert_eq!(bytes_of(&in_region), b"\xC7\x0C\x02\x94\xA3|u1\x91\x03\xA1C\x92\x00\x01");

    // An end that has sent its first message, and received nothing.
    let (end, _other) = Typed::<u8, u8, MsgPack>::pair().unwrap();
    end.send(&1).unwrap();
    assert_eq!(bytes_of(&End::from(end)), b"\xD5\x01\x00\x01");
}

/// Receives these bytes, with a handle of a region, as a value.
fn receive<T: DeserializeOwned + Send + 'static>(bytes: &[u8], region: Option<Region>) -> Result<T, RecvError> {
    let (raw, other) = Channel::pair().unwrap();
    let handles: Vec<_> = region.into_iter().map(strait::Handle::from).collect();
    raw.send_by(Outgoing::new(bytes).handles(handles), LIMIT).unwrap();
    Typed::<(), T, MsgPack>::over(other).recv_by(LIMIT)
}

fn ext(code: u8, payload: &[u8]) -> Vec<u8> {
    [&[0xC7, payload.len() as u8, code], payload].concat()
}

#[test]
fn arrays_and_handles_that_are_wrong_are_malformed() {
    let sealed = || Some(Region::sealed(&[7; 100]).unwrap());
    let open = || Some(RegionOptions::new().create(100).unwrap());
    let good = ext(2, b"\x94\xA3|u1\x91\x64\xA1C\x92\x00\x00");
    assert_eq!(receive::<Array>(&good, sealed()).unwrap().to_vec::<u8>().unwrap(), [7; 100]);
    // With the library of the sender's array, and a longer form of an integer.
    let good = ext(2, b"\x95\xA3|u1\x91\xCD\x00\x64\xA1C\x92\x00\x00\xA5torch");
    assert_eq!(receive::<Array>(&good, sealed()).unwrap().to_vec::<u8>().unwrap(), [7; 100]);
    let wrong: [(&[u8], Option<Region>); 17] = [
        (b"\x94\xA3|u1\x91\x64\xA1C\x92\x00\x00", open()),
        (b"\x94\xA3|u1\x91\x64\xA1C\x92\x00\x01", sealed()),
        (b"\x94\xA3|u1\x91\x65\xA1C\x92\x00\x00", sealed()),
        (b"\x94\xA3|u1\x91\x64\xA1C\x92\x01\x00", sealed()),
        (b"\x94\xA3|u1\x91\x64\xA1C\x92\x00\xCF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", sealed()),
        (b"\x94\xA3|u1\x91\xCF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xA1C\x92\x00\x00", sealed()),
        (b"\x94\xA3|u1\x91\x00\xA1C\x92\x00\x00", sealed()),
        (b"\x94\xA3|u1\x91\x03\xA1C\xC4\x02ab", None),
        (b"\x94\xA3|u1\x91\x01\xA1C\xC4\x02ab", None),
        (b"\x94\xA2|O\x91\x01\xA1C\xC4\x01a", None),
        (b"\x94\xA3|u1\x91\x01\xA1X\xC4\x01a", None),
        (b"\x93\xA3|u1\x91\x01\xA1C", None),
        (b"\x96\xA3|u1\x91\x01\xA1C\xC4\x01a\xA1t\xA1t", None),
        (b"\x94\xA3|u1\x91\x01\xA1C\xC4\x01a\xC0", None),
        (b"\x94\xA3|u1\x92\xCF\x40\x00\x00\x00\x00\x00\x00\x00\x04\xA1C\xC4\x01a", None),
        (b"\x01", None),
        (b"", None),
    ];
    for (payload, region) in wrong {
        let received = receive::<Array>(&ext(2, payload), region);
        assert!(matches!(received, Err(RecvError::Malformed(_))), "{payload:x?}: {received:?}");
    }
    let null = || std::fs::File::open("/dev/null").unwrap();
    for payload in
        [&b""[..], b"\x01", b"\xFF", b"\x00\x01", b"\x00\x04", b"\x00\x00\x00", b"\xCC", b"\xCE\x00\x00\x00\x00"]
    {
        let (raw, other) = Channel::pair().unwrap();
        raw.send_by(Outgoing::new(&ext(1, payload)).handles(vec![std::os::fd::OwnedFd::from(null()).into()]), LIMIT)
            .unwrap();
        let received = Typed::<(), Fd, MsgPack>::over(other).recv_by(LIMIT);
        assert!(matches!(received, Err(RecvError::Malformed(_))), "{payload:x?}: {received:?}");
    }
    // A handle that is a number, as in other codecs.
    assert!(matches!(receive::<strait_typed::Shared>(b"\x00", sealed()), Err(RecvError::Malformed(_))));
}

#[test]
fn arrays_that_cannot_be_are_refused() {
    assert!(matches!(Array::from_slice(&[3], &[1_u8]), Err(ArrayError::Shape)));
    assert!(matches!(Array::new("object", &[1], Order::C, vec![0]), Err(ArrayError::Dtype(_))));
    assert!(matches!(Array::new("|u1", &[1; 33], Order::C, vec![0]), Err(ArrayError::Shape)));
    let region = RegionOptions::new().create(100).unwrap();
    assert!(matches!(Array::in_region("|u1", &[1], Order::C, region, 0), Err(ArrayError::NotSealed)));
}
