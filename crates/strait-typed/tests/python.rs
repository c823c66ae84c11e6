//! A message of the codec MsgPack, read by Python's `msgpack`.

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use common::{Everything, LIMIT};
use serde::de::IgnoredAny;
use strait::Channel;
use strait_typed::Typed;
use strait_typed::codec::{Decode, MsgPack};

const PROGRAM: &str = r#"
import msgpack, sys
value = msgpack.unpackb(sys.stdin.buffer.read(), strict_map_key=False)
assert len(value) == 42, len(value)
assert value["truth"] is True and value["none"] is None and value["unit"] is None
assert (value["tiny"], value["short"], value["int"], value["long"]) == (-2**7, -2**15, -2**31, -2**63)
assert (value["byte"], value["word"], value["double"], value["quad"]) == (2**8-1, 2**16-1, 2**32-1, 2**64-1)
assert abs(value["float"] + 0.1) < 1e-8 and value["letter"] == chr(0x10FFFF)
assert value["text"] == 'Straße "quoted" \0 \n'
assert value["bytes"] == bytes(range(256)) and value["list_of_bytes"] == [0, 127, 128, 255]
assert value["some"] == {"x": -1, "y": 0.5} and value["metres"] == 1.5 and value["pair"] == [7, "seven"]
assert value["map"] == {"one": 1, "two": 2} and value["sorted"] == {0: [], 70000: [-1, 1]}
assert value["shapes"][0] == "Empty" and value["shapes"][3] == {"Box": {"corner": {"x": 0, "y": 0.0}, "size": [1, 2]}}
assert [child["name"] for child in value["tree"]["children"]] == ["left", "right"]
assert value["outcome"] == {"Err": "no"} and value["nested"] == [[], [None, [1, None], [2, None]]]
assert value["size"] == 2**64-1 and value["nothing"] == [] and value["array"] == [0, 1, 256, 65535, 5]
assert int.from_bytes(value["huge"], "big", signed=True) == -2**127
assert int.from_bytes(value["wide"], "big") == 2**128-1
assert value["real"] == 2.2250738585072014e-308 and value["list"] == [{"x": 0, "y": 0.0}] * 3
assert value["names"] == ["", "a" * 300] and value["set"] == ["a", "b"] and value["queue"] == [True, False]
assert value["boxed"] == {"Circle": 1e300} and value["cow"] == "borrowed" and value["path"] == "/a/b"
assert value["elapsed"] == {"secs": 3, "nanos": 999_999_999} and value["nonzero"] == 1
assert set(value) == set(sys.argv[1].split())
sys.stdout.buffer.write(msgpack.packb(value))
"#;

#[test]
fn python_reads_every_kind_of_field() {
    let has_package = Command::new("python3").args(["-c", "import msgpack"]).stderr(Stdio::null()).status();
    if !has_package.is_ok_and(|status| status.success()) {
        println!("left out: python3 has no package msgpack (pip install msgpack)");
        return;
    }
    let (one, other) = Channel::pair().unwrap();
    Typed::<Everything, (), MsgPack>::over(one).send(&Everything::new()).unwrap();
    // The first message names the types.
    other.recv_by(LIMIT).unwrap();
    let message = other.recv_by(LIMIT).unwrap();
    let mut python = Command::new("python3");
    // The names of all fields, so that none is forgotten.
    let json = serde_json::to_string(&Everything::new()).unwrap();
    let fields: BTreeMap<String, IgnoredAny> = serde_json::from_str(&json).unwrap();
    let fields: Vec<_> = fields.into_keys().collect();
    python
        .args(["-c", PROGRAM, &fields.join(" ")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    let mut python = python.spawn().unwrap();
    python.stdin.take().unwrap().write_all(message.bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    // The bytes packed by Python are read as the value again.
    assert_eq!(MsgPack::decode(&output.stdout), Ok(Everything::new()));
}
