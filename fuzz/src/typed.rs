//! Messages of `strait-typed` with forged lengths, variants, texts, and indexes, kinds and counts of handles.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;

use serde::{Deserialize, Serialize};
use strait::pipe::DataPipe;
use strait::region::Region;
use strait::{Channel, Handle, Options, Outgoing};
use strait_typed::codec::{DecodeOwned, Encode, Json, MsgPack};
use strait_typed::{End, Fd, Postcard, RawEnd, Reader, RecvError, Shared, Typed, Writer};

/// The greatest number of handles of a message.
const HANDLES: usize = 6;

/// A value with handles of each kind at many places.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Value {
    number: u64,
    files: Vec<Fd>,
    end: Option<End<u32, ()>>,
    raw: Option<RawEnd>,
    shared: Option<Shared>,
    pipe: Option<(Reader, Writer)>,
    parts: Vec<Part>,
    pairs: Vec<(u16, Option<Fd>)>,
    named: BTreeMap<u16, String>,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Part {
    Nothing,
    Text(String),
    Numbers { signed: i64, wide: u128, real: f64, letter: char },
    File(Fd),
    Ends(Vec<RawEnd>),
    Parts(Vec<Part>),
    Value(Box<Value>),
}

/// Returns the number of handles in a value.
fn handles_of(value: &Value) -> usize {
    value.files.len()
        + usize::from(value.end.is_some())
        + usize::from(value.raw.is_some())
        + usize::from(value.shared.is_some())
        + 2 * usize::from(value.pipe.is_some())
        + value.parts.iter().map(handles_of_part).sum::<usize>()
        + value.pairs.iter().filter(|(_, file)| file.is_some()).count()
}

fn handles_of_part(part: &Part) -> usize {
    match part {
        Part::Nothing | Part::Text(_) | Part::Numbers { .. } => 0,
        Part::File(_) => 1,
        Part::Ends(ends) => ends.len(),
        Part::Parts(parts) => parts.iter().map(handles_of_part).sum(),
        Part::Value(value) => handles_of(value),
    }
}

/// An end that expects values, and its peer, which sends it any bytes and handles.
struct Ends<C> {
    near: Typed<Value, Value, C>,
    far: Typed<Value, Value, C>,
}

impl<C: Encode<Value> + DecodeOwned<Value>> Ends<C> {
    fn over(options: &Options) -> Self {
        let (one, other) = options.pair().expect("memory");
        let ends = Self { near: Typed::over(one), far: Typed::over(other) };
        ends.pass(&Value::default());
        ends
    }

    /// Sends a value, and receives it at the other end.
    fn pass(&self, value: &Value) -> Value {
        self.near.try_send(value).expect("room for a value");
        self.far.try_recv().expect("the value")
    }

    /// Sends forged bytes with these handles. A value that is received has all the handles, and can be sent on. An
    /// error closes all handles. In both cases the channel goes on.
    fn forge(&self, bytes: &[u8], handles: impl FnOnce() -> Vec<Handle>) {
        let before = descriptors();
        let handles = handles();
        let sent = handles.len();
        self.near.channel().try_send(Outgoing::new(bytes).handles(handles)).expect("room for a message");
        match self.far.try_recv() {
            Ok(value) => {
                assert_eq!(handles_of(&value), sent, "a value has other handles than its message");
                assert_eq!(handles_of(&self.pass(&value)), sent, "a value lost a handle on its way");
            }
            Err(RecvError::Malformed(_)) => {}
            Err(error) => panic!("{error}"),
        }
        self.pass(&Value::default());
        assert_eq!(descriptors(), before, "descriptors are leaked");
    }
}

/// Returns the number of open descriptors of this process, for one input of [`COUNT_EVERY`]; `None` for all others.
fn descriptors() -> Option<usize> {
    let count = COUNT.with_borrow(|count| *count);
    count.is_multiple_of(COUNT_EVERY).then(|| std::fs::read_dir("/proc/self/fd").expect("procfs").count())
}

/// The number of inputs of which the descriptors of one are counted. A count takes longer than an input.
const COUNT_EVERY: u32 = 64;

/// The ends for each codec: whose messages are received into memory first, and whose messages are decoded where the
/// peer wrote them.
struct All {
    postcard: [Ends<Postcard>; 2],
    msgpack: [Ends<MsgPack>; 2],
    json: [Ends<Json>; 2],
}

thread_local! {
    static ALL: RefCell<Option<All>> = const { RefCell::new(None) };
    static COUNT: RefCell<u32> = const { RefCell::new(0) };
}

fn all() -> All {
    let (usual, in_place) = (Options::new(), Options::new().inline_max(0));
    All {
        postcard: [Ends::over(&usual), Ends::over(&in_place)],
        msgpack: [Ends::over(&usual), Ends::over(&in_place)],
        json: [Ends::over(&usual), Ends::over(&in_place)],
    }
}

fn handle(kind: u8) -> Handle {
    match kind % 8 {
        0..=2 => File::open("/dev/null").expect("a descriptor").into(),
        3 | 4 => Channel::pair().expect("memory").0.into(),
        5 => Region::new(1).expect("memory").into(),
        6 => DataPipe::pair(64).expect("memory").0.into(),
        _ => DataPipe::pair(64).expect("memory").1.into(),
    }
}

/// Runs an input: its first byte chooses the codec and where the message lies, the second the number of handles, and
/// the next three their kinds, four bits each; the rest is the message.
pub fn typed(input: &[u8]) {
    let [chosen, count, k0, k1, k2, bytes @ ..] = input else { return };
    let kinds = [k0 & 15, k0 >> 4, k1 & 15, k1 >> 4, k2 & 15, k2 >> 4];
    let handles = || kinds[..usize::from(*count).min(HANDLES)].iter().map(|kind| handle(*kind)).collect();
    COUNT.with_borrow_mut(|count| *count = count.wrapping_add(1));
    ALL.with_borrow_mut(|ends| {
        let ends = ends.get_or_insert_with(all);
        let place = usize::from(chosen >> 7);
        match chosen % 4 {
            0 | 1 => ends.postcard[place].forge(bytes, handles),
            2 => ends.msgpack[place].forge(bytes, handles),
            _ => ends.json[place].forge(bytes, handles),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the inputs with which the corpus began: `cargo test -- --ignored the_first_typed_inputs`.
    #[test]
    #[ignore = "writes to the corpus"]
    fn the_first_typed_inputs() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/typed");
        std::fs::create_dir_all(&folder).unwrap();
        let file = || Fd::from(File::open("/dev/null").unwrap());
        let end = || Channel::pair().unwrap().0;
        let pipe = || {
            let (writer, reader) = DataPipe::pair(64).unwrap();
            (reader.into(), writer.into())
        };
        let numbers = || Part::Numbers { signed: -1, wide: 1 << 100, real: 0.5, letter: 'x' };
        let nested = |depth: usize| (0..depth).fold(numbers(), |part, _| Part::Parts(vec![Part::Nothing, part]));
        type Made<'a> = (&'a [u8], Box<dyn Fn() -> Value + 'a>);
        let values: [Made<'_>; 7] = [
            (&[], Box::new(Value::default)),
            (
                &[0, 0, 0],
                Box::new(|| Value { number: 1 << 40, files: vec![file(), file(), file()], ..Value::default() }),
            ),
            (
                &[3, 4, 5],
                Box::new(|| Value {
                    end: Some(Typed::over(end()).into()),
                    raw: Some(end().into()),
                    shared: Some(Region::new(1).unwrap().into()),
                    ..Value::default()
                }),
            ),
            (&[7, 6], Box::new(|| Value { pipe: Some(pipe()), ..Value::default() })),
            (
                &[0, 3, 3, 0],
                Box::new(|| Value {
                    parts: vec![
                        Part::File(file()),
                        Part::Text("grün".into()),
                        Part::Ends(vec![end().into(), end().into()]),
                        Part::Value(Box::new(Value { files: vec![file()], ..Value::default() })),
                    ],
                    bytes: vec![7; 40],
                    ..Value::default()
                }),
            ),
            (&[], Box::new(|| Value { parts: vec![nested(20), numbers()], ..Value::default() })),
            (
                &[1, 2],
                Box::new(|| Value {
                    pairs: vec![(1, Some(file())), (2, None), (3, Some(file()))],
                    named: BTreeMap::from([(1, "one".into()), (300, String::new())]),
                    ..Value::default()
                }),
            ),
        ];
        fn bytes<C: Encode<Value> + DecodeOwned<Value>>(value: &Value) -> Vec<u8> {
            let (near, far) = Typed::<Value, Value, C>::pair().unwrap();
            near.send(value).unwrap();
            let far = far.into_channel();
            far.recv().unwrap();
            far.recv().unwrap().into_bytes()
        }
        for (number, (kinds, value)) in values.iter().enumerate() {
            let kind = |at: usize| kinds.get(at).copied().unwrap_or(0);
            let packed = |at: usize| kind(at) | kind(at + 1) << 4;
            for (chosen, bytes) in
                [(0, bytes::<Postcard>(&value())), (2, bytes::<MsgPack>(&value())), (3, bytes::<Json>(&value()))]
            {
                let place = ((number % 2) as u8) << 7;
                let head = [chosen | place, kinds.len() as u8, packed(0), packed(2), packed(4)];
                let input = [&head[..], &bytes].concat();
                typed(&input);
                std::fs::write(folder.join(format!("first-{number}-{chosen}")), input).unwrap();
            }
        }
    }
}
