//! Messages of `strait-fidl` with forged lengths, ordinals, envelopes, handles and text.

use std::fs::File;
use std::os::fd::OwnedFd;

use strait::Channel;
use strait_fidl::{Decode, Decoder, Elements, Encode, Encoder, Fidl, FidlHandle, Gather, Header, RawHandle, kind};

/// The greatest number of handles of a message.
const HANDLES: usize = 6;

#[derive(Fidl)]
#[repr(C)]
struct Point {
    x: i32,
    y: i32,
}

#[derive(Fidl)]
#[fidl(strict)]
#[repr(u16)]
enum Color {
    Red = 1,
    Blue = 0x102,
}

#[derive(Fidl)]
#[fidl(flexible)]
#[repr(i8)]
enum Mood {
    Good = 1,
    #[fidl(unknown)]
    Other(i8),
}

#[derive(Fidl)]
#[fidl(bits, strict, mask = 0x8001)]
struct Strict(u32);

#[derive(Fidl)]
#[fidl(bits, flexible)]
struct Loose(u8);

#[derive(Fidl)]
struct Empty;

#[derive(Fidl)]
#[fidl(table)]
struct Table {
    #[fidl(1)]
    color: Option<Color>,
    #[fidl(2)]
    nested: Option<Box<Table>>,
    #[fidl(4, max = 5)]
    name: Option<String>,
    #[fidl(5)]
    handle: Option<FidlHandle<kind::Fd>>,
    #[fidl(6)]
    value: Option<Box<Value>>,
}

#[derive(Fidl)]
#[fidl(union, flexible)]
enum Value {
    #[fidl(1)]
    Small(bool),
    #[fidl(2, max(3, 4))]
    Vectors(Vec<Vec<u16>>),
    #[fidl(3)]
    Handles(Vec<Option<FidlHandle>>),
    #[fidl(4)]
    Nested(Vec<Option<Value>>),
    #[fidl(5)]
    Empty(Empty),
    #[fidl(6)]
    Only(Only),
    #[fidl(unknown)]
    Unknown(u64),
}

#[derive(Fidl)]
#[fidl(union, strict)]
enum Only {
    #[fidl(7)]
    Text(String),
    #[fidl(9)]
    End(FidlHandle<kind::Channel>),
}

#[derive(Fidl)]
struct Chain {
    next: Option<Box<Chain>>,
    flags: Strict,
    loose: Vec<Loose>,
}

#[derive(Fidl)]
struct Message {
    flag: bool,
    mood: Mood,
    points: Vec<Point>,
    optional: Option<Vec<bool>>,
    array: [Option<FidlHandle>; 2],
    table: Table,
    value: Option<Value>,
    floats: [f32; 3],
    chain: Option<Chain>,
}

#[derive(Fidl)]
struct View<'m> {
    name: &'m str,
    bytes: Option<&'m [u8]>,
    points: Elements<'m, Point>,
}

/// Decodes a message. If it is accepted whole, encoding its value gives the message again.
fn check<'m, T: Decode<'m> + Encode>(bytes: &'m [u8], handles: Vec<RawHandle>) {
    let count = handles.len();
    let Ok((value, skipped)) = Decoder::new(bytes, handles).decode_counting::<T>() else { return };
    if skipped > 0 {
        return;
    }
    for gather in [Gather::LINEAR, Gather::FUCHSIA, Gather { parts: 64, threshold: 16 }] {
        let mut encoder = Encoder::gathering(gather);
        let encoded = encoder.encode(&value).expect("a decoded value has an encoding");
        assert!(encoded.to_vec() == bytes, "another encoding was accepted");
        assert_eq!(encoded.handle_count(), count);
    }
}

/// Runs an input: its first byte chooses the type, the second the number of handles and their kinds; the rest is the
/// message.
pub fn fidl(input: &[u8]) {
    let [chosen, handles, bytes @ ..] = input else { return };
    let handle = |index: usize| match handles >> (3 + index % 5) & 1 {
        0 => RawHandle::from(OwnedFd::from(File::open("/dev/null").expect("a descriptor"))),
        _ => RawHandle::from(Channel::pair().expect("memory").0),
    };
    let handles: Vec<RawHandle> = (0..usize::from(handles & 7).min(HANDLES)).map(handle).collect();
    match chosen % 8 {
        0..=2 => check::<Message>(bytes, handles),
        3 => check::<Table>(bytes, handles),
        4 => check::<Value>(bytes, handles),
        5 => check::<Chain>(bytes, handles),
        6 => check::<View<'_>>(bytes, handles),
        _ => {
            if let Ok((header, body)) = Header::split(bytes) {
                assert!(header.encode() == bytes[..Header::LEN], "another header was accepted");
                check::<Vec<Only>>(body, handles);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the inputs with which the corpus began: `cargo test -- --ignored the_first_inputs`.
    #[test]
    #[ignore = "writes to the corpus"]
    fn the_first_inputs() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/fidl");
        std::fs::create_dir_all(&folder).unwrap();
        let mut number = 0;
        let mut write = |chosen: u8, handles: u8, bytes: Vec<u8>| {
            number += 1;
            std::fs::write(folder.join(format!("first-{number:02}")), [&[chosen, handles][..], &bytes].concat())
                .unwrap();
        };
        fn bytes<T: Encode>(value: &T) -> Vec<u8> {
            Encoder::new().encode(value).unwrap().to_vec()
        }
        let fd = || FidlHandle::from(OwnedFd::from(File::open("/dev/null").unwrap()));
        let end = || Channel::pair().unwrap().0.into();
        let table = |depth: usize| {
            let empty = || Table { color: None, nested: None, name: None, handle: None, value: None };
            (0..depth).fold(empty(), |inner, _| Table {
                color: Some(Color::Blue),
                nested: Some(Box::new(inner)),
                name: Some("name".into()),
                ..empty()
            })
        };
        let chain = |links| {
            let link = |next| Chain { next, flags: Strict(0x8001), loose: vec![Loose(3), Loose(0xff)] };
            (0..links).fold(link(None), |chain, _| link(Some(Box::new(chain))))
        };
        let nested =
            Value::Nested(vec![None, Some(Value::Small(true)), Some(Value::Vectors(vec![vec![1, 2], vec![]]))]);
        let message = Message {
            flag: true,
            mood: Mood::Other(9),
            points: vec![Point { x: 1, y: 2 }, Point { x: -1, y: 0 }],
            optional: Some(vec![true, false]),
            array: [Some(FidlHandle::from(RawHandle::from(File::open("/dev/null").unwrap()))), None],
            table: table(2),
            value: Some(nested),
            floats: [1.0, f32::NAN, -0.0],
            chain: Some(chain(1)),
        };
        write(0, 1, bytes(&message));
        write(
            1,
            0,
            bytes(&Message {
                array: [None, None],
                table: table(0),
                value: None,
                optional: None,
                chain: None,
                ..message
            }),
        );
        write(3, 1, bytes(&Table { handle: Some(FidlHandle::from(File::open("/dev/null").unwrap())), ..table(3) }));
        write(3, 0, bytes(&Table { value: Some(Box::new(Value::Empty(Empty))), ..table(1) }));
        write(4, 3, bytes(&Value::Handles(vec![Some(fd()), None, Some(fd()), Some(fd())])));
        write(4, 1 | 1 << 3, bytes(&Value::Only(Only::End(end()))));
        write(4, 0, bytes(&Value::Only(Only::Text("text".into()))));
        write(5, 0, bytes(&chain(5)));
        write(5, 0, bytes(&chain(30)));
        let name = Some("name".to_owned());
        #[derive(Fidl)]
        struct Owned {
            name: Option<String>,
            bytes: Option<Vec<u8>>,
            points: Vec<Point>,
        }
        write(
            6,
            0,
            bytes(&Owned { name, bytes: Some(vec![7; 17]), points: vec![Point { x: 1, y: 2 }, Point { x: 3, y: 4 }] }),
        );
        let header = Header { txid: 1, flexible: true, ordinal: 77 };
        let only = vec![Only::Text("a".into()), Only::End(end())];
        write(7, 1 | 1 << 3, Encoder::new().message(header, &only).unwrap().to_vec());
    }
}
