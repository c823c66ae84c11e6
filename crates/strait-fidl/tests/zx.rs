//! Messages over the channels of `strait-zx`: within Rust, and with a program in C++ that reads and writes the wire
//! format by hand.

use std::path::{Path, PathBuf};
use std::process::Command;

use strait_fidl::zx::{WriteError, ZxHandle, ZxMessage};
use strait_fidl::{Code, Elements, Encode, Encoder, Fidl, FidlHandle, Gather, Header, RawHandle, decode, kind};
use strait_zx::abi::*;
use strait_zx::boundary::*;
use strait_zx::codes::*;

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
#[repr(C)]
struct Point {
    x: i32,
    y: i32,
}

#[derive(Debug, Default, Fidl)]
#[fidl(table)]
struct Style {
    #[fidl(1)]
    width: Option<u32>,
    #[fidl(3, max = 16)]
    name: Option<String>,
}

#[derive(Debug, PartialEq, Fidl)]
#[fidl(union, flexible)]
enum Fill {
    #[fidl(1)]
    Color(u32),
    #[fidl(2)]
    Pixels(Vec<u8>),
    #[fidl(unknown)]
    Unknown(u64),
}

/// The value sent to the program and back. `cpp/peer.cpp` reads and writes the encoding by hand.
#[derive(Debug, Fidl)]
struct Drawing {
    number: u64,
    points: Vec<Point>,
    title: String,
    style: Style,
    fill: Option<Fill>,
    visible: bool,
    event: Option<FidlHandle<kind::Event>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
struct Nothing;

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
#[fidl(strict)]
#[repr(u16)]
enum Color {
    Red = 1,
    Blue = 0x102,
}

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
#[fidl(flexible)]
#[repr(u8)]
enum Mood {
    Good = 1,
    #[fidl(unknown)]
    Other(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
#[fidl(bits, strict, mask = 7)]
struct Access(u8);

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
#[fidl(bits, flexible)]
struct Loose(u32);

#[derive(Clone, Copy, Debug, PartialEq, Fidl)]
struct Padded {
    a: u8,
    b: u32,
}

#[derive(Debug, PartialEq, Fidl)]
#[fidl(union, strict)]
enum Place {
    #[fidl(1)]
    At(Point),
    #[fidl(2)]
    Named(String),
}

/// A field of each kind of the format. `cpp/peer.cpp` reads and writes the encoding by hand.
#[derive(Debug, Fidl)]
struct Kinds {
    truth: bool,
    tiny: i8,
    byte: u8,
    empty_struct: Nothing,
    small: i16,
    word: u16,
    medium: i32,
    dword: u32,
    large: i64,
    quad: u64,
    single: f32,
    strict_enum: Color,
    flexible_enum: Mood,
    strict_bits: Access,
    real: f64,
    flexible_bits: Loose,
    array: [u16; 3],
    padded: Padded,
    text: String,
    #[fidl(max = 8)]
    bounded_text: String,
    absent_text: Option<String>,
    bytes: Vec<u8>,
    numbers: Vec<u64>,
    flags: Vec<bool>,
    names: Vec<String>,
    vectors: Vec<Vec<u8>>,
    absent_vector: Option<Vec<u16>>,
    boxed: Option<Box<Point>>,
    absent_box: Option<Box<Point>>,
    table: Style,
    empty_table: Style,
    strict_union: Place,
    flexible_union: Fill,
    absent_union: Option<Fill>,
    points: [Point; 2],
    event: FidlHandle<kind::Event>,
    absent_event: Option<FidlHandle<kind::Event>>,
}

fn kinds(event: ZxHandle) -> Kinds {
    Kinds {
        truth: true,
        tiny: i8::MIN,
        byte: u8::MAX,
        empty_struct: Nothing,
        small: i16::MIN,
        word: u16::MAX,
        medium: i32::MIN,
        dword: u32::MAX,
        large: i64::MIN,
        quad: u64::MAX,
        single: 0.5,
        strict_enum: Color::Blue,
        flexible_enum: Mood::Other(200),
        strict_bits: Access(5),
        real: -2.5,
        flexible_bits: Loose(0x8000_0001),
        array: [1, 256, u16::MAX],
        padded: Padded { a: 7, b: 8 },
        text: "two lines".into(),
        bounded_text: "abc".into(),
        absent_text: None,
        bytes: (0..=255).cycle().take(1021).collect(),
        numbers: vec![1, 1 << 63, u64::MAX],
        flags: vec![true, false, true],
        names: vec!["a".into(), String::new(), "grün".into()],
        vectors: vec![vec![9], vec![]],
        absent_vector: None,
        boxed: Some(Box::new(Point { x: 3, y: 4 })),
        absent_box: None,
        table: Style { width: Some(3), name: Some("dashed".into()) },
        empty_table: Style::default(),
        strict_union: Place::At(Point { x: 5, y: 6 }),
        flexible_union: Fill::Color(0x00ff_00ff),
        absent_union: None,
        points: [Point { x: 1, y: 2 }, Point { x: -1, y: -2 }],
        event: FidlHandle::new(event).unwrap(),
        absent_event: None,
    }
}

const HEADER: Header = Header { txid: 7, flexible: true, ordinal: 0x1122_3344_5566_7788 };

fn event() -> ZxHandle {
    let mut out = 0;
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { zx_event_create(0, &mut out) }, ZX_OK);
    ZxHandle::new(out).unwrap()
}

fn channel() -> (ZxHandle, ZxHandle) {
    let (mut a, mut b) = (0, 0);
    // SAFETY: the pointers lead to local variables.
    assert_eq!(unsafe { zx_channel_create(0, &mut a, &mut b) }, ZX_OK);
    (ZxHandle::new(a).unwrap(), ZxHandle::new(b).unwrap())
}

/// Waits until a channel has a message.
fn await_message(channel: &ZxHandle) {
    let mut observed = 0;
    let signals = ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED;
    let deadline = zx_deadline_after(60_000_000_000);
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { zx_object_wait_one(channel.handle(), signals, deadline, &mut observed) }, ZX_OK);
}

fn drawing(event: Option<ZxHandle>) -> Drawing {
    let style = Style { width: Some(3), name: Some("dashed".into()) };
    let event = event.map(|event| FidlHandle::new(event).unwrap());
    let points = (0..100).map(|x| Point { x, y: -x }).collect();
    let fill = Some(Fill::Pixels((0..=255).cycle().take(1021).collect()));
    Drawing { number: 5, points, title: "two lines".into(), style, fill, visible: true, event }
}

fn check(received: &Drawing) {
    let expected = drawing(None);
    assert_eq!((received.number, &received.title, received.visible), (5, &expected.title, true));
    assert_eq!((&received.points, &received.fill), (&expected.points, &expected.fill));
    assert_eq!((received.style.width, received.style.name.as_deref()), (Some(3), Some("dashed")));
}

#[test]
fn a_value_with_a_handle_goes_over_a_channel_of_zircon() {
    let (a, b) = channel();
    let mut message = ZxMessage::new();
    assert_eq!(message.read(b.handle()).unwrap_err(), ZX_ERR_SHOULD_WAIT);
    for gather in [Gather::LINEAR, Gather::default(), Gather::FUCHSIA, Gather { parts: 64, threshold: 8 }] {
        let value = drawing(Some(event()));
        let mut encoder = Encoder::gathering(gather);
        encoder.message(HEADER, &value).unwrap().write(a.handle()).unwrap();
        assert!(value.event.as_ref().unwrap().is_sent());
        message.read(b.handle()).unwrap();
        let handles = message.take_handles();
        let (header, body) = Header::split(message.bytes()).unwrap();
        let received: Drawing = decode(body, handles).unwrap();
        check(&received);
        assert_eq!(header, HEADER);
        let event = received.event.unwrap().into_raw().unwrap().into_zx().unwrap();
        assert_eq!(event.kind(), ZX_OBJ_TYPE_EVENT);
    }
    drop((a, b));
}

#[test]
fn a_large_vector_is_written_from_where_it_lies() {
    let (a, b) = channel();
    let numbers: Vec<u64> = (0..8000).collect();
    let mut encoder = Encoder::new();
    let encoded = encoder.encode(&numbers).unwrap();
    assert_eq!(encoded.parts()[1].as_ptr(), numbers.as_ptr().cast());
    encoded.write(a.handle()).unwrap();
    let mut message = ZxMessage::new();
    message.read(b.handle()).unwrap();
    assert!(decode::<Elements<'_, u64>>(message.bytes(), []).unwrap().iter().eq(0..8000));

    // Longer than a message of Zircon.
    let numbers: Vec<u64> = (0..8200).collect();
    let error = encoder.encode(&numbers).unwrap().write(a.handle()).unwrap_err();
    assert_eq!(error, WriteError::Status(ZX_ERR_OUT_OF_RANGE));
}

#[test]
fn handles_of_another_kind_stay_in_the_value() {
    let (a, b) = channel();
    let strait: FidlHandle = std::fs::File::open("/dev/null").unwrap().into();
    let mixed = [FidlHandle::new(event()).unwrap(), strait];
    let mut encoder = Encoder::new();
    let encoded = encoder.encode(&mixed).unwrap();
    let WriteError::Handles(error) = encoded.write(a.handle()).unwrap_err() else { panic!() };
    assert_eq!(error.code(), Code::IncorrectHandleType);
    let (near, _far) = strait::Channel::pair().unwrap();
    assert!(encoded.send(&near).is_err());
    assert!(mixed.iter().all(|handle| !handle.is_sent()));
    let wrong = FidlHandle::<kind::Channel>::new(event());
    assert!(wrong.is_err());

    // A message not written to the channel: the call has closed the handle.
    drop(b);
    let closed = FidlHandle::<kind::Event>::new(event()).unwrap();
    let error = encoder.encode(&closed).unwrap().write(a.handle()).unwrap_err();
    assert_eq!(error, WriteError::Status(ZX_ERR_PEER_CLOSED));
    assert!(closed.is_sent());
}

/// Returns the directory of the libraries built by Cargo, which is also the directory of the test programs.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

/// The program in C++, with a channel.
struct Program {
    pid: i32,
    channel: Option<ZxHandle>,
}

impl Program {
    /// Compiles the program under the given name, and starts the program.
    fn start(name: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut compiler = Command::new("c++");
        compiler.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
        compiler.arg(root.join("../strait-zx/include")).arg(root.join("tests/cpp/peer.cpp")).arg("-o").arg(&out);
        compiler.arg(libraries().join("libstrait_zx.a")).args(["-lpthread", "-ldl", "-lm"]);
        assert!(compiler.status().expect("a C++ compiler").success(), "{compiler:?}");

        let program = std::ffi::CString::new(out.into_os_string().into_encoded_bytes()).unwrap();
        let (mut pid, mut handle) = (0, 0);
        let arguments = [program.as_ptr(), std::ptr::null()];
        // SAFETY: the array ends with a null pointer, and the other two lead to local variables.
        assert_eq!(unsafe { strait_zx_spawn(arguments.as_ptr(), &mut pid, &mut handle) }, ZX_OK);
        Self { pid, channel: ZxHandle::new(handle).ok() }
    }

    fn channel(&self) -> &ZxHandle {
        self.channel.as_ref().expect("the program runs")
    }

    /// Sends a value, and receives the program's message into `message`. Returns the header and the handles.
    fn send<V: Encode>(&self, header: Header, value: &V, gather: Gather, message: &mut ZxMessage) -> Vec<RawHandle> {
        Encoder::gathering(gather).message(header, value).unwrap().write(self.channel().handle()).unwrap();
        await_message(self.channel());
        message.read(self.channel().handle()).unwrap();
        assert_eq!(Header::split(message.bytes()).unwrap().0, header);
        message.take_handles()
    }

    /// Closes the channel, at which the program ends without an error.
    fn end(mut self) {
        drop(self.channel.take());
        let pid = rustix::process::Pid::from_raw(self.pid);
        let status = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
        assert_eq!(status.unwrap().1.exit_status(), Some(0));
    }
}

/// Checks that the program has signalled the received event.
fn check_signalled(event: FidlHandle<kind::Event>) {
    let event = event.into_raw().unwrap().into_zx().unwrap();
    let mut observed = 0;
    // SAFETY: the pointer leads to a local variable.
    let status = unsafe { zx_object_wait_one(event.handle(), ZX_EVENT_SIGNALED, 0, &mut observed) };
    assert_eq!((status, observed & ZX_EVENT_SIGNALED), (ZX_OK, ZX_EVENT_SIGNALED));
}

#[test]
fn a_program_in_cpp_reads_what_rust_encodes_and_the_reverse() {
    let program = Program::start("fidl-peer");
    let mut message = ZxMessage::new();
    for gather in [Gather::LINEAR, Gather::default(), Gather::FUCHSIA] {
        let handles = program.send(HEADER, &drawing(Some(event())), gather, &mut message);
        let received: Drawing = decode(Header::split(message.bytes()).unwrap().1, handles).unwrap();
        check(&received);
        check_signalled(received.event.unwrap());
    }
    program.end();
}

#[test]
fn each_kind_of_field_goes_to_a_program_in_cpp_and_back() {
    let program = Program::start("fidl-kinds-peer");
    let header = Header { ordinal: 0x1122_3344_5566_7799, ..HEADER };
    let mut message = ZxMessage::new();
    for gather in [Gather::LINEAR, Gather::default(), Gather::FUCHSIA] {
        let handles = program.send(header, &kinds(event()), gather, &mut message);
        let received: Kinds = decode(Header::split(message.bytes()).unwrap().1, handles).unwrap();
        // The text has all fields of the value but the handle, whose number differs.
        let (expected, text) = (format!("{:?}", kinds(event())), format!("{received:?}"));
        assert_eq!(text, expected);
        check_signalled(received.event);
    }
    program.end();
}
